"""What the stream recorded beside its result rows, compared with the log: emitted rows, dead letters, late rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core import from_ms, to_iso, to_ms
from rivertwice.definition import Definition
from rivertwice.log import Part
from rivertwice.reconcile.evidence import Evidence, ServedEvidence, amended_of
from rivertwice.reconcile.frames import addresses, unique_rows, values
from rivertwice.reconcile.gaps import Missing, is_missing
from rivertwice.reconcile.kinds.judge import Judge
from rivertwice.reconcile.model import (
    SERVED,
    STREAM,
    AmendedRow,
    DefectFinding,
    LateRow,
    OrderDependentRows,
    RowColumns,
    RowId,
    RowVerdict,
    Values,
)
from rivertwice.reconcile.results import ReconcileCause
from rivertwice.reconcile.view import HeadView, shape_of
from rivertwice.timeline import LATE_RECORD, NO_ROWS, LedgerRow, Verdict, digest_values

RecordedDeadLetter = tuple[int, Part, int, str]
"""(path index, part, offset, reason)."""
_KeptRow = tuple[int, Part, int, int | None]
"""(path index, part, offset, window start in epoch ms); no start for a session, because the truth's session is longer."""


Emitted = Mapping[tuple[str, int], tuple[int, str]]
"""(timeline, batch) to the number of rows that the changelog has of it, and their digest."""


def count_by_batch(rows: pa.Table, names: Sequence[str]) -> dict[tuple[str, int], tuple[int, str]]:
    """Return rows and digest over some columns, by (`_timeline`, `_batch`)."""
    by_batch: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    plain = zip(*(rows.column(name).to_pylist() for name in names), strict=True)
    stamps = zip(rows.column("_timeline").to_pylist(), rows.column("_batch").to_pylist(), strict=True)
    for stamp, row in zip(stamps, plain, strict=True):
        by_batch.setdefault(stamp, []).append(row)
    return {stamp: (len(found), digest_values(found)) for stamp, found in by_batch.items()}


def check_emitted(view: HeadView, emitted: Emitted) -> list[DefectFinding]:
    """Compare the changelog with the number and the digest of rows the ledger recorded for each batch."""
    findings = []
    for ledger_row in view.rows[view.first_new :]:
        rows, digest = emitted.get((ledger_row.timeline, ledger_row.batch), (0, NO_ROWS))
        if rows != ledger_row.emitted:
            message = (
                f"the changelog holds {rows} rows of batch {ledger_row.batch} of {ledger_row.timeline}, the ledger recorded "
                f"{ledger_row.emitted}"
            )
            findings.append(DefectFinding("changelog", message, ledger_row.batch))
        if digest != ledger_row.digest:
            message = (
                f"the changelog holds other rows of batch {ledger_row.batch} of {ledger_row.timeline} than were committed: "
                f"digest {digest}, recorded {ledger_row.digest}"
            )
            findings.append(DefectFinding("changelog", message, ledger_row.batch))
    return findings


def check_dead_letters(
    view: HeadView, derived: Sequence[RecordedDeadLetter], missing: Sequence[Missing] = ()
) -> tuple[list[DefectFinding], dict[Part, int]]:
    """Compare the recorded dead letters with those that the log requires: (findings, recorded per partition).

    Recorded rows of batches that were never committed do not count: a crash may leave them. Nor do those at addresses
    that can no longer be read.
    """
    index = view.index
    recorded: list[RecordedDeadLetter] = []
    if view.dead is not None:
        for row in view.dead.to_pylist():
            number = index.get((row["_timeline"], row["_batch"]))
            part = Part(row["topic"], row["partition"])
            if number is not None and not is_missing(missing, part, row["offset"]):
                recorded.append((number, part, row["offset"], row["reason"]))
    per_partition: dict[Part, int] = {}
    for _, part, _, _ in recorded:
        per_partition[part] = per_partition.get(part, 0) + 1
    findings = [
        _dead_finding(view, dead_letter, "is not in the dead letters as it must be")
        for dead_letter in sorted(set(derived) - set(recorded))
    ]
    findings += [
        _dead_finding(view, dead_letter, "is recorded as a dead letter but must not be")
        for dead_letter in sorted(set(recorded) - set(derived))
    ]
    checked: set[RecordedDeadLetter] = set()
    for record in recorded:
        if record in checked:
            findings.append(_dead_finding(view, record, "is recorded twice"))
        checked.add(record)
    return findings, per_partition


def _dead_finding(view: HeadView, dead_letter: RecordedDeadLetter, what: str) -> DefectFinding:
    index, (topic, partition), offset, reason = dead_letter
    batch = view.rows[index].batch
    message = f"dead letter {topic}/{partition}@{offset} ({reason}, batch {batch}) {what}"
    return DefectFinding("dead_letters", message, batch, topic, partition, offset)


UPDATES_CHECKED = 20
"""So many batches, the newest that emitted rows, are compared update by update; for older ones only the newest row counts."""


def check_updates(view: HeadView, judge: Judge) -> list[DefectFinding]:
    """For a stream with updates, compare what the newest batches emitted with what each of them had to emit.

    Every batch must emit just the rows that its own records changed, each with its values at that batch.
    """
    definition = view.newest.definition
    if not definition.has_updates:
        return []
    shape = shape_of(definition)
    newest = [number for number, group in enumerate(view.groups) if group == view.groups[-1]]
    wanted = [number for number in newest if view.rows[number].accepted or view.rows[number].emitted][-UPDATES_CHECKED:]
    findings = []
    for number in wanted:
        row = view.rows[number]
        updates = judge.updates(number)
        if updates is None:
            return []
        expected = unique_rows(updates, shape)
        emitted = _emitted_by(view, row, shape)
        for address in sorted({*expected, *emitted}):
            problem = _update_problem(shape, expected.get(address), emitted.get(address, []))
            if problem:
                where = f"the row {address.key} of the window at {to_iso(from_ms(address.start_ms))}"
                findings.append(
                    DefectFinding("updates", f"batch {row.batch} of {row.timeline}: {where} {problem}", row.batch)
                )
    return findings


def _emitted_by(view: HeadView, row: LedgerRow, shape: RowColumns) -> dict[RowId, list[Values]]:
    emitted: dict[RowId, list[Values]] = {}
    if view.stream is None:
        return emitted
    is_of_batch = pc.and_(pc.equal(view.stream["_timeline"], row.timeline), pc.equal(view.stream["_batch"], row.batch))
    rows = view.stream.filter(is_of_batch)
    for address, row_values in zip(addresses(rows, shape), values(rows, shape), strict=True):
        emitted.setdefault(address, []).append(row_values)
    return emitted


def _update_problem(shape: RowColumns, expected: Values | None, emitted: Sequence[Values]) -> str | None:
    if expected is None:
        return "was emitted, but no record of the batch changed it"
    if len(emitted) != 1:
        return (
            f"was emitted {len(emitted)} times, but had to be emitted once"
            if emitted
            else "was not emitted, but had to be"
        )
    names = shape.differences(emitted[0], expected)
    return f"differs in {', '.join(names)} from what had been read of it by then" if names else None


MOST_KEYS = 100
"""So many keys whose newest row depends on the order get a finding each; one more finding counts the rest."""


def check_order(rows: OrderDependentRows) -> list[DefectFinding]:
    """Name the keys whose newest row depends on the order of partitions, though the definition says that none does."""
    named = sorted(rows.unsettled.items())
    findings = [
        DefectFinding("order", f"the newest row of the key {key} depends on the order, against order: any: {how}")
        for key, how in named[:MOST_KEYS]
    ]
    if len(named) > MOST_KEYS:
        more = f"the newest rows of {len(named) - MOST_KEYS} more keys depend on the order, against order: any"
        findings.append(DefectFinding("order", more))
    return findings


def check_late_rows(view: HeadView, derived: Sequence[LateRow], missing: Sequence[Missing] = ()) -> list[DefectFinding]:
    """Compare the stored late rows with those that the log requires, each by address and window.

    Only batches that the newest definition ran are checked: another one's late rows follow other rules. Recorded rows
    of batches that were never committed do not count, nor do those at addresses that can no longer be read.
    """
    if not view.newest.definition.late.keeps_rows:
        return []
    has_starts = view.newest.definition.window.kind.is_aligned
    newest = {number for number, group in enumerate(view.groups) if group == view.groups[-1]}
    number_of = {row.batch: number for number, row in enumerate(view.rows)}
    streams = {source.topic for source in view.newest.definition.streams.values()}
    expected = {
        (
            number_of[late_row.batch],
            Part(late_row.topic, late_row.partition),
            late_row.offset,
            late_row.row.start_ms if has_starts else None,
        )
        for late_row in derived
        if late_row.topic in streams and number_of[late_row.batch] in newest
    }
    index = view.index
    stored: Counter[_KeptRow] = Counter()
    for row in [] if view.late is None else view.late.to_pylist():
        number = index.get((row["_timeline"], row["_batch"]))
        part = Part(row["topic"], row["partition"])
        if number in newest and number is not None and not is_missing(missing, part, row["offset"]):
            start_ms = to_ms(row["window_start"]) if has_starts else None
            stored[number, part, row["offset"], start_ms] += 1
    problems = [
        (kept_row, "is not in the late rows as it must be") for kept_row in sorted(expected - set(stored), key=_order)
    ]
    problems += [
        (kept_row, "is in the late rows but was not late") for kept_row in sorted(set(stored) - expected, key=_order)
    ]
    problems += [
        (kept_row, f"is in the late rows {times} times")
        for kept_row, times in sorted(stored.items(), key=str)
        if times > 1
    ]
    return [_late_finding(view, kept_row, what) for kept_row, what in problems]


def _order(kept_row: _KeptRow) -> tuple[Any, ...]:
    return (*kept_row[:3], kept_row[3] or 0)


def _late_finding(view: HeadView, kept_row: _KeptRow, what: str) -> DefectFinding:
    index, (topic, partition), offset, start_ms = kept_row
    batch = view.rows[index].batch
    window = "" if start_ms is None else f" for the window at {to_iso(from_ms(start_ms))}"
    return DefectFinding(
        "late_rows",
        f"record {topic}/{partition}@{offset}{window} (batch {batch}) {what}",
        batch,
        topic,
        partition,
        offset,
    )


# The columns of kept late rows and dead letters beside their address.

RecordPlace = tuple[Part, int]
"""(part, offset)."""


@dataclass(frozen=True)
class Contents:
    """What the log holds at the addresses of late records and dead letters: column to value, by address."""

    late: Mapping[RecordPlace, Mapping[str, Any]] = field(default_factory=dict)
    dead: Mapping[RecordPlace, Mapping[str, Any]] = field(default_factory=dict)


def check_late_columns(view: HeadView, derived: Sequence[LateRow], contents: Contents) -> list[DefectFinding]:
    """Compare every column of the late rows whose records were really late; `check_late_rows` names all others."""
    definition = view.newest.definition
    if not definition.late.keeps_rows or view.late is None:
        return []
    is_aligned = definition.window.kind.is_aligned
    number_of = {row.batch: number for number, row in enumerate(view.rows)}
    newest = {number for number, group in enumerate(view.groups) if group == view.groups[-1]}
    expected_columns: dict[tuple[int, Part, int, Any], dict[str, Any]] = {}
    for late_row in derived:
        if number_of[late_row.batch] not in newest:
            continue
        part = Part(late_row.topic, late_row.partition)
        columns: dict[str, Any] = {
            **_window_of(definition, late_row),
            "event_time": late_row.event_time,
            "late_watermark": from_ms(late_row.late_watermark_ms),
            **contents.late.get((part, late_row.offset), {}),
        }
        start = from_ms(late_row.row.start_ms) if is_aligned else None
        expected_columns[number_of[late_row.batch], part, late_row.offset, start] = columns
    findings = []
    for row in view.late.to_pylist():
        number, part = view.index.get((row["_timeline"], row["_batch"])), Part(row["topic"], row["partition"])
        start = _plain(row["window_start"]) if is_aligned else None
        if number is None:
            continue
        expected = expected_columns.get((number, part, row["offset"], start))
        if expected is not None:
            findings += _differences(view, number, part, row, expected, "late_rows", "the late row of record")
    return findings


def _window_of(definition: Definition, late_row: LateRow) -> dict[str, datetime]:
    """Return the window under which a late record is kept; if events begin windows, the window of the record alone."""
    if definition.window.kind.is_aligned:
        return {"window_end": from_ms(late_row.row.end_ms)}
    return {"window_start": late_row.event_time, "window_end": late_row.event_time + definition.window.length}


def check_dead_columns(view: HeadView, contents: Contents) -> list[DefectFinding]:
    """Compare the columns of the dead letters that must exist; `check_dead_letters` names all others.

    `detail` is not compared, because its words may change with a version, nor are the record's bytes, which may be large.
    """
    findings = []
    for row in [] if view.dead is None else view.dead.to_pylist():
        number, part = view.index.get((row["_timeline"], row["_batch"])), Part(row["topic"], row["partition"])
        columns = contents.dead.get((part, row["offset"]))
        if number is not None and columns is not None:
            findings += _differences(view, number, part, row, columns, "dead_letters", "dead letter")
    return findings


def _differences(
    view: HeadView,
    number: int,
    part: Part,
    row: Mapping[str, Any],
    columns: Mapping[str, Any],
    kind: str,
    what: str,
) -> list[DefectFinding]:
    batch = view.rows[number]
    line = view.copies.timelines.get(batch.timeline)
    origin = {} if line is None else {"cluster_id": line.cluster_id, "topic_id": line.topic_ids.get(part.topic)}
    where = f"{what} {part.topic}/{part.partition}@{row['offset']} (batch {batch.batch})"
    return [
        DefectFinding(
            kind,
            f"{where}: {name} is {row[name]}, the log says {expected}",
            batch.batch,
            part.topic,
            part.partition,
            row["offset"],
        )
        for name, expected in {**columns, **origin}.items()
        if name in row and _plain(row[name], name) != _plain(expected, name)
    ]


def _plain(value: Any, name: str = "") -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    if name == "fields" and isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


# The named causes of differing rows, as they are stored. Pure.


def touched_causes(
    verdicts: Sequence[RowVerdict], late: Mapping[tuple[str, RowId], Sequence[LateRow]]
) -> list[ReconcileCause]:
    """Return the further late records of settled rows; those of before are stored already."""
    return [
        _record_cause(verdict, LATE_RECORD, record)
        for verdict in verdicts
        for record in late.get((verdict.pair, verdict.row), ())
    ]


def row_causes(
    verdicts: Sequence[RowVerdict], evidence: Evidence, served: ServedEvidence | None
) -> list[ReconcileCause]:
    """Return every late or splitting record of a LATE row, by address, and what is wrong with a DEFECT."""
    causes: list[ReconcileCause] = []
    for verdict in verdicts:
        by_row = evidence.late
        session = None
        if served is not None and verdict.pair == SERVED and served.is_published(verdict.row):
            by_row = served.late_since
            session = served.sessions.get(verdict.row)
        group = evidence.group_of(verdict.row)
        if verdict.verdict == Verdict.LATE and session is not None:
            causes.extend(_record_cause(verdict, LATE_RECORD, record) for record in (*session.late, *session.since))
            causes.extend(_record_cause(verdict, "split", record) for record in session.split)
        elif verdict.verdict == Verdict.LATE and group is not None:
            causes.extend(_record_cause(verdict, LATE_RECORD, record) for record in group.late)
            causes.extend(_record_cause(verdict, "split", record) for record in group.split)
        elif verdict.verdict == Verdict.LATE:
            where = evidence.cause_id(verdict.row)
            causes.extend(_record_cause(verdict, LATE_RECORD, record) for record in by_row.get(where, ()))
            causes.extend(_amended_cause(verdict, record) for record in amended_of(evidence, served, verdict))
        causes.extend(
            ReconcileCause(pair=verdict.pair, cause=kind, row=verdict.row, detail=why) for kind, why in verdict.defects
        )
    return causes


def dead_causes(view: HeadView, dead: Sequence[RecordedDeadLetter]) -> list[ReconcileCause]:
    """Return every dead letter by address."""
    return [
        ReconcileCause(STREAM, "dead", None, part.topic, part.partition, offset, view.rows[index].batch, detail=reason)
        for index, part, offset, reason in dead
    ]


def finding_causes(findings: Sequence[DefectFinding]) -> list[ReconcileCause]:
    """Return every finding, by address as far as it has one."""
    return [
        ReconcileCause(
            STREAM,
            f"finding:{finding.kind}",
            None,
            finding.topic,
            finding.partition,
            finding.offset,
            finding.batch,
            detail=finding.message,
        )
        for finding in findings
    ]


def _record_cause(verdict: RowVerdict, cause: str, record: LateRow) -> ReconcileCause:
    return ReconcileCause(
        pair=verdict.pair,
        cause=cause,
        row=verdict.row,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        batch=record.batch,
        late_watermark_ms=record.late_watermark_ms,
        event_time=record.event_time,
    )


def _amended_cause(verdict: RowVerdict, record: AmendedRow) -> ReconcileCause:
    ended = "" if record.until_seq is None else f", ended by amendment {record.until_seq}"
    return ReconcileCause(
        pair=verdict.pair,
        cause="amended",
        row=verdict.row,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        event_time=record.event_time,
        detail=f"amendment {record.first_seq}{ended}",
    )
