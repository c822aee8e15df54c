"""`repair: {policy: automatic}` on a real Airflow: late rows are repaired by nobody, a DEFECT is declined, then approved, in the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from playwright.sync_api import expect

from homes.project import edit_yaml
from lab.faults.foreign import commit_by_another, first_value_changed
from rivertwice.agent.alert_model import Alert
from rivertwice.core.instants import to_iso
from rivertwice.reconcile.results import newest_reconcile
from rivertwice.storage.table import Table
from rivertwice.timeline.sequence import read_sequence
from rivertwice.upkeep.window_repairs import RepairRecord, Repairs
from running.waiting import wait_for
from servers.airflow import PIPELINE, World, agent_and_airflow, copy_world
from servers.cockpit import LIVE_MARKS, ask_for_act, axe_findings, chromium, page_of, picture
from servers.repairs import REPAIR, lasting, repairs, resolution_of, waiting
from streams.flights import StreamedRun

pytestmark = [*LIVE_MARKS, pytest.mark.faults]
VIEWER = "vera"
TAB = f"/rivertwice/#/p/{PIPELINE}/alerts"
RECONCILE = f"reconcile__{PIPELINE}"
BY_ITSELF = "Airflow, as repair: {policy: automatic} allows"
HOUR = timedelta(hours=1)
Served = dict[tuple[datetime, str], dict[str, Any]]
"""Window and airport to the row's values, without who made it."""


@pytest.fixture(scope="module")
def world(streamed_two_days: StreamedRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Airflow and an agent over a copy of the two stormy days, whose late rows are within the budget; the stream rests."""
    made = copy_world(streamed_two_days, tmp_path_factory.mktemp("policy"))
    budget = {"windows": 48, "records": 10_000}
    repair = {"policy": "automatic", "budget": budget}
    edit_yaml(made.settings.definitions / PIPELINE, lambda document: document.update(repair=repair))
    with agent_and_airflow(made.settings, users=(f"{VIEWER}:viewer",)):
        yield made


@pytest.fixture(scope="module")
def repaired(world: World) -> RepairRecord:
    """The repair of the late burst, which no person was asked for."""
    world.run("reconcile")
    run = wait_for("a repair that began by itself", lambda: next(iter(repairs(world)), None), 120)
    assert world.airflow.wait(REPAIR, run, 600) == "success", world.airflow.failures(REPAIR, run, 60)
    assert world.states("backfill", run)["approve"] == "skipped"
    (record,) = Repairs(world.home).read()
    return record


@dataclass(frozen=True)
class Defect:
    """A served row that another program changed, and the repair that was declined.

    Attributes:
        good: what was served before.
        window: the row's window, as a range in a message.
        run: of `backfill__P`.
        published: number of publications and head moves before.
    """

    good: Served
    window: str
    run: str
    published: int


@pytest.fixture(scope="module")
def declined(world: World, repaired: RepairRecord) -> Defect:
    """A value that another program changed in `served`: one alert, a repair that waits, and a person who declines it."""
    good, published = served_values(world), len(read_sequence(world.home))
    window = change_a_served_row(world)
    reconcile_to_a_defect(world)
    run = wait_for("a repair that waits", lambda: waiting(world), 240)
    alert = one_alert(world)
    assert alert.acknowledged_by == ""
    assert alert.details["repair"].startswith(f"1 row DEFECT is served in 1 window: {window}, reads ")
    with chromium() as browser, page_of(browser, world.settings, TAB) as page:
        page.get_by_role("button", name="Decline").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("1 row DEFECT")
        decline = dialog.get_by_role("button", name="Decline")
        expect(decline).to_be_disabled()  # without a reason
        dialog.get_by_label("Reason, for the log").fill("somebody tests a program")
        decline.click()
        expect(page.get_by_role("status").filter(has_text="Started")).to_be_visible()
        assert world.airflow.wait(REPAIR, run, 300) == "success", world.airflow.failures(REPAIR, run, 60)
        alert_card = page.get_by_role("region", name="critical: defect")
        expect(alert_card).to_contain_text("declined its repair: somebody tests a program")
        row = page.get_by_role("table", name="Repairs of").get_by_role("row").nth(1)
        expect(row).to_contain_text("declined")
        expect(row).to_contain_text("admin in Airflow", ignore_case=True)
        picture(page, "alerts-declined")
        assert axe_findings(page) == []
    return Defect(good, window, run, published)


def served_values(world: World) -> Served:
    """Return what is served."""
    rows = Table(world.home.tables.served).read().to_pylist()
    return {
        (row["window_start"], row["origin"]): {name: row[name] for name in row if not name.startswith("_")}
        for row in rows
    }


def one_alert(world: World) -> Alert:
    """Return the one alert that lasts, which is about the DEFECT."""
    found = lasting(world)
    assert [(alert.cause.kind, alert.cause.subject) for alert in found] == [("defect", "")], found
    return found[0]


def change_a_served_row(world: World, *, last: bool = False) -> str:
    """Let another program add one to a value of the first, or the last, row of a served file; return its window."""
    windows: list[str] = []

    def change(rows: pa.Table) -> pa.Table:
        ordered = rows.take(list(range(rows.num_rows))[::-1]) if last else rows
        start = ordered.column("window_start")[0].as_py()
        windows.append(f"[{to_iso(start)}, {to_iso(start + HOUR)})")
        return first_value_changed("flights")(ordered)

    commit_by_another(Path(str(world.home.tables.served)), change)
    return windows[0]


def reconcile_to_a_defect(world: World) -> None:
    """Reconcile; the gate does not pass, and what begins a repair, if one is to begin, has ended."""
    run = world.airflow.trigger(RECONCILE)
    assert world.airflow.wait(RECONCILE, run, 600) == "failed"
    states = world.states("reconcile", run)
    assert (states["compare"], states["gate"], states["repair_wanted"]) == ("success", "failed", "success")


def test_late_rows_within_the_budget_are_repaired_by_nobody(world: World, repaired: RepairRecord) -> None:
    late, windows = repaired.proposal.rows["LATE"], repaired.proposal.windows
    assert late >= windows > 1
    assert (repaired.outcome, repaired.by, repaired.after) == ("done", BY_ITSELF, {})
    assert resolution_of(world, "late_share") == (
        f"backfill {repaired.backfill} repaired it, approved by {BY_ITSELF}; before: {late} rows LATE served in {windows} windows; "
        "after: no row DEFECT or LATE"
    )
    with chromium() as browser, page_of(browser, world.settings, TAB, user=VIEWER) as page:
        row = page.get_by_role("table", name="Repairs of").get_by_role("row").last
        for text in (f"{late} rows LATE", "no row DEFECT or LATE", BY_ITSELF, repaired.backfill):
            expect(row).to_contain_text(text)


def test_a_declined_repair_computes_nothing_and_is_not_proposed_again(world: World, declined: Defect) -> None:
    assert len(read_sequence(world.home)) == declined.published
    assert served_values(world) != declined.good
    record = next(each for each in Repairs(world.home).read() if each.id == declined.run)
    assert (record.outcome, record.backfill, record.after) == ("declined", "", None)
    runs = repairs(world)
    reconcile_to_a_defect(world)
    assert repairs(world) == runs
    alert = one_alert(world)
    assert alert.times == 1
    assert (alert.acknowledged_by, alert.acknowledgement) == (
        "admin in Airflow",
        "declined its repair: somebody tests a program",
    )
    again = ask_for_act(world.settings, PIPELINE, "repair.approve", {"run": declined.run}, confirm=PIPELINE)
    assert (again.status_code, "does not wait for an answer" in again.json()["detail"]) == (409, True)


def test_a_defect_is_repaired_once_a_person_approves(world: World, declined: Defect) -> None:
    """Another row is wrong too by now, so the repair is asked for again, with both."""
    other = change_a_served_row(world, last=True)
    assert other != declined.window
    reconcile_to_a_defect(world)
    run = wait_for("a repair that waits", lambda: waiting(world), 240)
    alert = one_alert(world)
    assert alert.details["repair"].startswith("2 rows DEFECT are served in 2 windows: ")
    fields = {"run": run}
    for user, confirm, status in ((VIEWER, PIPELINE, 403), ("admin", "flight_delay", 400)):
        assert (
            ask_for_act(world.settings, PIPELINE, "repair.approve", fields, user=user, confirm=confirm).status_code
            == status
        )
    with chromium() as browser, page_of(browser, world.settings, TAB) as page:
        expect(page.get_by_role("region", name="critical: defect")).to_be_visible()
        page.get_by_role("button", name="Approve the repair").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("2 rows DEFECT")
        dialog.get_by_label("Reason, for the log").fill("the log is right")
        dialog.get_by_label("to confirm").fill(PIPELINE)
        dialog.get_by_role("button", name="Approve the repair").click()
        expect(page.get_by_role("status").filter(has_text="Started")).to_be_visible()
        assert world.airflow.wait(REPAIR, run, 600) == "success", world.airflow.failures(REPAIR, run, 60)
        row = page.get_by_role("table", name="Repairs of").get_by_role("row").nth(1)
        expect(row).to_contain_text("no row DEFECT or LATE")
        picture(page, "alerts-defect-repaired")
    assert served_values(world) == declined.good  # what the log gives
    assert lasting(world) == []
    record = Repairs(world.home).read()[-1]
    assert (record.id, record.outcome, record.by) == (run, "done", "admin in Airflow")
    assert resolution_of(world, "defect") == (
        f"backfill {record.backfill} repaired it, approved by admin in Airflow; before: 2 rows DEFECT served in 2 windows; "
        "after: no row DEFECT or LATE"
    )
    newest = newest_reconcile(world.home)
    assert newest is not None
    assert newest["gate"]["passed"]
    assert newest["counts"]["served"].get("DEFECT", 0) == 0
