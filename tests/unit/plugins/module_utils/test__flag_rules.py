"""Every rule about flags, broken and kept.

proof says what else has seen it: `resolver` is the argument resolver of 0.5.23 itself, run with torch.cuda made to look like the GPU named
(the place is where it stopped); `captured` is a start of 0.5.15.post1 on an H200 (tests/fixtures/flags/starts-0.5.15.post1.json).
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import typing as t

import model_fields
import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _flag_facts, _flag_rules, _flags, _model_config
from ansible_collections.firstlight.sglang.plugins.plugin_utils import flag_tables
from flag_models import DEEPSEEK_V3, QWEN3_06B, QWEN3_8B, QWEN3_30B, QWEN36, QWEN36_RANK, gpus, pair, quantized
from hypothesis import given
from hypothesis import strategies as st

ROOT = pathlib.Path(__file__).parents[4]
STARTS = json.loads((ROOT / "tests/fixtures/flags/starts-0.5.15.post1.json").read_text())
HISTORY = flag_tables.history()

MTP = {"speculative_algorithm": "NEXTN", "speculative_num_steps": 1, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 2}
TREE = {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}
NEXTN = {"speculative_algorithm": "NEXTN"}
AMPERE, HOPPER, B200, RTX5090 = gpus("8.6"), gpus("9.0", total=81559), gpus("10.0", total=183359), gpus("12.0", total=32607)
OTHER = {"name": "sglang_instance_b", "args": {"port": 30001, "nccl_port": 29001}}


class Case(t.NamedTuple):
    """One combination. says: words of the message; None: the rule keeps silent."""

    rule: str
    says: str | None
    args: dict[str, t.Any]
    facts: dict[str, t.Any] | None = None
    release: str = "0.5.23"
    proof: str = ""


Q27 = {"model": QWEN36}
CASES = [
    Case(
        "speculative-steps",
        "args.speculative_eagle_topk: expected speculative_num_steps beside it, found none; give all three",
        {**NEXTN, "speculative_eagle_topk": 1},
        proof="captured K15; resolver: AssertionError arg_groups/speculative_hook.py:1162",
    ),
    Case(
        "speculative-steps", "args.speculative_num_draft_tokens: ", {**NEXTN, "speculative_num_draft_tokens": 4}, proof="resolver: the same"
    ),
    Case("speculative-steps", None, MTP, proof="captured B; resolver takes it"),
    Case("speculative-steps", None, NEXTN, proof="resolver takes it: 3, 1, 4"),
    Case(
        "speculative-topk",
        "write speculative_eagle_topk: 1",
        {**NEXTN, "speculative_num_steps": 3},
        proof="resolver: TypeError arg_groups/speculative_hook.py:1274",
    ),
    Case("speculative-topk", None, {**NEXTN, "speculative_num_steps": 3, "speculative_eagle_topk": 1}, proof="resolver takes it"),
    Case("speculative-tree-size", "give the size of the tree", {**NEXTN, "speculative_num_steps": 3, "speculative_eagle_topk": 4}),
    Case("speculative-tree-size", None, TREE, proof="resolver takes it"),
    Case(
        "speculative-draft-tokens",
        "expected 4 (speculative_num_steps + 1, which the engine takes anyway), found 8",
        {**MTP, "speculative_num_steps": 3, "speculative_num_draft_tokens": 8},
        proof="resolver: 4",
    ),
    Case("speculative-draft-tokens", None, MTP, proof="captured B"),
    Case(
        "speculative-topk-trtllm",
        "expected 1 with trtllm_mha, found 4",
        {**TREE, "attention_backend": "trtllm_mha"},
        proof="resolver, B200: ValueError arg_groups/speculative_hook.py:1178",
    ),
    Case("speculative-topk-trtllm", None, {**MTP, "attention_backend": "trtllm_mha"}),
    Case("speculative-topk-page", "write page_size: 1", {**TREE, "page_size": 16, "attention_backend": "flashmla"}),
    Case("speculative-topk-page", None, {**TREE, "page_size": 16, "attention_backend": "flashinfer"}, proof="resolver takes it"),
    Case("speculative-topk-page", None, {**TREE, "page_size": 16, "attention_backend": "triton"}),
    Case("speculative-topk-page", "write page_size: 1", {**TREE, "page_size": 16, "attention_backend": "triton"}, release="0.5.12"),
    Case("speculative-topk-page", None, {**TREE, "page_size": 16, "attention_backend": "fa3"}, release="0.5.12"),
    Case(
        "speculative-ngram-page",
        "found trtllm_mha with pages of its own; write flashinfer",
        {"speculative_algorithm": "NGRAM", "attention_backend": "trtllm_mha"},
        {"gpus": RTX5090},
        proof="resolver: ValueError arg_groups/speculative_hook.py:1359",
    ),
    Case(
        "speculative-ngram-page",
        "found none with pages of 16",
        {"speculative_algorithm": "NGRAM", "page_size": 16},
        {"gpus": HOPPER},
        proof="resolver: the same",
    ),
    Case("speculative-ngram-page", None, {"speculative_algorithm": "NGRAM", "page_size": 16, "attention_backend": "flashinfer"}),
    Case("speculative-ngram-page", None, {"speculative_algorithm": "NGRAM"}, {"gpus": HOPPER}, proof="resolver takes it"),
    Case(
        "speculative-rejection-sampling",
        "expected speculative_eagle_topk 1, found 4",
        {**TREE, "speculative_use_rejection_sampling": True},
        proof="resolver: ValueError arg_groups/speculative_hook.py:1222",
    ),
    Case("speculative-rejection-sampling", None, {**MTP, "speculative_use_rejection_sampling": True}),
    Case("speculative-mixed-chunk", "leave it out", {**MTP, "enable_mixed_chunk": True}),
    Case("speculative-mixed-chunk", None, {"enable_mixed_chunk": True}),
    Case("speculative-draft-model", "expected speculative_draft_model_path", {"speculative_algorithm": "EAGLE3"}, {"model": QWEN3_8B}),
    Case("speculative-draft-model", "STANDALONE could use", {"speculative_algorithm": "STANDALONE"}, Q27),
    Case("speculative-draft-model", None, MTP, Q27, proof="captured B"),
    Case("speculative-draft-model", None, {"speculative_algorithm": "EAGLE3", "speculative_draft_model": "/x"}, {"model": QWEN3_8B}),
    Case("speculative-draft-model", None, {"speculative_algorithm": "NGRAM"}, {"model": QWEN3_8B}, proof="resolver takes it"),
    Case("speculative-default-requests", "sets memory aside for 48", MTP, Q27, "0.5.10"),
    Case("speculative-default-requests", None, {**MTP, "max_running_requests": 4}, Q27, "0.5.10"),
    Case("speculative-default-requests", None, MTP, Q27),
    Case("speculative-hybrid-crash", "expected 0.5.14 or newer", MTP, Q27, "0.5.13"),
    Case("speculative-hybrid-crash", None, MTP, Q27, "0.5.14"),
    Case("speculative-hybrid-depth", "expected 3 or fewer on a hybrid model, found 5", {**MTP, "speculative_num_steps": 5}, Q27),
    Case("speculative-hybrid-depth", None, {**MTP, "speculative_num_steps": 3}, Q27, proof="captured F5"),
    Case("hybrid-speculation-radix", "expected extra_buffer for speculation on a hybrid model, found auto", MTP, Q27, "0.5.11"),
    Case("hybrid-speculation-radix", None, {**MTP, "mamba_scheduler_strategy": "extra_buffer"}, Q27, "0.5.11"),
    Case("hybrid-speculation-radix", None, {**MTP, "disable_radix_cache": True}, Q27, "0.5.11"),
    Case("hybrid-speculation-radix", None, MTP, Q27, proof="resolver: extra_buffer by itself"),
    Case("hybrid-speculation-environment", "set it", {**MTP, "mamba_scheduler_strategy": "extra_buffer"}, Q27, "0.5.10"),
    Case(
        "hybrid-speculation-environment",
        None,
        {**MTP, "mamba_scheduler_strategy": "extra_buffer"},
        {**Q27, "environment": {"SGLANG_ENABLE_SPEC_V2": "1"}},
        "0.5.10",
    ),
    Case("hybrid-speculation-no-radix", "switches it off", MTP, Q27, "0.5.9"),
    Case("hybrid-speculation-no-radix", None, {**MTP, "disable_radix_cache": True}, Q27, "0.5.9"),
    Case(
        "hybrid-extra-buffer-no-radix",
        "write no_buffer",
        {"mamba_scheduler_strategy": "extra_buffer", "disable_radix_cache": True},
        Q27,
        "0.5.12",
    ),
    Case("hybrid-extra-buffer-no-radix", None, {"mamba_scheduler_strategy": "extra_buffer"}, Q27, "0.5.12"),
    Case(
        "hybrid-no-buffer-overlap",
        "write extra_buffer, or disable_overlap_schedule: true",
        {**MTP, "mamba_radix_cache_strategy": "no_buffer"},
        Q27,
        proof="captured K16; resolver: AssertionError arg_groups/mamba_hook.py:158, also without speculation",
    ),
    Case(
        "hybrid-no-buffer-overlap",
        None,
        {**MTP, "mamba_radix_cache_strategy": "no_buffer", "disable_overlap_schedule": True},
        Q27,
        proof="resolver takes it",
    ),
    Case("hybrid-no-buffer-overlap", None, {"mamba_radix_cache_strategy": "no_buffer"}, {"model": QWEN3_8B}),
    Case(
        "hybrid-no-buffer-page",
        "expected 1 with the strategy no_buffer, found 16",
        {"mamba_radix_cache_strategy": "no_buffer", "disable_overlap_schedule": True, "page_size": 16},
        Q27,
        proof="resolver: AssertionError arg_groups/mamba_hook.py:157",
    ),
    Case("hybrid-no-buffer-page", None, {"mamba_radix_cache_strategy": "no_buffer", "page_size": 1}, Q27),
    Case(
        "hybrid-no-buffer-trtllm",
        "found trtllm_mha",
        {"mamba_radix_cache_strategy": "no_buffer", "attention_backend": "trtllm_mha"},
        Q27,
    ),
    Case("hybrid-no-buffer-trtllm", None, {"mamba_radix_cache_strategy": "no_buffer", "attention_backend": "triton"}, Q27),
    Case(
        "hybrid-lazy-speculation",
        "write extra_buffer, or take 0.5.17",
        {**MTP, "mamba_radix_cache_strategy": "extra_buffer_lazy"},
        Q27,
        "0.5.15.post1",
        "captured K20",
    ),
    Case("hybrid-lazy-speculation", None, {"mamba_radix_cache_strategy": "extra_buffer_lazy"}, Q27, "0.5.15.post1", "captured F7"),
    Case("hybrid-lazy-speculation", None, {**MTP, "mamba_radix_cache_strategy": "extra_buffer_lazy"}, Q27, proof="resolver takes it"),
    Case(
        "hybrid-lazy-overlap",
        "leave it out, or write extra_buffer",
        {"mamba_radix_cache_strategy": "extra_buffer_lazy", "disable_overlap_schedule": True},
        Q27,
    ),
    Case("hybrid-lazy-overlap", None, {"mamba_radix_cache_strategy": "extra_buffer_lazy"}, Q27, proof="captured F7"),
    Case(
        "hybrid-extra-buffer-backend",
        "expected triton with extra_buffer, found flashinfer",
        {"mamba_radix_cache_strategy": "extra_buffer", "linear_attn_backend": "flashinfer"},
        Q27,
    ),
    Case("hybrid-extra-buffer-backend", None, {"linear_attn_backend": "flashinfer"}, Q27, proof="resolver: no_buffer by itself"),
    Case(
        "hybrid-track-interval",
        "expected a multiple of page_size 48, found 256",
        {**MTP, "page_size": 48},
        Q27,
        proof="resolver: AssertionError arg_groups/mamba_hook.py:135",
    ),
    Case(
        "hybrid-track-interval",
        "expected 4 (the draft tokens) or more, found 2",
        {**MTP, "speculative_num_steps": 3, "speculative_num_draft_tokens": 4, "mamba_track_interval": 2},
        Q27,
        proof="resolver: AssertionError arg_groups/mamba_hook.py:133",
    ),
    Case("hybrid-track-interval", None, {**MTP, "page_size": 64}, Q27),
    Case("hybrid-track-interval", None, {"page_size": 48}, Q27, "0.5.12"),
    Case(
        "hybrid-state-slots",
        "expected 5 or more (the slots of one request), found 4",
        {**MTP, "max_mamba_cache_size": 4},
        Q27,
        "0.5.15.post1",
        "captured K08",
    ),
    Case("hybrid-state-slots", None, {**MTP, "max_mamba_cache_size": 20}, Q27, "0.5.15.post1", "captured G4"),
    Case("hybrid-state-slots", None, {**MTP, "max_mamba_cache_size": 4, "disable_radix_cache": True}, Q27),
    Case(
        "hybrid-requests",
        "expected 160 (5 for each of 32 requests), found 40; with that only 8 run at a time",
        {**MTP, "max_mamba_cache_size": 40, "max_running_requests": 32},
        Q27,
    ),
    Case("hybrid-requests", None, {**MTP, "max_mamba_cache_size": 40, "max_running_requests": 8}, Q27, proof="captured F6"),
    Case("hybrid-state-default", "write max_running_requests", {"disable_radix_cache": True}, {**Q27, "gpus": AMPERE}, "0.5.8"),
    Case("hybrid-state-default", None, {"disable_radix_cache": True, "max_running_requests": 4}, {**Q27, "gpus": AMPERE}, "0.5.8"),
    Case(
        "hybrid-strategy-elsewhere",
        "expected none for Qwen3ForCausalLM, which keeps no state, found extra_buffer",
        {"mamba_radix_cache_strategy": "extra_buffer"},
        {"model": QWEN3_8B},
        proof="resolver: ValueError arg_groups/model_hook.py:1063",
    ),
    Case("hybrid-strategy-elsewhere", None, {"mamba_radix_cache_strategy": "extra_buffer"}, Q27, proof="resolver takes it"),
    Case(
        "hybrid-int8-checkpoint",
        "expected off with enable_hierarchical_cache",
        {"enable_int8_mamba_checkpoint": True, "enable_hierarchical_cache": True},
        proof="resolver: ValueError arg_groups/mamba_hook.py:84",
    ),
    Case("hybrid-int8-checkpoint", None, {"enable_int8_mamba_checkpoint": True}),
    Case(
        "hybrid-blackwell-backend",
        "expected one of triton, trtllm_mha for a hybrid model on compute capability 12.0 (Blackwell), found flashinfer",
        {"attention_backend": "flashinfer"},
        {**Q27, "gpus": RTX5090},
        "0.5.9",
    ),
    Case("hybrid-blackwell-backend", None, {"attention_backend": "flashinfer"}, {**Q27, "gpus": RTX5090}, proof="resolver takes it"),
    Case("hybrid-blackwell-backend", "found fa3", {"attention_backend": "fa3"}, {**Q27, "gpus": B200}, "0.5.12"),
    Case("hybrid-blackwell-backend", None, {"attention_backend": "flashinfer"}, {**Q27, "gpus": B200}, "0.5.12"),
    Case("hybrid-blackwell-backend", "found flashinfer", {"decode_attention_backend": "flashinfer"}, {**Q27, "gpus": B200}, "0.5.18"),
    Case("hybrid-blackwell-backend", None, {"attention_backend": "triton"}, {**Q27, "gpus": B200}, "0.5.18"),
    Case("hybrid-blackwell-backend", None, {"attention_backend": "flashinfer"}, {**Q27, "gpus": B200}, proof="resolver takes it"),
    Case("hybrid-blackwell-backend", "found fa4", {"attention_backend": "fa4"}, {**Q27, "gpus": RTX5090}),
    Case("hybrid-blackwell-backend", None, {"attention_backend": "flashinfer"}, {**Q27, "gpus": AMPERE}, "0.5.9"),
    Case(
        "trtllm-mha-gpu",
        "expected a GPU of compute capability 10.x for trtllm_mha, found 9.0 (Hopper)",
        {"attention_backend": "trtllm_mha"},
        {"gpus": HOPPER},
        "0.5.15.post1",
        "captured K04",
    ),
    Case("trtllm-mha-gpu", None, {"decode_attention_backend": "trtllm_mha"}, {"gpus": HOPPER}, "0.5.15.post1"),
    Case("trtllm-mha-gpu", "10.x", {"decode_attention_backend": "trtllm_mha"}, {"gpus": HOPPER}, "0.5.9"),
    Case("trtllm-mha-gpu", None, {"attention_backend": "trtllm_mha"}, {"gpus": B200}, "0.5.9"),
    Case(
        "trtllm-mha-gpu",
        "expected a GPU of compute capability 9.x or 10.x or 12.x for trtllm_mha, found 8.6 (Ampere)",
        {"attention_backend": "trtllm_mha"},
        {"gpus": AMPERE},
        proof="resolver: ValueError arg_groups/attention_hook.py:203",
    ),
    Case("trtllm-mha-gpu", None, {"attention_backend": "trtllm_mha"}, {"gpus": HOPPER}, proof="resolver takes it"),
    Case("trtllm-mha-consumer-blackwell", "write triton", {"attention_backend": "trtllm_mha"}, {"gpus": RTX5090}),
    Case("trtllm-mha-consumer-blackwell", None, {"attention_backend": "trtllm_mha"}, {"gpus": B200}),
    Case(
        "trtllm-mha-fp8-cache",
        "leave trtllm_mha out",
        {"attention_backend": "trtllm_mha", "kv_cache_dtype": "fp8_e4m3"},
        {"gpus": RTX5090},
    ),
    Case("trtllm-mha-fp8-cache", None, {"attention_backend": "trtllm_mha", "kv_cache_dtype": "fp8_e4m3"}, {"gpus": B200}),
    Case("fa3-gpu", "expected a GPU of compute capability 8.x or 9.x for fa3, found 12.0", {"attention_backend": "fa3"}, {"gpus": RTX5090}),
    Case("fa3-gpu", "9.x for fa3, found 8.6", {"attention_backend": "fa3"}, {"gpus": AMPERE, "model": DEEPSEEK_V3}),
    Case("fa3-gpu", None, {"attention_backend": "fa3"}, {"gpus": AMPERE, "model": QWEN3_8B}, proof="resolver takes it"),
    Case(
        "fa3-fp8-e5m2",
        "write fp8_e4m3",
        {"attention_backend": "fa3", "kv_cache_dtype": "fp8_e5m2"},
        proof="resolver, H100: triton; captured H7",
    ),
    Case("fa3-fp8-e5m2", None, {"attention_backend": "fa3", "kv_cache_dtype": "fp8_e4m3"}, proof="captured H5"),
    Case(
        "linear-attention-flashinfer",
        "expected mamba_ssm_dtype bfloat16 with flashinfer on compute capability 10.0 (Blackwell), found none",
        {"linear_attn_backend": "flashinfer"},
        {"gpus": B200},
        proof="resolver: ValueError arg_groups/attention_hook.py:341",
    ),
    Case("linear-attention-flashinfer", None, {"linear_attn_backend": "flashinfer", "mamba_ssm_dtype": "bfloat16"}, {"gpus": B200}),
    Case("linear-attention-flashinfer", None, {"linear_attn_backend": "flashinfer"}, {"gpus": HOPPER}),
    Case("gpu-too-old", "found 7.0 (Volta)", {}, {"gpus": gpus("7.0")}, proof="the resolver takes it: it is refused at load"),
    Case("gpu-too-old", None, {}, {"gpus": gpus("7.5")}),
    Case("bfloat16-gpu", "expected float16", {"dtype": "bfloat16"}, {"gpus": gpus("7.5")}),
    Case("bfloat16-gpu", None, {"dtype": "bfloat16"}, {"gpus": AMPERE}),
    Case("quantization-gpu", "expected compute capability 8.9 or higher for w8a8_fp8", {"quantization": "w8a8_fp8"}, {"gpus": AMPERE}),
    Case("quantization-gpu", "for mxfp8", {}, {"gpus": HOPPER, "model": quantized(QWEN3_8B, "mxfp8")}),
    Case("quantization-gpu", None, {"quantization": "awq_marlin"}, {"gpus": AMPERE}),
    Case("fp4-gpu", "expected compute capability 10.0", {"quantization": "modelopt_fp4"}, {"gpus": HOPPER}, "0.5.12"),
    Case("fp4-gpu", None, {"quantization": "modelopt_fp4"}, {"gpus": B200}, "0.5.12"),
    Case("fp4-gpu", "expected compute capability 8.0", {"quantization": "modelopt_fp4"}, {"gpus": gpus("7.5")}),
    Case("fp4-gpu", None, {"quantization": "modelopt_fp4"}, {"gpus": AMPERE}, proof="resolver takes it"),
    Case("fp4-weight-only", "test it", {"quantization": "modelopt_fp4"}, {"gpus": AMPERE}),
    Case("fp4-weight-only", None, {"quantization": "modelopt_fp4"}, {"gpus": B200}),
    Case("fp8-weight-only", "take AWQ, GPTQ-Int4 or BF16 weights", {}, {"gpus": AMPERE, "model": DEEPSEEK_V3}),
    Case("fp8-weight-only", None, {}, {"gpus": HOPPER, "model": DEEPSEEK_V3}),
    Case("fp8-weight-only", None, {"quantization": "fp8"}, {"gpus": HOPPER}, proof="captured L4"),
    Case("fp8-cache-triton", "write fp8_e5m2", {"kv_cache_dtype": "fp8_e4m3", "attention_backend": "triton"}, {"gpus": AMPERE}),
    Case("fp8-cache-triton", None, {"kv_cache_dtype": "fp8_e5m2", "attention_backend": "triton"}, {"gpus": AMPERE}),
    Case("fp8-cache-gpu", "write fp8_e5m2", {"kv_cache_dtype": "fp8_e4m3"}, {"gpus": AMPERE}, proof="the resolver takes it"),
    Case("fp8-cache-gpu", None, {"kv_cache_dtype": "fp8_e4m3"}, {"gpus": gpus("8.9")}),
    Case(
        "block-cache-gpu",
        "expected compute capability 10.0 or higher for mxfp8, found 8.6",
        {"kv_cache_dtype": "mxfp8"},
        {"gpus": AMPERE},
        proof="resolver: ValueError arg_groups/kv_cache_hook.py:106",
    ),
    Case("block-cache-gpu", "for nvfp4", {"kv_cache_dtype": "nvfp4"}, {"gpus": AMPERE}, proof="resolver: ValueError attention_hook.py:225"),
    Case("block-cache-gpu", None, {"kv_cache_dtype": "mxfp8"}, {"gpus": B200}),
    Case("ranks-gpus", "expected 2 or more", {"tp_size": 2}, {"gpus": HOPPER}, proof="captured K09"),
    Case("ranks-gpus", "expected 3 or more", {"tensor_parallel_size": 3}, {"gpus": HOPPER}, proof="captured K14"),
    Case("ranks-gpus", None, {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True}, {"gpus": gpus("9.0", 2)}),
    Case("tp-heads", "expected a divisor of the model's 24 attention heads, found 5", {"tp_size": 5}, Q27),
    Case("tp-heads", None, {"tp_size": 8}, Q27, proof="resolver takes 3 too: the model finds out"),
    Case("tp-kv-heads", "expected a divisor or a multiple of the model's 4 KV heads, found 6", {"tp_size": 6}, Q27),
    Case("tp-kv-heads", None, {"tp_size": 8}, Q27),
    Case("tp-linear-heads", "16 key heads of gdn state, found 3; write one of 1, 2, 4, 8, 16", {"tp_size": 3}, Q27),
    Case("tp-linear-heads", None, {"tp_size": 4}, Q27),
    Case("tp-vision-heads", "16 heads of the vision tower, found 3", {"tp_size": 3}, Q27),
    Case("tp-vision-heads", None, {"tp_size": 3, "mm_enable_dp_encoder": True}, Q27),
    Case(
        "tp-attention-dp",
        "expected a divisor of tp_size 4 for attention-DP, found 3",
        {"tp_size": 4, "dp_size": 3, "enable_dp_attention": True},
        proof="resolver: AssertionError arg_groups/parallel_hook.py:326",
    ),
    Case("tp-attention-dp", None, {"tp_size": 4, "attn_dp_size": 2}),
    Case("ep-size", "expected a divisor of tp_size 4, found 3", {"tp_size": 4, "ep_size": 3}, proof="resolver takes it: found at load"),
    Case("ep-size", "found 2 for a model without experts", {"tp_size": 2, "ep_size": 2}, {"model": QWEN3_8B}),
    Case("ep-size", "found 3 for 128", {"tp_size": 3, "ep_size": 3}, {"model": QWEN3_30B}),
    Case("ep-size", None, {"tp_size": 4, "expert_parallel_size": 4}, {"model": QWEN3_30B}),
    Case("gpus-unbalanced", "39000 MiB on GPU 1 and 48000 MiB on GPU 0", {"tp_size": 2}, {"gpus": gpus("8.6", 2, free=(48000, 39000))}),
    Case("gpus-unbalanced", None, {"tp_size": 2}, {"gpus": gpus("8.6", 2, free=(48000, 47000))}),
    Case(
        "gpus-unbalanced",
        None,
        {"tp_size": 2},
        {"gpus": gpus("8.6", 2, free=(48000, 39000)), "environment": {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}},
    ),
    Case("all-reduce-pcie", "(PHB, peer access OK)", {"tp_size": 2}, {"gpus": gpus("8.6", 2), "topology": pair("PHB")}),
    Case("all-reduce-pcie", "(SYS, peer access CNS)", {"tp_size": 2}, {"gpus": gpus("8.6", 2), "topology": pair("SYS", "CNS")}),
    Case("all-reduce-pcie", None, {"tp_size": 2}, {"gpus": gpus("8.6", 2), "topology": pair("NV4")}),
    Case("all-reduce-pcie", None, {"tp_size": 2}, {"gpus": gpus("8.6", 2), "topology": {"indices": [], "matrix": [], "peer_access": []}}),
    Case("all-reduce-pcie", None, {"tp_size": 2, "disable_custom_all_reduce": True}, {"gpus": gpus("8.6", 2), "topology": pair("PHB")}),
    Case("mem-fraction", "between 0 and 1, found 1.2", {"mem_fraction_static": 1.2}, proof="the resolver takes it"),
    Case("mem-fraction", "found 0;", {"mem_fraction_static": 0}, proof="the resolver takes it"),
    Case("mem-fraction", None, {"mem_fraction_static": 0.85}, proof="captured G2"),
    Case("mem-fraction-high", "expected 0.97 or less, found 0.995", {"mem_fraction_static": 0.995}, proof="captured K06"),
    Case("mem-fraction-high", None, {"mem_fraction_static": 0.97}, proof="captured L5"),
    Case(
        "context-length",
        "expected 40960 (the model's) or less, found 300000",
        {"context_length": 300000},
        {"model": QWEN3_06B},
        proof="captured K02; resolver: ValueError",
    ),
    Case("context-length", "found 64000", {"context_length": "64k"}, {"model": QWEN3_06B}),
    Case("context-length", None, {"context_length": 32768}, {"model": QWEN3_8B}, proof="captured H4"),
    Case(
        "context-length",
        None,
        {"context_length": 131072},
        {"model": QWEN3_06B, "environment": {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}},
        proof="captured L8",
    ),
    Case("chunk-page", "found 1000; write such as 960", {"chunked_prefill_size": 1000, "page_size": 64}),
    Case("chunk-page", None, {"chunked_prefill_size": -1, "page_size": 64}),
    Case("chunk-page", None, {"chunked_prefill_size": 2048, "page_size": 64}),
    Case(
        "hicache-memory",
        "which is 400 GB over 2 ranks",
        {"enable_hierarchical_cache": True, "hicache_size": 100, "tp_size": 2},
        {**Q27, "host": {"memory_available_mib": 256000}},
    ),
    Case(
        "hicache-memory",
        None,
        {"enable_hierarchical_cache": True, "hicache_size": 100, "tp_size": 2},
        {"model": QWEN3_8B, "host": {"memory_available_mib": 256000}},
    ),
    Case(
        "language-model-only",
        "expected off for Qwen3_5ForConditionalGeneration",
        {"language_model_only": True},
        Q27,
        proof="resolver: ValueError arg_groups/model_hook.py:1106",
    ),
    Case("language-model-only", None, {}, Q27),
    Case("language-only", "it does not save the vision tower", {"language_only": True}),
    Case("language-only", None, {"language_only": False}),
    Case("api-key-workers", "expected 1 with an API key, found 2", {"api_key": "-", "tokenizer_worker_num": 2}),
    Case("api-key-workers", None, {"tokenizer_worker_num": 2}),
    Case("api-key-grpc", "gRPC does not ask for the key", {"api_key": "-", "grpc_port": 30500}),
    Case("api-key-grpc", None, {"grpc_port": 30500}),
    Case("tls-pair", "expected ssl_certfile beside it", {"ssl_keyfile": "/x"}, proof="resolver: ValueError arg_groups/serving_hook.py:51"),
    Case("tls-pair", None, {"ssl_keyfile": "/x", "ssl_certfile": "/y"}),
    Case("tool-call-parser", "write qwen3_coder", {"tool_call_parser": "qwen25"}, Q27),
    Case("tool-call-parser", None, {"tool_call_parser": "qwen3_coder"}, Q27),
    Case("tool-call-parser", None, {"tool_call_parser": "qwen25"}, {"model": QWEN3_8B}),
    Case(
        "ports-own",
        "nccl_port: expected a port that a socket of attention-DP does not take, found 30235",
        {"port": 30000, "nccl_port": 30235, "attn_dp_size": 2},
    ),
    Case("ports-own", None, {"port": 30000, "nccl_port": 30235}),
    Case("ports-others", "port: expected a port of its own, found 30001", {"port": 30001, "nccl_port": 29000}, {"others": [OTHER]}),
    Case(
        "ports-others",
        "a socket of attention-DP: expected a port of its own, found 30001, which is port of sglang_instance_b",
        {"port": 29768, "nccl_port": 29000, "attn_dp_size": 2},
        {"others": [OTHER]},
    ),
    Case(
        "ports-others",
        "disaggregation_bootstrap_port",
        {"disaggregation_mode": "prefill"},
        {"others": [{"name": "b", "args": {"port": 8998}}]},
    ),
    Case("ports-others", None, {"port": 30000, "nccl_port": 29000}, {"others": [OTHER]}),
    Case("dp-nccl-port", "make one instance of each replica", {"dp_size": 2, "nccl_port": 29000}),
    Case("dp-nccl-port", None, {"dp_size": 2, "nccl_port": 29000, "tp_size": 2, "enable_dp_attention": True}),
]


def found(case: Case) -> list[_flag_facts.Finding]:
    facts = dict(case.facts or {})
    findings = _flag_rules.check(
        case.release, case.args, facts.pop("model", None), facts.pop("gpus", None), facts.pop("others", ()), **facts
    )
    return [finding for finding in findings if finding.rule == case.rule]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{'kept' if case.says is None else 'broken'}-{case.release}")
def test_a_rule_speaks_where_it_is_broken_and_nowhere_else(case):
    findings = found(case)
    if case.says is None:
        assert findings == []
        return
    assert any(case.says in finding.message for finding in findings), findings
    for finding in findings:
        assert ": expected " in finding.message
        assert ", found " in finding.message or "; found " in finding.message
        assert "; " in finding.message


def test_every_rule_is_broken_and_kept_in_a_release_it_holds_for():
    for rule in _flag_rules.RULES:
        cases = [case for case in CASES if case.rule == rule.id]
        assert any(case.says and rule.holds_for(case.release) for case in cases), rule
        assert any(case.says is None for case in cases), rule.id
    assert {case.rule for case in CASES} == {rule.id for rule in _flag_rules.RULES}


def test_rules_of_one_name_do_not_hold_for_the_same_release():
    for release in HISTORY.releases:
        names = [rule.id for rule in _flag_rules.RULES if rule.holds_for(release)]
        assert len(names) == len(set(names)), release


def test_a_rule_names_releases_of_the_tables_and_a_source():
    for rule in _flag_rules.RULES:
        assert {rule.first, rule.last} - {None} <= set(HISTORY.releases), rule.id
        assert rule.severity in ("error", "warning")
        assert rule.source


@pytest.mark.parametrize("release", HISTORY.releases)
def test_the_names_that_rules_read_are_those_of_the_release_whatever_the_spelling(release):
    fields: dict[str, set[str]] = {}
    for name, option in flag_tables.table(release).by_name.items():
        if not name.startswith("no_"):
            fields.setdefault(option["dest"], set()).add(_flag_facts.ALIASES.get(name, name))
    for dest, names in fields.items():
        if names & set(_flag_facts.READ):
            assert len(names) == 1, (dest, names)


def test_every_name_that_rules_read_is_a_flag_of_some_release():
    known = {_flag_facts.ALIASES.get(name, name) for name in HISTORY.spans}
    assert set(_flag_facts.READ) <= known
    assert set(_flag_facts.ALIASES) <= set(HISTORY.spans)


MODELS = {"q27": QWEN36, "q27rank": QWEN36_RANK, "q8": QWEN3_8B, "q06": QWEN3_06B, "nonexistent": None}
# Starts that their flags made fail -> the rule, or None where the flag table says it. The others of K failed for other reasons.
FAILED = {
    "K01_unknown_flag": None,
    "K02_context_too_long": "context-length",
    "K03_bad_backend_name": None,
    "K04_backend_wrong_gpu": "trtllm-mha-gpu",
    "K08_state_too_small": "hybrid-state-slots",
    "K09_tp2_on_one_gpu": "ranks-gpus",
    "K14_tp3_on_one_gpu": "ranks-gpus",
    "K15_topk_without_steps": "speculative-steps",
    "K16_nobuffer_overlap_mtp": "hybrid-no-buffer-overlap",
    "K20_mtp_with_lazy_extra_buffer": "hybrid-lazy-speculation",
}


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start["name"])
def test_what_started_is_taken_and_what_its_flags_made_fail_is_refused(start):
    _words, problems = _flags.check_args(flag_tables.table("0.5.15.post1"), start["args"], {})
    findings = _flag_rules.check(
        "0.5.15.post1", start["args"], MODELS[start["model"]], gpus("9.0", total=143771), environment=start.get("environment")
    )
    errors = {finding.rule for finding in findings if finding.severity == "error"}
    if start["name"] not in FAILED:
        assert (problems, errors) == ([], set())
    elif FAILED[start["name"]] is None:
        assert len(problems) == 1
        assert start["exit"] == 2
    else:
        assert problems == []
        assert FAILED[start["name"]] in errors
        assert start["exit"] in (1, 137)


# Known-bad combinations of the field (docs/flag-rules.md names the cases), each with the cure that its message has to give.
FIELD = [
    ("B01", Case("hybrid-speculation-radix", "write extra_buffer, or disable_radix_cache: true", {**MTP}, Q27, "0.5.10")),
    ("B01", Case("hybrid-speculation-environment", "set it", {**MTP, "mamba_scheduler_strategy": "extra_buffer"}, Q27, "0.5.10")),
    ("B03", Case("hybrid-requests", "write more, or fewer", {**MTP, "max_mamba_cache_size": 40, "max_running_requests": 32}, Q27)),
    ("B03", Case("speculative-default-requests", "write how many requests", MTP, Q27, "0.5.12")),
    ("B04", Case("hybrid-state-default", "write max_running_requests", {"disable_radix_cache": True}, {**Q27, "gpus": AMPERE}, "0.5.8")),
    ("B06", Case("mem-fraction-high", "write less", {"mem_fraction_static": 0.99})),
    ("B08", Case("hybrid-blackwell-backend", "write triton", {"attention_backend": "flashinfer"}, {**Q27, "gpus": RTX5090}, "0.5.9")),
    ("B08", Case("trtllm-mha-gpu", "leave the flag out", {"attention_backend": "trtllm_mha"}, {**Q27, "gpus": RTX5090}, "0.5.12")),
    ("B08", Case("trtllm-mha-consumer-blackwell", "write triton", {"attention_backend": "trtllm_mha"}, {**Q27, "gpus": RTX5090})),
    ("B09", Case("fp8-weight-only", "AWQ, GPTQ-Int4 or BF16", {}, {"model": quantized(QWEN36, "fp8"), "gpus": AMPERE})),
    ("B09", Case("fp8-cache-gpu", "write fp8_e5m2", {"kv_cache_dtype": "fp8_e4m3"}, {"gpus": AMPERE})),
    ("B09", Case("fp8-cache-triton", "write fp8_e5m2", {"kv_cache_dtype": "fp8_e4m3", "attention_backend": "triton"}, {"gpus": AMPERE})),
    ("B11", Case("speculative-draft-model", "leave speculation out", {**MTP}, {"model": QWEN3_8B})),
    ("B18", Case("gpus-unbalanced", "free the memory", {"tp_size": 2}, {"gpus": gpus("8.6", 2, free=(49000, 40000))})),
    ("B25", Case("tool-call-parser", "write qwen3_coder", {"tool_call_parser": "qwen25"}, Q27)),
    ("B32", Case("all-reduce-pcie", "NCCL_P2P_DISABLE=1", {"tp_size": 2}, {"gpus": gpus("8.6", 2), "topology": pair("NODE")})),
    ("B34", Case("speculative-hybrid-crash", "take a newer one", MTP, Q27, "0.5.13")),
    (
        "B35",
        Case(
            "hicache-memory",
            "write less",
            {"enable_hierarchical_cache": True, "hicache_size": 200},
            {**Q27, "host": {"memory_available_mib": 256000}},
        ),
    ),
    ("B43", Case("speculative-hybrid-depth", "take fewer", {**MTP, "speculative_num_steps": 5}, Q27)),
    ("B44", Case("ports-others", "set another", {"port": 30001}, {"others": [OTHER]})),
    ("B44", Case("dp-nccl-port", "one instance of each replica", {"dp_size": 8, "nccl_port": 18103})),
]


@pytest.mark.parametrize(("name", "case"), FIELD, ids=lambda value: value if isinstance(value, str) else value.rule)
def test_known_bad_combinations_of_the_field_get_the_right_cure(name, case):
    findings = found(case)
    assert findings
    assert all(case.says in finding.message for finding in findings)


@pytest.mark.parametrize(
    ("release", "flag", "cure"),
    [
        ("0.5.23", "mamba_scheduler_strategy", "was removed in SGLang 0.5.20; write mamba_radix_cache_strategy"),
        ("0.5.10", "mamba_radix_cache_strategy", "came with SGLang 0.5.14 and this is 0.5.10; write mamba_scheduler_strategy"),
        ("0.5.23", "cuda_graph_max_bs", "write cuda_graph_max_bs_decode"),
    ],
)
def test_case_b02_a_flag_that_was_renamed_is_told_by_its_name_in_the_release(release, flag, cure):
    assert cure in _flags.unknown_flag(flag_tables.table(release), flag)


# Answers of the real resolver of 0.5.23 to flags drawn by lot, on four GPUs made to look like an A6000, H100, B200 and RTX PRO 6000.
RESOLVED = json.loads((ROOT / "tests/fixtures/flags/resolved-0.5.23.json").read_text())
MEMORY_MIB = {"8.6": 49140, "9.0": 81559, "10.0": 183359, "12.0": 97887}
# What the engine finds out only after its flags are resolved: when it checks them once more, or loads.
LATER = {
    "block-cache-gpu",
    "chunk-page",
    "fa3-gpu",
    "fp8-cache-triton",
    "hybrid-blackwell-backend",
    "hybrid-lazy-overlap",
    "quantization-gpu",
    "speculative-draft-model",
    "speculative-tree-size",
}


def test_rules_refuse_what_the_releases_own_resolver_refuses_and_nothing_else():
    models = {"q27": QWEN36, "q8": QWEN3_8B, "q30": QWEN3_30B}
    wrong = []
    for answer in RESOLVED:
        hardware = gpus(answer["gpu"], 4, total=MEMORY_MIB[answer["gpu"]])
        findings = _flag_rules.check("0.5.23", answer["args"], models[answer["model"]], hardware)
        errors = {finding.rule for finding in findings if finding.severity == "error"}
        if (not errors) if answer["refused"] else (errors - LATER):
            wrong.append((answer, errors))
    assert wrong == []
    assert sum(answer["refused"] is not None for answer in RESOLVED) == 86


REAL = {
    name: model
    for name, read in model_fields.load().items()
    if (model := _model_config.read(read["config"], read.get("hf_quant_config"))[0]) is not None
}


@pytest.mark.parametrize("name", REAL)
def test_nothing_is_refused_of_a_real_model_on_gpus_that_run_it(name):
    for size in (1, 2, 4, 8):
        findings = _flag_rules.check("0.5.23", {"tp_size": size}, REAL[name], gpus("10.0", 8, total=183359))
        assert [finding for finding in findings if finding.severity == "error"] == []


def test_the_sizes_that_qwen36_can_be_split_into():
    """24 heads, 4 KV heads, 48 and 16 heads of linear attention."""
    sizes = range(1, 17)
    refused = {size: _flag_rules.check("0.5.23", {"tp_size": size}, REAL["Qwen--Qwen3.6-27B"]) for size in sizes}
    assert [size for size in sizes if not refused[size]] == [1, 2, 4, 8]


def test_the_document_of_the_rules_is_fresh():
    spec = importlib.util.spec_from_file_location("flag_rules", ROOT / "tools/flag_rules.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), "run tools/flag_rules.py"


def test_errors_come_first():
    findings = _flag_rules.check(
        "0.5.23", {**MTP, "mem_fraction_static": 0.99, "speculative_num_draft_tokens": 9, "dp_size": 2, "nccl_port": 1}
    )
    assert [finding.severity for finding in findings] == ["error", "warning", "warning"]


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers(), max_size=2)
ARGS = st.dictionaries(st.sampled_from([*_flag_facts.READ, *_flag_facts.ALIASES]), ANYTHING, max_size=12)
GPU = st.fixed_dictionaries(
    {}, optional={"index": ANYTHING, "compute_capability": ANYTHING, "memory_total_mib": ANYTHING, "memory_free_mib": ANYTHING}
)


@given(
    release=st.sampled_from(HISTORY.releases),
    args=ARGS,
    model=st.sampled_from([None, QWEN36, QWEN3_30B, DEEPSEEK_V3]),
    hardware=st.none() | st.lists(GPU, max_size=3),
    others=st.lists(ARGS, max_size=2),
)
def test_garbage_gives_findings_and_never_an_exception(release, args, model, hardware, others):
    others = [{"name": str(number), "args": other} for number, other in enumerate(others)]
    findings = _flag_rules.check(release, args, model, hardware, others, topology=pair("PHB"), host={"memory_available_mib": 1})
    assert all(isinstance(finding.message, str) and finding.message for finding in findings)
