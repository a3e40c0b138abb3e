"""The role on a real host with systemd, with a scripted stand-in for the engine.

FIRSTLIGHT_SSH_CONFIG and FIRSTLIGHT_HOST name the host; it is reached as root (or with sudo), and nothing else may serve on it.
"""

from __future__ import annotations

import copy
import json
import os
import shlex
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from ansible_collections.firstlight.sglang.plugins.module_utils import _systemd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CHECKOUT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent / "sglang_server"
SSH_CONFIG, ALIAS = os.environ.get("FIRSTLIGHT_SSH_CONFIG", ""), os.environ.get("FIRSTLIGHT_HOST", "")
KEY = "PLANTEDKEY0123456789abcdefXYZ.~=="
RELEASE = "/opt/sglang/releases/0.5.23-double-0"

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(not (SSH_CONFIG and ALIAS), reason="FIRSTLIGHT_SSH_CONFIG and FIRSTLIGHT_HOST name no host"),
]


def as_root(command):
    return ["ssh", "-F", SSH_CONFIG, ALIAS, "--", f"sudo -n bash -c {shlex.quote(command)}"]


def sh(command, check=True, timeout=120):
    done = subprocess.run(as_root(command), capture_output=True, text=True, timeout=timeout, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"{command}\nrc {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def put(path, text):
    command = f"mkdir -p $(dirname {shlex.quote(path)}) && cat > {shlex.quote(path)}"
    subprocess.run(as_root(command), input=text, text=True, check=True, timeout=60)


def instance(name="demo", port=30000, key=True, **changes):
    current = f"/opt/sglang/instances/{name}/current"
    argv = [f"{current}/bin/sglang", "serve", "--model-type", "llm", "--model-path", "/var/lib/sglang/models/m", "--host", "127.0.0.1"]
    result = {
        "name": name,
        "unit": f"sglang-{name}.service",
        "unit_path": f"/etc/systemd/system/sglang-{name}.service",
        "environment": {"id": "0.5.23-double-0", "release": "0.5.23", "variant": "cpu", "path": RELEASE},
        "current": current,
        "model": {"path": "/var/lib/sglang/models/m"},
        "served_model_name": "tiny-qa",
        "gpus": [],
        "host": "127.0.0.1",
        "port": port,
        "nccl_port": port - 1000,
        "loopback": True,
        "api_key_variable": "vault_demo" if key else None,
        "api_key_path": f"/etc/sglang/{name}.api_key.yaml" if key else None,
        "user": "sglang",
        "state_dir": f"/var/lib/sglang/{name}",
        "cache_dir": "/var/cache/sglang/0.5.23-double-0",
        "argv": [*argv, "--port", str(port), "--nccl-port", str(port - 1000)],
        "unit_environment": {"HOME": f"/var/lib/sglang/{name}", "PATH": "/usr/bin:/bin"},
    }
    result.update(copy.deepcopy(changes))
    return result


class Play:
    """Runs the role and knows what came of it."""

    def __init__(self, directory):
        self.directory = directory
        self.inventory = directory / "hosts.yml"
        self.inventory.write_text(
            yaml.safe_dump({"all": {"hosts": {ALIAS: {"ansible_host": ALIAS, "ansible_ssh_common_args": f"-F {SSH_CONFIG}"}}}})
        )

    def __call__(self, *instances, options=(), ok=True, key=KEY, **variables):
        extra = self.directory / "vars.yml"
        extra.write_text(yaml.safe_dump({"sglang_server_instances": list(instances), "vault_demo": key, **variables}))
        environment = {**os.environ, "ANSIBLE_LOG_PATH": str(self.directory / "ansible.log"), "ANSIBLE_NOCOLOR": "1"}
        command = ["ansible-playbook", "-i", self.inventory, HERE / "play.yml", "-e", f"@{extra}", *options]
        done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=300, check=False)
        out = done.stdout + done.stderr
        assert (done.returncode == 0) == ok, out
        return out


def unchanged(out):
    return "changed=0" in out


def clean():
    sh(
        "systemctl stop 'sglang-*' 2>/dev/null; rm -rf /etc/systemd/system/sglang-* /etc/systemd/system/*/sglang-*; "
        "rm -rf /etc/sglang /opt/sglang/instances "
        "/opt/sglang/libexec /run/sglang-server; systemctl daemon-reload; systemctl reset-failed; userdel sglang 2>/dev/null; "
        "nft delete table inet sglang_demo 2>/dev/null; rm -rf /var/lib/sglang /var/cache/sglang; mkdir -p /var/lib/sglang/models/m",
        check=False,
    )
    put(f"{RELEASE}/bin/sglang", (HERE / "double.py").read_text())
    sh(f"chmod 755 {RELEASE}/bin/sglang; ln -sf /usr/bin/python3 {RELEASE}/bin/python")


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    clean()
    yield Play(tmp_path_factory.mktemp("play"))
    clean()


def show(unit, *properties):
    out = sh(f"systemctl show {unit} --property={','.join(properties)}")
    return dict(line.split("=", 1) for line in out.splitlines())


def pid(unit="sglang-demo"):
    return show(unit, "MainPID")["MainPID"]


def journal(unit="sglang-demo"):
    return sh(f"journalctl --sync 2>/dev/null; journalctl -q --no-pager -o cat -u {unit}")


def wait_ready(port=30000):
    sh(f"for i in $(seq 100); do curl -sf -o /dev/null http://127.0.0.1:{port}/ && exit 0; sleep 0.1; done; exit 1")


def reachable_from_outside(port):
    address = sh("hostname -I").split()[0]
    code = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"
    return subprocess.run(["python3", "-c", code, address, str(port)], capture_output=True, check=False).returncode == 0


# Runs on the host: every place that holds the key. (The needle is cut in two, so that the scan does not find itself.)
SCAN = """
import json, os, subprocess
needle = b"PLANTED" + b"KEY"
found = []
def look(path):
    try:
        with open(path, "rb") as stream:
            if needle in stream.read():
                found.append(path)
    except OSError:
        pass
for pid in filter(str.isdigit, os.listdir("/proc")):
    look(f"/proc/{pid}/cmdline")
    look(f"/proc/{pid}/environ")
for top in ("/etc", "/opt", "/var/lib", "/var/tmp", "/tmp", "/root", "/home", "/run", "/dev/shm"):
    for directory, _, names in os.walk(top):
        for name in names:
            if os.path.isfile(os.path.join(directory, name)) and "/.ansible/cp" not in directory:
                look(os.path.join(directory, name))
for command in ("journalctl -q --no-pager -o json --all", "systemctl show sglang-demo", "systemctl cat sglang-demo"):
    if needle in subprocess.run(command.split(), capture_output=True).stdout:
        found.append(command)
print(json.dumps(sorted(found)))
"""


# ---------------------------------------------------------------- quoting, read back by systemd itself

texts = st.lists(
    st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0").filter(lambda c: ord(c) & 0xFFFE != 0xFFFE), max_size=20
    ).filter(lambda text: not any(0xFDD0 <= ord(char) <= 0xFDEF for char in text)),
    min_size=20,
    max_size=60,
)
AWKWARD = [
    "",
    "$HOME",
    "${HOME}",
    "%n",
    "100%",
    '{"a": "b\'c"}',
    "a b",
    ";",
    "\\;",
    "#x",
    "--x=#y",
    "\\",
    "a\\",
    "\n",
    "\t\r\x1b",
    "é😀",
    "'",
    '"',
    "-",
    "--",
    "$$",
    "%%",
    "\\x41",
]


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts)
def test_systemd_reads_back_what_was_quoted(words):
    words = [*AWKWARD, *words]
    values = [word for word in words if not any((ord(c) < 32 and c not in "\n\t") or ord(c) == 127 for c in word)]
    script = "import json,os,sys; print(json.dumps([sys.argv[1:], {k: v for k, v in os.environ.items() if k.startswith('V_')}]))"
    command = " \\\n  ".join(_systemd.command_lines(["/usr/bin/python3", "-c", script, *words]))
    lines = [f"Environment={line}" for line in _systemd.environment_lines({f"V_{i}": value for i, value in enumerate(values)})]
    unit = "\n".join(
        [
            "[Unit]",
            "StartLimitIntervalSec=0",
            "[Service]",
            "Type=oneshot",
            "RemainAfterExit=true",
            "StandardOutput=truncate:/run/quote.json",
            *lines,
            f"ExecStart={command}",
            "",
        ]
    )
    put("/run/systemd/system/quote-test.service", unit)
    sh("systemctl daemon-reload; systemctl restart quote-test.service")
    arguments, variables = json.loads(sh("cat /run/quote.json"))
    assert arguments == words
    assert variables == {f"V_{i}": value for i, value in enumerate(values)}


# ---------------------------------------------------------------- the role


def test_check_mode_on_a_blank_host(play):
    out = play(instance(), options=["--check", "--diff"])
    assert "failed=0" in out
    assert KEY not in out
    assert sh("test -e /etc/systemd/system/sglang-demo.service && echo there", check=False) == ""


def test_first_run_then_nothing_to_do(play):
    play(instance())
    wait_ready()
    before = pid()
    assert unchanged(play(instance()))
    assert unchanged(play(instance(), options=["--check", "--diff"]))
    assert pid() == before
    sh("su sglang -s /bin/sh -c 'touch /var/lib/sglang/demo/x /var/cache/sglang/0.5.23-double-0/x'")
    assert sh("stat -c %a /var/cache/sglang /var/cache/sglang/0.5.23-double-0").split() == ["755", "700"]
    shown = show(
        "sglang-demo",
        "ActiveState",
        "UnitFileState",
        "User",
        "KillMode",
        "PrivateDevices",
        "NoNewPrivileges",
        "ProtectSystem",
        "StartLimitBurst",
    )
    assert shown == {
        "ActiveState": "active", "UnitFileState": "enabled", "User": "sglang", "KillMode": "mixed", "PrivateDevices": "no",
        "NoNewPrivileges": "yes", "ProtectSystem": "strict", "StartLimitBurst": "3",
    }  # fmt: skip


def test_the_main_process_is_the_engine(play):
    command = sh(f"tr '\\0' ' ' < /proc/{pid()}/cmdline")
    assert "sglang serve" in command
    assert "sglang_launch.py" not in command


def test_units_that_systemd_would_half_ignore_are_refused(play):
    launcher = "/opt/sglang/libexec/sglang_launch.py"
    good = sh("cat /etc/systemd/system/sglang-demo.service")
    for wrong, right in (
        ("KillModus=mixed", "KillMode=mixed"),
        ("KillMode=mixd", "KillMode=mixed"),
        ("ExecStart=/no/such", "ExecStart=/opt"),
    ):
        put("/root/half.j2", good.replace(right, wrong))
        plain = sh("cp /root/half.j2 /root/half.service; systemd-analyze verify /root/half.service 2>/dev/null; echo $?").strip()
        checked = sh(f"/usr/bin/python3 {launcher} verify --unit sglang-demo.service /root/half.j2 2>&1; echo rc $?")
        assert "rc 1" in checked, (wrong, plain, checked)
        assert wrong.split("=")[1].split("/")[-1] in checked or wrong.split("=")[0] in checked
    put("/root/half.j2", good)
    assert "rc 0" in sh(f"/usr/bin/python3 {launcher} verify --unit sglang-demo.service /root/half.j2 2>&1; echo rc $?")


def test_the_key_is_nowhere_but_in_its_file(play):
    out = play(instance(), options=["-vvv", "--diff"], key=KEY + "2")
    assert f"{KEY}" not in out
    assert KEY not in (play.directory / "ansible.log").read_text()
    wait_ready()
    assert "server_args={'api_key': '***'" in journal()
    assert "key *** done" in journal()
    done = subprocess.run(as_root("python3 -"), input=SCAN, capture_output=True, text=True, check=True, timeout=120)
    # systemd's hand-over lies in memory (ramfs), readable for the service alone.
    assert json.loads(done.stdout) == ["/etc/sglang/demo.api_key.yaml", "/run/credentials/sglang-demo.service/api_key.yaml"]
    assert sh("stat -c '%a %U' /etc/sglang/demo.api_key.yaml").strip() == "600 root"
    assert (
        sh(
            "su nobody -s /bin/sh -c 'cat /run/credentials/sglang-demo.service/api_key.yaml /etc/sglang/demo.api_key.yaml 2>/dev/null'",
            check=False,
        )
        == ""
    )


def test_a_bad_key_is_refused_without_being_shown(play):
    out = play(instance(), key="SHORT secret", ok=False)
    assert "vault_demo" in out
    assert "SHORT secret" not in out


@pytest.mark.parametrize("what", ["key", "unit", "drop-in", "launcher", "environment"])
def test_a_change_that_an_interrupted_run_left_is_applied_by_the_next(play, what):
    """The first run is one that writes and never gets to the restart."""
    play(instance())
    wait_ready()
    changed, key = instance(), KEY
    if what == "key":
        key = KEY + "9"
    elif what == "unit":
        changed["unit_environment"]["DOUBLE_MARK"] = "1"
    elif what == "drop-in":
        put("/etc/systemd/system/sglang-demo.service.d/x.conf", "[Service]\nNice=1\n")
        sh("systemctl daemon-reload")  # somebody else's: systemd itself no longer says that something has changed
    elif what == "launcher":
        sh("echo '# old' >> /opt/sglang/libexec/sglang_launch.py; systemctl restart sglang-demo")
    else:
        sh(f"rm -rf {RELEASE}x; cp -a {RELEASE} {RELEASE}x")
        changed["environment"]["path"] = f"{RELEASE}x"
    before = pid()
    held = play(changed, sglang_server_restart_allowed=False, key=key)
    assert "sglang-demo.service" in held.split("restart_required=")[1]
    assert "sglang-demo.service" in play(changed, sglang_server_restart_allowed=False, key=key).split("restart_required=")[1]
    assert pid() == before
    out = play(changed, options=["-v"], key=key)
    assert pid() not in ("0", before)
    assert f"- {what.replace('drop-in', 'unit')}" in out
    assert unchanged(play(changed, key=key))
    sh("rm -rf /etc/systemd/system/sglang-demo.service.d")
    play(instance())
    assert unchanged(play(instance()))


def test_one_changed_variable_is_effective_in_the_same_run(play):
    changed = instance(unit_environment={"HOME": "/var/lib/sglang/demo", "PATH": "/usr/bin:/bin", "DOUBLE_MARK": "100% $x"})
    assert "changed=0" not in play(changed, options=["--check"])
    play(changed)
    assert "DOUBLE_MARK=100% $x" in sh(f"tr '\\0' '\\n' < /proc/{pid()}/environ")
    play(instance())


def test_a_running_stream_survives_the_stop_and_the_last_line_is_kept(play):
    play(instance())
    wait_ready()
    out = sh(
        "curl -sN http://127.0.0.1:30000/stream > /tmp/stream & sleep 1; time systemctl stop sglang-demo; wait; tail -1 /tmp/stream; "
        "systemctl show sglang-demo -p Result -p ActiveState; ps -eo args | grep -c '[s]leep 100000'",
        check=False,
    )
    assert "END" in out
    assert "Result=success" in out
    assert out.strip().endswith("0")
    assert "drained, the key was ***" in journal()
    assert "changed=0" not in play(instance())  # a stopped unit is started again
    wait_ready()


def test_the_reason_of_a_crash_is_kept_and_the_engine_comes_back(play):
    play(instance(), sglang_server_restart_s=1)
    wait_ready()
    before = pid()
    sh("curl -s http://127.0.0.1:30000/crash", check=False)
    time.sleep(3)
    wait_ready()
    assert pid() not in ("0", before)
    assert "Scheduler hit an exception with ***" in journal()


def test_systemd_gives_up_on_an_engine_that_never_starts(play):
    failing = instance(unit_environment={"HOME": "/x", "PATH": "/usr/bin:/bin", "DOUBLE_EXIT": "3"})
    play(failing, sglang_server_restart_s=1)
    for _ in range(60):
        if show("sglang-demo", "ActiveState")["ActiveState"] == "failed":
            break
        time.sleep(0.5)
    assert show("sglang-demo", "ActiveState", "NRestarts") == {"ActiveState": "failed", "NRestarts": "3"} or show(
        "sglang-demo", "NRestarts"
    )["NRestarts"] in ("2", "3")
    assert "repeated too quickly" in journal()
    play(instance())  # a repaired unit is not held up by the count
    wait_ready()


def test_the_helper_port_is_closed_to_the_network(play):
    play(instance())
    wait_ready()
    assert sh("ss -Hltn 'sport = :29000'").split()[3].startswith(("0.0.0.0", "*"))
    assert not reachable_from_outside(29000)


def test_the_helper_port_is_closed_where_the_kernel_does_not_filter(play):
    """A drop-in takes the filter away, which is what a kernel does that does not enforce it."""
    if not sh("command -v nft", check=False):
        pytest.skip("the host has no nft")
    play(instance())
    put("/etc/systemd/system/sglang-demo.service.d/x.conf", "[Service]\nIPAddressDeny=\nIPAddressAllow=\n")
    play(instance())
    wait_ready()
    assert json.loads(sh("cat /run/sglang-server/sglang-demo.service.json"))["helper_ports"] == "nftables"
    assert not reachable_from_outside(29000)
    sh("nft delete table inet sglang_demo")
    assert reachable_from_outside(29000)  # it was the rule
    sh("mv /usr/sbin/nft /usr/sbin/nft.away; systemctl restart sglang-demo", check=False)
    sh("mv /usr/sbin/nft.away /usr/sbin/nft")
    assert "helper port 29000 of this loopback instance would be open" in journal()
    sh("systemctl reset-failed sglang-demo; systemctl restart sglang-demo")
    wait_ready()
    sh("systemctl stop sglang-demo; rm -r /etc/systemd/system/sglang-demo.service.d")
    assert "sglang_demo" not in sh("nft list tables")
    play(instance())


def test_a_port_that_something_else_holds_is_named(play):
    play(instance(), sglang_server_state="stopped")
    assert show("sglang-demo", "ActiveState")["ActiveState"] == "inactive"
    sh("systemd-run --unit=squatter --collect /usr/bin/python3 -m http.server 30000 --bind 127.0.0.1; sleep 1")
    out = play(instance(), ok=False)
    assert "port 30000 should be free on 127.0.0.1, but python3" in out
    assert "squatter.service" in out
    sh("systemctl stop squatter")
    play(instance())


def test_two_instances_then_one_is_no_longer_listed(play):
    second = instance("other", 30001, key=False)
    play(instance(), second)
    wait_ready(30001)
    before = pid()
    assert unchanged(play(instance(), second))
    assert "sglang-other.service" in play(instance())
    assert show("sglang-other", "ActiveState")["ActiveState"] == "active"
    play(instance(), sglang_server_prune=True)
    assert show("sglang-other", "LoadState", "ActiveState") == {"LoadState": "not-found", "ActiveState": "inactive"}
    assert sh("ls /opt/sglang/instances").split() == ["demo"]
    assert pid() == before


def test_absent_leaves_nothing_that_starts(play):
    play(instance())
    play(instance(), sglang_server_state="absent", options=["--check"])
    play(instance(), sglang_server_state="absent")
    assert (
        sh(
            "ls /etc/systemd/system | grep sglang; ls /etc/systemd/system/multi-user.target.wants | grep sglang; ls /etc/sglang",
            check=False,
        )
        == ""
    )
    assert unchanged(play(instance(), sglang_server_state="absent"))
