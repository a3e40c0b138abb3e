# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Pools of layers that keep a window only: how many windows requests may hold, and DeepSeek V4's compressed pools.

Sources, as "SGLang <release> <path>:<line>" below sglang/srt:
  CAP        0.5.23 model_executor/pool_configurator.py:924 (compute_swa_request_cap), 0.5.14 :339 (SWAChunkCapPoolConfigurator)
  COMPRESSED 0.5.23 model_executor/pool_configurator.py:1068 (DSV4PoolConfigurator), the same of 0.5.12, 0.5.13, 0.5.15, 0.5.20, 0.5.21
  PAGES      0.5.23 kernels/ops/attention/dsv4/kv_layout.py:103 (page_bytes of the layout V4, which SGLANG_DSV4_KV_LAYOUT defaults to)
"""

from __future__ import annotations

import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _model
from ansible_collections.firstlight.sglang.plugins.module_utils._model_weights import align
from ansible_collections.firstlight.sglang.plugins.module_utils._plan_defaults import Resolved, since

# Tokens after which windows that nobody needs are given back (0.5.14 and 0.5.23 environ.py, SGLANG_SWA_EVICTION_INTERVAL).
_EVICTION_INTERVAL = 128
# Of a latent, the part that is rotary and kept in bfloat16; what scales take; one state number is float32 (COMPRESSED).
_ROTARY, _SCALES, _STATE_BYTES = 64, 8, 4
# Their runner's window is one less than config.json's (0.5.23 models/gemma3_causal.py:65, gpt_oss.py:132, gemma4_mm.py:315).
_ONE_LESS = ("Gemma", "GptOss")


class Compressed(t.NamedTuple):
    """Pools of compressed layers: what one token takes beside what is fixed by the number of requests, in bytes."""

    tokens: int
    swa_tokens: int
    bytes_per_token: float
    fixed_bytes: float


def index_bytes(attention: _model.Attention) -> int:
    """Bytes of one layer's index key: its elements in fp8 and a scale of 4 bytes for every 128."""
    return attention.index_dim + attention.index_dim // 128 * 4


def capped(resolved: Resolved, full: float) -> bool:
    """Whether the windows' pool is sized by the requests that may run, not by swa_full_tokens_ratio (CAP). full: bytes of other layers."""
    asked = resolved.running_per_worker is not None and resolved.chunked_prefill_size > 0
    return since(resolved.release, "0.5.14") and not resolved.radix_cache and asked and full > 0


def request_cap(resolved: Resolved, window: int) -> int:
    """Tokens of windows that the requests that may run hold at worst (CAP)."""
    page, spec = resolved.page_size, resolved.speculation
    drafts = spec.draft_tokens if spec is not None else 1
    decode = page
    if spec is not None and resolved.overlap:
        branches = spec.steps * spec.topk
        if page > 1 and spec.topk > 1:
            branches = (2 * (page - 1) + spec.steps) // page * page * spec.topk
        decode = 2 * max(branches, drafts)
    elif spec is not None:
        branch = spec.steps + page if page > 1 and spec.topk > 1 else spec.steps
        decode = max(align(branch, page) * spec.topk, align(drafts, page))
    each = window + _EVICTION_INTERVAL * drafts + page + decode
    return each * (resolved.running_per_worker or 1) + (2 if resolved.overlap else 1) * resolved.chunked_prefill_size + page


def window_tokens(model: _model.Model, resolved: Resolved) -> int:
    """Tokens of the windows' pool where it is capped."""
    window = max(attention.window or 0 for attention in model.attentions)
    return align(request_cap(resolved, window - model.architecture.startswith(_ONE_LESS)), resolved.page_size)


def compressed(model: _model.Model, resolved: Resolved, budget: float) -> Compressed:
    """DeepSeek V4's pools out of a budget in bytes: windows, latents of 4 and of 128 tokens, index, and states (COMPRESSED)."""
    attention, release, page = model.attentions[0], resolved.release, resolved.page_size
    stages, window, drafting = resolved.pp_size, attention.window or 128, resolved.speculation is not None
    fine, coarse = attention.index_layers / stages, attention.coarse_layers / stages
    # the layer of speculation was counted with them up to 0.5.12
    layers = (min(attention.layers, model.num_layers) if since(release, "0.5.13") else attention.layers) / stages
    latent = attention.latent_dim - _ROTARY + _ROTARY * 2 + _SCALES
    fine_ring, coarse_ring = (16, 256) if drafting else (8, 128)
    fine_state = 4 * (attention.latent_dim + attention.index_dim) * _STATE_BYTES
    coarse_state = 2 * attention.latent_dim * _STATE_BYTES
    index = index_bytes(attention) / 4 * fine
    more = (layers + 1) / layers if drafting else 1.0
    share, fixed, cap = resolved.swa_full_tokens_ratio, 0.0, None

    def paged(ratio: int) -> float:
        """Bytes of one latent with its page's padding (PAGES)."""
        if not since(release, "0.5.21"):
            return latent
        return align(page // ratio * latent, latent - _SCALES) / (page // ratio)

    windows = paged(1) * layers + fine_ring / (page if since(release, "0.5.21") else window) * fine_state * fine
    if since(release, "0.5.15"):  # these belong to requests since
        rows = align(((resolved.running_per_worker or 1) + 1) * coarse_ring + coarse_ring + 1, 128)
        fixed += rows * coarse_state * coarse
    else:
        windows += coarse_ring / window * coarse_state * coarse
    if since(release, "0.5.21") and not resolved.swa_ratio_given and resolved.chunked_prefill_size > 0:
        tails = 4 * (resolved.running_per_worker or 1) if resolved.radix_cache else 0
        tails = resolved.swa_prefix_tails if resolved.swa_prefix_tails is not None else tails
        cap = align(request_cap(resolved, window) + tails * (window + page), page)
        fixed += cap * windows * more
        share = 0.0
    each = (share * windows + paged(4) / 4 * fine + index + paged(128) / 128 * coarse) * more
    tokens = int(max(budget - fixed, 0) / each) // page * page
    if resolved.max_total_tokens is not None:
        tokens = min(tokens, resolved.max_total_tokens // page * page)
    return Compressed(tokens, int(tokens * share) // page * page if cap is None else cap, each, fixed)
