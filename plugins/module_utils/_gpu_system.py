# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What /proc, /sys, /dev, lspci and the kernel log say about GPUs and their driver, without any NVIDIA tool. Text in, data out.

Dictionaries hold cells (_gpu_cell) under the field names of the result (docs/design.md). A field is left out when its source does
not speak of it. None of these functions raises, whatever the text is.
"""

from __future__ import annotations

import os
import re
import stat
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_cell as cell
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import Cell, Failure, Nothing, Reading

# PCI address -> attribute -> text, as the files in /sys/bus/pci/devices/<address> are named. Two are links: "driver" is the name of
# what it points to, or None when nothing is bound; "physfn" is there for a virtual function only. What is not known is left out.
PciDevices = t.Mapping[str, t.Mapping[str, t.Optional[str]]]

_ADDRESS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_VERSION = r"\d{1,5}(?:\.\d{1,5}){1,3}"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


# /proc/driver/nvidia


def driver(text: str) -> dict[str, Cell]:
    """driver_version and driver_flavour from /proc/driver/nvidia/version; empty when the text is (no driver is loaded).

    "NVIDIA UNIX x86_64 Kernel Module  550.163.01" is proprietary, "NVIDIA UNIX Open Kernel Module for x86_64  580.159.04" is open.
    """
    line = re.search(r"^NVRM version:[ \t]*(.*)", text, re.MULTILINE)
    if not line:
        return {}
    match = re.match(rf"NVIDIA\b(.{{0,60}}?)\bKernel Module(?: for \S+)?\s+({_VERSION})(?!\S)", line[1], re.ASCII)
    if not match:
        unread = Nothing(cell.UNKNOWN, line[1].strip())
        return {"driver_version": unread, "driver_flavour": unread}
    return {"driver_version": match[2], "driver_flavour": "open" if "Open" in match[1].split() else "proprietary"}


def gpu_information(address: str, text: str) -> dict[str, Cell]:
    """Cells of one GPU from /proc/driver/nvidia/gpus/<address>/information.

    address: the directory's name; "Bus Location" is not used, since older drivers write it as 0000:01.00.0. A GPU that was never
    initialised has question marks for its uuid and its firmware's version: Nothing(unknown).
    """
    found = {key.strip(): value.strip() for key, _colon, value in (line.partition(":") for line in text.splitlines())}
    cells: dict[str, Cell] = {"pci_bus_id": cell.pci_bus_id(address)}
    if "Model" in found:
        cells["name"] = cell.text(found["Model"])
    if "GPU UUID" in found:
        cells["uuid"] = _like(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", found["GPU UUID"])
    if "Device Minor" in found:
        cells["minor_number"] = cell.integer(found["Device Minor"])
    if "Video BIOS" in found:
        # nvidia-smi prints the same in upper case.
        cells["vbios_version"] = _like(r"[0-9A-F]{2}(?:\.[0-9A-F]{2}){4}", found["Video BIOS"].upper())
    if "GPU Firmware" in found:
        cells["gsp_firmware_version"] = cell.version(found["GPU Firmware"])
    return cells


def _like(pattern: str, value: str) -> Cell:
    return cell.nothing(value) or (value if re.fullmatch(pattern, value) else Nothing(cell.UNKNOWN, value))


def proc_reading(version_text: str, information: t.Mapping[str, str]) -> Reading:
    """What /proc/driver/nvidia says.

    version_text: the file version, empty when it is missing. information: the files gpus/<address>/information by address. A GPU
    that the driver was told to leave alone (NVreg_ExcludedGpus) is among the failures too: NVML and nvidia-smi do not list it.
    """
    if not version_text.strip() and not information:
        return Reading("proc", "missing")
    gpus = [gpu_information(address, text) for address, text in sorted(information.items())]
    excluded = [
        Failure(None, gpu["pci_bus_id"], "unknown", "GPU Excluded: Yes")
        for gpu, (_address, text) in zip(gpus, sorted(information.items()))
        if isinstance(gpu["pci_bus_id"], str) and re.search(r"^GPU Excluded:\s*Yes\s*$", text, re.MULTILINE)
    ]
    return Reading("proc", host=driver(version_text), gpus=gpus, failures=excluded)


# /proc/devices and /dev


def device_majors(text: str) -> dict[str, int]:
    """Majors of character devices whose names begin with nvidia, from /proc/devices. Several names may share a major."""
    characters = text.partition("Block devices:")[0]
    return {
        match[2]: int(match[1]) for match in re.finditer(r"^[ \t]*(\d{1,4}) (nvidia[\w-]*)[ \t\r]*$", characters, re.MULTILINE | re.ASCII)
    }


def device_node(path: str, mode: int, device: int, accessible: bool | None) -> dict[str, t.Any]:
    """One element of device_nodes. mode, device: st_mode and st_rdev. accessible: can be read and written; None when not known."""
    kinds = ((stat.S_ISCHR, "character"), (stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"))
    kind = next((word for test, word in kinds if test(mode)), "other")
    return {
        "path": path,
        "kind": kind,
        "major": os.major(device) if kind == "character" else None,
        "minor": os.minor(device) if kind == "character" else None,
        "mode": f"{stat.S_IMODE(mode):04o}",
        "accessible": accessible,
    }


_LISTED = re.compile(
    r"(?P<kind>[-bcdlps])(?P<mode>(?:[-r][-w][-xsS]){2}[-r][-w][-xtT])[.+@]?\s+\d+\s+\S+\s+\S+\s+"
    r"(?:(?P<major>\d{1,4}),\s*(?P<minor>\d{1,8})|\d+)\s(?:.*\s)?(?P<name>[\w./:-]+)",
    re.ASCII,
)


def listed_nodes(text: str) -> list[dict[str, t.Any]]:
    """device_nodes from what `ls -l /dev/nvidia* /dev/nvidia-caps` prints; only paths that begin with /dev/nvidia.

    accessible is always None: a listing does not say it, since a container may forbid a device whose mode is 0666. Names without a
    directory belong to the heading above them ("/dev/nvidia-caps:"), or to /dev when there is none. Messages of ls are passed over.
    """
    nodes = {}
    directory = "/dev"
    for raw in text.splitlines():
        line = raw.strip()
        heading = re.fullmatch(r"'?(/[^:']*?)/?'?:", line)
        if heading:
            directory = heading[1]
        match = _LISTED.fullmatch(line.partition(" -> ")[0]) if len(line) < 1000 else None
        if not match:
            continue
        path = match["name"] if match["name"].startswith("/") else f"{directory}/{match['name']}"
        if not path.startswith("/dev/nvidia"):
            continue
        character = match["kind"] == "c" and match["major"] is not None
        nodes[path] = {
            "path": path,
            "kind": "character" if character else {"-": "file", "d": "directory"}.get(match["kind"], "other"),
            "major": int(match["major"]) if character else None,
            "minor": int(match["minor"]) if character else None,
            "mode": _octal(match["mode"]),
            "accessible": None,
        }
    return list(nodes.values())


def _octal(words: str) -> str:
    """rw-rw-rw- -> 0666."""
    bits = 0
    for position, letter in enumerate(words):
        if letter not in "-ST":
            bits |= 1 << (8 - position)
        if letter in "sStT":
            bits |= {2: stat.S_ISUID, 5: stat.S_ISGID, 8: stat.S_ISVTX}[position]
    return f"{bits:04o}"


# PCI

NVIDIA = "10de"
# Display controllers: VGA and 3D (PCI Code and ID Assignment). Audio 0403, USB 0c03 and UCSI 0c80 of the same card are none (case A41).
_GPU_CLASSES = ("0300", "0302")
_BRIDGE_CLASS = "0680"  # "other bridge": what an NVSwitch is
# Transfer rate of a lane in GT/s -> PCIe generation (PCI Express Base Specification; strings of pci_speed_string in Linux).
_GENERATIONS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
_WIDTHS = (1, 2, 4, 8, 12, 16, 32)  # Linux prints 0 or 255 when a device does not answer


def lspci_devices(text: str) -> dict[str, dict[str, str | None]]:
    """Devices from lspci -n, -nn, -nk, -nnk, each also with -D or -v. Plain lspci has no numbers, so it gives none.

    "Kernel modules" are candidates; only "Kernel driver in use" is bound. Without -k the key "driver" is left out.
    """
    devices: dict[str, dict[str, str | None]] = {}
    current: dict[str, str | None] = {}
    detailed = False
    for line in text.splitlines():
        if line[:1] in ("\t", " "):
            detailed = True
            subsystem = re.search(r"^\s+Subsystem:.*?\[?([0-9a-f]{4}):([0-9a-f]{4})\]?\s*$", line)
            bound = re.search(r"^\s+Kernel driver in use:\s*([\w-]+)\s*$", line, re.ASCII)
            if subsystem:
                current.update(subsystem_vendor=subsystem[1], subsystem_device=subsystem[2])
            elif bound:
                current["driver"] = bound[1]
            continue
        current = {}  # what follows an unread line belongs to nothing
        head = re.match(rf"({_ADDRESS})\s+(?:[^\[\]]*\[([0-9a-f]{{4}})\]|([0-9a-f]{{4}})):\s*(.*)", line)
        # Names have brackets too, but no two numbers in them.
        ids = re.search(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]" if head[2] else r"^([0-9a-f]{4}):([0-9a-f]{4})\b", head[4]) if head else None
        if head and ids:
            current = {"class": head[2] or head[3], "vendor": ids[1], "device": ids[2]}
            devices[head[1]] = current
    if detailed:
        for found in devices.values():
            found.setdefault("driver", None)
    return devices


def pci_reading(source: str, devices: PciDevices) -> Reading:
    """GPUs and NVSwitches among PCI devices. source: sysfs or lspci.

    kernel_driver is None when it is known that no driver is bound, and left out when the source does not say.
    Virtual functions of an SR-IOV vGPU host are no GPUs of that host (in a guest they look like any other GPU).
    """
    gpus: list[dict[str, Cell]] = []
    switches: list[dict[str, Cell]] = []
    virtual = _virtual_functions(devices)
    for address, device in sorted(devices.items(), key=lambda item: str(cell.pci_bus_id(item[0]))):
        if _hex(device.get("vendor")) != NVIDIA or address in virtual:
            continue
        kind = _hex(device.get("class"))[:4]
        if kind not in (*_GPU_CLASSES, _BRIDGE_CLASS):
            continue
        cells: dict[str, Cell] = {
            "pci_bus_id": cell.pci_bus_id(address),
            "pci_device_id": cell.pci_id(f"{_hex(device.get('device'))}{NVIDIA}"),
        }
        if "driver" in device:
            cells["kernel_driver"] = device["driver"] or None
        if kind == _BRIDGE_CLASS:
            named = {"kernel_driver": None, **cells}
            switches.append({field: None if isinstance(value, Nothing) else value for field, value in named.items()})
        else:
            gpus.append({**cells, **_bus_cells(device)})
    return Reading(source, host={"nvswitches": switches}, gpus=gpus)


def _bus_cells(device: t.Mapping[str, str | None]) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    subsystem = _hex(device.get("subsystem_device")), _hex(device.get("subsystem_vendor"))
    # 0000:0000 stands for a card maker that wrote none.
    if all(subsystem) and subsystem != ("0000", "0000"):
        cells["pci_subsystem_id"] = cell.pci_id("".join(subsystem))
    if "numa_node" in device:
        # -1: the firmware does not say.
        cells["numa_node"] = cell.integer(device["numa_node"])
    for field, speed, width in (("", "current_link_speed", "current_link_width"), ("_max", "max_link_speed", "max_link_width")):
        if speed in device:
            cells[f"pcie_generation{field}"] = pcie_generation(device[speed])
        if width in device:
            lanes = cell.integer(device[width])
            cells[f"pcie_width{field}"] = lanes if lanes in _WIDTHS or isinstance(lanes, Nothing) else Nothing(cell.UNKNOWN, str(lanes))
    return cells


def _hex(text: str | None) -> str:
    """0x10de or 10de -> 10de; empty when it is no such number."""
    match = re.fullmatch(r"(?:0x)?([0-9a-f]{4,6})", (text or "").strip().lower())
    return match[1] if match else ""


def pcie_generation(text: str | None) -> Cell:
    """Generation from a link speed: "32.0 GT/s PCIe" -> 5."""
    match = re.fullmatch(r"(\d{1,2}(?:\.\d)?)\s*GT/s(?:\s+PCIe)?", (text or "").strip(), re.ASCII)
    generation = _GENERATIONS.get(re.sub(r"\.0$", "", match[1])) if match else None
    return generation or Nothing(cell.UNKNOWN, (text or "").strip())


def _virtual_functions(devices: PciDevices) -> set[str]:
    """Addresses of SR-IOV virtual functions.

    sysfs says it (physfn). lspci does not: there, a display controller that is another function of slot 0 and has the number of
    function 0 is one, and then so is every other device of that number on this bus. Two real GPUs never share a slot.
    """
    virtual = {address for address, device in devices.items() if device.get("physfn")}
    displays: dict[tuple[str, str], dict[str, str]] = {}
    for address, device in devices.items():
        bus, _colon, place = address.rpartition(":")
        if _hex(device.get("vendor")) == NVIDIA and _hex(device.get("class"))[:4] in _GPU_CLASSES:
            displays.setdefault((bus, _hex(device.get("device"))), {})[place] = address
    for places in displays.values():
        others = {place: address for place, address in places.items() if place != "00.0"}
        if len(others) < len(places) and any(place.startswith("00.") for place in others):
            virtual.update(others.values())
    return virtual


# The host


def host_memory(text: str) -> dict[str, Cell]:
    """memory_total_mib and memory_available_mib from /proc/meminfo, whose kB are KiB."""
    found = dict(re.findall(r"^(MemTotal|MemAvailable):[ \t]*(.*?)[ \t\r]*$", text, re.MULTILINE))
    cells = {}
    for field, key in (("memory_total_mib", "MemTotal"), ("memory_available_mib", "MemAvailable")):
        if key in found:
            kib = cell.integer(found[key], "kB")
            cells[field] = kib if isinstance(kib, Nothing) else kib // 1024
    return cells


def modules_loaded(text: str) -> list[str]:
    """Modules in /proc/modules that drive NVIDIA GPUs or could take them: nvidia*, nouveau, nova* (its successor), vfio*. Sorted."""
    return sorted(set(re.findall(r"^((?:nvidia|nouveau|nova_|vfio)\w*) \d+ .*\bLive\b", text, re.MULTILINE | re.ASCII)))


def secure_boot(*, efi: bool | None, variable: bytes | None = None, mokutil: str = "") -> Cell:
    """enabled, disabled or unsupported.

    efi: /sys/firmware/efi is there; None when that cannot be known (containers hide /sys/firmware). variable: the file
    efivars/SecureBoot-8be4df61-...: four bytes of attributes, then 0 or 1 (efivarfs in the kernel's documentation; UEFI 2.10, 3.3).
    mokutil: what `mokutil --sb-state` prints. A shim that does not validate counts as disabled: the kernel then takes any module.
    """
    if "validation is disabled in shim" in mokutil:
        return "disabled"
    if variable is not None and len(variable) == 5 and variable[4] in (0, 1):
        return "enabled" if variable[4] else "disabled"
    word = re.search(r"^SecureBoot (enabled|disabled)\b", mokutil, re.MULTILINE)
    if word:
        return word[1]
    if efi is False or re.search(r"EFI variables are not supported|doesn't support Secure Boot", mokutil):
        return "unsupported"
    return Nothing(cell.UNKNOWN, mokutil.strip()[:200])


def iommu(*, units: t.Sequence[str] | None, group_types: t.Iterable[str], cmdline: str) -> Cell:
    """translated, passthrough or disabled.

    units: names in /sys/class/iommu, None when it cannot be listed. group_types: the files /sys/kernel/iommu_groups/*/type; those of
    the GPUs' groups when they are known, else all. cmdline: /proc/cmdline.
    What runs (sysfs) counts before what was asked for (cmdline). "on" alone says nothing: the default domain is a kernel's build option.
    (kernel-parameters and sysfs-kernel-iommu_groups in the kernel's documentation.)
    """
    asked: dict[str, set[str]] = {}
    for key, _equals, value in (word.partition("=") for word in cmdline.split()):
        asked.setdefault(key, set()).update(value.split(","))
    passes = "pt" in asked.get("iommu", ()) or bool(asked.get("iommu.passthrough", set()) & {"1", "y", "on"})
    translates = "nopt" in asked.get("iommu", ()) or bool(asked.get("iommu.passthrough", set()) & {"0", "n", "off"})
    types = {word.strip().partition("-")[0] for word in group_types} & {"DMA", "identity"}  # DMA, DMA-FQ: translated
    if types == {"DMA", "identity"}:
        return "passthrough" if passes else "translated"
    if types:
        return "translated" if types == {"DMA"} else "passthrough"
    if units is not None and not units:
        return "disabled"
    if units is None and any("off" in asked.get(key, ()) for key in ("iommu", "intel_iommu", "amd_iommu")):
        return "disabled"
    if passes or translates:
        return "passthrough" if passes else "translated"
    return Nothing(cell.UNKNOWN)


# systemd-detect-virt's words (its manual).
_CONTAINERS = {"openvz", "lxc", "lxc-libvirt", "systemd-nspawn", "docker", "podman", "rkt", "proot", "pouch", "container-other"}
_MACHINES = {
    *("kvm", "amazon", "qemu", "bochs", "xen", "uml", "vmware", "oracle", "microsoft", "zvm", "parallels", "bhyve"),
    *("qnx", "acrn", "powervm", "apple", "sre", "google", "vm-other", "wsl"),
}
# What the firmware calls a virtual machine: maker, product (both by their beginning), word. Real machines of the same makers exist.
_FIRMWARE = (
    ("Amazon EC2", "", "amazon"),
    ("QEMU", "", "kvm"),  # a GPU cannot be handed to a QEMU without KVM
    ("", "KVM", "kvm"),
    ("", "OpenStack", "kvm"),
    ("", "KubeVirt", "kvm"),
    ("VMware", "", "vmware"),
    ("innotek", "", "oracle"),
    ("", "VirtualBox", "oracle"),
    ("Xen", "", "xen"),
    ("Bochs", "", "bochs"),
    ("Parallels", "", "parallels"),
    ("", "BHYVE", "bhyve"),
    ("Microsoft Corporation", "Virtual Machine", "microsoft"),
    ("Google", "Google Compute Engine", "google"),
    ("Apple", "Apple Virtualization", "apple"),
)


def virtualization(
    *,
    detected: str = "",
    environ: str = "",
    manager: str = "",
    dockerenv: bool = False,
    containerenv: bool = False,
    dxg: bool = False,
    kernel: str = "",
    hypervisor: bool = False,
    sys_vendor: str | None = None,
    product_name: str | None = None,
) -> dict[str, Cell]:
    """virtualization, in systemd-detect-virt's words, and container.

    detected: what it prints; the rest stands in where it is missing. environ: /proc/1/environ. manager: /run/systemd/container.
    dockerenv, containerenv, dxg: /.dockerenv, /run/.containerenv, /dev/dxg are there. kernel: /proc/version.
    hypervisor: among the flags in /proc/cpuinfo. sys_vendor, product_name: in /sys/class/dmi/id, None when missing.
    WSL counts as a virtual machine, no container: its driver is Windows'. A container on a virtual machine is a container.
    """
    word, container = detected.strip(), True
    assigned = re.search(r"(?:^|\0)container=([\w-]+)", environ, re.ASCII)
    name = word if word in _CONTAINERS else manager.strip() or (assigned[1] if assigned else "")
    if name in ("", "oci") and (dockerenv or containerenv):
        name = "podman" if containerenv else "docker"
    if name not in ("", "wsl"):
        word = name if name in _CONTAINERS else "container-other"
    else:
        container = False
        if name == "wsl" or dxg or re.search(r"microsoft-standard|-WSL\d?\b|-Microsoft\b", kernel):
            word = "wsl"
        elif word not in (*_MACHINES, "none"):
            word = _firmware_word((sys_vendor or "").strip(), (product_name or "").strip(), hypervisor)
    return {"virtualization": word or Nothing(cell.UNKNOWN), "container": container}


def _firmware_word(vendor: str, product: str, hypervisor: bool) -> str:
    for maker, model, word in _FIRMWARE:
        # EC2's real machines have the same maker: g4dn.metal.
        if vendor.startswith(maker) and product.startswith(model) and not (word == "amazon" and product.endswith(".metal")):
            return word
    if hypervisor:
        return "vm-other"
    return "none" if vendor or product else ""


# Kernel modules on disk


class Build(t.NamedTuple):
    """What dkms has of one module for one kernel. kernel, arch: None when it was only added. state: its word, such as installed."""

    module: str
    version: str
    kernel: str | None
    arch: str | None
    state: str


class KernelModule(t.NamedTuple):
    """NVIDIA's module for one kernel. files: their paths; None when they could not be listed. dkms: its builds for this kernel.
    other_kernels: those that dkms has built it for."""

    files: list[str] | None
    dkms: list[Build]
    other_kernels: list[str]


def dkms_status(text: str) -> list[Build]:
    """NVIDIA's modules in what `dkms status` prints: "nvidia/580.119.02, 6.17.4-generic, x86_64: installed" of dkms 3, and
    "nvidia, 470.57.02, 5.11.0-27-generic, x86_64: installed" of dkms 2."""
    pattern = r"^(nvidia[\w-]*)(?:/|, )([\w.+~-]+)(?:, ([\w.+~-]+), ([\w-]+))?: ([a-z-]+)"
    return [Build(*match.groups()) for match in re.finditer(pattern, text, re.MULTILINE | re.ASCII)]


def dkms_tree(paths: t.Iterable[str]) -> list[Build]:
    """The same from files below /var/lib/dkms: <module>/<version>/<kernel>/<arch>/module/*.ko*. Whether it is installed they do not say."""
    pattern = r"(?:.*/)?(nvidia[\w-]*)/([\w.+~-]+)/([\w.+~-]+)/([\w-]+)/module/[\w-]+\.ko(?:\.\w+)?"
    found = (re.fullmatch(pattern, path, re.ASCII) for path in paths)
    return sorted({Build(match[1], match[2], match[3], match[4], "built") for match in found if match})


def kernel_module(release: str, paths: t.Iterable[str] | None, builds: t.Sequence[Build]) -> KernelModule:
    """Is there a module for this kernel?

    release: of the kernel that runs, or of the one that will boot next. paths: files below /lib/modules, None when there is none
    (containers). Debian calls the file nvidia-current.ko, nvidia-current-open.ko, nvidia-tesla-470.ko or nvidia-legacy-390xx.ko.
    """
    pattern = r".*/modules/([^/]+)/(?:.*/)?nvidia(?:-current(?:-open)?|-open|-tesla(?:-\d+)?|-legacy-\d+xx)?\.ko(?:\.xz|\.zst|\.gz)?"
    files = None if paths is None else [path for path in paths for match in [re.fullmatch(pattern, path)] if match and match[1] == release]
    return KernelModule(
        files,
        [build for build in builds if build.kernel == release],
        sorted({build.kernel for build in builds if build.kernel is not None and build.kernel != release}),
    )


# Kernel log


class Finding(t.NamedTuple):
    """Something that a log tells.

    code: a stable word. pci_bus_id: None when the message names no device. text: the telling message without time and host.
    details: what it names, by code (log_findings). times: how often it is in the log.
    """

    code: str
    pci_bus_id: str | None
    text: str
    details: dict[str, t.Any]
    times: int


def _patterns(*pairs: tuple[str, str]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((code, re.compile(pattern, re.ASCII)) for code, pattern in pairs)


# Messages of NVIDIA's kernel module ("NVRM:"), each as one line: they are wrapped differently from release to release.
# Sources: kernel-open/nvidia/nv.c and nv-pci.c, src/nvidia/arch/nvalloc/unix/src/osinit.c and src/nvidia/src/kernel/gpu/rc/kernel_rc.c
# of open-gpu-kernel-modules; public logs of drivers 96 to 610.
_NVRM = _patterns(
    (
        "needs_open_module",
        rf"(?:The NVIDIA GPU (?P<bus>{_ADDRESS})(?: \(PCI ID: (?P<pci_device_id>[0-9a-f]{{4}}:[0-9a-f]{{4}})\))? )?"
        r"installed in this system requires use of the NVIDIA open kernel modules\b",
    ),
    (
        "branch_ignores_gpu",
        r"The NVIDIA (?P<name>(?:(?!The NVIDIA).){1,80}?) GPU installed in this system is supported through the NVIDIA "
        r"(?P<branch>[\w.-]{1,20}?)(?:\.?xx)? Legacy drivers"
        rf"(?:\..{{0,160}}? The (?P<driver_version>{_VERSION}) NVIDIA driver will ignore)?",
    ),
    ("branch_ignores_gpu", rf"ignoring the legacy GPU (?P<bus>{_ADDRESS})"),
    ("other_driver_owns_device", rf"GPU (?P<bus>{_ADDRESS}) is already bound to (?P<driver>[\w-]{{1,40}})"),
    ("nouveau_owns_device", r"The NVIDIA probe routine was not called for (?P<devices>\d{1,4}) device"),
    (
        "api_mismatch",
        r"API mismatch: the client (?:(?!API mismatch).){0,120}?has the version "
        rf"(?P<client_version>{_VERSION}),? but this kernel module has the version (?P<module_version>{_VERSION})(?!\d)",
    ),
    (
        "fallen_off_bus",
        rf"(?:The NVIDIA )?GPU (?:at )?(?:PCI:)?(?P<bus>{_ADDRESS})"
        r"(?:: GPU| \(PCI ID: [0-9a-f:]{9}\) installed in this system)? has fallen off the bus",
    ),
    (
        "rm_init_failed",
        rf"(?:GPU (?:at )?(?P<bus>{_ADDRESS}): )?RmInitAdapter failed!(?: \((?P<status>0x[0-9a-f]+:0x[0-9a-f]+:\d+)\))?",
    ),
    (
        "gsp_firmware_failed",
        r"(?:GPU\d+ )?(?:RmInitAdapter: Cannot initialize GSP firmware RM|RmFetchGspRmImages: No firmware image found)",
    ),
    (
        "no_gpu_found",
        r"No NVIDIA (?:GPU found|graphics adapter (?:found|probed)|devices probed)"
        r"|None of the NVIDIA (?:graphics adapters|devices) were initialized",
    ),
)
_XID = re.compile(r"Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]{5,16})[^)]{0,40}\): (?P<xid>\d{1,4})\b", re.ASCII)
_RECOVERY = re.compile(r"GPU recovery action(?: changed from .{1,60}? to 0x[0-9a-f]+ \((?P<to>[^)]{1,60})\)|: (?P<now>[^,;]{1,60}))")
# What Xid 154 and nvidia-smi call the same action (drivers 570 to 610) -> recovery_action of the result.
_RECOVERY_ACTIONS = {
    "none": "none",
    **dict.fromkeys(("gpu reset required", "gpu reset", "reset", "pf flr"), "reset"),
    **dict.fromkeys(("node reboot required", "node reboot", "os reboot", "reboot"), "reboot"),
    "drain p2p": "drain_p2p",
    "drain and reset": "drain_and_reset",
}
# The GSP messages shortly before it say why RmInitAdapter failed; by themselves they also occur while a GPU runs.
_GSP_CAUSE = re.compile(r"(?=.*(?:gsp|GSP|GFW|WPR2))(?=.*(?:ail|annot|unexpected|imeout|imed out|mismatch|ot find))")
_GSP_CAUSE_MESSAGES = 8
# Messages of other parts of the kernel, and of programs around it.
_OTHERS = _patterns(
    (
        "gsp_firmware_failed",
        rf"nvidia (?P<bus>{_ADDRESS}): (?:Direct firmware load for|loading) (?P<firmware>[\w./-]{{0,160}}gsp\w{{0,40}}\.bin)"
        r" failed with error (?P<error>-\d{1,4})",
    ),
    (
        "key_rejected",
        r"(?:insert|load)(?: module)? '?(?:/[\w./+~-]{1,300}/)?(?P<module>[\w-]{1,60})(?:\.ko[\w.]*)?'?: "
        r"(?:Key was rejected by service|Required key not available)",
    ),
    (
        "key_rejected",
        r"(?:(?<![\w-])(?!kernel:)(?P<module>[\w-]{1,60}): )?[Ll]oading of "
        r"(?:unsigned module|module with unavailable key|module with unsupported crypto) is rejected",
    ),
    ("key_rejected", r"Lockdown: \S{1,100}: unsigned module loading is restricted"),
    ("iommu_page_fault", rf"(?P<bus>{_ADDRESS}): AMD-Vi: Event logged \[IO_PAGE_FAULT"),
    ("iommu_page_fault", rf"AMD-Vi: Event logged \[IO_PAGE_FAULT device=(?P<bus>{_ADDRESS})"),
    ("iommu_page_fault", rf"DMAR: \[DMA \w+[^\]]{{0,40}}\] Request device \[(?P<bus>{_ADDRESS})\]"),
    ("nvswitch_error", rf"SXid \(PCI:(?P<bus>{_ADDRESS})\): (?P<sxid>\d{{1,6}}), (?P<severity>Fatal|Non-fatal)"),
    ("dkms_build_failed", r"Bad return status for module build on kernel: (?P<kernel>[\w.+~-]{1,100})"),
    ("dkms_headers_missing", r"Module build for kernel (?P<kernel>[\w.+~-]{1,100}) was skipped since the kernel headers\b"),
    ("dkms_headers_missing", r"kernel headers for kernel (?P<kernel>[\w.+~-]{1,100}) cannot be found"),
    # dkms 3.2, in two lines.
    ("dkms_headers_missing", r"No kernel headers were found, skipping module build(?:.*running kernel \((?P<kernel>[\w.+~-]{1,100})\))?"),
)
# Every line of _OTHERS and the two below has one of these; a log of a busy host has 100,000 that have none.
_WORTH_A_LOOK = re.compile(r"nvidia|IO_PAGE_FAULT|DMAR|reject|restricted|odule build|kernel headers|Linux version|^-- ")
_LOAD_EDGE = re.compile(r"nvidia-nvlink: (?:Nvlink Core is being initialized|Unregistered (?:the )?Nvlink Core)")
_BOOT = re.compile(r"(?:^|\] |kernel: )Linux version \d|^-- (?:Boot|Reboot)\b")
# Printed while the module looks for devices, that is before it says that it is loaded.
_WHILE_LOADING = ("branch_ignores_gpu", "other_driver_owns_device", "bound_to_vfio", "nouveau_owns_device")
_WHATEVER_IS_LOADED = ("iommu_page_fault", "dkms_build_failed", "dkms_headers_missing")
_MESSAGE_LINES = 6  # at most
_LINE_MAX = 1000


class _Log:
    """A log that is read line by line, and the findings so far: of the load that goes on (or went last), and of those before it."""

    def __init__(self, text: str) -> None:
        self.lines = [_ANSI.sub("", line[:_LINE_MAX]).replace("\r", " ").strip() for line in text.split("\n")]
        self.messages = [(number, _message(line)) for number, line in enumerate(self.lines) if "NVRM:" in line]
        self.earlier: dict[t.Hashable, Finding] = {}
        self.current: dict[t.Hashable, Finding] = {}
        self.cause: tuple[int, str] | None = None  # a GSP message, and which one it is

    def read(self) -> None:
        following = 0  # the next message to read
        for number, line in enumerate(self.lines):
            if "NVRM:" not in line:
                self.other(number, line)
            elif following < len(self.messages) and self.messages[following][0] == number:
                following += self.message(following)

    def add(self, code: str, bus: str | None, text: str, details: dict[str, t.Any]) -> None:
        # A later Xid 154 of a GPU takes the place of an earlier one, whatever they say.
        key = (code, bus, *(() if code == "xid_154" else sorted((name, str(value)) for name, value in details.items())))
        times = max((found[key].times for found in (self.earlier, self.current) if key in found), default=0)
        self.earlier.pop(key, None)
        self.current.pop(key, None)
        if details.get("recovery_action") != "none":
            self.current[key] = Finding(code, bus, text[:500], details, times + 1)

    def next_load(self) -> None:
        self.earlier.update(self.current)
        self.current = {}

    def loaded(self) -> None:
        """The module is loaded: what earlier loads met is over, and so is what an earlier driver said of the hardware."""
        self.earlier = {key: found for key, found in self.earlier.items() if found.code in _WHATEVER_IS_LOADED}
        kept = (*_WHILE_LOADING, *_WHATEVER_IS_LOADED)
        self.current = {key: found for key, found in self.current.items() if found.code in kept}
        self.cause = None

    def other(self, number: int, line: str) -> None:
        if not _WORTH_A_LOOK.search(line):
            return
        if _LOAD_EDGE.search(line):
            self.next_load()
        elif _BOOT.search(line):
            self.earlier, self.current, self.cause = {}, {}, None
        else:
            two = "was skipped since the" in line or "No kernel headers were found" in line
            joined = f"{line} {self.lines[number + 1]}" if two and number + 1 < len(self.lines) else line
            code, match = _first(_OTHERS, joined, re.Pattern.search)
            if match is None:
                return
            if code == "dkms_build_failed":
                made = re.search(r"/dkms/([^/\s]{1,60})/", " ".join(self.lines[number + 1 : number + 4]))
                if made and not made[1].startswith("nvidia"):
                    return
            details = _details(match)
            if details.get("module", "nvidia").startswith("nvidia"):
                self.add(code, _bus(match), joined[match.start() :], details)

    def message(self, index: int) -> int:
        """Read the message that begins in this NVRM line; how many lines it has."""
        body = self.messages[index][1]
        if re.match(r"loading NVIDIA\b", body):
            self.loaded()
            return 1
        xid = _XID.match(body)
        if xid:
            self.xid(xid, body)
            return 1
        window = [text for _number, text in self.messages[index : index + _MESSAGE_LINES]]
        code, match = _first(_NVRM, " ".join(window), re.Pattern.match)
        if match is None:
            if _GSP_CAUSE.match(body) and not self.recent_cause(index):
                self.cause = (index, body)
            return 1
        details, text = _details(match), match[0]
        if code == "gsp_firmware_failed" and not self.recent_cause(index):
            self.cause = (index, text)
        elif code == "rm_init_failed" and self.recent_cause(index):
            # The messages before it did not name the GPU.
            self.current.pop(("gsp_firmware_failed", None), None)
            code, text, self.cause = "gsp_firmware_failed", self.recent_cause(index), None
        elif code == "other_driver_owns_device":
            code = {"nouveau": "nouveau_owns_device"}.get(details["driver"], "bound_to_vfio" if "vfio" in details["driver"] else code)
        self.add(code, _bus(match), f"NVRM: {text}", details)
        if code == "no_gpu_found":
            self.next_load()
        lines = 1
        while match.end() > len(" ".join(window[:lines])):
            lines += 1
        return lines

    def recent_cause(self, index: int) -> str:
        return self.cause[1] if self.cause and index - self.cause[0] <= _GSP_CAUSE_MESSAGES else ""

    def xid(self, match: re.Match[str], body: str) -> None:
        number = int(match["xid"])
        code = {79: "fallen_off_bus", 119: "gsp_timeout", 154: "xid_154"}.get(number, "xid")
        details: dict[str, t.Any] = {"xid": number} if code == "xid" else {}
        if code == "xid_154":
            action = _RECOVERY.search(body)
            word = (action["to"] or action["now"]).strip() if action else None
            details["recovery_action"] = _RECOVERY_ACTIONS.get(word.lower(), word) if word else None
        self.add(code, _bus(match), f"NVRM: {body}", details)

    def result(self) -> list[Finding]:
        found = [*self.earlier.values(), *self.current.values()]
        explained = {finding.pci_bus_id for finding in found if finding.code in ("needs_open_module", "gsp_firmware_failed")}
        owned = sum("driver" in finding.details for finding in found)
        ignored = [finding for finding in found if finding.code == "branch_ignores_gpu"]
        if [finding.pci_bus_id is None for finding in ignored] == [True, False]:
            # The warning names the card, the line after it the address.
            found = [ignored[0]._replace(pci_bus_id=ignored[1].pci_bus_id) if finding is ignored[0] else finding for finding in found]
            found = [finding for finding in found if finding is not ignored[1]]
        return [
            finding
            for finding in found
            if not (finding.code == "rm_init_failed" and finding.pci_bus_id in explained)
            and not (finding.code == "nouveau_owns_device" and finding.details.get("devices", owned + 1) <= owned)
        ]


def log_findings(text: str) -> list[Finding]:
    """What the kernel log says about NVIDIA GPUs; also what modprobe, apt and dkms print. In the order of the last time it was said.

    text: dmesg or journalctl -k, with or without times, hosts, escapes and carriage returns; or only its NVRM lines.

    Codes, with their details:
    needs_open_module (pci_device_id), branch_ignores_gpu (name, branch: the last that drives it, driver_version), bound_to_vfio (driver),
    other_driver_owns_device (driver), nouveau_owns_device (driver; or devices: how many, when the message guesses: ask kernel_driver),
    no_gpu_found, api_mismatch (client_version, module_version), key_rejected (module; without it the kernel does not say which),
    gsp_firmware_failed (status, or firmware and error), rm_init_failed (status; only where nothing says why: firmware settings such
    as Above 4G Decoding, or hardware), fallen_off_bus (Xid 79), gsp_timeout (Xid 119), xid_154 (recovery_action, in the result's words),
    xid (xid: any other number), nvswitch_error (sxid, severity), iommu_page_fault (of any device: compare the address with the GPUs'),
    dkms_build_failed (kernel), dkms_headers_missing (kernel).

    "NVRM: loading NVIDIA ..." says that the module is loaded. What was said before that is left out, except what belongs to this
    load (a GPU that it ignores) or to no load (page faults, dkms). A load begins with nvidia-nvlink's first line, or after the
    end of the one before. A boot ends everything before it.
    Whether a GPU works now is for other sources to say: a failure that was overcome without a new load leaves no trace here.
    """
    log = _Log(text)
    log.read()
    return log.result()


def _message(line: str) -> str:
    return " ".join(line[line.rindex("NVRM:") + 5 :].split())


def _first(
    patterns: tuple[tuple[str, re.Pattern[str]], ...], text: str, how: t.Callable[[re.Pattern[str], str], re.Match[str] | None]
) -> tuple[str, re.Match[str] | None]:
    for code, pattern in patterns:
        match = how(pattern, text)
        if match:
            return code, match
    return "", None


def _bus(match: re.Match[str]) -> str | None:
    address = match.groupdict().get("bus")
    bus = cell.pci_bus_id(address) if address else None
    return bus if isinstance(bus, str) else None


def _details(match: re.Match[str]) -> dict[str, t.Any]:
    named = {key: value for key, value in match.groupdict().items() if key != "bus" and value is not None}
    return {key: int(value) if key in ("devices", "sxid", "error") else value for key, value in named.items()}
