"""Which tests a run takes, and in which order.

Tests marked `faults` are slow: `make test-slow` runs all of them. Of those below, each of which alone proves a promise of
the documentation, every run of CI takes a share, another one each day, so that a week of runs has taken all of them.
The same goes for wide families of one test, of which each member costs much and proves the same of another input.
`make test` takes the families whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

SHARES = 7
PROMISES = (
    "integration/test_rewind.py",
    "integration/test_window_kinds.py::test_a_killed_stream_is_explained_to_the_last_row[hopping-1]",
    "integration/test_window_kinds.py::test_a_killed_stream_is_explained_to_the_last_row[session-1]",
    "integration/test_window_kinds.py::test_a_killed_stream_is_explained_to_the_last_row[joined intervals-1]",
    "integration/test_window_kinds.py::test_a_killed_stream_is_explained_to_the_last_row[joined sources-1]",
    "integration/test_window_kinds.py::test_a_killed_stream_is_explained_to_the_last_row[as-of intervals-1]",
    "integration/test_window_kinds.py::test_a_killed_proved_and_restored_fold_is_the_fold_of_the_log[1]",
    "integration/test_fold_of_topics.py",
    "integration/test_privacy.py",
    "integration/test_spark_cluster.py",
    "integration/test_cluster_disks.py",
    "integration/test_schema_stream.py",
    "integration/test_upgrade.py",
    "integration/test_airflow_killed.py",
    "integration/test_automatic_switch.py",
    "integration/test_own_airflow.py",
    "integration/test_celery.py",
    "integration/test_cockpit_backfill.py",
    "integration/test_cockpit_repair.py",
    "integration/test_cockpit_repair_policy.py",
    "integration/test_cockpit_rewind.py",
    "integration/test_cockpit_versions.py",
    "integration/test_versions_on_s3.py",
    "integration/test_backpressure.py",
    "integration/test_first_load.py",
    "integration/test_advise.py",
    "integration/test_large_batch.py",
    "integration/test_repartition.py::test_a_timeline_without_a_batch_is_not_saved_nor_changed_again",
    "integration/test_versions_of_kinds.py",
    "integration/test_catch_up.py",
    "integration/test_delivery_kafka.py",
    "integration/test_delivery_postgres.py",
    "security/test_driver_canary.py",
    "spark/test_archive.py",
)
"""Beginnings of the ids, below `tests/` or `lab/tests/`, of tests marked `faults`."""

FAMILIES: Mapping[str, int] = {
    "integration/test_faults_quick.py::test_nothing_is_lost_duplicated_wrong_or_unexplained": 3,
    "integration/test_first_load.py::test_a_load_killed_after_any_step_is_continued_to_the_same": 5,
    "integration/test_mistakes.py::test_a_mistake_is_named_and_its_remedy_works": 4,
    "integration/test_stream_load.py::test_what_kafka_has_deleted_is_loaded_from_the_archive": 3,
    "integration/test_repartition.py::test_each_kind_goes_on_equal_in_another_number_of_partitions": 4,
    "model/test_schedules.py::test_a_rule_that_is_broken_on_purpose_is_caught": 2,
    "spark/test_example_pipelines.py::test_a_case_of_an_example_holds_in_both_modes": 3,
    "spark/test_fold_orders.py::test_rows_are_those_of_the_read_order": 3,
    "spark/test_late_rule_histories.py::": 2,
    "spark/test_seals.py::test_an_incremental_run_says_of_every_row_what_a_full_one_says": 3,
    "spark/test_spread.py::test_executors_say_of_every_row_what_the_driver_says": 3,
}
"""Beginning of the ids of a family, below `tests/` or `lab/tests/`, to the number of shares that its parameters are dealt to, one after the other."""

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
    promised = sorted(one for one in ids if _below(one).startswith(PROMISES))
    return set(promised[share::SHARES])


def of_another_share(ids: Sequence[str], share: int | None) -> set[str]:
    """Return the members of the families that a share leaves to the shares after it; without a share, none. Pure."""
    if share is None:
        return set()
    left: set[str] = set()
    for start, shares in FAMILIES.items():
        members = [one for one in ids if _below(one).startswith(start) and "[" in one]
        inputs = sorted({_input(one) for one in members})
        taken = {*inputs[share % shares :: shares]}
        left |= {one for one in members if _input(one) not in taken}
    return left


def _below(node: str) -> str:
    """Return an id below `tests/` or `lab/tests/`."""
    return node.removeprefix("lab/").removeprefix("tests/")


def _input(node: str) -> str:
    """Return the parameters of a test's id: what they have in common is made once for all tests of a file."""
    return node.partition("[")[2]


def rank(node: str) -> int:
    """Return where a test's file belongs in the order of a run, the slowest first. Pure."""
    name = _below(node)
    return next((place for place, start in enumerate(SLOWEST) if name.startswith(start)), len(SLOWEST))
