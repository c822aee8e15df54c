"""The record of refused deliveries of one sink, beside the tables, and people's requests about them.

`delivery/SINK.refused.json`, format 1: `settled`, and during a step also `pending` with the step's number. It is written before
the sink takes the step's position. The process that opens the sink next sees by the position which of the two is valid.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from rivertwice.core import LedgerError, PipelineHome, to_iso
from rivertwice.deliver.model import Position
from rivertwice.deliver.note import folder_of
from rivertwice.deliver.refusals import DISCARDED, Aside, AsideEntry
from rivertwice.storage import open_store, read_json, replace_json

FORMAT = 1
RETRY, DISCARD = "retry", "discard"
_ENDING = ".refused.json"


class AsideStore:
    """Stores which deliveries one sink's destination lacks."""

    def __init__(self, home: PipelineHome, sink: str) -> None:
        """Create the store; it is not read yet."""
        self._store = open_store(home.place)
        self._key = f"delivery/{sink}{_ENDING}"
        self._sink = sink
        self.now = Aside()
        self._pending: tuple[int, Aside] | None = None

    def open(self, position: Position | None) -> None:
        """Read the record; a pending step counts if the sink has its position."""
        settled, pending = self._read()
        number = 0 if position is None else position.number
        self.now, self._pending = settled, None
        if pending is not None:
            self.now = pending[1] if pending[0] <= number else settled
            self._write()

    def prepare(self, step: int, aside: Aside) -> None:
        """Store what the destination will lack once it has the position of `step`."""
        if aside == self.now and self._pending is None:
            return
        self._pending = (step, aside)
        self._write()

    def settle(self) -> None:
        """Note that the step was taken."""
        if self._pending is not None:
            self.now, self._pending = self._pending[1], None
            self._write()

    def change(self, aside: Aside) -> None:
        """Store a person's decision."""
        self.now = aside
        self._write()

    def forget(self) -> None:
        """Delete the record, for everything is delivered again."""
        self.now, self._pending = Aside(), None
        self._store.delete(self._key)

    def rewrite(self, change: Callable[[AsideEntry], AsideEntry | None]) -> int:
        """Rewrite or remove entries, also those of a pending step; return how many changed. No deliverer may run meanwhile."""
        settled, pending = self._read()
        self.now, first = _changed(settled, change)
        second = 0
        if pending is not None:
            aside, second = _changed(pending[1], change)
            self._pending = (pending[0], aside)
        if first or second:
            self._write()
        return max(first, second)

    def _read(self) -> tuple[Aside, tuple[int, Aside] | None]:
        data = self._store.get(self._key)
        if data is None:
            return Aside(), None
        try:
            value = json.loads(data)
            if value["format"] != FORMAT:
                return self._unreadable(f"format {value['format']}")
            pending = value["pending"]
            return _aside(value["settled"]), None if pending is None else (pending["step"], _aside(pending))
        except (ValueError, KeyError, TypeError) as error:
            return self._unreadable(str(error))

    def _unreadable(self, why: str) -> NoReturn:
        message = (
            f"{self._key} beside the tables cannot be read ({why}): which deliveries sink {self._sink} lacks is not known; "
            "restore the file, or deliver all with --again"
        )
        raise LedgerError(message)

    def _write(self) -> None:
        if self._pending is None and self.now.is_empty:
            self._store.delete(self._key)
            return
        pending = None if self._pending is None else {"step": self._pending[0], **_json(self._pending[1])}
        value = {"format": FORMAT, "settled": _json(self.now), "pending": pending}
        self._store.put(self._key, json.dumps(value, separators=(",", ":"), sort_keys=True).encode())


def _changed(aside: Aside, change: Callable[[AsideEntry], AsideEntry | None]) -> tuple[Aside, int]:
    pairs = [(entry, change(entry)) for entry in aside.entries.values()]
    remaining = {new.key: new for _, new in pairs if new is not None}
    return Aside(remaining, aside.in_a_row), sum(new != old for old, new in pairs)


def sinks_with_aside(home: PipelineHome) -> list[str]:
    """Return the sinks with deliveries set aside, or requests, also sinks that no definition names any more, sorted."""
    names = {
        key.rpartition("/")[2].removesuffix(_ENDING)
        for key in open_store(home.place).list("delivery/")
        if key.endswith(_ENDING)
    }
    return sorted(names | {path.parent.name for path in (home.root / "delivery").glob("*/asked")})


def read_aside(home: PipelineHome, sink: str, position: Position | None) -> Aside:
    """Return what a sink's destination lacks, given a known position of the sink; nothing is changed."""
    settled, pending = AsideStore(home, sink)._read()
    number = 0 if position is None else position.number
    return pending[1] if pending is not None and pending[0] <= number else settled


def _json(aside: Aside) -> dict[str, Any]:
    return {"entries": [asdict(entry) for entry in aside.entries.values()], "in_a_row": aside.in_a_row}


def _aside(value: Mapping[str, Any]) -> Aside:
    entries = [AsideEntry(**entry) for entry in value["entries"]]
    return Aside({entry.key: entry for entry in entries}, value["in_a_row"])


@dataclass(frozen=True)
class Ask:
    """A person's request about refused deliveries: to send them again, or to leave them out.

    Attributes:
        what: `retry` or `discard`.
        keys: keys of the deliveries; None: all open ones.
    """

    what: str
    keys: Sequence[str] | None
    why: str
    by: str
    at: str
    name: str = ""


def ask(
    home: PipelineHome, sink: str, what: str, keys: Sequence[str] | None, *, why: str, by: str, now: datetime
) -> str:
    """Store a request for the sink's deliverer; return the request's name."""
    name = f"{to_iso(now).replace(':', '')}-{uuid.uuid4().hex[:8]}"
    asked = Ask(what, None if keys is None else list(keys), why, by, to_iso(now), name)
    path = _path_of(home, sink, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_json(path, {"format": FORMAT, **asdict(asked)})
    return name


def asks(home: PipelineHome, sink: str) -> list[Ask]:
    """Return the requests that wait, oldest first."""
    requests = []
    for path in sorted((folder_of(home, sink) / "asked").glob("*.json")):
        value = read_json(path)
        if value is not None and value.pop("format", None) == FORMAT:
            requests.append(Ask(**value))
    return requests


def rename_asked(home: PipelineHome, sink: str, rename: Callable[[str], str]) -> int:
    """Rewrite the keys of requests that wait; return how many requests changed."""
    changed = 0
    for request in asks(home, sink):
        keys = None if request.keys is None else [rename(key) for key in request.keys]
        if keys != request.keys:
            replace_json(_path_of(home, sink, request.name), {"format": FORMAT, **asdict(replace(request, keys=keys))})
            changed += 1
    return changed


def done(home: PipelineHome, sink: str, asked: Ask) -> None:
    """Remove a request that was carried out."""
    _path_of(home, sink, asked.name).unlink(missing_ok=True)


def _path_of(home: PipelineHome, sink: str, name: str) -> Path:
    return folder_of(home, sink) / "asked" / f"{name}.json"


def discarded(aside: Aside, asked: Ask) -> Aside:
    """Return `aside` with the requested open entries discarded for good."""
    chosen = aside.open_keys(asked.keys)
    changed = {key: replace(aside.entries[key], state=DISCARDED, why=asked.why, by=asked.by) for key in chosen}
    return Aside({**aside.entries, **changed}, aside.in_a_row)
