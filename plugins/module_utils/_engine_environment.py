# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""One Python environment of the engine: is it what was asked for, how is it built, why did that fail."""

from __future__ import annotations

import hashlib
import json
import re
import typing as t

MARKER = ".firstlight.json"
LOCK_COPY = ".firstlight.lock.txt"

# Certificates that the system trusts: Debian and Ubuntu, RHEL.
SYSTEM_CA_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")

# Run by the environment's own Python: what is it, and what is installed in it.
PROBE = r"""
import importlib.metadata, json, os, platform, sys
markers = {
    "implementation_name": sys.implementation.name,
    "implementation_version": platform.python_version(),
    "os_name": os.name,
    "platform_machine": platform.machine(),
    "platform_python_implementation": platform.python_implementation(),
    "platform_release": platform.release(),
    "platform_system": platform.system(),
    "platform_version": platform.version(),
    "python_full_version": platform.python_version(),
    "python_version": ".".join(platform.python_version_tuple()[:2]),
    "sys_platform": sys.platform,
    "extra": "",
}
installed = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if d.metadata and d.metadata["Name"]}
print(json.dumps({"markers": markers, "installed": installed}))
"""

PYTHON_VERSION = "import sys; print('.'.join(map(str, sys.version_info[:3])))"


class Assessment(t.NamedTuple):
    """What has to be done with an environment."""

    action: str  # none, build (from nothing), sync (the packages only)
    reason: str


def content_id(files: t.Mapping[str, str], cuda_links: bool) -> str:
    """Identifies what is put into the environment beside the packages of the lock."""
    body = json.dumps({"files": dict(files), "cuda_links": cuda_links}, sort_keys=True)
    return hashlib.sha256(body.encode("utf-8")).hexdigest()


def minor(version: str) -> str:
    """3.13.5 -> 3.13: extension modules fit every patch release of one minor release."""
    return ".".join(version.split(".")[:2])


def assess(
    *,
    exists: bool,
    marker: t.Mapping[str, t.Any] | None,
    lock_sha256: str,
    content: str,
    python_path: str,
    python_version: str,
) -> Assessment:
    """``python_version`` is what the environment's own Python prints now, empty when it does not run."""
    if not exists:
        return Assessment("build", "there is no environment yet")
    if marker is None:
        return Assessment("build", "it was never completed")
    built_with, built = str(marker.get("python_path")), str(marker.get("python_version", ""))
    reasons = {
        f"its Python does not run; was {built_with}, which it was made with, removed?": not python_version,
        f"it was made with Python {built}, the Python under it is {python_version} now": minor(built) != minor(python_version),
        f"it was made with {built_with}, {python_path} is asked for": built_with != python_path,
    }
    for reason, holds in reasons.items():
        if holds:
            return Assessment("build", reason)
    if marker.get("lock_sha256") != lock_sha256:
        return Assessment("sync", f"it was made from the lock {str(marker.get('lock_sha256'))[:8]}, {lock_sha256[:8]} is asked for")
    if marker.get("content") != content:
        return Assessment("sync", "its additional files are others than asked for")
    return Assessment("none", "")


def tool_environment(
    *,
    ca_bundle: str | None,
    index_url: str | None,
    wheelhouse: str | None,
    proxy: str | None,
    no_proxy: t.Sequence[str],
    cache_dir: str | None,
    link_mode: str,
) -> dict[str, str]:
    """Environment of uv and pip: the same index, proxy and certificates for both, and no settings of a user."""
    environment = {
        "LC_ALL": "C.UTF-8",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_RETRIES": "3",
        "UV_NO_CONFIG": "1",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_LINK_MODE": link_mode,
        "UV_HTTP_TIMEOUT": "120",
    }
    if cache_dir:
        environment["UV_CACHE_DIR"] = cache_dir
    if ca_bundle:
        for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"):
            environment[name] = ca_bundle
    if wheelhouse:
        # That there is no index has to be said to uv on its command line.
        environment.update({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheelhouse, "UV_FIND_LINKS": wheelhouse, "UV_OFFLINE": "1"})
    elif index_url:
        environment.update({"PIP_INDEX_URL": index_url, "UV_DEFAULT_INDEX": index_url})
    if proxy:
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            environment[name] = proxy
    bypass = ",".join(dict.fromkeys(["127.0.0.1", "localhost", "::1", *no_proxy]))
    environment.update({"no_proxy": bypass, "NO_PROXY": bypass})
    return environment


# What uv and pip print, and what it means. Ordered: the first that matches is told.
_FAILURES: tuple[tuple[str, str], ...] = (
    (
        r"No space left on device|os error 28|Disk quota exceeded",
        "The file system is full. Free space where the environment, the uv cache and /tmp lie, then run this again.",
    ),
    (
        r"Hash mismatch|DO NOT MATCH THE HASHES",
        "What the index delivers is not what the lock names (hash mismatch): the index or a proxy serves altered files. Compare it with "
        "the index that the lock was made from; never go on without hashes.",
    ),
    (
        r"invalid peer certificate|UnknownIssuer|CERTIFICATE_VERIFY_FAILED",
        "The certificate of the index is not trusted. If a proxy or a mirror of your own stands in between, name its CA certificate in "
        "sglang_venv_extra_ca_certificates.",
    ),
    (
        r"401 Unauthorized|403 Forbidden|407 Proxy Auth|status code 40[137]",
        "The index or the proxy refuses access. Put the credentials into /root/.netrc of the host (sglang_venv_proxy for a proxy).",
    ),
    (
        r"dns error|failed to lookup address|Temporary failure in name resolution|Name or service not known",
        "The name of the index cannot be resolved on the host. Check its DNS, or name an index that it can reach in "
        "sglang_venv_index_url, a proxy in sglang_venv_proxy, or a directory with the wheels in sglang_venv_wheelhouse.",
    ),
    (
        r"error sending request|tcp connect error|tunnel error|timed out|NewConnectionError|Network is unreachable|Failed to fetch",
        "The index cannot be reached from the host. Check the network, or name an index that it can reach in sglang_venv_index_url, "
        "a proxy in sglang_venv_proxy, or a directory with the wheels in sglang_venv_wheelhouse.",
    ),
    (
        r"no wheels with a matching|no usable wheels|is not a supported wheel",
        "A package of the lock has no wheel for this Python, this machine or this glibc. Choose another Python with sglang_venv_python "
        "(3.11 to 3.13), or another host: SGLang's wheels need glibc 2.34 or newer.",
    ),
    (
        r"was not found in the|No matching distribution found|no versions? of|404 Not Found",
        "The index (or the wheelhouse) lacks a package of the lock. Complete it: every wheel of the lock must be there, and uv's.",
    ),
    (
        r"ensurepip is not|No module named ensurepip|No module named venv",
        "The Python on the host cannot make environments (ensurepip is missing). Install its venv package, python3-venv on Debian.",
    ),
)


def explain(output: str) -> str:
    """What to do about a failed uv or pip, empty when it is not a known failure."""
    for pattern, meaning in _FAILURES:
        if re.search(pattern, output, re.IGNORECASE):
            return meaning
    return ""


def tail(output: str, lines: int = 12) -> str:
    """The end of what a tool printed, without credentials in addresses."""
    kept = [line for line in output.strip().splitlines() if line.strip()][-lines:]
    return re.sub(r"(\w+://)[^/\s@]+@", r"\1", "\n".join(kept))


def describe(progress: t.Mapping[str, t.Any]) -> str:
    """One short line about a running build, for people."""
    parts = [str(progress.get("phase", "starting"))]
    written = progress.get("written_bytes")
    if isinstance(written, int) and written >= 0.05 * 2**30:
        parts.append(f"{written / 2**30:.1f} GiB written")
    done, total = progress.get("packages_installed"), progress.get("packages_total")
    if isinstance(done, int) and isinstance(total, int) and done > 0:
        parts.append(f"{min(done, total)} of {total} packages installed")
    return ", ".join(parts)


def summary(path: str, marker: t.Mapping[str, t.Any] | None, packages: t.Mapping[str, str]) -> str:
    """An environment as text for --diff, empty when there is none."""
    if marker is None:
        return ""
    lines = [f"path: {path}", f"lock_sha256: {marker.get('lock_sha256')}", f"python: {marker.get('python_path')}"]
    return "\n".join(lines + [f"{name}=={version}" for name, version in sorted(packages.items())]) + "\n"
