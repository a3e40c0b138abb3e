from __future__ import annotations

import pathlib

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_inventory, _gpu_problems, _gpu_smi, _gpu_system
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import NOT_SUPPORTED, UNKNOWN, Nothing, Reading

SAMPLES = pathlib.Path(__file__).parents[3] / "fixtures/gpu"
RELEASE = "6.17.9-generic"


def sample(name):
    return (SAMPLES / name).read_text(encoding="utf-8", errors="replace")


def host(**cells):
    return Reading("system", host={"container": False, "virtualization": "none", **cells})


def lxc(**cells):
    return Reading("system", host={"container": True, "virtualization": "lxc", **cells})


def by_lspci(name):
    return _gpu_system.pci_reading("lspci", _gpu_system.lspci_devices(sample(name)))


def device(pci_device_id, driver=None, bus="01"):
    return Reading("sysfs", gpus=[{"pci_bus_id": f"00000000:{bus}:00.0", "pci_device_id": pci_device_id, "kernel_driver": driver}])


def proc(name):
    return _gpu_system.proc_reading(sample(name), {})


def failed(name, rc):
    return _gpu_smi.parse_xml(sample(name), rc)


def log(name):
    return {"kernel_findings": _gpu_system.log_findings(sample(name))}


def module(files=(), other_kernels=()):
    return {"kernel_module": _gpu_system.KernelModule(list(files), [], list(other_kernels)), "kernel_release": RELEASE}


NO_LINKS = {"indices": [], "matrix": [], "peer_access": [], "source": None}


def find(*readings, topology=NO_LINKS, **evidence):
    result = {**_gpu_inventory.unite(readings), "topology": topology}
    return _gpu_problems.find(result, readings, _gpu_problems.Evidence(**evidence))


def codes(*readings, **evidence):
    return [problem["code"] for problem in find(*readings, **evidence)]


UVM = {"path": "/dev/nvidia-uvm", "kind": "character", "major": 511, "minor": 0, "mode": "0666", "accessible": True}
WELL = {"index": 0, "pci_bus_id": "00000000:01:00.0", "name": "NVIDIA RTX A6000", "memory_total_mib": 49140, "persistence_mode": True}


def gpus(*changes):
    """A reading with one healthy GPU for each change."""
    return Reading(
        "nvml",
        gpus=[{**WELL, "index": index, "pci_bus_id": f"00000000:0{index + 1}:00.0", **change} for index, change in enumerate(changes)],
    )


def test_a_host_that_is_well_and_a_host_without_gpu_have_no_problem():
    assert codes(host(device_nodes=[UVM]), gpus({}, {})) == []
    assert codes(host()) == []
    assert codes(host(), failed("smi_err_driver_not_loaded.txt", 9)) == [], "the package is installed, there is no GPU (case C30)"


# A16 and section C: the same "No devices were found" or "couldn't communicate" has many causes.
@pytest.mark.parametrize(
    ("readings", "evidence", "expected"),
    [
        ([by_lspci("lspci_nnk_nouveau_bound.txt"), failed("smi_err_driver_not_loaded.txt", 9)], {}, ["nouveau_bound"]),
        ([by_lspci("lspci_nnk_nouveau_bound.txt")], log("dmesg_nouveau_owns_device.txt"), ["nouveau_bound"]),
        (
            [by_lspci("lspci_nnk_vfio_turing_4_functions.txt"), failed("smi_err_no_devices.txt", 6)],
            log("dmesg_vfio_bound.txt"),
            ["passed_through"],
        ),
        ([by_lspci("lspci_nnk_no_driver.txt")], log("modprobe_key_rejected.txt"), ["secure_boot_refused"]),
        ([by_lspci("lspci_nnk_no_driver.txt")], module(), ["driver_not_installed"]),
        ([by_lspci("lspci_nnk_no_driver.txt")], module(other_kernels=["6.17.4-generic"]), ["dkms_build_missing"]),
        ([by_lspci("lspci_nnk_no_driver.txt")], {**module(), **log("dkms_headers_skipped.txt")}, ["dkms_build_missing"]),
        ([by_lspci("lspci_nnk_no_driver.txt")], {**module(), **log("apt_dkms_postinst_fail.txt")}, ["dkms_build_missing"]),
        ([by_lspci("lspci_nnk_no_driver.txt")], module(files=["/lib/modules/x/nvidia.ko"]), ["driver_not_loaded"]),
        (
            [device("10de:2c58", "nvidia", "02"), proc("proc_driver_version_proprietary.txt"), failed("smi_err_no_devices.txt", 6)],
            log("dmesg_blackwell_needs_open.txt"),
            ["wrong_module_flavour"],
        ),
        (
            [
                device("10de:1c81", "nvidia"),
                Reading("proc", host={"driver_version": "595.71.05", "driver_flavour": "open"}),
                failed("smi_err_no_devices.txt", 6),
            ],
            log("dmesg_595_ignores_pascal_legacy580.txt"),
            ["wrong_module_flavour", "driver_branch_too_new"],
        ),
        (
            [device("10de:2bb1", "nvidia"), proc("proc_driver_version_open.txt"), failed("smi_err_no_devices.txt", 6)],
            {"kernel_findings": _gpu_system.log_findings("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:884)")},
            ["no_devices"],
        ),
    ],
)
def test_why_no_gpu_can_be_used(readings, evidence, expected):
    assert codes(host(), *readings, **evidence) == expected


def test_firmware_is_named_when_the_flavour_is_right():
    (problem,) = find(
        host(),
        device("10de:2bb1", "nvidia"),
        proc("proc_driver_version_open.txt"),
        failed("smi_err_no_devices.txt", 6),
        kernel_findings=_gpu_system.log_findings("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:884)"),
    )
    assert "RmInitAdapter failed" in problem["found"]
    assert "Above 4G" in problem["action"]


def test_two_generations_without_a_common_flavour():
    problems = find(host(), device("10de:1b38", None, "01"), device("10de:2b85", None, "02"), **module())
    assert [problem["code"] for problem in problems] == ["no_common_flavour", "driver_not_installed"]
    assert "Pascal" in problems[0]["found"]
    assert "Blackwell" in problems[0]["found"]


def test_secure_boot_is_the_cause_when_a_module_is_there_and_none_is_loaded():
    assert codes(host(secure_boot="enabled", modules_loaded=[]), by_lspci("lspci_nnk_no_driver.txt"), **module(files=["x/nvidia.ko"])) == [
        "secure_boot_refused"
    ]


def test_a_mismatch_names_both_versions_and_the_way_out_of_a_container_is_another():
    readings = [proc("proc_driver_version_open.txt"), failed("smi_err_nvml_mismatch.txt", 18)]
    (problem,) = find(host(), *readings)
    assert problem["code"] == "driver_library_mismatch"
    assert problem["found"] == "the loaded module is 580.126.09, the library is 580.159"
    assert "Reboot" in problem["action"]
    (problem,) = find(lxc(), *readings)
    assert "userland 580.126.09" in problem["action"]
    assert "eboot" not in problem["action"]


@pytest.mark.parametrize(("library", "expected"), [("580.126.09", []), ("580.126", []), ("580.159.03", ["driver_library_mismatch"])])
def test_versions_differ_or_are_only_shorter(library, expected):
    readings = [host(driver_userland_version=library, device_nodes=[UVM]), gpus({}), proc("proc_driver_version_open.txt")]
    assert codes(*readings) == expected


@pytest.mark.parametrize(
    ("reading", "code"),
    [
        (failed("smi_err_libnvidia_ml_missing.txt", 12), "library_missing"),
        (failed("smi_err_nvml_unknown.txt", 255), "nvml_unknown_error"),
        (_gpu_smi.parse_xml("Failed to initialize NVML: Insufficient Permissions", 4), "no_permission"),
        (_gpu_smi.parse_xml("", None), "driver_hangs"),
        (_gpu_smi.parse_xml("Segmentation fault", 139), "source_failed"),
    ],
)
def test_what_nvidia_smi_fails_with(reading, code):
    assert code in codes(host(), device("10de:2230", "nvidia"), proc("proc_driver_version_open.txt"), reading)


def test_a_loaded_driver_that_nothing_can_ask():
    asked = [Reading("nvml", "missing"), Reading("nvidia_smi_xml", "missing")]
    problems = find(host(), *asked, proc("proc_driver_version_open.txt"), device("10de:2230", "nvidia"))
    assert [problem["code"] for problem in problems] == ["userland_missing"]
    assert problems[0]["action"] == "Install the driver's userland, exactly 580.126.09."
    assert "userland_missing" not in codes(host(), Reading("nvml", "missing"), gpus({}), proc("proc_driver_version_open.txt"))
    assert codes(host(), *asked) == []


def test_a_container_that_lost_its_devices_is_told_to_restart():
    problems = find(lxc(), proc("proc_driver_version_open.txt"), failed("smi_err_nvml_unknown.txt", 255))
    assert "restart the container" in problems[0]["action"]


def test_a_container_that_was_given_no_gpu():
    assert codes(
        lxc(), proc("proc_driver_version_open.txt"), failed("smi_err_no_devices.txt", 6), by_lspci("lspci_nnk_3090_nvidia.txt")
    ) == ["no_devices"]


def test_a_lost_gpu_and_one_that_needs_a_reset():
    lost = _gpu_smi.parse_csv(sample("smi_query_610_one_of_four_lost.csv"))
    problems = [problem for problem in find(host(device_nodes=[UVM]), lost) if problem["severity"] == "error"]
    assert [(problem["code"], problem["gpu"]) for problem in problems] == [("gpu_lost", "00000000:34:00.0")]
    assert "GPU 1 (00000000:34:00.0)" in problems[0]["found"]
    reset = _gpu_smi.parse_csv(sample("smi_query_requires_reset.csv"))
    assert "gpu_needs_reset" in codes(host(device_nodes=[UVM]), reset)
    assert find(host(device_nodes=[UVM]), gpus({"recovery_action": "reboot"}))[0]["action"].startswith("Reboot the machine, once")


def test_the_kernels_words_stand_with_the_gpu():
    readings = [
        host(),
        device("10de:2230", "nvidia", "34"),
        Reading("nvml", failures=_gpu_smi.failures_in("Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error")),
    ]
    problems = find(*readings, **log("dmesg_xid79_xid119.txt"))
    assert "Xid (PCI:0000:34:00): 119" in problems[0]["found"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"mig_enabled": False, "mig_enabled_pending": True}, "mig_change_pending"),
        ({"ecc_enabled": False, "ecc_enabled_pending": True}, "ecc_change_pending"),
        ({"remapped_rows_pending": True}, "memory_repair_pending"),
        ({"retired_pages_pending": True}, "memory_repair_pending"),
        ({"remapped_rows_failure": True}, "row_remapping_failed"),
        ({"ecc_errors_uncorrected_volatile": 2}, "ecc_errors"),
        ({"license_status": "Unlicensed"}, "vgpu_unlicensed"),
        ({"persistence_mode": False}, "persistence_off"),
        ({"recovery_action": "something_new"}, "recovery_action"),
        ({"temperature_c": Nothing(UNKNOWN, "ERR!")}, "unreadable_values"),
    ],
)
def test_one_gpu_that_is_not_quite_well(change, code):
    assert codes(host(device_nodes=[UVM]), gpus(change)) == [code]


def test_processes_that_are_not_ours_are_told_and_ours_are_not():
    def process(name, unit, used):
        return {"pid": 7, "name": name, "type": "C", "memory_used_mib": used, "unit": unit}

    def told(*processes):
        return codes(host(device_nodes=[UVM]), gpus({"processes": list(processes)}))

    assert told(process("sglang::scheduler_DP0_TP0_EP0", None, 100998)) == ["foreign_processes"]
    assert told(process("Xorg", None, 300)) == []
    assert told(process("python", "sglang-demo.service", 100998)) == []
    assert told(process("python", "ollama.service", 100998)) == ["foreign_processes"]


@pytest.mark.parametrize(
    ("nodes", "majors", "code"),
    [
        ([], {}, "uvm_missing"),
        ([{**UVM, "kind": "file", "major": None}], {}, "uvm_missing"),
        ([UVM], {"nvidia-uvm": 509}, "uvm_wrong_major"),
        ([{**UVM, "accessible": False}], {"nvidia-uvm": 511}, "no_permission"),
        (_gpu_system.listed_nodes(sample("ls_dev_nvidia_no_uvm.txt")), {}, "uvm_missing"),
        (_gpu_system.listed_nodes(sample("ls_dev_nvidia_full.txt")), {"nvidia-uvm": 511}, None),
    ],
)
def test_device_nodes(nodes, majors, code):
    assert codes(host(device_nodes=nodes, device_majors=majors), gpus({})) == ([code] if code else [])


def test_unequal_gpus_are_told():
    assert codes(host(device_nodes=[UVM]), gpus({}, {"memory_total_mib": 20480})) == ["unequal_gpus"]
    assert "unequal_gpus" in codes(host(device_nodes=[UVM]), _gpu_smi.parse_csv(sample("smi_query_mixed_5090_pro6000.csv")))


@pytest.mark.parametrize(
    ("link", "word", "code"), [("PHB", "GNS", "no_peer_access"), ("PHB", "OK", None), ("NV4", "GNS", None), ("PHB", "U", None)]
)
def test_cards_that_cannot_read_each_others_memory(link, word, code):
    topology = {"indices": [0, 1], "matrix": [["X", link], [link, "X"]], "peer_access": [["X", word], [word, "X"]], "source": "nvml"}
    problems = find(host(device_nodes=[UVM]), gpus({}, {}), topology=topology)
    assert [problem["code"] for problem in problems] == ([code] if code else [])
    assert all("0 and 1 (PHB, GNS)" in problem["found"] for problem in problems)


def test_nvswitches_without_a_ready_fabric():
    switches = [{"pci_bus_id": "00000000:05:00.0", "pci_device_id": "10de:22a3", "kernel_driver": "nvidia-nvswitch"}]
    assert codes(host(device_nodes=[UVM], nvswitches=switches), gpus({"fabric_state": "in_progress"})) == ["fabric_not_ready"]
    assert codes(host(device_nodes=[UVM], nvswitches=switches), gpus({"fabric_state": "completed"})) == []


def test_nvswitches_of_before_hopper_have_no_fabric_state():
    switches = [{"pci_bus_id": "00000000:05:00.0", "pci_device_id": "10de:1af1", "kernel_driver": "nvidia-nvswitch"}]
    a100 = gpus({"fabric_state": Nothing(NOT_SUPPORTED, "N/A"), "name": "NVIDIA A100-SXM4-80GB"})
    assert codes(host(device_nodes=[UVM], nvswitches=switches), a100) == []


def test_a_damaged_answer_is_told_unless_another_source_was_whole():
    damaged = _gpu_smi.parse_xml("<nvidia_smi_log><attached_gpus>2</attached_gpus><gpu id='00000000:01:00.0'/></nvidia_smi_log>")
    assert (damaged.status, damaged.error, len(damaged.gpus)) == ("ok", "damaged", 1)
    assert [(problem["code"], problem["severity"]) for problem in find(host(device_nodes=[UVM]), damaged)] == [("source_failed", "warning")]
    assert codes(host(device_nodes=[UVM]), damaged, gpus({}, {})) == []


def test_alike_gpus_of_which_one_does_not_say_its_memory():
    assert codes(host(device_nodes=[UVM]), gpus({}, {"memory_total_mib": None})) == []


def test_a_gpu_without_address_is_named_by_its_uuid_or_index():
    reading = _gpu_smi.parse_csv(sample("smi_query_requires_reset.csv"))
    named = [problem["gpu"] for problem in find(host(device_nodes=[UVM]), reading) if problem["code"] == "gpu_needs_reset"]
    assert named == ["GPU-00000000-0000-4000-8000-000000000001"]


def test_a_jetson_has_no_uvm_node():
    orin = Reading("nvidia_smi_csv", gpus=[{"index": 0, "name": "Orin (nvgpu)", "memory_total_mib": Nothing(NOT_SUPPORTED, "[N/A]")}])
    assert codes(host(device_nodes=[]), orin) == []


def test_a_newer_module_on_disk_asks_for_a_reboot():
    readings = [host(device_nodes=[UVM]), gpus({}), proc("proc_driver_version_open.txt")]
    assert codes(*readings, disk_version="580.159.04") == ["reboot_required"]
    assert codes(*readings, disk_version="580.126.09") == []


def test_a_page_fault_of_a_gpu_is_told_and_of_another_device_not():
    evidence = log("dmesg_amdvi_xid154.txt")
    assert "iommu_page_fault" in codes(host(device_nodes=[UVM]), gpus({"pci_bus_id": "00000000:09:00.0"}), **evidence)
    assert "iommu_page_fault" not in codes(host(device_nodes=[UVM]), gpus({}), **evidence)


def test_wsl_keeps_memory():
    wsl = gpus({"driver_model": "WDDM", "pci_bus_id": "00000000:01:00.0"})
    assert codes(Reading("system", host={"virtualization": "wsl", "container": False}), wsl) == ["wsl"]


def test_the_worst_comes_first_and_every_problem_is_whole():
    problems = find(host(), gpus({"persistence_mode": False, "ecc_enabled": True, "ecc_enabled_pending": False}))
    assert [problem["severity"] for problem in problems] == ["error", "warning", "info"]
    for problem in problems:
        assert problem["found"] and problem["action"].endswith(".")


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([host(), gpus({})], False),
        ([host()], False),
        ([host(), by_lspci("lspci_nnk_no_driver.txt")], True),
        ([host(), by_lspci("lspci_nnk_vfio_turing_4_functions.txt")], False),
        ([lxc(), gpus({"recovery_action": "reset"})], False),
        ([host(), gpus({}, {"recovery_action": "reset"})], True),
    ],
)
def test_when_the_kernel_log_is_read(readings, expected):
    assert _gpu_problems.needs_kernel_log(_gpu_inventory.unite(readings), readings) is expected
