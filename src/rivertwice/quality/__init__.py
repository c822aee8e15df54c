"""Suites of expectations over result rows, judged by Great Expectations."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    from rivertwice.quality.suites import lint_suites, require_judges, suite_mistakes
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
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
