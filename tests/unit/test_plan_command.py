"""bin/plan and `make plan` as they run, and the parts of the command line that need no model."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import resource
import subprocess
import sys
import typing as t

import gpu_results
import plan_results
import pytest
import yaml
from ansible_collections.firstlight.sglang.plugins.module_utils import _plan, _plan_gpus
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

ROOT = pathlib.Path(__file__).parents[2]
LOADER = importlib.machinery.SourceFileLoader("plan_command", str(ROOT / "bin/plan"))
SPEC = importlib.util.spec_from_loader("plan_command", LOADER)
assert SPEC is not None
plan_command = importlib.util.module_from_spec(SPEC)
LOADER.exec_module(plan_command)
CT129 = ("qwen3_6_27b", "2x rtx-a6000")


class Asked(Exception):  # noqa: N818  (no error)
    """The question that reached the sizing."""


def keep(question: t.Any) -> t.NoReturn:
    raise Asked(question)


def question(*words: str) -> t.Any:
    with pytest.raises(Asked) as caught:
        plan_command.main(words, keep)
    return caught.value.args[0]


def run(*words: str, command: t.Sequence[str] = ("bin/plan",), **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(
        [*command, *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60, env={**plain, **environment}
    )


def seconds_of_children() -> float:
    """Of the processor: a busy machine makes no program slower by this clock."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_catalogue_name_brings_flags_that_args_change():
    asked = question(*CT129)
    assert (asked.name, asked.source, asked.release) == ("Qwen/Qwen3.6-27B", "catalogue", "0.5.23")
    assert (asked.args["tp_size"], asked.args["speculative_algorithm"]) == (2, "NEXTN")
    changed = question(*CT129, "--args", "--tp-size=1 --kv-cache-dtype fp8_e4m3")
    assert (changed.args["tp_size"], changed.args["kv_cache_dtype"], changed.args["speculative_algorithm"]) == (1, "fp8_e4m3", "NEXTN")
    assert question("Qwen/Qwen3.6-27B", "1x h200").args == {}


@pytest.mark.parametrize("args", ["--enable-metrics", "--enable-metrics --tp-size 2", ""])
def test_flags_may_begin_with_dashes(args):
    assert question("Qwen/Qwen3.6-27B", "1x h200", "--args", args).args.get("enable_metrics", False) == bool(args)


def test_wishes_and_measured_numbers_reach_the_sizing():
    asked = question(*CT129, "--want", "context=131072 concurrency=4", "--given", "avail_before_weights_gib=46.58 weights_gib=26.9")
    assert asked.want == {"context": 131072, "concurrency": 4}
    assert asked.given["avail_before_weights_gib"] == 46.58
    assert asked.given["free_after_load_gib"] is None
    assert [gpu.memory_total_mib for gpu in asked.gpus] == [49140, 49140]


@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump], ids=["json", "yaml"])
def test_gpus_from_a_file(tmp_path, write):
    file = tmp_path / "gpus.json"
    file.write_text(write(gpu_results.two_a6000()))
    assert [gpu.name for gpu in question(CT129[0], str(file)).gpus] == ["NVIDIA RTX A6000"] * 2


@pytest.mark.parametrize("text", ["", "[", "- 1", "a: &a [*a]", "{" * 3000, "\x00", "'" * 9])
def test_files_that_hold_no_gpus(tmp_path, text):
    file = tmp_path / "gpus.yml"
    file.write_text(text)
    found = plan_command.read_gpus(str(file))
    assert found.gpus == ()
    assert all(str(file) in problem for problem in found.problems)
    assert plan_command.read_gpus("no/such/file").problems


def test_every_mistake_is_told_at_once_and_nothing_is_printed(capsys):
    words = ["no-model", "2x rtx-a600", "--args", "--cuda-graph 2 --nonsense", "--want", "context=x", "--given", "weights_gib=-1"]
    assert plan_command.main(words, keep) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    for word in ("6 mistakes", "no-model", "rtx-a600", "--cuda-graph: may be", "--nonsense", "context", "weights_gib"):
        assert word in shown.err


def test_a_release_that_is_not_known_and_one_that_is(capsys):
    assert plan_command.main([*CT129, "--release", "0.1"], keep) == 2
    assert "release: expected one of 0.5.8" in capsys.readouterr().err
    older = question("Qwen/Qwen3.6-27B", "2x rtx-a6000", "--release", "0.5.10", "--args", "--mamba-scheduler-strategy extra_buffer")
    assert (older.release, older.args) == ("0.5.10", {"mamba_scheduler_strategy": "extra_buffer"})


@pytest.mark.parametrize(
    ("make", "code"), [(plan_results.fits, 0), (plan_results.ct129, 3), (plan_results.does_not_fit, 4)], ids=["fits", "changes", "not"]
)
def test_the_exit_status_is_the_verdict_and_json_is_one_document(capsys, make, code):
    assert plan_command.main([*CT129, "--format", "json"], lambda _question: (make(), [])) == code
    shown = capsys.readouterr()
    assert json.loads(shown.out) == make()
    assert shown.err == ""


@pytest.mark.parametrize(("how", "words"), [("text", "FITS WITH CHANGES"), ("md", "# Qwen/Qwen3.6-27B on 2x"), ("html", "<!doctype html>")])
def test_the_other_formats_into_a_file(capsys, tmp_path, how, words):
    file = tmp_path / "plan"
    assert plan_command.main([*CT129, "--format", how, "--out", str(file)], lambda _question: (plan_results.ct129(), [])) == 3
    assert words in file.read_text()
    assert capsys.readouterr().out == ""
    assert plan_command.main([*CT129, "--out", str(tmp_path)], lambda _question: (plan_results.ct129(), [])) == 2
    assert "expected a file that can be written" in capsys.readouterr().err


def test_colours_are_for_terminals(capsys, monkeypatch):
    for words, coloured in (([], False), (["--color", "always"], True)):
        plan_command.main([*CT129, *words], lambda _question: (plan_results.ct129(), []))
        assert ("\x1b[" in capsys.readouterr().out) == coloured
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    plan_command.main(CT129, lambda _question: (plan_results.ct129(), []))
    assert "\x1b[" not in capsys.readouterr().out


def test_what_the_model_is_refused_for_is_bad_input(capsys):
    assert plan_command.main(CT129, lambda _question: (None, ["config.json: expected hidden_size, found none"])) == 2
    assert "1 mistake:\n- config.json: expected hidden_size" in capsys.readouterr().err


def test_bad_input_ends_in_a_moment_without_a_traceback():
    started = seconds_of_children()
    done = run("no-model", "1x nothing")
    assert seconds_of_children() - started < 1
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert run("--nonsense").returncode == run().returncode == run("a", "b", "--format", "pdf").returncode == 2


def test_nothing_of_ansible_and_no_jinja_is_read_on_the_way():
    code = f"""
import runpy, sys
sys.argv = ["plan", "no-model", "1x t4"]
try:
    runpy.run_path({str(ROOT / "bin/plan")!r}, run_name="plan")["main"](sys.argv[1:])
finally:
    print(sorted({{name.partition(".")[0] for name in sys.modules}} & {{"ansible", "jinja2", "cryptography"}}))
"""
    assert run("-c", code, command=[sys.executable]).stdout == "[]\n"


def test_make_passes_what_was_written(tmp_path):
    """Spaces, quotes, dollars and backticks of a value reach the program, and no shell on the way reads them."""
    program = tmp_path / "plan"
    program.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\nsys.exit(int(sys.argv[-1][0]))\n")
    program.chmod(0o755)
    makefile = (ROOT / "Makefile").read_text().replace("@bin/plan", f"@{program}").replace("@tools/setup.sh >&2", "@true")
    (tmp_path / "Makefile").write_text(makefile)
    args = """--json-model-override-args '{"a": "$b `c` $(d)"}' --tp-size 2"""
    for verdict, code in (("0x", 0), ("3x", 0), ("4x", 0), ("2x", 2), ("1x", 2)):
        words = [
            "-f",
            str(tmp_path / "Makefile"),
            "plan",
            "MODEL=o/n",
            f"GPUS={verdict} rtx-a6000",
            f"ARGS={args}",
            "FORMAT=json",
            "WANT=context=5",
        ]
        done = run(*words, command=["make"])
        assert done.returncode == code
        assert json.loads(done.stdout) == [
            *("--args", args, "--want", "context=5", "--release", "", "--given", "", "--out", "", "--format", "json", "--"),
            *("o/n", f"{verdict} rtx-a6000"),
        ]


@pytest.mark.parametrize("target", ["plan", "pin"])
def test_make_runs_nothing_of_what_it_is_given(tmp_path, target):
    """Dollars in a value are expanded neither by make nor by a shell, also not on the way into the environment."""
    makefile = (
        (ROOT / "Makefile")
        .read_text()
        .replace("@bin/plan", "@echo")
        .replace("@python tools/pin.py", "@echo")
        .replace("tools/setup.sh", "true")
    )
    (tmp_path / "Makefile").write_text(makefile)
    names = ("MODEL", "GPUS", "ARGS", "WANT", "RELEASE", "GIVEN", "OUT", "FORMAT", "EXPLAIN", "CHECK", "GROUP_VARS")
    words = [f"{name}=$(shell touch {tmp_path}/{name})`touch {tmp_path}/{name}2`'; touch {tmp_path}/{name}3; '" for name in names]
    done = run("-f", str(tmp_path / "Makefile"), target, *words, command=["make"])
    assert done.returncode == 0, done.stderr
    assert "$(shell touch" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Makefile"]


def test_paths_that_cannot_be_end_in_words(tmp_path):
    """Homes of nobody, devices and pipes in the place of files, a full disk, names of bytes that are no letters."""
    fifo = tmp_path / "config.json"
    os.mkfifo(fifo)
    cases = [
        (("~nobody-has-this-name/x", "t4"), "expected a directory, found none"),
        (("qwen3-8b", "~nobody-has-this-name/x.json"), "No such file"),
        (("qwen3-8b", "t4", "--out", "~nobody-has-this-name/x"), "expected a file in a directory that is there"),
        (("qwen3-8b", "/dev/zero"), "expected a regular file"),
        ((str(tmp_path), "t4"), "expected a regular file"),
        (("\udcff\udcfe", "t4"), "expected a name of the catalogue"),
    ]
    for words, told in cases:
        done = run(*words)
        assert (done.returncode, told in done.stderr, "Traceback" in done.stderr) == (2, True, False), (words, done.stderr)
    with pathlib.Path("/dev/full").open("w", encoding="ascii") as full:
        done = subprocess.run(
            ["bin/plan", "qwen3-8b", "t4"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert (done.returncode, done.stderr) == (2, "plan: expected to write to standard output, found: No space left on device\n")


def test_an_engine_on_the_cpu_is_planned_with_the_hosts_memory(tmp_path, capsys):
    place = tmp_path / "gpus.json"
    place.write_text(json.dumps({"gpus": [], "memory_total_mib": 65536, "memory_available_mib": 60000}))
    (asked,) = question("demo", str(place), "--args", "--device cpu").gpus
    assert (asked.name, asked.memory_total_mib, asked.used_mib) == ("the host's memory", 65536, 5536)
    assert plan_command.main(["qwen3-8b", "t4", "--args", "--device cpu"], keep) == 2
    assert "--device cpu takes the host's memory" in capsys.readouterr().err


@pytest.mark.parametrize(("field", "value"), [("compute_capability", "x"), ("processes", True)])
def test_fields_of_another_kind_in_a_file_of_gpus(tmp_path, field, value):
    place = tmp_path / "gpus.json"
    place.write_text(json.dumps({"gpus": [{"index": 0, "name": "A", "memory_total_mib": 24564, field: value}]}))
    done = run("qwen3-8b", str(place))
    assert done.returncode == (2 if field == "compute_capability" else 0), done.stderr
    assert "Traceback" not in done.stderr


def test_overrides_of_the_configuration_count(capsys):
    words = ["qwen3-8b", "rtx-4090", "--format", "json"]
    plan_command.main(words)
    whole = json.loads(capsys.readouterr().out)
    plan_command.main([*words, "--args", """--json-model-override-args '{"num_hidden_layers": 12}'"""])
    fewer = json.loads(capsys.readouterr().out)
    assert fewer["bytes_per_token"] == whole["bytes_per_token"] * 12 / 36
    assert plan_command.main([*words, "--args", "--json-model-override-args [1]"]) == 2
    assert "--json-model-override-args: expected a JSON object" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--args", "--mem-fraction-static 0.88"], True),
        (["--args", "--mem-fraction-static 0.8"], True),  # an alternative has another
        (["--args", "--mem-fraction-static 0.88", "--given", "weights_gib=15.4"], False),
    ],
)
def test_a_measured_fraction_that_stands_over_a_flag_is_told(capsys, words, told):
    plan_command.main(["qwen3_8b", "1x rtx-4090", "--format", "json", "--given", "mem_fraction_static=0.8", *words])
    plan = json.loads(capsys.readouterr().out)
    assert any("stands over the flag" in warning for warning in plan["warnings"]) is told


def test_measured_numbers_that_contradict_each_other_are_told(capsys):
    words = ["qwen3_6_27b", "2x rtx-a6000", "--given"]
    for numbers, told in {
        "free_after_load_gib=30 weights_gib=26 draft_weights_gib=20": "to be at most 47.99 GiB together, found 76",
        "avail_before_weights_gib=46 weights_gib=26 draft_weights_gib=10 free_after_load_gib=20": "46.00 GiB together, found 56",
        "weights_gib=60": "expected weights_gib to be at most the GPU's 47.99 GiB, found 60",
    }.items():
        assert plan_command.main([*words, numbers]) == 2
        assert told in capsys.readouterr().err


def test_a_part_of_a_checkpoint_is_not_taken_for_the_whole(tmp_path, capsys):
    config = yaml.safe_load((ROOT / "group_vars/qwen3_8b/sglang_instance.yml").read_text())["sglang_instance_qwen3_8b"]["model"]["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    header = json.dumps({"model.embed_tokens.weight": {"dtype": "BF16", "shape": [8, 8], "data_offsets": [0, 128]}}).encode()
    (tmp_path / "model-00001-of-00005.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    plan_command.main([str(tmp_path), "1x rtx-a6000", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert found["per_gpu"][0]["components"]["weights"] > 15
    assert any("4 files of the checkpoint are missing (model-00002-of-00005.safetensors)" in warning for warning in found["warnings"])


def test_alternatives_take_the_names_that_the_flags_were_given(capsys):
    plan_command.main(["qwen3-8b", "1x rtx-4090", "--release", "0.5.12", "--args", "--tp-size 3", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert "tensor_parallel_size" in found["args"]
    assert any("tensor_parallel_size" in one["args"] for one in found["alternatives"])
    assert not any("tp_size" in one["args"] for one in found["alternatives"])


WORDS = st.sampled_from(
    ["--args", "--want", "--given", "--format", "--release", "--explain", "json", "--", "-x", "2x t4", "context=1"]
) | st.text(max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=60)
@given(st.lists(WORDS.filter(lambda word: "/" not in word), max_size=7))
@example(words=["--", "--"])
@example(words=["--args", "--", "2x t4"])
def test_any_command_line_is_answered(capsys, words):
    try:
        code = plan_command.main(["no-model", *words], keep)
    except SystemExit as error:
        code = error.code
    assert code in (0, 2)
    shown = capsys.readouterr()
    assert code == 0 or (shown.out == "" and shown.err)


@given(st.lists(WORDS, max_size=7))
def test_joining_loses_no_word(words):
    made = "".join(plan_command.joined(words))
    assert made.replace("=", "").replace(" ", "") == "".join(words).replace("=", "").replace(" ", "")


def test_a_gpu_of_this_table_is_what_the_sizing_takes():
    """The two sides agree on the names of a GPU's fields."""
    assert set(_plan_gpus.Gpu.__dataclass_fields__) == set(_plan.Gpu.__dataclass_fields__)


def test_the_whole_way_in_two_seconds():
    """CT129 with one number measured: `make plan` is through before an operator looks up."""
    words = ["plan", f"MODEL={CT129[0]}", f"GPUS={CT129[1]}", "WANT=context=131072 concurrency=4", "GIVEN=avail_before_weights_gib=46.58"]
    started = seconds_of_children()
    done = run(*words, "FORMAT=json", command=["make"])
    seconds = seconds_of_children() - started
    assert (done.returncode, done.stderr) == (0, "")
    plan = json.loads(done.stdout)
    contract = plan_results.ct129()
    assert set(contract) <= set(plan)
    assert set(contract["model"]) <= set(plan["model"])
    assert set(contract["alternatives"][0]) <= set(plan["alternatives"][0])
    for gpu in plan["per_gpu"]:
        assert sum(gpu["components"].values()) == pytest.approx(gpu["memory_total_mib"] / 1024, abs=0.01)
    assert plan["given"]["avail_before_weights_gib"] == 46.58
    assert seconds < 1.5


@pytest.mark.parametrize("how", ["text", "md", "html"])
def test_the_other_formats_of_a_real_plan(how):
    done = run(*CT129, "--format", how, "--explain")
    assert done.returncode in (0, 3, 4), done.stderr
    assert "NVIDIA RTX A6000" in done.stdout
    assert "Traceback" not in done.stderr
    assert how != "text" or max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("config.json", "{}", "architectures"),
        ("config.json", '{"architectures": ["Qwen3ForCausalLM"]}', "hidden_size"),
        ("config.json", '{"architectures": ["Qwen3ForCausalLM"], "hidden_size": -5}', "hidden_size"),
        ("model.safetensors.index.json", '{"weight_map": 5}', "weight_map"),
        ("model.safetensors", "version https://git-lfs", "header"),
    ],
)
def test_a_checkpoint_that_cannot_be_is_told_in_words(tmp_path, file, text, words):
    config = yaml.safe_load((ROOT / "group_vars/qwen3_8b/sglang_instance.yml").read_text())["sglang_instance_qwen3_8b"]["model"]["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run(str(tmp_path), "1x h200").returncode == 0
    (tmp_path / file).write_text(text)
    done = run(str(tmp_path), "1x h200")
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
