# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reads what systemd says of a unit, and who listens on a port; decides which phase an instance is in.

PRIVATE to the collection. Pure: text in, data out.
"""

from __future__ import annotations

import re
import typing as t

UNIT_PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "UnitFileState",
    "InvocationID",
    "NRestarts",
    "MainPID",
    "ExecMainPID",
    "ExecMainCode",
    "ExecMainStatus",
    "ExecMainStartTimestampMonotonic",
    "ExecMainExitTimestampMonotonic",
    "StateChangeTimestampMonotonic",
    "ExecMainStartTimestamp",
    "NeedDaemonReload",
    "Job",
)

# waitid(2): how the main process ended
_CODES = {"0": "", "1": "exited", "2": "killed", "3": "dumped"}


class UnitState(t.TypedDict):
    unit: str
    load_state: str
    active_state: str
    sub_state: str
    result: str
    enabled: str
    invocation_id: str
    restarts: int
    main_pid: int
    exit_code: str
    exit_status: int | None
    started_at: str
    started_monotonic_s: float | None
    ended_monotonic_s: float | None
    changed_monotonic_s: float | None
    needs_daemon_reload: bool
    job: int


class HttpLook(t.TypedDict):
    state: str
    status: int | None
    path: str | None
    seconds: float
    listener: str
    owner: str


def _integer(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _seconds(text: str | None) -> float | None:
    microseconds = _integer(text)
    return microseconds / 1e6 if microseconds else None


def parse_show(text: str) -> dict[str, UnitState]:
    """The blocks of `systemctl show UNIT...`, by unit."""
    states: dict[str, UnitState] = {}
    for block in re.split(r"\n\s*\n", text.strip()):
        found = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        name = found.get("Id", "")
        if not name:
            continue
        code = found.get("ExecMainCode", "0")
        ended = _CODES.get(code, code)
        states[name] = {
            "unit": name,
            "load_state": found.get("LoadState", "not-found"),
            "active_state": found.get("ActiveState", "unknown"),
            "sub_state": found.get("SubState", "unknown"),
            "result": found.get("Result", ""),
            "enabled": found.get("UnitFileState", ""),
            "invocation_id": found.get("InvocationID", ""),
            "restarts": _integer(found.get("NRestarts")),
            "main_pid": _integer(found.get("MainPID")),
            "exit_code": ended,
            "exit_status": _integer(found.get("ExecMainStatus")) if ended else None,
            "started_at": found.get("ExecMainStartTimestamp", ""),
            "started_monotonic_s": _seconds(found.get("ExecMainStartTimestampMonotonic")),
            "ended_monotonic_s": _seconds(found.get("ExecMainExitTimestampMonotonic")),
            "changed_monotonic_s": _seconds(found.get("StateChangeTimestampMonotonic")),
            "needs_daemon_reload": found.get("NeedDaemonReload") == "yes",
            "job": _integer(found.get("Job")),
        }
    return states


def is_running(unit: UnitState) -> bool:
    """A unit that waits for its next restart says "activating" as well, but nothing runs."""
    return unit["active_state"] in ("active", "activating", "reloading") and not unit["sub_state"].startswith("auto-restart")


def is_dead_of_failure(unit: UnitState) -> bool:
    return unit["active_state"] == "failed" or unit["sub_state"].startswith("auto-restart")


def combine_phase(*, unit: UnitState, log_phase: str, http_state: str, listener: str) -> str:
    """One phase out of systemd's state, the log and the port.

    The log says how far a start got; only an answer on a port that this unit itself holds says that it is ready now.
    """
    phase = log_phase
    if unit["load_state"] in ("not-found", "bad-setting", "error", "masked"):
        phase = "absent"
    elif is_dead_of_failure(unit):
        phase = "failed"
    elif unit["active_state"] == "deactivating":
        phase = "draining"
    elif not is_running(unit):
        phase = "starting" if unit["job"] else "stopped"  # a job that has yet to run, for instance the second half of a restart
    elif log_phase != "draining":
        if http_state == "ready" and listener in ("unit", "unknown") and log_phase in ("starting", "warming_up", "ready", "importing"):
            # "importing": the journal has lost the beginning of a long run
            phase = "ready"
        elif log_phase == "ready":
            phase = "unhealthy"
    return phase


def read_end(lines: t.Iterable[str]) -> tuple[str, int | None, str]:
    """How an earlier invocation ended, by systemd's own lines in its journal: exit code, exit status, result."""
    code, status, result = "", None, ""
    for line in lines:
        match = re.search(r"Main process exited, code=(\w+), status=(\d+)", line)
        if match:
            code, status = match[1], int(match[2])
        match = re.search(r"Failed with result '([\w-]+)'", line)
        if match:
            result = match[1]
    return code, status, result


def http_state(status: int | None) -> str:
    """What the answer of a probe path means; None: no answer."""
    if status is None:
        return "no_answer"
    if status == 200:
        return "ready"
    if status == 503:
        return "starting"
    if status in (401, 403):
        return "unauthorized"
    return "other"


def listening_inodes(text: str, port: int) -> set[str]:
    """Socket inodes that listen on the port, of /proc/net/tcp or tcp6."""
    inodes = set()
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == "0A" and fields[1].rsplit(":", 1)[-1] == f"{port:04X}":
            inodes.add(fields[9])
    return inodes


def belongs_to_unit(cgroup_text: str, unit: str) -> bool:
    """Whether /proc/PID/cgroup puts the process into the unit."""
    return any(unit in line.rsplit(":", 1)[-1].split("/") for line in cgroup_text.splitlines())


def owner_words(name: str, pid: str, cgroup_text: str) -> str:
    """A process, with its unit when it is in one."""
    match = re.search(r"/([^/\s]+\.service)(?:/|$)", cgroup_text, re.MULTILINE)
    return f"{name.strip()} (pid {pid}{f', unit {match[1]}' if match else ''})"


def restart_note(before: UnitState, now: UnitState) -> str:
    """What happened between two looks that a mere state does not show; empty when nothing did."""
    if now["restarts"] > before["restarts"]:
        return f"systemd restarted it (restart {now['restarts']})"
    if before["invocation_id"] and now["invocation_id"] and now["invocation_id"] != before["invocation_id"]:
        return "somebody restarted it"
    return ""
