# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""The target's half of a long job: one at a time, with visible progress, and not without a controller.

Three small files beside what is built (``base`` is a path prefix):

``base.lock``      held with flock while the job runs; says who holds it
``base.progress``  what the job is doing now (JSON), read by the module long_job
``base.lease``     its time of modification says when a controller last asked; a job that nobody asks for stops by itself
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import typing as t
from pathlib import Path


class AbandonedError(Exception):
    """No controller has asked for this job for longer than its lease."""


class Job:
    """One long job on the target. With ``lease_s`` 0 it needs no controller that asks for it."""

    def __init__(self, base: str, lease_s: int = 0) -> None:
        self.base = base
        self.lease_s = lease_s
        self.lock_fd = -1
        self.started = time.time()

    def acquire(self) -> bool:
        """Become the only job of this base; true if another one had to be waited for."""
        Path(self.base).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        Path(f"{self.base}.lease").touch()
        fd = os.open(f"{self.base}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        waited = False
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                # The one that holds the lock reports its own progress; the questions for this job keep it alive too.
                waited = True
                self.check_lease()
                time.sleep(1)
        self.lock_fd = fd
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"pid": os.getpid(), "since": self.started}).encode(), 0)
        return waited

    def check_lease(self) -> None:
        if self.lease_s <= 0:
            return
        try:
            asked = Path(f"{self.base}.lease").stat().st_mtime
        except FileNotFoundError:
            # A job before this one removed it when it ended.
            Path(f"{self.base}.lease").touch()
            return
        if time.time() - asked > self.lease_s:
            raise AbandonedError(f"no controller has asked for this job for {self.lease_s} s")

    def report(self, phase: str, **fields: t.Any) -> None:
        """Say what is being done now."""
        body = {"pid": os.getpid(), "started": self.started, "phase": phase, **fields}
        temporary = Path(f"{self.base}.progress.tmp")
        temporary.write_text(json.dumps(body), encoding="utf-8")
        temporary.replace(f"{self.base}.progress")

    def release(self) -> None:
        """The job has ended: nothing but the empty lock file stays (removing that one would let two jobs hold it)."""
        for name in ("progress.tmp", "progress", "lease"):
            Path(f"{self.base}.{name}").unlink(missing_ok=True)
        if self.lock_fd >= 0:
            os.ftruncate(self.lock_fd, 0)
            os.close(self.lock_fd)
            self.lock_fd = -1


def holder(base: str) -> dict[str, t.Any] | None:
    """Who holds the lock of this base, None when it is free."""
    try:
        fd = os.open(f"{base}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return read_json(f"{base}.lock") or {}
        return None
    finally:
        os.close(fd)


def read_json(path: str) -> dict[str, t.Any] | None:
    """A JSON object from a file, None when there is none (or no complete one)."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
