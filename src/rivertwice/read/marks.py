"""What happened to a pipeline in a range of time: restarts, ends of drivers, savepoints, head moves, publications, upgrades."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from rivertwice.core import PipelineHome, RivertwiceError, Settings, parse_iso
from rivertwice.read.read_facts import known_savepoints
from rivertwice.savepoint import Savepoint
from rivertwice.storage import LogFile
from rivertwice.timeline import Entry, EntryKind, committed_batches, read_sequence

MOST = 200
EVENTS_BYTES = 500_000
"""So much of the agent's events is read, from the end. Restarts are in the ledger too, however old."""
RESTART, END, SAVEPOINT, MOVE, UPGRADE, PUBLICATION = "restart", "end", "savepoint", "head", "upgrade", "publication"
KINDS = {
    RESTART: "a driver began", END: "a driver ended", SAVEPOINT: "a savepoint was taken", MOVE: "the head moved",
    UPGRADE: "the definition was upgraded", PUBLICATION: "a backfill was published",
}  # fmt: skip


@dataclass(frozen=True)
class CurveEvent:
    """One thing that happened: `kind` is one of `KINDS`."""

    at: datetime
    kind: str
    text: str


def find_marks(settings: Settings, name: str, since: datetime, until: datetime) -> list[CurveEvent]:
    """Return what happened in a half-open range, oldest first; of more than 200 the newest."""
    home = settings.pipeline(name)
    try:
        savepoints: Sequence[Savepoint] = known_savepoints(settings, name)
    except RivertwiceError:
        savepoints = ()
    found = [
        *_of_sequence(read_sequence(home)),
        *(
            CurveEvent(each.manifest.created_at, SAVEPOINT, f"savepoint {each.id}, {each.status}")
            for each in savepoints
        ),
        *restarts_of(_batches(home)),
        *ends_of(read_events(settings.home / "agent" / "events.jsonl"), name),
    ]
    return select_marks(found, since, until)


def select_marks(marks: Iterable[CurveEvent], since: datetime, until: datetime) -> list[CurveEvent]:
    """Return the marks in a half-open range, oldest first; of more than `MOST` the newest. Pure."""
    inside = sorted((mark for mark in marks if since <= mark.at < until), key=lambda mark: mark.at)
    return inside[-MOST:]


def _batches(home: PipelineHome) -> pa.Table:
    return committed_batches(home).table.select(["epoch", "batch", "committed_at"])


def _of_sequence(entries: Sequence[Entry]) -> Iterator[CurveEvent]:
    for entry in entries:
        if entry.kind == EntryKind.HEAD:
            reason = str(entry.payload["reason"])
            kind = UPGRADE if reason.startswith("upgrade") else MOVE
            yield CurveEvent(entry.created_at, kind, f"{entry.payload['timeline']} serves: {reason}")
        else:
            yield CurveEvent(entry.created_at, PUBLICATION, f"{entry.payload['backfill']} was published")


def restarts_of(batches: pa.Table) -> list[CurveEvent]:
    """Return the first batch of each driver. Pure.

    Args:
        batches: `epoch`, `batch`, `committed_at`, in the path's order.
    """
    epochs = batches["epoch"].to_numpy()
    if not len(epochs):
        return []
    places = [0, *(int(place) + 1 for place in (epochs[1:] != epochs[:-1]).nonzero()[0])]
    numbers, instants = batches["batch"], batches["committed_at"]
    return [
        CurveEvent(
            instants[place].as_py(), RESTART, f"driver of epoch {epochs[place]}: its first batch is {numbers[place]}"
        )
        for place in places
    ]


def read_events(path: Path) -> list[str]:
    """Return the newest lines of the agent's events; the first may be cut."""
    return LogFile(path).tail(EVENTS_BYTES).decode(errors="replace").splitlines()


def ends_of(lines: Iterable[str], name: str) -> Iterator[CurveEvent]:
    """Yield how drivers of a pipeline ended, from lines of the agent's events; lines that cannot be read are left out. Pure.

    An agent that cannot store what it saw, for instance on a full disk, says the same end at each look.
    """
    told = set[tuple[object, object]]()
    for line in lines:
        if '"exit"' not in line and '"drained"' not in line:
            continue
        try:
            event = json.loads(line)
            if event["pipeline"] == name and event["kind"] in ("exit", "drained"):
                driver = (event.get("epoch"), event.get("pid"))
                if driver in told:
                    continue
                told |= {driver} - {(None, None)}
                yield CurveEvent(
                    parse_iso(event["at"]),
                    END,
                    f"the driver ended as {event.get('class', event['kind'])}: {event['message'][:300]}",
                )
        except (ValueError, KeyError, TypeError, RivertwiceError):
            continue
