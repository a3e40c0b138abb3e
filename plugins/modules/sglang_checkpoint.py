#!/usr/bin/python
# Copyright: Firstlight contributors (@firstlight)
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_checkpoint
author: Firstlight contributors (@firstlight)
version_added: 0.1.0
short_description: A complete checkpoint of a model on the host
description:
  - Finds out whether the checkpoint in O(path) is complete, without reading the weights. Files that are missing, empty, cut off, pointers
    of Git LFS, of another revision than their index, or not readable by the service's user are reported all at once, with what to do.
  - With O(source=local) that is all, and nothing below O(path) is ever written.
  - With O(source=hub) or O(source=build) a checkpoint that is missing or not complete is made by a script, which runs with O(python) as
    the unprivileged O(user) and writes to C(<path>.partial). What it wrote then becomes root's, is examined, and gets its name only when
    it is complete.
  - A checkpoint that was found complete is remembered in O(record_dir) with the size and time of each file, so that the next look needs
    no reading.
  - An action plugin of the same name runs a download or build asynchronously and shows its progress. If that controller goes away, the
    job stops by itself; the next run continues a download where it stopped.
options:
  path:
    description: Directory of the checkpoint.
    type: path
    required: true
  state:
    description: Whether the checkpoint is there. V(absent) removes O(path) and what was remembered about it.
    type: str
    choices: [present, absent]
    default: present
  source:
    description: Where it comes from. V(local) is there already, V(hub) is downloaded and V(build) is computed by the script.
    type: str
    choices: [local, hub, build]
    default: local
  user:
    description:
      - The user that must be able to read the checkpoint and that the script runs as. Required with O(source=hub) and O(source=build).
    type: str
  python:
    description: Python on the host that runs the script. Required with O(source=hub) and O(source=build).
    type: path
  script_src:
    description: The script, a file on the controller. It is called with C(--output DIR) and O(arguments). The action plugin reads it.
    type: path
  script_content:
    description: Text of the script. The action plugin sets it when something has to be made.
    type: str
  arguments:
    description: Further arguments of the script.
    type: list
    elements: str
    default: []
  environment:
    description: Environment variables of the script, such as a proxy.
    type: dict
    default: {}
  secret_environment:
    description: Environment variables of the script that are never shown, such as a token.
    type: dict
    default: {}
  record_dir:
    description: Directory where it is remembered which checkpoints are complete. Without it every look reads all headers.
    type: path
  lease_s:
    description: A job that no controller asks for stops after this many seconds, 0 for never. The action plugin sets it.
    type: int
    default: 0
  timeout_s:
    description: Longest time that a download or build may take. Used by the action plugin.
    type: int
    default: 86400
attributes:
  check_mode:
    description: Says what would be done, also on a host where neither the user nor Python is there yet.
    support: full
  diff_mode:
    description: Shows what the checkpoint is before and after.
    support: full
"""

EXAMPLES = r"""
- name: Check a checkpoint that is already on the host
  firstlight.sglang.sglang_checkpoint:
    path: /srv/models/Qwen--Qwen3.6-27B
    user: sglang

- name: Download one
  firstlight.sglang.sglang_checkpoint:
    path: /var/lib/sglang/models/Qwen--Qwen3-0.6B/c1899de289a04d12100db370d81485cdf75e47ca
    source: hub
    user: sglang
    python: /opt/sglang/releases/0.5.23-cuda-1a2b3c4d/bin/python
    script_src: hub_download.py
    arguments: [--repo, Qwen/Qwen3-0.6B, --revision, c1899de289a04d12100db370d81485cdf75e47ca]
    secret_environment: {HF_TOKEN: "{{ vault_hub_token }}"}
    record_dir: /var/lib/sglang/models/.complete
"""

RETURN = r"""
action:
  description: What was done (or would be, in check mode), V(none), V(download), V(build) or V(remove).
  returned: always
  type: str
reason:
  description: Why it had to be done, empty if nothing was done.
  returned: always
  type: str
problems:
  description: What is wrong with the checkpoint. The module fails when there are any that it cannot repair.
  returned: when O(state=present)
  type: list
  elements: dict
  contains:
    code:
      description: Kind of problem.
      type: str
      sample: shard_missing
    file:
      description: The file it is about.
      type: str
      sample: model-00002-of-00015.safetensors
    expected:
      description: What should be there.
      type: str
      sample: weight file 2 of 15
    found:
      description: What is there.
      type: str
      sample: no such file
    action:
      description: What to do about it.
      type: str
      sample: Copy the file again from where it is complete.
warnings_found:
  description: What is odd but does not keep the checkpoint from being used, in the form of RV(problems).
  returned: when O(state=present)
  type: list
  elements: dict
remembered:
  description: Whether the answer comes from O(record_dir), since no file has changed.
  returned: when O(state=present)
  type: bool
checkpoint:
  description: What the checkpoint is; null when it is not there (in check mode).
  returned: when O(state=present)
  type: dict
  contains:
    architectures:
      description: Class names of the model.
      type: list
      elements: str
      sample: [Qwen3ForCausalLM]
    model_type:
      description: Type of the model's configuration.
      type: str
      sample: qwen3
    format:
      description: Format of the weights, V(safetensors) or V(bin).
      type: str
    shards:
      description: Number of weight files.
      type: int
    file_bytes:
      description: Size of all weight files.
      type: int
    weights_bytes:
      description: Size of all tensors (of the files, for V(bin)).
      type: int
    bytes_by_dtype:
      description: Size of the tensors by data type; empty for V(bin).
      type: dict
      sample: {BF16: 1192099840}
    tensors:
      description: Number of tensors.
      type: int
    max_position_embeddings:
      description: Longest context that the model was made for, null when the configuration does not say.
      type: int
    config_dtype:
      description: Data type that the configuration names.
      type: str
    quantization:
      description: Method of quantisation that the configuration names.
      type: str
    has_chat_template:
      description: Whether there is a chat template.
      type: bool
    mtp_layers:
      description: Number of layers for speculative decoding that the configuration names.
      type: int
    has_mtp_weights:
      description: Whether the tensors of those layers are there; null for architectures where their names are not known.
      type: bool
    own_code:
      description: Python files of the checkpoint that C(--trust-remote-code) would run.
      type: list
      elements: str
"""

import contextlib
import hashlib
import json
import os
import pathlib
import pwd
import re
import shutil
import stat
import threading
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firstlight.sglang.plugins.module_utils import _checkpoint as core
from ansible_collections.firstlight.sglang.plugins.module_utils import _long_job

OPTIONS: dict[str, dict[str, t.Any]] = {
    "path": {"type": "path", "required": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "source": {"type": "str", "choices": ["local", "hub", "build"], "default": "local"},
    "user": {"type": "str"},
    "python": {"type": "path"},
    "script_src": {"type": "path"},
    # Not secret, but too long for the journal, where every argument of a module goes.
    "script_content": {"type": "str", "no_log": True},
    "arguments": {"type": "list", "elements": "str", "default": []},
    "environment": {"type": "dict", "default": {}},
    "secret_environment": {"type": "dict", "default": {}, "no_log": True},
    "record_dir": {"type": "path"},
    "lease_s": {"type": "int", "default": 0},
    "timeout_s": {"type": "int", "default": 86400},
}
LOG_ROOM_BYTES = 65536
ACTIONS = {"hub": "download", "build": "build"}


class StageError(Exception):
    """The checkpoint cannot be made; the text is for the operator."""

    def __init__(self, text: str, report: core.Report | None = None) -> None:
        super().__init__(text)
        self.report = report


class Look(t.NamedTuple):
    """What one look at a directory gave."""

    exists: bool
    listing: dict[str, core.Entry]
    report: core.Report
    remembered: bool


def walk(path: pathlib.Path) -> t.Iterator[pathlib.Path]:
    """A directory and everything below it; links are named, not followed."""
    yield path
    for directory, subdirectories, names in os.walk(path):
        for name in (*subdirectories, *names):
            yield pathlib.Path(directory, name)


def list_files(path: pathlib.Path) -> dict[str, os.stat_result]:
    """Every file below a directory by relative path; links to files count as files, hidden directories are left out."""
    found: dict[str, os.stat_result] = {}
    for directory, subdirectories, names in os.walk(path):
        subdirectories[:] = [name for name in subdirectories if not name.startswith(".")]
        for name in names:
            file = pathlib.Path(directory, name)
            with contextlib.suppress(OSError):  # a link that leads nowhere is a missing file
                status = file.stat()
                if stat.S_ISREG(status.st_mode):
                    found[str(file.relative_to(path))] = status
    return found


def account_of(name: str | None) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name) if name else None
    except KeyError:
        return None


def denied(account: pwd.struct_passwd | None, path: pathlib.Path, names: list[str]) -> tuple[str | None, set[str]]:
    """(the directory on the way to path that the user cannot enter, the files that it cannot read).

    The kernel is asked as that user, so that ACLs and the rights of network file systems count.
    """
    if account is None or os.geteuid() != 0:
        return _denied(path, names)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # Nothing but _exit may end this copy of the module.
        status = 1
        try:
            os.close(reading)
            os.setgroups(os.getgrouplist(account.pw_name, account.pw_gid))
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
            blocked, unreadable = _denied(path, names)
            with os.fdopen(writing, "w", encoding="utf-8") as stream:
                json.dump([blocked, sorted(unreadable)], stream)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as stream:
        text = stream.read()
    os.waitpid(child, 0)
    if not text:
        raise StageError(f"{path}: expected to ask as user {account.pw_name} what can be read, could not become that user")
    blocked, unreadable = json.loads(text)
    return blocked, set(unreadable)


def _denied(path: pathlib.Path, names: list[str]) -> tuple[str | None, set[str]]:
    real = path.resolve()
    for directory in (*reversed(real.parents), real):
        if not os.access(directory, os.X_OK | os.R_OK if directory == real else os.X_OK):
            return str(directory), set()
    return None, {name for name in names if not os.access(path / name, os.R_OK)}


class Checkpoint:
    """The checkpoint on the host: what it is now, and the steps that make it."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.path = pathlib.Path(module.params["path"])
        self.source = module.params["source"]
        self.account = account_of(module.params["user"])
        self.partial = self.path.with_name(f"{self.path.name}.partial")
        self.output = self.partial / "checkpoint"
        self.base = self.path.with_name(f".{self.path.name}")
        self.job = _long_job.Job(str(self.base), module.params["lease_s"])
        self.abandoned = ""
        self.record: pathlib.Path | None = None
        if module.params["record_dir"]:
            self.record = pathlib.Path(module.params["record_dir"], hashlib.sha256(bytes(self.path)).hexdigest()[:32] + ".json")

    # What is there

    def look(self, path: pathlib.Path, use_record: bool = True) -> Look:
        if not path.is_dir():
            found = "a file" if os.path.lexists(path) else "no such directory"
            todo = "Put the checkpoint there, or set model.path to where it is, or let it be downloaded (model.revision)."
            problem = core.Problem("path_missing", str(path), "a directory with the checkpoint", found, todo)
            return Look(False, {}, core.Report([problem], [], {}), False)
        files = list_files(path)
        blocked, unreadable = denied(self.account, path, list(files))
        listing = {name: core.Entry(status.st_size, status.st_mtime_ns, name not in unreadable) for name, status in files.items()}
        if blocked:
            who = self.params["user"] or "this user"
            todo = f"Let {who} enter it (chmod, chown or an ACL), or keep the checkpoint elsewhere."
            problem = core.Problem("path_closed", blocked, f"a directory that {who} can enter", "no permission", todo)
            return Look(True, listing, core.Report([problem], [], {}), False)
        if use_record and self.record:
            report = core.recall(_long_job.read_json(str(self.record)), str(path), listing)
            if report is not None:
                return Look(True, listing, report, True)

        def read(name: str, offset: int, length: int) -> bytes:
            with (path / name).open("rb") as stream:
                stream.seek(offset)
                return stream.read(length)

        return Look(True, listing, core.examine(listing, read, self.source), False)

    def remember(self, look: Look) -> None:
        """A cache of what was found; it is no change of the host, and does without when the directory cannot be written."""
        if not self.record or look.report.problems or look.remembered or self.module.check_mode:
            return
        temporary = self.record.with_suffix(".new")
        try:
            self.record.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            temporary.write_text(json.dumps(core.make_record(str(self.path), look.listing, look.report)), encoding="utf-8")
            temporary.replace(self.record)
        except OSError as error:
            self.module.warn(f"could not remember in {self.record} that {self.path} is complete: {error.strerror}")

    # Steps

    def make(self) -> Look:
        account = self.account
        if account is None:
            raise StageError(f"expected the user {self.params['user']}, found none of that name. The role sglang_venv makes it.")
        if not os.access(self.params["python"], os.X_OK):
            raise StageError(
                f"expected the engine's Python at {self.params['python']}, found nothing that runs. The role sglang_venv installs it."
            )
        if os.geteuid() not in (0, account.pw_uid):
            raise StageError(f"expected to be root or {account.pw_name}. Set become: true.")
        self.job.report("preparing")
        self.prepare(account)
        self.run_script(account)
        self.job.report("checking the checkpoint")
        if not self.output.is_dir():
            raise StageError(f"the script ended without an error and wrote no {self.output}")
        self.own(account)
        look = self.look(self.output, use_record=False)
        if look.report.problems:
            raise StageError(core.summary(str(self.output), look.report), look.report)
        self.publish()
        return look

    def make_parents(self) -> None:
        """The directories above the checkpoint: root's, whatever the umask is, and open for the user."""
        for directory in reversed(self.path.parents):
            if not directory.is_dir():
                directory.mkdir()
                directory.chmod(0o755)

    def prepare(self, account: pwd.struct_passwd) -> None:
        """An empty or half-filled working directory that the script's user can write to."""
        if self.source != "hub":
            remove(self.partial)  # only a download can go on where it stopped
        elif self.path.is_dir() and not self.output.is_dir():
            # Something is missing in a finished download: it is completed as a partial one.
            remove(self.partial)
            self.partial.mkdir(0o700)
            self.path.rename(self.output)
        self.partial.mkdir(0o700, exist_ok=True)
        self.partial.chmod(0o700)
        for file in walk(self.partial):
            hand_over(file, account.pw_uid, account.pw_gid)

    def run_script(self, account: pwd.struct_passwd) -> None:
        script, log = (self.base.with_name(self.base.name + suffix) for suffix in (".script.py", ".log"))
        script.write_text(self.params["script_content"], encoding="utf-8")
        script.chmod(0o644)
        # The shell opens the log before it becomes the user, who may not write where the log lies.
        command = ["/bin/sh", "-c", 'exec "$@" >"$0" 2>&1', str(log)]
        setpriv = self.module.get_bin_path("setpriv", required=True)
        command += [setpriv, "--pdeathsig=KILL"]
        if os.geteuid() == 0:
            command += [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups", "--no-new-privs", "--inh-caps=-all"]
        command += ["--", self.params["python"], "-I", "-u", str(script), "--output", str(self.output), *self.params["arguments"]]
        environment = {
            "HOME": str(self.partial),
            "TMPDIR": str(self.partial),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            **{str(name): str(value) for name, value in {**self.params["environment"], **self.params["secret_environment"]}.items()},
        }
        done = threading.Event()

        def watch(process: t.Any) -> None:
            threading.Thread(target=self.watch, args=(process, log, done), daemon=True).start()

        try:
            # The script inherits the lock: as long as it lives, nobody else works here.
            rc, _out, _err = self.module.run_command(
                command, environ_update=environment, before_communicate_callback=watch, pass_fds=[self.job.lock_fd], cwd="/", umask=0o022
            )
            text = read_part(log, -4000, 4000)
        finally:
            done.set()
            for file in (script, log):
                remove(file)
        what = ACTIONS[self.source]
        if self.abandoned:
            kept = "; what was downloaded is kept" if what == "download" else ""
            raise StageError(f"stopped the {what}: {self.abandoned}. Run the playbook again{kept}.")
        if rc != 0:
            lines = [line for line in text.splitlines() if line.strip()]
            said = [line[len("error: ") :] for line in lines if line.startswith("error: ")]
            # On a full disk the log could not be written either.
            silent = not lines and shutil.disk_usage(self.path.parent).free < LOG_ROOM_BYTES
            full = core.full_disk_words("ENOSPC" if silent else text, str(self.path.parent))
            said = [full] if full else said
            kept = " Run the playbook again when that is solved; what was downloaded is kept." if what == "download" else ""
            text = f"{self.path}: the {what} failed (exit code {rc}).{kept}\n" + "\n".join(said or lines[-15:])
            # What is missing is told even when the way to it is closed.
            rest = self.look(self.output, use_record=False) if self.output.is_dir() and not full else None
            if rest is not None and rest.report.problems:
                raise StageError(f"{text}\n{core.summary(str(self.output), rest.report)}", rest.report)
            raise StageError(text.partition(": ")[2])

    def watch(self, process: t.Any, log: pathlib.Path, done: threading.Event) -> None:
        samples: list[tuple[float, int]] = []
        while not done.wait(2):
            try:
                self.job.check_lease()
            except _long_job.AbandonedError as error:
                self.abandoned = str(error)
                process.kill()
                return
            text = read_part(log, -2000, 2000)
            plan = re.search(r"^plan: (\d+) bytes", read_part(log, 0, 2000), re.MULTILINE)
            now, count = time.monotonic(), tree_bytes(self.partial)
            samples = [*samples[-15:], (now, count)]
            fields: dict[str, t.Any] = {"bytes_done": count} if self.source == "hub" else {}
            if plan:
                fields["bytes_total"] = int(plan[1])
                if now > samples[0][0]:
                    fields["bytes_per_s"] = int((count - samples[0][1]) / (now - samples[0][0]))
            elif text.strip():
                fields["line"] = text.strip().splitlines()[-1][-160:]
            try:
                self.job.report({"hub": "downloading", "build": "building"}[self.source], **fields)
            except OSError:
                continue  # a full disk: the script says so itself

    def own(self, account: pwd.struct_passwd) -> None:
        """What was made becomes root's, so that the service can read and not write it."""
        hand_over(self.partial, 0, account.pw_gid)
        remove(self.output / ".cache")  # bookkeeping of the download client
        for file in walk(self.output):
            mode = file.lstat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise StageError(f"expected only files and directories, found something else (a link?) at {file}. Remove {self.partial}.")
            hand_over(file, 0, account.pw_gid)
            file.chmod(0o755 if stat.S_ISDIR(mode) else 0o644)
        # Nothing in it can change any more; the user must be able to enter it when it is asked what it can read.
        self.partial.chmod(0o755)

    def publish(self) -> None:
        """The finished checkpoint gets its name in one step; one that was there and not complete goes."""
        if os.path.lexists(self.path):
            self.path.rename(self.partial / "replaced")
        self.output.rename(self.path)
        remove(self.partial)


def hand_over(path: pathlib.Path, uid: int, gid: int) -> None:
    if os.geteuid() == 0:
        os.lchown(path, uid, gid)


def remove(path: pathlib.Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


def read_part(path: pathlib.Path, offset: int, length: int) -> str:
    """Text from a place in a file (from its end when negative), as far as there is any."""
    with contextlib.suppress(OSError), path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size + offset) if offset < 0 else offset)
        return stream.read(length).decode("utf-8", errors="replace")
    return ""


def tree_bytes(path: pathlib.Path) -> int:
    total = 0
    for file in walk(path):
        with contextlib.suppress(OSError):
            status = file.lstat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


def words(look: Look, path: pathlib.Path) -> str:
    if not look.exists:
        return f"{path}: absent\n"
    return core.summary(str(path), look.report) + "\n"


def absent(module: AnsibleModule, checkpoint: Checkpoint) -> None:
    there = [path for path in (checkpoint.path, checkpoint.partial) if os.path.lexists(path)]
    if there and not module.check_mode:
        checkpoint.job.acquire()
        try:
            for path in there:
                remove(path)
            if checkpoint.record:
                remove(checkpoint.record)
        finally:
            checkpoint.job.release()
        remove(checkpoint.base.with_name(checkpoint.base.name + ".lock"))
        with contextlib.suppress(OSError):  # other revisions are there
            checkpoint.path.parent.rmdir()
    diff = {"before": "".join(f"{path}\n" for path in there), "after": ""}
    module.exit_json(changed=bool(there), action="remove" if there else "none", reason="it is not wanted" if there else "", diff=diff)


def present(module: AnsibleModule, checkpoint: Checkpoint, before: Look, result: dict[str, t.Any]) -> Look:
    """Make the checkpoint unless it is complete; result gets what was done and why."""
    source = checkpoint.source
    closed = any(problem.code == "path_closed" for problem in before.report.problems)
    if source == "local" or closed or not before.report.problems:
        return before
    result.update(
        action=ACTIONS[source], reason=core.summary(str(checkpoint.path), before.report) if before.exists else "it is not there yet"
    )
    if module.check_mode:
        return before
    if not module.params["script_content"]:
        raise StageError("expected script_src, a script on the controller, found nothing. Name one.")
    checkpoint.make_parents()
    if checkpoint.job.acquire():
        # Another run has perhaps made it in the meantime.
        look = checkpoint.look(checkpoint.path)
        if not look.report.problems:
            result.update(action="none", reason="")
            return look
    return checkpoint.make()


def main() -> None:
    module = AnsibleModule(
        argument_spec=OPTIONS,
        required_if=[("source", "hub", ("user", "python")), ("source", "build", ("user", "python"))],
        supports_check_mode=True,
    )
    checkpoint = Checkpoint(module)
    if module.params["state"] == "absent":
        absent(module, checkpoint)
    result: dict[str, t.Any] = {"action": "none", "reason": ""}
    try:
        before = checkpoint.look(checkpoint.path)
        look = present(module, checkpoint, before, result)
    except (StageError, _long_job.AbandonedError, OSError) as error:
        report = getattr(error, "report", None) or core.Report([], [], {})
        said = core.full_disk_words(str(error), str(checkpoint.path.parent)) if isinstance(error, OSError) else ""
        text = str(error) if report.problems else f"{checkpoint.path}: {said or error}"
        module.fail_json(msg=text, problems=[problem._asdict() for problem in report.problems], **result)
    finally:
        if checkpoint.job.lock_fd >= 0:
            checkpoint.job.release()
    path = checkpoint.path
    changed = result["action"] != "none"
    result.update(
        changed=changed,
        problems=[problem._asdict() for problem in look.report.problems],
        warnings_found=[warning._asdict() for warning in look.report.warnings],
        remembered=look.remembered,
    )
    if look.report.problems and not changed:
        module.fail_json(msg=core.summary(str(path), look.report), **result)
    if not look.report.problems:
        checkpoint.remember(look)
    result["checkpoint"] = None if look.report.problems else look.report.facts
    for warning in look.report.warnings:
        module.warn(f"{path}: {warning.text()}")
    result["diff"] = {"before": words(before, path), "after": words(look, path) if not look.report.problems else f"{path}: complete\n"}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
