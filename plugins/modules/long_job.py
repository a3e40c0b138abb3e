#!/usr/bin/python
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: long_job
author: Firstlight contributors
version_added: 0.1.0
short_description: Ask for a long job that runs on the host
description:
  - Says what a long job of this collection is doing now and whether it has ended, in one round trip.
  - Asking renews the job's lease. A job that nobody asks for stops by itself.
  - The action plugins of the collection's long modules use it; there is seldom a reason to call it in a play.
options:
  base:
    description: Path prefix of the job's files.
    type: path
    required: true
  results_file:
    description: File that Ansible's asynchronous wrapper writes the job's result to.
    type: path
    required: true
attributes:
  check_mode:
    description: Runs in check mode too, since it only asks.
    support: full
"""

EXAMPLES = r"""
- name: Ask what the build of an environment is doing
  firstlight.sglang.long_job:
    base: /opt/sglang/releases/.0.5.23-cpu-1a2b3c4d
    results_file: /root/.ansible_async/j1234.5678
"""

RETURN = r"""
finished:
  description: Whether the job has ended and left a result.
  returned: always
  type: bool
running:
  description: Whether a job holds the lock of this base, this one or one that it waits for.
  returned: always
  type: bool
waiting:
  description: Whether the lock is held by an earlier job, which this one waits for.
  returned: always
  type: bool
progress:
  description: What the job reports about itself; empty when it reports nothing.
  returned: always
  type: dict
  sample: {phase: installing, packages_installed: 40, packages_total: 125}
"""

import contextlib
import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firstlight.sglang.plugins.module_utils import _long_job


def main() -> None:
    module = AnsibleModule(
        argument_spec={"base": {"type": "path", "required": True}, "results_file": {"type": "path", "required": True}},
        supports_check_mode=True,
    )
    base = module.params["base"]
    with contextlib.suppress(OSError):  # the job has not begun, or it has ended
        os.utime(f"{base}.lease")
    results_file = Path(module.params["results_file"])
    result = _long_job.read_json(str(results_file))
    holder = _long_job.holder(base)
    # The wrapper wrote the file before the job asked for the lock, and writes it again when the job has ended.
    asked = results_file.stat().st_mtime if results_file.is_file() else 0.0
    module.exit_json(
        changed=False,
        finished=result is not None and ("started" not in result or bool(result.get("finished", False))),
        running=holder is not None,
        waiting=holder is not None and holder.get("since", asked) < asked,
        progress=_long_job.read_json(f"{base}.progress") or {},
    )


if __name__ == "__main__":
    main()
