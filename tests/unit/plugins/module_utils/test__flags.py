from __future__ import annotations

import json
import pathlib

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _flags

DATA = pathlib.Path(__file__).parents[4] / "plugins/plugin_utils/data/flags/0.5.23.json"
TABLE = _flags.FlagTable(json.loads(DATA.read_text()))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"tp_size": 2}, ["--tp-size", "2"]),
        ({"tensor_parallel_size": 2}, ["--tensor-parallel-size", "2"]),
        ({"mem_fraction_static": 0.85}, ["--mem-fraction-static", "0.85"]),
        ({"mem_fraction_static": 1}, ["--mem-fraction-static", "1"]),
        ({"enable_metrics": True}, ["--enable-metrics"]),
        ({"enable_metrics": False}, []),
        ({"lora_strict_loading": True}, ["--lora-strict-loading"]),
        ({"lora_strict_loading": False}, ["--no-lora-strict-loading"]),
        ({"context_length": "8k"}, ["--context-length", "8k"]),
        ({"context_length": None}, []),
        ({"default_chat_template_kwargs": {"enable_thinking": False}}, ["--default-chat-template-kwargs", '{"enable_thinking":false}']),
        ({"default_chat_template_kwargs": '{"a": 1}'}, ["--default-chat-template-kwargs", '{"a":1}']),
        ({"cuda_graph_bs_decode": [1, 2, 4]}, ["--cuda-graph-bs-decode", "1", "2", "4"]),
        ({"kv_cache_dtype": "fp8_e5m2"}, ["--kv-cache-dtype", "fp8_e5m2"]),
        ({"tp_size": 2, "dtype": "bfloat16"}, ["--tp-size", "2", "--dtype", "bfloat16"]),
    ],
)
def test_valid_flags_are_rendered_in_the_order_given(args, words):
    assert _flags.check_args(TABLE, args, {}) == (words, [])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"tp_sise": 2}, "args.tp_sise: is not a flag of SGLang 0.5.23; did you mean tp_size"),
        ({"tp-size": 2}, "args.tp-size: is spelled tp_size here (snake_case of the flag)"),
        ({"xyzzy_plugh": 1}, "`sglang serve --help` lists them"),
        ({"mamba_scheduler_strategy": "extra_buffer"}, "was removed in SGLang 0.5.20; write mamba_radix_cache_strategy"),
        ({"tp_size": "two"}, "args.tp_size: expected a whole number, found 'two' (str)"),
        ({"tp_size": 2.5}, "expected a whole number, found 2.5 (float)"),
        ({"tp_size": True}, "expected a whole number, found True (bool)"),
        ({"tp_size": [2]}, "expected a whole number, found [2] (list)"),
        ({"mem_fraction_static": "most"}, "expected a number, found 'most' (str)"),
        ({"enable_metrics": "yes"}, "expected true or false, found 'yes' (str)"),
        ({"kv_cache_dtype": "fp9"}, "expected one of auto, "),
        ({"cuda_graph_bs_decode": 4}, "expected a list, each element a whole number"),
        ({"cuda_graph_bs_decode": []}, "expected a list, each element a whole number"),
        ({"cuda_graph_bs_decode": [1, "x"]}, "expected a list, each element a whole number"),
        ({"default_chat_template_kwargs": "{"}, "expected a dictionary"),
        ({"default_chat_template_kwargs": [1]}, "expected a dictionary"),
        ({"dtype": ""}, "expected"),
        ({"tp_size": 2, "tensor_parallel_size": 2}, "the same flag as args.tp_size"),
        ({"port": 1}, "this flag follows from the instance; set port"),
        ({"model": "x"}, "this flag follows from the instance; set model"),
    ],
)
def test_a_mistake_says_what_was_expected_and_found(args, message):
    _words, problems = _flags.check_args(TABLE, args, {"port": "set port", "model_path": "set model"})
    assert len(problems) == 1
    assert message in problems[0]


def test_all_mistakes_are_told_at_once():
    _words, problems = _flags.check_args(TABLE, {"tp_sise": 2, "dtype": 3.5, "enable_metrics": 1}, {})
    assert [problem.split(":")[0] for problem in problems] == ["args.tp_sise", "args.dtype", "args.enable_metrics"]


@pytest.mark.parametrize(
    ("extra_args", "problems"),
    [
        (["--tp-size", "2"], 0),
        (["--a-plugin-flag", "2"], 0),
        (["--port=3"], 1),
        (["--port", "3", "--api-key", "x"], 2),
        (["--por", "3"], 1),
        (["--api-k=x"], 1),
        (["--tp", "2"], 1),
        (["--tp-size=2", "--"], 0),
        ("--port 3", 1),
        ([1], 1),
    ],
)
def test_extra_args(extra_args, problems):
    assert len(_flags.check_extra_args(TABLE, extra_args, {"port": "set port", "api_key": "set api_key_variable"})) == problems


def test_every_new_name_exists_and_no_old_one_does():
    for old, (_release, new) in _flags.RENAMED.items():
        assert old not in TABLE.by_name
        assert new in TABLE.by_name
