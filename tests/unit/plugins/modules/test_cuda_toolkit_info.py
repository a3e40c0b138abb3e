"""The module on directories in the place of an environment and of toolkits, whose programs only pretend."""

from __future__ import annotations

import getpass
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _cuda_toolkit as core
from recorded_hosts import run

ROOT = pathlib.Path(__file__).parents[4]
SAMPLES = ROOT / "tests/fixtures/cuda"
MODULE = ROOT / "plugins/modules/cuda_toolkit_info.py"
# Says its version; with -c: writes the object file, unless there is a text in its place of failures.
NVCC = """#!/bin/sh
here=$(dirname "$0")
if [ "$1" = --version ]; then exec cat "$here/version.txt"; fi
env >"$here/../environment.txt"
if [ -e "$here/fails.txt" ]; then cat "$here/fails.txt"; exit 1; fi
for word; do last=$word; done
cat "${0%/*}/version.txt" >"$last"
"""
CXX = """#!/bin/sh
if [ "$1" = -dumpfullversion ]; then echo 14.2.0; exit; fi
for word; do case $word in -L*) test -e "${word#-L}/libcudart.so" || { echo 'ld: cannot find -lcudart'; exit 1; } ;; esac; done
"""


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def toolkit(home, version="nvcc_13.0.88.txt"):
    """All PARTS of a toolkit."""
    for part in core.PARTS:
        path = home / part.places[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    program(home / "bin/nvcc", NVCC)
    (home / "bin/version.txt").write_text((SAMPLES / version).read_text())
    (home / "include/cuda_runtime_api.h").write_text((SAMPLES / "cuda_runtime_api_13.0.txt").read_text())


class Place:
    """An environment with its toolkit, and the question about it."""

    def __init__(self, tmp_path):
        self.tmp = tmp_path
        self.environment = tmp_path / "releases/0.5.23-cuda-1a2b3c4d"
        self.home = self.environment / "cuda"
        self.variant = "cuda"
        toolkit(self.home)
        program(self.environment / "bin/ninja", "#!/bin/sh\n")
        program(self.environment / "bin/c++", CXX)
        program(self.environment / "bin/python", f"#!/bin/sh\necho {self.environment}/include\n")
        (self.environment / "include").mkdir()
        (self.environment / "include/Python.h").write_text("")
        (self.environment / ".firstlight.json").write_text("{}")
        self.tools = tmp_path / "tools"  # this machine may have a ninja of its own
        self.tools.mkdir()
        for name in ("cat", "dirname", "env", "sh", "sleep", "timeout"):
            (self.tools / name).symlink_to(shutil.which(name))

    def instance(self, name="demo", user=None, **environment):
        current = self.tmp / f"instances/{name}/current"  # is not there: it would lead to the environment that runs now
        values = {"PATH": f"{current}/bin:{self.tools}", "CUDA_HOME": f"{current}/cuda", **environment}
        return {
            "name": name,
            "user": user or getpass.getuser(),
            "current": str(current),
            "environment": {"release": "0.5.23", "variant": self.variant, "path": str(self.environment)},
            "unit_environment": values,
        }

    def ask(self, *instances, **options):
        arguments = {"instances": list(instances) or [self.instance()], **options}
        process = subprocess.run(
            [sys.executable, MODULE],
            input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
            check=False,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return json.loads(process.stdout)


@pytest.mark.parametrize(
    ("instance", "lost"),
    [
        ({}, "instances[0].environment.variant"),
        ({"environment": None}, "instances[0].environment.variant"),
        (
            {"environment": {"variant": "cuda", "path": "/x"}, "name": "demo", "user": "sglang", "unit_environment": {}},
            "instances[0].current, instances[0].environment.release, instances[0].unit_environment.CUDA_HOME",
        ),
    ],
)
def test_something_else_than_an_instance_is_refused_in_one_sentence(instance, lost):
    expected = f"instances: expected what the lookup firstlight.sglang.instances returns, found none of {lost}."
    assert run("cuda_toolkit_info", {"instances": [instance]}, refused=True)["msg"] == expected


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


COMPILE = {"compile": True, "compute_capabilities": ["8.6", "9.0"]}


def test_the_toolkit_of_an_environment(place):
    result = place.ask(place.instance(), place.instance("other"), **COMPILE)
    assert (result["problems"], result["packages"], result["changed"]) == ([], [], False)
    (told,) = result["toolkits"]
    assert (told["instances"], told["home"]) == (["demo", "other"], str(place.home))
    assert (told["ready"], told["cuda"], told["torch_cuda"], told["missing"]) == (True, "13.0", "13.0", [])
    assert list(told["compiled"]) == ["8.6", "9.0"]


def test_what_was_proven_is_not_compiled_again_until_a_tool_changes(place):
    first = place.ask(**COMPILE)["toolkits"][0]
    assert (list(first["compiled"]), first["proven"]) == (["8.6", "9.0"], [])
    again = place.ask(compile=True, compute_capabilities=["8.6", "9.0", "12.0"])["toolkits"][0]
    assert (list(again["compiled"]), again["proven"]) == (["12.0"], ["8.6", "9.0"])
    for change in (
        lambda: (place.environment / ".firstlight.json").write_text('{"lock_sha256": "other"}'),
        lambda: (place.home / "bin/version.txt").write_text((SAMPLES / "nvcc_13.0.88.txt").read_text().replace("V13.0.88", "V13.0.99")),
        lambda: program(place.environment / "bin/c++", CXX.replace("14.2.0", "14.3.0")),
    ):
        change()
        assert list(place.ask(**COMPILE)["toolkits"][0]["compiled"]) == ["8.6", "9.0"]
        assert place.ask(**COMPILE)["toolkits"][0]["proven"] == ["8.6", "9.0"]
    other = place.instance(SGLANG_X="1")
    assert list(place.ask(other, **COMPILE)["toolkits"][0]["compiled"]) == ["8.6", "9.0"]
    (place.environment / ".firstlight-cuda.json").write_text("no JSON")
    assert list(place.ask(other, **COMPILE)["toolkits"][0]["compiled"]) == ["8.6", "9.0"]


def test_a_failure_and_a_check_run_are_not_remembered(place):
    (place.home / "bin/fails.txt").write_text((SAMPLES / "compile_cccl_refuses.txt").read_text())
    place.ask(**COMPILE)
    (place.home / "bin/fails.txt").unlink()
    assert list(place.ask(_ansible_check_mode=True, **COMPILE)["toolkits"][0]["compiled"]) == ["8.6", "9.0"]
    assert not (place.environment / ".firstlight-cuda.json").exists()


def test_packages_of_a_repository_that_is_still_to_come_are_offered(place):
    home = "/usr/local/cuda-13.0"
    wanted = {"source": "nvidia", "required": False}
    refused = place.ask(place.instance(CUDA_HOME=home), **wanted)
    assert "Is NVIDIA's repository configured?" in refused["problems"][0]
    names = core.names_to_ask("nvidia", "apt", "0.5.23")
    result = place.ask(place.instance(CUDA_HOME=home), coming={name: ["1"] for name in names}, **wanted)
    assert (result["problems"], result["packages"][:2]) == ([], ["cuda-nvcc-13-0", "cuda-cudart-dev-13-0"])


def test_programs_run_with_the_environment_of_the_service_and_nothing_else(place):
    place.ask(place.instance(SGLANG_X="1"), **COMPILE)
    lines = (place.home / "environment.txt").read_text().splitlines()
    names = {line.partition("=")[0] for line in lines} - {"PWD", "OLDPWD", "SHLVL", "_"}
    assert names == {"PATH", "CUDA_HOME", "SGLANG_X", "TMPDIR", "HOME"}
    assert f"CUDA_HOME={place.home}" in lines


def test_nothing_is_left_behind(place, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (place.home / "bin/fails.txt").write_text((SAMPLES / "compile_cccl_refuses.txt").read_text())
    assert len(place.ask(**COMPILE)["problems"]) == 2
    assert list((tmp_path / "tmp").glob("firstlight*")) == []


def test_why_a_kernel_does_not_compile(place):
    (place.home / "bin/fails.txt").write_text((SAMPLES / "compile_arch_unsupported.txt").read_text())
    result = place.ask(compile=True, compute_capabilities=["7.0"])
    assert "compute capability 7.0" in result["problems"][0]
    assert "Unsupported gpu architecture 'compute_70'" in result["problems"][0]
    assert (result["toolkits"][0]["ready"], result["toolkits"][0]["compiled"]) == (False, {})
    assert "expected a compute capability such as 8.6" in place.ask(compile=True, compute_capabilities=["new"])["problems"][0]


def test_a_compiler_that_does_not_end(place):
    program(place.home / "bin/nvcc", NVCC.replace("env >", "sleep 60 >"))
    assert "it did not end in 1 s" in place.ask(compile=True, compute_capabilities=["8.6"], timeout_s=1)["problems"][0]


def test_mixed_wheels(place):
    """nvcc of the newest release beside the headers of torch's: CCCL refuses to be compiled."""
    toolkit(place.home, "nvcc_13.5.37.txt")
    (problem,) = place.ask()["problems"]
    assert problem.startswith("demo: expected nvcc and the runtime's headers of one release of CUDA")


def test_what_is_missing(place):
    for path in (place.home / "include/curand_kernel.h", place.environment / "bin/ninja", place.environment / "include/Python.h"):
        path.unlink()
    result = place.ask()
    assert [words in problem for words, problem in zip(("curand_kernel.h", "ninja", "Python.h"), result["problems"])] == [True] * 3
    assert result["toolkits"][0]["missing"] == ["curand_kernel.h"]
    # What comes with the environment or with packages is not missed before.
    assert len(place.ask(required=False)["problems"]) == 1


def test_a_link_to_a_driver_that_is_not_there_yet(place):
    stub = place.home / "lib64/stubs/libcuda.so"
    stub.unlink()
    assert place.ask()["toolkits"][0]["missing"] == ["stubs/libcuda.so"]
    stub.symlink_to("/no/such/libcuda.so.1")
    assert place.ask()["problems"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_what_the_services_user_cannot_read(place):
    for directory in (place.tmp, *place.tmp.parents):
        if directory.name.startswith(("test_", "pytest-", "popen-")):  # pytest's own, closed to others
            directory.chmod(0o755)
    assert place.ask(place.instance(user="nobody"))["problems"] == []
    (place.home / "include/cuda_fp8.h").chmod(0o600)
    (place.home / "bin/nvcc").chmod(0o700)
    result = place.ask(place.instance(user="nobody"))
    assert (result["toolkits"][0]["missing"], result["toolkits"][0]["user"]) == (["nvcc", "cuda_fp8.h"], "nobody")


def test_before_the_environment_is_there(place):
    (place.environment / ".firstlight.json").unlink()
    result = place.ask(required=False)
    assert (result["problems"], result["toolkits"][0]["ready"]) == ([], False)
    assert place.ask()["problems"] != []


def test_a_toolkit_that_is_there(place):
    other = place.tmp / "cuda-12.4"
    toolkit(other, "nvcc_12.4.131.txt")
    instance = place.instance(CUDA_HOME=str(other))
    result = place.ask(instance, source="path", path=str(other), required=False)
    assert "expected nvcc of CUDA 13" in result["problems"][0]
    assert "found CUDA_HOME=" in place.ask(place.instance(), source="path", path=str(other))["problems"][0]
    assert "expected one source" in place.ask(instance, source="wheels", path=str(other))["problems"][0]
    (missing,) = place.ask(place.instance(CUDA_HOME="/no/cuda"), source="path", path="/no/cuda", required=False)["problems"]
    assert "expected a CUDA toolkit at /no/cuda, found nothing there." in missing


def test_the_driver_is_told_apart(place):
    result = place.ask(driver_version="570.124.06", cuda_driver_version="12.8")
    assert result["problems"] == []
    assert "found 570.124.06 loaded, which serves CUDA 12.8 at most" in result["driver_problems"][0]


def test_the_cpu_needs_none(place):
    place.variant = "cpu"
    result = place.ask(source="path", driver_version="470.1")
    assert (result["problems"], result["driver_problems"], result["toolkits"]) == ([], [], [])
