# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Where NVIDIA's driver comes from: repositories, keys, package names and branches by platform, and what SGLang asks of a driver.

Data and its lookups. What is not in the tables is unknown (None): nothing is guessed from a similar platform.

Sources, by the short names used below:
  ARCHIVE      Debian's own archive, bookworm and trixie with security and backports, as apt-cache showed it on 2026-12-01
  SIGNATURES   SIGNATURES.md of NVIDIA/cuda-repo-management: fingerprints of 3BF863CC (deb) and D42D0685 (rpm)
  KEYS         README.md there, table "GPG keys": debian12 3bf863cc, debian13 8793F200, rpm D42D0685; issues 30, 34 and 39 there: only
               debian13 has the new key, other directories keep the one whose self-signature is SHA-1. The new fingerprint
               stands in public installers that check it (02182E60...8793F200)
  MISSING      issues 38 and 40 there: debian13 has no branch before 590 (38 still open in August 2026)
  INDEX        the listing of compute/cuda/repos/debian12/x86_64 of 2026-02-24: its oldest toolkit is 12.3, which came with 545;
               fabric manager with the branch in its name up to 575, without it from 580 on
  GUIDE        NVIDIA Driver Installation Guide, chapters introduction (610: directories by distribution), Debian, Ubuntu (May 2026),
               compute-only installation (from 560 on), recent updates (Ubuntu packages without branch from 590 on), version locking
  SBSA         public installers and a package list of August 2026 name debian13/sbsa with 595 and 610; none has seen debian12/sbsa
  UBUNTU       packages.ubuntu.com, source packages nvidia-graphics-drivers-{535,550,570,580}-server in jammy and noble
  DOWNGRADE    a simulated downgrade of all packages from 595 to 590 on Ubuntu 24.04 (public, April 2026): nvidia-smi has no
               package of its own there, the persistence daemon has
  CUDA         CUDA Toolkit release notes 13.2 and 13.3, tables "CUDA Toolkit and Corresponding Driver Versions" and "Minimum
               Required Driver Version for CUDA Minor Version Compatibility"; 615 for 13.4: CUTLASS 4.8.0 release notes
  LIFECYCLE    NVIDIA "Supported Drivers and CUDA Toolkit Versions": R580 is the long-term branch, until August 2028
  SGLANG       metadata of SGLang's releases: 0.5.9 and 0.5.10 bring torch 2.9.1 (CUDA 12.8), 0.5.11 torch 2.11.0 and cuda-python 13
               or later, as all after it (CUDA 13.0)
"""

from __future__ import annotations

import re
import typing as t

SOURCES = ("distribution", "nvidia", "runfile")
FLAVOURS = ("open", "proprietary")

# NVIDIA's CUDA network repositories: below it <directory>/<architecture> (GUIDE).
NVIDIA_BASE_URL = "https://developer.download.nvidia.com/compute/cuda/repos"


# Versions of the driver


def parse_version(text: str) -> tuple[int, ...] | None:
    """580.95.05 -> (580, 95, 5); None when it is no driver version. Such tuples compare as the versions do."""
    match = re.fullmatch(r"(\d{3})\.(\d{1,3})(?:\.(\d{1,2}))?", text, re.ASCII)
    return tuple(int(part) for part in match.groups() if part is not None) if match else None


def branch_of(version: str) -> int | None:
    """The branch of a driver version: 580.95.05 -> 580."""
    parsed = parse_version(version)
    return parsed[0] if parsed else None


def newest(versions: t.Iterable[str]) -> list[str]:
    """Driver versions without duplicates, the newest first; what is no version is left out."""
    return sorted({version for version in versions if parse_version(version)}, key=lambda one: parse_version(one) or (), reverse=True)


# Branch -> newest CUDA that it serves: CUDA.
BRANCH_CUDA: dict[int, str] = {
    470: "11.4",
    510: "11.6",
    515: "11.7",
    520: "11.8",
    525: "12.0",
    530: "12.1",
    535: "12.2",
    545: "12.3",
    550: "12.4",
    555: "12.5",
    560: "12.6",
    565: "12.7",
    570: "12.8",
    575: "12.9",
    580: "13.0",
    590: "13.1",
    595: "13.2",
    610: "13.3",
    615: "13.4",
}
# CUDA's major version -> the oldest driver that runs what was built with any of its minor versions: CUDA.
CUDA_MINIMUM_DRIVER: dict[int, str] = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
# The branch to take when nothing else decides: LIFECYCLE.
PREFERRED_BRANCH = 580
# From this branch on NVIDIA installs the open flavour where both fit (GUIDE: from 560). Before 560, in 535, GeForce and
# workstation cards are served by it only with a module option.
OPEN_BY_DEFAULT_FROM = 560


class EngineNeeds(t.NamedTuple):
    """What a release of SGLang asks of the host: the CUDA that its torch was built with, and the oldest driver that runs it."""

    cuda: str
    driver: str


# First SGLang release -> the CUDA that its torch was built with, the newest first: SGLANG.
ENGINE_CUDA: tuple[tuple[tuple[int, int, int], str], ...] = (((0, 5, 11), "13.0"), ((0, 5, 9), "12.8"))


def engine_needs(release: str) -> EngineNeeds | None:
    """What a SGLang release asks for ("0.5.23", "0.5.15.post1"); None when it is no release, or older than the table."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?![\d])", release, re.ASCII)
    if not match:
        return None
    number = tuple(int(part or 0) for part in match.groups())
    cuda = next((cuda for first, cuda in ENGINE_CUDA if number >= first), None)
    return EngineNeeds(cuda, CUDA_MINIMUM_DRIVER[int(cuda.partition(".")[0])]) if cuda else None


# Platforms


class Platform(t.NamedTuple):
    """distribution: debian, ubuntu or rhel (Rocky and Alma too). release: 12, 24.04, 9. machine: x86_64 or aarch64."""

    distribution: str
    release: str
    machine: str

    def text(self) -> str:
        word = {"debian": "Debian", "ubuntu": "Ubuntu", "rhel": "RHEL"}[self.distribution]
        return f"{word} {self.release} ({self.machine})"


_DISTRIBUTIONS = {
    "debian": "debian",
    "ubuntu": "ubuntu",
    **dict.fromkeys(("rhel", "redhat", "rocky", "rockylinux", "alma", "almalinux"), "rhel"),
}
_RELEASES = {"debian": ("12", "13"), "ubuntu": ("22.04", "24.04"), "rhel": ("9",)}
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
PLATFORM_WORDS = "Debian 12 or 13, Ubuntu 22.04 or 24.04, RHEL, Rocky or Alma 9, on x86_64 or aarch64"


def platform(distribution: str, version: str, machine: str) -> Platform | None:
    """The platform of a host, or None when it is not in the tables.

    Takes Ansible's facts (distribution, distribution_version, architecture) as well as ID, VERSION_ID of os-release and uname -m.
    Point releases fall away, "12.5" is 12 (case C31); Proxmox VE says debian.
    """
    name = _DISTRIBUTIONS.get(distribution.lower())
    kind = _MACHINES.get(machine.lower())
    match = re.match(r"\d+\.\d+" if name == "ubuntu" else r"\d+", version)
    if name is None or kind is None or match is None or match[0] not in _RELEASES[name]:
        return None
    return Platform(name, match[0], kind)


# NVIDIA's repositories


class Key(t.NamedTuple):
    """A repository's key: file beside its indexes, and fingerprint."""

    file: str
    fingerprint: str


class Repository(t.NamedTuple):
    """One of NVIDIA's repositories. kind: deb (flat: suite "/", no component) or rpm. branch_first: it has no older branch; None when
    that is not known."""

    directory: str
    architecture: str
    kind: str
    key: Key
    branch_first: int | None


_DEB_KEY = Key("3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC")  # SIGNATURES, KEYS
_NEW_DEB_KEY = Key("8793F200.pub", "02182E60104FCDC26EAE1B8597A5D4CB8793F200")  # KEYS
_RPM_KEY = Key("D42D0685.pub", "610C7B14E068A878070DA4E99CD0A493D42D0685")  # SIGNATURES

# (distribution, release) -> directory, kind, key, first branch, machines: GUIDE, KEYS, MISSING, INDEX, SBSA. aarch64 is called sbsa.
_REPOSITORIES: dict[tuple[str, str], tuple[str, str, Key, int | None, tuple[str, ...]]] = {
    ("debian", "12"): ("debian12", "deb", _DEB_KEY, 545, ("x86_64",)),
    ("debian", "13"): ("debian13", "deb", _NEW_DEB_KEY, 590, ("x86_64", "aarch64")),
    ("ubuntu", "22.04"): ("ubuntu2204", "deb", _DEB_KEY, None, ("x86_64", "aarch64")),
    ("ubuntu", "24.04"): ("ubuntu2404", "deb", _DEB_KEY, None, ("x86_64", "aarch64")),
    ("rhel", "9"): ("rhel9", "rpm", _RPM_KEY, None, ("x86_64", "aarch64")),
}
_NVIDIA_ARCHITECTURE = {"x86_64": "x86_64", "aarch64": "sbsa"}


def nvidia_repository(where: Platform) -> Repository | None:
    """NVIDIA's repository for a platform, None when it publishes none (Debian 12 on aarch64)."""
    directory, kind, key, first, machines = _REPOSITORIES[where.distribution, where.release]
    if where.machine not in machines:
        return None
    return Repository(directory, _NVIDIA_ARCHITECTURE[where.machine], kind, key, first)


def repository_url(repository: Repository, base_url: str | None = None) -> str:
    """URL of a repository. base_url: a mirror of NVIDIA_BASE_URL, with the same directories below it."""
    return f"{(base_url or NVIDIA_BASE_URL).rstrip('/')}/{repository.directory}/{repository.architecture}"


# Components beside main that a source's packages and what they depend on lie in. Debian: ARCHIVE (nvidia-kernel-dkms in non-free, the
# open one and persistenced in contrib, the firmware in non-free-firmware). NVIDIA's on Debian: GUIDE. Ubuntu: UBUNTU.
_COMPONENTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("debian", "distribution"): ("contrib", "non-free", "non-free-firmware"),
    ("debian", "nvidia"): ("contrib",),
    ("ubuntu", "distribution"): ("restricted",),
}


def components(where: Platform, source: str) -> tuple[str, ...]:
    """Components of the distribution that a source needs, main left out."""
    return _COMPONENTS.get((where.distribution, source), ())


# Packages


class Names(t.NamedTuple):
    """Names of packages that make up a driver without a display.

    module: builds the kernel module with DKMS. signed: has modules that the distribution built and signed, empty where there are none;
    its first name is for the running kernel, the second follows the kernel. userland: libcuda, NVML, nvidia-smi.
    userland_alone: it can be installed without a module (for containers). persistence: the persistence daemon.
    fabric_manager: empty where the source has none. stream: of dnf's module nvidia-driver, empty for apt.
    """

    module: tuple[str, ...]
    signed: tuple[str, ...]
    userland: tuple[str, ...]
    userland_alone: bool
    persistence: tuple[str, ...]
    fabric_manager: tuple[str, ...]
    stream: str


# Debian packages its newest branch without a word in the names, others with one (ARCHIVE): release -> branch -> word. Packages with
# "tesla" alone, 525 by their version, depend on those of 535: they are no branch.
_DEBIAN_LINES: dict[str, dict[int, str]] = {
    "12": {470: "tesla-470", 535: ""},
    "13": {535: "tesla-535", 550: ""},
}
# UBUNTU. Later releases make some of them transitional packages of 580; offers decide, not this list, once apt was asked.
_UBUNTU_BRANCHES = (535, 550, 570, 580)


def known_branches(where: Platform, source: str) -> tuple[int, ...]:
    """Branches that a source is known to have, the newest first. What apt says once it can be asked counts more."""
    if source == "distribution":
        lines = {"debian": tuple(_DEBIAN_LINES.get(where.release, ())), "ubuntu": _UBUNTU_BRANCHES}.get(where.distribution, ())
        return tuple(sorted(lines, reverse=True))
    repository = nvidia_repository(where)
    if source != "nvidia" or repository is None:
        return ()
    return tuple(branch for branch in sorted(BRANCH_CUDA, reverse=True) if branch >= (repository.branch_first or 535))


def names(where: Platform, source: str, flavour: str, branch: int, kernel_release: str = "") -> Names | None:
    """The packages of a driver branch, or None when the source has no such driver at all (by its names; not whether apt can see them).

    flavour: open or proprietary; for the userland alone either. kernel_release: of the running kernel, for signed modules.
    """
    if source == "distribution" and where.distribution == "debian":
        return _debian_names(where, flavour, branch)
    if source == "distribution" and where.distribution == "ubuntu":
        return _ubuntu_names(flavour, branch, kernel_release)
    if source != "nvidia" or nvidia_repository(where) is None:
        return None
    fabric_manager = ("nvidia-fabricmanager",) if branch >= 580 else (f"nvidia-fabricmanager-{branch}",)  # INDEX
    opened = flavour == "open"
    if where.distribution == "debian":  # GUIDE; INDEX
        userland = ("nvidia-driver-cuda", "libcuda1") if branch >= 560 else ("libcuda1", "libnvidia-ml1", "nvidia-smi")
        module = "nvidia-kernel-open-dkms" if opened else "nvidia-kernel-dkms"
        return Names((module,), (), userland, True, ("nvidia-persistenced",), fabric_manager, "")
    if where.distribution == "ubuntu":  # GUIDE; DOWNGRADE
        suffix = "" if branch >= 590 else f"-{branch}"
        utilities = () if branch >= 590 else (f"nvidia-utils{suffix}",)
        daemon = "nvidia-persistenced" if branch >= 590 else f"nvidia-compute-utils{suffix}"
        module = f"nvidia-dkms{suffix}{'-open' if opened else ''}"
        return Names((module,), (), (f"libnvidia-compute{suffix}", *utilities), True, (daemon,), fabric_manager, "")
    module = "kmod-nvidia-open-dkms" if opened else "kmod-nvidia-latest-dkms"
    # The libraries require a module there, so that they cannot be installed alone.
    stream = f"{branch}-{'open' if opened else 'dkms'}"
    return Names((module,), (), ("nvidia-driver-cuda",), False, ("nvidia-persistenced",), ("nvidia-fabric-manager",), stream)


def _debian_names(where: Platform, flavour: str, branch: int) -> Names | None:
    word = _DEBIAN_LINES.get(where.release, {}).get(branch)
    if word is None or (word and flavour == "open"):
        return None
    infix = f"-{word}" if word else ""
    libraries = ("cuda1", "ml1", "ptxjitcompiler1", "nvvm4")
    userland = [f"libnvidia{infix}-{library}" if word or library != "cuda1" else "libcuda1" for library in libraries]
    return Names(
        module=("nvidia-open-kernel-dkms",) if flavour == "open" else (f"nvidia{infix}-kernel-dkms",),
        signed=(),
        userland=(*userland, f"nvidia{infix}-smi"),
        userland_alone=True,
        # The daemon would pull in the cfg library of whichever branch comes first.
        persistence=("nvidia-persistenced", f"libnvidia{infix}-cfg1"),
        fabric_manager=(),
        stream="",
    )


def _ubuntu_names(flavour: str, branch: int, kernel_release: str) -> Names:
    opened = "-open" if flavour == "open" else ""
    kernel = re.search(r"-([a-z][a-z0-9-]*)$", kernel_release)
    prefix = f"linux-modules-nvidia-{branch}-server{opened}"
    return Names(
        module=(f"nvidia-dkms-{branch}-server{opened}",),
        signed=(f"{prefix}-{kernel_release}", f"{prefix}-{kernel[1]}") if kernel else (),
        userland=(f"libnvidia-compute-{branch}-server", f"nvidia-utils-{branch}-server"),
        userland_alone=True,
        persistence=(f"nvidia-compute-utils-{branch}-server",),
        fabric_manager=(f"nvidia-fabricmanager-{branch}",),
        stream="",
    )


class Headers(t.NamedTuple):
    """Packages with a kernel's headers. Each tuple lists alternatives, the likelier first; following may be empty.

    running: for this kernel. following: a package that brings headers with each new kernel.
    """

    running: tuple[str, ...]
    following: tuple[str, ...]


def headers(where: Platform, kernel_release: str, installed: t.Iterable[str] = ()) -> Headers:
    """Packages with the headers of a kernel (uname -r). installed: names of installed packages; a package that brings new kernels
    (linux-image-generic-hwe-24.04) tells best which one brings their headers."""
    if where.distribution == "rhel":
        # kernel-devel alone is kept beside older ones and never changes with the kernel; the matched one does (GUIDE).
        return Headers((f"kernel-devel-{kernel_release}",), ("kernel-devel-matched",))
    if kernel_release.endswith("-pve"):
        # Proxmox VE 8.1 changed the name (pve-headers before); its default kernel's package is proxmox-default-headers. Case C14.
        return Headers((f"proxmox-headers-{kernel_release}", f"pve-headers-{kernel_release}"), ("proxmox-default-headers", "pve-headers"))
    bringing = [name for name in installed if re.fullmatch(r"linux-image-(?!\d|extra-|unsigned-)[\w.+-]+", name) and "-dbg" not in name]
    # Of several the longest name: linux-image-generic-hwe-24.04 is newer than linux-image-generic.
    following = tuple(name.replace("linux-image-", "linux-headers-") for name in sorted(bringing, key=len, reverse=True))
    kind = re.search(r"-((?:cloud-|rt-)?(?:amd64|arm64)|[a-z][a-z0-9-]*)$", kernel_release)
    default = (f"linux-headers-{kind[1]}",) if kind else ()
    return Headers((f"linux-headers-{kernel_release}",), following or default)


# The .run file


def runfile_version(name: str) -> str | None:
    """The version in the name of a .run file: .../NVIDIA-Linux-x86_64-580.105.08.run -> 580.105.08 (also with -no-compat32)."""
    match = re.search(r"NVIDIA-Linux-(?:x86_64|aarch64)-(\d{3}\.\d{1,3}(?:\.\d{1,2})?)(?:-[\w-]+)?\.run(?:$|[?#])", name, re.ASCII)
    return match[1] if match else None


def runfile_machine(name: str) -> str | None:
    """The machine in the name of a .run file: x86_64 or aarch64."""
    match = re.search(r"NVIDIA-Linux-(x86_64|aarch64)-", name)
    return match[1] if match else None


def runfile_arguments(mode: str, flavour: str | None, version: str) -> list[str]:
    """Arguments for NVIDIA's installer (option_table.h of NVIDIA/nvidia-installer; --no-kernel-modules and --kernel-module-type are
    newer than that copy: public installations with 580 and 595 use them)."""
    branch = branch_of(version) or 0
    arguments = ["--silent", "--no-x-check", "--no-opengl-files"]
    if mode == "userland":
        return [*arguments, "--no-kernel-modules" if branch >= 580 else "--no-kernel-module"]
    if flavour is not None and branch >= OPEN_BY_DEFAULT_FROM:
        arguments.append(f"--kernel-module-type={flavour}")
    elif flavour == "open":
        arguments.append("--kernel-module-build-directory=kernel-open")
    return [*arguments, "--dkms"]
