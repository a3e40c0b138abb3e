"""The main job and what must hold after it."""

from __future__ import annotations

import json
import re
import socket
import subprocess

import pytest


def test_the_first_run_ends_with_a_verified_completion(deployed):
    report = json.loads((deployed.reports / "ct129/demo/report.json").read_text())
    assert report["verdict"] == "verified"
    assert all(check["ok"] for check in report["checks"] if check["ok"] is not None)
    assert "Paris" in (deployed.reports / "ct129/demo/report.md").read_text()


def test_second_run_changes_nothing(deployed):
    """And asks no package index: this one does not answer."""
    play = deployed.play(sglang_venv_index_url="http://127.0.0.1:9/simple")
    assert play.status == "successful", play.output
    assert play.changed == []
    assert "DEPRECATION" not in play.output, "case D02: what goes away in the next ansible-core"


def test_check_mode_on_a_finished_host_changes_nothing(deployed):
    play = deployed.play(cmdline="--check --diff")
    assert play.status == "successful", play.output
    assert play.changed == []


def test_verify_alone_repeats_the_check(deployed):
    play = deployed.play("verify.yml")
    assert play.status == "successful", play.output
    assert play.changed == []


def test_the_service_runs_as_its_own_user_and_answers_on_loopback_only(deployed, host):
    assert host.check_output("systemctl show -p ActiveState --value sglang-demo") == "active"
    assert host.check_output("systemctl show -p User --value sglang-demo") == "sglang"
    assert host.socket("tcp://127.0.0.1:30000").is_listening
    assert not host.socket("tcp://0.0.0.0:30000").is_listening


def test_the_helper_port_is_closed_to_the_network(deployed, host):
    address = host.check_output("hostname -I").split()[0]
    assert host.run("ss -Hltn 'sport = 29000'").stdout, "the engine's rendezvous does not listen: nothing was tested"
    with pytest.raises(OSError, match=r"timed out|refused|unreachable"):
        socket.create_connection((address, 29000), timeout=5)


def test_the_curl_line_of_the_report_works_from_here(deployed):
    text = (deployed.reports / "ct129/demo/report.md").read_text()
    block = re.search(r"```(?:sh|bash|console)?\n(.*?curl.*?)```", text, re.DOTALL)
    assert block, text
    answer = subprocess.run(["sh", "-c", block.group(1)], capture_output=True, text=True, timeout=120, check=False)
    assert "choices" in answer.stdout, answer.stdout + answer.stderr


@pytest.mark.parametrize("word", ["Paris", "Mars"])
def test_the_report_tells_numbers(deployed, word):
    report = json.loads((deployed.reports / "ct129/demo/report.json").read_text())
    assert report["engine"]["max_total_num_tokens"] == 20000
    assert report["engine"]["context_length"] == 4096
    assert word in json.dumps(report)


def test_a_running_stream_survives_a_stop(deployed, host):
    """KillMode=mixed: the main process drains; with control-group the stream would be cut."""
    request = json.dumps(
        {
            "model": "tiny-qa",
            "stream": True,
            "max_tokens": 600,
            "temperature": 0,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": "Count to five."}],
        }
    )
    script = f"""
set -eu
curl -sN http://127.0.0.1:30000/v1/chat/completions -H 'Content-Type: application/json' -d '{request}' >/tmp/stream &
client=$!
for _ in $(seq 100); do grep -q data: /tmp/stream && break; sleep 0.1; done
before=$(grep -c data: /tmp/stream)
systemctl stop sglang-demo
wait $client
echo "$before $(grep -c data: /tmp/stream)"
tail -n 2 /tmp/stream
"""
    result = host.run("bash -c %s", script)
    # Run often on the same host, the starts of this test alone would reach the unit's start limit.
    host.check_output("systemctl reset-failed sglang-demo; systemctl start sglang-demo")
    assert result.rc == 0, result.stderr
    before, after = map(int, result.stdout.splitlines()[0].split())
    assert 0 < before < after, "the stream was over before the stop: nothing was tested"
    assert "[DONE]" in result.stdout
    play = deployed.play("verify.yml")
    assert play.status == "successful", play.output
