#!/usr/bin/python
# Copyright: Firstlight contributors (@firstlight)
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

"""Makes systemd run what the unit files of all instances of a host say."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_service
version_added: 0.1.0
short_description: Makes systemd run what the unit files of SGLang instances say
description:
  - Looks at the units of all instances of a host in one call and starts, restarts, stops, enables or removes what must be.
  - Whether a restart is needed is decided by comparing what runs with what is written, never by what this run has changed.
    A change that an interrupted run has left behind is thus applied by the next one.
    Compared are the unit file with its drop-ins, the key file, the launcher and the environment behind the link C(current),
    also when it was built anew under the same path, with what the unit itself has recorded when it was started.
  - In check mode it changes nothing, reports what it would do, and needs nothing to be installed, so that it can look at a blank host.
options:
  instances:
    description:
      - Resolved instances as the lookup P(firstlight.sglang.instances#lookup) returns them.
      - Read are C(name), C(unit), C(unit_path), C(host), C(port), C(nccl_port), C(current), C(api_key_path),
        C(api_key_path_unused) and C(user).
      - Other keys are ignored.
    type: list
    elements: dict
    required: true
  launcher:
    description: The launcher on the host that the units start with.
    type: path
    required: true
  state:
    description:
      - V(started) and V(stopped) are what they say.
      - V(absent) stops the units and removes them, the instances' link C(current) and their key files.
      - Environments, models, state and caches stay.
    type: str
    choices: [started, stopped, absent]
    default: started
  enabled:
    description: Whether the units are started at boot.
    type: bool
    default: true
  restart_allowed:
    description: Whether a running engine may be restarted. When not, RV(restart_required) names the units that wait for it.
    type: bool
    default: true
  prune:
    description:
      - Whether units that this collection has written, and that no listed instance has, are removed.
      - When not, a port that such a unit and a listed instance both have is refused.
    type: bool
    default: false
  rewritten:
    description:
      - Units whose files this run has rewritten. Used in check mode alone, where the files are still the old ones.
    type: list
    elements: str
    default: []
  unit_directory:
    description: Where units of this collection are looked for.
    type: path
    default: /etc/systemd/system
author:
  - Firstlight contributors (@firstlight)
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  diff_mode:
    support: full
    description: Shows state before and after.
notes:
  - Needs root.
"""

EXAMPLES = r"""
- name: Run what the units say
  firstlight.sglang.sglang_service:
    instances: "{{ query('firstlight.sglang.instances') }}"
    launcher: /opt/sglang/libexec/sglang_launch.py

- name: See what would be done
  firstlight.sglang.sglang_service:
    instances: "{{ query('firstlight.sglang.instances') }}"
    launcher: /opt/sglang/libexec/sglang_launch.py
  check_mode: true
"""

RETURN = r"""
systemd_version:
  description: Number of the running systemd.
  type: int
  returned: always
units:
  description: One element for each instance.
  type: list
  elements: dict
  returned: always
  contains:
    name: {description: Name of the instance., type: str}
    unit: {description: Name of the unit., type: str}
    active_state: {description: ActiveState before., type: str}
    sub_state: {description: SubState before., type: str}
    main_pid: {description: Process of the engine before; 0 when there is none., type: int}
    environment: {description: Directory behind the link C(current); null when there is none., type: str}
    stale:
      description: "What has changed since the running engine was started: unit, key, launcher, environment, or unknown start."
      type: list
      elements: str
    helper_ports:
      description:
        - How the helper ports of the running instance are closed to the network.
        - V(ip_filter) by systemd, V(nftables) by a rule, V(no_network) when the host has no network address, V(open) when they are not.
      type: str
    action: {description: "What was done: none, start, restart, stop or remove.", type: str}
needed:
  description: Whether there is something to do.
  type: bool
  returned: always
missing:
  description: What the units need and the host does not have yet.
  type: dict
  returned: always
  contains:
    directories: {description: "Directories for the link, the launcher and the key.", type: list, elements: str}
    users: {description: Users of the services., type: list, elements: str}
restart_required:
  description: Units whose running engine is not what is written, and that were not allowed to be restarted.
  type: list
  elements: str
  returned: always
launcher:
  description: The launcher as it is on the host, with C(sha256), C(mode), C(uid) and C(gid). Empty when it is missing.
  type: dict
  returned: always
unused_keys:
  description: Key files of instances that have no key any more.
  type: list
  elements: str
  returned: always
unlisted:
  description: Units of this collection that no listed instance has. They are removed with O(prune=true).
  type: list
  elements: str
  returned: always
"""

import contextlib
import hashlib
import json
import os
import pwd
import shutil
import stat
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firstlight.sglang.plugins.module_utils import _service
from ansible_collections.firstlight.sglang.plugins.module_utils._engine_environment import MARKER

RECORDS = Path("/run/sglang-server")
UNIT_DIRECTORIES = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system")


def read_text(path):
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def sha256_of(path):
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def file_facts(path):
    """What makes a file the right one; empty when there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return {}
    return {"sha256": sha256_of(path), "mode": f"{stat.S_IMODE(status.st_mode):04o}", "uid": status.st_uid, "gid": status.st_gid}


class Host:
    """What the module reads and does; no decision here."""

    def __init__(self, module):
        self.module = module

    def systemctl(self, *arguments, check=True):
        rc, out, err = self.module.run_command(["systemctl", *arguments], environ_update={"LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"})
        if check and rc != 0:
            raise RuntimeError((err or out).strip())
        return out

    def show(self, units):
        if not units:
            return {}
        return _service.parse_show(self.systemctl("show", f"--property={','.join(_service.PROPERTIES)}", "--", *units, check=False))

    def now(self, shown, instance, launcher):
        paths = {shown.get("FragmentPath", ""), *shown.get("DropInPaths", "").split(), instance.get("api_key_path") or "", launcher} - {""}
        return {
            "files": {path: sha256_of(path) for path in paths},
            "environment": os.path.realpath(instance["current"]),
            "environment_record": sha256_of(Path(instance["current"], MARKER)),
        }

    def outdated(self, instance, shown):
        """Whether systemd has loaded something else than lies on the disk."""
        unit = instance["unit"]
        if shown.get("LoadState") != "loaded":
            return Path(instance["unit_path"]).exists()
        on_disk = {directory: [path.name for path in Path(directory, f"{unit}.d").glob("*.conf")] for directory in UNIT_DIRECTORIES}
        other = _service.dropins_outdated(unit, shown.get("DropInPaths", "").split(), on_disk)
        return other or shown.get("NeedDaemonReload") == "yes"

    def record(self, unit):
        try:
            return json.loads((RECORDS / f"{unit}.json").read_text())
        except (OSError, ValueError):
            return None

    def listeners(self):
        return [entry for name in ("tcp", "tcp6") for entry in _service.parse_listeners(read_text(f"/proc/net/{name}"))]

    def owners(self, inodes):
        """inode -> owner, for the sockets in question alone."""
        found: dict[str, Any] = {}
        wanted = {f"socket:[{inode}]": inode for inode in inodes}
        if not wanted:
            return found
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                for descriptor in (entry / "fd").iterdir():
                    with contextlib.suppress(OSError):
                        inode = wanted.get(str(descriptor.readlink()))
                        if inode is not None and inode not in found:
                            unit = _service.unit_of_cgroup(read_text(entry / "cgroup"))
                            found[inode] = _service.Owner(int(entry.name), read_text(entry / "comm").strip(), unit)
        return found

    def unlisted(self, directory, listed):
        units = {}
        for path in sorted(Path(directory).glob("sglang-*.service")):
            if path.name not in listed and not path.is_symlink():
                text = read_text(path)
                name = _service.instance_of_unit(text)
                if name is not None:
                    key_path = _service.key_file_of_unit(text)
                    units[path.name] = {
                        "name": name,
                        "unit": path.name,
                        "unit_path": str(path),
                        "api_key_path": key_path,
                        "ports": _service.ports_of_unit(text),
                    }
        return units

    def last_lines(self, unit):
        out = self.module.run_command(["journalctl", f"--unit={unit}", "--lines=15", "--output=cat", "--no-pager", "--quiet"])[1]
        return out.strip()

    def remove(self, instance, current):
        unit = instance["unit"]
        self.systemctl("disable", "--now", "--", unit, check=False)
        for path in (instance["unit_path"], instance.get("api_key_path"), current, RECORDS / f"{unit}.json"):
            if path:
                with contextlib.suppress(FileNotFoundError):
                    Path(path).unlink()
        shutil.rmtree(f"{instance['unit_path']}.d", ignore_errors=True)
        if current:
            with contextlib.suppress(OSError):
                Path(current).parent.rmdir()
        self.systemctl("daemon-reload")
        self.systemctl("reset-failed", "--", unit, check=False)


def look(module, host, instances):
    """One element an instance, with the plan."""
    launcher = module.params["launcher"]
    shown_units = host.show([instance["unit"] for instance in instances])
    seen = []
    for instance in instances:
        shown = shown_units.get(instance["unit"], {})
        record = host.record(instance["unit"])
        active = shown.get("ActiveState", "")
        outdated = host.outdated(instance, shown)
        stale: list[str] = []
        if active in ("active", "reloading"):
            stale = _service.differences(
                record, host.now(shown, instance, launcher), key_path=instance.get("api_key_path"), launcher=os.path.realpath(launcher)
            )
            if outdated and "unit" not in stale:
                stale.insert(0, "unit")
            if module.check_mode and instance["unit"] in module.params["rewritten"] and not stale:
                stale = ["unit"]
        planned = _service.plan(
            module.params["state"],
            enabled=module.params["enabled"],
            active_state=active,
            unit_file_state=shown.get("UnitFileState", ""),
            stale=stale,
            restart_allowed=module.params["restart_allowed"],
        )
        seen.append(
            {
                "instance": instance,
                "outdated": outdated,
                "plan": planned,
                "report": {
                    "name": instance["name"],
                    "unit": instance["unit"],
                    "active_state": active,
                    "sub_state": shown.get("SubState", ""),
                    "main_pid": int(shown.get("MainPID") or 0),
                    "environment": os.path.realpath(instance["current"]) if os.path.lexists(instance["current"]) else None,
                    "stale": stale,
                    "helper_ports": (record or {}).get("helper_ports") if active == "active" else None,
                    "action": planned.action,
                },
            }
        )
    return seen


def conflicts(host, seen, exempt):
    """Ports that something else holds, for the instances that are about to be started."""
    starting = [entry["instance"] for entry in seen if entry["plan"].action in ("start", "restart")]
    ports = {int(instance[key]) for instance in starting for key in ("port", "nccl_port") if instance.get(key) is not None}
    listeners = [listener for listener in host.listeners() if listener.port in ports]
    owners = host.owners({listener.inode for listener in listeners})
    return [problem for instance in starting for problem in _service.port_conflicts(instance, listeners, owners, exempt)]


def apply(host, seen):
    """Do what is planned: one stop and one start for all, so that engines drain side by side."""
    enable = [entry["instance"]["unit"] for entry in seen if entry["plan"].enable is True]
    disable = [entry["instance"]["unit"] for entry in seen if entry["plan"].enable is False]
    stop = [entry["instance"]["unit"] for entry in seen if entry["plan"].action in ("stop", "restart")]
    start = [entry["instance"]["unit"] for entry in seen if entry["plan"].action in ("start", "restart")]
    if enable:
        host.systemctl("enable", "--", *enable)
    if disable:
        host.systemctl("disable", "--", *disable)
    if stop:
        host.systemctl("stop", "--", *stop)
    if start:
        # Forgets earlier failures and restarts: a change that repairs the unit must not be held up by their count.
        host.systemctl("reset-failed", "--", *start, check=False)
        host.systemctl("start", "--", *start)


def missing(instances, launcher):
    """Directories and users that the role has to make before it writes."""
    paths = [launcher, *(instance.get(key) for instance in instances for key in ("current", "api_key_path"))]
    directories = {Path(path).parent for path in paths if path}
    users = set()
    for name in {instance.get("user") for instance in instances} - {None}:
        try:
            pwd.getpwnam(name)
        except KeyError:
            users.add(name)
    return {"directories": sorted(str(path) for path in directories if not path.is_dir()), "users": sorted(users)}


def absent(module, host, instances, result):
    """Remove the units of these instances."""
    for instance in instances:
        current = instance.get("current")
        parts = [instance["unit_path"], instance.get("api_key_path"), current]
        present = any(path and os.path.lexists(path) for path in parts)
        if present and not module.check_mode:
            host.remove(instance, current)
        result["changed"] = result["changed"] or present
        result["units"].append({"name": instance["name"], "unit": instance["unit"], "action": "remove" if present else "none"})


def main():
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "list", "elements": "dict", "required": True},
            "launcher": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["started", "stopped", "absent"], "default": "started"},
            "enabled": {"type": "bool", "default": True},
            "restart_allowed": {"type": "bool", "default": True},
            "prune": {"type": "bool", "default": False},
            "rewritten": {"type": "list", "elements": "str", "default": []},
            "unit_directory": {"type": "path", "default": "/etc/systemd/system"},
        },
        supports_check_mode=True,
    )
    if not Path("/run/systemd/system").is_dir():
        found = read_text("/proc/1/comm").strip() or "unknown"
        module.fail_json(
            msg=f"expected systemd as process 1, found {found}: the instances are systemd units. "
            "Use a host or a system container that is booted with systemd"
        )
    host = Host(module)
    instances = module.params["instances"]
    listed = {instance["unit"] for instance in instances}
    unlisted = host.unlisted(module.params["unit_directory"], listed)
    result: dict[str, Any] = {
        "changed": False,
        "systemd_version": _service.systemd_version(host.systemctl("--version")),
        "units": [],
        "restart_required": [],
        "unlisted": sorted(unlisted),
        "missing": missing(instances, module.params["launcher"]),
        "launcher": file_facts(module.params["launcher"]),
        "unused_keys": [path for path in (instance.get("api_key_path_unused") for instance in instances) if path and os.path.lexists(path)],
    }
    try:
        if module.params["state"] == "absent":
            absent(module, host, instances, result)
        if module.params["prune"] and unlisted:
            for instance in unlisted.values():
                first = instances[0]["current"] if instances else None
                instance["current"] = first and first.replace(f"/{instances[0]['name']}/", f"/{instance['name']}/")
            absent(module, host, list(unlisted.values()), result)
        if module.params["state"] != "absent":
            run(module, host, instances, listed, unlisted, result)
    except RuntimeError as error:
        shown = host.show([instance["unit"] for instance in instances])
        failed = [unit for unit in shown if shown[unit]["ActiveState"] != "active"]
        lines = [f"last lines of {unit}:\n{host.last_lines(unit)}" for unit in failed]
        module.fail_json(msg="\n".join([str(error), *lines]), **result)
    if unlisted and not module.params["prune"]:
        module.warn(f"no listed instance has {', '.join(sorted(unlisted))}: left as it is; sglang_server_prune: true removes such units")
    module.exit_json(needed=result["changed"], **result)


def conflicts_with_unlisted(host, instances, unlisted):
    """Ports of units that no listed instance has, and that are started now or at the next boot."""
    shown = host.show(list(unlisted))
    alive = {
        unit: unlisted[unit]["ports"]
        for unit in unlisted
        if shown.get(unit, {}).get("ActiveState") not in ("inactive", "failed") or shown[unit].get("UnitFileState") == "enabled"
    }
    return _service.unlisted_conflicts(instances, alive)


def run(module, host, instances, listed, unlisted, result):
    """Started or stopped."""
    seen = look(module, host, instances)
    outdated = any(entry["outdated"] for entry in seen)
    pruned = unlisted if module.params["prune"] else {}
    problems = []
    if module.params["state"] == "started" and not pruned:
        problems = conflicts_with_unlisted(host, instances, unlisted)
    told = {unit for unit in unlisted if any(f": {unit} is no longer listed" in problem for problem in problems)}
    problems += conflicts(host, seen, listed | set(pruned) | told)
    if problems:
        module.fail_json(msg="\n".join(problems), **result)
    planned = [entry for entry in seen if entry["plan"].action != "none" or entry["plan"].enable is not None]
    result["changed"] = result["changed"] or outdated or bool(planned)
    result["units"] += [entry["report"] for entry in seen]
    result["restart_required"] = [entry["instance"]["unit"] for entry in seen if entry["plan"].restart_required]
    if module._diff and planned:
        result["diff"] = [
            {
                "before_header": entry["instance"]["unit"],
                "after_header": entry["instance"]["unit"],
                "before": f"{entry['report']['active_state']}, stale: {', '.join(entry['report']['stale']) or 'no'}\n",
                "after": f"{entry['plan'].action}, enabled: {str(module.params['enabled']).lower()}\n",
            }
            for entry in planned
        ]
    if not module.check_mode:
        if outdated:
            host.systemctl("daemon-reload")
        apply(host, seen)


if __name__ == "__main__":
    main()
