"""The role on recorded hosts, beside one that cannot be reached and one that is set up wrongly: one run of ansible-playbook, two plays."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[3]
FIXTURES = ROOT / "tests/fixtures/gpu"
# What the model group says, and what the groups of the hardware say to it.
VARIABLES = {
    "model": {"sglang_instance_model": {"model": {"name": "o/n", "path": "/srv/n"}, "gpus": "{{ model_gpus | default([5]) }}"}},
    "gpu_h200": {"model_gpus": [0]},
    "gpu_a100_sxm4_40gb": {"model_gpus": ["MIG-2"]},
    "gpu_arch_ampere": {"model_gpus": [7]},  # gives way to the model's group, though it comes later in the alphabet
    "gpu_none": {"model_gpus": [3]},
}
INSTANCES = "query('firstlight.sglang.instances')"
PROBLEMS = f"{INSTANCES} | firstlight.sglang.gpu_problems(gpu_inventory_result)"
SAY = {
    "groups": "{{ group_names | select('match', 'gpu_') }}",
    "gpus": f"{{{{ {INSTANCES} | map(attribute='gpus') | first }}}}",
    "problems": f"{{{{ {PROBLEMS} if gpu_inventory_result is defined else none }}}}",
    "failure": "{{ gpu_inventory_failure | default(none) }}",
    "unreachable": "{{ __gpu_inventory_look.unreachable | default(false) }}",
}


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(data))


SUDO = "echo 'sudo: a password is required' >&2; exit 1"
BROKEN = "echo 'Fatal Python error: init_fs_encoding: failed to get the Python codec' >&2; exit 1"


def script(directory, name, line):
    path = directory / name
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return str(path)


def smi(directory, name, answer):
    """A program that answers -q -x as nvidia-smi did."""
    return script(directory, name, f"test \"$*\" = '-q -x' && exec cat {FIXTURES / answer}\nexit 2")


def prepare(directory):
    """An inventory with group_vars beside it, and a playbook: the role and what each host says after it, twice."""
    (directory / "none/proc").mkdir(parents=True)
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    recorded = {"none": (directory / "none", None), "h200": (FIXTURES / "h200/idle", "smi_h200_qx.xml")}
    recorded["a100"] = (directory / "none", "smi_mig_a100_v11.xml")
    hosts = {}
    for name, (root, answer) in recorded.items():
        hosts[name] = {**here, "gpu_inventory_root": str(root)}
        if answer:
            hosts[name]["gpu_inventory_nvidia_smi_path"] = smi(directory, f"{name}.sh", answer)
    hosts["gone"] = {"ansible_host": "127.0.0.1", "ansible_port": 9}
    hosts["sudo"] = {**here, "ansible_become": True, "ansible_become_exe": script(directory, "sudo", SUDO)}
    hosts["python"] = {**here, "ansible_python_interpreter": script(directory, "python", BROKEN)}
    hosts["wrong"] = {**here, "gpu_inventory_nvidia_smi_path": "/no/such/nvidia-smi"}
    write(directory / "hosts.yml", {"sglang": {"children": {"model": {"hosts": hosts}}}})
    for group, variables in VARIABLES.items():
        write(directory / f"group_vars/{group}/vars.yml", variables)
    plays = []
    for number in range(2):
        say = {
            "ansible.builtin.copy": {"content": SAY, "dest": f"{directory}/{number}-{{{{ inventory_hostname }}}}.json", "mode": "0644"},
            "delegate_to": "localhost",
            "check_mode": False,
            "changed_when": False,
            "vars": here,
            "become": False,
        }
        role = {"role": "firstlight.sglang.gpu_inventory", "gpu_inventory_required": False}
        plays.append({"hosts": "all", "gather_facts": False, "roles": [role], "tasks": [say]})
    write(directory / "play.yml", plays)


def run(directory, *options):
    command = [pathlib.Path(sys.executable).parent / "ansible-playbook", "-i", directory / "hosts.yml", *options]
    environment = {**os.environ, "ANSIBLE_BECOME_ALLOW_SAME_USER": "true"}  # or root would not need sudo
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each host says in each of the plays, and the output."""
    directory = tmp_path_factory.mktemp("gpu_inventory")
    prepare(directory)
    done = run(directory, directory / "play.yml", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    plays = [{path.stem[2:]: json.loads(path.read_text()) for path in directory.glob(f"{number}-*.json")} for number in range(2)]
    return *plays, done.stdout


@pytest.mark.parametrize(
    ("host", "groups", "gpus"),
    [
        ("h200", ["gpu_arch_hopper", "gpu_h200", "gpu_model"], [0]),
        ("a100", ["gpu_a100_sxm4_40gb", "gpu_arch_ampere", "gpu_model"], ["MIG-2"]),
        ("none", ["gpu_none"], [3]),
        ("gone", [], [5]),
    ],
)
def test_what_the_groups_of_the_hardware_set_counts_from_then_on(said, host, groups, gpus):
    for play in said[:2]:
        assert (play[host]["groups"], play[host]["gpus"]) == (groups, gpus)


def test_the_filter_tells_what_is_wrong(said):
    assert said[0]["h200"]["problems"] == []
    (problem,) = said[0]["none"]["problems"]
    assert problem.startswith("expected NVIDIA's driver 580.65.06 or later and the GPUs 3, found no loaded driver.")


def test_hosts_that_cannot_be_looked_at_go_on_and_say_why(said):
    for play in said[:2]:
        assert play["gone"]["unreachable"] is True
        assert "127.0.0.1 port 9" in play["gone"]["failure"]
        assert "expected an executable nvidia-smi, found no such file: /no/such/nvidia-smi" in play["wrong"]["failure"]
        failed = "expected to look at the GPUs, found: become failed: sudo: a password is required; --ask-become-pass asks for a password"
        assert play["sudo"]["failure"] == failed
        assert "found: the module gave no result: Fatal Python error: init_fs_encoding" in play["python"]["failure"]


def test_each_host_is_looked_at_once_and_nothing_changes(said):
    assert said[2].count("ok: [h200] => (item=gpu_h200)") == 1
    assert "changed: [" not in said[2]


def test_a_look_that_is_required_fails_with_one_message(said, tmp_path):
    prepare(tmp_path)
    write(
        tmp_path / "required.yml", [{"hosts": "wrong,sudo", "gather_facts": False, "roles": [{"role": "firstlight.sglang.gpu_inventory"}]}]
    )
    done = run(tmp_path, tmp_path / "required.yml")
    assert done.returncode == 2
    assert "wrong: expected to look at the GPUs, found: nvidia_smi_path: expected an executable" in done.stdout + done.stderr
    assert "sudo: expected to look at the GPUs, found: become failed: sudo: a password is required" in done.stdout + done.stderr


def test_one_mistake_in_the_instances_is_one_mistake(tmp_path):
    prepare(tmp_path)
    write(tmp_path / "group_vars/model/vars.yml", {"sglang_instance_model": {"model": {"name": "o/n", "path": "/srv/n"}}})
    task = {"ansible.builtin.debug": {"msg": f"{{{{ {INSTANCES} }}}}"}}
    write(tmp_path / "mistake.yml", [{"hosts": "none", "gather_facts": False, "tasks": [task]}])
    done = run(tmp_path, tmp_path / "mistake.yml")
    assert "1 mistake in the instances of this host:" in done.stdout + done.stderr
