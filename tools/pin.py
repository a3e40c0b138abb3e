# Copyright: (c) 2026, Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pin the model of a model group: ask the Hub for its repository's commit and write it into the group's file.

  python tools/pin.py [--check] [--group-vars DIR] MODEL       MODEL: a model group, or <org>/<name>

Two values change, model.revision and catalogue.revision_source; every other byte of the file stays. HF_ENDPOINT names a mirror, HF_TOKEN
is for a gated repository. Ends with 0 when the files are as they should be, 1 when the Hub gave no commit, 2 when the request or a file is
wrong, 3 when --check found something to write.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import os
import pathlib
import re
import stat
import sys
import tempfile
import typing as t
import urllib.parse

import catalogue
import yaml

HUB = "https://huggingface.co"
TIMEOUT_S = 20


class PinError(Exception):
    """What went wrong, in words for the operator. status: how the program ends."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


class Commit(t.NamedTuple):
    """What the Hub says of a repository's main branch now. name: as the Hub spells it, another one where it was renamed."""

    name: str
    sha: str
    url: str


# The file: where the values stand, and the text with other ones


def _child(mapping: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    pairs = mapping.value if isinstance(mapping, yaml.MappingNode) else []
    return next(((name, value) for name, value in pairs if name.value == key), None)


def _last_line(node: yaml.Node) -> int:
    """The last line of a node; the end of a block mapping lies behind the comments that follow it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return _last_line(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _last_line(node.value[-1])
    block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    return int(node.end_mark.line) - (1 if block else 0)


def _block(found: tuple[yaml.Node, yaml.Node] | None, where: str) -> yaml.MappingNode:
    value = found[1] if found else None
    if not isinstance(value, yaml.MappingNode) or value.flow_style or not value.value:
        raise PinError(f"{where}: expected a mapping with one key a line, found {'something else' if found else 'nothing'}; write it so")
    return value


def _scalar(value: str) -> str:
    """Text as YAML that is read as this text again; 40 digits alone would be a number."""
    return value if yaml.safe_load(value) == value else f'"{value}"'


class _Text:
    """A file's text that is changed from its end to its beginning, so that places that were found stay right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.changes: list[tuple[int, int, str]] = []

    def set(self, node: yaml.Node, value: str) -> None:
        """Put a value in the place of another, or of nothing behind a colon."""
        start, end = node.start_mark.index, node.end_mark.index
        if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):  # a folded one: up to the end of its last line, not over it
            end = start + len(self.text[start:end].rstrip())
        self.changes.append((start, end, (" " if start == end else "") + _scalar(value)))

    def insert(self, line: int, lines: t.Sequence[str]) -> None:
        """Put lines behind a line."""
        ends = [match.end() for match in re.finditer(r"\n", self.text)]
        if line < len(ends):
            at, new = ends[line], "".join(text + self.newline for text in lines)
        else:  # the file ends without a line break
            at, new = len(self.text), "".join(self.newline + text for text in lines)
        self.changes.append((at, at, new))

    def changed(self) -> str:
        """The text with everything that was asked for."""
        text = self.text
        for start, end, new in sorted(self.changes, key=lambda change: change[0], reverse=True):
            text = text[:start] + new + text[end:]
        return text


def _instance(text: str, group: str, where: str) -> tuple[yaml.MappingNode, yaml.MappingNode]:
    """The mappings of a group's instance and of its model."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise PinError(f"{where}: expected YAML, found {' '.join(str(error).split())}; correct it") from None
    instance = _block(_child(root, f"sglang_instance_{group}"), f"{where}: sglang_instance_{group}")
    return instance, _block(_child(instance, "model"), f"{where}: sglang_instance_{group}.model")


def model_name(text: str, group: str, where: str) -> str:
    """<org>/<name> of a group's model, which must be one that comes from the Hub."""
    _all, model = _instance(text, group, where)
    for key, wish in (("path", "a directory on the host"), ("build", "a script")):
        other = _child(model, key)
        if other and not other[1].tag.endswith(":null"):
            raise PinError(f"{where}: expected a model from the Hub, found {key} ({wish}); put `revision: null` in the place of {key}")
    name = _child(model, "name")
    if name is None or not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", str(name[1].value)):
        raise PinError(f"{where}: model.name: expected <org>/<name>, found {name[1].value if name else 'nothing'!r}; correct it")
    return str(name[1].value)


def pinned(text: str, group: str, where: str, commit: Commit, day: str) -> str:
    """The text with the commit and its source; the same text when both are there already."""
    instance, model = _instance(text, group, where)
    edit = _Text(text)
    revision, about = _child(model, "revision"), _child(instance, "catalogue")
    source = _child(about[1], "revision_source") if about else None
    source_there = source is not None and not source[1].tag.endswith(":null")
    if revision and revision[1].value == commit.sha and source_there:
        return text
    told = f"{commit.url} on {day}"
    if revision is None:
        name, value = next(pair for pair in model.value if pair[0].value == "name")
        edit.insert(_last_line(value), [f"{' ' * name.start_mark.column}revision: {_scalar(commit.sha)}"])
    else:
        edit.set(revision[1], commit.sha)
    if source:
        edit.set(source[1], told)
    elif about:
        inner = _block(about, f"{where}: sglang_instance_{group}.catalogue")
        edit.insert(_last_line(inner), [f"{' ' * inner.start_mark.column}revision_source: {_scalar(told)}"])
    else:
        indent = " " * int(instance.value[0][0].start_mark.column)
        edit.insert(_last_line(model), [f"{indent}catalogue:", f"{indent}  revision_source: {_scalar(told)}"])
    return edit.changed()


def write(path: pathlib.Path, text: str) -> None:
    """Replace a file at once, with its mode; a link stays one."""
    path = path.resolve()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        pathlib.Path(name).chmod(stat.S_IMODE(path.stat().st_mode))
        pathlib.Path(name).replace(path)
    except BaseException:
        pathlib.Path(name).unlink()
        raise


# The Hub


def endpoint(environment: t.Mapping[str, str]) -> str:
    """The address of the Hub, or of the mirror that HF_ENDPOINT names; it is written into files, so it holds no password."""
    url = (environment.get("HF_ENDPOINT") or HUB).rstrip("/")
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password or parts.query:
        raise PinError("HF_ENDPOINT: expected http(s)://<host> without name, password and query, found something else; correct it")
    return url


def ask(name: str, url: str, token: str | None) -> Commit:
    """The commit that a repository's main branch is at."""
    import httpx  # noqa: PLC0415  # with the next one half a second, which a wrong request need not wait for
    from huggingface_hub import HfApi, errors  # noqa: PLC0415

    address = f"{url}/api/models/{name}"
    try:
        info = HfApi(endpoint=url, token=token or False).model_info(name, timeout=TIMEOUT_S)
    except errors.GatedRepoError:
        raise PinError(
            f"{name}: the repository is gated; accept its terms on {url}/{name} and run again with the token of that account in HF_TOKEN", 1
        ) from None
    except errors.RepositoryNotFoundError as error:
        status = error.response.status_code if error.response is not None else 404
        cure = "correct model.name" if token else "correct model.name, or set HF_TOKEN when it is private or gated"
        raise PinError(f"{name}: expected a repository, {address} answered {status}; {cure}", 1) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        cure = "HF_TOKEN is wrong, or its account has no access" if status in (401, 403) else "try again later"
        raise PinError(f"{name}: expected a repository, {address} answered {status}; {cure}", 1) from None
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise PinError(f"{name}: no answer from {address} ({type(error).__name__}: {' '.join(str(error).split())[:200]})", 1) from None
    if not re.fullmatch(r"[0-9a-f]{40}", info.sha or ""):
        raise PinError(f"{name}: expected a commit (40 hex digits), {address} said {info.sha!r}", 1)
    return Commit(info.id, str(info.sha), address)


# The request


def groups_of(request: str, files: t.Mapping[str, pathlib.Path]) -> list[str]:
    """The groups that a request means: one by its name, or all that have a model."""
    if request in files:
        return [request]
    if "/" in request:
        line = re.compile(rf"^\s+name:\s*[\"']?{re.escape(request)}[\"']?\s*(#.*)?$", re.MULTILINE)
        found = [group for group, path in files.items() if line.search(path.read_text(encoding="utf-8"))]
        if found:
            return found
        raise PinError(
            f"expected the model of a model group, found {request!r}, which none has; write a group first (README, A model group)"
        )
    near = difflib.get_close_matches(request, files, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(files))}"
    raise PinError(f"expected a model group or <org>/<name>, found {request!r}; {hint}")


def read(path: pathlib.Path) -> str:
    """A file's text with its own line breaks."""
    with path.open(encoding="utf-8", newline="") as file:
        return file.read()


def run(request: str, directory: pathlib.Path, check: bool, environment: t.Mapping[str, str], day: str) -> int:
    """Pin what was asked for and print the difference."""
    if not directory.is_dir():
        raise PinError(f"--group-vars: expected a directory, found none at {directory}")
    files = {group: pathlib.Path(os.path.relpath(path)) for group, path in catalogue.files(directory).items()}
    groups = groups_of(request, files)
    names = {group: model_name(read(files[group]), group, str(files[group])) for group in groups}
    url, commits = endpoint(environment), {}
    for name in sorted(set(names.values())):
        commits[name] = ask(name, url, environment.get("HF_TOKEN"))
        if commits[name].name.lower() != name.lower():
            print(f"{name} is called {commits[name].name} now; the old name still works", file=sys.stderr)
    differs = False
    for group in groups:
        path, commit = files[group], commits[names[group]]
        before = read(path)
        after = pinned(before, group, str(path), commit, day)
        differs |= after != before
        sys.stdout.writelines(difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), f"{path}", f"{path}"))
        if after == before:
            print(f"{group}: {names[group]} is pinned to {commit.sha}, which is the newest commit")
        elif not check:
            write(path, after)
    return 3 if check and differs else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Pin the model of a model group to its repository's commit of now.")
    parser.add_argument("model", help="a model group, or <org>/<name>")
    parser.add_argument("--check", action="store_true", help="show what would be written, write nothing")
    parser.add_argument("--group-vars", type=pathlib.Path, default=catalogue.GROUP_VARS, metavar="DIR", help="where the groups are")
    options = parser.parse_args()
    try:
        day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        return run(options.model, options.group_vars, options.check, os.environ, day)
    except PinError as error:
        print(f"pin: {error}", file=sys.stderr)
        return error.status


if __name__ == "__main__":
    sys.exit(main())
