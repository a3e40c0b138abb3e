#!/usr/bin/env python3
"""Print the keys by which plain LXC does what a Proxmox container's file asks for.

plain_lxc.py FILE ROOT: the devices of the container lie below ROOT.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ansible_collections.firstlight.sglang.plugins.module_utils import _lxc_config

# Where the controller of devices is that of cgroup v1, LXC reads the rules of the second kind and does nothing with them.
CGROUP = 1 if Path("/sys/fs/cgroup/devices").is_dir() else 2


def main() -> None:
    conf = _lxc_config.parse(Path(sys.argv[1]).read_text(encoding="utf-8"))
    root = sys.argv[2]
    devices = filter(None, (_lxc_config.parse_device(value) for value in _lxc_config.devices(conf).values()))
    numbers = {device.path: Path(root + device.path).stat().st_rdev for device in devices}
    pairs = {path: (os.major(number), os.minor(number)) for path, number in numbers.items()}
    print("\n".join(_lxc_config.to_lxc_keys(conf, pairs, root=root, cgroup=CGROUP)))


if __name__ == "__main__":
    main()
