# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What a plan is to a deployment: whether it is begun at all, how the plan compares with the start, and what the next plan learns of it."""

from __future__ import annotations

import hashlib
import json
import typing as t

# A plan that is further off is a fault of the plan.
FAULT = 0.10
# Records of a host that are kept, the newest last.
MOST_RECORDS = 50


class Difference(t.NamedTuple):
    """One number, planned and real."""

    what: str
    planned: float
    real: float
    unit: str

    @property
    def relative(self) -> float | None:
        """How far the plan is from what came, as a share of it; None where nothing came."""
        return None if not self.real else self.planned / self.real - 1


def refusal(plan: t.Mapping[str, t.Any]) -> str | None:
    """Why a deployment is not begun with this plan, and the way out; None where it is.

    Not refused: a model without a reader of its own, and what starts with the most favourable of the overheads that are not known.
    """
    if plan["verdict"] == "fits" or not plan["model"]["known"]:
        return None
    if not plan["max_total_num_tokens"] and plan["interval"]["max_total_num_tokens"][1]:
        return None
    words = f"does not fit: {'; '.join(plan['reasons'])}"
    helps = [one for one in plan["alternatives"] if one["gpus"] is None and one["verdict"] == "fits"]
    if helps:
        args = json.dumps(helps[0]["args"], sort_keys=True)
        words += f"; what would do: {helps[0]['what']} (args {args})"
    return words


def key(plan: t.Mapping[str, t.Any]) -> str:
    """What makes two plans the same: model, release, GPUs and flags; first 16 hex digits of their SHA-256."""
    parts = {name: plan[name] for name in ("sglang_release", "gpus", "args")}
    parts["model"] = {name: plan["model"][name] for name in ("name", "architecture", "parameters", "dtype", "quantization")}
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def measured(numbers: t.Mapping[str, t.Any]) -> dict[str, float]:
    """Of the numbers that a start logged (_engine_log.read_numbers), those that take the place of predicted ones."""
    loads = [load for load in numbers.get("weights") or [] if load.get("memory_gib") is not None and load.get("free_after_gib") is not None]
    if not loads:
        return {}
    first, last = loads[0], loads[-1]
    found = {
        "avail_before_weights_gib": round(first["free_after_gib"] + first["memory_gib"], 2),
        "weights_gib": first["memory_gib"],
        "free_after_load_gib": last["free_after_gib"],
    }
    if len(loads) > 1:
        found["draft_weights_gib"] = last["memory_gib"]
    return {name: value for name, value in found.items() if value > 0}


def differences(plan: t.Mapping[str, t.Any], numbers: t.Mapping[str, t.Any]) -> list[Difference]:
    """What can be compared: tokens, requests, weights, state slots, KV cache."""
    found = []
    for name, unit in (("max_total_num_tokens", "tokens"), ("max_running_requests", "requests")):
        if numbers.get(name) is not None:
            found.append(Difference(name, plan[name], numbers[name], unit))
    parts = plan["per_gpu"][0]["components"] if plan.get("per_gpu") else {}
    loads, caches = numbers.get("weights") or [], numbers.get("kv_caches") or []
    if loads and loads[0].get("memory_gib"):
        found.append(Difference("weights", parts.get("weights", 0.0), loads[0]["memory_gib"], "GiB"))
    if caches and caches[0].get("k_gib") is not None and caches[0].get("v_gib") is not None:
        found.append(Difference("KV cache", parts.get("kv_pool", 0.0), round(caches[0]["k_gib"] + caches[0]["v_gib"], 2), "GiB"))
    slots = (numbers.get("state_cache") or {}).get("max_mamba_cache_size")
    if slots is not None and plan.get("state_slots") is not None:
        found.append(Difference("state slots", plan["state_slots"], slots, "slots"))
    return found


def fault(plan: t.Mapping[str, t.Any], found: t.Sequence[Difference]) -> str | None:
    """What to report when tokens or requests are more than a tenth off; None when the plan was right.

    The engine counts whole requests: one more or fewer is no fault.
    """
    far = [
        one
        for one in found
        if one.what in ("max_total_num_tokens", "max_running_requests")
        and one.relative is not None
        and abs(one.relative) > FAULT
        and not (one.what == "max_running_requests" and abs(one.planned - one.real) <= 1)
    ]
    if not far:
        return None
    words = ", ".join(f"{one.what} {one.planned:g} planned, {one.real:g} came" for one in far)
    return (
        f"the plan was wrong ({words}): a fault of Firstlight, not of yours. Please report it with "
        f"the plan's plan.json and this report's report.json (SGLang {plan['sglang_release']}, {plan['model']['architecture']})"
    )


def entry(plan: t.Mapping[str, t.Any], numbers: t.Mapping[str, t.Any], instance: str, start: str) -> dict[str, t.Any] | None:
    """What the host's record keeps of a start; None when the log says too little. start: the service's invocation."""
    found = differences(plan, numbers)
    values = measured(numbers)
    if not found or not values:
        return None
    return {
        "instance": instance,
        "start": start,
        "sglang_release": plan["sglang_release"],
        "model": plan["model"]["name"],
        "gpus": dict(plan["gpus"]),
        "planned": {one.what: one.planned for one in found},
        "real": {one.what: one.real for one in found},
        "measured": values,
    }


def united(record: t.Mapping[str, t.Any], entries: t.Mapping[str, t.Mapping[str, t.Any]]) -> dict[str, t.Any]:
    """The host's record with new entries; what is the newest comes last, and the oldest go. A start that is in it stays as it is."""
    plans = dict(record.get("plans") or {})
    for name, value in entries.items():
        if (plans.get(name) or {}).get("start") != value["start"]:
            plans.pop(name, None)
            plans[name] = dict(value)
    return {"schema_version": 1, "plans": dict(list(plans.items())[-MOST_RECORDS:])}


def read(text: str) -> dict[str, t.Any]:
    """The record out of its file. ValueError for what is not one."""
    data = json.loads(text)
    if not isinstance(data, dict) or not isinstance(data.get("plans"), dict):
        raise ValueError("expected an object with plans")
    return data


def given(record: t.Mapping[str, t.Any], plan: t.Mapping[str, t.Any]) -> dict[str, float] | None:
    """Measured numbers of a start of the same, for the next plan; None where there was none."""
    found = (record.get("plans") or {}).get(key(plan))
    values = found.get("measured") if isinstance(found, dict) else None
    return dict(values) if isinstance(values, dict) and values else None
