from __future__ import annotations

import itertools
import pathlib
import re
import time

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_topology as topology
from hypothesis import given, settings
from hypothesis import strategies as st

SAMPLES = pathlib.Path(__file__).parents[3] / "fixtures/gpu"


def sample(name):
    return (SAMPLES / name).read_text(encoding="utf-8", errors="replace")


def all_linked(count, word):
    return [["X" if one == other else word for other in range(count)] for one in range(count)]


BY_TWO = [["X", "PIX", "PHB", "PHB"], ["PIX", "X", "PHB", "PHB"], ["PHB", "PHB", "X", "PIX"], ["PHB", "PHB", "PIX", "X"]]


# --- nvidia-smi topo ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["topo_1gpu_ansi.txt", "smi_h200_topo_ansi.txt"])
def test_one_gpu_between_terminal_escapes(name):
    found = topology.parse_topo(sample(name))
    cpus = {"topo_1gpu_ansi.txt": "0-23", "smi_h200_topo_ansi.txt": "0-15"}[name]
    assert found == topology.Topology([0], [["X"]], {0: 0}, {0: cpus}, [])


@pytest.mark.parametrize(("name", "word", "cpus"), [("topo_2x3090_nvlink.txt", "NV4", "0-31"), ("topo_2x3090_phb.txt", "PHB", "0-15")])
def test_two_gpus_with_tabs_and_with_spaces(name, word, cpus):
    assert topology.parse_topo(sample(name)) == topology.Topology([0, 1], all_linked(2, word), {0: 0, 1: 0}, {0: cpus, 1: cpus}, [])


def test_network_cards_are_passed_over():
    found = topology.parse_topo(sample("topo_8xh100_nvswitch.txt"))
    assert (found.indices, found.matrix, found.notes) == (list(range(8)), all_linked(8, "NV18"), [])
    assert found.numa_nodes == {0: 0, 1: 0, 2: 0, 3: 1, 4: 2, 5: 2, 6: 2, 7: 3}
    assert found.cpu_affinity[7] == "72-95,168-191"


def test_a_pasted_part_without_numa_columns():
    """Five of eight rows: what the others would say is known from the columns, but not how they are linked among themselves."""
    found = topology.parse_topo(sample("topo_8gpu_2017_no_numa_cols.txt"))
    assert found.indices == list(range(8))
    assert [row[:4] for row in found.matrix[:4]] == BY_TWO
    assert found.matrix[5] == ["SYS", "SYS", "SYS", "SYS", "PIX", "X", "", ""]
    assert found.numa_nodes == {}
    assert found.cpu_affinity == {**dict.fromkeys(range(4), "0-9,20-29"), 4: "10-19,30-39"}
    assert found.notes == ["GPU5 has no row", "GPU6 has no row", "GPU7 has no row"]


@pytest.mark.parametrize("dress", [lambda text: text.replace("\n", "\r\n"), lambda text: re.sub(r"(GPU\d)", "\x1b[1;4m\\1\x1b[0m", text)])
def test_other_line_ends_and_escapes(dress):
    text = sample("topo_8xh100_nvswitch.txt")
    assert topology.parse_topo(dress(text)) == topology.parse_topo(text)


HOLES = """\
        GPU0    GPU2    GPU3    mlx5_10 mlx5_11 CPU Affinity    NUMA Affinity
GPU0     X      SOC     NV12    PHB     SYS     0-31    0
GPU2    SYS      X      SYS     SYS     SYS     32-63   1
GPU3    NV12    SYS      X      PHB     SYS     0-31    0
mlx5_10 PHB     SYS     PHB      X      SYS
"""


def test_indices_with_a_hole_and_the_old_word_for_sys():
    found = topology.parse_topo(HOLES)
    assert (found.indices, found.numa_nodes, found.notes) == ([0, 2, 3], {0: 0, 2: 1, 3: 0}, [])
    assert found.matrix == [["X", "SYS", "NV12"], ["SYS", "X", "SYS"], ["NV12", "SYS", "X"]]


def test_empty_cells_are_left_out():
    """WSL and guests print no affinity; in pasted spaces nothing says which column a word belongs to."""
    heading = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    rows = "GPU0\t X \tPHB\t\t\t\tN/A\nGPU1\tPHB\t X \t\t1\t\tN/A\n"
    assert topology.parse_topo(heading + rows) == topology.Topology([0, 1], all_linked(2, "PHB"), {1: 1}, {}, [])
    assert topology.parse_topo((heading + rows).expandtabs()) == topology.Topology([0, 1], all_linked(2, "PHB"), {}, {}, [])


def test_a_gpu_of_two_nodes_has_none():
    text = sample("topo_2x3090_nvlink.txt").replace("0-31\t0\t", "0-31\t0-1\t")
    assert topology.parse_topo(text).numa_nodes == {}


@pytest.mark.parametrize(
    ("text", "indices", "matrix", "notes"),
    [
        ("", [], [], ["no heading with GPUs"]),
        ("The -i command line argument must be used in conjunction with -n or -p.\n", [], [], ["no heading with GPUs"]),
        ("GPU0\t X \tPHB\t0-15\nGPU1\tPHB\t X \t0-15\n", [], [], ["no heading with GPUs"]),
        ("\tGPU0\tGPU1\nGPU0\t X \tQPI\nGPU1\tQPI\t X \n", [0, 1], all_linked(2, ""), ["GPU0 to GPU1: 'QPI'", "GPU1 to GPU0: 'QPI'"]),
        ("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\n", [0, 1], all_linked(2, "PIX"), ["the row of GPU1 is cut off"]),
        ("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU0\t X \tSYS\n", [0, 1], all_linked(2, "PIX"), ["GPU0 has two rows", "GPU1 has no row"]),
        ("\tGPU0\nGPU0\t X \nGPU1\tPIX\t X\n", [0, 1], all_linked(2, "PIX"), ["GPU1 has no column"]),
        ("\tGPU0\tGPU1\nGPU0\t X \tNV0\nGPU1\tNV123\t X \n", [0, 1], all_linked(2, ""), ["GPU0 to GPU1: 'NV0'", "GPU1 to GPU0: 'NV123'"]),
    ],
)
def test_what_cannot_be_read_is_left_out_and_named(text, indices, matrix, notes):
    assert topology.parse_topo(text) == topology.Topology(indices, matrix, {}, {}, notes)


def test_p2p():
    assert topology.parse_p2p(sample("topo_p2p_rw_gns.txt")) == topology.Topology([0, 1], all_linked(2, "GNS"), {}, {}, [])
    assert topology.parse_p2p(sample("smi_h200_topo_p2p.txt")) == topology.Topology([0], [["X"]], {}, {}, [])
    text = " \tGPU0\tGPU1\tGPU2\n GPU0\tX\tOK\tCNS\n GPU1\tOK\tX\tTNS\n GPU2\tDR\tU\tX\n"
    assert topology.parse_p2p(text).matrix == [["X", "OK", "CNS"], ["OK", "X", "TNS"], ["DR", "U", "X"]]


# --- NVML --------------------------------------------------------------------------------------------------------------


def test_matrix_from_pairs():
    pairs = {(0, 1): "NV4", (0, 2): 0, (3, 0): 10, (0, 4): 20, (1, 2): 30, (1, 3): 40, (4, 1): 50, (2, 3): 60, (2, 4): "NV?"}
    assert topology.matrix_from_pairs([0, 1, 2, 3, 4], pairs) == [
        ["X", "NV4", "PIX", "PIX", "PXB"],
        ["NV4", "X", "PHB", "NODE", "SYS"],
        ["PIX", "PHB", "X", "", ""],
        ["PIX", "NODE", "", "X", ""],
        ["PXB", "SYS", "", "", "X"],
    ]
    assert topology.matrix_from_pairs([], {}) == []


# --- groups ------------------------------------------------------------------------------------------------------------


def gpu(index, **changes):
    return {
        "index": index,
        "usable": True,
        "uuid": f"GPU-{index}",
        "name": "NVIDIA RTX A6000",
        "pci_device_id": "10de:2230",
        "memory_total_mib": 49140,
        "numa_node": 0,
        **changes,
    }


def linked(matrix, numa_nodes=None):
    return topology.Topology(list(range(len(matrix))), matrix, numa_nodes or {}, {}, [])


def chosen(gpus, found):
    return {group["size"]: group["indices"] for group in topology.best_groups(gpus, found)}


def test_a_group_has_all_its_fields():
    found = topology.parse_topo(sample("topo_2x3090_nvlink.txt"))
    assert topology.best_groups([gpu(0, numa_node=None), gpu(1, numa_node=None)], found) == [
        {"size": 1, "indices": [0], "uuids": ["GPU-0"], "name": "NVIDIA RTX A6000", "link": None, "numa_nodes": [0]},
        {"size": 2, "indices": [0, 1], "uuids": ["GPU-0", "GPU-1"], "name": "NVIDIA RTX A6000", "link": "NV4", "numa_nodes": [0]},
    ]


def test_no_group_without_a_usable_gpu():
    assert topology.best_groups([], linked([])) == []
    assert topology.best_groups([gpu(0, usable=False), gpu(None)], linked([["X"]])) == []


def test_nvswitch_prefers_one_node():
    found = topology.parse_topo(sample("topo_8xh100_nvswitch.txt"))
    gpus = [gpu(index, numa_node=None) for index in range(8)]
    assert chosen(gpus, found) == {1: [0], 2: [0, 1], 4: [0, 1, 2, 3], 8: list(range(8))}
    # Without GPU0 no node has four; of the groups on two nodes that with the lowest indices.
    groups = topology.best_groups(gpus[1:], found)
    assert [(group["size"], group["indices"], group["numa_nodes"], group["link"]) for group in groups] == [
        (1, [1], [0], None),
        (2, [1, 2], [0], "NV18"),
        (4, [1, 2, 4, 5], [0, 2], "NV18"),
    ]


def bridged(*pairs, rest="PHB", count=4):
    """GPUs of which these pairs are linked by a bridge."""
    words = {**dict.fromkeys(itertools.combinations(range(count), 2), rest)}
    words.update({pair: word for *pair_list, word in pairs for pair in [tuple(pair_list)]})
    return [["X" if one == other else words[min(one, other), max(one, other)] for other in range(count)] for one in range(count)]


@pytest.mark.parametrize(
    ("matrix", "best"),
    [
        (bridged((1, 3, "NV4")), [1, 3]),
        (bridged((1, 3, "NV4"), (0, 2, "NV12")), [0, 2]),
        (bridged((0, 1, "PIX"), (2, 3, "NV1")), [2, 3]),
        (bridged((2, 3, "PIX")), [2, 3]),
        (bridged((0, 1, "PXB"), (2, 3, "PIX")), [2, 3]),
        (bridged((2, 3, "PXB")), [2, 3]),
        (bridged((2, 3, "PHB"), rest="NODE"), [2, 3]),
        (bridged((2, 3, "NODE"), rest="SYS"), [2, 3]),
        (bridged((2, 3, "SYS"), rest=""), [2, 3]),
        (bridged(), [0, 1]),
    ],
)
def test_the_best_link_wins_and_then_the_lowest_indices(matrix, best):
    assert chosen([gpu(index) for index in range(4)], linked(matrix))[2] == best


def test_the_node_comes_before_the_link():
    gpus = [gpu(0), gpu(1, numa_node=1), gpu(2), gpu(3, numa_node=1)]
    assert chosen(gpus, linked(bridged((0, 1, "NV4"))))[2] == [0, 2]


def test_a_group_of_four_keeps_bridged_pairs_together():
    matrix = bridged((0, 1, "NV4"), (3, 4, "NV4"), count=6)
    group = topology.best_groups([gpu(index) for index in range(6)], linked(matrix))[2]
    assert (group["indices"], group["link"]) == ([0, 1, 3, 4], "PHB")


def test_the_worst_link_of_a_group_is_named():
    nvlinks = bridged((0, 1, "NV12"), rest="NV4", count=4)
    assert topology.best_groups([gpu(index) for index in range(4)], linked(nvlinks))[2]["link"] == "NV4"
    one_sided = [["X", "PIX"], ["SYS", "X"]]
    assert topology.best_groups([gpu(0), gpu(1)], linked(one_sided))[1]["link"] == "SYS"
    for unknown in ([["X", ""], ["", "X"]], [["X", "QPI"], ["QPI", "X"]], []):
        assert topology.best_groups([gpu(0), gpu(1)], linked(unknown))[1]["link"] is None


@pytest.mark.parametrize(
    "other",
    [{"name": "NVIDIA A40"}, {"pci_device_id": "10de:2235"}, {"memory_total_mib": 46068}, {"name": None, "pci_device_id": None}],
)
def test_only_equal_gpus_go_together(other):
    assert 2 not in chosen([gpu(0), gpu(1, **other)], linked(all_linked(2, "NV4")))


def test_a_few_mib_less_are_the_same_model():
    assert chosen([gpu(0), gpu(1, memory_total_mib=49128)], linked([]))[2] == [0, 1]


def test_of_two_models_that_of_most_memory():
    small = {"name": "NVIDIA GeForce RTX 3080", "memory_total_mib": 10240}
    gpus = [gpu(0, **small), gpu(1, **small), gpu(2), gpu(3), gpu(4, **small), gpu(5, **small)]
    assert chosen(gpus, linked([])) == {1: [2], 2: [2, 3], 4: [0, 1, 4, 5]}


def test_a_lost_gpu_leaves_a_hole():
    gpus = [gpu(0), gpu(1, usable=False), gpu(2), gpu(3)]
    assert chosen(gpus, topology.Topology([0, 2, 3], [["X", "SYS", "NODE"], ["SYS", "X", "SYS"], ["NODE", "SYS", "X"]], {}, {}, [])) == {
        1: [0],
        2: [0, 3],
    }


def test_sixteen_gpus_are_quick_and_more_are_grouped_too():
    """All 12870 groups of 8 are looked at; from 17 on the group grows by the GPU that fits best."""
    matrix = [["X" if one == other else "NV4" if one % 2 == other % 2 else "SYS" for other in range(16)] for one in range(16)]
    start = time.perf_counter()
    groups = topology.best_groups([gpu(index) for index in range(16)], linked(matrix))
    assert time.perf_counter() - start < 5
    assert groups[3]["indices"] == [0, 2, 4, 6, 8, 10, 12, 14]
    many = [["X" if one == other else "NV4" if one % 2 == other % 2 else "SYS" for other in range(20)] for one in range(20)]
    grown = topology.best_groups([gpu(index) for index in range(20)], linked(many))
    assert [(group["indices"], group["link"]) for group in grown[1:]] == [
        ([0, 2], "NV4"),
        ([0, 2, 4, 6], "NV4"),
        ([0, 2, 4, 6, 8, 10, 12, 14], "NV4"),
    ]


# --- whatever comes ----------------------------------------------------------------------------------------------------


@st.composite
def damaged(draw, names):
    """A sample with lines lost, bytes replaced, cells changed, and an end that may be missing."""
    lines = (SAMPLES / draw(st.sampled_from(names))).read_bytes().splitlines(keepends=True)[:20]
    for _count in range(draw(st.integers(0, 6))):
        number = draw(st.integers(0, len(lines) - 1))
        line = lines[number]
        place = draw(st.integers(0, len(line)))
        how = draw(st.sampled_from(["drop", "bytes", "cell", "swap"]))
        if how == "drop":
            lines[number] = b""
        elif how == "bytes":
            lines[number] = line[:place] + draw(st.binary(max_size=8)) + line[place + 3 :]
        elif how == "cell":
            cells = line.split(b"\t")
            cells[draw(st.integers(0, len(cells) - 1))] = draw(
                st.sampled_from([b"N/A", b"", b"NV" + b"9" * 40, b"GPU" + b"9" * 40, b"X", b"PHB", b"GPU5"])
            )
            lines[number] = b"\t".join(cells)
        else:
            other = draw(st.integers(0, len(lines) - 1))
            lines[number], lines[other] = lines[other], line
    whole = b"".join(lines)
    end = draw(st.integers(0, len(whole))) if draw(st.booleans()) else len(whole)
    return whole[:end].decode(errors="replace")


TOPO_NAMES = [path.name for path in SAMPLES.glob("*topo_*.txt")]


@settings(max_examples=200, deadline=None)
@given(damaged(TOPO_NAMES), st.sampled_from([topology.parse_topo, topology.parse_p2p]))
def test_damaged_text_gives_a_square_of_known_words(text, parse):
    found = parse(text)
    assert len(found.matrix) == len(found.indices)
    assert all(len(row) == len(found.indices) for row in found.matrix)
    assert {f"GPU{index}" for index in found.indices} <= set(re.findall(r"GPU\d+", text))
    words = set().union(*found.matrix) - {"X", ""}
    assert all(word in text or (word == "SYS" and "SOC" in text) for word in words)
    assert all(re.search(rf"(?<!\d){node}(?!\d)", text) for node in found.numa_nodes.values())
    assert all(cpus in text for cpus in found.cpu_affinity.values())


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "index": st.one_of(st.none(), st.integers(0, 9)),
                "usable": st.sampled_from([True, True, False]),
                "name": st.sampled_from(["a", "b", None]),
                "pci_device_id": st.sampled_from(["10de:2230", None]),
                "memory_total_mib": st.sampled_from([49140, 24576, None]),
                "numa_node": st.sampled_from([0, 1, None]),
            }
        ),
        max_size=10,
        unique_by=lambda one: one["index"] if one["index"] is not None else id(one),
    ),
    st.lists(st.lists(st.sampled_from(["X", "NV4", "NV12", "PIX", "PHB", "SYS", "", "QPI", "NVx"]), max_size=10), max_size=10),
)
def test_any_host_gives_groups_of_usable_equal_gpus(gpus, matrix):
    groups = topology.best_groups(gpus, linked(matrix))
    by_index = {one["index"]: one for one in gpus if one["usable"]}
    assert [group["size"] for group in groups] == [1, 2, 4, 8][: len(groups)]
    assert bool(groups) == any(index is not None for index in by_index)
    for group in groups:
        members = [by_index[index] for index in group["indices"]]
        assert len(set(group["indices"])) == group["size"] == len(group["uuids"])
        assert len({(one["name"], one["pci_device_id"], one["memory_total_mib"]) for one in members}) == 1
        assert group["link"] in (None, "NV4", "NV12", "PIX", "PHB", "SYS")


def test_peer_access_of_the_gpus_that_are_asked_for():
    pairs = topology.pairs_of(topology.parse_p2p(sample("topo_p2p_rw_gns.txt")))
    assert pairs == {(0, 1): "GNS", (1, 0): "GNS"}
    assert topology.peer_matrix([0, 1], pairs) == [["X", "GNS"], ["GNS", "X"]]
    assert topology.peer_matrix([0, 2], pairs) == [["X", "U"], ["U", "X"]]
    assert topology.peer_matrix([0, 1], {}) == []
