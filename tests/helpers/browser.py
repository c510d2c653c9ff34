"""Headless Chromium over a pipe: no socket, no driver, and every request and console message of a page is seen."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 60.0  # seconds for one answer


class Browser:
    """call() speaks the DevTools protocol to the one page; the rest says what a test wants to say."""

    def __init__(self, send: int, receive: int):
        self.pipes = send, receive
        self.session, self.number, self.left = None, 0, b""
        self.events: list[dict] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.pipes[0], json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda m: m.get("id") == self.number)
        assert "error" not in answer, answer
        return answer["result"]

    def _wait(self, wanted):
        """The next message that is wanted; the events before it are kept."""
        until = time.monotonic() + PATIENCE
        while True:
            while b"\0" in self.left:
                text, self.left = self.left.split(b"\0", 1)
                message = json.loads(text)
                if "method" in message:
                    self.events.append(message)
                if wanted(message):
                    return message
            ready, _, _ = select.select([self.pipes[1]], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            read = os.read(self.pipes[1], 1 << 20)
            assert read, "the browser ended"
            self.left += read

    def open(
        self, file: Path, *, width: int = 1280, height: int = 900, dark: bool = False, mobile: bool = False
    ) -> None:
        """Opens a file; its events are kept from here on."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if mobile else 1, mobile=mobile)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=file.resolve().as_uri())
        self._wait(lambda m: m.get("method") == "Page.loadEventFired")

    def evaluate(self, script: str):
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def mouse(self, kind: str, x: float, y: float) -> None:
        button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y)

    def press(self, key: str) -> None:
        code = {"Enter": 13, "Tab": 9, " ": 32, "ArrowRight": 39, "ArrowDown": 40, "PageDown": 34, "End": 35}.get(
            key, 0
        )
        text = {"Enter": "\r", " ": " "}.get(key)
        typed = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        file.write_bytes(base64.b64decode(picture))

    def print(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))

    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[dict]:
        """What stands in the console: errors, warnings, what the page's policy blocked."""
        return [
            e["params"]
            for e in self.events
            if e["method"] in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        ]


@contextmanager
def browser():
    """Starts Chromium with a profile of its own; ends it, whatever happens."""
    (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()

    def wire():  # Chromium reads 3 and writes 4
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_read, from_write)]
        for fd, place in zip(high, (3, 4), strict=True):
            os.dup2(fd, place)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}"],
            preexec_fn=wire, pass_fds=(3, 4), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(to_read)
        os.close(from_write)
        try:
            yield Browser(to_write, from_read)
        finally:
            os.close(to_write)
            os.close(from_read)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
