# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a resolved instance to the question of its plan."""

from __future__ import annotations

import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _plan_gpus, _plan_question
from ansible_collections.firstlight.sglang.plugins.plugin_utils import flag_tables, plan_model


def on_cpu(instance: t.Mapping[str, t.Any]) -> bool:
    return bool(instance["environment"]["variant"] == "cpu")


def flag_words(argv: t.Sequence[str]) -> list[str]:
    """SGLang's flags of an instance's command line, without the program and the model, which a plan has from elsewhere."""
    words = list(argv[argv.index("serve") + 1 :])
    place = words.index("--model-path")
    return words[:place] + words[place + 2 :]


def gpus_of(instance: t.Mapping[str, t.Any], gpus: t.Any) -> _plan_gpus.Gpus:
    """The instance's GPUs, of the result of gpu_info or of names."""
    chosen = instance.get("gpus") or None
    if not isinstance(gpus, str):
        return _plan_gpus.by_inventory(gpus, chosen)
    found = _plan_gpus.by_name(gpus)
    if not chosen or not all(isinstance(one, int) for one in chosen) or found.problems:
        return found
    missing = [str(index) for index in chosen if index >= len(found.gpus)]
    if missing:
        return _plan_gpus.Gpus(problems=(f"expected GPU {', '.join(missing)}, found {len(found.gpus)} in {gpus}",))
    return _plan_gpus.Gpus(tuple(found.gpus[index] for index in chosen), found.notes)


def ask(
    instance: t.Mapping[str, t.Any],
    gpus: t.Any,
    want: t.Mapping[str, t.Any],
    given: t.Mapping[str, t.Any],
    find: t.Callable[[t.Mapping[str, t.Any]], plan_model.Found],
) -> tuple[_plan_question.Question | None, list[str]]:
    """The question, or every mistake in it. find: the model of an instance."""
    wants, problems = _plan_question.check_want(want)
    givens, wrong = _plan_question.check_given(given)
    cards = gpus_of(instance, gpus)
    problems += [f"gpus: {problem}" for problem in cards.problems] + wrong
    release = str(instance["environment"]["release"])
    table = flag_tables.table(release)
    args, notes = {}, list(cards.notes)
    if table is None:
        problems.append(f"release: expected one of {', '.join(flag_tables.history().releases)}, found {release}")
    else:
        # The lookup has checked what can be wrong; what is left are flags of a plug-in.
        args, unread = _plan_question.read_args(table, flag_words(instance["argv"]))
        notes += [f"{problem} (not counted)" for problem in unread]
    try:
        found = find(instance)
    except plan_model.ModelError as error:
        found = None
        problems.append(str(error))
    if problems or found is None:
        return None, problems
    files = {"quant_config": found.quant_config, "headers": found.headers, "index": found.index}
    model = (str(instance["model"]["name"]), found.source, found.config)
    environment = instance.get("unit_environment") or {}
    return _plan_question.Question(
        *model, cards.gpus, release, args, wants, givens, **files, environment=environment, notes=tuple(notes)
    ), []
