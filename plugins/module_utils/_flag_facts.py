# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What a rule about flags looks at, and what a rule is. The rules are in _flag_rules_*.py, what is asked for in _flag_rules.py."""

from __future__ import annotations

import dataclasses
import math
import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _flags
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_generations import by_compute_capability
from ansible_collections.firstlight.sglang.plugins.module_utils._model import Model

Args = t.Mapping[str, t.Any]

ERROR, WARNING = "error", "warning"

# Other spellings of flags that rules read -> the name they read. A test compares them with the tables of all releases.
ALIASES = {
    "attention_data_parallel_size": "attn_dp_size",
    "cuda_graph_bs": "cuda_graph_bs_decode",
    "cuda_graph_max_bs": "cuda_graph_max_bs_decode",
    "data_parallel_size": "dp_size",
    "enable_hicache": "enable_hierarchical_cache",
    "ep": "ep_size",
    "expert_parallel_size": "ep_size",
    "mamba_scheduler_strategy": "mamba_radix_cache_strategy",
    "nccl_init_addr": "dist_init_addr",
    "pipeline_parallel_size": "pp_size",
    "speculative_draft_model": "speculative_draft_model_path",
    "tensor_parallel_size": "tp_size",
}
# The names that rules read; the test of ALIASES walks through them.
READ = (
    "api_key",
    "attention_backend",
    "attn_dp_size",
    "chunked_prefill_size",
    "context_length",
    "decode_attention_backend",
    "disable_custom_all_reduce",
    "disable_overlap_schedule",
    "disable_radix_cache",
    "disaggregation_bootstrap_port",
    "disaggregation_mode",
    "dist_init_addr",
    "dp_size",
    "dtype",
    "enable_dp_attention",
    "enable_hierarchical_cache",
    "enable_int8_mamba_checkpoint",
    "enable_lmcache",
    "enable_mixed_chunk",
    "enable_p2p_check",
    "ep_size",
    "grpc_port",
    "hicache_size",
    "kv_cache_dtype",
    "language_model_only",
    "language_only",
    "linear_attn_backend",
    "linear_attn_decode_backend",
    "mamba_radix_cache_strategy",
    "mamba_track_interval",
    "mamba_ssm_dtype",
    "max_mamba_cache_size",
    "max_running_requests",
    "mem_fraction_static",
    "mm_enable_dp_encoder",
    "nccl_port",
    "nnodes",
    "page_size",
    "port",
    "pp_size",
    "prefill_attention_backend",
    "quantization",
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_eagle_topk",
    "speculative_ngram_max_bfs_breadth",
    "speculative_num_draft_tokens",
    "speculative_num_steps",
    "speculative_use_rejection_sampling",
    "ssl_certfile",
    "ssl_keyfile",
    "tokenizer_worker_num",
    "tool_call_parser",
    "tp_size",
)


class Finding(t.NamedTuple):
    """What a rule has found. message: expected, found and what to do, in words."""

    rule: str
    severity: str
    message: str
    source: str


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of one instance. args: by the names that rules read. gpus: those of the instance, as gpu_info gives them.

    topology, host: of gpu_info's result. others: instances on the same host, each {name, args}. None: not known.
    """

    release: str
    args: Args
    model: Model | None
    gpus: t.Sequence[Args] | None
    topology: Args | None
    host: Args | None
    others: t.Sequence[Args]
    environment: Args

    def number(self, name: str, default: float | None = None) -> float | None:
        """A flag's number, or the default when it is not given; None when it is none."""
        value = self.args.get(name)
        return default if value is None else number(value)

    def size(self, name: str) -> int:
        """A flag's whole number that is 1 or more, else 1."""
        value = self.number(name, 1)
        return int(value) if value is not None and value >= 1 else 1

    def word(self, name: str) -> str | None:
        """A flag's text, or None."""
        value = self.args.get(name)
        return value if isinstance(value, str) else None

    def on(self, name: str) -> bool:
        """Whether a switch is on."""
        return self.args.get(name) is True

    def capabilities(self) -> list[tuple[int, int]]:
        """The different compute capabilities of the GPUs, lowest first; none where they are not known."""
        found = (re.fullmatch(r"(\d{1,3})\.(\d{1,3})", str(gpu.get("compute_capability")), re.ASCII) for gpu in self.gpus or ())
        return sorted({(int(match[1]), int(match[2])) for match in found if match})

    def backends(self) -> dict[str, str]:
        """Attention backends that are given: flag -> backend."""
        names = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
        return {name: backend for name in names if (backend := self.word(name)) is not None}

    def algorithm(self) -> str | None:
        """The speculative algorithm in capitals, as the engine reads it."""
        word = self.word("speculative_algorithm")
        return word.upper() if word else None

    def hybrid(self) -> bool:
        """Whether the model keeps recurrent state."""
        return self.model is not None and self.model.state is not None

    def attention_dp(self) -> bool:
        """Whether attention is data parallel."""
        return self.on("enable_dp_attention") or self.size("attn_dp_size") > 1

    def ranks(self) -> int:
        """GPUs that the engine takes on this host."""
        replicas = 1 if self.attention_dp() else self.size("dp_size")
        return self.size("tp_size") * self.size("pp_size") * replicas // self.size("nnodes")


class Rule(t.NamedTuple):
    """One rule. first, last: the releases it holds for (None: the oldest known, the newest). what: for the documentation.

    find: what it has found, in words.
    """

    id: str
    severity: str
    first: str | None
    last: str | None
    what: str
    source: str
    find: t.Callable[[Facts], t.Iterable[str]]

    def holds_for(self, release: str) -> bool:
        """Whether the rule says anything of a release."""
        here = _flags.release_order(release)
        after = self.first is None or _flags.release_order(self.first) <= here
        return after and (self.last is None or here <= _flags.release_order(self.last))


Find = t.Callable[[Facts], t.Iterable[str]]


def entering(rules: list[Rule]) -> t.Callable[..., t.Callable[[Find], Find]]:
    """A decorator that enters functions into a table of rules."""

    def rule(
        identity: str, severity: str, what: str, source: str, first: str | None = None, last: str | None = None
    ) -> t.Callable[[Find], Find]:
        def enter(find: Find) -> Find:
            rules.append(Rule(identity, severity, first, last, what, source, find))
            return find

        return enter

    return rule


def canonical(args: Args) -> dict[str, t.Any]:
    """Flags by the names that rules read. null is not given; of two spellings of one flag the first counts."""
    found: dict[str, t.Any] = {}
    for name, value in args.items():
        if value is not None:
            found.setdefault(ALIASES.get(name, name), value)
    return found


def number(value: t.Any) -> float | None:
    """A number, also as text (8k is 8000, 8Ki is 8192); None for anything else, and for what is not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMGT]i?)", value, re.ASCII) if isinstance(value, str) else None
        factor = (1024 if match[2].endswith("i") else 1000) ** ("kMGT".index(match[2][0]) + 1) if match else 1
        found = float(match[1] if match else value) * factor
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def text(value: float | None) -> str:
    """A number as one writes it."""
    return "none" if value is None else str(int(value)) if value % 1 == 0 and abs(value) < 1e15 else f"{value:g}"


def capability(pair: tuple[int, int]) -> str:
    """8.6 (Ampere)"""
    generation = by_compute_capability(f"{pair[0]}.{pair[1]}")
    return f"{pair[0]}.{pair[1]}" + (f" ({generation.architecture})" if generation else "")
