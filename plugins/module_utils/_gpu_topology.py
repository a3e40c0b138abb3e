# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""How the GPUs of a host are linked, and which of them fit together best for tensor parallelism."""

from __future__ import annotations

import itertools
import re
import typing as t

# From the closest to the farthest; the legend of `nvidia-smi topo -m`. NV<n> comes before all of them. SOC is what drivers up to 384
# called SYS.
LINKS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_OLD_WORDS = {"SOC": "SYS"}
# Legend of `nvidia-smi topo -p2p`.
P2P_WORDS = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
# nvmlGpuTopologyLevel_t of nvml.h. INTERNAL is two GPUs of one board (Tesla K80); nvidia-smi has no word of its own for it.
NVML_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
SIZES = (1, 2, 4, 8)
# Up to so many GPUs of one model every combination is looked at (16 over 8: 12870).
_ALL_COMBINATIONS_MAX = 16

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_AFFINITIES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_HEADING_WORDS = re.compile(rf"{'|'.join(_AFFINITIES)}|\S+")


class Topology(t.NamedTuple):
    """indices: GPUs in ascending order. matrix: a row and a column for each, as nvidia-smi prints the links; "" where one is not known.

    numa_nodes, cpu_affinity: by index, only where they are known. notes: what could not be read, in words.
    """

    indices: list[int]
    matrix: list[list[str]]
    numa_nodes: dict[int, int]
    cpu_affinity: dict[int, str]
    notes: list[str]


def parse_topo(text: str) -> Topology:
    """What `nvidia-smi topo -m` prints, GPUs only. Terminal escapes, network cards and the legend are passed over."""
    return _parse(text, _link_word)


def parse_p2p(text: str) -> Topology:
    """What `nvidia-smi topo -p2p r|w|n|a|p` prints; its words (P2P_WORDS) stand in the matrix."""
    return _parse(text, lambda word: word if word in P2P_WORDS else "")


def _link_word(word: str) -> str:
    word = _OLD_WORDS.get(word, word)
    return word if word in LINKS or re.fullmatch(r"NV[1-9]\d?", word, re.ASCII) else ""


def _parse(text: str, known: t.Callable[[str], str]) -> Topology:
    columns: list[str] = []
    links: dict[tuple[int, int], str] = {}
    numa_nodes: dict[int, int] = {}
    cpu_affinity: dict[int, str] = {}
    notes: list[str] = []
    rows: list[int] = []
    for line in _ANSI.sub("", text).splitlines():
        if not columns:
            words = _HEADING_WORDS.findall(line)
            # The row of GPU0 begins like a heading, but goes on with links.
            if words and _gpu(words[0]) is not None and not any(known(word) or word == "X" for word in words):
                columns = words
            continue
        row = _gpu(line.split()[0]) if line.split() else None
        if row is None:
            continue
        if row in rows:
            notes.append(f"GPU{row} has two rows")
            continue
        rows.append(row)
        cells = _cells(line, columns)
        if len(cells) < sum(name not in _AFFINITIES for name in columns):
            notes.append(f"the row of GPU{row} is cut off")
        for name, word in zip(columns, cells):
            column = _gpu(name)
            if column is not None and column != row:
                links[row, column] = known(word)
                if not known(word):
                    notes.append(f"GPU{row} to GPU{column}: {word!r:.40}")
        affinity = dict(zip(columns, cells))
        if re.fullmatch(r"\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?)*", affinity.get("CPU Affinity", ""), re.ASCII):
            cpu_affinity[row] = affinity["CPU Affinity"]
        if re.fullmatch(r"\d{1,4}", affinity.get("NUMA Affinity", ""), re.ASCII):
            numa_nodes[row] = int(affinity["NUMA Affinity"])
    named = {index for index in map(_gpu, columns) if index is not None}
    if not columns:
        notes.append("no heading with GPUs")
    notes += [f"GPU{index} has no row" for index in sorted(named - set(rows))]
    notes += [f"GPU{index} has no column" for index in sorted(set(rows) - named)]
    indices = sorted(named | set(rows))
    return Topology(indices, _matrix(indices, links), numa_nodes, cpu_affinity, notes)


def _gpu(word: str) -> int | None:
    match = re.fullmatch(r"GPU(\d{1,4})", word, re.ASCII)
    return int(match[1]) if match else None


def _cells(line: str, columns: t.Sequence[str]) -> list[str]:
    """The cells of a row below these columns.

    Tabs say where a cell is, even an empty one. In text that was pasted with spaces an empty cell has left no trace: there, the
    affinities count only when each has a word.
    """
    if "\t" in line.strip():
        return [cell.strip() for cell in line.strip(" ").split("\t")[1:]]
    cells = line.split()[1:]
    linked = sum(name not in _AFFINITIES for name in columns)
    return cells if len(cells) == len(columns) else cells[:linked]


def _matrix(indices: t.Sequence[int], links: t.Mapping[tuple[int, int], str]) -> list[list[str]]:
    """A link that only one of the two GPUs names holds for both."""
    return [["X" if one == other else links.get((one, other)) or links.get((other, one)) or "" for other in indices] for one in indices]


def matrix_from_pairs(indices: t.Sequence[int], pairs: t.Mapping[tuple[int, int], int | str]) -> list[list[str]]:
    """The matrix from what NVML says.

    pairs: for two GPUs, in either order, the level of their common ancestor (nvmlDeviceGetTopologyCommonAncestor), or "NV<n>" with the
    number of active NVLinks between them; through NVSwitches, all active ones of the GPU that has fewer. A pair that is left out, or
    whose level is unheard of, is not known.
    """
    words = {pair: NVML_LEVELS.get(value, "") if isinstance(value, int) else _link_word(value) for pair, value in pairs.items()}
    return _matrix(indices, words)


def peer_matrix(indices: t.Sequence[int], pairs: t.Mapping[tuple[int, int], str]) -> list[list[str]]:
    """Whether the GPU of a row can read the memory of that of a column over the bus; U where it is not known. Empty when nothing is."""
    if not pairs:
        return []
    return [["X" if one == other else pairs.get((one, other), "U") for other in indices] for one in indices]


def pairs_of(topology: Topology) -> dict[tuple[int, int], str]:
    """The cells of a matrix by (index of the row, index of the column), without those on the diagonal and those that are not known."""
    return {
        (one, other): word
        for one, row in zip(topology.indices, topology.matrix)
        for other, word in zip(topology.indices, row)
        if one != other and word
    }


# Groups


def best_groups(gpus: t.Sequence[t.Mapping[str, t.Any]], topology: Topology) -> list[dict[str, t.Any]]:
    """gpu_groups of the result: for each size that is possible, the GPUs that fit together best.

    gpus: as in the result; index, usable, name, pci_device_id, memory_total_mib, numa_node and uuid are read. Only usable GPUs of one
    model go together: same name, same PCI device id and the same memory (to the GiB; cards with changed memory exist, case A35).
    Of several models that of most memory is taken. Then, in this order: fewest NUMA nodes, the best worst link (NVLink, more of them
    first, then LINKS, then links that are not known), the best links in all, the lowest indices.
    A NUMA node that the GPU does not tell is taken from the topology. More than 16 GPUs of one model: the group grows from each GPU by
    the one that fits best, which need not find the best of all.
    """
    usable = [gpu for gpu in gpus if gpu.get("usable") is True and isinstance(gpu.get("index"), int)]
    models: dict[t.Hashable, list[t.Mapping[str, t.Any]]] = {}
    for gpu in sorted(usable, key=lambda gpu: t.cast("int", gpu["index"])):
        models.setdefault(_model(gpu), []).append(gpu)
    candidates = sorted(models.values(), key=lambda members: (-(members[0].get("memory_total_mib") or 0), members[0]["index"]))
    groups = []
    for size in SIZES:
        members = next((members for members in candidates if len(members) >= size), None)
        if members is None:
            break
        groups.append(_group(size, members, topology))
    return groups


def _model(gpu: t.Mapping[str, t.Any]) -> t.Hashable:
    name, device, memory = gpu.get("name"), gpu.get("pci_device_id"), gpu.get("memory_total_mib")
    if not name and not device:
        return t.cast("int", gpu["index"])  # nothing says that it equals another
    return name, device, None if memory is None else round(memory / 1024)


def _group(size: int, members: t.Sequence[t.Mapping[str, t.Any]], topology: Topology) -> dict[str, t.Any]:
    by_index = {gpu["index"]: gpu for gpu in members}
    nodes = {index: topology.numa_nodes.get(index) if gpu.get("numa_node") is None else gpu["numa_node"] for index, gpu in by_index.items()}
    words = _worse_words(topology)
    costs = {(one, other): _cost(words.get((one, other), "")) for one in by_index for other in by_index if one != other}

    def price(chosen: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...]]:
        linked = [costs[pair] for pair in itertools.combinations(chosen, 2)]
        return len({nodes[index] for index in chosen}), max(linked, default=0), sum(linked), chosen

    if len(by_index) <= _ALL_COMBINATIONS_MAX:
        best = min(itertools.combinations(sorted(by_index), size), key=price)
    else:
        best = min((_grown(first, size, by_index, price) for first in by_index), key=price)
    linked = [words.get(pair, "") for pair in itertools.combinations(best, 2)]
    return {
        "size": size,
        "indices": list(best),
        "uuids": [by_index[index].get("uuid") for index in best],
        "name": by_index[best[0]].get("name"),
        "link": (max(linked, key=_cost) or None) if linked else None,
        "numa_nodes": sorted({node for index in best for node in [nodes[index]] if node is not None}),
    }


def _grown(
    first: int, size: int, others: t.Iterable[int], price: t.Callable[[tuple[int, ...]], tuple[int, int, int, tuple[int, ...]]]
) -> tuple[int, ...]:
    chosen: tuple[int, ...] = (first,)
    while len(chosen) < size:
        chosen = min((tuple(sorted((*chosen, other))) for other in others if other not in chosen), key=price)
    return chosen


def _worse_words(topology: Topology) -> dict[tuple[int, int], str]:
    """Both directions of a link, each with the worse word of the two."""
    said = {
        (one, other): _link_word(word)
        for one, row in zip(topology.indices, topology.matrix)
        for other, word in zip(topology.indices, row)
        if one != other
    }
    return {(one, other): max(word, said.get((other, one), ""), key=_cost) for (one, other), word in said.items()}


def _cost(word: str) -> int:
    """What a link costs; so far apart that a whole group of 8 (28 links) of one class costs less than one link of the next."""
    if word.startswith("NV"):
        return 100 - int(word[2:])
    place = LINKS.index(word) if word in LINKS else len(LINKS)
    return t.cast("int", 10_000 * 100**place)
