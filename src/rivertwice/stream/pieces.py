"""Side rows of a micro-batch, collected by the driver in pieces of bounded size, however large the records are.

Spark collects a whole result at once, and refuses one above `spark.driver.maxResultSize`: a batch with 1,100 dead letters of
1 MB could then never be committed. So a first piece has every row, without the content of the rows that are too large for their
number. Further pieces read only these rows, by address. A batch of ordinary records is one piece, and costs one job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.log import OffsetRanges, Parts, count, drop_empty, of_topic, parts_of, plan_chunks

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
        content: the columns that may be large: strings, binaries, headers.
        rows: the largest possible number of rows; None: every offset may have some.
        per_offset: how many rows an offset can have.
        at: the columns with partition and offset.
        bounds: the bounds of a piece; None takes those of the session. A single larger record is a separate piece.
    """
    non_empty = drop_empty(ranges)
    most_rows = (bounds or BOUNDS).rows
    at_most = count(non_empty) * per_offset if rows is None else rows
    parts = [non_empty] if at_most <= most_rows else plan_chunks(non_empty, max(1, most_rows // per_offset))
    for part in parts:
        frame = select(part)
        most = (bounds or bounds_of(frame.sparkSession)).content
        limit = most // max(1, min(at_most, count(part) * per_offset))
        table = _shortened(frame, content, limit).toArrow()
        small = pc.less_equal(table[SIZE], limit)
        yield table.filter(small).drop_columns([SIZE])
        for hull in plan_large(table.filter(pc.invert(small)), at, most):
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
        ranges: offset ranges, of these topics or of more.
        content: the columns that may be large.
        rows: topic to its largest possible number of rows; None: every offset may have some. No other topic is read.
    """
    for topic in sorted(rows):

        def select_part(part: OffsetRanges, topic: str = topic) -> DataFrame:
            return select(topic, parts_of(topic, part))

        yield from read_pieces(select_part, of_topic(ranges, topic), content, rows=rows[topic], per_offset=per_offset)


def _shortened(frame: DataFrame, content: Sequence[str], limit: int) -> DataFrame:
    """Return all rows with their size; rows above the limit are without their content."""
    sized = frame.withColumn(SIZE, _size(frame, content))
    columns = [
        F.when(F.col(SIZE) <= limit, F.col(name)).alias(name) if name in content else F.col(name)
        for name in sized.columns
    ]
    return sized.select(*columns)


def bounds_of(spark: SparkSession) -> Bounds:
    """Return how large a piece may be in a session: a quarter of what Spark collects at once, if that is less than `BOUNDS`."""
    limit = int(
        spark._jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(  # type: ignore[union-attr]
            spark.sparkContext.getConf().get("spark.driver.maxResultSize", "1g")
        )
    )
    return replace(BOUNDS, content=min(BOUNDS.content, limit // 4)) if limit else BOUNDS


def plan_large(rows: pa.Table, at: tuple[str, str], limit: int) -> list[OffsetRanges]:
    """Cut rows (columns `at`, `_size`) into successive groups of at most `limit` bytes; return the ranges around each.

    Rows of one offset stay together, because a range cannot separate them. Pure.
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
