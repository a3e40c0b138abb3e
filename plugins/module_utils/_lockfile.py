# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Locks of Python environments: what does a lock say for one Python on one machine, and is that what is installed."""

from __future__ import annotations

import hashlib
import re
import typing as t

# Markers whose values are versions (PEP 508); every other marker is compared as text.
VERSION_MARKERS = ("python_version", "python_full_version", "implementation_version")

_TOKEN = re.compile(r"\s*(?:(?P<paren>[()])|(?P<text>'[^']*'|\"[^\"]*\")|(?P<op>===|==|!=|<=|>=|~=|<|>)|(?P<word>[A-Za-z_][A-Za-z0-9_.]*))")
_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==(?P<version>[^\s;\\]+)\s*(?:;\s*(?P<marker>.*?))?\s*\\?$")


class LockError(ValueError):
    """The text is not a lock that this collection can read."""


class Requirement(t.NamedTuple):
    """One line of a lock."""

    name: str
    version: str
    marker: str


def normalize(name: str) -> str:
    """A project name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def parse(text: str) -> list[Requirement]:
    """The requirements of a lock: each pins one version and has at least one hash."""
    requirements: list[Requirement] = []
    hashes: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line[0].isspace():
            if not hashes or not line.strip().startswith("--hash=sha256:"):
                raise LockError(f"line {number} of the lock is neither a requirement nor a sha256 hash: {line.strip()[:80]}")
            hashes[-1] += 1
            continue
        match = _REQUIREMENT.match(line)
        if match is None:
            raise LockError(f"line {number} of the lock does not pin one version with name==version: {line.strip()[:80]}")
        requirements.append(Requirement(normalize(match["name"]), match["version"], match["marker"] or ""))
        hashes.append(0)
    bare = [requirement.name for requirement, count in zip(requirements, hashes) if count == 0]
    if bare:
        raise LockError(f"no hash in the lock for {', '.join(bare)}")
    return requirements


def _version(text: str) -> tuple[int, ...]:
    """The numbers of a version, without trailing zeros: markers ask for no more than that."""
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"[a-z+]", text, maxsplit=1)[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _compare(left: t.Any, op: str, right: t.Any) -> bool:
    if op in ("==", "==="):
        return bool(left == right)
    if op == "!=":
        return bool(left != right)
    if op == "<":
        return bool(left < right)
    if op == "<=":
        return bool(left <= right)
    if op == ">":
        return bool(left > right)
    if op == ">=":
        return bool(left >= right)
    raise LockError(f"marker operator {op} is not supported")


class _Marker:
    """Recursive descent over: or -> and -> comparison | ( or )."""

    def __init__(self, text: str, environment: t.Mapping[str, str]) -> None:
        self.text = text
        self.environment = environment
        self.tokens: list[tuple[str, str]] = []
        position = 0
        stripped = text.rstrip()
        while position < len(stripped):
            match = _TOKEN.match(stripped, position)
            if match is None:
                raise LockError(f"marker cannot be read: {text}")
            self.tokens.append((match.lastgroup or "", match.group(match.lastgroup or 0)))
            position = match.end()
        self.tokens.append(("end", ""))

    def evaluate(self) -> bool:
        value = self._either()
        if self.tokens[0][0] != "end":
            raise LockError(f"marker cannot be read: {self.text}")
        return value

    def _either(self) -> bool:
        value = self._both()
        while self.tokens[0] == ("word", "or"):
            self.tokens.pop(0)
            value = self._both() or value
        return value

    def _both(self) -> bool:
        value = self._one()
        while self.tokens[0] == ("word", "and"):
            self.tokens.pop(0)
            value = self._one() and value
        return value

    def _one(self) -> bool:
        if self.tokens[0] == ("paren", "("):
            self.tokens.pop(0)
            value = self._either()
            if self.tokens.pop(0) != ("paren", ")"):
                raise LockError(f"marker cannot be read: {self.text}")
            return value
        left_kind, left = self.tokens.pop(0)
        op = self._operator()
        right_kind, right = self.tokens.pop(0)
        names = [token for kind, token in ((left_kind, left), (right_kind, right)) if kind == "word"]
        if len(names) != 1 or "text" not in (left_kind, right_kind):
            raise LockError(f"marker cannot be read: {self.text}")
        name = names[0]
        if name not in self.environment:
            raise LockError(f"marker {name} is not known: {self.text}")
        values = [self.environment[token] if kind == "word" else token[1:-1] for kind, token in ((left_kind, left), (right_kind, right))]
        if op in ("in", "not in"):
            return (values[0] in values[1]) == (op == "in")
        if name in VERSION_MARKERS:
            return _compare(_version(values[0]), op, _version(values[1]))
        if op not in ("==", "!=", "==="):
            raise LockError(f"marker {name} is text and cannot be compared with {op}: {self.text}")
        return _compare(values[0], op, values[1])

    def _operator(self) -> str:
        kind, token = self.tokens.pop(0)
        if kind == "op" or (kind, token) == ("word", "in"):
            return token
        if (kind, token) == ("word", "not") and self.tokens[0] == ("word", "in"):
            self.tokens.pop(0)
            return "not in"
        raise LockError(f"marker cannot be read: {self.text}")


def applies(marker: str, environment: t.Mapping[str, str]) -> bool:
    """Does a requirement with this marker belong on a machine with this marker environment (PEP 508)."""
    return not marker or _Marker(marker, environment).evaluate()


def expected(requirements: t.Iterable[Requirement], environment: t.Mapping[str, str]) -> dict[str, str]:
    """Versions by project name that the lock wants in this marker environment."""
    wanted: dict[str, str] = {}
    for requirement in requirements:
        if not applies(requirement.marker, environment):
            continue
        if wanted.setdefault(requirement.name, requirement.version) != requirement.version:
            raise LockError(f"the lock wants {requirement.name} in two versions: {wanted[requirement.name]} and {requirement.version}")
    return wanted


def differences(wanted: t.Mapping[str, str], installed: t.Mapping[str, str]) -> list[str]:
    """How an environment differs from its lock, one sentence each, by name. Versions must be the same text."""
    found = {normalize(name): version for name, version in installed.items()}
    problems = []
    for name in sorted(set(wanted) | set(found)):
        if name not in found:
            problems.append(f"{name} {wanted[name]} is not installed")
        elif name not in wanted:
            problems.append(f"{name} {found[name]} is installed and is not in the lock")
        elif found[name] != wanted[name]:
            problems.append(f"{name} {found[name]} is installed, the lock wants {wanted[name]}")
    return problems
