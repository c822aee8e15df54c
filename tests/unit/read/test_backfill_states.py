"""What a stored backfill is, in one word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rivertwice.read.backfills import Facts, decide_state

NEW = Facts(0, locked=False, passed=None, published=None, serves=False, why_obsolete=None)


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (NEW, "planned"),
        (replace(NEW, done=2), "interrupted"),
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
