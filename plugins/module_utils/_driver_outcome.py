# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""A change of the driver before and after it happens: what apt would do, what came of it, and whether a reboot is needed and allowed."""

from __future__ import annotations

import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_packages as pkg
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_system
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_facts import HostFacts, Problem, Wanted


def transaction_problems(
    change: pkg.Simulation,
    packages: t.Sequence[pkg.Package],
    version: str | None,
    remove: t.Sequence[str] = (),
    allow_downgrade: bool = False,
) -> list[Problem]:
    """What apt would do that was not asked for, found before it does it.

    packages: as they are now. version: the driver's, None when only its branch is known. remove: the plan's packages_remove.
    """
    if change.error:
        cause = pkg.apt_error("\n".join(f"E: {line}" for line in change.error.splitlines()))
        told = f"{cause.found}; {cause.action[0].lower()}{cause.action[1:]}" if cause else f"{change.error}; look at apt-get -s install."
        return [Problem("apt_refuses", f"expected a transaction that apt can make, found that {told}")]
    problems = []
    if change.kernels:
        text = (
            f"expected the kernel to stay, found that {', '.join(change.kernels)} would be installed; upgrade the kernel and reboot first."
        )
        problems.append(Problem("kernel_change", text))
    foreign = sorted(name for name in change.removed if not (pkg.of_driver(name) or name in remove))
    if foreign:
        text = f"expected only the driver's packages to be removed, found {', '.join(foreign)} too; look at what they depend on."
        problems.append(Problem("foreign_removal", text))
    if change.held_changed:
        text = f"expected packages on hold to stay, found that {', '.join(change.held_changed)} would change; apt-mark unhold them."
        problems.append(Problem("held", text))
    down = sorted(name for name in change.downgraded if pkg.in_set(name))
    if down and not allow_downgrade:
        text = f"expected no older versions, found {', '.join(down)} downgraded; set gpu_driver_allow_downgrade: true."
        problems.append(Problem("downgrade", text))
    return problems + set_problems(pkg.after(packages, change), version)


def set_problems(packages: t.Sequence[pkg.Package], version: str | None) -> list[Problem]:
    """Whether all of NVIDIA's packages have one version, and the one that was asked for (cases C01 and C12, pitfall 7)."""
    versions = pkg.set_versions(packages)
    if len(versions) > 1:
        found = "; ".join(f"{one}: {', '.join(names)}" for one, names in versions.items())
        text = f"expected one version of all of NVIDIA's packages, found {found}; install all of them in one version."
        return [Problem("mixed_versions", text)]
    if version and versions and version not in versions:
        text = f"expected NVIDIA's packages to be {version}, found {next(iter(versions))}; look at apt-cache policy and at the pin."
        return [Problem("wrong_version", text)]
    return []


def module_problems(
    kernels: t.Sequence[str], paths: t.Iterable[str], builds: t.Sequence[_gpu_system.Build], log: str = ""
) -> list[Problem]:
    """Kernels without a module after the installation, whatever apt said: it ends well where DKMS skips a kernel (cases C13, C14).

    kernels: those that can be booted: the plan's. paths: files below /lib/modules. builds: of dkms status. log: what apt and dkms printed,
    and the make.log that they name.
    """
    files = list(paths)
    problems = []
    for kernel in kernels:
        if _gpu_system.kernel_module(kernel, files, builds).files:
            continue
        told = [finding.text for finding in _gpu_system.log_findings(log) if finding.code.startswith("dkms_")]
        told += pkg.build_log_lines(log)
        built = sorted({build.kernel for build in builds if build.kernel and build.kernel != kernel})
        why = f" ({'; '.join(dict.fromkeys(told))})" if told else ""
        others = f"; DKMS has it for {', '.join(built)}" if built else ""
        headers = not told or any("headers" in line for line in told)
        cure = "install its headers and run dkms autoinstall" if headers else "take a branch that builds for this kernel, or another kernel"
        problems.append(Problem("module_missing", f"expected NVIDIA's module for kernel {kernel}, found none{others}{why}; {cure}."))
    return problems


def fabric_manager_problems(driver: str, fabric_manager: str | None) -> list[Problem]:
    """Whether the fabric manager is exactly the driver's version: else it does not start, and CUDA fails with 802 (case C12).

    driver: of the loaded module. fabric_manager: full or upstream version of its package, None when it is not installed.
    """
    if fabric_manager is None:
        return [Problem("no_fabric_manager", f"expected a fabric manager of {driver}, found none; install exactly this version.")]
    found = pkg.upstream(fabric_manager)
    if found == driver:
        return []
    return [Problem("fabric_manager_version", f"expected a fabric manager of {driver}, found {found or fabric_manager}; install {driver}.")]


def reboot_needed(
    *,
    loaded: str | None,
    installed: str | None,
    loaded_flavour: str | None = None,
    flavour: str | None = None,
    holders: t.Sequence[str] = (),
) -> tuple[bool, str]:
    """Whether only a reboot brings the driver that is, or will be, installed, and why. What is loaded decides, not what changed (case D10).

    loaded, installed: versions of the module in the kernel and on disk. holders: other drivers that have a GPU now, such as nouveau (C15).
    """
    if holders:
        return True, f"{', '.join(holders)} has a GPU, which NVIDIA's module can take after a reboot"
    if installed is None or (loaded == installed and (None in (flavour, loaded_flavour) or flavour == loaded_flavour)):
        return False, ""
    if loaded is None:
        return True, f"the module {installed} is not loaded"
    if loaded != installed:
        return True, f"the module {loaded} is loaded, {installed} is the one to have"
    return True, f"the {loaded_flavour} module is loaded, the {flavour} one is the one to have"


def after_reboot_problems(plan: t.Mapping[str, t.Any], loaded: str | None, why: str) -> list[Problem]:
    """Whether the one reboot has brought the driver that was asked for. why: of reboot_needed, still."""
    if plan["mode"] != "kernel" or not (why or loaded is None or (plan["version"] and loaded != plan["version"])):
        return []
    found = why or f"{loaded or 'none'} is"
    goal = plan["version"] or f"branch {plan['branch']}"
    text = f"expected NVIDIA's module of {goal} loaded after the reboot, found that {found}; look at journalctl -k -b and dkms status."
    return [Problem("not_loaded_after_reboot", text)]


def reboot_allowed(wanted: Wanted, host: HostFacts, container: bool) -> tuple[bool, str]:
    """Whether this run may reboot the host, and why not (case D10, pitfall 8)."""
    reasons = (
        (container, "a container is not rebooted for a driver"),
        (host.local, "Ansible runs on this host itself"),
        (host.hypervisor, f"a hypervisor is not rebooted for a driver (guests that run on it: {host.guests_running})"),
        (host.rebooted, "this run has rebooted it once already"),
        (wanted.reboot != "if_required", f"gpu_driver_reboot is {wanted.reboot}"),
    )
    why = next((text for applies, text in reasons if applies), "")
    return not why, why
