"""Which seal a run may build on, what a new one counts, and which is stored: without an engine, in real tables."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from homes.ledger import ledger_row
from rivertwice.core.homes import PipelineHome
from rivertwice.reconcile.model import RowId, RowVerdict
from rivertwice.reconcile.results import Stamp, store_run, stored_verdicts
from rivertwice.reconcile.seals.look import (
    NotIncrementalError,
    require_same_meaning,
    require_sealed_batch,
    require_stamp,
    select_seal,
)
from rivertwice.reconcile.seals.model import (
    START,
    Seal,
    chain_hash,
    forget_seals,
    read_seals,
    store_seal,
    times_forgotten,
)
from rivertwice.reconcile.seals.scope import Scope
from rivertwice.reconcile.seals.settle import check_chain, compare_served_rows, counted_sequence, settled_until
from rivertwice.timeline.lineage import Segment
from rivertwice.timeline.served_stamp import ServedStamp

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEAL = Seal("r1", NOW, "t1", 5, "m", 1, 0, {}, 100, None, {}, {}, 0, "h", -1, {"changelog": 6})


@pytest.fixture
def home(tmp_path: Path) -> PipelineHome:
    return PipelineHome(tmp_path / "p")


def test_after_a_head_move_the_newest_seal_below_the_fork_is_taken() -> None:
    seals = [SEAL, replace(SEAL, run="r2", batch=8), replace(SEAL, run="r3", timeline="t2", batch=9)]
    path = [Segment("t1", 0, 6), Segment("t3", 7, None)]
    chosen = select_seal(seals, path)
    assert chosen is not None
    assert chosen.run == "r1"
    assert select_seal(seals, [Segment("t1", 0, 4), Segment("t3", 5, None)]) is None


def test_a_ledger_that_does_not_begin_at_the_seal_is_judged_whole() -> None:
    row = ledger_row(5)
    require_sealed_batch(replace(SEAL, timeline=row.timeline), [row, ledger_row(6)])
    for rows in ([], [ledger_row(6)]):
        with pytest.raises(NotIncrementalError, match="no row for the batch"):
            require_sealed_batch(replace(SEAL, timeline=row.timeline), rows)


def test_only_a_definition_that_judges_as_the_seal_s_builds_on_it() -> None:
    require_same_meaning(SEAL, ["m"])
    for meanings in (["other"], ["m", "other"]):
        with pytest.raises(NotIncrementalError):
            require_same_meaning(SEAL, meanings)


def test_served_rows_newer_than_the_sequence_that_was_read_are_not_judged() -> None:
    row = ledger_row(5)
    seal = replace(SEAL, served=ServedStamp(1, row.timeline, row.batch))
    require_stamp(SEAL, None, [row], 1)
    require_stamp(seal, ServedStamp(1, row.timeline, row.batch), [row], 1)
    with pytest.raises(NotIncrementalError, match="entry 2 of the sequence"):
        require_stamp(seal, ServedStamp(2, row.timeline, row.batch), [row], 1)
    with pytest.raises(NotIncrementalError, match="a batch from before"):
        require_stamp(seal, ServedStamp(1, row.timeline, row.batch - 1), [row], 1)


def test_a_served_table_that_came_while_the_run_began_is_judged_whole() -> None:
    row = ledger_row(5)
    with pytest.raises(NotIncrementalError, match="came or went"):
        require_stamp(SEAL, ServedStamp(1, row.timeline, row.batch), [row], 1)


def test_a_publication_that_was_not_served_yet_is_new_after_the_seal() -> None:
    assert counted_sequence(3, ServedStamp(2, "t1", 5)) == 2
    assert counted_sequence(3, ServedStamp(4, "t1", 5)) == 3
    assert counted_sequence(3, None) == 3


def test_a_window_is_settled_once_it_is_closed_and_served() -> None:
    assert (settled_until(90, None), settled_until(90, 80), settled_until(90, 95)) == (90, 80, 90)


def test_a_run_that_began_before_the_seals_went_stores_none(home: PipelineHome) -> None:
    assert store_seal(home, SEAL, times_forgotten(home))
    began = times_forgotten(home)
    forget_seals(home)
    assert read_seals(home) == []
    assert not store_seal(home, replace(SEAL, run="r2"), began)
    assert read_seals(home) == []
    assert store_seal(home, replace(SEAL, run="r3"), times_forgotten(home))
    assert [seal.run for seal in read_seals(home)] == ["r3"]


def test_the_first_seal_too_is_refused_once_rows_were_erased(home: PipelineHome) -> None:
    forget_seals(home)
    assert not store_seal(home, SEAL, 0)
    assert read_seals(home) == []


def test_several_reconciles_store_their_seals_and_each_once(home: PipelineHome) -> None:
    for _ in range(2):
        assert store_seal(home, SEAL, 0)
        assert store_seal(home, replace(SEAL, run="r2", batch=6), 0)
    assert [seal.run for seal in read_seals(home)] == ["r1", "r2"]


def test_a_run_says_whether_all_that_is_stored_of_it_is_its_own(home: PipelineHome) -> None:
    verdict = RowVerdict("stream", RowId(0, 10, "a"), "AGREES", "", "both")
    summary = {"counts": {}, "balance": {}, "late_by_partition": {}, "gate": {}, "duration_s": 0.0}
    stamp, verdicts = Stamp("r1", "p", NOW, "t1", 5, "b", 1, {}), stored_verdicts([verdict])
    assert store_run(home, stamp, verdicts, [], summary)
    assert not store_run(home, stamp, verdicts, [], summary)
    assert store_run(home, replace(stamp, run="r2"), verdicts, [], summary)


def test_the_seal_whose_ledger_is_another_is_named() -> None:
    rows = [ledger_row(number) for number in range(4)]
    seals = [
        replace(SEAL, timeline=row.timeline, batch=row.batch, ledger=chain_hash(START, rows[: place + 1]))
        for place, row in enumerate(rows)
    ]
    off_path = replace(SEAL, timeline="gone", ledger="other")
    assert check_chain(rows, [*seals, off_path]) == []
    changed = [*rows[:2], replace(rows[2], epoch=9), rows[3]]
    (finding,) = check_chain(changed, seals)
    assert (finding.kind, finding.batch) == ("seal", 2)
    made_since = [replace(seals[2], run="r2", ledger=chain_hash(START, changed[:3]))]
    assert check_chain(changed, [*seals[:3], *made_since]), "a newer seal of the same batch hides no older one"


def test_served_rows_of_settled_windows_are_counted_at_each_run() -> None:
    seal = replace(SEAL, served_rows=7)
    assert compare_served_rows("p", seal, Scope(100, 10), 7) == []
    (finding,) = compare_served_rows("p", seal, Scope(100, 10), 6)
    assert finding.kind == "served"
    assert "`rivertwice reconcile p --full`" in finding.message
    assert compare_served_rows("p", seal, Scope(100, 10, ((0, 10),)), 6) == []
    assert compare_served_rows("p", SEAL, Scope(100, 10), 6) == []
