"""What open pages of the cockpit cost a real Airflow: time until they can be used, bytes of a poll, and CPU of the API server.

    PYTHONPATH=.:tests .venv/bin/python -m lab.bench.open_pages [--home FOLDER] [--running FOLDER] [--pages 10] [--seconds 60] [--rounds 4] [--pipelines 20] [--keys 50]

Without `--running` an Airflow starts over the past of `bench.cockpit` (a year of verdicts, 1,095 windows by keys, and 30 days of samples
with objectives, for each pipeline), which is kept in FOLDER. With it, the Airflow that runs in that home is measured, so that something changes at each poll.

Seconds with so many pages open and seconds without follow each other, and the difference of the server's CPU is divided by the pages.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser, Response

from homes.cockpit import OBJECTIVES, Past, keep_samples, make_past
from homes.project import link
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.local.airflow import airflow_home, client
from servers.airflow import start_quiet_airflow, stop_quiet_airflow
from servers.cockpit import chromium, page_of

KINDS = {
    "overview": ("/rivertwice/", "main table tbody tr"),
    "overview, read": ("/rivertwice/", "main table tbody tr:last-child .row-words:not(.soft)"),
    "now": ("/rivertwice/#/p/{name}", "main table tbody tr"),
    "health": ("/rivertwice/#/p/{name}/health", "main canvas"),
    "correctness": ("/rivertwice/#/p/{name}/correctness", "main [role=grid] [role=gridcell]"),
}
"""Where each page is, and what is there once it can be used; `read`: once the server has read the last pipeline, too."""


def cpu_of(settings: Settings) -> float:
    """Return the CPU-seconds that the API server and its children have used."""
    marks = json.loads(airflow_home(settings).services.read_text())["services"]
    server = psutil.Process(int(marks["api-server"]["pid"]))
    total = 0.0
    for process in (server, *server.children(recursive=True)):
        times = process.cpu_times()
        total += times.user + times.system
    return total


def usable(browser: Browser, settings: Settings, name: str, kind: str) -> float:
    """Return the seconds from opening an address to its first content, in a browser that has cached nothing."""
    path, there = KINDS[kind]
    with page_of(browser, settings, "/rivertwice/api/no-such-path") as page:
        url = page.url.split("/rivertwice/")[0]
        began = time.perf_counter()
        page.goto(url + path.format(name=name))
        page.locator(there).first.wait_for()
        return time.perf_counter() - began


def measure_pages(
    browser: Browser, settings: Settings, name: str, kind: str, pages: int, seconds: float, rounds: int
) -> dict[str, Any]:
    """Return CPU of the server per page and second, with the pages open minus without, and what the polls brought."""
    path, there = KINDS[kind]
    shares, bodies, unchanged = [], [], 0
    for _ in range(rounds):
        before = cpu_of(settings)
        time.sleep(seconds)
        without = cpu_of(settings) - before
        with ExitStack() as opened:
            heard: list[Response] = []

            def hear(response: Response, heard: list[Response] = heard) -> None:
                heard.append(response)

            for _ in range(pages):
                page = opened.enter_context(page_of(browser, settings, path.format(name=name)))
                page.locator(there).first.wait_for()
                page.wait_for_timeout(1500)  # what it asks for once
                page.on("response", hear)
            before = cpu_of(settings)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                page.wait_for_timeout(500)
            shares.append((cpu_of(settings) - before - without) / seconds / pages)
            polls = [each for each in heard if "/rivertwice/api/" in each.url]
            unchanged += sum(each.status == 304 for each in polls)
            bodies += [each.request.sizes()["responseBodySize"] for each in polls if each.status == 200]
    return {
        "share": statistics.median(shares), "least": min(shares), "most": max(shares),
        "unchanged": unchanged, "changed": len(bodies), "bytes": statistics.median(bodies) if bodies else 0,
    }  # fmt: skip


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="folder of the past; it is made if there is none")
    parser.add_argument("--running", type=Path, help="home of an Airflow that runs")
    parser.add_argument("--project", type=Path, help="project of that home")
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--pipelines", type=int, default=20)
    parser.add_argument("--keys", type=int, default=50)
    parser.add_argument("--only", nargs="+", default=list(KINDS), choices=list(KINDS))
    given = parser.parse_args()
    with ExitStack() as at_end:
        if given.running is not None:
            settings, name = Settings(project=given.project, home=given.running), "flight_delays"
        else:
            folder = given.home or Path(at_end.enter_context(tempfile.TemporaryDirectory(prefix="rivertwice-bench-")))
            settings, name = Settings(project=folder / "project", home=folder / "home"), "p00"
            if not (folder / "made").exists():
                folder.mkdir(parents=True, exist_ok=True)
                names = [f"p{number:02d}" for number in range(given.pipelines)]
                make_past(folder, Past(365, given.keys), names, more=OBJECTIVES)
                keep_samples(settings, names, utc_now())
                link(settings.project, ("plugins", "dags", "expectations"))
                (folder / "made").touch()
            at_end.callback(stop_quiet_airflow, settings)
            start_quiet_airflow(settings)
            client(settings).wait_for_dags({f"backfill__{name}"}, timeout=600)
            print("waiting until Airflow is calm", flush=True)
            time.sleep(30)
        browser = at_end.enter_context(chromium())
        print(
            f"{'page':14}{'usable s, first':>16}{'later':>8}{'CPU share':>11}{'least':>8}{'most':>8}{'304':>6}{'200':>6}{'bytes':>9}"
        )
        for kind in given.only:
            first, *later = [usable(browser, settings, name, kind) for _ in range(4)]
            got = measure_pages(browser, settings, name, kind, given.pages, given.seconds, given.rounds)
            print(
                f"{kind:14}{first:16.2f}{statistics.median(later):8.2f}{got['share']:11.2%}{got['least']:8.2%}{got['most']:8.2%}"
                f"{got['unchanged']:6}{got['changed']:6}{got['bytes']:9,.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
