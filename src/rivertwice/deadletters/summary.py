"""Look at the dead letters of a pipeline, and decide about them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from rivertwice.config import PipelineHome
from rivertwice.deadletters.amendments import append_amendments, last_amendment, read_amendments
from rivertwice.deadletters.model import (
    AMEND,
    DISCARD,
    OPEN,
    Amendment,
    Cure,
    DeadLetter,
    DeadLetterSummary,
    Header,
    RecordAddress,
    count_states,
    cures_of,
    describe_newest,
    newest_by_address,
)
from rivertwice.errors import RequestError
from rivertwice.store import delta
from rivertwice.timeline.committed import CommittedBatches, committed_batches

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
        rows = delta.read(home.tables.dead_letters, between=("offset", first, last))
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
    rows = delta.read(home.tables.dead_letters, columns=columns)
    if rows is None:
        return []
    return select_valid(rows.to_pylist(), committed, newest_by_address(read_amendments(home)))


def read_cures(home: PipelineHome, committed: CommittedBatches) -> list[Cure]:
    """Return every cure of the dead letters on a path, in order of decision; without amendments no letters are read."""
    amendments = read_amendments(home)
    rows = delta.read(home.tables.dead_letters) if amendments else None
    return [] if rows is None else cures_of(select_valid(rows.to_pylist(), committed, {}), amendments)


def summarise_dead_letters(
    home: PipelineHome, committed: CommittedBatches, fields: Mapping[str, Collection[str]] | None = None
) -> DeadLetterSummary:
    """Return the summary of the dead letters.

    Args:
        home: the pipeline's home.
        committed: batches of the head's path, which the caller has read.
        fields: topic to the names of its fields, for `DeadLetterSummary.newest`; None: it is not needed, and no bytes are read.
    """
    letters = read_brief(home, committed)
    since = [committed.committed_at((letter.timeline, letter.batch)) for letter in letters if letter.state == OPEN]
    described = ""
    if fields is not None:
        newest = sorted(letters, key=lambda letter: (letter.batch, letter.address.offset))[-NEWEST:]
        described = describe_newest(with_bytes(home, newest), fields)
    return DeadLetterSummary(count_states(letters), min(since, default=None), last_amendment(home), described)


def find_letter(letters: Sequence[DeadLetter], place: tuple[str | None, int, int], pipeline: str) -> DeadLetter:
    """Return the letter at a place (`model.parse_place`).

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
            f"several dead letters of {pipeline} are at {partition}@{offset}, in different topics; nothing was done; name one: "
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
            f"the amended record {letter.place} would be a dead letter too ({problem}); nothing was written; "
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
