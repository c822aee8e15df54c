"""Each route of the cockpit for each login of a real Airflow with teams, and what keeps an act from who may not do it."""

from __future__ import annotations

import functools
import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from homes.project import FLIGHTS, make_project, rename
from rivertwice.agent.alert_model import AlertCause, AlertSeverity, Report
from rivertwice.agent.alert_store import alerts_of
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.local.airflow import AirflowHome, airflow_info, client
from rivertwice.local.fork_server import ForkServer
from servers.airflow import start_quiet_airflow, stop_quiet_airflow
from servers.browser import find_chromium
from servers.cockpit import axe_findings, chromium, page_of, sideways, token_of

pytestmark = pytest.mark.airflow
BLUE, RED, NOBODYS = "flight_delays", "red_delays", "shared_delays"
USERS = ("vera:viewer:blue", "ursula:user:blue", "rita:user:red", "olaf:op:blue|red", "nina:viewer")
DAG_FILE = '''"""Airflow DAGs of a team's pipelines."""
from rivertwice.airflow.factory import all_dags
globals().update(all_dags(pipelines=({name!r},)))
'''
OPEN, LOGIN, PIPELINE, PREVIEW, ACT = "open", "login", "pipeline", "preview", "act"
ROUTES = {
    ("GET", "/"): OPEN,
    ("GET", "/web"): OPEN,
    ("GET", "/api/me"): LOGIN,
    ("GET", "/api/overview"): LOGIN,
    ("GET", "/api/week"): LOGIN,
    ("GET", "/api/map"): LOGIN,
    ("GET", "/api/p/{name}/preview/{act}"): PREVIEW,
    ("GET", "/api/p/{name}/preview/discard"): PREVIEW,
    ("POST", "/api/p/{name}/acts/{act}"): ACT,
    ("POST", "/api/p/{name}/query"): ACT,
}
"""Who may ask for a route: everybody, whoever is logged in, whoever may act (a preview of an act, too). All others are of a pipeline that one may read."""
MAY_READ = {
    None: (),
    "nina": (NOBODYS,),
    "vera": (BLUE, NOBODYS),
    "ursula": (BLUE, NOBODYS),
    "rita": (RED, NOBODYS),
} | dict.fromkeys(("olaf", "admin"), (BLUE, RED, NOBODYS))
MAY_ACT = {None: (), "nina": (), "vera": (), "ursula": (BLUE, NOBODYS), "rita": (RED, NOBODYS)} | dict.fromkeys(
    ("olaf", "admin"), (BLUE, RED, NOBODYS)
)
HIDDEN = "that you may read"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """An Airflow with two teams over three pipelines that have never run: one of each team, and one of nobody."""
    folder = tmp_path_factory.mktemp("teams")
    made = make_project(folder, dict.fromkeys((BLUE, RED, NOBODYS), FLIGHTS), links=("plugins", "expectations"))
    made = replace(made, query=True)
    rename(made, "flight_delays", RED)
    rename(made, "flight_delays", NOBODYS)
    bundles = [_bundle(folder, "blue", BLUE), _bundle(folder, "red", RED), _bundle(folder, None, NOBODYS)]

    def make_teams(home: AirflowHome, fork_server: ForkServer) -> None:
        assert fork_server.run(["teams", "sync"], home.logs / "teams.log") == 0, (home.logs / "teams.log").read_text()

    try:
        start_quiet_airflow(
            made,
            users=USERS,
            migrated=make_teams,
            core={"multi_team": "True"},
            dag_processor={"dag_bundle_config_list": json.dumps(bundles)},
        )
        client(made).wait_for_dags({f"backfill__{name}" for name in (BLUE, RED, NOBODYS)}, timeout=180)
        yield made
    finally:
        stop_quiet_airflow(made)


def _bundle(folder: Path, team: str | None, pipeline: str) -> dict[str, Any]:
    dags = folder / f"dags-{pipeline}"
    dags.mkdir()
    (dags / "all.py").write_text(DAG_FILE.format(name=pipeline))
    kind = "airflow.dag_processing.bundles.local.LocalDagBundle"
    return {"name": f"of-{pipeline}", "classpath": kind, "kwargs": {"path": str(dags)}} | (
        {"team_name": team} if team else {}
    )


@functools.cache
def token(settings: Settings, user: str) -> str:
    """Log a user in, once."""
    return token_of(settings, user)


def ask(settings: Settings, user: str | None, method: str, path: str, **options: Any) -> httpx.Response:
    login = {} if user is None else {"Authorization": f"Bearer {token(settings, user)}"}
    headers = {**login, **options.pop("headers", {})}
    url = f"{airflow_info(settings).url}/rivertwice{path}"
    return httpx.request(method, url, headers=headers, trust_env=False, timeout=60, **options)


def act(
    settings: Settings,
    user: str,
    name: str,
    act: str,
    *,
    pipeline: str = BLUE,
    headers: dict[str, str] | None = None,
    **body: Any,
) -> httpx.Response:
    token = ask(settings, user, "GET", "/api/me").json()["csrf"]
    asked = {"id": uuid.uuid4().hex, "reason": "a test", "confirm": pipeline, "fields": {}, **body}
    return ask(
        settings,
        user,
        "POST",
        f"/api/p/{name}/acts/{act}",
        json=asked,
        headers={"X-Rivertwice-CSRF": token, **(headers or {})},
    )


def routes() -> list[tuple[str, str]]:
    """Every route of the app."""
    from rivertwice.airflow.web_app import app

    found = []
    for route in app.routes:
        methods = sorted(getattr(route, "methods", None) or {"GET"})
        found += [(method, str(route.path)) for method in methods if method != "HEAD"]  # type: ignore[attr-defined]
    return found


@pytest.mark.filterwarnings("ignore")  # Airflow itself imports deprecated names
@pytest.mark.parametrize("user", MAY_READ)
def test_each_route_answers_who_may_ask_and_nobody_else(settings: Settings, user: str | None) -> None:
    known = routes()
    assert len(known) > 5
    assert {route for route in ROUTES if route not in known} == set()
    for method, path in known:
        kind = ROUTES.get((method, path), PIPELINE if path.startswith("/api/p/{name}/") else "unknown")
        assert kind != "unknown", f"{method} {path} has no rule about who may ask for it"
        if kind in (OPEN, LOGIN):
            seen = ask(settings, user, method, path)
            allowed = kind == OPEN or user is not None
            assert (seen.status_code in (200, 307, 404)) is allowed, (method, path, seen.status_code)
            assert allowed or seen.status_code == 401
            continue
        for pipeline in (BLUE, RED, NOBODYS, "nobody"):
            filled = re.sub(r"\{[a-z_]+(:path)?\}", "reconcile", path.replace("{name}", pipeline))
            seen = ask(settings, user, method, filled, json={"id": uuid.uuid4().hex} if method == "POST" else None)
            where = (method, filled, user, seen.status_code, seen.text[:200])
            if user is None:
                assert seen.status_code == 401, where
            elif pipeline not in MAY_READ[user]:  # the same answer as for a pipeline that does not exist
                assert (seen.status_code, HIDDEN in seen.text) == (404, True), where
            elif kind == ACT:
                assert seen.status_code == 403, where  # no token of the page
            elif kind == PREVIEW and pipeline not in MAY_ACT[user]:
                assert seen.status_code == 403, where
            else:
                assert seen.status_code not in (401, 403, 405, 500), where
                assert HIDDEN not in seen.text, where


@pytest.mark.parametrize("user", [name for name in MAY_READ if name])
def test_the_overview_and_the_acts_are_those_of_ones_teams(settings: Settings, user: str) -> None:
    rows = ask(settings, user, "GET", "/api/overview").json()["pipelines"]
    assert sorted(row["name"] for row in rows) == sorted(MAY_READ[user])
    drawn = ask(settings, user, "GET", "/api/map").json()["nodes"]
    assert sorted(node["title"] for node in drawn if node["kind"] == "pipeline") == sorted(MAY_READ[user])
    assert {node["pipeline"] for node in drawn if node["kind"] == "table"} == set(MAY_READ[user])
    mine = ask(settings, user, "GET", "/api/me").json()
    assert mine["name"].lower() == user
    assert {name for name, acts in mine["may"].items() if acts} == set(MAY_ACT[user])
    for name in MAY_READ[user]:
        forms = ask(settings, user, "GET", f"/api/p/{name}/acts").json()["acts"]
        assert bool(forms) is (name in MAY_ACT[user])


@pytest.mark.parametrize(("user", "pipeline", "status"), [
    ("vera", BLUE, 403), ("nina", NOBODYS, 403), ("rita", BLUE, 404), ("ursula", RED, 404), ("nina", BLUE, 404),
])  # fmt: skip
def test_who_may_not_start_a_dag_cannot_act(settings: Settings, user: str, pipeline: str, status: int) -> None:
    before = client(settings).runs(f"backfill__{pipeline}")
    refused = act(settings, user, pipeline, "repair", confirm=pipeline)
    assert refused.status_code == status
    assert ("may not start" in refused.text) is (status == 403)
    assert client(settings).runs(f"backfill__{pipeline}") == before


def test_an_act_is_a_run_of_airflow_in_the_persons_name_once(settings: Settings) -> None:
    same: dict[str, Any] = {"id": uuid.uuid4().hex, "reason": "late burst of this night"}
    first = act(settings, "ursula", BLUE, "repair", **same)
    assert first.status_code == 200, first.text
    assert first.json()["by"].lower() == "ursula"
    again = act(settings, "ursula", BLUE, "repair", **same).json()
    assert (again["run"], again["repeated"]) == (first.json()["run"], True)
    assert act(settings, "ursula", BLUE, "repair", **{**same, "reason": "another"}).status_code == 409
    assert act(settings, "olaf", BLUE, "repair", **same).status_code == 409  # his own act, with her id
    airflow = client(settings)
    run = first.json()["run"]
    assert airflow.runs(f"backfill__{BLUE}").count(run) == 1
    stored = airflow._checked(airflow._request("GET", f"/api/v2/dags/backfill__{BLUE}/dagRuns/{run}"))
    assert (stored["triggering_user_name"].lower(), stored["note"]) == ("ursula", same["reason"])
    assert stored["conf"] == {"act": "repair", "reason": same["reason"]}
    log = airflow._checked(
        airflow._request("GET", "/api/v2/eventLogs", params={"dag_id": f"backfill__{BLUE}", "event": "trigger_dag_run"})
    )
    assert {entry["owner"].lower() for entry in log["event_logs"]} == {
        "ursula",
        "olaf",
    }  # who tried is written down, too
    assert airflow.wait(f"backfill__{BLUE}", run, 120) == "success"  # nothing ever ran, so there is nothing to repair
    (entry,) = ask(settings, "vera", "GET", f"/api/p/{BLUE}/audit").json()["acts"]
    assert (entry["by"].lower(), entry["act"], entry["reason"], entry["outcome"], entry["how"]) == (
        "ursula", "repair", same["reason"], "success", "page",
    )  # fmt: skip
    assert ask(settings, "rita", "GET", f"/api/p/{RED}/audit").json()["acts"] == []


@pytest.mark.parametrize(("changes", "status", "says"), [
    ({"confirm": ""}, 400, "was typed to confirm it"),
    ({"confirm": RED}, 400, "was typed to confirm it"),
    ({"reason": ""}, 400, "no reason is given"),
    ({"fields": {"policy": "automatic"}}, 400, "does not know 'policy'"),
    ({"headers": {"X-Rivertwice-CSRF": ""}}, 403, "has no header"),
    ({"headers": {"X-Rivertwice-CSRF": "made.up.token"}}, 403, "was not made by this server"),
    ({"headers": {"Sec-Fetch-Site": "cross-site"}}, 403, "comes from another page"),
    ({"headers": {"Origin": "https://evil.example"}}, 403, "comes from https://evil.example"),
    ({"headers": {"Content-Type": "text/plain"}}, 403, "is not application/json"),
])  # fmt: skip
def test_an_act_that_is_not_confirmed_or_not_of_the_page_is_refused(
    settings: Settings, changes: dict[str, Any], status: int, says: str
) -> None:
    before = client(settings).runs(f"backfill__{BLUE}")
    refused = act(settings, "ursula", BLUE, "repair", **changes)
    assert (refused.status_code, says in refused.text) == (status, True), refused.text
    assert client(settings).runs(f"backfill__{BLUE}") == before


@pytest.mark.proves("security.md#sql-in-the-page")
@pytest.mark.parametrize(("user", "own", "read", "says"), [
    ("rita", RED, BLUE, f"there is no view '{BLUE}'"), ("rita", RED, RED, "has no rows"), ("nina", NOBODYS, RED, "there is no view"),
    ("vera", BLUE, NOBODYS, "has no rows"), ("olaf", BLUE, RED, "has no rows"),
])  # fmt: skip
def test_a_query_reads_the_views_of_ones_own_teams(
    settings: Settings, user: str, own: str, read: str, says: str
) -> None:
    token = ask(settings, user, "GET", "/api/me").json()["csrf"]
    headers, body = {"X-Rivertwice-CSRF": token}, {"sql": f"SELECT * FROM {read}"}
    answered = ask(settings, user, "POST", f"/api/p/{own}/query", json=body, headers=headers)
    assert (answered.status_code, says in answered.text) == (400, True), answered.text
    others = ask(settings, user, "GET", f"/api/p/{own}/query").json()["others"]
    assert sorted([own, *others]) == sorted(MAY_READ[user])


def test_another_persons_token_is_refused(settings: Settings) -> None:
    hers = ask(settings, "ursula", "GET", "/api/me").json()["csrf"]
    refused = act(settings, "olaf", BLUE, "repair", headers={"X-Rivertwice-CSRF": hers})
    assert (refused.status_code, "another login" in refused.text) == (403, True)


def test_an_unknown_act_is_not_found_and_no_page_may_frame_ours(settings: Settings) -> None:
    missing = act(settings, "ursula", BLUE, "drop_tables")
    assert (missing.status_code, "there is no act 'drop_tables'" in missing.text) == (404, True)
    assert "frame-ancestors 'self'" in missing.headers["content-security-policy"]


@pytest.mark.proves("howto-cockpit.md#alerts-repairs-and-who-did-what")
@pytest.mark.browser
@pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine")
def test_an_alert_is_acknowledged_in_the_page_with_name_and_reason(settings: Settings) -> None:
    alerts_of(settings).report(
        Report(AlertCause(BLUE, "lag"), AlertSeverity.WARNING, "lag is 9000 (limit 100)", "agent"), utc_now()
    )
    alerts_of(settings).report(
        Report(AlertCause(RED, "lag"), AlertSeverity.WARNING, "of the other team", "agent"), utc_now()
    )
    (alert,) = ask(settings, "vera", "GET", f"/api/p/{BLUE}/alerts").json()["open"]
    refused = act(settings, "ursula", BLUE, "alert.acknowledge", fields={"alert": "al-0000000000000000"})
    assert (refused.status_code, "lasts; reload the page" in refused.text) == (400, True)
    with chromium() as browser:
        with page_of(browser, settings, f"/rivertwice/#/p/{BLUE}/alerts", user="vera") as page:
            expect(page.get_by_text("lag is 9000 (limit 100)", exact=True)).to_be_visible()
            expect(page.get_by_text("of the other team")).to_have_count(0)
            expect(page.get_by_role("button", name="Acknowledge")).to_have_count(0)  # she may look alone
        with page_of(browser, settings, f"/rivertwice/#/p/{BLUE}/alerts", user="ursula") as page:
            page.get_by_role("button", name="Acknowledge").click()
            dialog = page.get_by_role("dialog")
            expect(dialog.get_by_role("button", name="Acknowledge")).to_be_disabled()
            dialog.get_by_label("Reason, for the log").fill("the source is loaded again")
            assert axe_findings(page) == []
            dialog.get_by_role("button", name="Acknowledge").click()
            expect(page.get_by_role("status").filter(has_text="Done")).to_be_visible()
            expect(page.get_by_text("knows of it since")).to_contain_text("the source is loaded again", timeout=15_000)
            row = page.get_by_role("table", name="Acts of people").get_by_role("row", name="the source is loaded again")
            expect(row).to_be_visible(timeout=15_000)
            assert axe_findings(page) == []
            assert sideways(page) <= 0
    noted = next(each for each in alerts_of(settings).state().alerts if each.id == alert["id"])
    assert (noted.acknowledged_by.lower(), noted.acknowledgement) == ("ursula in airflow", "the source is loaded again")
