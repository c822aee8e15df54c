"""Suites of expectations over result rows, judged by Great Expectations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rivertwice.core.face import lazy_names

if TYPE_CHECKING:
    from rivertwice.quality.engine import exception_of, judge_pandas, load_expectations, severity_of, warm_up_beside
    from rivertwice.quality.model import (
        CRITICAL,
        ERRORED,
        FAILED,
        INFO,
        STILL_FAILS,
        WARNING,
        Judgement,
        describe_ranges,
    )
    from rivertwice.quality.suites import lint_suites, suite_mistakes
    from rivertwice.quality.table import (
        failing_by_severity,
        judgement_of,
        read_newest,
        read_results,
        standing,
        store_acceptance,
    )
    from rivertwice.quality.windows import CorrectionsCheck, judge_corrections, judge_windows
else:
    __getattr__ = lazy_names(__name__)

__all__ = [
    "CRITICAL",
    "ERRORED",
    "FAILED",
    "INFO",
    "STILL_FAILS",
    "WARNING",
    "CorrectionsCheck",
    "Judgement",
    "describe_ranges",
    "exception_of",
    "failing_by_severity",
    "judge_corrections",
    "judge_pandas",
    "judge_windows",
    "judgement_of",
    "lint_suites",
    "load_expectations",
    "read_newest",
    "read_results",
    "severity_of",
    "standing",
    "store_acceptance",
    "suite_mistakes",
    "warm_up_beside",
]
