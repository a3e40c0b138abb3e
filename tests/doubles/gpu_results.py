"""Results of gpu_info made by hand from captured samples (tests/fixtures/gpu), for the tests and the benchmark of the fleet report.

The keys are those of docs/design.md. Numbers of a host come from its sample where there is one; the rest is plausible.
"""

from __future__ import annotations

import csv
import pathlib
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_fleet import GPU_FIELDS, HOST_FIELDS

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures/gpu"

Result = dict[str, t.Any]


def uuid(number: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{number:012d}"


def gpu(**known: t.Any) -> Result:
    """One GPU: everything null but what is given."""
    empty = dict.fromkeys(GPU_FIELDS)
    return {**empty, "health": "ok", "usable": True, "mig_devices": [], "processes": [], "reasons": {}, "sources": {}, **known}


def result(gpus: t.Sequence[Result] = (), **known: t.Any) -> Result:
    """A registered result of gpu_info."""
    empty: Result = dict.fromkeys(HOST_FIELDS)
    lists: Result = {name: [] for name in ("device_nodes", "modules_loaded", "nvswitches", "gpu_groups", "group_names", "sources_asked")}
    topology = {"indices": [], "matrix": [], "peer_access": [], "source": None}
    found = {**empty, **lists, "device_majors": {}, "reasons": {}, "sources": {}, "topology": topology, "gpus": list(gpus), "problems": []}
    return {**found, **known, "changed": False, "failed": False}


def problem(code: str, severity: str, found: str, action: str, bus: str | None = None) -> Result:
    return {"code": code, "severity": severity, "gpu": bus, "found": found, "action": action}


def rows(name: str) -> list[dict[str, str]]:
    """A captured CSV, without the line of an error before it."""
    lines = [line for line in (FIXTURES / name).read_text().splitlines() if "," in line]
    return list(csv.DictReader(lines, skipinitialspace=True))


def matrix(name: str) -> list[list[str]]:
    """The GPUs' part of what nvidia-smi topo -m printed."""
    lines = [line for line in (FIXTURES / name).read_text().splitlines() if line.startswith("GPU")]
    return [[cell.strip() for cell in line.split("\t")[1 : len(lines) + 1]] for line in lines]


def topology(name: str) -> Result:
    links = matrix(name)
    return {"indices": list(range(len(links))), "matrix": links, "peer_access": [], "source": "nvidia_smi_topo"}


def mib(text: str) -> int:
    return int(text.split(maxsplit=1)[0])


def two_a6000() -> Result:
    gpus = [
        gpu(
            index=number,
            minor_number=number,
            uuid=uuid(number + 1),
            serial=f"132050000000{number}",
            name="NVIDIA RTX A6000",
            architecture="Ampere",
            compute_capability="8.6",
            pci_bus_id=f"00000000:0{number + 1}:00.0",
            pci_device_id="10de:2230",
            pci_subsystem_id="10de:1459",
            kernel_driver="nvidia",
            memory_kind="framebuffer",
            memory_total_mib=49140,
            memory_used_mib=(41250, 1024)[number],
            memory_free_mib=(7250, 47476)[number],
            memory_reserved_mib=640,
            ecc_enabled=False,
            ecc_enabled_pending=False,
            power_draw_w=(211.4, 22.1)[number],
            power_limit_w=300.0,
            power_limit_default_w=300.0,
            power_limit_min_w=100.0,
            power_limit_max_w=300.0,
            power_limit_settable=True,
            temperature_c=(61, 34)[number],
            utilization_gpu_percent=(97, 0)[number],
            persistence_mode=True,
            compute_mode="Default",
            performance_state=("P2", "P8")[number],
            pcie_generation=(4, 1)[number],
            pcie_generation_max=4,
            pcie_width=(16, 8)[number],
            pcie_width_max=16,
            numa_node=0,
            processes=[{"pid": 4155, "name": "python3", "type": "C", "memory_used_mib": (41240, 1014)[number]}],
            recovery_action="none",
            addressing_mode="HMM",
            vbios_version="94.02.5C.00.02",
            gsp_firmware_version="580.159.04",
            generation={
                "architecture": "Ampere",
                "kernel_module_flavours": ["open", "proprietary"],
                "driver_branch_last": None,
                "data_types": ["bf16", "fp16"],
            },
            reasons={"retired_pages_pending": "not_supported", "mig_enabled": "not_supported", "fabric_state": "not_supported"},
        )
        for number in range(2)
    ]
    return result(
        gpus,
        driver_version="580.159.04",
        driver_userland_version="580.159.04",
        driver_flavour="open",
        cuda_driver_version="13.0",
        virtualization="lxc",
        container=True,
        secure_boot="disabled",
        iommu="translated",
        shm_total_mib=64,
        shm_free_mib=64,
        memory_total_mib=128000,
        memory_available_mib=120000,
        modules_loaded=["nvidia", "nvidia_uvm"],
        topology=topology("topo_2x3090_nvlink.txt"),
        gpu_groups=[
            {"size": 1, "indices": [0], "uuids": [uuid(1)], "name": "NVIDIA RTX A6000", "link": None, "numa_nodes": [0]},
            {"size": 2, "indices": [0, 1], "uuids": [uuid(1), uuid(2)], "name": "NVIDIA RTX A6000", "link": "NV4", "numa_nodes": [0]},
        ],
        group_names=["gpu_rtx_a6000", "gpu_arch_ampere"],
        problems=[
            problem("shm_small", "warning", "/dev/shm has 64 MiB", "Give it more: 1 GiB for each GPU."),  # noqa: S108
            problem("pcie_narrow", "info", "GPU 1 runs at x8, x16 is possible", "Look at the slot and the riser.", "00000000:02:00.0"),
        ],
        sources_asked=[{"source": "nvml", "status": "ok", "message": ""}],
    )


def eight_h100() -> Result:
    gpus = [
        gpu(
            index=number,
            minor_number=number,
            uuid=uuid(100 + number),
            serial=f"165252300000{number}",
            name="NVIDIA H100 80GB HBM3",
            architecture="Hopper",
            compute_capability="9.0",
            pci_bus_id=f"00000000:{0x18 + 0x12 * number:02X}:00.0",
            pci_device_id="10de:2330",
            kernel_driver="nvidia",
            memory_kind="framebuffer",
            memory_total_mib=81559,
            memory_used_mib=74310 if number < 4 else 4,
            memory_free_mib=6600 if number < 4 else 80906,
            memory_reserved_mib=649,
            ecc_enabled=True,
            ecc_enabled_pending=True,
            ecc_errors_corrected_volatile=0,
            ecc_errors_uncorrected_volatile=0,
            remapped_rows_correctable=0,
            remapped_rows_uncorrectable=0,
            remapped_rows_pending=False,
            remapped_rows_failure=False,
            mig_enabled=False,
            mig_enabled_pending=False,
            power_draw_w=480.2 if number < 4 else 70.9,
            power_limit_w=700.0,
            power_limit_default_w=700.0,
            power_limit_min_w=200.0,
            power_limit_max_w=700.0,
            power_limit_settable=True,
            temperature_c=58 if number < 4 else 29,
            temperature_memory_c=66 if number < 4 else 38,
            pcie_generation=5,
            pcie_generation_max=5,
            pcie_width=16,
            pcie_width_max=16,
            numa_node=(0, 0, 0, 1, 2, 2, 2, 3)[number],
            processes=[{"pid": 9000 + number, "name": "sglang::scheduler", "type": "C", "memory_used_mib": 74290}] if number < 4 else [],
            recovery_action="none",
            fabric_state="completed",
            reasons={"retired_pages_pending": "not_supported"},
        )
        for number in range(8)
    ]
    groups = [
        {"size": size, "indices": list(range(size)), "uuids": [], "name": "NVIDIA H100 80GB HBM3", "link": "NV18", "numa_nodes": [0]}
        for size in (2, 4, 8)
    ]
    return result(
        gpus,
        driver_version="570.86.15",
        driver_userland_version="570.86.15",
        driver_flavour="open",
        cuda_driver_version="12.8",
        virtualization="none",
        container=False,
        secure_boot="unsupported",
        iommu="passthrough",
        shm_total_mib=1031000,
        shm_free_mib=1031000,
        memory_total_mib=2063000,
        memory_available_mib=1900000,
        nvswitches=[
            {"pci_bus_id": f"00000000:0{number}:00.0", "pci_device_id": "10de:22a3", "kernel_driver": "nvidia-nvswitch"}
            for number in range(5, 9)
        ],
        fabric_state="completed",
        topology=topology("topo_8xh100_nvswitch.txt"),
        gpu_groups=groups,
        group_names=["gpu_h100_80gb_hbm3", "gpu_arch_hopper"],
    )


def gb10() -> Result:
    row = rows("smi_query_gb10.csv")[0]
    total_kb, *_rest = (int(line.split()[1]) for line in (FIXTURES / "meminfo_gb10.txt").read_text().splitlines())
    nothing = {f"memory_{name}_mib": "not_supported" for name in ("total", "used", "free")}
    one = gpu(
        index=0,
        minor_number=0,
        uuid=row["uuid"],
        name=row["name"],
        architecture="Blackwell",
        compute_capability=row["compute_cap"],
        pci_bus_id=row["pci.bus_id"].upper(),
        pci_device_id="10de:2e12",
        kernel_driver="nvidia",
        memory_kind="unified",
        power_draw_w=float(row["power.draw [W]"].split()[0]),
        power_limit_settable=False,
        temperature_c=int(row["temperature.gpu"]),
        addressing_mode=row["addressing_mode"],
        reasons={**nothing, "power_limit_w": "not_supported"},
    )
    return result(
        [one],
        driver_version="580.95.05",
        driver_userland_version="580.95.05",
        driver_flavour="open",
        cuda_driver_version="13.0",
        virtualization="none",
        secure_boot="enabled",
        memory_total_mib=total_kb // 1024,
        memory_available_mib=115787,
        group_names=["gpu_gb10", "gpu_arch_blackwell"],
    )


def mig_h200() -> Result:
    row = rows("smi_query_mig_h200.csv")[0]
    # smi_table_mig_h200.txt: GI, CI, MIG device, memory used and total of each
    devices = [
        {
            "index": index,
            "uuid": f"MIG-00000000-0000-4000-8000-00000000000{index}",
            "name": name,
            "gpu_instance_id": instance,
            "compute_instance_id": compute,
            "memory_total_mib": total,
            "memory_used_mib": used,
            "memory_free_mib": total - used,
        }
        for index, (name, instance, compute, used, total) in enumerate(
            (("1c.4g.71gb", 2, 0, 22, 71424), ("2c.4g.71gb", 2, 1, 22, 71424), ("2g.35gb", 3, 0, 17, 33280))
        )
    ]
    one = gpu(
        index=0,
        minor_number=0,
        uuid=row["uuid"],
        name=row["name"],
        architecture="Hopper",
        compute_capability="9.0",
        pci_bus_id=row["pci.bus_id"],
        kernel_driver="nvidia",
        usable=False,
        memory_kind="framebuffer",
        memory_total_mib=mib(row["memory.total [MiB]"]),
        memory_used_mib=mib(row["memory.used [MiB]"]),
        memory_free_mib=mib(row["memory.free [MiB]"]),
        memory_reserved_mib=mib(row["memory.reserved [MiB]"]),
        ecc_enabled=True,
        mig_enabled=True,
        mig_enabled_pending=True,
        mig_devices=devices,
        mig_memory_total_mib=71424 + 33280,
        power_draw_w=78.0,
        power_limit_w=700.0,
        temperature_c=28,
        reasons={"utilization_gpu_percent": "not_supported"},
    )
    return result(
        [one],
        driver_version="590.48.01",
        driver_userland_version="590.48.01",
        driver_flavour="open",
        cuda_driver_version="13.1",
        virtualization="kvm",
        memory_total_mib=257000,
        memory_available_mib=240000,
        group_names=["gpu_h200", "gpu_arch_hopper"],
    )


def one_of_four_lost() -> Result:
    gpus = [
        gpu(
            index=int(row["index"]),
            minor_number=int(row["index"]),
            uuid=row["uuid"],
            name=row["name"],
            architecture="Blackwell",
            compute_capability="12.0",
            pci_bus_id=row["pci.bus_id"],
            kernel_driver="nvidia",
            memory_kind="framebuffer",
            memory_total_mib=mib(row["memory.total [MiB]"]),
            power_draw_w=14.5,
            power_limit_w=300.0,
            temperature_c=31,
            reasons={"memory_used_mib": "unknown"},
        )
        for row in rows("smi_query_610_one_of_four_lost.csv")
    ]
    lost = "00000000:34:00.0"
    gpus.append(gpu(pci_bus_id=lost, pci_device_id="10de:2bb4", kernel_driver="nvidia", health="lost", usable=False))
    return result(
        gpus,
        driver_version="610.43.02",
        driver_userland_version="610.43.02",
        driver_flavour="open",
        cuda_driver_version="13.3",
        virtualization="none",
        iommu="translated",
        memory_total_mib=515000,
        memory_available_mib=500000,
        topology={
            "indices": [0, 2, 3],
            "matrix": [["X", "NODE", "SYS"], ["NODE", "X", "SYS"], ["SYS", "SYS", "X"]],
            "source": "nvidia_smi_topo",
        },
        group_names=["gpu_rtx_pro_6000_blackwell_max_q_workstation_edition", "gpu_arch_blackwell"],
        problems=[
            problem(
                "gpu_lost",
                "error",
                f"GPU ({lost}) does not answer: Unknown Error",
                "Reboot the host. When it stays away, switch the power off for half a minute.",
                lost,
            )
        ],
    )


def mismatch() -> Result:
    return result(
        driver_version="580.126.09",
        driver_userland_version="580.159.04",
        driver_flavour="open",
        virtualization="none",
        memory_total_mib=64000,
        memory_available_mib=60000,
        reasons={"cuda_driver_version": "unknown"},
        problems=[
            problem(
                "driver_library_mismatch",
                "error",
                "the loaded driver is 580.126.09, the library is 580.159.04",
                "Reboot, or unload and load the modules.",
            )
        ],
    )


def no_permission() -> Result:
    """MIG in an unprivileged container, smi_query_mig_container_noperm.csv."""
    row = rows("smi_query_mig_container_noperm.csv")[0]
    one = gpu(
        index=0,
        name=row["name"],
        kernel_driver="nvidia",
        health="unknown",
        usable=False,
        reasons={"memory_total_mib": "no_permission", "memory_used_mib": "no_permission"},
    )
    return result(
        [one],
        virtualization="docker",
        container=True,
        driver_version="535.161.08",
        memory_total_mib=64000,
        problems=[problem("no_permission", "error", "NVML refuses the memory of a GPU: no permission", "Run the play as root (become).")],
    )


def fixture_fleet() -> dict[str, t.Any]:
    """Registered results by host: every kind of host there is."""
    ssh = "Task failed: Failed to connect to the host via ssh: ssh: connect to host 192.0.2.7 port 22: Connection timed out"
    return {
        "ct129": two_a6000(),
        "dgx1": eight_h100(),
        "spark1": gb10(),
        "h200-mig": mig_h200(),
        "ws4": one_of_four_lost(),
        "gpu10": mismatch(),
        "jupyter": no_permission(),
        "web1": result(virtualization="kvm", group_names=["gpu_none"]),
        "web2": result(virtualization="kvm", group_names=["gpu_none"]),
        "gpu7": {"unreachable": True, "changed": False, "msg": ssh},
        "gpu8": {"failed": True, "msg": "nvidia_smi_path: expected an executable file, found: /opt/nvidia-smi does not exist"},
        "gpu9": None,
    }


def large_fleet(hosts: int = 1000) -> dict[str, t.Any]:
    """Hosts of eight GPUs, made from the fixtures with changed identifiers; of a hundred, one has lost a GPU and one is unreachable."""
    made: dict[str, t.Any] = {}
    for number in range(hosts):
        name = f"node{number:04d}"
        if number % 100 == 99:
            made[name] = {"unreachable": True, "changed": False, "msg": f"Failed to connect to the host via ssh: port 22: {name}: No route"}
            continue
        one = eight_h100()
        for position, card in enumerate(one["gpus"]):
            card["uuid"], card["serial"] = uuid(number * 8 + position), f"{1652523000000 + number * 8 + position}"
            card["memory_used_mib"] = (number * 7919 + position * 10007) % 80000
        if number % 100 == 50:
            card = one["gpus"][number % 8]
            card.update(health="lost", usable=False, index=None, memory_used_mib=None)
            found = f"GPU ({card['pci_bus_id']}) does not answer"
            one["problems"] = [problem("gpu_lost", "error", found, "Reboot the host.", card["pci_bus_id"])]
        made[name] = one
    return made
