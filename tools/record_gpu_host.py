#!/usr/bin/env python3
# Copyright: (c) 2026, Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Record what a host says about its GPUs, so that gpu_info can be tested on it without the host (docs/design.md: a recorded host).

    python3 tools/record_gpu_host.py DIRECTORY

It runs on the host itself with nothing but Python's standard library, changes nothing there, and records NVML too when nvidia-ml-py is
importable (PYTHONPATH=nvidia_ml_py-...-none-any.whl is enough). Everything that tells one machine from another of its kind is replaced by
placeholders: UUIDs, serial numbers, host name, process names and ids, kernel addresses, parameters of the kernel's command line that do not
concern GPUs. Read the result all the same before it is published.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import typing as t
from pathlib import Path

UUID = re.compile(r"(GPU-|MIG-)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.IGNORECASE)
# Elements of `nvidia-smi -q -x` that hold an identifier.
IDENTIFIERS = re.compile(r"<(serial|pdi|gpu_fabric_guid|chassis_serial_number)>\s*([0-9A-Za-z]{6,})\s*</")
PROCESS = re.compile(r"<pid>(\d+)</pid>(.*?)<process_name>(.*?)</process_name>", re.DOTALL)
COMMAND_TIMEOUT_S = 120
FILE_MAX_BYTES = 1 << 20

# Only these words of /proc/cmdline are kept: what a GPU's driver, the IOMMU or PCI is told.
CMDLINE = re.compile(
    r"(?:\w+_)?iommu|nvidia\S*|nouveau\S*|nvme?\S*drm\S*|vfio\S*|pci\w*|(?:rd\.driver|modprobe|module)\S*|lockdown|mem_encrypt"
)
PROC_FILES = ("devices", "driver/nvidia/**/*", "meminfo", "modules", "version", "sys/kernel/osrelease", "sys/kernel/tainted")
SYS_FILES = (
    "class/dmi/id/sys_vendor",
    "class/dmi/id/product_name",
    "class/dmi/id/board_vendor",
    "class/dmi/id/bios_vendor",
    "class/dmi/id/chassis_vendor",
    "hypervisor/type",
    "firmware/efi/efivars/SecureBoot-*",
    "kernel/iommu_groups/*/type",
    "kernel/security/lockdown",
    "module/nvidia*/version",
    "module/nouveau/version",
    "devices/system/node/online",
    "devices/system/node/node*/cpulist",
)
LINKS = ("sys/class/iommu/*", "usr/lib/libnvidia-ml.so.1", "usr/lib/*/libnvidia-ml.so.1", "usr/lib64/libnvidia-ml.so.1")
MARKS = ("run/systemd/container", "run/.containerenv", "run/reboot-required", ".dockerenv")
PCI_FILES = (
    "vendor",
    "device",
    "subsystem_vendor",
    "subsystem_device",
    "class",
    "revision",
    "numa_node",
    "local_cpulist",
    "enable",
    "boot_vga",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
    "power_state",
    "reset_method",
    "driver_override",
    "modalias",
)
PCI_LINKS = ("driver", "iommu_group", "physfn")

SMI_COMMANDS = (
    ("-q", "-x"),
    ("-L",),
    ("--version",),
    ("--help-query-gpu",),
    ("--query-compute-apps=gpu_uuid,gpu_bus_id,pid,process_name,used_gpu_memory", "--format=csv"),
    ("topo", "-m"),
    ("topo", "-p2p", "r"),
    ("mig", "-lgi"),
    ("nvlink", "-s"),
)

# What is asked of NVML: more than plugins/module_utils/_gpu_nvml.py asks, so that its choices can be checked against the alternatives.
NVML_SYSTEM = (
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetCount",
)
MEMORY_V2 = 0x02000028
NVML_DEVICE: tuple[tuple[t.Any, ...], ...] = (
    ("nvmlDeviceGetAddressingMode",),
    ("nvmlDeviceGetArchitecture",),
    *(("nvmlDeviceGetClockInfo", clock) for clock in range(4)),
    ("nvmlDeviceGetComputeMode",),
    ("nvmlDeviceGetComputeRunningProcesses",),
    ("nvmlDeviceGetComputeRunningProcesses_v2",),
    ("nvmlDeviceGetComputeRunningProcesses_v3",),
    ("nvmlDeviceGetCudaComputeCapability",),
    ("nvmlDeviceGetCurrPcieLinkGeneration",),
    ("nvmlDeviceGetCurrPcieLinkWidth",),
    ("nvmlDeviceGetDriverModel",),
    ("nvmlDeviceGetEccMode",),
    ("nvmlDeviceGetEnforcedPowerLimit",),
    ("nvmlDeviceGetGpuMaxPcieLinkGeneration",),
    ("nvmlDeviceGetGraphicsRunningProcesses",),
    ("nvmlDeviceGetGraphicsRunningProcesses_v2",),
    ("nvmlDeviceGetGraphicsRunningProcesses_v3",),
    ("nvmlDeviceGetGridLicensableFeatures",),
    ("nvmlDeviceGetGspFirmwareVersion",),
    ("nvmlDeviceGetIndex",),
    *(("nvmlDeviceGetMaxClockInfo", clock) for clock in range(4)),
    ("nvmlDeviceGetMaxMigDeviceCount",),
    ("nvmlDeviceGetMaxPcieLinkGeneration",),
    ("nvmlDeviceGetMaxPcieLinkWidth",),
    ("nvmlDeviceGetMemoryAffinity", 16, 0),
    ("nvmlDeviceGetMemoryInfo",),
    ("nvmlDeviceGetMemoryInfo", MEMORY_V2),
    ("nvmlDeviceGetMigMode",),
    ("nvmlDeviceGetMinorNumber",),
    ("nvmlDeviceGetMPSComputeRunningProcesses",),
    ("nvmlDeviceGetMPSComputeRunningProcesses_v2",),
    ("nvmlDeviceGetMPSComputeRunningProcesses_v3",),
    ("nvmlDeviceGetName",),
    ("nvmlDeviceGetNumaNodeId",),
    ("nvmlDeviceGetPciInfo",),
    ("nvmlDeviceGetPcieLinkMaxSpeed",),
    ("nvmlDeviceGetPcieSpeed",),
    ("nvmlDeviceGetPerformanceState",),
    ("nvmlDeviceGetPersistenceMode",),
    ("nvmlDeviceGetPowerManagementDefaultLimit",),
    ("nvmlDeviceGetPowerManagementLimit",),
    ("nvmlDeviceGetPowerManagementLimitConstraints",),
    ("nvmlDeviceGetPowerUsage",),
    ("nvmlDeviceGetRemappedRows",),
    ("nvmlDeviceGetRetiredPagesPendingStatus",),
    ("nvmlDeviceGetSerial",),
    ("nvmlDeviceGetTemperature", 0),
    ("nvmlDeviceGetTemperatureV", 0),
    *(("nvmlDeviceGetTotalEccErrors", kind, counter) for kind in range(2) for counter in range(2)),
    ("nvmlDeviceGetUtilizationRates",),
    ("nvmlDeviceGetUUID",),
    ("nvmlDeviceGetVbiosVersion",),
    ("nvmlDeviceGetVirtualizationMode",),
)
NVML_MIG: tuple[tuple[t.Any, ...], ...] = (
    ("nvmlDeviceGetUUID",),
    ("nvmlDeviceGetName",),
    ("nvmlDeviceGetGpuInstanceId",),
    ("nvmlDeviceGetComputeInstanceId",),
    ("nvmlDeviceGetMemoryInfo",),
    ("nvmlDeviceGetMemoryInfo", MEMORY_V2),
)
NVML_LINK = ("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo")
# NVML_FI_DEV_*: ECC 1-6, retired pages 29-31, memory temperature 82, links 91, remapped rows 142-145, switch links 147, C2C 170,
# power 185-192, recovery 226-230.
NVML_FIELDS = (*range(1, 7), 29, 30, 31, 82, 91, *range(142, 146), 147, 170, *range(185, 193), 226, 227, 230)
FIELD_LINKS = 91
VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # nvmlValueType_t -> member of nvmlValue_t


class Scrubber:
    """Replaces identifiers by placeholders, the same one each time."""

    def __init__(self, host_names: t.Iterable[str]) -> None:
        self.uuids: dict[str, int] = {}
        self.processes: dict[int, int] = {}
        self.known = {name: "gpu-host" for name in host_names if len(name) >= 3 and not name.startswith("localhost")}

    def learn(self, xml: str) -> None:
        """Take note of the identifiers that have no form of their own; they are replaced wherever they stand."""
        for name, value in IDENTIFIERS.findall(xml):
            number = len(self.known) + 1
            self.known.setdefault(value, f"0x{number:016X}" if name == "pdi" else f"{number:0{len(value)}}")

    def process(self, pid: int) -> int:
        return 1000 + self.processes.setdefault(pid, len(self.processes) + 1)

    def process_name(self, pid: int) -> str:
        return f"process-{self.process(pid) - 1000}"

    def text(self, text: str) -> str:
        """The text without identifiers. Process ids are numbers like any other: they are replaced only where they stand as such."""
        text = UUID.sub(lambda match: f"{match[1] or ''}{self._uuid(match[2])}", text)
        for value in sorted(self.known, key=len, reverse=True):
            text = re.sub(rf"(?<![0-9A-Za-z]){re.escape(value)}(?![0-9A-Za-z])", self.known[value], text, flags=re.IGNORECASE)
        return PROCESS.sub(
            lambda match: (
                f"<pid>{self.process(int(match[1]))}</pid>{match[2]}<process_name>{self.process_name(int(match[1]))}</process_name>"
            ),
            text,
        )

    def apps(self, csv: str) -> str:
        """What --query-compute-apps printed: gpu_uuid, gpu_bus_id, pid, process_name, used_gpu_memory. A name may hold commas."""

        def replaced(match: re.Match[str]) -> str:
            return f"{match[1]}, {self.process(int(match[2]))}, {self.process_name(int(match[2]))}, {match[3]}"

        return re.sub(r"^([^,]*, [^,]*), (\d+), .*, ([^,]*)$", replaced, csv, flags=re.MULTILINE)

    def _uuid(self, uuid: str) -> str:
        if not uuid.strip("0-"):
            return uuid
        return f"00000000-0000-4000-8000-{self.uuids.setdefault(uuid.lower(), len(self.uuids) + 1):012d}"


class NvmlRecorder:
    """Asks pynvml and keeps every answer as tests/doubles/nvml_recording.py reads it."""

    def __init__(self, nvml: t.Any, scrubber: Scrubber) -> None:
        self.nvml = nvml
        self.scrubber = scrubber
        self.calls: list[dict[str, t.Any]] = []
        self.handles: dict[int, str] = {}

    def record(self) -> list[dict[str, t.Any]]:
        """All calls, or the only one when NVML does not start."""
        if self.ask("nvmlInit") is Failed:
            return self.calls
        for function in NVML_SYSTEM:
            answer = self.ask(function)
        gpus = [self.ask("nvmlDeviceGetHandleByIndex", index, name=f"gpu{index}") for index in range(0 if answer is Failed else answer)]
        for index, gpu in enumerate(gpus):
            if gpu is not Failed:
                self.gpu(index, gpu)
        for index, gpu in enumerate(gpus):
            for other in gpus[index + 1 :]:
                if Failed not in (gpu, other):
                    self.ask("nvmlDeviceGetTopologyCommonAncestor", gpu, other)
                    for pair in ((gpu, other), (other, gpu)):
                        self.ask("nvmlDeviceGetP2PStatus", *pair, 0)
        self.ask("nvmlShutdown")
        return self.calls

    def gpu(self, index: int, gpu: t.Any) -> None:
        for function, *arguments in NVML_DEVICE:
            answer = self.ask(function, gpu, *arguments)
            if function == "nvmlDeviceGetMaxMigDeviceCount" and answer is not Failed:
                for number in range(answer):
                    device = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, number, name=f"gpu{index}/mig{number}")
                    for question, *more in NVML_MIG if device is not Failed else ():
                        self.ask(question, device, *more)
        for link in range(self.fields(gpu)):
            for function in NVML_LINK:
                self.ask(function, gpu, link)
        if hasattr(self.nvml, "c_nvmlGpuFabricInfoV_t"):
            info = self.nvml.c_nvmlGpuFabricInfoV_t()
            self.ask("nvmlDeviceGetGpuFabricInfoV", gpu, ctypes.byref(info), output=info)

    def fields(self, gpu: t.Any) -> int:
        """Records the field values one by one; returns how many NVLinks there are."""
        links = 0
        try:
            values = self.nvml.nvmlDeviceGetFieldValues(gpu, list(NVML_FIELDS))
        except (self.nvml.NVMLError, AttributeError) as error:
            self.note("nvmlDeviceGetFieldValues", [gpu], error=error)
            return 0
        for identifier, value in zip(NVML_FIELDS, values):
            member = VALUE_MEMBERS[value.valueType] if value.valueType < len(VALUE_MEMBERS) else None
            number = getattr(value.value, member) if member and not value.nvmlReturn else None
            if identifier == FIELD_LINKS and number:
                links = int(number)
            self.note(
                "nvmlDeviceGetFieldValues",
                [gpu, identifier],
                value={"nvmlReturn": value.nvmlReturn, "valueType": value.valueType, "value": number},
            )
        return links

    def ask(self, function: str, *arguments: t.Any, name: str = "", output: t.Any = None) -> t.Any:
        """The answer, or Failed. name: of the handle that is returned. output: the structure that the function fills."""
        call = getattr(self.nvml, function, None)
        if call is None:
            self.calls.append({"function": function, "arguments": [], "absent": True})
            return Failed
        given = list(arguments) if output is None else list(arguments[:-1])
        try:
            value = call(*arguments)
        except Exception as error:  # whatever it is, it is what a caller would get
            self.note(function, given, error=error)
            return Failed
        if name:
            self.handles[address(value)] = name
        if function == "nvmlDeviceGetSerial":
            self.scrubber.learn(f"<serial>{value}</serial>")
        shown = {"handle": name} if name else self.plain(value if output is None else output)
        self.note(function, given, value=shown)
        for entry in value if function.partition("_v")[0].endswith("RunningProcesses") else ():
            self.ask("nvmlSystemGetProcessName", entry.pid)
        return value

    def note(self, function: str, arguments: list[t.Any], value: t.Any = None, error: Exception | None = None) -> None:
        shown: list[t.Any] = [self.handles[address(each)] if isinstance(each, ctypes._Pointer) else each for each in arguments]
        if function == "nvmlSystemGetProcessName":
            value = None if error else self.scrubber.process_name(shown[0])
            shown = [self.scrubber.process(shown[0])]
        call: dict[str, t.Any] = {"function": function, "arguments": shown}
        if error is None:
            call["value"] = value
        else:
            call.update(error=getattr(error, "value", -1), text=self.scrubber.text(str(error)))
        self.calls.append(call)

    def plain(self, value: t.Any) -> t.Any:
        """A value as JSON has it."""
        if isinstance(value, bytes):
            return {"bytes": self.scrubber.text(value.decode("utf-8", "replace"))}
        if isinstance(value, str):
            return self.scrubber.text(value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, (list, tuple, ctypes.Array)):
            return [self.plain(each) for each in value]
        if isinstance(value, (ctypes.Structure, ctypes.Union)):
            members = {field[0]: getattr(value, field[0]) for field in value._fields_}
        else:  # pynvml's "friendly objects"
            members = dict(vars(value))
        if "pid" in members:
            members["pid"] = self.scrubber.process(members["pid"])
        if "clusterUuid" in members:
            members["clusterUuid"] = [0] * len(members["clusterUuid"])
        return {name: self.plain(member) for name, member in members.items()}


class Failed:
    """Stands for no answer."""


def address(handle: t.Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def run(argv: t.Sequence[str]) -> dict[str, t.Any]:
    """What a command prints, in English: {argv (without the program), rc, stdout, stderr, seconds}. rc 124: it took too long."""
    started = time.monotonic()
    environment = {**os.environ, "LC_ALL": "C", "LANGUAGE": ""}
    try:
        done = subprocess.run(argv, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL, env=environment)
        rc, stdout, stderr = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        rc, stdout, stderr = 124, error.stdout or b"", error.stderr or b""
    return {
        "argv": list(argv[1:]),
        "rc": rc,
        "stdout": stdout.decode("utf-8", "replace"),
        "stderr": stderr.decode("utf-8", "replace"),
        "seconds": round(time.monotonic() - started, 3),
    }


def query_fields(help_text: str) -> list[str]:
    """The first name of every field that --help-query-gpu lists, in lines such as `"name" or "gpu_name"`."""
    return re.findall(r'^"([\w.]+)"(?: or "[\w.]+")*\s*$', help_text, re.MULTILINE)


def query_all(program: str, fields: list[str], form: str) -> dict[str, t.Any]:
    """The CSV of all fields; those that the help lists but the query refuses are left out one after the other."""
    while True:
        done = run((program, f"--query-gpu={','.join(fields)}", f"--format={form}"))
        refused = re.search(r'Field "([^"]+)" is not a valid field', done["stdout"] + done["stderr"])
        if refused is None or refused[1] not in fields:
            return done
        fields.remove(refused[1])


def record_smi(program: str, scrubber: Scrubber) -> list[dict[str, t.Any]]:
    runs = [run((program, *arguments)) for arguments in SMI_COMMANDS]
    fields = query_fields(next(each["stdout"] for each in runs if each["argv"] == ["--help-query-gpu"]))
    if fields:
        runs += [query_all(program, fields, form) for form in ("csv", "csv,noheader,nounits")]
    scrubber.learn(runs[0]["stdout"])
    for each in runs:
        for stream in ("stdout", "stderr"):
            each[stream] = scrubber.text(each[stream])
        if each["argv"][0].startswith("--query-compute-apps"):
            each["stdout"] = scrubber.apps(each["stdout"])
    return runs


class Tree:
    """Copies files and links below `source` (/) to the same place below `target`."""

    def __init__(self, source: Path, target: Path, scrubber: Scrubber) -> None:
        self.source = source
        self.target = target
        self.scrubber = scrubber

    def write(self, path: str, content: bytes) -> None:
        file = self.target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            file.write_text(self.scrubber.text(content.decode("utf-8")))
        except UnicodeDecodeError:
            file.write_bytes(content)

    def files(self, pattern: str) -> None:
        """Every readable file that matches, at most FILE_MAX_BYTES of it."""
        for path in sorted(self.source.glob(pattern)):
            if not path.is_file():
                continue
            try:
                with path.open("rb") as stream:
                    content = stream.read(FILE_MAX_BYTES)
            except OSError:
                continue
            self.write(str(path.relative_to(self.source)), content)

    def links(self, pattern: str) -> None:
        """Every link that matches, as a link: where it points to is not copied, and need not be there."""
        for path in sorted(self.source.glob(pattern)) if "*" in pattern else [self.source / pattern]:
            link = self.target / path.relative_to(self.source)
            if path.is_symlink():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(path.readlink())


def record_tree(source: Path, target: Path, scrubber: Scrubber) -> None:
    """proc/, sys/ and what tells a container."""
    tree = Tree(source, target, scrubber)
    for name in PROC_FILES:
        tree.files(f"proc/{name}")
    modules = target / "proc/modules"
    if modules.is_file():
        modules.write_text(re.sub(r"0x[0-9a-f]+", "0x0000000000000000", modules.read_text()))
    words = (source / "proc/cmdline").read_text().split() if (source / "proc/cmdline").is_file() else []
    tree.write("proc/cmdline", (" ".join(word for word in words if CMDLINE.fullmatch(word.partition("=")[0])) + "\n").encode())
    try:
        environment = (source / "proc/1/environ").read_bytes().split(b"\0")
    except OSError:
        environment = []
    tree.write("proc/1/environ", b"".join(each + b"\0" for each in environment if each.startswith(b"container=")))
    cpu = (source / "proc/cpuinfo").read_text().partition("\n\n")[0] if (source / "proc/cpuinfo").is_file() else ""
    tree.write("proc/cpuinfo", f"{cpu}\n".encode())  # the first processor is enough
    for pattern in (*(f"sys/{name}" for name in SYS_FILES), *MARKS):
        tree.files(pattern)
    for pattern in LINKS:
        tree.links(pattern)
    for vendor in sorted((source / "sys/bus/pci/devices").glob("*/vendor")):
        if vendor.read_text().strip() != "0x10de":
            continue
        device = vendor.parent.relative_to(source)
        for name in PCI_FILES:
            tree.files(f"{device}/{name}")
        for name in PCI_LINKS:
            tree.links(f"{device}/{name}")


def record_facts(target: Path, scrubber: Scrubber) -> None:
    """What is no file: the answers of a few commands, where they are there, and the size of /dev/shm."""

    def output(*argv: str) -> str:
        return run(argv)["stdout"] if shutil.which(argv[0]) else ""

    shm = os.statvfs("/dev/shm")  # noqa: S108  # asked for its size
    facts = {
        "systemd_detect_virt": output("systemd-detect-virt").strip(),
        "module_version_on_disk": output("modinfo", "--field", "version", "nvidia").strip(),
        "shm_total_mib": shm.f_blocks * shm.f_frsize >> 20,
        "shm_free_mib": shm.f_bavail * shm.f_frsize >> 20,
    }
    (target / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")
    (target / "lspci.txt").write_text(scrubber.text(output("lspci", "-Dnnk", "-d", "10de:")))
    lines = [
        line for line in output("dmesg").splitlines() if re.search(r"nvidia|NVRM|nouveau|vfio|Xid|IOMMU|secureboot", line, re.IGNORECASE)
    ]
    (target / "dmesg.txt").write_text(scrubber.text("".join(f"{line}\n" for line in lines)))


def record(target: Path, program: str | None) -> list[str]:
    """Records this host below `target`; returns one line for each part."""
    scrubber = Scrubber({platform.node(), platform.node().partition(".")[0]})
    lines = []
    target.mkdir(parents=True, exist_ok=True)
    if program:
        runs = record_smi(program, scrubber)
        (target / "nvidia-smi.json").write_text(json.dumps(runs, indent=1) + "\n")
        lines.append(f"nvidia-smi: {len(runs)} commands, exit codes {sorted({each['rc'] for each in runs})}")
    else:
        lines.append("nvidia-smi: not found")
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        lines.append(f"NVML: {error}")
    else:
        calls = NvmlRecorder(nvml, scrubber).record()
        text = ",\n".join(" " + json.dumps(call) for call in calls)
        (target / "nvml.json").write_text(f'{{"calls": [\n{text}\n]}}\n')
        lines.append(f"NVML: {len(calls)} calls, {sum('error' in call for call in calls)} of them with an error")
    record_tree(Path("/"), target, scrubber)
    record_facts(target, scrubber)
    nodes = [str(path) for pattern in ("nvidia*", "dxg", "vfio") for path in sorted(Path("/dev").glob(pattern))]
    listing = run(("ls", "-l", *nodes))["stdout"] if nodes else ""
    (target / "dev").mkdir(exist_ok=True)
    (target / "dev/ls-l.txt").write_text(scrubber.text(listing))
    lines.append(f"files: {sum(path.is_file() for path in target.rglob('*'))}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description="Record what this host says about its GPUs.")
    parser.add_argument("directory", type=Path, help="where to; made when it is not there")
    parser.add_argument("--nvidia-smi", default=shutil.which("nvidia-smi"), help="path of nvidia-smi; default: the one on PATH")
    arguments = parser.parse_args()
    for line in record(arguments.directory, arguments.nvidia_smi):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
