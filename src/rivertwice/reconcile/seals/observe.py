"""Observe the part of the head's path that an incremental run needs: what came after the seal, and the windows in scope."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.backfill import OffsetRuns, chunk_records, intersect
from rivertwice.core import PipelineHome, Place
from rivertwice.definition import Definition
from rivertwice.log import Part
from rivertwice.reconcile.copies import PublishedCopies, check_ledger_copies, heal_rows
from rivertwice.reconcile.observe import DEAD_COLUMNS, group_versions, load_definitions, open_served, plan_of
from rivertwice.reconcile.rederive import offsets_of
from rivertwice.reconcile.seals.look import (
    ChangesSinceSeal,
    NotIncrementalError,
    require_no_loaded,
    require_same_meaning,
    require_sealed_batch,
    require_stamp,
)
from rivertwice.reconcile.seals.model import Seal, meaning_of
from rivertwice.reconcile.seals.scope import (
    FoundRecords,
    Scope,
    Zones,
    has_all,
    joined_runs,
    reaches_back,
    scope_since,
    select_batches,
    select_pieces,
)
from rivertwice.reconcile.view import HeadView, SealedPrefix
from rivertwice.storage import Snapshot, Table, Where
from rivertwice.stream import stream_app
from rivertwice.timeline import (
    LEDGER_KEY,
    FirstLoad,
    LedgerRow,
    Publication,
    Range,
    Segment,
    ServedStamp,
    Timeline,
    committed_batches,
    from_table,
    is_on_path,
    merged,
    path_semantics,
    path_until,
    publications_of,
    read_corrections,
    read_cures,
    read_ledger,
    read_served_stamp,
    select_on_path,
    to_epoch_ms,
)

_ZONE_COLUMNS = ("timeline", "batch", "batch_watermark_ms", "min_event_ms", "max_event_ms")
_LOOK_BACK = 64
_LAST_BATCH = (1 << 63) - 1
_NO_EVENT = 1 << 60
_MS = timedelta(milliseconds=1)


def observe_part(home: PipelineHome, look: ChangesSinceSeal, definitions: Path | None = None) -> HeadView:
    """Return the head with only what an incremental run looks at.

    Raises:
        NotIncrementalError: everything must be judged.
    """
    seal = look.seal
    assert seal is not None, "an incremental run starts at a seal"
    served = _open_served(home)
    tail = select_on_path(read_ledger(home, first_batch=seal.batch), look.path)
    require_sealed_batch(seal, tail)
    definition = _definition_of(home, tail[-1].bundle, definitions)
    scope = scope_since(seal.settled_ms, definition.window.length // _MS, look.new_publications())
    require_no_loaded(FirstLoad.load(home), scope)
    zones = _read_zones(home, look.path, seal, scope, definition)
    places = [*select_batches(zones, scope), len(zones) - 1, *_place_of(zones, served[0])]
    chosen = sorted({place for place in places if place < len(zones)})
    sealed = _read_batches(home, look.path, zones, chosen)
    copies, stored = _observe_copies(home, look, seal)
    fresh = select_on_path([row for row in heal_rows(tail[1:], copies) if row.batch > seal.batch], look.path)
    rows = [*sealed, *fresh]
    loaded, damaged = load_definitions(home, {row.bundle for row in rows}, definitions)
    groups, versions = group_versions(loaded, rows)
    require_same_meaning(seal, [meaning_of(version) for version in versions])
    require_stamp(seal, served[0], rows, look.sequence)
    topics = versions[0].definition.topics
    last = rows[-1]
    publications = publications_of(list(look.entries))
    found = _found_records(home, publications_of(look.new_publications()), last.bundle)
    batches = [{part: pair for part, pair in row.parts().items() if part.topic in topics} for row in sealed]
    pieces = select_pieces(zones, scope, found, dict(zip(chosen, batches, strict=True)))
    return HeadView(
        home=home,
        rows=rows,
        groups=groups,
        versions=versions,
        semantics=path_semantics(home, look.path),
        genesis={},
        sequence=look.sequence,
        publications=publications,
        stream=_read_stream(home, look.path, last, seal, scope),
        dead=_after(home.tables.dead_letters, seal, DEAD_COLUMNS),
        late=_after(home.tables.late_rows, seal),
        served=None if served[1] is None else _read_scope(home.tables.served, scope, served[1]),
        served_total=None if served[1] is None else served[1].total_rows(),
        served_stamp=served[0],
        cures=read_cures(home, committed_batches(home, look.path)) if look.amendments else (),
        corrections=_read_corrections(home, publications, scope),
        copies=copies,
        contradicted=[*damaged, *check_ledger_copies(home.root.name, stored, fresh, copies)],
        prefix=SealedPrefix(
            scope=scope,
            count=len(sealed),
            late_ms=tuple(zones.late_ms(place) for place in chosen),
            batch_ms=tuple(int(zones.watermark_ms[place]) for place in chosen),
            end_offsets=offsets_of(seal.end_offsets, topics),
            last_batch=seal.batch,
            pieces=tuple(pieces),
            unread=frozenset(at for at, batch in enumerate(batches) if not has_all(pieces[at], batch)),
        ),
    )


def _found_records(home: PipelineHome, publications: Sequence[Publication], bundle: str) -> list[FoundRecords]:
    """Return where the backfills of publications found their records; without those of which it is not known.

    Args:
        bundle: of the last batch; what another definition accepted may be other records.
    """
    return [
        found_by(publication, offsets)
        for publication in publications
        if publication.bundle == bundle and not publication.sessions
        if (offsets := _offsets_of(home, publication.backfill)) is not None
    ]


def _offsets_of(home: PipelineHome, backfill: str) -> list[OffsetRuns] | None:
    """Return the offsets that each chunk of a backfill found; None: some chunk's commit is gone, or does not say it."""
    chunks = chunk_records(home, backfill)
    offsets = [each.offsets for each in chunks if each.offsets is not None]
    if not chunks or len(offsets) < len(chunks) or {each.chunk for each in chunks} != set(range(chunks[0].chunks)):
        return None
    return offsets


def found_by(publication: Publication, offsets: Sequence[OffsetRuns]) -> FoundRecords:
    """Return where a publication's backfill found its records, by what its chunks say. Pure."""
    runs: dict[Part, list[Range]] = {}
    for chunk in offsets:
        for topic, parts in chunk.items():
            for partition, own in parts.items():
                runs.setdefault(Part(topic, partition), []).extend(own)
    return FoundRecords(
        ranges=publication.ranges,
        runs={part: merged(own) for part, own in runs.items()},
        as_of={Part(topic, p): end for topic, parts in publication.as_of.items() for p, end in parts.items()},
    )


def _definition_of(home: PipelineHome, bundle: str, definitions: Path | None) -> Definition:
    return load_definitions(home, {bundle}, definitions)[0][bundle]


def _read_zones(home: PipelineHome, path: Sequence[Segment], seal: Seal, scope: Scope, definition: Definition) -> Zones:
    """Return the zone map up to the seal's batch, as far back as a window in scope may have records."""
    delay = definition.source[1].watermark // _MS
    count = _LOOK_BACK
    while True:
        first = max(0, seal.batch - count)
        table = Table(home.tables.ledger).read(
            columns=_ZONE_COLUMNS, matching=Where("batch").is_between(first, seal.batch)
        )
        zones = _zones(pa.table([]) if table is None else table, path)
        if not len(zones) or (zones.timelines[-1], int(zones.batches[-1])) != (seal.timeline, seal.batch):
            message = f"the ledger's table has no row for the batch of the {seal.name}"
            raise NotIncrementalError(message)
        if first == 0 or reaches_back(int(zones.watermark_ms[0]), delay, scope):
            return zones
        count *= 8


def _zones(table: pa.Table, path: Sequence[Segment]) -> Zones:
    parts = []
    for segment in path:
        own = pc.and_(pc.equal(table["timeline"], segment.timeline), pc.greater_equal(table["batch"], segment.first))
        if segment.last is not None:
            own = pc.and_(own, pc.less_equal(table["batch"], segment.last))
        parts.append(table.filter(own).sort_by("batch"))
    rows = pa.concat_tables(parts)
    batches = rows["batch"].to_numpy()
    is_first = np.concatenate([[True], batches[1:] != batches[:-1]]) if len(batches) else np.zeros(0, dtype=bool)
    rows = rows.filter(pa.array(is_first))  # a row that was copied twice counts once
    return Zones(
        timelines=rows["timeline"].to_pylist(),
        batches=rows["batch"].to_numpy(),
        watermark_ms=rows["batch_watermark_ms"].to_numpy(),
        min_event_ms=pc.fill_null(rows["min_event_ms"], _NO_EVENT).to_numpy(),
        max_event_ms=pc.fill_null(rows["max_event_ms"], -_NO_EVENT).to_numpy(),
    )


def _place_of(zones: Zones, stamp: ServedStamp | None) -> list[int]:
    """Return the place of the batch that the served table shows, if it is in the prefix."""
    if stamp is None:
        return []
    return [
        place
        for place in range(len(zones))
        if (zones.timelines[place], int(zones.batches[place])) == (stamp.timeline, stamp.batch)
    ]


def _read_batches(home: PipelineHome, path: Sequence[Segment], zones: Zones, chosen: Sequence[int]) -> list[LedgerRow]:
    runs = [
        Where("batch").is_between(int(zones.batches[low]), int(zones.batches[high - 1]))
        for low, high in joined_runs(chosen)
    ]
    table = Table(home.tables.ledger).read(matching=Where.any(runs))
    wanted = {(zones.timelines[place], int(zones.batches[place])) for place in chosen}
    near = [] if table is None else select_on_path(from_table(table), path)
    rows = [row for row in near if (row.timeline, row.batch) in wanted]
    if len(rows) != len(chosen):
        message = f"the ledger's table has {len(rows)} of {len(chosen)} batches that were compared before"
        raise NotIncrementalError(message)
    return rows


def _observe_copies(home: PipelineHome, look: ChangesSinceSeal, seal: Seal) -> tuple[PublishedCopies, list[LedgerRow]]:
    """Return the other copies of what came after the seal, and the ledger's own rows of it, of all timelines."""
    first = seal.batch + 1
    table = Table(home.tables.ledger).read(matching=Where("batch").is_between(first, _LAST_BATCH))
    stored = [] if table is None else from_table(table)
    fresh = max((row.batch for row in stored), default=seal.batch) - seal.batch
    commits = [
        row
        for _, data in Table(home.tables.changelog).commits(LEDGER_KEY, limit=min(1000, fresh + 16))
        if (row := LedgerRow.from_json(data)).batch >= first
    ]
    names = [segment.timeline for segment in look.path]
    applied = {name: Table(home.tables.changelog).applied_version(stream_app(home.root.name, name)) for name in names}
    copies = PublishedCopies(
        commits=commits,
        table=frozenset((row.timeline, row.batch) for row in stored),
        timelines={name: Timeline.load(home, name) for name in names},
        known=Timeline.names(home),
        applied={name: version for name, version in applied.items() if version is not None},
        plans={
            name: plan
            for entry in look.new_publications()
            if (plan := plan_of(home, name := entry.payload["backfill"])) is not None
        },
    )
    return copies, stored


def _read_stream(
    home: PipelineHome, path: Sequence[Segment], last: LedgerRow, seal: Seal, scope: Scope
) -> pa.Table | None:
    """Return the changelog's rows on the path of the batches after the seal and of the windows in scope."""
    fresh = Where("_batch").is_between(seal.batch + 1, last.batch)
    rows = Table(home.tables.changelog).read(matching=Where.any([fresh, Where("window_start").is_within(scope.cover)]))
    if rows is None:
        return None
    is_new = pc.greater(rows["_batch"], seal.batch)
    rows = rows.filter(pc.or_(is_new, pa.array(scope.holds(to_epoch_ms(rows["window_start"])))))
    return rows.filter(is_on_path(path_until(path, last.batch)))


def _read_scope(path: Place, scope: Scope, at: Snapshot | None = None) -> pa.Table | None:
    rows = (at or Table(path)).read(matching=Where("window_start").is_within(scope.cover))
    return None if rows is None else scope.only(rows)


def _after(path: Place, seal: Seal, columns: Sequence[str] | None = None) -> pa.Table | None:
    return Table(path).read(columns=columns, matching=Where("_batch").is_between(seal.batch + 1, _LAST_BATCH))


def _read_corrections(home: PipelineHome, publications: Sequence[Publication], scope: Scope) -> pa.Table | None:
    touching = [publication for publication in publications if intersect(publication.ranges, scope.starts)]
    rows = read_corrections(home, touching)
    return None if rows is None else scope.only(rows)


def _open_served(home: PipelineHome) -> tuple[ServedStamp | None, Snapshot | None]:
    found = open_served(home)
    if found[0] is None and read_served_stamp(home) is not None:
        message = "the served table changed in every attempt to read it"
        raise NotIncrementalError(message)
    return found
