from __future__ import annotations

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils._host_needs import driver_version, gpu_problems, room_problems

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder)\nGCC version:  gcc version 12.2.0\n"
)
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8 12:41:17 UTC 2025\nGCC version:\n"
CARDS = ["GPU-00000000-0000-4000-8000-000000000001", "GPU-00000000-0000-4000-8000-000000000002"]


@pytest.mark.parametrize(("text", "version"), [(OPEN, "580.159.04"), (CLOSED, "550.163.01"), ("", ""), ("NVRM version: ?", "")])
def test_driver_version(text, version):
    assert driver_version(text) == version


@pytest.mark.parametrize(
    ("wanted", "text", "uuids", "words"),
    [
        ([], "", [], []),
        ([0, 1], OPEN, CARDS, []),
        (["0", CARDS[1]], OPEN, CARDS, []),
        ([0, 1], "", [], ["expected NVIDIA's driver 580.65.06 or later and the GPUs 0, 1, found no loaded driver"]),
        ([0], CLOSED, CARDS, ["found 550.163.01 loaded"]),
        ([0, 2], OPEN, CARDS, ["expected the GPUs 2, found 2 GPUs"]),
        (["GPU-x"], OPEN, CARDS, ["expected the GPUs GPU-x"]),
        ([5], CLOSED, CARDS, ["found 550.163.01", "expected the GPUs 5"]),
    ],
)
def test_gpu_problems(wanted, text, uuids, words):
    problems = gpu_problems(wanted=wanted, version_text=text, uuids=uuids)
    assert len(problems) == len(words), problems
    assert all(word in problem for word, problem in zip(words, problems))


def test_room():
    assert room_problems([("a", 8, 9.5)]) == []
    assert room_problems([("/opt/x", 15, 3.21)])[0].startswith("expected 15 GB free for /opt/x, found 3.2 GB")
