# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""The generation table: what a GPU's compute capability or PCI device id says about drivers, data types and the engine's choices.

Data and its lookups. What is not in the tables is unknown (None): a marketing name decides nothing.

Sources, by the short names used below:
  README-615   README.md of NVIDIA/open-gpu-kernel-modules, driver 615.71.09: the GPUs that the open modules take, by PCI device id
  README-575   the same of driver 575.57.08: it has B200, GB200 and the RTX 50 series, and neither B300, GB300 nor GB10
  CHANGES      CHANGELOG.md there: 520.61.05 brought H100, 520.56.06 the RTX 4090
  SELF-HOSTED  kernel-open/nvidia/detect-self-hosted.h there: 0x2340-0x237f is Hopper beside a Grace CPU, 0x2940-0x297f Blackwell
  APPENDIX     NVIDIA Linux driver README 550.163.01, appendix A: supported ids (1340 and higher), older ids by legacy branch
  FLAVOURS     the same README, chapter "Open Linux Kernel Modules": open from Turing on, proprietary for all; README 580.65.06 adds:
               Blackwell and later open only. NVIDIA developer blog of 2024-07-17 on the open modules: Grace Hopper open only
  SCHEDULE     NVIDIA's "Unix graphics feature deprecation schedule": 580 is the last branch for Maxwell, Pascal and Volta
  OPERATOR     release notes of NVIDIA GPU Operator 25.3: GB200 and HGX B200, with driver 570
  THOR         NVIDIA developer blog "What's New in CUDA Toolkit 13.0 for Jetson Thor": CUDA 13.0, which is driver 580
  ORIN         Jetson Linux r36: its modules are the open ones of nvidia-oot (GPL-2.0 and MIT)
  CUDA-GPUS    developer.nvidia.com/cuda-gpus and /cuda-legacy-gpus: compute capability by product
  PCI-IDS      pci.ids 2026.10.24: which chip an id is
  SGLANG       SGLang's own source, releases as named (paths under sglang/srt)
NVIDIA's driver installation guide for branch 610 still names both flavours, the one for branch 620 only the open one.
"""

from __future__ import annotations

import re
import typing as t


class Generation(t.NamedTuple):
    """What is known of a GPU's generation.

    architecture: as nvidia-smi prints product_architecture.
    compute_capability: "8.6"; None where no source gives it for the chip.
    kernel_module_flavours: those that drive every GPU that this entry stands for.
    driver_branch_first: no older branch drives it; None where no source says so.
    driver_branch_last: the last branch that drives it; None while support has not ended.
    data_types: those that the hardware computes with and that SGLang 0.5.8 to 0.5.23 uses there. Empty: the engine refuses the GPU.
        A checkpoint in a type that is missing may still load: older GPUs unpack FP8 and FP4 weights to a wider type (Marlin).
    """

    architecture: str
    compute_capability: str | None
    kernel_module_flavours: tuple[str, ...]
    driver_branch_first: int | None
    driver_branch_last: int | None
    data_types: tuple[str, ...]


# Flavours: FLAVOURS. Last branch: APPENDIX (Kepler), SCHEDULE. First branch: CHANGES (520), OPERATOR (570), README-575 and THOR (580).
# Architecture names: nvidia-smi -q.
# Data types: SGLANG 0.5.23, layers/quantization/fp8_utils.py (FP8 from 8.9 on) and modelopt_quant.py (FP4 on 10, 11 and 12);
# model_executor/model_runner_components/load_model_utils.py (below 7.5 refused, below 8.0 no bf16), up to 0.5.15 in
# model_executor/model_runner.py.
_OPEN = ("open",)
_PROPRIETARY = ("proprietary",)
_BOTH = ("open", "proprietary")
_FP8 = ("bf16", "fp16", "fp8")
_FP4 = (*_FP8, "fp4")

_KEPLER = Generation("Kepler", None, _PROPRIETARY, None, 470, ())
_MAXWELL = Generation("Maxwell", None, _PROPRIETARY, None, 580, ())
_PASCAL = Generation("Pascal", None, _PROPRIETARY, None, 580, ())
_VOLTA = Generation("Volta", None, _PROPRIETARY, None, 580, ())
_TURING = Generation("Turing", None, _BOTH, None, None, ("fp16",))
_AMPERE = Generation("Ampere", None, _BOTH, None, None, ("bf16", "fp16"))
_ADA = Generation("Ada Lovelace", None, _BOTH, 520, None, _FP8)
# 9.0 alone does not tell H100 from Grace Hopper, which takes the open flavour only: so the open one, which drives both.
_HOPPER = Generation("Hopper", None, _OPEN, 520, None, _FP8)
_BLACKWELL = Generation("Blackwell", None, _OPEN, 570, None, _FP4)

# Compute capability -> generation: CUDA-GPUS. Left out: Jetson before Orin (3.2, 5.3, 6.2, 7.2).
# 8.7 (Jetson Orin, ORIN) and 11.0 (Jetson Thor): the driver comes with JetPack, no driver package is for them.
BY_COMPUTE_CAPABILITY: dict[str, Generation] = {
    capability: generation._replace(compute_capability=capability)
    for capability, generation in {
        "3.0": _KEPLER,
        "3.5": _KEPLER,
        "3.7": _KEPLER,
        "5.0": _MAXWELL,
        "5.2": _MAXWELL,
        "6.0": _PASCAL,
        "6.1": _PASCAL,
        "7.0": _VOLTA,
        "7.5": _TURING,
        "8.0": _AMPERE,
        "8.6": _AMPERE,
        "8.7": _AMPERE._replace(kernel_module_flavours=_OPEN),
        "8.9": _ADA,
        "9.0": _HOPPER,
        "10.0": _BLACKWELL,
        "10.3": _BLACKWELL._replace(driver_branch_first=580),
        "11.0": _BLACKWELL._replace(driver_branch_first=580),
        "12.0": _BLACKWELL,
        "12.1": _BLACKWELL._replace(driver_branch_first=580),
    }.items()
}
_CC = BY_COMPUTE_CAPABILITY

# PCI device ids of vendor 10de, first and last of a block, by chip. NVIDIA gives ids out in blocks of 64 or 128 to one chip: within each
# block, PCI-IDS knows GPUs of this chip only (and four engineering samples of GM107 that it names GM204 as well), and no audio, USB or
# bridge function. Every id from Kepler to Ada Lovelace of APPENDIX, and every id of README-615, is in a block or in DEVICES.
# Between the blocks lie Fermi (1040-1251), audio and USB functions (10e0-10ff, 1ad0-1aff, 2280-22ff) and NVSwitches (1af1, 22a3).
CHIPS: tuple[tuple[int, int, str, Generation], ...] = (
    (0x0FC0, 0x0FFF, "GK107", _CC["3.0"]),
    (0x1000, 0x103F, "GK110", _CC["3.5"]),
    (0x1180, 0x11BF, "GK104", _CC["3.0"]),
    (0x11C0, 0x11FF, "GK106", _CC["3.0"]),
    (0x1280, 0x12BF, "GK208", _CC["3.5"]),
    (0x1340, 0x137F, "GM108", _CC["5.0"]),
    (0x1380, 0x13BF, "GM107", _CC["5.0"]),
    (0x13C0, 0x13FF, "GM204", _CC["5.2"]),
    (0x1400, 0x143F, "GM206", _CC["5.2"]),
    (0x15F0, 0x15FF, "GP100", _CC["6.0"]),
    (0x1600, 0x167F, "GM204", _CC["5.2"]),
    (0x17C0, 0x17FF, "GM200", _CC["5.2"]),
    (0x1B00, 0x1B7F, "GP102", _CC["6.1"]),
    (0x1B80, 0x1BFF, "GP104", _CC["6.1"]),
    (0x1C00, 0x1C7F, "GP106", _CC["6.1"]),
    (0x1C80, 0x1CFF, "GP107", _CC["6.1"]),
    (0x1D00, 0x1D7F, "GP108", _CC["6.1"]),
    (0x1D80, 0x1DFF, "GV100", _CC["7.0"]),
    (0x1E00, 0x1E7F, "TU102", _CC["7.5"]),
    (0x1E80, 0x1EFF, "TU104", _CC["7.5"]),
    (0x1F00, 0x1F7F, "TU106", _CC["7.5"]),
    (0x1F80, 0x1FFF, "TU117", _CC["7.5"]),
    (0x2080, 0x20FF, "GA100", _CC["8.0"]),
    (0x2180, 0x21FF, "TU116", _CC["7.5"]),
    (0x2200, 0x223F, "GA102", _CC["8.6"]),
    (0x2300, 0x233F, "GH100", _CC["9.0"]._replace(kernel_module_flavours=_BOTH)),
    (0x2340, 0x237F, "GH100", _CC["9.0"]),  # SELF-HOSTED: Grace Hopper
    (0x2400, 0x247F, "GA103", _CC["8.6"]),
    (0x2480, 0x24FF, "GA104", _CC["8.6"]),
    (0x2500, 0x257F, "GA106", _CC["8.6"]),
    (0x2580, 0x25FF, "GA107", _CC["8.6"]),
    (0x2680, 0x26FF, "AD102", _CC["8.9"]),
    (0x2700, 0x277F, "AD103", _CC["8.9"]),
    (0x2780, 0x27FF, "AD104", _CC["8.9"]),
    (0x2800, 0x287F, "AD106", _CC["8.9"]),
    (0x2880, 0x28FF, "AD107", _CC["8.9"]),
    (0x2900, 0x297F, "GB100", _CC["10.0"]),
    (0x2980, 0x29FF, "GB102", _BLACKWELL),  # README-615 lists one of them; CUDA-GPUS none
    (0x2B80, 0x2BFF, "GB202", _CC["12.0"]),
    (0x2C00, 0x2C7F, "GB203", _CC["12.0"]),
    (0x2D00, 0x2D7F, "GB206", _CC["12.0"]),
    (0x2D80, 0x2DFF, "GB207", _CC["12.0"]),
    (0x2E00, 0x2E3F, "GB20B", _CC["12.1"]),
    (0x2F00, 0x2F7F, "GB205", _CC["12.0"]),
    (0x3180, 0x31FF, "GB110", _CC["10.3"]),
)

# Single ids: outside the blocks, or different from what their block says (these win).
DEVICES: dict[int, Generation] = {
    0x0FEF: _CC["3.0"]._replace(driver_branch_last=367),  # GRID K340, K1 and K2: APPENDIX
    0x0FF2: _CC["3.0"]._replace(driver_branch_last=367),
    0x11BF: _CC["3.0"]._replace(driver_branch_last=367),
    0x102D: _CC["3.7"],  # Tesla K80, the only GK210
    0x174D: _CC["5.0"],  # GM108
    0x174E: _CC["5.0"],
    0x1789: _CC["5.0"],  # GM107
    0x179C: _CC["5.0"],
    0x2B00: _CC["11.0"],  # GB10B, Jetson AGX Thor: PCI-IDS
}

# The releases in which SGLang's default for --attention-backend was read, oldest first. SGLANG: server_args.py, in
# _handle_attention_backend_compatibility or get_default_attn_backend, since 0.5.19 arg_groups/model_override_base.py;
# utils/common.py, is_no_spec_infer_or_topk_one; for fp8_e5m2 server_args.py, later arg_groups/overrides.py.
ATTENTION_RELEASES = (
    "0.5.8",
    "0.5.9",
    "0.5.10",
    "0.5.10.post1",
    "0.5.11",
    "0.5.12",
    "0.5.12.post1",
    "0.5.13",
    "0.5.14",
    "0.5.15.post1",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
)
# Architectures (config.json) for which none of these releases has a choice of its own. Many others have one (DeepSeek, Gemma 4, gpt-oss,
# Llama 4, MiniMax, Nemotron-H, ...), at least on some GPUs: they stay unknown.
ORDINARY_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
# Hybrids with linear attention that differ from these on compute capability 10 only (since 0.5.9, which brought them).
HYBRID_ARCHITECTURES = ("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration")


def by_compute_capability(capability: str) -> Generation | None:
    """The generation of a compute capability as nvidia-smi prints it ("8.6"), or None when it is not in the table.

    Where GPUs of one compute capability differ (9.0), the flavours are those that fit all of them.
    """
    return BY_COMPUTE_CAPABILITY.get(capability)


def by_pci_device_id(device_id: str) -> Generation | None:
    """The generation of a GPU's PCI id as lspci -n prints it ("10de:2230"), or None when it is not in the tables.

    Ask for GPUs only (PCI class 0300 or 0302). Another vendor's id, and text of another form, is unknown too.
    """
    match = re.fullmatch(r"10de:([0-9a-f]{4})", device_id, re.IGNORECASE)
    if not match:
        return None
    number = int(match[1], 16)
    in_block = (generation for first, last, _chip, generation in CHIPS if first <= number <= last)
    return DEVICES.get(number) or next(in_block, None)


def common_flavours(generations: t.Iterable[Generation]) -> list[str]:
    """The kernel module flavours that drive all of these GPUs: one host loads one module.

    Empty: no flavour does (Pascal beside Blackwell), or there was no generation. An unknown GPU allows nothing: leave it to the caller.
    """
    flavours = [set(generation.kernel_module_flavours) for generation in generations]
    return sorted(set.intersection(*flavours)) if flavours else []


def as_result(generation: Generation) -> dict[str, t.Any]:
    """The dictionary that stands for a generation in gpu_info's result (docs/design.md)."""
    return {
        "architecture": generation.architecture,
        "kernel_module_flavours": list(generation.kernel_module_flavours),
        "driver_branch_last": generation.driver_branch_last,
        "data_types": list(generation.data_types),
    }


def default_attention_backend(
    compute_capability: str,
    release: str,
    architecture: str,
    speculative_algorithm: str | None = None,
    speculative_eagle_topk: int | None = None,
    page_size: int | None = None,
    kv_cache_dtype: str | None = None,
) -> str | None:
    """What SGLang takes when --attention-backend is not given, or None when that is not known.

    For the prediction of what will fit on a GPU, which is not there yet; its tables are kept with each release (CONTRIBUTING.md).

    compute_capability: of the GPU. release: of SGLang, exactly. architecture: the first one in the model's config.json.
    The others are flags of the same names, None when not given. They are all that the choice depends on for the architectures that are
    known here, if no flag that brings a backend of its own is given (--enable-deterministic-inference, --prefill-attention-backend and
    --decode-attention-backend) and config.json asks for no attention of its own kind (dual_chunk_attention_config).
    Unknown: a release, architecture or compute capability that is not in the tables, a GPU that the engine refuses, and a hybrid on
    compute capability 10 without speculation, where the strategy of its state cache decides.
    """
    generation = by_compute_capability(compute_capability)
    hybrid = architecture in HYBRID_ARCHITECTURES and release != "0.5.8"
    if generation is None or not generation.data_types or release not in ATTENTION_RELEASES:
        return None
    if not hybrid and architecture not in ORDINARY_ARCHITECTURES:
        return None
    major = compute_capability.partition(".")[0]
    one_candidate = speculative_eagle_topk is None or (speculative_eagle_topk == 1 and page_size in (None, 1))
    # The default is chosen before speculation fills in its own numbers, so a topk that is not given counts as unknown there.
    topk_known = speculative_eagle_topk is not None or (release == "0.5.23" and speculative_algorithm == "DFLASH")
    backend = "flashinfer"
    if major == "9" and one_candidate:
        backend = "triton" if kv_cache_dtype == "fp8_e5m2" else "fa3"
    elif major == "10" and one_candidate and (speculative_algorithm is None or topk_known):
        backend = "trtllm_mha"
    if not hybrid or major != "10":
        return backend
    # SGLANG 0.5.9, 0.5.10 server_args.py; 0.5.15 arg_groups/overrides.py; 0.5.23 arg_groups/model_overrides/qwen3_5.py.
    if release == "0.5.9" or backend != "trtllm_mha":
        return "triton"
    return backend if speculative_algorithm else None
