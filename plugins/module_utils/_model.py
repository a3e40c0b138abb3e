# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What the plan knows of a model: the shape of its layers, of what they remember, and of its weights.

_model_config.py reads it out of a config.json; _model_weights.py counts its weights; _plan_pools.py sizes what it remembers.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Attention:
    """Layers of one kind that keep keys and values (or a latent) for every token.

    kind: full | sliding | mla | compressed. layers: those with a cache of their own. window: tokens that a sliding layer keeps.
    latent_dim: MLA's kv_lora_rank + qk_rope_head_dim (then kv_heads, head_dim and v_head_dim are 0).
    index_dim, index_layers: the sparse indexer's head size and how many layers keep its keys (DSA); 0 without one.
    compressed (DeepSeek V4): all layers keep a window of latents; index_layers one for 4 tokens and an index, coarse_layers one for 128.
    """

    kind: str
    layers: int
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    window: int | None = None
    latent_dim: int = 0
    index_dim: int = 0
    index_layers: int = 0
    coarse_layers: int = 0


@dataclasses.dataclass(frozen=True)
class State:
    """Recurrent layers: what each keeps per request, whatever its length.

    kind: gdn | mamba2 | kda | ... . conv_channels x conv_columns elements of convolution, and heads x head_dim x state_dim of state,
    per layer, before they are split over tensor parallel ranks. groups: n_groups of mamba2 (replicated where there are fewer
    than ranks), None elsewhere. state_dtype: what the configuration asks for (float32 | bfloat16 | float16).
    """

    kind: str
    layers: int
    conv_channels: int
    conv_columns: int
    heads: int
    head_dim: int
    state_dim: int
    state_dtype: str
    groups: int | None = None


@dataclasses.dataclass(frozen=True)
class Vision:
    """The vision tower as the default fraction of memory looks at it: layers is what SGLang reads (its own default of 24 where absent).

    heads: those of its attention, which tensor parallel ranks must divide; None where config.json does not say.
    """

    layers: int
    hidden_size: int
    heads: int | None = None


@dataclasses.dataclass(frozen=True)
class Part:
    """Weights of one part of the model that are stored and sharded alike.

    name: embedding | lm_head | layers | experts | vision | draft | other, with more behind a dot where parts of one differ.
    elements: numbers of the whole model. bits: stored size of one, scales of a quantisation included. shard: tp (split over ranks) |
    kv (split over ranks as far as there are KV heads, then copied) | expert (split over expert parallel and tensor parallel ranks) |
    none (on every rank). kv_heads: for shard kv.
    """

    name: str
    elements: int
    bits: float
    shard: str
    kv_heads: int = 0


@dataclasses.dataclass(frozen=True)
class Model:
    """One model. known: its architecture has a reader of its own; otherwise every number is a generic estimate."""

    architecture: str
    known: bool
    context_length: int
    dtype: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    num_attention_heads: int
    attentions: tuple[Attention, ...]
    state: State | None
    parts: tuple[Part, ...]
    experts: int = 0
    # columns and rows of what leads into a routed expert: some kernels pad them
    expert_hidden: int = 0
    expert_intermediate: int = 0
    draft_layers: int = 0
    # the key that says how many draft layers there are: num_nextn_predict_layers | mtp_num_hidden_layers | None
    draft_key: str | None = None
    draft_attention: Attention | None = None
    vision: Vision | None = None
    multimodal: bool = False
    quantization: str | None = None
    # what the checkpoint itself says of its KV cache (fp8_e4m3), None where it says nothing
    kv_cache_dtype: str | None = None
    notes: tuple[str, ...] = ()
