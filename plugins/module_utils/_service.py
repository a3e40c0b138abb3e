# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

"""What runs, what should run, and what must be done about it: text of systemctl and /proc in, decisions out."""

from __future__ import annotations

import ipaddress
import re
import shlex
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "UnitFileState",
    "MainPID",
    "NeedDaemonReload",
    "FragmentPath",
    "DropInPaths",
)
_LISTEN = "0A"


def parse_show(text: str) -> dict[str, dict[str, str]]:
    """`systemctl show` of several units: unit name -> properties."""
    units = {}
    for block in re.split(r"\n\s*\n", text):
        shown = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" in shown:
            units[shown["Id"]] = shown
    return units


def systemd_version(text: str) -> int | None:
    """The number in the first line of `systemctl --version`."""
    match = re.match(r"systemd (\d+)", text)
    return int(match.group(1)) if match else None


class Listener(NamedTuple):
    """A listening TCP socket."""

    address: str
    port: int
    inode: str


def _address(text: str) -> str:
    """An address of /proc/net/tcp or tcp6: native-endian words in hexadecimal."""
    raw = bytes.fromhex(text)
    words = struct.unpack(f">{len(raw) // 4}I", raw)
    packed = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def parse_listeners(text: str) -> list[Listener]:
    """The listening sockets in the text of /proc/net/tcp or /proc/net/tcp6."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            address, port = fields[1].rsplit(":", 1)
            found.append(Listener(_address(address), int(port, 16), fields[9]))
    return found


def addresses_collide(wanted: str, taken: str) -> bool:
    """Whether a socket on one address keeps another socket from the same port. A name that is no address counts as every address."""
    try:
        first, second = ipaddress.ip_address(wanted), ipaddress.ip_address(taken)
    except ValueError:
        return True
    mapped = getattr(second, "ipv4_mapped", None)
    second = mapped or second
    if first == second:
        return True
    if first.is_unspecified or second.is_unspecified:
        # "::" usually takes IPv4 connections too; "0.0.0.0" never takes IPv6 ones.
        return first.version == second.version or (first if first.is_unspecified else second).version == 6
    return False


def unit_of_cgroup(text: str) -> str | None:
    """The service that a process belongs to, from the text of /proc/<pid>/cgroup."""
    for line in text.splitlines():
        if ":name=systemd:" in line or line.startswith("0::"):
            match = re.search(r"/([^/]+\.service)(?:/|$)", line)
            if match:
                return match.group(1)
    return None


class Owner(NamedTuple):
    """The process behind a listening socket."""

    pid: int
    name: str
    unit: str | None


def port_conflicts(
    instance: Mapping[str, Any], listeners: Iterable[Listener], owners: Mapping[str, Owner], own_units: Iterable[str]
) -> list[str]:
    """The ports of an instance that something else holds, in words."""
    exempt = set(own_units)
    problems = []
    wanted = [("port", instance["host"], instance["port"]), ("nccl_port", "0.0.0.0", instance["nccl_port"])]  # noqa: S104
    for label, host, port in wanted:
        seen = set()
        for listener in listeners:
            if port is None or listener.port != int(port) or not addresses_collide(host, listener.address):
                continue
            owner = owners.get(listener.inode)
            if owner is not None and owner.unit in exempt:
                continue
            if owner is None:
                who = "a process that cannot be seen from here"
            else:
                who = f"{owner.name} (pid {owner.pid}{f', unit {owner.unit}' if owner.unit else ''})"
            if who not in seen:
                seen.add(who)
                problems.append(
                    f"{instance['name']}: {label} {port} should be free on {host}, but {who} listens on {listener.address}. "
                    f"Stop it, or give the instance another {label}"
                )
    return problems


def differences(record: Mapping[str, Any] | None, now: Mapping[str, Any], *, key_path: str | None, launcher: str) -> list[str]:
    """Why what runs is not what is written: empty when it is."""
    if record is None:
        return ["unknown start"]
    found = []
    before: Mapping[str, Any] = record.get("files") or {}
    after: Mapping[str, Any] = now["files"]
    changed = {path for path in set(before) | set(after) if before.get(path) != after.get(path)}
    if record.get("outdated") or changed - {key_path, launcher}:
        found.append("unit")
    if key_path in changed:
        found.append("key")
    if launcher in changed:
        found.append("launcher")
    # An environment that is built anew keeps its path, and gets another record.
    if any(record.get(key) != now.get(key) for key in ("environment", "environment_record")):
        found.append("environment")
    return found


class Plan(NamedTuple):
    """What to do with one unit."""

    action: str  # none, start, restart, stop
    enable: bool | None  # None: as it is
    restart_required: bool  # a restart that is not allowed now


def plan(state: str, *, enabled: bool, active_state: str, unit_file_state: str, stale: Sequence[str], restart_allowed: bool) -> Plan:
    """The decision. A unit that failed or waits for its next try is started: its files may be right only now."""
    enable = None if (unit_file_state == "enabled") == enabled else enabled
    running = active_state in ("active", "reloading")
    if state == "stopped":
        return Plan("none" if active_state in ("inactive", "failed", "") else "stop", enable, False)
    if not running:
        return Plan("start", enable, False)
    if stale and restart_allowed:
        return Plan("restart", enable, False)
    return Plan("none", enable, bool(stale))


def dropins_outdated(unit: str, loaded: Iterable[str], on_disk: Mapping[str, Sequence[str]]) -> bool:
    """Whether a unit has other drop-ins on disk than systemd has loaded.

    NeedDaemonReload overlooks a directory of drop-ins that is new (systemd 252 looks it up in a cache).
    on_disk: directory, highest precedence first -> names of the *.conf files in <directory>/<unit>.d.
    """
    effective: dict[str, str] = {}
    for directory, names in on_disk.items():
        for name in names:
            effective.setdefault(name, f"{directory}/{unit}.d/{name}")
    return set(effective.values()) != {path for path in loaded if f"/{unit}.d/" in path}


def instance_of_unit(text: str) -> str | None:
    """The instance that a unit file belongs to: only a unit that this collection wrote has the section."""
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip()
        elif section == "[X-Firstlight]" and line.startswith("Instance="):
            return line.split("=", 1)[1].strip()
    return None


def key_file_of_unit(text: str) -> str | None:
    """The key file that a unit loads."""
    match = re.search(r"^LoadCredential=api_key\.yaml:(/.+)$", text, re.MULTILINE)
    return match.group(1).replace("%%", "%") if match else None


def command_of_unit(text: str) -> list[str]:
    """The words of ExecStart= in a unit that this collection wrote; nothing when it cannot be read."""
    match = re.search(r"^ExecStart=((?:.*\\\n)*.*)$", text, re.MULTILINE)
    try:
        return shlex.split(match.group(1).replace("\\\n", " ")) if match else []
    except ValueError:
        return []


def ports_of_unit(text: str) -> dict[str, Any]:
    """What the engine of a unit listens on: host, port and nccl_port, as far as its command line names them."""
    words = command_of_unit(text)
    found: dict[str, Any] = {}
    for flag, value in zip(words, words[1:]):
        if flag in ("--port", "--nccl-port") and value.isdigit():
            found[flag[2:].replace("-", "_")] = int(value)
        elif flag == "--host":
            found["host"] = value
    return found


def unlisted_conflicts(instances: Iterable[Mapping[str, Any]], unlisted: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Ports of units that are no longer listed, in words: their engines may still load, and not listen yet.

    unlisted: unit name -> what ports_of_unit says.
    """
    problems = []
    for instance in instances:
        for unit, ports in unlisted.items():
            # The helper port listens on every address.
            addresses = {"port": str(ports.get("host", "127.0.0.1")), "nccl_port": "0.0.0.0"}  # noqa: S104
            wanted = {"port": str(instance["host"]), "nccl_port": "0.0.0.0"}  # noqa: S104
            for label, host in wanted.items():
                port = instance.get(label)
                for other, address in addresses.items():
                    if port is not None and ports.get(other) == int(port) and addresses_collide(host, address):
                        problems.append(
                            f"{instance['name']}: {unit} is no longer listed and has {other} {port}: "
                            f"remove it with sglang_server_prune: true, or give the instance another {label}"
                        )
    return problems
