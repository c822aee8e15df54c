"""Replay many recorded batches in a few of Spark's: for windows whose results do not depend on how records are cut into batches.

A recorded batch drops the rows whose window ended at or before the watermark of the batch before it, and emits the windows that end at or
before its own. The ledger has all watermarks. So one large batch over many recorded ranges drops the same rows, if each record meets the
watermark of its own batch before it reaches the state. Spark's late filter knows one watermark only, the first, which is the lowest. The
large batch emits what closed in any of its batches. A window closes in the first batch whose watermark reaches its end, so the rows fall
apart into the recorded batches, and the digest of each is compared.

A row of hopping windows can be late for some of its windows only, and Spark makes the windows after the filter. Before a batch with such a
row another large batch begins, whose own watermark drops it there.

Beside the results, the log is counted: records read, refused and accepted by each batch, their event times and their digest are those of
the ledger. Each watermark must follow from these.

The state is then that of one batch, or a few. Spark writes each as a snapshot; the last one gets the version that the last recorded batch
had, as in `state_files`. It works on a linked copy: whatever is unexpected, the copy is thrown away, and the batches are replayed one
by one.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from rivertwice.core import CheckpointError, ReplayMismatchError, Settings
from rivertwice.definition import Definition
from rivertwice.engine import HASH as RECORD_HASH
from rivertwice.engine import BatchMarks, decode_view, window_micros
from rivertwice.log import read_ranges
from rivertwice.savepoint.plan import span
from rivertwice.savepoint.state_files import name_of_version, put_text, state_files
from rivertwice.stream import partitions_of, read_planned, read_sets
from rivertwice.timeline import BatchCounts, LedgerRow, rule_of, watermarks_after

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FEWEST = 8
"""Fewer batches are replayed one by one: to count the log takes about as long as four of them."""
MOST_EACH = 10_000
"""Records of a batch, on average, up to which to read the log twice costs less than to replay its batches one by one."""
MOST_READ, MOST_EMITTED = 300_000, 100_000
"""Records and result rows of one large batch: the result is collected."""
SNAPSHOTS = {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false"}
"""With this setting each batch writes its state whole, so that its files do not name the versions before it."""
_EXACT = frozenset(
    {"Sum", "Min", "Max", "Average", "Percentile", "BoolAnd", "BoolOr", "BitAndAgg", "BitOrAgg", "BitXorAgg"}
)
_EXACT_TYPES = frozenset(
    {"byte", "short", "integer", "long", "boolean", "date", "timestamp", "timestamp_ntz", "string", "binary"}
)
_EXACT_DIGITS = 28
"""Digits of a decimal whose sum has ten more and cannot become too large on the way, in no order."""


@dataclass(frozen=True)
class Step:
    """Recorded batches that one batch of Spark replays: one, or several that follow each other.

    Attributes:
        number: of Spark's batch.
    """

    number: int
    rows: Sequence[LedgerRow]

    @property
    def last(self) -> LedgerRow:
        """The last recorded batch, at whose end Spark's batch ends."""
        return self.rows[-1]


def one_by_one(rows: Sequence[LedgerRow]) -> list[Step]:
    """Return a step for each recorded batch. Pure."""
    return [Step(row.batch, (row,)) for row in rows]


def find_obstacle(definition: Definition, functions: Set[tuple[str, str]] = frozenset()) -> str | None:
    """Return why each recorded batch of a definition needs a batch of Spark, or None. Pure.

    Args:
        functions: the aggregate functions of its transform, each with the type of its first argument (`aggregate_functions`).
    """
    window = definition.window
    if definition.has_several_sources or not window.kind.has_independent_rows:
        return f"rows of its windows ({window.text}) depend on more than the records of their own times"
    if definition.has_updates:
        return "each batch emits the windows that it changes (emit: updates)"
    for name, kind in sorted(functions):
        if not _is_exact(name, kind):
            return f"{name} of {kind} may depend on the order of the records"
    return None


def _is_exact(name: str, kind: str) -> bool:
    if name in ("Count", "CountIf"):
        return True
    if name == "Average" and kind == "long":  # Spark adds these as doubles, and they may be too large for that
        return False
    digits = re.match(r"decimal\((\d+),", kind)
    if digits is not None and name in ("Sum", "Average"):
        return int(digits[1]) <= _EXACT_DIGITS
    return name in _EXACT and (kind in _EXACT_TYPES or digits is not None)


def may_merge(definition: Definition, rows: Sequence[LedgerRow]) -> bool:
    """Say whether recorded batches may be worth it and fit, by what is known before Spark starts. Pure."""
    return find_obstacle(definition) is None and _find_unfit_sizes(rows) is None


def _find_unfit_sizes(rows: Sequence[LedgerRow]) -> str | None:
    if len(rows) < FEWEST:
        return f"they are fewer than {FEWEST}"
    if sum(row.read for row in rows) > MOST_EACH * len(rows):
        return f"they have more than {MOST_EACH} records each"
    return None


def find_unfit_rows(checkpoint: Path, rows: Sequence[LedgerRow]) -> str | None:
    """Return why these batches cannot be replayed in fewer of Spark's over a checkpoint, or None."""
    unfit = _find_unfit_sizes(rows)
    if unfit is not None:
        return unfit
    before = checkpoint / "offsets" / str(rows[0].batch - 1)
    numbers = {partitions_of(text) for text in [row.offsets_text for row in rows]}
    if len(numbers | ({partitions_of(before.read_text())} if before.exists() else set())) > 1:
        return "their state was rewritten into another number of partitions"
    committed = checkpoint / "commits" / str(rows[0].batch - 1)
    if before.exists() and not _state_ids(committed):
        return "the files of the state have no ids"
    return None


def plan_steps(rows: Sequence[LedgerRow], split_ms: Sequence[int | None], before_ms: int) -> list[Step]:
    """Return which recorded batches are replayed by one batch of Spark. Pure.

    Args:
        split_ms: for each, the last end of a window for which a row of it is late that is not late for all of its windows; None: it has none.
        before_ms: watermark of the batch before the first.
    """
    groups: list[list[LedgerRow]] = [[]]
    first_ms, read, emitted = before_ms, 0, 0
    for index, row in enumerate(rows):
        split = split_ms[index]
        too_large = row.read and (read + row.read > MOST_READ or emitted + row.emitted > MOST_EMITTED)
        if groups[-1] and (too_large or (split is not None and split > first_ms)):
            groups.append([])
            first_ms, read, emitted = rows[index - 1].batch_watermark_ms, 0, 0
        groups[-1].append(row)
        read += row.read
        emitted += row.emitted
    return [Step(rows[0].batch + number, group) for number, group in enumerate(groups)]


def split_rows(table: pa.Table, end_column: str, rows: Sequence[LedgerRow]) -> list[pa.Table]:
    """Return the result rows of each recorded batch: those of the windows that its watermark is the first to reach. Pure.

    Raises:
        ReplayMismatchError: a row's window was closed by none of the batches.
    """
    if len(rows) == 1:
        return [table]
    ends = (
        table[end_column]
        .combine_chunks()
        .cast(pa.timestamp("us", "UTC"))
        .cast(pa.int64())
        .to_numpy(zero_copy_only=False)
    )
    watermarks = np.array([row.batch_watermark_ms * 1000 for row in rows])
    index = np.searchsorted(watermarks, ends)
    if len(index) and index.max() == len(rows):
        message = (
            f"replaying batches {rows[0].batch} to {rows[-1].batch} of timeline {rows[-1].timeline} gave a row whose window none of their "
            "watermarks closed; the savepoint, the definition or the log has changed; use another savepoint and run a reconcile"
        )
        raise ReplayMismatchError(message)
    order = np.argsort(index, kind="stable")
    places = np.searchsorted(index[order], np.arange(len(rows) + 1))
    sorted_rows = table.take(pa.array(order))
    return [sorted_rows.slice(low, high - low) for low, high in itertools.pairwise(places)]


class LoggedBatches:
    """The log of recorded batches of a definition with one source, each record known by its batch."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        definition: Definition,
        checkpoint: Path,
        rows: Sequence[LedgerRow],
    ) -> None:
        """Take the batches that follow those of a checkpoint."""
        self._spark = spark
        self._settings = settings
        self._definition = definition
        self._rows = rows
        planned = read_planned(checkpoint, rows[0].batch - 1)
        self.before_ms = 0 if planned is None else planned.batch_watermark_ms
        """Watermark of the batch before the first one."""
        self._view, self._source = definition.source
        self._marks = BatchMarks.of(spark, enumerate(row.ranges(self._source.topic) for row in rows))

    def plan(self) -> list[Step]:
        """Count the log, compare it with the ledger, and return which batches one batch of Spark replays.

        Raises:
            ReplayMismatchError: a batch read other records than the log has now, or its watermark does not follow from them.
            LogGapError: neither Kafka nor the archive has all of them.
        """
        counted = {values["_index"]: values for values in self._counts().toArrow().to_pylist()}
        rule = rule_of(self._definition)
        for index, row in enumerate(self._rows):
            values = counted.get(index)
            counts = BatchCounts() if values is None else _counts_of(values)
            _require_equal(row, counts, self._source.topic)
            after = self._rows[index + 1] if index + 1 < len(self._rows) else None
            (following,) = watermarks_after(self._rows, rule, index)
            if after is not None and after.batch_watermark_ms != following:
                message = (
                    f"the ledger has the watermark {after.batch_watermark_ms} for batch {after.batch}, but {following} follows from the batch "
                    "before it"
                )
                raise ReplayMismatchError(message)
        if set(counted) - set(range(len(self._rows))):
            message = "the log has records in the ranges of the batches that belong to none of them"
            raise ReplayMismatchError(message)
        split_us = [counted.get(index, {}).get("split_us") for index in range(len(self._rows))]
        return plan_steps(self._rows, [None if us is None else -(-us // 1000) for us in split_us], self.before_ms)

    def only_in_time(self, rows: DataFrame) -> DataFrame:
        """Return those accepted rows that are in time for one of their windows at least, by the watermark of their own batch."""
        _, last = self._ends_us()
        return self._marks.tag(rows).where(last > self._late_us()).drop("_index")

    def _counts(self) -> DataFrame:
        topic = self._source.topic
        raw = read_ranges(
            self._spark, self._settings, topic, span(self._rows, topic), topic_id=self._rows[0].topic_ids[topic]
        )
        decoded = decode_view(self._definition, self._view, raw, details=False, hashed=True)
        is_good = F.col("_reason").isNull()
        event_ms = F.when(is_good, F.unix_millis(self._source.event_time))
        first, last = self._ends_us()
        late = self._late_us()
        step = F.lit(window_micros(self._definition)[1])
        is_split = is_good & (first <= late) & (last > late)
        return (
            self._marks.tag(decoded)
            .groupBy("_index")
            .agg(
                F.count(F.lit(1)).alias("read"),
                F.count("_reason").alias("bad"),
                F.min(event_ms).alias("low"),
                F.max(event_ms).alias("high"),
                F.bit_xor(RECORD_HASH).alias("digest"),
                F.max(F.when(is_split, late - F.pmod(late - first, step))).alias("split_us"),
            )
        )

    def _ends_us(self) -> tuple[Column, Column]:
        """Return the first and the last end of a record's windows."""
        size, step = window_micros(self._definition)
        event = F.unix_micros(self._source.event_time)
        first = event - F.pmod(event, F.lit(step)) + F.lit(step)
        return first, first + F.lit(size - step)

    def _late_us(self) -> Column:
        """Return the watermark by which a record is late: that of the batch before its own."""
        late = [self.before_ms, *(row.batch_watermark_ms for row in self._rows[:-1])]
        each = F.split(F.lit(",".join(str(ms * 1000) for ms in late)), ",").cast(
            "array<bigint>"
        )  # a constant: one literal, not thousands
        return F.element_at(each, F.col("_index") + 1)


def _counts_of(values: dict[str, Any]) -> BatchCounts:
    read, bad = values["read"], values["bad"]
    return BatchCounts(read, bad, read - bad, values["low"], values["high"], values["digest"])


def _require_equal(row: LedgerRow, counts: BatchCounts, topic: str) -> None:
    recorded = BatchCounts(row.read, row.bad, row.accepted, row.min_event_ms, row.max_event_ms)
    known = row.by_topic[topic].known_digest if topic in row.by_topic else None
    if counts != recorded or known not in (None, counts.known_digest):
        message = (
            f"batch {row.batch} of timeline {row.timeline} read {recorded.read} records, {recorded.bad} of them bad, of digest {known}; the log has "
            f"{counts.read}, {counts.bad} of them bad, of digest {counts.known_digest}, or other event times"
        )
        raise ReplayMismatchError(message)


# The copy of the checkpoint, and the state's version in it.


def link_checkpoint(source: Path, target: Path) -> None:
    """Copy a checkpoint at rest: files of the state, which Spark never writes again, by hard links."""

    def copy(path: str, other: str) -> None:
        if "state" in Path(path).relative_to(source).parts:
            try:
                os.link(path, other)
            except OSError:  # a file system without hard links
                pass
            else:
                return
        shutil.copyfile(path, other)

    shutil.copytree(source, target, copy_function=copy)


def renumber(checkpoint: Path, steps: Sequence[Step], *, next_ms: int, retained: int) -> None:
    """Let the state after the last step be that after its last recorded batch, and the logs be what Spark and the ledger have of that.

    Args:
        next_ms: the watermark that the ledger gives the next batch.
        retained: of how many batches `offsets` is kept.

    Raises:
        CheckpointError: the state is not one snapshot for each of its ids, or the next batch would have another watermark.
    """
    number, row = steps[-1].number, steps[-1].last
    commits, offsets = checkpoint / "commits", checkpoint / "offsets"
    committed = (commits / str(number)).read_text()
    now_ms = _commit_of(commits / str(number)).get("nextBatchWatermarkMs")
    if now_ms != next_ms:
        message = f"the batch after {row.batch} would have the watermark {now_ms}, the ledger gives {next_ms}"
        raise CheckpointError(message)
    for path in state_files(checkpoint):
        renamed = name_of_version(path.name, number + 1, row.batch + 1)  # a batch N makes the version N+1
        if renamed is not None:
            path.rename(path.with_name(renamed))
        elif any(name_of_version(path.name, step.number + 1, 0) for step in steps[:-1]):
            path.unlink()
    missing = [path for path in _snapshots(checkpoint, commits / str(number), row.batch + 1) if not path.exists()]
    if missing:
        message = f"the state after batch {row.batch} has no snapshot {missing[0].relative_to(checkpoint)}"
        raise CheckpointError(message)
    for path in [
        *commits.iterdir(),
        *(offsets / f"{dot}{step.number}{crc}" for step in steps for dot, crc in (("", ""), (".", ".crc"))),
    ]:
        path.unlink(missing_ok=True)
    put_text(commits / str(row.batch), committed)
    rows = [each for step in steps for each in step.rows][-retained:]
    for path in list(offsets.iterdir()):
        name = path.name.removeprefix(".").removesuffix(".crc")
        if name.isdigit() and int(name) <= row.batch - retained:
            path.unlink()
    for each in rows:
        put_text(offsets / str(each.batch), read_sets(offsets.parent).text_to_kafka(each.offsets_text))


def _snapshots(checkpoint: Path, commit: Path, version: int) -> Iterator[Path]:
    ids = _state_ids(commit)
    if not ids:
        yield commit.with_name("stateUniqueIds")  # there is none, so the state cannot be found
    for operator, partitions in ids.items():
        for partition, stores in enumerate(partitions):
            for store in stores:
                yield checkpoint / "state" / operator / str(partition) / f"{version}_{store}.zip"


def _state_ids(commit: Path) -> dict[str, list[list[str]]]:
    return _commit_of(commit).get("stateUniqueIds") or {}


def _commit_of(commit: Path) -> dict[str, Any]:
    lines = commit.read_text().split("\n") if commit.exists() else []
    values: dict[str, Any] = json.loads(lines[1]) if len(lines) > 1 else {}
    return values
