"""playbooks/plan.yml as it runs: GPUs by name for hosts that are not there, and the result of gpu_info for one that is."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import typing as t

import gpu_results
import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[3]
LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
AWAY = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}


def play(directory: pathlib.Path, groups: dict[str, list[str]], hosts: dict[str, t.Any], *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the playbook. groups: model group to its hosts. hosts: what each is reached with and its variables."""
    inventory = {
        "sglang": {"hosts": hosts},
        **{group: {"hosts": dict.fromkeys(names), "vars": variables(group)} for group, names in groups.items()},
    }
    (directory / "hosts.yml").write_text(yaml.safe_dump(inventory))
    return subprocess.run(
        [pathlib.Path(sys.executable).parent / "ansible-playbook", "-i", "hosts.yml", ROOT / "playbooks/plan.yml", *words],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_HOME": str(directory / "home"), "ANSIBLE_NOCOLOR": "1"},
    )


def variables(group: str) -> dict[str, t.Any]:
    """What group_vars say of a group, and of all hosts."""
    files = [ROOT / "group_vars/all/sglang.yml", ROOT / f"group_vars/{group}/sglang_instance.yml"]
    return {name: value for file in files for name, value in yaml.safe_load(file.read_text()).items() if "interpreter" not in name}


def gpus(words: str) -> list[str]:
    return ["-e", json.dumps({"sglang_plan_gpus": words})]


def test_hosts_that_are_not_there_are_planned_by_the_names_of_gpus(tmp_path):
    hosts = {"ct129": AWAY, "small": AWAY}
    done = play(tmp_path, {"qwen3_6_27b": ["ct129"], "qwen3_8b": ["small"]}, hosts, *gpus("2x rtx-a6000"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[ct129: qwen3-6-27b]" in done.stdout
    assert "Memory of GPU 0 and 1: 48.0 GiB each" in done.stdout
    files = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "reports").rglob("*.*"))
    assert files == [f"reports/{name}" for name in ("ct129/plan.html", "ct129/qwen3-6-27b/plan.json", "ct129/qwen3-6-27b/plan.md")] + [
        f"reports/{name}" for name in ("small/plan.html", "small/qwen3-8b/plan.json", "small/qwen3-8b/plan.md")
    ]
    plan = json.loads((tmp_path / "reports/ct129/qwen3-6-27b/plan.json").read_text())
    assert (plan["model"]["name"], plan["args"]["speculative_algorithm"], plan["gpus"]["count"]) == ("Qwen/Qwen3.6-27B", "NEXTN", 2)
    assert "changed=0" in done.stdout


def test_a_host_is_planned_with_its_gpus_and_check_mode_writes_nothing(tmp_path):
    result = gpu_results.two_a6000()
    result["gpus"][1]["memory_used_mib"] = 9000
    host = {**LOCAL, "gpu_inventory_result": result, "sglang_plan_want": {"context": 200000}}
    done = play(tmp_path, {"qwen3_6_27b": ["here"]}, {"here": host}, "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in use by other processes" in done.stdout
    assert "a request of 200,000 tokens" in done.stdout
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (gpus("2x rtx-a600"), "rtx-a600: not a GPU that is known here"),
        (gpus("1x rtx-a6000"), "expected GPU 1, found 1 in 1x rtx-a6000"),
        (
            ["-e", json.dumps({"sglang_plan_gpus": "2x rtx-a6000", "sglang_plan_want": {"context": -1}})],
            "expected context as a whole number",
        ),
    ],
)
def test_what_cannot_be_planned_fails_with_the_reason(tmp_path, words, found):
    done = play(tmp_path, {"qwen3_6_27b": ["ct129"]}, {"ct129": AWAY}, *words)
    assert done.returncode == 2
    assert found in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout + done.stderr


def test_the_configuration_is_read_from_the_host_where_group_vars_have_none(tmp_path):
    config = variables("qwen3_8b")["sglang_instance_qwen3_8b"]["model"]["config"]
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/config.json").write_text(json.dumps(config))
    instance = {
        **variables("qwen3_8b")["sglang_instance_qwen3_8b"],
        "model": {"name": "Qwen/Qwen3-8B", "path": str(tmp_path / "checkpoint")},
    }
    host = {**LOCAL, "sglang_instance_qwen3_8b": instance}
    done = play(tmp_path, {"qwen3_8b": ["here"]}, {"here": host}, *gpus("1x l40s"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "reports/here/qwen3-8b/plan.json").read_text())["model"]["source"] == "directory"
    (tmp_path / "checkpoint/config.json").unlink()
    done = play(tmp_path, {"qwen3_8b": ["here"]}, {"here": host}, *gpus("1x l40s"))
    assert "found neither" in " ".join(done.stdout.split())


def test_an_instance_on_a_cpu_is_passed_over(tmp_path):
    done = play(tmp_path, {"demo": ["here"]}, {"here": LOCAL}, *gpus("1x l40s"), "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(tmp_path.glob("reports/**/*.json"))
