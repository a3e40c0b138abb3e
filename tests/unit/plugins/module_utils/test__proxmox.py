"""Both sides of Proxmox: what the hypervisor makes at boot, its guests together, and a guest against it."""

from __future__ import annotations

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _lxc_config
from ansible_collections.firstlight.sglang.plugins.module_utils import _proxmox as proxmox

VERSION = "580.159.04"
NODES = ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]


def gpu(index, bus, minor=None):
    return {
        "index": index,
        "minor_number": index if minor is None else minor,
        "uuid": f"GPU-{bus}",
        "name": "NVIDIA RTX A6000",
        "pci_bus_id": f"00000000:{bus}:00.0",
        "kernel_driver": "nvidia",
    }


def node(path, major=195, minor=0, **more):
    return {"path": path, "kind": "character", "major": major, "minor": minor, "mode": "0666", "accessible": True, **more}


def hypervisor(**more):
    return {
        "driver_version": VERSION,
        "gpus": [gpu(0, "01"), gpu(1, "41"), gpu(2, "81"), gpu(3, "C1")],
        "device_nodes": [node("/dev/nvidia0"), node("/dev/nvidiactl", minor=255)],
        "device_majors": {"nvidia": 195},
        **more,
    }


def guest(**more):
    nodes = [node(path) for path in NODES]
    return {"driver_userland_version": VERSION, "gpus": [gpu(0, "01"), gpu(1, "41")], "device_nodes": nodes, **more}


def other_nodes(path, *more):
    return [node(one) for one in NODES if one != path] + list(more)


def test_the_nodes_that_are_not_there_yet_are_those_that_nvidia_modprobe_makes():
    before = hypervisor()
    after = proxmox.boot_nodes(before)
    assert {one["path"]: (one["major"], one["minor"]) for one in after["device_nodes"]} == {
        **{f"/dev/nvidia{minor}": (195, minor) for minor in range(4)},
        "/dev/nvidiactl": (195, 255),
        "/dev/nvidia-uvm": (0, 0),
        "/dev/nvidia-uvm-tools": (0, 1),
    }
    assert len(before["device_nodes"]) == 2
    assert proxmox.boot_nodes(after) == after
    choice = _lxc_config.choose_nodes(after, ["0", "3"])
    assert choice.problems == []
    assert [one.path for one in choice.nodes][:2] == ["/dev/nvidia0", "/dev/nvidia3"]


def test_what_is_no_device_node_stays_to_be_refused():
    """A container that was started without the node has left a file (case C17)."""
    after = proxmox.boot_nodes(hypervisor(device_nodes=[node("/dev/nvidia-uvm", kind="file")]))
    assert "expected a device node on the hypervisor, found a file" in "".join(_lxc_config.choose_nodes(after, ["0"]).problems)


def test_a_machine_without_the_driver_gets_no_nodes():
    assert proxmox.boot_nodes({"gpus": [{"minor_number": None}], "device_nodes": []})["device_nodes"] == []
    assert proxmox.boot_nodes({})["device_nodes"] == []


@pytest.mark.parametrize(
    ("nodes", "commands"),
    [
        (NODES, [["-c", "255", "-c", "0", "-c", "1"], ["-u", "-c", "0"]]),
        ([*NODES, "/dev/nvidia-modeset"], [["-c", "255", "-c", "0", "-c", "1"], ["-u", "-c", "0"], ["-m"]]),
        (["/dev/nvidia10", "/dev/nvidia9"], [["-c", "9", "-c", "10"]]),
        (["/dev/nvidia-caps/nvidia-cap21"], []),
        ([], []),
    ],
)
def test_each_run_of_nvidia_modprobe_does_one_thing(nodes, commands):
    assert proxmox.boot_commands(nodes) == commands


def test_problems_of_each_guest_and_of_all_together():
    guests = [
        {"id": 129, "gpus": ["0", "1"]},
        {"id": 130, "gpus": ["GPU-41"]},
        {"id": 131, "gpus": ["0000:41:00.0"], "state": "absent"},
        {"id": 129, "gpus": ["3"]},
    ]
    looks = [{"nodes": []}, {"msg": "id: expected a container\ngpus: expected", "failed": False}, {"nodes": []}, {}]
    assert [one.partition(". ")[0] for one in proxmox.list_problems(guests, looks, hypervisor())] == [
        "proxmox_gpu_guests: expected container 129 once, found it 2 times.",
        "container 130: id: expected a container",
        "container 130: gpus: expected",
        "container 129: no reason given",
        "proxmox_gpu_guests: expected GPU 1 (00000000:41:00.0) in one container, found it in 129, 130",
    ]


def test_a_number_in_quotes_is_the_number():
    guests = [{"id": "129", "gpus": ["0"]}, {"id": 129, "gpus": ["0"]}]
    twice = "proxmox_gpu_guests: expected container 129 once, found it 2 times."
    assert proxmox.list_problems(guests, [{"nodes": []}] * 2, hypervisor()) == [twice]
    assert proxmox.given(guests[:1], [{"nodes": NODES, "devices": []}], hypervisor())[0]["id"] == 129


@pytest.mark.parametrize("identity", ["ct129", "", 129.5, None, -1])
def test_what_is_no_number_of_a_container_is_told(identity):
    told = proxmox.list_problems([{"id": identity, "gpus": ["0"]}], [{"nodes": []}], hypervisor())
    assert told == [f"proxmox_gpu_guests: expected the number of a container as id, found {identity!r}. Write it as in 129."]
    assert check(guest(), identity=identity) == [
        f"expected the number of a container as proxmox_guest_id, found {identity!r}. Write it as in 129."
    ]


@pytest.mark.parametrize(("shared", "count"), [([True, True], 0), ([True, False], 1), ([False, False], 1)])
def test_a_gpu_is_shared_only_when_all_say_so(shared, count):
    guests = [{"id": 129 + number, "gpus": ["0"], "shared": says} for number, says in enumerate(shared)]
    assert len(proxmox.list_problems(guests, [{"nodes": []}] * 2, hypervisor())) == count


def test_one_guest_may_name_a_gpu_twice():
    assert proxmox.list_problems([{"id": 129, "gpus": ["0", "GPU-01"]}], [{"nodes": []}], hypervisor()) == []


def test_what_each_guest_was_given():
    guests = [{"id": 129, "gpus": ["1", " 0"]}, {"id": 130, "gpus": ["2"]}, {"id": 131, "state": "absent", "gpus": ["3"]}]
    results = [{"nodes": NODES, "devices": ["x"]}, {"msg": "failed"}, {"nodes": [], "devices": []}]
    first, last = proxmox.given(guests, results, hypervisor())
    assert (first["id"], [one["uuid"] for one in first["gpus"]], first["nodes"], first["devices"]) == (
        129,
        ["GPU-41", "GPU-01"],
        NODES,
        ["x"],
    )
    assert last == {"id": 131, "gpus": [], "nodes": [], "devices": []}


def check(found, of=None, guests=None, identity=129):
    given = proxmox.given([{"id": 129, "gpus": ["0", "1"]}], [{"nodes": NODES, "devices": []}], hypervisor())
    return proxmox.guest_problems(found, of or hypervisor(), given if guests is None else guests, identity)


@pytest.mark.parametrize(
    "found",
    [
        guest(),
        guest(driver_userland_version="580.159"),  # as NVML tells it
        guest(driver_userland_version=None),  # nvidia-smi listed the GPUs: NVML would refuse another module
        guest(gpus=[{**gpu(0, "01"), "uuid": None}, {**gpu(1, "41"), "uuid": "gpu-41"}]),
    ],
)
def test_both_sides_fit(found):
    assert check(found) == []
    assert check(found, identity="129") == []
    assert check(found, guests=proxmox.given([{"id": "129", "gpus": ["0", "1"]}], [{"nodes": NODES, "devices": []}], hypervisor())) == []


@pytest.mark.parametrize(
    ("found", "of", "words"),
    [
        (guest(driver_userland_version="580.126.09"), None, ["580.159.04 in the guest, as the hypervisor's module, found 580.126.09."]),
        (guest(driver_userland_version="580.15"), None, ["found 580.15."]),  # the same branch is not enough
        (guest(driver_userland_version="570.159.04"), None, ["found 570.159.04."]),
        (guest(driver_userland_version=None, gpus=[]), None, ["found none. Install exactly 580.159.04 in the guest"]),
        (guest(), hypervisor(driver_version=None), ["driver loaded on the hypervisor, found none."]),
        (guest(gpus=[gpu(0, "01")]), None, ["see the GPUs 00000000:01:00.0 (GPU-01), 00000000:41:00.0 (GPU-41), found 00000000:01:00.0"]),
        (guest(gpus=[gpu(0, "01"), gpu(1, "41"), gpu(2, "81")]), None, ["00000000:81:00.0 (GPU-81). Restart the container."]),
        (guest(device_nodes=other_nodes("/dev/nvidia-uvm")), None, ["/dev/nvidia-uvm, found none. On the hypervisor: run nvidia-"]),
        (
            guest(device_nodes=other_nodes("/dev/nvidia-uvm", node("/dev/nvidia-uvm", kind="file"))),
            None,
            ["node /dev/nvidia-uvm, found a file."],
        ),
        (
            guest(device_nodes=other_nodes("/dev/nvidia1", node("/dev/nvidia1", accessible=False, mode="0660"))),
            None,
            ["/dev/nvidia1 to be readable and writable, found that it is not. Set its mode"],
        ),
        (
            guest(device_nodes=other_nodes("/dev/nvidia1", node("/dev/nvidia1", accessible=False))),
            None,
            ["/dev/nvidia1 to be readable and writable, found that it is not, although its mode is 0666. On the hypervisor: load"],
        ),
        (guest(device_nodes=other_nodes("/dev/nvidia1"), driver_userland_version="1.2.3"), None, ["found 1.2.3.", "/dev/nvidia1, "]),
    ],
)  # fmt: skip
def test_both_sides_do_not_fit(found, of, words):
    problems = check(found, of)
    assert len(problems) == len(words), problems
    for problem, word in zip(problems, words):
        assert word in problem


def test_a_guest_whose_hypervisor_is_not_there_or_does_not_know_it():
    for result, guests in ((None, []), (hypervisor(), None)):
        assert "expected the hypervisor to be set up in this run" in proxmox.guest_problems(guest(), result, guests, 129)[0]
    assert "expected container 130 among the guests of its hypervisor, found 129." in check(guest(), identity=130)[0]
    assert "found none." in check(guest(), guests=[], identity=130)[0]


@pytest.mark.parametrize(
    ("said", "options", "words"),
    [
        ({}, {}, []),
        ({"id": "129"}, {"gpu_driver_flavour": "auto", "gpu_driver_power_limit_w": None, "gpu_driver_lock_timeout_s": 5}, []),
        ({"hypervisor": "pve9"}, {}, ["expected one of the group proxmox (pve1, pve2) as proxmox_guest_hypervisor, found 'pve9'"]),
        ({"id": 131}, {}, ["expected container 131 among the guests of pve1, found 129, 130"]),
        ({"id": "x"}, {}, ["expected the number of a container as proxmox_guest_id, found 'x'"]),
        ({"hypervisor": "pve2"}, {}, []),
        (
            {"id": 131},
            {"gpu_driver_mode": "kernel", "gpu_driver_power_limit_w": 250, "gpu_driver_persistence": True, "gpu_driver_ecc": False},
            [
                "among the guests",
                "found gpu_driver_mode, gpu_driver_persistence, gpu_driver_power_limit_w, gpu_driver_ecc. Set them for the",
            ],
        ),
    ],
)
def test_what_is_said_of_a_guest_is_looked_at_before_anything_is_asked(said, options, words):
    hypervisors = {"pve1": {"proxmox_gpu_guests": [{"id": 129}, {"id": "130"}]}, "pve2": {"proxmox_gpu_state": "absent"}}
    problems = proxmox.said_problems({"hypervisor": "pve1", "id": 129, **said}, options, hypervisors)
    assert len(problems) == len(words)
    assert all(word in problem for word, problem in zip(words, problems, strict=True))
