"""The page of plans as a browser sees it: bars that are as long as the numbers beside them, on a phone and on a desk, light and dark."""

from __future__ import annotations

import pathlib
import typing as t

import plan_results
import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils._plan_page import Entry, page
from ansible_collections.firstlight.sglang.plugins.plugin_utils.report import html
from chromium import DESK, FAINT, LOOKS, PHONE, Browser

PLANS = {
    "gpu1: qwen": plan_results.ct129,
    "gpu2: small": plan_results.fits,
    "gpu3: large": plan_results.does_not_fit,
    "gpu4": plan_results.large,
}
# Of each bar: its width, the widths of its parts, and where each begins.
BARS = """
[...document.querySelectorAll('svg.memory')].map((bar) => ({
  width: bar.getBoundingClientRect().width,
  left: bar.getBoundingClientRect().left,
  parts: [...bar.querySelectorAll('rect')].map((rect) => ({
    x: rect.getBoundingClientRect().left, width: rect.getBoundingClientRect().width, fill: getComputedStyle(rect).fill,
  })),
  edge: bar.querySelector('line')?.getBoundingClientRect().left ?? null,
}))
"""


@pytest.fixture(scope="module")
def browser() -> t.Iterator[Browser]:
    with Browser() as one:
        yield one


def write(directory: pathlib.Path, plans: t.Mapping[str, t.Any]) -> pathlib.Path:
    file = directory / "plan.html"
    entries = [Entry(where, plan) for where, plan in plans.items()]
    file.write_text(html("plan.html.j2", page=page(entries, "2026-12-01T08:18:00Z")), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write(tmp_path_factory.mktemp("plans"), {where: make() for where, make in PLANS.items()})


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_it_asks_for_nothing_complains_of_nothing_and_fits(browser, shown, tmp_path, width, dark):
    browser.show(shown, width=width, dark=dark, mobile=width == PHONE)
    assert browser.requests() == [shown.as_uri()]
    assert browser.complaints() == []
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    cut = "[...document.querySelectorAll('body *')].filter((node) => node.scrollWidth > node.clientWidth + 1 && node.clientWidth > 1"
    assert browser.evaluate(f"{cut} && !node.closest('svg')).map((node) => node.outerHTML.slice(0, 90))") == []
    picture = tmp_path / f"plan-{width}-{'dark' if dark else 'light'}.png"
    browser.screenshot(picture)
    print(picture)
    assert picture.stat().st_size > 10_000


def test_the_parts_of_a_bar_are_as_wide_as_their_numbers(browser, shown):
    browser.show(shown, width=DESK)
    bars = browser.evaluate(BARS)
    gpus = [gpu for make in PLANS.values() for gpu in sorted(make()["per_gpu"], key=lambda gpu: gpu["components"]["in_use_by_others"])]
    assert len(bars) == len(gpus) == 12
    for bar, gpu in zip(bars, gpus):
        total, parts = gpu["memory_total_mib"] / 1024, [gib for gib in gpu["components"].values() if gib]
        whole = max(total, sum(parts))
        assert bar["width"] > 500
        assert sorted(part["width"] for part in bar["parts"]) == pytest.approx(
            [gib / whole * bar["width"] for gib in sorted(parts)], abs=0.6
        )
        assert sum(part["width"] for part in bar["parts"]) == pytest.approx(bar["width"], abs=1)
        place = bar["left"]
        for part in bar["parts"]:
            assert part["x"] == pytest.approx(place, abs=1), "no gap and no overlap"
            place += part["width"]
        assert len({part["fill"] for part in bar["parts"]}) == len(parts), "each part has a colour of its own"
    over = [bar for bar in bars if bar["edge"] is not None]
    assert len(over) == 1, "only weights that do not fit go beyond the card"
    assert over[0]["edge"] - over[0]["left"] == pytest.approx(over[0]["width"] * (24564 / 1024) / (0.83 + 130.4), abs=2)


@pytest.mark.parametrize("dark", [False, True])
def test_every_letter_can_be_read(browser, shown, dark):
    browser.show(shown, width=DESK, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    found = browser.evaluate(FAINT)
    assert found["seen"] > 200
    assert found["faint"] == []


def test_the_two_colour_schemes_differ(browser, shown):
    shades = set()
    for dark in (False, True):
        browser.show(shown, width=DESK, dark=dark)
        shades.add(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(shades) == 2


def test_every_plan_can_be_reached_and_says_its_numbers(browser, shown):
    browser.show(shown, width=DESK)
    title = "document.querySelector(a.hash).querySelector('h2').innerText"
    pairs = browser.evaluate(f"[...document.querySelectorAll('header a')].map((a) => [a.textContent, {title}])")
    assert [link for link, _title in pairs] == list(PLANS)
    assert all(title.startswith(link) for link, title in pairs)
    text = browser.evaluate("document.body.innerText")
    for number in ("19,198", "341,815", "0.786051", "107.2 GiB more than the card has"):
        assert number in text


def test_long_words_break_on_a_phone(browser, tmp_path):
    plan = plan_results.ct129()
    plan["model"]["name"] = plan["reasons"][0] = plan["alternatives"][0]["what"] = "x" * 300
    browser.show(write(tmp_path, {"y" * 300: plan}), width=PHONE, mobile=True)
    assert browser.evaluate("document.documentElement.scrollWidth") == PHONE


def test_what_a_model_says_of_itself_stays_text(browser, tmp_path):
    plan = plan_results.fits()
    plan["model"]["name"] = "<img src=x onerror=alert(1)><b>bold</b>"
    browser.show(write(tmp_path, {"": plan}), width=DESK)
    assert browser.complaints() == []
    assert browser.evaluate("document.querySelectorAll('img, h2 b').length") == 0
    assert "<b>bold</b>" in browser.evaluate("document.querySelector('h2').innerText")
