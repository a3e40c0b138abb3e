#!/usr/bin/env python3
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Stands in for Proxmox's pct: edits a container's file as pve-container does, from its description in PVE/LXC/Config.pm.

    pct_double.py STATE help set | status ID --verbose | set ID [--devN VALUE ...] [--delete KEYS] [--digest SHA1] | start ID | reboot ID

STATE is a JSON file:

    config_path, lock_directory   directories
    running, uptime               of the container
    knows_devices                 whether this release has devN keys
    hotplug                       whether a running container gets a new devN at once (Proxmox VE 9)
    devices                       device nodes that exist on the hypervisor; null: all
    fail                          what `set` says before it ends with an error; it changes nothing then
    lazy                          `set` says nothing and does nothing
    calls                         where the arguments of each call are written, one JSON list a line
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import pathlib
import re
import sys
import time
import typing as t

Values = dict[str, str]


class Part:
    """What Proxmox knows of one section: it loses what it cannot read, and the places of what it can."""

    def __init__(self) -> None:
        self.description: list[str] = []
        self.values: Values = {}
        self.raw: list[tuple[str, str]] = []

    def take(self, line: str) -> None:
        raw = re.match(r"(lxc\.[a-z0-9_\-.]+)(?::|\s*=)\s*(.*?)\s*$", line)
        plain = re.match(r"([a-z][a-z_]*\d*):\s*(.+?)\s*$", line)
        if line.startswith("#"):
            self.description.append(line)
        elif raw:
            self.raw.append((raw[1], raw[2]))
        elif plain:
            self.values[plain[1]] = plain[2]

    def text(self) -> str:
        pairs = [*sorted(self.values.items()), *self.raw]
        return "".join([*(f"{line}\n" for line in self.description), *(f"{key}: {value}\n" for key, value in pairs)])


class File:
    def __init__(self, text: str) -> None:
        self.now, self.pending = Part(), Part()
        self.snapshots: dict[str, Part] = {}
        part = self.now
        for line in text.split("\n"):
            header = re.match(r"\[([a-z][a-z0-9_\-]+)\]\s*$", line, re.IGNORECASE)
            if re.match(r"\[pve:pending\]\s*$", line, re.IGNORECASE):
                part = self.pending
            elif header:
                part = self.snapshots[header[1]] = Part()
            elif line.strip():
                part.take(line)

    def text(self) -> str:
        sections = [("pve:pending", self.pending)] if self.pending.values else []
        sections += sorted(self.snapshots.items())
        return self.now.text() + "".join(f"\n[{name}]\n{part.text()}" for name, part in sections)

    def start(self) -> None:
        """What is pending comes into force."""
        for key in deleted(self.pending.values):
            self.now.values.pop(key, None)
        self.now.values.update({key: value for key, value in self.pending.values.items() if key != "delete"})
        self.pending.values.clear()


def deleted(values: Values) -> list[str]:
    return [key for key in values.get("delete", "").split(",") if key]


def rewrite(text: str) -> str:
    """The same file as Proxmox writes it after any change."""
    return File(text).text()


def change(file: File, wanted: Values, delete: list[str], *, running: bool, hotplug: bool) -> None:
    pending = file.pending.values
    queue = [key for key in deleted(pending) if key not in wanted]
    for key in delete:
        pending.pop(key, None)
        if key in file.now.values and key not in queue:
            queue.append(key)
    pending.update(wanted)
    pending.pop("delete", None)
    if queue:
        pending["delete"] = ",".join(queue)
    for key in [key for key, value in pending.items() if file.now.values.get(key) == value]:
        del pending[key]
    if not running:
        file.start()
    elif hotplug:
        for key in [key for key in wanted if key in pending and key not in file.now.values]:
            file.now.values[key] = pending.pop(key)


def fail(message: str) -> t.NoReturn:
    sys.exit(f"{message}\n")


def set_options(state: dict[str, t.Any], path: pathlib.Path, arguments: list[str]) -> None:
    options = dict(zip(arguments[::2], arguments[1::2]))
    digest, delete = options.pop("--digest", None), options.pop("--delete", "")
    wanted = {key.lstrip("-"): value for key, value in options.items()}
    if state.get("fail"):
        fail(state["fail"])
    if state.get("lazy"):
        return
    for key, value in wanted.items():
        if not state.get("knows_devices", True) or not re.fullmatch(r"dev\d+", key):
            fail(f"Unknown option: {key}\n400 unable to parse option")
        node = value.split(",")[0]
        if state.get("devices") is not None and node not in state["devices"]:
            fail(f"Device {node} does not exist")
    lock = pathlib.Path(state["lock_directory"])
    lock.mkdir(exist_ok=True)
    with (lock / f"pve-config-{path.stem}.lock").open("a") as stream:
        for _attempt in range(20):
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
        else:
            fail("trying to acquire lock...\ncan't lock file - got timeout")
        data = path.read_bytes()
        file = File(data.decode("latin-1"))
        if "lock" in file.now.values:
            fail(f"CT is locked ({file.now.values['lock']})")
        if digest and digest != hashlib.sha1(data).hexdigest():  # noqa: S324
            fail("detected modified configuration - file changed by other user? Try again.")
        change(file, wanted, delete.split(",") if delete else [], running=state.get("running", False), hotplug=state.get("hotplug", False))
        path.write_bytes(file.text().encode("latin-1"))


def main() -> None:
    state_path = pathlib.Path(sys.argv[1])
    state = json.loads(state_path.read_text())
    command, *arguments = sys.argv[2:]
    with pathlib.Path(state["calls"]).open("a") as stream:
        stream.write(json.dumps(sys.argv[2:]) + "\n")
    if command == "help":
        devices = "  --dev[n] [[path=]<Path>] [,deny-write=<1|0>] [,gid=<integer>] [,mode=<Octal access mode>] [,uid=<integer>]\n"
        sys.stderr.write(f"USAGE: pct set <vmid> [OPTIONS]\n\n{devices if state.get('knows_devices', True) else ''}  --hostname <string>\n")
        return
    path = pathlib.Path(state["config_path"], f"{arguments[0]}.conf")
    if not path.exists():
        fail(f"Configuration file '{path}' does not exist")
    if command == "status":
        lock = File(path.read_bytes().decode("latin-1")).now.values.get("lock")
        running = state.get("running", False)
        lines = ["cpu: 0", *([f"lock: {lock}"] if lock else []), "name: guest", f"status: {'running' if running else 'stopped'}"]
        sys.stdout.write("\n".join([*lines, "type: lxc", f"uptime: {state.get('uptime', 0) if running else 0}", ""]))
    elif command == "set":
        set_options(state, path, arguments[1:])
    elif command in ("start", "reboot"):
        file = File(path.read_bytes().decode("latin-1"))
        file.start()
        path.write_bytes(file.text().encode("latin-1"))
        if command == "reboot":
            state_path.write_text(json.dumps({**state, "uptime": 0}))


if __name__ == "__main__":
    main()
