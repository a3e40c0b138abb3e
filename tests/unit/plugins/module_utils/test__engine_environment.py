# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
import subprocess
import sys

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _engine_environment as core

MARKER = {"lock_sha256": "1a2b3c4d5e", "content": "c", "python_path": "/usr/bin/python3.13", "python_version": "3.13.5"}


def assess(**changes):
    found = {
        "exists": True,
        "marker": MARKER,
        "lock_sha256": "1a2b3c4d5e",
        "content": "c",
        "python_path": "/usr/bin/python3.13",
        "python_version": "3.13.5",
    }
    return core.assess(**{**found, **changes})


@pytest.mark.parametrize(
    ("changes", "action", "reason"),
    [
        pytest.param({}, "none", "", id="as it should be"),
        pytest.param({"python_version": "3.13.9"}, "none", "", id="a patch release of Python is no reason to build again"),
        pytest.param({"exists": False, "marker": None, "python_version": ""}, "build", "no environment yet", id="blank host"),
        pytest.param({"marker": None, "python_version": ""}, "build", "never completed", id="killed half way"),
        pytest.param({"python_version": ""}, "build", "its Python does not run; was /usr/bin/python3.13", id="Python removed"),
        pytest.param({"python_version": "3.14.0"}, "build", "the Python under it is 3.14.0 now", id="Python upgraded"),
        pytest.param({"python_path": "/usr/bin/python3.12"}, "build", "/usr/bin/python3.12 is asked for", id="another Python asked for"),
        pytest.param({"lock_sha256": "9f8e7d6c5b"}, "sync", "the lock 1a2b3c4d, 9f8e7d6c is asked for", id="another lock"),
        pytest.param({"content": "d"}, "sync", "additional files", id="another file"),
    ],
)
def test_assess(changes, action, reason):
    found = assess(**changes)
    assert found.action == action
    assert reason in found.reason


# Printed by uv 0.13.9 and pip, each provoked on purpose.
FAILURES = {
    "dns": (
        "error: Request failed after 3 retries in 8.6s\n  cause: Failed to fetch: https://index.invalid/simple/tqdm/\n"
        "  cause: client error (Connect)\n  cause: dns error\n  cause: failed to lookup address information: Name or service not known",
        "cannot be resolved",
    ),
    "pip, dns": (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('Failed to establish a new connection: "
        "[Errno -2] Name or service not known')': /simple/tqdm/\nERROR: No matching distribution found for tqdm==4.70.1",
        "cannot be resolved",
    ),
    "refused": (
        "error: Request failed after 3 retries in 12.6s\n  cause: Failed to fetch: http://127.0.0.1:9/simple/tqdm/\n"
        "  cause: tcp connect error\n  cause: Connection refused (os error 111)",
        "cannot be reached",
    ),
    "proxy": ("  cause: tunnel error: failed to create underlying connection\n  cause: tcp connect error", "cannot be reached"),
    "hash": (
        "error: Failed to download `tqdm==4.70.1`\n  cause: Hash mismatch for `tqdm==4.70.1`\n\n  Expected:\n    sha256:00",
        "serves altered files",
    ),
    "pip, hash": ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "serves altered files"),
    "tls": (
        "error: Failed to fetch: https://example.org/simple/tqdm/\n  cause: error sending request\n  cause: client error (Connect)\n"
        "  cause: invalid peer certificate: UnknownIssuer",
        "sglang_venv_extra_ca_certificates",
    ),
    "pip, tls": (
        "Could not fetch URL https://example.org/simple/tqdm/: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed\n"
        "ERROR: No matching distribution found for tqdm==4.70.1",
        "sglang_venv_extra_ca_certificates",
    ),
    "credentials": (
        "  cause: Because tqdm was not found in the package registry and you require tqdm==4.70.1\n\nhint: An index URL "
        "(http://127.0.0.1:8766/simple) could not be queried due to a lack of valid authentication credentials (401 Unauthorized)",
        ".netrc",
    ),
    "mirror": ("  cause: Because tqdm was not found in the package registry and you require tqdm==4.70.1", "lacks a package"),
    "wheelhouse": ("  cause: Because tqdm was not found in the cache and you require tqdm==4.70.1", "lacks a package"),
    "pip, wheelhouse": ("ERROR: No matching distribution found for tqdm==4.70.1", "lacks a package"),
    "python": (
        "  cause: Because sglang==0.5.23 has no wheels with a matching Python implementation tag (e.g., `cp310`) and you require sglang",
        "no wheel for this Python",
    ),
    "glibc": (
        "  cause: Because sglang==0.5.23 has no wheels with a matching platform tag (e.g., `manylinux_2_28_x86_64`)",
        "glibc 2.34",
    ),
    "sources": ("  cause: Because regex==2026.11.19 has no usable wheels and you require regex", "no wheel for this Python"),
    "disk": (
        "error: Failed to download `sglang==0.5.23`\n  cause: failed to write to file `x.py`: No space left on device (os error 28)",
        "file system is full",
    ),
    "other": ("error: something else", ""),
}


@pytest.mark.parametrize("name", FAILURES)
def test_explain(name):
    printed, meaning = FAILURES[name]
    assert meaning in core.explain(printed)
    assert bool(core.explain(printed)) is bool(meaning)


def test_tail_shows_no_credentials():
    assert core.tail("\na\n\nfetching https://me:secret@mirror/simple\n", lines=1) == "fetching https://mirror/simple"


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        ({}, "starting"),
        (
            {"phase": "installing packages", "written_bytes": 3 * 2**30, "packages_installed": 0, "packages_total": 124},
            "installing packages, 3.0 GiB written",
        ),
        (
            {"phase": "installing packages", "written_bytes": 1, "packages_installed": 126, "packages_total": 124},
            "installing packages, 124 of 124 packages installed",
        ),
    ],
)
def test_describe(progress, line):
    assert core.describe(progress) == line


def tools(**changes):
    nothing = {
        "ca_bundle": None,
        "index_url": None,
        "wheelhouse": None,
        "proxy": None,
        "no_proxy": [],
        "cache_dir": None,
        "link_mode": "hardlink",
    }
    return core.tool_environment(**{**nothing, **changes})


def test_tools_reach_the_index_as_told():
    environment = tools(
        index_url="https://mirror/simple", proxy="http://proxy:3128", no_proxy=["mirror"], ca_bundle="/ca.crt", cache_dir="/c"
    )
    assert environment["UV_DEFAULT_INDEX"] == environment["PIP_INDEX_URL"] == "https://mirror/simple"
    assert environment["https_proxy"] == environment["HTTPS_PROXY"] == "http://proxy:3128"
    assert environment["NO_PROXY"] == environment["no_proxy"] == "127.0.0.1,localhost,::1,mirror"
    assert environment["SSL_CERT_FILE"] == environment["PIP_CERT"] == "/ca.crt"
    assert environment["UV_CACHE_DIR"] == "/c"


def test_tools_ask_no_index_with_a_wheelhouse():
    environment = tools(wheelhouse="/wheels")
    assert environment["PIP_NO_INDEX"] == environment["UV_OFFLINE"] == "1"
    assert environment["UV_FIND_LINKS"] == environment["PIP_FIND_LINKS"] == "/wheels"


def test_the_probe_runs_and_knows_every_marker():
    found = json.loads(subprocess.run([sys.executable, "-I", "-c", core.PROBE], check=True, capture_output=True, text=True).stdout)
    assert found["markers"]["python_version"] == ".".join(map(str, sys.version_info[:2]))
    assert "pytest" in found["installed"]


def test_content_id_depends_on_files_and_links():
    ids = {core.content_id(files, links) for files in ({}, {"a": "b"}, {"a": "c"}) for links in (True, False)}
    assert len(ids) == 6
