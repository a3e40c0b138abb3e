"""playbooks/gpu_inventory.yml as it runs, over hosts that answer, fail, and cannot be reached. In place of the role gpu_inventory stands
one that takes a result from a file and leaves behind what the real one does; at the end the real one, with a sudo that wants a password,
and over the recorded hosts as their README says.
"""

from __future__ import annotations

import json
import os
import pathlib
import stat
import subprocess
import sys
import typing as t

import gpu_results
import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[3]

MODULE = """
import json, pathlib
from ansible.module_utils.basic import AnsibleModule

module = AnsibleModule({"file": {"type": "path", "required": True}}, supports_check_mode=True)
result = json.loads(pathlib.Path(module.params["file"]).read_text())
(module.fail_json if result.get("failed") else module.exit_json)(**result)
"""
TASKS = [
    {
        "name": "Look",
        "ansible.legacy.recorded": {"file": "{{ lookup('env', 'RECORDED') }}/{{ inventory_hostname }}.json"},
        "register": "__gpu_inventory_look",
        "failed_when": "__gpu_inventory_look.gpus is not defined and gpu_inventory_required | default(true)",
        "ignore_unreachable": "{{ not (gpu_inventory_required | default(true)) }}",
    },
    {"name": "Go on", "ansible.builtin.assert": {"that": "breaks_later is not defined"}},
]
REFUSED = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}


class Run(t.NamedTuple):
    rc: int
    output: str


class Place:
    """A directory with an inventory, recorded results and the collection."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        home = directory / "ansible_collections/firstlight/sglang"
        (home / "roles/gpu_inventory/tasks").mkdir(parents=True)
        for name in ("galaxy.yml", "meta", "playbooks", "plugins"):
            (home / name).symlink_to(ROOT / name)
        (home / "roles/gpu_fleet_report").symlink_to(ROOT / "roles/gpu_fleet_report")
        (home / "roles/gpu_inventory/tasks/main.yml").write_text(yaml.safe_dump(TASKS, sort_keys=False))
        (directory / "library").mkdir()
        (directory / "library/recorded.py").write_text(MODULE)
        self.hosts: dict[str, dict[str, t.Any]] = {}

    def host(self, name: str, result: dict[str, t.Any] | None) -> None:
        """None: it cannot be reached."""
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
        self.hosts[name] = REFUSED if result is None else local
        (self.directory / f"{name}.json").write_text(json.dumps(result))

    def run(self, *words: str) -> Run:
        (self.directory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": self.hosts}}))
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(self.directory),
            "ANSIBLE_LIBRARY": str(self.directory / "library"),
            "ANSIBLE_HOME": str(self.directory / "home"),
            "RECORDED": str(self.directory),
        }
        command = [pathlib.Path(sys.executable).parent / "ansible-playbook", "-i", "hosts.yml", "firstlight.sglang.gpu_inventory", *words]
        done = subprocess.run(
            command, cwd=self.directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return Run(done.returncode, done.stdout)

    @property
    def reports(self) -> pathlib.Path:
        return self.directory / "reports"

    def document(self) -> dict[str, t.Any]:
        return t.cast("dict[str, t.Any]", json.loads((self.reports / "gpu_inventory.json").read_text()))


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_hosts_that_are_lost_to_the_play_are_in_the_report_and_in_the_exit_code(place):
    place.host("ct129", gpu_results.two_a6000())
    place.host("gpu7", None)
    place.host("gpu8", {"failed": True, "msg": "nvidia_smi_path: expected a program, found: nothing"})
    run = place.run()
    assert run.rc == 2, run.output
    assert {path.name for path in place.reports.iterdir()} == {f"gpu_inventory.{kind}" for kind in ("json", "csv", "md", "html")}
    assert "2 of 3 hosts gave no answer: gpu7 (unreachable: " in run.output.replace("\n", " ").replace("        ", "")
    found = {one["host"]: (one["status"], one["reason"]) for one in place.document()["unanswered"]}
    assert found["gpu7"][0] == "unreachable"
    assert "port 1: Connection refused" in found["gpu7"][1]
    assert found["gpu8"] == ("failed", "nvidia_smi_path: expected a program, found: nothing")
    assert place.document()["summary"]["gpus"] == 2
    assert "Connection refused" in (place.reports / "gpu_inventory.html").read_text()


def test_a_host_that_fails_later_keeps_what_was_seen(place):
    """What a host has registered stays, whatever ends its play. The exit code is Ansible's own."""
    place.host("ct129", gpu_results.two_a6000())
    place.host("dgx1", gpu_results.eight_h100())
    place.hosts["dgx1"] = {**place.hosts["dgx1"], "breaks_later": True}
    run = place.run()
    assert run.rc == 2, run.output
    assert [host["status"] for host in place.document()["hosts"]] == ["answered", "answered"], run.output


def test_when_no_host_answers_there_is_a_report(place):
    place.host("gpu7", None)
    place.host("gpu8", {"failed": True, "msg": "no"})
    run = place.run()
    assert run.rc == 2, run.output
    assert [one["status"] for one in place.document()["unanswered"]] == ["unreachable", "failed"]


def test_limit_limits_the_report(place):
    place.host("ct129", gpu_results.two_a6000())
    place.host("gpu7", None)
    run = place.run("--limit", "ct129")
    assert run.rc == 0, run.output
    assert [host["host"] for host in place.document()["hosts"]] == ["ct129"]
    assert "Limited to 1 of 2 hosts." in (place.reports / "gpu_inventory.md").read_text()
    place.run("--limit", "ct129,gpu7")
    assert place.document()["summary"]["hosts_left_out"] == 0


def test_files_that_an_earlier_report_left_are_named(place):
    place.host("ct129", gpu_results.two_a6000())
    assert "earlier report" not in place.run().output
    (place.reports / "gpu_inventory.html").unlink()
    run = place.run("-e", "{gpu_fleet_report_formats: [csv]}")
    assert run.rc == 0, run.output
    words = " ".join(run.output.split())
    assert f"formats: gpu_inventory.md in {place.reports} are of an earlier report, and are not written anew." in words


def test_a_second_look_that_finds_the_same_is_no_change(place):
    place.host("ct129", gpu_results.two_a6000())
    assert "changed=1" in place.run("-e", "gpu_fleet_report_mode=0640").output
    assert stat.S_IMODE((place.reports / "gpu_inventory.html").stat().st_mode) == 0o640
    warmer = gpu_results.two_a6000()
    warmer["gpus"][0]["temperature_c"] = 75
    place.host("ct129", warmer)
    run = place.run("--diff")
    assert (run.rc, "changed=0" in run.output) == (0, True), run.output
    assert place.document()["gpus"][0]["temperature_c"] == 75, "the files are those of the last look all the same"
    warmer["driver_version"] = "590.48.01"
    place.host("ct129", warmer)
    before = (place.reports / "gpu_inventory.json").read_text()
    run = place.run("--check", "--diff")
    assert "changed=1" in run.output, run.output
    assert '-ct129: driver_version: "580.159.04"' in run.output
    assert '+ct129: driver_version: "590.48.01"' in run.output
    assert (place.reports / "gpu_inventory.json").read_text() == before, "check mode writes nothing"
    assert "changed=1" in place.run().output
    (place.reports / "gpu_inventory.json").write_text("{")
    assert "changed=1" in place.run("-e", "{gpu_fleet_report_formats: [md]}").output, "a file that is none is written anew"
    assert not [path for path in place.reports.iterdir() if path.name.startswith(".")], "nothing half-written stays"


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("gpu_fleet_report_path=/dev/null/x", "path: expected a directory that reports can be written to, found: "),
        ("gpu_fleet_report_mode=rw", 'mode: expected an octal mode such as "0644", found: rw'),
        ("{gpu_fleet_report_hosts: []}", "hosts: expected at least one host to report on, found none"),
    ],
)
def test_bad_input_is_one_message(place, variable, words):
    place.host("web1", gpu_results.result())
    run = place.run("-e", variable)
    assert run.rc == 2, run.output
    assert words in " ".join(run.output.split()), run.output
    assert "Traceback" not in run.output


def test_problems_fail_the_run_when_asked_to(place):
    place.host("gpu10", gpu_results.mismatch())
    assert place.run().rc == 0
    run = place.run("-e", "{gpu_fleet_report_fail_on: [error]}")
    assert run.rc == 2, run.output
    assert "1 error on gpu10." in run.output


# --- with the real role ---

FIXTURES = ROOT / "tests/fixtures/gpu"
SUDO = "#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n"


def script(path: pathlib.Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def run_playbook(directory: pathlib.Path, inventory: t.Any, playbook: t.Any, **environment: str) -> Run:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    command = [pathlib.Path(sys.executable).parent / "ansible-playbook", "-i", inventory, playbook]
    command += ["-e", f"gpu_fleet_report_path={directory}/reports", "-e", f"ansible_python_interpreter={sys.executable}"]
    done = subprocess.run(
        command, cwd=ROOT, env={**clean, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return Run(done.returncode, done.stdout)


def test_when_no_host_lets_sudo_through_there_is_a_report(place):
    """A become that fails is an error of the connection, which failed_when does not let pass."""
    script(place.directory / "bin/sudo", SUDO)
    hosts = {name: {"ansible_connection": "local"} for name in ("gpu1", "gpu2")}
    (place.directory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    path = f"{place.directory}/bin:{os.environ['PATH']}"
    run = run_playbook(
        place.directory, place.directory / "hosts.yml", "playbooks/gpu_inventory.yml", PATH=path, ANSIBLE_BECOME_ALLOW_SAME_USER="true"
    )
    assert run.rc == 2, run.output
    reason = "become failed: sudo: a password is required; --ask-become-pass asks for a password"
    assert place.document()["unanswered"] == [{"host": host, "status": "failed", "reason": reason} for host in hosts]
    assert "2 of 2 hosts gave no answer: gpu1 (failed: become failed" in " ".join(run.output.split())


def test_the_first_example_of_the_module_reports_why_after_the_role(place):
    hosts = {
        "gone": REFUSED,
        "none": {"ansible_connection": "local", "gpu_inventory_root": str(FIXTURES / "hosts/none")},
        "wrong": {"ansible_connection": "local", "gpu_inventory_nvidia_smi_path": "/no/such/nvidia-smi"},
    }
    (place.directory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    source = (ROOT / "plugins/modules/gpu_fleet_report.py").read_text().partition('EXAMPLES = r"""')[2].partition('"""')[0]
    task = yaml.safe_load(source)[0]
    task["firstlight.sglang.gpu_fleet_report"]["path"] = str(place.reports)
    role = {"role": "firstlight.sglang.gpu_inventory", "gpu_inventory_required": False}
    play = {"hosts": "all", "gather_facts": False, "roles": [role], "tasks": [task]}
    (place.directory / "play.yml").write_text(yaml.safe_dump([play]))
    run = run_playbook(place.directory, place.directory / "hosts.yml", place.directory / "play.yml")
    assert run.rc == 2, run.output
    assert {host["host"]: host["status"] for host in place.document()["hosts"]} == {
        "gone": "unreachable",
        "none": "answered",
        "wrong": "failed",
    }


def test_the_recorded_hosts_are_replayed_as_their_readme_says(place):
    blocks = (FIXTURES / "README.md").read_text().replace("/tmp/gpu-hosts", str(place.directory / "gpu-hosts")).split("```")  # noqa: S108
    shell, inventory = (next(block[len(kind) :] for block in blocks if block.startswith(kind)) for kind in ("sh\n", "yaml\n"))
    subprocess.run(["sh", "-euc", shell], cwd=ROOT, check=True)
    (place.directory / "gpu-hosts/hosts.yml").write_text(inventory)
    run = run_playbook(place.directory, place.directory / "gpu-hosts/hosts.yml", "playbooks/gpu_inventory.yml")
    assert run.rc == 0, run.output
    assert {host["host"] for host in place.document()["hosts"]} == {path.name for path in (FIXTURES / "hosts").iterdir()}
    without = [path.name for path in sorted((FIXTURES / "hosts").iterdir()) if not (path / "nvidia-smi.json").exists()]
    asked = {
        host["host"]: [one["status"] for one in host["sources_asked"] if one["source"] == "nvidia_smi_xml"]
        for host in place.document()["hosts"]
    }
    assert [host for host, status in sorted(asked.items()) if "missing" in status] == without
    assert place.document()["summary"]["gpus"] == 22, "the two cards that a hypervisor and its container list count once"
