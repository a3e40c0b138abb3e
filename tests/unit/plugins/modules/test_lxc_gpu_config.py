"""The module on directories in the place of /etc/pve/lxc, /run/lock/lxc and the backups, with a program in the place of pct."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_system
from ansible_collections.firstlight.sglang.plugins.module_utils import _lxc_config as lxc

ROOT = pathlib.Path(__file__).parents[4]
SAMPLES = ROOT / "tests/fixtures/gpu"
MODULE = ROOT / "plugins/modules/lxc_gpu_config.py"
DOUBLE = ROOT / "tests/doubles/pct_double.py"

spec = importlib.util.spec_from_file_location("pct_double", DOUBLE)
pct = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pct)

UVM_MAJOR = 511


def nodes(uvm=UVM_MAJOR):
    listing = [(f"/dev/nvidia{number}", 195, number) for number in range(4)]
    listing += [("/dev/nvidiactl", 195, 255), ("/dev/nvidia-uvm", uvm, 0), ("/dev/nvidia-uvm-tools", uvm, 1)]
    return [{"path": path, "kind": "character", "major": major, "minor": minor, "mode": "0666"} for path, major, minor in listing]


def inventory(uvm=UVM_MAJOR):
    gpus = [
        {"index": index, "minor_number": index, "uuid": f"GPU-{index}", "name": "NVIDIA RTX A6000", "pci_bus_id": f"00000000:{bus}:00.0"}
        for index, bus in enumerate(("01", "41", "81", "C1"))
    ]
    return {"gpus": gpus, "device_nodes": nodes(uvm), "device_majors": {"nvidia": 195, "nvidia-uvm": uvm, "nvidia-caps": 236}}


TEXT = "# Owner: team llm\narch: amd64\ndev0: /dev/ttyUSB0\nhostname: ct129\nunprivileged: 1\nlxc.apparmor.profile: unconfined\n"
SNAPSHOT = "\n[before]\narch: amd64\nsnaptime: 1760000000\nlxc.cgroup2.devices.allow: c 509:* rwm\n"
DEVICES = "".join(
    f"dev{n}: /dev/{name},mode=0666\n" for n, name in enumerate(("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"), 1)
)


class Hypervisor:
    """What there is, and how to ask the module."""

    def __init__(self, tmp_path):
        self.tmp = tmp_path
        self.configs = tmp_path / "pve/lxc"
        self.backups = tmp_path / "backups"
        self.locks = tmp_path / "locks"
        self.root = tmp_path / "root"
        self.calls = tmp_path / "calls"
        self.file = self.configs / "129.conf"
        self.configs.mkdir(parents=True)
        (self.root / "proc").mkdir(parents=True)
        (self.root / "dev").mkdir()
        (self.root / "proc/devices").write_text((SAMPLES / "proc_devices_511_236.txt").read_text())
        self.file.write_text(TEXT)
        self.state = {"config_path": str(self.configs), "lock_directory": str(self.locks), "calls": str(self.calls)}
        self.pct = tmp_path / "pct"
        self.pct.write_text(f'#!/bin/sh\nexec {sys.executable} {DOUBLE} {tmp_path}/state.json "$@"\n')
        self.pct.chmod(0o755)

    def arguments(self, **options):
        (self.tmp / "state.json").write_text(json.dumps(self.state))
        return {
            "id": 129,
            "gpus": ["0", "1"],
            "inventory": inventory(),
            "config_path": str(self.configs),
            "backup_directory": str(self.backups),
            "lock_directory": str(self.locks),
            "root": str(self.root),
            "pct_path": str(self.pct),
            **options,
        }

    def start(self, *, code=None, check=False, diff=False, **options):
        """The module as Ansible starts it; code runs before it in the same process."""
        arguments = {**self.arguments(**options), "_ansible_check_mode": check, "_ansible_diff": diff}
        command = [sys.executable, MODULE]
        if code:
            command = [sys.executable, "-c", f"{code}\nimport runpy, sys\nrunpy.run_path({str(MODULE)!r}, run_name='__main__')"]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
        )
        return process, json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode()

    def ask(self, **options):
        process, data = self.start(**options)
        out, err = process.communicate(data, timeout=60)
        assert b"Traceback" not in err, err.decode()
        return json.loads(out)

    def set_calls(self):
        calls = [json.loads(line) for line in self.calls.read_text().splitlines()] if self.calls.exists() else []
        return [call for call in calls if call[0] == "set"]

    def saved(self):
        return sorted(self.backups.iterdir()) if self.backups.exists() else []


@pytest.fixture
def pve(tmp_path):
    return Hypervisor(tmp_path)


RAW = {"style": "raw"}
WITHOUT_PCT = {"pct_path": None, "release": "8.2.4"}


def without_pct(pve):
    """No pct at all, whatever this machine has in its path."""
    return {**WITHOUT_PCT, "code": f"import os; os.environ['PATH'] = {str(pve.tmp / 'nothing')!r}"}


# What is done


def test_devices_go_through_pct(pve):
    pve.file.write_text(TEXT + SNAPSHOT)
    result = pve.ask()
    assert (result["changed"], result["style"], result["restart_required"], result["running"]) == (True, "dev", False, False)
    assert pve.file.read_text() == TEXT.replace("hostname", f"{DEVICES}hostname") + SNAPSHOT
    (call,) = pve.set_calls()
    assert call[:4] == ["set", "129", "--dev1", "/dev/nvidia0,mode=0666"]
    assert call[-2] == "--digest"
    assert result["nodes"] == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert result["devices"][0] == "/dev/nvidia0 (dev1, mode 0666): GPU 0 NVIDIA RTX A6000 00000000:01:00.0"
    assert pathlib.Path(result["backup_file"]).read_text() == TEXT + SNAPSHOT
    assert pve.saved() == [pathlib.Path(result["backup_file"])]
    again = pve.ask()
    assert (again["changed"], again["backup_file"], again["nodes"]) == (False, None, result["nodes"])
    assert len(pve.set_calls()) == 1


def test_raw_lines_are_written_where_proxmox_keeps_them(pve):
    pve.file.write_text(TEXT + SNAPSHOT)
    result = pve.ask(**RAW)
    assert (result["changed"], result["style"]) == (True, "raw")
    assert pve.set_calls() == []
    text = pve.file.read_text()
    assert text.startswith(TEXT + "lxc.cgroup2.devices.allow: c 195:0 rw\n")
    assert text.endswith("create=file\n" + SNAPSHOT)
    assert pct.rewrite(text) == text
    assert pve.ask(**RAW)["changed"] is False
    # Proxmox writes the file anew whenever anything is changed in it.
    moved = "\n".join(sorted(text.partition("\n[before]")[0].splitlines(), reverse=True)) + "\n" + SNAPSHOT
    pve.file.write_text(pct.rewrite(moved))
    assert pve.ask(**RAW)["changed"] is False


def test_stale_majors_are_put_right(pve):
    """Cases C18 and pitfall 4."""
    text = (SAMPLES / "lxc_conf_stale_major.conf").read_text()
    pve.file.write_text(text)
    result = pve.ask(style="raw", gpus=["0"], inventory=inventory(uvm=508), diff=True)
    assert result["changed"]
    assert pve.file.read_text() == text.replace("c 511:*", "c 508:*")
    assert result["diff"]["after"] == pve.file.read_text()
    assert pve.ask(style="raw", gpus=["0"], inventory=inventory(uvm=508))["changed"] is False


def test_raw_lines_become_devices_and_back(pve):
    text = (SAMPLES / "lxc_conf_stale_major.conf").read_text()
    pve.file.write_text(text)
    assert pve.ask(gpus=["0"], mig_caps=[])["changed"]
    assert "lxc." not in pve.file.read_text()
    assert lxc.given_nodes(lxc.parse(pve.file.read_text())) == [
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    ]
    assert pve.ask(gpus=["0"], mig_caps=[])["changed"] is False
    assert pve.ask(style="raw", gpus=["0"])["changed"]
    assert "dev0" not in pve.file.read_text()
    assert len(pve.saved()) == 2


def test_all_is_taken_away(pve):
    pve.file.write_text(TEXT + SNAPSHOT)
    for options in ({}, RAW):
        assert pve.ask(**options)["changed"]
        result = pve.ask(state="absent", gpus=None, inventory=None)
        assert (result["changed"], result["nodes"], result["style"]) == (True, [], "")
        assert pve.file.read_text() == TEXT + SNAPSHOT
        assert pve.ask(state="absent", gpus=None, inventory=None)["changed"] is False


def test_capabilities_are_taken_away_too(pve):
    caps = "lxc.cgroup2.devices.allow: c 236:* rwm\nlxc.mount.entry: /dev/nvidia-caps dev/nvidia-caps none bind,optional,create=dir\n"
    pve.file.write_text(TEXT + caps)
    pve.ask()
    assert caps in pve.file.read_text()
    pve.ask(state="absent")
    assert pve.file.read_text() == TEXT


def test_another_gpu(pve):
    pve.ask(gpus=["0"])
    result = pve.ask(gpus=["GPU-3"])
    assert result["nodes"][-1] == "/dev/nvidia3"
    assert "/dev/nvidia0" not in result["nodes"]
    assert "dev0: /dev/ttyUSB0" in pve.file.read_text()


def test_mode_and_owner(pve):
    pve.ask(mode="0660", gid=44, uid=0)
    assert "dev1: /dev/nvidia0,mode=0660,gid=44\n" in pve.file.read_text()
    assert pve.ask(mode="0660", gid=44, uid=0)["changed"] is False


def test_an_older_proxmox_gets_raw_lines(pve):
    pve.state["knows_devices"] = False
    assert pve.ask()["style"] == "raw"
    assert "lxc.mount.entry: /dev/nvidia1" in pve.file.read_text()
    message = pve.ask(mode="0660", uid=1)["msg"]
    assert "mode: expected only with style dev, found a Proxmox without devN keys" in message
    assert "uid: expected only" in message
    assert "style: expected a Proxmox VE with devN keys" in pve.ask(style="dev")["msg"]


def test_without_pct_devices_are_written_by_hand(pve):
    pve.file.write_text(TEXT + SNAPSHOT)
    result = pve.ask(**without_pct(pve))
    assert (result["changed"], result["style"], result["running"]) == (True, "dev", False)
    assert pve.file.read_text() == TEXT.replace("hostname", f"{DEVICES}hostname") + SNAPSHOT
    assert pve.ask(**without_pct(pve))["changed"] is False
    pve.file.write_text(TEXT + "\n[pve:pending]\ndev3: /dev/ttyACM0\n")
    assert "expected pct, since dev3 wait for a start" in pve.ask(**without_pct(pve))["msg"]


def test_without_pct_and_release_nothing_is_guessed(pve):
    options = {**without_pct(pve), "release": None}
    assert "found neither pct nor a release. Say style: dev or raw" in pve.ask(**options)["msg"]
    assert pve.ask(**options, style="raw")["changed"]


def test_bytes_that_are_no_text_stay(pve):
    data = TEXT.encode().replace(b"team llm", b"\xff\xe9quipe") + b"no line feed at the end"
    pve.file.write_bytes(data)
    result = pve.ask(**RAW, diff=True)
    assert pve.file.read_bytes().startswith(data + b"\nlxc.cgroup2.devices.allow")
    assert "\ufffd\ufffdquipe" in result["diff"]["before"]
    assert pathlib.Path(result["backup_file"]).read_bytes() == data


def test_the_file_keeps_its_mode_and_the_backup_is_private(pve):
    pve.file.chmod(0o640)
    result = pve.ask(**RAW)
    assert stat.S_IMODE(pve.file.stat().st_mode) == 0o640
    assert stat.S_IMODE(pathlib.Path(result["backup_file"]).stat().st_mode) == 0o600
    assert stat.S_IMODE(pve.backups.stat().st_mode) == 0o700


def test_foreign_devices_are_looked_up_on_the_hypervisor(pve):
    """A number of before could be that of /dev/kfd, which is not there now."""
    left = "lxc.cgroup2.devices.allow: c 509:* rwm\nlxc.mount.entry: /dev/kfd dev/kfd none bind,create=file\n"
    ours = "lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,create=file\n"
    pve.file.write_text(left + ours)
    result = pve.ask(**RAW)
    assert pve.file.read_text().startswith(left + ours)
    assert "no driver has major 509 now; it may be that of /dev/kfd" in json.dumps(result["warnings"])
    # The number has an owner now, who is not NVIDIA.
    (pve.root / "proc/devices").write_text("Character devices:\n509 kfd\n")
    pve.file.write_text(left + ours)
    assert "warnings" not in pve.ask(**RAW)
    assert pve.file.read_text().startswith(left + ours)


# Check mode and diff mode


@pytest.mark.parametrize("options", [{}, RAW])
def test_check_mode_says_what_would_be_done(pve, options):
    pve.file.write_text(TEXT + SNAPSHOT)
    result = pve.ask(check=True, diff=True, **options)
    assert (result["changed"], result["backup_file"]) == (True, None)
    assert pve.file.read_text() == TEXT + SNAPSHOT
    assert (pve.saved(), pve.set_calls(), pve.locks.exists()) == ([], [], False)
    real = pve.ask(diff=True, **options)
    assert real["diff"] == result["diff"]
    assert (real["nodes"], real["devices"]) == (result["nodes"], result["devices"])
    assert pve.ask(check=True, **options)["changed"] is False


# A container that runs


def test_a_running_container_is_not_changed_unless_allowed(pve):
    pve.state.update(running=True, uptime=1000)
    result = pve.ask()
    assert "expected container 129 to be stopped, found it running: the change needs a restart." in result["msg"]
    assert pve.file.read_text() == TEXT
    assert pve.ask(check=True)["failed"]
    pve.state.update(running=False)
    pve.ask()
    pve.state.update(running=True, uptime=0)
    result = pve.ask()
    assert (result["changed"], result["restart_required"], result["running"]) == (False, False, True)


@pytest.mark.parametrize("hotplug", [True, False])
def test_a_restart_is_asked_for_until_it_happened(pve, hotplug):
    pve.state.update(running=True, uptime=1000, hotplug=hotplug)
    result = pve.ask(restart_allowed=True)
    assert (result["changed"], result["restart_required"]) == (True, True)
    assert ("[pve:pending]" in pve.file.read_text()) != hotplug
    assert {json.loads(line)[0] for line in pve.calls.read_text().splitlines()} == {"help", "status", "set"}
    for allowed in (True, False):
        again = pve.ask(restart_allowed=allowed)
        assert (again["changed"], again["restart_required"], again["nodes"]) == (False, True, result["nodes"])
    subprocess.run([pve.pct, "start", "129"], check=True)
    pve.state.update(uptime=0)
    time.sleep(0.05)
    after = pve.ask()
    assert (after["changed"], after["restart_required"], after["nodes"]) == (False, False, result["nodes"])


def test_what_waits_for_a_start_can_be_taken_back(pve):
    pve.ask()
    pve.state.update(running=True, uptime=0)
    assert pve.ask(state="absent", restart_allowed=True)["nodes"] == []
    assert "delete: dev1,dev2,dev3,dev4,dev5" in pve.file.read_text()
    assert pve.ask(state="absent")["changed"] is False
    result = pve.ask(restart_allowed=True)
    assert (result["changed"], len(result["nodes"])) == (True, 5)
    assert pve.ask()["changed"] is False


def test_what_someone_else_left_for_the_next_start(pve):
    pve.file.write_text(TEXT + "\n[pve:pending]\n" + DEVICES)
    pve.state.update(running=True, uptime=1000)
    result = pve.ask()
    assert (result["changed"], result["restart_required"], len(result["nodes"])) == (False, True, 5)
    pve.file.write_text(TEXT + DEVICES + "\n[pve:pending]\nmemory: 1024\n")
    assert pve.ask()["restart_required"] is False


def test_raw_lines_of_a_running_container(pve):
    pve.state.update(running=True, uptime=1000)
    assert "found it running" in pve.ask(**RAW)["msg"]
    result = pve.ask(**RAW, restart_allowed=True)
    assert (result["changed"], result["restart_required"]) == (True, True)
    again = pve.ask(**RAW)
    assert (again["changed"], again["restart_required"]) == (False, True)


# What is refused


def test_all_problems_in_one_message(pve):
    (pve.tmp / "pve/nodes/pve2/lxc").mkdir(parents=True)
    (pve.tmp / "pve/nodes/pve2/lxc/130.conf").write_text(TEXT)
    broken = inventory()
    broken["gpus"][1].update(kernel_driver="vfio-pci", health="passed_through")
    broken["gpus"][2].update(health="lost")
    broken["gpus"][3].update(minor_number=None)
    broken["device_nodes"] = [node for node in broken["device_nodes"] if node["path"] != "/dev/nvidia-uvm"]
    message = pve.ask(id=130, gpus=["0", "1", "2", "3", "9"], inventory=broken)["msg"]
    assert [line.partition(", found")[0].partition(":")[0] for line in message.splitlines()] == [
        "id",
        "gpus",
        "gpus",
        "gpus",
        "gpus",
        "/dev/nvidia-uvm",
    ]
    for words in (
        "found no",
        "130.conf. It is on the node pve2.",
        "GPU 1 cannot be given to a container: it is passed through",
        "GPU 2 cannot be given to a container: it is lost",
        "GPU 3 cannot be given to a container: it has no minor number",
        "found 9.",
        "nvidia-modprobe -u -c 0",
    ):
        assert words in message


def test_a_virtual_machine(pve):
    (pve.tmp / "pve/qemu-server").mkdir()
    (pve.tmp / "pve/qemu-server/131.conf").write_text("")
    assert "131 is a virtual machine." in pve.ask(id=131)["msg"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"id": 99}, ["id: expected 100 or more, found 99."]),
        ({"gpus": []}, ["gpus: expected at least one, found none."]),
        ({"gpus": None}, ["gpus: expected at least one"]),
        ({"inventory": None}, ["inventory: expected the result of gpu_info"]),
        ({"inventory": {"gpus": []}}, ["found no usable device_nodes, device_majors."]),
        ({"mode": "666"}, ["mode: expected four octal digits in quotes such as '0666', found 666."]),
        ({"mode": 0o666}, ["found 438."]),
        ({"uid": -1}, ["uid: expected 0 to 4294967294, found -1."]),
        ({"gid": 4294967295}, ["gid: expected 0 to 4294967294, found 4294967295."]),
        ({"uid": 99999999999999}, ["uid: expected 0 to 4294967294, found 99999999999999."]),
        ({"mig_caps": [-1]}, ["mig_caps: expected"]),
        ({"style": "raw", "mode": "0666", "gid": 1}, ["mode: expected only with style dev", "gid: expected only with style dev"]),
        ({"pct_path": "/nonexistent/pct"}, ["pct_path: expected an executable pct"]),
        ({"lock_timeout_s": -1}, ["lock_timeout_s: expected 0 or more"]),
        ({"backup_directory": "/etc/pve/backups"}, ["backup_directory: expected one outside of /etc/pve"]),
        ({"id": 5, "gpus": [], "mode": "x"}, ["id: expected 100", "gpus: expected", "mode: expected", "expected a container 5"]),
    ],
)  # fmt: skip
def test_bad_options(pve, options, words):
    result = pve.ask(**options)
    assert result["failed"]
    for word in words:
        assert word in result["msg"]
    assert pve.file.read_text() == TEXT
    assert pve.saved() == []


def test_backups_in_the_directory_of_the_files(pve):
    assert "backup_directory: expected one outside of" in pve.ask(backup_directory=str(pve.configs / "old"))["msg"]


def test_a_directory_in_the_place_of_the_file(pve):
    pve.file.unlink()
    pve.file.mkdir()
    told = f"id: expected the file of container 129, found that it cannot be read: {pve.file}: Is a directory."
    assert pve.ask(**without_pct(pve))["msg"] == told


def test_a_file_system_of_proxmox_that_is_dead(pve):
    """pmxcfs was killed: its mount is still there, and each access ends in ENOTCONN."""
    code = (
        "import pathlib, errno\n"
        "def refuse(self): raise OSError(errno.ENOTCONN, 'Transport endpoint is not connected', str(self))\n"
        "pathlib.Path.read_bytes = refuse"
    )
    message = pve.ask(code=code)["msg"]
    assert message.endswith(
        "Transport endpoint is not connected. What Proxmox has at /etc/pve does not answer: see systemctl status pve-cluster."
    )
    assert (pve.file.read_text(), pve.saved(), pve.set_calls()) == (TEXT, [], [])


@pytest.mark.parametrize("options", [{}, RAW, {"state": "absent"}])
def test_a_symbolic_link_in_the_place_of_the_file(pve, options):
    other = pve.tmp / "elsewhere.conf"
    pve.file.rename(other)
    pve.file.symlink_to(other)
    told = f"id: expected {pve.file} to be a file, found a symbolic link to {other}. Put the file in its place."
    assert pve.ask(**options)["msg"] == told
    assert (pve.file.is_symlink(), other.read_text(), pve.saved()) == (True, TEXT, [])


def test_an_inventory_with_text_in_the_place_of_numbers(pve):
    broken = inventory()
    broken["gpus"][0]["minor_number"] = "0"
    broken["device_nodes"][0]["mode"] = "rw"
    message = pve.ask(inventory=broken, **RAW)["msg"]
    assert "expected a whole number as minor_number of GPU 0, found '0'." in message
    assert "expected an octal mode such as '0666' of /dev/nvidia0, found 'rw'." in message


@pytest.mark.parametrize("style", ["raw", "dev"])
def test_a_file_without_a_line_feed_at_its_end_gets_none(pve, style):
    pve.file.write_text(TEXT.rstrip("\n"))
    options = without_pct(pve)
    pve.ask(style=style, **options)
    assert "/dev/nvidia1" in pve.file.read_text()
    pve.ask(state="absent", **options)
    assert pve.file.read_text() == TEXT.rstrip("\n")


@pytest.mark.parametrize("options", [{}, RAW])
def test_a_container_that_proxmox_works_on(pve, options):
    pve.file.write_text(f"lock: backup\n{TEXT}")
    message = pve.ask(**options)["msg"]
    assert "found it locked (backup)" in message
    assert pve.file.read_text() == f"lock: backup\n{TEXT}"


def test_pct_that_does_not_answer(pve):
    pve.pct.write_text("#!/bin/sh\necho 'ipcc_send_rec failed: Connection refused' >&2\nexit 111\n")
    message = pve.ask()["msg"]
    assert "expected pct status 129 to answer, found: ipcc_send_rec failed: Connection refused." in message


def test_pct_that_refuses(pve):
    pve.state["devices"] = ["/dev/nvidia0"]
    result = pve.ask()
    assert "expected pct set 129 --dev1 /dev/nvidia0,mode=0666" in result["msg"]
    assert "Device /dev/nvidia1 does not exist" in result["msg"]
    assert result["msg"].endswith("The file is as it was.")
    assert (result["backup_file"], pve.saved(), pve.file.read_text()) == (None, [], TEXT)


def test_pct_that_does_nothing(pve):
    pve.state["lazy"] = True
    result = pve.ask()
    assert "to be done by pct set, found it not done" in result["msg"]
    assert pve.saved() == []


def test_a_file_that_changes_before_pct_sets(pve):
    """Someone edits the file between our look and pct: pct compares the digest."""
    code = (
        "import ansible.module_utils.basic as b\nold = b.AnsibleModule.run_command\n"
        "def run(self, args, **more):\n"
        f"    if args[1] == 'set': open({str(pve.file)!r}, 'a').write('memory: 1\\n')\n"
        "    return old(self, args, **more)\n"
        "b.AnsibleModule.run_command = run"
    )
    result = pve.ask(code=code)
    assert "detected modified configuration" in result["msg"]
    assert "dev1" not in pve.file.read_text()


# Locks, and a run that is killed


def hold(path):
    path.parent.mkdir(exist_ok=True)
    stream = path.open("a")
    fcntl.flock(stream, fcntl.LOCK_EX)
    return stream


@pytest.mark.parametrize("options", [RAW, {}])
def test_a_lock_that_is_held(pve, options):
    with hold(pve.locks / "pve-config-129.lock"):
        result = pve.ask(lock_timeout_s=1, **options)
    assert ("expected the lock" if options else "can't lock file") in result["msg"]
    assert result["msg"].endswith("The file is as it was.")
    assert (pve.file.read_text(), pve.saved()) == (TEXT, [])
    # The lock of another container is not in the way.
    with hold(pve.locks / "pve-config-130.lock"):
        assert pve.ask(lock_timeout_s=0, **options)["changed"]


def test_what_was_changed_while_waiting_for_the_lock_stays(pve):
    stream = hold(pve.locks / "pve-config-129.lock")

    def finish():
        time.sleep(1.5)
        pve.file.write_text(pct.rewrite(TEXT + "memory: 4096\nlxc.init.cmd: /bin/x\n"))
        stream.close()

    other = threading.Thread(target=finish)
    other.start()
    result = pve.ask(**RAW)
    other.join()
    assert result["changed"]
    text = pve.file.read_text()
    assert "memory: 4096\n" in text and "lxc.init.cmd: /bin/x\nlxc.cgroup2.devices.allow: c 195:0 rw\n" in text


def test_a_lock_of_proxmox_that_appears_while_waiting(pve):
    stream = hold(pve.locks / "pve-config-129.lock")

    def finish():
        time.sleep(1.5)
        pve.file.write_text(f"lock: snapshot\n{TEXT}")
        stream.close()

    other = threading.Thread(target=finish)
    other.start()
    result = pve.ask(**RAW)
    other.join()
    assert "found it locked (snapshot)" in result["msg"]
    assert pve.file.read_text() == f"lock: snapshot\n{TEXT}"


KILL = """
import os, signal
old = os.{function}
def kill(*arguments, **more):
    {before}
    result = old(*arguments, **more)
    {after}
    return result
count = 0
os.{function} = kill
"""
NOW = "global count; count += 1; count == {number} and os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize("style", ["raw", "dev"])
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize(("function", "number"), [("rename", 1), ("rename", 2), ("fsync", 1), ("fsync", 2)])
def test_a_run_that_is_killed_leaves_the_old_file_or_the_new(pve, function, number, place, style):
    """Without pct everything is one write: the backup is the first that is renamed, the file the second."""
    pve.file.write_text(TEXT + SNAPSHOT)
    options = {"style": style, **without_pct(pve)}
    expected = pve.ask(check=True, diff=True, **options)["diff"]["after"]
    kill = KILL.format(function=function, **{"before": "pass", "after": "pass", place: NOW.format(number=number)})
    process, data = pve.start(**{**options, "code": f"{options['code']}\n{kill}"})
    process.communicate(data, timeout=60)
    assert process.returncode == -signal.SIGKILL
    done = (function, number, place) == ("rename", 2, "after")
    assert pve.file.read_text() == (expected if done else TEXT + SNAPSHOT)
    assert pve.ask(**options)["changed"] != done
    assert pve.file.read_text() == expected
    assert [path.name for path in pve.configs.iterdir()] == ["129.conf"]


def test_a_run_that_is_killed_between_pct_and_the_raw_lines_is_made_good(pve):
    text = (SAMPLES / "lxc_conf_stale_major.conf").read_text()
    pve.file.write_text(text)
    options = {"gpus": ["0"], "mig_caps": []}
    code = KILL.format(function="rename", before=NOW.format(number=2), after="pass")
    process, data = pve.start(code=code, **options)
    process.communicate(data, timeout=60)
    assert process.returncode == -signal.SIGKILL
    half = pve.file.read_text()
    assert "dev0: /dev/nvidia0" in half and "lxc.mount.entry: /dev/nvidia0" in half
    assert pve.ask(**options)["changed"]
    assert "lxc." not in pve.file.read_text()


def test_a_file_system_without_quorum(pve):
    code = (
        "import os, errno\nold = os.open\n"
        "def refuse(path, flags, *more, **other):\n"
        "    if '129.conf.tmp' in str(path) and 'pve/lxc' in str(path): raise PermissionError(errno.EACCES, 'Permission denied', path)\n"
        "    return old(path, flags, *more, **other)\n"
        "os.open = refuse"
    )
    result = pve.ask(code=code, **RAW)
    assert "Permission denied. A node without quorum must not write: see pvecm status." in result["msg"]
    assert (pve.file.read_text(), pve.saved()) == (TEXT, [])


def test_what_the_fixtures_say_of_the_majors(pve):
    text = (pve.root / "proc/devices").read_text()
    assert _gpu_system.device_majors(text)["nvidia-uvm"] == UVM_MAJOR
