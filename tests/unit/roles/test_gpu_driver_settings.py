"""What sets power limits and clocks at each boot, with a recorded host whose settings can be changed (case C25)."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[3]
SCRIPT = ROOT / "roles/gpu_driver/files/firstlight-nvidia-power"
DOUBLE = ROOT / "tests/doubles/gpu_host/nvidia_smi_settings.py"
FIRST, SECOND = (f"GPU-00000000-0000-4000-8000-00000000010{number}" for number in (0, 1))


class Host:
    def __init__(self, directory, recorded="2x_a6000"):
        self.directory = directory / "host"
        shutil.copytree(ROOT / "tests/fixtures/gpu/hosts" / recorded, self.directory, symlinks=True)
        (directory / "bin").mkdir()
        (directory / "bin/nvidia-smi").symlink_to(DOUBLE)
        self.environment = {**os.environ, "FIRSTLIGHT_GPU_HOST": str(self.directory), "PATH": f"{directory / 'bin'}:{os.environ['PATH']}"}

    def run(self, *command):
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=60)

    def change(self, old, new):
        path = self.directory / "nvidia-smi.json"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def calls(self):
        path = self.directory / "calls"
        told = path.read_text().splitlines() if path.exists() else []
        return [call for call in told if "--query" not in call]

    def limits(self):
        done = self.run("nvidia-smi", "--query-gpu=power.limit", "--format=csv,noheader,nounits")
        return done.stdout.splitlines()


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_persistence_comes_first_and_each_gpu_gets_its_limit_by_uuid(host):
    done = host.run(SCRIPT, "250", "-")
    assert done.returncode == 0, done.stderr
    assert host.calls() == ["-pm 1", f"-i {FIRST} -pl 250", f"-i {SECOND} -pl 250"]
    assert host.limits() == ["250.00", "250.00"]


def test_clocks_alone_leave_the_limits(host):
    assert host.run(SCRIPT, "-", "210,1800").returncode == 0
    assert host.calls() == ["-pm 1", f"-i {FIRST} -lgc 210,1800", f"-i {SECOND} -lgc 210,1800"]
    assert host.limits() == ["300.00", "300.00"]


def test_a_limit_that_a_gpu_refuses_fails_visibly_and_the_others_are_still_asked(host):
    done = host.run(SCRIPT, "900", "-")
    assert done.returncode == 1
    assert done.stderr.count("expected a power limit of 900 W, found that nvidia-smi refuses it") == 2


def test_a_limit_that_is_taken_and_not_kept_is_seen_by_reading_it_back(host):
    (host.directory / "deaf").touch()
    done = host.run(SCRIPT, "250", "-")
    assert done.returncode == 1
    assert f"{FIRST}: expected a power limit of 250 W, found 300.00 W" in done.stderr


def test_a_gpu_without_a_limit_is_passed_over_with_a_word(host):
    table = next(entry for entry in json.loads((host.directory / "nvidia-smi.json").read_text()) if "--query-gpu" in entry["argv"][0])
    row = next(line for line in table["stdout"].splitlines() if FIRST in line)
    host.change(row, row.replace("300.00 W", "[N/A]"))
    done = host.run(SCRIPT, "250", "-")
    assert done.returncode == 0, done.stderr
    assert f"{FIRST}: it knows no power limit ([N/A])" in done.stdout
    assert host.limits() == ["[N/A]", "250.00"]


def test_a_line_that_is_no_gpu_is_a_failure_and_no_gpu(host):
    host.change('"stdout": "index, name', '"stdout": "Unable to determine the device handle for GPU1\\nindex, name')
    done = host.run(SCRIPT, "250", "-")
    assert done.returncode == 1
    assert "Unable to determine the device handle" in done.stderr
    assert host.limits()[1:] == ["250.00", "250.00"]


def test_without_a_driver_it_fails(tmp_path):
    host = Host(tmp_path, "mismatch")
    done = host.run(SCRIPT, "250", "-")
    assert done.returncode == 1
    assert "Driver/library version mismatch" in done.stderr
