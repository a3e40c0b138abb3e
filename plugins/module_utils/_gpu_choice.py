# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""The GPUs that instances ask for against those that are there: resolved instances and an inventory in, sentences out.

The inventory is what gpu_info returns (docs/design.md). A sentence says what was expected, what was found and what to change.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils._driver_sources import EngineNeeds, engine_needs, parse_version
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_problems import FOREIGN_MEMORY_MIB, identity

Instance = t.Mapping[str, t.Any]
Inventory = t.Mapping[str, t.Any]
Gpu = t.Mapping[str, t.Any]

# Ranks with less free memory than this share of another's make the engine refuse to start (SGLang 0.5.23, "memory capacity is unbalanced").
LEAST_SHARE = 0.9
# Errors of the inventory that say why a GPU is not there. They do not concern an instance whose GPUs all work.
ABSENCE_CODES = (
    "driver_not_installed",
    "driver_not_loaded",
    "dkms_build_missing",
    "no_common_flavour",
    "nouveau_bound",
    "other_driver_bound",
    "secure_boot_refused",
    "source_failed",
)
# Errors of the inventory that bringing a driver mends, or that its own verification tells afterwards.
_OF_THE_DRIVER = (
    *ABSENCE_CODES,
    "driver_branch_too_new",
    "driver_library_mismatch",
    "fabric_not_ready",
    "gpu_not_listed",
    "library_missing",
    "no_devices",
    "userland_missing",
    "uvm_missing",
    "uvm_wrong_major",
    "wrong_module_flavour",
)
# While such a GPU is there, CUDA may number the others differently from nvidia-smi, which still counts it (case A09).
_UNCOUNTED = ("lost", "needs_reset")
_STATES = {
    "lost": "is lost",
    "needs_reset": "needs a reset",
    "no_driver": "has no NVIDIA driver",
    "passed_through": "is passed through to a guest",
    "unknown": "is not listed by the driver",
}


class _Choice(t.NamedTuple):
    """What one entry of an instance's gpus stands for."""

    asked: str
    gpu: Gpu
    is_mig: bool


def problems(instances: t.Iterable[Instance], inventory: Inventory, driver_comes: bool = False) -> list[str]:
    """What keeps the GPUs that instances ask for from being used, the host's problems first. Nothing for instances that ask for none.

    driver_comes: one that suits is about to be brought, or why not is told elsewhere; only what no driver mends counts.
    """
    wanting = [instance for instance in instances if instance["gpus"]]
    if driver_comes:
        wanting, inventory = _foretold(wanting, inventory)
    if not wanting:
        return []
    errors = [problem for problem in inventory["problems"] if problem["severity"] == "error"]
    if driver_comes:
        found = []
    elif inventory["driver_version"] is None and not any(gpu["usable"] for gpu in inventory["gpus"]):
        found, errors = [_no_driver(wanting, inventory, errors[:1])], errors[1:]
    else:
        found = _old_driver(wanting, inventory["driver_version"], inventory.get("cuda_driver_version"))
    found += _host_problems(wanting, inventory, [problem for problem in errors if problem["gpu"] is None])
    # Where no GPU has a number, the driver did not answer, and the sentences above say why.
    if not found or any(gpu["index"] is not None for gpu in inventory["gpus"]):
        found += [problem for instance in wanting for problem in _instance_problems(instance, inventory)]
        found += _shared(wanting, inventory)
    return list(dict.fromkeys(found))


def _foretold(instances: t.Sequence[Instance], inventory: Inventory) -> tuple[list[Instance], Inventory]:
    """Instances and inventory as they are to be compared before a driver comes: GPUs without one are numbered in the order of the PCI bus,
    as nvidia-smi will. UUIDs are not known then; nor is, in a container, which of the host's GPUs it was given."""
    told = [problem for problem in inventory["problems"] if problem["code"] not in _OF_THE_DRIVER]
    own = sorted((gpu for gpu in inventory["gpus"] if gpu["health"] != "passed_through"), key=lambda gpu: gpu["pci_bus_id"] or "")
    if own and all(gpu["index"] is not None for gpu in own):
        return list(instances), {**inventory, "problems": told}
    guests = [gpu for gpu in inventory["gpus"] if gpu["health"] == "passed_through"]
    mended = {"health": "ok", "usable": True}
    numbered = [{**gpu, "index": number, **(mended if gpu["health"] in ("no_driver", "unknown") else {})} for number, gpu in enumerate(own)]
    asked = [
        {**instance, "gpus": [gpu for gpu in instance["gpus"] if re.fullmatch("[0-9]+", str(gpu)) and not inventory["container"]]}
        for instance in instances
    ]
    return [instance for instance in asked if instance["gpus"]], {**inventory, "gpus": numbered + guests, "problems": told}


def warnings(instances: t.Iterable[Instance], inventory: Inventory, running: t.Collection[str] = ()) -> list[str]:
    """What does not keep an engine from starting on its GPUs and may make it smaller, slower or short-lived.

    running: units that run now: the memory they hold is their own.
    """
    wanting = [instance for instance in instances if instance["gpus"]]
    told = [problem for problem in inventory["problems"] if problem["severity"] == "warning" and problem["code"] != "unequal_gpus"]
    # New processes may fail on every GPU while one is lost (case A09).
    of_all = [problem for problem in inventory["problems"] if problem["code"] == "gpu_lost"]
    of_all += [problem for problem in told if problem["gpu"] is None]
    found = [f"{problem['found']}. {problem['action']}" for problem in of_all if wanting]
    for instance in wanting:
        choices = _choices(instance, inventory)
        runs = instance["unit"] in running
        chosen = {identity(choice.gpu): choice.gpu for choice in choices}
        found += [
            f"{instance['name']}: {problem['found']}. {problem['action']}"
            for problem in told
            if problem["gpu"] in chosen and not (runs and problem["code"] == "foreign_processes" and _may_be_own(chosen[problem["gpu"]]))
        ]
        unknown = [gpu for gpu in map(str, instance["gpus"]) if not choices and _is_unknown_mig(gpu, inventory)]
        found += [f"{instance['name']}: whether {gpu} exists could not be checked. Compare it with nvidia-smi -L." for gpu in unknown]
        if not runs:
            found += [_unseen(instance, choice) for choice in choices if not choice.is_mig and _is_held_unseen(choice.gpu)]
    return list(dict.fromkeys(found))


def _wanted(instances: t.Iterable[Instance]) -> str:
    return ", ".join(str(gpu) for instance in instances for gpu in instance["gpus"])


def _needs(instances: t.Iterable[Instance]) -> EngineNeeds | None:
    """What the release asks for that asks for the newest driver; None when nothing is known."""
    known = [needs for instance in instances for needs in [engine_needs(instance["environment"]["release"])] if needs]
    return max(known, key=lambda needs: parse_version(needs.driver) or (), default=None)


def _expected(needs: EngineNeeds | None) -> str:
    return f"expected NVIDIA's driver {needs.driver} or later" if needs else "expected NVIDIA's driver"


def _no_driver(instances: t.Sequence[Instance], inventory: Inventory, errors: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    """No driver is loaded; errors: the first thing that the inventory says of it, if anything."""
    there = _there("", inventory)
    why = f"{f'; there is {there}' if there else ''}. Install the driver first; in a container, on its host."
    if errors:
        why = f": {errors[0]['found']}. {errors[0]['action']}"
    return f"{_expected(_needs(instances))} and the GPUs {_wanted(instances)}, found no loaded driver{why}"


def _old_driver(instances: t.Sequence[Instance], version: str | None, cuda: str | None) -> list[str]:
    needs = _needs(instances)
    if needs is None or (version is not None and (parse_version(version) or ()) >= (parse_version(needs.driver) or ())):
        return []
    found = "a driver that does not say its version" if version is None else f"{version} loaded"
    if version is not None and cuda is not None:
        found += f", which serves CUDA {cuda} at most"
    return [f"{_expected(needs)} (SGLang brings CUDA {needs.cuda}), found {found}. Upgrade the driver."]


def _host_problems(instances: t.Sequence[Instance], inventory: Inventory, errors: t.Iterable[t.Mapping[str, t.Any]]) -> list[str]:
    """What the inventory calls an error of the host, as far as it concerns these instances."""
    choices = [choice for instance in instances for choice in _choices(instance, inventory)]
    fine = len(choices) == sum(len(instance["gpus"]) for instance in instances) and all(_works(choice) for choice in choices)
    return [
        f"expected that the GPUs {_wanted(instances)} can be used, found that {problem['found']}. {problem['action']}"
        for problem in errors
        if not (fine and problem["code"] in ABSENCE_CODES)
    ]


def _choices(instance: Instance, inventory: Inventory) -> list[_Choice]:
    """The entries of an instance's gpus that are there, in their order."""
    found = []
    for asked in map(str, instance["gpus"]):
        for gpu in inventory["gpus"]:
            if asked == gpu["uuid"] or (re.fullmatch("[0-9]+", asked) and int(asked) == gpu["index"]):
                found.append(_Choice(asked, gpu, is_mig=False))
            elif any(asked == device["uuid"] for device in gpu["mig_devices"]):
                found.append(_Choice(asked, gpu, is_mig=True))
    return found


def _works(choice: _Choice) -> bool:
    """A MIG device works when its GPU does; the GPU itself counts as not usable then."""
    return choice.gpu["health"] in ("ok", "degraded") if choice.is_mig else bool(choice.gpu["usable"])


def _label(gpu: Gpu) -> str:
    """What a GPU is called in a sentence, as in the inventory's own: GPU 0 (00000000:01:00.0, NVIDIA RTX A6000)."""
    number = "GPU" if gpu["index"] is None else f"GPU {gpu['index']}"
    details = ", ".join(gpu[key] for key in ("pci_bus_id", "name") if gpu[key])
    return f"{number} ({details})" if details else number


def _there(asked: str, inventory: Inventory) -> str:
    """The GPUs of a host in the way that was asked, and those that cannot be had with their states."""
    words = []
    for gpu in inventory["gpus"]:
        name = gpu["uuid"] if asked.startswith("GPU-") else gpu["index"]
        if asked.startswith("MIG-"):
            words += [f"{device['uuid']} ({device['name']})" for device in gpu["mig_devices"] if device["uuid"]]
        elif name is not None and gpu["health"] not in _STATES:
            words.append(str(name))
        if gpu["health"] in _STATES:
            words.append(f"{identity(gpu)} ({_STATES[gpu['health']]})")
    return ", ".join(words)


def _instance_problems(instance: Instance, inventory: Inventory) -> list[str]:
    """What is wrong with the choice of one instance."""
    choices = _choices(instance, inventory)
    name, found = instance["name"], []
    for asked in map(str, instance["gpus"]):
        choice = next((choice for choice in choices if choice.asked == asked), None)
        if choice is None and _is_unknown_mig(asked, inventory):
            continue  # told as a warning
        if choice is None:
            kind = "MIG devices" if asked.startswith("MIG-") else "GPUs"
            found.append(f"{name}: expected the GPU {asked}, found {_there(asked, inventory) or f'no {kind}'}. Change gpus.")
        elif not choice.is_mig and choice.gpu["mig_enabled"]:
            devices = _there("MIG-", {"gpus": [choice.gpu]})
            found.append(
                f"{name}: expected a GPU of its own, found that {asked} is divided (MIG). "
                + (f"Choose one of its devices in gpus: {devices}." if devices else "Make MIG devices on it, or switch MIG off.")
            )
        elif not _works(choice):
            found.append(f"{name}: expected that the GPU {asked} can be used, found that {_why_not(choice.gpu, inventory)}")
    return found + _numbering(instance, inventory) + _unequal(instance, choices)


def _is_unknown_mig(asked: str, inventory: Inventory) -> bool:
    """Whether a MIG device may be there: of one that is, the UUID is not known (nvidia-smi says it with -L alone)."""
    return asked.startswith("MIG-") and any(device["uuid"] is None for gpu in inventory["gpus"] for device in gpu["mig_devices"])


def _why_not(gpu: Gpu, inventory: Inventory) -> str:
    """Why a GPU cannot be used and what helps: the inventory's own words where it has some."""
    told = [problem for problem in inventory["problems"] if problem["severity"] == "error" and problem["gpu"] == identity(gpu)]
    if told:
        return f"{told[0]['found']}. {told[0]['action']}"
    return f"{_label(gpu)} {_STATES.get(gpu['health'], 'is not usable')}. Mend that, or change gpus."


def _numbering(instance: Instance, inventory: Inventory) -> list[str]:
    """Indices where those of CUDA may not be those of nvidia-smi.

    With a lost GPU: see _UNCOUNTED. With MIG: CUDA shows a process either one MIG device or the undivided GPUs (MIG user guide, CUDA device
    enumeration). UUIDs mean the same to both.
    """
    lost = [gpu for gpu in inventory["gpus"] if gpu["health"] in _UNCOUNTED]
    divided = [gpu for gpu in inventory["gpus"] if gpu["mig_enabled"]]
    working = [choice.gpu for choice in _choices(instance, inventory) if re.fullmatch("[0-9]+", choice.asked) and _works(choice)]
    if not working or not (lost or divided):
        return []
    first = (lost or divided)[0]
    why = f"{_label(first)} {_STATES[first['health']] if lost else 'is divided (MIG)'}"
    return [
        f"{instance['name']}: expected UUIDs in gpus, since {why} and CUDA may count the others differently; found indices. "
        f"Write {', '.join(gpu['uuid'] or 'the UUID (nvidia-smi -L)' for gpu in working)}."
    ]


def _unequal(instance: Instance, choices: t.Sequence[_Choice]) -> list[str]:
    """GPUs of different kinds under one engine, which gives each of them an equal part (cases A35, B18)."""
    if instance.get("allow_unequal_gpus"):
        return []
    gpus = [choice.gpu for choice in choices if not choice.is_mig]
    names = {gpu["name"] or gpu["pci_device_id"] for gpu in gpus} - {None}
    sizes = [gpu["memory_total_mib"] for gpu in gpus if gpu["memory_total_mib"] is not None]
    if len(names) <= 1 and (not sizes or min(sizes) >= LEAST_SHARE * max(sizes)):
        return []
    kinds = "; ".join(f"{choice.asked} ({choice.gpu['name']}, {choice.gpu['memory_total_mib'] or '?'} MiB)" for choice in choices)
    return [
        f"{instance['name']}: expected equal GPUs (each gets an equal part of the model), found {kinds}. "
        "Change gpus, or set allow_unequal_gpus: true."
    ]


def _shared(instances: t.Sequence[Instance], inventory: Inventory) -> list[str]:
    """One GPU that was asked for twice, by its index and by its UUID. The same word twice is told when instances are resolved."""
    owners: dict[t.Any, tuple[str, str]] = {}
    found = []
    for instance in instances:
        for choice in _choices(instance, inventory):
            if choice.is_mig:
                continue
            name, asked = owners.setdefault(identity(choice.gpu), (instance["name"], choice.asked))
            if asked != choice.asked:
                found.append(f"{instance['name']}: expected a GPU of its own, found that {choice.asked} is {asked} of {name}. Change gpus.")
    return found


def _may_be_own(gpu: Gpu) -> bool:
    """Whether a process on a GPU may be the running unit: in a container the driver says the host's numbers, so no unit is known."""
    return any(process.get("unit") is None for process in gpu["processes"])


def _is_held_unseen(gpu: Gpu) -> bool:
    """Memory is in use, and no process can be seen that has it: another container's (a container sees only its own processes)."""
    return (gpu["memory_used_mib"] or 0) >= FOREIGN_MEMORY_MIB and not gpu["processes"]


def _unseen(instance: Instance, choice: _Choice) -> str:
    held = choice.gpu["memory_used_mib"]
    return (
        f"{instance['name']}: {held} MiB of the GPU {choice.asked} are in use by nothing that can be seen from here. "
        "End it (in a container: look on its host), or plan with what is left."
    )
