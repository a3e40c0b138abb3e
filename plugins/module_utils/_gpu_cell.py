# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""One cell of what a source says about a GPU: a value, or one of three kinds of nothing. And what all sources are read into."""

from __future__ import annotations

import dataclasses
import re
import typing as t

NOT_SUPPORTED = "not_supported"
NO_PERMISSION = "no_permission"
UNKNOWN = "unknown"


class Nothing(t.NamedTuple):
    """Why there is no value (one of the three reasons), and the word that the source used."""

    reason: str
    text: str = ""


# What a reading holds for a field. Values are str, int, float, bool, or lists of dictionaries of these.
Cell = t.Any


@dataclasses.dataclass(frozen=True)
class Failure:
    """A GPU that a source names but cannot reach."""

    index: int | None
    pci_bus_id: str | None
    health: str  # lost | needs_reset | unknown
    text: str


@dataclasses.dataclass(frozen=True)
class Reading:
    """What one source says, in the field names of the result (docs/design.md).

    status: ok, missing (the source is not there), failed or timed_out. error: a code for what failed, empty when nothing did.
    """

    source: str
    status: str = "ok"
    error: str = ""
    message: str = ""
    host: dict[str, Cell] = dataclasses.field(default_factory=dict)
    gpus: t.Sequence[dict[str, Cell]] = ()
    failures: t.Sequence[Failure] = ()


# Words that stand where a value should, in lower case and without brackets (cases A05, A10, A11, A12; nvidia-smi 384 to 610).
_REASONS = {
    "": UNKNOWN,
    "n/a": NOT_SUPPORTED,
    "not supported": NOT_SUPPORTED,
    "none": NOT_SUPPORTED,
    "function not found": NOT_SUPPORTED,
    "requested functionality has been deprecated": NOT_SUPPORTED,
    "not applicable": NOT_SUPPORTED,
    "insufficient permissions": NO_PERMISSION,
    "no permission": NO_PERMISSION,
    "permission denied": NO_PERMISSION,
    "unknown error": UNKNOWN,
    "unknown": UNKNOWN,
    "err!": UNKNOWN,
    "error": UNKNOWN,
    "not found": UNKNOWN,
    "gpu requires reset": UNKNOWN,
    "gpu is lost": UNKNOWN,
    "not available": UNKNOWN,
}
_UNITS_MIB = {"B": 1 / 2**20, "KiB": 1 / 1024, "MiB": 1.0, "MB": 1.0, "GiB": 1024.0}  # nvidia-smi before 319 wrote MB for MiB


def nothing(text: str | None) -> Nothing | None:
    """The kind of nothing that a cell's text stands for, or None when it is a value."""
    if text is None:
        return Nothing(UNKNOWN)
    word = text.strip()
    reason = _REASONS.get(word.strip("[]").strip().lower())
    return Nothing(reason, word) if reason else None


def text(cell: str | None) -> Cell:
    """Text as it is printed, trimmed, without terminal escapes and control characters: names go into reports."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x1f\x7f-\x9f]", " ", "" if cell is None else str(cell))
    return nothing(cell) or nothing(plain) or " ".join(plain.split())


# What a value can be at all; beyond it something is broken: unit -> lowest, highest.
_BOUNDS = {"W": (0, 100_000), "%": (0, 100), "C": (-100, 250), "MHz": (0, 100_000)}


def number(cell: str | None, unit: str = "") -> Cell:
    """A number with exactly this unit, or without one (CSV without units): float.

    A unit other than expected, a number that it cannot be, or anything that is not a plain decimal number, is Nothing(unknown): a number is
    never guessed.
    """
    missing = nothing(cell)
    if missing:
        return missing
    match = re.fullmatch(r"(-?\d{1,15}(?:\.\d{1,9})?)\s*(\S*)", str(cell).strip(), re.ASCII)
    low, high = _BOUNDS.get(unit, (float("-inf"), float("inf")))
    if not match or match[2] not in ("", unit) or not low <= float(match[1]) <= high:
        return Nothing(UNKNOWN, str(cell).strip())
    return float(match[1])


def integer(cell: str | None, unit: str = "") -> Cell:
    """A whole number that is not negative."""
    value = number(cell, unit)
    if isinstance(value, Nothing):
        return value
    return int(value) if value >= 0 and value == int(value) else Nothing(UNKNOWN, str(cell).strip())


def signed(cell: str | None, unit: str = "") -> Cell:
    """A whole number that may be negative (temperatures)."""
    value = number(cell, unit)
    if isinstance(value, Nothing):
        return value
    return int(value) if value == int(value) else Nothing(UNKNOWN, str(cell).strip())


def mib(cell: str | None) -> Cell:
    """Memory in MiB, whole, from text with a binary unit or none (MiB)."""
    missing = nothing(cell)
    if missing:
        return missing
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*(\S*)", str(cell).strip(), re.ASCII)
    factor = _UNITS_MIB.get(match[2] or "MiB") if match else None
    if match is None or factor is None:
        return Nothing(UNKNOWN, str(cell).strip())
    return int(float(match[1]) * factor)


def switch(cell: str | None) -> Cell:
    """Enabled, Yes, On, Active and their opposites: bool."""
    missing = nothing(cell)
    if missing:
        return missing
    word = str(cell).strip().lower()
    if word in ("enabled", "yes", "on", "active"):
        return True
    if word in ("disabled", "no", "off", "not active"):
        return False
    return Nothing(UNKNOWN, str(cell).strip())


def version(cell: str | None) -> Cell:
    """A version such as 580.159.04 or 13.0, also with a remark in brackets after it (driver 610); prose is not a version."""
    missing = nothing(cell)
    if missing:
        return missing
    match = re.fullmatch(r"(\d{1,5}(?:\.\d{1,5}){1,3})(?:\s*\[.*)?", str(cell).strip(), re.ASCII | re.DOTALL)
    return match[1] if match else Nothing(UNKNOWN, str(cell).strip())


def pci_bus_id(cell: str | None) -> Cell:
    """A PCI address as nvidia-smi prints it: 8-digit domain, upper case, with the function.

    Takes 01:00.0, 0000:65:00.0, 0000000F:01:00.0, and 0000:0b:00 of kernel messages (function 0).
    """
    missing = nothing(cell)
    if missing:
        return missing
    match = re.fullmatch(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?", str(cell).strip())
    if not match:
        return Nothing(UNKNOWN, str(cell).strip())
    return f"{(match[1] or '0').rjust(8, '0')}:{match[2]}:{match[3]}.{match[4] or '0'}".upper()


def pci_id(cell: str | None) -> Cell:
    """vendor:device in lower case, from nvidia-smi's 0x223010DE or 223010DE (device first)."""
    missing = nothing(cell)
    if missing:
        return missing
    match = re.fullmatch(r"(?:0x)?([0-9a-fA-F]{4})([0-9a-fA-F]{4})", str(cell).strip())
    return f"{match[2]}:{match[1]}".lower() if match else Nothing(UNKNOWN, str(cell).strip())
