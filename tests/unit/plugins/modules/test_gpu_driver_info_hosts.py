"""Which decision every recorded host gets: its GPUs as they were recorded, on a Debian 13 without any package of a driver."""

from __future__ import annotations

import json
import pathlib

import pytest
from recorded_hosts import HOSTS, look, run

DRIVER = pathlib.Path(__file__).parents[3] / "fixtures/driver"
SOURCES = "Types: deb\nURIs: http://deb.debian.org/debian\nSuites: trixie\nComponents: main contrib non-free non-free-firmware\n"
CUDA = """cuda-nvcc-13-0:
  Installed: (none)
  Candidate: 13.0.88-1
  Version table:
     13.0.88-1 500
        500 https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64  Packages
"""
COMMANDS = {
    "uname": "6.12.57+deb13-amd64",
    "machine": "x86_64",
    "dpkg-query": "",
    "apt-cache": (DRIVER / "policy_debian13.txt").read_text() + CUDA,
}

WORKS = "the driver 580.159.04 works and suits; this role did not install it"
BROUGHT = ("kernel", "from nvidia")  # Debian's own 550 is too old for the release
# Host -> mode and why nothing is done, or what brings it, or codes of the problems; then the same with gpu_driver_upgrade: true.
DECISIONS = {
    "2x_a6000": (
        ("none", "the userland of the host's driver 580.159.04 is there and works"),
        ("none", "the userland 580.159.04 is there and is the module's"),
    ),
    "4x_a6000_hypervisor": (("none", WORKS), BROUGHT),
    "8x_h100": (("none", WORKS), BROUGHT),
    "gb10": (("none", WORKS), BROUGHT),
    "lost": (("none", WORKS), BROUGHT),
    "mig": (("none", WORKS), BROUGHT),
    "mismatch": (("none", "the driver 580.126.09 is loaded and suits; this role did not install it"), BROUGHT),
    "none": (["no_gpu"], ["no_gpu"]),
    "nouveau": (BROUGHT, BROUGHT),
    "vfio": (["no_gpu"], ["no_gpu"]),
    "wsl2": (("none", WORKS), ["wsl"]),
}


def decide(tmp_path, host, **options):
    files = {"etc/os-release": 'ID=debian\nVERSION_ID="13"\n', "etc/apt/sources.list.d/debian.sources": SOURCES}
    files[f"lib/modules/{COMMANDS['uname']}/build/Makefile"] = ""
    for name, text in {**files, "commands.json": json.dumps(COMMANDS)}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    place = {"root": str(tmp_path), "_ansible_remote_tmp": str(tmp_path)}
    return run("gpu_driver_info", {**place, "inventory": look(host), "sglang_releases": ["0.5.23"], **options})


def told(result):
    if result["problems"]:
        assert (result["plan"], result["steps"], result["brings"]) == (None, [], False)
        return [problem["code"] for problem in result["problems"]]
    assert result["brings"] == bool(result["plan"]["packages"])
    return result["mode"], result["plan"]["reason"] or f"from {result['plan']['source']}"


def test_every_recorded_host_is_in_the_table():
    assert set(DECISIONS) == {path.name for path in HOSTS.iterdir()}


@pytest.mark.parametrize("host", DECISIONS)
def test_a_recorded_host_gets_its_decision(tmp_path, host):
    unasked, upgrade = DECISIONS[host]
    assert told(decide(tmp_path, host)) == unasked
    assert told(decide(tmp_path, host, upgrade=True)) == upgrade


def test_the_toolkit_of_a_repository_that_comes_with_the_driver_is_foretold(tmp_path):
    assert decide(tmp_path, "nouveau")["offered"] == {"cuda-nvcc-13-0": ["13.0.88-1"]}
    assert decide(tmp_path, "2x_a6000")["offered"] == {}
