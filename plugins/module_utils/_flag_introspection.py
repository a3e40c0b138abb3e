# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What an SGLang release says of its own options. This file is run by the engine's Python, alone; nothing else is imported from it there.

    <environment>/bin/python -I plugins/module_utils/_flag_introspection.py [JSON list of command lines, each a list of words]

prints {release, options} and, where command lines are given, under lines what the release's parser says of each: parsed (destination ->
value, of all that is not the default) and refused (None when it takes them). No GPU is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import json
import sys
import typing as t


def entry(action: argparse.Action) -> dict[str, t.Any]:
    """One option: its long spellings, what kind of value it takes, the values it admits, and its default.

    kind: switch (takes no value), boolean (a switch with a --no- twin) or value. type: the name of the parser's converter.
    const: what an optional value is when it is left out. deprecated: the release warns of it, or refuses it.
    """
    kind = "value"
    if isinstance(action, argparse.BooleanOptionalAction):
        kind = "boolean"
    elif action.nargs == 0:
        kind = "switch"
    converter = getattr(action.type, "__name__", None) if action.type else "str"
    return {
        "flags": spellings(action),
        "dest": action.dest,
        "kind": kind,
        "type": converter if kind == "value" else None,
        "nargs": action.nargs if kind == "value" else None,
        "choices": sorted(str(choice) for choice in action.choices) if action.choices else None,
        "default": None if action.default == argparse.SUPPRESS else plain(action.default),
        "const": plain(action.const) if action.nargs == "?" else None,
        "deprecated": type(action).__name__.startswith("Deprecated"),
    }


def spellings(action: argparse.Action) -> list[str]:
    """The long ones. Those with a third dash are fields of the engine that became options by accident."""
    return [spelling for spelling in action.option_strings if spelling.startswith("--") and not spelling.startswith("---")]


def plain(value: t.Any) -> t.Any:
    """A value as JSON has it; what JSON does not have, as text."""
    return json.loads(json.dumps(value, default=str))


def options_of(parser: argparse.ArgumentParser) -> list[dict[str, t.Any]]:
    """The options of a parser in its own order, without help."""
    return [entry(action) for action in parser._actions if action.dest != "help" and spellings(action)]


def parse(parser: argparse.ArgumentParser, words: list[str]) -> dict[str, t.Any]:
    """What the parser makes of one command line: {parsed, refused}."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            given = vars(parser.parse_args(words))
    except SystemExit:
        last = said.getvalue().strip().splitlines()[-1:]
        return {"parsed": None, "refused": last[0].partition("error: ")[2] or last[0] if last else "refused without a word"}
    return {"parsed": {name: plain(value) for name, value in given.items() if value != parser.get_default(name)}, "refused": None}


def main() -> None:
    """Introspect the release that is installed beside this interpreter, and print what was found as JSON."""
    from sglang.srt.server_args import ServerArgs  # noqa: PLC0415  # only the engine's environment has it

    parser = argparse.ArgumentParser(add_help=False)
    ServerArgs.add_cli_args(parser)
    result = {"release": importlib.metadata.version("sglang"), "options": options_of(parser)}
    if sys.argv[1:]:
        result["lines"] = [parse(parser, words) for words in json.loads(sys.argv[1])]
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
