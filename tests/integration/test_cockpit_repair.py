"""A late burst on a real Airflow: one alert with the smallest backfill, approved in the page, run, verified, closed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from homes.project import edit_yaml
from rivertwice.alerts.store import alerts_of
from rivertwice.cockpit.repair_plan import read_repairs
from rivertwice.config import Settings
from rivertwice.embedded.airflow import stop_airflow
from rivertwice.embedded.broker import BrokerInfo
from rivertwice.instants import utc_now
from rivertwice.reconcile.results import newest_reconcile
from rivertwice.supervise.launch import start_agent, stop_agent
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.sequence import read_sequence
from running.waiting import wait_for
from running.warm_spark import SMALL
from servers.airflow import PIPELINE, World, link_project, ready_client, start_quiet_airflow
from servers.browser import find_chromium
from servers.cockpit import axe_findings, chromium, data_of, page_of, sideways
from streams.flights import StreamedRun

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.browser,
    pytest.mark.faults,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine"),
]
SMALL_JOBS = " ".join([os.environ["SPARK_SUBMIT_OPTS"], *(f"-D{name}={value}" for name, value in SMALL.items())])
REPAIR = f"repair__{PIPELINE}"
PICTURES = os.environ.get("RIVERTWICE_PICTURES")


@pytest.fixture(scope="module")
def world(
    streamed_two_days: StreamedRun, tmp_path_factory: pytest.TempPathFactory, broker: BrokerInfo
) -> Iterator[World]:
    """Airflow and an agent over a copy of the two stormy days, whose storm is the late burst; the stream rests."""
    folder = tmp_path_factory.mktemp("repair")
    shutil.copytree(streamed_two_days.settings.project, folder / "project", symlinks=True)
    settings = replace(streamed_two_days.settings, project=folder / "project", home=folder / "home")
    shutil.copytree(streamed_two_days.home.root, settings.pipeline(PIPELINE).root)
    link_project(settings.project)
    unschedule(settings)
    write_intent(settings.pipeline(PIPELINE), "stopped", "test", utc_now())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", SMALL_JOBS)
        start_agent(settings)
        try:
            start_quiet_airflow(settings, users=("vera:viewer",))
            ready_client(settings)
            yield World(settings)
        finally:
            stop_airflow(settings)
            stop_agent(settings)


def unschedule(settings: Settings) -> None:
    """Let only the test start reconciles and backfills; schedules are in no fingerprint."""
    folder = settings.definitions / PIPELINE
    original = folder.resolve()
    if settings.definitions.is_symlink():
        settings.definitions.unlink()
    elif folder.is_symlink():
        folder.unlink()
    if not folder.exists():
        shutil.copytree(original, folder)
    verbs = ("archive", "backfill", "reconcile", "reconcile_full", "rotate")
    edit_yaml(folder, lambda document: document.update(airflow={"schedules": dict.fromkeys(verbs, "none")}))


def waiting(world: World) -> str:
    """Return the run of `repair__P` that waits for a person."""
    runs = world.airflow.runs(REPAIR)
    return runs[-1] if runs and world.airflow.question(REPAIR, runs[-1], "approve") is not None else ""


def picture(page: Page, name: str) -> None:
    """Keep a picture, if somebody wants them."""
    if PICTURES:
        page.screenshot(path=str(Path(PICTURES) / f"{name}.png"), full_page=True)


def late_alerts(world: World) -> list[Any]:
    return [alert for alert in alerts_of(world.settings).state().alerts if alert.cause.kind == "late_share"]


def test_a_late_burst_is_one_alert_that_a_person_approves_and_that_closes(world: World) -> None:
    world.run("reconcile")  # the gate passes: late is a warning
    run = wait_for("a repair that waits", lambda: waiting(world), 240)
    before = newest_reconcile(world.home)
    assert before is not None
    late = before["counts"]["served"]["LATE"]
    assert [each.cause.kind for each in alerts_of(world.settings).state().alerts] == ["late_share"]  # one, and no other
    (alert,) = late_alerts(world)
    assert alert.details["repair"].startswith(f"{late} rows LATE are served in ")
    world.run("reconcile")  # what it finds again starts no second repair, and is no second alert
    assert world.airflow.runs(REPAIR) == [run]
    assert [each.id for each in late_alerts(world)] == [alert.id]
    published = len(read_sequence(world.home))

    with chromium() as browser:
        place = f"/rivertwice/#/p/{PIPELINE}/alerts"
        with page_of(browser, world.settings, place, user="vera") as page:
            expect(page.get_by_text("A repair waits for a person")).to_be_visible()
            expect(page.get_by_text("You may look at it, and may not approve it.")).to_be_visible()
            expect(page.get_by_role("button", name="Approve the repair")).to_have_count(0)
        with page_of(browser, world.settings, place) as page:
            expect(page.get_by_text("A repair waits for a person")).to_be_visible()
            picture(page, "alerts-waiting")
            assert (axe_findings(page), sideways(page) <= 0) == ([], True)
            page.get_by_role("button", name="Approve the repair").click()
            dialog = page.get_by_role("dialog")
            expect(dialog).to_contain_text(f"{late} rows LATE")
            approve = dialog.get_by_role("button", name="Approve the repair")
            dialog.get_by_label("Reason, for the log").fill("the storm of 30 June came late")
            dialog.get_by_label("to confirm").fill("flight_delay")
            expect(approve).to_be_disabled()
            dialog.get_by_label("to confirm").fill(PIPELINE)
            picture(page, "repair-dialog")
            approve.click()
            expect(page.get_by_role("status").filter(has_text="Started")).to_be_visible()
            assert world.airflow.wait(REPAIR, run, 600) == "success", world.airflow.failures(REPAIR, run, 60)
            row = page.get_by_role("table", name="Repairs of").get_by_role("row").nth(1)
            expect(row).to_contain_text("no row DEFECT or LATE", timeout=30_000)
            expect(row).to_contain_text("admin in Airflow", ignore_case=True)
            people = page.get_by_role("table", name="Acts of people")
            expect(people.get_by_role("row", name="the storm of 30 June came late")).to_contain_text("repair: Approve")
            picture(page, "alerts-repaired")
            assert (axe_findings(page), sideways(page) <= 0) == ([], True)

    assert len(read_sequence(world.home)) == published + 1
    (record,) = read_repairs(world.home)
    assert (record.outcome, record.proposal.rows, record.after) == ("done", {"LATE": late}, {})
    over = late_alerts(world)
    closed = [each for each in data_of(world.settings, f"p/{PIPELINE}/alerts")["over"] if each["kind"] == "late_share"]
    said = over[0].resolution if over else closed[0]["resolution"]
    assert said == (
        f"backfill {record.backfill} repaired it, approved by {record.by}; before: {late} rows LATE served in "
        f"{record.proposal.windows} windows; after: no row DEFECT or LATE"
    )
