# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What is there already and whether it works: a driver that is left as it is, the role's record, the device nodes, limits of power."""

from __future__ import annotations

import copy
import errno
import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_limits, _driver_plan, _driver_sources
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_packages as pkg
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_dnf import MODULE_PATH
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_facts import HostFacts, Inventory, Problem, Wanted, option_problems
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_outcome import reboot_allowed, reboot_needed

# A driver that is there and suits


def _nothing_asked(wanted: Wanted) -> bool:
    """Whether any driver that suits will do: no version, no branch, no source of one's own."""
    asked = (wanted.version, wanted.branch, wanted.base_url, wanted.runfile, wanted.fabric_manager)
    return all(one is None for one in asked) and wanted.source == "auto" and wanted.flavour == "auto" and not wanted.upgrade


def _idle(plan: t.Mapping[str, t.Any], reason: str) -> dict[str, t.Any]:
    kept = ("source", "branch", "version", "flavour", "left_alone", "reboot_required", "reboot_why", "reboot_allowed", "reboot_allowed_why")
    steps = [step for step in plan["steps"] if step["step"] == "reboot"]
    return {
        **copy.deepcopy(_driver_plan.PLAN),
        **{key: plan[key] for key in kept},
        "mode": plan["mode"] if steps else "none",
        "reason": reason,
        "notes": plan["notes"],
        "steps": steps,
    }


def leave(wanted: Wanted, host: HostFacts, inventory: Inventory, ours: bool) -> _driver_plan.Decision | None:
    """A driver that works and that this role has not installed is never touched unasked; None: it is decided about.

    It works when its GPUs answer through NVML or nvidia-smi, however it came here. One that suits what is asked stays, with nothing pinned
    and no service changed: whoever installed it looks after it. One that is too old is not replaced without a word either, since what runs
    with it breaks until the next reboot. ours: the role has a record on this host.
    """
    loaded = inventory["driver_version"]
    if ours or not loaded or not _driver_limits.answers(inventory) or not _nothing_asked(wanted) or option_problems(wanted):
        return None
    if wanted.mode not in ("auto", "userland" if inventory["container"] else "kernel") or _driver_limits.mode_of(wanted, inventory)[1]:
        return None
    needs = _driver_sources.engine_needs(wanted.sglang_release) if wanted.sglang_release else None
    if needs is None or (_driver_sources.parse_version(loaded) or ()) >= (_driver_sources.parse_version(needs.driver) or ()):
        return _left(wanted, host, inventory, loaded)
    if inventory["container"] or inventory["virtualization"] == "wsl":  # its host's matter
        return None
    text = (
        f"expected driver {needs.driver} or later (SGLang {wanted.sglang_release} brings CUDA {needs.cuda}), found {loaded}, which works "
        "and was not installed by this role; set gpu_driver_upgrade: true to have it replaced (what uses the GPUs now may fail until the "
        "reboot), or take an older release of SGLang."
    )
    return _driver_plan.Decision(None, [Problem("driver_too_old", text)])


def _left(wanted: Wanted, host: HostFacts, inventory: Inventory, loaded: str) -> _driver_plan.Decision | None:
    """The plan that leaves a driver as it is; None where only the reboot that is allowed brings the module that is installed."""
    container = bool(inventory["container"])
    needed, why = reboot_needed(
        loaded=loaded, installed=host.module_version, loaded_flavour=inventory["driver_flavour"], flavour=host.module_flavour
    )
    allowed, why_not = reboot_allowed(wanted, host, container)
    if needed and allowed:
        return None
    reason = f"the driver {loaded} works and suits; this role did not install it"
    plan = {
        **copy.deepcopy(_driver_plan.PLAN),
        "reason": f"the userland of the host's driver {loaded} is there and works" if container else reason,
        "branch": _driver_sources.branch_of(loaded),
        "version": loaded,
        "flavour": inventory["driver_flavour"],
        "left_alone": _driver_limits.guests_of(inventory),
        "reboot_required": needed,
        "reboot_why": why,
        "reboot_allowed": allowed,
        "reboot_allowed_why": why_not,
    }
    return _driver_plan.Decision(plan, [])


def idle(decision: _driver_plan.Decision, wanted: Wanted, inventory: Inventory, ours: bool) -> _driver_plan.Decision:
    """The decision, or one to change nothing where a loaded driver that does not answer yet needs nothing but a reboot.

    ours: the role has a record on this host.
    """
    plan = decision.plan
    if plan is None or ours or plan["mode"] == "none" or not inventory["driver_version"] or not _nothing_asked(wanted):
        return decision
    if any(plan[key] for key in ("packages", "packages_remove", "runfile", "mok")):
        return decision
    reason = f"the driver {inventory['driver_version']} is loaded and suits; this role did not install it"
    return _driver_plan.Decision(_idle(plan, reason), [])


def brings(plan: t.Mapping[str, t.Any]) -> bool:
    """Whether a run brings a driver, so that what the GPUs say before it counts for nothing."""
    changes = any(plan[key] for key in ("packages", "packages_remove", "runfile", "mok"))
    loads = any(step["step"] == "load" for step in plan["steps"])
    return plan["mode"] != "none" and (changes or loads or (plan["reboot_required"] and plan["reboot_allowed"]))


def summary(plan: t.Mapping[str, t.Any], inventory: Inventory, reboot_why: str) -> str:
    """How the driver stands, in one line. inventory: as it is now. reboot_why: why a reboot waits, empty where none does."""
    waits = f"a reboot waits, since {reboot_why}" if reboot_why else "no reboot waits"
    if plan["reason"]:
        return f"{'left alone: ' if plan['version'] else ''}{plan['reason']}; {waits}"
    loaded, kernel = inventory["driver_version"], plan["mode"] == "kernel"
    if kernel:
        found = f"driver {loaded} is loaded" if loaded else f"driver {plan['version'] or plan['branch']} is installed and not loaded yet"
    else:
        found = f"the userland {inventory['driver_userland_version']} is there, with the host's module {loaded}"
    flavour = inventory["driver_flavour"] or plan["flavour"]
    source = f"from {_driver_plan.WORDS[plan['source']]}" if plan["source"] else "of another origin"
    details = [*([f"{flavour} module"] if flavour else []), source, f"mode {plan['mode']}"]
    return f"{found} ({', '.join(details)}); {waits}"


# The role's record

_LISTS = ("files", "units", "packages_before", "configurations_before")
# What the role writes has its name in the path, but for dnf's own file.
_OWN_FILE = re.compile(rf"/(?:etc|usr/local/sbin|var/cache)/(?:[^/]+/)*(?:[^/]*firstlight[^/]*|firstlight/[^/]+)|{re.escape(MODULE_PATH)}")
_OWN_UNIT = re.compile(r"firstlight-[a-z-]+\.service")


def record_problem(record: object) -> str | None:
    """What is wrong with a record: removal takes away what it names, and every package of a driver that it does not name."""
    if not isinstance(record, dict):
        return f"a {type(record).__name__}"
    wrong = [key for key in _LISTS if not (isinstance(record.get(key), list) and all(isinstance(one, str) and one for one in record[key]))]
    wrong += [] if isinstance(record.get("runfile"), bool) else ["runfile"]
    wrong += [] if record.get("mode") in ("kernel", "userland", "none") else ["mode"]
    if wrong:
        return f"none that is right of {', '.join(wrong)}"
    foreign = [path for path in record["files"] if not _OWN_FILE.fullmatch(path) or "/../" in path]
    foreign += [unit for unit in record["units"] if not _OWN_UNIT.fullmatch(unit)]
    return f"what the role never writes: {', '.join(foreign)}" if foreign else None


def removable(record: t.Mapping[str, t.Any], host: HostFacts) -> dict[str, list[str]]:
    """What _driver_plan.removal takes away: the driver's packages that were not there before the role was, and its files."""
    kinds = {"packages_before": driver_packages(host), "configurations_before": configurations(host)}
    return {
        "packages": [name for kind, names in kinds.items() for name in names if name not in record[kind]],
        "files": list(record["files"]),
    }


# What Debian's driver brings with it to share the names of GL's libraries; of no use to anyone else.
_HELPERS = re.compile(r"glx-alternative-(?:nvidia|mesa)|glx-diversions|update-glx")


def driver_packages(host: HostFacts) -> list[str]:
    """Installed packages that are part of a driver, or come with one."""
    names = {package.name for package in host.packages if package.installed}
    return sorted(name for name in names if pkg.of_driver(name) or _HELPERS.fullmatch(pkg.bare(name)))


def configurations(host: HostFacts) -> list[str]:
    """Packages of a driver that were removed and whose configuration is still there: what a change of the branch leaves behind."""
    names = {package.name for package in host.packages if package.status == "c"}
    return sorted(name for name in names if pkg.of_driver(name) or _HELPERS.fullmatch(pkg.bare(name)))


# Device nodes


def device_paths(inventory: Inventory) -> list[str]:
    """The nodes that CUDA opens: of the driver, of unified memory, and of each GPU that the inventory has a node for."""
    there = [str(node["path"]) for node in inventory["device_nodes"]]
    gpus = [path for path in there if re.fullmatch(r"/dev/nvidia\d+", path)]
    return ["/dev/nvidiactl", "/dev/nvidia-uvm", *(gpus or ["/dev/nvidia0"])]


_ERRORS = {
    errno.ENOENT: "no such node",
    errno.EPERM: "no permission from the device rules (EPERM)",
    errno.EACCES: "no permission from its mode (EACCES)",
    errno.ENXIO: "a node with no module behind it (ENXIO)",
    errno.ENODEV: "a node with no device behind it (ENODEV)",
    errno.EIO: "a GPU that does not answer (EIO)",
}


# What is behind a node that is right: the matter of the host's driver, whatever the userland is.
_BEHIND = ("device_enxio", "device_enodev", "device_eio")


def device_problems_before(problems: t.Sequence[Problem]) -> list[Problem]:
    """Those of device_problems that stop an installation in a container, which gets its nodes from outside: all, or none where each node is
    right, although nothing may be behind it yet."""
    return list(problems) if any(problem.code not in _BEHIND for problem in problems) else []


def mounted(mountinfo: str) -> set[str]:
    """What is mounted below /dev, by /proc/self/mountinfo: the nodes that a container was given from outside."""
    points = [line.split()[4:5] for line in mountinfo.splitlines()]
    return {point for words in points for point in words if point.startswith("/dev/")}


def device_problems(opened: t.Mapping[str, int], inventory: Inventory, user: str, given: t.Container[str] | None = None) -> list[Problem]:
    """What is wrong with the nodes. opened: path -> errno of opening it for reading and writing as the user, 0 when it worked. given: those
    that a container has from outside, where that is known."""
    place = "on the container's host, and give it to the container" if inventory["container"] else "here"
    cures = {
        errno.ENOENT: f"make it {place} (nvidia-modprobe -c 0 -u)",
        errno.EPERM: "allow its major number in the container's device rules"
        if inventory["container"]
        else "look at the unit's DeviceAllow",
        errno.EACCES: "give it the mode 0666",
        errno.ENXIO: f"load NVIDIA's module {place.partition(',')[0]}, or give the node its present major number",
        errno.ENODEV: f"load NVIDIA's module {place.partition(',')[0]}, or give the node its present major number",
    }
    kinds = {str(node["path"]): str(node["kind"]) for node in inventory["device_nodes"]}
    by_error: dict[int, list[str]] = {}
    own: list[str] = []
    problems = []
    for path, number in opened.items():
        if kinds.get(path, "character") != "character":
            # LXC puts an empty file where it may not bind (optional,create=file), whether it can be opened or not (case C17).
            cure = "make it on the container's host, and restart the container" if inventory["container"] else "remove it, and make it"
            text = f"expected the device node {path}, found a {kinds[path]}; {cure} (nvidia-modprobe -c 0 -u)."
            problems.append(Problem("device_kind", text))
        elif number == errno.EPERM and inventory["container"] and given is not None and path not in given:
            own.append(path)
        elif number:
            by_error.setdefault(number, []).append(path)
    if own:
        # nvidia-smi makes the node that it misses, and in a privileged container it can: no rule of the container's host is about that one.
        text = (
            f"expected that the user {user} can open {', '.join(own)}, found a node that was made in the container, not given to it, "
            "and no permission for it (EPERM); give the container its host's node and the rule for it, and restart it (role proxmox_gpu)."
        )
        problems.append(Problem("device_not_given", text))
    for number, paths in by_error.items():
        found = _ERRORS.get(number, errno.errorcode.get(number, str(number)))
        text = f"expected that the user {user} can open {', '.join(paths)}, found {found}; {cures.get(number, 'look at the kernel log')}."
        problems.append(Problem(f"device_{errno.errorcode.get(number, 'error').lower()}", text))
    return problems + _major_problems(inventory)


def _major_problems(inventory: Inventory) -> list[Problem]:
    """Nodes with the major number of an earlier boot: dynamic ones change (pitfall 4)."""
    problems = []
    for node in inventory["device_nodes"]:
        name = "nvidia-uvm" if str(node["path"]).startswith("/dev/nvidia-uvm") else "nvidia"
        major = inventory["device_majors"].get(name) or inventory["device_majors"].get(f"{name}-frontend")
        if node["kind"] != "character" or "nvidia-caps" in node["path"] or major is None or node["major"] in (None, major):
            continue
        text = f"expected {node['path']} with the major number {major}, found {node['major']}; make the node again, or bind it in anew."
        problems.append(Problem("device_major", text))
    return problems


def answer_problems(inventory: Inventory) -> list[Problem]:
    """Whether the driver serves a GPU of this host: success is that it answers, not that its packages and services are there (case C26)."""
    own = [gpu for gpu in inventory["gpus"] if gpu["health"] != "passed_through"]
    if any(gpu["usable"] or gpu["mig_enabled"] for gpu in own):
        return []
    told = [f"{one['found']} ({one['action'].rstrip('.')})" for one in inventory.get("problems", ()) if one["severity"] == "error"]
    words = "; ".join(told) or f"{len(own)} on the bus and none that can be used; look at nvidia-smi and the kernel log"
    return [Problem("no_usable_gpu", f"expected that the driver serves a GPU, found {words}.")]


# Power and clocks


def power_problems(inventory: Inventory, limit_w: int | None, clocks_mhz: t.Sequence[int] | None) -> list[Problem]:
    """Whether every GPU of this host takes a limit of power (W) and locked clocks (lowest and highest, MHz). Case A23."""
    problems = []
    if limit_w is not None and limit_w <= 0:  # no driver needs to answer for that
        text = f"expected a power limit of more than 0 W, found {limit_w}; change gpu_driver_power_limit_w, or leave it out."
        problems.append(Problem("power_limit", text))
    for gpu in inventory["gpus"] if limit_w is not None and limit_w > 0 else []:
        low, high = gpu["power_limit_min_w"], gpu["power_limit_max_w"]
        if gpu["health"] == "passed_through" or low is None or high is None:
            continue
        if not low <= (limit_w or 0) <= high:
            text = f"expected a power limit of {low:g} to {high:g} W for {gpu['name']}, found {limit_w}; change gpu_driver_power_limit_w."
            problems.append(Problem("power_limit", text))
    if clocks_mhz is not None and (len(clocks_mhz) != 2 or not 0 < clocks_mhz[0] <= clocks_mhz[1]):
        text = f"expected the lowest and the highest clock in MHz, found {list(clocks_mhz)}; change gpu_driver_clocks_mhz."
        problems.append(Problem("clocks", text))
    for gpu in inventory["gpus"] if clocks_mhz is not None and len(clocks_mhz) == 2 else []:
        most = gpu["clock_sm_max_mhz"]
        if most is not None and clocks_mhz is not None and clocks_mhz[1] > most:
            text = f"expected clocks of {most} MHz at most for {gpu['name']}, found {clocks_mhz[1]}; change gpu_driver_clocks_mhz."
            problems.append(Problem("clocks", text))
    return list(dict.fromkeys(problems))


def power_read_back(inventory: Inventory, limit_w: int) -> list[Problem]:
    """GPUs whose limit is not what was set. One that knows no limit is left out (case A23)."""
    return [
        Problem("power_limit_not_taken", f"expected a power limit of {limit_w} W on {gpu['name']}, found {gpu['power_limit_w']:g} W.")
        for gpu in inventory["gpus"]
        if gpu["power_limit_settable"] and gpu["power_limit_w"] is not None and abs(gpu["power_limit_w"] - limit_w) >= 1
    ]


POWER_UNIT = "firstlight-nvidia-power.service"


def power_back(unit: str, limit_w: int | None, clocks_mhz: t.Sequence[int] | None, inventory: Inventory) -> dict[str, t.Any] | None:
    """What a run takes back of power limits and clocks, as a plan has it; None for nothing.

    unit: text of the role's unit, whose arguments say what it sets ("-" for nothing). The default limit is the card's own; whether clocks
    are locked no card tells.
    """
    had = re.search(r"^ExecStart=\S*firstlight-nvidia-power (\S+) (\S+)$", unit, re.MULTILINE)
    if had is None:
        return None
    limit, clocks = (one != "-" and wanted is None for one, wanted in zip(had.groups(), (limit_w, clocks_mhz)))
    if not (limit or clocks):
        return None
    settings = []
    for gpu in _driver_limits.own_gpus(inventory):
        name, default = gpu["uuid"] or gpu["pci_bus_id"], gpu["power_limit_default_w"]
        if gpu["index"] is None:  # no driver answers for it, and none keeps a setting
            continue
        if limit and default is not None and gpu["power_limit_w"] != default:
            text = f"set the power limit of {_driver_limits.label(gpu)} back to its own {default:g} W"
            settings.append({"argv": ["nvidia-smi", "-i", name, "-pl", f"{default:g}"], "text": text})
        if clocks:
            text = f"let go of the clocks of {_driver_limits.label(gpu)}"
            settings.append({"argv": ["nvidia-smi", "-i", name, "-rgc"], "text": text})
    return {"unit_goes": limit_w is None and clocks_mhz is None, "settings": settings}
