# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""A model's config.json (and hf_quant_config.json) -> what the plan knows of it, or every problem of the file at once."""

from __future__ import annotations

import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _model_layers as block
from ansible_collections.firstlight.sglang.plugins.module_utils._model import Model, Part, Vision
from ansible_collections.firstlight.sglang.plugins.module_utils._model_architectures import (
    ARCHITECTURES,
    Architecture,
    Draft,
    generic,
)
from ansible_collections.firstlight.sglang.plugins.module_utils._model_fields import Fields, shown
from ansible_collections.firstlight.sglang.plugins.module_utils._model_layers import Weight, Weights
from ansible_collections.firstlight.sglang.plugins.module_utils._model_pieces import heads_of, layer_count
from ansible_collections.firstlight.sglang.plugins.module_utils._model_quant import Quantisation, read_quantisation

# SGLang 0.5.23 utils/hf_transformers/common.py: get_hf_text_config, CONTEXT_LENGTH_KEYS, get_context_length
TEXT_KEYS = ("thinker_config", "llm_config", "language_config", "text_config")
CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
CONTEXT_DEFAULT = 2048
VISION_LAYERS_DEFAULT = 24  # of the default fraction: SGLang 0.5.23 arg_groups/memory_hook.py, where vision_config has no num_hidden_layers
UNKNOWN = "{} has no reader: counted as the common architecture that its fields come nearest to, so every number is an estimate"
MOST_PARAMETERS = 10**14
DTYPES = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "half": "float16",
    "fp16": "float16",
    "float32": "float32",
    "float": "float32",
}


def context_length(f: Fields) -> int:
    """The longest context, as the engine derives it."""
    factor = 1.0
    # transformers 5 gives both names to one thing; it writes that of Gemma 3 apart for each kind of layer
    scaling = None if f.word("model_type").startswith("gemma3") else f.part("rope_scaling", "rope_parameters")
    if scaling and not scaling.has("original_max_position_embeddings") and scaling.word("rope_type") != "llama3":
        value = scaling.value("factor") or 1
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 10**6:
            scaling.problem("factor", "a number above 0", shown(value), "correct it")
        else:
            factor = float(value)
    return int(factor * f.whole(CONTEXT_KEYS, CONTEXT_DEFAULT))


def model_dtype(config: Fields, f: Fields) -> str:
    """The type of unquantised weights with --dtype auto: float32 becomes float16, for Gemma bfloat16 (_get_and_verify_dtype)."""
    fields = f if f.has("dtype", "torch_dtype") else config
    word = fields.word(("dtype", "torch_dtype"), "float32").replace("torch.", "")
    if word not in DTYPES:
        fields.problem("dtype", "bfloat16, float16 or float32", shown(word), "correct it")
    found = DTYPES.get(word, "bfloat16")
    if found != "float32":
        return found
    return "bfloat16" if f.word("model_type").startswith("gemma") else "float16"


def _text(config: Fields) -> Fields:
    for key in TEXT_KEYS:
        inner = config.part(key)
        if inner:
            return inner.part("text_config") or inner
    return config


def count(architecture: Architecture, config: Fields, f: Fields) -> Weights:
    """Every weight of a model but its draft's."""
    hidden, vocabulary = f.whole("hidden_size"), f.whole("vocab_size")
    weights = [Weight(architecture.prefix + architecture.embedding, vocabulary, hidden, "embedding", "tp")]
    for number in range(architecture.layers(f) if architecture.layers else layer_count(f)):
        layer = f"{architecture.prefix}layers.{number}"
        weights += architecture.mixer(f, layer, number) + architecture.feed(f, layer, number)
        weights += block.vector(layer + ".norms", architecture.norms * hidden)
    weights += block.vector(architecture.prefix + "norm", hidden, part="other")
    weights += architecture.more(f) if architecture.more else []
    if not tied(architecture, config, f):
        weights.append(Weight(architecture.head, vocabulary, hidden, "lm_head", "tp", "head"))
    vision = _vision_fields(architecture, config)
    if architecture.vision and vision:
        weights += architecture.vision(vision, f)
    return weights


def _vision_fields(architecture: Architecture, config: Fields) -> Fields | None:
    return config.part("vision_config") or (Fields({}, config.problems, "vision_config.") if architecture.vision_always else None)


def rotary_tables(f: Fields) -> list[Weight]:
    """Angles of every position, float32, on every rank, in no checkpoint (SGLang 0.5.23 layers/rotary_embedding/base.py).

    Where layers with a window have angles of their own there are two tables, each as wide as its heads (models/gemma3_causal.py,
    models/gemma4_causal.py:417).
    """
    positions, head_dim = f.whole(CONTEXT_KEYS, CONTEXT_DEFAULT), heads_of(f)[2]
    angles = f.part("rope_parameters") or f
    if angles.value("sliding_attention") or f.value("rope_local_base_freq"):
        widths = [head_dim, f.whole("global_head_dim", head_dim, low=0) or head_dim]
    else:
        factor = angles.value("partial_rotary_factor") or f.value("partial_rotary_factor") or 1
        share = float(factor) if isinstance(factor, (int, float)) and not isinstance(factor, bool) and 0 < factor <= 1 else 1.0
        widths = [f.whole("qk_rope_head_dim", 0, low=0) or f.whole("rotary_dim", 0, low=0) or int(head_dim * share)]
    return [Weight("rotary", positions, width, "rotary.copy") for width in widths]


def tied(architecture: Architecture, config: Fields, f: Fields) -> bool:
    """Whether embedding and head are one tensor."""
    default = config.flag("tie_word_embeddings", architecture.tied)
    return f.flag("tie_word_embeddings", default)


def draft_parts(draft: Draft, architecture: Architecture, config: Fields, f: Fields) -> Weights:
    """The draft's own weights, and its copies of embedding and head: ".copy" marks one that the checkpoint has only once."""
    if not draft.copies:
        return draft.weights
    copy = "" if draft.stored else ".copy"
    hidden, vocabulary = f.whole("hidden_size"), f.whole("vocab_size")
    weights = [Weight("draft.embed_tokens", vocabulary, hidden, "draft.embedding" + copy, "tp")]
    if not tied(architecture, config, f):
        weights.append(Weight("draft." + architecture.head, vocabulary, hidden, "draft.lm_head" + copy, "tp"))
    return draft.weights + weights


def parts(weights: Weights, quantisation: Quantisation, bits: int) -> t.Tuple[Part, ...]:  # noqa: UP006
    """Weights that are stored and split alike, added up."""
    sums: t.Dict[t.Tuple[str, str, int], t.List[float]] = {}  # noqa: UP006
    for weight in weights:
        form = quantisation.format(weight)
        base, copy, rest = weight.part.partition(".copy")
        name = f"{base}.{form.name}{copy}{rest}" if form else weight.part
        total = sums.setdefault((name, weight.shard, weight.kv_heads), [0, 0.0])
        total[0] += weight.elements
        total[1] += form.size(weight) if form else weight.elements * (32 if weight.part == "rotary.copy" else bits)
    return tuple(
        Part(name, int(elements), size / elements, shard, kv_heads)
        for (name, shard, kv_heads), (elements, size) in sums.items()
        if elements
    )


def read(
    config: t.Any,
    quant_config: t.Any = None,
    quantize: str | None = None,
) -> t.Tuple[Model | None, t.List[str]]:  # noqa: UP006
    """The model a configuration describes, or its problems, all of them.

    quantize: what --quantization asks for; it matters where the checkpoint itself is not quantised.
    """
    if not isinstance(config, dict):
        return None, [f"config.json: expected an object, found {shown(config)}; take the config.json that was published with the model"]
    if quant_config is not None and not isinstance(quant_config, dict):
        return None, [
            f"hf_quant_config.json: expected an object, found {shown(quant_config)}; take the file that was published with the model"
        ]
    problems: t.Dict[str, str] = {}  # noqa: UP006
    fields = Fields(config, problems)
    f = _text(fields)
    names = fields.items("architectures", (str,)) or []
    name = names[0] if names else ""
    if not name:
        fields.problem("architectures", "a list with the name of an architecture", shown(config.get("architectures")), "name it")
    known = name in ARCHITECTURES
    architecture = ARCHITECTURES[name] if known else generic(name, f)
    f.defaults = architecture.defaults
    attentions, state = architecture.memory(f)
    weights = count(architecture, fields, f)
    draft = architecture.draft(architecture, f) if architecture.draft else None
    if draft:
        weights = weights + draft_parts(draft, architecture, fields, f)
    if architecture.rotary:
        weights += rotary_tables(f)
    dtype = model_dtype(fields, f)
    quantisation = read_quantisation(fields, f, quant_config, quantize)
    vision = _vision_fields(architecture, fields)
    expert = next((weight for weight in weights if weight.part == "experts" and weight.name.endswith("up_proj")), None)
    total = sum(weight.elements for weight in weights)
    if total > MOST_PARAMETERS:
        fields.problem("config.json", f"a model of at most {MOST_PARAMETERS:.0e} parameters", f"{total:.3e}", "correct the sizes in it")
    model = Model(
        architecture=name,
        known=known,
        context_length=context_length(f),
        dtype=dtype,
        num_layers=architecture.layers(f) if architecture.layers else layer_count(f),
        hidden_size=f.whole("hidden_size"),
        vocab_size=f.whole("vocab_size"),
        num_attention_heads=f.whole("num_attention_heads", high=65536),
        attentions=attentions,
        state=state,
        parts=parts(weights, quantisation, 16),
        experts=f.whole(architecture.experts, 0, low=0, high=65536) if architecture.experts else 0,
        expert_hidden=expert.columns if expert else 0,
        expert_intermediate=expert.rows if expert else 0,
        draft_layers=draft.layers if draft else 0,
        draft_key=draft.key if draft else None,
        draft_attention=draft.attention if draft else None,
        vision=_vision(vision, architecture) if vision else None,
        multimodal=architecture.vision is not None or vision is not None,
        quantization=quantisation.method,
        kv_cache_dtype=quantisation.kv_cache,
        notes=(() if known else (UNKNOWN.format(name),)) + tuple(quantisation.notes),
    )
    return (None, list(problems.values())) if problems else (model, [])


def _vision(vision: Fields, architecture: Architecture) -> Vision:
    hidden = vision.whole(("hidden_size", architecture.vision_hidden, "width"), 1024)
    heads = vision.whole(("num_heads", "num_attention_heads", "vt_num_attention_heads"), 0)
    return Vision(vision.whole(("num_hidden_layers", "vt_num_hidden_layers"), VISION_LAYERS_DEFAULT, high=4096), hidden, heads or None)
