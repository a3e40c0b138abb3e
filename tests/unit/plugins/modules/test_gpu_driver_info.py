"""The module on recorded hosts: files, and what commands printed."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import types

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_plan, _gpu_inventory, _gpu_system
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_facts import Wanted
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import Reading
from ansible_collections.firstlight.sglang.plugins.modules import gpu_driver_info

ROOT = pathlib.Path(__file__).parents[4]
DRIVER = ROOT / "tests/fixtures/driver"
MODULE = "lib/modules/6.12.57+deb13-amd64/updates/dkms/nvidia.ko"  # of the kernel that `recorded` runs
RECORD = {"packages_before": [], "configurations_before": [], "files": [], "units": [], "runfile": False, "mode": "kernel"}
SOURCES = """Types: deb
URIs: http://deb.debian.org/debian
Suites: trixie trixie-updates
Components: main contrib non-free non-free-firmware
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


def ask(**options):
    """Run the module as Ansible does; its result."""
    result = subprocess.run(
        [sys.executable, ROOT / "plugins/modules/gpu_driver_info.py"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": {"_ansible_remote_tmp": str(options["root"]), **options, "root": str(options["root"])}}),
        env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in result.stderr, result.stderr
    return json.loads(result.stdout)


def inventory(version=None, container=True, **host):
    system = {"container": container, "virtualization": "lxc" if container else "none", "secure_boot": "disabled", **host}
    text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n" if version else ""
    card = {"pci_bus_id": "00000000:01:00.0", "pci_device_id": "10de:2230", "kernel_driver": "nvidia" if version else None}
    readings = [Reading("system", host=system), _gpu_system.proc_reading(text, {}), Reading("sysfs", gpus=[] if container else [card])]
    return _gpu_inventory.unite(readings)


@pytest.fixture
def recorded(tmp_path):
    def write(files=None, release='ID=debian\nVERSION_ID="13"\n', **commands):
        answers = {"uname": "6.12.57+deb13-amd64", "machine": "x86_64", "dpkg-query": "", "apt-cache": "", **commands}
        everything = {"etc/os-release": release, "etc/apt/sources.list.d/debian.sources": SOURCES, "commands.json": json.dumps(answers)}
        for name, text in {**everything, **(files or {})}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def codes(result):
    return [problem["code"] for problem in result["problems"]]


def test_a_container_gets_exactly_the_userland_of_its_host(recorded):
    root = recorded(**{"apt-cache": (DRIVER / "policy_debian13.txt").read_text()})
    result = ask(root=root, inventory=inventory("550.163.01"))
    assert (codes(result), result["mode"], result["plan"]["source"]) == ([], "userland", "distribution")
    assert result["summary"] == "", "the driver is still to be brought"
    assert all("=550.163.01-" in name for name in result["plan"]["packages"])
    assert result["plan"]["kernels"] == []
    assert not result["reboot_allowed"]


def test_a_user_that_is_not_there_is_told_before_anything_changes(recorded):
    root = recorded(**{"apt-cache": (DRIVER / "policy_debian13.txt").read_text()})
    assert codes(ask(root=root, inventory=inventory("550.163.01"), device_user="no-such-user")) == ["no_user"]


@pytest.mark.skipif(pathlib.Path("/dev/nvidiactl").exists(), reason="this machine has the nodes")
@pytest.mark.parametrize(
    ("version", "container", "asked", "expected"),
    [
        ("550.163.01", True, {}, ["device_enoent"]),
        ("550.54.14", True, {"source": "distribution"}, ["no_matching_userland", "device_enoent"]),
        (None, True, {}, ["no_module_on_host"]),
        ("550.163.01", False, {"mode": "userland"}, []),
        ("550.163.01", True, {"device_user": None}, []),
    ],
    ids=["stopped", "told with all else", "the host comes first", "a host makes its own", "nobody asks"],
)
def test_a_node_that_a_container_was_not_given_stops_before_anything_changes(recorded, version, container, asked, expected):
    root = recorded(**{"apt-cache": (DRIVER / "policy_debian13.txt").read_text()})
    result = ask(root=root, inventory=inventory(version, container), **{"device_user": "root", **asked})
    assert codes(result) == expected
    assert (result["plan"] is None) == bool(expected)


@pytest.mark.parametrize("text", ["[1]", '{"a": 1}', "", json.dumps({**RECORD, "files": ["/etc/passwd"]})])
def test_a_record_that_is_none_removes_nothing(recorded, text):
    told = ask(root=recorded({"record.json": text}), inventory=inventory("550.163.01"), state="absent", record_path="/record.json")
    assert told["failed"]
    assert told["msg"].startswith("record_path: expected the record of the role gpu_driver in /record.json, found ")


def test_libraries_of_another_architecture_are_not_the_hosts_own(recorded):
    """With libcuda1:i386 alone, a container has no libcuda that Python could load."""
    listed = "".join(f"{name}:i386\t550.163.01-2\tii \tnvidia-graphics-drivers\n" for name in ("libcuda1", "libnvidia-ml1"))
    answers = {"apt-cache": (DRIVER / "policy_debian13.txt").read_text(), "dpkg-query": listed}
    result = ask(root=recorded(**answers), inventory=inventory("550.163.01"))
    names = {name.partition("=")[0] for name in result["plan"]["packages"]}
    assert {"libcuda1", "libnvidia-ml1", "nvidia-smi"} <= names
    assert result["plan"]["packages_remove"] == []
    assert result["packages"] == ["libcuda1:i386", "libnvidia-ml1:i386"]


def test_another_version_is_refused_with_what_there_is_and_the_ways_out(recorded):
    root = recorded(**{"apt-cache": (DRIVER / "policy_debian13.txt").read_text()})
    result = ask(root=root, inventory=inventory("550.54.14"), source="distribution")
    assert codes(result) == ["no_matching_userland"]
    text = result["problems"][0]["text"]
    assert all(word in text for word in ("550.54.14", "550.163.01", "gpu_driver_runfile", "container's host"))
    assert (result["plan"], result["steps"]) == (None, [])


def test_all_problems_come_at_once(recorded):
    result = ask(root=recorded(), inventory=inventory(), branch=99, version="x", mode="kernel", sglang_releases=["nonsense"])
    assert {"bad_branch", "bad_version", "branch_and_version", "bad_release", "kernel_mode_in_container"} <= set(codes(result))


def test_power_clocks_dpkg_and_a_file_that_is_not_there_are_told_with_all_else(recorded):
    root = recorded(**{"dpkg-query": (DRIVER / "dpkg_half.txt").read_text()})
    asked = {"branch": 99, "clocks_mhz": [1800, 210], "power_limit_w": -1, "runfile": "/srv/NVIDIA-Linux-x86_64-580.95.05.run"}
    result = ask(root=root, inventory=inventory(None, False), sglang_releases=["0.1", "0.5.23", "newest"], **asked)
    told = {problem["code"]: problem["text"] for problem in result["problems"]}
    assert {"bad_branch", "broken_packages", "clocks", "power_limit", "runfile_not_found", "bad_release"} <= set(told)
    assert "'0.1', 'newest'" in told["bad_release"]
    assert len(result["problems"]) == len(set(codes(result))), "each of them once"


def test_the_release_that_asks_for_the_newest_driver_counts(recorded):
    old = ask(root=recorded(), inventory=inventory("550.163.01", False), sglang_releases=["0.5.9"])
    new = ask(root=recorded(), inventory=inventory("550.163.01", False), sglang_releases=["0.5.9", "0.5.23"])
    assert (codes(old), old["mode"]) == ([], "none")
    assert new["problems"] or new["plan"]["packages"]


def test_a_working_driver_is_left_alone(recorded):
    result = ask(root=recorded(), inventory=inventory("580.95.05", False), sglang_releases=["0.5.23"])
    assert (codes(result), result["mode"], result["steps"]) == ([], "none", [])
    assert "580.95.05" in result["plan"]["reason"]
    assert result["summary"] == f"left alone: {result['plan']['reason']}; no reboot waits"


def test_a_host_without_gpu_is_a_problem_only_where_one_is_required(recorded):
    found = inventory(None, False)
    found["gpus"] = []
    assert codes(ask(root=recorded(), inventory=found)) == ["no_gpu"]
    result = ask(root=recorded(), inventory=found, required=False)
    assert (codes(result), result["mode"], result["steps"]) == ([], "none", [])


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ({"gpus": None}, "gpus"),
        ({"gpus": [{}]}, "gpus[0].index, gpus[0].minor_number"),
        ({"gpus": ["GPU 0"]}, "gpus[0].index"),
        ({"virtualization": ...}, "virtualization"),
        ({"device_majors": None}, "device_majors"),
    ],
)
def test_something_else_than_the_result_of_gpu_info_is_refused_in_one_sentence(recorded, change, lost):
    found = {key: value for key, value in {**inventory("580.95.05", False), **change}.items() if value is not ...}
    assert ask(root=recorded(), inventory=found)["msg"].startswith(f"inventory: expected the result of gpu_info, found none of its {lost}")


@pytest.mark.parametrize("release", ["ID='debian'\nVERSION_ID='13'\n", "ID=debian\nVERSION_ID=13 \n"])
def test_a_distribution_is_known_however_its_name_is_quoted(recorded, release):
    assert codes(ask(root=recorded(release=release), inventory=inventory("580.95.05", False), branch=580)) != ["unknown_platform"]


def test_what_dpkg_keeps_beside_a_kernel_is_not_the_next_one(recorded):
    kernels = ("6.12.57+deb13-amd64", "6.12.63+deb13-amd64", "6.12.73+deb13-amd64.dpkg-bak", "6.12.74+deb13-amd64.old")
    root = recorded({f"boot/vmlinuz-{kernel}": "" for kernel in kernels})
    host = gpu_driver_info.Host(types.SimpleNamespace(params={"root": str(root)}))
    assert gpu_driver_info.kernel_next(host) == "6.12.63+deb13-amd64"
    (root / "lib/modules/6.12.74+deb13-amd64.old").mkdir(parents=True)
    assert gpu_driver_info.kernel_next(host) == "6.12.74+deb13-amd64.old", "a kernel of one's own may be called so"


def test_a_wait_of_less_than_nothing_is_refused(recorded):
    result = ask(root=recorded(), inventory=inventory("580.95.05"), lock_timeout_s=-1)
    assert result["msg"] == "lock_timeout_s: expected 0 seconds or more, found -1; change gpu_driver_lock_timeout_s."


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, "found no {}"),
        ("garbage\n", "found that {} is there but has no line NVRM version"),
        ("NVRM version: garbage\n", "found that {} is there but names no version of NVIDIA's module"),
    ],
)
def test_the_file_that_should_tell_the_version_is_named(recorded, text, found):
    root = recorded()
    path = root / "version"
    if text is not None:
        path.write_text(text)
    (problem,) = ask(root=root, inventory=inventory("580.95.05"), host_version_path=str(path), version="580.95.05")["problems"]
    assert problem["code"] == "no_module_on_host"
    assert found.format(path) in problem["text"]
    assert "/proc/" not in problem["text"]


def test_rhel_gets_its_driver_with_dnf_and_no_enrolment_and_no_userland(recorded):
    root = recorded(release='ID="rocky"\nVERSION_ID="9.4"\n', uname="5.14.0-427.13.1.el9_4.x86_64")
    result = ask(root=root, inventory=inventory(None, False), sglang_releases=["0.5.23"])
    assert (codes(result), result["plan"]["manager"], result["plan"]["stream"]) == ([], "dnf", "580-open")
    locked = inventory(None, False, secure_boot="enabled")
    assert codes(ask(root=root, inventory=locked, secure_boot="mok")) == ["mok_with_dnf"]
    (problem,) = ask(root=root, inventory=inventory("580.95.05"))["problems"]
    assert problem["code"] == "no_matching_userland"
    assert "NVIDIA-Linux-x86_64-580.95.05.run" in problem["text"], "the libraries want a module there"


@pytest.mark.parametrize(("status", "running"), [("running", 1), ("stopped", 0)])
def test_a_hypervisor_is_never_rebooted(recorded, status, running):
    guests = f"VMID       Status     Lock         Name\n129        {status}                 ct129\n130        stopped                 x\n"
    root = recorded({"usr/bin/pveversion": ""}, guests=guests)
    result = ask(root=root, inventory=inventory("580.95.05", False), reboot="if_required", version="580.95.05")
    assert not result["reboot_allowed"]
    assert result["reboot_allowed_why"] == f"a hypervisor is not rebooted for a driver (guests that run on it: {running})"


def test_removal_takes_what_the_role_brought(recorded):
    dpkg = (DRIVER / "dpkg_debian13.txt").read_text()
    record = {**RECORD, "files": ["/etc/apt/preferences.d/firstlight-x"], "mode": "userland"}
    root = recorded(**{"dpkg-query": dpkg})
    nothing = ask(root=root, inventory=inventory("550.163.01"), state="absent")
    assert (nothing["plan"]["packages_remove"], nothing["steps"]) == ([], [])
    path = root / "record.json"
    path.write_text(json.dumps(record))
    result = ask(root=root, inventory=inventory("550.163.01"), state="absent", record_path="/record.json")
    assert result["plan"]["packages_remove"] == result["packages"] != []
    assert [file["path"] for file in result["plan"]["files"]] == record["files"]


@pytest.mark.parametrize(
    ("options", "goes", "steps"),
    [
        (
            {},
            True,
            ["remove firstlight-nvidia-power.service", "set the power limit of 00000000:01:00.0 (10de:2230, Ampere) back to its own 300 W"],
        ),
        ({"power_limit_w": 250}, None, []),
        ({"state": "absent"}, False, ["set the power limit of 00000000:01:00.0 (10de:2230, Ampere) back to its own 300 W"]),
    ],
    ids=["left out again", "still asked for", "removal"],
)
def test_a_power_limit_that_the_role_has_set_is_taken_back_with_a_word(recorded, options, goes, steps):
    unit = "firstlight-nvidia-power.service"
    root = recorded(
        {
            "record.json": json.dumps({**RECORD, "units": [unit]}),
            f"etc/systemd/system/{unit}": "[Service]\nExecStart=/usr/local/sbin/firstlight-nvidia-power 250 -\n",
        }
    )
    found = inventory("580.95.05", False)
    found["gpus"][0].update(index=0, power_limit_w=250.0, power_limit_default_w=300.0)
    result = ask(root=root, inventory=found, record_path="/record.json", **options)
    assert codes(result) == []
    assert (result["plan"]["power_back"] or {}).get("unit_goes") == goes
    assert [step["text"] for step in result["steps"] if step["step"] == "power_back"] == steps


def test_a_runfile_that_is_not_there_is_found_before_anything_changes(recorded):
    path = "/srv/NVIDIA-Linux-x86_64-580.95.05.run"
    root = recorded({path[1:]: "#!/bin/sh\n"})
    wanted = {"root": root, "inventory": inventory("580.95.05"), "runfile": path}
    assert codes(ask(**wanted)) == []
    assert codes(ask(**wanted, runfile_sha256="0" * 64)) == ["runfile_checksum"]
    (root / path[1:]).unlink()
    assert codes(ask(**wanted)) == ["runfile_not_found"]


@pytest.mark.skipif(shutil.which("apt-cache") is None, reason="no apt on this machine")
def test_a_look_leaves_no_cache_of_apt_behind(tmp_path, monkeypatch):
    """With a cache of our own in the place of the host's, which any other look may have filled already."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "apt.conf").write_text(f'Dir::Cache "{tmp_path}/cache"; Dir::Etc::parts "/dev/null";\n')
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))

    def run(words, **_options):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    module = types.SimpleNamespace(params={"root": "/"}, get_bin_path=shutil.which, run_command=run)
    found = gpu_driver_info.View(gpu_driver_info.Host(module)).policies(["dpkg"])
    assert found["dpkg"].versions
    assert list((tmp_path / "cache").rglob("*.bin")) == []


@pytest.mark.parametrize(
    ("source", "wanted", "told"),
    [
        ("distribution", {}, "404, so that the distribution's packages could not be read"),
        ("nvidia", {"source": "distribution"}, "(NVIDIA's repository could not be read, found 404)"),
        ("nvidia", {"source": "nvidia"}, "expected NVIDIA's repository for Debian 13 (x86_64), found 404; take another source."),
    ],
)
def test_a_source_that_was_refused_is_told_once(recorded, source, wanted, told):
    """The index of the source is in the recording; that it was refused is not."""
    policy = (DRIVER / "policy_debian13.txt").read_text() if source == "nvidia" else ""
    params = {**dict.fromkeys(field.name for field in dataclasses.fields(Wanted)), "root": str(recorded(**{"apt-cache": policy}))}
    host = gpu_driver_info.Host(types.SimpleNamespace(params={**params, "local": False, "rebooted": False}))
    found = inventory("550.54.14")
    decider = gpu_driver_info.Decider(host, gpu_driver_info.gather(host, True), Wanted(**wanted), found)
    decider.refused[source] = "404"
    text = " ".join(decider.with_refusals(problem).text for problem in decider.run().problems)
    assert told in text
    assert text.count("404") == 1


def test_a_source_that_was_refused_is_told_too_where_another_one_does(recorded, monkeypatch):
    """As where an entry of the distribution's is left whose server is gone: its components cannot be read."""
    headers = {"lib/modules/6.12.57+deb13-amd64/build/Makefile": ""}
    root = recorded(headers, **{"apt-cache": (DRIVER / "policy_debian13_nvidia.txt").read_text()})
    params = {**dict.fromkeys(field.name for field in dataclasses.fields(Wanted)), "local": False, "rebooted": False}
    params.update(root=str(root), state="present", sglang_releases=[], device_user=None, runfile=None)
    host = gpu_driver_info.Host(types.SimpleNamespace(params=params))
    found = inventory(None, False)
    facts = gpu_driver_info.gather(host, False)
    result = {"record": {}}
    refuse = gpu_driver_info.Decider.__init__

    def init(self, *words):
        refuse(self, *words)
        self.refused["distribution"] = "that gone.example.org does not answer."

    monkeypatch.setattr(gpu_driver_info.Decider, "__init__", init)
    assert gpu_driver_info.look_ahead(host, facts, Wanted(), found, result) == []
    assert result["plan"]["source"] == "nvidia"
    assert "the distribution's components could not be read, found that gone.example.org does not answer" in result["notes"]


def test_digests_are_taken_however_they_are_written():
    names = {field.name for field in dataclasses.fields(Wanted)} - {"sglang_release", "unknown_releases"}
    params = {**dict.fromkeys(names), "sglang_releases": []}
    wanted = gpu_driver_info.wish(
        {**params, "runfile_sha256": "AB" * 32, "key_fingerprint": "0x02182e60 104F cdc2\t6EAE  1B8597A5D4CB8793F200"}
    )
    assert wanted.runfile_sha256 == "ab" * 32
    assert wanted.key_fingerprint == "02182E60104FCDC26EAE1B8597A5D4CB8793F200"
    assert gpu_driver_info.wish(params).key_fingerprint is None


def test_what_came_of_it_is_told(recorded):
    log = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4242 (unattended-upgr)\n"
    root = recorded(**{"apt-cache": (DRIVER / "policy_debian13.txt").read_text()})
    plan = ask(root=root, inventory=inventory("550.163.01"))["plan"]
    failed = ask(root=root, inventory=inventory("550.163.01"), plan=plan, log=log)
    assert codes(failed) == ["dpkg_lock"]
    done = recorded(**{"dpkg-query": (DRIVER / "dpkg_debian13.txt").read_text()})
    wrong = ask(root=done, inventory=inventory("550.163.01"), plan={**plan, "version": "550.90.07", "packages": []})
    assert codes(wrong) == ["wrong_version"]


@pytest.mark.parametrize(
    "loaded,built,holder,loadable",
    [
        (None, "590.48.01", None, True),
        (None, "590.48.01", "nouveau", False),
        (None, "", None, False),
        ("580.95.05", "590.48.01", "nvidia", False),
    ],
)
def test_a_module_is_loaded_without_a_reboot_only_where_nothing_else_has_the_gpus(recorded, loaded, built, holder, loadable):
    commands = {"modinfo-version": built, "modinfo-license": "Dual MIT/GPL"}
    root = recorded({MODULE: ""} if built else {}, **commands)
    found = inventory(loaded, False)
    found["gpus"][0]["kernel_driver"] = holder
    told = ask(root=root, inventory=found, plan={**_driver_plan.PLAN, "mode": "kernel", "branch": 590})
    assert (codes(told), told["loadable"]) == ([], loadable)
    assert told["summary"].startswith(f"driver {loaded} is loaded" if loaded else "driver 590 is installed and not loaded yet")
    assert told["reboot_required"] is bool(built or holder == "nouveau")


def test_a_removal_says_why_it_leaves_the_reboot_to_others(recorded):
    answers = {"dpkg-query": (DRIVER / "dpkg_debian13.txt").read_text(), "modinfo-version": "550.163.01", "modinfo-license": "NVIDIA"}
    record = json.dumps(RECORD)
    root = recorded({"record.json": record, MODULE: ""}, **answers)
    result = ask(root=root, inventory=inventory("550.163.01", False), state="absent", record_path="/record.json")
    assert (result["reboot_required"], result["reboot_allowed_why"]) == (True, "a removal does not reboot")


def test_who_holds_a_lock_is_told_without_taking_it(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    monkeypatch.setattr(gpu_driver_info, "LOCKS", (str(tmp_path / "none"), str(path)))
    module = types.SimpleNamespace(params={"root": "/", "lock_timeout_s": 0})
    host = gpu_driver_info.Host(module)
    path.touch()
    assert gpu_driver_info.lock_holder(host) == ""
    code = "import fcntl, sys; held = open(sys.argv[1], 'w'); fcntl.lockf(held, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        assert gpu_driver_info.wait_for_locks(host).startswith(f"process {holder.pid} (python")
        holder.stdin.close()
        holder.wait()
        module.params["lock_timeout_s"] = 5
        assert gpu_driver_info.wait_for_locks(host) == ""


def test_what_is_half_done_under_a_lock_is_not_called_broken():
    found = [gpu_driver_info.Problem("broken_packages", "x"), gpu_driver_info.Problem("bad_branch", "y")]
    told = gpu_driver_info.locked("process 12 (apt-get) with /var/lib/dpkg/lock", 300, found)
    assert [problem.code for problem in told] == ["locked", "bad_branch"]
    assert gpu_driver_info.waits(found, None)
    assert not gpu_driver_info.waits(found[1:], None)
    assert gpu_driver_info.waits([], {"packages": ["x"], "packages_remove": []})
    assert not gpu_driver_info.waits([], {"packages": [], "packages_remove": []})
    assert "within 300 s, found process 12 (apt-get)" in told[0].text


def test_the_module_on_disk_is_found_by_its_file(recorded):
    """Debian's file has another name than the module, and modinfo does not know it by the module's."""
    kernel = "6.12.57+deb13-amd64"
    commands = {"uname": kernel, "modinfo-version": "550.163.01\n", "modinfo-license": "NVIDIA\n"}
    asking = {"inventory": inventory("550.127.05", False), "version": "550.127.05", "reboot": "if_required"}
    plan = {**_driver_plan.PLAN, "mode": "kernel", "source": "runfile", "version": "550.163.01", "kernels": [kernel]}
    nothing = ask(root=recorded(**commands), **asking, plan=plan)
    assert (codes(nothing), nothing["reboot_required"]) == (["module_missing"], False)
    root = recorded(
        {f"lib/modules/{kernel}/updates/dkms/nvidia-current.ko.xz": "", f"lib/modules/{kernel}/kernel/nvidia-wmi.ko": ""}, **commands
    )
    found = ask(root=root, **asking, plan=plan)
    assert (codes(found), found["reboot_required"]) == ([], True)
    assert found["reboot_why"] == "the module 550.127.05 is loaded, 550.163.01 is the one to have"
    assert codes(ask(root=root, **asking, plan=plan, rebooted=True)) == ["not_loaded_after_reboot"]


@pytest.mark.parametrize(
    ("shadow", "expected"), [("root:*:20000:0:99999:7:::\n", ["no_root_password"]), ("root:$y$j9T$x:20000::::::\n", [])]
)
def test_a_key_is_enrolled_with_a_password_that_there_must_be(recorded, shadow, expected):
    policy = (DRIVER / "policy_debian13.txt").read_text()
    root = recorded({"etc/shadow": shadow}, **{"apt-cache": policy})
    result = ask(root=root, inventory=inventory(None, False, secure_boot="enabled"), sglang_releases=["0.5.9"], secure_boot="mok")
    assert codes(result) == expected
