# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""A plan as plain data: what the module returns, and what terminal, Markdown and HTML show (docs/design.md, "The plan")."""

from __future__ import annotations

import collections
import dataclasses
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _plan, _plan_alternatives
from ansible_collections.firstlight.sglang.plugins.module_utils._model_weights import GIB

# The resolved flags that a plan shows.
_SHOWN = (
    "tp_size",
    "pp_size",
    "dp_size",
    "chunked_prefill_size",
    "decode_max_bs",
    "prefill_sizes",
    "attention_backend",
    "page_size",
    "kv_cache_dtype",
    "state_dtype",
    "mamba_strategy",
    "radix_cache",
    "overlap",
    "swa_full_tokens_ratio",
)
# GiB of host memory: main process and detokenizer, and one scheduler a rank. MEASURED (see _plan): 1.0 to 1.3, 1.0, 1.8 to 2.5.
# A hybrid model's kernels are compiled by helper processes once it serves: 6.6 GiB more.
_HOST_RAM = (1.3 + 1.0, 2.5, 6.6)
# NCCL's shared memory between ranks: a container wants a GiB (NVIDIA's NCCL user guide, "Docker containers").
_SHM = (0.1, 1.0)
# GB per second that a checkpoint is read with, and the words for it.
_READ = ((3.0, "NVMe"), (0.5, "SATA or network"))


def _round(value: float, digits: int = 2) -> float:
    return round(value, digits) + 0.0


def _components(request: _plan.Request, result: _plan.Outcome, gpu: _plan.Gpu) -> dict[str, float]:
    """GiB of one card by what takes them; they add up to the card. reserve: what stays for activations."""
    total = gpu.memory_total_mib / 1024
    others = gpu.used_mib / 1024
    pools = result.pools
    gone = max(0.0, min((one.memory_total_mib - one.used_mib) / 1024 for one in _plan.used(request, result.resolved)) - result.baseline_gib)
    # more than a driver, a context and NCCL were ever seen to take is somebody else's
    most = _plan.before_loading_gib(_plan.ranks_of(result.resolved), gpu.unified)[2]
    parts = {
        "in_use_by_others": others + max(0.0, gone - most),
        "driver": min(gone, most),
        "weights": result.weights.target_gib + result.overhead_gib,
        "draft": result.weights.draft_gib - result.weights.draft_returned_gib,
        "mamba_pool": (pools.state_bytes + pools.scratch_bytes) / GIB,
        "kv_pool": pools.kv_bytes / GIB,
        "draft_kv_pool": result.draft_kv_gib,
        "request_table": result.table_gib,
        "cuda_graphs": result.graphs_gib if result.starts else 0.0,
    }
    rounded = {name: _round(max(0.0, gib), 3) for name, gib in parts.items()}
    return {**rounded, "reserve": _round(max(0.0, total - sum(rounded.values())), 3)}


def _lines(request: _plan.Request, result: _plan.Outcome) -> list[dict[str, t.Any]]:
    """Each number with the formula that it comes from."""
    resolved, pools, model = result.resolved, result.pools, request.model
    release = request.release
    lines = [
        (
            "free before loading",
            result.baseline_gib,
            "the card's memory less what driver, context and NCCL take",
            "measured starts, see _plan.py",
        ),
        ("weights", result.weights.target_gib, "elements x bits of each part, split over ranks", "config.json or safetensors headers"),
    ]
    if result.weights.draft_gib:
        lines.append(
            ("draft", result.weights.draft_gib, "its layers, and its own embedding and head until they are shared", "qwen3_5_mtp.py:170")
        )
    lines.append(("loading overhead", result.overhead_gib, "rotary tables, rounding of the allocator", "measured starts of 0.5.15.post1"))
    lines.append(
        (
            "reserve outside the fraction",
            result.slack_gib,
            f"free before loading x (1 - {resolved.mem_fraction_static:.6f})",
            f"SGLang {release}, handle_gpu_memory_settings",
        )
    )
    if model.state is not None:
        lines.append(
            (
                "state",
                (pools.state_bytes + pools.scratch_bytes) / GIB,
                f"{pools.state_slots} slots x {pools.state_bytes_per_slot / (1 << 20):.2f} MiB; a request takes {pools.slots_per_request}",
                f"SGLang {release}, handle_max_mamba_cache",
            )
        )
    lines.append(
        (
            "KV cache",
            pools.kv_bytes / GIB,
            f"{pools.max_total_num_tokens} tokens x {pools.bytes_per_token:.0f} bytes",
            f"SGLang {release}, pool_configurator",
        )
    )
    lines.append(("graphs and workspace", result.graphs_gib, "an estimate", "measured starts of 0.5.15.post1"))
    lines.append(
        ("activations at their peak", result.activations_gib, f"an estimate for {resolved.chunked_prefill_size} tokens", "the same")
    )
    return [{"what": what, "gib": _round(gib), "formula": formula, "source": source} for what, gib, formula, source in lines]


def interval(request: _plan.Request, result: _plan.Outcome) -> dict[str, list[int]]:
    """From what is not known exactly: the least and the most that a plan's overheads allow.

    A recurrent model may get one request's states more or less, which moves its tokens the other way.
    """
    given = request.given
    known = given.free_after_load_gib is not None and given.avail_before_weights_gib is not None
    edges = [result, result] if known else [_plan.outcome(request, level=0), _plan.outcome(request, level=2)]
    pools, spec = result.pools, result.resolved.speculation
    step = 0.0
    if pools.state_bytes_per_slot and pools.bytes_per_token and not known:
        step = pools.state_bytes_per_slot * (pools.slots_per_request + (spec.draft_tokens if spec else 0)) / pools.bytes_per_token
    tokens = sorted(edge.pools.max_total_num_tokens if edge.starts else 0 for edge in (*edges, result))
    running = sorted(edge.pools.max_running_requests if edge.starts else 0 for edge in (*edges, result))
    return {
        "max_total_num_tokens": [max(0, int(tokens[0] - step)), int(tokens[-1] + step) if tokens[-1] else 0],
        "max_running_requests": [running[0], running[-1]],
    }


def _host(result: _plan.Outcome, hybrid: bool, disk_gib: float | None) -> dict[str, t.Any]:
    ranks = result.resolved.tp_size * result.resolved.pp_size
    load = None
    if disk_gib is not None:
        load = ", ".join(f"about {max(1, round(disk_gib * 1.074 / rate))} s from {words}" for rate, words in _READ)
    return {
        "ram_gib": _round(_HOST_RAM[0] + _HOST_RAM[1] * ranks + (_HOST_RAM[2] if hybrid else 0.0), 1),
        "shm_gib": _SHM[ranks > 1],
        "disk_gib": None if disk_gib is None else _round(disk_gib, 1),
        "load_time": load,
    }


def _numbers(result: _plan.Outcome) -> dict[str, t.Any]:
    """The four numbers of an outcome; 0 where it would not start."""
    starts = result.starts
    return {
        "mem_fraction_static": _round(max(0.0, result.resolved.mem_fraction_static), 6),
        "max_total_num_tokens": result.pools.max_total_num_tokens if starts else 0,
        "max_running_requests": result.pools.max_running_requests if starts else 0,
        "max_request_tokens": result.max_request_tokens if starts else 0,
    }


def _wanted(request: _plan.Request, count: int) -> str:
    """So many GPUs: those that are there, and more of the smallest kind."""
    names = [gpu.name for gpu in request.gpus] + [min(request.gpus, key=lambda gpu: gpu.memory_total_mib).name] * count
    return ", ".join(f"{number}x {name}" for name, number in collections.Counter(names[:count]).items())


def _alternative(request: _plan.Request, base: _plan.Outcome, one: _plan_alternatives.Alternative) -> dict[str, t.Any]:
    """One alternative, with what is to be known of it beside what is to be known of the flags as they are."""
    warnings = [warning for warning in one.outcome.warnings if warning not in base.warnings]
    if one.meets_want and not _plan_alternatives.surely(request, one):
        warnings.insert(0, "reached with the usual overheads, not with the largest that were seen")
    gpus = max((change.gpus or 0 for change in one.changes), default=0)
    return {
        "id": "+".join(change.name for change in one.changes),
        "what": ", ".join(change.what for change in one.changes),
        "args": one.args,
        "gpus": _wanted(request, gpus) if gpus else None,
        "verdict": "fits" if one.outcome.starts and one.meets_want is not False else "does_not_fit",
        **_numbers(one.outcome),
        "meets_want": one.meets_want,
        "cost": "; ".join(dict.fromkeys(change.cost for change in one.changes)),
        "warnings": warnings,
    }


def _verdict(result: _plan.Outcome, meets: bool | None, others: t.Sequence[_plan_alternatives.Alternative]) -> str:
    if result.starts and meets is not False:
        return "fits"
    reached = [one for one in others if one.price[0] < 3 and one.meets_want is not False]
    return "fits_with_changes" if reached else "does_not_fit"


def _reasons(request: _plan.Request, result: _plan.Outcome, meets: bool | None) -> list[str]:
    reasons = list(result.problems)
    if not result.starts or meets is not False:
        return reasons
    want, tokens = request.want, result.pools.max_total_num_tokens
    length, at_once = want.context or 0, want.concurrency or 1
    if length > result.resolved.context_length:
        whose = "context_length ends" if request.args.get("context_length") else "the model ends"
        reasons.append(f"requests of {length} tokens were asked for, {whose} at {result.resolved.context_length}")
    if length * at_once > tokens:
        each = f"{at_once} requests of {length} tokens each take" if at_once > 1 else f"a request of {length} tokens takes"
        reasons.append(f"{each} {length * at_once} tokens of KV cache at once, there are {tokens}")
    if at_once > result.pools.max_running_requests:
        reasons.append(f"{at_once} requests at once were asked for, {result.pools.max_running_requests} run")
    return reasons


# A longest request below this share of the model's context is worth a word.
_SHORT = 0.25


def _warnings(request: _plan.Request, result: _plan.Outcome, between: t.Mapping[str, t.Sequence[int]]) -> list[str]:
    warnings = list(request.model.notes) + list(result.warnings)
    if not request.model.known:
        warnings.append(f"{request.model.architecture}: no reader of its own; every number is a generic estimate")
    if not result.starts:
        return warnings
    resolved, want = result.resolved, request.want
    ranks = _plan.ranks_of(resolved)
    if ranks < len(request.gpus):
        warnings.append(f"{len(request.gpus) - ranks} of {len(request.gpus)} GPUs stay idle: tp_size x pp_size x dp_size is {ranks}")
    least = between["max_total_num_tokens"][0]
    if not least:
        warnings.append("it may not start: with the largest overheads that were seen nothing is left for the KV cache")
    elif want.context and least < want.context * (want.concurrency or 1) <= result.pools.max_total_num_tokens:
        warnings.append(f"what was asked for is reached with the usual overheads, not with the largest that were seen ({least} tokens)")
    if result.max_request_tokens < _SHORT * resolved.context_length:
        warnings.append(
            f"the longest request is {result.max_request_tokens} tokens, far below the {resolved.context_length} that the model takes"
        )
    if resolved.dp_size > 1:
        warnings.append(f"tokens and requests are those of one of {resolved.dp_size} data parallel ranks")
    return warnings


def report(
    request: _plan.Request, name: str, source: str, weights_source: str, parameters: int, disk_gib: float | None
) -> dict[str, t.Any]:
    """The whole plan as plain data.

    name, source: the model's, and catalogue | directory | hub. weights_source: headers | config. parameters: how many there are.
    disk_gib: of the checkpoint, None where it is not known. Raises ValueError for a release that is not known.
    """
    result = _plan.outcome(request)
    meets = result.meets(request.want)
    others = _plan_alternatives.alternatives(request, result)
    model = request.model
    smallest = min(request.gpus, key=lambda gpu: gpu.memory_total_mib)
    ranks = min(len(request.gpus), _plan.ranks_of(result.resolved))
    between = interval(request, result)
    given = dataclasses.asdict(request.given)
    return {
        "model": {
            "name": name,
            "source": source,
            "architecture": model.architecture,
            "known": model.known,
            "parameters": parameters,
            "context_length": model.context_length,
            "dtype": model.dtype,
            "quantization": model.quantization,
            "weights_source": "given" if request.given.weights_gib is not None else weights_source,
        },
        "sglang_release": request.release,
        "gpus": {
            "name": " and ".join(dict.fromkeys(gpu.name for gpu in request.gpus)),
            "count": len(request.gpus),
            "memory_total_mib": smallest.memory_total_mib,
            "compute_capability": smallest.compute_capability,
        },
        "args": dict(request.args),
        "resolved": {key: getattr(result.resolved, key) for key in _SHOWN},
        "verdict": _verdict(result, meets, others),
        "reasons": _reasons(request, result, meets),
        **_numbers(result),
        "context_length": result.resolved.context_length,
        "interval": between,
        "per_gpu": [
            {"index": gpu.index, "memory_total_mib": gpu.memory_total_mib, "components": _components(request, result, gpu)}
            for gpu in request.gpus[: max(1, ranks)]
        ],
        "state_slots": result.pools.state_slots if model.state is not None else None,
        "slots_per_request": result.pools.slots_per_request if model.state is not None else None,
        "bytes_per_token": _round(result.pools.bytes_per_token, 1),
        "free_after_start_gib": _round(result.free_after_start_gib),
        "activations_gib": _round(result.activations_gib),
        "host": _host(result, model.state is not None, disk_gib),
        "lines": _lines(request, result),
        "want": dataclasses.asdict(request.want),
        "wanted": meets,
        "alternatives": [_alternative(request, result, one) for one in others],
        "warnings": _warnings(request, result, between),
        "given": given,
    }
