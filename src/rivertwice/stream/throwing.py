"""On which record of a micro-batch the transform's SQL throws although no record makes it throw alone, as a sum that overflows.

(A record that does is a dead letter, see `engine.row_errors`.) No row of the batch is committed. Its records are read
again, and the transform is run over the first half, a quarter, ... of them until one more record
makes the difference: about 17 runs for a batch of 100,000, only while a failure is handled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from rivertwice.core import RivertwiceError, Settings
from rivertwice.definition import Definition, DefinitionFiles
from rivertwice.engine import accepted, compile_sources
from rivertwice.log import Part, Parts
from rivertwice.stream.checkpoint import read_planned, start_offsets
from rivertwice.stream.failures import ANEW, CARRY_ON, VERSION, condition_of, describe_way, is_thrown
from rivertwice.stream.result_rows import DriverContext
from rivertwice.stream.side import read_again
from rivertwice.timeline import merged, parts_between

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)


def explain_throw(
    spark: SparkSession, settings: Settings, context: DriverContext, batch: int, error: BaseException
) -> str | None:
    """Return on which record of a batch the transform throws, and what to do; None if the batch failed for another reason.

    It never raises for what it reads, because it is called while a failure is handled.

    Args:
        spark: the driver's session; its query has ended.
    """
    text = str(error)
    if not is_thrown(text):
        return None
    try:
        planned = read_planned(context.checkpoint, batch)
        if planned is None:
            return None
        parts = parts_between(start_offsets(context.checkpoint, batch), planned.end_offsets)
        culprit = find_last(parts, lambda subset: _throws(spark, settings, context, subset))
    except (RivertwiceError, PySparkException, Py4JError, OSError, ValueError) as failed:
        _log.warning("which record the transform threw on is not known: %s", failed)
        return None
    way = choose_way(
        context.definition,
        has_state=context.timeline.parent is not None or batch > context.timeline.first_batch,
        alone=culprit is not None,
    )
    return describe_throw(context.definition.name, batch, parts, culprit, condition_of(text), way)


def choose_way(definition: Definition, *, has_state: bool, alone: bool) -> str:
    """Return how a stream continues whose SQL throws. Pure.

    Args:
        has_state: a batch of its timeline, or of the one that it left, is committed.
        alone: the batch's own records throw, without the state of earlier ones.
    """
    if not has_state:
        return ANEW
    may_choose = definition.window.kind.find_upgrade_obstacle(chooses_records=True) is None
    return CARRY_ON if alone and may_choose else VERSION


def find_last(parts: Parts, throws: Callable[[Parts], bool]) -> tuple[Part, int] | None:
    """Return the address of the record that makes the difference: without it and the ones after it the transform does not throw.

    Args:
        parts: half-open offset ranges of the batch; its records are taken in their order.

    Returns:
        part and offset; None if not even all records together make it throw, for instance if the state is the cause.
    """
    if not throws(parts):
        return None
    low, high = 0, sum(end - start for start, end in parts.values())  # the first `low` records are fine
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if throws(first_records(parts, middle)) else (middle, high)
    part, (_, end) = list(first_records(parts, high).items())[-1]
    return part, end - 1


def first_records(parts: Mapping[Part, tuple[int, int]], count: int) -> Parts:
    """Return the ranges of the first `count` records of `parts`, part by part; empty ranges are left out. Pure."""
    first: Parts = {}
    for part, (start, end) in parts.items():
        taken = min(count, end - start)
        count -= taken
        if taken > 0:
            first[part] = (start, start + taken)
    return first


def describe_throw(
    name: str, batch: int, parts: Parts, culprit: tuple[Part, int] | None, condition: str, way: str
) -> str:
    """Return what happened, to which record, and what to do (`choose_way`). Pure."""
    if culprit is None:
        ranges = ", ".join(
            f"{part.topic}/{part.partition}@{start}..{end - 1}" for part, (start, end) in parts.items() if end > start
        )
        where = f"on the records {ranges} together with the state of earlier ones"
    else:
        (topic, partition), offset = culprit
        where = f"on the record {topic}/{partition}@{offset}, after those before it in the batch,"
    return (
        f"{DefinitionFiles.TRANSFORM_FILE} of {name} throws {where} with {condition} Batch {batch} was not committed, and each start "
        f"will fail here. {describe_way(name, way)}"
    )


def _throws(spark: SparkSession, settings: Settings, context: DriverContext, parts: Parts) -> bool:
    definition = context.definition
    rows = {
        view: accepted(read_again(spark, settings, context.timeline, definition, source.topic, parts), source)
        for view, source in definition.sources.items()
    }
    return throws_over(spark, definition, rows)


def throws_over(spark: SparkSession, definition: Definition, rows: Mapping[str, DataFrame]) -> bool:
    """Say whether the SQL throws over accepted rows of each view; no row of the result is kept."""
    try:
        compile_sources(spark, definition, rows).write.format("noop").mode("overwrite").save()
    except PySparkException as error:
        if not is_thrown(str(error)):
            raise
        return True
    return False


def stretches_that_throw(
    spark: SparkSession, definition: Definition, rows: Mapping[str, DataFrame], start_ms: int, end_ms: int
) -> list[tuple[int, int]]:
    """Return the half-open ranges of event time (epoch ms) over whose records the SQL throws, sorted.

    About twenty runs for each, and only after a run has failed. Windows without records of these ranges can be computed.

    Args:
        rows: view to accepted rows.
    """

    def throws(low: int, high: int) -> bool:
        inside = {
            view: rows[view]
            if source.is_table
            else rows[view].where(F.unix_millis(source.event_time).between(low, high - 1))
            for view, source in definition.sources.items()
        }
        return throws_over(spark, definition, inside)

    window = definition.window
    size, step = (span // timedelta(milliseconds=1) for span in (window.length, window.step))
    return find_stretches(
        start_ms // step * step, end_ms, size - step if window.kind.is_aligned else size, step, throws
    )


def find_stretches(
    start_ms: int, end_ms: int, reach_ms: int, step_ms: int, throws: Callable[[int, int], bool]
) -> list[tuple[int, int]]:
    """Return the shortest ranges within a half-open one over which the SQL throws, sorted, none touching another.

    Args:
        start_ms: where to look from (epoch ms).
        reach_ms: how far a window reaches beyond the step in which it begins.
        step_ms: ranges begin at multiples of it, as windows do.
        throws: says whether the SQL throws over the records of a half-open range.
    """
    if not throws(start_ms, end_ms):
        return []
    middle = (start_ms + end_ms) // 2 // step_ms * step_ms
    if middle <= start_ms or middle + reach_ms >= end_ms:
        return [(start_ms, end_ms)]
    # A window begins before the middle, or at it or later.
    first = find_stretches(start_ms, middle + reach_ms, reach_ms, step_ms, throws)
    second = find_stretches(middle, end_ms, reach_ms, step_ms, throws)
    return merged([*first, *second]) or [(start_ms, end_ms)]
