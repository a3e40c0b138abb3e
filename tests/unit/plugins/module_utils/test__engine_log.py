from __future__ import annotations

import pathlib

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _engine_log as log

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
TP0, TP1 = "[2026-12-01 03:17:57 TP0] ", "[2026-12-01 03:17:57 TP1] "


def captured(name):
    return log.lines_of((FIXTURES / f"logs/{name}.log").read_text())


JOURNAL = log.parse_journal((FIXTURES / "systemd/journal_0.5.23_cpu.json").read_text())


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("B_q27_mtp_default", "ready"),
        ("J_q06_default", "draining"),
        ("K01_unknown_flag", "importing"),
        ("K05_fraction_too_small", "allocating_pools"),
        ("K09_tp2_on_one_gpu", "connecting_ranks"),
        ("K11_gpu_occupied", "loading_weights"),
        ("K12_sigterm_while_loading", "loading_weights"),
        ("K18_port_taken", "warming_up"),
        ("K19_path_without_smi_and_binutils", "capturing_graphs"),
    ],
)
def test_the_phase_is_that_of_the_last_marker(name, phase):
    assert log.read_phase(captured(name)).phase == phase


def test_phases_have_words_and_a_place_in_the_order():
    assert set(log.PHASE_WORDS) == set(log.PHASES)


def test_nothing_logged_is_starting():
    assert log.read_phase([]) == log.PhaseReading("starting", None, None, "")


def test_percent_only_where_the_log_says_so():
    lines = log.lines_of(f"{TP0}Load weight begin. avail mem=46.65 GB\nLoading shards:  50% Completed | 2/4 [00:01<00:01,  1.5it/s]")
    assert log.read_phase(lines).percent == 50
    assert log.read_phase(lines[:1]).percent is None


def test_numbers_with_a_draft_model():
    numbers = log.read_numbers(captured("B_q27_mtp_default"))
    assert numbers["max_total_num_tokens"] == 521317
    assert numbers["max_running_requests"] == 28
    assert numbers["max_running_requests_wanted"] == 48
    assert numbers["context_len"] == 262144
    assert [model["memory_gib"] for model in numbers["weights"]] == [51.05, 5.53]
    assert [cache["k_gib"] for cache in numbers["kv_caches"]] == [15.91, 0.99]
    assert numbers["state_cache"]["ssm_state_gib"] == 19.97
    assert numbers["state_cache"]["max_mamba_cache_size"] == 141
    assert numbers["graphs"] == [{"what": "target verify", "seconds": 65.4, "memory_gib": 0.4}]


def test_rank_0_speaks_for_all_ranks():
    line = "Load weight end. elapsed=1.5 s, type=Qwen3ForCausalLM, avail mem=20.00 GB, mem usage=25.48 GB."
    assert len(log.read_numbers(log.lines_of(f"{TP0}{line}\n{TP1}{line}"))["weights"]) == 1


def test_the_journal_of_a_real_start():
    """server_args is over 4096 bytes, so its message is null; the progress bar comes as bytes."""
    assert len(JOURNAL) == 82
    assert log.read_phase(JOURNAL).phase == "ready"
    numbers = log.read_numbers(JOURNAL)
    assert numbers["max_total_num_tokens"] == 20000
    assert numbers["kv_caches"][0]["dtype"] == "torch.bfloat16"
    assert log.ready_at(JOURNAL) == pytest.approx(2089, abs=2)
    bar = next(line.text for line in JOURNAL if "Completed" in line.text)
    assert log.clean_line(bar).startswith("Multi-thread loading shards: 100% Completed | 1/1")


def test_a_cut_or_foreign_journal_is_read_as_far_as_it_goes():
    text = '{"MESSAGE": "a", "__MONOTONIC_TIMESTAMP": "1500000"}\n[]\n{"MESSAGE": [27, 91, 49, 109, 255]}\n{"MESSAGE": "cut'
    lines = log.parse_journal(text)
    assert [line.monotonic_s for line in lines] == [1.5, None]
    assert log.clean_line(lines[1].text) == "\ufffd"


def test_head_and_tail_are_joined_without_doubles():
    lines = [log.LogLine(float(number), str(number), f"c{number}") for number in range(5)]
    assert log.join_parts(lines[:3], lines[2:]) == lines


@pytest.mark.parametrize(
    "text",
    [
        "api_key='SENTINEL'",
        'admin_api_key="SENTINEL"',
        "--api-key SENTINEL",
        "--admin-api-key=SENTINEL",
        '{"api_key": "SENTINEL"}',
        "Bearer SENTINEL",
    ],
)
def test_a_key_is_masked(text):
    assert "SENTINEL" not in log.hide_secrets(text, ["SENTINEL"])
    if "Bearer" not in text:
        assert "SENTINEL" not in log.hide_secrets(text)
