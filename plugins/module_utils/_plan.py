# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""The plan: what fits on which GPUs with which flags of which release, before anything is started.

Sources:
  MEASURED   44 sized starts of SGLang 0.5.15.post1 on an H200 (tests/fixtures/plan/measured.json): dummy weights of real shapes
  SIZED      220 starts of 13 releases on an H200 up to their pools (tests/fixtures/plan/sized.json)
  PUBLIC     start-ups that people published (tests/fixtures/plan/public.json)
  TRANSFERS  SGLang 0.5.23 models/qwen3_5_mtp.py:170: the draft's own embedding and head go once the target's are shared
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import (
    _flag_facts,
    _flag_rules,
    _flags,
    _model,
    _model_weights,
    _plan_defaults,
    _plan_pools,
)
from ansible_collections.firstlight.sglang.plugins.module_utils._model_weights import GIB

# GiB between what nvidia-smi calls the card's memory and what the engine finds free before it loads: driver's own part, CUDA context,
# and NCCL's buffers from two ranks on. (lowest, usual, highest) by ranks. PUBLIC and MEASURED, tp 1: 0.83 (RTX 4090), 0.84 (H100),
# 1.03 (A100 40 GB), 1.06 (A800), 1.21 (H200; 1.72 where one more process of the engine had opened the GPU);
# tp 2: 1.09 (RTX 3090), 1.41 (RTX A6000), 1.51 (A100); tp 4: 0.86 (L4);
# tp 8: 1.97 (H20), 2.22 (H100), 3.06 (H200); tp 16: 2.68 (H800).
_BEFORE_LOADING = ((1, 0.6, 1.0, 1.85), (2, 0.9, 1.35, 2.1), (4, 0.8, 1.6, 2.5))
_BEFORE_LOADING_MANY = (1.8, 2.4, 3.2)
# The same of memory that is the host's as well. PUBLIC: 9.4 to 10.2 on a DGX Spark.
_BEFORE_LOADING_UNIFIED = (4.0, 9.7, 13.0)
# GiB that loading takes beside the tensors and the rotary table: (lowest, usual, highest). MEASURED, whole: 0.07 to 0.12 for text models;
# 0.14 for the 27B with its vision tower, 0.20 for one of its two ranks; a draft 0.004. Weights made to fp8 while loading leave 0.3 more.
_LOAD_OVERHEAD = {False: (0.06, 0.08, 0.3), True: (0.1, 0.203, 0.45)}
_DRAFT_OVERHEAD = 0.004
_ONLINE_FP8 = 0.3
# What MXFP4 experts leave when Triton's kernels lay them out for Hopper: (lowest, usual, highest). SIZED: 1.35, gpt-oss-20b.
_LAID_OUT = (0.1, 1.35, 2.0)
# The same up to 0.5.13, rotary table and all. PUBLIC: 0.07 (0.5.10, Qwen2.5-0.5B). CT129's 19198 tokens and the 46.575 GiB that follow
# from them take everything that was loaded for tensors; SIZED: 0.07 and the table. So the least memory has the table, the usual has not.
_LOAD_OVERHEAD_0513 = {False: (0.0, 0.07, 0.3), True: (0.0, 0.02, 0.3)}
# Of the first, what goes before "Load weight begin" and after "Load weight end" is printed. MEASURED: in every start.
_BEFORE_LOAD_LINE = 0.064
_AFTER_LOAD_LINE = {False: 0.004, True: 0.044}
# GiB of attention workspace (fa3 0.1; flashinfer 0.5, and once more for a draft) and of graphs. MEASURED: decode graphs 0.06 (one size)
# to 0.35 (up to 256); a draft's own 0.15 to 0.34; prefill graphs 0.73 (hidden size 1024) to 1.43 (4096) with 58 sizes.
_WORKSPACE = {"fa3": 0.1}
_WORKSPACE_OTHER = 0.5
# MiB per token of a prefill that activations grow by at their peak. MEASURED: 3.1 GiB at 8192 tokens and 1.4 GiB at 4096 for the hybrid
# 27B (whole, and one of two ranks), 0.6 GiB at 8192 for the dense 8B (hidden size 4096).
_ACTIVATION_MIB = {True: 0.39, False: 0.075}


# Flags that change memory in ways that the numbers leave out, or know by reckoning only, and what that is.
_NOT_COUNTED = {
    ("enable_lora", "lora_paths"): "the adapters and their buffers are not counted",
    ("config",): "the flags of that file are not read; give them as flags",
    ("cpu_offload_gb",): "counted as so much less on each GPU and not measured; every step copies it over PCIe",
    ("ep_num_redundant_experts",): "the redundant experts are not counted",
    ("enable_hierarchical_cache", "hicache_size"): "the host memory of the hierarchical cache is not counted",
    ("base_gpu_id", "gpu_id_step"): "the numbers are those of the first GPUs given; name those that the engine takes",
    ("attn_cp_size", "moe_dp_size"): "this split is not counted",
    ("offload_group_size", "offload_num_in_group"): "layers kept in host memory are not counted",
}
# Variables of the service that change pools and are taken at their defaults (SGLang 0.5.23 environ.py).
_VARIABLES_NOT_COUNTED = (
    "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING",
    "SGLANG_VLM_CACHE_SIZE_MB",
    "SGLANG_MM_FEATURE_CACHE_MB",
    "SGLANG_SWA_EVICTION_INTERVAL",
    "SGLANG_DSV4_COMPRESS_STATE_DTYPE",
    "SGLANG_DSV4_KV_LAYOUT",
    "SGLANG_OPT_USE_ONLINE_COMPRESS",
)
# Their vision tower is loaded where images are served only (SGLang 0.5.8 and 0.5.23 models/mllama4.py: has_vision).
_TOWER_WHEN_SERVED = ("Llama4ForConditionalGeneration",)


class Weights(t.NamedTuple):
    """GiB on the GPU with most: the target's, the draft's until sizing, and what of the draft goes again afterwards (TRANSFERS)."""

    target_gib: float
    draft_gib: float
    draft_returned_gib: float
    rotary_gib: float = 0.0


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU that the plan may use. used_mib: by other processes. free_mib: as nvidia-smi prints it, None where it was not asked."""

    index: int
    name: str
    memory_total_mib: int
    compute_capability: str | None = None
    used_mib: int = 0
    unified: bool = False


@dataclasses.dataclass(frozen=True)
class Given:
    """Measured numbers of the GPU with least memory; each replaces a predicted one."""

    avail_before_weights_gib: float | None = None
    weights_gib: float | None = None
    draft_weights_gib: float | None = None
    free_after_load_gib: float | None = None
    mem_fraction_static: float | None = None


@dataclasses.dataclass(frozen=True)
class Want:
    """What the operator asks for: tokens of one request, prompt and answer, and how many such requests at once."""

    context: int | None = None
    concurrency: int | None = None


@dataclasses.dataclass(frozen=True)
class Request:
    """One question. args: flags by the parser's destination names. environment: the service's own."""

    model: _model.Model
    release: str
    gpus: tuple[Gpu, ...]
    args: t.Mapping[str, t.Any]
    given: Given = Given()
    want: Want = Want()
    environment: t.Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one set of flags gives. problems: why it would not start, and what to do. warnings: what to know of it.

    ruled: those of the warnings that rules about flags give.
    """

    resolved: _plan_defaults.Resolved
    weights: Weights
    baseline_gib: float
    free_after_load_gib: float
    overhead_gib: float
    pools: _plan_pools.Pools
    graphs_gib: float
    activations_gib: float
    draft_kv_gib: float
    table_gib: float
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    ruled: tuple[str, ...] = ()

    @property
    def starts(self) -> bool:
        """No problem is known."""
        return not self.problems

    @property
    def max_request_tokens(self) -> int:
        """Prompt and answer of the longest single request: one less than the context and than the pool (SGLang managers/scheduler.py)."""
        return max(0, min(self.resolved.context_length, self.pools.max_total_num_tokens) - 1)

    @property
    def slack_gib(self) -> float:
        """What the fraction leaves beside weights and pools."""
        return self.baseline_gib * (1 - self.resolved.mem_fraction_static)

    @property
    def free_after_start_gib(self) -> float:
        """What is still free when the engine is ready, before a long prompt."""
        pools = (self.pools.state_bytes + self.pools.scratch_bytes + self.pools.kv_bytes) / GIB
        taken = pools + self.draft_kv_gib + self.table_gib + self.graphs_gib
        return self.free_after_load_gib + self.weights.draft_returned_gib - taken

    def meets(self, want: Want) -> bool | None:
        """Whether as many requests as wanted run at once, each as long as wanted; None when nothing was asked for."""
        if want.context is None and want.concurrency is None:
            return None
        tokens, at_once = want.context or 0, want.concurrency or 1
        long_enough = self.resolved.context_length >= tokens and self.pools.max_total_num_tokens >= tokens * at_once
        return self.starts and long_enough and self.pools.max_running_requests >= at_once


def weigh(model: _model.Model, resolved: _plan_defaults.Resolved) -> Weights:
    """Weights on the GPU that has most of them.

    With --quantization fp8 the linear layers of a 16-bit checkpoint are loaded in 8 bits, with --dtype float32 what has 16 in 32.
    """
    if resolved.dtype == "float32":
        wider = tuple(dataclasses.replace(part, bits=32.0) if part.bits == 16 else part for part in model.parts)
        model = dataclasses.replace(model, parts=wider)
    if resolved.quantization == "fp8" and model.quantization is None:
        halved = (
            dataclasses.replace(part, bits=8.0) if part.bits == 16 and _model_weights.kind(part) in ("layers", "experts") else part
            for part in model.parts
        )
        model = dataclasses.replace(model, parts=tuple(halved))
    if not resolved.multimodal and model.architecture in _TOWER_WHEN_SERVED:
        model = dataclasses.replace(model, parts=tuple(part for part in model.parts if _model_weights.kind(part) != "vision"))
    ranks = (resolved.tp_size, resolved.pp_size, resolved.ep_size, resolved.attention_tp)
    stages = _model_weights.per_gpu(model, *ranks, moe_runner_backend=resolved.moe_runner_backend, lays_out_mxfp4=resolved.lays_out_mxfp4)
    most = max(stages, key=lambda stage: stage.weights + stage.draft)
    if not model.draft_layers and resolved.speculation is not None and resolved.speculation.draft_path:
        layers = sum(part.elements * part.bits for part in model.parts if _model_weights.kind(part) == "layers") / 8 / GIB
        return Weights(most.weights, layers / model.num_layers / resolved.tp_size, 0.0, most.rotary)
    return Weights(most.weights, most.draft, most.draft_copies, most.rotary)


def _offloaded_gib(model: _model.Model, asked_gib: float, weights: Weights) -> float:
    """GiB of a rank's layers that --cpu-offload-gb keeps in the host's memory (SGLang 0.5.23 utils/offloader.py:131)."""
    bits = [(part.elements * part.bits, _model_weights.kind(part) in ("layers", "experts")) for part in model.parts]
    share = sum(size for size, layer in bits if layer) / (sum(size for size, _layer in bits) or 1)
    return min(float(asked_gib), weights.target_gib * share)


def _uncounted(request: Request, args: t.Mapping[str, t.Any]) -> list[str]:
    """What the flags ask for that the numbers leave out."""
    made = args.get("quantization")
    found = []
    if made not in (None, "fp8", "unquant") and request.model.quantization is None:
        found.append(f"--quantization {made}: the weights are counted as they are in the files, without what it saves")
    if args.get("load_format") in ("gguf", "bitsandbytes"):
        found.append(f"--load-format {args['load_format']}: the weights are counted from config.json, not from its files; give weights_gib")
    if (args.get("nnodes") or 1) > 1:
        found.append("--nnodes: the GPUs are taken as those of one host; give those of all nodes")
    for flags, what in _NOT_COUNTED.items():
        given = [_flags.spelling(flag) for flag in flags if args.get(flag) not in (None, False, 0)]
        if given:
            found.append(f"{', '.join(given)}: {what}")
    variables = [name for name in _VARIABLES_NOT_COUNTED if name in request.environment]
    if variables:
        found.append(f"{', '.join(variables)}: pools are counted as without")
    return found


def on_cpu(args: t.Mapping[str, t.Any]) -> bool:
    """Whether the engine is to run without a GPU; then the host's memory stands for the GPU's."""
    return args.get("device") == "cpu"


def before_loading_gib(ranks: int, unified: bool = False) -> tuple[float, float, float]:
    """(lowest, usual, highest) GiB that are gone before the engine loads."""
    if unified:
        return _BEFORE_LOADING_UNIFIED
    return next((row[1:] for row in _BEFORE_LOADING if ranks <= row[0]), _BEFORE_LOADING_MANY)


def _graphs_gib(model: _model.Model, resolved: _plan_defaults.Resolved) -> float:
    """Workspace and captured graphs, as measured (see above); an estimate."""
    decode = 0.0 if not resolved.decode_max_bs else 0.06 + 0.3 * min(1.0, resolved.decode_max_bs / 256)
    prefill = resolved.prefill_sizes / 58 * (0.5 + 0.93 * model.hidden_size / 4096 / resolved.tp_size)
    draft = 0.3 if resolved.speculation is not None and resolved.decode_max_bs else 0.0
    workspace = _WORKSPACE.get(resolved.attention_backend, _WORKSPACE_OTHER) * (2 if resolved.speculation is not None else 1)
    return decode + (prefill if resolved.prefill_sizes else 0.0) + draft + workspace


def _activations_gib(model: _model.Model, resolved: _plan_defaults.Resolved) -> float:
    """Growth under the longest chunk of a prefill, as measured (see above); an estimate."""
    tokens = resolved.chunked_prefill_size if resolved.chunked_prefill_size > 0 else resolved.max_prefill_tokens
    width = 1.0 if model.state is not None else max(0.25, model.hidden_size / 4096)
    return tokens * _ACTIVATION_MIB[model.state is not None] * width / 1024


def _card(gpus: tuple[Gpu, ...], args: t.Mapping[str, t.Any]) -> _plan_defaults.Card:
    if on_cpu(args):
        return _plan_defaults.Card(None, None)
    smallest = min(gpus, key=lambda gpu: gpu.memory_total_mib)
    return _plan_defaults.Card(smallest.memory_total_mib, smallest.compute_capability)


def ranks_of(resolved: _plan_defaults.Resolved) -> int:
    """GPUs that the engine takes."""
    return resolved.tp_size * resolved.pp_size * (1 if resolved.attention_dp else resolved.dp_size)


def used(request: Request, resolved: _plan_defaults.Resolved) -> tuple[Gpu, ...]:
    """The GPUs that the engine takes, in their order; as many as there are, where it asks for more."""
    return request.gpus[: max(1, ranks_of(resolved))]


def _found(request: Request, args: t.Mapping[str, t.Any]) -> tuple[list[str], list[str]]:
    """(what the rules refuse, what they warn of): flags against each other, the model and the GPUs."""
    gpus = [dataclasses.asdict(gpu) for gpu in request.gpus]
    found = _flag_rules.check(request.release, args, request.model, None if on_cpu(args) else gpus, environment=request.environment)
    refused = [finding.message for finding in found if finding.severity == _flag_facts.ERROR]
    return refused, [finding.message for finding in found if finding.severity != _flag_facts.ERROR]


def _memory(
    request: Request, args: t.Mapping[str, t.Any], resolved: _plan_defaults.Resolved, weights: Weights, level: int
) -> tuple[float, float, float]:
    """(free before loading, free after loading, overhead of loading) in GiB. level: 0 least memory, 1 usual, 2 most."""
    given, model = request.given, request.model
    ranks = resolved.tp_size * resolved.pp_size
    counted = _plan_defaults.since(request.release, "0.5.14")  # the draft before the pools, and a baseline of its own
    loaded = weights.target_gib + (weights.draft_gib if counted else 0.0)
    if counted:
        overhead = weights.rotary_gib + _LOAD_OVERHEAD[resolved.multimodal][2 - level] + (_DRAFT_OVERHEAD if weights.draft_gib else 0.0)
    else:
        overhead = _LOAD_OVERHEAD_0513[resolved.multimodal][2 - level] + (weights.rotary_gib if level == 0 else 0.0)
    if resolved.quantization == "fp8" and model.quantization is None:
        overhead += _ONLINE_FP8
    if resolved.lays_out_mxfp4 and any(part.name == "experts.mxfp4" for part in model.parts):
        overhead += _LAID_OUT[2 - level]
    if given.avail_before_weights_gib is not None:
        baseline = given.avail_before_weights_gib + (_BEFORE_LOAD_LINE if counted else 0.0)
    else:
        gone = 0.0 if on_cpu(args) else before_loading_gib(ranks, any(gpu.unified for gpu in request.gpus))[2 - level]
        baseline = min((gpu.memory_total_mib - gpu.used_mib) / 1024 for gpu in used(request, resolved)) - gone
    if given.free_after_load_gib is not None:
        return baseline, given.free_after_load_gib, baseline - loaded - given.free_after_load_gib
    if given.weights_gib is not None:  # printed as the difference of free memory, so what loading took is in it
        overhead = _BEFORE_LOAD_LINE + _AFTER_LOAD_LINE[resolved.multimodal] if counted else 0.0
    return baseline, baseline - loaded - overhead, overhead


def outcome(request: Request, args: t.Mapping[str, t.Any] | None = None, level: int = 1) -> Outcome:
    """What a set of flags gives.

    args: instead of the request's own. level: 1 with the usual overheads, 0 and 2 with the least and most memory that they leave.
    Raises ValueError for a release that is not known.
    """
    args = request.args if args is None else args
    resolved = _plan_defaults.resolve(request.release, request.model, _card(request.gpus, args), args)
    weights = weigh(request.model, resolved)
    if args.get("cpu_offload_gb"):
        weights = weights._replace(target_gib=weights.target_gib - _offloaded_gib(request.model, args["cpu_offload_gb"], weights))
    if request.given.weights_gib is not None:
        weights = weights._replace(target_gib=request.given.weights_gib)
    if request.given.draft_weights_gib is not None:
        weights = weights._replace(draft_gib=request.given.draft_weights_gib)
    if resolved.speculation is None or resolved.speculation.algorithm == "NGRAM":  # n-grams have no weights
        weights = weights._replace(draft_gib=0.0, draft_returned_gib=0.0)
    baseline, free, overhead = _memory(request, args, resolved, weights, level)
    pools = _plan_pools.size(request.model, resolved, baseline, free)
    problems, ruled = _found(request, args)
    warnings = ruled + _uncounted(request, args)
    if pools.problem is not None:
        problems.append("; ".join(pools.problem))
    late = 0.0 if _plan_defaults.since(request.release, "0.5.14") else weights.draft_gib  # loaded after the pools
    result = Outcome(
        resolved=resolved,
        weights=weights,
        baseline_gib=baseline,
        free_after_load_gib=free - late,
        overhead_gib=overhead,
        pools=pools,
        graphs_gib=0.0 if on_cpu(args) else _graphs_gib(request.model, resolved),
        activations_gib=_activations_gib(request.model, resolved),
        draft_kv_gib=_plan_pools.draft_kv_bytes(request.model, resolved, pools.max_total_num_tokens) / GIB,
        table_gib=_plan_pools.request_table_bytes(resolved, pools.max_running_requests) / GIB,
        problems=(),
        warnings=(),
    )
    if not request.model.draft_layers and weights.draft_gib and request.given.draft_weights_gib is None:
        warnings.append("the draft is counted as one layer of the model, since its own configuration is not known; give draft_weights_gib")
    if not problems:
        left = result.free_after_start_gib
        if left < 0:
            problems.append(
                f"graphs, draft and tables need {-left:.1f} GiB more than mem_fraction_static {resolved.mem_fraction_static:.3f} "
                "leaves; lower mem_fraction_static, cuda_graph_max_bs_decode or chunked_prefill_size"
            )
        elif left < result.activations_gib:
            warnings.append(
                f"a prompt of {resolved.chunked_prefill_size} tokens or more may run out of memory: about {left:.1f} GiB stay free, "
                f"it needs about {result.activations_gib:.1f} (an estimate); lower mem_fraction_static or chunked_prefill_size"
            )
    return dataclasses.replace(result, problems=tuple(problems), warnings=tuple(warnings), ruled=tuple(ruled))


def highest_fraction(request: Request, args: t.Mapping[str, t.Any]) -> float | None:
    """The largest mem_fraction_static (steps of 0.005, up to 0.95) that leaves the estimated activations, a sixth more and half a GiB.

    None where the flags' own fraction is as high already.
    """
    base = outcome(request, args)
    needs = 1.15 * base.activations_gib + 0.5
    best = None
    for step in range(max(0, int(base.resolved.mem_fraction_static * 200)) + 1, 191):
        tried = outcome(request, {**args, "mem_fraction_static": step / 200})
        if tried.starts and tried.free_after_start_gib >= needs:
            best = step / 200
        elif tried.starts:
            break
    return best
