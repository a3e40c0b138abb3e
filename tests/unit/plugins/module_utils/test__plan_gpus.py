"""GPUs of a plan: the table of known cards, names as people write them, and results of gpu_info."""

from __future__ import annotations

import json
import pathlib
import re

import gpu_results
import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_generations, _plan_gpus
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = pathlib.Path(__file__).parents[3] / "fixtures/gpu"


def test_the_table_is_large_and_sane():
    assert len(_plan_gpus.KNOWN) >= 40
    assert len({card.name for card in _plan_gpus.KNOWN.values()}) == len(_plan_gpus.KNOWN)
    for short, card in _plan_gpus.KNOWN.items():
        assert 10_000 < card.memory_total_mib < 300_000, short
        assert _gpu_generations.by_compute_capability(card.compute_capability) is not None, short
        assert card.source, short
        assert all(0.85 < other / card.memory_total_mib < 1.15 for other in card.others), short


@pytest.mark.parametrize("short", _plan_gpus.KNOWN)
def test_a_size_in_a_name_is_the_size(short):
    size = re.search(r"-(\d+)gb", short)
    if size and short != "gb10":
        assert 0.93 < _plan_gpus.KNOWN[short].memory_total_mib / 1024 / int(size[1]) < 1.01


@pytest.mark.parametrize("short", _plan_gpus.KNOWN)
def test_the_full_name_finds_the_same_card(short):
    assert _plan_gpus.by_name(_plan_gpus.KNOWN[short].name).gpus == _plan_gpus.by_name(short).gpus


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("NVIDIA H200", r"NVIDIA H200, .*?, (\d+) MiB, 0 MiB"),
        ("NVIDIA L40S", r"NVIDIA L40S, .*?, (\d+) MiB, 609 MiB"),
        ("NVIDIA GeForce RTX 5090", r"NVIDIA GeForce RTX 5090, .*?, (\d+) MiB"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", r"PRO 6000 Blackwell Workstation Edition, .*?, (\d+) MiB, 12"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", r"Max-Q Workstation Edition, .*?, (\d+) MiB"),
    ],
)
def test_the_sizes_are_those_of_the_recordings(name, pattern):
    texts = "\n".join(path.read_text() for path in sorted(FIXTURES.glob("*.csv")))
    sizes = {int(size) for size in re.findall(pattern, texts)}
    assert sizes == {_plan_gpus.by_name(name).gpus[0].memory_total_mib}


@pytest.mark.parametrize(("host", "short"), [("2x_a6000", "rtx-a6000"), ("8x_h100", "h100-80gb")])
def test_the_sizes_are_those_of_the_recorded_hosts(host, short):
    answers = json.loads((FIXTURES / f"hosts/{host}/nvidia-smi.json").read_text())
    text = next(answer["stdout"] for answer in answers if answer["argv"] == ["-q", "-x"])
    assert set(re.findall(r"<fb_memory_usage>\s*<total>(\d+) MiB", text)) == {str(_plan_gpus.KNOWN[short].memory_total_mib)}


def test_a_spark_has_the_memory_of_its_host():
    kib = int(re.search(r"MemTotal:\s+(\d+) kB", (FIXTURES / "meminfo_gb10.txt").read_text())[1])
    card = _plan_gpus.by_name("gb10")
    assert (card.gpus[0].memory_total_mib, card.gpus[0].unified) == (kib // 1024, True)
    assert "its memory is the host's" in card.notes[0]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("2x rtx-a6000", ["NVIDIA RTX A6000"] * 2),
        ("8x h100-80gb", ["NVIDIA H100 80GB HBM3"] * 8),
        ("1x rtx-4090", ["NVIDIA GeForce RTX 4090"]),
        ("RTX 4090", ["NVIDIA GeForce RTX 4090"]),
        ("2 × NVIDIA RTX A6000", ["NVIDIA RTX A6000"] * 2),  # noqa: RUF001
        ("2 a6000", ["NVIDIA RTX A6000"] * 2),
        ("4X_L40S".replace("_", " "), ["NVIDIA L40S"] * 4),
        ("1x rtx-5090, 1x rtx_4090", ["NVIDIA GeForce RTX 5090", "NVIDIA GeForce RTX 4090"]),
    ],
)
def test_names(text, names):
    found = _plan_gpus.by_name(text)
    assert (found.problems, [gpu.name for gpu in found.gpus]) == ((), names)
    assert [gpu.index for gpu in found.gpus] == list(range(len(names)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1x 24gb", ["24gb: a size, not a GPU; write which one it is, such as ", "rtx-3090", "rtx-4090"]),
        ("1x 80 GiB", ["80 GiB: a size, not a GPU", "h100-80gb"]),
        ("1x 7gb", ["7gb: a size, not a GPU; write which one it is"]),
        ("2x rtx-a600", ["rtx-a600: not a GPU that is known", "did you mean rtx-a6000"]),
        ("2x a100", ["several sizes; write a100-80gb or a100-40gb"]),
        ("0x t4", ["expected 1 to 64 GPUs of one host, found 0"]),
        ("999999999x t4", ["expected 1 to 64"]),
        ("-2x t4", ["-2x t4: not a GPU"]),
        ("", ["expected a number and a name"]),
        ("2x t4,, 1x nonsense", ["expected a number and a name", "nonsense: not a GPU"]),
        ("1x a100 1g.10gb", ["MIG devices are not sized"]),
    ],
)
def test_what_is_no_gpu_is_told_all_at_once(text, words):
    found = _plan_gpus.by_name(text)
    assert found.gpus == ()
    for word in words:
        assert any(word in problem for problem in found.problems), found.problems


def test_a_card_that_prints_other_totals_says_so_once():
    notes = _plan_gpus.by_name("2x rtx-a6000").notes
    assert len(notes) == 1
    assert "counted with 49140 MiB; nvidia-smi prints 46068" in notes[0]
    assert _plan_gpus.by_name("rtx-4090").notes == ()


def test_the_result_of_gpu_info():
    host = gpu_results.two_a6000()
    host["gpus"][1]["memory_used_mib"] = 2048
    found = _plan_gpus.by_inventory(host)
    assert found.problems == ()
    assert [(gpu.index, gpu.memory_total_mib, gpu.compute_capability, gpu.used_mib) for gpu in found.gpus] == [
        (0, 49140, "8.6", host["gpus"][0]["memory_used_mib"] or 0),
        (1, 49140, "8.6", 2048),
    ]
    assert [gpu.index for gpu in _plan_gpus.by_inventory(host, [1]).gpus] == [1]
    assert [gpu.index for gpu in _plan_gpus.by_inventory(host, [host["gpus"][0]["uuid"]]).gpus] == [0]
    assert "expected GPU 7, found GPU 0, 1" in _plan_gpus.by_inventory(host, [0, 7]).problems[0]


def test_a_gpu_that_cannot_be_used_is_left_out_unless_it_is_asked_for():
    host = gpu_results.two_a6000()
    host["gpus"][0].update(usable=False, health="lost")
    found = _plan_gpus.by_inventory(host)
    assert ([gpu.index for gpu in found.gpus], found.notes) == ([1], ("GPU 0 cannot be used (lost); left out",))
    assert _plan_gpus.by_inventory(host, [0, 1]).problems == ("GPU 0 cannot be used (lost)",)
    host["gpus"][1].update(mig_enabled=True, usable=False)
    assert "GPU 1 is split by MIG" in _plan_gpus.by_inventory(host).problems[0]


def test_unified_memory_is_the_hosts():
    host = gpu_results.result(memory_total_mib=124610, memory_available_mib=100000)
    host["gpus"] = [{**gpu_results.two_a6000()["gpus"][0], "memory_kind": "unified", "memory_total_mib": None, "memory_used_mib": None}]
    gpu = _plan_gpus.by_inventory(host).gpus[0]
    assert (gpu.memory_total_mib, gpu.used_mib, gpu.unified) == (124610, 24610, True)


@pytest.mark.parametrize(
    "result",
    [
        None,
        [],
        {},
        {"gpus": "x"},
        {"gpus": []},
        {"gpus": [{}]},
        {"gpus": [{"memory_total_mib": -5}]},
        {"gpus": [{"memory_total_mib": True}]},
        {"gpus": [{"host": "a"}, {"host": "b"}]},
    ],
)
def test_what_is_no_result_of_gpu_info(result):
    found = _plan_gpus.by_inventory(result)
    assert found.gpus == ()
    assert found.problems


@given(st.text(max_size=60))
def test_any_text_gives_gpus_or_a_problem(text):
    found = _plan_gpus.by_name(text)
    assert bool(found.gpus) != bool(found.problems)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["gpus", "index", "memory_total_mib", "memory_kind", "usable", "name"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_data_gives_gpus_or_a_problem(data):
    found = _plan_gpus.by_inventory(data)
    assert bool(found.gpus) != bool(found.problems)
    assert all(gpu.memory_total_mib >= 256 and 0 <= gpu.used_mib <= gpu.memory_total_mib for gpu in found.gpus)
