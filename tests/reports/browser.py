"""A headless Chromium, controlled through chromedriver by the W3C's WebDriver protocol, which is plain HTTP."""

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

# There is no sandbox for root, and without reduced motion a click may hit a page that is still scrolling.
_FLAGS = shlex.split(
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --window-size=1366,768 "
    "--force-prefers-reduced-motion"
)
_PATIENCE = 120  # seconds: a loaded machine starts a browser slowly
missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
needs_browser = pytest.mark.skipif(bool(missing), reason=f"{' and '.join(missing)} not installed")


class Browser:
    """One session; see `open_browser`."""

    def __init__(self, address: str, profile: str) -> None:
        options = {"args": [*_FLAGS, f"--user-data-dir={profile}"], "binary": shutil.which("chromium")}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._address = f"{address}/session"
        self._address += "/" + self._post("", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def open(self, path: Path) -> None:
        self._post("/url", {"url": path.absolute().as_uri()})

    def run(self, script: str) -> Any:
        """The return value of a JavaScript function body."""
        return self._post("/execute/sync", {"script": script, "args": []})

    def click(self, selector: str) -> None:
        (element,) = self._post("/element", {"using": "css selector", "value": selector}).values()
        self._post(f"/element/{element}/click", {})

    def console(self) -> list[str]:
        """Errors, warnings and blocked requests since the last call."""
        return [entry["message"] for entry in self._post("/se/log", {"type": "browser"})]

    def devtools(self, command: str, **parameters: object) -> Any:
        return self._post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def close(self) -> None:
        self._post("", {}, method="DELETE")

    def _post(self, path: str, body: dict[str, Any], method: str = "POST") -> Any:
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(self._address + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from error


@contextlib.contextmanager
def open_browser():
    """A browser of a laptop's size with a temporary profile."""
    with contextlib.ExitStack() as stack:
        profile = stack.enter_context(tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True))
        driver = stack.enter_context(subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True))
        stack.callback(driver.terminate)
        ports = (re.search(r"started successfully on port (\d+)", line) for line in driver.stdout)
        browser = Browser(f"http://127.0.0.1:{next(filter(None, ports))[1]}", profile)
        stack.callback(browser.close)
        yield browser
