"""Every rule about flags, broken and kept (tests/doubles/flag_cases.py), and rules against real starts and the release's own resolver."""

from __future__ import annotations

import importlib.util
import json
import pathlib

import model_fields
import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _flag_facts, _flag_rules, _flags, _model_config
from ansible_collections.firstlight.sglang.plugins.plugin_utils import flag_tables
from flag_cases import AMPERE, CASES, MTP, OTHER, Q27, RTX5090, Case, found
from flag_models import DEEPSEEK_V3, QWEN3_06B, QWEN3_8B, QWEN3_30B, QWEN36, QWEN36_RANK, gpus, pair, quantized
from hypothesis import given
from hypothesis import strategies as st

ROOT = pathlib.Path(__file__).parents[4]
STARTS = json.loads((ROOT / "tests/fixtures/flags/starts-0.5.15.post1.json").read_text())
HISTORY = flag_tables.history()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{'kept' if case.says is None else 'broken'}-{case.release}")
def test_a_rule_speaks_where_it_is_broken_and_nowhere_else(case):
    findings = found(case)
    if case.says is None:
        assert findings == []
        return
    assert any(case.says in finding.message for finding in findings), findings
    for finding in findings:
        assert ": expected " in finding.message
        assert ", found " in finding.message or "; found " in finding.message
        assert "; " in finding.message


def test_every_rule_is_broken_and_kept_in_a_release_it_holds_for():
    for rule in _flag_rules.RULES:
        cases = [case for case in CASES if case.rule == rule.id]
        assert any(case.says and rule.holds_for(case.release) for case in cases), rule
        assert any(case.says is None for case in cases), rule.id
    assert {case.rule for case in CASES} == {rule.id for rule in _flag_rules.RULES}


def test_rules_of_one_name_do_not_hold_for_the_same_release():
    for release in HISTORY.releases:
        names = [rule.id for rule in _flag_rules.RULES if rule.holds_for(release)]
        assert len(names) == len(set(names)), release


def test_a_rule_names_releases_of_the_tables_and_a_source():
    for rule in _flag_rules.RULES:
        assert {rule.first, rule.last} - {None} <= set(HISTORY.releases), rule.id
        assert rule.severity in ("error", "warning")
        assert rule.source


@pytest.mark.parametrize("release", HISTORY.releases)
def test_the_names_that_rules_read_are_those_of_the_release_whatever_the_spelling(release):
    fields: dict[str, set[str]] = {}
    for name, option in flag_tables.table(release).by_name.items():
        if not name.startswith("no_"):
            fields.setdefault(option["dest"], set()).add(_flag_facts.ALIASES.get(name, name))
    for dest, names in fields.items():
        if names & set(_flag_facts.READ):
            assert len(names) == 1, (dest, names)


def test_every_name_that_rules_read_is_a_flag_of_some_release():
    known = {_flag_facts.ALIASES.get(name, name) for name in HISTORY.spans}
    assert set(_flag_facts.READ) <= known
    assert set(_flag_facts.ALIASES) <= set(HISTORY.spans)


MODELS = {"q27": QWEN36, "q27rank": QWEN36_RANK, "q8": QWEN3_8B, "q06": QWEN3_06B, "nonexistent": None}
# Starts that their flags made fail -> the rule, or None where the flag table says it. The others of K failed for other reasons.
FAILED = {
    "K01_unknown_flag": None,
    "K02_context_too_long": "context-length",
    "K03_bad_backend_name": None,
    "K04_backend_wrong_gpu": "trtllm-mha-gpu",
    "K08_state_too_small": "hybrid-state-slots",
    "K09_tp2_on_one_gpu": "ranks-gpus",
    "K14_tp3_on_one_gpu": "ranks-gpus",
    "K15_topk_without_steps": "speculative-steps",
    "K16_nobuffer_overlap_mtp": "hybrid-no-buffer-overlap",
    "K20_mtp_with_lazy_extra_buffer": "hybrid-lazy-speculation",
}


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start["name"])
def test_what_started_is_taken_and_what_its_flags_made_fail_is_refused(start):
    _words, problems = _flags.check_args(flag_tables.table("0.5.15.post1"), start["args"], {})
    findings = _flag_rules.check(
        "0.5.15.post1", start["args"], MODELS[start["model"]], gpus("9.0", total=143771), environment=start.get("environment")
    )
    errors = {finding.rule for finding in findings if finding.severity == "error"}
    if start["name"] not in FAILED:
        assert (problems, errors) == ([], set())
    elif FAILED[start["name"]] is None:
        assert len(problems) == 1
        assert start["exit"] == 2
    else:
        assert problems == []
        assert FAILED[start["name"]] in errors
        assert start["exit"] in (1, 137)


# Known-bad combinations of the field (docs/flag-rules.md names the cases), each with the cure that its message has to give.
FIELD = [
    ("B01", Case("hybrid-speculation-radix", "write extra_buffer, or disable_radix_cache: true", {**MTP}, Q27, "0.5.10")),
    ("B01", Case("hybrid-speculation-environment", "set it", {**MTP, "mamba_scheduler_strategy": "extra_buffer"}, Q27, "0.5.10")),
    ("B03", Case("hybrid-requests", "write more, or fewer", {**MTP, "max_mamba_cache_size": 40, "max_running_requests": 32}, Q27)),
    ("B03", Case("speculative-default-requests", "write how many requests", MTP, Q27, "0.5.12")),
    ("B04", Case("hybrid-state-default", "write max_running_requests", {"disable_radix_cache": True}, {**Q27, "gpus": AMPERE}, "0.5.8")),
    ("B06", Case("mem-fraction-high", "write less", {"mem_fraction_static": 0.99})),
    ("B08", Case("hybrid-blackwell-backend", "write triton", {"attention_backend": "flashinfer"}, {**Q27, "gpus": RTX5090}, "0.5.9")),
    ("B08", Case("trtllm-mha-gpu", "leave the flag out", {"attention_backend": "trtllm_mha"}, {**Q27, "gpus": RTX5090}, "0.5.12")),
    ("B08", Case("trtllm-mha-consumer-blackwell", "write triton", {"attention_backend": "trtllm_mha"}, {**Q27, "gpus": RTX5090})),
    ("B09", Case("fp8-weight-only", "AWQ, GPTQ-Int4 or BF16", {}, {"model": quantized(QWEN36, "fp8"), "gpus": AMPERE})),
    ("B09", Case("fp8-cache-gpu", "write fp8_e5m2", {"kv_cache_dtype": "fp8_e4m3"}, {"gpus": AMPERE})),
    ("B09", Case("fp8-cache-triton", "write fp8_e5m2", {"kv_cache_dtype": "fp8_e4m3", "attention_backend": "triton"}, {"gpus": AMPERE})),
    ("B11", Case("speculative-draft-model", "leave speculation out", {**MTP}, {"model": QWEN3_8B})),
    ("B18", Case("gpus-unbalanced", "free the memory", {"tp_size": 2}, {"gpus": gpus("8.6", 2, free=(49000, 40000))})),
    ("B25", Case("tool-call-parser", "write qwen3_coder", {"tool_call_parser": "qwen25"}, Q27)),
    ("B32", Case("all-reduce-pcie", "NCCL_P2P_DISABLE=1", {"tp_size": 2}, {"gpus": gpus("8.6", 2), "topology": pair("NODE")})),
    ("B34", Case("speculative-hybrid-crash", "take a newer one", MTP, Q27, "0.5.13")),
    (
        "B35",
        Case(
            "hicache-memory",
            "write less",
            {"enable_hierarchical_cache": True, "hicache_size": 200},
            {**Q27, "host": {"memory_available_mib": 256000}},
        ),
    ),
    ("B43", Case("speculative-hybrid-depth", "take fewer", {**MTP, "speculative_num_steps": 5}, Q27)),
    ("B44", Case("ports-others", "set another", {"port": 30001}, {"others": [OTHER]})),
    ("B44", Case("dp-nccl-port", "one instance of each replica", {"dp_size": 8, "nccl_port": 18103})),
]


@pytest.mark.parametrize(("name", "case"), FIELD, ids=lambda value: value if isinstance(value, str) else value.rule)
def test_known_bad_combinations_of_the_field_get_the_right_cure(name, case):
    findings = found(case)
    assert findings
    assert all(case.says in finding.message for finding in findings)


@pytest.mark.parametrize(
    ("release", "flag", "cure"),
    [
        ("0.5.23", "mamba_scheduler_strategy", "was removed in SGLang 0.5.20; write mamba_radix_cache_strategy"),
        ("0.5.10", "mamba_radix_cache_strategy", "came with SGLang 0.5.14 and this is 0.5.10; write mamba_scheduler_strategy"),
        ("0.5.23", "cuda_graph_max_bs", "write cuda_graph_max_bs_decode"),
    ],
)
def test_case_b02_a_flag_that_was_renamed_is_told_by_its_name_in_the_release(release, flag, cure):
    assert cure in _flags.unknown_flag(flag_tables.table(release), flag)


# Answers of the real resolver of 0.5.23 to flags drawn by lot, on four GPUs made to look like an A6000, H100, B200 and RTX PRO 6000.
RESOLVED = json.loads((ROOT / "tests/fixtures/flags/resolved-0.5.23.json").read_text())
MEMORY_MIB = {"8.6": 49140, "9.0": 81559, "10.0": 183359, "12.0": 97887}
# What the engine finds out only after its flags are resolved: when it checks them once more, or loads.
LATER = {
    "block-cache-gpu",
    "chunk-page",
    "fa3-gpu",
    "fp8-cache-triton",
    "hybrid-blackwell-backend",
    "hybrid-lazy-overlap",
    "quantization-gpu",
    "speculative-draft-model",
    "speculative-tree-size",
}


def test_rules_refuse_what_the_releases_own_resolver_refuses_and_nothing_else():
    models = {"q27": QWEN36, "q8": QWEN3_8B, "q30": QWEN3_30B}
    wrong = []
    for answer in RESOLVED:
        hardware = gpus(answer["gpu"], 4, total=MEMORY_MIB[answer["gpu"]])
        findings = _flag_rules.check("0.5.23", answer["args"], models[answer["model"]], hardware)
        errors = {finding.rule for finding in findings if finding.severity == "error"}
        if (not errors) if answer["refused"] else (errors - LATER):
            wrong.append((answer, errors))
    assert wrong == []
    assert sum(answer["refused"] is not None for answer in RESOLVED) == 86


REAL = {
    name: model
    for name, read in model_fields.load().items()
    if (model := _model_config.read(read["config"], read.get("hf_quant_config"))[0]) is not None
}


@pytest.mark.parametrize("name", REAL)
def test_nothing_is_refused_of_a_real_model_on_gpus_that_run_it(name):
    for size in (1, 2, 4, 8):
        findings = _flag_rules.check("0.5.23", {"tp_size": size}, REAL[name], gpus("10.0", 8, total=183359))
        assert [finding for finding in findings if finding.severity == "error"] == []


def test_the_sizes_that_qwen36_can_be_split_into():
    """24 heads, 4 KV heads, 48 and 16 heads of linear attention."""
    sizes = range(1, 17)
    refused = {size: _flag_rules.check("0.5.23", {"tp_size": size}, REAL["Qwen--Qwen3.6-27B"]) for size in sizes}
    assert [size for size in sizes if not refused[size]] == [1, 2, 4, 8]


def test_the_document_of_the_rules_is_fresh():
    spec = importlib.util.spec_from_file_location("flag_rules", ROOT / "tools/flag_rules.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), "run tools/flag_rules.py"


def test_errors_come_first():
    findings = _flag_rules.check(
        "0.5.23", {**MTP, "mem_fraction_static": 0.99, "speculative_num_draft_tokens": 9, "dp_size": 2, "nccl_port": 1}
    )
    assert [finding.severity for finding in findings] == ["error", "warning", "warning"]


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers(), max_size=2)
ARGS = st.dictionaries(st.sampled_from([*_flag_facts.READ, *_flag_facts.ALIASES]), ANYTHING, max_size=12)
GPU = st.fixed_dictionaries(
    {}, optional={"index": ANYTHING, "compute_capability": ANYTHING, "memory_total_mib": ANYTHING, "memory_free_mib": ANYTHING}
)


@given(
    release=st.sampled_from(HISTORY.releases),
    args=ARGS,
    model=st.sampled_from([None, QWEN36, QWEN3_30B, DEEPSEEK_V3]),
    hardware=st.none() | st.lists(GPU, max_size=3),
    others=st.lists(ARGS, max_size=2),
)
def test_garbage_gives_findings_and_never_an_exception(release, args, model, hardware, others):
    others = [{"name": str(number), "args": other} for number, other in enumerate(others)]
    findings = _flag_rules.check(release, args, model, hardware, others, topology=pair("PHB"), host={"memory_available_mib": 1})
    assert all(isinstance(finding.message, str) and finding.message for finding in findings)
