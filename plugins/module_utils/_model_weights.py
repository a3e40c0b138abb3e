# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""How much memory a model's weights take on each GPU, and on disk; from its configuration, or from its safetensors files' own headers.

How the engine splits: _model.Part.shard; layers over pipeline stages: SGLang 0.5.23 distributed/utils.py (get_pp_indices); rows of an
embedding: layers/vocab_parallel_embedding.py. Header of a file: safetensors' format (8 bytes of length, then JSON).
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import struct
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils._model import Model, Part
from ansible_collections.firstlight.sglang.plugins.module_utils._model_fields import is_whole, shown

GIB = 2**30
VOCABULARY_STEP = 64
# Rows of an MXFP4 expert's share and columns of its input are padded to multiples, by the kernels that run it (SGLang 0.5.23
# layers/quantization/mxfp4.py, layers/moe/fused_moe_triton/layer.py; which one: arg_groups/model_overrides/gpt_oss.py): triton_kernel,
# the default below compute capability 10; flashinfer_mxfp4, the default from there on; marlin, when it is asked for.
MXFP4_STEPS = {"triton_kernel": (64, 1), "flashinfer_mxfp4": (128, 256), "marlin": (128, 256)}
# What the formats of safetensors take per number, in bits
DTYPE_BITS = {
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "F32": 32,
    "I32": 32,
    "U32": 32,
    "F16": 16,
    "BF16": 16,
    "I16": 16,
    "U16": 16,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
}
DTYPE_BITS.update(
    {"F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I8": 8, "U8": 8, "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64}
)
VISION = re.compile(r"(?:^|\.)(?:visual|vision_tower|vision_model|embed_vision)\.")
# In this order: which of a model's parts a tensor belongs to, by its name in the checkpoint
KINDS = (
    ("vision", VISION),
    ("draft", re.compile(r"(?:^|\.)mtp\.")),
    ("experts", re.compile(r"(?:^|\.)experts\.")),
    ("layers", re.compile(r"(?:^|\.)layers\.\d")),
    ("lm_head", re.compile(r"(?:^|\.)(?:lm_head|head)\.")),
    ("embedding", re.compile(r"(?:^|\.)(?:embed_tokens|embeddings|embed|word_embeddings|wte)\.")),
)
MOST_HEADER_BYTES = 100 * 10**6  # the format's own limit


class Tensor(t.NamedTuple):
    """One tensor of a file: its format and shape."""

    dtype: str
    shape: t.Tuple[int, ...]  # noqa: UP006

    @property
    def elements(self) -> int:
        """Numbers in it; a packed 4-bit format stores two in each U8."""
        product = 1
        for size in self.shape:
            product *= size
        return product

    @property
    def bytes(self) -> float:
        """Bytes in the file."""
        return self.elements * DTYPE_BITS[self.dtype] / 8


class Stage(t.NamedTuple):
    """Weights on each GPU of one pipeline stage, GiB. draft_copies: embedding and head of the draft, given back after the pools are sized
    (of draft). rotary: the table of angles, which the engine's log counts as weights too, and which is in neither of the others."""

    weights: float
    draft: float
    draft_copies: float
    rotary: float


def is_copy(part: Part) -> bool:
    """Whether a part is only in memory, not in the checkpoint."""
    return ".copy" in part.name


def disk_bytes(model: Model) -> float:
    """Bytes of the checkpoint's tensors."""
    return sum(part.elements * part.bits for part in model.parts if not is_copy(part)) / 8


def parameters(model: Model) -> int:
    """Numbers of the model, those of its draft apart."""
    return sum(part.elements for part in model.parts if not is_copy(part) and kind(part) != "draft")


def kind(part: Part) -> str:
    """embedding | lm_head | layers | experts | vision | draft | other | rotary."""
    return part.name.split(".", maxsplit=1)[0]


def align(number: float, step: int) -> int:
    """The next multiple of step."""
    return math.ceil(number / step) * step


def padded_rows(vocabulary: int, ranks: int) -> int:
    """Rows of an embedding with what makes them divisible."""
    step = VOCABULARY_STEP
    if -(-vocabulary // step) * step % ranks:
        step *= ranks
    return -(-vocabulary // step) * step


def padding(model: Model, ranks: int, steps: t.Tuple[int, int]) -> float:  # noqa: UP006
    """How much larger experts become when each rank's rows, and the columns, are padded to multiples of steps."""
    rows, columns = model.expert_intermediate / ranks, model.expert_hidden
    return align(rows, steps[0]) / rows * align(columns, steps[1]) / columns


def hopper_growth(model: Model, ranks: int) -> float:
    """How much larger MXFP4 experts become in Triton's layout for Hopper.

    Both sides of the numbers (two a byte) in steps of 64; the scales once as loaded and once more in steps of 256 rows
    (triton_kernels tensor_details/layout_details/hopper_value.py, hopper_scale.py; SGLang 0.5.23 layers/quantization/mxfp4.py:1046).
    """
    rows, columns = model.expert_intermediate / ranks, model.expert_hidden

    def matrix(height: float, width: float) -> float:
        height, scales = align(height, 64), math.ceil(width / 32)
        return height * align(width / 2, 64) + height * scales + align(height, 256) * align(scales, 2)

    return (matrix(2 * rows, columns) + matrix(columns, rows)) / (3 * rows * columns * (0.5 + 1 / 32))


def stage_layers(layers: int, stages: int, stage: int) -> int:
    """Layers of one pipeline stage; the last stages have one more where it does not come out even."""
    return layers // stages + (1 if stage >= stages - layers % stages else 0)


def per_gpu(
    model: Model,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    attention_tp: int | None = None,
    redundant_experts: int = 0,
    whole_vision: bool = False,
    moe_runner_backend: str = "triton_kernel",
    lays_out_mxfp4: bool = False,
) -> t.Tuple[Stage, ...]:  # noqa: UP006
    """Weights on each GPU, by pipeline stage.

    tp: ranks of a stage. ep: of these, ranks that whole experts are dealt to; tp / ep ranks share each expert. attention_tp: ranks that
    attention, embedding and head are split over (tp / data parallel ranks of attention). redundant_experts: copies that the engine adds.
    whole_vision: every rank has the whole vision tower (--mm-enable-dp-encoder). moe_runner_backend: what runs
    the experts, as the release resolves it; it matters for MXFP4. lays_out_mxfp4: for Hopper, by Triton's kernels.
    """
    stages = []
    for stage in range(pp):
        share = stage_layers(model.num_layers, pp, stage) / model.num_layers
        sums = {"weights": 0.0, "draft": 0.0, "copies": 0.0, "rotary": 0.0}
        for part in model.parts:
            size = _rank_bytes(model, part, tp, ep, attention_tp or tp, redundant_experts, whole_vision)
            size *= _share(part, model, pp, stage, share)
            if part.name == "experts.mxfp4":
                sharing = max(tp // ep, 1)
                steps = MXFP4_STEPS.get(moe_runner_backend, (1, 1))
                size *= hopper_growth(model, sharing) if lays_out_mxfp4 else padding(model, sharing, steps)
            name = kind(part)
            sums[name if name in ("draft", "rotary") else "weights"] += size
            if part.name.startswith(("draft.embedding", "draft.lm_head")):
                sums["copies"] += size
        stages.append(Stage(sums["weights"] / GIB, sums["draft"] / GIB, sums["copies"] / GIB, sums["rotary"] / GIB))
    return tuple(stages)


def _share(part: Part, model: Model, stages: int, stage: int, layers: float) -> float:
    """How much of a part one stage has."""
    name = kind(part)
    if name in ("layers", "experts"):
        return layers
    if name == "embedding":
        tied = not any(kind(each) == "lm_head" for each in model.parts)
        return 1.0 if stage == 0 or (tied and stage == stages - 1) else 0.0
    if name in ("lm_head", "draft"):
        return 1.0 if stage == stages - 1 else 0.0
    return 1.0


def _rank_bytes(model: Model, part: Part, tp: int, ep: int, attention_tp: int, redundant: int, whole_vision: bool) -> float:
    """Bytes of a part on one rank of a stage that has all of it."""
    total = part.elements * part.bits / 8
    name = kind(part)
    if part.shard == "expert":
        count = max(model.experts, 1)
        held = -(-(count + redundant) // ep)
        return total * held / count / max(tp // ep, 1)
    if part.shard == "none" or (name == "vision" and whole_vision):
        return total
    ranks = tp if part.name.startswith(("layers.mlp", "draft.mlp")) else attention_tp
    if part.shard == "kv":
        return total / min(ranks, part.kv_heads)
    if name in ("embedding", "lm_head") or part.name.startswith(("draft.embedding", "draft.lm_head")):
        return total * padded_rows(model.vocab_size, ranks) / model.vocab_size / ranks
    return total / ranks


# The files themselves


def header_length(start: bytes) -> t.Tuple[int, str]:  # noqa: UP006
    """Bytes of the header behind the first 8 of a file, and a problem, empty when there is none."""
    if len(start) < 8:
        return 0, f"expected at least 8 bytes, found {len(start)}; stage the file again"
    length = struct.unpack("<Q", start[:8])[0]
    if not 2 <= length <= MOST_HEADER_BYTES:
        return (
            0,
            f"expected a header of 2 to {MOST_HEADER_BYTES} bytes, found {length}; if it is a Git LFS pointer, stage the file again",
        )
    return int(length), ""


def read_header(name: str, data: bytes) -> t.Tuple[t.Dict[str, Tensor], t.List[str]]:  # noqa: UP006
    """Tensors that the start of a safetensors file names (its first 8 bytes and its header), and problems."""
    length, problem = header_length(data)
    if problem:
        return {}, [f"{name}: {problem}"]
    if len(data) < 8 + length:
        return {}, [f"{name}: expected a header of {length} bytes, found {len(data) - 8}; stage the file again"]
    try:
        header = json.loads(data[8 : 8 + length].decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return {}, [f"{name}: expected JSON as its header, found {shown(str(error))}; stage the file again"]
    if not isinstance(header, dict):
        return {}, [f"{name}: expected an object as its header, found {shown(header)}; stage the file again"]
    tensors: t.Dict[str, Tensor] = {}  # noqa: UP006
    problems = []
    for key, value in header.items():
        if key == "__metadata__":
            continue
        dtype = value.get("dtype") if isinstance(value, dict) else None
        shape = value.get("shape") if isinstance(value, dict) else None
        if not isinstance(dtype, str) or not isinstance(shape, list) or not all(is_whole(size) and 0 <= size <= 10**12 for size in shape):
            problems.append(f"{name}: {shown(key)}: expected dtype and shape, found {shown(value)}; stage the file again")
        elif dtype not in DTYPE_BITS:
            problems.append(f"{name}: {shown(key)}: expected a known dtype, found {shown(dtype)}; report this format")
        else:
            tensors[key] = Tensor(dtype, tuple(int(size) for size in shape))
    return tensors, problems


def read_index(index: t.Any) -> t.Tuple[int | None, t.List[str], t.List[str]]:  # noqa: UP006
    """Of a model.safetensors.index.json: the bytes of all tensors (None where it does not say), their names, and problems."""
    name = "model.safetensors.index.json"
    if not isinstance(index, dict):
        return None, [], [f"{name}: expected an object, found {shown(index)}; stage the file again"]
    problems = []
    names = index.get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        problems.append(f"{name}: weight_map: expected an object of file names, found {shown(names)}; stage the file again")
        names = {}
    metadata = index.get("metadata") if index.get("metadata") is not None else {}
    total = metadata.get("total_size") if isinstance(metadata, dict) else metadata
    if total is not None and (not is_whole(total) or total <= 0):
        problems.append(f"{name}: metadata.total_size: expected a whole number above 0, found {shown(total)}; stage the file again")
        total = None
    return (int(total) if total is not None else None), list(names), problems


def tensor_kind(name: str, layers: int) -> str:
    """Which of a model's parts a tensor belongs to, by its name."""
    number = re.search(r"(?:^|\.)layers\.(\d{1,6})\.", name)
    if number and int(number[1]) >= layers and not VISION.search(name):
        return "draft"
    return next((group for group, pattern in KINDS if pattern.search(name)), "other")


def with_tensors(model: Model, tensors: t.Mapping[str, Tensor]) -> t.Tuple[Model, t.List[str]]:  # noqa: UP006
    """The model with the sizes that its files' headers tell, kind by kind, and what is worth telling.

    How each kind is split over ranks stays as the configuration says. An unquantised float32 tensor is counted in the model's own type,
    which it is loaded in.
    """
    sums: t.Dict[str, float] = {}  # noqa: UP006
    for name, tensor in tensors.items():
        size = tensor.bytes / (2 if tensor.dtype == "F32" and name.endswith((".weight", ".bias")) else 1)
        group = tensor_kind(name, model.num_layers)
        sums[group] = sums.get(group, 0.0) + size
    return _scaled(model, sums)


def with_index(model: Model, total_size: int, names: t.Sequence[str]) -> t.Tuple[Model, t.List[str]]:  # noqa: UP006
    """The model with the size of all tensors that its index tells; kinds that no name belongs to are left out."""
    groups = {tensor_kind(name, model.num_layers) for name in names}
    if not groups:
        groups = {kind(part) for part in model.parts}
    sums: t.Dict[str, float] = {}  # noqa: UP006
    for part in model.parts:
        if not is_copy(part) and kind(part) in groups | {"other"}:
            sums[kind(part)] = sums.get(kind(part), 0.0) + part.elements * part.bits / 8
    factor = total_size / sum(sums.values()) if sum(sums.values()) else 1.0
    return _scaled(model, {group: size * factor for group, size in sums.items()})


def _scaled(model: Model, sums: t.Mapping[str, float]) -> t.Tuple[Model, t.List[str]]:  # noqa: UP006
    counted: t.Dict[str, float] = {}  # noqa: UP006
    for part in model.parts:
        if not is_copy(part):
            counted[kind(part)] = counted.get(kind(part), 0.0) + part.elements * part.bits / 8
    notes = []
    parts: t.List[Part] = []  # noqa: UP006
    for part in model.parts:
        group = kind(part)
        if group == "draft" and not sums.get("draft"):
            continue
        if is_copy(part) or not counted.get(group):
            parts.append(part)
        elif sums.get(group):
            parts.append(dataclasses.replace(part, bits=part.bits * sums[group] / counted[group]))
    for group in sorted(set(sums) - set(counted)):
        if sums[group] > 0:
            parts.append(Part(group, max(int(sums[group] * 8 / 16), 1), 16.0, "none" if group in ("vision", "other") else "tp"))
    for group, size in sorted(counted.items()):
        real = sums.get(group, 0.0)
        if not real and group == "draft":
            notes.append(
                "the files have no tensors of the layers for speculation that config.json names: speculation with them cannot work"
            )
        elif model.known and size and abs(real - size) > 0.02 * size:
            notes.append(f"{group}: expected {size / GIB:.2f} GiB by config.json, found {real / GIB:.2f} GiB in the files; the files count")
    changes: t.Dict[str, t.Any] = {}  # noqa: UP006
    if model.draft_layers and not sums.get("draft"):
        changes = {"draft_layers": 0, "draft_key": None, "draft_attention": None}
    return dataclasses.replace(model, parts=tuple(parts), **changes), notes
