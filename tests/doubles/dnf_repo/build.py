#!/usr/bin/env python3
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make a machine that seems to be Rocky 9 with NVIDIA's repository: build.py, as root, in a Debian container of its own that has dnf, rpm,
createrepo-c and gpg.

  /srv/rpm/rhel9/x86_64   small packages with the names, epochs and dependencies of NVIDIA's, in streams of the module nvidia-driver (in
                          modules.yaml), packages and index signed with a key of a day: /srv/rpm/key.asc; fingerprint.txt says what it is
  /srv/rpm/base           what EPEL has: dkms
  /lib/modules/<kernel>   headers, as far as the role looks at them
  /etc                    os-release of Rocky 9, yum.repos.d/base.repo
  /usr/local/sbin         modinfo and modprobe, the doubles beside this file

A package with a module puts a file where DKMS would. Keys are made anew each time. What is real: dnf, rpm, signatures, streams.

Names, streams, epoch 3: NVIDIA Driver Installation Guide, chapter Red Hat Enterprise Linux, and public logs of dnf with its repository.
"""

from __future__ import annotations

import os
import pathlib
import platform
import shutil
import subprocess
import textwrap

TOP = pathlib.Path("/srv/rpm")
KERNEL = platform.release()
VERSIONS = ("580.95.05", "580.126.09", "590.48.01")
SIGNER = "nobody@example.com"

# name -> epoch, what it requires in the same version, other lines of the spec
KMOD = "Provides: nvidia-kmod = 3:{version}\nConflicts: {other}\nRequires: dkms\n"
OPEN, PROPRIETARY = "kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms"
PACKAGES: dict[str, tuple[int, tuple[str, ...], str]] = {
    "libnvidia-ml": (3, (), ""),
    "nvidia-driver-cuda-libs": (3, ("libnvidia-ml",), ""),
    "nvidia-modprobe": (3, (), ""),
    "nvidia-persistenced": (3, ("libnvidia-ml",), ""),
    "nvidia-kmod-common": (3, ("nvidia-modprobe",), "Requires: nvidia-kmod = 3:{version}\n"),
    "nvidia-driver-cuda": (3, ("nvidia-driver-cuda-libs", "nvidia-kmod-common", "nvidia-persistenced"), ""),
    OPEN: (3, ("nvidia-kmod-common",), KMOD.replace("{other}", PROPRIETARY)),
    PROPRIETARY: (3, ("nvidia-kmod-common",), KMOD.replace("{other}", OPEN)),
    "nvidia-fabric-manager": (0, (), ""),
}
STREAMS = {"open": OPEN, "dkms": PROPRIETARY}
UNIT = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=true\n[Install]\nWantedBy=multi-user.target\n"


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def package(target: pathlib.Path, name: str, version: str, epoch: int = 0, lines: str = "", files: dict[str, str] | None = None) -> str:
    """Build one, and return it as modules.yaml names it."""
    build = TOP / "build"
    build.mkdir(parents=True, exist_ok=True)
    spec = f"Name: {name}\nEpoch: {epoch}\nVersion: {version}\nRelease: 1.el9\nSummary: test double\nLicense: MIT\nAutoReqProv: no\n{lines}"
    spec += "%description\nTest double.\n%install\nmkdir -p %{buildroot}\n"
    for number, (path, text) in enumerate((files or {}).items()):
        (build / str(number)).write_text(text)
        spec += f"install -D -m 755 {build / str(number)} %{{buildroot}}{path}\n"
    (build / "one.spec").write_text(spec + "%files\n" + "".join(f"{path}\n" for path in files or {}))
    macros = {
        "_topdir": str(build),
        "_rpmdir": str(target),
        "_build_id_links": "none",
        "_binary_payload": "w0.gzdio",
        "_rpmfilename": "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm",
    }
    words = [word for key, value in macros.items() for word in ("--define", f"{key} {value}")]
    output("rpmbuild", "--quiet", "-bb", "--target", "x86_64", *words, str(build / "one.spec"))
    return f"{name}-{epoch}:{version}-1.el9.x86_64"


def driver(target: pathlib.Path, name: str, version: str) -> str:
    epoch, same, lines = PACKAGES[name]
    requires = "".join(f"Requires: {one} = 3:{version}\n" for one in same)
    licence = {OPEN: "Dual MIT/GPL", PROPRIETARY: "NVIDIA"}.get(name)
    files = {
        "nvidia-persistenced": {"/usr/lib/systemd/system/nvidia-persistenced.service": UNIT},
        "nvidia-fabric-manager": {"/usr/lib/systemd/system/nvidia-fabricmanager.service": UNIT},
        "nvidia-modprobe": {"/usr/bin/nvidia-modprobe": "#!/bin/sh\n"},
    }.get(name, {})
    if licence:
        files = {f"/lib/modules/{KERNEL}/extra/nvidia.ko": f"version: {version}\nlicense: {licence}\n"}
    return package(target, name, version, epoch, requires + lines.replace("{version}", version), files)


def stream(name: str, artifacts: list[str]) -> str:
    head = f"""\
        ---
        document: modulemd
        version: 2
        data:
          name: nvidia-driver
          stream: {name}
          version: 20260101000000
          context: deadbeef
          arch: x86_64
          summary: test double
          description: test double
          license:
            module: [MIT]
          artifacts:
            rpms:
        """
    return textwrap.dedent(head) + "".join(f"    - {one}\n" for one in artifacts) + "...\n"


def make_key() -> str:
    output("gpg", "--batch", "--passphrase", "", "--quick-gen-key", SIGNER, "rsa3072", "sign", "1d")
    (TOP / "key.asc").write_text(output("gpg", "--armor", "--export", SIGNER))
    listed = output("gpg", "--with-colons", "--list-keys", SIGNER)
    return next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr"))


def publish(target: pathlib.Path, modules: str = "") -> None:
    output("createrepo_c", "--quiet", "--general-compress-type=gz", str(target))
    if modules:
        (TOP / "modules.yaml").write_text(modules)
        output("modifyrepo_c", "--mdtype=modules", str(TOP / "modules.yaml"), str(target / "repodata"))
    output("gpg", "--batch", "--armor", "--detach-sign", str(target / "repodata/repomd.xml"))


def make_repositories() -> None:
    shutil.rmtree(TOP, ignore_errors=True)
    nvidia, base = TOP / "rhel9/x86_64", TOP / "base"
    nvidia.mkdir(parents=True)
    base.mkdir()
    os.environ["GNUPGHOME"] = str(TOP / "gnupg")
    (TOP / "gnupg").mkdir(mode=0o700)
    (TOP / "fingerprint.txt").write_text(make_key())
    artifacts = {(name, version): driver(nvidia, name, version) for version in VERSIONS for name in PACKAGES}
    modules = ""
    for branch in sorted({version.partition(".")[0] for version in VERSIONS}):
        for word, kmod in STREAMS.items():
            wanted = [name for name in PACKAGES if name == kmod or name not in STREAMS.values()]
            modules += stream(f"{branch}-{word}", [one for (name, full), one in artifacts.items() if name in wanted and full[:3] == branch])
    output("rpmsign", "--define", f"_gpg_name {SIGNER}", "--addsign", *(str(path) for path in nvidia.glob("*.rpm")))
    publish(nvidia, modules)
    package(base, "dkms", "3.2.1")
    publish(base)


def make_machine() -> None:
    headers = pathlib.Path(f"/lib/modules/{KERNEL}/build/Makefile")  # no package can have this kernel's version, with two dashes
    headers.parent.mkdir(parents=True, exist_ok=True)
    headers.touch()
    words = {"NAME": "Rocky Linux", "ID": "rocky", "ID_LIKE": "rhel centos fedora", "VERSION_ID": "9.6", "PLATFORM_ID": "platform:el9"}
    release = pathlib.Path("/etc/os-release")
    release.unlink()
    release.write_text("".join(f'{key}="{value}"\n' for key, value in words.items()))
    for path in ("/etc/yum.repos.d", "/etc/pki/rpm-gpg", "/etc/dnf/modules.d", "/etc/modprobe.d"):
        pathlib.Path(path).mkdir(parents=True, exist_ok=True)
    pathlib.Path("/etc/yum.repos.d/base.repo").write_text(f"[base]\nname=base\nbaseurl=file://{TOP}/base\ngpgcheck=0\nenabled=1\n")
    # What Debian's dnf does not know of itself.
    pathlib.Path("/etc/dnf/dnf.conf").write_text("[main]\nmodule_platform_id=platform:el9\nbest=True\nskip_if_unavailable=False\n")
    pathlib.Path("/etc/dnf/vars").mkdir(exist_ok=True)
    pathlib.Path("/etc/dnf/vars/releasever").write_text("9\n")
    for name in ("modinfo", "modprobe"):  # before the real ones in the search path of systemd and of everybody
        shutil.copy2(pathlib.Path(__file__).with_name(name), "/usr/local/sbin")


if __name__ == "__main__":
    make_repositories()
    make_machine()
