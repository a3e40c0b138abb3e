"""Facts of models and GPUs for tests of rules about flags. Sources: the config.json of each model; compute capabilities: NVIDIA's list."""

from __future__ import annotations

import dataclasses

from ansible_collections.firstlight.sglang.plugins.module_utils._model import Attention, Model, State, Vision


def _model(architecture, **known):
    values = {
        "architecture": architecture,
        "known": True,
        "context_length": 40960,
        "dtype": "bfloat16",
        "num_layers": 36,
        "hidden_size": 4096,
        "vocab_size": 151936,
        "num_attention_heads": 32,
        "attentions": (Attention("full", 36, 8, 128, 128),),
        "state": None,
        "parts": (),
    }
    return Model(**{**values, **known})


QWEN3_8B = _model("Qwen3ForCausalLM")
QWEN3_06B = dataclasses.replace(QWEN3_8B, num_attention_heads=16)
QWEN3_30B = _model("Qwen3MoeForCausalLM", attentions=(Attention("full", 48, 4, 128, 128),), experts=128)
# Qwen3.6-27B: 48 layers of gated delta rule (16 key and 48 value heads of 128), 16 of full attention, one draft layer.
QWEN36 = _model(
    "Qwen3_5ForConditionalGeneration",
    context_length=262144,
    num_layers=64,
    hidden_size=5120,
    num_attention_heads=24,
    attentions=(Attention("full", 16, 4, 256, 256),),
    state=State("gdn", 48, 2 * 16 * 128 + 48 * 128, 3, 48, 128, 128, "float32"),
    draft_layers=1,
    draft_key="mtp_num_hidden_layers",
    vision=Vision(24, 1152, 16),
    multimodal=True,
)
# One rank of two of it as a model of its own (captured G).
QWEN36_RANK = dataclasses.replace(
    QWEN36,
    num_attention_heads=12,
    attentions=(Attention("full", 16, 2, 256, 256),),
    state=State("gdn", 48, 2 * 8 * 128 + 24 * 128, 3, 24, 128, 128, "float32"),
)
DEEPSEEK_V3 = _model(
    "DeepseekV3ForCausalLM",
    context_length=163840,
    num_attention_heads=128,
    attentions=(Attention("mla", 61, latent_dim=576),),
    experts=256,
    draft_layers=1,
    draft_key="num_nextn_predict_layers",
    quantization="fp8",
)


def quantized(model, method):
    """The same model in another quantisation."""
    return dataclasses.replace(model, quantization=method)


def gpus(capability, count=1, total=49140, free=()):
    """What gpu_info says of GPUs, as far as rules read it."""
    return [
        {
            "index": index,
            "compute_capability": capability,
            "memory_total_mib": total,
            "memory_free_mib": free[index] if free else total - 600,
        }
        for index in range(count)
    ]


def pair(link, access="OK"):
    """gpu_info's topology of two GPUs."""
    return {"indices": [0, 1], "matrix": [["X", link], [link, "X"]], "peer_access": [["X", access], [access, "X"]]}
