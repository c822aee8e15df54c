"""What must be served of sessions that publications overlap: over random histories exactly what is served, every missing record named.

time          0     5    10    15    20    25
published     [----- a --)     [- a ----)        as of then
stream                               [- a ----)  emitted since; its first record was dropped
since               8  came too late             joins them: the truth is one session
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rivertwice.core.errors import RequestError
from rivertwice.core.instants import from_ms
from rivertwice.reconcile.evidence import Evidence, ServedEvidence
from rivertwice.reconcile.model import LateRow, RowColumns, RowId, RowVerdict, ServedRow, ServedSession
from rivertwice.reconcile.sessions import (
    ExpectedServed,
    Followed,
    KnownRecords,
    PublishedSession,
    Session,
    expected_served_sessions,
    follow_key,
)
from rivertwice.reconcile.verdict import judge_served
from simulated.sessions import GAP, Row, World, random_batches


def followed(world: World) -> dict[str, list[Followed]]:
    late_us = [0, *(1000 * watermark for watermark in world.watermarks[:-1])]
    arrivals: dict[str, list[tuple[int, int, int]]] = {}
    for index, batch in enumerate(world.batches):
        for one in batch:
            arrivals.setdefault(one.key, []).append((index, one.at_ms * 1000, one.offset))
    return {key: follow_key(found, GAP * 1000, late_us) for key, found in arrivals.items()}


def expected_by(world: World) -> dict[str, list[ExpectedServed]]:
    seqs = {one.backfill: one.seq for one in world.publications}
    ends = {one.seq: one.as_of["flights"][0] for one in world.publications}
    times = [one.at_ms * 1000 for one in world.records]
    found = {}
    for key, families in followed(world).items():
        claims = [
            PublishedSession(row.start_ms, row.end_ms, seqs[name], gone)
            for name, gone, row in world.corrections
            if row.key == key
        ]
        found[key] = expected_served_sessions(
            families,
            claims,
            KnownRecords(times.__getitem__, lambda seq, position: position < ends[seq]),
            closed_ms=world.closed_ms,
            gap_us=GAP * 1000,
        )
    return found


def as_row(key: str, session: Session, world: World) -> Row:
    values = [world.records[one].value for one in session.rows]
    return Row(key, session.start_us // 1000, session.end_us // 1000, len(values), sum(values))


def check(world: World) -> int:
    """Compare what must be served with what is served; return how many sessions are not served as the truth has them."""
    served = set(world.served())
    changed = 0
    for key, expected in expected_by(world).items():
        for one in expected:
            assert one.unknown == one.unexplained == ()
            wanted = {as_row(key, session, world) for session in one.held}
            (whole,) = one.followed
            low, high = whole.truth.start_us // 1000, whole.truth.end_us // 1000
            assert {row for row in served if row.key == key and low <= row.start_ms < high} == wanted
            rows = [position for session in one.held for position in session.rows]
            assert sorted([*rows, *one.missing]) == sorted(whole.truth.rows)
            assert set(one.missing) == {*one.late, *one.since, *one.waiting}
            assert one.is_truth or one.late or one.since or one.split
            changed += not one.is_truth
    return changed


def publish_some(chance: random.Random, world: World) -> None:
    times = [one.at_ms for one in world.records]
    low = chance.choice([min(times), chance.randint(min(times) - GAP, max(times))])
    try:
        world.backfill((low, low + chance.choice([100, GAP, 10 * GAP, 60 * GAP, 1000 * GAP])))
    except RequestError as error:
        if "is settled" not in str(error) and "holds no session" not in str(error):
            raise


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_expected_is_what_is_served_whatever_came_late_since(seed: int) -> None:
    chance = random.Random(seed)
    world = World()
    for batch in [*random_batches(chance, chance.randint(20, 150)), [], []]:
        world.commit(batch)
        if world.records and chance.random() < 0.08:
            publish_some(chance, world)
    check(world)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
@example(1932812)  # a late record joins what is published to what the stream has still open
def test_expected_is_what_is_served_though_the_head_went_back(seed: int) -> None:
    chance = random.Random(seed)
    world = World()
    for batch in [*random_batches(chance, chance.randint(20, 120)), []]:
        world.commit(batch)
        if world.records and chance.random() < 0.08:
            publish_some(chance, world)
    world.rewind(chance, chance.randrange(len(world.batches)))
    check(world)
    for batch in random_batches(random.Random(seed + 1), 40):
        world.commit(batch)
    world.commit([])
    check(world)


def test_the_histories_hold_sessions_that_changed_after_publication() -> None:
    changed = []
    for seed in range(20):
        chance = random.Random(seed)
        world = World()
        batches = [*random_batches(chance, 150), []]
        for number, batch in enumerate(batches):
            world.commit(batch)
            if number == len(batches) // 2:
                world.backfill((0, 1_000_000))
        changed.append(check(world))
    assert sum(map(bool, changed)) > 6
    assert sum(changed) > 10


def test_what_waits_in_an_open_session_is_no_loss() -> None:
    #  published [0, 12) when 18 was known and open until 28; then 9 came too late, and only with it the two are one
    times = [0, 2000, 18_000, 9000]
    batches = [0, 0, 1, 2]
    rows = [(batch, time, place) for place, (batch, time) in enumerate(zip(batches, times, strict=True))]
    (whole,) = follow_key(rows, 10_000, [0, 0, 20_000])
    assert whole.late == (3,)

    def expected_at(closed_ms: int) -> ExpectedServed:
        known = KnownRecords(times.__getitem__, lambda _, position: position < 3)
        (found,) = expected_served_sessions(
            [whole], [PublishedSession(0, 12, 2)], known, closed_ms=closed_ms, gap_us=10_000
        )
        return found

    assert (expected_at(20).missing, expected_at(20).late, expected_at(20).waiting, expected_at(20).unexplained) == (
        (3, 2),
        (3,),
        (2,),
        (),
    )
    assert (expected_at(28).missing, expected_at(28).late, expected_at(28).waiting) == ((3,), (3,), ())


def test_what_the_stream_has_still_open_is_owed_once_it_is_closed() -> None:
    #  published [0, 10); 9 came too late; 18 is open until 28
    (whole,) = follow_key([(0, 0, 0), (1, 18, 1), (2, 9, 2)], 10, [0, 10, 22])
    assert [(part.start_us, part.end_us) for part in whole.parts] == [(0, 10), (18, 28)]

    def expected_at(closed_ms: int) -> ExpectedServed:
        (found,) = expected_served_sessions(
            [replace_times(whole)],
            [PublishedSession(0, 10, 2)],
            KnownRecords([0, 18_000, 9000].__getitem__, known),
            closed_ms=closed_ms,
            gap_us=10_000,
        )
        return found

    def known(_: int, position: int) -> bool:
        return position == 0

    assert [part.rows for part in expected_at(28).emitted] == [(1,)]
    assert expected_at(27).emitted == ()
    assert (expected_at(28).late, expected_at(28).missing) == ((2,), (2,))


def owe_amended(
    claims: list[PublishedSession], decided: dict[int, int], cures: dict[int, tuple[int, int | None]]
) -> list[ExpectedServed]:
    """Records at 0, 9 and 18 (gap 10); cures by position: from which decision on, and up to which, each holds."""
    times = [0, 9000, 18_000]

    def knew(seq: int, position: int) -> bool:
        since, until = cures.get(position, (0, None))
        return since <= decided[seq] and (until is None or decided[seq] < until)

    rows = [(-2 if one in cures else 0, times[one], one) for one in range(3) if cures.get(one, (0, None))[1] is None]
    return expected_served_sessions(
        follow_key(rows, 10_000, [0, 40_000]),
        claims,
        KnownRecords(times.__getitem__, knew, cures.__contains__),
        closed_ms=40,
        gap_us=10_000,
        ended=[one for one, (_, until) in cures.items() if until is not None],
    )


APART = [PublishedSession(0, 10, 2), PublishedSession(18, 28, 2)]
WHOLE = [PublishedSession(0, 28, 2)]


def test_an_amendment_that_joins_published_sessions_is_named_till_then() -> None:
    (one,) = owe_amended(APART, {2: 0}, {1: (1, None)})
    assert ([session.rows for session in one.held], one.amended, one.since) == ([(0,), (2,)], (1,), ())
    (one,) = owe_amended([*APART, PublishedSession(0, 28, 3)], {2: 0, 3: 1}, {1: (1, None)})
    assert one.is_truth


def test_an_ended_amendment_is_named_by_both_sessions_it_had_joined() -> None:
    (one,) = owe_amended(WHOLE, {2: 1}, {1: (1, 2)})
    assert [each.truth.rows for each in one.followed] == [(0,), (2,)]
    assert ([session.rows for session in one.held], one.former, one.missing) == ([(0, 1, 2)], (1,), ())
    (one,) = owe_amended([*WHOLE, PublishedSession(0, 10, 3), PublishedSession(18, 28, 3)], {2: 1, 3: 2}, {1: (1, 2)})
    assert one.is_truth


def test_an_amendment_with_a_session_of_its_own_is_named_when_it_ends() -> None:
    cures: dict[int, tuple[int, int | None]] = {0: (1, 2), 1: (1, 2), 2: (1, 2)}
    (one,) = owe_amended(WHOLE, {2: 1}, cures)
    assert (one.followed, one.former, one.is_truth) == ((), (0, 1, 2), False)
    (one,) = owe_amended([*WHOLE, PublishedSession(0, 28, 3, vanishes=True)], {2: 1, 3: 2}, cures)
    assert one.is_truth


def test_an_amendment_that_a_publication_knew_and_omitted_is_a_defect() -> None:
    (one,) = owe_amended([*APART], {2: 1}, {1: (1, None)})
    assert one.unknown == tuple(APART)
    assert not one.amended


def replace_times(whole: Followed) -> Followed:
    """The same in microseconds."""
    spread = [
        replace(one, start_us=one.start_us * 1000, end_us=one.end_us * 1000) for one in (whole.truth, *whole.parts)
    ]
    return replace(whole, truth=spread[0], parts=tuple(spread[1:]))


SHAPE = RowColumns(keys=("k",), columns=("n",), count_column="n")
TRUTH, FIRST, SECOND = RowId(0, 25, "a"), RowId(0, 10, "a"), RowId(15, 25, "a")


def record(offset: int) -> LateRow:
    return LateRow(TRUTH, "clicks", 1, offset, 3, 12, from_ms(8))


CHANGED = ServedSession(TRUTH, {FIRST: (2,), SECOND: (2,)}, late=(record(7),))
EVIDENCE = Evidence(SHAPE, 50, {TRUTH: (5,)}, {TRUTH: (4,)}, {}, {})
ROWS = {FIRST: [ServedRow((2,), "published", "bf-1")], SECOND: [ServedRow((2,), "published", "bf-1")]}
SERVED = ServedEvidence(
    ROWS,
    50,
    published_rows=frozenset({TRUTH, FIRST, SECOND}),
    sessions=dict.fromkeys((TRUTH, FIRST, SECOND), CHANGED),
)


def verdicts(served: ServedEvidence) -> dict[RowId, RowVerdict]:
    return {one.row: one for one in judge_served(EVIDENCE, served)}


def test_published_sessions_that_a_later_record_joins_are_late_and_name_it() -> None:
    found = verdicts(SERVED)
    assert {row: one.verdict for row, one in found.items()} == dict.fromkeys((TRUTH, FIRST, SECOND), "LATE")
    assert found[TRUTH].reason == "1 of 5 records came too late"
    assert {row: one.late for row, one in found.items()} == {TRUTH: 1, FIRST: 0, SECOND: 0}


def test_a_record_that_a_later_path_took_is_named_as_later() -> None:
    since = replace(CHANGED, late=(), since=(record(7),))
    found = verdicts(replace(SERVED, sessions=dict.fromkeys((TRUTH, FIRST, SECOND), since)))
    assert {one.reason for one in found.values()} == {"1 of 5 records came after the newest publication"}


@pytest.mark.parametrize(
    "session",
    [
        replace(CHANGED, late=()),
        replace(CHANGED, unexplained=1),
        replace(CHANGED, to_serve={FIRST: (2,), SECOND: None}),
    ],
    ids=["without a record to blame", "with a record that came in time", "that the log does not give"],
)
def test_a_published_session_is_a_defect(session: ServedSession) -> None:
    found = verdicts(replace(SERVED, sessions=dict.fromkeys((TRUTH, FIRST, SECOND), session)))
    assert found[SECOND].verdict == "DEFECT"


def test_a_published_session_with_another_value_is_a_defect() -> None:
    forged = verdicts(replace(SERVED, rows={**ROWS, FIRST: [ServedRow((1,), "published", "bf-1")]}))
    assert (forged[FIRST].verdict, forged[FIRST].unexplained, forged[SECOND].verdict) == ("DEFECT", 1, "LATE")
    gone = verdicts(replace(SERVED, rows={SECOND: ROWS[SECOND]}))
    assert (gone[FIRST].verdict, gone[FIRST].unexplained, gone[SECOND].verdict) == ("DEFECT", 2, "LATE")


def test_a_published_session_agrees_and_a_forged_one_differs() -> None:
    rows = {TRUTH: [ServedRow((5,), "published", "bf-1")]}
    whole = ServedEvidence(rows, 50, published_rows=frozenset({TRUTH}))
    assert [(one.verdict, one.reason) for one in verdicts(whole).values()] == [("AGREES", "published")]
    forged = verdicts(replace(whole, rows={TRUTH: [ServedRow((4,), "published", "bf-1")]}))
    assert (forged[TRUTH].verdict, forged[TRUTH].unexplained) == ("DEFECT", 1)
    assert "differs in n and no cause explains it" in forged[TRUTH].reason
