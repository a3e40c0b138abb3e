#!/usr/bin/env python3
# Copyright: (c) 2026, Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Put what a release says of its options into plugins/plugin_utils/data/flags/options.json.

    <environment>/bin/python -I plugins/module_utils/_flag_introspection.py > table.json
    tools/flag_table.py table.json [another.json ...]

A release that is there already is replaced. One line is one option for as long as it did not change: `since` is the first release of
that stretch (absent: the oldest of all), `until` the last (absent: the newest).
"""

from __future__ import annotations

import argparse
import json
import sys
import typing as t
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.firstlight.sglang.plugins.module_utils._flags import FlagHistory, compact, release_order  # noqa: E402

OPTIONS = ROOT / "plugins/plugin_utils/data/flags/options.json"

Option = t.Dict[str, t.Any]  # noqa: UP006  # evaluated at run time
Tables = t.Dict[str, t.List[Option]]  # noqa: UP006


def collapse(tables: Tables) -> dict[str, t.Any]:
    """What options.json holds, from the complete options of each release. Choices are sets: their order does not count."""
    releases = sorted(tables, key=release_order)
    stretches: list[tuple[str, int, int, Option]] = []  # first spelling, first release, last release, compact form
    for number, release in enumerate(releases):
        for option in tables[release]:
            short = compact(option)
            known = next((one for one in stretches if one[3] == short and one[2] == number - 1), None)
            if known:
                stretches.remove(known)
            stretches.append((short["flags"][0], known[1] if known else number, number, short))
    options = []
    for _flag, first, last, short in sorted(stretches, key=lambda one: one[:3]):
        since = {"since": releases[first]} if first > 0 else {}
        until = {"until": releases[last]} if last < len(releases) - 1 else {}
        options.append({**short, **since, **until})
    return {"releases": releases, "options": options}


def expand(data: t.Mapping[str, t.Any]) -> Tables:
    """The complete options of each release in options.json."""
    history = FlagHistory(data)
    return {release: table.options for release in history.releases if (table := history.table(release))}


def written(data: t.Mapping[str, t.Any]) -> str:
    """The text of options.json: one option a line."""
    lines = ",\n".join("  " + json.dumps(option) for option in data["options"])
    return f'{{"releases": {json.dumps(data["releases"])}, "options": [\n{lines}\n]}}\n'


def main() -> None:
    """Merge tables of releases into options.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE", help="what _flag_introspection.py printed")
    tables = expand(json.loads(OPTIONS.read_text(encoding="utf-8"))) if OPTIONS.is_file() else {}
    for path in parser.parse_args().tables:
        table = json.loads(path.read_text(encoding="utf-8"))
        tables[table["release"]] = table["options"]
    OPTIONS.write_text(written(collapse(tables)), encoding="utf-8")


if __name__ == "__main__":
    main()
