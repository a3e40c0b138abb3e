#!/usr/bin/env python3
# Copyright: (c) 2026, Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make and remove the Linux system containers that the demo and the tests deploy to.

A test host is an LXC container with its own init, its own address and an SSH server. Ansible reaches it the way it reaches
any machine, so a run against it differs from a run against hardware only in the inventory.

Everything converges: a command that was interrupted, even by SIGKILL, is repeated. Two names carry that promise. A file system
is prepared as `rootfs.partial` and renamed to `rootfs` when it is complete; the download of packages is a `.partial` until it
is a `.tar`. Whatever is found under the partial name is thrown away.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import ipaddress
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
STATE = CHECKOUT / ".cache" / "hosts"
RUN = Path("/run/firstlight")  # locks, and what we changed on this machine until its next boot
PREFIX = "firstlight-"
USER = "ops"
BRIDGE = "lxcbr0"
FIRST_ADDRESS = 129  # the last number of the first container's address; the reference host is CT129
UV_CACHE = "/var/cache/firstlight/uv"
CA_DIRECTORY = Path("/usr/local/share/ca-certificates")
INIT = "/usr/local/sbin/firstlight-init"
UNPRIVILEGED = """\
lxc.include = /usr/share/lxc/config/userns.conf
lxc.idmap = u 0 100000 65536
lxc.idmap = g 0 100000 65536
lxc.rootfs.options = idmap=container
"""
PROGRESS_EVERY = 10.0
MEMORY_TO_BUILD_IN = 4 * 2**30  # available bytes from which on a file system is built in memory, twice as fast as on a disk

CONTROLLER_PACKAGES = ("dnsmasq-base", "iproute2", "iptables", "lxc", "mmdebstrap", "openssh-client", "uidmap")
BASE_PACKAGES = ("ca-certificates", "curl", "iproute2", "openssh-server", "procps", "sudo")
SYSTEMD_PACKAGES = ("dbus", "systemd", "systemd-sysv")
PLAIN_INIT_PACKAGES = ("systemd-standalone-sysusers", "tini")  # the former satisfies openssh-server in systemd's place
PYTHON_PACKAGES = ("python3", "python3-apt")
DEBIAN_SUITE = "trixie"
SUITE_ALIASES = ("stable", "oldstable", "testing", "unstable", "sid")

NOT_ROOT = "testhost makes system containers and must be root: run it with sudo."
ALTERNATIVE = (
    "This machine cannot host test containers ({why}); use any host that you reach by SSH instead: write it in an inventory "
    "and run `make deploy INVENTORY=...`."
)


class TestHostError(Exception):
    """Something that the user has to know, in a sentence."""

    exit_code = 1


class NotRootError(TestHostError):
    exit_code = 2


class CannotHostError(TestHostError):
    exit_code = 3

    def __init__(self, why: str) -> None:
        super().__init__(ALTERNATIVE.format(why=why))


# ---------------------------------------------------------------------------------------------------------------------
# Pure functions: text in, data out
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """One `deb` entry of apt."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]


@dataclass(frozen=True)
class Mirror:
    """Where the distribution's own packages come from on this machine."""

    archive: str
    security: str | None
    updates: bool


@dataclass(frozen=True)
class Host:
    """What was asked for; kept in the container's configuration."""

    purpose: str
    hostname: str
    distribution: str
    suite: str
    python: bool
    systemd: bool
    unprivileged: bool = False
    extra_config: str = ""  # a file of LXC keys, which LXC reads at each start

    def packages(self) -> list[str]:
        init = SYSTEMD_PACKAGES if self.systemd else PLAIN_INIT_PACKAGES
        return sorted({*BASE_PACKAGES, *init, *(PYTHON_PACKAGES if self.python else ())})


def parse_one_line_sources(text: str) -> list[Source]:
    """Read the format of /etc/apt/sources.list."""
    found = []
    for line in text.splitlines():
        entry = re.match(r"\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", line)
        if entry:
            uri, suite, components = entry.groups()
            found.append(Source(uri.rstrip("/"), (suite,), tuple(components.split())))
    return found


def parse_deb822_sources(text: str) -> list[Source]:
    """Read the format of /etc/apt/sources.list.d/*.sources."""
    found = []
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        fields: dict[str, list[str]] = {}
        name = ""
        for line in stanza.splitlines():
            if not line[:1].isspace() and ":" in line:
                name, line = line.split(":", 1)  # noqa: PLW2901 - the rest of the line is read as a continuation is
                name = name.strip().lower()
                fields[name] = []
            if name:
                fields[name] += line.split()
        if "deb" not in fields.get("types", []) or fields.get("enabled") == ["no"]:
            continue
        suites, components = tuple(fields.get("suites", ())), tuple(fields.get("components", ()))
        found += [Source(uri.rstrip("/"), suites, components) for uri in fields.get("uris", ())]
    return found


def choose_mirror(sources: Iterable[Source], codename: str) -> Mirror:
    """Tell the distribution's own archive from third parties that use the same suite names."""
    suites: dict[str, set[str]] = {}
    for source in sources:
        if source.uri.startswith(("http://", "https://")) and "main" in source.components:
            suites.setdefault(source.uri, set()).update(source.suites)
    names = (codename, *SUITE_ALIASES)
    archives = [uri for uri, served in suites.items() if any(name in served for name in names)]
    with_updates = [uri for uri in archives if any(f"{name}-updates" in suites[uri] for name in names)]
    if not archives:
        raise TestHostError(f"No http(s) archive for {codename} with component main is in this machine's apt sources.")
    security = [uri for uri, served in suites.items() if any(f"{name}-security" in served for name in names)]
    return Mirror((with_updates or archives)[0], security[0] if security else None, bool(with_updates))


def wanted_sources(mirror: Mirror, host: Host) -> list[Source]:
    components = ("main", "universe") if host.distribution == "ubuntu" else ("main",)
    if host.suite in ("sid", "unstable"):
        return [Source(mirror.archive, (host.suite,), components)]
    suites = (host.suite, f"{host.suite}-updates") if mirror.updates else (host.suite,)
    sources = [Source(mirror.archive, suites, components)]
    if mirror.security:
        sources.append(Source(mirror.security, (f"{host.suite}-security",), components))
    return sources


def render_one_line_sources(sources: Iterable[Source]) -> list[str]:
    return [f"deb {source.uri} {suite} {' '.join(source.components)}" for source in sources for suite in source.suites]


def render_deb822_sources(sources: Iterable[Source], distribution: str) -> str:
    return "\n".join(
        f"Types: deb\nURIs: {source.uri}\nSuites: {' '.join(source.suites)}\nComponents: {' '.join(source.components)}\n"
        f"Signed-By: /usr/share/keyrings/{distribution}-archive-keyring.gpg\n"
        for source in sources
    )


def rootfs_key(host: Host, architecture: str) -> str:
    """Name the cached file system after everything that went into it."""
    content = json.dumps([host.suite, architecture, host.packages()])
    return f"{host.suite}-{architecture}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def checkout_id(checkout: Path) -> str:
    return hashlib.sha256(str(checkout).encode()).hexdigest()[:6]


def container_name(purpose: str, checkout: Path) -> str:
    return f"{PREFIX}{purpose}-{checkout_id(checkout)}"


def choose_address(bridge: ipaddress.IPv4Interface, used: Iterable[str]) -> ipaddress.IPv4Interface:
    """Return the first free address from .129 on, then those below it."""
    taken = {*used, str(bridge.ip)}
    hosts = list(bridge.network.hosts())
    first = min(FIRST_ADDRESS - 1, len(hosts) - 1)
    for address in hosts[first:] + hosts[:first]:
        if str(address) not in taken:
            return ipaddress.IPv4Interface(f"{address}/{bridge.network.prefixlen}")
    raise TestHostError(f"Every address of {bridge.network} is taken; `testhost.py status` lists the containers.")


def config_address(text: str) -> str | None:
    found = re.search(r"^\s*lxc\.net\.0\.ipv4\.address\s*=\s*([0-9.]+)", text, re.MULTILINE)
    return found[1] if found else None


def config_host(text: str) -> Host | None:
    """Read back what `render_config` noted about the container."""
    found = re.search(r"^# firstlight: (\{.*\})$", text, re.MULTILINE)
    return Host(**json.loads(found[1])) if found else None


def lxc_path(path: Path) -> str:
    """Spell a path the way fstab does, as mount entries want it."""
    return re.sub(r"[ \t\\]", lambda match: f"\\{ord(match[0]):03o}", str(path))


def render_config(*, host: Host, directory: Path, gateway: ipaddress.IPv4Address, address: ipaddress.IPv4Interface, uv: Path) -> str:
    # The same address has the same hardware address always: neighbours that remember it need not time out first (45 s).
    hardware = ":".join(f"{byte:02x}" for byte in (0x00, 0x16, 0x3E, *address.ip.packed[1:]))
    init = "" if host.systemd else f"lxc.init.cmd = {INIT}\nlxc.signal.halt = SIGTERM\n"
    # Its root may not go where the cache lies, so it has none.
    cache = "" if host.unprivileged else f"lxc.mount.entry = {lxc_path(uv)} {UV_CACHE.lstrip('/')} none bind,create=dir 0 0\n"
    extra = f"lxc.include = {host.extra_config}\n" if host.extra_config else ""
    return f"""\
# firstlight: {json.dumps(asdict(host))}
lxc.include = /usr/share/lxc/config/common.conf
lxc.rootfs.path = dir:{directory}/rootfs
lxc.uts.name = {host.hostname}
lxc.apparmor.profile = unconfined
lxc.mount.auto = proc:mixed sys:mixed cgroup:mixed
{cache}lxc.net.0.type = veth
lxc.net.0.link = {BRIDGE}
lxc.net.0.flags = up
lxc.net.0.name = eth0
lxc.net.0.hwaddr = {hardware}
lxc.net.0.ipv4.address = {address}
lxc.net.0.ipv4.gateway = {gateway}
{init}{UNPRIVILEGED if host.unprivileged else ""}{extra}"""


def render_ssh_config(hostname: str, address: str, state: Path) -> str:
    def quoted(path: Path) -> str:
        return '"' + str(path).replace("%", "%%") + '"'

    return f"""\
Host {hostname} {address}
  HostName {address}
  User {USER}
  IdentityFile {quoted(state / "id_ed25519")}
  IdentitiesOnly yes
  UserKnownHostsFile {quoted(state / "known_hosts")}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""


def render_resolv_conf(controller: str, bridge: ipaddress.IPv4Interface) -> str:
    """Use the controller's name servers; a resolver on its loopback is reached through the bridge's dnsmasq."""
    servers = re.findall(r"^\s*nameserver\s+(\S+)", controller, re.MULTILINE)
    if servers and not any(server.startswith("127.") or server == "::1" for server in servers):
        return controller.rstrip("\n") + "\n"
    others = [line for line in controller.splitlines() if re.match(r"\s*(search|options|domain)\b", line)]
    return "\n".join([*others, f"nameserver {bridge.ip}"]) + "\n"


def writable_cgroups(mounts: str) -> bool:
    """Whether /proc/mounts shows a cgroup hierarchy that may be written."""
    entries = (line.split() for line in mounts.splitlines())
    return any(entry[2] in ("cgroup", "cgroup2") and "rw" in entry[3].split(",") for entry in entries if len(entry) > 3)


def first_lxc_error(log: str) -> str | None:
    """The first error of an LXC log is the cause; the others follow from it."""
    found = re.search(r" ERROR .*?:\d+ - (.*)$", log, re.MULTILINE)
    return found[1] if found else None


def available_memory(meminfo: str) -> int:
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def failed_units(listing: str) -> list[str]:
    """Read `systemctl --failed --plain --no-legend`."""
    return [line.split()[0] for line in listing.splitlines() if line.strip()]


# ---------------------------------------------------------------------------------------------------------------------
# Saying, running, locking
# ---------------------------------------------------------------------------------------------------------------------

STARTED = time.monotonic()


def say(message: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the work goes on when nobody listens any more
        print(f"[{time.monotonic() - STARTED:4.0f} s] {message}", flush=True)


def capture(*argv: str | Path, check: bool = True, timeout: float | None = None) -> str:
    """Run a short command and return what it printed."""
    try:
        done = subprocess.run(
            [str(arg) for arg in argv], check=False, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        done = subprocess.CompletedProcess([], 127, "", f"{argv[0]} is not installed")
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess([], 124, "", f"no answer in {timeout} s")
    if check and done.returncode:
        raise TestHostError(f"`{' '.join(map(str, argv))}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def succeeds(*argv: str | Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return subprocess.run([str(arg) for arg in argv], check=False, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0
    return False


def run_long(title: str, argv: Sequence[str], log: Path, *, environment: dict[str, str] | None = None, dies_with_us: bool = True) -> None:
    """Run a command that takes a while; say every few seconds that it is still at work, and where."""
    say(title)
    began = shown = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    prefix = ["setpriv", "--pdeathsig", "KILL", "--"] if dies_with_us else []
    with (
        log.open("w+", encoding="utf-8", errors="replace") as output,
        subprocess.Popen(
            [*prefix, *argv], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        ) as process,
    ):
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
                if time.monotonic() - shown >= PROGRESS_EVERY and process.returncode is None:
                    shown = time.monotonic()
                    tail = log.read_text(encoding="utf-8", errors="replace").split("\n")
                    last = next((line.strip() for line in reversed(tail) if line.strip()), "")
                    say(f"  {shown - began:.0f} s: {last[:100] or 'at work'}")
        except BaseException:
            if dies_with_us:
                process.kill()
            raise
    if process.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace").strip().split("\n")[-15:]
        raise TestHostError(f"{title}: failed with status {process.returncode}. End of {log}:\n  " + "\n  ".join(tail))


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock that the kernel gives back when we die."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run that works on {what}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def machine_lock() -> contextlib.AbstractContextManager[None]:
    return locked(RUN / "machine.lock", "this machine's packages, bridge and addresses")


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file at once, or leave it alone when it is right already."""
    if path.is_file() and not path.is_symlink() and path.read_text(encoding="utf-8") == text and path.stat().st_mode & 0o777 == mode:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(mode)
    temporary.replace(path)


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "firstlight"


# ---------------------------------------------------------------------------------------------------------------------
# This machine
# ---------------------------------------------------------------------------------------------------------------------


def os_release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    return {key: value.strip("\"'") for key, _, value in (line.partition("=") for line in lines)}


def controller_distribution() -> str:
    """debian or ubuntu: the two that our packages and our mirrors are for."""
    release = os_release()
    for name in ("ubuntu", "debian"):
        if name in (release.get("ID"), *release.get("ID_LIKE", "").split()):
            return name
    raise CannotHostError(f"it runs {release.get('PRETTY_NAME', 'an unknown system')}, and only Debian and Ubuntu are supported")


def controller_codename() -> str:
    release = os_release()
    return release.get("UBUNTU_CODENAME") or release.get("DEBIAN_CODENAME") or release.get("VERSION_CODENAME", "")


def controller_sources() -> list[Source]:
    found = []
    for path in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]:
        if path.suffix in (".list", ".sources") and path.is_file():
            parse = parse_deb822_sources if path.suffix == ".sources" else parse_one_line_sources
            found += parse(path.read_text(encoding="utf-8"))
    return found


def apt_proxy() -> dict[str, str]:
    found = {}
    for scheme in ("http", "https"):
        value = re.search(r'"([^"]*)"', capture("apt-config", "dump", f"Acquire::{scheme}::Proxy"))
        if value and value[1] not in ("", "DIRECT"):
            found[scheme] = value[1]
    return found


def require_root() -> None:
    if os.geteuid() != 0:
        raise NotRootError(NOT_ROOT)


def check_machine() -> None:
    """Find out what would fail later, before anything is installed or downloaded."""
    controller_distribution()
    if Path("/proc/self/uid_map").read_text(encoding="utf-8").split() != ["0", "0", "4294967295"]:
        raise CannotHostError("it is itself an unprivileged container")
    if not writable_cgroups(Path("/proc/mounts").read_text(encoding="utf-8")):
        raise CannotHostError("no control group hierarchy is mounted writable")
    if not succeeds("unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--propagation", "private", "true"):
        raise CannotHostError("it may not create namespaces")
    if shutil.which("ip") and not succeeds("unshare", "--net", "ip", "link", "add", "firstlight0", "type", "veth", "peer", "firstlight1"):
        raise CannotHostError("it may not create virtual network interfaces")
    if shutil.disk_usage("/var/lib").free < 2 * 2**30:
        raise CannotHostError("less than 2 GiB are free under /var/lib")


def missing_packages() -> list[str]:
    listing = capture("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *CONTROLLER_PACKAGES, check=False)
    installed = {line.split()[0] for line in listing.splitlines() if line.endswith(" installed")}
    return [package for package in CONTROLLER_PACKAGES if package not in installed]


def ensure_packages() -> None:
    missing = missing_packages()
    if not missing:
        return
    log = cache_directory() / "packages.log"
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    # dpkg is never killed half-way: apt may outlive us, and the next run waits for its lock.
    repair = ["dpkg", "--force-confold", "--configure", "-a"]
    run_long("repairing an interrupted dpkg, if any", repair, log, environment=quiet, dies_with_us=False)
    run_long("reading package lists", ["apt-get", "update"], log, environment=quiet)
    options = ["--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", "-o", "DPkg::Options::=--force-confold"]
    install = ["apt-get", "install", *options, *missing]
    run_long(f"installing {' '.join(missing)}", install, log, environment=quiet, dies_with_us=False)


def lxc_directory() -> Path:
    return Path(capture("lxc-config", "lxc.lxcpath").strip() or "/var/lib/lxc")


def systemd_is_init() -> bool:
    return Path("/run/systemd/system").is_dir()


def lxc_net(action: str) -> None:
    """Start or stop the bridge through its service, or as the service would: systemd skips it on a host that is itself a container."""
    if systemd_is_init():
        capture("systemctl", action, "lxc-net.service")
        if bool(bridge_interface()) is (action == "start"):
            return
    script = next((path for path in (Path("/usr/libexec/lxc/lxc-net"), Path("/usr/lib/lxc/lxc-net")) if path.exists()), None)
    if script is None:
        raise CannotHostError("its lxc package has no lxc-net to make the bridge with")
    capture(script, action)


def ensure_bridge() -> ipaddress.IPv4Interface:
    """Bring up lxcbr0 with its NAT, and remember that it was us."""
    if not bridge_interface():
        say(f"starting the network bridge {BRIDGE}")
        Path("/run/lxc/network_up").unlink(missing_ok=True)  # where /run survives a reboot, lxc-net believes it
        write(RUN / "bridge-started", "")
        try:
            lxc_net("start")
        except TestHostError as error:
            raise CannotHostError(f"the bridge does not start: {error}") from error
    interface = bridge_interface()
    if not interface:
        raise CannotHostError(f"lxc-net did not give {BRIDGE} an address; is USE_LXC_BRIDGE off in /etc/default/lxc-net?")
    allow_forwarding()
    return interface


def bridge_interface() -> ipaddress.IPv4Interface | None:
    found = re.search(r"inet ([0-9./]+)", capture("ip", "-4", "-o", "address", "show", "dev", BRIDGE, check=False))
    return ipaddress.IPv4Interface(found[1]) if found else None


FORWARD_RULES = (["FORWARD", "-i", BRIDGE, "-j", "ACCEPT"], ["FORWARD", "-o", BRIDGE, "-j", "ACCEPT"])


def allow_forwarding() -> None:
    """Docker sets the policy of FORWARD to DROP, which lxc-net's own nftables rules cannot undo."""
    if "-P FORWARD DROP" not in capture("iptables", "-w", "-S", "FORWARD", check=False):
        return
    for rule in FORWARD_RULES:
        if not succeeds("iptables", "-w", "-C", *rule):
            capture("iptables", "-w", "-I", *rule)
            write(RUN / "forwarding-allowed", "")


def release_network() -> None:
    """Undo what `ensure_bridge` did, unless somebody else has come to use it."""
    if any(Path(f"/sys/class/net/{BRIDGE}/brif").glob("*")):
        return
    if (RUN / "forwarding-allowed").exists():
        for rule in FORWARD_RULES:
            succeeds("iptables", "-w", "-D", *rule)
        (RUN / "forwarding-allowed").unlink()
    if (RUN / "bridge-started").exists():
        say(f"stopping the network bridge {BRIDGE}, which was started for these hosts")
        if bridge_interface():
            lxc_net("stop")
        (RUN / "bridge-started").unlink()


def used_addresses(lxc: Path) -> set[str]:
    used = {config_address(path.read_text(encoding="utf-8")) for path in lxc.glob("*/config")}
    leases = Path(f"/var/lib/misc/dnsmasq.{BRIDGE}.leases")
    if leases.is_file():
        used |= {fields[2] for fields in map(str.split, leases.read_text(encoding="utf-8").splitlines()) if len(fields) > 2}
    return {address for address in used if address}


# ---------------------------------------------------------------------------------------------------------------------
# A container
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Container:
    """The places that belong to one test host."""

    purpose: str
    lxc: Path

    @property
    def name(self) -> str:
        return container_name(self.purpose, CHECKOUT)

    @property
    def directory(self) -> Path:
        return self.lxc / self.name

    @property
    def rootfs(self) -> Path:
        return self.directory / "rootfs"

    @property
    def config(self) -> Path:
        return self.directory / "config"

    @property
    def state(self) -> Path:
        return STATE / self.purpose

    def lock(self) -> contextlib.AbstractContextManager[None]:
        return locked(RUN / f"{self.name}.lock", self.name)

    def host(self) -> Host | None:
        return config_host(self.config.read_text(encoding="utf-8")) if self.config.is_file() else None

    def address(self) -> str | None:
        return config_address(self.config.read_text(encoding="utf-8")) if self.config.is_file() else None

    def running(self) -> bool:
        return capture("lxc-info", "-n", self.name, "-s", "-H", check=False).strip() == "RUNNING"

    def ssh(self, *command: str, timeout: float | None = None, check: bool = True) -> str:
        address = self.address() or ""
        options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=3", "-o", "ControlMaster=no", "-o", "ControlPath=none"]
        return capture("ssh", "-F", self.state / "ssh_config", *options, address, *command, timeout=timeout, check=check)


def remove_tree(path: Path) -> None:
    """Remove a directory, but never through something that is mounted below it."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    below = [mount for mount in mounts if mount == str(path) or mount.startswith(f"{path}/")]
    if below:
        raise TestHostError(f"{below[0]} is still mounted: unmount it, then run this again.")
    if path.exists():
        shutil.rmtree(path)


def build_rootfs(host: Host, mirror: Mirror) -> Path:
    """Return the cached file system of this kind of host; make it when there is none."""
    architecture = capture("dpkg", "--print-architecture").strip()
    directory = cache_directory() / "rootfs"
    key = rootfs_key(host, architecture)
    tar = directory / f"{key}.tar"
    if tar.exists():
        return tar
    with locked(directory / f"{key}.lock", f"the {host.suite} file system"):
        if tar.exists():
            return tar
        partial, scratch = directory / f"{key}.partial", directory / f"{key}.build"
        remove_tree(scratch)
        scratch.mkdir(parents=True)
        in_memory = available_memory(Path("/proc/meminfo").read_text(encoding="utf-8")) >= MEMORY_TO_BUILD_IN
        run_long(
            f"building the {host.suite} file system from {mirror.archive} (once; about a minute)",
            # In its own namespaces: when it dies, its children and its mounts are gone as well.
            [
                *("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"),
                *(("sh", "-c", 'mount -t tmpfs -o mode=755,size=2g tmpfs "$0"; exec "$@"', str(scratch)) if in_memory else ()),
                *("mmdebstrap", "--mode=root", "--variant=minbase", "--format=tar", f"--architectures={architecture}"),
                *('--aptopt=Acquire::Languages "none"', f"--include={','.join(host.packages())}", host.suite, str(partial)),
                *render_one_line_sources(wanted_sources(mirror, host)),
            ],
            directory / f"{key}.log",
            environment={"TMPDIR": str(scratch), **{f"{scheme}_proxy": url for scheme, url in apt_proxy().items()}},
        )
        remove_tree(scratch)
        partial.replace(tar)
    return tar


def prepare_rootfs(container: Container, host: Host, mirror: Mirror, tar: Path, bridge: ipaddress.IPv4Interface) -> None:
    """Unpack and personalise under a temporary name; the rename at the end says that all of it is there."""
    root = container.directory / "rootfs.partial"
    remove_tree(root)
    root.mkdir(mode=0o755)
    unpack = ["tar", "--numeric-owner", "--xattrs", "--xattrs-include=*", "-xpf", str(tar), "-C", str(root)]
    run_long("unpacking the file system", unpack, container.directory / "unpack.log")
    root.chmod(0o755)

    say(f"making it {host.hostname}: names, name servers, package sources, SSH keys, user {USER}")
    write(root / "etc/hostname", f"{host.hostname}\n")
    write(root / "etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {host.hostname}\n::1 localhost ip6-localhost ip6-loopback\n")
    write(root / "etc/machine-id", f"{uuid.uuid4().hex}\n", 0o444)
    resolv = root / "etc/resolv.conf"
    resolv.unlink(missing_ok=True)
    write(resolv, render_resolv_conf(Path("/etc/resolv.conf").read_text(encoding="utf-8"), bridge))

    (root / "etc/apt/sources.list").unlink(missing_ok=True)
    sources = render_deb822_sources(wanted_sources(mirror, host), host.distribution)
    write(root / f"etc/apt/sources.list.d/{host.distribution}.sources", sources)
    proxies = "".join(f'Acquire::{scheme}::Proxy "{url}";\n' for scheme, url in apt_proxy().items())
    if proxies:
        write(root / "etc/apt/apt.conf.d/90proxy", proxies)

    for key in (root / "etc/ssh").glob("ssh_host_*"):  # made when the package was unpacked, so the same in every container
        key.unlink()
    comment = f"root@{host.hostname}"
    capture("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", root / "etc/ssh/ssh_host_ed25519_key")
    if not re.search(rf"^{USER}:", (root / "etc/passwd").read_text(encoding="utf-8"), re.MULTILINE):
        capture("chroot", root, "useradd", "--create-home", "--shell", "/bin/bash", "--password", "*", USER)
    write(root / f"etc/sudoers.d/{USER}", f"{USER} ALL=(ALL) NOPASSWD: ALL\n", 0o440)

    certificates = sorted(CA_DIRECTORY.rglob("*.crt")) if CA_DIRECTORY.is_dir() else []
    for certificate in certificates:
        write(root / str(CA_DIRECTORY).lstrip("/") / certificate.name, certificate.read_text(encoding="utf-8"))
    if certificates:
        capture("chroot", root, "update-ca-certificates")
    if not host.systemd:
        write(root / INIT.lstrip("/"), "#!/bin/sh\nmkdir -p /run/sshd\nexec tini -g -- /usr/sbin/sshd -D\n", 0o755)
    root.rename(container.rootfs)


def write_access(container: Container, host: Host) -> None:
    """Write what a client needs to reach the host, and let that client in."""
    address = container.address() or ""
    state = container.state
    state.mkdir(parents=True, exist_ok=True)
    key = state / "id_ed25519"
    if not (key.exists() and key.with_suffix(".pub").exists()):
        key.unlink(missing_ok=True)
        capture("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"firstlight {host.purpose}", "-f", key)
    host_key = (container.rootfs / "etc/ssh/ssh_host_ed25519_key.pub").read_text(encoding="utf-8")
    write(state / "known_hosts", f"{host.hostname},{address} {' '.join(host_key.split()[:2])}\n")
    write(state / "ssh_config", render_ssh_config(host.hostname, address, state))
    write(state / "address", f"{address}\n")

    home = container.rootfs / "home" / USER
    owner = home.stat()
    authorized = home / ".ssh" / "authorized_keys"
    write(authorized, key.with_suffix(".pub").read_text(encoding="utf-8"), 0o600)
    authorized.parent.chmod(0o700)
    for path in (authorized.parent, authorized):
        os.chown(path, owner.st_uid, owner.st_gid)
    # Under sudo, the user who runs Ansible afterwards must be able to read the key.
    uid, gid = int(os.environ.get("SUDO_UID", "0")), int(os.environ.get("SUDO_GID", "0"))
    if uid:
        for path in (STATE.parent, STATE, state, *state.iterdir()):
            os.chown(path, uid, gid)


def start(container: Container, host: Host) -> None:
    say(f"starting {container.name}")
    log = container.directory / "start.log"
    log.unlink(missing_ok=True)
    capture("ip", "neighbour", "flush", "dev", BRIDGE, "to", container.address() or "", check=False)  # somebody else's, before us
    try:
        # Where LXC finds newuidmap it asks that, which wants a range for root in /etc/subuid. Root needs neither.
        without_newuidmap = ["env", "PATH=/usr/sbin:/sbin"] if host.unprivileged else []
        program = shutil.which("lxc-start") or "lxc-start"
        capture(*without_newuidmap, program, "-n", container.name, "-d", "-o", log, "-l", "WARN", timeout=60)
    except TestHostError as error:
        reason = first_lxc_error(log.read_text(encoding="utf-8", errors="replace") if log.exists() else "") or str(error)
        raise CannotHostError(f"LXC does not start a container: {reason}; all of it in {log}") from error


def banner(address: str) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, 22), timeout=1) as connection:
        connection.settimeout(2)
        return connection.recv(4) == b"SSH-"
    return False


def wait_ready(container: Container, host: Host, timeout: float = 120) -> str:
    """Wait until the host lets us in and has finished booting; return a word about its state."""
    began = shown = time.monotonic()
    address = container.address() or ""
    state = ""
    while time.monotonic() - began < timeout:
        if banner(address):
            asks = "systemctl is-system-running --wait; true" if host.systemd else "echo running"
            state = container.ssh(asks, timeout=timeout, check=False).strip()
            if state in ("running", "degraded"):
                break
        elif not container.running():
            raise TestHostError(f"{container.name} stopped while booting; see {container.directory / 'start.log'}")
        if time.monotonic() - shown >= PROGRESS_EVERY:
            shown = time.monotonic()
            say(f"  {shown - began:.0f} s: {state or 'no SSH server yet'}")
        time.sleep(0.2)
    else:
        raise TestHostError(
            f"{host.hostname} ({address}) is not ready after {timeout:.0f} s: {state or 'SSH does not answer'}. "
            f"Look inside with `{sys.argv[0]} exec {container.purpose} -- journalctl -b`."
        )
    if state == "degraded":
        units = failed_units(container.ssh("systemctl --failed --plain --no-legend", check=False))
        return f"degraded: {', '.join(units)} failed"
    return state


def check_downloads(container: Container, mirror: Mirror, host: Host) -> None:
    url = f"{mirror.archive}/dists/{host.suite}/InRelease"
    proxies = "".join(f"{scheme}_proxy={proxy} " for scheme, proxy in apt_proxy().items())
    if container.ssh(f"{proxies}curl -sSfI -o /dev/null --max-time 15 {url} && echo ok", check=False).strip() != "ok":
        say(f"warning: {host.hostname} does not reach {url}; look at this machine's firewall (forwarding from {BRIDGE})")


def converge(container: Container, host: Host) -> None:
    if container.rootfs.exists() and container.host() != host:
        raise TestHostError(
            f"{container.name} exists with other options ({container.host()}); `{sys.argv[0]} destroy {container.purpose}` removes it."
        )
    cache_directory().joinpath("uv").mkdir(parents=True, exist_ok=True)
    with machine_lock():
        bridge = ensure_bridge()
        if not container.rootfs.exists():
            previous = container.address()
            address = ipaddress.IPv4Interface(f"{previous}/{bridge.network.prefixlen}") if previous else None
            if address is None or address.ip not in bridge.network:
                address = choose_address(bridge, used_addresses(container.lxc))
            container.directory.mkdir(parents=True, exist_ok=True)
            uv = cache_directory() / "uv"
            config = render_config(host=host, directory=container.directory, gateway=bridge.ip, address=address, uv=uv)
            write(container.config, config)
    mirror = choose_mirror(controller_sources(), controller_codename())
    if not container.rootfs.exists():
        prepare_rootfs(container, host, mirror, build_rootfs(host, mirror), bridge)
    write_access(container, host)
    fresh = not container.running()
    if fresh:
        start(container, host)
    state = wait_ready(container, host)
    if fresh:
        check_downloads(container, mirror, host)
    say(f"{host.hostname} is {state} at {container.address()}: ssh -F {container.state / 'ssh_config'} {host.hostname}")


# ---------------------------------------------------------------------------------------------------------------------
# Commands
# ---------------------------------------------------------------------------------------------------------------------


def create(args: argparse.Namespace) -> None:
    require_root()
    os.umask(0o022)
    if missing_packages():
        check_machine()
        with machine_lock():
            ensure_packages()
    container = Container(args.purpose, lxc_directory())
    if not container.rootfs.exists():
        check_machine()
    distribution = controller_distribution()
    suite = args.suite or (DEBIAN_SUITE if distribution == "debian" else controller_codename())
    with container.lock():
        extra = str(args.extra_config.resolve()) if args.extra_config else ""
        host = Host(args.purpose, args.hostname, distribution, suite, args.python, args.systemd, args.unprivileged, extra)
        converge(container, host)


def destroy(args: argparse.Namespace) -> None:
    require_root()
    if shutil.which("lxc-config"):
        container = Container(args.purpose, lxc_directory())
        with container.lock():
            if container.running():
                say(f"stopping {container.name}")
                capture("lxc-stop", "-n", container.name, "-k", timeout=60)
            if container.directory.exists():
                say(f"removing {container.name}")
                if container.rootfs.exists():  # so that a run which is interrupted here leaves nothing that looks complete
                    remove_tree(container.directory / "rootfs.partial")
                    container.rootfs.rename(container.directory / "rootfs.partial")
                remove_tree(container.directory)
            remove_tree(container.state)
        with machine_lock():
            if not any(container.lxc.glob(f"{PREFIX}*")):
                release_network()
    else:
        remove_tree(STATE / args.purpose)
    cache = cache_directory()
    print(f"No test host {args.purpose!r} is left on this machine.")
    if cache.exists():
        size = capture("du", "-sh", cache, check=False).split()
        print(f"Downloads stay in {cache} ({size[0] if size else '?'}); delete them with: rm -rf {cache}")


def existing(purpose: str) -> Container:
    if shutil.which("lxc-config"):
        container = Container(purpose, lxc_directory())
        if container.address():
            return container
    raise TestHostError(f"There is no test host {purpose!r}; `{sys.argv[0]} create {purpose}` makes it.")


def show_address(args: argparse.Namespace) -> None:
    require_root()
    print(existing(args.purpose).address())


def show_status(_args: argparse.Namespace) -> None:
    require_root()
    containers = sorted(lxc_directory().glob(f"{PREFIX}*")) if shutil.which("lxc-config") else []
    ours = [path for path in containers if path.name.endswith(f"-{checkout_id(CHECKOUT)}")]
    for path in ours:
        purpose = path.name.removeprefix(PREFIX).rpartition("-")[0]
        container = Container(purpose, path.parent)
        host = container.host()
        complete = "running" if container.running() else "stopped" if container.rootfs.exists() else "incomplete"
        print(f"{purpose:<16} {host.hostname if host else '-':<16} {container.address() or '-':<15} {complete:<10} {path.name}")
    if not ours:
        print("No test host of this checkout exists.")
    if len(containers) > len(ours):
        print(f"{len(containers) - len(ours)} of other checkouts: {', '.join(path.name for path in containers if path not in ours)}")


def execute(args: argparse.Namespace) -> None:
    require_root()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    environment = ["--clear-env", "-v", f"PATH={path}", "-v", f"TERM={os.environ.get('TERM', 'dumb')}", "-v", "HOME=/root"]
    os.execvp("lxc-attach", ["lxc-attach", "-n", existing(args.purpose).name, *environment, "--", *(command or ["bash", "-l"])])  # noqa: S606


def purpose_name(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,30}", text):
        raise argparse.ArgumentTypeError("lower-case letters, digits and hyphens, a letter first, at most 31")
    return text


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="testhost.py",
        description="Make and remove LXC system containers that the demo and the tests deploy to over SSH. Needs root on Debian or Ubuntu.",
        epilog="Exit status: 0 done; 1 failed; 2 wrong usage or not root; 3 this machine cannot host containers. Every command may be "
        "interrupted and repeated. Files for clients (ssh_config, id_ed25519, known_hosts, address) are in .cache/hosts/PURPOSE/.",
    )
    commands = top.add_subparsers(dest="name", required=True, metavar="COMMAND")

    made = commands.add_parser("create", help="make a host, start it, wait until it is ready", description="Make a host and wait for it.")
    made.add_argument("--hostname", type=purpose_name, default="ct129", help="its name, also for ssh -F (default: %(default)s)")
    made.add_argument("--suite", help=f"release to install (default: {DEBIAN_SUITE} on Debian, this machine's own release on Ubuntu)")
    made.add_argument("--python", action=argparse.BooleanOptionalAction, default=True, help="install python3")
    made.add_argument("--include-python", dest="python", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--systemd", action=argparse.BooleanOptionalAction, default=True, help="boot systemd (without: only sshd runs)")
    made.add_argument("--unprivileged", action="store_true", help="its root is another user of this machine")
    made.add_argument("--extra-config", type=Path, metavar="FILE", help="LXC keys of its own, after all others")
    made.set_defaults(run=create)

    gone = commands.add_parser("destroy", help="stop and remove a host and its client files", description="Remove a host.")
    gone.set_defaults(run=destroy)
    shown = commands.add_parser("ip", help="print a host's address", description="Print a host's address.")
    shown.set_defaults(run=show_address)
    inside = commands.add_parser("exec", help="run a command in a host as root, without SSH", description="Run a command as root.")
    inside.set_defaults(run=execute)
    for command in (made, gone, shown, inside):
        command.add_argument("purpose", type=purpose_name, metavar="PURPOSE", help="what the host is for, for instance demo")
    inside.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="default: a shell")
    listed = commands.add_parser("status", help="list the hosts of this checkout", description="List the hosts of this checkout.")
    listed.set_defaults(run=show_status)
    return top


def terminated(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    args = parser().parse_args()
    signal.signal(signal.SIGTERM, terminated)
    try:
        args.run(args)
    except TestHostError as error:
        print(f"testhost: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("testhost: interrupted; the same command repairs what is half done.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
