# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What an operator asks of a plan, read from text: flags as on SGLang's own command line, wishes, and measured numbers.

Each reader returns what it has read, and every problem of the text in words.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
import typing as t
from decimal import Decimal, InvalidOperation

from ansible_collections.firstlight.sglang.plugins.module_utils import _flags
from ansible_collections.firstlight.sglang.plugins.module_utils._plan_gpus import Gpu

# Of what is asked for: the least and the most that can be meant.
WANT: dict[str, tuple[int, int]] = {"context": (1, 100_000_000), "concurrency": (1, 1_000_000)}
# Measured numbers of the GPU with least memory, in GiB but for the last: the most that can be meant.
GIVEN: dict[str, float] = {
    "avail_before_weights_gib": 100_000.0,
    "weights_gib": 100_000.0,
    "draft_weights_gib": 100_000.0,
    "free_after_load_gib": 100_000.0,
    "mem_fraction_static": 0.999,
}
# The least that can be meant, where it is not a MiB.
_LEAST_GIVEN = {"draft_weights_gib": 0.0, "mem_fraction_static": 0.01}
# Flags that a plan computes with, whose numbers SGLang's parser takes as they are: the least and the most that can be meant.
NUMBERS: dict[str, tuple[float, float]] = {
    "tp_size": (1, 1024),
    "pp_size": (1, 64),
    "dp_size": (1, 1024),
    "ep_size": (1, 1024),
    "attn_dp_size": (1, 1024),
    "context_length": (1, 100_000_000),
    "chunked_prefill_size": (-1, 1 << 20),
    "max_prefill_tokens": (1, 1 << 20),
    "max_running_requests": (1, 1_000_000),
    "max_total_tokens": (1, 10_000_000_000),
    "page_size": (1, 65536),
    "mem_fraction_static": (0.01, 0.999),
    "max_mamba_cache_size": (1, 1_000_000),
    "mamba_full_memory_ratio": (0.0001, 10_000),
    "swa_full_tokens_ratio": (0.0001, 1),
    "cuda_graph_max_bs": (1, 65_536),
    "cuda_graph_max_bs_decode": (1, 65_536),
    "cuda_graph_bs": (1, 65_536),
    "cuda_graph_bs_decode": (1, 65_536),
    "cuda_graph_bs_prefill": (1, 1 << 20),
    "cuda_graph_max_bs_prefill": (1, 1 << 20),
    "piecewise_cuda_graph_tokens": (1, 1 << 20),
    "piecewise_cuda_graph_max_tokens": (1, 1 << 20),
    "cpu_offload_gb": (0, 100_000),
    "nnodes": (1, 1024),
    "attn_cp_size": (1, 1024),
    "speculative_num_steps": (1, 1024),
    "speculative_eagle_topk": (1, 1024),
    "speculative_num_draft_tokens": (1, 1024),
}
# Switches of 0.5.14 to 0.5.19 that set another flag to a word (SGLang 0.5.14 server_args.py:6382, DeprecatedStoreConstAction).
_STAND_FOR = {
    "disable_piecewise_cuda_graph": ("cuda_graph_backend_prefill", "disabled"),
    "enable_breakable_cuda_graph": ("cuda_graph_backend_prefill", "breakable"),
    "enforce_piecewise_cuda_graph": ("cuda_graph_backend_prefill", "tc_piecewise"),
}
# Words of `sglang serve` that say nothing of memory.
_PASSED_OVER = ("--model-type", "llm")
# human_readable_int of SGLang 0.5.23 utils/common.py
_SUFFIXES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

# Python takes 1_0 and the digits of any script for a number; whoever writes so has mistyped.
_DECIMAL = r"[+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})([eE][+-]?\d{1,3})?"

Read = t.Tuple[t.Dict[str, t.Any], t.List[str]]  # noqa: UP006


@dataclasses.dataclass(frozen=True)
class Question:
    """One question, checked.

    name, source: the model's, and catalogue | directory | hub. config, quant_config, headers, index: of its files, as far as they are known
    (config.json, hf_quant_config.json, the beginnings of safetensors files, model.safetensors.index.json). args: SGLang's flags by the
    parser's destination names. want, given: all keys of WANT and GIVEN. environment: of the service. notes: what to tell with the answer.
    """

    name: str
    source: str
    config: t.Mapping[str, t.Any]
    gpus: tuple[Gpu, ...]
    release: str
    args: t.Mapping[str, t.Any]
    want: t.Mapping[str, t.Any]
    given: t.Mapping[str, t.Any]
    quant_config: t.Mapping[str, t.Any] | None = None
    headers: t.Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    index: t.Mapping[str, t.Any] | None = None
    environment: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


def _shown(text: t.Any) -> str:
    words = repr(text)
    return words if len(words) <= 60 else f"{words[:57]}..."


def _short(problem: str) -> str:
    """A message that repeats a value of thousands of letters helps nobody."""
    return problem if len(problem) <= 800 else f"{problem[:600]} ... {problem[-100:]}"


def words_of(text: str) -> tuple[list[str], list[str]]:
    """The words of a command line, as a shell splits it."""
    try:
        return shlex.split(text), []
    except ValueError as error:
        return [], [f"args: expected words as a shell splits them, found {_shown(text)} ({error}); close the quotes"]


def _plain_json(text: str) -> t.Any:
    """JSON without NaN and infinities, which SGLang's json.loads takes and no flag means."""

    def refuse(word: str) -> t.Any:
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


def _typed(converter: str, word: str) -> t.Any:
    """The value that a converter makes of a word; the word itself when it is of another kind, which _flags.check_args then tells."""
    try:
        if converter == "int":
            return int(word)
        if converter == "float":
            return float(word)
        if converter in ("loads", "json_list_type"):
            return _plain_json(word)
        if converter == "human_readable_int":
            match = re.fullmatch(r"(\d{1,30}(?:\.\d{1,9})?)(Ki|Mi|Gi|Ti|k|M|G|T)?", word, re.ASCII)
            return int(Decimal(match[1]) * _SUFFIXES.get(match[2] or "", 1)) if match and _whole_or_decimal(match) else word
        if converter == "nullable_str" and word in ("", "None"):
            return None
    except (ValueError, InvalidOperation, RecursionError):
        pass
    return word


def _whole_or_decimal(match: re.Match[str]) -> bool:
    """A fraction goes with a decimal suffix only."""
    return "." not in match[1] or len(match[2] or "") == 1


def _is_flag(word: str) -> bool:
    """As argparse sees it: a number is a value, though it begins with a dash."""
    return word.startswith("-") and not re.fullmatch(r"-\d+|-\d*\.\d+", word, re.ASCII) and " " not in word and word != "-"


def _name_problem(table: _flags.FlagTable, word: str) -> str:
    """What to tell about a word that is no flag of the release."""
    if not word.startswith("--"):
        return f"{_shown(word)}: expected a flag such as --tp-size; write it in full"
    name = _flags.snake(word)
    if name in table.by_name:
        return f"{word}: is spelled {_flags.spelling(name)}"
    whole = sorted(known for known in table.by_name if known.startswith(name)) if len(name) > 1 else []
    once = table.history is not None and name in table.history.spans
    if len(whole) > 1 and name != "model_type" and not once:
        return f"{word}: may be {' or '.join(map(_flags.spelling, whole[:3]))}; write it in full"
    return f"{word}: {_flags.unknown_flag(table, name)}"


def _option(spellings: t.Mapping[str, dict[str, t.Any]], word: str) -> tuple[str, dict[str, t.Any] | None]:
    """A flag in full and its option; the beginning of one flag only stands for it, as with the engine's own parser."""
    if word in spellings or len(word) < 4:
        return word, spellings.get(word)
    whole = [flag for flag in spellings if flag.startswith(word)]
    return (whole[0], spellings[whole[0]]) if len(whole) == 1 else (word, None)


def read_args(table: _flags.FlagTable, words: t.Sequence[str]) -> Read:
    """SGLang's flags from the words of its command line: (by the parser's destination names, problems).

    Takes --flag value, --flag=value, switches, lists, and the beginning of a flag that no other flag begins with, as the engine does.
    """
    given: dict[str, t.Any] = {}
    spelled: dict[str, str] = {}
    problems: list[str] = []
    spellings = {flag: option for option in table.options for flag in option["flags"]}
    position = 0
    while position < len(words):
        word, equals, attached = words[position].partition("=")
        position += 1
        if not _is_flag(word):
            problems.append(f"args: expected a flag, found {_shown(words[position - 1])}")
            continue
        word, option = _option(spellings, word)
        values = [attached] if equals else []
        many = option is not None and option["nargs"] in ("+", "*")
        takes = option is None or option["kind"] == "value"
        while takes and not equals and position < len(words) and not _is_flag(words[position]) and (many or not values):
            values.append(words[position])
            position += 1
        if (word, *values) == _PASSED_OVER:
            continue
        if option is None:
            problems.append(f"args: {_name_problem(table, word)}")
            continue
        off = option["kind"] == "boolean" and word.startswith("--no-")
        name = _flags.snake(word[5:] if off else word)
        if option["dest"] in spelled:
            problems.append(f"args: {word}: the same flag as {spelled[option['dest']]}; keep one of the two")
            continue
        spelled[option["dest"]] = word
        if option["kind"] != "value":
            if equals:
                problems.append(f"args: {word}: expected no value, found {_shown(attached)}")
            given[name] = not off
        elif not values and option["nargs"] not in ("?", "*"):
            problems.append(f"args: {word}: expected a value, found none")
        else:
            typed = [_typed(option["type"] or "str", value) for value in values]
            given[name] = typed if many else typed[0] if typed else True
    _rendered, wrong = _flags.check_args(table, given, {})
    problems += [_short(f"args: {_flags.spelling(problem[5:])}") for problem in wrong]
    made = {table.by_name[name]["dest"]: _stands_for(table, name, value) for name, value in given.items()}
    return made, problems + _check_numbers(made)


def _stands_for(table: _flags.FlagTable, name: str, value: t.Any) -> t.Any:
    """The value that a flag gives its destination: of a switch that sets another flag, that flag's."""
    dest, word = _STAND_FOR.get(name, ("", ""))
    return word if value is True and dest == table.by_name[name]["dest"] else value


def _plain_number(value: float) -> str:
    """As one writes it: 1000000, not 1e+06."""
    return str(int(value)) if value % 1 == 0 and abs(value) < 1e15 else f"{value:g}"


def _check_numbers(args: t.Mapping[str, t.Any]) -> list[str]:
    """Numbers that no plan can be made with; the model has its own place."""
    problems = []
    for name, (least, most) in NUMBERS.items():
        given = args.get(name)
        for value in given if isinstance(given, list) else [given]:
            endless = isinstance(value, str) and re.match(r"[+-]?\d{31}", value, re.ASCII)
            if endless or (isinstance(value, (int, float)) and not isinstance(value, bool) and not least <= value <= most):
                found = _plain_number(value) if isinstance(value, (int, float)) else _shown(value)
                problems.append(f"args: {_flags.spelling(name)}: expected {_plain_number(least)} to {_plain_number(most)}, found {found}")
    if "model_path" in args:
        problems.append("args: --model-path: the model of a plan is named by itself; leave this flag out")
    return problems


def by_destination(table: _flags.FlagTable, args: t.Mapping[str, t.Any]) -> Read:
    """Flags from an instance's dictionary (any spelling in snake_case): (by the parser's destination names, problems).

    Null means not given. Text of a whole number such as 8k becomes the number.
    """
    _rendered, problems = _flags.check_args(table, args, {})
    made: dict[str, t.Any] = {}
    for name, value in args.items():
        option = table.by_name.get(name)
        if option is not None and value is not None:
            made[option["dest"]] = _typed(option["type"] or "str", value) if isinstance(value, str) else _stands_for(table, name, value)
    return made, problems + _check_numbers(made)


def for_release(table: _flags.FlagTable, args: t.Mapping[str, t.Any]) -> tuple[dict[str, t.Any], list[str]]:
    """Flags of an entry of the catalogue for another release than its own: (under that release's names, what is left out, in words)."""
    made: dict[str, t.Any] = {}
    notes = []
    spans = {} if table.history is None else table.history.spans
    for name, value in args.items():
        here: str | None = name
        if name not in table.by_name and name in spans:
            here = next((other for other in table.by_name if other in spans and spans[other].dest == spans[name].dest), None)
        if here is None:
            notes.append(f"left out, since SGLang {table.release} does not have it: {_flags.spelling(name)}")
        else:
            made[here] = value
    return made, notes


def _pairs(what: str, text: str, keys: t.Collection[str]) -> tuple[dict[str, str], list[str]]:
    """key=value words, separated by spaces or commas."""
    found: dict[str, str] = {}
    problems = []
    for word in re.split(r"[\s,]+", text.strip()):
        if not word:
            continue
        key, equals, value = word.partition("=")
        if key not in keys or not equals:
            problems.append(f"{what}: expected {', '.join(f'{name}=<number>' for name in keys)}, found {_shown(word)}")
        elif key in found:
            problems.append(f"{what}: {key} is given twice; keep one of the two")
        else:
            found[key] = value
    return found, problems


def check_want(values: t.Mapping[str, t.Any]) -> Read:
    """What the operator asks for, checked: (context and concurrency, null where not said; problems)."""
    want: dict[str, t.Any] = dict.fromkeys(WANT)
    problems = [f"want: expected {' and '.join(WANT)}, found {_shown(key)}" for key in values if key not in WANT]
    for key, (least, most) in WANT.items():
        value = values.get(key)
        number = _typed("human_readable_int", value) if isinstance(value, str) else value
        if number is None:
            continue
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            problems.append(f"want: expected {key} as a whole number from {least} to {most}, found {_shown(value)}")
        else:
            want[key] = int(number)
    return want, problems


def check_given(values: t.Mapping[str, t.Any]) -> Read:
    """Measured numbers, checked: (each of GIVEN, null where not said; problems)."""
    given: dict[str, t.Any] = dict.fromkeys(GIVEN)
    problems = [f"given: expected {', '.join(GIVEN)}, found {_shown(key)}" for key in values if key not in GIVEN]
    for key, most in GIVEN.items():
        value = values.get(key)
        number = float(value) if isinstance(value, str) and re.fullmatch(_DECIMAL, value, re.ASCII) else value
        if number is None:
            continue
        least = _LEAST_GIVEN.get(key, 0.001)
        good = isinstance(number, (int, float)) and not isinstance(number, bool) and math.isfinite(number) and least <= number <= most
        if not good:
            problems.append(f"given: expected {key} as a number from {least:g} to {most:g}, found {_shown(value)}")
        else:
            given[key] = float(number)
    before, after = given["avail_before_weights_gib"], given["free_after_load_gib"]
    if before is not None and after is not None and after > before:
        problems.append(f"given: expected free_after_load_gib to be at most avail_before_weights_gib {before:g}, found {after:g}")
    return given, problems


def read_want(text: str) -> Read:
    """WANT="context=131072 concurrency=4"."""
    pairs, problems = _pairs("want", text, WANT)
    want, wrong = check_want(pairs)
    return want, problems + wrong


def read_given(text: str) -> Read:
    """GIVEN="avail_before_weights_gib=46.58 weights_gib=26.9"."""
    pairs, problems = _pairs("given", text, GIVEN)
    given, wrong = check_given(pairs)
    return given, problems + wrong
