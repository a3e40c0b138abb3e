from __future__ import annotations

import pathlib
import re
import stat

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_system as system
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import (
    NOT_SUPPORTED,
    UNKNOWN,
    Failure,
    Nothing,
    Reading,
)
from hypothesis import given, settings
from hypothesis import strategies as st

SAMPLES = pathlib.Path(__file__).parents[3] / "fixtures/gpu"


def sample(name):
    return (SAMPLES / name).read_text(encoding="utf-8", errors="replace")


def reasons(cells):
    """Cells without the words of those that are nothing."""
    return {field: value.reason if isinstance(value, Nothing) else value for field, value in cells.items()}


# --- /proc/driver/nvidia -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version", "flavour"),
    [
        (sample("proc_driver_version_h200.txt"), "580.159.04", "open"),
        (sample("proc_driver_version_open.txt"), "580.126.09", "open"),
        (sample("proc_driver_version_proprietary.txt"), "580.105.08", "proprietary"),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8 12:41:17 UTC 2025\r\nGCC version:\r\n",
            "550.163.01",
            "proprietary",
        ),
        # Jetson Orin
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  540.4.0  Release Build  (buildbrain@mobile-u64)\n", "540.4.0", "open"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  610.57\n", "610.57", "proprietary"),
    ],
)
def test_driver(text, version, flavour):
    assert system.driver(text) == {"driver_version": version, "driver_flavour": flavour}


@pytest.mark.parametrize("line", ["?", "NVIDIA UNIX x86_64 Kernel Module  1.0-9639", "NVIDIA UNIX x86_64 Kernel Module  N/A", "580.159.04"])
def test_a_driver_in_unread_words_is_unknown(line):
    assert system.driver(f"NVRM version: {line}\n") == dict.fromkeys(("driver_version", "driver_flavour"), Nothing(UNKNOWN, line))


def test_no_driver():
    assert system.driver("") == {}
    assert system.driver("GCC version:  gcc version 12.2.0\n") == {}
    assert system.proc_reading("", {}) == Reading("proc", "missing")


def test_information_of_a_real_h200():
    assert system.gpu_information("0000:00:06.0", sample("proc_driver_gpu_information_h200.txt")) == {
        "pci_bus_id": "00000000:00:06.0",
        "name": "NVIDIA H200",
        "uuid": "GPU-00000000-0000-4000-8000-000000000200",
        "minor_number": 0,
        "vbios_version": "96.00.A5.00.1A",
        "gsp_firmware_version": "580.159.04",
    }


def test_information_of_a_gpu_that_was_never_initialised():
    text = (
        "Model: \t\t NVIDIA GeForce RTX 5090\nIRQ:   \t\t 16\nGPU UUID: \t GPU-????????-????-????-????-????????????\n"
        "Video BIOS: \t ??.??.??.??.??\nBus Location: \t 0000:01.00.0\nDevice Minor: \t 3\nGPU Firmware: \t N/A\n"
    )
    assert reasons(system.gpu_information("0000:01:00.0", text)) == {
        "pci_bus_id": "00000000:01:00.0",
        "name": "NVIDIA GeForce RTX 5090",
        "uuid": UNKNOWN,
        "minor_number": 3,
        "vbios_version": UNKNOWN,
        "gsp_firmware_version": NOT_SUPPORTED,
    }
    assert system.gpu_information("0000:01:00.0", "") == {"pci_bus_id": "00000000:01:00.0"}


def test_an_excluded_gpu_is_named_and_cannot_be_reached():
    whole = sample("proc_driver_gpu_information_h200.txt")
    reading = system.proc_reading(
        sample("proc_driver_version_h200.txt"),
        {"0000:41:00.0": whole.replace("GPU Excluded:\t No", "GPU Excluded:\t Yes"), "0000:00:06.0": whole},
    )
    assert reading.host["driver_version"] == "580.159.04"
    assert [gpu["pci_bus_id"] for gpu in reading.gpus] == ["00000000:00:06.0", "00000000:41:00.0"]
    assert reading.failures == [Failure(None, "00000000:41:00.0", "unknown", "GPU Excluded: Yes")]


# --- /proc/devices and /dev --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "majors"),
    [
        (
            sample("proc_devices_511_236.txt"),
            {
                "nvidia": 195,
                "nvidia-modeset": 195,
                "nvidiactl": 195,
                "nvidia-caps": 236,
                "nvidia-caps-imex-channels": 237,
                "nvidia-uvm": 511,
            },
        ),
        (
            sample("proc_devices_h200.txt"),
            {
                "nvidia": 195,
                "nvidiactl": 195,
                "nvidia-uvm": 238,
                "nvidia-nvswitch": 239,
                "nvidia-nvlink": 240,
                "nvidia-caps": 241,
                "nvidia-caps-imex-channels": 242,
            },
        ),
        ("Character devices:\n195 nvidia-frontend\nBlock devices:\n259 nvidia-of-nobody\n", {"nvidia-frontend": 195}),
        ("", {}),
    ],
)
def test_device_majors(text, majors):
    assert system.device_majors(text) == majors


def shown(nodes):
    """path -> kind, numbers, mode."""
    assert all(node["accessible"] is None for node in nodes)
    return {node["path"]: (node["kind"], node["major"], node["minor"], node["mode"]) for node in nodes}


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        (
            sample("ls_dev_nvidia_h200.txt"),
            {
                "/dev/nvidia0": ("character", 195, 0, "0666"),
                "/dev/nvidiactl": ("character", 195, 255, "0666"),
                "/dev/nvidia-uvm": ("character", 238, 0, "0666"),
                "/dev/nvidia-uvm-tools": ("character", 238, 1, "0666"),
                "/dev/nvidia-caps/nvidia-cap1": ("character", 241, 1, "0400"),
                "/dev/nvidia-caps/nvidia-cap2": ("character", 241, 2, "0444"),
            },
        ),
        (
            sample("ls_dev_nvidia_full.txt"),
            {
                "/dev/nvidia-modeset": ("character", 195, 254, "0666"),
                "/dev/nvidia-uvm": ("character", 511, 0, "0666"),
                "/dev/nvidia-uvm-tools": ("character", 511, 1, "0666"),
                "/dev/nvidia0": ("character", 195, 0, "0666"),
                "/dev/nvidiactl": ("character", 195, 255, "0666"),
            },
        ),
        (
            sample("ls_dev_nvidia_no_uvm.txt"),
            {"/dev/nvidia0": ("character", 195, 0, "0666"), "/dev/nvidiactl": ("character", 195, 255, "0666")},
        ),
        # An empty file where a device should be (case C17), with and without a date
        ("-rw-r--r-- 1 root root 0 Jul 21 11:50 /dev/nvidia-uvm\n", {"/dev/nvidia-uvm": ("file", None, None, "0644")}),
        ("-rw-r--r-- 1 root root 0 /dev/nvidia-uvm\n", {"/dev/nvidia-uvm": ("file", None, None, "0644")}),
        ("drwxr-xr-x 2 root root 80 Jul 21  2024 /dev/nvidia-caps\n", {"/dev/nvidia-caps": ("directory", None, None, "0755")}),
        ("lrwxrwxrwx 1 root root 7 Jul 21 11:50 /dev/nvidia-x -> nvidia0\n", {"/dev/nvidia-x": ("other", None, None, "0777")}),
        # ACL and SELinux marks, ISO dates, set-uid and sticky bits, carriage returns
        ("crw-rw----+ 1 root video 195,   3 2026-07-21 11:50 /dev/nvidia3\r\n", {"/dev/nvidia3": ("character", 195, 3, "0660")}),
        ("crwsrwSrwT. 1 0 0 195, 4 Jul 21 11:50 /dev/nvidia4\n", {"/dev/nvidia4": ("character", 195, 4, "7766")}),
        # `ls -l /dev`
        (
            "total 0\ncrw-rw-rw- 1 root root 195, 5 Jul 21 11:50 nvidia5\ncrw-rw-rw- 1 root root 1, 3 Jul 21 11:50 null\n",
            {"/dev/nvidia5": ("character", 195, 5, "0666")},
        ),
        ("ls: cannot access '/dev/nvidia*': No such file or directory\n", {}),
        ("ls: cannot open directory '/dev/nvidia-caps': Permission denied\n", {}),
        ("", {}),
    ],
)
def test_listed_nodes(text, nodes):
    assert shown(system.listed_nodes(text)) == nodes


@pytest.mark.parametrize(
    ("mode", "kind", "major", "minor", "permissions"),
    [
        (stat.S_IFCHR | 0o666, "character", 195, 255, "0666"),
        (stat.S_IFREG | 0o4755, "file", None, None, "4755"),
        (stat.S_IFDIR | 0o755, "directory", None, None, "0755"),
        (stat.S_IFIFO | 0o600, "other", None, None, "0600"),
    ],
)
def test_device_node(mode, kind, major, minor, permissions):
    assert system.device_node("/dev/nvidiactl", mode, 195 << 8 | 255, accessible=True) == {
        "path": "/dev/nvidiactl",
        "kind": kind,
        "major": major,
        "minor": minor,
        "mode": permissions,
        "accessible": True,
    }


# --- PCI ---------------------------------------------------------------------------------------------------------------


def captured_sysfs():
    """The capture as the mapping that the module makes of /sys/bus/pci/devices."""
    devices, attributes = {}, {}
    for line in sample("sysfs_pci_h200.txt").splitlines():
        if line.startswith("## "):
            attributes = devices[line.rpartition("/")[2]] = {}
        elif "=" in line:
            key, _, value = line.partition("=")
            attributes[key] = value.rpartition("/")[2] if key == "driver" else value
    return devices


H200 = captured_sysfs()


def test_sysfs_of_a_real_h200():
    reading = system.pci_reading("sysfs", H200)
    assert (reading.source, reading.status, reading.host) == ("sysfs", "ok", {"nvswitches": []})
    (gpu,) = reading.gpus
    assert gpu == {
        "pci_bus_id": "00000000:00:06.0",
        "pci_device_id": "10de:2335",
        "pci_subsystem_id": "10de:18bf",
        "kernel_driver": "nvidia",
        "numa_node": Nothing(UNKNOWN, "-1"),
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
    }


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        (
            "lspci_nnk_3090_nvidia.txt",
            [("00000000:01:00.0", "10de:2204", "1458:4043", "nvidia"), ("00000000:41:00.0", "10de:2204", "1028:3880", "nvidia")],
        ),
        ("lspci_nnk_vfio_turing_4_functions.txt", [("00000000:65:00.0", "10de:1e82", None, "vfio-pci")]),
        ("lspci_nnk_nouveau_bound.txt", [("00000000:01:00.0", "10de:2230", "10de:1459", "nouveau")]),
        ("lspci_nnk_no_driver.txt", [("00000000:01:00.0", "10de:2bb1", "10de:204b", None)]),
    ],
)
def test_lspci(name, gpus):
    reading = system.pci_reading("lspci", system.lspci_devices(sample(name)))
    assert [(gpu["pci_bus_id"], gpu["pci_device_id"], gpu.get("pci_subsystem_id"), gpu["kernel_driver"]) for gpu in reading.gpus] == gpus


# One machine, as lspci prints it with different options.
SWITCHES = """\
0000:05:00.0 Bridge [0680]: NVIDIA Corporation GH100 [H100 NVSwitch] [10de:22a3] (rev a1)
\tSubsystem: NVIDIA Corporation Device [10de:1796]
\tKernel driver in use: nvidia-nvswitch
\tKernel modules: nvidiafb, nouveau, nvidia_drm, nvidia
0000:06:00.0 Bridge [0680]: NVIDIA Corporation Device [10de:22a3] (rev a1)
\tSubsystem: NVIDIA Corporation Device [10de:1796]
0000:18:00.0 3D controller [0302]: NVIDIA Corporation Device [10de:2330] (rev a1)
\tSubsystem: NVIDIA Corporation Device [10de:16c1]
\tKernel driver in use: nvidia
0000:19:00.0 Ethernet controller [0200]: Mellanox Technologies MT2910 Family [ConnectX-7] [15b3:1021]
\tKernel driver in use: mlx5_core
0000:1a:00.0 PCI bridge [0604]: NVIDIA Corporation Device [10de:22b8]
\tKernel driver in use: pcieport
0001:03:00.0 VGA compatible controller [0300]: ASPEED Technology, Inc. ASPEED Graphics Family [1a03:2000] (rev 52)
\tKernel driver in use: ast
10000:e1:00.0 Non-Volatile memory controller [0108]: Samsung Electronics Co Ltd [144d:a80a]
"""
NUMBERS = """\
05:00.0 0680: 10de:22a3 (rev a1)
06:00.0 0680: 10de:22a3 (rev a1)
18:00.0 0302: 10de:2330 (rev a1)
19:00.0 0200: 15b3:1021
"""


def test_nvswitches_are_bridges_of_nvidia():
    reading = system.pci_reading("lspci", system.lspci_devices(SWITCHES))
    assert reading.host == {
        "nvswitches": [
            {"pci_bus_id": "00000000:05:00.0", "pci_device_id": "10de:22a3", "kernel_driver": "nvidia-nvswitch"},
            {"pci_bus_id": "00000000:06:00.0", "pci_device_id": "10de:22a3", "kernel_driver": None},
        ]
    }
    assert reading.gpus == [
        {"pci_bus_id": "00000000:18:00.0", "pci_device_id": "10de:2330", "pci_subsystem_id": "10de:16c1", "kernel_driver": "nvidia"}
    ]


def test_what_is_not_known_of_an_nvswitch_is_null():
    bridge = {"vendor": "0x10de", "class": "0x068000"}
    assert system.pci_reading("sysfs", {"0000:05:00.0": bridge}).host["nvswitches"] == [
        {"pci_bus_id": "00000000:05:00.0", "pci_device_id": None, "kernel_driver": None}
    ]


def test_lspci_without_drivers_does_not_say_that_there_is_none():
    reading = system.pci_reading("lspci", system.lspci_devices(NUMBERS))
    assert reading.gpus == [{"pci_bus_id": "00000000:18:00.0", "pci_device_id": "10de:2330"}]
    assert len(reading.host["nvswitches"]) == 2
    with_drivers = system.lspci_devices("18:00.0 0302: 10de:2330 (rev a1)\n\tSubsystem: 10de:16c1\n\tKernel driver in use: vfio-pci\n")
    assert system.pci_reading("lspci", with_drivers).gpus == [
        {"pci_bus_id": "00000000:18:00.0", "pci_device_id": "10de:2330", "pci_subsystem_id": "10de:16c1", "kernel_driver": "vfio-pci"}
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "01:00.0 VGA compatible controller: NVIDIA Corporation GA102 [GeForce RTX 3090] (rev a1)\n\tKernel driver in use: nvidia\n",
        "pcilib: Cannot open /proc/bus/pci\nlspci: Cannot find any working access method.\n",
        "00:02.0 VGA compatible controller [0300]: Intel Corporation Device [8086:4680]\n",
    ],
)
def test_no_gpu_is_an_answer(text):
    assert system.pci_reading("lspci", system.lspci_devices(text)) == Reading("lspci", host={"nvswitches": []}, gpus=[])


def test_virtual_functions_are_no_gpus():
    """An SR-IOV vGPU host: sysfs says it with a link; in lspci they are devices of the card's number beside it."""
    card = {"vendor": "0x10de", "device": "0x25b6", "class": "0x030200", "driver": "nvidia"}
    by_link = {"0000:41:00.0": card, "0000:41:01.0": {**card, "physfn": "0000:41:00.0"}}
    by_place = dict.fromkeys(("0000:41:00.0", "0000:41:00.4", "0000:41:00.5", "0000:41:01.0", "0000:42:00.0"), card)
    assert [gpu["pci_bus_id"] for gpu in system.pci_reading("sysfs", by_link).gpus] == ["00000000:41:00.0"]
    assert [gpu["pci_bus_id"] for gpu in system.pci_reading("lspci", by_place).gpus] == ["00000000:41:00.0", "00000000:42:00.0"]


def test_a_guest_has_many_gpus_on_one_bus():
    card = {"vendor": "10de", "device": "2335", "class": "0302"}
    addresses = ["00:06.0", "00:07.0", "00:08.0"]
    assert len(system.pci_reading("lspci", dict.fromkeys(addresses, card)).gpus) == 3


def test_a_card_maker_that_wrote_no_number():
    device = {**H200["0000:00:06.0"], "subsystem_vendor": "0x0000", "subsystem_device": "0x0000"}
    assert "pci_subsystem_id" not in system.pci_reading("sysfs", {"0000:00:06.0": device}).gpus[0]


@pytest.mark.parametrize(
    ("speed", "generation"),
    [
        ("2.5 GT/s PCIe", 1),
        ("5.0 GT/s PCIe", 2),
        ("5 GT/s", 2),
        ("8.0 GT/s PCIe", 3),
        ("16.0 GT/s PCIe\n", 4),
        ("32.0 GT/s PCIe", 5),
        ("64.0 GT/s PCIe", 6),
        ("Unknown", None),
        ("Unknown speed", None),
        ("66 MHz PCI", None),
        ("3.0 GT/s PCIe", None),
        ("", None),
        (None, None),
    ],
)
def test_pcie_generation(speed, generation):
    assert reasons({"": system.pcie_generation(speed)})[""] == (generation or UNKNOWN)


def test_a_device_that_does_not_answer_has_no_link():
    device = {**H200["0000:00:06.0"], "current_link_speed": "Unknown", "current_link_width": "63", "max_link_width": "255", "driver": None}
    (gpu,) = system.pci_reading("sysfs", {"0000:00:06.0": device}).gpus
    assert (gpu["pcie_generation"], gpu["pcie_width"], gpu["pcie_width_max"]) == (
        Nothing(UNKNOWN, "Unknown"),
        Nothing(UNKNOWN, "63"),
        Nothing(UNKNOWN, "255"),
    )
    assert gpu["kernel_driver"] is None
    assert gpu["pcie_generation_max"] == 5


# --- the host ----------------------------------------------------------------------------------------------------------


def test_host_memory():
    assert system.host_memory(sample("meminfo_gb10.txt")) == {"memory_total_mib": 124610, "memory_available_mib": 115787}
    assert reasons(system.host_memory("MemTotal: many kB\nMemFree: 3 kB\n")) == {"memory_total_mib": UNKNOWN}
    assert reasons(system.host_memory("MemTotal: 16 pages\n")) == {"memory_total_mib": UNKNOWN}
    assert system.host_memory("") == {}


def test_modules_loaded():
    text = (
        "nvidia_uvm 2100000 0 - Live 0x0000000000000000 (O)\nnvidia 100000000 3 nvidia_uvm, Live 0x0000000000000000 (PO)\n"
        "nouveau 1 0 - Unloading 0x0000000000000000\nvfio_pci_core 1 1 vfio_pci, Live 0x0\nvfio_pci 1 0 - Live 0x0\n"
        "i2c_nvidia_gpu 1 0 - Live 0x0\nnova_core 1 0 - Live 0x0\nnvme 1 2 - Live 0x0\nsnd_hda_intel 1 0 - Live 0x0\n"
    )
    assert system.modules_loaded(text) == ["nova_core", "nvidia", "nvidia_uvm", "vfio_pci", "vfio_pci_core"]


@pytest.mark.parametrize(
    ("asked", "state"),
    [
        ({"efi": True, "variable": b"\x06\0\0\0\x01"}, "enabled"),
        ({"efi": True, "variable": b"\x06\0\0\0\x00"}, "disabled"),
        ({"efi": True, "variable": b"\x06\0\0\0"}, None),
        ({"efi": True, "variable": b"\x06\0\0\0\x07"}, None),
        ({"efi": True, "variable": b"\x06\0\0\0\x01\0"}, None),
        ({"efi": True, "variable": None}, None),
        ({"efi": False}, "unsupported"),
        ({"efi": None}, None),
        ({"efi": None, "mokutil": "SecureBoot enabled\n"}, "enabled"),
        ({"efi": None, "mokutil": "SecureBoot disabled\nPlatform is in Setup Mode\n"}, "disabled"),
        ({"efi": True, "mokutil": "EFI variables are not supported on this system\n"}, "unsupported"),
        ({"efi": True, "mokutil": "This system doesn't support Secure Boot\n"}, "unsupported"),
        ({"efi": True, "mokutil": "Cannot determine secure boot state.\n"}, None),
        (
            {"efi": True, "variable": b"\x06\0\0\0\x01", "mokutil": "SecureBoot enabled\nSecureBoot validation is disabled in shim\n"},
            "disabled",
        ),
    ],
)
def test_secure_boot(asked, state):
    assert reasons({"": system.secure_boot(**asked)})[""] == (state or UNKNOWN)


@pytest.mark.parametrize(
    ("units", "types", "cmdline", "state"),
    [
        (["ivhd0"], ["DMA\n", "DMA-FQ\n"], "", "translated"),
        (["dmar0", "dmar1"], ["DMA-FQ"], "intel_iommu=on", "translated"),
        (["ivhd0"], ["identity\n", "identity\n"], "quiet iommu=pt", "passthrough"),
        (["ivhd0"], ["identity", "DMA"], "amd_iommu=on iommu=pt", "passthrough"),
        (["ivhd0"], ["identity", "DMA"], "quiet", "translated"),
        # What runs counts, not what was asked for.
        (["ivhd0"], ["DMA"], "iommu=pt", "translated"),
        ([], [], "intel_iommu=on iommu=pt", "disabled"),
        ([], [], "", "disabled"),
        # Kernels without type files; containers without /sys/class/iommu
        (["dmar0"], [], "intel_iommu=on,sm_on iommu=pt", "passthrough"),
        (["dmar0"], [], "iommu.passthrough=0", "translated"),
        (["dmar0"], [], "intel_iommu=on", None),
        (["dmar0"], [], "intel_iommu=on amd_iommu=off", None),
        (["dmar0"], ["blocked"], "", None),
        (None, [], "iommu=off", "disabled"),
        (None, [], "amd_iommu=off", "disabled"),
        (None, [], "iommu.passthrough=1", "passthrough"),
        (None, [], "iommu=nopt", "translated"),
        (None, [], "intel_iommu=on", None),
        (None, [], "", None),
    ],
)
def test_iommu(units, types, cmdline, state):
    assert reasons({"": system.iommu(units=units, group_types=types, cmdline=cmdline)})[""] == (state or UNKNOWN)


WSL2 = "Linux version 5.15.167.4-microsoft-standard-WSL2 (root@f9c826d3017f) (gcc (GCC) 11.2.0) #1 SMP\n"


@pytest.mark.parametrize(
    ("asked", "word", "container"),
    [
        ({"detected": "none\n", "sys_vendor": "Supermicro"}, "none", False),
        ({"detected": "lxc\n"}, "lxc", True),
        ({"detected": "docker\n", "dockerenv": True, "kernel": WSL2}, "docker", True),
        ({"detected": "kvm\n"}, "kvm", False),
        ({"detected": "wsl\n", "kernel": WSL2}, "wsl", False),
        ({"detected": "microsoft\n", "kernel": WSL2, "dxg": True}, "wsl", False),
        ({"detected": "container-other\n"}, "container-other", True),
        # Without systemd-detect-virt
        ({"kernel": WSL2}, "wsl", False),
        ({"dxg": True}, "wsl", False),
        ({"kernel": "Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)"}, "wsl", False),
        (
            {
                "kernel": "Linux version 6.8.0-1021-azure (buildd@lcy02)",
                "sys_vendor": "Microsoft Corporation",
                "product_name": "Virtual Machine",
            },
            "microsoft",
            False,
        ),
        ({"environ": "TERM=linux\0container=lxc\0container_ttys=\0"}, "lxc", True),
        ({"environ": "mycontainer=lxc\0", "sys_vendor": "ASUS"}, "none", False),
        ({"environ": "container=wsl\0"}, "wsl", False),
        ({"manager": "systemd-nspawn\n"}, "systemd-nspawn", True),
        ({"environ": "container=oci\0", "containerenv": True}, "podman", True),
        ({"environ": "container=oci\0"}, "container-other", True),
        ({"environ": "container=garden\0"}, "container-other", True),
        ({"dockerenv": True, "sys_vendor": "QEMU"}, "docker", True),
        ({"containerenv": True}, "podman", True),
        ({"sys_vendor": "QEMU", "product_name": "Standard PC (i440FX + PIIX, 1996)"}, "kvm", False),
        ({"sys_vendor": "Red Hat", "product_name": "KVM"}, "kvm", False),
        ({"sys_vendor": "VMware, Inc.", "product_name": "VMware7,1"}, "vmware", False),
        ({"sys_vendor": "Amazon EC2", "product_name": "g5.xlarge"}, "amazon", False),
        ({"sys_vendor": "Amazon EC2", "product_name": "g4dn.metal"}, "none", False),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "google", False),
        ({"sys_vendor": "innotek GmbH", "product_name": "VirtualBox"}, "oracle", False),
        # The same makers make real machines.
        ({"sys_vendor": "Oracle Corporation", "product_name": "ORACLE SERVER X8-2"}, "none", False),
        ({"sys_vendor": "Microsoft Corporation", "product_name": "Surface Laptop Studio"}, "none", False),
        ({"sys_vendor": "Hetzner", "product_name": "vServer", "hypervisor": True}, "vm-other", False),
        ({"sys_vendor": "Supermicro", "product_name": "SYS-420GP-TNR\n"}, "none", False),
        ({}, None, False),
    ],
)
def test_virtualization(asked, word, container):
    assert reasons(system.virtualization(**asked)) == {"virtualization": word or UNKNOWN, "container": container}


# --- kernel modules on disk --------------------------------------------------------------------------------------------

STATUS = """\
nvidia/580.119.02, 6.17.4-generic, x86_64: installed
nvidia/580.119.02, 6.8.0-1-pve, x86_64: built (WARNING! Diff between built and installed module!)
nvidia-srv/570.172.08: added
nvidia, 470.57.02, 5.11.0-27-generic, x86_64: installed (original_module exists)
zfs/2.2.2, 6.17.4-generic, x86_64: installed
Error! Could not find module
"""


def test_dkms_status():
    assert system.dkms_status(STATUS) == [
        system.Build("nvidia", "580.119.02", "6.17.4-generic", "x86_64", "installed"),
        system.Build("nvidia", "580.119.02", "6.8.0-1-pve", "x86_64", "built"),
        system.Build("nvidia-srv", "570.172.08", None, None, "added"),
        system.Build("nvidia", "470.57.02", "5.11.0-27-generic", "x86_64", "installed"),
    ]


def test_dkms_tree():
    paths = [
        "/var/lib/dkms/nvidia/580.119.02/6.17.4-generic/x86_64/module/nvidia.ko.zst",
        "/var/lib/dkms/nvidia/580.119.02/6.17.4-generic/x86_64/module/nvidia-uvm.ko.zst",
        "/var/lib/dkms/nvidia/580.119.02/6.17.9-generic/x86_64/log/make.log",
        "/var/lib/dkms/nvidia/580.119.02/build/make.log",
        "zfs/2.2.2/6.17.4-generic/x86_64/module/zfs.ko",
        "nvidia-current/535.183.01/6.1.0-39-amd64/x86_64/module/nvidia-current.ko",
    ]
    assert system.dkms_tree(paths) == [
        system.Build("nvidia", "580.119.02", "6.17.4-generic", "x86_64", "built"),
        system.Build("nvidia-current", "535.183.01", "6.1.0-39-amd64", "x86_64", "built"),
    ]


def test_no_module_for_the_kernel_that_boots_next():
    """Case C13: dkms could not build for 6.17.9; what it built is for other kernels."""
    paths = [
        "/lib/modules/6.17.4-generic/updates/dkms/nvidia.ko.zst",
        "/lib/modules/6.17.9-generic/kernel/drivers/video/fbdev/nvidia/nvidiafb.ko",
    ]
    builds = system.dkms_status(STATUS)
    assert system.kernel_module("6.17.9-generic", paths, builds) == system.KernelModule(
        [], [], ["5.11.0-27-generic", "6.17.4-generic", "6.8.0-1-pve"]
    )
    running = system.kernel_module("6.17.4-generic", paths, builds)
    assert (running.files, running.other_kernels) == (paths[:1], ["5.11.0-27-generic", "6.8.0-1-pve"])
    assert [build.version for build in system.kernel_module("6.17.4-generic", None, builds).dkms] == ["580.119.02"]
    assert system.kernel_module("6.17.4-generic", None, []).files is None


@pytest.mark.parametrize(
    ("path", "is_module"),
    [
        ("/usr/lib/modules/6.1/kernel/nvidia-580-open/nvidia.ko", True),
        ("/lib/modules/6.1/extra/nvidia.ko.xz", True),
        ("/lib/modules/6.1/weak-updates/nvidia/nvidia.ko.gz", True),
        ("/lib/modules/6.1/nvidia.ko", True),
        ("/lib/modules/6.1/updates/dkms/nvidia-current.ko", True),
        ("/lib/modules/6.1/updates/dkms/nvidia-current-open.ko.xz", True),
        ("/lib/modules/6.1/updates/dkms/nvidia-legacy-390xx.ko.xz", True),
        ("/lib/modules/6.1/updates/dkms/nvidia-tesla-470.ko", True),
        ("/lib/modules/6.1/updates/dkms/nvidia-uvm.ko", False),
        ("/lib/modules/6.1/updates/dkms/nvidia-current-drm.ko", False),
        ("/lib/modules/6.1/kernel/drivers/net/nvidia.ko.txt", False),
        ("/lib/modules/6.1.0/extra/nvidia.ko", False),
    ],
)
def test_the_file_of_the_module(path, is_module):
    assert system.kernel_module("6.1", [path], []).files == ([path] if is_module else [])


# --- kernel log --------------------------------------------------------------------------------------------------------


def told(text):
    """(code, address, details) of each finding."""
    return [(finding.code, finding.pci_bus_id, finding.details) for finding in system.log_findings(text)]


OPEN_NEEDED = ("needs_open_module", "00000000:02:00.0", {"pci_device_id": "10de:2c58"})
LOGS = {
    "dmesg_blackwell_needs_open.txt": [OPEN_NEEDED],
    "dmesg_595_ignores_pascal_legacy580.txt": [
        ("branch_ignores_gpu", None, {"name": "NVIDIA GeForce GTX 1050", "branch": "580", "driver_version": "595.71.05"}),
        ("no_gpu_found", None, {}),
    ],
    "dmesg_api_mismatch.txt": [("api_mismatch", None, {"client_version": "570.148.08", "module_version": "570.148.06"})],
    "dmesg_nouveau_owns_device.txt": [("nouveau_owns_device", None, {"devices": 1}), ("no_gpu_found", None, {})],
    "dmesg_vfio_bound.txt": [("bound_to_vfio", "00000000:01:00.0", {"driver": "vfio-pci"})],
    "dmesg_xid79_xid119.txt": [("fallen_off_bus", "00000000:0B:00.0", {}), ("gsp_timeout", "00000000:34:00.0", {})],
    "dmesg_amdvi_xid154.txt": [
        ("iommu_page_fault", "00000000:09:00.0", {}),
        ("xid_154", "00000000:09:00.0", {"recovery_action": "reboot"}),
    ],
    "modprobe_key_rejected.txt": [("key_rejected", None, {"module": "nvidia"})],
    "dkms_headers_skipped.txt": [("dkms_headers_missing", None, {"kernel": "6.1.0-39-amd64"})],
    "dkms_no_headers.txt": [("dkms_headers_missing", None, {"kernel": "6.12.118+deb13-amd64"})],
    "apt_dkms_postinst_fail.txt": [("dkms_build_failed", None, {"kernel": "6.17.9-76061709-generic"})],
}


@pytest.mark.parametrize(("name", "findings"), LOGS.items())
def test_captured_logs(name, findings):
    assert told(sample(name)) == findings


def without_times(text):
    return re.sub(r"(?m)^\[ *[\d.]+\] ", "", text)


def syslog(text):
    return "".join(f"Oct 24 14:20:15 gpu-7 kernel: {line}\n" for line in text.splitlines())


def journal(text):
    """A message of several lines goes on without the prefix, deep to the right."""
    return re.sub(r"(?m)^\[ *[\d.]+\] ", "Jun 11 09:44:44 gpu-7 kernel: ", text)


def wall_clock(text):
    return re.sub(r"(?m)^\[ *[\d.]+\]", "[Mon Jul 21 11:50:00 2025]", text)


def coloured(text):
    return re.sub(r"(?m)^(\[ *[\d.]+\] )(NVRM: )?", "\x1b[32m\\1\x1b[0m\x1b[33m\\2\x1b[0m", text)


@pytest.mark.parametrize("dress", [without_times, syslog, journal, wall_clock, coloured, lambda text: text.replace("\n", "\r\n")])
@pytest.mark.parametrize("name", [name for name in LOGS if name.startswith("dmesg")])
def test_logs_in_other_clothes(name, dress):
    assert told(dress(sample(name))) == LOGS[name]


def test_the_text_is_the_whole_message_on_one_line():
    (finding,) = system.log_findings(sample("dmesg_blackwell_needs_open.txt"))
    assert finding.text == (
        "NVRM: The NVIDIA GPU 0000:02:00.0 (PCI ID: 10de:2c58) installed in this system requires use of the NVIDIA open kernel modules"
    )
    assert system.log_findings(syslog(sample("dmesg_amdvi_xid154.txt")))[0].text.startswith("0000:09:00.0: AMD-Vi: Event logged")


def nvrm(*lines):
    return "".join(f"NVRM: {line}\n" for line in lines)


LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
START = "nvidia-nvlink: Nvlink Core is being initialized, major device number 240\n"
IGNORED = nvrm(
    "The NVIDIA GeForce GT 1030 GPU installed in this system is",
    "  supported through the NVIDIA 580.xx Legacy drivers. Please",
    "  visit http://www.nvidia.com/object/unix.html for more",
    "  information.  The 610.43.02 NVIDIA driver will ignore this GPU.",
)
BOUND = nvrm("GPU 0000:01:00.0 is already bound to vfio-pci.")
NOT_PROBED = nvrm("The NVIDIA probe routine was not called for 1 device(s).", "This can occur when a driver such as: ")
LOST = nvrm("Xid (PCI:0000:0b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
GT_1030 = ("branch_ignores_gpu", None, {"name": "GeForce GT 1030", "branch": "580", "driver_version": "610.43.02"})


@pytest.mark.parametrize(
    ("lines", "findings"),
    [
        # The old wordings
        (["GPU at 0000:01:00.0 has fallen off the bus."], [("fallen_off_bus", "00000000:01:00.0", {})]),
        (
            [
                "The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2230)",
                "installed in this system has fallen off the bus and is",
                "not responding to commands.",
            ],
            [("fallen_off_bus", "00000000:01:00.0", {})],
        ),
        (["Xid (0000:01:00): 13, 0001 00000000 0000902d"], [("xid", "00000000:01:00.0", {"xid": 13})]),
        (["Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:00): 31, pid=9, name=python3, Ch 00000008"], [("xid", "00000000:3B:00.0", {"xid": 31})]),
        (["Xid (PCI:000f:01:00): 119, Timeout after 6s of waiting"], [("gsp_timeout", "0000000F:01:00.0", {})]),
        (
            ["The NVIDIA Quadro FX 1400 GPU installed in this system is", " supported through the NVIDIA 304.xx Legacy drivers. Please"],
            [("branch_ignores_gpu", None, {"name": "Quadro FX 1400", "branch": "304"})],
        ),
        (
            [
                "API mismatch: the client 'nvidia-smi' (pid 812)",
                "has the version 580.126.09, but this kernel module has the version",
                "570.86.15.  Please make sure",
            ],
            [("api_mismatch", None, {"client_version": "580.126.09", "module_version": "570.86.15"})],
        ),
        (["None of the NVIDIA devices were initialized."], [("no_gpu_found", None, {})]),
        (["No NVIDIA devices probed."], [("no_gpu_found", None, {})]),
        # A message whose beginning is lost, as after `grep`
        (["installed in this system requires use of the NVIDIA open kernel modules."], [("needs_open_module", None, {})]),
        (["GPU 0000:01:00.0 is already bound to nouveau."], [("nouveau_owns_device", "00000000:01:00.0", {"driver": "nouveau"})]),
        (["GPU 0000:01:00.0 is already bound to nova-core."], [("other_driver_owns_device", "00000000:01:00.0", {"driver": "nova-core"})]),
        # Case C03: the same status without the line about the open module is no proof of a wrong flavour
        (
            ["GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:884)"],
            [("rm_init_failed", "00000000:01:00.0", {"status": "0x22:0x56:884"})],
        ),
        (
            ["RmInitAdapter failed! (0x26:0xffff:1096)", "rm_init_adapter(0) failed"],
            [("rm_init_failed", None, {"status": "0x26:0xffff:1096"})],
        ),
        # What says nothing
        (["GPU at PCI:0000:03:00: GPU-7775f835-5e4a-cd4e-363f-3c5afb460b28"], []),
        (["Rate limiting GSP RPC error prints for GPU at PCI:0000:03:00 (printing 1 of every 30).  The GPU likely needs to be reset."], []),
        (["Xid (PCI:0000:66:00): abc, pid=2280636"], []),
    ],
)
def test_messages_of_the_driver(lines, findings):
    assert told(nvrm(*lines)) == findings


@pytest.mark.parametrize(
    ("words", "action"),
    [
        ("changed from 0x0 (None) to 0x1 (GPU Reset Required)", "reset"),
        ("changed from 0x0 (None) to 0x2 (Node Reboot Required)", "reboot"),
        ("changed from 0x0 (None) to 0x2 (OS Reboot)", "reboot"),
        ("changed from 0x0 (None) to 0x1 (PF FLR)", "reset"),
        ("changed from 0x0 (None) to 0x3 (Drain P2P)", "drain_p2p"),
        ("changed from 0x0 (None) to 0x4 (Drain and Reset)", "drain_and_reset"),
        ("changed from 0x0 (None) to 0x9 (Call Someone)", "Call Someone"),
        (": Node Reboot Required", "reboot"),
        ("is cut", None),
    ],
)
def test_recovery_action(words, action):
    text = nvrm(f"Xid (PCI:0000:09:00): 154, GPU recovery action{'' if words[0] == ':' else ' '}{words}")
    assert told(text) == [("xid_154", "00000000:09:00.0", {"recovery_action": action})]


def test_the_last_recovery_action_of_each_gpu_counts():
    def changed(bus, action):
        return nvrm(f"Xid (PCI:0000:{bus}:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 ({action})")

    text = changed("09", "GPU Reset Required") + changed("0a", "GPU Reset Required") + changed("09", "Node Reboot Required")
    assert [(address, details) for _, address, details in told(text)] == [
        ("00000000:0A:00.0", {"recovery_action": "reset"}),
        ("00000000:09:00.0", {"recovery_action": "reboot"}),
    ]
    assert [address for _, address, _ in told(text + changed("09", "None"))] == ["00000000:0A:00.0"]


GSP = nvrm(
    "GPU7 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP",
    "GPU7 _kgspBootGspRm: (the GPU is likely in a bad state and may need to be reset)",
    "GPU7 RmInitAdapter: Cannot initialize GSP firmware RM",
    "GPU 0000:a2:00.0: RmInitAdapter failed! (0x62:0x40:2168)",
)


def test_a_gsp_failure_has_the_address_of_the_gpu_and_the_first_cause():
    (finding,) = system.log_findings(GSP)
    assert (finding.code, finding.pci_bus_id, finding.details) == (
        "gsp_firmware_failed",
        "00000000:A2:00.0",
        {"status": "0x62:0x40:2168"},
    )
    assert "unexpected WPR2" in finding.text


def test_a_missing_firmware_file_explains_what_follows():
    text = (
        "nvidia 0000:82:00.0: Direct firmware load for nvidia/595.71.05/gsp_ga10x.bin failed with error -2\n"
        + nvrm("RmFetchGspRmImages: No firmware image found", "GPU 0000:82:00.0: RmInitAdapter failed! (0x61:0x56:2074)")
        + "iwlwifi 0000:03:00.0: Direct firmware load for iwlwifi-so-a0-gf-a0-89.ucode failed with error -2\n"
    )
    assert ("gsp_firmware_failed", "00000000:82:00.0", {"firmware": "nvidia/595.71.05/gsp_ga10x.bin", "error": -2}) in told(text)
    assert {(code, address) for code, address, _ in told(text)} == {("gsp_firmware_failed", "00000000:82:00.0")}


def test_a_gsp_message_of_long_ago_is_not_the_cause():
    many = nvrm(*["GPU 0000:01:00.0: something else"] * 20)
    text = GSP.splitlines(keepends=True)[0] + many + nvrm("GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:884)")
    assert [code for code, _, _ in told(text)] == ["rm_init_failed"]


@pytest.mark.parametrize(
    ("line", "findings"),
    [
        ("insmod: ERROR: could not insert module nvidia.ko: Required key not available", [{"module": "nvidia"}]),
        (
            "insmod: ERROR: could not insert module /lib/modules/6.1/extra/nvidia-uvm.ko: Key was rejected by service",
            [{"module": "nvidia-uvm"}],
        ),
        ("systemd-modules-load[312]: Failed to insert module 'nvidia_uvm': Key was rejected by service", [{"module": "nvidia_uvm"}]),
        ("[    5.1] nvidia: loading of module with unavailable key is rejected", [{"module": "nvidia"}]),
        ("Jul 21 11:50:00 gpu-7 kernel: Loading of unsigned module is rejected", [{}]),
        ("[    5.1] Loading of module with unavailable key is rejected", [{}]),
        ("[    5.1] Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7", [{}]),
        # Another module; a key that is missed but not demanded
        ("modprobe: ERROR: could not insert 'vboxdrv': Key was rejected by service", []),
        ("[    5.1] vboxdrv: loading of unsigned module is rejected", []),
        ("[    5.1] nvidia: module verification failed: signature and/or required key missing - tainting kernel", []),
        ("modprobe: ERROR: could not insert 'nvidia': No such device", []),
        ("modprobe: ERROR: could not insert 'nvidia': Operation not permitted", []),
    ],
)
def test_key_rejected(line, findings):
    assert told(f"{line}\n") == [("key_rejected", None, details) for details in findings]


@pytest.mark.parametrize(
    ("line", "finding"),
    [
        (
            "AMD-Vi: Event logged [IO_PAGE_FAULT device=09:00.0 domain=0x0012 address=0x7f flags=0x0020]",
            ("iommu_page_fault", "00000000:09:00.0", {}),
        ),
        (
            "DMAR: [DMA Read NO_PASID] Request device [01:00.0] fault addr 0x7f000 [fault reason 0x06]",
            ("iommu_page_fault", "00000000:01:00.0", {}),
        ),
        ("DMAR: [DMA Write] Request device [0a:00.1] fault addr 7f000", ("iommu_page_fault", "00000000:0A:00.1", {})),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            ("nvswitch_error", "00000000:C1:00.0", {"sxid": 20034, "severity": "Fatal"}),
        ),
        (
            "Error! Your kernel headers for kernel 6.1.0-39-amd64 cannot be found.",
            ("dkms_headers_missing", None, {"kernel": "6.1.0-39-amd64"}),
        ),
    ],
)
def test_messages_of_others(line, finding):
    assert told(line) == [finding]


def test_dkms_of_another_module():
    other = sample("apt_dkms_postinst_fail.txt").replace("/dkms/nvidia/", "/dkms/zfs/")
    assert told(other) == []
    assert told("Module build for kernel 6.1.0-39-amd64 was skipped since the\nuser said so\n") == []


def test_repeated_messages_are_counted():
    (first, second) = system.log_findings(LOST * 3 + sample("dmesg_vfio_bound.txt"))
    assert (first.code, first.times) == ("fallen_off_bus", 3)
    assert (second.code, second.times) == ("bound_to_vfio", 1)


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        # An old failure, then a driver that loads
        (sample("dmesg_nouveau_owns_device.txt") + START + LOADED, []),
        (sample("dmesg_nouveau_owns_device.txt") + LOADED, []),
        (sample("modprobe_key_rejected.txt") + LOADED, []),
        (sample("dmesg_api_mismatch.txt") + LOADED, []),
        (sample("dmesg_blackwell_needs_open.txt") + START + LOADED, []),
        (START + LOADED + LOST + START + LOADED, []),
        (LOADED + LOST + LOADED, []),
        (GSP + LOADED, []),
        # A failure of the load that goes on, before and after the line that says so
        (START + IGNORED + LOADED, ["branch_ignores_gpu"]),
        (START + BOUND + LOADED + LOST, ["bound_to_vfio", "fallen_off_bus"]),
        (START + IGNORED + nvrm("No NVIDIA GPU found.") + START + LOADED, []),
        (START + IGNORED + LOADED + "nvidia-nvlink: Unregistered Nvlink Core, major device number 240\n" + LOADED, []),
        # A good load, then a failure
        (LOADED + sample("dmesg_nouveau_owns_device.txt"), ["nouveau_owns_device", "no_gpu_found"]),
        (LOADED + LOST, ["fallen_off_bus"]),
        # What no load ends
        (sample("dmesg_amdvi_xid154.txt") + START + LOADED, ["iommu_page_fault"]),
        (sample("dkms_headers_skipped.txt") + LOADED, ["dkms_headers_missing"]),
        # A boot ends everything
        (sample("dmesg_amdvi_xid154.txt") + "[    0.000000] Linux version 6.1.0-39-amd64 (debian-kernel@lists.debian.org)\n", []),
        (LOST + "-- Boot 0123456789abcdef0123456789abcdef --\n", []),
        (LOST + "Jul 21 11:50:00 gpu-7 kernel: Linux version 6.8.0\n", []),
        # Other GPUs' owners explain why they were not probed
        (BOUND + NOT_PROBED, ["bound_to_vfio"]),
        (BOUND + NOT_PROBED.replace("for 1 ", "for 2 "), ["bound_to_vfio", "nouveau_owns_device"]),
    ],
)
def test_earlier_loads_are_over(text, codes):
    assert [finding.code for finding in system.log_findings(text)] == codes


def test_the_address_of_an_ignored_gpu():
    assert told(IGNORED + nvrm("ignoring the legacy GPU 0000:08:00.0")) == [(GT_1030[0], "00000000:08:00.0", GT_1030[2])]
    assert told(nvrm("ignoring the legacy GPU 0000:08:00.0")) == [("branch_ignores_gpu", "00000000:08:00.0", {})]


def test_messages_of_others_between_the_lines_do_not_part_a_message():
    lines = IGNORED.splitlines(keepends=True)
    assert told(lines[0] + "audit: type=1400\n" + "".join(lines[1:])) == [GT_1030]


# --- whatever comes ----------------------------------------------------------------------------------------------------


@st.composite
def damaged(draw, names):
    """A sample with lines lost, bytes replaced, numbers grown, and an end that may be missing."""
    lines = (SAMPLES / draw(st.sampled_from(names))).read_bytes().splitlines(keepends=True)
    for _count in range(draw(st.integers(0, 6))):
        number = draw(st.integers(0, len(lines) - 1))
        line = lines[number]
        place = draw(st.integers(0, len(line)))
        how = draw(st.sampled_from(["drop", "bytes", "grow", "word", "twice"]))
        if how == "drop":
            lines[number] = b""
        elif how == "bytes":
            lines[number] = line[:place] + draw(st.binary(max_size=8)) + line[place + 3 :]
        elif how == "grow":
            lines[number] = re.sub(rb"\d+", lambda found: found[0] * draw(st.integers(1, 6)), line, count=2)
        elif how == "word":
            lines[number] = (
                line[:place] + draw(st.sampled_from([b"N/A", b"-1", b"9" * 40, b"\t", b":", b"[", b"\xff\xfe", b"NVRM:"])) + line[place:]
            )
        else:
            lines.insert(number, line)
    whole = b"".join(lines)
    end = draw(st.integers(0, len(whole))) if draw(st.booleans()) else len(whole)
    return whole[:end].decode(errors="replace")


def integers(value):
    if isinstance(value, (dict, list, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from integers(part)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield value


def assert_nothing_invented(value, text):
    there = {found.lstrip("0") or "0" for found in re.findall(r"\d+", text, re.ASCII)}
    assert {str(abs(number)) for number in integers(value)} <= there


def addresses_in(text):
    return {
        found.upper().rpartition(".")[0][-5:] or found.upper()[-5:] for found in re.findall(r"(?i)[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", text)
    } | {found.upper() for found in re.findall(r"(?i)(?=([0-9a-f]{2}:[0-9a-f]{2}))", text)}


LOG_NAMES = list(LOGS)
PROC_NAMES = ["proc_driver_version_h200.txt", "proc_driver_version_proprietary.txt", "proc_driver_gpu_information_h200.txt"]


@settings(max_examples=200, deadline=None)
@given(damaged(LOG_NAMES))
def test_damaged_logs_give_no_number_that_is_not_there(text):
    findings = system.log_findings(text)
    assert_nothing_invented([finding.details for finding in findings], text)
    for finding in findings:
        assert finding.pci_bus_id is None or finding.pci_bus_id[9:14] in addresses_in(text)
        assert all(
            value in " ".join(text.split()) or key == "recovery_action" for key, value in finding.details.items() if isinstance(value, str)
        )


@settings(max_examples=200, deadline=None)
@given(damaged(PROC_NAMES))
def test_damaged_proc_files_give_no_number_that_is_not_there(text):
    cells = {**system.driver(text), **system.gpu_information("0000:00:06.0", text)}
    assert_nothing_invented({key: value for key, value in cells.items() if not isinstance(value, Nothing)}, text)
    for field in ("driver_version", "gsp_firmware_version", "uuid"):
        assert isinstance(cells.get(field, Nothing("")), Nothing) or cells[field] in text


@settings(max_examples=200, deadline=None)
@given(
    damaged(
        [
            *("ls_dev_nvidia_h200.txt", "ls_dev_nvidia_full.txt", "proc_devices_h200.txt", "proc_devices_511_236.txt"),
            *("meminfo_gb10.txt", "lspci_nnk_3090_nvidia.txt", "lspci_nnk_vfio_turing_4_functions.txt"),
        ]
    )
)
def test_damaged_listings_give_no_number_that_is_not_there(text):
    assert_nothing_invented(system.listed_nodes(text), text)
    assert_nothing_invented(system.device_majors(text), text)
    kib = {int(found) // 1024 for found in re.findall(r"\d+", text, re.ASCII) if len(found) < 100}
    assert {value for value in system.host_memory(text).values() if not isinstance(value, Nothing)} <= kib
    for gpu in system.pci_reading("lspci", system.lspci_devices(text)).gpus:
        assert gpu["pci_bus_id"][9:] in text.upper()
        assert gpu["pci_device_id"] in text


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(H200["0000:00:06.0"])), st.one_of(st.none(), st.text(max_size=20), st.sampled_from(["255", "9" * 50, "16"]))
    )
)
def test_damaged_sysfs_gives_no_number_that_is_not_there(changes):
    device = {**H200["0000:00:06.0"], **changes}
    for gpu in system.pci_reading("sysfs", {"0000:00:06.0": device}).gpus:
        for field, name in (("pcie_width", "current_link_width"), ("pcie_width_max", "max_link_width")):
            assert isinstance(gpu[field], Nothing) or str(gpu[field]) in device[name]
        for field, name in (("pcie_generation", "current_link_speed"), ("pcie_generation_max", "max_link_speed")):
            assert isinstance(gpu[field], Nothing) or "GT/s" in device[name]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60), st.binary(max_size=8), st.lists(st.text(max_size=12), max_size=4))
def test_any_text_is_taken(text, raw, words):
    system.secure_boot(efi=None, variable=raw, mokutil=text)
    system.iommu(units=words, group_types=words, cmdline=text)
    system.virtualization(detected=text, environ=text, manager=text, kernel=text, sys_vendor=text, product_name=text)
    system.kernel_module(text, words, system.dkms_status(text) + system.dkms_tree(words))
    assert system.modules_loaded(text) == []
