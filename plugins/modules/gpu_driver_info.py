#!/usr/bin/python
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_driver_info
author: Firstlight maintainers (@firstlight)
version_added: 0.1.0
short_description: Which NVIDIA driver a host needs, what a run would do, and whether it came out right
description:
  - Looks at a host's packages, package sources, kernels and GPUs, and decides which driver it gets and how, or names every problem at once.
  - Where a source has to be added first, its index is read into a directory of its own, with the signature checked, and what apt would do
    is simulated there. Nothing on the host changes, so check mode tells all.
  - With O(plan) it tells instead whether a plan has come out right.
options:
  inventory:
    description: The result of M(firstlight.sglang.gpu_info) on this host.
    type: dict
    required: true
  plan:
    description: RV(plan) of an earlier call, after it was carried out. What came of it is looked at, and nothing is decided.
    type: dict
  log:
    description: What apt and DKMS printed; with O(plan), for the cause of a module that is missing.
    type: str
    default: ''
  state:
    description: V(absent) plans the removal of what the role's record names.
    type: str
    choices: [present, absent]
    default: present
  required:
    description: Whether a host without an NVIDIA GPU is a problem.
    type: bool
    default: true
  mode:
    description: V(kernel) with a module, V(userland) without. V(auto) takes V(userland) in containers.
    type: str
    default: auto
  source:
    description: V(auto), V(distribution), V(nvidia) or V(runfile).
    type: str
    default: auto
  branch:
    description: Branch, such as 580.
    type: int
  version:
    description: Exact version, such as 580.95.05.
    type: str
  flavour:
    description: V(auto), V(open) or V(proprietary).
    type: str
    default: auto
  sglang_releases:
    description: Releases of SGLang that the host serves. The one that asks for the newest driver counts.
    type: list
    elements: str
    default: []
  upgrade:
    description: Whether the newest version of the branch is taken although an older one suits.
    type: bool
    default: false
  allow_downgrade:
    description: Whether an older version than the installed one may be taken.
    type: bool
    default: false
  secure_boot:
    description: V(stop), or V(mok) to prepare the enrolment of a key.
    type: str
    default: stop
  reboot:
    description: V(never), V(if_required) or V(report).
    type: str
    default: report
  persistence:
    description: Whether the persistence daemon runs. Without it, it does where there is a kernel module.
    type: bool
  fabric_manager:
    description: Whether the fabric manager runs. Without it, NVSwitches decide.
    type: bool
  base_url:
    description: A mirror of NVIDIA's repositories.
    type: str
  key_url:
    description: Where the mirror's key is, when it signs with one of its own.
    type: str
  key_fingerprint:
    description: Fingerprint of that key.
    type: str
  runfile:
    description: Path on the host, or URL, of a C(.run) file.
    type: str
  runfile_sha256:
    description: Its SHA-256.
    type: str
  power_limit_w:
    description: Power limit that is asked for, W.
    type: int
  clocks_mhz:
    description: Lowest and highest clock that are asked for, MHz.
    type: list
    elements: int
  ecc:
    description: Whether error correction of the GPUs' memory is to be on. Without it, it stays as it is.
    type: bool
  mig:
    description: Whether the GPUs are to be in MIG mode. Without it, they stay as they are.
    type: bool
  host_version_path:
    description: Where the version of the loaded module is read from.
    type: path
    default: /proc/driver/nvidia/version
  record_path:
    description: The role's record of what it put on this host.
    type: path
    default: /var/lib/firstlight/gpu_driver.json
  device_user:
    description:
      - The user that must be there, and with O(plan) be able to open the device nodes. A container's come from outside, and are looked at
        before a plan too. A node that is right and has nothing behind it yet stops no plan. Without a user they are not opened.
    type: str
  local:
    description: Whether Ansible runs on this host itself.
    type: bool
    default: false
  rebooted:
    description: Whether this run has rebooted the host already.
    type: bool
    default: false
  lock_timeout_s:
    description:
      - Seconds to wait for another program that holds a lock of dpkg or apt, where packages have to change or are not in order; 0 or more.
    type: int
    default: 0
  root:
    description:
      - Where C(etc), C(boot), C(lib) and C(proc) of the host lie. Another directory than V(/) is a recorded host; what commands print is
        in its C(commands.json) then, by name (C(dpkg-query), C(apt-cache), C(modinfo-version), C(modinfo-license), C(uname), C(machine),
        C(mokutil), C(guests)), and no index is fetched.
    type: path
    default: /
  timeout_s:
    description: Seconds that reading the index of one source may take, 1 to 3600.
    type: int
    default: 120
attributes:
  check_mode:
    description: Runs in check mode too, since it only reads.
    support: full
"""

EXAMPLES = r"""
- name: Look at the GPUs
  firstlight.sglang.gpu_info:
  register: gpus

- name: Decide
  firstlight.sglang.gpu_driver_info:
    inventory: "{{ gpus }}"
    sglang_releases: [0.5.23]
  register: driver

- name: Show what a run would do
  ansible.builtin.debug:
    msg: "{{ driver.problems | map(attribute='text') if driver.problems else driver.steps | map(attribute='text') }}"
"""

RETURN = r"""
mode:
  description: V(kernel), V(userland), or V(none) (nothing to do).
  returned: always
  type: str
plan:
  description: What a run does, as data; V(null) with problems, and with O(plan).
  returned: always
  type: dict
problems:
  description: Every reason to stop, each with C(code) (a stable word) and C(text).
  returned: always
  type: list
  elements: dict
notes:
  description: What to know.
  returned: always
  type: list
  elements: str
summary:
  description: How the driver stands, in one line. Empty with problems, and where a driver is still to be brought.
  returned: always
  type: str
steps:
  description: What a run does, in order, each with C(step) and C(text).
  returned: always
  type: list
  elements: dict
brings:
  description: Whether a run brings a driver, so that what the GPUs say before it counts for nothing.
  returned: always
  type: bool
reboot_required:
  description: Whether only a reboot brings the driver that is, or will be, installed, or a change of ECC or MIG.
  returned: always
  type: bool
reboot_why:
  description: Why.
  returned: always
  type: str
modes:
  description: Changes of ECC and MIG that are still to be made, each with C(mode), C(gpu), C(value), C(argv) and C(text).
  returned: always
  type: list
  elements: dict
module_waits:
  description: Whether it is the driver that waits for the reboot.
  returned: always
  type: bool
reboot_allowed:
  description: Whether this run may reboot the host.
  returned: always
  type: bool
reboot_allowed_why:
  description: Why not.
  returned: always
  type: str
loadable:
  description: Whether the module that is installed can be loaded without a reboot, since no other driver has a GPU. With O(plan).
  returned: always
  type: bool
installed:
  description: Version to packages of the driver's set that have it. One version is what should be.
  returned: always
  type: dict
packages:
  description: All installed packages that are part of a driver.
  returned: always
  type: list
  elements: str
configurations:
  description: Packages of a driver that were removed and whose configuration is still there.
  returned: always
  type: list
  elements: str
key:
  description: Text of the repository's key, compared with its fingerprint; empty when none is needed.
  returned: always
  type: str
record:
  description: The role's record; empty without.
  returned: always
  type: dict
offered:
  description: Packages of the CUDA toolkit that NVIDIA's repository offers, where RV(plan) adds it; versions by name.
  returned: always
  type: dict
asked:
  description: Sources whose index was read.
  returned: always
  type: list
  elements: str
"""

import contextlib
import dataclasses
import fcntl
import glob
import json
import os
import pwd
import re
import struct
import tempfile
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url
from ansible_collections.firstlight.sglang.plugins.module_utils import (
    _cuda_toolkit,
    _driver_dnf,
    _driver_facts,
    _driver_key,
    _driver_modes,
    _driver_outcome,
    _driver_packages,
    _driver_plan,
    _driver_sources,
    _driver_state,
    _engine_python,
    _gpu_inventory,
    _gpu_system,
)
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_facts import HostFacts, Offers, Problem, Wanted

COMMAND_TIMEOUT_S = 60
KEY_LIMIT_BYTES = 1 << 20
# apt-get install waits for the first two; for that of the lists nobody waits (apt 2.6 and 3.0).
LOCKS = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/lib/apt/lists/lock")
# apt-cache would write what it makes of the indexes to /var/cache/apt. Without a place it does not (apt.conf(5), Dir::Cache).
NO_CACHE = ("-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=")
FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, process
# Problems that another look at the package sources may remove: an index that was never read has nothing to offer.
OF_OFFERS = {"not_offered", "source_too_old", "no_matching_userland", "headers_missing", "repository_missing", "fabric_manager_version"}


class Host:
    """Files and commands of the host, or of its recording."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.root = os.path.realpath(module.params["root"]).rstrip("/")
        self.answers: dict[str, str] = {}
        if self.root:
            self.answers = json.loads(self.read("/commands.json") or "{}")

    def read(self, path: str) -> str:
        try:
            with open(self.root + path, encoding="utf-8", errors="replace") as stream:
                return stream.read(1 << 22)
        except OSError:
            return ""

    def there(self, path: str) -> bool:
        return os.path.exists(self.root + path)

    def glob(self, pattern: str) -> list[str]:
        return sorted(path[len(self.root) :] for path in glob.glob(self.root + pattern))

    def run(self, name: str, *command: str, timeout_s: int = COMMAND_TIMEOUT_S) -> tuple[int, str]:
        """(exit status, stdout and stderr) of a command; 127 without it. name: of its answer in a recording."""
        if self.root:
            return (0 if name in self.answers else 127), self.answers.get(name, "")
        path = self.module.get_bin_path(command[0])
        if path is None:
            return 127, ""
        arguments = ["timeout", "--kill-after=5", str(timeout_s), path, *command[1:]]
        rc, out, err = self.module.run_command(arguments, environ_update={"LC_ALL": "C", "LANG": "C"}, errors="replace")
        return rc, f"{out}{err}"

    def output(self, name: str, *command: str) -> str:
        rc, text = self.run(name, *command)
        return text if rc == 0 else ""


def kernel_next(host: Host) -> str | None:
    """The kernel that boots next: what Proxmox's boot tool has pinned, what the link says, else the newest one."""
    pinned = host.read("/etc/kernel/proxmox-boot-pin").strip()
    if pinned:
        return pinned
    for link in ("/boot/vmlinuz", "/vmlinuz"):
        with contextlib.suppress(OSError):
            return os.path.basename(os.readlink(host.root + link)).partition("-")[2] or None
    names = [os.path.basename(path).partition("-")[2] for path in host.glob("/boot/vmlinuz-*")]
    # dpkg and others keep copies beside a kernel.
    kernels = [name for name in names if host.there(f"/lib/modules/{name}") or not re.search(r"\.(?:dpkg-\w+|old|bak)$", name)]
    return max(kernels, key=lambda name: [int(part) for part in re.findall(r"\d+", name)], default=None)


def guests_running(host: Host) -> int:
    text = host.answers.get("guests", "") if host.root else host.output("guests", "pct", "list") + host.output("guests", "qm", "list")
    return len(re.findall(r"^\s*\d+\s.*\brunning\b", text, re.MULTILINE))


def apt_files(host: Host) -> dict[str, str]:
    paths = ["/etc/apt/sources.list", *host.glob("/etc/apt/sources.list.d/*.list"), *host.glob("/etc/apt/sources.list.d/*.sources")]
    return {path: text for path in paths for text in [host.read(path)] if text}


def yum_repositories(host: Host) -> list[_driver_dnf.Repository]:
    return _driver_dnf.repositories({path: host.read(path) for path in host.glob("/etc/yum.repos.d/*.repo")})


def gather(host: Host, container: bool) -> HostFacts:
    params = host.module.params
    release = _engine_python.os_release(host.read("/etc/os-release"))
    query = ("dpkg-query", "-W", f"-f={_driver_packages.DPKG_FORMAT}")
    kernel = host.output("uname", "uname", "-r").strip()
    machine = host.output("machine", "uname", "-m").strip()
    facts = HostFacts(
        distribution=release.get("ID", ""),
        version=release.get("VERSION_ID", ""),
        machine=machine,
        kernel=kernel,
        packages=_driver_packages.packages(host.output("dpkg-query", *query), machine),
        sources=_driver_packages.apt_sources(apt_files(host)),
        nvidia_installer=host.there("/usr/bin/nvidia-uninstall"),
        local=params["local"],
        hypervisor=host.there("/usr/bin/pveversion") or host.there("/etc/pve"),
        rebooted=params["rebooted"],
    )
    if uses_dnf(facts):
        listed = host.output("rpm", "rpm", "-qa", "--qf", _driver_dnf.RPM_FORMAT)
        facts = dataclasses.replace(facts, packages=_driver_dnf.packages(listed), sources=_driver_dnf.as_sources(yum_repositories(host)))
    if facts.hypervisor:
        facts = dataclasses.replace(facts, guests_running=guests_running(host))
    if container:  # its kernel is the host's
        return facts
    # The file, not the name: Debian's modules are nvidia-current.ko and the like, and modinfo does not know them as nvidia.
    files = _gpu_system.kernel_module(kernel, module_files(host, kernel), ()).files or []
    on_disk = {
        field: host.output(f"modinfo-{field}", "modinfo", "-F", field, host.root + files[0]).strip() if files else ""
        for field in ("license", "version")
    }
    licence, version = on_disk["license"], on_disk["version"]
    known = _driver_sources.parse_version(version) is not None
    return dataclasses.replace(
        facts,
        kernel_next=kernel_next(host),
        headers=[path.split("/")[3] for path in host.glob("/lib/modules/*/build/Makefile")],
        module_version=version if known else None,
        module_flavour=("proprietary" if licence == "NVIDIA" else "open") if known and licence else None,
        mok_enrolled=mok_enrolled(host),
    )


def uses_dnf(facts: HostFacts) -> bool:
    where = _driver_sources.platform(facts.distribution, facts.version, facts.machine)
    return where is not None and where.distribution == "rhel"


def mok_enrolled(host: Host) -> bool | None:
    """Whether the firmware knows a key that DKMS signs with; None when there is nothing to ask."""
    known = None
    for certificate in ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der"):
        if host.there(certificate):
            text = host.run("mokutil", "mokutil", "--test-key", certificate)[1]
            if "is already enrolled" in text:
                return True
            known = False if "is not enrolled" in text else known
    return known


def lock_holder(host: Host) -> str:
    """Which program holds a lock of dpkg or apt, in words; empty when none does. No lock is taken."""
    for path in LOCKS if not host.root else ():
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as stream:
            answer = fcntl.fcntl(stream, fcntl.F_GETLK, struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            kind, _whence, _start, _length, pid = struct.unpack(FLOCK, answer)
            if kind != fcntl.F_UNLCK:
                return f"process {pid} ({host.read(f'/proc/{pid}/comm').strip() or 'of another container'}) with {path}"
    return ""


def wait_for_locks(host: Host) -> str:
    """Who still holds a lock after the time that is allowed; empty when nobody does."""
    until = time.monotonic() + host.module.params["lock_timeout_s"]
    while lock_holder(host) and time.monotonic() < until:
        time.sleep(1)
    return lock_holder(host)


class Scratch:
    """A directory of our own, in which a package manager sees other files than the host's."""

    directory: str

    def write(self, name: str, text: str) -> str:
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)
        return path


class View(Scratch):
    """What apt sees: the host's own, or the host's with other sources, in a directory of its own."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.options = [*NO_CACHE]
        self.directory = ""
        self.sources: list[_driver_packages.AptSource] = []
        self.warnings: list[str] = []

    def open(self) -> None:
        """Make the directory: a copy of the host's sources, and links to the indexes that it has."""
        if self.directory:
            return
        self.directory = tempfile.mkdtemp(prefix="apt-", dir=self.host.module.tmpdir)  # removed with it
        for name in ("lists/partial", "cache/archives/partial", "parts", "one", "preferences"):
            os.makedirs(os.path.join(self.directory, name))
        for path, text in apt_files(self.host).items():
            self.write(f"parts/host-{os.path.basename(path)}", text)
        for path in glob.glob("/var/lib/apt/lists/*"):
            if os.path.isfile(path) and os.path.basename(path) != "lock":
                os.symlink(path, os.path.join(self.directory, "lists", os.path.basename(path)))
        self.options = self.options_with("parts")

    def options_with(self, parts: str) -> list[str]:
        settings = {
            "Dir::Etc::SourceList": "/dev/null",
            "Dir::Etc::SourceParts": os.path.join(self.directory, parts),
            "Dir::State::Lists": os.path.join(self.directory, "lists"),
            "Dir::Cache": os.path.join(self.directory, "cache"),
            "APT::Sandbox::User": "root",
            "Acquire::Retries": "1",
            "Acquire::http::Timeout": "20",
            "Acquire::https::Timeout": "20",
        }
        return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]

    def add(self, name: str, text: str) -> str:
        """Add a source and read its index; what went wrong, or nothing."""
        self.write(f"parts/{name}.sources", text)
        for old in glob.glob(os.path.join(self.directory, "one", "*")):
            os.unlink(old)
        self.write(f"one/{name}.sources", text)
        problem = self.update("one")
        if problem:
            os.unlink(os.path.join(self.directory, f"parts/{name}.sources"))
        else:
            self.sources += _driver_packages.apt_sources({f"{name}.sources": text})
        return problem

    def update(self, parts: str) -> str:
        options = [*self.options_with(parts), "-o", "APT::Get::List-Cleanup=0", "-o", "APT::Update::Error-Mode=any"]
        rc, text = self.host.run("apt-get-update", "apt-get", *options, "update", timeout_s=self.host.module.params["timeout_s"])
        if rc == 0:
            warning = _driver_packages.apt_warning(text)
            self.warnings += [f"{warning.found}; {warning.action}"] if warning else []
            return ""
        known = _driver_packages.apt_error(text)
        last = next((line for line in reversed(text.splitlines()) if line.startswith("E: ")), f"apt-get update ended with status {rc}")
        return f"that {known.found}; {known.action[0].lower()}{known.action[1:].rstrip('.')}" if known else last

    def policies(self, names: list[str]) -> dict[str, _driver_packages.Policy]:
        return _driver_packages.policies(self.host.output("apt-cache", "apt-cache", *self.options, "policy", *names))

    def preferences(self, pin: dict[str, str]) -> str:
        """A directory with the host's preferences, and the pin instead of the one that an earlier run wrote."""
        texts = {path: self.host.read(path) for path in self.host.glob("/etc/apt/preferences.d/*")}
        for path, text in {**texts, pin["path"]: pin["text"]}.items():
            self.write(f"preferences/{os.path.basename(path)}", text)
        return os.path.join(self.directory, "preferences")

    def simulate(self, plan: dict[str, t.Any]) -> _driver_packages.Simulation | None:
        """What apt would do, with the plan's pin in force."""
        if self.host.root:
            return None
        self.open()
        options = [*self.options]
        if plan["pin"]:
            options += ["-o", f"Dir::Etc::PreferencesParts={self.preferences(plan['pin'])}"]
        if any(name.count("=") for name in plan["packages"]) or self.host.module.params["allow_downgrade"]:
            options.append("--allow-downgrades")
        names = [*plan["packages"], *(f"{name}-" for name in plan["packages_remove"])]
        text = self.host.run("apt-get-simulate", "apt-get", *options, "-s", "--no-install-recommends", "install", *names)[1]
        return _driver_packages.simulation(text)


class DnfView(Scratch):
    """What dnf would see with other repositories and another stream: an installation root of its own with the host's database of packages.
    Keys and indexes go into a cache of its own; the host's is left alone."""

    def __init__(self, host: Host, facts: HostFacts) -> None:
        self.host, self.facts = host, facts
        self.directory = tempfile.mkdtemp(prefix="dnf-", dir=host.module.tmpdir)  # removed with it
        self.root = os.path.join(self.directory, "root")
        for name in ("repos", "cache", "root/etc/dnf/modules.d", "root/var/lib"):
            os.makedirs(os.path.join(self.directory, name))
        database = host.output("rpm-database", "rpm", "--eval", "%{_dbpath}").strip() or "/var/lib/rpm"
        os.makedirs(os.path.dirname(self.root + database), exist_ok=True)
        os.symlink(database, self.root + database)
        for path in host.glob("/etc/yum.repos.d/*.repo"):
            self.write(f"repos/host-{os.path.basename(path)}", host.read(path))
        for path in host.glob("/etc/dnf/modules.d/*.module"):
            self.write(f"root{path}", host.read(path))

    def dnf(self, *words: str) -> str:
        """What dnf prints, also when it ends badly: --assumeno always does."""
        release = self.facts.version.partition(".")[0]
        settings = {
            "reposdir": os.path.join(self.directory, "repos"),
            "cachedir": os.path.join(self.directory, "cache"),
            "logdir": self.directory,
            "persistdir": os.path.join(self.directory, "root/var/lib/dnf"),
            "module_platform_id": f"platform:el{release}",
            "install_weak_deps": "False",
            "timeout": "20",
            "retries": "2",
        }
        options = [f"--setopt={key}={value}" for key, value in settings.items()]
        options += [f"--installroot={self.root}", f"--releasever={release}"]
        return self.host.run("dnf", "dnf", *options, *words, timeout_s=self.host.module.params["timeout_s"])[1]

    def offers(self, names: list[str], repository: dict[str, t.Any], key: str) -> tuple[dict[str, dict[str, list[str]]], str]:
        """What the sources have, with the plan's repository among them; and what was wrong with it, or nothing."""
        ours = [one.name for one in yum_repositories(self.host) if repository["url"] in {url.rstrip("/") for url in one.urls}]
        if not repository["present"]:
            ours = [_driver_plan.NAME]
            # Everything of it: what is held at one version would not say what else there is.
            self.add(re.sub(r"^includepkgs=.*\n", "", repository["text"], flags=re.MULTILINE), repository["key"]["path"], key)
        words = ("-y", "repoquery", "--available", "--disable-modular-filtering", "--qf", _driver_dnf.QUERY_FORMAT)
        text = self.dnf(*words, *names)
        found = _driver_dnf.available(text, ours)
        wrong = _driver_dnf.error(text)
        return found, f"that dnf cannot read it ({wrong})" if wrong else ""

    def add(self, text: str, key_path: str, key: str) -> None:
        self.write(f"repos/{_driver_plan.NAME}.repo", text.replace(f"file://{key_path}", f"file://{self.write('key.asc', key)}"))
        host = os.path.join(self.directory, f"repos/host-{_driver_plan.NAME}.repo")  # of an earlier run
        if os.path.exists(host):
            os.unlink(host)

    def simulate(self, plan: dict[str, t.Any], key: str) -> _driver_packages.Simulation:
        for file in plan["files"]:
            if file["path"] == _driver_dnf.MODULE_PATH and file["text"] is not None:
                self.write(f"root{file['path']}", file["text"])
        repository = plan["repository"]
        if repository and not repository["present"]:
            self.add(repository["text"], repository["key"]["path"], key)
        words = [_driver_dnf.specification(name) for name in plan["packages"]]
        verb = ["--allowerasing", "install"] if plan["state"] == "present" else ["--setopt=clean_requirements_on_remove=False", "remove"]
        text = self.dnf("--assumeno", *verb, *(words if plan["state"] == "present" else plan["packages_remove"]))
        return _driver_dnf.simulation(text, self.facts.packages)


class Decider:
    """Decides, reads the index of what the decision needs, and decides again, until it needs no more."""

    def __init__(self, host: Host, facts: HostFacts, wanted: Wanted, inventory: dict[str, t.Any]) -> None:
        self.host, self.facts, self.wanted, self.inventory = host, facts, wanted, inventory
        self.view = View(host)
        self.where = _driver_sources.platform(facts.distribution, facts.version, facts.machine)
        self.refused: dict[str, str] = {}
        self.known = Offers()
        self.key = ""
        self.notes: list[str] = []
        self.dnf_view: DnfView | None = None

    def ask(self) -> None:
        if self.where is None:
            return
        found = self.view.policies(_driver_facts.names_to_ask(self.where, self.facts))
        sources = [*self.facts.sources, *self.view.sources]
        self.known = _driver_facts.offers(found, sources, self.where, self.wanted.base_url, refused=self.refused)

    def decide(self) -> _driver_plan.Decision:
        return _driver_plan.decide(self.wanted, self.facts, self.inventory, self.known)

    def run(self) -> _driver_plan.Decision:
        if self.dnf:
            return self.run_dnf()
        self.ask()
        decision = self.decide()
        refreshed = bool(self.host.root)
        for _round in range(4):
            needs = {problem.code for problem in decision.problems} & OF_OFFERS
            needs |= set(decision.plan["packages"]) if decision.plan else set()
            if not refreshed and needs and self.where is not None:
                refreshed = True
                self.view.open()
                problem = self.view.update("parts")
                self.notes += [f"the index of the package sources could not be brought up to date: {problem}"] if problem else []
            elif self.host.root or not self.add_sources(decision.plan or self.any_plan(decision)):
                break
            self.ask()
            decision = self.decide()
        return decision

    def toolkit(self, releases: list[str]) -> dict[str, list[str]]:
        """Packages of the CUDA toolkit for these releases, in the sources as the plan makes them."""
        names = [name for release in releases for name in _cuda_toolkit.names_to_ask("nvidia", "apt", release)]
        found = self.view.policies(list(dict.fromkeys(names))) if names else {}
        return {name: [one.version for one in policy.versions] for name, policy in found.items() if name in names}

    @property
    def dnf(self) -> bool:
        return uses_dnf(self.facts)

    def run_dnf(self) -> _driver_plan.Decision:
        """Without NVIDIA's index branches are known, which is enough for what is installed already; else it is read, and decided again."""
        decision = self.decide()
        plan = decision.plan
        if self.host.root or plan is None or self.where is None:
            return decision
        repository = plan["repository"]
        wrong = self.fetch_key(repository["key"]) if repository and not repository["present"] else ""
        if not plan["packages"] and not wrong:
            return decision
        names = [*_driver_facts.names_to_ask(self.where, self.facts), "dkms"]
        # A .run file needs what the distribution has.
        url = {"url": "", "present": True}
        if not wrong:
            self.dnf_view = DnfView(self.host, self.facts)
            versions, wrong = self.dnf_view.offers(names, repository or url, self.key)
            self.known = Offers(versions, ["distribution", *(["nvidia"] if repository else [])])
        if wrong:
            self.refused["nvidia"] = wrong
            self.known = Offers(refused=self.refused)
        return self.decide()

    def any_plan(self, decision: _driver_plan.Decision) -> dict[str, t.Any]:
        """The plan without a branch or version, where none fits the one that is asked for: its sources tell what there is instead."""
        if not any(problem.code == "not_offered" for problem in decision.problems):
            return _driver_plan.PLAN
        wanted = dataclasses.replace(self.wanted, branch=None, version=None)
        return _driver_plan.decide(wanted, self.facts, self.inventory, self.known).plan or _driver_plan.PLAN

    def with_refusals(self, problem: Problem) -> Problem:
        """A problem of what the sources have, with those that could not be read."""
        if not self.refused or problem.code not in OF_OFFERS or problem.refusals_told:
            return problem
        return problem._replace(text=f"{problem.text} ({'; '.join(self.refusals())})")

    def refusals(self) -> list[str]:
        """Sources that could not be read, and why."""
        words = {"nvidia": "NVIDIA's repository", "distribution": "the distribution's components"}
        return [f"{words[source]} could not be read, found {why.rstrip('.')}" for source, why in self.refused.items()]

    def add_sources(self, plan: dict[str, t.Any]) -> bool:
        """Read the sources that a plan adds; whether there was one that had not been read."""
        added = False
        components, repository = plan["components"], plan["repository"]
        if components and "distribution" not in self.refused and not self.has(components["text"]):
            self.view.open()
            problem = self.view.add("components", components["text"])
            if problem:
                self.refused["distribution"] = problem
            added = True
        if repository and repository["kind"] == "deb" and "nvidia" not in self.refused:
            problem = self.fetch_key(repository["key"]) if not repository["present"] else ""
            if not problem and not repository["present"] and not self.has(repository["text"]):
                self.view.open()
                path = self.view.write("key.asc", self.key)
                problem = self.view.add("nvidia", repository["text"].replace(repository["key"]["path"], path))
                added = True
            if problem:
                self.refused["nvidia"] = problem
                added = True
        return added

    def has(self, text: str) -> bool:
        """Whether the sources of a text are on the host, or have been read."""
        have = {(uri.rstrip("/"), suite, part) for entry in [*self.facts.sources, *self.view.sources] for uri, suite, part in flat(entry)}
        entries = _driver_packages.apt_sources({"new.sources": text})
        return all(one in have for entry in entries for one in flat(entry))

    def fetch_key(self, key: dict[str, str]) -> str:
        """The repository's key, compared with its fingerprint; what is wrong, or nothing."""
        there = self.host.read(key["path"])
        if there and set(_driver_key.fingerprints(there)) == {key["fingerprint"]}:
            self.key = there
            return ""
        if self.key:
            return ""
        try:
            answer = open_url(key["url"], timeout=20, http_agent="firstlight")
            text = answer.read(KEY_LIMIT_BYTES).decode("ascii", errors="replace")
        except Exception as error:  # urllib, ssl and http raise without a common base
            cause = getattr(error, "reason", None)  # URLError has the operating system's own words inside
            return f"that its key {key['url']} cannot be fetched ({cause if isinstance(cause, OSError) else error})"
        found = _driver_key.fingerprints(text)
        # One key only: apt would trust every other one in the file too.
        if set(found) != {key["fingerprint"]}:
            return f"that {key['url']} holds {' and '.join(found) or 'no key that can be read'} instead of {key['fingerprint']} alone"
        self.key = text
        return ""


def flat(entry: _driver_packages.AptSource) -> list[tuple[str, str, str]]:
    return [(uri.rstrip("/"), suite, part) for uri in entry.uris for suite in entry.suites for part in (entry.components or ("",))]


def wish(params: dict[str, t.Any]) -> Wanted:
    values = {field.name: params[field.name] for field in dataclasses.fields(Wanted) if field.name in params}
    values["key_fingerprint"] = params["key_fingerprint"] and _driver_key.written(params["key_fingerprint"])
    values["runfile_sha256"] = params["runfile_sha256"] and params["runfile_sha256"].strip().lower()
    releases = [release for release in params["sglang_releases"] if _driver_sources.engine_needs(release) is not None]

    def need(release: str) -> tuple[int, ...]:
        needs = _driver_sources.engine_needs(release)
        return _driver_sources.parse_version(needs.driver) or () if needs else ()

    unknown = [release for release in params["sglang_releases"] if release not in releases]
    return Wanted(**values, sglang_release=max(releases, key=need, default=None), unknown_releases=unknown)


def loaded_version(inventory: dict[str, t.Any], path: str) -> dict[str, t.Any]:
    """The inventory with the version of the module as a file says it, and what was found where it says none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            cells = _gpu_system.driver(stream.read(4096))
        lack = "names no version of NVIDIA's module" if cells else "has no line NVRM version"
        found = f"that {path} is there but {lack}"
    except OSError:
        cells, found = {}, f"no {path}"
    values = {name: value if isinstance(value, str) else None for name, value in cells.items()}
    return {**inventory, "driver_version": None, "driver_flavour": None, "driver_version_found": found, **values}


def open_as(user: str, paths: list[str]) -> dict[str, int]:
    """path -> errno of opening it as a user, in a process of its own."""
    entry = pwd.getpwnam(user)
    receiver, sender = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(receiver)
            os.initgroups(user, entry.pw_gid)
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
            result = {}
            for path in paths:
                result[path] = 0
                try:
                    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
                except OSError as error:
                    result[path] = error.errno or -1
            os.write(sender, json.dumps(result).encode())
        finally:
            os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, "rb") as stream:
        data = stream.read()
    os.waitpid(pid, 0)
    return t.cast("dict[str, int]", json.loads(data or b"{}"))


def outcome(host: Host, facts: HostFacts, inventory: dict[str, t.Any], plan: dict[str, t.Any]) -> dict[str, t.Any]:
    """Whether a plan has come out right."""
    packaged = plan["source"] in ("distribution", "nvidia")
    problems = _driver_outcome.set_problems(facts.packages, plan["version"]) if packaged and plan["set"] else []
    log = host.module.params["log"]
    problems += not_installed(facts, plan, log)
    if plan["kernels"]:
        files = [path for kernel in plan["kernels"] for path in module_files(host, kernel)]
        builds = _gpu_system.dkms_status(host.output("dkms-status", "dkms", "status"))
        logs = [host.read(path) for path in host.glob("/var/lib/dkms/nvidia*/*/build/make.log")]
        problems += _driver_outcome.module_problems(plan["kernels"], files, builds, "\n".join([log, *logs]))
    version = plan["version"] or next(iter(_driver_packages.set_versions(facts.packages)), None)
    if plan["fabric_manager"] and version:
        problems += _driver_outcome.fabric_manager_problems(version, facts.installed(plan["fabric_manager"]["package"]))
    needed, why, loadable = False, "", False
    if plan["mode"] == "kernel":
        holders = sorted({gpu["kernel_driver"] for gpu in inventory["gpus"] if gpu["health"] != "passed_through"} - {None, "nvidia"})
        needed, why = _driver_outcome.reboot_needed(
            loaded=inventory["driver_version"],
            installed=facts.module_version,
            loaded_flavour=inventory["driver_flavour"],
            flavour=facts.module_flavour,
            holders=holders,
        )
        loadable = inventory["driver_version"] is None and facts.module_version is not None and not holders
    problems += _driver_outcome.after_reboot_problems(plan, inventory["driver_version"], why) if facts.rebooted else []
    user = host.module.params["device_user"]
    if user and not needed and not problems:
        problems += user_problems(user) or devices(host, user, inventory)
        problems += library_problems(inventory)
        problems += _driver_state.answer_problems(inventory) if plan["mode"] == "kernel" and not problems else []
    if host.module.params["power_limit_w"] is not None and not needed and plan["mode"] == "kernel":
        problems += _driver_state.power_read_back(inventory, host.module.params["power_limit_w"])
    return {"problems": problems, "reboot_required": needed, "reboot_why": why, "loadable": loadable}


def not_installed(facts: HostFacts, plan: dict[str, t.Any], log: str) -> list[Problem]:
    """Packages of the plan that are not there or not in order, with apt's own cause."""
    names = [name.partition("=")[0] for name in plan["packages"]]
    missing = [name for name in names if facts.installed(name) is None]
    missing += [one.name for one in _driver_packages.broken(facts.packages) if one.name not in missing]
    if not missing:
        return []
    cause = _driver_packages.apt_error(log)
    last = "".join([line for line in log.splitlines() if line.startswith("E: ")][-1:]) or _driver_dnf.error(log)
    why = (
        f"that {cause.found}; {cause.action}" if cause else f"them missing or half-installed ({last or 'see the log of the installation'})."
    )
    return [Problem(cause.code if cause else "not_installed", f"expected {', '.join(missing)} installed, found {why}")]


def module_files(host: Host, kernel: str) -> list[str]:
    top = f"{host.root}/lib/modules/{kernel}"
    return [
        os.path.join(place, name)[len(host.root) :]
        for place, _directories, names in os.walk(top)
        for name in names
        if name.startswith("nvidia") and ".ko" in name
    ]


def user_problems(user: str | None) -> list[Problem]:
    """The user must be there before anything changes, not only when the nodes are opened."""
    try:
        pwd.getpwnam(user or "root")
    except KeyError:
        return [Problem("no_user", f"expected the user {user} to open the device nodes with, found none; change gpu_driver_device_user.")]
    return []


def devices(host: Host, user: str, inventory: dict[str, t.Any]) -> list[Problem]:
    """What is wrong with the device nodes, opened as a user who is there."""
    opened = open_as(user, _driver_state.device_paths(inventory))
    return _driver_state.device_problems(opened, inventory, user, _driver_state.mounted(host.read("/proc/self/mountinfo")))


def devices_before(host: Host, inventory: dict[str, t.Any], mode: str) -> list[Problem]:
    """The user, and, where a container only gets a userland, the nodes, which no installation makes any better."""
    user = host.module.params["device_user"]
    problems = user_problems(user) if mode != "none" else []
    if user is None or problems or mode != "userland" or not inventory["container"]:
        return problems
    return _driver_state.device_problems_before(devices(host, user, inventory))


def library_problems(inventory: dict[str, t.Any]) -> list[Problem]:
    """Whether NVML works and has the module's version: gpu_info has asked it."""
    loaded, library = inventory["driver_version"], inventory["driver_userland_version"]
    if library is None:
        return [Problem("no_nvml", "expected NVML (libnvidia-ml.so.1), found none; look at the installed packages.")]
    if loaded is not None and loaded != library:
        return [Problem("library_mismatch", f"expected NVML of the loaded module's version {loaded}, found {library}.")]
    return []


def main() -> None:
    text, number, flag = {"type": "str"}, {"type": "int"}, {"type": "bool"}
    module = AnsibleModule(
        argument_spec={
            "inventory": {"type": "dict", "required": True},
            "plan": {"type": "dict"},
            "log": {"type": "str", "default": ""},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "required": {"type": "bool", "default": True},
            "mode": {"type": "str", "default": "auto"},
            "source": {"type": "str", "default": "auto"},
            "branch": number,
            "version": text,
            "flavour": {"type": "str", "default": "auto"},
            "sglang_releases": {"type": "list", "elements": "str", "default": []},
            "upgrade": {"type": "bool", "default": False},
            "allow_downgrade": {"type": "bool", "default": False},
            "secure_boot": {"type": "str", "default": "stop"},
            "reboot": {"type": "str", "default": "report"},
            "persistence": flag,
            "fabric_manager": flag,
            "base_url": text,
            "key_url": {**text, "no_log": False},
            "key_fingerprint": {"type": "str", "no_log": False},
            "runfile": text,
            "runfile_sha256": text,
            "power_limit_w": number,
            "clocks_mhz": {"type": "list", "elements": "int"},
            "ecc": flag,
            "mig": flag,
            "host_version_path": {"type": "path", "default": "/proc/driver/nvidia/version"},
            "record_path": {"type": "path", "default": "/var/lib/firstlight/gpu_driver.json"},
            "device_user": text,
            "local": {"type": "bool", "default": False},
            "rebooted": {"type": "bool", "default": False},
            "root": {"type": "path", "default": "/"},
            "lock_timeout_s": {"type": "int", "default": 0},
            "timeout_s": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    params = module.params
    if not 1 <= params["timeout_s"] <= 3600:
        module.fail_json(msg=f"timeout_s: expected 1 to 3600 seconds, found {params['timeout_s']}.")
    if params["lock_timeout_s"] < 0:
        text = f"expected 0 seconds or more, found {params['lock_timeout_s']}; change gpu_driver_lock_timeout_s."
        module.fail_json(msg=f"lock_timeout_s: {text}")
    lacking = _gpu_inventory.lacking(params["inventory"])
    if lacking:
        module.fail_json(msg=f"inventory: expected the result of gpu_info, found none of its {lacking}.")
    host = Host(module)
    inventory = dict(params["inventory"])
    if params["host_version_path"] != "/proc/driver/nvidia/version":
        inventory = loaded_version(inventory, params["host_version_path"])
    facts = gather(host, bool(inventory["container"]))
    wanted = wish(params)
    result: dict[str, t.Any] = {
        "mode": "none",
        "plan": None,
        "problems": [],
        "notes": [],
        "steps": [],
        "brings": False,
        "installed": _driver_packages.set_versions(facts.packages),
        "packages": _driver_state.driver_packages(facts),
        "loadable": False,
        "configurations": _driver_state.configurations(facts),
        "key": "",
        "offered": {},
        "asked": [],
        "modes": [],
    }
    result["record"] = recorded(host)
    allowed, why_not = _driver_outcome.reboot_allowed(wanted, facts, bool(inventory["container"]))
    reboot: dict[str, t.Any] = {"reboot_required": False, "reboot_why": "", "reboot_allowed": allowed, "reboot_allowed_why": why_not}
    if params["plan"] is not None:
        told = outcome(host, facts, inventory, params["plan"])
        problems = told.pop("problems")
        result["loadable"] = told.pop("loadable")
        reboot.update(told)
        result["mode"] = params["plan"]["mode"]
    else:
        problems = look_ahead(host, facts, wanted, inventory, result)
        if waits(problems, result["plan"]) and lock_holder(host):
            # Another program is at work: what was seen may be half of it.
            holder = wait_for_locks(host)
            problems = look_ahead(host, gather(host, bool(inventory["container"])), wanted, inventory, result)
            if holder:
                problems = locked(holder, params["lock_timeout_s"], problems)
                result.update(plan=None, steps=[])
        reboot.update({key: result["plan"][key] for key in reboot} if result["plan"] else {})
    result["module_waits"] = reboot["reboot_required"]
    if params["state"] == "present":
        reboot.update({} if reboot["reboot_required"] else {"reboot_allowed": allowed, "reboot_allowed_why": why_not})
        problems += with_modes(_driver_modes.Modes(params["ecc"], params["mig"]), inventory, result, reboot)
    told = params["plan"] or (result["plan"] if result["plan"] and result["plan"]["reason"] else None)
    why = reboot["reboot_why"] if reboot["reboot_required"] else ""
    result["summary"] = _driver_state.summary(told, inventory, why) if told and not problems else ""
    result["problems"] = [{"code": problem.code, "text": problem.text} for problem in problems]
    module.exit_json(changed=False, **result, **reboot)


def recorded(host: Host) -> dict[str, t.Any]:
    """The role's record on this host, empty without."""
    path = host.module.params["record_path"]
    text = host.read(path)
    if not text and not host.there(path):
        return {}
    try:
        record = json.loads(text)
        found = _driver_state.record_problem(record)
    except ValueError:
        found = "no JSON"
    if found:
        host.module.fail_json(
            msg=f"record_path: expected the record of the role gpu_driver in {path}, found {found}. Nothing was changed. Put the file back "
            "from a backup, or move it away: then the driver counts as one that was there before the role."
        )
    return t.cast("dict[str, t.Any]", record)


def with_modes(
    modes: _driver_modes.Modes, inventory: dict[str, t.Any], result: dict[str, t.Any], reboot: dict[str, t.Any]
) -> list[Problem]:
    """Add ECC and MIG to the result, and what waits for a reboot; problems."""
    result["modes"] = _driver_modes.changes(modes, inventory)
    result["steps"] = [*result["steps"], *({"step": "modes", "text": change["text"]} for change in result["modes"])]
    result["notes"] = [*result["notes"], *_driver_modes.notes(inventory, result["modes"])]
    waiting = [*_driver_modes.pending(inventory), *(change["text"] for change in result["modes"])]
    if waiting:
        reboot["reboot_required"] = True
        reboot["reboot_why"] = "; ".join(word for word in (reboot["reboot_why"], *waiting) if word)
    return _driver_modes.problems(modes, inventory)


def waits(problems: list[Problem], plan: dict[str, t.Any] | None) -> bool:
    """Whether the locks of dpkg and apt matter: a mistake in the options is told at once."""
    return any(one.code == "broken_packages" for one in problems) or (
        plan is not None and bool(plan["packages"] or plan["packages_remove"])
    )


def locked(holder: str, seconds: int, problems: list[Problem]) -> list[Problem]:
    """Another program is at work: that packages are not in order may be its doing."""
    text = (
        f"expected the locks of dpkg and apt to be free within {seconds} s, found {holder}; wait until it has ended (apt-daily and "
        "cloud-init run after a boot), or set a longer gpu_driver_lock_timeout_s; never delete a lock."
    )
    return [Problem("locked", text), *(problem for problem in problems if problem.code != "broken_packages")]


def look_ahead(host: Host, facts: HostFacts, wanted: Wanted, inventory: dict[str, t.Any], result: dict[str, t.Any]) -> list[Problem]:
    """Decide, and put the plan into the result; problems."""
    params = host.module.params
    record = result["record"]
    if params["state"] == "absent":
        gone = _driver_state.removable(record, facts) if record else {}
        plan = _driver_plan.removal(gone, facts)
        plan["reason"] = plan["reason"] if record else "this role put no driver here"
        plan["mode"] = record.get("mode", "none") if plan["steps"] else "none"
        plan["manager"] = "dnf" if uses_dnf(facts) else "apt"
        add_power_back(host, record, (None, None), inventory, plan)
        problems = []
        if plan["packages_remove"]:
            dnf = uses_dnf(facts) and not host.root
            change = DnfView(host, facts).simulate({**plan, "state": "absent"}, "") if dnf else View(host).simulate({**plan, "pin": None})
            problems = _driver_outcome.transaction_problems(change, [], None, plan["packages_remove"]) if change else []
        result.update(plan=None if problems else plan, mode=plan["mode"], steps=plan["steps"])
        return problems
    decider = Decider(host, facts, wanted, inventory)
    # Power limits are asked for of a host's own driver, wherever it comes from.
    powered = not inventory["container"] and (params["power_limit_w"] is not None or params["clocks_mhz"] is not None)
    ours = bool(record) or powered
    decision = _driver_state.leave(wanted, facts, inventory, ours)
    if decision is None:
        decision = _driver_state.idle(decider.run(), wanted, inventory, ours)
    problems = [decider.with_refusals(problem) for problem in decision.problems]
    plan = decision.plan or {}
    problems += _driver_state.power_problems(inventory, params["power_limit_w"], params["clocks_mhz"])
    # With a plan only one that is run: a driver that is there already needs no file.
    if wanted.runfile and (not plan or plan["runfile"]) and not _driver_facts.is_url(wanted.runfile):
        problems += runfile_problems(host, wanted.runfile, wanted.runfile_sha256)
    # Without a plan, a container whose host's module is loaded was to have its userland.
    problems += devices_before(host, inventory, plan["mode"] if plan else "userland" if inventory["driver_version"] else "none")
    if plan:
        problems += not_yet(decider, plan) + enrolment_problems(host, plan["mok"])
        problems += simulated(decider, facts, wanted, plan) if not problems else []
    result["asked"] = list(decider.known.asked)
    if not problems and plan:
        if plan["mode"] == "kernel":
            add_power_back(host, record, (params["power_limit_w"], params["clocks_mhz"]), inventory, plan)
        result.update(
            plan=plan,
            mode=plan["mode"],
            notes=plan["notes"] + decider.notes + decider.refusals() + decider.view.warnings,
            steps=plan["steps"],
            key=decider.key,
        )
        result["brings"] = _driver_state.brings(plan)
        result["offered"] = decider.toolkit(params["sglang_releases"]) if plan["repository"] else {}
        if plan["repository"] and not decider.key and plan["repository"]["present"]:
            plan["repository"] = None
    return problems


def add_power_back(
    host: Host, record: dict[str, t.Any], asked: tuple[int | None, list[int] | None], inventory: dict[str, t.Any], plan: dict[str, t.Any]
) -> None:
    """Let the plan take back limits of power and clocks that an earlier run has set. All units go with a removal, this one among them."""
    if _driver_state.POWER_UNIT not in record.get("units", ()):
        return
    back = _driver_state.power_back(host.read(f"/etc/systemd/system/{_driver_state.POWER_UNIT}"), *asked, inventory)
    if back is None:
        return
    absent = host.module.params["state"] == "absent"
    plan["power_back"] = {**back, "unit_goes": back["unit_goes"] and not absent}
    texts = [f"remove {_driver_state.POWER_UNIT}"] if plan["power_back"]["unit_goes"] else []
    texts += [setting["text"] for setting in back["settings"]]
    plan["steps"] = [*({"step": "power_back", "text": text} for text in texts), *plan["steps"]]


def not_yet(decider: Decider, plan: dict[str, t.Any]) -> list[Problem]:
    """What this role cannot carry out yet, said before anything is touched."""
    if decider.dnf and plan["mok"]:
        text = (
            f"expected gpu_driver_secure_boot: stop with dnf, found mok, which this role prepares with apt only; run "
            f"{', then '.join(plan['mok']['commands'])}, then {'; '.join(plan['mok']['console'])}."
        )
        return [Problem("mok_with_dnf", text)]
    return []


def enrolment_problems(host: Host, mok: dict[str, t.Any] | None) -> list[Problem]:
    """The firmware asks for root's password at the console, so there must be one: images for clouds have none."""
    match = re.search(r"^root:([^:]*):", host.read("/etc/shadow"), re.MULTILINE)
    if mok is None or match is None or match[1].startswith("$"):
        return []
    text = "expected that root has a password, which the firmware asks for at the console, found none; give it one (passwd root) first."
    return [Problem("no_root_password", text)]


def runfile_problems(host: Host, path: str, sha256: str | None) -> list[Problem]:
    """A .run file on the host must be there, and be the one that is meant."""
    if not os.path.isfile(host.root + path):
        text = f"expected the .run file {path} on the host, found none; copy it there, or give its URL."
        return [Problem("runfile_not_found", text)]
    digest = host.module.sha256(host.root + path)
    if sha256 and digest != sha256:
        text = f"expected {path} with the SHA-256 {sha256}, found {digest}; copy it again."
        return [Problem("runfile_checksum", text)]
    return []


def simulated(decider: Decider, facts: HostFacts, wanted: Wanted, plan: dict[str, t.Any]) -> list[Problem]:
    """What apt would do that nobody asked for."""
    if not plan["packages"] and not plan["packages_remove"]:
        return []
    if decider.dnf:
        change = decider.dnf_view.simulate({**plan, "state": "present"}, decider.key) if decider.dnf_view else None
    else:
        change = decider.view.simulate(plan)
    if change is None:
        return []
    if decider.dnf and change.error:
        return [Problem("dnf_refuses", f"expected a transaction that dnf can make, found: {change.error}; look at dnf install --assumeno.")]
    version = plan["version"] if plan["source"] != "runfile" else None
    return _driver_outcome.transaction_problems(change, facts.packages, version, plan["packages_remove"], wanted.allow_downgrade)


if __name__ == "__main__":
    main()
