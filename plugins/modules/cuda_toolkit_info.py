#!/usr/bin/python
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_toolkit_info
author: Firstlight maintainers (@firstlight)
version_added: 0.1.0
short_description: Whether the CUDA toolkit that SGLang compiles its kernels with is there, complete, and the right one
description:
  - Looks at the toolkit that each instance's service is given as C(CUDA_HOME), with the environment of that service and as its user.
  - Says what it lacks, whether its CUDA is the one that the release's torch was built with, and which packages bring it.
  - With O(compile=true) it compiles and links a small kernel for each of O(compute_capabilities), in a directory that it removes again.
  - What was proven is remembered in the environment (C(.firstlight-cuda.json)) and not done again while nvcc, compiler, lock and the
    service's environment stay.
  - Changes nothing else.
options:
  instances:
    description:
      - Resolved instances, as the lookup P(firstlight.sglang.instances#lookup) returns them. Those of variant V(cpu) are passed over.
      - An instance's link to its environment is not followed, since it may still lead to another one; the environment itself is meant.
    type: list
    elements: dict
    required: true
  source:
    description: Where the toolkit comes from.
    type: str
    choices: [wheels, distribution, nvidia, path]
    default: wheels
  release:
    description: The CUDA release whose packages are taken, such as V(13.0). Only with O(source=nvidia).
    type: str
  path:
    description: Directory of the toolkit. Required with O(source=path).
    type: path
  required:
    description:
      - Whether the toolkit, and what it works with (ninja, a C++ compiler, Python's headers), must be there already.
      - When not, what still comes with the environment or with packages is not missed.
    type: bool
    default: true
  compile:
    description: Compile and link a kernel.
    type: bool
    default: false
  compute_capabilities:
    description: What to compile for, such as V(8.6).
    type: list
    elements: str
    default: []
  driver_version:
    description: The loaded driver, as M(firstlight.sglang.gpu_info) returns it. Without it the driver is not judged.
    type: str
  coming:
    description:
      - What the package manager will offer once a repository is there, versions by name.
      - RV(firstlight.sglang.gpu_driver_info#module:offered) says it.
    type: dict
    default: {}
  cuda_driver_version:
    description: The newest CUDA that the loaded driver serves, as M(firstlight.sglang.gpu_info) returns it.
    type: str
  timeout_s:
    description: Seconds that one program may take.
    type: int
    default: 120
attributes:
  check_mode:
    description: Runs in check mode too, since it only reads.
    support: full
"""

EXAMPLES = r"""
- name: Prove the toolkit of every instance on an RTX A6000
  firstlight.sglang.cuda_toolkit_info:
    instances: "{{ query('firstlight.sglang.instances') }}"
    compile: true
    compute_capabilities: ["8.6"]
  register: toolkit

- name: Stop when kernels could not be compiled
  ansible.builtin.assert:
    that: toolkit.problems | length == 0
    fail_msg: "{{ toolkit.problems | join('\n') }}"
"""

RETURN = r"""
problems:
  description: What stands in the way, one sentence each, with what was expected, what was found, and what to change.
  returned: always
  type: list
  elements: str
driver_problems:
  description: Why the loaded driver cannot run what the releases bring. Apart, since the preflight says it with all that it says of GPUs.
  returned: always
  type: list
  elements: str
packages:
  description: System packages that bring the toolkit; empty when it is complete, or comes in another way.
  returned: always
  type: list
  elements: str
package_manager:
  description: V(apt), V(dnf), or empty.
  returned: always
  type: str
toolkits:
  description: One for each environment and CUDA_HOME.
  returned: always
  type: list
  elements: dict
  contains:
    instances:
      description: Names of the instances that use it.
      type: list
      elements: str
    home:
      description: Its directory.
      type: str
    ready:
      description: Whether it is there and nothing was found wrong with it.
      type: bool
    cuda:
      description: The CUDA release of its nvcc, null when there is none.
      type: str
    torch_cuda:
      description: The CUDA that torch of the release was built with.
      type: str
    missing:
      description: Parts that are missing or cannot be read by the services' user.
      type: list
      elements: str
    user:
      description: The user that it was looked at as.
      type: str
    compiled:
      description: Seconds by compute capability for which a kernel was compiled and linked.
      type: dict
    proven:
      description: Compute capabilities for which an earlier run has done so with the same tools.
      type: list
      elements: str
"""

import contextlib
import json
import os
import pwd
import shutil
import tempfile
import time
import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firstlight.sglang.plugins.module_utils import _cuda_toolkit as core
from ansible_collections.firstlight.sglang.plugins.module_utils import _engine_python

HEADERS_PROBE = "import sysconfig; print(sysconfig.get_path('include'))"
# Prints the files among its arguments that can be read, and links that lead nowhere yet (the driver's library).
READABLE = 'for file; do if test -r "$file" || { test -L "$file" && ! test -e "$file"; }; then printf "%s\\n" "$file"; fi; done'
LONGEST_HEADER = 1 << 20
RECORD = ".firstlight-cuda.json"


class User:
    """Runs programs as the services' user, with nothing in the environment but what the unit sets."""

    def __init__(self, module: AnsibleModule, name: str, environment: dict[str, str]) -> None:
        self.module = module
        self.environment = environment
        self.words: list[str] = []
        self.name = pwd.getpwuid(os.geteuid()).pw_name
        self.entry = None
        with contextlib.suppress(KeyError):  # not made yet
            self.entry = pwd.getpwnam(name)
        if self.entry and os.geteuid() == 0 and self.entry.pw_uid != 0:
            setpriv = module.get_bin_path("setpriv", required=True)
            self.words = [setpriv, f"--reuid={name}", f"--regid={self.entry.pw_gid}", "--init-groups", "--"]
            self.name = name

    def run(self, command: list[str], **environment: str) -> tuple[int, str]:
        """Exit status (124 and 137: out of time) and all that was printed."""
        values = {**self.environment, **environment}
        limit = ["timeout", "--kill-after=5", str(self.module.params["timeout_s"])]
        words = [*self.words, "env", "-i", *(f"{key}={value}" for key, value in values.items()), *limit, *command]
        rc, out, err = self.module.run_command(words, cwd="/", errors="replace")
        return rc, out + err

    def readable(self, files: list[str]) -> set[str]:
        return set(self.run(["sh", "-c", READABLE, "sh", *files])[1].splitlines()) if files else set()

    def which(self, name: str) -> str:
        return shutil.which(name, path=self.environment.get("PATH")) or ""


class Toolkit(t.NamedTuple):
    """A toolkit that instances of one environment are given."""

    instance: dict[str, t.Any]
    names: list[str]
    home: str
    unit_environment: dict[str, str]


def toolkits(instances: list[dict[str, t.Any]]) -> list[Toolkit]:
    """One for each environment and CUDA_HOME, with the environment's own path in place of an instance's link to it."""
    found: dict[tuple[str, str], Toolkit] = {}
    for instance in instances:
        if instance["environment"]["variant"] != "cuda":
            continue
        path = instance["environment"]["path"]
        values = {key: text.replace(f"{instance['current']}/", f"{path}/") for key, text in instance["unit_environment"].items()}
        home = values["CUDA_HOME"]
        found.setdefault((path, home), Toolkit(instance, [], home, values)).names.append(instance["name"])
    return list(found.values())


def read(path: str | Path) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(LONGEST_HEADER)
    except OSError:
        return ""


def places(part: core.Part, home: str, source: str) -> list[str]:
    return [f"{home}/{place}" for place in part.places] + list(part.system if source == "distribution" else ())


def look(user: User, home: str, source: str, environment_path: str) -> core.Found:
    """What is at a toolkit's home, and what it works with."""
    asked = {part.name: places(part, home, source) for part in core.PARTS}
    good = user.readable([path for paths in asked.values() for path in paths])
    readable = {name: [path for path in paths if path in good] for name, paths in asked.items()}
    version = ""
    if readable["nvcc"]:
        rc, version = user.run([readable["nvcc"][0], "--version"])
        version = version or f"exit code {rc}"
    headers = user.run([f"{environment_path}/bin/python", "-I", "-c", HEADERS_PROBE])[1].strip() if environment_path else ""
    python_h = f"{headers}/Python.h" if headers.startswith("/") else ""
    cxx = user.environment.get("CXX", "") or user.which("c++")
    runtime = readable["cuda_runtime.h"][:1]
    return core.Found(
        exists=Path(home).is_dir(),
        nvcc=version,
        version_json=read(f"{home}/version.json"),
        runtime=read(Path(runtime[0]).with_name("cuda_runtime_api.h")) if runtime else "",
        missing=tuple(name for name, paths in readable.items() if not paths),
        ninja=user.which("ninja"),
        python_h=python_h if python_h and user.readable([python_h]) else "",
        cxx=cxx,
        cxx_version=user.run([cxx, "-dumpfullversion"])[1] if cxx else "",
    )


def compile_kernel(user: User, home: str, cxx: str, capability: str) -> tuple[float, str]:
    """Compile with nvcc and link with the C++ compiler, as the engine does. Returns seconds, and why it failed (empty when it did not)."""
    architecture = core.architecture(capability)
    if architecture is None:
        return 0, f"expected a compute capability such as 8.6, found {capability!r}. Correct compute_capabilities."
    directory = tempfile.mkdtemp(prefix="firstlight-cuda-")
    try:
        source = Path(directory, "kernel.cu")
        source.write_text(core.KERNEL, encoding="utf-8")
        if user.words and user.entry:
            os.chown(directory, user.entry.pw_uid, user.entry.pw_gid)
            source.chmod(0o644)
        begin = time.monotonic()
        words = [f"{home}/bin/nvcc", "-std=c++20", f"-gencode=arch=compute_{architecture},code=sm_{architecture}"]
        words += ["-Xcompiler", "-fPIC", "-c", str(source), "-o", f"{directory}/kernel.o"]
        rc, output = user.run(words, TMPDIR=directory, HOME=directory)
        if rc == 0:
            words = [cxx, "-shared", f"{directory}/kernel.o", "-o", f"{directory}/kernel.so", f"-L{home}/lib64", "-lcudart"]
            rc, output = user.run(words, TMPDIR=directory, HOME=directory)
        if rc in (124, 137):
            output = f"it did not end in {user.module.params['timeout_s']} s"
        return round(time.monotonic() - begin, 1), core.compile_problem(home, capability, output) if rc else ""
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def offers(module: AnsibleModule, manager: str, names: list[str]) -> dict[str, list[str]] | None:
    """What the package manager offers of these packages; None while it has no lists."""
    if not names:
        return {}
    if manager == "apt":
        if not any(Path("/var/lib/apt/lists").glob("*Packages*")):
            return None
        return core.parse_madison(module.run_command(["apt-cache", "madison", *names])[1])
    if manager == "dnf":
        rc, out, _err = module.run_command(["dnf", "--quiet", "repoquery", "--queryformat", "%{name} | %{version}\n", *names])
        return core.parse_madison(out) if rc == 0 else None
    return {}


class Host:
    """What all toolkits of a host share."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.platform = _engine_python.platform_key(_engine_python.os_release(read("/etc/os-release")))
        self.manager = _engine_python.package_manager(self.platform)

    def choose(self, toolkit: Toolkit) -> core.Choice:
        release = toolkit.instance["environment"]["release"]
        source = self.params["source"]
        return core.choose(
            source=source,
            asked=self.params["release"],
            path=self.params["path"],
            release=release,
            environment_path=toolkit.instance["environment"]["path"],
            unit_home=toolkit.home,
            platform=self.platform,
            manager=self.manager,
            offered=self.offered(core.names_to_ask(source, self.manager, release)),
        )

    def offered(self, names: list[str]) -> dict[str, t.Any] | None:
        """What the package manager offers, or will once the role gpu_driver has added a repository."""
        coming = {name: versions for name, versions in self.params["coming"].items() if name in names}
        found = offers(self.module, self.manager, names)
        return {**coming, **(found or {})} if coming else found

    def judge(self, toolkit: Toolkit) -> tuple[dict[str, t.Any], list[str], tuple[str, ...]]:
        """The toolkit as it is told, what is wrong, and the packages that mend it."""
        source, required = self.params["source"], self.params["required"]
        environment = toolkit.instance["environment"]
        user = User(self.module, toolkit.instance["user"], toolkit.unit_environment)
        told: dict[str, t.Any] = {
            "instances": toolkit.names,
            "home": toolkit.home,
            "ready": False,
            "cuda": None,
            "torch_cuda": core.torch_cuda(environment["release"]),
            "missing": [],
            "user": user.name,
            "compiled": {},
            "proven": [],
        }
        choice = self.choose(toolkit)
        if choice.problems or choice.home is None:
            return told, list(choice.problems), ()
        built = Path(environment["path"], ".firstlight.json").is_file()
        if not required and source == "wheels" and not built:
            return told, [], ()
        found = look(user, choice.home, source, environment["path"] if built else "")
        arguments = {"source": source, "release": environment["release"], "manager": self.manager}
        wrong = core.check(choice, found, **arguments)
        told.update(cuda=core.parse_nvcc(found.nvcc), missing=list(found.missing), ready=not wrong)
        if wrong and choice.packages and not required:
            return told, [], choice.packages  # they bring what is missing
        if self.params["compile"] and found.cxx and not wrong:
            wrong += self.prove(user, choice.home, found, Path(environment["path"]), told)
            told["ready"] = not wrong
        return told, wrong + (core.tool_problems(found, self.manager) if required else []), choice.packages if wrong else ()

    def prove(self, user: User, home: str, found: core.Found, environment: Path, told: dict[str, t.Any]) -> list[str]:
        """Compile for each kind of GPU that was not proven with the same tools, and remember it."""
        proof = core.proof(found, read(environment / ".firstlight.json"), user.environment)
        record = core.proven(read(environment / RECORD))
        problems = []
        for capability in self.params["compute_capabilities"]:
            if record.get(home, {}).get(capability) == proof:
                told["proven"].append(capability)
                continue
            seconds, problem = compile_kernel(user, home, found.cxx, capability)
            if problem:
                problems.append(problem)
            else:
                told["compiled"][capability] = seconds
                record.setdefault(home, {})[capability] = proof
        if told["compiled"] and not self.module.check_mode:
            self.remember(environment / RECORD, record)
        return problems

    def remember(self, path: Path, record: dict[str, dict[str, str]]) -> None:
        """Beside the marker of the environment, so that it goes with it."""
        handle, name = tempfile.mkstemp(dir=self.module.tmpdir)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(record, stream, indent=1, sort_keys=True)
        self.module.atomic_move(name, str(path))


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "list", "elements": "dict", "required": True},
            "source": {"type": "str", "choices": list(core.SOURCES), "default": "wheels"},
            "release": {"type": "str"},
            "path": {"type": "path"},
            "required": {"type": "bool", "default": True},
            "compile": {"type": "bool", "default": False},
            "compute_capabilities": {"type": "list", "elements": "str", "default": []},
            "driver_version": {"type": "str"},
            "cuda_driver_version": {"type": "str"},
            "coming": {"type": "dict", "default": {}},
            "timeout_s": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    params = module.params
    lacking = core.lacking(params["instances"])
    if lacking:
        module.fail_json(
            msg=f"instances: expected what the lookup firstlight.sglang.instances returns, found none of {', '.join(lacking)}."
        )
    host = Host(module)
    wanted = toolkits(params["instances"])
    problems = core.option_problems(params["source"], params["release"], params["path"]) if wanted else []
    told, packages = [], []
    for toolkit in [] if problems else wanted:
        one, wrong, needed = host.judge(toolkit)
        told.append(one)
        problems += [f"{', '.join(toolkit.names)}: {problem}" for problem in wrong]
        packages += needed
    releases = [toolkit.instance["environment"]["release"] for toolkit in wanted]
    module.exit_json(
        changed=False,
        problems=problems,
        driver_problems=core.driver_problems(releases, params["driver_version"], params["cuda_driver_version"]),
        packages=list(dict.fromkeys(packages)),
        package_manager=host.manager,
        toolkits=told,
    )


if __name__ == "__main__":
    main()
