"""Look at the dead letters of a pipeline: how many, why, the newest ones, and the amendments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

import pyarrow as pa

from rivertwice.core import LedgerError, LostRaceError, PipelineHome, RequestError
from rivertwice.definition import Definition
from rivertwice.storage import Remembered, Snapshot, Table, Where
from rivertwice.timeline.committed import CommittedBatches, committed_batches, newest_batches
from rivertwice.timeline.dead_letters import (
    AMEND,
    DISCARD,
    Amendment,
    Cure,
    DeadLetter,
    DeadLetterSummary,
    Header,
    LetterState,
    RecordAddress,
    count_states,
    cures_of,
    describe_newest,
    newest_by_address,
)
from rivertwice.timeline.lineage import Segment, head_path

# The table of amendments: append-only; each has its own commit and asserts its predecessor.

FORMAT = 1
SCHEMA = pa.schema(
    [
        ("_format", pa.int32()),
        ("seq", pa.int64()),
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("value", pa.binary()),
        ("why", pa.string()),
        ("by", pa.string()),
        ("created_at", pa.timestamp("us", "UTC")),
    ]
)


def amendments_app(home: PipelineHome) -> str:
    """Return the application id of the table's transactions."""
    return f"amendments/{home.root.name}"


def last_amendment(home: PipelineHome) -> int:
    """Return the newest amendment's number, 0 if there is none."""
    return Table(home.tables.amendments).applied_version(amendments_app(home)) or 0


def read_amendments(home: PipelineHome) -> list[Amendment]:
    """Return all amendments, oldest first.

    Raises:
        LedgerError: a row has the format of another version.
    """
    rows = Table(home.tables.amendments).read()
    return (
        []
        if rows is None
        else sorted((_read_amendments(row) for row in rows.to_pylist()), key=lambda amendment: amendment.seq)
    )


def append_amendments(home: PipelineHome, decided: list[Amendment], *, expected_seq: int) -> list[Amendment]:
    """Append decisions in one commit, numbered from `expected_seq` + 1 on; return them numbered.

    Raises:
        LostRaceError: another decision was made since `expected_seq` was read; nothing was written.
    """
    numbered = [replace(amendment, seq=expected_seq + place) for place, amendment in enumerate(decided, start=1)]
    if not numbered:
        return []
    rows = [
        {
            "_format": FORMAT,
            "seq": amendment.seq,
            "kind": amendment.kind,
            "topic": amendment.topic,
            **amendment.address._asdict(),
            "value": amendment.value,
            "why": amendment.why,
            "by": amendment.by,
            "created_at": amendment.created_at,
        }
        for amendment in numbered
    ]

    def follows(table: Snapshot) -> None:
        newest_seq = table.applied_version(amendments_app(home)) or 0
        if newest_seq != expected_seq:
            raise LostRaceError(_raced(home, newest_seq, expected_seq))

    Table(home.tables.amendments).append(
        pa.Table.from_pylist(rows, schema=SCHEMA), transactions={amendments_app(home): numbered[-1].seq}, check=follows
    )
    return numbered


def _raced(home: PipelineHome, newest_seq: int, expected: int) -> str:
    return (
        f"the amendments of {home.root.name} are at {newest_seq}, not at {expected}: another process decided about dead letters "
        "meanwhile; look again (`rivertwice dead list`) and decide again"
    )


def _read_amendments(row: dict[str, object]) -> Amendment:
    values = dict(row)
    if values.pop("_format") != FORMAT:
        message = f"an amendment has format {row['_format']!r}, this version reads {FORMAT}; use a newer rivertwice"
        raise LedgerError(message)
    address = RecordAddress(values.pop("topic_id"), values.pop("partition"), values.pop("offset"))  # type: ignore[arg-type]
    return Amendment(address=address, **values)  # type: ignore[arg-type]


BRIEF = ("_timeline", "_batch", "reason", "detail", "topic", "topic_id", "partition", "offset", "record_time")
"""Columns of the table without the records' own bytes: enough to count, and cheap to read often."""
NEWEST = 100
"""Dead letters whose bytes are looked at to say what the newest ones have in common."""
Judge = Callable[[DeadLetter, bytes], str | None]
"""Decode a letter with another value; return why it is not accepted either, None if it is."""


def select_valid(
    rows: Iterable[Mapping[str, Any]], committed: CommittedBatches, decisions: Mapping[RecordAddress, Amendment]
) -> list[DeadLetter]:
    """Return the dead letters that count: those of committed batches on the head's path, by topic, partition and offset.

    Pure. Key, value and headers are None if the rows were read without them (`BRIEF`).
    """
    letters = []
    for row in rows:
        if (row["_timeline"], row["_batch"]) not in committed:
            continue
        address = RecordAddress(row["topic_id"], row["partition"], row["offset"])
        letters.append(
            DeadLetter(
                topic=row["topic"],
                address=address,
                timeline=row["_timeline"],
                batch=row["_batch"],
                reason=row["reason"],
                detail=row["detail"],
                record_time=row["record_time"],
                key=row.get("key"),
                value=row.get("value"),
                headers=_headers(row.get("headers")),
                amendment=decisions.get(address),
                named=committed.has_several_topics,
            )
        )
    return sorted(letters, key=lambda letter: (letter.topic, letter.address.partition, letter.address.offset))


def _headers(headers: Sequence[Mapping[str, Any]] | None) -> list[Header] | None:
    return None if headers is None else [(header["key"], header["value"]) for header in headers]


def read_letters(home: PipelineHome) -> list[DeadLetter]:
    """Return every dead letter that counts, with its bytes and what was decided about it."""
    return _read(home, committed_batches(home), None)


def read_brief(home: PipelineHome, committed: CommittedBatches) -> list[DeadLetter]:
    """Return every dead letter that counts, without its bytes. `committed`: of the head's path, which the caller has read."""
    return _read(home, committed, BRIEF)


def with_bytes(home: PipelineHome, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    """Add the bytes to letters that were read without them. No other bytes are held: a letter may have a megabyte."""
    wanted = {(letter.timeline, letter.batch, letter.address): letter for letter in letters}
    complete = {}
    for first, last in _runs({letter.address.offset for letter in letters}):
        rows = Table(home.tables.dead_letters).read(matching=Where("offset").is_between(first, last))
        for row in [] if rows is None else rows.to_pylist():
            place = (row["_timeline"], row["_batch"], RecordAddress(row["topic_id"], row["partition"], row["offset"]))
            if place in wanted:
                parts = {"key": row["key"], "value": row["value"], "headers": _headers(row["headers"])}
                complete[place] = replace(wanted[place], **parts)
    return [complete.get((letter.timeline, letter.batch, letter.address), letter) for letter in letters]


def _runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of offsets without a hole. Pure."""
    start = last = None
    for offset in sorted(offsets):
        if start is not None and last is not None and offset != last + 1:
            yield start, last
            start = offset
        start, last = offset if start is None else start, offset
    if start is not None and last is not None:
        yield start, last


def _read(home: PipelineHome, committed: CommittedBatches, columns: Sequence[str] | None) -> list[DeadLetter]:
    rows = Table(home.tables.dead_letters).read(columns=columns)
    if rows is None:
        return []
    return select_valid(rows.to_pylist(), committed, newest_by_address(read_amendments(home)))


def read_cures(home: PipelineHome, committed: CommittedBatches) -> list[Cure]:
    """Return every cure of the dead letters on a path, in order of decision; without amendments no letters are read."""
    amendments = read_amendments(home)
    rows = Table(home.tables.dead_letters).read() if amendments else None
    return [] if rows is None else cures_of(select_valid(rows.to_pylist(), committed, {}), amendments)


def summarise_dead_letters(
    home: PipelineHome, committed: CommittedBatches, fields: Mapping[str, Collection[str]] | None = None
) -> DeadLetterSummary:
    """Return the summary of the dead letters.

    Args:
        committed: batches of the head's path, which the caller has read.
        fields: topic to the names of its fields, for `DeadLetterSummary.newest`; None: it is not needed, and no bytes are read.
    """
    letters = read_brief(home, committed)
    since = [
        committed.committed_at((letter.timeline, letter.batch))
        for letter in letters
        if letter.state == LetterState.OPEN
    ]
    described = ""
    if fields is not None:
        newest = sorted(letters, key=lambda letter: (letter.batch, letter.address.offset))[-NEWEST:]
        described = describe_newest(with_bytes(home, newest), fields)
    return DeadLetterSummary(count_states(letters), min(since, default=None), last_amendment(home), described)


def find_letter(letters: Sequence[DeadLetter], place: tuple[str | None, int, int], pipeline: str) -> DeadLetter:
    """Return the letter at a place (`parse_address`).

    Raises:
        RequestError: no dead letter is at this place, or several topics have one there and none is named.
    """
    topic, partition, offset = place
    matching = [
        letter
        for letter in letters
        if (letter.address.partition, letter.address.offset) == (partition, offset) and topic in (None, letter.topic)
    ]
    if len(matching) == 1:
        return matching[0]
    if matching:
        message = (
            f"several dead letters of {pipeline} are at {partition}@{offset}, in different topics; name one: "
            + ", ".join(letter.place for letter in matching)
        )
        raise RequestError(message)
    message = (
        f"no dead letter of {pipeline} is at {f'{topic}/' if topic else ''}{partition}@{offset}: the record was accepted, or not read yet; "
        f"`rivertwice dead list {pipeline}` shows those there are"
    )
    raise RequestError(message)


def amend(
    home: PipelineHome, letter: DeadLetter, value: bytes, judge: Judge, *, why: str, by: str, now: datetime
) -> Amendment:
    """Record what a dead letter should have been. What is served changes with the next backfill of its window.

    Raises:
        RequestError: the value would be a dead letter too.
        LostRaceError: another decision was made meanwhile.
    """
    last_seq = last_amendment(home)
    problem = judge(letter, value)
    if problem is not None:
        message = (
            f"the amended record {letter.place} would be a dead letter too ({problem}); "
            "correct the value, or discard the record"
        )
        raise RequestError(message)
    decided = Amendment(0, AMEND, letter.topic, letter.address, value, why, by, now)
    return append_amendments(home, [decided], expected_seq=last_seq)[0]


def discard(home: PipelineHome, letters: Sequence[DeadLetter], *, why: str, by: str, now: datetime) -> list[Amendment]:
    """Record that it is right to leave out some dead letters, all in one commit.

    Raises:
        LostRaceError: another decision was made meanwhile.
    """
    last_seq = last_amendment(home)
    decided = [Amendment(0, DISCARD, letter.topic, letter.address, None, why, by, now) for letter in letters]
    return append_amendments(home, decided, expected_seq=last_seq)


# Whether too many of the newest records are dead letters: the same for an alert, a reconcile's gate, `status` and the page.

RECENT = 100
"""Batches that count as recent."""
NEWEST_RECORDS, SUDDEN = 100, 0.1
"""Dead letters among the newest records count by themselves from this share on, and of no fewer records."""


class CountedBatch(Protocol):
    """A batch of which it is known how many records it read, and how many of them are dead letters."""

    @property
    def read(self) -> int:
        """Records."""
        ...

    @property
    def bad(self) -> int:
        """Dead letters."""
        ...


@dataclass(frozen=True)
class NewestDead:
    """Dead letters among the newest records of the head's path.

    Attributes:
        share: of them; None: no record was read.
        open: dead letters of which nothing was decided.
        text: what the newest dead letters have in common, in words; empty if there are none.
    """

    share: float | None = None
    open: int = 0
    text: str = ""

    def describe(self, limit: float) -> str:
        """Return what is wrong, in words; empty: not more than the limit allows, or all of them were decided about. Pure."""
        if self.share is None or self.share <= limit or not self.open:
            return ""
        fact = f"{self.share * 100:.3g} % of the newest records cannot be decoded or break a rule (limit {limit * 100:.3g} %)"
        return f"{fact}: {self.text}" if self.text else fact


def dead_share(batches: Sequence[CountedBatch]) -> float | None:
    """Return the share of dead letters among the newest records; None without records.

    That is the newest hundred batches, or the newest batches of at least a hundred records if they have a much larger share: a
    producer that renamed a field breaks every record from now on, and these are few among a hundred batches. Pure.
    """
    recent = batches[-RECENT:]
    over_all = _share(recent)
    count = 0
    for place in reversed(range(len(recent))):
        count += recent[place].read
        if count >= NEWEST_RECORDS:
            newest = _share(recent[place:])
            return (
                max(newest, over_all) if newest is not None and over_all is not None and newest >= SUDDEN else over_all
            )
    return over_all


def _share(batches: Sequence[CountedBatch]) -> float | None:
    read = sum(batch.read for batch in batches)
    return sum(batch.bad for batch in batches) / read if read else None


def fields_of(definition: Definition) -> Mapping[str, Collection[str]]:
    """Return topic to the names that its records may have at the top, as the definition declares them. Pure."""
    return {
        source.topic: {source.parts_of(field)[0] for field in source.schema_} for source in definition.sources.values()
    }


def read_newest_dead(home: PipelineHome, definition: Definition) -> NewestDead:
    """Return the dead letters among the newest records of the head's path; no letter is read if there are none."""
    path, tables = head_path(home), home.tables
    return _NEWEST.get(
        (str(home.root), tuple(path)),
        (tables.ledger, tables.changelog, tables.dead_letters, tables.amendments),
        lambda: _read_newest(home, definition, path),
    )


def _read_newest(home: PipelineHome, definition: Definition, path: Sequence[Segment]) -> NewestDead:
    committed = committed_batches(home, path)
    share = dead_share(newest_batches(home, committed, path, RECENT))
    if not share:
        return NewestDead(share)
    summary = summarise_dead_letters(home, committed, fields_of(definition))
    return NewestDead(share, summary.total(LetterState.OPEN), summary.newest)


_NEWEST: Remembered[NewestDead] = Remembered()
