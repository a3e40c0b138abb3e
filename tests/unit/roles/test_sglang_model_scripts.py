# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The scripts that run on the host with the engine's Python."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).parents[3]
SCRIPT = ROOT / "roles/sglang_model/files/hub_download.py"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def load(path: pathlib.Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


hub_download = load(SCRIPT)
HubDouble = load(ROOT / "tests/doubles/hub_double.py").HubDouble

SAFETENSORS = ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize(
    ("names", "allow", "ignore", "expected"),
    [
        ([*SAFETENSORS, "pytorch_model.bin", "model.gguf", "original/consolidated.00.pth", "figure.png"], [], [], SAFETENSORS),
        (["config.json", "pytorch_model.bin", "tokenizer.json"], [], [], ["config.json", "pytorch_model.bin", "tokenizer.json"]),
        ([*SAFETENSORS, "consolidated.safetensors"], [], [], SAFETENSORS),
        (["consolidated.safetensors", "params.json"], [], [], ["consolidated.safetensors", "params.json"]),
        ([*SAFETENSORS, "README.md"], [], ["*.md"], SAFETENSORS),
        ([*SAFETENSORS, "model.gguf"], ["*.gguf"], [], ["model.gguf"]),
        ([], [], [], []),
    ],
)
def test_wanted_files(names: list[str], allow: list[str], ignore: list[str], expected: list[str]) -> None:
    assert hub_download.wanted_files(names, allow, ignore) == expected


@pytest.mark.parametrize(
    ("total", "there", "free", "fits"),
    [(10**9, 0, 3 * 10**9, True), (10**9, 0, 10**9, False), (50 * 10**9, 49 * 10**9, 3 * 10**9, True)],
)
def test_room(total: int, there: int, free: int, fits: bool) -> None:
    problem = hub_download.room_problem(total, there, free, pathlib.Path("/srv/models"))
    assert (problem is None) is fits


# With the real client, in the version of the locks.
FILES = {"config.json": b"{}", "model.safetensors": b"w" * 300_000, "pytorch_model.bin": b"b", "tokenizer.json": b"{}", "[x]*.json": b"1"}
WANTED = {name: content for name, content in FILES.items() if name != "pytorch_model.bin"}


def download(
    output: pathlib.Path, hub: HubDouble, *more: str, token: str | None = None, revision: str = COMMIT
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-u", str(SCRIPT), "--output", str(output), "--repo", "acme/tiny", "--revision", revision, *more]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(output.parent), "HF_ENDPOINT": hub.url, **({"HF_TOKEN": token} if token else {})}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def content(output: pathlib.Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in output.iterdir() if file.is_file()}


def test_download_goes_on_where_it_stopped(tmp_path: pathlib.Path) -> None:
    output = tmp_path / "checkpoint"
    with HubDouble("acme/tiny", COMMIT, FILES) as hub:
        hub.cut["model.safetensors"] = 100_000
        broken = download(output, hub, "--attempts", "1")
        assert broken.returncode == 1
        assert broken.stdout.startswith("plan: ")
        assert "error: downloading acme/tiny from http://127.0.0.1" in broken.stdout
        assert "model.safetensors" not in content(output)

        hub.cut.clear()
        hub.requests.clear()
        assert download(output, hub).returncode == 0
        assert content(output) == WANTED
        assert hub.got("config.json") == []
        assert len(hub.got("model.safetensors")) == 1
        assert hub.got("pytorch_model.bin") == []


def test_token_is_used_and_not_shown(tmp_path: pathlib.Path) -> None:
    with HubDouble("acme/tiny", COMMIT, FILES, token="hf_verysecret") as hub:
        without = download(tmp_path / "without", hub)
        assert without.returncode == 1
        assert "it needs a token (sglang_model_hub_token_variable)" in without.stdout
        run = download(tmp_path / "with", hub, token="hf_verysecret")
        assert run.returncode == 0
        assert "verysecret" not in run.stdout + run.stderr


def test_unknown_commit(tmp_path: pathlib.Path) -> None:
    with HubDouble("acme/tiny", COMMIT, FILES) as hub:
        run = download(tmp_path / "checkpoint", hub, revision="f" * 40)
    assert run.returncode == 1
    assert f"error: acme/tiny has no commit {'f' * 40}" in run.stdout
