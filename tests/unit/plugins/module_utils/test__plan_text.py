"""A plan in a terminal of 80 columns, and as Markdown."""

from __future__ import annotations

import re

import plan_results
import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _plan_text, _plan_words
from hypothesis import given
from hypothesis import strategies as st

PLANS = [plan_results.ct129, plan_results.fits, plan_results.does_not_fit, plan_results.large]
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("make", PLANS)
@pytest.mark.parametrize("explain", [False, True])
def test_it_fits_eighty_columns_and_says_the_numbers(make, explain):
    plan = make()
    text = _plan_text.text(plan, explain=explain)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    verdict = {"fits": "FITS", "fits_with_changes": "FITS WITH CHANGES", "does_not_fit": "DOES NOT FIT"}[plan["verdict"]]
    assert verdict in text.splitlines()
    assert f"{plan['max_total_num_tokens']:,}" in text
    assert ("Where the numbers come from" in text) == explain
    assert ("asked for" in text) == (plan["wanted"] is not None)
    for one in (*plan["reasons"], *plan["warnings"]):
        assert one in " ".join(text.split())


@pytest.mark.parametrize("make", PLANS)
def test_colours_change_nothing_but_colours(make):
    painted = _plan_text.text(make(), colours=True)
    assert "\x1b[" in painted
    assert ESCAPE.sub("", painted) == _plan_text.text(make())


def test_the_letters_of_a_bar_are_the_shares_of_the_card():
    plan = plan_results.ct129()
    bar = re.search(r"^ \[(.*)\]$", _plan_text.text(plan), re.MULTILINE)[1]
    assert len(bar) == 76
    parts = plan["per_gpu"][0]["components"]
    for part in _plan_words.PARTS:
        share = parts.get(part.key, 0.0) / (49140 / 1024) * 76
        assert bar.count(part.letter) == pytest.approx(share, abs=1), part.key
    assert bar == "".join(sorted(bar, key=[part.letter for part in _plan_words.PARTS].index)), "in one order"


def test_a_bar_that_is_longer_than_the_card_shows_where_it_ends():
    lines = _plan_text.text(plan_results.does_not_fit()).splitlines()
    place = next(number for number, line in enumerate(lines) if "^ the card ends here" in line)
    assert lines[place].index("^") == pytest.approx(2 + 76 * 23.99 / 131.23, abs=1)
    assert lines[place - 1].count("W") == 76
    assert "107.2 GiB more than the card has" in lines[place + 1]


def test_a_card_that_is_nearly_large_enough():
    plan = plan_results.does_not_fit()
    plan["per_gpu"][0]["components"]["weights"] = 23.5
    line = next(line for line in _plan_text.text(plan).splitlines() if "the card ends here" in line)
    assert line.endswith("the card ends here ^")
    assert len(line) == pytest.approx(3 + 76 * 23.99 / 24.33, abs=1)


def test_alternatives_are_in_their_order_with_flags_to_paste():
    text = _plan_text.text(plan_results.ct129())
    places = [text.index(one["what"]) for one in plan_results.ct129()["alternatives"]]
    assert places == sorted(places)
    assert "--kv-cache-dtype fp8_e4m3" in text
    assert "without --speculative-algorithm" in text
    assert re.search(r"without MTP +148,132 +8 +148,131  yes$", text, re.MULTILINE)


def test_flags_are_not_broken_at_their_dashes():
    text = _plan_text.text(plan_results.ct129())
    for flag in ("--mamba-radix-cache-strategy", "--speculative-num-draft-tokens", "--max-running-requests"):
        assert flag in text


def test_control_characters_of_a_name_stay_out_of_the_terminal():
    plan = plan_results.fits()
    plan["model"]["name"] = "evil\x1b[2Jname\x07"
    assert "\x1b" not in _plan_text.text(plan)
    assert "\x07" not in _plan_text.text(plan)


@pytest.mark.parametrize("make", PLANS)
def test_markdown_has_tables_of_one_width_and_every_number(make):
    plan = make()
    text = _plan_text.markdown(plan)
    tables = [part for part in text.split("\n\n") if part.startswith("|")]
    assert len(tables) >= 2
    for table in tables:
        counts = {re.sub(r"\\\|", "", line).count("|") for line in table.splitlines()}
        assert len(counts) == 1, table
    assert f"{plan['max_total_num_tokens']:,}" in text
    assert [line for line in text.splitlines() if line.startswith("# ")] == [text.splitlines()[0]]
    for one in plan["alternatives"]:
        assert f"{one['max_total_num_tokens']:,}" in text


def test_markdown_of_a_name_stays_text():
    plan = plan_results.fits()
    plan["model"]["name"] = "a|b<script>*x*\n# h"
    first = _plan_text.markdown(plan).splitlines()[0]
    assert "a\\|b\\<script\\>\\*x\\* \\# h on" in first


@given(st.lists(st.floats(0, 1000), max_size=9), st.floats(0.1, 1000))
def test_cells_never_exceed_the_bar_and_never_lose_a_part_of_two_cells(parts, whole):
    shares = [_plan_words.Share(_plan_words.PARTS[number], gib) for number, gib in enumerate(parts)]
    counts = _plan_text.cells(shares, 76, whole)
    assert sum(counts) <= 76
    scale = max(whole, sum(parts))
    for gib, count in zip(parts, counts):
        assert abs(gib / scale * 76 - count) <= 1
