# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pathlib

import hypothesis
import hypothesis.strategies as st
import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_dnf as dnf
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_outcome, _driver_plan, _gpu_inventory
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_packages as pkg
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_facts import HostFacts, Offers, Wanted
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import Reading

FIXTURES = pathlib.Path(__file__).parents[3] / "fixtures/driver"
KERNEL = "5.14.0-427.13.1.el9_4.x86_64"
NAMES = ("kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms", "nvidia-driver-cuda", "nvidia-persistenced", "nvidia-fabric-manager")


def sample(name):
    return (FIXTURES / name).read_text()


def host(*there, **facts):
    listed = "".join(f"{name}\tx86_64\t3:{version}-1.el9\tnvidia-driver-{version}-1.el9.src.rpm\n" for name, version in there)
    return HostFacts("rocky", "9.4", "x86_64", KERNEL, headers=[KERNEL], packages=dnf.packages(listed), **facts)


def decide(*there, dkms=True, wanted=None, **facts):
    card = {"pci_bus_id": "00000000:01:00.0", "pci_device_id": "10de:2230", "kernel_driver": None}
    system = Reading("system", host={"container": False, "virtualization": "none", "secure_boot": "disabled"})
    versions = {name: ["3:590.48.01-1.el9", "3:580.126.09-1.el9", "3:580.95.05-1.el9"] for name in NAMES}
    known = Offers({"nvidia": versions, "distribution": {"dkms": ["0:3.2.1-1.el9"]} if dkms else {}}, ["distribution", "nvidia"])
    found = _gpu_inventory.unite([system, Reading("sysfs", gpus=[card])])
    return _driver_plan.decide(wanted or Wanted(), host(*there, **facts), found, known)


def test_packages_of_rpm():
    found = dnf.packages(sample("rpm_driver.txt"))
    assert {package.name for package in found} > {"dkms", "kmod-nvidia-open-dkms"}
    assert "gpg-pubkey" not in {package.name for package in found}
    versions = pkg.set_versions(found)
    assert list(versions) == ["580.126.09"]
    assert "kmod-nvidia-open-dkms" in versions["580.126.09"]


def test_a_change_of_branch_and_flavour_as_dnf_would_make_it():
    there = dnf.packages(sample("rpm_driver.txt"))
    change = dnf.simulation(sample("dnf_swap.txt"), there)
    assert change.new == {"kmod-nvidia-latest-dkms": "3:590.48.01-1.el9"}
    assert change.upgraded["nvidia-driver-cuda"] == ("3:580.126.09-1.el9", "3:590.48.01-1.el9")
    assert change.removed == {"kmod-nvidia-open-dkms": "3:580.126.09-1.el9"}
    assert _driver_outcome.transaction_problems(change, there, "590.48.01") == []
    assert [one.code for one in _driver_outcome.transaction_problems(change, there, "580.126.09")] == ["wrong_version"]


def test_a_downgrade_as_dnf_would_make_it():
    there = dnf.packages(sample("rpm_driver.txt"))
    change = dnf.simulation(sample("dnf_downgrade.txt"), there)
    assert change.downgraded["libnvidia-ml"] == ("3:580.126.09-1.el9", "3:580.95.05-1.el9")
    assert [one.code for one in _driver_outcome.transaction_problems(change, there, "580.95.05")] == ["downgrade"]
    assert _driver_outcome.transaction_problems(change, there, "580.95.05", allow_downgrade=True) == []


def test_a_new_kernel_and_a_name_that_is_too_long_for_its_column():
    text = (
        "Dependencies resolved.\nInstalling:\n kernel-core  x86_64  5.14.0-503.el9  baseos  18 M\n"
        " a-name-that-is-longer-than-its-column\n              x86_64  3:580.95.05-1.el9  nvidia  6.9 k\n\nTransaction Summary\n"
    )
    change = dnf.simulation(text, [])
    assert change.kernels == ("kernel-core",)
    assert change.new["a-name-that-is-longer-than-its-column"] == "3:580.95.05-1.el9"
    assert change.new["kernel-core"] == "0:5.14.0-503.el9"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Error: Unable to find a match: nvidia-driver-cuda-3:580.99.99\n", "Unable to find a match: nvidia-driver-cuda-3:580.99.99"),
        ("Error: \n Problem: package a requires b, but none\n  - nothing provides b\n", "Problem: package a requires b, but none"),
        ("All matches were filtered out by exclude filtering for argument: x\nError: Unable to find a match: x\n", "exclude filtering"),
        ("Dependencies resolved.\nOperation aborted.\n", ""),
    ],
)
def test_what_dnf_says_when_it_cannot(text, words):
    assert (words in dnf.error(text)) if words else dnf.error(text) == ""


def test_repositories_and_who_has_nvidias_already():
    url = "https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64"
    text = f"[cuda]\nname=cuda\nbaseurl={url}\nenabled=1\ngpgcheck=0\n\n[off]\nbaseurl=http://x\nenabled=0\n"
    found = dnf.repositories({"/etc/yum.repos.d/cuda-rhel9.repo": text})
    assert [(one.name, one.urls, one.checked) for one in found] == [("cuda", (url,), False)]
    (entry,) = pkg.entries_for(dnf.as_sources(found), url)
    assert entry.trusted
    decision = decide(wanted=Wanted(), sources=dnf.as_sources(found))
    assert [problem.code for problem in decision.problems] == ["trusted_repository"]
    checked = dnf.as_sources(dnf.repositories({"/etc/yum.repos.d/cuda.repo": text.replace("gpgcheck=0", "gpgcheck=1")}))
    assert decide(sources=checked).plan["repository"]["present"] == "/etc/yum.repos.d/cuda.repo"
    # There the exact version could not be held.
    assert [one.code for one in decide(wanted=Wanted(version="580.95.05"), sources=checked).problems] == ["repository_twice"]


def test_what_a_repository_offers():
    text = "dkms\t0:3.2.1-1.el9\tbase\n\nnvidia-driver-cuda\t3:580.95.05-1.el9\tours\n\nnvidia-driver-cuda\t3:580.126.09-1.el9\tours\n"
    assert dnf.available(text, ["ours"]) == {
        "nvidia": {"nvidia-driver-cuda": ["3:580.126.09-1.el9", "3:580.95.05-1.el9"]},
        "distribution": {"dkms": ["0:3.2.1-1.el9"]},
    }


def test_a_blank_host_gets_a_stream_full_versions_and_a_signed_repository():
    made = decide().plan
    assert (made["manager"], made["stream"], made["version"]) == ("dnf", "580-open", "580.126.09")
    assert "kmod-nvidia-open-dkms=3:580.126.09-1.el9" in made["packages"]
    assert dnf.specification(made["packages"][-1]).count("-3:580.126.09") == 1
    (stream,) = (file for file in made["files"] if file["path"] == dnf.MODULE_PATH)
    assert "stream=580-open\n" in stream["text"]
    text = made["repository"]["text"]
    assert {"gpgcheck=1", "repo_gpgcheck=1", f"gpgkey=file://{made['repository']['key']['path']}"} <= set(text.splitlines())
    assert "includepkgs" not in text
    assert "includepkgs=*-580.95.05-*\n" in decide(wanted=Wanted(version="580.95.05")).plan["repository"]["text"]


def test_dkms_is_in_epel_and_asked_for_by_name():
    (problem,) = decide(dkms=False).problems
    assert problem.code == "dkms_missing"
    assert "EPEL" in problem.text


def test_what_is_installed_stays_without_a_question_to_anybody():
    there = [(name, "580.95.05") for name in NAMES if "latest" not in name]
    assert decide(*there).plan["packages"] == []
    assert decide(*there, wanted=Wanted(upgrade=True)).plan["version"] == "580.126.09"


@hypothesis.given(st.text(alphabet="abE:;.,-_ \t\n()[]=0123456789rokP@", max_size=300))
def test_no_text_makes_a_parser_raise(text):
    dnf.packages(text)
    dnf.available(text, ["a"])
    dnf.repositories({"a.repo": text})
    dnf.simulation(f"Dependencies resolved.\n{text}", [])
    dnf.error(text)
