#!/usr/bin/env python3
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Stands in for systemctl where nothing manages services: as much as ansible.builtin.systemd_service asks for a oneshot unit.

    systemctl_double.py DIRECTORY show UNIT | is-enabled UNIT | enable | disable | start | stop | restart UNIT | daemon-reload

DIRECTORY holds the units, `calls` (what changed something, a line each), and `<unit>.enabled` and `<unit>.active` while it is so. A start
runs what the unit says.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys


def main() -> None:
    directory = pathlib.Path(sys.argv[1])
    command, *names = (word for word in sys.argv[2:] if not word.startswith("-"))
    unit = directory / names[0] if names else directory
    enabled, active = (unit.with_name(f"{unit.name}.{word}") for word in ("enabled", "active"))
    if command == "show":
        there = unit.exists()
        state = "active" if active.exists() else "inactive"
        sys.stdout.write(f"Id={unit.name}\nLoadState={'loaded' if there else 'not-found'}\nActiveState={state}\n")
        return
    if command == "is-enabled":
        sys.stdout.write("enabled\n" if enabled.exists() else "disabled\n")
        sys.exit(0 if enabled.exists() else 1)
    with (directory / "calls").open("a") as stream:
        stream.write(" ".join([command, *names]) + "\n")
    if command in ("start", "restart"):
        for line in re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE):
            subprocess.run(line.split(), check=True)
        active.touch()
    elif command == "stop":
        active.unlink(missing_ok=True)
    elif command == "enable":
        enabled.touch()
    elif command == "disable":
        enabled.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
