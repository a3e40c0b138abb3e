# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What the decision about a driver starts from: the operator's wishes, a host's facts, and what the sources offer."""

from __future__ import annotations

import dataclasses
import re
import typing as t
import urllib.parse

from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_packages as pkg
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_sources as src

Inventory = t.Mapping[str, t.Any]  # the result of gpu_info (docs/design.md)


class Problem(t.NamedTuple):
    """One reason to stop: a stable word, and one sentence with what was expected, what was found and what to change.

    refusals_told: the sentence says already which sources were refused (Offers.refused), and why.
    """

    code: str
    text: str
    refusals_told: bool = False


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What the operator asks for; a variable gpu_driver_<name> each.

    mode: auto, kernel or userland. source: auto, distribution, nvidia or runfile. branch or version, not both. flavour: auto, open or
    proprietary. sglang_release: its needs are the least that is taken; None asks for nothing. upgrade: the newest of the branch, also where
    an older one is installed and good enough. secure_boot: stop, or mok (prepare the enrolment of the key that DKMS signs with).
    reboot: never, if_required or report. persistence: None is true where there is a module. fabric_manager: None where NVSwitches
    decide. power_limit_w, clocks_mhz: of each GPU. base_url: a mirror of NVIDIA's repositories;
    key_url and key_fingerprint where it signs with a key of its own. runfile: path or URL of a .run file. unknown_releases: of SGLang, that
    were asked for too and whose needs are not known.
    """

    required: bool = True
    mode: str = "auto"
    source: str = "auto"
    branch: int | None = None
    version: str | None = None
    flavour: str = "auto"
    sglang_release: str | None = None
    upgrade: bool = False
    allow_downgrade: bool = False
    secure_boot: str = "stop"
    reboot: str = "report"
    persistence: bool | None = None
    fabric_manager: bool | None = None
    base_url: str | None = None
    key_url: str | None = None
    key_fingerprint: str | None = None
    runfile: str | None = None
    runfile_sha256: str | None = None
    unknown_releases: t.Sequence[str] = ()
    power_limit_w: int | None = None
    clocks_mhz: t.Sequence[int] | None = None

    def of_module(self) -> list[str]:
        """Variables that were set and that only a host with a kernel module of its own has a use for."""
        asked = {
            "flavour": self.flavour != "auto",
            "fabric_manager": self.fabric_manager is True,
            "persistence": self.persistence is True,
            "secure_boot": self.secure_boot == "mok",
            "power_limit_w": self.power_limit_w is not None,
            "clocks_mhz": self.clocks_mhz is not None,
        }
        return [f"gpu_driver_{name}" for name, given in asked.items() if given]

    def of_mirror(self) -> list[str]:
        """Variables that were set and that only source nvidia has a use for."""
        return [f"gpu_driver_{name}" for name in ("base_url", "key_url", "key_fingerprint") if getattr(self, name) is not None]


@dataclasses.dataclass(frozen=True)
class HostFacts:
    """What a host is, beside its GPUs.

    distribution, version, machine: as _driver_sources.platform takes them. kernel: uname -r. kernel_next: the kernel that boots next, None
    when it is not known. headers: kernels whose headers are there (/lib/modules/<kernel>/build). packages: all that dpkg knows.
    sources: apt's. module_version, module_flavour: of the module on disk for the running kernel (modinfo), None without. nvidia_installer:
    a driver of a .run file is there (nvidia-uninstall). mok_enrolled: the firmware knows the key that DKMS signs with; None when not known.
    local: Ansible runs on this host itself. hypervisor: it runs guests (Proxmox VE). guests_running: how many. rebooted: this run has
    rebooted it already.
    """

    distribution: str
    version: str
    machine: str
    kernel: str
    kernel_next: str | None = None
    headers: t.Sequence[str] = ()
    packages: t.Sequence[pkg.Package] = ()
    sources: t.Sequence[pkg.AptSource] = ()
    module_version: str | None = None
    module_flavour: str | None = None
    nvidia_installer: bool = False
    mok_enrolled: bool | None = None
    local: bool = False
    hypervisor: bool = False
    guests_running: int = 0
    rebooted: bool = False

    def kernels(self) -> list[str]:
        """The running kernel, and the next one where it is another."""
        return list(dict.fromkeys(kernel for kernel in (self.kernel, self.kernel_next) if kernel))

    def installed(self, name: str) -> str | None:
        """The full version of a package that is installed."""
        return next((package.version for package in self.packages if package.name == name and package.installed), None)


@dataclasses.dataclass(frozen=True)
class Offers:
    """What sources have: see offers().

    versions: source -> package -> full versions, those that apt prefers first. asked: sources whose index was read, so that what is not in
    versions is not there. refused: source -> what was found when its repository was asked for ("404 at https://...").
    """

    versions: t.Mapping[str, t.Mapping[str, t.Sequence[str]]] = dataclasses.field(default_factory=dict)
    asked: t.Sequence[str] = ()
    refused: t.Mapping[str, str] = dataclasses.field(default_factory=dict)

    def of(self, source: str, name: str) -> t.Sequence[str]:
        return self.versions.get(source, {}).get(name, ())

    def any(self, name: str) -> list[str]:
        """Versions of a package whatever its source is."""
        return [version for packages in self.versions.values() for version in packages.get(name, ())]


def offers(
    found: t.Mapping[str, pkg.Policy],
    sources: t.Sequence[pkg.AptSource],
    where: src.Platform,
    base_url: str | None = None,
    nvidia_index: t.Mapping[str, t.Sequence[str]] | None = None,
    refused: t.Mapping[str, str] | None = None,
) -> Offers:
    """What apt offers on this host.

    found: apt-cache policy of names_to_ask(). nvidia_index: NVIDIA's index for this platform (_driver_packages.index), where apt does not
    have it yet. The distribution counts as asked only when no component that it needs is missing.
    """
    repository = src.nvidia_repository(where)
    url = src.repository_url(repository, base_url) if repository else ""
    versions: dict[str, t.Mapping[str, t.Sequence[str]]] = dict(pkg.offers(found, [url] if url else []))
    asked = []
    if not pkg.missing_components(sources, src.components(where, "distribution"), where.distribution):
        asked.append("distribution")
    if url and pkg.entries_for(sources, url):
        asked.append("nvidia")
    elif nvidia_index is not None:
        versions["nvidia"] = nvidia_index
        asked.append("nvidia")
    return Offers(versions, asked, refused or {})


def names_to_ask(where: src.Platform, host: HostFacts) -> list[str]:
    """Every package whose versions the decision reads, for apt-cache policy."""
    found: dict[str, None] = {}
    for source in ("distribution", "nvidia"):
        for branch in src.known_branches(where, source):
            for flavour in src.FLAVOURS:
                names = src.names(where, source, flavour, branch, host.kernel)
                for group in (names.module, names.signed, names.userland, names.persistence, names.fabric_manager) if names else ():
                    found.update(dict.fromkeys(group))
    for kernel in host.kernels():
        headers = src.headers(where, kernel, [package.name for package in host.packages if package.installed])
        found.update(dict.fromkeys((*headers.running, *headers.following)))
    found.update(dict.fromkeys(pkg.bare(package.name) for package in host.packages if package.installed and pkg.of_driver(package.name)))
    return list(found)


# The options by themselves

_CHOICES = {
    "mode": ("auto", "kernel", "userland"),
    "source": ("auto", *src.SOURCES),
    "flavour": ("auto", *src.FLAVOURS),
    "secure_boot": ("stop", "mok"),
    "reboot": ("never", "if_required", "report"),
}


def option_problems(wanted: Wanted) -> list[Problem]:
    """What is wrong with the options whatever the host is."""
    problems = []

    def check(good: bool, code: str, text: str) -> None:
        if not good:
            problems.append(Problem(code, text))

    for name, allowed in _CHOICES.items():
        value = getattr(wanted, name)
        check(value in allowed, "bad_option", f"expected gpu_driver_{name} to be one of {', '.join(allowed)}, found {value!r}; change it.")
    check(
        wanted.branch is None or wanted.version is None,
        "branch_and_version",
        f"expected a branch or an exact version, found branch {wanted.branch} and version {wanted.version}; leave one out.",
    )
    check(
        wanted.branch is None or 300 <= wanted.branch <= 999,
        "bad_branch",
        f"expected a branch such as {src.PREFERRED_BRANCH}, found {wanted.branch}; change gpu_driver_branch.",
    )
    check(
        wanted.version is None or src.parse_version(wanted.version) is not None,
        "bad_version",
        f"expected a version such as 580.95.05 (without a package's revision), found {wanted.version!r}; change gpu_driver_version.",
    )
    releases = [
        release for release in (wanted.sglang_release, *wanted.unknown_releases) if release is not None and not src.engine_needs(release)
    ]
    check(
        not releases,
        "bad_release",
        f"expected SGLang releases whose needs are known (0.5.9 or later), found {', '.join(map(repr, releases))}; change "
        "gpu_driver_sglang_releases.",
    )
    check(
        wanted.mode != "userland" or not wanted.of_module(),
        "kernel_options_in_userland_mode",
        "expected no options of a kernel module in userland mode, which installs none, found "
        f"{', '.join(wanted.of_module())}; leave them out.",
    )
    check(
        not wanted.of_mirror() or wanted.source in ("auto", "nvidia"),
        "url_of_other_source",
        f"expected {', '.join(wanted.of_mirror())} with source nvidia only, found source {wanted.source}; leave one out.",
    )
    check(
        wanted.runfile_sha256 is None or wanted.runfile is not None,
        "checksum_without_runfile",
        "expected gpu_driver_runfile with gpu_driver_runfile_sha256, found the latter alone; give both or none.",
    )
    check(
        (wanted.key_url is None) == (wanted.key_fingerprint is None),
        "key_without_fingerprint",
        "expected gpu_driver_key_url and gpu_driver_key_fingerprint together, found one of them; give both or none.",
    )
    check(
        wanted.key_fingerprint is None or re.fullmatch(r"[0-9A-F]{40}|[0-9A-F]{64}", wanted.key_fingerprint) is not None,
        "bad_option",
        f"expected gpu_driver_key_fingerprint to have 40 or 64 hexadecimal digits, found {wanted.key_fingerprint!r}; change it.",
    )
    urls = {"base_url": wanted.base_url, "key_url": wanted.key_url, "runfile": wanted.runfile if is_url(wanted.runfile or "") else None}
    for name, url in urls.items():
        wrong = _url_problem(f"gpu_driver_{name}", url) if url is not None else None
        problems += [wrong] if wrong else []
    return problems + _runfile_option_problems(wanted)


def is_url(text: str) -> bool:
    """Whether it is no path."""
    return "://" in text


def _url_problem(name: str, url: str) -> Problem | None:
    """Why a URL is not taken. It becomes a line of a file that everybody may read; no message repeats it, since it may hold a password."""
    if not url.isprintable() or " " in url:
        return Problem("bad_url", f"expected a URL as {name}, found blanks or control characters in it; write them as %20 and the like.")
    if "@" in url:
        text = f"expected {name} without a user or password, found a user or password (@) in it; put credentials into apt's auth.conf.d"
        return Problem("bad_url", f"{text}, and write an @ that is part of a name as %40.")
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme == "file" or (parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0)
    except ValueError:  # no port, or half an IPv6 address
        good = False
    return None if good and is_url(url) else Problem("bad_url", f"expected {name}, found no http://, https:// or file:// URL; change it.")


def _runfile_option_problems(wanted: Wanted) -> list[Problem]:
    if wanted.runfile is None:
        text = "expected gpu_driver_runfile (a path or URL) with source runfile, found none; give it."
        return [Problem("runfile_missing", text)] if wanted.source == "runfile" else []
    problems = []
    version = src.runfile_version(wanted.runfile)
    others = [f"source {wanted.source}"] if wanted.source in ("distribution", "nvidia") else []
    others += wanted.of_mirror() if wanted.source == "auto" else []
    if others:
        text = f"expected one source, found {', '.join(others)} and gpu_driver_runfile; leave one out."
        problems.append(Problem("two_sources", text))
    if version is None:
        name = re.split(r"[?#]", wanted.runfile)[0].rpartition("/")[2].rpartition("@")[2]  # the rest may hold a password
        text = f"expected a file named NVIDIA-Linux-<machine>-<version>.run, found {name!r}; keep NVIDIA's name."
        problems.append(Problem("runfile_name", text))
    if wanted.runfile_sha256 is None and is_url(wanted.runfile):
        text = "expected gpu_driver_runfile_sha256 (64 hexadecimal digits) with a URL, found none; give it."
        problems.append(Problem("runfile_checksum", text))
    if wanted.runfile_sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", wanted.runfile_sha256):
        text = f"expected 64 hexadecimal digits as gpu_driver_runfile_sha256, found {wanted.runfile_sha256!r}; change it."
        problems.append(Problem("runfile_checksum", text))
    asked = wanted.version or (str(wanted.branch) if wanted.branch else None)
    if version and asked and asked not in (version, version.partition(".")[0]):
        text = f"expected the .run file to be of {asked}, found {version}; change gpu_driver_runfile, or leave the version out."
        problems.append(Problem("runfile_version", text))
    return problems
