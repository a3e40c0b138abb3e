# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What NVML says about the GPUs, through an object that is handed in: the module pynvml of nvidia-ml-py, or a recording of it.

Every call is guarded on its own, so that one error never loses the rest. Numbers that stand for something (error codes, field
identifiers, modes) are those of nvml.h, which does not change them; they are written out here because an old nvidia-ml-py lacks the
newer names. NVML counts bytes and milliwatts; the reading has the units of the result.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import itertools
import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_cell as cell

# nvmlReturn_t
_NOT_SUPPORTED = 3
_FUNCTION_NOT_FOUND = 13
_GPU_IS_LOST = 15
_RESET_REQUIRED = 16
_UNKNOWN_ERROR = 999
_REASONS = {
    **dict.fromkeys((_NOT_SUPPORTED, _FUNCTION_NOT_FOUND), cell.NOT_SUPPORTED),
    **dict.fromkeys((22, 25, 26), cell.NOT_SUPPORTED),  # no ECC on a vGPU; another version of the structure is needed; deprecated
    **dict.fromkeys((4, 17), cell.NO_PERMISSION),  # 17: the operating system (a device cgroup) has blocked the request
}
_HEALTH = {_GPU_IS_LOST: "lost", _RESET_REQUIRED: "needs_reset"}
_INIT_ERRORS = {
    4: "no_permission",
    6: "no_devices",
    9: "driver_not_loaded",
    12: "library_missing",
    17: "no_permission",
    18: "driver_library_mismatch",
    28: "no_devices",
}

# NVML_FI_DEV_*: asked for in one call.
_ECC_CURRENT, _ECC_PENDING = 1, 2
_ECC_COUNTS = {
    "ecc_errors_corrected_volatile": 3,
    "ecc_errors_uncorrected_volatile": 4,
    "ecc_errors_corrected_aggregate": 5,
    "ecc_errors_uncorrected_aggregate": 6,
}
_RETIRED_PENDING = 31
_MEMORY_TEMPERATURE = 82
_NVLINK_COUNT = 91
_REMAPPED_CORRECTABLE, _REMAPPED_UNCORRECTABLE, _REMAPPED_PENDING, _REMAPPED_FAILURE = 142, 143, 144, 145
_POWER_INSTANT = 186
_RECOVERY_ACTION = 230
FIELDS = (
    _ECC_CURRENT,
    _ECC_PENDING,
    *_ECC_COUNTS.values(),
    _RETIRED_PENDING,
    _MEMORY_TEMPERATURE,
    _NVLINK_COUNT,
    _REMAPPED_CORRECTABLE,
    _REMAPPED_UNCORRECTABLE,
    _REMAPPED_PENDING,
    _REMAPPED_FAILURE,
    _POWER_INSTANT,
    _RECOVERY_ACTION,
)
# nvmlValueType_t -> member of nvmlValue_t. 0 is a floating-point number, which none of these fields is.
_VALUE_MEMBERS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}

# Words as nvidia-smi prints them (its manual page and its output, drivers 510 to 610).
_ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
_COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
_VIRTUALIZATION_VGPU = 2
_VIRTUALIZATION_MODES = {0: "None", 1: "Pass-Through", _VIRTUALIZATION_VGPU: "VGPU", 3: "Host VGPU", 4: "Host VSGA"}
_ADDRESSING_MODES = {0: cell.Nothing(cell.NOT_SUPPORTED, "None"), 1: "HMM", 2: "ATS"}
_DRIVER_MODELS = {0: "WDDM", 1: "TCC", 2: "MCDM"}
_PERFORMANCE_STATES = {number: f"P{number}" for number in range(16)}
# Words of the result.
_FABRIC_STATES = {0: cell.Nothing(cell.NOT_SUPPORTED, "N/A"), 1: "not_started", 2: "in_progress", 3: "completed"}
_RECOVERY_ACTIONS = {
    0: "none",
    1: "reset",
    2: "reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}
# nvmlGpuTopologyLevel_t -> the word of nvidia-smi topo -m. 0 is two GPUs of one board: PIX is "at most a single PCIe bridge".
_TOPOLOGY_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_NVLINK_REMOTE_SWITCH = 2  # nvmlIntNvLinkDeviceType_t

_CLOCK_SM, _CLOCK_MEMORY = 1, 2  # nvmlClockType_t
_SENSOR_GPU = 0  # nvmlTemperatureSensors_t
_MEMORY_V2 = 0x02000028  # NVML_STRUCT_VERSION(Memory, 2): 40 bytes


class _Library:
    """NVML, asked for one thing at a time: a value, or Nothing. Keeps in mind that a GPU is lost or needs a reset."""

    def __init__(self, nvml: t.Any) -> None:
        self.nvml = nvml
        self.health = ""
        self.text = ""
        self.code = 0  # of the last error

    def ask(self, function: str, *arguments: t.Any) -> cell.Cell:
        """What the function returns (text decoded). A lost GPU is not asked again: each answer can take seconds."""
        if self.health == "lost":
            return cell.Nothing(cell.UNKNOWN, self.text)
        try:
            call = getattr(self.nvml, function)
        except AttributeError:
            return cell.Nothing(cell.NOT_SUPPORTED, "Function Not Found")  # nvidia-ml-py is older than the function
        try:
            value = call(*arguments)
        except TypeError:
            return cell.Nothing(cell.NOT_SUPPORTED, "Function Not Found")  # or older than its last argument
        except Exception as error:  # the object is somebody else's: NVMLError, OSError of the loader, UnicodeDecodeError in a name
            return self.nothing(getattr(error, "value", -1), str(error))
        return _str(value) if isinstance(value, bytes) else value

    def first(self, *calls: tuple[t.Any, ...]) -> cell.Cell:
        """The answer to the first of these questions that is supported; they are from the newest to the oldest."""
        answer: cell.Cell = cell.Nothing(cell.NOT_SUPPORTED)
        for function, *arguments in calls:
            answer = self.ask(function, *arguments)
            if not isinstance(answer, cell.Nothing) or answer.reason != cell.NOT_SUPPORTED:
                break
        return answer

    def fields(self, handle: t.Any, identifiers: t.Sequence[int]) -> dict[int, cell.Cell]:
        """Field values by identifier, in one call."""
        values = self.ask("nvmlDeviceGetFieldValues", handle, list(identifiers))
        if isinstance(values, cell.Nothing):
            return dict.fromkeys(identifiers, values)
        return {identifier: self._field(value) for identifier, value in zip(identifiers, values)}

    def _field(self, value: t.Any) -> cell.Cell:
        code = int(value.nvmlReturn)
        if code == 2:  # invalid argument: the driver is older than the field
            return cell.Nothing(cell.NOT_SUPPORTED, "Invalid Argument")
        if code:
            return self.nothing(code, str(self.nvml.NVMLError(code)))
        if value.valueType == 0:  # passed over: driver 580 leaves some fields as they were handed in, all zero, and calls that a success
            return cell.Nothing(cell.NOT_SUPPORTED, "no answer")
        member = _VALUE_MEMBERS.get(value.valueType)
        return getattr(value.value, member) if member else cell.Nothing(cell.UNKNOWN, f"value type {value.valueType}")

    def nothing(self, code: int, text: str) -> cell.Nothing:
        """The kind of nothing that an error stands for (-1: not one of NVML's)."""
        self.code = code
        if code in _HEALTH and self.health != "lost":
            self.health, self.text = _HEALTH[code], text
        return cell.Nothing(_REASONS.get(code, cell.UNKNOWN), text)


def _then(value: cell.Cell, convert: t.Callable[[t.Any], cell.Cell]) -> cell.Cell:
    return value if isinstance(value, cell.Nothing) else convert(value)


def _word(words: dict[int, t.Any], what: str) -> t.Callable[[int], cell.Cell]:
    """A number to its word; one that is not known is no value."""
    return lambda number: words.get(number, cell.Nothing(cell.UNKNOWN, f"{what} {number}"))


def _str(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _mib(size: int) -> int:
    """Bytes to MiB, rounded up as nvidia-smi of driver 580 does it: 644939776 reserved bytes are 615.06 MiB, and it prints 616."""
    return -(-size >> 20)


def _watts(milliwatts: int) -> float:
    return round(milliwatts / 1000, 2)


def _pair(values: cell.Cell, convert: t.Callable[[t.Any], cell.Cell]) -> tuple[cell.Cell, cell.Cell]:
    """Two values that come from one call, or why there are none."""
    if isinstance(values, cell.Nothing):
        return values, values
    return convert(values[0]), convert(values[1])


def _memory(library: _Library, handle: t.Any) -> dict[str, cell.Cell]:
    """memory_*_mib of a GPU or a MIG device. Version 1 of the call (drivers before 510) counts as used what is reserved."""
    answer = library.first(("nvmlDeviceGetMemoryInfo", handle, _MEMORY_V2), ("nvmlDeviceGetMemoryInfo", handle))
    if not isinstance(answer, cell.Nothing) and not answer.total:
        answer = cell.Nothing(cell.NOT_SUPPORTED, "0 bytes")
    if isinstance(answer, cell.Nothing):
        return {f"memory_{part}_mib": answer for part in ("total", "used", "free", "reserved")}
    return {
        "memory_total_mib": _mib(answer.total),
        "memory_used_mib": _mib(answer.used),
        "memory_free_mib": _mib(answer.free),
        "memory_reserved_mib": _mib(answer.reserved) if hasattr(answer, "reserved") else cell.Nothing(cell.NOT_SUPPORTED),
    }


def _memory_kind(total: cell.Cell, addressing: cell.Cell) -> cell.Cell:
    """unified: no memory of its own, and it uses the processor's page tables (GB10). With less than that NVML does not say which it is."""
    if not isinstance(total, cell.Nothing):
        return "framebuffer"
    return "unified" if total.reason == cell.NOT_SUPPORTED and addressing == "ATS" else cell.Nothing(cell.UNKNOWN, total.text)


def _mig_devices(library: _Library, handle: t.Any) -> list[dict[str, t.Any]]:
    """The MIG devices of a GPU in MIG mode. Their numbers may have holes."""
    found = []
    count = library.ask("nvmlDeviceGetMaxMigDeviceCount", handle)
    for index in range(0 if isinstance(count, cell.Nothing) else count):
        device = library.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if isinstance(device, cell.Nothing):
            continue
        memory = _memory(library, device)
        values = {
            "uuid": _then(library.ask("nvmlDeviceGetUUID", device), cell.text),
            # "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb"
            "name": _then(library.ask("nvmlDeviceGetName", device), lambda name: cell.text(name.rpartition("MIG ")[2])),
            "gpu_instance_id": library.ask("nvmlDeviceGetGpuInstanceId", device),
            "compute_instance_id": library.ask("nvmlDeviceGetComputeInstanceId", device),
            **{name: memory[name] for name in ("memory_total_mib", "memory_used_mib", "memory_free_mib")},
        }
        found.append({"index": index, **{name: None if isinstance(value, cell.Nothing) else value for name, value in values.items()}})
    return found


def _processes(library: _Library, handle: t.Any) -> cell.Cell:
    """One entry per pid: what computes and draws is in two lists, with the same memory. Clients of MPS have a list of their own.

    Without the list of compute processes an empty answer would be a guess.
    """
    found: dict[int, dict[str, t.Any]] = {}
    nothing: cell.Nothing | None = None
    for kind, infix in (("C", "Compute"), ("C", "MPSCompute"), ("G", "Graphics")):
        function = f"nvmlDeviceGet{infix}RunningProcesses"
        entries = library.first((f"{function}_v3", handle), (f"{function}_v2", handle), (function, handle))
        if isinstance(entries, cell.Nothing):
            nothing = entries if infix == "Compute" else nothing
            continue
        for entry in entries:
            process = found.setdefault(entry.pid, {"pid": entry.pid, "name": None, "type": kind, "memory_used_mib": None})
            if kind != process["type"]:
                process["type"] = "C+G"
            if entry.usedGpuMemory is not None:
                process["memory_used_mib"] = max(process["memory_used_mib"] or 0, _mib(entry.usedGpuMemory))
    if nothing and not found:
        return nothing
    for process in found.values():
        name = _then(library.ask("nvmlSystemGetProcessName", process["pid"]), cell.text)
        process["name"] = None if isinstance(name, cell.Nothing) else name
    return [found[pid] for pid in sorted(found)]


def _fabric_state(library: _Library, handle: t.Any) -> cell.Cell:
    info = library.ask("c_nvmlGpuFabricInfoV_t")
    answer = info if isinstance(info, cell.Nothing) else library.ask("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info))
    return answer if isinstance(answer, cell.Nothing) else _word(_FABRIC_STATES, "fabric state")(info.state)


def _license_status(library: _Library, handle: t.Any) -> cell.Cell:
    """Of a vGPU guest: Licensed, or Unlicensed. nvidia-smi says more: until when, and how an unlicensed one is restricted."""
    answer = library.ask("nvmlDeviceGetGridLicensableFeatures", handle)
    if isinstance(answer, cell.Nothing):
        return answer
    if not answer.isGridLicenseSupported:
        return cell.Nothing(cell.NOT_SUPPORTED)
    features = answer.gridLicensableFeatures[: answer.licensableFeaturesCount]
    return "Licensed" if any(feature.featureState for feature in features) else "Unlicensed"


def _gpu(library: _Library, handle: t.Any, index: int, fields: dict[int, cell.Cell]) -> dict[str, cell.Cell]:
    """Every field of one GPU that NVML can answer, in the names and units of the result."""

    def ask(function: str, *arguments: t.Any) -> cell.Cell:
        return library.ask(function, handle, *arguments)

    pci = ask("nvmlDeviceGetPciInfo")
    memory = _memory(library, handle)
    addressing = _then(ask("nvmlDeviceGetAddressingMode"), _word(_ADDRESSING_MODES, "addressing mode"))
    mig_enabled, mig_pending = _pair(ask("nvmlDeviceGetMigMode"), bool)
    power_min, power_max = _pair(ask("nvmlDeviceGetPowerManagementLimitConstraints"), _watts)
    virtualization = ask("nvmlDeviceGetVirtualizationMode")
    power_draw = ask("nvmlDeviceGetPowerUsage")
    if isinstance(power_draw, cell.Nothing) and power_draw.reason == cell.NOT_SUPPORTED:
        power_draw = fields[_POWER_INSTANT]
    gpu = {
        "index": index,
        "minor_number": ask("nvmlDeviceGetMinorNumber"),
        "uuid": _then(ask("nvmlDeviceGetUUID"), cell.text),
        "serial": _then(ask("nvmlDeviceGetSerial"), cell.text),
        "name": _then(ask("nvmlDeviceGetName"), cell.text),
        "architecture": _then(ask("nvmlDeviceGetArchitecture"), _word(_ARCHITECTURES, "architecture")),
        "compute_capability": _then(ask("nvmlDeviceGetCudaComputeCapability"), lambda pair: f"{pair[0]}.{pair[1]}"),
        "pci_bus_id": _then(pci, lambda info: cell.pci_bus_id(_str(info.busId))),
        "pci_device_id": _then(pci, lambda info: cell.pci_id(f"{info.pciDeviceId:08X}")),
        "pci_subsystem_id": _then(pci, lambda info: cell.pci_id(f"{info.pciSubSystemId:08X}")),
        "memory_kind": _memory_kind(memory["memory_total_mib"], addressing),
        **memory,
        "ecc_enabled": _then(fields[_ECC_CURRENT], bool),
        "ecc_enabled_pending": _then(fields[_ECC_PENDING], bool),
        **{name: fields[identifier] for name, identifier in _ECC_COUNTS.items()},
        "remapped_rows_correctable": fields[_REMAPPED_CORRECTABLE],
        "remapped_rows_uncorrectable": fields[_REMAPPED_UNCORRECTABLE],
        "remapped_rows_pending": _then(fields[_REMAPPED_PENDING], bool),
        "remapped_rows_failure": _then(fields[_REMAPPED_FAILURE], bool),
        "retired_pages_pending": _then(fields[_RETIRED_PENDING], bool),
        "mig_enabled": mig_enabled,
        "mig_enabled_pending": mig_pending,
        "mig_devices": _mig_devices(library, handle) if mig_enabled is True else [],
        "power_draw_w": _then(power_draw, _watts),
        "power_limit_w": _then(
            library.first(("nvmlDeviceGetEnforcedPowerLimit", handle), ("nvmlDeviceGetPowerManagementLimit", handle)), _watts
        ),
        "power_limit_default_w": _then(ask("nvmlDeviceGetPowerManagementDefaultLimit"), _watts),
        "power_limit_min_w": power_min,
        "power_limit_max_w": power_max,
        "temperature_c": library.first(
            ("nvmlDeviceGetTemperatureV", handle, _SENSOR_GPU),
            ("nvmlDeviceGetTemperature", handle, _SENSOR_GPU),
        ),
        "temperature_memory_c": fields[_MEMORY_TEMPERATURE],
        "clock_sm_mhz": ask("nvmlDeviceGetClockInfo", _CLOCK_SM),
        "clock_memory_mhz": ask("nvmlDeviceGetClockInfo", _CLOCK_MEMORY),
        "clock_sm_max_mhz": ask("nvmlDeviceGetMaxClockInfo", _CLOCK_SM),
        "clock_memory_max_mhz": ask("nvmlDeviceGetMaxClockInfo", _CLOCK_MEMORY),
        "utilization_gpu_percent": _then(ask("nvmlDeviceGetUtilizationRates"), lambda rates: rates.gpu),
        "persistence_mode": _then(ask("nvmlDeviceGetPersistenceMode"), bool),
        "compute_mode": _then(ask("nvmlDeviceGetComputeMode"), _word(_COMPUTE_MODES, "compute mode")),
        "performance_state": _then(ask("nvmlDeviceGetPerformanceState"), _word(_PERFORMANCE_STATES, "performance state")),
        # Of the two maxima this is "possible with this GPU and system configuration", as nvidia-smi puts it for pcie.link.gen.max.
        "pcie_generation": ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_generation_max": ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        "pcie_width": ask("nvmlDeviceGetCurrPcieLinkWidth"),
        "pcie_width_max": ask("nvmlDeviceGetMaxPcieLinkWidth"),
        "processes": _processes(library, handle),
        "recovery_action": _then(fields[_RECOVERY_ACTION], _word(_RECOVERY_ACTIONS, "recovery action")),
        "addressing_mode": addressing,
        "virtualization_mode": _then(virtualization, _word(_VIRTUALIZATION_MODES, "virtualization mode")),
        "driver_model": _then(ask("nvmlDeviceGetDriverModel"), lambda models: _word(_DRIVER_MODELS, "driver model")(models[0])),
        "fabric_state": _fabric_state(library, handle),
        "vbios_version": _then(ask("nvmlDeviceGetVbiosVersion"), cell.text),
        "gsp_firmware_version": _then(ask("nvmlDeviceGetGspFirmwareVersion"), cell.text),
    }
    if virtualization == _VIRTUALIZATION_VGPU:
        gpu["license_status"] = _license_status(library, handle)
    return gpu


def _nvlinks(library: _Library, handle: t.Any, count: cell.Cell) -> collections.Counter[str]:
    """How many active links go where: to the PCI bus id of another GPU, or to "switch"."""
    links: collections.Counter[str] = collections.Counter()
    for link in range(0 if isinstance(count, cell.Nothing) else count):
        if library.ask("nvmlDeviceGetNvLinkState", handle, link) != 1:
            continue
        if library.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == _NVLINK_REMOTE_SWITCH:
            links["switch"] += 1
            continue
        remote = library.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        if not isinstance(remote, cell.Nothing):
            links[str(cell.pci_bus_id(_str(remote.busId)))] += 1
    return links


class _Seen(t.NamedTuple):
    """A GPU that answers, with what only the topology needs."""

    library: _Library
    handle: t.Any
    gpu: dict[str, cell.Cell]
    links: collections.Counter[str]


def _topology_pairs(seen: t.Sequence[_Seen]) -> dict[tuple[int, int], str]:
    """{(index, higher index): word of nvidia-smi topo -m}. A pair about which NVML says nothing is left out."""
    pairs = {}
    for one, other in itertools.combinations(seen, 2):
        links = one.links[str(other.gpu["pci_bus_id"])] + min(one.links["switch"], other.links["switch"])
        word: cell.Cell = f"NV{links}"
        if not links:
            level = one.library.ask("nvmlDeviceGetTopologyCommonAncestor", one.handle, other.handle)
            word = _then(level, _word(_TOPOLOGY_LEVELS, "topology level"))
        if not isinstance(word, cell.Nothing):
            pairs[one.gpu["index"], other.gpu["index"]] = word
    return pairs


# nvmlGpuP2PStatus_t -> words of nvidia-smi topo -p2p. Another enumeration for each capability; 0 is reading.
_P2P_WORDS = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
_P2P_READ = 0


def _peer_access(seen: t.Sequence[_Seen]) -> dict[tuple[int, int], str]:
    """{(index, other index): whether the one can read the other's memory over the bus}, in both directions."""
    pairs = {}
    for one, other in itertools.permutations(seen, 2):
        word = _then(one.library.ask("nvmlDeviceGetP2PStatus", one.handle, other.handle, _P2P_READ), _word(_P2P_WORDS, "P2P status"))
        if not isinstance(word, cell.Nothing):
            pairs[one.gpu["index"], other.gpu["index"]] = word
    return pairs


def _library_version(text: str) -> cell.Cell:
    """NVML's own version without the CUDA version in front: 13.580.159.04 belongs to driver 580.159.04."""
    match = re.fullmatch(r"(?:\d{1,2}\.)?(\d{3}\..*)", text.strip(), re.ASCII)
    return cell.version(match[1]) if match else cell.Nothing(cell.UNKNOWN, text)


def _read(nvml: t.Any) -> cell.Reading:
    system = _Library(nvml)
    cuda = system.first(("nvmlSystemGetCudaDriverVersion_v2",), ("nvmlSystemGetCudaDriverVersion",))
    host = {
        "driver_version": _then(system.ask("nvmlSystemGetDriverVersion"), cell.version),
        "driver_userland_version": _then(system.ask("nvmlSystemGetNVMLVersion"), _library_version),
        "cuda_driver_version": _then(cuda, lambda number: f"{number // 1000}.{number % 1000 // 10}"),
    }
    count = system.ask("nvmlDeviceGetCount")
    if isinstance(count, cell.Nothing):
        error = "no_permission" if count.reason == cell.NO_PERMISSION else "unknown_error"
        return cell.Reading("nvml", "failed", error, count.text, host)
    if not count:
        return cell.Reading("nvml", "failed", "no_devices", "No devices were found", host)
    seen, failures = [], []
    for index in range(count):
        library = _Library(nvml)
        handle = library.ask("nvmlDeviceGetHandleByIndex", index)
        if isinstance(handle, cell.Nothing):
            # An unknown error for a handle is what a GPU that fell off the bus gives, in nvidia-smi's words too (case A17).
            lost = "lost" if library.code == _UNKNOWN_ERROR else "unknown"
            failures.append(cell.Failure(index, None, library.health or lost, handle.text))
            continue
        fields = library.fields(handle, FIELDS)
        gpu = _gpu(library, handle, index, fields)
        links = _nvlinks(library, handle, fields[_NVLINK_COUNT]) if count > 1 else collections.Counter()
        if library.health:
            bus_id = None if isinstance(gpu["pci_bus_id"], cell.Nothing) else gpu["pci_bus_id"]
            failures.append(cell.Failure(index, bus_id, library.health, library.text))
        seen.append(_Seen(library, handle, gpu, links))
    host["topology_pairs"] = _topology_pairs(seen)
    host["peer_access_pairs"] = _peer_access(seen)
    return cell.Reading("nvml", host=host, gpus=[each.gpu for each in seen], failures=failures)


def read(nvml: t.Any) -> cell.Reading:
    """What NVML says, as a reading (source "nvml").

    nvml: the module pynvml, or a recording. It is initialised here and shut down again, whatever happens between. Nothing is raised: when
    NVML cannot be used the status is failed, with a code (driver_not_loaded, driver_library_mismatch, library_missing, no_permission,
    no_devices, unknown_error) and NVML's own text. A GPU that cannot be reached is in the failures; when it could be reached at first,
    what it said is in the GPUs too.

    host has the versions, topology_pairs: {(index, higher index): "NV4", "PIX", "SYS", ...}, and peer_access_pairs:
    {(index, other index): "OK", "GNS", ...}.
    """
    try:
        nvml.nvmlInit()
    except Exception as error:  # as in _Library.ask
        code = getattr(error, "value", -1)
        return cell.Reading("nvml", "failed", _INIT_ERRORS.get(code, "unknown_error"), str(error) or type(error).__name__)
    try:
        return _read(nvml)
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()
