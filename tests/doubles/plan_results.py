"""Plans as the sizing returns them, made by hand: of what CT129 runs, of a dense model that fits, and of one that does not."""

from __future__ import annotations

import copy
import typing as t

Plan = dict[str, t.Any]


def alternative(name: str, what: str, args: dict[str, t.Any], tokens: int, requests: int, **more: t.Any) -> dict[str, t.Any]:
    made = {
        "id": name,
        "what": what,
        "args": args,
        "gpus": None,
        "verdict": "fits",
        "mem_fraction_static": 0.786051,
        "max_total_num_tokens": tokens,
        "max_running_requests": requests,
        "max_request_tokens": min(tokens, 262144) - 1,
        "meets_want": tokens >= 131072 and requests >= 4,
        "cost": "",
    }
    return {**made, **more}


def gpu(index: int, mib: int, **parts: float) -> dict[str, t.Any]:
    """One GPU; what is not named is unused."""
    known = ("driver", "weights", "draft", "mamba_pool", "kv_pool", "draft_kv_pool", "request_table", "cuda_graphs", "activations")
    components = {name: parts.get(name, 0.0) for name in (*known, "in_use_by_others")}
    return {"index": index, "memory_total_mib": mib, "components": {**components, "unused": mib / 1024 - sum(components.values())}}


_CT129: Plan = {
    "model": {
        "name": "Qwen/Qwen3.6-27B",
        "source": "catalogue",
        "architecture": "Qwen3_5ForConditionalGeneration",
        "known": True,
        "parameters": 27_781_427_952,
        "context_length": 262144,
        "dtype": "bfloat16",
        "quantization": None,
        "weights_source": "config",
    },
    "sglang_release": "0.5.23",
    "gpus": {"name": "NVIDIA RTX A6000", "count": 2, "memory_total_mib": 49140, "compute_capability": "8.6"},
    "args": {
        "tp_size": 2,
        "dtype": "bfloat16",
        "mamba_radix_cache_strategy": "extra_buffer",
        "speculative_algorithm": "NEXTN",
        "speculative_num_steps": 1,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 2,
    },
    "resolved": {
        "tp_size": 2,
        "chunked_prefill_size": 4096,
        "attention_backend": "flashinfer",
        "page_size": 1,
        "kv_cache_dtype": "bfloat16",
    },
    "verdict": "fits_with_changes",
    "reasons": ["4 requests of 131072 tokens were asked for, memory holds 19198 tokens; see what would change it"],
    "mem_fraction_static": 0.786051,
    "max_total_num_tokens": 19198,
    "max_running_requests": 1,
    "max_request_tokens": 19197,
    "context_length": 262144,
    "interval": {"max_total_num_tokens": [16400, 22100], "max_running_requests": [1, 1]},
    "per_gpu": [
        gpu(
            index,
            49140,
            driver=1.41,
            weights=25.75,
            draft=0.42,
            mamba_pool=4.43,
            kv_pool=0.59,
            draft_kv_pool=0.04,
            request_table=0.01,
            cuda_graphs=1.6,
            activations=1.4,
        )
        for index in (0, 1)
    ],
    "host": {"ram_gib": 13.9, "shm_gib": 1.0, "disk_gib": 51.7, "load_time": "about 19 s from NVMe, about 111 s from SATA or network"},
    "lines": [
        {"what": "weights", "gib": 25.48, "formula": "elements x bits of each part, split over ranks", "source": "config.json"},
        {
            "what": "KV cache",
            "gib": 0.59,
            "formula": "19198 tokens x 32768 bytes",
            "source": "SGLang 0.5.23 model_executor/pool_configurator.py:219",
        },
    ],
    "want": {"context": 131072, "concurrency": 4},
    "wanted": False,
    "alternatives": [
        alternative(
            "fraction+slots",
            "mem_fraction_static 0.88, 20 state slots, 4 requests",
            {"mem_fraction_static": 0.88, "max_mamba_cache_size": 20, "max_running_requests": 4},
            341815,
            4,
            cost="less room for long prompts: 4.9 GiB stay free",
        ),
        alternative(
            "no-mtp",
            "without MTP",
            {"speculative_algorithm": None, "speculative_num_steps": None},
            148132,
            8,
            cost="slower answers: no speculation",
        ),
        alternative("tp4", "four GPUs", {"tp_size": 4}, 600000, 24, gpus="4x NVIDIA RTX A6000", cost="two more GPUs"),
        alternative("fp8", "KV cache in fp8", {"kv_cache_dtype": "fp8_e4m3"}, 38396, 1, cost="a little quality"),
    ],
    "warnings": ["NVIDIA RTX A6000: counted with 49140 MiB; nvidia-smi prints 46068 with ECC switched or with an older driver"],
    "given": {
        "avail_before_weights_gib": 46.58,
        "weights_gib": None,
        "draft_weights_gib": None,
        "free_after_load_gib": None,
        "mem_fraction_static": None,
    },
}


def ct129() -> Plan:
    return copy.deepcopy(_CT129)


def fits() -> Plan:
    """A dense model on one GPU that another process has a part of; nothing was asked for."""
    plan = ct129()
    plan["model"].update(
        name="Qwen/Qwen3-8B", source="hub", architecture="Qwen3ForCausalLM", parameters=8_190_735_360, context_length=40960
    )
    plan["gpus"] = {"name": "NVIDIA GeForce RTX 4090", "count": 1, "memory_total_mib": 24564, "compute_capability": "8.9"}
    parts = {"driver": 0.83, "weights": 15.27, "kv_pool": 3.4, "cuda_graphs": 1.2, "activations": 0.4, "in_use_by_others": 0.6}
    plan.update(
        args={},
        verdict="fits",
        reasons=[],
        mem_fraction_static=0.85,
        max_total_num_tokens=24762,
        max_running_requests=2048,
        max_request_tokens=24761,
        context_length=40960,
        interval={"max_total_num_tokens": [23000, 26000], "max_running_requests": [2048, 2048]},
        per_gpu=[gpu(0, 24564, **parts)],
        want={"context": None, "concurrency": None},
        wanted=None,
        alternatives=[],
        warnings=[],
        given=dict.fromkeys(plan["given"]),
    )
    return plan


def does_not_fit() -> Plan:
    """Weights that are larger than the card: the parts add up to more than it has; an architecture that is not known."""
    plan = fits()
    plan["model"].update(name="some/large-model", known=False, architecture="LargeForCausalLM", parameters=70_000_000_000)
    weights = {"driver": 0.83, "weights": 130.4}
    plan.update(
        verdict="does_not_fit",
        reasons=["weights of 130.4 GiB on a GPU of 24.0 GiB; give at least 6 GPUs of this kind, or a quantised checkpoint"],
        mem_fraction_static=0.85,
        max_total_num_tokens=0,
        max_running_requests=0,
        max_request_tokens=0,
        interval={"max_total_num_tokens": [0, 0], "max_running_requests": [0, 0]},
        per_gpu=[
            {"index": 0, "memory_total_mib": 24564, "components": {**dict.fromkeys(plan["per_gpu"][0]["components"], 0.0), **weights}}
        ],
        want={"context": 8192, "concurrency": None},
        wanted=False,
        host={"ram_gib": None, "shm_gib": None, "disk_gib": None, "load_time": None},
        lines=[],
    )
    return plan


def large() -> Plan:
    """Eight GPUs, one of which is in use by another process."""
    plan = ct129()
    plan["gpus"] = {"name": "NVIDIA H100 80GB HBM3", "count": 8, "memory_total_mib": 81559, "compute_capability": "9.0"}
    parts = {"driver": 2.2, "weights": 40.2, "kv_pool": 20.0, "cuda_graphs": 3.0, "activations": 3.1}
    plan["per_gpu"] = [gpu(index, 81559, **parts, in_use_by_others=2.5 if index == 3 else 0.0) for index in range(8)]
    return plan
