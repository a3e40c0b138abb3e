# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Which Python an engine gets on a host, and which system packages that takes.

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
        },
        "cuda": {
            "ca-certificates": "uv and pip check the index's certificate with them",
            "g++": "nvcc's host compiler: sglang and flashinfer compile kernels (C++20) at run time; brings binutils and the C library's headers",
            "libnuma1": "binds the processes of a GPU to the memory next to it",
            "numactl": "sglang starts its schedulers with it on hosts with several NUMA nodes",
        },
    },
    "dnf": {
        "cpu": {
            "ca-certificates": "uv and pip check the index's certificate with them",
        },
        "cuda": {
            "ca-certificates": "uv and pip check the index's certificate with them",
            "gcc-c++": "nvcc's host compiler: sglang and flashinfer compile kernels (C++20) at run time; brings binutils and the C library's headers",
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
    problems = []
    if machine not in MACHINES:
        problems.append(f"expected a host of type {' or '.join(MACHINES)}, found {machine}: SGLang has no wheels for it. Use another host.")
    if release_of(glibc) < LOWEST_GLIBC:
        lowest = ".".join(map(str, LOWEST_GLIBC))
        problems.append(
            f"expected glibc {lowest} or newer, found {glibc or 'none'}: SGLang's wheels do not load on this system. Use a newer "
            "distribution (Debian 12, Ubuntu 22.04, RHEL 9 or later)."
        )
    manager = package_manager(platform)
    headers = "cuda" in variants
    others = [name for variant in sorted(variants) for name in PACKAGES.get(manager, {}).get(variant, {})]
    packages = list(dict.fromkeys(others))
    supported = " or ".join(".".join(map(str, release)) for release in SUPPORTED)

    def choice(source: str, path: str, version: str, extra: t.Sequence[str] = ()) -> Choice:
        return Choice(source, path, version, tuple(sorted({*packages, *extra})), tuple(problems))

    def found(version: str) -> str:
        return ", ".join(f"{python.path} ({python.version})" for python in pythons) or version

    usable = [python for python in pythons if release_of(python.version) in SUPPORTED]
    if wanted.startswith("/"):
        named = [python for python in usable if python.path == wanted]
        if named:
            version = ".".join(named[0].version.split(".")[:2])
            system = named[0].path == f"/usr/bin/python{version}"
            own = python_packages(manager, version, headers, _is_own(platform, version)) if system else []
            return choice("system", named[0].path, named[0].version, own)
        problems.append(
            f"sglang_venv_python: expected {wanted} to be Python {supported}, found {found('no Python')}. Name another executable, or auto."
        )
        return choice("none", "", "")
    releases = [release_of(wanted)] if wanted != "auto" else list(SUPPORTED)
    if releases[0] not in SUPPORTED:
        problems.append(f"sglang_venv_python: expected auto, {supported}, or the path of a Python on the host, found {wanted}.")
        return choice("none", "", "")
    # The distribution's own Python comes before others that lie on the host, the newer before the older.
    candidates = sorted(
        (python for python in usable if release_of(python.version) in releases),
        key=lambda python: (python.path.startswith("/usr/bin/"), release_of(python.version)),
    )
    if candidates:
        best = candidates[-1]
        version = ".".join(best.version.split(".")[:2])
        own = python_packages(manager, version, headers, _is_own(platform, version)) if best.path.startswith("/usr/bin/") else []
        return choice("system", best.path, best.version, own)
    offered = DISTRIBUTION_PYTHON.get(platform, "")
    if offered and release_of(offered) in releases:
        name = [f"python{offered}"] if manager == "apt" else []
        return choice("package", f"/usr/bin/python{offered}", offered, [*name, *python_packages(manager, offered, headers, own=False)])
    if archive_path:
        return choice("archive", archive_path, "")
    problems.append(
        f"expected Python {wanted if wanted != 'auto' else supported} on the host, found {found('no Python')}, and {' '.join(platform).strip()} "
        "has no package for it that is known here. Install one and name its path in sglang_venv_python, or name a standalone build in "
        "sglang_venv_python_archive."
    )
    return choice("none", "", "")


def _is_own(platform: tuple[str, str], version: str) -> bool:
    """Is this the Python that the distribution itself runs on (its packages have no version in their names on RHEL)."""
    return DISTRIBUTION_PYTHON.get(platform) != version
