"""The role and dnf: small packages with the names of NVIDIA's, in streams (tests/doubles/dnf_repo/build.py).

It begins where Molecule's converge ends, with a pinned driver, and ends on a blank host. The tests go in order.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[3]
SSH_CONFIG = ROOT / ".cache/hosts/dnf-repo/ssh_config"
REPOSITORY = "/etc/yum.repos.d/firstlight-gpu-driver.repo"
PLACES = "/etc/yum.repos.d /etc/pki/rpm-gpg /etc/dnf/modules.d /etc/modprobe.d /etc/systemd/system /var/lib/firstlight"
PINNED, NEXT = "580.95.05", "590.48.01"


@pytest.fixture(scope="module")
def role(host, tmp_path_factory):
    directory = tmp_path_factory.mktemp("role")
    common = {
        "ansible_ssh_common_args": f"-F {SSH_CONFIG}",
        "gpu_inventory_root": "/srv/gpu-host",
        "gpu_driver_base_url": "file:///srv/rpm",
        "gpu_driver_key_url": "file:///srv/rpm/key.asc",
        "gpu_driver_key_fingerprint": host.check_output("cat /srv/rpm/fingerprint.txt"),
        "gpu_driver_device_user": None,
    }
    play = [{"hosts": "all", "become": True, "gather_facts": False, "roles": ["firstlight.sglang.gpu_driver"]}]
    (directory / "play.yml").write_text(yaml.safe_dump(play))

    def run(ok=True, **variables):
        (directory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"rocky9": {**common, **variables}}}}))
        done = subprocess.run(
            ["ansible-playbook", "-i", directory / "hosts.yml", directory / "play.yml"],
            cwd=ROOT,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=600,
        )
        assert (done.returncode == 0) == ok, done.stdout
        return " ".join(done.stdout.split())

    return run


def driver(host):
    listed = host.check_output("rpm -qa --qf '%{NAME} %{VERSION}\\n'").splitlines()
    return dict(line.split() for line in listed if "nvidia" in line)


def files(host):
    with host.sudo():
        return host.check_output(f"find {PLACES} -type f -exec sha256sum {{}} + 2>/dev/null | sort || true")


def test_the_pinned_driver_is_there_in_one_version_and_no_upgrade_moves_it(host):
    there = driver(host)
    assert set(there.values()) == {PINNED}
    assert {"kmod-nvidia-open-dkms", "nvidia-driver-cuda", "nvidia-persistenced"} <= set(there)
    assert "stream=580-open\n" in host.file("/etc/dnf/modules.d/nvidia-driver.module").content_string
    text = host.file(REPOSITORY).content_string
    for line in (
        "gpgcheck=1",
        "repo_gpgcheck=1",
        f"includepkgs=*-{PINNED}-*",
        "gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-firstlight-gpu-driver",
    ):
        assert f"{line}\n" in text
    with host.sudo():
        host.check_output("dnf -y upgrade")  # 580.126.09 and 590 are in the repository
    assert driver(host) == there


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"gpu_driver_branch": 590, "gpu_driver_key_fingerprint": "0" * 40}, "instead of 0000000000000000"),
        ({"gpu_driver_version": "580.99.99"}, "expected driver 580.99.99"),
        ({"gpu_driver_branch": 590, "gpu_driver_base_url": "file:///srv/nowhere"}, "cannot read it"),
    ],
    ids=["another key", "a version that is not there", "no repository"],
)
def test_what_cannot_be_had_is_refused_and_nothing_changes(host, role, variables, words):
    before = (driver(host), files(host))
    output = role(ok=False, gpu_driver_source="nvidia", **variables)
    assert words in output
    assert (driver(host), files(host)) == before


def test_another_branch_changes_the_stream_and_every_package(host, role):
    role(gpu_driver_branch=590)
    assert set(driver(host).values()) == {NEXT}
    assert "stream=590-open\n" in host.file("/etc/dnf/modules.d/nvidia-driver.module").content_string
    assert "includepkgs" not in host.file(REPOSITORY).content_string
    assert re.search(r"rocky9 : ok=\d+ changed=0 ", role(gpu_driver_branch=590))


def test_going_back_is_refused_until_it_is_allowed(host, role):
    assert "expected no driver older than the installed 590.48.01" in role(ok=False, gpu_driver_version=PINNED)
    role(gpu_driver_version=PINNED, gpu_driver_allow_downgrade=True)
    assert set(driver(host).values()) == {PINNED}


def test_removal_leaves_nothing_of_the_role(host, role):
    role(gpu_driver_state="absent")
    assert driver(host) == {}
    assert "firstlight" not in files(host)
    assert "nvidia-driver.module" not in files(host)
    assert host.run("rpm -q dkms").rc == 0, "what anybody may use stays"
