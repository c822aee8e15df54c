"""What the page shows of alerts: by cause, with the next act, and what was over before. Pure."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rivertwice.agent.alert_model import Alert, AlertCause, AlertSeverity, RouteState, State
from rivertwice.agent.alert_routes import Routes
from rivertwice.core.plain import to_plain
from rivertwice.core.settings import Settings
from rivertwice.read.alerts import describe_alerts, read_past
from rivertwice.timeline.verdicts import Verdict
from rivertwice.upkeep.window_repairs import Proposal, RepairOutcome, RepairRecord

NOW = datetime(2026, 11, 27, 3, tzinfo=UTC)
SETTINGS = Settings(project=Path("/project"), home=Path("/home"))
ROUTES = Routes.model_validate(
    {"routes": {"ops": {"to": "file", "path": "/x"}, "pager": {"to": "file", "path": "/y", "severities": ["critical"]}}}
)
PROPOSAL = Proposal("rc-1", ("late_share",), ((0, 3_600_000),), 1, {Verdict.LATE: 4}, 90)


def alert(kind: str, pipeline: str = "p", severity: str = AlertSeverity.WARNING, **changes: Any) -> Alert:
    return Alert(AlertCause(pipeline, kind), severity, f"{kind} is bad", "agent", NOW, NOW, **changes)


def line(kind: str, status: str = "resolved", pipeline: str | None = "p", until: str = "2026-11-26T00:00:00Z") -> Any:
    return {
        "pipeline": pipeline, "kind": kind, "subject": "", "status": status, "severity": "warning", "id": f"al-{kind}",
        "since": "2026-11-25T00:00:00Z", "until": until, "message": "was bad", "resolution": "is good",
    }  # fmt: skip


def shown(state: State, past: list[dict[str, Any]] | None = None, repairs: list[RepairRecord] | None = None) -> Any:
    return to_plain(describe_alerts(SETTINGS, "p", state, ROUTES, past or [], repairs or []))


def test_alerts_of_other_pipelines_are_not_shown_and_those_of_the_home_are() -> None:
    found = shown(
        State((alert("lag"), alert("lag", "q"), alert("agent_dead", "", AlertSeverity.CRITICAL))),
        [line("lag", pipeline="q")],
    )
    assert [(each["kind"], each["whole_home"]) for each in found["open"]] == [("agent_dead", True), ("lag", False)]
    assert found["over"] == []
    assert "q" not in json.dumps(found["open"]).replace("'", '"').split('"')


def test_an_alert_has_its_next_act_or_command_and_says_who_was_informed() -> None:
    (late, lag) = shown(
        State((alert("late_share", severity=AlertSeverity.CRITICAL, sent={"ops": "firing"}), alert("lag")))
    )["open"]
    assert (late["acts"], late["sent_to"], late["waits_for"]) == (["repair"], ["ops"], ["pager"])
    assert lag["acts"] == []
    assert lag["command"].endswith("status p --why")
    assert lag["meaning"]


def test_a_repair_that_waits_is_with_the_alert_that_it_cures() -> None:
    waiting = RepairRecord("run-2", PROPOSAL, NOW)
    done = RepairRecord("run-1", PROPOSAL, NOW, outcome=RepairOutcome.DONE, by="ada", backfill="bf-1", after={})
    found = shown(State((alert("late_share"), alert("lag"))), repairs=[done, waiting])
    by_kind = {each["kind"]: each for each in found["open"]}
    assert by_kind["late_share"]["repair_under_way"]["run"] == "run-2"
    assert by_kind["lag"]["repair_under_way"] is None
    newest, oldest = found["repairs"]
    assert (newest["outcome"], newest["before"], newest["after"], newest["records"]) == (
        "waiting",
        "4 rows LATE",
        None,
        90,
    )
    assert (oldest["outcome"], oldest["after"], oldest["by"]) == ("done", "no row DEFECT or LATE", "ada")


def test_what_was_over_is_grouped_by_cause_the_newest_first() -> None:
    past = [
        line("lag", "firing"),
        line("lag"),
        line("suite", until="2026-11-27T00:00:00Z"),
        line("lag", until="2026-11-26T12:00:00Z"),
    ]
    found = shown(State((alert("gap"),)), past)
    assert [(group["kind"], group["times"], group["until"]) for group in found["over"]] == [
        ("suite", 1, "2026-11-27T00:00:00Z"),
        ("lag", 2, "2026-11-26T12:00:00Z"),
    ]
    lasting = shown(State((alert("lag"),)), past)
    assert [group["kind"] for group in lasting["over"]] == ["suite"]
    assert (lasting["open"][0]["earlier_times"], lasting["open"][0]["earlier"][0]["until"]) == (
        2,
        "2026-11-26T12:00:00Z",
    )


def test_an_acknowledged_alert_says_who_knows_of_it_and_why() -> None:
    known = alert("lag", acknowledged_by="ada", acknowledged_at=NOW, acknowledgement="known")
    (first,) = shown(State((known,)))["open"]
    assert first["acknowledged"] == {"by": "ada", "at": "2026-11-27T03:00:00Z", "why": "known"}


def test_a_route_says_what_waits_and_its_last_error() -> None:
    state = State((alert("lag"),), {"ops": RouteState(2, NOW, "status 503")})
    ops, pager = shown(state)["routes"]
    assert (ops["waiting"], ops["failures"], ops["error"]) == (1, 2, "status 503")
    assert (pager["waiting"], pager["failures"]) == (0, 0)


@pytest.mark.parametrize("most", [10_000, 150])
def test_the_past_is_read_from_its_end_and_damaged_lines_are_left_out(tmp_path: Path, most: int) -> None:
    assert read_past(tmp_path / "none") == []
    file = tmp_path / "alerts.jsonl"
    file.write_text("\n".join([json.dumps({"id": 1, "text": "x" * 200}), "{torn", '"text"', json.dumps({"id": 2}), ""]))
    assert [each["id"] for each in read_past(file, most)] == ([1, 2] if most > 1_000 else [2])
