from __future__ import annotations

import pathlib
import subprocess

import pytest
from ansible_collections.firstlight.sglang.plugins.action import sglang_report as action
from ansible_collections.firstlight.sglang.plugins.module_utils import _report as report

TEMPLATE = (pathlib.Path(__file__).parents[4] / "roles/sglang_verify/templates/report.md.j2").read_text()
INSTANCE = {
    "name": "demo",
    "unit": "sglang-demo.service",
    "environment": {"id": "0.5.23-cpu-1a2b3c4d", "release": "0.5.23"},
    "model": {"name": "firstlight/tiny-qa", "source": "build", "revision": "abc", "path": "/srv/m"},
    "served_model_name": "tiny-qa",
    "host": "127.0.0.1",
    "port": 30000,
    "url": "http://127.0.0.1:30000",
    "loopback": True,
    "api_key_path": None,
}
LOOK = {
    "phase": "ready",
    "numbers": {"kv_caches": [{"dtype": "torch.bfloat16", "tokens": 20000}], "max_running_requests": 4, "context_len": 4096},
    "problems": [{"code": "nofile_limit", "severity": "harmless", "found": "x", "advice": "y", "count": 1}],
    "unit": {"restarts": 0, "invocation_id": "a", "started_at": "now"},
    "time_to_ready_seconds": 41.7,
    "environment_id": "0.5.23-cpu-1a2b3c4d",
    "python": "3.11.2",
}
PROBE = {
    "ok": True,
    "checks": [{"name": "answer 1", "state": "passed", "ok": True, "expected": "e", "found": 'a | "b"\nc', "seconds": 0.1}],
    "server": {"version": "0.5.23", "dtype": "auto", "kv_cache_dtype": "auto", "max_total_num_tokens": 20000, "max_req_input_len": 19994},
    "model": {"id": "tiny-qa", "max_model_len": 4096},
    "warm_up_seconds": 0.4,
    "first_token_seconds": 0.05,
    "answer_seconds": 0.11,
}
LOCAL = {"local": True, "address": "localhost", "user": None, "port": None, "options": []}
REMOTE = {"local": False, "address": "ct129", "user": "ops", "port": 2222, "options": ["-F", "my config"]}


def build(instance=INSTANCE, look=LOOK, probe=PROBE, controller=REMOTE, failure=""):
    return report.build_report(
        host="ct129",
        instance=instance,
        look=look,
        probe=probe,
        prompt="What's the capital?",
        failure=failure,
        controller=controller,
        now="2026-12-01T00:00:00Z",
    )


def test_what_one_got():
    made = build()
    assert made["verdict"] == "verified"
    assert made["engine"]["dtype"] == "bfloat16"
    assert made["engine"]["context_length"] == 4096
    assert made["engine"]["max_running_requests"] == 4
    assert made["engine"]["max_total_num_tokens"] == 20000
    assert made["seconds"] == {"time_to_ready": 41.7, "warm_up": 0.4, "first_token": 0.05, "answer": 0.11}
    assert made["noticed"] == ["Harmless in the log: nofile_limit."]


def test_the_markdown():
    text = action.render(TEMPLATE, build())
    assert text.startswith("# demo on ct129: verified\n")
    assert "| max_total_num_tokens | 20000 |" in text
    assert '| ok     | answer 1 | 0.10    | a \\| "b" c |' in text
    assert text.count("```sh") == 1


def test_a_start_that_failed_has_a_report_too():
    made = build(look=None, probe=None, failure="demo: the unit failed.\n  to do: mend it")
    assert made["verdict"] == "failed"
    text = action.render(TEMPLATE, made)
    assert "# demo on ct129: NOT VERIFIED" in text
    assert "    demo: the unit failed.\n      to do: mend it\n" in text
    assert "None" not in text


@pytest.mark.parametrize(
    ("instance", "look", "probe", "words"),
    [
        ({}, {"unit": {"restarts": 2}}, {}, "restarted the unit 2 time(s)"),
        ({}, {"environment_id": "0.5.22-cpu-x"}, {}, "leads to 0.5.22-cpu-x, and not to 0.5.23-cpu-1a2b3c4d"),
        ({}, {}, {"model": {"max_model_len": 262144}}, "a prompt of more than 19994 is refused"),
        ({}, {"problems": [{"code": "c", "severity": "warning", "found": "less", "advice": "do", "count": 1}]}, {}, "less (do)"),
    ],
)
def test_what_is_worth_knowing(instance, look, probe, words):
    made = build({**INSTANCE, **instance}, {**LOOK, **look}, {**PROBE, **probe})
    assert words in " ".join(made["noticed"])


KEYED = {**INSTANCE, "api_key_path": "/etc/sglang/demo.api_key.yaml"}
OPEN = {**INSTANCE, "loopback": False, "host": "0.0.0.0", "url": "http://127.0.0.1:30000"}


@pytest.mark.parametrize(
    ("instance", "controller", "starts"),
    [
        (INSTANCE, LOCAL, ["curl -sS http://127.0.0.1:30000/"]),
        (
            INSTANCE,
            REMOTE,
            ["ssh -F 'my config' -p 2222 -f -o ExitOnForwardFailure=yes -L 30000:127.0.0.1:30000 ops@ct129", "curl -sS http://127.0.0.1"],
        ),
        ({**INSTANCE, "host": "::1"}, REMOTE, ["ssh -F 'my config' -p 2222 -f -o ExitOnForwardFailure=yes -L 30000:[::1]:30000", "curl"]),
        (OPEN, REMOTE, ["curl -sS http://ct129:30000/"]),
        (OPEN, {**REMOTE, "address": "fe80::1"}, ["curl -sS 'http://[fe80::1]:30000/"]),
        (KEYED, LOCAL, ["sudo cat /etc/sglang/demo.api_key.yaml | sed -n "]),
        (
            {**OPEN, **KEYED, "loopback": False},
            {**REMOTE, "user": "root"},
            ["ssh -F 'my config' -p 2222 root@ct129 cat /etc/sglang/demo.api_key.yaml | sed"],
        ),
    ],
)
def test_how_to_talk_to_it(instance, controller, starts):
    lines = report.talk_lines(instance, "What's the capital?", controller)
    assert len(lines) == len(starts)
    for line, start in zip(lines, starts):
        assert line.startswith(start), line
        subprocess.run(["sh", "-n", "-c", line], check=True)


@pytest.mark.parametrize("text", ['api-key: "abc.DEF_~+/=-1"', "api-key: abc.DEF_~+/=-1"])
def test_the_key_reaches_curl_as_a_header_on_standard_input(tmp_path, text):
    path = tmp_path / "key.yaml"
    path.write_text(text + "\n")
    (line,) = report.talk_lines({**INSTANCE, "api_key_path": str(path)}, "x", {**LOCAL, "user": "root"})
    header = subprocess.run(["sh", "-c", line.split(" | curl ", 1)[0]], capture_output=True, text=True, check=True).stdout
    assert header == "Authorization: Bearer abc.DEF_~+/=-1\n"
    assert "-H @-" in line
