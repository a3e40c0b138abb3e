"""What changes settings of GPUs, on a recorded host whose settings can be changed: power limits and clocks at each boot (case C25), and
ECC and MIG by the role as it runs (case C32)."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[3]
SCRIPT = ROOT / "roles/gpu_driver/files/firstlight-nvidia-power"
DOUBLE = ROOT / "tests/doubles/gpu_host/nvidia_smi_settings.py"
FIRST, SECOND = (f"GPU-00000000-0000-4000-8000-00000000010{number}" for number in (0, 1))


class Host:
    def __init__(self, directory, recorded="2x_a6000"):
        self.directory = directory / "host"
        shutil.copytree(ROOT / "tests/fixtures/gpu/hosts" / recorded, self.directory, symlinks=True)
        answers = json.loads((self.directory / "nvidia-smi.json").read_text())
        (self.directory / "nvidia-smi.json").write_text(json.dumps([{**answer, "seconds": 0} for answer in answers]))
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


@pytest.fixture
def machine(tmp_path):
    """One that drives its GPUs itself; the other is a container."""
    return Host(tmp_path, "4x_a6000_hypervisor")


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


# ECC and MIG: the role on this machine, with the recorded host's GPUs; its driver is there and stays.


UNIT = "firstlight-nvidia-power.service"


@pytest.mark.parametrize("check", [[], ["--check", "--diff"]], ids=["real", "check"])
def test_the_unit_goes_and_the_limits_are_the_cards_own_again(machine, check):
    """The tasks alone: what else the role does would be done to this machine."""
    units, script = machine.directory / "units", machine.directory / "script"
    units.mkdir()
    for path in (units / UNIT, units / f"{UNIT}.enabled", units / f"{UNIT}.active", script):
        path.touch()
    systemctl = machine.directory.parent / "bin/systemctl"
    systemctl.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/doubles/systemctl_double.py {units} "$@"\n')
    systemctl.chmod(0o755)
    assert machine.run("nvidia-smi", "-i", FIRST, "-pl", "250").returncode == 0
    setting = {"argv": ["nvidia-smi", "-i", FIRST, "-pl", "300"], "text": "set the power limit of 0 back to its own 300 W"}
    given = {
        "__gpu_driver_plan": {"power_back": {"unit_goes": True, "settings": [setting]}},
        "__gpu_driver_power_files": [str(units / UNIT), str(script)],
    }
    tasks = [{"ansible.builtin.include_role": {"name": "firstlight.sglang.gpu_driver", "tasks_from": "power_back.yml"}}]
    rc, output = ansible(machine, [{"hosts": "all", "gather_facts": False, "tasks": tasks}], *check, "-e", json.dumps(given))
    assert rc == 0, output
    if check:
        assert (machine.limits()[0], (units / UNIT).exists(), (units / "calls").exists()) == ("250.00", True, False)
        assert f"path: {units / UNIT} - state: file + state: absent" in output, output
        return
    assert machine.limits()[0] == "300.00"
    assert (units / "calls").read_text() == f"disable {UNIT}\nstop {UNIT}\ndaemon-reload\n"
    assert not (units / UNIT).exists() and not script.exists()


def play(machine, *options, **variables):
    role_variables = {
        "gpu_inventory_root": str(machine.directory),
        "gpu_inventory_nvidia_smi_path": str(DOUBLE),
        "gpu_driver_sglang_releases": [],
        "gpu_driver_reboot": "if_required",
        **variables,
    }
    tasks = [
        {"name": "Show", "ansible.builtin.debug": {"msg": "required={{ gpu_driver_reboot_required }} why={{ gpu_driver_reboot_why }}"}}
    ]
    plays = [
        {"hosts": "all", "gather_facts": False, "vars": role_variables, "roles": ["firstlight.sglang.gpu_driver"], "post_tasks": tasks}
    ]
    return ansible(machine, plays, *options)


def ansible(machine, plays, *options):
    hosts = {"here": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}}
    (machine.directory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    (machine.directory / "play.yml").write_text(yaml.safe_dump(plays))
    done = subprocess.run(
        [
            pathlib.Path(sys.executable).parent / "ansible-playbook",
            "-i",
            machine.directory / "hosts.yml",
            machine.directory / "play.yml",
            *options,
        ],
        cwd=ROOT,
        env={**machine.environment, "ANSIBLE_NOCOLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, " ".join(done.stdout.split())


def settings(host):
    return [call for call in host.calls() if "-e " in f"{call} " or "-mig " in f"{call} "]


def test_ecc_is_set_once_waits_for_a_reboot_and_is_told(machine):
    rc, output = play(machine, "--check", gpu_driver_ecc=True)
    assert (rc, settings(machine)) == (0, []), output
    assert "set ECC on for 00000000:" in output
    assert "required=True why=set ECC on for" in output
    rc, output = play(machine, gpu_driver_ecc=True)
    assert rc == 0, output
    assert settings(machine) == [f"-i GPU-00000000-0000-4000-8000-00000000010{number} -e 1" for number in range(4)]
    assert "changed=1 " in output
    assert "required=True why=ECC is off and will be on on 00000000:" in output
    assert "It is left to you, since Ansible runs on this host itself" in output
    assert "here: left alone: the driver 580.159.04 works and suits; this role did not install it; a reboot waits, since ECC is" in output
    assert "; changed: ECC or MIG." in output
    rc, output = play(machine, gpu_driver_ecc=True)
    assert (rc, len(settings(machine))) == (0, 4), output
    assert "; changed: nothing." in output
    assert "changed=0 " in output
    assert "required=True why=ECC is off and will be on on 00000000:" in output


def test_a_mode_that_a_gpu_has_not_is_refused_before_anything_is_told_to_it(machine):
    rc, output = play(machine, gpu_driver_mig=True, gpu_driver_ecc=True)
    assert rc == 2
    assert "expected MIG on every GPU, found that" in output
    assert settings(machine) == []


def test_a_limit_of_nothing_is_refused_and_not_taken_for_none(machine):
    rc, output = play(machine, gpu_driver_power_limit_w=0)
    assert rc == 2
    assert "expected a power limit of more than 0 W, found 0" in output


def test_a_change_that_is_not_kept_is_no_success(machine):
    (machine.directory / "deaf").touch()
    rc, output = play(machine, gpu_driver_ecc=True)
    assert rc == 2
    assert "nvidia-smi ended well and did not: set ECC on for" in output
