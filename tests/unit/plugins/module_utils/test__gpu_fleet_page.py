from __future__ import annotations

import re

import gpu_results
import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_fleet as fleet
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_fleet_page as module
from ansible_collections.firstlight.sglang.plugins.plugin_utils import report

TIME = "2026-12-01T08:18:00Z"


def page_of(results):
    return module.page(fleet.fleet({host: fleet.outcome(result) for host, result in results.items()}, TIME))


def html_of(results):
    return report.html("gpu_fleet.html.j2", page=page_of(results))


@pytest.fixture
def page():
    return page_of(gpu_results.fixture_fleet())


def cards(page, host):
    return next(one for one in page["hosts"] if one["name"] == host)["cards"]


def test_hosts_with_errors_come_first(page):
    assert [(host["name"], host["tone"]) for host in page["hosts"]] == [
        ("gpu10", "bad"),
        ("jupyter", "bad"),
        ("ws4", "bad"),
        ("ct129", "warning"),
        ("dgx1", "good"),
        ("h200-mig", "good"),
        ("spark1", "good"),
    ]
    assert page["without"] == ["web1", "web2"]


@pytest.mark.parametrize(
    ("host", "position", "kind", "share", "words"),
    [
        ("ct129", 0, "known", 83.9, "40.3 of 48.0 GiB"),
        ("spark1", 0, "unified", 7.1, "8.6 of 121.7 GiB, shared with the host"),
        ("jupyter", 0, "unknown", None, "unknown (no permission)"),
        ("ws4", 0, "unknown", None, "95.6 GiB, used: unknown"),
    ],
)
def test_a_bar_shows_what_is_known(page, host, position, kind, share, words):
    assert cards(page, host)[position]["memory"] == {"share": share, "kind": kind, "words": words}


def test_unified_memory_of_a_host_that_does_not_say_is_unknown():
    spark = gpu_results.gb10()
    spark["memory_available_mib"] = None
    memory = cards(page_of({"h": spark}), "h")[0]["memory"]
    assert (memory["kind"], memory["share"]) == ("unknown", None)


def test_mig_devices_that_share_memory_say_so(page):
    card = cards(page, "h200-mig")[0]
    assert card["health"] == "healthy, split by MIG"
    assert [device["memory"]["words"] for device in card["mig"]] == [
        "22 MiB of 69.8 GiB",
        "22 MiB of 69.8 GiB, shared with the one above",
        "17 MiB of 32.5 GiB",
    ]


def test_a_slow_idle_link_is_no_news_and_a_narrow_one_is(page):
    facts = [card["facts"] for card in cards(page, "ct129")]
    assert "PCIe 4 x16" in facts[0]
    assert "PCIe 4 x8 (x16 possible)" in facts[1]


def test_what_processes_hold_is_told_when_all_say_it():
    for memory, words in ((2048, "2 processes with 3.0 GiB"), (None, "2 processes")):
        gpu = gpu_results.gpu(processes=[{"pid": 1, "memory_used_mib": 1024}, {"pid": 2, "memory_used_mib": memory}])
        assert words in cards(page_of({"h": gpu_results.result([gpu])}), "h")[0]["facts"]


def test_the_bar_of_a_model_hides_no_gpu(page):
    bars = {model["name"]: model["bar"] for model in page["models"]}
    assert bars["NVIDIA RTX A6000"]["share"] == 43.0
    assert bars["NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"] == {
        "share": None,
        "kind": "unknown",
        "words": "use of 3 not known",
    }


@pytest.mark.parametrize("health", ["ok", "degraded", "needs_reset", "lost", "no_driver", "passed_through", "unknown", "brand_new"])
def test_every_health_has_words_and_a_sign(health):
    card = cards(page_of({"h": gpu_results.result([gpu_results.gpu(health=health)])}), "h")[0]
    assert card["health"]
    assert card["tone"] in module.SIGNS


@pytest.mark.parametrize(
    ("word", "name"), [("NV18", "nv"), ("NV", "other"), ("X", "x"), ("PIX", "pix"), ("SYS", "sys"), ("N/A", "other"), ("CNS", "other")]
)
def test_links_have_colours_by_their_word(word, name):
    assert module.link_class(word) == name


def test_a_matrix_that_is_none_is_left_out():
    host = gpu_results.two_a6000()
    host["topology"]["matrix"] = [["X"], ["NV4", "X"]]
    assert page_of({"h": host})["hosts"][0]["topology"] is None


def test_one_problem_of_many_hosts_is_one_entry():
    page = page_of(gpu_results.large_fleet(1000))
    assert [(group["title"], group["hosts"], len(group["where"])) for group in page["problems"]] == [("GPU lost", 10, 10)]
    assert page["problems"][0]["action"] == "Reboot the host."


def test_different_things_to_do_stay_with_their_hosts():
    one, two = gpu_results.mismatch(), gpu_results.mismatch()
    two["problems"][0]["action"] = "Ask the owner."
    group = page_of({"a": one, "b": two})["problems"][0]
    assert group["action"] is None
    text = html_of({"a": one, "b": two})
    assert "Reboot, or unload and load the modules." in text
    assert "Ask the owner." in text


def test_everything_a_host_says_is_escaped():
    evil = "</title><script>alert(1)</script>'\"&"
    gpu = gpu_results.gpu(name=evil, uuid=evil, pci_bus_id=evil, serial=evil, health=evil)
    gpu["mig_devices"] = [{"index": 0, "name": evil, "uuid": evil, "memory_total_mib": 1, "memory_used_mib": 1, "gpu_instance_id": evil}]
    host = gpu_results.result(
        [gpu, dict(gpu)],
        **dict.fromkeys(("driver_version", "virtualization", "secure_boot"), evil),
        group_names=[evil],
        problems=[gpu_results.problem(evil, evil, evil, evil, evil)],
        topology={"indices": [evil, evil], "matrix": [[evil, evil], [evil, evil]], "source": evil},
        gpu_groups=[{"size": 2, "indices": [evil], "link": evil}],
    )
    text = html_of({evil: host, f"{evil}2": {"unreachable": True, "msg": evil}, f"{evil}3": gpu_results.result()})
    assert "<script" not in text
    assert text.count("alert(1)") > 20, "nothing was tested"
    assert "'\"&" not in text, "a quote can end an attribute"


def test_a_page_asks_for_nothing():
    text = html_of(gpu_results.fixture_fleet())
    assert not re.search(r"<(script|link|img|iframe|object|embed|use)\b(?![^>]*href=\"data:,\")", text)
    assert not re.search(r"url\(|@import|@font-face|https?://", text)


def test_a_page_that_is_limited_says_so():
    document = fleet.fleet({"h": fleet.outcome(gpu_results.result())}, TIME, 11)
    assert ("limited to 1 of 12 hosts", "warning") in module.page(document)["tiles"][0]["notes"]
    assert "Limited to 1 of 12 hosts." in report.html("gpu_fleet.html.j2", page=module.page(document))


def test_a_model_whose_memory_is_not_known_says_so_once(page):
    lost = next(model for model in page["models"] if model["name"] == "PCI 10de:2bb4")
    assert (lost["memory"], lost["bar"]["words"]) == ("not known", "")


def test_an_empty_fleet_is_a_page():
    text = html_of({"gpu9": None})
    assert "None found on the hosts that answered." in text
    assert "gpu9" in text
