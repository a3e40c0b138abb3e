"""A plan against the log of its start, and what a host keeps of it."""

from __future__ import annotations

import copy

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _engine_log, _plan, _plan_record, _plan_report
from plan_runs import flags, measured_models, runs

RUN = next(run for run in runs("measured") if run["name"] == "G1_rank_a6000_default")
# The lines of that start that have numbers, as SGLang 0.5.15.post1 wrote them.
LOG = """\
[2026-12-01 03:10:59] Load weight begin. avail mem=46.53 GB
[2026-12-01 03:10:59] Load weight end. elapsed=0.45 s, type=Qwen3_5ForConditionalGeneration, avail mem=20.89 GB, mem usage=25.64 GB.
[2026-12-01 03:10:59] Load weight end. elapsed=0.18 s, type=Qwen3_5ForCausalLMMTP, avail mem=18.07 GB, mem usage=2.82 GB.
[2026-12-01 03:10:59] Mamba Cache is allocated. max_mamba_cache_size: 40, conv_state size: 0.06GB, ssm_state size: 2.88GB \
intermediate_ssm_state_cache size: 1.27GB intermediate_conv_window_cache size: 0.02GB
[2026-12-01 03:10:59] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 148132, K size: 2.26 GB, V size: 2.26 GB
[2026-12-01 03:11:04] max_total_num_tokens=148132, chunked_prefill_size=4096, max_prefill_tokens=16384, max_running_requests=8, \
context_len=262144, available_gpu_mem=10.40 GB
"""


def plan(**given):
    gpus = (_plan.Gpu(0, "NVIDIA H200", RUN["memory_total_mib"], "9.0"),)
    request = _plan.Request(measured_models()["q27rank"], "0.5.15.post1", gpus, flags(RUN["flags"]), _plan.Given(**given))
    return _plan_report.report(request, "x/rank", "directory", "config", 1, None)


@pytest.fixture
def numbers():
    return _engine_log.read_numbers(_engine_log.lines_of(LOG))


def test_measured_numbers_of_a_log_take_the_place_of_predicted_ones(numbers):
    given = _plan_record.measured(numbers)
    assert given == {
        "avail_before_weights_gib": 46.53,
        "weights_gib": 25.64,
        "draft_weights_gib": 2.82,
        "free_after_load_gib": 18.07,
    }
    assert plan(**given)["max_total_num_tokens"] == pytest.approx(148132, rel=0.01)


def test_a_log_without_numbers_measures_nothing():
    assert _plan_record.measured({}) == {}
    assert _plan_record.measured({"weights": [{"memory_gib": None, "free_after_gib": 3.0}]}) == {}
    assert _plan_record.entry(plan(), {}, "x", "i") is None


def test_plan_and_reality_side_by_side(numbers):
    found = {one.what: (one.planned, one.real) for one in _plan_record.differences(plan(avail_before_weights_gib=46.53), numbers)}
    assert set(found) == {"max_total_num_tokens", "max_running_requests", "weights", "KV cache", "state slots"}
    for planned, real in found.values():
        assert planned == pytest.approx(real, rel=0.02)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"max_total_num_tokens": 163000}, "max_total_num_tokens 163000 planned, 148132 came"),
        ({"max_total_num_tokens": 160000}, None),
        ({"max_running_requests": 9}, None),
        ({"max_running_requests": 10}, "max_running_requests 10 planned, 8 came"),
    ],
)
def test_a_plan_that_is_a_tenth_off_is_our_fault(numbers, change, words):
    planned = {**plan(avail_before_weights_gib=46.53), **change}
    found = _plan_record.fault(planned, _plan_record.differences(planned, numbers))
    if words is None:
        assert found is None
    else:
        assert words in found
        assert "report it" in found


def test_the_next_plan_of_the_same_takes_the_measured_numbers(numbers):
    first = plan()
    entry = _plan_record.entry(first, numbers, "demo", "4711")
    record = _plan_record.united({}, {_plan_record.key(first): entry})
    assert _plan_record.given(record, plan(avail_before_weights_gib=40.0)) == entry["measured"]  # the same model, GPUs, release and flags
    other = copy.deepcopy(first)
    other["args"]["max_running_requests"] = 4
    assert _plan_record.given(record, other) is None


def test_what_is_known_already_changes_nothing(numbers):
    entry = _plan_record.entry(plan(), numbers, "demo", "4711")
    record = _plan_record.united({}, {"a": entry, "b": entry})
    assert _plan_record.united(record, {"a": {**entry, "planned": {}}}) == record  # a later plan of the same start knows better
    assert list(_plan_record.united(record, {"a": {**entry, "start": "4712"}})["plans"]) == ["b", "a"]


def test_the_oldest_records_go():
    record = _plan_record.united({}, {str(number): {"start": "a"} for number in range(60)})
    assert list(record["plans"]) == [str(number) for number in range(10, 60)]


def refused(**changes):
    return _plan_record.refusal({**plan(), **changes})


def test_what_fits_is_begun():
    assert refused() is None


def test_what_does_not_fit_is_refused_with_what_would_do():
    gpus = (_plan.Gpu(0, "NVIDIA RTX 4090", 24564, "8.9"),)
    request = _plan.Request(measured_models()["q27rank"], "0.5.23", gpus, {})
    found = _plan_report.report(request, "x/rank", "directory", "config", 1, None)
    words = _plan_record.refusal(found)
    assert words.startswith("does not fit: the weights leave nothing of mem_fraction_static")
    assert "what would do: weights in 8 bits, made while loading, more of the GPU for the pools (args {" in words


def test_what_may_fit_is_not_refused():
    none = {"verdict": "does_not_fit", "max_total_num_tokens": 0, "reasons": ["x"], "alternatives": []}
    assert refused(**none, interval={"max_total_num_tokens": [0, 12]}) is None
    assert refused(**none, interval={"max_total_num_tokens": [0, 0]}) == "does not fit: x"
    assert refused(**none, interval={"max_total_num_tokens": [0, 0]}, model={"known": False}) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"plans": 3}'])
def test_what_is_no_record_is_told(text):
    with pytest.raises(ValueError):
        _plan_record.read(text)
