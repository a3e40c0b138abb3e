# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What is wrong with the GPUs of a host, and what to do: from the united inventory and what the kernel says."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_generations, _gpu_inventory, _gpu_system
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import Reading

_SEVERITIES = ("error", "warning", "info")
# Memory that a desktop or another service holds and that decides whether a model fits.
FOREIGN_MEMORY_MIB = 500
# What Windows keeps of a GPU under WSL2 without showing it as used (case A22).
WSL_HIDDEN_MIB = 1341
# What the driver asks for -> what to do (cases C27, C28; nvidia-smi's manual, GPU Recovery Action).
_RECOVERY_ADVICE = {
    "reset": "Stop what uses it and reset it (nvidia-smi --gpu-reset), else reboot.",
    "reboot": "Reboot the machine, once: if it asks for the same again, power it off for half a minute.",
    "drain_p2p": "Stop what uses it together with other GPUs; alone it still works.",
    "drain_and_reset": "Give it no new work, wait until what uses it has ended, and reset it (nvidia-smi --gpu-reset), else reboot.",
}


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What is only looked for when something is wrong, or costs next to nothing.

    kernel_findings: of the kernel log. kernel_module: NVIDIA's module for the running kernel, on disk. disk_version: version of the
    module on disk, None when it is not known. reboot_required: the system's own mark.
    """

    kernel_findings: t.Sequence[_gpu_system.Finding] = ()
    kernel_release: str = ""
    kernel_module: _gpu_system.KernelModule | None = None
    disk_version: str | None = None
    reboot_required: bool = False


def _problem(code: str, severity: str, found: str, action: str, gpu: str | None = None) -> dict[str, t.Any]:
    return {"code": code, "severity": severity, "gpu": gpu, "found": found, "action": action}


def _label(gpu: t.Mapping[str, t.Any]) -> str:
    """GPU 1 (00000000:34:00.0, NVIDIA RTX A6000), with what is known."""
    number = "GPU" if gpu["index"] is None else f"GPU {gpu['index']}"
    details = ", ".join(part for part in (gpu["pci_bus_id"], gpu["name"]) if part)
    return f"{number} ({details})" if details else number


def identity(gpu: t.Mapping[str, t.Any]) -> str:
    """What a problem names a GPU by: its PCI address; where no source knows that, its UUID or its index."""
    return str(gpu["pci_bus_id"] or gpu["uuid"] or f"index {gpu['index']}")


def _first_finding(evidence: Evidence, *codes: str) -> _gpu_system.Finding | None:
    return next((finding for finding in evidence.kernel_findings if finding.code in codes), None)


def _errors(readings: t.Sequence[Reading]) -> dict[str, Reading]:
    """Code of what failed -> the first reading that says so."""
    found: dict[str, Reading] = {}
    for reading in readings:
        if reading.error:
            found.setdefault(reading.error, reading)
    return found


def _not_loaded_causes(result: t.Mapping[str, t.Any], evidence: Evidence) -> list[dict[str, t.Any]]:
    """Why no NVIDIA module drives the GPUs that are on the bus, the surest cause first. Only for a kernel of our own."""
    causes = []
    undriven = [gpu for gpu in result["gpus"] if gpu["health"] == "no_driver"]
    names = ", ".join(_label(gpu) for gpu in undriven)
    module = evidence.kernel_module
    refused = _first_finding(evidence, "key_rejected")
    if refused or (result["secure_boot"] == "enabled" and module is not None and module.files and "nvidia" not in result["modules_loaded"]):
        causes.append(
            _problem(
                "secure_boot_refused",
                "error",
                f"Secure Boot is on and the kernel refused the module ({refused.text})"
                if refused
                else "Secure Boot is on, a module is installed and none is loaded",
                "Use modules that the distribution has signed, or enrol the key that signs them (mokutil --import) at the console.",
            )
        )
    holder = {gpu["kernel_driver"] for gpu in undriven} - {None}
    for driver in sorted(holder):
        code = "nouveau_bound" if driver == "nouveau" else "other_driver_bound"
        action = (
            "Blacklist nouveau, rebuild the initramfs and reboot; then NVIDIA's module can take the GPU."
            if driver == "nouveau"
            else f"Unbind {driver} from the GPU, or leave it out of gpus."
        )
        held = ", ".join(_label(gpu) for gpu in undriven if gpu["kernel_driver"] == driver)
        causes.append(_problem(code, "error", f"{driver} drives {held}", action))
    if not holder and _first_finding(evidence, "nouveau_owns_device"):
        causes.append(
            _problem(
                "nouveau_bound", "error", "nouveau took the GPU before NVIDIA's module", "Blacklist nouveau, rebuild the initramfs, reboot."
            )
        )
    if module is not None and module.files == []:
        failed = _first_finding(evidence, "dkms_headers_missing", "dkms_build_failed")
        built = module.other_kernels or module.dkms or failed
        told = [f"built for {', '.join(module.other_kernels)} only"] if module.other_kernels else []
        told += [failed.text] if failed else []
        causes.append(
            _problem(
                "dkms_build_missing" if built else "driver_not_installed",
                "error",
                "; ".join([f"no NVIDIA module for the running kernel {evidence.kernel_release}", *told]),
                f"Install the headers of kernel {evidence.kernel_release} and run dkms autoinstall, or boot the kernel it was built for."
                if built
                else "Install NVIDIA's driver.",
            )
        )
    if not causes and undriven:
        causes.append(
            _problem(
                "driver_not_loaded", "error", f"no driver is bound to {names}", "Load it (modprobe nvidia) and look at the kernel log."
            )
        )
    return causes


def _flavour_problems(result: t.Mapping[str, t.Any], evidence: Evidence) -> list[dict[str, t.Any]]:
    """The module's flavour or branch does not fit a GPU."""
    problems = []
    flavour, version = result["driver_flavour"], result["driver_version"]
    for gpu in result["gpus"]:
        generation = gpu["generation"]
        if gpu["health"] == "passed_through" or generation is None or gpu["usable"]:
            continue
        flavours, last = generation["kernel_module_flavours"], generation["driver_branch_last"]
        if flavour and flavour not in flavours:
            problems.append(
                _problem(
                    "wrong_module_flavour",
                    "error",
                    f"{_label(gpu)} ({generation['architecture']}) needs the {' or '.join(flavours)} module, the {flavour} one is loaded",
                    f"Install the {flavours[0]} flavour of the driver.",
                    gpu["pci_bus_id"],
                )
            )
        branch = int(version.partition(".")[0]) if version else 0
        if last and branch > last:
            problems.append(
                _problem(
                    "driver_branch_too_new",
                    "error",
                    f"{_label(gpu)} is {generation['architecture']}, whose last branch is {last}; {version} is loaded and ignores it",
                    f"Install branch {last}, or take the GPU out.",
                    gpu["pci_bus_id"],
                )
            )
    known = [
        generation
        for generation in (
            _gpu_generations.by_pci_device_id(gpu["pci_device_id"] or "") for gpu in result["gpus"] if gpu["health"] != "passed_through"
        )
        if generation is not None
    ]
    if known and not _gpu_generations.common_flavours(known):
        kinds = ", ".join(dict.fromkeys(generation.architecture for generation in known))
        problems.append(
            _problem(
                "no_common_flavour",
                "error",
                f"no flavour of the driver serves all GPUs of this host ({kinds})",
                "Take the GPUs of one generation out, or give them to a guest.",
            )
        )
    for finding in evidence.kernel_findings:
        if finding.code == "needs_open_module" and not any(one["code"] == "wrong_module_flavour" for one in problems):
            problems.append(
                _problem("wrong_module_flavour", "error", finding.text, "Install the open flavour of the driver.", finding.pci_bus_id)
            )
        if finding.code == "branch_ignores_gpu" and not any(one["code"] == "driver_branch_too_new" for one in problems):
            problems.append(
                _problem("driver_branch_too_new", "error", finding.text, "Install the branch that it names.", finding.pci_bus_id)
            )
    return problems


def _silent_gpu_cure(result: t.Mapping[str, t.Any], finding: _gpu_system.Finding | None) -> str:
    """What to do where the loaded driver serves none of the GPUs. The same status of RmInitAdapter has two causes (case C03): the
    firmware's settings, unless the module is the proprietary one and it is not known whether the GPU takes that."""
    code = finding.code if finding else ""
    status = str(finding.details.get("status") or "") if finding else ""
    unknown = any(gpu["generation"] is None for gpu in result["gpus"] if gpu["health"] != "passed_through")
    if code == "rm_init_failed" and status.startswith("0x22:0x56:") and result["driver_flavour"] == "proprietary" and unknown:
        return "Install the open flavour of the driver."
    if code == "rm_init_failed":
        return (
            "In the machine's firmware setup switch on Above 4G Decoding and Resizable BAR, and power it off and on; where they are on, "
            "look at the GPU's seat and power."
        )
    if code == "gsp_firmware_failed":
        return "Install the firmware files of exactly the driver's version, and power the machine off and on."
    return "Look at the kernel log: a wrong flavour, the firmware (Above 4G Decoding, Resizable BAR), or a GPU without power."


def _library_problems(result: t.Mapping[str, t.Any], readings: t.Sequence[Reading]) -> list[dict[str, t.Any]]:
    """The userland against the loaded module."""
    errors = _errors(readings)
    loaded, library = result["driver_version"], result["driver_userland_version"]
    problems = []
    # NVML tells its version without the last part.
    differ = bool(loaded and library) and not (loaded == library or loaded.startswith(f"{library}."))
    if "driver_library_mismatch" in errors or differ:
        action = (
            f"Install the userland {loaded or 'of the host'} in the container: it must be exactly the version of the host's module."
            if result["container"]
            else "Reboot, or stop what uses the GPUs and load the modules anew; then hold the packages so that both change together."
        )
        problems.append(
            _problem(
                "driver_library_mismatch",
                "error",
                f"the loaded module is {loaded or 'unknown'}, the library is {library or 'another'}",
                action,
            )
        )
    if "library_missing" in errors:
        problems.append(
            _problem(
                "library_missing",
                "error",
                errors["library_missing"].message or "libnvidia-ml.so.1 is missing",
                "Install the driver's userland.",
            )
        )
    asked = [reading for reading in readings if reading.source in _gpu_inventory.DRIVER_SOURCES and reading.status != "skipped"]
    if loaded and asked and all(reading.status == "missing" for reading in asked):
        problems.append(
            _problem(
                "userland_missing",
                "error",
                f"the module {loaded} is loaded, and neither nvidia-smi nor NVML (nvidia-ml-py) is here to ask it",
                f"Install the driver's userland, exactly {loaded}.",
            )
        )
    if "nvml_unknown" in errors:
        action = (
            "The container lost its devices (a systemctl daemon-reload on the host drops them): restart the container."
            if result["container"]
            else "Look at the kernel log; a reboot may be needed."
        )
        problems.append(_problem("nvml_unknown_error", "error", errors["nvml_unknown"].message, action))
    if "no_permission" in errors:
        problems.append(
            _problem(
                "no_permission", "error", errors["no_permission"].message, "Run as root, or give the user the device nodes /dev/nvidia*."
            )
        )
    if "timed_out" in errors:
        reading = errors["timed_out"]
        problems.append(
            _problem(
                "driver_hangs",
                "error",
                reading.message or f"{reading.source} did not answer in time",
                "A GPU or the driver hangs: look at the kernel log for Xid; a reboot may be needed.",
            )
        )
    whole = any(reading.status == "ok" and not reading.error and reading.source in _gpu_inventory.DRIVER_SOURCES for reading in readings)
    for code in ("damaged", "unknown_error"):
        if code in errors and not whole:
            reading = errors[code]
            said = reading.message or "it said nothing"
            severity = "error" if reading.status != "ok" else "warning"
            problems.append(_problem("source_failed", severity, f"{reading.source}: {said}", "Run nvidia-smi by hand."))
    return problems


def _loading_problems(result: t.Mapping[str, t.Any], readings: t.Sequence[Reading], evidence: Evidence) -> list[dict[str, t.Any]]:
    """No driver, or no GPU behind it."""
    errors = _errors(readings)
    gpus = result["gpus"]
    real = [gpu for gpu in gpus if gpu["health"] != "passed_through"]
    if result["container"] and not real and ("driver_version" in result["sources"] or errors.keys() & {"no_devices", "driver_not_loaded"}):
        return [
            _problem(
                "no_devices",
                "error",
                f"the host's driver {result['driver_version'] or '(not loaded)'} gives this container no GPU",
                "Give the container the device nodes (/dev/nvidia0, /dev/nvidiactl, /dev/nvidia-uvm) and let it open them; "
                "a hypervisor that has no driver loaded needs that first.",
            )
        ]
    if any(gpu["health"] == "no_driver" for gpu in real) and not result["container"]:
        return _not_loaded_causes(result, evidence)
    if "no_devices" in errors and real:
        firmware = _first_finding(
            evidence, "rm_init_failed", "gsp_firmware_failed", "needs_open_module", "branch_ignores_gpu", "no_gpu_found"
        )
        hint = f" ({firmware.text})" if firmware else ""
        return [
            _problem(
                "no_devices",
                "error",
                f"the driver is loaded and serves none of {', '.join(_label(gpu) for gpu in real)}{hint}",
                _silent_gpu_cure(result, firmware),
            )
        ]
    return []


def _memory_state(gpu: t.Mapping[str, t.Any]) -> list[dict[str, t.Any]]:
    """What is wrong with the memory of one GPU."""
    problems = []
    label = _label(gpu)

    def add(code: str, severity: str, found: str, action: str) -> None:
        problems.append(_problem(code, severity, found, action, identity(gpu)))

    if gpu["remapped_rows_failure"]:
        add("row_remapping_failed", "error", f"{label}: memory rows could not be remapped", "Have the card replaced.")
    if gpu["remapped_rows_pending"] or gpu["retired_pages_pending"]:
        add("memory_repair_pending", "warning", f"{label}: bad memory is set aside at the next reset", "Reset the GPU, or reboot.")
    if gpu["ecc_errors_uncorrected_volatile"]:
        add(
            "ecc_errors",
            "warning",
            f"{label}: {gpu['ecc_errors_uncorrected_volatile']} uncorrectable memory errors since the driver was loaded",
            "Reset the GPU; if they come back, have the card replaced.",
        )
    return problems


def _gpu_state(gpu: t.Mapping[str, t.Any], evidence: Evidence) -> list[dict[str, t.Any]]:
    """What is wrong with one GPU itself."""
    problems = _memory_state(gpu)
    label = _label(gpu)
    told = next(
        (finding.text for finding in evidence.kernel_findings if finding.pci_bus_id and finding.pci_bus_id == gpu["pci_bus_id"]), ""
    )
    hint = f" ({told})" if told else ""

    def add(code: str, severity: str, found: str, action: str) -> None:
        problems.append(_problem(code, severity, found, action, identity(gpu)))

    if gpu["health"] == "lost":
        add(
            "gpu_lost",
            "error",
            f"{label} is lost{hint}",
            "Power the machine off and on (a warm reboot may not be enough); if it comes back, check power cables and seat. "
            "Other GPUs may be listed and still refuse new processes.",
        )
    elif gpu["health"] == "needs_reset":
        action = _RECOVERY_ADVICE.get(gpu["recovery_action"], _RECOVERY_ADVICE["reset"])
        add("gpu_needs_reset", "error", f"{label} must be reset before it can be used{hint}", action)
    elif gpu["health"] == "unknown" and gpu["kernel_driver"] == "nvidia":
        add(
            "gpu_not_listed",
            "error",
            f"{label} is on the bus and the driver does not list it{hint}",
            "Look at the kernel log for this address.",
        )
    elif gpu["health"] == "passed_through":
        add("passed_through", "info", f"{label} is bound to vfio-pci", "Nothing: it belongs to a guest.")
    if None not in (gpu["mig_enabled"], gpu["mig_enabled_pending"]) and gpu["mig_enabled"] != gpu["mig_enabled_pending"]:
        add(
            "mig_change_pending",
            "warning",
            f"{label}: MIG changes at the next reset",
            "Reset the GPU, or reboot, before something is sized for it.",
        )
    if None not in (gpu["ecc_enabled"], gpu["ecc_enabled_pending"]) and gpu["ecc_enabled"] != gpu["ecc_enabled_pending"]:
        add(
            "ecc_change_pending",
            "warning",
            f"{label}: ECC changes at the next reboot, and with it the memory",
            "Reboot before something is sized for it.",
        )
    if gpu["license_status"] and re.match("unlicensed|expired", gpu["license_status"], re.IGNORECASE):
        add("vgpu_unlicensed", "warning", f"{label}: the vGPU has no licence and is throttled after a while", "Give the guest its licence.")
    foreign = [
        process
        for process in gpu["processes"]
        if (process["memory_used_mib"] or 0) >= FOREIGN_MEMORY_MIB and not re.match(r"sglang-.*\.service$", process.get("unit") or "")
    ]
    if foreign:
        names = ", ".join(
            f"{process['name'] or 'a process'} (pid {process['pid']}, {process['memory_used_mib']} MiB)" for process in foreign
        )
        add("foreign_processes", "warning", f"{label}: memory is held by {names}", "End them, or plan with what is left.")
    if gpu["health"] == "degraded" and gpu["recovery_action"] not in (None, "none"):
        action = _RECOVERY_ADVICE.get(gpu["recovery_action"], "Look for it in the manual of nvidia-smi.")
        add("recovery_action", "warning", f"{label} asks for: {gpu['recovery_action']}", action)
    if gpu["health"] == "degraded" and not problems:
        add(
            "unreadable_values",
            "warning",
            f"{label}: the driver answers some questions with an error",
            "Look at nvidia-smi -q and the kernel log.",
        )
    return problems


def _node_problems(result: t.Mapping[str, t.Any]) -> list[dict[str, t.Any]]:
    """Device nodes that CUDA needs; nvidia-smi works without them (case C17)."""
    # Neither WSL2 nor the GPU of a Jetson, which is on no PCI bus, has the node.
    cards = [gpu for gpu in result["gpus"] if gpu["pci_bus_id"] and (gpu["usable"] or gpu["mig_enabled"])]
    if result["virtualization"] == "wsl" or not cards:
        return []
    nodes = {node["path"]: node for node in result["device_nodes"]}
    uvm = nodes.get("/dev/nvidia-uvm")
    make = (
        "On the host: nvidia-modprobe -u -c 0 before the container starts, and give the container /dev/nvidia-uvm."
        if result["container"]
        else "Run nvidia-modprobe -u -c 0, and at each boot."
    )
    problems = []
    if uvm is None:
        problems.append(
            _problem("uvm_missing", "error", "/dev/nvidia-uvm does not exist; nvidia-smi works without it, CUDA does not", make)
        )
    elif uvm["kind"] != "character":
        problems.append(_problem("uvm_missing", "error", f"/dev/nvidia-uvm is no device but a {uvm['kind']}", f"Remove it. {make}"))
    elif result["device_majors"].get("nvidia-uvm") not in (None, uvm["major"]):
        major = result["device_majors"]["nvidia-uvm"]
        problems.append(
            _problem(
                "uvm_wrong_major", "error", f"/dev/nvidia-uvm has major {uvm['major']}, the driver has {major}", f"Remove the node. {make}"
            )
        )
    closed = [
        node["path"]
        for node in result["device_nodes"]
        if node["kind"] == "character" and node["accessible"] is False and "caps" not in node["path"]
    ]
    if closed:
        problems.append(
            _problem(
                "no_permission",
                "error",
                f"{', '.join(closed)} cannot be opened",
                "Allow the devices to the container." if result["container"] else "Look at the modes of the device nodes.",
            )
        )
    return problems


def _peer_problems(result: t.Mapping[str, t.Any]) -> list[dict[str, t.Any]]:
    """Cards on PCIe that cannot read each other's memory (case A33): custom all-reduce and NCCL's peer transport then fail or hang."""
    topology = result["topology"]
    apart = [
        f"{one} and {other} ({link or 'unknown link'}, {topology['peer_access'][row][column]})"
        for row, one in enumerate(topology["indices"])
        for column, other in enumerate(topology["indices"])
        for link in [topology["matrix"][row][column]]
        if row < column
        and topology["peer_access"]
        and not link.startswith("NV")
        and topology["peer_access"][row][column] not in ("OK", "U")
    ]
    if not apart:
        return []
    return [
        _problem(
            "no_peer_access",
            "info",
            f"these GPUs cannot read each other's memory: {', '.join(apart)}",
            "For tensor parallelism across them set NCCL_P2P_DISABLE=1 (environment) and disable_custom_all_reduce (args) of the instance.",
        )
    ]


def _host_problems(result: t.Mapping[str, t.Any], evidence: Evidence) -> list[dict[str, t.Any]]:
    """What concerns all GPUs together."""
    problems = []
    usable = [gpu for gpu in result["gpus"] if gpu["usable"]]
    sizes: dict[str | None, set[int]] = {}
    for gpu in usable:
        sizes.setdefault(gpu["name"], set()).update([gpu["memory_total_mib"]] if gpu["memory_total_mib"] else [])
    if len(sizes) > 1 or any(len(known) > 1 for known in sizes.values()):
        words = ", ".join(f"{name} ({' and '.join(map(str, sorted(known))) or 'unknown'} MiB)" for name, known in sizes.items())
        problems.append(
            _problem(
                "unequal_gpus",
                "warning",
                f"the GPUs are not alike: {words}",
                "Give each instance GPUs of one kind; the smallest one decides.",
            )
        )
    # Of NVSwitch machines before Hopper the driver says no fabric state: not_supported.
    if result["fabric_state"] in ("not_started", "in_progress"):
        switches = f"{len(result['nvswitches'])} NVSwitches, " if result["nvswitches"] else ""
        problems.append(
            _problem(
                "fabric_not_ready",
                "error",
                f"{switches}fabric state {result['fabric_state']}: CUDA does not start (error 802)",
                "Install and start nvidia-fabricmanager of exactly the driver's version, and wait for it.",
            )
        )
    loaded = result["driver_version"]
    if evidence.disk_version and loaded and evidence.disk_version != loaded and not result["container"]:
        problems.append(
            _problem(
                "reboot_required", "warning", f"module {evidence.disk_version} is installed, {loaded} is loaded", "Reboot when it suits."
            )
        )
    elif evidence.reboot_required:
        problems.append(_problem("reboot_required", "info", "the system asks for a reboot", "Reboot when it suits."))
    fault = _first_finding(evidence, "iommu_page_fault")
    if fault is not None and fault.pci_bus_id in {gpu["pci_bus_id"] for gpu in result["gpus"]}:
        problems.append(_problem("iommu_page_fault", "warning", fault.text, "Boot with iommu=pt.", fault.pci_bus_id))
    if result["virtualization"] == "wsl" and result["gpus"]:
        problems.append(
            _problem(
                "wsl", "info", f"Windows keeps about {WSL_HIDDEN_MIB} MiB of a GPU that are not shown as used", "Plan with less memory."
            )
        )
    if not result["container"] and usable and all(gpu["persistence_mode"] is False for gpu in usable):
        problems.append(
            _problem(
                "persistence_off",
                "info",
                "persistence mode is off: the driver forgets its settings and starts slowly",
                "Run nvidia-persistenced.",
            )
        )
    return problems


def find(result: t.Mapping[str, t.Any], readings: t.Sequence[Reading], evidence: Evidence) -> list[dict[str, t.Any]]:
    """Everything that is wrong, the worst first; each {code, severity, gpu, found, action}.

    result: of _gpu_inventory.unite, with its topology. An empty list for a host without GPU and for one that is well.
    """
    library = _library_problems(result, readings)
    flavour = _flavour_problems(result, evidence)
    stopped = any(problem["severity"] == "error" for problem in library)
    loading = [] if stopped else _loading_problems(result, readings, evidence)
    if flavour:  # it is the cause of what these say
        loading = [problem for problem in loading if problem["code"] not in ("no_devices", "driver_not_loaded")]
    problems = library + flavour + loading
    explained = any(problem["severity"] == "error" and problem["code"] != "no_common_flavour" for problem in problems)
    for gpu in result["gpus"]:
        problems += [problem for problem in _gpu_state(gpu, evidence) if not (explained and problem["code"] == "gpu_not_listed")]
    problems += _node_problems(result) + _peer_problems(result) + _host_problems(result, evidence)
    return sorted(problems, key=lambda one: _SEVERITIES.index(one["severity"]))


def needs_kernel_log(result: t.Mapping[str, t.Any], readings: t.Sequence[Reading]) -> bool:
    """Whether the kernel log could explain something: a source failed, or a GPU is not well. A container has no log of its own."""
    unwell = any(gpu["health"] not in ("ok", "passed_through") for gpu in result["gpus"])
    failed = any(reading.error and reading.source != "nvml" for reading in readings) and bool(result["gpus"])
    return not result["container"] and (unwell or failed)
