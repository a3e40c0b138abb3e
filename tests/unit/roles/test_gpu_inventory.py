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
RECORDED = ("2x_a6000", "none")
# What the model group says, and what the groups of the hardware say to it.
MODEL = {"sglang_instance_model": {"model": {"name": "o/n", "path": "/srv/n"}, "gpus": "{{ model_gpus | default([0]) }}"}}
VARIABLES = {
    "gpu_rtx_a6000": {"model_gpus": [0, 1]},
    "gpu_arch_ampere": {"model_gpus": [7]},  # the model's group wins, whatever their names
    "gpu_a100_sxm4_40gb": {"model_gpus": ["MIG-2"]},
    "gpu_none": {"model_gpus": [3]},
}
INSTANCES = "query('firstlight.sglang.instances')"
PROBLEMS_OF = f"{INSTANCES} | firstlight.sglang.gpu_problems(gpu_inventory_result)"
SAY = {
    "groups": "{{ group_names }}",
    "gpus": f"{{{{ {INSTANCES} | map(attribute='gpus') | first }}}}",
    "problems": f"{{{{ {PROBLEMS_OF} if gpu_inventory_result is defined else none }}}}",
    "failure": "{{ gpu_inventory_failure | default(none) }}",
    "unreachable": "{{ __gpu_inventory_look.unreachable | default(false) }}",
}


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(data))


def run(directory, *options):
    """Run both plays; what each host says after them, by play and host."""
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    double = str(ROOT / "tests/doubles/gpu_host/nvidia_smi.py")
    hosts = {name: {**here, "gpu_inventory_root": str(FIXTURES / "hosts" / name), "recorded": name} for name in RECORDED}
    for name, host in hosts.items():
        if (FIXTURES / "hosts" / name / "nvidia-smi.json").exists():
            host["gpu_inventory_nvidia_smi_path"] = double
    smi = directory / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ntest \"$*\" = '-q -x' && exec cat {FIXTURES}/smi_mig_a100_v11.xml\nexit 2\n")
    smi.chmod(0o755)
    hosts["a100"] = {**here, "gpu_inventory_root": str(FIXTURES / "hosts/none"), "gpu_inventory_nvidia_smi_path": str(smi)}
    hosts["gone"] = {"ansible_host": "127.0.0.1", "ansible_port": 9}
    hosts["wrong"] = {**here, "gpu_inventory_nvidia_smi_path": "/no/such/nvidia-smi"}
    write(directory / "hosts.yml", {"sglang": {"children": {"model": {"hosts": hosts}}}})
    for group, variables in {"model": MODEL, **VARIABLES}.items():
        write(directory / f"group_vars/{group}/vars.yml", variables)
    plays = []
    for number, pattern in enumerate(("all", "all")):
        result = directory / f"out{number}"
        result.mkdir(exist_ok=True)
        role = {"role": "firstlight.sglang.gpu_inventory", "gpu_inventory_required": False}
        say = {
            "ansible.builtin.copy": {"content": SAY, "dest": f"{result}/{{{{ inventory_hostname }}}}.json", "mode": "0644"},
            "delegate_to": "localhost",
            "connection": "local",
            "check_mode": False,
            "vars": here,
        }
        plays.append({"hosts": pattern, "gather_facts": False, "roles": [role], "tasks": [say]})
        plays[-1]["environment"] = {"FIRSTLIGHT_GPU_HOST": f"{FIXTURES}/hosts/{{{{ recorded | default('none') }}}}"}
    write(directory / "play.yml", plays)
    command = [pathlib.Path(sys.executable).parent / "ansible-playbook", "-i", directory / "hosts.yml", directory / "play.yml", *options]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "ANSIBLE_FORKS": "4"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [{path.stem: json.loads(path.read_text()) for path in (directory / f"out{number}").iterdir()} for number in range(2)]
    return done.stdout, said


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    return run(tmp_path_factory.mktemp("gpu_inventory"))


HARDWARE = {
    "2x_a6000": (["gpu_arch_ampere", "gpu_model", "gpu_rtx_a6000"], [0, 1]),
    "a100": (["gpu_a100_sxm4_40gb", "gpu_arch_ampere", "gpu_model"], ["MIG-2"]),
    "none": (["gpu_none"], [3]),
    "gone": ([], [0]),
}


@pytest.mark.parametrize("host", HARDWARE)
def test_what_the_groups_of_the_hardware_set_counts(said, host):
    groups, gpus = HARDWARE[host]
    for play in said[1]:
        assert [group for group in play[host]["groups"] if group.startswith("gpu_")] == groups
        assert play[host]["gpus"] == gpus


NO_DRIVER = "expected NVIDIA's driver 580.65.06 or later and the GPUs 3, found no loaded driver."


def test_the_filter_tells_what_is_wrong(said):
    play = said[1][0]
    assert play["2x_a6000"]["problems"] == []
    assert [problem.startswith(NO_DRIVER) for problem in play["none"]["problems"]] == [True]


def test_hosts_that_cannot_be_looked_at_go_on_and_say_why(said):
    gone, wrong = said[1][0]["gone"], said[1][0]["wrong"]
    assert gone["unreachable"] is True
    assert "127.0.0.1 port 9" in gone["failure"]
    assert "expected an executable nvidia-smi, found no such file: /no/such/nvidia-smi" in wrong["failure"]


def test_each_host_is_looked_at_once_and_nothing_changes(said):
    output = said[0]
    assert output.count("TASK [firstlight.sglang.gpu_inventory : Export the inventory]") == 1, output
    assert "changed: [2x_a6000] => (item=" not in output, output
