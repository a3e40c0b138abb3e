# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Results of gpu_info of many hosts united to one fleet report: the JSON document, and CSV and Markdown made of it."""

from __future__ import annotations

import csv
import io
import json
import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_inventory
from ansible_collections.firstlight.sglang.plugins.module_utils._report import table

SCHEMA_VERSION = 1
SEVERITIES = ("error", "warning", "info")  # the worst first

# Fields of the result of gpu_info (docs/design.md; a test compares them), but for sources, which belong to the look at one host.
HOST_FIELDS = (
    *_gpu_inventory.HOST_FIELDS,
    *_gpu_inventory.HOST_LISTS,
    *("fabric_state", "topology", "gpu_groups", "group_names", "reasons", "sources_asked"),
)
# In the order of docs/design.md; where each value comes from stays with the host.
GPU_FIELDS = tuple(field for field in _gpu_inventory.GPU_FIELDS if field != "sources")
# What a second look at the same host finds different without anything having changed. An idle link falls back to a lower PCIe generation.
MOMENTARY = frozenset(
    (
        "shm_free_mib",
        "memory_available_mib",
        "memory_used_mib",
        "memory_free_mib",
        "memory_reserved_mib",
        "power_draw_w",
        "temperature_c",
        "temperature_memory_c",
        "clock_sm_mhz",
        "clock_memory_mhz",
        "utilization_gpu_percent",
        "performance_state",
        "pcie_generation",
        "processes",
    )
)


class HostFailure(t.NamedTuple):
    """Why there is no result of a host. status: unreachable, failed, or no_result (nobody asked it)."""

    status: str
    reason: str


STATUS_WORDS = {"answered": "answered", "unreachable": "unreachable", "failed": "failed", "no_result": "never asked"}

# The result of gpu_info, or why there is none.
Outcome = t.Union[t.Mapping[str, t.Any], HostFailure]


def _line(words: t.Any, limit: int = 500) -> str:
    text = " ".join(str(words).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


# How ansible-core 2.19 tells that a module printed no JSON, and how its connections local and ssh tell that become came to nothing.
_NO_ANSWER = re.compile(r"Module result deserialization failed|MODULE FAILURE")
_NO_BECOME = re.compile(
    r"waiting for become success|become password prompt|privilege escalation prompt|(Missing|Incorrect) \S+ password|a password is required"
)
_BECOME_OUTPUT = re.compile(r">>> Standard (?:Output|Error)\n")
_ASKED_PASSWORD = re.compile(r"password|try again|authentication failure|terminal is required|prompt|become success\.?$", re.IGNORECASE)
_TELLING = re.compile(r"error|exception|fatal|fault|not found|no such|denied|cannot|killed", re.IGNORECASE)


def _telling_line(text: str) -> str:
    """The first line that says what is wrong, else the first one: without frames of tracebacks and what ssh says of itself. Or nothing."""
    lines = [line for line in text.splitlines() if line.strip() and not line[0].isspace()]
    lines = [line for line in lines if not re.match(r"Traceback |Shared connection to |Warning: Permanently added ", line)]
    return next((line for line in lines if _TELLING.search(line)), lines[0] if lines else "")


def failure_reason(registered: t.Mapping[str, t.Any]) -> str:
    """Why a registered result of gpu_info is none, in one line of at most 500 characters.

    Of a Python that is broken that is what it printed (on standard error, or on the terminal that ssh gave it); of a become that came to
    nothing it is what sudo said, and where its password comes from.
    """
    message = re.sub(r"^(Task failed: )?((Module|Action) failed: )?", "", str(registered.get("msg") or "no reason was given"))
    if _NO_ANSWER.match(message):
        told = (_telling_line(str(registered.get(name) or "")) for name in ("module_stderr", "module_stdout"))
        line = next((line for line in told if line), message)
        return _line(f"the module gave no result: {line}")
    if _NO_BECOME.search(message):
        summary, *outputs = _BECOME_OUTPUT.split(message)
        told_by_sudo = _line(" ".join(outputs) or summary, 400)
        hint = "; --ask-become-pass asks for a password" if _ASKED_PASSWORD.search(told_by_sudo) else ""
        return f"become failed: {told_by_sudo}{hint}"
    return _line(message)


def _list_of_mappings(value: t.Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, t.Mapping) for item in value)


_LISTS = ("mig_devices", "processes")
_NUMBER = re.compile(r"_(mib|w|c|mhz|percent)$|^(index|minor_number|numa_node|pcie_\w+)$|^(ecc_errors|remapped_rows)_\w*correct\w+$")


def _fits(field: str, value: t.Any) -> bool:
    """Whether a value of a GPU is of the kind that gpu_info gives: the results come from other machines."""
    if value is None:
        return True
    if field in _LISTS:
        return _list_of_mappings(value)
    if field in ("generation", "reasons"):
        return isinstance(value, t.Mapping)
    if _NUMBER.search(field):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, (str, bool))


def _failure(registered: t.Any) -> HostFailure | None:
    if registered is None:
        return HostFailure("no_result", "no result of gpu_info: the play ended before it came to this host, or never ran on it")
    if not isinstance(registered, t.Mapping):
        return HostFailure("failed", f"expected the registered result of gpu_info, found: {_line(registered, 100)}")
    told = registered.get("msg") and "gpus" not in registered  # also a failure that the task let pass
    if registered.get("unreachable") or registered.get("failed") or told:
        status = "unreachable" if registered.get("unreachable") else "failed"
        return HostFailure(status, failure_reason(registered))
    if registered.get("skipped"):
        return HostFailure("no_result", _line(registered.get("skip_reason") or "gpu_info was skipped"))
    lists = [_list_of_mappings(registered.get(name, [])) for name in ("problems", "gpu_groups")]
    if _list_of_mappings(registered.get("gpus")) and all(lists) and isinstance(registered.get("topology") or {}, t.Mapping):
        odd = [field for gpu in registered["gpus"] for field in GPU_FIELDS if not _fits(field, gpu.get(field))]
        return HostFailure("failed", f"expected a result of gpu_info, found one with an odd {odd[0]}") if odd else None
    return HostFailure("failed", f"expected the registered result of gpu_info, found one with {_line(sorted(registered), 200)}")


def outcome(registered: t.Any) -> Outcome:
    """What a registered result of gpu_info stands for. Nothing (None) stands for a host that was never asked."""
    return _failure(registered) or t.cast("t.Mapping[str, t.Any]", registered)


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts gpu2 before gpu10."""
    return [(0, int(part), "") if part[0] in "0123456789" else (1, 0, part.lower()) for part in re.findall(r"[0-9]+|[^0-9]+", name)]


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def _sum(values: t.Iterable[t.Any]) -> int | None:
    """The sum of what is known, or None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _used(gpus: t.Iterable[t.Mapping[str, t.Any]]) -> dict[str, int | None]:
    """Memory in use, and of how many GPUs it is not known: a sum alone would hide them. Unified memory is the host's and not asked for."""
    own = [gpu["memory_used_mib"] for gpu in gpus if gpu["memory_kind"] != "unified"]
    return {"memory_used_mib": _sum(own), "memory_used_unknown": sum(used is None for used in own)}


def used_words(totals: t.Mapping[str, t.Any]) -> str:
    """Of totals that hold what _used says; empty when there is nothing to say."""
    words = [] if totals["memory_used_mib"] is None else [f"{size(totals['memory_used_mib'])} in use"]
    words += [f"use of {totals['memory_used_unknown']} not known"] if totals["memory_used_unknown"] else []
    return ", ".join(words)


def model_name(gpu: t.Mapping[str, t.Any]) -> str:
    """The model, by the best name there is: without a driver only the PCI device id is known."""
    return str(gpu.get("name") or (f"PCI {gpu['pci_device_id']}" if gpu.get("pci_device_id") else "unknown"))


def _model(name: str, gpus: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, t.Any]:
    sizes = [gpu["memory_total_mib"] for gpu in gpus if gpu["memory_total_mib"] is not None]
    return {
        "name": name,
        "architecture": next((gpu["architecture"] for gpu in gpus if gpu["architecture"]), None),
        "compute_capability": next((gpu["compute_capability"] for gpu in gpus if gpu["compute_capability"]), None),
        "gpus": len(gpus),
        "usable": sum(gpu["usable"] is True for gpu in gpus),
        "mig_enabled": sum(gpu["mig_enabled"] is True for gpu in gpus),
        "mig_devices": sum(len(gpu["mig_devices"] or ()) for gpu in gpus),
        "hosts": len({gpu["host"] for gpu in gpus}),
        "memory_each_mib": sorted(set(sizes)),
        "memory_total_mib": sum(sizes) if sizes else None,
        **_used(gpus),
        "memory_unified": sum(gpu["memory_kind"] == "unified" for gpu in gpus),
        "memory_unknown": sum(gpu["memory_kind"] != "unified" and gpu["memory_total_mib"] is None for gpu in gpus),
    }


def _models(gpus: t.Iterable[t.Mapping[str, t.Any]]) -> list[dict[str, t.Any]]:
    by_name: dict[str, list[t.Mapping[str, t.Any]]] = {}
    for gpu in gpus:
        by_name.setdefault(model_name(gpu), []).append(gpu)
    return sorted((_model(name, some) for name, some in by_name.items()), key=lambda model: (-model["gpus"], natural(model["name"])))


def _once(gpus: t.Iterable[dict[str, t.Any]]) -> list[dict[str, t.Any]]:
    """Each card once: a hypervisor and its guest, or a host under two names, list the same ones."""
    hosts: dict[tuple[str, str], str] = {}
    return [
        gpu
        for gpu in gpus
        if None in (gpu["uuid"], gpu["pci_bus_id"]) or hosts.setdefault((gpu["uuid"], gpu["pci_bus_id"]), gpu["host"]) == gpu["host"]
    ]


def fleet(hosts: t.Mapping[str, Outcome], generated_at: str, left_out: int = 0) -> dict[str, t.Any]:
    """The JSON document of a fleet.

    hosts: by name, the result of gpu_info (docs/design.md) or why there is none. generated_at: UTC, ISO 8601. left_out: how many more
    hosts there are, which --limit has kept out. Every key is always there; what is not known is null. Hosts are in natural order of
    their names, problems are the worst first. Never raises for a result that came through outcome(): a field that it lacks is null.
    """
    host_records: list[dict[str, t.Any]] = []
    gpus: list[dict[str, t.Any]] = []
    problems: list[dict[str, t.Any]] = []
    for name in sorted(hosts, key=natural):
        found = hosts[name]
        failure = found if isinstance(found, HostFailure) else HostFailure("answered", "")
        result: t.Mapping[str, t.Any] = {} if isinstance(found, HostFailure) else found
        here = result.get("gpus") or ()
        record = {"host": name, "status": failure.status, "reason": failure.reason or None, "gpu_count": len(here) if result else None}
        host_records.append({**record, **{field: result.get(field) for field in HOST_FIELDS}})
        gpus += [{"host": name, **{field: gpu.get(field) for field in GPU_FIELDS}} for gpu in here]
        problems += [
            {"host": name, **{key: problem.get(key) for key in ("severity", "code", "gpu", "found", "action")}}
            for problem in result.get("problems") or ()
        ]
    problems.sort(key=lambda problem: _rank(problem["severity"]))
    answered = [record for record in host_records if record["status"] == "answered"]
    unified = {gpu["host"] for gpu in gpus if gpu["memory_kind"] == "unified"}
    cards = _once(gpus)
    return {
        "schema_version": SCHEMA_VERSION,
        "generated_at": generated_at,
        "summary": {
            "hosts": len(host_records),
            "hosts_left_out": left_out,
            "hosts_answered": len(answered),
            "hosts_unreachable": sum(record["status"] == "unreachable" for record in host_records),
            "hosts_failed": sum(record["status"] == "failed" for record in host_records),
            "hosts_no_result": sum(record["status"] == "no_result" for record in host_records),
            "hosts_without_gpus": sum(record["gpu_count"] == 0 for record in answered),
            "hosts_with_problems": len({problem["host"] for problem in problems}),
            "gpus": len(cards),
            "gpus_listed_again": len(gpus) - len(cards),
            "gpus_usable": sum(gpu["usable"] is True for gpu in cards),
            "gpus_mig": sum(gpu["mig_enabled"] is True for gpu in cards),
            "mig_devices": sum(len(gpu["mig_devices"] or ()) for gpu in cards),
            "memory_total_mib": _sum(gpu["memory_total_mib"] for gpu in cards),
            **_used(cards),
            "memory_unified_mib": _sum(record["memory_total_mib"] for record in answered if record["host"] in unified),
            "problems": {severity: sum(problem["severity"] == severity for problem in problems) for severity in SEVERITIES},
        },
        "problems": problems,
        "unanswered": [
            {key: record[key] for key in ("host", "status", "reason")} for record in host_records if record["status"] != "answered"
        ],
        "models": _models(cards),
        "hosts": host_records,
        "gpus": gpus,
    }


# --- texts ---


def json_text(document: t.Mapping[str, t.Any]) -> str:
    """The document with one record a line: small enough for a thousand hosts, and legible to line tools."""

    def compact(value: t.Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    parts = []
    for key, value in document.items():
        if isinstance(value, list) and value:
            lines = ",\n".join(f"    {compact(record)}" for record in value)
            parts.append(f"  {compact(key)}: [\n{lines}\n  ]")
        else:
            parts.append(f"  {compact(key)}: {compact(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _csv_cell(value: t.Any) -> t.Any:
    """null is empty, lists are JSON, and text that a spreadsheet would run as a formula begins with an apostrophe."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return value
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if value else ""
    text = " ".join(value.split())
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20") else text


def csv_text(document: t.Mapping[str, t.Any]) -> str:
    """One line per GPU: host, then the fields of gpu_info by their names; reasons says of empty cells why they are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("host", *GPU_FIELDS))
    for gpu in document["gpus"]:
        reasons = "; ".join(f"{field}={reason}" for field, reason in (gpu["reasons"] or {}).items())
        values = [gpu[field] for field in GPU_FIELDS if field != "reasons"]
        writer.writerow([_csv_cell(value) for value in (gpu["host"], *values, reasons)])
    return out.getvalue()


def size(mib: float | None) -> str:
    """Memory for people."""
    if mib is None:
        return "unknown"
    for unit, factor in (("TiB", 1024 * 1024), ("GiB", 1024)):
        if mib >= factor:
            return f"{mib / factor:.1f} {unit}"
    return f"{mib:.0f} MiB"


def part_of(part: float, whole: float) -> str:
    """1.0 of 48.0 GiB, 55 MiB of 140.4 GiB."""
    one, all_of_it = size(part), size(whole)
    return f"{one.split()[0] if one.split()[1:] == all_of_it.split()[1:] else one} of {all_of_it}"


def count(number: int, one: str, many: str = "") -> str:
    """1 GPU, 2 GPUs."""
    return f"{number} {one if number == 1 else many or one + 's'}"


REASON_WORDS = {"not_supported": "not supported", "no_permission": "no permission", "unknown": "unknown"}


def memory_words(gpu: t.Mapping[str, t.Any], host_memory_mib: int | None) -> str:
    """What is known of a GPU's memory, without guessing. host_memory_mib: the host's, which a unified GPU shares."""
    reasons = gpu["reasons"] or {}
    if gpu["memory_kind"] == "unified":
        return f"unified with the host's {size(host_memory_mib)}" if host_memory_mib else "unified with the host's"
    if gpu["memory_total_mib"] is None:
        return f"unknown ({REASON_WORDS.get(reasons.get('memory_total_mib', ''), 'no source says')})"
    if gpu["memory_used_mib"] is None:
        return f"{size(gpu['memory_total_mib'])}, used: {REASON_WORDS.get(reasons.get('memory_used_mib', ''), 'unknown')}"
    return part_of(gpu["memory_used_mib"], gpu["memory_total_mib"])


def model_memory_words(model: t.Mapping[str, t.Any]) -> str:
    """Total, size of each, and how many are without a number."""
    parts = []
    if model["memory_total_mib"] is not None:
        each = f" ({' or '.join(size(one) for one in model['memory_each_mib'])} each)" if model["gpus"] > 1 else ""
        parts.append(size(model["memory_total_mib"]) + each)
    for key, words in (("memory_unified", "unified with the host"), ("memory_unknown", "not known")):
        if model[key]:
            parts.append(words if model[key] == model["gpus"] else f"{words} for {model[key]}")
    return ", ".join(parts)


def limit_words(summary: t.Mapping[str, t.Any]) -> str:
    """That the report is not one of the whole inventory; empty when --limit has left nothing out."""
    left_out = summary["hosts_left_out"]
    return f"limited to {summary['hosts']} of {summary['hosts'] + left_out} hosts" if left_out else ""


def summary_words(document: t.Mapping[str, t.Any]) -> str:
    """The report in one sentence or two."""
    summary = document["summary"]
    silent = summary["hosts"] - summary["hosts_answered"]
    words = f"{count(summary['hosts'], 'host')}, {count(summary['gpus'], 'GPU')}, {summary['gpus_usable']} usable"
    words += f", {summary['gpus_mig']} split by MIG." if summary["gpus_mig"] else "."
    if limit_words(summary):
        words += f" {limit_words(summary).capitalize()}."
    if summary["gpus_listed_again"]:
        words += f" {count(summary['gpus_listed_again'], 'GPU')} listed by a second host, counted once."
    if silent:
        words += f" {count(silent, 'host')} gave no answer."
    found = [count(summary["problems"][severity], severity) for severity in ("error", "warning") if summary["problems"][severity]]
    return f"{words} {' and '.join(found)}." if found else f"{words} No errors, no warnings."


def clock_words(generated_at: str) -> str:
    """2026-12-01T08:18:00Z as people write it."""
    return re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\dZ$", r"\1 \2 UTC", generated_at)


def _escape(value: t.Any) -> str:
    """Text that Markdown shows as it is (the table itself takes care of the bars). Escaped is only what would become something else."""
    if value is None:
        return ""
    text = re.sub(r"([\\`*\[\]~])", r"\\\1", " ".join(str(value).split()))
    text = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)
    text = re.sub(r"&(?=#?[A-Za-z0-9]+;)", "&amp;", text)  # would be an entity
    text = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)  # a tag or a link; without its beginning the end is text
    return re.sub(r"^>", r"\\>", text)  # a quotation


def _table(head: t.Sequence[str], rows: t.Iterable[t.Sequence[t.Any]]) -> str:
    return table(head, [[_escape(value) for value in row] for row in rows])


def gpu_labels(document: t.Mapping[str, t.Any]) -> dict[tuple[str, str], str]:
    """(host, PCI bus id) -> GPU 1, or the bus id of one without an index."""
    return {
        (gpu["host"], gpu["pci_bus_id"]): gpu["pci_bus_id"] if gpu["index"] is None else f"GPU {gpu['index']}"
        for gpu in document["gpus"]
        if gpu["pci_bus_id"]
    }


def _unit(value: t.Any, unit: str) -> str | None:
    return None if value is None else f"{value:g} {unit}"


def markdown_text(document: t.Mapping[str, t.Any]) -> str:
    """Problems, hosts without an answer, totals per model, one line per GPU, hosts without a GPU."""
    labels = gpu_labels(document)
    memory = {record["host"]: record["memory_total_mib"] for record in document["hosts"]}
    parts = ["# GPU inventory", f"{clock_words(document['generated_at'])}. {summary_words(document)}", "## Problems"]
    if document["problems"]:
        rows = [
            (one["severity"], one["host"], labels.get((one["host"], one["gpu"]), one["gpu"]), one["found"], one["action"])
            for one in document["problems"]
        ]
        parts.append(_table(("severity", "host", "GPU", "found", "what to do"), rows))
    else:
        parts.append("None found.")
    if document["unanswered"]:
        silent = [(one["host"], STATUS_WORDS[one["status"]], one["reason"]) for one in document["unanswered"]]
        parts += ["## Hosts without an answer", _table(("host", "status", "reason"), silent)]
    if document["gpus"]:
        models = [
            (model["name"], model["gpus"], model["usable"], model["hosts"], model["mig_devices"] or None, model_memory_words(model))
            for model in document["models"]
        ]
        gpus = [
            (
                gpu["host"],
                gpu["index"],
                model_name(gpu),
                gpu["health"],
                memory_words(gpu, memory[gpu["host"]]),
                len(gpu["mig_devices"] or ()) or None,
                _unit(gpu["temperature_c"], "°C"),
                _unit(gpu["power_draw_w"], "W"),
                gpu["pci_bus_id"],
            )
            for gpu in document["gpus"]
        ]
        parts += ["## Models", _table(("model", "GPUs", "usable", "hosts", "MIG devices", "memory"), models)]
        head = ("host", "GPU", "model", "health", "memory used", "MIG devices", "temperature", "power", "PCI bus id")
        parts += ["## GPUs", _table(head, gpus)]
    without = [record["host"] for record in document["hosts"] if record["gpu_count"] == 0]
    if without:
        ill = {problem["host"] for problem in document["problems"]}
        lines = [f"- {_escape(host)}{', with problems (above)' if host in ill else ''}" for host in without]
        parts += ["## Hosts that show no GPU", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


# --- what changed since the last report ---


def _records(document: t.Mapping[str, t.Any]) -> dict[str, dict[str, t.Any]]:
    """Everything that was looked at, by what names it, without what moves by itself. Totals follow from it."""
    records: dict[str, dict[str, t.Any]] = {}

    def add(name: str, record: t.Mapping[str, t.Any], fields: t.Iterable[str]) -> None:
        while name in records:  # GPUs without any identifier
            name += " (another)"
        records[name] = {field: record.get(field) for field in fields if field not in MOMENTARY}

    for record in document["hosts"]:
        add(f"{record.get('host')}", record, ("status", "reason", "gpu_count", *HOST_FIELDS))
    for record in document["gpus"]:
        devices = [{key: value for key, value in device.items() if key not in MOMENTARY} for device in record.get("mig_devices") or ()]
        name = record.get("pci_bus_id") or record.get("uuid") or "GPU"
        add(f"{record.get('host')} {name}", {**record, "mig_devices": devices}, GPU_FIELDS)
    for record in document["problems"]:
        add(f"{record.get('host')} {record.get('gpu') or 'host'} {record.get('code')}", record, ("severity", "found", "action"))
    return records


def read_document(text: str) -> dict[str, t.Any] | None:
    """The document that an earlier run has written, or None when the text is something else."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        return None
    if not all(_list_of_mappings(document.get(key)) for key in ("hosts", "gpus", "problems")):
        return None
    return document if all(_fits(field, gpu.get(field)) for gpu in document["gpus"] for field in GPU_FIELDS) else None


def difference(before: t.Mapping[str, t.Any] | None, after: t.Mapping[str, t.Any]) -> tuple[str, str]:
    """What differs between two documents, as two texts with one field a line; both are empty when nothing does.

    The time and what moves by itself (MOMENTARY) are left out. before: None when there is no earlier one.
    """
    old = {} if before is None else _records(before)
    new = _records(after)
    lines: tuple[list[str], list[str]] = ([], [])
    for name in {**old, **new}:
        one, two = old.get(name), new.get(name)
        if one == two:
            continue
        for field in {**(one or {}), **(two or {})}:
            values = ((one or {}).get(field), (two or {}).get(field))
            if values[0] == values[1]:
                continue
            for side, record, value in zip(lines, (one, two), values):
                if record is not None:
                    side.append(f"{name}: {field}: {json.dumps(value, ensure_ascii=False)}\n")
    return "".join(lines[0]), "".join(lines[1])
