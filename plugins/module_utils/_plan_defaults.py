# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What a release of SGLang makes of a set of flags on a GPU, as far as memory depends on it.

Sources, as "SGLang <release> <path>:<line>" below sglang/srt. Up to 0.5.18 the same is in server_args.py, from 0.5.19 on in arg_groups/*.
  MEMORY     0.5.23 arg_groups/memory_hook.py:47 (handle_gpu_memory_settings), 0.5.8 to 0.5.18 server_args.py
  GRAPHS     0.5.23 arg_groups/cuda_graph_hook.py:170, 0.5.10 server_args.py:1078, 0.5.14 server_args.py:3020
  SPEC       0.5.23 arg_groups/speculative_hook.py:1072 (_handle_eagle_family), 0.5.12 server_args.py:7929
  MAMBA      0.5.23 arg_groups/overrides.py:454 (_mamba_radix_cache_resolution), 0.5.8 server_args.py:842
  BACKEND    0.5.23 arg_groups/model_override_base.py:277 (get_default_attn_backend), overrides.py:1140 (page sizes)
  VISION     0.5.23 mem_cache/kv_cache_configurator.py:202 (mm_runtime_reservation_gb), since 0.5.18; environ.py:1598 and :1622
  QWEN3_VL   0.5.23 arg_groups/model_overrides/qwen3_vl.py:34 and :79, since 0.5.20
  SWA        0.5.8, 0.5.10, 0.5.12, 0.5.14, 0.5.16, 0.5.18, 0.5.20, 0.5.23 configs/model_config.py (is_hybrid_swa_model)
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _model

Release = t.Tuple[int, ...]  # noqa: UP006
Args = t.Mapping[str, t.Any]

# The first release whose formulas are known here.
FIRST_RELEASE = "0.5.8"


@dataclasses.dataclass(frozen=True)
class Card:
    """One GPU as the engine's defaults see it. memory_total_mib: what nvidia-smi prints (the smallest of the host's GPUs counts).

    None: no GPU (--device cpu).
    """

    memory_total_mib: int | None
    compute_capability: str | None


@dataclasses.dataclass(frozen=True)
class Speculation:
    """draft_path: a draft that is named, or that the release names itself; a built-in MTP layer without one is sized otherwise."""

    algorithm: str
    steps: int
    topk: int
    draft_tokens: int
    draft_path: bool


@dataclasses.dataclass(frozen=True)
class Resolved:
    """Flags after the release's own defaults. decode_max_bs and prefill_sizes are 0 where graphs are off."""

    release: str
    tp_size: int
    pp_size: int
    dp_size: int
    ep_size: int
    attention_dp: bool
    context_length: int
    chunked_prefill_size: int
    max_prefill_tokens: int
    decode_max_bs: int
    prefill_sizes: int
    mem_fraction_static: float
    mem_fraction_chosen: bool
    reserve_mib: float
    attention_backend: str
    page_size: int
    dtype: str
    quantization: str | None
    moe_runner_backend: str
    lays_out_mxfp4: bool
    kv_cache_dtype: str
    dsa_raw_layout: bool
    state_dtype: str | None
    radix_cache: bool
    overlap: bool
    mamba_strategy: str | None
    mamba_full_memory_ratio: float
    max_mamba_cache_size: int | None
    replay_state: bool
    replay_length: int
    speculation: Speculation | None
    max_running_requests: int | None
    max_total_tokens: int | None
    hybrid_swa: bool
    swa_full_tokens_ratio: float
    swa_ratio_given: bool
    swa_prefix_tails: int | None
    multimodal: bool
    vision_reserve_mib: int

    @property
    def attention_tp(self) -> int:
        """Ranks over which attention is split."""
        return max(1, self.tp_size // self.attention_dp_size)

    @property
    def attention_dp_size(self) -> int:
        """Ranks among which requests are spread, each with a pool of its own."""
        return self.dp_size if self.attention_dp else 1

    @property
    def running_per_worker(self) -> int | None:
        """Requests that may run at once on each data parallel worker; None where nothing is said."""
        return None if self.max_running_requests is None else max(1, self.max_running_requests // self.attention_dp_size)


def _is_hopper(card: Card) -> bool:
    """Compute capability 9: H100, H200, GH200."""
    return (card.compute_capability or "").startswith("9.")


def release_key(release: str) -> Release:
    """0.5.12.post1 -> (0, 5, 12, 1). ValueError for what is no release of SGLang."""
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?", release)
    if match is None:
        raise ValueError(f"expected a release such as 0.5.23 or 0.5.12.post1, found {release!r}")
    return tuple(int(part or 0) for part in match.groups())


def since(release: str, first: str) -> bool:
    """True from the release `first` on."""
    return release_key(release) >= release_key(first)


# MEMORY: below this many MiB -> (chunked_prefill_size, decode graph sizes up to, the same from tp 4 on).
_BY_MEMORY = ((20 * 1024, 2048, 8, 8), (60 * 1024, 4096, 32, 160), (160 * 1024, 8192, 256, 512))
_LARGEST = (16384, 512, 512)
_WITHOUT = (4096, 160, 160)
# 20 GiB to 35 GiB: (2048, 24, 80) up to 0.5.19, (4096, 48, 160) since.
_SMALL = {True: (4096, 48, 160), False: (2048, 24, 80)}

# GRAPHS: sizes of captured prefills, in tokens: (first, last, step); from 4608 on in steps of 512 as far as wanted.
_PREFILL_STEPS = ((4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256))

# GRAPHS: architectures without prefill graphs, by release (up to 0.5.14; none by name later).
_NO_PIECEWISE = {
    "0.5.10": ("DeepseekV32ForCausalLM", "Qwen3NextForCausalLM", "GlmMoeDsaForCausalLM", "BailingMoeV2_5ForCausalLM"),
    "0.5.12": (
        "DeepseekV32ForCausalLM",
        "DeepseekV4ForCausalLM",
        "Qwen3NextForCausalLM",
        "GlmMoeDsaForCausalLM",
        "BailingMoeV2_5ForCausalLM",
    ),
    "0.5.13": ("DeepseekV4ForCausalLM", "Qwen3NextForCausalLM", "BailingMoeV2_5ForCausalLM"),
}
# GRAPHS: multimodal architectures that keep their prefill graphs, by the release that let them.
_MULTIMODAL_PREFILL = {
    "Qwen3_5ForConditionalGeneration": "0.5.16",
    "Qwen3_5MoeForConditionalGeneration": "0.5.16",
    "KimiK25ForConditionalGeneration": "0.5.18",
    "KimiK3ForConditionalGeneration": "0.5.18",
    "MiniMaxM3SparseForCausalLM": "0.5.22",
    "MiniMaxM3SparseForConditionalGeneration": "0.5.22",
    "Qwen4ExpForConditionalGeneration": "0.5.22",
}

# SPEC: architectures whose own checkpoint the release names as the draft, so that the draft's KV is counted.
_OWN_DRAFT = (
    "DeepseekV32ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV4ForCausalLM",
    "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "GlmMoeDsaForCausalLM",
    "BailingMoeForCausalLM",
    "BailingMoeV2ForCausalLM",
    "BailingMoeV2_5ForCausalLM",
    "MistralLarge3ForCausalLM",
    "PixtralForConditionalGeneration",
)
_TEXT_UNLESS_ASKED = ("Gemma3ForConditionalGeneration", "Llama4ForConditionalGeneration", "Step3VLForConditionalGeneration")
_EAGLE = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")

# SWA: architectures with two pools, by the release that brought them; others keep every token in every layer.
_HYBRID_SWA = {
    "Llama4ForConditionalGeneration": "0.5.6",
    "GptOssForCausalLM": "0.5.6",
    "MiMoV2FlashForCausalLM": "0.5.8",
    "Step3p5ForCausalLM": "0.5.9",
    "Gemma4ForCausalLM": "0.5.12",
    "Gemma4ForConditionalGeneration": "0.5.12",
    "LagunaForCausalLM": "0.5.12",
    "Gemma4UnifiedForConditionalGeneration": "0.5.12",  # in the list since 0.5.14; a 0.5.12 that was taught it has two pools as well
    "Step3p7ForConditionalGeneration": "0.5.14",
}

# MAMBA: architectures that take the extra_buffer strategy by themselves (0.5.14 and later).
_EXTRA_BUFFER = (
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3NextForCausalLM",
    "KimiLinearForCausalLM",
    "KimiK3ForConditionalGeneration",
    "FalconH1ForCausalLM",
    "GraniteMoeHybridForCausalLM",
    "NemotronHForCausalLM",
)


def prefill_sizes(largest: int) -> int:
    """How many sizes of prefill a release captures up to `largest` tokens (GRAPHS)."""
    steps = (*_PREFILL_STEPS, (4608, largest, 512))
    return sum(1 for first, last, step in steps for size in range(first, last + 1, step) if size <= largest)


def vision_factor(vision: _model.Vision) -> float:
    """By how much a vision tower lowers the default fraction (MEMORY, adjust_mem_fraction_for_vlm)."""
    complexity = vision.layers * vision.hidden_size**2 / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (complexity - 1.0)))


def _memory_class(release: str, card: Card, tp_size: int) -> tuple[int, int]:
    """(chunked_prefill_size, largest decode graph) that the card's memory gives."""
    if card.memory_total_mib is None:
        chunk, few, many = _WITHOUT
    elif 20 * 1024 <= card.memory_total_mib < 35 * 1024:
        chunk, few, many = _SMALL[since(release, "0.5.20")]
    else:
        size = card.memory_total_mib
        chunk, few, many = next((row[1:] for row in _BY_MEMORY if size < row[0]), _LARGEST)
    return chunk, few if tp_size < 4 else many


def _speculation(model: _model.Model, args: Args) -> Speculation | None:
    algorithm = args.get("speculative_algorithm")
    if not algorithm:
        return None
    algorithm = str(algorithm).upper()
    steps, topk, tokens = (args.get(f"speculative_{key}") for key in ("num_steps", "eagle_topk", "num_draft_tokens"))
    if algorithm not in _EAGLE:
        # n-grams and block drafts verify a block of their own: 12 and 16 where nothing is said (0.5.23 arg_groups/speculative_hook.py)
        block = int(tokens or (12 if algorithm == "NGRAM" else 16))
        return Speculation(algorithm, int(steps or 1), int(topk or 1), block, bool(args.get("speculative_draft_model_path")))
    if steps is None:
        steps, topk, tokens = (5, 4, 8) if model.architecture == "LlamaForCausalLM" and algorithm != "STANDALONE" else (3, 1, 4)
    topk = 1 if topk is None else topk
    if tokens is None or topk == 1:
        tokens = steps + 1
    path = bool(args.get("speculative_draft_model_path")) or (algorithm in _EAGLE and model.architecture in _OWN_DRAFT)
    return Speculation("EAGLE" if algorithm == "NEXTN" else algorithm, int(steps), int(topk), int(tokens), path)


def _attention_backend(model: _model.Model, card: Card, args: Args, spec: Speculation | None) -> str:
    """The backend that a release chooses (BACKEND); of sparse and compressed attention there is only one."""
    major = int((card.compute_capability or "0.0").split(".")[0])
    by_major = {9: "fa3", 10: "trtllm_mha"}
    otherwise = "triton" if model.architecture in _TRITON else "flashinfer"
    chosen = by_major.get(major, otherwise)
    if is_compressed(model):
        chosen = "dsv4"
    elif is_sparse(model):
        chosen = "dsa"
    elif is_mla(model):
        chosen = {9: "fa3", 10: "trtllm_mla"}.get(major, "triton")
    elif model.architecture.startswith("Gemma4"):
        chosen = "triton"
    elif spec is not None and spec.topk > 1:
        chosen = "flashinfer"
    elif model.architecture == "NemotronHForCausalLM" and spec is not None and major >= 12:
        chosen = "triton"
    return str(args.get("attention_backend") or chosen)


# BACKEND: where no backend of the card's own serves them: no attention sinks in flashinfer, Llama 4's chunks.
_TRITON = ("GptOssForCausalLM", "Llama4ForConditionalGeneration")
# BACKEND: the page size that a backend wants when another one is given.
_PAGES = {"trtllm_mha": 64, "trtllm_mla": 64, "flashmla": 64, "cutlass_mla": 128, "dsa": 64, "nsa": 64, "dsv4": 256}


def is_mla(model: _model.Model) -> bool:
    """Its attention keeps one latent per token."""
    return any(attention.kind == "mla" for attention in model.attentions)


def is_compressed(model: _model.Model) -> bool:
    """Its attention keeps windows and compressed latents (DeepSeek V4)."""
    return any(attention.kind == "compressed" for attention in model.attentions)


def is_multimodal(model: _model.Model, args: Args) -> bool:
    """Whether the release serves images with it: some architectures only when asked (0.5.8 and 0.5.23 configs/model_config.py)."""
    if args.get("enable_multimodal") is not None:
        return model.multimodal and bool(args["enable_multimodal"])
    return model.multimodal and model.architecture not in _TEXT_UNLESS_ASKED


def _serves_qwen3_vl_on_hopper(release: str, model: _model.Model, card: Card, args: Args) -> bool:
    """Qwen3-VL on a Hopper of 60 GiB or more, for which the release has defaults of its own (QWEN3_VL)."""
    return (
        since(release, "0.5.20")
        and model.architecture in ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration")
        and is_multimodal(model, args)
        and _is_hopper(card)
        and (card.memory_total_mib or 0) >= 60 * 1024
    )


def _vision_reserve_mib(release: str, model: _model.Model, card: Card, args: Args) -> int:
    """MiB of the budget for what a vision model allocates after its pools: embeddings, images between processes (VISION)."""
    if not is_multimodal(model, args) or not since(release, "0.5.18"):
        return 0
    embeddings, images, transport = 100, 1024, args.get("mm_feature_transport")
    if args.get("rl_on_policy_target"):
        embeddings = 0
    if _serves_qwen3_vl_on_hopper(release, model, card, args):
        embeddings = 0
        if not args.get("mm_preprocess_cache_size_mb"):
            transport = transport or ("cuda_ipc" if int(args.get("nnodes") or 1) == 1 else None)
            images = 3072 if transport == "cuda_ipc" and int(args.get("max_running_requests") or 0) >= 400 else images
    return embeddings + (images if transport in ("cuda_ipc", "cuda_vmm") else 0)


def is_sparse(model: _model.Model) -> bool:
    """Its attention has an indexer (DSA)."""
    return any(attention.kind == "mla" and attention.index_dim for attention in model.attentions)


def _dtype(model: _model.Model, args: Args) -> str:
    """The type of weights that are not quantised, and of activations (--dtype)."""
    wanted = str(args.get("dtype") or "auto")
    return {"auto": model.dtype, "half": "float16", "float": "float32"}.get(wanted, wanted)


def _kv_cache_dtype(model: _model.Model, card: Card, args: Args) -> str:
    wanted = str(args.get("kv_cache_dtype") or "auto")
    if wanted not in ("auto", "bf16"):
        return wanted
    if wanted == "bf16":
        return "bfloat16"
    if is_compressed(model):  # SGLang 0.5.23 arg_groups/overrides.py:895
        return "fp8_e4m3"
    if is_sparse(model):  # SGLang 0.5.23 arg_groups/overrides.py:530
        return "fp8_e4m3" if int((card.compute_capability or "0.0").split(".")[0]) >= 10 else "bfloat16"
    return model.kv_cache_dtype or _dtype(model, args)  # mem_cache/kv_cache_dtype.py:34


def _moe_runner_backend(card: Card, args: Args) -> str:
    """What runs experts in MXFP4 (0.5.23 arg_groups/model_overrides/gpt_oss.py:64); for other experts it takes no memory."""
    given = str(args.get("moe_runner_backend") or "auto")
    if given != "auto":
        return given
    return "flashinfer_mxfp4" if (card.compute_capability or "").startswith(("10.", "12.")) else "triton_kernel"


def _dsa_raw_layout(card: Card, args: Args) -> bool:
    """Whether a DSA model's fp8 cache has no scales of its own: TensorRT-LLM's kernels, the default on Blackwell (overrides.py:715)."""
    given = [
        str(args[key])
        for key in ("dsa_prefill_backend", "dsa_decode_backend", "nsa_prefill_backend", "nsa_decode_backend")
        if args.get(key)
    ]
    return "trtllm" in given or (not given and (card.compute_capability or "").startswith("10."))


def _prefill_backend(args: Args, release: str) -> bool | None:
    """What the flags themselves say of prefill graphs; None where they leave it to the release."""
    if args.get("cuda_graph_backend_prefill"):
        return bool(args["cuda_graph_backend_prefill"] != "disabled")
    off = args.get("disable_prefill_cuda_graph") or args.get("disable_piecewise_cuda_graph")
    if off or (args.get("disable_cuda_graph") and since(release, "0.5.14")):
        return False
    return None if since(release, "0.5.10") else bool(args.get("enable_piecewise_cuda_graph"))


def _prefill_graphs(release: str, model: _model.Model, args: Args, spec: Speculation | None, backend: str) -> bool:
    """Whether a release captures prefills (GRAPHS): unless something that it excludes is there."""
    said = _prefill_backend(args, release)
    if said is not None:
        return said
    dp = bool(args.get("enable_dp_attention"))
    mla = is_mla(model)
    allowed = _MULTIMODAL_PREFILL.get(model.architecture)
    excluded = [
        int(args.get("pp_size") or 1) > 1,
        is_multimodal(model, args) and not (allowed and since(release, allowed)),
    ]
    if not since(release, "0.5.15"):
        names = next(names for first, names in reversed(tuple(_NO_PIECEWISE.items())) if since(release, first))
        excluded += [model.architecture in names, spec is not None and not since(release, "0.5.11"), dp]
    else:
        kda = model.state is not None and model.state.kind == "kda"
        excluded += [
            (mla or dp) and not since(release, "0.5.17"),
            ((mla and not is_sparse(model)) or model.architecture == "NemotronHForCausalLM") and _series(release) == "0.5.17",
            model.architecture == "DeepseekV4ForCausalLM",
            kda and since(release, "0.5.20"),
            model.architecture == "DeepseekV3ForCausalLM" and backend == "trtllm_mla",
        ]
    return not any(excluded)


def _series(release: str) -> str:
    """0.5.12.post1 -> 0.5.12"""
    return ".".join(map(str, release_key(release)[:3]))


def _mamba(release: str, model: _model.Model, args: Args, spec: Speculation | None, page_size: int) -> tuple[str | None, bool, bool]:
    """(strategy, overlap, radix cache) of a model with recurrent layers (MAMBA); (None, ...) for others."""
    radix = not args.get("disable_radix_cache")
    overlap = not args.get("disable_overlap_schedule")
    if spec is not None and not since(release, "0.5.11"):
        overlap = False  # environ.py: SGLANG_ENABLE_SPEC_V2 is false by default up to 0.5.10
    if model.state is None:
        return None, overlap, radix
    strategy = str(args.get("mamba_radix_cache_strategy") or args.get("mamba_scheduler_strategy") or "auto")
    if strategy == "auto":
        takes = since(release, "0.5.14") and radix and (overlap or page_size > 1) and model.architecture in _EXTRA_BUFFER
        strategy = "extra_buffer" if takes else "no_buffer"
    if strategy == "no_buffer" and radix:
        overlap = False
    return strategy, overlap, radix


def reserve_mib(
    release: str, model: _model.Model, resolved: t.Mapping[str, t.Any], card: Card, args: Args, spec: Speculation | None
) -> float:
    """MiB that the default fraction leaves for activations and graphs (MEMORY).

    resolved: chunked_prefill_size, max_prefill_tokens, decode_max_bs (0: graphs off), decode_max_bs_asked (reserved for up to 0.5.14,
    graphs or not), prefill_sizes, tp_size, pp_size, dp_size.
    """
    chunk = resolved["chunked_prefill_size"]
    bs = resolved["decode_max_bs" if since(release, "0.5.15") else "decode_max_bs_asked"]
    mib: float = 512 + 1.5 * max(chunk if chunk > 0 else resolved["max_prefill_tokens"], 2048)
    mib += resolved["tp_size"] * resolved["pp_size"] / 8 * 1024
    mib += 2 * bs
    if args.get("enable_dp_attention"):
        mib += bs * resolved["dp_size"] * (4.5 if bs > 300 else 3)
    if resolved["prefill_sizes"]:
        mib += 1536 if is_mla(model) else 8 * resolved["prefill_sizes"]
    if card.memory_total_mib is not None and card.memory_total_mib > 60 * 1024:
        mib = max(mib, 10 * 1024)
    if spec is not None and not since(release, "0.5.14") and spec.algorithm != "NGRAM":
        mib += 6144 if spec.algorithm == "STANDALONE" else 4096 if since(release, "0.5.10") else 2048
    if args.get("moe_a2a_backend") == "deepep" and since(release, "0.5.15"):
        mib += 2048
    return mib


def _decode_graphs(release: str, model: _model.Model, card: Card, args: Args, largest: int) -> tuple[int, bool]:
    """(largest decode graph, whether decodes are captured at all)."""
    running = int(args.get("max_running_requests") or 0)  # not speculation's own 48, which comes later
    given_sizes = args.get("cuda_graph_bs_decode") or args.get("cuda_graph_bs")
    given = args.get("cuda_graph_max_bs_decode") or args.get("cuda_graph_max_bs")
    if given_sizes:
        largest = max(int(size) for size in given_sizes)
    elif given:
        largest = int(given)
    elif running and since(release, "0.5.22"):
        largest = min(largest, running)
    if not given_sizes and not given and running <= 512 and _serves_qwen3_vl_on_hopper(release, model, card, args):
        largest = max(largest, running)
    off = args.get("disable_cuda_graph") or args.get("disable_decode_cuda_graph") or args.get("cuda_graph_backend_decode") == "disabled"
    return largest, not off


def _prefill_sizes(release: str, model: _model.Model, args: Args, chunk: int) -> int:
    """How many sizes of prefill are captured where prefill graphs are on (MEMORY)."""
    given_sizes = args.get("cuda_graph_bs_prefill") or args.get("piecewise_cuda_graph_tokens")
    if given_sizes:
        return len(given_sizes)
    given = args.get("cuda_graph_max_bs_prefill") or args.get("piecewise_cuda_graph_max_tokens")
    if given:
        return prefill_sizes(int(given))
    largest = chunk
    if is_mla(model):
        largest = min(8192, chunk) if since(release, "0.5.23") else 2048
    if args.get("max_total_tokens") and since(release, "0.5.10"):
        largest = min(largest, int(args["max_total_tokens"]))
    if args.get("context_length") and since(release, "0.5.13") and not since(release, "0.5.17"):
        largest = min(largest, int(args["context_length"]))
    return prefill_sizes(largest)


def _fraction(release: str, model: _model.Model, card: Card, args: Args, reserve: float) -> float:
    if args.get("mem_fraction_static") is not None:
        return float(args["mem_fraction_static"])
    if card.memory_total_mib is None:
        return 0.95 if since(release, "0.5.20") else 0.88
    fraction: float = round((card.memory_total_mib - reserve) / card.memory_total_mib, 3)
    lowered = is_multimodal(model, args) and model.vision is not None and not args.get("language_only")
    if lowered and model.vision is not None:
        fraction *= vision_factor(model.vision)
    return fraction


def _optional(args: Args, key: str) -> int | None:
    return int(args[key]) if args.get(key) else None


def resolve(release: str, model: _model.Model, card: Card, args: Args) -> Resolved:
    """What a release makes of flags on a card.

    args: flags under the parser's own destination names (tp_size, not tensor_parallel_size), numbers as numbers.
    Raises ValueError for a release whose formulas are not known here.
    """
    if not since(release, FIRST_RELEASE):
        raise ValueError(f"expected SGLang {FIRST_RELEASE} or later (the formulas of older ones are not known here), found {release}")
    tp_size, pp_size = int(args.get("tp_size") or 1), int(args.get("pp_size") or 1)
    attn_dp = _optional(args, "attn_dp_size") or 1
    dp_size = attn_dp if attn_dp > 1 else int(args.get("dp_size") or 1)
    spec = _speculation(model, args)
    # 0.5.12 and later arg_groups/deepseek_v4_hook.py: 256
    usual = 256 if is_compressed(model) else 48 if spec is not None else None
    running = _optional(args, "max_running_requests") or usual
    chunk, largest = _memory_class(release, card, tp_size)
    chunk = chunk if args.get("chunked_prefill_size") is None else int(args["chunked_prefill_size"])
    largest, captured = _decode_graphs(release, model, card, args, largest)
    backend = _attention_backend(model, card, args, spec)
    page_size = int(args.get("page_size") or 1)
    if backend in _PAGES and page_size not in (32, 64, 128, 256):
        page_size = _PAGES[backend]
    strategy, overlap, radix = _mamba(release, model, args, spec, page_size)
    swa_ratio, moe_runner = args.get("swa_full_tokens_ratio"), _moe_runner_backend(card, args)
    numbers = {
        "chunked_prefill_size": chunk,
        "max_prefill_tokens": int(args.get("max_prefill_tokens") or 16384),
        "decode_max_bs": largest if captured else 0,
        "prefill_sizes": _prefill_sizes(release, model, args, chunk) if _prefill_graphs(release, model, args, spec, backend) else 0,
        "tp_size": tp_size,
        "pp_size": pp_size,
        "dp_size": dp_size,
    }
    reserve = reserve_mib(release, model, {**numbers, "decode_max_bs_asked": largest}, card, args, spec)
    return Resolved(
        release=release,
        ep_size=int(args.get("ep_size") or 1),
        attention_dp=bool(args.get("enable_dp_attention")) or attn_dp > 1,
        context_length=int(args.get("context_length") or model.context_length),
        mem_fraction_static=_fraction(release, model, card, args, reserve),
        mem_fraction_chosen=args.get("mem_fraction_static") is None,
        reserve_mib=reserve,
        attention_backend=backend,
        page_size=1 if strategy == "no_buffer" and radix else page_size,
        dtype=_dtype(model, args),
        quantization=str(args["quantization"]) if args.get("quantization") else None,
        moe_runner_backend=moe_runner,
        lays_out_mxfp4=_is_hopper(card) and moe_runner == "triton_kernel",
        kv_cache_dtype=_kv_cache_dtype(model, card, args),
        dsa_raw_layout=_dsa_raw_layout(card, args),
        state_dtype=str(args.get("mamba_ssm_dtype") or model.state.state_dtype) if model.state else None,
        radix_cache=radix,
        overlap=overlap,
        mamba_strategy=strategy,
        mamba_full_memory_ratio=float(args.get("mamba_full_memory_ratio") or 0.9),
        max_mamba_cache_size=_optional(args, "max_mamba_cache_size"),
        replay_state=bool(args.get("enable_linear_replayssm_spec") or args.get("enable_gdn_replayssm_spec")),
        replay_length=int(args.get("linear_replayssm_cache_len") or 16),
        speculation=spec,
        max_running_requests=running,
        max_total_tokens=_optional(args, "max_total_tokens"),
        hybrid_swa=_hybrid_swa(release, model, args),
        swa_full_tokens_ratio=float(swa_ratio if swa_ratio is not None else 0.1 if model.architecture == "DeepseekV4ForCausalLM" else 0.8),
        swa_ratio_given=swa_ratio is not None,
        swa_prefix_tails=None if args.get("swa_prefix_tails") is None else int(args["swa_prefix_tails"]),
        multimodal=is_multimodal(model, args),
        vision_reserve_mib=_vision_reserve_mib(release, model, card, args),
        **numbers,
    )


def _hybrid_swa(release: str, model: _model.Model, args: Args) -> bool:
    first = _HYBRID_SWA.get(model.architecture)
    has = any(attention.kind == "sliding" for attention in model.attentions)
    return has and first is not None and since(release, first) and not args.get("disable_hybrid_swa_memory")
