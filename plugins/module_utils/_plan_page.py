# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What the HTML page of plans shows, so that its template (plugin_utils/data/plan.html.j2) only has to put it in place."""

from __future__ import annotations

import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _plan_words as words
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_fleet import clock_words, count
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_fleet_page import SIGNS


class Entry(t.NamedTuple):
    """One plan of a page. where: "host: instance" of an inventory, or empty for a plan by itself."""

    where: str
    plan: t.Mapping[str, t.Any]


def _bar(card: words.Card) -> dict[str, t.Any]:
    """Parts in per cent of the bar, from where to how wide; edge: where the card ends, when the parts do not fit it."""
    whole = card.total_gib + card.over_gib
    rows, start = [], 0.0
    for share in card.shares:
        width = share.gib / whole * 100
        rows.append(
            {"x": f"{start:.4f}", "width": f"{width:.4f}", "tone": share.part.tone, "words": f"{share.part.label}: {words.gib(share.gib)}"}
        )
        start += width
    said = ", ".join(f"{share.part.label} {words.gib(share.gib)}" for share in card.shares)
    return {"parts": rows, "words": said, "edge": f"{card.total_gib / whole * 100:.4f}" if card.over_gib else None}


def _card(card: words.Card) -> dict[str, t.Any]:
    return {
        "words": words.card_words(card),
        "members": [f"GPU {index}" for index in card.members],
        "bar": _bar(card),
        "rows": [
            {"tone": share.part.tone, "label": share.part.label, "gib": f"{share.gib:.2f}", "percent": words.percent(share, card)}
            for share in card.shares
        ],
        "over": f"{words.gib(card.over_gib)} more than the card has" if card.over_gib else None,
    }


def _entry(entry: Entry, anchor: str) -> dict[str, t.Any]:
    plan = entry.plan
    verdict, tone = words.VERDICTS[plan["verdict"]]
    return {
        "anchor": anchor,
        "where": entry.where,
        "title": words.title(plan),
        "model": words.model_words(plan),
        "flags": words.flag_words(plan["args"] or {}) or "none, SGLang decides",
        "measured": words.measured(plan),
        "verdict": verdict,
        "tone": tone,
        "facts": words.facts(plan),
        "reasons": plan["reasons"] or [],
        "warnings": plan["warnings"] or [],
        "cards": [_card(card) for card in words.cards(plan)],
        "alternatives": words.alternatives(plan),
        "alternatives_title": words.alternatives_title(plan),
        "asked": words.wish_words(plan) is not None,
        "host": words.host_words(plan),
        "lines": [{**line, "gib": words.gib(line["gib"])} for line in plan["lines"] or ()],
        "resolved": [(key, str(value)) for key, value in (plan["resolved"] or {}).items() if value is not None],
    }


def page(entries: t.Sequence[Entry], generated_at: str) -> dict[str, t.Any]:
    """Everything that the template shows, in the order in which the entries came. generated_at: UTC, ISO 8601."""
    shown = [_entry(entry, f"p{number}") for number, entry in enumerate(entries)]
    verdicts = [entry["verdict"] for entry in shown]
    counted = [f"{verdicts.count(verdict)} {verdict}" for verdict, _tone in words.VERDICTS.values() if verdict in verdicts]
    return {
        "clock": clock_words(generated_at),
        "generated_at": generated_at,
        "sentence": f"{count(len(shown), 'plan')}: {', '.join(counted)}." if len(shown) > 1 else shown[0]["title"] if shown else "No plan.",
        "entries": shown,
        "signs": SIGNS,
    }
