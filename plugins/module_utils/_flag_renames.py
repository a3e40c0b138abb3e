# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What to do about a flag that a release of SGLang no longer has. When it went away follows from the tables of options.

A flag whose last release stored it in the field of another flag that is still there is a rename and needs no entry here.
"""

from __future__ import annotations

import typing as t


class Instead(t.NamedTuple):
    """flag: what took its place, if anything did. do: the advice. source: where that is said, a path under sglang/srt of a release."""

    flag: str | None
    do: str
    source: str


def _write(flag: str, value: str, source: str) -> Instead:
    return Instead(flag, f"write {flag}{': ' + value if value else ''}", source)


def _nothing(do: str, source: str) -> Instead:
    return Instead(None, f"nothing took its place ({do}); leave it out", source)


_LAST_OLD = "0.5.19 server_args.py"
_SPARSE = _nothing("double sparsity is gone", "0.5.11 server_args.py and layers/attention: no trace of it")
_DISAGGREGATION = _nothing("the two sides tell each other their sizes", "0.5.10 disaggregation/common/conn.py")
_PROCESSOR = _nothing("the processor has no limit of its own any more", "0.5.10: no trace of it")
_NGRAM = _nothing("the search is set by speculative_ngram_max_trie_depth", "0.5.10 server_args.py:4880")
_DEBUG = _nothing("it was for debugging", "the next release: no trace of it")

INSTEAD: dict[str, Instead] = {
    "collect_tokens_histogram": _nothing("enable_metrics collects them", f"{_LAST_OLD}:3867"),
    "cuda_graph_tc_compiler": _nothing("the compiled prefill graphs are gone", "the choices of cuda_graph_backend_prefill since 0.5.20"),
    "custom_sigquit_handler": _nothing("it is for programs that embed the engine", "0.5.13 server_args.py:5161"),
    "debug_tensor_dump_inject": _DEBUG,
    "disable_hicache_numa_detect": _write("numa_node", "", "0.5.10 server_args.py:5627"),
    "disable_piecewise_cuda_graph": _write("cuda_graph_backend_prefill", "disabled", f"{_LAST_OLD}:3960"),
    "disaggregation_decode_dp": _DISAGGREGATION,
    "disaggregation_decode_enable_fake_auto": _nothing("it was for tests", "0.5.8 server_args.py:4562"),
    "disaggregation_decode_tp": _DISAGGREGATION,
    "disaggregation_prefill_pp": _DISAGGREGATION,
    "dllm_block_size": _write("dllm_algorithm_config", "a file that says block_size", "0.5.7 dllm/algorithm"),
    "ds_channel_config_path": _SPARSE,
    "ds_heavy_channel_num": _SPARSE,
    "ds_heavy_channel_type": _SPARSE,
    "ds_heavy_token_num": _SPARSE,
    "ds_sparse_decode_threshold": _SPARSE,
    "dsa_prefill_cp_mode": _write("cp_strategy", "zigzag (was in-seq-split) or interleave (was round-robin-split)", f"{_LAST_OLD}:4032"),
    "elastic_ep_rejoin": _write("elastic_ep_join_mode", "recover", "0.5.20 arg_groups/parallel_hook.py:360"),
    "enable_breakable_cuda_graph": _write("cuda_graph_backend_prefill", "breakable", f"{_LAST_OLD}:3952"),
    "enable_deepep_waterfill": _write("enable_waterfill", "", "0.5.16 server_args.py:2038"),
    "enable_double_sparsity": _SPARSE,
    "enable_dsa_prefill_context_parallel": _write("enable_prefill_cp", "", f"{_LAST_OLD}:4004"),
    "enable_expert_distribution_metrics": _write("expert_balancedness_report_mode", "prometheus", f"{_LAST_OLD}:3842"),
    "enable_flashinfer_autotune": _nothing("it is on; disable_flashinfer_autotune turns it off", "0.5.7 server_args.py:3357"),
    "enable_nan_detection": _nothing(
        "set SGLANG_SPEC_NAN_DETECTION=1 and SGLANG_SPEC_OOB_DETECTION=1 in the environment", "0.5.10 server_args.py:931"
    ),
    "enable_nsa_prefill_context_parallel": _write("enable_prefill_cp", "", f"{_LAST_OLD}:4011"),
    "enable_piecewise_cuda_graph": _nothing("prefill graphs are on wherever they can be", "0.5.13 server_args.py:6665"),
    "enable_prefill_context_parallel": _write("enable_prefill_cp", "", f"{_LAST_OLD}:4025"),
    "enforce_piecewise_cuda_graph": _nothing("the compiled prefill graphs are gone", f"{_LAST_OLD}:3968, and the choices since 0.5.20"),
    "hybrid_kvcache_ratio": _write("swa_full_tokens_ratio", "", "0.5.8 server_args.py:2941"),
    "keep_mm_feature_on_device": _write("mm_feature_transport", "cuda_ipc", "0.5.20 arg_groups/serving_hook.py:756"),
    "load_watch_interval": _nothing("nothing reads it", "0.5.7: no trace of it"),
    "mm_max_concurrent_calls": _PROCESSOR,
    "mm_per_request_timeout": _PROCESSOR,
    "multi_item_scoring_delimiter": _write("enable_mis", "", "0.5.11 server_args.py:1263"),
    "nsa_prefill_cp_mode": _write("cp_strategy", "zigzag (was in-seq-split) or interleave (was round-robin-split)", f"{_LAST_OLD}:4046"),
    "optimistic_prefill_retries": _write("optimistic_prefill_attempts", "", "0.5.16 server_args.py:2558"),
    "piecewise_cuda_graph_compiler": _nothing(
        "the compiled prefill graphs are gone", "the choices of cuda_graph_backend_prefill since 0.5.20"
    ),
    "prefill_cp_mode": _write("cp_strategy", "zigzag (was in-seq-split)", f"{_LAST_OLD}:4056"),
    "prefill_round_robin_balance": _nothing("it had no effect", f"{_LAST_OLD}:3862"),
    "record_nolora_graph": _nothing("it is decided by the engine", "0.5.13 server_args.py: no trace of it"),
    "speculative_ngram_branch_length": _NGRAM,
    "speculative_ngram_max_match_window_size": _NGRAM,
    "speculative_ngram_min_match_window_size": _NGRAM,
    "speculative_skip_dp_mlp_sync": _nothing("it is decided by the engine", "0.5.23 arg_groups: no trace of it"),
    "torchao_config": _nothing("the engine's own ways are under quantization", "0.5.18: no trace of torchao_config"),
}

# Flags of 0.5.6 that were gone before the oldest table of options: the release that removed them. Source: their lists of options.
BEFORE_TABLES = {"dllm_block_size": "0.5.7", "enable_flashinfer_autotune": "0.5.7", "load_watch_interval": "0.5.7"}
