# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The controller's half of a long job: run a module asynchronously and say every few seconds what it is doing.

The module must support check mode (that is how this asks whether there is anything to do), have an option ``lease_s``, and use
module_utils/_long_job.py with the same ``base``.
"""

from __future__ import annotations

import time
import typing as t
from pathlib import Path, PurePosixPath

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.utils.display import Display

if t.TYPE_CHECKING:
    from ansible.plugins.action import ActionBase

Result = dict[str, t.Any]

display = Display()

POLL_MODULE = "firstlight.sglang.long_job"
SHOW_EVERY_S = 10  # a line for people
LEASE_S = 120  # the job stops when nobody has asked for it for so long
SILENT_S = 60  # neither a running job nor a result for so long: it has died
FIRST_POLLS_S = (1, 2, 2)  # then every:
POLL_S = 5

KILLED = "the job on the host ended without a result. Was it killed, or did memory run out? Run this again."


def read_source(action: ActionBase, option: str, name: str) -> str:
    """The text of a file on the controller, looked for as Ansible does in a role's files/; fails with the option's name."""
    try:
        return Path(action._find_needle("files", name)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AnsibleActionFail(f"{option}: expected a text file on the controller, found: {error}") from error


def run_long(
    action: ActionBase,
    module_name: str,
    args: Result,
    task_vars: Result,
    describe_progress: t.Callable[[Result], str],
    *,
    base: str,
    timeout_s: int = 7200,
    only_long: t.Callable[[], Result] | None = None,
) -> Result:
    """Run ``module_name`` on the host of ``action`` and return its result.

    The first execution is in check mode: when it would change nothing (or fails), its result is all. ``only_long`` gives arguments that
    are needed for the real execution alone (large ones). ``base`` is the path prefix of the job's files on the host.
    """
    task = action._task
    check_mode = task.check_mode
    task.check_mode = True
    try:
        result: Result = action._execute_module(module_name=module_name, module_args=args, task_vars=task_vars)
    finally:
        task.check_mode = check_mode
    if check_mode or result.get("failed") or not result.get("changed"):
        return result

    full = {**args, **(only_long() if only_long else {}), "lease_s": LEASE_S}
    saved = task.async_val
    task.async_val = timeout_s
    try:
        started: Result = action._execute_module(module_name=module_name, module_args=full, task_vars=task_vars, wrap_async=True)
    finally:
        task.async_val = saved
    if started.get("failed") or "ansible_job_id" not in started:
        started["changed"] = False
        return started
    job = _Job(action, started, task_vars, base)
    return job.follow(describe_progress, timeout_s)


class _Job:
    """A job that runs on the host of an action."""

    def __init__(self, action: ActionBase, started: Result, task_vars: Result, base: str) -> None:
        self.action = action
        self.started = started
        self.task_vars = task_vars
        self.base = base
        self.host = task_vars.get("inventory_hostname", "")
        self.name = action._task.action.rpartition(".")[2]

    def execute(self, module_name: str, module_args: Result) -> Result:
        result: Result = self.action._execute_module(module_name=module_name, module_args=module_args, task_vars=self.task_vars)
        return result

    def failed(self, text: str) -> Result:
        return {"failed": True, "changed": True, "msg": f"{self.name}: {text}"}

    def ask(self) -> Result:
        try:
            return self.execute(POLL_MODULE, {"base": self.base, "results_file": self.started["results_file"]})
        except AnsibleConnectionFailure as error:
            return {"failed": True, "msg": str(error)}

    def follow(self, describe_progress: t.Callable[[Result], str], timeout_s: int) -> Result:
        begin = shown = answered = running = time.monotonic()
        delays = iter(FIRST_POLLS_S)
        while True:
            time.sleep(next(delays, POLL_S))
            now = time.monotonic()
            asked = self.ask()
            if asked.get("failed"):
                # A connection that breaks for a moment is no reason to give up: the job lives on for the length of its lease.
                if now - answered > LEASE_S:
                    return self.failed(f"the host did not answer for {LEASE_S} s: {asked.get('msg', '')}")
                continue
            answered = now
            if asked.get("finished"):
                return self.collect()
            if asked.get("running"):
                running = now
            elif now - running > SILENT_S:
                return self.failed(KILLED)
            if now - begin > timeout_s + SILENT_S:
                return self.failed(f"not finished after {timeout_s} s. Run this again; what is done is kept.")
            if now - shown >= SHOW_EVERY_S:
                shown = now
                doing = describe_progress(asked.get("progress") or {})
                if asked.get("waiting"):
                    doing = f"waiting for an earlier run that is still at it: {doing}"
                display.display(f"{self.name}: [{self.host}] {now - begin:.0f} s: {doing}")

    def collect(self) -> Result:
        """The job's own result, and no trace of the asynchronous run on the host."""
        where = {"jid": self.started["ansible_job_id"], "_async_dir": str(PurePosixPath(self.started["results_file"]).parent)}
        result = self.execute("ansible.legacy.async_status", {**where, "mode": "status"})
        self.execute("ansible.legacy.async_status", {**where, "mode": "cleanup"})
        if result.get("failed") and "cmd" in result and not result.get("data"):
            # The wrapper found nothing where the module's result should be.
            return self.failed(f"{KILLED} {result.get('stderr', '')}".strip())
        for key in ("ansible_job_id", "started", "finished", "results_file"):
            result.pop(key, None)
        return result
