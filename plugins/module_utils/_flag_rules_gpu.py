# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Rules of what runs on which GPU, and of how a model is split over GPUs."""

from __future__ import annotations

import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils._flag_facts import (
    ERROR,
    WARNING,
    Facts,
    Rule,
    capability,
    entering,
)

RULES: list[Rule] = []
rule = entering(RULES)

# --- Attention backends ---


def _hybrid_blackwell(facts: Facts, allowed: t.Mapping[int, t.Sequence[str]]) -> t.Iterator[str]:
    if not facts.hybrid() or facts.model is None or facts.model.state is None or facts.model.state.kind != "gdn":
        return
    for flag, backend in facts.backends().items():
        for pair in facts.capabilities():
            if pair[0] in allowed and backend not in allowed[pair[0]]:
                yield (
                    f"args.{flag}: expected one of {', '.join(allowed[pair[0]])} for a hybrid model on compute capability "
                    f"{capability(pair)}, found {backend}; write triton"
                )


_OLD_BLACKWELL = ("triton", "trtllm_mha")
_BLACKWELL = ("triton", "trtllm_mha", "fa4", "flashinfer")
_BLACKWELL_12 = ("triton", "trtllm_mha", "flashinfer")


@rule(
    "hybrid-blackwell-backend",
    ERROR,
    "Attention backends of hybrid models on Blackwell",
    "0.5.8 layers/attention/attention_registry.py:205",
    last="0.5.9",
)
def _hybrid_blackwell_first(facts: Facts) -> t.Iterator[str]:
    yield from _hybrid_blackwell(facts, {10: _OLD_BLACKWELL, 12: _OLD_BLACKWELL})


@rule(
    "hybrid-blackwell-backend",
    ERROR,
    "Attention backends of hybrid models on Blackwell",
    "0.5.10 layers/attention/attention_registry.py:210; 0.5.15.post1 layers/attention/attention_registry.py:295",
    first="0.5.10",
    last="0.5.15.post1",
)
def _hybrid_blackwell_second(facts: Facts) -> t.Iterator[str]:
    yield from _hybrid_blackwell(facts, {10: _BLACKWELL, 12: _BLACKWELL})


@rule(
    "hybrid-blackwell-backend",
    ERROR,
    "Attention backends of hybrid models on Blackwell",
    "0.5.16 layers/attention/attention_registry.py:336; 0.5.20 layers/attention/attention_registry.py:435",
    first="0.5.16",
    last="0.5.20",
)
def _hybrid_blackwell_third(facts: Facts) -> t.Iterator[str]:
    yield from _hybrid_blackwell(facts, {10: ("triton", "trtllm_mha", "fa4"), 12: _BLACKWELL_12})


@rule(
    "hybrid-blackwell-backend",
    ERROR,
    "Attention backends of hybrid models on Blackwell",
    "0.5.21 layers/attention/attention_registry.py:435; 0.5.23 layers/attention/attention_registry.py:44",
    first="0.5.21",
)
def _hybrid_blackwell_fourth(facts: Facts) -> t.Iterator[str]:
    yield from _hybrid_blackwell(facts, {10: _BLACKWELL, 12: _BLACKWELL_12})


def _backend_on(facts: Facts, backend: str, flags: t.Sequence[str], majors: t.Sequence[int], cure: str) -> t.Iterator[str]:
    """A backend that is given in one of the flags and does not run on the GPUs' compute capability."""
    for flag, given in facts.backends().items():
        for pair in facts.capabilities():
            if given == backend and flag in flags and pair[0] not in majors:
                expected = " or ".join(f"{major}.x" for major in majors)
                yield f"args.{flag}: expected a GPU of compute capability {expected} for {backend}, found {capability(pair)}; {cure}"


_ALL = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
_LEAVE = "leave the flag out, or write flashinfer"


@rule(
    "trtllm-mha-gpu",
    ERROR,
    "The attention backend trtllm_mha runs on compute capability 10 only",
    "0.5.8 server_args.py:1763; 0.5.10 server_args.py:2375",
    last="0.5.9",
)
def _trtllm_mha_gpu_old(facts: Facts) -> t.Iterator[str]:
    yield from _backend_on(facts, "trtllm_mha", _ALL, (10,), _LEAVE)


@rule(
    "trtllm-mha-gpu",
    ERROR,
    "The attention backend trtllm_mha prefills on compute capability 10 only",
    "0.5.10 server_args.py:2375; 0.5.18 server_args.py:6018; captured K04 (exit 1)",
    first="0.5.10",
    last="0.5.18",
)
def _trtllm_mha_gpu_prefill(facts: Facts) -> t.Iterator[str]:
    prefill = ("prefill_attention_backend",) if "prefill_attention_backend" in facts.args else ("attention_backend",)
    yield from _backend_on(facts, "trtllm_mha", prefill, (10,), _LEAVE)
    yield from _backend_on(facts, "trtllm_mha", ("decode_attention_backend",), (9, 10, 12), _LEAVE)


@rule(
    "trtllm-mha-gpu",
    ERROR,
    "The attention backend trtllm_mha runs on compute capability 9, 10 and 12",
    "0.5.19 arg_groups/attention_hook.py:134; 0.5.23 arg_groups/attention_hook.py:200",
    first="0.5.19",
)
def _trtllm_mha_gpu(facts: Facts) -> t.Iterator[str]:
    yield from _backend_on(facts, "trtllm_mha", _ALL, (9, 10, 12), _LEAVE)


@rule(
    "trtllm-mha-consumer-blackwell",
    WARNING,
    "trtllm_mha on compute capability 12, which lacks the instructions that it was made for",
    "sgl-project/sglang#18758; the resolver of 0.5.23 takes it (arg_groups/attention_hook.py:200)",
    first="0.5.19",
)
def _trtllm_mha_consumer(facts: Facts) -> t.Iterator[str]:
    for flag, backend in facts.backends().items():
        if backend == "trtllm_mha" and any(pair[0] == 12 for pair in facts.capabilities()):
            yield f"args.{flag}: expected flashinfer or triton on compute capability 12, found trtllm_mha, made for 10; write triton"


@rule(
    "trtllm-mha-fp8-cache",
    ERROR,
    "trtllm_mha on compute capability 12 does not prefill from an fp8_e4m3 cache",
    "0.5.23 arg_groups/attention_hook.py:206",
    first="0.5.19",
)
def _trtllm_mha_fp8_cache(facts: Facts) -> t.Iterator[str]:
    prefill = facts.word("prefill_attention_backend") or facts.word("attention_backend")
    twelve = any(pair[0] == 12 for pair in facts.capabilities())
    if twelve and prefill == "trtllm_mha" and facts.word("kv_cache_dtype") == "fp8_e4m3":
        yield "args.kv_cache_dtype: expected another one with trtllm_mha on compute capability 12, found fp8_e4m3; leave trtllm_mha out"


@rule(
    "fa3-gpu",
    ERROR,
    "The attention backend fa3 runs on compute capability 8 and 9, with MLA on 9",
    "0.5.8 layers/attention/attention_registry.py:133; 0.5.23 layers/attention/attention_registry.py:243",
)
def _fa3_gpu(facts: Facts) -> t.Iterator[str]:
    latent = facts.model is not None and any(attention.kind == "mla" for attention in facts.model.attentions)
    yield from _backend_on(facts, "fa3", _ALL, (9,) if latent else (8, 9), _LEAVE)


@rule(
    "fa3-fp8-e5m2",
    WARNING,
    "fa3 does not read an fp8_e5m2 cache: the engine takes triton",
    "0.5.8 server_args.py:1774; 0.5.23 arg_groups/overrides.py:1263; captured H7",
)
def _fa3_fp8(facts: Facts) -> t.Iterator[str]:
    if facts.word("attention_backend") == "fa3" and facts.word("kv_cache_dtype") == "fp8_e5m2":
        yield "args.kv_cache_dtype: expected fp8_e4m3 with fa3, found fp8_e5m2; the engine takes triton for it: write fp8_e4m3"


@rule(
    "linear-attention-flashinfer",
    ERROR,
    "Linear attention decodes with flashinfer on compute capability 10 and higher only with a bfloat16 state",
    "0.5.10 server_args.py:2595; 0.5.23 arg_groups/attention_hook.py:341",
    first="0.5.10",
)
def _linear_attention_flashinfer(facts: Facts) -> t.Iterator[str]:
    flag = "linear_attn_decode_backend" if "linear_attn_decode_backend" in facts.args else "linear_attn_backend"
    for pair in facts.capabilities():
        if facts.word(flag) == "flashinfer" and pair >= (10, 0) and facts.word("mamba_ssm_dtype") != "bfloat16":
            yield (
                f"args.{flag}: expected mamba_ssm_dtype bfloat16 with flashinfer on compute capability {capability(pair)}, "
                f"found {facts.word('mamba_ssm_dtype') or 'none'}; write it, or leave {flag} out"
            )


# --- Data types by generation ---


@rule(
    "gpu-too-old",
    ERROR,
    "SGLang needs compute capability 7.5",
    "0.5.8 model_executor/model_runner.py:822; 0.5.23 model_executor/model_runner_components/load_model_utils.py:91",
)
def _gpu_too_old(facts: Facts) -> t.Iterator[str]:
    for pair in facts.capabilities():
        if pair < (7, 5):
            yield f"gpus: expected compute capability 7.5 or higher, found {capability(pair)}; take another GPU"


@rule(
    "bfloat16-gpu",
    WARNING,
    "bfloat16 needs compute capability 8.0; below, the engine takes float16",
    "0.5.8 model_executor/model_runner.py:816; 0.5.23 model_executor/model_runner_components/load_model_utils.py:85",
)
def _bfloat16_gpu(facts: Facts) -> t.Iterator[str]:
    for pair in facts.capabilities():
        if (7, 5) <= pair < (8, 0) and facts.word("dtype") == "bfloat16":
            yield (
                f"args.dtype: expected float16 on compute capability {capability(pair)}, found bfloat16; the engine takes float16: write it"
            )


# SGLANG layers/quantization/*.py, get_min_capability, which model_loader/loader.py compares: method -> lowest compute capability.
_LOWEST = {
    "awq": (7, 5),
    "awq_marlin": (8, 0),
    "bitsandbytes": (7, 0),
    "blockwise_int8": (8, 0),
    "compressed-tensors": (7, 0),
    "fp8": (8, 0),
    "gptq_marlin": (8, 0),
    "humming": (7, 5),
    "marlin": (8, 0),
    "modelopt_fp8": (8, 9),
    "mxfp4": (8, 0),
    "mxfp8": (10, 0),
    "nvfp4_online": (10, 0),
    "petit_nvfp4": (9, 0),
    "qoq": (8, 0),
    "w4afp8": (9, 0),
    "w8a8_fp8": (8, 9),
    "w8a8_int8": (7, 5),
}


def _method(facts: Facts) -> str | None:
    """The quantisation that counts: the flag's, else the checkpoint's."""
    return facts.word("quantization") or (facts.model.quantization if facts.model else None)


def _quantization_gpu(facts: Facts, lowest: t.Mapping[str, tuple[int, int]]) -> t.Iterator[str]:
    method = _method(facts) or ""
    for pair in facts.capabilities():
        if method in lowest and pair < lowest[method]:
            need = "{}.{}".format(*lowest[method])
            yield (
                f"quantization: expected compute capability {need} or higher for {method}, found {capability(pair)}; "
                "take AWQ, GPTQ or BF16 weights"
            )


_QUANTIZATION = "0.5.8 layers/quantization: get_min_capability; 0.5.23 the same, model_loader/loader.py:259"


@rule("quantization-gpu", ERROR, "The lowest compute capability of each quantisation", _QUANTIZATION)
def _quantization(facts: Facts) -> t.Iterator[str]:
    yield from _quantization_gpu(facts, _LOWEST)


@rule(
    "fp4-gpu",
    ERROR,
    "NVFP4 weights (modelopt_fp4) need compute capability 10.0 up to 0.5.12",
    "0.5.8 layers/quantization/modelopt_quant.py:893; 0.5.12.post1 layers/quantization/modelopt_quant.py:1134",
    last="0.5.12.post1",
)
def _fp4_old(facts: Facts) -> t.Iterator[str]:
    yield from _quantization_gpu(facts, {"modelopt_fp4": (10, 0)})


@rule(
    "fp4-gpu",
    ERROR,
    "NVFP4 weights (modelopt_fp4) need compute capability 8.0 from 0.5.13 on",
    "0.5.13 layers/quantization/modelopt_quant.py:1204; 0.5.23 layers/quantization/modelopt_quant.py:1549",
    first="0.5.13",
)
def _fp4(facts: Facts) -> t.Iterator[str]:
    yield from _quantization_gpu(facts, {"modelopt_fp4": (8, 0)})


@rule(
    "fp4-weight-only",
    WARNING,
    "FP4 weights below compute capability 10 are unpacked to a wider type: smaller, not faster",
    "0.5.13 layers/quantization/modelopt_quant.py:1204 (Marlin)",
    first="0.5.13",
)
def _fp4_weight_only(facts: Facts) -> t.Iterator[str]:
    method = _method(facts)
    for pair in facts.capabilities():
        if method in ("modelopt_fp4", "mxfp4") and (8, 0) <= pair < (10, 0):
            yield (
                f"quantization: expected compute capability 10.0 or higher for {method} in hardware, found {capability(pair)}; "
                "nobody here has tried it: test it"
            )


@rule(
    "fp8-weight-only",
    WARNING,
    "FP8 weights below compute capability 8.9 go through a weight-only path that was seen to fail",
    "sgl-project/sglang#7715, #12887, #38291; 0.5.23 layers/quantization/fp8_utils.py",
)
def _fp8_weight_only(facts: Facts) -> t.Iterator[str]:
    for pair in facts.capabilities():
        if _method(facts) == "fp8" and (8, 0) <= pair < (8, 9):
            yield (
                f"quantization: expected compute capability 8.9 or higher for FP8 weights, found {capability(pair)}, where they were seen "
                "to fail at graph capture; take AWQ, GPTQ-Int4 or BF16 weights"
            )


@rule(
    "fp8-cache-triton",
    ERROR,
    "Triton has no fp8_e4m3 below compute capability 8.9",
    "sgl-project/sglang#7715, #12887: fp8e4nv not supported in this architecture",
)
def _fp8_cache_triton(facts: Facts) -> t.Iterator[str]:
    for pair in facts.capabilities():
        if pair < (8, 9) and facts.word("kv_cache_dtype") == "fp8_e4m3" and "triton" in facts.backends().values():
            yield (
                f"args.kv_cache_dtype: expected fp8_e5m2 with triton on compute capability {capability(pair)}, found fp8_e4m3; "
                "write fp8_e5m2"
            )


@rule(
    "fp8-cache-gpu",
    WARNING,
    "An fp8_e4m3 cache below compute capability 8.9",
    "sgl-project/sglang#7715; 0.5.23 layers/attention/flashinfer_backend.py:899 (reads both kinds)",
)
def _fp8_cache_gpu(facts: Facts) -> t.Iterator[str]:
    for pair in facts.capabilities():
        if pair < (8, 9) and facts.word("kv_cache_dtype") == "fp8_e4m3" and "triton" not in facts.backends().values():
            yield (
                f"args.kv_cache_dtype: expected fp8_e5m2 on compute capability {capability(pair)}, found fp8_e4m3; "
                "write fp8_e5m2, or test a long prompt"
            )


@rule(
    "block-cache-gpu",
    ERROR,
    "Block-scaled caches (mxfp8, nvfp4, fp4) need compute capability 10",
    "0.5.16 server_args.py:5070; 0.5.23 arg_groups/kv_cache_hook.py:106, arg_groups/attention_hook.py:225",
    first="0.5.16",
)
def _block_cache_gpu(facts: Facts) -> t.Iterator[str]:
    kind = facts.word("kv_cache_dtype")
    for pair in facts.capabilities():
        if kind in ("mxfp8", "nvfp4", "fp4_mx_block16") and pair < (10, 0):
            yield (
                f"args.kv_cache_dtype: expected compute capability 10.0 or higher for {kind}, found {capability(pair)}; "
                "write fp8_e5m2, or leave it out"
            )


# --- Parallelism ---


@rule(
    "ranks-gpus",
    ERROR,
    "More ranks than GPUs: the engine finds out after a minute (invalid device ordinal)",
    "SGLang 0.5.15.post1, captured K09 and K14 (exit 137)",
)
def _ranks_gpus(facts: Facts) -> t.Iterator[str]:
    if facts.gpus is not None and facts.ranks() > len(facts.gpus):
        yield (
            f"gpus: expected {facts.ranks()} or more for tp_size x pp_size, and dp_size without attention-DP, found {len(facts.gpus)}; "
            "give more, or write smaller sizes"
        )


def _attention_tp(facts: Facts) -> int:
    """Ranks that the heads of one replica are split over."""
    dp = max(facts.size("attn_dp_size"), facts.size("dp_size") if facts.on("enable_dp_attention") else 1)
    return max(1, facts.size("tp_size") // dp)


def _indivisible(what: str, heads: int, tp: int) -> t.Iterator[str]:
    if heads > 0 and heads % tp:
        possible = ", ".join(str(size) for size in (1, 2, 4, 8, 16) if heads % size == 0)
        yield f"args.tp_size: expected a divisor of the model's {heads} {what}, found {tp}; write one of {possible}"


@rule(
    "tp-heads",
    ERROR,
    "Tensor parallel ranks divide the attention heads",
    "0.5.23 models/qwen3_5.py:1293, models/llama.py:183, models/qwen3.py; layers/linear.py:483 (divide)",
)
def _tp_heads(facts: Facts) -> t.Iterator[str]:
    if facts.model is not None:
        yield from _indivisible("attention heads", facts.model.num_attention_heads, _attention_tp(facts))


@rule(
    "tp-kv-heads",
    ERROR,
    "KV heads are a multiple of the tensor parallel ranks, or the ranks of the heads",
    "0.5.23 models/qwen3_5.py:1295-1299, models/llama.py:187-193, models/qwen3.py:176",
)
def _tp_kv_heads(facts: Facts) -> t.Iterator[str]:
    tp = _attention_tp(facts)
    for heads in sorted({attention.kv_heads for attention in facts.model.attentions if attention.kv_heads} if facts.model else ()):
        if heads % tp and tp % heads:
            yield f"args.tp_size: expected a divisor or a multiple of the model's {heads} KV heads, found {tp}; write another size"


@rule(
    "tp-linear-heads",
    ERROR,
    "Tensor parallel ranks divide the heads of linear attention",
    "0.5.23 layers/linear.py:483 (divide); configs/mamba_utils.py:152",
)
def _tp_linear_heads(facts: Facts) -> t.Iterator[str]:
    state = facts.model.state if facts.model else None
    if state is None:
        return
    tp = _attention_tp(facts)
    yield from _indivisible(f"heads of {state.kind} state", state.heads, tp)
    keys = (state.conv_channels - state.heads * state.head_dim) // (2 * state.state_dim) if state.state_dim else 0
    if state.kind == "gdn" and keys != state.heads:
        yield from _indivisible("key heads of gdn state", keys, tp)


@rule(
    "tp-vision-heads",
    ERROR,
    "Tensor parallel ranks divide the heads of the vision tower (Qwen3; others are padded)",
    "0.5.23 layers/attention/vision.py:1132 (divide)",
)
def _tp_vision_heads(facts: Facts) -> t.Iterator[str]:
    model = facts.model
    heads = model.vision.heads if model and model.vision and model.architecture.startswith("Qwen3") else None
    if heads and not facts.on("mm_enable_dp_encoder") and not facts.on("language_model_only"):
        yield from _indivisible("heads of the vision tower", heads, _attention_tp(facts))


@rule(
    "tp-attention-dp",
    ERROR,
    "The replicas of attention divide the tensor parallel ranks",
    "0.5.8 server_args.py:1936; 0.5.23 arg_groups/parallel_hook.py:326 (a bare AssertionError)",
)
def _tp_attention_dp(facts: Facts) -> t.Iterator[str]:
    tp, dp = facts.size("tp_size"), max(facts.size("attn_dp_size"), facts.size("dp_size") if facts.on("enable_dp_attention") else 1)
    if tp % dp:
        yield f"args.dp_size: expected a divisor of tp_size {tp} for attention-DP, found {dp}; write another size"


@rule(
    "ep-size",
    ERROR,
    "Expert parallel ranks divide the tensor parallel ranks and the experts",
    "0.5.8 model_executor/model_runner.py:669; 0.5.23 model_executor/model_runner_components/moe_ep_setup.py:150",
)
def _ep_size(facts: Facts) -> t.Iterator[str]:
    ep, tp = facts.size("ep_size"), facts.size("tp_size")
    if tp % ep:
        yield f"args.ep_size: expected a divisor of tp_size {tp}, found {ep}; write another size"
    if facts.model is not None and facts.model.known and ep > 1 and (facts.model.experts == 0 or facts.model.experts % ep):
        found = f"{ep} for {facts.model.experts}" if facts.model.experts else f"{ep} for a model without experts"
        yield f"args.ep_size: expected a divisor of the number of experts, found {found}; write another size, or 1"


@rule(
    "gpus-unbalanced",
    ERROR,
    "Free memory of the GPUs of one engine within a tenth of each other",
    "0.5.8 model_executor/model_runner.py:793; 0.5.23 distributed/bootstrap.py:442",
)
def _gpus_unbalanced(facts: Facts) -> t.Iterator[str]:
    free = [(gpu["memory_free_mib"], gpu.get("index")) for gpu in facts.gpus or () if isinstance(gpu.get("memory_free_mib"), int)]
    allowed = str(facts.environment.get("SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK", "1")).lower() in ("0", "false", "no", "n", "f", "off")
    if facts.size("tp_size") < 2 or allowed or len(free) < 2:
        return
    low, high = min(free, key=lambda one: one[0]), max(free, key=lambda one: one[0])
    if low[0] < 0.9 * high[0]:
        yield (
            f"gpus: expected as much free memory on each, within a tenth, found {low[0]} MiB on GPU {low[1]} and {high[0]} MiB on GPU "
            f"{high[1]}; free the memory that other processes hold, or take equal cards"
        )


@rule(
    "all-reduce-pcie",
    WARNING,
    "Two GPUs on PCIe: the engine's own all-reduce goes through peer access, which can hang behind an IOMMU",
    "0.5.23 distributed/device_communicators/custom_all_reduce_utils.py:492 (more than two without NVLink switch it off themselves); "
    "sgl-project/sglang#9706; pytorch/pytorch#76101 (RTX A6000)",
)
def _all_reduce_pcie(facts: Facts) -> t.Iterator[str]:
    if facts.size("tp_size") != 2 or facts.on("disable_custom_all_reduce") or facts.on("enable_p2p_check"):
        return
    link, access = _between(facts, "matrix"), _between(facts, "peer_access")
    if link is None or link.startswith("NV") or link == "X":
        return
    yield (
        f"args.disable_custom_all_reduce: expected true for a pair of GPUs on PCIe ({link}, peer access {access or 'unknown'}), found "
        "none; write it, or enable_p2p_check: true, unless peer access was tried; where it hangs set NCCL_P2P_DISABLE=1 too"
    )


def _between(facts: Facts, key: str) -> str | None:
    """The word of gpu_info's matrix for the instance's two GPUs, or None when it is not known."""
    indices = (facts.topology or {}).get("indices") or []
    matrix = (facts.topology or {}).get(key) or []
    pair = [gpu.get("index") for gpu in facts.gpus or ()]
    if len(pair) != 2 or len(matrix) != len(indices) or any(index not in indices for index in pair):
        return None
    word = matrix[indices.index(pair[0])][indices.index(pair[1])]
    return word if isinstance(word, str) and word else None
