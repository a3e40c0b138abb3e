# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where a plan's model comes from, on the controller: an entry of the catalogue, a directory, or a repository of the Hub."""

from __future__ import annotations

import dataclasses
import difflib
import http.client
import json
import re
import stat
import time
import typing as t
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote, urlsplit

import yaml
from ansible_collections.firstlight.sglang.plugins.module_utils._instances import PREFIX, is_loopback

HUB = "https://huggingface.co"
LARGEST_BYTES = 32 * 1024 * 1024
TIMEOUT_S = 10.0
_REPOSITORY = re.compile(r"(?P<name>[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95})(?:@(?P<revision>[\w.][\w./-]{0,127}))?", re.ASCII)


class ModelError(Exception):
    """Why there is no model, in words for the operator."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A model as it was found.

    source: catalogue | directory | hub. config, quant_config: config.json and hf_quant_config.json. headers: the start of each
    safetensors file (its first 8 bytes and its header), index: model.safetensors.index.json; of a directory. entry: the instance of the
    catalogue that was asked for by its name, whose flags count.
    """

    name: str
    source: str
    config: dict[str, t.Any]
    quant_config: dict[str, t.Any] | None = None
    headers: dict[str, bytes] = dataclasses.field(default_factory=dict)
    index: dict[str, t.Any] | None = None
    entry: dict[str, t.Any] | None = None


def home(text: str) -> Path:
    """A path with ~ resolved; as it is written where nobody has that name."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def parse_object(what: str, data: bytes) -> dict[str, t.Any]:
    """A JSON object, or why it is none."""
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{what}: expected JSON, found something else ({str(error)[:120]}); get the file again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{what}: expected a JSON object, found {type(value).__name__}; get the file again")
    return value


# --- the catalogue ---


def catalogue(group_vars: Path) -> dict[str, dict[str, t.Any]]:
    """The instances of group_vars, by their group. What Ansible would template stays as it is written."""
    entries = {}
    for path in sorted(group_vars.glob("*/*.yml")):
        text = path.read_text(encoding="utf-8")
        if PREFIX not in text:
            continue
        try:
            variables = load_yaml(text)
        except (ValueError, RecursionError, yaml.YAMLError) as error:
            raise ModelError(f"{path}: expected YAML, found: {' '.join(str(error).split())[:200]}") from error
        for variable, value in (variables if isinstance(variables, dict) else {}).items():
            if str(variable).startswith(PREFIX) and isinstance(value, dict):
                entries[str(variable)[len(PREFIX) :]] = value
    return entries


def load_yaml(text: str) -> t.Any:
    """Safe YAML, with libyaml where it is: a catalogue of forty entries is read in a tenth of the time."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  (both are safe loaders)


def _names(group: str, entry: t.Mapping[str, t.Any]) -> set[str]:
    return {group.lower(), group.lower().replace("_", "-"), str(entry.get("name") or group).lower()}


def _part(entry: t.Mapping[str, t.Any], key: str) -> dict[str, t.Any]:
    value = entry.get(key)
    return value if isinstance(value, dict) else {}


# --- directories ---


def _read(path: Path) -> bytes | None:
    """A file of at most LARGEST_BYTES, or None when there is none."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ModelError(f"{path}: expected a regular file, found something else")
        if found.st_size > LARGEST_BYTES:
            raise ModelError(f"{path}: expected at most {LARGEST_BYTES >> 20} MiB, found {found.st_size >> 20} MiB")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelError(f"{path}: expected a file that can be read, found: {error.strerror or error}") from error


def _headers(directory: Path) -> dict[str, bytes]:
    """The beginnings of the safetensors files. Lengths that cannot be are left to the reader of headers, which says so."""
    found = {}
    for path in sorted(directory.glob("*.safetensors"))[:2000]:
        if not path.is_file():
            raise ModelError(f"{path}: expected a regular file, found something else")
        try:
            with path.open("rb") as file:
                first = file.read(8)
                length = int.from_bytes(first, "little")
                found[path.name] = first + (file.read(length) if len(first) == 8 and length <= LARGEST_BYTES else b"")
        except OSError as error:
            raise ModelError(f"{path}: expected a file that can be read, found: {error.strerror or error}") from error
    return found


def from_directory(directory: Path) -> Found:
    """A checkpoint on this machine; config.json is all that is needed."""
    config = _read(directory / "config.json")
    if config is None:
        raise ModelError(f"{directory}: expected config.json in it, found none")
    quant, index = _read(directory / "hf_quant_config.json"), _read(directory / "model.safetensors.index.json")
    return Found(
        name=directory.resolve().name or str(directory),
        source="directory",
        config=parse_object(f"{directory}/config.json", config),
        quant_config=None if quant is None else parse_object(f"{directory}/hf_quant_config.json", quant),
        headers=_headers(directory),
        index=None if index is None else parse_object(f"{directory}/model.safetensors.index.json", index),
    )


# --- the Hub ---


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to http and https only, and takes the token to no other host."""

    def redirect_request(self, req: t.Any, fp: t.Any, code: t.Any, msg: t.Any, headers: t.Any, newurl: str) -> t.Any:
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
            made.remove_header("Authorization")
        return made


def _get(url: str, token: str, timeout_s: float) -> bytes | None:
    """The body of a small file, None when the server has none. The whole exchange ends within twice the time-out."""
    request = urllib.request.Request(url, headers={"User-Agent": "firstlight-plan"})  # noqa: S310  (the scheme is checked)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    deadline = time.monotonic() + timeout_s
    opener = urllib.request.build_opener(_Redirects)
    try:
        with opener.open(request, timeout=timeout_s) as response:
            body = b""
            while True:
                part = response.read(65536)
                body += part
                if not part:
                    return body
                if len(body) > LARGEST_BYTES or time.monotonic() > deadline + timeout_s:
                    raise ModelError(f"{url}: expected a small file within {timeout_s:g} s, found more")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        hint = "the repository is gated or private: set HF_TOKEN" if error.code in (401, 403) else "try again later"
        raise ModelError(f"{url}: expected the file, found HTTP {error.code}; {hint}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise ModelError(f"{url}: could not be fetched ({reason}); give a directory or a name of the catalogue") from error


def from_hub(name: str, revision: str | None, environment: t.Mapping[str, str], timeout_s: float = TIMEOUT_S) -> Found:
    """config.json of a repository, at a revision. HF_ENDPOINT and HF_TOKEN are taken from the environment."""
    endpoint = (environment.get("HF_ENDPOINT") or HUB).rstrip("/")
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ModelError(f"HF_ENDPOINT: expected an address such as {HUB}, found {endpoint!r}")
    token = environment.get("HF_TOKEN", "") if parts.scheme == "https" or is_loopback(parts.hostname) else ""
    where = f"{endpoint}/{quote(name)}/resolve/{quote(revision or 'main', safe='')}"
    config = _get(f"{where}/config.json", token, timeout_s)
    if config is None:
        at = f"revision {revision}" if revision else "its main branch"
        raise ModelError(f"{name}: expected config.json at {at} on {endpoint}, found none; is the name right?")
    quant = _get(f"{where}/hf_quant_config.json", token, timeout_s)
    return Found(
        name=f"{name}@{revision}" if revision else name,
        source="hub",
        config=parse_object(f"{name}/config.json", config),
        quant_config=None if quant is None else parse_object(f"{name}/hf_quant_config.json", quant),
    )


# --- all three ---


def find(text: str, group_vars: Path, environment: t.Mapping[str, str], fetch: t.Callable[..., Found] = from_hub) -> Found:
    """The model that an operator names: an entry of the catalogue, a directory, or org/name[@revision] of the Hub."""
    text = text.strip()
    path = home(text) if text and "\0" not in text else None
    looks_local = text.startswith(("/", "./", "../", "~")) or text in (".", "..")
    if path is not None and len(text) < 4096 and (looks_local or "/" in text) and path.is_dir():
        return from_directory(path)
    if looks_local:
        raise ModelError(f"model: expected a directory, found none at {text}")
    entries = catalogue(group_vars)
    for group, entry in entries.items():
        if text.lower() in _names(group, entry):
            return _of_catalogue(group, entry, environment, fetch)
    match = _REPOSITORY.fullmatch(text)
    if match is None:
        names = [group.replace("_", "-") for group in entries]
        near = difflib.get_close_matches(text.lower().replace("_", "-"), names, n=3, cutoff=0.5) or names[:3]
        raise ModelError(
            f"model: expected a name of the catalogue, a directory, or org/name[@revision], found {text[:100]!r}; "
            f"did you mean {', '.join(near) or 'a directory'}?"
        )
    same = (entry for entry in entries.values() if str(_part(entry, "model").get("name")).lower() == match["name"].lower())
    known = next((entry for entry in same if isinstance(_part(entry, "model").get("config"), dict)), None)
    if known is not None and match["revision"] is None:
        model = _part(known, "model")
        return Found(str(model["name"]), "catalogue", model["config"])
    return fetch(match["name"], match["revision"], environment)


def _of_catalogue(group: str, entry: dict[str, t.Any], environment: t.Mapping[str, str], fetch: t.Callable[..., Found]) -> Found:
    """An entry with the fields of its configuration, or else what its directory or repository has."""
    model = _part(entry, "model")
    name = str(model.get("name") or group)
    if isinstance(model.get("config"), dict):
        return Found(name, "catalogue", model["config"], entry=entry)
    path = Path(str(model["path"])) if model.get("path") else None
    if path is not None and path.is_dir():
        return dataclasses.replace(from_directory(path), name=name, entry=entry)
    if model.get("build") or _REPOSITORY.fullmatch(name) is None:
        raise ModelError(f"model: {group} has no model.config in group_vars, and its checkpoint is made on a host; give its directory")
    return dataclasses.replace(fetch(name, model.get("revision"), environment), name=name, entry=entry)
