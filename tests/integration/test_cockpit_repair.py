"""A late burst on a real Airflow: one alert with the smallest backfill, approved in the page, run, verified, closed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from rivertwice.agent.alert_kinds import body_of
from rivertwice.reconcile.results import newest_reconcile
from rivertwice.timeline.sequence import read_sequence
from rivertwice.upkeep.window_repairs import Repairs
from running.waiting import wait_for
from servers.airflow import PIPELINE, World, agent_and_airflow, copy_world
from servers.cockpit import LIVE_MARKS, axe_findings, chromium, page_of, picture, sideways
from servers.repairs import REPAIR, approve_from_link, known_alerts, repairs, resolution_of, waiting
from streams.flights import StreamedRun

pytestmark = [*LIVE_MARKS, pytest.mark.faults]


@pytest.fixture(scope="module")
def world(streamed_two_days: StreamedRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Airflow and an agent over a copy of the two stormy days, whose storm is the late burst; the stream rests."""
    made = copy_world(streamed_two_days, tmp_path_factory.mktemp("repair"))
    with agent_and_airflow(made.settings, users=("vera:viewer",)):
        yield made


@pytest.mark.proves("howto-cockpit.md#alerts-repairs-and-who-did-what")
def test_a_late_burst_is_one_alert_that_a_person_approves_and_that_closes(world: World) -> None:
    world.run("reconcile")  # the gate passes: late is a warning
    run = wait_for("a repair that waits", lambda: waiting(world), 240)
    before = newest_reconcile(world.home)
    assert before is not None
    late = before["counts"]["served"]["LATE"]
    assert [each.cause.kind for each in known_alerts(world)] == ["late_share"]  # one, and no other
    (alert,) = known_alerts(world)
    assert alert.details["repair"].startswith(f"{late} rows LATE are served in ")
    world.run("reconcile")  # what it finds again starts no second repair, and is not a second alert
    assert repairs(world) == [run]
    world.run(
        "backfill", {"scope": "stale", "dry_run": True}
    )  # one that waits for a person keeps no other from its work
    assert [each.id for each in known_alerts(world)] == [alert.id]
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
            link = str(body_of(world.settings, alert)["page"])
            assert len(approve_from_link(page, link, PIPELINE, "the storm of 30 June came late")) == 3
            assert axe_findings(page) == []
            picture(page, "repair-approved")
            assert world.airflow.wait(REPAIR, run, 600) == "success", world.airflow.failures(REPAIR, run, 60)
            page.goto(page.url.partition("#")[0] + place.removeprefix("/rivertwice/"))
            row = page.get_by_role("table", name="Repairs of").get_by_role("row").nth(1)
            expect(row).to_contain_text("no row DEFECT or LATE", timeout=30_000)
            expect(row).to_contain_text("admin in Airflow", ignore_case=True)
            people = page.get_by_role("table", name="Acts of people")
            expect(people.get_by_role("row", name="the storm of 30 June came late")).to_contain_text("repair: Approve")
            picture(page, "alerts-repaired")
            assert (axe_findings(page), sideways(page) <= 0) == ([], True)

    assert len(read_sequence(world.home)) == published + 1
    (record,) = Repairs(world.home).read()
    assert (record.outcome, record.proposal.rows, record.after) == ("done", {"LATE": late}, {})
    assert resolution_of(world, "late_share") == (
        f"backfill {record.backfill} repaired it, approved by {record.by}; before: {late} rows LATE served in "
        f"{record.proposal.windows} windows; after: no row DEFECT or LATE"
    )
