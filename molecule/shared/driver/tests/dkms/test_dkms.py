"""After converge: what was built and what holds it. Then a change of the branch that goes wrong, then the removal; in this order."""

from __future__ import annotations

import re
import time

import pytest

# Debian's own branch -> the word in its packages' names, and the older branch beside it (apt-cache, see _driver_sources.py).
BRANCHES = {"12": ("535", "470"), "13": ("550", "535")}


@pytest.fixture
def branches(host):
    return BRANCHES[host.check_output(". /etc/os-release; echo $VERSION_ID")]


def of_driver(host):
    """Installed packages that must have the driver's version, with it."""
    listed = host.check_output("dpkg-query -W -f='${Package} ${Version} ${db:Status-Abbrev} ${source:Package}\\n'").splitlines()
    rows = [line.split() for line in listed if line.startswith(("nvidia-", "libnvidia-", "libcuda1", "firmware-nvidia"))]
    return {name: version for name, version, status, source in rows if status[1] != "c" and source.startswith("nvidia-graphics-drivers")}


def one_branch(host, branch):
    """That the whole set has one version of this branch, the module is built for the kernel, and dpkg is in order."""
    kernel = host.check_output("cat /srv/kernel")
    versions = {version.partition("-")[0] for version in of_driver(host).values()}
    assert len(versions) == 1
    (version,) = versions
    assert version.startswith(f"{branch}.")
    (file,) = host.check_output(f"find /lib/modules/{kernel}/updates -name 'nvidia*.ko*' | grep -vE 'modeset|uvm|drm|peermem'").split()
    assert host.check_output(f"modinfo -F version {file}") == version
    assert host.check_output(f"modinfo -F license {file}") == "NVIDIA"
    assert re.fullmatch(rf"nvidia\S*/{version}, {re.escape(kernel)}, x86_64: installed", host.check_output("dkms status"))
    assert host.check_output("dpkg --audit") == ""
    return version


def test_the_module_is_built_and_all_packages_have_its_version(host, branches):
    one_branch(host, branches[0])


def test_what_is_there_stays_in_an_upgrade(host, branches):
    policy = host.check_output("apt-cache policy nvidia-kernel-dkms libcuda1")
    assert len(re.findall(rf"\*\*\* {branches[0]}\.\S+ 999", policy)) == 2
    plan = host.check_output("apt-get -s dist-upgrade")
    assert not re.findall(r"^(?:Inst|Remv) \S*(?:nvidia|libcuda)\S*", plan, re.MULTILINE)
    # As unattended-upgrades takes its list: regular expressions of Python at the beginning of a name.
    patterns = re.findall(r'Package-Blacklist:: "(.+)";', host.check_output("apt-config dump Unattended-Upgrade"))
    assert [name for name in of_driver(host) if not any(re.match(pattern, name) for pattern in patterns)] == []


def test_nouveau_is_kept_out_of_the_next_boot(host, kernel):
    assert "blacklist nouveau" in host.check_output("modprobe --showconfig")
    listed = host.check_output(f"lsinitramfs /boot/initrd.img-{kernel}")
    assert "etc/modprobe.d/firstlight-gpu-driver.conf" in listed


def test_the_units_wait_for_a_boot(host):
    """The recorded GPU is nouveau's, and the module cannot be loaded here: the units are enabled, and the role did not start them."""
    for unit in ("firstlight-nvidia-uvm.service", "nvidia-persistenced.service"):
        assert host.service(unit).is_enabled
    assert not host.service("firstlight-nvidia-uvm.service").is_running
    assert host.check_output("systemctl show -P ConditionTimestamp firstlight-nvidia-uvm.service") == "", "it was never tried"
    assert host.check_output("systemd-analyze verify firstlight-nvidia-uvm.service 2>&1") == ""


def test_the_reboot_is_still_asked_for_when_nothing_changes(host, role):
    out = role()
    assert "changed=0" in out
    assert not host.service("firstlight-nvidia-uvm.service").is_running
    assert "a reboot is required, since nouveau has a GPU" in out
    assert "reboot required: True, mode: kernel" in out


def test_an_older_branch_is_taken_only_when_a_downgrade_is_allowed(role, state, branches):
    before = state()
    out = role(ok=False, gpu_driver_branch=int(branches[1]), gpu_driver_sglang_releases=[])
    assert "set gpu_driver_allow_downgrade: true" in out
    assert state() == before


def compiler(host, text):
    """Put another compiler in place of the real one (DKMS sets a path of its own), without text the real one again."""
    for path in host.check_output("ls /usr/bin/x86_64-linux-gnu-gcc-??").split():
        if text:
            host.check_output(f"test -e {path}.real || mv {path} {path}.real")
            host.check_output(f"echo '#!/bin/sh\n{text}' > {path} && chmod 755 {path}")
        else:
            host.check_output(f"mv {path}.real {path}")


def test_a_change_of_the_branch_that_goes_wrong_and_its_cure(host, role, state, branches):
    # Debian 12's older branch serves no release of SGLang.
    wanted = {"gpu_driver_branch": int(branches[1]), "gpu_driver_allow_downgrade": True, "gpu_driver_sglang_releases": []}

    # The build fails (case C13).
    compiler(host, 'echo "nv-mmap.c:400:5: error: implicit declaration of function __vma_start_write" >&2; exit 1')
    out = role(ok=False, **wanted)
    assert "the installation script of" in out
    assert "failed, so that dpkg is left half-configured" in out
    assert "error: implicit declaration of function __vma_start_write" in out
    assert "expected NVIDIA's module for kernel" in out

    # The next run finds that first, and names the cure.
    before = state()
    out = role(ok=False, **wanted)
    assert "is half-configured: its script failed" in out
    assert "run dpkg --configure -a" in out
    assert state() == before

    # The cure is cut off half-way, while the compiler runs; a run in the meantime changes nothing, and neither does the next one.
    compiler(host, "exec sleep 3600")
    host.check_output("systemd-run --unit=cure dpkg --configure -a")
    for _second in range(120):
        if host.run("pgrep -x sleep").rc == 0:
            break
        time.sleep(1)
    else:
        pytest.fail("the build does not start")
    before = state()
    role(ok=False, gpu_driver_lock_timeout_s=5, **wanted)
    assert state() == before
    host.check_output("systemctl kill --signal=KILL cure.service")
    assert "run dpkg --configure -a" in role(ok=False, **wanted)

    # The cure, and the same run again.
    compiler(host, "")
    host.check_output("dpkg --configure -a")
    out = role(**wanted)
    assert f"version: {branches[1]}." in out
    one_branch(host, branches[1])
    assert "changed=0" in role(**wanted)


def test_removal_leaves_nothing_of_ours(host, role):
    role(gpu_driver_state="absent")
    assert of_driver(host) == {}
    assert host.check_output("dpkg --audit") == ""
    assert host.check_output("dkms status") == ""
    assert host.check_output("find /etc /usr/local /var/lib/firstlight -mindepth 1 -name '*firstlight*'") == ""
    assert host.check_output("find /lib/modules -path '*/updates/*' -name 'nvidia*'") == ""
    assert host.check_output("dpkg-query -W -f='${Package} ${db:Status-Abbrev}\\n' '*nvidia*' 2>/dev/null | grep ' r' || true") == ""
    assert "changed=0" in role(gpu_driver_state="absent")
