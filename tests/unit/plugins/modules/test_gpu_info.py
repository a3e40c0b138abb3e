"""The module on recorded hosts: real files, a program in the place of nvidia-smi, a file in the place of nvidia-ml-py."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
from ansible_collections.firstlight.sglang.plugins.modules import gpu_info

ROOT = pathlib.Path(__file__).parents[4]
FIXTURES = ROOT / "tests/fixtures/gpu"
H200 = FIXTURES / "h200/idle"


def ask(**options):
    """Run the module as Ansible does; its result."""
    result = subprocess.run(
        [sys.executable, ROOT / "plugins/modules/gpu_info.py"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": options}),
        env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in result.stderr, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def smi(tmp_path):
    """Write a program that answers by its arguments."""

    def write(script):
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\ncd {FIXTURES}\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return write


ANSWERS = """case "$*" in
"-q -x") cat smi_h200_qx.xml ;;
--help-query-gpu) cat smi_h200_help_query.txt ;;
--query-gpu=*) cat smi_h200_query.csv ;;
--query-compute-apps=*) cat smi_h200_apps_none.csv ;;
*) exit 2 ;;
esac"""


def statuses(result):
    return {asked["source"]: asked["status"] for asked in result["sources_asked"]}


def test_a_recorded_host(smi):
    result = ask(root=str(H200), nvidia_smi_path=smi(ANSWERS))
    (gpu,) = result["gpus"]
    assert (gpu["name"], gpu["kernel_driver"], gpu["memory_total_mib"], gpu["health"]) == ("NVIDIA H200", "nvidia", 143771, "ok")
    assert (result["driver_version"], result["driver_flavour"], result["cuda_driver_version"]) == ("580.159.04", "open", "13.0")
    assert result["device_majors"]["nvidia-uvm"] == 238
    assert (result["virtualization"], result["container"]) == ("docker", True)
    assert (gpu["sources"]["kernel_driver"], gpu["sources"]["name"]) == ("sysfs", "nvidia_smi_xml")
    assert result["group_names"] == ["gpu_h200", "gpu_arch_hopper"]
    assert result["topology"]["matrix"] == [["X"]]
    assert [group["indices"] for group in result["gpu_groups"]] == [[0]]
    assert result["problems"] == []
    assert statuses(result) == {
        "nvml": "skipped",
        "nvidia_smi_xml": "ok",
        "nvidia_smi_csv": "skipped",
        "proc": "ok",
        "sysfs": "ok",
        "lspci": "skipped",
    }


def test_csv_is_asked_when_the_xml_is_no_use(smi):
    result = ask(root=str(H200), nvidia_smi_path=smi(ANSWERS.replace("cat smi_h200_qx.xml", "echo broken")))
    assert (statuses(result)["nvidia_smi_xml"], statuses(result)["nvidia_smi_csv"]) == ("failed", "ok")
    (gpu,) = result["gpus"]
    assert (gpu["memory_total_mib"], gpu["sources"]["memory_total_mib"], gpu["processes"]) == (143771, "nvidia_smi_csv", [])


def test_without_nvidia_smi_there_is_still_what_the_files_say():
    (gpu,) = ask(root=str(H200), sources=["proc", "sysfs"])["gpus"]
    assert (gpu["name"], gpu["pci_device_id"], gpu["compute_capability"]) == ("NVIDIA H200", "10de:2335", "9.0")
    assert (gpu["health"], gpu["memory_total_mib"]) == ("unknown", None)


@pytest.mark.parametrize("script", ["sleep 60", "trap '' TERM; sleep 60"])
def test_a_program_that_hangs_does_not_hang_the_module(smi, script):
    started = time.monotonic()
    result = ask(root=str(H200), nvidia_smi_path=smi(script), timeout_s=1)
    assert time.monotonic() - started < 10
    assert statuses(result)["nvidia_smi_xml"] == "timed_out"
    assert result["problems"][0]["code"] == "driver_hangs"
    assert "did not answer in 1 s" in result["problems"][0]["found"]
    assert result["gpus"][0]["name"] == "NVIDIA H200"


def test_what_a_program_started_ends_with_it(smi, tmp_path):
    marker = tmp_path / "alive"
    result = ask(root=str(H200), nvidia_smi_path=smi(f"(while :; do date >{marker}; sleep 0.1; done) & sleep 60"), timeout_s=1)
    assert statuses(result)["nvidia_smi_xml"] == "timed_out"
    marker.unlink()
    time.sleep(0.5)
    assert not marker.exists()


def test_endless_output_is_cut(smi):
    result = ask(root=str(H200), nvidia_smi_path=smi("exec yes aaaaaaaaaaaaaaaa"), timeout_s=20)
    assert statuses(result)["nvidia_smi_xml"] == "failed"
    assert "printed more than 32 MiB" in result["sources_asked"][1]["message"]


def test_a_child_that_keeps_the_output_open_does_not_hold_the_module(smi):
    started = time.monotonic()
    result = ask(root=str(H200), nvidia_smi_path=smi(f"sleep 30 & {ANSWERS}"), timeout_s=20)
    assert time.monotonic() - started < 15
    assert statuses(result)["nvidia_smi_xml"] == "ok"


def test_a_damaged_answer_is_completed_by_the_next_source(smi, tmp_path):
    (tmp_path / "proc").mkdir()
    broken = ANSWERS.replace("cat smi_h200_qx.xml", "head -c 9000 smi_h200_qx.xml")
    result = ask(root=str(tmp_path), nvidia_smi_path=smi(broken))
    assert (statuses(result)["nvidia_smi_xml"], statuses(result)["nvidia_smi_csv"]) == ("ok", "ok")
    assert result["gpus"][0]["sources"]["compute_capability"] == "nvidia_smi_csv"


def test_a_program_that_fails_without_a_word(smi):
    result = ask(root=str(H200), nvidia_smi_path=smi("exit 77"))
    assert "ended with status 77 and said nothing" in result["problems"][0]["found"]


def nvml(tmp_path, text):
    place = tmp_path / "venv/lib/python3.9/site-packages"
    place.mkdir(parents=True)
    (place / "pynvml.py").write_text(text)
    return str(tmp_path / "venv")


BROKEN = "class NVMLError(Exception):\n    value = 9\n\n\ndef nvmlInit():\n    raise NVMLError('Driver Not Loaded')\n"


def test_nvml_of_a_given_environment(tmp_path):
    asked = ask(venv=nvml(tmp_path, BROKEN), sources=["nvml"])["sources_asked"]
    assert asked == [{"source": "nvml", "status": "failed", "message": "Driver Not Loaded"}]


@pytest.mark.parametrize("text", ["def (", "raise RuntimeError('x')", "import sys\nsys.exit(3)"])
def test_nvml_that_cannot_be_loaded_is_a_failed_source(tmp_path, text):
    (asked,) = ask(venv=nvml(tmp_path, text), sources=["nvml"])["sources_asked"]
    assert asked["status"] == "failed"
    assert asked["message"].startswith("nvidia-ml-py cannot be loaded: ")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("import time\ndef nvmlInit():\n    time.sleep(60)\n", "timed_out", "NVML did not answer in 1 s"),
        ("import os\ndef nvmlInit():\n    os.kill(os.getpid(), 11)\n", "failed", "NVML ended the process that asked it (-11)"),
    ],
)
def test_nvml_that_hangs_or_crashes_takes_its_own_process_only(tmp_path, body, status, message):
    started = time.monotonic()
    asked = ask(venv=nvml(tmp_path, body), sources=["nvml"], timeout_s=1)["sources_asked"]
    assert asked == [{"source": "nvml", "status": status, "message": message}]
    assert time.monotonic() - started < 10


def test_nvml_is_not_asked_about_a_recorded_host(tmp_path):
    assert statuses(ask(root=str(H200), venv=nvml(tmp_path, BROKEN), sources=["nvml"])) == {"nvml": "skipped"}


def test_all_bad_options_are_told_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    result = ask(nvidia_smi_path=str(tmp_path / "none"), root=str(tmp_path), venv=str(tmp_path), timeout_s=0, sources=[])
    assert result["failed"]
    assert result["msg"].startswith("root: expected a directory with the proc of a host")
    for told in (
        "nvidia_smi_path: expected an executable nvidia-smi, found no such file",
        "venv: expected",
        "timeout_s: expected",
        "sources:",
    ):
        assert told in result["msg"]
    assert "a file that cannot be executed" in ask(nvidia_smi_path=str(tmp_path / "file"))["msg"]


def test_a_recording_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "facts.json").write_text("{")
    result = ask(root=str(tmp_path))
    assert result["gpus"] == []
    assert "facts.json" in json.dumps(result["warnings"])


def test_this_machine_answers():
    result = ask()
    assert result["memory_total_mib"] > 0
    assert result["changed"] is False


def test_processes_know_their_unit(tmp_path):
    for pid, command, group in ((7, "/opt/x/python\0serve", "0::/system.slice/sglang-demo.service\n"), (8, "other", "0::/user.slice\n")):
        place = tmp_path / f"proc/{pid}"
        place.mkdir(parents=True)
        (place / "cmdline").write_text(command)
        (place / "cgroup").write_text(group)
    gpus = [{"processes": [{"pid": 7, "name": "/opt/x/python"}, {"pid": 8, "name": "/usr/bin/python"}, {"pid": 9, "name": None}]}]
    gpu_info.add_units(gpu_info.Host(str(tmp_path)), gpus)
    assert [process["unit"] for process in gpus[0]["processes"]] == ["sglang-demo.service", None, None]
