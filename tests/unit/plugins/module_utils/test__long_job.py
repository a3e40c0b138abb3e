# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _long_job


@pytest.fixture
def base(tmp_path):
    return str(tmp_path / "places" / ".thing")


def test_one_job_at_a_time_and_the_next_one_waits(base):
    first, second = _long_job.Job(base), _long_job.Job(base)
    assert first.acquire() is False
    assert _long_job.holder(base) == {"pid": os.getpid(), "since": first.started}
    waited = []
    thread = threading.Thread(target=lambda: waited.append(second.acquire()))
    thread.start()
    time.sleep(0.2)
    assert not waited
    first.release()
    thread.join(5)
    assert waited == [True]
    second.release()
    assert _long_job.holder(base) is None


def test_a_job_says_what_it_does_and_leaves_nothing_but_its_lock(base):
    job = _long_job.Job(base, lease_s=60)
    job.acquire()
    job.report("installing", packages=3)
    progress = _long_job.read_json(f"{base}.progress")
    assert progress is not None
    assert (progress["phase"], progress["packages"]) == ("installing", 3)
    job.release()
    assert [path.name for path in Path(base).parent.iterdir()] == [".thing.lock"]


@pytest.mark.parametrize(("lease_s", "asked_s_ago", "abandoned"), [(60, 10, False), (60, 61, True), (0, 10000, False)])
def test_a_job_that_nobody_asks_for_ends(base, lease_s, asked_s_ago, abandoned):
    job = _long_job.Job(base, lease_s=lease_s)
    job.acquire()
    then = time.time() - asked_s_ago
    os.utime(f"{base}.lease", (then, then))
    if abandoned:
        with pytest.raises(_long_job.AbandonedError, match="60 s"):
            job.check_lease()
    else:
        job.check_lease()


def test_a_lease_that_an_earlier_job_took_along_is_made_again(base):
    job = _long_job.Job(base, lease_s=1)
    job.acquire()
    Path(f"{base}.lease").unlink()
    job.check_lease()
    assert Path(f"{base}.lease").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", None])
def test_read_json_takes_only_whole_objects(tmp_path, text):
    path = tmp_path / "x"
    if text is not None:
        path.write_text(text)
    assert _long_job.read_json(str(path)) is None
    path.write_text(json.dumps({"a": 1}))
    assert _long_job.read_json(str(path)) == {"a": 1}
