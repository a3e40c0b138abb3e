"""What the role refuses before anything is touched, Secure Boot, .run files, and the one reboot; in this order, on one container."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path

import pytest

DOUBLES = Path(__file__).parent / "doubles"
SECURE_BOOT = "/srv/recorded/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
RUNFILE = "/srv/NVIDIA-Linux-x86_64-{}.run"
LOADED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Wed Apr  2 00:00:00 UTC 2025\n"
USERLAND = {"gpu_driver_host_version_path": "/srv/version", "gpu_driver_device_user": None}


def put(host, text, path, mode="0644"):
    host.check_output(f"install -D -m {mode} /dev/null {path} && printf %s {shlex.quote(text)} > {path}")


def package(host, name, version="99:1.0", **programs):
    """Install a package of this name that has these programs, and nothing else."""
    host.check_output("rm -rf /srv/package")
    control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: nobody <nobody@example.com>\nDescription: double\n"
    put(host, control, "/srv/package/DEBIAN/control")
    put(host, "double\n", f"/srv/package/usr/share/doc/{name}/double")  # dpkg lets a package without a file of its own disappear
    for program, text in programs.items():
        put(host, text, f"/srv/package/usr/sbin/{program}", "0755")
    host.check_output("dpkg-deb --build --root-owner-group /srv/package /srv/package.deb >/dev/null && dpkg -i /srv/package.deb >/dev/null")


def runfile(host, version):
    """Put a .run file of a version on the host: it writes its arguments down, and brings what NVIDIA's would. Its SHA-256."""
    text = (DOUBLES / "runfile").read_text()
    put(host, text, RUNFILE.format(version), "0755")
    return hashlib.sha256(text.encode()).hexdigest()


def arguments(host):
    return host.check_output("cat /srv/arguments; rm /srv/arguments").split()


@pytest.fixture
def unchanged(state):
    """The test leaves the host as it is."""
    before = state()
    yield
    assert state() == before


@pytest.mark.usefixtures("unchanged")
def test_a_check_run_on_a_blank_host_tells_all(role, kernel):
    out = role("--check", "--diff")
    steps = (
        "add the distribution's components contrib non-free non-free-firmware",
        f"install linux-headers-{kernel}, ",
        ", nvidia-kernel-dkms, ",
        f"see that there is a module for kernel {kernel}",
        "rebuild the initramfs",
        "report that a reboot is required (gpu_driver_reboot is report): nouveau has a GPU",
        "make /dev/nvidia-uvm now and at each boot",
    )
    for step in steps:
        assert step in out
    assert out.count("linux-headers-") >= 1
    assert "reboot required: True, mode: kernel" in out


@pytest.mark.usefixtures("unchanged")
def test_a_kernel_never_comes_along(host, role, kernel):
    """Debian's headers depend on their kernel's package, which is not installed on this host for another kernel than its own."""
    other = kernel.replace("-cloud-", "-")
    put(host, f"{other}\n", "/srv/kernel")
    out = role(ok=False)
    put(host, f"{kernel}\n", "/srv/kernel")
    assert f"expected the kernel to stay, found that linux-image-{other} would be installed" in out


# Case C14.
@pytest.mark.usefixtures("unchanged")
def test_a_kernel_that_has_no_headers_is_found_before_anything(host, role, kernel):
    put(host, "6.12.1+deb13-cloud-amd64\n", "/srv/kernel")
    try:
        out = role(ok=False)
        assert "expected headers of the kernel 6.12.1+deb13-cloud-amd64 for DKMS" in out
        assert "linux-headers-6.12.1+deb13-cloud-amd64 in no package source" in out
        host.check_output(f"mkdir -p /lib/modules/{kernel}/build && touch /lib/modules/{kernel}/build/Makefile")
        assert f"there are those of {kernel}; reboot into {kernel} first" in role(ok=False)
    finally:
        put(host, f"{kernel}\n", "/srv/kernel")
        host.check_output(f"rm -rf /lib/modules/{kernel}/build")


# Case C16.
@pytest.mark.usefixtures("unchanged")
def test_secure_boot_stops_before_anything(host, role):
    host.check_output(f"printf '\\006\\000\\000\\000\\001' > {SECURE_BOOT}")
    out = role(ok=False)
    assert "Secure Boot is on and the key that DKMS signs with is not enrolled" in out
    assert "dkms generate_mok" in out


def test_the_enrolment_of_a_key_is_prepared_and_left_to_the_console(host, role, state):
    before = state()
    out = role(ok=False, gpu_driver_secure_boot="mok")
    assert "expected that root has a password" in out
    assert state() == before
    host.check_output("echo root:secret | chpasswd")
    package(host, "dkms", dkms=(DOUBLES / "dkms").read_text())
    package(host, "mokutil", mokutil=(DOUBLES / "mokutil").read_text())
    before = state()
    for _run in range(2):
        out = role(ok=False, gpu_driver_secure_boot="mok")
        assert "A person has to do this: reboot with a keyboard" in out
        assert "Enroll MOK" in out
        assert host.check_output("cat /srv/mok") == "generate_mok\n--import /var/lib/dkms/mok.pub --root-pw"
    assert state() == before, "nothing of the driver, nouveau's blacklist included"

    host.check_output("touch /srv/enrolled")
    assert ", nvidia-kernel-dkms, " in role("--check")
    host.check_output(f"printf '\\006\\000\\000\\000\\000' > {SECURE_BOOT}")


def test_a_runfile_that_is_another_one_is_refused(host, role, state):
    sha256 = runfile(host, "580.95.05")
    put(host, LOADED.format("580.95.05"), "/srv/version")
    before = state()
    path = RUNFILE.format("580.95.05")
    out = role(ok=False, gpu_driver_runfile=path, gpu_driver_runfile_sha256="0" * 64)
    assert f"with the SHA-256 {'0' * 64}, found {sha256}; copy it again" in out
    host.check_output("systemd-run --unit=mirror --property=WorkingDirectory=/srv python3 -m http.server --bind 127.0.0.1 8000")
    url = f"http://127.0.0.1:8000/{path.rpartition('/')[2]}"
    out = role(ok=False, gpu_driver_runfile=url, gpu_driver_runfile_sha256="0" * 64, gpu_driver_mode="userland", **USERLAND)
    assert "did not match" in out
    assert state() == before
    assert not host.file("/srv/arguments").exists


@pytest.mark.parametrize(("version", "argument"), [("550.163.01", "--no-kernel-module"), ("580.95.05", "--no-kernel-modules")])
def test_a_runfile_in_userland_mode_brings_no_module(host, role, state, version, argument):
    sha256 = runfile(host, version)
    put(host, LOADED.format(version), "/srv/version")
    before = state()
    url = f"http://127.0.0.1:8000/{RUNFILE.format(version).rpartition('/')[2]}"
    wanted = {"gpu_driver_mode": "userland", "gpu_driver_runfile": url, "gpu_driver_runfile_sha256": sha256, **USERLAND}
    role(**wanted)
    assert arguments(host) == ["--silent", "--no-x-check", "--no-opengl-files", argument]
    role(gpu_driver_state="absent")
    assert arguments(host) == ["nvidia-uninstall", "--silent"]
    assert state() == before
    assert host.check_output("ls -A /var/cache/firstlight") == "uv"


def test_a_runfile_in_kernel_mode_and_the_one_reboot(host, role, state, kernel):
    """dkms, gcc, make and headers are doubles here (the real ones are in the scenario driver), and so is the module that comes of it."""
    for name in ("gcc", "make", "linux-headers-cloud-amd64"):
        package(host, name)
    host.check_output(f"mkdir -p /lib/modules/{kernel}/build && touch /lib/modules/{kernel}/build/Makefile")
    for name in ("modinfo", "modprobe", "nvidia-modprobe"):
        put(host, (DOUBLES / name).read_text(), f"/usr/local/sbin/{name}", "0755")
    put(host, (DOUBLES / "boot").read_text(), "/usr/local/sbin/double-boot", "0755")
    put(host, (DOUBLES / "double-boot.service").read_text(), "/etc/systemd/system/double-boot.service")
    host.check_output("systemctl enable --now double-boot.service 2>&1")
    runfile(host, "580.95.05")
    before = state()
    wanted = {"gpu_driver_runfile": RUNFILE.format("580.95.05"), "gpu_driver_device_user": None, "gpu_driver_reboot": "if_required"}

    told = role(**{**wanted, "gpu_driver_reboot": "never"})
    assert arguments(host) == ["--silent", "--no-x-check", "--no-opengl-files", "--kernel-module-type=open", "--dkms"]
    assert "a reboot is required, since nouveau has a GPU" in told
    assert "left to you, since gpu_driver_reboot is never" in told
    assert boots(host) == 1
    assert host.service("firstlight-nvidia-uvm.service").is_enabled
    assert not host.service("firstlight-nvidia-uvm.service").is_running
    assert "etc/modprobe.d/firstlight-gpu-driver.conf" in host.check_output(f"lsinitramfs /boot/initrd.img-{kernel}")
    again = role(**{**wanted, "gpu_driver_reboot": "report"})
    assert "changed=0" in again
    assert "reboot required: True" in again, "also when this run changed nothing (case D10)"

    # A boot that does not bring the module: one reboot, and the truth.
    host.check_output("touch /srv/boot-loads-nothing")
    out = role(ok=False, **wanted)
    assert "expected NVIDIA's module of 580.95.05 loaded after the reboot, found that nouveau has a GPU" in out
    assert boots(host) == 2

    host.check_output("rm /srv/boot-loads-nothing")
    out = role(**wanted)
    assert boots(host) == 3
    assert "reboot required: False, mode: kernel, version: 580.95.05" in out
    assert host.service("firstlight-nvidia-uvm.service").is_running
    assert host.service("firstlight-nvidia-persistenced.service").is_running
    assert "-a nvidia nvidia-uvm" in host.check_output("cat /srv/modprobe")
    assert host.check_output("stat -c %a /dev/nvidia-uvm") == "666"

    again = role(**wanted)
    assert "changed=0" in again
    assert boots(host) == 3

    role(gpu_driver_state="absent")
    assert arguments(host) == ["nvidia-uninstall", "--silent"]
    assert state() == before


def boots(host):
    return int(host.check_output("wc -l < /srv/boots"))
