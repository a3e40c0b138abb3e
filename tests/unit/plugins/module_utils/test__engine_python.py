# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils._engine_python import (
    Python,
    choose,
    package_manager,
    platform_key,
    room_problems,
)

DEBIAN_13 = Python("/usr/bin/python3.13", "3.13.5")
DEBIAN_12 = Python("/usr/bin/python3.11", "3.11.2")
UBUNTU_24 = Python("/usr/bin/python3.12", "3.12.3")
LOCAL = Python("/usr/local/bin/python3.13", "3.13.1")
ARCHIVE = "/opt/sglang/python/abc/python/bin/python3"
CUDA_APT = ("g++", "libnuma1", "numactl")
CUDA_DNF = ("gcc-c++", "numactl", "numactl-libs")


def decide(**changes):
    arguments = {
        "wanted": "auto",
        "platform": ("debian", "13"),
        "machine": "x86_64",
        "glibc": "2.41",
        "pythons": [DEBIAN_13],
        "variants": ["cpu"],
    }
    return choose(**{**arguments, **changes})


@pytest.mark.parametrize(
    ("text", "key", "manager"),
    [
        ({"ID": "debian", "VERSION_ID": "12"}, ("debian", "12"), "apt"),
        ({"ID": "ubuntu", "VERSION_ID": "22.04", "ID_LIKE": "debian"}, ("ubuntu", "22.04"), "apt"),
        ({"ID": "rocky", "VERSION_ID": "9.5", "ID_LIKE": "rhel centos fedora"}, ("rhel", "9"), "dnf"),
        ({"ID": "rhel", "VERSION_ID": "9.4", "ID_LIKE": "fedora"}, ("rhel", "9"), "dnf"),
        ({"ID": "arch"}, ("arch", ""), ""),
        ({}, ("", ""), ""),
    ],
)
def test_platform_key(text, key, manager):
    assert platform_key(text) == key
    assert package_manager(key) == manager


@pytest.mark.parametrize(
    ("changes", "source", "path", "packages"),
    [
        pytest.param({}, "system", DEBIAN_13.path, ["python3.13-venv"], id="Debian 13"),
        pytest.param(
            {"variants": ["cuda", "cpu"]},
            "system",
            DEBIAN_13.path,
            [*CUDA_APT, "python3.13-dev", "python3.13-venv"],
            id="Debian 13 with a GPU",
        ),
        pytest.param(
            {"platform": ("debian", "12"), "glibc": "2.36", "pythons": [DEBIAN_12], "variants": ["cuda"]},
            "system",
            DEBIAN_12.path,
            [*CUDA_APT, "python3.11-dev", "python3.11-venv"],
            id="Debian 12",
        ),
        pytest.param(
            {"platform": ("ubuntu", "24.04"), "glibc": "2.39", "pythons": [UBUNTU_24]},
            "system",
            UBUNTU_24.path,
            ["python3.12-venv"],
            id="Ubuntu 24.04",
        ),
        pytest.param(
            {"platform": ("ubuntu", "22.04"), "glibc": "2.35", "pythons": []},
            "package",
            "/usr/bin/python3.11",
            ["python3.11", "python3.11-venv"],
            id="Ubuntu 22.04",
        ),
        pytest.param(
            {"platform": ("ubuntu", "22.04"), "glibc": "2.35", "pythons": [DEBIAN_12]},
            "system",
            "/usr/bin/python3.11",
            ["python3.11-venv"],
            id="Ubuntu 22.04, second run",
        ),
        pytest.param(
            {"platform": ("rhel", "9"), "glibc": "2.34", "pythons": [], "variants": ["cuda"]},
            "package",
            "/usr/bin/python3.12",
            [*CUDA_DNF, "python3.12", "python3.12-devel"],
            id="Rocky 9",
        ),
        pytest.param(
            {"platform": ("rhel", "9"), "glibc": "2.34", "pythons": [UBUNTU_24], "variants": ["cuda"]},
            "system",
            "/usr/bin/python3.12",
            [*CUDA_DNF, "python3.12", "python3.12-devel"],
            id="Rocky 9, second run",
        ),
        pytest.param({"pythons": [LOCAL, DEBIAN_12]}, "system", DEBIAN_12.path, ["python3.11-venv"], id="the distribution's comes first"),
        pytest.param({"pythons": [LOCAL]}, "system", LOCAL.path, [], id="one that is no package needs no package"),
        pytest.param({"wanted": "3.11", "pythons": [DEBIAN_13, DEBIAN_12]}, "system", DEBIAN_12.path, ["python3.11-venv"], id="a release"),
        pytest.param({"wanted": LOCAL.path, "pythons": [DEBIAN_13, LOCAL]}, "system", LOCAL.path, [], id="an executable"),
        pytest.param(
            {"platform": ("debian", "14"), "pythons": [Python("/usr/bin/python3.14", "3.14.0")], "archive_path": ARCHIVE},
            "archive",
            ARCHIVE,
            [],
            id="archive",
        ),
        pytest.param({"pythons": [Python(ARCHIVE, "3.12.8")], "archive_path": ARCHIVE}, "system", ARCHIVE, [], id="archive, second run"),
    ],
)
def test_the_engine_gets_a_python(changes, source, path, packages):
    choice = decide(**changes)
    assert (choice.source, choice.path, choice.problems) == (source, path, ())
    always = {"ca-certificates"} | ({"curl"} if package_manager(changes.get("platform", ("debian", "13"))) == "apt" else set())
    assert sorted(choice.packages) == sorted({*packages, *always})


@pytest.mark.parametrize(
    ("changes", "expected", "found", "change"),
    [
        pytest.param({"glibc": "2.31"}, "glibc 2.34", "2.31", "newer distribution", id="Ubuntu 20.04"),
        pytest.param({"glibc": ""}, "glibc 2.34", "none", "newer distribution", id="musl"),
        pytest.param({"platform": ("arch", "")}, "expected Debian", "found arch", "another distribution", id="Arch"),
        pytest.param({"machine": "ppc64le"}, "x86_64 or aarch64", "ppc64le", "another host", id="machine"),
        pytest.param(
            {"platform": ("debian", "14"), "pythons": []}, "Python 3.11 or 3.12", "no Python", "sglang_venv_python_archive", id="no Python"
        ),
        pytest.param(
            {"wanted": "3.12"}, "Python 3.12", "/usr/bin/python3.13 (3.13.5)", "name its path in sglang_venv_python", id="another release"
        ),
        pytest.param(
            {"wanted": "3.12", "pythons": [Python(ARCHIVE, "3.13.1")], "archive_path": ARCHIVE},
            "Python 3.12",
            f"{ARCHIVE} (3.13.1)",
            "sglang_venv_python_archive",
            id="the archive has another release",
        ),
        pytest.param({"wanted": "3.9"}, "auto, 3.11", "3.9", "sglang_venv_python", id="unsupported release"),
        pytest.param({"wanted": "/opt/python"}, "/opt/python to be Python 3.11", "3.13.5", "Name another", id="no such executable"),
    ],
)
def test_a_host_without_one_is_told_what_to_change(changes, expected, found, change):
    (problem,) = decide(**changes).problems
    for part in (expected, found, change):
        assert part in problem


def test_room():
    assert room_problems([("a", 8, 9.5)]) == []
    assert room_problems([("/opt/x", 15, 3.21)])[0].startswith("expected 15 GB free for /opt/x, found 3.2 GB")
