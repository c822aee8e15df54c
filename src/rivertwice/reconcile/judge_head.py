"""Judge what a view of the head shows: derive the log, compute truth and expected, compare."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from rivertwice.core.errors import ServiceError
from rivertwice.core.instants import from_ms, to_iso
from rivertwice.core.settings import Settings
from rivertwice.log.addresses import Part, intersect
from rivertwice.log.archive_rows import Origin, observe_archive_forks
from rivertwice.log.archive_table import read_archived
from rivertwice.reconcile.assess import (
    Forked,
    evidence_of_served,
    find_served_differences,
    gather_evidence,
    gather_served,
    observe_forked,
    observed_ranges,
    pairs_by_own,
    rederive_ledger,
    with_doubts,
)
from rivertwice.reconcile.columns import Contents, check_dead_columns, check_late_columns
from rivertwice.reconcile.copies import check_publications
from rivertwice.reconcile.derive import DerivedLog
from rivertwice.reconcile.evidence import StatefulEvidence
from rivertwice.reconcile.gaps import HoldsOthers, LostRecordsDoubt
from rivertwice.reconcile.judged import JudgedHead, touched_rows
from rivertwice.reconcile.kinds.judge import HasIncrements, records_without_output
from rivertwice.reconcile.observe import read_tables
from rivertwice.reconcile.recorded import (
    check_dead_letters,
    check_emitted,
    check_late_rows,
    check_order,
    check_updates,
    count_emitted,
)
from rivertwice.reconcile.rederive import Ranges
from rivertwice.reconcile.spread.large import Done, judge_large
from rivertwice.reconcile.verdict import judge_served, judge_stream
from rivertwice.reconcile.view import HeadView, shape_of
from rivertwice.storage import delta
from rivertwice.stream.failures import condition_of, is_thrown
from rivertwice.stream.throwing import stretches_that_throw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession


_log = logging.getLogger(__name__)


def _forked(settings: Settings, view: HeadView) -> Forked | None:
    """Return where Kafka's log forked since the head read it. The archive may have all that is judged, so no answer is no failure."""
    try:
        return observe_forked(settings, view)
    except ServiceError as error:
        _log.warning("whether Kafka still has the records that were read is not known: %s", error)
        return None


def _other_log(settings: Settings, view: HeadView, log: DerivedLog) -> HoldsOthers:
    """Return whether a range with another digest may hold records of another log: of Kafka always, of an archive if the log forked."""

    @functools.cache
    def archive_forked(topic: str) -> bool:
        origin = Origin(view.last.cluster_id, view.topic_ids[topic], topic)
        archived = read_archived(delta.open_table(settings.archive(topic)), origin.topic_id)
        try:
            return bool(observe_archive_forks(settings, origin, archived))
        except ServiceError as error:
            _log.warning("whether Kafka has the records of the archive of %s is not known: %s", topic, error)
            return False

    def holds_others(part: Part, pair: tuple[int, int]) -> bool:
        return any(intersect({part: pair}, read) for read in log.from_kafka) or archive_forked(part.topic)

    return holds_others


def judge_head(
    spark: SparkSession, settings: Settings, view: HeadView, done: Done, wanted: tuple[int, int] | None = None
) -> JudgedHead:
    """Return what the log says of the windows that a view judges.

    Windows over whose records the SQL throws are NOT_COMPARABLE; all others are judged as ever.

    `wanted` are the starts of the windows that are asked for (epoch ms, half-open); where executors judge, they leave out others.
    """
    try:
        return _judge_head(spark, settings, view, done, wanted)
    except PySparkException as error:
        if not is_thrown(str(error)):
            raise
        done("judge", "the SQL throws; the windows over which it does are looked for")
        thrown = _find_thrown(spark, settings, view, condition_of(str(error)))
        if not thrown:
            raise
    done("judge", "; ".join(each.reason for each in thrown))
    return _judge_head(spark, settings, view, done, wanted, thrown)


def _find_thrown(spark: SparkSession, settings: Settings, view: HeadView, condition: str) -> list[LostRecordsDoubt]:
    """Return the doubts about windows over whose records the SQL of the newest definition throws."""
    ranges, range_defects = observed_ranges(view)
    definition = view.newest.definition
    with _derived_log(spark, settings, view, ranges, ()) as log:
        derived = rederive_ledger(
            view, ranges, range_defects, log.counts(), log.missing, holds_others=_other_log(settings, view, log)
        )
        log.leave_out(derived.exchanged)
        times = [ms for each in derived.counts for ms in (each.min_event_ms, each.max_event_ms) if ms is not None]
        if not times:
            return []
        rows = log.accepted_by_view(derived.chain, view.groups)

        found = stretches_that_throw(spark, definition, rows, min(times), max(times) + 1)
    return [_doubt(start, end, condition) for start, end in found]


def _doubt(start_ms: int, end_ms: int, condition: str) -> LostRecordsDoubt:
    """Return the doubt about windows that have records of a range: what the stream had to emit cannot be computed. Pure."""
    times = f"from {to_iso(from_ms(start_ms))} to {to_iso(from_ms(end_ms))}"
    return LostRecordsDoubt(start_ms, end_ms - 1, f"the SQL throws over the records {times}: {condition}", unread=True)


def _range_of(thrown: LostRecordsDoubt) -> tuple[int, int]:
    assert thrown.until_ms is not None, "records that throw have event times"
    return thrown.after_ms, thrown.until_ms + 1


def _derived_log(
    spark: SparkSession,
    settings: Settings,
    view: HeadView,
    ranges: Sequence[Ranges],
    barred: Sequence[tuple[int, int]],
) -> DerivedLog:
    return DerivedLog(
        spark,
        settings,
        view.newest.definition,
        ranges,
        view.topic_ids,
        view.jumps,
        view.older,
        view.groups,
        has_holes=view.prefix is not None,
        barred=barred,
    )


def _judge_head(
    spark: SparkSession,
    settings: Settings,
    view: HeadView,
    done: Done,
    wanted: tuple[int, int] | None,
    thrown: Sequence[LostRecordsDoubt] = (),
) -> JudgedHead:
    ranges, range_defects = observed_ranges(view)
    definition = view.newest.definition
    with _derived_log(spark, settings, view, ranges, [_range_of(each) for each in thrown]) as log:
        counts = log.counts(with_rejected=view.prefix is not None)
        derived = rederive_ledger(
            view, ranges, range_defects, counts, log.missing, _forked(settings, view), _other_log(settings, view, log)
        )
        log.leave_out(derived.exchanged)
        derived = with_doubts(derived, thrown)
        read = sum(count.read for count in derived.counts)
        done("re-derive", f"{read} records, {len(derived.defects)} ledger fields differ")
        if view.handles is not None and not derived.missing:
            return judge_large(spark, view, log, derived, done, wanted)
        view = view if view.handles is None else read_tables(view)
        judge = log.judged_by(derived.chain, view.groups, view.cures)
        if view.prefix is not None:
            assert isinstance(judge, HasIncrements), "its runs alone are built on"
            judge.answer_together(shape_of(definition), view.first_new, view.prefix.scope.settled_ms)
        judges = {**log.judged_by_older(derived.chain, view.groups, view.cures), view.groups[-1]: judge}
        evidence, late = gather_evidence(view, derived, judges)
        fresh = [record for record in late if view.is_new(record.batch)]
        done("recompute", f"{len(evidence.truth)} result rows, {len(fresh)} late records")
        basis, their_late = evidence_of_served(view, evidence, late, judges)
        served = gather_served(view, basis, derived.chain, judge, their_late)
        rejected = [entry for entry in log.rejected() if entry[0][0] >= view.first_new]
        dead = [dead_letter for dead_letter, _ in rejected]
        contents = Contents(
            log.late_contents(fresh) if definition.late.keeps_rows else {},
            {(dead_letter[1], dead_letter[2]): columns for dead_letter, columns in rejected},
        )
        if view.prefix is None:
            pairs = pairs_by_own(judges)
        else:
            assert isinstance(judge, HasIncrements), "its runs alone are built on"
            pairs = judge.pairs_since(view.first_new, view.prefix.scope.settled_ms)
        without_output = records_without_output(judge)
        updates = check_updates(view, judge)
        done("account", f"{len(dead)} dead letters, {len(pairs)} counts")
    verdicts = judge_stream(evidence) + ([] if served is None else judge_served(basis, served))
    dead_findings, dead_counts = check_dead_letters(view, dead, derived.missing)
    findings = [*derived.findings, *view.contradicted]
    findings += [
        *dead_findings,
        *check_late_rows(view, fresh, derived.missing),
        *updates,
        *check_emitted(view, count_emitted(view)),
    ]
    findings += [*check_dead_columns(view, contents), *check_late_columns(view, fresh, contents)]
    findings += [
        *check_publications(view.publications, view.copies.plans),
        *find_served_differences(view, evidence.shape, derived.chain, verdicts),
    ]
    if isinstance(evidence, StatefulEvidence):
        findings += check_order(evidence.order_dependent)
    return JudgedHead(
        derived=derived,
        judge=judge,
        evidence=evidence,
        served=served,
        verdicts=verdicts,
        findings=findings,
        late=fresh,
        touched=touched_rows(view, fresh),
        dead=dead,
        dead_counts=dead_counts,
        pairs=pairs,
        without_output=without_output,
        can_increment=isinstance(judge, HasIncrements) and judge.can_increment(shape_of(definition)),
    )
