"""make pin against a loopback Hub: what it writes, what it leaves, and what it says when it cannot."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import socket
import subprocess
import sys

import hub_double
import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tools"))
spec = importlib.util.spec_from_file_location("pin", ROOT / "tools/pin.py")
pin = importlib.util.module_from_spec(spec)
sys.modules["pin"] = pin
spec.loader.exec_module(pin)

OLD, NEW = "0" * 39 + "a", "f" * 40
COMMIT = pin.Commit("org/name", NEW, "http://hub/api/models/org/name")
WRITTEN = f"{COMMIT.url} on 2026-12-01"

# The file of a group, and what becomes of it: nothing but the two values.
CATALOGUE = """\
---
# Why this model.
sglang_instance_g:   # the group
  model:
    name: "org/name"  # exact
    # Not pinned yet.
    revision: {revision}  # a commit

    config: {{a: 1}}

  gpus: [0, 1]
  args:
    # Two cards.
    tp_size: 2
  catalogue:
    licence: MIT
    revision_source: {source}
    run: planned only
other: !vault |
  $ANSIBLE_VAULT;1.1;AES256
"""
PLAIN = """\
sglang_instance_g:
    model:
        name: org/name   # exact
        # A remark about the configuration.
        config:
            a: 1   # end

    # GPUs by bus order.
    gpus: [0]
"""
CASES = {
    "null": (CATALOGUE.format(revision="null", source="null"), CATALOGUE.format(revision=NEW, source=WRITTEN)),
    "nothing behind the colon": (CATALOGUE.format(revision="", source="~"), CATALOGUE.format(revision=NEW + " ", source=WRITTEN)),
    "an older commit": (CATALOGUE.format(revision=f"'{OLD}'", source="http://x/"), CATALOGUE.format(revision=NEW, source=WRITTEN)),
    "a folded source": (
        CATALOGUE.format(revision=OLD, source=">-\n      http://x/a\n      b"),
        CATALOGUE.format(revision=NEW, source=WRITTEN),
    ),
    "a commit without a source": (CATALOGUE.format(revision=NEW, source="null"), CATALOGUE.format(revision=NEW, source=WRITTEN)),
    "a group of the operator's own": (
        PLAIN,
        PLAIN.replace("# exact\n", f"# exact\n        revision: {NEW}\n").replace(
            "# end\n", f"# end\n    catalogue:\n      revision_source: {WRITTEN}\n"
        ),
    ),
    "no line break at the end": (
        "sglang_instance_g:\n  gpus: [0]\n  catalogue:\n    run: none\n  model:\n    name: org/name",
        f"sglang_instance_g:\n  gpus: [0]\n  catalogue:\n    run: none\n    revision_source: {WRITTEN}\n"
        f"  model:\n    name: org/name\n    revision: {NEW}",
    ),
}
CASES["breaks of another kind"] = tuple(text.replace("\n", "\r\n") for text in CASES["a group of the operator's own"])


@pytest.mark.parametrize(("before", "after"), CASES.values(), ids=CASES)
def test_only_the_two_values_change(before, after):
    assert pin.pinned(before, "g", "g.yml", COMMIT, "2026-12-01") == after
    assert pin.pinned(after, "g", "g.yml", COMMIT, "2027-01-01") == after


def test_a_commit_of_digits_alone_stays_text():
    commit = COMMIT._replace(sha="1" * 40)
    text = pin.pinned(CASES["null"][0].replace("!vault", ""), "g", "g.yml", commit, "2026-12-01")
    assert yaml.safe_load(text)["sglang_instance_g"]["model"]["revision"] == "1" * 40


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sglang_instance_g: {model: {name: o/n}}\n", "sglang_instance_g: expected a mapping with one key a line"),
        ("sglang_instance_g:\n  model: {name: o/n}\n", "sglang_instance_g.model: expected a mapping with one key a line"),
        ("sglang_instance_g:\n  gpus: [0]\n", "sglang_instance_g.model: expected a mapping with one key a line, found nothing"),
        ("sglang_instance_g:\n  model:\n    name: n\n", "model.name: expected <org>/<name>, found 'n'"),
        ("sglang_instance_g:\n  model:\n    name: o/n\n    path: /srv/x\n", "found path (a directory on the host); put `revision: null`"),
        ("sglang_instance_g:\n  model:\n    name: o/n\n    build: x.py\n", "found build (a script)"),
        ("sglang_instance_g:\n  model: [\n", "g.yml: expected YAML, found while parsing"),
    ],
)
def test_what_cannot_be_pinned(text, message):
    with pytest.raises(pin.PinError) as error:
        pin.model_name(text, "g", "g.yml")
    assert message in str(error.value)


@pytest.fixture
def groups(tmp_path):
    """A group_vars directory: the group g of the first case as a directory, h as one file."""
    directory = tmp_path / "group_vars"
    (directory / "g").mkdir(parents=True)
    (directory / "g/sglang_instance.yml").write_text(CASES["null"][0])
    (directory / "h.yml").write_text(PLAIN.replace("instance_g", "instance_h").replace("org/name", "org/other"))
    return directory


def run(directory, *request, url="http://127.0.0.1:9", **environment):
    """The program as make runs it: (how it ended, what it printed, what it complained of)."""
    base = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy") and not name.startswith("HF_")}
    command = [sys.executable, ROOT / "tools/pin.py", "--group-vars", directory, *request]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**base, "HOME": str(directory.parent), "HF_ENDPOINT": url, **environment},
    )
    return result.returncode, result.stdout, result.stderr


def test_pin_writes_once_and_shows_what(groups):
    file = groups / "g/sglang_instance.yml"
    file.chmod(0o640)
    other = (groups / "h.yml").read_bytes()
    with hub_double.HubDouble("org/name", NEW, {}) as hub:
        status, shown, _errors = run(groups, "g", "--check", url=hub.url)
        assert (status, f"+    revision: {NEW}  # a commit" in shown, file.read_text()) == (3, True, CASES["null"][0])
        status, shown, _errors = run(groups, "g", url=hub.url)
        assert (status, f"+    revision: {NEW}  # a commit" in shown) == (0, True)
        instance = yaml.safe_load(file.read_text().replace("!vault", ""))["sglang_instance_g"]
        assert instance["model"]["revision"] == NEW
        assert instance["catalogue"]["revision_source"].startswith(f"{hub.url}/api/models/org/name on 20")
        written = file.read_bytes()
        status, shown, _errors = run(groups, "org/name", url=hub.url)
        assert (status, shown) == (0, f"g: org/name is pinned to {NEW}, which is the newest commit\n")
        assert run(groups, "g", "--check", url=hub.url)[0] == 0
        hub.commit = OLD
        assert run(groups, "g", url=hub.url)[0] == 0
        assert f"revision: {OLD}  # a commit" in file.read_text()
    assert written == file.read_bytes().replace(OLD.encode(), NEW.encode())
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in (groups / "g").iterdir()) == ["sglang_instance.yml"]
    assert (groups / "h.yml").read_bytes() == other


def refused(groups, *request, **environment):
    """Exit status and message of a run that writes nothing."""
    before = {path: path.read_bytes() for path in groups.rglob("*.yml")}
    status, shown, errors = run(groups, *request, **environment)
    assert {path: path.read_bytes() for path in groups.rglob("*.yml")} == before
    assert shown == ""
    assert "Traceback" not in errors
    return status, errors


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        ("gg", 2, "expected a model group or <org>/<name>, found 'gg'; did you mean g?"),
        ("llama", 2, "found 'llama'; there are g, h"),
        ("org/unknown", 2, "found 'org/unknown', which none has"),
        ("h", 1, "org/other: expected a repository, {url}/api/models/org/other answered 404; correct model.name, or set HF_TOKEN"),
    ],
)
def test_what_is_not_there(groups, request_, status, message):
    with hub_double.HubDouble("org/name", NEW, {}) as hub:
        found = refused(groups, request_, url=hub.url)
        assert (found[0], message.format(url=hub.url) in found[1]) == (status, True), found


def test_a_token_is_sent_and_never_shown(groups):
    with hub_double.HubDouble("org/name", NEW, {}, token="hf_secret") as hub:
        status, errors = refused(groups, "g", url=hub.url)
        assert (status, "answered 401; correct model.name, or set HF_TOKEN when it is private or gated" in errors) == (1, True), errors
        status, errors = refused(groups, "g", url=hub.url, HF_TOKEN="hf_wrong")
        assert (status, "hf_wrong" in errors) == (1, False)
        status, shown, errors = run(groups, "g", url=hub.url, HF_TOKEN="hf_secret")
        assert (status, "hf_secret" in shown + errors + (groups / "g/sglang_instance.yml").read_text()) == (0, False)


def test_a_gated_repository(groups):
    with hub_double.HubDouble("org/name", NEW, {}) as hub:
        hub.gated = True
        status, errors = refused(groups, "g", url=hub.url)
    assert (status, f"the repository is gated; accept its terms on {hub.url}/org/name" in errors) == (1, True), errors


def test_no_network(groups):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        status, errors = refused(groups, "g", url=url)
    assert (status, f"org/name: no answer from {url}/api/models/org/name" in errors) == (1, True), errors


@pytest.mark.parametrize("url", ["https://secret@hub.example", "https://me:secret@hub.example", "https://hub.example/?t=secret", "secret"])
def test_an_address_that_must_not_be_written_down(groups, url):
    status, errors = refused(groups, "g", url=url)
    assert (status, "HF_ENDPOINT: expected http(s)://<host> without name" in errors, "secret" in errors) == (2, True, False), errors
