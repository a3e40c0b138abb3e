"""How the numbers of a plan are written."""

from __future__ import annotations

import plan_results
import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _plan_words as words


@pytest.mark.parametrize(
    ("values", "text"),
    [([0], "0"), ([0, 1], "0 and 1"), ([0, 1, 2], "0-2"), ([7, 0, 1, 2, 4, 5], "0-2, 4 and 5, 7"), ([3, 5], "3, 5")],
)
def test_indices(values, text):
    assert words.indices(values) == text


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({}, ""),
        ({"tp_size": 2, "enable_metrics": True}, "--tp-size 2 --enable-metrics"),
        ({"kv_cache_dtype": "fp8_e4m3", "speculative_algorithm": None}, "--kv-cache-dtype fp8_e4m3, without --speculative-algorithm"),
        ({"speculative_algorithm": None, "disable_overlap_schedule": False}, "without --speculative-algorithm --disable-overlap-schedule"),
        ({"cuda_graph_bs_decode": [1, 2]}, "--cuda-graph-bs-decode 1 2"),
        ({"json_model_override_args": '{"a": 1}'}, """--json-model-override-args '{"a": 1}'"""),
        ({"model_loader_extra_config": {"a": 1}}, """--model-loader-extra-config '{"a": 1}'"""),
    ],
)
def test_flags_can_be_pasted(args, text):
    assert words.flag_words(args) == text


@pytest.mark.parametrize(
    ("value", "interval", "text"),
    [
        (19198, [16400, 22100], "19,198 (between 16,400 and 22,100)"),
        (1, [1, 1], "1"),
        (5, None, "5"),
        (5, [None, None], "5"),
        (None, None, "not known"),
    ],
)
def test_a_number_and_what_it_lies_between(value, interval, text):
    assert words.between(value, interval) == text


def test_gpus_that_are_alike_are_one_card():
    cards = words.cards(plan_results.large())
    assert [card.members for card in cards] == [[0, 1, 2, 4, 5, 6, 7], [3]]
    assert [card.over_gib for card in cards] == [0.0, 0.0]
    for card in cards:
        assert sum(share.gib for share in card.shares) == pytest.approx(card.total_gib)


def test_parts_in_the_order_of_the_bar_and_none_is_lost():
    plan = plan_results.fits()
    plan["per_gpu"][0]["components"].update(new_part=0.5, reserve=0.25)
    plan["per_gpu"][0]["components"]["unused"] -= 0.75
    (card,) = words.cards(plan)
    assert [share.part.key for share in card.shares] == [
        "in_use_by_others", "driver", "weights", "kv_pool", "cuda_graphs", "activations", "reserve", "unused", "new_part",
    ]  # fmt: skip
    assert sum(share.gib for share in card.shares) == pytest.approx(card.total_gib)


def test_what_is_larger_than_the_card_is_told():
    (card,) = words.cards(plan_results.does_not_fit())
    assert card.over_gib == pytest.approx(0.83 + 130.4 - 24564 / 1024)


def test_every_part_has_a_letter_of_its_own():
    assert len({part.letter for part in words.PARTS}) == len(words.PARTS) == len({part.tone for part in words.PARTS})


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (True, "4 requests at once, each of 131,072 tokens: reached"),
        (False, "4 requests at once, each of 131,072 tokens: not reached"),
        (None, "4 requests at once, each of 131,072 tokens: not known"),
    ],
)
def test_wishes(wanted, text):
    plan = {**plan_results.ct129(), "wanted": wanted}
    assert words.wish_words({**plan, "interval": {"max_total_num_tokens": [600_000, 700_000]}}) == text
    if wanted:
        assert words.wish_words(plan) == f"{text}, but not with the largest overheads that were seen"
    assert words.wish_words(plan_results.fits()) is None


def test_what_is_not_known_of_the_host_is_left_out():
    assert words.host_words(plan_results.does_not_fit()) is None
    assert words.host_words(plan_results.ct129()).startswith("13.9 GiB of memory, 1.00 GiB of /dev/shm, 51.7 GiB on disk; loading: about")
