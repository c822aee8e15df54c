"""From a late record in the heatmap to a backfill that runs: a real stream, a real Airflow, a real browser, and the command line beside it.

One record came too late. The page shows it, explains it as `rivertwice explain` does, plans its backfill as `rivertwice backfill plan`
does, and starts it; Airflow runs it, and a reconcile finds that what is served agrees.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from homes.project import TO_RUN, link, make_project
from rivertwice.core.instants import from_ms, to_iso, utc_now
from rivertwice.core.settings import Settings
from rivertwice.local.airflow import client
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.timeline.intent import write_intent
from running.warm_spark import run_command_warm, run_driver_warm
from servers.airflow import agent_and_airflow, await_success
from servers.cockpit import LIVE_MARKS, chromium, page_of
from streams.amounts import BEGIN_MS, MINUTE_MS, NAME, SQL, YAML, Amount, send

pytestmark = [*LIVE_MARKS, pytest.mark.faults]
WINDOW = to_iso(from_ms(BEGIN_MS))
END = to_iso(from_ms(BEGIN_MS + 10 * MINUTE_MS))
LATE = Amount("in", BEGIN_MS + 3 * MINUTE_MS, 1_000)
FIRST = [Amount(("in", "out")[number % 2], BEGIN_MS + number * MINUTE_MS // 2, number) for number in range(120)]
AFTER = [Amount(("in", "out")[number % 2], BEGIN_MS + (70 + number) * MINUTE_MS, number) for number in range(20)]


@pytest.fixture(scope="module")
def settings(broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A stream that read an hour, then a record that is late; it was reconciled, and Airflow runs over it."""
    folder, topic = tmp_path_factory.mktemp("amounts"), f"t-{uuid.uuid4().hex[:12]}"
    files = {"pipeline.yaml": YAML.replace("TOPIC", topic), "transform.sql": SQL}
    made = make_project(folder, {NAME: files}, links=TO_RUN, bootstrap=broker.bootstrap)
    ensure_topic(made, topic, 1)
    send(made, topic, FIRST)
    run_driver_warm(made, NAME, folder / "first.log")
    send(made, topic, [LATE, *AFTER])
    run_driver_warm(made, NAME, folder / "after.log")
    run_command_warm(made, "admin", "rebuild", NAME)
    run_command_warm(made, "reconcile", NAME)
    write_intent(made.pipeline(NAME), "stopped", "test", utc_now())
    link(made.project, ("plugins", "spark_jobs", "dags"))
    with agent_and_airflow(made, NAME, verbs=("backfill", "reconcile")):
        yield made


def explained(settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = run_command_warm(settings, "explain", NAME, WINDOW, "in")
    return found


def served_of(page: Page, key: str) -> str:
    """Return what the heatmap says of the first window of a key."""
    cell = page.get_by_role("gridcell", name=f"{WINDOW[:10]} {WINDOW[11:16]} UTC, {key}")
    expect(cell).to_be_visible()
    return str(cell.get_attribute("aria-label"))


def test_a_late_record_is_seen_explained_planned_and_repaired(settings: Settings) -> None:
    with chromium() as browser, page_of(browser, settings, f"/rivertwice/#/p/{NAME}/correctness?level=window") as page:
        assert ": late, 1 of " in served_of(page, "in")
        assert served_of(page, "out").endswith(": agrees")

        page.get_by_role("gridcell", name=f"{WINDOW[:10]} {WINDOW[11:16]} UTC, in").click()
        dialog = page.get_by_role("dialog", name="in, ")
        told = explained(settings)
        for column in told["columns"]:
            expect(
                dialog.get_by_role("row", name=f"{column['name']} {column['served']} {column['stream']}")
            ).to_be_visible()
        (late,) = told["late"]
        expect(dialog.get_by_role("row", name=late["place"])).to_be_visible()
        (act,) = told["acts"]
        assert act["command"] == f"rivertwice backfill run {NAME} --from {WINDOW} --to {END}"
        expect(dialog).to_contain_text(act["command"])

        dialog.get_by_role("button", name="Plan this backfill").click()
        plan = run_command_warm(settings, "backfill", "plan", NAME, "--from", WINDOW, "--to", END)
        asked = page.get_by_role("dialog", name="Backfill")
        expect(asked).to_contain_text("records of the log", timeout=30_000)
        asked.get_by_text("The plan as the command prints it").click()
        expect(asked.locator("pre")).to_contain_text(plan["id"])
        expect(asked.get_by_role("row", name="in LATE")).to_be_visible()
        asked.get_by_label("Reason").fill("a record came late")
        asked.get_by_label("Type").fill("another")
        expect(asked.get_by_role("button", name="Run the backfill")).to_be_disabled()
        asked.get_by_label("Type").fill(NAME)
        asked.get_by_role("button", name="Run the backfill").click()
        link_to_run = asked.get_by_role("status").get_by_role("link")
        expect(link_to_run).to_be_visible()
        run = link_to_run.inner_text()
        await_success(client(settings), f"backfill__{NAME}", run, 400)

        page.goto(page.url.partition("#")[0] + f"#/p/{NAME}/backfills")
        row = page.get_by_role("table", name="Backfills").get_by_role("row", name=plan["id"])
        expect(row).to_contain_text("published")
        expect(row).to_contain_text("a record came late")
        expect(row).to_contain_text("admin")

        page.goto(page.url.partition("#")[0] + f"#/p/{NAME}/correctness?level=window")
        cell = page.get_by_role("gridcell", name=re.compile(f"{WINDOW[11:16]} UTC, in: .*changed after the verdict"))
        expect(cell).to_be_visible(timeout=30_000)
        run_command_warm(settings, "reconcile", NAME)
        page.reload()
        cell = page.get_by_role("gridcell", name=re.compile(f"{WINDOW[11:16]} UTC, in: agrees(, published)?$"))
        expect(cell).to_be_visible(timeout=30_000)
        page.get_by_role("gridcell", name=f"{WINDOW[:10]} {WINDOW[11:16]} UTC, in").click()
        dialog = page.get_by_role("dialog", name="in, ")
        dialog.get_by_role("button", name="Show the truth").click()
        expect(dialog).to_contain_text("found the served row equal to the truth")
        told = explained(settings)
        total = next(column for column in told["columns"] if column["name"] == "total")
        assert json.dumps(total["served"]) == str(
            sum(r.delta for r in [*FIRST, LATE] if r.k == "in" and r.at_ms < BEGIN_MS + 10 * MINUTE_MS)
        )
        expect(
            dialog.get_by_role("row", name=f"total {total['served']} {total['stream']} {total['served']}")
        ).to_be_visible()
