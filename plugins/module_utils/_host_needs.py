# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What an instance needs of a host beside packages: a driver, GPUs, room on disks."""

from __future__ import annotations

import re
import typing as t

# SGLang 0.5.12 and later bring torch for CUDA 13, whose minimum driver is 580.65.06 (CUDA 13.0 release notes, table of driver versions).
LOWEST_DRIVER = (580, 65, 6)


def driver_version(text: str) -> str:
    """The loaded module's version in /proc/driver/nvidia/version, of both wordings; empty when there is none.

    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  ..." and
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  ..."
    """
    match = re.search(r"^NVRM version:.*?Kernel Module(?: for \S+)?\s+(\d+\.[\d.]+)", text, re.MULTILINE)
    return match[1] if match else ""


def gpu_problems(*, wanted: t.Sequence[t.Any], version_text: str, uuids: t.Sequence[str]) -> list[str]:
    """What keeps the GPUs that instances ask for from being used.

    wanted: indices and UUIDs of all instances. version_text: /proc/driver/nvidia/version, empty when it is missing.
    uuids: one for each GPU that the driver lists; empty text where it does not say.
    """
    if not wanted:
        return []
    version = driver_version(version_text)
    lowest = ".".join(f"{part:02d}" for part in LOWEST_DRIVER)
    if not version:
        return [
            f"expected NVIDIA's driver {lowest} or later and the GPUs {', '.join(map(str, wanted))}, found no loaded driver "
            "(/proc/driver/nvidia/version). Install the driver first; in a container, on its host."
        ]
    problems = []
    if tuple(int(part) for part in version.split(".") if part) < LOWEST_DRIVER:
        problems.append(f"expected NVIDIA's driver {lowest} or later (SGLang brings CUDA 13), found {version} loaded. Upgrade the driver.")
    missing = [gpu for gpu in wanted if not (gpu in uuids if isinstance(gpu, str) and not gpu.isdigit() else int(gpu) < len(uuids))]
    if missing:
        problems.append(f"expected the GPUs {', '.join(map(str, missing))}, found {len(uuids)} GPUs (indices begin with 0). Change gpus.")
    return problems


def room_problems(needs: t.Iterable[tuple[str, float, float]]) -> list[str]:
    """Places without enough room. needs: (what it is for, GiB needed, GiB free)."""
    return [
        f"expected {needed:g} GB free for {what}, found {free:.1f} GB. Make room, or set sglang_root to a larger disk."
        for what, needed, free in needs
        if free < needed
    ]
