"""A stream at work in the cockpit: its driver is killed and comes back, and the page says so; curves, marks and logs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from homes.project import FLIGHTS, TO_RUN, make_project, replace_text
from rivertwice.agent.launch import start_agent, stop_agent
from rivertwice.agent.ring import LEVELS, read_level, ring_file
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.batch_times import BatchTimes
from rivertwice.timeline.intent import Heartbeat, write_intent
from running.waiting import wait_for
from servers.airflow import PIPELINE, ready_client, start_quiet_airflow, stop_quiet_airflow
from servers.cockpit import LIVE_MARKS, axe_findings, chromium, data_of, page_of, picture, sideways
from streams.synthetic import flights, produce

pytestmark = LIVE_MARKS
POLL_S = 5.0


@pytest.fixture(scope="module")
def settings(broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """An Airflow and an agent over one pipeline, whose driver runs and has read some records."""
    topic = "cockpit_health"
    made = make_project(
        tmp_path_factory.mktemp("cockpit_health"),
        {PIPELINE: FLIGHTS},
        links=(*TO_RUN, "plugins", "dags"),
        bootstrap=broker.bootstrap,
        spark_ui=True,
    )
    replace_text(made.definitions / PIPELINE / "pipeline.yaml", "topic: flights", f"topic: {topic}")
    ensure_topic(made, topic, 4, {})
    produce(made, topic, flights(1_500))  # some 25 batches, so that there is advice
    try:
        start_agent(made)
        write_intent(made.pipeline(PIPELINE), "running", "test", utc_now())
        start_quiet_airflow(made)
        ready_client(made)
        wait_for("the first driver has read what is there", lambda: runs(made, 1), 180)
        yield made
    finally:
        stop_quiet_airflow(made)
        stop_agent(made)
        owner = lease_owner(made.pipeline(PIPELINE))
        if owner is not None:
            os.kill(owner.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


def runs(settings: Settings, epoch: int) -> bool:
    owner, beat = lease_owner(settings.pipeline(PIPELINE)), Heartbeat.load(settings.pipeline(PIPELINE))
    is_own = owner is not None and beat is not None and owner.epoch == beat.epoch == epoch
    return bool(is_own and beat and beat.state in {"running", "idle"} and beat.lag == 0)


def run_command(settings: Settings, *words: str) -> str:
    command = [sys.executable, "-m", "rivertwice.cli.main", "--output", "json", *words]
    return subprocess.run(
        command, env={**os.environ, **settings.to_env()}, capture_output=True, check=True
    ).stdout.decode()


def light(page: Page, name: str) -> str:
    return page.locator(".lights li", has_text=name).inner_text()


def test_a_killed_driver_is_the_sentence_until_it_runs_again(settings: Settings, browser: Browser) -> None:
    with page_of(browser, settings, f"/rivertwice/#/p/{PIPELINE}") as page:
        sentence = page.locator(".now-sentence")
        expect(page.locator(".lights li", has_text="Stream")).to_contain_text("runs")
        expect(sentence).not_to_contain_text("ended as killed")

        owner = lease_owner(settings.pipeline(PIPELINE))
        assert owner is not None
        began = time.monotonic()
        os.kill(owner.pid, signal.SIGKILL)
        expect(sentence).to_contain_text("ended as killed", timeout=4 * POLL_S * 1000)
        seen_s = time.monotonic() - began
        expect(page.locator(".now")).to_contain_text("What is served stays right, and gets older")
        assert re.search("driver down|starts again", light(page, "Stream"))
        assert page.locator(".now").get_attribute("class") in ("now t-bad", "now t-warn")

        wait_for("a second driver runs", lambda: runs(settings, 2), 180)
        expect(page.locator(".lights li", has_text="Stream")).to_contain_text("runs", timeout=4 * POLL_S * 1000)
        expect(sentence).not_to_contain_text("ended as killed")
        print(f"the page said it after {seen_s:.1f} s, and that it runs after {time.monotonic() - began:.1f} s")  # noqa: T201


@pytest.mark.proves("howto-cockpit.md#read-the-sentence")
def test_no_light_of_alerts_is_green_until_somebody_would_be_told(settings: Settings, browser: Browser) -> None:
    routes = settings.project / "alerts.yaml"
    with page_of(browser, settings, f"/rivertwice/#/p/{PIPELINE}/now") as page:
        alerts = page.locator(".lights li", has_text="Alerts")
        expect(alerts).to_contain_text("nobody would be told")
        expect(alerts.locator(".light.t-good")).to_have_count(0)
        expect(page.locator(".others")).to_contain_text("No route is configured, so nobody would be told of an alert")
        expect(page.locator(".fact-table")).to_contain_text("nobody: no route is configured")
        try:
            routes.write_text(f"routes: {{ops: {{to: file, path: {settings.home / 'told.jsonl'}}}}}\n")
            expect(alerts).to_contain_text("none", timeout=4 * POLL_S * 1000)
            expect(alerts.locator(".light.t-good")).to_have_count(1)
        finally:
            routes.unlink()
        expect(alerts).to_contain_text("nobody would be told", timeout=4 * POLL_S * 1000)


def test_the_curves_have_what_happened_and_a_table_of_it(settings: Settings, browser: Browser) -> None:
    ring = ring_file(settings.pipeline(PIPELINE))
    wait_for("the agent has kept samples", lambda: len(read_level(ring, LEVELS[0], utc_now())) > 1, 60)
    with page_of(browser, settings, f"/rivertwice/#/p/{PIPELINE}/health?range=1h") as page:
        happened = page.get_by_role("region", name="What happened in this range, newest first")
        expect(happened).to_contain_text("the driver ended as killed")
        expect(happened).to_contain_text("driver of epoch 1: its first batch is 0")
        expect(page.locator(".curve canvas")).to_have_count(len(page.locator(".curve").all()))
        lag = page.locator(".curve", has=page.get_by_role("heading", name="Lag"))
        lag.get_by_role("img").focus()
        page.keyboard.press("End")
        expect(lag.locator(".readout")).to_contain_text(re.compile("UTC: all partitions .*, one of [0-9]+ partitions"))
        expect(lag.locator(".legend li")).to_have_count(2)
        watermark = page.locator(".curve", has=page.get_by_role("heading", name="Watermark"))
        expect(watermark).to_contain_text("in event time: the records are")
        expect(watermark.locator(".readout")).to_contain_text(
            re.compile("UTC: 2013-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}")
        )
        lag.get_by_role("button", name="As a table").click()
        expect(lag.get_by_role("table").get_by_role("row").nth(1)).to_contain_text("UTC")
        expect(lag.get_by_role("columnheader", name=re.compile("[0-9], largest"))).not_to_have_count(0)
        page.get_by_text("7 days").click()
        expect(page).to_have_url(re.compile("range=7d"))
        expect(page.get_by_role("img", name=re.compile("^running|^idle|^starting|^not known"))).to_be_visible()


@pytest.mark.proves("howto-cockpit.md#see-where-the-time-goes")
def test_where_the_time_goes_is_seen_by_keyboard_as_a_table_and_on_the_command_line(
    settings: Settings, browser: Browser
) -> None:
    home = settings.pipeline(PIPELINE)
    wait_for("the driver has kept batches", lambda: len(BatchTimes.newest(home)) > 20, 60)
    with page_of(browser, settings, f"/rivertwice/#/p/{PIPELINE}/health?range=1h") as page:
        bars = page.get_by_role("img", name=re.compile("^Of [0-9]+ batch"))
        expect(bars).to_have_attribute("aria-label", re.compile("read, decode, transform and state [0-9.]+ %"))
        bars.focus()
        page.keyboard.press("Home")
        first = page.locator(".times .readout").inner_text()
        assert re.search(r"^[0-9:]+ UTC, .* s: .* %", first)
        page.keyboard.press("ArrowRight")
        expect(page.locator(".times .readout")).not_to_have_text(first)
        page.get_by_role("button", name="As a table Where the time goes").click()
        steps = page.get_by_role("table", name="Seconds of each step by phase, newest first")
        expect(steps.get_by_role("columnheader", name="read, decode, transform and state")).to_be_visible()
        slowest = page.get_by_role("table", name="The slowest batches, the slowest first")
        expect(slowest.get_by_role("row").nth(1)).to_contain_text("took")
        expect(slowest).to_contain_text("the driver's first batch, which loads code and state")
        expect(page.locator(".where-time .note")).to_contain_text("stream.max_offsets_per_trigger: 60 → 240")
        told = json.loads(run_command(settings, "status", PIPELINE, "--time"))[PIPELINE]
        worst = told["slowest"][0]
        expect(slowest.get_by_role("row").nth(1)).to_contain_text(worst["reason"])
        assert sum(worst["phases"].values()) == pytest.approx(worst["seconds"], abs=0.01)


@pytest.mark.parametrize(
    ("width", "dark"), [(390, True), (1024, True), (1440, False)], ids=["phone, dark", "tablet, dark", "wide, light"]
)
@pytest.mark.parametrize("tab", ["health", "logs", "now"])
def test_each_of_the_tabs_fits_and_axe_finds_nothing(
    settings: Settings, browser: Browser, tab: str, width: int, dark: bool
) -> None:
    with page_of(browser, settings, f"/rivertwice/#/p/{PIPELINE}/{tab}", width=width, dark=dark) as page:
        shown = {"health": ".curve canvas", "logs": ".log-line", "now": "tbody tr"}[tab]
        expect(page.locator(shown).first).to_be_visible()
        if tab == "health":
            expect(page.locator(".time-bars span").first).to_be_visible()
            picture(page, f"time-{width}")
        assert axe_findings(page) == []
        assert sideways(page) <= 0


def test_a_log_is_searched_and_followed(settings: Settings, browser: Browser) -> None:
    log = settings.pipeline(PIPELINE).logs / "driver.log"
    with page_of(browser, settings, f"/rivertwice/#/p/{PIPELINE}/logs") as page:
        lines = page.get_by_role("log")
        expect(lines).to_contain_text("rivertwice agent starts a driver")
        address = page.get_by_role("link", name="Spark UI of the running driver").get_attribute("href")
        assert address is not None
        assert address.startswith("http://127.0.0.1:")
        assert "Spark" in httpx.get(address, follow_redirects=True, trust_env=False, timeout=60).text
        with log.open("a") as file:
            file.write("2026-11-27 03:00:00,000 ERROR x: <b>hostile</b> \x1b[2J line\n")
        expect(lines).to_contain_text("<b>hostile</b> \\x1b[2J line", timeout=10_000)
        page.get_by_role("searchbox").fill("HOSTILE")
        expect(lines.locator(".log-line")).to_have_count(1)
        page.locator("select").first.select_option("agent")
        page.get_by_role("searchbox").fill("")
        expect(lines).to_contain_text(f"{PIPELINE}: start")


def test_an_unchanged_poll_is_small_and_the_command_says_the_same(settings: Settings) -> None:
    summary = data_of(settings, f"p/{PIPELINE}/summary")
    row = data_of(settings, "overview")["pipelines"][0]
    done = run_command(settings, "status")
    status = json.loads(done)["pipelines"][0]["now"]
    assert row["now"]["sentence"] == summary["now"]["sentence"] == status["sentence"]
    assert {name: each["word"] for name, each in summary["now"]["lights"].items()} == {
        name: each["word"] for name, each in status["lights"].items()
    }
