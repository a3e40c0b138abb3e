# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The controller's half of sglang_checkpoint: reads the script, shows the progress of a download or build."""

from __future__ import annotations

import pathlib
import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.firstlight.sglang.plugins.module_utils import _checkpoint
from ansible_collections.firstlight.sglang.plugins.plugin_utils.long_job import read_source, run_long

MODULE = "firstlight.sglang.sglang_checkpoint"


class ActionModule(ActionBase):
    """Runs the module: quickly when there is nothing to do, else asynchronously and with a line every few seconds."""

    TRANSFERS_FILES = False
    _requires_connection = True

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        args = dict(self._task.args)
        script = args.pop("script_src", None)
        if args.get("state", "present") == "absent" or args.get("source", "local") == "local" or not args.get("path"):
            return t.cast("dict[str, t.Any]", self._execute_module(module_name=MODULE, module_args=args, task_vars=task_vars))
        path = pathlib.Path(str(args["path"]))
        return run_long(
            self,
            MODULE,
            args,
            task_vars,
            _checkpoint.describe,
            base=str(path.with_name(f".{path.name}")),
            timeout_s=int(args.get("timeout_s", 86400)),
            only_long=lambda: {"script_content": read_source(self, "script_src", str(script))} if script else {},
        )
