# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Configuration files of Proxmox containers (/etc/pve/lxc/<id>.conf), and which of their lines give a container its GPUs.

How Proxmox reads and writes these files is in PVE/LXC/Config.pm of its package pve-container: parse_pct_config, write_pct_config,
update_pct_config. It writes the keys sorted and the lines lxc.* after them, so a line is known by what it says, never by its place.

Nothing marks a line as ours, since Proxmox keeps no mark. Ours is what binds or allows a node of OUR_NODES; everything else is foreign.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_cell as cell

# devN: pve-container 5.0.7 (2023-11-21), which Proxmox VE 8.1 (2023-11-23) came with; the release notes of 8.2 say the same.
DEVICES_SINCE = (8, 1)
DEVICES_MAX = 256  # MAX_DEVICES in PVE/LXC/Config.pm
# Documentation/admin-guide/devices.txt of Linux: 195 is NVIDIA's; 234-254 and 384-511 are given out at run time.
NVIDIA_MAJOR = 195
DYNAMIC_MAJORS = (range(234, 255), range(384, 512))
# user_namespaces(7): the last 32-bit number is no user, but says "none".
OWNER_MAX = 2**32 - 2
MODE = "0666"  # what NVIDIA's driver gives its nodes (NVreg_DeviceFileMode)
MAKE_UVM = "run nvidia-modprobe -u -c 0 on the hypervisor, and at each boot before its containers start"
# /dev/nvidia-nvswitch*, nvidia-fs* and nvidia-caps-imex-channels/* are NVIDIA's too, but never written here, so they are foreign.
OUR_NODES = re.compile(
    r"/dev/(?:nvidia\d{1,3}|nvidiactl|nvidia-uvm|nvidia-uvm-tools|nvidia-modeset|(?P<caps>nvidia-caps(?:/nvidia-cap\d{1,6})?))", re.ASCII
)

_HEADER = re.compile(r"\[([^\]]+)\]\s*", re.ASCII)
_RAW = re.compile(r"(lxc\.[a-z0-9_.-]+)(?::|\s*=)\s*(.*?)\s*", re.ASCII)
_PLAIN = re.compile(r"([a-z][a-z_]*\d*):\s*(.+?)\s*", re.ASCII)
_DEVICE_KEY = re.compile(r"dev(0|[1-9]\d?|1\d\d|2[0-4]\d|25[0-5])", re.ASCII)  # dev0 to dev255, written in no other way
_RULE = re.compile(
    r"lxc\.cgroup2?\.devices\.allow(?::|\s*=)\s*c\s+(?P<major>[0-9a-fA-F]{1,4}):(?P<minor>\d{1,8}|\*)\s+(?P<access>[rwm]{1,3})\s*",
    re.ASCII,
)


# Parser and renderer


class Line(t.NamedTuple):
    """One line as it is in the file. Files are read as UTF-8 with surrogateescape, so that any byte survives."""

    text: str
    ending: str = "\n"  # empty for a last line without a line feed

    def split(self) -> tuple[str, str]:
        """(key, value) as Proxmox reads them; two empty strings for a comment, a blank line and what it cannot read."""
        match = None if self.text.startswith("#") else _RAW.fullmatch(self.text) or _PLAIN.fullmatch(self.text)
        return (match[1], match[2]) if match else ("", "")


class Section(t.NamedTuple):
    """The container as it is (no header, always the first), as it is after a restart ([pve:pending]), or a snapshot."""

    header: Line | None
    lines: tuple[Line, ...]

    @property
    def name(self) -> str:
        match = _HEADER.fullmatch(self.header.text) if self.header else None
        return match[1] if match else ""

    def values(self) -> dict[str, str]:
        """Values by key; of a key that is there twice the last one counts."""
        return {key: value for key, value in (line.split() for line in self.lines) if key}


Conf = t.Tuple[Section, ...]  # noqa: UP006 - evaluated, and Python 3.8 is looked at too


def parse(text: str) -> Conf:
    """Sections and lines. Any text can be read, and render() gives it back unchanged."""
    pieces = text.split("\n")
    lines = [Line(piece) for piece in pieces[:-1]] + ([Line(pieces[-1], "")] if pieces[-1] else [])
    headers: list[Line | None] = [None]
    bodies: list[list[Line]] = [[]]
    for line in lines:
        if _HEADER.fullmatch(line.text):
            headers.append(line)
            bodies.append([])
        else:
            bodies[-1].append(line)
    return tuple(Section(header, tuple(body)) for header, body in zip(headers, bodies))


def render(conf: Conf) -> str:
    return "".join(line.text + line.ending for section in conf for line in ((section.header,) if section.header else ()) + section.lines)


def unprivileged(conf: Conf) -> bool:
    """Whether the container's root is another user of the hypervisor."""
    return conf[0].values().get("unprivileged") in ("1", "on", "yes", "true") or has_id_map(conf)


def has_id_map(conf: Conf) -> bool:
    return "lxc.idmap" in conf[0].values()


def lock_of(conf: Conf) -> str:
    """What Proxmox is doing with the container (backup, snapshot, migrate, ...); empty when nothing."""
    return conf[0].values().get("lock", "")


# Devices: devN


class Device(t.NamedTuple):
    """Value of a devN key."""

    path: str
    mode: str = ""
    uid: int = 0  # in the container
    gid: int = 0
    deny_write: bool = False

    def text(self) -> str:
        options = [f"mode={self.mode}" if self.mode else "", f"uid={self.uid}" if self.uid else "", f"gid={self.gid}" if self.gid else ""]
        return ",".join([self.path, *filter(None, options)])


def parse_device(value: str) -> Device | None:
    """A devN value, its parts in any order and the path with or without its name; None when it is not understood."""
    parts = dict(part.partition("=")[::2] if "=" in part else ("path", part) for part in value.split(","))
    try:
        device = Device(
            parts.pop("path"),
            parts.pop("mode", ""),
            int(parts.pop("uid", "0")),
            int(parts.pop("gid", "0")),
            parts.pop("deny-write", "0").lower() in ("1", "on", "yes", "true"),
        )
    except (KeyError, ValueError):
        return None
    return None if parts else device


def _pending(conf: Conf) -> dict[str, str]:
    """What the next start of the container changes, by key; an empty value for what it deletes."""
    values = next((section.values() for section in conf[1:] if section.name.lower() == "pve:pending"), {})
    deleted = [word.lstrip("!") for word in re.split(r"[\s,;]+", values.pop("delete", "")) if word]
    return {**dict.fromkeys(deleted, ""), **values}


def _devices(values: t.Mapping[str, str]) -> dict[int, str]:
    numbers = ((_DEVICE_KEY.fullmatch(key), value) for key, value in values.items())
    return {int(match[1]): value for match, value in numbers if match}


def devices(conf: Conf) -> dict[int, str]:
    """The devN values that the container has after its next start, by number: those of now with what is pending."""
    values = {**_devices(conf[0].values()), **_devices(_pending(conf))}
    return {number: value for number, value in sorted(values.items()) if value}


def pending_devices(conf: Conf) -> list[str]:
    """The devN keys that wait for a start of the container."""
    return sorted(key for key in _pending(conf) if _DEVICE_KEY.fullmatch(key))


def with_devices(conf: Conf, set_devices: t.Mapping[str, str], delete_devices: t.Collection[str]) -> Conf:
    """The file with devN keys set and deleted by hand, all in its first section.

    A new key goes after the last devN key, else before the first key that Proxmox sorts after it.
    """
    lines = [line for line in conf[0].lines if line.split()[0] not in delete_devices]
    for key, value in set_devices.items():
        places = [place for place, line in enumerate(lines) if line.split()[0] == key]
        if places:
            lines[places[-1]] = Line(f"{key}: {value}", lines[places[-1]].ending)
            continue
        keys = [line.split()[0] for line in lines]
        after = [place for place, other in enumerate(keys) if _DEVICE_KEY.fullmatch(other)]
        before = [place for place, other in enumerate(keys) if other > key]
        _insert(lines, after[-1] + 1 if after else before[0] if before else None, [f"{key}: {value}"])
    return (conf[0]._replace(lines=tuple(_ended(lines, conf[0].lines))), *conf[1:])


def _ended(lines: t.Sequence[Line], before: t.Sequence[Line]) -> list[Line]:
    """Lines that end as those before did: a file without a line feed at its end gets none, whatever came or went there."""
    if not lines:
        return []
    last = before[-1].ending if before else "\n"
    return [*(Line(line.text) for line in lines[:-1]), Line(lines[-1].text, last)]


def _insert(lines: list[Line], place: int | None, texts: t.Sequence[str]) -> None:
    """Put lines in; without a place after the last line that is not blank."""
    if not texts:
        return
    if place is None:
        place = max((number + 1 for number, line in enumerate(lines) if line.text.strip()), default=0)
    lines[place:place] = [Line(text) for text in texts]


# What the hypervisor has


class Node(t.NamedTuple):
    """A device node of the hypervisor that the container gets."""

    path: str
    major: int
    minor: int
    mode: str = ""  # as in 0666; empty when not known
    always: bool = True  # false: only where the hypervisor has it
    about: str = ""  # for people


class Choice(t.NamedTuple):
    nodes: list[Node]
    problems: list[str]
    warnings: list[str]


def choose_style(style: str, *, pct_help: str | None, release: str | None) -> tuple[str, str]:
    """(dev or raw, problem). style: auto, dev or raw. pct_help: what `pct help set` prints. release: of Proxmox VE, as in 8.2.4.

    What pct says counts; the release is for where there is no pct. Neither known: auto has no answer.
    """
    known: bool | None = None
    numbers = re.match(r"(?:pve-manager/)?(\d{1,3})\.(\d{1,3})", release or "", re.ASCII)
    if pct_help:
        known = re.search(r"-dev\[n\]", pct_help) is not None
    elif numbers:
        known = (int(numbers[1]), int(numbers[2])) >= DEVICES_SINCE
    if style == "auto":
        if known is None:
            found = f"release {release!r}" if release else "neither pct nor a release"
            expected = "style: expected a Proxmox VE of which it is known whether it has devN keys"
            return (
                "",
                f"{expected}, found {found}. Say style: dev or raw in the container's entry, or name the release (proxmox_gpu_release).",
            )
        return ("dev" if known else "raw"), ""
    if style == "dev" and known is False:
        return "", "style: expected a Proxmox VE with devN keys (8.1 or later), found an older one. Use raw, or upgrade."
    return style, ""


def find_gpu(wanted: str, gpus: t.Sequence[t.Mapping[str, t.Any]]) -> t.Mapping[str, t.Any] | None:
    """By index, UUID or PCI address."""
    if re.fullmatch(r"\d{1,3}", wanted, re.ASCII):
        return next((gpu for gpu in gpus if gpu.get("index") == int(wanted)), None)
    address = cell.pci_bus_id(wanted)
    for gpu in gpus:
        same_address = isinstance(address, str) and cell.pci_bus_id(gpu.get("pci_bus_id")) == address
        if same_address or (gpu.get("uuid") and str(gpu["uuid"]).lower() == wanted.lower()):
            return gpu
    return None


def _gpu_problem(gpu: t.Mapping[str, t.Any]) -> str:
    """Why a GPU cannot be given to a container; empty when it can."""
    driver = gpu.get("kernel_driver")
    if gpu.get("health") == "passed_through" or str(driver or "").startswith("vfio"):
        return f"it is passed through to virtual machines ({driver or 'vfio-pci'}). Give it back to the driver nvidia, or choose another"
    if gpu.get("health") == "lost":
        return "it is lost. Reboot or power-cycle the hypervisor"
    if gpu.get("health") == "no_driver" or driver not in (None, "nvidia"):
        return f"its driver is {driver or 'none'}, not nvidia. Install and load the driver on the hypervisor"
    if gpu.get("minor_number") is None:
        return "it has no minor number. Load the driver on the hypervisor (nvidia-smi must list it)"
    return ""


def _name_of_major(path: str) -> str:
    """The name that a node's major has in /proc/devices."""
    if path.startswith("/dev/nvidia-uvm"):
        return "nvidia-uvm"
    return "nvidia-caps" if path.startswith("/dev/nvidia-caps/") else "nvidia"


def our_majors(majors: t.Mapping[str, int]) -> dict[str, int]:
    """Majors of the nodes that are ours, by the names of _name_of_major."""
    return {"nvidia": NVIDIA_MAJOR, **{name: majors[name] for name in ("nvidia-uvm", "nvidia-caps") if name in majors}}


def _node_problem(path: str, found: t.Mapping[str, t.Any] | None, majors: t.Mapping[str, int], minor: int | None) -> str:
    """What is wrong with a device node of the hypervisor; empty when nothing is (cases C17, C18)."""
    name = _name_of_major(path)
    number = path.rpartition("nvidia")[2]
    make = MAKE_UVM if name == "nvidia-uvm" else f"run nvidia-modprobe -c {number if number.isdigit() else 0} on the hypervisor"
    if name == "nvidia-caps":
        make = "see /proc/driver/nvidia-caps/mig-minors on the hypervisor for those that are there"
    major = our_majors(majors).get(name)
    if found is None:
        return f"{path}: expected a device node on the hypervisor, found none: {make}."
    if found.get("kind") != "character":
        return f"{path}: expected a device node on the hypervisor, found a {found.get('kind')}: remove it and {make}."
    if major is None:
        return f"{path}: expected a major number of {name} in /proc/devices, found none: {make}."
    if found.get("major") != major or minor not in (None, found.get("minor")):
        wanted = f"{major}:{found.get('minor') if minor is None else minor}"
        return f"{path}: expected device {wanted}, found {found.get('major')}:{found.get('minor')}: remove the node and {make}."
    return ""


def inventory_problems(inventory: t.Any) -> list[str]:
    """Whether a dictionary can be read as what gpu_info returns of a hypervisor."""
    kinds = {"gpus": list, "device_nodes": list, "device_majors": dict}
    wrong = [name for name, kind in kinds.items() if not isinstance(inventory, dict) or not isinstance(inventory.get(name), kind)]
    if wrong:
        return [f"inventory: expected the result of gpu_info on the hypervisor, found no usable {', '.join(wrong)}."]
    good = (
        all(isinstance(gpu, dict) for gpu in inventory["gpus"])
        and all(isinstance(node, dict) and isinstance(node.get("path"), str) for node in inventory["device_nodes"])
        and all(isinstance(major, int) for major in inventory["device_majors"].values())
    )
    if not good:
        return ["inventory: expected gpus and device_nodes as gpu_info gives them, and whole numbers in device_majors."]
    named = [(f"GPU {gpu.get('index')}", gpu, ("index", "minor_number")) for gpu in inventory["gpus"]]
    named += [(node["path"], node, ("major", "minor")) for node in inventory["device_nodes"]]
    problems = [
        f"inventory: expected a whole number as {key} of {name}, found {entry[key]!r}. Give what gpu_info returned."
        for name, entry, keys in named
        for key in keys
        if not isinstance(entry.get(key), (int, type(None)))
    ]
    return problems + [
        f"inventory: expected an octal mode such as '0666' of {node['path']}, found {node['mode']!r}. Give what gpu_info returned."
        for node in inventory["device_nodes"]
        if node.get("mode") and not re.fullmatch(r"[0-7]{3,4}", str(node["mode"]), re.ASCII)
    ]


def other_majors(proc_devices: str) -> set[int]:
    """Majors of character devices that drivers other than NVIDIA's have, from /proc/devices."""
    characters = proc_devices.partition("Block devices:")[0]
    return {int(major) for major, name in re.findall(r"^[ \t]*(\d{1,4}) (\S+)", characters, re.MULTILINE) if not name.startswith("nvidia")}


def choose_nodes(
    inventory: t.Mapping[str, t.Any], gpus: t.Sequence[str], *, modeset: bool = True, mig_caps: t.Sequence[int] | None = None
) -> Choice:
    """The device nodes that a container needs for these GPUs.

    inventory: the hypervisor's gpu_info result, of which gpus, device_nodes and device_majors are read. gpus: by index, UUID or PCI
    address. modeset: with /dev/nvidia-modeset where it is. mig_caps: numbers of /dev/nvidia-caps/nvidia-cap<number>.
    """
    listed: list[t.Mapping[str, t.Any]] = list(inventory.get("gpus") or [])
    there = {node["path"]: node for node in inventory.get("device_nodes") or []}
    majors: t.Mapping[str, int] = inventory.get("device_majors") or {}
    problems: list[str] = []
    warnings: list[str] = []
    chosen: dict[int, t.Mapping[str, t.Any]] = {}
    for wanted in dict.fromkeys(text.strip() for text in gpus):
        gpu = find_gpu(wanted, listed)
        if gpu is None:
            has = ", ".join(f"{other.get('index')} ({other.get('pci_bus_id')})" for other in listed) or "none"
            hint = " For a MIG device name its GPU, and give mig_caps." if wanted.upper().startswith("MIG-") else ""
            problems.append(
                f"gpus: expected an index, UUID or PCI address of a GPU of the hypervisor, which has {has}; found {wanted}.{hint}"
            )
            continue
        reason = _gpu_problem(gpu)
        if reason:
            problems.append(f"gpus: GPU {wanted} cannot be given to a container: {reason}.")
            continue
        chosen[gpu["minor_number"]] = gpu
        if gpu.get("health") == "needs_reset":
            warnings.append(f"GPU {wanted} needs a reset before anything can use it")
        if gpu.get("mig_enabled") and mig_caps is None:
            warnings.append(f"GPU {wanted} has MIG on: without mig_caps the container sees none of its MIG devices")
    # path -> (minor where it is known, whether it must be there, what it is)
    paths: dict[str, tuple[int | None, bool, str]] = {}
    for minor, gpu in chosen.items():
        about = " ".join(str(word) for word in ("GPU", gpu.get("index"), gpu.get("name"), gpu.get("pci_bus_id")) if word is not None)
        paths[f"/dev/nvidia{minor}"] = (minor, True, about)
    paths["/dev/nvidiactl"] = (255, True, "control")
    paths["/dev/nvidia-uvm"] = (0, True, "unified memory, which CUDA needs")
    paths["/dev/nvidia-uvm-tools"] = (1, False, "unified memory, for profilers")
    if modeset:
        paths["/dev/nvidia-modeset"] = (254, False, "mode setting")
    for number in mig_caps or ():
        paths[f"/dev/nvidia-caps/nvidia-cap{number}"] = (None, True, "MIG capability")
    nodes = []
    for path, (known, always, about) in paths.items():
        if not always and path not in there:
            continue
        problem = _node_problem(path, there.get(path), majors, known)
        if problem:
            problems.append(problem)
        else:
            found = there[path]
            nodes.append(Node(path, found["major"], found["minor"], str(found.get("mode") or ""), always, about))
    return Choice(nodes, problems, warnings)


# The decision


class Host(t.NamedTuple):
    """What is known of the hypervisor's device numbers now."""

    majors: t.Mapping[str, int]  # device_majors of gpu_info
    other_majors: t.Collection[int] = ()  # majors that other drivers have
    # majors of the devices that the file binds and that are not ours; empty for one that is not there
    bound_majors: t.Mapping[str, t.Collection[int]] = {}


class Plan(t.NamedTuple):
    """What to change. The devN keys are for `pct set` (or with_devices); conf has all other changes."""

    set_devices: dict[str, str]
    delete_devices: list[str]
    conf: Conf
    problems: list[str]
    warnings: list[str]

    @property
    def result(self) -> Conf:
        """The file with everything changed."""
        return with_devices(self.conf, self.set_devices, self.delete_devices)


def plan(
    conf: Conf,
    nodes: t.Sequence[Node],
    host: Host,
    *,
    style: str,
    mode: str = MODE,
    uid: int = 0,
    gid: int = 0,
    keep_caps: bool = True,
) -> Plan:
    """What to change so that the container has exactly these nodes of NVIDIA's, in the first section alone.

    No nodes: all that is ours goes. style: dev or raw. mode, uid, gid: of devN, as the container sees them. keep_caps: MIG
    capabilities that the file gives stay, with their major put right; otherwise they are as in nodes.
    """
    in_devices = nodes if style == "dev" else ()
    in_lines = nodes if style == "raw" else ()
    # A MIG capability is a permission: it keeps the mode by which NVIDIA gives it.
    modes = {node.path: node.mode if _is_caps(node.path) and node.mode else mode for node in in_devices}
    set_devices, delete_devices, problems = _plan_devices(conf, [Device(path, own, uid, gid) for path, own in modes.items()], keep_caps)
    lines, warnings = _plan_lines(conf, in_lines, host, keep_caps)
    # A stale rule that is put right may cover another one, which is then one too many.
    for _round in range(3):
        before, lines = lines, _plan_lines((conf[0]._replace(lines=tuple(lines)), *conf[1:]), in_lines, host, keep_caps)[0]
        if lines == before:
            break
    closed = [f"{node.path} ({node.mode})" for node in in_lines if node.mode and not _open_to_others(node)]
    if closed and unprivileged(conf):
        text = f"{', '.join(closed)}: others must not open it, which is what an unprivileged container is to the hypervisor"
        if has_id_map(conf):
            warnings.append(f"{text}, unless its own lxc.idmap makes it the owner")
        else:
            problems.append(f"{text}. Use the style dev, or let the driver make its nodes with NVreg_DeviceFileMode=0666.")
    return Plan(set_devices, delete_devices, (conf[0]._replace(lines=tuple(lines)), *conf[1:]), problems, warnings)


def _open_to_others(node: Node) -> bool:
    needed = 0o004 if _is_caps(node.path) else 0o006  # a capability is only opened for reading
    return int(node.mode, 8) & needed == needed


def _is_caps(path: str) -> bool:
    match = OUR_NODES.fullmatch(path)
    return bool(match and match["caps"])


def _plan_devices(conf: Conf, wanted: t.Sequence[Device], keep_caps: bool) -> tuple[dict[str, str], list[str], list[str]]:
    """(devN keys to set, to delete, problems). Foreign numbers stay; new ones continue after them (case C21)."""
    missing = {device.path: device for device in wanted}
    seen: set[str] = set()
    foreign: list[int] = []
    set_devices: dict[str, str] = {}
    delete_devices: list[str] = []
    for number, value in devices(conf).items():
        device = parse_device(value)
        if device is None or not OUR_NODES.fullmatch(device.path):
            foreign.append(number)
        elif device.path in missing:
            if missing[device.path] != device:
                set_devices[f"dev{number}"] = missing[device.path].text()
            del missing[device.path]
            seen.add(device.path)
        elif keep_caps and _is_caps(device.path) and device.path not in seen:
            seen.add(device.path)
        else:
            delete_devices.append(f"dev{number}")
    used = {*_devices(conf[0].values()), *_devices(_pending(conf))}
    first = max(foreign, default=-1) + 1
    free = [number for number in (*range(first, DEVICES_MAX), *range(first)) if number not in used]
    problems = []
    if len(free) < len(missing):
        problems.append(f"expected {len(missing)} free numbers for devN (0 to {DEVICES_MAX - 1}), found {len(free)}. Remove some by hand.")
    set_devices.update((f"dev{number}", device.text()) for number, device in zip(free, missing.values()))
    return set_devices, delete_devices, problems


class _Rule(t.NamedTuple):
    """A line that allows character devices."""

    major: int
    minor: str  # a number or *
    access: str


def _rule(line: Line) -> _Rule | None:
    """Also of cgroup v1, and with a major in hexadecimal as `stat -c %t` prints it; both allow nothing until _rule_text puts them right."""
    match = _RULE.fullmatch(line.text)
    if not match:
        return None
    return _Rule(int(match["major"], 10 if match["major"].isdigit() else 16), match["minor"], match["access"])


def _rule_text(text: str, major: int) -> str:
    """The line of a rule with another major, and as cgroup v2; all else stays."""
    match = t.cast("re.Match[str]", _RULE.fullmatch(text))
    return re.sub(r"^lxc\.cgroup\.", "lxc.cgroup2.", f"{text[: match.start('major')]}{major}{text[match.end('major') :]}")


def _new_rule(major: int, minor: str) -> str:
    # rw is what Proxmox allows for a devN; making nodes (m) needs nobody.
    return f"lxc.cgroup2.devices.allow: c {major}:{minor} rw"


def _new_mount(node: Node) -> str:
    # Without "optional" a container does not start when the node is missing, as with devN. With it, it would start with an empty file in
    # the node's place: nvidia-smi works and CUDA does not (case C17).
    optional = "" if node.always else ",optional"
    return f"lxc.mount.entry: {node.path} {node.path[1:]} none bind{optional},create=file"


def mount_source(line: Line) -> str:
    """What a line binds into the container; empty when it binds nothing."""
    key, value = line.split()
    return value.split()[0] if key == "lxc.mount.entry" and value.split() else ""


def _binds(line: Line, path: str) -> bool:
    """Whether a line binds this node, to the same place in the container."""
    words = line.split()[1].split()
    options = words[3].split(",") if len(words) > 3 else []
    return len(words) > 3 and words[1].lstrip("/") == path.lstrip("/") and ("bind" in options or "rbind" in options)


def foreign_devices(conf: Conf) -> list[str]:
    """Nodes and directories of /dev that the first section binds and that are not ours."""
    sources = (mount_source(line) for line in conf[0].lines)
    return list(dict.fromkeys(source for source in sources if source.startswith("/dev/") and not OUR_NODES.fullmatch(source)))


def _dynamic(major: int) -> bool:
    return any(major in numbers for numbers in DYNAMIC_MAJORS)


def _whose_are_stale(conf: Conf, host: Host) -> tuple[set[int], list[str]]:
    """(majors in rules that were NVIDIA's before the hypervisor was booted anew, warnings when that cannot be known).

    A rule says a number, not a name. It is NVIDIA's when the number is one that the kernel gives out at run time, no driver has it now, and
    the section binds a node of NVIDIA's with such a number, but nothing else of which the rule could be (case C18).
    """
    rules = [rule for rule in map(_rule, conf[0].lines) if rule]
    taken = {*host.majors.values(), *host.other_majors}
    orphans = {rule.major for rule in rules if _dynamic(rule.major) and rule.major not in taken}
    ours = [source for source in map(mount_source, conf[0].lines) if OUR_NODES.fullmatch(source)]
    if not orphans or not any(_name_of_major(source) != "nvidia" or _is_caps(source) for source in ours):
        return set(), []
    allowed = {rule.major for rule in rules}
    claims = [
        path
        for path in foreign_devices(conf)
        if not host.bound_majors.get(path) or any(_dynamic(major) and major not in allowed for major in host.bound_majors[path])
    ]
    if claims:
        numbers = ", ".join(str(major) for major in sorted(orphans))
        return set(), [f"no driver has major {numbers} now; it may be that of {', '.join(claims)}, so the lines that allow it are left"]
    return orphans, []


def _plan_lines(conf: Conf, nodes: t.Sequence[Node], host: Host, keep_caps: bool) -> tuple[list[Line], list[str]]:
    """The lines of the first section, with the raw lines that bind and allow exactly these nodes; warnings."""
    stale, warnings = _whose_are_stale(conf, host)
    edit = _Edit(conf[0].lines)
    kept = _plan_mounts(edit, nodes, keep_caps)
    majors = our_majors(host.majors)
    wanted = [(node.major, str(node.minor)) for node in nodes]
    unresolved = bool(kept) and "nvidia-caps" not in majors
    if kept and not unresolved:
        wanted += [(majors["nvidia-caps"], re.sub(r"\D", "", path.rpartition("/nvidia-cap")[2]) or "*") for path in kept]
    confined = unprivileged(conf)

    def allows(rule: _Rule, number: tuple[int, str]) -> bool:
        # In a privileged container root can make nodes itself: a rule for all minors would give it every GPU.
        wide = rule.minor == "*" and (confined or number[1] == "*" or rule.major == majors.get("nvidia-uvm"))
        return rule.major == number[0] and (wide or rule.minor == number[1]) and {"r", "w"} <= set(rule.access)

    spare: list[tuple[int, _Rule]] = []
    for place, line in enumerate(conf[0].lines):
        rule = _rule(line)
        if rule is None or rule.major not in {*majors.values(), *stale}:
            continue
        met = [number for number in wanted if allows(rule, number)]
        wanted = [number for number in wanted if number not in met]
        if met:
            edit.replace(place, _rule_text(line.text, rule.major))
        else:
            spare.append((place, rule))
    for place, rule in spare:
        # A number that changed is changed in its own line. 195 never changes, so only its minor can be wrong.
        fixed = rule.major == NVIDIA_MAJOR
        target = next((number for number in wanted if (number[0] == NVIDIA_MAJOR) == fixed), None)
        if target is None:
            # With nodes in raw lines there is always something that such a number may have been for, also what this run adds.
            if rule.major in stale and (nodes or unresolved):
                warnings.append(f"no driver has major {rule.major} now, which a line allows; remove it by hand if it is of no use")
            else:
                edit.remove(place)
            continue
        moved = rule._replace(major=target[0])
        met = [number for number in wanted if allows(moved, number)] or [target]
        edit.replace(place, _rule_text(conf[0].lines[place].text, target[0]) if allows(moved, met[0]) else _new_rule(*target))
        wanted = [number for number in wanted if number not in met]
    edit.add_first([_new_rule(*number) for number in dict.fromkeys(wanted)])
    return edit.lines(), warnings


def _plan_mounts(edit: _Edit, nodes: t.Sequence[Node], keep_caps: bool) -> list[str]:
    """Bind these nodes and no other of ours; the MIG capabilities that stay."""
    missing = {node.path: node for node in nodes}
    kept: list[str] = []
    spare = []
    for place, line in enumerate(edit.before):
        source = mount_source(line)
        if not OUR_NODES.fullmatch(source):
            continue
        if source in missing and _binds(line, source):
            del missing[source]
        elif keep_caps and _is_caps(source) and source not in kept and source not in missing:
            kept.append(source)
        else:
            spare.append(place)
    new = [_new_mount(node) for node in missing.values()]
    for place, text in zip(spare, new):
        edit.replace(place, text)
    for place in spare[len(new) :]:
        edit.remove(place)
    edit.add(new[len(spare) :])
    return kept


class _Edit:
    """Changes of single lines; the others stay where and as they are."""

    def __init__(self, before: t.Sequence[Line]) -> None:
        self.before = before
        self._after: list[Line | None] = list(before)
        self._new: list[str] = []

    def replace(self, place: int, text: str) -> None:
        self._after[place] = Line(text, self.before[place].ending)

    def remove(self, place: int) -> None:
        self._after[place] = None

    def add(self, texts: t.Sequence[str]) -> None:
        self._new += texts

    def add_first(self, texts: t.Sequence[str]) -> None:
        self._new = [*texts, *self._new]

    def lines(self) -> list[Line]:
        """New lines come after the last line that is not blank, so before the blank line that Proxmox puts before a snapshot."""
        lines = [line for line in self._after if line is not None]
        _insert(lines, None, self._new)
        return _ended(lines, self.before)


# What the container gets


def given_nodes(conf: Conf) -> list[str]:
    """The nodes of ours that the file gives to the container at its next start."""
    parsed = (parse_device(value) for value in devices(conf).values())
    paths = [device.path for device in parsed if device] + [mount_source(line) for line in conf[0].lines]
    return list(dict.fromkeys(path for path in paths if OUR_NODES.fullmatch(path)))


def describe(conf: Conf, nodes: t.Sequence[Node]) -> list[str]:
    """One line for people for each node of ours that the file gives."""
    about = {node.path: node.about for node in nodes}
    ways: dict[str, str] = {}
    for number, value in devices(conf).items():
        device = parse_device(value)
        if device:
            owner = f", owner {device.uid}:{device.gid}" if device.uid or device.gid else ""
            ways.setdefault(device.path, f"dev{number}, mode {device.mode or 'of Proxmox'}{owner}")
    return [f"{path} ({ways.get(path, 'bound')})" + (f": {about[path]}" if about.get(path) else "") for path in given_nodes(conf)]


def to_lxc_keys(conf: Conf, numbers: t.Mapping[str, tuple[int, int]], *, root: str = "", cgroup: int = 2) -> list[str]:
    """The lines `key = value` by which plain LXC does what the first section asks for: its devN keys and its raw lines.

    numbers: (major, minor) of the node of each devN path. root: where the nodes lie, put before what is bound from /dev. cgroup: 1 for a
    host whose controller of devices is that of cgroup v1. mode, uid and gid of a devN are not LXC's: they are those of the bound node.
    A devN without numbers is a KeyError.
    """
    keys: list[tuple[str, str]] = []
    for value in _devices(conf[0].values()).values():
        device = parse_device(value)
        if device is None:
            continue
        major, minor = numbers[device.path]
        keys.append(("lxc.cgroup2.devices.allow", f"c {major}:{minor} {'r' if device.deny_write else 'rw'}"))
        keys.append(("lxc.mount.entry", f"{device.path} {device.path[1:]} none bind,create=file"))
    keys += [(key, value) for key, value in (line.split() for line in conf[0].lines) if key.startswith("lxc.")]
    lines = []
    for key, value in keys:
        name = re.sub(r"^lxc\.cgroup2?\.devices\.", f"lxc.cgroup{'2' if cgroup == 2 else ''}.devices.", key)
        source = root if key == "lxc.mount.entry" and value.startswith("/dev/") else ""
        lines.append(f"{name} = {source}{value}")
    return lines
