"""Dead letters as plain values: by address, what was decided about each, and drafts of decisions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from rivertwice.core import RequestError, printable_line
from rivertwice.definition import Definition

AMEND, DISCARD = "amend", "discard"


class LetterState:
    """What was decided of a dead letter."""

    OPEN = "open"
    AMENDED = "amended"
    DISCARDED = "discarded"
    ALL = (OPEN, AMENDED, DISCARDED)


_STATE_OF = {AMEND: LetterState.AMENDED, DISCARD: LetterState.DISCARDED}
Header = tuple[str, bytes]


class RecordAddress(NamedTuple):
    """The address of a record in the log."""

    topic_id: str
    partition: int
    offset: int


@dataclass(frozen=True)
class Amendment:
    """One decision about one dead letter. The newest one for an address holds; none is ever changed.

    Attributes:
        seq: 1, 2, 3 ... without gap; a truth is computed up to one.
        kind: `amend` (the record should have had `value`) or `discard` (it is left out, which is right).
        value: the record's cure; None for a discard.
        why: the reason in the words of the person who decided. by: that person.
    """

    seq: int
    kind: str
    topic: str
    address: RecordAddress
    value: bytes | None
    why: str
    by: str
    created_at: datetime


@dataclass(frozen=True)
class DeadLetter:
    """A record that could not be accepted, as the stream kept it, and what was decided about it since.

    Attributes:
        timeline, batch: the batch that read it.
        amendment: the newest decision, None while it is open.
        named: its place names the topic, because the pipeline reads several.
    """

    topic: str
    address: RecordAddress
    timeline: str
    batch: int
    reason: str
    detail: str | None
    record_time: datetime
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] | None
    amendment: Amendment | None = None
    named: bool = False

    @property
    def state(self) -> str:
        """`open`, `amended` or `discarded`."""
        return LetterState.OPEN if self.amendment is None else _STATE_OF[self.amendment.kind]

    @property
    def place(self) -> str:
        """The address as a person writes it: PARTITION@OFFSET, or TOPIC/PARTITION@OFFSET if there are several topics."""
        return f"{f'{self.topic}/' if self.named else ''}{self.address.partition}@{self.address.offset}"

    def is_amended(self, value: bytes, decision: Decision) -> bool:
        """Say whether a letter was given this value by this request already."""
        return decision.made(self, AMEND, value)


@dataclass(frozen=True)
class DeadLetterSummary:
    """Summary of the dead letters of a pipeline.

    Attributes:
        counts: reason to state to number.
        oldest_open: when the batch of the oldest open one was committed, None if none is open.
        newest: what the newest ones have in common, in words; empty if there are none.
    """

    counts: Mapping[str, Mapping[str, int]]
    oldest_open: datetime | None
    last_seq: int
    newest: str = ""

    def total(self, state: str) -> int:
        """Return how many dead letters are in a state."""
        return sum(states.get(state, 0) for states in self.counts.values())


def describe_newest(letters: Sequence[DeadLetter], fields: Mapping[str, Collection[str]]) -> str:
    """Return what most of some dead letters have in common: reason and detail, and fields that no schema names. Pure.

    Args:
        letters: with their bytes; empty gives an empty text.
        fields: topic to the names that its records may have at the top, as the definition declares them.
    """
    if not letters:
        return ""
    (reason, detail), count = Counter((letter.reason, letter.detail) for letter in letters).most_common(1)[0]
    text = f"{count} of the newest {len(letters)}: {reason}{f' ({printable_line(detail)[:100]})' if detail else ''}"
    unknown = Counter(
        name for letter in letters for name in _names(letter.value) if name not in fields.get(letter.topic, ())
    )
    often = sorted(name for name, times in unknown.items() if 2 * times >= len(letters))[:_NAMES_SHOWN]
    return (
        f"{text}; they have {', '.join(map(printable_line, often))}, which the definition does not name"
        if often
        else text
    )


def _names(value: bytes | None) -> Collection[str]:
    try:
        parsed = json.loads(value or b"")
    except (ValueError, RecursionError):
        return ()
    return parsed.keys() if isinstance(parsed, dict) else ()


_NAMES_SHOWN = 3


def parse_address(text: str) -> tuple[str | None, int, int]:
    """Read PARTITION@OFFSET or TOPIC/PARTITION@OFFSET: (topic or None, partition, offset).

    Raises:
        RequestError: the text has neither form.
    """
    topic, slash, rest = text.rpartition("/")
    partition, mark, offset = rest.partition("@")
    fits = mark and partition.isdecimal() and offset.isdecimal() and len(rest) <= 40 and len(topic) <= 249
    if not fits or bool(slash) != bool(topic):
        message = (
            f"{text[:60]!r} names no record; write PARTITION@OFFSET (or TOPIC/PARTITION@OFFSET) as `rivertwice dead list` "
            "shows it, for instance 2@117"
        )
        raise RequestError(message)
    return topic or None, int(partition), int(offset)


@dataclass(frozen=True)
class Cure:
    """A value that a dead letter should have had, by an amendment; a later decision may end it.

    Attributes:
        first_seq: the amendment. until_seq: the decision about the same address that ended it, or None.
    """

    letter: DeadLetter
    value: bytes
    first_seq: int
    until_seq: int | None = None

    def holds_at(self, seq: int) -> bool:
        """Say whether it held as of a decision's number."""
        return self.first_seq <= seq and (self.until_seq is None or seq < self.until_seq)


def cures_of(letters: Iterable[DeadLetter], amendments: Iterable[Amendment]) -> list[Cure]:
    """Return every cure of `letters`, including ended ones, in the order of the decisions."""
    by_address = {letter.address: letter for letter in letters}
    decided: dict[RecordAddress, list[Amendment]] = {}
    for amendment in sorted(amendments, key=lambda decision: decision.seq):
        decided.setdefault(amendment.address, []).append(amendment)
    cures = []
    for address, decisions in decided.items():
        ends = [decision.seq for decision in decisions[1:]]
        for amendment, until in zip(decisions, [*ends, None], strict=True):
            if amendment.value is not None and address in by_address:
                cures.append(Cure(by_address[address], amendment.value, amendment.seq, until))
    return sorted(cures, key=lambda cure: cure.first_seq)


def newest_by_address(amendments: Iterable[Amendment], upto: int | None = None) -> dict[RecordAddress, Amendment]:
    """Return the decision that holds for each address, as of a sequence number."""
    ordered = sorted(amendments, key=lambda amendment: amendment.seq)
    return {amendment.address: amendment for amendment in ordered if upto is None or amendment.seq <= upto}


def count_states(letters: Iterable[DeadLetter]) -> dict[str, dict[str, int]]:
    """Return reason to state to number."""
    by_reason: dict[str, dict[str, int]] = {}
    for letter in letters:
        states = by_reason.setdefault(letter.reason, dict.fromkeys(LetterState.ALL, 0))
        states[letter.state] += 1
    return dict(sorted(by_reason.items()))


# Which dead letters a decision is about, when it may have been made before by the same request. Pure.
#
# A worker may be killed after a decision was written and before that is known: the request then comes again. A decision of the same
# kind, person and reason that was made since the request is this one.


@dataclass(frozen=True)
class Decision:
    """The person who decides, why, and since when it is asked for."""

    by: str
    why: str
    since: datetime

    def made(self, letter: DeadLetter, kind: str, value: bytes | None = None) -> bool:
        """Say whether a letter's newest decision is this one."""
        found = letter.amendment
        return (
            found is not None
            and (found.kind, found.by, found.why, found.value) == (kind, self.by, self.why, value)
            and found.created_at >= self.since
        )


def select_discards(
    letters: Sequence[DeadLetter], decision: Decision, *, reason: str | None = None
) -> list[DeadLetter]:
    """Return the letters that still have to be discarded; none if this request has discarded all of them.

    Args:
        letters: the one letter that is named; with `reason`, all of the pipeline.
        decision: who asks, and why.
        reason: all open letters that were rejected for it; None: `letters` is what is named.

    Raises:
        RequestError: there is nothing to discard, and this request has discarded nothing.
    """
    chosen = [
        letter for letter in letters if reason is None or (letter.state == LetterState.OPEN and letter.reason == reason)
    ]
    left = [letter for letter in chosen if not decision.made(letter, DISCARD)]
    if left or any(decision.made(letter, DISCARD) and reason in (None, letter.reason) for letter in letters):
        return left
    message = f"no open dead letter has the reason {str(reason)[:80]!r}; `rivertwice dead list` shows them"
    raise RequestError(message)


def cure_applies(definition: Definition, topic: str) -> bool:
    """Say whether a cure of a record of `topic` is applied: only for streams in windows, sessions and intervals.

    A cure would change a fold, or a table, from its record on: no rule explains that yet.
    """
    view_and_source = definition.by_topic.get(topic)
    return view_and_source is not None and definition.window.kind.takes_cures and not view_and_source[1].is_table
