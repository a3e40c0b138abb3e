# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Quantised checkpoints: which modules are stored how, and how many bits that takes with scales and zero points.

Where it is said: quantization_config in config.json, or hf_quant_config.json (modelopt). What each method quantises and leaves:
SGLang 0.5.23 layers/quantization/*.py; storage of a format: its own documentation, named at the format.
"""

from __future__ import annotations

import fnmatch
import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils._model_fields import Fields, is_whole, shown
from ansible_collections.firstlight.sglang.plugins.module_utils._model_layers import Weight


class Format(t.NamedTuple):
    """How one quantised matrix is stored: bits per number, a scale (and zero point) per block, a few numbers per matrix and per column.

    block: rows x columns that share a scale; 0 stands for all of them.
    """

    name: str
    bits: float
    block: t.Tuple[int, int] = (0, 0)  # noqa: UP006
    scale_bits: float = 0.0
    matrix_bits: int = 0
    column_bits: int = 0

    def size(self, weight: Weight) -> float:
        """Bits of a weight's matrices with everything beside them."""
        rows = self.block[0] or weight.rows
        columns = self.block[1] or weight.columns
        blocks = -(-weight.rows // rows) * -(-weight.columns // columns)
        one = weight.rows * weight.columns * self.bits + blocks * self.scale_bits + self.matrix_bits + weight.columns * self.column_bits
        return one * weight.copies


FP8_TENSOR = Format("fp8", 8, matrix_bits=64)  # one scale of weights and one of activations
FP8_CHANNEL = Format("fp8", 8, (1, 0), 32)
INT8_CHANNEL = Format("int8", 8, (1, 0), 32)
MXFP4 = Format("mxfp4", 4, (1, 32), 8)  # OCP Microscaling Formats 1.0: 32 numbers share one 8-bit exponent
MXFP8 = Format("mxfp8", 8, (1, 32), 8)


def nvfp4(group: int = 16) -> Format:
    """NVFP4: 16 numbers share one FP8 scale; one scale of weights and one of activations per matrix (modelopt)."""
    return Format("nvfp4", 4, (1, group), 8, matrix_bits=64)


def fp8_block(rows: int, columns: int, scale_bits: int = 32) -> Format:
    """FP8 with a scale per block (DeepSeek V3: 128 x 128, float32 scales)."""
    return Format("fp8", 8, (rows, columns), scale_bits)


def packed(bits: int, group: int, zeros: bool, order: bool = False) -> Format:
    """AWQ, GPTQ, compressed-tensors: integers packed into 32 bits, a 16-bit scale per group, perhaps a zero point of the same width as a
    number, perhaps the group of each column (32 bits)."""
    return Format(f"int{bits}", bits, (1, group), 16 + (bits if zeros else 0), column_bits=32 if order else 0)


class Rule(t.NamedTuple):
    """Modules that patterns name (None: all that can be quantised) are stored in a format; kinds: which kinds of them."""

    patterns: Patterns | None
    format: Format
    kinds: t.Tuple[str, ...] = ("linear", "expert")  # noqa: UP006


class Patterns:
    """Names, globs and regular expressions ("re:...") of modules, as quantisation tools write them.

    A name stands for the module itself, for all in it, and for every module of that last name (lists say "gate" or "lm_head").
    """

    def __init__(self, patterns: t.Iterable[str]) -> None:
        self.names: t.Set[str] = set()  # noqa: UP006
        self.expressions: t.List[t.Pattern[str]] = []  # noqa: UP006
        globs = []
        for pattern in patterns:
            if pattern.startswith("re:"):
                self.expressions.append(re.compile(pattern[3:]))
            elif any(letter in pattern for letter in "*?["):
                globs.append(fnmatch.translate(pattern))
            elif pattern:
                self.names.add(pattern)
        if globs:
            self.expressions.append(re.compile("|".join(globs)))
        self.longest = max((name.count(".") + 1 for name in self.names), default=0)

    def match(self, name: str) -> bool:
        """Whether a module is meant."""
        pieces = name.split(".")
        for start in range(len(pieces)):
            for end in range(start + 1, min(len(pieces), start + self.longest) + 1):
                if ".".join(pieces[start:end]) in self.names:
                    return True
        return any(expression.match(name) for expression in self.expressions)


class Quantisation:
    """What is quantised and how. method: as the configuration names it; None: nothing is."""

    def __init__(self, method: str | None = None) -> None:
        self.method = method
        self.rules: t.List[Rule] = []  # noqa: UP006
        self.ignored = Patterns([])
        self.kv_cache: str | None = None  # the type that the checkpoint asks for its cache
        self.draft = True  # whether layers for speculation are quantised like the rest
        self.notes: t.List[str] = []  # noqa: UP006

    def format(self, weight: Weight) -> Format | None:
        """The format of a weight, None for the model's own type."""
        if not weight.quantisable or (weight.part.startswith("draft") and not self.draft) or self.ignored.match(weight.name):
            return None
        for rule in self.rules:
            if weight.quantisable in rule.kinds and (rule.patterns is None or rule.patterns.match(weight.name)):
                return rule.format
        return None


def _patterns(fields: Fields, *keys: str) -> Patterns:
    """The patterns in lists of a configuration; a broken expression is a problem."""
    names: t.List[str] = []  # noqa: UP006
    for key in keys:
        for name in fields.items(key, (str,)) or []:
            if len(name) > 500:
                fields.problem(key, "names of modules", shown(name), "correct it")
                continue
            try:
                Patterns([name])
            except re.error:
                fields.problem(key, "names, globs or regular expressions", shown(name), "correct it")
            else:
                names.append(name)
    return Patterns(names)


def _algorithm(fields: Fields, key: str, word: str, group: int) -> Format | None:
    """The format of a modelopt quant_algo."""
    upper = word.upper()
    if "MXFP4" in upper:
        return MXFP4
    if "NVFP4" in upper:
        return nvfp4(group)
    if "MXFP8" in upper:
        return MXFP8
    if upper in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "FP8_PB_REAL"):
        return {"FP8": FP8_TENSOR, "FP8_PER_CHANNEL_PER_TOKEN": FP8_CHANNEL}.get(upper, fp8_block(128, 128))
    if upper in ("W4A16_AWQ", "W4A8_AWQ", "INT4_AWQ"):
        return packed(4, group if group > 16 else 128, False)
    fields.problem(
        key, "FP8, NVFP4, MXFP4, MXFP8, W4A16_AWQ or MIXED_PRECISION", shown(word), "give the weights' size by hand, or report this format"
    )
    return None


def _modelopt(fields: Fields, result: Quantisation) -> None:
    word = fields.word("quant_algo")
    group = fields.whole("group_size", 16, high=65536)
    layers = fields.part("quantized_layers")
    result.ignored = _patterns(fields, "exclude_modules", "ignore")
    if word.upper() == "MIXED_PRECISION" and layers is None:
        fields.problem("quantized_layers", "an object that names the format of each module", "nothing", "take the file that was published")
    if layers is not None:
        by_format: t.Dict[Format, t.List[str]] = {}  # noqa: UP006
        for name, value in layers.values.items():
            if not isinstance(name, str) or not isinstance(value, dict) or not isinstance(value.get("quant_algo"), str):
                layers.problem(str(name), "an object with quant_algo", shown(value), "correct it")
                continue
            size = value.get("group_size", group)
            if not is_whole(size) or not 1 <= size <= 65536:
                layers.problem(name + ".group_size", "a whole number from 1 to 65536", shown(size), "correct it")
                continue
            form = _algorithm(layers, name, value["quant_algo"], int(size))
            if form:
                by_format.setdefault(form, []).append(name)
        for form, names in by_format.items():
            result.rules.append(Rule(Patterns(names), form, ("linear", "expert", "head")))
        return
    # a rule for all follows
    single = _algorithm(fields, "quant_algo", word, group)
    if single:
        result.rules.append(Rule(None, single))
        # SGLang 0.5.23 models/qwen3_5_mtp.py (_mtp_quant_config), models/deepseek_nextn.py
        result.draft = single.name != "nvfp4"
    if not fields.has("exclude_modules", "ignore"):
        result.notes.append(f"{word} without a list of what it leaves out: counted as if it quantised every projection")


def _compressed(fields: Fields, result: Quantisation) -> None:
    result.ignored = _patterns(fields, "ignore")
    groups = fields.part("config_groups")
    if groups is None:
        fields.problem("config_groups", "an object", "nothing", "take the file that was published")
        return
    for key in groups.values:
        group = groups.part(key)
        weights = group.part("weights") if group else None
        if group is None or weights is None:
            continue
        bits = weights.whole("num_bits", high=16)
        strategy = weights.word("strategy", "tensor")
        size = weights.whole("group_size", 0, low=-1)
        symmetric = weights.flag("symmetric", True)
        form: Format | None
        name = group.word("format") or fields.word("format")
        if weights.word("type") == "float" and bits == 4:
            form = MXFP4 if "mxfp4" in name else nvfp4(size if size > 0 else 16)
        elif bits == 8 and strategy == "block":
            shape = weights.items("block_structure", (int,)) or [128, 128]
            ok = len(shape) == 2 and all(each > 0 for each in shape)
            form = fp8_block(*shape) if ok else None
            if not ok:
                weights.problem("block_structure", "two whole numbers", shown(shape), "correct it")
        elif bits == 8:
            form = (
                MXFP8
                if "mxfp8" in name
                else FP8_TENSOR
                if strategy == "tensor"
                else FP8_CHANNEL
                if weights.word("type") == "float"
                else INT8_CHANNEL
            )
        elif bits in (2, 3, 4, 5, 6, 7):
            form = packed(bits, size if size > 0 else 0, not symmetric)
        else:
            form = None
            weights.problem("num_bits", "2 to 8", str(bits), "give the weights' size by hand, or report this format")
        if form:
            targets = group.items("targets", (str,)) or ["Linear"]
            everything = any(target in ("Linear", "FusedMoE") for target in targets)
            patterns = None if everything else _patterns(group, "targets")
            result.rules.append(Rule(patterns, form, ("linear", "expert") if everything else ("linear", "expert", "head")))


def _integers(fields: Fields, result: Quantisation) -> None:
    """AWQ, GPTQ, AutoRound."""
    bits = fields.whole(("bits", "w_bit"), high=16)
    group = fields.whole(("group_size", "q_group_size"), 128, low=-1)
    order = result.method not in ("awq", "awq_marlin")
    zeros = fields.flag("zero_point", True) or order
    result.ignored = _patterns(fields, "modules_to_not_convert", "ignore", "ignored_layers")
    kinds = ("linear", "expert", "head") if fields.flag("lm_head") else ("linear", "expert")
    result.rules.append(Rule(None, packed(bits, group if group > 0 else 0, zeros, order), kinds))


def _fp8(fields: Fields, result: Quantisation, expert_type: str) -> None:
    block = fields.items("weight_block_size", (int,))
    if block is not None and (len(block) != 2 or any(each < 1 or each > 65536 for each in block)):
        fields.problem("weight_block_size", "two whole numbers", shown(block), "correct it")
        block = None
    form = fp8_block(block[0], block[1], 8 if fields.word("scale_fmt") == "ue8m0" else 32) if block else FP8_TENSOR
    result.ignored = _patterns(fields, "modules_to_not_convert", "ignored_layers")
    if fields.word("moe_quant_algo").upper() == "NVFP4":
        result.rules.append(Rule(None, nvfp4(fields.whole("group_size", 16, high=65536)), ("expert",)))
    elif expert_type == "fp4":
        result.rules.append(Rule(None, MXFP4, ("expert",)))
    result.rules.append(Rule(None, form))


def _kv_cache(fields: Fields) -> str | None:
    """What --kv-cache-dtype auto makes of a checkpoint's own words; others than FP8 it takes for nothing (mem_cache/kv_cache_dtype.py)."""
    scheme = fields.value("kv_cache_scheme")
    if isinstance(scheme, dict):
        return "fp8_e4m3" if scheme.get("type") == "float" and scheme.get("num_bits") == 8 else None
    algorithm = fields.value("kv_cache_quant_algo")
    return "fp8_e4m3" if isinstance(algorithm, str) and algorithm.upper() == "FP8" else None


def _at_start(asked: str | None) -> Quantisation:
    """What the engine makes of an unquantised checkpoint when --quantization asks for it."""
    result = Quantisation(asked)
    form = {"fp8": FP8_TENSOR, "w8a8_fp8": FP8_CHANNEL, "mxfp8": MXFP8}.get(asked or "")
    if form:
        result.rules.append(Rule(None, form))
    elif asked:
        result.notes.append(f"--quantization {asked} on an unquantised checkpoint: counted as unquantised")
    return result


def read_quantisation(
    config: Fields,
    text: Fields,
    quant_config: t.Dict[str, t.Any] | None,  # noqa: UP006
    asked: str | None = None,
) -> Quantisation:
    """What a model's files say of its quantisation. quant_config: hf_quant_config.json, where there is one. asked: --quantization."""
    outer = None if quant_config is None else Fields(quant_config, config.problems, "hf_quant_config.json: ")
    inside = (outer.part("quantization") or outer) if outer else None
    own = config.part("quantization_config") or text.part("quantization_config") or config.part("compression_config")
    if own is None and inside is None:
        return _at_start(asked)
    fields = t.cast(Fields, own if own is not None else inside)
    method = fields.word("quant_method").lower()
    if own is not None and not method and (own.has("quant_algo") or own.part("quantization")):
        fields = own.part("quantization") or own
        method = "modelopt"
    if own is None:
        method = "modelopt"
    result = Quantisation(method or None)
    result.kv_cache = _kv_cache(fields)
    if method.startswith("modelopt"):
        detailed = inside is not None and (inside.has("quantized_layers") or inside.has("exclude_modules"))
        _modelopt(t.cast(Fields, inside) if detailed else fields, result)
    elif method in ("compressed-tensors", "compressed_tensors"):
        _compressed(fields, result)
    elif method in ("fp8", "deepseek_v4_fp8"):
        _fp8(fields, result, text.word("expert_dtype").lower())
    elif method == "mxfp4":
        result.ignored = _patterns(fields, "modules_to_not_convert")
        result.rules.append(Rule(None, MXFP4, ("expert",)))
    elif method in ("awq", "awq_marlin", "gptq", "gptq_marlin", "auto-round"):
        _integers(fields, result)
    else:
        expected = "fp8, mxfp4, modelopt, compressed-tensors, awq, gptq or auto-round"
        fields.problem(
            "quant_method", expected, shown(fields.value("quant_method")), "give the weights' size by hand, or report this format"
        )
    return result
