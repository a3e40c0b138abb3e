"""From a resolved instance to the question of its plan."""

from __future__ import annotations

import gpu_results
import pytest
from ansible_collections.firstlight.sglang.plugins.plugin_utils import plan_instances, plan_model

INSTANCE = {
    "name": "q",
    "model": {"name": "Qwen/Qwen3-8B", "source": "hub", "revision": None, "path": None},
    "gpus": [0, 1],
    "environment": {"release": "0.5.23", "variant": "cuda"},
    "argv": ["/opt/x/bin/sglang", "serve", "--model-type", "llm", "--model-path", "/m", "--port", "30000", "--tp-size", "2"],
}


def find(instance):
    return plan_model.Found(instance["model"]["name"], "hub", {"a": 1})


def ask(cards, want=None, given=None, **changes):
    return plan_instances.ask({**INSTANCE, **changes}, cards, want or {}, given or {}, find)


def test_flags_of_the_command_line_without_the_model():
    assert plan_instances.flag_words(INSTANCE["argv"]) == ["--model-type", "llm", "--port", "30000", "--tp-size", "2"]


def test_names_of_gpus_are_chosen_as_the_instance_says():
    asked, problems = ask("4x rtx-a6000", {"context": 5}, gpus=[1, 3])
    assert problems == []
    assert ([gpu.index for gpu in asked.gpus], asked.args["tp_size"], asked.want) == ([1, 3], 2, {"context": 5, "concurrency": None})
    assert (asked.name, asked.source, asked.config, asked.release) == ("Qwen/Qwen3-8B", "hub", {"a": 1}, "0.5.23")
    assert [gpu.index for gpu in ask("4x rtx-a6000", gpus=[])[0].gpus] == [0, 1, 2, 3]
    assert [gpu.index for gpu in ask("4x rtx-a6000", gpus=["GPU-1"])[0].gpus] == [0, 1, 2, 3], "a UUID is of no name"
    assert ask("1x rtx-a6000")[1] == ["gpus: expected GPU 1, found 1 in 1x rtx-a6000"]


def test_the_environment_of_the_service_counts():
    assert ask("2x t4", unit_environment={"A": "1"})[0].environment == {"A": "1"}


def test_what_a_running_sglang_holds_is_not_others():
    host = gpu_results.two_a6000()
    held = [{"pid": 7, "name": "sglang::scheduler_TP0", "type": "C", "memory_used_mib": 40000}]
    host["gpus"][0].update(memory_used_mib=43000, processes=held)
    asked, problems = ask(host)
    assert (problems, [gpu.used_mib for gpu in asked.gpus]) == ([], [3000, host["gpus"][1]["memory_used_mib"] or 0])


def test_a_flag_of_a_plug_in_is_told_and_not_counted():
    asked, problems = ask("2x rtx-a6000", argv=[*INSTANCE["argv"], "--plug-in-flag", "x"])
    assert problems == []
    assert any("--plug-in-flag" in note and "(not counted)" in note for note in asked.notes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpus": "nonsense"}, "gpus: nonsense: not a GPU"),
        ({"gpus": None}, "gpus: expected the result of gpu_info"),
        ({"want": {"context": 0}}, "want: expected context"),
        ({"given": {"weights_gib": -1}}, "given: expected weights_gib"),
    ],
)
def test_mistakes(changes, words):
    _asked, problems = ask(changes.get("gpus", "2x t4"), changes.get("want"), changes.get("given"))
    assert any(words in problem for problem in problems), problems


def test_a_release_and_a_model_that_are_not_known_are_told_together():
    def none(_instance):
        raise plan_model.ModelError("no model")

    _asked, problems = plan_instances.ask({**INSTANCE, "environment": {"release": "0.1", "variant": "cuda"}}, "2x t4", {}, {}, none)
    assert len(problems) == 2
    assert problems[0].startswith("release: expected one of 0.5.8")
    assert problems[1] == "no model"
