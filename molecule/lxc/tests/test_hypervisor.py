"""What the files of the hypervisor's guests became, as plain text on this machine."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

testinfra_hosts = ["local://"]

CHECKOUT = os.environ["MOLECULE_PROJECT_DIRECTORY"]
PLACE = Path(f"/var/lib/firstlight-lxc-{hashlib.sha256(CHECKOUT.encode()).hexdigest()[:6]}")
FILES = Path(__file__).parents[1] / "files"
STALE = Path(CHECKOUT) / "tests/fixtures/gpu/lxc_conf_stale_major.conf"


def now(identity):
    return (PLACE / f"pve1/etc/pve/lxc/{identity}.conf").read_text()


@pytest.mark.parametrize("identity", [129, 130])
def test_snapshots_comments_and_foreign_devices_stay(identity):
    before, (head, snapshot) = (FILES / f"{identity}.conf").read_text(), now(identity).split("\n\n")
    assert snapshot == before.split("\n\n")[1]
    foreign = [line for line in before.split("\n\n")[0].splitlines() if "nvidia" not in line and "cgroup" not in line]
    assert [line for line in head.splitlines() if line in foreign] == foreign


def test_dev_numbers_continue_after_the_foreign_one():
    lines = [line for line in now(129).splitlines() if line.startswith("dev")]
    names = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
    assert lines == ["dev0: /dev/ttyUSB0", *(f"dev{number}: /dev/{name},mode=0666" for number, name in enumerate(names, 1))]


def test_only_the_two_lines_of_majors_that_changed_are_others():
    pairs = list(zip(STALE.read_text().splitlines(), now(132).splitlines(), strict=True))
    assert [pair for pair in pairs if pair[0] != pair[1]] == [
        ("lxc.cgroup2.devices.allow: c 511:* rwm", "lxc.cgroup2.devices.allow: c 509:* rwm"),
        ("lxc.cgroup2.devices.allow: c 236:* rwm", "lxc.cgroup2.devices.allow: c 235:* rwm"),
    ]


@pytest.mark.parametrize(("identity", "before"), [(129, FILES / "129.conf"), (130, FILES / "130.conf"), (132, STALE)])
def test_each_file_was_changed_once_and_is_kept(identity, before):
    (backup,) = (PLACE / "backups").glob(f"{identity}.conf.*")
    assert backup.read_text() == before.read_text()


def test_a_guest_that_is_not_listed_is_left_alone():
    assert now(131) == (FILES / "130.conf").read_text()
