# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""The options of SGLang's releases, read from the collection's own data (on the controller)."""

from __future__ import annotations

import functools
import json
import pathlib

from ansible_collections.firstlight.sglang.plugins.module_utils._flags import FlagHistory, FlagTable

_OPTIONS = pathlib.Path(__file__).resolve().parent / "data/flags/options.json"


@functools.cache
def history() -> FlagHistory:
    """All releases."""
    return FlagHistory(json.loads(_OPTIONS.read_text(encoding="utf-8")))


@functools.cache
def table(release: str) -> FlagTable | None:
    """The options of one release, or None when it is not in the data."""
    return history().table(release)
