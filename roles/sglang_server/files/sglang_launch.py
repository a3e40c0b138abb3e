# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

"""What a unit sglang-<name>.service needs around the engine itself. Standard library only.

prepare   (ExecStartPre, root) makes the directories, closes the helper ports, records what the service is started from
run       (ExecStart, user)    keeps the API key out of the journal, then becomes the engine: the main process is the engine
finish    (ExecStopPost, root) ends what the engine left behind, waits until its last lines are written, opens the ports again
verify    (by hand, Ansible)   checks a unit file that does not have its final name yet
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECORDS = Path("/run/sglang-server")
KEY_FILE = "api_key.yaml"
LOCK_FILE = "log.lock"
ENVIRONMENT_RECORD = ".firstlight.json"  # written anew whenever the environment is built anew, under the same path
MASK = b"***"
SHORT = 4
READ_BYTES = 65536
PIPE_BYTES = 1 << 20
DRAIN_S = 10.0
# For programs that root runs from here: the PATH of the unit is made for the engine.
CLEAN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2)


class LaunchError(Exception):
    """A reason not to start, in words."""


# ---------------------------------------------------------------- the key and the journal


def read_key(text):
    """The key in the YAML file that the role writes: one line, api-key: "..."."""
    match = re.fullmatch(r'api-key: "([^"\\]+)"\n?', text)
    if not match:
        raise LaunchError(f'the credential {KEY_FILE} must hold one line, api-key: "...": run the playbook again')
    return match.group(1).encode()


class Redactor:
    """Replaces a secret in a stream of bytes, wherever the reads happen to cut it."""

    def __init__(self, secret, mask=MASK):
        self._secret = secret
        self._mask = mask
        self._held = b""

    def feed(self, data):
        """The bytes that may be written now. At most len(secret) - 1 bytes stay behind: those that may be the start of a secret."""
        data = self._held + data
        parts = data.split(self._secret)
        tail = parts.pop()
        keep = 0
        for length in range(min(len(self._secret) - 1, len(tail)), 0, -1):
            if self._secret.startswith(tail[-length:]):
                keep = length
                break
        self._held = tail[len(tail) - keep :]
        return b"".join(part + self._mask for part in parts) + tail[: len(tail) - keep]

    def close(self):
        """The end of the stream: what was held back is the start of a secret that was cut off, or a few bytes that only look like it."""
        held, self._held = self._held, b""
        return held if len(held) < SHORT else self._mask


def write_all(descriptor, data):
    """Write everything; False once the reader is gone."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except InterruptedError:
            continue
        except OSError:
            return False
    return True


def copy_stream(source, target, secret):
    """Copy until the last writer has closed. When nobody reads any more, go on reading: the engine must never block on its own log."""
    redactor = Redactor(secret)
    alive = True
    while True:
        try:
            data = os.read(source, READ_BYTES)
        except InterruptedError:
            continue
        except OSError:
            break
        if not data:
            break
        out = redactor.feed(data)
        alive = alive and write_all(target, out)
    if alive:
        write_all(target, redactor.close())


def start_filter(secret, lock_path):
    """Put a filter process between this process and the journal.

    It is no child of the engine (forked twice): the engine kills its children when it crashes, and the lines about the crash matter most.
    The lock is held as long as the filter lives, so that `finish` can wait for it.
    """
    lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    source, sink = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(sink, 1031, PIPE_BYTES)  # F_SETPIPE_SZ, named in Python 3.10 and later only
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                for number in IGNORED:
                    signal.signal(number, signal.SIG_IGN)
                os.ftruncate(lock, 0)
                os.write(lock, str(os.getpid()).encode())
                os.close(sink)
                os.dup2(os.open(os.devnull, os.O_RDWR), 0)
                with contextlib.suppress(OSError):
                    Path("/proc/self/comm").write_text("sglang-log")
                copy_stream(source, 1, secret)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(source)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.close(sink)
    os.close(lock)


def run(arguments):
    """Become the engine."""
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise LaunchError("run: expected the engine's command line after --")
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    key_file = Path(credentials, KEY_FILE) if credentials else None
    if key_file is not None and key_file.exists():
        start_filter(read_key(key_file.read_text()), Path(os.environ["RUNTIME_DIRECTORY"].split(":")[0], LOCK_FILE))
    try:
        os.execv(command[0], command)  # noqa: S606  # a list, no shell
    except OSError as error:
        raise LaunchError(f"cannot start {command[0]}: {error.strerror}. Run the playbook again: it installs the environment") from error


# ---------------------------------------------------------------- what a service is started from


def sha256_of(path):
    """The sha256 of a file, None when it is not there."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def fingerprint(files, link):
    """Everything that a running engine was started from; the module sglang_service computes the same later and compares."""
    return {
        "files": {path: sha256_of(path) for path in sorted(files)},
        "environment": os.path.realpath(link),
        "environment_record": sha256_of(Path(link, ENVIRONMENT_RECORD)),
    }


def unit_files(unit):
    """The files that systemd has loaded for a unit, and whether they have changed since."""
    command = ["systemctl", "show", "--property=FragmentPath,DropInPaths,NeedDaemonReload", unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=CLEAN, timeout=30)
    shown = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    files = [shown.get("FragmentPath", ""), *shown.get("DropInPaths", "").split()]
    return [path for path in files if path], shown.get("NeedDaemonReload") == "yes"


def write_record(unit, record):
    """Root-only: it holds the sha256 of the key file."""
    RECORDS.mkdir(mode=0o700, parents=True, exist_ok=True)
    RECORDS.chmod(0o700)
    target = RECORDS / f"{unit}.json"
    fresh = RECORDS / f".{unit}.new"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        json.dump(record, stream, indent=1, sort_keys=True)
    fresh.replace(target)


# ---------------------------------------------------------------- helper ports


def network_addresses(fib_trie, if_inet6):
    """The host's own addresses that are no loopback and no link-local ones, from /proc/net/fib_trie and /proc/net/if_inet6."""
    found = []
    last = ""
    for line in fib_trie.splitlines():
        match = re.match(r"\s+\|-- ([0-9.]+)", line)
        if match:
            last = match.group(1)
        elif "/32 host LOCAL" in line and not last.startswith(("127.", "169.254.")) and last not in found:
            found.append(last)
    for line in if_inet6.splitlines():
        fields = line.split()
        if len(fields) >= 4 and fields[3] == "00":
            found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0])))
    return found


def read_text(path):
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def reachable(address):
    """Whether a connection over this address arrives. This process is in the unit's own cgroup, so the unit's IP filter applies to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.bind((address, 0))
            listener.listen(1)
            with socket.socket(family, socket.SOCK_STREAM) as client:
                client.settimeout(1.0)
                client.connect(listener.getsockname())
                return True
    except OSError:
        return False


def table_name(unit):
    return re.sub(r"[^A-Za-z0-9]", "_", unit.rsplit(".", 1)[0])


def nft(rules):
    """Feed rules to nft; None when it worked, else why not."""
    try:
        done = subprocess.run(["nft", "-f", "-"], input=rules, capture_output=True, text=True, check=False, env=CLEAN, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip()


def close_rules(unit, ports):
    table = table_name(unit)
    numbers = ", ".join(str(port) for port in sorted(ports))
    return (
        f"table inet {table}\ndelete table inet {table}\n"
        f"table inet {table} {{\n chain input {{\n  type filter hook input priority filter - 5; policy accept;\n"
        f'  iifname != "lo" tcp dport {{ {numbers} }} drop\n }}\n}}\n'
    )


def close_ports(unit, ports):
    """How the helper ports of a loopback instance are closed to the network."""
    addresses = network_addresses(read_text("/proc/net/fib_trie"), read_text("/proc/net/if_inet6"))
    if not addresses:
        return "no_network"
    if not any(reachable(address) for address in addresses):
        return "ip_filter"
    problem = nft(close_rules(unit, ports))
    if problem is None:
        return "nftables"
    listed = ", ".join(str(port) for port in sorted(ports))
    raise LaunchError(
        f"the helper port {listed} of this loopback instance would be open to the network: "
        f"the kernel does not enforce IPAddressDeny= here, and nft failed ({problem}). "
        "Install nftables, or set sglang_server_close_helper_ports: false if a firewall in front of the host does it"
    )


# ---------------------------------------------------------------- before and after


def own_directory(path, account):
    """Make a directory of the service's, or take an empty one of root's. Anything else may be someone's data: it is never taken over."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    expected = f"{path}: expected a directory of the user {account.pw_name}, or an empty one of root's, found"
    if not path.is_dir():
        raise LaunchError(f"{expected} no directory. Remove it, or let the instance use another directory")
    owner = path.stat().st_uid
    if owner == account.pw_uid:
        return
    # lost+found: a file system of its own is mounted here
    filled = any(entry.name != "lost+found" for entry in path.iterdir())
    if owner != 0 or filled:
        found = f"one of user id {owner}" + (" with something in it" if filled else "")
        raise LaunchError(
            f"{expected} {found}. Give the instance another name or another directory; "
            f"or, if it is the instance's own, hand it over (chown -R {account.pw_name} {path}) and start the service again"
        )
    os.chown(path, account.pw_uid, account.pw_gid)


def prepare(arguments):
    os.umask(0o022)  # the unit's own is for the engine
    account = pwd.getpwnam(arguments.user)
    for directory in arguments.directory:
        own_directory(Path(directory), account)
    ports = close_ports(arguments.unit, arguments.close_port) if arguments.close_port else "open"
    loaded, outdated = unit_files(arguments.unit)
    record = fingerprint([*loaded, *arguments.file, str(Path(__file__).resolve())], arguments.link)
    write_record(arguments.unit, {**record, "outdated": outdated, "helper_ports": ports})


def own_cgroup(text):
    """The line of /proc/<pid>/cgroup by which systemd knows a service, on all three kinds of cgroup hierarchies."""
    lines = text.splitlines()
    named = [line for line in lines if ":name=systemd:" in line]
    unified = [line for line in lines if line.startswith("0::")]
    return (named or unified or [""])[0]


def end_leftovers(spare):
    """SIGKILL what is left in this unit's cgroup, as KillMode=mixed would do a moment later, but not the filter."""
    mine = own_cgroup(read_text("/proc/self/cgroup"))
    if not mine.endswith(".service"):
        return
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in spare and own_cgroup(read_text(entry / "cgroup")) == mine:
            with contextlib.suppress(OSError):
                os.kill(int(entry.name), signal.SIGKILL)


def finish(arguments):
    lock_path = Path("/run", arguments.runtime_directory, LOCK_FILE)
    with contextlib.suppress(OSError, ValueError):
        pid = int(lock_path.read_text() or 0)
        end_leftovers({pid, os.getpid(), os.getppid()})
        descriptor = os.open(lock_path, os.O_RDWR | os.O_NOFOLLOW)
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.02)
    if '"nftables"' in read_text(RECORDS / f"{arguments.unit}.json"):
        nft(f"delete table inet {table_name(arguments.unit)}\n")


def verify(arguments):
    """systemd-analyze verify, for a file that does not have its name yet, and with every complaint about it as an error."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory, arguments.unit)
        copy.write_bytes(Path(arguments.path).read_bytes())
        for option in (["--recursive-errors=no"], []):  # since systemd 250
            command = ["systemd-analyze", *option, "verify", str(copy)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=CLEAN, timeout=60)
            if "unrecognized option" not in done.stderr:
                break
    lines = [line.replace(f"{directory}/", "") for line in done.stderr.splitlines()]
    own = [line for line in lines if line.startswith(arguments.unit)]
    if done.returncode != 0 or own:
        raise LaunchError("systemd refuses this unit:\n" + "\n".join(own or lines))


def parser():
    top = argparse.ArgumentParser(prog="sglang_launch.py", allow_abbrev=False)
    commands = top.add_subparsers(required=True)
    one = commands.add_parser("prepare", allow_abbrev=False)
    one.add_argument("--unit", required=True)
    one.add_argument("--user", required=True)
    one.add_argument("--directory", action="append", default=[])
    one.add_argument("--link", required=True)
    one.add_argument("--file", action="append", default=[])
    one.add_argument("--close-port", action="append", default=[], type=int)
    one.set_defaults(call=prepare)
    one = commands.add_parser("run", allow_abbrev=False)
    one.add_argument("command", nargs=argparse.REMAINDER)
    one.set_defaults(call=run)
    one = commands.add_parser("finish", allow_abbrev=False)
    one.add_argument("--unit", required=True)
    one.add_argument("--runtime-directory", required=True)
    one.set_defaults(call=finish)
    one = commands.add_parser("verify", allow_abbrev=False)
    one.add_argument("--unit", required=True)
    one.add_argument("path")
    one.set_defaults(call=verify)
    return top


def main():
    arguments = parser().parse_args()
    try:
        arguments.call(arguments)
    except LaunchError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyError as error:
        sys.stderr.write(f"not found: {error}. Run the playbook again\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
