# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Whether the disks of a host have room for what an instance needs."""

from __future__ import annotations

import typing as t


def room_problems(needs: t.Iterable[tuple[str, float, float]]) -> list[str]:
    """Places without enough room. needs: (what it is for, GiB needed, GiB free)."""
    return [
        f"expected {needed:g} GB free for {what}, found {free:.1f} GB. Make room, or set sglang_root to a larger disk."
        for what, needed, free in needs
        if free < needed
    ]
