# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""SGLang's own flags: is a set valid for a release, and what does it look like on a command line.

The truth is what each release's own argument parser says (plugins/plugin_utils/data/flags/options.json, made by tools/flag_table.py).
Nothing here guesses a flag.
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _flag_renames

# What the parser calls its converters, in words.
_TYPE_WORDS = {
    "str": "a string",
    "nullable_str": "a string",
    "int": "a whole number",
    "float": "a number",
    "human_readable_int": "a whole number, or text such as 8k",
    "loads": "a dictionary",
    "json_list_type": "a list",
}


# SGLANG 0.5.23 utils/common.py:3394: decimals with decimal units only.
_HUMAN_READABLE = r"\d+((\.\d+)?[kMGT]|[KMGT]i)?"


class Span(t.NamedTuple):
    """When a spelling was a flag: the first and the last release that have it, and the field that the last one stores it in."""

    first: str
    last: str
    dest: str


class FlagTable:
    """The options of one release, found by the snake_case of any long spelling."""

    def __init__(self, data: t.Mapping[str, t.Any], history: FlagHistory | None = None) -> None:
        """data: {release, options}, each option as FlagHistory.options has it. history: the other releases, to say where a flag went."""
        self.release: str = data["release"]
        self.history = history
        self.options: list[dict[str, t.Any]] = list(data["options"])
        self.by_name: dict[str, dict[str, t.Any]] = {}
        for option in self.options:
            for name in names(option):
                self.by_name[name] = option


class FlagHistory:
    """The options of all releases: one entry for each stretch of releases in which an option did not change."""

    def __init__(self, data: t.Mapping[str, t.Any]) -> None:
        """data: the parsed JSON of options.json: releases, oldest first, and options, in the compact form."""
        self.releases: list[str] = list(data["releases"])
        self._options: list[t.Mapping[str, t.Any]] = list(data["options"])
        self.spans: dict[str, Span] = {}
        for option in self._options:
            whole = complete(option)
            first, last = self._stretch(option)
            for name in names(whole):
                known = self.spans.get(name)
                since = min(first, self.releases.index(known.first)) if known else first
                until = max(last, self.releases.index(known.last)) if known else last
                dest = whole["dest"] if known is None or until == last else known.dest
                self.spans[name] = Span(self.releases[since], self.releases[until], dest)

    def _stretch(self, option: t.Mapping[str, t.Any]) -> tuple[int, int]:
        first, last = option.get("since", self.releases[0]), option.get("until", self.releases[-1])
        return self.releases.index(first), self.releases.index(last)

    def table(self, release: str) -> FlagTable | None:
        """The options of one release, or None when it is not one of those in the table."""
        if release not in self.releases:
            return None
        here = self.releases.index(release)
        stretches = ((self._stretch(option), option) for option in self._options)
        options = [complete(option) for (first, last), option in stretches if first <= here <= last]
        return FlagTable({"release": release, "options": options}, self)

    def removed_in(self, name: str) -> str | None:
        """The first release that lacks a flag that older ones had, or None when the newest has it or none ever had."""
        span = self.spans.get(name)
        if span is None:
            return _flag_renames.BEFORE_TABLES.get(name)
        if span.last == self.releases[-1]:
            return None
        return self.releases[self.releases.index(span.last) + 1]


def names(option: t.Mapping[str, t.Any]) -> list[str]:
    """The names of a (complete) option: its long spellings in snake_case, without the --no- twin of a boolean."""
    return [snake(flag) for flag in option["flags"] if option["kind"] != "boolean" or not flag.startswith("--no-")]


# What an option is when its compact form does not say otherwise.
_USUAL = {"kind": "value", "type": "str", "nargs": None, "choices": None, "default": None, "const": None, "deprecated": False}


def complete(option: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """An option's compact form with all that it leaves out, in the order in which _flag_introspection.py prints it."""
    usual: dict[str, t.Any] = {"flags": [], "dest": snake(option["flags"][0]), **_USUAL}
    if option.get("kind", "value") != "value":
        usual.update(type=None, default=False)
    return {key: option.get(key, value) for key, value in usual.items()}


def compact(option: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """A complete option without what goes without saying."""
    usual = complete({"flags": option["flags"], "kind": option["kind"]})
    return {key: value for key, value in option.items() if (key in ("flags", "kind") and value != "value") or usual[key] != value}


@functools.lru_cache
def release_order(release: str) -> tuple[int, ...]:
    """A key that sorts releases by age: 0.5.9 before 0.5.10 before 0.5.10.post1."""
    return tuple(int(number) for number in re.findall(r"\d{1,9}", release))


def found(value: t.Any) -> str:
    """A value and its type, in words for a message (Ansible hands over subclasses of the plain types)."""
    kinds = (bool, int, float, str, list, dict)
    kind = next((kind.__name__ for kind in kinds if isinstance(value, kind)), type(value).__name__)
    return f"found {value!r} ({kind})"


def snake(flag: str) -> str:
    """--tp-size -> tp_size"""
    return flag.lstrip("-").replace("-", "_")


def spelling(name: str) -> str:
    """tp_size -> --tp-size"""
    return "--" + name.replace("_", "-")


def unknown_flag(table: FlagTable, name: str) -> str:
    """What to tell about a name that the release does not have: what became of it, its right spelling, or the nearest ones."""
    if snake(name) in table.by_name:
        return f"is spelled {snake(name)} here (snake_case of the flag)"
    if snake(name) == "model_type":
        return "belongs to `sglang serve` and not to its options; the instance's command line has it already (llm)"
    return _elsewhere(table, snake(name)) or _nearest(table, snake(name))


def _elsewhere(table: FlagTable, name: str) -> str | None:
    """What to tell about a flag of other releases, or None when no release has it."""
    if table.history is None:  # the release that is installed, alone
        told = _flag_renames.INSTEAD.get(name)
        return f"is no longer a flag of SGLang {table.release}; {instead(table, name)}" if told else None
    order, here = table.history.releases, table.history.releases.index(table.release)
    removed_in, span = table.history.removed_in(name), table.history.spans.get(name)
    if removed_in and (removed_in not in order or order.index(removed_in) <= here):
        return f"was removed in SGLang {removed_in}; {instead(table, name)}"
    if span and order.index(span.first) > here:
        older = sorted(old for old in table.by_name if span.dest in (successor(table.history, old), table.history.spans[old].dest))
        return f"came with SGLang {span.first} and this is {table.release}; {f'write {older[0]}' if older else 'leave it out'}"
    return f"is not a flag of SGLang {table.release}, though of releases before and after it; leave it out" if span else None


def successor(history: FlagHistory, name: str) -> str | None:
    """The flag that took the place of one that went away, if one did."""
    if name in _flag_renames.INSTEAD:
        return _flag_renames.INSTEAD[name].flag
    span = history.spans.get(name)
    if span is None or history.removed_in(name) is None:
        return None
    return span.dest if span.dest != name and span.dest in history.spans else None


def instead(table: FlagTable, name: str) -> str:
    """What to do about a flag that went away."""
    told = _flag_renames.INSTEAD.get(name)
    flag = successor(table.history, name) if table.history else told.flag if told else None
    if flag is not None and flag not in table.by_name:
        return "nothing in this release took its place; leave it out"
    if told:
        return told.do
    return f"write {flag}" if flag else "nothing took its place; leave it out"


def _nearest(table: FlagTable, name: str) -> str:
    near = difflib.get_close_matches(name, table.by_name, n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; `sglang serve --help` lists them"
    return f"is not a flag of SGLang {table.release}{hint}"


def _scalar(converter: str, value: t.Any) -> str | None:
    """One value as the text that the parser's converter takes, or None when it is of the wrong type."""
    if isinstance(value, bool) or value is None:
        return None
    if converter == "int":
        return _number(int, value)
    if converter == "float":
        return _number(float, value)
    if converter == "human_readable_int":
        return str(value) if isinstance(value, (int, str)) and re.fullmatch(_HUMAN_READABLE, str(value), re.ASCII) else None
    return str(value) if isinstance(value, (str, int, float)) and str(value) else None


def _number(kind: type, value: t.Any) -> str | None:
    if not isinstance(value, (int, float, str)) or (kind is int and isinstance(value, float)):
        return None
    try:
        finite = math.isfinite(kind(value))
    except (ValueError, OverflowError):
        return None
    return str(value) if finite else None


def _json(converter: str, value: t.Any) -> str | None:
    """A JSON value as compact text; text is taken when it parses to the right kind."""
    wanted: type = list if converter == "json_list_type" else dict
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return _dumps(value) if isinstance(value, wanted) else None


def _dumps(value: t.Any) -> str | None:
    """A value as compact JSON, or None when it holds what JSON does not have (a date, a number that is none, keys of two types)."""
    try:
        return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None


def _word(converter: str, value: t.Any) -> str | None:
    """Like _scalar; a converter of SGLang's own (cuda_graph_config and its like) takes text or JSON."""
    if converter not in _TYPE_WORDS and isinstance(value, (dict, list)):
        return _dumps(value)
    return _scalar(converter, value)


def render(option: t.Mapping[str, t.Any], name: str, value: t.Any) -> tuple[list[str], str | None]:
    """The words of one flag on a command line.

    option: the flag's entry in the table. name: as the operator wrote it. value: from YAML.
    Returns (words, None), or ([], what was expected) when the value does not fit. A switch that is false, and any
    flag that is null, gives no words.
    """
    flag = spelling(name)
    if value is None:
        return [], None
    if option["kind"] in ("switch", "boolean"):
        if not isinstance(value, bool):
            return [], "true or false"
        if value:
            return [flag], None
        return ([spelling("no_" + name)] if option["kind"] == "boolean" else []), None
    return _render_value(option, flag, value)


def _render_value(option: t.Mapping[str, t.Any], flag: str, value: t.Any) -> tuple[list[str], str | None]:
    converter = option["type"] or "str"
    many = option["nargs"] in ("+", "*")
    if value is True and option["nargs"] == "?":
        return [flag], None
    if converter in ("loads", "json_list_type"):
        text = _json(converter, value)
        return ([flag, text], None) if text is not None else ([], _TYPE_WORDS[converter])
    if many and not isinstance(value, list):
        return [], f"a list, each element {_TYPE_WORDS.get(converter, 'a string')}"
    words = [_word(converter, element) for element in (value if many else [value])]
    choices = option["choices"]
    if any(word is None for word in words) or (many and not words and option["nargs"] == "+"):
        return [], f"{'a list, each element ' if many else ''}{_TYPE_WORDS.get(converter, 'text or JSON')}"
    if choices and any(word not in choices for word in words):
        return [], f"one of {', '.join(choices)}"
    return _joined(flag, [word for word in words if word is not None], many)


def _joined(flag: str, words: list[str], many: bool) -> tuple[list[str], str | None]:
    """The flag and its values. argparse takes a value that begins with a dash, and is no number, for the next flag."""
    dashed = any(word.startswith("-") and not re.fullmatch(r"-\d+|-\d*\.\d+", word, re.ASCII) for word in words)
    if not dashed:
        return [flag, *words], None
    return ([], "a list without elements that begin with a dash") if many else ([f"{flag}={words[0]}"], None)


def check_args(table: FlagTable, args: t.Mapping[str, t.Any], reserved: t.Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Check a dictionary of flags and render it.

    table: the release's flags. args: flag (snake_case) -> value. reserved: flags that have a place of their own ->
    what to set instead. Returns (words of the command line in the order given, problems in words).
    """
    words: list[str] = []
    problems: list[str] = []
    seen: dict[str, str] = {}
    for name, value in args.items():
        option = table.by_name.get(name)
        if option is None:
            problems.append(f"args.{name}: {unknown_flag(table, str(name))}")
            continue
        taken = next((reserved[snake(flag)] for flag in option["flags"] if snake(flag) in reserved), None)
        if taken:
            problems.append(f"args.{name}: this flag follows from the instance; {taken}")
            continue
        if option["dest"] in seen:
            problems.append(f"args.{name}: the same flag as args.{seen[option['dest']]}; keep one of the two")
            continue
        seen[option["dest"]] = name
        rendered, expected = render(option, name, value)
        if expected:
            problems.append(f"args.{name}: expected {expected}, {found(value)}")
        words += rendered
    return words, problems


def check_extra_args(table: FlagTable, extra_args: t.Any, reserved: t.Mapping[str, str]) -> list[str]:
    """Problems of the free-form list: not a list of strings, or a flag that has a place of its own in the instance.

    A flag that the table lacks passes: this list is the way in for what a plug-in of the engine adds.
    """
    if not isinstance(extra_args, list) or not all(isinstance(word, str) for word in extra_args):
        return [f"extra_args: expected a list of strings, found {extra_args!r}"]
    problems = []
    for word in extra_args:
        if not word.startswith("--"):
            continue
        name = snake(word.split("=", 1)[0])
        option = table.by_name.get(name)
        whole = sorted(known for known in table.by_name if known.startswith(name)) if option is None and name else []
        taken = next((reserved[snake(flag)] for flag in option["flags"] if snake(flag) in reserved), None) if option else None
        if whole:  # the engine's parser takes an abbreviation for the whole flag, whatever it is
            problems.append(f"extra_args: {word}: an abbreviation of {' or '.join(map(spelling, whole[:3]))}; write it in full")
        if taken:
            problems.append(f"extra_args: {word}: this flag follows from the instance; {taken}")
    return problems
