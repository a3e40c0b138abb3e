from __future__ import annotations

import pathlib

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _unit_state as state

FIXTURES = pathlib.Path(__file__).parent / "fixtures/systemd"


def unit(name="sglang-x.service", **values):
    shown = {"Id": name, "LoadState": "loaded", "ActiveState": "active", "SubState": "running", **values}
    return state.parse_show("\n".join(f"{key}={value}" for key, value in shown.items()))[name]


def test_two_units_in_one_call():
    shown = state.parse_show((FIXTURES / "running_and_absent.txt").read_text())
    running, absent = shown["sglang-demo.service"], shown["sglang-gone.service"]
    assert (running["main_pid"], running["restarts"], running["exit_status"]) == (1719, 0, None)
    assert running["started_monotonic_s"] == pytest.approx(2028.24, abs=0.01)
    assert (absent["load_state"], absent["started_monotonic_s"], absent["job"]) == ("not-found", None, 0)


def test_a_dead_unit_that_says_activating():
    dead = state.parse_show((FIXTURES / "auto_restart.txt").read_text())["sglang-double.service"]
    assert dead["active_state"] == "activating"
    assert not state.is_running(dead)
    assert state.is_dead_of_failure(dead)
    assert (dead["exit_code"], dead["exit_status"]) == ("killed", 9)


@pytest.mark.parametrize(
    ("values", "log_phase", "http", "listener", "phase"),
    [
        ({"LoadState": "not-found"}, "starting", "not_asked", "none", "absent"),
        ({"ActiveState": "inactive", "SubState": "dead"}, "draining", "not_asked", "none", "stopped"),
        ({"ActiveState": "inactive", "SubState": "dead", "Job": "77"}, "starting", "not_asked", "none", "starting"),
        ({"ActiveState": "failed", "SubState": "failed"}, "loading_weights", "not_asked", "none", "failed"),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, "loading_weights", "not_asked", "none", "failed"),
        ({"ActiveState": "activating", "SubState": "auto-restart-queued"}, "ready", "not_asked", "none", "failed"),
        ({"ActiveState": "deactivating", "SubState": "stop-sigterm"}, "ready", "ready", "unit", "draining"),
        ({}, "loading_weights", "refused", "none", "loading_weights"),
        ({}, "warming_up", "starting", "unit", "warming_up"),
        ({}, "warming_up", "ready", "unit", "ready"),
        ({}, "ready", "ready", "unit", "ready"),
        ({}, "ready", "ready", "unknown", "ready"),
        ({}, "importing", "ready", "unit", "ready"),  # the journal has lost the beginning
        ({}, "ready", "starting", "unit", "unhealthy"),
        ({}, "ready", "no_answer", "unit", "unhealthy"),
        ({}, "loading_weights", "ready", "other", "loading_weights"),  # somebody else answers
        ({}, "draining", "ready", "unit", "draining"),
    ],
)
def test_one_phase_out_of_three_sources(values, log_phase, http, listener, phase):
    assert state.combine_phase(unit=unit(**values), log_phase=log_phase, http_state=http, listener=listener) == phase


def test_who_listens():
    table = (FIXTURES / "proc_net_tcp.txt").read_text()
    assert state.listening_inodes(table, 30000) == {"327332"}
    assert state.listening_inodes(table, 30001) == set()
    established = (
        table.splitlines()[0] + "\n   5: 0100007F:7530 0100007F:A2BD 01 00000000:00000000 00:00000000 00000000     0        0 7 1 0 0\n"
    )
    assert state.listening_inodes(established, 30000) == set()


def test_whose_process_it_is():
    cgroup = "9:name=systemd:/system.slice/sglang-demo.service\n7:blkio:/\n0::/system.slice/sglang-demo.service\n"
    assert state.belongs_to_unit(cgroup, "sglang-demo.service")
    assert not state.belongs_to_unit(cgroup, "sglang-dem.service")
    assert state.belongs_to_unit("0::/system.slice/sglang-demo.service/sub", "sglang-demo.service")


def test_how_an_earlier_run_ended():
    lines = [
        "sglang-double.service: Main process exited, code=killed, status=9/KILL",
        "sglang-double.service: Failed with result 'signal'.",
    ]
    assert state.read_end(lines) == ("killed", 9, "signal")
    assert state.read_end(["sglang-demo.service: Deactivated successfully."]) == ("", None, "")


@pytest.mark.parametrize(
    ("before", "now", "word"),
    [
        ({"NRestarts": 0, "InvocationID": "a"}, {"NRestarts": 1, "InvocationID": "b"}, "systemd"),
        ({"NRestarts": 0, "InvocationID": "a"}, {"NRestarts": 0, "InvocationID": "b"}, "somebody"),
        ({"NRestarts": 2, "InvocationID": "a"}, {"NRestarts": 0, "InvocationID": "b"}, "somebody"),
        ({"NRestarts": 0, "InvocationID": "a"}, {"NRestarts": 0, "InvocationID": "a"}, ""),
        ({"NRestarts": 0, "InvocationID": ""}, {"NRestarts": 0, "InvocationID": "a"}, ""),
    ],
)
def test_a_restart_between_two_looks(before, now, word):
    note = state.restart_note(unit(**before), unit(**now))
    assert bool(note) == bool(word)
    assert word in note


def test_an_owner_is_named_with_its_unit():
    assert state.owner_words("nginx\n", "7", "0::/system.slice/nginx.service\n") == "nginx (pid 7, unit nginx.service)"
    assert state.owner_words("nc\n", "7", "0::/user.slice/user-0.slice/session-1.scope\n") == "nc (pid 7)"
