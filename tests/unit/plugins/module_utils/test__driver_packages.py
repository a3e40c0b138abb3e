# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import fnmatch
import pathlib
import re

import hypothesis
import hypothesis.strategies as st
import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_packages as pkg

SAMPLES = pathlib.Path(__file__).parents[3] / "fixtures/driver"
GPU_SAMPLES = pathlib.Path(__file__).parents[3] / "fixtures/gpu"


def sample(name):
    return (SAMPLES / name).read_text(encoding="utf-8", errors="replace")


def listing(*lines):
    """dpkg-query's answer: name, version, status and source package."""
    return pkg.packages("".join(f"{name}\t{version}\t{status}\t{source}\n" for name, version, status, source in lines))


# Versions and the set


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("535.309.01-0+deb12u1", "535.309.01"),
        ("535.216.03-2~bpo12+1", "535.216.03"),
        ("580.126.20-1ubuntu1", "580.126.20"),
        ("3:580.95.05-1.el9", "580.95.05"),
        ("590.48.01-0ubuntu1", "590.48.01"),
        ("550.163.01", "550.163.01"),
        ("20240109+1", None),
        ("6.8.0-51.52+1", None),
        ("12.4.131~12.4.1-2", None),
        ("610-2ubuntu1", None),
        ("1.18.2-1", None),
        ("", None),
    ],
)
def test_the_drivers_version_in_a_packages_version(version, expected):
    assert pkg.upstream(version) == expected


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("libcuda1", "nvidia-graphics-drivers", True),
        ("libnvidia-ml1", "", True),
        ("nvidia-kernel-open-dkms", "", True),
        ("nvidia-fabricmanager-570", "", True),
        ("nvidia-firmware-580-server-580.95.05", "", True),
        ("firmware-nvidia-gsp", "", True),
        ("cuda-drivers-580", "", True),
        ("libnvidia-compute-580-server", "", True),
        ("xserver-xorg-video-nvidia-580", "", True),
        ("nvidia-persistenced", "nvidia-graphics-drivers-580", True),
        # Debian builds these from sources with versions of their own.
        ("nvidia-persistenced", "nvidia-persistenced", False),
        ("nvidia-modprobe", "nvidia-modprobe", False),
        ("nvidia-modprobe", "", False),
        ("nvidia-support", "nvidia-support", False),
        ("nvidia-container-toolkit", "", False),
        ("libnvidia-container1", "", False),
        ("nvidia-cuda-toolkit", "", False),
        ("libnvidia-egl-wayland1", "", False),
        ("nvidia-driver-pinning-580", "", False),
        # Its version is the kernel's.
        ("linux-modules-nvidia-580-server-open-6.8.0-51-generic", "", False),
        ("libcudart12", "", False),
        ("cuda-toolkit-13-0", "", False),
        ("linux-image-amd64", "", False),
    ],
)
def test_which_packages_must_have_the_drivers_version(name, source, expected):
    assert pkg.in_set(name, source) is expected


def test_debians_own_packages_are_one_version_beside_a_newer_nvidia_modprobe():
    versions = pkg.set_versions(pkg.packages(sample("dpkg_debian13_kernel.txt")))
    assert list(versions) == ["550.163.01"]
    assert "nvidia-kernel-dkms" in versions["550.163.01"]
    assert "nvidia-modprobe" not in versions["550.163.01"], "it is 570.133.07 there"


# Case C01: a night's upgrade moves one package.
def test_two_versions_in_one_family_are_found():
    log = sample("apt_history_unattended_partial.log")
    name, old, new = re.search(r"Upgrade: (\S+):amd64 \((\S+), (\S+)\)", log).groups()
    found = listing(
        (name, new, "ii ", "nvidia-graphics-drivers-460"), ("libnvidia-compute-460:amd64", old, "ii ", "nvidia-graphics-drivers-460")
    )
    assert pkg.set_versions(found) == {"460.73.01": ["libnvidia-common-460"], "460.56": ["libnvidia-compute-460"]}


FOREIGN = "libcuda1:i386\t550.163.01-2\tii \tx\nlibnvidia-ml1:amd64\t550.163.01-2\tii \tx\n"


@pytest.mark.parametrize(
    "machine,names",
    [
        ("x86_64", ["libcuda1:i386", "libnvidia-ml1"]),
        ("aarch64", ["libcuda1:i386", "libnvidia-ml1:amd64"]),
        ("", ["libcuda1", "libnvidia-ml1"]),
    ],
)
def test_a_package_of_another_architecture_is_another_package_of_the_same_set(machine, names):
    found = pkg.packages(FOREIGN, machine)
    assert [package.name for package in found] == names
    assert pkg.set_versions(found) == {"550.163.01": names}
    assert all(pkg.of_driver(name) for name in names)


def test_a_fabric_manager_of_another_version_is_found():
    versions = pkg.set_versions(pkg.packages(sample("dpkg_mixed_versions.txt")))
    assert versions["590.48.01"] == ["nvidia-fabricmanager"]
    assert "libcuda1" in versions["580.95.05"]


def test_packages_that_left_their_configuration_are_not_installed():
    found = listing(
        ("nvidia-kernel-dkms", "535.1.1-1", "rc ", "x"), ("libcuda1", "550.163.01-2", "ii ", "x"), ("libnvidia-ml1", "", "un ", "")
    )
    assert pkg.set_versions(found) == {"550.163.01": ["libcuda1"]}
    assert [package.name for package in found if package.installed] == ["libcuda1"]


# Case C13.
@pytest.mark.parametrize(
    ("status", "state", "cure"),
    [
        ("iF ", "half-configured", "dpkg --configure -a"),
        ("iU ", "not configured", "dpkg --configure -a"),
        ("it ", "trigger", "dpkg --configure -a"),
        ("iW ", "trigger", "dpkg --configure -a"),
        ("iH ", "half-installed", "apt-get install --reinstall nvidia-dkms-580-open"),
        ("iHR", "reinstalled", "apt-get install --reinstall nvidia-dkms-580-open"),
        ("rHR", "reinstalled", "apt-get install --reinstall nvidia-dkms-580-open"),
    ],
)
def test_packages_that_stop_apt(status, state, cure):
    (found,) = pkg.broken(listing(("nvidia-dkms-580-open", "580.119.02-1", status, "x")))
    assert state in found.state
    assert found.cure == cure


def test_healthy_packages_are_not_broken():
    assert pkg.broken(listing(("a", "1", "ii ", "x"), ("b", "1", "hi ", "x"), ("c", "1", "rc ", "x"), ("d", "", "un ", ""))) == []
    assert pkg.broken(pkg.packages(sample("dpkg_debian13.txt"))) == []
    assert [one.name for one in pkg.broken(pkg.packages(sample("dpkg_half.txt")))] == ["nvidia-broken-dkms"]


def test_held_packages_of_the_set():
    found = listing(("libcuda1", "550.163.01-2", "hi ", "x"), ("bash", "5", "hi ", "x"), ("libnvidia-ml1", "550.163.01-2", "ii ", "x"))
    assert pkg.held(found) == ["libcuda1"]


# What apt offers


def test_policy_with_several_origins():
    found = pkg.policies(sample("policy_debian12.txt"))
    assert found["libcuda1"].candidate == "535.309.01-0+deb12u1"
    assert [(one.version, one.priority) for one in found["libcuda1"].versions] == [
        ("535.309.01-0+deb12u1", 500),
        ("535.261.03-1", 500),
        ("535.216.03-2~bpo12+1", 100),
    ]
    assert found["libcuda1"].versions[0].origins == ("http://deb.debian.org/debian-security bookworm-security/non-free amd64 Packages",)
    assert [one.version for one in found["nvidia-open-kernel-dkms"].versions] == ["535.261.03-1"]
    assert "linux-headers-6.1.0-39-amd64" not in found, "no repository has it any more"


def test_policy_of_an_installed_package():
    found = pkg.policies(sample("policy_debian13_installed.txt"))["libcuda1"]
    assert found.installed == "550.163.01-2"
    assert found.versions[0].origins == ("http://deb.debian.org/debian trixie/non-free amd64 Packages", "/var/lib/dpkg/status")


def test_policy_of_another_architecture_and_a_phased_update():
    text = (
        "libcuda1:i386:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n"
        "nvidia-utils-580-server:\n  Installed: (none)\n  Candidate: 580.95.05-0ubuntu0.24.04.2\n  Version table:\n"
        "     580.95.05-0ubuntu0.24.04.2 500 (phased 20%)\n"
        "        500 http://archive.ubuntu.com/ubuntu noble-updates/restricted amd64 Packages\n"
    )
    found = pkg.policies(text)
    assert list(found) == ["nvidia-utils-580-server"]
    assert found["nvidia-utils-580-server"].versions[0].version == "580.95.05-0ubuntu0.24.04.2"


def test_offers_by_source_the_preferred_version_first():
    found = pkg.offers(pkg.policies(sample("policy_debian13_nvidia.txt")))
    assert found["nvidia"]["libcuda1"] == ["590.48.01-1", "580.126.09-1", "580.95.05-1"]
    assert found["distribution"]["libcuda1"] == ["550.163.01-2"]
    assert "nvidia-driver-cuda" not in found["distribution"]
    pinned = "a:\n  Installed: (none)\n  Candidate: 1\n  Version table:\n     2 100\n        100 http://x/debian s/main amd64 Packages\n"
    pinned += "     1 999\n"
    pinned += "        500 http://x/debian s/main amd64 Packages\n     0 -1\n        500 http://x/debian s/main amd64 Packages\n"
    assert pkg.offers(pkg.policies(pinned)) == {"distribution": {"a": ["1", "2"]}}


@pytest.mark.parametrize(
    ("origin", "mirrors", "expected"),
    [
        ("https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64  Packages", [], "nvidia"),
        ("file:/var/nvidia-driver-local-repo-ubuntu2404-580.65.06  Packages", [], "nvidia"),
        ("http://deb.debian.org/debian bookworm/non-free amd64 Packages", [], "distribution"),
        ("http://mirror.example.org/gpu/debian13/x86_64  Packages", ["http://mirror.example.org/gpu/debian13/x86_64/"], "nvidia"),
        (
            "http://mirror.example.org/debian bookworm/main amd64 Packages",
            ["http://mirror.example.org/gpu/debian13/x86_64"],
            "distribution",
        ),
        ("/var/lib/dpkg/status", [], None),
    ],
)
def test_where_an_origin_belongs(origin, mirrors, expected):
    assert pkg.source_of(origin, mirrors) == expected


def test_the_index_of_a_repository_says_what_apt_says_after_it_was_added():
    index = pkg.index(sample("Packages_nvidia.txt"))
    assert index == {name: index[name] for name in index}
    offered = pkg.offers(pkg.policies(sample("policy_debian13_nvidia.txt")))["nvidia"]
    for name in ("libcuda1", "nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-fabricmanager", "nvidia-open"):
        assert index[name] == offered[name]


# Sources

DEBIAN = """# comment
Types: deb deb-src
URIs: http://deb.debian.org/debian
Suites: trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: trixie-security
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb-src
URIs: http://deb.debian.org/debian
Suites: trixie
Components: main

Enabled: no
Types: deb
URIs: http://deb.debian.org/debian
Suites: trixie-backports
Components: main
"""
ONE_LINE = """deb http://deb.debian.org/debian bookworm main contrib # comment
#deb http://deb.debian.org/debian bookworm non-free
deb-src http://deb.debian.org/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/cuda.gpg] https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/ /
deb [signed-by=/usr/share/keyrings/tailscale-archive-keyring.gpg] https://pkgs.example.org/stable/debian bookworm main
deb [trusted=yes] http://mirror.example.org/cuda /
"""


def test_both_styles_of_sources():
    deb822 = pkg.apt_sources({"/etc/apt/sources.list.d/debian.sources": DEBIAN})
    assert [(entry.suites, entry.components) for entry in deb822] == [
        (("trixie", "trixie-updates"), ("main",)),
        (("trixie-security",), ("main", "contrib")),
    ]
    one_line = pkg.apt_sources({"/etc/apt/sources.list": ONE_LINE})
    assert [entry.uris[0] for entry in one_line] == [
        "http://deb.debian.org/debian",
        "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/",
        "https://pkgs.example.org/stable/debian",
        "http://mirror.example.org/cuda",
    ]
    assert one_line[1].signed_by == "/usr/share/keyrings/cuda.gpg"
    assert one_line[1].suites == ("/",)
    assert [entry.trusted for entry in one_line] == [False, False, False, True]


def test_a_key_within_the_file_is_told_and_not_repeated():
    key = " -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n xsB\n -----END PGP PUBLIC KEY BLOCK-----\n"
    text = f"Types: deb\nURIs: http://x/\nSuites: /\nSigned-By:\n{key}"
    (entry,) = pkg.apt_sources({"a.sources": text})
    assert entry.signed_by == "(embedded)"


# Case C07: NVIDIA's keyring package has added the repository.
def test_who_has_the_repository_already():
    sources = pkg.apt_sources({"/etc/apt/sources.list.d/cuda-debian12-x86_64.list": ONE_LINE})
    (entry,) = pkg.entries_for(sources, "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64")
    assert entry.path == "/etc/apt/sources.list.d/cuda-debian12-x86_64.list"
    assert pkg.entries_for(sources, "https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64") == []


# Case C31.
def test_missing_components_of_both_styles_and_never_of_third_parties():
    wanted = ("contrib", "non-free", "non-free-firmware")
    lack = pkg.missing_components(pkg.apt_sources({"d.sources": DEBIAN}), wanted, "debian")
    assert [(entry.suites, entry.components) for entry in lack] == [
        (("trixie", "trixie-updates"), wanted),
        (("trixie-security",), ("non-free", "non-free-firmware")),
    ]
    (entry,) = pkg.missing_components(pkg.apt_sources({"s.list": ONE_LINE}), wanted, "debian")
    assert entry.uris == ("http://deb.debian.org/debian",)
    assert entry.components == ("non-free", "non-free-firmware")


def test_an_entry_whose_server_is_gone_is_the_distributions_as_long_as_it_is_switched_on():
    """Its key and its suite are all that can be told of it; reading what is added for it says the rest."""
    dead = DEBIAN.replace("http://deb.debian.org/debian\nSuites: trixie trixie", "http://gone.example.org/x\nSuites: trixie trixie")
    lack = pkg.missing_components(pkg.apt_sources({"d.sources": DEBIAN, "gone.sources": dead}), ("non-free",), "debian")
    assert [entry.uris for entry in lack if "trixie" in entry.suites] == [("http://deb.debian.org/debian",), ("http://gone.example.org/x",)]
    off = dead.replace("Types: deb deb-src", "Enabled: no\nTypes: deb")
    lack = pkg.missing_components(pkg.apt_sources({"d.sources": DEBIAN, "gone.sources": off}), ("non-free",), "debian")
    assert [entry.uris for entry in lack if "trixie" in entry.suites] == [("http://deb.debian.org/debian",)]


def test_components_that_are_added_are_not_missing_the_second_time():
    wanted = ("contrib", "non-free", "non-free-firmware")
    texts = {"d.sources": DEBIAN}
    lack = pkg.missing_components(pkg.apt_sources(texts), wanted, "debian")
    texts["added.sources"] = pkg.deb822(lack, "Written by a test")
    assert pkg.missing_components(pkg.apt_sources(texts), wanted, "debian") == []
    assert "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg" in texts["added.sources"]
    assert pkg.missing_components([], wanted, "debian") == []


# A transaction


def test_a_simulation_in_a_container_brings_no_module():
    change = pkg.simulation(sample("sim_debian13_userland.txt"))
    assert change.error == ""
    assert change.new["libcuda1"] == "550.163.01-2"
    assert change.kernels == ()
    assert not [name for name in change.new if "dkms" in name or name.startswith("linux-")]
    assert change.upgraded == change.downgraded == change.removed == {}


def test_a_simulation_that_swaps_the_flavour_downgrades_or_changes_a_hold():
    swap = pkg.simulation(sample("sim_flavour_swap.txt"))
    assert swap.removed == {"nvidia-kernel-dkms": "580.95.05-1"}
    assert swap.new == {"nvidia-kernel-open-dkms": "580.95.05-1"}
    down = pkg.simulation(sample("sim_downgrade.txt"))
    assert down.downgraded == {"nvidia-fabricmanager": ("590.48.01-1", "580.95.05-1")}
    assert down.upgraded == {}
    hold = pkg.simulation(sample("sim_held_upgrade.txt"))
    assert hold.held_changed == ("libnvidia-ml1",)
    assert hold.upgraded["libcuda1"] == ("580.95.05-1", "590.48.01-1")


# Pitfall 6.
def test_a_simulation_that_pulls_a_kernel():
    change = pkg.simulation(sample("sim_kernel_image.txt"))
    assert change.kernels == ("linux-image-6.12.118+deb13-amd64", "linux-image-amd64")


# Pitfall 7: the metapackage is of the version asked for, all else is the newest.
def test_the_set_after_a_transaction_that_pins_the_metapackage_only():
    change = pkg.simulation(sample("sim_floats.txt"))
    versions = pkg.set_versions(pkg.after([], change))
    assert versions["580.95.05"] == ["nvidia-open"]
    assert "libcuda1" in versions["590.48.01"]


def test_the_set_after_a_change_of_branch_has_one_version():
    change = pkg.simulation(sample("sim_branch_change.txt"))
    before = pkg.packages(sample("dpkg_debian13_kernel.txt"))
    assert list(pkg.set_versions(before)) == ["550.163.01"]
    assert list(pkg.set_versions(pkg.after(before, change))) == ["535.274.02"]


def test_the_set_after_a_transaction_with_a_hold():
    before = pkg.packages(sample("dpkg_mixed_versions.txt"))
    after = pkg.set_versions(pkg.after(before, pkg.simulation(sample("sim_held_upgrade.txt"))))
    assert list(after) == ["590.48.01"]


# Errors


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("apt_sqv_sha1_error.txt", "key_sha1", ["EB693B3035CD5710E231E123A4B469963BF863CC", "SHA-1"]),
        ("apt3_sha1.txt", "key_sha1", ["755E169C4664DA4419D262AB502821EDBB470A20"]),
        ("apt3_wrong_key.txt", "key_wrong", ["C2838A9B5A4E782CCE4B38C323480ADCB7FEB8F2"]),
        ("apt2_wrong_key.txt", "key_wrong", ["23480ADCB7FEB8F2"]),
        ("apt2_expired_key.txt", "key_expired", ["AD7B59C01FF6EECA"]),
        ("apt3_expired_key.txt", "key_expired", ["78F613D5B7FFA2CCFAFE033BC6AA73635DC8F0A5"]),
        ("apt3_no_keyring.txt", "key_unreadable", ["/usr/share/keyrings/nokey.gpg"]),
        ("apt3_stale_release.txt", "release_expired", ["debian13/x86_64/InRelease"]),
        ("apt2_404.txt", "repository_missing", ["debian125/x86_64"]),
        ("apt3_404.txt", "repository_missing", ["debian125/x86_64"]),
        ("apt2_wrong_suite.txt", "repository_missing", ["(suite trixie)"]),
        ("apt3_wrong_suite.txt", "repository_missing", ["(suite trixie)"]),
        ("apt2_conflicting_signed_by.txt", "sources_conflict", ["other.gpg", "good.gpg", "debian13/x86_64/"]),
        ("apt2_missing_component.txt", "package_missing", ["nvidia-kernel-dkms"]),
        ("apt2_missing_firmware_component.txt", "firmware_component", ["firmware-nvidia-gsp"]),
        ("apt3_no_version.txt", "version_missing", ["nvidia-fabricmanager 570.1"]),
        ("apt3_held_broken.txt", "held_broken", ["libcuda1 (= 580.95.05-1) but 590.48.01-1 is to be installed"]),
        ("apt3_held.txt", "held_broken", ["libnvidia-ml1 (= 590.48.01-1) but 580.95.05-1 is to be installed"]),
        ("apt3_held_changed.txt", "held", []),
        ("apt3_downgrade_refused.txt", "downgrade_refused", []),
        ("apt3_interrupted.txt", "dpkg_interrupted", []),
        ("apt3_lock.txt", "dpkg_lock", ["(python3)"]),
        ("apt3_lock_timeout.txt", "dpkg_lock", ["(python3)"]),
    ],
)
def test_what_apt_says_in_words(name, code, words):
    error = pkg.apt_error(sample(name))
    assert error.code == code
    for word in words:
        assert word in error.found
    assert error.action.endswith(".")
    assert "{" not in error.found
    assert "()" not in error.found


def test_a_failed_script_of_a_package_is_told():
    error = pkg.apt_error((GPU_SAMPLES / "apt_dkms_postinst_fail.txt").read_text())
    assert error.code == "script_failed"
    assert "nvidia-dkms-580-open" in error.found
    assert "dpkg --configure -a" in error.action


# Case C10: apt alone does not say where the two candidates come from.
def test_held_broken_packages_name_both_origins():
    text = (
        "nvidia-utils-580:\n  Installed: (none)\n  Candidate: 580.126.09-1\n  Version table:\n     580.126.09-1 600\n"
        "        600 https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64  Packages\n"
        "     580.95.05-0ubuntu0.24.04.1 500\n"
        "        500 http://archive.ubuntu.com/ubuntu noble-updates/restricted amd64 Packages\n"
    )
    error = pkg.apt_error("E: Unable to correct problems, you have held broken packages.\n", pkg.policies(text))
    assert "580.126.09-1 of priority 600 from https://developer.download.nvidia.com" in error.found
    assert "580.95.05-0ubuntu0.24.04.1 of priority 500 from http://archive.ubuntu.com" in error.found
    assert "one source" in error.action


def test_no_error_is_no_error():
    assert pkg.apt_error("Reading package lists...\nBuilding dependency tree...\n") is None
    assert pkg.apt_error("") is None
    assert pkg.apt_error(sample("sim_debian13_userland.txt")) is None


def test_a_key_that_will_be_refused_is_told_while_it_still_works():
    url = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64"
    text = f"W: {url}/InRelease: Policy will reject signature within a year, see --audit for details"
    warning = pkg.apt_warning(text)
    assert warning.code == "key_sha1_soon"
    assert warning.found.startswith(f"{url} is signed")
    assert pkg.apt_warning("") is None


def test_the_telling_lines_of_a_build():
    log = (
        "make[1]: Entering directory '/usr/src/linux-headers-6.17.9'\n  CC [M]  /var/lib/dkms/nvidia/580.119.02/build/nvidia/nv.o\n"
        "/var/lib/dkms/nvidia/580.119.02/build/nvidia/nv-mmap.c:400:5: error: implicit declaration of function '__vma_start_write'\n"
        "cc1: some warnings being treated as errors\nmake[3]: *** [scripts/Makefile.build:287: nv-mmap.o] Error 1\n"
    )
    lines = pkg.build_log_lines(log)
    assert lines[0].endswith("implicit declaration of function '__vma_start_write'")
    assert len(lines) == 2
    assert pkg.build_log_lines("all is well\n") == []


# Files

NAMES = [
    *("libcuda1", "libnvidia-ml1", "nvidia-smi", "nvidia-kernel-open-dkms", "nvidia-firmware-580-server-580.95.05"),
    *(
        "linux-modules-nvidia-580-server-open-generic",
        "nvidia-fabricmanager",
        "nvidia-persistenced",
        "firmware-nvidia-gsp",
        "cuda-drivers-580",
    ),
]


def test_the_pin_covers_the_whole_set_and_the_other_source_goes_first():
    text = pkg.preferences(["580.*"], ["release o=Debian"], "heading")
    first, second = re.findall(r"Package: (.*)\nPin: (.*)\nPin-Priority: (\d+)", text)
    assert first[1:] == ("release o=Debian", "100")
    assert second[1:] == ("version 580.*", "999")
    for name in NAMES:
        assert any(fnmatch.fnmatch(name, pattern) for pattern in second[0].split()), name
    assert not any(
        fnmatch.fnmatch(name, pattern) for pattern in second[0].split() for name in ("libcudart12", "linux-image-amd64", "cuda-toolkit")
    )
    assert text.startswith("# heading\n\n"), "a comment ends with an empty line, else apt takes the first entry for part of it"


def test_only_a_downgrade_that_is_allowed_goes_above_1000():
    assert "Pin-Priority: 1001" in pkg.preferences(["535.261.03-1"], [], "x", allow_downgrade=True)
    assert "Pin-Priority: 1001" not in pkg.preferences(["535.261.03-1"], [], "x")


# Case C01.
def test_unattended_upgrades_leave_the_set_alone_and_nothing_else():
    text = pkg.unattended_blacklist("heading")
    patterns = re.findall(r'^    "(.*)";$', text, re.MULTILINE)
    assert text.startswith("// heading\nUnattended-Upgrade::Package-Blacklist {\n")
    assert text.endswith("};\n")
    # As unattended-upgrades asks: re.match, from the beginning of the name.
    for name in NAMES:
        assert any(re.match(pattern, name) for pattern in patterns), name
    for name in ("nvidia-container-toolkit", "libnvidia-container1", "libcudart12", "openssl", "linux-image-amd64"):
        assert not any(re.match(pattern, name) for pattern in patterns), name


def test_signed_modules_wait_with_their_kernel():
    patterns = re.findall(r'^    "(.*)";$', pkg.unattended_blacklist("x", kernels=True), re.MULTILINE)
    for name in ("linux-image-6.8.0-52-generic", "linux-generic", "linux-headers-6.8.0-52", "linux-modules-6.8.0-52-generic"):
        assert any(re.match(pattern, name) for pattern in patterns), name
    assert not any(re.match(pattern, "linux-libc-dev") for pattern in patterns)


@hypothesis.given(st.text(alphabet="ab:;.,-_ \t\n()[]{}<>0123456789EWIRDinstv|/+~#'\"", max_size=300))
def test_no_text_makes_a_parser_raise(text):
    found = pkg.packages(text)
    pkg.broken(found)
    pkg.set_versions(found)
    pkg.offers(pkg.policies(text))
    pkg.index(text)
    pkg.missing_components(pkg.apt_sources({"a.sources": text, "b.list": text}), ("contrib",), "debian")
    pkg.after(found, pkg.simulation(text))
    pkg.apt_error(text)
    pkg.apt_warning(text)
    pkg.build_log_lines(text)
