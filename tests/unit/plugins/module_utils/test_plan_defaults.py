"""Flags as a release resolves them, against what the engine's own resolver printed and what real starts logged."""

from __future__ import annotations

import dataclasses
import json

import model_fields
import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _model_config, _plan_defaults
from plan_runs import DENSE, DSA, FIXTURES, HYBRID, MLA, MTP, flags


def resolve(release, model, memory_total_mib, compute_capability, **args):
    return _plan_defaults.resolve(release, model, _plan_defaults.Card(memory_total_mib, compute_capability), args)


@pytest.mark.parametrize(
    ("memory_total_mib", "compute_capability", "args", "backend", "page_size", "chunk", "fraction", "largest"),
    [
        (49140, "8.6", {"tp_size": 2}, "flashinfer", 1, 4096, 0.786051, 32),
        (49140, "8.6", {"tp_size": 2, "max_running_requests": 8}, "flashinfer", 1, 4096, 0.786976, 8),
        (81559, "9.0", {"tp_size": 2}, "fa3", 1, 8192, 0.765706, 256),
        (183359, "10.0", {}, "trtllm_mha", 64, 16384, 0.789750, 512),
        (97887, "12.0", {}, "flashinfer", 1, 8192, 0.793449, 256),
        (32607, "12.0", {"tp_size": 2}, "flashinfer", 1, 4096, 0.714844, 48),
        (24564, "8.9", {"tp_size": 4}, "flashinfer", 1, 4096, 0.627916, 160),
    ],
    ids=["2x A6000", "2x A6000, 8 requests", "2x H100", "B200", "RTX PRO 6000", "2x RTX 5090", "4x RTX 4090"],
)
def test_the_resolver_of_0523_says_the_same_of_qwen36_with_its_mtp_head(
    memory_total_mib, compute_capability, args, backend, page_size, chunk, fraction, largest
):
    """The values of SGLang 0.5.23's own argument resolver on a mocked GPU."""
    found = resolve("0.5.23", HYBRID, memory_total_mib, compute_capability, **MTP, **args)
    assert (found.attention_backend, found.page_size, found.chunked_prefill_size) == (backend, page_size, chunk)
    assert found.decode_max_bs == largest
    assert found.mem_fraction_static == pytest.approx(fraction, abs=6e-7)


@pytest.mark.parametrize(
    ("release", "args", "fraction"),
    [
        ("0.5.8", {}, 0.816),  # (49140 - 512 - 1.5 x 4096 - 2 x 128 - 2 x 32 - 2048 for the draft) / 49140
        ("0.5.10", {}, 0.775),  # 4096 for the draft, and 50 prefill sizes stay off for images
        ("0.5.12", {}, 0.775),
        ("0.5.14", {}, 0.858),  # nothing for a draft any more
        ("0.5.15.post1", {}, 0.858),
        ("0.5.16", {}, 0.850),  # prefill graphs, 50 x 8 MiB, now for Qwen3.5 too
        ("0.5.23", {}, 0.850),
        ("0.5.23", {"disable_cuda_graph": True}, 0.859),
        ("0.5.23", {"disable_prefill_cuda_graph": True}, 0.858),
        ("0.5.23", {"chunked_prefill_size": 2048}, 0.914),
        ("0.5.23", {"chunked_prefill_size": -1}, 0.483),  # max_prefill_tokens counts
        ("0.5.12", {"disable_cuda_graph": True}, 0.775),  # decode graphs were reserved for all the same
    ],
)
def test_the_default_fraction_of_two_a6000_through_the_releases(release, args, fraction):
    found = resolve(release, HYBRID, 49140, "8.6", tp_size=2, **MTP, **args)
    assert found.mem_fraction_chosen
    assert found.mem_fraction_static == pytest.approx(fraction * _plan_defaults.vision_factor(HYBRID.vision), abs=1e-9)


@pytest.mark.parametrize(
    ("release", "memory_total_mib", "tp_size", "chunk", "largest"),
    [
        ("0.5.8", 15360, 1, 2048, 8),
        ("0.5.19", 24564, 1, 2048, 24),
        ("0.5.19", 24564, 4, 2048, 80),
        ("0.5.20", 24564, 1, 4096, 48),
        ("0.5.20", 24564, 4, 4096, 160),
        ("0.5.23", 49140, 2, 4096, 32),
        ("0.5.23", 81559, 8, 8192, 512),
        ("0.5.23", 143771, 1, 8192, 256),
        ("0.5.23", 183359, 1, 16384, 512),
    ],
)
def test_the_cards_memory_chooses_chunk_and_graphs(release, memory_total_mib, tp_size, chunk, largest):
    found = resolve(release, DENSE, memory_total_mib, "8.9", tp_size=tp_size)
    assert (found.chunked_prefill_size, found.decode_max_bs) == (chunk, largest)


@pytest.mark.parametrize(("largest", "sizes"), [(2048, 42), (4096, 50), (8192, 58), (16384, 74), (100, 12)])
def test_prefill_sizes(largest, sizes):
    assert _plan_defaults.prefill_sizes(largest) == sizes


@pytest.mark.parametrize(
    ("release", "model", "args", "captured"),
    [
        ("0.5.9", DENSE, {}, False),
        ("0.5.9", DENSE, {"enable_piecewise_cuda_graph": True}, True),
        ("0.5.10", DENSE, {}, True),
        ("0.5.10", DENSE, {"speculative_algorithm": "EAGLE"}, False),
        ("0.5.11", DENSE, {"speculative_algorithm": "EAGLE"}, True),
        ("0.5.12", DENSE, {"pp_size": 2}, False),
        ("0.5.12", DSA, {}, False),
        ("0.5.13", DSA, {}, True),
        ("0.5.15.post1", DSA, {}, False),
        ("0.5.17", DSA, {}, True),
        ("0.5.17", MLA, {}, False),
        ("0.5.18", MLA, {}, True),
        ("0.5.15.post1", HYBRID, {}, False),
        ("0.5.16", HYBRID, {}, True),
        ("0.5.23", DENSE, {"cuda_graph_backend_prefill": "disabled"}, False),
    ],
)
def test_who_captures_prefills(release, model, args, captured):
    assert bool(resolve(release, model, 81559, "9.0", **args).prefill_sizes) is captured


@pytest.mark.parametrize(
    ("args", "steps", "topk", "tokens"),
    [
        ({"speculative_algorithm": "NEXTN"}, 3, 1, 4),
        (
            {"speculative_algorithm": "EAGLE", "speculative_num_steps": 2, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 9},
            2,
            1,
            3,
        ),
        (
            {"speculative_algorithm": "EAGLE", "speculative_num_steps": 2, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 9},
            2,
            4,
            9,
        ),
    ],
)
def test_speculation_is_completed(args, steps, topk, tokens):
    found = resolve("0.5.23", HYBRID, 49140, "8.6", **args)
    assert found.speculation == _plan_defaults.Speculation("EAGLE", steps, topk, tokens, False)
    assert found.max_running_requests == 48


@pytest.mark.parametrize(
    ("release", "args", "strategy", "overlap"),
    [
        ("0.5.12", {}, "no_buffer", False),
        ("0.5.12", {"mamba_scheduler_strategy": "extra_buffer"}, "extra_buffer", True),
        ("0.5.10", {"mamba_scheduler_strategy": "extra_buffer", **MTP}, "extra_buffer", False),
        ("0.5.14", {}, "extra_buffer", True),
        ("0.5.23", {"disable_overlap_schedule": True}, "no_buffer", False),
        ("0.5.23", {"mamba_radix_cache_strategy": "no_buffer"}, "no_buffer", False),
    ],
)
def test_the_strategy_of_recurrent_layers(release, args, strategy, overlap):
    found = resolve(release, HYBRID, 49140, "8.6", **args)
    assert (found.mamba_strategy, found.overlap) == (strategy, overlap)


def test_sparse_attention_keeps_eight_bits_on_blackwell_and_sixteen_elsewhere():
    assert resolve("0.5.23", DSA, 183359, "10.0").kv_cache_dtype == "fp8_e4m3"
    assert resolve("0.5.23", DSA, 143771, "9.0").kv_cache_dtype == "bfloat16"


def test_a_release_before_the_formulas_is_refused():
    with pytest.raises(ValueError, match=r"expected SGLang 0\.5\.8 or later .* found 0\.5\.7"):
        resolve("0.5.7", DENSE, 49140, "8.6")


def test_what_is_no_release_is_refused():
    with pytest.raises(ValueError, match="found 'newest'"):
        resolve("newest", DENSE, 49140, "8.6")


RESOLVED = json.loads((FIXTURES / "resolved.json").read_text(encoding="utf-8"))["rows"]
MODELS = model_fields.load()


@pytest.mark.parametrize(
    "row", RESOLVED, ids=[f"{row['model']}-{row['compute_capability']}-{number}" for number, row in enumerate(RESOLVED)]
)
def test_the_resolver_of_0523_says_the_same_of_every_architecture(row):
    fields = MODELS[row["model"]]
    model, problems = _model_config.read(fields["config"], fields.get("hf_quant_config"))
    assert problems == []
    found = resolve("0.5.23", model, row["memory_total_mib"], row["compute_capability"], **flags(row["flags"]))
    speculative = found.speculation and [
        found.speculation.steps,
        found.speculation.topk,
        found.speculation.draft_tokens,
        found.speculation.draft_path,
    ]
    names = ("attention_backend", "page_size", "chunked_prefill_size", "max_running_requests", "decode_max_bs", "prefill_sizes")
    assert {name: getattr(found, name) for name in names} == {name: row[name] for name in names}
    assert found.mem_fraction_static == pytest.approx(row["mem_fraction_static"], abs=1e-9)
    assert speculative == row["speculative"]
    if row["kv_cache_dtype"] != "auto":
        assert found.kv_cache_dtype == row["kv_cache_dtype"]
    if model.state is not None and found.radix_cache:
        assert found.mamba_strategy == row["mamba_strategy"]


@pytest.mark.parametrize(
    ("args", "tokens"),
    [({"speculative_algorithm": "NGRAM"}, 12), ({"speculative_algorithm": "DFLASH", "speculative_num_draft_tokens": 8}, 8)],
)
def test_other_drafts_verify_blocks_of_their_own(args, tokens):
    assert resolve("0.5.23", HYBRID, 49140, "8.6", **args).speculation.draft_tokens == tokens


QWEN3_VL = dataclasses.replace(HYBRID, architecture="Qwen3VLForConditionalGeneration", state=None, draft_layers=0)


@pytest.mark.parametrize(
    ("release", "memory_total_mib", "compute_capability", "args", "reserve_mib"),
    [
        ("0.5.17", 143771, "9.0", {}, 0),  # nothing is set aside yet
        ("0.5.18", 143771, "9.0", {}, 100),
        ("0.5.23", 49140, "8.6", {}, 100),
        ("0.5.23", 49140, "8.6", {"mm_feature_transport": "cuda_ipc"}, 1124),
        ("0.5.23", 49140, "8.6", {"rl_on_policy_target": "fsdp"}, 0),
        ("0.5.19", 143771, "9.0", {}, 100),
        ("0.5.20", 143771, "9.0", {}, 1024),  # no embeddings kept, images handed over on the GPU
        ("0.5.23", 143771, "9.0", {"mm_feature_transport": "cpu"}, 0),
        ("0.5.23", 143771, "9.0", {"mm_preprocess_cache_size_mb": 512}, 0),
        ("0.5.23", 143771, "9.0", {"nnodes": 2}, 0),
        ("0.5.23", 143771, "9.0", {"max_running_requests": 400}, 3072),
        ("0.5.23", 49140, "9.0", {}, 100),  # a small Hopper
        ("0.5.23", 183359, "10.0", {}, 100),
        ("0.5.23", 143771, "9.0", {"enable_multimodal": False}, 0),
    ],
)
def test_what_a_vision_model_allocates_after_its_pools(release, memory_total_mib, compute_capability, args, reserve_mib):
    assert resolve(release, QWEN3_VL, memory_total_mib, compute_capability, **args).vision_reserve_mib == reserve_mib


def test_qwen3_vl_on_a_large_hopper_captures_as_many_as_may_run():
    def largest(release="0.5.23", compute_capability="9.0", **args):
        return resolve(release, QWEN3_VL, 143771, compute_capability, **args).decode_max_bs

    assert largest(max_running_requests=512) == 512
    assert largest(max_running_requests=513) == 256
    assert largest(max_running_requests=512, cuda_graph_max_bs_decode=64) == 64
    assert largest(max_running_requests=512, compute_capability="10.0") == 256
    assert largest(max_running_requests=512, release="0.5.19") == 256
    assert largest(max_running_requests=8) == 8
