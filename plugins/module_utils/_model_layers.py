# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Building blocks of models: what tensors a piece of a layer has, and how the engine splits each over ranks.

A new architecture is put together from these in _model_architectures.py. Names are the checkpoint's module names, since lists of modules
that a quantisation leaves out are matched against them. Which rank holds what: SGLang 0.5.23 layers/linear.py (column and row parallel
halves, replicated linears, KV heads copied where there are fewer than ranks), models/*.py.
"""

from __future__ import annotations

import typing as t

Weights = t.List["Weight"]  # noqa: UP006


class Weight(t.NamedTuple):
    """Tensors of one module: `copies` of them, rows x columns each.

    quantisable: linear | expert | head where a quantisation may apply, empty where none does (norms, routers, convolutions, embeddings).
    shard, kv_heads: as in _model.Part.
    """

    name: str
    rows: int
    columns: int = 1
    part: str = "layers"
    shard: str = "none"
    quantisable: str = ""
    copies: int = 1
    kv_heads: int = 0

    @property
    def elements(self) -> int:
        """Numbers in all of them."""
        return self.rows * self.columns * self.copies


def vector(name: str, size: int, shard: str = "none", part: str = "layers", kv_heads: int = 0) -> Weights:
    """A norm, a bias, or anything else that is small and stays as it is."""
    return [Weight(name, size, 1, part, shard, kv_heads=kv_heads)]


def linear(name: str, rows: int, columns: int, shard: str, bias: bool = False, part: str = "layers", kv_heads: int = 0) -> Weights:
    """A projection that a quantisation may apply to."""
    weights = [Weight(name, rows, columns, part, shard, "linear", kv_heads=kv_heads)]
    return weights + (vector(name + ".bias", rows, shard, part, kv_heads) if bias else [])


def plain(name: str, rows: int, columns: int, shard: str = "none", part: str = "layers") -> Weights:
    """A matrix that no quantisation applies to: routers, convolutions, position tables."""
    return [Weight(name, rows, columns, part, shard)]


def attention(
    name: str,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    bias: bool = False,
    out_bias: bool = False,
    qk_norm: str = "",
    gate: bool = False,
    sinks: bool = False,
    value_dim: int | None = None,
) -> Weights:
    """Grouped-query attention.

    qk_norm: head (one of a head's size for queries and one for keys) | full (of all heads). gate: queries carry an output gate of the same
    size. sinks: one number per head. value_dim: a head's size of values: that of keys where it is None, 0 where values are the keys.
    """
    kept = head_dim if value_dim is None else value_dim
    weights = linear(name + ".q_proj", heads * head_dim * (2 if gate else 1), hidden, "tp", bias)
    weights += linear(name + ".k_proj", kv_heads * head_dim, hidden, "kv", bias, kv_heads=kv_heads)
    weights += linear(name + ".v_proj", kv_heads * kept, hidden, "kv", bias, kv_heads=kv_heads) if kept else []
    weights += linear(name + ".o_proj", hidden, heads * (kept or head_dim), "tp")
    weights += vector(name + ".o_proj.bias", hidden) if out_bias else []
    weights += vector(name + ".sinks", heads, "tp") if sinks else []
    if qk_norm == "head":
        weights += vector(name + ".q_norm", head_dim) + vector(name + ".k_norm", head_dim)
    elif qk_norm == "full":
        weights += vector(name + ".q_norm", heads * head_dim, "tp") + vector(name + ".k_norm", kv_heads * head_dim, "kv", kv_heads=kv_heads)
    return weights


def mlp(
    name: str, hidden: int, intermediate: int, gated: bool = True, bias: bool = False, part: str = "layers.mlp", shard: str = "tp"
) -> Weights:
    """A feed-forward network; without a gate it has two matrices. Attention may be split over fewer ranks, so its part is another."""
    weights: Weights = []
    for projection in ("gate_proj", "up_proj") if gated else ("up_proj",):
        weights += linear(f"{name}.{projection}", intermediate, hidden, shard, bias, part)
    weights += linear(name + ".down_proj", hidden, intermediate, shard, part=part)
    return weights + (vector(name + ".down_proj.bias", hidden, part=part) if bias else [])


def experts(name: str, hidden: int, intermediate: int, count: int, gated: bool = True, bias: bool = False) -> Weights:
    """Routed experts, all of one layer: the first stands for all names, since no quantisation tells them apart."""
    weights: Weights = []
    for projection in ("gate_proj", "up_proj") if gated else ("up_proj",):
        weights.append(Weight(f"{name}.0.{projection}", intermediate, hidden, "experts", "expert", "expert", count))
    weights.append(Weight(f"{name}.0.down_proj", hidden, intermediate, "experts", "expert", "expert", count))
    if bias:
        weights.append(Weight(f"{name}.0.gate_up_proj.bias", intermediate * (2 if gated else 1), 1, "experts", "expert", copies=count))
        weights.append(Weight(f"{name}.0.down_proj.bias", hidden, 1, "experts", "expert", copies=count))
    return weights


def router(name: str, hidden: int, count: int, correction: bool = False, bias: bool = False) -> Weights:
    """What chooses the experts; on every rank, in the model's own type."""
    weights = plain(name, count, hidden)
    weights += vector(name + ".e_score_correction_bias", count) if correction else []
    return weights + (vector(name + ".bias", count) if bias else [])


def mla(name: str, hidden: int, heads: int, query_rank: int, latent: int, nope: int, rope: int, value: int) -> Weights:
    """Multi-head latent attention: what goes down to the latent is on every rank, what comes up from it is split by heads."""
    if query_rank:
        weights = linear(name + ".q_a_proj", query_rank, hidden, "none") + vector(name + ".q_a_layernorm", query_rank)
        weights += linear(name + ".q_b_proj", heads * (nope + rope), query_rank, "tp")
    else:
        weights = linear(name + ".q_proj", heads * (nope + rope), hidden, "tp")
    weights += linear(name + ".kv_a_proj_with_mqa", latent + rope, hidden, "none") + vector(name + ".kv_a_layernorm", latent)
    weights += linear(name + ".kv_b_proj", heads * (nope + value), latent, "tp")
    return weights + linear(name + ".o_proj", hidden, heads * value, "tp")


def indexer(name: str, hidden: int, query_rank: int, heads: int, head_dim: int) -> Weights:
    """The sparse indexer of DSA, on every rank."""
    weights = linear(name + ".wq_b", heads * head_dim, query_rank, "none") + linear(name + ".wk", head_dim, hidden, "none")
    return weights + vector(name + ".k_norm", 2 * head_dim) + plain(name + ".weights_proj", heads, hidden)


def gdn(name: str, hidden: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int, kernel: int) -> Weights:
    """Gated delta net: queries and keys, values, output gate, two numbers per value head, a convolution over the first three."""
    keys, values = key_heads * key_dim, value_heads * value_dim
    weights = linear(name + ".in_proj_qkv", 2 * keys + values, hidden, "tp") + linear(name + ".in_proj_z", values, hidden, "tp")
    weights += linear(name + ".in_proj_b", value_heads, hidden, "tp") + linear(name + ".in_proj_a", value_heads, hidden, "tp")
    weights += plain(name + ".conv1d", 2 * keys + values, kernel, "tp")
    weights += vector(name + ".A_log", value_heads, "tp") + vector(name + ".dt_bias", value_heads, "tp") + vector(name + ".norm", value_dim)
    return weights + linear(name + ".out_proj", hidden, values, "tp")


def mamba2(name: str, hidden: int, heads: int, head_dim: int, groups: int, state: int, kernel: int, conv_bias: bool, bias: bool) -> Weights:
    """Mamba 2: one projection into gate, input, B, C and step; a convolution over input, B and C; three numbers per head."""
    inner = heads * head_dim
    convolved = inner + 2 * groups * state
    weights = linear(name + ".in_proj", inner + convolved + heads, hidden, "tp", bias) + plain(name + ".conv1d", convolved, kernel, "tp")
    weights += vector(name + ".conv1d.bias", convolved, "tp") if conv_bias else []
    for small in ("A_log", "D", "dt_bias"):
        weights += vector(f"{name}.{small}", heads, "tp")
    return weights + vector(name + ".norm", inner, "tp") + linear(name + ".out_proj", hidden, inner, "tp", bias)


def vision_block(
    name: str, hidden: int, intermediate: int, attention_dim: int = 0, gated: bool = False, bias: bool = True, mlp_shard: str = "tp"
) -> Weights:
    """A block of a vision tower: joined query, key and value, output, feed-forward; norms are the caller's, since towers differ in them."""
    inner = attention_dim or hidden
    weights = linear(name + ".attn.qkv", 3 * inner, hidden, "tp", bias, "vision") + linear(
        name + ".attn.proj", hidden, inner, "tp", part="vision"
    )
    weights += vector(name + ".attn.proj.bias", hidden, part="vision") if bias else []
    return weights + mlp(name + ".mlp", hidden, intermediate, gated, bias, "vision", mlp_shard)
