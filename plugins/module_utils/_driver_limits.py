# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Whether a host needs a driver at all, in which mode, and which flavours and branches fit its GPUs and the engine."""

from __future__ import annotations

import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_sources as src
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_generations
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_facts import Inventory, Problem, Wanted

# Mode


def label(gpu: t.Mapping[str, t.Any]) -> str:
    words = [gpu["name"] or gpu["pci_device_id"], (gpu["generation"] or {}).get("architecture")]
    return f"{gpu['pci_bus_id'] or 'a GPU'} ({', '.join(word for word in words if word)})"


def own_gpus(inventory: Inventory) -> list[t.Mapping[str, t.Any]]:
    """GPUs that this host drives itself (case C24)."""
    return [gpu for gpu in inventory["gpus"] if gpu["health"] != "passed_through"]


def answers(inventory: Inventory) -> bool:
    """Whether NVML or nvidia-smi tells of a GPU: only they number them."""
    return any(gpu["index"] is not None for gpu in own_gpus(inventory))


def guests_of(inventory: Inventory) -> list[str]:
    return [label(gpu) for gpu in inventory["gpus"] if gpu["health"] == "passed_through"]


def nothing_to_drive(inventory: Inventory, mode: str) -> tuple[str, Problem] | None:
    """Why this host needs no driver, as a reason to do nothing and as a problem."""
    if inventory["virtualization"] == "wsl":
        why = "this is WSL, whose driver is Windows'"
        return why, Problem(
            "wsl", f"expected a host with a driver of its own, found that {why}; install it there, and set gpu_driver_required: false here."
        )
    if inventory["container"] or mode == "userland" or own_gpus(inventory):
        return None
    guests = guests_of(inventory)
    why = f"every NVIDIA GPU is handed to guests: {', '.join(guests)}" if guests else "there is no NVIDIA GPU on the PCI bus"
    cure = "unbind it from vfio, or leave the role off this host" if guests else "set gpu_driver_required: false where that is right"
    return why, Problem("no_gpu", f"expected an NVIDIA GPU for a driver, found that {why}; {cure}.")


def mode_of(wanted: Wanted, inventory: Inventory) -> tuple[str, list[Problem]]:
    container = inventory["container"]
    if container and wanted.mode == "kernel":
        text = (
            f"expected a kernel of its own for mode kernel, found a container ({inventory['virtualization']}); install the module on its "
            "host, and take mode auto here."
        )
        return "kernel", [Problem("kernel_mode_in_container", text)]
    mode = ("userland" if container else "kernel") if wanted.mode not in ("kernel", "userland") else wanted.mode
    if mode == "userland" and wanted.mode == "auto" and wanted.of_module():
        asked = ", ".join(wanted.of_module())
        text = (
            f"expected no options of a kernel module in a container, which has none of its own, found {asked}; set them for its host "
            "(a hypervisor: in host_vars or group_vars of its own, which its containers do not share), and leave them out here."
        )
        return mode, [Problem("kernel_options_in_container", text)]
    return mode, []


# What fits the GPUs and the engine


class Limits(t.NamedTuple):
    """Flavours that drive all GPUs; low: the oldest version that is enough, and why; high: the last branch that has all GPUs."""

    flavours: tuple[str, ...]
    low: str
    why: str
    high: int | None

    def fit(self, branch: int, version: str | None) -> bool:
        lowest = src.parse_version(self.low) or (0,)
        parsed = src.parse_version(version or "")
        enough = parsed >= lowest if parsed else branch >= lowest[0]
        return enough and (self.high is None or branch <= self.high)

    def words(self) -> str:
        parts = [f"driver {self.low} or later ({self.why})"] if self.why else []
        parts += [f"branch {self.high} at most (the last for the GPU)"] if self.high else []
        return " and ".join(parts) or "a driver"


def limits(wanted: Wanted, inventory: Inventory, mode: str) -> tuple[Limits, list[Problem]]:
    needs = src.engine_needs(wanted.sglang_release) if wanted.sglang_release else None
    low, why = (needs.driver, f"SGLang {wanted.sglang_release} brings CUDA {needs.cuda}") if needs else ("0", "")
    if mode == "userland":
        return Limits(src.FLAVOURS, low, why, None), []
    known, problems = _generations(wanted, own_gpus(inventory))
    flavours, found = _flavours(wanted, known)
    problems += found
    last = min((one for one in known if one[1].driver_branch_last), key=lambda one: one[1].driver_branch_last or 0, default=None)
    first = max((one for one in known if one[1].driver_branch_first), key=lambda one: one[1].driver_branch_first or 0, default=None)
    high = last[1].driver_branch_last if last else None
    least = first[1].driver_branch_first if first else None
    if last and high and high < (src.parse_version(low) or (0,))[0]:
        text = f"expected driver {low} or later ({why}), found {label(last[0])}, whose last branch is {high}; "
        text += "take an older release of SGLang, or another GPU."
        problems.append(Problem("gpu_too_old", text))
    if last and first and high and least and high < least:
        text = (
            f"expected a branch that drives all GPUs, found that {label(last[0])} ends with {high} and {label(first[0])} begins with "
            f"{least}; hand one of them to a guest, or take it out."
        )
        problems.append(Problem("no_common_branch", text))
    if first and least and least > (src.parse_version(low) or (0,))[0]:
        low, why = f"{least}.00", f"the first branch for {label(first[0])} is {least}"
    return Limits(flavours, low, why, high), problems


_Known = t.List[t.Tuple[t.Mapping[str, t.Any], _gpu_generations.Generation]]  # noqa: UP006 - evaluated, and Python 3.8 is looked at too


def _generations(wanted: Wanted, gpus: t.Sequence[t.Mapping[str, t.Any]]) -> tuple[_Known, list[Problem]]:
    """GPUs with their generation; an unknown one needs the operator's word (case C06)."""
    known: _Known = []
    problems = []
    for gpu in gpus:
        # The id says more: it tells H100 from Grace Hopper, and it is there before a driver is.
        generation = _gpu_generations.by_pci_device_id(gpu["pci_device_id"] or "") or _gpu_generations.by_compute_capability(
            gpu["compute_capability"] or ""
        )
        if generation is not None:
            known.append((gpu, generation))
        elif wanted.flavour == "auto":
            text = (
                f"expected a GPU of a known generation, found {label(gpu)}; set gpu_driver_flavour to open (Turing and later) or to "
                "proprietary (Hopper and earlier)."
            )
            problems.append(Problem("unknown_gpu", text))
    return known, problems


def _flavours(wanted: Wanted, known: _Known) -> tuple[tuple[str, ...], list[Problem]]:
    """Flavours that drive all GPUs and are asked for (cases C02, C04)."""
    flavours = tuple(_gpu_generations.common_flavours(generation for _gpu, generation in known)) if known else src.FLAVOURS
    if not flavours:
        needs = {one.kernel_module_flavours[0]: gpu for gpu, one in known if len(one.kernel_module_flavours) == 1}
        told = " and ".join(f"{label(gpu)} needs the {flavour} one" for flavour, gpu in needs.items())
        text = f"expected one kernel module for all GPUs, found that {told}; hand one of them to a guest, or take it out."
        return (), [Problem("no_common_flavour", text)]
    if wanted.flavour not in ("auto", *flavours):
        other = next((gpu for gpu, one in known if wanted.flavour not in one.kernel_module_flavours), None)
        card = f" for {label(other)}" if other else ""
        text = f"expected the {flavours[0]} module{card}, found gpu_driver_flavour {wanted.flavour}; change it, or take auto."
        return flavours, [Problem("wrong_flavour", text)]
    return (wanted.flavour,) if wanted.flavour in flavours else flavours, []
