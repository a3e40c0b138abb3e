# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Configurations of real models against exact counts of their parameters, and against what the engine logged when it loaded them."""

from __future__ import annotations

import collections
import copy
import dataclasses
import json
import struct

import model_fields
import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _model_config, _model_weights
from ansible_collections.firstlight.sglang.plugins.module_utils._model_architectures import ARCHITECTURES
from hypothesis import given, settings
from hypothesis import strategies as st

MODELS = model_fields.load()
COUNTED = sorted(name for name, model in MODELS.items() if "parameters" in model)
Q27 = "Qwen--Qwen3.6-27B"


def read(name, **changes):
    """The model of one of the fixtures."""
    given_fields = MODELS[name]
    model, problems = _model_config.read({**given_fields["config"], **changes}, given_fields.get("hf_quant_config"))
    assert problems == []
    return model


def by_kind(model):
    """Elements of the checkpoint by kind of part, the draft's apart."""
    sums = collections.Counter()
    for part in model.parts:
        if not _model_weights.is_copy(part):
            sums[_model_weights.kind(part)] += part.elements
    return sums


# What the reference library has as buffers and so does not count as parameters, while it is in the checkpoint: a bias for choosing experts
# (layers with experts x experts), and the mean and deviation of Gemma 4's images (2 x hidden size). Step: the library's own default of
# 128815 words instead of the configuration's 128896 (x 4096, twice).
BUFFERS = {
    "MiniMaxAI--MiniMax-M2": {"layers": 62 * 256},
    "nvidia--MiniMax-M2": {"layers": 62 * 256},
    "deepseek-ai--DeepSeek-R1": {"layers": 58 * 256},
    "deepseek-ai--DeepSeek-V3": {"layers": 58 * 256},
    "nvidia--DeepSeek-V3": {"layers": 58 * 256},
    "deepseek-ai--DeepSeek-V4-Flash": {"layers": 40 * 256},
    "nvidia--DeepSeek-V4-Flash": {"layers": 40 * 256},
    "deepseek-ai--DeepSeek-V4-Pro": {"layers": 58 * 384},
    "nvidia--DeepSeek-V4-Pro": {"layers": 58 * 384},
    "zai-org--GLM-5": {"layers": 75 * 256},
    "nvidia--GLM-5": {"layers": 75 * 256},
    "moonshotai--Kimi-K2": {"layers": 60 * 384},
    "nvidia--Kimi-K2": {"layers": 60 * 384},
    "nvidia--NVIDIA-Nemotron-3-Nano": {"layers": 23 * 128},
    "nvidia--NVIDIA-Nemotron-3-Super": {"layers": 40 * 512},
    "nvidia--NVIDIA-Nemotron-3-Ultra": {"layers": 48 * 512},
    "google--gemma-4-26B-A4B": {"vision": 2 * 1152},
    "nvidia--Gemma-4-26B-A4B": {"vision": 2 * 1152},
    "stepfun-ai--Step-3.7": {"layers": 42 * 288, "embedding": 81 * 4096, "lm_head": 81 * 4096},
}


@pytest.mark.parametrize("name", COUNTED)
def test_every_parameter_is_counted(name):
    expected = collections.Counter({"embedding" if part == "embed" else part: count for part, count in MODELS[name]["parameters"].items()})
    expected.update(next((buffers for start, buffers in BUFFERS.items() if name.startswith(start)), {}))
    model = read(name)
    found = by_kind(model)
    del found["draft"]
    assert model.known
    assert found == expected


def test_the_fixture_has_what_it_should():
    assert len(COUNTED) == 69
    assert len(MODELS) == 73


def test_the_27b_of_two_gpus():
    model = read(Q27)
    two = _model_weights.per_gpu(model, tp=2)[0]
    assert round(two.weights, 2) == 25.48  # text 25.05, vision tower 0.43
    assert round(two.draft, 2) == 2.81  # of it 0.44 its own
    assert round(two.draft - two.draft_copies, 2) == 0.44
    # the published index of the files says 55.56 GB, and the draft has no copies there
    assert round(_model_weights.disk_bytes(model) / 1e9, 2) == 55.56
    whole = _model_weights.per_gpu(model)[0]
    assert round(whole.weights, 2) == 50.96
    assert round(whole.draft, 2) == 5.53


# Logged by SGLang 0.5.15.post1 on an H200: GiB of weights and of the draft, at tp 1 (q27rank: one rank of two, made as a model of its own).
# The log counts the table of angles, and blocks of the allocator that small tensors only begin: over is all the rest.
CAPTURED = [
    ("27B", Q27, 1, None, 51.05, 5.53, 0.04),
    ("27B, one rank of two", Q27, 2, None, 25.64, 2.82, 0.10),
    ("8B", "Qwen--Qwen3-8B", 1, None, 15.28, None, 0.01),
    ("8B, --quantization fp8 (what stays of the unquantised ones is in it)", "Qwen--Qwen3-8B", 1, "fp8", 9.09, None, 0.29),
    ("0.6B", "Qwen--Qwen3-0.6B", 1, None, 1.18, None, 0.06),
]


@pytest.mark.parametrize(
    ("name", "tp", "quantize", "logged", "draft", "over"), [row[1:] for row in CAPTURED], ids=[row[0] for row in CAPTURED]
)
def test_captured_starts(name, tp, quantize, logged, draft, over):
    model = _model_config.read(MODELS[name]["config"], quantize=quantize)[0]
    stage = _model_weights.per_gpu(model, tp=tp)[0]
    assert 0 <= logged - stage.weights - stage.rotary + 0.005 <= over + 0.005
    if draft:
        assert abs(draft - stage.draft) < 0.0101


def kv_bytes(model, tp, bits=16):
    """Bytes of the cache for one token on one rank: grouped-query attention and latents (with 132 bytes for an indexer's key)."""
    size = 0
    for each in model.attentions:
        if each.kind == "mla":
            size += each.layers * each.latent_dim * bits // 8
            size += each.index_layers * (each.index_dim + each.index_dim // 128 * 4)
        else:
            size += each.layers * max(1, each.kv_heads // tp) * (each.head_dim + each.v_head_dim) * bits // 8
    return size


def state_bytes(model, tp, state_bits=None):
    """Bytes of one slot's state on one rank."""
    state = model.state
    bits = state_bits or {"float32": 32, "bfloat16": 16}[state.state_dtype]
    one = state.conv_channels // tp * state.conv_columns * 2 + state.heads // tp * state.head_dim * state.state_dim * bits // 8
    return state.layers * one


# bytes per token, bytes of state per slot as the engine logged them at full precision
@pytest.mark.parametrize(
    ("name", "tp", "kv_bits", "tokens", "state_bits", "slot"),
    [
        (Q27, 1, 16, 65536, None, 153944064),
        (Q27, 1, 8, 32768, None, 153944064),
        (Q27, 1, 16, 65536, 16, 78446592),
        (Q27, 2, 16, 32768, None, 76972032),
        ("Qwen--Qwen3-8B", 1, 16, 147456, None, None),
        ("Qwen--Qwen3-8B", 1, 8, 73728, None, None),
        ("Qwen--Qwen3-0.6B", 1, 16, 114688, None, None),
    ],
)
def test_captured_bytes_per_token_and_slot(name, tp, kv_bits, tokens, state_bits, slot):
    model = read(name)
    assert kv_bytes(model, tp, kv_bits) == tokens
    assert (state_bytes(model, tp, state_bits) if slot else model.state) == slot


# Public start-ups (bytes per token and rank from printed pool sizes, so within their rounding)
@pytest.mark.parametrize(
    ("run", "name", "tp", "bits", "printed"),
    [
        ("qwen3-0.6b-rtx5080", "Qwen--Qwen3-0.6B", 1, 16, 114713.1),
        ("llama31-8b-h100-2025-01", "meta-llama--Meta-Llama-3.1-8B", 1, 16, 131071.4),
        ("llama70b-class-8xh200-2025-10", "meta-llama--Meta-Llama-3.1-70B", 8, 16, 40956.7),
        ("qwen38-27b-bf16-a100-0517", "Qwen--Qwen3.5-27B", 1, 16, 65551.7),
        ("qwen38-27b-nvfp4-gb10-mamba360", "nvidia--Qwen3.6-27B-NVFP4", 1, 8, 32796.8),
        ("qwen36-27b-tp4-1m", "nvidia--Qwen3.6-27B-NVFP4", 4, 16, 16384.0),
        ("glm5-nvfp4-8xrtxpro6000", "nvidia--GLM-5-NVFP4", 8, 16, 100164.5),
        ("kimi-k25-int4-8xmi35x", "moonshotai--Kimi-K2.5", 8, 16, 70271.2),
        ("kimi-k3-8xb300-fp8kv", "moonshotai--Kimi-K3", 8, 8, 13822.4),
        ("dsa61-fp8-8gpu-b300-class", "nvidia--DeepSeek-V3.2-NVFP4", 8, 8, 43188.3),
        ("qwen3-30b-a3b-fp8-h100-0519", "Qwen--Qwen3-30B-A3B-FP8", 1, 16, 98323.4),
        ("qwen3-32b-bf16-h100-0519", "Qwen--Qwen3-32B", 1, 16, 262129.5),
    ],
)
def test_public_bytes_per_token(run, name, tp, bits, printed):
    assert kv_bytes(read(name), tp, bits) == pytest.approx(printed, rel=0.0015)


@pytest.mark.parametrize(
    ("name", "tp", "bits", "mib"),
    [
        ("Qwen--Qwen3.5-27B", 1, 16, 71.91 + 2.8),
        ("nvidia--Qwen3.6-27B-NVFP4", 1, 32, 144.01 + 2.8),
        ("moonshotai--Kimi-K3", 8, 32, 51.76 + 1.84),
    ],
)
def test_public_state_per_slot(name, tp, bits, mib):
    assert state_bytes(read(name), tp, bits) / 2**20 == pytest.approx(mib, rel=0.01)


def shape(architecture, hidden, intermediate, layers, heads, kv_heads, words, **more):
    """A configuration: the published shapes of the models below."""
    return {
        "architectures": [architecture],
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": words,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
        **more,
    }


def qwen2(*numbers, **more):
    """A Qwen2 configuration."""
    return shape("Qwen2ForCausalLM", *numbers, **more)


SHAPES = {
    "Qwen2.5-0.5B": qwen2(896, 4864, 24, 14, 2, 151936, tie_word_embeddings=True),
    "Qwen2.5-1.5B": qwen2(1536, 8960, 28, 12, 2, 151936, tie_word_embeddings=True),
    "Qwen2.5-7B": qwen2(3584, 18944, 28, 28, 4, 152064),
    "QwQ-32B": qwen2(5120, 27648, 64, 40, 8, 152064, max_position_embeddings=40960),
    "Qwen2-72B-GPTQ": qwen2(8192, 29696, 80, 64, 8, 152064, quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 128}),
    "Mistral-7B": shape("MistralForCausalLM", 4096, 14336, 32, 32, 8, 32000),
    "Granite-4.0-h-micro": {
        **shape("GraniteMoeHybridForCausalLM", 2048, 8192, 40, 32, 8, 100352, tie_word_embeddings=True, shared_intermediate_size=8192),
        "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
        "mamba_n_heads": 64,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
        "position_embedding_type": "nope",
    },
}
QWEN2_VISION = {"depth": 32, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
SIGLIP = {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "num_hidden_layers": 27, "patch_size": 14}
GDN = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
KIMI_LINEAR = {"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4, "kda_layers": [n for n in range(1, 28) if n % 4 and n != 27]}
MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
EXPERTS = {"moe_intermediate_size": 1408, "first_k_dense_replace": 1}
# The number of parameters that the Hub shows for the files of a repository: of all tensors, those of layers for speculation too
PUBLISHED = {
    "meta-llama/Llama-3.2-1B": (
        shape("LlamaForCausalLM", 2048, 8192, 16, 32, 8, 128256, head_dim=64, tie_word_embeddings=True),
        1235814400,
    ),
    "microsoft/phi-4": (shape("Phi3ForCausalLM", 5120, 17920, 40, 40, 10, 100352), 14659507200),
    "allenai/OLMo-2-0325-32B": (shape("Olmo2ForCausalLM", 5120, 27648, 64, 40, 8, 100352), 32234279936),
    "zai-org/GLM-4-32B-0414": (shape("Glm4ForCausalLM", 6144, 23040, 61, 48, 2, 151552, head_dim=128), 32566081536),
    "ByteDance-Seed/Seed-OSS-36B-Instruct": (
        shape("SeedOssForCausalLM", 5120, 27648, 64, 80, 8, 155136, head_dim=128, attention_bias=True, attention_out_bias=False),
        36151104512,
    ),
    "Qwen/Qwen2.5-VL-7B-Instruct": (
        shape(
            "Qwen2_5_VLForConditionalGeneration",
            3584,
            18944,
            28,
            28,
            4,
            152064,
            vision_config={**QWEN2_VISION, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 3584},
        ),
        8292166656,
    ),
    "Qwen/Qwen2-VL-7B-Instruct": (
        shape(
            "Qwen2VLForConditionalGeneration",
            3584,
            18944,
            28,
            28,
            4,
            152064,
            vision_config={**QWEN2_VISION, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4},
        ),
        8291375616,
    ),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": (
        {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "text_config": shape("MistralForCausalLM", 5120, 32768, 40, 32, 8, 131072, head_dim=128),
            "vision_config": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 14},
        },
        24011361280,
    ),
    "google/gemma-3-4b-it": (
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "model_type": "gemma3_text"},
            "vision_config": SIGLIP,
        },
        4300079472,
    ),
    "google/gemma-3-27b-it": (
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "text_config": {
                "hidden_size": 5376,
                "intermediate_size": 21504,
                "num_hidden_layers": 62,
                "num_attention_heads": 32,
                "num_key_value_heads": 16,
                "head_dim": 128,
            },
            "vision_config": SIGLIP,
        },
        27432406640,
    ),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (
        shape(
            "Qwen3NextForCausalLM",
            2048,
            5120,
            48,
            16,
            2,
            151936,
            head_dim=256,
            full_attention_interval=4,
            num_experts=512,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
            **GDN,
        ),
        81324862720,
    ),
    "zai-org/GLM-4.5-Air": (
        shape(
            "Glm4MoeForCausalLM",
            4096,
            10944,
            46,
            96,
            8,
            151552,
            head_dim=128,
            attention_bias=True,
            n_routed_experts=128,
            n_shared_experts=1,
            num_nextn_predict_layers=1,
            **EXPERTS,
        ),
        110468824832,
    ),
    "deepseek-ai/DeepSeek-V2-Lite": (
        shape("DeepseekV2ForCausalLM", 2048, 10944, 27, 16, 16, 102400, n_routed_experts=64, n_shared_experts=2, **EXPERTS, **MLA),
        15706484224,
    ),
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": (
        shape(
            "KimiLinearForCausalLM",
            2304,
            9216,
            27,
            32,
            32,
            163840,
            num_experts=256,
            num_shared_experts=1,
            linear_attn_config=KIMI_LINEAR,
            **{**EXPERTS, "moe_intermediate_size": 1024},
            **MLA,
        ),
        49122681728,
    ),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_numbers_of_parameters(name):
    config, published = PUBLISHED[name]
    model, problems = _model_config.read(config)
    assert problems == []
    assert sum(part.elements for part in model.parts if not _model_weights.is_copy(part)) == published


# Complete public starts that print their weights: GiB, and how much of it (in GiB) is more than tensors and angles. Releases before 0.5
# printed the free memory before minus after, so that everything that came up meanwhile is in it.
PUBLIC = [
    ("qwen38-27b-bf16-a100-0517", "Qwen--Qwen3.5-27B", 1, 51.05, 0.04, ""),
    ("granite4-h-micro-16g", "Granite-4.0-h-micro", 1, 5.98, 0.05, ""),
    ("llama31-8b-h100-2025-01", "meta-llama--Meta-Llama-3.1-8B", 1, 15.09, 0.08, "0.4.1: before minus after"),
    ("qwq-32b-4xl4", "QwQ-32B", 4, 15.54, 0.27, "0.4.3: before minus after, on four GPUs"),
    ("r1-distill-qwen7b-3090-wsl", "Qwen2.5-7B", 1, 14.39, 0.20, "0.4.2: before minus after"),
    ("qwen25-7b-40g-042", "Qwen2.5-7B", 1, 14.38, 0.19, "0.4.2: before minus after"),
    ("qwen25-1.5b-gb10-bf16-m02-16gfree", "Qwen2.5-1.5B", 1, 3.01, 0.13, "unified memory: other processes and page cache move it"),
    ("qwen25-1.5b-gb10-bf16-m04", "Qwen2.5-1.5B", 1, 3.25, 0.37, "unified memory: 0.3 GiB more than the same start above"),
    ("qwen25-0.5b-h200-docs-2026-04", "Qwen2.5-0.5B", 1, 0.99, 0.07, ""),
    ("mistral-7b-4090-033", "Mistral-7B", 1, 13.57, 0.08, "0.3: before minus after"),
    ("deepseek-r1-16xh800-043", "deepseek-ai--DeepSeek-R1", 16, 40.46, 0.20, "0.4.3: before minus after"),
    ("qwen2-72b-gptq-4x22g-sm75", "Qwen2-72B-GPTQ", 4, 9.81, 0.12, "0.2: before minus after"),
    # not nvidia's but another maker's checkpoint of this model (config_fit: geometry), which leaves more unquantised
    ("glm5-nvfp4-8xrtxpro6000", "nvidia--GLM-5-NVFP4", 8, 57.06, 2.0, "another checkpoint, patched engine"),
]


@pytest.mark.parametrize(("run", "name", "tp", "logged", "over", "reason"), PUBLIC)
def test_public_starts(run, name, tp, logged, over, reason):
    model = read(name) if name in MODELS else _model_config.read(SHAPES[name])[0]
    stage = _model_weights.per_gpu(model, tp=tp)[0]
    more = logged - stage.weights - stage.rotary
    assert -0.01 <= more <= over
    assert reason or more < 0.02 * logged or more < 0.07


def test_experts_left_to_the_cpu_are_not_counted():
    # qwen3-30b-a3b-kt-h100: 32 of 128 experts on the GPU, 16.41 GiB
    stage = _model_weights.per_gpu(read("Qwen--Qwen3-30B-A3B", num_experts=32))[0]
    assert 0 <= 16.41 - stage.weights - stage.rotary < 0.05


def test_awq_of_a_70b():
    # nemotron70b-awq-2x48g-eagle: 18.65 GiB on each of two
    config = {
        **MODELS["meta-llama--Meta-Llama-3.1-70B"]["config"],
        "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128},
    }
    stage = _model_weights.per_gpu(_model_config.read(config)[0], tp=2)[0]
    assert 0 <= 18.65 - stage.weights - stage.rotary < 0.08


# Formats


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("Qwen--Qwen3-32B", {"embedding": 16, "layers": 16, "layers.mlp": 16, "lm_head": 16}),
        # a float32 scale for 128 x 128 numbers
        ("Qwen--Qwen3-30B-A3B-FP8", {"embedding": 16, "layers.fp8": 8.002, "experts.fp8": 8.002, "lm_head": 16}),
        ("nvidia--Llama-3.1-70B-Instruct-FP8", {"layers.fp8": 8.0, "layers.mlp.fp8": 8.0, "lm_head": 16}),
        # 16 numbers share an FP8 scale; attention is left out by its list
        ("nvidia--GLM-5-NVFP4", {"layers": 16, "layers.mlp.nvfp4": 4.5, "experts.nvfp4": 4.5, "lm_head": 16}),
        # formats by module: FP8 in the recurrent layers, NVFP4 in the feed-forward networks and the head
        ("nvidia--Qwen3.6-27B-NVFP4", {"layers.fp8": 8.0, "layers.mlp.nvfp4": 4.5, "lm_head.nvfp4": 4.5, "vision": 16, "draft": 16}),
        # 32 numbers share a 16-bit scale; only the experts
        ("moonshotai--Kimi-K2.5", {"experts.int4": 4.5, "layers": 16, "layers.mlp": 16}),
        ("openai--gpt-oss-20b", {"experts.mxfp4": 4.25, "layers": 16, "experts": 16}),
        ("deepseek-ai--DeepSeek-V4-Flash", {"experts.mxfp4": 4.25, "layers.fp8": 8.0005, "lm_head": 16}),
        ("nvidia--DeepSeek-V4-Flash-NVFP4", {"experts.nvfp4": 4.5, "lm_head": 16}),
    ],
)
def test_each_part_has_its_own_format(name, wanted):
    bits = collections.defaultdict(set)
    for part in read(name).parts:
        bits[part.name].add(round(part.bits, 2))
    assert {part: bits[part] for part in wanted} == {part: {round(value, 2)} for part, value in wanted.items()}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("nvidia--GLM-5.1-NVFP4", "fp8_e4m3"),  # config.json: kv_cache_scheme
        ("nvidia--GLM-5-NVFP4", "fp8_e4m3"),  # hf_quant_config.json: kv_cache_quant_algo
        ("nvidia--Qwen3.6-35B-A3B-NVFP4", None),  # config.json comes first, and says nothing
        ("moonshotai--Kimi-K2.5", None),
        ("Qwen--Qwen3-8B", None),
    ],
)
def test_the_cache_that_a_checkpoint_asks_for(name, wanted):
    assert read(name).kv_cache_dtype == wanted


def test_what_deepseek_v4_keeps():
    (kept,) = read("deepseek-ai--DeepSeek-V4-Flash").attentions
    assert (kept.kind, kept.layers, kept.window, kept.latent_dim) == ("compressed", 44, 128, 512)
    assert (kept.index_layers, kept.index_dim, kept.coarse_layers) == (21, 128, 20)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("openai--gpt-oss-20b", [("full", 12, 8, 64, None), ("sliding", 12, 8, 64, 128)]),
        ("google--gemma-4-26B-A4B", [("full", 5, 2, 512, None), ("sliding", 25, 8, 256, 1024)]),
        ("meta-llama--Llama-4-Maverick-17B-128E-Instruct", [("full", 12, 8, 128, None), ("sliding", 36, 8, 128, 8192)]),
        ("stepfun-ai--Step-3.7-Flash", [("full", 12, 8, 128, None), ("sliding", 33, 8, 128, 512)]),
        ("nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8", [("full", 8, 2, 128, None)]),
    ],
)
def test_which_layers_keep_all_and_which_a_window(name, wanted):
    assert [(each.kind, each.layers, each.kv_heads, each.head_dim, each.window) for each in read(name).attentions] == wanted


def test_unquantised_layers_for_speculation():
    draft = {part.name for part in read("nvidia--Qwen3.5-397B-A17B-NVFP4").parts if part.name.startswith("draft")}
    assert draft == {"draft", "draft.mlp", "draft.experts", "draft.embedding.copy", "draft.lm_head.copy"}
    # the engine loads them so for NVFP4 whatever the list says
    quant = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
    model = _model_config.read(MODELS[Q27]["config"], quant)[0]
    assert {part.name for part in model.parts if part.name.startswith("draft")} == {
        "draft",
        "draft.mlp",
        "draft.embedding.copy",
        "draft.lm_head.copy",
    }
    assert "layers.mlp.nvfp4" in {part.name for part in model.parts}


def test_a_list_that_is_missing_is_told():
    assert read("nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4").notes == (
        "NVFP4 without a list of what it leaves out: counted as if it quantised every projection",
    )


# Ranks


def test_kv_heads_are_copied_where_there_are_more_ranks():
    model = read("Qwen--Qwen3-30B-A3B")  # 4 KV heads
    kv = sum(part.elements for part in model.parts if part.shard == "kv") * 2 / 2**30
    four, eight = (_model_weights.per_gpu(model, tp=tp)[0].weights for tp in (4, 8))
    always = sum(part.elements * part.bits / 8 for part in model.parts if part.shard == "none" and not _model_weights.is_copy(part)) / 2**30
    assert eight - always - kv / 4 == pytest.approx((four - always - kv / 4) / 2)


def test_stages_of_a_pipeline():
    model = read("Qwen--Qwen3-8B")  # 36 layers
    one = _model_weights.per_gpu(model)[0].weights
    stages = _model_weights.per_gpu(model, pp=5)
    assert [_model_weights.stage_layers(36, 5, stage) for stage in range(5)] == [7, 7, 7, 7, 8]
    assert sum(stage.weights for stage in stages) == pytest.approx(one, rel=1e-5)
    assert stages[-1].weights > stages[0].weights > stages[1].weights
    tied = _model_weights.per_gpu(read("Qwen--Qwen3-0.6B"), pp=2)
    assert tied[0].weights == pytest.approx(tied[1].weights)


def test_experts_over_ranks():
    model = read("Qwen--Qwen3-30B-A3B")  # 128 experts
    assert _model_weights.per_gpu(model, tp=8, ep=8) == _model_weights.per_gpu(model, tp=8, ep=2) == _model_weights.per_gpu(model, tp=8)
    more = _model_weights.per_gpu(model, tp=8, ep=8, redundant_experts=8)[0].weights - _model_weights.per_gpu(model, tp=8)[0].weights
    assert more == pytest.approx(sum(part.elements for part in model.parts if part.name == "experts") / 128 * 2 / 2**30)


@pytest.mark.parametrize(
    ("tp", "backend", "factor"),
    [
        (1, "triton_kernel", 1.0),
        (2, "triton_kernel", 1472 / 1440),
        (8, "triton_kernel", 384 / 360),
        (1, "flashinfer_mxfp4", 2944 * 3072 / 2880**2),
        (4, "marlin", 768 * 3072 / (720 * 2880)),
        (4, "deep_gemm", 1.0),
    ],
)
def test_experts_in_mxfp4_are_padded_by_what_runs_them(tp, backend, factor):
    model = read("openai--gpt-oss-20b")
    experts = sum(part.elements * part.bits for part in model.parts if part.name == "experts.mxfp4") / 8 / 2**30 / tp
    plain = _model_weights.per_gpu(model, tp=tp, moe_runner_backend="deep_gemm")[0].weights
    assert _model_weights.per_gpu(model, tp=tp, moe_runner_backend=backend)[0].weights - plain == pytest.approx(experts * (factor - 1))


def test_attention_over_fewer_ranks_than_the_rest():
    model = read("deepseek-ai--DeepSeek-V3")
    assert _model_weights.per_gpu(model, tp=8, attention_tp=1)[0].weights > _model_weights.per_gpu(model, tp=8)[0].weights
    assert _model_weights.per_gpu(model, tp=8, attention_tp=8) == _model_weights.per_gpu(model, tp=8)


def test_a_whole_vision_tower_on_every_rank():
    model = read(Q27)
    more = _model_weights.per_gpu(model, tp=2, whole_vision=True)[0].weights - _model_weights.per_gpu(model, tp=2)[0].weights
    assert round(more, 2) == 0.43


@pytest.mark.parametrize(("words", "ranks", "rows"), [(151936, 1, 151936), (50257, 1, 50304), (128815, 2, 128832), (100, 3, 192)])
def test_rows_of_an_embedding(words, ranks, rows):
    assert _model_weights.padded_rows(words, ranks) == rows


# The files themselves


def header(tensors, cut=0):
    """The start of a safetensors file."""
    text = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    return struct.pack("<Q", len(text)) + text[: len(text) - cut]


TINY = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
    "full_attention_interval": 2,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
    "linear_conv_kernel_dim": 4,
    "mtp_num_hidden_layers": 1,
    "torch_dtype": "bfloat16",
}


def test_headers_count_instead_of_the_configuration():
    model, problems = _model_config.read(TINY)
    assert problems == []
    files = {
        "model.embed_tokens.weight": {"dtype": "BF16", "shape": [64, 8], "data_offsets": [0, 1024]},
        "lm_head.weight": {"dtype": "F8_E4M3", "shape": [64, 8], "data_offsets": [0, 512]},
        "model.layers.0.linear_attn.out_proj.weight": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]},
        "model.norm.weight": {"dtype": "BF16", "shape": [8], "data_offsets": [0, 16]},
    }
    tensors, problems = _model_weights.read_header("model.safetensors", header(files))
    assert problems == []
    real, notes = _model_weights.with_tensors(model, tensors)
    sizes = collections.Counter()
    for part in real.parts:
        if not _model_weights.is_copy(part):
            sizes[_model_weights.kind(part)] += part.elements * part.bits / 8
    # float32 is loaded in the model's own type
    assert {kind: round(size) for kind, size in sizes.items()} == {"embedding": 1024, "lm_head": 512, "layers": 2000, "other": 16}
    assert (model.draft_layers, real.draft_layers, real.draft_attention) == (1, 0, None)
    assert any("speculation with them cannot work" in note for note in notes)
    assert any(note.startswith("lm_head: expected 0.00 GiB by config.json") for note in notes)


def test_headers_that_agree_change_nothing():
    model = read("Qwen--Qwen3-8B")
    groups = {
        "embedding": "model.embed_tokens.weight",
        "lm_head": "lm_head.weight",
        "layers": "model.layers.0.x.weight",
        "other": "model.norm.weight",
    }
    tensors = {name: _model_weights.Tensor("BF16", (by_kind(model)[group],)) for group, name in groups.items()}
    assert _model_weights.with_tensors(model, tensors) == (model, [])


def test_an_index_gives_the_size_of_all():
    model = read(Q27)
    names = [
        "model.language_model.layers.0.mlp.gate_proj.weight",
        "lm_head.weight",
        "model.language_model.embed_tokens.weight",
        "model.visual.merger.x",
    ]
    total, found, problems = _model_weights.read_index(
        {"metadata": {"total_size": 54_713_457_120}, "weight_map": dict.fromkeys(names, "a.safetensors")}
    )
    assert (total, found, problems) == (54_713_457_120, names, [])
    real, notes = _model_weights.with_index(model, total, found)
    assert _model_weights.disk_bytes(real) == pytest.approx(total)
    assert notes == ["the files have no tensors of the layers for speculation that config.json names: speculation with them cannot work"]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("model.layers.61.eh_proj.weight", "draft"),
        ("model.layers.60.mlp.experts.3.up_proj.weight", "experts"),
        ("mtp.layers.0.self_attn.q_proj.weight", "draft"),
        ("model.visual.blocks.70.attn.qkv.weight", "vision"),
        ("vision_tower.encoder.layers.99.mlp.fc1.weight", "vision"),
        ("backbone.embeddings.weight", "embedding"),
        ("head.weight", "lm_head"),
        ("model.layers.0.self_attn.q_norm.weight", "layers"),
        ("mm_projector.linear_1.weight", "other"),
    ],
)
def test_names_of_tensors(name, wanted):
    assert _model_weights.tensor_kind(name, 61) == wanted


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "expected at least 8 bytes, found 0"),
        (b"version https://git-lfs.github.com/spec/v1", "if it is a Git LFS pointer"),
        (header({}, cut=3), "expected a header of"),
        (struct.pack("<Q", 4) + b"{{{{", "expected JSON as its header"),
        (struct.pack("<Q", 4) + b"[12]", "expected an object as its header"),
        (header({"a": {"dtype": "BF16", "shape": [-1]}}), "expected dtype and shape"),
        (header({"a": {"dtype": "Q9", "shape": [1]}}), "expected a known dtype, found 'Q9'"),
        (header({"a": 3}), "expected dtype and shape"),
    ],
)
def test_broken_headers(data, problem):
    tensors, problems = _model_weights.read_header("x.safetensors", data)
    assert tensors == {}
    assert len(problems) == 1
    assert problem in problems[0]
    assert problems[0].startswith("x.safetensors: ")


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ([], "expected an object"),
        ({}, "weight_map: expected an object of file names"),
        ({"weight_map": {"a": 1}}, "weight_map: expected an object of file names"),
        ({"weight_map": {}, "metadata": {"total_size": -4}}, "metadata.total_size: expected a whole number above 0, found -4"),
        ({"weight_map": {}, "metadata": 7.5}, "metadata.total_size: expected a whole number above 0, found 7.5"),
    ],
)
def test_broken_indexes(index, problem):
    total, names, problems = _model_weights.read_index(index)
    assert (total, names) == (None, [])
    assert [problem in each for each in problems] == [True]


# Bad configurations


def test_all_problems_are_told_at_once():
    config = {**MODELS[Q27]["config"], "architectures": ["Qwen3_5ForConditionalGeneration"]}
    text = {**config["text_config"], "hidden_size": -5120, "num_key_value_heads": 7, "linear_key_head_dim": "128", "vocab_size": None}
    model, problems = _model_config.read({**config, "text_config": text})
    assert model is None
    assert sorted(problem.split(":")[0] for problem in problems) == [
        "text_config.hidden_size",
        "text_config.linear_key_head_dim",
        "text_config.num_key_value_heads",
        "text_config.vocab_size",
    ]
    assert "text_config.hidden_size: expected a whole number from 1 to 1000000000, found -5120; correct it" in problems
    assert (
        "text_config.vocab_size: expected a whole number, found nothing; take the config.json that was published with the model" in problems
    )


@pytest.mark.parametrize(
    ("name", "path", "value", "problem"),
    [
        ("Qwen--Qwen3-8B", ["num_hidden_layers"], 10**7, "num_hidden_layers: expected a whole number from 1 to 4096, found 10000000"),
        ("Qwen--Qwen3-8B", ["hidden_size"], 10**9, "expected a model of at most 1e+14 parameters"),
        ("Qwen--Qwen3-8B", ["torch_dtype"], "int3", "dtype: expected bfloat16, float16 or float32, found 'int3'"),
        ("Qwen--Qwen3-8B", ["architectures"], [], "architectures: expected a list with the name of an architecture, found []"),
        (
            Q27,
            ["text_config", "layer_types"],
            ["full_attention"],
            "text_config.layer_types: expected a list of 64 (num_hidden_layers), found 1",
        ),
        (Q27, ["vision_config"], [3], "vision_config: expected an object, found [3]"),
        ("deepseek-ai--DeepSeek-V3", ["quantization_config", "weight_block_size"], [0, 1], "weight_block_size: expected two whole numbers"),
        ("deepseek-ai--DeepSeek-V3", ["quantization_config", "quant_method"], "new", "quant_method: expected fp8, mxfp4, modelopt"),
        (
            "moonshotai--Kimi-K2.5",
            ["text_config", "quantization_config", "ignore"],
            ["re:(("],
            "ignore: expected names, globs or regular expressions",
        ),
        ("nvidia--GLM-5.2-NVFP4", ["quantization_config", "quant_algo"], "FP3", ""),
        (
            "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            ["hybrid_override_pattern"],
            "MEX",
            "hybrid_override_pattern: expected a text of M, *, E and -",
        ),
    ],
)
def test_one_thing_that_is_wrong(name, path, value, problem):
    config = copy.deepcopy(MODELS[name]["config"])
    inner = config
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    model, problems = _model_config.read(config)
    assert model is None
    assert any(problem in each for each in problems)


def test_an_unknown_architecture_is_a_guess_and_says_so():
    config = {**MODELS["Qwen--Qwen3-8B"]["config"], "architectures": ["BrandNewForCausalLM"]}
    model, problems = _model_config.read(config)
    assert problems == []
    assert not model.known
    assert any("BrandNewForCausalLM" in note for note in model.notes)
    assert _model_weights.parameters(model) == pytest.approx(8_190_735_360, rel=0.01)


@pytest.mark.parametrize(
    "more", [{"mamba_d_state": 128}, {"linear_num_key_heads": 16}, {"hybrid_override_pattern": "M*"}], ids=lambda more: next(iter(more))
)
def test_an_unknown_architecture_with_a_state_is_refused(more):
    model, problems = _model_config.read({**MODELS["Qwen--Qwen3-8B"]["config"], **more, "architectures": ["BrandNewForCausalLM"]})
    assert model is None
    assert problems == [
        "architectures: expected an architecture that the plan has a reader for, found BrandNewForCausalLM, whose layers keep a state "
        f"({next(iter(more))}); plan with measured numbers, or report the model"
    ]


@pytest.mark.parametrize(
    ("like", "within"), [("Qwen--Qwen3-30B-A3B", 0.01), ("deepseek-ai--DeepSeek-V3", 0.001), ("mistralai--Mixtral-8x7B-v0.1", 0.001)]
)
def test_a_guess_comes_near(like, within):
    config = {**MODELS[like]["config"], "architectures": ["BrandNewForCausalLM"]}
    assert _model_weights.parameters(_model_config.read(config)[0]) == pytest.approx(_model_weights.parameters(read(like)), rel=within)


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({"max_position_embeddings": 32768}, 32768),
        (
            {"max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
            32768,
        ),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 4096, "seq_length": 8192}, 8192),
        ({"max_position_embeddings": None}, 2048),
        ({"max_position_embeddings": 8192, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 8192),
    ],
)
def test_context(config, context):
    assert _model_config.read({**SHAPES["Qwen2.5-7B"], **config})[0].context_length == context


GARBAGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 300),
    st.sampled_from(
        [10**30, -(10**30), 1e308, float("nan"), float("inf"), 0, 0.5, "", "float32", [], {}, [None], [[1]], {"a": 1}, ["re:("], "*" * 999]
    ),
    st.text(max_size=8),
    st.lists(st.one_of(st.integers(-2, 9), st.text(max_size=4), st.none()), max_size=5),
)


def paths(value, above=()):
    """Every place in a configuration that holds something."""
    for key, inner in value.items():
        yield (*above, key)
        if isinstance(inner, dict):
            yield from paths(inner, (*above, key))


def check(model, problems):
    """Either a model whose numbers make sense, or problems in words."""
    assert (model is None) == bool(problems)
    for problem in problems:
        assert ": expected " in problem
        assert "; " in problem
        assert "\n" not in problem
    if model is None:
        return
    assert all(part.elements > 0 and 0 < part.bits <= 8000 for part in model.parts)
    assert model.context_length > 0
    for size in (*dataclasses.astuple(model.state)[1:7],) if model.state else ():
        assert size >= 0
    for each in model.attentions:
        assert each.layers > 0
    sizes = [_model_weights.per_gpu(model, tp=tp)[0] for tp in (1, 2, 8)]
    assert all(value >= 0 for stage in sizes for value in stage)
    assert sizes[0].weights >= sizes[1].weights >= sizes[2].weights > 0
    assert 0 < _model_weights.disk_bytes(model) < 10**17


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_garbled_configurations(data):
    name = data.draw(st.sampled_from(sorted(MODELS)))
    config = copy.deepcopy(MODELS[name]["config"])
    quant = copy.deepcopy(MODELS[name].get("hf_quant_config"))
    for _change in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.sampled_from(sorted(paths({"config": config, **({"quant": quant} if isinstance(quant, dict) else {})}))))
        inner = {"config": config, "quant": quant}
        for key in place[:-1]:
            inner = inner[key]
        if len(place) > 1:
            inner[place[-1]] = data.draw(GARBAGE)
        elif place == ("quant",):
            quant = data.draw(GARBAGE)
    check(*_model_config.read(config, quant))


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([*sorted(ARCHITECTURES), "Other"]),
    st.dictionaries(st.sampled_from(sorted({k for m in MODELS.values() for k in m["config"]})), GARBAGE),
)
def test_configurations_of_nothing_but_garbage(architecture, fields):
    check(*_model_config.read({**fields, "architectures": [architecture]}))


@settings(max_examples=100, deadline=None)
@given(GARBAGE, GARBAGE)
def test_no_configuration_at_all(config, quant):
    check(*_model_config.read(config, quant))


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=64), st.dictionaries(st.text(max_size=5), GARBAGE, max_size=4).map(header)))
def test_garbled_headers(data):
    tensors, problems = _model_weights.read_header("x", data)
    assert all(tensor.bytes >= 0 for tensor in tensors.values())
    assert all(problem.startswith("x: ") and "expected" in problem for problem in problems)
