# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Whether CUDA can be used on every GPU: what a child process tells of its calls of the driver's library, made into causes and cures.

nvidia-smi asks NVML alone, so it works where CUDA does not (no /dev/nvidia-uvm, no fabric manager, another library).

The numbers are CUresult of the CUDA Driver API (cuda.h of CUDA 13.0); causes: its documentation of each, and the cases named here.
"""

from __future__ import annotations

import json
import typing as t

Inventory = t.Mapping[str, t.Any]

# CUresult -> what was found, what to do.
_CAUSES: dict[int, tuple[str, str]] = {
    3: ("the driver was not initialised", "look at the kernel log, and whether /dev/nvidia-uvm can be opened"),
    34: ("a stub library in the place of the driver's", "take the directory stubs out of the library path (ldconfig -p, LD_LIBRARY_PATH)"),
    100: ("no device", "look at the device nodes (/dev/nvidia*) that this user may open, and at CUDA_VISIBLE_DEVICES"),
    101: ("no such device", "look at nvidia-smi -L; a GPU may be lost"),
    214: ("an ECC error that could not be corrected", "reset the GPU; if it comes back, have the card replaced"),
    # Case C17: a node that is missing, or has the major number of an earlier boot.
    304: (
        "a call of the system that failed",
        "make /dev/nvidia-uvm anew (nvidia-modprobe -u -c 0), and look at the container's device rules",
    ),
    # Case C12.
    802: ("a system that is not ready", "start the fabric manager of exactly the driver's version, and look at nvidia-smi -q -d FABRIC"),
    803: ("a library of another version than the module", "install the userland of exactly the module's version, or reboot"),
    # The library of a package cuda-compat: newer than the module, for data centre cards only.
    804: ("a compatibility library that this card does not take", "take cuda-compat out of the library path"),
    999: ("an unknown error", "make /dev/nvidia-uvm anew (nvidia-modprobe -u -c 0); else look at the kernel log for Xid, and reboot"),
}
_OTHER = "look at the kernel log, and at the CUDA Driver API for what this means"
# Not the driver's fault: another program has the GPU, or its memory.
_TAKEN = {2: "its memory is taken", 46: "another process has it to itself (compute mode)"}


class Outcome(t.NamedTuple):
    """What came of the attempt. gpus: by PCI address, whether a context could be made."""

    problems: list[str]
    notes: list[str]
    gpus: dict[str, bool]


def expected(inventory: Inventory) -> int:
    """How many GPUs there are to be tried: those that the driver numbers."""
    return sum(gpu["index"] is not None and gpu["health"] not in ("passed_through", "lost") for gpu in inventory["gpus"])


def not_tried(inventory: Inventory) -> str | None:
    """Why nothing is tried, if so."""
    return None if expected(inventory) else "CUDA was not tried, since no GPU is there that a driver answers for"


def outcome(lines: str, ended: int | None, inventory: Inventory, user: str, timeout_s: int) -> Outcome:
    """lines: what the child told, a JSON object each: {call, gpu} before a call, {call, gpu, code, name} after it, {error} where the
    library cannot be loaded, {count} of the GPUs that CUDA sees. ended: the signal that ended it, 0 for none, None when it did not end in
    time. The last line may be cut off."""
    told = []
    for line in lines.splitlines():
        try:
            told.append(json.loads(line))
        except ValueError:
            break
    last = told[-1] if told else {}
    problems: list[str] = []
    notes: list[str] = []
    gpus: dict[str, bool] = {}
    for one in told:
        if "error" in one:
            cure = "install the driver's userland (libcuda1, libnvidia-compute), or run ldconfig"
            problems.append(f"expected that the user {user} can load the driver's library for CUDA, found: {one['error']}; {cure}.")
        if "code" not in one:
            continue
        gpu = one.get("gpu")
        where = f" on the GPU {gpu}" if gpu else ""
        if gpu:
            gpus[gpu] = gpus.get(gpu, True) and one["code"] == 0
        if one["code"] in _TAKEN:
            notes.append(f"a CUDA context could not be tried{where}: {_TAKEN[one['code']]}")
        elif one["code"]:
            found, cure = _CAUSES.get(one["code"], ("an error", _OTHER))
            problems.append(
                f"expected that the user {user} can use CUDA{where}, found {found} ({one['call']}: {one['name'] or 'CUDA_ERROR'}, "
                f"{one['code']}); {cure}."
            )
    if ended != 0:
        doing = f"{last.get('call', 'loading the library')}{' on the GPU ' + last['gpu'] if last.get('gpu') else ''}"
        how = f"did not end in {timeout_s} s" if ended is None else f"was ended by signal {ended}"
        text = f"expected that the user {user} can use CUDA, found that {doing} {how}; look at the kernel log for Xid, and reboot."
        problems.append(text)
    count = next((one["count"] for one in told if "count" in one), None)
    divided = any(gpu["mig_enabled"] for gpu in inventory["gpus"])  # CUDA shows a process one MIG device
    if count is not None and count < expected(inventory) and not divided:
        text = f"expected {expected(inventory)} GPUs in CUDA, as in nvidia-smi, found {count}; look at the device nodes and at MIG."
        problems.append(text)
    if not told and ended == 0:
        problems.append(f"expected that the user {user} can use CUDA, found that it could not be tried; look whether this user may log in.")
    return Outcome(problems, notes, gpus)
