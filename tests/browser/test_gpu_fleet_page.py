"""The page of the fleet report as a browser sees it: on a phone and on a desk, light and dark."""

from __future__ import annotations

import pathlib
import typing as t

import gpu_results
import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_fleet import fleet, outcome
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_fleet_page import page
from ansible_collections.firstlight.sglang.plugins.plugin_utils.report import html
from chromium import DESK, FAINT, LOOKS, PHONE, Browser


@pytest.fixture(scope="module")
def browser() -> t.Iterator[Browser]:
    with Browser() as one:
        yield one


def write(directory: pathlib.Path, results: t.Mapping[str, t.Any]) -> pathlib.Path:
    document = fleet({host: outcome(result) for host, result in results.items()}, "2026-12-01T08:18:00Z")
    file = directory / "gpu_inventory.html"
    file.write_text(html("gpu_fleet.html.j2", page=page(document)), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write(tmp_path_factory.mktemp("small"), gpu_results.fixture_fleet())


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_it_asks_for_nothing_complains_of_nothing_and_fits(browser, small, width, dark):
    browser.show(small, width=width, dark=dark, mobile=width == PHONE)
    assert browser.requests() == [small.as_uri()]
    assert browser.complaints() == []
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate("document.querySelectorAll('details[open] .gpu').length") == 17, "a small fleet is shown unfolded"


@pytest.mark.parametrize("dark", [False, True])
def test_every_letter_can_be_read(browser, small, dark):
    browser.show(small, width=DESK, dark=dark)
    found = browser.evaluate(FAINT)
    assert found["seen"] > 300
    assert found["faint"] == []


def test_the_two_colour_schemes_differ(browser, small):
    shades = set()
    for dark in (False, True):
        browser.show(small, width=DESK, dark=dark)
        shades.add(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(shades) == 2


def test_those_who_cannot_see_it_can_read_it(browser, small):
    browser.show(small, width=PHONE, mobile=True)
    bare = "[...document.querySelectorAll('{}')].filter((node) => !({})).length"
    assert browser.evaluate(bare.format("svg", "node.ariaHidden || node.querySelector('title')?.textContent.trim()")) == 0
    assert browser.evaluate(bare.format("th", "node.scope")) == 0
    assert browser.evaluate(bare.format("section", "document.getElementById(node.getAttribute('aria-labelledby'))")) == 0
    levels = browser.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map((node) => +node.tagName[1])")
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:])), "no level is skipped"
    assert browser.evaluate("document.documentElement.lang") == "en"


def test_a_problem_leads_to_its_host(browser, small):
    browser.show(small, width=DESK)
    target = "document.querySelector(a.hash)?.querySelector('h3').textContent"
    pairs = browser.evaluate(f"[...document.querySelectorAll('.problem a')].map((a) => [a.textContent, {target}])")
    assert len(pairs) == 5
    assert all(link == host for link, host in pairs)


def test_long_words_break_on_a_phone(browser, tmp_path):
    long = "x" * 300
    host = gpu_results.two_a6000()
    host["gpus"][0].update(name=long, uuid=long)
    host["problems"].append(gpu_results.problem(long, "error", long, long, long))
    browser.show(
        write(tmp_path, {long: host, f"{long}1": {"unreachable": True, "msg": long}, f"{long}2": gpu_results.result()}),
        width=PHONE,
        mobile=True,
    )
    assert browser.evaluate("document.documentElement.scrollWidth") == PHONE


def test_paper_shows_what_is_folded(browser, tmp_path):
    results = {f"host{number}": gpu_results.two_a6000() for number in range(20)}
    browser.show(write(tmp_path, results), width=DESK)
    shown = "[...document.querySelectorAll('.gpu')].filter((node) => node.checkVisibility()).length"
    assert browser.evaluate(shown) == 0, "a larger fleet is folded"
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate(shown) == 40
    assert browser.evaluate("document.querySelector('details.host').offsetHeight") > 300


def test_a_thousand_hosts_stay_usable(browser, tmp_path):
    file = write(tmp_path, gpu_results.large_fleet(1000))
    assert file.stat().st_size < 10e6
    assert browser.show(file, width=PHONE, mobile=True) < 20
    assert browser.complaints() == []
    assert browser.evaluate("document.documentElement.scrollWidth") == PHONE
    assert browser.evaluate("document.querySelectorAll('details.host').length") == 990
    host = "document.querySelectorAll('details.host')[500]"
    browser.evaluate(f"(() => {{ {host}.open = true; {host}.scrollIntoView(); }})()")
    browser.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert browser.evaluate(f"{host}.offsetHeight") > 500
