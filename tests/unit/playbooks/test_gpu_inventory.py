"""playbooks/gpu_inventory.yml as it runs, over hosts that answer, fail, and cannot be reached. In place of the role gpu_inventory stands
one that takes a result from a file and leaves behind what the real one does.
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
