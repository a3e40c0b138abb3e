from __future__ import annotations

import csv
import io
import json
import pathlib

import gpu_results
import pytest
import yaml
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_fleet as module
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_fleet import HostFailure

ROOT = pathlib.Path(__file__).parents[4]
TIME = "2026-12-01T08:18:00Z"


def document_of(results):
    return module.fleet({host: module.outcome(result) for host, result in results.items()}, TIME)


@pytest.fixture
def document():
    return document_of(gpu_results.fixture_fleet())


def gpu_of(document, host, position=0):
    return [gpu for gpu in document["gpus"] if gpu["host"] == host][position]


def test_the_fields_are_those_of_the_design():
    """But for sources, and for what the document keeps in lists of its own."""
    text = (ROOT / "docs/design.md").read_text()
    block = next(part for part in text.split("```yaml\n") if part.startswith("driver_version:")).split("```")[0]
    host = yaml.safe_load(block)
    gpu = host["gpus"][0]
    assert [field for field in gpu if field != "sources"] == list(module.GPU_FIELDS)
    assert {*host} - {"gpus", "problems", "sources"} == set(module.HOST_FIELDS)
    assert {*gpu, *host} >= module.MOMENTARY


SSH = "Failed to connect to the host via ssh: ssh: connect to host gpu7 port 22: Connection timed out"


@pytest.mark.parametrize(
    ("registered", "status", "reason"),
    [
        (None, "no_result", "the play ended before it came to this host"),
        ({"unreachable": True, "changed": False, "msg": f"Task failed: {SSH}\n"}, "unreachable", SSH),
        ({"unreachable": True, "msg": ""}, "unreachable", "no reason was given"),
        ({"failed": True, "msg": "timeout_s: expected a number,\n  found: x"}, "failed", "timeout_s: expected a number, found: x"),
        ({"failed": False, "failed_when_result": False, "msg": "Module failed: no such file"}, "failed", "no such file"),
        ({"failed": True, "unreachable": True, "msg": "gone"}, "unreachable", "gone"),
        ({"skipped": True, "skip_reason": "Conditional result was False"}, "no_result", "Conditional result was False"),
        ({"changed": False, "ping": "pong"}, "failed", "found one with ['changed', 'ping']"),
        ({"gpus": [1]}, "failed", "expected the registered result of gpu_info"),
        ({"gpus": [], "topology": "none"}, "failed", "expected the registered result of gpu_info"),
        ({"gpus": [], "problems": ["bad"]}, "failed", "expected the registered result of gpu_info"),
        ("{{ nonsense }}", "failed", "found: {{ nonsense }}"),
    ],
)
def test_what_is_no_result_has_a_reason(registered, status, reason):
    failure = module.outcome(registered)
    assert isinstance(failure, HostFailure)
    assert failure.status == status
    assert reason in failure.reason
    assert document_of({"h": registered})["unanswered"] == [{"host": "h", "status": status, "reason": failure.reason}]


LOCAL = "Task failed: Premature end of stream waiting for become success"
NO_JSON = "Module result deserialization failed: No start of json char found"
# Python 3.11 with a PYTHONHOME that does not exist, shortened.
NO_HOME = """Python path configuration:
  PYTHONHOME = '/nonexistent'
  sys.path = [
    '/nonexistent/lib/python311.zip',
  ]
Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding
Python runtime state: core initialized
ModuleNotFoundError: No module named 'encodings'
"""
TRACEBACK = """Traceback (most recent call last):
  File "/usr/lib/error.py", line 1, in <module>
ModuleNotFoundError: No module named 'zlib'
"""


@pytest.mark.parametrize(
    ("msg", "reason"),
    [
        (
            f"{LOCAL}.\n>>> Standard Error\nsudo: a password is required",
            "sudo: a password is required; --ask-become-pass asks for a password",
        ),
        (
            f"{LOCAL} or become password prompt.\n>>> Standard Error\nSorry, try again.",
            "Sorry, try again.; --ask-become-pass asks for a password",
        ),
        (f"{LOCAL}.", "Premature end of stream waiting for become success.; --ask-become-pass asks for a password"),
        ("Task failed: Missing sudo password", "Missing sudo password; --ask-become-pass asks for a password"),
        ("Task failed: Incorrect sudo password", "Incorrect sudo password; --ask-become-pass asks for a password"),
        (f"{LOCAL}.\n>>> Standard Error\nsudo: user x is not in the sudoers file.", "sudo: user x is not in the sudoers file."),
        (f"{LOCAL}.\n>>> Standard Error\n/bin/sh: 1: sudo: not found", "/bin/sh: 1: sudo: not found"),
    ],
)
def test_a_become_that_fails_says_what_sudo_said_and_what_to_do(msg, reason):
    assert module.failure_reason({"failed": True, "msg": msg}) == f"become failed: {reason}"


def test_a_login_that_is_refused_is_no_matter_of_become():
    refused = "Failed to connect to the host via ssh: ops@gpu7: Permission denied (publickey,password)."
    assert module.failure_reason({"unreachable": True, "msg": f"Task failed: {refused}"}) == refused


@pytest.mark.parametrize(
    ("stderr", "stdout", "line"),
    [
        (NO_HOME, "", "Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding"),
        (TRACEBACK, "", "ModuleNotFoundError: No module named 'zlib'"),
        ("Segmentation fault\n", "", "Segmentation fault"),
        ("Shared connection to gpu7 closed.\r\n", TRACEBACK.replace("\n", "\r\n"), "ModuleNotFoundError: No module named 'zlib'"),
        ("", "hello\n", "hello"),
        ("", "", NO_JSON),
    ],
)
def test_a_python_that_is_broken_is_told_by_what_it_printed(stderr, stdout, line):
    look = {"failed": False, "msg": NO_JSON, "module_stderr": stderr, "module_stdout": stdout}
    assert module.failure_reason(look) == f"the module gave no result: {line}"
    assert module.outcome(look) == HostFailure("failed", f"the module gave no result: {line}")


def test_a_long_reason_is_cut():
    assert len(module.outcome({"failed": True, "msg": "x" * 10_000}).reason) == 500


def test_no_host_is_lost(document):
    assert {host["host"]: host["status"] for host in document["hosts"]} == {
        **dict.fromkeys(("ct129", "dgx1", "gpu10", "h200-mig", "jupyter", "spark1", "web1", "web2", "ws4"), "answered"),
        "gpu7": "unreachable",
        "gpu8": "failed",
        "gpu9": "no_result",
    }
    assert {host["host"]: host["gpu_count"] for host in document["hosts"] if host["gpu_count"] in (0, None)} == {
        **dict.fromkeys(("gpu10", "web1", "web2"), 0),
        **dict.fromkeys(("gpu7", "gpu8", "gpu9"), None),
    }


def test_hosts_are_in_natural_order(document):
    names = [host["host"] for host in document["hosts"]]
    assert names.index("gpu7") < names.index("gpu10")


def test_totals(document):
    summary = document["summary"]
    assert summary["problems"] == {"error": 3, "warning": 1, "info": 1}
    assert {key: summary[key] for key in ("hosts", "hosts_answered", "hosts_unreachable", "hosts_failed", "hosts_no_result")} == {
        "hosts": 12,
        "hosts_answered": 9,
        "hosts_unreachable": 1,
        "hosts_failed": 1,
        "hosts_no_result": 1,
    }
    assert (summary["gpus"], summary["gpus_usable"], summary["gpus_mig"], summary["mig_devices"]) == (17, 14, 1, 3)
    assert summary["hosts_with_problems"] == 4
    # GB10's is the host's and none of the sum; what nobody could read is not in it either
    assert summary["memory_total_mib"] == 2 * 49140 + 8 * 81559 + 143771 + 3 * 97887
    assert summary["memory_unified_mib"] == 127600748 // 1024
    assert module.used_words(summary) == "331.6 GiB in use, use of 5 not known", "all of ws4 and jupyter; spark1's memory is the host's"


def test_of_every_gpu_with_a_memory_of_its_own_the_use_is_known_or_counted():
    kinds = {"framebuffer": 4096, "unified": None, None: None}
    gpus = [gpu_results.gpu(memory_kind=kind, memory_total_mib=size) for kind, size in kinds.items()]
    assert document_of({"h": gpu_results.result(gpus)})["summary"]["memory_used_unknown"] == 2


def test_a_report_that_is_limited_says_so():
    results = {"h": module.outcome(gpu_results.result())}
    limited = module.fleet(results, TIME, 11)
    assert limited["summary"]["hosts_left_out"] == 11
    assert "1 host, 0 GPUs, 0 usable. Limited to 1 of 12 hosts." in module.markdown_text(limited)
    assert "imited" not in module.markdown_text(module.fleet(results, TIME))


def test_models(document):
    models = {model["name"]: model for model in document["models"]}
    assert next(iter(models)) == "NVIDIA H100 80GB HBM3", "the most frequent first"
    h100 = models["NVIDIA H100 80GB HBM3"]
    assert (h100["gpus"], h100["usable"], h100["hosts"], h100["memory_total_mib"]) == (8, 8, 1, 8 * 81559)
    assert h100["memory_used_mib"] == 4 * 74310 + 4 * 4
    h200 = models["NVIDIA H200"]
    assert (h200["usable"], h200["mig_enabled"], h200["mig_devices"]) == (0, 1, 3)
    gb10 = models["NVIDIA GB10"]
    assert (gb10["memory_total_mib"], gb10["memory_unified"], gb10["memory_unknown"]) == (None, 1, 0)
    lost = models["PCI 10de:2bb4"]
    assert (lost["usable"], lost["memory_total_mib"], lost["memory_unknown"]) == (0, None, 1)


def test_cards_of_one_name_and_two_sizes_are_told():
    """Case A35's kind: smi_query_3080_20gb_modded.csv has a name that promises 10 GB."""
    sizes = (10240, 20480, 20480)
    gpus = [gpu_results.gpu(name="NVIDIA GeForce RTX 3080", memory_kind="framebuffer", memory_total_mib=size) for size in sizes]
    model = document_of({"h": gpu_results.result(gpus)})["models"][0]
    assert module.model_memory_words(model) == "50.0 GiB (10.0 GiB or 20.0 GiB each)"


def test_the_worst_problems_come_first(document):
    assert [problem["severity"] for problem in document["problems"]] == ["error"] * 3 + ["warning", "info"]
    assert document["problems"][0] == {
        "host": "gpu10",
        "severity": "error",
        "code": "driver_library_mismatch",
        "gpu": None,
        "found": "the loaded driver is 580.126.09, the library is 580.159.04",
        "action": "Reboot, or unload and load the modules.",
    }


def test_fields_that_a_result_lacks_are_null():
    document = document_of({"h": {"gpus": [{"name": "x"}]}})
    assert document["gpus"][0]["name"] == "x"
    assert set(document["gpus"][0].values()) == {"h", "x", None}
    for text in (module.csv_text(document), module.markdown_text(document)):
        assert "x" in text


def test_an_empty_fleet_has_texts():
    document = module.fleet({}, TIME)
    assert document["summary"]["gpus"] == 0
    assert "None found." in module.markdown_text(document)
    assert len(module.csv_text(document).splitlines()) == 1
    assert json.loads(module.json_text(document)) == document


def test_the_json_text_is_the_document_with_one_record_a_line(document):
    text = module.json_text(document)
    assert json.loads(text) == document
    assert sum('"pci_bus_id"' in line and '"host"' in line and '"uuid"' in line for line in text.splitlines()) == len(document["gpus"])
    assert module.read_document(text) == document


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"schema_version": 0}', '{"schema_version": 1, "hosts": [], "gpus": [1], "problems": []}']
)
def test_what_is_no_document_is_none(text):
    assert module.read_document(text) is None


# --- CSV ---


def csv_rows(document):
    return list(csv.DictReader(io.StringIO(module.csv_text(document))))


def test_csv_has_one_line_per_gpu_and_the_names_of_gpu_info(document):
    rows = csv_rows(document)
    assert len(rows) == len(document["gpus"]) == len(module.csv_text(document).splitlines()) - 1
    assert list(rows[0]) == ["host", *module.GPU_FIELDS]
    first = rows[0]
    assert (first["host"], first["index"], first["usable"], first["memory_total_mib"]) == ("ct129", "0", "true", "49140")
    assert first["retired_pages_pending"] == ""
    assert "retired_pages_pending=not_supported" in first["reasons"]
    assert json.loads(next(row for row in rows if row["host"] == "h200-mig")["mig_devices"])[2]["name"] == "2g.35gb"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", " =", "\t=", "\r=", "\n@", "\uff1d"])
def test_a_spreadsheet_runs_no_formula_of_a_host(start):
    evil = f'{start}HYPERLINK("http://x","y")'
    document = document_of({evil: gpu_results.result([gpu_results.gpu(name=evil, processes=[{"name": evil}])])})
    row = csv_rows(document)[0]
    assert row["host"] == row["name"] == "'" + " ".join(evil.split())
    assert not any(cell[:1] in "=+-@" for cell in row.values() if cell)


def test_numbers_stay_numbers_in_csv():
    row = csv_rows(document_of({"h": gpu_results.result([gpu_results.gpu(temperature_c=-5, power_draw_w=22.1)])}))[0]
    assert (row["temperature_c"], row["power_draw_w"]) == ("-5", "22.1")


# --- Markdown ---


def test_markdown_has_problems_first_and_every_host(document):
    text = module.markdown_text(document)
    heads = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert heads == ["Problems", "Hosts without an answer", "Models", "GPUs", "Hosts that show no GPU"]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    assert ["warning", "ct129", "-", "/dev/shm has 64 MiB"] in [row[:4] for row in cells]  # noqa: S108
    assert ["info", "ct129", "GPU 1"] in [row[:3] for row in cells], "a GPU is named by its index where it has one"
    assert "| gpu7 | unreachable | Failed to connect" in text
    assert "| gpu9 | never asked |" in text
    assert "- gpu10, with problems (above)\n- web1\n- web2" in text


@pytest.mark.parametrize(
    ("host", "position", "words"),
    [
        ("ct129", 0, "40.3 of 48.0 GiB"),
        ("dgx1", 7, "4 MiB of 79.6 GiB"),
        ("spark1", 0, "unified with the host's 121.7 GiB"),
        ("jupyter", 0, "unknown (no permission)"),
        ("ws4", 0, "95.6 GiB, used: unknown"),
        ("ws4", 3, "unknown (no source says)"),
    ],
)
def test_memory_is_told_as_far_as_it_is_known(document, host, position, words):
    gpu = gpu_of(document, host, position)
    memory = next(one["memory_total_mib"] for one in document["hosts"] if one["host"] == host)
    assert module.memory_words(gpu, memory) == words
    assert f"| {words} " in module.markdown_text(document)


def test_markdown_cells_are_text():
    evil = "a|b\n## c <img src=x> [l](http://x) `d` *e* _f_ g_h &lt;"
    document = document_of({"h": gpu_results.result([gpu_results.gpu(name=evil)])})
    lines = module.markdown_text(document).splitlines()
    row = next(line for line in lines if line.startswith("| h "))
    assert row.count(" | ") == 8
    assert r"a\|b ## c &lt;img src=x> \[l\](http://x) \`d\` \*e\* \_f\_ g_h &amp;lt;" in row


@pytest.mark.parametrize(
    ("reason", "shown"),
    [(">>> a", r"\>>> a"), ("a >>> b", "a >>> b"), ("1 < 2 & 3", "1 < 2 & 3"), ("<http://x>", "&lt;http://x>"), ("&#62;", "&amp;#62;")],
)
def test_markdown_escapes_only_what_would_become_something_else(reason, shown):
    document = document_of({"h": {"failed": True, "msg": reason}})
    assert f"| h    | failed | {shown} |" in module.markdown_text(document)


# --- what changed ---


def again(change):
    results = gpu_results.fixture_fleet()
    change(results)
    return document_of(results)


def moves(results):
    for gpu in results["ct129"]["gpus"]:
        gpu.update(temperature_c=70, power_draw_w=250.0, memory_used_mib=1, memory_free_mib=2, pcie_generation=1, processes=[])
    results["ct129"]["memory_available_mib"] = 1
    results["h200-mig"]["gpus"][0]["mig_devices"][0].update(memory_used_mib=5000, memory_free_mib=6000)


def test_what_moves_by_itself_is_no_change(document):
    after = module.fleet({host: module.outcome(result) for host, result in gpu_results.fixture_fleet().items()}, "2027-01-01T00:00:00Z")
    assert module.difference(document, after) == ("", "")
    assert module.difference(document, again(moves)) == ("", "")
    assert module.difference(json.loads(module.json_text(document)), after) == ("", "")


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        (
            lambda results: results["ct129"].update(driver_version="590.1"),
            'ct129: driver_version: "580.159.04"\n',
            'ct129: driver_version: "590.1"\n',
        ),
        (
            lambda results: results["dgx1"]["gpus"][3].update(health="lost", usable=False),
            'dgx1 00000000:4E:00.0: health: "ok"\ndgx1 00000000:4E:00.0: usable: true\n',
            'dgx1 00000000:4E:00.0: health: "lost"\ndgx1 00000000:4E:00.0: usable: false\n',
        ),
        (
            lambda results: results["ct129"]["problems"].pop(0),
            'ct129 host shm_small: severity: "warning"\nct129 host shm_small: found: "/dev/shm has 64 MiB"\n'
            'ct129 host shm_small: action: "Give it more: 1 GiB for each GPU."\n',
            "",
        ),
    ],
)
def test_a_change_is_told_by_field(document, change, before, after):
    assert module.difference(document, again(change)) == (before, after)


def test_a_host_that_went_away_is_a_change(document):
    before, after = module.difference(document, again(lambda results: results.update(web1={"unreachable": True, "msg": "no route"})))
    assert 'web1: status: "answered"\n' in before
    assert 'web1: status: "unreachable"\nweb1: reason: "no route"\n' in after


def test_gpus_without_any_identifier_are_kept_apart():
    two = document_of({"h": gpu_results.result([gpu_results.gpu(), gpu_results.gpu(health="lost")])})
    one = document_of({"h": gpu_results.result([gpu_results.gpu(), gpu_results.gpu()])})
    assert module.difference(one, two) == ('h GPU (another): health: "ok"\n', 'h GPU (another): health: "lost"\n')
    assert module.difference(None, one)[0] == ""


@pytest.mark.parametrize(
    ("mib", "words"),
    [(None, "unknown"), (0, "0 MiB"), (1023, "1023 MiB"), (49140, "48.0 GiB"), (143771, "140.4 GiB"), (1 << 21, "2.0 TiB")],
)
def test_sizes(mib, words):
    assert module.size(mib) == words


def test_a_card_that_two_hosts_list_is_counted_once():
    card = gpu_results.gpu(index=0, uuid="GPU-1", pci_bus_id="00000000:01:00.0", name="NVIDIA L4", memory_total_mib=23034, usable=True)
    other = {**card, "pci_bus_id": "00000000:02:00.0", "uuid": "GPU-2"}
    document = document_of({"hypervisor": gpu_results.result([card, other]), "guest": gpu_results.result([card])})
    summary = document["summary"]
    assert (summary["gpus"], summary["gpus_listed_again"], summary["memory_total_mib"]) == (2, 1, 46068)
    assert (document["models"][0]["gpus"], len(document["gpus"])) == (2, 3)
    assert "1 GPU listed by a second host, counted once." in module.summary_words(document)


@pytest.mark.parametrize(
    "change", [{"health": []}, {"temperature_c": "hot"}, {"processes": [1]}, {"mig_devices": {}}, {"reasons": 3}, {"usable": {}}]
)
def test_a_host_with_an_odd_result_is_listed_as_failed_and_the_others_stay(change):
    odd = gpu_results.result([{**gpu_results.gpu(index=0), **change}])
    document = document_of({"odd": odd, "x\u00b2": gpu_results.result([])})
    assert [(one["host"], one["status"]) for one in document["unanswered"]] == [("odd", "failed")]
    assert next(iter(change)) in document["unanswered"][0]["reason"]


@pytest.mark.parametrize("text", ["[" * 100_000, "{", '{"schema_version": 1, "hosts": [], "problems": [], "gpus": [{"mig_devices": [1]}]}'])
def test_an_earlier_report_that_cannot_be_read_counts_as_none(text):
    assert module.read_document(text) is None
