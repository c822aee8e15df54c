"""The cockpit over HTTP, without a server: who is let in, what each answer says to the browser, which files there are."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import Request

from homes import torn
from homes.ledger import NOW, ledger_row
from homes.project import REPOSITORY
from rivertwice.storage.table import Table
from rivertwice.timeline.ledger import append_ledger

pytestmark = [pytest.mark.airflow, pytest.mark.filterwarnings("ignore")]  # Airflow itself imports a deprecated client
WEB = REPOSITORY / "src/rivertwice/airflow/web"
OWN = sorted(path for path in WEB.rglob("*") if path.suffix in {".js", ".html", ".css"} and "vendor" not in path.parts)
FOR_ALL_PIPELINES = {"/api/overview", "/api/week", "/api/map", "/api/me", "/api/worst"}
"""Routes of no single pipeline; they filter by what the user may read."""


def ask(path: str, method: str = "GET", **headers: str) -> httpx.Response:
    """Ask the app itself, as somebody who is not logged in."""
    from rivertwice.airflow.web_app import app

    async def answer() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://airflow") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(answer())


def data_routes() -> list[APIRoute]:
    from rivertwice.airflow.web_app import app

    return [route for route in app.routes if isinstance(route, APIRoute) and route.path != "/"]


def asked_by(dependant: Dependant) -> Iterator[Callable[..., object]]:
    """Yield every function that a route asks before it answers."""
    for each in dependant.dependencies:
        if each.call is not None:
            yield each.call
        yield from asked_by(each)


def test_every_route_of_data_asks_who_wants_it() -> None:
    from airflow.api_fastapi.core_api.security import get_user

    from rivertwice.airflow.web_access import readable_definition

    routes = data_routes()
    assert {route.path for route in routes} >= {"/api/overview", "/api/p/{name}/summary", "/api/p/{name}/report"}
    for route in routes:
        calls = set(asked_by(route.dependant))
        assert get_user in calls, route.path
        if route.path not in FOR_ALL_PIPELINES:
            assert route.path.startswith("/api/p/{name}/"), route.path
            assert readable_definition in calls, route.path


def test_nobody_gets_data_without_a_login() -> None:
    for route in data_routes():
        path = re.sub(r"\{\w+\}", "flight_delays", route.path)
        for method in route.methods:
            refused = ask(path, method)
            assert (refused.status_code, refused.json()) == (401, {"detail": "Not authenticated"}), (method, path)


@pytest.mark.parametrize("path", ["/", "/web/app.js", "/web/style.css", "/web/none.js", "/api/overview", "/api/none"])
def test_every_answer_lets_only_our_own_files_run(path: str) -> None:
    headers = ask(path).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["frame-ancestors"] == "'self'"
    assert policy["base-uri"] == policy["form-action"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/web/%2e%2e/page.py",
        "/web/..%2fpage.py",
        "/web/vendor/..%2f..%2fpage.py",
        "/web/%2fetc/passwd",
        "/web//etc/passwd",
    ],
)
def test_no_path_leads_out_of_the_folder_of_files(path: str) -> None:
    assert ask(path).status_code == 404


def test_a_file_that_did_not_change_is_not_sent_again() -> None:
    first = ask("/web/app.js")
    again = ask("/web/app.js", **{"If-None-Match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


def test_no_file_of_the_page_has_a_script_in_it_or_makes_html_of_data() -> None:
    page = (WEB / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\ssrc=)", page) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:", page) == []
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySetInnerHTML|srcdoc|\beval\(|new Function|"
        r"createContextualFragment|DOMParser|https?://(?!www\.w3\.org/)"
    )
    found = [f"{path.relative_to(WEB)}: {hit}" for path in OWN for hit in forbidden.findall(path.read_text())]
    assert len(OWN) > 10
    assert found == []


@pytest.mark.parametrize("folder", [WEB / "vendor", REPOSITORY / "tests/vendor"])
def test_vendored_files_are_those_of_their_release(folder: Path) -> None:
    """Each with its licence beside it; an unlisted file would be nobody's."""
    rows = json.loads((folder / "lock.json").read_text())
    assert {path.name for path in folder.iterdir()} - {"lock.json", "README.md"} == set(rows)
    for name, row in rows.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == row["sha256"], name
        assert re.fullmatch(r"npm:[a-z-]+@\d+\.\d+\.\d+/.+", row["from"]), name
    packages = {row["from"].partition("/")[0] for row in rows.values()}
    assert packages == {row["from"].partition("/")[0] for name, row in rows.items() if name.endswith(".LICENSE")}


def request(**headers: str) -> Request:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": raw, "query_string": b""})


def test_an_answer_that_somebody_has_is_not_sent_again() -> None:
    from rivertwice.airflow.web_access import answer

    first = answer(request(), {"name": "<b>é</b>", "at": None})
    tag = first.headers["etag"]
    assert json.loads(first.body) == {"name": "<b>é</b>", "at": None}
    for header in (tag, f'"other", W/{tag}'):
        again = answer(request(**{"If-None-Match": header}), {"name": "<b>é</b>", "at": None})
        assert (again.status_code, again.body, again.headers["etag"]) == (304, b"", tag)
    assert answer(request(**{"If-None-Match": tag}), {"name": "else", "at": None}).status_code == 200
    assert first.headers["cache-control"] == "no-store"


def test_the_page_says_that_the_newest_records_are_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The route of what is true now, asked by a user who may read the pipeline."""
    from airflow.api_fastapi.core_api.security import get_user

    from rivertwice.airflow import web_overview
    from rivertwice.airflow.web_access import get_settings, readable_definition
    from rivertwice.airflow.web_app import app

    settings, home, bundle = torn.make_home(tmp_path, batches=1)
    count = 200
    row = ledger_row(1, bundle=bundle.id, read=count, bad=count, accepted=0, emitted=0)
    append_ledger(home, [row])
    Table(home.tables.changelog).append(Table(home.tables.changelog).read().slice(0, 0), transactions={"p#t1": 1})
    letter = {"_format": 1, "_timeline": "t1", "_batch": 1, "reason": "missing", "detail": "k", "topic": "flights"}
    letter |= {"topic_id": "id", "partition": 0, "record_time": NOW, "key": None, "headers": None}
    rows = [{**letter, "offset": 10 + number, "value": b'{"customer": "a"}'} for number in range(count)]
    Table(home.tables.dead_letters).append(pa.Table.from_pylist(rows))
    monkeypatch.setattr(web_overview, "runs_at_work", lambda *_: {})
    allowed = {get_user: lambda: None, readable_definition: lambda: bundle.definition, get_settings: lambda: settings}
    for dependency, answer in allowed.items():
        monkeypatch.setitem(app.dependency_overrides, dependency, answer)
    now = ask("/api/p/p/summary").json()["now"]
    sentences = [now["sentence"], *(each["sentence"] for each in now["others"])]
    (said,) = [sentence for sentence in sentences if "dead letters" in sentence or "newest records" in sentence]
    assert "100 of the newest 100: missing (k); they have customer, which the definition does not name" in said


def test_a_route_that_needs_the_request_and_one_that_does_not_answer_views() -> None:
    from fastapi import APIRouter, FastAPI

    from rivertwice.airflow.web_access import ViewRoute

    router = APIRouter(route_class=ViewRoute)

    @router.get("/with")
    def with_it(request: Request, name: str) -> object:
        return {"name": name, "asked": request.query_params["name"]}

    @router.get("/without")
    def without(name: str) -> object:
        return {"name": name}

    app = FastAPI()
    app.include_router(router)

    async def get(path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            return await client.get(path)

    assert asyncio.run(get("/with?name=p")).json() == {"name": "p", "asked": "p"}
    assert asyncio.run(get("/without?name=p")).json() == {"name": "p"}
