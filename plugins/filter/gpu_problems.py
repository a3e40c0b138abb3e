# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

"""Filters that compare the GPUs that instances ask for with those that are there, and one that says why nothing is known of these."""

from __future__ import annotations

from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_choice, _gpu_fleet


class FilterModule:
    """The filters of this file."""

    def filters(self):
        return {"gpu_failure": _gpu_fleet.failure_reason, "gpu_problems": _gpu_choice.problems, "gpu_warnings": _gpu_choice.warnings}
