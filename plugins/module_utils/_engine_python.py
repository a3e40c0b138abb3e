# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Which Python an engine gets on a host, which system packages that takes, and whether there is room for it.

SGLang 0.5.23 has wheels for Python 3.11 to 3.13 on glibc 2.34 and newer. The system's own Python is the best choice (it gets security
updates), a package of the distribution the next, a standalone build the last.
"""

from __future__ import annotations

import typing as t

SUPPORTED = ((3, 11), (3, 12), (3, 13))
LOWEST_GLIBC = (2, 34)
MACHINES = ("x86_64", "aarch64")

# Python packages that a distribution offers beside its own Python, when that one is not supported.
DISTRIBUTION_PYTHON = {("ubuntu", "22.04"): "3.11", ("rhel", "9"): "3.12"}

# System packages beside Python, by package manager and variant, and why each is needed.
PACKAGES: dict[str, dict[str, dict[str, str]]] = {
    "apt": {
        "cpu": {
            "ca-certificates": "uv and pip check the index's certificate with them",
            "curl": "the report's line asks the endpoint with it",
        },
        "cuda": {
            "ca-certificates": "uv and pip check the index's certificate with them",
            "curl": "the report's line asks the endpoint with it",
            "g++": "nvcc's host compiler: kernels are compiled (C++20) at run time; brings binutils and the C library's headers",
            "libnuma1": "binds the processes of a GPU to the memory next to it",
            "numactl": "sglang starts its schedulers with it on hosts with several NUMA nodes",
        },
    },
    # RHEL comes with curl-minimal, which a request for curl would have to replace.
    "dnf": {
        "cpu": {
            "ca-certificates": "uv and pip check the index's certificate with them",
        },
        "cuda": {
            "ca-certificates": "uv and pip check the index's certificate with them",
            "gcc-c++": "nvcc's host compiler: kernels are compiled (C++20) at run time; brings binutils and the C library's headers",
            "numactl-libs": "binds the processes of a GPU to the memory next to it",
            "numactl": "sglang starts its schedulers with it on hosts with several NUMA nodes",
        },
    },
}


class Python(t.NamedTuple):
    """A Python that is on the host."""

    path: str
    version: str


class Choice(t.NamedTuple):
    """The engine's Python: where it comes from, where it is (or will be), what the package manager has to bring."""

    source: str  # system, package, archive, none
    path: str
    version: str
    packages: tuple[str, ...]
    problems: tuple[str, ...]


def release_of(text: str) -> tuple[int, ...]:
    """3.13.5 -> (3, 13)."""
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def os_release(text: str) -> dict[str, str]:
    """/etc/os-release as a shell reads it: values in double quotes, in single ones, or in none (os-release(5))."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip().strip("\"'") for key, _equals, value in pairs}


def platform_key(os_release: t.Mapping[str, str]) -> tuple[str, str]:
    """The platform as this collection's tables name it: ("debian", "13"), ("ubuntu", "22.04"), ("rhel", "9")."""
    identity, version = os_release.get("ID", ""), os_release.get("VERSION_ID", "")
    like = os_release.get("ID_LIKE", "").split()
    if identity in ("debian", "ubuntu"):
        return identity, version
    if identity == "rhel" or "rhel" in like:
        return "rhel", version.split(".")[0]
    return identity, version


def package_manager(platform: tuple[str, str]) -> str:
    """apt, dnf, or empty where this collection does not know the package names."""
    return {"debian": "apt", "ubuntu": "apt", "rhel": "dnf"}.get(platform[0], "")


def python_packages(manager: str, version: str, headers: bool, own: bool) -> list[str]:
    """Packages that complete a distribution's Python; ``own`` is the one that the distribution itself runs on."""
    if manager == "apt":
        # venv brings ensurepip, with which pip (and through it uv) gets in; the headers are for what Triton compiles at run time.
        return [f"python{version}-venv"] + ([f"python{version}-dev"] if headers else [])
    prefix = "python3" if own else f"python{version}"
    return ([] if own else [prefix]) + ([f"{prefix}-devel"] if headers else [])


def host_problems(platform: tuple[str, str], machine: str, glibc: str) -> list[str]:
    """Why SGLang's wheels cannot run on a host at all."""
    problems = []
    if not package_manager(platform):
        problems.append(
            f"expected Debian, Ubuntu, or RHEL and its kin, found {' '.join(platform).strip() or 'an unknown system'}: the names of its "
            "packages are not known here. Use another distribution."
        )
    if machine not in MACHINES:
        problems.append(f"expected a host of type {' or '.join(MACHINES)}, found {machine}: SGLang has no wheels for it. Use another host.")
    if release_of(glibc) < LOWEST_GLIBC:
        problems.append(
            f"expected glibc {_text(LOWEST_GLIBC)} or newer, found {glibc or 'none'}: SGLang's wheels do not load on this system. Use a "
            "newer distribution (Debian 12, Ubuntu 22.04, RHEL 9 or later)."
        )
    return problems


def choose(
    *,
    wanted: str,
    platform: tuple[str, str],
    machine: str,
    glibc: str,
    pythons: t.Sequence[Python],
    variants: t.Collection[str],
    archive_path: str = "",
) -> Choice:
    """Choose the engine's Python. ``wanted`` is auto, a release (3.12) or the path of an executable.

    ``archive_path`` is where the Python of a standalone archive is (or will be), empty when no archive is configured.
    """
    problems = host_problems(platform, machine, glibc)
    manager = package_manager(platform)
    packages = {name for variant in variants for name in PACKAGES.get(manager, {}).get(variant, {})}
    source, path, version, problem = _pick(wanted, platform, pythons, archive_path)
    if problem:
        problems.append(problem)
    if path.startswith("/usr/bin/python"):
        release = _text(release_of(version))
        own = DISTRIBUTION_PYTHON.get(platform) != release
        packages.update(python_packages(manager, release, "cuda" in variants, own))
        if source == "package":
            packages.add(f"python{release}")
    return Choice(source, path, version, tuple(sorted(packages)), tuple(problems))


def _pick(wanted: str, platform: tuple[str, str], pythons: t.Sequence[Python], archive_path: str) -> tuple[str, str, str, str]:
    """Source, path and version of the Python to take, or what to tell."""
    supported = " or ".join(_text(release) for release in SUPPORTED)
    found = ", ".join(f"{python.path} ({python.version})" for python in pythons) or "no Python"
    usable = [python for python in pythons if release_of(python.version) in SUPPORTED]
    if wanted.startswith("/"):
        usable = [python for python in usable if python.path == wanted]
    elif wanted != "auto":
        usable = [python for python in usable if release_of(python.version) == release_of(wanted)]
    if usable:
        # The distribution's own comes before others that lie on the host, the newer before the older.
        best = max(usable, key=lambda python: (python.path.startswith("/usr/bin/"), release_of(python.version)))
        return "system", best.path, best.version, ""
    if wanted.startswith("/"):
        text = f"sglang_venv_python: expected {wanted} to be Python {supported}, found {found}. Name another executable, or auto."
        return "none", "", "", text
    if wanted != "auto" and release_of(wanted) not in SUPPORTED:
        text = f"sglang_venv_python: expected auto, {supported}, or the path of a Python on the host, found {wanted}. Use one of these."
        return "none", "", "", text
    offered = DISTRIBUTION_PYTHON.get(platform, "")
    if offered and wanted in ("auto", offered):
        return "package", f"/usr/bin/python{offered}", offered, ""
    if archive_path and archive_path not in [python.path for python in pythons]:
        return "archive", archive_path, "", ""
    text = (
        f"expected Python {supported if wanted == 'auto' else wanted} on the host, found {found}, and no package for it is known for "
        f"{' '.join(platform).strip() or 'this system'}. Install one and name its path in sglang_venv_python, or name a standalone build "
        "in sglang_venv_python_archive."
    )
    return "none", "", "", text


def _text(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))


def room_problems(needs: t.Iterable[tuple[str, float, float]]) -> list[str]:
    """Places without enough room. needs: (what it is for, GiB needed, GiB free)."""
    return [
        f"expected {needed:g} GB free for {what}, found {free:.1f} GB. Make room, or set sglang_root to a larger disk."
        for what, needed, free in needs
        if free < needed
    ]
