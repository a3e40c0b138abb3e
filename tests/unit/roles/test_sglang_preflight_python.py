"""The script that looks for a Python: the one task that runs without one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

FILE = Path(__file__).resolve().parents[3] / "roles" / "sglang_preflight" / "tasks" / "python.yml"


def run(tmp_path, python, bootstrap="no"):
    script = re.sub(r"\{\{.*?\}\}", bootstrap, yaml.safe_load(FILE.read_text())[0]["ansible.builtin.raw"])
    (tmp_path / "tail").symlink_to("/usr/bin/tail")
    if python:
        (tmp_path / "python3").write_text(f"#!/bin/sh\n{python}\n")
        (tmp_path / "python3").chmod(0o755)
    return subprocess.run(["/bin/sh", "-c", script], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)


def test_one_that_works(tmp_path):
    done = run(tmp_path, f'exec {sys.executable} "$@"')
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("echo x >&2; echo \"ModuleNotFoundError: No module named 'zipfile'\" >&2; exit 1", "a broken one"),
        ("echo 'libpython3.so: cannot open shared object file' >&2; exit 127", "a broken one"),
        ("echo 'OSError: [Errno 28] No space left on device' >&2; exit 1", "temporary directory"),
        ("echo \"FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp']\" >&2; exit 1", "temporary directory"),
    ],
)
def test_one_that_does_not(tmp_path, python, words):
    done = run(tmp_path, python)
    assert done.returncode == 1
    assert words in done.stdout
    assert python.split("echo ")[-1].split(" >&2")[0].strip("'\"") in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_none(tmp_path):
    assert "found none" in run(tmp_path, None).stdout
