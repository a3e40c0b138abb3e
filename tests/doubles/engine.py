#!/usr/bin/env python3
"""A scripted stand-in for the engine, for faults that the real one cannot be made to show.

It prints a start like the real one's, listens, and answers as the behaviour says. Also an ExecStart for a unit on a test host:
    engine.py --port 30000 --behaviour wrong_answer --load-seconds 3
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import signal
import sys
import threading
import time
import typing as t

ANSWERS = {"France": "Paris", "planet": "Mars"}
KEY = "key-of-the-double"
START = (
    "[2026-12-01 02:48:19] Init torch distributed begin.",
    "[2026-12-01 02:48:22] Load weight begin. avail mem=139.13 GB",
    "[2026-12-01 02:48:22] Load weight end. elapsed=0.17 s, type=Qwen3ForCausalLM, avail mem=137.94 GB, mem usage=1.18 GB.",
    "[2026-12-01 02:49:25] max_total_num_tokens=20000, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=4, context_len=4096, available_gpu_mem=11.70 GB",
)


class Double(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behaviour: str, port: int = 0, *, warm_seconds: float = 0) -> None:
        self.behaviour = behaviour
        self.began = time.monotonic()
        self.warm_seconds = warm_seconds
        self.paths: list[str] = []
        super().__init__(("127.0.0.1", port), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Double

    def log_message(self, format: str, *args: t.Any) -> None:  # noqa: A002
        pass

    def is_(self, *behaviours: str) -> bool:
        return self.server.behaviour in behaviours

    def reply(self, status: int, data: t.Any, content_type: str = "application/json") -> None:
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        warming = time.monotonic() - self.server.began < self.server.warm_seconds
        busy = self.is_("busy_once") and self.server.paths.count("/health") == 1
        refused = self.is_("wants_key") and self.headers.get("Authorization") != f"Bearer {KEY}"
        if self.path in ("/health", "/ready"):
            self.reply(503 if warming or busy else 200, b"", "text/plain")
        elif refused:
            self.reply(401, {"error": "Unauthorized"})
        elif self.path == "/v1/models":
            self.reply(200, {"data": [{"id": "tiny-qa", "max_model_len": 4096}]})
        elif self.path == "/server_info":
            path = "/srv/other" if self.is_("another_server") else "/srv/tiny-qa"
            parser = None if self.is_("no_parser") else "qwen3"
            secret = {"api_key": KEY, "launch_command": f"--api-key {KEY}"}
            self.reply(200, {"model_path": path, "version": "0.5.23", "dtype": "auto", "reasoning_parser": parser, **secret})
        else:
            self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.paths.append(self.path)
        if self.is_("hangs"):
            time.sleep(3600)
        if self.is_("drips"):
            self.drip()
        elif self.is_("error_500"):
            self.reply(500, {"object": "error", "message": f"it broke with {KEY}", "code": 500})
        elif self.is_("no_json"):
            self.reply(200, b"<html>hello</html>", "text/html")
        elif asked.get("stream"):
            self.stream(*self.words(asked))
        else:
            self.whole(*self.words(asked))

    def drip(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "100000")
        self.end_headers()
        while True:
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(0.05)

    def words(self, asked: dict[str, t.Any]) -> tuple[str, str]:
        prompt = asked["messages"][-1]["content"]
        answer = next((text for word, text in ANSWERS.items() if word in prompt), "I do not know.")
        if self.is_("wrong_answer"):
            answer = "Lyon"
        thinks = asked.get("chat_template_kwargs", {}).get("enable_thinking", True) and not self.is_("never_thinks")
        thought = "I know this." if thinks else ""
        if self.is_("no_parser") and thought:
            return f"<think>{thought}</think>{answer}", ""
        if self.is_("answers_into_thinking"):
            return "", f"{thought} {answer}".strip()
        return answer, thought

    def usage(self) -> dict[str, int]:
        return {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 14 if self.is_("wrong_usage") else 13}

    def whole(self, content: str, thought: str) -> None:
        message = {"role": "assistant", "content": content, "reasoning_content": thought or None}
        self.reply(200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": self.usage()})

    def stream(self, content: str, thought: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        deltas = [{"role": "assistant", "content": ""}, {"reasoning_content": thought}]
        if not self.is_("stream_without_text"):
            deltas += [{"content": content[:2]}, {"content": content[2:]}]
        events = [json.dumps({"choices": [{"delta": delta, "finish_reason": None}]}) for delta in deltas]
        events.append(json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]}))
        events.append(json.dumps({"choices": [], "usage": self.usage()}))
        if self.is_("malformed_stream"):
            events[2] = '{"choices": [{"delta": {"cont'
        if not self.is_("stream_without_done"):
            events.append("[DONE]")
        self.wfile.write(b": a comment\r\n\r\n")
        for event in events:
            self.wfile.write(f"data: {event}\n\n".encode())
            self.wfile.flush()


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--behaviour", default="good")
    parser.add_argument("--load-seconds", type=float, default=1)
    parser.add_argument("--warm-seconds", type=float, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if options.behaviour == "unknown_flag":
        say("sglang serve: error: unrecognized arguments: --no-such-flag 1")
        sys.exit(2)
    for line in START:
        say(line)
        time.sleep(options.load_seconds / len(START))
        if options.behaviour == "dies_loading" and "Load weight begin" in line:
            say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 192.00 MiB.")
            say("[2026-12-01 02:49:25] Received sigquit from a child process. It usually means the child failed.")
            os.kill(os.getpid(), signal.SIGKILL)
        if options.behaviour == "stands_still" and "Load weight begin" in line:
            time.sleep(3600)
    server = Double(options.behaviour, options.port, warm_seconds=options.warm_seconds)
    say(f"INFO:     Uvicorn running on {server.url} (Press CTRL+C to quit)")
    ready = threading.Timer(options.warm_seconds, say, ["[2026-12-01 02:49:33] The server is fired up and ready to roll!"])
    ready.daemon = True
    ready.start()
    server.serve_forever()


if __name__ == "__main__":
    main()
