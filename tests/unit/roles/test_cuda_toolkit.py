"""The role on this machine, with directories in the place of an environment and of toolkits: one run of ansible-playbook."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[3]
SAMPLES = ROOT / "tests/fixtures/cuda"
NVCC = """#!/bin/sh
if [ "$1" = --version ]; then exec cat "${0%/*}/version.txt"; fi
for word; do last=$word; done
cp "${0%/*}/version.txt" "$last"
"""
FILES = (
    "include/crt/host_config.h",
    "include/cuda_runtime.h",
    "include/cuda_fp8.h",
    "include/curand_kernel.h",
    "include/cccl/cub/cub.cuh",
    "include/cccl/cuda/std/utility",
    "lib64/libcudart.so",
    "lib64/stubs/libcuda.so",
)
GPUS = {"driver_version": "580.159.04", "cuda_driver_version": "13.0", "gpus": [{"usable": True, "compute_capability": "8.6"}]}


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def toolkit(home, version):
    for name in FILES:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("")
    program(home / "bin/nvcc", NVCC)
    (home / "bin/version.txt").write_text((SAMPLES / version).read_text())


def instance(directory, variant="cuda", cuda_home=None):
    environment = directory / "environment"
    current = directory / "current"
    return {
        "name": "demo",
        "user": "nobody-here",
        "current": str(current),
        "environment": {"release": "0.5.23", "variant": variant, "path": str(environment)},
        "unit_environment": {"PATH": f"{current}/bin:/usr/bin:/bin", "CUDA_HOME": cuda_home or f"{current}/cuda"},
    }


def hosts(directory):
    """By name: variables of a host."""
    old = str(directory / "old")
    return {
        "wheels": {"cuda_toolkit_instances": [instance(directory)]},
        "cpu": {"cuda_toolkit_instances": [instance(directory, "cpu")], "cuda_toolkit_source": "path"},
        "old": {"cuda_toolkit_instances": [instance(directory, cuda_home=old)], "cuda_toolkit_source": "path", "sglang_cuda_home": old},
        "driver": {"cuda_toolkit_instances": [instance(directory)], "gpu_inventory_result": {**GPUS, "driver_version": "570.124.06"}},
        "blank": {"cuda_toolkit_instances": [instance(directory / "nothing")]},
        "wrong": {"cuda_toolkit_instances": [instance(directory)], "cuda_toolkit_release": "13.0", "sglang_cuda_home": "/opt/cuda"},
    }


def run(directory, *options):
    result = subprocess.run(
        [
            shutil.which("ansible-playbook", path=pathlib.Path(sys.executable).parent),
            "-i",
            directory / "hosts.yml",
            directory / "play.yml",
            *options,
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
            "ANSIBLE_FORKS": "2",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    recap = dict(line.split(":", 1) for line in result.stdout.partition("PLAY RECAP")[2].splitlines() if ":" in line)
    return result.stdout, {name.strip(): dict(pair.split("=") for pair in counts.split()) for name, counts in recap.items()}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    place = tmp_path_factory.mktemp("cuda_toolkit")
    toolkit(place / "environment/cuda", "nvcc_13.0.88.txt")
    toolkit(place / "old", "nvcc_12.4.131.txt")
    environment = place / "environment"
    program(environment / "bin/ninja", "#!/bin/sh\n")
    program(environment / "bin/c++", "#!/bin/sh\necho 14.2.0\n")
    program(environment / "bin/python", f"#!/bin/sh\necho {environment}\n")
    (environment / "Python.h").write_text("")
    (environment / ".firstlight.json").write_text("{}")
    common = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "gpu_inventory_result": GPUS}
    inventory = {name: {**common, **variables} for name, variables in hosts(place).items()}
    (place / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": inventory}}))
    show = {"ansible.builtin.debug": {"msg": "{{ inventory_hostname }}={{ __cuda_toolkit_proof.toolkits | default([]) | to_json }}"}}
    play = {"hosts": "all", "gather_facts": False, "roles": ["firstlight.sglang.cuda_toolkit"], "post_tasks": [show]}
    (place / "play.yml").write_text(yaml.safe_dump([play]))
    return place


def test_the_role(directory):
    output, recap = run(directory)
    assert {name: counts["failed"] for name, counts in recap.items()} == {
        "wheels": "0",
        "cpu": "0",
        "old": "1",
        "driver": "1",
        "blank": "1",
        "wrong": "1",
    }, output
    assert all(counts["changed"] == "0" for counts in recap.values())
    told = json.loads(json.loads(f'"{output.partition("wheels=")[2].partition(chr(10))[0][:-1]}"'))
    assert list(told[0]["compiled"]) == ["8.6"]
    assert "cpu=[]" in output
    for words in (
        "expected nvcc of CUDA 13 (torch of SGLang 0.5.23 is built with CUDA 13.0), found 12.4 in",
        "found 570.124.06 loaded, which serves CUDA 13.0 at most",
        "nothing/environment/cuda, found nothing there",
        "cuda_toolkit_release: expected nothing with cuda_toolkit_source: wheels",
        "expected one source, found wheels and the toolkit /opt/cuda",
    ):
        assert words in output


def test_check_mode_predicts_on_a_blank_host(directory):
    output, recap = run(directory, "--check", "--limit", "wheels,blank,cpu")
    assert all(counts["failed"] == "0" for counts in recap.values()), output
