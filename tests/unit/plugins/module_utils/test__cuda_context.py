# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _cuda_context as core

GPU = {"index": 0, "health": "ok", "mig_enabled": None}
TWO = {"gpus": [GPU, {**GPU, "index": 1}]}
FIRST, SECOND = "0000:01:00.0", "0000:41:00.0"


def before(call, gpu=None):
    return {"call": call, "gpu": gpu}


def after(call, code=0, gpu=None, name="CUDA_SUCCESS"):
    return {"call": call, "gpu": gpu, "code": code, "name": name}


def outcome(*told, ended=0, inventory=TWO):
    return core.outcome("".join(f"{json.dumps(one)}\n" for one in told), ended, inventory, "sglang", 120)


START = (after("cuInit"), after("cuDeviceGetCount"), {"count": 2})
WELL = (*START, after("cuDevicePrimaryCtxRetain", gpu=FIRST), after("cuDevicePrimaryCtxRetain", gpu=SECOND))


def test_contexts_on_all_gpus():
    assert outcome(*WELL) == core.Outcome([], [], {FIRST: True, SECOND: True})


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "kernel log"),
        (34, "stubs"),
        (100, "/dev/nvidia*"),
        (304, "nvidia-modprobe -u"),
        (802, "fabric manager"),
        (803, "exactly the module's version"),
        (804, "cuda-compat"),
        (999, "nvidia-modprobe -u"),
        (12345, "CUDA Driver API"),
    ],
)
def test_an_error_is_told_with_cause_and_cure(code, words):
    found = outcome(before("cuInit"), after("cuInit", code, name="CUDA_ERROR_X"))
    (text,) = found.problems
    assert text.startswith("expected that the user sglang can use CUDA, found ")
    assert f"(cuInit: CUDA_ERROR_X, {code}); " in text
    assert words in text.partition(f"{code}); ")[2]


def test_the_gpu_on_which_it_failed_is_named():
    found = outcome(*WELL[:-1], after("cuDevicePrimaryCtxRetain", 214, SECOND, "CUDA_ERROR_ECC_UNCORRECTABLE"))
    assert found.gpus == {FIRST: True, SECOND: False}
    assert f"can use CUDA on the GPU {SECOND}, found an ECC error" in found.problems[0]


@pytest.mark.parametrize(("code", "words"), [(2, "memory is taken"), (46, "another process has it")])
def test_a_gpu_that_another_program_has_is_no_fault_of_the_driver(code, words):
    found = outcome(*WELL[:-1], after("cuDevicePrimaryCtxRetain", code, SECOND))
    assert (found.problems, len(found.notes)) == ([], 1)
    assert SECOND in found.notes[0] and words in found.notes[0]


@pytest.mark.parametrize(
    ("told", "ended", "words"),
    [
        ((before("cuInit"),), None, "found that cuInit did not end in 120 s"),
        (
            (*WELL[:-1], before("cuDevicePrimaryCtxRetain", SECOND)),
            11,
            f"cuDevicePrimaryCtxRetain on the GPU {SECOND} was ended by signal 11",
        ),
        ((), 6, "found that loading the library was ended by signal 6"),
        ((), 0, "found that it could not be tried"),
        (({"error": "libcuda.so.1: cannot open shared object file"},), 0, "found: libcuda.so.1: cannot open shared object file; install"),
        ((after("cuInit"), after("cuDeviceGetCount"), {"count": 1}), 0, "expected 2 GPUs in CUDA, as in nvidia-smi, found 1"),
    ],
)
def test_a_hang_a_crash_and_a_gpu_that_is_missing_are_told(told, ended, words):
    (text,) = outcome(*told, ended=ended).problems
    assert words in text


def test_a_line_that_was_cut_off_is_left_out():
    told = "".join(f"{json.dumps(one)}\n" for one in WELL)
    assert core.outcome(told[:-5], 11, TWO, "sglang", 120).gpus == {FIRST: True}


def test_mig_shows_a_process_one_device_and_without_gpu_nothing_is_tried():
    divided = {"gpus": [{**GPU, "mig_enabled": True}, {**GPU, "index": 1}]}
    assert outcome(after("cuInit"), {"count": 1}, inventory=divided).problems == []
    assert core.not_tried(TWO) is None
    for gpus in ([], [{**GPU, "index": None}], [{**GPU, "health": "lost"}]):
        assert "no GPU is there" in core.not_tried({"gpus": gpus})
