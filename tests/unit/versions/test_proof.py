"""What a seal proves of a version, whatever was committed since, and which rows two proofs cover."""

from __future__ import annotations

from dataclasses import replace

import pytest

from homes.seals import LOOK, NOW, SEAL
from rivertwice.reconcile.seals.look import ChangesSinceSeal, TableChanges
from rivertwice.storage.table import TableChange
from rivertwice.timeline.sequence import Entry, EntryKind
from rivertwice.timeline.served_stamp import ServedStamp
from rivertwice.versions.parity import common_ends
from rivertwice.versions.proof import prove

FOREIGN = [TableChanges("changelog", 7, 6, [TableChange(7, "DELETE", "", False, frozenset())])]


@pytest.mark.parametrize("whole", [False, True])
def test_later_batches_do_not_weaken_what_a_seal_proved(whole: bool) -> None:
    later = replace(LOOK, last=("t1", 9), stamp=ServedStamp(1, "t1", 9), seal=replace(SEAL, whole=whole))
    proof = prove("p", later)
    assert (proof.run, proof.until_ms, proof.end_offsets, proof.lacks) == ("r1", 100, {"t": {"0": 9}}, "")


@pytest.mark.parametrize(
    ("look", "word"),
    [
        (replace(LOOK, seal=None), "no reconcile has proved what p serves"),
        (replace(LOOK, amendments=3), "does not hold any more: decisions about dead letters"),
        (
            replace(LOOK, tables=FOREIGN),
            "does not hold any more: another program made version 7 of the table changelog (DELETE)",
        ),
        (
            replace(LOOK, entries=[*LOOK.entries, Entry(2, EntryKind.PUBLICATION, {}, NOW)]),
            "p published backfills after r1",
        ),
    ],
)
def test_a_proof_that_does_not_hold_says_what_to_run(look: ChangesSinceSeal, word: str) -> None:
    lacks = prove("p", look).lacks
    assert word in lacks
    assert "`rivertwice reconcile p`" in lacks


def test_records_that_both_have_read_end_where_the_first_of_them_ends() -> None:
    ends = [{"t": {"0": 9, "1": 4}}, {"t": {"0": 7, "1": 8, "2": 1}, "u": {"0": 3}}]
    assert common_ends(ends) == {"t": {"0": 7, "1": 4, "2": 0}, "u": {"0": 0}}
