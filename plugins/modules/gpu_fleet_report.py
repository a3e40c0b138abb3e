#!/usr/bin/python
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_fleet_report
short_description: Writes one report on the GPUs of many hosts on the controller
version_added: 0.1.0
description:
  - Unites the results of M(firstlight.sglang.gpu_info) of many hosts, and writes them on the controller as C(gpu_inventory.json)
    (everything, one record a line), C(gpu_inventory.csv) (one line per GPU), C(gpu_inventory.md) and C(gpu_inventory.html) (one page that
    needs nothing else, for phone, screen and paper).
  - Hosts that could not be reached, on which M(firstlight.sglang.gpu_info) failed, or that were never asked are listed with the reason.
  - Takes place once for all hosts, so the task needs C(run_once).
  - Fails B(after) the report is written when hosts are missing in it (O(fail_on)), so that a run which did not see everything does not end
    as a success.
  - This is an action. It runs on the controller, and nothing of it on the target.
attributes:
  action:
    description: Runs on the controller.
    support: full
  check_mode:
    description: Writes nothing in check mode and says whether it would.
    support: full
  diff_mode:
    description: Shows the fields that differ from the report that is there, one a line.
    support: full
  idempotent:
    description:
      - Is a change when a file is missing, or when something differs from the report that is there, but for the time and for what moves by
        itself (memory in use, power, temperature, clocks, utilisation, processes, the PCIe generation of an idle link).
      - The files are written anew every time, so that the time and the moving numbers in them are those of the last look.
    support: full
options:
  path:
    description: Directory of the files, made when it is missing. A relative path begins at the directory in which Ansible was started.
    type: path
    default: reports
  results:
    description:
      - Host to the registered result of M(firstlight.sglang.gpu_info) on it, also of one that failed or could not be reached.
      - When it is not given, each host's variable of the name O(variable) is read, without templating.
    type: dict
  hosts:
    description:
      - The hosts of the report. One without a result is listed as never asked.
      - By default those of O(results), else all hosts of the play, C(ansible_play_hosts_all), which follows C(--limit).
        A report that C(--limit) has kept hosts out of says so, and replaces the one of all hosts in the same directory.
    type: list
    elements: str
  variable:
    description:
      - Name of the variable in which each host has registered its result.
      - By default what the role C(gpu_inventory) exports. Of a host on which that has failed, or that could not be reached, the role knows
        why, and so does the report.
    type: str
    default: gpu_inventory_result
  formats:
    description:
      - What to write beside the JSON, which is always written, because the next run compares with it.
      - Files of other formats that an earlier report has left in the directory stay as they are; a warning names them.
    type: list
    elements: str
    choices: [csv, md, html]
    default: [csv, md, html]
  mode:
    description: Permissions of the files. A report names serial numbers and processes.
    type: raw
    default: "0644"
  fail_on:
    description:
      - What makes the task fail once the report is written.
      - V(unreachable), V(failed) and V(no_result) are hosts without an answer; V(error) and V(warning) are problems that were found.
    type: list
    elements: str
    choices: [unreachable, failed, no_result, error, warning]
    default: [unreachable, failed, no_result]
author:
  - Firstlight maintainers (@firstlight)
"""

EXAMPLES = r"""
- name: Write the report of all hosts of the play, on which the role gpu_inventory has run with gpu_inventory_required=false
  firstlight.sglang.gpu_fleet_report:
    path: reports
  run_once: true
  delegate_to: localhost

- name: Write a report of results from elsewhere, and fail on GPU errors too
  firstlight.sglang.gpu_fleet_report:
    results: "{{ lookup('ansible.builtin.file', 'results.json') | from_json }}"
    formats: [html]
    fail_on: [unreachable, failed, no_result, error]
  run_once: true
"""

RETURN = r"""
files:
  description: The files that were written, or would be in check mode.
  returned: always
  type: list
  elements: str
summary:
  description: The totals, as in the JSON.
  returned: always
  type: dict
  sample: {hosts: 12, hosts_answered: 10, gpus: 17, gpus_usable: 14}
msg:
  description: The report in a sentence, or which hosts gave no answer and why.
  returned: always
  type: str
"""
