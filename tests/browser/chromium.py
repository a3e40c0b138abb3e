"""Chromium without a window, driven over a pipe with the DevTools protocol: the standard library is enough for it.

It records every request, every line of the console and every exception of a page.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time
import types
import typing as t

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
# As root there is no sandbox, and nothing may ask the network on its own.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)

# A page is looked at on a phone and on a desk, light and dark.
PHONE, DESK = 360, 1280
LOOKS = [(PHONE, False), (PHONE, True), (DESK, False), (DESK, True)]
# Letters that do not stand out enough from what is behind them: WCAG 2 asks for 4.5 to 1.
FAINT = """
(() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => numbers(color).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if ((numbers(color)[3] ?? 1) > 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const faint = new Set();
  let seen = 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const parent = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || parent.closest("svg")) continue;
    seen += 1;
    const pair = [light(getComputedStyle(parent).color), light(behind(parent))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < 4.5) faint.add(`${parent.tagName}.${parent.className} ${ratio.toFixed(2)}: ${walk.currentNode.data.trim().slice(0, 30)}`);
  }
  return {seen, faint: [...faint]};
})()
"""


def _high(descriptor: int) -> int:
    """The same pipe at a number that is free for the child's 3 and 4."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


class Browser:
    """One tab. Every call ends after timeout_s at the latest."""

    def __init__(self, timeout_s: float = 60.0) -> None:
        program = next((found for found in map(shutil.which, NAMES) if found), None)
        assert program, f"expected one of {', '.join(NAMES)} on the PATH (Debian: apt-get install chromium)"
        self.timeout_s = timeout_s
        self.events: list[dict[str, t.Any]] = []
        self._profile = tempfile.mkdtemp()
        theirs_in, ours_out = map(_high, os.pipe())
        ours_in, theirs_out = map(_high, os.pipe())

        def numbers() -> None:
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            preexec_fn=numbers,  # noqa: PLW1509  (no threads here)
            pass_fds=(3, 4),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        pages = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        self._session = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(30)
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _message(self, deadline: float) -> dict[str, t.Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self._in, 1 << 20) if ready else b""
            assert part, f"Chromium said nothing for {self.timeout_s} s, or has ended ({self._process.poll()})"
            self._rest += part
        line, self._rest = self._rest.split(b"\0", 1)
        return t.cast("dict[str, t.Any]", json.loads(line))

    def call(self, method: str, **parameters: t.Any) -> dict[str, t.Any]:
        self._number += 1
        asked: dict[str, t.Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            asked["sessionId"] = self._session
        os.write(self._out, json.dumps(asked).encode() + b"\0")
        deadline = time.monotonic() + self.timeout_s
        while True:
            message = self._message(deadline)
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                return t.cast("dict[str, t.Any]", message["result"])
            self.events.append(message)

    def show(self, file: pathlib.Path, *, width: int, height: int = 800, dark: bool = False, mobile: bool = False) -> float:
        """Load a file at a size and in a colour scheme. Returns the seconds until it was loaded and laid out."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.events.clear()
        started = time.monotonic()
        self.call("Page.navigate", url=file.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message(started + self.timeout_s))
        self.evaluate("document.documentElement.getBoundingClientRect().height")
        return time.monotonic() - started

    def evaluate(self, expression: str) -> t.Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def requests(self) -> list[str]:
        """What the page asked for since it was shown, the page itself included."""
        return [event["params"]["request"]["url"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """Lines of the console and exceptions since the page was shown."""
        kinds = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [json.dumps(event["params"])[:500] for event in self.events if event.get("method") in kinds]

    def screenshot(self, file: pathlib.Path, *, whole: bool = True) -> None:
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(answer["data"]))
