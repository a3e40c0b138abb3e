from __future__ import annotations

import pathlib

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _status as status
from ansible_collections.firstlight.sglang.plugins.module_utils._engine_log import LogLine, parse_journal
from ansible_collections.firstlight.sglang.plugins.module_utils._unit_state import parse_show

JOURNAL = parse_journal((pathlib.Path(__file__).parent / "fixtures/systemd/journal_0.5.23_cpu.json").read_text())
RUNNING = {"ActiveState": "active", "SubState": "running", "InvocationID": "a" * 32, "ExecMainStartTimestampMonotonic": 2028240243}
AUTO_RESTART = {"ActiveState": "activating", "SubState": "auto-restart", "InvocationID": "a" * 32, "ExecMainCode": 2, "ExecMainStatus": 9}
FAILED = {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "ExecMainCode": 1, "ExecMainStatus": 2}
UP = {"state": "ready", "status": 200, "path": "/ready", "seconds": 0.0, "listener": "unit", "owner": ""}
CLOSED = {"state": "refused", "status": None, "path": None, "seconds": 0.0, "listener": "none", "owner": ""}
LOADING = [LogLine(2030.0, "hello"), LogLine(2031.0, "Load weight begin. avail mem=1 GB")]


def look(values, lines=(), http=CLOSED, now=2065.0, **more):
    shown = {"Id": "sglang-demo.service", "LoadState": "loaded", **values}
    unit = parse_show("\n".join(f"{key}={value}" for key, value in shown.items()))["sglang-demo.service"]
    return status.build_look(name="demo", unit=unit, lines=lines, http=http, now_s=now, **more)


def test_a_ready_engine():
    seen = look(RUNNING, JOURNAL, UP, now=2200.0)
    assert seen["phase"] == "ready"
    assert seen["time_to_ready_seconds"] == pytest.approx(61, abs=1)
    assert {problem["severity"] for problem in seen["problems"]} == {"harmless"}
    assert status.describe(seen) == "demo: ready after 61 s"


def test_a_loading_engine():
    seen = look(RUNNING, LOADING)
    assert status.describe(seen) == "demo: loading weights, 34 s"
    assert (seen["running_seconds"], seen["quiet_seconds"]) == (36.8, 34.0)
    seen = look(RUNNING, [*LOADING, LogLine(2032.0, "50% Completed | 2/4")])
    assert status.describe(seen) == "demo: loading weights, 50 %, 34 s"


def test_a_port_that_another_process_holds_is_told_while_loading():
    seen = look(RUNNING, LOADING, {**UP, "listener": "other", "owner": "nginx (pid 7)"})
    assert seen["phase"] == "loading_weights"
    assert seen["problems"][0]["code"] == "port_in_use"
    assert status.judge(seen, seen) == status.Verdict("failed", "another process holds the port: nginx (pid 7)")


RESTARTED = {**RUNNING, "InvocationID": "b" * 32}


@pytest.mark.parametrize(
    ("first", "now", "state", "word"),
    [
        (look(RUNNING, LOADING), look(RUNNING, LOADING), "waiting", ""),
        (look(RUNNING, JOURNAL, UP), look(RUNNING, JOURNAL, UP), "ready", ""),
        # crashed once in the past and up again: not this run's business
        (look({**RUNNING, "NRestarts": 3}, JOURNAL, UP), look({**RUNNING, "NRestarts": 3}, JOURNAL, UP), "ready", ""),
        (look(RUNNING, LOADING), look(AUTO_RESTART, LOADING), "failed", "killed by signal 9"),
        (look(RUNNING, LOADING), look({**RESTARTED, "NRestarts": 1}), "failed", "systemd restarted it"),
        (look(RUNNING, LOADING), look({**RESTARTED, "NRestarts": 1}, JOURNAL, UP), "failed", "is up again"),
        (look(RUNNING, LOADING), look(RESTARTED), "failed", "somebody restarted it"),
        (look(FAILED), look(FAILED), "failed", "exited with 2"),
        (look({"LoadState": "not-found"}), look({"LoadState": "not-found"}), "failed", "(not-found): run site.yml (make deploy)"),
        (look({"ActiveState": "inactive"}), look({"ActiveState": "inactive"}), "failed", "systemctl start sglang-demo.service"),
        # dead at the first look: systemd owes it one restart
        (look(AUTO_RESTART), look(AUTO_RESTART), "waiting", ""),
        (look(AUTO_RESTART), look({**AUTO_RESTART, "NRestarts": 1}), "waiting", ""),
        # systemd has given up: the same invocation, and no restart will come
        (look(AUTO_RESTART), look({**FAILED, "InvocationID": "a" * 32}), "failed", "exited with 2"),
        # but no second one
        (look(AUTO_RESTART), look({**AUTO_RESTART, "InvocationID": "b" * 32, "NRestarts": 1}), "failed", "waits for its next restart"),
        (look(AUTO_RESTART), look({**RESTARTED, "NRestarts": 2}), "failed", "systemd restarted it"),
        (look(AUTO_RESTART), look({**FAILED, "InvocationID": "b" * 32}), "failed", "exited with 2"),
    ],
)
def test_verdicts(first, now, state, word):
    verdict = status.judge(first, now)
    assert verdict.state == state
    assert word in verdict.why


@pytest.mark.parametrize(
    ("first", "now", "new"),
    [
        (look(AUTO_RESTART), look({**RESTARTED, "NRestarts": 1}), True),
        (look({**RUNNING, "ActiveState": "deactivating", "SubState": "stop-sigterm"}), look(RESTARTED), True),
        (look(AUTO_RESTART), look(AUTO_RESTART), False),
        (look(AUTO_RESTART), look({**AUTO_RESTART, "NRestarts": 1}), False),
        (look(AUTO_RESTART), look({**AUTO_RESTART, "InvocationID": "b" * 32, "NRestarts": 1}), False),
        (look(AUTO_RESTART), look({**RESTARTED, "NRestarts": 2}), False),
        (look(RUNNING), look(RESTARTED), False),
    ],
)
def test_the_end_of_an_earlier_run_is_not_held_against_the_new_one(first, now, new):
    assert status.is_new_start(first, now) == new


def test_a_failure_says_what_why_and_what_to_do():
    lines = [LogLine(1.0, "sglang serve: error: unrecognized arguments: --tp-sise 2"), LogLine(2.0, "  File x")]
    text = status.failure_message(look(FAILED, lines), "the unit failed")
    assert text.splitlines() == [
        "demo: the unit failed.",
        "  found (unknown_flag): sglang serve: error: unrecognized arguments: --tp-sise 2",
        "  to do: This release does not know --tp-sise 2. Correct or remove it in the instance's args or extra_args.",
        "  last lines of its journal:",
        "    sglang serve: error: unrecognized arguments: --tp-sise 2",
        "  more: journalctl -u sglang-demo.service -n 200 --no-pager",
    ]


def test_the_log_of_the_run_that_died_is_what_is_told():
    lines = [
        LogLine(1.0, "torch.OutOfMemoryError: CUDA out of memory."),
        LogLine(2.0, "sglang-demo.service: Main process exited, code=killed, status=9/KILL"),
        LogLine(2.0, "sglang-demo.service: Failed with result 'signal'."),
    ]
    previous = status.build_previous(name="demo", invocation="a" * 32, lines=lines)
    assert [problem["code"] for problem in previous["problems"]] == ["gpu_out_of_memory"]
    assert "CUDA out of memory" in status.failure_message(look({**RESTARTED, "NRestarts": 1}), "it ended", previous)
    silent = status.build_previous(name="demo", invocation="a" * 32, lines=lines[1:])
    assert [problem["code"] for problem in silent["problems"]] == ["killed_by_signal"]
    stopped = status.build_previous(name="demo", invocation="a" * 32, lines=[LogLine(1.0, "Deactivated successfully.")])
    assert stopped["problems"] == []


def test_an_error_of_its_own_comes_before_the_signal():
    """After an error the engine ends all of its processes with signal 9."""
    lines = [LogLine(1.0, "RuntimeError: it broke"), LogLine(2.0, "Received sigquit from a child process.")]
    dead = look({**FAILED, "Result": "signal", "ExecMainCode": 2, "ExecMainStatus": 9}, lines)
    text = status.failure_message(dead, status.judge(dead, dead).why).splitlines()
    assert text[0] == "demo: RuntimeError: it broke"
    assert text[2] == "  The engine then ended itself with signal 9: the unit failed."
    ended = [*lines, LogLine(3.0, "x: Main process exited, code=killed, status=9/KILL"), LogLine(3.0, "x: Failed with result 'signal'.")]
    previous = status.build_previous(name="demo", invocation="a" * 32, lines=ended)
    text = status.failure_message(look({**RESTARTED, "NRestarts": 1}), "systemd restarted it", previous).splitlines()
    assert text[0] == "demo: RuntimeError: it broke"
    assert text[2] == "  The engine then ended itself with signal 9: systemd restarted it."


def test_a_kill_from_outside_is_told_as_one():
    dead = look({**FAILED, "Result": "signal", "ExecMainCode": 2, "ExecMainStatus": 9}, LOADING)
    text = status.failure_message(dead, status.judge(dead, dead).why)
    assert text.startswith("demo: the unit failed (its main process was killed by signal 9).")


def test_a_result_has_no_journal():
    seen = status.compact_look(look(RUNNING, JOURNAL, UP, now=2200.0))
    assert "lines" not in seen
    assert set(seen["unit"]) == {"restarts", "invocation_id", "started_at"}


def test_a_host_without_an_instance_is_told_in_words():
    with pytest.raises(status.InputError, match="ct129 has no instance: no group of it sets sglang_instance_<group>"):
        status.check_some_instance([], "ct129")
    status.check_some_instance([{}], "ct129")


def test_a_timeout_tells_standing_still_from_getting_on():
    assert "stood still for 34 s after: Load weight begin" in status.timeout_message(look(RUNNING, LOADING), 60, 60)
    assert "still growing" in status.timeout_message(look(RUNNING, [*LOADING, LogLine(2064.0, "x")]), 60, 60)


def test_no_look_shows_a_key():
    seen = look(RUNNING, [LogLine(2030.0, "server_args=ServerArgs(api_key='SENTINEL')"), LogLine(2031.0, "SENTINEL")], secrets=["SENTINEL"])
    assert "SENTINEL" not in str(seen)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('api-key: "abc.DEF_~+/=-1"\n', "abc.DEF_~+/=-1"),
        ("api-key: plain # with a comment\n", "plain"),
        ("api-key: 'it''s'\n", "it's"),
        ('api-key: "a\\"b"\n', 'a"b'),
        ("# nothing\nport: 1\n", ""),
        ("", ""),
    ],
)
def test_the_key_file(text, key):
    assert status.read_api_key(text) == key


@pytest.mark.parametrize(
    ("text", "version"),
    [("home = /usr/bin\nversion = 3.11.2\n", "3.11.2"), ("version_info = 3.13.5\n", "3.13.5"), ("", None)],
)
def test_the_python_of_an_environment(text, version):
    assert status.python_of_environment(text) == version


def test_all_wrong_instances_in_one_message():
    with pytest.raises(status.InputError, match=r"instance 1 \(a\) has no unit, url; instance 2 \(without a name\) has no name"):
        status.check_instances([{"name": "a"}, {"unit": "u", "url": "x"}], ("name", "unit", "url"))


def test_the_owner_of_a_taken_port_is_named_once():
    problems = [
        {"code": "port_in_use", "severity": "error", "found": "[Errno 98]", "advice": "", "count": 1},
        {"code": "disk_full", "severity": "error", "found": "x", "advice": "", "count": 1},
    ]
    for owner in ("nginx (pid 7, unit nginx.service)", "nginx (pid 7, unit nginx.service)", ""):
        status.name_owner(problems, owner)
    assert [problem["found"] for problem in problems] == ["[Errno 98] (held by nginx (pid 7, unit nginx.service))", "x"]
