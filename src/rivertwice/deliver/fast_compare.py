"""Compare the rows that a fast path sent with the rows that its log requires, as sets: a row's identity is its record and text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rivertwice.core import RequestError, Settings
from rivertwice.definition import RECORD, Definition, load_bundle, load_definition
from rivertwice.deliver.fast import FastRun, committed_offsets, read_runs
from rivertwice.engine import accepted, decode_fast, decode_view, fast_checks, fast_records, fast_rows
from rivertwice.log import OffsetRanges, drop_empty, kafka, read_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN = 20
Row = tuple[int, int, str]
"""(partition, offset, value): the address of the record, and the text of its row."""


@dataclass(frozen=True)
class FastReport:
    """The result of a comparison.

    Attributes:
        judged: source partition to (first, end) of the offsets that were compared.
        expected: rows that the log requires. sent: different rows that were sent. again: rows that were sent again, after a crash.
        ahead: rows of records whose interval is not recorded yet; they are compared next time.
        missing, unexpected: `partition@offset` of the first twenty rows that were required and not sent, or sent and not required.
        thrown_count: records that the stream accepts and on which `fast.sql` throws; no row is required of them. thrown: the first twenty.
    """

    judged: Mapping[int, tuple[int, int]]
    expected: int
    sent: int
    again: int
    ahead: int
    missing_count: int
    unexpected_count: int
    missing: Sequence[str]
    unexpected: Sequence[str]
    thrown_count: int = 0
    thrown: Sequence[str] = ()

    @property
    def exact(self) -> bool:
        """Whether exactly the required rows were sent."""
        return not self.missing_count and not self.unexpected_count


def compare_sets(expected: Iterable[Row], sent: Iterable[Row], judged: OffsetRanges) -> FastReport:
    """Return how two collections of rows differ as sets, within the compared offsets. Pure."""
    inside: Counter[Row] = Counter()
    ahead = 0
    stray: Counter[Row] = Counter()
    for row in sent:
        first, end = judged.get(row[0], (0, 0))
        if first <= row[1] < end:
            inside[row] += 1
        elif row[1] >= end:
            ahead += 1
        else:
            stray[row] += 1  # a row of a record before the first run
    wanted = set(expected)
    missing = sorted(wanted - inside.keys())
    unexpected = sorted((inside.keys() | stray.keys()) - wanted)
    return FastReport(
        judged=judged,
        expected=len(wanted),
        sent=len(inside),
        again=sum(inside.values()) - len(inside),
        ahead=ahead,
        missing_count=len(missing),
        unexpected_count=len(unexpected),
        missing=[f"{partition}@{offset}" for partition, offset, _ in missing[:SHOWN]],
        unexpected=[f"{partition}@{offset}" for partition, offset, _ in unexpected[:SHOWN]],
    )


def stretches(runs: Sequence[FastRun], committed: Mapping[int, int]) -> list[tuple[FastRun, OffsetRanges]]:
    """Return each run with its offsets: up to the beginning of the next run, for the last run up to the committed end. Pure."""
    run_ranges = []
    for number, run in enumerate(runs):
        ends = runs[number + 1].begins if number + 1 < len(runs) else committed
        parts = {*run.begins, *ends}
        run_ranges.append((run, drop_empty({part: (run.begins.get(part, 0), ends.get(part, 0)) for part in parts})))
    return run_ranges


def compare_fast(spark: SparkSession, settings: Settings, pipeline: str) -> FastReport:
    """Compute again the rows that the fast path of a pipeline must send, and compare them with its topic.

    Raises:
        RequestError: it has no fast path, or its fast path has not recorded an interval yet.
    """
    home = settings.pipeline(pipeline)
    definition = load_definition(settings.definition_folder(pipeline))
    runs = read_runs(home)
    committed = committed_offsets(home, definition.source[1].topic)
    if definition.fast is None or not runs or committed is None:
        state = (
            "has no fast path" if definition.fast is None else "has not written down an interval of its fast path yet"
        )
        message = f"{pipeline} {state}, so there is nothing to compare; `rivertwice deliver status --fast {pipeline}` says what runs"
        raise RequestError(message)
    expected: list[Row] = []
    thrown: list[str] = []
    judged: dict[int, tuple[int, int]] = {}
    for run, ranges in stretches(runs, committed):
        run_definition = load_bundle(home.bundles, run.bundle).definition
        raw = read_ranges(spark, settings, run_definition.source[1].topic, ranges, topic_id=run.topic_id)
        expected += _expected(spark, run_definition, raw)
        thrown += _thrown(spark, run_definition, raw)
        for part, (first, end) in ranges.items():
            judged[part] = (min(first, judged.get(part, (first, end))[0]), max(end, judged.get(part, (first, end))[1]))
    topic = definition.fast.topic
    ends = kafka.end_offsets(settings, topic)
    wanted = drop_empty({part: (runs[0].sent_from.get(part, 0), end) for part, end in ends.items()})
    sent = read_ranges(spark, settings, topic, wanted)
    report = compare_sets(expected, _rows(sent.select("value").toArrow()["value"].to_pylist()), judged)
    return replace(report, thrown_count=len(thrown), thrown=thrown[:SHOWN])


def _expected(spark: SparkSession, definition: Definition, raw: DataFrame) -> list[Row]:
    rows = fast_rows(spark, definition, accepted(decode_fast(definition, raw), definition.source[1]))
    return _rows(fast_records(definition, rows).select("value").toArrow()["value"].to_pylist())


def _thrown(spark: SparkSession, definition: Definition, raw: DataFrame) -> list[str]:
    """Return the addresses of the records that only the fast path leaves out."""
    if not fast_checks(spark, definition).ways:
        return []
    view, source = definition.source
    address = ("_partition", "_offset")
    own = accepted(decode_fast(definition, raw), source).select(*address)
    left_out = accepted(decode_view(definition, view, raw), source).select(*address).exceptAll(own)
    table = left_out.orderBy(*address).toArrow()
    return [f"{row['_partition']}@{row['_offset']}" for row in table.to_pylist()]


def _rows(values: Iterable[str | bytes]) -> list[Row]:
    rows = []
    for value in values:
        text = value.decode() if isinstance(value, bytes) else value
        place = json.loads(text)[RECORD]
        rows.append((int(place["partition"]), int(place["offset"]), text))
    return rows
