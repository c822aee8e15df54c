"""The decision, case by case, and what must hold for every history."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivertwice.supervise.backoff import Failure
from rivertwice.supervise.classify import FailureClass
from rivertwice.supervise.decide import Action, Drain, Kind, Observed, decide
from rivertwice.supervise.memory import (
    DIED,
    REFUSED,
    RESTORED,
    DriverRef,
    Ended,
    FallBack,
    FallBackEnded,
    Intended,
    Memory,
    remember_end,
    remember_fall_back,
)
from rivertwice.timeline.intent import Heartbeat, Intent

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
S = timedelta(seconds=1)
DRIVER = DriverRef(pid=100, pid_started=1.0, epoch=7, since=NOW - 600 * S)
RUNNING = Intent("running", "test", NOW - 1000 * S)
STOPPED = Intent("stopped", "test", NOW - 1000 * S)


def beat(age_s: float, *, epoch: int = 7, lag: int | None = 0) -> Heartbeat:
    return Heartbeat(epoch, 100, "t1", "running", NOW - age_s * S, batch=5, lag=lag)


def failed(kind: FailureClass, age_s: float, *, progressed: bool = False) -> Failure:
    return Failure(NOW - age_s * S, kind, progressed, 6, "message")


def seen(**changes: Any) -> Observed:
    nothing = Observed(owner=None, launched=None, heartbeat=None, drain=None, defined=True, memory=Memory())
    return replace(nothing, **changes)


KNOWN = Memory(driver=DRIVER)
UNKNOWN5 = tuple(failed(FailureClass.UNKNOWN, age) for age in (300, 250, 200, 150, 100))
DAMAGED = (failed(FailureClass.CHECKPOINT, 100),)
FELL_BACK = FallBack(200, 2.0, NOW - 90 * S, 1)
AGENT_DRAIN = Drain(NOW - 5 * S, by_agent=True, held=False)

CASES = [
    ("nobody ever asked for anything", None, seen(), Kind.WAIT, "stopped"),
    ("stopped and nothing lives", STOPPED, seen(), Kind.WAIT, "stopped"),
    ("stopped is wanted, a driver runs", STOPPED, seen(owner=DRIVER, memory=KNOWN), Kind.DRAIN, "pid 100"),
    ("stopped is wanted, a driver starts", STOPPED, seen(launched=DRIVER, memory=KNOWN), Kind.DRAIN, "pid 100"),
    ("it drains already", STOPPED, seen(owner=DRIVER, memory=KNOWN, drain=AGENT_DRAIN), Kind.WAIT, "drains"),
    (
        "it drains for ever",
        STOPPED,
        seen(owner=DRIVER, memory=KNOWN, drain=replace(AGENT_DRAIN, since=NOW - 301 * S)),
        Kind.PAGE,
        "still runs",
    ),
    ("first start", RUNNING, seen(), Kind.START, "no driver lives"),
    ("it runs", RUNNING, seen(owner=DRIVER, memory=KNOWN, heartbeat=beat(1)), Kind.WAIT, "epoch 7"),
    ("a driver that this agent does not know", RUNNING, seen(owner=DRIVER, heartbeat=beat(1)), Kind.ADOPT, "pid 100"),
    (
        "a driver that took the lease just now",
        RUNNING,
        seen(owner=DRIVER, memory=Memory(driver=replace(DRIVER, epoch=None))),
        Kind.ADOPT,
        "epoch 7",
    ),
    (
        "a recycled pid is another driver",
        RUNNING,
        seen(owner=DRIVER, memory=Memory(driver=replace(DRIVER, pid_started=0.5))),
        Kind.ADOPT,
        "pid 100",
    ),
    ("it hangs", RUNNING, seen(owner=DRIVER, memory=KNOWN, heartbeat=beat(121)), Kind.PAGE, "said nothing"),
    (
        "it hangs and was paged",
        RUNNING,
        seen(owner=DRIVER, memory=replace(KNOWN, paged=("hung",)), heartbeat=beat(121)),
        Kind.WAIT,
        "said nothing",
    ),
    (
        "an older epoch's heartbeat does not make a fresh driver hang",
        RUNNING,
        seen(
            owner=replace(DRIVER, since=NOW - 10 * S),
            memory=KNOWN,
            heartbeat=beat(500, epoch=6),
        ),
        Kind.WAIT,
        "runs",
    ),
    (
        "it beats but commits nothing although records wait",
        RUNNING,
        seen(
            owner=replace(DRIVER, since=NOW - 900 * S),
            memory=KNOWN,
            heartbeat=beat(1, lag=9),
            position_since=NOW - 601 * S,
        ),
        Kind.PAGE,
        "9 records wait",
    ),
    (
        "it commits nothing because nothing waits",
        RUNNING,
        seen(owner=DRIVER, memory=KNOWN, heartbeat=beat(1, lag=0), position_since=NOW - 601 * S),
        Kind.WAIT,
        "runs",
    ),
    ("it starts", RUNNING, seen(launched=replace(DRIVER, epoch=None, since=NOW - 5 * S)), Kind.WAIT, "starts"),
    (
        "it starts for ever",
        RUNNING,
        seen(launched=replace(DRIVER, epoch=None, since=NOW - 181 * S)),
        Kind.PAGE,
        "no lease",
    ),
    ("one that had the lease for long leaves", RUNNING, seen(launched=DRIVER), Kind.WAIT, "leaves"),
    (
        "a restore holds the drain marker",
        RUNNING,
        seen(drain=Drain(NOW, by_agent=False, held=True)),
        Kind.WAIT,
        "holds the drain marker",
    ),
    (
        "whoever held the drain marker is dead",
        RUNNING,
        seen(drain=Drain(NOW, by_agent=False, held=False)),
        Kind.START,
        "",
    ),
    ("stop and start again quickly", RUNNING, seen(drain=AGENT_DRAIN), Kind.START, ""),
    ("no definition", RUNNING, seen(defined=False), Kind.STOP_AND_PAGE, "no definition"),
    (
        "the agent died while it started a driver",
        RUNNING,
        seen(memory=Memory(intended=Intended("start", "r", NOW - 3 * S, done=False))),
        Kind.WAIT,
        "may still come up",
    ),
    (
        "and that driver never came up",
        RUNNING,
        seen(memory=Memory(intended=Intended("start", "r", NOW - 31 * S, done=False))),
        Kind.START,
        "",
    ),
    (
        "killed once, backoff runs",
        RUNNING,
        seen(memory=Memory(failures=(failed(FailureClass.KILLED, 0.4),))),
        Kind.WAIT,
        "backoff until 2026-01-01T12:00:00.6",
    ),
    (
        "killed once, backoff passed",
        RUNNING,
        seen(memory=Memory(failures=(failed(FailureClass.KILLED, 1),))),
        Kind.START,
        "killed",
    ),
    (
        "three in a row wait four seconds",
        RUNNING,
        seen(memory=Memory(failures=tuple(failed(FailureClass.STORE, age) for age in (30, 20, 3.9)))),
        Kind.WAIT,
        "backoff",
    ),
    (
        "unknown, five times without progress",
        RUNNING,
        seen(memory=Memory(failures=UNKNOWN5)),
        Kind.STOP_AND_PAGE,
        "again and again",
    ),
    (
        "unknown, five times, but the last one had made progress",
        RUNNING,
        seen(memory=Memory(failures=(*UNKNOWN5[:4], replace(UNKNOWN5[4], progressed=True)))),
        Kind.START,
        "",
    ),
    (
        "unknown, five times in a whole day",
        RUNNING,
        seen(
            memory=Memory(
                failures=tuple(replace(item, at=item.at - i * 3600 * S) for i, item in enumerate(UNKNOWN5[::-1]))
            )
        ),
        Kind.START,
        "",
    ),
    (
        "out of memory three times",
        RUNNING,
        seen(memory=Memory(failures=tuple(failed(FailureClass.OUT_OF_MEMORY, age) for age in (90, 60, 30)))),
        Kind.STOP_AND_PAGE,
        "memory",
    ),
    *[
        (
            f"{kind} stops at once",
            RUNNING,
            seen(memory=Memory(failures=(failed(kind, 100),))),
            Kind.STOP_AND_PAGE,
            str(kind),
        )
        for kind in (
            FailureClass.RETENTION,
            FailureClass.SCHEMA,
            FailureClass.FINGERPRINT,
            FailureClass.RANGE_MISMATCH,
            FailureClass.LEDGER,
        )
    ],
    ("the checkpoint is damaged", RUNNING, seen(memory=Memory(failures=DAMAGED)), Kind.RESTORE, "checkpoint"),
    (
        "the checkpoint is damaged and the stream is not wanted",
        STOPPED,
        seen(memory=Memory(failures=DAMAGED)),
        Kind.WAIT,
        "stopped",
    ),
    (
        "the fall-back is under way",
        RUNNING,
        seen(memory=Memory(failures=DAMAGED, fall_back=FELL_BACK), restoring=200),
        Kind.WAIT,
        "pid 200",
    ),
    (
        "the fall-back was killed",
        RUNNING,
        seen(memory=Memory(failures=DAMAGED, fall_back=replace(FELL_BACK, outcome=DIED))),
        Kind.RESTORE,
        "gone on with",
    ),
    (
        "the fall-back was killed three times",
        RUNNING,
        seen(memory=Memory(failures=DAMAGED, fall_back=replace(FELL_BACK, outcome=DIED, attempt=3, message="killed"))),
        Kind.STOP_AND_PAGE,
        "3 fall-backs died",
    ),
    (
        "the fall-back was refused",
        RUNNING,
        seen(memory=Memory(failures=DAMAGED, fall_back=replace(FELL_BACK, outcome=REFUSED, message="none is proved"))),
        Kind.STOP_AND_PAGE,
        "none is proved",
    ),
    (
        "what the fall-back put there is damaged again at once",
        RUNNING,
        seen(
            memory=Memory(
                failures=DAMAGED,
                position=("t2", 9),
                fall_back=replace(FELL_BACK, outcome=RESTORED, position=("t2", 9)),
            )
        ),
        Kind.STOP_AND_PAGE,
        "damaged again before its first batch",
    ),
    (
        "another damage, after good batches",
        RUNNING,
        seen(
            memory=Memory(
                failures=DAMAGED,
                position=("t2", 12),
                fall_back=replace(FELL_BACK, outcome=RESTORED, position=("t2", 9)),
            )
        ),
        Kind.RESTORE,
        "checkpoint",
    ),
    (
        "lease lost and nobody owns it any more",
        RUNNING,
        seen(memory=Memory(failures=(failed(FailureClass.LEASE_LOST, 2),))),
        Kind.START,
        "",
    ),
    (
        "given up",
        RUNNING,
        seen(memory=Memory(broken_at=NOW - 10 * S, broken_because="why", failures=UNKNOWN5)),
        Kind.WAIT,
        "given up until a new start is asked for: why",
    ),
    (
        "given up, then asked again",
        replace(RUNNING, updated_at=NOW - 5 * S),
        seen(memory=Memory(broken_at=NOW - 10 * S, broken_because="why", failures=UNKNOWN5)),
        Kind.START,
        "asked again",
    ),
    (
        "two starts are never closer than two seconds",
        RUNNING,
        seen(memory=Memory(last_start_at=NOW - S)),
        Kind.WAIT,
        "backoff",
    ),
]


@pytest.mark.parametrize(("title", "desired", "observed", "kind", "words"), CASES, ids=[case[0] for case in CASES])
def test_a_case_gives_its_action_with_its_reason(
    title: str, desired: Intent | None, observed: Observed, kind: Kind, words: str
) -> None:
    action = decide(desired, observed, NOW)
    assert action.kind is kind, title
    assert words in action.reason
    assert bool(action.page) == (kind in {Kind.PAGE, Kind.STOP_AND_PAGE})


instants = st.integers(-100_000, 100).map(lambda s: NOW + s * S)
refs = st.builds(DriverRef, st.integers(1, 9), st.floats(0, 9), st.none() | st.integers(1, 9), instants)
failures = st.lists(
    st.builds(
        Failure, instants, st.sampled_from(FailureClass), st.booleans(), st.none() | st.integers(1, 9), st.just("m")
    ),
    max_size=8,
).map(lambda items: tuple(sorted(items, key=lambda item: item.at)))
memories = st.builds(
    Memory,
    driver=st.none() | refs,
    failures=failures,
    broken_at=st.none() | instants,
    last_start_at=st.none() | instants,
    intended=st.none()
    | st.builds(Intended, st.sampled_from([str(kind) for kind in Kind]), st.just("r"), instants, st.booleans()),
    paged=st.sampled_from([(), ("hung",)]),
    position=st.none() | st.just(("t2", 9)),
    fall_back=st.none()
    | st.builds(
        FallBack,
        st.integers(1, 9),
        st.floats(0, 9),
        instants,
        st.integers(1, 3),
        st.sampled_from(["", RESTORED, REFUSED, DIED]),
        st.just("m"),
        st.none() | st.just(("t2", 9)),
    ),
)
observations = st.builds(
    Observed,
    owner=st.none() | refs,
    launched=st.none() | refs,
    heartbeat=st.none()
    | st.builds(beat, st.integers(0, 999), epoch=st.integers(1, 9), lag=st.none() | st.integers(0, 5)),
    drain=st.none() | st.builds(Drain, instants, st.booleans(), st.booleans()),
    defined=st.booleans(),
    memory=memories,
    position_since=st.none() | instants,
    restoring=st.none() | st.integers(1, 9),
)
intents = st.none() | st.builds(Intent, st.sampled_from(["running", "stopped"]), st.just("t"), instants)


@given(intents, observations)
def test_a_second_driver_is_never_started_while_one_lives(desired: Intent | None, observed: Observed) -> None:
    action = decide(desired, observed, NOW)
    if observed.owner is not None or observed.launched is not None or observed.restoring is not None:
        assert action.kind not in {Kind.START, Kind.RESTORE}
    if desired is None or desired.desired == "stopped":
        assert action.kind in {Kind.WAIT, Kind.DRAIN, Kind.PAGE}


@given(intents, observations)
def test_the_same_sight_gives_the_same_action_and_always_a_reason(desired: Intent | None, observed: Observed) -> None:
    first = decide(desired, observed, NOW)
    assert first == decide(desired, observed, NOW)
    assert first.reason


@settings(max_examples=200)
@given(
    st.lists(
        st.sampled_from([FailureClass.KILLED, FailureClass.UNKNOWN, FailureClass.POISON, FailureClass.STORE]),
        max_size=4,
    ),
    st.integers(0, 1000),
)
def test_when_running_is_wanted_and_patience_is_left_it_always_starts_again(
    kinds: list[FailureClass], wait_s: int
) -> None:
    """A driver that fails again and again is started again after each backoff, until the breaker's limit."""
    memory, now = Memory(), NOW
    for kind in kinds:
        now, action = start_within(memory, now, 62)
        assert action.kind is Kind.START
        driver = DriverRef(1, 1.0, 1, now)
        now += wait_s * S
        memory = remember_end(
            replace(memory, driver=driver, last_start_at=now), Ended(driver, kind, False, "m", None), now
        )
    assert start_within(memory, now, 62)[1].kind is Kind.START


@settings(max_examples=50)
@given(st.lists(st.integers(3, 30), min_size=20, max_size=20))
def test_twenty_kills_with_progress_in_between_are_answered_within_three_seconds_each(lives_s: list[int]) -> None:
    memory, now = Memory(), NOW
    for number, life in enumerate(lives_s):
        asked = now
        now, action = start_within(memory, now, 3)
        assert action.kind is Kind.START, (number, asked)
        driver = DriverRef(number, 1.0, number, now)
        memory = replace(memory, driver=driver, last_start_at=now)
        now += life * S
        memory = remember_end(memory, Ended(driver, FailureClass.KILLED, False, "m", ("t1", number)), now)


def start_within(memory: Memory, now: datetime, seconds: int) -> tuple[datetime, Action]:
    action = decide(RUNNING, seen(memory=memory), now)
    for _ in range(2 * seconds):
        if action.kind is not Kind.WAIT:
            break
        now += S / 2
        action = decide(RUNNING, seen(memory=memory), now)
    return now, action


@given(st.lists(st.sampled_from([RESTORED, REFUSED, DIED]), min_size=1, max_size=30))
def test_fall_backs_without_a_good_batch_between_them_always_end_in_a_page(outcomes: list[str]) -> None:
    """However each ends, and whatever is damaged again behind it, no more than three follow one another."""
    memory, now, launched = Memory(), NOW, 0
    for outcome in outcomes:
        memory = remember_end(
            replace(memory, driver=DRIVER), Ended(DRIVER, FailureClass.CHECKPOINT, False, "m", memory.position), now
        )
        action = decide(RUNNING, seen(memory=memory), now)
        if action.kind is Kind.STOP_AND_PAGE:
            return
        assert action.kind is Kind.RESTORE
        launched += 1
        before = memory.fall_back
        attempt = before.attempt + 1 if before is not None and before.outcome == DIED else 1
        memory = replace(memory, fall_back=replace(FELL_BACK, attempt=attempt))
        memory = remember_fall_back(memory, FallBackEnded(outcome, "m", ("t2", 9) if outcome == RESTORED else None))
    assert launched <= 4


def test_a_stop_for_lost_records_pages_what_is_lost_by_name() -> None:
    lost = Failure(NOW, FailureClass.RETENTION, progressed=False, epoch=1, message="gap gap-1: partition 0 [3, 9)")
    action = decide(RUNNING, seen(memory=Memory(failures=(lost,))), NOW)
    assert (action.kind, action.page) == (Kind.STOP_AND_PAGE, "retention")
    assert "partition 0 [3, 9)" in action.reason
