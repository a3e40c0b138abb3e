"""docs/plan-accuracy.md and docs/ct129.md are what the plan says today, and no judged start is missed without a reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import plan_pages


@pytest.fixture(scope="module")
def made():
    return plan_pages.accuracy()


def test_the_page_is_current(made):
    assert plan_pages.ACCURACY.read_text(encoding="utf-8") == made[0], "run python tools/plan_pages.py"


def test_the_page_of_ct129_is_current():
    assert plan_pages.CT129.read_text(encoding="utf-8") == plan_pages.ct129(), "run python tools/plan_pages.py"


def test_no_judged_start_is_missed_without_a_reason(made):
    assert made[1] == []


def test_a_miss_is_noticed():
    row = plan_pages.Row("x", "0.5.23", 1000, 4, 1031, 5, 1051, (1001, 1002), True)
    assert plan_pages.misses(row, exact=False) == [
        "tokens from free memory and weights",
        "tokens from the configuration",
        "interval",
        "requests",
    ]


def test_every_reason_is_of_a_start_that_is_missed(made):
    for name in plan_pages.REASONS:
        assert f"- {name} (" in made[0]
