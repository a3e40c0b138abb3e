# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Pieces of layers by architecture: attention or what stands for it, and feed-forward networks, put together of _model_layers.py's blocks.

Names of fields and of modules are those of the published configurations and checkpoints; which layer is of which kind, and the sizes of
heads: SGLang 0.5.23 configs/model_config.py, models/*.py as named.
"""

from __future__ import annotations

import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _model_layers as block
from ansible_collections.firstlight.sglang.plugins.module_utils._model_fields import Fields, is_whole
from ansible_collections.firstlight.sglang.plugins.module_utils._model_layers import Weights

# What builds a piece of layer number n: fields, module name of the layer, n -> weights
Piece = t.Callable[[Fields, str, int], Weights]
LAYERS = {"low": 1, "high": 4096}


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
    if sparse is None or not entry(sparse, "sparse_attention_freq", number):
        return weights
    hidden, heads, size = (
        f.whole("hidden_size"),
        sparse.whole("sparse_num_index_heads", high=65536),
        sparse.whole("sparse_index_dim", high=65536),
    )
    name = layer + ".self_attn"
    weights += block.linear(name + ".index_q_proj", heads * size, hidden, "kv", kv_heads=heads)
    weights += block.linear(name + ".index_k_proj", size, hidden, "none") + block.vector(name + ".index_norms", 2 * size)
    if not entry(sparse, "sparse_disable_index_value", number):
        weights += block.linear(name + ".index_v_proj", size, hidden, "none")
        weights += block.linear(name + ".index_o_proj", hidden, heads * size, "kv", kv_heads=heads)
    return weights


def entry(f: Fields, key: str, number: int) -> int:
    """A number of a list, 0 where there is none."""
    values = f.items(key, (int,)) or []
    return int(values[number]) if number < len(values) else 0


def gemma4_mixer(f: Fields, layer: str, number: int) -> Weights:
    """Layers with a window and layers without have heads of different sizes; where values are the keys, the engine still has room for both
    (models/gemma4_causal.py)."""
    heads, kv_heads, head_dim = gemma4_heads(f, number)
    hidden, name = f.whole("hidden_size"), layer + ".self_attn"
    shared = not windowed(f, number) and f.flag("attention_k_eq_v")
    weights = block.attention(name, hidden, heads, kv_heads, head_dim, qk_norm="head", value_dim=0 if shared else None)
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


def mimo_heads(f: Fields, number: int) -> t.Tuple[int, int, int, int]:  # noqa: UP006
    """MiMo V2: query heads, KV heads, and a head's size of keys and of values; others where a layer has a window."""
    if not entry(f, "hybrid_layer_pattern", number):
        return (*heads_of(f), f.whole("v_head_dim", heads_of(f)[2], high=65536))
    heads, kv_heads = f.whole("swa_num_attention_heads", high=65536), f.whole("swa_num_key_value_heads", high=65536)
    size = f.whole("swa_head_dim", high=65536)
    return heads, kv_heads, size, f.whole("swa_v_head_dim", size, high=65536)


def mimo_mixer(f: Fields, layer: str, number: int) -> Weights:
    """Attention whose values are smaller than its keys, with one more number per head where the configuration says so."""
    heads, kv_heads, size, value = mimo_heads(f, number)
    sinks = f.flag("add_swa_attention_sink_bias" if entry(f, "hybrid_layer_pattern", number) else "add_full_attention_sink_bias")
    return block.attention(
        layer + ".self_attn", f.whole("hidden_size"), heads, kv_heads, size, f.flag("attention_bias"), sinks=sinks, value_dim=value
    )


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
    ratio = entry(f, "compress_ratios", number)
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


def is_linear(f: Fields, number: int) -> bool:
    """Whether a layer of a Qwen hybrid is a recurrent one."""
    kinds = f.items("layer_types", (str,), layer_count(f))
    if kinds is not None:
        return bool(kinds[number] == "linear_attention")
    return (number + 1) % f.whole("full_attention_interval", 4, high=4096) != 0


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
