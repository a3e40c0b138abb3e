"""The cuda variant installs on a host without a GPU, and what can be proved without one holds. Slow: 11 GB."""

from __future__ import annotations

import json

import pytest
import yaml
from ansible_collections.firstlight.sglang.plugins.plugin_utils import flag_tables
from driver import ROOT

pytestmark = pytest.mark.slow

KERNEL = """
#include <cstdio>
__global__ void twice(int *x) { *x *= 2; }
int main() { int n = 0; std::printf("%d\\n", cudaGetDeviceCount(&n)); return 0; }
"""


A6000 = {"gpu_inventory_result": {"gpus": [{"usable": True, "compute_capability": "8.6"}]}}


@pytest.fixture(scope="module")
def environment(site, host, tmp_path_factory):
    """The environment of the reference deployment, CT129, whose toolkit has compiled and linked a kernel for an A6000."""
    playbook = tmp_path_factory.mktemp("cuda") / "venv.yml"
    roles = [{"role": "firstlight.sglang.sglang_venv"}, {"role": "firstlight.sglang.cuda_toolkit", "vars": A6000}]
    playbook.write_text(yaml.safe_dump([{"hosts": "sglang", "gather_facts": False, "become": True, "roles": roles}]))
    first = site.play(str(playbook), groups=["qwen3_6_27b"])
    assert first.status == "successful", first.output
    second = site.play(str(playbook), groups=["qwen3_6_27b"])
    assert second.changed == []
    return host.check_output("ls -d /opt/sglang/releases/0.5.23-cuda-*")


def test_the_engine_parses_its_command_line(environment, host):
    assert "--tp-size" in host.check_output("%s/bin/sglang serve --help 2>/dev/null", environment)


def test_the_flag_table_is_the_same_as_without_cuda(environment, host):
    introspection = (ROOT / "plugins/module_utils/_flag_introspection.py").read_text()
    options = json.loads(host.check_output("%s/bin/python -I -c %s 2>/dev/null", environment, introspection))["options"]
    assert sorted(options, key=str) == sorted(flag_tables.table("0.5.23").options, key=str)


def test_nvcc_is_of_the_cuda_that_torch_was_built_with(environment, host):
    torch = host.check_output("%s/bin/python -c 'import torch; print(torch.version.cuda)'", environment)
    assert f"release {torch.split('.')[0]}." in host.check_output("%s/cuda/bin/nvcc --version", environment)


def test_a_kernel_for_an_a6000_compiles_and_links(environment, host):
    host.check_output("printf %%s %s > /tmp/kernel.cu", KERNEL)
    nvcc = f"{environment}/cuda/bin/nvcc -std=c++20 -gencode=arch=compute_86,code=sm_86 -L{environment}/cuda/lib64 -lcudart"
    host.check_output(f"env CUDA_HOME={environment}/cuda {nvcc} -o /tmp/kernel /tmp/kernel.cu")
    ran = host.run("env LD_LIBRARY_PATH=%s/cuda/lib64 /tmp/kernel", environment)
    assert ran.stdout.strip() not in ("", "0"), "without a driver the runtime must say so"


def test_the_role_proves_the_toolkit_as_the_services_user(environment, site, tmp_path):
    """What it includes is what the kernels of the engine include: the headers of CCCL take no nvcc of another release."""
    question = {
        "instances": "{{ query('firstlight.sglang.instances') }}",
        "compile": True,
        "compute_capabilities": ["8.9", "9.0"],  # 8.6 is proved already, and a proof is remembered
        "driver_version": "570.124.06",
        "cuda_driver_version": "12.8",
    }
    playbook = tmp_path / "toolkit.yml"
    tasks = [{"firstlight.sglang.cuda_toolkit_info": question}]
    playbook.write_text(yaml.safe_dump([{"hosts": "sglang", "gather_facts": False, "become": True, "tasks": tasks}]))
    play = site.play(str(playbook), groups=["qwen3_6_27b"])
    assert play.status == "successful", play.output
    (result,) = [event["event_data"]["res"] for event in play.events if event["event"] == "runner_on_ok"]
    (toolkit,) = result["toolkits"]
    assert result["problems"] == []
    assert (toolkit["ready"], toolkit["user"], toolkit["home"]) == (True, "sglang", f"{environment}/cuda")
    assert sorted(toolkit["compiled"]) == ["8.9", "9.0"]
    assert "which serves CUDA 12.8 at most" in result["driver_problems"][0]
