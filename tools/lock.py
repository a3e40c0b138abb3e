#!/usr/bin/env python3
# Copyright: (c) 2026, Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Regenerate the locks of the engine's Python environments (roles/sglang_venv/files/locks).

A lock NAME.txt is made from NAME.in, and from NAME.no-deps.in for what is locked without its dependencies; NAME.overrides.in replaces
what packages require of others. A lock holds for every supported Python and machine at once, names no index, and needs no resolution
when it is installed. Versions that it has already are kept unless --upgrade is given or the inputs exclude them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LOCKS = Path(__file__).resolve().parent.parent / "roles" / "sglang_venv" / "files" / "locks"
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = ("x86_64-manylinux_2_34", "aarch64-manylinux_2_34")  # SGLang's wheels need that glibc, so nothing older counts
NO_DEPS, OVERRIDES = ".no-deps", ".overrides"
COMPILE = [
    "--only-binary=:all:",
    "--no-emit-index-url",
    "--no-annotate",
    "--no-header",
    "--no-python-downloads",
    "--no-config",
    "--system-certs",
    "--quiet",
]
UNIVERSAL = ["--universal", "--generate-hashes", f"--python-version={PYTHONS[0]}"]


class LockError(Exception):
    """The lock cannot be made or is not what its inputs say."""


def split_blocks(text: str) -> list[tuple[str, str]]:
    """Requirements with their hash lines, as (project name, block), in the order of the text."""
    blocks: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line[0].isspace():
            blocks[-1][1].append(line)
            continue
        match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line)
        if match is None:
            raise LockError(f"not a requirement: {line}")
        blocks.append((match.group(0), [line]))
    return [(name, "\n".join(lines)) for name, lines in blocks]


def unite(name: str, parts: list[str]) -> str:
    """One lock from several compiled texts; no project may be in two of them."""
    blocks: list[tuple[str, str]] = []
    for part in parts:
        new = split_blocks(part)
        twice = {project for project, _ in blocks} & {project for project, _ in new}
        if twice:
            raise LockError(f"{name}: in both inputs: {', '.join(sorted(twice))}")
        blocks += new
    for project, block in blocks:
        if "--hash=sha256:" not in block:
            raise LockError(f"{name}: {project} has no hash")
        if "://" in block:
            raise LockError(f"{name}: {project} comes from an address, not from an index")
    header = f"# Made by tools/lock.py from {name}.in; do not edit.\n"
    return header + "\n".join(block for _, block in sorted(blocks, key=lambda item: item[0])) + "\n"


def compile_inputs(uv: str, source: Path, options: list[str], wanted: str = "") -> str:
    """What uv makes of one input file; ``wanted`` (the present lock) says which versions to keep."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "lock.txt"
        output.write_text(wanted, encoding="utf-8")
        command = [uv, "pip", "compile", *COMPILE, *options, f"--output-file={output}", str(source)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=scratch)
        if done.returncode != 0:
            raise LockError(f"{source.name} ({' '.join(options)}): uv exited with {done.returncode}:\n{done.stderr.strip()}")
        return output.read_text(encoding="utf-8")


def make_lock(uv: str, name: str, upgrade: bool) -> str:
    """The text of the lock called ``name``."""
    source, lock = LOCKS / f"{name}.in", LOCKS / f"{name}.txt"
    if not source.is_file():
        raise LockError(f"{name}: no such input: {source}")
    wanted = lock.read_text(encoding="utf-8") if lock.is_file() and not upgrade else ""
    no_deps, overrides = LOCKS / f"{name}{NO_DEPS}.in", LOCKS / f"{name}{OVERRIDES}.in"
    options = [f"--override={overrides}"] if overrides.is_file() else []
    parts = [compile_inputs(uv, source, [*UNIVERSAL, *options], wanted)]
    if no_deps.is_file():
        parts.append(compile_inputs(uv, no_deps, [*UNIVERSAL, "--no-deps"], wanted))
    return unite(name, parts)


def prove_wheels(uv: str, name: str, text: str) -> None:
    """Every requirement has a wheel for every supported Python and machine (a universal lock alone does not say so)."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / f"{name}.txt"
        source.write_text(text, encoding="utf-8")
        for python in PYTHONS:
            for platform in PLATFORMS:
                compile_inputs(uv, source, ["--no-deps", f"--python-version={python}", f"--python-platform={platform}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="RELEASE-VARIANT", help="locks to make, e.g. 0.5.23-cuda or uv; all of them by default")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a lock is not what its inputs give")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that the inputs allow")
    parser.add_argument("--uv", default="uv", help="the uv executable")
    arguments = parser.parse_args()
    names = arguments.names or sorted(
        path.name[: -len(".in")] for path in LOCKS.glob("*.in") if not path.stem.endswith((NO_DEPS, OVERRIDES))
    )
    stale = False
    for name in names:
        lock = LOCKS / f"{name}.txt"
        try:
            text = make_lock(arguments.uv, name, arguments.upgrade)
            prove_wheels(arguments.uv, name, text)
        except LockError as error:
            print(f"lock.py: {error}", file=sys.stderr)
            return 2
        if lock.is_file() and lock.read_text(encoding="utf-8") == text:
            print(f"{name}: up to date")
        elif arguments.check:
            stale = True
            print(f"{name}: the lock is not what its inputs give; run tools/lock.py {name}")
        else:
            lock.write_text(text, encoding="utf-8")
            print(f"{name}: written, {len(split_blocks(text))} requirements")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
