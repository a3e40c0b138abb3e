# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Fields of real models (tests/fixtures/models, written by tools/model_fields.py) as their config.json has them."""

from __future__ import annotations

import json
import pathlib
import typing as t

MODELS = pathlib.Path(__file__).resolve().parents[1] / "fixtures/models/models.json"


def load() -> dict[str, dict[str, t.Any]]:
    """Every model: config, hf_quant_config where it has one, parameters (exact counts by part) where they are known."""
    return {name: expand(value) for name, value in json.loads(MODELS.read_text(encoding="utf-8")).items()}


def numbers(text: str) -> list[int]:
    """0-3,7 -> 0, 1, 2, 3, 7."""
    spans = [span.split("-") for span in text.split(",")]
    return [number for span in spans for number in range(int(span[0]), int(span[-1]) + 1)]


def names(patterns: dict[str, str]) -> list[str]:
    """Names of modules, with the numbers of their layers."""
    return [
        name for pattern, layers in patterns.items() for name in ([pattern.format(n) for n in numbers(layers)] if layers else [pattern])
    ]


def expand(value: t.Any) -> t.Any:
    """A value as it was before it was written in fewer words."""
    if isinstance(value, list):
        return [expand(each) for each in value]
    if not isinstance(value, dict):
        return value
    written: dict[str, t.Callable[[], t.Any]] = {
        "_names": lambda: names(value["_names"]),
        "_modules": lambda: {name: said for patterns, said in value["_modules"] for name in names(patterns)},
        "_cycle": lambda: [value["_cycle"][index % len(value["_cycle"])] for index in range(value["length"])],
        "_runs": lambda: [each for each, count in value["_runs"] for _again in range(count)],
    }
    short = next((key for key in written if key in value), None)
    return written[short]() if short else {key: expand(each) for key, each in value.items()}
