# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import dataclasses
import json
import pathlib
import re

import hypothesis
import hypothesis.strategies as st
import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_packages as pkg
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_plan, _driver_sources, _gpu_inventory, _gpu_system
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_facts import HostFacts, Offers, Wanted, names_to_ask, offers
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_plan import PLAN, decide, removal
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import Reading

FIXTURES = pathlib.Path(__file__).parents[3] / "fixtures"
A6000, H100, H200, RTX_5090, P40, GTX_1050, GT_710 = (
    *("10de:2230", "10de:2330", "10de:2335", "10de:2b85", "10de:1b38", "10de:1c81", "10de:128b"),
)
ENGINE = "0.5.23"
OLD_ENGINE = "0.5.9"


def sample(name):
    return (FIXTURES / "driver" / name).read_text()


def gpu_sample(name):
    return (FIXTURES / "gpu" / name).read_text(errors="replace")


# Inventories, as gpu_info builds them.


def inventory(*gpus, container=False, virtualization=None, proc="", **host):
    """GPUs: (PCI device id, kernel driver). proc: sample of /proc/driver/nvidia/version, or such a text."""
    system = Reading("system", host={"container": container, "virtualization": virtualization or ("lxc" if container else "none"), **host})
    cells = [
        {"pci_bus_id": f"00000000:{number + 1:02X}:00.0", "pci_device_id": device, "kernel_driver": driver}
        for number, (device, driver) in enumerate(gpus)
    ]
    version = gpu_sample(proc) if proc.endswith(".txt") else proc
    return _gpu_inventory.unite([system, _gpu_system.proc_reading(version, {}), Reading("sysfs", gpus=cells)])


def from_lspci(name, **host):
    reading = _gpu_system.pci_reading("lspci", _gpu_system.lspci_devices(gpu_sample(name)))
    return _gpu_inventory.unite([Reading("system", host={"container": False, "virtualization": "none", **host}), reading])


def loaded(version, flavour="open"):
    words = "Open Kernel Module for x86_64" if flavour == "open" else "x86_64 Kernel Module"
    return f"NVRM version: NVIDIA UNIX {words}  {version}  Release Build  (builder@host)\n"


BARE = inventory((A6000, None), secure_boot="disabled")
SWITCHES = [{"pci_bus_id": f"00000000:0{n}:00.0", "pci_device_id": "10de:22a3", "kernel_driver": None} for n in (5, 6)]

# Hosts

DEBIAN_SOURCES = """Types: deb
URIs: http://deb.debian.org/debian
Suites: {suite} {suite}-updates
Components: main contrib non-free non-free-firmware
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


def sources(suite, components="main contrib non-free non-free-firmware"):
    return pkg.apt_sources(
        {"debian.sources": DEBIAN_SOURCES.format(suite=suite).replace("main contrib non-free non-free-firmware", components)}
    )


KERNEL_12, NEXT_12, KERNEL_13 = "6.1.0-53-amd64", "6.1.0-57-amd64", "6.12.118+deb13-amd64"
DEBIAN_12 = HostFacts("Debian", "12.11", "x86_64", KERNEL_12, KERNEL_12, sources=sources("bookworm"))
DEBIAN_13 = HostFacts("Debian", "13.8", "x86_64", KERNEL_13, KERNEL_13, sources=sources("trixie"))
UBUNTU = HostFacts("Ubuntu", "24.04", "x86_64", "6.8.0-51-generic", "6.8.0-51-generic", headers=["6.8.0-51-generic"])
ROCKY = HostFacts("Rocky", "9.4", "x86_64", "5.14.0-427.13.1.el9_4.x86_64")

OFFERS_12 = offers(pkg.policies(sample("policy_debian12.txt")), DEBIAN_12.sources, _driver_sources.Platform("debian", "12", "x86_64"))
OFFERS_13 = offers(pkg.policies(sample("policy_debian13.txt")), DEBIAN_13.sources, _driver_sources.Platform("debian", "13", "x86_64"))
# The loopback copy of the repository was under another base URL.
LOCAL = "http://127.0.0.1:8765/good/compute/cuda/repos"
LOCAL_SOURCE = pkg.AptSource("nvidia.sources", ("deb",), (f"{LOCAL}/debian13/x86_64",), ("/",), (), "/usr/share/keyrings/good.gpg", False)
DEBIAN_13_NVIDIA = dataclasses.replace(DEBIAN_13, sources=[*DEBIAN_13.sources, LOCAL_SOURCE])
OFFERS_13_NVIDIA = offers(
    pkg.policies(sample("policy_debian13_nvidia.txt")),
    DEBIAN_13_NVIDIA.sources,
    _driver_sources.Platform("debian", "13", "x86_64"),
    base_url=LOCAL,
)


def ubuntu_offers(version="580.95.05", signed=True, branch=580):
    full = f"{version}-0ubuntu0.24.04.1"
    names = [
        *(f"libnvidia-compute-{branch}-server", f"nvidia-utils-{branch}-server", f"nvidia-compute-utils-{branch}-server"),
        *(f"nvidia-dkms-{branch}-server-open", f"nvidia-dkms-{branch}-server", f"nvidia-fabricmanager-{branch}"),
    ]
    modules = [
        f"linux-modules-nvidia-{branch}-server{open_}-{kernel}" for open_ in ("", "-open") for kernel in ("6.8.0-51-generic", "generic")
    ]
    versions = {**{name: [full] for name in names}, **({name: ["6.8.0-51.52+1"] for name in modules} if signed else {})}
    return Offers({"distribution": versions}, ["distribution"])


def nvidia_offers(*versions, where="debian", managers=None):
    """What NVIDIA's repository for Debian has."""
    names = ("nvidia-driver-cuda", "libcuda1", "nvidia-kernel-open-dkms", "nvidia-kernel-dkms", "nvidia-persistenced")
    index = {name: [f"{version}-1" for version in versions] for name in names}
    index["nvidia-fabricmanager"] = [f"{version}-1" for version in (versions if managers is None else managers)]
    return index


def with_nvidia(known, *versions, **options):
    return dataclasses.replace(
        known, versions={**known.versions, "nvidia": nvidia_offers(*versions, **options)}, asked=[*known.asked, "nvidia"]
    )


def installed(version, *names, status="ii "):
    """dpkg's packages: Debian's names in one version."""
    return pkg.packages("".join(f"{name}\t{version}\t{status}\tnvidia-graphics-drivers\n" for name in names))


USERLAND = ("libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "libnvidia-nvvm4", "nvidia-smi")
WHOLE_12 = installed("535.309.01-0+deb12u1", "nvidia-kernel-dkms", *USERLAND, "libnvidia-cfg1", "nvidia-persistenced")


def plan(wanted, host, gpus, known):
    decision = decide(wanted, host, gpus, known)
    assert decision.problems == []
    assert list(decision.plan) == list(PLAN)
    assert json.loads(json.dumps(decision.plan)) == decision.plan, "plain data"
    return decision.plan


def problems(wanted, host, gpus, known):
    decision = decide(wanted, host, gpus, known)
    assert decision.plan is None
    for problem in decision.problems:
        assert re.match(r"expected [\s\S]+, found [\s\S]+; [\s\S]+\.$", problem.text), problem.text
        assert "None" not in problem.text, problem.text
    return decision.problems


def codes(wanted, host, gpus, known):
    return [problem.code for problem in problems(wanted, host, gpus, known)]


def steps(made):
    return [step["step"] for step in made["steps"]]


# The whole of a plan


def test_a_bare_debian_12_with_the_driver_of_its_own_packages():
    made = plan(Wanted(sglang_release=OLD_ENGINE), DEBIAN_12, BARE, OFFERS_12)
    assert (made["mode"], made["source"], made["branch"], made["version"], made["flavour"], made["modules"]) == (
        *("kernel", "distribution", 535, "535.309.01", "proprietary", "dkms"),
    )
    assert made["packages"] == [
        *(f"linux-headers-{KERNEL_12}", "linux-headers-amd64", "nvidia-kernel-dkms"),
        *("libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "libnvidia-nvvm4", "nvidia-smi"),
        *("nvidia-persistenced", "libnvidia-cfg1"),
    ]
    assert made["repository"] is None
    assert made["components"] is None
    assert set(made["set"].values()) == {"535.309.01-0+deb12u1"}
    assert made["kernels"] == [KERNEL_12]
    assert (made["reboot_required"], made["reboot_allowed"]) == (False, False)
    assert made["reboot_allowed_why"] == "gpu_driver_reboot is report"
    assert [file["path"] for file in made["files"]] == [
        "/etc/modprobe.d/firstlight-gpu-driver.conf",
        "/etc/apt/apt.conf.d/60firstlight-gpu-driver",
    ]
    assert steps(made) == [
        *("pin", "file", "file", "packages", "module", "initramfs", "load", "persistence", "device_nodes", "verify"),
    ]


def test_a_bare_debian_13_for_a_new_engine_takes_nvidias_repository():
    made = plan(Wanted(sglang_release=ENGINE), DEBIAN_13, BARE, OFFERS_13)
    assert (made["source"], made["branch"], made["version"], made["flavour"]) == ("nvidia", 615, None, "open")
    assert made["repository"]["url"] == "https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64"
    assert made["repository"]["suites"] == ["/"]
    assert made["repository"]["components"] == []
    assert made["repository"]["key"] == {
        "url": "https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64/8793F200.pub",
        "path": "/etc/apt/keyrings/firstlight-gpu-driver.asc",
        "fingerprint": "02182E60104FCDC26EAE1B8597A5D4CB8793F200",
    }
    (entry,) = pkg.apt_sources({made["repository"]["path"]: made["repository"]["text"]})
    assert (entry.suites, entry.signed_by, entry.trusted) == (("/",), "/etc/apt/keyrings/firstlight-gpu-driver.asc", False)
    assert made["packages"][2:] == ["nvidia-kernel-open-dkms", "nvidia-driver-cuda", "libcuda1", "nvidia-persistenced"]
    assert "Pin: version 615.*" in made["pin"]["text"]
    assert any("newest of branch 615" in note for note in made["notes"])
    assert steps(made)[:2] == ["repository", "pin"]


def test_with_the_repositorys_index_the_version_is_known_before_anything_changes():
    known = with_nvidia(OFFERS_12, "610.43.02", "580.126.09", "580.95.05")
    made = plan(Wanted(sglang_release=ENGINE), DEBIAN_12, BARE, known)
    assert (made["source"], made["branch"], made["version"]) == ("nvidia", 580, "580.126.09"), "the long-term branch"
    assert made["repository"]["url"].endswith("debian12/x86_64")
    assert made["repository"]["present"] is None
    assert made["set"]["libcuda1"] == "580.126.09-1"


def test_what_is_asked_of_apt_is_what_the_decision_reads():
    names = names_to_ask(_driver_sources.Platform("debian", "13", "x86_64"), DEBIAN_13)
    made = plan(Wanted(sglang_release=OLD_ENGINE), DEBIAN_13, BARE, OFFERS_13)
    assert set(made["packages"]) <= set(names)
    assert "nvidia-driver-cuda" in names
    assert len(names) == len(set(names))


# Mode


@pytest.mark.parametrize(
    ("gpus", "wanted", "mode", "reason"),
    [
        (inventory((A6000, None), virtualization="kvm"), Wanted(), "kernel", ""),
        (inventory(), Wanted(required=False), "none", "no NVIDIA GPU"),
        (inventory((A6000, "vfio-pci")), Wanted(required=False), "none", "handed to guests"),
        (inventory(virtualization="wsl"), Wanted(required=False), "none", "WSL"),
        (inventory(container=True, proc=loaded("535.309.01")), Wanted(), "userland", ""),
        (inventory(container=True, virtualization="docker", proc=loaded("535.309.01")), Wanted(), "userland", ""),
        (inventory((A6000, "nvidia"), proc=loaded("535.309.01")), Wanted(mode="userland"), "userland", ""),
    ],
)
def test_the_mode_follows_the_host(gpus, wanted, mode, reason):
    made = plan(wanted, DEBIAN_12, gpus, OFFERS_12)
    assert made["mode"] == mode
    assert reason in made["reason"]
    if mode == "none":
        assert made["steps"] == []
        assert made["packages"] == []


@pytest.mark.parametrize(
    ("gpus", "wanted", "code", "words"),
    [
        (inventory(), Wanted(), "no_gpu", "gpu_driver_required: false"),
        (inventory((A6000, "vfio-pci")), Wanted(), "no_gpu", "handed to guests"),
        (inventory(virtualization="wsl"), Wanted(), "wsl", "Windows"),
        (inventory(container=True, proc=loaded("580.95.05")), Wanted(mode="kernel"), "kernel_mode_in_container", "container (lxc)"),
        (inventory(container=True), Wanted(), "no_module_on_host", "/proc/driver/nvidia/version"),
        (inventory(container=True, proc=loaded("580.95.05")), Wanted(flavour="open"), "kernel_options_in_container", "leave them out here"),
        (
            inventory(container=True, proc=loaded("580.95.05")),
            Wanted(flavour="open"),
            "kernel_options_in_container",
            "a hypervisor: in host_vars or group_vars of its own",
        ),
        (
            inventory(container=True, proc=loaded("580.95.05")),
            Wanted(power_limit_w=9),
            "kernel_options_in_container",
            "gpu_driver_power_limit_w",
        ),
    ],
)
def test_a_host_without_the_mode_that_is_asked_for(gpus, wanted, code, words):
    (problem,) = problems(wanted, DEBIAN_12, gpus, OFFERS_12)
    assert problem.code == code
    assert words in problem.text


# Case C24.
def test_gpus_of_guests_are_left_alone_and_the_others_get_their_driver():
    gpus = inventory((A6000, "vfio-pci"), (A6000, None), secure_boot="disabled")
    made = plan(Wanted(), DEBIAN_12, gpus, OFFERS_12)
    assert made["mode"] == "kernel"
    assert len(made["left_alone"]) == 1
    assert "00000000:01:00.0" in made["left_alone"][0]
    assert not made["reboot_required"], "vfio-pci is not in the way"
    blackwell = inventory((P40, "vfio-pci"), (RTX_5090, None), secure_boot="disabled")
    assert plan(Wanted(), DEBIAN_13, blackwell, OFFERS_13)["flavour"] == "open", "the P40 does not count"
    (problem,) = problems(Wanted(), DEBIAN_12, from_lspci("lspci_nnk_vfio_turing_4_functions.txt"), OFFERS_12)
    assert problem.code == "no_gpu"


# Flavour and branch


# Cases C02, C03, C04; pitfall 5.
@pytest.mark.parametrize(
    ("devices", "wanted", "flavour"),
    [
        ([RTX_5090], Wanted(), "open"),
        ([A6000], Wanted(), "open"),
        ([A6000], Wanted(flavour="proprietary"), "proprietary"),
        ([P40], Wanted(), "proprietary"),
        ([A6000, P40], Wanted(), "proprietary"),
        ([A6000, RTX_5090], Wanted(), "open"),
        ([H100], Wanted(), "open"),
        (["10de:ffff"], Wanted(flavour="open"), "open"),
    ],
)
def test_the_flavour_is_what_drives_every_gpu(devices, wanted, flavour):
    known = with_nvidia(OFFERS_12, "580.95.05")
    gpus = inventory(*((device, None) for device in devices), secure_boot="disabled")
    made = plan(dataclasses.replace(wanted, source="nvidia"), DEBIAN_12, gpus, known)
    assert made["flavour"] == flavour
    assert ("nvidia-kernel-open-dkms" in made["packages"]) is (flavour == "open")
    assert ("nvidia-kernel-dkms" in made["packages"]) is (flavour == "proprietary")


@pytest.mark.parametrize(
    ("devices", "wanted", "code", "words"),
    [
        ([P40, RTX_5090], Wanted(), "no_common_flavour", ["Pascal", "Blackwell"]),
        ([RTX_5090], Wanted(flavour="proprietary"), "wrong_flavour", ["Blackwell", "open"]),
        ([GTX_1050], Wanted(flavour="open"), "wrong_flavour", ["Pascal", "proprietary"]),
        ([GTX_1050], Wanted(branch=595), "does_not_fit", ["580", "595"]),
        ([P40], Wanted(version="590.48.01"), "does_not_fit", ["580", "590.48.01"]),
        ([RTX_5090], Wanted(branch=550), "does_not_fit", ["570", "550"]),
        ([GT_710], Wanted(sglang_release=ENGINE), "gpu_too_old", ["470", "CUDA 13"]),
        ([A6000], Wanted(branch=550, sglang_release=ENGINE), "does_not_fit", ["580.65.06", "branch 550"]),
        ([A6000], Wanted(version="580.65.05", sglang_release=ENGINE), "does_not_fit", ["580.65.06", "580.65.05"]),
    ],
)
def test_gpus_and_wishes_that_do_not_fit_are_named(devices, wanted, code, words):
    gpus = inventory(*((device, None) for device in devices), secure_boot="disabled")
    found = problems(wanted, DEBIAN_12, gpus, with_nvidia(OFFERS_12, "595.71.05", "580.95.05"))
    assert found[0].code == code
    for word in words:
        assert word in found[0].text


# Case C06: a name decides nothing.
@pytest.mark.parametrize("device", ["10de:ffff", "10de:1140"])
def test_an_unknown_gpu_asks_for_the_operators_word(device):
    found = problems(Wanted(), DEBIAN_12, inventory((device, None)), OFFERS_12)
    assert [problem.code for problem in found] == ["unknown_gpu"]
    assert device in found[0].text
    assert "gpu_driver_flavour" in found[0].text


def test_kepler_by_id_gets_its_last_branch():
    made = plan(Wanted(), DEBIAN_12, inventory((GT_710, None), secure_boot="disabled"), OFFERS_12)
    assert (made["branch"], made["flavour"]) == (470, "proprietary")
    assert "nvidia-tesla-470-kernel-dkms" in made["packages"]


def test_pascal_ends_with_580():
    known = with_nvidia(OFFERS_12, "610.43.02", "590.48.01", "580.95.05")
    made = plan(Wanted(source="nvidia"), DEBIAN_12, inventory((P40, None), secure_boot="disabled"), known)
    assert made["version"] == "580.95.05"


def test_the_debian_13_repository_has_no_branch_for_pascal_and_says_so():
    found = problems(Wanted(sglang_release=ENGINE), DEBIAN_13, inventory((P40, None), secure_boot="disabled"), OFFERS_13)
    assert found[0].code == "source_too_old"
    assert "branch 590" in found[0].text
    assert "branch 580 at most" in found[0].text


# Debian 12's security updates have left the open module behind: its set is 535.261.03, the proprietary one 535.309.01.
def test_the_version_is_one_that_every_package_of_the_set_has():
    made = plan(Wanted(source="distribution", flavour="open"), DEBIAN_12, BARE, OFFERS_12)
    assert made["version"] == "535.261.03"
    assert set(made["set"].values()) == {"535.261.03-1"}
    modprobe = made["files"][0]["text"]
    assert "options nvidia-current-open NVreg_OpenRmEnableUnsupportedGpus=1" in modprobe
    newest = plan(Wanted(source="distribution"), DEBIAN_12, BARE, OFFERS_12)
    assert (newest["version"], newest["flavour"]) == ("535.309.01", "proprietary")
    assert "NVreg" not in newest["files"][0]["text"]


# The files that real apt was given: see the captured policies.
def test_the_pins_are_those_that_apt_was_asked_with():
    made = plan(Wanted(source="distribution", flavour="open", version="535.261.03"), DEBIAN_12, BARE, OFFERS_12)
    assert made["pin"]["text"] == sample("pin_debian12_exact.pref")
    policies = pkg.policies(sample("policy_pinned_debian12_exact.txt"))
    assert {policies[name].candidate for name in made["set"]} == {"535.261.03-1"}
    assert policies["nvidia-modprobe"].candidate == "535.309.01-0+deb12u1", "not of the set"
    change = pkg.simulation(sample("sim_debian12_open_pinned.txt"))
    assert list(pkg.set_versions(pkg.after([], change))) == ["535.261.03"]
    assert pkg.simulation(sample("sim_debian12_open_unpinned.txt")).error != ""
    branch = plan(Wanted(source="distribution", branch=535), DEBIAN_12, BARE, OFFERS_12)
    assert branch["pin"]["text"] == sample("pin_debian12_branch.pref")
    policies = pkg.policies(sample("policy_pinned_debian12_branch.txt"))
    assert policies["libcuda1"].candidate == "535.309.01-0+deb12u1"
    assert policies["libcuda1"].versions[-1].priority == 100, "backports stay where they are"
    nvidia = Wanted(source="nvidia", version="580.95.05", base_url=LOCAL)
    exact = plan(nvidia, DEBIAN_13_NVIDIA, inventory((H200, None), nvswitches=SWITCHES, secure_boot="disabled"), OFFERS_13_NVIDIA)
    assert exact["pin"]["text"] == sample("pin_debian13_nvidia.pref")
    policies = pkg.policies(sample("policy_pinned_debian13_nvidia.txt"))
    assert {policies[name].candidate for name in exact["set"]} == {"580.95.05-1"}
    assert "nvidia-fabricmanager" in exact["set"]
    change = pkg.simulation(sample("sim_debian13_nvidia_pinned.txt"))
    assert list(pkg.set_versions(pkg.after([], change))) == ["580.95.05"]


# Source


@pytest.mark.parametrize(
    ("host", "known", "words"),
    [
        (DEBIAN_12, OFFERS_12, ["535.309.01", "source nvidia", ".run file", "SGLang 0.5.23 brings CUDA 13.0", "580.65.06"]),
        (DEBIAN_13, OFFERS_13, ["550.163.01", "source nvidia", ".run file"]),
    ],
)
def test_a_source_that_cannot_serve_the_engine_is_refused_with_those_that_can(host, known, words):
    (problem,) = problems(Wanted(source="distribution", sglang_release=ENGINE), host, BARE, known)
    assert problem.code == "source_too_old"
    for word in words:
        assert word in problem.text


def test_debians_own_serve_an_older_engine():
    assert plan(Wanted(source="distribution", sglang_release=OLD_ENGINE), DEBIAN_13, BARE, OFFERS_13)["version"] == "550.163.01"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted(source="nvidia", branch=580), ["branch 580", "590"]),
        (Wanted(source="nvidia", version="580.95.05"), ["580.95.05"]),
        (Wanted(source="distribution", branch=580), ["branch 580", "550.163.01"]),
        (Wanted(branch=777), ["branch 777"]),
        (Wanted(version="550.1.1"), ["550.1.1", "550.163.01"]),
    ],
)
def test_a_branch_or_version_that_no_source_offers(wanted, words):
    (problem,) = problems(wanted, DEBIAN_13, BARE, OFFERS_13)
    assert problem.code == "not_offered"
    for word in words:
        assert word in problem.text


def test_a_version_is_taken_from_the_source_that_has_it():
    made = plan(Wanted(version="550.163.01"), DEBIAN_13_NVIDIA, BARE, OFFERS_13_NVIDIA)
    assert made["source"] == "distribution"
    made = plan(Wanted(version="580.95.05", base_url=LOCAL), DEBIAN_13_NVIDIA, BARE, OFFERS_13_NVIDIA)
    assert made["source"] == "nvidia"
    assert made["repository"]["present"] == "nvidia.sources"
    assert "repository" not in steps(made), "it is there already"
    assert "nvidia-kernel-open-dkms=580.95.05-1" in made["packages"]


def test_backports_are_no_reason_to_leave_the_release():
    made = plan(Wanted(version="535.216.03"), DEBIAN_12, BARE, OFFERS_12)
    assert made["set"]["libcuda1"] == "535.216.03-2~bpo12+1"
    assert "release a=*-backports" not in made["pin"]["text"], "it is where this version lies"


def test_a_repository_that_is_not_there_is_named():
    known = dataclasses.replace(OFFERS_13, refused={"nvidia": "404 at https://mirror.example.org/debian13/x86_64/InRelease"})
    (problem,) = problems(Wanted(source="nvidia"), DEBIAN_13, BARE, known)
    assert problem.code == "repository_missing"
    assert "404 at https://mirror.example.org" in problem.text
    (problem,) = problems(Wanted(source="nvidia"), dataclasses.replace(DEBIAN_12, machine="aarch64"), BARE, OFFERS_12)
    assert problem.code == "repository_missing"
    assert "publishes none" in problem.text


def test_a_mirror_has_the_same_directories_and_may_have_its_own_key():
    wanted = Wanted(
        base_url="http://mirror.example.org/cuda/",
        key_url="http://mirror.example.org/key.asc",
        key_fingerprint="A" * 40,
        sglang_release=ENGINE,
    )
    made = plan(wanted, DEBIAN_13, BARE, OFFERS_13)
    assert made["repository"]["url"] == "http://mirror.example.org/cuda/debian13/x86_64"
    assert made["repository"]["key"]["fingerprint"] == "A" * 40
    assert made["repository"]["key"]["url"] == "http://mirror.example.org/key.asc"


# Case C07.
def test_what_the_keyring_package_added_is_used_as_it_is():
    url = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64"
    line = f"deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] {url}/ /\n"
    entries = pkg.apt_sources({"/etc/apt/sources.list.d/cuda-debian12-x86_64.list": line})
    host = dataclasses.replace(DEBIAN_12, sources=[*DEBIAN_12.sources, *entries], packages=installed("1.1-1", "cuda-keyring"))
    made = plan(Wanted(sglang_release=ENGINE), host, BARE, with_nvidia(OFFERS_12, "580.95.05"))
    assert made["repository"]["present"] == "/etc/apt/sources.list.d/cuda-debian12-x86_64.list"
    assert "repository" not in steps(made)


def test_a_repository_without_a_look_at_its_signature_is_refused():
    line = "deb [trusted=yes] https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/ /\n"
    host = dataclasses.replace(DEBIAN_12, sources=[*DEBIAN_12.sources, *pkg.apt_sources({"x.list": line})])
    assert codes(Wanted(sglang_release=ENGINE), host, BARE, with_nvidia(OFFERS_12, "580.95.05")) == ["trusted_repository"]


# Case C31.
def test_missing_components_are_added_beside_the_hosts_own_entries():
    host = dataclasses.replace(DEBIAN_12, sources=sources("bookworm", "main"))
    known = offers({}, host.sources, _driver_sources.Platform("debian", "12", "x86_64"))
    assert known.asked == [], "what apt does not see is no fact"
    made = plan(Wanted(), host, BARE, known)
    assert made["source"] == "distribution"
    assert made["components"]["components"] == ["contrib", "non-free", "non-free-firmware"]
    (entry,) = pkg.apt_sources({made["components"]["path"]: made["components"]["text"]})
    assert entry.suites == ("bookworm", "bookworm-updates")
    assert steps(made)[0] == "components"
    nvidia = plan(Wanted(sglang_release=ENGINE), host, BARE, known)
    assert nvidia["components"]["components"] == ["contrib"]


def test_a_platform_that_is_not_known():
    assert codes(Wanted(), dataclasses.replace(DEBIAN_12, version="11.9"), BARE, OFFERS_12) == ["unknown_platform"]
    assert codes(Wanted(), dataclasses.replace(DEBIAN_12, distribution="Fedora"), BARE, OFFERS_12) == ["unknown_platform"]


def test_rhel_has_streams_and_no_apt_files():
    made = plan(Wanted(sglang_release=ENGINE), ROCKY, BARE, Offers())
    assert (made["source"], made["stream"], made["branch"]) == ("nvidia", "580-open", 580)
    assert made["repository"]["kind"] == "rpm"
    assert made["repository"]["path"].startswith("/etc/yum.repos.d/")
    assert "gpgcheck=1" in made["repository"]["text"]
    assert made["pin"] is None
    assert f"kernel-devel-{ROCKY.kernel}" in made["packages"]
    assert "kmod-nvidia-open-dkms" in made["packages"]
    assert "stream" in steps(made)


# What is there already


def test_a_second_run_changes_nothing():
    gpus = inventory((A6000, "nvidia"), proc=loaded("535.309.01", "proprietary"), secure_boot="disabled")
    host = dataclasses.replace(
        DEBIAN_12, packages=[*WHOLE_12, *installed("6.1", "linux-headers-amd64")], headers=[KERNEL_12], module_version="535.309.01"
    )
    made = plan(Wanted(sglang_release=OLD_ENGINE), host, gpus, OFFERS_12)
    assert made["packages"] == []
    assert made["packages_remove"] == []
    assert made["initramfs"] is False
    assert made["reboot_required"] is False
    assert steps(made) == ["pin", "file", "file", "persistence", "device_nodes", "verify"]


def test_a_driver_that_is_good_enough_stays_until_an_upgrade_is_asked_for():
    packages = installed("580.95.05-1", *nvidia_offers("580.95.05"))
    host = dataclasses.replace(DEBIAN_12, packages=packages, headers=[KERNEL_12], module_version="580.95.05")
    gpus = inventory((A6000, "nvidia"), proc=loaded("580.95.05"), secure_boot="disabled")
    known = with_nvidia(OFFERS_12, "610.43.02", "580.126.09", "580.95.05")
    assert plan(Wanted(sglang_release=ENGINE), host, gpus, known)["version"] == "580.95.05"
    newer = plan(Wanted(sglang_release=ENGINE, upgrade=True), host, gpus, known)
    assert newer["version"] == "580.126.09", "of its branch"
    assert "nvidia-kernel-open-dkms" in newer["packages"]
    other = plan(Wanted(branch=610), host, gpus, known)
    assert other["version"] == "610.43.02"
    assert (other["reboot_required"], "580.95.05 is loaded" in other["reboot_why"]) == (True, True)


def test_a_driver_too_old_for_the_engine_is_replaced():
    host = dataclasses.replace(DEBIAN_12, packages=WHOLE_12, headers=[KERNEL_12], module_version="535.309.01")
    gpus = inventory((A6000, "nvidia"), proc=loaded("535.309.01", "proprietary"), secure_boot="disabled")
    made = plan(Wanted(sglang_release=ENGINE), host, gpus, with_nvidia(OFFERS_12, "580.95.05"))
    assert (made["source"], made["version"]) == ("nvidia", "580.95.05")
    assert made["flavour"] == "proprietary", "the installed flavour stays where it fits"
    assert made["reboot_required"]


# Case C01, and what a change of the source leaves behind: all of the set changes together, and what the source does not have goes.
def test_a_set_of_two_versions_is_mended():
    packages = [
        *[package for package in WHOLE_12 if package.name != "libnvidia-ml1"],
        *installed("535.261.03-1", "libnvidia-ml1", "libnvidia-encode1"),
    ]
    host = dataclasses.replace(DEBIAN_12, packages=packages, headers=[KERNEL_12])
    made = plan(Wanted(source="distribution"), host, BARE, OFFERS_12)
    assert made["version"] == "535.309.01"
    assert [name for name in made["packages"] if "headers" not in name] == ["libnvidia-ml1"]
    assert made["packages_remove"] == ["libnvidia-encode1"]
    moved = plan(Wanted(sglang_release=ENGINE), host, BARE, with_nvidia(OFFERS_12, "580.95.05"))
    assert {"libcuda1", "nvidia-kernel-dkms", "nvidia-persistenced"} <= set(moved["packages"])
    assert set(moved["packages_remove"]) == {
        *("libnvidia-cfg1", "libnvidia-encode1", "libnvidia-ml1", "libnvidia-nvvm4", "libnvidia-ptxjitcompiler1", "nvidia-smi"),
    }
    assert set(moved["set"].values()) == {"580.95.05-1"}


# Cases C02 and C10: one transaction, the old names out, the new ones in.
def test_another_flavour_takes_the_place_of_the_old_one():
    host = dataclasses.replace(
        DEBIAN_12, packages=installed("580.95.05-1", "nvidia-kernel-dkms", "nvidia-driver-cuda", "libcuda1"), headers=[KERNEL_12]
    )
    known = with_nvidia(OFFERS_12, "580.95.05")
    gpus = inventory((RTX_5090, None), proc="proc_driver_version_proprietary.txt", secure_boot="disabled")
    made = plan(Wanted(sglang_release=ENGINE), host, gpus, known)
    assert made["flavour"] == "open"
    assert made["packages_remove"] == ["nvidia-kernel-dkms"]
    assert "nvidia-kernel-open-dkms" in made["packages"]
    assert made["reboot_required"]


def test_branches_with_other_names_are_removed_in_the_same_transaction():
    there = pkg.packages(sample("dpkg_debian13_kernel.txt"))
    host = dataclasses.replace(DEBIAN_13, packages=there, headers=[KERNEL_13])
    known = offers(pkg.policies(sample("policy_debian13.txt")), host.sources, _driver_sources.Platform("debian", "13", "x86_64"))
    made = plan(Wanted(branch=535, allow_downgrade=True), host, BARE, known)
    assert made["version"] == "535.274.02"
    change = pkg.simulation(sample("sim_branch_change.txt"))
    assert set(made["packages_remove"]) == set(change.removed), "as real apt did it"
    assert {name for name in made["packages"] if "nvidia-tesla" in name} <= {*change.new}
    ubuntu = [
        *installed("570.133.20-0ubuntu1", "nvidia-dkms-570-server-open", "libnvidia-compute-570-server", "nvidia-utils-570-server"),
        *installed("570.133.20-0ubuntu1", "nvidia-firmware-570-server-570.133.20", "nvidia-kernel-common-570-server"),
        *installed("6.8.0-51.52+1", "linux-modules-nvidia-570-server-open-6.8.0-51-generic", "linux-modules-6.8.0-51-generic"),
    ]
    made = plan(Wanted(branch=580), dataclasses.replace(UBUNTU, packages=ubuntu), BARE, ubuntu_offers())
    assert made["packages_remove"] == sorted(package.name for package in ubuntu if "-570-" in package.name)


@pytest.mark.parametrize(("allowed", "expected"), [(False, ["downgrade"]), (True, [])])
def test_a_downgrade_only_when_it_is_allowed(allowed, expected):
    host = dataclasses.replace(DEBIAN_12, packages=WHOLE_12, headers=[KERNEL_12])
    decision = decide(Wanted(version="535.261.03", allow_downgrade=allowed), host, BARE, OFFERS_12)
    assert [problem.code for problem in decision.problems] == expected
    if allowed:
        assert "Pin-Priority: 1001" in decision.plan["pin"]["text"]
        assert "libcuda1=535.261.03-1" in decision.plan["packages"]


def test_packages_on_hold_are_told_before_a_change_and_no_matter_without_one():
    held = installed("535.309.01-0+deb12u1", "libcuda1", status="hi ")
    packages = [*[package for package in WHOLE_12 if package.name != "libcuda1"], *held]
    host = dataclasses.replace(DEBIAN_12, packages=packages, headers=[KERNEL_12])
    assert codes(Wanted(version="535.261.03", allow_downgrade=True), host, BARE, OFFERS_12) == ["held"]
    assert plan(Wanted(), host, BARE, OFFERS_12)["version"] == "535.309.01"


# Case C13.
def test_a_broken_dpkg_is_told_first_with_its_cure():
    host = dataclasses.replace(DEBIAN_12, packages=pkg.packages(sample("dpkg_half.txt")))
    (problem,) = problems(Wanted(), host, BARE, OFFERS_12)
    assert problem.code == "broken_packages"
    assert "nvidia-broken-dkms" in problem.text
    assert "dpkg --configure -a" in problem.text


# Case C22


@pytest.mark.parametrize("proc", ["proc_driver_version_open.txt", "proc_driver_version_proprietary.txt", "proc_driver_version_h200.txt"])
def test_the_userland_is_exactly_the_hosts_module(proc):
    gpus = inventory(container=True, proc=proc)
    version = gpus["driver_version"]
    known = with_nvidia(OFFERS_12, "610.43.02", version, "580.65.06")
    made = plan(Wanted(sglang_release=ENGINE), DEBIAN_12, gpus, known)
    assert (made["mode"], made["source"], made["version"]) == ("userland", "nvidia", version)
    assert made["packages"] == [f"nvidia-driver-cuda={version}-1", f"libcuda1={version}-1"]
    assert made["kernels"] == []
    assert made["modules"] is None
    assert made["flavour"] is None
    assert made["initramfs"] is made["persistence"] is made["reboot_required"] is made["reboot_allowed"] is False
    assert made["reboot_allowed_why"] == "a container is not rebooted for a driver"
    assert f"Pin: version {version}-1" in made["pin"]["text"]
    assert [file["path"] for file in made["files"]] == ["/etc/apt/apt.conf.d/60firstlight-gpu-driver"]
    assert steps(made) == ["repository", "pin", "file", "packages", "verify"]


# Pitfall 1: the same major version is not enough.
def test_a_userland_that_no_source_has_is_refused_with_the_versions_and_the_two_ways_out():
    gpus = inventory(container=True, proc=loaded("580.159.03"))
    (problem,) = problems(Wanted(sglang_release=ENGINE), DEBIAN_12, gpus, with_nvidia(OFFERS_12, "590.48.01", "580.173.02"))
    assert problem.code == "no_matching_userland"
    for word in ("580.159.03", "580.173.02", "590.48.01", "NVIDIA-Linux-x86_64-580.159.03.run", "container's host"):
        assert word in problem.text


def test_the_userland_of_a_run_file():
    gpus = inventory(container=True, proc=loaded("580.159.03"))
    made = plan(Wanted(runfile="/root/NVIDIA-Linux-x86_64-580.159.03.run"), DEBIAN_12, gpus, OFFERS_12)
    assert made["source"] == "runfile"
    assert "--no-kernel-modules" in made["runfile"]["arguments"]
    assert (made["runfile"]["url"], made["runfile"]["path"]) == (None, "/root/NVIDIA-Linux-x86_64-580.159.03.run")
    assert "--dkms" not in made["runfile"]["arguments"]
    assert made["packages"] == []
    assert made["pin"] is None
    assert codes(Wanted(runfile="/root/NVIDIA-Linux-x86_64-580.173.02.run"), DEBIAN_12, gpus, OFFERS_12) == ["runfile_does_not_fit"]


def test_an_installed_userland_that_fits_stays_and_one_that_does_not_is_changed():
    gpus = inventory(container=True, proc=loaded("535.309.01"))
    host = dataclasses.replace(DEBIAN_12, packages=installed("535.309.01-0+deb12u1", *USERLAND))
    assert plan(Wanted(), host, gpus, OFFERS_12)["packages"] == []
    other = inventory(container=True, proc=loaded("535.261.03"))
    assert codes(Wanted(), host, other, OFFERS_12) == ["downgrade"]
    made = plan(Wanted(allow_downgrade=True), host, other, OFFERS_12)
    assert made["packages"] == [f"{name}=535.261.03-1" for name in USERLAND]


def test_a_container_never_keeps_a_kernel_module():
    gpus = inventory(container=True, proc=loaded("535.309.01"))
    host = dataclasses.replace(DEBIAN_12, packages=installed("535.309.01-0+deb12u1", *USERLAND, "nvidia-kernel-dkms"))
    made = plan(Wanted(), host, gpus, OFFERS_12)
    assert made["packages_remove"] == ["nvidia-kernel-dkms"]


@pytest.mark.parametrize(
    ("wanted", "code", "words"),
    [
        (Wanted(version="580.95.05"), "version_in_userland_mode", ["535.309.01", "580.95.05"]),
        (Wanted(branch=580), "version_in_userland_mode", ["535.309.01", "580"]),
        (Wanted(sglang_release=ENGINE), "host_driver_too_old", ["580.65.06", "535.309.01", "upgrade the driver there"]),
    ],
)
def test_what_a_container_cannot_ask_for(wanted, code, words):
    gpus = inventory(container=True, proc=loaded("535.309.01"))
    (problem,) = problems(wanted, DEBIAN_12, gpus, OFFERS_12)
    assert problem.code == code
    for word in words:
        assert word in problem.text


def test_rhel_has_no_userland_without_a_module():
    gpus = inventory(container=True, proc=loaded("580.95.05"))
    assert codes(Wanted(), ROCKY, gpus, Offers()) == ["no_matching_userland"]


# Cases C13 and C14


def test_headers_of_the_running_kernel_that_nobody_has_any_more():
    host = dataclasses.replace(DEBIAN_12, kernel="6.1.0-39-amd64", kernel_next=NEXT_12, headers=[NEXT_12])
    (problem,) = problems(Wanted(), host, BARE, OFFERS_12)
    assert problem.code == "headers_missing"
    for word in ("6.1.0-39-amd64", f"those of {NEXT_12}", f"reboot into {NEXT_12} first"):
        assert word in problem.text


def test_a_pending_kernel_gets_headers_and_a_module_too():
    host = dataclasses.replace(DEBIAN_12, kernel_next=NEXT_12)
    made = plan(Wanted(), host, BARE, OFFERS_12)
    assert made["packages"][:2] == [f"linux-headers-{KERNEL_12}", f"linux-headers-{NEXT_12}"]
    assert made["kernels"] == [KERNEL_12, NEXT_12]
    assert any(NEXT_12 in note for note in made["notes"])


def test_headers_that_are_there_are_not_installed_again():
    host = dataclasses.replace(DEBIAN_12, headers=[KERNEL_12], packages=installed("6.1", "linux-headers-amd64"))
    made = plan(Wanted(), host, BARE, OFFERS_12)
    assert not [name for name in made["packages"] if "headers" in name]


# apt upgrades the packages of a source together: the newest linux-headers-amd64 brings the newest linux-image-amd64 (tried out).
@pytest.mark.parametrize(
    ("image", "expected"),
    [("6.1.192-3", "linux-headers-amd64=6.1.192-3"), ("6.1.176-1", "linux-headers-amd64=6.1.176-1"), ("6.1.170-1", None)],
)
def test_headers_of_later_kernels_bring_no_kernel(image, expected):
    host = dataclasses.replace(DEBIAN_12, headers=[KERNEL_12], packages=installed(image, "linux-image-amd64"))
    made = plan(Wanted(), host, BARE, OFFERS_12)
    assert [name for name in made["packages"] if "headers" in name] == ([expected] if expected else [])


def test_proxmox_takes_its_own_headers():
    kernel = "6.8.12-9-pve"
    host = dataclasses.replace(DEBIAN_12, kernel=kernel, kernel_next=kernel, hypervisor=True)
    known = dataclasses.replace(
        OFFERS_12,
        versions={
            "distribution": {
                **OFFERS_12.versions["distribution"],
                f"proxmox-headers-{kernel}": ["6.8.12-9"],
                "proxmox-default-headers": ["1.1"],
            }
        },
    )
    made = plan(Wanted(), host, BARE, known)
    assert made["packages"][:2] == [f"proxmox-headers-{kernel}", "proxmox-default-headers"]


# Case C15.
def test_nouveau_is_kept_out_by_a_reboot_and_never_unloaded():
    gpus = from_lspci("lspci_nnk_nouveau_bound.txt", secure_boot="disabled", modules_loaded=["nouveau"])
    made = plan(Wanted(sglang_release=OLD_ENGINE), DEBIAN_12, gpus, OFFERS_12)
    assert made["reboot_required"]
    assert "nouveau has a GPU" in made["reboot_why"]
    text = made["files"][0]["text"]
    assert "blacklist nouveau" in text
    assert "options nouveau modeset=0" in text
    assert made["initramfs"]
    assert not any("unload" in step["text"] for step in made["steps"])
    assert "load" not in steps(made)
    assert steps(made).index("file") < steps(made).index("initramfs") < steps(made).index("reboot")


# Case C16


def secure(**host):
    return inventory((A6000, "nouveau"), secure_boot="enabled", modules_loaded=["nouveau"], **host)


def test_secure_boot_without_an_enrolled_key_stops_with_the_steps_at_the_console():
    (problem,) = problems(Wanted(), DEBIAN_12, secure(), OFFERS_12)
    assert problem.code == "secure_boot"
    for word in ("dkms generate_mok", "mokutil --import /var/lib/dkms/mok.pub", "Enroll MOK", "console"):
        assert word in problem.text


def test_secure_boot_takes_an_enrolled_key_or_modules_that_the_distribution_signed():
    made = plan(Wanted(), dataclasses.replace(DEBIAN_12, mok_enrolled=True), secure(), OFFERS_12)
    assert made["modules"] == "dkms"
    made = plan(Wanted(sglang_release=ENGINE), UBUNTU, secure(), ubuntu_offers())
    assert (made["source"], made["modules"], made["flavour"]) == ("distribution", "signed", "open")
    assert made["packages"][:2] == ["linux-modules-nvidia-580-server-open-6.8.0-51-generic", "linux-modules-nvidia-580-server-open-generic"]
    assert not any("dkms" in name or "headers" in name for name in made["packages"])
    assert '"linux-(?:image|headers|modules)";' in made["files"][1]["text"], "a kernel waits with its modules"
    (problem,) = problems(Wanted(source="nvidia"), UBUNTU, secure(), ubuntu_offers())
    assert "take source distribution, whose modules are signed" in problem.text
    (problem,) = problems(Wanted(), UBUNTU, secure(), ubuntu_offers(signed=False))
    assert problem.code == "secure_boot"


def test_secure_boot_counts_more_than_the_source_in_use():
    packages = installed("575.57.08-0ubuntu1", "nvidia-dkms-575-open", "libnvidia-compute-575", "nvidia-utils-575")
    host = dataclasses.replace(UBUNTU, packages=packages)
    assert plan(Wanted(sglang_release=ENGINE), host, BARE, ubuntu_offers())["source"] == "nvidia", "the source in use"
    made = plan(Wanted(sglang_release=ENGINE), host, secure(), ubuntu_offers())
    assert (made["source"], made["modules"]) == ("distribution", "signed")
    assert set(made["packages_remove"]) == {package.name for package in packages}


def test_the_enrolment_can_be_prepared_and_touches_nothing_of_the_driver():
    made = plan(Wanted(secure_boot="mok"), DEBIAN_12, secure(), OFFERS_12)
    assert made["mok"]["certificate"] == "/var/lib/dkms/mok.pub"
    assert made["packages"] == ["dkms", "mokutil"]
    assert made["files"] == []
    assert made["pin"] is None
    assert made["reboot_required"]
    assert not made["reboot_allowed"]
    assert set(steps(made)) == {"packages", "mok", "console"}


def test_a_driver_that_works_under_secure_boot_is_no_problem():
    gpus = inventory((A6000, "nvidia"), secure_boot="enabled", proc=loaded("535.309.01", "proprietary"))
    host = dataclasses.replace(DEBIAN_12, packages=WHOLE_12, headers=[KERNEL_12])
    assert plan(Wanted(), host, gpus, OFFERS_12)["packages"] == ["linux-headers-amd64"]


# Case C12


def test_the_fabric_manager_is_of_exactly_the_drivers_version():
    gpus = inventory((H200, None), (H200, None), nvswitches=SWITCHES, secure_boot="disabled")
    known = with_nvidia(OFFERS_12, "580.126.09", "580.95.05")
    made = plan(Wanted(sglang_release=ENGINE), DEBIAN_12, gpus, known)
    assert made["fabric_manager"] == {"package": "nvidia-fabricmanager", "version": "580.126.09"}
    assert made["set"]["nvidia-fabricmanager"] == "580.126.09-1"
    assert "nvidia-fabricmanager" in made["packages"]
    assert "fabric_manager" in steps(made)
    assert plan(Wanted(sglang_release=ENGINE), DEBIAN_12, BARE, known)["fabric_manager"] is None, "no NVSwitch"
    without = plan(Wanted(sglang_release=ENGINE, fabric_manager=False), DEBIAN_12, gpus, known)
    assert "nvidia-fabricmanager" not in without["packages"]


def test_a_fabric_manager_of_another_version_only_is_refused():
    gpus = inventory((H200, None), nvswitches=SWITCHES, secure_boot="disabled")
    known = with_nvidia(OFFERS_12, "580.126.09", managers=["590.48.01"])
    (problem,) = problems(Wanted(sglang_release=ENGINE), DEBIAN_12, gpus, known)
    assert problem.code == "fabric_manager_version"
    for word in ("580.126.09", "590.48.01", "2 NVSwitches"):
        assert word in problem.text


def test_debian_has_no_fabric_manager():
    gpus = inventory((H100, None), nvswitches=SWITCHES, secure_boot="disabled")
    assert codes(Wanted(source="distribution"), DEBIAN_12, gpus, OFFERS_12) == ["no_fabric_manager"]


# Reboot: case D10 and pitfalls 2 and 8


def test_a_module_that_is_installed_and_not_loaded_asks_for_a_reboot_also_when_nothing_changes():
    gpus = inventory((A6000, None), secure_boot="disabled")
    host = dataclasses.replace(
        DEBIAN_12, packages=[*WHOLE_12, *installed("6.1", "linux-headers-amd64")], headers=[KERNEL_12], module_version="535.309.01"
    )
    made = plan(Wanted(reboot="if_required"), host, gpus, OFFERS_12)
    assert made["packages"] == []
    assert (made["reboot_required"], made["reboot_allowed"]) == (True, True)
    assert made["reboot_why"] == "the module 535.309.01 is not loaded"
    assert steps(made).count("reboot") == 1


def test_an_older_module_that_is_loaded_is_no_reason_to_install_again():
    gpus = inventory((A6000, "nvidia"), proc=loaded("535.261.03", "proprietary"), secure_boot="disabled")
    host = dataclasses.replace(DEBIAN_12, packages=WHOLE_12, headers=[KERNEL_12], module_version="535.309.01")
    made = plan(Wanted(), host, gpus, OFFERS_12)
    assert [name for name in made["packages"] if "headers" not in name] == []
    assert made["reboot_required"]
    assert "535.261.03 is loaded" in made["reboot_why"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"local": True}, "Ansible runs on this host itself"),
        ({"hypervisor": True, "guests_running": 3}, "a hypervisor is not rebooted for a driver (guests that run on it: 3)"),
        ({"hypervisor": True}, "a hypervisor is not rebooted"),
        ({"rebooted": True}, "rebooted it once already"),
    ],
)
def test_a_reboot_that_is_asked_for_and_not_allowed(change, why):
    gpus = inventory((A6000, "nouveau"), secure_boot="disabled")
    made = plan(Wanted(reboot="if_required"), dataclasses.replace(DEBIAN_12, **change), gpus, OFFERS_12)
    assert made["reboot_required"]
    assert not made["reboot_allowed"]
    assert why in made["reboot_allowed_why"]
    assert any(why in step["text"] for step in made["steps"])
    free = plan(Wanted(reboot="if_required"), DEBIAN_12, gpus, OFFERS_12)
    assert free["reboot_allowed"]


# Case C32.
def test_a_change_that_waits_for_a_reset_is_noted():
    gpus = inventory((A6000, "nvidia"), proc=loaded("535.309.01", "proprietary"), secure_boot="disabled")
    gpus["gpus"][0].update(ecc_enabled=False, ecc_enabled_pending=True)
    host = dataclasses.replace(DEBIAN_12, packages=WHOLE_12, headers=[KERNEL_12])
    assert any(
        "ECC is off and will be on" in note and "00000000:01:00.0" in note for note in plan(Wanted(), host, gpus, OFFERS_12)["notes"]
    )
    gpus["gpus"][0].update(ecc_enabled=True)
    assert not any("waits" in note for note in plan(Wanted(), host, gpus, OFFERS_12)["notes"])


# The .run file


def test_a_run_file_on_a_host_of_its_own():
    url = "https://mirror.example.org/NVIDIA-Linux-x86_64-580.105.08.run"
    made = plan(Wanted(runfile=url, runfile_sha256="a" * 64, sglang_release=ENGINE), DEBIAN_12, BARE, OFFERS_12)
    assert (made["source"], made["version"], made["modules"], made["flavour"]) == ("runfile", "580.105.08", "runfile", "open")
    assert "--dkms" in made["runfile"]["arguments"]
    assert (made["runfile"]["url"], made["runfile"]["path"]) == (url, "/var/cache/firstlight/NVIDIA-Linux-x86_64-580.105.08.run")
    assert made["packages"] == [f"linux-headers-{KERNEL_12}", "linux-headers-amd64", "dkms", "gcc", "make"]
    old = Wanted(runfile="/root/NVIDIA-Linux-x86_64-550.163.01.run", sglang_release=ENGINE)
    (problem,) = problems(old, DEBIAN_12, BARE, OFFERS_12)
    assert problem.code == "runfile_does_not_fit"
    assert "580.65.06" in problem.text


def test_packages_make_room_for_a_run_file_and_a_run_file_for_nothing_silently():
    host = dataclasses.replace(DEBIAN_12, packages=WHOLE_12, headers=[KERNEL_12])
    made = plan(Wanted(runfile="/root/NVIDIA-Linux-x86_64-580.105.08.run"), host, BARE, OFFERS_12)
    assert "libcuda1" in made["packages_remove"]
    host = dataclasses.replace(DEBIAN_12, nvidia_installer=True)
    (problem,) = problems(Wanted(), host, BARE, OFFERS_12)
    assert problem.code == "driver_of_runfile"
    assert "nvidia-uninstall" in problem.text


def test_a_driver_of_another_origin_stays_where_it_is_good_enough():
    gpus = inventory((H200, "nvidia"), proc="proc_driver_version_h200.txt", secure_boot="disabled")
    made = plan(Wanted(sglang_release=ENGINE), DEBIAN_12, gpus, OFFERS_12)
    assert (made["source"], made["version"], made["packages"], made["pin"]) == (None, "580.159.04", [], None)
    assert any("stays" in note for note in made["notes"])
    runfile = plan(Wanted(sglang_release=ENGINE), dataclasses.replace(DEBIAN_12, nvidia_installer=True), gpus, OFFERS_12)
    assert runfile["source"] == "runfile"
    other = decide(Wanted(source="nvidia", branch=580), dataclasses.replace(DEBIAN_12, nvidia_installer=True), gpus, OFFERS_12)
    assert [problem.code for problem in other.problems] == ["driver_of_runfile"]


def test_a_runfile_that_was_run_and_waits_for_its_reboot_is_not_run_again():
    host = dataclasses.replace(DEBIAN_12, nvidia_installer=True, module_version="580.105.08", module_flavour="open")
    wanted = Wanted(runfile="/root/NVIDIA-Linux-x86_64-580.105.08.run")
    for gpus in (BARE, inventory((A6000, "nouveau"), secure_boot="disabled")):
        made = plan(wanted, host, gpus, OFFERS_12)
        assert (made["runfile"], made["packages"], made["version"], made["reboot_required"]) == (None, [], "580.105.08", True)
    older = plan(wanted, dataclasses.replace(host, module_version="580.95.05"), BARE, OFFERS_12)
    assert older["runfile"]["version"] == "580.105.08"


# Problems


def test_all_problems_at_once():
    host = dataclasses.replace(DEBIAN_12, packages=pkg.packages(sample("dpkg_half.txt")), version="11")
    found = codes(
        Wanted(branch=580, version="580.95.05", flavour="closed", reboot="always", sglang_release="newest"),
        host,
        inventory((P40, None), (RTX_5090, None)),
        OFFERS_12,
    )
    assert found == [
        *("bad_option", "bad_option", "branch_and_version", "bad_release", "broken_packages", "no_common_flavour", "unknown_platform"),
    ]


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (Wanted(mode="gpu"), "bad_option"),
        (Wanted(branch=580, version="580.95.05"), "branch_and_version"),
        (Wanted(branch=58), "bad_branch"),
        (Wanted(version="580.95.05-1"), "bad_version"),
        (Wanted(version="580"), "bad_version"),
        (Wanted(source="runfile"), "runfile_missing"),
        (Wanted(source="nvidia", runfile="/x/NVIDIA-Linux-x86_64-580.105.08.run"), "two_sources"),
        (Wanted(base_url="http://m", runfile="/x/NVIDIA-Linux-x86_64-580.105.08.run"), "two_sources"),
        (Wanted(source="distribution", base_url="http://m"), "url_of_other_source"),
        (Wanted(runfile="/x/driver.run"), "runfile_name"),
        (Wanted(runfile="https://m/NVIDIA-Linux-x86_64-580.105.08.run"), "runfile_checksum"),
        (Wanted(runfile="HTTPS://m/NVIDIA-Linux-x86_64-580.105.08.run"), "runfile_checksum"),
        (Wanted(runfile="/x/NVIDIA-Linux-x86_64-580.105.08.run", runfile_sha256="a" * 63), "runfile_checksum"),
        (Wanted(runfile="/x/NVIDIA-Linux-aarch64-580.105.08.run"), "runfile_machine"),
        (Wanted(runfile="/x/NVIDIA-Linux-x86_64-580.105.08.run", branch=590), "runfile_version"),
        (Wanted(key_url="http://m/key", key_fingerprint="A" * 39), "bad_option"),
        (Wanted(key_url="http://m/key", key_fingerprint="G" * 40), "bad_option"),
        (Wanted(key_url="http://m/key"), "key_without_fingerprint"),
        (Wanted(source="runfile", runfile="/x/NVIDIA-Linux-x86_64-580.105.08.run", base_url="http://m"), "url_of_other_source"),
        (Wanted(source="distribution", key_url="http://m/key", key_fingerprint="A" * 40), "url_of_other_source"),
        (Wanted(runfile="/x/NVIDIA-Linux-x86_64-580.105.08.run", key_url="http://m/key", key_fingerprint="A" * 40), "two_sources"),
        (Wanted(runfile_sha256="a" * 64), "checksum_without_runfile"),
        (Wanted(mode="userland", flavour="open"), "kernel_options_in_userland_mode"),
        (Wanted(mode="userland", fabric_manager=True), "kernel_options_in_userland_mode"),
        (Wanted(mode="userland", persistence=True), "kernel_options_in_userland_mode"),
        (Wanted(mode="userland", secure_boot="mok"), "kernel_options_in_userland_mode"),
        (Wanted(mode="userland", power_limit_w=250), "kernel_options_in_userland_mode"),
        (Wanted(mode="userland", clocks_mhz=[210, 1800]), "kernel_options_in_userland_mode"),
    ],
)
def test_options_that_contradict_each_other(wanted, code):
    assert code in codes(wanted, DEBIAN_12, BARE, OFFERS_12)


# Removal


def test_removal_takes_what_the_role_put_there_and_no_more():
    host = dataclasses.replace(DEBIAN_12, packages=WHOLE_12, module_version="535.309.01")
    made = removal({"packages": ["libcuda1", "nvidia-kernel-dkms", "gone"], "files": ["/etc/apt/preferences.d/x.pref"]}, host)
    assert list(made) == list(PLAN)
    assert made["packages_remove"] == ["libcuda1", "nvidia-kernel-dkms"]
    assert made["files"] == [{"path": "/etc/apt/preferences.d/x.pref", "text": None, "why": "the role wrote it"}]
    assert made["reboot_required"]
    assert removal({}, DEBIAN_12)["steps"] == []


def test_an_empty_plan_is_never_shared():
    plan(Wanted(), DEBIAN_12, BARE, OFFERS_12)["notes"].append("x")
    assert PLAN["notes"] == []
    assert _driver_plan.PLAN["files"] == []


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
    st.builds(
        Wanted,
        required=st.booleans(),
        mode=st.sampled_from(["auto", "kernel", "userland"]),
        source=st.sampled_from(["auto", "distribution", "nvidia", "runfile"]),
        branch=st.sampled_from([None, 470, 535, 550, 580, 590, 777]),
        version=st.sampled_from([None, "535.309.01", "580.95.05", "550.163.01"]),
        flavour=st.sampled_from(["auto", "open", "proprietary"]),
        sglang_release=st.sampled_from([None, ENGINE, OLD_ENGINE]),
        upgrade=st.booleans(),
        allow_downgrade=st.booleans(),
        secure_boot=st.sampled_from(["stop", "mok"]),
        reboot=st.sampled_from(["never", "if_required", "report"]),
        fabric_manager=st.sampled_from([None, True, False]),
        runfile=st.sampled_from([None, "/x/NVIDIA-Linux-x86_64-580.105.08.run"]),
    ),
    st.sampled_from([DEBIAN_12, DEBIAN_13, UBUNTU, ROCKY, dataclasses.replace(DEBIAN_12, packages=WHOLE_12, nvidia_installer=True)]),
    st.lists(
        st.tuples(
            st.sampled_from([A6000, H100, RTX_5090, P40, GT_710, "10de:ffff"]), st.sampled_from([None, "nvidia", "nouveau", "vfio-pci"])
        ),
        max_size=3,
    ),
    st.booleans(),
    st.sampled_from(["", loaded("535.309.01"), loaded("580.95.05"), "NVRM version: garbage"]),
    st.sampled_from([None, "enabled", "disabled", "unsupported"]),
    st.sampled_from([Offers(), OFFERS_12, OFFERS_13, OFFERS_13_NVIDIA, with_nvidia(OFFERS_12, "580.95.05", "590.48.01")]),
)
def test_every_combination_ends_in_a_plan_or_in_sentences(wanted, host, devices, container, proc, secure_boot, known):
    gpus = inventory(*devices, container=container, proc=proc, secure_boot=secure_boot)
    decision = decide(wanted, host, gpus, known)
    assert (decision.plan is None) == bool(decision.problems)
    if decision.plan is None:
        problems(wanted, host, gpus, known)
        return
    made = decision.plan
    assert json.loads(json.dumps(made)) == made
    assert made["mode"] != "kernel" or not container
    if made["mode"] == "userland":
        assert not any("dkms" in name or "headers" in name for name in made["packages"])
        assert not made["reboot_required"]
    if made["reboot_allowed"]:
        assert wanted.reboot == "if_required"
        assert not container
    if made["mode"] == "kernel" and made["flavour"]:
        for device, driver in devices:
            generation = _gpu_inventory._gpu_generations.by_pci_device_id(device)
            if generation and driver != "vfio-pci":
                assert made["flavour"] in generation.kernel_module_flavours
                assert generation.driver_branch_last is None or made["branch"] <= generation.driver_branch_last
    if wanted.version and made["branch"]:
        assert made["version"] == wanted.version


def readme_rows():
    text = (FIXTURES.parents[1] / "roles/gpu_driver/README.md").read_text().partition("## Which driver comes")[2].partition("\n## ")[0]
    for row in re.findall(r"^\| ((?:Debian|Ubuntu|Rocky) .+) \|$", text, re.MULTILINE):
        platforms, releases, *cells = row.split(" | ")
        name, versions = platforms.split(" ", 1)
        yield from ((name, version, releases.split(",")[0].split(" ")[0], cells) for version in versions.split(", "))


@pytest.mark.parametrize("name,version,release,cells", list(readme_rows()))
def test_the_readme_says_which_driver_comes(name, version, release, cells):
    kernel = "6.8.0-50-generic"
    facts = HostFacts(name, version, "x86_64", kernel, kernel, headers=[kernel])
    for cell, gpus in zip(cells, ((A6000, H100), (RTX_5090, RTX_5090), (P40,))):
        made = decide(Wanted(sglang_release=release), facts, inventory(*((gpu, None) for gpu in gpus), secure_boot="disabled"), Offers())
        found = " ".join(str(made.plan[key]) for key in ("source", "branch", "flavour")) if made.plan else made.problems[0].code
        assert found == re.sub(r"refused: `(\w+)`", r"\1", cell)


def test_the_readme_has_rows_for_every_platform():
    assert len(list(readme_rows())) == 7
