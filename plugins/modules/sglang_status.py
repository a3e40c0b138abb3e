#!/usr/bin/python
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_status
short_description: One quick look at SGLang instances
version_added: 0.1.0
description:
  - Says in which phase each instance is, for how long, what its log says about memory and limits, and what is wrong.
  - Reads only - systemd's state of the unit, the journal of the running invocation, C(/proc) and the port. It asks C(/ready) of the
    engine, and C(/health) only of releases that have no open C(/ready), because C(/health) makes the engine generate a token.
  - Needs root on the target, to read the journal and to see which process holds the port.
attributes:
  check_mode:
    description: Can run in check mode and changes nothing.
    support: full
  diff_mode:
    description: Never changes anything, so there is nothing to show.
    support: none
options:
  instances:
    description:
      - Resolved instances, as the lookup P(firstlight.sglang.instances#lookup) returns them.
      - Of each, C(name), C(unit), C(url), and where there are C(api_key_path) and C(current) are read.
    type: list
    elements: dict
    required: true
  since:
    description:
      - What an earlier look said, C(name) to invocation id.
      - When an instance runs another invocation now, the earlier one's log is diagnosed too.
    type: dict
    default: {}
author:
  - Firstlight maintainers (@firstlight)
"""

EXAMPLES = r"""
- name: Look at the instances
  firstlight.sglang.sglang_status:
    instances: "{{ query('firstlight.sglang.instances') }}"
  register: status

- name: Show the phases
  ansible.builtin.debug:
    msg: "{{ status.instances | items2dict(key_name='name', value_name='phase') }}"
"""

RETURN = r"""
instances:
  description: One look per instance, in the given order.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The instance.
      type: str
      sample: demo
    phase:
      description:
        - One of V(absent), V(stopped), V(starting), V(importing), V(connecting_ranks), V(loading_weights), V(allocating_pools),
          V(capturing_graphs), V(warming_up), V(ready), V(unhealthy), V(draining), V(failed).
        - V(ready) needs an answer from the port, and that the unit itself holds the port. V(unhealthy) was ready and does not answer now.
      type: str
      sample: loading_weights
    phase_words:
      description: The phase for people.
      type: str
      sample: loading weights
    phase_seconds:
      description: How long it has been in this phase; null when unknown.
      type: float
      sample: 34.2
    percent:
      description: How much of the weights is loaded, only where the log says so.
      type: int
      sample: 50
    running_seconds:
      description: How long the main process runs; null when it does not.
      type: float
      sample: 41.0
    time_to_ready_seconds:
      description: From the start of the running invocation to its ready line; null when the journal does not have it.
      type: float
      sample: 41.7
    unit:
      description: What systemd says - states, result, invocation, restarts, how the main process ended, whether a reload is due.
      type: dict
    http:
      description:
        - The port. C(state) is V(refused), V(starting), V(ready), V(unauthorized), V(no_answer), V(other) or V(not_asked).
        - C(status), C(path) and C(seconds) tell the request; C(listener) is V(unit), V(other), V(none) or V(unknown).
        - C(owner) names another process that holds the port.
      type: dict
    numbers:
      description:
        - Numbers of the start that the log names, for example C(max_total_num_tokens), C(max_running_requests), C(context_len),
          C(weights) and C(kv_caches).
      type: dict
    problems:
      description:
        - What the log and systemd show, errors first, harmless ones last.
        - Each has C(code), C(severity), C(found), C(advice) and C(count).
      type: list
      elements: dict
    lines:
      description: The last telling lines of the journal, without tracebacks' frames and access log.
      type: list
      elements: str
    last_line:
      description: The last line of the journal.
      type: str
    quiet_seconds:
      description: Seconds since the last line; null when nothing runs.
      type: float
    environment_id:
      description: The environment that the instance's C(current) link leads to.
      type: str
    python:
      description: The Python version of that environment.
      type: str
    previous:
      description: The log of the invocation given in O(since), when another one runs now. Has C(phase), C(problems) and C(lines).
      type: dict
"""

import contextlib
import os
import re
import time
import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firstlight.sglang.plugins.module_utils._engine_log import LogLine, join_parts, parse_journal
from ansible_collections.firstlight.sglang.plugins.module_utils._http_client import address_of, port_answers, request
from ansible_collections.firstlight.sglang.plugins.module_utils._status import (
    InputError,
    build_look,
    build_previous,
    check_instances,
    environment_of_target,
    name_owner,
    python_of_environment,
    read_api_key,
)
from ansible_collections.firstlight.sglang.plugins.module_utils._unit_state import (
    UNIT_PROPERTIES,
    HttpLook,
    UnitState,
    belongs_to_unit,
    http_state,
    is_running,
    listening_inodes,
    owner_words,
    parse_show,
)

HEAD_LINES = 1500  # a start writes some hundred lines
TAIL_LINES = 400


def read_text(path: str | None) -> str:
    if path:
        with contextlib.suppress(OSError):
            return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""


def read_journal(module: AnsibleModule, invocation: str) -> list[LogLine]:
    """The beginning and the end of one invocation's journal. journalctl of many releases cannot print the first lines only: head does."""
    if not re.fullmatch(r"[0-9a-f]{32}", invocation):
        return []
    # the unit's own lines, and what systemd says about it
    command = (
        "journalctl --quiet --no-pager --output=json --output-fields=MESSAGE"
        f" _SYSTEMD_INVOCATION_ID={invocation} + INVOCATION_ID={invocation}"
    )
    _rc, head, _err = module.run_command(f"{command} | head -n {HEAD_LINES}", use_unsafe_shell=True)
    first = parse_journal(head)
    if head.count("\n") < HEAD_LINES:
        return first
    _rc, tail, _err = module.run_command([*command.split(" "), "-n", str(TAIL_LINES)])
    return join_parts(first, parse_journal(tail))


def find_listener(port: int, unit: str, main_pid: int) -> tuple[str, str]:
    """Which process listens on the port: unit, other (with its name), none or unknown."""
    inodes = listening_inodes(read_text("/proc/net/tcp"), port) | listening_inodes(read_text("/proc/net/tcp6"), port)
    if not inodes:
        return "none", ""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    pids = [str(main_pid)] if main_pid else []  # nearly always the one
    pids += [process.name for process in Path("/proc").iterdir() if process.name.isdigit()]
    for process in (Path("/proc", pid) for pid in pids):
        with contextlib.suppress(OSError):
            if any(str(entry.readlink()) in wanted for entry in (process / "fd").iterdir()):
                if belongs_to_unit(read_text(str(process / "cgroup")), unit):
                    return "unit", ""
                return "other", owner_words(read_text(str(process / "comm")), process.name, read_text(str(process / "cgroup")))
    return "unknown", ""


def look_at_port(url: str, unit: UnitState) -> HttpLook:
    look: HttpLook = {"state": "not_asked", "status": None, "path": None, "seconds": 0.0, "listener": "none", "owner": ""}
    if not is_running(unit):
        return look
    look["listener"], look["owner"] = find_listener(address_of(url)[1], unit["unit"], unit["main_pid"])
    if look["listener"] == "other":
        return look
    if not port_answers(url):
        look["state"] = "refused"
        return look
    answer = request(url, "/ready", timeout_s=5)
    path = "/ready"
    if answer.status in (401, 403, 404):  # before 0.5.20 it needs the key, or does not exist
        answer = request(url, "/health", timeout_s=30)
        path = "/health"
    look.update({"state": http_state(answer.status), "status": answer.status, "path": path, "seconds": answer.seconds})
    return look


def look_at(module: AnsibleModule, instance: dict[str, t.Any], unit: UnitState, earlier: str) -> dict[str, t.Any]:
    key = read_api_key(read_text(instance.get("api_key_path")))
    secrets = [key] if key else []
    http = look_at_port(instance["url"], unit)
    lines = read_journal(module, unit["invocation_id"])
    look = build_look(name=instance["name"], unit=unit, lines=lines, http=http, now_s=time.monotonic(), secrets=secrets)
    if any(problem["code"] == "port_in_use" for problem in look["problems"]):
        name_owner(look["problems"], find_listener(address_of(instance["url"])[1], unit["unit"], unit["main_pid"])[1])
    current = instance.get("current") or ""
    look["environment_id"] = environment_of_target(os.path.realpath(current)) if current and os.path.lexists(current) else None
    look["python"] = python_of_environment(read_text(os.path.join(current, "pyvenv.cfg"))) if current else None
    look["previous"] = None
    if earlier and earlier != unit["invocation_id"]:
        lines = read_journal(module, earlier)
        look["previous"] = build_previous(name=instance["name"], invocation=earlier, lines=lines, secrets=secrets)
    return look


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "list", "elements": "dict", "required": True},
            "since": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}
    instances = module.params["instances"]
    try:
        check_instances(instances, ("name", "unit", "url"))
    except InputError as error:
        module.fail_json(msg=str(error))
    names = [instance["unit"] for instance in instances]
    units: dict[str, UnitState] = {}
    if names:
        rc, out, err = module.run_command(["systemctl", "show", "--property=" + ",".join(UNIT_PROPERTIES), "--", *names])
        if rc != 0:
            module.fail_json(msg=f"systemctl show: expected the state of {', '.join(names)}; found: {err.strip() or out.strip()}", rc=rc)
        units = parse_show(out)
    looks = []
    for instance in instances:
        unit = units.get(instance["unit"]) or parse_show(f"Id={instance['unit']}\nLoadState=not-found")[instance["unit"]]
        looks.append(look_at(module, instance, unit, str(module.params["since"].get(instance["name"], ""))))
    module.exit_json(changed=False, instances=looks)


if __name__ == "__main__":
    main()
