# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Makes the report of a verified (or failed) instance out of what was resolved, seen and probed.

PRIVATE to the collection. Pure: data in, data out; the Markdown is a template of the role sglang_verify.
"""

from __future__ import annotations

import json
import shlex
import typing as t

SCHEMA_VERSION = 1
TUNNEL_SECONDS = 600


class Controller(t.TypedDict):
    """How the controller reaches the host. local: it is the host; options: more words for ssh."""

    local: bool
    address: str
    user: str | None
    port: int | None
    options: list[str]


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


def talk_lines(instance: t.Mapping[str, t.Any], prompt: str, controller: Controller) -> list[str]:
    """Shell lines that ask the endpoint from the controller. A key is read from its file on the host, and never in an argument list."""
    port = int(instance["port"])
    target = (f"{controller['user']}@" if controller["user"] else "") + controller["address"]
    ssh = shlex.join(ssh_words(controller))
    lines = []
    if controller["local"]:
        url = str(instance["url"])
    elif instance.get("loopback", True):
        url = f"http://127.0.0.1:{port}"
        bind = str(instance.get("host") or "127.0.0.1")
        bind = f"[{bind}]" if ":" in bind else bind
        lines.append(
            f"{ssh} -f -o ExitOnForwardFailure=yes -L {port}:{bind}:{port} {shlex.quote(target)} sleep {TUNNEL_SECONDS}"
            " >/dev/null 2>&1  # a tunnel for ten minutes"
        )
    else:
        address = controller["address"]
        url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
    body = {"model": instance["served_model_name"], "messages": [{"role": "user", "content": prompt}], "max_tokens": 256}
    curl = ["curl", "-sS", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json"]
    read_key = ""
    if instance.get("api_key_path"):
        # -H @- reads the header from standard input, so that no process list shows the key.
        sudo = [] if controller["user"] == "root" else ["sudo"]
        show = shlex.join([*sudo, "cat", str(instance["api_key_path"])])
        if not controller["local"]:
            show = f"{ssh} {shlex.quote(target)} {show}"
        header = shlex.quote('s/^api-key: *"\\{0,1\\}\\([^"]*\\)"\\{0,1\\}$/Authorization: Bearer \\1/p')
        read_key = f"{show} | sed -n {header} | "
        curl += ["-H", "@-"]
    curl += ["-d", json.dumps(body, ensure_ascii=False)]
    lines.append(read_key + shlex.join(curl))
    return lines


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
    harmless = [problem["code"] for problem in problems if problem["severity"] == "harmless"]
    if harmless:
        notes.append("Harmless in the log: {}.".format(", ".join(harmless)))
    return notes


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
) -> dict[str, t.Any]:
    """The whole report. look and probe are None when it did not come to them; failure is why, in words."""
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
            "loopback": bool(instance.get("loopback", True)),
            "api_key_path": instance.get("api_key_path"),
        },
        "model": {name: model.get(name) for name in ("name", "source", "revision", "path")},
        "engine": engine,
        "memory": {
            name: numbers[name] for name in ("weights", "kv_caches", "state_cache", "graphs", "available_memory_gib") if name in numbers
        },
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
        "talk": talk_lines(instance, prompt, controller),
    }


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
        ("endpoint", endpoint["url"] + (" (this host only)" if endpoint["loopback"] else "")),
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


def checks_table(report: t.Mapping[str, t.Any]) -> str:
    return table(
        ("result", "check", "seconds", "found"),
        [(_MARKS.get(one["state"], one["state"]), one["name"], f"{one['seconds']:.2f}", one["found"]) for one in report["checks"]],
    )
