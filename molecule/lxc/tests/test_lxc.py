"""What the guests see of their devices, and what is on them, after converge."""

from __future__ import annotations

import json
import re

import pytest

VERSION = "550.163.01"
# path -> kind, major, minor, mode as `stat` prints them
WORKING = {
    f"/dev/{name}": "character special file 1 3 666"
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "ttyUSB0")
}
RIGHT = {
    "/dev/nvidia0": "character special file 195 0 666",
    "/dev/nvidia1": "character special file 195 1 666",
    "/dev/nvidiactl": "character special file 195 255 666",
    "/dev/nvidia-uvm": "character special file 509 0 666",
    "/dev/nvidia-uvm-tools": "character special file 509 1 666",
}
BROKEN = {
    "/dev/nvidia0": "character special file 195 0 666",
    "/dev/nvidia1": "character special file 195 1 666",
    "/dev/nvidia2": "character special file 195 2 600",
    "/dev/nvidia-uvm": "regular empty file 0 0 0",
}
NODES = {"ct129": WORKING, "ct130": RIGHT, "ct131": BROKEN}
# What opening them as the service's user comes to. The empty file has no mode at all.
ERRORS = {
    "ct129": dict.fromkeys(WORKING, "0"),
    "ct130": dict.fromkeys(RIGHT, "ENXIO"),
    "ct131": {
        "/dev/nvidiactl": "ENOENT",
        "/dev/nvidia0": "ENXIO",
        "/dev/nvidia1": "EPERM",
        "/dev/nvidia2": "EACCES",
        "/dev/nvidia-uvm": "EACCES",
    },
}
OPEN = """\
import errno, os, sys
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDWR))
        print(path, 0)
    except OSError as error:
        print(path, errno.errorcode[error.errno])
"""


@pytest.fixture
def name(host):
    return host.check_output("hostname")


def test_the_nodes_are_those_of_the_guests_file_and_no_others(host, name):
    listed = host.run("cd /dev; stat -c '/dev/%n: %F %Hr %Lr %a' nvidia* ttyUSB0").stdout
    found = dict(line.split(": ", 1) for line in listed.splitlines())
    assert found == NODES[name]


def test_opening_them_says_what_is_wrong(host, name):
    said = host.check_output(f"sudo -u nobody python3 -c '{OPEN}' {' '.join(ERRORS[name])}")
    found = dict(line.split() for line in said.splitlines())
    assert found == ERRORS[name]


def test_the_root_of_an_unprivileged_guest_is_another_user(host, name):
    assert (host.file("/proc/self/uid_map").content_string.split()[1] != "0") == (name == "ct129")


def test_the_userland_is_of_one_version_and_nothing_of_a_module_came_with_it(host, name):
    listed = host.check_output("dpkg-query -W -f='${binary:Package} ${Version} ${db:Status-Abbrev}\\n'")
    packages = {line.split()[0].partition(":")[0]: line.split()[1] for line in listed.splitlines() if line.split()[2].startswith("i")}
    if name == "ct131":  # its nodes are not right
        assert not [name for name in packages if re.search(r"nvidia|libcuda", name)]
        assert not host.file("/var/lib/firstlight/gpu_driver.json").exists
        return
    assert {"libcuda1", "libnvidia-ml1", "nvidia-smi"} <= set(packages)
    versions = {name: version for name, version in packages.items() if re.match(r"libnvidia|libcuda|nvidia-smi", name)}
    assert all(version.startswith(f"{VERSION}-") for version in versions.values()), versions
    assert not [name for name in packages if "dkms" in name or "kernel" in name]
    assert json.loads(host.file("/var/lib/firstlight/gpu_driver.json").content_string)["packages_before"] == []
