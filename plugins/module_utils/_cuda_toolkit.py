# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Which CUDA toolkit a release of SGLang compiles its kernels with, where it comes from, and what it lacks: facts in, sentences out.

SGLang and flashinfer call nvcc, the host's C++ compiler and ninja while the engine starts; Triton compiles against Python's headers. A
sentence says what was expected, what was found and what to change.

Sources, by the short names used below:
  KERNELS    the #include lines of the kernels in SGLang 0.5.23 (sglang/kernels) and its toolchain.py: CUDA_HOME, -L$CUDA_HOME/lib64
             -lcudart, $CUDA_HOME/lib64/stubs for -lcuda; curand_kernel.h: flashinfer (its issue 4410)
  ARCHIVES   Debian's archive, bookworm and trixie non-free, as apt-cache showed it on 2026-12-01; Ubuntu: packages.ubuntu.com
  CCCL       cuda/std/__cccl/cuda_toolkit.h of CCCL 13.3.5: an error unless nvcc's release is that of CUDART_VERSION
  NETWORK    package lists of NVIDIA's repositories in public installers for CUDA 13.0 to 13.4 (debian12, ubuntu2404, rhel8, fedora44)
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils._driver_sources import ENGINE_CUDA, engine_needs, parse_version

SOURCES = ("wheels", "distribution", "nvidia", "path")

# Where each source puts a toolkit. {cuda}: 13.0.
HOMES = {"nvidia": "/usr/local/cuda-{cuda}", "distribution": "/usr/lib/cuda"}

# NVIDIA's repository: what brings nvcc and the files of PARTS, by package manager (NETWORK). {cuda}: 13-0. nvcc brings its own parts
# (cuda-crt, libnvvm) as dependencies.
NVIDIA_PACKAGES: dict[str, tuple[str, ...]] = {
    "apt": ("cuda-nvcc-{cuda}", "cuda-cudart-dev-{cuda}", "cuda-driver-dev-{cuda}", "cuda-cccl-{cuda}", "libcurand-dev-{cuda}"),
    "dnf": ("cuda-nvcc-{cuda}", "cuda-cudart-devel-{cuda}", "cuda-driver-devel-{cuda}", "cuda-cccl-{cuda}", "libcurand-devel-{cuda}"),
}
# Minor releases of a CUDA whose packages are asked for, to name those that a repository has.
MINORS = range(10)
# The distribution's package, and the CUDA in it by platform (ARCHIVES). It brings all headers (nvidia-cuda-dev) and a host compiler.
DISTRIBUTION_PACKAGE = "nvidia-cuda-toolkit"
DISTRIBUTION_CUDA: dict[tuple[str, str], str] = {
    ("debian", "12"): "11.8",
    ("debian", "13"): "12.4",
    ("ubuntu", "22.04"): "11.5",
    ("ubuntu", "24.04"): "12.0",
}
# Platforms that NVIDIA publishes a repository for, as far as this collection goes.
NVIDIA_PLATFORMS = (*DISTRIBUTION_CUDA, ("rhel", "9"))

# C++20 for nvcc's host code (SGLang compiles with -std=c++20): GCC 11 and later.
LOWEST_GCC = 11


class Part(t.NamedTuple):
    """A file of a toolkit: the name to tell, the places below CUDA_HOME (any will do), and NVIDIA's package that has it ({dev}: dev or
    devel). system: where a distribution puts it in place of that."""

    name: str
    places: tuple[str, ...]
    package: str
    system: tuple[str, ...] = ()


# KERNELS. CUDA 13 keeps the headers of CCCL in a directory of their own.
PARTS = (
    Part("nvcc", ("bin/nvcc",), "cuda-nvcc", ("/usr/bin/nvcc",)),
    Part("crt/host_config.h", ("include/crt/host_config.h",), "cuda-crt", ("/usr/include/crt/host_config.h",)),
    Part("cuda_runtime.h", ("include/cuda_runtime.h",), "cuda-cudart-{dev}", ("/usr/include/cuda_runtime.h",)),
    Part("cuda_fp8.h", ("include/cuda_fp8.h",), "cuda-cudart-{dev}", ("/usr/include/cuda_fp8.h",)),
    Part("curand_kernel.h", ("include/curand_kernel.h",), "libcurand-{dev}", ("/usr/include/curand_kernel.h",)),
    Part("cub/cub.cuh", ("include/cccl/cub/cub.cuh", "include/cub/cub.cuh"), "cuda-cccl", ("/usr/include/cub/cub.cuh",)),
    Part(
        "cuda/std/utility",
        ("include/cccl/cuda/std/utility", "include/cuda/std/utility"),
        "cuda-cccl",
        ("/usr/include/cuda/std/utility",),
    ),
    Part(
        "libcudart.so",
        ("lib64/libcudart.so",),
        "cuda-cudart-{dev}",
        ("/usr/lib/x86_64-linux-gnu/libcudart.so", "/usr/lib/aarch64-linux-gnu/libcudart.so"),
    ),
    # In an environment it leads to the driver's library, which may be installed later.
    Part(
        "stubs/libcuda.so",
        ("lib64/stubs/libcuda.so",),
        "cuda-driver-{dev}",
        ("/usr/lib/x86_64-linux-gnu/libcuda.so", "/usr/lib/aarch64-linux-gnu/libcuda.so"),
    ),
)

# Compiled for a proof: headers of each kind that KERNELS includes (CCCL's check with them), a kernel, a call into the runtime.
KERNEL = """\
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <curand_kernel.h>
#include <cuda/std/utility>
__global__ void twice(int *value) { *value *= 2; }
extern "C" int devices() { int count = 0; return cudaGetDeviceCount(&count) == cudaSuccess ? count : -1; }
"""


class Choice(t.NamedTuple):
    """The toolkit of one environment: where it is or will be (None when that cannot be said), the CUDA that is expected there (None: any
    of the right major version), packages that bring it, and why it cannot be had."""

    home: str | None
    cuda: str | None
    packages: tuple[str, ...]
    problems: tuple[str, ...]


class Found(t.NamedTuple):
    """What lies at a toolkit's home, as the services' user sees it.

    nvcc: what `nvcc --version` printed; version_json, runtime: the texts of version.json and cuda_runtime_api.h; each empty when there is
    none. missing: names of PARTS.
    ninja, python_h: the paths, empty when there are none. cxx: the C++ compiler's path, cxx_version what -dumpfullversion printed.
    """

    exists: bool
    nvcc: str = ""
    version_json: str = ""
    runtime: str = ""
    missing: tuple[str, ...] = ()
    ninja: str = ""
    python_h: str = ""
    cxx: str = ""
    cxx_version: str = ""


# Texts


def parse_nvcc(text: str) -> str | None:
    """The CUDA release in what `nvcc --version` prints: "Cuda compilation tools, release 13.0, V13.0.88" is 13.0."""
    match = re.search(r"\brelease (\d{1,3}\.\d{1,3})\b", text, re.ASCII)
    return match[1] if match else None


def parse_version_json(text: str) -> str | None:
    """The CUDA release in a toolkit's version.json: {"cuda": {"name": "CUDA SDK", "version": "13.0.1"}, ...} is 13.0."""
    try:
        version = json.loads(text)["cuda"]["version"]
    except (ValueError, KeyError, TypeError):
        return None
    match = re.match(r"\d{1,3}\.\d{1,3}(?![\d])", str(version), re.ASCII)
    return match[0] if match else None


def parse_runtime(text: str) -> str | None:
    """The CUDA release of the runtime's headers, from cuda_runtime_api.h: "#define CUDART_VERSION  13000" is 13.0."""
    match = re.search(r"^\s*#\s*define\s+CUDART_VERSION\s+(\d{4,6})\b", text, re.ASCII | re.MULTILINE)
    return f"{int(match[1]) // 1000}.{int(match[1]) % 1000 // 10}" if match else None


def parse_madison(text: str) -> dict[str, list[str]]:
    """Versions by package in what `apt-cache madison` prints, or `dnf repoquery --queryformat '%{name} | %{version}'`."""
    offered: dict[str, list[str]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) >= 2 and cells[0] and cells[1]:
            offered.setdefault(cells[0], []).append(cells[1])
    return offered


def telling_line(text: str) -> str:
    """The line that says why a compilation failed; tools that run others add lines about those having failed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for pattern in (r"fatal error:|Unsupported gpu architecture|unsupported GNU version|Killed|cannot find", r"error|fatal", r""):
        for line in lines:
            if re.search(pattern, line):
                return line[:300]
    return "it printed nothing"


# What is wanted


def torch_cuda(release: str) -> str | None:
    """The CUDA that torch of a SGLang release was built with ("0.5.23" -> "13.0"); None when it is not known."""
    needs = engine_needs(release)
    return needs.cuda if needs else None


def names_to_ask(source: str, manager: str, release: str) -> list[str]:
    """Packages whose offer decides about a source."""
    cuda = torch_cuda(release)
    if source == "distribution":
        return [DISTRIBUTION_PACKAGE]
    if source != "nvidia" or cuda is None:
        return []
    return [name for minor in MINORS for name in _nvidia_packages(manager, f"{_major(cuda)}.{minor}")]


def driver_problems(releases: t.Iterable[str], driver_version: str | None, cuda_driver_version: str | None) -> list[str]:
    """Why the loaded driver cannot run what these SGLang releases bring. A driver that is not known is no problem here.

    driver_version (580.159.04) and cuda_driver_version (13.0) are gpu_info's. Within a major version of CUDA an older driver runs newer
    programs, from that major version's lowest driver on (CUDA release notes, minor version compatibility).
    """
    problems = []
    for release in dict.fromkeys(releases):
        needs = engine_needs(release)
        if needs is None:
            continue
        old = driver_version is not None and (parse_version(driver_version) or ()) < (parse_version(needs.driver) or ())
        if old or (cuda_driver_version is not None and _major(cuda_driver_version) < _major(needs.cuda)):
            served = f", which serves CUDA {cuda_driver_version} at most" if cuda_driver_version else ""
            problems.append(
                f"expected NVIDIA's driver {needs.driver} or later (torch of SGLang {release} is built with CUDA {needs.cuda}), "
                f"found {driver_version or 'another'} loaded{served}. Upgrade the driver."
            )
    return problems


def lacking(instances: t.Sequence[t.Mapping[str, t.Any]]) -> list[str]:
    """What instances that somebody hands in lack of what the lookup returns. One of variant cpu is only passed over."""
    lost = []
    for number, instance in enumerate(instances):
        parts = {name: instance.get(name) or {} for name in ("environment", "unit_environment")}
        needed = [("environment", "variant")]
        if parts["environment"].get("variant") == "cuda":
            needed += [("environment", "path"), ("environment", "release"), ("unit_environment", "CUDA_HOME")]
            lost += [f"instances[{number}].{name}" for name in ("name", "user", "current") if not isinstance(instance.get(name), str)]
        lost += [f"instances[{number}].{part}.{name}" for part, name in needed if not isinstance(parts[part].get(name), str)]
    return lost


def option_problems(source: str, asked: str | None, path: str | None) -> list[str]:
    """What is wrong with the options in themselves. asked: cuda_toolkit_release; path: cuda_toolkit_path."""
    problems = []
    if asked is not None and source != "nvidia":
        problems.append(
            f"cuda_toolkit_release: expected nothing with cuda_toolkit_source: {source} (it chooses NVIDIA's packages), found {asked}. "
            "Remove it, or set cuda_toolkit_source: nvidia."
        )
    elif asked is not None and not re.fullmatch(r"\d{1,2}\.\d{1,2}", asked, re.ASCII):
        problems.append(f"cuda_toolkit_release: expected a release of CUDA such as 13.0, found {asked!r}. Correct it.")
    if path is None and source == "path":
        problems.append(
            "cuda_toolkit_path: expected the directory of a toolkit with cuda_toolkit_source: path, found nothing. Set sglang_cuda_home, "
            "which it follows."
        )
    elif path is not None and not (path.startswith("/") and len(path) > 1 and posixpath.normpath(path) == path):
        problems.append(
            f"cuda_toolkit_path: expected an absolute path without . and .. and a last /, found {path!r}. Correct sglang_cuda_home."
        )
    elif path is not None and source == "wheels":
        problems.append(
            f"cuda_toolkit_source: expected one source, found wheels and the toolkit {path} (sglang_cuda_home, cuda_toolkit_path). Set "
            "cuda_toolkit_source: path to use that toolkit, or remove its path."
        )
    return problems


def choose(
    *,
    source: str,
    asked: str | None,
    path: str | None,
    release: str,
    environment_path: str,
    unit_home: str,
    platform: tuple[str, str],
    manager: str,
    offered: t.Mapping[str, t.Sequence[str]] | None,
) -> Choice:
    """The toolkit of one environment.

    source, asked (a CUDA release) and path: the options, without problems of their own. release: SGLang's. unit_home: CUDA_HOME of the
    services, where the environment is meant by its own path. platform, manager: as _engine_python names them. offered: versions by name
    of what names_to_ask asked for, None when the package manager has no lists yet.
    """
    cuda = torch_cuda(release)
    if cuda is None:
        known = f"expected a release of SGLang whose CUDA is known ({_text(ENGINE_CUDA[-1][0])} or later), found {release}. "
        return Choice(None, None, (), (known + "Use one that is, or add it to ENGINE_CUDA.",))
    problems: list[str] = []
    packages: tuple[str, ...] = ()
    expected: str | None = None
    if source == "wheels":
        home: str | None = f"{environment_path}/cuda"
    elif source == "path":
        home = path
    elif source == "distribution":
        home, packages = HOMES[source], (DISTRIBUTION_PACKAGE,)
        problems += _distribution_problems(release, cuda, platform, offered)
    else:
        named = re.fullmatch(r"/usr/local/cuda-(\d{1,2}\.\d{1,2})", unit_home, re.ASCII)
        expected = asked or (named[1] if named else cuda)
        home, packages = HOMES[source].format(cuda=expected), _nvidia_packages(manager, expected)
        problems += _nvidia_problems(release, cuda, expected, platform, manager, offered)
    if home and not problems:
        problems += _home_problems(source, home, path, unit_home)
    return Choice(home, expected, () if problems else packages, tuple(problems))


# What is there


def check(choice: Choice, found: Found, *, source: str, release: str, manager: str) -> list[str]:
    """What is wrong with a toolkit that should be complete."""
    home, cuda = choice.home or "", torch_cuda(release) or ""
    if not found.exists:
        return [f"expected a CUDA toolkit at {home}, found nothing there. {_cure(source, manager, cuda)}"]
    problems = []
    version, told, runtime = parse_nvcc(found.nvcc), parse_version_json(found.version_json), parse_runtime(found.runtime)
    if "nvcc" in found.missing:
        says = f" (its version.json says CUDA {told})" if told else ""
        problems.append(f"expected nvcc in {home}, found none that the services' user can run{says}. {_cure(source, manager, cuda)}")
    elif version is None:
        problems.append(
            f"expected that {home}/bin/nvcc says its version, found: {telling_line(found.nvcc)}. {_cure(source, manager, cuda)}"
        )
    elif _major(version) != _major(cuda):
        problems.append(
            f"expected nvcc of CUDA {_major(cuda)} (torch of SGLang {release} is built with CUDA {cuda}), found {version} in {home}. "
            f"{_cure('other' if source == 'wheels' else source, manager, cuda)}"
        )
    elif choice.cuda and version != choice.cuda:
        problems.append(f"expected nvcc of CUDA {choice.cuda} in {home}, found {version}. Set cuda_toolkit_release: {version}, or mend it.")
    elif runtime is not None and version != runtime:
        problems.append(
            f"expected nvcc and the runtime's headers of one release of CUDA (CCCL refuses others), found nvcc {version} and "
            f"cuda_runtime_api.h of {runtime} in {home}. {_cure('other' if source == 'wheels' else source, manager, cuda)}"
        )
    lacking = [part for part in PARTS if part.name in found.missing and part.name != "nvcc"]
    if lacking:
        names = ", ".join(f"{part.name} ({part.package.format(dev=_DEV.get(manager, 'dev'))})" for part in lacking)
        problems.append(
            f"expected the headers and libraries that kernels are compiled with in {home}, found no {names}. {_cure(source, manager, cuda)}"
        )
    return problems


def tool_problems(found: Found, manager: str) -> list[str]:
    """What the toolkit works with and does not bring."""
    problems = []
    if not found.ninja:
        problems.append(
            "expected ninja on the services' PATH, found none. The environment brings it: remove its .firstlight.json and run again."
        )
    if not found.python_h:
        package = {"apt": "python3-dev (python3.12-dev and the like for another Python)", "dnf": "python3.12-devel"}.get(manager)
        problems.append(
            f"expected Python.h of the environment's Python, found none. Install {package or 'the headers of that Python'}; the role "
            "sglang_venv does."
        )
    compiler = {"apt": "g++", "dnf": "gcc-c++"}.get(manager, "a C++ compiler")
    if not found.cxx:
        problems.append(f"expected a C++ compiler (c++) on the services' PATH, found none. Install {compiler}; the role sglang_venv does.")
    elif found.cxx_version[:1].isdigit() and _major(found.cxx_version) < LOWEST_GCC:
        problems.append(
            f"expected GCC {LOWEST_GCC} or later (kernels are C++20), found {found.cxx_version.strip()} at {found.cxx}. Install a newer "
            "one, or name one by CXX in the instance's environment."
        )
    return problems


def compile_problem(home: str, capability: str, output: str) -> str:
    """A kernel did not compile or link for a compute capability."""
    return (
        f"expected that a kernel for compute capability {capability} compiles and links with {home}, found: {telling_line(output)}. "
        "Mend what that line names."
    )


def architecture(capability: str) -> str | None:
    """nvcc's words for a compute capability: 8.6 -> 86; None when it is none."""
    match = re.fullmatch(r"(\d{1,2})\.(\d)", capability, re.ASCII)
    return match[1] + match[2] if match else None


# What was proven


def proof(found: Found, environment: str, unit: t.Mapping[str, str]) -> str:
    """What a kernel was compiled with: it need not be compiled again while that stays. environment: the text of the environment's marker.
    unit: what the service has in its environment."""
    parts = [environment, found.nvcc, found.runtime, found.cxx, found.cxx_version, found.python_h, dict(unit)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def proven(record: str) -> dict[str, dict[str, str]]:
    """A record of proofs: CUDA_HOME -> compute capability -> proof(). One that cannot be read has none."""
    try:
        found = json.loads(record or "{}")
        return {str(home): {str(name): str(value) for name, value in proofs.items()} for home, proofs in found.items()}
    except (ValueError, AttributeError):
        return {}


# Parts of these

_DEV = {"apt": "dev", "dnf": "devel"}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _major(version: str) -> int:
    return _numbers(version)[0]


def _text(numbers: t.Iterable[int]) -> str:
    return ".".join(map(str, numbers))


def _nvidia_packages(manager: str, cuda: str) -> tuple[str, ...]:
    return tuple(name.format(cuda=cuda.replace(".", "-")) for name in NVIDIA_PACKAGES.get(manager, ()))


def _words(platform: tuple[str, str]) -> str:
    names = {"debian": "Debian", "ubuntu": "Ubuntu", "rhel": "RHEL"}
    return f"{names.get(platform[0], platform[0])} {platform[1]}".strip() or "this system"


def _others(source: str, cuda: str, platform: tuple[str, str]) -> str:
    """The sources that can bring a CUDA, other than the one that cannot."""
    able = ["wheels (nothing to install)"]
    if source != "nvidia" and platform in NVIDIA_PLATFORMS:
        able.append("nvidia")
    if source != "distribution" and _major(DISTRIBUTION_CUDA.get(platform, "0")) == _major(cuda):
        able.append("distribution")
    return f"Set cuda_toolkit_source: {' or '.join(able)}, or path for a CUDA {_major(cuda)} toolkit that is already there."


def _distribution_problems(
    release: str, cuda: str, platform: tuple[str, str], offered: t.Mapping[str, t.Sequence[str]] | None
) -> list[str]:
    wanted = f"expected a toolkit of CUDA {_major(cuda)} for SGLang {release} (its torch is built with CUDA {cuda}), found"
    known = DISTRIBUTION_CUDA.get(platform)
    versions = sorted((_numbers(text)[:2] for text in (offered or {}).get(DISTRIBUTION_PACKAGE, ())), reverse=True)
    if versions or known:
        # The package manager's word counts; it takes the newest. Where it has none, the table tells what the archive has.
        has = _text(versions[0]) if versions else str(known)
        if _major(has) != _major(cuda):
            return [
                f"{wanted} that {_words(platform)} offers {DISTRIBUTION_PACKAGE} of CUDA {has}. {_others('distribution', cuda, platform)}"
            ]
    else:
        return [f"{wanted} that {_words(platform)} offers none. {_others('distribution', cuda, platform)}"]
    if offered is not None and not versions:
        return [
            f"expected that the package manager offers {DISTRIBUTION_PACKAGE}, found that it does not. Add the component of its archive "
            f"(Debian: non-free; Ubuntu: multiverse). {_others('distribution', cuda, platform)}"
        ]
    return []


def _nvidia_problems(
    release: str, cuda: str, expected: str, platform: tuple[str, str], manager: str, offered: t.Mapping[str, t.Sequence[str]] | None
) -> list[str]:
    if _major(expected) != _major(cuda):
        return [
            f"expected a toolkit of CUDA {_major(cuda)} for SGLang {release} (its torch is built with CUDA {cuda}), found that CUDA "
            f"{expected} is asked for. Set cuda_toolkit_release and sglang_cuda_home to CUDA {_major(cuda)}."
        ]
    if platform not in NVIDIA_PLATFORMS:
        return [f"expected a platform that NVIDIA has a repository for, found {_words(platform)}. {_others('nvidia', cuda, platform)}"]
    if offered is None:
        return []
    missing = [name for name in _nvidia_packages(manager, expected) if not offered.get(name)]
    if not missing:
        return []
    releases = [f"{_major(cuda)}.{minor}" for minor in MINORS]
    there = [one for one in releases if all(offered.get(name) for name in _nvidia_packages(manager, one))]
    if there:
        cure = f"It offers {', '.join(there)}: set sglang_cuda_home: {HOMES['nvidia'].format(cuda=there[0])} for one of these. "
    else:
        cure = "Is NVIDIA's repository configured? "
    return [
        f"expected that the package manager offers {', '.join(missing)}, found that it does not. {cure}{_others('nvidia', cuda, platform)}"
    ]


def _home_problems(source: str, home: str, path: str | None, unit_home: str) -> list[str]:
    """One toolkit: what the source brings is what the services are given."""
    if source in ("nvidia", "distribution") and path not in (None, home):
        return [
            f"cuda_toolkit_path: expected {home} (where cuda_toolkit_source: {source} puts it), found {path}. Set sglang_cuda_home: {home}."
        ]
    if unit_home == home:
        return []
    if source == "wheels":
        return [
            f"expected that the services use the toolkit of their environment (cuda_toolkit_source: wheels), found CUDA_HOME={unit_home}. "
            "Remove it (sglang_cuda_home, or CUDA_HOME in the instance's environment), or set cuda_toolkit_source: path."
        ]
    return [
        f"expected that the services use {home} (cuda_toolkit_source: {source}), found CUDA_HOME={unit_home}. Set sglang_cuda_home: {home}."
    ]


def _cure(source: str, manager: str, cuda: str) -> str:
    if source == "wheels":
        return "The environment is not what its lock says: remove its .firstlight.json and run again; it is built anew."
    packages = ", ".join(_nvidia_packages(manager, cuda))
    if source == "path":
        names = f" (NVIDIA's packages: {packages})" if packages else ""
        return f"Complete it{names}, name another in sglang_cuda_home, or set cuda_toolkit_source: wheels and remove sglang_cuda_home."
    if source == "nvidia":
        return f"Install NVIDIA's packages again: {packages}."
    if source == "distribution":
        return f"Install {DISTRIBUTION_PACKAGE} again, or set cuda_toolkit_source: wheels and remove sglang_cuda_home."
    return f"Make a lock with NVIDIA's wheels of CUDA {cuda} (cuda-toolkit[cccl,nvcc] in its input), or use another source."
