"""Pools against real starts of the engine: state slots, tokens and running requests, exactly."""

from __future__ import annotations

import dataclasses
import json

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _model, _model_weights, _plan_defaults, _plan_pools, _plan_windows
from hypothesis import given
from hypothesis import strategies as st
from plan_runs import DENSE, DSA, FIXTURES, HYBRID, MLA, MTP, flags, measured_models, runs

MEASURED = runs("measured")
MEASURED_MODELS = measured_models()


def resolve(release, model, memory_total_mib=49140, compute_capability="8.6", **args):
    return _plan_defaults.resolve(release, model, _plan_defaults.Card(memory_total_mib, compute_capability), args)


@pytest.mark.parametrize("run", MEASURED, ids=[run["name"] for run in MEASURED])
def test_every_start_of_the_engine_is_reproduced_exactly(run):
    """From the free memory before and after loading that the engine saw."""
    model = MEASURED_MODELS[run["model"]]
    resolved = resolve("0.5.15.post1", model, run["memory_total_mib"], "9.0", **flags(run["flags"]))
    pools = _plan_pools.size(model, resolved, run["baseline_free_gib"], run["free_after_load_gib"])
    assert pools.problem is None
    assert resolved.mem_fraction_static == pytest.approx(run["mem_fraction_static"], abs=1e-12)
    assert (pools.max_total_num_tokens, pools.max_running_requests) == (run["max_total_num_tokens"], run["max_running_requests"])
    assert pools.bytes_per_token == run["kv_bytes_per_token"]
    if run["state_slots"] is not None:
        assert pools.state_slots == run["state_slots"]
        assert pools.slots_per_request == run["slots_per_request"]
        assert pools.state_bytes_per_slot == run["state_bytes_per_slot"]


def test_all_starts_are_there():
    assert len(MEASURED) == 40


@pytest.mark.parametrize(
    ("release", "slots", "tokens", "running"),
    [
        ("0.5.12", 6, 19268, 1),  # observed on CT129: 19198 tokens, one request; 6.88 GiB went to 48 requests that never ran
        ("0.5.13", 37, 139067, 7),
        ("0.5.15.post1", 40, 152386, 8),
        ("0.5.16", 39, 148143, 7),
        ("0.5.17", 37, 145794, 7),
        ("0.5.18", 36, 144943, 7),  # 100 MiB for images
        ("0.5.23", 36, 144943, 7),
    ],
)
def test_one_card_of_ct129_through_the_releases(release, slots, tokens, running):
    """46.575 GiB free before loading (an inference), 25.48 GiB of weights, 2.81 of the draft, as computed by hand from the same sources."""
    resolved = resolve(release, HYBRID, tp_size=2, mamba_scheduler_strategy="extra_buffer", **MTP)
    free = 46.575 - 25.48 - (2.81 if _plan_defaults.since(release, "0.5.14") else 0)
    pools = _plan_pools.size(HYBRID, resolved, 46.575, free)
    assert (pools.state_slots, pools.max_total_num_tokens, pools.max_running_requests) == (slots, tokens, running)


def test_state_and_tokens_of_qwen36_on_two_cards():
    resolved = resolve("0.5.23", HYBRID, tp_size=2, **MTP)
    assert _plan_pools.state_bytes_per_slot(HYBRID.state, resolved) == 76972032
    assert _plan_pools.cell(HYBRID, resolved) == (32768, 0)


@pytest.mark.parametrize(
    ("release", "model", "args", "compute_capability", "bytes_per_token"),
    [
        ("0.5.23", DENSE, {}, "8.6", 147456),
        ("0.5.23", DENSE, {"tp_size": 8}, "8.6", 18432),
        ("0.5.23", DENSE, {"tp_size": 16}, "8.6", 18432),  # KV heads are copied
        ("0.5.23", DENSE, {"kv_cache_dtype": "fp8_e4m3"}, "8.6", 73728),
        ("0.5.23", MLA, {}, "9.0", 61 * 576 * 2),
        ("0.5.23", MLA, {"kv_cache_dtype": "fp8_e4m3"}, "9.0", 61 * 576),
        ("0.5.9", DSA, {}, "9.0", 78 * 1284),
        ("0.5.23", DSA, {"kv_cache_dtype": "fp8_e4m3"}, "9.0", 78 * 788),
        ("0.5.23", DSA, {}, "10.0", 78 * 708),
        # a named draft is counted since 0.5.14, a built-in MTP layer of Qwen3.6 never is
        ("0.5.13", dataclasses.replace(MLA, draft_layers=1, draft_key="num_nextn_predict_layers"), MTP, "9.0", 61 * 1152),
        ("0.5.14", dataclasses.replace(MLA, draft_layers=1, draft_key="num_nextn_predict_layers"), MTP, "9.0", 62 * 1152),
        ("0.5.23", HYBRID, MTP, "9.0", 65536),
    ],
)
def test_bytes_per_token(release, model, args, compute_capability, bytes_per_token):
    full, sliding = _plan_pools.cell(model, resolve(release, model, 143771, compute_capability, **args))
    assert (full, sliding) == (bytes_per_token, 0)


ANSWERS = json.loads((FIXTURES / "compressed.json").read_text(encoding="utf-8"))["cases"]
ANSWERED = [(case, release) for case in ANSWERS for release in case["answers"]]


@pytest.mark.parametrize(("case", "release"), ANSWERED, ids=[f"{case['name']} {release}" for case, release in ANSWERED])
def test_compressed_pools_are_those_that_the_release_answers(case, release):
    model = dataclasses.replace(measured_models()[case["model"]], context_length=case["context_length"])
    found = _plan_windows.compressed(model, resolve(release, model, 143771, case["compute_capability"], **case["args"]), case["budget"])
    tokens, swa_tokens = case["answers"][release]
    assert found.tokens == tokens
    if tokens:
        assert found.swa_tokens == swa_tokens


def test_compressed_attention_takes_what_a_start_printed():
    """DeepSeek-V4-Flash-Base on 8 H20, May 2026: bytes_per_full_token=15955.85."""
    model = measured_models()["dsv4_flash"]
    assert round(_plan_windows.compressed(model, resolve("0.5.12", model, 97871, "9.0", tp_size=8), 1).bytes_per_token, 2) == 15955.85


def test_windows_of_many_requests_that_leave_nothing_are_told_with_their_cure():
    """0.5.21 and later: 256 requests by default, whose windows are kept whether they come or not."""
    model = measured_models()["dsv4_flash"]
    pools = _plan_pools.size(model, resolve("0.5.23", model, 143771, "9.0", tp_size=8, mem_fraction_static=0.5), 138.0, 75.0)
    assert pools.problem[0] == "what the 256 requests that may run keep at once takes more than the budget"
    assert pools.problem[1].startswith("lower max_running_requests, or ")
    fewer = resolve("0.5.23", model, 143771, "9.0", tp_size=8, mem_fraction_static=0.5, max_running_requests=16)
    assert _plan_pools.size(model, fewer, 138.0, 75.0).max_total_num_tokens > 1_000_000


GEMMA = dataclasses.replace(
    DENSE,
    architecture="Gemma4ForConditionalGeneration",
    attentions=(_model.Attention("full", 10, 4, 512, 512), _model.Attention("sliding", 50, 16, 256, 256, 1024)),
)


@pytest.mark.parametrize(("release", "args"), [("0.5.11", {}), ("0.5.23", {"disable_hybrid_swa_memory": True})])
def test_where_there_is_one_pool_sliding_layers_keep_every_token(release, args):
    full, sliding = _plan_pools.cell(GEMMA, resolve(release, GEMMA, **args))
    assert (full, sliding) == (10 * 4 * 1024 * 2 + 50 * 16 * 512 * 2, 0)


@pytest.mark.parametrize(
    ("release", "args", "swa_tokens"),
    [
        # per request 1023 of the window, 128 until it is given back, and two pages; two chunks under way, and a page
        ("0.5.14", {"max_running_requests": 8}, 8 * (1023 + 128 + 2) + 2 * 4096 + 1),
        ("0.5.23", {"max_running_requests": 8}, 8 * (1023 + 128 + 2) + 2 * 4096 + 1),
        ("0.5.23", {"max_running_requests": 8, "disable_overlap_schedule": True}, 8 * (1023 + 128 + 2) + 4096 + 1),
        ("0.5.23", {"max_running_requests": 8, "page_size": 64}, -(-(8 * (1023 + 128 + 128) + 2 * 4096 + 64) // 64) * 64),
        ("0.5.13", {"max_running_requests": 8}, None),
        ("0.5.23", {}, None),
        ("0.5.23", {"max_running_requests": 8, "chunked_prefill_size": -1}, None),
        ("0.5.23", {"max_running_requests": 8, "disable_radix_cache": False}, None),
    ],
)
def test_without_a_radix_cache_the_requests_that_may_run_size_the_windows(release, args, swa_tokens):
    resolved = resolve(release, GEMMA, **{"disable_radix_cache": True, "mem_fraction_static": 0.5, **args})
    pools = _plan_pools.size(GEMMA, resolved, 80.0, 75.0)
    if swa_tokens is None:
        assert pools.swa_tokens == int(pools.max_total_num_tokens * 0.8)
    else:
        assert pools.swa_tokens == swa_tokens
        assert pools.max_total_num_tokens > 200_000
        assert 0 <= 35 * _model_weights.GIB - pools.kv_bytes < 64 * 10 * 4 * 1024 * 2


def test_two_pools_share_one_budget():
    resolved = resolve("0.5.23", GEMMA, swa_full_tokens_ratio=0.1, mem_fraction_static=0.5)
    pools = _plan_pools.size(GEMMA, resolved, 40.0, 30.0)
    assert pools.swa_tokens == int(pools.max_total_num_tokens * 0.1)
    used = pools.max_total_num_tokens * 10 * 4 * 1024 * 2 + pools.swa_tokens * 50 * 16 * 512 * 2
    assert pools.kv_bytes == used
    assert 0 <= 10 * _model_weights.GIB - used < 10 * 4 * 1024 * 2 + 50 * 16 * 512 * 2


def test_weights_that_leave_nothing_are_told_with_the_fraction_that_would_do():
    resolved = resolve("0.5.23", DENSE, mem_fraction_static=0.5)
    pools = _plan_pools.size(DENSE, resolved, 40.0, 10.0)
    assert pools.problem == (
        "the weights leave nothing of mem_fraction_static 0.500",
        "a fraction above 0.751, smaller weights (quantised), or more GPUs (tp_size)",
    )
    assert pools.max_total_num_tokens == 0


def test_too_little_for_one_state_is_told():
    resolved = resolve("0.5.23", HYBRID, mem_fraction_static=0.505)
    assert "recurrent state" in _plan_pools.size(HYBRID, resolved, 40.0, 20.0).problem[0]


SIZES = st.floats(min_value=1, max_value=200, allow_nan=False)


@given(
    st.sampled_from(["0.5.8", "0.5.10", "0.5.12", "0.5.13", "0.5.15.post1", "0.5.17", "0.5.23"]),
    st.sampled_from([DENSE, HYBRID, MLA, DSA, GEMMA]),
    SIZES,
    SIZES,
    st.floats(min_value=0.05, max_value=0.99),
    st.sampled_from([{}, MTP]),
    st.one_of(st.none(), st.integers(min_value=1, max_value=4096)),
)
def test_more_memory_never_gives_fewer_tokens(release, model, baseline, load, fraction, spec, running):
    args = {**spec, "mem_fraction_static": fraction, "max_running_requests": running}
    resolved = resolve(release, model, 81559, "9.0", **args)
    free = max(0.0, baseline - load)
    less = _plan_pools.size(model, resolved, baseline, free)
    more = _plan_pools.size(model, resolved, baseline, free + 0.5)
    for pools in (less, more):
        assert 0 <= pools.max_running_requests <= 4096
        assert 0 <= pools.max_total_num_tokens * max(pools.bytes_per_token, 1) <= 201 * _model_weights.GIB
    page = resolved.page_size + 1
    per_request = pools.state_bytes_per_slot * (2 + pools.slots_per_request) / max(pools.bytes_per_token, 1)
    assert more.max_total_num_tokens + page + per_request >= less.max_total_num_tokens
