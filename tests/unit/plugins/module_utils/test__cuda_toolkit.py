# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pathlib

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _cuda_toolkit as core

SAMPLES = pathlib.Path(__file__).parents[3] / "fixtures/cuda"
ENVIRONMENT = "/opt/sglang/releases/0.5.23-cuda-1a2b3c4d"
DEBIAN_12, DEBIAN_13, UBUNTU_24, RHEL = ("debian", "12"), ("debian", "13"), ("ubuntu", "24.04"), ("rhel", "9")
COMPLETE = core.Found(
    exists=True,
    nvcc="Cuda compilation tools, release 13.0, V13.0.88",
    runtime="#define CUDART_VERSION  13000",
    ninja="/e/bin/ninja",
    python_h="/usr/include/python3.13/Python.h",
    cxx="/usr/bin/c++",
    cxx_version="14.2.0\n",
)


def sample(name):
    return (SAMPLES / name).read_text()


def choose(source="wheels", **changes):
    homes = {"wheels": f"{ENVIRONMENT}/cuda", "nvidia": "/usr/local/cuda-13.0", "distribution": "/usr/lib/cuda", "path": "/opt/cuda"}
    path = changes.get("path", None if source == "wheels" else homes[source])
    arguments = {
        "asked": None,
        "path": path,
        "release": "0.5.23",
        "environment_path": ENVIRONMENT,
        "unit_home": path or homes[source],
        "platform": DEBIAN_13,
        "manager": "apt",
        "offered": None,
    }
    return core.choose(source=source, **{**arguments, **changes})


def only(texts):
    (text,) = texts
    return text


# Texts


@pytest.mark.parametrize(
    ("name", "release"),
    [("nvcc_13.0.88.txt", "13.0"), ("nvcc_13.5.37.txt", "13.5"), ("nvcc_12.4.131.txt", "12.4"), ("compile_no_curand.txt", None)],
)
def test_the_release_that_nvcc_says(name, release):
    assert core.parse_nvcc(sample(name)) == release


@pytest.mark.parametrize(
    ("text", "release"),
    [
        (sample("version_13.0.json"), "13.0"),
        ('{"cuda": {"version": "12.10.1"}}', "12.10"),
        ('{"cuda": {"version": "13"}}', None),
        ('{"cuda": []}', None),
        ("[]", None),
        ("CUDA Version 10.2.89\n", None),
        ("", None),
    ],
)
def test_the_release_in_version_json(text, release):
    assert core.parse_version_json(text) == release


@pytest.mark.parametrize(
    ("text", "release"),
    [
        (sample("cuda_runtime_api_13.0.txt"), "13.0"),
        ("#define CUDART_VERSION 12040\n", "12.4"),
        ("// CUDART_VERSION 12040\n", None),
        ("", None),
    ],
)
def test_the_release_of_the_headers(text, release):
    assert core.parse_runtime(text) == release


def test_what_a_package_manager_offers():
    assert core.parse_madison(sample("madison_debian13.txt")) == {"nvidia-cuda-toolkit": ["12.4.131~12.4.1-2"]}
    assert core.parse_madison(sample("madison_nvidia.txt"))["cuda-nvcc-13-1"] == ["13.1.115-1", "13.1.80-1"]
    assert core.parse_madison("cuda-nvcc-13-0 | 13.0.88\n\n") == {"cuda-nvcc-13-0": ["13.0.88"]}
    assert core.parse_madison("N: Unable to locate package x\n") == {}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (sample("compile_no_curand.txt"), "kernel.cu:4:10: fatal error: curand_kernel.h: No such file or directory"),
        (sample("compile_arch_unsupported.txt"), "nvcc fatal   : Unsupported gpu architecture 'compute_70'"),
        (sample("compile_no_cudart.txt"), "/usr/bin/ld: cannot find -lcudart: No such file or directory"),
        ("ninja: build stopped: subcommand failed.\nnvcc fatal   : cicc Killed\n", "nvcc fatal   : cicc Killed"),
        ("\n", "it printed nothing"),
    ],
)
def test_the_line_that_tells(text, line):
    assert core.telling_line(text) == line


def test_the_line_of_cccl():
    assert core.telling_line(sample("compile_cccl_refuses.txt")).endswith('incompatible, please check your include paths"')


# What is wanted


@pytest.mark.parametrize(
    ("release", "cuda"),
    [
        ("0.5.23", "13.0"),
        ("0.5.12", "13.0"),
        ("0.6.0", "13.0"),
        ("0.5.15.post1", "13.0"),
        ("0.5.11", "13.0"),
        ("0.5.10.post1", "12.8"),
        ("0.5.9", "12.8"),
        ("0.5.8", None),
    ],
)
def test_the_cuda_of_a_release(release, cuda):
    assert core.torch_cuda(release) == cuda


@pytest.mark.parametrize(
    ("release", "driver", "serves", "told"),
    [
        ("0.5.23", "580.65.06", "13.0", None),
        ("0.5.23", "610.43.02", "13.3", None),
        ("0.5.23", None, None, None),
        ("0.5.23", "580.65.05", None, "expected NVIDIA's driver 580.65.06 or later"),
        ("0.5.23", "570.124.06", "12.8", "found 570.124.06 loaded, which serves CUDA 12.8 at most."),
        ("0.5.23", None, "12.8", "found another loaded, which serves CUDA 12.8 at most."),
        ("0.5.10", "550.163.01", "12.4", None),
        ("0.5.10", "520.61.05", "11.8", "expected NVIDIA's driver 525.60.13 or later (torch of SGLang 0.5.10 is built with CUDA 12.8)"),
        ("0.5.8", "470.1", "11.4", None),
    ],
)
def test_the_driver(release, driver, serves, told):
    problems = core.driver_problems([release, release], driver, serves)
    assert told in only(problems) if told else problems == []


@pytest.mark.parametrize(
    ("source", "asked", "path", "told"),
    [
        ("wheels", None, None, []),
        ("path", None, "/opt/cuda", []),
        ("nvidia", "13.1", "/usr/local/cuda-13.1", []),
        ("wheels", None, "/opt/cuda", ["expected one source, found wheels and the toolkit /opt/cuda"]),
        ("path", None, None, ["cuda_toolkit_path: expected the directory of a toolkit"]),
        ("path", None, "opt/cuda/", ["cuda_toolkit_path: expected an absolute path"]),
        ("path", None, "/", ["cuda_toolkit_path: expected an absolute path"]),
        ("nvidia", "latest", None, ["expected a release of CUDA such as 13.0, found 'latest'"]),
        ("wheels", "13.0", "/opt/cuda", ["expected nothing with cuda_toolkit_source: wheels", "expected one source"]),
    ],
)
def test_the_options(source, asked, path, told):
    problems = core.option_problems(source, asked, path)
    assert len(problems) == len(told)
    assert all(words in problem for words, problem in zip(told, problems))


def test_each_source_has_its_place_and_its_packages():
    assert choose() == core.Choice(f"{ENVIRONMENT}/cuda", None, (), ())
    assert choose("path") == core.Choice("/opt/cuda", None, (), ())
    names = ("cuda-nvcc-13-0", "cuda-cudart-dev-13-0", "cuda-driver-dev-13-0", "cuda-cccl-13-0", "libcurand-dev-13-0")
    assert choose("nvidia") == core.Choice("/usr/local/cuda-13.0", "13.0", names, ())
    assert choose("nvidia", manager="dnf", platform=RHEL).packages[1] == "cuda-cudart-devel-13-0"
    older = choose("distribution", release="0.5.10", offered=core.parse_madison(sample("madison_debian13.txt")))
    assert older == core.Choice("/usr/lib/cuda", None, ("nvidia-cuda-toolkit",), ())


def test_nvidias_release_follows_the_services_home():
    offered = core.parse_madison(sample("madison_nvidia.txt"))
    choice = choose("nvidia", path="/usr/local/cuda-13.1", offered=offered)
    assert (choice.home, choice.cuda, choice.problems) == ("/usr/local/cuda-13.1", "13.1", ())
    assert set(choice.packages) <= set(offered)
    assert choice.packages[0] == "cuda-nvcc-13-1"


@pytest.mark.parametrize(
    ("platform", "offered", "cuda"),
    [
        (DEBIAN_12, sample("madison_debian12.txt"), "11.8"),
        (DEBIAN_13, sample("madison_debian13.txt"), "12.4"),
        (DEBIAN_12, None, "11.8"),
        (DEBIAN_13, "", "12.4"),
        (UBUNTU_24, None, "12.0"),
    ],
)
def test_a_distribution_with_an_older_cuda_is_refused(platform, offered, cuda):
    text = only(choose("distribution", platform=platform, offered=None if offered is None else core.parse_madison(offered)).problems)
    assert "expected a toolkit of CUDA 13 for SGLang 0.5.23 (its torch is built with CUDA 13.0)" in text
    assert f"offers nvidia-cuda-toolkit of CUDA {cuda}." in text
    assert "Set cuda_toolkit_source: wheels (nothing to install) or nvidia, or path" in text


REFUSALS = {
    "no package at all": (
        "distribution",
        {"platform": RHEL, "manager": "dnf"},
        "found that RHEL 9 offers none. Set cuda_toolkit_source: wheels",
    ),
    "the component is missing": (
        "distribution",
        {"release": "0.5.10", "offered": {}},
        "Add the component of its archive (Debian: non-free",
    ),
    "no repository": (
        "nvidia",
        {"offered": {}},
        "Is NVIDIA's repository configured? Set cuda_toolkit_source: wheels (nothing to install), or path",
    ),
    "another release is there, and one that is not whole": (
        "nvidia",
        {"offered": core.parse_madison(sample("madison_nvidia.txt"))},
        "It offers 13.1: set sglang_cuda_home: /usr/local/cuda-13.1 for one of these. Set cuda_toolkit_source: wheels",
    ),
    "another major version": ("nvidia", {"asked": "12.8"}, "found that CUDA 12.8 is asked for"),
    "a platform without repository": (
        "nvidia",
        {"platform": ("debian", "11")},
        "a platform that NVIDIA has a repository for, found Debian 11",
    ),
    "the path is another": ("nvidia", {"asked": "13.1"}, "expected /usr/local/cuda-13.1 (where cuda_toolkit_source: nvidia puts it)"),
    "the services have another": (
        "nvidia",
        {"path": None, "unit_home": f"{ENVIRONMENT}/cuda"},
        f"found CUDA_HOME={ENVIRONMENT}/cuda. Set sglang_cuda_home: /usr/local/cuda-13.0.",
    ),
    "wheels, and a CUDA_HOME of the instance's own": ("wheels", {"unit_home": "/opt/cuda"}, "found CUDA_HOME=/opt/cuda. Remove it"),
    "a release of which nothing is known": (
        "wheels",
        {"release": "0.5.8"},
        "expected a release of SGLang whose CUDA is known (0.5.9 or later)",
    ),
}


@pytest.mark.parametrize(("source", "changes", "told"), REFUSALS.values(), ids=REFUSALS)
def test_refused_before_anything_changes(source, changes, told):
    choice = choose(source, **changes)
    assert told in only(choice.problems)
    assert choice.packages == ()


def test_what_is_asked_of_a_package_manager():
    assert core.names_to_ask("wheels", "apt", "0.5.23") == []
    assert core.names_to_ask("distribution", "apt", "0.5.23") == ["nvidia-cuda-toolkit"]
    names = core.names_to_ask("nvidia", "apt", "0.5.23")
    assert "cuda-nvcc-13-0" in names
    assert "libcurand-dev-13-9" in names


# What is there


def problems(source="wheels", manager="apt", **changes):
    found = COMPLETE._replace(**changes)
    choice = choose(source)
    return core.check(choice, found, source=source, release="0.5.23", manager=manager) + core.tool_problems(found, manager)


def test_a_complete_toolkit():
    for source in core.SOURCES:
        if source != "distribution":
            assert problems(source) == []
    newer = {"nvcc": "release 13.1, V13.1.80", "runtime": "#define CUDART_VERSION 13010"}
    assert problems("path", **newer) == []
    assert "Set cuda_toolkit_release: 13.1" in only(problems("nvidia", **newer))


FAULTS = {
    "nothing there": (
        "path",
        {"exists": False},
        "expected a CUDA toolkit at /opt/cuda, found nothing there. Complete it (NVIDIA's packages: cuda-nvcc-13-0",
    ),
    "an environment without it": ("wheels", {"exists": False}, f"at {ENVIRONMENT}/cuda, found nothing there. The environment is not"),
    "no nvcc": ("path", {"missing": ("nvcc",), "nvcc": ""}, "expected nvcc in /opt/cuda, found none that the services' user can run."),
    "no nvcc, but a version": (
        "path",
        {"missing": ("nvcc",), "nvcc": "", "version_json": sample("version_13.0.json")},
        "(its version.json says CUDA 13.0)",
    ),
    "nvcc does not start": ("path", {"nvcc": "sh: 1: nvcc: Permission denied"}, "says its version, found: sh: 1: nvcc: Permission denied."),
    "nvcc of an older CUDA": ("path", {"nvcc": sample("nvcc_12.4.131.txt")}, "expected nvcc of CUDA 13 (torch of SGLang 0.5.23"),
    "headers of another release": (
        "wheels",
        {"nvcc": sample("nvcc_13.5.37.txt"), "runtime": sample("cuda_runtime_api_13.0.txt")},
        "found nvcc 13.5 and cuda_runtime_api.h of 13.0 in",
    ),
    "headers": (
        "path",
        {"missing": ("cuda_fp8.h", "curand_kernel.h", "cub/cub.cuh")},
        "found no cuda_fp8.h (cuda-cudart-dev), curand_kernel.h (libcurand-dev), cub/cub.cuh (cuda-cccl).",
    ),
    "ninja": ("wheels", {"ninja": ""}, "expected ninja on the services' PATH"),
    "Python.h": ("wheels", {"python_h": ""}, "expected Python.h of the environment's Python"),
    "no compiler": (
        "wheels",
        {"cxx": "", "cxx_version": ""},
        "expected a C++ compiler (c++) on the services' PATH, found none. Install g++",
    ),
    "an old compiler": ("wheels", {"cxx_version": "10.2.1\n"}, "expected GCC 11 or later (kernels are C++20), found 10.2.1"),
}


@pytest.mark.parametrize(("source", "changes", "told"), FAULTS.values(), ids=FAULTS)
def test_what_is_missing_is_named(source, changes, told):
    assert told in only(problems(source, **changes))


def test_packages_are_named_as_the_package_manager_does():
    assert "curand_kernel.h (libcurand-devel)" in only(problems("path", "dnf", missing=("curand_kernel.h",)))
    assert "Install gcc-c++" in only(problems("path", "dnf", cxx=""))


def test_all_is_told_at_once():
    found = problems("path", missing=("cuda_fp8.h",), nvcc=sample("nvcc_12.4.131.txt"), ninja="", python_h="", cxx="")
    assert len(found) == 5


@pytest.mark.parametrize(("capability", "words"), [("8.6", "86"), ("12.0", "120"), ("8", None), ("", None), ("8.6a", None)])
def test_architecture(capability, words):
    assert core.architecture(capability) == words
