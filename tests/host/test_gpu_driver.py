"""The role in a real container: the distribution's userland, at the version that a recorded /proc/driver/nvidia/version asks for.

FIRSTLIGHT_SSH_CONFIG and FIRSTLIGHT_HOST name the host: a Debian 13 container that has no NVIDIA package.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
SSH_CONFIG, ALIAS = os.environ.get("FIRSTLIGHT_SSH_CONFIG", ""), os.environ.get("FIRSTLIGHT_HOST", "")
VERSION_PATH = "/srv/firstlight-version"
PLACES = "/etc/apt /etc/modprobe.d /etc/systemd/system /var/lib/firstlight"

pytestmark = [
    pytest.mark.host,
    pytest.mark.slow,
    pytest.mark.skipif(not (SSH_CONFIG and ALIAS), reason="FIRSTLIGHT_SSH_CONFIG and FIRSTLIGHT_HOST name no host"),
]


def sh(command, text=None):
    done = subprocess.run(
        ["ssh", "-F", SSH_CONFIG, ALIAS, "--", f"sudo -n bash -c {shlex.quote(command)}"],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def files():
    return sh(f"find {PLACES} -type f -exec sha256sum {{}} + 2>/dev/null | sort || true")


def packages():
    listed = sh("dpkg-query -W -f='${binary:Package} ${Version} ${db:Status-Abbrev}\\n'").splitlines()
    return {name.partition(":")[0]: version for line in listed for name, version, status in [line.split()] if status.startswith("i")}


def of_driver():
    return {name: version for name, version in packages().items() if re.match(r"(lib)?nvidia-|libcuda1", name)}


@pytest.fixture(scope="module")
def role(tmp_path_factory):
    directory = tmp_path_factory.mktemp("role")
    (directory / "hosts.yml").write_text(
        yaml.safe_dump({"all": {"hosts": {ALIAS: {"ansible_host": ALIAS, "ansible_ssh_common_args": f"-F {SSH_CONFIG}"}}}})
    )
    play = [{"hosts": "all", "become": True, "gather_facts": False, "roles": ["firstlight.sglang.gpu_driver"]}]
    (directory / "play.yml").write_text(yaml.safe_dump(play))

    def run(version, *options, ok=True, **variables):
        sh(f"cat > {VERSION_PATH}", f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Wed Apr  2 00:00:00 UTC 2025\n")
        extra = {"gpu_driver_host_version_path": VERSION_PATH, "gpu_driver_device_user": None, **variables}
        (directory / "vars.yml").write_text(yaml.safe_dump(extra))
        done = subprocess.run(
            ["ansible-playbook", "-i", directory / "hosts.yml", directory / "play.yml", "-e", f"@{directory / 'vars.yml'}", *options],
            cwd=CHECKOUT,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        out = done.stdout + done.stderr
        assert (done.returncode == 0) == ok, out
        return out

    yield run
    run("550.163.01", gpu_driver_state="absent")
    sh(f"rm -f {VERSION_PATH}")


def test_a_check_run_on_a_blank_host_tells_all_and_changes_nothing(role):
    before = files(), packages()
    out = role("550.163.01", "--check", "--diff")
    assert (files(), packages()) == before
    assert "contrib non-free" in out
    assert "install libcuda1=550.163.01-" in out


@pytest.mark.parametrize("version", ["550.54.14", "595.80.05"])
def test_a_version_that_is_not_to_be_had_changes_nothing_and_tells_the_ways_out(role, version):
    before = files(), packages()
    out = role(version, ok=False)
    assert (files(), packages()) == before
    assert f"expected the userland {version}, exactly the version of the module" in out
    assert f"NVIDIA-Linux-x86_64-{version}.run" in out
    assert "or install one of these versions on the container's host" in out


def test_the_userland_of_the_hosts_version_is_installed_once_and_taken_away_again(role):
    before, old = files(), packages()
    role("550.163.01")
    there = of_driver()
    assert {"libcuda1", "libnvidia-ml1", "nvidia-smi"} <= set(there)
    assert all(version.startswith("550.163.01-") for name, version in there.items() if name.startswith(("libnvidia", "libcuda")))
    assert not [name for name in packages() if "dkms" in name or "kernel" in name]
    assert json.loads(sh("cat /var/lib/firstlight/gpu_driver.json"))["packages_before"] == []

    out = role("550.163.01")
    assert "changed=0" in out

    # Nothing gives the device nodes to this container.
    out = role("550.163.01", ok=False, gpu_driver_device_user="nobody")
    assert "expected that the user nobody can open" in out
    assert "/dev/nvidia-uvm" in out

    out = role("535.274.02", ok=False)
    assert "gpu_driver_allow_downgrade" in out
    assert of_driver() == there

    role("550.163.01", gpu_driver_state="absent")
    assert not of_driver()
    assert files() == before
    assert {name: packages()[name] for name in old} == old
    assert "changed=0" in role("550.163.01", gpu_driver_state="absent")
