"""A headless Chromium, driven by chromedriver over plain HTTP: the W3C's WebDriver protocol needs no package."""

import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

_FLAGS = (
    "--headless",
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",  # a click must not meet a page that is still scrolling
)
_PATIENCE = 120  # seconds: a loaded machine starts a browser slowly
missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
needs_browser = pytest.mark.skipif(bool(missing), reason=f"{' and '.join(missing)} not installed")


class Browser:
    """One session; see `open_browser`."""

    def __init__(self, address: str, profile: str, size: tuple[int, int]) -> None:
        flags = [*_FLAGS, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"]
        wanted = {
            "goog:chromeOptions": {"args": flags, "binary": shutil.which("chromium")},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        self._address = address
        session = self._post("/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        self._address = f"{address}/session/{session}"

    def open(self, path: Path) -> None:
        self._post("/url", {"url": path.absolute().as_uri()})

    def run(self, script: str, *arguments: object) -> object:
        """What a JavaScript function body returns."""
        return self._post("/execute/sync", {"script": script, "args": list(arguments)})

    def click(self, selector: str) -> None:
        self._post(f"/element/{self._find(selector)}/click", {})

    def type(self, selector: str, keys: str) -> None:
        self._post(f"/element/{self._find(selector)}/value", {"text": keys})

    def console(self) -> list[str]:
        """What the page has said since the last call: errors, warnings, blocked requests."""
        return [entry["message"] for entry in self._post("/se/log", {"type": "browser"})]

    def devtools(self, command: str, **parameters: object) -> dict:
        return self._post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def close(self) -> None:
        self._send("DELETE", "", None)

    def screenshot(self, path: Path, **clip: float) -> None:
        more = {"clip": {**clip, "scale": 1}, "captureBeyondViewport": True} if clip else {}
        path.write_bytes(base64.b64decode(self.devtools("Page.captureScreenshot", **more)["data"]))

    def _find(self, selector: str) -> str:
        found = self._post("/element", {"using": "css selector", "value": selector})
        return next(iter(found.values()))

    def _post(self, path: str, body: dict):
        return self._send("POST", path, body)

    def _send(self, method: str, path: str, body: dict | None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._address + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from error


@contextlib.contextmanager
def open_browser(size: tuple[int, int] = (1366, 768)):
    """A browser of a laptop's size, with a profile of its own that is thrown away."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "driver.log"
        with log.open("w") as out, subprocess.Popen(["chromedriver", "--port=0"], stdout=out, stderr=out) as driver:
            try:
                browser = Browser(f"http://127.0.0.1:{_port(log)}", f"{folder}/profile", size)
                try:
                    yield browser
                finally:
                    browser.close()
            finally:
                driver.terminate()


def _port(log: Path) -> int:
    """The one that chromedriver has chosen."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        words = log.read_text().rpartition("started successfully on port ")[2].split()
        if words and words[0].rstrip(".").isdecimal():
            return int(words[0].rstrip("."))
        time.sleep(0.05)
    raise TimeoutError(f"chromedriver did not start: {log.read_text()}")
