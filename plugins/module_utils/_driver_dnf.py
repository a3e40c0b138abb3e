# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What rpm and dnf say about NVIDIA's packages, and the files that dnf reads: text in, data out, and back.

Read as LC_ALL=C prints them (dnf 4.14 of RHEL 9 to 4.23). None of the parsers raises; what is not understood is left out.

dnf has branches as streams of the module nvidia-driver; which one is chosen stands in a file, so that it can be simulated, seen in check
mode and taken away like any other file. An exact version is held by our own section of the repository, which lets nothing else through
(includepkgs): the plugin versionlock would be one more package, and would have to be asked instead of read.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_sources
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_packages import AptSource, Package, Simulation, upstream

# For rpm -qa --qf; read by packages().
RPM_FORMAT = r"%{NAME}\t%{ARCH}\t%|EPOCH?{%{EPOCH}}:{0}|:%{VERSION}-%{RELEASE}\t%{SOURCERPM}\n"
# For dnf repoquery --qf; read by available(). Newer ones end the line only where the format does.
QUERY_FORMAT = r"%{name}\t%{epoch}:%{version}-%{release}\t%{repoid}\n"
MODULE = "nvidia-driver"
MODULE_PATH = f"/etc/dnf/modules.d/{MODULE}.module"


def packages(text: str) -> list[Package]:
    """Every package of `rpm -qa --qf RPM_FORMAT`."""
    found = []
    for line in text.splitlines():
        match = re.fullmatch(r"([\w.+-]+)\t(\S+)\t(\d+:\S+)\t(\S*)", line, re.ASCII)
        if match and match[1] != "gpg-pubkey":
            source = re.sub(r"-[^-]+-[^-]+\.src\.rpm$", "", match[4])
            found.append(Package(match[1], match[2], match[3], "i", "i", False, "" if source == "(none)" else source))
    return found


class Repository(t.NamedTuple):
    """One section of a .repo file that is switched on."""

    path: str
    name: str
    urls: tuple[str, ...]
    key: str
    checked: bool  # packages' signatures


def repositories(texts: t.Mapping[str, str]) -> list[Repository]:
    found = []
    for path, text in texts.items():
        for section in re.split(r"^(?=\[)", text, flags=re.MULTILINE):
            name = re.match(r"\[([^\]]+)\]", section)
            fields = dict(re.findall(r"^(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", section, re.MULTILINE))
            if name and fields.get("enabled", "1") not in ("0", "false", "no", "False"):
                checked = fields.get("gpgcheck", "0") in ("1", "true", "yes", "True")
                found.append(Repository(path, name[1], tuple(fields.get("baseurl", "").split()), fields.get("gpgkey", ""), checked))
    return found


def as_sources(found: t.Iterable[Repository]) -> list[AptSource]:
    """The same in apt's words, as the decision asks: who has a URL already, and whether its signatures are looked at."""
    return [AptSource(one.path, ("rpm",), one.urls, (), (), one.key, not one.checked) for one in found]


def available(text: str, ours: t.Collection[str]) -> dict[str, dict[str, list[str]]]:
    """source -> package -> full versions, the driver's newest first, of `dnf repoquery --qf QUERY_FORMAT`. ours: NVIDIA's repositories."""
    found: dict[str, dict[str, list[str]]] = {"nvidia": {}, "distribution": {}}
    for name, full, repository in re.findall(r"^(\S+)\t(\d+:\S+)\t(\S+)$", text, re.MULTILINE):
        found["nvidia" if repository in ours else "distribution"].setdefault(name, []).append(full)

    def age(full: str) -> tuple[tuple[int, ...], str]:
        return _driver_sources.parse_version(upstream(full) or "") or (), full

    return {source: {name: sorted(set(fulls), key=age, reverse=True) for name, fulls in names.items()} for source, names in found.items()}


def specification(name: str) -> str:
    """A package of a plan as dnf takes it: name=3:580.95.05-1.el9 -> name-3:580.95.05-1.el9."""
    return name.replace("=", "-", 1)


def repository(name: str, title: str, url: str, key_path: str, exact: str | None, heading: str) -> str:
    """A .repo file. NVIDIA signs its index too (repodata/repomd.xml.asc: SIGNATURES.md of NVIDIA/cuda-repo-management)."""
    held = f"includepkgs=*-{exact}-*\n" if exact else ""
    text = f"# {heading}\n[{name}]\nname={title}\nbaseurl={url}\nenabled=1\ngpgcheck=1\nrepo_gpgcheck=1\ngpgkey=file://{key_path}\n"
    return f"{text}skip_if_unavailable=0\n{held}"


def module(stream: str) -> str:
    """The file that says which stream is enabled, as `dnf module enable` writes it."""
    return f"[{MODULE}]\nname={MODULE}\nstream={stream}\nprofiles=\nstate=enabled\n\n"


_HEADINGS = {
    "Installing": "new",
    "Upgrading": "upgraded",
    "Downgrading": "downgraded",
    "Removing": "removed",
}
_KERNELS = re.compile(r"kernel(?:-core|-modules(?:-core)?)?")


def simulation(text: str, there: t.Iterable[Package]) -> Simulation:
    """The outcome of `dnf --assumeno install`, stdout and stderr together. there: what is installed now."""
    versions = {package.name: package.version for package in there}
    kinds: dict[str, dict[str, str]] = {kind: {} for kind in _HEADINGS.values()}
    table = text.partition("Dependencies resolved.")[2].partition("Transaction Summary")[0]
    for block in re.split(r"^(?=[A-Z][a-z ]+:$)", table, flags=re.MULTILINE):
        kind = next((kind for word, kind in _HEADINGS.items() if block.startswith(word)), None)
        # A name that is too long for its column goes on in the next line.
        for name, full in re.findall(r"^ (\S+)\s+\S+\s+(\S+)\s+\S+\s+[\d.]+ ?[kMG]?[ \t]*$", block, re.MULTILINE) if kind else ():
            kinds[kind or ""][name] = full if ":" in full else f"0:{full}"
    new = kinds["new"]
    return Simulation(
        new=new,
        upgraded={name: (versions.get(name, ""), full) for name, full in kinds["upgraded"].items()},
        downgraded={name: (versions.get(name, ""), full) for name, full in kinds["downgraded"].items()},
        removed=kinds["removed"],
        held_changed=(),
        kept_back=(),
        kernels=tuple(sorted(name for name in new if _KERNELS.fullmatch(name))),
        error=error(text),
    )


def error(text: str) -> str:
    """What dnf says when it cannot; empty when it can."""
    match = re.search(r"^Error: ?(.*(?:\n[ ]+.*|\n - .*)*)", text, re.MULTILINE)
    filtered = re.findall(r"^All matches were filtered out by .*$", text, re.MULTILINE)
    return " ".join(" ".join([*filtered, match[1]]).split()) if match else ""
