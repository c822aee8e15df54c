"""A headless Chromium that is logged in to an Airflow: the tests look at pages with it, and the docs' pictures come from it.

    PYTHONPATH=tests python -m servers.browser OUT.png PATH [WIDTH HEIGHT]

takes a picture of PATH (for instance /plugin/rivertwice) of the Airflow in RIVERTWICE_HOME.
"""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import connect

from rivertwice.core.processes import end_sessions
from rivertwice.core.settings import Settings
from rivertwice.local.airflow import AirflowInfo, airflow_info
from running.waiting import wait_for


def find_chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    def __init__(self, url: str, token: str, *, width: int = 1440, height: int = 1000, dark: bool = False) -> None:
        chromium = find_chromium()
        assert chromium is not None, "no Chromium"
        self._url = url
        self._profile = tempfile.TemporaryDirectory(prefix="rivertwice-chromium-")
        self._process = subprocess.Popen(
            [
                chromium,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-proxy-server",
                "--remote-debugging-port=0",
                f"--user-data-dir={self._profile.name}",
                f"--window-size={width},{height}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        port_file = Path(self._profile.name) / "DevToolsActivePort"
        wait_for("the start of Chromium", lambda: port_file.exists() and port_file.read_text().strip(), 60)
        port = port_file.read_text().split()[0]
        targets = httpx.get(f"http://127.0.0.1:{port}/json", trust_env=False, timeout=30).json()
        page = next(target for target in targets if target["type"] == "page")
        self._connection = connect(page["webSocketDebuggerUrl"], max_size=None, proxy=None)
        self._socket = self._connection.__enter__()
        self._ids = itertools.count(1)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        if dark:
            self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        self.call("Network.setCookie", name="_token", value=token, url=url)

    def call(self, method: str, **params: Any) -> Any:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            answer = json.loads(self._socket.recv(timeout=60))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, path: str) -> None:
        self.call("Page.navigate", url=self._url + path)

    def text(self, frame: str = "document") -> str:
        script = f"(() => {{ try {{ return {frame}.body.innerText }} catch {{ return '' }} }})()"
        return str(self.run(script) or "")

    def run(self, script: str) -> Any:
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def open_trigger_form(self, dag: str) -> dict[str, bool]:
        """Open the form of a DAG as a click does; return the labels of its buttons to whether each can be pressed."""
        self.open(f"/dags/{dag}")
        self.wait_for_text("Trigger")
        self.run("[...document.querySelectorAll('button')].find(one => one.innerText.trim() == 'Trigger').click()")
        self.wait_for_text("Advanced Options")
        buttons = self.run(
            "[...document.querySelectorAll('[role=dialog] button')].map(b => [b.innerText, !b.disabled])"
        )
        return dict(buttons)

    def wait_for_text(self, wanted: str, frame: str = "document", timeout: float = 60) -> str:
        def seen() -> str:
            return self.text(frame)[:2000]

        wait_for(f"the text {wanted!r}", lambda: wanted in self.text(frame), timeout, every=0.25, seen=seen)
        return self.text(frame)

    def picture(self, path: str | Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.__exit__(None, None, None)
        self._process.terminate()
        self._process.wait()
        end_sessions([self._process.pid])  # a helper that outlives the browser writes on in the profile
        self._profile.cleanup()


def log_in(info: AirflowInfo) -> str:
    answer = httpx.post(
        f"{info.url}/auth/token", json={"username": info.user, "password": info.password}, trust_env=False, timeout=30
    )
    return str(answer.raise_for_status().json()["access_token"])


def main(out: str, path: str, width: str = "1440", height: str = "1000", wait: str = "6", dark: str = "") -> None:
    info = airflow_info(Settings.from_env())
    with Browser(info.url, log_in(info), width=int(width), height=int(height), dark=bool(dark)) as browser:
        browser.open(path)
        time.sleep(float(wait))
        browser.picture(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
