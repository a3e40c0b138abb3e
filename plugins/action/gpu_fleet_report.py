# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Writes the fleet report on the controller, from the results of gpu_info that the plays before it have registered."""

from __future__ import annotations

import datetime
import typing as t
from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_fleet import (
    STATUS_WORDS,
    count,
    csv_text,
    difference,
    fleet,
    json_text,
    markdown_text,
    outcome,
    read_document,
    summary_words,
)
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_fleet_page import page
from ansible_collections.firstlight.sglang.plugins.plugin_utils.report import html, write

NAME = "gpu_inventory"
RESULT = "gpu_inventory_result"  # what the role gpu_inventory exports of a look that succeeded
LOOK = "__gpu_inventory_look"  # what it has registered of any look
NAMED_AT_MOST = 5  # hosts in a message; the report names them all

WRITERS: dict[str, t.Callable[[dict[str, t.Any]], str]] = {
    "json": json_text,
    "csv": csv_text,
    "md": markdown_text,
    "html": lambda document: html("gpu_fleet.html.j2", page=page(document)),
}


def file_mode(value: t.Any) -> int:
    """0644 as Ansible takes it: text is octal, a number is what YAML has made of it."""
    try:
        mode = value if isinstance(value, int) else int(str(value), 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise AnsibleActionFail(f'mode: expected an octal mode such as "0644", found: {value}')
    return mode


def registered_results(hostvars: t.Any, hosts: t.Iterable[str], variable: str) -> dict[str, t.Any]:
    """What each host has registered, or None. Read as it is: templating what a thousand hosts have registered would take minutes.

    A host on which the role gpu_inventory has failed has no RESULT; why is in its LOOK.
    """
    names = (RESULT, LOOK) if variable == RESULT else (variable,)
    found = {}
    for host in hosts:
        variables = hostvars.raw_get(host)
        values = [variables.get(name) for name in names] if isinstance(variables, t.Mapping) else []
        found[host] = next((value for value in values if value is not None), None)
    return found


def verdict(document: dict[str, t.Any], fail_on: t.Container[str]) -> str:
    """Why the task fails although the report is written, or nothing."""
    silent = [one for one in document["unanswered"] if one["status"] in fail_on]
    words = []
    if silent:
        named = "; ".join(f"{one['host']} ({STATUS_WORDS[one['status']]}: {one['reason']})" for one in silent[:NAMED_AT_MOST])
        more = f"; and {len(silent) - NAMED_AT_MOST} more" if len(silent) > NAMED_AT_MOST else ""
        words.append(f"{len(silent)} of {count(document['summary']['hosts'], 'host')} gave no answer: {named}{more}.")
    for severity in ("error", "warning"):
        number = document["summary"]["problems"][severity]
        if severity in fail_on and number:
            hosts = list(dict.fromkeys(one["host"] for one in document["problems"] if one["severity"] == severity))
            more = f" and {len(hosts) - NAMED_AT_MOST} more" if len(hosts) > NAMED_AT_MOST else ""
            words.append(f"{count(number, severity)} on {', '.join(hosts[:NAMED_AT_MOST])}{more}.")
    return " ".join(words)


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "path": {"type": "path", "default": "reports"},
                "results": {"type": "dict"},
                "hosts": {"type": "list", "elements": "str"},
                "variable": {"type": "str", "default": RESULT},
                "formats": {"type": "list", "elements": "str", "choices": ["csv", "md", "html"], "default": ["csv", "md", "html"]},
                "mode": {"type": "raw", "default": "0644"},
                "fail_on": {
                    "type": "list",
                    "elements": "str",
                    "choices": ["unreachable", "failed", "no_result", "error", "warning"],
                    "default": ["unreachable", "failed", "no_result"],
                },
            }
        )
        mode = file_mode(args["mode"])
        hosts, results = args["hosts"], args["results"]
        if hosts is None:
            hosts = list(results) if results is not None else task_vars.get("ansible_play_hosts_all", [])
        if not hosts:
            raise AnsibleActionFail("hosts: expected at least one host to report on, found none")
        left_out = 0
        if results is None:
            results = registered_results(task_vars["hostvars"], hosts, args["variable"])
            left_out = len(set(task_vars["groups"]["all"]) - set(hosts)) if task_vars.get("ansible_limit") else 0
        document = fleet({host: outcome(results.get(host)) for host in hosts}, self._now(), left_out)

        directory = Path(args["path"]).expanduser().absolute()
        files = {name: directory / f"{NAME}.{name}" for name in ("json", *args["formats"])}
        try:
            before = read_document(files["json"].read_text(encoding="utf-8", errors="replace")) if files["json"].exists() else None
            lines = difference(before, document)
            missing = [str(path) for path in files.values() if not path.exists()]
            result["changed"] = bool(missing or before is None or any(lines))
            if not self._task.check_mode:
                for name, path in files.items():
                    write(path, WRITERS[name](document), mode)
        except OSError as error:
            raise AnsibleActionFail(f"path: expected a directory that reports can be written to, found: {error}") from error

        stale = [f"{NAME}.{name}" for name in WRITERS if name not in files and (directory / f"{NAME}.{name}").exists()]
        if stale:
            result["warnings"] = [f"formats: {', '.join(stale)} in {directory} are of an earlier report, and are not written anew."]
        result.update(files=[str(path) for path in files.values()], summary=document["summary"])
        if self._task.diff:
            if before is None:
                lines = ("", f"{summary_words(document)}\n")
            result["diff"] = {"before_header": "earlier report", "after_header": str(files["json"]), "before": lines[0], "after": lines[1]}
        words = verdict(document, args["fail_on"])
        if words:
            written = "would be" if self._task.check_mode else "is"
            result.update(failed=True, msg=f"{words} The report {written} written: {files.get('html', files['json'])}")
        else:
            result["msg"] = summary_words(document)
        return result

    def _now(self) -> str:
        return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
