# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The controller's half of engine_environment: reads the locks, shows the progress of a build."""

from __future__ import annotations

import typing as t
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible_collections.firstlight.sglang.plugins.module_utils import _engine_environment, _lockfile
from ansible_collections.firstlight.sglang.plugins.plugin_utils.long_job import read_source, run_long

MODULE = "firstlight.sglang.engine_environment"


class ActionModule(ActionBase):
    """Runs the module: quickly when there is nothing to do, else asynchronously and with a line every ten seconds."""

    TRANSFERS_FILES = False
    _requires_connection = True

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        args = dict(self._task.args)
        large: dict[str, str] = {}
        for source, content in (("lock_src", "lock_content"), ("uv_lock_src", "uv_lock_content")):
            path = args.pop(source, None)
            if path:
                large[content] = read_source(self, source, str(path))
        if "lock_content" in large:
            args["lock_sha256"] = _lockfile.sha256(large["lock_content"])
        if args.get("state", "present") == "absent" or not args.get("path"):
            return t.cast("dict[str, t.Any]", self._execute_module(module_name=MODULE, module_args=args, task_vars=task_vars))
        if self._task.diff and self._task.check_mode:
            # The difference is told by package, so the module needs the lock.
            args.update(large)
        path = Path(str(args["path"]))
        return run_long(
            self,
            MODULE,
            args,
            task_vars,
            _engine_environment.describe,
            base=str(path.with_name(f".{path.name}")),
            timeout_s=int(args.get("timeout_s", 7200)),
            only_long=lambda: large,
        )
