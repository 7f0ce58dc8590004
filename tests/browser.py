"""A real browser without a window: Chromium, spoken to over a pipe in its own protocol.

    write  {"id": 1, "method": "Page.navigate", …}\\0  ->  descriptor 3 of the browser
    read   {"id": 1, "result": …}\\0, events           <-  descriptor 4

No driver and no package is needed for that. Where there is no Chromium, tests skip and say so.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Page:
    """One tab, and everything it complained of or asked for."""

    def __init__(self, into: int, out: int) -> None:
        self._into, self._out = into, out
        self._rest = b""
        self._serial = 0
        self._session = ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.blocked: list[str] = []  # why a request was not made after all
        self._loaded = False
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, path: Path, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
        self.visit(path.resolve().as_uri(), width, height, scheme)

    def visit(self, url: str, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
        self._loaded = False
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._call("Page.navigate", url=url)
        while not self._loaded:
            self._receive()

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = 20) -> Any:
        """Until an expression in the page is true."""
        end = time.monotonic() + seconds
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"never: {script}\n{self.run('document.body.innerText')[:2000]}"
            time.sleep(0.02)
        return found

    def press(self, key: str, *, shift: bool = False) -> None:
        """A key as from a keyboard; one character is typed."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        codes = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35}
        code = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
        for kind in ("keyDown", "keyUp"):
            own = text if kind == "keyDown" else {}
            self._call(
                "Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 if shift else 0, **code, **own
            )

    def mouse(self, kind: str, x: float, y: float) -> None:
        """mousePressed, mouseMoved or mouseReleased, with the left button."""
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def type(self, selector: str, text: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.run(f"document.querySelector({json.dumps(selector)}).value = ''")
        self._call("Input.insertText", text=text)

    def screenshot(self, path: Path, top: int = 0, height: int = 900, width: int = 1200) -> None:
        clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
        found = self._call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _call(self, method: str, **params: Any) -> Any:
        self._serial += 1
        wanted = self._serial
        message: dict[str, Any] = {"id": wanted, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._into, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive()
            if found.get("id") == wanted:
                assert "error" not in found, found["error"]
                return found["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._out, 1 << 16)
            assert more, "the browser went away"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        self._note(found.get("method", ""), found.get("params", {}))
        return found

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(params["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Network.loadingFailed":
            self.blocked.append(params.get("blockedReason", ""))
        elif method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"a dialog: {params['message']}")


def find_chromium() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def open_page() -> Iterator[Page]:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on this machine: `apt-get install chromium` (the page is then tested in it)")
    down_read, down_write = os.pipe()
    up_read, up_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]
        flags += [
            "--no-first-run",
            "--disable-extensions",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
        ]

        def hand_over() -> None:
            """The browser reads from 3 and writes to 4; the copies first, lest one lies on the other."""
            read, write = os.dup(down_read), os.dup(up_write)
            os.dup2(read, 3)
            os.dup2(write, 4)

        browser = subprocess.Popen(
            [program, *flags, "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=hand_over,
        )
        os.close(down_read)
        os.close(up_write)
        try:
            yield Page(down_write, up_read)
        finally:
            os.close(down_write)
            os.close(up_read)
            browser.terminate()
            browser.wait()
