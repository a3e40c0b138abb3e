from __future__ import annotations

import pathlib

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_inventory as core
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_smi, _gpu_system
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import (
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNKNOWN,
    Failure,
    Nothing,
    Reading,
)

SAMPLES = pathlib.Path(__file__).parents[3] / "fixtures/gpu"


def sample(name):
    return (SAMPLES / name).read_text(encoding="utf-8", errors="replace")


def by_csv(name):
    return _gpu_smi.parse_csv(sample(name))


def by_lspci(name):
    return _gpu_system.pci_reading("lspci", _gpu_system.lspci_devices(sample(name)))


def unite(*readings):
    return core.unite(readings)


def one(*readings):
    (gpu,) = unite(*readings)["gpus"]
    return gpu


HOST = Reading("system", host={"container": False, "virtualization": "none"})
CONTAINER = Reading("system", host={"container": True, "virtualization": "lxc", "device_nodes": []})


def test_every_field_is_always_there():
    gpu = one(Reading("sysfs", gpus=[{"pci_bus_id": "00000000:01:00.0"}]))
    assert set(core.GPU_FIELDS) <= set(gpu)
    assert (gpu["mig_devices"], gpu["processes"], gpu["name"], gpu["reasons"]) == ([], [], None, {})
    assert set(core.HOST_FIELDS) | set(core.HOST_LISTS) <= set(unite())


def test_the_better_source_wins_and_each_value_says_where_it_comes_from():
    gpu = one(
        Reading(
            "nvml", gpus=[{"index": 0, "pci_bus_id": "00000000:01:00.0", "name": "NVIDIA RTX A6000", "numa_node": Nothing(NOT_SUPPORTED)}]
        ),
        Reading("sysfs", gpus=[{"pci_bus_id": "00000000:01:00.0", "numa_node": 1, "kernel_driver": "nvidia", "name": "other"}]),
    )
    assert (gpu["name"], gpu["numa_node"], gpu["kernel_driver"]) == ("NVIDIA RTX A6000", 1, "nvidia")
    assert {field: gpu["sources"][field] for field in ("name", "numa_node", "kernel_driver")} == {
        "name": "nvml",
        "numa_node": "sysfs",
        "kernel_driver": "sysfs",
    }
    assert "numa_node" not in gpu["reasons"]


def test_of_two_kinds_of_nothing_the_one_that_says_more_stays():
    cells = [{"uuid": "GPU-1", "serial": Nothing(UNKNOWN)}, {"uuid": "GPU-1", "serial": Nothing(NO_PERMISSION)}]
    for order in (cells, cells[::-1]):
        gpu = one(Reading("nvml", gpus=[order[0]]), Reading("nvidia_smi_csv", gpus=[order[1]]))
        assert gpu["reasons"] == {"serial": NO_PERMISSION}


def test_gpus_are_the_same_by_address_then_uuid_then_index():
    result = unite(
        Reading("nvml", gpus=[{"index": 0, "uuid": "GPU-1"}, {"index": 1, "uuid": "GPU-2", "pci_bus_id": "00000000:02:00.0"}]),
        Reading(
            "nvidia_smi_csv", gpus=[{"uuid": "GPU-1", "pci_bus_id": "00000000:01:00.0"}, {"index": 1, "pci_bus_id": "00000000:02:00.0"}]
        ),
        Reading("sysfs", gpus=[{"pci_bus_id": "00000000:01:00.0", "kernel_driver": "nvidia"}, {"pci_bus_id": "00000000:03:00.0"}]),
    )
    assert [(gpu["index"], gpu["pci_bus_id"]) for gpu in result["gpus"]] == [
        (0, "00000000:01:00.0"),
        (1, "00000000:02:00.0"),
        (None, "00000000:03:00.0"),
    ]


def test_two_addresses_are_never_one_gpu_though_index_or_uuid_agree():
    readings = [
        Reading("nvml", gpus=[{"index": 0, "pci_bus_id": "00000000:01:00.0"}]),
        Reading("proc", gpus=[{"index": 0, "pci_bus_id": "00000000:02:00.0"}]),
    ]
    assert len(unite(*readings)["gpus"]) == 2


@pytest.mark.parametrize(
    ("name", "index", "expected"),
    [
        (
            "smi_query_gb10.csv",
            0,
            {"memory_kind": "unified", "memory_total_mib": None, "health": "ok", "usable": True, "architecture": "Blackwell"},
        ),
        ("smi_query_mig_container_noperm.csv", 0, {"memory_kind": None, "memory_total_mib": None, "health": "ok"}),
        ("smi_query_mig_h200.csv", 0, {"mig_enabled": True, "usable": False, "memory_kind": "framebuffer"}),
        ("smi_query_requires_reset.csv", 0, {"health": "needs_reset", "usable": False}),
        ("smi_query_requires_reset.csv", 1, {"health": "ok", "usable": True}),
        ("smi_query_unknown_error.csv", 0, {"health": "degraded", "usable": True}),
        ("smi_query_legacy_not_supported.csv", 0, {"health": "ok", "power_limit_settable": False}),
        ("smi_query_laptop_power_na.csv", 0, {"power_limit_settable": False, "power_limit_w": None}),
        ("smi_query_5090_power_floor.csv", 0, {"power_limit_settable": True, "power_limit_min_w": 400.0}),
        ("smi_query_l40s_idle_util100.csv", 0, {"health": "ok", "usable": True, "processes": []}),
        ("smi_query_3080_20gb_modded.csv", 0, {"memory_total_mib": 20480}),
    ],
)
def test_what_follows_from_the_cells(name, index, expected):
    gpu = unite(by_csv(name))["gpus"][index]
    assert {field: gpu[field] for field in expected} == expected


def test_reasons_are_kept_apart():
    gpu = one(by_csv("smi_query_mig_container_noperm.csv"))
    assert (gpu["reasons"]["memory_total_mib"], gpu["reasons"]["utilization_gpu_percent"]) == (NO_PERMISSION, NOT_SUPPORTED)


def test_one_of_four_is_lost():
    gpus = unite(by_csv("smi_query_610_one_of_four_lost.csv"))["gpus"]
    assert [(gpu["index"], gpu["health"], gpu["usable"]) for gpu in gpus] == [
        (0, "ok", True),
        (1, "lost", False),
        (2, "ok", True),
        (3, "ok", True),
    ]
    assert gpus[1]["pci_bus_id"] == "00000000:34:00.0"


def test_a_failure_without_address_is_the_gpu_that_only_sysfs_shows():
    gpus = unite(
        Reading("nvidia_smi_csv", gpus=[{"index": 0, "pci_bus_id": "00000000:01:00.0"}], failures=[Failure(1, None, "lost", "GPU1: ...")]),
        Reading("sysfs", gpus=[{"pci_bus_id": f"00000000:0{bus}:00.0", "kernel_driver": "nvidia"} for bus in (1, 2)]),
    )["gpus"]
    assert [(gpu["index"], gpu["pci_bus_id"], gpu["health"]) for gpu in gpus] == [
        (0, "00000000:01:00.0", "ok"),
        (1, "00000000:02:00.0", "lost"),
    ]


BUS = [f"00000000:0{number}:00.0" for number in range(1, 5)]
ON_BUS = Reading("sysfs", gpus=[{"pci_bus_id": address, "kernel_driver": "nvidia"} for address in BUS])


def listed(*indices):
    return [{"index": index, "pci_bus_id": BUS[index]} for index in indices]


def test_nvml_names_lost_gpus_by_index_and_nvidia_smi_by_address():
    nvml = Reading("nvml", gpus=listed(0, 3), failures=[Failure(2, None, "lost", ""), Failure(1, None, "unknown", "")])
    smi = Reading("nvidia_smi_xml", gpus=listed(0, 3), failures=[Failure(None, BUS[1], "lost", ""), Failure(None, BUS[2], "lost", "")])
    expected = [(0, BUS[0], "ok"), (1, BUS[1], "lost"), (2, BUS[2], "lost"), (3, BUS[3], "ok")]
    for readings in ((nvml, smi, ON_BUS), (nvml, smi), (smi, nvml, ON_BUS)):
        assert [(gpu["index"], gpu["pci_bus_id"], gpu["health"]) for gpu in unite(HOST, *readings)["gpus"]] == expected
    # By index alone, sysfs has the addresses.
    alone = unite(HOST, nvml, ON_BUS)["gpus"]
    assert [(gpu["index"], gpu["pci_bus_id"]) for gpu in alone] == [(index, address) for index, address, _health in expected]


def test_of_what_is_said_of_a_lost_gpu_the_worst_counts():
    readings = [
        Reading("nvml", failures=[Failure(1, BUS[1], "unknown", "")]),
        Reading("nvidia_smi_csv", failures=[Failure(1, BUS[1], "lost", "")]),
    ]
    assert one(HOST, *readings)["health"] == "lost"


def test_a_gpu_that_is_listed_without_its_address_is_the_one_on_the_bus():
    gpu = one(HOST, Reading("nvidia_smi_csv", gpus=[{"index": 0, "name": "A"}]), Reading("sysfs", gpus=ON_BUS.gpus[:1]))
    assert (gpu["name"], gpu["pci_bus_id"], gpu["kernel_driver"], gpu["sources"]["kernel_driver"]) == ("A", BUS[0], "nvidia", "sysfs")


@pytest.mark.parametrize("error", ["driver_library_mismatch", "nvml_unknown", "timed_out"])
def test_a_host_that_could_not_be_looked_at_is_not_one_without_gpu(error):
    assert unite(HOST, Reading("nvidia_smi_xml", "failed", error))["group_names"] == []
    assert unite(HOST, Reading("nvidia_smi_xml", "failed", "no_devices"))["group_names"] == ["gpu_none"]


def test_a_name_that_gives_no_group_name_makes_none():
    assert unite(HOST, Reading("nvml", gpus=[{"index": 0, "name": "---", "architecture": "Ampere"}]))["group_names"] == ["gpu_arch_ampere"]


@pytest.mark.parametrize(
    ("name", "health", "driver"),
    [
        ("lspci_nnk_nouveau_bound.txt", ["no_driver"], ["nouveau"]),
        ("lspci_nnk_no_driver.txt", ["no_driver"], [None]),
        ("lspci_nnk_vfio_turing_4_functions.txt", ["passed_through"], ["vfio-pci"]),
        ("lspci_nnk_3090_nvidia.txt", ["unknown", "unknown"], ["nvidia", "nvidia"]),
    ],
)
def test_gpus_that_no_driver_source_lists(name, health, driver):
    gpus = unite(HOST, by_lspci(name))["gpus"]
    assert ([gpu["health"] for gpu in gpus], [gpu["kernel_driver"] for gpu in gpus]) == (health, driver)
    assert not any(gpu["usable"] for gpu in gpus)


def test_a_container_has_the_gpus_that_its_driver_lists_and_no_others():
    listed = Reading("nvidia_smi_csv", gpus=[{"index": 0, "pci_bus_id": "00000000:01:00.0"}])
    gpus = unite(CONTAINER, listed, by_lspci("lspci_nnk_3090_nvidia.txt"))["gpus"]
    assert [gpu["pci_bus_id"] for gpu in gpus] == ["00000000:01:00.0"]


def test_without_userland_a_container_has_the_gpus_whose_nodes_it_has():
    nodes = [{"path": "/dev/nvidia1", "kind": "character"}]
    system = Reading("system", host={**CONTAINER.host, "device_nodes": nodes})
    proc = Reading(
        "proc", gpus=[{"pci_bus_id": "00000000:01:00.0", "minor_number": 0}, {"pci_bus_id": "00000000:41:00.0", "minor_number": 1}]
    )
    gpus = unite(system, Reading("nvidia_smi_xml", "missing"), proc, by_lspci("lspci_nnk_3090_nvidia.txt"))["gpus"]
    assert [gpu["pci_bus_id"] for gpu in gpus] == ["00000000:41:00.0"]


@pytest.mark.parametrize(
    ("devices", "total"),
    [
        ([(2, 71424), (2, 71424), (3, 33280)], 104704),  # two compute instances share a GPU instance (case A07)
        ([(1, 19968), (2, 19968)], 39936),
        ([(1, 19968), (2, None)], None),
        ([], None),
    ],
)
def test_memory_of_mig_counts_each_gpu_instance_once(devices, total):
    assert core.mig_memory_mib([{"gpu_instance_id": instance, "memory_total_mib": size} for instance, size in devices]) == total


@pytest.mark.parametrize(
    ("cells", "health"),
    [
        ({"recovery_action": "none"}, "ok"),
        ({"recovery_action": "reset"}, "needs_reset"),
        ({"recovery_action": "reboot"}, "needs_reset"),
        ({"recovery_action": "system_reboot"}, "needs_reset"),
        ({"recovery_action": "bus_reset"}, "needs_reset"),
        ({"recovery_action": "something_new"}, "degraded"),
        ({"remapped_rows_failure": True}, "degraded"),
        ({"remapped_rows_pending": True}, "degraded"),
        ({"ecc_errors_uncorrected_volatile": 3}, "degraded"),
        ({"ecc_errors_uncorrected_aggregate": 3}, "ok"),
        ({"temperature_c": Nothing(UNKNOWN, "[GPU is lost]")}, "lost"),
        ({"temperature_c": Nothing(UNKNOWN, "ERR!")}, "degraded"),
        ({"utilization_gpu_percent": 100}, "ok"),
    ],
)
def test_health(cells, health):
    assert one(Reading("nvml", gpus=[{"index": 0, **cells}]))["health"] == health


def test_the_table_says_what_no_source_does():
    gpu = one(HOST, by_lspci("lspci_nnk_nouveau_bound.txt"))
    assert (gpu["architecture"], gpu["compute_capability"], gpu["sources"]["architecture"]) == ("Ampere", "8.6", "generation_table")
    assert gpu["generation"]["kernel_module_flavours"] == ["open", "proprietary"]
    unknown = one(
        HOST, Reading("sysfs", gpus=[{"pci_bus_id": "00000000:01:00.0", "pci_device_id": "10de:ffff", "name": "NVIDIA GeForce RTX 9090"}])
    )
    assert (unknown["generation"], unknown["architecture"]) == (None, None)


def test_the_device_id_says_more_than_the_capability():
    h200 = one(Reading("nvml", gpus=[{"index": 0, "compute_capability": "9.0", "pci_device_id": "10de:2335"}]))
    assert h200["generation"]["kernel_module_flavours"] == ["open", "proprietary"]
    assert one(Reading("nvml", gpus=[{"index": 0, "compute_capability": "9.0"}]))["generation"]["kernel_module_flavours"] == ["open"]


def test_names_of_groups():
    assert unite(by_csv("smi_query_mixed_5090_pro6000.csv"))["group_names"] == [
        "gpu_geforce_rtx_5090",
        "gpu_rtx_pro_6000_blackwell_workstation_edition",
        "gpu_arch_blackwell",
    ]
    a6000 = Reading("nvml", gpus=[{"index": index, "name": "NVIDIA RTX A6000", "architecture": "Ampere"} for index in range(2)])
    assert unite(a6000)["group_names"] == ["gpu_rtx_a6000", "gpu_arch_ampere"]
    assert unite(HOST)["group_names"] == ["gpu_none"]
    assert unite(HOST, by_lspci("lspci_nnk_vfio_turing_4_functions.txt"))["group_names"] == ["gpu_none"]


def test_the_fabric_is_as_ready_as_its_slowest_gpu():
    def fabric(*states):
        return unite(Reading("nvml", gpus=[{"index": index, "fabric_state": state} for index, state in enumerate(states)]))["fabric_state"]

    assert fabric("completed", "in_progress") == "in_progress"
    assert fabric("completed", "completed") == "completed"
    assert fabric(Nothing(NOT_SUPPORTED, "N/A")) == "not_supported"
    assert fabric(Nothing(UNKNOWN)) is None
