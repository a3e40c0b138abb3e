"""Files of Proxmox containers: nothing foreign changes, and what is ours is exactly what was asked for."""

from __future__ import annotations

import importlib.util
import pathlib
import re

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_inventory, _gpu_smi, _gpu_system
from ansible_collections.firstlight.sglang.plugins.module_utils import _lxc_config as lxc
from hypothesis import example, given, settings
from hypothesis import strategies as st

TESTS = pathlib.Path(__file__).parents[3]
SAMPLES = TESTS / "fixtures/gpu"


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pct = load(TESTS / "doubles/pct_double.py")


def sample(name):
    return (SAMPLES / name).read_text()


def node(name, major, minor, **other):
    return {"path": f"/dev/{name}", "kind": "character", "major": major, "minor": minor, "mode": "0666", "accessible": True, **other}


UVM, CAPS = 511, 236
MAJORS = _gpu_system.device_majors(sample("proc_devices_511_236.txt"))
NODES = [
    *(node(f"nvidia{number}", 195, number) for number in range(4)),
    node("nvidiactl", 195, 255),
    node("nvidia-uvm", UVM, 0),
    node("nvidia-uvm-tools", UVM, 1),
    *(node(f"nvidia-caps/nvidia-cap{number}", CAPS, number, mode="0444") for number in (1, 2, 12, 13)),
]
# Index 0 has minor 2, as on the host of case A25.
GPUS = [
    {
        "index": index,
        "minor_number": minor,
        "uuid": f"GPU-00000000-0000-4000-8000-00000000000{index}",
        "name": "NVIDIA RTX A6000",
        "pci_bus_id": f"00000000:{bus}:00.0",
        "kernel_driver": "nvidia",
        "health": "ok",
        "mig_enabled": None,
    }
    for index, minor, bus in ((0, 2, "01"), (1, 3, "41"), (2, 0, "81"), (3, 1, "C1"))
]
INVENTORY = {"gpus": GPUS, "device_nodes": NODES, "device_majors": MAJORS}
HOST = lxc.Host(MAJORS, {1, 5, 226})


def inventory(**changes):
    return {**INVENTORY, **changes}


def nodes_for(*gpus, **options):
    choice = lxc.choose_nodes(options.pop("inventory", INVENTORY), gpus, **options)
    assert choice.problems == []
    return choice.nodes


def planned(text, nodes, style, host=HOST, **options):
    plan = lxc.plan(lxc.parse(text), nodes, host, style=style, **options)
    assert plan.problems == []
    return plan


def result(text, nodes, style, host=HOST, **options):
    return lxc.render(planned(text, nodes, style, host, **options).result)


def removed_and_added(before, after):
    """Lines that are only in the one or the other."""
    old, new = before.splitlines(), after.splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


# Parser and renderer

FOREIGN_LINES = [
    "arch: amd64",
    "hostname: llm01",
    "memory: 65536",
    "unprivileged: 1",
    "net0: name=eth0,bridge=vmbr0,ip=dhcp",
    "mp0: /srv/models,mp=/srv/models",
    "dev0: /dev/ttyUSB0",
    "dev7: /dev/dri/renderD128,gid=104",
    "dev9: /dev/nvidia-fs0",
    "dev00: /dev/nvidia0",
    "dev256: /dev/nvidia0",
    "# Owner: team llm",
    "#",
    "description: what it is for",
    "tags: gpu",
    "lxc.cgroup2.devices.allow: c 226:* rwm",
    "lxc.cgroup.devices.allow: c 10:200 rwm",
    "lxc.cgroup2.devices.allow: b 195:* rwm",
    "lxc.cgroup2.devices.deny: c 195:3 rwm",
    "lxc.cgroup2.devices.allow: a",
    "lxc.mount.entry: /dev/dri dev/dri none bind,optional,create=dir",
    "lxc.mount.entry: /srv/nvidia0 srv/nvidia0 none bind,create=dir",
    "lxc.mount.entry: /dev/nvidia-nvswitch0 dev/nvidia-nvswitch0 none bind,optional,create=file",
    "lxc.mount.entry = /dev/net/tun dev/net/tun none bind,create=file",
    "lxc.apparmor.profile: unconfined",
    "lxc.idmap: u 0 100000 65536",
    "not a line of Proxmox",
    "trailing: blanks  \t",
    "\udcff\udcfe: no UTF-8",
    "windows: line\r",
]
OUR_LINES = [
    "dev1: /dev/nvidia0",
    "dev2: mode=0666,path=/dev/nvidiactl",
    "dev3: /dev/nvidia-uvm,gid=44,mode=0660",
    "dev4: /dev/nvidia0,mode=0666",
    "dev5: /dev/nvidia-caps/nvidia-cap1,mode=0444",
    "lxc.cgroup.devices.allow: c 195:* rwm",
    "lxc.cgroup2.devices.allow: c 195:* rwm",
    "lxc.cgroup2.devices.allow: c 195:3 rwm",
    "lxc.cgroup2.devices.allow: c 195:255 r",
    "lxc.cgroup2.devices.allow: c c3:0 rwm",
    "lxc.cgroup2.devices.allow: c 511:* rwm",
    "lxc.cgroup2.devices.allow: c 1ff:0 rwm",
    "lxc.cgroup2.devices.allow = c 236:* rw",
    "lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file",
    "lxc.mount.entry: /dev/nvidia2 dev/nvidia0 none bind,optional,create=file",
    "lxc.mount.entry: /dev/nvidia3 /dev/nvidia3 none bind,optional,create=file 0 0",
    "lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file",
    "lxc.mount.entry: /dev/nvidia-caps dev/nvidia-caps none bind,optional,create=dir",
    "lxc.mount.entry: /dev/nvidia-caps/nvidia-cap2 dev/nvidia-caps/nvidia-cap2 none bind,create=file",
]
STALE_LINES = ["lxc.cgroup2.devices.allow: c 509:* rwm", "lxc.cgroup2.devices.allow: c 240:0 rw", "lxc.cgroup.devices.allow: c 234:* rwm"]
OTHER_SECTIONS = [
    "",
    "\n[snap1]\narch: amd64\ndev0: /dev/nvidia0\nlxc.cgroup2.devices.allow: c 509:* rwm\nsnaptime: 1760000000\n",
    "\n[before-Upgrade_2]\n# a snapshot\n\n[snap2]\nlxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,create=file\n",
    "\n[special:x]\nkey: value",
]

bodies = st.lists(st.sampled_from([*FOREIGN_LINES, *OUR_LINES, *STALE_LINES, ""]), max_size=14)
texts = st.builds(lambda body, rest: "".join(f"{line}\n" for line in body) + rest, bodies, st.sampled_from(OTHER_SECTIONS))
wishes = st.sampled_from([(), ("0",), ("2",), ("0", "1"), ("3", "2", "1", "0")])


@given(st.one_of(texts, st.text(st.sampled_from("[]ab:= \n\r#dev1lxc.\x00\x85\u2028\udcff"), max_size=60), st.text(max_size=60)))
def test_what_is_read_is_written_back(text):
    assert lxc.render(lxc.parse(text)) == text


@given(st.lists(st.tuples(st.sampled_from(["snap1", "pve:pending", "a-b_C"]), bodies), max_size=3), bodies)
def test_what_is_written_is_read_back(rest, body):
    sections = [lxc.Section(None, tuple(map(lxc.Line, body)))]
    sections += [lxc.Section(lxc.Line(f"[{name}]"), tuple(map(lxc.Line, lines))) for name, lines in rest]
    conf = tuple(sections)
    assert lxc.parse(lxc.render(conf)) == conf
    assert [section.name for section in conf] == ["", *(name for name, _ in rest)]


@pytest.mark.parametrize(
    ("line", "pair"),
    [
        ("hostname: llm01", ("hostname", "llm01")),
        ("net0:  name=eth0 ", ("net0", "name=eth0")),
        ("lxc.mount.entry: a b", ("lxc.mount.entry", "a b")),
        ("lxc.mount.entry = a b", ("lxc.mount.entry", "a b")),
        ("lxc.init.cmd=", ("lxc.init.cmd", "")),
        ("#hostname: llm01", ("", "")),
        ("hostname:", ("", "")),
        (" hostname: llm01", ("", "")),
        ("Hostname: llm01", ("", "")),
        ("", ("", "")),
    ],
)
def test_lines_are_read_as_proxmox_reads_them(line, pair):
    assert lxc.Line(line).split() == pair


# Properties of the decision


def is_foreign(line):
    """Written without the parser: what has to stay whatever is asked for."""
    return line in FOREIGN_LINES


@settings(max_examples=400, deadline=None)
@given(texts, wishes, st.sampled_from(["dev", "raw"]), st.booleans())
def test_foreign_lines_and_other_sections_stay_byte_for_byte(text, gpus, style, keep_caps):
    before = lxc.parse(text)
    after = lxc.parse(lxc.render(lxc.plan(before, nodes_for(*gpus) if gpus else (), HOST, style=style, keep_caps=keep_caps).result))
    assert after[1:] == before[1:]
    kept = [line.text for line in before[0].lines if is_foreign(line.text)]
    assert [line.text for line in after[0].lines if is_foreign(line.text)] == kept


@settings(max_examples=400, deadline=None)
@example("lxc.cgroup2.devices.allow = c 236:* rw\nlxc.cgroup2.devices.allow: c 1ff:0 rwm\n", ("0",), "raw", False)
@given(texts, wishes, st.sampled_from(["dev", "raw"]), st.booleans())
def test_a_second_run_changes_nothing_whatever_proxmox_did_to_the_file(text, gpus, style, keep_caps):
    nodes = nodes_for(*gpus) if gpus else ()
    once = lxc.render(lxc.plan(lxc.parse(text), nodes, HOST, style=style, keep_caps=keep_caps).result)
    for again in (once, pct.rewrite(once)):
        plan = lxc.plan(lxc.parse(again), nodes, HOST, style=style, keep_caps=keep_caps)
        assert (plan.set_devices, plan.delete_devices, lxc.render(plan.conf)) == ({}, [], again)


@settings(max_examples=400, deadline=None)
@given(texts, wishes, st.sampled_from(["dev", "raw"]))
def test_the_container_gets_these_nodes_and_no_others(text, gpus, style):
    nodes = nodes_for(*gpus) if gpus else []
    conf = lxc.plan(lxc.parse(text), nodes, HOST, style=style, keep_caps=False).result
    assert sorted(lxc.given_nodes(conf)) == sorted(wanted.path for wanted in nodes)
    # What LXC is told in the end allows each of them, by the numbers of the hypervisor, in decimal.
    numbers = {entry["path"]: (entry["major"], entry["minor"]) for entry in NODES}
    numbers |= dict.fromkeys(("/dev/ttyUSB0", "/dev/dri/renderD128", "/dev/nvidia-fs0"), (4, 4))
    rules = [line.split(" = ")[1].split() for line in lxc.to_lxc_keys(conf, numbers) if line.startswith("lxc.cgroup2.devices.allow = c ")]
    for wanted in nodes:
        assert any(rule[1] in (f"{wanted.major}:{wanted.minor}", f"{wanted.major}:*") and {"r", "w"} <= set(rule[2]) for rule in rules)
    # No rule is left for a GPU that it does not have; only an unprivileged container keeps a wide one, since it cannot make nodes.
    minors = {rule[1].partition(":")[2] for rule in rules if rule[1].startswith("195:")}
    allowed = {str(wanted.minor) for wanted in nodes} | ({"*"} if nodes and style == "raw" and lxc.unprivileged(conf) else set())
    assert minors <= allowed
    assert not [rule for rule in rules if not rule[1].split(":")[0].isdigit()]


# Raw lines


def test_only_the_two_lines_with_stale_majors_change():
    """Case C18."""
    text = sample("lxc_conf_stale_major.conf")
    majors = {"nvidia": 195, "nvidia-uvm": 508, "nvidia-caps": 239}
    now = [node("nvidia0", 195, 0), node("nvidiactl", 195, 255), node("nvidia-uvm", 508, 0), node("nvidia-uvm-tools", 508, 1)]
    nodes = nodes_for("2", inventory=inventory(device_nodes=now, device_majors=majors))
    host = lxc.Host(majors, {1, 226, 237})
    after = result(text, nodes, "raw", host)
    expected = text.replace("c 511:* rwm", "c 508:* rwm").replace("c 236:* rwm", "c 239:* rwm")
    assert after == expected
    assert result(after, nodes, "raw", host) == after
    # Proxmox moves raw lines to the end of the section.
    assert result(pct.rewrite(after), nodes, "raw", host) == pct.rewrite(after)


@pytest.mark.parametrize(
    ("uvm", "caps", "lines"),
    [
        (511, 236, ["511", "236"]),  # nothing changed
        (509, 236, ["509", "236"]),
        (236, 511, ["511", "236"]),  # swapped: both numbers are still allowed
        (236, 234, ["234", "236"]),  # the number of the one is now that of the other
    ],
)
def test_majors_are_put_right_in_their_own_lines(uvm, caps, lines):
    majors = {"nvidia": 195, "nvidia-uvm": uvm, "nvidia-caps": caps}
    now = [node("nvidia0", 195, 0), node("nvidiactl", 195, 255), node("nvidia-uvm", uvm, 0), node("nvidia-uvm-tools", uvm, 1)]
    nodes = nodes_for("2", inventory=inventory(device_nodes=now, device_majors=majors))
    after = result(sample("lxc_conf_stale_major.conf"), nodes, "raw", lxc.Host(majors))
    assert re.findall(r"allow: c (\d+):", after) == ["195", *lines]


def test_new_lines_come_before_the_first_snapshot():
    """Case C19."""
    text = sample("lxc_conf_with_snapshot_section.conf")
    now, _, snapshots = text.partition("\n[snap1]")
    after = result(text, nodes_for("0"), "raw")
    assert after.startswith(now)
    assert after.endswith(f"\n[snap1]{snapshots}")
    assert after[len(now) :].partition("\n[snap1]")[0].splitlines() == [
        "lxc.cgroup2.devices.allow: c 195:2 rw",
        "lxc.cgroup2.devices.allow: c 195:255 rw",
        "lxc.cgroup2.devices.allow: c 511:0 rw",
        "lxc.cgroup2.devices.allow: c 511:1 rw",
        "lxc.mount.entry: /dev/nvidia2 dev/nvidia2 none bind,create=file",
        "lxc.mount.entry: /dev/nvidiactl dev/nvidiactl none bind,create=file",
        "lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,create=file",
        "lxc.mount.entry: /dev/nvidia-uvm-tools dev/nvidia-uvm-tools none bind,optional,create=file",
    ]


ALLOW = "lxc.cgroup2.devices.allow: c "
MOUNTS = "".join(
    f"lxc.mount.entry: /dev/{name} dev/{name} none bind,create=file\n"
    for name in ("nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
)
GOOD = f"{ALLOW}195:2 rw\n{ALLOW}195:255 rw\n{ALLOW}511:* rw\n"
CONFINED = "unprivileged: 1\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(GOOD + MOUNTS, GOOD + MOUNTS, id="right as it is"),
        pytest.param(GOOD + GOOD + MOUNTS + MOUNTS, GOOD + MOUNTS, id="everything twice"),
        pytest.param(GOOD.replace("cgroup2", "cgroup") + MOUNTS, GOOD + MOUNTS, id="cgroup v1"),
        pytest.param(GOOD.replace("cgroup2", "cgroup") + GOOD + MOUNTS, GOOD + MOUNTS, id="cgroup v1 and v2"),
        pytest.param(GOOD.replace("511", "1ff") + MOUNTS, GOOD + MOUNTS, id="major in hexadecimal (pitfall 4)"),
        pytest.param(GOOD.replace("511:* rw", "509:0 rw\nlxc.cgroup2.devices.allow: c 509:1 rw") + MOUNTS,
                     GOOD.replace("511:* rw", "511:0 rw\nlxc.cgroup2.devices.allow: c 511:1 rw") + MOUNTS, id="stale, minor by minor"),
        pytest.param(GOOD.replace("195:2", "195:0") + MOUNTS.replace("nvidia2", "nvidia0"), GOOD + MOUNTS, id="another GPU"),
        pytest.param(GOOD.replace("255 rw", "255 r") + MOUNTS, GOOD + MOUNTS, id="read only"),
        pytest.param(CONFINED + f"{ALLOW}195:* rwm\n{ALLOW}511:* rwm\n" + MOUNTS,
                     CONFINED + f"{ALLOW}195:* rwm\n{ALLOW}511:* rwm\n" + MOUNTS, id="all minors, unprivileged: it cannot make nodes"),
        pytest.param(f"{ALLOW}195:* rwm\n{ALLOW}511:* rwm\n" + MOUNTS, f"{ALLOW}195:2 rw\n{ALLOW}511:* rwm\n{MOUNTS}{ALLOW}195:255 rw\n",
                     id="all minors, privileged: root could make the other GPUs' nodes"),
        pytest.param(GOOD + MOUNTS.replace("dev/nvidia2 none", "dev/nvidia0 none"), GOOD + MOUNTS, id="bound to another place"),
        pytest.param((GOOD + MOUNTS).replace(": ", " = "), (GOOD + MOUNTS).replace(": ", " = "), id="written with ="),
        pytest.param("dev3: /dev/nvidia0,mode=0666\n" + GOOD + MOUNTS, GOOD + MOUNTS, id="devN before"),
    ],
)  # fmt: skip
def test_raw_lines(before, after):
    nodes = nodes_for("0")
    assert result(before, nodes, "raw") == after
    assert result(after, nodes, "raw") == after


@pytest.mark.parametrize(
    ("rest", "bound", "others", "left"),
    [
        pytest.param("", {}, {226}, False, id="nothing else is bound"),
        pytest.param("", {}, {509}, True, id="another driver has the number"),
        pytest.param("lxc.mount.entry: /dev/dri dev/dri none bind,create=dir\n", {"/dev/dri": {226}}, {226}, False, id="226 never changes"),
        pytest.param("lxc.mount.entry: /dev/kfd dev/kfd none bind,create=file\n", {"/dev/kfd": {235}}, {235}, True,
                     id="may have been kfd's"),
        pytest.param(f"{ALLOW}235:0 rw\nlxc.mount.entry: /dev/kfd dev/kfd none bind,create=file\n", {"/dev/kfd": {235}}, {235}, False,
                     id="kfd is allowed by its number of now"),
        pytest.param("lxc.mount.entry: /dev/apex_0 dev/apex_0 none bind,create=file\n", {"/dev/apex_0": set()}, {226}, True,
                     id="a device that is not there"),
        pytest.param("lxc.mount.entry: /srv/x srv/x none bind,create=dir\n", {}, {226}, False, id="a directory"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("style", ["raw", "dev"])
def test_a_number_that_may_be_another_devices_is_left(rest, bound, others, left, style):
    text = f"{ALLOW}509:* rwm\n{rest}{MOUNTS}"
    host = lxc.Host(MAJORS, others, bound)
    plan = planned(text, nodes_for("0"), style, host)
    after = lxc.render(plan.result)
    assert (f"{ALLOW}509:* rwm" in after) == left
    assert (rest in after) and (f"{ALLOW}511" in after) == (style == "raw")
    assert len(plan.warnings) == (left and 509 not in others)
    assert result(after, nodes_for("0"), style, host) == after


def test_what_earlier_boots_left():
    """Raw lines stay right whatever is added to them; without any, nothing is left that such a number could be for."""
    left = f"{ALLOW}509:* rwm\n{ALLOW}510:* rwm\n"
    plan = planned(GOOD + left + MOUNTS, nodes_for("0"), "raw")
    assert lxc.render(plan.conf) == GOOD + left + MOUNTS
    assert [re.findall(r"major (\d+)", text) for text in plan.warnings] == [["509"], ["510"]]
    assert result(left + MOUNTS, nodes_for("0"), "raw").startswith(f"{ALLOW}511:* rwm\n{ALLOW}510:* rwm\n")
    for style, nodes in (("dev", nodes_for("0")), ("", ())):
        assert ALLOW not in result(GOOD + left + MOUNTS, nodes, style)


def test_a_dynamic_number_alone_is_no_evidence():
    text = f"{ALLOW}509:* rwm\nlxc.mount.entry: /dev/nvidia2 dev/nvidia2 none bind,create=file\n"
    assert f"{ALLOW}509:* rwm" in result(text, nodes_for("0"), "raw")


CAPS_LINES = f"{ALLOW}236:* rwm\nlxc.mount.entry: /dev/nvidia-caps dev/nvidia-caps none bind,optional,create=dir\n"


@pytest.mark.parametrize("style", ["raw", "dev"])
def test_mig_capabilities_stay_unless_others_are_asked_for(style):
    text = CONFINED + CAPS_LINES
    kept = result(text, nodes_for("0"), style)
    assert CAPS_LINES in kept
    chosen = nodes_for("0", mig_caps=[12, 13])
    after = result(text, chosen, style, keep_caps=False)
    assert [path for path in lxc.given_nodes(lxc.parse(after)) if "caps" in path] == [
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-caps/nvidia-cap13",
    ]
    none = result(after, nodes_for("0", mig_caps=[]), style, keep_caps=False)
    assert "nvidia-caps" not in none and "236:" not in none


def test_capabilities_of_a_driver_that_has_none_now_are_left():
    text = sample("lxc_conf_stale_major.conf")
    majors = {"nvidia": 195, "nvidia-uvm": 511}
    now = [node("nvidia0", 195, 0), node("nvidiactl", 195, 255), node("nvidia-uvm", 511, 0), node("nvidia-uvm-tools", 511, 1)]
    nodes = nodes_for("2", inventory=inventory(device_nodes=now, device_majors=majors))
    assert result(text, nodes, "raw", lxc.Host(majors)) == text
    after = result(text, nodes, "dev", lxc.Host(majors))
    assert re.findall("c 236.*|/dev/nvidia-caps", after) == ["c 236:* rwm", "/dev/nvidia-caps"]


@pytest.mark.parametrize(
    ("head", "problems", "warnings"),
    [("", 0, 0), (CONFINED, 1, 0), (f"{CONFINED}lxc.idmap: u 0 100000 65536\n", 0, 1)],
)
def test_a_closed_node_is_no_use_to_an_unprivileged_container(head, problems, warnings):
    closed = [{**entry, "mode": "0660"} for entry in NODES]
    nodes = nodes_for("0", inventory=inventory(device_nodes=closed))
    plan = lxc.plan(lxc.parse(head), nodes, HOST, style="raw")
    assert (len(plan.problems), len(plan.warnings)) == (problems, warnings)
    assert all("/dev/nvidia2 (0660)" in text for text in [*plan.problems, *plan.warnings])
    plan = lxc.plan(lxc.parse(head), nodes, HOST, style="dev")
    assert (plan.problems, plan.warnings) == ([], [])


# devN


@pytest.mark.parametrize(
    ("before", "wanted", "unwanted"),
    [
        ("", {"dev0": "nvidia2", "dev1": "nvidiactl", "dev2": "nvidia-uvm", "dev3": "nvidia-uvm-tools"}, []),
        # Case C21: dev0 is somebody's stick.
        ("dev0: /dev/ttyUSB0\n", {"dev1": "nvidia2", "dev2": "nvidiactl", "dev3": "nvidia-uvm", "dev4": "nvidia-uvm-tools"}, []),
        ("dev5: /dev/ttyUSB0\n", {"dev6": "nvidia2", "dev7": "nvidiactl", "dev8": "nvidia-uvm", "dev9": "nvidia-uvm-tools"}, []),
        # What is there keeps its number; another GPU goes, and its number is not used again in the same run.
        ("dev0: /dev/nvidia0,mode=0666\ndev2: /dev/nvidiactl,mode=0666\n",
         {"dev1": "nvidia2", "dev3": "nvidia-uvm", "dev4": "nvidia-uvm-tools"}, ["dev0"]),
        # Twice, and with another mode.
        ("dev1: /dev/nvidia2,mode=0660\ndev2: /dev/nvidia2,mode=0666\ndev3: /dev/nvidiactl,mode=0666\n",
         {"dev1": "nvidia2", "dev0": "nvidia-uvm", "dev4": "nvidia-uvm-tools"}, ["dev2"]),
        # What waits for a start counts.
        ("[pve:pending]\ndev0: /dev/nvidia2,mode=0666\ndev4: /dev/ttyACM0\n",
         {"dev5": "nvidiactl", "dev6": "nvidia-uvm", "dev7": "nvidia-uvm-tools"}, []),
        ("[pve:pending]\ndev0: /dev/nvidia0,mode=0666\n",
         {"dev1": "nvidia2", "dev2": "nvidiactl", "dev3": "nvidia-uvm", "dev4": "nvidia-uvm-tools"}, ["dev0"]),
        ("dev0: /dev/nvidia2,mode=0666\n[pve:pending]\ndelete: net0,!dev0\n",
         {"dev1": "nvidia2", "dev2": "nvidiactl", "dev3": "nvidia-uvm", "dev4": "nvidia-uvm-tools"}, []),
    ],
)  # fmt: skip
def test_devices(before, wanted, unwanted):
    plan = planned(before, nodes_for("0"), "dev")
    assert plan.set_devices == {key: f"/dev/{name},mode=0666" for key, name in wanted.items()}
    assert plan.delete_devices == unwanted
    assert lxc.render(plan.conf) == before


def test_capabilities_by_devices():
    """They have the mode of the hypervisor's node, which is what NVIDIA allows; those that are there stay, once."""
    chosen = {node.path: node for node in nodes_for("0", mig_caps=[12])}
    plan = planned("", list(chosen.values()), "dev", mode="0660", keep_caps=False)
    assert next(iter(plan.set_devices.values())) == "/dev/nvidia2,mode=0660"
    assert list(plan.set_devices.values())[-1] == "/dev/nvidia-caps/nvidia-cap12,mode=0444"
    text = "dev0: /dev/nvidia-caps/nvidia-cap12,mode=0400\ndev1: /dev/nvidia-caps/nvidia-cap12\ndev2: /dev/nvidia-caps/nvidia-cap1\n"
    assert planned(text, nodes_for("0"), "dev").delete_devices == ["dev1"]
    assert planned(text, (), "", keep_caps=False).delete_devices == ["dev0", "dev1", "dev2"]


@pytest.mark.parametrize(
    ("value", "same"),
    [
        ("/dev/nvidia2,mode=0660,gid=44", True),
        ("path=/dev/nvidia2,gid=44,mode=0660,uid=0", True),
        ("gid=44,mode=0660,/dev/nvidia2,deny-write=0", True),
        ("/dev/nvidia2,mode=0660,gid=44,deny-write=1", False),
        ("/dev/nvidia2,gid=44", False),
        ("/dev/nvidia2,mode=0660", False),
        ("/dev/nvidia2,mode=0660,gid=44,uid=7", False),
    ],
)
def test_the_options_of_a_device(value, same):
    plan = planned(f"dev0: {value}\n", nodes_for("0"), "dev", mode="0660", gid=44)
    assert ("dev0" not in plan.set_devices) == same
    assert plan.set_devices.get("dev0", "/dev/nvidia2,mode=0660,gid=44") == "/dev/nvidia2,mode=0660,gid=44"


def test_numbers_run_out():
    text = "".join(f"dev{number}: /dev/tty{number}\n" for number in range(254))
    plan = lxc.plan(lxc.parse(text), nodes_for("0"), HOST, style="dev")
    assert plan.problems == ["expected 4 free numbers for devN (0 to 255), found 2. Remove some by hand."]
    text = "dev255: /dev/tty1\ndev1: /dev/tty2\n"
    assert list(planned(text, nodes_for("0"), "dev").set_devices) == ["dev0", "dev2", "dev3", "dev4"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("arch: amd64\nfeatures: nesting=1\nlxc.x: 1\n\n[s]\ndev0: /dev/a\n",
         "arch: amd64\ndev0: /dev/b\nfeatures: nesting=1\nlxc.x: 1\n\n[s]\ndev0: /dev/a\n"),
        ("arch: amd64\n\n[s]\n", "arch: amd64\ndev0: /dev/b\n\n[s]\n"),
        ("arch: amd64", "arch: amd64\ndev0: /dev/b"),
        ("arch: amd64\ndev3: /dev/c", "arch: amd64\ndev0: /dev/b"),
        ("", "dev0: /dev/b\n"),
        ("dev0: /dev/a", "dev0: /dev/b"),
        ("zoo: 1\ndev7: /dev/a\nnet0: x\n", "zoo: 1\ndev7: /dev/a\ndev0: /dev/b\nnet0: x\n"),
        ("dev9: /dev/a\narch: amd64\n", "dev9: /dev/a\ndev0: /dev/b\narch: amd64\n"),
    ],
)  # fmt: skip
def test_devices_by_hand(before, after):
    assert lxc.render(lxc.with_devices(lxc.parse(before), {"dev0": "/dev/b"}, ["dev3"])) == after


def test_raw_lines_give_way_to_devices():
    text = sample("lxc_conf_stale_major.conf")
    after = result(text, nodes_for("2"), "dev", keep_caps=False)
    removed, added = removed_and_added(text, after)
    assert removed == [line for line in text.splitlines() if line.startswith("lxc.")]
    assert added == [
        f"dev{number}: /dev/{name},mode=0666" for number, name in enumerate(("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"))
    ]
    assert removed_and_added(after, result(after, nodes_for("2"), "raw"))[0] == added


# Taking away


def test_absent_takes_what_is_ours_and_nothing_else():
    foreign = [line for line in FOREIGN_LINES if line]
    mixed = [line for pair in zip(foreign, [*OUR_LINES, *STALE_LINES, *["# end"] * 10]) for line in pair]
    text = "".join(f"{line}\n" for line in mixed) + OTHER_SECTIONS[1]
    host = lxc.Host(MAJORS, {1, 226}, {"/dev/dri": {226}, "/dev/net/tun": {10}, "/dev/nvidia-nvswitch0": {195}})
    after = result(text, (), "", host, keep_caps=False)
    assert after == "".join(f"{line}\n" for line in mixed if line not in (*OUR_LINES, *STALE_LINES)) + OTHER_SECTIONS[1]
    assert result(after, (), "", host, keep_caps=False) == after


def test_absent_without_a_driver():
    text = sample("lxc_conf_stale_major.conf")
    assert result(text, (), "", lxc.Host({}, {226}), keep_caps=False) == "arch: amd64\nhostname: llm01\nunprivileged: 1\n"


# Choosing the nodes


def test_a_node_is_that_of_the_minor_number():
    """Case A25: indices 0 to 7 have the minors 2 3 0 1 6 7 4 5."""
    found = _gpu_inventory.unite([_gpu_smi.parse_xml(sample("smi_8gpu_minor_not_index.xml"), 0)])
    everything = [node(f"nvidia{number}", 195, number) for number in range(8)] + NODES[4:7]
    for wanted, minor in zip("01234567", (2, 3, 0, 1, 6, 7, 4, 5)):
        choice = lxc.choose_nodes({**found, "device_nodes": everything, "device_majors": MAJORS}, [wanted])
        assert choice.problems == []
        assert choice.nodes[0][:3] == (f"/dev/nvidia{minor}", 195, minor)


@pytest.mark.parametrize(
    "wanted",
    ["1", GPUS[1]["uuid"], GPUS[1]["uuid"].lower(), "41:00.0", "0000:41:00.0", "00000000:41:00.0"],
)
def test_ways_to_name_a_gpu(wanted):
    assert nodes_for(wanted)[0].path == "/dev/nvidia3"
    assert [entry.path for entry in nodes_for(wanted, "1", "0")][:2] == ["/dev/nvidia3", "/dev/nvidia2"]


def test_the_least_that_an_inventory_needs():
    least = {"gpus": [{"index": 0, "minor_number": 2, "pci_bus_id": "0000:01:00.0"}], "device_nodes": NODES, "device_majors": MAJORS}
    assert lxc.inventory_problems(least) == []
    assert nodes_for("01:00.0", inventory=least)[0].path == "/dev/nvidia2"


@pytest.mark.parametrize(
    "broken",
    [None, {}, {"gpus": [], "device_nodes": []}, inventory(gpus=None), inventory(device_nodes={}), inventory(device_nodes=["/dev/nvidia0"]),
     inventory(device_nodes=[{"kind": "file"}]), inventory(gpus=["0"]), inventory(device_majors={"nvidia": "195"}),
     inventory(gpus=[{"index": 0, "minor_number": "0"}]), inventory(gpus=[{"index": "0"}]),
     inventory(device_nodes=[{"path": "/dev/nvidia0", "major": "195"}]), inventory(device_nodes=[{"path": "/dev/nvidia0", "mode": "rw"}])],
)  # fmt: skip
def test_an_inventory_that_is_none(broken):
    assert len(lxc.inventory_problems(broken)) == 1


def test_mode_setting_is_given_where_it_is():
    with_modeset = inventory(device_nodes=_gpu_system.listed_nodes(sample("ls_dev_nvidia_full.txt")))
    assert [entry.path for entry in nodes_for("2", inventory=with_modeset)] == [
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
    ]
    assert "/dev/nvidia-modeset" not in [entry.path for entry in nodes_for("2", inventory=with_modeset, modeset=False)]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"health": "passed_through", "kernel_driver": "vfio-pci", "minor_number": None}, "passed through to virtual machines (vfio-pci)"),
        ({"kernel_driver": "vfio-pci"}, "passed through"),
        ({"health": "lost"}, "it is lost"),
        ({"health": "no_driver", "kernel_driver": None, "minor_number": None}, "its driver is none"),
        ({"kernel_driver": "nouveau", "health": "no_driver"}, "its driver is nouveau"),
        ({"minor_number": None}, "no minor number"),
    ],
)
def test_a_gpu_that_cannot_be_given(changes, word):
    choice = lxc.choose_nodes(inventory(gpus=[{**GPUS[0], **changes}, *GPUS[1:]]), ["0", "1"])
    (problem,) = choice.problems
    assert problem.startswith("gpus: GPU 0 cannot be given to a container: ")
    assert word in problem
    assert "/dev/nvidia3" in [entry.path for entry in choice.nodes]


@pytest.mark.parametrize("wanted", ["4", "GPU-1", "0000:02:00.0", "nvidia0", "", "MIG-00000000-0000-4000-8000-000000000001", "-1"])
def test_a_gpu_that_is_not_there(wanted):
    (problem,) = lxc.choose_nodes(inventory(gpus=[*GPUS, {"index": None, "uuid": None, "pci_bus_id": None}]), [wanted]).problems
    assert "0 (00000000:01:00.0), 1 (00000000:41:00.0)" in problem
    assert f"found {wanted}." in problem
    assert ("mig_caps" in problem) == wanted.startswith("MIG")


@pytest.mark.parametrize(
    ("changes", "warning"),
    [({"health": "needs_reset"}, "needs a reset"), ({"mig_enabled": True}, "without mig_caps")],
)
def test_a_gpu_that_is_given_with_a_warning(changes, warning):
    choice = lxc.choose_nodes(inventory(gpus=[{**GPUS[0], **changes}]), ["0"])
    assert choice.problems == []
    assert [warning in text for text in choice.warnings] == [True]


MODPROBE = "nvidia-modprobe -u -c 0 on the hypervisor, and at each boot before its containers start."


def without(path, *more):
    return [entry for entry in NODES if entry["path"] != path] + list(more)


@pytest.mark.parametrize(
    ("nodes", "majors", "words"),
    [
        # Case C17.
        (without("/dev/nvidia-uvm"), MAJORS, "/dev/nvidia-uvm: expected a device node on the hypervisor, found none: run " + MODPROBE),
        (without("/dev/nvidia-uvm", node("nvidia-uvm", None, None, kind="file")), MAJORS, "found a file: remove it and run " + MODPROBE),
        (without("/dev/nvidia-uvm", node("nvidia-uvm", 509, 0)), MAJORS, "device 511:0, found 509:0: remove the node and run " + MODPROBE),
        (
            without("/dev/nvidia2"),
            MAJORS,
            "/dev/nvidia2: expected a device node on the hypervisor, found none: run nvidia-modprobe -c 2 on",
        ),
        (without("/dev/nvidia2", node("nvidia2", 195, 0)), MAJORS, "/dev/nvidia2: expected device 195:2, found 195:0: remove the node"),
        (
            without("/dev/nvidiactl"),
            MAJORS,
            "/dev/nvidiactl: expected a device node on the hypervisor, found none: run nvidia-modprobe -c 0",
        ),
        (NODES, {"nvidia": 195}, "expected a major number of nvidia-uvm in /proc/devices, found none: run " + MODPROBE),
    ],
)
def test_nodes_that_are_missing_on_the_hypervisor(nodes, majors, words):
    problems = lxc.choose_nodes(inventory(device_nodes=nodes, device_majors=majors), ["0"]).problems
    assert words in "\n".join(problems)


def test_all_that_is_wrong_is_told_at_once():
    nodes = _gpu_system.listed_nodes(sample("ls_dev_nvidia_no_uvm.txt"))
    problems = lxc.choose_nodes(inventory(device_nodes=nodes), ["0", "9"], mig_caps=[99]).problems
    assert [problem.partition(":")[0] for problem in problems] == [
        "gpus",
        "/dev/nvidia2",
        "/dev/nvidia-uvm",
        "/dev/nvidia-caps/nvidia-cap99",
    ]


# The style

HELP = "USAGE: pct set <vmid> [OPTIONS]\n\n  --dev[n]   [[path=]<Path>] [,deny-write=<1|0>] [,gid=<integer>]\n"
OLD_HELP = "USAGE: pct set <vmid> [OPTIONS]\n\n  -description <string>\n"


@pytest.mark.parametrize(
    ("style", "pct_help", "release", "chosen"),
    [
        ("auto", HELP, None, "dev"),
        ("auto", HELP.replace("--dev", "-dev"), None, "dev"),
        ("auto", OLD_HELP, None, "raw"),
        ("auto", OLD_HELP, "8.2.4", "raw"),  # what pct says counts
        ("auto", None, "8.1.3", "dev"),
        ("auto", None, "pve-manager/8.1.3/b46aac3b42da5d15 (running kernel: 6.5.11-4-pve)", "dev"),
        ("auto", None, "9.0.10", "dev"),
        ("auto", None, "8.0.4", "raw"),
        ("auto", None, "7.4-17", "raw"),
        ("auto", None, "10.0", "dev"),
        ("auto", None, None, ""),
        ("auto", None, "bookworm", ""),
        ("auto", "", None, ""),
        ("dev", None, None, "dev"),
        ("dev", OLD_HELP, None, ""),
        ("dev", None, "7.4", ""),
        ("raw", HELP, None, "raw"),
    ],
)
def test_the_style(style, pct_help, release, chosen):
    found, problem = lxc.choose_style(style, pct_help=pct_help, release=release)
    assert found == chosen
    assert bool(problem) == (chosen == "")


# For people, and for plain LXC


def test_what_the_container_gets_in_words():
    nodes = nodes_for("0")
    text = "dev0: /dev/ttyUSB0\n" + CAPS_LINES
    conf = lxc.plan(lxc.parse(text), nodes, HOST, style="dev", mode="0660", gid=44).result
    assert lxc.describe(conf, nodes) == [
        "/dev/nvidia2 (dev1, mode 0660, owner 0:44): GPU 0 NVIDIA RTX A6000 00000000:01:00.0",
        "/dev/nvidiactl (dev2, mode 0660, owner 0:44): control",
        "/dev/nvidia-uvm (dev3, mode 0660, owner 0:44): unified memory, which CUDA needs",
        "/dev/nvidia-uvm-tools (dev4, mode 0660, owner 0:44): unified memory, for profilers",
        "/dev/nvidia-caps (bound)",
    ]


def test_plain_lxc_keys():
    text = "\n".join([
        "arch: amd64",
        "dev0: /dev/nvidia2,mode=0666",
        "dev1: /dev/ttyUSB0,deny-write=1",
        "lxc.cgroup2.devices.allow: c 511:* rw",
        "lxc.cgroup2.memory.high: 1G",
        "lxc.mount.entry = /dev/nvidia-uvm dev/nvidia-uvm none bind,create=file",
        "lxc.mount.entry: /srv/x srv/x none bind,create=dir",
        "[snap]",
        "lxc.mount.entry: /dev/nvidia3 dev/nvidia3 none bind",
    ])  # fmt: skip
    numbers = {"/dev/nvidia2": (195, 2), "/dev/ttyUSB0": (188, 0)}
    assert lxc.to_lxc_keys(lxc.parse(text), numbers) == [
        "lxc.cgroup2.devices.allow = c 195:2 rw",
        "lxc.mount.entry = /dev/nvidia2 dev/nvidia2 none bind,create=file",
        "lxc.cgroup2.devices.allow = c 188:0 r",
        "lxc.mount.entry = /dev/ttyUSB0 dev/ttyUSB0 none bind,create=file",
        "lxc.cgroup2.devices.allow = c 511:* rw",
        "lxc.cgroup2.memory.high = 1G",
        "lxc.mount.entry = /dev/nvidia-uvm dev/nvidia-uvm none bind,create=file",
        "lxc.mount.entry = /srv/x srv/x none bind,create=dir",
    ]
    old = lxc.to_lxc_keys(lxc.parse(text), numbers, root="/srv/nodes", cgroup=1)
    assert old[0] == "lxc.cgroup.devices.allow = c 195:2 rw"
    assert old[1] == "lxc.mount.entry = /srv/nodes/dev/nvidia2 dev/nvidia2 none bind,create=file"
    assert old[5:] == [
        "lxc.cgroup2.memory.high = 1G",
        "lxc.mount.entry = /srv/nodes/dev/nvidia-uvm dev/nvidia-uvm none bind,create=file",
        "lxc.mount.entry = /srv/x srv/x none bind,create=dir",
    ]
    with pytest.raises(KeyError):
        lxc.to_lxc_keys(lxc.parse(text), {})


def test_majors_of_other_drivers():
    assert lxc.other_majors(sample("proc_devices_511_236.txt")) == {1, 5, 226}
    assert lxc.other_majors("") == set()


@pytest.mark.parametrize(
    ("text", "locked", "confined"),
    [
        ("lock: backup\n", "backup", False),
        ("unprivileged: 1\n[s]\nlock: backup\n", "", True),
        ("unprivileged: 0\nlxc.idmap: u 0 100000 65536\n", "", True),
        ("#unprivileged: 1\n[s]\nunprivileged: 1\n", "", False),
    ],
)
def test_what_a_container_is(text, locked, confined):
    conf = lxc.parse(text)
    assert (lxc.lock_of(conf), lxc.unprivileged(conf)) == (locked, confined)
