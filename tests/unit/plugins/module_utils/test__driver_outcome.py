# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pathlib
import re

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_packages as pkg
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_system
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_facts import HostFacts, Wanted
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_outcome import (
    after_reboot_problems,
    fabric_manager_problems,
    module_problems,
    reboot_allowed,
    reboot_needed,
    set_problems,
    transaction_problems,
)

FIXTURES = pathlib.Path(__file__).parents[3] / "fixtures"
HOST = HostFacts("Debian", "12.11", "x86_64", "6.1.0-53-amd64")


def sample(name):
    return (FIXTURES / "driver" / name).read_text()


def gpu_sample(name):
    return (FIXTURES / "gpu" / name).read_text()


def codes(name, before=(), version=None, **options):
    packages = pkg.packages(sample(before)) if isinstance(before, str) else list(before)
    return [problem.code for problem in transaction_problems(pkg.simulation(sample(name)), packages, version, **options)]


# Pitfalls 6 and 7; what real apt said it would do.
@pytest.mark.parametrize(
    ("name", "before", "version", "options", "expected"),
    [
        ("sim_debian12_open_pinned.txt", (), "535.261.03", {}, []),
        ("sim_debian13_nvidia_pinned.txt", (), "580.95.05", {}, []),
        ("sim_debian13_nvidia_pinned.txt", (), "580.126.09", {}, ["wrong_version"]),
        ("sim_debian13_userland.txt", (), "550.163.01", {}, []),
        ("sim_debian12_open_unpinned.txt", (), "535.261.03", {}, ["apt_refuses"]),
        ("sim_floats.txt", (), "580.95.05", {}, ["mixed_versions"]),
        ("sim_kernel_image.txt", (), None, {}, ["kernel_change"]),
        ("sim_downgrade.txt", (), None, {}, ["downgrade"]),
        ("sim_downgrade.txt", "dpkg_mixed_versions.txt", "580.95.05", {"allow_downgrade": True}, []),
        ("sim_held_upgrade.txt", (), None, {}, ["held"]),
        ("sim_flavour_swap.txt", (), "580.95.05", {}, []),
        ("sim_branch_change.txt", "dpkg_debian13_kernel.txt", "535.274.02", {}, []),
    ],
)
def test_what_apt_would_do_against_what_was_asked_for(name, before, version, options, expected):
    assert codes(name, before, version, **options) == expected


def test_a_transaction_that_removes_what_is_no_driver():
    names = ["sddm", "nvidia-smi", "libcuda1:i386", "linux-modules-nvidia-570-server-generic"]
    change = pkg.simulation("".join(f"Remv {name} [550.163.01-2]\n" for name in names))
    (problem,) = transaction_problems(change, [], None)
    assert problem.code == "foreign_removal"
    assert "sddm" in problem.text
    assert "nvidia-smi" not in problem.text
    assert transaction_problems(change, [], None, remove=["sddm"]) == []


def test_the_reason_that_apt_gives_is_told_in_words():
    (problem,) = transaction_problems(pkg.simulation(sample("apt2_missing_component.txt")), [], None)
    assert "nvidia-kernel-dkms is in no package source" in problem.text


# Cases C01 and C12.
def test_one_version_of_everything():
    assert set_problems(pkg.packages(sample("dpkg_debian13_kernel.txt")), "550.163.01") == []
    assert set_problems([], "550.163.01") == []
    (problem,) = set_problems(pkg.packages(sample("dpkg_mixed_versions.txt")), "580.95.05")
    assert "590.48.01: nvidia-fabricmanager" in problem.text
    (problem,) = set_problems(pkg.packages(sample("dpkg_debian13_kernel.txt")), "580.95.05")
    assert problem.code == "wrong_version"


def test_the_fabric_managers_version():
    journal = sample("fabricmanager_mismatch_journal.txt")
    manager, driver = re.search(r"interface version (\S+) don't match with driver version ([\d.]+\d)", journal).groups()
    (problem,) = fabric_manager_problems(driver, f"{manager}-1")
    assert (problem.code, "590.48.01" in problem.text, "580.126.09" in problem.text) == ("fabric_manager_version", True, True)
    (problem,) = fabric_manager_problems("530.41.03", "530.30.02-1")
    assert problem.code == "fabric_manager_version"
    assert [one.code for one in fabric_manager_problems("530.41.03", None)] == ["no_fabric_manager"]
    assert fabric_manager_problems("580.126.09", "580.126.09-1") == []


# Case C13: it was built for the running kernel, and not for the one that boots next.
def test_a_kernel_without_a_module_is_named_with_the_telling_lines():
    builds = _gpu_system.dkms_status("nvidia/580.119.02, 6.17.4-generic, x86_64: installed")
    paths = ["/lib/modules/6.17.4-generic/updates/dkms/nvidia.ko.zst"]
    log = gpu_sample("apt_dkms_postinst_fail.txt").replace("6.17.9-76061709-generic", "6.17.9-generic")
    log += "nv-mmap.c:400:5: error: implicit declaration of function '__vma_start_write'\n"
    (problem,) = module_problems(["6.17.4-generic", "6.17.9-generic"], paths, builds, log)
    for word in ("kernel 6.17.9-generic", "DKMS has it for 6.17.4-generic", "implicit declaration", "Bad return status"):
        assert word in problem.text
    assert module_problems(["6.17.4-generic"], paths, builds, log) == []


# Case C14: DKMS skips a kernel and ends well.
@pytest.mark.parametrize("name", ["gpu/dkms_headers_skipped.txt", "gpu/dkms_no_headers.txt"])
def test_headers_that_are_missing_are_the_reason(name):
    (problem,) = module_problems(["6.1.0-39-amd64"], [], [], (FIXTURES / name).read_text())
    assert "kernel headers" in problem.text
    assert problem.text.endswith("install its headers and run dkms autoinstall.")


def test_debians_open_module_has_a_name_of_its_own():
    paths = ["/lib/modules/6.12.118+deb13-amd64/updates/dkms/nvidia-current-open.ko.xz"]
    assert module_problems(["6.12.118+deb13-amd64"], paths, []) == []


# Case D10: what is loaded decides.
@pytest.mark.parametrize(
    ("loaded", "on_disk", "holders", "expected", "words"),
    [
        (None, "580.126.09", [], True, "580.126.09 is not loaded"),
        ("580.126.09", "580.126.09", [], False, ""),
        ("570.86.10", "570.90.07", [], True, "570.86.10 is loaded"),
        (None, "580.126.09", ["nouveau"], True, "nouveau has a GPU"),
        (None, None, ["nouveau"], True, "nouveau"),
        (None, None, [], False, ""),
        ("580.126.09", None, [], False, ""),
    ],
)
def test_when_a_reboot_is_needed(loaded, on_disk, holders, expected, words):
    needed, why = reboot_needed(loaded=loaded, installed=on_disk, holders=holders)
    assert needed is expected
    assert words in why
    assert bool(why) is expected


def test_another_flavour_needs_a_reboot_too():
    same = {"loaded": "580.95.05", "installed": "580.95.05"}
    assert reboot_needed(**same, loaded_flavour="proprietary", flavour="open")[0]
    assert not reboot_needed(**same, loaded_flavour="open", flavour="open")[0]
    assert not reboot_needed(**same, loaded_flavour=None, flavour="open")[0]


# Case D10: the one reboot is looked at afterwards.
@pytest.mark.parametrize(
    ("loaded", "why", "mode", "words"),
    [
        ("580.95.05", "", "kernel", ""),
        ("570.86.10", "", "kernel", "570.86.10 is"),
        (None, "", "kernel", "none is"),
        (None, "nouveau has a GPU", "kernel", "nouveau has a GPU"),
        ("570.86.10", "", "userland", ""),
    ],
)
def test_what_the_reboot_must_have_brought(loaded, why, mode, words):
    problems = after_reboot_problems({"mode": mode, "version": "580.95.05", "branch": 580}, loaded, why)
    assert [problem.code for problem in problems] == (["not_loaded_after_reboot"] if words else [])
    assert all(words in problem.text for problem in problems)


def test_when_a_reboot_is_allowed():
    assert reboot_allowed(Wanted(reboot="if_required"), HOST, container=False) == (True, "")
    assert reboot_allowed(Wanted(), HOST, container=False) == (False, "gpu_driver_reboot is report")
    assert reboot_allowed(Wanted(reboot="never"), HOST, container=False) == (False, "gpu_driver_reboot is never")
    assert not reboot_allowed(Wanted(reboot="if_required"), HOST, container=True)[0]
