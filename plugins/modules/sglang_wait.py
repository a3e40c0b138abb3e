#!/usr/bin/python
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_wait
short_description: Waits until SGLang instances are ready, and shows how they get on
version_added: 0.1.0
description:
  - Looks with M(firstlight.sglang.sglang_status) every O(poll_seconds), at all instances of a host at once, as they load side by side.
  - Prints a line at each change of phase, and at least every O(report_seconds), for example C(demo - loading weights, 34 s).
  - Ends within seconds when a unit fails, stops or is restarted, or when another process holds the port, and says in one message what
    the journal shows, what it means and what to do.
  - A unit with C(Restart=) says C(activating) while it is dead, so the number of restarts and the invocation id are what is judged.
  - An instance that is ready already costs one look.
  - A host without any instance is a failure.
  - This is an action. It runs on the controller, and only its looks run on the target.
attributes:
  action:
    description: Runs on the controller.
    support: full
  check_mode:
    description: Looks once and reports, without waiting and without failing.
    support: full
  diff_mode:
    description: Never changes anything, so there is nothing to show.
    support: none
options:
  instances:
    description:
      - Resolved instances, as the lookup P(firstlight.sglang.instances#lookup) returns them.
      - Of each, C(name), C(unit), C(url), C(api_key_path), C(current) and C(verify.ready_timeout_s) are read.
    type: list
    elements: dict
    required: true
  ready_timeout_s:
    description: Seconds that an instance gets which names none in C(verify.ready_timeout_s).
    type: int
    default: 1800
  poll_seconds:
    description: Seconds between two looks.
    type: float
    default: 2
  report_seconds:
    description: At least this often a line is shown.
    type: float
    default: 15
author:
  - Firstlight maintainers (@firstlight)
"""

EXAMPLES = r"""
- name: Wait until the instances are ready
  firstlight.sglang.sglang_wait:
    instances: "{{ query('firstlight.sglang.instances') }}"
"""

RETURN = r"""
instances:
  description:
    - Of the last look at each instance what a report needs, C(name), C(phase), C(unit) (restarts, invocation, start), C(numbers),
      C(problems), C(time_to_ready_seconds), C(environment_id) and C(python), as M(firstlight.sglang.sglang_status) returns them.
  returned: always
  type: list
  elements: dict
looks:
  description: How many looks it took.
  returned: always
  type: int
  sample: 1
waited_seconds:
  description: How long it took.
  returned: always
  type: float
  sample: 41.7
failed_instances:
  description: Names of the instances that are not ready.
  returned: always
  type: list
  elements: str
"""
