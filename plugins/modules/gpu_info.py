#!/usr/bin/python
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
author: Firstlight maintainers (@firstlight)
version_added: 0.1.0
short_description: What NVIDIA GPUs a host has, in what state, and what is wrong
description:
  - Reads NVML, C(nvidia-smi), C(/proc), C(/sys) and C(/dev), best source first, and says for each value where it comes from.
  - Keeps three kinds of nothing apart, not supported, no permission and unknown. One value that cannot be read never loses the rest.
  - A host without GPU is an answer, not an error.
  - Changes nothing.
options:
  nvidia_smi_path:
    description:
      - The C(nvidia-smi) to ask. Without it the one in the search path, or of WSL2, is asked; with O(root) none is.
    type: path
  root:
    description:
      - Where C(proc), C(sys) and C(dev) of the host lie. Another directory than V(/) is a recorded host, which gives the same answer
        as the host that was recorded.
      - In a recording, C(dev/ls-l.txt) holds what C(ls -l) prints of the device nodes, and C(facts.json) what is not a file on the host.
      - NVML is not asked then, since it would talk to the machine that the module runs on.
    type: path
    default: /
  sources:
    description:
      - What to ask, the best first.
      - Of V(nvml), V(nvidia_smi_xml) and V(nvidia_smi_csv) the next one is asked only when those before it did not answer for every GPU.
    type: list
    elements: str
    choices: [nvml, nvidia_smi_xml, nvidia_smi_csv, proc, sysfs, lspci]
    default: [nvml, nvidia_smi_xml, nvidia_smi_csv, proc, sysfs, lspci]
  timeout_s:
    description: Seconds that one source may take, 1 to 3600. A driver that hangs does not hang the play.
    type: int
    default: 20
  venv:
    description:
      - A Python environment that has C(nvidia-ml-py), for when the module's own Python does not have it.
      - Only its file C(pynvml.py) is used.
    type: path
attributes:
  check_mode:
    description: Runs in check mode too, since it only reads.
    support: full
"""

EXAMPLES = r"""
- name: Look at the GPUs
  firstlight.sglang.gpu_info:
  register: gpus

- name: Stop when GPUs cannot be used
  vars:
    errors: "{{ gpus.problems | selectattr('severity', 'eq', 'error') }}"
  ansible.builtin.assert:
    that: errors | length == 0
    fail_msg: "{{ errors | map(attribute='found') | join('; ') }}"

- name: Use NVML through the engine's own environment
  firstlight.sglang.gpu_info:
    venv: /opt/sglang/instances/demo/current

- name: Look at a host that was recorded
  firstlight.sglang.gpu_info:
    root: /srv/recordings/gpu17
    nvidia_smi_path: /srv/recordings/gpu17/nvidia-smi
"""

RETURN = r"""
driver_version:
  description: Version of the loaded kernel module.
  returned: always
  type: str
driver_userland_version:
  description: Version of the driver's libraries.
  returned: always
  type: str
driver_flavour:
  description: V(open) or V(proprietary) kernel module.
  returned: always
  type: str
cuda_driver_version:
  description: Newest CUDA that the driver serves.
  returned: always
  type: str
virtualization:
  description: What C(systemd-detect-virt) says, V(none) on bare metal, V(wsl) under WSL2.
  returned: always
  type: str
container:
  description: Whether the host is a container.
  returned: always
  type: bool
secure_boot:
  description: V(enabled), V(disabled), or V(unsupported) (no EFI).
  returned: always
  type: str
iommu:
  description: V(translated), V(passthrough) or V(disabled).
  returned: always
  type: str
shm_total_mib:
  description: Size of C(/dev/shm), MiB.
  returned: always
  type: int
shm_free_mib:
  description: Free space of C(/dev/shm), MiB.
  returned: always
  type: int
memory_total_mib:
  description: Memory of the host, MiB.
  returned: always
  type: int
memory_available_mib:
  description: Memory that is available, MiB.
  returned: always
  type: int
device_nodes:
  description: >-
    C(/dev/nvidia*), each with C(path), C(kind) (V(character), V(file), V(directory), V(other)), C(major), C(minor), C(mode),
    C(accessible).
  returned: always
  type: list
  elements: dict
device_majors:
  description: Major numbers of the driver's devices in C(/proc/devices).
  returned: always
  type: dict
modules_loaded:
  description: Loaded kernel modules of NVIDIA, nouveau and vfio.
  returned: always
  type: list
  elements: str
nvswitches:
  description: NVSwitches, each with C(pci_bus_id), C(pci_device_id), C(kernel_driver).
  returned: always
  type: list
  elements: dict
fabric_state:
  description: The worst fabric state of all GPUs.
  returned: always
  type: str
gpus:
  description: The GPUs in the order of their index; those that the driver does not list at the end. Empty on a host without one.
  returned: always
  type: list
  elements: dict
  contains:
    index:
      description: Number that C(nvidia-smi) gives it, in PCI bus order; V(null) when the driver does not list it.
      type: int
    minor_number:
      description: Number of its device node C(/dev/nvidia<minor>), which is not its index.
      type: int
    uuid:
      description: UUID.
      type: str
    serial:
      description: Serial number, with leading zeros.
      type: str
    name:
      description: Name as NVIDIA prints it.
      type: str
    architecture:
      description: Architecture as NVIDIA names it; from the generation table when no source says it.
      type: str
    compute_capability:
      description: CUDA compute capability.
      type: str
    pci_bus_id:
      description: PCI address as C(nvidia-smi) prints it, domain with 8 digits, upper case.
      type: str
    pci_device_id:
      description: Vendor and device as C(lspci -n) prints them.
      type: str
    pci_subsystem_id:
      description: Subsystem vendor and device.
      type: str
    kernel_driver:
      description: Kernel driver that is bound to it; V(null) when none is.
      type: str
    health:
      description: >-
        V(ok), V(degraded) (usable, see RV(problems)), V(needs_reset), V(lost), V(no_driver), V(passed_through) (to a guest), or
        V(unknown).
      type: str
    usable:
      description: >-
        Whether a process can be started on it now. V(false) for a GPU whose MIG mode is on: its MIG devices are what can be used.
      type: bool
    memory_kind:
      description: V(framebuffer), V(unified) (the host's memory counts), or V(null) when it is not known.
      type: str
    memory_total_mib:
      description: Memory, MiB.
      type: int
    memory_used_mib:
      description: Memory in use, MiB.
      type: int
    memory_free_mib:
      description: Free memory, MiB.
      type: int
    memory_reserved_mib:
      description: Memory that the driver keeps, MiB. The parts need not add up to the MiB.
      type: int
    ecc_enabled:
      description: Whether ECC is on.
      type: bool
    ecc_enabled_pending:
      description: Whether ECC is on after the next reboot.
      type: bool
    ecc_errors_corrected_volatile:
      description: Corrected memory errors since the driver was loaded.
      type: int
    ecc_errors_uncorrected_volatile:
      description: Uncorrectable memory errors since the driver was loaded.
      type: int
    ecc_errors_corrected_aggregate:
      description: Corrected memory errors of its life.
      type: int
    ecc_errors_uncorrected_aggregate:
      description: Uncorrectable memory errors of its life.
      type: int
    remapped_rows_correctable:
      description: Rows remapped for correctable errors.
      type: int
    remapped_rows_uncorrectable:
      description: Rows remapped for uncorrectable errors.
      type: int
    remapped_rows_pending:
      description: Whether rows are remapped at the next reset.
      type: bool
    remapped_rows_failure:
      description: Whether a row could not be remapped.
      type: bool
    retired_pages_pending:
      description: Whether pages are retired at the next reboot (before Ampere).
      type: bool
    mig_enabled:
      description: Whether MIG mode is on.
      type: bool
    mig_enabled_pending:
      description: Whether MIG mode is on after the next reset.
      type: bool
    mig_devices:
      description: >-
        MIG devices, each with C(index), C(uuid), C(name), C(gpu_instance_id), C(compute_instance_id), C(memory_total_mib),
        C(memory_used_mib), C(memory_free_mib).
      type: list
      elements: dict
    mig_memory_total_mib:
      description: Memory of all GPU instances, MiB. Compute instances of one GPU instance share its memory, which is counted once.
      type: int
    power_draw_w:
      description: Power draw, W.
      type: float
    power_limit_w:
      description: Power limit in force, W.
      type: float
    power_limit_default_w:
      description: Default power limit, W.
      type: float
    power_limit_min_w:
      description: Lowest power limit that it takes, W.
      type: float
    power_limit_max_w:
      description: Highest power limit that it takes, W.
      type: float
    power_limit_settable:
      description: Whether a limit and a range are known and the range is not a point.
      type: bool
    temperature_c:
      description: Temperature, degrees Celsius.
      type: int
    temperature_memory_c:
      description: Temperature of the memory, degrees Celsius.
      type: int
    clock_sm_mhz:
      description: Clock of the multiprocessors, MHz.
      type: int
    clock_memory_mhz:
      description: Clock of the memory, MHz.
      type: int
    clock_sm_max_mhz:
      description: Highest clock of the multiprocessors, MHz.
      type: int
    clock_memory_max_mhz:
      description: Highest clock of the memory, MHz.
      type: int
    utilization_gpu_percent:
      description: Utilisation. It may be 100 on an idle GPU.
      type: int
    persistence_mode:
      description: Whether the driver stays initialised without clients.
      type: bool
    compute_mode:
      description: Compute mode.
      type: str
    performance_state:
      description: Performance state.
      type: str
    pcie_generation:
      description: PCIe generation of the link now.
      type: int
    pcie_generation_max:
      description: Highest PCIe generation of the link.
      type: int
    pcie_width:
      description: Lanes of the link now.
      type: int
    pcie_width_max:
      description: Highest number of lanes.
      type: int
    numa_node:
      description: NUMA node.
      type: int
    processes:
      description: >-
        Processes, one entry for a pid, each with C(pid), C(name), C(type) (V(C), V(G) or V(C+G)), C(memory_used_mib), and its
        systemd C(unit) where it is known.
      type: list
      elements: dict
    recovery_action:
      description: What the driver asks for, V(none), V(reset), V(reboot), V(drain_p2p), V(drain_and_reset), or another word as printed.
      type: str
    addressing_mode:
      description: Addressing mode, such as V(HMM) or V(ATS).
      type: str
    virtualization_mode:
      description: Virtualisation mode, such as V(None), V(Pass-Through) or V(VGPU).
      type: str
    driver_model:
      description: Driver model on Windows and WSL2.
      type: str
    license_status:
      description: Licence of a vGPU guest.
      type: str
    fabric_state:
      description: State of the NVLink fabric.
      type: str
    vbios_version:
      description: VBIOS version.
      type: str
    gsp_firmware_version:
      description: Version of the firmware of the GPU's system processor.
      type: str
    generation:
      description: >-
        What the generation table says, C(architecture), C(kernel_module_flavours), C(driver_branch_last) (V(null) when not ended),
        C(data_types); V(null) for a device that is not in it.
      type: dict
    reasons:
      description: >-
        For values that are V(null), V(not_supported), V(no_permission) or V(unknown). A value without an entry was not told by any
        source.
      type: dict
    sources:
      description: For each value, the source that gave it.
      type: dict
topology:
  description: How the GPUs are connected.
  returned: always
  type: dict
  contains:
    indices:
      description: Indices of the GPUs, in the order of rows and columns.
      type: list
      elements: int
    matrix:
      description: Rows of words as C(nvidia-smi topo -m) prints them, V(X) for itself. Empty when it is not known.
      type: list
      elements: list
    peer_access:
      description: >-
        Rows of words as C(nvidia-smi topo -p2p r) prints them, V(OK) where the GPU of the row can read the memory of that of the column.
        Empty when it is not known.
      type: list
      elements: list
    source:
      description: Where it comes from.
      type: str
  sample: {indices: [0, 1], matrix: [[X, NV4], [NV4, X]], peer_access: [[X, OK], [OK, X]], source: nvml}
gpu_groups:
  description: >-
    The best GPUs for tensor parallelism of 1, 2, 4 and 8, as far as there are so many alike. One model, one NUMA node where possible,
    then the closest links. Each has C(size), C(indices), C(uuids), C(name), C(link) (the worst between two of them), C(numa_nodes).
  returned: always
  type: list
  elements: dict
group_names:
  description: Names of groups for the host, by model and architecture.
  returned: always
  type: list
  elements: str
  sample: [gpu_rtx_a6000, gpu_arch_ampere]
problems:
  description: What is wrong, the worst first.
  returned: always
  type: list
  elements: dict
  contains:
    code:
      description: A word that does not change.
      type: str
    severity:
      description: V(error) (GPUs cannot be used), V(warning) or V(info).
      type: str
    gpu:
      description: PCI address of the GPU; where no source knows it, its UUID or C(index) and its index. V(null) when it is the host's.
      type: str
    found:
      description: What was found.
      type: str
    action:
      description: What to do.
      type: str
reasons:
  description: For values of the host that are V(null), why, as in RV(gpus[].reasons).
  returned: always
  type: dict
sources:
  description: For each value of the host, the source that gave it.
  returned: always
  type: dict
sources_asked:
  description: >-
    What was asked, in order, each with C(source), C(status) (V(ok), V(missing), V(failed), V(timed_out), V(skipped)) and C(message).
  returned: always
  type: list
  elements: dict
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import json
import os
import pickle
import re
import select
import shutil
import signal
import time
import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firstlight.sglang.plugins.module_utils import (
    _gpu_inventory,
    _gpu_nvml,
    _gpu_problems,
    _gpu_smi,
    _gpu_system,
    _gpu_topology,
)
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import Failure, Reading

SOURCES = ("nvml", "nvidia_smi_xml", "nvidia_smi_csv", "proc", "sysfs", "lspci")
# Where nvidia-smi is when the search path of a session does not have it: WSL2 (its documentation), and drivers installed in a prefix.
OTHER_PLACES = ("/usr/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi", "/opt/bin/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi")
OUTPUT_LIMIT_BYTES = 32 * 1024 * 1024


def wait_for(pid: int, deadline: float) -> int | None:
    """The exit status of a child, or None when it is not over in time; then its whole process group is killed.

    One that cannot even be killed, since it hangs in the driver, is left.
    """
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            break
        time.sleep(0.001)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for _attempt in range(20):
        if os.waitpid(pid, os.WNOHANG)[0]:
            break
        time.sleep(0.01)
    return None


def read_pipe(receiver: int, pid: int, deadline: float) -> bytes:
    """What comes out of a pipe until its end, until the child is over (a child of that may hold the pipe), or until it is too much."""
    data = bytearray()
    with os.fdopen(receiver, "rb", buffering=0) as stream:
        over = False
        while len(data) < OUTPUT_LIMIT_BYTES:
            wait_s = 0.0 if over else min(0.05, deadline - time.monotonic())
            if wait_s < 0:
                break
            if select.select([stream], [], [], wait_s)[0]:
                part = stream.read(1 << 16)
                if not part:
                    break
                data += part
            elif over:
                break
            else:
                # WNOWAIT leaves the child for wait_for.
                over = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return bytes(data)


def run(command: list[str], timeout_s: int) -> tuple[int | None, str]:
    """(exit status, stdout and stderr together) of a command; the status is None when it did not end in time.

    Not run_command, which waits for ever for a process that hangs in the driver.
    """
    deadline = time.monotonic() + timeout_s
    receiver, sender = os.pipe()
    with open(os.devnull, "rb") as nothing:
        actions = [(os.POSIX_SPAWN_DUP2, nothing.fileno(), 0), (os.POSIX_SPAWN_DUP2, sender, 1), (os.POSIX_SPAWN_DUP2, sender, 2)]
        try:
            environment = {**os.environ, "LC_ALL": "C", "LANG": "C"}
            # pylint: disable-next=ansible-bad-function # see above
            pid = os.posix_spawn(command[0], command, environment, file_actions=actions, setpgroup=0)
        except OSError as error:
            os.close(receiver)
            return 126, f"{command[0]}: {error.strerror}"
        finally:
            os.close(sender)
    data = read_pipe(receiver, pid, deadline)
    if len(data) >= OUTPUT_LIMIT_BYTES:
        wait_for(pid, 0)
        return 1, f"{command[0]} printed more than {OUTPUT_LIMIT_BYTES >> 20} MiB"
    rc = wait_for(pid, deadline)
    output = data.decode("utf-8", errors="replace")
    return rc, output if output.strip() or not rc else f"{command[0]} ended with status {rc} and said nothing"


def load_nvml(venv: str | None) -> t.Any:
    """The module pynvml of nvidia-ml-py. Raises ImportError, or whatever is wrong with it."""
    files = sorted(Path(venv).glob("lib/python3*/site-packages/pynvml.py")) if venv else []
    spec = importlib.util.spec_from_file_location("pynvml", files[-1]) if files else None
    if spec is None or spec.loader is None:
        return importlib.import_module("pynvml")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_nvml(venv: str | None) -> Reading:
    try:
        nvml = load_nvml(venv)
    except ImportError:
        return Reading("nvml", "missing", "", "nvidia-ml-py is not installed for this Python")
    except BaseException as error:  # somebody else's code, in a process of its own
        return Reading("nvml", "failed", "unknown_error", f"nvidia-ml-py cannot be loaded: {type(error).__name__}: {error}")
    return _gpu_nvml.read(nvml)


def ask_nvml(venv: str | None, timeout_s: int) -> Reading:
    """NVML in a child process: a call that hangs or crashes takes the child alone."""
    deadline = time.monotonic() + timeout_s
    receiver, sender = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            os.close(receiver)
            with os.fdopen(sender, "wb") as stream:
                pickle.dump(read_nvml(venv), stream)
        finally:
            os._exit(0)
    os.close(sender)
    data = read_pipe(receiver, pid, deadline)
    rc = wait_for(pid, deadline)
    if rc is None:
        return Reading("nvml", "timed_out", "timed_out", f"NVML did not answer in {timeout_s} s")
    if rc != 0 or not data:
        return Reading("nvml", "failed", "unknown_error", f"NVML ended the process that asked it ({rc})")
    return t.cast(Reading, pickle.loads(data))  # noqa: S301 - written by our own child a moment ago


class Host:
    """Files of the host, or of its recording, and the few things that are not files."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self.unreadable: list[str] = []
        self.facts: dict[str, t.Any] = {}
        if self.recorded:
            try:
                facts = json.loads(self.read("/facts.json") or "{}")
            except (ValueError, RecursionError) as error:
                facts = {}
                self.unreadable.append(f"{self.path('/facts.json')}: {error}")
            self.facts = facts if isinstance(facts, dict) else {}

    @property
    def recorded(self) -> bool:
        return bool(self.root)

    def path(self, path: str) -> str:
        return f"{self.root}{path}"

    def data(self, path: str, limit: int = 1 << 22) -> bytes | None:
        """Content of a file; None when it is not there or must not be read."""
        try:
            with open(self.path(path), "rb") as stream:
                return stream.read(limit)
        except PermissionError:
            self.unreadable.append(self.path(path))
        except OSError:
            pass
        return None

    def read(self, path: str, limit: int = 1 << 22) -> str:
        return (self.data(path, limit) or b"").decode("utf-8", errors="replace")

    def names(self, path: str) -> list[str] | None:
        """Names in a directory; None when it is not there or must not be read."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError:
            return None

    def link(self, path: str) -> str | None:
        """The last part of what a link points to; None when there is none."""
        try:
            return os.path.basename(os.readlink(self.path(path)))
        except OSError:
            return None

    def there(self, path: str) -> bool:
        return os.path.lexists(self.path(path))

    def glob(self, pattern: str) -> list[str]:
        return sorted(f"/{path.relative_to(self.root or '/')}" for path in Path(self.root or "/").glob(pattern.lstrip("/")))


def command_output(name: str, *arguments: str, timeout_s: int) -> str:
    """What a command prints; empty when it is not there."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin")
    return (run([path, *arguments], timeout_s)[1] or "").strip() if path else ""


PCI_FILES = ("vendor", "device", "class", "subsystem_vendor", "subsystem_device", "numa_node")
PCI_LINK_FILES = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")


def pci_devices(host: Host) -> dict[str, dict[str, str | None]] | None:
    """NVIDIA's PCI devices from sysfs; None when there is no sysfs."""
    addresses = host.names("/sys/bus/pci/devices")
    if addresses is None:
        return None
    devices: dict[str, dict[str, str | None]] = {}
    for address in addresses:
        place = f"/sys/bus/pci/devices/{address}"
        if host.read(f"{place}/vendor").strip() != "0x10de":
            continue
        names = (*PCI_FILES, *PCI_LINK_FILES)
        device: dict[str, str | None] = {name: host.read(f"{place}/{name}").strip() for name in names if host.there(f"{place}/{name}")}
        device["driver"] = host.link(f"{place}/driver")
        if host.there(f"{place}/physfn"):
            device["physfn"] = host.link(f"{place}/physfn")
        devices[address] = device
    return devices


def device_nodes(host: Host) -> list[dict[str, t.Any]]:
    if host.recorded and host.there("/dev/ls-l.txt"):
        return _gpu_system.listed_nodes(host.read("/dev/ls-l.txt"))
    nodes = []
    paths = [f"/dev/{name}" for name in host.names("/dev") or [] if name.startswith("nvidia")]
    for directory in ("/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels"):
        paths += [f"{directory}/{name}" for name in host.names(directory) or []]
    for path in paths:
        try:
            status = os.stat(host.path(path))
        except OSError:
            continue
        nodes.append(_gpu_system.device_node(path, status.st_mode, status.st_rdev, can_open(host.path(path))))
    return nodes


def can_open(path: str) -> bool:
    """Whether a device can be used. The two that cost nothing to open are opened: a container may forbid what the mode allows."""
    if os.path.basename(path) not in ("nvidiactl", "nvidia-uvm"):
        return os.access(path, os.R_OK | os.W_OK)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def userland_version(host: Host) -> str | None:
    """Version of the library that a program gets, from the name of its file."""
    for place in ("/usr/lib/*-linux-gnu*", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64", "/opt/lib64"):
        for path in host.glob(f"{place}/libnvidia-ml.so.1"):
            target = os.path.basename(os.path.realpath(host.path(path)))
            match = re.fullmatch(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)", target)
            if match:
                return match[1]
    return None


def shared_memory(host: Host) -> dict[str, t.Any]:
    if host.recorded:
        return {field: host.facts[field] for field in ("shm_total_mib", "shm_free_mib") if isinstance(host.facts.get(field), int)}
    try:
        status = os.statvfs("/dev/shm")  # noqa: S108 - asked for its size
    except OSError:
        return {}
    return {"shm_total_mib": status.f_blocks * status.f_frsize >> 20, "shm_free_mib": status.f_bavail * status.f_frsize >> 20}


def system_reading(host: Host, devices: dict[str, dict[str, str | None]] | None, timeout_s: int) -> Reading:
    """What the host is, from files."""
    detected = host.facts.get("systemd_detect_virt", "") if host.recorded else command_output("systemd-detect-virt", timeout_s=timeout_s)
    kind = _gpu_system.virtualization(
        detected=str(detected),
        environ=host.read("/proc/1/environ"),
        manager=host.read("/run/systemd/container"),
        dockerenv=host.there("/.dockerenv"),
        containerenv=host.there("/run/.containerenv"),
        dxg=host.there("/dev/dxg"),
        kernel=host.read("/proc/version"),
        hypervisor=bool(re.search(r"^flags\s*:.*\bhypervisor\b", host.read("/proc/cpuinfo", 1 << 14), re.MULTILINE)),
        sys_vendor=host.read("/sys/class/dmi/id/sys_vendor") or None,
        product_name=host.read("/sys/class/dmi/id/product_name") or None,
    )
    numbers = [host.link(f"/sys/bus/pci/devices/{address}/iommu_group") for address in devices or {}]
    groups = [f"/sys/kernel/iommu_groups/{number}/type" for number in numbers if number]
    variables = host.glob("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c")
    cells: dict[str, t.Any] = {
        **kind,
        **_gpu_system.host_memory(host.read("/proc/meminfo")),
        **shared_memory(host),
        "secure_boot": _gpu_system.secure_boot(
            efi=None if kind["container"] else host.there("/sys/firmware/efi"), variable=host.data(variables[0]) if variables else None
        ),
        "iommu": _gpu_system.iommu(
            units=host.names("/sys/class/iommu"), group_types=[host.read(path) for path in groups], cmdline=host.read("/proc/cmdline")
        ),
        "device_nodes": device_nodes(host),
        "device_majors": _gpu_system.device_majors(host.read("/proc/devices")),
        "modules_loaded": _gpu_system.modules_loaded(host.read("/proc/modules")),
    }
    library = userland_version(host)
    if library:
        cells["driver_userland_version"] = library
    return Reading("system", host=cells)


class Smi:
    """One nvidia-smi. After it did not answer once it is not asked again."""

    def __init__(self, path: str, timeout_s: int) -> None:
        self.path = path
        self.timeout_s = timeout_s
        self.hangs = False

    def ask(self, *arguments: str) -> tuple[int | None, str]:
        if self.hangs:
            return None, ""
        rc, output = run([self.path, *arguments], self.timeout_s)
        self.hangs = rc is None
        return rc, output

    def xml(self) -> Reading:
        rc, output = self.ask(*_gpu_smi.XML_ARGUMENTS)
        reading = _gpu_smi.parse_xml(output, rc)
        if any(not device["uuid"] for gpu in reading.gpus for device in gpu.get("mig_devices", [])):
            names = _gpu_smi.parse_list(self.ask(*_gpu_smi.LIST_ARGUMENTS)[1])
            reading = dataclasses.replace(reading, gpus=_gpu_smi.name_mig_devices(reading.gpus, names))
        return self.told(reading)

    def csv(self) -> Reading:
        rc, known = self.ask(*_gpu_smi.HELP_ARGUMENTS)
        fields = _gpu_smi.parse_query_fields(known)
        if rc is not None and not fields:
            return dataclasses.replace(_gpu_smi.parse_csv(known, rc), status="failed")
        rc, output = self.ask(*_gpu_smi.query_arguments(fields))
        reading = _gpu_smi.parse_csv(output, rc)
        if reading.status == "ok" and reading.gpus:
            apps = _gpu_smi.parse_apps(self.ask(*_gpu_smi.APPS_ARGUMENTS)[1])
            reading = dataclasses.replace(reading, gpus=[{**gpu, "processes": apps.get(gpu.get("uuid"), [])} for gpu in reading.gpus])
        return self.told(reading)

    def told(self, reading: Reading) -> Reading:
        if reading.status != "timed_out":
            return reading
        return dataclasses.replace(reading, message=f"{self.path} did not answer in {self.timeout_s} s")


def find_nvidia_smi() -> str | None:
    found = shutil.which("nvidia-smi")
    return found or next((path for path in OTHER_PLACES if os.access(path, os.X_OK)), None)


def complete(readings: list[Reading], on_bus: int) -> bool:
    """Whether a driver source has answered for every GPU that the driver serves."""
    return any(
        reading.source in _gpu_inventory.DRIVER_SOURCES
        and (reading.status, reading.error) == ("ok", "")
        and not reading.failures
        and len(reading.gpus) >= on_bus
        for reading in readings
    )


def gather(host: Host, sources: list[str], smi: Smi | None, venv: str | None, timeout_s: int) -> list[Reading]:
    """What the host itself says, then a reading of each source, in their order."""
    devices = pci_devices(host)
    on_bus = [] if devices is None else [gpu for gpu in _gpu_system.pci_reading("sysfs", devices).gpus if gpu["kernel_driver"] == "nvidia"]
    readings: list[Reading] = []
    for source in sources:
        if source in _gpu_inventory.DRIVER_SOURCES and complete(readings, len(on_bus)):
            readings.append(Reading(source, "skipped", message="a better source answered"))
        elif source == "nvml":
            skipped = Reading("nvml", "skipped", message="it would talk to the machine the module runs on, not to the recorded host")
            readings.append(skipped if host.recorded else ask_nvml(venv, timeout_s))
        elif source in ("nvidia_smi_xml", "nvidia_smi_csv"):
            if smi is None:
                readings.append(Reading(source, "missing", message="there is no nvidia-smi"))
            else:
                readings.append(smi.xml() if source == "nvidia_smi_xml" else smi.csv())
        elif source == "proc":
            cards = host.names("/proc/driver/nvidia/gpus") or []
            information = {card: host.read(f"/proc/driver/nvidia/gpus/{card}/information") for card in cards}
            readings.append(_gpu_system.proc_reading(host.read("/proc/driver/nvidia/version"), information))
        elif source == "sysfs":
            readings.append(
                Reading("sysfs", "missing", message="no /sys/bus/pci") if devices is None else _gpu_system.pci_reading("sysfs", devices)
            )
        elif devices is not None and "sysfs" in sources:
            readings.append(Reading("lspci", "skipped", message="sysfs answered"))
        else:
            text = host.read("/lspci.txt") if host.recorded else command_output("lspci", "-Dnnk", "-d", "10de:", timeout_s=timeout_s)
            status = "ok" if text or not host.recorded else "missing"
            readings.append(dataclasses.replace(_gpu_system.pci_reading("lspci", _gpu_system.lspci_devices(text)), status=status))
    return [system_reading(host, devices, timeout_s), *readings]


def kernel_log(host: Host, timeout_s: int) -> str:
    """Lines of the kernel log; read only when something is wrong."""
    if host.recorded:
        return host.read("/dmesg.txt")
    log = command_output("dmesg", timeout_s=timeout_s)
    return (
        log
        if "NVRM" in log
        else command_output("journalctl", "-k", "-b", "-o", "short-monotonic", "--no-pager", timeout_s=timeout_s) or log
    )


def look_closer(host: Host, result: dict[str, t.Any], readings: list[Reading], timeout_s: int) -> _gpu_problems.Evidence:
    """What explains a problem: the kernel log, and the modules on disk."""
    release = host.read("/proc/sys/kernel/osrelease").strip()
    modules = host.path(f"/lib/modules/{release}")
    files = None
    if release and os.path.isdir(modules):
        files = [
            f"/lib/modules/{release}/{os.path.relpath(os.path.join(place, name), modules)}"
            for place, _directories, names in os.walk(modules)
            for name in names
            if name.startswith("nvidia")
        ]
    # The file, not the name: Debian's modules are nvidia-current.ko and the like, and modinfo does not know them as nvidia.
    on_disk = _gpu_system.kernel_module(release, files, ()).files
    version = ""
    if not result["container"] and result["driver_version"]:
        if host.recorded:
            version = str(host.facts.get("module_version_on_disk") or "")
        elif on_disk:
            version = command_output("modinfo", "--field", "version", on_disk[0], timeout_s=timeout_s)
    evidence = _gpu_problems.Evidence(
        kernel_release=release,
        disk_version=version if re.fullmatch(r"\d+(\.\d+)+", version) else None,
        reboot_required=host.there("/run/reboot-required"),
    )
    if not _gpu_problems.needs_kernel_log(result, readings):
        return evidence
    builds = _gpu_system.dkms_tree(host.glob("/var/lib/dkms/nvidia*/*/*/*/module/*.ko*"))
    return dataclasses.replace(
        evidence,
        kernel_findings=_gpu_system.log_findings(kernel_log(host, timeout_s)),
        kernel_module=_gpu_system.kernel_module(release, files, builds),
    )


def fallen_off(result: dict[str, t.Any], evidence: _gpu_problems.Evidence) -> Reading | None:
    """GPUs that the kernel saw fall off the bus and that no driver source lists: what sysfs shows of them is what was."""
    silent = {gpu["pci_bus_id"] for gpu in result["gpus"] if gpu["health"] == "unknown"}
    failures = [
        Failure(None, finding.pci_bus_id, "lost", finding.text)
        for finding in evidence.kernel_findings
        if finding.code == "fallen_off_bus" and finding.pci_bus_id in silent
    ]
    return Reading("kernel_log", failures=failures) if failures else None


def add_units(host: Host, gpus: list[dict[str, t.Any]]) -> None:
    """The systemd unit of each process, where the process can be seen from here."""
    for gpu in gpus:
        for process in gpu["processes"]:
            place = f"/proc/{process['pid']}"
            name = os.path.basename((process["name"] or "").split(" ")[0])
            # In a container the number may be another process': the name must fit.
            same = bool(name) and name in host.read(f"{place}/cmdline", 4096)
            match = re.search(r"/([^/\n]+\.service)(?:/|\n|$)", host.read(f"{place}/cgroup", 65536)) if same else None
            process["unit"] = match[1] if match else None


class Links(t.NamedTuple):
    """How the GPUs that the driver lists are connected, and what nvidia-smi says of their NUMA nodes."""

    topology: _gpu_topology.Topology
    peer_access: list[list[str]]
    source: str | None
    nodes: Reading | None


def find_links(result: dict[str, t.Any], readings: list[Reading], smi: Smi | None) -> Links:
    indices = [gpu["index"] for gpu in result["gpus"] if gpu["index"] is not None and gpu["health"] in ("ok", "degraded")]
    nvml = next((reading for reading in readings if reading.source == "nvml" and reading.status == "ok"), None)
    if len(indices) < 2:
        return Links(_gpu_topology.Topology(indices, [["X"]] * len(indices), {}, {}, []), [], None, None)
    if nvml is not None and "topology_pairs" in nvml.host:
        matrix = _gpu_topology.matrix_from_pairs(indices, nvml.host["topology_pairs"])
        peers = _gpu_topology.peer_matrix(indices, nvml.host["peer_access_pairs"])
        return Links(_gpu_topology.Topology(indices, matrix, {}, {}, []), peers, "nvml", None)
    if smi is None:
        return Links(_gpu_topology.Topology(indices, [], {}, {}, []), [], None, None)
    topology = _gpu_topology.parse_topo(smi.ask("topo", "-m")[1])
    nodes = Reading("nvidia_smi_topo", gpus=[{"index": index, "numa_node": node} for index, node in topology.numa_nodes.items()])
    pairs = _gpu_topology.pairs_of(_gpu_topology.parse_p2p(smi.ask("topo", "-p2p", "r")[1])) if topology.matrix else {}
    return Links(topology, _gpu_topology.peer_matrix(topology.indices, pairs), "nvidia_smi_topo" if topology.matrix else None, nodes)


def look(host: Host, sources: list[str], smi: Smi | None, venv: str | None, timeout_s: int) -> dict[str, t.Any]:
    readings = gather(host, sources, smi, venv, timeout_s)
    result = _gpu_inventory.unite(readings)
    evidence = look_closer(host, result, readings, timeout_s)
    links = find_links(result, readings, smi)
    more = [reading for reading in (links.nodes, fallen_off(result, evidence)) if reading is not None]
    if more:
        result = _gpu_inventory.unite([*readings, *more])
    add_units(host, result["gpus"])
    topology = links.topology
    result["topology"] = {
        "indices": topology.indices,
        "matrix": topology.matrix,
        "peer_access": links.peer_access,
        "source": links.source,
    }
    result["gpu_groups"] = _gpu_topology.best_groups(result["gpus"], topology)
    result["problems"] = _gpu_problems.find(result, readings, evidence)
    result["sources_asked"] = [
        {"source": reading.source, "status": reading.status, "message": reading.message}
        for reading in readings
        if reading.source in SOURCES
    ]
    return result


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "nvidia_smi_path": {"type": "path"},
            "root": {"type": "path", "default": "/"},
            "sources": {"type": "list", "elements": "str", "choices": list(SOURCES), "default": list(SOURCES)},
            "timeout_s": {"type": "int", "default": 20},
            "venv": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params = module.params
    problems = []
    root, path, venv = os.path.realpath(params["root"]), params["nvidia_smi_path"], params["venv"]
    if not os.path.isdir(os.path.join(root, "proc")):
        problems.append(f"root: expected a directory with the proc of a host, found none in {params['root']}.")
    if path and not (os.path.isfile(path) and os.access(path, os.X_OK)):
        found = "a file that cannot be executed" if os.path.isfile(path) else "no such file"
        problems.append(
            f"nvidia_smi_path: expected an executable nvidia-smi, found {found}: {path}. Leave it out to take the one in the path."
        )
    if venv and not list(Path(venv).glob("lib/python3*/site-packages")):
        problems.append(f"venv: expected a Python environment (lib/python3.*/site-packages), found none in {venv}.")
    if not 1 <= params["timeout_s"] <= 3600:
        problems.append(f"timeout_s: expected 1 to 3600 seconds, found {params['timeout_s']}.")
    if not params["sources"]:
        problems.append("sources: expected at least one, found none.")
    if problems:
        module.fail_json(msg=" ".join(problems))
    host = Host(root)
    chosen = path or (None if host.recorded else find_nvidia_smi())
    smi = Smi(chosen, params["timeout_s"]) if chosen else None
    result = look(host, list(dict.fromkeys(params["sources"])), smi, venv, params["timeout_s"])
    for unreadable in host.unreadable:
        module.warn(f"{unreadable} could not be read")
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
