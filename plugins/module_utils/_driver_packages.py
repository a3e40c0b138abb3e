# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What dpkg and apt say about NVIDIA's packages, and the files that hold them: text in, data out, and back.

All texts are read as LC_ALL=C prints them. None of the parsers raises, whatever the text is: what is not understood is left out.
Words: an upstream version is the driver's (580.95.05), a full version is the package's (1:580.95.05-0ubuntu1). The set is every package
that must have the driver's version, all at once (PEERS: a set of two versions is what breaks hosts).
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_sources

# Versions and the set


def upstream(version: str) -> str | None:
    """The driver's version in a package's: 535.309.01-0+deb12u1, 3:580.95.05-1.el9 -> 535.309.01, 580.95.05; None for another kind."""
    bare = re.sub(r"^\d+:", "", version)
    match = re.match(r"\d{3}\.\d{1,3}(?:\.\d{1,2})?(?=[-+~]|$)", bare, re.ASCII)
    return match[0] if match else None


# Names of the set, as apt_preferences and unattended-upgrades take them (case C01). nvidia-* also covers the fabric manager, the daemon,
# nvidia-firmware-* and all of NVIDIA's metapackages.
SET_PATTERNS = (
    "nvidia-*",
    "libnvidia-*",
    "libcuda1",
    "libcudadebugger1",
    "libnvcuvid1",
    "libnvoptix1",
    "firmware-nvidia-*",
    "cuda-drivers*",
    "xserver-xorg-video-nvidia*",
    "libegl-nvidia*",
    "libgl1-nvidia-*",
    "libgles-nvidia*",
    "libglx-nvidia*",
    "linux-modules-nvidia-*",
)
# Same names, own versions: containers' tools, the toolkit, development files, names of pins, Debian's helpers.
_APART = (
    r"nvidia-(?:container|docker|cuda|cudnn|cg|fs|gds|driver-pinning|prime|vaapi|profiler|visual-profiler|openjdk|opencl-dev|nsight)[\w.+-]*"
    r"|libnvidia-(?:container|egl-(?:wayland|gbm|xcb|xlib|x11))[\w.+-]*|libnvidia-ml-dev|linux-(?:modules|objects|signatures)-nvidia-[\w.+-]*"
)
# Debian builds these from sources of their own, whose versions are near the driver's and not equal (nvidia-modprobe 570 beside 550).
# Where the source is not known, they are left out: none of them talks to the module in a way that asks for its version.
_NEAR = ("nvidia-modprobe", "nvidia-persistenced", "nvidia-settings", "nvidia-xconfig")
_APART_SOURCES = (*_NEAR, "nvidia-support", "glx-alternatives", "nvidia-cuda-toolkit")


class Package(t.NamedTuple):
    """One package that dpkg knows. wanted: i, h (held), r, p. status: dpkg's letter; n is not installed. error: reinstallation required."""

    name: str  # with :architecture where that is not the system's own, as apt prints and takes it
    architecture: str  # as dpkg prints it; empty for most
    version: str
    wanted: str
    status: str
    error: bool
    source: str

    @property
    def installed(self) -> bool:
        """Its files are there, whether it is configured or not."""
        return self.status not in ("n", "c")


# For dpkg-query -W -f=... ; read by installed().
DPKG_FORMAT = r"${binary:Package}\t${Version}\t${db:Status-Abbrev}\t${source:Package}\n"


# The kernel's word for a machine -> Debian's.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def packages(text: str, machine: str = "") -> list[Package]:
    """Every package of `dpkg-query -W -f='DPKG_FORMAT'`; also those of which only the configuration is left.

    machine: uname -m. libcuda1:i386 is not libcuda1 on x86_64; where the machine is not known, architectures are not told apart.
    """
    own = _ARCHITECTURES.get(machine)
    found = []
    for line in text.splitlines():
        match = re.fullmatch(r"([a-z0-9][a-z0-9+.-]*)(?::([a-z0-9-]+))?\t(\S*)\t([uihrp])([ncHUFWti])([R ]?)\t(\S*)", line, re.ASCII)
        if match:
            name, architecture, version, wanted, status, error, source = match.groups()
            if own and architecture not in (None, own):
                name = f"{name}:{architecture}"
            found.append(Package(name, architecture or "", version, wanted, status, error == "R", source))
    return found


def bare(name: str) -> str:
    """A package's name without its architecture."""
    return name.partition(":")[0]


def in_set(name: str, source: str = "") -> bool:
    """Whether a package must have the driver's version, of whatever architecture. source: its source package, where it is known."""
    name = bare(name)
    if re.fullmatch(_APART, name) or source in _APART_SOURCES or (name in _NEAR and not source):
        return False
    if name.startswith("kmod-nvidia-"):  # of rpm
        return True
    return any(re.fullmatch(re.escape(pattern).replace(r"\*", r"[\w.+-]*"), name) for pattern in SET_PATTERNS)


def kernel_modules(name: str) -> bool:
    """Whether a package has modules that the distribution built: of the driver, with the kernel's version."""
    return re.match(r"linux-(?:modules|objects|signatures)-nvidia-", name) is not None


def of_driver(name: str) -> bool:
    """Whether a package is part of a driver, of whatever version: what a change of it may remove."""
    return in_set(name) or kernel_modules(name) or bare(name) in _NEAR


def set_versions(found: t.Iterable[Package]) -> dict[str, list[str]]:
    """Upstream version -> installed packages of the set that have it, the newest first. One key is what should be."""
    versions: dict[str, list[str]] = {}
    for package in found:
        version = upstream(package.version)
        if package.installed and version and in_set(package.name, package.source):
            versions.setdefault(version, []).append(package.name)
    return {version: sorted(set(versions[version])) for version in _driver_sources.newest(versions)}


class Broken(t.NamedTuple):
    """A package that stops apt: what its state is in words, and the command that mends it."""

    name: str
    state: str
    cure: str


_STATES = {
    "U": ("unpacked and not configured", "dpkg --configure -a"),
    "F": ("half-configured: its script failed", "dpkg --configure -a"),
    "W": ("waiting for another package's trigger", "dpkg --configure -a"),
    "t": ("waiting for its own trigger", "dpkg --configure -a"),
    "H": ("half-installed", "apt-get install --reinstall {name}"),
}


def broken(found: t.Iterable[Package]) -> list[Broken]:
    """Packages of any kind that keep apt from working (case C13): half-configured, unpacked, half-installed, to be reinstalled."""
    result = []
    for package in found:
        state, cure = _STATES.get(package.status, ("", ""))
        if package.error:
            state, cure = "broken: it must be reinstalled", "apt-get install --reinstall {name}"
        if state:
            result.append(Broken(package.name, state, cure.format(name=package.name)))
    return result


def held(found: t.Iterable[Package]) -> list[str]:
    """Installed packages of the set that are on hold."""
    return sorted(
        {package.name for package in found if package.wanted == "h" and package.installed and in_set(package.name, package.source)}
    )


# What apt offers


class Available(t.NamedTuple):
    """One version that apt can see: full version, priority (None from madison), and where it lies, as printed."""

    version: str
    priority: int | None
    origins: tuple[str, ...]


class Policy(t.NamedTuple):
    installed: str | None
    candidate: str | None
    versions: tuple[Available, ...]  # as printed: the newest first


def policies(text: str) -> dict[str, Policy]:
    """Packages of `apt-cache policy NAME...`. A name that apt has never heard of is not printed and so not here."""
    found: dict[str, Policy] = {}
    for block in re.split(r"^(?=\S+:$)", text, flags=re.MULTILINE):
        head = re.match(r"(\S+):\n\s+Installed: (\S+)\n\s+Candidate: (\S+)\n", block)
        if not head or ":" in head[1]:  # name:i386 is another architecture's
            continue
        versions: list[Available] = []
        for line in block.splitlines():
            version = re.match(r"(?: \*\*\*|    ) (\S+) (-?\d+)(?: \(phased \d+%\))?$", line)
            origin = re.match(r" {8}\s*-?\d+ (\S.*)$", line)
            if version:
                versions.append(Available(version[1], int(version[2]), ()))
            elif origin and versions:
                versions[-1] = versions[-1]._replace(origins=(*versions[-1].origins, " ".join(origin[1].split())))
        installed, candidate = (None if word == "(none)" else word for word in head.groups()[1:])
        found[head[1]] = Policy(installed, candidate, tuple(versions))
    return found


def index(text: str) -> dict[str, list[str]]:
    """Full versions by package in a repository's file Packages, which lists them in no order; with it a repository can be read before it
    is added. Versions of the driver come newest first."""
    found: dict[str, list[str]] = {}
    for name, version in re.findall(r"^Package: (\S+)\n(?:[^\n]+\n)*?Version: (\S+)$", text, re.MULTILINE):
        found.setdefault(name, []).append(version)

    def age(version: str) -> tuple[tuple[int, ...], str]:
        return _driver_sources.parse_version(upstream(version) or "") or (), version

    return {name: sorted(set(versions), key=age, reverse=True) for name, versions in found.items()}


def source_of(origin: str, nvidia_urls: t.Sequence[str] = ()) -> str | None:
    """Which source an origin belongs to: distribution or nvidia; None for the dpkg status file (installed, offered by nobody).

    nvidia_urls: URLs of mirrors; NVIDIA's own are known by their path.
    """
    url = origin.split(" ", 1)[0]
    if url.startswith("/"):
        return None
    bare = url.rstrip("/")
    if re.search(r"/compute/(?:cuda|nvidia-driver)/repos?/|/var/(?:nvidia-driver|cuda)-", f"{bare}/") or bare in {
        one.rstrip("/") for one in nvidia_urls
    }:
        return "nvidia"
    return "distribution"


def offers(found: t.Mapping[str, Policy], nvidia_urls: t.Sequence[str] = ()) -> dict[str, dict[str, list[str]]]:
    """source -> package -> full versions, those that apt prefers first (higher priority, then newer).

    Versions below priority 0, which apt never installs, are left out.
    """
    result: dict[str, dict[str, list[str]]] = {}
    for name, policy in found.items():
        ranked = sorted(policy.versions, key=lambda one: -(one.priority or 0))  # stable: newer stay first
        for available in ranked:
            if available.priority is not None and available.priority < 0:
                continue
            for source in sorted({source for origin in available.origins for source in [source_of(origin, nvidia_urls)] if source}):
                result.setdefault(source, {}).setdefault(name, []).append(available.version)
    return result


# Sources


class AptSource(t.NamedTuple):
    """One entry of apt's sources. signed_by: as written, empty without; an embedded key is "(embedded)". trusted: its signature is
    not looked at."""

    path: str
    types: tuple[str, ...]
    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str
    trusted: bool


def apt_sources(texts: t.Mapping[str, str]) -> list[AptSource]:
    """Entries that are switched on, in files by path: *.sources in deb822 style, others in one-line style. Source packages left out."""
    found: list[AptSource] = []
    for path, text in texts.items():
        found += _deb822(path, text) if path.endswith(".sources") else _one_line(path, text)
    return [entry for entry in found if "deb" in entry.types]


def _deb822(path: str, text: str) -> list[AptSource]:
    found = []
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n[ \t]*\n", lines):
        fields = {key.lower(): value for key, value in re.findall(r"^([A-Za-z-]+):[ \t]*((?:.*)(?:\n[ \t]+\S.*)*)", stanza, re.MULTILINE)}

        def words(field: str, fields: dict[str, str] = fields) -> tuple[str, ...]:
            return tuple(fields.get(field, "").split())

        if not words("types") or not words("uris") or words("enabled") in (("no",), ("false",)):
            continue
        signed_by = fields.get("signed-by", "").strip()
        if "BEGIN PGP" in signed_by:
            signed_by = "(embedded)"
        trusted = words("trusted") in (("yes",), ("true",))
        found.append(AptSource(path, words("types"), words("uris"), words("suites"), words("components"), signed_by, trusted))
    return found


def _one_line(path: str, text: str) -> list[AptSource]:
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*(deb|deb-src)\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", line)
        if match:
            options = dict(option.partition("=")[::2] for option in (match[2] or "").split())
            entry = AptSource(
                path,
                (match[1],),
                (match[3],),
                (match[4],),
                tuple(match[5].split()),
                options.get("signed-by", ""),
                options.get("trusted") in ("yes", "true"),
            )
            found.append(entry)
    return found


def entries_for(sources: t.Iterable[AptSource], url: str) -> list[AptSource]:
    """Entries for this URL, whoever wrote them: NVIDIA's keyring package does too (case C07)."""
    return [entry for entry in sources if url.rstrip("/") in {uri.rstrip("/") for uri in entry.uris}]


def missing_components(sources: t.Iterable[AptSource], wanted: t.Sequence[str], distribution: str) -> list[AptSource]:
    """The distribution's entries that lack some of these components, with what they lack as components (case C31).

    They can be added as entries of their own: same URIs, suites and key, other components. An entry counts as the distribution's when it
    has main and a suite of a release, and is signed with the archive's keyring or, without any, lies in a directory of its name. One whose
    server is gone counts too: nothing here tells it from a network that is down. What is added for it cannot be read then, which the look
    says before anything is changed, and another source is taken or the run stops.
    """
    entries = [entry for entry in sources if "main" in entry.components and _of_distribution(entry, distribution)]
    have: dict[tuple[str, str], set[str]] = {}
    for entry in entries:
        for uri in entry.uris:
            for suite in entry.suites:
                have.setdefault((uri.rstrip("/"), suite), set())
    for entry in sources:
        for uri in entry.uris:
            for suite in entry.suites:
                if (uri.rstrip("/"), suite) in have:
                    have[uri.rstrip("/"), suite].update(entry.components)
    result = []
    for entry in entries:
        there = set.intersection(*(have[uri.rstrip("/"), suite] for uri in entry.uris for suite in entry.suites))
        lack = tuple(component for component in wanted if component not in there)
        if lack:
            result.append(entry._replace(types=("deb",), components=lack))
    return result


def _of_distribution(entry: AptSource, distribution: str) -> bool:
    suites = {
        "debian": r"(?:bookworm|trixie|stable|oldstable)(?:-(?:updates|security|backports))?(?:/updates)?",
        "ubuntu": r"(?:jammy|noble)(?:-(?:updates|security|backports))?",
    }.get(distribution, r"(?!)")
    if entry.signed_by:
        signed = re.search(rf"/{distribution}-archive-keyring", entry.signed_by) is not None
    else:
        signed = all(re.search(rf"/{distribution}(?:-security|-ports)?/?$", uri) for uri in entry.uris)
    return signed and all(re.fullmatch(suites, suite) for suite in entry.suites)


def deb822(entries: t.Iterable[AptSource], heading: str) -> str:
    """A .sources file with these entries."""
    stanzas = []
    for entry in entries:
        lines = [f"Types: {' '.join(entry.types)}", f"URIs: {' '.join(entry.uris)}", f"Suites: {' '.join(entry.suites)}"]
        lines += [f"Components: {' '.join(entry.components)}"] if entry.components else []
        lines += [f"Signed-By: {entry.signed_by}"] if entry.signed_by else []
        stanzas.append("\n".join(lines) + "\n")
    return f"# {heading}\n" + "\n".join(stanzas)


# A transaction before it happens


class Simulation(t.NamedTuple):
    """What `apt-get -s install` would do. Names with full versions: new, or (old, new). error: apt's own words when it cannot."""

    new: dict[str, str]
    upgraded: dict[str, tuple[str, str]]
    downgraded: dict[str, tuple[str, str]]
    removed: dict[str, str]
    held_changed: tuple[str, ...]
    kept_back: tuple[str, ...]
    kernels: tuple[str, ...]
    error: str


# What brings another kernel with it.
_KERNEL = re.compile(r"(?:linux-image|proxmox-kernel|pve-kernel|linux-image-unsigned)-[\w.+-]+|kernel(?:-core)?")


def simulation(text: str) -> Simulation:
    """The outcome of apt-get -s install (without -q), stdout and stderr together."""
    removed = dict(re.findall(r"^(?:Remv|Purg) (\S+) \[([^\]]+)\]", text, re.MULTILINE))
    changes = re.findall(r"^Inst (\S+) (?:\[([^\]]+)\] )?\((\S+) ", text, re.MULTILINE)
    down = set(_listed(text, "The following packages will be DOWNGRADED:"))
    upgraded = {name: (old, new) for name, old, new in changes if old and name not in down}
    return Simulation(
        new={name: new for name, old, new in changes if not old},
        upgraded=upgraded,
        downgraded={name: (old, new) for name, old, new in changes if old and name in down},
        removed={name: version for name, version in removed.items() if name not in {change[0] for change in changes}},
        held_changed=tuple(_listed(text, "The following held packages will be changed:")),
        kept_back=tuple(_listed(text, "The following packages have been kept back:")),
        kernels=tuple(sorted(name for name, old, _new in changes if _KERNEL.fullmatch(name))),
        error="\n".join(re.findall(r"^E: (.+)", text, re.MULTILINE)),
    )


def _listed(text: str, heading: str) -> list[str]:
    match = re.search(rf"^{re.escape(heading)}\n((?:[ ]+.*\n?)*)", text, re.MULTILINE)
    return re.sub(r"\([^)]*\)", "", match[1]).split() if match else []


def after(found: t.Sequence[Package], change: Simulation) -> list[Package]:
    """The packages as they would be after a transaction; set_versions() of it tells whether the set stays of one version."""
    new = dict(change.new)
    for pairs in (change.upgraded, change.downgraded):
        new.update({name: pair[1] for name, pair in pairs.items()})
    there = [
        package._replace(version=new.get(package.name, package.version), status="i" if package.name in new else package.status)
        for package in found
        if package.name not in change.removed
    ]
    known = {package.name for package in there}
    return there + [Package(name, "", version, "i", "i", False, "") for name, version in new.items() if name not in known]


# What goes wrong


class AptError(t.NamedTuple):
    """What apt's error means: a stable word, what was found, what to do."""

    code: str
    found: str
    action: str


# The first that fits is the cause; others follow from it. {0}, {1}: what the pattern's groups hold. apt 2.6 and 3.0, captured.
_ERRORS: tuple[tuple[str, str, str, str], ...] = (
    (
        "dpkg_lock",
        r"(?:Could not get lock|Unable to (?:acquire|lock)) \S*(?:.*It is held by process (\d+ \([^)]*\)))?",
        "another program holds the lock of dpkg or apt (process {0})",
        "Wait until it has ended (apt-daily and cloud-init run after a boot), or allow more time; never delete the lock.",
    ),
    (
        "dpkg_interrupted",
        r"dpkg was interrupted, you must manually run",
        "an earlier run of dpkg was interrupted",
        "Run dpkg --configure -a, and then apt-get -f install.",
    ),
    (
        "key_sha1",
        r"Signing key on (\w+) is not bound:[\s\S]{0,400}?SHA1 is not considered secure",
        "the repository's key {0} is bound by a SHA-1 signature, which this apt refuses since 2026-02-01",
        "Use the repository of this release of the distribution (debian13 has a new key); never mark a repository as trusted.",
    ),
    (
        "key_expired",
        r"EXPKEYSIG (\w+)|Signing key on (\w+) is bad:[\s\S]{0,200}?Expired on",
        "the repository is signed with a key that has expired ({0}{1})",
        "Fetch the repository's current key and compare its fingerprint.",
    ),
    (
        "key_wrong",
        r"NO_PUBKEY (\w+)|Missing key (\w+)",
        "the repository is signed with a key that is not in its keyring ({0}{1})",
        "Fetch the repository's own key and compare its fingerprint with the one that is published.",
    ),
    (
        "key_unreadable",
        r"Failed to parse keyring \"([^\"]+)\"|The key\(s\) in the keyring (\S+) are ignored",
        "the keyring {0}{1} cannot be read",
        "Fetch the key again; the file must be readable for everyone.",
    ),
    (
        "key_bad_signature",
        r"BADSIG (\w+)|The following signatures were invalid|Verifying signature:? *(?:Bad|Message has been manipulated)",
        "the repository's signature does not fit its content ({0})",
        "Look at the mirror or the proxy between: it serves files of different times, or changed ones.",
    ),
    (
        "sources_conflict",
        r"Conflicting values set for option Signed-By regarding source (\S+) \S*: (\S+) != (\S+)",
        "{0} is in two files of apt's sources with two keys ({1} and {2})",
        "Leave one of them: NVIDIA's package cuda-keyring writes one too.",
    ),
    (
        "repository_missing",
        r"The repository '(\S+?)\s+(?:(\S+) )?Release' does not have a Release file",
        "there is no repository at {0} (suite {1})",
        'Look at the directory (debian12, ubuntu2404, rhel9; aarch64 is sbsa) and the suite: NVIDIA\'s is "/" and has no components.',
    ),
    (
        "release_expired",
        r"Release file for (\S+) is expired",
        "{0} is too old: its validity has ended",
        "Bring the mirror up to date, or set this host's clock.",
    ),
    (
        "unreachable",
        r"Failed to fetch (\S+)|Could not (?:resolve|connect to) '?([^\s']+)",
        "{0}{1} cannot be fetched",
        "Look at the network, the proxy and the name server of this host.",
    ),
    (
        "downgrade_refused",
        r"Packages were downgraded and -y was used without --allow-downgrades",
        "this would install older versions than there are",
        "Allow it with gpu_driver_allow_downgrade: true.",
    ),
    (
        "held",
        r"Held packages were changed and -y was used without --allow-change-held-packages",
        "packages on hold would have to change",
        "Release them: apt-mark unhold, after a look at why they are held.",
    ),
    (
        "firmware_component",
        r"Depends: (firmware-nvidia\S*).*\bbut it is not installable",
        "{0} is in no package source",
        "Add the component non-free-firmware to the distribution's sources.",
    ),
    (
        "held_broken",
        r"you have held broken packages|Unable to satisfy dependencies|pkgProblemResolver::Resolve generated breaks",
        "apt finds no set of versions that fit together",
        "Look at where the candidates come from (apt-cache policy): all of the driver must come from one source, in one version.",
    ),
    (
        "version_missing",
        r"Version '([^']+)' for '([^']+)' was not found",
        "{1} {0} is in no package source",
        "Ask for a version that a source offers.",
    ),
    (
        "package_missing",
        r"Unable to locate package (\S+)|Package '?(\S+?)'? has no installation candidate",
        "{0}{1} is in no package source",
        "Add the components that the source needs (Debian: contrib, non-free, non-free-firmware), or ask for another branch.",
    ),
    (
        "disk_full",
        r"You don't have enough free space in (\S+)|No space left on device",
        "there is no room left ({0})",
        "Make room; the driver and its build need about 2 GB.",
    ),
    (
        "script_failed",
        r"error processing package (\S+) \(--configure\)",
        "the installation script of {0} failed, so that dpkg is left half-configured",
        "Look at what it printed before; mend the cause, then run dpkg --configure -a.",
    ),
    (
        "not_signed",
        r"The repository '(\S+)\s*.*' is not signed",
        "the repository {0} is not signed",
        "Never use a repository without a signature for a driver.",
    ),
)


def apt_error(text: str, found: t.Mapping[str, Policy] | None = None) -> AptError | None:
    """The cause of what apt or dpkg printed, or None when it is none that is known.

    found: apt-cache policy of the packages; names both origins where two sources offer the same package (case C10).
    """
    for code, pattern, what, action in _ERRORS:
        match = re.search(pattern, text)
        if match:
            words = [word or "" for word in match.groups()] + ["", "", ""]
            told = re.sub(r" \((?:process |suite )?\)", "", what.format(*words))
            if code == "held_broken":
                told += _unmet(text) + _origins(found or {})
            return AptError(code, told, action)
    return None


def apt_warning(text: str) -> AptError | None:
    """What apt says today and will refuse later: a key that its policy will reject within a year (case C08)."""
    match = re.search(r"(\S+?)/? ?InRelease: Policy will reject signature within a year", text)
    if not match:
        return None
    return AptError(
        "key_sha1_soon", f"{match[1]} is signed by a key that this apt will refuse within a year", "Move to a repository with a newer key."
    )


def _unmet(text: str) -> str:
    lines = re.search(r"have unmet dependencies:\n((?: .*\n)+)", text)
    told = "; ".join(" ".join(line.split()) for line in lines[1].splitlines()[:4]) if lines else ""
    return f": {told}" if told else ""


def _origins(found: t.Mapping[str, Policy]) -> str:
    """Candidates of packages that more than one source offers."""
    told = []
    for name, policy in found.items():
        places: dict[str, str] = {}
        for available in policy.versions:
            for origin in available.origins:
                if source_of(origin):
                    places.setdefault(origin.split(" ")[0], f"{available.version} of priority {available.priority} from {origin}")
        if len(places) > 1:
            told.append(f"{name} is {' and '.join(places.values())}")
    return f" ({'; '.join(told)})" if told else ""


def build_log_lines(text: str, limit: int = 6) -> list[str]:
    """The lines of a DKMS make.log that tell why a build failed: compilers' errors, and what make says; the first ones."""
    pattern = re.compile(r"\berror:|\bfatal error\b|\*\*\* |No such file or directory|ERROR: modpost|cc: not found|implicit declaration")
    lines = [" ".join(line.split())[:300] for line in text.splitlines() if pattern.search(line)]
    return list(dict.fromkeys(lines))[:limit]


# Files that hold the set

# Above the distribution's default release (990), so that the pinned version is the candidate whatever else there is; not above 1000,
# so that an installed version that is newer stays (apt_preferences(5)).
PIN_PRIORITY = 999
# Above 1000 apt goes back to an older version too, unasked in every later upgrade: only where a downgrade is allowed.
PIN_PRIORITY_DOWNGRADE = 1001
# For the same packages of the other sources: installable where nothing else has them, never instead of the pinned ones.
PIN_PRIORITY_OTHER = 100


def preferences(versions: t.Sequence[str], others: t.Sequence[str], heading: str, allow_downgrade: bool = False) -> str:
    """A file for /etc/apt/preferences.d that holds the set (pitfall 7: one pin for all of it, not for one package).

    versions: patterns of full versions, "580.*" for a branch, "580.95.05-*" or full ones for a version. others: what the packages of
    the sources that are not used have in common, as apt_preferences takes it ("release o=Debian", "origin mirror.example.org"):
    a version's priority comes from the first entry that fits it, so these go first.
    """
    names = " ".join(SET_PATTERNS)
    priority = PIN_PRIORITY_DOWNGRADE if allow_downgrade else PIN_PRIORITY
    entries = [(other, PIN_PRIORITY_OTHER) for other in others] + [(f"version {version}", priority) for version in versions]
    text = "\n".join(f"Package: {names}\nPin: {pin}\nPin-Priority: {number}\n" for pin, number in entries)
    return f"# {heading}\n\n{text}"


def unattended_blacklist(heading: str, kernels: bool = False) -> str:
    """A file for /etc/apt/apt.conf.d that keeps unattended-upgrades away from the set (case C01).

    Its entries are regular expressions of Python that match at the beginning of a name. Containers' tools are not the driver's.
    kernels: kernels too. Modules that the distribution built come with their kernel; one without the other boots without a GPU.
    """
    patterns = [pattern.rstrip("*") if pattern.endswith("*") else f"{pattern}$" for pattern in SET_PATTERNS]
    patterns = [f"{pattern}(?!container)" if pattern in ("nvidia-", "libnvidia-") else pattern for pattern in patterns]
    patterns += ["linux-(?:image|headers|modules)", "linux-(?:generic|aws|azure|gcp|virtual)"] if kernels else []
    lines = "\n".join(f'    "{pattern}";' for pattern in patterns)
    return f"// {heading}\nUnattended-Upgrade::Package-Blacklist {{\n{lines}\n}};\n"
