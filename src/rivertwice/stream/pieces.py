"""Side rows of a micro-batch, brought to the driver in pieces of bounded size, however large the records are.

Spark collects a result whole, and refuses one above `spark.driver.maxResultSize`: a batch with 1,100 dead letters of 1 MB
could then never be committed. So a first piece brings every row, without the content of those that are too large for their
number; further pieces read just these, by address. A batch of ordinary records is one piece, as it costs one job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.log.addresses import OffsetRanges, Parts, count, drop_empty, of_topic, parts_of, plan_chunks

SIZE = "_size"
Select = Callable[[OffsetRanges], DataFrame]


@dataclass(frozen=True)
class Bounds:
    """How large a piece may be: rows, and bytes of their content."""

    rows: int = 100_000
    content: int = 128 * 1024 * 1024


BOUNDS = Bounds()


def read_pieces(
    select: Select,
    ranges: OffsetRanges,
    content: Sequence[str],
    *,
    rows: int | None = None,
    per_offset: int = 1,
    at: tuple[str, str] = ("partition", "offset"),
    bounds: Bounds | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows of one topic's ranges piece by piece; together exactly `select(ranges)`.

    Args:
        select: gives the rows of any ranges.
        ranges: offset ranges by partition.
        content: the columns that may be large: strings, binaries, headers.
        rows: how many there are at most; None: every offset may have some.
        per_offset: how many rows an offset can have.
        at: the columns that hold partition and offset.
        bounds: of a piece, else as the session allows; a single larger record is a piece of its own.
    """
    held = drop_empty(ranges)
    most_rows = (bounds or BOUNDS).rows
    at_most = count(held) * per_offset if rows is None else rows
    parts = [held] if at_most <= most_rows else plan_chunks(held, max(1, most_rows // per_offset))
    for part in parts:
        frame = select(part)
        most = (bounds or bounds_of(frame.sparkSession)).content
        limit = most // max(1, min(at_most, count(part) * per_offset))
        found = _shortened(frame, content, limit).toArrow()
        small = pc.less_equal(found[SIZE], limit)
        yield found.filter(small).drop_columns([SIZE])
        for hull in plan_large(found.filter(pc.invert(small)), at, most):
            large = select(hull)
            yield large.where(_size(large, content) > limit).toArrow()


def read_topics(
    select: Callable[[str, Parts], DataFrame],
    ranges: Parts,
    content: Sequence[str],
    rows: Mapping[str, int | None],
    *,
    per_offset: int = 1,
) -> Iterator[pa.Table]:
    """Yield the rows of some topics' ranges, topic after topic, each as `read_pieces` does.

    Args:
        select: gives the rows of any ranges of a topic.
        ranges: offset ranges, of these topics or of more.
        content: the columns that may be large.
        rows: topic to how many rows there are at most, None: every offset may have some; no other topic is read.
        per_offset: how many rows an offset can have.
    """
    for topic in sorted(rows):

        def select_part(part: OffsetRanges, topic: str = topic) -> DataFrame:
            return select(topic, parts_of(topic, part))

        yield from read_pieces(select_part, of_topic(ranges, topic), content, rows=rows[topic], per_offset=per_offset)


def _shortened(frame: DataFrame, content: Sequence[str], limit: int) -> DataFrame:
    """Return all rows with their size; of those above the limit without the content."""
    sized = frame.withColumn(SIZE, _size(frame, content))
    kept = [
        F.when(F.col(SIZE) <= limit, F.col(name)).alias(name) if name in content else F.col(name)
        for name in sized.columns
    ]
    return sized.select(*kept)


def bounds_of(spark: SparkSession) -> Bounds:
    """Return how large a piece may be in a session: a quarter of what Spark collects at once, if that is less than usual."""
    limit = int(
        spark._jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(  # type: ignore[union-attr]
            spark.sparkContext.getConf().get("spark.driver.maxResultSize", "1g")
        )
    )
    return replace(BOUNDS, content=min(BOUNDS.content, limit // 4)) if limit else BOUNDS


def plan_large(rows: pa.Table, at: tuple[str, str], limit: int) -> list[OffsetRanges]:
    """Cut rows (columns `at`, `_size`) into successive groups of at most `limit` bytes; return the ranges around each.

    Rows of one offset stay together, for a range cannot tell them apart. Pure.
    """
    sizes: dict[tuple[int, int], int] = {}
    for partition, offset, size in zip(*(rows[name].to_pylist() for name in (*at, SIZE)), strict=True):
        sizes[partition, offset] = sizes.get((partition, offset), 0) + size
    groups: list[OffsetRanges] = []
    room = -1
    for (partition, offset), size in sorted(sizes.items()):
        if size > room:
            groups.append({})
            room = limit
        start, _ = groups[-1].get(partition, (offset, offset))
        groups[-1][partition] = (start, offset + 1)
        room -= size
    return groups


def _size(frame: DataFrame, content: Sequence[str]) -> Column:
    total = F.lit(0).cast("bigint")
    for name in content:
        is_headers = frame.schema[name].dataType.typeName() == "array"
        total = total + F.coalesce(_headers_size(name) if is_headers else F.octet_length(name), F.lit(0))
    return total


def _headers_size(name: str) -> Column:
    def add(total: Column, header: Column) -> Column:
        value = F.coalesce(F.octet_length(header["value"]), F.lit(0))
        return total + F.coalesce(F.octet_length(header["key"]), F.lit(0)) + value + F.lit(8)

    return F.aggregate(name, F.lit(0).cast("bigint"), add)
