"""Headless Chromium without a driver: the DevTools protocol over two pipes.

https://chromedevtools.github.io/devtools-protocol/; with ``--remote-debugging-pipe``
messages are JSON texts ended by NUL bytes, read from descriptor 3, written to 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.harness import PATIENCE_S


class Chrome:
    """A browser with one page. Numbers of keys and places are in CSS pixels."""

    def __init__(
        self, profile: Path, width: int = 1280, height: int = 800, *, scale: float = 1
    ) -> None:
        found = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        assert found is not None, "tests/system-packages.sh long installs it"
        read_end, self._out = os.pipe()
        self._in, write_end = os.pipe()
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", f'exec "$@" 3<&{read_end} 4>&{write_end}', "bash", found,
             "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
             "--hide-scrollbars", f"--force-device-scale-factor={scale}",
             f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"],
            pass_fds=(read_end, write_end), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_end)
        os.close(write_end)
        self._number = 0
        self._pending = b""
        self.events: list[dict[str, Any]] = []
        targets = self.send("Target.getTargets", session=None)["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        attached = self.send("Target.attachToTarget", session=None, targetId=page, flatten=True)
        self._session: str = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Chrome:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.send("Browser.close", session=None)
            self._process.wait(PATIENCE_S)
        except (OSError, EOFError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait(PATIENCE_S)
        os.close(self._in)
        os.close(self._out)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self._pending:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser said nothing")
            piece = os.read(self._in, 1 << 16)
            if not piece:
                raise EOFError("the browser has ended")
            self._pending += piece
        message, _, self._pending = self._pending.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def send(self, method: str, session: str | None = "", **parameters: Any) -> Any:
        """A command's result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = self._session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._out, content) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, address: str) -> float:
        """Goes there. Returns the seconds until the page was loaded and painted."""
        self.events.clear()
        start = time.monotonic()
        self.send("Page.navigate", url=address)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())
        frame = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        self.evaluate(f"{frame}.then(() => 1)")
        return time.monotonic() - start

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def key(self, key: str) -> None:
        """Presses a key, by the name that events give it."""
        text = key if len(key) == 1 else ""
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, words: str) -> None:
        self.send("Input.insertText", text=words)

    def mouse(self, x: float, y: float, *, click: bool = False) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.send(
                    "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
                )

    def theme(self, name: str) -> None:
        """light or dark, as the system would have it."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def picture(self) -> bytes:
        """The page as PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot")["data"])

    def print(self) -> bytes:
        """The page as PDF."""
        answer = self.send("Page.printToPDF", landscape=True, printBackground=True)
        return base64.b64decode(answer["data"])

    @property
    def troubles(self) -> list[str]:
        """Errors and warnings of the page, and every address that it asked for."""
        found = []
        for event in self.events:
            if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded"):
                found.append(json.dumps(event["params"]))
            if event["method"] == "Network.requestWillBeSent":
                found.append(event["params"]["request"]["url"])
        return found
