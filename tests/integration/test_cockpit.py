"""The cockpit of a real Airflow in a real browser, over pipelines that have not run: its frame, and who sees what."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, expect

from homes.project import FLIGHTS, edit_yaml, make_project, rename
from rivertwice.config import Settings
from rivertwice.embedded.airflow import stop_airflow
from servers.airflow import ready_client, start_quiet_airflow
from servers.browser import find_chromium
from servers.cockpit import WIDTHS, axe_findings, chromium, page_of, sideways, token_of

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine"),
]
PIPELINE = "flight_delays"
OTHER = "other_delays"
BROKEN = "broken"
HOSTILE = '<img src=x onerror="document.title=1"> is text'


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """An Airflow over three pipelines that have never run, one of them with a broken definition; it has a viewer, too."""
    folder = tmp_path_factory.mktemp("cockpit")
    made = make_project(
        folder, {PIPELINE: FLIGHTS, OTHER: FLIGHTS, BROKEN: FLIGHTS}, links=("plugins", "dags", "expectations")
    )
    rename(made, PIPELINE, OTHER)
    rename(made, PIPELINE, BROKEN)
    edit_yaml(made.definitions / OTHER, lambda document: document.update(description=HOSTILE))
    edit_yaml(made.definitions / BROKEN, lambda document: document.pop("window"))
    try:
        start_quiet_airflow(made, users=("vera:viewer",))
        ready_client(made)
        yield made
    finally:
        stop_airflow(made)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


def test_a_viewer_finds_each_pipeline_and_a_broken_one_says_why(settings: Settings, browser: Browser) -> None:
    with page_of(browser, settings, "/rivertwice/", user="vera") as page:
        table = page.get_by_role("table", name="Pipelines")
        expect(table.get_by_role("row")).to_have_count(4)
        expect(table.get_by_role("row", name=BROKEN)).to_contain_text("window")
        expect(table.get_by_role("row", name=OTHER)).to_contain_text(HOSTILE)
        assert page.title() == "rivertwice"
        page.get_by_role("searchbox").fill("other")
        expect(table.get_by_role("row")).to_have_count(2)
        page.get_by_role("link", name=OTHER).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(OTHER)
        expect(page.get_by_role("tab", name="Now")).to_have_attribute("aria-selected", "true")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_overview_fits_and_axe_finds_nothing(settings: Settings, browser: Browser, width: int, dark: bool) -> None:
    with page_of(browser, settings, "/rivertwice/", width=width, dark=dark) as page:
        expect(page.get_by_role("link", name=OTHER)).to_be_visible()
        assert axe_findings(page) == []
        assert sideways(page) <= 0


def test_data_need_a_login_and_the_page_holds_none(settings: Settings) -> None:
    from rivertwice.embedded.airflow import airflow_info

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
        assert frame.get_by_role("link", name="Open in the whole window").get_attribute("target") == "_top"
