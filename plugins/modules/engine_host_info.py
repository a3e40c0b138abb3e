#!/usr/bin/python
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: engine_host_info
author: Firstlight maintainers (@firstlight)
version_added: 0.1.0
short_description: What a host is, and what it still lacks to run the engine
description:
  - Reports in one round trip what decisions about the engine's environment need, and chooses the engine's Python.
  - Compares the user and the directories that the engine needs with what is there, so that nothing has to be asked again when all is right.
  - Changes nothing.
options:
  python:
    description: The Python that is asked for, V(auto), a release such as V(3.12), or the path of an executable.
    type: str
    default: auto
  python_archive_path:
    description: Where the Python of a standalone build is, or will be. Without it no archive is configured.
    type: path
  variants:
    description: Variants of the engine that the host gets.
    type: list
    elements: str
    choices: [cpu, cuda]
    default: []
  packages:
    description: Additional system packages to look for.
    type: list
    elements: str
    default: []
  user:
    description: The user of the services.
    type: dict
    suboptions:
      name:
        description: Its name.
        type: str
        required: true
      home:
        description: Its home.
        type: path
        required: true
      groups:
        description: Additional groups it must be in.
        type: list
        elements: str
        default: []
  directories:
    description: Directories that must be there.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The directory.
        type: path
        required: true
      owner:
        description: Its owner.
        type: str
        required: true
      group:
        description: Its group.
        type: str
        required: true
      mode:
        description: Its mode, in octal.
        type: str
        required: true
  environments:
    description: Resolved environments that the host gets, of which C(path) and C(variant) are read.
    type: list
    elements: dict
    default: []
  free_space_gb:
    description: Gigabytes that must be free for an environment that is not there yet, by variant.
    type: dict
    default: {}
  root:
    description: Where environments (C(releases)) and the links of instances (C(instances)) lie.
    type: path
attributes:
  check_mode:
    description: Runs in check mode too, since it only reads.
    support: full
"""

EXAMPLES = r"""
- name: Ask what the host is and what it lacks
  firstlight.sglang.engine_host_info:
    variants: [cuda]
    root: /opt/sglang
  register: host
"""

RETURN = r"""
problems:
  description: What stands in the way, one sentence each, with what was expected, what was found, and what to change.
  returned: always
  type: list
  elements: str
python:
  description: The engine's Python.
  returned: always
  type: dict
  contains:
    source:
      description: V(system), V(package) (of the distribution), V(archive) or V(none).
      type: str
    path:
      description: The executable, which may have to be installed first.
      type: str
    version:
      description: Its version; only the release when it is not installed yet.
      type: str
packages_missing:
  description: System packages that are needed and not installed.
  returned: always
  type: list
  elements: str
package_manager:
  description: V(apt), V(dnf), or empty.
  returned: always
  type: str
user_changes:
  description: Whether the user is missing or other than asked for.
  returned: always
  type: bool
directory_changes:
  description: Those of O(directories) that are missing or other than asked for.
  returned: always
  type: list
  elements: dict
releases:
  description: Environments under O(root), each with its C(path) and whether an instance's link leads to it (C(used)).
  returned: always
  type: list
  elements: dict
host:
  description: What the host is.
  returned: always
  type: dict
  contains:
    platform:
      description: The distribution and its version, as this collection's tables name it.
      type: list
      elements: str
      sample: [debian, "13"]
    name:
      description: Its full name.
      type: str
    machine:
      description: Type of the machine.
      type: str
    kernel:
      description: Release of the kernel.
      type: str
    glibc:
      description: Version of the C library, empty when it is another one.
      type: str
    systemd:
      description: Version of systemd, 0 when it is not installed.
      type: int
    systemd_is_init:
      description: Whether systemd is process 1.
      type: bool
    virtualization:
      description: What systemd-detect-virt says, V(none) on bare metal.
      type: str
    memory_bytes:
      description: Memory of the host.
      type: int
    processors:
      description: Processors that can be used.
      type: int
    free_bytes:
      description: Free space of the file systems of O(root) and O(directories), by path.
      type: dict
    pythons:
      description: Pythons 3.11 to 3.13 found, with C(path), C(version), and whether their headers are there (C(headers)).
      type: list
      elements: dict
"""

import grp
import os
import platform
import pwd
import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firstlight.sglang.plugins.module_utils import _engine_python as core

PYTHON_PROBE = "import sys, sysconfig; print('.'.join(map(str, sys.version_info[:3]))); print(sysconfig.get_path('include'))"


def read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def output(module: AnsibleModule, command: list[str]) -> str:
    """What a command prints, empty when it is not there."""
    executable = module.get_bin_path(command[0])
    return module.run_command([executable, *command[1:]])[1].strip() if executable else ""


def find_pythons(module: AnsibleModule, wanted: str, archive: str | None) -> list[dict[str, t.Any]]:
    candidates = [f"{place}/python{major}.{minor}" for major, minor in core.SUPPORTED for place in ("/usr/bin", "/usr/local/bin")]
    candidates += [path for path in (wanted, archive or "") if path.startswith("/")]
    found = []
    for path in dict.fromkeys(candidates):
        if not os.access(path, os.X_OK):
            continue
        rc, out, _err = module.run_command([path, "-I", "-c", PYTHON_PROBE])
        lines = out.splitlines()
        if rc == 0 and len(lines) == 2:
            found.append({"path": path, "version": lines[0], "headers": Path(lines[1], "Python.h").is_file()})
    return found


def missing_packages(module: AnsibleModule, manager: str, packages: t.Sequence[str]) -> list[str]:
    if not packages:
        return []
    if manager == "apt":
        _rc, out, _err = module.run_command(["dpkg-query", "--show", "--showformat=${binary:Package} ${db:Status-Status}\n", *packages])
        installed = {line.split()[0].partition(":")[0] for line in out.splitlines() if line.endswith(" installed")}
        return [name for name in packages if name not in installed]
    if manager == "dnf":
        return [name for name in packages if module.run_command(["rpm", "--query", "--whatprovides", name])[0] != 0]
    return []


def user_differs(user: dict[str, t.Any] | None) -> bool:
    if user is None:
        return False
    try:
        entry = pwd.getpwnam(user["name"])
        members = [user["name"] in grp.getgrnam(name).gr_mem for name in user["groups"]]
    except KeyError:
        return True
    return entry.pw_dir != user["home"] or not all(members)


def directory_differs(wanted: dict[str, t.Any]) -> bool:
    try:
        found = Path(wanted["path"]).stat()
        owner, group = pwd.getpwuid(found.st_uid).pw_name, grp.getgrgid(found.st_gid).gr_name
    except (OSError, KeyError):
        return True
    return not Path(wanted["path"]).is_dir() or (owner, group, found.st_mode & 0o7777) != (
        wanted["owner"],
        wanted["group"],
        int(wanted["mode"], 8),
    )


def find_releases(root: str | None) -> list[dict[str, t.Any]]:
    if not root:
        return []
    used = {os.path.realpath(link) for link in Path(root, "instances").glob("*/current")}
    releases = sorted(path for path in Path(root, "releases").glob("*") if path.is_dir() and not path.name.startswith("."))
    return [{"path": str(path), "used": os.path.realpath(path) in used} for path in releases]


def free_bytes(paths: t.Iterable[str]) -> dict[str, int]:
    free = {}
    for path in paths:
        place = Path(path)
        while not place.is_dir():
            place = place.parent
        status = os.statvfs(place)
        free[path] = status.f_bavail * status.f_frsize
    return free


def room_needed(environments: t.Sequence[dict[str, t.Any]], needed: dict[str, t.Any]) -> list[tuple[str, float, float]]:
    """(path, GB needed, GB free) of environments that are not there yet."""
    new = [entry for entry in environments if not Path(entry["path"], ".firstlight.json").is_file()]
    free = free_bytes(entry["path"] for entry in new)
    return [(entry["path"], float(needed.get(entry["variant"], 0)), free[entry["path"]] / 1e9) for entry in new]


def main() -> None:
    directory = {name: {"type": "str", "required": True} for name in ("owner", "group", "mode")}
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "str", "default": "auto"},
            "python_archive_path": {"type": "path"},
            "variants": {"type": "list", "elements": "str", "choices": ["cpu", "cuda"], "default": []},
            "packages": {"type": "list", "elements": "str", "default": []},
            "user": {
                "type": "dict",
                "options": {
                    "name": {"type": "str", "required": True},
                    "home": {"type": "path", "required": True},
                    "groups": {"type": "list", "elements": "str", "default": []},
                },
            },
            "directories": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {"path": {"type": "path", "required": True}, **directory},
            },
            "environments": {"type": "list", "elements": "dict", "default": []},
            "free_space_gb": {"type": "dict", "default": {}},
            "root": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params = module.params
    release = core.os_release(read("/etc/os-release"))
    key = core.platform_key(release)
    manager = core.package_manager(key)
    library, glibc = platform.libc_ver()
    glibc = glibc if library == "glibc" else ""
    pythons = find_pythons(module, params["python"], params["python_archive_path"])
    choice = core.choose(
        wanted=params["python"],
        platform=key,
        machine=platform.machine(),
        glibc=glibc,
        pythons=[core.Python(python["path"], python["version"]) for python in pythons],
        variants=params["variants"],
        archive_path=params["python_archive_path"] or "",
    )
    systemd = output(module, ["systemctl", "--version"]).split()
    memory = dict(line.split(":") for line in read("/proc/meminfo").splitlines() if line.startswith("MemTotal:"))
    places = [*([params["root"]] if params["root"] else []), *(entry["path"] for entry in params["directories"])]
    module.exit_json(
        changed=False,
        problems=[*choice.problems, *core.room_problems(room_needed(params["environments"], params["free_space_gb"]))],
        python={"source": choice.source, "path": choice.path, "version": choice.version},
        packages_missing=missing_packages(module, manager, list(dict.fromkeys([*choice.packages, *params["packages"]]))),
        package_manager=manager,
        user_changes=user_differs(params["user"]),
        directory_changes=[entry for entry in params["directories"] if directory_differs(entry)],
        releases=find_releases(params["root"]),
        host={
            "platform": list(key),
            "name": release.get("PRETTY_NAME", ""),
            "machine": platform.machine(),
            "kernel": platform.release(),
            "glibc": glibc,
            "systemd": int(systemd[1]) if len(systemd) > 1 and systemd[1].isdigit() else 0,
            "systemd_is_init": Path("/run/systemd/system").is_dir(),
            "virtualization": output(module, ["systemd-detect-virt"]) or "none",
            "memory_bytes": int(memory.get("MemTotal", "0 kB").split()[0]) * 1024,
            "processors": len(os.sched_getaffinity(0)),
            "free_bytes": free_bytes(places),
            "pythons": pythons,
        },
    )


if __name__ == "__main__":
    main()
