"""The container with a recorded host on it, after converge, as root sees it over SSH."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[4]
RECORDED = ROOT / "tests/fixtures/gpu/hosts" / os.environ["MOLECULE_SCENARIO_NAME"].removeprefix("gpu_")
ANSWERS = json.loads((RECORDED / "nvidia-smi.json").read_text()) if (RECORDED / "nvidia-smi.json").exists() else []


@pytest.mark.parametrize("argv", [["-L"], ["-q", "-x"], ["topo", "-m"]], ids=" ".join)
def test_an_ordinary_user_gets_the_recorded_answers_of_nvidia_smi(host, argv):
    with host.sudo("nobody"):
        # The status in the output: testinfra takes 255 for a failure of ssh itself.
        output, _, rc = host.check_output(" ".join(["nvidia-smi", *argv, '2>&1; echo "=$?"'])).rpartition("=")
    recorded = [entry for entry in ANSWERS if entry["argv"] in (argv, ["*"])]
    if recorded:
        assert (rc, output) == (str(recorded[0]["rc"]), recorded[0]["stdout"])
    else:
        assert rc == "127"


def test_the_recorded_host_is_as_it_was_installed(host):
    assert host.package("firstlight-gpu-double").is_installed
    assert host.check_output("dpkg --verify firstlight-gpu-double") == ""


def test_neither_the_look_nor_the_preflight_wrote_anything(host):
    """No file and no directory since the package was unpacked."""
    others = [
        *("/proc*", "/sys*", "/dev*", "/run*", "/tmp*", "/var/log*", "/var/lib/dpkg*", "/var/cache/apt*"),  # noqa: S108 - nothing is put there
        "/home/*/.ansible/tmp*",  # what Ansible copies there is gone
        "/var/cache/firstlight/*",  # the download cache of the test hosts, which all of them share
        *("/var/lib/sglang/*", "/var/cache/sglang/*"),  # an engine of the scenario before
    ]
    apart = " ".join(f"-not -path '{path}'" for path in others)
    assert host.check_output(f"find / -xdev -newer /var/lib/dpkg/info/firstlight-gpu-double.list {apart}") == ""
    assert not host.file("/etc/systemd/system/sglang-asking.service").exists
