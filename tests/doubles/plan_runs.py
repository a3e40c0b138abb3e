"""Models of real starts: shapes of the engine's own starts, and what published records say of theirs."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from ansible_collections.firstlight.sglang.plugins.module_utils import _model, _model_config

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "plan"

DENSE = _model.Model(
    architecture="Qwen3ForCausalLM",
    known=True,
    context_length=40960,
    dtype="bfloat16",
    num_layers=36,
    hidden_size=4096,
    vocab_size=151936,
    num_attention_heads=32,
    attentions=(_model.Attention("full", 36, 8, 128, 128),),
    state=None,
    parts=(),
)
HYBRID = dataclasses.replace(
    DENSE,
    architecture="Qwen3_5ForConditionalGeneration",
    context_length=262144,
    num_layers=64,
    hidden_size=5120,
    num_attention_heads=24,
    attentions=(_model.Attention("full", 16, 4, 256, 256),),
    state=_model.State("gdn", 48, 10240, 3, 48, 128, 128, "float32"),
    draft_layers=1,
    draft_key="mtp_num_hidden_layers",
    vision=_model.Vision(24, 1152),
    multimodal=True,
)
MLA = dataclasses.replace(DENSE, architecture="DeepseekV3ForCausalLM", attentions=(_model.Attention("mla", 61, latent_dim=576),))
DSA = dataclasses.replace(
    MLA,
    architecture="GlmMoeDsaForCausalLM",
    attentions=(_model.Attention("mla", 78, latent_dim=576, index_dim=128, index_layers=78),),
)
MTP = {"speculative_algorithm": "NEXTN", "speculative_num_steps": 1, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 2}


def measured_models() -> dict[str, _model.Model]:
    """The models of measured.json, sized.json and compressed.json by their names there, from models.json."""
    configs = json.loads((FIXTURES / "models.json").read_text(encoding="utf-8"))
    models = {}
    for name, config in configs.items():
        model, problems = _model_config.read(config)
        if model is None:
            raise ValueError(f"{name}: {problems}")
        models[name] = model
    return models


def runs(name: str, key: str = "runs") -> list[dict[str, Any]]:
    """The records of measured.json, sized.json or public.json; key "refused": the starts of sized.json that ended before their pools."""
    found: list[dict[str, Any]] = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))[key]
    return found


def flags(words: list[str]) -> dict[str, Any]:
    """--tp-size 2 --disable-cuda-graph -> {tp_size: 2, disable_cuda_graph: True}"""
    args: dict[str, Any] = {}
    rest = list(words)
    while rest:
        name = rest.pop(0).lstrip("-").replace("-", "_")
        value: Any = True
        if rest and not rest[0].startswith("--"):
            value = rest.pop(0)
            value = json.loads(value) if re.fullmatch(r"-?[0-9.]+", value) else value
        args[name] = value
    return args


# Which release a run that does not say one is planned as; the date in its record decides. None: older than the plan's formulas.
ASSUMED = (
    (r"^0\.5\.\d+(\.post\d+)?$", None),
    (r"^(0\.5\.\d+(?:\.post\d+)?) \+", None),
    (r"\((0\.5\.\d+)(?: series)?\)", None),
    (r"main 2026-06", "0.5.13"),
    (r"2026-02/03", "0.5.9"),
    (r"2026-05-15", "0.5.12"),
    (r"ktransformers", "0.5.9"),
)


def release_of(text: str) -> str | None:
    """The release to plan a run as."""
    for pattern, release in ASSUMED:
        match = re.search(pattern, text)
        if match:
            return release or match.group(1 if match.lastindex else 0)
    return None


def model_of(run: dict[str, Any]) -> _model.Model | None:
    """What a run's record says of its model's layers; its weights are not in it."""
    shape = run["geometry"]
    kind = shape["kind"]
    attentions: tuple[_model.Attention, ...]
    state = None
    if kind == "swa":
        attentions = (
            _model.Attention("full", shape["full_layers"], shape["full_kv_heads"], shape["full_head_dim"], shape["full_head_dim"]),
            _model.Attention("sliding", shape["swa_layers"], shape["swa_kv_heads"], shape["swa_head_dim"], shape["swa_head_dim"], 1024),
        )
    elif kind == "dsv4":  # DeepSeek-V4-Flash: 43 layers and one of MTP; ratios from its config.json
        attentions = (_model.Attention("compressed", 44, latent_dim=512, index_dim=128, window=128, index_layers=21, coarse_layers=20),)
    elif kind.startswith("mla") and "layers" in shape:
        latent = shape["kv_lora_rank"] + shape["qk_rope_head_dim"]
        index = shape.get("index_head_dim", 0)
        attentions = (
            _model.Attention("mla", shape["layers"], latent_dim=latent, index_dim=index, index_layers=shape["layers"] if index else 0),
        )
    elif kind.startswith("gqa"):
        layers = shape.get("full_layers") or shape["layers"]
        attentions = (_model.Attention("full", layers, shape["kv_heads"], shape["head_dim"], shape["head_dim"]),)
    else:
        return None
    if kind == "gqa+gdn":
        size = shape["linear_head_dim"]
        channels = (2 * shape["linear_k_heads"] + shape["linear_v_heads"]) * size
        state = _model.State(
            "gdn", shape["linear_layers"], channels, shape["conv_kernel"] - 1, shape["linear_v_heads"], size, size, "float32"
        )
    elif kind == "gqa+mamba2":
        inner = shape["mamba_heads"] * shape["mamba_head_dim"]
        channels = inner + 2 * shape["mamba_groups"] * shape["mamba_state"]
        columns = shape["conv_kernel"] - 1
        state = _model.State(
            "mamba2",
            shape["mamba_layers"],
            channels,
            columns,
            shape["mamba_heads"],
            shape["mamba_head_dim"],
            shape["mamba_state"],
            "float32",
            shape["mamba_groups"],
        )
    elif kind not in ("gqa", "swa", "mla", "mla+dsa", "dsv4"):
        return None
    return _model.Model(
        architecture=run["arch"],
        known=True,
        context_length=run["logged"].get("context_len") or 131072,
        dtype="bfloat16",
        num_layers=43 if kind == "dsv4" else 0,
        hidden_size=4096,
        vocab_size=0,
        num_attention_heads=64,
        attentions=attentions,
        state=state,
        parts=(),
        draft_layers=shape.get("draft_layers", 0),
        draft_key="mtp_num_hidden_layers" if shape.get("draft_layers") else None,
        multimodal="ConditionalGeneration" in run["arch"],
    )


def published_model(run: dict[str, Any]) -> _model.Model | None:
    """The model of a published start where its configuration is known: models.json, by the name in its record."""
    configs = json.loads((FIXTURES / "models.json").read_text(encoding="utf-8"))
    config = configs.get(_PUBLISHED.get(run["model"], ""))
    return None if config is None else _model_config.read(config)[0]


# Qwen3.8-27B has Qwen3.6-27B's shapes: the record's weights and pools say so.
_PUBLISHED = {
    "Qwen/Qwen3.8-27B": "q27",
    "Qwen/Qwen2.5-1.5B-Instruct": "qwen2.5-1.5b",
    "Qwen/Qwen2.5-0.5B-Instruct": "qwen2.5-0.5b",
    "Qwen/Qwen3-32B": "qwen3-32b",
}
