from __future__ import annotations

import pathlib
import re

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_smi as smi
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import NO_PERMISSION, NOT_SUPPORTED, UNKNOWN, Failure, Nothing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SAMPLES = pathlib.Path(__file__).parents[3] / "fixtures/gpu"


def sample(name):
    return (SAMPLES / name).read_text(encoding="utf-8", errors="replace")


def absent(cell):
    """The reason of a cell that is nothing."""
    assert isinstance(cell, Nothing), cell
    return cell.reason


# --- XML ---------------------------------------------------------------------------------------------------------------


def test_xml_of_a_real_h200():
    reading = smi.parse_xml(sample("smi_h200_qx.xml"))
    assert (reading.status, reading.message, reading.failures) == ("ok", "", [])
    assert reading.host == {"driver_version": "580.159.04", "cuda_driver_version": "13.0"}
    (gpu,) = reading.gpus
    values = {field: cell for field, cell in gpu.items() if not isinstance(cell, Nothing)}
    assert values == {
        "index": 0,
        "minor_number": 0,
        "uuid": "GPU-00000000-0000-4000-8000-000000000200",
        "serial": "0000000000000",
        "name": "NVIDIA H200",
        "architecture": "Hopper",
        "pci_bus_id": "00000000:00:06.0",
        "pci_device_id": "10de:2335",
        "pci_subsystem_id": "10de:18bf",
        "memory_total_mib": 143771,
        "memory_used_mib": 0,
        "memory_free_mib": 143156,
        "memory_reserved_mib": 616,
        "ecc_enabled": True,
        "ecc_enabled_pending": True,
        "ecc_errors_corrected_volatile": 0,
        "ecc_errors_uncorrected_volatile": 0,
        "ecc_errors_corrected_aggregate": 0,
        "ecc_errors_uncorrected_aggregate": 0,
        "remapped_rows_correctable": 0,
        "remapped_rows_uncorrectable": 0,
        "remapped_rows_pending": False,
        "remapped_rows_failure": False,
        "mig_enabled": False,
        "mig_enabled_pending": False,
        "mig_devices": [],
        "power_draw_w": 130.41,
        "power_limit_w": 700.0,
        "power_limit_default_w": 700.0,
        "power_limit_min_w": 200.0,
        "power_limit_max_w": 700.0,
        "temperature_c": 41,
        "temperature_memory_c": 38,
        "clock_sm_mhz": 1980,
        "clock_memory_mhz": 3201,
        "clock_sm_max_mhz": 1980,
        "clock_memory_max_mhz": 3201,
        "utilization_gpu_percent": 0,
        "persistence_mode": True,
        "compute_mode": "Default",
        "performance_state": "P0",
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "processes": [],
        "recovery_action": "none",
        "virtualization_mode": "Pass-Through",
        "vbios_version": "96.00.A5.00.1A",
        "gsp_firmware_version": "580.159.04",
    }
    nothing = {field: cell.reason for field, cell in gpu.items() if isinstance(cell, Nothing)}
    assert nothing == dict.fromkeys(("retired_pages_pending", "driver_model", "fabric_state", "addressing_mode"), NOT_SUPPORTED)


def test_xml_with_mig_has_its_devices_and_a_word_in_place_of_children():
    (gpu,) = smi.parse_xml(sample("smi_mig_a100_v11.xml")).gpus
    assert gpu["mig_enabled"] is True
    assert [(one["gpu_instance_id"], one["compute_instance_id"], one["memory_total_mib"]) for one in gpu["mig_devices"]] == [
        (1, 0, 19968),
        (2, 0, 19968),
    ]
    assert (gpu["memory_total_mib"], gpu["power_limit_w"], gpu["power_draw_w"]) == (40960, 400.0, 66.92)
    assert absent(gpu["utilization_gpu_percent"]) == NOT_SUPPORTED
    assert absent(gpu["remapped_rows_pending"]) == NOT_SUPPORTED


def test_the_devices_of_mig_are_named_by_the_list():
    """Driver 590 pads the names; driver 450 had UUIDs of three parts."""
    text = (
        "GPU 0: NVIDIA H200 (UUID: GPU-00000000-0000-4000-8000-000000000001)\n"
        "  MIG 1c.3g.71gb  Device  0: (UUID: MIG-00000000-0000-4000-8000-000000000011)\n"
        "  MIG 2g.35gb     Device  2: (UUID: MIG-00000000-0000-4000-8000-000000000012)\n"
        "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-00000000-0000-4000-8000-000000000002)\n"
        "  MIG 3g.20gb Device 0: (UUID: MIG-GPU-00000000-0000-4000-8000-000000000002/1/0)\n"
    )
    gpus = [
        {
            "uuid": "GPU-00000000-0000-4000-8000-000000000001",
            "mig_devices": [{"index": index, "uuid": None, "name": None} for index in (0, 1, 2)],
        },
        {"uuid": "GPU-00000000-0000-4000-8000-000000000002", "mig_devices": [{"index": 0, "uuid": None, "name": None}]},
        {"uuid": Nothing(UNKNOWN)},
    ]
    first, second, third = smi.name_mig_devices(gpus, smi.parse_list(text))
    assert first["mig_devices"] == [
        {"index": 0, "uuid": "MIG-00000000-0000-4000-8000-000000000011", "name": "1c.3g.71gb"},
        {"index": 1, "uuid": None, "name": None},
        {"index": 2, "uuid": "MIG-00000000-0000-4000-8000-000000000012", "name": "2g.35gb"},
    ]
    assert second["mig_devices"][0]["uuid"] == "MIG-GPU-00000000-0000-4000-8000-000000000002/1/0"
    assert third == gpus[2]
    assert smi.parse_list("No devices were found\n") == {}


def test_a_pending_change_of_mig_or_ecc_is_seen():
    text = (
        sample("smi_mig_a100_v11.xml")
        .replace("<current_mig>Enabled", "<current_mig>Disabled")
        .replace("<pending_ecc>Enabled", "<pending_ecc>Disabled")
    )
    (gpu,) = smi.parse_xml(text).gpus
    assert (gpu["mig_enabled"], gpu["mig_enabled_pending"]) == (False, True)
    assert (gpu["ecc_enabled"], gpu["ecc_enabled_pending"]) == (True, False)


def test_the_minor_number_is_not_the_index():
    gpus = smi.parse_xml(sample("smi_8gpu_minor_not_index.xml")).gpus
    assert [(gpu["index"], gpu["minor_number"]) for gpu in gpus] == list(enumerate([2, 3, 0, 1, 6, 7, 4, 5]))


def test_an_old_schema_without_cuda_mig_and_architecture():
    reading = smi.parse_xml(sample("smi_v9_gt730_all_na.xml"))
    assert reading.host == {"driver_version": "384.111"}
    (gpu,) = reading.gpus
    assert (gpu["name"], gpu["memory_total_mib"], gpu["pci_bus_id"]) == ("GeForce GT 730", 980, "00000000:01:00.0")
    assert absent(gpu["power_draw_w"]) == NOT_SUPPORTED
    assert "mig_enabled" not in gpu
    assert "architecture" not in gpu


def test_mixed_content_of_clocks_is_ignored():
    (gpu,) = smi.parse_xml(sample("smi_mixed_content_supported_clocks.xml")).gpus
    assert (gpu["name"], gpu["memory_total_mib"], gpu["memory_used_mib"]) == ("NVIDIA RTX A6000", 49140, 47119)


@pytest.mark.parametrize(
    ("readings", "draw", "limit"),
    [
        (
            "<power_readings><power_draw> 66.9 W</power_draw><enforced_power_limit>250.00 W</enforced_power_limit></power_readings>",
            66.9,
            250.0,
        ),
        (
            "<gpu_power_readings><power_draw>12.00 W</power_draw><current_power_limit>300.00 W</current_power_limit></gpu_power_readings>",
            12.0,
            300.0,
        ),
        (
            "<gpu_power_readings><power_draw>N/A</power_draw><average_power_draw>N/A</average_power_draw>"
            "<instant_power_draw>  98.50 W  </instant_power_draw></gpu_power_readings>",
            98.5,
            None,
        ),
    ],
)
def test_power_is_found_under_the_tags_of_every_schema(readings, draw, limit):
    (gpu,) = smi.parse_xml(f'<nvidia_smi_log><gpu id="00000000:01:00.0">{readings}</gpu></nvidia_smi_log>').gpus
    assert (gpu["power_draw_w"], gpu.get("power_limit_w")) == (draw, limit)


@pytest.mark.parametrize(
    ("tags", "driver", "cuda"),
    [
        (
            "<driver_version>610.57.04 [Deprecated; use KMD Version]</driver_version><cuda_version>13.3 [Deprecated]</cuda_version>",
            "610.57.04",
            "13.3",
        ),
        ('<driver_version>Deprecated, see "KMD version"</driver_version><kmd_version>610.57.04</kmd_version>', "610.57.04", None),
        ("<driver_version>N/A</driver_version><cuda_version>12.2</cuda_version>", NOT_SUPPORTED, "12.2"),
    ],
)
def test_versions_of_xml_are_versions_or_nothing(tags, driver, cuda):
    host = smi.parse_xml(f"<nvidia_smi_log>{tags}</nvidia_smi_log>").host
    found = {field: cell.reason if isinstance(cell, Nothing) else cell for field, cell in host.items()}
    assert found == {"driver_version": driver, **({"cuda_driver_version": cuda} if cuda else {})}


PROCESSES = """<nvidia_smi_log><gpu id="0000000F:01:00.0">
<fb_memory_usage><total>N/A</total><used>N/A</used><free>N/A</free></fb_memory_usage>
<processes>
 <process_info><pid>4155</pid><type>C</type><process_name>python3</process_name><used_memory>69564 MiB</used_memory></process_info>
 <process_info><pid>4155</pid><type>G</type><process_name>python3</process_name><used_memory>69564 MiB</used_memory></process_info>
 <process_info><pid>77</pid><type>M+C</type><process_name>python3</process_name><used_memory>10 MiB</used_memory></process_info>
 <process_info><pid>300</pid><type>G</type><process_name>Xorg</process_name><used_memory>N/A</used_memory></process_info>
</processes></gpu></nvidia_smi_log>"""


def test_a_process_that_computes_and_draws_is_one_process():
    (gpu,) = smi.parse_xml(PROCESSES).gpus
    assert absent(gpu["memory_total_mib"]) == NOT_SUPPORTED
    assert gpu["processes"] == [
        {"pid": 77, "name": "python3", "type": "C", "memory_used_mib": 10},
        {"pid": 300, "name": "Xorg", "type": "G", "memory_used_mib": None},
        {"pid": 4155, "name": "python3", "type": "C+G", "memory_used_mib": 69564},
    ]


@pytest.mark.parametrize("rc", [0, 15, 255])
def test_a_line_about_a_lost_gpu_before_the_document_shifts_the_indices(rc):
    text = "Unable to determine the device handle for GPU0000:07:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
    whole = sample("smi_8gpu_minor_not_index.xml")
    second = whole.index("<gpu id", whole.index("<gpu id") + 1)
    rest = whole[:second] + whole[whole.index("</gpu>", second) + len("</gpu>") :]
    reading = smi.parse_xml(text + rest.replace("<attached_gpus>8", "<attached_gpus>7"), rc)
    assert [gpu["index"] for gpu in reading.gpus] == [0, 2, 3, 4, 5, 6, 7]
    assert [(failure.pci_bus_id, failure.health) for failure in reading.failures] == [("00000000:07:00.0", "lost")]
    assert (reading.status, reading.error) == ("ok", "")


def test_a_document_that_is_cut_off_gives_what_is_whole():
    text = sample("smi_h200_qx.xml")
    reading = smi.parse_xml(text[: text.index("<dram_uncorrectable>")])
    (gpu,) = reading.gpus
    assert "cut off" in reading.message
    assert gpu["memory_total_mib"] == 143771
    assert not {field for field in gpu if field.startswith("ecc_errors")}, "half of a sum is a wrong number"


def test_fewer_gpus_than_attached_is_told():
    assert smi.parse_xml("<nvidia_smi_log><attached_gpus>2</attached_gpus></nvidia_smi_log>").message == "2 GPUs attached, 0 listed"


def test_a_warning_after_the_document_loses_nothing():
    reading = smi.parse_xml(sample("smi_h200_qx.xml") + "WARNING: infoROM is corrupted at gpu 0000:00:06.0\n", 14)
    assert (reading.status, len(reading.gpus)) == ("ok", 1)
    assert "infoROM is corrupted" in reading.message


def test_a_warning_beside_a_whole_document_is_no_error():
    reading = smi.parse_xml(sample("smi_h200_qx.xml") + "WARNING: persistence daemon: Insufficient Permissions\n", 0)
    assert (reading.status, reading.error) == ("ok", "")
    assert smi.parse_xml(sample("smi_h200_qx.xml") + "Insufficient Permissions\n", 4).error == "no_permission"


@pytest.mark.parametrize("word", ["Reset", "GPU Reset", "GPU Reset Required"])
def test_words_of_recovery_actions(word):
    assert smi.recovery_action(word) == "reset"
    assert (smi.recovery_action("None"), smi.recovery_action("System Reboot"), smi.recovery_action("Drain and Reset")) == (
        "none",
        "system_reboot",
        "drain_and_reset",
    )
    assert absent(smi.recovery_action("N/A")) == NOT_SUPPORTED


def test_a_cell_longer_than_the_csv_reader_takes_loses_its_line_only():
    reading = smi.parse_csv("index, name\n0, " + "x" * 200_000 + "\n1, NVIDIA L4\n")
    assert [gpu["name"] for gpu in reading.gpus] == ["NVIDIA L4"]
    assert smi.parse_csv("x" * 200_000).status == "failed"


@pytest.mark.parametrize(
    ("heading", "cell", "field"),
    [
        ("temperature.gpu", "999999", "temperature_c"),
        ("power.draw [W]", "-5.00 W", "power_draw_w"),
        ("power.min_limit [W]", "-100.00 W", "power_limit_min_w"),
        ("utilization.gpu [%]", "4294967295 %", "utilization_gpu_percent"),
    ],
)
def test_a_number_that_cannot_be_is_unknown(heading, cell, field):
    assert absent(smi.parse_csv(f"index, {heading}\n0, {cell}\n").gpus[0][field]) == UNKNOWN


def test_names_have_no_control_characters():
    assert smi.parse_csv("index, name\n0, \x1b[31mNVIDIA\x1b[0m\x00 L4\n").gpus[0]["name"] == "NVIDIA L4"


def test_the_human_table_gives_no_names():
    # It cuts them off (case A36).
    assert smi.parse_xml(sample("smi_table_610_header.txt")).gpus == ()
    assert smi.parse_csv(sample("smi_table_610_header.txt")).gpus == ()


def test_a_list_of_gpus_without_mig_names_no_mig_device():
    assert smi.parse_list(sample("smi_L_mixed_models.txt")) == {}


@pytest.mark.parametrize(
    ("output", "rc", "error"),
    [
        (sample("smi_err_driver_not_loaded.txt"), 9, "driver_not_loaded"),
        ("Failed to initialize NVML: Driver Not Loaded\nFailed to properly shut down NVML: Driver Not Loaded", 255, "driver_not_loaded"),
        (sample("smi_err_no_devices.txt"), 6, "no_devices"),
        ("No devices found", 6, "no_devices"),
        (sample("smi_err_nvml_mismatch.txt"), 18, "driver_library_mismatch"),
        ("Failed to initialize NVML: Driver/library version mismatch", 255, "driver_library_mismatch"),
        (sample("smi_err_nvml_unknown.txt"), 255, "nvml_unknown"),
        (sample("smi_err_libnvidia_ml_missing.txt"), 12, "library_missing"),
        ("Failed to initialize NVML: Insufficient Permissions", 4, "no_permission"),
        (sample("smi_err_gpu_lost_reboot.txt"), 15, "gpu_lost"),
        (sample("smi_err_handle_unknown.txt"), 255, "gpu_lost"),
        ("", 9, "driver_not_loaded"),
        ("", 18, "driver_library_mismatch"),
        ("", 4, "no_permission"),
        ("", 6, "no_devices"),
        ("", 12, "library_missing"),
        ("", 15, "gpu_lost"),
        ("", 17, "no_permission"),
        ("", 255, "unknown_error"),
        ("something else", 77, "unknown_error"),
        ("", 0, "unknown_error"),
    ],
)
def test_errors_are_told_apart(output, rc, error):
    reading = smi.parse_xml(output, rc)
    assert (reading.status, reading.error, reading.gpus) == ("failed", error, ())
    assert smi.parse_csv(output, rc).status == "failed"


def test_no_answer_in_time():
    assert (smi.parse_xml("", None).status, smi.parse_csv("", None).status) == ("timed_out", "timed_out")


def test_the_librarys_version_comes_with_the_mismatch():
    assert smi.parse_xml(sample("smi_err_nvml_mismatch.txt"), 18).host == {"driver_userland_version": "580.159"}


@pytest.mark.parametrize(
    ("line", "index", "address", "health"),
    [
        (sample("smi_err_gpu_lost_reboot.txt"), None, "00000000:02:00.0", "lost"),
        (sample("smi_err_handle_unknown.txt"), None, "00000000:0B:00.0", "lost"),
        ("Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error", 1, "00000000:34:00.0", "lost"),
        ("Unable to determine the device handle for GPU0: 00000000:CB:00.0: GPU requires reset", 0, "00000000:CB:00.0", "needs_reset"),
        ("Unable to determine the device handle for GPU0000:CB:00.0: Not Found", None, "00000000:CB:00.0", "unknown"),
    ],
)
def test_a_gpu_that_cannot_be_reached(line, index, address, health):
    assert smi.failures_in(line) == [Failure(index, address, health, " ".join(line.split()))]


# --- CSV ---------------------------------------------------------------------------------------------------------------


def csv_gpus(name):
    reading = smi.parse_csv(sample(name))
    assert reading.status == "ok"
    return reading.gpus


def test_csv_agrees_with_xml_of_the_same_machine():
    (by_xml,) = smi.parse_xml(sample("smi_h200_qx.xml")).gpus
    (by_csv,) = csv_gpus("smi_h200_query.csv")
    moving = {"power_draw_w", "clock_sm_mhz", "temperature_c"}
    shared = (by_xml.keys() & by_csv.keys()) - moving
    assert len(shared) > 25

    def plain(cell):
        return cell.reason if isinstance(cell, Nothing) else cell

    assert {field: plain(by_csv[field]) for field in shared} == {field: plain(by_xml[field]) for field in shared}
    assert by_csv["compute_capability"] == "9.0"


def test_csv_without_units_and_heading():
    fields = "index name uuid pci.bus_id driver_version compute_cap memory.total memory.used memory.free ecc.mode.current mig.mode.current"
    fields += " persistence_mode power.limit utilization.gpu pcie.link.gen.current pcie.link.width.current"
    reading = smi.parse_csv(sample("smi_h200_query_nounits.csv"), fields=fields.split())
    (gpu,) = reading.gpus
    assert reading.host == {"driver_version": "580.159.04"}
    assert (gpu["memory_total_mib"], gpu["power_limit_w"], gpu["pcie_width"]) == (143771, 700.0, 16)


@pytest.mark.parametrize(
    ("name", "index", "expected"),
    [
        ("smi_query_gb10.csv", 0, {"pci_bus_id": "0000000F:01:00.0", "memory_total_mib": NOT_SUPPORTED, "addressing_mode": "ATS"}),
        ("smi_query_mig_container_noperm.csv", 0, {"memory_total_mib": NO_PERMISSION, "utilization_gpu_percent": NOT_SUPPORTED}),
        ("smi_query_mig_h200.csv", 0, {"mig_enabled": True, "memory_total_mib": 143771, "utilization_gpu_percent": NOT_SUPPORTED}),
        (
            "smi_query_requires_reset.csv",
            0,
            {"performance_state": UNKNOWN, "memory_used_mib": 58222, "utilization_gpu_percent": NOT_SUPPORTED},
        ),
        ("smi_query_requires_reset.csv", 1, {"performance_state": "P8", "memory_used_mib": 10, "temperature_c": 33}),
        ("smi_query_legacy_not_supported.csv", 0, {"name": "GeForce GTX 770", "power_draw_w": NOT_SUPPORTED, "temperature_c": 52}),
        ("smi_query_unknown_error.csv", 0, {"power_draw_w": UNKNOWN, "utilization_gpu_percent": UNKNOWN}),
        ("smi_query_l40s_idle_util100.csv", 0, {"utilization_gpu_percent": 100, "memory_used_mib": 0, "persistence_mode": False}),
        ("smi_query_laptop_power_na.csv", 0, {"power_limit_w": NOT_SUPPORTED, "power_limit_min_w": 5.0, "power_limit_max_w": 175.0}),
        ("smi_query_5090_power_floor.csv", 0, {"power_limit_w": 575.0, "power_limit_min_w": 400.0, "power_limit_max_w": 600.0}),
        ("smi_query_3080_20gb_modded.csv", 1, {"name": "NVIDIA GeForce RTX 3080", "memory_total_mib": 20480}),
        ("smi_query_mixed_5090_pro6000.csv", 1, {"memory_total_mib": 97887, "compute_capability": "12.0"}),
    ],
)
def test_csv_cells(name, index, expected):
    gpu = csv_gpus(name)[index]
    assert {field: gpu[field].reason if isinstance(gpu[field], Nothing) else gpu[field] for field in expected} == expected


@pytest.mark.parametrize("rc", [0, 15, 255])
@pytest.mark.parametrize("order", [lambda error, rest: error + rest, lambda error, rest: rest + error])
def test_one_of_four_gpus_is_lost_whichever_stream_the_error_is_on(order, rc):
    error, rest = sample("smi_query_610_one_of_four_lost.csv").split("\n", 1)
    reading = smi.parse_csv(order(error + "\n", rest), rc)
    assert (reading.status, reading.error) == ("ok", "")
    assert [gpu["index"] for gpu in reading.gpus] == [0, 2, 3]
    assert [(failure.index, failure.pci_bus_id) for failure in reading.failures] == [(1, "00000000:34:00.0")]


def test_a_line_that_is_cut_off_loses_its_last_cell_only():
    text = sample("smi_query_3080_20gb_modded.csv")
    cut = text[: text.rindex("480 MiB")]
    gpu = smi.parse_csv(cut).gpus[1]
    assert gpu["pci_bus_id"] == "00000000:0A:00.0"
    assert "memory_total_mib" not in gpu, "20 of 20480"


def test_a_deprecated_value_is_not_supported():
    assert (
        absent(smi.parse_csv("index, pstate\n0, [Requested functionality has been deprecated]\n").gpus[0]["performance_state"])
        == NOT_SUPPORTED
    )


def test_the_query_asks_for_what_this_nvidia_smi_knows():
    known = smi.parse_query_fields(sample("smi_h200_help_query.txt"))
    arguments = smi.query_arguments(known)
    fields = arguments[0].removeprefix("--query-gpu=").split(",")
    assert set(fields) <= set(known)
    assert {"index", "uuid", "pci.bus_id", "memory.total", "compute_cap", "driver_version"} <= set(fields)
    assert smi.query_arguments(["index", "gpu_uuid"]) == ("--query-gpu=index,gpu_uuid", "--format=csv")


def test_an_unknown_field_fails_the_query():
    assert smi.parse_csv(sample("smi_h200_err_bad_field.txt"), 2).error == "unknown_field"


def test_processes_of_the_compute_query():
    assert smi.parse_apps(sample("smi_h200_apps_none.csv")) == {}
    text = "gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n"
    text += "GPU-1, 2505781, sglang::scheduler_DP0_TP0_EP0, 100998 MiB\nGPU-1, 7, [Not Found], [N/A]\n"
    assert smi.parse_apps(text) == {
        "GPU-1": [
            {"pid": 7, "name": None, "type": "C", "memory_used_mib": None},
            {"pid": 2505781, "name": "sglang::scheduler_DP0_TP0_EP0", "type": "C", "memory_used_mib": 100998},
        ]
    }


# --- text --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "driver", "cuda"),
    [
        ("smi_version_590.txt", "590.48.01", "13.1"),
        ("smi_version_610.txt", "610.57.04", "13.3"),
        ("smi_h200_version.txt", "580.159.04", "13.0"),
        ("smi_table_610_header.txt", "610.57.04", "13.3"),
        ("smi_q_610_header.txt", "610.57.04", "13.3"),
        ("smi_table_gb10_580.txt", "580.126.09", "13.0"),
        ("smi_table_jetson_orin_540.txt", "540.4.0", "12.6"),
        ("smi_table_jetson_driver_na_540.txt", NOT_SUPPORTED, "12.2"),
        ("smi_q_vgpu_host_cuda_not_found.txt", "580.105.06", UNKNOWN),
        ("smi_table_mig_h200.txt", "590.48.01", "13.1"),
        ("smi_table_err_fields.txt", "595.71.05", "13.2"),
        ("smi_h200_table.txt", "580.159.04", "13.0"),
        ("smi_h200_q.txt", "580.159.04", "13.0"),
    ],
)
def test_versions_of_every_text(name, driver, cuda):
    found = smi.parse_versions(sample(name))
    assert [cell.reason if isinstance(cell, Nothing) else cell for cell in (found["driver_version"], found["cuda_driver_version"])] == [
        driver,
        cuda,
    ]


# --- whatever comes ----------------------------------------------------------------------------------------------------

WORDS = [
    "N/A",
    "[N/A]",
    "[Not Supported]",
    "ERR!",
    "[GPU is lost]",
    "[Unknown Error]",
    "Insufficient Permissions",
    "",
    "None",
    "\ufffd\ufffd",
    "9" * 40,
    "-1 MiB",
    "1e9 MiB",
    "NaN",
    "&",
    "<",
    "0x",
]
XML_TEXTS = [path.name for path in SAMPLES.glob("*.xml")]
CSV_TEXTS = [path.name for path in SAMPLES.glob("smi_*query*.csv") if "nounits" not in path.name]


@st.composite
def damaged(draw, names):
    """A sample with cells replaced, names changed, lines lost, and an end that may be missing."""
    text = sample(draw(st.sampled_from(names)))
    lines = text.splitlines(keepends=True)
    for _count in range(draw(st.integers(0, 6))):
        number = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["cell", "drop", "rename", "bytes"]))
        line = lines[number]
        if how == "cell":
            cells = re.split(r"(>[^<]*<|, )", line)
            position = draw(st.integers(0, len(cells) - 1))
            word = draw(st.sampled_from(WORDS))
            cells[position] = f">{word}<" if cells[position].startswith(">") else word
            lines[number] = "".join(cells)
        elif how == "drop":
            lines[number] = ""
        elif how == "rename":
            lines[number] = line.replace("memory", "storage").replace("pci", "bus", 1)
        else:
            lines[number] = bytes(draw(st.binary(max_size=20))).decode(errors="replace") + line[draw(st.integers(0, len(line))) :]
    text = "".join(lines)
    return text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text


def numbers(cells):
    """Every number of a reading but those that are counted or added up."""
    for field, cell in cells.items():
        if field == "index" or field.startswith("ecc_errors") or isinstance(cell, (Nothing, bool)):
            continue
        if isinstance(cell, (int, float)):
            yield field, cell
        elif isinstance(cell, list):
            for entry in cell:
                yield from numbers(entry)


def assert_nothing_invented(reading, text):
    stand_in_text = {float(found) for found in re.findall(r"-?\d+(?:\.\d+)?", text, re.ASCII)}
    for gpu in reading.gpus:
        for field, value in numbers(gpu):
            assert float(value) in stand_in_text, (field, value)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(damaged(XML_TEXTS), st.sampled_from([0, 0, 14, 255, None]))
def test_damaged_xml_never_raises_and_gives_no_number_that_is_not_there(text, rc):
    assert_nothing_invented(smi.parse_xml(text, rc), text)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damaged(CSV_TEXTS), st.sampled_from([0, 0, 255, None]))
def test_damaged_csv_never_raises_and_gives_no_number_that_is_not_there(text, rc):
    assert_nothing_invented(smi.parse_csv(text, rc), text)


@settings(max_examples=80, deadline=None)
@given(damaged(["smi_h200_q.txt", "smi_q_wsl2_510.txt", "smi_version_610.txt", "smi_table_610_header.txt"]))
def test_damaged_text_never_raises(text):
    assert smi.parse_versions(text).keys() <= {"driver_version", "cuda_driver_version", "driver_userland_version"}


def test_memory_need_not_add_up():
    # Cases A38: each part is rounded up by itself.
    (gpu,) = smi.parse_xml(sample("smi_h200_qx.xml")).gpus
    assert gpu["memory_used_mib"] + gpu["memory_free_mib"] + gpu["memory_reserved_mib"] == gpu["memory_total_mib"] + 1


@pytest.mark.parametrize(("output", "expected"), [("12\n640\n", [12, 640]), ("[N/A]\n", [NOT_SUPPORTED]), ("\n", [])])
def test_memory_in_use_of_several_gpus_or_none(output, expected):
    # Case A42: one line a GPU, which may hold no number.
    gpus = smi.parse_csv(output, fields=["memory.used"]).gpus
    cells = [gpu.get("memory_used_mib") for gpu in gpus]
    assert [cell.reason if isinstance(cell, Nothing) else cell for cell in cells] == expected


def test_a_jetson_has_a_gpu_about_which_little_is_said():
    # Case A03: the table of a Jetson Orin as CSV.
    (gpu,) = smi.parse_csv("index, name, pci.bus_id, memory.total [MiB], pstate\n0, Orin (nvgpu), [N/A], [N/A], [N/A]\n").gpus
    assert (gpu["index"], gpu["name"]) == (0, "Orin (nvgpu)")
    assert {absent(gpu[field]) for field in ("pci_bus_id", "memory_total_mib", "performance_state")} == {NOT_SUPPORTED}
