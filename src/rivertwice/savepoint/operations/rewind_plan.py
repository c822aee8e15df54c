"""What a rewind would change, as a value that is shown before anything is done. Pure.

A rewind goes back to a savepoint's own batch M of timeline T and lets the stream compute what follows again,
in new batches. The batches of the head's path after the fork would no longer count. The windows that they emitted
may get other rows, because other batch boundaries drop other late rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core import (
    LogForkError,
    LogGapError,
    PipelineHome,
    RequestError,
    RivertwiceError,
    Row,
    SavepointError,
    to_iso,
)
from rivertwice.definition import Definition
from rivertwice.log import Fork
from rivertwice.savepoint.manifest import Manifest, StateBase
from rivertwice.savepoint.operations.engine import ShownStep
from rivertwice.savepoint.plan import require_fingerprint, require_recorded
from rivertwice.storage import Table
from rivertwice.stream import check_topics
from rivertwice.timeline import LedgerRow, Publication, as_folded, canonical_value, folded_views

_PACED = 100  # newest batches that the pace is taken from
_MARGIN_MS = 1


@dataclass(frozen=True)
class Reread:
    """Records of one partition that are read again: `start <= offset < end`, and the log's first offset."""

    topic: str
    partition: int
    start: int
    end: int
    log_begins: int

    @property
    def records(self) -> int:
        """How many offsets the range has."""
        return max(0, self.end - self.start)


@dataclass(frozen=True)
class SurvivingPublication:
    """A publication, and whether it is still served: it is, if its semantics are among those of the path."""

    seq: int
    backfill: str
    keeps: bool


@dataclass(frozen=True)
class Emitted:
    """What was emitted by the batches that would no longer count: rows, and their windows."""

    rows: int
    windows: int


@dataclass(frozen=True)
class RewindInputs:
    """The present state on which a rewind depends.

    Attributes:
        head: the head timeline; old_rows: the end of the ledger of its path, from the last batch that both paths share on at least.
        new_rows: the same of the path that ends at the savepoint's batch.
        emitted: what the head's path has emitted after the fork.
        late: records that the newest reconcile of this head reported as late in those batches; None without a reconcile.
        log_begins: topic to partition to the first offset Kafka still has, for each of the pipeline's topics.
        topic_ids: topic to its present id in Kafka.
        fingerprint: the fingerprint of the definition as it is in the project now.
        semantics: semantics hashes of the path that ends at the savepoint's batch.
        forks: where Kafka does not have the records that had been read by then.
    """

    head: str
    old_rows: Sequence[LedgerRow]
    new_rows: Sequence[LedgerRow]
    emitted: Emitted
    late: int | None
    log_begins: Mapping[str, Mapping[int, int]]
    topic_ids: Mapping[str, str]
    fingerprint: Mapping[str, str]
    publications: Sequence[Publication]
    semantics: frozenset[str]
    forks: Sequence[Fork] = ()


@dataclass(frozen=True)
class RewindPlan:
    """What a rewind would change.

    Attributes:
        timeline, batch: the fork.
        head, head_batch: the timeline that serves now, and its last committed batch.
        on_path: whether the fork lies on the head's path.
        batches: how many batches of the head's path would no longer count.
        regained: how many batches before the fork would count that do not count now (a savepoint off the head's path).
        reread: ranges that are read again, from Kafka.
        windows, rows: closed windows, and their rows, that those batches emitted: these may change.
        late: records that were late in those batches; None if no reconcile of this head has run yet.
        dead: dead letters of those batches; each is judged and recorded again, with the same result.
        changed: parts of the fingerprint that differ from the savepoint's.
        refusals: reasons why it cannot be done; empty if it can.
        estimate_s: seconds to read again at the pace of the newest batches; None without batches.
    """

    pipeline: str
    savepoint: str
    proved: bool
    timeline: str
    batch: int
    head: str
    head_batch: int
    on_path: bool
    batches: int
    regained: int
    reread: tuple[Reread, ...]
    records: int
    windows: int
    rows: int
    late: int | None
    dead: int
    publications: tuple[SurvivingPublication, ...]
    changed: tuple[str, ...]
    refusals: tuple[str, ...]
    estimate_s: float | None
    resumes: str | None = None
    steps: tuple[ShownStep, ...] = ()


def after_fork(old: Sequence[LedgerRow], new: Sequence[LedgerRow]) -> tuple[list[LedgerRow], list[LedgerRow]]:
    """Return the batches of each of two paths after the last batch that they share."""
    shared = {(row.timeline, row.batch) for row in old} & {(row.timeline, row.batch) for row in new}
    return (
        [row for row in old if (row.timeline, row.batch) not in shared],
        [row for row in new if (row.timeline, row.batch) not in shared],
    )


def plan_rewind(manifest: Manifest, world: RewindInputs, *, proved: bool, unproved: bool = False) -> RewindPlan:
    """Plan a rewind to a savepoint."""
    gone, regained = after_fork(world.old_rows, world.new_rows)
    head_row = world.old_rows[-1]
    reread = plan_reread(manifest, head_row, world.log_begins)
    records = sum(part.records for part in reread)
    pace = records_per_second(world.old_rows)
    parts = ("state", "semantics", "decode")
    return RewindPlan(
        pipeline=manifest.pipeline,
        savepoint=manifest.savepoint,
        proved=proved,
        timeline=manifest.timeline,
        batch=manifest.batch,
        head=world.head,
        head_batch=head_row.batch,
        on_path=any((row.timeline, row.batch) == (manifest.timeline, manifest.batch) for row in world.old_rows),
        batches=len(gone),
        regained=len(regained),
        reread=reread,
        records=records,
        windows=world.emitted.windows,
        rows=world.emitted.rows,
        late=world.late,
        dead=sum(row.bad for row in gone),
        publications=tuple(
            SurvivingPublication(publication.seq, publication.backfill, publication.semantics in world.semantics)
            for publication in world.publications
        ),
        changed=tuple(part for part in parts if manifest.fingerprint.get(part) != world.fingerprint.get(part)),
        refusals=tuple(str(error) for error in find_refusals(manifest, world, proved=proved or unproved)),
        estimate_s=None if pace is None else round(records / pace, 1),
    )


def plan_reread(manifest: Manifest, last: LedgerRow, log_begins: Mapping[str, Mapping[int, int]]) -> tuple[Reread, ...]:
    """Return, by partition, the range between a savepoint's end and the head's; a partition that was added later begins at 0."""
    ranges = []
    for topic, begins in log_begins.items():
        starts = {int(partition): int(offset) for partition, offset in manifest.offsets.get(topic, {}).items()}
        for partition, (_, end) in sorted(last.ranges(topic).items()):
            start = starts.get(partition, 0)
            ranges.append(Reread(topic, partition, start, max(end, start), begins.get(partition, 0)))
    return tuple(ranges)


def records_per_second(rows: Sequence[LedgerRow]) -> float | None:
    """Return the pace of the newest batches that read records: records divided by the seconds that the batches took."""
    newest = [row for row in rows if row.read][-_PACED:]
    spent = sum(max(_MARGIN_MS, row.committed_at.timestamp() * 1000 - row.batch_timestamp_ms) / 1000 for row in newest)
    return sum(row.read for row in newest) / spent if newest else None


def find_refusals(manifest: Manifest, world: RewindInputs, *, proved: bool) -> list[RivertwiceError]:
    """Return every reason not to rewind; a confirmed rewind raises the first one."""
    gone, _ = after_fork(world.old_rows, world.new_rows)
    checks: tuple[Callable[[], None], ...] = (
        lambda: _require_proved(manifest, proved=proved),
        lambda: _require_same_log(manifest, world.forks),
        lambda: _require_later_batches(manifest, len(gone)),
        lambda: require_fingerprint(manifest, world.fingerprint),
        lambda: check_topics(manifest.topic_ids, world.topic_ids, manifest.pipeline),
        lambda: _require_recorded(manifest, world.new_rows),
        lambda: _require_log(manifest, plan_reread(manifest, world.old_rows[-1], world.log_begins)),
    )
    refusals: list[RivertwiceError] = []
    for check in checks:
        try:
            check()
        except RivertwiceError as error:
            refusals.append(error)
    return refusals


def _require_recorded(manifest: Manifest, rows: Sequence[LedgerRow]) -> None:
    if manifest.savepoint != StateBase.BEGINNING:  # no batch is before it
        require_recorded(manifest, rows)


def _require_proved(manifest: Manifest, *, proved: bool) -> None:
    if not proved:
        message = (
            f"savepoint {manifest.savepoint} was taken and never proved, so it is not known whether a stream can continue from "
            "it; prove it first (`rivertwice savepoint prove`), or say --unproved"
        )
        raise SavepointError(message)


def _require_later_batches(manifest: Manifest, gone: int) -> None:
    if not gone:
        message = (
            f"savepoint {manifest.savepoint} is at the end of the head's path: no batch comes after it, so there is nothing "
            "to go back from; name an older one, or use `rivertwice savepoint restore`, which changes nothing served"
        )
        raise RequestError(message)


def _require_same_log(manifest: Manifest, forks: Sequence[Fork]) -> None:
    if forks:
        message = (
            f"Kafka does not have the records that had been read by savepoint {manifest.savepoint}: {', '.join(map(str, forks))}, so its state is of "
            "records that are lost; rewind to an older savepoint; without an id the newest proved one from before that is taken"
        )
        raise LogForkError(message)


def _require_log(manifest: Manifest, reread: Sequence[Reread]) -> None:
    lost = [part for part in reread if part.start < part.log_begins]
    if lost:
        named = ", ".join(
            f"{part.topic}-{part.partition} offsets {part.start} to {min(part.log_begins, part.end)}" for part in lost
        )
        message = (
            f"a rewind to {manifest.savepoint} reads on from its end, but Kafka no longer has {named}: those records would be "
            "missing from every window computed again; rewind to a newer savepoint, or keep the head and "
            f"compute the windows again by a backfill, which reads the archive (`rivertwice backfill plan {manifest.pipeline}`)"
        )
        raise LogGapError(message)


# What two paths emitted after the last batch that they share, compared row by row.

SAME, DIFFERS, ONLY_OLD, ONLY_NEW = "same", "differs", "only_old", "only_new"


@dataclass(frozen=True)
class Example:
    """One row that is not the same: its window and keys, and the other columns in each path; empty if a path has no such row."""

    kind: str
    row: dict[str, Any]
    old: dict[str, Any]
    new: dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """Rows of closed windows: how many are the same, differ, or exist on one path only.

    Attributes:
        old_windows: windows that the old path emitted after the fork.
        new_windows: windows that the new path emitted after it.
        examples: the first few rows that are not the same, in window order.
    """

    same: int
    differs: int
    only_old: int
    only_new: int
    old_windows: int
    new_windows: int
    examples: tuple[Example, ...]


def read_emitted(home: PipelineHome, rows: Sequence[LedgerRow], definition: Definition) -> pa.Table | None:
    """Return the result rows that these batches emitted, in order of batches; None if there is no batch or no table."""
    columns = definition.result_columns
    wanted: dict[str, list[int]] = {}
    for row in rows:
        wanted.setdefault(row.timeline, []).append(row.batch)
    where = None
    for timeline, batches in wanted.items():
        run = (pc.field("_timeline") == timeline) & (pc.field("_batch") >= min(batches))
        run = run & (pc.field("_batch") <= max(batches))
        where = run if where is None else where | run
    if where is None:
        return None
    table = Table(home.tables.changelog).read(columns=["_timeline", "_batch", *columns], where=where)
    if table is None:
        return None
    ordered = as_folded(table, folded_views(definition)) if definition.order == "any" else table.sort_by("_batch")
    return ordered.select(list(columns))


def count_windows(table: pa.Table | None, definition: Definition) -> int:
    """Return to how many windows the rows belong."""
    if table is None:
        return 0
    return len(set(table.column(definition.window.start_column).to_pylist()))


def compare_emitted(
    old: pa.Table | None, new: pa.Table | None, definition: Definition, *, examples: int = 5
) -> Comparison:
    """Compare what two paths emitted, by window and keys; for a fold with `order: any`, by the newest row of each key.

    Args:
        examples: how many rows that are not the same to give in full.
    """
    names = [definition.window.start_column, definition.window.end_column, *definition.row_keys]
    columns = list(definition.columns)
    if (
        definition.order == "any"
    ):  # the order of events differs between the paths; which event was the last, and its time, depends on it
        names, columns = list(definition.keys), [name for name in columns if name != definition.window.at]
    before, after = _by_key(old, names), _by_key(new, names)
    counts = dict.fromkeys((SAME, DIFFERS, ONLY_OLD, ONLY_NEW), 0)
    shown: list[Example] = []
    for key in sorted(before.keys() | after.keys()):
        left, right = before.get(key), after.get(key)
        kind = _kind_of(left, right, columns)
        counts[kind] += 1
        if kind != SAME and len(shown) < examples:
            either = left or right or {}
            shown.append(Example(kind, _plain(either, names), _plain(left, columns), _plain(right, columns)))
    return Comparison(
        same=counts[SAME],
        differs=counts[DIFFERS],
        only_old=counts[ONLY_OLD],
        only_new=counts[ONLY_NEW],
        old_windows=count_windows(old, definition),
        new_windows=count_windows(new, definition),
        examples=tuple(shown),
    )


def _by_key(table: pa.Table | None, names: Sequence[str]) -> dict[tuple[bytes, ...], Row]:
    if table is None:
        return {}
    # A row may be emitted more than once (emit: updates, or a key's rows with order: any); the newest, which comes last, counts.
    return {tuple(canonical_value(row[name]) for name in names): row for row in table.to_pylist()}


def _kind_of(old: Row | None, new: Row | None, columns: Iterable[str]) -> str:
    if new is None:
        return ONLY_OLD
    if old is None:
        return ONLY_NEW
    equal = all(canonical_value(old[name]) == canonical_value(new[name]) for name in columns)
    return SAME if equal else DIFFERS


def _plain(row: Row | None, names: Iterable[str]) -> Row:
    """Return some of a row's values as JSON can hold them."""
    if row is None:
        return {}
    return {name: _as_json(row[name]) for name in names}


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_iso(value if value.tzinfo else value.replace(tzinfo=UTC))
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
