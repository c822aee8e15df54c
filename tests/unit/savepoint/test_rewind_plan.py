"""What a rewind would change, worked out by hand.

batches of t1   0   1   2   3 | 4   5   6      a savepoint at 3
records         10  10  10  10| 10  10  10     partition 0
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homes.rewind import DEFINITION, emitted_rows
from homes.savepoint import FINGERPRINT, TOPIC, row, savepoint
from rivertwice.core.errors import FingerprintError, LogGapError, RequestError, SavepointError
from rivertwice.core.instants import EPOCH
from rivertwice.savepoint.operations.rewind_plan import (
    Emitted,
    Reread,
    RewindInputs,
    after_fork,
    compare_emitted,
    find_refusals,
    plan_rewind,
    records_per_second,
)
from rivertwice.timeline.serving import Publication

OLD = [row(batch) for batch in range(7)]
MANIFEST = savepoint(3, proved=True).manifest
MANIFEST = replace(MANIFEST, watermark_ms=3000)
WORLD = RewindInputs(
    head="t1",
    old_rows=OLD,
    new_rows=OLD[:4],
    emitted=Emitted(rows=12, windows=4),
    late=2,
    log_begins={"flights": {0: 0}},
    topic_ids={TOPIC: "id"},
    fingerprint=FINGERPRINT,
    publications=(),
    semantics=frozenset({FINGERPRINT["semantics"]}),
)


def test_a_plan_names_fork_discarded_batches_and_records_to_read():
    plan = plan_rewind(MANIFEST, WORLD, proved=True)
    assert (plan.timeline, plan.batch, plan.head, plan.head_batch, plan.on_path) == ("t1", 3, "t1", 6, True)
    assert (plan.batches, plan.regained, plan.records) == (3, 0, 30)
    assert plan.reread == (Reread("flights", 0, 40, 70, 0),)
    assert (plan.windows, plan.rows, plan.late, plan.dead) == (4, 12, 2, 0)
    assert (plan.changed, plan.refusals) == ((), ())


def test_dead_letters_are_counted_in_the_batches_that_go_and_only_there():
    rows = [replace(one, bad=one.batch) for one in OLD]
    assert plan_rewind(MANIFEST, replace(WORLD, old_rows=rows), proved=True).dead == 4 + 5 + 6


def test_a_partition_that_was_added_later_is_read_from_its_first_record():
    last = replace(OLD[-1], end_offsets={TOPIC: {"0": 70, "1": 5}})
    plan = plan_rewind(MANIFEST, replace(WORLD, old_rows=[*OLD[:-1], last]), proved=True)
    assert plan.reread == (Reread("flights", 0, 40, 70, 0), Reread("flights", 1, 0, 5, 0))
    assert plan.records == 35


def test_a_savepoint_off_the_heads_path_brings_its_own_batches_back():
    # t1  0 1 2 3 4 5 6      the savepoint stands at t1@3
    # t2        3 4          forked at t1@1, the head
    head = [*OLD[:2], row(2, "t2"), row(3, "t2")]
    plan = plan_rewind(MANIFEST, replace(WORLD, head="t2", old_rows=head), proved=True)
    assert (plan.on_path, plan.batches, plan.regained) == (False, 2, 2)
    assert plan.records == 0  # the branch has read as far as the head


def test_publications_serve_on_while_their_meaning_is_one_of_the_path():
    made = tuple(Publication(seq, f"b{seq}", ((0, 10),), meaning, "b", {}) for seq, meaning in ((4, "m"), (5, "old")))
    plan = plan_rewind(MANIFEST, replace(WORLD, publications=made), proved=True)
    assert [(one.seq, one.keeps) for one in plan.publications] == [(4, True), (5, False)]


def test_the_time_it_takes_is_told_from_the_ledgers_own_pace():
    rows = [replace(one, batch_timestamp_ms=0, committed_at=EPOCH + timedelta(seconds=2)) for one in OLD]
    assert records_per_second(rows) == 5.0
    assert plan_rewind(MANIFEST, replace(WORLD, old_rows=rows), proved=True).estimate_s == 6.0
    assert records_per_second([replace(OLD[0], read=0)]) is None


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"fingerprint": {**FINGERPRINT, "semantics": "other"}}, FingerprintError, "changed: semantics"),
        ({"log_begins": {"flights": {0: 41}}}, LogGapError, "flights-0 offsets 40 to 41"),
        ({"topic_ids": {TOPIC: "new"}}, LogGapError, "deleted"),
        ({"old_rows": OLD[:4]}, RequestError, "nothing to go back from"),
        ({"new_rows": [replace(one, batch_watermark_ms=1) for one in OLD[:4]]}, SavepointError, "damaged"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason_and_shown_all_the_same(changes, error, text):
    world = replace(WORLD, **changes)
    (found,) = find_refusals(MANIFEST, world, proved=True)
    assert isinstance(found, error)
    assert text in str(found)
    assert plan_rewind(MANIFEST, world, proved=True).refusals == (str(found),)


def test_one_that_is_not_proved_needs_a_word():
    (refusal,) = plan_rewind(MANIFEST, WORLD, proved=False).refusals
    assert "--unproved" in refusal
    assert plan_rewind(MANIFEST, WORLD, proved=False, unproved=True).refusals == ()


BATCHES = st.lists(st.tuples(st.sampled_from(["t1", "t2"]), st.integers(0, 5)), unique=True, max_size=10)


@given(BATCHES, BATCHES)
def test_each_batch_of_two_paths_is_shared_or_behind_the_fork_of_one(one, other):
    old, new = [[row(batch, line) for line, batch in path] for path in (one, other)]
    gone, came = after_fork(old, new)
    assert len(old) - len(gone) == len(new) - len(came) == len(set(one) & set(other))


def test_rows_of_two_paths_are_the_same_different_or_in_one_of_them():
    old = emitted_rows({(0, "a"): 1, (0, "b"): 2, (10, "a"): 3})
    new = emitted_rows({(0, "a"): 1, (0, "b"): 5, (20, "a"): 4})
    found = compare_emitted(old, new, DEFINITION)
    assert (found.same, found.differs, found.only_old, found.only_new) == (1, 1, 1, 1)
    assert (found.old_windows, found.new_windows) == (2, 2)
    assert [(one.kind, one.row["k"], one.old, one.new) for one in found.examples] == [
        ("differs", "b", {"n": 2}, {"n": 5}),
        ("only_old", "a", {"n": 3}, {}),
        ("only_new", "a", {}, {"n": 4}),
    ]
    assert len(compare_emitted(old, new, DEFINITION, examples=1).examples) == 1


def test_a_path_that_emitted_nothing_compares_as_nothing():
    found = compare_emitted(None, emitted_rows({}), DEFINITION)
    assert (found.same, found.only_new, found.new_windows) == (0, 0, 0)
