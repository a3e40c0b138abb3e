#!/usr/bin/python
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_report
short_description: Writes the reports of SGLang instances on the controller
version_added: 0.1.0
description:
  - Makes one report per instance out of what was resolved, looked at and probed, and writes it on the controller, as JSON for machines and
    as Markdown for people, to C(<directory>/<host>/<instance>/report.json) and C(report.md).
  - Prints the Markdown of each verified instance, with the path of its file. Of the others the message says what is wrong.
  - Fails when an instance is not verified, with the message of O(wait) or O(probe), unless one of them failed as a task and has said it.
  - Timings differ from run to run, so the files do too. A report is a record of a run and no state of the host, so it is never a change.
  - This is an action. It runs on the controller, and nothing of it on the target.
attributes:
  action:
    description: Runs on the controller.
    support: full
  check_mode:
    description: Writes nothing in check mode.
    support: full
  diff_mode:
    description: Never changes anything on a host, so there is nothing to show.
    support: none
options:
  instances:
    description: Resolved instances, as the lookup P(firstlight.sglang.instances#lookup) returns them.
    type: list
    elements: dict
    required: true
  wait:
    description: The result of M(firstlight.sglang.sglang_wait).
    type: dict
    default: {}
  probe:
    description: The result of M(firstlight.sglang.sglang_probe).
    type: dict
    default: {}
  questions:
    description: Questions of instances without their own, for the example in the report.
    type: list
    elements: dict
    default: []
  directory:
    description: Where the reports go. A relative path begins at the directory in which Ansible was started.
    type: path
    default: reports
  plans:
    description: Plans by instance, as M(firstlight.sglang.sglang_plan) returns them. The report sets them beside what came.
    type: dict
    default: {}
  plans_overridden:
    description: Names of instances that were started although their plan does not fit.
    type: list
    elements: str
    default: []
  plan_record:
    description: What the host remembers of earlier starts, as M(firstlight.sglang.sglang_plan) returns it.
    type: dict
    default: {}
  template:
    description: Template of the Markdown, found as C(template) tasks find theirs.
    type: str
    default: report.md.j2
author:
  - Firstlight maintainers (@firstlight)
"""

EXAMPLES = r"""
- name: Write the reports
  firstlight.sglang.sglang_report:
    instances: "{{ query('firstlight.sglang.instances') }}"
    wait: "{{ wait_result }}"
    probe: "{{ probe_result }}"
    directory: reports
  register: report
"""

RETURN = r"""
plan_record:
  description: What the host should remember now, with this start.
  returned: always
  type: dict
plan_record_changed:
  description: Whether that differs from O(plan_record).
  returned: always
  type: bool
files:
  description: The files that were written.
  returned: always
  type: list
  elements: str
verdicts:
  description: C(verified) or C(failed), by instance.
  returned: always
  type: dict
  sample: {demo: verified}
"""
