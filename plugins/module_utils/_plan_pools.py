# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""How a release of SGLang divides the memory that is free after loading: state slots, tokens, running requests.

Sources, as "SGLang <release> <path>:<line>" below sglang/srt:
  PROFILE    0.5.23 mem_cache/kv_cache_configurator.py:2990, 0.5.12 model_executor/model_runner_kv_cache_mixin.py:56
  STATE      0.5.23 mem_cache/kv_cache_configurator.py:3229, 0.5.17 the same, 0.5.13 model_runner_kv_cache_mixin.py:82, 0.5.8 :146
  RATIO      0.5.23 mem_cache/kv_cache_configurator.py:3062, 0.5.10 model_runner_kv_cache_mixin.py:373, 0.5.8 :252
  CELL       0.5.23 model_executor/pool_configurator.py:219, 0.5.12 the same, 0.5.8 model_runner_kv_cache_mixin.py:47
  SWA        0.5.23 model_executor/pool_configurator.py:637, 0.5.8 model_runner_kv_cache_mixin.py:206
  REQUESTS   0.5.23 mem_cache/kv_cache_configurator.py:3119, 0.5.10 model_runner_kv_cache_mixin.py:840, 0.5.8 :252
  SHAPE      0.5.23 configs/mamba_utils.py:116 (mamba_cache_per_req)
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _model, _plan_windows
from ansible_collections.firstlight.sglang.plugins.module_utils._model_weights import GIB
from ansible_collections.firstlight.sglang.plugins.module_utils._plan_defaults import Resolved, is_compressed, is_sparse, since

# Bytes of one element. fp4: half a byte and a scale of one byte for every 16 elements (CELL).
DTYPE_BYTES = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "mxfp8": 1.0 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "fp4_mx_block16": 0.5 + 1 / 16,
    "fp4_e2m1": 0.5 + 1 / 16,
}


@dataclasses.dataclass(frozen=True)
class Pools:
    """What a release makes of the free memory. Bytes are per GPU (the rank with least memory).

    problem: why the engine would not start, as (what, cure); then the numbers are 0.
    spare_bytes: what page rounding and --max-total-tokens leave of the budget.
    """

    rest_bytes: int
    state_slots: int
    slots_per_request: int
    state_bytes: int
    scratch_bytes: int
    kv_bytes: int
    swa_tokens: int
    max_total_num_tokens: int
    max_running_requests: int
    bytes_per_token: float
    state_bytes_per_slot: int
    problem: tuple[str, str] | None = None


def _heads(kv_heads: int, attention_tp: int) -> int:
    return max(1, kv_heads // attention_tp)


def bytes_per_token_of(attention: _model.Attention, resolved: Resolved) -> float:
    """Bytes that one layer of this kind keeps per token on one GPU (CELL)."""
    size = DTYPE_BYTES[resolved.kv_cache_dtype]
    if attention.kind == "mla":
        latent = attention.latent_dim * size
        if (
            attention.index_dim
            and resolved.kv_cache_dtype == "fp8_e4m3"
            and since(resolved.release, "0.5.9")
            and not resolved.dsa_raw_layout
        ):
            rope = 64  # qk_rope_head_dim of every DSA model so far, kept in bfloat16
            lora = attention.latent_dim - rope
            latent = lora + lora // 128 * 4 + rope * 2
        return latent
    return _heads(attention.kv_heads, resolved.attention_tp) * (attention.head_dim + attention.v_head_dim) * size


def cell(model: _model.Model, resolved: Resolved) -> tuple[float, float]:
    """(bytes of one token of the full pool, bytes of one token of the sliding pool), all layers of one GPU."""
    stages = resolved.pp_size
    full = sliding = 0.0
    for attention in model.attentions:
        layers = -(-attention.layers // stages)
        one = bytes_per_token_of(attention, resolved) * layers
        index_layers = attention.index_layers if since(resolved.release, "0.5.18") else attention.layers
        if attention.index_dim:
            one += _plan_windows.index_bytes(attention) * -(-index_layers // stages)
        if attention.kind == "sliding" and resolved.hybrid_swa:
            sliding += one
        else:
            full += one
    spec = resolved.speculation
    counted = spec is not None and spec.algorithm in ("EAGLE", "EAGLE3", "STANDALONE") and since(resolved.release, "0.5.14")
    # a named draft, or a target that says num_nextn_predict_layers; a path-less MTP layer of Qwen3.5/3.6 is not in the cell
    named = spec is not None and (spec.draft_path or model.draft_key == "num_nextn_predict_layers")
    draft_layers = model.draft_layers or 1  # EAGLE's own drafts have one layer
    if counted and named and model.attentions:
        first = model.attentions[0]
        if is_sparse(model):
            full += draft_layers * (bytes_per_token_of(first, resolved) + _plan_windows.index_bytes(first))
        else:
            layers = sum(attention.layers for attention in model.attentions if not (attention.kind == "sliding" and resolved.hybrid_swa))
            full += int(full * draft_layers / layers)
    return full, sliding


def state_bytes_per_slot(state: _model.State, resolved: Resolved) -> int:
    """Bytes of one request's state over the recurrent layers of one GPU (SHAPE)."""
    tp = resolved.attention_tp
    channels = state.conv_channels
    if state.groups is not None and state.groups % tp:
        channels += 2 * (tp - state.groups % tp if state.groups > tp else tp - state.groups) * state.state_dim
    conv = channels // tp * state.conv_columns * 2  # the convolution is kept in bfloat16
    ssm = int(state.heads // tp * state.head_dim * state.state_dim * DTYPE_BYTES[resolved.state_dtype or state.state_dtype])
    layers = -(-state.layers // resolved.pp_size)
    return (conv + ssm) * layers


def slots_per_request(resolved: Resolved) -> int:
    """State slots that one running request is charged (RATIO)."""
    if not resolved.radix_cache:
        return 1
    if resolved.mamba_strategy == "extra_buffer_lazy":
        return 4
    if resolved.mamba_strategy == "extra_buffer":
        two = resolved.overlap if since(resolved.release, "0.5.10") else resolved.speculation is None
        return 5 if two else 4
    return 3


def _replay_bytes(state: _model.State, resolved: Resolved) -> int:
    """Bytes per request of --enable-linear-replayssm-spec's ring for GDN (0.5.20 configs/mamba_utils.py, replayssm_ring_bytes_per_req)."""
    tp, length = resolved.attention_tp, resolved.replay_length
    value_heads = state.heads // tp
    key_heads = max(1, (state.conv_channels // state.state_dim - state.heads) // 2 // tp)
    one = value_heads * state.head_dim * 2 + key_heads * state.state_dim * 2
    return length * (2 * one + value_heads * 4) * state.layers


class _State(t.NamedTuple):
    slots: int
    state_bytes: int
    scratch_bytes: int
    rest_gib: float
    problem: tuple[str, str] | None


def _state(model_state: _model.State, resolved: Resolved, rest_gib: float) -> _State:
    """Slots and bytes of the state pool out of what rests, in the engine's own order of floating point (STATE)."""
    release, spec = resolved.release, resolved.speculation
    per_slot = state_bytes_per_slot(model_state, resolved)
    ratio = slots_per_request(resolved)
    plus = 1 if since(release, "0.5.17") else 0
    drafts = spec.draft_tokens if spec is not None else 0
    ring = 0
    if resolved.replay_state and spec is not None and since(release, "0.5.17") and model_state.kind == "gdn":
        drafts = 0
        ring = _replay_bytes(model_state, resolved) * ((resolved.running_per_worker or 48) + 1)
    running = resolved.running_per_worker
    joint = since(release, "0.5.13")
    scratch = 0
    if drafts and not joint and running is not None:  # up to 0.5.12 all requests asked for are charged first
        scratch = per_slot * running * drafts
        rest_gib -= scratch / GIB
    given = resolved.max_mamba_cache_size
    if given is not None:
        slots = given // resolved.attention_dp_size
    elif not resolved.radix_cache and running is not None:
        slots = running
    elif not resolved.radix_cache and release.startswith("0.5.8"):
        slots = 512
    else:
        budget = rest_gib * resolved.mamba_full_memory_ratio / (1 + resolved.mamba_full_memory_ratio) * GIB
        if drafts and joint:
            slots = int((budget - plus * per_slot * (1 + drafts)) // (per_slot * (1 + drafts / ratio)))
        else:
            slots = int((budget - ring - plus * per_slot) // per_slot)
    if drafts and joint and running is not None:
        by_slots = slots if not resolved.radix_cache and given is None else slots // ratio
        scratch = per_slot * (min(running, by_slots) + plus) * drafts
        rest_gib -= scratch / GIB
    problem = None
    if slots <= 0:
        problem = (
            "not enough GPU memory for the recurrent state of one request",
            "raise mem_fraction_static, lower max_running_requests or speculative_num_draft_tokens, or take more GPUs",
        )
    state_bytes = (slots + plus) * per_slot + ring
    return _State(slots, state_bytes, scratch, rest_gib - state_bytes / GIB, problem)


def _swa_pool(resolved: Resolved, model: _model.Model, budget: float, full: float, sliding: float) -> tuple[int, int]:
    """(tokens of the full pool, tokens of the sliding pool) out of a budget in bytes (SWA)."""
    page, ratio = resolved.page_size, resolved.swa_full_tokens_ratio
    if not full:
        tokens = int(budget // sliding) // page * page
        return tokens, tokens
    if _plan_windows.capped(resolved, full):
        swa_tokens = _plan_windows.window_tokens(model, resolved)
        return max(0, int((budget - swa_tokens * sliding) // full) // page * page), swa_tokens
    if since(resolved.release, "0.5.11"):
        tokens = int(budget // (full + ratio * sliding))
    elif since(resolved.release, "0.5.9"):
        tokens = int(int(budget // (full + sliding)) * (full + sliding) / (full + ratio * sliding))
    else:
        # 0.5.8 counts layers, not bytes
        layers = {kind: sum(a.layers for a in model.attentions if (a.kind == "sliding") == kind) for kind in (True, False)}
        first = model.attentions[0]
        every = bytes_per_token_of(first, resolved) * (layers[True] + layers[False])
        tokens = int(int(budget // every) // page * page * (layers[True] + layers[False]) / (ratio * layers[True] + layers[False]))
    tokens = tokens // page * page
    return tokens, int(tokens * ratio) // page * page


def _requests(resolved: Resolved, tokens: int, slots: int | None) -> int:
    """How many requests run at once (REQUESTS)."""
    release = resolved.release
    estimate = max(min(int(tokens / resolved.context_length * 512), 4096), 2048)
    given = resolved.running_per_worker if since(release, "0.5.10") else resolved.max_running_requests
    if given is None:
        number = min(estimate, tokens // 2) if since(release, "0.5.10") else estimate
    else:
        number = given
        if since(release, "0.5.14"):
            number = min(number, tokens // 2)
        elif since(release, "0.5.10"):
            number = min(number, estimate)
    if slots is not None:
        number = min(number, slots // slots_per_request(resolved))
    return number


def size(model: _model.Model, resolved: Resolved, baseline_gib: float, free_after_load_gib: float) -> Pools:
    """Pools out of memory.

    baseline_gib: free when the engine has set up its GPU and before it loads. free_after_load_gib: free after the weights
    (and, since 0.5.14, a draft's weights) are loaded. Both of the GPU with least memory.
    """
    rest_gib = free_after_load_gib - baseline_gib * (1 - resolved.mem_fraction_static) - resolved.vision_reserve_mib / 1024
    compressed = _plan_windows.compressed(model, resolved, int(rest_gib * GIB)) if is_compressed(model) else None
    full, sliding = (compressed.bytes_per_token, 0.0) if compressed else cell(model, resolved)
    per_slot = state_bytes_per_slot(model.state, resolved) if model.state is not None else 0
    ratio = slots_per_request(resolved) if model.state is not None else 0
    empty = Pools(int(rest_gib * GIB), 0, ratio, 0, 0, 0, 0, 0, 0, full + resolved.swa_full_tokens_ratio * sliding, per_slot)
    needed = 1 - free_after_load_gib / baseline_gib if baseline_gib > 0 else 1.0
    too_little = (
        f"the weights leave nothing of mem_fraction_static {resolved.mem_fraction_static:.3f}"
        if resolved.mem_fraction_static > 0
        else f"the {resolved.reserve_mib / 1024:.1f} GiB that SGLang keeps free for prefills and graphs are more than the GPU has",
        (f"a fraction above {needed + 0.001:.3f}, " if needed < 0.98 else "") + "smaller weights (quantised), or more GPUs (tp_size)",
    )
    if rest_gib <= 0:
        return dataclasses.replace(empty, problem=too_little)
    slots = None
    state = _State(0, 0, 0, rest_gib, None)
    if model.state is not None:
        state = _state(model.state, resolved, rest_gib)
        if state.problem:
            return dataclasses.replace(empty, problem=state.problem)
        slots = state.slots
    budget = int(state.rest_gib * GIB)
    if budget <= 0:
        return dataclasses.replace(empty, state_slots=slots or 0, problem=too_little)
    page = resolved.page_size
    fixed = 0.0
    if compressed:
        tokens, swa_tokens, fixed = compressed.tokens, 0, compressed.fixed_bytes
    elif sliding:
        tokens, swa_tokens = _swa_pool(resolved, model, budget, full, sliding)
    else:
        tokens, swa_tokens = int(budget // full) // page * page if full else resolved.context_length, 0
    if resolved.max_total_tokens is not None and tokens > resolved.max_total_tokens:
        tokens = resolved.max_total_tokens // page * page
        by_ratio = not _plan_windows.capped(resolved, full)
        swa_tokens = min(swa_tokens, int(tokens * resolved.swa_full_tokens_ratio) // page * page if by_ratio else tokens)
    running = _requests(resolved, tokens, slots)
    problem = None
    if tokens <= 0 and fixed + swa_tokens * sliding > budget:
        problem = (
            f"what the {resolved.max_running_requests} requests that may run keep at once takes more than the budget",
            "lower max_running_requests, or " + too_little[1],
        )
    elif tokens <= 0:
        problem = ("no token fits into the KV cache", too_little[1])
    elif running <= 0 and slots is None:
        problem = (f"{tokens} tokens of KV cache are too few for one request", "raise max_total_tokens, or " + too_little[1])
    elif running <= 0:
        problem = (
            f"{slots} state slots are too few for one request, which takes {ratio}",
            "raise mem_fraction_static or mamba_full_memory_ratio, or lower max_running_requests",
        )
    return Pools(
        rest_bytes=int(rest_gib * GIB),
        state_slots=slots or 0,
        slots_per_request=ratio,
        state_bytes=state.state_bytes,
        scratch_bytes=state.scratch_bytes,
        kv_bytes=int(tokens * full + swa_tokens * sliding + fixed),
        swa_tokens=compressed.swa_tokens if compressed else swa_tokens,
        max_total_num_tokens=tokens,
        max_running_requests=max(running, 0),
        bytes_per_token=full + resolved.swa_full_tokens_ratio * sliding,
        state_bytes_per_slot=per_slot,
        problem=problem,
    )


def draft_kv_bytes(model: _model.Model, resolved: Resolved, tokens: int) -> int:
    """Bytes of the draft's own KV pool: its layers at the target's bytes, for as many tokens as the target's pool holds."""
    if resolved.speculation is None or resolved.speculation.algorithm == "NGRAM" or not model.draft_layers or not model.attentions:
        return 0
    attention = model.draft_attention or next((a for a in model.attentions if a.kind != "sliding"), model.attentions[0])
    one = bytes_per_token_of(attention, resolved) + (_plan_windows.index_bytes(attention) if attention.index_dim else 0)
    return int(tokens * one * model.draft_layers)


def request_table_bytes(resolved: Resolved, running: int) -> int:
    """Bytes of the table of every request's tokens, which no budget counts (SGLang 0.5.23 mem_cache/memory_pool.py, ReqToTokenPool)."""
    drafts = resolved.speculation.draft_tokens if resolved.speculation else 0
    return (running + 1) * (resolved.context_length + 4 + drafts) * 4
