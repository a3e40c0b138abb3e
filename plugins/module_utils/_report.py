# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Makes the report of a verified (or failed) instance out of what was resolved, seen and probed.

PRIVATE to the collection. Pure: data in, data out; the Markdown is a template of the role sglang_verify.
"""

from __future__ import annotations

import json
import re
import shlex
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _plan_record
from ansible_collections.firstlight.sglang.plugins.module_utils._diagnosis import HARMLESS_WORDS

SCHEMA_VERSION = 1


class Controller(t.TypedDict):
    """How the controller reaches the host. local: it is the host; network_address: without ssh; options: more words for ssh."""

    local: bool
    address: str
    network_address: str | None
    user: str | None
    port: int | None
    options: list[str]


class Failure(t.NamedTuple):
    """in_wait: it did not come to the checks; told: a task has failed with these words already."""

    in_wait: bool
    words: str
    told: bool


def failure_of(wait: t.Mapping[str, t.Any], probe: t.Mapping[str, t.Any]) -> Failure:
    """Why not everything is verified, by the results of sglang_wait and sglang_probe. Means nothing when all is."""
    in_wait = bool(wait.get("failed") or wait.get("failed_instances") or "instances" not in wait)
    words = (wait if in_wait else probe).get("msg") or "it did not come to the checks"
    return Failure(in_wait, str(words), bool(wait.get("failed") or probe.get("failed")))


def _first(*values: t.Any) -> t.Any:
    return next((value for value in values if value is not None), None)


def _dtype(server: t.Mapping[str, t.Any], numbers: t.Mapping[str, t.Any]) -> str | None:
    """The weights' type. The engine says "auto" when it took the checkpoint's; the KV cache has the same then."""
    asked = server.get("dtype")
    if asked and asked != "auto":
        return str(asked)
    caches = numbers.get("kv_caches") or []
    if caches and caches[0].get("dtype") and server.get("kv_cache_dtype") in (None, "auto"):
        return str(caches[0]["dtype"]).replace("torch.", "")
    return asked


def ssh_words(controller: Controller) -> list[str]:
    """ssh with what it needs to reach the host, but for the host."""
    words = ["ssh", *controller["options"]]
    if controller["port"] and controller["port"] != 22:
        words += ["-p", str(controller["port"])]
    return words


def network_address(address: str, *, named: bool, options: t.Sequence[str], resolves: t.Callable[[str], bool]) -> str | None:
    """The address at which the controller reaches the host without ssh; None when only ssh knows it.

    named: the inventory gives it (ansible_host). A name of an ssh_config given with -F is more likely an alias than a name of the network.
    """
    alias = not named and any(word.startswith("-F") for word in options)
    return address if address and not alias and resolves(address) else None


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def listens_on(instance: t.Mapping[str, t.Any]) -> str:
    return f"{_bracketed(str(instance.get('host') or '127.0.0.1'))}:{instance['port']}"


def _target(controller: Controller) -> str:
    return (f"{controller['user']}@" if controller["user"] else "") + controller["address"]


def _in_quotes(command: str) -> str:
    """One word for a shell: in double quotes where that is legible."""
    return shlex.quote(command) if re.search(r'["$`\\!]', command) else f'"{command}"'


def _network_url(instance: t.Mapping[str, t.Any], controller: Controller) -> str | None:
    """The URL that works from the controller without ssh, if there is one."""
    if controller["local"]:
        return str(instance["url"])
    if instance.get("loopback", True):
        return None
    bound = str(instance.get("host") or "")
    address = controller["network_address"] if bound in ("", "0.0.0.0", "::") else bound  # noqa: S104  (compares)
    return f"http://{_bracketed(address)}:{instance['port']}" if address else None


def talk_line(instance: t.Mapping[str, t.Any], prompt: str, controller: Controller) -> str:
    """A shell line that asks the endpoint from the controller: over the network where that leads to it, else with curl on the host.

    A key is read from its file on the host, and never in an argument list.
    """
    near = _network_url(instance, controller)
    ssh = f"{shlex.join(ssh_words(controller))} {shlex.quote(_target(controller))}"
    asked = {"model": instance["served_model_name"], "messages": [{"role": "user", "content": prompt}], "max_tokens": 256}
    body = json.dumps(asked, ensure_ascii=False)
    curl = ["curl", "-sS", f"{near or instance['url']}/v1/chat/completions", "-H", "Content-Type: application/json"]
    if not instance.get("api_key_path"):
        if near:
            return shlex.join([*curl, "-d", body])
        return f"printf %s {shlex.quote(body)} | {ssh} {_in_quotes(shlex.join([*curl, '-d', '@-']))}"
    # -H @- reads the header from standard input, so that no process list shows the key.
    sudo = [] if controller["user"] == "root" else ["sudo"]
    show = shlex.join([*sudo, "cat", str(instance["api_key_path"])])
    header = shlex.quote('s/^api-key: *"\\{0,1\\}\\([^"]*\\)"\\{0,1\\}$/Authorization: Bearer \\1/p')
    ask = f"sed -n {header} | {shlex.join([*curl, '-H', '@-', '-d', body])}"
    if controller["local"]:
        return f"{show} | {ask}"
    return f"{ssh} {show} | {ask}" if near else f"{ssh} {_in_quotes(f'{show} | {ask}')}"


def tunnel_line(instance: t.Mapping[str, t.Any], controller: Controller) -> str | None:
    """A tunnel for clients on the controller, where the network does not lead to the endpoint. In the foreground: it says what is wrong."""
    if _network_url(instance, controller):
        return None
    bound = str(instance.get("host") or "127.0.0.1")
    bound = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound)  # noqa: S104  (compares)
    port = int(instance["port"])
    ssh = shlex.join(ssh_words(controller))
    forward = shlex.quote(f"{port}:{_bracketed(bound)}:{port}")
    return f"{ssh} -N -o ExitOnForwardFailure=yes -L {forward} {shlex.quote(_target(controller))}"


def harmless_note(problems: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    """One sentence on what looks bad in the log and is not; empty when there is nothing of the kind."""
    kinds = [problem for problem in problems if problem["severity"] == "harmless"]
    if not kinds:
        return ""
    words = []
    for problem in kinds:
        count = problem.get("count", 1)
        words.append(HARMLESS_WORDS.get(problem["code"], problem["code"]) + (f", {count} times" if count > 1 else ""))
    number = "1 kind" if len(kinds) == 1 else f"{len(kinds)} kinds"
    return f"{number} of harmless messages in the log ({'; '.join(words)}): nothing to do, see problems in report.json."


def _noticed(
    instance: t.Mapping[str, t.Any], look: t.Mapping[str, t.Any], engine: t.Mapping[str, t.Any], problems: t.Sequence[t.Mapping[str, t.Any]]
) -> list[str]:
    """What works and is still worth knowing."""
    notes = []
    unit = look.get("unit") or {}
    if unit.get("restarts"):
        notes.append(f"systemd has restarted the unit {unit['restarts']} time(s) since it was last started by hand.")
    wanted, found = (instance.get("environment") or {}).get("id"), look.get("environment_id")
    if wanted and found and wanted != found:
        notes.append(f"The instance's current link leads to {found}, and not to {wanted}.")
    tokens, context = engine.get("max_total_num_tokens"), engine.get("context_length")
    if isinstance(tokens, int) and isinstance(context, int) and tokens < context:
        longest = engine.get("max_req_input_len") or tokens
        notes.append(f"Memory holds {tokens} tokens, less than the context of {context}: a prompt of more than {longest} is refused.")
    for problem in problems:
        if problem["severity"] == "warning":
            notes.append(f"{problem['found']} ({problem['advice']})")
    harmless = harmless_note(problems)
    return [*notes, harmless] if harmless else notes


def build_report(
    *,
    host: str,
    instance: t.Mapping[str, t.Any],
    look: t.Mapping[str, t.Any] | None,
    probe: t.Mapping[str, t.Any] | None,
    prompt: str,
    failure: str,
    controller: Controller,
    now: str,
    plan: t.Mapping[str, t.Any] | None = None,
    plan_overridden: bool = False,
) -> dict[str, t.Any]:
    """The whole report. look and probe are None when it did not come to them; failure is why, in words.

    plan: what was planned, None where nothing was; plan_overridden: it does not fit, and was started all the same.
    """
    seen = look or {}
    asked = probe or {}
    server = asked.get("server") or {}
    numbers = seen.get("numbers") or {}
    unit = seen.get("unit") or {}
    environment = instance.get("environment") or {}
    model = instance.get("model") or {}
    problems = list(seen.get("problems") or [])
    checks = list(asked.get("checks") or [])
    verified = bool(asked.get("ok"))
    engine = {
        "name": "sglang",
        "release": environment.get("release"),
        "version": server.get("version"),
        "environment_id": _first(seen.get("environment_id"), environment.get("id")),
        "python": seen.get("python"),
        "dtype": _dtype(server, numbers),
        "kv_cache_dtype": server.get("kv_cache_dtype"),
        "quantization": server.get("quantization"),
        "context_length": _first((asked.get("model") or {}).get("max_model_len"), server.get("context_length"), numbers.get("context_len")),
        "max_total_num_tokens": _first(server.get("max_total_num_tokens"), numbers.get("max_total_num_tokens")),
        "max_running_requests": _first(server.get("max_running_requests"), numbers.get("max_running_requests")),
        "max_req_input_len": server.get("max_req_input_len"),
        "tp_size": server.get("tp_size"),
        "attention_backend": server.get("attention_backend"),
        "speculative_algorithm": server.get("speculative_algorithm"),
        "reasoning_parser": server.get("reasoning_parser"),
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": "verified" if verified else "failed",
        "verified_at": now,
        "host": host,
        "instance": instance["name"],
        "endpoint": {
            "url": instance["url"],
            "served_model_name": instance["served_model_name"],
            "listens_on": listens_on(instance),
            "loopback": bool(instance.get("loopback", True)),
            "api_key_path": instance.get("api_key_path"),
        },
        "model": {name: model.get(name) for name in ("name", "source", "revision", "path")},
        "engine": engine,
        "memory": {
            name: numbers[name] for name in ("weights", "kv_caches", "state_cache", "graphs", "available_memory_gib") if name in numbers
        },
        "plan": None if plan is None else _compared(plan, numbers, plan_overridden),
        "seconds": {
            "time_to_ready": seen.get("time_to_ready_seconds"),
            "warm_up": asked.get("warm_up_seconds"),
            "first_token": asked.get("first_token_seconds"),
            "answer": asked.get("answer_seconds"),
        },
        "unit": {
            "name": instance.get("unit"),
            "phase": seen.get("phase"),
            "restarts": unit.get("restarts"),
            "invocation_id": unit.get("invocation_id"),
            "started_at": unit.get("started_at"),
        },
        "checks": checks,
        "problems": problems,
        "noticed": _noticed(instance, seen, engine, problems),
        "failure": "" if verified else failure,
        "talk": [talk_line(instance, prompt, controller)],
        "tunnel": tunnel_line(instance, controller),
    }


def _compared(plan: t.Mapping[str, t.Any], numbers: t.Mapping[str, t.Any], overridden: bool) -> dict[str, t.Any]:
    """The plan beside what came."""
    found = _plan_record.differences(plan, numbers)
    return {
        "verdict": plan["verdict"],
        "overridden": overridden,
        "numbers": [{"what": one.what, "planned": one.planned, "real": one.real, "unit": one.unit} for one in found],
        "fault": _plan_record.fault(plan, found),
    }


def plan_entry(plan: t.Mapping[str, t.Any] | None, look: t.Mapping[str, t.Any], name: str) -> dict[str, dict[str, t.Any]]:
    """What the host's record is to keep of this start, by its key; empty when nothing was planned, or the log says too little."""
    if plan is None:
        return {}
    start = str((look.get("unit") or {}).get("invocation_id") or "")
    found = _plan_record.entry(plan, look.get("numbers") or {}, name, start)
    return {} if found is None else {_plan_record.key(plan): found}


# --- for the template ---

_MARKS = {"passed": "ok", "failed": "FAILED", "not_applicable": "n/a", "skipped": "skipped"}


def _cell(value: t.Any) -> str:
    text = "-" if value is None or value == "" else str(value)
    return " ".join(text.split()).replace("|", "\\|")


def table(head: t.Sequence[str], rows: t.Sequence[t.Sequence[t.Any]]) -> str:
    """A Markdown table whose columns, but for the last, are aligned for those who read it as it is."""
    cells = [[_cell(value) for value in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    widths[-1] = 0  # the last one may be long
    made = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in cells]
    made.insert(1, "|" + "|".join("-" * ((width or 3) + 2) for width in widths) + "|")
    return "\n".join(made)


def facts_table(report: t.Mapping[str, t.Any]) -> str:
    """What one got, in the order in which one wants to know it; what is unknown is left out."""
    engine, model, seconds, endpoint = report["engine"], report["model"], report["seconds"], report["endpoint"]

    def took(name: str) -> str | None:
        return None if seconds[name] is None else f"{seconds[name]:g} s"

    release = engine["release"] or ""
    version = engine["version"]
    software = f"SGLang {version or release}" + (f" (asked for {release})" if version and release and version != release else "")
    rows = [
        (
            "endpoint",
            f"{endpoint['url']} (this host only)" if endpoint["loopback"] else f"{endpoint['listens_on']}, reachable from the network",
        ),
        ("key", f"in {endpoint['api_key_path']}" if endpoint["api_key_path"] else "none"),
        ("model", f"{endpoint['served_model_name']} = {model['name']}"),
        ("revision", model["revision"] or f"a local directory, {model['path']}"),
        ("engine", software),
        ("environment", engine["environment_id"]),
        ("Python", engine["python"]),
        ("dtype", engine["dtype"]),
        ("context length", engine["context_length"]),
        ("max_total_num_tokens", engine["max_total_num_tokens"]),
        ("max_running_requests", engine["max_running_requests"]),
        ("time to ready", took("time_to_ready")),
        ("warm-up", took("warm_up")),
        ("first token", took("first_token")),
        ("whole answer", took("answer")),
        ("unit", f"{report['unit']['name']} ({report['unit']['phase'] or 'not looked at'})"),
    ]
    return table(("what", "value"), [row for row in rows if row[1] not in (None, "")])


def plan_table(report: t.Mapping[str, t.Any]) -> str:
    """Plan and reality, number by number."""
    rows = []
    for one in report["plan"]["numbers"]:
        off = "-" if not one["real"] else f"{(one['planned'] / one['real'] - 1) * 100:+.1f} %"
        rows.append((one["what"], f"{one['planned']:g}", f"{one['real']:g}", one["unit"], off))
    return table(("number", "planned", "came", "in", "plan is off by"), rows)


def checks_table(report: t.Mapping[str, t.Any]) -> str:
    return table(
        ("result", "check", "seconds", "found"),
        [(_MARKS.get(one["state"], one["state"]), one["name"], f"{one['seconds']:.2f}", one["found"]) for one in report["checks"]],
    )
