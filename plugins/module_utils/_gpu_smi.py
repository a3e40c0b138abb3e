# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What nvidia-smi prints, read into the field names of the result: XML (-q -x), CSV (--query-gpu), text (-q), versions and errors.

Layouts seen: DTD v6 to v13 (drivers 384 to 610). The human table is read for its versions only: it cuts names off.
"""

from __future__ import annotations

import csv
import re
import typing as t
import xml.etree.ElementTree as ET

from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import (
    NOT_SUPPORTED,
    UNKNOWN,
    Cell,
    Failure,
    Nothing,
    Reading,
    integer,
    mib,
    nothing,
    number,
    pci_bus_id,
    pci_id,
    signed,
    switch,
    text,
    version,
)

XML_ARGUMENTS = ("-q", "-x")
HELP_ARGUMENTS = ("--help-query-gpu",)
LIST_ARGUMENTS = ("-L",)
APPS_ARGUMENTS = ("--query-compute-apps=gpu_uuid,gpu_bus_id,pid,process_name,used_gpu_memory", "--format=csv")

Parser = t.Callable[[t.Optional[str]], Cell]


def _unit(parse: t.Callable[[str | None, str], Cell], unit: str) -> Parser:
    return lambda cell: parse(cell, unit)


def _width(cell: str | None) -> Cell:
    """Lanes: XML writes 16x, CSV 16."""
    return integer(None if cell is None else cell.strip().rstrip("x"))


def recovery_action(cell: str | None) -> Cell:
    """None is an answer here, not a missing one. Words of NVML: Reset, Reboot, Drain P2P, Drain and Reset; others stay as they are."""
    if cell is not None and cell.strip().lower() == "none":
        return "none"
    word = text(cell)
    if isinstance(word, Nothing):
        return word
    word = re.sub(r"\W+", "_", word.strip("[]").lower()).strip("_")
    return re.sub("^(gpu|node)_(reset|reboot)(_required)?$", r"\2", word)


def fabric_state(cell: str | None) -> Cell:
    word = text(cell)
    return word if isinstance(word, Nothing) else re.sub(r"\W+", "_", word.lower()).strip("_")


def _mode(cell: str | None) -> Cell:
    """A word for which None is an answer of its own: no virtualisation."""
    return "None" if cell is not None and cell.strip() == "None" else text(cell)


def _total(*parts: Cell) -> Cell:
    """A sum of error counters; parts that are not supported count as none, but one that is unknown makes the sum unknown."""
    numbers = [part for part in parts if not isinstance(part, Nothing)]
    unknown = [part for part in parts if isinstance(part, Nothing) and part.reason != NOT_SUPPORTED]
    if unknown or not numbers:
        return (unknown or [part for part in parts if isinstance(part, Nothing)] or [Nothing(UNKNOWN)])[0]
    return sum(numbers)


# Canonical field -> (places in the XML, best first; how its text is read). A place is a path below <gpu>.
_XML: dict[str, tuple[tuple[str, ...], Parser]] = {
    "name": (("product_name",), text),
    "architecture": (("product_architecture",), text),
    "uuid": (("uuid", "gpu_uuid"), text),
    "serial": (("serial", "serial_number"), text),
    "minor_number": (("minor_number",), integer),
    "pci_device_id": (("pci/pci_device_id",), pci_id),
    "pci_subsystem_id": (("pci/pci_sub_system_id",), pci_id),
    "memory_total_mib": (("fb_memory_usage/total",), mib),
    "memory_used_mib": (("fb_memory_usage/used",), mib),
    "memory_free_mib": (("fb_memory_usage/free",), mib),
    "memory_reserved_mib": (("fb_memory_usage/reserved",), mib),
    "ecc_enabled": (("ecc_mode/current_ecc", "ecc_mode/current"), switch),
    "ecc_enabled_pending": (("ecc_mode/pending_ecc", "ecc_mode/pending"), switch),
    "remapped_rows_correctable": (("remapped_rows/remapped_row_corr",), integer),
    "remapped_rows_uncorrectable": (("remapped_rows/remapped_row_unc",), integer),
    "remapped_rows_pending": (("remapped_rows/remapped_row_pending",), switch),
    "remapped_rows_failure": (("remapped_rows/remapped_row_failure",), switch),
    "retired_pages_pending": (("retired_pages/pending_retirement", "retired_pages/pending_blacklist"), switch),
    "mig_enabled": (("mig_mode/current_mig", "mig_mode/current"), switch),
    "mig_enabled_pending": (("mig_mode/pending_mig", "mig_mode/pending"), switch),
    "power_draw_w": (
        (
            "gpu_power_readings/power_draw",
            "gpu_power_readings/average_power_draw",
            "gpu_power_readings/instant_power_draw",
            "power_readings/power_draw",
        ),
        _unit(number, "W"),
    ),
    "power_limit_w": (
        (
            "gpu_power_readings/current_power_limit",
            "gpu_power_readings/power_limit",
            "power_readings/power_limit",
            "power_readings/enforced_power_limit",
        ),
        _unit(number, "W"),
    ),
    "power_limit_default_w": (("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"), _unit(number, "W")),
    "power_limit_min_w": (("gpu_power_readings/min_power_limit", "power_readings/min_power_limit"), _unit(number, "W")),
    "power_limit_max_w": (("gpu_power_readings/max_power_limit", "power_readings/max_power_limit"), _unit(number, "W")),
    "temperature_c": (("temperature/gpu_temp",), _unit(signed, "C")),
    "temperature_memory_c": (("temperature/memory_temp",), _unit(signed, "C")),
    "clock_sm_mhz": (("clocks/sm_clock",), _unit(integer, "MHz")),
    "clock_memory_mhz": (("clocks/mem_clock",), _unit(integer, "MHz")),
    "clock_sm_max_mhz": (("max_clocks/sm_clock",), _unit(integer, "MHz")),
    "clock_memory_max_mhz": (("max_clocks/mem_clock",), _unit(integer, "MHz")),
    "utilization_gpu_percent": (("utilization/gpu_util", "utilization/gpu"), _unit(integer, "%")),
    "persistence_mode": (("persistence_mode",), switch),
    "compute_mode": (("compute_mode",), text),
    "performance_state": (("performance_state", "gpu_power_readings/power_state", "power_readings/power_state"), text),
    "pcie_generation": (("pci/pci_gpu_link_info/pcie_gen/current_link_gen",), integer),
    "pcie_generation_max": (("pci/pci_gpu_link_info/pcie_gen/max_link_gen",), integer),
    "pcie_width": (("pci/pci_gpu_link_info/link_widths/current_link_width",), _width),
    "pcie_width_max": (("pci/pci_gpu_link_info/link_widths/max_link_width",), _width),
    "numa_node": (("numa_node",), integer),
    "recovery_action": (("gpu_recovery_action",), recovery_action),
    "addressing_mode": (("addressing_mode",), text),
    "virtualization_mode": (("gpu_virtualization_mode/virtualization_mode",), _mode),
    "driver_model": (("driver_model/current_dm", "driver_model/current"), text),
    "license_status": (
        ("vgpu_software_licensed_product/license_status", "grid_licensed_product/license_status"),
        text,
    ),
    "fabric_state": (("fabric/state",), fabric_state),
    "vbios_version": (("vbios_version",), text),
    "gsp_firmware_version": (("gsp_firmware_version",), text),
}

# Canonical field -> (names of --query-gpu, best first; how the cell is read). Names change with the driver: they are negotiated.
_CSV: dict[str, tuple[tuple[str, ...], Parser]] = {
    "index": (("index",), integer),
    "name": (("name", "gpu_name"), text),
    "uuid": (("uuid", "gpu_uuid"), text),
    "serial": (("serial", "gpu_serial"), text),
    "compute_capability": (("compute_cap",), version),
    "pci_bus_id": (("pci.bus_id", "gpu_bus_id"), pci_bus_id),
    "pci_device_id": (("pci.device_id",), pci_id),
    "pci_subsystem_id": (("pci.sub_device_id",), pci_id),
    "memory_total_mib": (("memory.total",), mib),
    "memory_used_mib": (("memory.used",), mib),
    "memory_free_mib": (("memory.free",), mib),
    "memory_reserved_mib": (("memory.reserved",), mib),
    "ecc_enabled": (("ecc.mode.current",), switch),
    "ecc_enabled_pending": (("ecc.mode.pending",), switch),
    "ecc_errors_corrected_volatile": (("ecc.errors.corrected.volatile.total",), integer),
    "ecc_errors_uncorrected_volatile": (("ecc.errors.uncorrected.volatile.total",), integer),
    "ecc_errors_corrected_aggregate": (("ecc.errors.corrected.aggregate.total",), integer),
    "ecc_errors_uncorrected_aggregate": (("ecc.errors.uncorrected.aggregate.total",), integer),
    "remapped_rows_correctable": (("remapped_rows.correctable",), integer),
    "remapped_rows_uncorrectable": (("remapped_rows.uncorrectable",), integer),
    "remapped_rows_pending": (("remapped_rows.pending",), switch),
    "remapped_rows_failure": (("remapped_rows.failure",), switch),
    "retired_pages_pending": (("retired_pages.pending",), switch),
    "mig_enabled": (("mig.mode.current",), switch),
    "mig_enabled_pending": (("mig.mode.pending",), switch),
    "power_draw_w": (("power.draw",), _unit(number, "W")),
    "power_limit_w": (("power.limit",), _unit(number, "W")),
    "power_limit_default_w": (("power.default_limit",), _unit(number, "W")),
    "power_limit_min_w": (("power.min_limit",), _unit(number, "W")),
    "power_limit_max_w": (("power.max_limit",), _unit(number, "W")),
    "temperature_c": (("temperature.gpu",), _unit(signed, "C")),
    "temperature_memory_c": (("temperature.memory",), _unit(signed, "C")),
    "clock_sm_mhz": (("clocks.current.sm", "clocks.sm"), _unit(integer, "MHz")),
    "clock_memory_mhz": (("clocks.current.memory", "clocks.mem"), _unit(integer, "MHz")),
    "clock_sm_max_mhz": (("clocks.max.sm",), _unit(integer, "MHz")),
    "clock_memory_max_mhz": (("clocks.max.memory", "clocks.max.mem"), _unit(integer, "MHz")),
    "utilization_gpu_percent": (("utilization.gpu",), _unit(integer, "%")),
    "persistence_mode": (("persistence_mode",), switch),
    "compute_mode": (("compute_mode",), text),
    "performance_state": (("pstate",), text),
    "pcie_generation": (("pcie.link.gen.current", "pcie.link.gen.gpucurrent"), integer),
    "pcie_generation_max": (("pcie.link.gen.max",), integer),
    "pcie_width": (("pcie.link.width.current",), _width),
    "pcie_width_max": (("pcie.link.width.max",), _width),
    "recovery_action": (("gpu_recovery_action",), recovery_action),
    "addressing_mode": (("addressing_mode",), text),
    "driver_model": (("driver_model.current",), text),
    "fabric_state": (("fabric.state",), fabric_state),
    "vbios_version": (("vbios_version",), text),
}
_CSV_HOST = {"driver_version": ("driver_version",)}

# What nvidia-smi says when it cannot begin -> code. Texts of drivers 384 to 610 (cases A14 to A18, A43).
_ERRORS = (
    (r"driver/library version mismatch", "driver_library_mismatch"),
    (r"couldn't communicate with the NVIDIA driver|Driver Not Loaded", "driver_not_loaded"),
    (r"couldn't find libnvidia-ml|libnvidia-ml\.so", "library_missing"),
    (r"No devices (were )?found", "no_devices"),
    (r"Insufficient Permissions", "no_permission"),
    (r"Failed to initialize NVML", "nvml_unknown"),
    (r"is not a valid field to query", "unknown_field"),
)
# Exit codes of nvidia-smi(1) and of nvmlReturn_t, for when the text says nothing.
_EXIT_CODES = {
    4: "no_permission",
    6: "no_devices",
    9: "driver_not_loaded",
    12: "library_missing",
    15: "gpu_lost",
    17: "no_permission",
    18: "driver_library_mismatch",
}
_HANDLE = re.compile(
    r"Unable to determine the device handle for GPU\s*(?P<index>\d+(?=\s*:\s))?\s*:?\s*"
    r"(?P<address>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])?\s*:\s*(?P<reason>.*)"
)


def _failure_health(reason: str) -> str:
    if re.search(r"reset", reason, re.IGNORECASE):
        return "needs_reset"
    # "Unknown Error" of a device handle is what a GPU that fell off the bus gives (case A17).
    return "lost" if re.search(r"lost|unknown error|fallen off", reason, re.IGNORECASE) else "unknown"


def failures_in(output: str) -> list[Failure]:
    """GPUs that nvidia-smi names but cannot reach, from lines among its output."""
    found = []
    for line in output.splitlines():
        match = _HANDLE.search(line)
        if match:
            address = pci_bus_id(match["address"])
            index = int(match["index"]) if match["index"] else None
            found.append(
                Failure(index, None if isinstance(address, Nothing) else address, _failure_health(match["reason"]), " ".join(line.split()))
            )
    return found


def error_of(output: str, rc: int | None) -> str:
    """The code of what went wrong; empty when nvidia-smi did its work.

    output: stdout and stderr together. rc: its exit status, None when it did not end in time.
    """
    if rc is None:
        return "timed_out"
    for pattern, code in _ERRORS:
        if re.search(pattern, output, re.IGNORECASE):
            return code
    if rc in (0, 14):  # 14: infoROM corrupted; everything is printed all the same
        return ""
    return _EXIT_CODES.get(rc, "unknown_error")


def _unexplained(error: str, failures: t.Sequence[Failure]) -> str:
    """The error of an answer that lists GPUs. When lines name those that cannot be reached, the exit status says no more than they do."""
    return "" if failures and error in ("gpu_lost", "unknown_error") else error


def _first_lines(output: str, count: int = 2) -> str:
    """The beginning of what was said, on one line."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    return " ".join(lines[:count])[:300]


def library_version(output: str) -> Cell:
    """The library's version in the message about a mismatch (drivers 535 and later print it, without the last part)."""
    match = re.search(r"NVML library version:\s*(\S+)", output)
    return version(match[1] if match else None)


def _first(parse: Parser, cells: t.Iterable[str | None]) -> Cell:
    """The first value; without one, the first kind of nothing that a cell that is there stands for."""
    answer: Cell = None
    for cell in cells:
        if cell is None:
            continue
        value = parse(cell)
        if not isinstance(value, Nothing):
            return value
        answer = answer or value
    return answer


def _element_text(element: ET.Element, path: str) -> str | None:
    """Text at a path. A parent that holds a word instead of children (<remapped_rows>N/A</remapped_rows>) answers for them."""
    found = element.find(path)
    if found is not None:
        return found.text or ""
    parent, _slash, _name = path.rpartition("/")
    if not parent:
        return None
    above = element.find(parent)
    if above is not None and len(above) == 0 and nothing(above.text) and (above.text or "").strip():
        return above.text
    return None


def _put(fields: dict[str, Cell], field: str, cell: Cell) -> None:
    if cell is not None:
        fields[field] = cell


def _ecc_errors(gpu: ET.Element) -> dict[str, Cell]:
    """Totals of error counters. Since DTD v11 they are split by place; before, each kind has a <total>."""
    fields: dict[str, Cell] = {}
    for period in ("volatile", "aggregate"):
        place = gpu.find(f"ecc_errors/{period}")
        if place is None:
            continue
        for kind, kind_old in (("correctable", "single_bit"), ("uncorrectable", "double_bit")):
            field = f"ecc_errors_{'corrected' if kind == 'correctable' else 'uncorrected'}_{period}"
            parts = [child for child in place if re.fullmatch(rf"(sram|dram)_{kind}(_\w+)?", child.tag)]
            if parts:
                _put(fields, field, _total(*(integer(part.text) for part in parts)))
            else:
                _put(fields, field, _first(integer, [_element_text(place, f"{kind_old}/total")]))
    return fields


def _mig_devices(gpu: ET.Element) -> list[dict[str, t.Any]]:
    devices = []
    for element in gpu.findall("mig_devices/mig_device"):
        cells = {
            "index": integer(element.findtext("index")),
            "uuid": text(element.findtext("uuid")),
            "name": text(element.findtext("name")),
            "gpu_instance_id": integer(element.findtext("gpu_instance_id")),
            "compute_instance_id": integer(element.findtext("compute_instance_id")),
            "memory_total_mib": mib(element.findtext("fb_memory_usage/total")),
            "memory_used_mib": mib(element.findtext("fb_memory_usage/used")),
            "memory_free_mib": mib(element.findtext("fb_memory_usage/free")),
        }
        devices.append({key: None if isinstance(cell, Nothing) else cell for key, cell in cells.items()})
    return devices


def processes(rows: t.Iterable[tuple[str | None, str | None, str | None, str | None]]) -> list[dict[str, t.Any]]:
    """One entry a pid from rows (pid, type, name, used memory): a process that computes and draws is listed twice with the same memory."""
    merged: dict[int, dict[str, t.Any]] = {}
    for pid_text, kind_text, name_text, used_text in rows:
        pid, kind, name, used = integer(pid_text), text(kind_text), text(name_text), mib(used_text)
        if isinstance(pid, Nothing):
            continue
        entry = merged.setdefault(pid, {"pid": pid, "name": None, "type": None, "memory_used_mib": None})
        # M+C is a client of MPS: it computes.
        kinds = {*(entry["type"] or "").split("+"), *("" if isinstance(kind, Nothing) else kind).split("+")} & {"C", "G"}
        entry["type"] = "+".join(sorted(kinds)) or None
        entry["name"] = entry["name"] or (None if isinstance(name, Nothing) else name)
        if not isinstance(used, Nothing):
            entry["memory_used_mib"] = max(used, entry["memory_used_mib"] or 0)
    return [merged[pid] for pid in sorted(merged)]


_COUNTED = (
    "mig_devices",
    "processes",
    *(f"ecc_errors_{kind}_{period}" for kind in ("corrected", "uncorrected") for period in ("volatile", "aggregate")),
)


def _gpu_of(gpu: ET.Element) -> dict[str, Cell]:
    fields: dict[str, Cell] = {}
    _put(fields, "pci_bus_id", _first(pci_bus_id, [gpu.get("id"), _element_text(gpu, "pci/pci_bus_id")]))
    for field, (paths, parse) in _XML.items():
        _put(fields, field, _first(parse, (_element_text(gpu, path) for path in paths)))
    fields.update(_ecc_errors(gpu))
    if gpu.find("mig_devices") is not None:
        fields["mig_devices"] = _mig_devices(gpu)
    if gpu.find("processes") is not None:
        fields["processes"] = processes(
            (entry.findtext("pid"), entry.findtext("type"), entry.findtext("process_name"), entry.findtext("used_memory"))
            for entry in gpu.findall("processes/process_info")
        )
    return fields


def _number_gpus(gpus: list[dict[str, Cell]], failures: t.Sequence[Failure]) -> None:
    """XML names no index: it is the position, in PCI bus order, among all GPUs; those that failed count."""
    taken = {failure.index for failure in failures}
    addresses = [gpu.get("pci_bus_id") for gpu in gpus]
    if None in taken:
        known = [address for address in addresses if isinstance(address, str)]
        ordered = sorted({*known, *(failure.pci_bus_id for failure in failures if failure.pci_bus_id)})
        sure = known == sorted(known) and len(known) == len(gpus) and all(failure.pci_bus_id for failure in failures)
        for gpu in gpus:
            gpu["index"] = ordered.index(gpu["pci_bus_id"]) if sure else Nothing(UNKNOWN, "a GPU without an index is missing")
        return
    index = 0
    for gpu in gpus:
        while index in taken:
            index += 1
        gpu["index"] = index
        index += 1


def _tree(document: str) -> tuple[ET.Element | None, str]:
    """The tree as far as the document is whole, and what is wrong with it."""
    root: list[ET.Element] = []

    class Builder(ET.TreeBuilder):
        def start(self, tag: str, attrs: dict[str, str]) -> ET.Element:
            element = super().start(tag, attrs)
            root.append(element)
            return element

    parser = ET.XMLParser(target=Builder())  # noqa: S314 - printed by the driver's own tool, and expat limits expansion
    try:
        parser.feed(document)
        parser.close()
    except ET.ParseError as problem:
        return (root[0] if root else None), f"the XML is damaged or cut off ({problem})"
    return root[0], ""


def parse_xml(output: str, rc: int | None = 0) -> Reading:
    """Read `nvidia-smi -q -x`.

    output: stdout and stderr together, decoded with errors="replace"; lines before and after the document are looked through for errors.
    A document that is cut off gives what is whole. rc: exit status, None when it did not end in time.
    """
    before, opening, rest = output.partition("<nvidia_smi_log")
    body, closing, after = rest.partition("</nvidia_smi_log>")
    noise = before.partition("<?xml")[0] + "\n" + after
    failures = failures_in(noise)
    error = error_of(noise if opening else output, rc)
    if not opening:
        # An answer without a document is a failure, whatever the exit status says.
        return Reading(
            "nvidia_smi_xml",
            "timed_out" if error == "timed_out" else "failed",
            "gpu_lost" if failures_in(output) else error or "unknown_error",
            _first_lines(output),
            {"driver_userland_version": library_version(output)} if error == "driver_library_mismatch" else {},
            (),
            failures_in(output),
        )
    # Characters that XML 1.0 does not allow would end the document for one bad cell.
    document = re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd]", "\ufffd", opening + body + closing)
    root, damage = _tree(document)
    gpus = [_gpu_of(element) for element in root.findall("gpu")] if root is not None else []
    if damage and gpus:
        # What is counted or listed may go on after the cut: half of it would be a wrong number.
        gpus[-1] = {field: cell for field, cell in gpus[-1].items() if field not in _COUNTED}
    _number_gpus(gpus, failures)
    error = _unexplained(error, failures)
    host: dict[str, Cell] = {}
    if root is not None:
        _put(host, "driver_version", _first(version, [root.findtext("kmd_version"), root.findtext("driver_version")]))
        _put(host, "cuda_driver_version", _first(version, [root.findtext("cuda_umd_version"), root.findtext("cuda_version")]))
        attached = integer(root.findtext("attached_gpus"))
        if not damage and not isinstance(attached, Nothing) and not len(gpus) <= attached <= len(gpus) + len(failures):
            damage = f"{attached} GPUs attached, {len(gpus)} listed"
    if not damage and rc in (0, 14):
        error = ""  # everything was printed: what stands around it is a warning
    status = "failed" if error or (damage and not gpus) else "ok"
    message = "; ".join(part for part in (damage, _first_lines(noise)) if part)
    return Reading("nvidia_smi_xml", status, error or ("damaged" if damage else ""), message, host, gpus, failures)


def parse_query_fields(output: str) -> list[str]:
    """Names that this nvidia-smi takes for --query-gpu, from --help-query-gpu: each at the start of a line, in quotes, with its aliases."""
    names = []
    for line in output.splitlines():
        if line.startswith('"'):
            names += re.findall(r'"([\w.]+)"', line)
    return names


def query_arguments(known: t.Container[str]) -> tuple[str, ...]:
    """Arguments that ask for every field that we read and this nvidia-smi knows: one unknown name would fail the whole query."""
    fields = []
    for names, _parse in [*_CSV.values(), *((names, version) for names in _CSV_HOST.values())]:
        fields += [name for name in names if name in known][:1]
    return (f"--query-gpu={','.join(fields)}", "--format=csv")


def _column(heading: str) -> str:
    """memory.total [MiB] -> memory.total."""
    return heading.partition("[")[0].strip().lower()


def _rows(output: str, fields: t.Sequence[str] | None, known: t.Container[str]) -> tuple[list[str], list[list[str]], str]:
    """Columns, rows, and the lines that belong to neither."""
    columns = list(fields or [])
    rows, noise = [], []
    for line in output.splitlines(keepends=True):
        try:
            cells = [cell.strip() for cell in next(csv.reader([line.rstrip("\r\n")], skipinitialspace=True), [])]
        except csv.Error:  # a cell of over 128 KiB
            cells = []
        if not columns:
            headings = [_column(cell) for cell in cells]
            if headings and all(re.fullmatch(r"[a-z][\w.]*", heading) for heading in headings) and any(name in known for name in headings):
                columns = headings
            else:
                noise.append(line)
        elif cells and (len(cells) == len(columns) or not line.endswith("\n")) and not _HANDLE.search(line):
            # The last line of an output that was cut off: its last cell may be half a number.
            rows.append(cells if line.endswith("\n") else cells[: len(columns)][:-1])
        else:
            noise.append(line)
    return columns, rows, "".join(noise)


def parse_csv(output: str, rc: int | None = 0, fields: t.Sequence[str] | None = None) -> Reading:
    """Read `nvidia-smi --query-gpu=... --format=csv`, with or without units.

    fields: names in their order when there is no heading (noheader). Errors as in parse_xml.
    """
    known = {name for names, _parse in _CSV.values() for name in names} | {name for names in _CSV_HOST.values() for name in names}
    columns, rows, noise = _rows(output, fields, known)
    failures = failures_in(noise)
    error = error_of(noise if columns else output, rc)
    if not columns or error == "timed_out":
        host = {"driver_userland_version": library_version(output)} if error == "driver_library_mismatch" else {}
        status = "timed_out" if error == "timed_out" else "failed"
        return Reading("nvidia_smi_csv", status, error or "unknown_error", _first_lines(output), host, (), failures)
    error = _unexplained(error, failures)
    gpus = []
    host_cells: dict[str, Cell] = {}
    for row in rows:
        cells = dict(zip(columns, row))
        gpu: dict[str, Cell] = {}
        for field, (names, parse) in _CSV.items():
            _put(gpu, field, _first(parse, (cells.get(name) for name in names)))
        gpus.append(gpu)
        for field, names in _CSV_HOST.items():
            _put(host_cells, field, host_cells.get(field) or _first(version, (cells.get(name) for name in names)))
    return Reading("nvidia_smi_csv", "failed" if error else "ok", error, _first_lines(noise), host_cells, gpus, failures)


def parse_apps(output: str) -> dict[str, list[dict[str, t.Any]]]:
    """Read --query-compute-apps (CSV with heading): GPU uuid -> its processes."""
    columns, rows, _noise = _rows(output, None, {"pid"})
    by_gpu: dict[str, list[tuple[str | None, str | None, str | None, str | None]]] = {}
    for row in rows:
        cells = dict(zip(columns, row))
        by_gpu.setdefault(cells.get("gpu_uuid", ""), []).append(
            (cells.get("pid"), "C", cells.get("process_name"), cells.get("used_gpu_memory", cells.get("used_memory")))
        )
    return {uuid: processes(entries) for uuid, entries in by_gpu.items()}


MigNames = t.Dict[t.Tuple[Cell, Cell], t.Mapping[str, str]]  # noqa: UP006 - evaluated, and Python 3.8 is looked at too


def parse_list(output: str) -> MigNames:
    """Read `nvidia-smi -L`: (GPU uuid, index of a MIG device) -> its uuid and name, which is padded (case A07)."""
    found: MigNames = {}
    parent = ""
    for line in output.splitlines():
        gpu = re.match(r"GPU \d+: .*\(UUID: (GPU-[\w-]+)\)", line, re.ASCII)
        mig = re.match(r"\s+MIG (\S+)\s+Device\s+(\d{1,3}): \(UUID: (MIG-[\w/-]+)\)", line, re.ASCII)
        if gpu:
            parent = gpu[1]
        elif mig:
            found[parent, int(mig[2])] = {"uuid": mig[3], "name": mig[1]}
    return found


def name_mig_devices(gpus: t.Sequence[dict[str, Cell]], names: MigNames) -> list[dict[str, Cell]]:
    """GPUs of a reading whose MIG devices get their uuid and name from parse_list: the XML has neither (DTD v11 to v13)."""
    named = []
    for gpu in gpus:
        devices = [{**device, **names.get((gpu.get("uuid"), device["index"]), {})} for device in gpu.get("mig_devices", [])]
        named.append({**gpu, "mig_devices": devices} if devices else gpu)
    return named


_VERSION_KEYS = {  # the new keys of driver 610 first
    "driver_version": ("kmd version", "driver version"),
    "cuda_driver_version": ("cuda umd version", "cuda version"),
    "driver_userland_version": ("nvidia-smi version", "nvidia-smi"),
}


def parse_versions(output: str) -> dict[str, Cell]:
    """Versions from `nvidia-smi --version`, from the head of `nvidia-smi -q`, or from the head of the table.

    driver_userland_version is nvidia-smi's own: it comes with the library, whose version NVML tells without its last part.
    """
    pairs: dict[str, str] = {}
    for line in output.splitlines():
        if line.startswith("|") and "NVIDIA-SMI" in line:
            for key, value in re.findall(r"(NVIDIA-SMI|(?:Driver|KMD|CUDA UMD|CUDA) Version:)\s+(.*?)(?=\s{2,}|\s*\|)", line):
                pairs.setdefault(key.rstrip(":").lower(), value)
        else:
            match = re.match(r"(NVIDIA-SMI version|(?:Driver|KMD|CUDA UMD|CUDA) Version)\s*:\s*(.*)", line, re.IGNORECASE)
            if match:
                pairs.setdefault(match[1].lower(), match[2])
    found: dict[str, Cell] = {}
    for field, keys in _VERSION_KEYS.items():
        _put(found, field, _first(version, (pairs.get(key) for key in keys)))
    return found
