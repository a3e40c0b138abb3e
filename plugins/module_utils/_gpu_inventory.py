# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Readings of all sources united to one inventory: best source first, each value with where it comes from."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_generations
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import NOT_SUPPORTED, UNKNOWN, Cell, Nothing, Reading

DRIVER_SOURCES = ("nvml", "nvidia_smi_xml", "nvidia_smi_csv", "nvidia_smi_text")

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
# nvmlDeviceGpuRecoveryAction_t: each ends in a reset of the GPU or a reboot.
_RESET_ACTIONS = ("reset", "reboot", "drain_p2p", "drain_and_reset")
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
    for reading in readings:
        for failure in reading.failures:
            cells = {"pci_bus_id": failure.pci_bus_id, "index": failure.index}
            record = _find(records, {key: cell for key, cell in cells.items() if cell is not None})
            if record is None:
                # A GPU that is named by its index alone is the one that the driver does not list, when there is only one.
                rest = [
                    one
                    for one in records
                    if not one.failure and not one.listed_by & set(DRIVER_SOURCES) and one.value("kernel_driver") == "nvidia"
                ]
                record = rest[0] if failure.pci_bus_id is None and len(rest) == 1 else _Record()
                if record not in records:
                    records.append(record)
            record.failure = record.failure or failure.health
            record.failure_text = record.failure_text or failure.text
            _take(record.cells, record.sources, reading.source, {key: cell for key, cell in cells.items() if cell is not None})
    return records


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


def group_names(gpus: t.Sequence[t.Mapping[str, t.Any]]) -> list[str]:
    """Names of groups for a host: gpu_<name> of every model, gpu_arch_<architecture>; gpu_none for a host without GPU."""

    def slug(words: str) -> str:
        return re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")

    here = [gpu for gpu in gpus if gpu["health"] != "passed_through"]
    names = [f"gpu_{slug(re.sub(r'^NVIDIA ', '', gpu['name']))}" for gpu in here if gpu["name"]]
    names += [f"gpu_arch_{slug(gpu['architecture'])}" for gpu in here if gpu["architecture"]]
    return list(dict.fromkeys(names)) or ([] if here else ["gpu_none"])


def _fabric(gpus: t.Sequence[t.Mapping[str, t.Any]]) -> str | None:
    states = [gpu["fabric_state"] for gpu in gpus if gpu["fabric_state"]]
    if states:
        return t.cast(str, min(states, key=lambda state: _FABRIC_ORDER.index(state) if state in _FABRIC_ORDER else len(_FABRIC_ORDER)))
    return "not_supported" if gpus and all(gpu["reasons"].get("fabric_state") == NOT_SUPPORTED for gpu in gpus) else None


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
        group_names=group_names(gpus),
        reasons={field: cell.reason for field, cell in host.items() if field in known and isinstance(cell, Nothing)},
        sources={field: source for field, source in sources.items() if field in known},
        sources_asked=[{"source": reading.source, "status": reading.status, "message": reading.message} for reading in readings],
    )
    return result
