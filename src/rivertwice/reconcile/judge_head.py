"""Judge what a view of the head shows: derive the log, compute truth and expected, compare."""

from __future__ import annotations

import functools
import logging
import shlex
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from rivertwice.core import ServiceError, Settings, from_ms, to_iso
from rivertwice.log import Origin, Part, intersect, observe_archive_forks, read_archived
from rivertwice.reconcile.assess import (
    Forked,
    evidence_of_served,
    find_served_differences,
    gather_evidence,
    gather_served,
    observe_forked,
    observed_ranges,
    rederive_ledger,
    with_doubts,
)
from rivertwice.reconcile.copies import check_publications
from rivertwice.reconcile.derive import DerivedLog
from rivertwice.reconcile.evidence import StatefulEvidence
from rivertwice.reconcile.gaps import HoldsOthers, LostRecordsDoubt
from rivertwice.reconcile.judged import JudgedHead, touched_rows
from rivertwice.reconcile.model import DefectFinding
from rivertwice.reconcile.recorded import check_emitted, check_order, check_updates
from rivertwice.reconcile.rederive import Ranges
from rivertwice.reconcile.sieve import Done, Sieve
from rivertwice.reconcile.spread.spark_sieve import SparkSieve
from rivertwice.reconcile.verdict import judge_served, judge_stream
from rivertwice.reconcile.view import HeadView, shape_of
from rivertwice.storage import Table
from rivertwice.stream import condition_of, is_thrown, stretches_that_throw

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession


_log = logging.getLogger(__name__)
DECODED = "decoded"
"""Kind of the finding that a file of kept decoded records is not what the archive's bytes give."""


def _forked(settings: Settings, view: HeadView) -> Forked | None:
    """Return where Kafka's log forked since the head read it. The archive may have all that is judged, so no answer is not a failure."""
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
        archived = read_archived(Table(settings.archive(topic)).open(), origin.topic_id)
        try:
            return bool(observe_archive_forks(settings, origin, archived))
        except ServiceError as error:
            _log.warning("whether Kafka has the records of the archive of %s is not known: %s", topic, error)
            return False

    def holds_others(part: Part, pair: tuple[int, int]) -> bool:
        return any(intersect({part: pair}, read) for read in log.from_kafka) or archive_forked(part.topic)

    return holds_others


def judge_head(
    spark: SparkSession,
    settings: Settings,
    view: HeadView,
    done: Done,
    wanted: tuple[int, int] | None = None,
    whole_run: int | None = None,
) -> JudgedHead:
    """Return what the log says of the windows that a view judges.

    Windows over whose records the SQL throws are NOT_COMPARABLE; all others are judged as ever.

    `wanted` are the starts of the requested windows (epoch ms, half-open); where executors judge, they leave out others.
    `whole_run` is the number of a whole run, which may read what is kept decoded (`DerivedLog`).
    """
    try:
        return _judge_head(spark, settings, view, done, wanted, whole_run=whole_run)
    except PySparkException as error:
        if not is_thrown(str(error)):
            raise
        done("judge", "the SQL throws; the windows over which it does are looked for")
        thrown = _find_thrown(spark, settings, view, condition_of(str(error)))
        if not thrown:
            raise
    done("judge", "; ".join(each.reason for each in thrown))
    return _judge_head(spark, settings, view, done, wanted, thrown, whole_run)


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
    whole_run: int | None = None,
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
        pieces=view.pieces(ranges),
        barred=barred,
        whole_run=whole_run,
    )


def _judge_head(
    spark: SparkSession,
    settings: Settings,
    view: HeadView,
    done: Done,
    wanted: tuple[int, int] | None,
    thrown: Sequence[LostRecordsDoubt] = (),
    whole_run: int | None = None,
) -> JudgedHead:
    ranges, range_defects = observed_ranges(view)
    with _derived_log(spark, settings, view, ranges, [_range_of(each) for each in thrown], whole_run) as log:
        counts = log.counts(with_rejected=view.prefix is not None)
        forked = _forked(settings, view)
        if forked is not None and view.unread:  # each batch's digest says more, so all of it is read
            return _judge_head(spark, settings, view.read_whole(), done, wanted, thrown)
        derived = rederive_ledger(
            view, ranges, range_defects, counts, log.missing, forked, _other_log(settings, view, log)
        )
        log.leave_out(derived.exchanged)
        derived = with_doubts(derived, thrown)
        read = sum(count.read for count in counts.values())
        differing = f"{read} records, {len(derived.defects)} ledger fields differ"
        done("re-derive", "; ".join([differing, *log.decoded]))
        if view.handles is not None and not derived.missing:
            sieve: Sieve = SparkSieve(spark, view, log, derived, wanted)
        else:
            sieve = Sieve(spark, view, log, derived)
        judge = sieve.judge
        part = sieve.split()
        evidence, late = gather_evidence(part.view, derived, part.judges)
        fresh = [record for record in late if view.is_new(record.batch)]
        done("recompute", part.sieved.text or f"{len(evidence.truth)} result rows, {len(fresh)} late records")
        basis, their_late = evidence_of_served(part.view, evidence, late, part.judges)
        served = gather_served(part.view, basis, derived.chain, part.judges[view.groups[-1]], their_late)
        sides = sieve.check_sides(fresh)
        pairs = sieve.pairs()
        emitted = sieve.emitted()
        without_output = judge.records_without_output()
        updates = check_updates(part.view, judge)
        done("account", f"{sum(sides.dead_counts.values())} dead letters, {len(pairs)} counts")
    verdicts = judge_stream(evidence) + ([] if served is None else judge_served(basis, served))
    findings = [*derived.findings, *view.contradicted, *sides.findings, *updates, *_altered(log.altered)]
    findings += [*check_emitted(view, emitted), *part.findings]
    findings += [
        *check_publications(view.publications, view.copies.plans),
        *find_served_differences(part.view, evidence.shape, derived.chain, verdicts),
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
        dead=sides.dead,
        dead_counts=sides.dead_counts,
        pairs=pairs,
        without_output=without_output,
        can_increment=judge.can_increment(shape_of(view.newest.definition)),
        sieved=part.sieved,
        decoded=log.decoded,
    )


def _altered(files: Mapping[Path, str]) -> list[DefectFinding]:
    """Return a finding for each file of kept records that does not agree with the archive. Pure."""
    return [
        DefectFinding(
            DECODED,
            f"{path}, which is kept decoded of the archive, was altered ({how}), so the bytes were decoded instead; this run is right, and "
            f"a backfill that read it may not be; remove it, and it is made again of the bytes: `rm {shlex.quote(str(path))}`",
        )
        for path, how in sorted(files.items())
    ]
