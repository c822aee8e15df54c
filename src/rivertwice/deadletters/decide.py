"""Which dead letters a decision is about, when it may have been made before by the same request. Pure.

A worker may be killed after a decision was written and before that is known: the request then comes again. A decision of the same
kind, person and reason that was made since the request is this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rivertwice.deadletters.model import AMEND, DISCARD, OPEN, DeadLetter
from rivertwice.errors import RequestError
from rivertwice.pipeline.model import Definition


@dataclass(frozen=True)
class Decision:
    """Who decides, why, and since when it is asked for."""

    by: str
    why: str
    since: datetime

    def made(self, letter: DeadLetter, kind: str, value: bytes | None = None) -> bool:
        """Say whether a letter's newest decision is this one."""
        found = letter.amendment
        return (
            found is not None
            and (found.kind, found.by, found.why, found.value) == (kind, self.by, self.why, value)
            and found.created_at >= self.since
        )


def is_amended(letter: DeadLetter, value: bytes, decision: Decision) -> bool:
    """Say whether a letter was given this value by this request already."""
    return decision.made(letter, AMEND, value)


def select_discards(
    letters: Sequence[DeadLetter], decision: Decision, *, reason: str | None = None
) -> list[DeadLetter]:
    """Return the letters that still have to be discarded; none if this request has discarded all of them.

    Args:
        letters: the one letter that is named; with `reason`, all of the pipeline.
        decision: who asks, and why.
        reason: all open letters that were rejected for it; None: `letters` is what is named.

    Raises:
        RequestError: there is nothing to discard, and this request has discarded nothing.
    """
    chosen = [letter for letter in letters if reason is None or (letter.state == OPEN and letter.reason == reason)]
    left = [letter for letter in chosen if not decision.made(letter, DISCARD)]
    if left or any(decision.made(letter, DISCARD) and reason in (None, letter.reason) for letter in letters):
        return left
    message = f"no open dead letter has the reason {str(reason)[:80]!r}, so nothing was discarded; `rivertwice dead list` shows them"
    raise RequestError(message)


def cure_applies(definition: Definition, topic: str) -> bool:
    """Say whether a cure of a record of `topic` is applied: only for streams in windows, sessions and intervals.

    A cure would change a fold, or a table, from its record on: no rule explains that yet.
    """
    view_and_source = definition.by_topic.get(topic)
    return view_and_source is not None and definition.window.kind.takes_cures and not view_and_source[1].is_table
