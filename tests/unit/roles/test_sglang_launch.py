"""The launcher's own parts: the redactor, and that it takes the same fingerprint as the module."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.firstlight.sglang.plugins.modules import sglang_service
from hypothesis import given
from hypothesis import strategies as st

FILE = Path(__file__).resolve().parents[3] / "roles" / "sglang_server" / "files" / "sglang_launch.py"
SPEC = importlib.util.spec_from_file_location("sglang_launch", FILE)
launch = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(launch)
KEY = b"aab-aab-SECRET-aab"


def redact(chunks, secret=KEY):
    redactor = launch.Redactor(secret)
    return b"".join([*(redactor.feed(chunk) for chunk in chunks), redactor.close()])


@given(st.lists(st.one_of(st.binary(max_size=8), st.sampled_from([KEY, KEY[:5], KEY[5:], b"aab", b"\r", b"\n"]))), st.integers(1, 7))
def test_however_the_reads_cut_it_the_result_is_the_same(pieces, size):
    data = b"".join([*pieces, b"\n"])
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    assert redact(chunks) == data.replace(KEY, b"***")


@pytest.mark.parametrize(("end", "written"), [(KEY[:3], KEY[:3]), (KEY[:4], b"***"), (KEY[:-1], b"***"), (KEY, b"***")])
def test_a_secret_that_is_cut_off_at_the_end_stays_secret(end, written):
    assert redact([b"key " + end]) == b"key " + written


def test_a_line_is_never_held_back():
    redactor = launch.Redactor(KEY)
    assert redactor.feed(b"50%\r60%\r") == b"50%\r60%\r"
    assert redactor.feed(b"a line\n") == b"a line\n"
    assert redactor.feed(b"key " + KEY[:9]) == b"key "
    assert redactor.feed(KEY[9:] + b"\n") == b"***\n"


@pytest.mark.parametrize("text", ["", 'api-key: ""\n', "api-key: x\n", 'api-key: "a"\nhost: "b"\n', 'api-key: "a\\"b"\n'])
def test_another_key_file_is_refused_without_being_shown(text):
    with pytest.raises(launch.LaunchError) as error:
        launch.read_key(text)
    assert "run the playbook" in str(error.value)


def test_a_key_file():
    assert launch.read_key('api-key: "abc=="\n') == b"abc=="


def start(tmp_path, program, **environment):
    (tmp_path / "api_key.yaml").write_text(f'api-key: "{KEY.decode()}"\n')
    variables = {
        **os.environ,
        "CREDENTIALS_DIRECTORY": str(tmp_path),
        "RUNTIME_DIRECTORY": str(tmp_path),
        "KEY": KEY.decode(),
        **environment,
    }
    command = [sys.executable, "-I", "-S", str(FILE), "run", "--", sys.executable, "-c", program]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=variables)


def test_the_process_becomes_the_engine_and_its_output_is_clean(tmp_path):
    program = "import os, sys; print(os.getpid()); sys.stderr.buffer.write(b'\\xff\\x00' + os.environ['KEY'].encode()); sys.exit(7)"
    process = start(tmp_path, program)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 7
    assert out == b"\xff\x00***" + str(process.pid).encode() + b"\n" or out == str(process.pid).encode() + b"\n\xff\x00***"


def test_sigterm_to_the_whole_group_leaves_the_filter_alone_until_the_last_line(tmp_path):
    program = (
        "import os, signal, sys, time\n"
        "def stop(*_):\n time.sleep(0.5); os.write(1, b'drained ' + os.environ['KEY'].encode() + b'\\n'); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, stop); print('up', flush=True)\n"
        "while True: time.sleep(1)\n"
    )
    process = start(tmp_path, program)
    assert process.stdout.readline() == b"up\n"
    log_pid = int((tmp_path / "log.lock").read_text())
    os.kill(log_pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == b"drained ***\n"
    with (tmp_path / "log.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the filter has gone


def test_a_reader_that_goes_away_does_not_stop_the_engine(tmp_path):
    program = "import sys\nfor i in range(20000): print('x' * 100)\nsys.exit(5)"
    process = start(tmp_path, program)
    process.stdout.close()
    assert process.wait(timeout=30) == 5


def test_own_addresses():
    trie = "Main:\n           |-- 10.0.3.0\n              /24 link UNICAST\n           |-- 10.0.3.41\n              /32 host LOCAL\n"
    trie += "           |-- 127.0.0.1\n              /32 host LOCAL\n"
    inet6 = "00000000000000000000000000000001 01 80 10 80 lo\nfd000000000000000000000000000005 02 40 00 80 eth0\nfe80000000000000000000000000abcd 02 40 20 80 eth0\n"  # noqa: E501
    assert launch.network_addresses(trie, inet6) == ["10.0.3.41", "fd00::5"]
    assert launch.network_addresses("", "") == []


def test_rules_replace_themselves():
    rules = launch.close_rules("sglang-a-b.service", [29000])
    assert rules.startswith("table inet sglang_a_b\ndelete table inet sglang_a_b\ntable inet sglang_a_b {")
    assert 'iifname != "lo" tcp dport { 29000 } drop' in rules


def test_an_environment_that_is_built_anew_has_another_fingerprint(tmp_path):
    environment = tmp_path / "release"
    environment.mkdir()
    link = tmp_path / "current"
    link.symlink_to(environment)
    before = launch.fingerprint([], link)
    assert before == {"files": {}, "environment": str(environment), "environment_record": None}
    (environment / ".firstlight.json").write_text("{}")
    after = launch.fingerprint([], link)
    assert after["environment"] == before["environment"]
    assert after["environment_record"] == launch.sha256_of(environment / ".firstlight.json")


def test_the_module_computes_the_same_fingerprint(tmp_path):
    unit, dropin, key = (tmp_path / name for name in ("x.service", "x.conf", "key.yaml"))
    for file in (unit, dropin, key):
        file.write_text(file.name)
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / ".firstlight.json").write_text("{}")
    (tmp_path / "current").symlink_to("release")
    shown = {"FragmentPath": str(unit), "DropInPaths": str(dropin)}
    instance = {"api_key_path": str(key), "current": str(tmp_path / "current")}
    record = launch.fingerprint([str(unit), str(dropin), str(key), str(FILE)], instance["current"])
    assert sglang_service.Host(None).now(shown, instance, str(FILE)) == record


def account(uid):
    return pwd.struct_passwd(("sglang", "x", uid, uid, "", "/", "/bin/false"))


def test_a_directory_of_the_service_is_left_alone(tmp_path):
    (tmp_path / "file").touch()
    launch.own_directory(tmp_path, account(tmp_path.stat().st_uid))
    launch.own_directory(tmp_path / "a" / "b", account(os.getuid()))
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_what_is_no_directory_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(launch.LaunchError, match="found no directory"):
        launch.own_directory(tmp_path / "file", account(os.getuid()))


@pytest.mark.skipif(os.getuid() != 0, reason="gives directories to other users")
@pytest.mark.parametrize(
    ("owner", "content", "taken"),
    [(0, None, True), (0, "lost+found", True), (0, "Qwen--Qwen3.6-27B", False), (1234, None, False), (1234, "x", False)],
)
def test_a_directory_of_others_is_not_taken_over(tmp_path, owner, content, taken):
    path = tmp_path / "models"
    path.mkdir()
    if content:
        (path / content).mkdir()
    os.chown(path, owner, owner)
    if taken:
        launch.own_directory(path, account(4321))
        assert path.stat().st_uid == 4321
    else:
        with pytest.raises(launch.LaunchError, match="Give the instance another name"):
            launch.own_directory(path, account(4321))
        assert path.stat().st_uid == owner
