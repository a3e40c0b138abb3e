# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plans the instances of a host on the controller, shows the pictures and writes the reports."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import json
import os
import typing as t
from pathlib import Path

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.firstlight.sglang.plugins.module_utils import _plan_answer, _plan_page, _plan_record, _plan_text
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
                "override": {"type": "list", "elements": "str", "default": []},
                "required": {"type": "bool", "default": True},
                "record_path": {"type": "path", "default": "/var/lib/firstlight/plans.json"},
            }
        )
        try:
            check_instances(args["instances"], KEYS)
        except InputError as error:
            raise AnsibleActionFail(str(error)) from error
        planned = [one for one in args["instances"] if not (plan_instances.on_cpu(one) and isinstance(args["gpus"], str))]
        record, problems = self._record(args["record_path"], task_vars) if planned else ({}, [])
        plans: dict[str, dict[str, t.Any]] = {}
        for instance in planned:
            plan, wrong = self._plan(instance, args, record, task_vars)
            if plan is not None:
                plans[instance["name"]] = plan
            problems += [f"{instance['name']}: {problem}" for problem in wrong]
        refusals = {name: words for name, plan in plans.items() if (words := _plan_record.refusal(plan))}
        host = str(task_vars.get("inventory_hostname", ""))
        result.update(
            changed=False,
            plans=plans,
            verdicts={name: plan["verdict"] for name, plan in plans.items()},
            passed_over=[one["name"] for one in args["instances"] if one not in planned],
            refused=[f"{name}: {words}" for name, words in refusals.items() if name not in args["override"]],
            overridden=[f"{name}: {words}" for name, words in refusals.items() if name in args["override"]],
            unplanned=problems,
            record=record,
            files=[] if self._task.check_mode else self._write(Path(args["path"]), host, plans, args["formats"]),
        )
        for name, plan in plans.items() if args["show"] else ():
            display.display(f"[{host}: {name}]\n{_plan_text.text(plan)}")  # in one call, so that those of several hosts do not mix
        if problems:
            del result["plans"]  # a failed task shows its whole result
            result.update(failed=True, msg="\n".join([f"{len(problems)} reasons why there is no plan:", *(f"- {one}" for one in problems)]))
        return result

    def _plan(
        self, instance: t.Mapping[str, t.Any], args: t.Mapping[str, t.Any], record: t.Mapping[str, t.Any], task_vars: dict[str, t.Any]
    ) -> tuple[dict[str, t.Any] | None, list[str]]:
        """The plan of one instance; with the numbers of an earlier start of the same, unless others are given."""
        given = {key: value for key, value in (args["given"] or {}).items() if value is not None}
        question, wrong = plan_instances.ask(instance, args["gpus"], args["want"] or {}, given, lambda one: self._model(one, task_vars))
        if question is None:
            return None, wrong
        plan, wrong = _plan_answer.answer(question)
        measured = _plan_record.given(record, plan) if plan is not None and not given else None
        if measured is None:
            return plan, wrong
        note = "memory as it was measured at an earlier start of the same"
        known = {**question.given, **measured}
        return _plan_answer.answer(dataclasses.replace(question, given=known, notes=(*question.notes, note)))

    def _record(self, path: str, task_vars: dict[str, t.Any]) -> tuple[dict[str, t.Any], list[str]]:
        """What the host remembers of earlier starts, and what is wrong with its file."""
        text = self._slurp(path, task_vars)
        try:
            return ({} if text is None else _plan_record.read(text.decode("utf-8"))), []
        except ValueError as error:
            return {}, [f"{path}: expected the record of earlier plans, found: {error}; remove the file"]

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
