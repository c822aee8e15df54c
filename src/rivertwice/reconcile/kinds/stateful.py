"""The rule of folds: no record is late, and the stream must have emitted the same fold over the log in the ledger's order.

The order of a key's events is (batch, source, partition, offset), because the stream read them in this order. For a key in
one partition it is the order of the log, however batches were cut. For a key in several partitions, of one topic or of
several, another cut gives another order, and perhaps other rows. The stream is held to the order that it had (a difference is
a DEFECT). But no order is the true one, so its rows are NOT_COMPARABLE.

A definition may say (`order: any`) that the newest row of a key does not depend on that order, as in a view of two tables.
Then every recompute must give that row: the keys are folded twice more, in other orders, and the newest row AGREES if all
orders give it. If they do not, the key is named in a finding. The rows before it stay NOT_COMPARABLE: they are history, which
another order does not have.

If the log was whole, a row differs from the batch run only by what an accepted gap left out: after a record that no batch
read, no row of its key is certain.
"""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.core import RequestError
from rivertwice.definition import PARTITION_SHIFT, RECORD, SOURCE, Definition
from rivertwice.engine import (
    AS_READ,
    NUMBER,
    find_hanging,
    fold_otherwise,
    numbered_fold,
    packed,
    record_column,
    select_newest,
    spread_keys,
)
from rivertwice.log import Part
from rivertwice.reconcile.evidence import Evidence, ServedEvidence, StatefulEvidence
from rivertwice.reconcile.frames import addresses
from rivertwice.reconcile.gaps import GAP_INDEX, LostRecordEffects, SkippedRange, without_end
from rivertwice.reconcile.kinds.fixed_windows import claimed_windows
from rivertwice.reconcile.kinds.judge import Judge
from rivertwice.reconcile.kinds.read_rows import is_read
from rivertwice.reconcile.kinds.tumbling_hopping import WindowJudge
from rivertwice.reconcile.model import OrderDependentRows, PairCount, RowColumns, RowId
from rivertwice.reconcile.rederive import Chain, Ranges
from rivertwice.reconcile.view import Served

_OFFSET = (1 << PARTITION_SHIFT) - 1
_BEFORE_ALL = -1
_DEPENDS = "the newest row of its key depends on the order"
_OLDER = "an older row of its key, which another order need not have"
_GONE = "its key is gone in every order, but the last row of it is another"
_Record = tuple[str, int]
"""(view, place in its topic)."""


class StatefulJudge(Judge):
    """The accepted rows of a path, folded key by key."""

    def __init__(
        self,
        spark: SparkSession,
        definition: Definition,
        rows: Mapping[str, DataFrame],
        jumps: Sequence[SkippedRange] = (),
    ) -> None:
        """Take view to accepted rows with `_index`, `_late_ms` and `_group`, and the accepted gaps of the path."""
        self._spark = spark
        self._definition = definition
        self._rows = {
            view: rows[view].withColumn("_order", _order(source.topic, jumps))
            for view, source in definition.sources.items()
        }
        self._sides = {view: WindowJudge(spark, definition, rows[view], view) for view in definition.sources}
        skipped = {view: view_rows.where(F.col("_index") == GAP_INDEX) for view, view_rows in self._rows.items()}
        self._skipped: pa.Table = packed(definition, skipped).select("_key").distinct().toArrow()
        self._read = packed(
            definition, {view: view_rows.where(is_read()) for view, view_rows in self._rows.items()}, "_order"
        )

    def truth(self, definition: Definition) -> pa.Table:
        """Return the batch result over all accepted rows; records that no batch read come before the batch after them."""
        return (self._whole if self._skipped.num_rows else self._expected).drop_columns([NUMBER])

    def expected(self, definition: Definition) -> pa.Table:
        """Return what the stream must emit: the fold over what it read, in the order in which it did."""
        return self._expected.drop_columns([NUMBER])

    @functools.cached_property
    def _expected(self) -> pa.Table:
        return numbered_fold(self._definition, self._read, "_order").toArrow()

    @functools.cached_property
    def _whole(self) -> pa.Table:
        return numbered_fold(self._definition, packed(self._definition, self._rows, "_order"), "_order").toArrow()

    def is_due(self, row: RowId, index: int, chain: Chain, ranges: Sequence[Ranges]) -> bool:
        """Say whether a batch read the record that a row comes from: that one emits it."""
        del chain
        return is_read_by(row, self._definition, ranges[index])

    def widen(self, doubts: LostRecordEffects) -> LostRecordEffects:
        """Return the doubts without an end: no later row of a lost record's key is certain."""
        return without_end(doubts)

    def find_incomparable(self, shape: RowColumns, rows: Iterable[RowId], definitions: int) -> dict[int, str]:
        """Return all windows if several definitions ran: each continued with the states of the one before."""
        del shape
        if definitions == 1:
            return {}
        reason = "mixed: more than one definition made the states that the fold continued from"
        return {row.start_ms: reason for row in rows}

    def evidence(self, common: Evidence, batches: Sequence[int]) -> Evidence:
        """Return the evidence with the rows that depend on the order in which partitions were read."""
        del batches
        return common.of_kind(StatefulEvidence, order_dependent=self.order_dependent_rows(common.shape))

    def served_evidence(self, evidence: Evidence, served: Served) -> ServedEvidence:
        """Return what is served.

        Raises:
            RequestError: a publication serves other rows than the truth, and it is not known what it had to serve.
        """
        claimed, stale = claimed_windows(evidence, served)
        if stale:
            message = f"{self._definition.name} is a fold, which no publication can serve; remove the publication"
            raise RequestError(message)
        return claimed

    def count_emitted(
        self, evidence: Evidence, pairs: Sequence[PairCount], unread: LostRecordEffects, closed_ms: int
    ) -> int:
        """Return the records that the stream's rows come from; where some cannot be read, those that yield a row."""
        del closed_ms
        if unread.doubts:
            return sum(pair.rows for pair in pairs)
        return len({place_of(row, self._definition) for row in evidence.stream})

    def pairs(self, group: int | None = None) -> list[PairCount]:
        """Return the records that yielded a row, counted by partition, whatever state the row was made of."""
        del group
        counted = Counter((view, record >> PARTITION_SHIFT) for view, record in self._records_with_output)
        return [PairCount(self._part(view, number), 0, False, rows) for (view, number), rows in counted.items()]

    def records_without_output(self) -> dict[Part, int]:
        """Return by part the records that were folded and yielded no row."""
        record = record_column(F.col("_partition"), F.col("_offset"))
        by_part: dict[Part, int] = {}
        for view, rows in self._rows.items():
            with_output = (place for record_view, place in self._records_with_output if record_view == view)
            places = self._spark.createDataFrame(pa.table({RECORD: pa.array(sorted(with_output), pa.int64())}))
            without_output = rows.where(is_read()).select("_partition", record).join(places, RECORD, "left_anti")
            table = without_output.groupBy("_partition").agg(F.count(F.lit(1)).alias("rows")).toArrow()
            by_part |= {self._part(view, row["_partition"]): row["rows"] for row in table.to_pylist()}
        return by_part

    def order_dependent_rows(self, shape: RowColumns) -> OrderDependentRows:
        """Return the rows of keys in several partitions, without newest rows that are the same in other orders too."""
        why = self._spread
        if not why:
            return OrderDependentRows()
        rows: dict[RowId, str] = {}
        for table in (self._expected, self._whole) if self._skipped.num_rows else (self._expected,):
            named = zip(addresses(table, shape), self._records(table), strict=True)
            rows |= {row: why[record] for row, record in named if record in why}
        if self._definition.order != "any":
            return OrderDependentRows(rows)
        is_spread = pa.array([record in why for record in self._records(self._expected)], pa.bool_())
        other_orders = fold_otherwise(self._definition, self._of_spread_keys(self._read))
        return select_order_dependent(
            self._definition, shape, rows, {AS_READ: self._expected.filter(is_spread), **other_orders}
        )

    def windows_with_skipped_records(self) -> set[int]:
        """Return the starts (epoch ms) of the windows of keys with records that no batch read, but the archive has."""
        if not self._skipped.num_rows:
            return set()
        keys = F.broadcast(self._spark.createDataFrame(self._skipped))
        pairs = {view: side.all_pairs for view, side in self._sides.items()}
        touched = packed(self._definition, pairs, "_window_end").join(keys, "_key", "left_semi")
        ends = touched.select(F.unix_millis("_window_end").alias("end_ms")).distinct().toArrow()["end_ms"].to_pylist()
        size_ms = self._definition.window.length // timedelta(milliseconds=1)
        return {end_ms - size_ms for end_ms in ends}

    def touched(self, indexes: Iterable[int]) -> dict[int, set[int]]:
        """Return path index to the starts (epoch ms) of the windows that its rows touch."""
        wanted = set(indexes)
        return _joined(side.touched(wanted) for side in self._sides.values())

    def groups(self) -> dict[int, set[int]]:
        """Return window start (epoch ms) to the numbers of the definitions whose batches touched it."""
        return _joined(side.groups() for side in self._sides.values())

    @functools.cached_property
    def _records_with_output(self) -> set[_Record]:
        return set(self._records(self._expected))

    @functools.cached_property
    def _spread_keys(self) -> pa.Table:
        """The keys that are in several partitions, with these."""
        return spread_keys(packed(self._definition, self._rows)).toArrow()

    def _of_spread_keys(self, events: DataFrame) -> DataFrame:
        keys = self._spark.createDataFrame(self._spread_keys.select(["_key"]))
        return events.join(keys, "_key", "left_semi")

    @functools.cached_property
    def _spread(self) -> dict[_Record, str]:
        """Record to why the log does not give its order among others, for the records of keys in several partitions."""
        if not self._spread_keys.num_rows:
            return {}
        views = list(self._definition.sources)
        reasons = {row["_key"]: self._reason(row) for row in self._spread_keys.to_pylist()}
        events = self._of_spread_keys(packed(self._definition, self._rows))
        table = events.select("_key", "_source", record_column(F.col("_partition"), F.col("_offset"))).toArrow()
        return {(views[row["_source"]], row[RECORD]): reasons[row["_key"]] for row in table.to_pylist()}

    def _reason(self, row: Mapping[str, Any]) -> str:
        definition = self._definition
        topics, parts = definition.topics, row["_parts"]
        if definition.has_several_sources:
            places = ", ".join(f"{topics[part['_source']]}/{part['_partition']}" for part in parts)
            return f"records of the key {row['_key']} are in {places}, so their order depends on how batches were cut"
        places = ", ".join(str(part["_partition"]) for part in parts)
        return (
            f"records of the key {row['_key']} are in the partitions {places} of {topics[0]}, so "
            f"their order depends on how batches were cut; key the topic by {', '.join(definition.by)}"
        )

    def _records(self, table: pa.Table) -> list[_Record]:
        """Return the record that each row comes from."""
        records = table[RECORD].to_pylist()
        views = (
            table[SOURCE].to_pylist()
            if self._definition.has_several_sources
            else [self._definition.source[0]] * len(records)
        )
        return list(zip(views, records, strict=True))

    def _part(self, view: str, partition: int) -> Part:
        return Part(self._definition.sources[view].topic, partition)


def select_order_dependent(
    definition: Definition, shape: RowColumns, spread_rows: Mapping[RowId, str], orders: Mapping[str, pa.Table]
) -> OrderDependentRows:
    """Return the spread rows without newest rows that are the same in all orders, and the keys whose newest rows are not.

    Args:
        definition: of a fold with `order: any`.
        spread_rows: address to reason, for all rows of keys that are in several partitions.
        orders: name to the numbered rows of these keys; the order in which they were read is the first.
    """
    hanging = find_hanging(definition, orders)
    as_read = next(iter(orders.values()))
    named = addresses(as_read, shape)
    newest = {named[index]: key for key, index in select_newest(definition, as_read).items()}
    rows: dict[RowId, str] = {}
    older: set[RowId] = set()
    for row, reason in spread_rows.items():
        key = newest.get(row)
        if key is not None and key in hanging.shown:
            rows[row] = f"{_DEPENDS}: {hanging.shown[key]}"
        elif key is None or key in hanging.gone:
            rows[row] = f"{_OLDER if key is None else _GONE}: {reason}"
            older.add(row)
    return OrderDependentRows(rows, older, hanging.shown)


def _order(topic: str, jumps: Sequence[SkippedRange]) -> Column:
    """Return a number that rises in the order of reading; what an accepted gap skipped is before the batch after the gap."""
    order = F.when(is_read(), F.col("_index") * 2 + 1)
    for jump in jumps:
        for partition, (start, end) in jump.skipped.ranges.items() if jump.skipped.topic == topic else ():
            inside = (F.col("_partition") == partition) & F.col("_offset").between(start, end - 1)
            order = order.when(inside, F.lit(jump.index * 2))
    return order.otherwise(F.lit(_BEFORE_ALL))


def _joined(parts: Iterable[Mapping[int, set[int]]]) -> dict[int, set[int]]:
    joined: dict[int, set[int]] = defaultdict(set)
    for part in parts:
        for number, starts in part.items():
            joined[number] |= starts
    return dict(joined)


def place_of(row: RowId, definition: Definition) -> tuple[Part, int]:
    """Return the part and offset of the record that a fold's row comes from, by the row's address.

    A row that names no source of the definition was made by none of its records; it gets a topic of that name.
    """
    key = json.loads(row.key)
    record = int(key[RECORD])
    topic = definition.topics[0]
    if definition.has_several_sources:
        source = definition.sources.get(key[SOURCE])
        topic = str(key[SOURCE]) if source is None else source.topic
    return Part(topic, record >> PARTITION_SHIFT), record & _OFFSET


def is_read_by(row: RowId, definition: Definition, ranges: Ranges) -> bool:
    """Say whether the record that a fold's row comes from is in a batch's offset ranges."""
    part, offset = place_of(row, definition)
    start, end = ranges.get(part, (0, 0))
    return start <= offset < end
