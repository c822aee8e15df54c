"""Correctness in the cockpit of a real Airflow, in a real browser, over a pipeline with a past: from the heatmap to an explanation.

The past was written by the product's own writers (`homes.cockpit`), so neither Spark nor a broker is needed. A backfill that runs is
in `test_cockpit_backfill.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, Page, expect

from homes.cockpit import SIZE_MS, Past, make_past
from homes.project import link
from rivertwice.agent.alert_gates import record_gate
from rivertwice.agent.alert_store import alerts_of
from rivertwice.cli.main import cli
from rivertwice.core.instants import from_ms, to_iso, utc_now
from rivertwice.core.settings import Settings
from rivertwice.local.airflow import airflow_info, client
from rivertwice.reconcile.results import Stamp, StoredVerdict, newest_reconcile, store_run
from rivertwice.timeline.digest import key_text
from rivertwice.timeline.judgements import Increment
from servers.airflow import run_dag, start_quiet_airflow, stop_quiet_airflow
from servers.cockpit import MARKS, WIDTHS, axe_findings, chromium, data_of, page_of, sideways, token_of
from servers.repairs import clicks_to_its_cure

pytestmark = MARKS
NAME = "past"
PAST = Past(days=33, keys=4, unrepaired=2)
TAB = f"/rivertwice/#/p/{NAME}/correctness"
START_MS, KEY = PAST.late_of(PAST.closed - 1)[0]
START = to_iso(from_ms(START_MS))
LABEL = f"{START[:10]} {START[11:16]} UTC, {KEY}: late, 1 of 10 records came after the window closed"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """An Airflow over a pipeline with a past of 33 days; it has a viewer, too."""
    made = make_past(tmp_path_factory.mktemp("past"), PAST, (NAME,))
    link(made.project, ("plugins", "dags", "expectations"))
    try:
        start_quiet_airflow(made, users=("vera:viewer",))
        client(made).wait_for_dags({f"backfill__{NAME}"}, timeout=180)
        yield made
    finally:
        stop_quiet_airflow(made)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


def by_command(settings: Settings) -> dict[str, Any]:
    """Return what the command line explains of the late row, without the age."""
    done = CliRunner().invoke(cli, ["--output", "json", "explain", NAME, START, KEY], env=settings.to_env())
    assert done.exit_code == 0, done.output
    explained: dict[str, Any] = json.loads(done.stdout)
    for verdict in explained["verdicts"]:
        del verdict["age_s"]
    return explained


def test_a_cell_is_explained_as_the_command_explains_it(settings: Settings, browser: Browser) -> None:
    explained = by_command(settings)
    assert data_of(settings, f"p/{NAME}/explain", window=START, key=KEY)["explanation"] == explained
    with page_of(browser, settings, f"{TAB}?level=window") as page:
        page.get_by_role("gridcell", name=LABEL).click()
        dialog = page.get_by_role("dialog", name=KEY)
        (column,) = explained["columns"]
        expect(dialog.get_by_role("row", name=f"{column['name']} {column['served']}")).to_be_visible()
        for act in explained["acts"]:
            expect(dialog).to_contain_text(act["command"])
        for change in explained["history"]:
            expect(dialog).to_contain_text(f"{change['state']} {change['by']}")
        (late,) = explained["late"]
        expect(dialog.get_by_role("row", name=late["place"])).to_be_visible()
        dialog.get_by_role("button", name="Show the truth").click()
        expect(dialog).to_contain_text(f"rivertwice explain {NAME} {START} '{key_text(['k'], [KEY])}' --with-truth")
        assert f"window={START.replace(':', '%3A')}" in page.url
        page.reload()
        expect(page.get_by_role("dialog", name=KEY)).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_repaired_row_has_its_truth_from_the_verdict(settings: Settings, browser: Browser) -> None:
    start_ms, key = PAST.late_of(3)[0]
    start = to_iso(from_ms(start_ms)).replace(":", "%3A")
    with page_of(browser, settings, f"{TAB}?window={start}&key={key}") as page:
        dialog = page.get_by_role("dialog", name=key)
        dialog.get_by_role("button", name="Show the truth").click()
        expect(dialog).to_contain_text("found the served row equal to the truth")
        cells = dialog.get_by_role("row", name="n 10 9 10")
        expect(cells).to_be_visible()


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.getAttribute('aria-label')"))


def test_the_grid_is_used_by_keyboard_alone(settings: Settings, browser: Browser) -> None:
    with page_of(browser, settings, f"{TAB}?level=window") as page:
        grid = page.get_by_role("grid", name=f"Verdicts of {NAME}")
        expect(grid.locator("[tabindex='0']")).to_have_count(1)
        assert grid.get_attribute("aria-colcount") == str(3 * PAST.days + 1)
        grid.locator("[tabindex='0']").focus()
        assert "all keys: open" in focused(page)
        page.keyboard.press("ArrowDown")
        expect(page.locator(":focus")).to_have_attribute("aria-label", re.compile("k000"))
        for _ in range(4):
            page.keyboard.press("Shift+ArrowLeft")
        expect(page.get_by_text("5 windows")).to_be_visible()
        expect(grid.locator("[tabindex='0']")).to_have_count(1)
        page.keyboard.press("Escape")
        expect(page.get_by_text("5 windows")).to_have_count(0)
        page.keyboard.press("Control+Home")
        expect(page.locator(":focus")).to_have_attribute("aria-label", re.compile("^2026-01-01 00:00 UTC"))
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        expect(page.locator(":focus")).to_have_attribute("aria-label", re.compile(": defect"))
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog", name="k000")).to_be_visible()


def test_days_lead_to_their_windows_and_open_trouble_is_listed_first(settings: Settings, browser: Browser) -> None:
    with page_of(browser, settings, TAB) as page:
        table = page.get_by_role("table", name="Served rows that do not agree")
        rows = table.get_by_role("row")
        expect(rows.nth(1)).to_contain_text("DEFECT")
        expect(rows.nth(2)).to_contain_text("NOT_COMPARABLE")
        expect(rows).to_have_count(1 + 2 + len(PAST.late_of(PAST.closed - 1)) + len(PAST.late_of(PAST.closed - 2)))
        expect(page.get_by_role("table", name="Windows that were open").get_by_role("row")).to_have_count(4)
        expect(page.get_by_role("table", name="Repaired rows")).to_be_hidden()
        grid = page.get_by_role("grid")
        grid.get_by_role("gridcell", name="2026-01-01 00:00 UTC to 2026-01-02 00:00 UTC, all keys").click()
        expect(grid).to_have_attribute("aria-colcount", "4")
        page.go_back()
        expect(grid).to_have_attribute("aria-colcount", str(PAST.days + 1))


def test_windows_are_selected_by_a_drag_and_planned(settings: Settings, browser: Browser) -> None:
    """Without a broker's address the plan is left to the DAG's dry run, and says so; a viewer may start neither."""
    for user in ("admin", "vera"):
        with page_of(browser, settings, f"{TAB}?level=window", user=user) as page:
            grid = page.get_by_role("grid")
            last = 3 * PAST.closed
            cells = [grid.locator(f"[data-row='1'][data-column='{last - back}']") for back in (3, 1)]
            cells[0].drag_to(cells[1])
            page.get_by_text("3 windows").wait_for()
            page.get_by_role("button", name="Plan a backfill of them").click()
            dialog = page.get_by_role("dialog", name="Backfill")
            expect(dialog).to_contain_text("no Kafka address")
            expect(dialog.get_by_role("table", name="Served rows that do not agree")).to_have_count(0)
            if user == "vera":
                expect(dialog).to_contain_text("You may look, and not start it")
                continue
            start = dialog.get_by_role("button", name="Start the dry run")
            expect(start).to_be_disabled()
            dialog.get_by_label("Reason").fill("to look")
            expect(start).to_be_disabled()
            dialog.get_by_label("Type").fill(NAME)
            expect(start).to_be_enabled()


def test_backfills_are_listed_with_verdicts_before_and_after(settings: Settings, browser: Browser) -> None:
    with page_of(browser, settings, f"/rivertwice/#/p/{NAME}/backfills") as page:
        table = page.get_by_role("table", name="Backfills")
        expect(table.get_by_role("row")).to_have_count(2)
        expect(table).to_contain_text("published")
        expect(page.get_by_text("Windows that wait")).to_be_visible()
        table.get_by_role("button", name="Details").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("rows differ from the stream's")
        late = sum(len(PAST.late_of(day)) for day in range(30))
        expect(dialog).to_contain_text(f"{late} of {90 * PAST.keys} rows")
        expect(dialog).to_contain_text("late events")
        assert axe_findings(page) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_tabs_fit_and_axe_finds_nothing(settings: Settings, browser: Browser, width: int, dark: bool) -> None:
    for place, wanted in ((f"{TAB}?pair=stream&level=window", "grid"), (f"/rivertwice/#/p/{NAME}/backfills", "table")):
        with page_of(browser, settings, place, width=width, dark=dark) as page:
            page.get_by_role(wanted).first.wait_for()  # type: ignore[arg-type]
            page.get_by_text("How late the late records were" if wanted == "grid" else "stored plan").wait_for()
            assert axe_findings(page) == []
            assert sideways(page) <= 0
            if wanted == "grid":
                page.get_by_role("gridcell", name=re.compile(": late")).last.click()
                page.get_by_role("dialog").get_by_text("How it came to be").wait_for()
                assert axe_findings(page) == []


def test_what_did_not_change_is_not_sent_again_and_nonsense_is_refused(settings: Settings) -> None:
    url = f"{airflow_info(settings).url}/rivertwice/api/p/{NAME}"
    login = {"Authorization": f"Bearer {token_of(settings, 'vera')}"}

    def ask(path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"{url}/{path}", headers=login | headers, trust_env=False, timeout=60)

    for path in ("heatmap", "correctness", "lateness", "backfills", f"explain?window={START}&key={KEY}"):
        first = ask(path)
        assert first.status_code == 200, path
        assert ask(path, **{"If-None-Match": first.headers["etag"]}).status_code == 304, path
    for path in (
        "heatmap?pair=other", "heatmap?level=none", "heatmap?from=monday", "cell?from=2026-01-02&to=2026-01-01", "cell?from=2026-01-01&to=2026-01-02&key=x",
        f"explain?window={START}&key=nobody", "explain?window=2020-01-01", "plan?from=2026-01-01", "backfill?id=..%2F..", "backfill?id=bf-none",
    ):  # fmt: skip
        refused = ask(path)
        assert (refused.status_code, bool(json.loads(refused.text)["detail"])) == (400, True), path


@pytest.mark.proves("howto-watch.md#links-and-runbooks")
@pytest.mark.parametrize("kind", ["defect", "late_share"])
def test_from_the_message_of_an_alert_to_its_cure_are_three_clicks(
    settings: Settings, browser: Browser, kind: str
) -> None:
    run = newest_reconcile(settings.pipeline(NAME))
    assert run is not None
    found = {**run, "gate": {"alerts": [{"severity": "critical", "kind": kind, "message": "found"}]}}
    record_gate(settings, NAME, found, by="command", details={}, whole=True)
    (alert,) = (each for each in alerts_of(settings).state().open() if each.cause.kind == kind)
    clicks = clicks_to_its_cure(browser, settings, alert, "Start the dry run")
    assert clicks == ["the link of the message", "Plan this backfill", "Start the dry run"]


@pytest.mark.proves("howto-watch.md#the-report-of-the-week")
def test_the_dag_of_the_week_writes_the_report_that_the_page_gives(settings: Settings) -> None:
    """A reconcile of today counts all rows and has judged one window; a route of warnings gets the sentence."""
    home, now = settings.pipeline(NAME), utc_now()
    newest = newest_reconcile(home)
    assert newest is not None
    summary = {name: newest[name] for name in ("counts", "balance", "late_by_partition", "gate", "duration_s")}
    stamp = Stamp("rc-today", NAME, now, newest["timeline"], newest["batch"], "", newest["sequence"], newest["as_of"])
    judged = StoredVerdict("served", START_MS, START_MS + SIZE_MS, KEY, "LATE", "1 of 10 records came too late", late=1)
    store_run(home, stamp, [judged], [], summary, Increment(newest["run"]))
    told = settings.home / "told.jsonl"
    (settings.project / "alerts.yaml").write_text(f"routes: {{ops: {{to: file, path: {told}}}}}")

    airflow = client(settings)
    airflow.wait_for_dags({"report__week"}, timeout=60)
    run_dag(airflow, "report__week")

    file = settings.home / "reports" / f"week-{now:%Y-%m-%d}.html"
    page = httpx.get(
        f"{airflow_info(settings).url}/rivertwice/api/week",
        headers={"Authorization": f"Bearer {token_of(settings, 'vera')}"}, trust_env=False, timeout=60,
    )  # fmt: skip
    assert f'filename="{file.name}"' in page.headers["content-disposition"]
    written, given = (
        re.sub(r"[0-9-]+ [0-9:]+ to [0-9-]+ [0-9:]+ UTC", "", text) for text in (file.read_text(), page.text)
    )
    assert written == given, "the same numbers of another minute"
    served = newest["counts"]["served"]
    rows = sum(served[verdict] for verdict in ("AGREES", "LATE", "DEFECT", "NOT_COMPARABLE"))
    sentence = f"1 pipelines compared 1 windows: of {rows:,} served rows {served['AGREES']:,} agree, {served['LATE']:,} are late"
    assert sentence in written
    *_, line = told.read_text().splitlines()  # a new Airflow runs the tick before it, too
    assert json.loads(line)["message"].startswith(sentence)
    assert str(file) in line
