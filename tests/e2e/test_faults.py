"""What goes wrong, and what the operator is told. Each fault is made on the real host."""

from __future__ import annotations

import copy
import json
import os
import secrets
import signal
import subprocess
import time

import pytest
import testinfra
import yaml
from driver import ROOT, Site, run_testhost

DEMO = yaml.safe_load((ROOT / "group_vars/demo/sglang_instance.yml").read_text())["sglang_instance_demo"]


def demo(**changes):
    """The demo's instance with some keys replaced; `args` and `verify` are merged."""
    raw = copy.deepcopy(DEMO)
    for key, value in changes.items():
        raw[key] = {**raw.get(key, {}), **value} if key in ("args", "verify") else value
    return raw


def test_mistakes_in_group_vars_are_told_at_once_and_nothing_is_touched(site):
    play = site.play(
        sglang_instance_demo=demo(args={"tp_sise": 2, "max_running_requests": "many"}, modle={}),
        sglang_instance_second=demo(gpus=["0", "0"], port=80),
    )
    assert play.status == "failed"
    assert play.changed == []
    for words in (
        "sglang_instance_demo: modle: unknown key",
        "sglang_instance_second: port: expected 1024 to 65535",
        "sglang_instance_second: gpus: expected different",
    ):
        assert words in play.message, play.message


def test_a_flag_that_the_release_does_not_have(site):
    play = site.play(sglang_instance_demo=demo(args={"tp_sise": 2, "max_running_requests": "many", "mamba_scheduler_strategy": "x"}))
    assert play.status == "failed"
    assert play.changed == []
    assert "args.tp_sise: is not a flag of SGLang 0.5.23; did you mean tp_size" in play.message
    assert "args.max_running_requests: expected a whole number, found 'many'" in play.message
    assert "write mamba_radix_cache_strategy" in play.message


def test_two_instances_on_one_port(site):
    play = site.play(sglang_instance_second=demo(nccl_port=29001))
    assert play.status == "failed"
    assert play.changed == []
    assert "sglang_instance_second: port: expected a port of its own, found 30000, which is port of sglang_instance_demo" in play.message


def test_a_host_in_no_model_group_is_a_mistake(site):
    for playbook in ("site.yml", "verify.yml"):
        play = site.play(playbook, groups=["secnd"])
        assert play.status == "failed", f"{playbook} was green and had done nothing"
        assert play.changed == []
        assert "no instance" in play.message


def test_a_host_without_gpu_is_told_before_gigabytes_are_downloaded(site):
    play = site.play(groups=["qwen3_6_27b"])
    assert play.status == "failed"
    assert play.changed == []
    assert "expected NVIDIA's module loaded on the container's host, found no /proc/driver/nvidia/version" in play.message
    assert "Qwen--Qwen3.6-27B" in play.message, "the missing model is told in the same breath"


def test_the_service_role_alone_says_the_same_of_gpus_before_it_writes(site, host, tmp_path):
    playbook = tmp_path / "server.yml"
    roles = [{"role": "firstlight.sglang.sglang_server"}]
    playbook.write_text(yaml.safe_dump([{"hosts": "sglang", "gather_facts": False, "become": True, "roles": roles}]))
    play = site.play(str(playbook), groups=["qwen3_6_27b"])
    assert play.status == "failed"
    assert play.changed == []
    assert "the GPUs 0, 1, found no loaded driver" in play.message
    assert not host.file("/etc/systemd/system/sglang-qwen3-6-27b.service").exists


def test_an_engine_that_is_stopped_needs_no_gpu(site):
    """A lost GPU must not keep anybody from stopping what runs on it."""
    play = site.play(groups=["qwen3_6_27b"], sglang_server_state="stopped")
    assert "Qwen--Qwen3.6-27B" in play.message, "the preflight did not get to its end"
    assert "driver" not in play.message


def test_a_look_at_the_gpus_that_cannot_be_is_one_of_the_problems(site):
    play = site.play(groups=["qwen3_6_27b"], gpu_inventory_nvidia_smi_path="/no/such/nvidia-smi")
    assert play.status == "failed"
    assert play.changed == []
    assert "expected an executable nvidia-smi, found no such file: /no/such/nvidia-smi" in play.message
    assert "Qwen--Qwen3.6-27B" in play.message


def test_a_model_directory_that_misses_a_shard(deployed, host):
    source = host.check_output("ls -d /var/lib/sglang/models/firstlight--tiny-qa/*/").strip()
    host.check_output("rm -rf /srv/broken && cp -r %s /srv/broken && rm /srv/broken/*.safetensors", source)
    play = deployed.play(sglang_instance_demo=demo(model={"name": "firstlight/broken", "path": "/srv/broken"}))
    assert play.status == "failed"
    assert play.changed == []
    assert "/srv/broken" in play.message
    assert "safetensors" in play.message
    assert host.check_output("systemctl is-active sglang-demo") == "active", "the running service was touched"


def test_a_port_that_another_program_holds(deployed, host):
    host.check_output("systemd-run --unit=squatter python3 -m http.server 30444 --bind 127.0.0.1")
    try:
        play = deployed.play(sglang_instance_second=demo(name="second", port=30444, nccl_port=29444))
    finally:
        host.run("systemctl stop squatter")
    assert play.status == "failed"
    assert play.changed == []
    assert "30444" in play.message
    assert "python3" in play.message, play.message


def test_a_wrong_expected_answer_fails_the_verification(deployed):
    questions = [{"prompt": "What is the capital of France?", "expect": "Lyon"}]
    play = deployed.play("verify.yml", sglang_instance_demo=demo(verify={"questions": questions}))
    assert play.status == "failed"
    assert "Lyon" in play.message
    assert "Paris" in play.message


def test_a_unit_that_is_killed_while_it_loads_ends_the_wait_in_seconds(deployed, host):
    # Stopped in the middle of loading, so that no machine is too fast for this.
    host.check_output("systemctl reset-failed sglang-demo; systemctl restart sglang-demo && sleep 1")
    host.check_output("systemctl kill --signal=STOP --kill-whom=all sglang-demo")
    deployed.inventory()
    with subprocess.Popen(deployed.command("verify.yml"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as play:
        for line in play.stdout:
            if "] demo: " in line:  # the first look at the loading engine
                break
        host.check_output("systemctl kill --signal=KILL --kill-whom=all sglang-demo")
        killed = time.monotonic()
        output, _ = play.communicate(timeout=120)
        seconds = time.monotonic() - killed
    assert play.returncode != 0
    assert seconds < 30, output
    assert "killed by signal 9" in output
    host.check_output("systemctl reset-failed sglang-demo; systemctl start sglang-demo")
    again = deployed.play("verify.yml")
    assert again.status == "successful", again.output


def test_a_unit_that_systemd_has_given_up_ends_the_wait_in_seconds(deployed, host):
    """The wait looks for the first time while a restart is due, and then the start limit trips."""
    host.check_output("mkdir -p /run/systemd/system/sglang-demo.service.d")
    host.check_output(
        "printf '[Unit]\\nStartLimitBurst=1\\n' > /run/systemd/system/sglang-demo.service.d/limit.conf && systemctl daemon-reload"
    )
    try:
        host.check_output("systemctl reset-failed sglang-demo; systemctl restart sglang-demo && sleep 1")
        host.check_output("systemctl kill --signal=KILL --kill-whom=all sglang-demo")
        started = time.monotonic()
        play = deployed.play("verify.yml")
        seconds = time.monotonic() - started
    finally:
        host.check_output("rm -r /run/systemd/system/sglang-demo.service.d && systemctl daemon-reload")
        host.check_output("systemctl reset-failed sglang-demo; systemctl start sglang-demo")
    assert play.status == "failed"
    assert seconds < 60, play.output
    assert "Start request repeated too quickly" in play.message


def test_a_play_killed_between_the_unit_and_the_restart_is_finished_by_the_next(deployed, host):
    """The unit says 3 requests, the engine runs 4: no task of the next run changes the unit, and it is restarted all the same."""
    changed = demo(args={"max_running_requests": 3})
    deployed.inventory(sglang_instance_demo=changed)
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    with subprocess.Popen(
        deployed.command(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    ) as play:
        for line in play.stdout:
            if "Run what is written" in line:
                os.killpg(play.pid, signal.SIGKILL)
                break
    written = host.check_output("grep -c -- '--max-running-requests 3' /etc/systemd/system/sglang-demo.service")
    assert written == "1"
    play = deployed.play(sglang_instance_demo=changed)
    assert play.status == "successful", play.output
    report = json.loads((deployed.reports / "ct129/demo/report.json").read_text())
    assert report["engine"]["max_running_requests"] == 3
    back = deployed.play()
    assert back.status == "successful", back.output


def test_a_planted_key_is_found_nowhere_but_in_its_file(deployed, host):
    key = f"firstlight-planted-{secrets.token_hex(12)}"
    # What looks for the key must not write it: sudo logs command lines.
    pattern = f"{key[:-1]}[{key[-1]}]"
    play = deployed.play(
        cmdline="-vvv --diff",
        vault_key=key,
        sglang_instance_demo=demo(api_key_variable="vault_key", host="0.0.0.0"),
    )
    assert play.status == "successful", play.output
    assert key not in play.output
    assert key not in json.dumps(play.events)
    for report in deployed.reports.rglob("*"):
        assert not report.is_file() or key not in report.read_text()
    assert host.run("journalctl --no-pager -o export | grep -aq 'server_args='").rc == 0, "the line that holds the key was not looked at"
    assert host.run("journalctl --no-pager -o export | grep -a %s", pattern).rc == 1
    assert host.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -a %s", pattern).rc == 1
    assert host.run("systemctl show sglang-demo | grep %s", pattern).rc == 1
    files = host.run(
        "grep -rl %s /etc /opt/sglang/instances /var/lib/sglang /var/log /tmp /var/tmp /root 2>/dev/null", pattern
    ).stdout.split()
    assert files == ["/etc/sglang/demo.api_key.yaml"]
    assert host.file(files[0]).mode == 0o600
    refused = host.run("curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:30000/v1/models")
    assert refused.stdout == "401"
    back = deployed.play()
    assert back.status == "successful", back.output
    assert not host.file(files[0]).exists, "a key that is no longer used lies about"


def test_two_instances_of_a_host(deployed, host):
    # The proxy does not answer: the engine's own warm-up must not go through it.
    proxy = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", **DEMO["environment"]}
    second = demo(name="second", port=30001, nccl_port=29001, served_model_name="second", environment=proxy)
    play = deployed.play(sglang_instance_second=second)
    assert play.status == "successful", play.output
    for name in ("demo", "second"):
        assert json.loads((deployed.reports / f"ct129/{name}/report.json").read_text())["verdict"] == "verified"
    again = deployed.play(sglang_instance_second=second)
    assert again.changed == [], again.output
    gone = deployed.play(sglang_server_prune=True)
    assert gone.status == "successful", gone.output
    assert host.run("systemctl cat sglang-second").rc != 0


@pytest.fixture
def bare(tmp_path_factory):
    """A second, odd host, by what makes it odd."""
    made = []

    def make(*options):
        run_testhost("create", "bare", "--hostname", "ct129", *options)
        made.append(options)
        return Site(tmp_path_factory.mktemp("bare"), "bare")

    yield make
    if made:
        run_testhost("destroy", "bare")


def test_a_target_without_systemd_is_refused_before_anything_is_touched(bare):
    play = bare("--no-systemd").play()
    assert play.status == "failed"
    assert play.changed == []
    assert "systemd" in play.message


def test_a_target_without_python_gets_one(bare):
    site = bare("--no-python")
    root = testinfra.get_host("ssh://ct129", ssh_config=str(site.ssh_config), sudo=True)
    mistake = demo(args={"tp_sise": 1})
    checked = site.play(sglang_instance_demo=mistake, cmdline="--check")
    assert "A run without --check installs it" in checked.output
    root.check_output("mv /usr/bin/apt-get /usr/bin/apt-get.away")
    without = site.play(sglang_instance_demo=mistake)
    assert "expected python3, or apt-get or dnf to install it with; found neither" in without.output
    root.check_output("mv /usr/bin/apt-get.away /usr/bin/apt-get")
    play = site.play(sglang_instance_demo=mistake)
    assert play.status == "failed"
    assert "args.tp_sise" in play.message, "the play ended before Python was there"


def test_a_hub_token_is_not_shown_when_the_download_fails(deployed):
    """Case D05: a forced failure at -vvv."""
    token = "hf_planted0123456789abcdef"
    play = deployed.play(
        cmdline="-vvv --diff",
        hub_token=token,
        sglang_model_hub_token_variable="hub_token",
        sglang_model_hub_endpoint="http://127.0.0.1:9",
        sglang_instance_demo=demo(model={"name": "acme/none", "revision": "0" * 40}),
    )
    assert play.status == "failed"
    assert "acme/none" in play.message
    assert token not in play.output
    assert token not in json.dumps(play.events)
