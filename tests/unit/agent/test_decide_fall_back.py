"""What the agent does about a damaged checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.agent.backoff import FailureClass
from rivertwice.agent.decide import ActionKind, decide
from rivertwice.agent.memory import (
    DIED,
    REFUSED,
    RESTORED,
    Ended,
    FallBackEnded,
    Memory,
    remember_end,
    remember_fall_back,
)
from simulated.supervision import DAMAGED, DRIVER, FELL_BACK, NOW, RUNNING, STOPPED, Case, check_case, seen

CASES: list[Case] = [
    ("the checkpoint is damaged", RUNNING, seen(memory=Memory(failures=DAMAGED)), ActionKind.RESTORE, "checkpoint"),
    (
        "the checkpoint is damaged and the desired state is stopped",
        STOPPED,
        seen(memory=Memory(failures=DAMAGED)),
        ActionKind.WAIT,
        "stopped",
    ),
    (
        "the fall-back is under way",
        RUNNING,
        seen(memory=Memory(failures=DAMAGED, fall_back=FELL_BACK), restoring=200),
        ActionKind.WAIT,
        "pid 200",
    ),
    (
        "the fall-back was killed",
        RUNNING,
        seen(memory=Memory(failures=DAMAGED, fall_back=replace(FELL_BACK, outcome=DIED))),
        ActionKind.RESTORE,
        "resumed",
    ),
    (
        "the fall-back was killed three times",
        RUNNING,
        seen(memory=Memory(failures=DAMAGED, fall_back=replace(FELL_BACK, outcome=DIED, attempt=3, message="killed"))),
        ActionKind.STOP_AND_PAGE,
        "3 fall-backs died",
    ),
    (
        "the fall-back was refused",
        RUNNING,
        seen(memory=Memory(failures=DAMAGED, fall_back=replace(FELL_BACK, outcome=REFUSED, message="none is proved"))),
        ActionKind.STOP_AND_PAGE,
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
        ActionKind.STOP_AND_PAGE,
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
        ActionKind.RESTORE,
        "checkpoint",
    ),
]


@pytest.mark.proves("howto-savepoints.md#when-the-live-checkpoint-is-damaged")
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_a_case_gives_its_action_with_its_reason(case: Case) -> None:
    check_case(case)


@given(st.lists(st.sampled_from([RESTORED, REFUSED, DIED]), min_size=1, max_size=30))
def test_fall_backs_without_a_good_batch_between_them_always_end_in_a_page(outcomes: list[str]) -> None:
    """However each ends, and whatever is damaged again behind it, no more than three follow one another."""
    memory, now, launched = Memory(), NOW, 0
    for outcome in outcomes:
        memory = remember_end(
            replace(memory, driver=DRIVER), Ended(DRIVER, FailureClass.CHECKPOINT, False, "m", memory.position), now
        )
        action = decide(RUNNING, seen(memory=memory), now)
        if action.kind is ActionKind.STOP_AND_PAGE:
            return
        assert action.kind is ActionKind.RESTORE
        launched += 1
        before = memory.fall_back
        attempt = before.attempt + 1 if before is not None and before.outcome == DIED else 1
        memory = replace(memory, fall_back=replace(FELL_BACK, attempt=attempt))
        memory = remember_fall_back(memory, FallBackEnded(outcome, "m", ("t2", 9) if outcome == RESTORED else None))
    assert launched <= 4
