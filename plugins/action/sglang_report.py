# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Writes the reports on the controller: no task on the target, and none of the cost of a local module."""

from __future__ import annotations

import datetime
import json
import shlex
import socket
import typing as t
from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.firstlight.sglang.plugins.module_utils import _plan_record
from ansible_collections.firstlight.sglang.plugins.module_utils._report import (
    Controller,
    build_report,
    checks_table,
    facts_table,
    failure_of,
    network_address,
    plan_entry,
    plan_table,
)
from ansible_collections.firstlight.sglang.plugins.module_utils._status import InputError, check_instances
from ansible_collections.firstlight.sglang.plugins.plugin_utils.report import write
from jinja2 import Environment, StrictUndefined

display = Display()


def render(template: str, report: dict[str, t.Any]) -> str:
    """The Markdown of one report. Plain Jinja: the template sees the report and nothing of the play."""
    environment = Environment(  # noqa: S701  (Markdown, not HTML)
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    return environment.from_string(template).render(
        report=report, facts_table=facts_table, checks_table=checks_table, plan_table=plan_table
    )


def resolves(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return False
    return True


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "instances": {"type": "list", "elements": "dict", "required": True},
                "wait": {"type": "dict", "default": {}},
                "probe": {"type": "dict", "default": {}},
                "questions": {"type": "list", "elements": "dict", "default": []},
                "directory": {"type": "path", "default": "reports"},
                "template": {"type": "str", "default": "report.md.j2"},
                "plans": {"type": "dict", "default": {}},
                "plans_overridden": {"type": "list", "elements": "str", "default": []},
                "plan_record": {"type": "dict", "default": {}},
            }
        )
        try:
            check_instances(args["instances"], ("name", "url", "served_model_name", "port"))
        except InputError as error:
            raise AnsibleActionFail(str(error)) from error
        host = str((task_vars or {}).get("inventory_hostname", ""))
        template = Path(self._find_needle("templates", args["template"])).read_text(encoding="utf-8")
        wait, probe = args["wait"], args["probe"]
        failure = failure_of(wait, probe)
        if failure.in_wait:
            probe = {}  # what an earlier round found says nothing about this one
        looks = {look["name"]: look for look in wait.get("instances") or []}
        probes = {found["name"]: found for found in probe.get("instances") or []}
        result.update({"changed": False, "files": [], "verdicts": {}})
        controller = self._controller(task_vars or {})
        starts: dict[str, dict[str, t.Any]] = {}
        for instance in args["instances"]:
            questions = (instance.get("verify") or {}).get("questions") or args["questions"]
            report = build_report(
                host=host,
                instance=instance,
                look=looks.get(instance["name"]),
                probe=probes.get(instance["name"]),
                prompt=str(questions[0]["prompt"]) if questions else "Hello.",
                failure=failure.words,
                controller=controller,
                plan=args["plans"].get(instance["name"]),
                plan_overridden=instance["name"] in args["plans_overridden"],
                now=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            )
            starts.update(plan_entry(args["plans"].get(instance["name"]), looks.get(instance["name"]) or {}, instance["name"]))
            text = render(template, report)
            result["verdicts"][instance["name"]] = report["verdict"]
            if not self._task.check_mode:
                place = Path(args["directory"]).expanduser().absolute() / host / instance["name"]
                result["files"].append(write(place / "report.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n"))
                result["files"].append(write(place / "report.md", text))
                text += f"\nThis report: {place / 'report.md'}\n"
            if report["verdict"] == "verified":  # of a failure the message says enough
                display.display(text)  # in one call, so that the reports of several hosts do not mix
        result["plan_record"] = _plan_record.united(args["plan_record"], starts)
        result["plan_record_changed"] = bool(starts) and result["plan_record"] != args["plan_record"]
        if "failed" in result["verdicts"].values() and not failure.told:
            result["failed"] = True
            places = [f"report: {path}" for path in result["files"] if path.endswith(".md")]
            result["msg"] = "\n".join([failure.words, *places])
        return result

    def _controller(self, task_vars: dict[str, t.Any]) -> Controller:
        """How the controller reaches the host, as the connection has it."""
        connection = self._connection

        def option(name: str) -> t.Any:
            return connection.get_option(name) if connection.has_option(name) else None

        options = []
        if connection.transport == "ssh":
            for name in ("ssh_common_args", "ssh_extra_args"):
                options += shlex.split(str(option(name) or ""))
            if option("private_key_file"):
                options += ["-i", str(option("private_key_file"))]
        address = str(option("host") or self._play_context.remote_addr or "")
        named = bool(task_vars.get("ansible_host")) and task_vars["ansible_host"] != task_vars.get("inventory_hostname")
        return {
            "local": connection.transport == "local",
            "address": address,
            "network_address": network_address(address, named=named, options=options, resolves=resolves),
            "user": option("remote_user") or None,
            "port": option("port") or None,
            "options": options,
        }
