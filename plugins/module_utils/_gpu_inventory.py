# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Readings of all sources united to one inventory: best source first, each value with where it comes from."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_generations
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import NOT_SUPPORTED, UNKNOWN, Cell, Failure, Nothing, Reading

DRIVER_SOURCES = ("nvml", "nvidia_smi_xml", "nvidia_smi_csv")

HOST_FIELDS = (
    "driver_version",
    "driver_userland_version",
    "driver_flavour",
    "cuda_driver_version",
    "virtualization",
    "container",
    "secure_boot",
    "iommu",
    "shm_total_mib",
    "shm_free_mib",
    "memory_total_mib",
    "memory_available_mib",
)
HOST_LISTS: dict[str, t.Callable[[], t.Any]] = {"device_nodes": list, "device_majors": dict, "modules_loaded": list, "nvswitches": list}
# In the order of docs/design.md.
GPU_FIELDS = (
    "index",
    "minor_number",
    "uuid",
    "serial",
    "name",
    "architecture",
    "compute_capability",
    "pci_bus_id",
    "pci_device_id",
    "pci_subsystem_id",
    "kernel_driver",
    "health",
    "usable",
    "memory_kind",
    "memory_total_mib",
    "memory_used_mib",
    "memory_free_mib",
    "memory_reserved_mib",
    "ecc_enabled",
    "ecc_enabled_pending",
    "ecc_errors_corrected_volatile",
    "ecc_errors_uncorrected_volatile",
    "ecc_errors_corrected_aggregate",
    "ecc_errors_uncorrected_aggregate",
    "remapped_rows_correctable",
    "remapped_rows_uncorrectable",
    "remapped_rows_pending",
    "remapped_rows_failure",
    "retired_pages_pending",
    "mig_enabled",
    "mig_enabled_pending",
    "mig_devices",
    "mig_memory_total_mib",
    "power_draw_w",
    "power_limit_w",
    "power_limit_default_w",
    "power_limit_min_w",
    "power_limit_max_w",
    "power_limit_settable",
    "temperature_c",
    "temperature_memory_c",
    "clock_sm_mhz",
    "clock_memory_mhz",
    "clock_sm_max_mhz",
    "clock_memory_max_mhz",
    "utilization_gpu_percent",
    "persistence_mode",
    "compute_mode",
    "performance_state",
    "pcie_generation",
    "pcie_generation_max",
    "pcie_width",
    "pcie_width_max",
    "numa_node",
    "processes",
    "recovery_action",
    "addressing_mode",
    "virtualization_mode",
    "driver_model",
    "license_status",
    "fabric_state",
    "vbios_version",
    "gsp_firmware_version",
    "generation",
    "reasons",
    "sources",
)
# These follow from the others.
_DERIVED = frozenset(
    ("health", "usable", "memory_kind", "mig_memory_total_mib", "power_limit_settable", "generation", "reasons", "sources")
)
_GPU_LISTS = ("mig_devices", "processes")
# nvmlDeviceGpuRecoveryAction_t: each of these ends in a reset of the GPU or a reboot.
_RESET_ACTIONS = ("reset", "reboot", "drain_p2p", "drain_and_reset", "bus_reset", "system_reboot")
_FAILURES = ("lost", "needs_reset", "unknown")  # the worst first
# With these no source could say that there is no GPU.
_BLIND = ("driver_library_mismatch", "nvml_unknown", "no_permission", "timed_out", "damaged", "unknown_error", "gpu_lost")
_MEMORY = ("memory_total_mib", "memory_used_mib", "memory_free_mib")
# A GPU whose fabric is worse holds the others back.
_FABRIC_ORDER = ("not_started", "in_progress", "completed")


class _Record:
    """One GPU while readings are united."""

    def __init__(self) -> None:
        self.cells: dict[str, Cell] = {}
        self.sources: dict[str, str] = {}
        self.listed_by: set[str] = set()
        self.failure = ""  # the health that a failure stands for
        self.failure_text = ""

    def take(self, source: str, cells: t.Mapping[str, Cell]) -> None:
        self.listed_by.add(source)
        _take(self.cells, self.sources, source, cells)

    def value(self, field: str) -> t.Any:
        cell = self.cells.get(field)
        return None if isinstance(cell, Nothing) else cell


def _take(into: dict[str, Cell], sources: dict[str, str], source: str, cells: t.Mapping[str, Cell]) -> None:
    """Fill what is not known yet. Of two kinds of nothing the one that says more stays."""
    for field, cell in cells.items():
        have = into.get(field)
        if field in into and not isinstance(have, Nothing):
            continue
        if not isinstance(cell, Nothing):
            into[field] = cell
            sources[field] = source
        elif have is None or (have.reason == UNKNOWN and cell.reason != UNKNOWN):
            into[field] = cell


def _find(records: t.Sequence[_Record], cells: t.Mapping[str, Cell]) -> _Record | None:
    """The record of the same GPU: by PCI address, else by UUID, else by index when one side has no address."""
    for key in ("pci_bus_id", "uuid", "index"):
        wanted = cells.get(key)
        if wanted is None or isinstance(wanted, Nothing):
            continue
        for record in records:
            have, address = record.value(key), record.value("pci_bus_id")
            other = cells.get("pci_bus_id")
            apart = isinstance(other, str) and address is not None and address != other
            if have == wanted and not apart:
                return record
    return None


def _unite(readings: t.Sequence[Reading]) -> list[_Record]:
    records: list[_Record] = []
    for reading in readings:
        for cells in reading.gpus:
            record = _find(records, cells)
            if record is None:
                record = _Record()
                records.append(record)
            record.take(reading.source, cells)
    _pair(
        [record for record in records if record.listed_by & set(DRIVER_SOURCES) and record.value("pci_bus_id") is None],
        records,
    )
    for source, failure in _failures(readings):
        cells = {key: cell for key, cell in (("pci_bus_id", failure.pci_bus_id), ("index", failure.index)) if cell is not None}
        record = _find(records, cells)
        if record is None:
            record = _Record()
            records.append(record)
        record.failure, record.failure_text = failure.health, failure.text
        _take(record.cells, record.sources, source, cells)
    _pair([record for record in records if record.failure and record.value("pci_bus_id") is None], records)
    return records


def _failures(readings: t.Sequence[Reading]) -> list[tuple[str, Failure]]:
    """Each GPU that a source could not reach once, with the worst that was said of it: (the first source, failure).

    NVML names them by index, nvidia-smi by address. When it are as many, they are the same in this order: indices follow addresses.
    """
    united: list[tuple[str, Failure]] = []

    def add(source: str, failure: Failure) -> None:
        for position, (first, known) in enumerate(united):
            same_address = failure.pci_bus_id is not None and failure.pci_bus_id == known.pci_bus_id
            if same_address or (failure.index is not None and failure.index == known.index):
                worst = min(known, failure, key=lambda one: _FAILURES.index(one.health))
                united[position] = (
                    first,
                    dataclasses.replace(
                        worst,
                        index=known.index if failure.index is None else failure.index,
                        pci_bus_id=known.pci_bus_id or failure.pci_bus_id,
                    ),
                )
                return
        united.append((source, failure))

    for reading in readings:
        for failure in reading.failures:
            add(reading.source, failure)
    by_index = sorted((one for one in united if one[1].pci_bus_id is None), key=lambda one: one[1].index or 0)
    by_address = sorted((one for one in united if one[1].index is None), key=lambda one: str(one[1].pci_bus_id))
    if len(by_index) == len(by_address):
        united = [one for one in united if one not in by_index and one not in by_address]
        for (source, first), (_source, second) in zip(by_index, by_address):
            add(source, dataclasses.replace(first, pci_bus_id=second.pci_bus_id))
            add(source, second)
    return united


def _pair(nameless: t.Sequence[_Record], records: list[_Record]) -> None:
    """Give GPUs that were named without an address the GPUs that only PCI shows, in their order, when it are as many."""
    silent = sorted(
        (
            record
            for record in records
            if not record.failure and not record.listed_by & set(DRIVER_SOURCES) and record.value("kernel_driver") == "nvidia"
        ),
        key=lambda record: str(record.value("pci_bus_id")),
    )
    if not nameless or len(nameless) != len(silent):
        return
    for record, on_bus in zip(sorted(nameless, key=lambda one: one.value("index") or 0), silent):
        for field, cell in on_bus.cells.items():
            _take(record.cells, record.sources, on_bus.sources.get(field, "sysfs"), {field: cell})
        records.remove(on_bus)


def _given_to_container(record: _Record, nodes: t.Container[str]) -> bool:
    """Whether a container has the device node of a GPU that only PCI or the driver's files show: the rest is the host's."""
    minor = record.value("minor_number")
    return bool(record.failure) or (minor is not None and f"/dev/nvidia{minor}" in nodes)


def _words(record: _Record) -> str:
    return " ".join(cell.text.lower() for cell in record.cells.values() if isinstance(cell, Nothing))


def health_of(record: _Record) -> str:
    """ok, degraded, needs_reset, lost, no_driver, passed_through or unknown."""
    if record.failure:
        return record.failure
    words = _words(record)
    action = record.value("recovery_action")
    if not record.listed_by & set(DRIVER_SOURCES):
        driver = record.value("kernel_driver")
        if driver and "vfio" in driver:  # vfio-pci, and the variants that NVIDIA's vGPU and Grace use
            return "passed_through"
        return "unknown" if driver == "nvidia" or "kernel_driver" not in record.cells else "no_driver"
    if "gpu is lost" in words:
        return "lost"
    if "requires reset" in words or action in _RESET_ACTIONS:
        return "needs_reset"
    bad = (
        action not in (None, "none")  # an action that is not known yet
        or "unknown error" in words
        or "err!" in words
        or record.value("remapped_rows_failure")
        or record.value("remapped_rows_pending")
        or record.value("retired_pages_pending")
        or (record.value("ecc_errors_uncorrected_volatile") or 0) > 0
    )
    return "degraded" if bad else "ok"


def _memory_kind(record: _Record) -> str | None:
    """unified: the driver says that every kind of framebuffer memory is not supported (GB10, Jetson: cases A01, A03)."""
    if record.value("memory_total_mib") is not None:
        return "framebuffer"
    cells = [record.cells.get(field) for field in _MEMORY]
    unified = all(isinstance(cell, Nothing) and cell.reason == NOT_SUPPORTED for cell in cells)
    return "unified" if unified and not record.failure else None


def _settable(record: _Record) -> bool | None:
    values = [record.value(field) for field in ("power_limit_w", "power_limit_min_w", "power_limit_max_w")]
    if all(value is None for value in values):
        known = [record.cells[field] for field in ("power_limit_w", "power_limit_min_w") if field in record.cells]
        return False if known and all(cell.reason == NOT_SUPPORTED for cell in known) else None
    limit, low, high = values
    return limit is not None and low is not None and high is not None and low < high


def mig_memory_mib(devices: t.Sequence[t.Mapping[str, t.Any]]) -> int | None:
    """Memory of all GPU instances: compute instances of one GPU instance share it (case A07). null when one is not known."""
    sizes: dict[t.Any, t.Any] = {}
    for number, device in enumerate(devices):
        instance = device.get("gpu_instance_id")
        sizes[("?", number) if instance is None else instance] = device.get("memory_total_mib")
    return None if not sizes or None in sizes.values() else sum(sizes.values())


def _record_result(record: _Record) -> dict[str, t.Any]:
    gpu: dict[str, t.Any] = {field: record.value(field) for field in GPU_FIELDS}
    for field in _GPU_LISTS:
        gpu[field] = gpu[field] or []
    # The device id first: 9.0 stands for Hopper alone and for Grace Hopper, which takes the open module only.
    generation = _gpu_generations.by_pci_device_id(gpu["pci_device_id"] or "") or _gpu_generations.by_compute_capability(
        gpu["compute_capability"] or ""
    )
    gpu["generation"] = None if generation is None else _gpu_generations.as_result(generation)
    sources = dict(record.sources)
    for field in ("architecture", "compute_capability"):
        if gpu[field] is None and generation is not None and getattr(generation, field):
            gpu[field] = getattr(generation, field)
            sources[field] = "generation_table"
    health = health_of(record)
    gpu.update(
        health=health,
        usable=health in ("ok", "degraded") and gpu["mig_enabled"] is not True,
        memory_kind=_memory_kind(record),
        power_limit_settable=_settable(record),
        mig_memory_total_mib=mig_memory_mib(gpu["mig_devices"]),
        reasons={
            field: cell.reason
            for field, cell in record.cells.items()
            if isinstance(cell, Nothing) and field in gpu and field not in _DERIVED and gpu[field] is None
        },
        sources={field: sources[field] for field in GPU_FIELDS if field in sources and gpu[field] is not None},
    )
    return gpu


def group_names(gpus: t.Sequence[t.Mapping[str, t.Any]], blind: bool = False) -> list[str]:
    """Names of groups for a host: gpu_<name> of every model, gpu_arch_<architecture>; gpu_none for a host without a GPU of its own.

    blind: whether no source could say that there is none.
    """

    def slug(prefix: str, words: str | None) -> list[str]:
        word = re.sub(r"[^a-z0-9]+", "_", (words or "").lower()).strip("_")
        return [f"{prefix}{word}"] if word else []

    here = [gpu for gpu in gpus if gpu["health"] != "passed_through"]
    names = [name for gpu in here for name in slug("gpu_", re.sub(r"^NVIDIA ", "", gpu["name"] or ""))]
    names += [name for gpu in here for name in slug("gpu_arch_", gpu["architecture"])]
    return list(dict.fromkeys(names)) or ([] if here or blind else ["gpu_none"])


def _fabric(gpus: t.Sequence[t.Mapping[str, t.Any]]) -> str | None:
    states = [gpu["fabric_state"] for gpu in gpus if gpu["fabric_state"]]
    if states:
        return t.cast(str, min(states, key=lambda state: _FABRIC_ORDER.index(state) if state in _FABRIC_ORDER else len(_FABRIC_ORDER)))
    return "not_supported" if gpus and all(gpu["reasons"].get("fabric_state") == NOT_SUPPORTED for gpu in gpus) else None


def lacking(
    inventory: t.Mapping[str, t.Any],
    host_fields: t.Iterable[str] = (*HOST_FIELDS, *HOST_LISTS, "fabric_state"),
    gpu_fields: t.Iterable[str] = GPU_FIELDS,
) -> str:
    """What a result of gpu_info that somebody hands in lacks, in words; empty when nothing."""
    lost = [field for field in host_fields if field not in inventory]
    lost += [field for field, kind in HOST_LISTS.items() if field in inventory and not isinstance(inventory[field], type(kind()))]
    gpus = inventory.get("gpus")
    lost += [] if isinstance(gpus, list) else ["gpus"]
    for number, gpu in enumerate(gpus if isinstance(gpus, list) else []):
        there = gpu if isinstance(gpu, dict) else {}
        lost += [f"gpus[{number}].{field}" for field in gpu_fields if field not in there]
    return ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")


def unite(readings: t.Sequence[Reading]) -> dict[str, t.Any]:
    """Unite readings, best first, to the result without topology, gpu_groups and problems (docs/design.md).

    Never raises: what a source does not say is null, with the reason in C(reasons).
    """
    host: dict[str, Cell] = {}
    sources: dict[str, str] = {}
    for reading in readings:
        _take(host, sources, reading.source, reading.host)
    records = _unite(readings)
    answered = any(reading.source in DRIVER_SOURCES and reading.status == "ok" for reading in readings)
    container = host.get("container") is True
    nodes = {node["path"] for node in host.get("device_nodes") or [] if node["kind"] == "character"}
    if container:
        records = [
            record
            for record in records
            if record.listed_by & set(DRIVER_SOURCES) or record.failure or (not answered and _given_to_container(record, nodes))
        ]
    gpus = [_record_result(record) for record in records]
    gpus.sort(key=lambda gpu: (gpu["index"] is None, gpu["index"] or 0, gpu["pci_bus_id"] or ""))
    result: dict[str, t.Any] = {field: None if isinstance(host.get(field), Nothing) else host.get(field) for field in HOST_FIELDS}
    for field, empty in HOST_LISTS.items():
        result[field] = host.get(field) or empty()
    known = {*HOST_FIELDS, *HOST_LISTS}
    result.update(
        fabric_state=_fabric(gpus),
        gpus=gpus,
        group_names=group_names(gpus, blind=any(reading.error in _BLIND for reading in readings)),
        reasons={field: cell.reason for field, cell in host.items() if field in known and isinstance(cell, Nothing)},
        sources={field: source for field, source in sources.items() if field in known},
        sources_asked=[{"source": reading.source, "status": reading.status, "message": reading.message} for reading in readings],
    )
    return result
