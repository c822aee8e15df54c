"""On which record of a micro-batch the transform's SQL throws, so that a person who is paged knows what to reject.

SQL runs in ANSI mode: an overflow, a bad cast or a division by zero throws, and no row of the batch is committed. The
batch's records are read again, and the transform is run over the first half, a quarter, ... of them until one more record
makes the difference: about 17 runs for a batch of 100,000, only while a failure is handled.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from rivertwice.config import Settings
from rivertwice.errors import RivertwiceError
from rivertwice.log.addresses import Part, Parts
from rivertwice.pipeline.compile import compile_sources
from rivertwice.pipeline.files import TRANSFORM_FILE
from rivertwice.pipeline.relations import accepted
from rivertwice.stream.checkpoint import read_planned, start_offsets
from rivertwice.stream.context import DriverContext
from rivertwice.stream.failures import describe_rejection, is_thrown
from rivertwice.stream.side import read_again
from rivertwice.timeline.ledger import parts_between

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_CONDITION = re.compile(r"\[[A-Z_.]+\][^\n]*")


def explain_throw(
    spark: SparkSession, settings: Settings, context: DriverContext, batch: int, error: BaseException
) -> str | None:
    """Return on which record of a batch the transform throws, and what to do; None if the batch failed for another reason.

    It never raises for what it reads, for it is called while a failure is handled.

    Args:
        spark: the driver's session; its query has ended.
        settings: the settings of the project.
        context: the driver's context.
        batch: the micro-batch that failed.
        error: the error that made it fail.
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
    condition = _CONDITION.search(text)
    return describe_throw(context.definition.name, batch, parts, culprit, text if condition is None else condition[0])


def find_last(parts: Parts, throws: Callable[[Parts], bool]) -> tuple[Part, int] | None:
    """Return the address of the record that makes the difference: without it and the ones after it the transform does not throw.

    Args:
        parts: half-open offset ranges of the batch; its records are taken in their order.
        throws: says whether the transform throws over the records of some ranges.

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


def describe_throw(name: str, batch: int, parts: Parts, culprit: tuple[Part, int] | None, condition: str) -> str:
    """Return what happened, to which record, and what to do. Pure."""
    if culprit is None:
        ranges = ", ".join(
            f"{part.topic}/{part.partition}@{start}..{end - 1}" for part, (start, end) in parts.items() if end > start
        )
        where = f"on the records {ranges} together with the state of earlier ones"
    else:
        (topic, partition), offset = culprit
        where = f"on the record {topic}/{partition}@{offset}, after those before it in the batch,"
    return (
        f"{TRANSFORM_FILE} of {name} throws {where} with {condition} Nothing of batch {batch} is committed, and each start "
        f"will end here. {describe_rejection(name)} and start the stream again"
    )


def _throws(spark: SparkSession, settings: Settings, context: DriverContext, parts: Parts) -> bool:
    """Say whether the transform throws over the records of some ranges."""
    definition = context.definition
    rows = {
        view: accepted(read_again(spark, settings, context.timeline, definition, source.topic, parts), source)
        for view, source in definition.sources.items()
    }
    try:
        compile_sources(spark, definition, rows).toArrow()
    except PySparkException as error:
        if not is_thrown(str(error)):
            raise
        return True
    return False
