# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Which driver a host gets and how, decided before anything is touched: wishes, facts and offers in, a plan or every problem at once out.

Nothing here looks at a host. A plan is plain data (PLAN); its steps say in order what a run does, so that a check run tells all.
Where a repository has to be added first, only branches are known (version is null), unless its index could be read beforehand
(_driver_packages.index); then the decision is made again once the repository is there.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import typing as t
import urllib.parse

from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_dnf, _driver_modes
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_packages as pkg
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_sources as src
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_facts import (
    HostFacts,
    Inventory,
    Offers,
    Problem,
    Wanted,
    is_url,
    option_problems,
)
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_limits import (
    Limits,
    answers,
    guests_of,
    limits,
    mode_of,
    nothing_to_drive,
    own_gpus,
)
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_outcome import reboot_allowed, reboot_needed

NAME = "firstlight-gpu-driver"
HEADING = "Written by the role firstlight.sglang.gpu_driver"
PIN_PATH = f"/etc/apt/preferences.d/{NAME}.pref"
UNATTENDED_PATH = f"/etc/apt/apt.conf.d/60{NAME}"
REPOSITORY_PATH = f"/etc/apt/sources.list.d/{NAME}.sources"
COMPONENTS_PATH = f"/etc/apt/sources.list.d/{NAME}-components.sources"
YUM_PATH = f"/etc/yum.repos.d/{NAME}.repo"
KEY_PATH = f"/etc/apt/keyrings/{NAME}.asc"
RPM_KEY_PATH = f"/etc/pki/rpm-gpg/RPM-GPG-KEY-{NAME}"
MODPROBE_PATH = f"/etc/modprobe.d/{NAME}.conf"
DOWNLOADS = "/var/cache/firstlight"

# An empty plan; every plan has all of these. Plain data: strings, numbers, booleans, null, lists and dictionaries.
PLAN: dict[str, t.Any] = {
    "manager": "apt",  # or dnf
    "mode": "none",  # kernel | userland | none: nothing to do
    "reason": "",  # why there is nothing to do, or not all of it yet
    "source": None,  # distribution | nvidia | runfile; null: a driver of unknown origin that is good enough stays
    "branch": None,
    "version": None,  # null: the newest of the branch, once the repository can be read
    "flavour": None,  # open | proprietary, in kernel mode
    "modules": None,  # dkms | signed | runfile, in kernel mode: who makes the module
    "kernels": [],  # those that must have the module afterwards
    # {kind, url, suites, components, path, text, key: {url, path, fingerprint}, present: another file that has it already, or null}
    "repository": None,
    "components": None,  # components of the distribution that are missing: {components, path, text}
    "stream": "",  # of dnf's module nvidia-driver
    "packages": [],  # to install in one transaction, as name or name=version, without recommended packages
    "packages_remove": [],  # in the same transaction (name-)
    "set": {},  # package -> full version of what has the driver's version, where it is known
    "pin": None,  # {path, text}
    "files": [],  # {path, text, why}; text null: to be removed
    "initramfs": False,  # to be rebuilt
    "runfile": None,  # {url: null where it is on the host already, path: where it is then, sha256, version, arguments}
    "mok": None,  # {certificate, commands, console}: the last are for a person
    "fabric_manager": None,  # {package, version}
    "persistence": False,
    # {unit_goes, settings: [{argv, text}]}: limits of power and clocks that this role has set and that nobody asks for any more
    "power_back": None,
    "left_alone": [],  # GPUs that are handed to guests
    "reboot_required": False,
    "reboot_why": "",
    "reboot_allowed": False,
    "reboot_allowed_why": "",  # why not
    "notes": [],
    "steps": [],  # {step, text}
}


class Decision(t.NamedTuple):
    """Either a plan or problems, never both."""

    plan: dict[str, t.Any] | None
    problems: list[Problem]


def _plan(**values: t.Any) -> dict[str, t.Any]:
    return {**copy.deepcopy(PLAN), **values}


# The decision


class _Installed(t.NamedTuple):
    """The driver that is there as packages: its newest version, whether all of the set has it, and, where all that makes up a driver
    is there, what it is."""

    version: str | None
    whole: bool
    driver: _Candidate | None


class _Candidate(t.NamedTuple):
    """A driver that can be had, or is there. version: None while only the branch is known. full: the versions of its packages."""

    source: str
    branch: int
    version: str | None
    flavour: str | None
    modules: str | None
    full: dict[str, str]


@dataclasses.dataclass(frozen=True)
class _Case:
    """Everything that the choice starts from. exact: the version to have, if any."""

    wanted: Wanted
    host: HostFacts
    inventory: Inventory
    known: Offers
    where: src.Platform
    mode: str
    limits: Limits
    exact: str | None

    @property
    def kernel(self) -> bool:
        return self.mode == "kernel"

    @property
    def dnf(self) -> bool:
        return self.where.distribution == "rhel"

    @property
    def secure_boot(self) -> bool:
        """Whether the kernel takes signed modules only, and DKMS has no key that it would accept (case C16)."""
        return self.kernel and self.inventory["secure_boot"] == "enabled" and not self.host.mok_enrolled

    def names(self, source: str, flavour: str | None, branch: int) -> src.Names | None:
        return src.names(self.where, source, flavour or "proprietary", branch, self.host.kernel)

    def required(self, names: src.Names, modules: str | None) -> tuple[str, ...]:
        """The packages that make up a driver, without daemons."""
        module = () if modules is None else names.signed if modules == "signed" else names.module
        return (*module, *names.userland)


def decide(wanted: Wanted, host: HostFacts, inventory: Inventory, known: Offers) -> Decision:
    """The plan for a host, or every problem at once.

    inventory: the result of gpu_info; its driver_version_found says what was found where another file should tell the version.
    known: _driver_facts.offers().
    """
    problems = option_problems(wanted)
    nothing = nothing_to_drive(inventory, wanted.mode)
    if nothing:
        problems += [nothing[1]] if wanted.required else []
        plan = _plan(reason=nothing[0], left_alone=guests_of(inventory))
        return Decision(None, problems) if problems else Decision(plan, [])
    mode, found = mode_of(wanted, inventory)
    problems += found + _broken_problems(host)
    fit, found = limits(wanted, inventory, mode)
    problems += found
    exact, found = _exact(wanted, inventory, mode, fit) if not problems else (None, [])
    problems += found
    where = src.platform(host.distribution, host.version, host.machine)
    if where is None:
        text = f"expected {src.PLATFORM_WORDS}, found {host.distribution} {host.version} on {host.machine}; leave the role off this host."
        problems.append(Problem("unknown_platform", text))
    machine = src.runfile_machine(wanted.runfile or "")
    if where is not None and machine not in (None, where.machine):
        text = f"expected a .run file for {where.machine}, found one for {machine}; change gpu_driver_runfile."
        problems.append(Problem("runfile_machine", text))
    if problems or where is None:
        return Decision(None, problems)
    case = _Case(wanted, host, inventory, known, where, mode, fit, exact)
    installed = _installed(case)
    foreign = _foreign(case, installed)
    if foreign is not None:
        return foreign
    choice = _kept(case, installed) or _choice(case, installed)
    return Decision(None, [choice]) if isinstance(choice, Problem) else _complete(case, choice, installed)


def _broken_problems(host: HostFacts) -> list[Problem]:
    """dpkg is in no state to install anything (case C13)."""
    broken = pkg.broken(host.packages)
    if not broken:
        return []
    states = "; ".join(f"{one.name} is {one.state}" for one in broken[:5])
    cures = " and then ".join(dict.fromkeys(one.cure for one in broken))
    return [Problem("broken_packages", f"expected dpkg in order, found that {states}; run {cures}.")]


def _exact(wanted: Wanted, inventory: Inventory, mode: str, limits: Limits) -> tuple[str | None, list[Problem]]:
    """The exact version to have, if any: in userland mode that of the loaded module (case C22)."""
    if mode == "kernel":
        branch = src.branch_of(wanted.version or "") or wanted.branch
        if branch and not limits.fit(branch, wanted.version):
            text = f"expected {limits.words()}, found {wanted.version or f'branch {branch}'} asked for; change it, or leave it out."
            return None, [Problem("does_not_fit", text)]
        return wanted.version, []
    place = "the container's host" if inventory["container"] else "this host"
    loaded = inventory["driver_version"]
    if loaded is None:
        found = inventory.get("driver_version_found", "no /proc/driver/nvidia/version")
        text = f"expected NVIDIA's module loaded on {place}, found {found}; install and load it there first."
        return None, [Problem("no_module_on_host", text)]
    if wanted.version not in (None, loaded) or wanted.branch not in (None, src.branch_of(loaded)):
        text = (
            f"expected the version of the loaded module in userland mode, which is {loaded}, found {wanted.version or wanted.branch} asked "
            f"for; leave it out, or change the driver of {place}."
        )
        return None, [Problem("version_in_userland_mode", text)]
    if not limits.fit(src.branch_of(loaded) or 0, loaded):
        return None, [
            Problem("host_driver_too_old", f"expected {limits.words()} on {place}, found {loaded}; upgrade the driver there first.")
        ]
    return loaded, []


# What is there


def _installed(case: _Case) -> _Installed:
    host = case.host
    there = {package.name: package.version for package in host.packages if package.installed}
    versions = pkg.set_versions(host.packages)
    version = next(iter(versions), None)
    branch = src.branch_of(version or "")
    drivers: list[tuple[bool, _Candidate]] = []
    for source in ("distribution", "nvidia") if branch else ():
        for flavour in src.FLAVOURS if case.kernel else (None,):
            names = case.names(source, flavour, branch or 0)
            for modules in ("signed", "dkms") if case.kernel else (None,):
                wanted = case.required(names, modules) if names and (modules != "signed" or names.signed) else ()
                if wanted and all(name in there for name in wanted):
                    full = {name: there[name] for name in wanted if pkg.in_set(name)}
                    offered = all(one in case.known.of(source, name) for name, one in full.items())
                    drivers.append((offered, _Candidate(source, branch or 0, version, flavour, modules, full)))
    # Both sources have packages of the same names: the one that offers these very versions is where they come from.
    best = next((one for offered, one in drivers if offered), drivers[0][1] if drivers else None)
    return _Installed(version, len(versions) <= 1, best)


def _foreign(case: _Case, installed: _Installed) -> Decision | None:
    """A driver that no package brought: it stays where it is good enough, and is in the way of packages else."""
    loaded = case.inventory["driver_version"]
    if installed.version is not None or not (case.host.nvidia_installer or loaded):
        return None
    wanted = case.wanted
    file = src.runfile_version(wanted.runfile or "")
    if not case.kernel:
        return _foreign_userland(case, file)
    version, flavour = loaded, case.inventory["driver_flavour"]
    if case.host.nvidia_installer and case.host.module_version:  # what is on disk may still wait for a reboot
        version, flavour = case.host.module_version, case.host.module_flavour
    branch = src.branch_of(version or "")
    asked = case.exact in (None, version) and wanted.branch in (None, branch) and file in (None, version) and not wanted.upgrade
    fits = branch is not None and case.limits.fit(branch, version) and flavour in case.limits.flavours
    if asked and fits and wanted.source in ("auto", "runfile"):
        source = "runfile" if case.host.nvidia_installer else None
        return _finish(case, _plan(source=source, branch=branch, version=version, flavour=flavour))
    if case.host.nvidia_installer and not wanted.runfile:
        text = (
            f"expected no driver beside the packages, found one of a .run file ({version or 'not loaded'}); run nvidia-uninstall first, or "
            "give gpu_driver_runfile."
        )
        return Decision(None, [Problem("driver_of_runfile", text)])
    return None


def _foreign_userland(case: _Case, file: str | None) -> Decision | None:
    """A userland of a .run file, or one that the container's host binds in. Packages beside it would break it. file: version of the .run
    file that is asked for."""
    library = case.inventory["driver_userland_version"]
    there = answers(case.inventory) or library == case.exact
    if there and file in (None, case.exact) and case.wanted.source in ("auto", "runfile"):
        reason = f"the userland {case.exact} is there and is the module's"
        return Decision(_plan(reason=reason, branch=src.branch_of(case.exact or ""), version=case.exact), [])
    if case.wanted.runfile or not (there or library or case.host.nvidia_installer):
        return None
    text = (
        f"expected no userland beside the packages, found {library or 'one'} that no package brought; run nvidia-uninstall if a .run file "
        f"brought it, or stop giving it to the container from outside, or give gpu_driver_runfile (of {case.exact})."
    )
    return Decision(None, [Problem("userland_without_package", text)])


def _kept(case: _Case, installed: _Installed) -> _Candidate | None:
    """The installed driver, where it is whole and all that is asked for: a second run changes nothing."""
    driver, wanted = installed.driver, case.wanted
    if driver is None or not installed.whole or wanted.runfile or (wanted.upgrade and not case.exact):
        return None
    right = (
        case.exact in (None, driver.version)
        and wanted.branch in (None, driver.branch)
        and wanted.source in ("auto", driver.source)
        and (not case.kernel or driver.flavour in case.limits.flavours)
        and case.limits.fit(driver.branch, driver.version)
    )
    return driver if right else None


# What can be had


def _candidates(case: _Case, source: str, flavour: str | None) -> list[_Candidate]:
    """What a source has of one flavour: versions that every package of the set has, or branches while its index is not known."""
    known = src.known_branches(case.where, source)
    asked = source in case.known.asked
    offered = case.known.versions.get(source, {})
    seen = {src.branch_of(pkg.upstream(full) or "") for versions in offered.values() for full in versions} if asked else set()
    found = []
    for branch in sorted({branch for branch in (*known, *seen) if branch}, reverse=True):
        names = case.names(source, flavour, branch)
        if names is None or not (case.kernel or names.userland_alone):
            continue
        signed = bool(names.signed) and (not asked or all(case.known.of(source, name) for name in names.signed))
        modules = ("signed" if signed else "dkms") if case.kernel else None
        if not asked:
            found.append(_Candidate(source, branch, None, flavour, modules, {}))
            continue
        wanted = [name for name in case.required(names, modules) if pkg.in_set(name)]
        versions = {name: _by_upstream(case.known.of(source, name), branch) for name in wanted}
        for version in src.newest(set.intersection(*(set(one) for one in versions.values()))):
            found.append(_Candidate(source, branch, version, flavour, modules, {name: versions[name][version] for name in wanted}))
    return found


def _by_upstream(versions: t.Iterable[str], branch: int) -> dict[str, str]:
    """Upstream version -> the full version that apt prefers, of those of one branch."""
    found: dict[str, str] = {}
    for full in versions:
        version = pkg.upstream(full)
        if version and src.branch_of(version) == branch:
            found.setdefault(version, full)
    return found


def _preferred_flavour(branch: int, flavours: t.Sequence[str]) -> str:
    first = "open" if branch >= src.OPEN_BY_DEFAULT_FROM else "proprietary"
    return first if first in flavours else flavours[0]


def _offered(case: _Case, source: str, installed: _Installed) -> list[_Candidate]:
    """Candidates of a source, the newest first, each with the flavour to take: the installed one where it fits, else NVIDIA's default."""
    if source in case.known.refused:
        return []
    if not case.kernel:
        return _candidates(case, source, None)
    flavours: t.Sequence[str] = case.limits.flavours
    if installed.driver and installed.driver.flavour in flavours:
        flavours = [flavour for flavour in flavours if flavour == installed.driver.flavour]
    best: dict[tuple[int, str | None], _Candidate] = {}
    for flavour in flavours:
        for one in _candidates(case, source, flavour):
            if best.setdefault((one.branch, one.version), one) != one and flavour == _preferred_flavour(one.branch, flavours):
                best[one.branch, one.version] = one
    return sorted(best.values(), key=lambda one: (one.branch, src.parse_version(one.version or "") or ()), reverse=True)


def _pick(case: _Case, candidates: t.Sequence[_Candidate], installed: _Installed) -> _Candidate | None:
    """The one to take: the exact version, the newest of the branch asked for, else the newest of the installed branch, of the long-term
    one, or of the newest branch that is known."""
    good = [one for one in candidates if case.limits.fit(one.branch, one.version)]
    if case.exact:
        right = [one for one in good if one.version in (case.exact, None) and one.branch == src.branch_of(case.exact)]
        return next((one._replace(version=case.exact) for one in right), None)
    there = {one.branch for one in good}
    order = [src.branch_of(installed.version or ""), src.PREFERRED_BRANCH, *sorted(src.BRANCH_CUDA, reverse=True), *sorted(there)]
    branch = case.wanted.branch or next((branch for branch in order if branch in there), None)
    return next((one for one in good if one.branch == branch), None)


WORDS = {"distribution": "the distribution's packages", "nvidia": "NVIDIA's repository", "runfile": "a .run file"}


def _choice(case: _Case, installed: _Installed) -> _Candidate | Problem:
    """Source and version, where what is there does not do."""
    wanted = case.wanted
    if wanted.runfile:
        return _runfile_choice(case, wanted.runfile)
    asked = [wanted.source] if wanted.source != "auto" else ["nvidia"] if wanted.base_url else ["distribution", "nvidia"]
    refused = case.known.refused.get(asked[0]) if len(asked) == 1 else None
    if asked == ["nvidia"] and src.nvidia_repository(case.where) is None:
        refused = "that it publishes none"
    if refused:
        text = f"expected {WORDS[asked[0]]} for {case.where.text()}, found {refused}; take another source."
        return Problem("repository_missing", text, refusals_told=True)
    found = {source: _offered(case, source, installed) for source in ("distribution", "nvidia")}
    picks = {source: pick for source in found for pick in [_pick(case, found[source], installed)] if pick}
    good = [picks[source] for source in asked if source in picks]
    if not good:
        return _no_offer(case, found, asked, [source for source in picks if source not in asked])
    here = installed.driver.source if installed.driver else None
    # Modules that the kernel takes, before the source that is in use, before an exact version that is certain, before the order above.
    return min(
        good,
        key=lambda one: (
            case.secure_boot and one.modules != "signed",
            here is not None and one.source != here,
            case.exact is not None and one.source not in case.known.asked,
        ),
    )


def _runfile_choice(case: _Case, runfile: str) -> _Candidate | Problem:
    version = src.runfile_version(runfile) or ""
    branch = src.branch_of(version) or 0
    if case.exact not in (None, version) or not case.limits.fit(branch, version):
        need = f"exactly {case.exact}" if case.exact else case.limits.words()
        return Problem("runfile_does_not_fit", f"expected a .run file of {need}, found {version}; give another one.")
    if not case.kernel:
        return _Candidate("runfile", branch, version, None, None, {})
    return _Candidate("runfile", branch, version, _preferred_flavour(branch, case.limits.flavours), "runfile", {})


def _list(candidates: t.Sequence[_Candidate], limit: int) -> str:
    words = list(dict.fromkeys(one.version or f"branch {one.branch}" for one in candidates))
    more = [f"{len(words) - limit} more"] if len(words) > limit else []
    unread = " (as published; not read)" if words and not any(one.version for one in candidates) else ""
    return (", ".join(words[:limit] + more) or "nothing that fits the platform") + unread


def _no_offer(case: _Case, found: t.Mapping[str, t.Sequence[_Candidate]], asked: t.Sequence[str], able: t.Sequence[str]) -> Problem:
    """Nothing fits: what was asked for, what the sources have, and which ones could."""
    refused = {source: case.known.refused[source].rstrip(".") for source in asked if source in case.known.refused}
    have = "; ".join(
        f"{refused[source]}, so that {WORDS[source]} could not be read"
        if source in refused
        else f"in {WORDS[source]}: {_list(found[source], 6)}"
        for source in sorted(asked, key=lambda one: one not in refused)
    )
    mend = "mend that first (network, proxy, gpu_driver_base_url), or " if refused else ""
    fitting = {source: [one for one in found[source] if case.limits.fit(one.branch, one.version)] for source in able}
    others = [f"source {source} ({_list(fitting[source], 3)})" for source in able]
    if not case.kernel:
        place = "the container's host" if case.inventory["container"] else "this host"
        text = (
            f"expected the userland {case.exact}, exactly the version of the module on {place}, found {have}; "
            f"{mend}{f'take {others[0]}, ' if others else ''}give gpu_driver_runfile (NVIDIA-Linux-{case.where.machine}-{case.exact}.run, "
            f"installed without its kernel module), or install a version that one of these has on {place}."
        )
        return Problem("no_matching_userland", text, refusals_told=bool(refused))
    branch = case.wanted.branch
    what = f"driver {case.exact}" if case.exact else f"branch {branch}" if branch else case.limits.words()
    flavour = f" with the {case.limits.flavours[0]} module" if len(case.limits.flavours) == 1 else ""
    others.append("a .run file (gpu_driver_runfile)")
    code = "not_offered" if case.exact or branch else "source_too_old"
    text = f"expected {what}{flavour}, found {have}; {mend}take {' or '.join(others)}."
    return Problem(code, text, refusals_told=bool(refused))


# The plan around the choice


def _complete(case: _Case, choice: _Candidate, installed: _Installed) -> Decision:
    """The rest of the plan, or what is in its way."""
    problems = _change_problems(case, choice, installed)
    dkms = choice.modules in ("dkms", "runfile")
    works = choice.version is not None and case.inventory["driver_version"] == choice.version
    if case.secure_boot and dkms and not works:
        if case.wanted.secure_boot == "mok" and not problems:
            return Decision(_mok_plan(case), [])
        problems.append(_secure_boot_problem(case, choice))
    packages, found = _headers(case) if dkms else ([], [])
    problems += found + (_dkms_problems(case) if dkms else [])
    names = case.names(choice.source, choice.flavour, choice.branch) if choice.source != "runfile" else None
    manager, found = _fabric_manager(case, choice, names)
    problems += found
    if problems:
        return Decision(None, problems)
    plan = _plan(
        source=choice.source,
        branch=choice.branch,
        version=choice.version,
        flavour=choice.flavour,
        modules=choice.modules,
        fabric_manager=manager,
    )
    if names is None:
        tools = ("dkms", "gcc", "make") if case.kernel else ()
        plan["packages"] = packages + [name for name in tools if case.host.installed(name) is None]
        plan["packages_remove"] = sorted({one.name for one in case.host.packages if one.installed and pkg.in_set(one.name, one.source)})
        arguments = src.runfile_arguments(case.mode, choice.flavour, choice.version or "")
        plan["runfile"] = {**_runfile_place(case.wanted.runfile or ""), "sha256": case.wanted.runfile_sha256}
        plan["runfile"].update(version=choice.version, arguments=arguments)
        return _finish(case, plan)
    change = _transaction(case, choice, names, manager)
    plan.update(_sources(case, choice), stream=names.stream, set=change.full, pin=_pin(case, choice, change.full))
    plan.update(packages=packages + change.packages, packages_remove=change.remove)
    other = plan["repository"]["present"] if case.dnf and case.exact and plan["repository"] else None
    if other:
        text = (
            f"expected NVIDIA's repository only where this role writes it, which holds the exact version, found it in {other} too; remove "
            "that file, or ask for a branch."
        )
        return Decision(None, [Problem("repository_twice", text)])
    return _finish(case, plan)


def _runfile_place(file: str) -> dict[str, str | None]:
    """Where a .run file comes from, if it has to be fetched, and where it is on the host then."""
    if not is_url(file):
        return {"url": None, "path": file}
    return {"url": file, "path": f"{DOWNLOADS}/{urllib.parse.urlsplit(file).path.rpartition('/')[2]}"}


def _change_problems(case: _Case, choice: _Candidate, installed: _Installed) -> list[Problem]:
    problems = []
    there = installed.version
    older = choice.version and there and (src.parse_version(choice.version) or ()) < (src.parse_version(there) or ())
    if (older or (there and choice.version is None and choice.branch < (src.branch_of(there) or 0))) and not case.wanted.allow_downgrade:
        target = choice.version or f"branch {choice.branch}"
        text = f"expected no driver older than the installed {there}, found {target} to be had; set gpu_driver_allow_downgrade: true."
        problems.append(Problem("downgrade", text))
    held = pkg.held(case.host.packages)
    if held and choice.version != there:
        text = f"expected packages that may change, found {', '.join(held)} on hold; look why, and release them with apt-mark unhold."
        problems.append(Problem("held", text))
    trusted = [entry.path for entry in case.host.sources if entry.trusted and any(pkg.source_of(uri) == "nvidia" for uri in entry.uris)]
    if trusted and choice.source == "nvidia":
        text = f"expected NVIDIA's repository with a signature that is looked at, found trusted=yes in {', '.join(trusted)}; take it out."
        problems.append(Problem("trusted_repository", text))
    return problems


# Secure Boot (case C16)

_CERTIFICATES = {"debian": "/var/lib/dkms/mok.pub", "ubuntu": "/var/lib/shim-signed/mok/MOK.der", "rhel": "/var/lib/dkms/mok.pub"}


def _mok(where: src.Platform) -> dict[str, t.Any]:
    """Enrolment of the key that DKMS signs modules with: what can be prepared, and what a person does at the console."""
    certificate = _CERTIFICATES[where.distribution]
    return {
        "certificate": certificate,
        "commands": [
            "update-secureboot-policy --new-key" if where.distribution == "ubuntu" else "dkms generate_mok",
            f"mokutil --import {certificate} --root-pw",
        ],
        "console": [
            "reboot with a keyboard and a screen, or the management board's console, at hand",
            'press a key at the blue screen within ten seconds, and choose "Enroll MOK", "Continue", "Yes"',
            "type root's password, and reboot",
            "run the role again",
        ],
    }


def _secure_boot_problem(case: _Case, choice: _Candidate) -> Problem:
    mok = _mok(case.where)
    signed = case.where.distribution == "ubuntu" and choice.source != "distribution"
    text = (
        "expected modules that the kernel takes, found that Secure Boot is on and the key that DKMS signs with is not enrolled; "
        f"{'take source distribution, whose modules are signed, or ' if signed else ''}run {', then '.join(mok['commands'])}; then "
        f"{'; '.join(mok['console'])} (gpu_driver_secure_boot: mok prepares this)."
    )
    return Problem("secure_boot", text)


def _mok_plan(case: _Case) -> dict[str, t.Any]:
    """Only the enrolment: nothing of the driver is touched, nouveau included, before the firmware knows the key."""
    mok = _mok(case.where)
    packages = [name for name in ("dkms", "mokutil") if case.host.installed(name) is None]
    steps = [_step("packages", f"install {', '.join(packages)}")] if packages else []
    steps += [_step("mok", f"run {command}") for command in mok["commands"]]
    steps += [_step("console", text) for text in mok["console"]]
    return _plan(
        mode=case.mode,
        reason="the key that DKMS signs with has to be enrolled before the driver is installed",
        packages=packages,
        mok=mok,
        left_alone=guests_of(case.inventory),
        reboot_required=True,
        reboot_why="the firmware asks for the new key while it boots",
        reboot_allowed_why="a person has to be at the console",
        steps=steps,
    )


# Kernels and their headers (cases C13, C14)


def _headers(case: _Case) -> tuple[list[str], list[Problem]]:
    """Packages with the headers that DKMS needs, for the running kernel and the next one."""
    host = case.host
    there = [package.name for package in host.packages if package.installed]
    wanted: list[str] = []
    problems = []
    for kernel in host.kernels():
        if kernel in host.headers:
            continue
        running = src.headers(case.where, kernel, there).running
        # Without any package of the distribution, nobody has asked apt.
        seen = "distribution" in case.known.versions
        name = next((name for name in running if case.known.any(name)), None) if seen else running[0]
        if name:
            wanted.append(name)
            continue
        others = [one for one in host.headers if one != kernel]
        have = f"; there are those of {', '.join(others)}" if others else ""
        newer = host.kernel_next if host.kernel_next in others else None
        cure = f"reboot into {newer} first" if newer else "install a kernel that the package sources have headers for, and reboot first"
        text = f"expected headers of the kernel {kernel} for DKMS, found {running[0]} in no package source{have}; {cure}."
        problems.append(Problem("headers_missing", text))
    following = src.headers(case.where, host.kernel_next or host.kernel, there).following
    if not any(name in there for name in following):
        wanted += [name for name in (_following(case, name) for name in following) if name][:1]
    return wanted, problems


def _dkms_problems(case: _Case) -> list[Problem]:
    """NVIDIA's packages for dnf need DKMS, which is in EPEL only."""
    if not case.dnf or "nvidia" not in case.known.asked or case.host.installed("dkms") or case.known.any("dkms"):
        return []
    text = (
        "expected dkms in a package source, found none; add EPEL (dnf install epel-release on Rocky and Alma; on RHEL the package of that "
        "name from EPEL's own site), with CodeReady Builder enabled."
    )
    return [Problem("dkms_missing", text)]


def _following(case: _Case, name: str) -> str | None:
    """The package that brings headers with each new kernel, in the version of the one that brings the kernels.

    A newer one would bring a new kernel today: apt upgrades all packages of a source together (APT::Get::Upgrade-By-Source-Package).
    """
    if case.dnf:
        return f"{name}-{case.host.kernel}" if case.known.any(name) else None
    image = case.host.installed(name.replace("headers", "kernel" if name.startswith("proxmox") else "image"))
    versions = case.known.any(name)
    if not versions or (image is not None and image not in versions):
        return None
    return name if image is None else f"{name}={image}"


# Packages


class _Transaction(t.NamedTuple):
    """One call of apt: what to install or change (name or name=version), what to remove, and the versions that are known."""

    packages: list[str]
    remove: list[str]
    full: dict[str, str]


def _transaction(case: _Case, choice: _Candidate, names: src.Names, manager: t.Mapping[str, t.Any] | None) -> _Transaction:
    """All of the set in one go: what is missing comes, what has another version changes with it, and what the source does not have in
    this version goes, as do modules of another flavour (cases C02, C10). A container has no module at all."""
    wanted = [*case.required(names, choice.modules)]
    wanted += names.persistence if case.kernel and case.wanted.persistence is not False else ()
    wanted += [manager["package"]] if manager else []
    modules = _modules(case, choice) - set(wanted)
    full: dict[str, str] = {}
    changed: list[str] = []
    remove: list[str] = []
    for name in dict.fromkeys(wanted):
        goal, there = _goal(case, choice, name), case.host.installed(name)
        full.update({name: goal} if goal else {})
        if there is None or ((goal or pkg.in_set(name)) and _differs(choice, there)):
            changed.append(name)
    for package in (one for one in case.host.packages if one.installed and one.name not in wanted):
        name = package.name
        other_line = _line(name) != _line(names.userland[0])
        differs = _differs(choice, package.version)
        goal = _goal(case, choice, name) if pkg.of_driver(name) else None
        if name in modules or (pkg.kernel_modules(name) and other_line):
            remove.append(name)
        elif goal and differs:
            full[name] = goal
            changed.append(name)
        elif pkg.in_set(name, package.source) and (differs if _known(case, choice) else other_line):
            remove.append(name)
    # dnf takes a name that is installed for done, whatever its version is.
    packages = [f"{name}={full[name]}" if (case.exact or case.dnf) and name in full else name for name in dict.fromkeys(changed)]
    return _Transaction(packages, sorted(set(remove)), full)


def _known(case: _Case, choice: _Candidate) -> bool:
    """Whether it is known what the source has of this version."""
    return choice.version is not None and choice.source in case.known.asked


def _goal(case: _Case, choice: _Candidate, name: str) -> str | None:
    """The full version of a package that belongs to the choice, where the source has one and it is known."""
    there = case.host.installed(name)
    if there is not None and not _differs(choice, there):
        return there
    own = pkg.bare(name)  # another architecture's package has the same versions
    offered = case.known.of(choice.source, own) if _known(case, choice) else ()
    return choice.full.get(own) or next((full for full in offered if pkg.upstream(full) == choice.version), None)


def _differs(choice: _Candidate, full: str) -> bool:
    """Whether a package's version is another than the choice's; only its branch counts while the version is not known."""
    version = pkg.upstream(full) or ""
    return version != choice.version if choice.version else src.branch_of(version) != choice.branch


def _modules(case: _Case, choice: _Candidate) -> set[str]:
    """Names of every package that builds a module, of any flavour and source."""
    return {
        name
        for source in ("distribution", "nvidia")
        for flavour in src.FLAVOURS
        for branch in {choice.branch, *src.known_branches(case.where, source)}
        for one in [src.names(case.where, source, flavour, branch)]
        for name in (one.module if one else ())
    }


def _line(name: str) -> str:
    """Which of several branches that lie side by side a package's name belongs to: 580 (nvidia-dkms-580-open), tesla-535, or none."""
    match = re.search(r"-(tesla(?:-\d{3})?|\d{3})(?=[-\d:]|$)", name)
    return match[1] if match else ""


def _fabric(inventory: Inventory) -> str:
    """What asks for a fabric manager, in words; empty where nothing does.

    NVSwitches on the bus; or, on a machine that is no guest, GPUs that tell a state of their fabric: not all NVSwitches are PCI devices
    of NVIDIA's. The manager of a guest's GPU runs where the switches are.
    """
    switches, state = len(inventory["nvswitches"]), inventory["fabric_state"]
    if switches:
        return f"{switches} NVSwitches"
    told = state in ("not_started", "in_progress", "completed") and inventory["virtualization"] == "none"
    return f"a fabric that is {state}" if told else ""


def _fabric_manager(case: _Case, choice: _Candidate, names: src.Names | None) -> tuple[dict[str, t.Any] | None, list[Problem]]:
    """The fabric manager of exactly the driver's version, where a fabric asks for it (case C12)."""
    fabric = _fabric(case.inventory)
    wanted = case.wanted.fabric_manager if case.wanted.fabric_manager is not None else bool(fabric)
    if not case.kernel or not wanted:
        return None, []
    if names is None or not names.fabric_manager:
        text = (
            f"expected a fabric manager for {fabric or 'this host'}, found that {WORDS[choice.source]} have none; take source nvidia, or "
            "bring one of exactly the driver's version and set gpu_driver_fabric_manager: false."
        )
        return None, [Problem("no_fabric_manager", text)]
    name = names.fabric_manager[0]
    manager = {"package": name, "version": choice.version}
    if not _known(case, choice) or _goal(case, choice, name):
        return manager, []
    have = ", ".join(src.newest(pkg.upstream(one) or "" for one in case.known.of(choice.source, name))) or "none"
    text = (
        f"expected {name} of exactly the driver's version {choice.version} for {fabric or 'this host'}, found {have}; ask for one of these "
        "as gpu_driver_version."
    )
    return None, [Problem("fabric_manager_version", text)]


# Repositories and files


def _sources(case: _Case, choice: _Candidate) -> dict[str, t.Any]:
    """Repository and components that the choice needs and the host lacks."""
    values: dict[str, t.Any] = {}
    lack = pkg.missing_components(case.host.sources, src.components(case.where, choice.source), case.where.distribution)
    if lack:
        words = list(dict.fromkeys(component for entry in lack for component in entry.components))
        values["components"] = {"components": words, "path": COMPONENTS_PATH, "text": pkg.deb822(lack, HEADING)}
    repository = src.nvidia_repository(case.where)
    if choice.source != "nvidia" or repository is None:
        return values
    url = src.repository_url(repository, case.wanted.base_url)
    debian = repository.kind == "deb"
    entry = pkg.AptSource(REPOSITORY_PATH, ("deb",), (f"{url}/",), ("/",), (), KEY_PATH, False)
    key = {
        "url": case.wanted.key_url or f"{url}/{repository.key.file}",
        "path": KEY_PATH if debian else RPM_KEY_PATH,
        "fingerprint": case.wanted.key_fingerprint or repository.key.fingerprint,
    }
    yum = _driver_dnf.repository(NAME, f"NVIDIA {repository.directory}", url, RPM_KEY_PATH, case.exact, HEADING)
    # NVIDIA's package cuda-keyring brings a file of its own, and apt refuses the same repository with two keys (case C07).
    others = [one.path for one in pkg.entries_for(case.host.sources, url) if one.path not in (REPOSITORY_PATH, YUM_PATH)]
    values["repository"] = {
        "kind": repository.kind,
        "url": url,
        "suites": ["/"] if debian else [],
        "components": [],
        "path": REPOSITORY_PATH if debian else YUM_PATH,
        "text": pkg.deb822([entry], HEADING) if debian else yum,
        "key": key,
        "present": others[0] if others else None,
    }
    return values


def _pin(case: _Case, choice: _Candidate, full: t.Mapping[str, str]) -> dict[str, str] | None:
    """The file that holds the whole set: at the exact version where one is asked for, else in the branch."""
    if case.where.distribution == "rhel":
        return None
    versions = (sorted(set(full.values())) or [f"{case.exact}-*"]) if case.exact else [f"{choice.branch}.*"]
    if choice.source == "nvidia":
        word = case.where.distribution.capitalize()
        others = [f"release o={word}", f"release o={word} Backports"]
    else:
        host = src.NVIDIA_BASE_URL.split("/")[2]
        others = [f"origin {host}"]
        others += [] if any("~bpo" in one for one in full.values()) else ["release a=*-backports"]
    downgrade = case.wanted.allow_downgrade and case.exact is not None
    return {"path": PIN_PATH, "text": pkg.preferences(versions, others, HEADING, downgrade)}


def _modprobe(case: _Case, plan: t.Mapping[str, t.Any]) -> dict[str, str]:
    """nouveau and its successor stay away (case C15)."""
    lines = ["blacklist nouveau", "blacklist nova_core", "options nouveau modeset=0"]
    if plan["flavour"] == "open" and plan["branch"] < src.OPEN_BY_DEFAULT_FROM:
        # nv-reg.h of 580: needed for cards other than data centre ones in older branches; later ones ignore it.
        debian = plan["source"] == "distribution" and case.where.distribution == "debian"
        lines.append(f"options {'nvidia-current-open' if debian else 'nvidia'} NVreg_OpenRmEnableUnsupportedGpus=1")
    return {"path": MODPROBE_PATH, "text": "\n".join([f"# {HEADING}", *lines, ""]), "why": "nouveau must not take the GPUs"}


# The end of every plan


def _finish(case: _Case, plan: dict[str, t.Any]) -> Decision:
    """Files, kernels, reboot, notes and steps."""
    plan["mode"] = case.mode
    plan["manager"] = "dnf" if case.dnf else "apt"
    plan["left_alone"] = guests_of(case.inventory)
    plan["kernels"] = case.host.kernels() if plan["modules"] else []
    plan["persistence"] = case.kernel and case.wanted.persistence is not False
    # Other drivers that have a GPU of this host's own.
    holders = sorted({gpu["kernel_driver"] for gpu in own_gpus(case.inventory)} - {None, "nvidia"}) if case.kernel else []
    if case.kernel:
        plan["files"].append(_modprobe(case, plan))
        plan["initramfs"] = bool(holders or plan["packages"] or plan["runfile"])
        plan["reboot_required"], plan["reboot_why"] = _reboot(case, plan, holders)
    if plan["stream"]:
        stream = _driver_dnf.module(plan["stream"])
        plan["files"].append({"path": _driver_dnf.MODULE_PATH, "text": stream, "why": f"dnf's stream is {plan['stream']}"})
    if plan["pin"]:
        text = pkg.unattended_blacklist(HEADING, kernels=plan["modules"] == "signed")
        plan["files"].append({"path": UNATTENDED_PATH, "text": text, "why": "unattended-upgrades must not change the driver"})
    plan["reboot_allowed"], plan["reboot_allowed_why"] = reboot_allowed(case.wanted, case.host, bool(case.inventory["container"]))
    plan["notes"] = _notes(case, plan)
    plan["steps"] = _steps(case, plan)
    return Decision(plan, [])


def _reboot(case: _Case, plan: t.Mapping[str, t.Any], holders: t.Sequence[str]) -> tuple[bool, str]:
    """As reboot_needed tells it, foretold: a module that was never there is loaded without a reboot where nothing has the GPUs."""
    loaded = case.inventory["driver_version"]
    target = plan["version"]
    if target is None:
        target = loaded if src.branch_of(loaded or "") == plan["branch"] else f"{plan['branch']}.*"
    if loaded is None and case.host.module_version is None:
        target = None
    return reboot_needed(
        loaded=loaded, installed=target, loaded_flavour=case.inventory["driver_flavour"], flavour=plan["flavour"], holders=holders
    )


def _notes(case: _Case, plan: t.Mapping[str, t.Any]) -> list[str]:
    waiting = _driver_modes.pending(case.inventory)
    notes = (
        (plan["left_alone"], f"left alone, since they are handed to guests: {', '.join(plan['left_alone'])}"),
        (len(plan["kernels"]) > 1, f"kernel {case.host.kernel} runs and {case.host.kernel_next} boots next: both get the module"),
        (case.kernel and case.inventory["secure_boot"] is None, "whether Secure Boot is on is not known"),
        (plan["version"] is None, f"the version is the newest of branch {plan['branch']} that the repository has"),
        (plan["source"] is None, "the driver that is loaded was not installed by a package or a .run file, and stays"),
        (waiting, f"waits for a reset or a reboot: {'; '.join(waiting)}"),
    )
    return [text for applies, text in notes if applies]


def _step(step: str, text: str) -> dict[str, str]:
    return {"step": step, "text": text}


def _steps(case: _Case, plan: t.Mapping[str, t.Any]) -> list[dict[str, str]]:
    """What a run does, in order. Files are written where they differ; the rest is left out where it is so already."""
    what = plan["version"] or f"branch {plan['branch']}"
    steps = []
    if plan["components"]:
        steps.append(_step("components", f"add the distribution's components {' '.join(plan['components']['components'])}"))
    repository = plan["repository"]
    if repository and not repository["present"]:
        steps.append(_step("repository", f"add {repository['url']}, signed with {repository['key']['fingerprint']}"))
    if plan["pin"]:
        steps.append(_step("pin", f"hold all of NVIDIA's packages at {case.exact or 'branch ' + str(plan['branch'])}"))
    steps += [_step("file", f"write {file['path']}: {file['why']}") for file in plan["files"]]
    return steps + _change_steps(plan) + _state_steps(case, plan, what)


def _change_steps(plan: t.Mapping[str, t.Any]) -> list[dict[str, str]]:
    steps = []
    changes = bool(plan["packages"] or plan["packages_remove"] or plan["runfile"])
    if plan["stream"] and changes:
        steps.append(_step("stream", f"enable the stream {plan['stream']} of dnf's module nvidia-driver"))
    if plan["packages_remove"]:
        steps.append(_step("remove", f"remove {', '.join(plan['packages_remove'])}"))
    if plan["packages"]:
        steps.append(_step("packages", f"install {', '.join(plan['packages'])}"))
    if plan["runfile"]:
        steps.append(_step("runfile", f"run {plan['runfile']['url'] or plan['runfile']['path']} {' '.join(plan['runfile']['arguments'])}"))
    if plan["kernels"] and changes:
        steps.append(_step("module", f"see that there is a module for kernel {' and '.join(plan['kernels'])}"))
    if plan["initramfs"]:
        steps.append(_step("initramfs", "rebuild the initramfs"))
    return steps


def _state_steps(case: _Case, plan: t.Mapping[str, t.Any], what: str) -> list[dict[str, str]]:
    steps = []
    if plan["reboot_required"]:
        how = "reboot once" if plan["reboot_allowed"] else f"report that a reboot is required ({plan['reboot_allowed_why']})"
        steps.append(_step("reboot", f"{how}: {plan['reboot_why']}"))
    elif case.kernel and case.inventory["driver_version"] is None:
        steps.append(_step("load", "load the modules nvidia and nvidia_uvm"))
    if case.kernel:
        if plan["persistence"]:
            steps.append(_step("persistence", "run the persistence daemon"))
        steps.append(_step("device_nodes", "make /dev/nvidia-uvm now and at each boot"))
    if plan["fabric_manager"]:
        steps.append(_step("fabric_manager", f"run {plan['fabric_manager']['package']} of exactly the driver's version"))
    goal = f"{what} is loaded" if case.kernel else f"the userland {what} opens the devices that the host's module gives"
    return [*steps, _step("verify", f"see that {goal}, and that all of NVIDIA's packages have one version")]


def removal(record: t.Mapping[str, t.Sequence[str]], host: HostFacts) -> dict[str, t.Any]:
    """The plan of state absent: what the role put there and no more.

    record: packages and files, as the role wrote them down when it installed them.
    """
    there = {package.name for package in host.packages if package.status != "n"}
    packages = sorted(name for name in record.get("packages", ()) if name in there)
    files = [{"path": path, "text": None, "why": "the role wrote it"} for path in record.get("files", ())]
    steps = [_step("remove", f"remove {', '.join(packages)}")] if packages else []
    steps += [_step("file", f"remove {file['path']}") for file in files]
    loaded = bool(packages) and host.module_version is not None
    return _plan(
        reason="the driver is removed",
        packages_remove=packages,
        files=files,
        initramfs=bool(packages),
        reboot_required=loaded,
        reboot_why="the module that is loaded stays until then" if loaded else "",
        reboot_allowed_why="a removal does not reboot" if loaded else "",
        steps=steps,
    )
