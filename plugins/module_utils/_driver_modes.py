# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""ECC and MIG: which GPUs have to change, which cannot, and what waits for a reset or a reboot (case C32). No GPU is ever reset here."""

from __future__ import annotations

import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils._driver_facts import Inventory, Problem
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_limits import label, own_gpus
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import NOT_SUPPORTED

# Mode -> nvidia-smi's option (manual of nvidia-smi, "Device Modification Options").
_OPTIONS = {"ecc": "-e", "mig": "-mig"}
_STATES = {True: "on", False: "off"}


class Modes(t.NamedTuple):
    """What is asked for; None leaves a mode as it is. A variable gpu_driver_<name> each."""

    ecc: bool | None = None
    mig: bool | None = None

    def asked(self) -> list[tuple[str, bool]]:
        return [(name, value) for name, value in self._asdict().items() if value is not None]


def problems(modes: Modes, inventory: Inventory) -> list[Problem]:
    """What keeps the modes from being set. GPUs that no driver answers for yet are looked at once one does."""
    asked = modes.asked()
    if asked and inventory["container"]:
        names = " and ".join(f"gpu_driver_{name}" for name, _value in asked)
        text = (
            f"expected {names} on the machine that drives the GPUs, found a container; set it there (a hypervisor: in host_vars or "
            "group_vars of its own, which its containers do not share), and leave it out here."
        )
        return [Problem("modes_in_container", text)]
    found = []
    for name, value in asked:
        unable = [label(gpu) for gpu in own_gpus(inventory) if _unable(gpu, name)]
        # Off is what a GPU without the mode has.
        if value and unable:
            text = (
                f"expected {name.upper()} on every GPU, found that {', '.join(unable)} {'has' if len(unable) == 1 else 'have'} none; "
                f"leave gpu_driver_{name} out."
            )
            found.append(Problem(f"{name}_not_supported", text))
    return found


def changes(modes: Modes, inventory: Inventory) -> list[dict[str, t.Any]]:
    """GPUs that have to be told: {mode, gpu, value, argv, text} each. One that has the value, or will have it, is told nothing."""
    return [
        {
            "mode": name,
            "gpu": gpu["uuid"] or gpu["pci_bus_id"],
            "value": value,
            "argv": ["nvidia-smi", "-i", gpu["uuid"] or gpu["pci_bus_id"], _OPTIONS[name], str(int(value))],
            "text": f"set {name.upper()} {_STATES[value]} for {label(gpu)}, from the next reset or reboot on",
        }
        for name, value in modes.asked()
        for gpu in own_gpus(inventory)
        if _coming(gpu, name) is not None and _coming(gpu, name) != value
    ]


def pending(inventory: Inventory) -> list[str]:
    """What waits for a reset or a reboot, one sentence for each GPU and cause. In a container it is the host's matter."""
    told = []
    for gpu in own_gpus(inventory) if not inventory["container"] else []:
        for name in _OPTIONS:
            if _waits(gpu, name):
                now = gpu[f"{name}_enabled"]
                told.append(f"{name.upper()} is {_STATES[now]} and will be {_STATES[not now]} on {label(gpu)}")
        if gpu["remapped_rows_pending"] or gpu["retired_pages_pending"]:
            told.append(f"bad memory is to be set aside on {label(gpu)}")
    return told


def notes(inventory: Inventory, planned: t.Sequence[t.Mapping[str, t.Any]]) -> list[str]:
    """Services of ours on a GPU whose memory or shape is about to be another: what they were sized for."""
    told = []
    for gpu in own_gpus(inventory):
        modes = [name for name in _OPTIONS if _waits(gpu, name)]
        modes += [change["mode"] for change in planned if change["gpu"] in (gpu["uuid"], gpu["pci_bus_id"])]
        words = " and ".join(name.upper() for name in dict.fromkeys(modes))
        units = sorted({process["unit"] for process in gpu["processes"] if process.get("unit")})
        if modes and units:
            told.append(
                f"{', '.join(units)} runs on {label(gpu)} and is sized for its present {words} mode: "
                "look at its memory again after the reset or reboot"
            )
    return told


def _unable(gpu: t.Mapping[str, t.Any], name: str) -> bool:
    return gpu[f"{name}_enabled"] is None and gpu["reasons"].get(f"{name}_enabled") == NOT_SUPPORTED


def _waits(gpu: t.Mapping[str, t.Any], name: str) -> bool:
    now, coming = gpu[f"{name}_enabled"], _coming(gpu, name)
    return None not in (now, coming) and now != coming


def _coming(gpu: t.Mapping[str, t.Any], name: str) -> bool | None:
    """The value from the next reset or reboot on; None where no driver says it."""
    value = gpu[f"{name}_enabled_pending"]
    return t.cast("bool | None", gpu[f"{name}_enabled"] if value is None else value)
