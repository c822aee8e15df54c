"""Records beside the result: dead letters by reason with a sample, and the windows that wait for a correction of late rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rivertwice.backfill.late_queue import QueuedWindow, describe_queue
from rivertwice.backfill.observe import observe_late_queue
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import from_ms, to_iso
from rivertwice.definition.model import Definition
from rivertwice.storage import Remembered
from rivertwice.timeline.committed import CommittedBatches, committed_batches
from rivertwice.timeline.dead_letters import OPEN, STATES, DeadLetter, count_states, cure_applies, parse_place
from rivertwice.timeline.dead_summary import find_letter, read_brief, with_bytes
from rivertwice.timeline.lineage import Segment, head_definition, head_path

SAMPLE = 20
"""Letters that are shown of a choice."""
SHOWN_CHARS = 200
"""Characters of a value in a list; one letter alone is shown with `WHOLE_CHARS`."""
WHOLE_CHARS = 20_000
MOST_WINDOWS = 200
"""Windows of the late queue that are listed."""

_LETTERS: Remembered[dict[str, Any]] = Remembered(32)
"""Answers, each bounded by the sample; letters are counted again only after a commit."""
_WITHOUT_QUEUE = {
    "drop": "late rows are not kept: they stay in the log, and a backfill of their windows counts them",
    "side_output": "late rows are kept in the table late_rows and queue nothing; a backfill of their windows counts them",
}


def describe_letters(
    home: PipelineHome, *, state: str | None = None, reason: str | None = None, values: bool = False
) -> dict[str, Any]:
    """Return the dead letters of a pipeline: counts of all by reason and state, and a sample of those that are chosen.

    Args:
        home: of the pipeline.
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
) -> dict[str, Any]:
    committed = committed_batches(home, path)
    letters = read_brief(home, committed)
    counts = count_states(letters)
    chosen = [letter for letter in letters if state in (None, letter.state) and reason in (None, letter.reason)]
    sample = chosen[:SAMPLE]
    shown = with_bytes(home, sample) if values else sample
    return {
        "counts": [{"reason": name, **states} for name, states in counts.items()],
        "totals": {name: sum(states[name] for states in counts.values()) for name in STATES},
        "oldest_open": _oldest_open(letters, committed),
        "chosen": len(chosen),
        "values": values,
        "sample": [describe_letter(letter, SHOWN_CHARS) for letter in shown],
    }


def describe_one(home: PipelineHome, place: str, definition: Definition, *, values: bool) -> dict[str, Any]:
    """Return one dead letter, with what an amendment of it would do.

    Raises:
        RequestError: no dead letter is at the place.
    """
    name = home.root.name
    letter = find_letter(read_brief(home, committed_batches(home, head_path(home))), parse_place(place), name)
    shown = with_bytes(home, [letter])[0] if values else letter
    applies = cure_applies(definition, letter.topic)
    return {
        **describe_letter(shown, WHOLE_CHARS),
        "values": values,
        "applies": applies,
        "then": describe_amendment(name, applies=applies),
    }


def describe_amendment(pipeline: str, *, applies: bool) -> str:
    """Return what follows from an amendment. Pure."""
    if applies:
        return f"the next reconcile of {pipeline} counts it, and a backfill of its window brings it into what is served"
    return "it is recorded and counted only: no rule explains what it changes of sessions, folds and tables"


def describe_letter(letter: DeadLetter, chars: int) -> dict[str, Any]:
    """Return a letter as it is shown, its values as text of a maximum length. Pure."""
    decided = letter.amendment
    return {
        "place": letter.place,
        "topic": letter.topic,
        "state": letter.state,
        "reason": letter.reason,
        "detail": shorten(letter.detail, chars),
        "timeline": letter.timeline,
        "batch": letter.batch,
        "record_time": to_iso(letter.record_time),
        "key": shorten(as_text(letter.key), chars),
        "value": shorten(as_text(letter.value), chars),
        "bytes": None if letter.value is None else len(letter.value),
        "headers": None
        if letter.headers is None
        else [[name, shorten(as_text(value), chars)] for name, value in letter.headers[:20]],
        "decided": None
        if decided is None
        else {"kind": decided.kind, "by": decided.by, "why": decided.why, "at": to_iso(decided.created_at)},
    }


def as_text(data: bytes | None) -> str | None:
    """Return bytes as text; what is not UTF-8 is shown by its numbers. Pure."""
    return None if data is None else data.decode("utf-8", errors="backslashreplace")


def shorten(text: str | None, chars: int) -> str | None:
    """Return a text of a maximum length, with three dots if it was longer. Pure."""
    return text if text is None or len(text) <= chars else f"{text[:chars]}..."


def _oldest_open(letters: Sequence[DeadLetter], committed: CommittedBatches) -> str | None:
    since = [committed.committed_at((letter.timeline, letter.batch)) for letter in letters if letter.state == OPEN]
    return to_iso(min(since)) if since else None


def describe_late(home: PipelineHome, now: datetime) -> dict[str, Any]:
    """Return a pipeline's late policy, the rows that it has kept, and the windows that wait for their correction."""
    definition = head_definition(home)
    if definition is None:
        return {"policy": None, "kept": 0, "windows": [], "total": 0, "text": "its stream was never started"}
    policy = definition.late
    shown: dict[str, Any] = {
        "policy": policy.policy,
        "kept": committed_batches(home, head_path(home)).total("late_rows"),
    }
    if not policy.queues_windows:
        return {**shown, "windows": [], "total": 0, "text": _WITHOUT_QUEUE[policy.policy]}
    queue = observe_late_queue(home, now)
    return {
        **shown,
        "debounce_s": policy.debounce.total_seconds(),
        "horizon_s": policy.horizon.total_seconds(),
        "total": len(queue),
        "states": dict(Counter(window.state for window in queue)),
        "windows": [describe_window(window) for window in queue[:MOST_WINDOWS]],
        "text": describe_queue(queue),
    }


def describe_window(window: QueuedWindow) -> dict[str, Any]:
    """Return a window of the late queue as it is shown. Pure."""
    return {
        "start": window.window,
        "end": to_iso(from_ms(window.end_ms)),
        "state": window.state,
        "records": window.records,
        "first_at": to_iso(window.first_at),
        "last_at": to_iso(window.last_at),
        "due_at": to_iso(window.due_at),
    }
