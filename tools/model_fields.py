#!/usr/bin/env python3
# Copyright: (c) 2026, Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Take from model directories (config.json, hf_quant_config.json) the fields that the plan reads, and nothing else, in a compact form.

    tools/model_fields.py DIRECTORY... > tests/fixtures/models/models.json

Long lists are written as cycles or runs, lists of modules as names with the numbers of their layers. A file params.json beside the
directories gives exact counts for some: {"<directory>": {"parts": {...}}}.
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
import typing as t

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.firstlight.sglang.plugins.module_utils import _model_config  # noqa: E402

LAYER = re.compile(r"(?<=layers\.)\d+")
SHORT = 12


class Recorded(dict[str, t.Any]):
    """An object that remembers which of its keys were asked for; all of them, once it is gone through."""

    def __init__(self, values: dict[str, t.Any]) -> None:
        super().__init__({key: Recorded(value) if isinstance(value, dict) else value for key, value in values.items()})
        self.asked: set[str] = set()

    def get(self, key: str, default: t.Any = None) -> t.Any:
        self.asked.add(key)
        return super().get(key, default)

    def __iter__(self) -> t.Iterator[str]:
        self.asked.update(super().keys())
        return super().__iter__()

    def items(self) -> t.Any:
        self.asked.update(super().keys())
        return super().items()

    def read(self) -> dict[str, t.Any]:
        """What was asked for and is there."""
        found = {key: dict.get(self, key) for key in sorted(self.asked) if dict.get(self, key) is not None}
        return {key: value.read() if isinstance(value, Recorded) else value for key, value in found.items()}


def ranges(numbers: t.Iterable[int]) -> str:
    """0-3,7: whole numbers, sorted."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{first}-{last}" if first != last else str(first) for first, last in spans)


def by_layer(names: t.Iterable[str]) -> dict[str, str]:
    """Names of modules: a pattern with {} for the layer, and for which layers it stands; an empty text for a name without one."""
    layers: dict[str, list[int]] = {}
    for name in names:
        number = LAYER.search(name)
        pattern = LAYER.sub("{}", name, count=1)
        layers.setdefault(pattern, []).extend([int(number[0])] if number else [])
    return {pattern: ranges(numbers) for pattern, numbers in layers.items()}


def compact(value: t.Any) -> t.Any:
    """A value in fewer words; tests/doubles/model_fields.py undoes it."""
    if isinstance(value, dict):
        if len(value) > SHORT and any(LAYER.search(key) for key in value):
            said = sorted({json.dumps(each, sort_keys=True) for each in value.values()})
            return {
                "_modules": [
                    [by_layer(key for key in value if json.dumps(value[key], sort_keys=True) == one), json.loads(one)] for one in said
                ]
            }
        return {key: compact(each) for key, each in value.items()}
    if not isinstance(value, list) or len(value) <= SHORT:
        return value
    if all(isinstance(each, str) and "." in each for each in value if each != "lm_head"):
        return {"_names": by_layer(value)}
    for size in range(1, len(value) // 2 + 1):
        if all(value[index] == value[index % size] for index in range(len(value))):
            return {"_cycle": value[:size], "length": len(value)}
    runs: list[list[t.Any]] = []
    for each in value:
        if runs and runs[-1][0] == each:
            runs[-1][1] += 1
        else:
            runs.append([each, 1])
    return {"_runs": runs}


def fields(directory: pathlib.Path) -> dict[str, t.Any]:
    """What the plan reads of one model's files."""
    config = Recorded(json.loads((directory / "config.json").read_text(encoding="utf-8")))
    path = directory / "hf_quant_config.json"
    quant = Recorded(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
    problems = _model_config.read(config, quant)[1]
    if problems:
        sys.exit(f"{directory}: " + "; ".join(problems))
    return {"config": compact(config.read()), **({"hf_quant_config": compact(quant.read())} if quant is not None else {})}


def main() -> None:
    """Write what the directories say."""
    result = {}
    for name in sorted(sys.argv[1:]):
        directory = pathlib.Path(name)
        result[directory.name] = fields(directory)
        counts = directory.parent / "params.json"
        exact = json.loads(counts.read_text(encoding="utf-8")).get(directory.name) if counts.exists() else None
        if exact:
            result[directory.name]["parameters"] = exact["parts"]
    lines = [f" {json.dumps(name)}: {json.dumps(value, sort_keys=True)}" for name, value in result.items()]
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
