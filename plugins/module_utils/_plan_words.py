# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What a plan is called and how its numbers are written: the terminal's picture, the Markdown and the page say the same words."""

from __future__ import annotations

import json
import shlex
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _flags


class Part(t.NamedTuple):
    """One part of a GPU's memory. letter: in the terminal's bar. tone: the name of its colour on the page."""

    key: str
    label: str
    letter: str
    tone: str


# In the order of the bar.
PARTS = (
    Part("in_use_by_others", "in use by other processes", "o", "others"),
    Part("driver", "driver, CUDA context, NCCL", "d", "driver"),
    Part("weights", "weights", "W", "weights"),
    Part("draft", "draft (MTP, EAGLE)", "D", "draft"),
    Part("mamba_pool", "state of recurrent layers", "S", "state"),
    Part("kv_pool", "KV cache", "K", "kv"),
    Part("draft_kv_pool", "KV cache of the draft", "k", "draftkv"),
    Part("request_table", "request table", "t", "table"),
    Part("cuda_graphs", "CUDA graphs, workspace", "G", "graphs"),
    Part("activations", "activations of a long prompt", "A", "activations"),
    Part("reserve", "kept free for activations", "r", "reserve"),
    Part("unused", "unused", ".", "unused"),
)
_KNOWN = {part.key: part for part in PARTS}

VERDICTS = {
    "fits": ("fits", "good"),
    "fits_with_changes": ("fits with changes", "warning"),
    "does_not_fit": ("does not fit", "bad"),
}
UNKNOWN = "not known"


class Share(t.NamedTuple):
    part: Part
    gib: float


class Card(t.NamedTuple):
    """GPUs whose memory is split alike. over_gib: what the parts take beyond the card."""

    members: list[int]
    total_gib: float
    shares: list[Share]
    over_gib: float


def number(value: t.Any) -> str:
    """19198 -> 19,198"""
    return UNKNOWN if value is None else f"{value:,}"


def gib(value: t.Any) -> str:
    return UNKNOWN if value is None else f"{value:.1f} GiB" if value >= 10 else f"{value:.2f} GiB"


def fraction(value: t.Any) -> str:
    return UNKNOWN if value is None else f"{value:.6f}".rstrip("0")


def between(value: t.Any, interval: t.Any) -> str:
    """A number, and what it lies between when that is not known exactly."""
    if not interval or interval[0] is None or interval[0] == interval[1]:
        return number(value)
    return f"{number(value)} (between {number(interval[0])} and {number(interval[1])})"


def indices(values: t.Sequence[int]) -> str:
    """[0, 1, 2, 5] -> 0-2, 5"""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}{' and ' if len(run) == 2 else '-'}{run[-1]}" for run in runs)


def percent(share: Share, card: Card) -> str:
    return f"{share.gib / card.total_gib * 100:.1f} %"


def _shares(components: t.Mapping[str, t.Any]) -> list[Share]:
    known = [Share(part, float(components[part.key])) for part in PARTS if components.get(part.key)]
    others = [key for key in components if key not in _KNOWN and components[key]]
    return known + [Share(Part(key, key.replace("_", " "), "?", "others"), float(components[key])) for key in others]


def cards(plan: t.Mapping[str, t.Any]) -> list[Card]:
    """The GPUs of a plan, those that are alike united."""
    groups: dict[str, tuple[list[int], t.Mapping[str, t.Any]]] = {}
    for gpu in plan["per_gpu"] or ():
        key = json.dumps([gpu["memory_total_mib"], gpu["components"]], sort_keys=True)
        groups.setdefault(key, ([], gpu))[0].append(gpu["index"])
    made = []
    for members, gpu in groups.values():
        total = gpu["memory_total_mib"] / 1024
        shares = _shares(gpu["components"])
        taken = sum(share.gib for share in shares)
        over = taken - total if taken > total * 1.002 else 0.0
        made.append(Card(members, total, shares, over))
    return made


def card_words(card: Card) -> str:
    return f"GPU {indices(card.members)}: {card.total_gib:.1f} GiB{' each' if len(card.members) > 1 else ''}"


def flag_words(args: t.Mapping[str, t.Any]) -> str:
    """Flags as on a command line; one that is null is one to leave out."""
    words, without = [], []
    for name, value in args.items():
        flag = _flags.spelling(name)
        if value is None or value is False:
            without.append(flag)
        elif value is True:
            words.append(flag)
        elif isinstance(value, list):
            words.append(" ".join([flag, *(shlex.quote(str(one)) for one in value)]))
        else:
            words.append(f"{flag} {shlex.quote(json.dumps(value) if isinstance(value, dict) else str(value))}")
    return ", ".join([" ".join(words)] * bool(words) + [f"without {' '.join(without)}"] * bool(without))


def gpu_words(plan: t.Mapping[str, t.Any]) -> str:
    gpus = plan["gpus"]
    size = UNKNOWN if gpus["memory_total_mib"] is None else f"{gpus['memory_total_mib'] / 1024:.1f} GiB"
    return f"{gpus['count']}x {gpus['name']} ({size}{' each' if gpus['count'] > 1 else ''})"


def title(plan: t.Mapping[str, t.Any]) -> str:
    return f"{plan['model']['name']} on {gpu_words(plan)}, SGLang {plan['sglang_release']}"


def model_words(plan: t.Mapping[str, t.Any]) -> str:
    """What the model is, in one line."""
    model = plan["model"]
    facts = [
        model["architecture"],
        None if not model["parameters"] else f"{model['parameters'] / 1e9:.1f} billion parameters",
        model["dtype"],
        model["quantization"],
        {"headers": "weights from tensor headers", "config": "weights from the configuration", "given": "weights as measured"}.get(
            model["weights_source"] or ""
        ),
        None if model["known"] else "unknown architecture: an estimate",
    ]
    return ", ".join(fact for fact in facts if fact)


def wish_words(plan: t.Mapping[str, t.Any]) -> str | None:
    """What was asked for and whether it is reached; None when nothing was."""
    want = plan["want"] or {}
    tokens, at_once = want.get("context"), want.get("concurrency")
    asked = None if tokens is None else f"a request of {number(tokens)} tokens"
    if at_once is not None:
        requests = f"{number(at_once)} request{'s' if at_once > 1 else ''} at once"
        asked = requests if tokens is None else f"{requests}, each of {number(tokens)} tokens"
    if not asked:
        return None
    least = ((plan["interval"] or {}).get("max_total_num_tokens") or [None])[0]
    tight = least is not None and least < (tokens or 0) * (at_once or 1)
    reached = "reached, but not with the largest overheads that were seen" if tight else "reached"
    return f"{asked}: {reached if plan['wanted'] else 'not reached' if plan['wanted'] is False else UNKNOWN}"


def facts(plan: t.Mapping[str, t.Any]) -> list[tuple[str, str]]:
    """The numbers of a plan, the most telling first."""
    interval = plan["interval"] or {}
    wish = wish_words(plan)
    rows = [
        ("tokens in memory", between(plan["max_total_num_tokens"], interval.get("max_total_num_tokens"))),
        ("requests at once", between(plan["max_running_requests"], interval.get("max_running_requests"))),
        ("longest request", f"{number(plan['max_request_tokens'])} tokens, prompt and answer"),
        ("context", number(plan["context_length"])),
        ("mem_fraction_static", fraction(plan["mem_fraction_static"])),
    ]
    return rows + ([("asked for", wish)] if wish else [])


def host_words(plan: t.Mapping[str, t.Any]) -> str | None:
    """What the host must have beside GPUs."""
    host = plan["host"] or {}
    parts = [
        None if host.get("ram_gib") is None else f"{gib(host['ram_gib'])} of memory",
        None if host.get("shm_gib") is None else f"{gib(host['shm_gib'])} of /dev/shm",
        None if host.get("disk_gib") is None else f"{gib(host['disk_gib'])} on disk",
    ]
    needs = ", ".join(part for part in parts if part)
    load = f"loading: {host['load_time']}" if host.get("load_time") else ""
    return "; ".join(part for part in (needs, load) if part) or None


class Alternative(t.NamedTuple):
    """One row of what would help. reached: yes | no | - (nothing was asked for). cost: and what to mind."""

    what: str
    flags: str
    tokens: str
    requests: str
    longest: str
    verdict: str
    tone: str
    reached: str
    cost: str


def alternatives_title(plan: t.Mapping[str, t.Any]) -> str:
    """What the list of alternatives is called; where none is enough, it says so."""
    enough = any(one["verdict"] == "fits" for one in plan["alternatives"] or ())
    return "What would change it, the best first" if enough else "Nothing here is enough; what comes nearer"


def alternatives(plan: t.Mapping[str, t.Any]) -> list[Alternative]:
    """Best first, as the plan has them."""
    rows = []
    for one in plan["alternatives"] or ():
        verdict, tone = VERDICTS.get(one["verdict"], (str(one["verdict"]), "none"))
        flags = flag_words(one["args"] or {})
        rows.append(
            Alternative(
                str(one["what"]),
                "; ".join(part for part in (flags, f"GPUs: {one['gpus']}" if one["gpus"] else "") if part),
                number(one["max_total_num_tokens"]),
                number(one["max_running_requests"]),
                number(one["max_request_tokens"]),
                verdict,
                tone,
                {True: "yes", False: "no"}.get(one["meets_want"], "-"),
                "; ".join(
                    part for part in (str(one["cost"] or ""), *(f"mind: {warning}" for warning in one.get("warnings") or ())) if part
                ),
            )
        )
    return rows


def measured(plan: t.Mapping[str, t.Any]) -> str | None:
    """Measured numbers that took the place of predicted ones."""
    given = [f"{key} {value:g}" for key, value in (plan["given"] or {}).items() if value is not None]
    return ", ".join(given) or None
