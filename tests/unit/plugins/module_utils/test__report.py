from __future__ import annotations

import json
import pathlib
import subprocess

import pytest
from ansible_collections.firstlight.sglang.plugins.action import sglang_report as action
from ansible_collections.firstlight.sglang.plugins.module_utils import _diagnosis as diagnosis
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
LOCAL = {"local": True, "address": "localhost", "network_address": "localhost", "user": None, "port": None, "options": []}
REMOTE = {"local": False, "address": "ct129", "network_address": None, "user": "ops", "port": 2222, "options": ["-F", "my config"]}


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
    assert made["noticed"] == [
        "1 kind of harmless messages in the log (the limit of open files could not be raised): nothing to do, see problems in report.json."
    ]


def test_the_markdown():
    text = action.render(TEMPLATE, build())
    assert text.startswith("# demo on ct129: verified\n")
    assert "| max_total_num_tokens | 20000 |" in text
    assert '| ok     | answer 1 | 0.10    | a \\| "b" c |' in text
    assert text.count("```sh\n") == 2
    assert "curl" in text.split("```sh\n")[1]
    assert "the base URL is `http://127.0.0.1:30000/v1`" in text
    assert action.render(TEMPLATE, build(controller=LOCAL)).count("```sh\n") == 1


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


NEAR = {**REMOTE, "network_address": "10.0.0.9"}
ON_HOST = """printf %s '{"model": "tiny-qa", "messages": [{"role": "user", "content": "Capital?"}], "max_tokens": 256}' | """


@pytest.mark.parametrize(
    ("instance", "controller", "start"),
    [
        (INSTANCE, LOCAL, "curl -sS http://127.0.0.1:30000/"),
        (INSTANCE, REMOTE, ON_HOST + "ssh -F 'my config' -p 2222 ops@ct129 \"curl -sS http://127.0.0.1:30000/v1/chat/completions -H 'Con"),
        (INSTANCE, NEAR, ON_HOST + "ssh "),
        (OPEN, NEAR, "curl -sS http://10.0.0.9:30000/"),
        (OPEN, REMOTE, ON_HOST + "ssh "),  # only ssh knows the name
        (OPEN, {**REMOTE, "network_address": "fe80::1"}, "curl -sS 'http://[fe80::1]:30000/"),
        ({**OPEN, "host": "10.1.1.1"}, NEAR, "curl -sS http://10.1.1.1:30000/"),
        (KEYED, LOCAL, "sudo cat /etc/sglang/demo.api_key.yaml | sed -n "),
        (KEYED, REMOTE, "ssh -F 'my config' -p 2222 ops@ct129 'sudo cat /etc/sglang/demo.api_key.yaml | sed -n "),
        (
            {**KEYED, **OPEN, "api_key_path": KEYED["api_key_path"]},
            {**NEAR, "user": "root"},
            "ssh -F 'my config' -p 2222 root@ct129 cat /etc/sglang/demo.api_key.yaml | sed",
        ),
    ],
)
def test_how_to_talk_to_it(instance, controller, start):
    line = report.talk_line(instance, "Capital?", controller)
    assert line.startswith(start), line
    subprocess.run(["sh", "-n", "-c", line], check=True)


def test_what_the_host_is_told_survives_both_shells(tmp_path):
    """ssh hands one string to the shell of the host: a stand-in for ssh does the same, and one for curl shows what came."""
    for name, text in {"ssh": 'shift\nexec sh -c "$*"', "curl": 'printf "%s\\n" "$@"; cat', "sudo": 'exec "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "key.yaml").write_text('api-key: "abc"\n')
    prompt = 'What\'s "$HOME" \\n `x`?'
    plain = {**REMOTE, "port": 22, "options": []}
    for instance in (INSTANCE, {**INSTANCE, "api_key_path": str(tmp_path / "key.yaml")}):
        line = report.talk_line(instance, prompt, plain)
        told = subprocess.run(
            ["sh", "-c", line], capture_output=True, text=True, check=True, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}
        ).stdout
        body = next(json.loads(one) for one in told.splitlines() if one.startswith("{"))
        assert body["messages"][0]["content"] == prompt
        assert ("Authorization: Bearer abc" in told.splitlines()) == bool(instance["api_key_path"])


@pytest.mark.parametrize(
    ("instance", "controller", "line"),
    [
        (INSTANCE, LOCAL, None),
        (OPEN, NEAR, None),
        (INSTANCE, REMOTE, "ssh -F 'my config' -p 2222 -N -o ExitOnForwardFailure=yes -L 30000:127.0.0.1:30000 ops@ct129"),
        (OPEN, REMOTE, "ssh -F 'my config' -p 2222 -N -o ExitOnForwardFailure=yes -L 30000:127.0.0.1:30000 ops@ct129"),
        ({**INSTANCE, "host": "::1"}, REMOTE, "ssh -F 'my config' -p 2222 -N -o ExitOnForwardFailure=yes -L '30000:[::1]:30000' ops@ct129"),
    ],
)
def test_a_tunnel_where_the_network_does_not_lead(instance, controller, line):
    assert report.tunnel_line(instance, controller) == line


@pytest.mark.parametrize(
    ("named", "options", "resolves", "found"),
    [
        (False, [], True, "ct129"),
        (False, [], False, None),
        (False, ["-F", "config"], True, None),
        (False, ["-Fconfig"], True, None),
        (True, ["-F", "config"], True, "ct129"),
        (True, ["-F", "config"], False, None),
    ],
)
def test_whether_the_network_knows_the_name(named, options, resolves, found):
    assert report.network_address("ct129", named=named, options=options, resolves=lambda _name: resolves) == found


def test_the_endpoint_row_says_where_it_listens():
    assert "| http://127.0.0.1:30000 (this host only) |" in report.facts_table(build())
    assert "| 0.0.0.0:30000, reachable from the network |" in report.facts_table(build(OPEN))


@pytest.mark.parametrize(
    ("wait", "probe", "in_wait", "words", "told"),
    [
        ({"instances": [], "failed_instances": ["a"], "msg": "dead"}, {"skipped": True}, True, "dead", False),
        ({"failed": True, "msg": "broke"}, {}, True, "broke", True),
        ({}, {}, True, "it did not come to the checks", False),
        ({"instances": [], "failed_instances": []}, {"msg": "wrong"}, False, "wrong", False),
        ({"instances": [], "failed_instances": []}, {"msg": "broke", "failed": True}, False, "broke", True),
    ],
)
def test_who_says_why(wait, probe, in_wait, words, told):
    assert report.failure_of(wait, probe) == (in_wait, words, told)


def test_every_harmless_kind_has_words():
    assert {rule.code for rule in diagnosis.RULES if rule.severity == "harmless"} == set(diagnosis.HARMLESS_WORDS)
    kinds = [{"code": "optional_kernel", "severity": "harmless", "count": 2}, {"code": "nofile_limit", "severity": "harmless", "count": 1}]
    note = report.harmless_note(kinds)
    assert note.startswith("2 kinds of harmless messages in the log (optional kernels are missing on this platform, 2 times; the limit")
    assert report.harmless_note([{"code": "x", "severity": "error", "count": 1}]) == ""


@pytest.mark.parametrize("text", ['api-key: "abc.DEF_~+/=-1"', "api-key: abc.DEF_~+/=-1"])
def test_the_key_reaches_curl_as_a_header_on_standard_input(tmp_path, text):
    path = tmp_path / "key.yaml"
    path.write_text(text + "\n")
    line = report.talk_line({**INSTANCE, "api_key_path": str(path)}, "x", {**LOCAL, "user": "root"})
    header = subprocess.run(["sh", "-c", line.split(" | curl ", 1)[0]], capture_output=True, text=True, check=True).stdout
    assert header == "Authorization: Bearer abc.DEF_~+/=-1\n"
    assert "-H @-" in line
