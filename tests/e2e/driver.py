"""Playbooks driven through ansible-runner against a test host."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys
import tempfile
import typing as t

import ansible_runner
import yaml

ROOT = pathlib.Path(__file__).parents[2]


def run_testhost(*words: str) -> None:
    subprocess.run([sys.executable, ROOT / "tools/testhost.py", *words], check=True)


@dataclasses.dataclass
class Play:
    """What a playbook did."""

    status: str
    output: str
    events: list[dict[str, t.Any]]

    @property
    def changed(self) -> list[str]:
        return [event["event_data"]["task"] for event in self._of("runner_on_ok") if event["event_data"]["res"].get("changed")]

    @property
    def failures(self) -> list[dict[str, t.Any]]:
        """The results of failed tasks."""
        return [event["event_data"]["res"] for event in self._of("runner_on_failed")]

    @property
    def message(self) -> str:
        """What failed tasks say, the items of loops included."""
        results = [item for result in self.failures for item in (result, *result.get("results", []))]
        return "\n".join(str(result.get("msg")) for result in results)

    def _of(self, kind: str) -> list[dict[str, t.Any]]:
        return [event for event in self.events if event["event"] == kind]


class Site:
    """A checkout's playbooks against one test host, with an inventory of its own."""

    def __init__(self, directory: pathlib.Path, purpose: str) -> None:
        self.directory = directory
        self.purpose = purpose
        self.ssh_config = ROOT / f".cache/hosts/{purpose}/ssh_config"
        self.reports = directory / "reports"
        (directory / "group_vars").symlink_to(ROOT / "group_vars")

    def inventory(self, groups: t.Sequence[str] = ("demo",), **variables: t.Any) -> pathlib.Path:
        """Write an inventory: ct129 in the model groups given, with host variables."""
        host = {
            "ansible_ssh_common_args": f"-F {self.ssh_config}",
            "sglang_venv_uv_cache_dir": "/var/cache/firstlight/uv",
            "sglang_venv_link_mode": "copy",
            "sglang_verify_report_dir": str(self.reports),
            **variables,
        }
        groups_ = {group: {"hosts": {"ct129": {}}} for group in groups}
        path = self.directory / "hosts.yml"
        path.write_text(yaml.safe_dump({"sglang": {"hosts": {"ct129": host}, "children": groups_}}, sort_keys=False))
        return path

    def play(self, playbook: str = "site.yml", groups: t.Sequence[str] = ("demo",), cmdline: str = "", **variables: t.Any) -> Play:
        """Run a playbook to its end, as an ordinary user with sudo."""
        private = tempfile.mkdtemp(dir=self.directory)  # a new one each time: the runner remembers the command line of the last play in it
        result = ansible_runner.run(
            private_data_dir=private,
            project_dir=str(ROOT),
            playbook=str(ROOT / "playbooks" / playbook),
            inventory=str(self.inventory(groups, **variables)),
            cmdline=cmdline or None,
            quiet=True,
        )
        return Play(result.status, result.stdout.read(), list(result.events))

    def command(self, playbook: str = "site.yml") -> list[str]:
        """The same as a command line, for tests that kill it half-way."""
        return ["ansible-playbook", "-i", str(self.directory / "hosts.yml"), str(ROOT / "playbooks" / playbook)]
