# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Asks an engine questions and judges what comes back.

PRIVATE to the collection. The sequence takes the client as an argument; all else is pure: payloads, the stream parser, the judging.

Ready is not warm: on a GPU with a cold kernel cache the first SAMPLED request took 73 to 103 s after ready, because the sampling
kernels are compiled then; greedy requests and the engine's own warm-up never trigger it. So the first completion is a sampled one,
with a budget of its own, and what is timed comes after it.
"""

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils._engine_log import hide_secrets, shorten
from ansible_collections.firstlight.sglang.plugins.module_utils._http_client import Answer

ANSWER_TOKENS = 256  # room for a model that cannot be told not to think
THINKING_TOKENS = 1024
WARM_UP_TOKENS = 16
LOOK_TIMEOUT_S = 30.0  # /health may take 20 s before it says 503
HEALTH_TRIES = 3  # one 503 means busy
SERVER_FIELDS = (
    "version",
    "model_path",
    "served_model_name",
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "context_length",
    "max_total_num_tokens",
    "max_req_input_len",
    "tp_size",
    "attention_backend",
    "sampling_backend",
    "speculative_algorithm",
    "reasoning_parser",
    "tool_call_parser",
    "mem_fraction_static",
)


class Check(t.TypedDict):
    """state: passed, failed, not_applicable (this model or setting has no such thing) or skipped (an earlier failure forbids it).

    ok is null where nothing was judged.
    """

    name: str
    state: str
    ok: bool | None
    expected: str
    found: str
    seconds: float


class Completion(t.NamedTuple):
    content: str
    reasoning: str
    finish_reason: str
    usage: dict[str, int]
    error: str
    # of a stream only
    first_token_seconds: float | None = None
    chunks: int = 0
    done: bool = False


Ask = t.Callable[[str, t.Any, float], Answer]


# --- payloads ---


def chat_payload(
    model: str, prompt: str, *, max_tokens: int, thinking: bool | None, sampled: bool = False, stream: bool = False
) -> dict[str, t.Any]:
    """thinking None: leave it to the chat template. The two names of the switch are those of the templates in the field."""
    payload: dict[str, t.Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
    }
    payload.update({"temperature": 0.8, "top_p": 0.9, "top_k": 20} if sampled else {"temperature": 0})
    if thinking is not None:
        payload["chat_template_kwargs"] = {"enable_thinking": thinking, "thinking": thinking}
    if stream:
        payload.update({"stream": True, "stream_options": {"include_usage": True}})
    return payload


# --- server-sent events ---


class SseParser:
    """Turns pieces of a byte stream, cut anywhere, into the data of server-sent events."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[str]:
        self._rest += piece
        events: list[str] = []
        while True:
            match = re.search(rb"\r\n|\n|\r(?!$)", self._rest)
            if not match:
                return events
            line, self._rest = self._rest[: match.start()], self._rest[match.end() :]
            events += self._line(line.decode("utf-8", "replace"))

    def close(self) -> list[str]:
        """The event that was not ended by an empty line, if there is one."""
        rest, self._rest = self._rest.rstrip(b"\r\n"), b""
        events = self._line(rest.decode("utf-8", "replace")) if rest else []
        return events + self._line("")

    def _line(self, line: str) -> list[str]:
        if not line:
            events = ["\n".join(self._data)] if self._data else []
            self._data = []
            return events
        field, _colon, value = line.partition(":")
        if field == "data":
            self._data.append(value[1:] if value.startswith(" ") else value)
        return []  # comments and other fields mean nothing here


# --- reading ---


def _usage(data: t.Any) -> dict[str, int]:
    found = data.get("usage") if isinstance(data, dict) else None
    return {name: value for name, value in (found or {}).items() if name.endswith("_tokens") and isinstance(value, int)}


def _error_text(data: t.Any) -> str:
    """The message of an error body: OpenAI's shape, SGLang's flat one, or that of a proxy."""
    if not isinstance(data, dict):
        return ""
    error = data.get("error")
    if isinstance(error, dict):
        error = error.get("message") or json.dumps(error)
    if not error and data.get("object") == "error":
        error = data.get("message")
    return str(error) if error else ""


def read_error(answer: Answer) -> str:
    """What was wrong with an answer before its content is looked at; empty when it is a complete 200."""
    if answer.status is None:
        return answer.error or "no answer"
    if answer.status != 200:
        body = _error_text(answer.data()) or answer.body[:200].decode("utf-8", "replace").strip()
        return f"HTTP {answer.status}" + (f": {body}" if body else "")
    return answer.error


def read_completion(answer: Answer) -> Completion:
    """A chat completion that came in one piece."""
    error = read_error(answer)
    if error:
        return Completion("", "", "", {}, error)
    data = answer.data()
    choices = data.get("choices") if isinstance(data, dict) else None
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    message = first.get("message") if first else None
    if first is None or not isinstance(message, dict):
        said = _error_text(data) or "not a chat completion: " + answer.body[:120].decode("utf-8", "replace")
        return Completion("", "", "", {}, said)
    return Completion(
        content=str(message.get("content") or ""),
        reasoning=str(message.get("reasoning_content") or ""),
        finish_reason=str(first.get("finish_reason") or ""),
        usage=_usage(data),
        error="",
    )


def read_stream(answer: Answer) -> Completion:
    """A chat completion that came as a stream of server-sent events."""
    error = "" if answer.status == 200 and answer.content_type == "text/event-stream" else read_error(answer)
    if not error and answer.content_type != "text/event-stream":
        error = f"expected text/event-stream, came {answer.content_type or 'no content type'}"
    if error:
        return Completion("", "", "", {}, error)
    parser = SseParser()
    events = [(seconds, event) for seconds, piece in answer.pieces for event in parser.feed(piece)]
    events += [(answer.seconds, event) for event in parser.close()]
    content: list[str] = []
    reasoning: list[str] = []
    finish_reason = ""
    usage: dict[str, int] = {}
    first_token: float | None = None
    chunks = 0
    done = False
    for seconds, event in events:
        if event.strip() == "[DONE]":
            done = True
            break
        try:
            data = json.loads(event)
        except ValueError:
            error = error or f"an event is no JSON: {shorten(event, 80)}"
            continue
        error = error or _error_text(data)
        usage = _usage(data) or usage
        for choice in (data.get("choices") if isinstance(data, dict) else None) or []:
            delta = choice.get("delta") or {}
            said, thought = str(delta.get("content") or ""), str(delta.get("reasoning_content") or "")
            if said or thought:
                chunks += 1
                first_token = seconds if first_token is None else first_token
            content.append(said)
            reasoning.append(thought)
            finish_reason = str(choice.get("finish_reason") or finish_reason)
    return Completion(
        "".join(content), "".join(reasoning), finish_reason, usage, error or answer.error, first_token, chunks=chunks, done=done
    )


# --- judging ---


def check(name: str, ok: bool | None, expected: str, found: str, seconds: float, *, state: str = "") -> Check:
    return {
        "name": name,
        "state": state or ("passed" if ok else "failed"),
        "ok": ok,
        "expected": expected,
        "found": found,
        "seconds": round(seconds, 3),
    }


def says(text: str, expected: str) -> bool:
    """Whether the text has the expected answer as words of their own: "4" is not in "14". Case and spaces do not matter."""
    words = r"\s+".join(re.escape(word) for word in expected.split())
    return bool(words) and re.search(rf"(?<!\w){words}(?!\w)", text, re.IGNORECASE) is not None


def usage_fault(usage: t.Mapping[str, int]) -> str:
    """What is wrong with the token counts; empty when they agree."""
    prompt, completion, total = (usage.get(name, 0) for name in ("prompt_tokens", "completion_tokens", "total_tokens"))
    if not usage:
        return "no usage"
    if prompt < 1 or completion < 1:
        return f"usage counts {prompt} prompt and {completion} completion tokens"
    if prompt + completion != total:
        return f"usage does not add up: {prompt} + {completion} is not {total}"
    return ""


def _quoted(text: str) -> str:
    return json.dumps(shorten(" ".join(text.split()), 200), ensure_ascii=False)


def answer_fault(reply: Completion, expected: str) -> tuple[str, str]:
    """(what is wrong, a note): the note is for an answer that is right, but not as plain as it could be."""
    fault = note = ""
    if reply.error:
        fault = reply.error
    elif says(reply.content, expected):
        fault = usage_fault(reply.usage)
        if reply.finish_reason not in ("stop", "length"):
            fault = f"finish_reason {reply.finish_reason or 'missing'}"
        elif reply.finish_reason == "length":
            note = "cut off after max_tokens"
        if "<think>" in reply.content or "</think>" in reply.content:
            note = "thinking arrives inside the content: set reasoning_parser"
    elif not reply.content.strip() and says(reply.reasoning, expected):
        note = "only in reasoning_content: this model cannot be told not to think"
    elif not reply.content.strip() and reply.reasoning and reply.finish_reason == "length":
        fault = "max_tokens ended inside the thinking: give the question a higher max_tokens, or set verify.thinking"
    else:
        fault = f"{_quoted(reply.content)} (finish_reason {reply.finish_reason or 'missing'})"
    return fault, note


def judge_answer(name: str, reply: Completion, expected: str, seconds: float) -> Check:
    fault, note = answer_fault(reply, expected)
    found = fault or _quoted(reply.content or reply.reasoning) + (f" ({note})" if note else "")
    return check(name, not fault, f"an answer with {_quoted(expected)}", found, seconds)


def judge_stream(name: str, reply: Completion, whole: Completion | None, expected: str, seconds: float) -> Check:
    """The same question as a stream. Another wording with the right answer passes: on a GPU a cached prompt may change a late token."""
    fault, note = answer_fault(reply, expected)
    if not fault and not reply.done:
        fault = "the stream ended without [DONE]"
    if not fault and reply.first_token_seconds is None:
        fault = "no chunk had text"
    if not fault and whole is not None and reply.content != whole.content:
        note = f"other words than without streaming, {_quoted(whole.content)}"
    found = fault or f"{_quoted(reply.content or reply.reasoning)} in {reply.chunks} chunks" + (f" ({note})" if note else "")
    return check(name, not fault, f"the same answer in chunks, usage, and [DONE]: {_quoted(expected)}", found, seconds)


def judge_thinking(
    name: str, on: Completion, off: Completion | None, *, thinks: bool | None, parser: str | None, expected: str, seconds: float
) -> Check:
    """Thinking and answer kept apart when it thinks, and no thinking when told not to.

    A model or a setting that has no such thing is told apart from a failure.
    """
    wanted = "thinking in reasoning_content, the answer in content; no thinking when switched off"
    if not on.error and not on.reasoning:
        if not parser:
            inside = "<think>" in on.content or "</think>" in on.content
            why = "no reasoning parser is set" + ("; thinking arrives inside the content" if inside else "")
            return check(name, None, wanted, why, seconds, state="not_applicable")
        if not thinks:
            return check(name, None, wanted, "this model does not think", seconds, state="not_applicable")
    fault = on.error
    if not fault and not on.reasoning:
        fault = f"no reasoning_content with thinking on; content {_quoted(on.content)}"
    elif not fault and not says(on.content, expected):
        cut = " (cut off by max_tokens)" if on.finish_reason == "length" else ""
        fault = f"with thinking on, content is {_quoted(on.content)}{cut}"
    elif not fault and off is not None and off.reasoning:
        fault = f"with thinking off, reasoning_content is {_quoted(off.reasoning)}"
    found = fault or f"{len(on.reasoning)} characters of thinking, then {_quoted(on.content)}"
    return check(name, not fault, wanted, found, seconds)


def judge_no_thinking(name: str, reply: Completion, *, seconds: float) -> Check:
    """verify.thinking is false: the model, left to itself, must not think. reply is to a request that says nothing of thinking."""
    wanted = "no thinking (verify.thinking is false)"
    if reply.error:
        return check(name, None, wanted, "there was no answer to judge", seconds, state="skipped")
    inside, mark, _rest = reply.content.partition("</think>")
    thought = reply.reasoning.strip() or (inside if mark or "<think>" in inside else "").replace("<think>", "").strip()
    found = f"{len(thought)} characters of thinking, {_quoted(thought)}" if thought else "no thinking"
    return check(name, not thought, wanted, found, seconds)


def judge_models(answer: Answer, served_name: str) -> tuple[Check, dict[str, t.Any]]:
    """Whether /v1/models serves our name, and how long a prompt may be."""
    wanted = f"/v1/models with the id {served_name} and its max_model_len"
    error = read_error(answer)
    data = answer.data() if not error else None
    models = data.get("data") if isinstance(data, dict) else None
    models = [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []
    ours: dict[str, t.Any] = next((model for model in models if model.get("id") == served_name), {})
    length = ours.get("max_model_len")
    if error:
        found = error
    elif not ours:
        found = "ids " + (", ".join(str(model.get("id")) for model in models) or "none")
    else:
        found = f"{served_name}, max_model_len {length}"
    ok = bool(ours) and isinstance(length, int) and length > 0
    return check("models", ok, wanted, shorten(found), answer.seconds), {"id": ours.get("id"), "max_model_len": length}


def read_server_info(data: t.Any) -> dict[str, t.Any]:
    """The fields of /server_info that may be shown: it also holds the key, in clear."""
    if not isinstance(data, dict):
        return {}
    server = {name: data.get(name) for name in SERVER_FIELDS}
    states = data.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    server["max_running_requests"] = state.get("effective_max_running_requests_per_dp")
    memory = state.get("memory_usage")
    if isinstance(memory, dict):
        server["memory_gib"] = {
            name: memory.get(name) for name in ("weight", "kvcache", "graph") if isinstance(memory.get(name), (int, float))
        }
    return server


def judge_identity(answer: Answer, server: t.Mapping[str, t.Any], *, model_path: str | None, release: str | None) -> Check:
    """Whether the one that answers is ours: when another server owns the port, it answers everything else just as well."""
    wanted = " and ".join(
        part
        for part in (
            f"/server_info with model_path {model_path}" if model_path else "/server_info",
            f"version {release}" if release else "",
        )
        if part
    )
    error = read_error(answer)
    path, version = server.get("model_path"), server.get("version")
    ok = not error and bool(version)
    if model_path and str(path).rstrip("/") != model_path.rstrip("/"):
        ok = False
    if release and version != release:
        ok = False
    return check("identity", ok, wanted, shorten(error or f"model_path {path}, version {version}"), answer.seconds)


# --- the sequence ---


class Probe(t.TypedDict):
    name: str
    url: str
    ok: bool
    checks: list[Check]
    server: dict[str, t.Any]
    model: dict[str, t.Any]
    warm_up_seconds: float | None
    first_token_seconds: float | None
    answer_seconds: float | None


def _unauthorized(found: Check, api_key_path: str | None) -> Check:
    if re.match(r"HTTP 40[13]\b", found["found"]):
        whose = f"the key in {api_key_path}" if api_key_path else "a request without a key, and this instance has none"
        found["found"] = f"{found['found']} - the server is up and refuses {whose}"
    return found


def run_probe(  # noqa: PLR0915  (a sequence is read from top to bottom)
    instance: t.Mapping[str, t.Any],
    questions: t.Sequence[t.Mapping[str, t.Any]],
    *,
    ask: Ask,
    request_timeout_s: float,
    secrets: t.Sequence[str] = (),
) -> Probe:
    """Asks one engine all there is to ask. ask(path, payload or None, timeout) sends a request with the instance's key."""
    verify = instance.get("verify") or {}
    thinks: bool | None = verify.get("thinking")
    off = None if thinks is False else False
    name = str(instance["served_model_name"])
    probe: Probe = {
        "name": str(instance["name"]),
        "url": str(instance["url"]),
        "ok": False,
        "checks": [],
        "server": {},
        "model": {},
        "warm_up_seconds": None,
        "first_token_seconds": None,
        "answer_seconds": None,
    }
    checks = probe["checks"]

    def finish() -> Probe:
        for one in checks:
            one["found"] = hide_secrets(one["found"], secrets)
            one["expected"] = hide_secrets(one["expected"], secrets)
        probe["ok"] = not any(one["ok"] is False for one in checks)
        return probe

    def skip(why: str, *names: str) -> Probe:
        checks.extend(check(one, None, "", why, 0.0, state="skipped") for one in names)
        return finish()

    generation = ("warm_up", *(f"answer {number}" for number, _question in enumerate(questions, 1)), "stream", "thinking")

    answer = ask("/health", None, LOOK_TIMEOUT_S)
    for _again in range(HEALTH_TRIES - 1):
        if answer.status != 503:
            break
        answer = ask("/health", None, LOOK_TIMEOUT_S)
    checks.append(check("health", answer.status == 200, "HTTP 200 from /health", read_error(answer) or "HTTP 200", answer.seconds))
    if answer.status is None:
        return skip("the engine does not answer", "models", "identity", *generation)

    found, probe["model"] = judge_models(ask("/v1/models", None, LOOK_TIMEOUT_S), name)
    checks.append(_unauthorized(found, instance.get("api_key_path")))
    if re.match(r"HTTP 40[13]\b", found["found"]):
        return skip("the key is refused", "identity", *generation)

    answer = ask("/server_info", None, LOOK_TIMEOUT_S)
    if answer.status == 404:  # older releases
        answer = ask("/get_server_info", None, LOOK_TIMEOUT_S)
    probe["server"] = read_server_info(answer.data())
    path = (instance.get("model") or {}).get("path")
    release = (instance.get("environment") or {}).get("release")
    checks.append(judge_identity(answer, probe["server"], model_path=path, release=release))
    if not checks[-1]["ok"] and answer.status == 200:
        return skip("another server owns the port", *generation)

    length = probe["model"].get("max_model_len")
    room = length // 2 if isinstance(length, int) and length > 0 else THINKING_TOKENS

    budget = float(verify.get("warmup_timeout_s") or 300)
    payload = chat_payload(name, str(questions[0]["prompt"]), max_tokens=min(WARM_UP_TOKENS, room), thinking=off, sampled=True)
    answer = ask("/v1/chat/completions", payload, budget)
    reply = read_completion(answer)
    tokens = reply.usage.get("completion_tokens", 0)
    ok = not reply.error and tokens > 0
    checks.append(check("warm_up", ok, f"a sampled completion within {budget:g} s", reply.error or f"{tokens} tokens", answer.seconds))
    if not ok:
        return skip("the warm-up gave nothing", *generation[1:])
    probe["warm_up_seconds"] = answer.seconds

    whole: Completion | None = None
    for number, question in enumerate(questions, 1):
        prompt, expected = str(question["prompt"]), str(question["expect"])
        limit = min(int(question.get("max_tokens") or ANSWER_TOKENS), room)
        answer = ask("/v1/chat/completions", chat_payload(name, prompt, max_tokens=limit, thinking=off), request_timeout_s)
        reply = read_completion(answer)
        whole = reply if number == 1 else whole
        checks.append(judge_answer(f"answer {number}", reply, expected, answer.seconds))

    prompt, expected = str(questions[0]["prompt"]), str(questions[0]["expect"])
    limit = min(int(questions[0].get("max_tokens") or ANSWER_TOKENS), room)
    answer = ask("/v1/chat/completions", chat_payload(name, prompt, max_tokens=limit, thinking=off, stream=True), request_timeout_s)
    reply = read_stream(answer)
    probe["first_token_seconds"] = reply.first_token_seconds
    probe["answer_seconds"] = answer.seconds if not reply.error else None
    checks.append(judge_stream("stream", reply, whole, expected, answer.seconds))

    if thinks is False:
        if whole is not None:
            checks.append(judge_no_thinking("thinking", whole, seconds=0.0))  # the first question left it to the model
        return finish()
    limit = min(max(int(questions[0].get("max_tokens") or 0), THINKING_TOKENS), room)
    answer = ask("/v1/chat/completions", chat_payload(name, prompt, max_tokens=limit, thinking=True), request_timeout_s)
    checks.append(
        judge_thinking(
            "thinking",
            read_completion(answer),
            whole,
            thinks=thinks,
            parser=probe["server"].get("reasoning_parser"),
            expected=expected,
            seconds=answer.seconds,
        )
    )
    return finish()


def failure_text(probe: Probe) -> str:
    """All failed checks of an instance in one message; empty when there are none."""
    failed = [one for one in probe["checks"] if one["ok"] is False]
    if not failed:
        return ""
    lines = [f"{probe['name']} at {probe['url']}: {len(failed)} of {len(probe['checks'])} checks failed"]
    lines += [f"  {one['name']}: expected {one['expected']}; found {one['found']}" for one in failed]
    return "\n".join(lines)


def question_faults(questions: t.Any) -> list[str]:
    """What is wrong with a list of questions, in words."""
    if not isinstance(questions, list) or not questions:
        return ["expected at least one question, found none"]
    faults = []
    for number, question in enumerate(questions, 1):
        if not isinstance(question, dict):
            faults.append(f"question {number}: expected a dictionary with prompt and expect, found {type(question).__name__}")
            continue
        unknown = sorted(set(question) - {"prompt", "expect", "max_tokens"})
        missing = [name for name in ("prompt", "expect") if not str(question.get(name, "")).strip()]
        if missing:
            faults.append(f"question {number}: {' and '.join(missing)} missing or empty")
        if unknown:
            faults.append(f"question {number}: unknown {', '.join(unknown)}; it may have prompt, expect and max_tokens")
    return faults
