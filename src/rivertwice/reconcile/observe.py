"""Observe the head: ledger, sequence, definitions and tables, as they are at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from rivertwice.backfill import BackfillPlan, backfill_folder, load_backfill_plan
from rivertwice.core import DefinitionError, LedgerError, PipelineHome, Place, RivertwiceError
from rivertwice.definition import Bundle, Definition, build_bundle, fingerprint_of, load_bundle_definition
from rivertwice.engine import FEW_RECORDS, FEW_RECORDS_READ
from rivertwice.log import accepted_gaps
from rivertwice.reconcile.copies import PublishedCopies, check_ledger_copies, heal_rows
from rivertwice.reconcile.gaps import SkippedRange
from rivertwice.reconcile.kinds.judge import may_spread
from rivertwice.reconcile.model import DefectFinding
from rivertwice.reconcile.rederive import offsets_of
from rivertwice.reconcile.seals.scope import runs_of, scanned
from rivertwice.reconcile.view import DefinitionVersion, Handles, HeadView
from rivertwice.storage import Snapshot, Table, Where
from rivertwice.stream import stream_app
from rivertwice.timeline import (
    LEDGER_KEY,
    CommittedBatches,
    FirstLoad,
    LedgerRow,
    Publication,
    Segment,
    ServedStamp,
    Timeline,
    is_on_path,
    path_of,
    path_semantics,
    path_until,
    publications_of,
    read_cures,
    read_keys,
    read_ledger,
    read_sequence,
    read_served_stamp,
    select_head,
    select_on_path,
)

COMMITS_COMPARED = 1000
"""So many of the changelog's newest commits are compared with the ledger; Delta keeps those of six hours."""
MOST_ROWS = 50_000
MOST_RECORDS = 1_000_000
"""A run with more emitted rows, or more records, leaves tables and verdicts to executors."""
PLAIN_CACHE = {"spark.sql.inMemoryColumnarStorage.compressed": "false"}
PLAIN_CACHE_READ = 2_000_000
"""So many decoded records fit into memory as they are, which costs less than to encode them; more would go to the disk sooner."""
DEAD_COLUMNS = (
    "_timeline",
    "_batch",
    "topic",
    "partition",
    "offset",
    "reason",
    "cluster_id",
    "topic_id",
    "record_time",
)


def observe_head(home: PipelineHome, definitions: Path | None = None) -> HeadView:
    """Return what the head's path holds now.

    `definitions` is the project's folder. If a stored bundle was altered and the project still has the files it was made of
    (the id is their hash), these are what ran; the damage is a finding.

    The served table is read before the ledger, so it never shows a batch the ledger here lacks; changelog rows of
    batches committed in between are left out by the caller, who knows the last batch.

    Raises:
        LedgerError: nothing is committed yet.
    """
    stamp, served = open_served(home)
    entries = read_sequence(home)
    head = select_head(entries)
    path = [] if head is None else path_of(home, head)
    stored = read_ledger(home)
    publications = publications_of(entries)
    copies = _observe_copies(home, path, publications)
    rows = select_on_path(heal_rows(stored, copies), path)
    if not rows:
        message = (
            f"no batch of {home.root.name} is committed yet, so there is nothing to reconcile; `rivertwice start "
            f"{home.root.name} --wait` starts its stream, and `rivertwice status` shows how far it is"
        )
        raise LedgerError(message)
    loaded, damaged = load_definitions(home, {row.bundle for row in rows}, definitions)
    groups, versions = group_versions(loaded, rows)
    newest = versions[groups[-1]].definition
    topics = newest.topics
    handles = Handles(
        changelog=Table(home.tables.changelog).open(),
        served=served,
        corrections=Table(home.tables.corrections).open() if publications else None,
        dead=Table(home.tables.dead_letters).open(),
        late=Table(home.tables.late_rows).open(),
        path=path_until(path, rows[-1].batch),
    )
    view = HeadView(
        home=home,
        rows=rows,
        groups=groups,
        versions=versions,
        semantics=path_semantics(home, path),
        genesis=offsets_of(Timeline.load(home, path[0].timeline).genesis, topics),
        sequence=entries[-1].seq if entries else 0,
        publications=publications,
        stream=None,
        dead=None,
        late=None,
        served=None,
        served_total=None if served is None else served.total_rows(),
        served_stamp=stamp,
        cures=read_cures(home, CommittedBatches.of(rows)),
        jumps=_jumps(home, [segment.timeline for segment in path], rows, topics),
        copies=copies,
        contradicted=[*damaged, *check_ledger_copies(home.root.name, stored, rows, copies)],
        handles=handles,
    )
    return view if is_large(view) else read_tables(view)


def is_large(view: HeadView) -> bool:
    """Say whether a view's tables are left to executors: rows of one definition, final, and too many to hold here. Pure."""
    definition = view.newest.definition
    if not may_spread(definition) or len(view.topics) > 1 or len(view.versions) > 1 or not definition.compare:
        return False
    emitted, read = sum(row.emitted for row in view.rows), sum(row.read for row in view.rows)
    return emitted > MOST_ROWS or read > MOST_RECORDS


def confs_of(view: HeadView) -> Mapping[str, str]:
    """Return the settings of Spark with which a run over a view costs least; they change no result. Pure."""
    read = _count_read(view)
    if read <= FEW_RECORDS_READ:
        return FEW_RECORDS
    return PLAIN_CACHE if read <= PLAIN_CACHE_READ else {}


def _count_read(view: HeadView) -> int:
    if view.prefix is None:
        return sum(row.read for row in view.rows)
    pieces = view.pieces([row.parts() for row in view.rows]) or ()
    near = [run for topic in view.topics for own in scanned(runs_of(pieces, topic)).values() for run in own]
    return sum(end - start for start, end in near)


def read_tables(view: HeadView, windows: Sequence[tuple[int, int]] | None = None) -> HeadView:
    """Return the view with the rows of its tables.

    Args:
        view: with handles.
        windows: starts of windows (epoch ms, half-open ranges); only result rows of these are read, and no dead letters or late
            rows. None: everything.
    """
    handles, tables = view.handles, view.home.tables
    assert handles is not None, "the view was made with them"
    matching = None if windows is None else Where("window_start").is_within(windows)
    on_path = is_on_path(handles.path)
    stream = _read(tables.changelog, handles.changelog, matching)
    served = _read(tables.served, handles.served, matching)
    corrections = None
    if handles.corrections is not None:
        names = Where("_backfill").is_among(sorted({entry.backfill for entry in view.publications}))
        wanted = names if matching is None else Where.all([names, matching])
        corrections = _read(tables.corrections, handles.corrections, wanted)
    return replace(
        view,
        stream=None if stream is None else stream.filter(on_path),
        served=served,
        corrections=corrections,
        dead=None if windows is not None else _read(tables.dead_letters, handles.dead, columns=DEAD_COLUMNS),
        late=None if windows is not None else _read(tables.late_rows, handles.late),
        handles=None,
    )


def _read(
    place: Place, table: Snapshot | None, matching: str | None = None, columns: Sequence[str] | None = None
) -> pa.Table | None:
    return None if table is None else table.read(columns=columns, matching=matching)


def _observe_copies(
    home: PipelineHome, path: Sequence[Segment], publications: Sequence[Publication]
) -> PublishedCopies:
    """Return the other copies; read after the ledger, so that they never hold less of it."""
    commits = [
        LedgerRow.from_json(data)
        for _, data in Table(home.tables.changelog).commits(LEDGER_KEY, limit=COMMITS_COMPARED)
    ]
    names = [segment.timeline for segment in path]
    applied = {name: Table(home.tables.changelog).applied_version(stream_app(home.root.name, name)) for name in names}
    return PublishedCopies(
        commits=commits,
        table=frozenset(read_keys(home)),
        timelines={name: Timeline.load(home, name) for name in names},
        known=Timeline.names(home),
        applied={name: version for name, version in applied.items() if version is not None},
        plans={
            publication.backfill: plan
            for publication in publications
            if (plan := plan_of(home, publication.backfill)) is not None
        },
    )


def plan_of(home: PipelineHome, backfill: str) -> BackfillPlan | str | None:
    """Return a backfill's plan, why it cannot be read, or None if this home has none (another host made it)."""
    try:
        return load_backfill_plan(home, backfill) if (backfill_folder(home, backfill) / "plan.json").exists() else None
    except RivertwiceError as error:
        return str(error)


def _jumps(
    home: PipelineHome, path: Sequence[str], rows: Sequence[LedgerRow], topics: Sequence[str]
) -> list[SkippedRange]:
    """Return what the path skipped, accepted gaps and a first load; a start that neither explains stays a defect.

    A timeline may have met the next gap before its first batch: then both are before the first batch that follows.
    """
    gaps, load = accepted_gaps(home), FirstLoad.load(home)
    jumps = [] if load is None else [SkippedRange(0, load, offsets_of(Timeline.load(home, path[0]).genesis, topics))]
    for place, name in enumerate(path):
        following = [index for index, row in enumerate(rows) if row.timeline in path[place:]]
        if name in gaps and following:
            jumps.append(SkippedRange(following[0], gaps[name], offsets_of(Timeline.load(home, name).genesis, topics)))
    return jumps


def open_served(home: PipelineHome) -> tuple[ServedStamp | None, Snapshot | None]:
    """Return the served table's stamp and a handle of the build with this stamp.

    (None, None) if there is no table with a stamp, or if it changed in every attempt.
    """
    for _ in range(5):
        stamp = read_served_stamp(home)
        table = Table(home.tables.served).open()
        if read_served_stamp(home) == stamp:
            return (stamp, table) if stamp is not None and table is not None else (None, None)
    return None, None


def load_definitions(
    home: PipelineHome, bundles: Set[str], definitions: Path | None
) -> tuple[dict[str, Definition], list[DefectFinding]]:
    """Return the definition of each bundle, and which bundles are damaged though the project has their files.

    Raises:
        DefinitionError: a bundle is missing or was altered, and the project's definition is another.
    """
    loaded, damaged = {}, []
    for bundle in bundles:
        try:
            loaded[bundle] = load_bundle_definition(home.bundles, bundle)
        except DefinitionError as error:
            built = None if definitions is None else _built(definitions / home.root.name)
            if built is None or built.id != bundle:
                raise
            loaded[bundle] = built.definition
            message = f"{error} (the project has the same files, so this run judged by those)"
            damaged.append(DefectFinding("bundle", message))
    return loaded, damaged


def _built(folder: Path) -> Bundle | None:
    try:
        return build_bundle(folder)
    except DefinitionError:
        return None


def group_versions(
    definitions: Mapping[str, Definition], rows: Sequence[LedgerRow]
) -> tuple[list[int], list[DefinitionVersion]]:
    """Return the number of each batch's version, and the versions; for bundles with equal hashes, the newest one counts."""
    by_bundle: dict[str, int] = {}
    versions: list[DefinitionVersion] = []
    for bundle in dict.fromkeys(row.bundle for row in rows):
        fingerprint = fingerprint_of(definitions[bundle])
        candidate = DefinitionVersion(definitions[bundle], fingerprint.semantics, fingerprint.decode)
        same_numbers = [
            number
            for number, known in enumerate(versions)
            if (known.semantics, known.decode) == (candidate.semantics, candidate.decode)
        ]
        if not same_numbers:
            versions.append(candidate)
        by_bundle[bundle] = same_numbers[0] if same_numbers else len(versions) - 1
    newest = {by_bundle[row.bundle]: definitions[row.bundle] for row in rows}
    return [by_bundle[row.bundle] for row in rows], [
        replace(version, definition=newest[number]) for number, version in enumerate(versions)
    ]
