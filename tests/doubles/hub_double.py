# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A small stand-in for the Hub's HTTP interface: one repository, one commit, faults on request.

It speaks what huggingface_hub's client asks for (model_info, HEAD and GET of files with ranges), so that the real client can be tested
without a network. Only tests use it.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
import typing as t
import urllib.parse


class HubDouble:
    def __init__(self, repo: str, commit: str, files: dict[str, bytes], token: str | None = None) -> None:
        self.repo = repo
        self.commit = commit
        self.files = files
        self.token = token
        self.gated = False  # the repository's terms were not accepted
        self.cut: dict[str, int] = {}  # file -> its answers end after so many bytes
        self.requests: list[tuple[str, str, str | None]] = []  # method, path, range
        double = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: t.Any) -> None:  # noqa: A002  # the interface of the base class
                pass

            def do_HEAD(self) -> None:
                double.answer(self, body=False)

            def do_GET(self) -> None:
                double.answer(self, body=True)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> HubDouble:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def got(self, name: str) -> list[str | None]:
        """The ranges that were asked for of a file, in order."""
        return [ranges for method, path, ranges in self.requests if method == "GET" and path.endswith(f"/{name}")]

    def answer(self, request: http.server.BaseHTTPRequestHandler, body: bool) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(request.path).path)
        self.requests.append((request.command, path, request.headers.get("Range")))
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            self.send(request, 401, b"{}", {"X-Error-Code": "RepoNotFound", "Content-Type": "application/json"}, body=body)
            return
        match = re.fullmatch(r"/api/models/(?P<repo>[^/]+/[^/]+)(/revision/(?P<revision>[^/]+))?", path)
        if match:
            self.answer_info(request, match["repo"], match["revision"] or "main", body)
            return
        if path == f"/api/models/{self.repo}/tree/{self.commit}":
            tree = [{"type": "file", "oid": sha1(content), "size": len(content), "path": name} for name, content in self.files.items()]
            self.send(request, 200, json.dumps(tree).encode(), {"Content-Type": "application/json"}, body=body)
            return
        match = re.fullmatch(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)", path)
        if match and match["repo"] == self.repo and match["revision"] == self.commit and match["name"] in self.files:
            self.answer_file(request, match["name"], body)
            return
        self.send(request, 404, b"", {"X-Error-Code": "EntryNotFound"}, body=body)

    def answer_info(self, request: http.server.BaseHTTPRequestHandler, repo: str, revision: str, body: bool) -> None:
        if repo != self.repo:
            self.send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"}, body=body)
        elif self.gated:
            self.send(request, 403, b"{}", {"X-Error-Code": "GatedRepo"}, body=body)
        elif revision not in (self.commit, "main"):
            self.send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body=body)
        else:
            siblings = [{"rfilename": name, "size": len(content), "blobId": sha1(content)} for name, content in self.files.items()]
            info = {"_id": "0", "id": repo, "modelId": repo, "sha": self.commit, "private": False, "tags": [], "downloads": 0, "likes": 0}
            self.send(request, 200, json.dumps({**info, "siblings": siblings}).encode(), {"Content-Type": "application/json"}, body=body)

    def answer_file(self, request: http.server.BaseHTTPRequestHandler, name: str, body: bool) -> None:
        content = self.files[name]
        headers = {"X-Repo-Commit": self.commit, "ETag": f'"{sha1(content)}"', "Accept-Ranges": "bytes"}
        match = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range") or "")
        status, begin = (206, int(match[1])) if match else (200, 0)
        if match:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        self.send(request, status, content[begin:], headers, body=body, cut=self.cut.get(name) if body else None)

    @staticmethod
    def send(
        request: http.server.BaseHTTPRequestHandler,
        status: int,
        content: bytes,
        headers: dict[str, str],
        *,
        body: bool,
        cut: int | None = None,
    ) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if body:
            request.wfile.write(content if cut is None else content[:cut])
        if cut is not None and cut < len(content):
            request.close_connection = True


def sha1(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
