# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""From a question in plain data to its plan: the one place where what an operator gives meets the sizing."""

from __future__ import annotations

import dataclasses
import json
import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import (
    _flag_facts,
    _model_config,
    _model_weights,
    _plan,
    _plan_defaults,
    _plan_report,
)
from ansible_collections.firstlight.sglang.plugins.module_utils._model import Model
from ansible_collections.firstlight.sglang.plugins.module_utils._plan_question import Question

_MEASURED = ("avail_before_weights_gib", "weights_gib", "draft_weights_gib", "free_after_load_gib")
# Share of the memory by which numbers of one start may disagree: other programs move, and unified memory counts the page cache.
_DISAGREE = 0.05


def _absent(names: t.Iterable[str]) -> list[str]:
    """Files of a checkpoint that its own files' names (model-00001-of-00005) say are missing."""
    found = [re.fullmatch(r"(.*-)(\d+)(-of-)(\d+)(\.safetensors)", name) for name in names]
    known = {match[0] for match in found if match}
    sets = {(match[1], len(match[2]), match[3] + match[4] + match[5], int(match[4])) for match in found if match}
    return [
        name
        for start, width, end, count in sorted(sets)
        for name in (f"{start}{number:0{width}d}{end}" for number in range(1, min(count, 10_000) + 1))
        if name not in known
    ]


def _weighed(question: Question, model: Model) -> tuple[Model, str, list[str], list[str]]:
    """(the model with the weights of its files, headers | config, notes, problems)."""
    tensors: dict[str, t.Any] = {}
    problems: list[str] = []
    for name, data in question.headers.items():
        found, wrong = _model_weights.read_header(name, data)
        tensors.update(found)
        problems += wrong
    size: int | None = None
    names: list[str] = []
    if question.index is not None:
        size, names, wrong = _model_weights.read_index(question.index)
        problems += wrong
    if problems:
        return model, "config", [], problems
    missing = [name for name in names if name not in tensors]
    absent = [] if question.index is not None else _absent(question.headers)
    if absent:
        return (
            model,
            "config",
            [f"{len(absent)} files of the checkpoint are missing ({absent[0]}); weights are those of the configuration"],
            [],
        )
    if tensors and not missing:
        made, notes = _model_weights.with_tensors(model, tensors)
        return made, "headers", notes, []
    if size is not None:
        made, notes = _model_weights.with_index(model, size, names)
        return made, "headers", notes, []
    return model, "config", [], []


def _beyond(question: Question) -> list[str]:
    """Measured numbers that no GPU of the question can have, each by itself and together."""
    most = max(gpu.memory_total_mib for gpu in question.gpus) / 1024
    given = {name: question.given[name] for name in _MEASURED if question.given[name] is not None}
    problems = [
        f"given: expected {name} to be at most the GPU's {most:.2f} GiB, found {gib:g}" for name, gib in given.items() if gib > most
    ]
    together = [name for name in given if name != "avail_before_weights_gib"]
    if not _plan_defaults.since(question.release, "0.5.14"):  # the draft is loaded after that free memory is printed
        together = [name for name in together if name != "draft_weights_gib"]
    least = given.get("avail_before_weights_gib", most)
    taken = sum(given[name] for name in together)
    if not problems and taken > least * (1 + _DISAGREE):
        parts = " and ".join(f"{name} {given[name]:g}" for name in together)
        problems.append(f"given: expected {parts} to be at most {least:.2f} GiB together, found {taken:g}")
    return problems


def _overridden(question: Question) -> tuple[t.Mapping[str, t.Any], list[str]]:
    """(config.json as --json-model-override-args changes it, problems).

    SGLang 0.5.23 utils/hf_transformers/config.py:411: a dictionary goes into the part of that name, anything else takes its place.
    """
    text = question.args.get("json_model_override_args")
    if text is None:
        return question.config, []
    try:
        changes = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        changes = None
    if not isinstance(changes, dict):
        return question.config, [f"args: --json-model-override-args: expected a JSON object, found {str(text)[:60]!r}"]
    config = dict(question.config)
    for key, value in changes.items():
        part = config.get(key)
        config[key] = {**part, **value} if isinstance(value, dict) and isinstance(part, dict) else value
    return config, []


def answer(question: Question) -> tuple[dict[str, t.Any] | None, list[str]]:
    """The plan as plain data (docs/design.md), or what is wrong with the model."""
    config, beyond = _overridden(question)
    model, problems = _model_config.read(config, question.quant_config)
    beyond += _beyond(question)
    if model is None:
        return None, [f"{question.name}: {problem}" for problem in problems] + beyond
    model, source, notes, problems = _weighed(question, model)
    if problems or beyond:
        return None, [f"{question.name}: {problem}" for problem in problems] + beyond
    # a fraction that was measured is what the engine ran with, whatever its flags say
    fraction = question.given["mem_fraction_static"]
    args = question.args if fraction is None else {**question.args, "mem_fraction_static": fraction}
    args = _flag_facts.canonical(args)  # older releases have other destinations (tensor_parallel_size)
    request = _plan.Request(
        model=model,
        release=question.release,
        gpus=tuple(_plan.Gpu(**dataclasses.asdict(gpu)) for gpu in question.gpus),
        args=args,
        given=_plan.Given(**question.given),
        want=_plan.Want(**question.want),
        environment=question.environment,
    )
    disk_gib = _model_weights.disk_bytes(model) / _model_weights.GIB
    plan = _plan_report.report(request, question.name, question.source, source, _model_weights.parameters(model), disk_gib)
    plan["args"] = dict(question.args)
    spelled = {new: old for old in question.args for new in _flag_facts.canonical({old: True})}
    for one in plan["alternatives"]:  # by the names that the flags were given
        one["args"] = {spelled.get(name, name): value for name, value in one["args"].items()}
    said = {change["args"].get("mem_fraction_static", fraction) for change in (plan, *plan["alternatives"])}
    if fraction is not None and said != {fraction}:
        notes = [*notes, f"the measured mem_fraction_static {fraction} stands over the flag: leave it out to ask again with another"]
    plan["warnings"] = [*plan["warnings"], *notes, *question.notes]
    return plan, []
