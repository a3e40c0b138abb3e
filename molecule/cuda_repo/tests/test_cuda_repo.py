"""The role and NVIDIA's repository: small packages with its names, served on the container itself (tests/doubles/cuda_repo/build.py).

It begins where Molecule's converge ends, with a pinned driver on a host with NVSwitches, and ends on a blank host. The tests go in order.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import time

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[3]
SSH_CONFIG = ROOT / ".cache/hosts/cuda-repo/ssh_config"
URL = "http://127.0.0.1:8071"
PLACES = "/etc/apt /etc/modprobe.d /etc/systemd/system /usr/share/keyrings /var/lib/firstlight"
PINNED, NEXT, NEWEST = "590.48.01", "595.58.03", "610.43.02"
SET = {
    *("firmware-nvidia-gsp", "libcuda1", "libnvidia-ml1", "libnvidia-nvvm4", "libnvidia-ptxjitcompiler1", "nvidia-driver-cuda"),
    *("nvidia-fabricmanager", "nvidia-kernel-open-dkms", "nvidia-kernel-support", "nvidia-modprobe", "nvidia-persistenced"),
}
# Holds what apt-get install waits for, and what apt-get update does not wait for.
HOLD = """
import fcntl, sys, time
held = [open(path, "w") for path in ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/lib/apt/lists/lock")]
for one in held:
    fcntl.lockf(one, fcntl.LOCK_EX)
time.sleep(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def fingerprints(host):
    return json.loads(host.check_output("cat /srv/cuda-repo/fingerprints.json"))


@pytest.fixture(scope="module")
def command(tmp_path_factory, fingerprints):
    """The command line that runs the role, once for each case: each is a host of the inventory, with variables of its own."""
    directory = tmp_path_factory.mktemp("role")
    (directory / "play.yml").write_text(
        yaml.safe_dump([{"hosts": "all", "become": True, "gather_facts": False, "roles": ["firstlight.sglang.gpu_driver"]}])
    )
    common = {
        "ansible_host": "cuda",
        "ansible_ssh_common_args": f"-F {SSH_CONFIG}",
        "gpu_inventory_root": "/srv/gpu-host",
        "gpu_driver_base_url": f"{URL}/good",
        "gpu_driver_key_url": f"{URL}/good/key.asc",
        "gpu_driver_key_fingerprint": fingerprints["good"],
        "gpu_driver_device_user": None,
    }

    def write(cases, *options):
        hosts = {name: {**common, **variables} for name, variables in cases.items()}
        (directory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
        # An SSH server drops some of more than ten logins at once.
        return [ROOT / ".venv/bin/ansible-playbook", "--forks", "4", "-i", directory / "hosts.yml", directory / "play.yml", *options]

    return write


@pytest.fixture(scope="module")
def run(command):
    """case -> (what it ended with, what it said): the recap's numbers, and the message of the failure or the steps of a check run."""

    without_molecule = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}  # it asks for colours

    def ask(cases, *options):
        done = subprocess.run(
            command(cases, *options),
            cwd=ROOT,
            env={**without_molecule, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        said = {name: [] for name in cases}
        for found in re.finditer(r"^(?:fatal|ok): \[(\w+)\](?:: FAILED!)? => (?=\{)", done.stdout, re.MULTILINE):
            message = json.JSONDecoder().raw_decode(done.stdout, found.end())[0].get("msg", "")
            said[found[1]] += message if isinstance(message, list) else [str(message)]
        recap = {
            name: {key: int(number) for key, number in re.findall(r"(\w+)=(\d+)", rest)}
            for name, rest in re.findall(r"^(\w+) +: (ok=.*)$", done.stdout, re.MULTILINE)
        }
        assert set(recap) == set(cases), done.stdout + done.stderr
        return {name: (recap[name], "\n".join(said[name]) or done.stdout) for name in cases}

    return ask


@pytest.fixture(scope="module")
def converge(run):
    """Run one case to a good end; how much it changed."""

    def one(*options, **variables):
        recap, said = run({"cuda": variables}, *options)["cuda"]
        assert recap["failed"] == 0, said
        return recap["changed"]

    return one


@pytest.fixture(scope="module")
def refuse(run, host):
    """Run cases that all end with a message before anything is touched; the messages."""

    def all_of(cases):
        before = snapshot(host)
        told = {}
        for name, (recap, said) in run(cases).items():
            assert recap["failed"] == 1, f"{name}: {said}"
            assert recap["changed"] == 0, f"{name}: {said}"
            assert "nothing was changed; to mend first" in said, f"{name}: {said}"
            told[name] = said
        assert snapshot(host) == before
        return told

    return all_of


def snapshot(host):
    """What a run could have changed: files, packages with their states, holds."""
    return [
        host.check_output(f"find {PLACES} -type f -exec sha256sum {{}} + | sort"),
        host.check_output("dpkg-query -W -f='${binary:Package} ${Version} ${db:Status-Abbrev}\\n'"),
        host.check_output("ls /var/lib/apt/lists"),
    ]


def wait_until(true, timeout_s=120):
    until = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < until, f"not so after {timeout_s} s"
        time.sleep(0.5)


def installed(host):
    """NVIDIA's packages that are in order: name -> version."""
    listed = host.check_output("dpkg-query -W -f='${Package} ${Version} ${db:Status-Abbrev}\\n'").splitlines()
    rows = [line.split() for line in listed]
    return {name: version for name, version, status in rows if status == "ii" and re.match(r"(lib)?nvidia-|libcuda1|firmware-nvidia", name)}


def test_all_packages_have_the_pinned_version(host):
    assert installed(host) == dict.fromkeys(SET, f"{PINNED}-1")
    assert host.check_output("modinfo -F version nvidia") == PINNED
    assert host.check_output("modinfo -F license nvidia") == "Dual MIT/GPL"
    assert f"Open Kernel Module for x86_64  {PINNED}" in host.file("/srv/gpu-host/proc/driver/nvidia/version").content_string


@pytest.mark.parametrize("unit", ["firstlight-nvidia-uvm", "nvidia-persistenced", "nvidia-fabricmanager"])
def test_its_services_run_and_are_there_after_a_boot(host, unit):
    assert host.service(unit).is_running
    assert host.service(unit).is_enabled


@pytest.fixture(scope="module")
def only(host):
    """apt with NVIDIA's repository alone: what there is to upgrade of Debian is not asked here."""
    host.check_output(
        "mkdir -p /srv/only && ln -sf /etc/apt/sources.list.d/firstlight-gpu-driver.sources /srv/only &&"
        """printf 'Dir::Etc::SourceParts "/srv/only";Dir::Cache::pkgcache "";Dir::Cache::srcpkgcache "";' > /srv/only.conf"""
    )
    return "APT_CONFIG=/srv/only.conf"


def test_an_upgrade_of_the_whole_system_leaves_it(host, only):
    plan = host.check_output(f"{only} apt-get -s dist-upgrade")
    assert not re.search(r"^Inst ", plan, re.MULTILINE), plan
    # It would not, without the pin.
    plan = host.check_output(f"{only} apt-get -s -o Dir::Etc::PreferencesParts=/dev/null dist-upgrade")
    assert f"Inst libcuda1 [{PINNED}-1] ({NEWEST}-1" in plan


def test_unattended_upgrades_leave_it(host, only):
    """Also where NVIDIA's repository is allowed, and without the pin."""
    allow = '#clear Unattended-Upgrade::Origins-Pattern; Unattended-Upgrade::Origins-Pattern { "origin=NVIDIA"; };'
    host.check_output(
        f"printf %s {shlex.quote(allow)} > /etc/apt/apt.conf.d/70test && mv /etc/apt/preferences.d/firstlight-gpu-driver.pref /srv/pin"
    )
    try:
        told = host.check_output(f"{only} unattended-upgrade --dry-run --debug 2>&1")
    finally:
        host.check_output("mv /srv/pin /etc/apt/preferences.d/firstlight-gpu-driver.pref && rm /etc/apt/apt.conf.d/70test")
    assert f"Checking: firmware-nvidia-gsp={NEWEST}-1" in told
    assert "skipping blacklisted package firmware-nvidia-gsp" in told
    assert "pkgs that look like they should be upgraded: \n" in told
    assert "No packages found that can be upgraded unattended" in told


def test_packages_on_hold_are_told_and_stay(host, refuse):
    host.check_output("apt-mark hold libcuda1 nvidia-driver-cuda")
    try:
        told = refuse({"held": {"gpu_driver_branch": 595}})["held"]
    finally:
        host.check_output("apt-mark unhold libcuda1 nvidia-driver-cuda")
    assert "libcuda1, nvidia-driver-cuda on hold" in told
    assert "apt-mark unhold" in told


def test_an_older_version_has_to_be_allowed(refuse):
    told = refuse({"older": {"gpu_driver_version": "590.44.01", "gpu_driver_fabric_manager": False}})["older"]
    assert f"older than the installed {PINNED}, found 590.44.01" in told
    assert "gpu_driver_allow_downgrade: true" in told


def test_an_upgrade_that_lost_its_controller_is_waited_for_and_completed(host, command, run):
    """apt goes on alone, and holds its locks."""
    branch = {"cuda": {"gpu_driver_branch": 595}}
    host.check_output("touch /run/slow-build")
    first = subprocess.Popen(command(branch), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_until(lambda: host.file("/run/building").exists)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    told = host.check_output("dpkg-query -W -f='${db:Status-Abbrev}' nvidia-kernel-open-dkms")
    assert told.strip() != "ii", "the transaction was not cut off"
    host.check_output("systemd-run --quiet --on-active=20 rm /run/slow-build")
    recap, said = run(branch)["cuda"]
    assert recap["failed"] == 0, said
    assert installed(host) == dict.fromkeys(SET, f"{NEXT}-1")
    assert host.check_output("dpkg --audit") == ""
    assert f"a reboot is required, since the module {PINNED} is loaded, {NEXT} is the one to have" in said


def test_it_waits_for_another_program_that_holds_the_locks(host, converge):
    host.check_output(f"systemd-run --quiet --unit=locker python3 -c {shlex.quote(HOLD)} 60")
    began = time.monotonic()
    converge(gpu_driver_version=PINNED, gpu_driver_allow_downgrade=True)
    assert time.monotonic() - began > 40
    assert not host.service("locker").is_running
    assert installed(host) == dict.fromkeys(SET, f"{PINNED}-1")


def test_it_does_not_wait_for_ever(host, refuse):
    host.check_output(f"systemd-run --quiet --unit=locker python3 -c {shlex.quote(HOLD)} 600")
    try:
        told = refuse({"locked": {"gpu_driver_branch": 595, "gpu_driver_lock_timeout_s": 2}})["locked"]
    finally:
        host.check_output("systemctl stop locker")
    assert re.search(r"free within 2 s, found process \d+ \(python3\) with /var/lib/dpkg/lock-frontend", told)
    assert "gpu_driver_lock_timeout_s" in told


def test_a_failed_build_is_told_and_found_first_by_the_next_run(host, run, refuse):
    branch = {"cuda": {"gpu_driver_branch": 610}}
    host.check_output("touch /run/bad-build")
    try:
        recap, said = run(branch)["cuda"]
    finally:
        host.check_output("rm /run/bad-build")
    assert recap["failed"] == 1
    assert "the installation script of nvidia-kernel-open-dkms failed" in said
    told = refuse(branch)["cuda"]
    assert "nvidia-kernel-open-dkms is half-configured: its script failed" in told
    assert "run dpkg --configure -a" in told
    host.check_output("dpkg --configure -a")
    assert installed(host) == dict.fromkeys(SET, f"{NEWEST}-1")


def test_what_was_removed_is_gone_and_a_second_removal_changes_nothing(host, converge):
    assert converge(gpu_driver_state="absent") > 0
    assert installed(host) == {}
    assert host.check_output("dpkg-query -W -f='${Package} ${db:Status-Abbrev}\n' | grep -E 'nvidia|cuda' || true") == ""
    assert host.check_output("find /etc /var/lib/firstlight /lib/modules -iname '*nvidia*' -o -name '*firstlight*' -type f") == ""
    host.check_output("rm -r /srv/gpu-host/proc/driver")  # a reboot
    assert converge(gpu_driver_state="absent") == 0


def test_what_cannot_be_had_is_refused_on_a_blank_host(refuse, fingerprints):
    def of(name):
        return {"gpu_inventory_root": f"/srv/gpu-hosts/{name}"}

    told = refuse(
        {
            "no_repository": {"gpu_driver_base_url": f"{URL}/nowhere"},
            "no_key": {"gpu_driver_key_url": f"{URL}/nowhere.asc"},
            "other_key": {"gpu_driver_key_fingerprint": fingerprints["other"]},
            "two_keys": {"gpu_driver_key_url": f"{URL}/good/both.asc"},
            "other_signer": {"gpu_driver_base_url": f"{URL}/other"},
            "expired": {
                "gpu_driver_base_url": f"{URL}/expired",
                "gpu_driver_key_url": f"{URL}/expired/key.asc",
                "gpu_driver_key_fingerprint": fingerprints["expired"],
            },
            "no_branch": {"gpu_driver_branch": 600},
            "no_version": {"gpu_driver_version": "595.99.01"},
            "no_fabric_manager": {"gpu_driver_version": "590.44.01"},
            "many": {
                "gpu_driver_branch": 12,
                "gpu_driver_runfile": "/srv/NVIDIA-Linux-x86_64-595.58.03.run",
                "gpu_driver_mode": "userland",
                "gpu_driver_flavour": "open",
            },
            "wrong_flavour": {**of("blackwell"), "gpu_driver_flavour": "proprietary"},
            "pascal": of("pascal"),
            "too_new": {**of("pascal"), "gpu_driver_branch": 595},
            "mixed": of("mixed"),
        }
    )
    expected = {
        "no_repository": [f"there is no repository at {URL}/nowhere/", "take another source"],
        "no_key": [f"its key {URL}/nowhere.asc cannot be fetched", "404"],
        "other_key": [f"holds {fingerprints['good']} instead of {fingerprints['other']} alone"],
        "two_keys": [f"holds {fingerprints['good']} and {fingerprints['other']} instead of {fingerprints['good']} alone"],
        "other_signer": ["signed with a key that is not in its keyring"],
        "expired": [f"signed with a key that has expired ({fingerprints['expired']})"],
        "no_branch": ["expected branch 600", f"in NVIDIA's repository: {NEWEST}, {NEXT}, 595.45.04, {PINNED}, 590.44.01;"],
        "no_version": ["expected driver 595.99.01", f"in NVIDIA's repository: {NEWEST}, {NEXT}"],
        "no_fabric_manager": ["nvidia-fabricmanager of exactly the driver's version 590.44.01 for 4 NVSwitches", f"found {NEWEST}, {NEXT}"],
        "many": [
            "mend first: 5",
            "found 12; change gpu_driver_branch",
            "expected one source",
            "which installs none, found gpu_driver_flavour",
        ],
        "wrong_flavour": ["expected the open module for 00000000:01:00.0", "found gpu_driver_flavour proprietary"],
        "pascal": ["branch 580 at most (the last for the GPU) with the proprietary module", "source distribution (branch 550"],
        "too_new": ["branch 580 at most", "found branch 595 asked for"],
        "mixed": ["00000000:01:00.0", "needs the proprietary one", "00000000:02:00.0", "needs the open one"],
    }
    missing = {name: [text for text in texts if text not in told[name]] for name, texts in expected.items()}
    assert {name: (texts, told[name]) for name, texts in missing.items() if texts} == {}
    assert set(told) == set(expected)


def test_a_check_run_tells_what_a_blank_host_gets(run, host):
    before = snapshot(host)
    told = run(
        {
            "release": {"gpu_driver_sglang_releases": ["0.5.23"]},
            "blackwell": {"gpu_inventory_root": "/srv/gpu-hosts/blackwell"},
        },
        "--check",
    )
    assert snapshot(host) == before
    assert {name: recap["failed"] for name, (recap, _said) in told.items()} == dict.fromkeys(told, 0), told
    said = {name: said for name, (_recap, said) in told.items()}
    assert f"see that {NEWEST} is loaded" in said["release"]
    assert "nvidia-kernel-open-dkms" in said["blackwell"]
    assert "nvidia-fabricmanager" not in said["blackwell"]


def test_the_repository_that_is_there_is_not_added_again(host, converge):
    """NVIDIA's package cuda-keyring brings a source and a key (case C07)."""
    host.check_output("dpkg --install /srv/cuda-repo/pool/cuda-keyring_1.1-1.deb")
    converge(gpu_driver_flavour="proprietary")
    assert installed(host) == dict.fromkeys((SET - {"nvidia-kernel-open-dkms"}) | {"nvidia-kernel-dkms"}, f"{NEWEST}-1")
    assert not host.file("/etc/apt/sources.list.d/firstlight-gpu-driver.sources").exists
    assert host.check_output("modinfo -F license nvidia") == "NVIDIA"
    assert converge(gpu_driver_flavour="proprietary") == 0
    # What was there before the role stays.
    converge(gpu_driver_state="absent")
    assert host.package("cuda-keyring").is_installed
    assert installed(host) == {}
