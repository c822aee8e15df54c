"""An explanation as text for people. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rivertwice.core import printable_line, to_iso
from rivertwice.read.explain_model import DeadRecord, ExplainedVerdict, Explanation, LateRecord, NumberChange, Reads
from rivertwice.timeline import json_value

_SHOWN = 10
_WIDTH = 11


def describe(explanation: Explanation) -> str:
    """Return an explanation as text: one fact a line, what is to be done at the end."""
    lines = [*_head(explanation), *_table(explanation)]
    for title, facts in (
        ("served", _made(explanation)),
        ("stream", _emitted(explanation)),
        ("read", _reads(explanation.reads)),
        ("lake", _lake(explanation.reads)),
        ("late", _late(explanation)),
        ("refused", _dead(explanation)),
        ("history", [_change(change) for change in explanation.history]),
        ("verdict", [_verdict(verdict) for verdict in explanation.verdicts] or ["none: no reconcile has judged it"]),
        ("not known", list(explanation.unknown)),
        ("next", _acts(explanation)),
    ):
        lines += _titled(title, facts)
    return "\n".join(lines)


def _titled(title: str, facts: Sequence[str]) -> list[str]:
    return [f"{title if number == 0 else '':<{_WIDTH}}{printable_line(fact)}" for number, fact in enumerate(facts)]


def _head(explanation: Explanation) -> list[str]:
    address = explanation.address
    key = ", ".join(f"{name} {_cell(value)}" for name, value in address.key.items())
    state = "open"
    if explanation.is_closed:
        by = explanation.closed_by
        state = "final at once" if by is None else f"closed by batch {by} at {_instant(explanation.closed_at)}"
    window = f"window {to_iso(address.start)} to {to_iso(address.end)} ({explanation.windows}), {state}"
    return [printable_line(f"{address.pipeline}{f', {key}' if key else ''}"), window, ""]


def _table(explanation: Explanation) -> list[str]:
    """Return the value columns side by side."""
    has_truth = explanation.has_truth is not None
    there = {"served": explanation.has_served, "stream": explanation.has_stream}
    there |= {"truth": bool(explanation.has_truth)} if has_truth else {}
    rows = [("column", *there, "")]
    for column in explanation.columns:
        cells = [_cell(getattr(column, source)) if is_there else "no row" for source, is_there in there.items()]
        rows.append((column.name, *cells, "differs" if column.differs else ""))
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*(printable_line(line) for line in lines), ""]


def _made(explanation: Explanation) -> list[str]:
    published = explanation.published
    if published is not None:
        why = "" if published.reason is None else f" ({published.reason})"
        what = "serves it" if explanation.has_served else "serves the window, without this row"
        return [
            f"backfill {published.backfill}{why} {what}: published {_instant(published.at)}, sequence {published.sequence}"
        ]
    if explanation.has_served:
        return ["the stream's row is served"]
    return ["nothing is served of it" if explanation.is_closed else "nothing is served yet: the window is open"]


def _emitted(explanation: Explanation) -> list[str]:
    emitted = explanation.emitted
    if emitted is None:
        return ["emitted no such row on the head's path"]
    return [
        f"emitted by batch {emitted.timeline}/{emitted.batch}, epoch {emitted.epoch}, committed {_instant(emitted.at)}"
    ]


def _reads(reads: Reads) -> list[str]:
    if not reads.ranges:
        return ["no batch accepted a record around the window"]
    batches = f"{reads.batches} batch{'' if reads.batches == 1 else 'es'}"
    span = (
        "" if reads.first is None else f", {reads.first}" + ("" if reads.first == reads.last else f" to {reads.last}")
    )
    lines = [f"{reads.records} offsets in {batches}{span}, which may hold its records"]
    runs: dict[str, list[str]] = {}
    for part in reads.ranges:
        runs.setdefault(f"{part.topic}/{part.partition}", []).append(f"[{part.start}, {part.end})")
    shown = [
        f"{place} {' '.join(pairs[:_SHOWN])}{' ...' if len(pairs) > _SHOWN else ''}" for place, pairs in runs.items()
    ]
    return [*lines, *shown[:_SHOWN], *_more(len(runs), "partitions")]


def _lake(reads: Reads) -> list[str]:
    lines = [
        f"{part.topic}/{part.partition} [{part.start}, {part.end}) are rows {part.first_row} to {part.first_row + part.end - part.start - 1} "
        f"of {part.file}, {part.snapshot}"
        for part in reads.lake[:_SHOWN]
    ]
    return [*lines, *_more(len(reads.lake), "files"), *([reads.proof] if reads.proof else [])]


def _late(explanation: Explanation) -> list[str]:
    truth = explanation.truth
    lines = [_late_line(record, explanation) for record in explanation.late[:_SHOWN]]
    if not lines and truth is None and explanation.unknown and not explanation.verdicts:
        return []
    if truth is not None:
        of_key = "" if truth.has_key else " of all keys"
        lines.insert(
            0, f"{explanation.late_total} of the {truth.records} records{of_key} came after the window had closed"
        )
    return [*lines, *_more(explanation.late_total, "records")] or ["no record is known to be late"]


def _late_line(record: LateRecord, explanation: Explanation) -> str:
    read = "not on the head's path" if record.batch is None else f"batch {record.batch}, {_instant(record.read_at)}"
    published = explanation.published
    counted = (
        f"; backfill {published.backfill} counted it"
        if record.is_served and published is not None
        else "; not in what is served"
    )
    return (
        f"{record.place}: event time {to_iso(record.event_time)}, {_seconds(record.late_s)} too late "
        f"(watermark {to_iso(record.watermark)}), read by {read}{counted}"
    )


def _dead(explanation: Explanation) -> list[str]:
    if not explanation.dead_total:
        return ["no record among these offsets"]
    lines = [_dead_line(letter) for letter in explanation.dead[:_SHOWN]]
    return [*lines, *_more(explanation.dead_total, "records")]


def _dead_line(letter: DeadRecord) -> str:
    own = {True: "of this row", False: "of another row", None: "of which row is not known"}[letter.is_of_row]
    detail = "" if letter.detail is None else f": {letter.detail}"
    decided = "" if letter.decided_at is None else f" {_instant(letter.decided_at)} ({letter.why})"
    return f"{letter.place} ({letter.reason}{detail}), batch {letter.batch}, {letter.state}{decided}; {own}"


def _change(change: NumberChange) -> str:
    values = (
        "no row"
        if change.values is None
        else ", ".join(f"{name} {_cell(value)}" for name, value in change.values.items())
    )
    why = "" if change.why is None else f" ({change.why})"
    changed = f"; changed: {', '.join(change.changed)}" if change.changed else ""
    return f"{_instant(change.at)}  {change.state.value:<11}  {change.by}{why}: {values}{changed}"


def _verdict(verdict: ExplainedVerdict) -> str:
    stale = "" if verdict.stale is None else f"; out of date: {verdict.stale}"
    reason = f" ({verdict.reason})" if verdict.reason else ""
    return f"{verdict.pair} {verdict.verdict}{reason}, {_seconds(verdict.age_s)} old, run {verdict.run}{stale}"


def _acts(explanation: Explanation) -> list[str]:
    if not explanation.acts:
        return ["nothing to do" if explanation.is_closed else "wait: the window is open"]
    return [line for act in explanation.acts for line in (act.command, f"  {act.why}")]


def _more(total: int, what: str) -> list[str]:
    return [f"and {total - _SHOWN} more {what}; --output json lists more"] if total > _SHOWN else []


def _cell(value: Any) -> str:
    plain = json_value(value)
    if isinstance(plain, str):
        return json.dumps(plain) if plain in ("", "null") else plain
    return json.dumps(plain, ensure_ascii=False)


def _instant(instant: datetime | None) -> str:
    """Return an instant of the platform itself, to the second."""
    return "-" if instant is None else to_iso(instant.replace(microsecond=0))


def _seconds(seconds: float) -> str:
    """Return a duration to two units."""
    whole = int(seconds)
    for name, size, smaller, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds:.3g} s"
