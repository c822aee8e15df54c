"""The cockpit of a real Airflow in a real browser, over a home of a few days: its frame, what each part keeps to, and who sees what."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from playwright.sync_api import Browser, Response, Route, expect

from homes.cockpit import OBJECTIVES, Past, keep_samples, make_past
from homes.project import FLIGHTS, REPOSITORY, edit_yaml, link, rename, write_definition
from rivertwice.core.instants import to_iso, to_ms, utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import build_bundle
from rivertwice.definition.lint_finding import CheckReport
from rivertwice.deliver.note import Note, write_note
from rivertwice.engine.checked import _write, note_cases
from rivertwice.local.airflow import airflow_info, client
from rivertwice.quality.judge import JudgedRows
from rivertwice.quality.model import FAILED, PASSED, WINDOWS, Judgement
from rivertwice.quality.suites import Suite
from rivertwice.quality.table import store_quality
from rivertwice.reconcile.results import newest_reconcile
from servers.airflow import start_quiet_airflow, stop_quiet_airflow
from servers.cockpit import MARKS, WIDTHS, axe_findings, chromium, data_of, page_of, picture, sideways, token_of

pytestmark = MARKS
PIPELINE = "past"
OTHER = "other_delays"
BROKEN = "broken"
RUNBOOK = "https://wiki.example.com/delays"
HOSTILE = '<img src=x onerror="document.title=1"> is text'


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """An Airflow over a pipeline with eight days behind it, one that has never run, and one that is refused; it has a viewer, too."""
    made = make_past(tmp_path_factory.mktemp("cockpit"), Past(days=8, keys=4), (PIPELINE,), OBJECTIVES)
    made = replace(made, query=True)
    keep_samples(made, (PIPELINE,), utc_now())
    for name in (OTHER, BROKEN):
        write_definition(made.definitions / name, FLIGHTS)
        rename(made, FLIGHTS.name, name)
    edit_yaml(made.definitions / OTHER, lambda document: document.update(description=HOSTILE, runbook=RUNBOOK))
    edit_yaml(made.definitions / BROKEN, lambda document: document.pop("window"))
    sink = {"loads": {"to": "kafka", "topic": "loads", "guarantee": "at_least_once"}}
    edit_yaml(made.definitions / OTHER, lambda document: document.update(deliver=sink))
    write_note(
        made.pipeline(OTHER),
        "loads",
        Note(failures=3, error="no broker answers", next_attempt=datetime(2026, 11, 27, 3, tzinfo=UTC)),
    )
    bundle = build_bundle(made.definitions / OTHER)
    _write(made.pipeline(OTHER), CheckReport(bundle.id, (), (), {}, datetime(2026, 1, 2, tzinfo=UTC)))
    note_cases(made.pipeline(OTHER), {"one": False, "two": False}, datetime(2026, 1, 2, 3, tzinfo=UTC))
    judged = Judgement("0123456789ab", "expect_x", "dep_delay", "critical", PASSED, "a plane is at most a day late")
    for run, each in (("rc-1", judged), ("rc-2", replace(judged, state=FAILED, unexpected=3))):
        suite = Suite("expectations/past/windows.json", WINDOWS, run * 8, "past windows", ())
        day = datetime(2026, 1, 2, tzinfo=UTC)
        rows = JudgedRows("pandas", 9, day, day + timedelta(days=1), (to_ms(day), to_ms(day) + 1), (each,))
        store_quality(made.pipeline(PIPELINE), run, suite, rows, [each], day + timedelta(days=int(run[-1])))
    link(made.project, ("plugins", "expectations"))
    (made.project / "dags").mkdir()
    for file in (REPOSITORY / "dags").iterdir():
        (made.project / "dags" / file.name).symlink_to(file)
    (made.project / "dags" / "bills.py").write_text(WAITING_DAG)
    try:
        start_quiet_airflow(made, users=("vera:viewer",))
        client(made).wait_for_dags({"bills", *(f"reconcile__{name}" for name in (PIPELINE, OTHER))}, timeout=180)
        yield made
    finally:
        stop_quiet_airflow(made)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


def test_a_viewer_finds_each_pipeline_and_a_broken_one_says_why(settings: Settings, browser: Browser) -> None:
    with page_of(browser, settings, "/rivertwice/", user="vera") as page:
        table = page.get_by_role("table", name="Pipelines")
        expect(table.get_by_role("row")).to_have_count(4)
        expect(table.get_by_role("row", name=BROKEN)).to_contain_text("window")
        page.get_by_role("searchbox").fill("other")
        expect(table.get_by_role("row")).to_have_count(2)
        page.get_by_role("link", name=OTHER).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(OTHER)
        expect(page.get_by_role("tab", name="Now")).to_have_attribute("aria-selected", "true")
        expect(page.get_by_text(HOSTILE)).to_be_visible()
        assert page.title().endswith(f"{OTHER} · rivertwice")


@pytest.mark.proves("howto-watch.md#objectives")
@pytest.mark.proves("howto-cockpit.md#read-the-overview")
def test_the_overview_has_the_smallest_budget_the_cost_and_the_worst_first(
    settings: Settings, browser: Browser
) -> None:
    with page_of(browser, settings, "/rivertwice/", user="vera") as page:
        table = page.get_by_role("table", name="Pipelines")
        row = table.get_by_role("row", name=re.compile(f"^{PIPELINE}"))
        expect(row).to_contain_text("100 %")
        expect(row).to_contain_text(re.compile(r"8,6\d\d CPU-s"))
        expect(table.get_by_role("row", name=re.compile(f"^{OTHER}"))).to_contain_text("no SLO")
        page.get_by_label("Sort by").select_option(label="Smallest budget left")
        expect(table.get_by_role("row").nth(1)).to_contain_text(PIPELINE)
        page.get_by_role("radio", name="Ten worst 3").focus()
        page.keyboard.press("Space")
        expect(page).to_have_url(re.compile("show=ten"))
        given = page.request.get(str(page.get_by_role("link", name="Report of the week").evaluate("link => link.href")))
        assert given.headers["content-disposition"].startswith('attachment; filename="week-')
        assert all(name in given.text() for name in (PIPELINE, OTHER, BROKEN))


QUICK = {(1440, False), (390, True)}
LOOKS = [
    pytest.param(width, dark, marks=[] if (width, dark) in QUICK else pytest.mark.faults)
    for width in WIDTHS
    for dark in (False, True)
]


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_every_part_fits_the_width_and_axe_finds_nothing(
    settings: Settings, browser: Browser, width: int, dark: bool
) -> None:
    with page_of(browser, settings, "/rivertwice/", width=width, dark=dark) as page:
        expect(page.get_by_role("link", name=OTHER)).to_be_visible()
        expect(page.locator("html")).to_have_css("color-scheme", "dark" if dark else "light")
        picture(page, f"overview-{width}-{'dark' if dark else 'light'}")
        assert (axe_findings(page), sideways(page)) == ([], 0)
        page.get_by_role("link", name=PIPELINE, exact=True).click()
        expect(page.get_by_role("tab", name="Logs")).to_be_visible()  # `all` waits for none
        for tab in page.get_by_role("tab").all():
            tab.click()
            page.wait_for_load_state("networkidle")
            expect(page.locator("#panel .busy")).to_have_count(0)
            picture(page, f"tab-{width}-{'dark' if dark else 'light'}-{tab.inner_text().split(',')[0]}")
            found = (axe_findings(page), sideways(page))
            assert found == ([], 0), tab.inner_text()


WAITING_DAG = """
from airflow.sdk import DAG, Asset
from airflow.providers.standard.operators.empty import EmptyOperator

with DAG("bills", schedule=[Asset("served.past")]):
    EmptyOperator(task_id="nothing")
"""


@pytest.mark.proves("howto-cockpit.md#see-what-flows-where")
def test_the_map_leads_from_topics_to_the_dags_that_wait_by_mouse_keyboard_and_as_a_table(
    settings: Settings, browser: Browser
) -> None:
    with page_of(browser, settings, "/rivertwice/", user="vera") as page:
        page.get_by_text("Map", exact=True).click()
        drawing = page.get_by_role("region", name="Map of the flow")
        expect(drawing.locator(".map-part")).to_have_count(
            9
        )  # a topic that two read, their tables, a sink and its topic, the refused one, the DAG
        expect(drawing.locator('[data-id="dag:bills"]')).to_contain_text("never ran")
        expect(drawing.locator(f'[data-id="pipeline:{BROKEN}"]')).to_have_class(re.compile("t-bad"))
        expect(drawing.locator(f'[data-id="table:{PIPELINE}"]')).to_contain_text("DEFECT")
        assert (axe_findings(page), sideways(page)) == ([], 0)
        drawing.locator('[data-id^="topic:"]').first.focus()
        for key in ("Right", "Down", "Right", "Right"):  # along the ways of the second pipeline
            page.keyboard.press(f"Arrow{key}")
        expect(page.locator(":focus")).to_have_text(re.compile("bills"))
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(f"#/p/{PIPELINE}/correctness"))
        page.get_by_role("tab", name="Map").click()
        expect(page.locator(".map-part")).to_have_count(4)  # of the other pipeline there is nothing
        page.get_by_role("button", name="As a table").click()
        expect(
            page.get_by_role("table", name="What flows where").get_by_role("row", name=re.compile("bills"))
        ).to_contain_text("served.past")


@pytest.mark.proves("howto-cockpit.md#read-the-definition")
def test_the_definition_is_shown_as_it_runs_and_against_the_files_of_the_project(
    settings: Settings, browser: Browser
) -> None:
    file = settings.definitions / PIPELINE / "transform.sql"
    text = file.read_text()
    try:
        file.write_text(f"{text}-- not yet running\n")
        with page_of(browser, settings, f"/rivertwice/#/p/{PIPELINE}/definition", user="vera") as page:
            panel = page.get_by_role("tabpanel")
            expect(panel.get_by_label("transform.sql")).to_have_text(text)
            expect(panel).to_contain_text("What it promises and depends on")
            expect(panel.get_by_role("link", name="reconcile")).to_have_attribute(
                "href", re.compile(f"dags/reconcile__{PIPELINE}$")
            )
            panel.get_by_label("Compare with").select_option(label="the files of the project now")
            expect(panel.locator(".diff-removed")).to_have_text("--- not yet running\n")
            expect(panel.locator(".diff-added")).to_have_count(0)
            expect(page).to_have_url(re.compile("other=project"))
            assert (axe_findings(page), sideways(page)) == ([], 0)
    finally:
        file.write_text(text)
    with page_of(browser, settings, f"/rivertwice/#/p/{OTHER}/definition", user="vera", width=390, dark=True) as page:
        panel = page.get_by_role("tabpanel")
        expect(panel.get_by_role("link", name=RUNBOOK)).to_have_attribute("href", RUNBOOK)
        expect(panel).to_contain_text("2 cases passed 2026-01-02 03:00:00 UTC")
        assert (axe_findings(page), sideways(page)) == ([], 0)
        page.get_by_role("tab", name="Now").click()
        expect(page.get_by_role("tabpanel").get_by_role("link", name=RUNBOOK)).to_be_visible()
    with pytest.raises(httpx.HTTPStatusError) as refused:
        data_of(settings, f"p/{PIPELINE}/definition", other="nothing")
    assert refused.value.response.status_code == 404
    assert "is not a definition of past to compare with" in refused.value.response.text


@pytest.mark.proves("howto-cockpit.md#see-who-gets-the-results-and-what-is-expected-of-them")
def test_sinks_and_expectations_have_a_state_a_history_and_what_answers(settings: Settings, browser: Browser) -> None:
    with page_of(browser, settings, f"/rivertwice/#/p/{OTHER}/results", user="vera") as page:
        sinks = page.get_by_role("table", name="Sinks")
        expect(sinks.get_by_role("row", name="loads")).to_contain_text("no broker answers")
        expect(page.locator(".note.t-bad")).to_contain_text("The next attempt is at 2026-11-27 03:00:00 UTC")
        expect(page.get_by_role("tabpanel")).to_contain_text("It has no suite, or none has run")
        assert (axe_findings(page), sideways(page)) == ([], 0)
    with page_of(browser, settings, f"/rivertwice/#/p/{PIPELINE}/results", user="vera", width=390, dark=True) as page:
        row = page.get_by_role("table", name="Expectations").get_by_role("row", name="a plane is at most a day late")
        expect(row).to_contain_text("3 rows are not so")
        expect(row.locator(".runs li")).to_have_text(["✓passed", "✕failed"])
        expect(row).to_contain_text(f"rivertwice quality {PIPELINE} --accept 0123456789ab")
        expect(page.get_by_role("tabpanel")).to_contain_text("It has no sinks")
        assert (axe_findings(page), sideways(page)) == ([], 0)


@pytest.mark.proves("howto-cockpit.md#read-one-pipeline")
def test_what_comes_next_has_a_button_for_who_may_and_says_why_not_for_others(
    settings: Settings, browser: Browser
) -> None:
    with page_of(browser, settings, f"/rivertwice/#/p/{PIPELINE}") as page:
        page.locator(".now-side .act button").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("not what the log gives (DEFECT)")
        assert axe_findings(page) == []
        dialog.get_by_role("button", name="Cancel").click()
    with page_of(browser, settings, f"/rivertwice/#/p/{PIPELINE}", user="vera") as page:
        expect(page.locator(".now-side")).to_contain_text("No button: it needs the right to start repair, and its DAG.")
        expect(page.locator(".now-side .act")).to_have_count(0)
    with page_of(browser, settings, f"/rivertwice/#/p/{OTHER}") as page:
        expect(page.locator(".now-side")).to_contain_text("No button: the command runs where the agent is.")
        expect(page.locator(".now-next").get_by_role("button", name=f"Copy rivertwice start {OTHER}")).to_be_visible()


@pytest.mark.proves("howto-cockpit.md#look-at-rows")
def test_rows_are_chosen_by_window_and_key_explained_and_given_as_a_file(settings: Settings, browser: Browser) -> None:
    with page_of(browser, settings, f"/rivertwice/#/p/{PIPELINE}/rows?limit=20", user="vera") as page:
        table = page.get_by_role("table", name=re.compile("rows of served"))
        expect(table.get_by_role("row")).to_have_count(21)
        assert (axe_findings(page), sideways(page)) == ([], 0)
        values = page.get_by_label("Only with these values")
        values.fill("k001")
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_text("is not a JSON object")).to_be_visible()
        values.fill('{"k": "k001"}')
        page.get_by_label("From (UTC)").fill("2026-01-03T00:00")
        page.get_by_role("button", name="Show").click()
        expect(table.get_by_role("cell", name="k001").first).to_be_visible()
        expect(table.get_by_role("cell", name="k002")).to_have_count(0)
        link = page.get_by_role("link", name="csv")
        given = page.request.get(
            str(link.evaluate("link => link.href"))
        )  # Debian's Chromium cancels what Playwright downloads
        assert given.headers["content-disposition"] == f'attachment; filename="{PIPELINE}-served.csv"'
        lines = given.text().splitlines()
        expect(page.get_by_text(f"of {len(lines) - 1} rows")).to_be_visible()
        assert all("k001" in line for line in lines[1:])
        table.get_by_role("link", name="explain row 1", exact=True).click()
        expect(page).to_have_url(re.compile(f"#/p/{PIPELINE}/correctness\\?window=2026-"))
        expect(page.get_by_role("heading", name=re.compile("k001"))).to_be_visible()
    with pytest.raises(httpx.HTTPStatusError) as refused:
        data_of(settings, f"p/{PIPELINE}/rows", table="passwords")
    assert refused.value.response.status_code == 400


@pytest.mark.proves("howto-cockpit.md#ask-with-sql")
def test_sql_is_asked_by_keyboard_refused_with_its_place_and_given_as_a_file(
    settings: Settings, browser: Browser
) -> None:
    with page_of(browser, settings, f"/rivertwice/#/p/{PIPELINE}/rows?limit=20", user="vera") as page:
        page.get_by_text("Ask with SQL").click()
        statement = page.get_by_label("Statement")
        expect(statement).to_have_value(re.compile(f"FROM {PIPELINE}\nORDER BY window_start DESC"))
        statement.press("Control+Enter")
        table = page.get_by_role("table", name="rows of the query")
        expect(table.get_by_role("row")).to_have_count(51)
        expect(table.get_by_role("columnheader", name="window_start")).to_contain_text("TIMESTAMPTZ")
        with page.expect_response(lambda answer: answer.url.endswith("/query")) as answered:
            page.get_by_role("button", name="csv").click()
        assert answered.value.headers["content-disposition"] == f'attachment; filename="{PIPELINE}-query.csv"'
        statement.fill(f"SELECT window_strat\nFROM {PIPELINE}")
        statement.press("Meta+Enter")
        refused = page.get_by_label("Why it was refused")
        expect(refused).to_contain_text('Candidate bindings: "window_start"')
        assert (axe_findings(page), sideways(page)) == ([], 0)
        picture(page, "sql-refused")
        statement.fill("SELECT count(*) FROM range(1000000) a, range(1000000) b")
        statement.press("Control+Enter")
        page.get_by_role("button", name="Stop").click()
        expect(refused).to_have_text("The query was stopped.")
        statement.fill(
            f"SELECT p.window_start, p.k, p.n, v.verdict\nFROM {PIPELINE} p\n"
            f"JOIN {PIPELINE}__verdicts v ON v.window_start = p.window_start AND v.key = '{{\"k\": \"' || p.k || '\"}}'\n"
            "WHERE v.verdict <> 'AGREES'\nORDER BY ALL"
        )
        page.get_by_role("button", name="Run").click()
        expect(table.get_by_role("cell", name="LATE").first).to_be_visible()
        page.get_by_text("Views and their columns").click()
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme)
                page.evaluate("scrollTo(0, 0)")
                assert (axe_findings(page), sideways(page)) == ([], 0), (width, scheme)
                picture(page, f"sql-{width}-{scheme}")
        page.get_by_role("tab", name="Now", exact=True).click()
        page.get_by_role("tab", name="Rows").click()
        expect(statement).to_have_value(re.compile("ORDER BY ALL"))
        assert "SELECT" not in page.url
        statement.fill(f"SELECT window_start, k, n FROM {PIPELINE} LIMIT 2")
        statement.press("Control+Enter")
        table.get_by_role("link", name="explain row 1", exact=True).click()
        expect(page).to_have_url(re.compile(f"#/p/{PIPELINE}/correctness\\?window=2026-"))


def test_the_report_of_a_run_is_shown_above_the_parts(settings: Settings, browser: Browser) -> None:
    run = newest_reconcile(settings.pipeline(PIPELINE))
    with page_of(browser, settings, f"/rivertwice/?pipeline={PIPELINE}&run={run['run']}") as page:
        expect(page.get_by_role("heading", name=f"Report of {run['run']}")).to_be_visible()
        expect(page.get_by_text("served against truth")).to_be_visible()
        page.get_by_role("button", name="Close").click()
        expect(page.get_by_role("heading", name=f"Report of {run['run']}")).to_have_count(0)
        assert page.url.endswith(f"#/p/{PIPELINE}")


def test_data_need_a_login_and_the_page_holds_none(settings: Settings) -> None:
    url = f"{airflow_info(settings).url}/rivertwice/"
    page = httpx.get(url, trust_env=False, timeout=60)
    assert page.status_code == 200
    assert PIPELINE not in page.text
    assert httpx.get(f"{url}api/overview", trust_env=False, timeout=60).status_code == 401
    login = {"Authorization": f"Bearer {token_of(settings, 'vera')}"}
    seen = httpx.get(f"{url}api/overview", headers=login, trust_env=False, timeout=60)
    assert {row["name"] for row in seen.json()["pipelines"]} == {PIPELINE, OTHER, BROKEN}
    again = httpx.get(
        f"{url}api/overview", headers=login | {"If-None-Match": seen.headers["etag"]}, trust_env=False, timeout=60
    )
    assert (again.status_code, again.content) == (304, b"")
    unknown = httpx.get(f"{url}api/p/nobody/summary", headers=login, trust_env=False, timeout=60)
    assert unknown.status_code == 404


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        (f"?pipeline={PIPELINE}", f"#/p/{PIPELINE}"),
        (f"?pipeline={PIPELINE}&run=rc-1-1", f"#/p/{PIPELINE}?report=rc-1-1"),
        (f"?dag=reconcile__{PIPELINE}", f"#/p/{PIPELINE}/correctness"),
        (
            f"?dag=backfill__{PIPELINE}&run=manual__1",
            f"#/p/{PIPELINE}/backfills?dag=backfill__{PIPELINE}&run=manual__1",
        ),
        ("?dag=somebody_elses", "#/?dag=somebody_elses"),
    ],
)
def test_links_of_airflow_lead_to_their_place(settings: Settings, browser: Browser, asked: str, place: str) -> None:
    with page_of(browser, settings, f"/rivertwice/{asked}") as page:
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert page.url.partition("/rivertwice/")[2] == place


def test_beside_a_dag_it_opens_in_airflow_in_its_colours(settings: Settings, browser: Browser) -> None:
    with page_of(browser, settings, f"/dags/reconcile__{PIPELINE}/plugin/rivertwice-dag", dark=True) as page:
        frame = page.frame_locator("iframe")
        expect(frame.get_by_role("heading", level=1)).to_have_text(PIPELINE)
        expect(frame.get_by_role("tab", name="Correctness")).to_have_attribute("aria-selected", "true")
        for scheme in ("dark", "light", "dark"):
            page.evaluate("scheme => { document.documentElement.className = scheme }", scheme)
            expect(frame.locator("html")).to_have_css("color-scheme", scheme)


def test_in_the_navigation_the_address_names_the_place_and_links_leave(settings: Settings, browser: Browser) -> None:
    with page_of(browser, settings, "/plugin/rivertwice") as page:
        frame = page.frame_locator("iframe")
        frame.get_by_role("link", name=OTHER).click()
        frame.get_by_role("tab", name="Logs").click()
        place = f"/plugin/rivertwice/rivertwice/#/p/{OTHER}/logs"
        page.wait_for_function("place => (location.pathname + location.hash) === place", arg=place)
        page.reload()
        expect(frame.get_by_role("heading", level=1)).to_have_text(OTHER)
        expect(frame.get_by_role("tab", name="Logs")).to_have_attribute("aria-selected", "true")
        frame.get_by_role("link", name="Open in the whole window").click()
        page.wait_for_url(f"**/rivertwice/#/p/{OTHER}/logs", wait_until="commit")
        expect(page.get_by_role("heading", level=1)).to_have_text(OTHER)


def test_the_home_page_of_airflow_has_the_worst_sentence(settings: Settings, browser: Browser) -> None:
    with page_of(browser, settings, "/") as page:
        card = page.get_by_test_id("rivertwice-now")
        expect(card).to_contain_text(f"{BROKEN}: ")
        expect(card).to_contain_text("of 3 need attention")
        card.get_by_role("link", name=BROKEN).click()
        expect(page.frame_locator("iframe").get_by_role("heading", level=1)).to_have_text(BROKEN)


def test_news_are_patched_in_and_focus_and_selection_stay(settings: Settings, browser: Browser) -> None:
    """The rows are made up, so that each answer differs; nothing else is."""
    asked: list[int] = []

    def news(route: Route) -> None:
        asked.append(1)
        now = {"tone": "warn", "sentence": f"news {len(asked)}", "since": None, "next": None}
        rows = [{"name": name, "description": "d", "now": now} for name in (PIPELINE, OTHER)]
        route.fulfill(json={"pipelines": rows}, headers={"ETag": f'"{len(asked)}"'})

    with page_of(browser, settings, "/rivertwice/") as page:
        page.clock.install()
        page.route("**/api/overview", news)
        page.reload()
        expect(page.get_by_text("news 1").first).to_be_visible()
        page.evaluate(
            """name => {
                const cell = [...document.querySelectorAll("a")].find((each) => each.textContent === name);
                cell.focus();
                const range = document.createRange();
                range.selectNodeContents(cell);
                getSelection().removeAllRanges();
                getSelection().addRange(range);
            }""",
            OTHER,
        )
        page.clock.run_for(5_500)
        expect(page.get_by_text("news 2").first).to_be_visible()
        assert page.evaluate("[document.activeElement.textContent, String(getSelection())]") == [OTHER, OTHER]


def test_a_row_of_an_earlier_server_has_its_age_and_no_colour(settings: Settings, browser: Browser) -> None:
    light = {"tone": "good", "word": "runs", "title": None}
    row = {
        "name": PIPELINE, "description": "d", "unread": True, "as_of": to_iso(utc_now() - timedelta(minutes=5)), "running": [],
        "now": {"tone": "good", "sentence": "All is well.", "since": None, "next": None}, "lights": {"stream": light},
    }  # fmt: skip
    with page_of(browser, settings, "/rivertwice/") as page:
        page.route("**/api/overview", lambda route: route.fulfill(json={"pipelines": [row]}, headers={"ETag": '"1"'}))
        page.reload()
        shown = page.get_by_role("row", name=re.compile(f"^{PIPELINE}"))
        expect(shown).to_contain_text("As read 5 min ago, being read again: All is well.")
        expect(shown).to_contain_text("runs")
        assert shown.locator(".t-good").count() == 0, "nothing is green that was not read now"


def test_a_failed_request_keeps_what_was_shown_and_says_since_when(settings: Settings, browser: Browser) -> None:
    with page_of(browser, settings, "/rivertwice/") as page:
        page.clock.install()
        page.reload()
        expect(page.get_by_role("link", name=OTHER)).to_be_visible()
        page.route("**/api/overview", lambda route: route.abort())
        page.clock.run_for(5_500)
        expect(page.get_by_role("alert")).to_contain_text("Airflow does not answer. What you see is from ")
        expect(page.get_by_role("link", name=OTHER)).to_be_visible()
        page.unroute("**/api/overview")
        page.clock.run_for(5_500)
        expect(page.get_by_role("alert")).to_have_text("")
        expect(page.get_by_role("link", name=OTHER)).to_be_visible()


def test_it_asks_only_while_it_is_seen_and_unchanged_news_cost_no_body(settings: Settings, browser: Browser) -> None:
    with page_of(browser, settings, "/rivertwice/") as page:
        page.clock.install()
        page.reload()
        expect(page.get_by_role("link", name=OTHER)).to_be_visible()
        answers: list[Response] = []
        page.on("response", lambda answer: answers.append(answer) if "/api/" in answer.url else None)
        with page.expect_response("**/api/overview"):
            page.clock.run_for(5_500)
        assert [answer.status for answer in answers] == [304]
        hide = """hidden => {
            Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
        page.evaluate(hide, True)
        page.clock.run_for(60_000)
        page.wait_for_timeout(500)
        assert len(answers) == 1
        with page.expect_response("**/api/overview"):
            page.evaluate(hide, False)


def test_it_is_used_by_keys_alone(settings: Settings, browser: Browser) -> None:
    with page_of(browser, settings, f"/rivertwice/#/p/{OTHER}") as page:
        expect(page.get_by_role("tab", name="Now")).to_be_visible()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("main")).to_be_focused()
        page.get_by_role("tab", name="Now").focus()
        for key, name in (
            ("ArrowRight", "Map"),
            ("ArrowLeft", "Now"),
            ("ArrowLeft", "Logs"),
            ("Home", "Now"),
            ("End", "Logs"),
        ):
            page.keyboard.press(key)
            tab = page.get_by_role("tab", name=name)
            expect(tab).to_be_focused()
            expect(tab).to_have_attribute("aria-selected", "true")
        page.keyboard.press("Tab")
        expect(page.get_by_role("tabpanel", name="Logs")).to_be_focused()
        page.go_back()
        expect(page.get_by_role("tab", name="Now")).to_have_attribute("aria-selected", "true")
