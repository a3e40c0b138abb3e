# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _lockfile

LOCKS = Path(__file__).resolve().parents[4] / "roles/sglang_venv/files/locks"
HASH = "    --hash=sha256:" + "0" * 64

DEBIAN_13 = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.13.5",
    "python_version": "3.13",
    "sys_platform": "linux",
}
DEBIAN_12 = {**DEBIAN_13, "python_full_version": "3.11.2", "python_version": "3.11"}
GRACE = {**DEBIAN_13, "platform_machine": "aarch64", "python_full_version": "3.12.3", "python_version": "3.12"}


@pytest.mark.parametrize(
    ("marker", "debian_13", "debian_12", "grace"),
    [
        ("", True, True, True),
        ("sys_platform == 'linux'", True, True, True),
        ("sys_platform != 'emscripten' and sys_platform != 'win32'", True, True, True),
        ("os_name == 'nt' or sys_platform == 'win32'", False, False, False),
        ("python_full_version < '3.12'", False, True, False),
        ("python_full_version >= '3.12'", True, False, True),
        ("python_full_version >= '3.13'", True, False, False),
        ("python_version == '3.11'", False, True, False),
        ("'3.10' < python_version", True, True, True),
        ("python_full_version < '3.15' and sys_platform == 'linux'", True, True, True),
        ("implementation_name != 'PyPy'", True, True, True),
        ("platform_machine in 'aarch64 arm64'", False, False, True),
        ("platform_machine not in 'aarch64 arm64'", True, True, False),
        ("(platform_machine == 'aarch64' or platform_machine == 'arm64') and sys_platform == 'linux'", False, False, True),
        ("(platform_machine != 'aarch64' and platform_machine != 'arm64') or sys_platform != 'linux'", True, True, False),
        ("platform_machine == 'arm64' and sys_platform == 'darwin' or platform_machine == 'x86_64'", True, True, False),
    ],
)
def test_a_marker_is_evaluated_as_pip_does(marker, debian_13, debian_12, grace):
    packaging = pytest.importorskip("packaging.markers")
    for environment, wanted in ((DEBIAN_13, debian_13), (DEBIAN_12, debian_12), (GRACE, grace)):
        assert _lockfile.applies(marker, environment) is wanted
        assert not marker or packaging.Marker(marker).evaluate(environment) is wanted


@pytest.mark.parametrize(
    "marker",
    ["sys_platform", "sys_platform ==", "moon == 'full'", "sys_platform < 'x'", "(os_name == 'posix'", "'a' == 'b'", "os_name ? 'x'"],
)
def test_a_marker_that_cannot_be_read_is_an_error(marker):
    with pytest.raises(_lockfile.LockError):
        _lockfile.applies(marker, DEBIAN_13)


def test_parse_reads_requirements_with_hashes():
    text = f"# made by a tool\nA.b_C==1.0 \\\n{HASH} \\\n{HASH}\nb[x]==2.0+cpu ; os_name == 'posix' \\\n{HASH}\n"
    assert _lockfile.parse(text) == [("a-b-c", "1.0", ""), ("b", "2.0+cpu", "os_name == 'posix'")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a==1.0\n", "no hash in the lock for a"),
        (f"a>=1.0 \\\n{HASH}\n", "line 1 of the lock does not pin one version"),
        (f"a @ https://example.org/a.whl \\\n{HASH}\n", "does not pin one version"),
        (f"{HASH}\n", "neither a requirement nor a sha256 hash"),
        ("a==1.0 \\\n    --find-links x\n", "neither a requirement nor a sha256 hash"),
    ],
)
def test_parse_refuses_what_is_no_lock(text, message):
    with pytest.raises(_lockfile.LockError, match=message):
        _lockfile.parse(text)


def test_expected_takes_what_applies():
    requirements = [
        _lockfile.Requirement("numpy", "2.3.5", "python_full_version < '3.13'"),
        _lockfile.Requirement("numpy", "2.4.6", "python_full_version >= '3.13'"),
        _lockfile.Requirement("torch", "2.13.0", ""),
    ]
    assert _lockfile.expected(requirements, DEBIAN_13) == {"numpy": "2.4.6", "torch": "2.13.0"}
    assert _lockfile.expected(requirements, DEBIAN_12) == {"numpy": "2.3.5", "torch": "2.13.0"}


def test_expected_refuses_two_versions():
    requirements = [_lockfile.Requirement("a", "1", ""), _lockfile.Requirement("a", "2", "os_name == 'posix'")]
    with pytest.raises(_lockfile.LockError, match="two versions: 1 and 2"):
        _lockfile.expected(requirements, DEBIAN_13)


def test_differences_names_each_package():
    assert _lockfile.differences({"a-b": "1", "c": "2", "d": "3"}, {"A_B": "1", "c": "2.1", "e": "4"}) == [
        "c 2.1 is installed, the lock wants 2",
        "d 3 is not installed",
        "e 4 is installed and is not in the lock",
    ]


@pytest.mark.parametrize("lock", sorted(LOCKS.glob("*.txt")), ids=lambda path: path.stem)
@pytest.mark.parametrize("environment", [DEBIAN_12, DEBIAN_13, GRACE], ids=["debian-12", "debian-13", "grace"])
def test_the_locks_of_the_repository(lock, environment):
    text = lock.read_text(encoding="utf-8")
    assert "://" not in text
    wanted = _lockfile.expected(_lockfile.parse(text), environment)
    for source in (lock.with_suffix(".in"), lock.with_name(f"{lock.stem}.no-deps.in")):
        lines = source.read_text(encoding="utf-8").splitlines() if source.exists() else []
        for line in (line.strip() for line in lines if line.strip() and not line.startswith("#")):
            name, _equals, version = line.partition("==")
            assert wanted[_lockfile.normalize(re.split(r"[>\[]", name)[0])].startswith(version)
    if "-" in lock.stem:
        release, _dash, variant = lock.stem.partition("-")
        assert wanted["sglang"] == release
        assert ("flashinfer-python" in wanted) is (variant == "cuda")
        assert wanted["torch"] == {"cuda": "2.14.1", "cpu": "2.13.0"}[variant]
