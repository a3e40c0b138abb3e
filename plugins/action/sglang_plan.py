# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plans the instances of a host on the controller, shows the pictures and writes the reports."""

from __future__ import annotations

import base64
import datetime
import json
import os
import typing as t
from pathlib import Path

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.firstlight.sglang.plugins.module_utils import _plan_answer, _plan_page, _plan_text
from ansible_collections.firstlight.sglang.plugins.module_utils._plan_question import GIVEN, WANT
from ansible_collections.firstlight.sglang.plugins.module_utils._status import InputError, check_instances
from ansible_collections.firstlight.sglang.plugins.plugin_utils import plan_instances, plan_model
from ansible_collections.firstlight.sglang.plugins.plugin_utils.report import html, write

display = Display()
KEYS = ("name", "model", "argv", "environment")


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        formats = ["json", "md", "html"]
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "instances": {"type": "list", "elements": "dict", "required": True},
                "gpus": {"type": "raw", "required": True},
                "want": {"type": "dict", "options": {key: {"type": "int"} for key in WANT}},
                "given": {"type": "dict", "options": {key: {"type": "float"} for key in GIVEN}},
                "path": {"type": "path", "default": "reports"},
                "formats": {"type": "list", "elements": "str", "choices": formats, "default": formats},
                "show": {"type": "bool", "default": True},
            }
        )
        try:
            check_instances(args["instances"], KEYS)
        except InputError as error:
            raise AnsibleActionFail(str(error)) from error
        plans, problems = {}, []
        for instance in args["instances"]:
            if plan_instances.on_cpu(instance):
                continue
            question, wrong = plan_instances.ask(
                instance, args["gpus"], args["want"] or {}, args["given"] or {}, lambda one: self._model(one, task_vars)
            )
            plan = None
            if question is not None:
                plan, wrong = _plan_answer.answer(question)
            if plan is not None:
                plans[instance["name"]] = plan
            problems += [f"{instance['name']}: {problem}" for problem in wrong]
        host = str(task_vars.get("inventory_hostname", ""))
        result.update(
            changed=False,
            plans=plans,
            verdicts={name: plan["verdict"] for name, plan in plans.items()},
            passed_over=[one["name"] for one in args["instances"] if plan_instances.on_cpu(one)],
            files=[] if self._task.check_mode else self._write(Path(args["path"]), host, plans, args["formats"]),
        )
        for name, plan in plans.items() if args["show"] else ():
            display.display(f"[{host}: {name}]\n{_plan_text.text(plan)}")  # in one call, so that those of several hosts do not mix
        if problems:
            del result["plans"]  # a failed task shows its whole result
            result.update(failed=True, msg="\n".join([f"{len(problems)} reasons why there is no plan:", *(f"- {one}" for one in problems)]))
        return result

    def _model(self, instance: t.Mapping[str, t.Any], task_vars: dict[str, t.Any]) -> plan_model.Found:
        """The fields of a model's configuration: of the instance itself, of the checkpoint on the host, or of the Hub."""
        model = instance["model"]
        if isinstance(model.get("config"), dict):
            return plan_model.Found(model["name"], "catalogue", model["config"])
        config = self._slurp(f"{model['path']}/config.json", task_vars) if model.get("path") else None
        if config is not None:
            quant = self._slurp(f"{model['path']}/hf_quant_config.json", task_vars)
            parsed = None if quant is None else plan_model.parse_object("hf_quant_config.json", quant)
            return plan_model.Found(model["name"], "directory", plan_model.parse_object("config.json", config), parsed)
        if model["source"] != "hub":
            raise plan_model.ModelError(
                f"model: expected model.config in group_vars, or {model['path']}/config.json on the host, found neither"
            )
        return plan_model.from_hub(model["name"], model.get("revision"), os.environ)

    def _slurp(self, path: str, task_vars: dict[str, t.Any]) -> bytes | None:
        """A file of the host, or None when there is none, or no way to the host."""
        try:
            found = self._execute_module(module_name="ansible.builtin.slurp", module_args={"src": path}, task_vars=task_vars)
        except AnsibleConnectionFailure:
            return None
        return base64.b64decode(found["content"]) if "content" in found else None

    def _write(self, path: Path, host: str, plans: t.Mapping[str, t.Any], formats: t.Container[str]) -> list[str]:
        place = path.expanduser().absolute() / host
        texts = {}
        for name, plan in plans.items():
            texts[place / name / "plan.json", "json"] = json.dumps(plan, indent=2, ensure_ascii=False) + "\n"
            texts[place / name / "plan.md", "md"] = _plan_text.markdown(plan)
        if plans and "html" in formats:
            now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            entries = [_plan_page.Entry(f"{host}: {name}", plan) for name, plan in plans.items()]
            texts[place / "plan.html", "html"] = html("plan.html.j2", page=_plan_page.page(entries, now))
        try:
            return [write(file, text) for (file, kind), text in texts.items() if kind in formats]
        except OSError as error:
            raise AnsibleActionFail(f"path: expected a directory that reports can be written to, found: {error}") from error
