"""Compare what a fast path sent with what its log owes, as sets: every row is known by its record and its text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from rivertwice.config import Place, Settings
from rivertwice.errors import RequestError
from rivertwice.fast.runs import FastRun, committed_offsets, read_runs
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges, drop_empty
from rivertwice.log.records import read_ranges
from rivertwice.pipeline.bundle import load_bundle
from rivertwice.pipeline.decode import decode
from rivertwice.pipeline.definition import load_definition
from rivertwice.pipeline.fast import fast_records, fast_rows
from rivertwice.pipeline.names import RECORD
from rivertwice.pipeline.relations import accepted

SHOWN = 20
Row = tuple[int, int, str]
"""(partition, offset, value): whose record, and what was said of it."""


@dataclass(frozen=True)
class FastReport:
    """What a comparison found.

    Attributes:
        judged: source partition to (first, end) of the offsets that were compared.
        owed: rows the log owes. sent: different rows that were sent. again: rows sent once more, after a crash.
        ahead: rows sent of records whose interval is not written down yet; they are judged next time.
        missing, unowed: `partition@offset` of rows that were owed and not sent, or sent and not owed; the first twenty.
    """

    judged: Mapping[int, tuple[int, int]]
    owed: int
    sent: int
    again: int
    ahead: int
    missing_count: int
    unowed_count: int
    missing: Sequence[str]
    unowed: Sequence[str]

    @property
    def exact(self) -> bool:
        """Whether what was sent is what was owed."""
        return not self.missing_count and not self.unowed_count


def compare_sets(owed: Iterable[Row], sent: Iterable[Row], judged: OffsetRanges) -> FastReport:
    """Return how two bags of rows differ as sets, within the judged offsets. Pure."""
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
            stray[row] += 1  # of a record from before the first run
    wanted = set(owed)
    missing = sorted(wanted - inside.keys())
    unowed = sorted((inside.keys() | stray.keys()) - wanted)
    return FastReport(
        judged=judged,
        owed=len(wanted),
        sent=len(inside),
        again=sum(inside.values()) - len(inside),
        ahead=ahead,
        missing_count=len(missing),
        unowed_count=len(unowed),
        missing=[f"{partition}@{offset}" for partition, offset, _ in missing[:SHOWN]],
        unowed=[f"{partition}@{offset}" for partition, offset, _ in unowed[:SHOWN]],
    )


def stretches(runs: Sequence[FastRun], committed: Mapping[int, int]) -> list[tuple[FastRun, OffsetRanges]]:
    """Return each run with the offsets that it answers for: to the beginning of the next, the last to what is committed. Pure."""
    found = []
    for number, run in enumerate(runs):
        ends = runs[number + 1].begins if number + 1 < len(runs) else committed
        parts = {*run.begins, *ends}
        found.append((run, drop_empty({part: (run.begins.get(part, 0), ends.get(part, 0)) for part in parts})))
    return found


def compare_fast(spark: SparkSession, settings: Settings, pipeline: str) -> FastReport:
    """Recompute what the fast path of a pipeline owes, and compare it with its topic.

    Raises:
        RequestError: it has no fast path, or has not written down an interval yet.
    """
    home = settings.pipeline(pipeline)
    definition = load_definition(settings.definitions / pipeline)
    runs = read_runs(home)
    committed = committed_offsets(home, definition.source[1].topic)
    if definition.fast is None or not runs or committed is None:
        what = (
            "has no fast path" if definition.fast is None else "has not written down an interval of its fast path yet"
        )
        message = (
            f"{pipeline} {what}, so there is nothing to compare; `rivertwice fast status {pipeline}` says what runs"
        )
        raise RequestError(message)
    owed: list[Row] = []
    judged: dict[int, tuple[int, int]] = {}
    for run, ranges in stretches(runs, committed):
        owed += _owed(spark, settings, home.bundles, run, ranges)
        for part, (first, end) in ranges.items():
            judged[part] = (min(first, judged.get(part, (first, end))[0]), max(end, judged.get(part, (first, end))[1]))
    topic = definition.fast.topic
    ends = kafka.end_offsets(settings, topic)
    wanted = drop_empty({part: (runs[0].sent_from.get(part, 0), end) for part, end in ends.items()})
    raw = read_ranges(spark, settings, topic, wanted)
    return compare_sets(owed, _rows(raw.select("value").toArrow()["value"].to_pylist()), judged)


def _owed(spark: SparkSession, settings: Settings, bundles: Place, run: FastRun, ranges: OffsetRanges) -> list[Row]:
    definition = load_bundle(bundles, run.bundle).definition
    _, source = definition.source
    raw = read_ranges(spark, settings, source.topic, ranges, topic_id=run.topic_id)
    rows = fast_rows(spark, definition, accepted(decode(raw, source), source))
    return _rows(fast_records(definition, rows).select("value").toArrow()["value"].to_pylist())


def _rows(values: Iterable[str | bytes]) -> list[Row]:
    found = []
    for value in values:
        text = value.decode() if isinstance(value, bytes) else value
        place = json.loads(text)[RECORD]
        found.append((int(place["partition"]), int(place["offset"]), text))
    return found
