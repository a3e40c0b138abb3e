# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Rules of memory, context, modes, and of what instances share on a host."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils._flag_facts import (
    ERROR,
    WARNING,
    Args,
    Facts,
    Rule,
    canonical,
    entering,
    text,
)

RULES: list[Rule] = []
rule = entering(RULES)

# --- Memory, context, caches ---


@rule(
    "mem-fraction",
    ERROR,
    "mem_fraction_static is between 0 and 1",
    "0.5.23 resolves 0 and 1.2 without a word; captured K05 (0.3 for a 27B: exit 137)",
)
def _mem_fraction(facts: Facts) -> t.Iterator[str]:
    fraction = facts.number("mem_fraction_static")
    if fraction is not None and not 0 < fraction < 1:
        yield f"args.mem_fraction_static: expected a number between 0 and 1, found {text(fraction)}; leave it out, or write such as 0.85"


@rule(
    "mem-fraction-high",
    WARNING,
    "A mem_fraction_static above 0.97 leaves nothing for graphs, activations and libraries",
    "captured K06 (0.995: CUBLAS_STATUS_ALLOC_FAILED, exit 137) and L5 (0.97 on 139 GiB served)",
)
def _mem_fraction_high(facts: Facts) -> t.Iterator[str]:
    fraction = facts.number("mem_fraction_static")
    if fraction is not None and 0.97 < fraction < 1:
        yield (
            f"args.mem_fraction_static: expected 0.97 or less, found {text(fraction)}; "
            "what is left is too little for graphs and activations: write less"
        )


@rule(
    "context-length",
    ERROR,
    "context_length within what the model was made for",
    "0.5.8 configs/model_config.py; 0.5.23 configs/model_config.py:1291; captured K02 (exit 1) and L8 (allowed by the variable)",
)
def _context_length(facts: Facts) -> t.Iterator[str]:
    length = facts.number("context_length")
    allowed = str(facts.environment.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "")).lower() in ("1", "true", "yes", "y", "t", "on")
    if facts.model is not None and length is not None and 0 < facts.model.context_length < length and not allowed:
        yield (
            f"args.context_length: expected {facts.model.context_length} (the model's) or less, found {text(length)}; write less, or set "
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 in environment"
        )


@rule(
    "chunk-page",
    ERROR,
    "chunked_prefill_size is a multiple of page_size",
    "0.5.8 server_args.py; 0.5.23 arg_groups/validation_hook.py:243",
)
def _chunk_page(facts: Facts) -> t.Iterator[str]:
    chunk, page = facts.number("chunked_prefill_size"), facts.number("page_size")
    if (
        chunk is not None
        and page is not None
        and chunk > 0
        and page >= 1
        and chunk % page
        and facts.word("disaggregation_mode") != "decode"
    ):
        yield (
            f"args.chunked_prefill_size: expected a multiple of page_size {text(page)}, found {text(chunk)}; "
            f"write such as {text(page * max(1, chunk // page))}"
        )


@rule(
    "hicache-memory",
    ERROR,
    "hicache_size is taken by each rank, twice with a hybrid model",
    "sgl-project/sglang#29034",
)
def _hicache_memory(facts: Facts) -> t.Iterator[str]:
    size, free = facts.number("hicache_size"), (facts.host or {}).get("memory_available_mib")
    need = (size or 0) * (2 if facts.hybrid() else 1) * facts.size("tp_size")
    if facts.on("enable_hierarchical_cache") and isinstance(free, int) and need * 1e9 > free * 2**20:
        yield (
            f"args.hicache_size: expected what {free} MiB of available memory hold, found {text(size)} GB, which is {text(need)} GB over "
            f"{facts.size('tp_size')} ranks; write less"
        )


# --- Modes and services ---


# SGLANG 0.5.23 server_args.py:335; 0.5.18 and 0.5.19 have the last one only.
_LANGUAGE_MODEL_ONLY = (
    "Cosmos3EdgeForConditionalGeneration",
    "Cosmos3ForConditionalGeneration",
    "DeepseekV4ForCausalLM",
    "MuseGlimmerForConditionalGeneration",
)


@rule(
    "language-model-only",
    ERROR,
    "language_model_only is for a few architectures",
    "0.5.18 server_args.py:7684; 0.5.23 arg_groups/model_hook.py:1104",
    first="0.5.18",
)
def _language_model_only(facts: Facts) -> t.Iterator[str]:
    if facts.on("language_model_only") and facts.model is not None and facts.model.architecture not in _LANGUAGE_MODEL_ONLY:
        yield (
            f"args.language_model_only: expected off for {facts.model.architecture}, which the engine refuses with it, found on; "
            "leave it out"
        )


@rule(
    "language-only",
    WARNING,
    "language_only is a part of encoder disaggregation and no switch to leave the vision tower out",
    "0.5.23 arg_groups: it waits for encoders elsewhere",
)
def _language_only(facts: Facts) -> t.Iterator[str]:
    if facts.on("language_only"):
        yield "args.language_only: expected off unless encoders run elsewhere, found on; leave it out: it does not save the vision tower"


@rule(
    "api-key-workers",
    ERROR,
    "An API key with more than one tokenizer: the engine says so and ends with exit code 0",
    "0.5.8 entrypoints/http_server.py:209; 0.5.23 entrypoints/http_server.py:260",
)
def _api_key_workers(facts: Facts) -> t.Iterator[str]:
    workers = facts.number("tokenizer_worker_num", 1)
    if facts.args.get("api_key") and workers is not None and workers > 1:
        yield (
            f"args.tokenizer_worker_num: expected 1 with an API key, found {text(workers)}; "
            "leave it out, or put the key in front of the engine"
        )


@rule(
    "api-key-grpc",
    ERROR,
    "An API key with the native gRPC server, which would not ask for it",
    "0.5.16 server_args.py:3379; 0.5.23 arg_groups/serving_hook.py:430",
    first="0.5.16",
)
def _api_key_grpc(facts: Facts) -> t.Iterator[str]:
    if facts.args.get("api_key") and "grpc_port" in facts.args:
        yield "args.grpc_port: expected none with an API key, found one; leave it out: gRPC does not ask for the key"


@rule(
    "tls-pair",
    ERROR,
    "A certificate and its key go together",
    "0.5.23 arg_groups/serving_hook.py:51",
    first="0.5.10",
)
def _tls_pair(facts: Facts) -> t.Iterator[str]:
    for name, other in (("ssl_keyfile", "ssl_certfile"), ("ssl_certfile", "ssl_keyfile")):
        if name in facts.args and other not in facts.args:
            yield f"args.{name}: expected {other} beside it, found none; give both"


# Family of architectures -> (parsers of tool calls that read its grammar, the first is the one to take).
_TOOL_PARSERS = (
    (re.compile(r"Qwen3_5|Qwen3Next|Qwen3CoderNext"), ("qwen3_coder",)),
    (re.compile(r"DeepseekV32"), ("deepseekv32",)),
    (re.compile(r"GptOss"), ("gpt-oss",)),
    (re.compile(r"Gemma4"), ("gemma4",)),
)


@rule(
    "tool-call-parser",
    WARNING,
    "A parser of tool calls that reads another grammar than the model writes",
    "sgl-project/sglang#26790, #26793, #26172",
)
def _tool_call_parser(facts: Facts) -> t.Iterator[str]:
    given, architecture = facts.word("tool_call_parser"), facts.model.architecture if facts.model else ""
    for family, parsers in _TOOL_PARSERS:
        if family.match(architecture) and given not in (None, "auto", *parsers):
            yield (
                f"args.tool_call_parser: expected {parsers[0]} for {architecture}, found {given}, which reads another grammar; "
                f"write {parsers[0]}"
            )


# --- Ports ---


def ports(args: Args) -> dict[int, str]:
    """The ports that an instance listens on and that are known before it starts: number -> what for.

    SGLANG 0.5.8 server_args.py:5272 and 0.5.23 server_args.py:728, class PortArgs: attention-DP puts its sockets 233 above the HTTP port.
    """
    facts = Facts("", canonical(args), None, None, None, None, (), {})
    found: dict[int, str] = {}

    def add(number: float | None, what: str) -> None:
        if number is not None and 0 < number < 65536:
            found.setdefault(int(number), what)

    add(facts.number("port"), "port")
    add(facts.number("nccl_port"), "nccl_port")
    add(facts.number("grpc_port"), "grpc_port")
    address = re.search(r":(\d{1,5})$", facts.word("dist_init_addr") or "", re.ASCII)
    add(float(address[1]) if address else None, "dist_init_addr")
    if facts.word("disaggregation_mode") not in (None, "null"):
        add(facts.number("disaggregation_bootstrap_port", 8998), "disaggregation_bootstrap_port")
    port = facts.number("port")
    if facts.attention_dp() and (address or port is not None):
        base = float(address[1]) if address else _moved(port or 0)
        for step in range(7):
            add(base + step, "a socket of attention-DP")
    return found


def conflicts(args: Args, others: t.Iterable[Args]) -> t.Iterator[str]:
    """The ports that an instance has in common with others on its host, each {name, args}."""
    own = ports(args)
    for other in others:
        theirs = ports(other["args"])
        for number in sorted(own.keys() & theirs.keys()):
            yield f"{own[number]}: expected a port of its own, found {number}, which is {theirs[number]} of {other['name']}; set another"


def _moved(port: float) -> float:
    return port + 233 if port + 233 <= 65535 else port - 233


@rule(
    "ports-own",
    ERROR,
    "The HTTP port and the hidden ports of one instance are different",
    "0.5.23 server_args.py:728, class PortArgs",
)
def _ports_own(facts: Facts) -> t.Iterator[str]:
    port, rendezvous = facts.number("port"), facts.number("nccl_port")
    if port is None:
        return
    if port == rendezvous:
        yield f"nccl_port: expected another port than the HTTP port, found {text(port)}; set another nccl_port"
    hidden = {number: what for number, what in ports({**facts.args, "nccl_port": None}).items() if what not in ("port", "nccl_port")}
    if rendezvous is not None and int(rendezvous) in hidden:
        yield f"nccl_port: expected a port that {hidden[int(rendezvous)]} does not take, found {int(rendezvous)}; set another nccl_port"


@rule(
    "ports-others",
    ERROR,
    "No port of one instance is a port of another on the host, hidden ones included",
    "0.5.23 server_args.py:728, class PortArgs (sgl-project/sglang#37215, #10693)",
)
def _ports_others(facts: Facts) -> t.Iterator[str]:
    yield from conflicts(facts.args, facts.others)


@rule(
    "dp-nccl-port",
    ERROR,
    "Data parallel replicas with one pinned nccl_port: the second cannot bind it",
    "0.5.9 managers/data_parallel_controller.py:235; 0.5.23 managers/data_parallel_controller.py:434",
)
def _dp_nccl_port(facts: Facts) -> t.Iterator[str]:
    replicas = facts.size("dp_size")
    if replicas > 1 and not facts.attention_dp() and "nccl_port" in facts.args:
        yield (
            f"args.dp_size: expected 1, since every replica would bind the instance's one nccl_port, found {replicas}; "
            "make one instance of each replica, or attention-DP where the model has it"
        )
