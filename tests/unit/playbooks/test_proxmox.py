"""playbooks/proxmox.yml over both sides of a recorded Proxmox: a hypervisor with four GPUs, and its container CT129 with two of them.

pct, systemctl and nvidia-modprobe are doubles. In the place of all other roles stand
some that do nothing; gpu_driver and the first of site.yml say that they were reached.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import typing as t

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[3]
HOSTS = ROOT / "tests/fixtures/gpu/hosts"
DOUBLES = ROOT / "tests/doubles"
UNIT = "firstlight-nvidia-nodes.service"
TEXT = (
    "# Owner: team llm\narch: amd64\ndev0: /dev/ttyUSB0\nhostname: ct129\nunprivileged: 1\n\n[before]\narch: amd64\nsnaptime: 1760000000\n"
)
NODES = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
GIVEN = "".join(f"dev{number}: /dev/{name},mode=0666\n" for number, name in enumerate(NODES, 1))
MODPROBE = """#!/bin/sh
echo "$*" >> {directory}/modprobe.calls
grep -q nvidia-uvm {listing} || test "$1" != -u || cat >> {listing} <<END
crw-rw-rw- 1 root root 511,   0 Dec  1 02:31 /dev/nvidia-uvm
crw-rw-rw- 1 root root 511,   1 Dec  1 02:31 /dev/nvidia-uvm-tools
END
"""
ROOT_OPTION = '"root": {"type": "path", "default": "/"}'
SERVE = [{"name": "Serve", "ansible.builtin.debug": {"msg": "{{ inventory_hostname }} is reached by {{ role_name }}"}}]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the roles write files of root's")


class Run(t.NamedTuple):
    rc: int
    output: str

    @property
    def changed(self) -> dict[str, int]:
        """Number of changed tasks by host."""
        return {name: int(number) for name, number in re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", self.output, re.MULTILINE)}

    @property
    def words(self) -> str:
        return " ".join(self.output.replace("\\n", " ").split())


def script(path: pathlib.Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


class Proxmox:
    """A directory with both sides."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.conf = directory / "pve/lxc/129.conf"
        self.units = directory / "units"
        self.calls = directory / "pct.calls"
        self.conf.parent.mkdir(parents=True)
        self.units.mkdir()
        self.conf.write_text(TEXT)
        self.state: dict[str, t.Any] = {
            "config_path": str(self.conf.parent),
            "lock_directory": str(directory / "locks"),
            "calls": str(self.calls),
        }
        self.pct_state()
        python = sys.executable
        pct = script(directory / "bin/pct", f'#!/bin/sh\nexec {python} {DOUBLES}/pct_double.py {directory}/state.json "$@"\n')
        script(directory / "bin/systemctl", f'#!/bin/sh\nexec {python} {DOUBLES}/systemctl_double.py {self.units} "$@"\n')
        self.listing = directory / "pve1/host/dev/ls-l.txt"
        modprobe = script(directory / "bin/nvidia-modprobe", MODPROBE.format(directory=directory, listing=self.listing))
        self.guests: list[dict[str, t.Any]] = [{"id": 129, "gpus": ["0", "1"]}]
        self.hypervisor: dict[str, t.Any] = {
            **self.host("pve1", "4x_a6000_hypervisor"),
            "proxmox_gpu_pct_path": pct,
            "proxmox_gpu_nvidia_modprobe_path": modprobe,
            "proxmox_gpu_config_path": str(self.conf.parent),
            "proxmox_gpu_lock_directory": str(directory / "locks"),
            "proxmox_gpu_backup_directory": str(directory / "backups"),
            "proxmox_gpu_unit_directory": str(self.units),
        }
        self.hypervisor["proxmox_gpu_root"] = self.hypervisor["gpu_inventory_root"]
        self.guest = {**self.host("ct129", "2x_a6000"), "proxmox_guest_hypervisor": "pve1", "proxmox_guest_id": 129}
        self.neighbours: dict[str, dict[str, t.Any]] = {}
        self.others: dict[str, dict[str, t.Any]] = {}
        self.collection()

    def alone(self, *words: str, **variables: t.Any) -> Run:
        """The hypervisor's side."""
        return self.run("--limit", "pve1", *words, **variables)

    def pct_state(self, **more: t.Any) -> None:
        (self.directory / "state.json").write_text(json.dumps({**self.state, **more}))

    def host(self, name: str, recorded: str) -> dict[str, t.Any]:
        place = self.directory / name
        place.mkdir()
        shutil.copytree(HOSTS / recorded, place / "host", symlinks=True)
        shutil.copy(DOUBLES / "gpu_host/nvidia_smi.py", place / "nvidia-smi")
        return {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
            "gpu_inventory_root": str(place / "host"),
            "gpu_inventory_nvidia_smi_path": str(place / "nvidia-smi"),
        }

    def collection(self) -> None:
        home = self.directory / "ansible_collections/firstlight/sglang"
        (home / "roles").mkdir(parents=True)
        for name in ("galaxy.yml", "meta", "playbooks", "plugins"):
            (home / name).symlink_to(ROOT / name)
        for role in (ROOT / "roles").iterdir():
            if role.name not in ("gpu_inventory", "proxmox_gpu", "proxmox_guest"):
                (home / "roles" / role.name / "tasks").mkdir(parents=True)
                steps = SERVE if role.name in ("gpu_driver", "sglang_preflight") else []
                (home / "roles" / role.name / "tasks/main.yml").write_text(yaml.safe_dump(steps))
                (home / "roles" / role.name / "meta").symlink_to(role / "meta")
            else:
                (home / "roles" / role.name).symlink_to(role)

    def real_driver(self, **commands: str) -> None:
        """The role gpu_driver itself, whose module looks at a Debian that has only what these commands say."""
        home = self.directory / "ansible_collections/firstlight/sglang"
        shutil.rmtree(home / "roles/gpu_driver")
        (home / "roles/gpu_driver").symlink_to(ROOT / "roles/gpu_driver")
        recorded = self.directory / "recorded"
        (recorded / "etc/pve").mkdir(parents=True)
        (recorded / "etc/os-release").write_text('ID=debian\nVERSION_ID="12"\n')
        answers = {"uname": "6.8.12-4-pve", "machine": "x86_64", "dpkg-query": "", "apt-cache": "", **commands}
        (recorded / "commands.json").write_text(json.dumps(answers))
        (home / "plugins").unlink()
        (home / "plugins/modules").mkdir(parents=True)
        for path in (*(ROOT / "plugins").iterdir(), *(ROOT / "plugins/modules").iterdir()):
            if path.name != "modules":
                (home / path.relative_to(ROOT)).symlink_to(path)
        module = home / "plugins/modules/gpu_driver_info.py"
        text = module.read_text()
        module.unlink()
        assert ROOT_OPTION in text
        module.write_text(text.replace(ROOT_OPTION, ROOT_OPTION.replace('"/"', json.dumps(str(recorded)))))

    def run(self, *words: str, **variables: t.Any) -> Run:
        hypervisor = {**self.hypervisor, "proxmox_gpu_guests": self.guests, **variables}
        groups = {
            "proxmox": {"pve1": hypervisor, **self.others},
            "proxmox_guests": {"ct129": self.guest, **self.neighbours},
            "sglang": {"ct129": {}},
        }
        (self.directory / "hosts.yml").write_text(yaml.safe_dump({name: {"hosts": hosts} for name, hosts in groups.items()}))
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(self.directory),
            "ANSIBLE_HOME": str(self.directory / "home"),
            "PATH": f"{self.directory}/bin:{os.environ['PATH']}",
        }
        command = [pathlib.Path(sys.executable).parent / "ansible-playbook", "-i", "hosts.yml", "firstlight.sglang.proxmox", *words]
        done = subprocess.run(
            command, cwd=self.directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return Run(done.returncode, done.stdout)

    def commands(self, *kinds: str) -> list[list[str]]:
        calls = [json.loads(line) for line in self.calls.read_text().splitlines()] if self.calls.exists() else []
        return [call for call in calls if call[0] in kinds]

    def text(self, name: str) -> str:
        path = self.directory / name
        return path.read_text() if path.exists() else ""


@pytest.fixture
def proxmox(tmp_path):
    return Proxmox(tmp_path)


def without_uvm(proxmox):
    """As after a boot on which nothing has used CUDA (case C17)."""
    lines = proxmox.listing.read_text().splitlines(keepends=True)
    proxmox.listing.write_text("".join(line for line in lines if "nvidia-uvm" not in line))


def test_both_sides_plan_in_check_mode_and_nothing_is_touched(proxmox):
    without_uvm(proxmox)
    run = proxmox.run("--check", "--diff")
    assert run.rc == 0, run.output
    assert run.changed == {"pve1": 2, "ct129": 0}, run.output
    for line in (f"+{line}" for line in GIVEN.splitlines()):
        assert line in run.output
    assert "+Before=pve-guests.service" in run.output
    assert proxmox.conf.read_text() == TEXT
    assert (list(proxmox.units.iterdir()), proxmox.text("modprobe.calls"), proxmox.commands("set", "reboot")) == ([], "", [])
    assert not (proxmox.directory / "backups").exists()
    assert "ct129 is reached by sglang_preflight" in run.output


def test_a_driver_that_works_is_left_alone_on_both_sides_in_check_mode(proxmox):
    proxmox.real_driver()
    run = proxmox.run("--check", gpu_driver_sglang_releases=["0.5.23"], gpu_driver_reboot="if_required")
    assert run.rc == 0, run.output
    assert run.changed == {"pve1": 2, "ct129": 0}, run.output
    # The hypervisor's driver comes before what its guests are given.
    assert (
        0
        < run.output.index("gpu_driver : Decide which driver this host gets")
        < run.output.index("proxmox_gpu : Look for the program that makes device nodes")
    )
    assert "ct129 is reached by sglang_preflight" in run.output


def test_a_real_run_gives_the_gpus_at_boot_too_and_the_second_changes_nothing(proxmox):
    without_uvm(proxmox)
    run = proxmox.run()
    assert run.rc == 0, run.output
    head, snapshot = proxmox.conf.read_text().split("\n[before]\n")
    assert GIVEN in head and "dev0: /dev/ttyUSB0\n" in head
    assert snapshot == TEXT.split("\n[before]\n")[1]
    unit = (proxmox.units / UNIT).read_text()
    assert "\nBefore=pve-guests.service\n" in unit
    program = proxmox.hypervisor["proxmox_gpu_nvidia_modprobe_path"]
    assert re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE) == [f"{program} -c 255 -c 0 -c 1", f"{program} -u -c 0"]
    assert proxmox.text("modprobe.calls") == "-c 255 -c 0 -c 1\n-u -c 0\n"
    assert proxmox.text("units/calls") == f"daemon-reload\nenable {UNIT}\nstart {UNIT}\n"
    assert "ct129 is reached by sglang_preflight" in run.output
    again = proxmox.run()
    assert (again.rc, again.changed) == (0, {"pve1": 0, "ct129": 0}), again.output
    assert proxmox.text("units/calls").count("\n") == 3
    # The hypervisor was booted, and something has stopped the unit from making the node.
    without_uvm(proxmox)
    after = proxmox.alone()
    assert (after.rc, after.changed) == (0, {"pve1": 1}), after.output
    assert "/dev/nvidia-uvm" in proxmox.listing.read_text()


def test_another_version_in_the_guest_stops_it_before_its_service(proxmox):
    library = proxmox.directory / "ct129/host/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.with_name("libnvidia-ml.so.580.126.09").touch()
    library.symlink_to("libnvidia-ml.so.580.126.09")
    run = proxmox.run()
    assert run.rc == 2
    wanted = "ct129 on pve1: expected the driver's userland 580.159.04 in the guest, as the hypervisor's module, found 580.126.09."
    assert wanted in run.words, run.output
    assert "is reached by sglang_preflight" not in run.output
    assert GIVEN in proxmox.conf.read_text(), "the hypervisor's side is done"


def test_a_guest_whose_hypervisor_failed_is_left_alone(proxmox):
    proxmox.guests = [{"id": 129, "gpus": ["7"]}]
    proxmox.others = {"pve2": {**proxmox.hypervisor, "proxmox_gpu_guests": []}}
    run = proxmox.run()
    assert (run.rc, run.changed) == (2, {"pve1": 0, "pve2": 0, "ct129": 0}), run.output
    assert "ct129 on pve1: expected the hypervisor to be set up in this run, found nothing of it." in run.words, run.output
    assert "is reached by sglang_preflight" not in run.output


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        (
            {"proxmox_guest_id": 131, "gpu_driver_power_limit_w": 250},
            (
                "ct129: nothing was changed; to mend first: expected container 131 among the guests of pve1, found 129, 130.",
                "expected no options of a kernel module in a container, found gpu_driver_power_limit_w.",
            ),
        ),
        ({"gpu_driver_reboot_timeout_s": "long"}, ("'gpu_driver_reboot_timeout_s' is of type str and we were unable to convert to int",)),
    ],
    ids=["what does not fit", "a type"],
)
def test_what_is_said_of_a_guest_is_looked_at_before_its_hypervisor_is_touched(proxmox, variables, words):
    proxmox.guests.append({"id": 130, "gpus": ["2"]})
    proxmox.neighbours = {"ct130": {**proxmox.guest, "proxmox_guest_id": 130}}
    proxmox.guest.update(variables)
    run = proxmox.run()
    assert (run.rc, run.changed) == (2, {"ct129": 0, "ct130": 0}), run.output
    for one in words:
        assert one in run.words.replace('"', "'"), run.output
    assert "pve1 is reached by" not in run.output
    assert proxmox.conf.read_text() == TEXT


def test_all_problems_of_all_guests_in_one_message_before_anything_is_changed(proxmox):
    (proxmox.conf.parent / "131.conf").write_text(TEXT)
    proxmox.guests += [
        {"id": 130, "gpus": ["2"]},
        {"id": 131, "gpus": ["0000:01:00.0", "9"], "mode": "666"},
        {"id": 131, "gpus": ["3"]},
    ]
    links = proxmox.directory / "pve1/host/sys/bus/pci/devices/0000:c1:00.0/driver"
    links.unlink()
    links.symlink_to("../../../bus/pci/drivers/vfio-pci")
    run = proxmox.alone(proxmox_gpu_nvidia_modprobe_path="/no/nvidia-modprobe")
    assert run.rc == 2
    for words in (
        "pve1: no container was changed; to mend first: 6 - expected the program /no/nvidia-modprobe, which makes",
        "Install it (Debian's package nvidia-modprobe, in contrib;",
        "container 130: id: expected a container 130, found no",
        "container 131: mode: expected four octal digits in quotes such as '0666', found 666.",
        "container 131: gpus: GPU 3 cannot be given to a container: it is passed through",
        "expected container 131 once, found it 2 times.",
        "expected GPU 0 (00000000:01:00.0) in one container, found it in 129, 131.",
    ):
        assert words in run.words, run.output
    assert (proxmox.conf.read_text(), list(proxmox.units.iterdir()), proxmox.text("modprobe.calls")) == (TEXT, [], "")


def test_containers_that_say_so_share_a_gpu(proxmox):
    (proxmox.conf.parent / "131.conf").write_text(TEXT)
    proxmox.guests = [{"id": 129, "gpus": ["0", "1"], "shared": True}, {"id": 131, "gpus": ["1"], "shared": True}]
    run = proxmox.alone("--check")
    assert (run.rc, run.changed["pve1"]) == (0, 2), run.output


def test_a_running_container_is_restarted_only_where_that_is_allowed(proxmox):
    proxmox.pct_state(running=True, uptime=1000)
    refused = proxmox.alone()
    assert refused.rc == 2
    assert "container 129: expected container 129 to be stopped, found it running: the change needs a restart." in refused.words
    assert (proxmox.conf.read_text(), proxmox.commands("set", "reboot")) == (TEXT, [])
    done = proxmox.alone(proxmox_gpu_restart_allowed=True)
    assert done.rc == 0, done.output
    assert proxmox.commands("reboot") == [["reboot", "129"]]
    assert GIVEN in proxmox.conf.read_text() and "[pve:pending]" not in proxmox.conf.read_text()
    again = proxmox.alone(proxmox_gpu_restart_allowed=True)
    assert (again.rc, again.changed["pve1"], len(proxmox.commands("reboot"))) == (0, 0, 1), again.output


def test_absent_takes_all_away_and_the_second_run_changes_nothing(proxmox):
    proxmox.conf.write_text(TEXT.replace("hostname", f"{GIVEN}hostname", 1))
    for name in (UNIT, f"{UNIT}.enabled", f"{UNIT}.active"):
        (proxmox.units / name).touch()
    run = proxmox.alone("--check", proxmox_gpu_state="absent")
    assert run.changed == {"pve1": 3}, run.output
    assert GIVEN in proxmox.conf.read_text() and not proxmox.text("units/calls")
    run = proxmox.alone(proxmox_gpu_state="absent")
    assert run.rc == 0, run.output
    assert "pve1 is reached by gpu_driver" not in run.output
    assert proxmox.conf.read_text() == TEXT
    assert proxmox.text("units/calls") == f"disable {UNIT}\nstop {UNIT}\ndaemon-reload\n"
    assert [path.name for path in proxmox.units.iterdir()] == ["calls"]
    again = proxmox.alone(proxmox_gpu_state="absent")
    assert (again.rc, again.changed) == (0, {"pve1": 0}), again.output


def test_a_hypervisor_without_the_driver_yet_can_be_planned_for(proxmox):
    shutil.rmtree(proxmox.directory / "pve1/host")
    shutil.copytree(HOSTS / "nouveau", proxmox.directory / "pve1/host", symlinks=True)
    del proxmox.hypervisor["gpu_inventory_nvidia_smi_path"]
    run = proxmox.alone("--check")
    assert run.rc == 0, run.output
    assert "The driver is not loaded on pve1." in run.words
    assert "container 129: gpus: GPU 0000:01:00.0 cannot be given" in run.words or "container 129: gpus: expected an index" in run.words
    run = proxmox.alone()
    assert run.rc == 2, run.output
    assert proxmox.conf.read_text() == TEXT


def test_the_preflight_after_the_driver_does_not_claim_that_nothing_was_changed(tmp_path):
    task = {"ansible.builtin.debug": {"msg": "{{ __sglang_preflight_message }}"}}
    variables = {"__sglang_preflight_problems": ["expected a model"], "ansible_connection": "local"}
    plays = [
        {"hosts": "localhost", "gather_facts": False, "vars_files": [str(ROOT / "roles/sglang_preflight/vars/main.yml")],
         "tasks": [{**task, "vars": {**variables, **more}}]}
        for more in ({}, {"gpu_driver_mode_used": "userland"})
    ]  # fmt: skip
    (tmp_path / "play.yml").write_text(yaml.safe_dump(plays))
    command = [pathlib.Path(sys.executable).parent / "ansible-playbook", "-i", "localhost,", tmp_path / "play.yml"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"nothing .*to mend first: 1", output) == [
        "nothing was changed; to mend first: 1",
        "nothing more was changed; to mend first: 1",
    ]
