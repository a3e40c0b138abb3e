"""The recorded GPU hosts, and the double that answers as nvidia-smi did there."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SAMPLES = ROOT / "tests/fixtures/gpu"
HOSTS = SAMPLES / "hosts"
DOUBLE = ROOT / "tests/doubles/gpu_host/nvidia-smi"
BUILD = ROOT / "tests/doubles/gpu_host/build.py"
WITH_GPUS = sorted(path.parent.name for path in HOSTS.glob("*/nvidia-smi.json") if path.parent.name != "mismatch")


def smi(host, *argv, timeout=20):
    """What the double says on a recorded host."""
    directory = HOSTS / host if isinstance(host, str) else host
    environment = {**os.environ, "FIRSTLIGHT_GPU_HOST": str(directory)}
    return subprocess.run([DOUBLE, *argv], env=environment, capture_output=True, text=True, check=False, timeout=timeout)


def gpus_of(xml):
    """The <gpu> elements of what `nvidia-smi -q -x` printed."""
    return ET.fromstring(xml[xml.index("<?xml") :]).findall("gpu")  # noqa: S314 - our own files


def tree(directory):
    """Everything in a directory: text of files, targets of links."""
    return {
        str(path.relative_to(directory)): f"-> {path.readlink()}" if path.is_symlink() else path.read_bytes()
        for path in directory.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_the_committed_hosts_are_what_the_script_derives(tmp_path):
    subprocess.run([sys.executable, ROOT / "tools/derive_gpu_hosts.py", tmp_path], check=True)
    derived, committed = tree(tmp_path), tree(HOSTS)
    assert sorted(derived) == sorted(committed)
    assert [path for path in derived if derived[path] != committed[path]] == []


@pytest.mark.parametrize("host", [path.name for path in sorted(HOSTS.iterdir())])
def test_a_host_says_that_it_is_built_and_from_what(host):
    assert (HOSTS / host / "README.md").read_text().startswith("Built from ")


@pytest.mark.parametrize("host", WITH_GPUS)
def test_xml_and_csv_of_a_host_agree(host):
    gpus = gpus_of(smi(host, "-q", "-x").stdout)
    rows = smi(host, "--query-gpu=pci.bus_id,name,memory.total,power.limit,mig.mode.current", "--format=csv,noheader").stdout.splitlines()
    paths = ("product_name", "fb_memory_usage/total", "gpu_power_readings/current_power_limit", "mig_mode/current_mig")
    expected = [", ".join([gpu.get("id"), *(gpu.findtext(path).replace("N/A", "[N/A]") for path in paths)]) for gpu in gpus]
    assert [row for row in rows if not row.startswith("Unable")] == expected


def test_columns_are_selected_as_the_real_tool_prints_them():
    captured = (SAMPLES / "smi_h200_query_nounits.csv").read_text()
    fields = (
        "index,name,uuid,pci.bus_id,driver_version,compute_cap,memory.total,memory.used,memory.free,ecc.mode.current,mig.mode.current,"
        "persistence_mode,power.limit,utilization.gpu,pcie.link.gen.current,pcie.link.width.current"
    )
    assert smi("2x_a6000", f"--query-gpu={fields}", "--format=csv,noheader,nounits").stdout.splitlines()[1].split(", ") == [
        *("1", "NVIDIA RTX A6000", "GPU-00000000-0000-4000-8000-000000000101", "00000000:41:00.0", "580.159.04", "8.6"),
        *("49140", "0", "48571", "Disabled", "[N/A]", "Enabled", "300.00", "0", "1", "16"),
    ]
    assert len(captured.split(", ")) == len(fields.split(","))


def test_the_heading_stays_in_a_query_without_units():
    answer = smi("2x_a6000", "--format=csv,nounits", "--query-gpu=clocks.sm,memory.total", "-i", "1")
    assert answer.stdout == "clocks.current.sm [MHz], memory.total [MiB]\n210, 49140\n"


def test_an_unknown_field_is_refused_with_the_real_words():
    answer = smi("2x_a6000", "--query-gpu=index,no_such_field", "--format=csv")
    assert (answer.returncode, answer.stdout, answer.stderr) == (2, (SAMPLES / "smi_h200_err_bad_field.txt").read_text(), "")


@pytest.mark.parametrize("argv", [["-L"], ["-q", "-x"], ["--query-gpu=index", "--format=csv"]])
def test_an_index_that_is_not_there_is_answered_with_the_real_words(argv):
    answer = smi("2x_a6000", *argv, "--id=7")
    assert (answer.returncode, answer.stdout) == (6, (SAMPLES / "smi_h200_err_no_such_index.txt").read_text())


@pytest.mark.parametrize("name", ["1", "GPU-00000000-0000-4000-8000-000000000101", "00000000:41:00.0"])
def test_one_gpu_is_named_by_index_uuid_or_bus_id(name):
    assert smi("2x_a6000", "-L", "-i", name).stdout == "GPU 1: NVIDIA RTX A6000 (UUID: GPU-00000000-0000-4000-8000-000000000101)\n"
    assert [gpu.get("id") for gpu in gpus_of(smi("2x_a6000", "-i", name, "-q", "-x").stdout)] == ["00000000:41:00.0"]


def test_processes_are_selected_too():
    answer = smi("gb10", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    assert answer.stdout == "4155, 69564\n300, [N/A]\n"


def test_a_host_that_was_recorded_as_it_is_replays_too():
    directory = SAMPLES / "h200/busy"
    assert (
        smi(directory, "--query-gpu=gpu_name,clocks.sm", "--format=csv").stdout == "name, clocks.current.sm [MHz]\nNVIDIA H200, 1980 MHz\n"
    )
    answer = smi(directory, "--query-compute-apps=pid,used_gpu_memory", "--format=csv")
    assert answer.stdout == "pid, used_gpu_memory [MiB]\n1001, 1542 MiB\n"


def test_a_lost_gpu_is_named_first_whatever_is_asked():
    line = (SAMPLES / "smi_query_610_one_of_four_lost.csv").read_text().splitlines()[0]
    answer = smi("lost", "--query-gpu=index,uuid", "--format=csv,noheader")
    assert answer.stdout.splitlines()[0] == line
    assert [row[0] for row in answer.stdout.splitlines()[1:]] == ["0", "2", "3"]
    assert answer.returncode == 255


@pytest.mark.parametrize("argv", [[], ["-q", "-x"], ["-L"], ["--query-gpu=index", "--format=csv"], ["-i", "0", "-L"]])
def test_with_a_mismatch_every_question_fails(argv):
    answer = smi("mismatch", *argv)
    assert (answer.returncode, answer.stdout) == (18, (SAMPLES / "smi_err_nvml_mismatch.txt").read_text())


@pytest.mark.parametrize(
    "argv",
    [
        ["--no-such-option"],
        ["-i", "0", "-pl", "250"],
        ["topo", "-m", "-i", "0"],
        ["--query-gpu=index"],
        ["--query-remapped-rows=x", "--format=csv"],
    ],
)
def test_what_was_not_recorded_is_said(argv):
    answer = smi("2x_a6000", *argv)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert f"nothing was recorded for: {' '.join(argv)}" in answer.stderr


@pytest.mark.parametrize("text", [None, "{", '[{"argv": ["-L"]}]'])
def test_a_host_that_cannot_be_read_is_one_sentence(tmp_path, text):
    if text is not None:
        (tmp_path / "nvidia-smi.json").write_text(text)
    answer = smi(tmp_path, "-L")
    assert answer.returncode == 2
    assert answer.stderr.startswith(f"nvidia-smi double: no recorded host that can be read in {tmp_path}: ")
    assert len(answer.stderr.splitlines()) == 1


def test_an_answer_can_hang(tmp_path):
    recorded = [{"argv": ["-L"], "rc": 0, "stdout": "late\n", "stderr": "", "seconds": 3600}]
    (tmp_path / "nvidia-smi.json").write_text(json.dumps(recorded))
    with pytest.raises(subprocess.TimeoutExpired):
        smi(tmp_path, "-L", timeout=1)


@pytest.mark.parametrize("host", ["2x_a6000", "none"])
def test_the_package_holds_the_host_and_no_nvidia_smi_where_there_was_none(tmp_path, host):
    subprocess.run([BUILD, host, tmp_path / "double.deb"], check=True)
    subprocess.run(["dpkg-deb", "--extract", tmp_path / "double.deb", tmp_path / "root"], check=True)
    place = tmp_path / "root/usr/lib/firstlight-gpu-double/host"
    assert tree(place) == tree(HOSTS / host)
    command = tmp_path / "root/usr/bin/nvidia-smi"
    assert command.is_symlink() is (host != "none")
    if host != "none":
        environment = {key: value for key, value in os.environ.items() if key != "FIRSTLIGHT_GPU_HOST"}
        answer = subprocess.run([command, "-L"], env=environment, capture_output=True, text=True, check=True)
        assert answer.stdout == smi(host, "-L").stdout


def test_the_same_recording_gives_the_same_package(tmp_path):
    for name in ("one", "two"):
        subprocess.run([BUILD, "lost", tmp_path / name], check=True)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_the_builder_names_the_hosts_when_asked_for_another(tmp_path):
    answer = subprocess.run([BUILD, "no_such_host", tmp_path / "double.deb"], capture_output=True, text=True, check=False)
    assert answer.returncode != 0
    assert "2x_a6000" in answer.stderr


@pytest.mark.parametrize("scenario", sorted((ROOT / "molecule").glob("gpu_*")), ids=lambda path: path.name)
def test_a_scenario_is_a_recorded_host_and_what_is_expected_of_it(scenario):
    assert (HOSTS / scenario.name.removeprefix("gpu_")).is_dir()
    assert {path.name for path in scenario.iterdir()} == {"molecule.yml", "vars"}
    assert str((scenario / "molecule.yml").readlink()) == "../shared/gpu/molecule.yml"
