"""Section C of the cases from the field, one test each: what the product decides on a case's own input (docs/driver-cases.md)."""

from __future__ import annotations

import dataclasses
import errno
import inspect
import pathlib
import re

import pytest
import yaml
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_modes as modes
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_outcome as outcome
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_packages as pkg
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_sources as src
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_state as state
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_inventory, _gpu_problems, _gpu_smi, _gpu_system
from ansible_collections.firstlight.sglang.plugins.module_utils import _lxc_config as lxc
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_facts import HostFacts, Offers, Wanted
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_plan import decide
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import Reading

ROOT = pathlib.Path(__file__).parents[4]
FIXTURES = ROOT / "tests/fixtures"
TABLE = ROOT / "docs/driver-cases.md"
A6000, H200, RTX_5090, RTX_2080, P40, GTX_1050 = "10de:2230", "10de:2335", "10de:2b85", "10de:1e82", "10de:1b38", "10de:1c81"
KERNEL, NEXT = "6.17.4-generic", "6.17.9-generic"

# Inputs


def sample(name):
    return (FIXTURES / "gpu" / name).read_text(errors="replace")


def apt_sample(name):
    return (FIXTURES / "driver" / name).read_text()


def unite(*readings, container=False, **host):
    system = Reading("system", host={"container": container, "virtualization": "lxc" if container else "none", **host})
    return _gpu_inventory.unite([system, *readings])


def cards(*gpus):
    """(PCI device id, kernel driver) each."""
    found = [
        {"pci_bus_id": f"00000000:{number + 1:02X}:00.0", "pci_device_id": device, "kernel_driver": driver}
        for number, (device, driver) in enumerate(gpus)
    ]
    return Reading("sysfs", gpus=found)


def on_bus(name):
    return _gpu_system.pci_reading("lspci", _gpu_system.lspci_devices(sample(name)))


def loaded(name="proc_driver_version_open.txt"):
    return _gpu_system.proc_reading(sample(name), {})


def said(name, rc):
    """What nvidia-smi said on failing."""
    return _gpu_smi.parse_xml(sample(name), rc)


def found(*readings, log="", container=False, **evidence):
    """What gpu_info finds wrong: {code: problem}."""
    everything = [Reading("system", host={"container": container, "virtualization": "none"}), *readings]
    result = {**_gpu_inventory.unite(everything), "topology": {"indices": [], "matrix": [], "peer_access": [], "source": None}}
    seen = _gpu_problems.Evidence(kernel_findings=_gpu_system.log_findings(log), **evidence)
    return {problem["code"]: problem for problem in _gpu_problems.find(result, everything, seen)}


SOURCES = """Types: deb
URIs: http://deb.debian.org/debian
Suites: {suite} {suite}-updates
Components: {components}
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


def sources(suite, components="main contrib non-free non-free-firmware"):
    return pkg.apt_sources({"debian.sources": SOURCES.format(suite=suite, components=components)})


DEBIAN_12 = HostFacts("Debian", "12.11", "x86_64", "6.1.0-53-amd64", headers=["6.1.0-53-amd64"], sources=sources("bookworm"))
DEBIAN_13 = HostFacts("Debian", "13.1", "x86_64", "6.12.57+deb13-amd64", headers=["6.12.57+deb13-amd64"], sources=sources("trixie"))
UBUNTU = HostFacts("Ubuntu", "24.04", "x86_64", "6.8.0-51-generic", headers=["6.8.0-51-generic"])


def nvidia(*versions, managers=None):
    """NVIDIA's repository for Debian with these versions, as its index was read."""
    names = ("nvidia-driver-cuda", "libcuda1", "nvidia-kernel-open-dkms", "nvidia-kernel-dkms", "nvidia-persistenced")
    index = {name: [f"{version}-1" for version in versions] for name in names}
    index["nvidia-fabricmanager"] = [f"{version}-1" for version in (versions if managers is None else managers)]
    index["linux-headers-amd64"] = ["6.1"]
    return Offers({"nvidia": index, "distribution": {}}, ["nvidia", "distribution"])


def plan(inventory, host=DEBIAN_12, known=None, **wanted):
    decision = decide(Wanted(**wanted), host, inventory, known or nvidia("580.126.09", "580.95.05"))
    assert decision.problems == []
    return decision.plan


def refusals(inventory, host=DEBIAN_12, known=None, **wanted):
    """{code: text} of a decision that makes no plan."""
    decision = decide(Wanted(**wanted), host, inventory, known or nvidia("580.126.09", "580.95.05"))
    assert decision.plan is None
    return {problem.code: problem.text for problem in decision.problems}


def words_in(text, *words):
    assert [word for word in words if word not in text] == [], text


BARE = unite(cards((A6000, None)), secure_boot="disabled")

# Cases


def test_c01_unattended_upgrades_change_one_package_of_the_set():
    name, old, new = re.search(r"Upgrade: (\S+):amd64 \((\S+), (\S+)\)", apt_sample("apt_history_unattended_partial.log")).groups()
    there = pkg.packages(
        f"{name}\t{new}\tii \tnvidia-graphics-drivers-460\nlibnvidia-compute-460\t{old}\tii \tnvidia-graphics-drivers-460\n"
    )
    (problem,) = outcome.set_problems(there, None)
    assert problem.code == "mixed_versions"
    words_in(problem.text, "460.73.01: libnvidia-common-460", "460.56: libnvidia-compute-460")
    kept = plan(BARE, DEBIAN_12, branch=580)
    (drop_in,) = (file for file in kept["files"] if file["path"].startswith("/etc/apt/apt.conf.d/"))
    patterns = re.findall(r'^    "(.*)";$', drop_in["text"], re.MULTILINE)
    family = ("libnvidia-common-460", "nvidia-firmware-580", "linux-modules-nvidia-580-server-generic", "nvidia-fabricmanager-580")
    for one in (*family, "nvidia-fabricmanager", "cuda-drivers", "xserver-xorg-video-nvidia-580", "libcuda1"):
        assert any(re.match(pattern, one) for pattern in patterns), f"{one}: unattended-upgrades would change it"
        assert any(re.fullmatch(glob.replace("*", ".*"), one) for glob in kept["pin"]["text"].split("Package: ")[1].split("\n")[0].split())


def test_c02_the_proprietary_module_on_blackwell():
    broken = [cards(("10de:2c58", "nvidia")), loaded("proc_driver_version_proprietary.txt"), said("smi_err_no_devices.txt", 6)]
    problem = found(*broken, log=sample("dmesg_blackwell_needs_open.txt"))["wrong_module_flavour"]
    words_in(problem["found"] + problem["action"], "needs the open module", "the proprietary one is loaded", "Install the open flavour")
    inventory = unite(on_bus("lspci_nnk_no_driver.txt"), secure_boot="disabled")
    assert plan(inventory)["flavour"] == "open"
    words_in(refusals(inventory, flavour="proprietary")["wrong_flavour"], "expected the open module", "Blackwell")
    there = pkg.packages("nvidia-kernel-dkms\t580.95.05-1\tii \tnvidia\nnvidia-driver-cuda\t580.95.05-1\tii \tnvidia\n")
    swap = plan(inventory, dataclasses.replace(DEBIAN_12, packages=there), branch=580)
    assert swap["packages_remove"] == ["nvidia-kernel-dkms"], "the other flavour goes in the same transaction"
    assert "nvidia-kernel-open-dkms" in swap["packages"]


def test_c03_the_same_rm_init_status_with_the_open_module_is_the_firmware():
    log = "[    5.5] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:884)\n"
    problem = found(cards((RTX_5090, "nvidia")), loaded("proc_driver_version_open.txt"), said("smi_err_no_devices.txt", 6), log=log)
    words_in(problem["no_devices"]["action"], "Above 4G Decoding", "Resizable BAR")
    assert "flavour" not in problem["no_devices"]["action"]
    unknown = found(
        cards(("10de:ffff", "nvidia")), loaded("proc_driver_version_proprietary.txt"), said("smi_err_no_devices.txt", 6), log=log
    )
    assert unknown["no_devices"]["action"] == "Install the open flavour of the driver."
    old = found(cards((A6000, "nvidia")), loaded("proc_driver_version_proprietary.txt"), said("smi_err_no_devices.txt", 6), log=log)
    words_in(old["no_devices"]["action"], "Above 4G Decoding")


def test_c04_a_branch_that_ignores_the_gpu_and_two_gpus_without_a_common_driver():
    driver = Reading("proc", host={"driver_version": "595.71.05", "driver_flavour": "proprietary"})
    problem = found(
        cards((GTX_1050, "nvidia")),
        driver,
        said("smi_err_no_devices.txt", 6),
        log=sample("dmesg_595_ignores_pascal_legacy580.txt"),
    )
    words_in(problem["driver_branch_too_new"]["found"], "Pascal", "last branch is 580", "595.71.05")
    pascal = unite(cards((P40, None)), secure_boot="disabled")
    words_in(refusals(pascal, branch=595)["does_not_fit"], "branch 580 at most", "branch 595 asked for")
    both = refusals(unite(cards((P40, None), (RTX_5090, None)), secure_boot="disabled"))
    words_in(both["no_common_flavour"], "Pascal", "Blackwell", "needs the proprietary one", "needs the open one")


@pytest.mark.parametrize(
    ("device", "outcome_of"),
    [("10de:128b", "last branch is 470"), ("10de:1d10", "proprietary"), ("10de:2330", "open"), ("10de:ffff", "gpu_driver_flavour")],
)
def test_c06_the_generation_is_the_devices_and_an_unknown_one_is_asked_for(device, outcome_of):
    inventory = unite(cards((device, None)), secure_boot="disabled")
    if outcome_of in ("open", "proprietary"):
        assert plan(inventory)["flavour"] == outcome_of
    else:
        told = refusals(inventory, sglang_release="0.5.23")
        words_in(" ".join(told.values()), outcome_of)
        assert {"gpu_driver_flavour": "unknown_gpu", "last branch is 470": "gpu_too_old"}[outcome_of] in told


def test_c07_the_keyring_package_has_the_repository_already():
    url = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64"
    keyring = pkg.AptSource(
        "/etc/apt/sources.list.d/cuda-debian12-x86_64.list", ("deb",), (f"{url}/",), ("/",), (), "/usr/share/keyrings/cuda.gpg", False
    )
    made = plan(BARE, dataclasses.replace(DEBIAN_12, sources=[*DEBIAN_12.sources, keyring]), source="nvidia")
    assert made["repository"]["present"] == keyring.path
    assert "repository" not in [step["step"] for step in made["steps"]], "it is never added a second time"
    assert not any("keyring" in name for name in made["packages"]), "no keyring package, so none of another version"
    error = pkg.apt_error(apt_sample("apt2_conflicting_signed_by.txt"))
    assert error.code == "sources_conflict"
    words_in(error.action, "cuda-keyring")


def test_c08_a_key_that_is_bound_by_sha1():
    error = pkg.apt_error(apt_sample("apt_sqv_sha1_error.txt"))
    assert error.code == "key_sha1"
    words_in(error.found + error.action, "EB693B3035CD5710E231E123A4B469963BF863CC", "debian13", "never mark a repository as trusted")
    soon = pkg.apt_warning("W: https://x.example.org/debian12/InRelease: Policy will reject signature within a year, see --audit\n")
    assert soon.code == "key_sha1_soon"
    thirteen = src.platform("Debian", "13.1", "x86_64")
    repository = src.nvidia_repository(thirteen)
    assert (repository.directory, repository.key.file) == ("debian13", "8793F200.pub")  # its new key, which apt takes
    trusted = pkg.AptSource("x.list", ("deb",), (f"{src.NVIDIA_BASE_URL}/debian12/x86_64/",), ("/",), (), "", True)
    told = refusals(BARE, dataclasses.replace(DEBIAN_12, sources=[*DEBIAN_12.sources, trusted]), source="nvidia")
    words_in(told["trusted_repository"], "trusted=yes", "x.list")


def test_c10_two_origins_and_packages_that_do_not_fit_together():
    policy = (
        "nvidia-utils-580:\n  Installed: (none)\n  Candidate: 580.126.09-1\n  Version table:\n     580.126.09-1 600\n"
        f"        600 {src.NVIDIA_BASE_URL}/ubuntu2404/x86_64  Packages\n     580.95.05-0ubuntu0.24.04.1 500\n"
        "        500 http://archive.ubuntu.com/ubuntu noble-updates/restricted amd64 Packages\n"
    )
    error = pkg.apt_error("E: Unable to correct problems, you have held broken packages.\n", pkg.policies(policy))
    assert error.code == "held_broken"
    words_in(error.found, "580.126.09-1 of priority 600", "580.95.05-0ubuntu0.24.04.1 of priority 500")
    there = "".join(f"{name}\t535.309.01-1\tii \tnvidia-graphics-drivers\n" for name in ("nvidia-kernel-dkms", "libcuda1", "nvidia-smi"))
    made = plan(BARE, dataclasses.replace(DEBIAN_12, packages=pkg.packages(there)), source="nvidia", branch=580)
    assert {"libcuda1", "nvidia-driver-cuda"} <= set(made["packages"]), "what has another version changes with the rest"
    assert {"nvidia-kernel-dkms", "nvidia-smi"} == set(made["packages_remove"]), "what the source has not goes in the same call"


def test_c12_the_fabric_manager_is_of_exactly_the_drivers_version():
    told = re.search(r"interface version (\S+) don't match with driver version (\S+)\.", apt_sample("fabricmanager_mismatch_journal.txt"))
    (problem,) = outcome.fabric_manager_problems(told[2], f"{told[1]}-1")
    assert problem.code == "fabric_manager_version"
    words_in(problem.text, "expected a fabric manager of 580.126.09", "found 590.48.01")
    lspci = "".join(f"0{bus}:00.0 Bridge [0680]: NVIDIA Corporation GH100 [H100 NVSwitch] [10de:22a3] (rev a1)\n" for bus in (5, 6))
    reading = _gpu_system.pci_reading("lspci", _gpu_system.lspci_devices(lspci))
    switched = unite(dataclasses.replace(reading, gpus=cards((H200, None)).gpus), secure_boot="disabled")
    assert len(switched["nvswitches"]) == 2
    made = plan(switched)
    assert made["fabric_manager"] == {"package": "nvidia-fabricmanager", "version": made["version"]}
    words_in(refusals(switched, known=nvidia("580.126.09", managers=["590.48.01"]))["fabric_manager_version"], "2 NVSwitches", "590.48.01")
    # Without a switch on the bus the state of the fabric decides, and a guest's manager runs where the switches are.
    waiting = unite(cards((H200, None)), secure_boot="disabled") | {"fabric_state": "in_progress"}
    assert plan(waiting)["fabric_manager"] == {"package": "nvidia-fabricmanager", "version": "580.126.09"}
    assert plan(waiting | {"virtualization": "kvm"})["fabric_manager"] is None
    assert plan(BARE)["fabric_manager"] is None
    problem = found(Reading("nvml", gpus=[{"index": 0, "fabric_state": "in_progress", "pci_bus_id": "00000000:01:00.0"}]))
    words_in(problem["fabric_not_ready"]["found"], "802")


def test_c13_dkms_fails_for_the_kernel_that_boots_next():
    builds = _gpu_system.dkms_status(f"nvidia/580.119.02, {KERNEL}, x86_64: installed\n")
    paths = [f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko.zst"]
    (problem,) = outcome.module_problems([KERNEL, NEXT], paths, builds, sample("apt_dkms_postinst_fail.txt"))
    assert problem.code == "module_missing"
    words_in(problem.text, f"kernel {NEXT}, found none", f"DKMS has it for {KERNEL}", "Bad return status for module build")
    assert pkg.apt_error(sample("apt_dkms_postinst_fail.txt")).code == "script_failed"
    broken = pkg.packages("nvidia-dkms-580-open\t580.119.02\tiF \tnvidia\n")
    told = refusals(BARE, dataclasses.replace(DEBIAN_12, packages=broken))
    words_in(told["broken_packages"], "nvidia-dkms-580-open is half-configured", "dpkg --configure -a")
    both = plan(BARE, dataclasses.replace(DEBIAN_12, kernel_next="6.1.0-57-amd64", headers=["6.1.0-53-amd64", "6.1.0-57-amd64"]))
    assert both["kernels"] == ["6.1.0-53-amd64", "6.1.0-57-amd64"]
    names = src.names(src.platform("Ubuntu", "24.04", "x86_64"), "distribution", "open", 580, "6.8.0-51-generic")
    packages = (*names.signed, *names.module, *names.userland, *names.persistence)
    built = Offers({"distribution": {name: ["580.95.05-0ubuntu1"] for name in packages}}, ["distribution"])
    assert plan(BARE, UBUNTU, built, branch=580)["modules"] == "signed", "modules that the distribution has built come first"


def test_c14_dkms_skips_a_kernel_without_headers_and_ends_well():
    kernel = "6.1.0-39-amd64"
    (problem,) = outcome.module_problems([kernel], [], [], sample("dkms_headers_skipped.txt"))
    assert problem.code == "module_missing"
    words_in(problem.text, kernel, "headers", "dkms autoinstall")
    pve = HostFacts("debian", "12", "x86_64", "6.8.12-4-pve", kernel_next="6.8.12-9-pve", headers=["6.8.12-9-pve"])
    pve = dataclasses.replace(pve, sources=sources("bookworm"))
    told = refusals(BARE, pve)
    words_in(told["headers_missing"], "proxmox-headers-6.8.12-4-pve in no package source", "reboot into 6.8.12-9-pve first")
    where = src.platform("debian", "12", "x86_64")
    assert src.headers(where, "6.8.12-4-pve").running == ("proxmox-headers-6.8.12-4-pve", "pve-headers-6.8.12-4-pve")


def test_c15_nouveau_has_the_gpu():
    problem = found(on_bus("lspci_nnk_nouveau_bound.txt"), log=sample("dmesg_nouveau_owns_device.txt"))["nouveau_bound"]
    words_in(problem["action"], "Blacklist nouveau", "initramfs", "reboot")
    inventory = unite(on_bus("lspci_nnk_nouveau_bound.txt"), secure_boot="disabled")
    made = plan(inventory, reboot="if_required")
    (file,) = (file for file in made["files"] if file["path"].startswith("/etc/modprobe.d/"))
    words_in(file["text"], "blacklist nouveau\n")
    assert (made["initramfs"], made["reboot_required"]) == (True, True)
    words_in(made["reboot_why"], "nouveau has a GPU")
    assert not [step for step in made["steps"] if re.search("unload|rmmod|modprobe -r", step["text"])], "nothing is unloaded"
    again = plan(unite(cards((A6000, "nvidia")), loaded(), secure_boot="disabled"))
    assert not again["reboot_required"]


def test_c16_secure_boot_refuses_the_key():
    refused = found(on_bus("lspci_nnk_no_driver.txt"), log=sample("modprobe_key_rejected.txt"))["secure_boot_refused"]
    words_in(refused["found"] + refused["action"], "Key was rejected by service", "mokutil --import", "console")
    texts = {
        "SecureBoot enabled\n": "enabled",
        "SecureBoot disabled\n": "disabled",
        "EFI variables are not supported on this system\n": "not_supported",
    }
    states = {text: _gpu_system.secure_boot(efi=None, mokutil=text) for text in texts}
    assert [states["SecureBoot enabled\n"], states["SecureBoot disabled\n"]] == ["enabled", "disabled"]
    assert states["EFI variables are not supported on this system\n"] != "enabled"
    locked = unite(cards((A6000, "nouveau")), secure_boot="enabled")
    told = refusals(locked)
    words_in(told["secure_boot"], "mokutil --import", "Enroll MOK", "reboot with a keyboard and a screen")
    prepared = plan(locked, secure_boot="mok")
    assert prepared["files"] == [], "nouveau stays until the key is known"
    assert plan(locked, dataclasses.replace(DEBIAN_12, mok_enrolled=True))["packages"]


def test_c17_nvidia_uvm_is_missing_after_a_boot_or_is_no_device():
    good = _gpu_system.listed_nodes(sample("ls_dev_nvidia_full.txt"))
    missing = _gpu_system.listed_nodes(sample("ls_dev_nvidia_no_uvm.txt"))
    empty = _gpu_system.listed_nodes("-rw-r--r-- 1 root root 0 /dev/nvidia-uvm\n")
    card = Reading("nvml", gpus=[{"index": 0, "pci_bus_id": "00000000:01:00.0", "name": "NVIDIA RTX A6000"}])

    def nodes(listed):
        return found(card, Reading("dev", host={"device_nodes": listed}))

    assert "uvm_missing" not in nodes(good)
    words_in(nodes(missing)["uvm_missing"]["found"], "does not exist", "CUDA does not")
    words_in(nodes(empty)["uvm_missing"]["found"], "no device but a file")
    (problem,) = state.device_problems({"/dev/nvidia-uvm": errno.ENOENT}, unite(card), "sglang")
    words_in(problem.text, "the user sglang can open /dev/nvidia-uvm", "nvidia-modprobe -c 0 -u")
    unit = (ROOT / "roles/gpu_driver/templates/firstlight-nvidia-uvm.service.j2").read_text()
    words_in(
        unit, "modprobe -a nvidia nvidia-uvm", "nvidia-modprobe -c 0 -u", "Before=nvidia-persistenced.service {{ gpu_driver_before_units"
    )
    defaults = yaml.safe_load((ROOT / "roles/gpu_driver/defaults/main.yml").read_text())
    words_in(defaults["gpu_driver_before_units"], "pve-guests.service")


def lxc_choice(majors, *gpus):
    listed = (
        ("nvidia0", "nvidia", 0),
        ("nvidiactl", "nvidia", 255),
        ("nvidia-uvm", "nvidia-uvm", 0),
        ("nvidia-uvm-tools", "nvidia-uvm", 1),
    )
    nodes = [
        {"path": f"/dev/{name}", "kind": "character", "major": majors[driver], "minor": minor, "mode": "0666", "accessible": True}
        for name, driver, minor in listed
    ]
    card = {"index": 0, "minor_number": 0, "uuid": "GPU-00000000-0000-4000-8000-000000000000", "name": "NVIDIA RTX A6000"}
    card |= {"pci_bus_id": "00000000:01:00.0", "kernel_driver": "nvidia", "health": "ok", "mig_enabled": None}
    choice = lxc.choose_nodes({"gpus": [card], "device_nodes": nodes, "device_majors": majors}, gpus or ["0"])
    assert choice.problems == []
    return choice.nodes


def lxc_plan(text, majors, style):
    made = lxc.plan(lxc.parse(text), lxc_choice(majors), lxc.Host(majors, {1, 226, 237}), style=style)
    assert made.problems == []
    return made


def test_c18_dynamic_majors_change_and_only_their_two_lines_follow():
    before = _gpu_system.device_majors(sample("proc_devices_511_236.txt"))
    assert [before[name] for name in ("nvidia", "nvidia-uvm", "nvidia-caps")] == [195, 511, 236]
    majors = {"nvidia": 195, "nvidia-uvm": 508, "nvidia-caps": 239}
    text = sample("lxc_conf_stale_major.conf")
    after = lxc.render(lxc_plan(text, majors, "raw").result)
    changed = [(old, new) for old, new in zip(text.splitlines(), after.splitlines(), strict=True) if old != new]
    assert [(old.split()[2], new.split()[2]) for old, new in changed] == [("511:*", "508:*"), ("236:*", "239:*")]
    assert lxc.render(lxc_plan(after, majors, "raw").result) == after


def test_c19_lines_come_before_the_first_snapshot():
    text = sample("lxc_conf_with_snapshot_section.conf")
    now, _heading, snapshots = text.partition("\n[snap1]")
    after = lxc.render(lxc_plan(text, {"nvidia": 195, "nvidia-uvm": 511}, "raw").result)
    assert after.startswith(now)
    assert after.endswith(f"\n[snap1]{snapshots}")
    words_in(after[len(now) : -len(snapshots)], "lxc.mount.entry: /dev/nvidia0", "lxc.cgroup2.devices.allow: c 511:0 rw")


def test_c21_device_entries_leave_foreign_numbers_alone():
    made = lxc_plan("dev0: /dev/ttyUSB0\n", {"nvidia": 195, "nvidia-uvm": 511}, "dev")
    assert made.delete_devices == []
    assert made.set_devices == {
        f"dev{number}": f"/dev/{name},mode=0666"
        for number, name in enumerate(("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"), start=1)
    }


def test_c22_the_containers_userland_is_exactly_the_hosts_module():
    (finding,) = _gpu_system.log_findings(sample("dmesg_api_mismatch.txt"))
    assert finding.code == "api_mismatch"
    assert finding.details == {"client_version": "570.148.08", "module_version": "570.148.06"}
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\n"
    inside = unite(_gpu_system.proc_reading(version, {}), container=True)
    told = refusals(inside, known=nvidia("580.173.02"))["no_matching_userland"]
    words_in(told, "expected the userland 580.159.03", "580.173.02", "gpu_driver_runfile", "without its kernel module")
    made = plan(inside, known=nvidia("580.159.03", "580.173.02"))
    assert (made["mode"], made["version"], made["kernels"], made["persistence"]) == ("userland", "580.159.03", [], False)
    assert not made["reboot_required"]
    assert not [name for name in made["packages"] if re.search("dkms|kernel|persistenced", name)]
    problem = found(loaded(), said("smi_err_nvml_mismatch.txt", 18), container=True)["driver_library_mismatch"]
    assert "eboot" not in problem["action"], "a container is not rebooted for it"


def test_c23_what_root_can_open_the_service_user_may_not():
    said_nothing = found(loaded(), said("smi_err_no_devices.txt", 6), container=True)["no_devices"]
    words_in(said_nothing["found"] + said_nothing["action"], "gives this container no GPU", "let it open them")
    inside = unite(loaded(), container=True, device_nodes=_gpu_system.listed_nodes("crw-rw---- 1 root video 195, 0 Jan 1 /dev/nvidia0\n"))
    assert state.device_paths(inside) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"]
    (problem,) = state.device_problems({"/dev/nvidiactl": 0, "/dev/nvidia0": errno.EACCES}, inside, "sglang")
    assert problem.code == "device_eacces"
    words_in(problem.text, "the user sglang can open /dev/nvidia0", "EACCES", "0666")
    assert state.device_problems({"/dev/nvidia0": 0}, inside, "sglang") == []
    last_look = yaml.safe_load((ROOT / "roles/gpu_driver/tasks/after.yml").read_text())[1]
    words_in(last_look["firstlight.sglang.gpu_driver_info"]["device_user"], "gpu_driver_device_user")
    assert yaml.safe_load((ROOT / "roles/gpu_driver/defaults/main.yml").read_text())["gpu_driver_device_user"] != "root"


def test_c24_vfio_has_a_gpu():
    guest = on_bus("lspci_nnk_vfio_turing_4_functions.txt")
    problems = found(guest, said("smi_err_no_devices.txt", 6), log=sample("dmesg_vfio_bound.txt"))
    assert {code: problem["severity"] for code, problem in problems.items()} == {"passed_through": "info"}
    alone = unite(guest, secure_boot="disabled")
    words_in(refusals(alone)["no_gpu"], "handed to guests")
    assert plan(alone, required=False)["mode"] == "none"
    mixed = unite(dataclasses.replace(guest, gpus=[*guest.gpus, *cards((A6000, None)).gpus]), secure_boot="disabled")
    made = plan(mixed)
    assert (made["mode"], len(made["left_alone"])) == ("kernel", 1)
    assert not made["reboot_required"], "vfio is no driver that has to go"


def test_c25_the_power_limit_is_set_after_the_daemon_and_read_back():
    """Order, -pm first, by UUID, read back: tests/unit/roles/test_gpu_driver_settings.py runs it."""
    unit = (ROOT / "roles/gpu_driver/templates/firstlight-nvidia-power.service.j2").read_text()
    assert re.search(r"^After=.*nvidia-persistenced\.service", unit, re.MULTILINE)
    assert "Type=oneshot" in unit
    script = (ROOT / "roles/gpu_driver/files/firstlight-nvidia-power").read_text()
    assert (
        script.index("nvidia-smi -pm 1")
        < script.index('-pl "$watts"')
        < script.index("--query-gpu=power.limit --format=csv,noheader,nounits)\n")
    )
    card = {"index": 0, "name": "NVIDIA RTX A6000", "power_limit_w": 300.0, "power_limit_min_w": 100.0, "power_limit_max_w": 300.0}
    other = {**card, "index": 1, "power_limit_w": 250.0}
    inventory = unite(Reading("nvml", gpus=[card, other]))
    (problem,) = state.power_read_back(inventory, 250)
    assert problem.code == "power_limit_not_taken"
    words_in(problem.text, "250 W", "found 300 W")
    (problem,) = state.power_problems(inventory, 90, None)
    words_in(problem.text, "100 to 300 W", "found 90")


def test_c26_installed_and_enabled_is_no_success_when_the_driver_answers_for_no_gpu():
    readings = [cards((A6000, "nvidia")), loaded(), said("smi_err_no_devices.txt", 6)]
    inventory = unite(*readings) | {"problems": list(found(*readings).values())}
    (problem,) = state.answer_problems(inventory)
    assert problem.code == "no_usable_gpu"
    words_in(problem.text, "expected that the driver serves a GPU", "serves none of")
    well = unite(Reading("nvml", gpus=[{"index": 0, "pci_bus_id": "00000000:01:00.0", "name": "NVIDIA RTX A6000"}]))
    assert state.answer_problems(well) == []


def test_c27_a_lost_gpu_is_told_and_a_host_is_rebooted_once_at_most():
    log = sample("dmesg_xid79_xid119.txt")
    lost = _gpu_smi.parse_csv(sample("smi_query_610_one_of_four_lost.csv"))
    problem = found(lost, log=log)["gpu_lost"]
    words_in(problem["action"], "Power the machine off and on", "a warm reboot may not be enough", "still refuse new processes")
    wanted = Wanted(reboot="if_required")
    assert outcome.reboot_allowed(wanted, DEBIAN_12, False) == (True, "")
    assert outcome.reboot_allowed(wanted, dataclasses.replace(DEBIAN_12, rebooted=True), False) == (
        False,
        "this run has rebooted it once already",
    )


@pytest.mark.parametrize(
    ("word", "action", "advice"),
    [
        ("None", "none", None),
        ("Reset", "reset", "reset it (nvidia-smi --gpu-reset)"),
        ("Reboot", "reboot", "Reboot the machine, once"),
        ("Drain P2P", "drain_p2p", "together with other GPUs"),
        ("Drain and Reset", "drain_and_reset", "no new work"),
        ("Replace Board", "replace_board", "manual of nvidia-smi"),
    ],
)
def test_c28_what_the_driver_asks_for_is_told_and_an_unknown_word_kept(word, action, advice):
    xml = sample("smi_h200_qx.xml").replace("<gpu_recovery_action>None<", f"<gpu_recovery_action>{word}<")
    reading = _gpu_smi.parse_xml(xml)
    assert reading.gpus[0]["recovery_action"] == action
    told = [one for code, one in found(reading).items() if code in ("gpu_needs_reset", "recovery_action")]
    assert [advice in one["action"] for one in told] == ([] if advice is None else [True])
    (finding,) = _gpu_system.log_findings(
        "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)\n"
    )
    assert finding.details["recovery_action"] == "reboot"


def tasks_of(path):
    for task in yaml.safe_load(path.read_text()) or []:
        yield task
        yield from task.get("block", ())


def test_c29_systemd_is_told_to_read_units_only_when_one_has_changed():
    """A daemon-reload takes the GPUs from running containers. That a second run makes none: test_proxmox.py and test_sglang_service.py."""
    seen = 0
    for path in sorted(ROOT.glob("roles/*/tasks/*.yml")):
        for task in tasks_of(path):
            reload = task.get("ansible.builtin.systemd_service", {}).get("daemon_reload", False)
            if reload is False:
                continue
            seen += 1
            condition = f"{task.get('when', '')} {reload}"
            assert re.search(r" is changed|\.stat\.exists", condition), f"{path}: {task['name']}"
    assert seen >= 3
    module = (ROOT / "plugins/modules/sglang_service.py").read_text()
    assert 'if outdated:\n            host.systemctl("daemon-reload")' in module


def test_c30_packages_and_no_gpu():
    blank = unite(Reading("lspci"), said("smi_err_driver_not_loaded.txt", 9))
    assert (blank["gpus"], blank["driver_version"]) == ([], None)
    assert found(said("smi_err_driver_not_loaded.txt", 9)) == {}
    idle = plan(blank, required=False)
    assert (idle["mode"], idle["steps"], idle["reason"]) == ("none", [], "there is no NVIDIA GPU on the PCI bus")
    words_in(refusals(blank)["no_gpu"], "gpu_driver_required: false")


@pytest.mark.parametrize(
    ("facts", "directory"),
    [
        (("Debian", "12.5", "x86_64"), "debian12/x86_64"),
        (("Debian", "13.1", "x86_64"), "debian13/x86_64"),
        (("Ubuntu", "24.04", "aarch64"), "ubuntu2404/sbsa"),
    ],
)
def test_c31_directories_components_and_names(facts, directory):
    repository = src.nvidia_repository(src.platform(*facts))
    assert src.repository_url(repository).endswith(f"/compute/cuda/repos/{directory}")
    lacking = dataclasses.replace(DEBIAN_12, sources=sources("bookworm", "main"))
    added = plan(BARE, lacking, Offers({}, []), source="distribution", branch=535)["components"]
    words_in(added["text"], "Components: contrib non-free non-free-firmware", "Suites: bookworm bookworm-updates")
    one_line = pkg.apt_sources({"sources.list": "deb http://deb.debian.org/debian bookworm main\n"})
    (entry,) = pkg.missing_components(one_line, ("contrib", "non-free", "non-free-firmware"), "debian")
    assert entry.components == ("contrib", "non-free", "non-free-firmware")
    names = src.names(src.platform("Ubuntu", "24.04", "x86_64"), "distribution", "open", 580, "6.8.0-51-generic")
    assert names.userland == ("libnvidia-compute-580-server", "nvidia-utils-580-server"), "nothing that pulls a display in"
    assert pkg.apt_error(apt_sample("apt2_missing_component.txt")).code == "package_missing"


def test_c32_a_change_of_ecc_or_mig_waits_for_a_reset():
    xml = sample("smi_mig_a100_v11.xml").replace("<current_ecc>Enabled<", "<current_ecc>Disabled<")
    inventory = unite(_gpu_smi.parse_xml(xml))
    (waiting,) = modes.pending(inventory)
    words_in(waiting, "ECC is off and will be on", "A100")
    assert modes.changes(modes.Modes(ecc=True), inventory) == [], "it is on its way"
    inventory["gpus"][0]["processes"] = [{"pid": 1, "unit": "sglang-main.service"}]
    words_in(modes.notes(inventory, [])[0], "sglang-main.service", "sized for its present ECC mode")
    problem = found(_gpu_smi.parse_xml(xml))["ecc_change_pending"]
    words_in(problem["found"] + problem["action"], "the memory", "before something is sized for it")
    rows = sample("smi_h200_qx.xml").replace("<remapped_row_pending>No<", "<remapped_row_pending>Yes<")
    words_in(modes.pending(unite(_gpu_smi.parse_xml(rows)))[0], "bad memory is to be set aside")


# The table that a reader sees


def test_every_case_is_in_the_table_and_has_a_test():
    rows = re.findall(r"^\| (C\d\d) \|", TABLE.read_text(), re.MULTILINE)
    tests = sorted({name[5:8].upper() for name in globals() if re.match(r"test_c\d\d_", name)})
    assert rows == tests
    assert len(rows) == 28


def test_every_code_in_the_table_is_one_that_its_test_asks_for():
    rows = re.findall(r"^\| (C\d\d) \|[^|]*\|[^|]*\|([^|]*)\|", TABLE.read_text(), re.MULTILINE)
    source = {name[5:8].upper(): inspect.getsource(value) for name, value in globals().items() if re.match(r"test_c\d\d_", name)}
    missing = [(case, code) for case, codes in rows for code in re.findall(r"`(\w+)`", codes) if f'"{code}"' not in source[case]]
    assert missing == []
    assert sum(bool(codes.strip()) for _case, codes in rows) == 24
