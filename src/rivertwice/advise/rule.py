"""The late rule for any delay, from the batches that the stream ran. Pure.

Source: a row is late for a window that ends at E if E <= the watermark of the batch before the one that reads it, and a
watermark is the largest event time of all batches before, less the delay, and never falls below 0 (Spark's late filter,
`timeline.watermarks`). So with the largest event time M of all batches up to the last but one, the row of a batch is late
by a delay d exactly if E <= max(0, M - d): whether it is late by any other delay needs no other run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import numpy as np
import numpy.typing as npt

from rivertwice.advise.model import Suggestion
from rivertwice.pipeline.definition import Definition
from rivertwice.timeline.ledger import LedgerRow

NEVER_MS = -(1 << 50)
"""Of a batch before which no record was accepted: by no delay is one of its records late."""
MOST_STEPS = 10_000
_FACTORS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
_SHARES = (0.01, 0.001, 0.0)
_MS = timedelta(milliseconds=1)
Milliseconds = npt.NDArray[np.int64]


def refusal_of(definition: Definition) -> str | None:
    """Return why no advice can be given for a definition, or None."""
    name = definition.name
    if not any(source.has_watermark for source in definition.streams.values()):
        return f"{name} has {definition.window.text} and no watermark, so no record of it is ever late and no delay can be advised"
    if len(definition.streams) > 1:
        topics = ", ".join(source.topic for source in definition.streams.values())
        return (
            f"{name} reads {len(definition.streams)} streams ({topics}), whose watermarks make one together; advice is given for "
            "pipelines of one stream only; run `rivertwice reconcile` and read the lateness of its causes"
        )
    return None


def largest_before(rows: Sequence[LedgerRow]) -> Milliseconds:
    """Return for each batch the largest event time of all batches before it, epoch ms; NEVER_MS if there is none.

    Less the delay, that is the batch's own watermark, by which windows are closed.
    """
    largest = np.array([NEVER_MS if row.max_event_ms is None else row.max_event_ms for row in rows], np.int64)
    return (
        np.concatenate([np.array([NEVER_MS], np.int64), np.maximum.accumulate(largest)[:-1]]) if len(rows) else largest
    )


def late_marks(largest: Milliseconds) -> Milliseconds:
    """Return for each batch the M of the module's rule: what `largest_before` gives for the batch before it."""
    return np.concatenate([np.array([NEVER_MS], np.int64), largest[:-1]])


def closing_batches(ends_ms: Milliseconds, largest: Milliseconds, delay_ms: int) -> Milliseconds:
    """Return for each window end the index of the first batch that would close it; the number of batches if none does."""
    watermarks = np.maximum(largest - delay_ms, 0)
    watermarks[largest == NEVER_MS] = 0
    return np.searchsorted(watermarks, ends_ms, side="left").astype(np.int64)


def most_open(first: Milliseconds, closing: Milliseconds, rows: Milliseconds, batches: int) -> int:
    """Return the most rows that are open at the end of any batch.

    Args:
        first: of each window, the index of the first batch that has a row of it.
        closing: of each window, the index of the batch that closes it.
        rows: of each window.
        batches: how many there are.
    """
    change = np.zeros(batches + 1, np.int64)
    stays = closing > first
    np.add.at(change, first[stays], rows[stays])
    np.add.at(change, np.minimum(closing[stays], batches), -rows[stays])
    return int(np.cumsum(change)[:batches].max(initial=0))


def chosen_delays(present: timedelta, asked: Sequence[timedelta], suggested: Sequence[timedelta]) -> list[timedelta]:
    """Return the delays to judge, the smallest first: those that were asked for, or parts and multiples of the present one.

    The present one is always among them; so are the suggested ones if none was asked for.
    """
    usual = [round(present / _MS * factor) * _MS for factor in _FACTORS]
    return sorted({present, *(asked or [*usual, *suggested])})


def choose_step(widest_ms: int) -> int:
    """Return the grid of the suggestions in ms: whole seconds, and at most MOST_STEPS of them up to the widest lateness."""
    return max(1_000, -(-max(0, widest_ms) // MOST_STEPS // 1_000) * 1_000)


def suggest(pairs: int, step_ms: int, needed: Mapping[int, int]) -> tuple[Suggestion, ...]:
    """Return the smallest delay on the grid for each share.

    Args:
        pairs: all of them.
        step_ms: the grid.
        needed: n to the number of pairs that a delay of n steps drops and one of n + 1 steps does not.
    """
    suggestions = []
    for share in _SHARES:
        dropped, steps = 0, max(needed, default=-1) + 1
        while steps > 0 and dropped + needed.get(steps - 1, 0) <= share * pairs:
            dropped += needed.get(steps - 1, 0)
            steps -= 1
        suggestions.append(Suggestion(share, steps * step_ms * _MS, dropped))
    return tuple(suggestions)


def select_newest(rows: Sequence[LedgerRow], last: timedelta | None) -> int:
    """Return the index of the first batch to look at: from it on, event time went on by at least `last`; None: all."""
    if last is None:
        return 0
    largest = [row.max_event_ms for row in rows if row.max_event_ms is not None]
    since_ms = max(largest, default=0) - last // _MS
    return next((index for index, row in enumerate(rows) if (row.max_event_ms or since_ms - 1) >= since_ms), 0)
