"""What the stream recorded beside its verdicts' rows, compared with what the log says: emitted rows, dead letters, late rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc

from rivertwice.instants import from_ms, to_iso, to_ms
from rivertwice.log.addresses import Part
from rivertwice.reconcile.frames import addresses, unique_rows, values
from rivertwice.reconcile.gaps import Missing, is_missing
from rivertwice.reconcile.kinds.judge import HasUpdates, Judge
from rivertwice.reconcile.model import Finding, LateRow, OrderDependentRows, RowColumns, RowId, Values
from rivertwice.reconcile.view import HeadView, shape_of
from rivertwice.timeline.digest import digest_values
from rivertwice.timeline.ledger import LedgerRow

RecordedDeadLetter = tuple[int, Part, int, str]
"""(path index, part, offset, reason)."""
_KeptRow = tuple[int, Part, int, int | None]
"""(path index, part, offset, window start in epoch ms); of a session no start, for the truth's session is longer."""


def check_emitted(view: HeadView) -> list[Finding]:
    """Compare the changelog with the number and the digest of rows the ledger recorded for each batch."""
    found: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    if view.stream is not None:
        names = view.newest.definition.result_columns
        plain = zip(*(view.stream.column(name).to_pylist() for name in names), strict=True)
        stamps = zip(view.stream.column("_timeline").to_pylist(), view.stream.column("_batch").to_pylist(), strict=True)
        for stamp, row in zip(stamps, plain, strict=True):
            found.setdefault(stamp, []).append(row)
    findings = []
    for one in view.rows:
        rows = found.get((one.timeline, one.batch), [])
        if len(rows) != one.emitted:
            message = (
                f"the changelog holds {len(rows)} rows of batch {one.batch} of {one.timeline}, the ledger recorded "
                f"{one.emitted}"
            )
            findings.append(Finding("changelog", message, one.batch))
        digest = digest_values(rows)
        if digest != one.digest:
            message = (
                f"the changelog holds other rows of batch {one.batch} of {one.timeline} than were committed: "
                f"digest {digest}, recorded {one.digest}"
            )
            findings.append(Finding("changelog", message, one.batch))
    return findings


def check_dead_letters(
    view: HeadView, derived: Sequence[RecordedDeadLetter], missing: Sequence[Missing] = ()
) -> tuple[list[Finding], dict[Part, int]]:
    """Compare the recorded dead letters with those the log says must exist: (findings, recorded per partition).

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
        _dead_finding(view, one, "is not in the dead letters as it must be")
        for one in sorted(set(derived) - set(recorded))
    ]
    findings += [
        _dead_finding(view, one, "is recorded as a dead letter but must not be")
        for one in sorted(set(recorded) - set(derived))
    ]
    seen: set[RecordedDeadLetter] = set()
    for one in recorded:
        if one in seen:
            findings.append(_dead_finding(view, one, "is recorded twice"))
        seen.add(one)
    return findings, per_partition


def _dead_finding(view: HeadView, one: RecordedDeadLetter, what: str) -> Finding:
    index, (topic, partition), offset, reason = one
    batch = view.rows[index].batch
    message = f"dead letter {topic}/{partition}@{offset} ({reason}, batch {batch}) {what}"
    return Finding("dead_letters", message, batch, topic, partition, offset)


UPDATES_CHECKED = 20
"""So many batches, the newest that emitted anything, are compared update by update; of older ones the newest row counts."""


def check_updates(view: HeadView, judge: Judge) -> list[Finding]:
    """Compare what the newest batches of a stream with updates emitted with what each of them had to.

    Every batch must emit just the rows that its own records changed, each as it stood then.
    """
    definition = view.newest.definition
    if not definition.has_updates or not isinstance(judge, HasUpdates):
        return []
    shape = shape_of(definition)
    newest = [number for number, group in enumerate(view.groups) if group == view.groups[-1]]
    wanted = [number for number in newest if view.rows[number].accepted or view.rows[number].emitted][-UPDATES_CHECKED:]
    findings = []
    for number in wanted:
        row = view.rows[number]
        expected = unique_rows(judge.updates(number), shape)
        came = _emitted_by(view, row, shape)
        for address in sorted({*expected, *came}):
            problem = _update_problem(shape, expected.get(address), came.get(address, []))
            if problem:
                where = f"the row {address.key} of the window at {to_iso(from_ms(address.start_ms))}"
                findings.append(
                    Finding("updates", f"batch {row.batch} of {row.timeline}: {where} {problem}", row.batch)
                )
    return findings


def _emitted_by(view: HeadView, row: LedgerRow, shape: RowColumns) -> dict[RowId, list[Values]]:
    found: dict[RowId, list[Values]] = {}
    if view.stream is None:
        return found
    mine = pc.and_(pc.equal(view.stream["_timeline"], row.timeline), pc.equal(view.stream["_batch"], row.batch))
    rows = view.stream.filter(mine)
    for address, one in zip(addresses(rows, shape), values(rows, shape), strict=True):
        found.setdefault(address, []).append(one)
    return found


def _update_problem(shape: RowColumns, expected: Values | None, came: Sequence[Values]) -> str | None:
    if expected is None:
        return "was emitted, but no record of the batch changed it"
    if len(came) != 1:
        return f"was emitted {len(came)} times, and had to be once" if came else "was not emitted, and had to be"
    names = shape.differences(came[0], expected)
    return f"differs in {', '.join(names)} from what had been read of it by then" if names else None


MOST_KEYS = 100
"""So many keys whose newest row depends on the order are named, each by a finding of its own; of the rest one tells how many."""


def check_order(rows: OrderDependentRows) -> list[Finding]:
    """Name the keys whose newest row depends on the order in which partitions were read, though the definition says that none does."""
    named = sorted(rows.unsettled.items())
    findings = [
        Finding("order", f"the newest row of the key {key} depends on the order, against order: any: {how}")
        for key, how in named[:MOST_KEYS]
    ]
    if len(named) > MOST_KEYS:
        more = f"the newest rows of {len(named) - MOST_KEYS} more keys depend on the order, against order: any"
        findings.append(Finding("order", more))
    return findings


def check_late_rows(view: HeadView, derived: Sequence[LateRow], missing: Sequence[Missing] = ()) -> list[Finding]:
    """Compare the late rows that were kept with those the log says must have been, each by address and window.

    Only batches that the newest definition ran are looked at: another one's late rows follow other rules. Recorded rows
    of batches that were never committed do not count, nor do those at addresses that can no longer be read.
    """
    if not view.newest.definition.late.keeps_rows:
        return []
    window = view.newest.definition.window
    newest = {number for number, group in enumerate(view.groups) if group == view.groups[-1]}
    number_of = {row.batch: number for number, row in enumerate(view.rows)}
    streams = {source.topic for source in view.newest.definition.streams.values()}
    expected = {
        (
            number_of[one.batch],
            Part(one.topic, one.partition),
            one.offset,
            one.row.start_ms if window.kind.is_aligned else None,
        )
        for one in derived
        if one.topic in streams and number_of[one.batch] in newest
    }
    index = view.index
    kept: Counter[_KeptRow] = Counter()
    for row in [] if view.late is None else view.late.to_pylist():
        number = index.get((row["_timeline"], row["_batch"]))
        part = Part(row["topic"], row["partition"])
        if number in newest and number is not None and not is_missing(missing, part, row["offset"]):
            start_ms = to_ms(row["window_start"]) if window.kind.is_aligned else None
            kept[number, part, row["offset"], start_ms] += 1
    told = [(one, "is not in the late rows as it must be") for one in sorted(expected - set(kept), key=_order)]
    told += [(one, "is in the late rows but was not late") for one in sorted(set(kept) - expected, key=_order)]
    told += [(one, f"is in the late rows {times} times") for one, times in sorted(kept.items(), key=str) if times > 1]
    return [_late_finding(view, one, what) for one, what in told]


def _order(one: _KeptRow) -> tuple[Any, ...]:
    return (*one[:3], one[3] or 0)


def _late_finding(view: HeadView, one: _KeptRow, what: str) -> Finding:
    index, (topic, partition), offset, start_ms = one
    batch = view.rows[index].batch
    window = "" if start_ms is None else f" for the window at {to_iso(from_ms(start_ms))}"
    return Finding(
        "late_rows",
        f"record {topic}/{partition}@{offset}{window} (batch {batch}) {what}",
        batch,
        topic,
        partition,
        offset,
    )
