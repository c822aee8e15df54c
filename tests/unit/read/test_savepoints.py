"""Savepoints on the page: proof, what a restore replays, until when it is possible, and what would be refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homes.savepoint import FINGERPRINT, NOW, add_timeline, commit_batches, make_home, row, savepoint
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import utc_now
from rivertwice.core.plain import to_plain
from rivertwice.core.settings import Settings
from rivertwice.read.savepoints import (
    KEPT,
    LOST,
    SOON,
    UNKNOWN,
    UNTIL,
    SavepointInputs,
    decide_proof_race,
    decide_race,
    describe_operation,
    describe_proof,
    describe_savepoint,
    describe_savepoints,
    lost_to_rewind,
)
from rivertwice.retention.summary import retention_file
from rivertwice.savepoint.operations.record import OperationStep, Restore
from rivertwice.savepoint.proof import ProofBudget
from rivertwice.savepoint.records import encode_record
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.local import replace_json
from rivertwice.timeline.committed import CommittedBatches
from rivertwice.timeline.lineage import Fork, Segment

PROOF = {
    "proved": True, "batches": 3, "last_batch": 6, "state_rows": 17, "source": "kafka", "seconds": 12.5,
    "made_at": "2013-07-02T00:00:00Z", "reason": "proved: 3 recorded batches replayed equal", "batch_s": 2.0,
}  # fmt: skip


def lease(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "holder": f"savepoint {name}", "deadline": None, "lost": 0, "only_kafka": 0, "level": "ok", "partition": 0, **changes,
    }  # fmt: skip


def measured(*leases: dict[str, Any], begin: int = 0) -> dict[str, Any]:
    return {"at": "2013-07-02T00:00:00Z", "topic": "flights", "kafka": {"0": [begin, 100]}, "leases": list(leases)}


@pytest.mark.parametrize(
    ("changes", "word", "said"),
    [
        ({}, KEPT, "the archive has its records"),
        ({"only_kafka": 30}, KEPT, "Kafka does not delete the 30 records"),
        ({"only_kafka": 30, "deadline": "2013-07-03T00:00:00Z"}, UNTIL, "then Kafka may delete some of the 30"),
        (
            {"only_kafka": 30, "deadline": "2013-07-03T00:00:00Z", "level": "critical"},
            SOON,
            "may delete some of the 30",
        ),
        (
            {"only_kafka": 30, "lost": 5, "deadline": "2013-07-03T00:00:00Z"},
            LOST,
            "cannot be restored any more: 5 records",
        ),
    ],
)
def test_a_savepoint_races_with_what_kafka_deletes(changes: dict[str, Any], word: str, said: str) -> None:
    race = decide_race("sp-1", measured(lease("sp-1", **changes), lease("sp-1", partition=1), lease("sp-2", lost=9)))
    assert race.word == word
    assert said in race.text
    assert race.deadline == (None if word == LOST else changes.get("deadline"))


def test_the_first_deadline_of_all_partitions_counts() -> None:
    days = [f"2013-07-0{day}T00:00:00Z" for day in (5, 3, 4)]
    race = decide_race("sp-1", measured(*(lease("sp-1", deadline=day, only_kafka=1) for day in days)))
    assert (race.deadline, race.only_kafka) == (days[1], 3)


def test_a_savepoint_that_nobody_measured_has_no_clock() -> None:
    for seen in (None, measured(lease("sp-2"))):
        assert decide_race("sp-1", seen).word == UNKNOWN


def test_a_rewind_needs_every_record_in_kafka() -> None:
    manifest = savepoint(3).manifest  # its end is offset 40
    assert lost_to_rewind(manifest, None) is None
    assert lost_to_rewind(manifest, measured(begin=40)) == 0
    assert lost_to_rewind(manifest, measured(begin=47)) == 7
    several = {"leases": [], "topics": [{"topic": "flights", "kafka": {"0": [47, 90]}}]}
    assert lost_to_rewind(manifest, several) == 7


@pytest.mark.parametrize(("oldest", "left"), [(0, 203), (3, 198), (100, 101), (201, 0), (202, 0), (300, 0)])
def test_a_proof_races_with_the_checkpoint_that_is_cleaned(oldest: int, left: int) -> None:
    """At batch 3; a proof replays 200 batches at most, and the state it compares with is two after the oldest."""
    race = decide_proof_race(3, oldest, ProofBudget())
    assert race.left == left
    assert ("no longer" in race.text) == (oldest > 201)


def test_without_a_checkpoint_here_the_proof_itself_finds_out() -> None:
    assert decide_proof_race(3, None, ProofBudget()).left is None


@pytest.fixture
def home(tmp_path: Path) -> tuple[Settings, PipelineHome]:
    """Batches 0 to 6, a proved savepoint at 3 and a newer one that is not proved."""
    settings, home = make_home(tmp_path, planned=3, finished=3, committed=3)
    taken = take_savepoint(settings, "p", now=NOW, reason="before the storm")
    taken.store.put(f"{taken.id}/proof.json", encode_record(PROOF))
    commit_batches(home, [row(batch) for batch in range(4, 7)])
    return settings, home


def test_a_proved_savepoint_says_when_by_what_and_what_was_compared(home: tuple[Settings, PipelineHome]) -> None:
    settings, own = home
    replace_json(retention_file(settings, "p"), measured())
    shown = to_plain(describe_savepoints(settings, "p", NOW))
    assert (shown["total"], shown["proved"], shown["operation"], shown["damaged"]) == (1, 1, None, {})
    (found,) = shown["rows"]
    assert found["proof"]["compared"] == "the rows of 3 recorded batches, up to batch 6 and the state after it, 17 rows"
    assert (found["proof"]["at"], found["proof"]["source"]) == (PROOF["made_at"], "kafka")
    assert found["replay"] == {"batches": 3, "records": 30, "seconds": 31.0, "measured": True}
    assert (found["kept"], found["on_path"], found["reason"]) == ("newest proved", True, "before the storm")
    assert found["obstacles"] == {"restore": None, "rewind": None, "prove": None}
    assert found["to_prove"] is None
    take_savepoint(settings, "p", now=utc_now())
    newest, older = to_plain(describe_savepoints(settings, "p", NOW))["rows"]
    assert (newest["status"], older["status"]) == ("taken", "proved")
    assert newest["to_prove"]["left"] == 3 + 200
    assert "never proved" in newest["obstacles"]["restore"]
    assert own.root.name == "p"


def test_a_damaged_manifest_hides_no_other_savepoint(home: tuple[Settings, PipelineHome]) -> None:
    settings, own = home
    broken = own.savepoints / "sp-t1-9-00000009"
    broken.mkdir()
    (broken / "manifest.json").write_text("{")
    shown = to_plain(describe_savepoints(settings, "p", NOW))
    assert (shown["total"], list(shown["damaged"])) == (1, [broken.name])


def test_after_a_rewind_an_older_savepoint_is_off_the_path(home: tuple[Settings, PipelineHome]) -> None:
    settings, own = home
    add_timeline(own, "t2", parent=Fork("t1", 1), first=2)
    (found,) = to_plain(describe_savepoints(settings, "p", NOW))["rows"]
    assert (found["on_path"], found["replay"]) == (False, None)
    assert "is a rewind" in found["obstacles"]["restore"]


def world(**changes: Any) -> SavepointInputs:
    values: dict[str, Any] = {
        "path": [Segment("t1", 0, None)], "fingerprint": FINGERPRINT, "committed": CommittedBatches.of([row(b) for b in range(9)]),
        "measured": None, "oldest": 0, "protected": {}, "batch_s": None,
    }  # fmt: skip
    return SavepointInputs(**{**values, **changes})


def test_what_would_be_refused_is_said_before_it_is_asked_for() -> None:
    proved = savepoint(3, proved=True)
    gone = measured(lease(proved.id, lost=4), begin=50)
    assert "4 records" in to_plain(describe_savepoint(proved, world(measured=gone), None))["obstacles"]["restore"]
    assert (
        "Kafka no longer has 10 records"
        in to_plain(describe_savepoint(proved, world(measured=gone), None))["obstacles"]["rewind"]
    )
    changed = to_plain(describe_savepoint(proved, world(fingerprint={**FINGERPRINT, "state": "other"}), None))[
        "obstacles"
    ]
    assert set(changed.values()) == {"it holds the state of another definition"}
    late = to_plain(describe_savepoint(savepoint(3), world(oldest=300), "not proved: no batch followed in time"))
    assert "can no longer be proved" in late["obstacles"]["prove"]
    assert late["attempt"] == "not proved: no batch followed in time"


def test_without_a_measured_pace_the_estimate_says_so() -> None:
    replay = to_plain(describe_savepoint(savepoint(3, proved=True), world(), None))["replay"]
    assert replay == {"batches": 5, "records": 50, "seconds": 27.5, "measured": False}


def test_a_proof_of_an_older_version_may_lack_its_parts() -> None:
    assert to_plain(describe_proof({"proved": True}))["compared"] == "no record says what was compared"


def test_an_operation_that_was_cut_off_names_both_ways_on() -> None:
    begun = Restore(
        "restore-1", "sp-t1-3-00000003", "t1", "t2", was_running=True, started_at=NOW, step=OperationStep.DRAINED
    )
    shown = to_plain(describe_operation([begun], "p"))
    assert shown is not None
    assert (shown["noun"], shown["after"]) == ("restore", "parent drained")
    assert shown["abandon"] == "rivertwice savepoint restore p --abandon"
    assert to_plain(describe_operation([replace(begun, step=OperationStep.DONE)], "p")) is None
