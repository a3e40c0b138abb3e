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
        answer = host.run(" ".join(["nvidia-smi", *argv]))
    recorded = [entry for entry in ANSWERS if entry["argv"] in (argv, ["*"])]
    if recorded:
        assert (answer.rc, answer.stdout) == (recorded[0]["rc"], recorded[0]["stdout"])
    else:
        assert answer.rc == 127


def test_the_recorded_host_is_as_it_was_installed(host):
    assert host.package("firstlight-gpu-double").is_installed
    assert host.check_output("dpkg --verify firstlight-gpu-double") == ""


def test_neither_the_look_nor_the_preflight_wrote_anything(host):
    """Since the package was unpacked: logs and dpkg's own lists apart, and what an engine of another scenario writes."""
    written = host.check_output(
        "find / -xdev -newer /var/lib/dpkg/info/firstlight-gpu-double.list -not -type d -not -path '/proc/*' -not -path '/sys/*' "
        "-not -path '/var/log/*' -not -path '/var/lib/dpkg/*' -not -path '/var/lib/sglang/*' -not -path '/var/cache/sglang/*'"
    )
    assert written == ""
    assert not host.file("/etc/systemd/system/sglang-asking.service").exists
