"""Where a plan's model comes from: the catalogue, a directory, or a Hub that this test plays on the loopback."""

from __future__ import annotations

import http.server
import json
import pathlib
import struct
import threading
import typing as t

import pytest
from ansible_collections.firstlight.sglang.plugins.plugin_utils import plan_model

CONFIG = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024}
ENTRY = """
sglang_instance_small_model:
  name: little
  release: 0.5.23
  model: {name: Org/Small, config: {architectures: [SmallForCausalLM]}}
  args: {tp_size: 2}
"""
BARE = """
sglang_instance_bare:
  model: {name: Org/Bare, revision: "%s"}
sglang_instance_made:
  model: {name: org/made, build: make.py}
"""


@pytest.fixture
def group_vars(tmp_path: pathlib.Path) -> pathlib.Path:
    for group, text in (("small_model", ENTRY), ("bare", BARE % ("a" * 40)), ("all", "sglang_release: 0.5.23\n")):
        (tmp_path / "group_vars" / group).mkdir(parents=True)
        (tmp_path / "group_vars" / group / "x.yml").write_text(text)
    return tmp_path / "group_vars"


class Hub:
    """Answers from a table of paths, and keeps what was asked with which token."""

    def __init__(self) -> None:
        self.files: dict[str, t.Any] = {}
        self.asked: list[tuple[str, str | None]] = []
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.asked.append((self.path, self.headers.get("Authorization")))
                answer = hub.files.get(self.path, 404)
                if isinstance(answer, int):
                    self.send_error(answer)
                elif isinstance(answer, str):
                    self.send_response(307)
                    self.send_header("Location", answer)
                    self.end_headers()
                else:
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(answer)

            def log_message(self, *words: t.Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.environment = {"HF_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}", "HF_TOKEN": "hf_secret"}


@pytest.fixture
def hub() -> t.Iterator[Hub]:
    one = Hub()
    yield one
    one.server.shutdown()
    one.server.server_close()


def not_asked(*words: t.Any) -> t.NoReturn:
    raise AssertionError(f"the Hub was asked for {words}")


@pytest.mark.parametrize("text", ["small_model", "small-model", "little", "LITTLE"])
def test_a_name_of_the_catalogue_brings_its_flags(group_vars, text):
    found = plan_model.find(text, group_vars, {}, not_asked)
    assert (found.name, found.source, found.config) == ("Org/Small", "catalogue", {"architectures": ["SmallForCausalLM"]})
    assert found.entry["args"] == {"tp_size": 2}


def test_a_repository_that_the_catalogue_has_needs_no_network_and_brings_no_flags(group_vars):
    found = plan_model.find("org/small", group_vars, {}, not_asked)
    assert (found.name, found.source, found.entry) == ("Org/Small", "catalogue", None)


def test_a_revision_that_is_named_is_the_one_that_counts(group_vars, hub):
    hub.files["/Org/Small/resolve/abc/config.json"] = json.dumps(CONFIG).encode()
    found = plan_model.find("Org/Small@abc", group_vars, hub.environment)
    assert (found.name, found.source, found.config) == ("Org/Small@abc", "hub", CONFIG)


def test_an_entry_without_fields_is_asked_of_the_hub_at_its_revision(group_vars, hub):
    hub.files[f"/Org/Bare/resolve/{'a' * 40}/config.json"] = json.dumps(CONFIG).encode()
    found = plan_model.find("bare", group_vars, hub.environment)
    assert (found.name, found.source, found.config) == ("Org/Bare", "hub", CONFIG)
    with pytest.raises(plan_model.ModelError, match="made on a host; give its directory"):
        plan_model.find("made", group_vars, {}, not_asked)


def test_the_hub_at_a_revision_with_a_token(group_vars, hub):
    hub.files["/org/name/resolve/v1%2Fx/config.json"] = json.dumps(CONFIG).encode()
    hub.files["/org/name/resolve/v1%2Fx/hf_quant_config.json"] = b'{"quantization": {"quant_algo": "FP8"}}'
    found = plan_model.find("org/name@v1/x", group_vars, hub.environment)
    assert (found.name, found.source, found.config) == ("org/name@v1/x", "hub", CONFIG)
    assert found.quant_config == {"quantization": {"quant_algo": "FP8"}}
    assert {token for _path, token in hub.asked} == {"Bearer hf_secret"}


def test_without_a_revision_it_is_the_main_branch_and_a_redirect_gets_no_token(group_vars, hub):
    other = Hub()
    other.files["/elsewhere"] = json.dumps(CONFIG).encode()
    hub.files["/org/name/resolve/main/config.json"] = f"{other.environment['HF_ENDPOINT']}/elsewhere"
    assert plan_model.find("org/name", group_vars, hub.environment).config == CONFIG
    assert other.asked == [("/elsewhere", None)]
    hub.files["/org/name/resolve/main/config.json"] = "/cache/config.json"
    hub.files["/cache/config.json"] = json.dumps(CONFIG).encode()
    assert plan_model.find("org/name", group_vars, hub.environment).config == CONFIG
    assert ("/cache/config.json", "Bearer hf_secret") in hub.asked, "the same host gets it"
    other.server.shutdown()
    other.server.server_close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (404, "expected config.json at its main branch"),
        (401, "HTTP 401; the repository is gated or private: set HF_TOKEN"),
        (503, "HTTP 503; try again later"),
        (b"{", "expected JSON"),
        (b"[1]", "expected a JSON object, found list"),
        (b"[" * 200_000, "expected JSON"),
        ("ftp://127.0.0.1/x", "config.json"),
    ],
)
def test_what_a_hub_can_answer_instead(group_vars, hub, answer, words):
    hub.files["/org/name/resolve/main/config.json"] = answer
    with pytest.raises(plan_model.ModelError, match=words) as caught:
        plan_model.find("org/name", group_vars, hub.environment)
    assert "hf_secret" not in str(caught.value)


def test_a_hub_that_does_not_answer(group_vars):
    with pytest.raises(plan_model.ModelError, match="could not be fetched"):
        plan_model.find("org/name", group_vars, {"HF_ENDPOINT": "http://127.0.0.1:1"})
    with pytest.raises(plan_model.ModelError, match="HF_ENDPOINT: expected an address"):
        plan_model.find("org/name", group_vars, {"HF_ENDPOINT": "file:///etc"})


def test_a_token_goes_over_no_open_network():
    seen = []

    def get(url: str, token: str, _timeout_s: float) -> bytes:
        seen.append(token)
        return b"{}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_model, "_get", get)
        for endpoint in ("http://hub.example", "https://hub.example", "http://127.0.0.1:9"):
            plan_model.from_hub("org/name", None, {"HF_ENDPOINT": endpoint, "HF_TOKEN": "hf_secret"})
    assert seen == ["", "", "hf_secret", "hf_secret", "hf_secret", "hf_secret"]


def test_a_directory_with_headers_and_index(tmp_path, group_vars):
    place = tmp_path / "checkpoint"
    place.mkdir()
    header = json.dumps({"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    start = struct.pack("<Q", len(header)) + header
    (place / "config.json").write_text(json.dumps(CONFIG))
    (place / "model-00001.safetensors").write_bytes(start + b"data")
    (place / "model-00002.safetensors").write_bytes(b"abc")
    (place / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    found = plan_model.find(str(place), group_vars, {}, not_asked)
    assert (found.name, found.source, found.config, found.index) == ("checkpoint", "directory", CONFIG, {"weight_map": {}})
    assert found.headers == {"model-00001.safetensors": start, "model-00002.safetensors": b"abc"}


def test_directories_that_hold_no_model(tmp_path, group_vars):
    with pytest.raises(plan_model.ModelError, match=r"expected config.json in it, found none"):
        plan_model.find(str(tmp_path), group_vars, {})
    with pytest.raises(plan_model.ModelError, match="expected a directory, found none"):
        plan_model.find("/does/not/exist", group_vars, {})
    (tmp_path / "config.json").mkdir()
    with pytest.raises(plan_model.ModelError, match="expected a regular file"):
        plan_model.find(str(tmp_path), group_vars, {})


def test_a_catalogue_that_is_no_yaml(group_vars):
    (group_vars / "bare/y.yml").write_text("sglang_instance_x: [")
    with pytest.raises(plan_model.ModelError, match=r"bare/y.yml: expected YAML"):
        plan_model.find("little", group_vars, {})
    (group_vars / "bare/y.yml").write_text("- sglang_instance_x")
    assert plan_model.find("little", group_vars, {}).name == "Org/Small"


@pytest.mark.parametrize("text", ["", "  ", "smal-model", "a/b/c", "x" * 5000, "org/na me", "a\0b/c", "a/b@", "--help", "org/\u0665"])
def test_names_that_are_none(group_vars, text):
    with pytest.raises(plan_model.ModelError, match="expected a name of the catalogue, a directory, or org/name"):
        plan_model.find(text, group_vars, {}, not_asked)
    with pytest.raises(plan_model.ModelError, match="did you mean small-model"):
        plan_model.find("smal-model", group_vars, {}, not_asked)
