"""What the commands print as JSON and what the page's routes answer, over homes in memory: equal to what is stored in `tests/golden`.

A change of the answers that is meant: `ANSWERS=write pytest tests/unit/airflow/test_answers.py`, and say in the commit what changed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pyarrow as pa
import pytest
from click.testing import CliRunner

from homes import cockpit, savepoint, versions
from homes.backfill import SQL, YAML, make_home
from homes.project import FLIGHTS, REPOSITORY, make_project
from homes.quality import between, write_suite
from rivertwice.agent.alert_model import AlertCause, Report
from rivertwice.agent.alert_store import alerts_of
from rivertwice.cli.main import cli
from rivertwice.core.instants import parse_iso
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.quality.model import WINDOWS
from rivertwice.savepoint.records import encode_record
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage import Table
from rivertwice.timeline.dead_letters import DISCARD, Amendment, RecordAddress
from rivertwice.timeline.dead_summary import append_amendments
from rivertwice.timeline.intent import Heartbeat, write_intent
from rivertwice.timeline.ledger import append_ledger
from running.waiting import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.filterwarnings("ignore")]
GOLDEN = REPOSITORY / "tests/golden/answers.json"
LATE = datetime(2026, 1, 7, tzinfo=UTC)
COMMANDS = (
    "status", "pipelines", "show p --limit 3", "show p --table ledger --limit 2", "verdicts p --limit 3", "verdicts p --causes --limit 2",
    "quality p", "backfill list p", "show p --late", "savepoint list p", "version list p", "dead list p", "dead show p flights/0@1",
    "alerts", "agent events", "agent metrics p", "status p --why", "verdicts p --accepted", "explain p 2026-01-02T08:00:00Z k001", "query --views",
)  # fmt: skip
ROUTES = (
    "overview", "summary", "series", "logs", "correctness", "heatmap", "heatmap?pair=stream", "lateness", "plan", "backfills", "timelines",
    "cell?from=2026-01-01T00:00:00Z&to=2026-01-03T00:00:00Z&key={\"k\": \"k001\"}", "explain?window=2026-01-02T08:00:00Z&key=k001",
    "plan?from=2026-01-02T00:00:00Z&to=2026-01-03T00:00:00Z", "backfill?id=BACKFILL", "report?run=RUN", "report?run=BACKFILL", "savepoints",
    "versions", "dead-letters", "letter?place=flights/0@1", "preview/discard?kind=json", "late", "alerts",
)  # fmt: skip


def make_past(folder: Path) -> Settings:
    """Batches, reconciles, a backfill, alerts, a quality suite, a stream that is stopped."""
    settings = cockpit.make_past(folder, cockpit.Past(days=6, keys=3))
    home = settings.pipeline("p")
    write_suite(settings, WINDOWS, between(min_value=0))
    write_intent(home, "stopped", "ada", LATE)
    beat = Heartbeat(3, 99, "t1", "stopped", LATE, batch=5, watermark_ms=1_767_600_000_000, lag=7, lag_at=LATE)
    beat.save(home)
    store = alerts_of(settings)
    for kind, severity in (("defect", "critical"), ("savepoint_stale", "warning")):
        store.report(Report(AlertCause("p", kind, ""), severity, f"a test of {kind}", "command"), LATE)
    (settings.home / "alerts.yaml").write_text("")
    return settings


def make_letters(folder: Path) -> Settings:
    """Dead letters, one of them discarded, and a definition that changed since."""
    settings, home, bundle = make_home(folder)
    append_ledger(home, [savepoint.row(10, bundle=bundle.id, bad=4, topic_ids={"flights": "id"})])
    common = {
        "_format": 1,
        "_timeline": "t1",
        "_batch": 10,
        "detail": "at 3",
        "cluster_id": "c",
        "topic_id": "id",
        "topic": "flights",
    }
    rows = [
        {
            **common, "reason": reason, "partition": 0, "offset": offset, "record_time": LATE, "key": b"k", "value": b"<\xff" * offset,
            "headers": [{"key": "schema-id", "value": b"flights-1"}],
        }
        for offset, reason in enumerate(("json", "json", "schema", "schema"))
    ]  # fmt: skip
    Table(home.tables.dead_letters).append(pa.Table.from_pylist(rows))
    decided = Amendment(0, DISCARD, "flights", RecordAddress("id", 0, 0), None, "a test", "ada in Airflow", LATE)
    append_amendments(home, [decided], expected_seq=0)
    write_intent(home, "running", "ada", LATE)
    return settings


def make_savepoints(folder: Path) -> Settings:
    """Two savepoints, one of them proved."""
    settings = make_project(folder, {"p": {"pipeline.yaml": YAML, "transform.sql": SQL}})
    home = savepoint.make_home(folder, planned=3, finished=3, committed=3)[1]
    taken = take_savepoint(settings, "p", now=LATE, reason="before the storm")
    taken.store.put(f"{taken.id}/proof.json", encode_record(PROOF))
    savepoint.commit_batches(home, [savepoint.row(batch) for batch in range(4, 7)])
    take_savepoint(settings, "p", now=LATE + timedelta(hours=1))
    return settings


def make_versions(folder: Path) -> Settings:
    """A version beside the one that serves, proved for some hours."""
    world = versions.World(folder)
    world.seal("rc-1")
    return world.settings


WORLDS: dict[str, Callable[[Path], Settings]] = {
    "past": make_past, "letters": make_letters, "savepoints": make_savepoints, "versions": make_versions,
}  # fmt: skip


PROOF = {
    "proved": True, "batches": 3, "last_batch": 6, "state_rows": 17, "source": "kafka", "seconds": 12.5, "batch_s": 2.0,
    "made_at": "2026-01-08T00:00:00Z", "reason": "proved: 3 recorded batches replayed equal",
}  # fmt: skip


class NoRuns:
    """Airflow's database without a run."""

    def scalars(self, _: object) -> list[Any]:
        """Return no row."""
        return []

    def execute(self, _: object) -> Any:
        """Return no row."""
        return SimpleNamespace(all=list, first=lambda: None)


def answers(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    """Yield each command and each route with its answer."""
    places = ["--project", str(settings.project), "--home", str(settings.home), "--output", "json"]
    for command in COMMANDS:
        words = command.split(" ")
        done = CliRunner().invoke(cli, [*places, *words])
        if done.exit_code == 0:
            yield f"rivertwice {command}", json.loads(done.stdout)
    backfills = sorted(path.name for path in settings.pipeline("p").backfills.glob("*"))
    run = "rc-00005"
    for route in ROUTES:
        asked = route.replace("BACKFILL", backfills[-1] if backfills else "bf-1").replace("RUN", run)
        path = asked if asked == "overview" else f"p/p/{asked}"
        answer = ask(settings, path, monkeypatch)
        if answer.status_code == 200:
            yield f"GET {route}", answer.json()


def ask(settings: Settings, path: str, monkeypatch: pytest.MonkeyPatch) -> httpx.Response:
    """Ask the page's app as a person who may do all, without Airflow's database."""
    from airflow.api_fastapi.common.db.common import _get_session
    from airflow.api_fastapi.core_api.security import get_user

    from rivertwice.airflow import web_access, web_health, web_overview, web_timelines
    from rivertwice.airflow.web_app import app

    for module in (web_overview, web_health):
        monkeypatch.setattr(module, "readable_pipelines", lambda names, *_: set(names))
    for asked in ("is_authorized", "may_start"):
        monkeypatch.setattr(web_timelines, asked, lambda *_: True)
    app.dependency_overrides = {
        get_user: lambda: SimpleNamespace(get_name=lambda: "ada", get_id=lambda: "1"),
        _get_session: NoRuns,
        web_access.get_settings: lambda: settings,
        web_access.readable_definition: lambda: load_definition(settings.definition_folder("p")),
    }

    async def answer() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://airflow"
        ) as client:
            return await client.get(f"/api/{path}")

    try:
        return asyncio.run(answer())
    finally:
        app.dependency_overrides = {}


_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_DIGEST = re.compile(r"\b[0-9a-f]{8,64}\b")
_VOLATILE = re.compile(
    r"_age_s$|^age_s$|^stamps$|^pid$|^seconds$|^times$|^modified|^bytes$|^stored_bytes$|^cpu|_cpu_s$|^version$"
)


def settle(value: Any, places: dict[str, str], name: str = "") -> Any:
    """Return an answer without what differs from run to run (instants of today, ages, paths, digests), and without sentences."""
    if isinstance(value, dict):
        return {key: settle(each, places, key) for key, each in value.items()}
    if value is not None and value != [] and _VOLATILE.search(name):
        return f"<{name}>"
    if isinstance(value, list):
        found = [settle(each, places) for each in value]
        return (
            found if len(found) < 50 or any(each != found[0] for each in found) else f"<{len(found)} times {found[0]}>"
        )
    if isinstance(value, float) and value > 1e6:
        return "<age>"
    if isinstance(value, str):
        for place, stands in places.items():
            value = value.replace(place, stands)
        return "<text>" if value.count(" ") > 2 else _DIGEST.sub("<~>", _INSTANT.sub(_of_today, value))
    return value


def _of_today(found: re.Match[str]) -> str:
    text = found.group()
    return "<now>" if abs(parse_iso(text) - datetime.now(UTC)) < timedelta(hours=7) else text


@pytest.mark.parametrize("world", WORLDS)
def test_answers_stay_as_they_are(world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = WORLDS[world](tmp_path)
    found = {name: settle(value, {str(tmp_path): "<tmp>"}) for name, value in answers(settings, monkeypatch)}
    stored = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("ANSWERS") == "write":
        stored[world] = found
        lines = (
            f"{json.dumps(key)}: {{\n"
            + ",\n".join(f" {json.dumps(name)}: {json.dumps(each, sort_keys=True)}" for name, each in value.items())
            + "\n}"
            for key, value in stored.items()
        )
        GOLDEN.write_text("{" + ",\n".join(lines) + "}\n")
    for name, value in found.items():
        assert value == stored[world][name], f"{name} answers otherwise"
    assert set(found) == set(stored[world])


def test_a_server_that_starts_shows_rows_as_an_earlier_one_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read before the answer, and what is shown says of when it is."""
    from rivertwice.airflow import web_overview
    from rivertwice.read import overview

    settings = make_project(tmp_path, {"flight_delays": FLIGHTS})
    settings.pipeline("flight_delays").root.mkdir(parents=True)
    file = settings.home / "overview.json"
    begun: list[object] = []

    def rows_of_a_new_server() -> Any:
        overview._ROWS.clear()
        return ask(settings, "overview", monkeypatch).json()["pipelines"]

    with monkeypatch.context() as patched:
        patched.setattr(web_overview, "_read_beside", lambda *_: begun.append(1))
        (read,) = rows_of_a_new_server()
        assert "now" in read, "there is time for one pipeline"
        assert "unread" not in read
        assert set(json.loads(file.read_text())["rows"]) == {"flight_delays"}
        patched.setattr(overview, "describe_row", lambda *_: pytest.fail("a table was opened before the answer"))
        (kept,) = rows_of_a_new_server()
        assert {**kept, "running": []} == {**read, "unread": True, "as_of": kept["as_of"], "running": []}
        assert begun == [1], "and is read beside it"
    (again,) = ask(settings, "overview", monkeypatch).json()["pipelines"]
    wait_for(
        "the row is read", lambda: "unread" not in ask(settings, "overview", monkeypatch).json()["pipelines"][0], 10
    )
    assert again["name"] == "flight_delays"
    for damage in ("{", "[]", '{"version": "0.0", "rows": {"flight_delays": {}}}'):
        file.write_text(damage)
        assert "unread" not in rows_of_a_new_server()[0], "a file that cannot be used is as good as none"
