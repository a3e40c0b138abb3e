#!/usr/bin/env python3
# Copyright: (c) 2026, Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Try the GPU inventory on the machine that this runs on: record it, compare its sources, time them.

    python3 tools/gpu_machine.py DIRECTORY [--nvidia-ml-py WHEEL] [--archive FILE.tar.gz]

Needs a real GPU, nvidia-smi, and nvidia-ml-py (importable, or as a wheel); no Ansible. Into DIRECTORY go

    idle/, busy/    the recorded host (tools/record_gpu_host.py), at rest and while a process holds memory on GPU 0
    report.json     everything that is printed

What is compared: every field that NVML and `nvidia-smi -q -x` both speak of. What moves may differ as far as TOLERANCES says; of the fields
in ANY only the kind of the value is compared. What is timed, in turns, in one process: one plain `nvidia-smi -q -x`; the reading of each
source; and everything that gpu_info does, by the one and by the other. The exit code is 1 when something differs or takes longer than its
limit.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import types
import typing as t
import zipfile
from pathlib import Path

import record_gpu_host

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = "ansible_collections.firstlight.sglang.plugins"
ROUNDS = 20
LIMITS = {"gpu_info by NVML": 0.5, "gpu_info by nvidia-smi": 1.2}  # medians, as parts of the plain command's
# A GPU at rest wakes when it is asked: 82 to 131 W and 345 to 1980 MHz were seen within a second.
TOLERANCES = {
    "memory_used_mib": 64,
    "memory_free_mib": 64,
    "power_draw_w": 100,
    "temperature_c": 5,
    "temperature_memory_c": 5,
}
ANY = {"clock_sm_mhz", "clock_memory_mhz", "utilization_gpu_percent", "performance_state"}
# Holds memory on GPU 0 until its input ends; through the CUDA driver, so that nothing has to be installed.
HOLD = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        sys.exit(f"{name}: error {code}")
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[1]) << 20))
print("ready", flush=True)
sys.stdin.read()
"""


def is_nothing(value: t.Any) -> bool:
    return hasattr(value, "reason")


def same(field: str, one: t.Any, other: t.Any) -> bool:
    """Whether two sources agree on a field. Two kinds of nothing are the same: each source has its own words for it."""
    if is_nothing(one) or is_nothing(other):
        return is_nothing(one) and is_nothing(other)
    if field in ANY:
        return type(one) is type(other)
    if field in TOLERANCES and isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other) <= TOLERANCES[field]
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same_entry(mine, yours) for mine, yours in zip(one, other))
    return bool(one == other)


def same_entry(one: dict[str, t.Any], other: dict[str, t.Any]) -> bool:
    """Entries of lists (processes, MIG devices), on the keys that both have."""
    return all(same(key, one[key], other[key]) for key in one.keys() & other.keys())


def differences(one: t.Any, other: t.Any) -> list[str]:
    """One line for every field that two readings both have and do not agree on."""
    lines = []
    places = [("host", one.host, other.host)]
    others = {gpu["index"]: gpu for gpu in other.gpus}
    places += [(f"GPU {gpu['index']}", gpu, others[gpu["index"]]) for gpu in one.gpus if gpu["index"] in others]
    for place, mine, yours in places:
        lines += [
            f"{place}: {field}: {one.source} {mine[field]!r}, {other.source} {yours[field]!r}"
            for field in sorted(mine.keys() & yours.keys())
            if not same(field, mine[field], yours[field])
        ]
    if {gpu["index"] for gpu in one.gpus} != set(others):
        lines.append(f"GPUs: {one.source} {[gpu['index'] for gpu in one.gpus]}, {other.source} {sorted(others)}")
    return lines


def one_sided(one: t.Any, other: t.Any) -> list[str]:
    """Fields of the first GPU that only one of two readings has."""
    mine, yours = (set(reading.gpus[0]) if reading.gpus else set() for reading in (one, other))
    return [
        f"only {reading.source}: {', '.join(sorted(fields)) or '-'}" for reading, fields in ((one, mine - yours), (other, yours - mine))
    ]


class Machine:
    """This machine, asked in the two ways."""

    def __init__(self, nvidia_smi: str) -> None:
        self.nvidia_smi = nvidia_smi
        if importlib.util.find_spec("ansible") is None:
            # gpu_info imports one class of Ansible, for its main(), which is not called here.
            for name in ("ansible", "ansible.module_utils", "ansible.module_utils.basic"):
                sys.modules[name] = types.ModuleType(name)
            sys.modules["ansible.module_utils.basic"].AnsibleModule = object  # type: ignore[attr-defined]
        self.module = importlib.import_module(f"{PLUGINS}.modules.gpu_info")
        self.smi = importlib.import_module(f"{PLUGINS}.module_utils._gpu_smi")
        self.core = importlib.import_module(f"{PLUGINS}.module_utils._gpu_nvml")
        self.pynvml = importlib.import_module("pynvml")

    def plain(self) -> str:
        return subprocess.run([self.nvidia_smi, "-q", "-x"], capture_output=True, check=True).stdout.decode("utf-8", "replace")

    def by_nvml(self) -> t.Any:
        return self.core.read(self.pynvml)

    def by_smi(self) -> t.Any:
        return self.smi.parse_xml(self.plain())

    def gpu_info(self, source: str) -> dict[str, t.Any]:
        """What the module returns with this source and the files of the host."""
        smi = self.module.Smi(self.nvidia_smi, 60)
        result = self.module.look(self.module.Host("/"), [source, "proc", "sysfs", "lspci"], smi, None, 60)
        if any(asked["source"] == source and asked["status"] != "ok" for asked in result["sources_asked"]):
            raise RuntimeError(f"gpu_info: {result['sources_asked']}")
        return t.cast("dict[str, t.Any]", result)

    def compare(self, say: t.Callable[[str], None]) -> bool:
        """Prints what differs; True when nothing does."""
        smi, nvml = self.by_smi(), self.by_nvml()
        lines = differences(nvml, smi)
        shared = sorted(set(nvml.gpus[0]) & set(smi.gpus[0])) if nvml.gpus and smi.gpus else []
        say(f"{len(shared)} fields of a GPU compared, {len(lines)} differences")
        for line in [*lines, *one_sided(nvml, smi)]:
            say(f"  {line}")
        return bool(shared) and not lines

    def time(self, say: t.Callable[[str], None]) -> bool:
        """Prints medians; True when the limits are kept."""
        ways: dict[str, t.Callable[[], t.Any]] = {
            "plain": self.plain,
            "NVML read": self.by_nvml,
            "nvidia-smi read": self.by_smi,
            "gpu_info by NVML": lambda: self.gpu_info("nvml"),
            "gpu_info by nvidia-smi": lambda: self.gpu_info("nvidia_smi_xml"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for way in ways.values():
            way()
        for _ in range(ROUNDS):
            for name, way in ways.items():
                started = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - started)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        kept = True
        for name, median in medians.items():
            ratio = median / medians["plain"]
            limit = LIMITS.get(name)
            kept = kept and (limit is None or ratio <= limit)
            bounds = f"{1000 * min(seconds[name]):.1f} to {1000 * max(seconds[name]):.1f}"
            say(
                f"{name}: median {1000 * median:.1f} ms ({bounds}) of {ROUNDS}, {ratio:.2f} of plain"
                + (f", limit {limit}" if limit else "")
            )
        return kept

    def cold(self, say: t.Callable[[str], None]) -> None:
        """NVML in a process that has not used it yet, from the import of nvidia-ml-py on."""
        program = (
            f"import sys, time\nsys.path[:0] = {sys.path!r}\nfrom {PLUGINS}.module_utils import _gpu_nvml\nstarted = time.perf_counter()\n"
            "import pynvml\n_gpu_nvml.read(pynvml)\nprint(time.perf_counter() - started)"
        )
        runs = [float(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout) for _ in range(ROUNDS // 2)]
        say(f"nvml in a fresh process, with the import: median {1000 * statistics.median(runs):.1f} ms of {len(runs)}")

    def profile(self, say: t.Callable[[str], None]) -> None:
        """The dearest functions of one reading, and the dearest field values, each asked for alone."""
        spent: collections.Counter[str] = collections.Counter()
        count: collections.Counter[str] = collections.Counter()
        nvml = self.pynvml

        class Timed:
            def __getattr__(self, name: str) -> t.Any:
                value = getattr(nvml, name)
                return value if not name.startswith("nvml") or not callable(value) else timed(name, value)

        def timed(name: str, function: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
            def call(*arguments: t.Any) -> t.Any:
                started = time.perf_counter()
                try:
                    return function(*arguments)
                finally:
                    spent[name] += round(1e6 * (time.perf_counter() - started))
                    count[name] += 1

            return call

        nvml.nvmlInit()  # so that starting and stopping inside costs nothing: it has its own line
        self.core.read(Timed())
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        for identifier in self.core.FIELDS:
            timed(f"field {identifier}", nvml.nvmlDeviceGetFieldValues)(handle, [identifier])
        nvml.nvmlShutdown()
        timed("first nvmlInit", nvml.nvmlInit)()
        timed("last nvmlShutdown", nvml.nvmlShutdown)()
        for name, microseconds in spent.most_common(25):
            say(f"  {microseconds / 1000:8.3f} ms  {count[name]:4} x {name}")


@contextlib.contextmanager
def held(mib: int) -> t.Iterator[int]:
    """A process that holds this much memory on GPU 0; its id."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(mib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if t.cast("t.IO[str]", process.stdout).readline().strip() != "ready":
            raise RuntimeError("the process that should hold memory did not start")
        try:
            yield process.pid
        finally:
            process.communicate("")


def main() -> int:
    parser = argparse.ArgumentParser(description="Record this machine's GPUs, compare NVML with nvidia-smi, time both.")
    parser.add_argument("directory", type=Path, help="where the records and report.json go")
    parser.add_argument("--nvidia-smi", default=shutil.which("nvidia-smi"), help="path of nvidia-smi; default: the one on PATH")
    parser.add_argument("--nvidia-ml-py", type=Path, help="a wheel of nvidia-ml-py, when it is not importable")
    parser.add_argument("--hold-mib", type=int, default=1024, help="memory that a process holds for the second half; 0: leave that out")
    parser.add_argument("--archive", type=Path, help="also pack the directory into this .tar.gz")
    arguments = parser.parse_args()
    if not arguments.nvidia_smi:
        parser.error("expected nvidia-smi on PATH, found none: name it with --nvidia-smi")
    sys.path.insert(0, str(ROOT / "collections"))
    said: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        said.append(line)

    with tempfile.TemporaryDirectory() as scratch:
        if arguments.nvidia_ml_py:
            zipfile.ZipFile(arguments.nvidia_ml_py).extract("pynvml.py", scratch)  # unpacked, Python keeps it compiled
            sys.path.insert(0, scratch)
        machine = Machine(arguments.nvidia_smi)
        good = True

        def record(name: str) -> None:
            say(f"== record: {name}")
            for line in record_gpu_host.record(arguments.directory / name, arguments.nvidia_smi):
                say(f"  {line}")

        record("idle")
        say("== compare at rest")
        good &= machine.compare(say)
        say("== time")
        good &= machine.time(say)
        machine.cold(say)
        say("== where NVML's time goes")
        machine.profile(say)
        if arguments.hold_mib:
            try:
                with held(arguments.hold_mib) as pid:
                    record("busy")
                    say(f"== compare while process {pid} holds {arguments.hold_mib} MiB")
                    good &= machine.compare(say)
                    say(f"  nvml: {[gpu['processes'] for gpu in machine.by_nvml().gpus]!r}")
                    say(f"  nvidia-smi: {record_gpu_host.PROCESS.findall(machine.plain())!r}")
            except RuntimeError as error:
                say(f"  not done: {error}")
                good = False
        say("== good" if good else "== NOT good")
    (arguments.directory / "report.json").write_text(json.dumps({"good": good, "lines": said}, indent=1) + "\n")
    if arguments.archive:
        with tarfile.open(arguments.archive, "w:gz") as archive:
            archive.add(arguments.directory, arcname=arguments.directory.name)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
