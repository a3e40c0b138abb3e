#!/usr/bin/python
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: engine_environment
author: Firstlight contributors
version_added: 0.1.0
short_description: Build a Python environment of the engine from a lock, and prove it
description:
  - Builds the Python environment O(path) with C(uv) from a lock that names every package with its version and hashes. Nothing is resolved on the host
    and nothing is compiled from source.
  - The environment belongs to root and can be read, not written, by the services that use it.
  - When it is complete the module proves it (every package of the lock is there in exactly its version, the named modules can be imported), then
    writes a marker. An interrupted build has no marker and is begun anew by the next run; what was downloaded is kept in O(cache_dir).
  - A run that finds the right marker, and a Python below it that still works, changes nothing and asks no network.
  - One build of an environment runs at a time. A second one waits for it and finds it done.
  - An action plugin of the same name runs the build asynchronously and shows its progress. If that controller goes away, the build stops by itself.
options:
  path:
    description: Directory of the environment.
    type: path
    required: true
  state:
    description: Whether the environment is there.
    type: str
    choices: [present, absent]
    default: present
  lock_src:
    description: The lock, a file on the controller. Required with O(state=present). The action plugin reads it.
    type: path
  lock_sha256:
    description: Identity of the lock. The action plugin sets it.
    type: str
  lock_content:
    description: Text of the lock. The action plugin sets it when something has to be built.
    type: str
  python:
    description: Python on the host that the environment is made with. Required with O(state=present).
    type: path
  uv:
    description:
      - The uv executable on the host, V(<directory>/bin/uv). Required with O(state=present).
      - When it is missing, O(uv_lock_src) is installed into that directory with O(python) and pip.
    type: path
  uv_lock_src:
    description: Lock of uv itself, a file on the controller. The action plugin reads it.
    type: path
  uv_lock_content:
    description: Text of uv's lock. The action plugin sets it.
    type: str
  files:
    description: Files that are put into the environment beside the packages, text by path below O(path).
    type: dict
    default: {}
  cuda_links:
    description:
      - Complete the CUDA toolkit that the packages bring along (C(nvidia/cu13)) with the names that linkers look for, so that it can serve as C(CUDA_HOME).
      - C(lib64/stubs/libcuda.so) leads to the driver's library, which may be installed later.
    type: bool
    default: false
  imports:
    description: Modules that must be importable in the finished environment.
    type: list
    elements: str
    default: []
  compile_bytecode:
    description: Compile all modules when they are installed. The services cannot do it later, since they cannot write there.
    type: bool
    default: true
  index_url:
    description: Package index in place of the default one. Credentials belong into C(/root/.netrc), not here.
    type: str
  wheelhouse:
    description: Directory on the host with every wheel of the lock, and of uv. No index is asked.
    type: path
  ca_bundle:
    description: File with the certificates to trust. Default is the system's bundle.
    type: path
  proxy:
    description: Address of the proxy for http and https.
    type: str
  no_proxy:
    description: Hosts that are reached without the proxy, in addition to this host itself.
    type: list
    elements: str
    default: []
  cache_dir:
    description: Directory for downloaded packages. On the file system of O(path) hard links make it cost nothing.
    type: path
  link_mode:
    description: How packages get from the cache into the environment.
    type: str
    choices: [hardlink, copy, clone, symlink]
    default: hardlink
  free_space_gb:
    description: Space (in 10^9 bytes) that must be free on the file system of O(path) before a build begins.
    type: int
    default: 0
  lease_s:
    description: A build that no controller asks for stops after this many seconds, 0 for never. The action plugin sets it.
    type: int
    default: 0
  timeout_s:
    description: Longest time that a build may take. Used by the action plugin.
    type: int
    default: 7200
attributes:
  check_mode:
    description: Says what would be done, also on a host where nothing is installed yet.
    support: full
  diff_mode:
    description: Shows the identity of the environment and the packages that change.
    support: full
"""

EXAMPLES = r"""
- name: Build the environment of a release
  firstlight.sglang.engine_environment:
    path: /opt/sglang/releases/0.5.23-cuda-1a2b3c4d
    lock_src: files/locks/0.5.23-cuda.txt
    uv: /opt/sglang/uv/0.13.9/bin/uv
    uv_lock_src: files/locks/uv.txt
    python: /usr/bin/python3.13
    cache_dir: /opt/sglang/cache/uv
    imports: [torch, sglang]
    free_space_gb: 15

- name: Remove it again
  firstlight.sglang.engine_environment:
    path: /opt/sglang/releases/0.5.23-cuda-1a2b3c4d
    state: absent
"""

RETURN = r"""
action:
  description: What was done (or would be, in check mode), V(none), V(build), V(sync) or V(remove).
  returned: always
  type: str
reason:
  description: Why it had to be done, empty if nothing was done.
  returned: always
  type: str
environment:
  description: What the environment is, as its marker says.
  returned: when O(state=present) and it is complete
  type: dict
  contains:
    lock_sha256:
      description: Identity of the lock it was made from.
      type: str
    python_path:
      description: The Python it was made with.
      type: str
    python_version:
      description: Version of that Python at the time.
      type: str
    uv_version:
      description: Version of uv that built it.
      type: str
    packages:
      description: Number of packages.
      type: int
    created:
      description: When it was completed, UTC.
      type: str
    cuda_home:
      description: Directory that can serve as C(CUDA_HOME), null without O(cuda_links).
      type: str
    seconds:
      description: How long the parts of the build took.
      type: dict
    content:
      description: Identity of what was put in beside the packages.
      type: str
"""

import datetime
import glob
import json
import os
import shutil
import threading
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firstlight.sglang.plugins.module_utils import _engine_environment as core
from ansible_collections.firstlight.sglang.plugins.module_utils import _lockfile, _long_job

OPTIONS: dict[str, dict[str, t.Any]] = {
    "path": {"type": "path", "required": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "lock_src": {"type": "path"},
    "lock_sha256": {"type": "str"},
    "lock_content": {"type": "str"},
    "python": {"type": "path"},
    "uv": {"type": "path"},
    "uv_lock_src": {"type": "path"},
    "uv_lock_content": {"type": "str"},
    "files": {"type": "dict", "default": {}},
    "cuda_links": {"type": "bool", "default": False},
    "imports": {"type": "list", "elements": "str", "default": []},
    "compile_bytecode": {"type": "bool", "default": True},
    "index_url": {"type": "str"},
    "wheelhouse": {"type": "path"},
    "ca_bundle": {"type": "path"},
    "proxy": {"type": "str", "no_log": True},
    "no_proxy": {"type": "list", "elements": "str", "default": []},
    "cache_dir": {"type": "path"},
    "link_mode": {"type": "str", "choices": ["hardlink", "copy", "clone", "symlink"], "default": "hardlink"},
    "free_space_gb": {"type": "int", "default": 0},
    "lease_s": {"type": "int", "default": 0},
    "timeout_s": {"type": "int", "default": 7200},
}


class BuildError(Exception):
    """The environment cannot be built; the text is for the operator."""


class Environment:
    """The environment on the host: what it is now, and the steps that build it."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.path = module.params["path"]
        self.bin_python = os.path.join(self.path, "bin", "python")
        self.marker_path = os.path.join(self.path, core.MARKER)
        self.content = core.content_id(module.params["files"], module.params["cuda_links"])
        self.job = _long_job.Job(job_base(self.path), module.params["lease_s"])
        self.seconds: dict[str, float] = {}
        self.total = 0
        self.abandoned = ""
        bundle = module.params["ca_bundle"] or next((path for path in core.SYSTEM_CA_BUNDLES if os.path.isfile(path)), None)
        self.tools = core.tool_environment(
            ca_bundle=bundle, **{name: module.params[name] for name in ("index_url", "wheelhouse", "proxy", "no_proxy", "cache_dir", "link_mode")}
        )

    # What is there

    def marker(self) -> dict[str, t.Any] | None:
        return _long_job.read_json(self.marker_path)

    def assess(self) -> core.Assessment:
        marker = self.marker()
        version = ""
        if marker is not None and os.access(self.bin_python, os.X_OK):
            rc, out, _err = self.module.run_command([self.bin_python, "-I", "-S", "-c", core.PYTHON_VERSION], handle_exceptions=False)
            version = out.strip() if rc == 0 else ""
        return core.assess(
            exists=os.path.lexists(self.path),
            marker=marker,
            lock_sha256=self.params["lock_sha256"],
            content=self.content,
            python_path=self.params["python"],
            python_version=version,
        )

    def packages(self) -> dict[str, str]:
        """Packages of the lock that the environment was made from, for --diff."""
        try:
            with open(os.path.join(self.path, core.LOCK_COPY), encoding="utf-8") as stream:
                return {requirement.name: requirement.version for requirement in _lockfile.parse(stream.read())}
        except (OSError, _lockfile.LockError):
            return {}

    # Steps

    def build(self, action: str) -> dict[str, t.Any]:
        requirements = _lockfile.parse(self.params["lock_content"])
        self.total = len(requirements)
        os.umask(0o022)
        if action == "build":
            self.timed("remove", lambda: remove_tree(self.path))
            self.check_space()
        else:
            os.unlink(self.marker_path)
        self.timed("uv", self.bootstrap_uv)
        uv_version = self.run([self.params["uv"], "--version"], "asking uv for its version").split()[1]
        os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
        if action == "build":
            self.run([self.params["uv"], "venv", "--quiet", "--no-project", f"--python={self.params['python']}", self.path], "making the environment")
        lock_copy = os.path.join(self.path, core.LOCK_COPY)
        write(lock_copy, self.params["lock_content"])
        # The number that belongs on this Python and machine, for the progress.
        wanted = _lockfile.expected(requirements, self.probe()["markers"])
        self.total = len(wanted)
        self.timed("packages", lambda: self.install(lock_copy))
        for name, text in self.params["files"].items():
            write(os.path.join(self.path, name), text)
        cuda_home = self.link_cuda() if self.params["cuda_links"] else None
        self.timed("proof", lambda: self.prove(wanted))
        marker = {
            "lock_sha256": self.params["lock_sha256"],
            "content": self.content,
            "python_path": self.params["python"],
            "python_version": self.probe()["markers"]["python_full_version"],
            "uv_version": uv_version,
            "packages": len(wanted),
            "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "cuda_home": cuda_home,
            "seconds": self.seconds,
        }
        write(self.marker_path, json.dumps(marker, indent=1) + "\n")
        return marker

    def check_space(self) -> None:
        needed = self.params["free_space_gb"]
        place = self.path
        while not os.path.isdir(place):
            place = os.path.dirname(place)
        free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
        if free < needed * 10**9:
            raise BuildError(
                f"expected {needed} GB free for {self.path}, found {free / 10**9:.1f} GB on the file system of {place}. Free some space there, "
                "or put the environments elsewhere (sglang_root)."
            )

    def bootstrap_uv(self) -> None:
        uv = self.params["uv"]
        if os.access(uv, os.X_OK):
            return
        if not self.params["uv_lock_content"]:
            raise BuildError(f"expected uv at {uv}, found nothing there, and no lock to install it from (uv_lock_src).")
        home = os.path.dirname(os.path.dirname(uv))
        job = _long_job.Job(job_base(home), self.params["lease_s"])
        job.acquire()
        try:
            if os.access(uv, os.X_OK):
                return
            self.job.report("installing uv")
            scratch = f"{home}.new"
            remove_tree(scratch)
            self.run([self.params["python"], "-I", "-m", "venv", scratch], "making an environment for uv")
            lock = os.path.join(scratch, "lock.txt")
            write(lock, self.params["uv_lock_content"])
            self.run(
                [os.path.join(scratch, "bin", "python"), "-I", "-m", "pip", "install", "--quiet", "--require-hashes", "--only-binary=:all:", f"--requirement={lock}"],
                "installing uv",
            )
            # Only the executable is needed, and it works from any place.
            os.makedirs(os.path.dirname(uv), mode=0o755, exist_ok=True)
            shutil.copy2(os.path.join(scratch, "bin", "uv"), f"{uv}.new")
            os.replace(f"{uv}.new", uv)
            remove_tree(scratch)
        finally:
            job.release()

    def install(self, lock: str) -> None:
        command = [self.params["uv"], "pip", "sync", "--require-hashes", "--only-binary=:all:", f"--python={self.bin_python}", lock]
        if self.params["compile_bytecode"]:
            command.insert(3, "--compile-bytecode")
        self.run(command, "installing packages")

    def link_cuda(self) -> str | None:
        """The names that nvcc's and g++'s linkers look for, in the toolkit that came as packages."""
        for home in sorted(glob.glob(os.path.join(self.path, "lib", "python3*", "site-packages", "nvidia", "cu[0-9]*"))):
            library = os.path.join(home, "lib")
            versioned = sorted(glob.glob(os.path.join(library, "libcudart.so.*")))
            if not versioned or not os.access(os.path.join(home, "bin", "nvcc"), os.X_OK):
                continue
            link(os.path.join(home, "lib64"), "lib")
            link(os.path.join(library, "libcudart.so"), os.path.basename(versioned[0]))
            os.makedirs(os.path.join(library, "stubs"), exist_ok=True)
            driver = "/usr/lib64/libcuda.so.1" if os.path.isdir("/usr/lib64/") and os.path.exists("/etc/redhat-release") else f"/usr/lib/{os.uname().machine}-linux-gnu/libcuda.so.1"
            link(os.path.join(library, "stubs", "libcuda.so"), driver)
            return home
        return None

    def prove(self, wanted: dict[str, str]) -> None:
        self.job.report("checking the environment")
        problems = _lockfile.differences(wanted, self.probe()["installed"])
        if problems:
            raise BuildError(f"the environment is not what its lock says: {'; '.join(problems[:10])}{' ...' if len(problems) > 10 else ''}")
        if self.params["imports"]:
            self.run([self.bin_python, "-I", "-c", f"import {', '.join(self.params['imports'])}"], f"importing {', '.join(self.params['imports'])}")

    def probe(self) -> dict[str, t.Any]:
        return t.cast("dict[str, t.Any]", json.loads(self.run([self.bin_python, "-I", "-c", core.PROBE], "asking the environment's Python")))

    # Tools

    def timed(self, name: str, step: t.Callable[[], None]) -> None:
        begin = time.monotonic()
        step()
        self.seconds[name] = round(time.monotonic() - begin, 1)

    def run(self, command: list[str], what: str) -> str:
        """Run a tool: report what it writes, and end it when nobody asks for the job any more or this module dies."""
        done = threading.Event()

        def watch(process: t.Any) -> None:
            threading.Thread(target=self.watch, args=(process, what, done), daemon=True).start()

        setpriv = self.module.get_bin_path("setpriv")
        if setpriv:
            command = [setpriv, "--pdeathsig", "KILL", "--", *command]
        try:
            # The tool inherits the lock: as long as it lives, nobody else builds here.
            rc, out, err = self.module.run_command(
                command, environ_update=self.tools, before_communicate_callback=watch, pass_fds=[self.job.lock_fd] if self.job.lock_fd >= 0 else None
            )
        finally:
            done.set()
        if self.abandoned:
            raise BuildError(f"Stopped while {what}: {self.abandoned}. Run the playbook again; what was downloaded is kept.")
        if rc != 0:
            raise BuildError(f"{what} failed (exit code {rc}). {core.explain(out + err)}\n{core.tail(err or out)}")
        return out

    def watch(self, process: t.Any, what: str, done: threading.Event) -> None:
        site = os.path.join(self.path, "lib")
        while not done.wait(1):
            try:
                self.job.check_lease()
            except _long_job.AbandonedError as error:
                self.abandoned = str(error)
                process.kill()
                return
            try:
                self.job.report(
                    what,
                    written_bytes=written_bytes(process.pid),
                    packages_installed=len(glob.glob(f"{site}/python3*/site-packages/*.dist-info")),
                    packages_total=self.total,
                )
            except OSError:
                continue  # a full disk: the tool says so itself


def job_base(path: str) -> str:
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)}")


def written_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as stream:
            return int(dict(line.split(": ") for line in stream.read().splitlines())["wchar"])
    except (OSError, ValueError, KeyError):
        return 0


def remove_tree(path: str) -> None:
    """Remove a tree; its marker goes first, so that half a tree is never taken for a whole one."""
    for name in (os.path.join(path, core.MARKER), path if os.path.islink(path) else ""):
        if name and os.path.lexists(name):
            os.unlink(name)
    if os.path.isdir(path):
        shutil.rmtree(path)


def write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    temporary = f"{path}.new"
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


def link(path: str, target: str) -> None:
    if os.path.lexists(path):
        if os.path.islink(path) and os.readlink(path) == target:
            return
        os.unlink(path)
    os.symlink(target, path)


def absent(module: AnsibleModule, environment: Environment) -> None:
    exists = os.path.lexists(environment.path)
    marker = environment.marker() or {}
    before = core.summary(environment.path, marker.get("lock_sha256", "incomplete"), marker.get("python_path"), marker.get("uv_version"), environment.packages())
    if exists and not module.check_mode:
        environment.job.acquire()
        try:
            remove_tree(environment.path)
        finally:
            environment.job.release()
        os.unlink(f"{environment.job.base}.lock")
    module.exit_json(
        changed=exists,
        action="remove" if exists else "none",
        reason="it is not wanted" if exists else "",
        diff={"before": before if exists else "", "after": ""},
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec=OPTIONS,
        required_if=[("state", "present", ("lock_sha256", "python", "uv"))],
        mutually_exclusive=[("index_url", "wheelhouse")],
        supports_check_mode=True,
    )
    environment = Environment(module)
    if module.params["state"] == "absent":
        absent(module, environment)
    assessment = environment.assess()
    marker = environment.marker()
    before = core.summary(
        environment.path, (marker or {}).get("lock_sha256"), (marker or {}).get("python_path"), (marker or {}).get("uv_version"), environment.packages()
    )
    result: dict[str, t.Any] = {"changed": assessment.action != "none", "action": assessment.action, "reason": assessment.reason}
    if assessment.action == "none":
        module.exit_json(environment=marker, **result)
    if not module.check_mode:
        if not module.params["lock_content"]:
            module.fail_json(msg=f"expected the lock of {environment.path} as lock_src (or lock_content), found neither. Name a lock file on the controller.")
        try:
            waited = environment.job.acquire()
            if waited:
                # Another run has perhaps built it in the meantime.
                assessment = environment.assess()
                result = {"changed": assessment.action != "none", "action": assessment.action, "reason": assessment.reason}
            marker = environment.marker() if assessment.action == "none" else environment.build(assessment.action)
        except (BuildError, _lockfile.LockError, _long_job.AbandonedError, OSError) as error:
            meaning = core.explain(str(error)) if isinstance(error, OSError) else ""
            module.fail_json(msg=f"{environment.path}: {error} {meaning}".strip(), action=assessment.action, reason=assessment.reason)
        finally:
            environment.job.release()
        result["environment"] = marker
    wanted = {}
    if module.params["lock_content"]:
        wanted = {requirement.name: requirement.version for requirement in _lockfile.parse(module.params["lock_content"])}
    result["diff"] = {
        "before": before,
        "after": core.summary(environment.path, module.params["lock_sha256"], module.params["python"], (marker or {}).get("uv_version"), wanted),
    }
    module.exit_json(**result)


if __name__ == "__main__":
    main()
