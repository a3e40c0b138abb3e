# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""The options of the release that is installed in an environment: which one it is, and what was kept of the last look."""

from __future__ import annotations

import hashlib
import json
import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _flag_facts, _flag_rules, _flags

# In the environment. An environment that is built anew begins without it.
KEPT = ".firstlight.flags.json"


class Answer(t.NamedTuple):
    """What is to be said of a set of flags. words: its part of a command line; empty when something is wrong with it."""

    words: list[str]
    problems: list[str]
    notes: list[str]


def release_of(names: t.Iterable[str]) -> str | None:
    """The release of SGLang by the names in a directory of packages, or None when there is none, or more than one."""
    found = {match[1] for name in names if (match := re.fullmatch(r"sglang-([0-9][0-9a-z.]*)\.dist-info", name))}
    return found.pop() if len(found) == 1 else None


def identity(release: str, lock: str, source: str) -> str:
    """What the options depend on: the release, the lock that the environment was made from, and how they are read."""
    return hashlib.sha256(json.dumps([release, lock, source]).encode("utf-8")).hexdigest()


def kept(text: str, wanted: str) -> list[dict[str, t.Any]] | None:
    """The options that were kept, or None when they are of something else, or damaged."""
    try:
        data = json.loads(text)
    except ValueError:
        return None
    if not isinstance(data, dict) or data.get("identity") != wanted or not isinstance(data.get("options"), list):
        return None
    return [_flags.complete(option) for option in data["options"]]


def to_keep(options: t.Iterable[t.Mapping[str, t.Any]], wanted: str) -> str:
    """The text that kept() reads."""
    return json.dumps({"identity": wanted, "options": [_flags.compact(option) for option in options]}) + "\n"


def printed(text: str, release: str) -> tuple[list[dict[str, t.Any]], str | None]:
    """The options that the engine's Python has printed, or the problem with them."""
    try:
        data = json.loads(text)
        options, found = list(data["options"]), data["release"]
    except (ValueError, KeyError, TypeError):
        return [], f"expected the options of SGLang {release}, found {text[:200]!r}; build the environment anew"
    if found != release:
        return [], f"expected SGLang {release}, found {found}; build the environment anew"
    return options, None


def names(options: t.Iterable[t.Mapping[str, t.Any]]) -> list[str]:
    """All names of options, in alphabetical order."""
    return sorted({name for option in options for name in _flags.names(option)})


def answer(release: str, options: t.Sequence[t.Mapping[str, t.Any]], args: t.Mapping[str, t.Any], extra_args: t.Sequence[str]) -> Answer:
    """Check flags against the options, and against the rules that need no model and no GPU."""
    table = _flags.FlagTable({"release": release, "options": options})
    words, problems = _flags.check_args(table, args, {})
    problems += _flags.check_extra_args(table, extra_args, {})
    findings = _flag_rules.check(release, args)
    problems += [finding.message for finding in findings if finding.severity == _flag_facts.ERROR]
    notes = [finding.message for finding in findings if finding.severity != _flag_facts.ERROR]
    return Answer([] if problems else [*words, *extra_args], problems, notes)
