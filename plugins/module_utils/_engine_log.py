# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reads SGLang's start-up log: which phase the engine is in, and the numbers it names.

PRIVATE to the collection. Pure: text in, data out. The wording was checked against 58 captured starts of 0.5.15.post1 and against
the sources of 0.5.23. Sizes that the engine writes as "GB" are GiB, and are named so here.
"""

from __future__ import annotations

import json
import re
import typing as t

# The phases in the order of a good start. "ready" from the log alone is not enough: _unit_state.combine_phase also asks the port.
PHASES = (
    "absent",
    "stopped",
    "starting",
    "importing",
    "connecting_ranks",
    "loading_weights",
    "allocating_pools",
    "capturing_graphs",
    "warming_up",
    "ready",
    "unhealthy",
    "draining",
    "failed",
)

PHASE_WORDS = {
    "absent": "not installed",
    "stopped": "stopped",
    "starting": "starting",
    "importing": "importing",
    "connecting_ranks": "connecting ranks",
    "loading_weights": "loading weights",
    "allocating_pools": "allocating memory pools",
    "capturing_graphs": "capturing graphs",
    "warming_up": "warming up",
    "ready": "ready",
    "unhealthy": "running, but not answering",
    "draining": "draining",
    "failed": "failed",
}

READY_LINE = "The server is fired up and ready to roll!"

# The last line that matches one of these says where the engine is. With speculation the draft model loads after the target model,
# so "loading_weights" may come twice.
_MARKERS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"Init (?:torch distributed|parallel) begin"), "connecting_ranks"),
    (re.compile(r"Load weight begin"), "loading_weights"),
    (re.compile(r"Load weight end"), "allocating_pools"),
    (re.compile(r"Capture .*graph begin"), "capturing_graphs"),
    (re.compile(r"\bmax_total_num_tokens=\d+, .*context_len="), "warming_up"),
    (re.compile(r"Uvicorn running on "), "warming_up"),
    (re.compile(re.escape(READY_LINE)), "ready"),
    (re.compile(r"SIGTERM received\b|Gracefully exiting"), "draining"),
)

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?P<ranks>(?: [A-Z]+\d+)*)\] ")
_PERCENT = re.compile(r"(?P<percent>\d{1,3})% Completed \| (?P<done>\d+)/(?P<total>\d+)")
_SECRET = re.compile(r"((?:admin_)?api[-_]key['\"]?\s*[:=]\s*)(['\"])(?:(?!\2).)*\2")
_SECRET_FLAG = re.compile(r"(--(?:admin-)?api-key[= ]+)(\S+)")


class LogLine(t.NamedTuple):
    """One line of the journal; monotonic_s is seconds since boot, None where the source has no times."""

    monotonic_s: float | None
    text: str
    cursor: str = ""


class PhaseReading(t.NamedTuple):
    phase: str
    since_s: float | None
    percent: int | None
    line: str


def clean_line(text: str) -> str:
    """One line without terminal escapes, without the engine's time stamp, and with only the last state of a progress bar."""
    text = _ANSI.sub("", text).rstrip("\r\n")
    if "\r" in text:
        text = [part for part in text.split("\r") if part.strip()][-1] if text.strip() else ""
    return _PREFIX.sub("", text).rstrip()


def hide_secrets(text: str, secrets: t.Sequence[str] = ()) -> str:
    """Masks every known secret, and every value that is written next to the name of a key."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    text = _SECRET.sub(r"\1\2***\2", text)
    return _SECRET_FLAG.sub(r"\1***", text)


def shorten(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else text[: limit - 4].rstrip() + " ..."


def parse_journal(text: str) -> list[LogLine]:
    """Lines of `journalctl -o json`; a message with control characters comes as a list of bytes, one over 4096 bytes as null."""
    lines = []
    for raw in text.splitlines():
        try:
            entry = json.loads(raw)
        except ValueError:
            continue  # the last line of a cut output
        if not isinstance(entry, dict):
            continue
        message = entry.get("MESSAGE")
        if isinstance(message, list):
            message = bytes(byte for byte in message if isinstance(byte, int) and 0 <= byte < 256).decode("utf-8", "replace")
        if not isinstance(message, str):
            continue
        stamp = entry.get("__MONOTONIC_TIMESTAMP")
        seconds = int(stamp) / 1e6 if isinstance(stamp, (str, int)) and str(stamp).isdigit() else None
        lines.append(LogLine(seconds, message, str(entry.get("__CURSOR", ""))))
    return lines


def join_parts(head: t.Sequence[LogLine], tail: t.Sequence[LogLine]) -> list[LogLine]:
    """The beginning and the end of a journal, read apart, as one list without the lines that both have."""
    seen = {line.cursor for line in head if line.cursor}
    return [*head, *(line for line in tail if line.cursor not in seen)]


def lines_of(text: str) -> list[LogLine]:
    """The lines of a log file, which has no monotonic times."""
    return [LogLine(None, line) for line in text.splitlines()]


def read_phase(lines: t.Sequence[LogLine]) -> PhaseReading:
    """The phase that the log speaks of. since_s is the time (on the journal's clock) of the first line of this phase."""
    reading = PhaseReading("starting", None, None, "")
    for line in lines:
        text = clean_line(line.text)
        if not text:
            continue
        phase = next((name for pattern, name in _MARKERS if pattern.search(text)), None)
        if phase is None and reading.phase == "starting":
            phase = "importing"
        if phase is not None and phase != reading.phase:
            reading = PhaseReading(phase, line.monotonic_s, None, text)
        elif reading.phase == "loading_weights":
            progress = _PERCENT.search(text)
            if progress:
                reading = reading._replace(percent=int(progress["percent"]), line=text)
    return reading


def ready_at(lines: t.Sequence[LogLine]) -> float | None:
    """When the engine said that it is ready, on the journal's clock."""
    return next((line.monotonic_s for line in lines if READY_LINE in line.text), None)


_SUMMARY = re.compile(
    r"max_total_num_tokens=(?P<max_total_num_tokens>\d+), chunked_prefill_size=(?P<chunked_prefill_size>-?\d+), "
    r"max_prefill_tokens=(?P<max_prefill_tokens>\d+), max_running_requests=(?P<max_running_requests>\d+), "
    r"context_len=(?P<context_len>\d+)(?:, available_(?:gpu|cpu)?_?mem=(?P<available_memory_gib>[\d.]+) GB)?"
)
_WEIGHTS = re.compile(
    r"Load weight end\.(?: elapsed=(?P<seconds>[\d.]+) s,)? type=(?P<type>\w+),"
    r".*?avail mem=(?P<free>-?[\d.]+) GB(?:, mem usage=(?P<gib>-?[\d.]+) GB)?"
)
_KV = re.compile(
    r"KV Cache is allocated\.(?: dtype: (?P<dtype>[\w.]+),)? #tokens: (?P<tokens>\d+)"
    r"(?:, K size: (?P<k>[\d.]+) GB, V size: (?P<v>[\d.]+) GB)?"
)
_STATE = re.compile(r"Mamba Cache is allocated\. (?P<sizes>.*max_mamba_cache_size: .*)")
_STATE_SIZE = re.compile(r"(?P<name>\w+)(?: size)?: (?P<value>[\d.]+)(?P<unit>GB)?")
_GRAPH = re.compile(
    r"Capture (?P<what>.*?)\s*(?:CUDA |cuda |CPU |cpu )?graph end\.?.*?elapsed=(?P<seconds>[\d.]+) s(?:, mem usage=(?P<gib>-?[\d.]+) GB)?"
)
_REDUCED = re.compile(r"max_running_requests was reduced from the requested (?P<wanted>\d+) to (?P<got>\d+)")


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def read_numbers(lines: t.Iterable[LogLine]) -> dict[str, t.Any]:
    """The numbers of the start that the log names. Rank 0 speaks for all ranks; the second weights and KV cache are the draft's."""
    numbers: dict[str, t.Any] = {}
    weights: list[dict[str, t.Any]] = []
    caches: list[dict[str, t.Any]] = []
    graphs: list[dict[str, t.Any]] = []
    for line in lines:
        prefix = _PREFIX.match(_ANSI.sub("", line.text))
        if prefix and re.search(r" TP[1-9]", prefix["ranks"]):
            continue
        text = clean_line(line.text)
        match = _SUMMARY.search(text)
        if match:
            memory = match["available_memory_gib"]
            numbers.update({name: int(value) for name, value in match.groupdict().items() if name != "available_memory_gib"})
            numbers["available_memory_gib"] = _number(memory)
        match = _WEIGHTS.search(text)
        if match:
            weights.append(
                {
                    "type": match["type"],
                    "memory_gib": _number(match["gib"]),
                    "seconds": _number(match["seconds"]),
                    "free_after_gib": _number(match["free"]),
                }
            )
        match = _KV.search(text)
        if match:
            caches.append(
                {"dtype": match["dtype"], "tokens": int(match["tokens"]), "k_gib": _number(match["k"]), "v_gib": _number(match["v"])}
            )
        match = _STATE.search(text)
        if match:
            numbers["state_cache"] = {
                size["name"] + ("_gib" if size["unit"] else ""): float(size["value"]) if size["unit"] else int(float(size["value"]))
                for size in _STATE_SIZE.finditer(match["sizes"])
            }
        match = _GRAPH.search(text)
        if match:
            graphs.append(
                {"what": match["what"].strip() or "decode", "seconds": _number(match["seconds"]), "memory_gib": _number(match["gib"])}
            )
        match = _REDUCED.search(text)
        if match:
            numbers["max_running_requests_wanted"] = int(match["wanted"])
    for name, found in (("weights", weights), ("kv_caches", caches), ("graphs", graphs)):
        if found:
            numbers[name] = found
    return numbers
