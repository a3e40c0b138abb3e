# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pathlib

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_packages as pkg
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_sources as src

DEBIAN_12 = src.Platform("debian", "12", "x86_64")
DEBIAN_13 = src.Platform("debian", "13", "x86_64")
UBUNTU = src.Platform("ubuntu", "24.04", "x86_64")
RHEL = src.Platform("rhel", "9", "x86_64")
SAMPLES = pathlib.Path(__file__).parents[3] / "fixtures/driver"
BASE = "https://developer.download.nvidia.com/compute/cuda/repos"


# Case C31: the point release is no part of the directory, and aarch64 is called sbsa.
@pytest.mark.parametrize(
    ("distribution", "version", "machine", "directory"),
    [
        ("Debian", "12.5", "x86_64", "debian12/x86_64"),
        ("debian", "12", "amd64", "debian12/x86_64"),
        ("Debian", "13.1", "x86_64", "debian13/x86_64"),
        ("Debian", "13", "aarch64", "debian13/sbsa"),
        ("Ubuntu", "22.04", "x86_64", "ubuntu2204/x86_64"),
        ("Ubuntu", "24.04", "aarch64", "ubuntu2404/sbsa"),
        ("RedHat", "9.4", "x86_64", "rhel9/x86_64"),
        ("Rocky", "9.6", "aarch64", "rhel9/sbsa"),
        ("AlmaLinux", "9.5", "x86_64", "rhel9/x86_64"),
        ("rocky", "9", "x86_64", "rhel9/x86_64"),
    ],
)
def test_directory_of_nvidias_repository(distribution, version, machine, directory):
    repository = src.nvidia_repository(src.platform(distribution, version, machine))
    assert src.repository_url(repository) == f"{BASE}/{directory}"
    assert src.repository_url(repository, "http://mirror.example.org/cuda/") == f"http://mirror.example.org/cuda/{directory}"


@pytest.mark.parametrize(
    ("distribution", "version", "machine"),
    [
        ("Debian", "11.9", "x86_64"),
        ("Debian", "testing", "x86_64"),
        ("Debian", "14", "x86_64"),
        ("Ubuntu", "24.10", "x86_64"),
        ("Ubuntu", "26.04", "x86_64"),
        ("Rocky", "8.9", "x86_64"),
        ("Rocky", "10.0", "x86_64"),
        ("Fedora", "42", "x86_64"),
        ("Debian", "12", "ppc64le"),
        ("Debian", "", "x86_64"),
    ],
)
def test_a_platform_that_is_not_in_the_tables_is_unknown(distribution, version, machine):
    assert src.platform(distribution, version, machine) is None


def test_a_repository_that_nobody_has_seen_does_not_exist():
    assert src.nvidia_repository(src.Platform("debian", "12", "aarch64")) is None
    assert src.known_branches(src.Platform("debian", "12", "aarch64"), "nvidia") == ()
    assert src.names(src.Platform("debian", "12", "aarch64"), "nvidia", "open", 580) is None


# Case C08.
@pytest.mark.parametrize(
    ("where", "file", "fingerprint"),
    [
        (DEBIAN_12, "3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC"),
        (DEBIAN_13, "8793F200.pub", "02182E60104FCDC26EAE1B8597A5D4CB8793F200"),
        (UBUNTU, "3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC"),
        (RHEL, "D42D0685.pub", "610C7B14E068A878070DA4E99CD0A493D42D0685"),
    ],
)
def test_the_key_of_a_platforms_own_repository_is_one_that_its_apt_takes(where, file, fingerprint):
    key = src.nvidia_repository(where).key
    assert (key.file, key.fingerprint) == (file, fingerprint)
    assert fingerprint.lower().endswith(file.partition(".")[0].lower())


@pytest.mark.parametrize(
    ("release", "needs"),
    [
        ("0.5.23", ("13.0", "580.65.06")),
        ("0.5.12", ("13.0", "580.65.06")),
        ("0.5.15.post1", ("13.0", "580.65.06")),
        ("0.6", ("13.0", "580.65.06")),
        ("0.5.11", ("13.0", "580.65.06")),
        ("0.5.10", ("12.8", "525.60.13")),
        ("0.5.9", ("12.8", "525.60.13")),
        ("0.5.123", ("13.0", "580.65.06")),
        ("0.5.8", None),
        ("latest", None),
        ("", None),
    ],
)
def test_what_a_release_of_sglang_asks_of_the_driver(release, needs):
    assert src.engine_needs(release) == needs


def test_branches_and_cuda():
    assert [src.BRANCH_CUDA[branch] for branch in (535, 550, 580, 595, 610)] == ["12.2", "12.4", "13.0", "13.2", "13.3"]
    versions = [tuple(int(part) for part in src.BRANCH_CUDA[branch].split(".")) for branch in sorted(src.BRANCH_CUDA)]
    assert versions == sorted(versions)
    assert src.CUDA_MINIMUM_DRIVER[13] == "580.65.06"


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("580.95.05", (580, 95, 5)),
        ("580.126.20", (580, 126, 20)),
        ("570.26", (570, 26)),
        ("580", None),
        ("580.95.05-1", None),
        ("N/A", None),
        ("", None),
        ("12.4.131", None),
    ],
)
def test_versions_of_the_driver(text, parsed):
    assert src.parse_version(text) == parsed
    assert src.branch_of(text) == (parsed[0] if parsed else None)


def test_versions_are_ordered_as_numbers():
    assert src.newest(["580.65.06", "580.126.09", "590.48.01", "580.95.05", "N/A", "580.95.05"]) == [
        "590.48.01",
        "580.126.09",
        "580.95.05",
        "580.65.06",
    ]


# The names, against what Debian's archive really has (captured).
@pytest.mark.parametrize(("where", "fixture"), [(DEBIAN_12, "policy_debian12.txt"), (DEBIAN_13, "policy_debian13.txt")])
def test_every_name_of_debians_own_packages_exists(where, fixture):
    offered = pkg.offers(pkg.policies((SAMPLES / fixture).read_text()))["distribution"]
    for branch in src.known_branches(where, "distribution"):
        for flavour in src.FLAVOURS:
            names = src.names(where, "distribution", flavour, branch)
            if names is None:
                assert flavour == "open", f"{branch}: only the newest branch has the open module"
                continue
            for name in (*names.module, *names.userland, *names.persistence):
                assert name in offered, f"{name} is not in Debian {where.release}"
            assert {src.branch_of(pkg.upstream(full)) for full in offered[names.module[0]]} == {branch}
            assert names.fabric_manager == ()
            assert names.signed == ()


@pytest.mark.parametrize(
    ("where", "source", "flavour", "branch", "module", "userland", "manager"),
    [
        (DEBIAN_12, "distribution", "open", 535, "nvidia-open-kernel-dkms", "libcuda1", None),
        (DEBIAN_12, "distribution", "proprietary", 535, "nvidia-kernel-dkms", "libcuda1", None),
        (DEBIAN_12, "distribution", "proprietary", 470, "nvidia-tesla-470-kernel-dkms", "libnvidia-tesla-470-cuda1", None),
        (DEBIAN_13, "distribution", "proprietary", 535, "nvidia-tesla-535-kernel-dkms", "libnvidia-tesla-535-cuda1", None),
        (DEBIAN_12, "nvidia", "open", 580, "nvidia-kernel-open-dkms", "nvidia-driver-cuda", "nvidia-fabricmanager"),
        (DEBIAN_13, "nvidia", "proprietary", 590, "nvidia-kernel-dkms", "nvidia-driver-cuda", "nvidia-fabricmanager"),
        (DEBIAN_12, "nvidia", "open", 550, "nvidia-kernel-open-dkms", "libcuda1", "nvidia-fabricmanager-550"),
        (UBUNTU, "distribution", "open", 580, "nvidia-dkms-580-server-open", "libnvidia-compute-580-server", "nvidia-fabricmanager-580"),
        (UBUNTU, "distribution", "proprietary", 535, "nvidia-dkms-535-server", "libnvidia-compute-535-server", "nvidia-fabricmanager-535"),
        (UBUNTU, "nvidia", "open", 580, "nvidia-dkms-580-open", "libnvidia-compute-580", "nvidia-fabricmanager"),
        (UBUNTU, "nvidia", "proprietary", 575, "nvidia-dkms-575", "libnvidia-compute-575", "nvidia-fabricmanager-575"),
        (UBUNTU, "nvidia", "open", 590, "nvidia-dkms-open", "libnvidia-compute", "nvidia-fabricmanager"),
        (UBUNTU, "nvidia", "proprietary", 595, "nvidia-dkms", "libnvidia-compute", "nvidia-fabricmanager"),
        (RHEL, "nvidia", "open", 580, "kmod-nvidia-open-dkms", "nvidia-driver-cuda", "nvidia-fabric-manager"),
        (RHEL, "nvidia", "proprietary", 580, "kmod-nvidia-latest-dkms", "nvidia-driver-cuda", "nvidia-fabric-manager"),
    ],
)
def test_names_of_packages(where, source, flavour, branch, module, userland, manager):
    names = src.names(where, source, flavour, branch)
    assert names.module == (module,)
    assert userland in names.userland
    assert names.fabric_manager == ((manager,) if manager else ())
    assert not any(word in name for name in (*names.module, *names.userland) for word in ("xserver", "-gl", "driver-bin"))


@pytest.mark.parametrize(
    ("where", "source", "flavour", "branch"),
    [
        (DEBIAN_12, "distribution", "proprietary", 580),
        (DEBIAN_12, "distribution", "proprietary", 525),
        (DEBIAN_13, "distribution", "open", 535),
        (RHEL, "distribution", "open", 580),
        (DEBIAN_12, "runfile", "open", 580),
    ],
)
def test_a_source_that_has_no_such_driver(where, source, flavour, branch):
    assert src.names(where, source, flavour, branch) is None


def test_streams_and_userland_of_rhel():
    assert src.names(RHEL, "nvidia", "open", 580).stream == "580-open"
    assert src.names(RHEL, "nvidia", "proprietary", 580).stream == "580-dkms"
    assert not src.names(RHEL, "nvidia", "open", 580).userland_alone
    assert src.names(DEBIAN_12, "nvidia", "open", 580).stream == ""


def test_signed_modules_follow_the_kernels_kind():
    names = src.names(UBUNTU, "distribution", "open", 580, "6.8.0-1020-aws")
    assert names.signed == ("linux-modules-nvidia-580-server-open-6.8.0-1020-aws", "linux-modules-nvidia-580-server-open-aws")
    assert src.names(UBUNTU, "distribution", "proprietary", 580, "6.8.0-51-generic").signed[1] == "linux-modules-nvidia-580-server-generic"
    assert src.names(UBUNTU, "nvidia", "open", 580, "6.8.0-51-generic").signed == ()


def test_known_branches():
    assert src.known_branches(DEBIAN_12, "distribution") == (535, 470)
    assert src.known_branches(DEBIAN_13, "distribution") == (550, 535)
    assert src.known_branches(RHEL, "distribution") == ()
    assert min(src.known_branches(DEBIAN_13, "nvidia")) == 590, "debian13 has no older branch"
    assert 580 in src.known_branches(DEBIAN_12, "nvidia")
    assert 580 in src.known_branches(UBUNTU, "distribution")
    assert src.known_branches(DEBIAN_12, "runfile") == ()


def test_components():
    assert src.components(DEBIAN_12, "distribution") == ("contrib", "non-free", "non-free-firmware")
    assert src.components(DEBIAN_13, "nvidia") == ("contrib",)
    assert src.components(UBUNTU, "distribution") == ("restricted",)
    assert src.components(RHEL, "nvidia") == ()


@pytest.mark.parametrize(
    ("where", "kernel", "installed", "running", "following"),
    [
        (DEBIAN_12, "6.1.0-39-amd64", [], "linux-headers-6.1.0-39-amd64", "linux-headers-amd64"),
        (DEBIAN_12, "6.1.0-39-cloud-amd64", [], "linux-headers-6.1.0-39-cloud-amd64", "linux-headers-cloud-amd64"),
        (DEBIAN_13, "6.12.118+deb13-amd64", ["linux-image-amd64"], "linux-headers-6.12.118+deb13-amd64", "linux-headers-amd64"),
        (DEBIAN_12, "6.8.12-9-pve", [], "proxmox-headers-6.8.12-9-pve", "proxmox-default-headers"),
        (UBUNTU, "6.8.0-51-generic", ["linux-image-generic"], "linux-headers-6.8.0-51-generic", "linux-headers-generic"),
        (
            UBUNTU,
            "6.11.0-19-generic",
            ["linux-image-generic", "linux-image-generic-hwe-24.04", "linux-image-6.11.0-19-generic"],
            "linux-headers-6.11.0-19-generic",
            "linux-headers-generic-hwe-24.04",
        ),
        (UBUNTU, "6.8.0-1020-aws", [], "linux-headers-6.8.0-1020-aws", "linux-headers-aws"),
        (RHEL, "5.14.0-427.13.1.el9_4.x86_64", [], "kernel-devel-5.14.0-427.13.1.el9_4.x86_64", "kernel-devel-matched"),
    ],
)
def test_headers(where, kernel, installed, running, following):
    headers = src.headers(where, kernel, installed)
    assert headers.running[0] == running
    assert headers.following[0] == following


def test_proxmox_of_before_knows_another_name():
    assert "pve-headers-6.2.16-3-pve" in src.headers(DEBIAN_12, "6.2.16-3-pve").running


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("/root/NVIDIA-Linux-x86_64-580.105.08.run", "580.105.08"),
        ("https://mirror.example.org/NVIDIA-Linux-aarch64-580.95.05.run", "580.95.05"),
        ("NVIDIA-Linux-x86_64-550.163.01-no-compat32.run", "550.163.01"),
        ("https://mirror.example.org/NVIDIA-Linux-x86_64-580.105.08.run?token=1", "580.105.08"),
        ("cuda_13.0.2_580.95.05_linux.run", None),
        ("driver.run", None),
        ("", None),
    ],
)
def test_version_of_a_run_file(name, version):
    assert src.runfile_version(name) == version


def test_arguments_of_the_installer():
    kernel = src.runfile_arguments("kernel", "open", "580.105.08")
    assert "--dkms" in kernel
    assert "--kernel-module-type=open" in kernel
    assert "--kernel-module-build-directory=kernel-open" in src.runfile_arguments("kernel", "open", "550.163.01")
    assert not any("kernel-module" in argument for argument in src.runfile_arguments("kernel", "proprietary", "550.163.01"))
    for version, argument in (("580.105.08", "--no-kernel-modules"), ("550.163.01", "--no-kernel-module")):
        userland = src.runfile_arguments("userland", None, version)
        assert argument in userland
        assert "--dkms" not in userland, "never in a container"
