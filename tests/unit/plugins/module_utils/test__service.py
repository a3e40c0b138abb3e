from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _service

SHOW = """Id=sglang-demo.service
LoadState=loaded
ActiveState=active
MainPID=534
DropInPaths=/etc/systemd/system/sglang-demo.service.d/x.conf

Id=sglang-other.service
LoadState=not-found
ActiveState=inactive
MainPID=0
DropInPaths=
"""
# From a container: 0.0.0.0:29000, 127.0.0.1:30000, and an established connection.
TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:7148 00000000:0000 0A 00000000:00000000 00:00000000 00000000   998        0 145520 1 0000000000000000 100 0 0 10 0
   1: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000   998        0 145521 1 0000000000000000 100 0 0 10 0
   2: 2903000A:0016 0103000A:A1E4 01 00000000:00000000 02:0008D5E2 00000000     0        0 117133 2 0000000000000000 20 4 1 10 -1
"""
TCP6 = """  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 13 1 0 100 0 0 10 0
   1: 00000000000000000000000001000000:7530 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 14 1 0 100 0 0 10 0
"""  # noqa: E501
INSTANCE = {"name": "demo", "host": "127.0.0.1", "port": 30000, "nccl_port": 29000}


def test_show_of_several_units():
    units = _service.parse_show(SHOW)
    assert list(units) == ["sglang-demo.service", "sglang-other.service"]
    assert units["sglang-demo.service"]["MainPID"] == "534"
    assert _service.parse_show("") == {}


def test_version():
    assert _service.systemd_version("systemd 252 (252.39-1~deb12u2)\n+PAM +AUDIT") == 252
    assert _service.systemd_version("busybox") is None


def test_listeners():
    assert _service.parse_listeners(TCP) == [("0.0.0.0", 29000, "145520"), ("127.0.0.1", 30000, "145521")]
    assert _service.parse_listeners(TCP6) == [("::", 22, "13"), ("::1", 30000, "14")]


@pytest.mark.parametrize(
    ("wanted", "taken", "collide"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("127.0.0.1", "0.0.0.0", True),
        ("127.0.0.1", "::", True),
        ("127.0.0.1", "::1", False),
        ("127.0.0.1", "::ffff:127.0.0.1", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("0.0.0.0", "::1", False),
        ("::", "127.0.0.1", True),
        ("::1", "0.0.0.0", False),
        ("localhost", "127.0.0.1", True),
    ],
)
def test_addresses(wanted, taken, collide):
    assert _service.addresses_collide(wanted, taken) is collide


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/sglang-demo.service", "sglang-demo.service"),
        ("9:name=systemd:/system.slice/squatter.service\n8:pids:/x\n0::/system.slice/squatter.service", "squatter.service"),
        ("0::/lxc/ct129/system.slice/sglang-demo.service/sub", "sglang-demo.service"),
        ("0::/user.slice/user-0.slice/session-1.scope", None),
        ("", None),
    ],
)
def test_unit_of_cgroup(text, unit):
    assert _service.unit_of_cgroup(text) == unit


def test_port_conflicts_name_the_owner():
    listeners = _service.parse_listeners(TCP)
    ours = {"145520": _service.Owner(1, "sglang", "sglang-demo.service"), "145521": _service.Owner(1, "sglang", "sglang-demo.service")}
    assert _service.port_conflicts(INSTANCE, listeners, ours, ["sglang-demo.service"]) == []
    other = {"145520": _service.Owner(7, "python3", None), "145521": _service.Owner(9, "nginx", "nginx.service")}
    assert _service.port_conflicts(INSTANCE, listeners, other, ["sglang-demo.service"]) == [
        "demo: port 30000 should be free on 127.0.0.1, but nginx (pid 9, unit nginx.service) listens on 127.0.0.1. "
        "Stop it, or give the instance another port",
        "demo: nccl_port 29000 should be free on 0.0.0.0, but python3 (pid 7) listens on 0.0.0.0. "
        "Stop it, or give the instance another nccl_port",
    ]
    assert "cannot be seen" in _service.port_conflicts(INSTANCE, listeners, {}, [])[0]


NOW = {"files": {"/u": "1", "/k": "2", "/l": "3"}, "environment": "/e", "environment_record": "4"}


@pytest.mark.parametrize(
    ("record", "reasons"),
    [
        (None, ["unknown start"]),
        (NOW, []),
        ({**NOW, "outdated": True}, ["unit"]),
        ({**NOW, "environment": "/old"}, ["environment"]),
        ({**NOW, "environment_record": "9"}, ["environment"]),  # built anew
        ({**NOW, "environment_record": None}, ["environment"]),
        ({"files": NOW["files"], "environment": "/e"}, ["environment"]),  # a record of an earlier launcher
        ({**NOW, "files": {**NOW["files"], "/k": "9"}}, ["key"]),
        ({**NOW, "files": {**NOW["files"], "/l": "9"}}, ["launcher"]),
        ({**NOW, "files": {**NOW["files"], "/u.d/x.conf": "9"}}, ["unit"]),
        ({"files": {"/u": "1", "/l": "3"}, "environment": "/e", "environment_record": "4"}, ["key"]),
        ({}, ["unit", "key", "launcher", "environment"]),
    ],
)
def test_differences(record, reasons):
    assert _service.differences(record, NOW, key_path="/k", launcher="/l") == reasons


@pytest.mark.parametrize(
    ("state", "active", "file_state", "stale", "allowed", "expected"),
    [
        ("started", "active", "enabled", [], True, ("none", None, False)),
        ("started", "active", "disabled", [], True, ("none", True, False)),
        ("started", "active", "enabled", ["key"], True, ("restart", None, False)),
        ("started", "active", "enabled", ["key"], False, ("none", None, True)),
        ("started", "inactive", "enabled", [], False, ("start", None, False)),
        ("started", "failed", "enabled", [], True, ("start", None, False)),
        ("started", "activating", "enabled", [], True, ("start", None, False)),
        ("started", "", "", [], True, ("start", True, False)),
        ("stopped", "active", "enabled", ["unit"], True, ("stop", None, False)),
        ("stopped", "activating", "enabled", [], True, ("stop", None, False)),
        ("stopped", "inactive", "enabled", [], True, ("none", None, False)),
    ],
)
def test_plan(state, active, file_state, stale, allowed, expected):
    planned = _service.plan(state, enabled=True, active_state=active, unit_file_state=file_state, stale=stale, restart_allowed=allowed)
    assert planned == expected


def test_not_enabled():
    planned = _service.plan("started", enabled=False, active_state="active", unit_file_state="enabled", stale=[], restart_allowed=True)
    assert planned.enable is False


def test_dropins_that_systemd_overlooks():
    loaded = ["/etc/systemd/system/a.service.d/x.conf", "/run/systemd/system/service.d/lxc.conf"]
    assert not _service.dropins_outdated("a.service", loaded, {"/etc/systemd/system": ["x.conf"], "/run/systemd/system": ["x.conf"]})
    assert _service.dropins_outdated("a.service", loaded, {"/etc/systemd/system": ["x.conf", "y.conf"]})
    assert _service.dropins_outdated("a.service", loaded, {"/etc/systemd/system": []})


def test_only_our_units_are_ours():
    ours = "[X-Firstlight]\nInstance=demo\n\n[Unit]\nDescription=x\n[Service]\nLoadCredential=api_key.yaml:/etc/sglang/100%%.yaml\n"
    assert _service.instance_of_unit(ours) == "demo"
    assert _service.key_file_of_unit(ours) == "/etc/sglang/100%.yaml"
    assert _service.instance_of_unit("[Unit]\nInstance=demo\n") is None
    assert _service.key_file_of_unit("[Service]\n") is None


GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "sglang-qwen3-6-27b.service"


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("", {}),
        ("[Service]\nExecStart=/e/python run -- /e/sglang \\\n  --host 0.0.0.0 \\\n  --port 30001\n", {"host": "0.0.0.0", "port": 30001}),
        (
            "[Service]\nExecStartPre=+/x --port 1\nExecStart=/e --port 2 --nccl-port 3\nExecStopPost=/x --port 4\n",
            {"port": 2, "nccl_port": 3},
        ),
        ('[Service]\nExecStart=/e --served-model-name "a --port 1" --port 2\n', {"port": 2}),
        ('[Service]\nExecStart=/e "--port 2\n', {}),
    ],
)
def test_ports_of_a_unit(text, ports):
    assert _service.ports_of_unit(text) == ports


def test_ports_of_a_unit_that_the_role_writes():
    assert _service.ports_of_unit(GOLDEN.read_text()) == {"host": "127.0.0.1", "port": 30000, "nccl_port": 29000}


@pytest.mark.parametrize(
    ("ports", "words"),
    [
        ({}, []),
        ({"host": "127.0.0.1", "port": 30001, "nccl_port": 29001}, []),
        ({"host": "10.0.0.1", "port": 30000}, []),
        ({"host": "0.0.0.0", "port": 30000}, ["port 30000: remove it with sglang_server_prune: true, or give the instance another port"]),
        ({"nccl_port": 29000}, ["nccl_port 29000: remove it with sglang_server_prune: true, or give the instance another nccl_port"]),
        ({"nccl_port": 30000}, ["nccl_port 30000: remove it with sglang_server_prune: true, or give the instance another port"]),
    ],
)
def test_ports_of_units_that_are_no_longer_listed(ports, words):
    found = _service.unlisted_conflicts([INSTANCE], {"sglang-x.service": ports})
    assert found == [f"demo: sglang-x.service is no longer listed and has {text}" for text in words]
