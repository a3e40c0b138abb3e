# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A small HTTP client with a deadline for the whole exchange. No proxies, no redirects, no TLS (the engine speaks plain HTTP).

PRIVATE to the collection. The one place of the collection that opens a connection to an engine.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
import typing as t
from urllib.parse import urlsplit

MAX_BODY_BYTES = 8 * 1024 * 1024


class Answer(t.NamedTuple):
    """error is empty when an answer came; pieces has the body as it arrived, with the seconds since the request began."""

    status: int | None
    content_type: str
    pieces: list[tuple[float, bytes]]
    seconds: float
    error: str

    @property
    def body(self) -> bytes:
        return b"".join(piece for _seconds, piece in self.pieces)

    def data(self) -> t.Any:
        """The body as JSON, None when it is none."""
        try:
            return json.loads(self.body.decode("utf-8", "replace"))
        except ValueError:
            return None


def address_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", parts.port or 80


def port_answers(url: str, *, timeout_s: float = 1.0) -> bool:
    """Whether a TCP connection is accepted."""
    try:
        with socket.create_connection(address_of(url), timeout=timeout_s):
            return True
    except OSError:
        return False


def request(url: str, path: str, *, payload: t.Any = None, key: str = "", timeout_s: float) -> Answer:
    """GET, or POST of a JSON payload. Never raises for what the other side does; ends at the deadline whatever it does.

    A socket's own time-out starts anew with each byte, so a watchdog shuts the socket down at the deadline.
    """
    host, port = address_of(url)
    headers = {"Accept": "application/json, text/event-stream", "Connection": "close"}
    body = None
    if key:
        headers["Authorization"] = "Bearer " + key
    if payload is not None:
        headers["Content-Type"] = "application/json"
        body = json.dumps(payload).encode()
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    began = time.monotonic()
    expired = threading.Event()
    watchdog: threading.Timer | None = None
    status: int | None = None
    content_type = error = ""
    pieces: list[tuple[float, bytes]] = []

    def expire(sock: socket.socket) -> None:
        expired.set()
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    try:
        connection.connect()
        # The socket itself: http.client lets go of it at "Connection: close", and the response reads on from it.
        watchdog = threading.Timer(max(0.01, timeout_s - (time.monotonic() - began)), expire, [connection.sock])
        watchdog.daemon = True
        watchdog.start()
        connection.request("GET" if body is None else "POST", path, body=body, headers=headers)
        response = connection.getresponse()
        status = response.status
        content_type = response.headers.get_content_type()
        error = _read_body(response, pieces, began)
    except socket.timeout:
        expired.set()
    except ConnectionRefusedError:
        error = "connection refused"
    except (OSError, http.client.HTTPException) as failure:
        error = f"{type(failure).__name__}: {failure}".rstrip(": ")
    finally:
        if watchdog is not None:
            watchdog.cancel()
        connection.close()
    if expired.is_set():
        error = f"no complete answer within {timeout_s:g} s"
    return Answer(status, content_type, pieces, round(time.monotonic() - began, 3), error)


def _read_body(response: http.client.HTTPResponse, pieces: list[tuple[float, bytes]], began: float) -> str:
    """Adds the pieces of the body as they arrive; says what went wrong, nothing when the body is complete."""
    size = 0
    while True:
        piece = response.read1(65536)
        if not piece:
            return f"the connection ended {response.length} bytes too early" if response.length else ""
        pieces.append((round(time.monotonic() - began, 3), piece))
        size += len(piece)
        if size > MAX_BODY_BYTES:
            return f"more than {MAX_BODY_BYTES} bytes came"
