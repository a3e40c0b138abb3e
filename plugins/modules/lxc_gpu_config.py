#!/usr/bin/python
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: lxc_gpu_config
author: Firstlight maintainers (@firstlight)
version_added: 0.2.0
short_description: Give GPUs of a Proxmox hypervisor to an LXC container
description:
  - Edits the container's file C(/etc/pve/lxc/<id>.conf) on the hypervisor, so that the container sees exactly the GPUs that are asked for.
  - Only the container as it is now is changed. Snapshots and pending changes in the same file, comments, the order of lines and every
    line about anything else stay, byte for byte.
  - Nothing in the file says who wrote a line. What this module manages is each C(devN) key and each raw line that gives the container
    C(/dev/nvidia<number>), C(/dev/nvidiactl), C(/dev/nvidia-uvm), C(/dev/nvidia-uvm-tools), C(/dev/nvidia-modeset) or
    C(/dev/nvidia-caps), whoever wrote it. It never touches other devices, nor NVIDIA's other nodes such as C(/dev/nvidia-fs0).
  - Raw lines whose major number is no longer the driver's are put right in their own place, keys of cgroup v1 become those of cgroup v2,
    and lines that are there twice become one.
  - Never starts, stops or restarts the container; RV(restart_required) says that it needs a restart.
options:
  id:
    description: Number of the container.
    type: int
    required: true
  state:
    description:
      - V(present) gives the container the GPUs O(gpus), and takes away others that it has.
      - V(absent) takes all away. The options that say what to give are not looked at then.
    type: str
    choices: [present, absent]
    default: present
  gpus:
    description:
      - The GPUs, each by its index, UUID or PCI address in O(inventory). The device node is that of the GPU's minor number, which is not
        its index.
      - After hardware was added or moved, run the module again. Minor numbers may have changed.
    type: list
    elements: str
  inventory:
    description:
      - What M(firstlight.sglang.gpu_info) returned on the hypervisor, or a dictionary with its C(gpus), C(device_nodes) and
        C(device_majors). Needed with O(state=present).
    type: dict
  style:
    description:
      - V(dev) writes C(devN) keys, which need no major numbers and give the nodes their own mode and owner in the container.
      - V(raw) writes C(lxc.cgroup2.devices.allow) and C(lxc.mount.entry) lines, for Proxmox VE before 8.1. Their major numbers are right
        until the hypervisor is booted with another kernel or driver. Run the module again then.
      - V(auto) is V(dev) where C(pct) knows C(devN).
    type: str
    choices: [auto, dev, raw]
    default: auto
  mode:
    description:
      - Mode of the nodes in the container, four octal digits as text. Only for V(dev), V(0666) without it.
      - With V(raw) the container sees the mode that the node has on the hypervisor.
    type: str
  uid:
    description: Owner of the nodes in the container, by number. Only for V(dev), V(0) without it.
    type: int
  gid:
    description: Group of the nodes in the container, by number. Only for V(dev), V(0) without it.
    type: int
  modeset:
    description:
      - Whether to give C(/dev/nvidia-modeset) too where the hypervisor has it.
      - With V(dev), a container does not start when one of its nodes is missing on the hypervisor. Have all of RV(nodes) made at boot.
    type: bool
    default: true
  mig_caps:
    description:
      - Numbers of the MIG capabilities C(/dev/nvidia-caps/nvidia-cap<number>) to give, from
        C(/proc/driver/nvidia-caps/mig-minors).
      - Without it those that the container has stay. An empty list takes them away.
    type: list
    elements: int
  restart_allowed:
    description:
      - Whether a running container may be changed. What it was given then comes with its next restart, which is not done here.
      - Otherwise a change to a running container is refused.
    type: bool
    default: false
  config_path:
    description: Directory of the containers' files.
    type: path
    default: /etc/pve/lxc
  backup_directory:
    description:
      - Where the file is copied to before it is changed, outside of C(/etc/pve), which is small and goes to every node of a cluster.
      - The module also learns from it whether a container was restarted after its last change. Nothing is ever removed there.
    type: path
    default: /var/lib/firstlight/lxc
  lock_directory:
    description: Where Proxmox has its locks C(pve-config-<id>.lock).
    type: path
    default: /run/lock/lxc
  lock_timeout_s:
    description: Seconds to wait for the lock.
    type: int
    default: 10
  pct_path:
    description:
      - Proxmox's C(pct). Without it the one in the search path. C(devN) keys go through it, since it checks and locks.
      - Where there is none, C(devN) keys are written under the lock like other lines, and the container is taken as stopped.
    type: path
  release:
    description: Release of Proxmox VE, as in V(8.2.4), for O(style=auto) where there is no C(pct).
    type: str
  root:
    description: Where C(proc) and C(dev) of the hypervisor lie, as in M(firstlight.sglang.gpu_info).
    type: path
    default: /
attributes:
  check_mode:
    description: Says what would be changed, and refuses what would be refused.
    support: full
  diff_mode:
    description: Shows the file before and after.
    support: full
"""

EXAMPLES = r"""
- name: Look at the GPUs of the hypervisor
  firstlight.sglang.gpu_info:
  register: hypervisor_gpus

- name: Give two of them to container 129
  firstlight.sglang.lxc_gpu_config:
    id: 129
    gpus: [0, 1]
    inventory: "{{ hypervisor_gpus }}"
  register: ct129

- name: The same by what does not change when a card is added
  firstlight.sglang.lxc_gpu_config:
    id: 129
    gpus: ["GPU-00000000-0000-4000-8000-000000000001", "0000:41:00.0"]
    inventory: "{{ hypervisor_gpus }}"
    mode: "0660"
    gid: 44
    restart_allowed: true

- name: Take them away
  firstlight.sglang.lxc_gpu_config:
    id: 129
    state: absent
"""

RETURN = r"""
restart_required:
  description:
    - Whether the container runs, and with other devices than its file gives it. Also V(true) when an earlier run changed it and it was not
      restarted since.
    - Proxmox VE 9 gives a running container a new C(devN) at once; a restart is asked for all the same.
  returned: always
  type: bool
running:
  description: Whether the container runs.
  returned: always
  type: bool
style:
  description: V(dev) or V(raw), empty with O(state=absent).
  returned: always
  type: str
nodes:
  description: Device nodes of NVIDIA's that the container sees after its next start. The hypervisor has to have them at boot.
  returned: always
  type: list
  elements: str
  sample: [/dev/nvidia0, /dev/nvidia1, /dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia-uvm-tools]
devices:
  description: The same for people, with how each is given and what it is.
  returned: always
  type: list
  elements: str
  sample: ["/dev/nvidia0 (dev1, mode 0666): GPU 0 NVIDIA RTX A6000 00000000:01:00.0"]
config_file:
  description: The file.
  returned: always
  type: str
backup_file:
  description: Copy of the file before the change; V(null) when nothing was changed.
  returned: always
  type: str
diff:
  description: The file before and after.
  returned: in diff mode
  type: dict
"""

import contextlib
import datetime
import errno
import fcntl
import hashlib
import os
import re
import stat
import time
import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_system, _lxc_config


class RefusedError(Exception):
    """A change that was not made, or not as asked; says what was found and what to do."""


class Guest(t.NamedTuple):
    """What pct says of a container."""

    running: bool = False
    started: float = 0.0  # seconds since the epoch
    lock: str = ""
    problem: str = ""


def read(path: str) -> str:
    """Text of a file, every byte kept."""
    return Path(path).read_bytes().decode("utf-8", errors="surrogateescape")


def read_or_nothing(path: str) -> str:
    try:
        return read(path)
    except OSError:
        return ""


def shown(text: str) -> str:
    """Text for a result: bytes that are no UTF-8 are replaced."""
    return text.encode("utf-8", errors="surrogateescape").decode("utf-8", errors="replace")


def explain(error: OSError, path: str) -> str:
    """An error on reading or writing. pmxcfs is read-only without quorum, and says so by EACCES (pmxcfs(8))."""
    hint = ""
    if error.errno == errno.ENOTCONN:
        hint = " What Proxmox has at /etc/pve does not answer: see systemctl status pve-cluster."
    elif error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        hint = " A node without quorum must not write: see pvecm status."
    return f"{error.filename or path}: {error.strerror}.{hint}"


def write_atomically(path: str, text: str, mode: int) -> None:
    """The old file or the new one, never a part. No chmod and no chown: pmxcfs refuses them, which is why atomic_move is of no use."""
    temporary = f"{path}.tmp.firstlight"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text.encode("utf-8", errors="surrogateescape"))
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def locked(directory: str, identity: int, timeout_s: int) -> t.Iterator[None]:
    """The lock that pct and the API hold while they change the file (config_file_lock and lock_file_full of Proxmox)."""
    os.makedirs(directory, mode=0o755, exist_ok=True)
    path = os.path.join(directory, f"pve-config-{identity}.lock")
    deadline = time.monotonic() + timeout_s
    with open(path, "ab") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise RefusedError(
                        f"expected the lock {path} within {timeout_s} s, found it held by another task of Proxmox."
                    ) from None
                time.sleep(0.1)
        yield


class Hypervisor:
    """What the module reads and runs; no decision here."""

    def __init__(self, module: AnsibleModule, pct: str | None) -> None:
        self.module = module
        self.params = module.params
        self.pct = pct
        self.root = module.params["root"].rstrip("/")

    def run_pct(self, *arguments: str) -> tuple[int, str, str]:
        environment = {"LC_ALL": "C", "LANG": "C"}
        rc, out, err = self.module.run_command([self.pct, *arguments], environ_update=environment)
        return rc, out, err

    def pct_help(self) -> str | None:
        if not self.pct:
            return None
        out, err = self.run_pct("help", "set")[1:]
        return out + err  # Proxmox prints it to either

    def guest(self) -> Guest:
        if not self.pct:
            return Guest()
        rc, out, err = self.run_pct("status", str(self.params["id"]), "--verbose")
        said = dict(re.findall(r"^([a-z]+): *(.*?) *$", out, re.MULTILINE))
        if rc != 0 or "status" not in said:
            return Guest(
                problem=f"expected pct status {self.params['id']} to answer, found: {shown(err or out).strip() or f'status {rc}'}."
            )
        uptime = said.get("uptime", "")
        started = time.time() - int(uptime) if uptime.isdigit() else 0.0
        return Guest(said["status"] == "running", started, said.get("lock", ""))

    def host(self, conf: _lxc_config.Conf) -> _lxc_config.Host:
        text = read_or_nothing(f"{self.root}/proc/devices")
        majors = (self.params["inventory"] or {}).get("device_majors") or _gpu_system.device_majors(text)
        bound = {path: self.majors_of(path) for path in _lxc_config.foreign_devices(conf)}
        return _lxc_config.Host(majors, _lxc_config.other_majors(text), bound)

    def majors_of(self, path: str) -> set[int]:
        """Majors of a device node, or of those in a directory."""
        place = f"{self.root}{path}"
        try:
            places = [place, *(os.path.join(place, name) for name in os.listdir(place))] if os.path.isdir(place) else [place]
            found = [os.stat(name) for name in places if os.path.exists(name)]
        except OSError:
            return set()
        return {os.major(status.st_rdev) for status in found if stat.S_ISCHR(status.st_mode)}

    def last_change(self) -> float:
        """When this module last changed the file; 0 when it never did."""
        times = [path.stat().st_mtime for path in Path(self.params["backup_directory"]).glob(f"{self.params['id']}.conf.*")]
        return max(times, default=0.0)

    def back_up(self, text: str) -> str:
        directory = Path(self.params["backup_directory"])
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        now = datetime.datetime.now(datetime.timezone.utc)
        path = directory / f"{self.params['id']}.conf.{now:%Y%m%dT%H%M%S.%fZ}"
        write_atomically(str(path), text, 0o600)
        return str(path)

    def elsewhere(self) -> str:
        """Where a guest is whose file is not here."""
        base = Path(self.params["config_path"]).parent
        identity = self.params["id"]
        if (base / "qemu-server" / f"{identity}.conf").exists():
            return f" {identity} is a virtual machine."
        nodes = sorted(path.parents[1].name for path in base.glob(f"nodes/*/lxc/{identity}.conf"))
        return f" It is on the node {nodes[0]}." if nodes else ""


def option_problems(params: dict[str, t.Any]) -> list[str]:
    """What is wrong with the options themselves."""
    problems = []
    if params["id"] < 100:
        problems.append(f"id: expected 100 or more, found {params['id']}. Proxmox keeps the lower numbers.")
    if params["lock_timeout_s"] < 0:
        problems.append(f"lock_timeout_s: expected 0 or more seconds, found {params['lock_timeout_s']}.")
    backups = os.path.realpath(params["backup_directory"])
    for home in ("/etc/pve", os.path.realpath(params["config_path"])):
        if os.path.commonpath([home, backups]) == home:
            problems.append(f"backup_directory: expected one outside of {home}, found {params['backup_directory']}.")
            break
    if params["pct_path"] and not os.access(params["pct_path"], os.X_OK):
        problems.append(f"pct_path: expected an executable pct, found none at {params['pct_path']}.")
    return problems + (wish_problems(params) if params["state"] == "present" else [])


def wish_problems(params: dict[str, t.Any]) -> list[str]:
    """What is wrong with the options that say what to give."""
    problems = []
    if not params["gpus"]:
        problems.append("gpus: expected at least one, found none. To take GPUs away use state: absent.")
    if params["inventory"] is None:
        problems.append("inventory: expected the result of gpu_info on the hypervisor, found none.")
    else:
        problems += _lxc_config.inventory_problems(params["inventory"])
    if params["mode"] is not None and not re.fullmatch(r"0[0-7]{3}", params["mode"], re.ASCII):
        problems.append(f"mode: expected four octal digits in quotes such as '0666', found {params['mode']}.")
    problems += [
        f"{name}: expected 0 to {_lxc_config.OWNER_MAX}, found {params[name]}."
        for name in ("uid", "gid")
        if not 0 <= (params[name] or 0) <= _lxc_config.OWNER_MAX
    ]
    if params["style"] == "raw":
        problems += only_with_devices(params, "found with raw, whose nodes have mode and owner of the hypervisor's")
    if any(number < 0 for number in params["mig_caps"] or []):
        problems.append(f"mig_caps: expected numbers of 0 or more, found {params['mig_caps']}.")
    return problems


def only_with_devices(params: dict[str, t.Any], found: str) -> list[str]:
    return [f"{name}: expected only with style dev, {found}." for name in ("mode", "uid", "gid") if params[name] is not None]


class Task:
    """One run: what is asked, decided on whatever text the file has."""

    def __init__(self, hypervisor: Hypervisor) -> None:
        self.hypervisor = hypervisor
        self.params = hypervisor.params
        self.present = self.params["state"] == "present"
        self.path = os.path.join(os.path.realpath(self.params["config_path"]), f"{self.params['id']}.conf")
        self.nodes: list[_lxc_config.Node] = []
        self.style = ""
        self.warnings: list[str] = []

    def prepare(self) -> list[str]:
        """Choose nodes and style; problems."""
        if not self.present:
            return []
        params = self.params
        choice = _lxc_config.choose_nodes(params["inventory"], params["gpus"], modeset=params["modeset"], mig_caps=params["mig_caps"])
        self.nodes = choice.nodes
        self.warnings += choice.warnings
        self.style, problem = _lxc_config.choose_style(params["style"], pct_help=self.hypervisor.pct_help(), release=params["release"])
        problems = [*choice.problems, *([problem] if problem else [])]
        if self.style == "raw" and params["style"] == "auto":
            problems += only_with_devices(params, "found a Proxmox without devN keys")
        return problems

    def decide(self, text: str, lock: str = "") -> _lxc_config.Plan:
        """What to change in a file with this text. Problems of the container itself are among the plan's. lock: what pct says."""
        params = self.params
        conf = _lxc_config.parse(text)
        planned = _lxc_config.plan(
            conf,
            self.nodes,
            self.hypervisor.host(conf),
            style=self.style,
            mode=params["mode"] or _lxc_config.MODE,
            uid=params["uid"] or 0,
            gid=params["gid"] or 0,
            keep_caps=self.present and params["mig_caps"] is None,
        )
        problems = list(planned.problems)
        lock = _lxc_config.lock_of(conf) or lock
        if lock:
            problems.append(f"expected container {params['id']} to be free, found it locked ({lock}). Wait for the task, or pct unlock it.")
        keys = {*planned.set_devices, *planned.delete_devices}
        if keys and not self.hypervisor.pct and _lxc_config.pending_devices(conf):
            problems.append(
                f"expected pct, since {', '.join(_lxc_config.pending_devices(conf))} wait for a start of the container, found none."
            )
        return planned._replace(problems=problems)

    def changes(self, planned: _lxc_config.Plan, text: str) -> bool:
        return bool(planned.set_devices or planned.delete_devices) or _lxc_config.render(planned.conf) != text

    def carry_out(self, text: str) -> None:
        """Change the file: devN keys by pct, then the raw lines under the lock."""
        planned = self.decide(text)
        if self.hypervisor.pct and (planned.set_devices or planned.delete_devices):
            self.set_devices(planned, text)
            text = read(self.path)
            planned = self.decide(text)
            self.refuse(planned)
            if planned.set_devices or planned.delete_devices:
                raise RefusedError(
                    f"expected {', '.join([*planned.set_devices, *planned.delete_devices])} to be done by pct set, found it not done."
                )
        if _lxc_config.render(planned.result) == text:
            return
        with locked(self.params["lock_directory"], self.params["id"], self.params["lock_timeout_s"]):
            current = read(self.path)
            if current != text:
                # Somebody was faster: decide on what there is now.
                planned = self.decide(current)
                self.refuse(planned)
                if self.hypervisor.pct and (planned.set_devices or planned.delete_devices):
                    raise RefusedError(f"expected {self.path} as it was, found it changed by someone else meanwhile. Run again.")
            write_atomically(self.path, _lxc_config.render(planned.result), stat.S_IMODE(os.stat(self.path).st_mode))

    def set_devices(self, planned: _lxc_config.Plan, text: str) -> None:
        digest = hashlib.sha1(text.encode("utf-8", errors="surrogateescape")).hexdigest()  # noqa: S324 - what pct compares with
        arguments = [word for key, value in planned.set_devices.items() for word in (f"--{key}", value)]
        if planned.delete_devices:
            arguments += ["--delete", ",".join(planned.delete_devices)]
        rc, out, err = self.hypervisor.run_pct("set", str(self.params["id"]), *arguments, "--digest", digest)
        if rc != 0:
            command = " ".join(["pct set", str(self.params["id"]), *arguments])
            raise RefusedError(f"expected {command} to work, found: {shown(err or out).strip() or f'status {rc}'}")

    def refuse(self, planned: _lxc_config.Plan) -> None:
        if planned.problems:
            raise RefusedError("\n".join(planned.problems))


def make_plan(task: Task, guest: Guest, problems: list[str]) -> tuple[str, _lxc_config.Plan]:
    """(text of the file, plan) before anything is changed. All problems are raised together, those of the options among them."""
    params = task.params
    usable = not problems
    text = None
    try:
        if os.path.islink(task.path):
            problems.append(
                f"id: expected {task.path} to be a file, found a symbolic link to {os.readlink(task.path)}. Put the file in its place."
            )
        else:
            text = read(task.path)
    except FileNotFoundError:
        problems.append(f"id: expected a container {params['id']}, found no {task.path}.{task.hypervisor.elsewhere()}")
    except OSError as error:
        problems.append(f"id: expected the file of container {params['id']}, found that it cannot be read: {explain(error, task.path)}")
    if guest.problem:
        problems.append(guest.problem)
    if usable:
        problems += task.prepare()
    if text is not None and usable:
        planned = task.decide(text, guest.lock)
        problems += planned.problems
        if guest.running and not params["restart_allowed"] and not problems and task.changes(planned, text):
            problems.append(
                f"expected container {params['id']} to be stopped, found it running: the change needs a restart. "
                "Stop it, or set restart_allowed and restart it afterwards."
            )
        if not problems:
            return text, planned
    raise RefusedError("\n".join(problems))


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "id": {"type": "int", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "gpus": {"type": "list", "elements": "str"},
            "inventory": {"type": "dict"},
            "style": {"type": "str", "choices": ["auto", "dev", "raw"], "default": "auto"},
            "mode": {"type": "str"},
            "uid": {"type": "int"},
            "gid": {"type": "int"},
            "modeset": {"type": "bool", "default": True},
            "mig_caps": {"type": "list", "elements": "int"},
            "restart_allowed": {"type": "bool", "default": False},
            "config_path": {"type": "path", "default": "/etc/pve/lxc"},
            "backup_directory": {"type": "path", "default": "/var/lib/firstlight/lxc"},
            "lock_directory": {"type": "path", "default": "/run/lock/lxc"},
            "lock_timeout_s": {"type": "int", "default": 10},
            "pct_path": {"type": "path"},
            "release": {"type": "str"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    problems = option_problems(module.params)
    pct = module.params["pct_path"] or module.get_bin_path("pct")
    hypervisor = Hypervisor(module, pct if pct and os.access(pct, os.X_OK) else None)
    task = Task(hypervisor)
    guest = hypervisor.guest() if os.path.exists(task.path) else Guest()
    try:
        before, planned = make_plan(task, guest, problems)
    except RefusedError as error:
        module.fail_json(msg=str(error))
    changed = task.changes(planned, before)
    after = _lxc_config.render(planned.result)
    backup = None
    if changed and not module.check_mode:
        try:
            backup = hypervisor.back_up(before)
            task.carry_out(before)
            after = read(task.path)
        except (RefusedError, OSError) as error:
            message = explain(error, task.path) if isinstance(error, OSError) else str(error)
            half = read_or_nothing(task.path) != before
            if backup and not half:
                os.unlink(backup)
            state = f"The file is changed in part; it was as in {backup}." if half else "The file is as it was."
            module.fail_json(msg=f"{message}\n{state}", backup_file=backup if half else None)
    for warning in dict.fromkeys([*task.warnings, *planned.warnings]):
        module.warn(warning)
    conf = _lxc_config.parse(after)
    waiting = guest.running and (changed or bool(_lxc_config.pending_devices(conf)) or hypervisor.last_change() > guest.started)
    result: dict[str, t.Any] = {
        "restart_required": waiting,
        "running": guest.running,
        "style": task.style,
        "nodes": _lxc_config.given_nodes(conf),
        "devices": _lxc_config.describe(conf, task.nodes),
        "config_file": task.path,
        "backup_file": backup,
    }
    if module._diff:
        result["diff"] = {
            "before_header": task.path,
            "after_header": task.path,
            "before": shown(before),
            "after": shown(after),
        }
    module.exit_json(changed=changed, **result)


if __name__ == "__main__":
    main()
