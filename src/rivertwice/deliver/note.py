"""A deliverer's note about its progress, for `status`, and the lock that keeps a second deliverer of this home away.

`HOME/pipelines/NAME/delivery/SINK/note.json`, format 1. Delivery does not depend on it: the valid position is in the sink. The
note only prevents a new beginning at a sink to which steps were delivered before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rivertwice.core import LeaseLostError, PipelineHome, lock_or_refuse, parse_iso, require_name, to_plain
from rivertwice.deliver.model import Position
from rivertwice.deliver.wire import plain_position, position_of
from rivertwice.storage import read_json, replace_json

FORMAT = 1


@dataclass(frozen=True)
class Note:
    """What this home knows about a sink.

    Attributes:
        position: its last position, None before the first step.
        rows: records delivered by deliverers of this home.
        failures: number of failures in a row, without a delivered step between them.
        error: the last error, empty after a step.
        next_attempt: before this instant the agent does not try again.
    """

    position: Position | None = None
    rows: int = 0
    delivered_at: datetime | None = None
    failures: int = 0
    error: str = ""
    failed_at: datetime | None = None
    next_attempt: datetime | None = None


_INSTANTS = ("delivered_at", "failed_at", "next_attempt")


def folder_of(home: PipelineHome, sink: str) -> Path:
    """Return the folder of a sink's note and lock."""
    return home.root / "delivery" / require_name(sink, "sink")


def read_note(home: PipelineHome, sink: str) -> Note:
    """Return what this home knows about a sink."""
    plain: dict[str, Any] | None = read_json(folder_of(home, sink) / "note.json")
    if plain is None or plain.pop("format", None) != FORMAT:
        return Note()
    position = plain.pop("position")
    instants = {name: None if plain[name] is None else parse_iso(plain[name]) for name in _INSTANTS}
    return Note(**{**plain, **instants, "position": None if position is None else position_of(position)})


def noted_sinks(home: PipelineHome) -> dict[str, Note]:
    """Return name to note of each sink that this home has delivered to, whether it is still defined or not."""
    folder = home.root / "delivery"
    names = sorted(path.parent.name for path in folder.glob("*/note.json"))
    return {name: read_note(home, name) for name in names}


def write_note(home: PipelineHome, sink: str, note: Note) -> None:
    """Store a sink's note."""
    position = None if note.position is None else plain_position(note.position)
    stored = {"format": FORMAT, **to_plain(note), "position": position}
    replace_json(folder_of(home, sink) / "note.json", stored)


@contextmanager
def only_deliverer(home: PipelineHome, sink: str) -> Iterator[None]:
    """Let one deliverer of this home run per sink.

    Raises:
        LeaseLostError: another one runs.
    """

    def refuse(holder: str) -> LeaseLostError:
        message = (
            f"sink {sink} of {home.root.name} is delivered by {holder} of this home (the agent does it while the "
            "desired state is running); see `rivertwice deliver status`"
        )
        return LeaseLostError(message)

    with lock_or_refuse(folder_of(home, sink) / "lock", refuse):
        yield
