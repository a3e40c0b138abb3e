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
from ansible_collections.firstlight.sglang.plugins.module_utils._model_fields import Fields
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
    """How one architecture is put together. norms: vectors of the hidden size in each layer, other than those of its pieces."""

    mixer: Piece
    feed: Piece
    memory: t.Callable[[Fields], Memory]
    norms: int = 2
    prefix: str = "model."
    head: str = "lm_head"
    embedding: str = "embed_tokens"
    vision: t.Callable[[Fields, Fields], Weights] | None = None
    vision_layers: str = "num_hidden_layers"
    vision_hidden: str = "hidden_size"
    draft: t.Callable[[Architecture, Fields], Draft | None] | None = None
    layers: t.Callable[[Fields], int] | None = None
    experts: t.Tuple[str, ...] = ()  # noqa: UP006
    tied: bool = False
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


# Vision towers


def qwen_vision(v: Fields, _f: Fields) -> Weights:
    """Qwen3-VL, Qwen3.5: patches, positions, blocks, a merger of its own for the output and for every deepstack layer."""
    hidden, depth, merge = v.whole("hidden_size"), v.whole("depth", **LAYERS), v.whole("spatial_merge_size", 2, high=64)
    patch = v.whole("in_channels", 3, high=64) * v.whole("temporal_patch_size", 2, high=64) * v.whole("patch_size", 16, high=4096) ** 2
    weights = block.plain("model.visual.patch_embed.proj", hidden, patch, part="vision") + block.vector(
        "model.visual.patch_embed.bias", hidden, part="vision"
    )
    weights += block.plain("model.visual.pos_embed", v.whole("num_position_embeddings"), hidden, part="vision")
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


# Layers for speculation


def as_draft(weights: Weights) -> Weights:
    """The same weights as parts of a draft."""
    return [weight._replace(part="draft.experts" if weight.part == "experts" else "draft") for weight in weights]


def qwen_mtp(key: str) -> t.Callable[[Architecture, Fields], Draft | None]:
    """Layers with full attention behind a projection of embedding and hidden state, which every rank holds (models/qwen3_5_mtp.py)."""

    def build(architecture: Architecture, f: Fields) -> Draft | None:
        count = f.whole(key, 0, low=0, high=64)
        if not count:
            return None
        hidden = f.whole("hidden_size")
        kv_heads, head_dim = heads_of(f)[1:]
        weights = block.linear("mtp.fc", hidden, 2 * hidden, "none") + block.vector("mtp.norms", 3 * hidden)
        for number in range(count):
            layer = f"mtp.layers.{number}"
            weights += (
                gqa("head", gate=True)(f, layer, number) + architecture.feed(f, layer, number) + block.vector(layer + ".norms", 2 * hidden)
            )
        return Draft(key, count, as_draft(weights), Attention("full", count, kv_heads, head_dim, head_dim))

    return build


LLAMA = Architecture(gqa(), dense, full)
QWEN2 = Architecture(gqa(bias=True, out_bias=False), dense, full)
QWEN3 = Architecture(gqa("head"), dense, full)
QWEN3_MOE = Architecture(gqa("head"), qwen_experts, full, experts=("num_experts",))
QWEN3_VL = dataclasses.replace(QWEN3, prefix="model.language_model.", vision=qwen_vision, vision_layers="depth")
QWEN_HYBRID = Architecture(
    qwen_hybrid_mixer, qwen_experts, qwen_hybrid, experts=("num_experts",), draft=qwen_mtp("num_nextn_predict_layers")
)
QWEN3_5 = Architecture(
    qwen_hybrid_mixer,
    dense,
    qwen_hybrid,
    prefix="model.language_model.",
    vision=qwen_vision,
    vision_layers="depth",
    draft=qwen_mtp("mtp_num_hidden_layers"),
)

ARCHITECTURES: t.Dict[str, Architecture] = {  # noqa: UP006
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "MixtralForCausalLM": Architecture(gqa(), mixtral_experts, full, experts=("num_local_experts",)),
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3MoeForCausalLM": QWEN3_MOE,
    "Qwen3VLForConditionalGeneration": QWEN3_VL,
    "Qwen3VLMoeForConditionalGeneration": dataclasses.replace(QWEN3_VL, feed=qwen_experts, experts=("num_experts",)),
    "Qwen3NextForCausalLM": QWEN_HYBRID,
    "Qwen3_5ForConditionalGeneration": QWEN3_5,
    "Qwen3_5MoeForConditionalGeneration": dataclasses.replace(QWEN3_5, feed=qwen_experts, experts=("num_experts",)),
}
