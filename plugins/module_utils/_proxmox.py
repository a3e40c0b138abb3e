# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""A Proxmox hypervisor and its containers: what the hypervisor makes at boot, and whether both sides fit together.

Inventories are what gpu_info returns (docs/design.md). A sentence says what was expected, what was found and what to change.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _lxc_config
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_facts import Wanted

Inventory = t.Mapping[str, t.Any]
Gpu = t.Mapping[str, t.Any]

# Minor numbers below major 195 (NVIDIA's kernel-open/common/inc/nv-linux.h): the control node has the last one.
CONTROL_MINOR = 255
# A major that the kernel gives out when the module nvidia_uvm is loaded, until then.
UNKNOWN_MAJOR = 0


# What the hypervisor makes at boot


def boot_nodes(inventory: Inventory) -> dict[str, t.Any]:
    """The inventory as it is once nvidia-modprobe has made what boot_commands() asks of it: the nodes that are not there yet are added.

    A path that is something else than a device node stays as it is, for whoever looks at it to refuse.
    """
    majors: dict[str, int] = dict(inventory.get("device_majors") or {})
    listed = list(inventory.get("device_nodes") or [])
    numbers = [gpu["minor_number"] for gpu in inventory.get("gpus") or [] if gpu.get("minor_number") is not None]
    uvm = majors.setdefault("nvidia-uvm", UNKNOWN_MAJOR)
    made = {f"/dev/nvidia{minor}": (_lxc_config.NVIDIA_MAJOR, minor) for minor in numbers}
    if numbers:
        made["/dev/nvidiactl"] = (_lxc_config.NVIDIA_MAJOR, CONTROL_MINOR)
        made["/dev/nvidia-uvm"] = (uvm, 0)
        made["/dev/nvidia-uvm-tools"] = (uvm, 1)
    there = {node["path"] for node in listed}
    for path, (major, minor) in made.items():
        if path not in there:
            listed.append({"path": path, "kind": "character", "major": major, "minor": minor, "mode": _lxc_config.MODE, "accessible": None})
    return {**inventory, "device_nodes": listed, "device_majors": majors}


def boot_commands(nodes: t.Collection[str]) -> list[list[str]]:
    """Arguments of nvidia-modprobe, a list for each time it is run, that make these nodes.

    One run does one thing: with -u a number after -c is one of unified memory, not of a GPU (nvidia-modprobe.c). Nodes of MIG capabilities
    are made with the MIG devices, which do not outlive a boot; they are left to what makes those.
    """
    minors = sorted(int(match[1]) for match in (re.fullmatch(r"/dev/nvidia(\d{1,3})", node, re.ASCII) for node in nodes) if match)
    if "/dev/nvidiactl" in nodes:
        minors.insert(0, CONTROL_MINOR)
    commands = [[word for minor in minors for word in ("-c", str(minor))]] if minors else []
    if any(node.startswith("/dev/nvidia-uvm") for node in nodes):
        commands.append(["-u", "-c", "0"])
    if "/dev/nvidia-modeset" in nodes:
        commands.append(["-m"])
    return commands


# The guests of a hypervisor


def _number(identity: t.Any) -> int | None:
    """A container's number, also one in quotes; None for what is no number."""
    return int(str(identity)) if re.fullmatch(r"[0-9]{1,9}", str(identity)) else None


def _wanted(guest: t.Mapping[str, t.Any]) -> list[str]:
    return [] if guest.get("state") == "absent" else [str(gpu).strip() for gpu in guest.get("gpus") or []]


def _found(guest: t.Mapping[str, t.Any], inventory: Inventory) -> list[Gpu]:
    """The GPUs that a guest is to have, each once; those that are not there are left out."""
    gpus = [_lxc_config.find_gpu(wanted, inventory.get("gpus") or []) for wanted in _wanted(guest)]
    return list({str(gpu.get("pci_bus_id")): gpu for gpu in gpus if gpu}.values())


def list_problems(guests: t.Sequence[t.Mapping[str, t.Any]], looks: t.Sequence[t.Mapping[str, t.Any]], inventory: Inventory) -> list[str]:
    """What is wrong with the guests of a hypervisor, each alone and together.

    guests: proxmox_gpu_guests. looks: results of lxc_gpu_config in the same order, those that failed among them.
    """
    problems = [
        f"proxmox_gpu_guests: expected the number of a container as id, found {guest['id']!r}. Write it as in 129."
        for guest in guests
        if _number(guest["id"]) is None
    ]
    identities = [number for number in (_number(guest["id"]) for guest in guests) if number is not None]
    for identity in dict.fromkeys(identities):
        if identities.count(identity) > 1:
            problems.append(f"proxmox_gpu_guests: expected container {identity} once, found it {identities.count(identity)} times.")
    for guest, look in zip(guests, looks):
        if "nodes" not in look:
            lines = str(look.get("msg") or "no reason given").splitlines()
            problems += [f"container {guest['id']}: {line}" for line in lines]
    owners: dict[str, list[t.Mapping[str, t.Any]]] = {}
    for guest in guests:
        for gpu in _found(guest, inventory):
            owners.setdefault(f"GPU {gpu.get('index')} ({gpu.get('pci_bus_id')})", []).append(guest)
    for gpu_name, sharing in owners.items():
        numbers = list(dict.fromkeys(str(guest["id"]) for guest in sharing))
        if len(numbers) > 1 and not all(guest.get("shared") for guest in sharing):
            problems.append(
                f"proxmox_gpu_guests: expected {gpu_name} in one container, found it in {', '.join(numbers)}. "
                "Choose another, or set shared in each of them: nothing divides its memory then."
            )
    return problems


def given(
    guests: t.Sequence[t.Mapping[str, t.Any]], results: t.Sequence[t.Mapping[str, t.Any]], inventory: Inventory
) -> list[dict[str, t.Any]]:
    """What each guest has after its next start: {id, gpus, nodes, devices}. results: of lxc_gpu_config, in the order of the guests."""
    return [
        {
            "id": _number(guest["id"]),
            "gpus": [{key: gpu.get(key) for key in ("index", "uuid", "pci_bus_id", "name")} for gpu in _found(guest, inventory)],
            "nodes": list(result["nodes"]),
            "devices": list(result["devices"]),
        }
        for guest, result in zip(guests, results)
        if "nodes" in result
    ]


# Both sides


def _label(gpu: Gpu) -> str:
    return f"{gpu.get('pci_bus_id')} ({gpu.get('uuid') or 'no UUID'})"


def _same(one: Gpu, other: Gpu) -> bool:
    if one.get("uuid") and other.get("uuid"):
        return bool(str(one["uuid"]).lower() == str(other["uuid"]).lower())
    return one.get("pci_bus_id") is not None and one.get("pci_bus_id") == other.get("pci_bus_id")


def _fits(loaded: str, installed: str | None, seen: t.Sequence[Gpu]) -> bool:
    """Whether a guest's userland is that of the loaded module. NVML tells its version without the last part, and refuses another module."""
    if installed is None:
        return any(gpu.get("index") is not None for gpu in seen)
    return installed == loaded or loaded.startswith(f"{installed}.")


def _node_problem(path: str, node: t.Mapping[str, t.Any] | None) -> str:
    """Why a node that the guest was given is of no use in it; empty when it is (case C17)."""
    cure = f"On the hypervisor: {_lxc_config.MAKE_UVM}; then restart the container." if "uvm" in path else "Restart the container."
    if node is None:
        return f"expected the device node {path}, found none. {cure}"
    if node.get("kind") != "character":
        return f"expected the device node {path}, found a {node.get('kind')}. {cure}"
    if node.get("accessible") is False and "/nvidia-caps/" not in path:  # those are for reading
        if int(node.get("mode") or "0", 8) & 0o006 == 0o006:  # so it is not the mode: a device rule, or no module behind the number
            return (
                f"expected {path} to be readable and writable, found that it is not, although its mode is {node['mode']}. On the "
                "hypervisor: load NVIDIA's module, and run proxmox_gpu again, since numbers change with a boot; then restart the container."
            )
        return f"expected {path} to be readable and writable, found that it is not. Set its mode, uid and gid in proxmox_gpu_guests."
    return ""


def said_problems(
    guest: t.Mapping[str, t.Any], options: t.Mapping[str, t.Any], hypervisors: t.Mapping[str, t.Mapping[str, t.Any]]
) -> list[str]:
    """What is wrong with what the inventory says of a guest, before anything is asked or changed.

    guest: {hypervisor, id}. options: its variables gpu_driver_*. hypervisors: of the group proxmox by name, with their variables
    proxmox_gpu_guests and proxmox_gpu_state, where they have them.
    """
    problems = []
    name, identity = guest["hypervisor"], guest["id"]
    number = _number(identity)
    if number is None:
        problems.append(f"expected the number of a container as proxmox_guest_id, found {identity!r}. Write it as in 129.")
    if name not in hypervisors:
        names = ", ".join(hypervisors) or "none"
        problems.append(f"expected one of the group proxmox ({names}) as proxmox_guest_hypervisor, found {name!r}. Change it.")
    elif number is not None and hypervisors[name].get("proxmox_gpu_state", "present") == "present":
        listed = [_number(one.get("id")) for one in hypervisors[name].get("proxmox_gpu_guests") or []]
        if number not in listed:
            found = ", ".join(map(str, listed)) or "none"
            problems.append(
                f"expected container {number} among the guests of {name}, found {found}. Add it to proxmox_gpu_guests there, or correct "
                "proxmox_guest_id."
            )
    known = {field.name for field in dataclasses.fields(Wanted)}
    given = {key: value for key, value in ((key[len("gpu_driver_") :], value) for key, value in options.items()) if key in known}
    foreign = ["gpu_driver_mode"] if options.get("gpu_driver_mode") == "kernel" else []
    foreign += [*Wanted(**given).of_module(), *(name for name in ("gpu_driver_ecc", "gpu_driver_mig") if options.get(name) is not None)]
    if foreign:
        problems.append(
            f"expected no options of a kernel module in a container, found {', '.join(foreign)}. Set them for the hypervisor, in "
            "host_vars or group_vars of its own, which its containers do not share."
        )
    return problems


def guest_problems(
    guest: Inventory, hypervisor: Inventory | None, guests: t.Sequence[t.Mapping[str, t.Any]] | None, identity: t.Any
) -> list[str]:
    """What keeps a guest from using what its hypervisor gives it; from both inventories of one run.

    guest, hypervisor: inventories; the hypervisor's is None when this run has not looked at it. guests: what given() says of the
    hypervisor, None when it got no further. identity: the guest's number there.
    """
    if hypervisor is None or guests is None:
        return [
            "expected the hypervisor to be set up in this run, found nothing of it. Correct proxmox_guest_hypervisor, or what stopped it "
            "there, and name both in --limit."
        ]
    number = _number(identity)
    if number is None:
        return [f"expected the number of a container as proxmox_guest_id, found {identity!r}. Write it as in 129."]
    mine = next((one for one in guests if _number(one["id"]) == number), None)
    if mine is None:
        numbers = ", ".join(str(one["id"]) for one in guests) or "none"
        return [
            f"expected container {identity} among the guests of its hypervisor, found {numbers}. Add it to proxmox_gpu_guests there, "
            "or correct proxmox_guest_id."
        ]
    problems = []
    loaded, installed = hypervisor.get("driver_version"), guest.get("driver_userland_version")
    seen = list(guest.get("gpus") or [])
    fits = _fits(str(loaded), installed, seen)
    if not loaded:
        problems.append("expected NVIDIA's driver loaded on the hypervisor, found none. Install it there, and load it.")
    elif not fits:
        problems.append(
            f"expected the driver's userland {loaded} in the guest, as the hypervisor's module, found {installed or 'none'}. "
            f"Install exactly {loaded} in the guest, or change the hypervisor's driver."
        )
    nodes = {node["path"]: node for node in guest.get("device_nodes") or []}
    problems += filter(None, (_node_problem(path, nodes.get(path)) for path in mine["nodes"]))
    # Without the right userland nothing lists a GPU by what it is.
    if loaded and fits:
        missing = any(not any(_same(gpu, other) for other in seen) for gpu in mine["gpus"])
        foreign = any(not any(_same(gpu, other) for other in mine["gpus"]) for gpu in seen)
        if missing or foreign:
            found = ", ".join(map(_label, seen)) or "none"
            wanted = ", ".join(map(_label, mine["gpus"])) or "none"
            problems.append(f"expected the guest to see the GPUs {wanted}, found {found}. Restart the container.")
    return problems
