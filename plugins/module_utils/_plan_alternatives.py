# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Changes that help: each with what it gives and what it costs, the best first, and the smallest set that reaches what was asked for."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _flags, _plan, _plan_defaults

# A change is worth telling when it gives this much more of one number.
_WORTH = 1.03
# How many are told.
_TOLD = 10
# The price of a change that takes more GPUs.
_HARDWARE = 3
# Requests at once that changes are made for where nothing was asked.
_AT_ONCE = 4
# What is tried first where nothing starts.
_SAFE = 0.9
# Ranks of tensor parallelism within one host.
_MOST_RANKS = 8
# Flags that are tried without where nothing starts, besides those that the problems name, and those that are never left out.
_MAY_GO = {"mem_fraction_static", "page_size", "pp_size", "dp_size", "ep_size", "enable_dp_attention", "attention_backend", "dtype"}
_MEANT = {"device", "tp_size", "trust_remote_code", "json_model_override_args"}
# Flags that change what is loaded on each GPU.
_LOADED_BY = {"tp_size", "pp_size", "dp_size", "ep_size", "enable_dp_attention", "quantization", "dtype", "cpu_offload_gb", "load_format"}


@dataclasses.dataclass(frozen=True)
class Change:
    """One change of flags. price: 0 is hardly felt, 1 costs speed or slack, 2 quality, 3 hardware. gpus: how many, where that changes."""

    name: str
    what: str
    args: t.Mapping[str, t.Any]
    cost: str
    price: int
    gpus: int | None = None


def _merged(changes: t.Iterable[Change]) -> dict[str, t.Any]:
    """The flags of several changes, a later one over an earlier."""
    return {key: value for change in changes for key, value in change.args.items()}


@dataclasses.dataclass(frozen=True)
class Alternative:
    """A change, or several together, and what it gives."""

    changes: tuple[Change, ...]
    outcome: _plan.Outcome
    meets_want: bool | None

    @property
    def reached(self) -> bool:
        """Whether it gives what was asked for; where nothing was, whether it starts."""
        return self.outcome.starts if self.meets_want is None else self.meets_want

    @property
    def args(self) -> dict[str, t.Any]:
        """All flags that change; null takes one away."""
        return _merged(self.changes)

    @property
    def price(self) -> tuple[int, int, int]:
        """What it costs: the dearest change first, then how many GPUs, then how many changes."""
        return max(change.price for change in self.changes), max(change.gpus or 0 for change in self.changes), len(self.changes)


def apply(args: t.Mapping[str, t.Any], change: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Flags with a change made; null takes one away."""
    return {key: value for key, value in {**args, **change}.items() if value is not None}


def _flag(request: _plan.Request, new: str, old: str, first: str) -> str:
    """A flag's name in the request's release."""
    return new if _plan_defaults.since(request.release, first) else old


def _state_changes(request: _plan.Request, base: _plan.Outcome, at_once: int) -> list[Change]:
    resolved = base.resolved
    changes = []
    if resolved.radix_cache:
        slots = base.pools.slots_per_request * at_once
        changes.append(
            Change(
                "state_slots",
                f"state for {_requests(at_once)} only",
                {"max_mamba_cache_size": slots, "max_running_requests": at_once},
                f"no more than {at_once} at once, fewer cached prefixes",
                0,
            )
        )
        changes.append(
            Change(
                "state_share_small", "less memory for states", {"mamba_full_memory_ratio": 0.3}, "fewer at once, fewer cached prefixes", 1
            )
        )
        changes.append(Change("state_share_large", "more memory for states", {"mamba_full_memory_ratio": 2.0}, "fewer tokens", 1))
    if resolved.state_dtype == "float32":
        changes.append(Change("state_bf16", "state in bfloat16", {"mamba_ssm_dtype": "bfloat16"}, "some accuracy on long texts", 2))
    replay = resolved.speculation is not None and request.model.state is not None and request.model.state.kind == "gdn"
    if replay and not resolved.replay_state and _plan_defaults.since(request.release, "0.5.17"):
        changes.append(
            Change("replay_state", "no copies of the state per draft token", {"enable_linear_replayssm_spec": True}, "a newer code path", 1)
        )
    return changes


def _taken_back(request: _plan.Request, base: _plan.Outcome) -> list[Change]:
    """Flags of the request that are in the way: left out, or with the number that was asked for."""
    args, want = request.args, request.want
    at_once, tokens = want.concurrency or 1, (want.context or 0) * (want.concurrency or 1)
    changes = []
    if tokens and (args.get("max_total_tokens") or tokens) < tokens:
        changes.append(Change("total", "no limit of tokens", {"max_total_tokens": None}, "the pool takes all memory there is", 0))
    if (base.resolved.max_running_requests or at_once) < at_once:
        changes.append(
            Change("running", f"up to {_requests(at_once)} at once", {"max_running_requests": at_once}, "more memory for each", 0)
        )
    if want.context and base.resolved.context_length < want.context <= (request.model.context_length or 0):
        changes.append(Change("length", f"requests up to {want.context} tokens", {"context_length": want.context}, "larger tables", 0))
    if base.starts:
        return changes
    told = " ".join(base.problems).replace("-", "_")
    for key in args:
        named = key in _MAY_GO or re.search(rf"(?<![a-z_]){key}(?![a-z_])", told.replace("__", ""))
        if named and key not in _MEANT and not key.startswith("speculative_"):
            flag = _flags.spelling(key)
            changes.append(Change(f"without_{key}", f"without {flag}", {key: None}, f"what {flag} was for", 1))
    return changes


def _kv_dtype(request: _plan.Request) -> str:
    """The 8-bit type that the card's kernels take: e4m3 from compute capability 8.9 on (_flag_rules_gpu)."""
    older = any(tuple(map(int, (gpu.compute_capability or "9.0").split("."))) < (8, 9) for gpu in request.gpus)
    return "fp8_e5m2" if older else "fp8_e4m3"


def singles(request: _plan.Request, base: _plan.Outcome) -> list[Change]:
    """Every change that may help, one flag or one idea each."""
    resolved, model = base.resolved, request.model
    at_once = request.want.concurrency or _AT_ONCE
    changes = _taken_back(request, base)
    if resolved.max_running_requests is None or resolved.max_running_requests > at_once:
        changes.append(
            Change(
                "running", f"at most {_requests(at_once)} at once", {"max_running_requests": at_once}, f"no more than {at_once} at once", 0
            )
        )
    if model.state is not None:
        changes += _state_changes(request, base, at_once)
    fraction = _plan.highest_fraction(request, request.args)
    if fraction is None and not base.starts and resolved.mem_fraction_static < _SAFE:
        fraction = _SAFE  # alone it is not enough; with other changes the right one is found (_raise_fraction)
    if fraction is not None:
        changes.append(
            Change("fraction", "more of the GPU for the pools", {"mem_fraction_static": fraction}, "less left for very long prompts", 1)
        )
    if resolved.speculation is not None:
        gone = {key: None for key in request.args if key.startswith("speculative_")}
        changes.append(Change("no_speculation", "no speculative decoding", gone, "slower single answers", 1))
    if resolved.hybrid_swa and resolved.swa_full_tokens_ratio > 0.2:
        changes.append(
            Change(
                "sliding_share",
                "a smaller pool for sliding windows",
                {"swa_full_tokens_ratio": 0.2},
                "fewer at once, fewer cached prefixes",
                1,
            )
        )
    if resolved.mem_fraction_chosen and resolved.chunked_prefill_size > 2048:
        changes.append(
            Change(
                "chunk",
                "shorter steps through a prompt",
                {"chunked_prefill_size": resolved.chunked_prefill_size // 2},
                "slower long prompts",
                1,
            )
        )
    graphs = _flag(request, "cuda_graph_max_bs_decode", "cuda_graph_max_bs", "0.5.14")
    if resolved.mem_fraction_chosen and resolved.decode_max_bs > max(at_once, 8):
        changes.append(Change("graphs", "fewer CUDA graphs", {graphs: max(at_once, 8)}, "slower beyond that many at once", 1))
    if resolved.kv_cache_dtype in ("bfloat16", "float16"):
        changes.append(Change("kv_fp8", "KV cache in 8 bits", {"kv_cache_dtype": _kv_dtype(request)}, "some accuracy", 2))
    if model.quantization is None and resolved.quantization is None:
        changes.append(Change("weights_fp8", "weights in 8 bits, made while loading", {"quantization": "fp8"}, "some accuracy", 2))
    return changes + _more_gpus(request, base)


def _more_gpus(request: _plan.Request, base: _plan.Outcome) -> list[Change]:
    """Other numbers of ranks: the GPUs that are there first, then more of the same kind. Fewer ranks only where these do not start."""
    have, resolved = len(request.gpus), base.resolved
    changes = []
    asked = resolved.tp_size * resolved.pp_size * (1 if resolved.attention_dp else resolved.dp_size)
    if asked > have:
        changes.append(Change("gpus", f"the {asked} GPUs that the flags ask for", {}, _more(asked - have), 3, asked))
    for tp in sorted({1, 2, 4, 8, max(1, have // resolved.pp_size)}):
        ranks = tp * resolved.pp_size
        if tp == resolved.tp_size or ranks > max(_MOST_RANKS, have) or (tp < resolved.tp_size and base.starts):
            continue
        more = ranks - have
        if more <= 0:
            cost = f"{ranks} of the {have} GPUs here" if have > 1 else "what the other GPUs were for"
            changes.append(Change(f"tp_{tp}", f"{_on(tp)} here", {"tp_size": tp}, cost, 1))
        else:
            changes.append(Change(f"tp_{tp}", _on(tp), {"tp_size": tp}, _more(more), 3, ranks))
    return changes + _pipelines(have, resolved)


def _pipelines(have: int, resolved: _plan_defaults.Resolved) -> list[Change]:
    """Stages of layers over GPUs that no split of each layer uses all of: three of three, six of six."""
    split = max(tp for tp in (1, 2, 4, 8) if tp <= have)
    changes = []
    for tp in (4, 2, 1):
        stages = have // tp
        sizes = {"tp_size": tp, "pp_size": stages}
        if stages > 1 and tp * stages > split and (tp, stages) != (resolved.tp_size, resolved.pp_size):
            what = f"a pipeline of {stages} stages" + (f", each split over {tp} GPUs" if tp > 1 else "")
            changes.append(Change(f"tp_{tp}_pp_{stages}", what, sizes, "slower single answers", 1))
    return changes


def _requests(count: int) -> str:
    return f"{count} request{'s' if count > 1 else ''}"


def _more(count: int) -> str:
    return f"{count} more GPU{'s' if count > 1 else ''}"


def _on(tp: int) -> str:
    return "on one GPU" if tp == 1 else f"split over {tp} GPUs"


def _with_gpus(request: _plan.Request, changes: t.Sequence[Change]) -> _plan.Request:
    wanted = max((change.gpus or 0 for change in changes), default=0)
    if wanted <= len(request.gpus):
        return request
    like = min(request.gpus, key=lambda gpu: gpu.memory_total_mib)
    more = tuple(dataclasses.replace(like, index=index) for index in range(len(request.gpus), wanted))
    return dataclasses.replace(request, gpus=request.gpus + more, given=_plan.Given())


def _try(request: _plan.Request, changes: tuple[Change, ...]) -> Alternative:
    asked = _with_gpus(request, changes)
    args = apply(request.args, _merged(changes))
    changed = set(_merged(changes))
    # measured weights stand for the ranks, the types and the draft they were measured with
    if changed & _LOADED_BY:
        asked = dataclasses.replace(asked, given=_plan.Given(avail_before_weights_gib=asked.given.avail_before_weights_gib))
    elif any(key.startswith("speculative_") for key in changed):
        asked = dataclasses.replace(asked, given=dataclasses.replace(asked.given, draft_weights_gib=None, free_after_load_gib=None))
    result = _plan.outcome(asked, args)
    return Alternative(changes, result, result.meets(request.want))


def _raise_fraction(request: _plan.Request, changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """With other flags changed, the largest safe fraction is another one."""
    others = tuple(change for change in changes if change.name != "fraction")
    if len(others) == len(changes):
        return changes
    args = apply(request.args, _merged(others))
    fraction = _plan.highest_fraction(_with_gpus(request, others), args)
    if fraction is None:
        return others
    return (*others, *(dataclasses.replace(c, args={"mem_fraction_static": fraction}) for c in changes if c.name == "fraction"))


# Changes that exclude each other.
_EXCLUSIVE = ({"running", "state_slots"}, {"state_slots", "state_share_small", "state_share_large"}, {"no_speculation", "replay_state"})


def _counts_gpus(name: str) -> bool:
    return name == "gpus" or name.startswith("tp_")


def _together(changes: t.Sequence[Change], more: Change) -> bool:
    names = {change.name for change in changes}
    if _counts_gpus(more.name) and any(map(_counts_gpus, names)):
        return False
    return more.name not in names and not any(more.name in group and names & group for group in _EXCLUSIVE)


def _reaching(request: _plan.Request, changes: list[Change]) -> list[Alternative]:
    """The smallest sets that reach what was asked for: pairs, then the cheapest changes added until it is reached and thinned again."""
    found = []
    for index, first in enumerate(changes):
        for second in changes[index + 1 :]:
            if _together((first,), second):
                tried = _try(request, _raise_fraction(request, (first, second)))
                if tried.reached:
                    found.append(tried)
    here = [change for change in changes if change.gpus is None]
    if any(one.price[0] < _HARDWARE for one in found):
        return found
    return found + [one for one in (_added(request, here), _added(request, changes)) if one is not None]


def _added(request: _plan.Request, changes: list[Change]) -> Alternative | None:
    """The cheapest changes one after the other, until it is reached; then those that are not needed taken away again."""
    chosen: tuple[Change, ...] = ()
    for change in sorted(changes, key=lambda change: (change.price, change.gpus or 0)):
        if not _together(chosen, change):
            continue
        chosen = (*chosen, change)
        tried = _try(request, _raise_fraction(request, chosen))
        if tried.reached:
            for spare in chosen[:-1]:
                thinner = tuple(c for c in chosen if c is not spare)
                again = _try(request, _raise_fraction(request, thinner))
                if again.reached:
                    chosen, tried = thinner, again
            return tried
    return None


def _gain(base: _plan.Outcome, tried: _plan.Outcome) -> float:
    """The larger of both gains, tokens and requests, where the other does not suffer; 0 otherwise."""
    tokens = tried.pools.max_total_num_tokens / max(1, base.pools.max_total_num_tokens)
    running = min(tried.pools.max_running_requests / max(1, base.pools.max_running_requests), 4.0)
    if tokens >= _WORTH:
        return tokens
    return running if tokens >= 1 / _WORTH and running >= _WORTH else 0.0


def alternatives(request: _plan.Request, base: _plan.Outcome) -> list[Alternative]:
    """What helps, the best first: what reaches the goal at the lowest price, then what gives most."""
    changes = [one for one in singles(request, base) if one.gpus or apply(request.args, one.args) != dict(request.args)]
    tried = [_try(request, (change,)) for change in changes]
    short = base.meets(request.want) is False or not base.starts
    if short and not any(one.reached and one.price[0] < _HARDWARE for one in tried):
        tried += _reaching(request, changes)
    elif not short:
        both = tuple(change for change in changes if change.name in ("fraction", "state_slots"))
        if len(both) == 2:
            tried.append(_try(request, _raise_fraction(request, both)))
    good = []
    for one in tried:
        helps = one.reached if short else _gain(base, one.outcome) >= _WORTH and one.meets_want is not False
        if one.outcome.starts and helps:
            good.append(one)
    if short and not good:  # nothing reaches it: what comes nearer
        good = [one for one in tried if one.outcome.starts and _gain(base, one.outcome) >= _WORTH]
    good.sort(
        key=lambda one: (
            one.price[0] >= _HARDWARE,
            doubtful(base, one),
            one.price,
            -min(one.outcome.max_request_tokens, one.outcome.pools.max_total_num_tokens),
        )
    )
    return _told(request, good)


def doubtful(base: _plan.Outcome, one: Alternative) -> bool:
    """Whether a rule warns of an alternative that does not warn of the flags as they are."""
    return not set(one.outcome.ruled) <= set(base.ruled)


def surely(request: _plan.Request, one: Alternative) -> bool:
    """Whether an alternative reaches what was asked for even with the largest overheads that were seen."""
    asked = _with_gpus(request, one.changes)
    return _plan.outcome(asked, apply(request.args, one.args), level=0).meets(request.want) is not False


def _told(request: _plan.Request, found: list[Alternative]) -> list[Alternative]:
    """The first ones; of those that take more GPUs, only the two that take fewest; none twice."""
    told: list[Alternative] = []
    bought = 0
    for one in found:
        bought += one.price[0] == _HARDWARE
        made = apply(request.args, one.args)
        twice = any(apply(request.args, other.args) == made and other.price[1] == one.price[1] for other in told)
        if not twice and (one.price[0] < _HARDWARE or bought <= 2):
            told.append(one)
    return told[:_TOLD]
