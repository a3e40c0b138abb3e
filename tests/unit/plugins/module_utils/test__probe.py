from __future__ import annotations

import importlib.util
import json
import pathlib
import threading
import time

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _http_client as client
from ansible_collections.firstlight.sglang.plugins.module_utils import _probe as probe

HERE = pathlib.Path(__file__)
SPEC = importlib.util.spec_from_file_location("engine_double", HERE.parents[3] / "doubles/engine.py")
double = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(double)

QUESTIONS = [{"prompt": "What is the capital of France?", "expect": "Paris"}, {"prompt": "Which planet is red?", "expect": "Mars"}]


@pytest.fixture
def engine():
    """A scripted engine by its behaviour, on a free port of loopback."""
    servers = []

    def start(behaviour):
        server = double.Double(behaviour)
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def run(server, *, thinking=True, key="", timeout_s=2.0, release="0.5.23"):
    instance = {
        "name": "demo",
        "url": server if isinstance(server, str) else server.url,
        "served_model_name": "tiny-qa",
        "api_key_path": "/etc/sglang/demo.api_key.yaml" if key else None,
        "model": {"path": "/srv/tiny-qa/"},
        "environment": {"release": release},
        "verify": {"thinking": thinking, "warmup_timeout_s": timeout_s},
    }

    def ask(path, payload, limit):
        return client.request(instance["url"], path, payload=payload, key=key, timeout_s=min(limit, timeout_s))

    return probe.run_probe(instance, QUESTIONS, ask=ask, request_timeout_s=timeout_s, secrets=[key] if key else [])


def states(result):
    return {one["name"]: one["state"] for one in result["checks"]}


def failed(result):
    return [one["name"] for one in result["checks"] if one["ok"] is False]


GOOD = ["health", "models", "identity", "warm_up", "answer 1", "answer 2", "stream", "thinking"]


def test_a_good_engine(engine):
    result = run(engine("good"))
    assert result["ok"]
    assert states(result) == dict.fromkeys(GOOD, "passed")
    assert result["model"] == {"id": "tiny-qa", "max_model_len": 4096}
    assert 0 <= result["first_token_seconds"] <= result["answer_seconds"]
    assert probe.failure_text(result) == ""


@pytest.mark.parametrize(
    ("behaviour", "names", "words"),
    [
        ("wrong_answer", ["answer 1", "answer 2", "stream", "thinking"], '"Lyon"'),
        ("another_server", ["identity"], "model_path /srv/other"),
        ("hangs", ["warm_up"], "no complete answer within 0.5 s"),
        ("drips", ["warm_up"], "no complete answer within 0.5 s"),
        ("error_500", ["warm_up"], "HTTP 500: it broke"),
        ("no_json", ["warm_up"], "not a chat completion: <html>"),
        ("malformed_stream", ["stream"], "an event is no JSON"),
        ("stream_without_done", ["stream"], "without [DONE]"),
        ("stream_without_text", ["stream"], '""'),
        ("wrong_usage", ["answer 1", "answer 2", "stream"], "10 + 3 is not 14"),
        ("wants_key", ["models"], "HTTP 401: Unauthorized - the server is up and refuses a request without a key"),
        ("never_thinks", ["thinking"], "no reasoning_content with thinking on"),
    ],
)
def test_a_bad_engine(engine, behaviour, names, words):
    began = time.monotonic()
    result = run(engine(behaviour), timeout_s=0.5)
    assert time.monotonic() - began < 5
    assert not result["ok"]
    assert failed(result) == names
    assert words in probe.failure_text(result)


@pytest.mark.parametrize("behaviour", ["busy_once", "answers_into_thinking"])
def test_odd_but_good(engine, behaviour):
    result = run(engine(behaviour), thinking=None)
    assert "health" not in failed(result)
    assert "answer 1" not in failed(result)


def test_a_model_or_a_setting_without_thinking_is_no_failure(engine):
    assert states(run(engine("never_thinks"), thinking=None))["thinking"] == "not_applicable"
    assert states(run(engine("never_thinks"), thinking=False))["thinking"] == "passed"
    result = run(engine("no_parser"))
    assert states(result)["thinking"] == "not_applicable"
    assert "inside the content" in result["checks"][-1]["found"]
    assert result["ok"]


def test_a_key_opens_and_is_never_shown(engine):
    result = run(engine("wants_key"), key=double.KEY)
    assert result["ok"]
    assert double.KEY not in json.dumps(result)
    result = run(engine("wants_key"), key="a-wrong-key")
    assert failed(result) == ["models"]
    assert "refuses the key in /etc/sglang/demo.api_key.yaml" in probe.failure_text(result)
    assert "a-wrong-key" not in json.dumps(result)
    assert double.KEY not in json.dumps(run(engine("error_500"), key=double.KEY))


def test_another_release_than_the_instance_says(engine):
    assert failed(run(engine("good"), release="0.5.20")) == ["identity"]


def test_nobody_there():
    result = run("http://127.0.0.1:1")
    assert failed(result) == ["health"]
    assert states(result)["thinking"] == "skipped"
    assert "connection refused" in probe.failure_text(result)


def test_no_proxy_of_the_environment_is_used(engine, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert run(engine("good"))["ok"]


def test_the_warm_up_is_sampled_and_answers_are_greedy():
    warm = probe.chat_payload("m", "x", max_tokens=16, thinking=False, sampled=True)
    assert warm["temperature"] > 0
    assert 0 < warm["top_p"] < 1
    greedy = probe.chat_payload("m", "x", max_tokens=16, thinking=None, stream=True)
    assert greedy["temperature"] == 0
    assert greedy["stream_options"] == {"include_usage": True}
    assert "chat_template_kwargs" not in greedy


@pytest.mark.parametrize(
    ("pieces", "events"),
    [
        ([b"data: a\n\ndata: b\n\n"], ["a", "b"]),
        ([b"da", b"ta: a\n", b"\nd", b"ata: b\n\n"], ["a", "b"]),
        ([b"data: a\r\n\r\n", b"data: b\r", b"\n\r\n"], ["a", "b"]),
        ([b"data: a\r\rdata: b\r\r\n"], ["a", "b"]),
        ([b"data: a\ndata: b\n\n"], ["a\nb"]),
        ([b"data:a\n\n"], ["a"]),
        ([b"data:  a\n\n"], [" a"]),
        ([b": comment\nevent: x\nid: 1\ndata: a\n\n"], ["a"]),
        (["data: é".encode()[:-1], "é".encode()[-1:], b"\n\n"], ["é"]),
        ([b"data: no end"], ["no end"]),
        ([b"\n\n\n"], []),
        ([], []),
    ],
)
def test_events_of_a_stream_cut_anywhere(pieces, events):
    parser = probe.SseParser()
    got = [event for piece in pieces for event in parser.feed(piece)]
    assert got + parser.close() == events


def test_every_cut_of_a_stream_gives_the_same_events():
    stream = 'data: {"a": "é"}\r\n\r\ndata: b\n\n: c\n\ndata: [DONE]\n\n'.encode()
    for cut in range(len(stream) + 1):
        parser = probe.SseParser()
        assert parser.feed(stream[:cut]) + parser.feed(stream[cut:]) + parser.close() == ['{"a": "é"}', "b", "[DONE]"]


@pytest.mark.parametrize(
    ("text", "expected", "right"),
    [
        ("Paris", "Paris", True),
        ("The capital is paris.", "Paris", True),
        ("Parisian", "Paris", False),
        ("14", "4", False),
        ("It is 4.", "4", True),
        ("1  2\n3", "1 2 3", True),
        ("Hello!", "Hello!", True),
        ("", "Paris", False),
        ("anything", " ", False),
    ],
)
def test_the_expected_words_are_words_of_their_own(text, expected, right):
    assert probe.says(text, expected) == right


def reply(content="", reasoning="", finish="stop", usage=None, **more):
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3} if usage is None else usage
    return probe.Completion(content, reasoning, finish, usage, "", **more)


@pytest.mark.parametrize(
    ("got", "ok", "words"),
    [
        (reply("Paris"), True, '"Paris"'),
        (reply("Paris is a", finish="length"), True, "cut off after max_tokens"),
        (reply("", "It is Paris"), True, "cannot be told not to think"),
        (reply("", "Let me think", finish="length"), False, "max_tokens ended inside the thinking"),
        (reply("<think>x</think>Paris"), True, "set reasoning_parser"),
        (reply("Paris", finish="abort"), False, "finish_reason abort"),
        (reply("Paris", usage={}), False, "no usage"),
        (reply(""), False, 'found ""'),
    ],
)
def test_judging_an_answer(got, ok, words):
    judged = probe.judge_answer("answer 1", got, "Paris", 0.1)
    assert judged["ok"] is ok
    assert words in f"found {judged['found']}"


def test_a_stream_with_other_words_but_the_right_answer_passes_with_a_note():
    streamed = reply("It is Paris", first_token_seconds=0.1, chunks=2, done=True)
    judged = probe.judge_stream("stream", streamed, reply("Paris"), "Paris", 0.2)
    assert judged["ok"]
    assert "other words than without streaming" in judged["found"]


def test_a_model_that_thinks_although_it_must_not(engine):
    result = run(engine("good"), thinking=False)
    assert failed(result) == ["thinking"]
    assert "expected no thinking (verify.thinking is false); found 12 characters of thinking" in probe.failure_text(result)


@pytest.mark.parametrize(
    ("got", "state", "words"),
    [
        (reply("Paris"), "passed", "no thinking"),
        (reply("Paris", "hm"), "failed", "2 characters"),
        (reply("<think>hmm</think>Paris"), "failed", "3 characters"),
        (reply("hmmm</think>Paris"), "failed", "4 characters"),
        (reply("<think>hmmmm", finish="length"), "failed", "5 characters"),
        (reply("<think>\n\n</think>Paris"), "passed", "no thinking"),
        (probe.Completion("", "", "", {}, "HTTP 500"), "skipped", "no answer"),
    ],
)
def test_judging_no_thinking(got, state, words):
    judged = probe.judge_no_thinking("thinking", got, seconds=0)
    assert judged["state"] == state
    assert words in judged["found"]


def test_thinking_that_cannot_be_switched_off_fails():
    judged = probe.judge_thinking(
        "thinking", reply("Paris", "hm"), reply("Paris", "hm"), thinks=True, parser="qwen3", expected="Paris", seconds=1
    )
    assert judged["ok"] is False
    assert "with thinking off" in judged["found"]


def test_a_real_answer_is_read():
    body = (HERE.parent / "fixtures/http/chat.json").read_bytes()
    got = probe.read_completion(client.Answer(200, "application/json", [(0.1, body)], 0.1, ""))
    assert (got.content, got.finish_reason, got.usage["completion_tokens"], got.error) == ("", "length", 8, "")
    assert probe.usage_fault(got.usage) == ""


def test_server_info_shows_nothing_secret():
    data = {"version": "1", "api_key": "SENTINEL", "launch_command": "--api-key SENTINEL", "internal_states": [{"api_key": "SENTINEL"}]}
    assert "SENTINEL" not in json.dumps(probe.read_server_info(data))
    assert probe.read_server_info(None) == {}


@pytest.mark.parametrize(
    ("questions", "words"),
    [
        ([], "at least one question"),
        ([{"prompt": "x"}], "question 1: expect missing"),
        ([{"prompt": "x", "expect": "y", "max_token": 1}], "unknown max_token"),
        (["x"], "expected a dictionary"),
        ([{"prompt": "x", "expect": "y", "max_tokens": 5}], ""),
    ],
)
def test_questions_are_checked_in_words(questions, words):
    faults = probe.question_faults(questions)
    assert bool(faults) == bool(words)
    assert words in " ".join(faults)


def test_a_port_answers_or_not(engine):
    assert client.port_answers(engine("good").url)
    assert not client.port_answers("http://127.0.0.1:1")
    assert client.address_of("http://[::1]:30000") == ("::1", 30000)
