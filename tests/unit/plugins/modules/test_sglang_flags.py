"""The module with a Python in the place of the engine's that prints what 0.5.23 has printed. The real one: tests/e2e/test_flags.py."""

from __future__ import annotations

import json

import pytest
from ansible_collections.firstlight.sglang.plugins.plugin_utils import flag_tables
from recorded_hosts import run

TABLE = flag_tables.table("0.5.23")
PRINTED = json.dumps({"release": "0.5.23", "options": TABLE.options})


@pytest.fixture
def environment(tmp_path):
    """An environment whose Python counts how often it is asked."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib/python3.12/site-packages/sglang-0.5.23.dist-info").mkdir(parents=True)
    (tmp_path / "printed").write_text(PRINTED)
    (tmp_path / ".firstlight.lock.txt").write_text("sglang==0.5.23\n")
    python = tmp_path / "bin/python"
    python.write_text(f'#!/bin/sh\n[ "$1 $2" = "-I -c" ] || exit 9\necho asked >>{tmp_path}/asked\ncat {tmp_path}/printed\n')
    python.chmod(0o755)
    return tmp_path


def asked(environment):
    path = environment / "asked"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_the_options_are_asked_for_once(environment):
    first = run("sglang_flags", {"path": str(environment)})
    assert (first["release"], first["kept"], first["changed"]) == ("0.5.23", False, False)
    assert first["flags"] == sorted(TABLE.by_name)
    second = run("sglang_flags", {"path": str(environment)})
    assert {**second, "kept": False} == first
    assert (second["kept"], asked(environment)) == (True, 1)


def test_they_are_asked_for_again_when_the_lock_the_release_or_the_file_is_another(environment):
    run("sglang_flags", {"path": str(environment)})
    (environment / ".firstlight.lock.txt").write_text("sglang==0.5.23 --hash=x\n")
    assert run("sglang_flags", {"path": str(environment)})["kept"] is False
    (environment / ".firstlight.flags.json").write_text('{"options": [')
    assert run("sglang_flags", {"path": str(environment)})["kept"] is False
    assert run("sglang_flags", {"path": str(environment)})["kept"] is True
    (environment / "lib/python3.12/site-packages/sglang-0.5.23.dist-info").rename(
        environment / "lib/python3.12/site-packages/sglang-0.5.24.dist-info"
    )
    result = run("sglang_flags", {"path": str(environment)}, refused=True)
    assert "expected SGLang 0.5.24, found 0.5.23; build the environment anew" in result["msg"]


def test_check_mode_keeps_nothing(environment):
    result = run("sglang_flags", {"path": str(environment), "args": {"tp_size": 2}, "_ansible_check_mode": True})
    assert (result["valid"], result["words"], result["kept"]) == (True, ["--tp-size", "2"], False)
    assert not (environment / ".firstlight.flags.json").exists()


def test_flags_are_checked_and_rendered(environment):
    args = {"tp_size": 2, "default_chat_template_kwargs": {"enable_thinking": False}, "mem_fraction_static": 0.98}
    result = run("sglang_flags", {"path": str(environment), "args": args, "extra_args": ["--a-plugin-flag"]})
    assert result["valid"]
    assert result["words"] == [
        "--tp-size",
        "2",
        "--default-chat-template-kwargs",
        '{"enable_thinking":false}',
        "--mem-fraction-static",
        "0.98",
        "--a-plugin-flag",
    ]
    assert len(result["notes"]) == 1


def test_all_that_is_wrong_is_told_at_once(environment):
    args = {"tp_sise": 2, "model_type": "llm", "torchao_config": "x", "speculative_algorithm": "NEXTN", "speculative_eagle_topk": 1}
    result = run("sglang_flags", {"path": str(environment), "args": args, "extra_args": ["--tp", "2"]})
    assert (result["valid"], result["words"]) == (False, [])
    for problem, words in zip(
        result["problems"],
        (
            "args.tp_sise: is not a flag of SGLang 0.5.23; did you mean tp_size",
            "args.model_type: belongs to `sglang serve`",
            "args.torchao_config: is no longer a flag of SGLang 0.5.23; nothing took its place",
            "extra_args: --tp: an abbreviation of --tp-size",
            "args.speculative_eagle_topk: expected speculative_num_steps",
        ),
    ):
        assert words in problem
    assert len(result["problems"]) == 5


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ("", "found ''; build the environment anew"),
        ("[]", "expected the options of SGLang 0.5.23, found '[]'"),
    ],
)
def test_a_parser_that_says_nothing_of_use_is_told(environment, printed, message):
    (environment / "printed").write_text(printed)
    assert message in run("sglang_flags", {"path": str(environment)}, refused=True)["msg"]


def test_an_engine_that_does_not_start_is_told(environment):
    (environment / "bin/python").write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named x' >&2\nexit 1\n")
    result = run("sglang_flags", {"path": str(environment)}, refused=True)
    assert "found ModuleNotFoundError: No module named x; build the environment anew" in result["msg"]


def test_a_directory_without_the_engine_is_told(tmp_path):
    result = run("sglang_flags", {"path": str(tmp_path)}, refused=True)
    assert "expected an environment with one SGLang, found none; build it with the role sglang_venv" in result["msg"]
