# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Vision towers by architecture. What is on every rank, and what is split: SGLang 0.5.23 models/*.py as named."""

from __future__ import annotations

from ansible_collections.firstlight.sglang.plugins.module_utils import _model_layers as block
from ansible_collections.firstlight.sglang.plugins.module_utils._model_fields import Fields
from ansible_collections.firstlight.sglang.plugins.module_utils._model_layers import Weights
from ansible_collections.firstlight.sglang.plugins.module_utils._model_pieces import LAYERS


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


def qwen2_5_vision(v: Fields, f: Fields) -> Weights:
    """Qwen2.5-VL: gated blocks with biases, and a merger."""
    return _qwen2_vision(v, f, v.whole("hidden_size"), v.whole("intermediate_size"), v.whole("out_hidden_size"), True)


def qwen2_vision(v: Fields, f: Fields) -> Weights:
    """Qwen2-VL: the same in other fields, without a gate."""
    hidden = v.whole("embed_dim")
    return _qwen2_vision(v, f, hidden, hidden * v.whole("mlp_ratio", 4, high=64), v.whole("hidden_size"), False)


def _qwen2_vision(v: Fields, _f: Fields, hidden: int, intermediate: int, out: int, gated: bool) -> Weights:
    patch = 3 * v.whole("temporal_patch_size", 2, high=64) * v.whole(("patch_size", "spatial_patch_size"), 14, high=4096) ** 2
    weights = block.plain("visual.patch_embed.proj", hidden, patch, part="vision")
    norm = hidden if gated else 2 * hidden  # with a bias where there is no gate
    for number in range(v.whole("depth", **LAYERS)):
        name = f"visual.blocks.{number}"
        weights += block.vision_block(name, hidden, intermediate, gated=gated) + block.vector(name + ".norms", 2 * norm, part="vision")
    merged = hidden * v.whole("spatial_merge_size", 2, high=64) ** 2
    weights += block.vector("visual.merger.ln_q", norm, part="vision") + block.linear(
        "visual.merger.mlp.0", merged, merged, "tp", True, "vision"
    )
    return (
        weights
        + block.linear("visual.merger.mlp.2", out, merged, "tp", part="vision")
        + block.vector("visual.merger.bias", out, part="vision")
    )


def pixtral_vision(v: Fields, f: Fields) -> Weights:
    """Mistral 3: a Pixtral tower without biases, and a projector that joins patches first; every rank has the projector."""
    hidden, text, merge = v.whole("hidden_size"), f.whole("hidden_size"), v.whole("spatial_merge_size", 2, high=64)
    weights = block.plain("vision_tower.patch_conv", hidden, 3 * v.whole("patch_size", 14, high=4096) ** 2, part="vision")
    weights += block.vector("vision_tower.ln_pre", hidden, part="vision")
    for number in range(v.whole("num_hidden_layers", **LAYERS)):
        name = f"vision_tower.transformer.layers.{number}"
        weights += block.vision_block(name, hidden, v.whole("intermediate_size"), gated=True, bias=False)
        weights += block.vector(name + ".norms", 2 * hidden, part="vision")
    weights += block.vector("multi_modal_projector.norm", hidden, part="other")
    weights += block.linear("multi_modal_projector.patch_merger", hidden, hidden * merge**2, "none", part="other")
    weights += block.linear("multi_modal_projector.linear_1", text, hidden, "none", part="other")
    return weights + block.linear("multi_modal_projector.linear_2", text, text, "none", part="other")


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
