"""Sessions through audit, publication and the served table of a real home; only the computing is done in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from homes.ledger import NOW
from homes.sessions import extend, make_session_home, served_rows, write_reconcile, write_sessions
from rivertwice.backfill.audit import audit_backfill
from rivertwice.backfill.late_windows import require_publishable
from rivertwice.backfill.model import BackfillPlan, BackfillRequest, DoubtfulWindows, Seed, SessionsView
from rivertwice.backfill.observe import observe_backfill, stale_ranges
from rivertwice.backfill.plan import explain_plan, plan_backfill
from rivertwice.backfill.publish import publish_backfill
from rivertwice.backfill.session_plan import sessions_of
from rivertwice.backfill.store import save_plan
from rivertwice.core.errors import AuditError, LogGapError, RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import TimeRange, from_ms
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle
from rivertwice.timeline.sequence import read_sequence
from rivertwice.timeline.served import read_served, rebuild_served
from simulated.sessions import Row, World, text

pytestmark = pytest.mark.long

Made = tuple[Settings, PipelineHome, Bundle, World]


def torn() -> World:
    """a: [0, 1000) was emitted when 500 came; b stands alone; c is far behind them.

    time    0    500   1000  1500  2000  2500  3000
    a       [-----------)
                  [-----------)
    b                               [-----------)
    """
    world = World()
    for batch in ([("a", 0, 1)], [("c", 3200, 1)], [], [("a", 500, 2), ("b", 2000, 5)], [("c", 9000, 1)], []):
        world.commit(batch)
    return world


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr("rivertwice.backfill.observe._in_kafka", lambda *_: {})
    world = torn()
    settings, home, bundle = make_session_home(tmp_path, world)
    return settings, home, bundle, world


def compute(home: PipelineHome, world: World, plan: BackfillPlan) -> None:
    rows = world.compute(plan)
    assert plan.sessions is not None
    for chunk in plan.chunks:
        low, high = chunk.ranges[0]
        write_sessions(home, plan, chunk.index, [(gone, row) for _, gone, row in rows if low <= row.start_ms < high])


def published(made: Made, asked: tuple[int, int]) -> BackfillPlan:
    settings, home, bundle, world = made
    plan = save_plan(home, world.plan(asked, chunk_records=1))
    compute(home, world, plan)
    audit_backfill(settings, plan)
    publish_backfill(settings, plan)
    rebuild_served(home, bundle.definition)
    return plan


def test_a_split_session_is_served_whole_once_it_is_published(made: Made) -> None:
    settings, home, bundle, world = made
    rebuild_served(home, bundle.definition)
    assert set(served_rows(read_served(home))) == set(world.served())
    plan = published(made, (0, 3000))
    a, b = Row("a", 0, 1500, 2, 3), Row("b", 2000, 3000, 1, 5)
    assert served_rows(read_served(home)) == {a: plan.id, b: plan.id, Row("c", 3200, 4200, 1, 1): None}
    entry = read_sequence(home)[-1]
    assert entry.payload["sessions"] is True
    assert entry.payload["ranges"] == [[0, 3000]]
    assert publish_backfill(settings, plan) == entry


def test_a_second_backfill_replaces_the_first_and_changes_no_row(made: Made) -> None:
    _, home, _, world = made
    first = published(made, (0, 3000))
    world.publish(first, world.compute(first))
    again = world.plan((0, 1000))
    assert (again.replaces, again.late, again.id == first.id) == ((first.id,), 0, False)
    second = published(made, (0, 1000))
    served = served_rows(read_served(home))
    assert served[Row("a", 0, 1500, 2, 3)] == second.id
    assert served[Row("b", 2000, 3000, 1, 5)] == first.id


def test_the_same_work_has_the_same_id_and_another_session_another_one(made: Made) -> None:
    world = made[3]
    assert world.plan((0, 1000)).id == world.plan((1, 1400)).id
    assert world.plan((0, 1000)).id != world.plan((0, 2500)).id


def test_the_explanation_names_asked_published_and_overlapping_sessions() -> None:
    world = torn()
    said = explain_plan(world.plan((1200, 2500)))
    for fact in (
        "asked      sessions that hold a time of [1970-01-01T00:00:01.200000Z, 1970-01-01T00:00:02.500000Z)",
        "sessions   2 settled, gap 1 s",
        "extended   2 of them",
        '[1970-01-01T00:00:00Z, 1970-01-01T00:00:01.500000Z) of {"k": "a"}',
        "changes    1 are served with fewer records now, or in other sessions",
    ):
        assert fact in said


def failure(made: Made, plan: BackfillPlan) -> str:
    with pytest.raises(AuditError) as caught:
        audit_backfill(made[0], plan)
    return str(caught.value)


A, B = Row("a", 0, 1500, 2, 3), Row("b", 2000, 3000, 1, 5)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(False, A)], "sessions: 1 rows are not as they were planned"),
        ([(False, A), (False, replace(B, key="z"))], "sessions: 2 rows are not as they were planned"),
        ([(False, replace(A, n=3)), (False, B)], "sessions: 2 rows are not as they were planned"),
        ([(False, replace(A, end_ms=1400)), (False, B)], "sessions: 2 rows are not as they were planned"),
        ([(False, A), (False, B), (False, B)], "keys: 1 repeated of 2"),
        ([(False, A), (True, B)], "sessions: 2 rows are not as they were planned"),
    ],
    ids=["lost", "of another key", "of more records", "shorter", "twice", "taken away"],
)
def test_a_session_that_is_not_the_planned_one_fails_the_audit(
    made: Made, rows: list[tuple[bool, Row]], said: str
) -> None:
    _, home, _, world = made
    plan = save_plan(home, world.plan((0, 3000)))
    write_sessions(home, plan, 0, rows)
    assert said in failure(made, plan)


def test_a_session_in_the_chunk_of_another_fails_the_audit(made: Made) -> None:
    _, home, _, world = made
    plan = save_plan(home, world.plan((0, 3000), chunk_records=1))
    write_sessions(home, plan, 0, [(False, B)])
    write_sessions(home, plan, 1, [(False, A)])
    assert "sessions: 4 rows are not as they were planned" in failure(made, plan)


def test_a_served_session_that_no_record_is_left_of_vanishes(made: Made) -> None:
    settings, home, bundle, world = made
    ghost = Row("ghost", 600, 1700, 3, 9)
    world.commit([])
    world.emitted.append((len(world.batches) - 1, ghost))
    extend(home, bundle, world, len(world.batches) - 1)
    rebuild_served(home, bundle.definition)
    assert ghost in served_rows(read_served(home))
    plan = save_plan(home, world.plan((0, 1900)))
    assert plan.sessions is not None
    assert (plan.windows, len(plan.sessions.vanishing), len(sessions_of(plan.sessions, plan.chunks[0])[1])) == (1, 1, 1)
    assert "1 that are served vanish" in explain_plan(plan)
    compute(home, world, plan)
    audit_backfill(settings, plan)
    publish_backfill(settings, plan)
    rebuild_served(home, bundle.definition)
    assert {row.key for row in served_rows(read_served(home))} == {"a", "c", "b"}


@pytest.mark.proves("howto-correct.md#sessions")
def test_a_backfill_that_read_less_is_refused_on_a_shared_session(made: Made) -> None:
    settings, home, bundle, world = made
    older = {key: save_plan(home, world.plan(asked)) for key, asked in (("a", (0, 100)), ("b", (2000, 2100)))}
    for plan in older.values():
        compute(home, world, plan)
        audit_backfill(settings, plan)
    first = len(world.batches)
    for batch in ([("a", 1400, 7)], []):
        world.commit(batch)
    extend(home, bundle, world, first)
    published(made, (0, 100))
    # The ranges of both are near, but it is the key that decides.
    with pytest.raises(RequestError, match="read less of the log"):
        publish_backfill(settings, older["a"])
    publish_backfill(settings, older["b"])
    rebuild_served(home, bundle.definition)
    assert Row("a", 0, 2400, 3, 10) in served_rows(read_served(home))


def test_a_publication_waits_until_no_record_can_join_its_sessions(made: Made) -> None:
    settings, home, _, world = made
    plan = save_plan(home, world.plan((0, 3000)))
    assert plan.last_end_ms == 3000 + 1000
    compute(home, world, plan)
    audit_backfill(settings, plan)
    later = replace(plan, sessions=replace(plan.sessions, settled_ms=world.closed_ms + 1))
    with pytest.raises(RequestError, match="the head was moved back"):
        publish_backfill(settings, later)


def test_late_sessions_are_stale_until_a_publication_over_them(
    made: Made,
) -> None:
    settings, home, _, _ = made
    assert stale_ranges(home) == []
    split = [Row("a", 0, 1000, 1, 1), Row("a", 500, 1500, 1, 2)]
    others = [Row("a", -9000, -8000, 1, 1), Row("a", 1500, 9000, 1, 1)]
    write_reconcile(
        home,
        [
            ("LATE", split[0]),
            ("LATE", split[1]),
            ("LATE", B),
            ("AGREES", Row("c", 3200, 4200, 1, 1)),
            *(("LATE", row) for row in others),
        ],
    )
    seen = observe_backfill(settings, "p")
    assert seen.sessions == SessionsView(
        tuple(Seed(text(row.key), row.start_ms, row.end_ms) for row in (*split, B, *others))
    )
    assert stale_ranges(home) == [TimeRange(from_ms(-9000), from_ms(-8000)), TimeRange(from_ms(0), from_ms(9000))]
    published(made, (0, 100))
    left = tuple(Seed(text(row.key), row.start_ms, row.end_ms) for row in (B, *others))
    assert observe_backfill(settings, "p").sessions == SessionsView(left)


def test_an_unobserved_plan_and_one_of_the_late_queue_are_refused(made: Made) -> None:
    settings = made[0]
    require_publishable(made[2].definition)
    seen = observe_backfill(settings, "p")
    with pytest.raises(RequestError, match="were not looked up"):
        plan_backfill(BackfillRequest("p", TimeRange(from_ms(0), from_ms(10))), seen)
    with pytest.raises(RequestError, match="no session of p is stale"):
        plan_backfill(BackfillRequest("p"), seen)
    with pytest.raises(RequestError, match="which no late queue holds"):
        plan_backfill(BackfillRequest("p", None, "late", NOW), seen)


@pytest.mark.proves("howto-correct.md#sessions")
def test_more_sessions_than_a_plan_holds_are_refused(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rivertwice.backfill.plan.MAX_WINDOWS", 1)
    with pytest.raises(RequestError, match="2 sessions are asked, the most is 1"):
        made[3].plan((0, 3000))


@pytest.mark.parametrize(
    ("doubt", "refused"),
    [((2500, None), False), ((2499, None), True), ((0, 10), True), ((-9000, -1001), False), ((-9000, -1000), True)],
)
def test_sessions_that_lost_records_may_join_are_refused(
    made: Made, monkeypatch: pytest.MonkeyPatch, doubt: tuple[int, int | None], refused: bool
) -> None:
    #  a: [0, 1500); a lost record may lengthen a session that ends or begins within the gap of it
    world = made[3]
    whole = world.view
    monkeypatch.setattr(world, "view", lambda stale: replace(whole(stale), doubts=(DoubtfulWindows(*doubt, "gap-1"),)))
    if refused:
        with pytest.raises(LogGapError, match="gap-1 is lost for ever"):
            world.plan((0, 100))
    else:
        assert world.plan((0, 100)).windows == 1
