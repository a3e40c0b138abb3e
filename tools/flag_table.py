"""Print the flag table of the SGLang release that is installed beside this interpreter.

    <environment>/bin/python tools/flag_table.py > plugins/plugin_utils/data/flags/<release>.json

The table is what the release's own argument parser accepts, reduced to what a check needs. No GPU is needed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from typing import Any


def entry(action: argparse.Action) -> dict[str, Any]:
    """One option: its long spellings, what kind of value it takes, and the values it admits."""
    kind = "value"
    if isinstance(action, argparse.BooleanOptionalAction):
        kind = "boolean"
    elif action.nargs == 0:
        kind = "switch"
    converter = getattr(action.type, "__name__", None) if action.type else "str"
    return {
        "flags": [spelling for spelling in action.option_strings if spelling.startswith("--")],
        "dest": action.dest,
        "kind": kind,
        "type": None if kind != "value" else converter,
        "nargs": action.nargs if kind == "value" else None,
        "choices": sorted(str(choice) for choice in action.choices) if action.choices else None,
    }


def table(parser: argparse.ArgumentParser, release: str) -> dict[str, Any]:
    """The table of one release: {release, options: [entry, ...]} in the parser's own order."""
    options = [entry(action) for action in parser._actions if action.dest != "help" and action.option_strings]
    return {"release": release, "options": options}


def main() -> None:
    """Introspect the installed release and print its table as JSON."""
    from sglang.srt.server_args import ServerArgs  # noqa: PLC0415  # only the engine's environment has it

    parser = argparse.ArgumentParser(add_help=False)
    ServerArgs.add_cli_args(parser)
    result = table(parser, importlib.metadata.version("sglang"))
    options = ",\n".join("  " + json.dumps(option) for option in result["options"])
    sys.stdout.write(f'{{"release": {json.dumps(result["release"])}, "options": [\n{options}\n]}}\n')


if __name__ == "__main__":
    main()
