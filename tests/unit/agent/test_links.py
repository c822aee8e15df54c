"""A link to the very cell, batch or savepoint that an alert is about: one on the page, and the same as a whole address in its message."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest

from homes.cockpit import FIRST, Past, make_past
from homes.project import FLIGHTS, edit_yaml, make_project
from rivertwice.agent.alert_gates import record_gate, worst_cell
from rivertwice.agent.alert_kinds import KINDS, body_of, lines_of, slack_text
from rivertwice.agent.alert_model import Alert, AlertCause
from rivertwice.agent.alert_store import alerts_of
from rivertwice.core.errors import ConfigError, DefinitionError
from rivertwice.core.instants import parse_iso, to_iso
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.definition.fingerprint import fingerprint_of
from rivertwice.local.airflow import render_config
from rivertwice.read.cell_rows import explain_for_page
from rivertwice.read.trouble import sort_trouble
from rivertwice.reconcile.results import newest_reconcile
from rivertwice.upkeep.remains import describe_left

PAGE = "https://airflow.example.com/team"
NAME = "flight_delays"


def alert(kind: str, pipeline: str = NAME, **details: str) -> Alert:
    return Alert(AlertCause(pipeline, kind), "critical", "it happened", "agent", FIRST, FIRST, details)


@pytest.mark.parametrize(
    ("made", "place"),
    [
        (alert("defect"), "#/p/flight_delays/correctness"),
        (
            alert("defect", window="2026-01-01T00:00:00Z", key='{"k": "a b"}'),
            "#/p/flight_delays/correctness?window=2026-01-01T00%3A00%3A00Z&key=%7B%22k%22%3A+%22a+b%22%7D",
        ),
        (alert("latency", batch="71", savepoint="sp-1"), "#/p/flight_delays/health?batch=71"),
        (alert("savepoint_stale", batch="71", savepoint="sp-1"), "#/p/flight_delays/timelines?savepoint=sp-1"),
        (alert("poison", batch=""), "#/p/flight_delays/logs"),
        (alert("late_share", "a@v2", window="w", key=""), "#/p/a%40v2/correctness?window=w"),
        (alert("agent_dead", ""), "#/"),
    ],
)  # fmt: skip
def test_an_alert_leads_to_what_it_is_about(made: Alert, place: str) -> None:
    assert made.place == place


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_project(tmp_path, {NAME: FLIGHTS})


@pytest.mark.proves("howto-watch.md#links-and-runbooks")
def test_a_message_has_the_address_and_the_runbook_where_they_are_known(settings: Settings) -> None:
    one = alert("defect", window="2026-01-01T00:00:00Z")
    assert body_of(settings, one)["page"] is None
    assert not any(line.startswith(("Look:", "Runbook:")) for line in lines_of(settings, one))

    edit_yaml(settings.definitions / NAME, lambda document: document.update(runbook="https://wiki.example.com/x?a=1"))
    with_page = Settings.from_env({**settings.to_env(), "RIVERTWICE_PAGE": f"{PAGE}/"})
    assert Settings.from_env(with_page.to_env()) == with_page
    address = f"{PAGE}/rivertwice/{one.place}"
    assert body_of(with_page, one)["page"] == address
    assert body_of(with_page, one)["runbook"] == "https://wiki.example.com/x?a=1"
    assert lines_of(with_page, one)[-2:] == [f"Look: {address}", "Runbook: https://wiki.example.com/x?a=1"]
    assert "Runbook: https://wiki.example.com/x?a=1" in slack_text(with_page, one)

    (settings.definitions / NAME / "pipeline.yaml").write_text("broken: [")
    assert body_of(with_page, one)["runbook"] is None  # an alert is sent whatever the definition is


@pytest.mark.proves("howto-watch.md#links-and-runbooks")
def test_airflow_s_own_address_is_the_page_unless_another_is_named(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its variable comes before the file of `AIRFLOW_HOME`, and that before the home's own; what no browser opens does not count."""
    monkeypatch.delenv("AIRFLOW_HOME", raising=False)
    monkeypatch.delenv("AIRFLOW__API__BASE_URL", raising=False)
    assert settings.page_of("#/") is None
    own = settings.home / "airflow"
    own.mkdir(parents=True)
    (own / "airflow.cfg").write_text(render_config({"api": {"port": "8080", "base_url": "http://127.0.0.1:8080"}}))
    assert settings.page_of("#/") == "http://127.0.0.1:8080/rivertwice/#/"
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    monkeypatch.setenv("AIRFLOW_HOME", str(theirs))
    for text in ("# base_url =", "base_url = airflow.example.com", "base_url"):
        (theirs / "airflow.cfg").write_text(f"[api]\n{text}\n")
        assert settings.page_of("#/") == "http://127.0.0.1:8080/rivertwice/#/", text
    (theirs / "airflow.cfg").write_text(f"[core]\na = %(b)s\n[api]\nbase_url = {PAGE}/\n")
    assert settings.page_of("#/") == f"{PAGE}/rivertwice/#/"
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://a.example.com")
    assert settings.page_of("#/") == "https://a.example.com/rivertwice/#/"
    assert replace(settings, page=PAGE).page_of("#/") == f"{PAGE}/rivertwice/#/"


@pytest.mark.parametrize("text", ["airflow.example.com", "https://me:secret@airflow", "ftp://x", "https://x/?a=b"])
def test_a_page_that_no_browser_opens_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"RIVERTWICE_PAGE is .*; write Airflow's address"):
        Settings.from_env({"RIVERTWICE_PAGE": text})


@pytest.mark.proves("definitions.md#pipelineyaml")
def test_a_runbook_is_in_no_fingerprint_and_is_an_address_or_a_path(settings: Settings) -> None:
    folder = settings.definitions / NAME
    before = fingerprint_of(load_definition(folder)).hashes()
    for text in ("https://wiki.example.com/flights", "docs/flights runbook.md"):
        edit_yaml(folder, lambda document, text=text: document.update(runbook=text))
        assert load_definition(folder).runbook == text
        assert fingerprint_of(load_definition(folder)).hashes() == before
    for text in ("javascript:alert(1)", "/etc/passwd", "../x.md", "https://a b"):
        edit_yaml(folder, lambda document, text=text: document.update(runbook=text))
        with pytest.raises(DefinitionError, match="neither an address nor a path of the project; write https"):
            load_definition(folder)


@pytest.mark.parametrize(("kind", "verdict"), [("defect", "DEFECT"), ("late_share", "LATE")])
def test_the_gate_s_alert_names_a_row_with_its_verdict(tmp_path: Path, kind: str, verdict: str) -> None:
    settings = make_past(tmp_path, Past(days=4, keys=3))
    home = settings.pipeline("p")
    run = newest_reconcile(home)
    assert run is not None
    gate = {**run, "gate": {"alerts": [{"severity": "critical", "kind": kind, "message": "found"}]}}
    record_gate(settings, "p", gate, by="command", details={"run": run["run"]}, whole=True)
    (found,) = alerts_of(settings).state().alerts
    asked = parse_qs(urlsplit(found.place.removeprefix("#")).query)
    at, key = parse_iso(asked["window"][0]), asked["key"][0]
    explained = explain_for_page(settings, "p", at, key, FIRST + timedelta(days=5))
    assert {each["pair"]: each["verdict"] for each in explained.explanation["verdicts"]}["served"] == verdict
    value = json.loads(key)["k"]  # a key may be a person's: an erasure finds it wherever it is kept
    assert value not in (settings.home / "alerts.jsonl").read_text()
    assert "alerts/state.json" in describe_left(settings, {}, [], value)


def test_a_link_leads_to_the_row_with_the_most_late_records_and_else_to_the_newest_as_the_page_lists_them() -> None:
    """What is served comes first, also if the stream's row has more late records."""
    verdicts = [
        ("stream", 9, "LATE", "a", 8), ("served", 2, "LATE", "a", 2), ("served", 3, "LATE", "b", 5), ("served", 4, "LATE", "b", 2),
        ("served", 1, "DEFECT", "a", 0), ("served", 5, "DEFECT", "b", 0), ("stream", 8, "DEFECT", "a", 0), ("served", 6, "AGREES", None, 0),
    ]  # fmt: skip
    rows = [
        {
            "pair": pair,
            "window_start": FIRST + timedelta(hours=hour),
            "window_end": FIRST + timedelta(hours=hour + 1),
            "key": key,
            "verdict": verdict,
            "late": late,
            "reason": "",
        }
        for pair, hour, verdict, key, late in verdicts
    ]
    table = pa.Table.from_pylist(rows)
    listed = sort_trouble([row for row in rows if row["key"]], []).open
    for verdict, hour in (("LATE", 3), ("DEFECT", 5)):
        worst = worst_cell(table, verdict)
        assert worst == {"window": to_iso(FIRST + timedelta(hours=hour)), "key": "b"}
        first = next(row for row in listed if row.pairs["served"] == verdict)
        assert worst == {"window": to_iso(first.start), "key": first.key}
    assert worst_cell(table, "NOT_COMPARABLE") == {}


def test_every_kind_has_a_place_on_the_page() -> None:
    assert {alert(kind).place.split("/")[3].split("?")[0] for kind in KINDS} == {
        "correctness", "results", "letters", "timelines", "health", "logs",
    }  # fmt: skip
