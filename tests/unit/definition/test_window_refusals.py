"""What a definition may not say of its windows, for each kind of windows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from homes.one_source import define_fold_by, define_interval, define_windows
from rivertwice.core.errors import DefinitionError
from rivertwice.definition.definition import Definition


@pytest.mark.parametrize(
    ("define", "window", "words"),
    [
        (define_windows, "{}", "exactly one"),
        (define_windows, "{size: 1 h, session: 1 h}", "exactly one"),
        (define_windows, "{session: 1 h, slide: 1 m}", "sessions and intervals do not slide"),
        (define_windows, "{size: 1 h, slide: 1 h}", "remove slide"),
        (define_windows, "{size: 1 h, slide: 7 m}", "without rest"),
        (define_windows, "{size: 1 h, slide: 30 s}", "at most 60 times"),
        (define_windows, "{size: 1 h, slide: 0 s}", "no length"),
        (define_windows, "{session: 0 s}", "no length"),
        (define_interval, "{every: 1 minute}", "intervals need at"),
        (define_interval, "{every: 1 minute, size: 1 minute, at: at}", "give exactly one"),
        (define_interval, "{size: 1 minute, lookback: 1 minute}", "are for intervals"),
        (define_interval, "{size: 1 minute, at: at}", "are for intervals"),
        (define_interval, "{size: 1 minute}", "count_column is missing"),
        (define_interval, "{every: 2 minutes, lookback: 3 minutes, at: at}", "lookback 3 minutes is not a multiple of every 2 minutes"),
        (define_interval, "{every: 1 s, lookback: 1 hour, at: at}", "3601 times every"),
        (define_interval, "{every: 1 minute, slide: 30 s, at: at}", "intervals do not slide"),
        (define_interval, "{every: 1 minute, at: missing}", "window.at 'missing' is neither a key nor a column"),
        (define_interval, "{every: 1 minute, at: at, start_column: w}", "has the name of a column that intervals add"),
        (define_fold_by, "{fold: 1 day}", "a fold needs at"),
        (define_fold_by, "{fold: 1 day, at: total}", "window.at 'total' is not a key or column of type timestamp"),
        (define_fold_by, "{fold: 1 day, at: at, slide: 1 hour}", "nor do folds"),
        (define_fold_by, "{fold: 1 day, at: at, lookback: 1 day}", "are for intervals"),
    ],
)  # fmt: skip
def test_a_window_that_cannot_be_meant_is_refused(define: Callable[[str], Definition], window: str, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        define(window)
