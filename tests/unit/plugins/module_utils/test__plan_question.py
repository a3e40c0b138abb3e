"""What an operator asks of a plan, as text: SGLang's flags, wishes, measured numbers."""

from __future__ import annotations

import shlex

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _flags, _plan_question
from ansible_collections.firstlight.sglang.plugins.plugin_utils import flag_tables
from hypothesis import given
from hypothesis import strategies as st

TABLE = flag_tables.table("0.5.23")


@pytest.mark.parametrize(
    ("line", "args"),
    [
        ("", {}),
        ("--tp-size 2", {"tp_size": 2}),
        ("--tp-size=2", {"tp_size": 2}),
        ("--tensor-parallel-size 2", {"tp_size": 2}),
        ("--mem-fraction-static 0.88 --enable-metrics", {"mem_fraction_static": 0.88, "enable_metrics": True}),
        ("--cuda-graph-bs-decode 1 2 4 --tp-size 2", {"cuda_graph_bs_decode": [1, 2, 4], "tp_size": 2}),
        ("--chunked-prefill-size -1", {"chunked_prefill_size": -1}),
        ("--context-length 128k", {"context_length": 128_000}),
        ("--context-length 128Ki", {"context_length": 131_072}),
        ("""--json-model-override-args '{"a": [1, 2]}'""", {"json_model_override_args": '{"a": [1, 2]}'}),
        ("--model-type llm --tp-size 2", {"tp_size": 2}),
        ("--speculative-algorithm NEXTN --kv-cache-dtype fp8_e4m3", {"speculative_algorithm": "NEXTN", "kv_cache_dtype": "fp8_e4m3"}),
    ],
)
def test_flags_as_on_the_command_line(line, args):
    words, problems = _plan_question.words_of(line)
    assert problems == []
    assert _plan_question.read_args(TABLE, words) == (args, [])


def test_every_boolean_can_be_turned_off():
    booleans = [option for option in TABLE.options if option["kind"] == "boolean"]
    assert booleans
    for option in booleans:
        off = next(flag for flag in option["flags"] if flag.startswith("--no-"))
        assert _plan_question.read_args(TABLE, [off]) == ({option["dest"]: False}, [])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--cuda-graph-bs 8", "--cuda-graph-bs: was removed in SGLang 0.5.20"),
        ("--tp_size 2", "--tp_size: is spelled --tp-size"),
        ("--tp-size two", "--tp-size: expected a whole number, found 'two'"),
        ("--tp-size", "--tp-size: expected a value, found none"),
        ("--tp-size -2", "--tp-size: expected 1 to 1024, found -2"),
        ("--context-length 99999999999999", "--context-length: expected 1 to"),
        ("--mem-fraction-static 1.5", "--mem-fraction-static: expected 0.01 to 0.999, found 1.5"),
        ("--mem-fraction-static nan", "--mem-fraction-static: expected a number, found nan"),
        ("--tp-size 2 --tensor-parallel-size 4", "--tensor-parallel-size: the same flag as --tp-size; keep one of the two"),
        ("--enable-metrics=1", "--enable-metrics: expected no value, found '1'"),
        ("--enable-metrics yes", "expected a flag, found 'yes'"),
        ("--kv-cache-dtype fp9", "--kv-cache-dtype: expected one of auto,"),
        ("--mamba-scheduler-strategy extra_buffer", "was removed in SGLang 0.5.20; write mamba_radix_cache_strategy"),
        ("--tp-sise 2", "--tp-sise: is not a flag of SGLang 0.5.23; did you mean tp_size"),
        ("--model-path x", "the model of a plan is named by itself"),
        ("-tp 2", "'-tp': expected a flag such as --tp-size"),
        ("sglang serve", "expected a flag, found 'sglang'"),
        ("--context-length 99999999999999999999", "--context-length: expected 1 to 100000000, found 1e+20"),
        (f"--max-total-tokens {'9' * 40}", "--max-total-tokens: expected 1 to 10000000000, found '9999999999"),
        ("--cuda-graph-bs-decode 8 -5", "--cuda-graph-bs-decode: expected 1 to 65536, found -5"),
        ("--cpu-offload-gb -5", "--cpu-offload-gb: expected 0 to 100000, found -5"),
        ("--context-length 1.5Ki", "--context-length: expected a whole number, or text such as 8k"),
    ],
)
def test_what_the_release_does_not_take(line, words):
    _args, problems = _plan_question.read_args(TABLE, shlex.split(line))
    assert any(words in problem for problem in problems), problems
    assert all(problem.startswith("args: ") for problem in problems)


@pytest.mark.parametrize(("line", "args"), [("--tp 2", {"tp_size": 2}), ("--mem-frac=0.8", {"mem_fraction_static": 0.8})])
def test_the_beginning_of_one_flag_only_stands_for_it(line, args):
    assert _plan_question.read_args(TABLE, line.split()) == (args, [])


@pytest.mark.parametrize(
    ("switch", "backend"),
    [("disable", "disabled"), ("enforce", "tc_piecewise")],
)
def test_switches_that_stand_for_a_backend_of_graphs(switch, backend):
    """0.5.14 to 0.5.19: the switch sets cuda_graph_backend_prefill, on the command line and in an instance alike."""
    table = flag_tables.table("0.5.16")
    name = f"{switch}_piecewise_cuda_graph"
    expected = ({"cuda_graph_backend_prefill": backend}, [])
    assert _plan_question.read_args(table, [f"--{name.replace('_', '-')}"]) == expected
    assert _plan_question.by_destination(table, {name: True}) == expected
    assert _plan_question.read_args(flag_tables.table("0.5.13"), ["--disable-piecewise-cuda-graph"])[0] == {
        "disable_piecewise_cuda_graph": True
    }


def test_flags_of_an_entry_take_the_names_of_another_release():
    older = flag_tables.table("0.5.12")
    args = {"mamba_radix_cache_strategy": "extra_buffer", "cuda_graph_max_bs_decode": 8, "tp_size": 2, "enable_linear_replayssm_spec": True}
    made, notes = _plan_question.for_release(older, args)
    assert made == {"mamba_scheduler_strategy": "extra_buffer", "cuda_graph_max_bs": 8, "tp_size": 2}
    assert notes == ["left out, since SGLang 0.5.12 does not have it: --enable-linear-replayssm-spec"]


def test_all_mistakes_of_a_line_are_told_at_once():
    _args, problems = _plan_question.read_args(TABLE, ["--cuda-graph", "2", "--page-size", "x", "--mem-fraction-static", "3", "foo"])
    assert len(problems) == 4


def test_quotes_that_are_not_closed():
    assert "close the quotes" in _plan_question.words_of("--a 'b")[1][0]


@pytest.mark.parametrize("option", TABLE.options, ids=lambda option: option["dest"])
def test_what_the_renderer_writes_is_read_back(option):
    """Every option of the release: from a value to words, and from the words to the same value."""
    name = _flags.names(option)[0]
    kinds = {"int": 7, "float": 0.5, "human_readable_int": 4096, "loads": {"a": 1}, "json_list_type": [1]}
    one = option["choices"][0] if option["choices"] else kinds.get(option["type"], "word")
    value = True if option["kind"] != "value" else one
    if isinstance(one, str) and option["type"] == "int":
        value = one = int(one)
    value = [one, one] if option["nargs"] in ("+", "*") else value
    words, expected = _flags.render(option, name, value)
    if expected is None and name not in ("model_path", "model"):
        assert _plan_question.read_args(TABLE, words) == ({option["dest"]: value}, [])


def test_flags_of_an_instance_by_destination():
    args = {"tensor_parallel_size": 2, "context_length": "128Ki", "speculative_algorithm": None, "enable_metrics": True}
    assert _plan_question.by_destination(TABLE, args) == ({"tp_size": 2, "context_length": 131_072, "enable_metrics": True}, [])
    assert "is not a flag" in _plan_question.by_destination(TABLE, {"nonsense": 1})[1][0]
    assert "expected 1 to 1024" in _plan_question.by_destination(TABLE, {"tp_size": 0})[1][0]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", (None, None)),
        ("context=131072 concurrency=4", (131072, 4)),
        ("context=128Ki,concurrency=4", (131072, 4)),
        ("  concurrency=1 ", (None, 1)),
    ],
)
def test_wishes(text, want):
    found, problems = _plan_question.read_want(text)
    assert (problems, found) == ([], {"context": want[0], "concurrency": want[1]})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("context=-1", "expected context as a whole number from 1"),
        ("context=1.5", "expected context as a whole number"),
        ("concurrency=0", "expected concurrency as a whole number from 1"),
        ("contxt=5", "expected context=<number>, concurrency=<number>, found 'contxt=5'"),
        ("context", "found 'context'"),
        ("context=1 context=2", "context is given twice"),
    ],
)
def test_wishes_that_are_none(text, words):
    assert words in _plan_question.read_want(text)[1][0]


def test_measured_numbers():
    found, problems = _plan_question.read_given("avail_before_weights_gib=46.58 weights_gib=26.9 draft_weights_gib=0")
    assert problems == []
    assert {key: value for key, value in found.items() if value is not None} == {
        "avail_before_weights_gib": 46.58,
        "weights_gib": 26.9,
        "draft_weights_gib": 0.0,
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("weights_gib=-3", "expected weights_gib as a number from 0.001 to 100000"),
        ("weights_gib=0", "expected weights_gib as a number from 0.001 to 100000"),
        ("weights_gib=inf", "expected weights_gib"),
        ("mem_fraction_static=1", "from 0.01 to 0.999"),
        ("mem_fraction_static=88", "from 0.01 to 0.999"),
        ("avail=3", "expected avail_before_weights_gib=<number>, weights_gib=<number>"),
        (
            "avail_before_weights_gib=10 free_after_load_gib=20",
            "expected free_after_load_gib to be at most avail_before_weights_gib 10, found 20",
        ),
        ("weights_gib=1_0", "found '1_0'"),
        ("weights_gib=\u0661\u0662", "expected weights_gib as a number"),
    ],
)
def test_measured_numbers_that_are_none(text, words):
    assert words in _plan_question.read_given(text)[1][0]


@given(st.text(max_size=80))
def test_any_text_is_read_without_a_traceback(text):
    words, problems = _plan_question.words_of(text)
    assert not (words and problems)
    args, told = _plan_question.read_args(TABLE, words)
    assert args or told or not words, "a word is read or told of"
    for read in (_plan_question.read_want, _plan_question.read_given):
        values, _told = read(text)
        assert all(value is None or value >= 0 for value in values.values())


NAMES = st.sampled_from([flag for option in TABLE.options for flag in option["flags"]])
VALUES = (
    st.text(max_size=6) | st.integers().map(str) | st.floats().map(str) | st.sampled_from(["{}", "[1", "None", "1e999", "8k", "9" * 5000])
)


@given(st.lists(NAMES | VALUES | st.tuples(NAMES, VALUES).map("=".join), max_size=8))
def test_any_words_are_read_without_a_traceback(words):
    args, problems = _plan_question.read_args(TABLE, words)
    assert all(isinstance(problem, str) and len(problem) < 1000 for problem in problems)
    bad = [
        name
        for name, (least, most) in _plan_question.NUMBERS.items()
        if isinstance(args.get(name), int) and not least <= args[name] <= most
    ]
    assert not bad or problems
