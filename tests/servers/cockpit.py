"""The cockpit of a real Airflow in a real browser: a page of somebody who is logged in, at a width and a colour scheme.

    PYTHONPATH=src:tests python -m servers.cockpit OUT.png '/rivertwice/#/p/flight_delays/health' [WIDTH] [light|dark] [WAIT]

takes a picture of the whole page of the Airflow in RIVERTWICE_HOME, and says what axe-core finds on it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from rivertwice.airflow.web_access import HEADER
from rivertwice.core.settings import Settings
from rivertwice.local.airflow import airflow_home, airflow_info
from servers.browser import find_chromium

expect.set_options(timeout=30_000)  # a machine that others use, too
MARKS = [
    pytest.mark.airflow,
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine"),
]
"""Of tests in a browser over a real Airflow."""
LIVE_MARKS = [*MARKS, pytest.mark.kafka, pytest.mark.spark]
"""The same, over a stream that was read from a real broker."""
PICTURES = os.environ.get("RIVERTWICE_PICTURES")
AXE = Path(__file__).parent.parent / "vendor" / "axe.min.js"
WIDTHS = (390, 1024, 1440)
LAUNCH = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server")


def token_of(settings: Settings, user: str) -> str:
    """Log a user in, by the password that the home keeps, and return the token."""
    password = json.loads(airflow_home(settings).passwords.read_text())[user]
    login = {"username": user, "password": password}
    answer = httpx.post(f"{airflow_info(settings).url}/auth/token", json=login, trust_env=False, timeout=60)
    return str(answer.raise_for_status().json()["access_token"])


def data_of(settings: Settings, path: str, user: str = "admin", **params: str) -> Any:
    """Return what the cockpit answers to a user, for instance at `overview`.

    Raises:
        httpx.HTTPStatusError: it refuses.
    """
    bearer = {"Authorization": f"Bearer {token_of(settings, user)}"}
    address = f"{airflow_info(settings).url}/rivertwice/api/{path}"
    answer = httpx.get(address, params=params, headers=bearer, trust_env=False, timeout=60)
    return answer.raise_for_status().json()


def ask_for_act(
    settings: Settings, pipeline: str, act: str, fields: dict[str, Any], *, user: str = "admin", confirm: str = ""
) -> httpx.Response:
    """Ask for an act as a page of that user would, and return the answer."""
    url = f"{airflow_info(settings).url}/rivertwice/api"
    login = {"Authorization": f"Bearer {token_of(settings, user)}"}
    me = httpx.get(f"{url}/me", headers=login, trust_env=False, timeout=60).raise_for_status().json()
    request = f"test-{abs(hash((act, str(fields), confirm, user))):x}"
    body = {"id": request, "fields": fields, "confirm": confirm, "reason": "a test"}
    headers = {**login, HEADER: me["csrf"]}
    return httpx.post(f"{url}/p/{pipeline}/acts/{act}", json=body, headers=headers, trust_env=False, timeout=120)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Debian's Chromium; it ends with the block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=LAUNCH)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(
    browser: Browser, settings: Settings, path: str, *, user: str = "admin", width: int = 1440, dark: bool = False
) -> Iterator[Page]:
    """Open a page of the Airflow in a home as a user; fails at the end if the page reported an error to its console.

    Args:
        browser: of `chromium`.
        settings: of the home.
        path: for instance `/rivertwice/#/p/flight_delays`, or `/plugin/rivertwice` for the frame in Airflow.
        user: one that the Airflow knows.
        width: of the window, in pixels.
        dark: what the system prefers.
    """
    url = airflow_info(settings).url
    context = browser.new_context(
        viewport={"width": width, "height": 900 if width > 600 else 844}, color_scheme="dark" if dark else "light"
    )
    context.add_cookies([{"name": "_token", "value": token_of(settings, user), "url": url}])
    page = context.new_page()
    complaints: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type == "error" and "/rivertwice/" in (message.location or {}).get("url", ""):
            complaints.append(message.text)

    page.on("console", hear)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        page.goto(url + path)
        yield page
    finally:
        context.close()
    heard = [text for text in complaints if "Failed to load resource" not in text]
    assert heard == []


def picture(page: Page, name: str) -> None:
    """Keep a picture of a page, if somebody wants them."""
    if PICTURES:
        page.screenshot(path=str(Path(PICTURES) / f"{name}.png"), full_page=True)


def axe_findings(page: Page) -> list[dict[str, Any]]:
    """Return what axe-core finds wrong on a page: rule, help and the elements. Nothing is turned off."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        {"rule": each["id"], "help": each["help"], "nodes": [node["html"][:160] for node in each["nodes"]]}
        for each in found["violations"]
    ]


def sideways(page: Page) -> int:
    """Return by how many pixels the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def main(out: str, path: str, width: str = "1440", scheme: str = "light", wait: str = "2") -> None:
    """Take a picture."""
    settings = Settings.from_env()
    with (
        chromium() as browser,
        page_of(browser, settings, path, width=int(width), dark=scheme == "dark") as page,
    ):
        page.wait_for_timeout(float(wait) * 1000)
        print(json.dumps(axe_findings(page), indent=2), "sideways:", sideways(page))  # noqa: T201
        page.screenshot(path=out, full_page=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
