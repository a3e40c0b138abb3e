# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import importlib.util
import itertools
import json
import pathlib
import sys

import hypothesis
import hypothesis.strategies as st
import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_nvml as core
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_smi
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import NO_PERMISSION, NOT_SUPPORTED, UNKNOWN, Failure, Nothing

TESTS = pathlib.Path(__file__).parents[3]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


double = load(TESTS / "doubles/nvml_recording.py")
load(TESTS.parent / "tools/record_gpu_host.py")  # gpu_machine imports it by name
machine_tool = load(TESTS.parent / "tools/gpu_machine.py")
H200 = TESTS / "fixtures/gpu/h200"

MIB = 2**20
V2 = 0x02000028
LINKS = 91


def ok(function, *arguments, value=None):
    return {"function": function, "arguments": list(arguments), "value": value}


def fails(error, function, *arguments):
    return {"function": function, "arguments": list(arguments), "error": error, "text": f"error {error}"}


def absent(function):
    return {"function": function, "arguments": [], "absent": True}


def field(gpu, identifier, value=0, error=0, kind=1):
    return ok("nvmlDeviceGetFieldValues", gpu, identifier, value={"nvmlReturn": error, "valueType": kind, "value": value})


def gpu_calls(index):
    """Every answer of one GPU; made up, but of the kinds that pynvml returns."""
    gpu = f"gpu{index}"
    pci = {"busId": f"00000000:0{index + 1}:00.0", "pciDeviceId": 0x233510DE, "pciSubSystemId": 0x18BF10DE}
    memory = {"version": V2, "total": 1000 * MIB, "reserved": 100 * MIB, "used": 300 * MIB, "free": 600 * MIB}
    answers = {
        "AddressingMode": 0,
        "Architecture": 9,
        "ComputeMode": 0,
        "ComputeRunningProcesses_v3": [],
        "CudaComputeCapability": [9, 0],
        "CurrPcieLinkGeneration": 4,
        "CurrPcieLinkWidth": 8,
        "EnforcedPowerLimit": 650000,
        "GraphicsRunningProcesses_v3": [],
        "GspFirmwareVersion": {"bytes": "580.159.04"},
        "MaxPcieLinkGeneration": 5,
        "MaxPcieLinkWidth": 16,
        "MigMode": [0, 1],
        "MinorNumber": 7 - index,
        "MPSComputeRunningProcesses_v3": [],
        "Name": "NVIDIA H200",
        "PciInfo": pci,
        "PerformanceState": 0,
        "PersistenceMode": 1,
        "PowerManagementDefaultLimit": 700000,
        "PowerManagementLimitConstraints": [200000, 710000],
        "PowerUsage": 130412,
        "Serial": "0000000000000",
        "UtilizationRates": {"gpu": 55, "memory": 44},
        "UUID": f"GPU-00000000-0000-4000-8000-00000000000{index + 1}",
        "VbiosVersion": "96.00.A5.00.1A",
        "VirtualizationMode": 1,
    }
    fields = {1: 1, 2: 0, 3: 11, 4: 12, 5: 13, 6: 14, 31: 1, 82: 38, LINKS: 0, 142: 2, 143: 3, 144: 0, 145: 1, 186: 82054, 230: 0}
    return [
        ok("nvmlDeviceGetHandleByIndex", index, value={"handle": gpu}),
        *(ok(f"nvmlDeviceGet{name}", gpu, value=value) for name, value in answers.items()),
        *(field(gpu, identifier, value) for identifier, value in fields.items()),
        ok("nvmlDeviceGetClockInfo", gpu, 1, value=345),
        ok("nvmlDeviceGetClockInfo", gpu, 2, value=3201),
        ok("nvmlDeviceGetMaxClockInfo", gpu, 1, value=1980),
        ok("nvmlDeviceGetMaxClockInfo", gpu, 2, value=3202),
        ok("nvmlDeviceGetMemoryInfo", gpu, V2, value=memory),
        ok("nvmlDeviceGetTemperatureV", gpu, 0, value=41),
        ok("nvmlDeviceGetGpuFabricInfoV", gpu, value={"state": 3}),
        fails(3, "nvmlDeviceGetDriverModel", gpu),
    ]


def machine(*changes, gpus=1):
    system = [
        ok("nvmlInit"),
        ok("nvmlShutdown"),
        ok("nvmlSystemGetDriverVersion", value="580.159.04"),
        ok("nvmlSystemGetNVMLVersion", value="13.580.159.04"),
        ok("nvmlSystemGetCudaDriverVersion_v2", value=13000),
        ok("nvmlDeviceGetCount", value=gpus),
    ]
    peers = [
        ok("nvmlDeviceGetP2PStatus", f"gpu{one}", f"gpu{other}", 0, value=2 if one < other else 0)
        for one, other in itertools.permutations(range(gpus), 2)
    ]
    return double.NvmlRecording([*system, *(call for index in range(gpus) for call in gpu_calls(index)), *peers, *changes])


def read(*changes, gpus=1):
    """The reading of a machine with these changes; nothing may be asked that has no answer."""
    nvml = machine(*changes, gpus=gpus)
    reading = core.read(nvml)
    assert nvml.misses == []
    return reading


def test_every_field_in_the_names_and_units_of_the_result():
    reading = read(fails(50, "nvmlDeviceGetTopologyCommonAncestor", "gpu0", "gpu1"), gpus=2)
    assert (reading.source, reading.status, reading.error, reading.failures) == ("nvml", "ok", "", [])
    versions = {"driver_version": "580.159.04", "driver_userland_version": "580.159.04", "cuda_driver_version": "13.0"}
    assert reading.host == {**versions, "topology_pairs": {}, "peer_access_pairs": {(0, 1): "GNS", (1, 0): "OK"}}
    assert [gpu["index"] for gpu in reading.gpus] == [0, 1]
    assert reading.gpus[1] == {
        "index": 1,
        "minor_number": 6,
        "uuid": "GPU-00000000-0000-4000-8000-000000000002",
        "serial": "0000000000000",
        "name": "NVIDIA H200",
        "architecture": "Hopper",
        "compute_capability": "9.0",
        "pci_bus_id": "00000000:02:00.0",
        "pci_device_id": "10de:2335",
        "pci_subsystem_id": "10de:18bf",
        "memory_kind": "framebuffer",
        "memory_total_mib": 1000,
        "memory_used_mib": 300,
        "memory_free_mib": 600,
        "memory_reserved_mib": 100,
        "ecc_enabled": True,
        "ecc_enabled_pending": False,
        "ecc_errors_corrected_volatile": 11,
        "ecc_errors_uncorrected_volatile": 12,
        "ecc_errors_corrected_aggregate": 13,
        "ecc_errors_uncorrected_aggregate": 14,
        "remapped_rows_correctable": 2,
        "remapped_rows_uncorrectable": 3,
        "remapped_rows_pending": False,
        "remapped_rows_failure": True,
        "retired_pages_pending": True,
        "mig_enabled": False,
        "mig_enabled_pending": True,
        "mig_devices": [],
        "power_draw_w": 130.41,
        "power_limit_w": 650.0,
        "power_limit_default_w": 700.0,
        "power_limit_min_w": 200.0,
        "power_limit_max_w": 710.0,
        "temperature_c": 41,
        "temperature_memory_c": 38,
        "clock_sm_mhz": 345,
        "clock_memory_mhz": 3201,
        "clock_sm_max_mhz": 1980,
        "clock_memory_max_mhz": 3202,
        "utilization_gpu_percent": 55,
        "persistence_mode": True,
        "compute_mode": "Default",
        "performance_state": "P0",
        "pcie_generation": 4,
        "pcie_generation_max": 5,
        "pcie_width": 8,
        "pcie_width_max": 16,
        "processes": [],
        "recovery_action": "none",
        "addressing_mode": Nothing(NOT_SUPPORTED, "None"),
        "virtualization_mode": "Pass-Through",
        "driver_model": Nothing(NOT_SUPPORTED, "error 3"),
        "fabric_state": "completed",
        "vbios_version": "96.00.A5.00.1A",
        "gsp_firmware_version": "580.159.04",
    }


def recorded(state):
    """What NVML and nvidia-smi said on a real machine, at rest or with a process that holds 1 GiB."""
    nvml = double.NvmlRecording.load(H200 / state / "nvml.json")
    reading = core.read(nvml)
    assert nvml.misses == []
    runs = json.loads((H200 / state / "nvidia-smi.json").read_text())
    return reading, _gpu_smi.parse_xml(next(run["stdout"] for run in runs if run["argv"] == ["-q", "-x"]))


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_a_real_machine_says_the_same_in_both_ways(state):
    nvml, smi = recorded(state)
    assert machine_tool.differences(nvml, smi) == []
    assert len(set(nvml.gpus[0]) & set(smi.gpus[0])) >= 50
    assert set(nvml.gpus[0]) - set(smi.gpus[0]) == {"compute_capability", "memory_kind"}
    assert set(smi.gpus[0]) <= set(nvml.gpus[0])


@pytest.mark.parametrize(
    ("state", "memory", "processes"),
    [
        ("idle", [143771, 616, 0, 143156], []),
        ("busy", [143771, 616, 1551, 141606], [{"pid": 1001, "name": "process-1", "type": "C", "memory_used_mib": 1542}]),
    ],
)
def test_a_real_machine_has_its_memory_to_the_mib_of_nvidia_smi(state, memory, processes):
    for reading in recorded(state):
        gpu = reading.gpus[0]
        assert [gpu[f"memory_{part}_mib"] for part in ("total", "reserved", "used", "free")] == memory
        assert gpu["processes"] == processes


def test_what_only_nvml_says_of_a_real_machine():
    reading, _smi = recorded("idle")
    assert reading.host["driver_userland_version"] == "580.159.04"
    gpu = reading.gpus[0]
    assert (gpu["compute_capability"], gpu["memory_kind"]) == ("9.0", "framebuffer")


def test_nothing_is_asked_twice():
    nvml = machine()
    core.read(nvml)
    asked = [str(question) for question in nvml.asked]
    assert sorted(set(asked)) == sorted(asked)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (4, "no_permission"),
        (6, "no_devices"),
        (9, "driver_not_loaded"),
        (12, "library_missing"),
        (17, "no_permission"),
        (18, "driver_library_mismatch"),
        (28, "no_devices"),
        (999, "unknown_error"),
    ],
)
def test_nvml_that_does_not_start(code, error):
    nvml = machine(fails(code, "nvmlInit"))
    reading = core.read(nvml)
    assert (reading.source, reading.status, reading.error, reading.message) == ("nvml", "failed", error, f"error {code}")
    assert nvml.asked == [("nvmlInit",)]


def test_an_exception_of_another_kind_at_the_start():
    reading = read({"function": "nvmlInit", "arguments": [], "raise": OSError()})
    assert (reading.status, reading.error, reading.message) == ("failed", "unknown_error", "OSError")


def test_no_gpu_is_said_with_what_is_known_of_the_driver():
    reading = read(gpus=0)
    assert (reading.status, reading.error, reading.message) == ("failed", "no_devices", "No devices were found")
    assert reading.host["driver_version"] == "580.159.04"


@pytest.mark.parametrize(("code", "error"), [(4, "no_permission"), (999, "unknown_error")])
def test_gpus_that_cannot_be_counted(code, error):
    reading = read(fails(code, "nvmlDeviceGetCount"))
    assert (reading.status, reading.error, reading.message, reading.gpus) == ("failed", error, f"error {code}", ())


@pytest.mark.parametrize("change", [(), (fails(15, "nvmlDeviceGetHandleByIndex", 0),), (fails(999, "nvmlDeviceGetCount"),)])
def test_nvml_is_shut_down_whatever_happened(change):
    nvml = machine(*change)
    core.read(nvml)
    assert nvml.asked[-1] == ("nvmlShutdown",)


def test_a_shutdown_that_fails_loses_nothing():
    assert read(fails(1, "nvmlShutdown")) == read()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (3, NOT_SUPPORTED),
        (13, NOT_SUPPORTED),
        (22, NOT_SUPPORTED),
        (25, NOT_SUPPORTED),
        (26, NOT_SUPPORTED),
        (4, NO_PERMISSION),
        (17, NO_PERMISSION),
        (6, UNKNOWN),
        (999, UNKNOWN),
    ],
)
def test_kinds_of_nothing(code, reason):
    gpu = read(fails(code, "nvmlDeviceGetSerial", "gpu0"), field("gpu0", 82, error=code)).gpus[0]
    assert gpu["serial"] == Nothing(reason, f"error {code}")
    assert gpu["temperature_memory_c"].reason == reason


@pytest.mark.parametrize("answer", [field("gpu0", 230, error=2), field("gpu0", 230, 0.0, kind=0)])
def test_a_field_that_the_driver_does_not_know_is_not_supported(answer):
    """Refused, or passed over: an entry that NVML has not touched looks like a zero, and no action needed would be an invented answer."""
    assert read(answer).gpus[0]["recovery_action"].reason == NOT_SUPPORTED


def test_field_values_come_in_several_types():
    gpu = read(field("gpu0", 3, 2**40, kind=3), field("gpu0", 82, -4, kind=5), field("gpu0", 4, 1, kind=7)).gpus[0]
    assert gpu["ecc_errors_corrected_volatile"] == 2**40
    assert gpu["temperature_memory_c"] == -4
    assert gpu["ecc_errors_uncorrected_volatile"] == Nothing(UNKNOWN, "value type 7")


CALLS = sorted((call for call in double.NvmlRecording.load(H200 / "busy/nvml.json").calls), key=str)
CODES = st.sampled_from([2, 3, 4, 6, 13, 15, 16, 26, 999])


@hypothesis.settings(deadline=None)
@hypothesis.given(
    st.dictionaries(st.sampled_from(CALLS), CODES, max_size=12),
    st.dictionaries(st.sampled_from([call for call in CALLS if call[0] == "nvmlDeviceGetFieldValues"]), st.integers(1, 30), max_size=4),
)
def test_errors_in_any_combination_lose_only_what_they_concern(errors, codes):
    """On the real recording: whatever is still said is what was said without errors."""
    whole = recorded("busy")[0]
    changes = [field(*call[1:], error=code) for call, code in codes.items()]
    reading = core.read(
        double.NvmlRecording.load(H200 / "busy/nvml.json", *changes, *(fails(code, *call) for call, code in errors.items()))
    )
    assert reading.gpus or reading.failures or reading.error
    asked_in_another_way = {"memory_used_mib", "power_draw_w", "processes"}
    for gpu in reading.gpus:
        assert set(gpu) == set(whole.gpus[0])
        changed = {name for name, value in gpu.items() if value != whole.gpus[0][name] and not isinstance(value, Nothing)}
        assert changed <= asked_in_another_way


def asked_of_a_gpu():
    nvml = machine()
    core.read(nvml)
    return sorted({question[0] for question in nvml.asked if question[0].startswith("nvmlDevice")} - {"nvmlDeviceGetCount"})


@pytest.mark.parametrize("function", asked_of_a_gpu())
def test_one_error_never_loses_the_rest(function):
    """Each function fails once, with an error that nobody expects; only its own fields are lost."""
    whole = read().gpus[0]
    nvml = machine()
    broken = [fails(999, *call) for call in nvml.calls if call[0] == function]
    if function == "nvmlDeviceGetFieldValues":
        broken = [{**field("gpu0", call["arguments"][1]), "error": 999} for call in broken]
    reading = core.read(machine(*broken))
    if function == "nvmlDeviceGetHandleByIndex":
        assert reading.failures == [Failure(0, None, "lost", "error 999")]
        return
    lost = {name for name, value in reading.gpus[0].items() if value != whole[name]}
    assert lost or function in ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3")
    assert all(isinstance(reading.gpus[0][name], Nothing) for name in lost)
    assert len(lost) <= {"nvmlDeviceGetFieldValues": 15, "nvmlDeviceGetMemoryInfo": 5}.get(function, 3)


@pytest.mark.parametrize(
    "error",
    [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), OSError("the loader"), RuntimeError(), TypeError("two arguments")],
)
def test_any_exception_is_a_nothing(error):
    gpu = read({"function": "nvmlDeviceGetName", "arguments": ["gpu0"], "raise": error}).gpus[0]
    assert isinstance(gpu["name"], Nothing)
    assert gpu["uuid"].startswith("GPU-")


@pytest.mark.parametrize("name", [{"bytes": "NVIDIA H200"}, "NVIDIA H200", " NVIDIA  H200"])
def test_names_come_as_text_or_bytes(name):
    assert read(ok("nvmlDeviceGetName", "gpu0", value=name)).gpus[0]["name"] == "NVIDIA H200"


@pytest.mark.parametrize(("code", "health"), [(15, "lost"), (16, "needs_reset"), (999, "lost"), (4, "unknown")])
def test_a_gpu_without_a_handle_is_a_failure_and_the_others_stay(code, health):
    reading = read(fails(code, "nvmlDeviceGetHandleByIndex", 0), gpus=2)
    assert reading.failures == [Failure(0, None, health, f"error {code}")]
    assert [gpu["index"] for gpu in reading.gpus] == [1]


def test_a_gpu_that_is_lost_meanwhile_is_not_asked_any_more():
    nvml = machine(
        fails(15, "nvmlDeviceGetMemoryInfo", "gpu0", V2), fails(50, "nvmlDeviceGetTopologyCommonAncestor", "gpu0", "gpu1"), gpus=2
    )
    reading = core.read(nvml)
    assert reading.failures == [Failure(0, "00000000:01:00.0", "lost", "error 15")]
    assert reading.gpus[0]["memory_total_mib"] == reading.gpus[0]["name"] == Nothing(UNKNOWN, "error 15")
    assert reading.gpus[0]["ecc_enabled"] is True
    assert reading.gpus[1]["name"] == "NVIDIA H200"
    questions = [question[0] for question in nvml.asked if question[1:2] == ("gpu0",)]
    assert questions[-1] == "nvmlDeviceGetMemoryInfo"


def test_a_gpu_that_needs_a_reset_still_says_what_it_can():
    reading = read(fails(16, "nvmlDeviceGetTemperatureV", "gpu0", 0), field("gpu0", 230, 1))
    assert reading.failures == [Failure(0, "00000000:01:00.0", "needs_reset", "error 16")]
    gpu = reading.gpus[0]
    assert (gpu["temperature_c"], gpu["name"], gpu["recovery_action"]) == (Nothing(UNKNOWN, "error 16"), "NVIDIA H200", "reset")


def test_lost_is_worse_than_in_need_of_a_reset():
    assert [failure.health for failure in read(field("gpu0", 1, error=15), field("gpu0", 2, error=16)).failures] == ["lost"]


MIG = (
    ok("nvmlDeviceGetMigMode", "gpu0", value=[1, 1]),
    ok("nvmlDeviceGetMaxMigDeviceCount", "gpu0", value=4),
    fails(3, "nvmlDeviceGetUtilizationRates", "gpu0"),
    fails(6, "nvmlDeviceGetMigDeviceHandleByIndex", "gpu0", 1),
    fails(6, "nvmlDeviceGetMigDeviceHandleByIndex", "gpu0", 3),
    *(
        call
        for number, instance, name in ((0, 0, "1c.3g.71gb"), (2, 1, "2c.3g.71gb"))
        for call in (
            ok("nvmlDeviceGetMigDeviceHandleByIndex", "gpu0", number, value={"handle": f"mig{number}"}),
            ok("nvmlDeviceGetName", f"mig{number}", value=f"NVIDIA H200 MIG {name}"),
            ok("nvmlDeviceGetUUID", f"mig{number}", value=f"MIG-00000000-0000-4000-8000-00000000000{number}"),
            ok("nvmlDeviceGetGpuInstanceId", f"mig{number}", value=2),
            ok("nvmlDeviceGetComputeInstanceId", f"mig{number}", value=instance),
            ok(
                "nvmlDeviceGetMemoryInfo",
                f"mig{number}",
                V2,
                value={"total": 71424 * MIB, "reserved": 0, "used": 22 * MIB, "free": 71402 * MIB},
            ),
        )
    ),
)


def test_mig_devices_with_a_hole_in_their_numbers():
    gpu = read(*MIG).gpus[0]
    memory = {"memory_total_mib": 71424, "memory_used_mib": 22, "memory_free_mib": 71402}
    uuid = "MIG-00000000-0000-4000-8000-00000000000"
    assert gpu["mig_devices"] == [
        {"index": 0, "uuid": f"{uuid}0", "name": "1c.3g.71gb", "gpu_instance_id": 2, "compute_instance_id": 0, **memory},
        {"index": 2, "uuid": f"{uuid}2", "name": "2c.3g.71gb", "gpu_instance_id": 2, "compute_instance_id": 1, **memory},
    ]


def test_mig_in_a_container_that_may_not_see_the_whole_gpu():
    """Case A05: the parent's memory is refused; the instances answer."""
    gpu = read(*MIG, fails(4, "nvmlDeviceGetMemoryInfo", "gpu0", V2), fails(4, "nvmlDeviceGetComputeInstanceId", "mig2")).gpus[0]
    assert gpu["memory_total_mib"] == gpu["memory_free_mib"] == Nothing(NO_PERMISSION, "error 4")
    assert gpu["memory_kind"].reason == UNKNOWN
    assert [(device["compute_instance_id"], device["memory_total_mib"]) for device in gpu["mig_devices"]] == [(0, 71424), (None, 71424)]
    assert gpu["name"] == "NVIDIA H200"


NO_MEMORY = (fails(3, "nvmlDeviceGetMemoryInfo", "gpu0", V2), fails(3, "nvmlDeviceGetMemoryInfo", "gpu0"))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ((*NO_MEMORY, ok("nvmlDeviceGetAddressingMode", "gpu0", value=2)), "unified"),  # GB10 (case A01)
        (NO_MEMORY, Nothing(UNKNOWN, "error 3")),
        (
            (fails(999, "nvmlDeviceGetMemoryInfo", "gpu0", V2), ok("nvmlDeviceGetAddressingMode", "gpu0", value=2)),
            Nothing(UNKNOWN, "error 999"),
        ),
        ((ok("nvmlDeviceGetAddressingMode", "gpu0", value=2),), "framebuffer"),  # GH200
    ],
)
def test_memory_kind_is_said_only_when_nvml_says_it(changes, kind):
    gpu = read(*changes).gpus[0]
    assert gpu["memory_kind"] == kind
    assert isinstance(gpu["memory_total_mib"], int) == (kind == "framebuffer")


def test_a_total_of_nothing_is_no_number():
    memory = {"total": 0, "reserved": 0, "used": 0, "free": 0}
    gpu = read(ok("nvmlDeviceGetMemoryInfo", "gpu0", V2, value=memory)).gpus[0]
    assert {gpu[f"memory_{part}_mib"].reason for part in ("total", "used", "free", "reserved")} == {NOT_SUPPORTED}


@pytest.mark.parametrize("missing", [{"raise": TypeError("takes 1 positional argument")}, {"error": 13}])
def test_memory_from_the_first_version_of_the_call(missing):
    first = ok("nvmlDeviceGetMemoryInfo", "gpu0", value={"total": 1000 * MIB, "used": 400 * MIB, "free": 600 * MIB})
    gpu = read({"function": "nvmlDeviceGetMemoryInfo", "arguments": ["gpu0", V2], **missing}, first).gpus[0]
    assert [gpu[f"memory_{part}_mib"] for part in ("total", "used", "free")] == [1000, 400, 600]
    assert gpu["memory_reserved_mib"].reason == NOT_SUPPORTED


def test_an_old_nvidia_ml_py():
    """It lacks what is new; the older functions are used where there are any."""
    nvml = machine(
        *(absent(f"nvmlDeviceGet{name}") for name in ("TemperatureV", "AddressingMode", "MPSComputeRunningProcesses_v3")),
        *(absent(f"nvmlDeviceGet{name}") for name in ("MPSComputeRunningProcesses_v2", "MPSComputeRunningProcesses")),
        *(absent(f"nvmlDeviceGet{kind}RunningProcesses_v{version}") for kind in ("Compute", "Graphics") for version in (2, 3)),
        *(ok(f"nvmlDeviceGet{kind}RunningProcesses", "gpu0", value=[]) for kind in ("Compute", "Graphics")),
        ok("nvmlDeviceGetTemperature", "gpu0", 0, value=39),
        absent("nvmlSystemGetCudaDriverVersion_v2"),
        ok("nvmlSystemGetCudaDriverVersion", value=12080),
    )
    nvml.c_nvmlGpuFabricInfoV_t = None  # calling it would raise, as a missing name does
    reading = core.read(nvml)
    assert nvml.misses == []
    gpu = reading.gpus[0]
    assert (gpu["temperature_c"], gpu["processes"], reading.host["cuda_driver_version"]) == (39, [], "12.8")
    assert gpu["addressing_mode"] == Nothing(NOT_SUPPORTED, "Function Not Found")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((fails(3, "nvmlDeviceGetPowerUsage", "gpu0"),), 82.05),  # case A26: only the momentary value is there
        ((fails(999, "nvmlDeviceGetPowerUsage", "gpu0"),), Nothing(UNKNOWN, "error 999")),
    ],
)
def test_power_draw(changes, expected):
    assert read(*changes).gpus[0]["power_draw_w"] == expected


def process(pid, mib):
    return {"pid": pid, "usedGpuMemory": None if mib is None else mib * MIB, "gpuInstanceId": 2**32 - 1, "computeInstanceId": 2**32 - 1}


@pytest.mark.parametrize(
    ("compute", "mps", "graphics", "expected"),
    [
        ([(7, 10)], [], [], [(7, "C", 10)]),
        ([], [], [(7, 10)], [(7, "G", 10)]),
        ([(9, 5), (7, 10)], [], [(7, 10)], [(7, "C+G", 10), (9, "C", 5)]),
        ([(7, None)], [], [(7, 3)], [(7, "C+G", 3)]),
        ([(7, None)], [], [], [(7, "C", None)]),
        ([], [(7, 10)], [], [(7, "C", 10)]),
    ],
)
def test_processes_are_listed_once(compute, mps, graphics, expected):
    lists = {"Compute": compute, "MPSCompute": mps, "Graphics": graphics}
    changes = [
        ok(f"nvmlDeviceGet{kind}RunningProcesses_v3", "gpu0", value=[process(*each) for each in entries]) for kind, entries in lists.items()
    ]
    names = [ok("nvmlSystemGetProcessName", 7, value="/usr/bin/python3"), fails(6, "nvmlSystemGetProcessName", 9)]
    found = read(*changes, *names).gpus[0]["processes"]
    assert [(each["pid"], each["type"], each["memory_used_mib"]) for each in found] == expected
    assert {each["name"] for each in found if each["pid"] == 7} == {"/usr/bin/python3"}
    assert {each["name"] for each in found if each["pid"] == 9} <= {None}


def test_processes_that_may_not_be_seen_are_not_an_empty_list():
    assert read(fails(4, "nvmlDeviceGetComputeRunningProcesses_v3", "gpu0")).gpus[0]["processes"] == Nothing(NO_PERMISSION, "error 4")
    assert read(fails(4, "nvmlDeviceGetGraphicsRunningProcesses_v3", "gpu0")).gpus[0]["processes"] == []


GB10_PCI = {"busId": {"bytes": "0000000f:01:00.0"}, "pciDeviceId": 0x2E1210DE, "pciSubSystemId": 0}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("architecture", ok("nvmlDeviceGetArchitecture", "gpu0", value=8), "Ada Lovelace"),
        ("architecture", ok("nvmlDeviceGetArchitecture", "gpu0", value=0xFFFFFFFF), Nothing(UNKNOWN, "architecture 4294967295")),
        ("compute_mode", ok("nvmlDeviceGetComputeMode", "gpu0", value=3), "Exclusive_Process"),
        ("performance_state", ok("nvmlDeviceGetPerformanceState", "gpu0", value=8), "P8"),
        ("performance_state", ok("nvmlDeviceGetPerformanceState", "gpu0", value=32), Nothing(UNKNOWN, "performance state 32")),
        ("virtualization_mode", ok("nvmlDeviceGetVirtualizationMode", "gpu0", value=0), "None"),
        ("driver_model", ok("nvmlDeviceGetDriverModel", "gpu0", value=[0, 0]), "WDDM"),
        ("fabric_state", ok("nvmlDeviceGetGpuFabricInfoV", "gpu0", value={"state": 0}), Nothing(NOT_SUPPORTED, "N/A")),
        ("fabric_state", ok("nvmlDeviceGetGpuFabricInfoV", "gpu0", value={"state": 1}), "not_started"),
        ("recovery_action", field("gpu0", 230, 4), "drain_and_reset"),
        ("recovery_action", field("gpu0", 230, 99), Nothing(UNKNOWN, "recovery action 99")),
        ("addressing_mode", ok("nvmlDeviceGetAddressingMode", "gpu0", value=1), "HMM"),
        ("serial", ok("nvmlDeviceGetSerial", "gpu0", value="N/A"), Nothing(NOT_SUPPORTED, "N/A")),
        ("pci_bus_id", ok("nvmlDeviceGetPciInfo", "gpu0", value=GB10_PCI), "0000000F:01:00.0"),
    ],
)
def test_words(name, value, expected):
    assert read(value).gpus[0][name] == expected


@pytest.mark.parametrize(
    ("supported", "states", "expected"),
    [(1, [0, 1], "Licensed"), (1, [0, 0], "Unlicensed"), (1, [0, 0, 1], "Unlicensed"), (0, [], Nothing(NOT_SUPPORTED))],
)
def test_license_of_a_vgpu_guest(supported, states, expected):
    features = [{"featureState": state} for state in [*states, 0, 0][:3]]
    license_ = {"isGridLicenseSupported": supported, "licensableFeaturesCount": min(len(states), 2), "gridLicensableFeatures": features}
    guest = ok("nvmlDeviceGetVirtualizationMode", "gpu0", value=2)
    assert read(guest, ok("nvmlDeviceGetGridLicensableFeatures", "gpu0", value=license_)).gpus[0]["license_status"] == expected
    assert "license_status" not in read().gpus[0]


@pytest.mark.parametrize(
    ("number", "expected"), [(ok("", value=12080), "12.8"), (fails(12, ""), Nothing(UNKNOWN, "error 12")), (fails(3, ""), "11.4")]
)
def test_cuda_version_of_the_driver(number, expected):
    newest = {**number, "function": "nvmlSystemGetCudaDriverVersion_v2"}
    assert read(newest, ok("nvmlSystemGetCudaDriverVersion", value=11040)).host["cuda_driver_version"] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("13.580.159.04", "580.159.04"),
        ("12.535.98", "535.98"),
        ("418.67", "418.67"),
        ("unknown", Nothing(UNKNOWN, "unknown")),
        ("13.580", Nothing(UNKNOWN, "13.580")),
    ],
)
def test_version_of_the_library(text, expected):
    assert read(ok("nvmlSystemGetNVMLVersion", value=text)).host["driver_userland_version"] == expected


def link(gpu, number, kind=0, bus="", state=1):
    return [
        ok("nvmlDeviceGetNvLinkState", gpu, number, value=state),
        ok("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, number, value=kind),
        ok("nvmlDeviceGetNvLinkRemotePciInfo", gpu, number, value={"busId": bus}),
    ]


def ancestor(level):
    return ok("nvmlDeviceGetTopologyCommonAncestor", "gpu0", "gpu1", value=level)


@pytest.mark.parametrize(("level", "word"), [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")])
def test_pairs_without_links(level, word):
    assert read(ancestor(level), gpus=2).host["topology_pairs"] == {(0, 1): word}


def test_pairs_about_which_nothing_is_said_are_left_out():
    assert read(ancestor(60), gpus=2).host["topology_pairs"] == {}
    assert read(fails(4, "nvmlDeviceGetTopologyCommonAncestor", "gpu0", "gpu1"), gpus=2).host["topology_pairs"] == {}


def test_links_between_two_gpus_count_when_they_are_active():
    bus = {"gpu0": "00000000:02:00.0", "gpu1": "00000000:01:00.0"}
    links = [
        call
        for gpu, remote in bus.items()
        for each in (
            link(gpu, 0, bus=remote),
            link(gpu, 1, bus=remote),
            link(gpu, 2, bus=remote, state=0),
            link(gpu, 3, bus="00000000:09:00.0"),
        )
        for call in [*each, field(gpu, LINKS, 4)]
    ]
    assert read(*links, gpus=2).host["topology_pairs"] == {(0, 1): "NV2"}


def test_links_to_switches_reach_every_gpu_that_has_some():
    counts = {"gpu0": 3, "gpu1": 2, "gpu2": 0}
    links = [call for gpu, count in counts.items() for number in range(count) for call in link(gpu, number, kind=2)]
    fields = [field(gpu, LINKS, count) for gpu, count in counts.items()]
    levels = [ok("nvmlDeviceGetTopologyCommonAncestor", gpu, "gpu2", value=50) for gpu in ("gpu0", "gpu1")]
    assert read(*links, *fields, *levels, gpus=3).host["topology_pairs"] == {(0, 1): "NV2", (0, 2): "SYS", (1, 2): "SYS"}


def test_links_that_mig_hides_leave_the_path_over_pcie():
    hidden = [call for gpu in ("gpu0", "gpu1") for call in (field(gpu, LINKS, 1), fails(3, "nvmlDeviceGetNvLinkState", gpu, 0))]
    assert read(*hidden, ancestor(50), gpus=2).host["topology_pairs"] == {(0, 1): "SYS"}
