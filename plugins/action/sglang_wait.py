# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The controller's half of sglang_wait: looks again and again, shows progress, ends as soon as there is something to say."""

from __future__ import annotations

import time
import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.firstlight.sglang.plugins.module_utils._status import (
    InputError,
    Verdict,
    check_instances,
    check_some_instance,
    compact_look,
    describe,
    failure_message,
    is_new_start,
    judge,
    timeout_message,
)

display = Display()

READ = ("name", "unit", "url", "api_key_path", "current")


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = True

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "instances": {"type": "list", "elements": "dict", "required": True},
                "ready_timeout_s": {"type": "int", "default": 1800},
                "poll_seconds": {"type": "float", "default": 2},
                "report_seconds": {"type": "float", "default": 15},
            }
        )
        instances = args["instances"]
        try:
            check_some_instance(instances, str((task_vars or {}).get("inventory_hostname", "")))
            check_instances(instances, ("name", "unit", "url"))
        except InputError as error:
            raise AnsibleActionFail(str(error)) from error
        limits = {
            instance["name"]: float((instance.get("verify") or {}).get("ready_timeout_s") or args["ready_timeout_s"])
            for instance in instances
        }
        result.update(self._wait(instances, limits, args["poll_seconds"], args["report_seconds"], task_vars or {}))
        result["changed"] = False
        return result

    def _look(self, instances: list[dict[str, t.Any]], since: dict[str, str], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        return self._execute_module(  # type: ignore[no-any-return]
            module_name="firstlight.sglang.sglang_status",
            module_args={"instances": [{name: instance.get(name) for name in READ} for instance in instances], "since": since},
            task_vars=task_vars,
        )

    def _wait(
        self,
        instances: list[dict[str, t.Any]],
        limits: dict[str, float],
        poll_seconds: float,
        report_seconds: float,
        task_vars: dict[str, t.Any],
    ) -> dict[str, t.Any]:
        began = time.monotonic()
        first: dict[str, dict[str, t.Any]] = {}
        shown: dict[str, tuple[str, float]] = {}
        looks = 0
        while True:
            since = {name: look["unit"]["invocation_id"] for name, look in first.items()}
            answer = self._look(instances, since, task_vars)
            looks += 1
            if answer.get("failed") or "instances" not in answer:
                return answer
            waited = time.monotonic() - began
            verdicts: dict[str, Verdict] = {}
            for look in answer["instances"]:
                name = look["name"]
                if name not in first or is_new_start(first[name], look):
                    first[name] = look
                verdicts[name] = judge(first[name], look)
                phase, when = shown.get(name, ("", 0.0))
                if phase != look["phase"] or (verdicts[name].state == "waiting" and waited - when >= report_seconds - poll_seconds):
                    if looks > 1 or verdicts[name].state == "waiting":
                        display.display(f"  [{task_vars.get('inventory_hostname', '')}] {describe(look)}")
                    shown[name] = (look["phase"], waited)
            failures = self._failures(answer["instances"], verdicts, waited, limits)
            done = all(verdict.state == "ready" for verdict in verdicts.values())
            if done or failures or self._task.check_mode:
                break
            time.sleep(poll_seconds)
        result: dict[str, t.Any] = {
            "instances": [compact_look(look) for look in answer["instances"]],
            "looks": looks,
            "waited_seconds": round(time.monotonic() - began, 1),
            "failed_instances": [name for name, verdict in verdicts.items() if verdict.state != "ready"],
        }
        states = "; ".join(describe(look) for look in answer["instances"])
        if failures and not self._task.check_mode:
            others = [
                describe(look) for look in answer["instances"] if look["name"] not in failures and verdicts[look["name"]].state != "ready"
            ]
            result["failed"] = True
            result["msg"] = "\n".join([*failures.values(), *([f"not waited for any longer: {'; '.join(others)}"] if others else [])])
        else:
            result["msg"] = states
        return result

    @staticmethod
    def _failures(looks: list[dict[str, t.Any]], verdicts: dict[str, Verdict], waited: float, limits: dict[str, float]) -> dict[str, str]:
        failures = {}
        for look in looks:
            verdict = verdicts[look["name"]]
            if verdict.state == "failed":
                failures[look["name"]] = failure_message(look, verdict.why, look.get("previous"))
            elif verdict.state == "waiting" and waited >= limits[look["name"]]:
                failures[look["name"]] = timeout_message(look, waited, limits[look["name"]])
        return failures
