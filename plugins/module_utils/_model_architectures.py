# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Architectures: which blocks (_model_layers.py) each is built of, and what its layers remember.

A new one is a row in ARCHITECTURES, with a function of a few lines where a block is new. Names of fields and of modules are those of the
published configurations and checkpoints; what the engine keeps for each layer: SGLang 0.5.23 configs/model_config.py (head sizes, latent
attention, layers with a window: is_hybrid_swa_model, get_hybrid_layer_ids), configs/mamba_utils.py, qwen3_next.py, nemotron_h.py.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _model_layers as block
from ansible_collections.firstlight.sglang.plugins.module_utils._model import Attention, State
from ansible_collections.firstlight.sglang.plugins.module_utils._model_fields import Fields, is_whole
from ansible_collections.firstlight.sglang.plugins.module_utils._model_layers import Weights

# What builds a piece of layer number n: fields, module name of the layer, n -> weights
Piece = t.Callable[[Fields, str, int], Weights]
Memory = t.Tuple[t.Tuple[Attention, ...], t.Optional[State]]  # noqa: UP006
LAYERS = {"low": 1, "high": 4096}


class Draft(t.NamedTuple):
    """Layers for speculation inside the checkpoint. copies: whether the draft holds copies of embedding and head while the pools are sized;
    stored: whether the checkpoint has these copies too."""

    key: str
    layers: int
    weights: Weights
    attention: Attention | None
    copies: bool = True
    stored: bool = False


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How one architecture is put together.

    norms: vectors of the hidden size in each layer, other than those of its pieces. vision_always: the tower is there with the defaults of
    its class where the configuration does not speak of it. defaults: what the class of its configuration takes where a field is not there.
    rotary: whether there is a table of angles.
    """

    mixer: Piece
    feed: Piece
    memory: t.Callable[[Fields], Memory]
    norms: int = 2
    prefix: str = "model."
    head: str = "lm_head"
    embedding: str = "embed_tokens"
    vision: t.Callable[[Fields, Fields], Weights] | None = None
    vision_always: bool = False
    vision_hidden: str = "hidden_size"
    draft: t.Callable[[Architecture, Fields], Draft | None] | None = None
    layers: t.Callable[[Fields], int] | None = None
    experts: t.Tuple[str, ...] = ()  # noqa: UP006
    tied: bool = False
    rotary: bool = True
    defaults: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    more: t.Callable[[Fields], Weights] | None = None


def layer_count(f: Fields) -> int:
    """Layers of the model itself."""
    return f.whole("num_hidden_layers", **LAYERS)


def heads_of(f: Fields) -> t.Tuple[int, int, int]:  # noqa: UP006
    """Query heads, KV heads and a head's size."""
    heads = f.whole("num_attention_heads", high=65536)
    kv_heads = f.whole("num_key_value_heads", heads, high=65536)
    if heads % kv_heads:
        f.problem("num_key_value_heads", f"a divisor of num_attention_heads ({heads})", str(kv_heads), "correct one of the two")
    default = f.whole("hidden_size") // heads
    if not f.has("head_dim") and default < 1:
        f.problem("num_attention_heads", "at most hidden_size heads", str(heads), "correct one of the two")
    return heads, kv_heads, f.whole("head_dim", max(default, 1), high=65536)


# Pieces of layers


def gqa(
    qk_norm: str = "",
    bias: bool | None = None,
    out_bias: bool | None = None,
    gate: bool = False,
    sinks: bool = False,
    name: str = ".self_attn",
) -> Piece:
    """Grouped-query attention. bias, out_bias: None: as attention_bias says."""

    def build(f: Fields, layer: str, _number: int) -> Weights:
        heads, kv_heads, head_dim = heads_of(f)
        said = f.flag("attention_bias")
        return block.attention(
            layer + name,
            f.whole("hidden_size"),
            heads,
            kv_heads,
            head_dim,
            said if bias is None else bias,
            said if out_bias is None else out_bias,
            qk_norm,
            gate and f.flag("attn_output_gate", True),
            sinks,
        )

    return build


def dense(f: Fields, layer: str, _number: int) -> Weights:
    """A gated feed-forward network."""
    return block.mlp(layer + ".mlp", f.whole("hidden_size"), f.whole("intermediate_size"), bias=f.flag("mlp_bias"))


def qwen_experts(f: Fields, layer: str, number: int) -> Weights:
    """Experts in every decoder_sparse_step-th layer but mlp_only_layers, one shared expert with a gate of its own where there is one."""
    if number in (f.items("mlp_only_layers", (int,)) or []) or (number + 1) % f.whole("decoder_sparse_step", 1, high=4096):
        return dense(f, layer, number)
    hidden, count = f.whole("hidden_size"), f.whole("num_experts", high=65536)
    weights = block.router(layer + ".mlp.gate", hidden, count)
    weights += block.experts(layer + ".mlp.experts", hidden, f.whole("moe_intermediate_size"), count)
    shared = f.whole("shared_expert_intermediate_size", 0, low=0)
    if shared:
        weights += block.mlp(layer + ".mlp.shared_expert", hidden, shared) + block.plain(layer + ".mlp.shared_expert_gate", 1, hidden)
    return weights


def mixtral_experts(f: Fields, layer: str, _number: int) -> Weights:
    """Experts in every layer."""
    hidden, count = f.whole("hidden_size"), f.whole("num_local_experts", high=65536)
    weights = block.router(layer + ".block_sparse_moe.gate", hidden, count, correction=f.flag("use_routing_bias"))
    return weights + block.experts(layer + ".block_sparse_moe.experts", hidden, f.whole("intermediate_size"), count)


def listed(f: Fields, key: str, number: int, kinds: t.Tuple[type, ...]) -> t.Any:  # noqa: UP006
    """What a list with one entry a layer says of a layer, None where there is no list."""
    values = f.items(key, kinds, layer_count(f))
    return values[number] if values and number < len(values) else None


def is_sparse(f: Fields, number: int) -> bool:
    """Whether a layer of the DeepSeek family has experts: after the first dense ones, every moe_layer_freq-th, or as a list says."""
    kind = listed(f, "mlp_layer_types", number, (str,))
    if kind is not None:
        return bool(kind == "sparse")
    if isinstance(f.value("moe_layer_freq"), list):
        return bool(listed(f, "moe_layer_freq", number, (int,)))
    return number >= f.whole("first_k_dense_replace", 0, low=0) and number % f.whole("moe_layer_freq", 1) == 0


def deepseek_experts(f: Fields, layer: str, number: int) -> Weights:
    """Dense layers first; then experts, with shared ones that are one network of their joined size."""
    if not is_sparse(f, number):
        return dense(f, layer, number)
    hidden, count = f.whole("hidden_size"), f.whole(("n_routed_experts", "num_experts"), high=65536)
    size = f.whole("moe_intermediate_size")
    weights = block.router(layer + ".mlp.gate", hidden, count, correction=f.word("topk_method", "noaux_tc") == "noaux_tc")
    weights += block.experts(layer + ".mlp.experts", hidden, size, count)
    shared = f.whole("n_shared_experts", 0, low=0, high=65536)
    return weights + (block.mlp(layer + ".mlp.shared_experts", hidden, shared * size) if shared else [])


def minimax_m3_feed(f: Fields, layer: str, number: int) -> Weights:
    """Dense layers of a size of their own; then experts with a bias for choosing, and one shared network."""
    hidden = f.whole("hidden_size")
    if not is_sparse(f, number):
        return block.mlp(layer + ".mlp", hidden, f.whole(("dense_intermediate_size", "intermediate_size")))
    weights = mixtral_experts(f, layer, number)
    return weights + block.mlp(layer + ".block_sparse_moe.shared_experts", hidden, f.whole("shared_intermediate_size"))


def gpt_oss_experts(f: Fields, layer: str, _number: int) -> Weights:
    """Experts with biases in every layer."""
    hidden, count = f.whole("hidden_size"), f.whole("num_local_experts", high=65536)
    weights = block.router(layer + ".mlp.router", hidden, count, bias=True)
    return weights + block.experts(layer + ".mlp.experts", hidden, f.whole("intermediate_size"), count, bias=True)


def llama4_feed(f: Fields, layer: str, number: int) -> Weights:
    """Experts with one shared network in every interleave_moe_layer_step-th layer, dense ones of another size between."""
    hidden = f.whole("hidden_size")
    if (number + 1) % f.whole("interleave_moe_layer_step", 1, high=4096):
        return block.mlp(layer + ".feed_forward", hidden, f.whole(("intermediate_size_mlp", "intermediate_size")))
    count, size = f.whole("num_local_experts", high=65536), f.whole("intermediate_size")
    weights = block.router(layer + ".feed_forward.router", hidden, count) + block.experts(
        layer + ".feed_forward.experts", hidden, size, count
    )
    return weights + block.mlp(layer + ".feed_forward.shared_expert", hidden, size)


def gemma4_feed(f: Fields, layer: str, number: int) -> Weights:
    """A dense network in every layer; beside it, in the models with experts, these with a router and norms of their own."""
    hidden = f.whole("hidden_size")
    wide = number >= layer_count(f) - f.whole("num_kv_shared_layers", 0, low=0) and f.flag("use_double_wide_mlp")
    weights = block.mlp(layer + ".mlp", hidden, f.whole("intermediate_size") * (2 if wide else 1))
    if f.flag("enable_moe_block"):
        count = f.whole("num_experts", high=65536)
        weights += block.router(layer + ".router.proj", hidden, count) + block.vector(layer + ".router.scale", hidden + count)
        weights += block.experts(layer + ".experts", hidden, f.whole("moe_intermediate_size"), count) + block.vector(
            layer + ".moe_norms", 3 * hidden
        )
    inputs = f.whole("hidden_size_per_layer_input", 0, low=0)
    if inputs:
        weights += block.linear(layer + ".per_layer_input_gate", inputs, hidden, "none") + block.vector(layer + ".per_layer_norm", hidden)
        weights += block.linear(layer + ".per_layer_projection", hidden, inputs, "none")
    return weights


def step_feed(f: Fields, layer: str, number: int) -> Weights:
    """As deepseek_experts, under Step's names."""
    hidden = f.whole("hidden_size")
    if not is_sparse(f, number):
        return dense(f, layer, number)
    count = f.whole(("moe_num_experts", "num_experts"), high=65536)
    weights = block.router(layer + ".moe.gate", hidden, count, bias=f.flag("use_moe_router_bias"))
    weights += block.experts(layer + ".moe.experts", hidden, f.whole("moe_intermediate_size"), count)
    return weights + block.mlp(layer + ".share_expert", hidden, f.whole(("share_expert_dims", "share_expert_dim"), 1280))


def kimi_k3_feed(f: Fields, layer: str, number: int) -> Weights:
    """Experts that work on a smaller hidden state, which two projections lead to and from."""
    hidden = f.whole("hidden_size")
    if not is_sparse(f, number):
        return dense(f, layer, number)
    count, size = f.whole("num_experts", high=65536), f.whole("moe_intermediate_size")
    inner = f.whole("routed_expert_hidden_size", hidden)
    name = layer + ".block_sparse_moe"
    weights = block.router(name + ".gate", hidden, count, correction=True) + block.experts(name + ".experts", inner, size, count)
    if inner != hidden:
        weights += block.linear(name + ".routed_expert_down_proj", inner, hidden, "none") + block.vector(name + ".latent_norm", inner)
        weights += block.linear(name + ".routed_expert_up_proj", hidden, inner, "none")
    return weights + block.mlp(name + ".shared_experts", hidden, f.whole("num_shared_experts", 1, high=65536) * size)


def latent(f: Fields, layer: str, number: int) -> Weights:
    """Multi-head latent attention, with a sparse indexer where the configuration has one. The engine keeps what comes up from the latent a
    second time, cut in two for its absorbed form (models/deepseek_common/deepseek_weight_loader.py)."""
    heads, hidden, query = f.whole("num_attention_heads", high=65536), f.whole("hidden_size"), f.whole("q_lora_rank", 0, low=0)
    rank, rope = f.whole("kv_lora_rank"), f.whole("qk_rope_head_dim")
    nope, value = f.whole("qk_nope_head_dim"), f.whole("v_head_dim")
    name = layer + ".self_attn"
    weights = block.mla(name, hidden, heads, query, rank, nope, rope, value)
    weights += block.linear(name + ".kv_b_proj", heads * (nope + value), rank, "tp", part="layers.copy")
    if indexed(f, number):
        weights += block.indexer(name + ".indexer", hidden, query, f.whole("index_n_heads", high=65536), f.whole("index_head_dim"))
    return weights


def indexed(f: Fields, number: int) -> bool:
    """Whether a layer has a sparse indexer of its own (configs/model_config.py, dsa_layer_skips_topk). Layers for speculation have one."""
    if not f.has("index_topk"):
        return False
    kinds = f.items("indexer_types", (str,))
    if kinds is not None:
        return number >= len(kinds) or kinds[number] != "shared"
    frequency = f.whole("index_topk_freq", 1, high=4096)
    return max(number - f.whole("index_skip_topk_offset", 2, high=4096) + 1, 0) % frequency == 0


def minimax_m3_mixer(f: Fields, layer: str, number: int) -> Weights:
    """Attention with norms per head, and a small indexer (queries, keys, in some layers values and output) in the sparse layers."""
    weights = gqa("head")(f, layer, number)
    sparse = f.part("sparse_attention_config")
    if sparse is None or not _entry(sparse, "sparse_attention_freq", number):
        return weights
    hidden, heads, size = (
        f.whole("hidden_size"),
        sparse.whole("sparse_num_index_heads", high=65536),
        sparse.whole("sparse_index_dim", high=65536),
    )
    name = layer + ".self_attn"
    weights += block.linear(name + ".index_q_proj", heads * size, hidden, "kv", kv_heads=heads)
    weights += block.linear(name + ".index_k_proj", size, hidden, "none") + block.vector(name + ".index_norms", 2 * size)
    if not _entry(sparse, "sparse_disable_index_value", number):
        weights += block.linear(name + ".index_v_proj", size, hidden, "none")
        weights += block.linear(name + ".index_o_proj", hidden, heads * size, "kv", kv_heads=heads)
    return weights


def _entry(f: Fields, key: str, number: int) -> int:
    values = f.items(key, (int,)) or []
    return int(values[number]) if number < len(values) else 0


def gemma4_mixer(f: Fields, layer: str, number: int) -> Weights:
    """Layers with a window and layers without have heads of different sizes; where values are the keys, the engine still has room for both
    (models/gemma4_causal.py)."""
    heads, kv_heads, head_dim = gemma4_heads(f, number)
    hidden, name = f.whole("hidden_size"), layer + ".self_attn"
    shared = not windowed(f, number) and f.flag("attention_k_eq_v")
    weights = block.attention(name, hidden, heads, kv_heads, head_dim, qk_norm="head", value=not shared)
    return weights + (
        block.linear(name + ".k_proj", kv_heads * head_dim, hidden, "kv", part="layers.copy", kv_heads=kv_heads) if shared else []
    )


def gemma4_heads(f: Fields, number: int) -> t.Tuple[int, int, int]:  # noqa: UP006
    """Query heads, KV heads and head size of a layer."""
    heads, kv_heads, head_dim = heads_of(f)
    if windowed(f, number):
        return heads, kv_heads, head_dim
    own = f.whole("num_global_key_value_heads", kv_heads, high=65536) if f.flag("attention_k_eq_v") else kv_heads
    return heads, own, f.whole("global_head_dim", head_dim, high=65536)


def windowed(f: Fields, number: int) -> bool:
    """Whether a layer looks only at a window."""
    return bool(listed(f, "layer_types", number, (str,)) in ("sliding_attention", "chunked_attention"))


def step_heads(f: Fields, number: int) -> t.Tuple[int, int, int]:  # noqa: UP006
    """Step: layers with a window have query heads of another number."""
    heads, kv_heads, head_dim = (
        f.whole("num_attention_heads", high=65536),
        f.whole(("num_attention_groups", "num_key_value_heads"), high=65536),
        128,
    )
    other = f.part("attention_other_setting")
    if windowed(f, number) and other is not None:
        heads = other.whole("num_attention_heads", heads, high=65536)
        kv_heads = other.whole("num_attention_groups", kv_heads, high=65536)
    return heads, kv_heads, f.whole("head_dim", head_dim, high=65536)


def step_mixer(f: Fields, layer: str, number: int) -> Weights:
    """Attention with norms per head and one gate per head."""
    heads, kv_heads, head_dim = step_heads(f, number)
    hidden, name = f.whole("hidden_size"), layer + ".self_attn"
    return block.attention(name, hidden, heads, kv_heads, head_dim, qk_norm="head") + block.plain(name + ".g_proj", heads, hidden, "tp")


def kimi_k3_mixer(f: Fields, layer: str, number: int) -> Weights:
    """Latent attention with an output gate, or a delta net whose decay is per channel (models/kimi_k3.py); both on top of residuals that
    attend to earlier layers."""
    hidden, linear = f.whole("hidden_size"), f.part("linear_attn_config")
    residual = block.vector(layer + ".attn_res", 4 * hidden) if f.has("attn_res_block_size") else []
    if linear is None or not is_kda(f, number):
        heads = f.whole("num_attention_heads", high=65536)
        gate = (
            block.linear(layer + ".self_attn.g_proj", heads * f.whole("v_head_dim"), hidden, "tp") if f.flag("mla_use_output_gate") else []
        )
        return latent(f, layer, number) + gate + residual
    heads, size, kernel = (
        linear.whole("num_heads", high=65536),
        linear.whole("head_dim"),
        linear.whole("short_conv_kernel_size", high=65536),
    )
    name, inner = layer + ".self_attn", heads * size
    weights = residual
    for projection in ("q_proj", "k_proj", "v_proj"):
        weights = weights + block.linear(f"{name}.{projection}", inner, hidden, "tp")
    weights = weights + block.linear(name + ".b_proj", heads, hidden, "tp") + block.plain(name + ".conv1d", 3 * inner, kernel, "tp")
    weights += block.linear(name + ".f_a_proj", size, hidden, "none") + block.linear(name + ".f_b_proj", inner, size, "tp")
    if linear.flag("use_full_rank_gate"):
        weights += block.linear(name + ".g_proj", inner, hidden, "tp")
    else:
        weights += block.linear(name + ".g_a_proj", size, hidden, "none") + block.linear(name + ".g_b_proj", inner, size, "tp")
    weights += (
        block.vector(name + ".dt_bias", inner, "tp") + block.vector(name + ".A_log", heads, "tp") + block.vector(name + ".o_norm", size)
    )
    return weights + block.linear(name + ".o_proj", hidden, inner, "tp")


def is_kda(f: Fields, number: int) -> bool:
    """Whether a layer is a recurrent one: lists of Kimi count layers from 1."""
    linear = f.part("linear_attn_config")
    return linear is not None and number + 1 in (linear.items("kda_layers", (int,)) or [])


def v4_mixer(f: Fields, layer: str, number: int) -> Weights:
    """DeepSeek V4: one key that is also the value, for all heads; the output in groups through a smaller rank; in some layers compressed
    keys, with an indexer over those compressed least; several residual streams (models/deepseek_v4.py, layers/attention/dsv4)."""
    hidden, heads, head_dim = f.whole("hidden_size"), f.whole("num_attention_heads", high=65536), f.whole("head_dim", high=65536)
    rank, groups, out_rank = f.whole("q_lora_rank"), f.whole("o_groups", high=65536), f.whole("o_lora_rank")
    name = layer + ".attn"
    weights = block.linear(name + ".wq_a", rank, hidden, "none") + block.linear(name + ".wkv", head_dim, hidden, "none")
    weights += block.vector(name + ".norms", rank + head_dim) + block.vector(name + ".attn_sink", heads)
    weights += block.linear(name + ".wq_b", heads * head_dim, rank, "tp")
    weights += block.linear(name + ".wo_a", groups * out_rank, heads * head_dim // groups, "tp")
    weights += block.linear(name + ".wo_b", hidden, groups * out_rank, "tp")
    streams = f.whole("hc_mult", 1, high=64)
    mixed = (2 + streams) * streams
    weights += block.vector(layer + ".hc", 2 * (mixed * streams * hidden + mixed + 3))
    ratio = _entry(f, "compress_ratios", number)
    if ratio > 0:
        weights += compressor(name + ".compressor", hidden, head_dim, ratio)
    if ratio == 4:
        size = f.whole("index_head_dim", high=65536)
        index_heads = f.whole("index_n_heads", high=65536)
        weights += block.linear(name + ".indexer.wq_b", index_heads * size, rank, "none")
        weights += block.plain(name + ".indexer.weights_proj", index_heads, hidden) + compressor(
            name + ".indexer.compressor", hidden, size, 4
        )
    return weights


def compressor(name: str, hidden: int, head_dim: int, ratio: int) -> Weights:
    """What joins `ratio` tokens into one; the least compression looks at two windows."""
    windows = 2 if ratio == 4 else 1
    weights = block.plain(name + ".wkv_gate", 2 * windows * head_dim, hidden) + block.vector(name + ".norm", head_dim)
    return weights + block.plain(name + ".ape", ratio, windows * head_dim)


def v4_feed(f: Fields, layer: str, number: int) -> Weights:
    """Experts in every layer; the first ones choose by a table of the vocabulary instead of a bias."""
    hidden, count, size = f.whole("hidden_size"), f.whole("n_routed_experts", high=65536), f.whole("moe_intermediate_size")
    hashed = number < f.whole("num_hash_layers", 0, low=0, high=4096)
    weights = block.router(layer + ".ffn.gate", hidden, count, correction=not hashed) + block.experts(
        layer + ".ffn.experts", hidden, size, count
    )
    shared = f.whole("n_shared_experts", 0, low=0, high=65536)
    return weights + (block.mlp(layer + ".ffn.shared_experts", hidden, shared * size) if shared else [])


def nemotron_pattern(f: Fields) -> str:
    """One letter a layer: M mamba, * attention, E experts, - dense."""
    names = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-"}
    kinds = f.items("layers_block_type", (str,))
    pattern = "".join(names.get(kind, "?") for kind in kinds) if kinds else f.word("hybrid_override_pattern")
    if not pattern or len(pattern) > LAYERS["high"] or set(pattern) - set("M*E-"):
        f.problem(
            "hybrid_override_pattern", "a text of M, *, E and -, one a layer", repr(pattern)[:60], "take the config.json that was published"
        )
        return "-"
    return pattern


def nemotron_block(f: Fields, layer: str, letter: str) -> Weights:
    """One layer of Nemotron-H is one piece."""
    hidden, name = f.whole("hidden_size"), layer + ".mixer"
    if letter == "M":
        heads, size, groups = (
            f.whole("mamba_num_heads", high=65536),
            f.whole("mamba_head_dim", high=65536),
            f.whole(("n_groups", "mamba_n_groups"), 8, high=65536),
        )
        state, kernel = f.whole("ssm_state_size", high=65536), f.whole(("conv_kernel", "mamba_d_conv"), 4, high=65536)
        return block.mamba2(name, hidden, heads, size, groups, state, kernel, f.flag("use_conv_bias", True), f.flag("mamba_proj_bias"))
    if letter == "*":
        return gqa(name=".mixer")(f, layer, 0)
    if letter == "-":
        return block.mlp(name, hidden, f.whole("intermediate_size"), gated=False, bias=f.flag("mlp_bias"))
    count, inner = f.whole("n_routed_experts", high=65536), f.whole("moe_latent_size", hidden)
    weights = block.router(name + ".gate", hidden, count, correction=True)
    weights += block.experts(name + ".experts", inner, f.whole("moe_intermediate_size"), count, gated=False)
    if inner != hidden:
        weights += block.linear(name + ".fc1_latent_proj", inner, hidden, "none") + block.linear(
            name + ".fc2_latent_proj", hidden, inner, "none"
        )
    shared = f.whole("n_shared_experts", 0, low=0, high=65536)
    size = shared * f.whole("moe_shared_expert_intermediate_size") if shared else 0
    return weights + (block.mlp(name + ".shared_experts", hidden, size, gated=False) if size else [])


def nemotron_mixer(f: Fields, layer: str, number: int) -> Weights:
    """The piece that the pattern names."""
    return nemotron_block(f, layer, nemotron_pattern(f)[number])


def granite_mixer(f: Fields, layer: str, number: int) -> Weights:
    """Mamba or attention, as a list says."""
    if listed(f, "layer_types", number, (str,)) != "mamba":
        return gqa()(f, layer, number)
    heads, size, groups = granite_mamba(f)
    state, kernel = f.whole("mamba_d_state", high=65536), f.whole("mamba_d_conv", 4, high=65536)
    conv_bias, bias = f.flag("mamba_conv_bias", True), f.flag("mamba_proj_bias")
    return block.mamba2(layer + ".mamba", f.whole("hidden_size"), heads, size, groups, state, kernel, conv_bias, bias)


def granite_mamba(f: Fields) -> t.Tuple[int, int, int]:  # noqa: UP006
    """Heads, a head's size and groups of Granite's mamba layers."""
    heads = f.whole("mamba_n_heads", high=65536)
    inner = f.whole("hidden_size") * f.whole("mamba_expand", 2, high=64)
    size = f.whole("mamba_d_head", high=65536) if is_whole(f.value("mamba_d_head")) else max(inner // heads, 1)
    return heads, size, f.whole("mamba_n_groups", 1, high=65536)


def granite_feed(f: Fields, layer: str, _number: int) -> Weights:
    """A shared network, and experts in the models that have some."""
    hidden, count = f.whole("hidden_size"), f.whole("num_local_experts", 0, low=0, high=65536)
    weights = block.mlp(layer + ".shared_mlp", hidden, f.whole("shared_intermediate_size"))
    if count:
        weights += block.router(layer + ".block_sparse_moe.router", hidden, count)
        weights += block.experts(layer + ".block_sparse_moe.experts", hidden, f.whole("intermediate_size"), count)
    return weights


def nothing(_f: Fields, _layer: str, _number: int) -> Weights:
    """No second piece."""
    return []


def gqa_glm(f: Fields, layer: str, number: int) -> Weights:
    """GLM 4.x: biases of queries, keys and values only, norms where the configuration says so."""
    return gqa("head" if f.flag("use_qk_norm") else "", out_bias=False)(f, layer, number)


# What layers remember


def full(f: Fields) -> Memory:
    """Every layer keeps every token."""
    kv_heads, head_dim = heads_of(f)[1:]
    return (Attention("full", layer_count(f), kv_heads, head_dim, head_dim),), None


def is_linear(f: Fields, number: int) -> bool:
    """Whether a layer of a Qwen hybrid is a recurrent one."""
    kinds = f.items("layer_types", (str,), layer_count(f))
    if kinds is not None:
        return bool(kinds[number] == "linear_attention")
    return (number + 1) % f.whole("full_attention_interval", 4, high=4096) != 0


def state_dtype(f: Fields, *keys: str) -> str:
    """What the configuration asks for the state; float32 where it does not."""
    word = f.word(keys, "float32")
    if word not in ("float32", "bfloat16", "float16"):
        f.problem(keys[0], "float32, bfloat16 or float16", repr(word), "correct it")
    return word


def qwen_hybrid(f: Fields) -> Memory:
    """Some layers keep tokens, the others a state."""
    recurrent = sum(is_linear(f, number) for number in range(layer_count(f)))
    kv_heads, head_dim = heads_of(f)[1:]
    keys, values = f.whole("linear_num_key_heads", high=65536), f.whole("linear_num_value_heads", high=65536)
    key_dim, value_dim = f.whole("linear_key_head_dim", high=65536), f.whole("linear_value_head_dim", high=65536)
    columns = f.whole("linear_conv_kernel_dim", high=65536) - 1
    channels = 2 * keys * key_dim + values * value_dim
    state = State("gdn", recurrent, channels, columns, values, value_dim, key_dim, state_dtype(f, "mamba_ssm_dtype")) if recurrent else None
    kept = layer_count(f) - recurrent
    return ((Attention("full", kept, kv_heads, head_dim, head_dim),) if kept else ()), state


def qwen_hybrid_mixer(f: Fields, layer: str, number: int) -> Weights:
    """A gated delta net, or attention with an output gate."""
    if not is_linear(f, number):
        return gqa("head", gate=True)(f, layer, number)
    return block.gdn(
        layer + ".linear_attn",
        f.whole("hidden_size"),
        f.whole("linear_num_key_heads", high=65536),
        f.whole("linear_num_value_heads", high=65536),
        f.whole("linear_key_head_dim", high=65536),
        f.whole("linear_value_head_dim", high=65536),
        f.whole("linear_conv_kernel_dim", high=65536),
    )


def split_by_window(
    heads: t.Callable[[Fields, int], tuple[int, int, int]], where: t.Callable[[Fields, int], bool] = windowed
) -> t.Callable[[Fields], Memory]:
    """Layers with a window keep that many tokens, the others all: a pool each."""

    def build(f: Fields) -> Memory:
        kinds: t.Dict[t.Tuple[bool, int, int], int] = {}  # noqa: UP006
        for number in range(layer_count(f)):
            sliding = where(f, number)
            key = (sliding, *heads(f, number)[1:])
            kinds[key] = kinds.get(key, 0) + 1
        window = f.whole(("sliding_window", "attention_chunk_size")) if any(key[0] for key in kinds) else None
        attentions = []
        for (sliding, kv_heads, head_dim), layers in sorted(kinds.items()):
            attentions.append(
                Attention("sliding" if sliding else "full", layers, kv_heads, head_dim, head_dim, window if sliding else None)
            )
        return tuple(attentions), None

    return build


def latents(f: Fields) -> Memory:
    """Every layer keeps a latent, and keys of the indexer where it has one."""
    return (latent_attention(f, range(layer_count(f))),), None


def latent_attention(f: Fields, numbers: t.Iterable[int]) -> Attention:
    """What layers with latent attention keep."""
    layers = list(numbers)
    own = sum(indexed(f, number) for number in layers)
    size = f.whole("index_head_dim") if own else 0
    return Attention("mla", len(layers), latent_dim=f.whole("kv_lora_rank") + f.whole("qk_rope_head_dim"), index_dim=size, index_layers=own)


def kimi_k3_memory(f: Fields) -> Memory:
    """Latents, and states of delta nets (configs/kimi_linear.py)."""
    numbers = range(layer_count(f))
    kept = [number for number in numbers if not is_kda(f, number)]
    linear = f.part("linear_attn_config")
    if linear is None:
        return latents(f)
    heads, size = linear.whole("num_heads", high=65536), linear.whole("head_dim", high=65536)
    columns = linear.whole("short_conv_kernel_size", high=65536) - 1
    state = State("kda", len(numbers) - len(kept), 3 * heads * size, columns, heads, size, size, "float32")
    return ((latent_attention(f, kept),) if kept else ()), state if state.layers else None


def nemotron_memory(f: Fields) -> Memory:
    """States of the mamba layers; SGLang does not read mamba_ssm_cache_dtype (configs/mamba_utils.py)."""
    pattern = nemotron_pattern(f)
    kv_heads, head_dim = heads_of(f)[1:]
    kept, recurrent = pattern.count("*"), pattern.count("M")
    attentions = (Attention("full", kept, kv_heads, head_dim, head_dim),) if kept else ()
    if not recurrent:
        return attentions, None
    heads, size = f.whole("mamba_num_heads", high=65536), f.whole("mamba_head_dim", high=65536)
    groups, state = f.whole(("n_groups", "mamba_n_groups"), 8, high=65536), f.whole("ssm_state_size", high=65536)
    columns = f.whole(("conv_kernel", "mamba_d_conv"), 4, high=65536) - 1
    channels = heads * size + 2 * groups * state
    return attentions, State("mamba2", recurrent, channels, columns, heads, size, state, state_dtype(f, "mamba_ssm_dtype"), groups)


def granite_memory(f: Fields) -> Memory:
    """Tokens of the attention layers, states of the others."""
    numbers = range(layer_count(f))
    recurrent = sum(listed(f, "layer_types", number, (str,)) == "mamba" for number in numbers)
    kv_heads, head_dim = heads_of(f)[1:]
    kept = len(numbers) - recurrent
    attentions = (Attention("full", kept, kv_heads, head_dim, head_dim),) if kept else ()
    if not recurrent:
        return attentions, None
    heads, size, groups = granite_mamba(f)
    state = f.whole("mamba_d_state", high=65536)
    columns = f.whole("mamba_d_conv", 4, high=65536) - 1
    channels = heads * size + 2 * groups * state
    return attentions, State("mamba2", recurrent, channels, columns, heads, size, state, state_dtype(f, "mamba_ssm_dtype"), groups)


def v4_memory(f: Fields) -> Memory:
    """DeepSeek V4: every layer keeps a window; some keep what compresses 4 tokens, with keys of an indexer, others what compresses 128."""
    layers = layer_count(f)
    ratios = [_entry(f, "compress_ratios", number) for number in range(layers)]
    fine, coarse = ratios.count(4), ratios.count(128)
    if fine + coarse + ratios.count(0) != layers:
        f.problem(
            "compress_ratios", "a list of 0, 4 and 128", str(sorted(set(ratios)))[:60], "plan with measured numbers, or report the model"
        )
    kept = v4_kept(f, layers)
    return (dataclasses.replace(kept, index_dim=f.whole("index_head_dim") if fine else 0, index_layers=fine, coarse_layers=coarse),), None


def v4_kept(f: Fields, layers: int) -> Attention:
    """The window that layers of DeepSeek V4 keep."""
    return Attention("compressed", layers, window=f.whole("sliding_window"), latent_dim=f.whole("head_dim", high=65536))


def any_heads(f: Fields, _number: int) -> t.Tuple[int, int, int]:  # noqa: UP006
    """The same heads in every layer."""
    return heads_of(f)


def chunked(_f: Fields, number: int) -> bool:
    """Llama 4: all but every fourth layer (configs/model_config.py, get_hybrid_layer_ids)."""
    return (number + 1) % 4 != 0


# Vision towers


def qwen_vision(v: Fields, _f: Fields) -> Weights:
    """Qwen3-VL, Qwen3.5: patches, positions, blocks, a merger of its own for the output and for every deepstack layer."""
    hidden, depth, merge = v.whole("hidden_size"), v.whole("depth", **LAYERS), v.whole("spatial_merge_size", 2, high=64)
    patch = v.whole("in_channels", 3, high=64) * v.whole("temporal_patch_size", 2, high=64) * v.whole("patch_size", 16, high=4096) ** 2
    weights = block.plain("model.visual.patch_embed.proj", hidden, patch, part="vision") + block.vector(
        "model.visual.patch_embed.bias", hidden, part="vision"
    )
    weights += block.plain("model.visual.pos_embed", v.whole("num_position_embeddings"), hidden, "tp", "vision")
    for number in range(depth):
        name = f"model.visual.blocks.{number}"
        weights += block.vision_block(name, hidden, v.whole("intermediate_size"), gated=False) + block.vector(
            name + ".norms", 4 * hidden, part="vision"
        )
    merged = hidden * merge**2
    stacked = len(v.items("deepstack_visual_indexes", (int,)) or [])
    for number in range(1 + stacked):
        name = f"model.visual.deepstack_merger_list.{number - 1}" if number else "model.visual.merger"
        weights += block.vector(name + ".norm", 2 * (merged if number else hidden), part="vision")
        weights += block.linear(name + ".linear_fc1", merged, merged, "tp", True, "vision")
        weights += block.linear(name + ".linear_fc2", v.whole("out_hidden_size"), merged, "tp", part="vision")
        weights += block.vector(name + ".linear_fc2.bias", v.whole("out_hidden_size"), part="vision")
    return weights


def kimi_vision(v: Fields, f: Fields) -> Weights:
    """Kimi K2.5: a MoonViT whose feed-forward networks, and whose projector, are on every rank (models/kimi_k25.py, kimi_vl_moonvit.py)."""
    hidden, patch = v.whole("vt_hidden_size"), 3 * v.whole("patch_size", 14, high=4096) ** 2
    merge = v.items("merge_kernel_size", (int,)) or [2, 2]
    weights = block.plain("vision_tower.patch_embed.proj", hidden, patch, part="vision") + block.vector(
        "vision_tower.patch_embed.bias", hidden, part="vision"
    )
    positions = v.whole("init_pos_emb_height", 64) * v.whole("init_pos_emb_width", 64)
    weights += block.plain("vision_tower.pos_emb", positions, hidden, part="vision")
    for number in range(v.whole("vt_num_hidden_layers", **LAYERS)):
        name = f"vision_tower.encoder.blocks.{number}"
        inner, plain = v.whole("qkv_hidden_size", hidden), v.flag("linear_bias", True)
        weights += block.vision_block(name, hidden, v.whole("vt_intermediate_size"), inner, bias=plain, mlp_shard="none")
        weights += block.vector(name + ".norms", (4 if plain else 2) * hidden, part="vision")
    weights += block.vector("vision_tower.encoder.final_layernorm", 2 * hidden, part="vision")
    merged = v.whole("mm_hidden_size", hidden) * abs(merge[0] * merge[-1])
    weights += block.vector("mm_projector.pre_norm", 2 * v.whole("mm_hidden_size", hidden), part="other")
    weights += block.linear("mm_projector.linear_1", merged, merged, "none", True, "other")
    return weights + block.linear(
        "mm_projector.linear_2", v.whole("text_hidden_size", f.whole("hidden_size")), merged, "none", True, "other"
    )


def gemma4_vision(v: Fields, f: Fields) -> Weights:
    """Gemma 4: gated blocks with four norms and norms per head, and one projection to the text."""
    hidden, heads, head_dim = v.whole("hidden_size"), v.whole("num_attention_heads", high=65536), v.whole("head_dim", high=65536)
    weights = block.plain(
        "model.vision_tower.patch_embedder.input_proj", hidden, 3 * v.whole("patch_size", 16, high=4096) ** 2, part="vision"
    )
    weights += block.plain("model.vision_tower.position_embedding_table", 2 * v.whole("position_embedding_size"), hidden, part="vision")
    weights += block.vector("model.vision_tower.std", 2 * hidden, part="vision") if v.flag("standardize") else []
    for number in range(v.whole("num_hidden_layers", **LAYERS)):
        name = f"model.vision_tower.encoder.layers.{number}"
        weights += block.vision_block(name, hidden, v.whole("intermediate_size"), heads * head_dim, gated=True, bias=False)
        weights += block.vector(name + ".norms", 4 * hidden + 2 * head_dim, part="vision")
    return weights + block.linear("model.embed_vision.embedding_projection", f.whole("hidden_size"), hidden, "none", part="vision")


def siglip_vision(v: Fields, f: Fields) -> Weights:
    """Gemma 3: a SigLIP tower with biases and two norms a block, and one projection to the text."""
    hidden, patch = v.whole("hidden_size"), v.whole("patch_size", 14, high=4096)
    weights = block.plain("vision_tower.patch_embedding", hidden, 3 * patch**2, part="vision") + block.vector(
        "vision_tower.bias", hidden, part="vision"
    )
    weights += block.plain("vision_tower.position_embedding", (v.whole("image_size", 896) // patch) ** 2, hidden, part="vision")
    for number in range(v.whole("num_hidden_layers", **LAYERS)):
        name = f"vision_tower.encoder.layers.{number}"
        weights += block.vision_block(name, hidden, v.whole("intermediate_size")) + block.vector(name + ".norms", 4 * hidden, part="vision")
    weights += block.vector("vision_tower.post_layernorm", 2 * hidden, part="vision") + block.vector(
        "multi_modal_projector.norm", hidden, part="vision"
    )
    return weights + block.plain("multi_modal_projector.mm_input_projection", f.whole("hidden_size"), hidden, part="other")


def llama4_vision(v: Fields, f: Fields) -> Weights:
    """Llama 4: biases, two norms a block, an adapter after the tower, and one projection to the text."""
    hidden, patch, size = v.whole("hidden_size", 768), v.whole("patch_size", 14, high=4096), v.whole("image_size", 448)
    weights = block.plain("vision_model.patch_embedding", hidden, 3 * patch**2, part="vision")
    weights += block.plain("vision_model.positional_embedding", (size // patch) ** 2 + 2, hidden, part="vision")
    for number in range(v.whole("num_hidden_layers", 34, **LAYERS)):
        name = f"vision_model.model.layers.{number}"
        weights += block.vision_block(name, hidden, v.whole("intermediate_size", 5632)) + block.vector(
            name + ".norms", 4 * hidden, part="vision"
        )
    weights += block.vector("vision_model.norms", 4 * hidden, part="vision")
    inner, out = v.whole("projector_input_dim", 4096), v.whole("projector_output_dim", 4096)
    weights += block.linear("vision_model.vision_adapter.mlp.fc1", inner, v.whole("intermediate_size", 5632), "tp", part="vision")
    weights += block.linear("vision_model.vision_adapter.mlp.fc2", out, inner, "tp", part="vision")
    return weights + block.linear(
        "multi_modal_projector.linear_1", f.whole("hidden_size"), v.whole("vision_output_dim", 7680), "none", part="other"
    )


def step_vision(v: Fields, f: Fields) -> Weights:
    """Step: a perception encoder with scales per layer, two convolutions that halve the image, one projection (models/step3_vl_10b.py)."""
    width, patch = v.whole("width", 1536), v.whole("patch_size", 14, high=4096)
    weights = block.plain("vision_model.conv1", width, 3 * patch**2, part="vision")
    weights += block.plain("vision_model.positional_embedding", (v.whole("image_size", 728) // patch) ** 2, width, part="vision")
    weights += block.vector("vision_model.ln_pre", 2 * width, part="vision")
    for number in range(v.whole("layers", 47, **LAYERS)):
        name = f"vision_model.transformer.{number}"
        weights += block.vision_block(name, width, width * 8960 // 1536) + block.vector(name + ".norms", 6 * width, part="vision")
    for small, large in ((1, 2), (2, 4)):
        weights += block.plain(f"vision_model.vit_downsampler{small}", large * width, 9 * small * width, part="vision")
        weights += block.vector(f"vision_model.vit_downsampler{small}.bias", large * width, part="vision")
    return weights + block.linear("vit_large_projector", f.whole("hidden_size"), 4 * width, "tp", part="other")


# Layers for speculation


def as_draft(weights: Weights) -> Weights:
    """The same weights as parts of a draft."""
    names = {"experts": "draft.experts", "layers.copy": "draft.copy", "layers.mlp": "draft.mlp"}
    return [weight._replace(part=names.get(weight.part, "draft")) for weight in weights]


def qwen_mtp(key: str) -> t.Callable[[Architecture, Fields], Draft | None]:
    """Layers with full attention behind a projection of embedding and hidden state, which every rank holds (models/qwen3_5_mtp.py)."""

    def build(architecture: Architecture, f: Fields) -> Draft | None:
        count = f.whole(key, 0, low=0, high=64)
        if not count:
            return None
        hidden = f.whole("hidden_size")
        kv_heads, head_dim = heads_of(f)[1:]
        weights = block.plain("mtp.fc", hidden, 2 * hidden) + block.vector("mtp.norms", 3 * hidden)
        for number in range(count):
            layer = f"mtp.layers.{number}"
            weights += (
                gqa("head", gate=True)(f, layer, number) + architecture.feed(f, layer, number) + block.vector(layer + ".norms", 2 * hidden)
            )
        return Draft(key, count, as_draft(weights), Attention("full", count, kv_heads, head_dim, head_dim))

    return build


def nextn(
    attention: t.Callable[[Fields], Attention], stored: bool = True, projection: str = "none"
) -> t.Callable[[Architecture, Fields], Draft | None]:
    """Layers after the model's last one, each with norms and a projection of embedding and hidden state (models/deepseek_nextn.py)."""

    def build(architecture: Architecture, f: Fields) -> Draft | None:
        count = f.whole("num_nextn_predict_layers", 0, low=0, high=64)
        if not count:
            return None
        hidden, first = f.whole("hidden_size"), layer_count(f)
        weights: Weights = []
        for number in range(first, first + count):
            layer = f"{architecture.prefix}layers.{number}"
            weights += architecture.mixer(f, layer, number) + architecture.feed(f, layer, number)
            weights += block.vector(layer + ".norms", (architecture.norms + 3) * hidden)
            weights += block.plain(layer + ".eh_proj", hidden, 2 * hidden, projection)
        return Draft("num_nextn_predict_layers", count, as_draft(weights), attention(f), stored=stored)

    return build


def v4_mtp(architecture: Architecture, f: Fields) -> Draft | None:
    """DeepSeek V4: one layer without compression, two projections on every rank (models/deepseek_v4_nextn.py)."""
    if not f.whole("num_nextn_predict_layers", 0, low=0, high=64):
        return None
    hidden, number = f.whole("hidden_size"), layer_count(f)
    weights = architecture.mixer(f, "mtp.0", number) + architecture.feed(f, "mtp.0", number) + block.vector("mtp.0.norms", 5 * hidden)
    for projection in ("e_proj", "h_proj"):
        weights += block.linear(f"mtp.0.{projection}", hidden, hidden, "none")
    return Draft("num_nextn_predict_layers", 1, as_draft(weights + v4_head(f)), v4_kept(f, 1))


def latent_draft(f: Fields) -> Attention:
    """What the draft of a model with latent attention keeps."""
    first = layer_count(f)
    return latent_attention(f, range(first, first + f.whole("num_nextn_predict_layers", 0, low=0, high=64)))


def full_draft(f: Fields) -> Attention:
    """What the draft of a model with grouped-query attention keeps."""
    kv_heads, head_dim = heads_of(f)[1:]
    return Attention("full", f.whole("num_nextn_predict_layers", 0, low=0, high=64), kv_heads, head_dim, head_dim)


def nemotron_mtp(_architecture: Architecture, f: Fields) -> Draft | None:
    """Layers of the pattern that the configuration gives (models/nemotron_h_mtp.py): the projection is split."""
    count = f.whole("num_nextn_predict_layers", 0, low=0, high=64)
    if not count:
        return None
    pattern, hidden = f.word("mtp_hybrid_override_pattern", "*E"), f.whole("hidden_size")
    if not pattern or len(pattern) > 64 or set(pattern) - set("M*E-"):
        f.problem("mtp_hybrid_override_pattern", "a text of M, *, E and -", repr(pattern)[:60], "take the config.json that was published")
        return None
    kv_heads, head_dim = heads_of(f)[1:]
    weights = block.linear("mtp.layers.0.eh_proj", hidden, 2 * hidden, "tp") + block.vector("mtp.norms", 3 * hidden)
    for number, letter in enumerate(pattern):
        weights += nemotron_block(f, f"mtp.layers.{number}", letter) + block.vector(f"mtp.layers.{number}.norm", hidden)
    kept = pattern.count("*")
    return Draft(
        "num_nextn_predict_layers", count, as_draft(weights), Attention("full", kept, kv_heads, head_dim, head_dim) if kept else None
    )


# The rest of a model


def gemma4_inputs(f: Fields) -> Weights:
    """The small Gemma 4 models: an embedding for every layer."""
    inputs = f.whole("hidden_size_per_layer_input", 0, low=0)
    if not inputs:
        return []
    width = layer_count(f) * inputs
    weights = block.plain("model.language_model.embed_tokens_per_layer", f.whole("vocab_size_per_layer_input"), width, "tp")
    return (
        weights
        + block.linear("model.language_model.per_layer_model_projection", width, f.whole("hidden_size"), "none")
        + block.vector("model.norm", inputs)
    )


def v4_head(f: Fields) -> Weights:
    """DeepSeek V4: the residual streams become one again."""
    streams = f.whole("hc_mult", 1, high=64)
    return block.vector("hc_head", streams * streams * f.whole("hidden_size") + streams + 1, part="other")


LLAMA = Architecture(gqa(), dense, full)
QWEN2 = Architecture(gqa(bias=True, out_bias=False), dense, full)
QWEN3 = Architecture(gqa("head"), dense, full)
QWEN3_MOE = Architecture(gqa("head"), qwen_experts, full, experts=("num_experts",))
QWEN3_VL = dataclasses.replace(QWEN3, prefix="model.language_model.", vision=qwen_vision)
QWEN_HYBRID = Architecture(
    qwen_hybrid_mixer, qwen_experts, qwen_hybrid, experts=("num_experts",), draft=qwen_mtp("num_nextn_predict_layers")
)
QWEN3_5 = Architecture(
    qwen_hybrid_mixer, dense, qwen_hybrid, prefix="model.language_model.", vision=qwen_vision, draft=qwen_mtp("mtp_num_hidden_layers")
)
QWEN3_5_MOE = dataclasses.replace(QWEN3_5, feed=qwen_experts, experts=("num_experts",))
DEEPSEEK = Architecture(latent, deepseek_experts, latents, experts=("n_routed_experts",), draft=nextn(latent_draft))
KIMI_K2_5 = dataclasses.replace(
    DEEPSEEK, prefix="language_model.model.", head="language_model.lm_head", vision=kimi_vision, vision_hidden="vt_hidden_size"
)
GLM4_MOE = Architecture(gqa_glm, deepseek_experts, full, experts=("n_routed_experts",), draft=nextn(full_draft))
MINIMAX_M2 = Architecture(gqa("full"), mixtral_experts, full, experts=("num_local_experts",))
MINIMAX_M3 = Architecture(minimax_m3_mixer, minimax_m3_feed, full, experts=("num_local_experts",))
GPT_OSS = Architecture(
    gqa(bias=True, out_bias=True, sinks=True), gpt_oss_experts, split_by_window(any_heads), experts=("num_local_experts",)
)
DEEPSEEK_GENERIC = Architecture(gqa(), deepseek_experts, full, experts=("n_routed_experts", "num_experts"))
GEMMA = {"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4}
GEMMA2 = Architecture(gqa(), dense, full, norms=4, tied=True, defaults=GEMMA)
GEMMA3 = Architecture(gqa("head"), dense, full, norms=4, tied=True, defaults={**GEMMA, "vocab_size": 262208})
GEMMA3_VL = dataclasses.replace(GEMMA3, prefix="language_model.model.", vision=siglip_vision)
GEMMA4 = Architecture(
    gemma4_mixer,
    gemma4_feed,
    split_by_window(gemma4_heads),
    norms=4,
    tied=True,
    prefix="model.language_model.",
    vision=gemma4_vision,
    experts=("num_experts",),
    more=gemma4_inputs,
)
LLAMA4 = Architecture(
    gqa(),
    llama4_feed,
    split_by_window(any_heads, chunked),
    prefix="language_model.model.",
    head="language_model.lm_head",
    vision=llama4_vision,
    vision_always=True,
    experts=("num_local_experts",),
)
NEMOTRON_H = Architecture(
    nemotron_mixer,
    nothing,
    nemotron_memory,
    norms=1,
    prefix="backbone.",
    embedding="embeddings",
    draft=nemotron_mtp,
    layers=lambda f: len(nemotron_pattern(f)),
    rotary=False,
    experts=("n_routed_experts",),
)
STEP3_5 = Architecture(step_mixer, step_feed, split_by_window(step_heads), experts=("moe_num_experts", "num_experts"))
STEP3_7 = dataclasses.replace(STEP3_5, vision=step_vision, vision_always=True)
DEEPSEEK_V4 = Architecture(
    v4_mixer,
    v4_feed,
    v4_memory,
    prefix="",
    head="head",
    embedding="embed",
    experts=("n_routed_experts",),
    more=v4_head,
    draft=v4_mtp,
)
KIMI_K3 = Architecture(
    kimi_k3_mixer,
    kimi_k3_feed,
    kimi_k3_memory,
    prefix="language_model.model.",
    head="language_model.lm_head",
    vision=kimi_vision,
    vision_hidden="vt_hidden_size",
    experts=("num_experts",),
    rotary=False,
)

ARCHITECTURES: t.Dict[str, Architecture] = {  # noqa: UP006
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "Phi3ForCausalLM": LLAMA,
    "MixtralForCausalLM": Architecture(gqa(), mixtral_experts, full, experts=("num_local_experts",)),
    "Qwen2ForCausalLM": QWEN2,
    "Qwen2MoeForCausalLM": dataclasses.replace(QWEN2, feed=qwen_experts, experts=("num_experts",)),
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3MoeForCausalLM": QWEN3_MOE,
    "Qwen3VLForConditionalGeneration": QWEN3_VL,
    "Qwen3VLMoeForConditionalGeneration": dataclasses.replace(QWEN3_VL, feed=qwen_experts, experts=("num_experts",)),
    "Qwen3NextForCausalLM": QWEN_HYBRID,
    "Qwen3_5ForConditionalGeneration": QWEN3_5,
    "Qwen3_5MoeForConditionalGeneration": QWEN3_5_MOE,
    "Qwen3_5ForCausalLM": dataclasses.replace(QWEN3_5, prefix="model.", vision=None),
    "Qwen3_5MoeForCausalLM": dataclasses.replace(QWEN3_5_MOE, prefix="model.", vision=None),
    "DeepseekV2ForCausalLM": dataclasses.replace(DEEPSEEK, defaults={"topk_method": "greedy"}),
    "DeepseekV3ForCausalLM": DEEPSEEK,
    "DeepseekV32ForCausalLM": DEEPSEEK,
    "GlmMoeDsaForCausalLM": DEEPSEEK,
    "Glm4MoeLiteForCausalLM": DEEPSEEK,
    "KimiK25ForConditionalGeneration": KIMI_K2_5,
    "Glm4MoeForCausalLM": GLM4_MOE,
    "MiniMaxM2ForCausalLM": MINIMAX_M2,
    "MiniMaxM3ForCausalLM": MINIMAX_M3,
    "MiniMaxM3SparseForCausalLM": MINIMAX_M3,
    "GptOssForCausalLM": GPT_OSS,
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": GEMMA3_VL,
    "Gemma4ForCausalLM": dataclasses.replace(GEMMA4, prefix="model.", vision=None),
    "Gemma4ForConditionalGeneration": GEMMA4,
    "Llama4ForConditionalGeneration": LLAMA4,
    "GraniteMoeHybridForCausalLM": Architecture(granite_mixer, granite_feed, granite_memory, tied=True, experts=("num_local_experts",)),
    "NemotronHForCausalLM": NEMOTRON_H,
    "Step3p5ForCausalLM": STEP3_5,
    "Step3p7ForConditionalGeneration": STEP3_7,
    "Step3p7FlashForCausalLM": STEP3_7,
    "DeepseekV4ForCausalLM": DEEPSEEK_V4,
    "KimiK3ForConditionalGeneration": KIMI_K3,
}

# Fields of layers that keep a state: without a reader of its own nothing honest can be said about such a model
RECURRENT = (
    "mamba",
    "ssm_",
    "ssm_cfg",
    "linear_num_",
    "linear_attn",
    "conv_kernel",
    "hybrid_override_pattern",
    "rwkv",
    "time_mix",
    "short_conv",
)


def generic(name: str, f: Fields) -> Architecture:
    """What comes nearest to an architecture that has no reader, by its fields; a problem where nothing does."""
    state = sorted(key for key in f.values if isinstance(key, str) and key.startswith(RECURRENT))
    if state:
        found = f"{name}, whose layers keep a state ({state[0]})"
        f.problem(
            "architectures", "an architecture that the plan has a reader for", found, "plan with measured numbers, or report the model"
        )
    if f.has("kv_lora_rank"):
        return DEEPSEEK
    if f.has("num_local_experts"):
        return dataclasses.replace(LLAMA, feed=mixtral_experts, experts=("num_local_experts",))
    return DEEPSEEK_GENERIC if f.has("n_routed_experts", "num_experts") else LLAMA
