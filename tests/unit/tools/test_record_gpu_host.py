# Copyright: (c) 2026, Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


tool = load(ROOT / "tools/record_gpu_host.py")
double = load(ROOT / "tests/doubles/nvml_recording.py")

UUIDS = ("GPU-12345678-9abc-4def-8123-456789abcdef", "MIG-abcdef01-9abc-4def-8123-456789abcdef")
XML = f"""<nvidia_smi_log>
<uuid>{UUIDS[0]}</uuid><mig_device><uuid>{UUIDS[1]}</uuid></mig_device>
<serial>1654321098765</serial><pdi>0xA1B2C3D4E5F60718</pdi><gpu_fabric_guid>N/A</gpu_fabric_guid>
<process_info><pid>4155</pid><type>C</type><process_name>/home/alice/serve --key s3cret</process_name></process_info>
</nvidia_smi_log>"""


def test_identifiers_become_placeholders_and_the_same_ones_each_time():
    scrubber = tool.Scrubber({"node17.example.org", "node17"})
    scrubber.learn(XML)
    text = scrubber.text(
        XML + "\nserial 1654321098765 on NODE17, gpu-12345678-9abc-4def-8123-456789abcdef of node17.example.org, node170\n"
    )
    for identifier in ("1654321098765", "A1B2C3D4", "9abc-4def", "4155", "alice", "s3cret", "NODE17,"):
        assert identifier not in text
    assert "<uuid>GPU-00000000-0000-4000-8000-000000000001</uuid>" in text
    assert "<uuid>MIG-00000000-0000-4000-8000-000000000002</uuid>" in text
    assert "gpu-00000000-0000-4000-8000-000000000001 of gpu-host, node170" in text
    assert "<pid>1001</pid><type>C</type><process_name>process-1</process_name>" in text
    assert "<gpu_fabric_guid>N/A<" in text
    assert scrubber.text(text) != XML


def test_processes_in_the_csv_are_the_same_as_in_the_xml():
    scrubber = tool.Scrubber(())
    scrubber.text(XML)
    csv = "gpu_uuid, gpu_bus_id, pid, process_name, used_gpu_memory [MiB]\nGPU-1, 00000000:01:00.0, 4155, a, b --key x, 512 MiB\n"
    assert scrubber.apps(csv).splitlines()[1] == "GPU-1, 00000000:01:00.0, 1001, process-1, 512 MiB"


def test_every_field_of_the_help_is_asked_for_once():
    fields = tool.query_fields((ROOT / "tests/fixtures/gpu/smi_h200_help_query.txt").read_text())
    assert len(fields) == len(set(fields)) > 200
    assert {"pci.bus_id", "gpu_recovery_action", "encoder.stats.sessionCount"} <= set(fields)
    assert not [field for field in fields if field[0].isdigit()]


FAKE_SMI = """#!/bin/sh
case "$1" in
--help-query-gpu) printf '"name"\\nwords\\n"count"\\n"uuid" or "gpu_uuid"\\n' ;;
--query-gpu=*count*) echo 'Field "count" is not a valid field to query.'; exit 2 ;;
-q) echo '<serial>1654321098765</serial>' ;;
--query-gpu=*) echo "$1 $2 of 1654321098765" ;;
esac
"""


def test_a_field_that_the_query_refuses_is_left_out(tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(FAKE_SMI)
    program.chmod(0o755)
    runs = tool.record_smi(str(program), tool.Scrubber(()))
    queries = [run for run in runs if run["argv"][0].startswith("--query-gpu=")]
    assert [run["argv"] for run in queries] == [["--query-gpu=name,uuid", f"--format={form}"] for form in ("csv", "csv,noheader,nounits")]
    assert queries[0]["stdout"] == "--query-gpu=name,uuid --format=csv of 0000000000001\n"
    assert (queries[0]["rc"], set(queries[0])) == (0, {"argv", "rc", "stdout", "stderr", "seconds"})


@pytest.fixture
def host(tmp_path):
    """A small host, with what must not be recorded."""
    files = {
        "proc/devices": "195 nvidia\n",
        "proc/driver/nvidia/version": "NVRM version: 580\n",
        "proc/driver/nvidia/gpus/0000:01:00.0/information": f"GPU UUID: {UUIDS[0]}\n",
        "proc/driver/nvidia-caps/mig-minors": "many\n",
        "proc/modules": "nvidia 1 0 - Live 0xffffffffc0a00000 (O)\n",
        "proc/cmdline": "root=UUID=12345678-9abc-4def-8123-456789abcdef password=x intel_iommu=on iommu=pt nvidia-drm.modeset=1 quiet\n",
        "proc/1/environ": "TOKEN=s3cret\0container=lxc\0",
        "proc/cpuinfo": "processor: 0\nflags: hypervisor\n\nprocessor: 1\n",
        "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
        "sys/bus/pci/devices/0000:01:00.0/device": "0x2335\n",
        "sys/bus/pci/devices/0000:01:00.0/serial_number": "a1-b2\n",
        "sys/bus/pci/devices/0000:02:00.0/vendor": "0x8086\n",
        "sys/bus/pci/devices/0000:02:00.0/device": "0x1234\n",
    }
    for name, content in files.items():
        path = tmp_path / "host" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (tmp_path / "host/sys/bus/pci/devices/0000:01:00.0/driver").symlink_to("../../../bus/pci/drivers/nvidia")
    return tmp_path / "host"


def test_the_tree_holds_what_concerns_gpus_and_nothing_else(host, tmp_path):
    target = tmp_path / "record"
    tool.record_tree(host, target, tool.Scrubber(()))
    found = {str(path.relative_to(target)): path.read_text() for path in target.rglob("*") if path.is_file()}
    assert found == {
        "proc/devices": "195 nvidia\n",
        "proc/driver/nvidia/version": "NVRM version: 580\n",
        "proc/driver/nvidia/gpus/0000:01:00.0/information": "GPU UUID: GPU-00000000-0000-4000-8000-000000000001\n",
        "proc/modules": "nvidia 1 0 - Live 0x0000000000000000 (O)\n",
        "proc/cmdline": "intel_iommu=on iommu=pt nvidia-drm.modeset=1\n",
        "proc/1/environ": "container=lxc\0",
        "proc/cpuinfo": "processor: 0\nflags: hypervisor\n",
        "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
        "sys/bus/pci/devices/0000:01:00.0/device": "0x2335\n",
    }
    assert str((target / "sys/bus/pci/devices/0000:01:00.0/driver").readlink()) == "../../../bus/pci/drivers/nvidia"


class Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("name", ctypes.c_char * 8))


class FabricInfo(ctypes.Structure):
    _fields_ = (("state", ctypes.c_uint), ("clusterUuid", ctypes.c_uint8 * 2))


class Value(ctypes.Union):
    _fields_ = (("dVal", ctypes.c_double), ("uiVal", ctypes.c_uint), ("ullVal", ctypes.c_ulonglong))


class FieldValue(ctypes.Structure):
    _fields_ = (("nvmlReturn", ctypes.c_uint), ("valueType", ctypes.c_uint), ("value", Value))


def fails(code, text=""):
    def call(*arguments):
        raise double.NVMLError(code, text)

    return call


def field_values(_handle, identifiers):
    return [FieldValue(3 if identifier == 31 else 0, 3, Value(ullVal=2**40 + identifier)) for identifier in identifiers]


def fill(_handle, reference):
    reference._obj.state = 3
    reference._obj.clusterUuid[0] = 9


def fake_nvml(**changes):
    """Answers as pynvml does, with handles and structures of ctypes; it lacks every other function. Three GPUs, the last one lost."""
    gpus = [ctypes.pointer(ctypes.c_int(number)) for number in range(2)]
    answers = {
        "NVMLError": double.NVMLError,
        "c_nvmlGpuFabricInfoV_t": FabricInfo,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlDeviceGetHandleByIndex": lambda index: gpus[index] if index < 2 else fails(15)(),
        "nvmlDeviceGetUUID": lambda _handle: UUIDS[0],
        "nvmlDeviceGetSerial": lambda _handle: "1654321098765",
        "nvmlDeviceGetGspFirmwareVersion": lambda _handle: b"580.159.04",
        "nvmlDeviceGetMemoryInfo": lambda _handle, _version=None: Memory(total=2**40, name=b"x"),
        "nvmlDeviceGetMigMode": fails(3),
        "nvmlDeviceGetComputeRunningProcesses_v3": lambda _handle: [types.SimpleNamespace(pid=4155, usedGpuMemory=None)],
        "nvmlSystemGetProcessName": lambda _pid: "/home/alice/serve",
        "nvmlDeviceGetFieldValues": field_values,
        "nvmlDeviceGetGpuFabricInfoV": fill,
        "nvmlDeviceGetTopologyCommonAncestor": lambda one, other: 40 if [one, other] == gpus else None,
    }
    return types.SimpleNamespace(**{**answers, **changes})


def test_nvml_is_recorded_so_that_the_double_replays_it(monkeypatch):
    monkeypatch.setattr(tool, "FIELD_LINKS", 0)  # this one has no links
    calls = json.loads(json.dumps(tool.NvmlRecorder(fake_nvml(), tool.Scrubber(())).record()))
    text = json.dumps(calls)
    for identifier in ("9abc-4def", "1654321098765", "4155", "alice"):
        assert identifier not in text
    nvml = double.NvmlRecording(calls)
    gpu = nvml.nvmlDeviceGetHandleByIndex(1)
    assert nvml.nvmlDeviceGetUUID(gpu) == "GPU-00000000-0000-4000-8000-000000000001"
    assert nvml.nvmlDeviceGetSerial(gpu) == "0000000000001"
    assert nvml.nvmlDeviceGetGspFirmwareVersion(gpu) == b"580.159.04"
    assert nvml.nvmlDeviceGetMemoryInfo(gpu, tool.MEMORY_V2).total == 2**40
    assert [entry.pid for entry in nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu)] == [1001]
    assert nvml.nvmlSystemGetProcessName(1001) == "process-1"
    assert nvml.nvmlDeviceGetTopologyCommonAncestor(nvml.nvmlDeviceGetHandleByIndex(0), gpu) == 40
    first, second = nvml.nvmlDeviceGetFieldValues(gpu, [31, 82])
    assert (first.nvmlReturn, second.nvmlReturn, second.value.ullVal) == (3, 0, 2**40 + 82)
    info = nvml.c_nvmlGpuFabricInfoV_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(info))
    assert info.state == 3
    with pytest.raises(double.NVMLError, match="GPU is lost"):
        nvml.nvmlDeviceGetHandleByIndex(2)
    with pytest.raises(double.NVMLError, match="Not Supported"):
        nvml.nvmlDeviceGetMigMode(gpu)
    with pytest.raises(AttributeError):
        nvml.nvmlDeviceGetPowerUsage(gpu)
    assert nvml.misses == []
    assert [call["value"]["clusterUuid"] for call in calls if call["function"] == "nvmlDeviceGetGpuFabricInfoV"] == [[0, 0]] * 2


def test_nvml_that_does_not_start_is_recorded_too():
    nvml = fake_nvml(nvmlInit=fails(18, "Driver/library version mismatch"))
    assert tool.NvmlRecorder(nvml, tool.Scrubber(())).record() == [
        {"function": "nvmlInit", "arguments": [], "error": 18, "text": "Driver/library version mismatch"}
    ]
