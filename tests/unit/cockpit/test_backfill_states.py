"""What a stored backfill is, in one word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from homes.backfill import asked, view
from rivertwice.backfill.plan import plan_backfill
from rivertwice.cockpit.backfills import Facts, decide_state, why_obsolete
from rivertwice.timeline.serving import Publication

NEW = Facts(0, locked=False, passed=None, published=None, serves=False, why_obsolete=None)


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (NEW, "planned"),
        (replace(NEW, done=2), "cut off"),
        (replace(NEW, done=2, locked=True), "running"),
        (replace(NEW, done=4, passed=True), "audited"),
        (replace(NEW, done=4, passed=False), "audit failed"),
        (replace(NEW, done=4, passed=True, why_obsolete="the head runs another definition now"), "obsolete"),
        (replace(NEW, done=4, passed=True, published=7, serves=True), "published"),
        (replace(NEW, done=4, passed=True, published=7), "replaced"),
    ],
)
def test_the_state_follows_from_what_is_stored(facts: Facts, state: str) -> None:
    assert decide_state(facts) == state


def test_a_plan_of_another_definition_cannot_be_published_any_more() -> None:
    plan = plan_backfill(asked(0, 4), view())
    assert why_obsolete(plan, [], frozenset({plan.semantics})) is None
    why = why_obsolete(plan, [], frozenset({"other"}))
    assert why is not None
    assert "another definition" in why


def test_a_plan_that_read_less_than_what_is_published_is_obsolete() -> None:
    plan = plan_backfill(asked(0, 4), view())
    newer = Publication(2, "bf-newer", plan.ranges, plan.semantics, plan.bundle, {"flights": {0: 101}})
    older = replace(newer, as_of=plan.as_of)
    elsewhere = replace(newer, ranges=((10**12, 10**12 + 1),))
    held = frozenset({plan.semantics})
    assert why_obsolete(plan, [older, elsewhere], held) is None
    assert "bf-newer" in str(why_obsolete(plan, [newer], held))
