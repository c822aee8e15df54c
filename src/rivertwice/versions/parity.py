"""The parity gate: what two versions of a pipeline serve, compared by window and key; every difference needs a cause.

1. Both sides must be proved: the seal of a reconcile says that each row that a version serves is what its stream or a publication made
of the log, with a cause where that is not the truth. Windows that both proofs cover are compared.
2. Rows that are equal, or differ as the change file declares, are done.
3. The windows of the others are computed from the log by both definitions, in batch. A row whose two results are equal there, or
differ as declared, differs in what is served only by late records that one of the streams did not count. Any other has no cause.

Where the two definitions have no rows in common, that is the result, and nothing else is looked at (`definition.upgrade`).

Spark compares. The driver gets counts, a few examples, and the starts of windows with a difference that is not declared.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from rivertwice.backfill import RetainedLog, find_unfinished_load
from rivertwice.core import DefinitionError, PipelineHome, Progress, Settings, from_ms, iso_of_ms
from rivertwice.definition import RECORD, SOURCE, Bundle, Definition, Way, WayKind, decide_way, load_bundle
from rivertwice.engine import Spark, offset_of, partition_of, result_schema
from rivertwice.storage import Table, TableFiles
from rivertwice.timeline import FirstLoad, Timeline, follow_stamp, head
from rivertwice.versions.begin import require_version, way_of
from rivertwice.versions.changes import ColumnsChange, Declared, columns_between, read_changes, undeclared_columns
from rivertwice.versions.explained import Explained, Unexplained, explain_folds, explain_sessions, explain_windows
from rivertwice.versions.model import GONE, ExcludedWindows, Parity, Proof
from rivertwice.versions.proof import read_proof
from rivertwice.versions.try_compare import count_judged, find_examples, judge_rows, kept
from rivertwice.versions.try_model import Comparison, Expected, SchemaChange, compare_schemas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The rows that the proofs of two versions cover.

_MS = timedelta(milliseconds=1)


def covered_until(definition: Definition, proofs: Sequence[Proof]) -> int:
    """Return up to which end (epoch ms) windows are compared.

    A session that ends in the gap before the watermark may still be joined by a record, so it is compared later.
    """
    until_ms = min(proof.until_ms for proof in proofs)
    return until_ms if definition.session_keys is None else until_ms - definition.window.length // _MS


def is_by_record(definition: Definition) -> bool:
    """Say whether a row belongs to a record, as those of a fold do: no watermark says that it is final."""
    return RECORD in definition.row_keys


def describe_cover(definition: Definition, until_ms: int) -> str:
    """Return in words what is compared. Pure."""
    if is_by_record(definition):
        return "rows of the records that both versions have read"
    return f"windows that end at or before {iso_of_ms(until_ms)}"


def covered_rows(rows: DataFrame, definition: Definition, since_ms: int | None, proofs: Sequence[Proof]) -> DataFrame:
    """Return the rows of a result that both proofs cover.

    Args:
        since_ms: windows that start earlier are left out; None: none is.
    """
    if is_by_record(definition):
        return rows.where(_below(definition, common_ends([proof.end_offsets for proof in proofs])))
    window = definition.window
    rows = rows.where(F.unix_millis(window.end_column) <= F.lit(covered_until(definition, proofs)))
    return rows if since_ms is None else rows.where(F.unix_millis(window.start_column) >= F.lit(since_ms))


def common_ends(ends: Sequence[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Return topic to partition to the offset up to which all have read. Pure."""
    return {
        topic: {
            partition: min(each.get(topic, {}).get(partition, 0) for each in ends)
            for partition in sorted({partition for each in ends for partition in each.get(topic, {})})
        }
        for topic in sorted({topic for each in ends for topic in each})
    }


def _below(definition: Definition, ends: Mapping[str, Mapping[str, int]]) -> Column:
    """Return whether the event of a fold's row is among the records that both have read."""
    place = F.col(RECORD)
    parts = []
    for view, source in definition.sources.items():
        own = F.col(SOURCE) == view if SOURCE in definition.row_keys else F.lit(True)
        for partition, end in ends.get(source.topic, {}).items():
            parts.append(own & (partition_of(place) == F.lit(int(partition))) & (offset_of(place) < F.lit(end)))
    return functools.reduce(operator.or_, parts, F.lit(False))


# Undeclared differences between two versions: whether late records are the cause, or no cause can be known.
#
# Their windows are computed from the log by both definitions, in batch, where a late record counts like any other.


def explain_rows(case: Unexplained, settings: Settings, name: str) -> Explained:
    """Find the rows that differ by late records alone, and those that cannot be compared; `name` is the version that serves.

    Raises:
        LogGapError: a record that a window needs is in neither Kafka nor the archive.
    """
    if any(not each.has_lone_windows for each in case.definitions):
        return explain_folds(case)
    log = RetainedLog.observe(settings, name, case.bundles[0]).without_unknown()
    return explain_windows(case, log) if log.view.sessions is None else explain_sessions(case, log)


@dataclass(frozen=True)
class _Side:
    """A version's home, its definition, and what it serves."""

    home: PipelineHome
    bundle: Bundle
    rows: DataFrame


def compare_versions(settings: Settings, name: str, spark: Spark, progress: Progress, *, limit: int = 20) -> Parity:
    """Compare what a version serves with what the version beside it serves; `comparisons` stores the result.

    Args:
        name: of the new version.
        spark: gives a session; not called if a proof is missing, or if no row of one version has a counterpart in the other.
        limit: examples that are returned at most.

    Raises:
        RequestError: there is no such version.
        DefinitionError: the change file cannot be accepted.
        LogGapError: a record that a window needs is in neither Kafka nor the archive.
    """
    version = require_version(settings, name)
    declared = read_changes(settings, name)
    serving = follow_stamp(settings.pipeline(name))
    beside = version.beside if serving == name else serving
    homes = settings.pipeline(beside), settings.pipeline(name)
    proofs = read_proof(homes[0]), read_proof(homes[1])
    unfinished = find_unfinished_load(homes[1])
    way = way_of(settings, version, beside)
    reasons = find_missing(proofs, None if unfinished is None else unfinished.text)
    nothing = Comparison(0, 0)
    parity = Parity(
        name, beside, declared.sha256, None, None, proofs, SchemaChange(), nothing, 0, (), reasons,
        reason=declared.changes.reason, expected=declared.changes.expected(),
    )  # fmt: skip
    if way.kind == WayKind.ACCEPTED:
        return _incomparable(parity, way)
    return parity if reasons else _judge(settings, parity, homes, declared, spark(), progress, limit)


def _incomparable(parity: Parity, way: Way) -> Parity:
    """Return the result where no row of one version has a counterpart in the other."""
    return replace(parity, different=way.reasons, reasons=(way.explain_accepted(parity.version),))


def find_missing(proofs: Sequence[Proof], unfinished: str | None) -> tuple[str, ...]:
    """Return why two versions cannot be compared yet, one sentence each; empty: they can. Pure.

    Args:
        unfinished: why the first load of the new version is not done; None: it is, or there is none.
    """
    reasons = tuple(proof.lacks for proof in proofs if proof.lacks)
    return reasons if unfinished is None else (*reasons, unfinished)


def _judge(
    settings: Settings,
    parity: Parity,
    homes: tuple[PipelineHome, PipelineHome],
    declared: Declared,
    spark: SparkSession,
    progress: Progress,
    limit: int,
) -> Parity:
    """Compare all that both proofs cover."""
    old, new = (_served(spark, settings, home) for home in homes)
    schema = _schema_change(old, new)
    way = decide_way(old.bundle.definition, new.bundle.definition, schema.types)  # only Spark knows a query's types
    if way.kind == WayKind.ACCEPTED:
        return replace(_incomparable(parity, way), schema=schema)
    load = FirstLoad.load(new.home)
    since_ms = None if load is None else load.since_ms
    until_ms = covered_until(new.bundle.definition, parity.proofs)
    left_out = [] if since_ms is None else _older_windows(old, since_ms)
    progress(f"{describe_cover(new.bundle.definition, until_ms)} are compared ...")
    definitions = old.bundle.definition, new.bundle.definition
    old_rows, new_rows = (
        covered_rows(side.rows, side.bundle.definition, since_ms, parity.proofs) for side in (old, new)
    )
    expected = parity.expected
    try:
        judged = judge_rows(old_rows, new_rows, *definitions, expected)
    except PySparkException as error:
        raise DefinitionError(_bad_predicate(declared, error)) from None
    late = 0
    with kept(judged):
        rows = count_judged(judged, old_rows, new_rows, *definitions, len(expected))
        if rows.differing:
            bundles = old.bundle, new.bundle
            case = Unexplained(spark, bundles, judged, expected, rows.differing, progress)
            explained = explain_rows(case, settings, old.home.root.name)
            late, left_out = explained.late, [*left_out, *explained.left_out]
            rows = _without(rows, explained)
            if explained.rest is not None and rows.differing:
                rows = replace(rows, examples=find_examples(explained.rest, *definitions, limit))
    return replace(
        parity,
        start=None if since_ms is None else from_ms(since_ms),
        end=from_ms(until_ms),
        by_record=is_by_record(new.bundle.definition),
        schema=schema,
        rows=rows,
        late=late,
        left_out=tuple(left_out),
        reasons=find_refusals(rows, schema, columns_between(*definitions, declared.changes.columns)),
        warnings=_warnings(rows, expected),
    )


def _served(spark: SparkSession, settings: Settings, home: PipelineHome) -> _Side:
    name = head(home)
    assert name is not None, "it is proved, so it ran"
    bundle = load_bundle(home.bundles, Timeline.load(home, name).bundle)
    schema = StructType(list(result_schema(spark, bundle.definition).fields))
    table = Table(home.tables.served).open()
    if table is None:
        return _Side(home, bundle, spark.createDataFrame([], schema))
    return _Side(home, bundle, TableFiles(table).frame(spark, schema, settings.home / "cache"))


def _schema_change(old: _Side, new: _Side) -> SchemaChange:
    """Return how the columns of two results differ, except for those of the window, whose names do not matter."""
    kinds = []
    for side in (old, new):
        window = side.bundle.definition.window
        own = (field for field in side.rows.schema if field.name not in (window.start_column, window.end_column))
        kinds.append({field.name: field.dataType.simpleString() for field in own})
    return compare_schemas(*kinds)


def _older_windows(old: _Side, since_ms: int) -> list[ExcludedWindows]:
    """Return the windows that the old version serves and that begin before the new version's first one."""
    start = F.unix_millis(old.bundle.definition.window.start_column)
    before = old.rows.where(start < F.lit(since_ms)).select(start.alias("start"))
    (row,) = before.agg(F.count_distinct("start"), F.min("start"), F.max("start")).collect()
    return [ExcludedWindows(from_ms(row[1]), from_ms(row[2] + 1), row[0], GONE)] if row[0] else []


def _without(rows: Comparison, explained: Explained) -> Comparison:
    """Return the counts without the rows that have a cause, or cannot have one."""
    return replace(
        rows,
        changed=explained.changed,
        only_new=explained.only_new,
        only_old=explained.only_old,
        repeated=explained.repeated,
    )


def find_refusals(rows: Comparison, schema: SchemaChange, columns: ColumnsChange) -> tuple[str, ...]:
    """Return why a version may not serve after the comparison, one sentence each; empty: it may. Pure.

    Args:
        rows: counts; differences without a cause are those that are left.
        columns: those that are meant to differ.
    """
    reasons = list(undeclared_columns(schema, columns))
    if rows.differing:
        reasons.append(
            "1 row differs without a cause" if rows.differing == 1 else f"{rows.differing} rows differ without a cause"
        )
    if not rows.old_rows and not rows.new_rows:
        reasons.append("no window was compared: neither version serves one that both proofs cover")
    return tuple(reasons)


def _warnings(rows: Comparison, expected: Sequence[Expected]) -> tuple[str, ...]:
    counts = zip(expected, rows.declared, strict=True)
    return tuple(f"no row differs as declared by: {rule.reason}" for rule, count in counts if not count)


def _bad_predicate(declared: Declared, error: PySparkException) -> str:
    return (
        f"{declared.path}: a `where` is not a condition over old, new, the keys, window_start and window_end: "
        f"{str(error).splitlines()[0][:300]}; correct it"
    )
