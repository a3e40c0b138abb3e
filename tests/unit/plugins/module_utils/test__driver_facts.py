# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pathlib

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_packages as pkg
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_sources as src
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_facts import (
    HostFacts,
    Wanted,
    names_to_ask,
    offers,
    option_problems,
)

SAMPLES = pathlib.Path(__file__).parents[3] / "fixtures/driver"
DEBIAN_13 = src.Platform("debian", "13", "x86_64")
WHOLE = "Types: deb\nURIs: http://deb.debian.org/debian\nSuites: trixie\nComponents: main contrib non-free non-free-firmware\n"
LOCAL = "http://127.0.0.1:8765/good/compute/cuda/repos"


def sample(name):
    return (SAMPLES / name).read_text()


def test_a_source_is_asked_once_apt_can_see_all_of_it():
    found = pkg.policies(sample("policy_debian13.txt"))
    whole = pkg.apt_sources({"debian.sources": WHOLE})
    assert offers(found, whole, DEBIAN_13).asked == ["distribution"]
    assert offers(found, pkg.apt_sources({"debian.sources": WHOLE.replace(" non-free ", " ")}), DEBIAN_13).asked == []
    added = pkg.apt_sources({"debian.sources": WHOLE, "n.list": f"deb {LOCAL}/debian13/x86_64/ /\n"})
    assert offers(found, added, DEBIAN_13, base_url=LOCAL).asked == ["distribution", "nvidia"]
    assert offers(found, added, DEBIAN_13).asked == ["distribution"], "another mirror than the one that is asked for"


def test_an_index_stands_in_for_a_repository_that_is_not_there_yet():
    index = pkg.index(sample("Packages_nvidia.txt"))
    known = offers(pkg.policies(sample("policy_debian13.txt")), pkg.apt_sources({"d.sources": WHOLE}), DEBIAN_13, nvidia_index=index)
    assert known.asked == ["distribution", "nvidia"]
    assert known.of("nvidia", "libcuda1")[0] == "590.48.01-1"
    assert known.of("distribution", "libcuda1") == ["550.163.01-2"]
    assert known.any("libcuda1")[-1] == "580.95.05-1"


def test_what_apt_is_asked_for():
    kernel = "6.12.118+deb13-amd64"
    packages = pkg.packages(sample("dpkg_debian13_kernel.txt"))
    names = names_to_ask(DEBIAN_13, HostFacts("debian", "13", "x86_64", kernel, "6.12.119+deb13-amd64", packages=packages))
    for name in (
        *("nvidia-open-kernel-dkms", "nvidia-tesla-535-kernel-dkms", "nvidia-driver-cuda", "nvidia-fabricmanager"),
        *(f"linux-headers-{kernel}", "linux-headers-6.12.119+deb13-amd64", "linux-headers-amd64"),
        *("nvidia-alternative", "libnvidia-pkcs11-openssl3", "nvidia-modprobe"),  # installed, and part of what has to change together
    ):
        assert name in names
    assert "bash" not in names


def test_the_next_kernel_counts_once():
    assert HostFacts("debian", "13", "x86_64", "a", "a").kernels() == ["a"]
    assert HostFacts("debian", "13", "x86_64", "a", "b").kernels() == ["a", "b"]
    assert HostFacts("debian", "13", "x86_64", "a").kernels() == ["a"]


FILE = "NVIDIA-Linux-x86_64-580.105.08.run"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://m/repos", ""),
        ("HTTP://[::1]:8080/repos/", ""),
        ("file:///srv/rpm", ""),
        ("m/repos", "no http://, https:// or file:// URL"),
        ("ftp://m/repos", "no http://, https:// or file:// URL"),
        ("https:///repos", "no http://, https:// or file:// URL"),
        ("https://m:port/repos", "no http://, https:// or file:// URL"),
        ("https://[m/repos", "no http://, https:// or file:// URL"),
        ("https://m/a b", "blanks or control characters"),
        ("https://m/repos\nTrusted: yes", "blanks or control characters"),
        ("https://m/repos\u2028x", "blanks or control characters"),
        ("https://m/repos\x7f", "blanks or control characters"),
        ("https://user:secret@m/repos", "a user or password"),
        ("https://user@m/repos", "a user or password"),
        ("https://user:secret/word@m/repos", "a user or password"),
    ],
)
def test_a_url_goes_into_files_and_messages_as_it_is(url, found):
    asked = {
        "base_url": Wanted(base_url=url),
        "key_url": Wanted(key_url=url, key_fingerprint="A" * 40),
        "runfile": Wanted(runfile=f"{url}/{FILE}", runfile_sha256="a" * 64) if "://" in url else None,
    }
    for name, wanted in asked.items():
        told = option_problems(wanted) if wanted else []
        assert "secret" not in repr(told)
        if wanted and found:
            assert any(one.code == "bad_url" and f"gpu_driver_{name}" in one.text and found in one.text for one in told), (name, told)
        else:
            assert told == []
    if "user" in found:
        assert "auth.conf.d" in option_problems(Wanted(base_url=url))[0].text


def test_no_message_about_another_mistake_repeats_a_password():
    for runfile in ("https://user:secret@m/driver.run", "https://user:secret@m", f"https://user:secret@m/{FILE}?x=secret"):
        told = option_problems(Wanted(runfile=runfile, base_url="https://user:secret@m", source="nvidia", branch=590))
        assert "bad_url" in [one.code for one in told]
        assert "secret" not in repr(told)


@pytest.mark.parametrize("wanted", [Wanted(), Wanted(branch=580), Wanted(version="580.95.05", mode="kernel", flavour="open")])
def test_options_that_are_right(wanted):
    assert option_problems(wanted) == []
