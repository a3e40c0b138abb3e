# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Puts one look at an instance together, and judges a row of looks: go on waiting, ready, or failed.

PRIVATE to the collection. Pure: data in, data out.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils._diagnosis import (
    Problem,
    diagnose,
    diagnose_unit,
    last_exception,
    telling_lines,
)
from ansible_collections.firstlight.sglang.plugins.module_utils._engine_log import (
    PHASE_WORDS,
    LogLine,
    clean_line,
    hide_secrets,
    read_numbers,
    read_phase,
    ready_at,
    shorten,
)
from ansible_collections.firstlight.sglang.plugins.module_utils._unit_state import (
    HttpLook,
    UnitState,
    combine_phase,
    is_dead_of_failure,
    is_running,
    read_end,
    restart_note,
)

Look = t.Dict[str, t.Any]  # noqa: UP006  (evaluated at run time)

# Errors that something else than the engine caused, or that only say how it ended.
_NOT_ITS_OWN = ("process_killed", "killed_by_signal", "host_out_of_memory", "start_limit_hit")

# What a report needs of a look. The rest (lines of the journal above all) is in the message when it matters.
_REPORTED = ("name", "phase", "numbers", "problems", "time_to_ready_seconds", "environment_id", "python")


class InputError(Exception):
    """An instance that cannot be used, said in words."""


def compact_look(look: Look) -> Look:
    """A look without what would bury the message of a failed task."""
    unit = {name: look["unit"].get(name) for name in ("restarts", "invocation_id", "started_at")}
    return {**{name: look.get(name) for name in _REPORTED}, "unit": unit}


def check_some_instance(instances: t.Sequence[t.Any], host: str) -> None:
    """Refuses an empty list: nothing verified must not look like all verified."""
    if not instances:
        raise InputError(
            f"{host} has no instance: no group of it sets sglang_instance_<group>. Put it into a group whose group_vars set one"
            " (group_vars/demo/ is an example), or take it out of the play."
        )


def check_instances(instances: t.Sequence[t.Mapping[str, t.Any]], needed: t.Sequence[str]) -> None:
    """Refuses, in one message, instances that lack what a module reads."""
    wrong = []
    for number, instance in enumerate(instances, 1):
        missing = [name for name in needed if not instance.get(name)]
        if missing:
            wrong.append("instance {} ({}) has no {}".format(number, instance.get("name") or "without a name", ", ".join(missing)))
    if wrong:
        raise InputError(
            "instances: expected resolved instances (those of the lookup firstlight.sglang.instances) with {}; found: {}.".format(
                ", ".join(needed), "; ".join(wrong)
            )
        )


def read_api_key(text: str) -> str:
    """The value of the one line `api-key: VALUE` (or api_key) of a YAML file, plain or quoted; empty when there is none."""
    for line in text.splitlines():
        match = re.match(
            r"""^api[-_]key:\s*(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^']|'')*)'|(?P<plain>\S.*?))\s*(?:\s#.*)?$""", line
        )
        if match:
            if match["double"] is not None:
                return re.sub(r"\\(.)", r"\1", match["double"])
            if match["single"] is not None:
                return match["single"].replace("''", "'")
            return match["plain"]
    return ""


def python_of_environment(text: str) -> str | None:
    """The Python version that a pyvenv.cfg names."""
    match = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+(?:\.\d+)?)", text, re.MULTILINE)
    return match[1] if match else None


def environment_of_target(target: str) -> str | None:
    """The environment id that an instance's `current` link leads to."""
    return target.rstrip("/").rsplit("/", 1)[-1] or None if target else None


def _seconds_between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round(max(0.0, end - begin), 1)


def build_look(
    *,
    name: str,
    unit: UnitState,
    lines: t.Sequence[LogLine],
    http: HttpLook,
    now_s: float,
    secrets: t.Sequence[str] = (),
) -> Look:
    """One look: the phase and how long it has lasted, the numbers, and what is wrong."""
    reading = read_phase(lines)
    running = is_running(unit)
    failed = is_dead_of_failure(unit)
    phase = combine_phase(unit=unit, log_phase=reading.phase, http_state=http["state"], listener=http["listener"])
    began = unit["started_monotonic_s"]
    since = reading.since_s if running and phase == reading.phase else unit["changed_monotonic_s"]
    if phase == "unhealthy" or since is None:
        since = unit["changed_monotonic_s"]
    stamps = [line.monotonic_s for line in lines if line.monotonic_s is not None]
    problems = diagnose(lines, secrets=secrets) if phase not in ("absent", "stopped") else []
    explained = any(problem["severity"] == "error" for problem in problems)
    problems += diagnose_unit(
        result=unit["result"],
        exit_code=unit["exit_code"],
        exit_status=unit["exit_status"],
        failed=failed,
        explained=explained,
        exception=last_exception(lines, secrets=secrets),
    )
    if running and http["listener"] == "other":
        problems.insert(0, _foreign_listener(http))
    if unit["needs_daemon_reload"]:
        problems.append(
            {
                "code": "needs_daemon_reload",
                "severity": "warning",
                "found": "the unit file on disk is not the one that systemd has loaded",
                "advice": "Run systemctl daemon-reload, then restart the unit.",
                "count": 1,
            }
        )
    became_ready = ready_at(lines)
    quiet = _seconds_between(stamps[-1] if stamps else None, now_s) if running else None
    last = next((text for text in (clean_line(line.text) for line in reversed(lines)) if text and "server_args=" not in text), "")
    return {
        "name": name,
        "unit": dict(unit),
        "phase": phase,
        "phase_words": PHASE_WORDS[phase],
        "phase_seconds": _seconds_between(since, now_s),
        "percent": reading.percent if phase == "loading_weights" else None,
        "running_seconds": _seconds_between(began, now_s) if running else None,
        "time_to_ready_seconds": _seconds_between(began, became_ready) if became_ready is not None else None,
        "http": dict(http),
        "numbers": read_numbers(lines),
        "problems": problems,
        "lines": telling_lines(lines, secrets=secrets),
        "last_line": shorten(hide_secrets(last, secrets), 200),
        "quiet_seconds": quiet,
    }


def build_previous(*, name: str, invocation: str, lines: t.Sequence[LogLine], secrets: t.Sequence[str] = ()) -> dict[str, t.Any]:
    """What the journal of an earlier invocation says of its end."""
    code, status, result = read_end(line.text for line in lines)
    problems = diagnose(lines, secrets=secrets)
    problems += diagnose_unit(
        result=result,
        exit_code=code,
        exit_status=status,
        failed=bool(result),
        explained=any(problem["severity"] == "error" for problem in problems),
        exception=last_exception(lines, secrets=secrets),
    )
    return {
        "name": name,
        "invocation_id": invocation,
        "exit_code": code,
        "exit_status": status,
        "phase": read_phase(lines).phase,
        "problems": problems,
        "lines": telling_lines(lines, secrets=secrets),
    }


def name_owner(problems: t.Iterable[Problem], owner: str) -> None:
    """The log of an engine that found its port taken does not say by whom; this does."""
    for problem in problems:
        if problem["code"] == "port_in_use" and owner and owner not in problem["found"]:
            problem["found"] = f"{problem['found']} (held by {owner})"


def _foreign_listener(http: HttpLook) -> Problem:
    return {
        "code": "port_in_use",
        "severity": "error",
        "found": f"the port is held by another process: {http['owner'] or 'unknown'}",
        "advice": "Stop that process, or give the instance another port: the engine would load fully, and only then fail.",
        "count": 1,
    }


class Verdict(t.NamedTuple):
    """state: waiting, ready or failed; why: one line for people when it failed."""

    state: str
    why: str = ""


def awaits_restart(look: Look) -> bool:
    """Dead, but systemd will start it again by itself."""
    return look["phase"] == "failed" and str(look["unit"]["sub_state"]).startswith("auto-restart")


def _invocation_changed(first: Look, now: Look) -> bool:
    return bool(first["unit"]["invocation_id"] != now["unit"]["invocation_id"])


def is_new_start(first: Look, now: Look) -> bool:
    """Whether the first look fell into the end of an earlier run, so that this look is the one to compare the next ones with."""
    if now["phase"] == "failed" or not _invocation_changed(first, now):
        return False
    owed = awaits_restart(first) and now["unit"]["restarts"] <= first["unit"]["restarts"] + 1
    return owed or bool(first["phase"] == "draining")


def _ending(unit: t.Mapping[str, t.Any]) -> str:
    if unit["exit_code"] == "exited":
        return f"its main process exited with {unit['exit_status']}"
    if unit["exit_code"]:
        return f"its main process was {unit['exit_code']} by signal {unit['exit_status']}"
    return f"result {unit['result'] or 'unknown'}"


def judge(first: Look, now: Look) -> Verdict:
    """Whether to go on waiting, by the first and the newest look.

    A unit with Restart= is dead although it says "activating": the number of restarts and the invocation tell it. A unit that was
    dead or stopping at the first look gets its next start; the caller takes the first look at that as the first one (is_new_start).
    """
    note = restart_note(first["unit"], now["unit"])
    phase = now["phase"]
    ended = _ending(now["unit"])
    if phase == "failed" and not awaits_restart(now):
        verdict = Verdict("failed", f"the unit failed ({ended})")  # also when it was to be restarted, and systemd has given up
    elif awaits_restart(first) and not _invocation_changed(first, now) and phase != "ready":
        verdict = Verdict("waiting")  # the number of restarts grows a moment before the new run begins
    elif awaits_restart(now):
        verdict = Verdict("failed", f"the engine ended ({ended}) and waits for its next restart")
    elif note and now["unit"]["restarts"] > first["unit"]["restarts"]:
        again = " and is up again" if phase == "ready" else ""
        verdict = Verdict("failed", f"the engine ended while it was waited for{again}: {note}")
    elif phase == "ready":
        verdict = Verdict("ready")
    elif note:
        verdict = Verdict("failed", f"the engine ended while it was waited for: {note}")
    elif phase == "absent":
        verdict = Verdict("failed", "there is no such unit ({}): run site.yml (make deploy) first".format(now["unit"]["load_state"]))
    elif phase == "stopped":
        verdict = Verdict("failed", "the unit is stopped; start it with: systemctl start {}".format(now["unit"]["unit"]))
    elif now["http"]["listener"] == "other":
        verdict = Verdict("failed", f"another process holds the port: {now['http']['owner']}")
    else:
        verdict = Verdict("waiting")
    return verdict


def describe(look: Look) -> str:
    """One line of progress: `demo: loading weights, 34 s`."""
    words = "dead, waits for its restart" if awaits_restart(look) else look["phase_words"]
    text = f"{look['name']}: {words}"
    if look["percent"] is not None:
        text += f", {look['percent']} %"
    seconds = look["time_to_ready_seconds"] if look["phase"] == "ready" else look["phase_seconds"]
    if seconds is not None:
        text += f" after {seconds:.0f} s" if look["phase"] == "ready" else f", {seconds:.0f} s"
    return text


def _own_error(problems: t.Sequence[Problem], ended: t.Mapping[str, t.Any]) -> Problem | None:
    """The error for which the engine killed itself: after an error it sends signal 9 to all of its processes, the main one too."""
    if (ended["exit_code"], ended["exit_status"]) != ("killed", 9):
        return None
    return next((problem for problem in problems if problem["severity"] == "error" and problem["code"] not in _NOT_ITS_OWN), None)


def failure_message(look: Look, why: str, previous: Look | None = None) -> str:
    """Everything a person needs: what happened, what it means, what to do, and the lines that say so."""
    told = previous if previous is not None and look["phase"] != "failed" else look  # the log of the run that ended
    worst = [problem for problem in told["problems"] if problem["severity"] == "error"] or [
        problem for problem in told["problems"] if problem["severity"] in ("warning", "consequence")
    ]
    own = _own_error(worst, told if told is previous else look["unit"]) if look["phase"] == "failed" or told is previous else None
    if own is not None:
        text = [f"{look['name']}: {own['found']}", f"  to do: {own['advice']}"]
        text.append("  The engine then ended itself with signal 9: {}.".format(why.replace(f" ({_ending(look['unit'])})", "")))
        worst = [problem for problem in worst if problem is not own]
    else:
        text = [f"{look['name']}: {why}."]
    for problem in worst:
        text.append(f"  found ({problem['code']}): {problem['found']}")
        text.append(f"  to do: {problem['advice']}")
    if told["lines"]:
        text.append("  last lines of its journal:")
        text += [f"    {line}" for line in told["lines"]]
    text.append(f"  more: journalctl -u {look['unit']['unit']} -n 200 --no-pager")
    return "\n".join(text)


def timeout_message(look: Look, waited_s: float, limit_s: float) -> str:
    """The time is over and nothing has failed: still getting on, or standing still?"""
    quiet = look["quiet_seconds"]
    why = f"not ready after {waited_s:.0f} s (ready_timeout_s is {limit_s:g}); it is {look['phase_words']}"
    if look["phase_seconds"] is not None:
        why += f" since {look['phase_seconds']:.0f} s"
    if quiet is not None and quiet > 20:
        why += f", and its log has stood still for {quiet:.0f} s after: {look['last_line']}"
    else:
        why += ", and its log is still growing: raise verify.ready_timeout_s, or look again later"
    return failure_message(look, why)
