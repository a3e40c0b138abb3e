# Copyright: (c) 2026, Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "tools" / "testhost.py"
spec = importlib.util.spec_from_file_location("testhost", SCRIPT)
assert spec and spec.loader
testhost = importlib.util.module_from_spec(spec)
sys.modules["testhost"] = testhost  # dataclasses look their module up there
spec.loader.exec_module(testhost)

Source, Mirror = testhost.Source, testhost.Mirror
HOST = testhost.Host("demo", "ct129", "debian", "trixie", python=True, systemd=True)
BRIDGE = IPv4Interface("10.0.3.1/24")

DEBIAN_SOURCES = """\
# made by an installer
Types: deb
# URIs: http://old.example.org/debian
URIs: http://mirror.example.org/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb deb-src
URIs: http://mirror.example.org/debian-security/ http://second.example.org/debian-security
Suites: bookworm-security
Components: main
  non-free-firmware

Enabled: no
Types: deb
URIs: http://disabled.example.org/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://source.example.org/debian
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEY865UxYJ: not a field
"""

ONE_LINE_SOURCES = """\
# deb http://old.example.org/ubuntu noble main
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] https://ppa.example.org/somebody noble main
deb http://mirror.example.org/ubuntu/ noble main restricted # the archive
deb http://mirror.example.org/ubuntu noble-updates main restricted
deb-src http://mirror.example.org/ubuntu noble main
deb http://security.example.org/ubuntu noble-security main
deb cdrom:[Ubuntu 24.04]/ noble main
deb https://gpu.example.org/cuda/ /
"""


def test_deb822_sources():
    assert testhost.parse_deb822_sources(DEBIAN_SOURCES) == [
        Source("http://mirror.example.org/debian", ("bookworm", "bookworm-updates"), ("main",)),
        Source("http://mirror.example.org/debian-security", ("bookworm-security",), ("main", "non-free-firmware")),
        Source("http://second.example.org/debian-security", ("bookworm-security",), ("main", "non-free-firmware")),
    ]


def test_one_line_sources():
    assert testhost.parse_one_line_sources(ONE_LINE_SOURCES)[:3] == [
        Source("https://ppa.example.org/somebody", ("noble",), ("main",)),
        Source("http://mirror.example.org/ubuntu", ("noble",), ("main", "restricted")),
        Source("http://mirror.example.org/ubuntu", ("noble-updates",), ("main", "restricted")),
    ]


@pytest.mark.parametrize(
    ("sources", "codename", "expected"),
    [
        pytest.param(
            testhost.parse_deb822_sources(DEBIAN_SOURCES),
            "bookworm",
            Mirror("http://mirror.example.org/debian", "http://mirror.example.org/debian-security", updates=True),
            id="debian",
        ),
        pytest.param(
            testhost.parse_one_line_sources(ONE_LINE_SOURCES),
            "noble",
            Mirror("http://mirror.example.org/ubuntu", "http://security.example.org/ubuntu", updates=True),
            id="ubuntu-with-a-ppa-first",
        ),
        pytest.param(
            testhost.parse_one_line_sources("deb http://mirror.example.org/debian stable main"),
            "trixie",
            Mirror("http://mirror.example.org/debian", None, updates=False),
            id="suite-alias-only",
        ),
    ],
)
def test_mirror(sources, codename, expected):
    assert testhost.choose_mirror(sources, codename) == expected


def test_no_mirror_is_told_by_name():
    with pytest.raises(testhost.TestHostError, match="archive for trixie"):
        testhost.choose_mirror(testhost.parse_one_line_sources("deb cdrom:[x]/ trixie main"), "trixie")


def test_sources_of_a_host_follow_its_own_suite():
    mirror = Mirror("http://a/debian", "http://a/debian-security", updates=True)
    sources = testhost.wanted_sources(mirror, HOST)
    assert testhost.render_one_line_sources(sources) == [
        "deb http://a/debian trixie main",
        "deb http://a/debian trixie-updates main",
        "deb http://a/debian-security trixie-security main",
    ]
    assert testhost.parse_deb822_sources(testhost.render_deb822_sources(sources, "debian")) == sources
    assert testhost.wanted_sources(mirror, replace(HOST, suite="sid")) == [Source("http://a/debian", ("sid",), ("main",))]


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ([], "10.0.3.129/24"),
        (["10.0.3.129", "10.0.3.131"], "10.0.3.130/24"),
        ([f"10.0.3.{n}" for n in range(129, 255)], "10.0.3.2/24"),
    ],
)
def test_address(used, expected):
    assert str(testhost.choose_address(BRIDGE, used)) == expected


def test_address_in_a_small_network():
    small = IPv4Interface("192.168.7.1/29")
    assert str(testhost.choose_address(small, [])) == "192.168.7.6/29"
    with pytest.raises(testhost.TestHostError, match="Every address"):
        testhost.choose_address(small, [f"192.168.7.{n}" for n in range(2, 7)])


def test_name_belongs_to_purpose_and_checkout():
    name = testhost.container_name("demo", Path("/srv/firstlight"))
    assert name.startswith("firstlight-demo-") and len(name.rpartition("-")[2]) == 6
    assert name != testhost.container_name("demo", Path("/srv/other"))


@pytest.mark.parametrize(("python", "systemd"), [(True, True), (False, True), (True, False)])
def test_packages_follow_the_options(python, systemd):
    host = replace(HOST, python=python, systemd=systemd)
    assert ("python3" in host.packages()) is python
    assert ("systemd" in host.packages()) is systemd
    assert testhost.rootfs_key(host, "amd64") == testhost.rootfs_key(replace(host, purpose="x", hostname="y"), "amd64")
    assert (testhost.rootfs_key(host, "amd64") == testhost.rootfs_key(HOST, "amd64")) is (python and systemd)


def config(host):
    return testhost.render_config(
        host=host,
        directory=Path("/lxc/x"),
        gateway=IPv4Address("10.0.3.1"),
        address=IPv4Interface("10.0.3.129/24"),
        uv=Path("/home/a user/.cache/uv"),
    )


def test_config_can_be_read_back():
    text = config(HOST)
    assert testhost.config_host(text) == HOST
    assert testhost.config_address(text) == "10.0.3.129"
    assert "lxc.mount.entry = /home/a\\040user/.cache/uv var/cache/firstlight/uv none bind,create=dir 0 0\n" in text
    assert "lxc.net.0.hwaddr = 00:16:3e:00:03:81\n" in text
    assert "lxc.init.cmd" not in text


def test_config_without_systemd_names_its_init():
    assert f"lxc.init.cmd = {testhost.INIT}\n" in config(replace(HOST, systemd=False))


def test_config_of_an_unprivileged_host_and_one_with_keys_of_its_own():
    host = replace(HOST, unprivileged=True, extra_config="/srv/extra.conf")
    text = config(host)
    assert testhost.config_host(text) == host
    assert "lxc.idmap = u 0 100000 65536\n" in text
    assert testhost.UV_CACHE.lstrip("/") not in text, "its root may not go there"
    assert text.endswith("\nlxc.include = /srv/extra.conf\n"), "after all others, so that they hold"
    assert "lxc.idmap" not in config(HOST)


def test_config_of_somebody_else():
    assert testhost.config_host("lxc.net.0.type = veth\n") is None
    assert testhost.config_address("lxc.net.0.type = veth\n") is None


def test_ssh_config():
    text = testhost.render_ssh_config("ct129", "10.0.3.129", Path("/srv/100% mine"))
    assert text.startswith("Host ct129 10.0.3.129\n  HostName 10.0.3.129\n  User ops\n")
    assert 'IdentityFile "/srv/100%% mine/id_ed25519"' in text
    assert "StrictHostKeyChecking yes" in text


@pytest.mark.parametrize(
    ("controller", "expected"),
    [
        ("search lan\nnameserver 192.0.2.53\n", "search lan\nnameserver 192.0.2.53\n"),
        ("nameserver 127.0.0.53\noptions edns0\nsearch lan\n", "options edns0\nsearch lan\nnameserver 10.0.3.1\n"),
        ("", "nameserver 10.0.3.1\n"),
    ],
)
def test_resolv_conf(controller, expected):
    assert testhost.render_resolv_conf(controller, BRIDGE) == expected


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ("cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev 0 0\n", True),
        ("cgroup2 /sys/fs/cgroup cgroup2 ro,nosuid,nodev 0 0\nproc /proc proc rw 0 0\n", False),
        ("tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n", True),
        ("", False),
    ],
)
def test_writable_cgroups(mounts, expected):
    assert testhost.writable_cgroups(mounts) is expected


def test_first_lxc_error():
    log = (
        "lxc-start x 20261201042046.804 WARN     cgfsng - ../src/lxc/cgroups/cgfsng.c:f:1 - Something\n"
        "lxc-start x 20261201042046.804 ERROR    cgfsng - ../src/lxc/cgroups/cgfsng.c:f:3962 - Not a directory - Failed to open 9/cpuacct\n"
        "lxc-start x 20261201042046.804 ERROR    cgroup - ../src/lxc/cgroups/cgroup.c:cgroup_init:34 - Bad file descriptor\n"
    )
    assert testhost.first_lxc_error(log) == "Not a directory - Failed to open 9/cpuacct"
    assert testhost.first_lxc_error("") is None


def test_available_memory():
    assert testhost.available_memory("MemTotal:  100 kB\nMemAvailable:   12 kB\n") == 12288
    assert testhost.available_memory("") == 0


def test_failed_units():
    listing = "a.service loaded failed failed Something\nb.mount loaded failed failed Other\n\n"
    assert testhost.failed_units(listing) == ["a.service", "b.mount"]


@pytest.mark.parametrize("name", ["", "Demo", "1a", "a/b", "../x", "a" * 32])
def test_purpose_that_cannot_be_a_name(name):
    with pytest.raises(testhost.argparse.ArgumentTypeError):
        testhost.purpose_name(name)
