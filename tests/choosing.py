"""Which tests a run takes, and in which order.

Tests marked `faults` are slow: `make test-slow` runs all of them. Of those below, each of which alone proves a promise of
the documentation, every run of CI takes a share, another one each day, so that a week of runs has taken all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

SHARES = 7
PROMISES = (
    "integration/test_rewind.py",
    "integration/test_window_kinds.py::test_a_killed_stream_is_explained_to_the_last_row[hopping-1]",
    "integration/test_window_kinds.py::test_a_killed_stream_is_explained_to_the_last_row[session-1]",
    "integration/test_window_kinds.py::test_a_killed_stream_is_explained_to_the_last_row[joined slices-1]",
    "integration/test_window_kinds.py::test_a_killed_stream_is_explained_to_the_last_row[joined sources-1]",
    "integration/test_window_kinds.py::test_a_killed_stream_is_explained_to_the_last_row[as-of slices-1]",
    "integration/test_window_kinds.py::test_a_killed_proved_and_restored_fold_is_the_fold_of_the_log[1]",
    "integration/test_fold_of_topics.py",
    "integration/test_privacy.py",
    "integration/test_spark_cluster.py",
    "integration/test_schema_stream.py",
    "integration/test_upgrade.py",
    "integration/test_airflow_killed.py",
    "integration/test_backpressure.py",
    "integration/test_delivery_kafka.py",
    "integration/test_delivery_postgres.py",
    "security/test_driver_canary.py",
    "spark/test_archive.py",
)
"""Beginnings of the ids, below `tests/`, of tests marked `faults`."""

SLOWEST = (
    "integration/test_airflow",
    "oracle/test_two_days.py",
    "spark/test_late_rule_histories.py",
    "integration/test_savepoint_cycle.py",
    "spark/test_reconcile_planted.py",
    "integration/test_several_sources.py",
    "integration/test_upgrade.py",
    "integration/test_window_kinds.py",
    "integration",
    "spark",
    "oracle",
    "security",
    "model",
    "contracts",
)
"""Beginnings of the files that cost most, the dearest first: begun last, one of them would keep a worker when the others are done."""


def share_of(text: str, today: date) -> int | None:
    """Return the share that `RIVERTWICE_FAULTS_SHARE` asks for: none, a number from 0 to 6, or `today`'s. Pure.

    Raises:
        ValueError: it is none of these.
    """
    if text in ("", "none"):
        return None
    if text == "today":
        return today.toordinal() % SHARES
    if text in {str(number) for number in range(SHARES)}:
        return int(text)
    message = f"RIVERTWICE_FAULTS_SHARE is {text!r}; it is `today`, `none` or a number from 0 to {SHARES - 1}"
    raise ValueError(message)


def shared(ids: Sequence[str], share: int | None) -> set[str]:
    """Return those of the slow tests' ids that a share takes. Pure."""
    if share is None:
        return set()
    promised = sorted(one for one in ids if one.removeprefix("tests/").startswith(PROMISES))
    return set(promised[share::SHARES])


def rank(node: str) -> int:
    """Return where a test's file belongs in the order of a run, the slowest first. Pure."""
    name = node.removeprefix("tests/")
    return next((place for place, start in enumerate(SLOWEST) if name.startswith(start)), len(SLOWEST))
