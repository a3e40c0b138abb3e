# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Architectures: which pieces (_model_pieces.py, _model_vision.py) each is built of, and what its layers remember (_model_memory.py).

A new one is a row in ARCHITECTURES, with a function of a few lines where a piece is new.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _model_layers as block
from ansible_collections.firstlight.sglang.plugins.module_utils._model import Attention
from ansible_collections.firstlight.sglang.plugins.module_utils._model_fields import Fields
from ansible_collections.firstlight.sglang.plugins.module_utils._model_layers import Weights
from ansible_collections.firstlight.sglang.plugins.module_utils._model_memory import (
    Memory,
    any_heads,
    chunked,
    full,
    granite_memory,
    kimi_k3_memory,
    latent_attention,
    latents,
    mimo_memory,
    nemotron_memory,
    qwen_hybrid,
    split_by_window,
    v4_kept,
    v4_memory,
)
from ansible_collections.firstlight.sglang.plugins.module_utils._model_pieces import (
    Piece,
    deepseek_experts,
    dense,
    gemma4_feed,
    gemma4_heads,
    gemma4_mixer,
    gpt_oss_experts,
    gqa,
    gqa_glm,
    granite_feed,
    granite_mixer,
    heads_of,
    kimi_k3_feed,
    kimi_k3_mixer,
    latent,
    layer_count,
    llama4_feed,
    mimo_mixer,
    minimax_m3_feed,
    minimax_m3_mixer,
    mixtral_experts,
    nemotron_block,
    nemotron_mixer,
    nemotron_pattern,
    nothing,
    qwen_experts,
    qwen_hybrid_mixer,
    step_feed,
    step_heads,
    step_mixer,
    v4_feed,
    v4_mixer,
)
from ansible_collections.firstlight.sglang.plugins.module_utils._model_vision import (
    gemma4_vision,
    kimi_vision,
    llama4_vision,
    pixtral_vision,
    qwen2_5_vision,
    qwen2_vision,
    qwen_vision,
    siglip_vision,
    step_vision,
)


class Draft(t.NamedTuple):
    """Layers for speculation inside the checkpoint.

    key: the field that says so, None where it goes without saying. copies: whether the draft holds copies of embedding and head while the
    pools are sized; stored: whether the checkpoint has these copies too.
    """

    key: str | None
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


# Layers for speculation


def as_draft(weights: Weights) -> Weights:
    """The same weights as parts of a draft."""
    names = {"experts": "draft.experts", "layers.copy": "draft.copy", "layers.mlp": "draft.mlp"}
    return [weight._replace(part=names.get(weight.part, "draft")) for weight in weights]


def qwen_mtp(key: str, default: int = 0) -> t.Callable[[Architecture, Fields], Draft | None]:
    """Layers with full attention behind a projection of embedding and hidden state, which every rank holds (models/qwen3_5_mtp.py).

    default: how many there are where the configuration does not speak of them (Qwen3-Next: configs/model_config.py, _config_draft_model).
    """

    def build(architecture: Architecture, f: Fields) -> Draft | None:
        count = f.whole(key, default, low=0, high=64)
        if not count:
            return None
        hidden = f.whole("hidden_size")
        kv_heads, head_dim = heads_of(f)[1:]
        weights = block.plain("mtp.fc", hidden, 2 * hidden) + block.vector("mtp.norms", 3 * hidden)
        for number in range(count):
            layer = f"mtp.layers.{number}"
            weights += gqa("head", gate=True)(f, layer, number) + architecture.feed(f, layer, number)
            weights += block.vector(layer + ".norms", 2 * hidden)
        return Draft(key if f.has(key) else None, count, as_draft(weights), Attention("full", count, kv_heads, head_dim, head_dim))

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
    qwen_hybrid_mixer, qwen_experts, qwen_hybrid, experts=("num_experts",), draft=qwen_mtp("num_nextn_predict_layers", default=1)
)
QWEN3_5 = Architecture(
    qwen_hybrid_mixer, dense, qwen_hybrid, prefix="model.language_model.", vision=qwen_vision, draft=qwen_mtp("mtp_num_hidden_layers")
)
QWEN3_5_MOE = dataclasses.replace(QWEN3_5, feed=qwen_experts, experts=("num_experts",))
DEEPSEEK = Architecture(latent, deepseek_experts, latents, experts=("n_routed_experts",), draft=nextn(latent_draft))
KIMI_K2_5 = dataclasses.replace(
    DEEPSEEK, prefix="language_model.model.", head="language_model.lm_head", vision=kimi_vision, vision_hidden="vt_hidden_size"
)
QWEN2_VL = dataclasses.replace(QWEN2, vision=qwen2_vision, vision_hidden="embed_dim")
MISTRAL3 = dataclasses.replace(
    LLAMA, prefix="language_model.model.", head="language_model.lm_head", vision=pixtral_vision, defaults={"tie_word_embeddings": False}
)
MIMO_V2 = Architecture(mimo_mixer, deepseek_experts, mimo_memory, experts=("n_routed_experts",))
KIMI_LINEAR = Architecture(kimi_k3_mixer, kimi_k3_feed, kimi_k3_memory, experts=("num_experts",), rotary=False)
GLM4_MOE = Architecture(gqa_glm, deepseek_experts, full, experts=("n_routed_experts",), draft=nextn(full_draft))
MINIMAX_M2 = Architecture(gqa("full"), mixtral_experts, full, experts=("num_local_experts",))
MINIMAX_M3 = Architecture(minimax_m3_mixer, minimax_m3_feed, full, experts=("num_local_experts",))
GPT_OSS = Architecture(
    gqa(bias=True, out_bias=True, sinks=True), gpt_oss_experts, split_by_window(any_heads), experts=("num_local_experts",)
)
DEEPSEEK_GENERIC = Architecture(gqa(), deepseek_experts, full, experts=("n_routed_experts", "num_experts"))
GEMMA = {"max_position_embeddings": 131072, "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4}
GEMMA2 = Architecture(gqa(), dense, full, norms=4, tied=True, defaults={"head_dim": 256})
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
    "SeedOssForCausalLM": QWEN2,
    "Glm4ForCausalLM": dataclasses.replace(LLAMA, mixer=gqa(out_bias=False), norms=4),
    "Olmo2ForCausalLM": dataclasses.replace(LLAMA, mixer=gqa("full")),
    "Mistral3ForConditionalGeneration": MISTRAL3,
    "Qwen2VLForConditionalGeneration": QWEN2_VL,
    "Qwen2_5_VLForConditionalGeneration": dataclasses.replace(QWEN2_VL, vision=qwen2_5_vision),
    "KimiLinearForCausalLM": KIMI_LINEAR,
    "MiMoV2FlashForCausalLM": MIMO_V2,
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
