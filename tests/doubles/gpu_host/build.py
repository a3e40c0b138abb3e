#!/usr/bin/env python3
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Build the Debian package that puts a recorded GPU host on a machine: build.py HOST PACKAGE.deb

It holds the recorded host in /usr/lib/firstlight-gpu-double/host and, when the host has nvidia-smi.json, the double as /usr/bin/nvidia-smi.
Nothing of it is a configuration file: removing the package removes all. The same content gives the same file; its version ends in a digest
of the content, so that another recording is another version.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
HOSTS = HERE.parents[1] / "fixtures/gpu/hosts"
NAME = "firstlight-gpu-double"
PLACE = f"usr/lib/{NAME}"


def digest(directory: pathlib.Path) -> str:
    """Eight hex digits for all files and links below a directory."""
    content = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() or path.is_file():
            content.update(f"{path.relative_to(directory)}\0".encode())
            content.update(str(path.readlink()).encode() if path.is_symlink() else path.read_bytes())
    return content.hexdigest()[:8]


def build(host: pathlib.Path, package: pathlib.Path) -> None:
    """Build the package from a recorded host's directory."""
    with tempfile.TemporaryDirectory() as temporary:
        tree = pathlib.Path(temporary) / "tree"
        shutil.copytree(host, tree / PLACE / "host", symlinks=True)
        if (host / "nvidia-smi.json").exists():
            shutil.copy(HERE / "nvidia_smi.py", tree / PLACE)
            (tree / "usr/bin").mkdir(mode=0o755)
            (tree / "usr/bin/nvidia-smi").symlink_to(f"../lib/{NAME}/nvidia_smi.py")
        version = f"1.0+{host.name.replace('_', '.')}.{digest(tree)}"
        (tree / "DEBIAN").mkdir(mode=0o755)
        (tree / "DEBIAN/control").write_text(
            f"Package: {NAME}\nVersion: {version}\nArchitecture: all\nDepends: python3\n"
            "Maintainer: Firstlight maintainers <nobody@example.com>\n"
            f"Description: test double of a GPU host ({host.name})\n"
        )
        subprocess.run(["chmod", "-R", "u=rwX,go=rX", tree], check=True)
        subprocess.run(
            ["dpkg-deb", "--build", "--root-owner-group", "-Zgzip", tree, package],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "SOURCE_DATE_EPOCH": "0"},
        )


if __name__ == "__main__":
    if len(sys.argv) != 3 or not (HOSTS / sys.argv[1]).is_dir():
        known = ", ".join(sorted(path.name for path in HOSTS.iterdir() if path.is_dir()))
        sys.exit(f"usage: build.py HOST PACKAGE.deb; hosts: {known}")
    build(HOSTS / sys.argv[1], pathlib.Path(sys.argv[2]))
