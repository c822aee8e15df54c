"""The parity gate: what two versions of a pipeline serve, compared by window and key; every difference needs a cause.

1. Both sides must be proved: the seal of a reconcile says that each row that a version serves is what its stream or a publication made
of the log, with a cause where that is not the truth. Windows that both proofs cover are compared.
2. Rows that are equal, or differ as the change file declares, are done.
3. The windows of the others are computed from the log by both definitions, in batch. A row whose two results are equal there, or
differ as declared, differs in what is served only by late records that one of the streams did not count. Any other has no cause.

Where the two definitions have no rows in common, that is the result, and nothing else is looked at (`pipeline.counterparts`).

Spark compares. The driver gets counts, a few examples, and the starts of windows with a difference that is not declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from rivertwice.backfill.load_state import find_unfinished_load
from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import DefinitionError
from rivertwice.instants import from_ms
from rivertwice.pipeline.bundle import Bundle, load_bundle
from rivertwice.pipeline.compile import result_schema
from rivertwice.pipeline.counterparts import ACCEPTED, Way, decide_way, explain_accepted
from rivertwice.pipeline.on_demand import Spark
from rivertwice.progress import Progress
from rivertwice.store.delta import open_table
from rivertwice.store.spark_files import read_files
from rivertwice.timeline.first_load import read_load
from rivertwice.timeline.lineage import load_timeline
from rivertwice.timeline.sequence import head
from rivertwice.timeline.served_stamp import follow_stamp
from rivertwice.trial.compare import count_judged, find_examples, judge_rows, kept
from rivertwice.trial.definitions import compare_schemas
from rivertwice.trial.model import Comparison, Expected, SchemaChange
from rivertwice.versions.begin import require_version, way_of
from rivertwice.versions.changes import ColumnsChange, Declared, read_changes, undeclared_columns
from rivertwice.versions.cover import covered_rows, covered_until, describe_cover, is_by_record
from rivertwice.versions.explain import explain_rows
from rivertwice.versions.explained import Explained, Unexplained
from rivertwice.versions.model import GONE, LeftOut, Parity, Proof
from rivertwice.versions.proof import read_proof

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class _Side:
    """A version's home, its definition, and what it serves."""

    home: PipelineHome
    bundle: Bundle
    rows: DataFrame


def compare_versions(settings: Settings, name: str, spark: Spark, progress: Progress, *, limit: int = 20) -> Parity:
    """Compare what a version serves with what the version beside it serves. Nothing is written: `comparisons` stores it.

    Args:
        settings: where everything is stored.
        name: of the new version.
        spark: gives a session; not called if a proof is missing, or if no row of one version has a counterpart in the other.
        progress: is passed one line per fact.
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
        reason=declared.changes.reason, expected=declared.changes.expected(), policy=declared.changes.switch,
    )  # fmt: skip
    if way.kind == ACCEPTED:
        return _incomparable(parity, way)
    return parity if reasons else _judge(settings, parity, homes, declared, spark(), progress, limit)


def _incomparable(parity: Parity, way: Way) -> Parity:
    """Return the result where no row of one version has a counterpart in the other."""
    return replace(parity, different=way.reasons, reasons=(explain_accepted(way, parity.version),))


def find_missing(proofs: Sequence[Proof], unfinished: str | None) -> tuple[str, ...]:
    """Return why two versions cannot be compared yet, one sentence each; empty: they can. Pure.

    Args:
        proofs: of both versions.
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
    if way.kind == ACCEPTED:
        return replace(_incomparable(parity, way), schema=schema)
    load = read_load(new.home)
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
            case = Unexplained(spark, settings, old.home, bundles, judged, expected, rows.differing, progress)
            explained = explain_rows(case)
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
        reasons=find_refusals(rows, schema, declared.changes.columns),
        warnings=_warnings(rows, expected),
    )


def _served(spark: SparkSession, settings: Settings, home: PipelineHome) -> _Side:
    name = head(home)
    assert name is not None, "it is proved, so it ran"
    bundle = load_bundle(home.bundles, load_timeline(home, name).bundle)
    schema = StructType(list(result_schema(spark, bundle.definition).fields))
    table = open_table(home.tables.served)
    if table is None:
        return _Side(home, bundle, spark.createDataFrame([], schema))
    return _Side(home, bundle, read_files(spark, home.tables.served, table, schema, settings.home / "cache"))


def _schema_change(old: _Side, new: _Side) -> SchemaChange:
    """Return how the columns of two results differ, but for those of the window, whose names do not matter."""
    kinds = []
    for side in (old, new):
        window = side.bundle.definition.window
        own = (field for field in side.rows.schema if field.name not in (window.start_column, window.end_column))
        kinds.append({field.name: field.dataType.simpleString() for field in own})
    return compare_schemas(*kinds)


def _older_windows(old: _Side, since_ms: int) -> list[LeftOut]:
    """Return the windows that the old version serves and that begin before the new version's first one."""
    start = F.unix_millis(old.bundle.definition.window.start_column)
    before = old.rows.where(start < F.lit(since_ms)).select(start.alias("start"))
    (row,) = before.agg(F.count_distinct("start"), F.min("start"), F.max("start")).collect()
    return [LeftOut(from_ms(row[1]), from_ms(row[2] + 1), row[0], GONE)] if row[0] else []


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
        schema: columns that differ.
        columns: those that are declared.
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
        f"{declared.path}: a `where` is no condition over old, new, the keys, window_start and window_end: "
        f"{str(error).splitlines()[0][:300]}; correct it"
    )
