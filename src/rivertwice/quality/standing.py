"""What is true of the served rows as far as they were judged: read from the records of the runs. Nothing is judged here."""

from __future__ import annotations

from rivertwice.config import PipelineHome, Settings
from rivertwice.quality.model import SEVERITIES, WINDOWS, still_true
from rivertwice.quality.suite_files import read_suite
from rivertwice.quality.table import QualityRun, read_newest


def standing(settings: Settings, home: PipelineHome) -> QualityRun | None:
    """Return what is true of the served rows as far as they were judged; None without a suite, or before its first run.

    Raises:
        SuiteError: the file of the suite cannot be read.
    """
    suite = read_suite(settings, home.root.name, WINDOWS)
    newest = None if suite is None else read_newest(home)
    if suite is None or newest is None:
        return None
    return QualityRun(newest.run, newest.subject, newest.created_at, tuple(still_true(newest.judgements, suite.ids)))


def failing_by_severity(known: QualityRun | None) -> dict[str, int]:
    """Return severity to the number of expectations that fail, of each severity; empty if no suite has run. Pure."""
    if known is None:
        return {}
    return {level: sum(each.fails and each.severity == level for each in known.judgements) for level in SEVERITIES}
