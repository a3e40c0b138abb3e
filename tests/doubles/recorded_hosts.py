"""What the modules say of a recorded host of tests/fixtures/gpu/hosts, run as Ansible runs them."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import subprocess
import sys
import typing as t

ROOT = pathlib.Path(__file__).parents[2]
HOSTS = ROOT / "tests/fixtures/gpu/hosts"


def run(module: str, options: dict[str, t.Any], *, refused: bool = False, **environment: str) -> dict[str, t.Any]:
    """The result of one of the collection's modules. refused: it is expected to fail."""
    done = subprocess.run(
        [sys.executable, ROOT / f"plugins/modules/{module}.py"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": options}),
        env={**os.environ, "PYTHONPATH": str(ROOT / "collections"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode != 0) == refused, done.stdout + done.stderr
    return t.cast("dict[str, t.Any]", json.loads(done.stdout))


@functools.cache
def look(host: str) -> dict[str, t.Any]:
    """gpu_info, with the double in the place of nvidia-smi."""
    options = {"root": str(HOSTS / host)}
    if (HOSTS / host / "nvidia-smi.json").exists():
        options["nvidia_smi_path"] = str(ROOT / "tests/doubles/gpu_host/nvidia-smi")
    return run("gpu_info", options, FIRSTLIGHT_GPU_HOST=str(HOSTS / host))
