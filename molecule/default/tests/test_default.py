"""The host after converge, as root sees it over SSH."""

from __future__ import annotations

import json

import pytest

UNIT = "sglang-demo"


def show(host, name):
    """A property of the unit as systemd has loaded it, so that the template is checked through systemd."""
    return host.check_output("systemctl show -p %s --value %s", name, UNIT)


def test_the_unit_runs(host):
    state = show(host, "ActiveState")
    assert state == "active", host.run("journalctl -u %s -n 50 --no-pager -o cat", UNIT).stdout
    assert show(host, "NRestarts") == "0"
    assert host.service(UNIT).is_enabled


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("User", "sglang"),
        ("KillMode", "mixed"),
        ("Restart", "on-failure"),
        ("StartLimitBurst", "3"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("PrivateTmp", "yes"),
        ("NeedDaemonReload", "no"),
    ],
)
def test_properties(host, name, value):
    assert show(host, name) == value


def test_the_engine_listens_on_loopback_alone(host):
    assert host.socket("tcp://127.0.0.1:30000").is_listening
    assert not host.socket("tcp://0.0.0.0:30000").is_listening


def test_the_environment_is_the_lock_and_not_writable_by_the_service(host):
    current = host.file("/opt/sglang/instances/demo/current")
    assert current.is_symlink
    assert current.linked_to.startswith("/opt/sglang/releases/0.5.23-cpu-")
    marker = json.loads(host.file(f"{current.linked_to}/.firstlight.json").content_string)
    assert current.linked_to.endswith(marker["lock_sha256"][:8])
    writable = host.run("find %s -user sglang -o -perm -o=w ! -type l | head -3", current.linked_to)
    assert writable.stdout == ""


def test_the_service_cannot_write_its_model(host):
    model = host.check_output("ls -d /var/lib/sglang/models/firstlight--tiny-qa/*/").rstrip("/")
    assert host.file(f"{model}/config.json").user == "root"
    assert host.run("sudo -u sglang touch %s/config.json", model).rc != 0
    assert host.run("sudo -u sglang cat %s/config.json", model).rc == 0


def test_nothing_lies_outside_the_documented_places(host):
    found = host.check_output(
        "find / -xdev -user sglang -not -path '/var/lib/sglang*' -not -path '/var/cache/sglang*' "
        "-not -path '/proc/*' -not -path '/tmp/*' -not -path '/dev/*' -not -path '/run/*' 2>/dev/null | head"
    )
    assert found == ""


def test_it_answers(host):
    question = {"model": "tiny-qa", "temperature": 0, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    answer = host.check_output(
        "curl -s http://127.0.0.1:30000/v1/chat/completions -H 'Content-Type: application/json' -d %s", json.dumps(question)
    )
    assert json.loads(answer)["choices"][0]["message"]["content"].strip() == "Paris"


def test_the_system_trusts_the_operators_certificates(host):
    certificate = host.file("/usr/local/share/ca-certificates/extra-ca.crt").content_string
    assert certificate.strip() in host.file("/etc/ssl/certs/ca-certificates.crt").content_string
