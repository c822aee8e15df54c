"""The heatmap: windows and keys with what the newest reconcile says of their rows, read for what is shown and nothing else.

A verdict that agrees is stored once for all such rows of a window. So which keys have a row in a window is read from the served
rows: grouped where the files are read, for the columns and the keys that are shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core import RequestError, Settings, from_ms, to_ms
from rivertwice.definition import Definition
from rivertwice.read.serving import Runs, Serving, open_serving, read_runs
from rivertwice.storage import Remembered, Table, Where
from rivertwice.timeline import (
    MOST,
    Entry,
    Segment,
    Verdict,
    find_move_off,
    head_path,
    key_text,
    newest_batch,
    path_semantics,
    publications_of,
    read_sequence,
    read_verdicts,
    to_epoch_ms,
)

# The heatmap of windows and keys: levels, columns, cells and their order. Pure, over arrays.
#
# A column is a range of window starts: one window, or an hour, a day or thirty days of them. A cell is what is known of the rows
# of a key in a column: how many have which verdict. Its letter is that of the worst.

UNJUDGED = "UNJUDGED"
"""A row that is served, and of a window that the newest reconcile did not judge."""
WORDS = (*Verdict.BY_GRAVITY, UNJUDGED)
"""By their codes: the place in this tuple, the worst first."""
LETTERS = {
    Verdict.DEFECT: "D",
    Verdict.NOT_COMPARABLE: "N",
    Verdict.LATE: "L",
    Verdict.OPEN: "O",
    Verdict.AGREES: "A",
    UNJUDGED: "-",
}
BLANK = " "
SERIOUS = len((Verdict.DEFECT, Verdict.NOT_COMPARABLE, Verdict.LATE))
"""Codes below it mean that something is wrong."""
MOST_COLUMNS = 1000
MOST_KEYS = 50
_MINUTE, _HOUR = 60_000, 3_600_000
_DAY = 24 * _HOUR
WINDOW = "window"
_COARSER = (("minute", _MINUTE), ("hour", _HOUR), ("day", _DAY), ("month", 30 * _DAY))

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HeatmapLevel:
    """A width of columns: `window`, `minute`, `hour`, `day` or `month` (thirty days)."""

    name: str
    step_ms: int


def levels_of(step_ms: int, *, is_aligned: bool) -> tuple[HeatmapLevel, ...]:
    """Return the levels of a definition's windows, the finest first.

    Args:
        step_ms: time between the starts of two windows.
        is_aligned: whether windows begin at multiples of it; else no column is a window, and minutes are the finest.
    """
    finest = [HeatmapLevel(WINDOW, step_ms)] if is_aligned else []
    least = step_ms if is_aligned else 0
    return (*finest, *(HeatmapLevel(name, size) for name, size in _COARSER if size > least))


def choose_level(levels: Sequence[HeatmapLevel], start_ms: int, end_ms: int, most: int) -> HeatmapLevel:
    """Return the finest level that shows a range in a maximum number of columns, else the coarsest."""
    for level in levels:
        if count_columns(level, start_ms, end_ms) <= most:
            return level
    return levels[-1]


def count_columns(level: HeatmapLevel, start_ms: int, end_ms: int) -> int:
    """Return how many columns of a level a range of window starts touches."""
    return max(0, -(-end_ms // level.step_ms) - start_ms // level.step_ms)


@dataclass(frozen=True)
class Columns:
    """The columns that are shown: `count` ranges of window starts of `step_ms`, from `start_ms` on."""

    start_ms: int
    step_ms: int
    count: int

    @classmethod
    def of(cls, level: HeatmapLevel, start_ms: int, end_ms: int, most: int = MOST_COLUMNS) -> Columns:
        """Return the columns of a level that a range touches; if there are too many, the newest."""
        first, last = start_ms // level.step_ms, -(-end_ms // level.step_ms)
        first = max(first, last - most)
        return cls(first * level.step_ms, level.step_ms, max(0, last - first))

    @property
    def end_ms(self) -> int:
        """End of the last column."""
        return self.start_ms + self.count * self.step_ms

    def places(self, starts_ms: Numbers) -> Numbers:
        """Return the column of each window start; all of them must be in the columns."""
        return (starts_ms - self.start_ms) // self.step_ms

    def touched(self, ranges: Sequence[tuple[int, int]]) -> list[int]:
        """Return the columns that some half-open ranges of epoch milliseconds touch."""
        return np.flatnonzero(self.count_touching(ranges)).tolist()

    def count_touching(self, ranges: Sequence[tuple[int, int]]) -> Numbers:
        """Return for each column how many of some half-open ranges touch it."""
        steps = np.zeros(self.count + 1, dtype=np.int64)
        if ranges and self.count:
            lows, highs = np.array(ranges, dtype=np.int64).T
            inside = (lows < self.end_ms) & (highs > self.start_ms) & (lows < highs)
            first = np.clip((lows[inside] - self.start_ms) // self.step_ms, 0, self.count - 1)
            last = np.clip((highs[inside] - 1 - self.start_ms) // self.step_ms, 0, self.count - 1)
            np.add.at(steps, first, 1)
            np.add.at(steps, last + 1, -1)
        return np.cumsum(steps)[:-1]


@dataclass(frozen=True)
class CellVerdict:
    """Verdicts of one pair in the columns, in arrays of one length.

    Attributes:
        keys: number of the key in `names`, -1 for a verdict on all other rows of its window.
        codes: place of the verdict in `WORDS`.
        rows: for how many rows it stands.
    """

    starts_ms: Numbers
    keys: Numbers
    codes: Numbers
    rows: Numbers
    late: Numbers
    reasons: Sequence[str]
    names: Sequence[str]

    def counts_by_column(self, columns: Columns) -> Numbers:
        """Return for each word and column how many rows have it: an array of two dimensions."""
        counts = np.zeros((len(WORDS), columns.count), dtype=np.int64)
        np.add.at(counts, (self.codes, columns.places(self.starts_ms)), self.rows)
        return counts

    def rank_keys(self) -> list[tuple[int, tuple[int, ...], int]]:
        """Return the keys with their own verdict, the worst first: number, rows by word, late records."""
        own = self.keys >= 0
        counts = np.zeros((len(self.names), len(WORDS)), dtype=np.int64)
        late = np.zeros(len(self.names), dtype=np.int64)
        np.add.at(counts, (self.keys[own], self.codes[own]), self.rows[own])
        np.add.at(late, self.keys[own], self.late[own])
        order = sorted(
            range(len(self.names)),
            key=lambda number: ((-counts[number, :SERIOUS]).tolist(), -int(late[number]), self.names[number]),
        )
        return [(number, tuple(counts[number].tolist()), int(late[number])) for number in order]


@dataclass(frozen=True)
class Present:
    """How many rows are served, by window and key, in arrays of one length; `keys` are places among the keys that are shown."""

    starts_ms: Numbers
    keys: Numbers
    rows: Numbers


@dataclass(frozen=True)
class MarkedCell:
    """A cell that does not simply agree: verdict to rows, late records, and the reason if there is one."""

    rows: Mapping[str, int]
    late: int
    reason: str


@dataclass(frozen=True)
class Cells:
    """The cells that are shown.

    Attributes:
        letters: of each key, one letter a column.
        marked: of each key, column to what is known of a cell that does not simply agree.
    """

    letters: list[str] = field(default_factory=list)
    marked: list[dict[int, MarkedCell]] = field(default_factory=list)


def fill_cells(judged: CellVerdict, shown: Mapping[int, int], count: int, present: Present, columns: Columns) -> Cells:
    """Return the cells of the keys that are shown.

    Args:
        shown: number of a key in `judged.names` to its place among those that are shown.
        count: how many keys are shown.
        present: rows that are served; one without its own verdict has that of its window.
    """
    counts = np.zeros((count, columns.count, len(WORDS)), dtype=np.int64)
    late = np.zeros((count, columns.count), dtype=np.int64)
    places = np.full(len(judged.names) + 1, -1, dtype=np.int64)
    for number, place in shown.items():
        places[number] = place
    rows_of = places[judged.keys]
    own = rows_of >= 0
    at = (rows_of[own], columns.places(judged.starts_ms[own]))
    np.add.at(counts, (*at, judged.codes[own]), judged.rows[own])
    np.add.at(late, at, judged.late[own])
    _add_present(counts, judged, rows_of, present, columns)
    has_rows = counts.sum(axis=2) > 0
    worst = np.argmax(counts > 0, axis=2)
    alphabet = np.array([LETTERS[word] for word in WORDS])
    letters = np.where(has_rows, alphabet[worst], BLANK)
    reasons = _reasons(judged, own, at)
    cells = Cells(["".join(line) for line in letters])
    agreeing = WORDS.index(Verdict.AGREES)
    for place in range(count):
        marked = np.flatnonzero(has_rows[place] & ((worst[place] < agreeing) | (counts[place, :, -1] > 0)))
        cells.marked.append(
            {
                column: MarkedCell(
                    {word: int(number) for word, number in zip(WORDS, counts[place, column], strict=True) if number},
                    int(late[place, column]),
                    reasons.get((place, column), ""),
                )
                for column in marked.tolist()
            }
        )
    return cells


def _add_present(
    counts: npt.NDArray[np.int64], judged: CellVerdict, rows_of: Numbers, present: Present, columns: Columns
) -> None:
    """Add the served rows without their own verdict: by that of their window, or as not judged."""
    together = judged.keys < 0
    starts, first = np.unique(judged.starts_ms[together], return_inverse=True)
    code_of = np.full(len(starts) + 1, len(WORDS) - 1, dtype=np.int64)
    np.minimum.at(code_of, first, judged.codes[together])
    found = np.searchsorted(starts, present.starts_ms) if len(starts) else np.zeros(len(present.rows), dtype=np.int64)
    is_judged = np.zeros(len(present.rows), dtype=bool)
    if len(starts):
        is_judged = starts[np.minimum(found, len(starts) - 1)] == present.starts_ms
    codes = code_of[np.where(is_judged, found, len(starts))]
    own = rows_of >= 0
    pairs = _pairs(present.starts_ms, present.keys)
    known, inverse = np.unique(_pairs(judged.starts_ms[own], rows_of[own]), return_inverse=True)
    own_rows = np.zeros(len(known) + 1, dtype=np.int64)
    np.add.at(own_rows, inverse, judged.rows[own])
    at = np.searchsorted(known, pairs) if len(known) else np.zeros(len(pairs), dtype=np.int64)
    has_own = np.zeros(len(pairs), dtype=bool)
    if len(known):
        has_own = known[np.minimum(at, len(known) - 1)] == pairs
    left = np.maximum(present.rows - own_rows[np.where(has_own, at, len(known))], 0)
    np.add.at(counts, (present.keys, columns.places(present.starts_ms), codes), left)


def _pairs(starts_ms: Numbers, keys: Numbers) -> Numbers:
    return starts_ms * (MOST_KEYS + 1) + keys


def _reasons(
    judged: CellVerdict, own: npt.NDArray[np.bool_], at: tuple[Numbers, Numbers]
) -> dict[tuple[int, int], str]:
    """Return the reason of a cell with one verdict; a cell with several has none."""
    found: dict[tuple[int, int], str] = {}
    numbers = np.flatnonzero(own)
    for number, place, column in zip(numbers.tolist(), *(part.tolist() for part in at), strict=True):
        cell = (place, column)
        found[cell] = "" if cell in found else judged.reasons[number]
    return found


# How old what a reconcile says is, and which columns changed since: a head move, a publication, or records that came after it.


@dataclass(frozen=True)
class RunAge:
    """The newest reconcile, and what changed after it.

    Attributes:
        moved: that the head left what it saw, and where to. published, read: columns that changed since.
    """

    run: str
    at: datetime
    timeline: str
    batch: int
    sequence: int
    moved: str | None
    published: Sequence[int]
    read: Sequence[int]


def describe_age(serving: Serving, definition: Definition, runs: Runs, columns: Columns) -> RunAge:
    """Return the newest reconcile, whether the head moved after it, and which columns changed after it.

    A column changed if a publication that serves covers windows of it, or if a batch may have read records of them.
    """
    home, run = serving.home, runs.newest
    entries, path = read_sequence(home), head_path(home)
    semantics = path_semantics(home, path)
    published = [
        pair
        for publication in publications_of(entries)
        if publication.seq > run["sequence"] and publication.semantics in semantics
        for pair in publication.ranges
    ]
    last = newest_batch(home, path)
    batches = [] if last is None or last.batch <= run["batch"] else _events_since(serving, path, run["batch"])
    length_ms, step_ms = (
        int(part.total_seconds() * 1000) for part in (definition.window.length, definition.window.step)
    )
    # A record belongs to windows that start up to a window's length, less a step, before its own.
    reach = [(low - max(0, length_ms - step_ms), high + 1) for low, high in batches]
    return RunAge(
        run=run["run"],
        at=run["created_at"],
        timeline=run["timeline"],
        batch=run["batch"],
        sequence=run["sequence"],
        moved=moved_after(entries, path, run),
        published=columns.touched(published),
        read=columns.touched(reach),
    )


def moved_after(entries: list[Entry], path: list[Segment], run: Mapping[str, Any]) -> str | None:
    """Return that the head left what a reconcile saw, and where to; None: it did not. Pure."""
    move = find_move_off(entries, path, (run["timeline"], run["batch"]), run["sequence"])
    return None if move is None else f"the head moved to {move.payload['timeline']} after it (sequence {move.seq})"


def _events_since(serving: Serving, path: list[Segment], batch: int) -> list[tuple[int, int]]:
    """Return the first and the last event time (epoch ms) of each batch of the head's path after one."""
    home = serving.home
    key = (str(home.tables.ledger), batch, tuple(path))
    return _EVENTS.get(key, (home.tables.ledger, home.tables.sequence), lambda: _read_events(serving, path, batch))


def _read_events(serving: Serving, path: list[Segment], batch: int) -> list[tuple[int, int]]:
    names = ["timeline", "batch", "min_event_ms", "max_event_ms"]
    rows = Table(serving.home.tables.ledger).read(columns=names, matching=Where("batch").is_between(batch + 1, MOST))
    if rows is None:
        return []
    kept = pa.concat_tables([rows.filter(_on(segment)) for segment in path])
    kept = kept.filter(pc.is_valid(kept["min_event_ms"]))
    return list(zip(kept["min_event_ms"].to_pylist(), kept["max_event_ms"].to_pylist(), strict=True))


def _on(segment: Segment) -> pc.Expression:
    inside = (pc.field("timeline") == segment.timeline) & (pc.field("batch") >= segment.first)
    return inside if segment.last is None else inside & (pc.field("batch") <= segment.last)


_EVENTS: Remembered[list[tuple[int, int]]] = Remembered(32)

PAIRS = ("served", "stream")
FIRST_COLUMNS = 90
"""Default columns of the view."""
FIRST_DAYS = 62
"""The number of newest days that are shown by default."""
MOST_SCANNED = 20_000_000
"""Served rows among which keys that agree are looked for; of more, keys are found by their text alone."""
_TEXTUAL = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date)


@dataclass(frozen=True)
class HeatmapQuery:
    """Which part of the heatmap to show.

    Attributes:
        pair: `served` or `stream`, each against the truth.
        start, end: range of window starts; None: the newest.
        level: name of a level; None: the finest that fits.
        text: only keys that contain it.
        skip: number of keys to leave out, the worst first. limit: maximum number of keys.
    """

    pair: str = PAIRS[0]
    start: datetime | None = None
    end: datetime | None = None
    level: str | None = None
    text: str = ""
    skip: int = 0
    limit: int = 25

    def read(self, settings: Settings, name: str) -> Heatmap | NotCompared:
        """Return the heatmap of a pipeline.

        Raises:
            RequestError: there is no such pair or level.
        """
        return read_heatmap(settings, name, self)


@dataclass(frozen=True)
class HeatmapKey:
    """A line of the heatmap: its key, the text of it, its rows by verdict, and late records."""

    key: str
    label: str
    rows: Mapping[str, int]
    late: int


@dataclass(frozen=True)
class Heatmap:
    """Windows and keys with the verdict of the newest reconcile on each cell; instants are epoch milliseconds.

    Attributes:
        counts: verdict to rows, of all. columns: verdict to rows in each column.
        is_window: whether a column is one window. extent: of all windows.
        letters, cells: of each key, one letter a column, and what is known of cells that do not simply agree.
        is_last: whether no key follows. note: what is not known of other keys.
    """

    name: str
    pair: str
    run: RunAge
    counts: Mapping[str, int]
    level: str
    levels: tuple[str, ...]
    is_window: bool
    windows: str
    extent: tuple[int, int]
    start_ms: int
    step_ms: int
    count: int
    columns: Mapping[str, Sequence[int]]
    keys: tuple[HeatmapKey, ...]
    skip: int
    is_last: bool
    note: str
    letters: Sequence[str]
    cells: Sequence[Mapping[int, MarkedCell]]


@dataclass(frozen=True)
class NotCompared:
    """Nothing was compared yet."""

    name: str
    run: None = None


def read_heatmap(settings: Settings, name: str, asked: HeatmapQuery) -> Heatmap | NotCompared:
    """Return the heatmap of a pipeline.

    Raises:
        RequestError: there is no such pair or level.
    """
    if asked.pair not in PAIRS:
        message = f"there is no pair {asked.pair[:40]!r}; a verdict is on {' or '.join(PAIRS)}, each against the truth"
        raise RequestError(message)
    serving = open_serving(settings, name)
    runs = read_runs(serving.home)
    if serving.definition is None or runs is None:
        return NotCompared(name)
    extent = _extent(serving, serving.definition)
    levels = levels_of(
        serving.definition.window.step // timedelta(milliseconds=1), is_aligned=_has_known_starts(serving.definition)
    )
    level, columns = _choose_columns(levels, extent, asked)
    judged = _read_judged(serving, serving.definition, runs, asked.pair, columns)
    keys, is_last, note = _choose_keys(serving, serving.definition, judged, columns, asked)
    shown = {judged.names.index(key): place for place, key in enumerate(keys) if key in judged.names}
    present = _read_present(serving, serving.definition, columns, keys)
    cells = fill_cells(judged, shown, len(keys), present, columns)
    ranked = {judged.names[number]: (counts, late) for number, counts, late in judged.rank_keys()}
    by_column = judged.counts_by_column(columns)
    none: tuple[Sequence[int], int] = ((), 0)
    lines = []
    for key in keys:
        counts, late = ranked.get(key, none)
        lines.append(
            HeatmapKey(key, key_label(key), {word: n for word, n in zip(WORDS, counts, strict=False) if n}, late)
        )
    has_known_starts = _has_known_starts(serving.definition)
    return Heatmap(
        name=serving.home.root.name,
        pair=asked.pair,
        run=describe_age(serving, serving.definition, runs, columns),
        counts=runs.newest["counts"].get(asked.pair, {}),
        level=level.name,
        levels=tuple(each.name for each in levels),
        is_window=level is levels[0] and has_known_starts,
        windows=serving.definition.window.text,
        extent=extent,
        start_ms=columns.start_ms,
        step_ms=columns.step_ms,
        count=columns.count,
        columns={word: counts.tolist() for word, counts in zip(WORDS, by_column, strict=True) if counts.any()},
        keys=tuple(lines),
        skip=asked.skip,
        is_last=is_last,
        note=note,
        letters=cells.letters,
        cells=cells.marked,
    )


def key_label(key: str) -> str:
    """Return a key's text for people: its values; "all" where rows have no key. Pure."""
    return ", ".join("null" if value is None else str(value) for value in json.loads(key).values()) or "all"


def _has_known_starts(definition: Definition) -> bool:
    """Say whether a column can be one window: not for sessions, which their records begin."""
    return definition.session_keys is None


def _extent(serving: Serving, definition: Definition) -> tuple[int, int]:
    """Return the range of window starts that have a served row or a verdict; empty if there is none."""
    column = definition.window.start_column
    bounds = [Table(serving.served).bounds(column), Table(serving.home.tables.verdicts).bounds("window_start")]
    known = [pair for pair in bounds if pair is not None]
    if not known:
        return 0, 0
    return min(to_ms(least) for least, _ in known), max(to_ms(most) for _, most in known) + 1


def _choose_columns(
    levels: Sequence[HeatmapLevel], extent: tuple[int, int], asked: HeatmapQuery
) -> tuple[HeatmapLevel, Columns]:
    named = next((level for level in levels if level.name == asked.level), None)
    if asked.level is not None and named is None:
        message = f"there is no level {asked.level[:40]!r}; there are {', '.join(level.name for level in levels)}"
        raise RequestError(message)
    first = max(extent[0], extent[1] - FIRST_DAYS * 86_400_000)
    start = first if asked.start is None else to_ms(asked.start)
    end = extent[1] if asked.end is None else to_ms(asked.end)
    level = named or choose_level(levels, start, end, FIRST_COLUMNS)
    return level, Columns.of(level, start, max(start, end), MOST_COLUMNS)


def _within(columns: Columns) -> list[tuple[int, int]]:
    return [(columns.start_ms, max(columns.end_ms, columns.start_ms + 1))]


def _read_judged(serving: Serving, definition: Definition, runs: Runs, pair: str, columns: Columns) -> CellVerdict:
    """Return the verdicts of the columns; those of a fold's rows by its keys."""
    rows = read_verdicts(serving.home, runs.chain, _within(columns), Where("pair").equals(pair))
    if rows is None or not rows.num_rows or not columns.count:
        empty = np.zeros(0, dtype=np.int64)
        return CellVerdict(empty, empty, empty, empty, empty, (), ())
    encoded = pc.dictionary_encode(rows["key"].combine_chunks())
    texts = [axis_key(text, definition) for text in encoded.dictionary.to_pylist()]
    names = sorted(set(texts))
    number_of = {name: number for number, name in enumerate(names)}
    numbers = np.array([*(number_of[text] for text in texts), -1], dtype=np.int64)
    codes = pc.index_in(rows["verdict"].combine_chunks(), value_set=pa.array(WORDS))
    counts = pc.fill_null(rows["rows"], 1) if "rows" in rows.column_names else pa.array([1] * rows.num_rows, pa.int64())
    return CellVerdict(
        to_epoch_ms(rows["window_start"]),
        numbers[pc.fill_null(encoded.indices, -1).to_numpy().astype(np.int64)],
        codes.to_numpy().astype(np.int64),
        np.asarray(counts).astype(np.int64),
        np.asarray(pc.fill_null(rows["late"], 0)).astype(np.int64),
        rows["reason"].to_pylist(),
        names,
    )


def axis_key(text: str, definition: Definition) -> str:
    """Return the key of a heatmap's line for the key of a row: of a fold's row, which has its event's place too, the keys alone. Pure."""
    if definition.row_keys == definition.keys:
        return text
    values = json.loads(text)
    return key_text(definition.keys, [values.get(name) for name in definition.keys])


def _choose_keys(
    serving: Serving, definition: Definition, judged: CellVerdict, columns: Columns, asked: HeatmapQuery
) -> tuple[list[str], bool, str]:
    """Return the keys that are shown, the worst first, whether they are the last ones, and what is not known of others."""
    limit = max(1, min(asked.limit, MOST_KEYS))
    wanted = asked.text.lower()
    ranked = [judged.names[number] for number, *_ in judged.rank_keys()]
    ranked = [name for name in ranked if wanted in key_label(name).lower()]
    chosen = ranked[asked.skip : asked.skip + limit]
    if not definition.keys:
        return ["{}"], True, ""
    if len(chosen) == limit or not columns.count:
        return chosen, False, ""
    bounds = (from_ms(columns.start_ms), from_ms(columns.end_ms))
    scanned = Table(serving.served).rows_in_range(definition.window.start_column, *bounds)
    if scanned > MOST_SCANNED and not wanted:
        note = f"keys whose rows all agree are not listed: there are {scanned:,} rows in this range; find them by their text"
        return chosen, True, note
    condition = Where(definition.window.start_column).is_within(_within(columns))
    if wanted:
        condition = Where.all([condition, Where.any(Where(name).contains(asked.text) for name in definition.keys)])
    agreeing: list[str] = []
    skip, page = max(0, asked.skip - len(ranked)), limit - len(chosen)
    # Keys with their own verdict come first, and are among all keys again: that many more are looked at.
    most = skip + page + len(ranked) + 1
    rows = Table(serving.served).group_counts(definition.keys, condition, order=definition.keys, limit=most)
    if rows is not None:
        known = set(ranked)
        values = zip(*(rows[name].to_pylist() for name in definition.keys), strict=True)
        agreeing = [text for each in values if (text := key_text(definition.keys, each)) not in known]
    return [*chosen, *agreeing[skip : skip + page]], len(agreeing) <= skip + page, ""


def _read_present(serving: Serving, definition: Definition, columns: Columns, keys: Sequence[str]) -> Present:
    """Return how many rows the keys have in each window that is shown."""
    empty = np.zeros(0, dtype=np.int64)
    start, names = definition.window.start_column, definition.keys
    if not columns.count or not keys:
        return Present(empty, empty, empty)
    conditions = [Where(start).is_within(_within(columns)), *_of_keys(serving, definition, keys)]
    rows = Table(serving.served).group_counts([start, *names], Where.all(conditions))
    if rows is None or not rows.num_rows:
        return Present(empty, empty, empty)
    place_of = {key: place for place, key in enumerate(keys)}
    if not names:
        places = np.zeros(rows.num_rows, dtype=np.int64)
    else:
        values = zip(*(rows[name].to_pylist() for name in names), strict=True)
        places = np.array([place_of.get(key_text(names, each), -1) for each in values], dtype=np.int64)
    starts, counts = to_epoch_ms(rows[start]), rows["n"].to_numpy().astype(np.int64)
    return Present(starts[places >= 0], places[places >= 0], counts[places >= 0])


def _of_keys(serving: Serving, definition: Definition, keys: Sequence[str]) -> list[str]:
    """Return conditions that leave out most other keys; none where a type's text is not the one of the key."""
    sample = Table(serving.served).group_counts(definition.keys, "FALSE") if definition.keys else None
    conditions = []
    for name in definition.keys:
        values = [json.loads(key)[name] for key in keys]
        kind = None if sample is None else sample.schema.field(name).type
        if kind is None or None in values or not any(is_kind(kind) for is_kind in _TEXTUAL):
            continue
        conditions.append(Where(name).is_text_among(sorted({_sql_text(value) for value in values})))
    return conditions


def _sql_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
