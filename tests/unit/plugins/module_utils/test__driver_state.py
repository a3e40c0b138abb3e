# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import errno
import pathlib

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_packages as pkg
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_plan, _driver_state, _gpu_inventory, _gpu_system
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_facts import HostFacts, Offers, Wanted
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import Reading

FIXTURES = pathlib.Path(__file__).parents[3] / "fixtures/driver"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (builder@host)\n"


def inventory(version=None, *, library=None, container=False, nodes=(), majors=None, **gpu):
    host = {
        "container": container,
        "virtualization": "lxc" if container else "none",
        "secure_boot": "disabled",
        "device_nodes": list(nodes),
        "device_majors": majors or {},
        **({"driver_userland_version": library} if library else {}),
    }
    card = {"pci_bus_id": "00000000:01:00.0", "pci_device_id": "10de:2230", "kernel_driver": "nvidia" if version else None, **gpu}
    proc = _gpu_system.proc_reading(OPEN.format(version) if version else "", {})
    return _gpu_inventory.unite([Reading("system", host=host), proc, Reading("sysfs", gpus=[] if container else [card])])


def host(dpkg="", **facts):
    packages = pkg.packages((FIXTURES / dpkg).read_text()) if dpkg else []
    return HostFacts("debian", "13", "x86_64", "6.12.57+deb13-amd64", packages=packages, **facts)


def decide(wanted, facts, found, ours=False):
    return _driver_state.leave(_driver_plan.decide(wanted, facts, found, Offers()), wanted, facts, found, ours)


@pytest.mark.parametrize(
    ("wanted", "ours", "mode"),
    [
        (Wanted(sglang_release="0.5.23"), False, "none"),
        (Wanted(sglang_release="0.5.23"), True, "kernel"),
        (Wanted(version="580.95.05"), False, "kernel"),
    ],
    ids=["nothing asked for", "the role's own", "an exact version is held"],
)
def test_a_driver_that_suits_is_left_alone_unless_it_is_ours_or_asked_for(wanted, ours, mode):
    decision = decide(wanted, host(), inventory("580.95.05", library="580.95.05"), ours)
    assert decision.problems == []
    assert decision.plan["mode"] == mode
    assert bool(decision.plan["steps"]) == (mode != "none")


def test_a_driver_that_is_too_old_for_the_release_is_not_left():
    decision = decide(Wanted(sglang_release="0.5.23"), host(), inventory("550.163.01", library="550.163.01"))
    assert decision.plan is None or decision.plan["packages"]


def test_a_userland_without_packages_in_a_container_stays():
    """Case C22 solved by a .run file: packages beside it would break it."""
    found = inventory("580.95.05", library="580.95.05", container=True)
    decision = decide(Wanted(sglang_release="0.5.23"), host(), found)
    assert (decision.problems, decision.plan["mode"]) == ([], "none")
    assert "580.95.05" in decision.plan["reason"]


def test_a_userland_of_another_version_does_not_stay():
    decision = decide(Wanted(), host(), inventory("580.95.05", library="580.105.08", container=True))
    assert decision.plan is None or decision.plan["mode"] == "userland"


def test_only_what_came_with_the_role_is_taken_away():
    facts = host("dpkg_debian13.txt")
    names = _driver_state.driver_packages(facts)
    assert len(names) > 3
    gone = _driver_state.removable({"packages_before": names[:2], "files": ["/etc/x"]}, facts)
    assert gone == {"packages": names[2:], "files": ["/etc/x"]}
    plan = _driver_plan.removal(gone, facts)
    assert set(plan["packages_remove"]) == set(names[2:])


NODE = {"kind": "character", "minor": 0, "mode": "0666", "accessible": True}


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (errno.ENXIO, "device_enxio", "no module behind it"),
        (errno.EPERM, "device_eperm", "device rules"),
        (errno.EACCES, "device_eacces", "mode"),
        (errno.ENOENT, "device_enoent", "no such node"),
    ],
)
def test_a_node_without_module_is_told_from_one_that_is_forbidden(number, code, words):
    found = inventory("580.95.05", container=True)
    (problem,) = _driver_state.device_problems({"/dev/nvidiactl": number, "/dev/nvidia-uvm": 0}, found, "sglang")
    assert problem.code == code
    assert words in problem.text
    assert "/dev/nvidia-uvm" not in problem.text.partition(", found")[0]
    assert "sglang" in problem.text


def test_a_stale_major_number_is_seen():
    nodes = [{"path": "/dev/nvidia-uvm", "major": 510, **NODE}, {"path": "/dev/nvidia0", "major": 195, **NODE}]
    found = inventory("580.95.05", nodes=nodes, majors={"nvidia": 195, "nvidia-uvm": 511})
    problems = _driver_state.device_problems({}, found, "sglang")
    assert [problem.code for problem in problems] == ["device_major"]
    assert "511" in problems[0].text


def test_the_nodes_that_are_tried_are_those_of_the_minors():
    nodes = [{"path": "/dev/nvidia3", "major": 195, **NODE}, {"path": "/dev/nvidia-modeset", "major": 195, **NODE}]
    assert _driver_state.device_paths(inventory("580.95.05", nodes=nodes)) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia3"]


POWER = {"name": "NVIDIA RTX A6000", "power_limit_min_w": 100.0, "power_limit_max_w": 300.0, "clock_sm_max_mhz": 2100}


@pytest.mark.parametrize(
    ("limit", "clocks", "codes"),
    [
        (250, [210, 1800], []),
        (50, None, ["power_limit"]),
        (400, [210], ["power_limit", "clocks"]),
        (None, [1800, 210], ["clocks"]),
        (None, [210, 3000], ["clocks"]),
    ],
)
def test_limits_out_of_range_are_refused(limit, clocks, codes):
    found = inventory("580.95.05", **POWER)
    assert [problem.code for problem in _driver_state.power_problems(found, limit, clocks)] == codes


def test_a_limit_that_was_not_taken_is_seen():
    found = inventory("580.95.05", power_limit_w=300.0, power_limit_settable=True, **POWER)
    found["gpus"][0].update(power_limit_w=300.0, power_limit_settable=True)
    assert _driver_state.power_read_back(found, 300) == []
    assert [problem.code for problem in _driver_state.power_read_back(found, 250)] == ["power_limit_not_taken"]
