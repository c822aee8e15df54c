"""Savepoints, timelines and dead letters through the cockpit of a real Airflow, in a real browser: each act, and what refuses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, expect

from rivertwice.core.instants import utc_now
from rivertwice.log.reader import read_exactly
from rivertwice.savepoint.catalogue import load_savepoint
from rivertwice.savepoint.records import encode_record
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.table import Table
from rivertwice.timeline.dead_summary import read_amendments
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import head
from servers.airflow import PIPELINE, World, agent_and_airflow, await_success, copy_world
from servers.cockpit import LIVE_MARKS, ask_for_act, axe_findings, chromium, data_of, page_of, sideways
from streams.flights import StreamedRun

pytestmark = LIVE_MARKS
TAB = f"/rivertwice/#/p/{PIPELINE}/timelines"
LETTERS = f"/rivertwice/#/p/{PIPELINE}/letters"
VIEWER = "vera"
WRONG = b'{"carrier": "UA" "note": "<img src=x onerror=alert(1)>"}'


@pytest.fixture(scope="module")
def world(streamed_two_days: StreamedRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An Airflow, without an agent at work on the stream, over a copy of the streamed days; it has a viewer, too.

    There is a savepoint that counts as proved, one that was only taken, and three dead letters of an accepted batch.
    """
    made = copy_world(streamed_two_days, tmp_path_factory.mktemp("operate"))
    settings = made.settings
    proved = take_savepoint(settings, PIPELINE, now=utc_now(), reason="proved")
    proof = {"proved": True, "batches": 0, "last_batch": proved.manifest.batch, "state_rows": 3, "source": "kafka"}
    proved.store.put(f"{proved.id}/proof.json", encode_record(proof))
    take_savepoint(settings, PIPELINE, now=utc_now(), reason="taken")
    _plant_letters(made)
    with agent_and_airflow(settings, users=(f"{VIEWER}:viewer",)):
        yield made


def _plant_letters(world: World) -> None:
    """Store three dead letters at the addresses of a batch, with a value that no definition accepts."""
    row = path_ledger(world.home)[3]
    (topic,) = list(row.end_offsets)
    part, end = next((int(part), end) for part, end in row.end_offsets[topic].items() if end)
    (record,) = read_exactly(world.settings, topic, {part: (end - 1, end)})
    headers = [{"key": name, "value": value} for name, value in dict(record.headers() or []).items()]
    letters = [
        {
            "_format": 1, "_timeline": row.timeline, "_batch": row.batch, "reason": reason, "detail": "at 17", "cluster_id": "c",
            "topic_id": row.topic_ids[topic], "topic": topic, "partition": part, "offset": end - 1 - number,
            "record_time": utc_now(), "key": record.key(), "value": WRONG, "headers": headers,
        }
        for number, reason in enumerate(("json", "json", "schema"))
    ]  # fmt: skip
    Table(world.home.tables.dead_letters).append(pa.Table.from_pylist(letters))
    (world.settings.home / "good.json").write_bytes(record.value() or b"")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


def savepoint_of(world: World, reason: str) -> str:
    found = [row["id"] for row in savepoints(world)["rows"] if row["reason"] == reason]
    assert len(found) == 1
    return str(found[0])


def savepoints(world: World) -> Any:
    return data_of(world.settings, f"p/{PIPELINE}/savepoints")


def ended(world: World, page: Page) -> str:
    """Wait for the run that the page says it started, and return its id."""
    link = page.locator(".started a").first
    expect(link).to_be_visible(timeout=30_000)
    dag, _, run = str(link.get_attribute("href")).partition("/dags/")[2].partition("/runs/")
    run = run.replace("%3A", ":").replace("%2B", "+")
    await_success(world.airflow, dag, run, 600)
    return run


def row_of(page: Page, savepoint: str) -> Any:
    return page.get_by_role("table", name="Savepoints, newest first").get_by_role("row", name=savepoint)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("tab", [TAB, LETTERS], ids=["timelines", "letters"])
def test_both_tabs_fit_a_phone_and_axe_finds_nothing(world: World, browser: Browser, tab: str, dark: bool) -> None:
    for width in (390, 1440):
        with page_of(browser, world.settings, tab, width=width, dark=dark) as page:
            expect(page.get_by_role("table").first).to_be_visible()
            assert axe_findings(page) == []
            assert sideways(page) <= 0


def test_the_drawing_names_the_head_and_is_used_by_keys(world: World, browser: Browser) -> None:
    proved = savepoint_of(world, "proved")
    with page_of(browser, world.settings, TAB) as page:
        drawing = page.get_by_role("region", name="Drawing of the timelines")
        expect(drawing).to_contain_text("t1 · head")
        dot = drawing.get_by_role("button", name=proved)
        dot.focus()
        page.keyboard.press("Enter")
        expect(dot).to_have_attribute("aria-pressed", "true")
        expect(page.locator(".chosen-point")).to_contain_text(proved)
        page.get_by_text("The same as tables").click()
        expect(page.get_by_role("table", name="Timelines, in order of creation")).to_contain_text("first start")


@pytest.mark.proves("howto-cockpit.md#timelines-savepoints-and-versions")
def test_a_pin_is_one_click_and_carries_the_persons_name(world: World, browser: Browser) -> None:
    taken = savepoint_of(world, "taken")
    with page_of(browser, world.settings, TAB) as page:
        row_of(page, taken).get_by_role("button", name="Pin").click()
        ended(world, page)
        expect(row_of(page, taken)).to_contain_text("pinned", timeout=30_000)
    pin = load_savepoint(world.home, taken)
    assert pin.pinned
    assert json.loads(pin.store.get(f"{taken}/pin.json") or b"")["by"] == "admin in Airflow"
    events = (world.settings.home / "agent" / "events.jsonl").read_text().splitlines()
    assert "savepoint pin by admin in Airflow" in events[-1]


def test_a_restore_shows_what_it_does_and_needs_the_name_typed(world: World, browser: Browser) -> None:
    proved = savepoint_of(world, "proved")
    with page_of(browser, world.settings, TAB) as page:
        row_of(page, proved).get_by_role("button", name="Restore").click()
        dialog = page.get_by_role("dialog", name=f"Restore {proved}")
        expect(dialog.get_by_role("row", name="replayed and compared")).to_contain_text("0 recorded batches")
        expect(dialog.get_by_role("row", name="served")).to_contain_text("as now")
        button = dialog.get_by_role("button", name="Restore", exact=True)
        dialog.get_by_label("Reason").fill("a test")
        for typed in ("", "flight_delay", PIPELINE.upper()):
            dialog.get_by_label("to confirm").fill(typed)
            expect(button).to_be_disabled()
        dialog.get_by_label("to confirm").fill(PIPELINE)
        expect(button).to_be_enabled()
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
    assert head(world.home) == "t1"


def test_a_savepoint_that_cannot_be_restored_is_refused_with_its_reason(world: World, browser: Browser) -> None:
    taken, before = savepoint_of(world, "taken"), world.airflow.runs(f"operate__{PIPELINE}")
    with page_of(browser, world.settings, TAB) as page:
        row_of(page, taken).get_by_role("button", name="Restore").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("This would be refused")
        expect(dialog).to_contain_text("was taken and never proved")
        expect(dialog.get_by_label("to confirm")).to_have_count(0)
        dialog.get_by_label("Accept it although it was never proved").check()
        expect(dialog.get_by_label("to confirm")).to_be_visible()
        page.keyboard.press("Escape")
        row_of(page, taken).get_by_role("button", name="Rewind").click()
        expect(page.get_by_role("dialog")).to_contain_text("no batch comes after it")
    assert world.airflow.runs(f"operate__{PIPELINE}") == before


@pytest.mark.parametrize(
    ("act", "confirm", "user", "status", "said"),
    [
        ("savepoint.restore", "flight_delay", "admin", 400, "was typed to confirm it"),
        ("savepoint.rewind", "", "admin", 400, "was typed to confirm it"),
        ("savepoint.restore", PIPELINE, VIEWER, 403, "may not start operate__flight_delays"),
        ("savepoint.pin", "", VIEWER, 403, "may not start operate__flight_delays"),
        ("dead.discard", "", VIEWER, 403, "may not start operate__flight_delays"),
    ],
)
def test_a_wrong_name_or_no_right_starts_nothing(
    world: World, act: str, confirm: str, user: str, status: int, said: str
) -> None:
    fields = {"kind": "json"} if act == "dead.discard" else {"savepoint": savepoint_of(world, "proved")}
    answer = ask_for_act(world.settings, PIPELINE, act, fields, user=user, confirm=confirm)
    assert answer.status_code == status
    assert said in answer.json()["detail"]
    assert head(world.home) == "t1"


def test_a_viewer_sees_no_button_no_value_and_no_preview(world: World, browser: Browser) -> None:
    with page_of(browser, world.settings, TAB, user=VIEWER) as page:
        expect(row_of(page, savepoint_of(world, "proved"))).to_be_visible()
        for name in ("Restore…", "Rewind…", "Prove", "Pin", "Unpin", "Take", "Take and prove", "Planned restore…"):
            expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    shown = data_of(world.settings, f"p/{PIPELINE}/dead-letters", user=VIEWER)
    assert (shown["values"], {row["value"] for row in shown["sample"]}) == (False, {None})
    with pytest.raises(httpx.HTTPStatusError, match="403"):
        data_of(world.settings, f"p/{PIPELINE}/preview/savepoint.restore", user=VIEWER)


def test_a_dead_letter_is_discarded_with_its_reason(world: World, browser: Browser) -> None:
    with page_of(browser, world.settings, LETTERS) as page:
        expect(page.get_by_role("table", name="3 of 3 dead letters")).to_contain_text("onerror=alert(1)")
        reasons = page.get_by_role("table", name="Dead letters by reason")
        reasons.get_by_role("row", name="schema").get_by_role("button", name="Discard all open").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("table", name="1 of 1 record")).to_be_visible()
        dialog.get_by_label("Reason").fill("a test record")
        dialog.get_by_role("button", name="Discard 1 record").click()
        ended(world, page)
        expect(reasons.get_by_role("row", name="schema").get_by_role("cell").nth(2)).to_have_text("1", timeout=30_000)
    decided = read_amendments(world.home)[-1]
    assert (decided.kind, decided.by, decided.why) == ("discard", "admin in Airflow", "a test record")


@pytest.mark.faults
def test_a_savepoint_is_taken_and_proved_from_the_page(world: World, browser: Browser) -> None:
    before = {row["id"] for row in savepoints(world)["rows"]}
    with page_of(browser, world.settings, TAB) as page:
        page.get_by_role("button", name="Take and prove").click()
        ended(world, page)
        (new,) = {row["id"] for row in savepoints(world)["rows"]} - before
        expect(row_of(page, new)).to_contain_text("proved", timeout=30_000)
    assert load_savepoint(world.home, new).status == "proved"


@pytest.mark.faults
def test_a_dead_letter_is_amended_once_its_value_is_accepted(world: World, browser: Browser) -> None:
    good = (world.settings.home / "good.json").read_text()
    with page_of(browser, world.settings, LETTERS) as page:
        page.get_by_role("button", name="Amend").first.click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("the next reconcile of flight_delays counts it")
        dialog.get_by_label("Reason").fill("a comma was missing")
        dialog.get_by_role("button", name="Amend", exact=True).click()
        expect(dialog).to_contain_text("change it")
        dialog.get_by_label("Value, as it should have been").fill(good)
        dialog.get_by_role("button", name="Amend", exact=True).click()
        run = ended(world, page)
    decided = read_amendments(world.home)[-1]
    assert (decided.kind, decided.value, decided.by) == ("amend", good.encode(), "admin in Airflow")
    assert list(world.home.operations.glob("amend-*.json")) == []
    assert world.states("operate", run)["act"] == "skipped"


@pytest.mark.faults
def test_a_value_that_is_refused_again_changes_nothing(world: World) -> None:
    open_letter = data_of(world.settings, f"p/{PIPELINE}/dead-letters", state="open")["sample"][0]
    before = read_amendments(world.home)
    answer = ask_for_act(world.settings, PIPELINE, "dead.amend", {"place": open_letter["place"], "value": "{"})
    run = answer.raise_for_status().json()["run"]
    assert world.airflow.wait(f"operate__{PIPELINE}", run, 600) == "failed"
    assert "would be a dead letter too" in world.airflow.failures(f"operate__{PIPELINE}", run, 60)
    assert read_amendments(world.home) == before


@pytest.mark.faults
def test_a_restore_moves_the_head_once_the_name_is_typed(world: World, browser: Browser) -> None:
    proved = savepoint_of(world, "proved")
    with page_of(browser, world.settings, TAB) as page:
        row_of(page, proved).get_by_role("button", name="Restore").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Reason").fill("the disk was replaced")
        dialog.get_by_label("to confirm").fill(PIPELINE)
        dialog.get_by_role("button", name="Restore", exact=True).click()
        run = ended(world, page)
        expect(page.get_by_role("region", name="Drawing of the timelines")).to_contain_text("t2 · head", timeout=40_000)
    report = world.airflow.xcom(f"operate__{PIPELINE}", run, "report")
    assert (report["head"], report["parent"], head(world.home)) == ("t2", "t1", "t2")
    events = [json.loads(line) for line in (world.settings.home / "agent" / "events.jsonl").read_text().splitlines()]
    (asked,) = [event for event in events if "savepoint restore" in event["message"]]
    assert (asked["by"], asked["reason"]) == ("admin in Airflow", "the disk was replaced")
