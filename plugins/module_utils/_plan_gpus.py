# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""The GPUs of a plan: from names ("2x rtx-a6000, 1x rtx-4090"), or from the result of gpu_info.

Sources of the memory sizes, which are what nvidia-smi prints as memory.total:
  HOSTS     recorded and derived hosts and texts in tests/fixtures/gpu (their README says where each comes from)
  MODAL     modal-labs/modal-client#2797, a cloud's list of what nvidia-smi reports on each of its GPUs
  PI        geerlingguy/raspberry-pi-pcie-devices#790 and #791, tables of nvidia-smi
  SHIM      shkhln/libc6-shim#14, a table of nvidia-smi
  CAPTURES  utkuozdemir/nvidia_gpu_exporter, internal/captures, named after the card
  PRINTS    tables and CSV lines of nvidia-smi in public repositories, found by a search for the very text "<name>, <MiB>" or
            "/ <MiB>MiB" on 2026-12-01; at least two repositories say the same, unless a remark says otherwise
Compute capabilities: developer.nvidia.com/cuda-gpus, as in _gpu_generations.py, which a test compares.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing as t

MOST_GPUS = 64


class Known(t.NamedTuple):
    """A model of GPU. others: totals that nvidia-smi prints for the same card with ECC switched the other way, or with an older driver.

    unified: it shares the host's memory, and memory_total_mib is that of the host as Linux counts it.
    """

    name: str
    memory_total_mib: int
    compute_capability: str
    source: str
    others: tuple[int, ...] = ()
    unified: bool = False


# Short name -> card. A card of several sizes has the size in its name.
KNOWN: dict[str, Known] = {
    # data centre
    "gb300": Known("NVIDIA GB300", 284208, "10.3", "PRINTS"),
    "b300": Known("NVIDIA B300 SXM6 AC", 275040, "10.3", "PRINTS"),
    "gb200": Known("NVIDIA GB200", 189471, "10.0", "PRINTS"),
    "b200": Known("NVIDIA B200", 183359, "10.0", "PRINTS"),
    "gh200-144gb": Known("NVIDIA GH200 144G HBM3e", 146831, "9.0", "PRINTS"),
    "gh200-96gb": Known("NVIDIA GH200 480GB", 97871, "9.0", "PRINTS"),
    "h200": Known("NVIDIA H200", 143771, "9.0", "HOSTS"),
    "h200-nvl": Known("NVIDIA H200 NVL", 143771, "9.0", "PRINTS"),
    "h20-141gb": Known("NVIDIA H20-3e", 143771, "9.0", "PRINTS"),
    "h20-96gb": Known("NVIDIA H20", 97871, "9.0", "PRINTS"),
    "h100-nvl": Known("NVIDIA H100 NVL", 95830, "9.0", "PRINTS"),
    "h100-80gb": Known("NVIDIA H100 80GB HBM3", 81559, "9.0", "HOSTS, MODAL"),
    "h100-pcie": Known("NVIDIA H100 PCIe", 81559, "9.0", "PRINTS"),
    "h800": Known("NVIDIA H800", 81559, "9.0", "PRINTS"),
    "a100-80gb": Known("NVIDIA A100-SXM4-80GB", 81920, "8.0", "MODAL"),
    "a100-80gb-pcie": Known("NVIDIA A100 80GB PCIe", 81920, "8.0", "PRINTS"),
    "a100-40gb": Known("NVIDIA A100-SXM4-40GB", 40960, "8.0", "MODAL"),
    "a800-80gb": Known("NVIDIA A800-SXM4-80GB", 81920, "8.0", "PRINTS"),
    "a800-80gb-pcie": Known("NVIDIA A800 80GB PCIe", 81920, "8.0", "PRINTS", (80994,)),
    "a40": Known("NVIDIA A40", 46068, "8.6", "PRINTS", (48685, 49140)),
    "a30": Known("NVIDIA A30", 24576, "8.0", "PRINTS", (24258,)),
    "a16": Known("NVIDIA A16", 15356, "8.6", "PRINTS; one of the board's four GPUs", (15105,)),
    "a10": Known("NVIDIA A10", 23028, "8.6", "MODAL"),
    "a10g": Known("NVIDIA A10G", 23028, "8.6", "PRINTS"),
    "a2": Known("NVIDIA A2", 15356, "8.6", "PRINTS"),
    "l40s": Known("NVIDIA L40S", 46068, "8.9", "HOSTS, MODAL"),
    "l40": Known("NVIDIA L40", 46068, "8.9", "PRINTS"),
    "l20": Known("NVIDIA L20", 46068, "8.9", "PRINTS", (49140,)),
    "l4": Known("NVIDIA L4", 23034, "8.9", "MODAL"),
    "t4": Known("Tesla T4", 15360, "7.5", "MODAL", (15079, 15109)),
    "v100-32gb": Known("Tesla V100-SXM2-32GB", 32768, "7.0", "PRINTS"),
    "v100-16gb": Known("Tesla V100-SXM2-16GB", 16384, "7.0", "PRINTS"),
    # workstation
    "rtx-pro-6000": Known("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, "12.0", "HOSTS"),
    "rtx-pro-6000-max-q": Known("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97887, "12.0", "HOSTS"),
    "rtx-pro-6000-server": Known("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "12.0", "PRINTS"),
    "rtx-pro-5000-72gb": Known("NVIDIA RTX PRO 5000 72GB Blackwell", 73415, "12.0", "PRINTS; one repository"),
    "rtx-pro-5000-48gb": Known("NVIDIA RTX PRO 5000 Blackwell", 48935, "12.0", "PRINTS"),
    "rtx-pro-4500": Known("NVIDIA RTX PRO 4500 Blackwell", 32623, "12.0", "PRINTS"),
    "rtx-pro-4000": Known("NVIDIA RTX PRO 4000 Blackwell", 24467, "12.0", "PRINTS"),
    "rtx-6000-ada": Known("NVIDIA RTX 6000 Ada Generation", 49140, "8.9", "PRINTS", (46068,)),
    "rtx-5000-ada": Known("NVIDIA RTX 5000 Ada Generation", 32760, "8.9", "PRINTS"),
    "rtx-4500-ada": Known("NVIDIA RTX 4500 Ada Generation", 24570, "8.9", "PRINTS", (23034,)),
    "rtx-4000-ada": Known("NVIDIA RTX 4000 Ada Generation", 20475, "8.9", "PRINTS", (19195,)),
    "rtx-2000-ada": Known("NVIDIA RTX 2000 Ada Generation", 16380, "8.9", "PRINTS"),
    "rtx-a6000": Known("NVIDIA RTX A6000", 49140, "8.6", "HOSTS", (46068,)),
    "rtx-a5500": Known("NVIDIA RTX A5500", 24564, "8.6", "PRINTS"),
    "rtx-a5000": Known("NVIDIA RTX A5000", 24564, "8.6", "PRINTS", (24247, 24258)),
    "rtx-a4500": Known("NVIDIA RTX A4500", 20470, "8.6", "PRINTS"),
    "rtx-a4000": Known("NVIDIA RTX A4000", 16376, "8.6", "PI"),
    "quadro-rtx-8000": Known("Quadro RTX 8000", 49152, "7.5", "PRINTS", (48592, 48601)),
    "quadro-rtx-6000": Known("Quadro RTX 6000", 24576, "7.5", "PRINTS", (22698, 24220)),
    # consumer
    "rtx-5090": Known("NVIDIA GeForce RTX 5090", 32607, "12.0", "HOSTS"),
    "rtx-5080": Known("NVIDIA GeForce RTX 5080", 16303, "12.0", "PRINTS"),
    "rtx-5070-ti": Known("NVIDIA GeForce RTX 5070 Ti", 16303, "12.0", "PRINTS"),
    "rtx-5070": Known("NVIDIA GeForce RTX 5070", 12227, "12.0", "SHIM"),
    "rtx-5060-ti-16gb": Known("NVIDIA GeForce RTX 5060 Ti", 16311, "12.0", "PRINTS"),
    "rtx-4090": Known("NVIDIA GeForce RTX 4090", 24564, "8.9", "PRINTS"),
    "rtx-4090-d": Known("NVIDIA GeForce RTX 4090 D", 24564, "8.9", "PRINTS; one repository"),
    "rtx-4080-super": Known("NVIDIA GeForce RTX 4080 SUPER", 16376, "8.9", "CAPTURES"),
    "rtx-4080": Known("NVIDIA GeForce RTX 4080", 16376, "8.9", "PRINTS"),
    "rtx-4070-ti-super": Known("NVIDIA GeForce RTX 4070 Ti SUPER", 16376, "8.9", "PRINTS"),
    "rtx-4070": Known("NVIDIA GeForce RTX 4070", 12282, "8.9", "PRINTS"),
    "rtx-4060-ti-16gb": Known("NVIDIA GeForce RTX 4060 Ti", 16380, "8.9", "PRINTS"),
    "rtx-3090-ti": Known("NVIDIA GeForce RTX 3090 Ti", 24564, "8.6", "PRINTS"),
    "rtx-3090": Known("NVIDIA GeForce RTX 3090", 24576, "8.6", "PRINTS"),
    "rtx-3080-10gb": Known("NVIDIA GeForce RTX 3080", 10240, "8.6", "PRINTS"),
    "rtx-3060-12gb": Known("NVIDIA GeForce RTX 3060", 12288, "8.6", "PI"),
    "rtx-2080-ti": Known("NVIDIA GeForce RTX 2080 Ti", 11264, "7.5", "PRINTS"),
    # memory shared with the host: MemTotal of a DGX Spark
    "gb10": Known("NVIDIA GB10", 124610, "12.1", "HOSTS, meminfo_gb10.txt", unified=True),
}
# Other words for the same card.
_ALIASES = {
    "h100": "h100-80gb",
    "h100-sxm": "h100-80gb",
    "h100-sxm5": "h100-80gb",
    "h100-80gb-pcie": "h100-pcie",
    "h100-94gb": "h100-nvl",
    "h200-141gb": "h200",
    "h200-sxm": "h200",
    "h20": "h20-96gb",
    "h20-3e": "h20-141gb",
    "h800-80gb": "h800",
    "gh200": "gh200-96gb",
    "a100-sxm4-80gb": "a100-80gb",
    "a100-sxm4-40gb": "a100-40gb",
    "a800": "a800-80gb",
    "b200-180gb": "b200",
    "b300-288gb": "b300",
    "a6000": "rtx-a6000",
    "a5500": "rtx-a5500",
    "a5000": "rtx-a5000",
    "a4500": "rtx-a4500",
    "a4000": "rtx-a4000",
    "6000-ada": "rtx-6000-ada",
    "pro-6000": "rtx-pro-6000",
    "rtx-6000-pro": "rtx-pro-6000",
    "rtx-pro-5000": "rtx-pro-5000-48gb",
    "rtx-8000": "quadro-rtx-8000",
    "rtx-6000": "quadro-rtx-6000",
    "rtx-5060-ti": "rtx-5060-ti-16gb",
    "rtx-4060-ti": "rtx-4060-ti-16gb",
    "rtx-3080": "rtx-3080-10gb",
    "rtx-3060": "rtx-3060-12gb",
    "dgx-spark": "gb10",
    "spark": "gb10",
}
# Names that stand for several sizes: nothing is guessed.
_SEVERAL = {"a100": ("a100-80gb", "a100-40gb"), "v100": ("v100-32gb", "v100-16gb"), "a100-pcie": ("a100-80gb-pcie", "a100-40gb")}


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU that a plan may use. used_mib: by other processes. unified: its memory is the host's."""

    index: int
    name: str
    memory_total_mib: int
    compute_capability: str | None
    used_mib: int = 0
    unified: bool = False


@dataclasses.dataclass(frozen=True)
class Gpus:
    """What was read. Problems, when there are any, are all of them; notes are what to know of GPUs that were read."""

    gpus: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def _plain(name: str) -> str:
    """A name in small letters with dashes, without NVIDIA's words around it."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return "-".join(word for word in words if word and word not in ("nvidia", "geforce", "tesla", "generation", "gpu"))


_BY_NAME = {**{_plain(known.name): short for short, known in KNOWN.items()}, **_ALIASES, **{short: short for short in KNOWN}}


def _loosely(plain: str) -> Known | None:
    """A card whose name is written in one word (rtx3090), or with its size behind it (rtx-3090-24gb)."""
    plain = re.sub(r"^(rtx|gtx|quadro)(?=[a-z0-9])", r"\1-", plain)
    if plain in _BY_NAME:
        return KNOWN[_BY_NAME[plain]]
    sized = re.fullmatch(r"(.+?)-(\d{1,3})gb?", plain)
    name = _BY_NAME.get(sized[1]) if sized else None
    if sized is None or name is None:
        return None
    near = abs(KNOWN[name].memory_total_mib / 1024 / int(sized[2]) - 1) < 0.08 if int(sized[2]) else False
    return KNOWN[name] if near else None


def _find(word: str) -> str | Known:
    """A card, or what is wrong with its name."""
    plain = _plain(word)
    if plain in _BY_NAME:
        return KNOWN[_BY_NAME[plain]]
    loose = _loosely(plain)
    if loose is not None:
        return loose
    if re.match(r"\d+g-\d+gb|mig-", plain) or re.search(r"-\d+g-\d+gb", plain):
        return f"{word}: MIG devices are not sized; give the whole GPU, or the result of gpu_info without MIG"
    several = _SEVERAL.get(plain)
    if several:
        return f"{word}: comes in several sizes; write {' or '.join(several)}"
    size = re.fullmatch(r"(\d{1,3})-?gi?b?", plain)
    if size:
        fitting = [short for short, known in KNOWN.items() if abs(known.memory_total_mib / 1024 - int(size[1])) < 2]
        return f"{word}: a size, not a GPU; write which one it is{', such as ' if fitting else ''}{', '.join(fitting[:12])}"
    near = difflib.get_close_matches(plain, _BY_NAME, n=6, cutoff=0.6)
    names = list(dict.fromkeys(_BY_NAME[one] for one in near))[:3] or ["rtx-a6000", "rtx-4090", "h100-80gb"]
    return f"{word}: not a GPU that is known here; did you mean {', '.join(names)}? (a file with the result of gpu_info takes any GPU)"


def _note(known: Known) -> str | None:
    if known.unified:
        total = known.memory_total_mib
        return f"{known.name}: its memory is the host's; counted as {total} MiB, of which the system and other programs take their part"
    if not known.others:
        return None
    others = " or ".join(str(total) for total in sorted(known.others))
    return f"{known.name}: counted with {known.memory_total_mib} MiB; nvidia-smi prints {others} with ECC switched or with an older driver"


def by_name(text: str) -> Gpus:
    """GPUs from text such as "2x rtx-a6000" or "1x rtx-5090, 1x rtx-4090"."""
    parts = [part.strip() for part in re.split(r"[,;+]", text)]
    gpus: list[Gpu] = []
    notes: list[str] = []
    problems: list[str] = []
    for part in parts:
        match = re.fullmatch(r"(?:(\d{1,9})\s*[x×*]\s*|(\d{1,9})\s+)?(\S.{0,79})", part, re.ASCII | re.IGNORECASE)  # noqa: RUF001
        if match is None:
            problems.append(f'expected a number and a name such as "2x rtx-a6000", found {part[:80]!r}')
            continue
        count = int(match[1] or match[2] or 1)
        found = _find(match[3])
        if isinstance(found, str):
            problems.append(found)
        elif not 1 <= count <= MOST_GPUS or len(gpus) + count > MOST_GPUS:
            problems.append(f"{part}: expected 1 to {MOST_GPUS} GPUs of one host, found {count}")
        else:
            start = len(gpus)
            gpus += [
                Gpu(start + one, found.name, found.memory_total_mib, found.compute_capability, 0, found.unified) for one in range(count)
            ]
            notes += [note for note in (_note(found),) if note and note not in notes]
    return Gpus((), (), tuple(problems)) if problems else Gpus(tuple(gpus), tuple(notes))


def _whole(value: t.Any, least: int = 0) -> int | None:
    """A whole number that a memory size can be, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= 10**9 else None


def _used(gpu: t.Mapping[str, t.Any], host: t.Mapping[str, t.Any], total: int) -> int:
    """MiB that others have, without what a running SGLang has, which would be started anew. Of unified memory the host knows."""
    processes = gpu.get("processes")
    engines = sum(
        _whole(process.get("memory_used_mib")) or 0
        for process in (processes if isinstance(processes, list) else ())
        if isinstance(process, t.Mapping) and "sglang" in str(process.get("name"))
    )
    if gpu.get("memory_kind") == "unified":
        available = _whole(host.get("memory_available_mib"))
        return 0 if available is None else max(0, total - available - engines)
    return max(0, min(_whole(gpu.get("memory_used_mib")) or 0, total) - engines)


def by_inventory(result: t.Any, indices: t.Sequence[int | str] | None = None) -> Gpus:
    """GPUs from the result of gpu_info.

    indices: which ones, by index or UUID, as an instance says it; None: all that can be used.
    """
    if not isinstance(result, t.Mapping) or not isinstance(result.get("gpus"), list):
        return Gpus(problems=("expected the result of gpu_info (a dictionary with a list `gpus`), found something else",))
    rows = [gpu for gpu in result["gpus"] if isinstance(gpu, t.Mapping)]
    if len({gpu.get("host") for gpu in rows}) > 1:
        return Gpus(problems=("expected the GPUs of one host, found a report of several; give the result of gpu_info of one of them",))
    if indices is not None:
        chosen = [next((gpu for gpu in rows if want in (gpu.get("index"), gpu.get("uuid"))), None) for want in indices]
        missing = [str(want) for want, gpu in zip(indices, chosen) if gpu is None]
        if missing:
            have = ", ".join(str(gpu.get("index")) for gpu in rows) or "none"
            return Gpus(problems=(f"expected GPU {', '.join(missing)}, found GPU {have} (MIG devices are not sized)",))
        rows = [gpu for gpu in chosen if gpu is not None]
    gpus: list[Gpu] = []
    notes: list[str] = []
    problems: list[str] = []
    for number, gpu in enumerate(rows):
        label = f"GPU {gpu.get('index', number)}"
        unified = gpu.get("memory_kind") == "unified"
        stated = result.get("memory_total_mib") if unified else gpu.get("memory_total_mib")
        total = _whole(stated, 256)
        split = gpu.get("mig_enabled") is True
        if split or gpu.get("usable") is False:
            why = "is split by MIG, whose devices are not sized" if split else f"cannot be used ({gpu.get('health') or 'not known why'})"
            (notes if indices is None else problems).append(f"{label} {why}" + ("; left out" if indices is None else ""))
        elif total is None:
            problems.append(f"{label}: expected its memory_total_mib, found {str(stated)[:40]}")
        elif gpu.get("compute_capability") and not re.fullmatch(r"\d{1,2}\.\d", str(gpu["compute_capability"]), re.ASCII):
            problems.append(f"{label}: expected its compute_capability such as 8.6, found {str(gpu['compute_capability'])[:40]!r}")
        else:
            capability, index = gpu.get("compute_capability"), _whole(gpu.get("index"))
            name = str(gpu.get("name") or "GPU")[:80]
            at = number if index is None else index
            gpus.append(Gpu(at, name, total, str(capability) if capability else None, _used(gpu, result, total), unified))
    if not gpus and not problems:
        problems.append("expected at least one GPU that can be used, found none" + "".join(f"; {note}" for note in notes))
    return Gpus((), (), tuple(problems)) if problems else Gpus(tuple(gpus), tuple(notes))


def host_memory(result: t.Any) -> Gpus:
    """The memory of a host, from the result of gpu_info, in the place of a GPU's: for an engine that runs on a CPU."""
    inventory = result if isinstance(result, t.Mapping) else {}
    total, free = _whole(inventory.get("memory_total_mib"), 256), _whole(inventory.get("memory_available_mib"))
    if total is None:
        return Gpus(problems=("expected memory_total_mib in the result of gpu_info, found none",))
    return Gpus((Gpu(0, "the host's memory", total, None, max(0, total - free) if free is not None else 0),))
