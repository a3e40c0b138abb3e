# Copyright: (c) 2026, Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import NOT_SUPPORTED, UNKNOWN, Nothing, Reading

TOOLS = Path(__file__).resolve().parents[3] / "tools"
for name in ("record_gpu_host", "gpu_machine"):
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec and spec.loader
    tool = importlib.util.module_from_spec(spec)
    sys.modules[name] = tool
    spec.loader.exec_module(tool)


@pytest.mark.parametrize(
    ("field", "one", "other", "expected"),
    [
        ("name", "NVIDIA H200", "NVIDIA H200", True),
        ("name", "NVIDIA H200", "NVIDIA H100", False),
        ("memory_total_mib", 143771, 143772, False),
        ("memory_free_mib", 143771, 143707, True),
        ("memory_free_mib", 143771, 143706, False),
        ("temperature_c", 41, 46, True),
        ("temperature_c", 41, 47, False),
        ("clock_sm_mhz", 345, 1980, True),
        ("clock_sm_mhz", 345, "P0", False),
        ("serial", Nothing(UNKNOWN, "ERR!"), Nothing(NOT_SUPPORTED, "N/A"), True),
        ("temperature_c", Nothing(NOT_SUPPORTED), 41, False),
        ("clock_sm_mhz", 345, Nothing(NOT_SUPPORTED), False),
        ("processes", [{"pid": 7, "type": "C"}], [{"pid": 7, "name": "x"}], True),
        ("processes", [{"pid": 7}], [{"pid": 8}], False),
        ("processes", [{"pid": 7}], [], False),
        ("mig_devices", [{"index": 0, "memory_used_mib": 20}], [{"index": 0, "memory_used_mib": 22}], True),
    ],
)
def test_what_counts_as_the_same(field, one, other, expected):
    assert tool.same(field, one, other) is expected
    assert tool.same(field, other, one) is expected


def test_each_difference_gets_a_line():
    nvml = Reading("nvml", host={"driver_version": "580"}, gpus=[{"index": 0, "name": "A", "uuid": "1", "numa_node": 0}, {"index": 1}])
    smi = Reading("smi", host={"driver_version": "590"}, gpus=[{"index": 0, "name": "B", "uuid": "1", "license_status": "x"}])
    assert tool.differences(nvml, smi) == [
        "host: driver_version: nvml '580', smi '590'",
        "GPU 0: name: nvml 'A', smi 'B'",
        "GPUs: nvml [0, 1], smi [0]",
    ]
    assert tool.one_sided(nvml, smi) == ["only nvml: numa_node", "only smi: license_status"]
    assert tool.differences(nvml, nvml) == []
