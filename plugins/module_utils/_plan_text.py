# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""A plan for people: the picture in a terminal of 80 columns, and the same as Markdown."""

from __future__ import annotations

import textwrap
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _plan_words as words
from ansible_collections.firstlight.sglang.plugins.module_utils._report import table

WIDTH = 80
_BAR = 76
# Colours of 256 for the parts of the bar; letters stay, for those who see no colours.
_COLOURS = {
    "others": 240,
    "driver": 60,
    "weights": 25,
    "draft": 91,
    "state": 130,
    "kv": 28,
    "draftkv": 64,
    "table": 94,
    "graphs": 30,
    "activations": 95,
    "reserve": 236,
    "unused": 234,
}
_VERDICT_COLOURS = {"good": "1;32", "warning": "1;33", "bad": "1;31"}


def _paint(text: str, code: str, colours: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colours and text else text


def cells(shares: t.Sequence[words.Share], width: int, whole_gib: float) -> list[int]:
    """How many cells of a bar each part gets: in proportion, and together what they take of the whole."""
    whole = max(whole_gib, sum(share.gib for share in shares), 1e-9)
    exact = [share.gib / whole * width for share in shares]
    made = [int(value) for value in exact]
    missing = round(sum(exact)) - sum(made)
    for place in sorted(range(len(exact)), key=lambda one: made[one] - exact[one])[:missing]:
        made[place] += 1
    return made


def _bar(card: words.Card, colours: bool) -> str:
    counts = cells(card.shares, _BAR, card.total_gib)
    painted = [
        _paint(share.part.letter * count, f"97;48;5;{_COLOURS[share.part.tone]}", colours) for share, count in zip(card.shares, counts)
    ]
    return f"[{''.join(painted)}{' ' * (_BAR - sum(counts))}]"


def _wrapped(text: str, first: str = "", rest: str | None = None) -> list[str]:
    """Text in lines of the terminal's width. Control characters in names from files do no harm."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    after = " " * len(first) if rest is None else rest
    return textwrap.wrap(plain, WIDTH, initial_indent=first, subsequent_indent=after, break_on_hyphens=False) or [first]


def _list(title: str, items: t.Sequence[str]) -> list[str]:
    return ["", title, *(line for item in items for line in _wrapped(item, "  - "))] if items else []


def _picture(plan: t.Mapping[str, t.Any], colours: bool) -> list[str]:
    lines: list[str] = []
    for card in words.cards(plan):
        lines += ["", f"Memory of {words.card_words(card)}"[:WIDTH], " " + _bar(card, colours)]
        if card.over_gib:
            edge = 2 + round(_BAR * card.total_gib / (card.total_gib + card.over_gib))
            here = "the card ends here"
            lines.append(f"{'':{edge}}^ {here}" if edge + 2 + len(here) <= WIDTH else f"{here + ' ^':>{edge + 1}}")
            lines.append(f"  {words.gib(card.over_gib)} more than the card has")
        for share in card.shares:
            mark = (
                _paint(f" {share.part.letter} ", f"97;48;5;{_COLOURS[share.part.tone]}", colours) if colours else f" {share.part.letter} "
            )
            lines.append(f"  {mark} {share.part.label[:34]:<34} {share.gib:8.2f} GiB {words.percent(share, card):>8}")
    return lines


def _alternatives(plan: t.Mapping[str, t.Any]) -> list[str]:
    rows = words.alternatives(plan)
    if not rows:
        return []
    asked = words.wish_words(plan) is not None
    lines = ["", words.alternatives_title(plan)]
    lines.append(f"{'':36}{'tokens':>12} {'requests':>9} {'longest':>11}{'  reached' if asked else ''}")
    for place, row in enumerate(rows, 1):
        said = _wrapped(row.what if row.tone == "good" else f"{row.what} ({row.verdict})", f"{place:3} ")
        numbers = f"{row.tokens:>12} {row.requests:>9} {row.longest:>11}" + (f"  {row.reached}" if asked else "")
        alone = len(said) == 1 and len(said[0]) < 36
        lines += [f"{said[0]:<36}{numbers}"] if alone else [*said, f"{'':36}{numbers}"]
        lines += _wrapped(row.flags, "      ") if row.flags else []
        lines += _wrapped(f"costs: {row.cost}", "      ") if row.cost else []
    return lines


def _explained(plan: t.Mapping[str, t.Any]) -> list[str]:
    """Each number with its formula and where that is from; what the release makes of the flags."""
    lines = ["", "Where the numbers come from"]
    for line in plan["lines"] or ():
        lines.append(f"  {str(line['what'])[:46]:<46} {words.gib(line['gib']):>14}")
        lines += _wrapped(str(line["formula"]), "      ") + _wrapped(f"source: {line['source']}", "      ")
    resolved = ", ".join(f"{key} {value}" for key, value in (plan["resolved"] or {}).items() if value is not None)
    return lines + (["", "What the release makes of the flags", *_wrapped(resolved, "  ")] if resolved else [])


def text(plan: t.Mapping[str, t.Any], *, colours: bool = False, explain: bool = False) -> str:
    """The whole plan in a terminal."""
    verdict, tone = words.VERDICTS[plan["verdict"]]
    lines = [*_wrapped(words.title(plan)), *_wrapped(words.model_words(plan), "  ")]
    flags = words.flag_words(plan["args"] or {})
    lines += _wrapped(f"flags: {flags or 'none, SGLang decides'}", "  ", "    ")
    measured = words.measured(plan)
    lines += _wrapped(f"measured: {measured}", "  ", "    ") if measured else []
    lines += ["", _paint(verdict.upper(), _VERDICT_COLOURS[tone], colours)]
    for label, value in words.facts(plan):
        lines += _wrapped(value, f"  {label:<20} ")
    lines += _list("Why", plan["reasons"] or ())
    lines += _picture(plan, colours)
    lines += _alternatives(plan)
    host = words.host_words(plan)
    lines += ["", *_wrapped(f"The host needs {host}")] if host else []
    lines += _list("To know", plan["warnings"] or ())
    lines += _explained(plan) if explain else []
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _bullets(title: str, items: t.Sequence[str]) -> list[str]:
    return ["", f"## {title}", "", *(f"- {_escaped(item)}" for item in items)] if items else []


def _escaped(value: t.Any) -> str:
    """Text within Markdown: names from files stay text."""
    plain = " ".join(str(value).split())
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>#|" else letter for letter in plain)


def _rows(rows: t.Sequence[t.Sequence[t.Any]]) -> list[list[str]]:
    """Cells of a table, whose bars the table itself escapes."""
    return [[_escaped(str(cell).replace("|", "/")) for cell in row] for row in rows]


def markdown(plan: t.Mapping[str, t.Any], *, level: int = 1) -> str:
    """The whole plan as Markdown, sources included. level: of its first heading."""
    verdict, _tone = words.VERDICTS[plan["verdict"]]
    flags = words.flag_words(plan["args"] or {})
    lines = [f"# {_escaped(words.title(plan))}: {verdict}", "", _escaped(words.model_words(plan)), ""]
    lines.append(f"Flags: `{flags.replace('`', '')}`" if flags else "Flags: none, SGLang decides")
    measured = words.measured(plan)
    lines += ["", f"Measured: {_escaped(measured)}"] if measured else []
    lines += ["", table(("what", "value"), _rows(words.facts(plan)))]
    lines += _bullets("Why", plan["reasons"] or ())
    for card in words.cards(plan):
        rows = [(share.part.label, f"{share.gib:.2f}", words.percent(share, card)) for share in card.shares]
        lines += ["", f"## Memory of {words.card_words(card)}", "", table(("part", "GiB", "share"), _rows(rows))]
        lines += ["", f"{words.gib(card.over_gib)} more than the card has."] if card.over_gib else []
    others = words.alternatives(plan)
    if others:
        rows4 = []
        for one in others:
            cells, flags = _rows([(one.what, one.tokens, one.requests, one.longest, one.reached, one.verdict, one.cost)])[0], one.flags
            rows4.append([*cells[:-1], f"`{flags.replace('`', '').replace('|', '/')}`" if flags else "", cells[-1]])
        head = ("change", "tokens", "requests", "longest", "reached", "verdict", "flags", "costs")
        lines += ["", f"## {words.alternatives_title(plan)}", "", table(head, rows4)]
    host = words.host_words(plan)
    lines += ["", f"The host needs {_escaped(host)}."] if host else []
    lines += _bullets("To know", plan["warnings"] or ())
    sources = [(line["what"], words.gib(line["gib"]), line["formula"], line["source"]) for line in plan["lines"] or ()]
    if sources:
        lines += ["", "## Where the numbers come from", "", table(("what", "GiB", "formula", "source"), _rows(sources))]
    deeper = "#" * (level - 1)
    return "\n".join(f"{deeper}{line}" if line.startswith("#") else line for line in lines) + "\n"
