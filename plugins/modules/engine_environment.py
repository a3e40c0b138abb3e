#!/usr/bin/python
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: engine_environment
author: Firstlight maintainers (@firstlight)
version_added: 0.1.0
short_description: Build a Python environment of the engine from a lock, and prove it
description:
  - Builds the Python environment O(path) with C(uv) from a lock that names every package with its version and hashes. Nothing is
    resolved on the host and nothing is compiled from source.
  - The environment belongs to root and can be read, not written, by the services that use it.
  - When it is complete the module proves it (every package of the lock is there in exactly its version, the named modules can be
    imported), then writes a marker. An interrupted build has no marker and is begun anew by the next run; what was downloaded is kept
    in O(cache_dir).
  - A run that finds the right marker, and a Python below it that still works, changes nothing and asks no network.
  - One build of an environment runs at a time. A second one waits for it and finds it done.
  - An action plugin of the same name runs the build asynchronously and shows its progress. If that controller goes away, the build
    stops by itself.
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
      - Complete the CUDA toolkit that the packages bring along (C(nvidia/cu13)) with the names that linkers look for, so that it can
        serve as C(CUDA_HOME).
      - C(<path>/cuda) leads to it, whatever the version of Python.
      - C(lib64/stubs/libcuda.so) leads to the driver's library, which may be installed later.
    type: bool
    default: false
  imports:
    description: Modules that must be importable in the finished environment.
    type: list
    elements: str
    default: []
  import_paths:
    description: Directories below O(path) that are searched first for O(imports).
    type: list
    elements: str
    default: []
  import_environment:
    description: Environment variables for O(imports).
    type: dict
    default: {}
  compile_bytecode:
    description:
      - Compile all modules when they are installed. The services cannot do it later, since they cannot write there.
      - Without it, what O(imports) loads is compiled all the same.
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
import json
import os
import platform
import shutil
import threading
import time
import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firstlight.sglang.plugins.module_utils import _engine_environment as core
from ansible_collections.firstlight.sglang.plugins.module_utils import _lockfile, _long_job

# The texts of the locks are no secrets: no_log keeps hundreds of kilobytes out of results and -vvv.
OPTIONS: dict[str, dict[str, t.Any]] = {
    "path": {"type": "path", "required": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "lock_src": {"type": "path"},
    "lock_sha256": {"type": "str"},
    "lock_content": {"type": "str", "no_log": True},
    "python": {"type": "path"},
    "uv": {"type": "path"},
    "uv_lock_src": {"type": "path"},
    "uv_lock_content": {"type": "str", "no_log": True},
    "files": {"type": "dict", "default": {}},
    "cuda_links": {"type": "bool", "default": False},
    "imports": {"type": "list", "elements": "str", "default": []},
    "import_paths": {"type": "list", "elements": "str", "default": []},
    "import_environment": {"type": "dict", "default": {}},
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
        self.path = Path(module.params["path"])
        self.python = str(self.path / "bin" / "python")
        self.content = core.content_id(module.params["files"], module.params["cuda_links"])
        self.job = _long_job.Job(job_base(self.path), module.params["lease_s"])
        self.seconds: dict[str, float] = {}
        self.total = 0
        self.abandoned = ""
        same = ("index_url", "wheelhouse", "proxy", "no_proxy", "cache_dir", "link_mode")
        self.tools = core.tool_environment(
            ca_bundle=module.params["ca_bundle"] or next((path for path in core.SYSTEM_CA_BUNDLES if Path(path).is_file()), None),
            **{name: module.params[name] for name in same},
        )

    # What is there

    def exists(self) -> bool:
        return os.path.lexists(self.path)

    def marker(self) -> dict[str, t.Any] | None:
        return _long_job.read_json(str(self.path / core.MARKER))

    def assess(self) -> core.Assessment:
        marker = self.marker()
        version = ""
        if marker is not None and os.access(self.python, os.X_OK):
            rc, out, _err = self.module.run_command([self.python, "-I", "-S", "-c", core.PYTHON_VERSION])
            version = out.strip() if rc == 0 else ""
        return core.assess(
            exists=self.exists(),
            marker=marker,
            lock_sha256=self.params["lock_sha256"],
            content=self.content,
            python_path=self.params["python"],
            python_version=version,
        )

    def summary(self) -> str:
        """The environment as it is, for --diff."""
        packages: dict[str, str] = {}
        lock = self.path / core.LOCK_COPY
        if lock.is_file():
            packages = here(lock.read_text(encoding="utf-8"))
        return core.summary(str(self.path), self.marker(), packages)

    # Steps

    def build(self, action: str) -> dict[str, t.Any]:
        requirements = _lockfile.parse(self.params["lock_content"])
        os.umask(0o022)
        if action == "build":
            self.timed("remove", lambda: remove_tree(self.path))
            self.check_space()
        else:
            (self.path / core.MARKER).unlink()
        if self.params["cache_dir"] and self.params["link_mode"] != "symlink":
            # Only the installer reads the cache; uv's own lock file in it is writable for everyone.
            Path(self.params["cache_dir"]).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.timed("uv", self.bootstrap_uv)
        uv = self.params["uv"]
        uv_version = self.run([uv, "--version"], "asking uv for its version").split()[1]
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if action == "build":
            self.run([uv, "venv", "--quiet", "--no-project", f"--python={self.params['python']}", str(self.path)], "making the environment")
        lock = self.path / core.LOCK_COPY
        write(lock, self.params["lock_content"])
        markers = self.probe()["markers"]
        wanted = _lockfile.expected(requirements, markers)
        self.total = len(wanted)
        self.timed("packages", lambda: self.install(lock))
        for name, text in self.params["files"].items():
            write(self.path / name, text)
        cuda_home = self.link_cuda() if self.params["cuda_links"] else None
        self.timed("proof", lambda: self.prove(wanted))
        # uv leaves its own lock file writable for everyone.
        (self.path / ".lock").unlink(missing_ok=True)
        marker = {
            "lock_sha256": self.params["lock_sha256"],
            "content": self.content,
            "python_path": self.params["python"],
            "python_version": markers["python_full_version"],
            "uv_version": uv_version,
            "packages": len(wanted),
            "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "cuda_home": cuda_home,
            "seconds": self.seconds,
        }
        write(self.path / core.MARKER, json.dumps(marker, indent=1) + "\n")
        return marker

    def check_space(self) -> None:
        place = self.path
        while not place.is_dir():
            place = place.parent
        status = os.statvfs(place)
        free, needed = status.f_bavail * status.f_frsize, self.params["free_space_gb"] * 10**9
        if free < needed:
            raise BuildError(
                f"expected {needed / 10**9:.0f} GB free for the environment, found {free / 10**9:.1f} GB on the file system of {place}. "
                "Free some space there, or put the environments elsewhere (sglang_root)."
            )

    def bootstrap_uv(self) -> None:
        uv = Path(self.params["uv"])
        if os.access(uv, os.X_OK):
            return
        if not self.params["uv_lock_content"]:
            raise BuildError(f"expected uv at {uv}, found nothing there and no lock to install it from. Name one in uv_lock_src.")
        home = uv.parent.parent
        job = _long_job.Job(job_base(home), self.params["lease_s"])
        job.acquire()
        try:
            if os.access(uv, os.X_OK):
                return
            scratch = home.with_name(f"{home.name}.new")
            remove_tree(scratch)
            self.run([self.params["python"], "-I", "-m", "venv", str(scratch)], "making an environment for uv")
            lock = scratch / "lock.txt"
            write(lock, self.params["uv_lock_content"])
            pip = [str(scratch / "bin" / "python"), "-I", "-m", "pip", "install", "--progress-bar=off"]
            self.run([*pip, "--require-hashes", "--only-binary=:all:", f"--requirement={lock}"], "installing uv")
            # Only the executable is needed, and it works from any place.
            uv.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            temporary = uv.with_name("uv.new")
            shutil.copy2(scratch / "bin" / "uv", temporary)
            temporary.replace(uv)
            remove_tree(scratch)
        finally:
            job.release()

    def install(self, lock: Path) -> None:
        options = ["--require-hashes", "--only-binary=:all:", f"--python={self.python}"]
        if self.params["compile_bytecode"]:
            options.append("--compile-bytecode")
        if self.params["wheelhouse"]:
            options.append("--no-index")
        self.run([self.params["uv"], "pip", "sync", *options, str(lock)], "installing packages")

    def link_cuda(self) -> str | None:
        """The names that the linkers of nvcc and g++ look for, in the toolkit that came as packages."""
        for home in sorted(self.path.glob("lib/python3*/site-packages/nvidia/cu[0-9]*")):
            runtimes = sorted((home / "lib").glob("libcudart.so.*"))
            if not runtimes or not os.access(home / "bin" / "nvcc", os.X_OK):
                continue
            red_hat = Path("/etc/redhat-release").exists()
            libraries = "/usr/lib64" if red_hat else f"/usr/lib/{platform.machine()}-linux-gnu"
            link(home / "lib64", "lib")
            link(home / "lib" / "libcudart.so", runtimes[0].name)
            (home / "lib" / "stubs").mkdir(exist_ok=True)
            link(home / "lib" / "stubs" / "libcuda.so", f"{libraries}/libcuda.so.1")
            # One name for every Python version, so that a unit can say CUDA_HOME without asking the host.
            link(self.path / "cuda", str(home.relative_to(self.path)))
            return str(home)
        return None

    def prove(self, wanted: dict[str, str]) -> None:
        problems = _lockfile.differences(wanted, self.probe()["installed"])
        if problems:
            raise BuildError(f"the environment is not what its lock says: {'; '.join(problems[:10])}{' ...' if len(problems) > 10 else ''}")
        if self.params["imports"]:
            paths = [str(self.path / path) for path in self.params["import_paths"]]
            code = f"import sys; sys.path[:0] = {paths!r}; import {', '.join(self.params['imports'])}"
            environment = {"PYTHONDONTWRITEBYTECODE": "", **{key: str(value) for key, value in self.params["import_environment"].items()}}
            self.run([self.python, "-I", "-c", code], "importing the engine", environment)

    def probe(self) -> dict[str, t.Any]:
        """Markers and packages of the environment, as its own Python sees them."""
        out = self.run([self.python, "-I", "-c", core.PROBE], "asking the environment's Python")
        return t.cast("dict[str, t.Any]", json.loads(out))

    # Tools

    def timed(self, name: str, step: t.Callable[[], None]) -> None:
        begin = time.monotonic()
        step()
        self.seconds[name] = round(time.monotonic() - begin, 1)

    def run(self, command: list[str], what: str, environment: dict[str, str] | None = None) -> str:
        """Run a tool: report what it writes, and end it when nobody asks for the job any more or this module dies."""
        done = threading.Event()

        def watch(process: t.Any) -> None:
            threading.Thread(target=self.watch, args=(process, what, done), daemon=True).start()

        setpriv = self.module.get_bin_path("setpriv")
        if setpriv:
            command = [setpriv, "--pdeathsig", "KILL", "--", *command]
        try:
            rc, out, err = self.module.run_command(
                command,
                environ_update={**self.tools, **(environment or {})},
                before_communicate_callback=watch,
                # The tool inherits the lock: as long as it lives, nobody else builds here.
                pass_fds=[self.job.lock_fd],
            )
        finally:
            done.set()
        if self.abandoned:
            raise BuildError(f"stopped while {what}: {self.abandoned}. Run the playbook again; what was downloaded is kept.")
        if rc != 0:
            raise BuildError(f"{what} failed (exit code {rc}). {core.explain(out + err)}\n{core.tail(err or out)}")
        return t.cast(str, out)

    def watch(self, process: t.Any, what: str, done: threading.Event) -> None:
        while not done.wait(1):
            try:
                self.job.check_lease()
                self.job.report(
                    what,
                    written_bytes=written_bytes(process.pid),
                    packages_installed=len(list(self.path.glob("lib/python3*/site-packages/*.dist-info"))),
                    packages_total=self.total,
                )
            except _long_job.AbandonedError as error:
                self.abandoned = str(error)
                process.kill()
                return
            except OSError:
                continue  # a full disk: the tool says so itself


def job_base(path: Path) -> str:
    return str(path.with_name(f".{path.name}"))


def here(lock: str) -> dict[str, str]:
    """What a lock wants on this machine, judged by the Python that runs this module. Good enough for --diff."""
    markers = {
        "implementation_name": "cpython",
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_system": platform.system(),
        "python_full_version": platform.python_version(),
        "python_version": core.minor(platform.python_version()),
        "sys_platform": "linux",
    }
    return _lockfile.expected(_lockfile.parse(lock), markers)


def written_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
        return int(dict(line.split(": ") for line in lines)["wchar"])
    except (OSError, ValueError, KeyError):
        return 0


def remove_tree(path: Path) -> None:
    """Remove a tree; its marker goes first, so that half a tree is never taken for a whole one."""
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        (path / core.MARKER).unlink(missing_ok=True)
        shutil.rmtree(path)


def write(path: Path, text: str) -> None:
    """A whole file or none."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


def link(path: Path, target: str) -> None:
    if path.is_symlink() or path.exists():
        path.unlink()
    path.symlink_to(target)


def absent(module: AnsibleModule, environment: Environment) -> None:
    exists = environment.exists()
    before = environment.summary() or f"path: {environment.path} (incomplete)\n"
    if exists and not module.check_mode:
        environment.job.acquire()
        try:
            remove_tree(environment.path)
        finally:
            environment.job.release()
        Path(f"{environment.job.base}.lock").unlink(missing_ok=True)
    module.exit_json(
        changed=exists,
        action="remove" if exists else "none",
        reason="it is not wanted" if exists else "",
        diff={"before": before if exists else "", "after": ""},
    )


def present(module: AnsibleModule, environment: Environment) -> None:
    assessment = environment.assess()
    before = environment.summary()
    marker = environment.marker()
    if assessment.action != "none" and not module.check_mode:
        if not module.params["lock_content"]:
            module.fail_json(msg=f"{environment.path}: expected the lock in lock_src, found none. Name a lock file on the controller.")
        try:
            if environment.job.acquire():
                # Another run has perhaps built it in the meantime.
                assessment = environment.assess()
            marker = environment.marker() if assessment.action == "none" else environment.build(assessment.action)
        except (BuildError, _lockfile.LockError, _long_job.AbandonedError, OSError) as error:
            meaning = core.explain(str(error)) if isinstance(error, OSError) else ""
            module.fail_json(msg=f"{environment.path}: {error} {meaning}".strip(), action=assessment.action, reason=assessment.reason)
        finally:
            environment.job.release()
    result: dict[str, t.Any] = {"changed": assessment.action != "none", "action": assessment.action, "reason": assessment.reason}
    if marker is not None and (assessment.action == "none" or not module.check_mode):
        result["environment"] = marker
    if result["changed"]:
        wanted = here(module.params["lock_content"]) if module.params["lock_content"] else {}
        asked = {"lock_sha256": module.params["lock_sha256"], "python_path": module.params["python"]}
        result["diff"] = {"before": before, "after": core.summary(str(environment.path), asked, wanted)}
    module.exit_json(**result)


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
    present(module, environment)


if __name__ == "__main__":
    main()
