"""Records beside the result: dead letters by reason with a sample, and the windows that wait for a correction of late rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime

from rivertwice.backfill import QueuedWindow, describe_queue, observe_late_queue
from rivertwice.core import PipelineHome, from_ms
from rivertwice.definition import Definition
from rivertwice.storage import Remembered
from rivertwice.timeline import (
    CommittedBatches,
    DeadLetter,
    LetterState,
    Segment,
    committed_batches,
    count_states,
    cure_applies,
    find_letter,
    head_definition,
    head_path,
    parse_address,
    read_brief,
    with_bytes,
)

SAMPLE = 20
"""Letters that are shown of a choice."""
SHOWN_CHARS = 200
"""Characters of a value in a list; one letter alone is shown with `WHOLE_CHARS`."""
WHOLE_CHARS = 20_000
MOST_WINDOWS = 200
"""Windows of the late queue that are listed."""

_LETTERS: Remembered[LetterList] = Remembered(32)
"""Answers, each bounded by the sample; letters are counted again only after a commit."""
_WITHOUT_QUEUE = {
    "drop": "late rows are not kept: they stay in the log, and a backfill of their windows counts them",
    "side_output": "late rows are kept in the table late_rows and queue nothing; a backfill of their windows counts them",
}


@dataclass(frozen=True)
class LetterDecision:
    """What was decided about a dead letter: amended or discarded, by whom, why and when."""

    kind: str
    by: str
    why: str
    at: datetime


@dataclass(frozen=True)
class LetterView:
    """A dead letter as it is shown; its values are None if they may not be seen.

    Attributes:
        bytes: size of its value.
    """

    place: str
    topic: str
    state: str
    reason: str
    detail: str | None
    timeline: str
    batch: int
    record_time: datetime
    key: str | None
    value: str | None
    bytes: int | None
    headers: tuple[tuple[str, str | None], ...] | None
    decided: LetterDecision | None


@dataclass(frozen=True)
class WholeLetter(LetterView):
    """A dead letter whole, whether its values are shown, whether an amendment changes results, and what follows from one."""

    values: bool
    applies: bool
    then: str


@dataclass(frozen=True)
class ReasonCounts:
    """How many dead letters there are for a reason, by state."""

    reason: str
    open: int
    amended: int
    discarded: int


@dataclass(frozen=True)
class LetterSample:
    """A choice of dead letters: how many, and the first of them."""

    chosen: int
    sample: tuple[LetterView, ...]


@dataclass(frozen=True)
class LetterList(LetterSample):
    """The dead letters of a pipeline: counts of all by reason, in all, and a sample of those that are chosen."""

    counts: tuple[ReasonCounts, ...]
    totals: Mapping[str, int]
    oldest_open: datetime | None
    values: bool


@dataclass(frozen=True)
class LateWindow:
    """A window of the late queue."""

    start: str
    end: datetime
    state: str
    records: int
    first_at: datetime
    last_at: datetime
    due_at: datetime


@dataclass(frozen=True)
class LateView:
    """A pipeline's late policy, the rows that it has kept, and the windows that wait for their correction, by state and the first ones."""

    policy: str | None
    kept: int
    text: str
    windows: tuple[LateWindow, ...] = ()
    total: int = 0
    states: Mapping[str, int] = field(default_factory=dict)
    debounce_s: float | None = None
    horizon_s: float | None = None


def describe_letters(
    home: PipelineHome, *, state: str | None = None, reason: str | None = None, values: bool = False
) -> LetterList:
    """Return the dead letters of a pipeline.

    Args:
        state: only letters in this state are in the sample.
        reason: only letters that were rejected for this.
        values: whether the sample has the records' values, shortened; else it has their places only.
    """
    path, tables = head_path(home), home.tables
    return _LETTERS.get(
        (str(home.root), tuple(path), state, reason, values),
        (tables.ledger, tables.changelog, tables.dead_letters, tables.amendments),
        lambda: _describe_letters(home, path, state, reason, values=values),
    )


def _describe_letters(
    home: PipelineHome, path: Sequence[Segment], state: str | None, reason: str | None, *, values: bool
) -> LetterList:
    committed = committed_batches(home, path)
    letters = read_brief(home, committed)
    counts = count_states(letters)
    chosen = [letter for letter in letters if state in (None, letter.state) and reason in (None, letter.reason)]
    sample = chosen[:SAMPLE]
    shown = with_bytes(home, sample) if values else sample
    return LetterList(
        chosen=len(chosen),
        sample=tuple(describe_letter(letter, SHOWN_CHARS) for letter in shown),
        counts=tuple(ReasonCounts(name, **states) for name, states in counts.items()),
        totals={each.name: sum(states[each.name] for states in counts.values()) for each in fields(ReasonCounts)[1:]},
        oldest_open=_oldest_open(letters, committed),
        values=values,
    )


def describe_one(home: PipelineHome, place: str, definition: Definition, *, values: bool) -> WholeLetter:
    """Return one dead letter, with what an amendment of it would do.

    Raises:
        RequestError: no dead letter is at the place.
    """
    name = home.root.name
    letter = find_letter(read_brief(home, committed_batches(home, head_path(home))), parse_address(place), name)
    shown = with_bytes(home, [letter])[0] if values else letter
    applies = cure_applies(definition, letter.topic)
    view = describe_letter(shown, WHOLE_CHARS)
    return WholeLetter(**vars(view), values=values, applies=applies, then=describe_amendment(name, applies=applies))


def sample_to_discard(home: PipelineHome, definition: Definition, place: str, reason: str) -> LetterSample:
    """Return which letters a discard would be about: the one at a place, or all open ones that were rejected for a reason.

    Raises:
        RequestError: no dead letter is at the place.
    """
    if place:
        return LetterSample(1, (describe_one(home, place, definition, values=True),))
    found = describe_letters(home, state="open", reason=reason, values=True)
    return LetterSample(found.chosen, found.sample)


def describe_amendment(pipeline: str, *, applies: bool) -> str:
    """Return what follows from an amendment. Pure."""
    if applies:
        return f"the next reconcile of {pipeline} counts it, and a backfill of its window brings it into what is served"
    return "it is recorded and counted only: no rule explains what it changes of sessions, folds and tables"


def describe_letter(letter: DeadLetter, chars: int) -> LetterView:
    """Return a letter as it is shown, its values as text of a maximum length. Pure."""
    decided, headers = letter.amendment, None
    if letter.headers is not None:
        headers = tuple((name, shorten(as_text(value), chars)) for name, value in letter.headers[:20])
    return LetterView(
        place=letter.place,
        topic=letter.topic,
        state=letter.state,
        reason=letter.reason,
        detail=shorten(letter.detail, chars),
        timeline=letter.timeline,
        batch=letter.batch,
        record_time=letter.record_time,
        key=shorten(as_text(letter.key), chars),
        value=shorten(as_text(letter.value), chars),
        bytes=None if letter.value is None else len(letter.value),
        headers=headers,
        decided=None if decided is None else LetterDecision(decided.kind, decided.by, decided.why, decided.created_at),
    )


def as_text(data: bytes | None) -> str | None:
    """Return bytes as text; what is not UTF-8 is shown by its numbers. Pure."""
    return None if data is None else data.decode("utf-8", errors="backslashreplace")


def shorten(text: str | None, chars: int) -> str | None:
    """Return a text of a maximum length, with three dots if it was longer. Pure."""
    return text if text is None or len(text) <= chars else f"{text[:chars]}..."


def _oldest_open(letters: Sequence[DeadLetter], committed: CommittedBatches) -> datetime | None:
    since = [
        committed.committed_at((letter.timeline, letter.batch))
        for letter in letters
        if letter.state == LetterState.OPEN
    ]
    return min(since, default=None)


def describe_late(home: PipelineHome, now: datetime) -> LateView:
    """Return what happens to a pipeline's late rows."""
    definition = head_definition(home)
    if definition is None:
        return LateView(None, 0, "its stream was never started")
    policy = definition.late
    kept = committed_batches(home, head_path(home)).total("late_rows")
    if not policy.queues_windows:
        return LateView(policy.policy, kept, _WITHOUT_QUEUE[policy.policy])
    queue = observe_late_queue(home, now)
    return LateView(
        policy.policy,
        kept,
        describe_queue(queue),
        tuple(describe_window(window) for window in queue[:MOST_WINDOWS]),
        len(queue),
        Counter(window.state for window in queue),
        policy.debounce.total_seconds(),
        policy.horizon.total_seconds(),
    )


def describe_window(window: QueuedWindow) -> LateWindow:
    """Return a window of the late queue as it is shown. Pure."""
    times = (window.first_at, window.last_at, window.due_at)
    return LateWindow(window.window, from_ms(window.end_ms), window.state, window.records, *times)
