# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import dataclasses
import errno
import pathlib

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_packages as pkg
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_plan, _driver_state, _gpu_inventory, _gpu_system
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_facts import HostFacts, Offers, Wanted
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import Reading

FIXTURES = pathlib.Path(__file__).parents[3] / "fixtures/driver"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (builder@host)\n"


def inventory(version=None, *, library=None, container=False, nodes=(), majors=None, smi=None, **gpu):
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
    told = [Reading("nvidia_smi_xml", gpus=[{**card, **smi}])] if smi else []
    return _gpu_inventory.unite([*told, Reading("system", host=host), proc, Reading("sysfs", gpus=[] if container else [card])])


def host(dpkg="", **facts):
    packages = pkg.packages((FIXTURES / dpkg).read_text()) if dpkg else []
    return HostFacts("debian", "13", "x86_64", "6.12.57+deb13-amd64", packages=packages, **facts)


def decide(wanted, facts, found, ours=False):
    """As gpu_driver_info does."""
    left = _driver_state.leave(wanted, facts, found, ours)
    return left or _driver_state.idle(_driver_plan.decide(wanted, facts, found, Offers()), wanted, found, ours)


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


SMI = {"index": 0, "uuid": "GPU-1", "name": "NVIDIA RTX A6000"}  # as nvidia-smi tells of a GPU


@pytest.mark.parametrize("container", [False, True], ids=["host", "container"])
@pytest.mark.parametrize("distribution", ["debian", "arch"], ids=["a known platform", "an unknown one"])
def test_a_driver_that_answers_is_left_alone_wherever_it_comes_from(container, distribution):
    facts = HostFacts(distribution, "13", "x86_64", "6.12.57+deb13-amd64")
    found = inventory("580.95.05", container=container, smi=SMI)
    decision = _driver_state.leave(Wanted(sglang_release="0.5.23"), facts, found, ours=False)
    assert (decision.problems, decision.plan["mode"], decision.plan["steps"]) == ([], "none", [])
    assert (decision.plan["version"], "580.95.05" in decision.plan["reason"]) == ("580.95.05", True)
    assert set(decision.plan) == set(_driver_plan.PLAN)


@pytest.mark.parametrize(
    "wanted",
    [
        {"upgrade": True},
        {"branch": 590},
        {"version": "580.105.08"},
        {"source": "nvidia"},
        {"runfile": "/srv/NVIDIA-Linux-x86_64-580.105.08.run"},
        {"flavour": "proprietary"},
        {"mode": "userland"},
        {"reboot": "sometimes"},
    ],
    ids=lambda wanted: next(iter(wanted)),
)
def test_what_is_asked_for_is_decided_about_although_a_driver_works(wanted):
    found = inventory("580.95.05", smi=SMI)
    assert _driver_state.leave(Wanted(sglang_release="0.5.23"), host(), found, ours=False) is not None
    assert _driver_state.leave(Wanted(sglang_release="0.5.23", **wanted), host(), found, ours=False) is None
    assert _driver_state.leave(Wanted(sglang_release="0.5.23"), host(), found, ours=True) is None


def test_a_driver_that_works_and_is_too_old_is_replaced_only_where_that_is_asked_for():
    found = inventory("550.163.01", smi=SMI)
    decision = _driver_state.leave(Wanted(sglang_release="0.5.23"), host(), found, ours=False)
    (problem,) = decision.problems
    assert (decision.plan, problem.code) == (None, "driver_too_old")
    assert all(word in problem.text for word in ("580.65.06", "550.163.01", "gpu_driver_upgrade: true"))
    assert _driver_state.leave(Wanted(sglang_release="0.5.9"), host(), found, ours=False).plan["mode"] == "none"
    # The driver of a container is its host's matter.
    inside = inventory("550.163.01", container=True, smi=SMI)
    assert [one.code for one in decide(Wanted(sglang_release="0.5.23"), host(), inside).problems] == ["host_driver_too_old"]


def test_a_module_that_waits_for_a_reboot_is_told_and_the_reboot_left_to_whom_it_is_allowed():
    found = inventory("580.95.05", smi=SMI)
    facts = host(module_version="580.105.08", module_flavour="open")
    plan = _driver_state.leave(Wanted(sglang_release="0.5.23"), facts, found, ours=False).plan
    assert (plan["mode"], plan["reboot_required"], plan["reboot_allowed"]) == ("none", True, False)
    assert "580.105.08" in plan["reboot_why"]
    assert _driver_state.leave(Wanted(sglang_release="0.5.23", reboot="if_required"), facts, found, ours=False) is None


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({"mode": "none"}, False),
        ({"mode": "kernel"}, False),
        ({"mode": "kernel", "packages": ["nvidia-open-kernel-dkms"]}, True),
        ({"mode": "userland", "runfile": {"file": "x"}}, True),
        ({"mode": "kernel", "mok": {"commands": []}}, True),
        ({"mode": "kernel", "steps": [{"step": "load", "text": ""}]}, True),
        ({"mode": "kernel", "reboot_required": True}, False),
        ({"mode": "kernel", "reboot_required": True, "reboot_allowed": True}, True),
    ],
)
def test_a_run_brings_a_driver_when_it_changes_loads_or_reboots(plan, expected):
    assert _driver_state.brings({**_driver_plan.PLAN, **plan}) is expected


@pytest.mark.parametrize(
    ("plan", "found", "why", "told"),
    [
        (
            {"mode": "kernel", "source": "nvidia", "version": "580.95.05", "flavour": "open"},
            {"version": "580.95.05"},
            "",
            "driver 580.95.05 is loaded (open module, from NVIDIA's repository, mode kernel); no reboot waits",
        ),
        (
            {"mode": "kernel", "source": "distribution", "version": "550.163.01", "flavour": "proprietary"},
            {},
            "nouveau has a GPU",
            "driver 550.163.01 is installed and not loaded yet (proprietary module, from the distribution's packages, mode kernel); "
            "a reboot waits, since nouveau has a GPU",
        ),
        (
            {"mode": "userland", "source": "runfile", "version": "580.95.05"},
            {"version": "580.95.05", "library": "580.95.05", "container": True},
            "",
            "the userland 580.95.05 is there, with the host's module 580.95.05 (open module, from a .run file, mode userland); "
            "no reboot waits",
        ),
        (
            {"mode": "kernel", "version": "580.95.05", "branch": 580},
            {"version": "580.95.05"},
            "",
            "driver 580.95.05 is loaded (open module, of another origin, mode kernel); no reboot waits",
        ),
        (
            {"reason": "the driver 580.95.05 works and suits; this role did not install it", "version": "580.95.05"},
            {"version": "580.95.05"},
            "",
            "left alone: the driver 580.95.05 works and suits; this role did not install it; no reboot waits",
        ),
        ({"reason": "there is no NVIDIA GPU on the PCI bus"}, {}, "", "there is no NVIDIA GPU on the PCI bus; no reboot waits"),
    ],
)
def test_one_line_says_how_the_driver_stands(plan, found, why, told):
    assert _driver_state.summary({**_driver_plan.PLAN, **plan}, inventory(**found), why) == told


def test_a_userland_without_packages_in_a_container_stays():
    """Case C22 solved by a .run file: packages beside it would break it."""
    found = inventory("580.95.05", library="580.95.05", container=True)
    decision = decide(Wanted(sglang_release="0.5.23"), host(), found)
    assert (decision.problems, decision.plan["mode"]) == ([], "none")
    assert "580.95.05" in decision.plan["reason"]


@pytest.mark.parametrize(
    ("library", "wanted", "facts", "mode", "codes"),
    [
        ("580.95.05", {"version": "580.95.05"}, {}, "none", []),
        ("580.95.05", {"branch": 580, "upgrade": True}, {}, "none", []),
        ("580.95.05", {"source": "distribution"}, {}, None, ["userland_without_package"]),
        ("580.105.08", {}, {}, None, ["userland_without_package"]),
        (None, {}, {"nvidia_installer": True}, None, ["userland_without_package"]),
        ("580.105.08", {"runfile": "/srv/NVIDIA-Linux-x86_64-580.95.05.run"}, {}, "userland", []),
        ("580.95.05", {"runfile": "/srv/NVIDIA-Linux-x86_64-580.95.05.run"}, {}, "none", []),
    ],
)
def test_packages_never_come_beside_a_userland_that_no_package_brought(library, wanted, facts, mode, codes):
    decision = decide(Wanted(**wanted), host(**facts), inventory("580.95.05", library=library, container=True))
    assert [problem.code for problem in decision.problems] == codes
    assert (decision.plan or {}).get("mode") == mode


def test_only_what_came_with_the_role_is_taken_away():
    facts = host("dpkg_debian13.txt")
    names = _driver_state.driver_packages(facts)
    assert len(names) > 3
    gone = _driver_state.removable({"packages_before": names[:2], "configurations_before": [], "files": ["/etc/x"]}, facts)
    assert gone == {"packages": names[2:], "files": ["/etc/x"]}
    plan = _driver_plan.removal(gone, facts)
    assert set(plan["packages_remove"]) == set(names[2:])


def test_what_a_change_of_the_branch_left_behind_goes_too():
    left = pkg.packages("nvidia-alternative\t550.163.01-2\trc \tnvidia-graphics-drivers\nnvidia-smi\t535.1.1-1\tii \tx\nfoo\t1\trc \tfoo\n")
    facts = dataclasses.replace(host(), packages=left)
    gone = _driver_state.removable({"packages_before": [], "configurations_before": [], "files": []}, facts)
    assert _driver_plan.removal(gone, facts)["packages_remove"] == ["nvidia-alternative", "nvidia-smi"]
    kept = _driver_state.removable({"packages_before": [], "configurations_before": ["nvidia-alternative"], "files": []}, facts)
    assert _driver_plan.removal(kept, facts)["packages_remove"] == ["nvidia-smi"]


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


@pytest.mark.parametrize(
    ("container", "given", "code"),
    [
        (True, "1 2 0:5 /nvidiactl /dev/nvidiactl rw - devtmpfs udev rw\n", "device_eperm"),
        (True, "1 2 0:5 / /dev rw - tmpfs none rw\n1 2 0:5 /x /dev/nvidia0 rw - devtmpfs udev rw\nshort\n", "device_not_given"),
        (False, "", "device_eperm"),
    ],
)
def test_the_rule_of_a_node_is_not_blamed_for_one_that_the_container_made_itself(container, given, code):
    """As nvidia-smi does in a privileged container that has no /dev/nvidiactl."""
    found = inventory("580.95.05", container=container)
    (problem,) = _driver_state.device_problems({"/dev/nvidiactl": errno.EPERM}, found, "sglang", _driver_state.mounted(given))
    assert problem.code == code
    assert ("device rules (EPERM)" in problem.text) == (code == "device_eperm")
    assert ("made in the container" in problem.text) == (code == "device_not_given")


@pytest.mark.parametrize(
    ("opened", "stops"),
    [
        ({}, False),
        ({"/dev/nvidiactl": errno.ENXIO, "/dev/nvidia0": errno.EIO}, False),
        ({"/dev/nvidiactl": errno.ENXIO, "/dev/nvidia-uvm": errno.ENOENT}, True),
        ({"/dev/nvidiactl": errno.EPERM}, True),
        ({"/dev/nvidiactl": errno.EACCES}, True),
    ],
)
def test_what_is_behind_a_node_stops_no_installation_and_the_node_itself_does(opened, stops):
    problems = _driver_state.device_problems(opened, inventory("580.95.05", container=True), "sglang")
    assert len(problems) == len(opened.values())
    assert _driver_state.device_problems_before(problems) == (problems if stops else [])


def test_a_stale_major_stops_an_installation_too():
    nodes = [{"path": "/dev/nvidia-uvm", "major": 510, **NODE}]
    found = inventory("580.95.05", container=True, nodes=nodes, majors={"nvidia-uvm": 511})
    problems = _driver_state.device_problems({"/dev/nvidia-uvm": errno.ENXIO}, found, "sglang")
    assert [problem.code for problem in _driver_state.device_problems_before(problems)] == ["device_enxio", "device_major"]


@pytest.mark.parametrize("number", [0, errno.EACCES])
@pytest.mark.parametrize(("container", "words"), [(True, "on the container's host"), (False, "remove it")])
def test_an_empty_file_in_a_nodes_place_is_no_node_whether_it_can_be_opened_or_not(number, container, words):
    found = inventory("580.95.05", container=container, nodes=[{"path": "/dev/nvidia-uvm", "major": None, **NODE, "kind": "file"}])
    (problem,) = _driver_state.device_problems({"/dev/nvidiactl": 0, "/dev/nvidia-uvm": number}, found, "sglang")
    assert problem.code == "device_kind"
    assert "expected the device node /dev/nvidia-uvm, found a file" in problem.text
    assert words in problem.text


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


@pytest.mark.parametrize("limit", [0, -5])
def test_a_limit_of_nothing_is_refused_where_no_driver_answers_yet(limit):
    found = inventory(None)
    assert found["gpus"][0]["power_limit_min_w"] is None
    assert [problem.code for problem in _driver_state.power_problems(found, limit, None)] == ["power_limit"]
    assert _driver_state.power_problems(found, 250, None) == []


def test_a_limit_that_was_not_taken_is_seen():
    found = inventory("580.95.05", power_limit_w=300.0, power_limit_settable=True, **POWER)
    found["gpus"][0].update(power_limit_w=300.0, power_limit_settable=True)
    assert _driver_state.power_read_back(found, 300) == []
    assert [problem.code for problem in _driver_state.power_read_back(found, 250)] == ["power_limit_not_taken"]


UNIT = "[Service]\nExecStart=/usr/local/sbin/firstlight-nvidia-power {}\n"


@pytest.mark.parametrize(
    ("unit", "limit", "clocks", "options", "goes"),
    [
        ("", None, None, None, None),
        (UNIT.format("250 -"), 250, None, None, None),
        (UNIT.format("250 -"), None, None, ["-pl 300"], True),
        (UNIT.format("- 210,1800"), None, None, ["-rgc"], True),
        (UNIT.format("250 210,1800"), None, None, ["-pl 300", "-rgc"], True),
        (UNIT.format("250 210,1800"), None, [210, 1800], ["-pl 300"], False),
        (UNIT.format("250 210,1800"), 250, None, ["-rgc"], False),
        (UNIT.format("250 -"), None, [210, 1800], ["-pl 300"], False),
    ],
)
def test_what_is_asked_for_no_more_is_set_back(unit, limit, clocks, options, goes):
    found = inventory("580.95.05", smi={**SMI, "power_limit_w": 250.0, "power_limit_default_w": 300.0})
    back = _driver_state.power_back(unit, limit, clocks, found)
    assert back == goes if goes is None else back["unit_goes"] is goes
    assert [" ".join(one["argv"]) for one in (back or {"settings": []})["settings"]] == [
        f"nvidia-smi -i GPU-1 {one}" for one in options or []
    ]


@pytest.mark.parametrize("told", [{"power_limit_w": 300.0, "power_limit_default_w": 300.0}, {"power_limit_w": 250.0}, {"index": None}])
def test_a_gpu_that_has_its_own_limit_or_knows_none_is_told_nothing(told):
    found = inventory("580.95.05", smi={**SMI, **told})
    assert _driver_state.power_back(UNIT.format("250 -"), None, None, found) == {"unit_goes": True, "settings": []}


RECORD = {
    "files": [
        "/etc/apt/preferences.d/firstlight-gpu-driver.pref",
        "/etc/dnf/modules.d/nvidia-driver.module",
        "/var/cache/firstlight/x.run",
    ],
    "units": ["firstlight-nvidia-uvm.service"],
    "packages_before": ["libcuda1:i386"],
    "configurations_before": [],
    "runfile": False,
    "mode": "kernel",
}


def test_a_record_of_the_role_is_right():
    assert _driver_state.record_problem(RECORD) is None


@pytest.mark.parametrize(
    "record,words",
    [
        ([1], "a list"),
        ("x", "a str"),
        ({"a": 1}, "files, units, packages_before, configurations_before, runfile, mode"),
        ({**RECORD, "files": 5}, "files"),
        ({key: value for key, value in RECORD.items() if key != "packages_before"}, "packages_before"),
        ({**RECORD, "packages_before": [None]}, "packages_before"),
        ({**RECORD, "files": ["/etc/passwd"]}, "/etc/passwd"),
        ({**RECORD, "files": ["/etc/firstlight/../passwd"]}, "/etc/firstlight/../passwd"),
        ({**RECORD, "units": ["ssh.service"]}, "ssh.service"),
    ],
)
def test_a_record_that_would_take_away_what_the_role_never_brought(record, words):
    assert words in _driver_state.record_problem(record)
