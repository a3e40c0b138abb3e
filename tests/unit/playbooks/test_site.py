"""playbooks/site.yml in check mode over recorded hosts that ask for a GPU: the driver's part in it, from the preflight to the service.

All roles are the real ones. The host is this machine, of which nothing is changed; its GPUs, packages and kernel are recorded.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import typing as t

import yaml
from recorded_hosts import HOSTS, ROOT

DRIVER = ROOT / "tests/fixtures/driver"
KERNEL = "6.12.57+deb13-amd64"
SOURCES = "Types: deb\nURIs: http://deb.debian.org/debian\nSuites: trixie\nComponents: main contrib non-free non-free-firmware\n"
ROOT_OPTION = '"root": {"type": "path", "default": "/"}'

# Where nothing has been deployed yet.
SYSTEMCTL = """#!/bin/sh
case "$1" in
  --version) echo "systemd 257 (257.9-1)" ;;
  show) for word; do case "$word" in *.service) printf 'Id=%s\\nLoadState=not-found\\nActiveState=inactive\\n\\n' "$word" ;; esac; done ;;
esac
"""


class Run(t.NamedTuple):
    rc: int
    output: str

    @property
    def words(self) -> str:
        return " ".join(self.output.replace("\\n", " ").split())


class Site:
    """A directory with the collection, a recorded host, and what its packages and kernel are."""

    def __init__(self, directory: pathlib.Path, recorded: str) -> None:
        self.directory = directory
        self.files({"etc/os-release": 'ID=debian\nVERSION_ID="13"\n', "etc/apt/sources.list.d/debian.sources": SOURCES})
        self.files({f"lib/modules/{KERNEL}/build/Makefile": ""})
        policy = (DRIVER / "policy_debian13.txt").read_text()
        self.files({"commands.json": json.dumps({"uname": KERNEL, "machine": "x86_64", "dpkg-query": "", "apt-cache": policy})})
        self.collection()
        self.variables: dict[str, t.Any] = {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
            "gpu_inventory_root": str(HOSTS / recorded),
            "sglang_release": "0.5.23",
            **{f"sglang_{name}_dir": str(directory / name) for name in ("config", "state", "cache")},
            "sglang_root": str(directory / "opt"),
            "sglang_venv_user": "root",
            "sglang_instance_asking": {
                "name": "asking",
                "model": {"name": "firstlight/tiny-qa", "build": "tiny_qa.py"},
                "gpus": [0],
                "args": {"tp_size": 1},
            },
        }
        if (HOSTS / recorded / "nvidia-smi.json").exists():
            self.variables["gpu_inventory_nvidia_smi_path"] = str(ROOT / "tests/doubles/gpu_host/nvidia-smi")
        self.recorded = HOSTS / recorded
        self.files({"bin/systemctl": SYSTEMCTL})
        (directory / "bin/systemctl").chmod(0o755)

    def files(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def collection(self) -> None:
        """The collection, with a gpu_driver_info that looks at the recording, and a host that is said to be booted with systemd."""
        home = self.directory / "ansible_collections/firstlight/sglang"
        (home / "plugins/modules").mkdir(parents=True)
        for name in ("galaxy.yml", "meta", "playbooks", "roles"):
            (home / name).symlink_to(ROOT / name)
        for path in (ROOT / "plugins").iterdir():
            if path.name != "modules":
                (home / "plugins" / path.name).symlink_to(path)
        for path in (ROOT / "plugins/modules").iterdir():
            (home / "plugins/modules" / path.name).symlink_to(path)
        self.replace(home / "plugins/modules/gpu_driver_info.py", ROOT_OPTION, ROOT_OPTION.replace('"/"', json.dumps(str(self.directory))))
        self.replace(home / "plugins/modules/sglang_service.py", "/run/systemd/system", str(self.directory))

    def replace(self, module: pathlib.Path, old: str, new: str) -> None:
        text = module.read_text()
        assert old in text
        module.unlink()
        module.write_text(text.replace(old, new))

    def run(self, playbook: str, *words: str, **variables: t.Any) -> Run:
        hosts = {"sglang": {"children": {"asking": {"hosts": {"blank": {**self.variables, **variables}}}}}}
        self.files({"hosts.yml": yaml.safe_dump(hosts)})
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(self.directory),
            "ANSIBLE_HOME": str(self.directory / "home"),
            "FIRSTLIGHT_GPU_HOST": str(self.recorded),
            "PATH": f"{self.directory}/bin:{os.environ['PATH']}",
        }
        command = [pathlib.Path(sys.executable).parent / "ansible-playbook", "-i", "hosts.yml", playbook, *words]
        done = subprocess.run(
            command, cwd=self.directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return Run(done.returncode, done.stdout)

    def check(self, **variables: t.Any) -> Run:
        return self.run("firstlight.sglang.site", "--check", **variables)

    def asking(self, *gpus: int) -> dict[str, t.Any]:
        return {**self.variables["sglang_instance_asking"], "gpus": list(gpus), "args": {"tp_size": len(gpus) or 1}}


def test_a_blank_host_is_predicted_to_its_end(tmp_path):
    """nouveau has its GPU, and nothing of NVIDIA's is there."""
    run = Site(tmp_path, "nouveau").check()
    assert run.rc == 0, run.output
    assert "install linux-headers-amd64, nvidia-kernel-open-dkms, nvidia-driver-cuda" in run.words
    assert "a reboot is required, since nouveau has a GPU" in run.words
    assert not list(pathlib.Path("/etc/apt/preferences.d").glob("firstlight-gpu-driver*"))


def test_what_no_driver_mends_is_told_before_it_is_brought(tmp_path):
    site = Site(tmp_path, "nouveau")
    run = site.check(sglang_instance_asking=site.asking(0, 1), gpu_driver_reboot="sometimes")
    assert run.rc == 2
    assert "nothing was changed; to mend first: 2 - expected gpu_driver_reboot to be one of" in run.words, run.output
    assert "- asking: expected the GPU 1, found 0. Change gpus." in run.words
    assert "nouveau drives" not in run.words


def test_a_driver_that_works_is_left_and_the_gpus_are_judged_as_before(tmp_path):
    site = Site(tmp_path, "2x_a6000")
    run = site.check(sglang_instance_asking=site.asking(0, 2))
    assert run.rc == 2
    assert "nothing was changed; to mend first: 1 - asking: expected the GPU 2, found 0, 1. Change gpus." in run.words, run.output


def test_a_model_that_is_not_pinned_stops_the_site_with_the_way_to_pin_it(tmp_path):
    site = Site(tmp_path, "2x_a6000")
    run = site.check(sglang_instance_asking={**site.asking(0), "model": {"name": "org/name", "revision": None}})
    assert run.rc == 2
    assert "found none; `make pin MODEL=asking` finds the repository's commit and writes it here" in run.words, run.output


def test_no_engine_is_started_before_the_reboot_that_a_driver_waits_for(tmp_path):
    tasks = [
        {"ansible.builtin.include_role": {"name": "firstlight.sglang.sglang_server", "tasks_from": "look", "public": True}},
        {"ansible.builtin.debug": {"var": "__sglang_server_problems"}},
    ]
    site = Site(tmp_path, "nouveau")
    site.files({"look.yml": yaml.safe_dump([{"hosts": "sglang", "gather_facts": False, "tasks": tasks}])})
    run = site.run("look.yml", gpu_driver_pending=True)
    assert "found that a reboot is required. Reboot blank, or set gpu_driver_reboot: if_required, and run this again." in run.words, (
        run.output
    )
    assert "no loaded driver" not in run.words
    assert "no loaded driver" in site.run("look.yml").words


def test_instances_without_gpus_cost_no_look_at_the_driver(tmp_path):
    site = Site(tmp_path, "nouveau")
    steps = [{"role": f"firstlight.sglang.{name}"} for name in ("sglang_preflight", "gpu_driver")]
    site.files({"part.yml": yaml.safe_dump([{"hosts": "sglang", "gather_facts": False, "roles": steps}])})
    run = site.run("part.yml", "--check", sglang_instance_asking={**site.asking(), "variant": "cpu", "args": {"device": "cpu"}})
    assert run.rc == 0, run.output
    assert "Decide which driver this host gets" not in run.words
