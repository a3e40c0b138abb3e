"""The module with a library in the place of libcuda that fails, crashes and hangs as it is told."""

from __future__ import annotations

import getpass
import pathlib
import shutil
import subprocess

import pytest
from recorded_hosts import ROOT, run

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
GPU = {"index": 0, "health": "ok", "mig_enabled": None}
INVENTORY = {"gpus": [GPU, {**GPU, "index": 1}]}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", path, ROOT / "tests/doubles/libcuda_double.c"], check=True)
    return path


def ask(library: pathlib.Path, how: str = "", count: int = 2, **options):
    values = {"inventory": INVENTORY, "user": getpass.getuser(), "library": str(library), **options}
    return run("cuda_context_info", values, CUDA_DOUBLE=how, CUDA_DOUBLE_COUNT=str(count))


def test_a_context_on_each_gpu(library):
    result = ask(library)
    assert (result["tried"], result["problems"], result["notes"]) == (True, [], [])
    assert result["gpus"] == {"0000:01:00.0": True, "0000:41:00.0": True}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cuInit=802", "found a system that is not ready (cuInit: CUDA_ERROR_SYSTEM_NOT_READY, 802); start the fabric manager"),
        ("cuDeviceGetCount=100", "found no device"),
        ("cuDevicePrimaryCtxRetain=999", "on the GPU 0000:41:00.0, found an unknown error"),
        ("cuDevicePrimaryCtxRetain=crash", "cuDevicePrimaryCtxRetain on the GPU 0000:41:00.0 was ended by signal 6"),
        ("cuInit=hang", "found that cuInit did not end in 1 s"),
    ],
)
def test_what_fails_crashes_or_hangs_is_told(library, how, words):
    (text,) = ask(library, how, timeout_s=1 if how.endswith("hang") else 60)["problems"]
    assert words in text


def test_a_library_that_is_not_there_and_a_gpu_that_cuda_does_not_see(library):
    (text,) = ask(library.with_name("libno.so.1"))["problems"]
    assert "can load the driver's library for CUDA, found: " in text
    (text,) = ask(library, count=1)["problems"]
    assert "expected 2 GPUs in CUDA" in text


@pytest.mark.parametrize(("gpus", "lost"), [(None, "gpus"), ([{}], "gpus[0].index, gpus[0].health, gpus[0].mig_enabled")])
def test_something_else_than_the_result_of_gpu_info_is_refused_in_one_sentence(gpus, lost):
    options = {"inventory": {"gpus": gpus}, "user": getpass.getuser()}
    assert (
        run("cuda_context_info", options, refused=True)["msg"] == f"inventory: expected the result of gpu_info, found none of its {lost}."
    )


def test_without_a_gpu_nothing_is_tried(library):
    result = ask(library, "cuInit=crash", inventory={"gpus": []})
    assert (result["tried"], result["problems"]) == (False, [])
    assert "was not tried" in result["notes"][0]
