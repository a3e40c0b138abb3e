#!/usr/bin/env python3
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make a machine that NVIDIA's repository for this Debian and GPUs seem to be on: build.py, as root, in a container of its own.

  /srv/cuda-repo/<name>   repositories with small packages that have the names and dependencies of NVIDIA's, for gpu_driver_base_url:
      good, and the same signed by another key (other) and by a key that has expired (expired). Keys to fetch are beside them: key.asc,
      both.asc (two in one file); fingerprints.json says what they are.
  /srv/gpu-hosts/<name>   GPU hosts without a driver, as gpu_info reads a recorded host; /srv/gpu-host is the one that is meant
  /lib/modules/<kernel>   headers of the kernel, as far as the role looks at them

A package that has a module puts it where DKMS would: an ELF file that modinfo reads. It says that to modprobe (beside this file), which is
the double of the kernel: from then on the host has that driver loaded. Keys are made anew each time.

Names, dependencies: NVIDIA Driver Installation Guide, chapter Debian, and tests/fixtures/driver/README.md. PCI ids: pci.ids.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import platform
import re
import shutil
import struct
import subprocess
import tempfile
import textwrap

REPOSITORIES = pathlib.Path("/srv/cuda-repo")
HOSTS = pathlib.Path("/srv/gpu-hosts")
HOST = pathlib.Path("/srv/gpu-host")
URL = "http://127.0.0.1:8071"
KERNEL = pathlib.Path("/lib/modules") / platform.release()
MAINTAINER = "Firstlight maintainers <nobody@example.com>"

# Two versions of a branch, so that one can be newer than the pinned one. Nobody has packed a fabric manager for the oldest.
VERSIONS = ("590.44.01", "590.48.01", "595.45.04", "595.58.03", "610.43.02")
WITHOUT_FABRIC_MANAGER = ("590.44.01",)

EXACT = "{name} (= {version}-1)"
# name -> what it depends on in the same version, other fields of control. {other}: of the other flavour.
PACKAGES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "firmware-nvidia-gsp": ((), {}),
    "libcuda1": (("libnvidia-ptxjitcompiler1",), {"Recommends": "nvidia-kernel-open-dkms | nvidia-kernel-dkms"}),
    "libnvidia-ml1": ((), {}),
    "libnvidia-nvvm4": ((), {}),
    "libnvidia-ptxjitcompiler1": ((), {}),
    "nvidia-driver-cuda": (
        ("libcuda1", "libnvidia-ml1", "libnvidia-nvvm4", "libnvidia-ptxjitcompiler1", "nvidia-persistenced"),
        {"Conflicts": "nvidia-smi", "Provides": "nvidia-smi"},
    ),
    "nvidia-kernel-support": (("nvidia-modprobe",), {}),
    "nvidia-kernel-open-dkms": (("firmware-nvidia-gsp", "nvidia-kernel-support"), {"Conflicts": "nvidia-kernel-dkms"}),
    "nvidia-kernel-dkms": (("firmware-nvidia-gsp", "nvidia-kernel-support"), {"Conflicts": "nvidia-kernel-open-dkms"}),
    "nvidia-modprobe": ((), {}),
    "nvidia-persistenced": ((), {}),
    "nvidia-fabricmanager": ((), {}),
    "nvidia-open": (("nvidia-driver-cuda", "nvidia-kernel-open-dkms"), {}),
}
LICENCES = {"nvidia-kernel-open-dkms": "Dual MIT/GPL", "nvidia-kernel-dkms": "NVIDIA"}
DAEMONS = ("nvidia-persistenced", "nvidia-fabricmanager")

# name -> PCI ids and class of each function: H200 with NVSwitches, RTX 5090, Tesla P40.
GPU, SWITCH = "0x030200", "0x068000"
PCI = {
    "8x_h200": [("10de:2335", GPU)] * 8 + [("10de:22a3", SWITCH)] * 4,
    "blackwell": [("10de:2b85", GPU)],
    "pascal": [("10de:1b38", GPU)],
    "mixed": [("10de:1b38", GPU), ("10de:2b85", GPU)],
}


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def module(version: str, licence: str) -> bytes:
    """An ELF file with no code, and what modinfo shows."""
    said = "".join(f"{key}={value}\0" for key, value in (("version", version), ("license", licence), ("name", "nvidia"))).encode()
    names = b"\0.modinfo\0.shstrtab\0"
    start = 64 + len(said) + len(names)
    start += -start % 8
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 1, 62, 1, 0, 0, start, 0, 64, 0, 0, 64, 3, 2)

    def section(name: int, kind: int, offset: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, offset, size, 0, 0, 1, 0)

    sections = bytes(64) + section(1, 1, 64, len(said)) + section(10, 3, 64 + len(said), len(names))
    return (header + said + names).ljust(start, b"\0") + sections


def package(
    pool: pathlib.Path, name: str, version: str, fields: dict[str, str], files: dict[str, bytes], scripts: dict[str, str] | None = None
) -> str:
    """Build one, and return its paragraph of the index."""
    architecture = output("dpkg", "--print-architecture").strip()
    control = f"Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\n"
    control += "".join(f"{key}: {value}\n" for key, value in fields.items() if value) + "Description: test double\n"
    target = pool / f"{name}_{version}.deb"
    with tempfile.TemporaryDirectory() as temporary:
        tree = pathlib.Path(temporary)
        tree.chmod(0o755)
        for path, content in {**files, "DEBIAN/control": control.encode()}.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content)
        (tree / "DEBIAN").chmod(0o755)
        for path in tree.glob("usr/*bin/*"):
            path.chmod(0o755)
        for script, text in (scripts or {}).items():
            (tree / "DEBIAN" / script).write_text(f"#!/bin/sh\nset -e\n{textwrap.dedent(text)}")
            (tree / "DEBIAN" / script).chmod(0o755)
        output("dpkg-deb", "--build", "--root-owner-group", "-Znone", temporary, str(target))
    data = target.read_bytes()
    return f"{control}Filename: ./pool/{target.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"


def of_driver(pool: pathlib.Path, name: str, version: str) -> str:
    exact, fields = PACKAGES[name]
    depends = [EXACT.format(name=one, version=version) for one in exact]
    files: dict[str, bytes] = {}
    scripts: dict[str, str] = {}
    if name in LICENCES:
        depends.append("dkms (>= 3.0)")
        files[f"usr/src/nvidia-{version}/nvidia.ko"] = module(version, LICENCES[name])
        place = f"{KERNEL}/updates/dkms"
        # With /run/slow-build a build takes as long as the file is there; with /run/bad-build it fails.
        scripts["postinst"] = f"""
            while test -e /run/slow-build; do touch /run/building; sleep 0.2; done
            if test -e /run/bad-build; then echo 'Error! Bad return status for module build'; exit 10; fi
            mkdir -p {place}
            cp /usr/src/nvidia-{version}/nvidia.ko {place}
            depmod
            """
        scripts["prerm"] = f"rm -f {place}/nvidia.ko\ndepmod\n"
    if name in DAEMONS:
        unit = "[Service]\nExecStart=sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
        files[f"usr/lib/systemd/system/{name}.service"] = unit.encode()
        # As debhelper does it.
        stop = f'if test "$1" = remove; then systemctl --quiet disable --now {name}.service; fi\n'
        scripts = {"prerm": stop, "postinst": "systemctl daemon-reload\n", "postrm": "systemctl daemon-reload\n"}
    if name == "nvidia-modprobe":
        files["usr/bin/nvidia-modprobe"] = b"#!/bin/sh\n"
    return package(
        pool, name, f"{version}-1", {"Source": "nvidia-graphics-drivers", "Depends": ", ".join(depends), **fields}, files, scripts
    )


def gpg(home: str, *arguments: str) -> str:
    return output("gpg", "--homedir", home, "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", "", *arguments)


def new_key(home: str, name: str, *options: str) -> str:
    """Fingerprint of a new key."""
    gpg(home, *options, "--quick-generate-key", f"{name} <nobody@example.com>", "ed25519", "sign", "never")
    lines = gpg(home, *options, "--with-colons", "--list-keys", f"={name} <nobody@example.com>").splitlines()
    return next(line.split(":")[9] for line in lines if line.startswith("fpr:"))


def repository(home: str, directory: pathlib.Path, index: str, key: str) -> None:
    """A flat one, signed."""
    directory.mkdir(parents=True)
    (directory / "pool").symlink_to(REPOSITORIES / "pool")
    (directory / "Packages").write_text(index)
    date = output("date", "-Ru").strip().replace("+0000", "UTC")
    line = f" {hashlib.sha256(index.encode()).hexdigest()} {len(index.encode())} Packages\n"
    (directory / "Release").write_text(f"Origin: NVIDIA\nLabel: NVIDIA CUDA\nDate: {date}\nSHA256:\n{line}")
    gpg(home, "--local-user", key, "--clearsign", "--output", str(directory / "InRelease"), str(directory / "Release"))


def os_release() -> dict[str, str]:
    return dict(re.findall(r"^([A-Z_]+)=\"?([^\"\n]*)\"?$", pathlib.Path("/etc/os-release").read_text(), re.MULTILINE))


def place() -> str:
    """<directory>/<architecture>, as NVIDIA calls them."""
    return f"debian{os_release()['VERSION_ID']}/{'sbsa' if platform.machine() == 'aarch64' else 'x86_64'}"


def build_repositories() -> None:
    shutil.rmtree(REPOSITORIES, ignore_errors=True)
    pool = REPOSITORIES / "pool"
    pool.mkdir(parents=True)
    packed = [(name, version) for name in PACKAGES for version in VERSIONS]
    index = [of_driver(pool, *one) for one in packed if one[0] != "nvidia-fabricmanager" or one[1] not in WITHOUT_FABRIC_MANAGER]
    with tempfile.TemporaryDirectory() as home:
        past = ("--faked-system-time", "20200101T000000!")
        keys = {"good": new_key(home, "good"), "other": new_key(home, "other"), "expired": new_key(home, "expired", *past)}
        # NVIDIA's own package with a source, and its key.
        gpg(home, "--output", str(REPOSITORIES / "good.gpg"), "--export", keys["good"])
        source = f"deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] {URL}/good/{place()}/ /\n"
        keyring = {
            "etc/apt/sources.list.d/cuda.list": source.encode(),
            "usr/share/keyrings/cuda-archive-keyring.gpg": (REPOSITORIES / "good.gpg").read_bytes(),
        }
        index.append(package(pool, "cuda-keyring", "1.1-1", {}, keyring))
        for name, key in keys.items():
            repository(home, REPOSITORIES / name / place(), "\n".join(index), key)
        # It was signed while the key was good; what is published says that it no longer is.
        gpg(home, "--faked-system-time", "20200102T000000!", "--quick-set-expire", keys["expired"], "1y")
        for name, key in keys.items():
            (REPOSITORIES / name / "key.asc").write_text(gpg(home, "--armor", "--export", key))
        (REPOSITORIES / "good/both.asc").write_text(gpg(home, "--armor", "--export", keys["good"], keys["other"]))
        (REPOSITORIES / "fingerprints.json").write_text(json.dumps(keys))
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=True)


def build_hosts() -> None:
    shutil.rmtree(HOSTS, ignore_errors=True)
    for name, functions in PCI.items():
        files = {
            "proc/cmdline": "ro quiet\n",
            "proc/meminfo": "MemTotal: 131072000 kB\nMemFree: 122880000 kB\nMemAvailable: 122880000 kB\n",
            "proc/modules": "",
            "proc/devices": "Character devices:\n  1 mem\n",
            "dev/ls-l.txt": "ls: cannot access '/dev/nvidia*': No such file or directory\n",
            "facts.json": json.dumps({"systemd_detect_virt": "none", "shm_total_mib": 64000, "shm_free_mib": 64000}),
        }
        for number, (ids, kind) in enumerate(functions, 1):
            vendor, device = ids.split(":")
            for field, value in {"vendor": f"0x{vendor}", "device": f"0x{device}", "class": kind}.items():
                files[f"sys/bus/pci/devices/0000:{number:02x}:00.0/{field}"] = f"{value}\n"
        for path, text in files.items():
            (HOSTS / name / path).parent.mkdir(parents=True, exist_ok=True)
            (HOSTS / name / path).write_text(text)
    HOST.unlink(missing_ok=True)
    HOST.symlink_to(HOSTS / "8x_h200")


def narrow_sources() -> None:
    """Leave of Debian's archive what has packages of NVIDIA: apt reads 50 MB of the rest for each question."""
    sources = pathlib.Path("/etc/apt/sources.list.d/debian.sources")
    uri, key = (re.findall(rf"^{field}: (.+)$", sources.read_text(), re.MULTILINE)[0] for field in ("URIs", "Signed-By"))
    suite = os_release()["VERSION_CODENAME"]
    entries = ((f"{suite}-updates", "main"), (suite, "contrib non-free non-free-firmware"))
    text = "\n".join(f"Types: deb\nURIs: {uri}\nSuites: {one}\nComponents: {parts}\nSigned-By: {key}\n" for one, parts in entries)
    sources.write_text(text)
    output("apt-get", "update", "-q")


def build_system() -> None:
    """What the driver's packages meet: headers of the kernel, a DKMS that brings no compiler, modprobe, and the server."""
    (KERNEL / "build").mkdir(parents=True, exist_ok=True)
    for name in ("build/Makefile", "modules.order", "modules.builtin"):
        (KERNEL / name).touch()
    with tempfile.TemporaryDirectory() as temporary:
        package(pathlib.Path(temporary), "dkms", "99", {}, {})
        output("dpkg", "--install", f"{temporary}/dkms_99.deb")
    # Before the real one in the search path of systemd and of everybody.
    shutil.copy(pathlib.Path(__file__).with_name("modprobe"), "/usr/local/sbin/modprobe")
    command = f"python3 -m http.server 8071 --bind 127.0.0.1 --directory {REPOSITORIES}"
    unit = f"[Service]\nExecStart={command}\nRestart=always\n[Install]\nWantedBy=multi-user.target\n"
    pathlib.Path("/etc/systemd/system/cuda-repo.service").write_text(unit)
    output("systemctl", "daemon-reload")
    output("systemctl", "enable", "--quiet", "--now", "cuda-repo.service")


if __name__ == "__main__":
    build_repositories()
    build_hosts()
    build_system()
    narrow_sources()
