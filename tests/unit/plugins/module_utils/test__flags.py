from __future__ import annotations

import argparse
import datetime
import json

import flag_samples
import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _flag_renames, _flags
from ansible_collections.firstlight.sglang.plugins.plugin_utils import flag_tables
from hypothesis import given
from hypothesis import strategies as st

HISTORY = flag_tables.history()
TABLE = flag_tables.table("0.5.23")
GONE = [name for name, span in HISTORY.spans.items() if span.last != HISTORY.releases[-1]]


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


@pytest.mark.parametrize("release", HISTORY.releases)
def test_every_release_has_its_table(release):
    table = flag_tables.table(release)
    assert len(table.options) > 300
    assert {"model_path", "tp_size", "mem_fraction_static", "context_length"} <= set(table.by_name)
    assert table.by_name["mem_fraction_static"]["type"] == "float"
    for option in table.options:
        assert option["kind"] in ("switch", "boolean", "value")
        assert (option["type"] is None) == (option["kind"] != "value")
        assert all(flag.startswith("--") and not flag.startswith("---") for flag in option["flags"])


def test_a_release_that_is_not_in_the_data_has_no_table():
    assert flag_tables.table("0.5.7") is None


@pytest.mark.parametrize(
    ("release", "name", "field", "value"),
    [
        ("0.5.8", "mamba_scheduler_strategy", "choices", ["auto", "extra_buffer", "no_buffer"]),
        ("0.5.14", "mamba_scheduler_strategy", "deprecated", True),
        ("0.5.14", "mamba_scheduler_strategy", "dest", "mamba_radix_cache_strategy"),
        ("0.5.23", "max_prefill_tokens", "default", 16384),
        ("0.5.23", "dllm_fdfo", "default", True),
        ("0.5.23", "model_checksum", "const", ""),
        ("0.5.23", "disable_cuda_graph", "deprecated", True),
        ("0.5.23", "cuda_graph_backend_prefill", "choices", ["breakable", "disabled", "full"]),
        ("0.5.19", "speculative_algorithm", "default", None),
    ],
)
def test_a_table_has_types_choices_and_defaults(release, name, field, value):
    assert flag_tables.table(release).by_name[name][field] == value


def test_what_goes_without_saying_comes_back():
    for table in map(flag_tables.table, HISTORY.releases):
        for option in table.options:
            assert _flags.complete(_flags.compact(option)) == option


@pytest.mark.parametrize("name", GONE)
def test_of_every_flag_that_went_away_is_told_when_and_what_to_do(name):
    message = _flags.unknown_flag(TABLE, name)
    assert message.startswith(f"was removed in SGLang {HISTORY.removed_in(name)}; ")
    told = _flags.instead(TABLE, name)
    if told.startswith("write "):
        assert told.split()[1].rstrip(":") in TABLE.by_name
    else:
        assert name in _flag_renames.INSTEAD, "say in INSTEAD what took its place, or that nothing did"
        assert told.endswith("leave it out")


def test_nothing_is_told_of_a_flag_that_is_there():
    assert set(_flag_renames.INSTEAD) - set(GONE) == set(_flag_renames.BEFORE_TABLES)
    for name, told in _flag_renames.INSTEAD.items():
        assert told.source.startswith("0.5.") or told.source.startswith("the "), name


@pytest.mark.parametrize(
    ("release", "name", "message"),
    [
        ("0.5.23", "cuda_graph_max_bs", "was removed in SGLang 0.5.20; write cuda_graph_max_bs_decode"),
        ("0.5.23", "nsa_prefill_backend", "was removed in SGLang 0.5.20; write dsa_prefill_backend"),
        ("0.5.23", "disable_piecewise_cuda_graph", "was removed in SGLang 0.5.20; write cuda_graph_backend_prefill: disabled"),
        ("0.5.23", "enable_flashinfer_autotune", "was removed in SGLang 0.5.7; nothing took its place (it is on; "),
        ("0.5.23", "stream_output", "was removed in SGLang 0.5.20; write incremental_streaming_output"),
        ("0.5.12", "enable_double_sparsity", "was removed in SGLang 0.5.11; nothing took its place"),
        ("0.5.12", "mamba_radix_cache_strategy", "came with SGLang 0.5.14 and this is 0.5.12; write mamba_scheduler_strategy"),
        ("0.5.12", "cuda_graph_bs_decode", "came with SGLang 0.5.14 and this is 0.5.12; write cuda_graph_bs"),
        ("0.5.12", "default_chat_template_kwargs", "came with SGLang 0.5.16 and this is 0.5.12; leave it out"),
        ("0.5.23", "model_type", "belongs to `sglang serve`"),
        ("0.5.23", "reasoning-parser", "is spelled reasoning_parser here"),
        ("0.5.23", "--reasoning-parser", "is spelled reasoning_parser here"),
        ("0.5.23", "enable_reasoning", "is not a flag of SGLang 0.5.23; did you mean"),
    ],
)
def test_an_unknown_flag_is_told_where_it_is(release, name, message):
    assert message in _flags.unknown_flag(flag_tables.table(release), name)


CONVERTERS = {"str": str, "nullable_str": str, "int": int, "float": float, "loads": json.loads, "json_list_type": json.loads}


def parser_of(table):
    """A parser of argparse with the options of a table and its converters as far as they are plain ones."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in table.options:
        if option["kind"] == "switch":
            parser.add_argument(*option["flags"], dest=option["dest"], action="store_true")
        elif option["kind"] == "boolean":
            parser.add_argument(option["flags"][0], dest=option["dest"], action=argparse.BooleanOptionalAction)
        else:
            converter = CONVERTERS.get(option["type"], str)
            choices = [converter(choice) for choice in option["choices"]] if option["choices"] else None
            how = {"type": converter, "nargs": option["nargs"], "choices": choices, "const": option["const"]}
            parser.add_argument(*option["flags"], dest=option["dest"], **{key: value for key, value in how.items() if value is not None})
    return parser


@pytest.mark.parametrize("release", HISTORY.releases)
def test_every_flag_of_every_release_comes_back_from_argparse(release):
    """Its own parsers are asked in tests/e2e/test_flags.py."""
    table = flag_tables.table(release)
    parser = parser_of(table)
    for name, option in table.by_name.items():
        if name in flag_samples.SPECIAL or option["type"] == "human_readable_int":
            continue
        for value, parsed in flag_samples.samples(option, name):
            words, problems = _flags.check_args(table, {name: value}, {})
            assert problems == []
            assert getattr(parser.parse_args(words), option["dest"]) == parsed, (name, value)


@pytest.mark.parametrize(
    "args",
    [
        {"mem_fraction_static": float("nan")},
        {"mem_fraction_static": "inf"},
        {"mem_fraction_static": 10**400},
        {"context_length": "8x"},
        {"context_length": "1.5Ki"},
        {"context_length": "-1"},
        {"default_chat_template_kwargs": {"a": float("nan")}},
        {"default_chat_template_kwargs": {"a": datetime.date(2026, 1, 1)}},
        {"default_chat_template_kwargs": {"a": 1, 2: 3}},
        {"default_chat_template_kwargs": "[" * 100_000},
        {"uvicorn_access_log_exclude_prefixes": ["-x"]},
    ],
    ids=str,
)
def test_what_no_command_line_can_carry_is_refused(args):
    words, problems = _flags.check_args(TABLE, args, {})
    assert (words, len(problems)) == ([], 1)
    assert ": expected " in problems[0]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(sorted(HISTORY.spans)) | st.text() | st.integers() | st.none()


@given(release=st.sampled_from(HISTORY.releases), args=st.dictionaries(NAMES, ANYTHING, max_size=6), extra=ANYTHING)
def test_garbage_gives_words_or_problems_and_never_an_exception(release, args, extra):
    table = flag_tables.table(release)
    words, problems = _flags.check_args(table, args, {"port": "set port"})
    assert all(isinstance(text, str) for text in words + problems)
    assert all(problem.startswith("args.") for problem in problems)
    assert all(isinstance(problem, str) for problem in _flags.check_extra_args(table, extra, {"port": "set port"}))
