# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Rules of speculation, and of the state cache of hybrid models."""

from __future__ import annotations

import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _flags
from ansible_collections.firstlight.sglang.plugins.module_utils._flag_facts import (
    ERROR,
    WARNING,
    Facts,
    Rule,
    entering,
    text,
)

RULES: list[Rule] = []
rule = entering(RULES)

# --- Speculation ---

_EAGLE = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")


@rule(
    "speculative-steps",
    ERROR,
    "speculative_eagle_topk or speculative_num_draft_tokens without speculative_num_steps",
    "0.5.8 server_args.py:2192; 0.5.23 arg_groups/speculative_hook.py:1160; captured K15 (a bare AssertionError, exit 1)",
)
def _speculative_steps(facts: Facts) -> t.Iterator[str]:
    given = [name for name in ("speculative_eagle_topk", "speculative_num_draft_tokens") if name in facts.args]
    if facts.algorithm() in _EAGLE and given and "speculative_num_steps" not in facts.args:
        yield f"args.{given[0]}: expected speculative_num_steps beside it, found none; give all three numbers of speculation, or none"


@rule(
    "speculative-topk",
    ERROR,
    "speculative_num_steps without speculative_eagle_topk",
    "0.5.8 server_args.py:2205; 0.5.23 arg_groups/speculative_hook.py:1273 (a TypeError)",
)
def _speculative_topk(facts: Facts) -> t.Iterator[str]:
    if facts.algorithm() in _EAGLE and "speculative_num_steps" in facts.args and "speculative_eagle_topk" not in facts.args:
        yield "args.speculative_num_steps: expected speculative_eagle_topk beside it, found none; write speculative_eagle_topk: 1"


@rule(
    "speculative-tree-size",
    ERROR,
    "speculative_eagle_topk above 1 without speculative_num_draft_tokens",
    "0.5.23 arg_groups/speculative_hook.py:1256: only a topk of 1 brings its own number of draft tokens",
)
def _speculative_tree_size(facts: Facts) -> t.Iterator[str]:
    topk = facts.number("speculative_eagle_topk")
    if facts.algorithm() in _EAGLE and topk is not None and topk > 1 and "speculative_num_draft_tokens" not in facts.args:
        yield (
            f"args.speculative_eagle_topk: expected speculative_num_draft_tokens beside {text(topk)}, found none; give the size of the tree"
        )


@rule(
    "speculative-draft-tokens",
    WARNING,
    "With speculative_eagle_topk 1 the engine takes speculative_num_steps + 1 draft tokens, whatever is written",
    "0.5.8 server_args.py:2213; 0.5.23 arg_groups/speculative_hook.py:1257",
)
def _speculative_draft_tokens(facts: Facts) -> t.Iterator[str]:
    steps, topk, tokens = (facts.number(f"speculative_{name}") for name in ("num_steps", "eagle_topk", "num_draft_tokens"))
    if facts.algorithm() in _EAGLE and steps is not None and topk == 1 and tokens is not None and tokens != steps + 1:
        yield (
            f"args.speculative_num_draft_tokens: expected {text(steps + 1)} (speculative_num_steps + 1, which the engine takes anyway), "
            f"found {text(tokens)}; write what it takes"
        )


@rule(
    "speculative-topk-trtllm",
    ERROR,
    "Attention backend trtllm_mha with speculative_eagle_topk above 1",
    "0.5.8 server_args.py:2210; 0.5.23 arg_groups/speculative_hook.py:1177",
)
def _speculative_topk_trtllm(facts: Facts) -> t.Iterator[str]:
    topk = facts.number("speculative_eagle_topk")
    if facts.algorithm() in _EAGLE and topk is not None and topk > 1 and "trtllm_mha" in facts.backends().values():
        yield f"args.speculative_eagle_topk: expected 1 with trtllm_mha, found {text(topk)}; write 1, or another attention backend"


def _tree_on_pages(facts: Facts, backends: t.Sequence[str]) -> t.Iterator[str]:
    topk, page, backend = facts.number("speculative_eagle_topk"), facts.number("page_size"), facts.word("attention_backend")
    wide = topk is not None and topk > 1 and page is not None and page > 1
    if facts.algorithm() in _EAGLE and wide and backend is not None and backend not in backends:
        yield (
            f"args.page_size: expected 1, or one of {', '.join(backends)} as attention backend, with speculative_eagle_topk above 1; "
            f"found {text(page)} with {backend}; write page_size: 1"
        )


@rule(
    "speculative-topk-page",
    ERROR,
    "speculative_eagle_topk above 1 with pages above 1 in an attention backend that cannot branch within a page",
    "0.5.8 server_args.py:2225; 0.5.12 server_args.py:3840",
    last="0.5.12.post1",
)
def _speculative_topk_page_old(facts: Facts) -> t.Iterator[str]:
    yield from _tree_on_pages(facts, ("flashinfer", "fa3"))


@rule(
    "speculative-topk-page",
    ERROR,
    "speculative_eagle_topk above 1 with pages above 1 in an attention backend that cannot branch within a page",
    "0.5.13 arg_groups/speculative_hook.py:376; 0.5.23 arg_groups/speculative_hook.py:1271",
    first="0.5.13",
)
def _speculative_topk_page(facts: Facts) -> t.Iterator[str]:
    yield from _tree_on_pages(facts, ("flashinfer", "fa3", "triton"))


_OWN_PAGES = ("cutlass_mla", "flashmla", "trtllm_mha", "trtllm_mla")


@rule(
    "speculative-ngram-page",
    ERROR,
    "NGRAM speculation looks at several branches, which within pages only flashinfer does",
    "0.5.8 server_args.py:2255; 0.5.23 arg_groups/speculative_hook.py:1359",
)
def _speculative_ngram_page(facts: Facts) -> t.Iterator[str]:
    page, backend = facts.number("page_size", 1), facts.word("attention_backend")
    if facts.algorithm() != "NGRAM" or facts.number("speculative_ngram_max_bfs_breadth", 10) == 1 or page is None:
        return
    other = backend is None and any(pair[0] == 9 for pair in facts.capabilities())  # where fa3 is the default
    if backend in _OWN_PAGES or (page > 1 and (other or backend not in (None, "flashinfer"))):
        yield (
            f"args.attention_backend: expected flashinfer, or pages of 1, with NGRAM, found {backend or 'none'} with pages of "
            f"{'its own' if backend in _OWN_PAGES else text(page)}; write flashinfer"
        )


@rule(
    "speculative-rejection-sampling",
    ERROR,
    "Rejection sampling needs a topk of 1",
    "0.5.14 arg_groups/speculative_hook.py:354; 0.5.23 arg_groups/speculative_hook.py:1220",
    first="0.5.14",
)
def _speculative_rejection_sampling(facts: Facts) -> t.Iterator[str]:
    topk = facts.number("speculative_eagle_topk")
    if facts.algorithm() and facts.on("speculative_use_rejection_sampling") and topk is not None and topk != 1:
        yield f"args.speculative_use_rejection_sampling: expected speculative_eagle_topk 1, found {text(topk)}; write 1, or leave it out"


@rule(
    "speculative-mixed-chunk",
    WARNING,
    "Speculation switches mixed chunks off",
    "0.5.8 server_args.py:2165; 0.5.23 arg_groups/speculative_hook.py:603",
)
def _speculative_mixed_chunk(facts: Facts) -> t.Iterator[str]:
    if facts.algorithm() in _EAGLE and facts.on("enable_mixed_chunk"):
        yield "args.enable_mixed_chunk: expected off with speculation, found on; the engine switches it off: leave it out"


@rule(
    "speculative-draft-model",
    ERROR,
    "Speculation with a draft model, but neither a path to one nor draft layers in the checkpoint (the model is loaded twice)",
    "0.5.8 server_args.py:2180; 0.5.23 arg_groups/speculative_hook.py:1133",
)
def _speculative_draft_model(facts: Facts) -> t.Iterator[str]:
    model = facts.model
    needs = facts.algorithm() == "STANDALONE" or (model is not None and model.known and model.draft_layers == 0)
    if facts.algorithm() in _EAGLE and model is not None and needs and "speculative_draft_model_path" not in facts.args:
        yield (
            f"args.speculative_algorithm: expected speculative_draft_model_path, since {model.architecture} brings no draft layers that "
            f"{facts.algorithm()} could use, found none; give one, or leave speculation out"
        )


@rule(
    "speculative-default-requests",
    WARNING,
    "Up to 0.5.12 speculation reserves state for 48 requests on a hybrid model when max_running_requests is not given",
    "0.5.10 model_executor/model_runner_kv_cache_mixin.py:179",
    last="0.5.12.post1",
)
def _speculative_default_requests(facts: Facts) -> t.Iterator[str]:
    if facts.hybrid() and facts.algorithm() and "max_running_requests" not in facts.args:
        yield (
            "args.max_running_requests: expected a number with speculation on a hybrid model, found none; this release sets memory aside "
            "for 48: write how many requests shall run at a time"
        )


@rule(
    "speculative-hybrid-crash",
    WARNING,
    "Speculation on a hybrid model crashes after hours (sgl-project/sglang#29516: mended in 0.5.14)",
    "sgl-project/sglang#29516, #28464",
    first="0.5.13",
    last="0.5.13",
)
def _speculative_hybrid_crash(facts: Facts) -> t.Iterator[str]:
    if facts.hybrid() and facts.algorithm() in _EAGLE:
        yield (
            f"release: expected 0.5.14 or newer for speculation on a hybrid model, found {facts.release}, which crashes under load; "
            "take a newer one"
        )


@rule(
    "speculative-hybrid-depth",
    WARNING,
    "More than 3 steps of speculation on a hybrid model were seen to fault under load",
    "sgl-project/sglang#20043, #19897; vllm-project/vllm#34948",
)
def _speculative_hybrid_depth(facts: Facts) -> t.Iterator[str]:
    steps = facts.number("speculative_num_steps")
    if facts.hybrid() and facts.algorithm() in _EAGLE and steps is not None and steps > 3:
        yield (
            f"args.speculative_num_steps: expected 3 or fewer on a hybrid model, found {text(steps)}; "
            "more were seen to fault under load: take fewer"
        )


# --- Hybrid models: the strategy of the state cache ---


def _strategy(facts: Facts) -> str:
    return facts.word("mamba_radix_cache_strategy") or "auto"


@rule(
    "hybrid-speculation-radix",
    ERROR,
    "Speculation with the radix cache on a hybrid model needs the strategy extra_buffer",
    "0.5.10 server_args.py:2207; 0.5.13 server_args.py:2755; sgl-project/sglang#22908",
    first="0.5.10",
    last="0.5.13",
)
def _hybrid_speculation_radix(facts: Facts) -> t.Iterator[str]:
    if facts.hybrid() and facts.algorithm() and not facts.on("disable_radix_cache") and _strategy(facts) in ("auto", "no_buffer"):
        yield (
            f"args.mamba_scheduler_strategy: expected extra_buffer for speculation on a hybrid model, found {_strategy(facts)}; "
            "write extra_buffer, or disable_radix_cache: true"
        )


@rule(
    "hybrid-speculation-environment",
    ERROR,
    "The strategy extra_buffer with speculation needs SGLANG_ENABLE_SPEC_V2=1",
    "0.5.10 server_args.py:2207, environ.py:442 (off unless set); 0.5.11 environ.py:459 (on)",
    first="0.5.10",
    last="0.5.10.post1",
)
def _hybrid_speculation_environment(facts: Facts) -> t.Iterator[str]:
    wanted = str(facts.environment.get("SGLANG_ENABLE_SPEC_V2", "")).lower()
    if facts.hybrid() and facts.algorithm() and _strategy(facts) == "extra_buffer" and wanted not in ("1", "true", "yes", "y", "t", "on"):
        yield (
            "environment.SGLANG_ENABLE_SPEC_V2: expected 1 for speculation with extra_buffer, found none; "
            "set it, or take SGLang 0.5.11 or newer"
        )


@rule(
    "hybrid-speculation-no-radix",
    WARNING,
    "Speculation on a hybrid model switches the radix cache off",
    "0.5.9 server_args.py:1761",
    first="0.5.9",
    last="0.5.9",
)
def _hybrid_speculation_no_radix(facts: Facts) -> t.Iterator[str]:
    if facts.hybrid() and facts.algorithm() and not facts.on("disable_radix_cache") and _strategy(facts) in ("auto", "no_buffer"):
        yield (
            "args.speculative_algorithm: expected disable_radix_cache: true beside it on a hybrid model, found the radix cache on; this "
            "release switches it off: take SGLang 0.5.11 or newer and extra_buffer to have both"
        )


@rule(
    "hybrid-extra-buffer-no-radix",
    ERROR,
    "The strategy extra_buffer without the radix cache",
    "0.5.10 server_args.py:2168; 0.5.13 server_args.py:2699",
    first="0.5.10",
    last="0.5.13",
)
def _hybrid_extra_buffer_no_radix(facts: Facts) -> t.Iterator[str]:
    if facts.hybrid() and _strategy(facts) == "extra_buffer" and facts.on("disable_radix_cache"):
        yield (
            "args.disable_radix_cache: expected off with the strategy extra_buffer, found on; "
            "write no_buffer, which overlaps without the radix cache"
        )


def _no_buffer(facts: Facts) -> bool:
    return facts.hybrid() and _strategy(facts) == "no_buffer" and not facts.on("disable_radix_cache")


@rule(
    "hybrid-no-buffer-overlap",
    ERROR,
    "The strategy no_buffer needs the overlap schedule off",
    "0.5.14 server_args.py:4359; 0.5.23 arg_groups/mamba_hook.py:158; captured K16 (exit 1)",
    first="0.5.14",
)
def _hybrid_no_buffer_overlap(facts: Facts) -> t.Iterator[str]:
    if _no_buffer(facts) and not facts.on("disable_overlap_schedule"):
        yield (
            "args.mamba_radix_cache_strategy: expected extra_buffer with the overlap schedule, found no_buffer; "
            "write extra_buffer, or disable_overlap_schedule: true"
        )


@rule(
    "hybrid-no-buffer-page",
    ERROR,
    "The strategy no_buffer needs pages of 1",
    "0.5.14 server_args.py:4356; 0.5.23 arg_groups/mamba_hook.py:157",
    first="0.5.14",
)
def _hybrid_no_buffer_page(facts: Facts) -> t.Iterator[str]:
    page = facts.number("page_size")
    if _no_buffer(facts) and page is not None and page != 1:
        yield f"args.page_size: expected 1 with the strategy no_buffer, found {text(page)}; write 1, or extra_buffer"


@rule(
    "hybrid-no-buffer-trtllm",
    ERROR,
    "The strategy no_buffer does not go with the attention backend trtllm_mha",
    "0.5.14 server_args.py:4362; 0.5.23 arg_groups/mamba_hook.py:161",
    first="0.5.14",
)
def _hybrid_no_buffer_trtllm(facts: Facts) -> t.Iterator[str]:
    if _no_buffer(facts) and facts.word("attention_backend") == "trtllm_mha":
        yield (
            "args.attention_backend: expected another one than trtllm_mha with the strategy no_buffer, found trtllm_mha; "
            "write extra_buffer, or triton"
        )


@rule(
    "hybrid-lazy-speculation",
    ERROR,
    "The strategy extra_buffer_lazy with speculation",
    "0.5.14 server_args.py:4374; 0.5.16 server_args.py:4843; captured K20 (exit 1)",
    first="0.5.14",
    last="0.5.16",
)
def _hybrid_lazy_speculation(facts: Facts) -> t.Iterator[str]:
    if facts.hybrid() and _strategy(facts) == "extra_buffer_lazy" and facts.algorithm():
        yield (
            "args.mamba_radix_cache_strategy: expected extra_buffer with speculation, found extra_buffer_lazy; "
            "write extra_buffer, or take 0.5.17 or newer"
        )


@rule(
    "hybrid-lazy-overlap",
    ERROR,
    "The strategy extra_buffer_lazy without the overlap schedule (found out only when pools are made)",
    "0.5.13 model_executor/model_runner_kv_cache_mixin.py:249; 0.5.23 mem_cache/kv_cache_configurator.py:3073",
    first="0.5.13",
)
def _hybrid_lazy_overlap(facts: Facts) -> t.Iterator[str]:
    if facts.hybrid() and _strategy(facts) == "extra_buffer_lazy" and facts.on("disable_overlap_schedule"):
        yield "args.disable_overlap_schedule: expected off with extra_buffer_lazy, found on; leave it out, or write extra_buffer"


@rule(
    "hybrid-extra-buffer-backend",
    ERROR,
    "The extra_buffer strategies need the linear attention backend triton",
    "0.5.14 server_args.py:4351; 0.5.23 arg_groups/overrides.py:449",
    first="0.5.14",
)
def _hybrid_extra_buffer_backend(facts: Facts) -> t.Iterator[str]:
    backend = facts.word("linear_attn_backend")
    if facts.hybrid() and _strategy(facts).startswith("extra_buffer") and backend not in (None, "triton"):
        yield f"args.linear_attn_backend: expected triton with {_strategy(facts)}, found {backend}; leave it out, or leave out the strategy"


@rule(
    "hybrid-track-interval",
    ERROR,
    "mamba_track_interval is a multiple of page_size and not less than the draft tokens",
    "0.5.8 server_args.py:1548; 0.5.23 arg_groups/mamba_hook.py:133",
)
def _hybrid_track_interval(facts: Facts) -> t.Iterator[str]:
    interval, page = facts.number("mamba_track_interval", 256), facts.number("page_size", 1)
    tokens = facts.number("speculative_num_draft_tokens", 0) if facts.algorithm() else 0
    buffered = _strategy(facts).startswith("extra_buffer") or (
        _strategy(facts) == "auto" and _flags.release_order(facts.release) >= (0, 5, 14)
    )
    if not (facts.hybrid() and buffered) or facts.on("disable_radix_cache") or interval is None:
        return
    if page is not None and page >= 1 and interval % page:
        yield (
            f"args.mamba_track_interval: expected a multiple of page_size {text(page)}, found {text(interval)}; write another of the two"
        )
    if tokens is not None and tokens > interval:
        yield f"args.mamba_track_interval: expected {text(tokens)} (the draft tokens) or more, found {text(interval)}; write more"


def _state_slots(facts: Facts) -> int:
    """State slots that one running request is charged (SGLANG 0.5.23 mem_cache/kv_cache_configurator.py:3062)."""
    if facts.on("disable_radix_cache"):
        return 1
    strategy, overlap = _strategy(facts), not facts.on("disable_overlap_schedule")
    if strategy == "auto":
        newer = _flags.release_order(facts.release) >= (0, 5, 14)
        strategy = "extra_buffer" if newer and (overlap or (facts.number("page_size") or 1) > 1) else "no_buffer"
    return 3 + {"extra_buffer": 2 if overlap else 1, "extra_buffer_lazy": 1}.get(strategy, 0)


@rule(
    "hybrid-state-slots",
    ERROR,
    "max_mamba_cache_size too small for a single request",
    "0.5.13 model_executor/model_runner_kv_cache_mixin.py:897; 0.5.23 mem_cache/kv_cache_configurator.py:3154; captured K08 (exit 137)",
    first="0.5.10",
)
def _hybrid_state_slots(facts: Facts) -> t.Iterator[str]:
    slots, each = facts.number("max_mamba_cache_size"), _state_slots(facts)
    shares = max(facts.size("dp_size"), facts.size("attn_dp_size")) if facts.attention_dp() else 1  # each data parallel rank gets a share
    if facts.hybrid() and slots is not None and slots // shares < each:
        where = f" on each of {shares} data parallel ranks" if shares > 1 else ""
        least = each * shares
        yield (
            f"args.max_mamba_cache_size: expected {least} or more (the slots of one request{where}), found {text(slots)}; "
            f"write {least} x requests{where}"
        )


@rule(
    "hybrid-requests",
    WARNING,
    "max_mamba_cache_size holds fewer requests than max_running_requests asks for",
    "0.5.23 mem_cache/kv_cache_configurator.py:3119; sgl-project/sglang#33004",
    first="0.5.10",
)
def _hybrid_requests(facts: Facts) -> t.Iterator[str]:
    slots, wanted, each = facts.number("max_mamba_cache_size"), facts.number("max_running_requests"), _state_slots(facts)
    if facts.hybrid() and slots is not None and wanted is not None and each <= slots < wanted * each:
        yield (
            f"args.max_mamba_cache_size: expected {text(wanted * each)} ({each} for each of {text(wanted)} requests), found {text(slots)}; "
            f"with that only {int(slots) // each} run at a time: write more, or fewer requests"
        )


@rule(
    "hybrid-state-default",
    WARNING,
    "Without the radix cache the default is 512 state slots, which do not fit on smaller cards",
    "0.5.8 model_executor/model_runner_kv_cache_mixin.py:177; sgl-project/sglang#18786",
    last="0.5.8",
)
def _hybrid_state_default(facts: Facts) -> t.Iterator[str]:
    small = [gpu for gpu in facts.gpus or () if isinstance(gpu.get("memory_total_mib"), int) and gpu["memory_total_mib"] < 60 * 1024]
    told = "max_mamba_cache_size" in facts.args or "max_running_requests" in facts.args
    if facts.hybrid() and small and facts.on("disable_radix_cache") and not told:
        yield (
            "args.max_mamba_cache_size: expected a number on GPUs below 60 GiB, found none; "
            "the default of 512 does not fit: write max_running_requests"
        )


@rule(
    "hybrid-strategy-elsewhere",
    ERROR,
    "The extra_buffer strategies are for models that keep state",
    "0.5.21 arg_groups/model_hook.py:953; 0.5.23 arg_groups/model_hook.py:1063",
    first="0.5.21",
)
def _hybrid_strategy_elsewhere(facts: Facts) -> t.Iterator[str]:
    plain = facts.model is not None and facts.model.known and not facts.hybrid() and not facts.on("disable_radix_cache")
    if facts.model is not None and plain and _strategy(facts).startswith("extra_buffer"):
        yield (
            f"args.mamba_radix_cache_strategy: expected none for {facts.model.architecture}, which keeps no state, "
            f"found {_strategy(facts)}; leave it out"
        )


@rule(
    "hybrid-int8-checkpoint",
    ERROR,
    "8-bit state checkpoints do not go with caches on the host",
    "0.5.14 server_args.py:4873; 0.5.23 arg_groups/mamba_hook.py:84",
    first="0.5.14",
)
def _hybrid_int8_checkpoint(facts: Facts) -> t.Iterator[str]:
    for name in ("enable_hierarchical_cache", "enable_lmcache"):
        if facts.on("enable_int8_mamba_checkpoint") and facts.on(name):
            yield f"args.enable_int8_mamba_checkpoint: expected off with {name}, found on; leave one of the two out"
