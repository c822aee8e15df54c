"""The smallest backfill that cures what a reconcile found, over a real home with planted verdicts."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from homes.backfill import HOUR, hours, make_home
from homes.ledger import NOW
from rivertwice.core.errors import RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import from_ms
from rivertwice.storage.local import replace_json
from rivertwice.storage.table import Table
from rivertwice.timeline.sequence import publish
from rivertwice.timeline.serving import Publication
from rivertwice.upkeep.window_repairs import (
    Proposal,
    RepairOutcome,
    RepairRecord,
    Repairs,
    count_rows_in,
    find_proposal,
    plan_approved,
)

Made = tuple[Any, PipelineHome, Any]
FOUND = [
    ("served", 0, "LATE"),
    ("served", 1, "DEFECT"),
    ("served", 2, "AGREES"),
    ("served", 4, "LATE"),
    ("stream", 5, "DEFECT"),
]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr("rivertwice.backfill.observe._in_kafka", lambda *_: {0: (0, 200)})
    return make_home(tmp_path)


def reconcile(home: PipelineHome, run: str, verdicts: list[tuple[str, int, str]], minute: int = 0) -> None:
    created = NOW + timedelta(minutes=minute)
    row = {"run": run, "created_at": created, "sequence": 1, "gate": json.dumps({"alerts": []}), "counts": "{}"}
    Table(home.tables.reconciles).append(pa.Table.from_pylist([row]))
    start = [
        {"run": run, "pair": pair, "verdict": verdict, "reason": "", "window_start": from_ms(hour * HOUR), "rows": 1}
        | {"window_end": from_ms((hour + 1) * HOUR), "key": "k"}
        for pair, hour, verdict in verdicts
    ]
    Table(home.tables.verdicts).append(pa.Table.from_pylist(start))


def published(made: Made, *pairs: tuple[int, int]) -> None:
    _, home, bundle = made
    payload = Publication(2, "bf-1", hours(*pairs), bundle.fingerprint.semantics, bundle.id, {"flights": {0: 100}})
    publish(home, payload.to_payload(), expected_seq=1, now=NOW)


def find(made: Made, *kinds: str) -> Proposal:
    found = find_proposal(made[0], "p", kinds)
    assert found is not None
    assert found[1] is not None
    assert found[1].ranges == found[0].ranges
    return found[0]


def test_the_smallest_backfill_has_the_windows_of_the_wrong_rows_alone(made: Made) -> None:
    reconcile(made[1], "rc-1", FOUND)
    late = find(made, "late_share")
    assert (late.ranges, late.windows, late.rows) == (hours((0, 1), (4, 5)), 2, {"LATE": 2})
    assert late.records == 50  # of a hundred: the batches of these hours, and what lies between them
    defect = find(made, "defect")
    assert (defect.ranges, defect.windows, defect.rows) == (hours((1, 2)), 1, {"DEFECT": 1})
    both = find(made, "late_share", "gap", "defect")
    assert (both.kinds, both.ranges, both.rows) == (
        ("defect", "late_share"),
        hours((0, 2), (4, 5)),
        {"DEFECT": 1, "LATE": 2},
    )


def test_nothing_is_proposed_for_what_was_published_since(made: Made) -> None:
    assert find_proposal(made[0], "p", ["defect"]) is None  # no reconcile yet
    reconcile(made[1], "rc-1", FOUND)
    published(made, (0, 2))
    assert find_proposal(made[0], "p", ["defect"]) is None
    assert find(made, "late_share").ranges == hours((4, 5))
    assert find_proposal(made[0], "p", ["gap"]) is None


def test_what_was_approved_is_planned_without_what_was_repaired_meanwhile(made: Made) -> None:
    settings, home, _ = made
    reconcile(home, "rc-1", FOUND)
    approved = find(made, "defect", "late_share")
    reconcile(home, "rc-2", [*FOUND, ("served", 6, "LATE")], minute=5)  # found later, so nobody approved it
    plan = plan_approved(settings, "p", approved, "approved by ada")
    assert plan is not None
    assert (plan.ranges, plan.reason) == (approved.ranges, "approved by ada")
    published(made, (0, 2))
    plan = plan_approved(settings, "p", approved, "approved by ada")
    assert plan is not None
    assert plan.ranges == hours((4, 5))


def test_an_approved_repair_of_what_is_right_by_now_is_no_plan(made: Made) -> None:
    reconcile(made[1], "rc-1", FOUND)
    approved = find(made, "late_share")
    published(made, (0, 5))
    assert plan_approved(made[0], "p", approved, "approved") is None


def test_rows_are_counted_in_the_windows_of_a_repair_alone(made: Made) -> None:
    reconcile(made[1], "rc-1", FOUND)
    assert count_rows_in(made[1], "rc-1", hours((0, 2))) == {"LATE": 1, "DEFECT": 1}
    assert count_rows_in(made[1], "rc-1", hours((5, 9))) == {}


def test_a_repair_is_stored_once_however_often_its_task_is_tried(made: Made) -> None:
    home, proposal = made[1], Proposal("rc-1", ("defect",), hours((0, 1)), 1)
    assert Repairs(home).read() == []
    for at in (NOW, NOW + timedelta(minutes=1)):
        Repairs(home).write("run", lambda known, at=at: known or RepairRecord("run", proposal, at))
    (stored,) = Repairs(home).read()
    assert stored.at == NOW
    Repairs(home).write("run", lambda known: RepairRecord("run", proposal, NOW, outcome=RepairOutcome.DONE))
    assert [record.outcome for record in Repairs(home).read()] == [RepairOutcome.DONE]
    replace_json(home.repairs, {"format": 2, "repairs": []})
    with pytest.raises(RequestError, match="has format 2, this version reads 1"):
        Repairs(home).read()
