# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""SGLang's own flags: is a set valid for a release, and what does it look like on a command line.

The truth is the table of a release (plugins/plugin_utils/data/flags/<release>.json), printed by that release's own
argument parser (tools/flag_table.py). Nothing here guesses a flag.
"""

from __future__ import annotations

import difflib
import json
import typing as t

# A flag that an older release had, and what took its place: (release that removed it, what to write instead).
# Source: the option lists of the releases 0.5.6 ... 0.5.23.
RENAMED: dict[str, tuple[str, str]] = {
    "mamba_scheduler_strategy": ("0.5.20", "mamba_radix_cache_strategy"),
    "cuda_graph_max_bs": ("0.5.20", "cuda_graph_max_bs_decode"),
    "cuda_graph_bs": ("0.5.20", "cuda_graph_bs_decode"),
    "disable_piecewise_cuda_graph": ("0.5.20", "disable_prefill_cuda_graph"),
    "enable_gdn_replayssm_spec": ("0.5.20", "enable_linear_replayssm_spec"),
}

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


class FlagTable:
    """The options of one release, found by the snake_case of any long spelling."""

    def __init__(self, data: t.Mapping[str, t.Any]) -> None:
        """data: the parsed JSON of one flag table."""
        self.release: str = data["release"]
        self.by_name: dict[str, dict[str, t.Any]] = {}
        for option in data["options"]:
            for spelling in option["flags"]:
                if option["kind"] == "boolean" and spelling.startswith("--no-"):
                    continue
                self.by_name[snake(spelling)] = option


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
    """What to tell about a name that the release does not have: its new name, its right spelling, or the nearest ones."""
    if name in RENAMED and RENAMED[name][1] in table.by_name:
        removed_in, new_name = RENAMED[name]
        return f"was removed in SGLang {removed_in}; write {new_name}"
    if snake(name) in table.by_name:
        return f"is spelled {snake(name)} here (snake_case of the flag)"
    near = difflib.get_close_matches(snake(name), table.by_name, n=3, cutoff=0.6)
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
        return str(value) if isinstance(value, (int, str)) and str(value)[:1].isdigit() else None
    return str(value) if isinstance(value, (str, int, float)) and str(value) else None


def _number(kind: type, value: t.Any) -> str | None:
    if not isinstance(value, (int, float, str)) or (kind is int and isinstance(value, float)):
        return None
    try:
        kind(value)
    except ValueError:
        return None
    return str(value)


def _json(converter: str, value: t.Any) -> str | None:
    """A JSON value as compact text; text is taken when it parses to the right kind."""
    wanted: type = list if converter == "json_list_type" else dict
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return json.dumps(value, separators=(",", ":"), sort_keys=True) if isinstance(value, wanted) else None


def _word(converter: str, value: t.Any) -> str | None:
    """Like _scalar; a converter of SGLang's own (cuda_graph_config and its like) takes text or JSON."""
    if converter not in _TYPE_WORDS and isinstance(value, (dict, list)):
        return json.dumps(value, separators=(",", ":"), sort_keys=True)
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
    return [flag, *[word for word in words if word is not None]], None


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
