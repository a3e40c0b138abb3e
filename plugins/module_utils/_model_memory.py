# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What the layers of an architecture remember: keys and values, latents, or a state.

What the engine keeps for each layer: SGLang 0.5.23 configs/model_config.py (latent attention, layers with a window: is_hybrid_swa_model,
get_hybrid_layer_ids), configs/mamba_utils.py, configs/qwen3_next.py, configs/nemotron_h.py, configs/kimi_linear.py.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils._model import Attention, State
from ansible_collections.firstlight.sglang.plugins.module_utils._model_fields import Fields
from ansible_collections.firstlight.sglang.plugins.module_utils._model_pieces import (
    entry,
    granite_mamba,
    heads_of,
    indexed,
    is_kda,
    is_linear,
    layer_count,
    listed,
    mimo_heads,
    nemotron_pattern,
    windowed,
)

Memory = t.Tuple[t.Tuple[Attention, ...], t.Optional[State]]  # noqa: UP006


def full(f: Fields) -> Memory:
    """Every layer keeps every token."""
    kv_heads, head_dim = heads_of(f)[1:]
    return (Attention("full", layer_count(f), kv_heads, head_dim, head_dim),), None


def state_dtype(f: Fields, *keys: str) -> str:
    """What the configuration asks for the state; float32 where it does not."""
    word = f.word(keys, "float32")
    if word not in ("float32", "bfloat16", "float16"):
        f.problem(keys[0], "float32, bfloat16 or float16", repr(word), "correct it")
    return word


def qwen_hybrid(f: Fields) -> Memory:
    """Some layers keep tokens, the others a state."""
    recurrent = sum(is_linear(f, number) for number in range(layer_count(f)))
    kv_heads, head_dim = heads_of(f)[1:]
    keys, values = f.whole("linear_num_key_heads", high=65536), f.whole("linear_num_value_heads", high=65536)
    key_dim, value_dim = f.whole("linear_key_head_dim", high=65536), f.whole("linear_value_head_dim", high=65536)
    columns = f.whole("linear_conv_kernel_dim", high=65536) - 1
    channels = 2 * keys * key_dim + values * value_dim
    state = State("gdn", recurrent, channels, columns, values, value_dim, key_dim, state_dtype(f, "mamba_ssm_dtype")) if recurrent else None
    kept = layer_count(f) - recurrent
    return ((Attention("full", kept, kv_heads, head_dim, head_dim),) if kept else ()), state


def split_by_window(
    heads: t.Callable[[Fields, int], tuple[int, int, int]], where: t.Callable[[Fields, int], bool] = windowed
) -> t.Callable[[Fields], Memory]:
    """Layers with a window keep that many tokens, the others all: a pool each."""

    def build(f: Fields) -> Memory:
        kinds: t.Dict[t.Tuple[bool, int, int], int] = {}  # noqa: UP006
        for number in range(layer_count(f)):
            sliding = where(f, number)
            key = (sliding, *heads(f, number)[1:])
            kinds[key] = kinds.get(key, 0) + 1
        window = f.whole(("sliding_window", "attention_chunk_size")) if any(key[0] for key in kinds) else None
        attentions = []
        for (sliding, kv_heads, head_dim), layers in sorted(kinds.items()):
            attentions.append(
                Attention("sliding" if sliding else "full", layers, kv_heads, head_dim, head_dim, window if sliding else None)
            )
        return tuple(attentions), None

    return build


def mimo_memory(f: Fields) -> Memory:
    """MiMo V2: two kinds of layers, keys and values of different sizes."""
    kinds: t.Dict[t.Tuple[bool, int, int, int], int] = {}  # noqa: UP006
    for number in range(layer_count(f)):
        key = (entry(f, "hybrid_layer_pattern", number) == 1, *mimo_heads(f, number)[1:])
        kinds[key] = kinds.get(key, 0) + 1
    window = f.whole(("sliding_window_size", "sliding_window")) if any(key[0] for key in kinds) else None
    attentions = []
    for (sliding, kv_heads, size, value), layers in sorted(kinds.items()):
        attentions.append(Attention("sliding" if sliding else "full", layers, kv_heads, size, value, window if sliding else None))
    return tuple(attentions), None


def latents(f: Fields) -> Memory:
    """Every layer keeps a latent, and keys of the indexer where it has one."""
    return (latent_attention(f, range(layer_count(f))),), None


def latent_attention(f: Fields, numbers: t.Iterable[int]) -> Attention:
    """What layers with latent attention keep."""
    layers = list(numbers)
    own = sum(indexed(f, number) for number in layers)
    size = f.whole("index_head_dim") if own else 0
    return Attention("mla", len(layers), latent_dim=f.whole("kv_lora_rank") + f.whole("qk_rope_head_dim"), index_dim=size, index_layers=own)


def kimi_k3_memory(f: Fields) -> Memory:
    """Latents, and states of delta nets (configs/kimi_linear.py)."""
    numbers = range(layer_count(f))
    kept = [number for number in numbers if not is_kda(f, number)]
    linear = f.part("linear_attn_config")
    if linear is None:
        return latents(f)
    heads, size = linear.whole("num_heads", high=65536), linear.whole("head_dim", high=65536)
    columns = linear.whole("short_conv_kernel_size", high=65536) - 1
    state = State("kda", len(numbers) - len(kept), 3 * heads * size, columns, heads, size, size, "float32")
    return ((latent_attention(f, kept),) if kept else ()), state if state.layers else None


def nemotron_memory(f: Fields) -> Memory:
    """States of the mamba layers; SGLang does not read mamba_ssm_cache_dtype (configs/mamba_utils.py)."""
    pattern = nemotron_pattern(f)
    kv_heads, head_dim = heads_of(f)[1:]
    kept, recurrent = pattern.count("*"), pattern.count("M")
    attentions = (Attention("full", kept, kv_heads, head_dim, head_dim),) if kept else ()
    if not recurrent:
        return attentions, None
    heads, size = f.whole("mamba_num_heads", high=65536), f.whole("mamba_head_dim", high=65536)
    groups, state = f.whole(("n_groups", "mamba_n_groups"), 8, high=65536), f.whole("ssm_state_size", high=65536)
    columns = f.whole(("conv_kernel", "mamba_d_conv"), 4, high=65536) - 1
    channels = heads * size + 2 * groups * state
    return attentions, State("mamba2", recurrent, channels, columns, heads, size, state, state_dtype(f, "mamba_ssm_dtype"), groups)


def granite_memory(f: Fields) -> Memory:
    """Tokens of the attention layers, states of the others."""
    numbers = range(layer_count(f))
    recurrent = sum(listed(f, "layer_types", number, (str,)) == "mamba" for number in numbers)
    kv_heads, head_dim = heads_of(f)[1:]
    kept = len(numbers) - recurrent
    attentions = (Attention("full", kept, kv_heads, head_dim, head_dim),) if kept else ()
    if not recurrent:
        return attentions, None
    heads, size, groups = granite_mamba(f)
    state = f.whole("mamba_d_state", high=65536)
    columns = f.whole("mamba_d_conv", 4, high=65536) - 1
    channels = heads * size + 2 * groups * state
    return attentions, State("mamba2", recurrent, channels, columns, heads, size, state, state_dtype(f, "mamba_ssm_dtype"), groups)


def v4_memory(f: Fields) -> Memory:
    """DeepSeek V4: every layer keeps a window; some keep what compresses 4 tokens, with keys of an indexer, others what compresses 128."""
    layers = layer_count(f)
    ratios = [entry(f, "compress_ratios", number) for number in range(layers)]
    fine, coarse = ratios.count(4), ratios.count(128)
    if fine + coarse + ratios.count(0) != layers:
        f.problem(
            "compress_ratios", "a list of 0, 4 and 128", str(sorted(set(ratios)))[:60], "plan with measured numbers, or report the model"
        )
    listed_too = f.items("compress_ratios", (int,)) or []  # one more for the layer of speculation, which the engine counts as well
    kept = v4_kept(f, max(layers, min(len(listed_too), layers + 64)))
    return (dataclasses.replace(kept, index_dim=f.whole("index_head_dim") if fine else 0, index_layers=fine, coarse_layers=coarse),), None


def v4_kept(f: Fields, layers: int) -> Attention:
    """The window that layers of DeepSeek V4 keep."""
    return Attention("compressed", layers, window=f.whole("sliding_window"), latent_dim=f.whole("head_dim", high=65536))


def any_heads(f: Fields, _number: int) -> t.Tuple[int, int, int]:  # noqa: UP006
    """The same heads in every layer."""
    return heads_of(f)


def chunked(_f: Fields, number: int) -> bool:
    """Llama 4: all but every fourth layer (configs/model_config.py, get_hybrid_layer_ids)."""
    return (number + 1) % 4 != 0
