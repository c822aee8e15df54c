"""Compare what a sink holds with what is served at the sink's position: key by key, by hashes of the values.

Both sides go into a temporary database of SQLite on disk, so the memory that this needs does not grow with their rows. What is
served is computed day by day from the tables, as a deliverer computes it, and not read from `served`, which may be ahead of the sink.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from rivertwice.core import Settings
from rivertwice.definition import Delivery, IcebergDelivery, KafkaDelivery, RowsMode
from rivertwice.deliver.aside import read_aside
from rivertwice.deliver.deliver import make_sink
from rivertwice.deliver.model import DeliveredColumns, Holding, Position, View
from rivertwice.deliver.note import read_note
from rivertwice.deliver.records import rows_at
from rivertwice.deliver.source import ServingSource
from rivertwice.deliver.wire import encode, plain

EQUAL, DIFFERS, UNFINISHED, EMPTY = "equal", "differs", "unfinished", "empty"
MISSING, EXTRA, DIFFERENT = "missing", "extra", "different"
MOST_NAMED = 10
_SIDES = ("served", "held")
_CREATE = {
    "served": "CREATE TABLE served (key TEXT PRIMARY KEY, hash BLOB NOT NULL) WITHOUT ROWID",
    "held": "CREATE TABLE held (key TEXT PRIMARY KEY, hash BLOB NOT NULL) WITHOUT ROWID",
}
_PUT = {
    "served": "INSERT OR REPLACE INTO served VALUES (?, ?)",
    "held": "INSERT OR REPLACE INTO held VALUES (?, ?)",
}
_DROP = {"served": "DELETE FROM served WHERE key = ?", "held": "DELETE FROM held WHERE key = ?"}
_COUNT = {"served": "SELECT count(*) FROM served", "held": "SELECT count(*) FROM held"}
_FOUND = {
    MISSING: "SELECT key FROM served LEFT JOIN held USING (key) WHERE held.hash IS NULL",
    EXTRA: "SELECT key FROM held LEFT JOIN served USING (key) WHERE served.hash IS NULL",
    DIFFERENT: "SELECT key FROM served JOIN held USING (key) WHERE served.hash <> held.hash",
}


@dataclass(frozen=True)
class Checked:
    """What a comparison of a sink with what is served found.

    Attributes:
        sink, to: the sink's name and place.
        state: `equal`, `differs`, `unfinished` (the sink has a part of a step), or `empty` (nothing was delivered yet).
        timeline, batch, sequence: the position that was compared.
        served, held: rows of both sides.
        missing, extra, different: keys that the sink lacks, has beyond what is served, and has with other values; files, of a
            sink that names files of ours.
        set_aside: keys that its destination refused; they are not compared.
        named: the first keys of each kind.
        told: what to do, or why nothing was compared.
    """

    sink: str
    to: str
    state: str
    timeline: str | None = None
    batch: int | None = None
    sequence: int | None = None
    served: int = 0
    held: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    set_aside: int = 0
    named: Sequence[tuple[str, str]] = ()
    told: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether the sink has other rows than are served, although it has taken all of them."""
        return self.state == DIFFERS


def check_sink(settings: Settings, pipeline: str, name: str, asked: Delivery) -> Checked:
    """Compare a sink with what is served at its position; nothing is changed, and a deliverer may run meanwhile.

    Raises:
        RivertwiceError: the sink or the tables cannot be read.
    """
    if isinstance(asked, IcebergDelivery) and asked.registered:
        return _compare_files(settings, pipeline, name, asked)
    with make_sink(settings, pipeline, name, asked).inspect() as holding:
        position = holding.position
        known = read_note(settings.pipeline(pipeline), name).position
        if position is None and known is None:
            return Checked(name, asked.place, EMPTY, told="nothing was delivered to it yet")
        if position is not None and position.part is not None:
            told = f"it has a part of a step; `rivertwice deliver run {pipeline} --sink {name} --until-end` delivers the rest"
            return Checked(name, asked.place, UNFINISHED, told=told)
        return _compare(settings, pipeline, name, asked, holding)


def _compare_files(settings: Settings, pipeline: str, name: str, asked: IcebergDelivery) -> Checked:
    """Compare the files that a catalog names with those of the table: the rows are in these files."""
    from rivertwice.deliver.registered import look_at

    found = look_at(settings, pipeline, name, asked)
    if found is None:
        return Checked(name, asked.place, EMPTY, told="nothing was registered yet")
    differing, newest = found.change, found.shown.version
    position = read_note(settings.pipeline(pipeline), name).position
    again = f"`rivertwice deliver run {pipeline} --sink {name} --until-end"
    state, told = EQUAL, ""
    if differing.added or differing.removed:
        is_behind = found.version is not None and found.version < newest
        state = UNFINISHED if is_behind else DIFFERS
        told = (
            f"it names the files of version {found.version} of {asked.registered}, and {newest} is the newest; {again}` registers that"
            if is_behind
            else f"another program changed which files it names; {again} --again` names those of {asked.registered}"
        )
    return Checked(
        name,
        asked.place,
        state,
        None if position is None else position.timeline,
        None if position is None else position.batch,
        None if position is None else position.seq,
        found.shown.rows,
        found.rows,
        missing=len(differing.added),
        extra=len(differing.removed),
        named=[
            (kind, path)
            for kind, paths in ((MISSING, differing.added), (EXTRA, differing.removed))
            for path in paths[:MOST_NAMED]
        ],
        told=told,
    )


def _compare(settings: Settings, pipeline: str, name: str, asked: Delivery, holding: Holding) -> Checked:
    source, position = ServingSource(settings, pipeline), holding.position
    with closing(sqlite3.connect("")) as rows:  # on disk, in a file that has no name: nothing stays of it after a kill
        rows.execute("PRAGMA journal_mode = OFF")
        rows.execute("PRAGMA synchronous = OFF")
        for side in _SIDES:
            rows.execute(_CREATE[side])
        if position is not None:
            view = source.look_to(None, position)
            shape = source.shape(view, newest=asked.rows == RowsMode.NEWEST)
            _put(rows, "served", _served(source, view, position, shape))
            _put(rows, "held", holding.rows(shape, source.schema()))
        left_out = list(read_aside(settings.pipeline(pipeline), name, position).entries)
        for side in _SIDES:
            rows.executemany(_DROP[side], ((key,) for key in left_out))
        counts, named = _differences(rows)
        served, held = (int(rows.execute(_COUNT[side]).fetchone()[0]) for side in _SIDES)
    differs = any(counts.values()) or position is None
    lacks = holding.lacks if position is not None else "it holds no position, though steps were delivered to it"
    return Checked(
        name,
        asked.place,
        DIFFERS if differs else EQUAL,
        None if position is None else position.timeline,
        None if position is None else position.batch,
        None if position is None else position.seq,
        served,
        held,
        counts[MISSING],
        counts[EXTRA],
        counts[DIFFERENT],
        len(left_out),
        named,
        remedy(pipeline, name, asked, counts, lacks) if differs else "",
    )


def _differences(rows: sqlite3.Connection) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return how many keys differ in each way, and the first ones."""
    counts = dict.fromkeys(_FOUND, 0)
    named = []
    for kind, query in _FOUND.items():
        for (key,) in rows.execute(query):
            counts[kind] += 1
            if counts[kind] <= MOST_NAMED:
                named.append((kind, str(key)))
    return counts, named


def remedy(pipeline: str, name: str, asked: Delivery, counts: dict[str, int], lacks: str) -> str:
    """Return what makes a sink equal again."""
    again = f"`rivertwice deliver run {pipeline} --sink {name} --until-end --again` delivers all rows once more"
    stopped = f"; while an agent delivers, run `rivertwice stop {pipeline}` first, and start it after"
    why = f"{lacks}; " if lacks else ""
    if not isinstance(asked, KafkaDelivery):
        return f"{why}{again}, in place of those that it has{stopped}"
    if counts[EXTRA]:
        return f"{why}a topic keeps what it has, so delete topic {asked.topic} first; then {again}{stopped}"
    return f"{why}{again}, behind those that it has: a reader that folds by key is right then{stopped}"


def _served(
    source: ServingSource, view: View, position: Position, shape: DeliveredColumns
) -> Iterator[tuple[str, list[Any]]]:
    """Yield keys and plain values of the rows that a sink at a position must have; those of a day at a time."""
    tables = source.of(view.head)
    if shape.newest is not None:  # a key's newest row may be of any day
        for key, values in rows_at(view, position, shape, tables).items():
            yield key, [plain(value) for value in values]
        return
    for day in tables.days():
        for key, values in rows_at(view, position, shape, tables.on_day(day, shape), day=day).items():
            yield key, [plain(value) for value in values]


def _put(rows: sqlite3.Connection, side: str, found: Iterable[tuple[str, Sequence[Any] | None]]) -> None:
    """Store rows by key, the last one of each; None takes a key away."""
    for key, values in found:
        if values is None:
            rows.execute(_DROP[side], (key,))
        else:
            rows.execute(_PUT[side], (key, hashlib.sha256(encode(values).encode()).digest()[:16]))
