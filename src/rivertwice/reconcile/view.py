"""What a reconcile looks at, observed once and in an order that leaves no gap: served, then sequence and ledger, then rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from rivertwice.backfill.model import BackfillPlan
from rivertwice.backfill.store import backfill_folder, load_plan
from rivertwice.config import PipelineHome
from rivertwice.deadletters.model import Cure
from rivertwice.deadletters.summary import read_cures
from rivertwice.errors import DefinitionError, LedgerError, RivertwiceError
from rivertwice.log.addresses import Part
from rivertwice.log.gaps import accepted_gaps
from rivertwice.pipeline.bundle import Bundle, build_bundle, load_bundle_definition
from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.fingerprint import fingerprint_of
from rivertwice.reconcile.copies import Copies, check_ledger_copies, heal_rows
from rivertwice.reconcile.gaps import Jump
from rivertwice.reconcile.model import Finding, LateRow, RowColumns, RowId, ServedRow
from rivertwice.reconcile.rederive import offsets_of
from rivertwice.reconcile.seals.scope import Scope
from rivertwice.store import delta
from rivertwice.stream.seal import app_of
from rivertwice.timeline.committed import CommittedBatches
from rivertwice.timeline.ledger import METADATA_KEY, LedgerRow, read_keys, read_ledger
from rivertwice.timeline.lineage import Segment, list_timelines, load_timeline, path_of, path_semantics, select_on_path
from rivertwice.timeline.sequence import read_sequence, select_head
from rivertwice.timeline.served import (
    ServedStamp,
    publications_of,
    read_corrections,
    read_served,
    served_stamp,
    stream_rows,
)
from rivertwice.timeline.serving import Publication

COMMITS_COMPARED = 1000
"""So many of the changelog's newest commits are compared with the ledger; Delta keeps those of six hours."""
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


@dataclass(frozen=True)
class DefinitionVersion:
    """One definition of the path, identified by the hashes that decide about results."""

    definition: Definition
    semantics: str
    decode: str


@dataclass(frozen=True)
class SealedPrefix:
    """The part of the path that was compared before, of which a view holds only what the windows in scope need.

    Attributes:
        scope: the windows that are judged.
        count: so many of the view's first rows are batches of the prefix; the others follow the prefix, without a gap.
        late_ms, batch_ms: their watermarks, as they were proved (epoch ms).
        end_offsets: of the prefix's last batch; all topics.
        last_batch: number of the prefix's last batch; numbers rise along a path.
    """

    scope: Scope
    count: int
    late_ms: tuple[int, ...]
    batch_ms: tuple[int, ...]
    end_offsets: Mapping[Part, int]
    last_batch: int


@dataclass(frozen=True)
class HeadView:
    """The head's path as it was at one moment, from its first batch or from a seal on.

    Attributes:
        rows: committed batches on the path, in order.
        groups: per batch, the number of its definition version.
        versions: definitions that ran on the path, distinct by semantics and decode.
        semantics: of the head's path; publications of these serve.
        genesis: first offsets of the path's root, in all topics.
        sequence: newest head move or publication.
        stream: changelog rows on the path.
        dead, late: dead letters and kept late rows of all batches, or None.
        cures: what dead letters on the path should have been, as it was decided; ended ones too.
        served, served_stamp: the served table and what it shows, or None.
        jumps: accepted gaps on the path, by the batch that begins after each.
        corrections: the rows that publications published; None: there are none.
        copies: the other copies of the ledger and of the publications.
        contradicted: fields of the ledger that the copies contradict; `rows` are as the commits have them.
        prefix: what of the path was compared before and is left out here; None: everything is here.
        served_total: rows of the whole served table, which `served` may hold only in part; None: not known.
    """

    home: PipelineHome
    rows: Sequence[LedgerRow]
    groups: Sequence[int]
    versions: Sequence[DefinitionVersion]
    semantics: frozenset[str]
    genesis: Mapping[Part, int]
    sequence: int
    publications: Sequence[Publication]
    stream: pa.Table | None
    dead: pa.Table | None
    late: pa.Table | None
    served: pa.Table | None
    served_stamp: ServedStamp | None
    jumps: Sequence[Jump] = ()
    cures: Sequence[Cure] = ()
    corrections: pa.Table | None = None
    copies: Copies = field(default_factory=Copies)
    contradicted: Sequence[Finding] = ()
    prefix: SealedPrefix | None = None
    served_total: int | None = None

    @property
    def first_new(self) -> int:
        """Path index of the first batch that was not compared before."""
        return 0 if self.prefix is None else self.prefix.count

    def judges(self, start_ms: int) -> bool:
        """Say whether a window is judged."""
        return self.prefix is None or self.prefix.scope.contains(start_ms)

    def is_new(self, batch: int) -> bool:
        """Say whether a batch of the path, by its number, was not compared before."""
        return self.prefix is None or batch > self.prefix.last_batch

    @property
    def last(self) -> LedgerRow:
        """The last committed batch."""
        return self.rows[-1]

    @property
    def newest(self) -> DefinitionVersion:
        """The definition of the last committed batch."""
        return self.versions[self.groups[-1]]

    @property
    def older(self) -> dict[int, Definition]:
        """The definitions before the newest one, by their number; none for a fold, because no rule covers its states then."""
        if self.newest.definition.window.kind.keeps_every_key:
            return {}
        return {number: version.definition for number, version in enumerate(self.versions) if number != self.groups[-1]}

    @property
    def topics(self) -> list[str]:
        """The topics of the newest definition's sources."""
        return self.newest.definition.topics

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """Ids of the topics that the offsets belong to, as the head's timeline recorded them."""
        line = self.copies.timelines.get(self.last.timeline)
        return self.last.topic_ids if line is None else line.topic_ids

    @property
    def index(self) -> dict[tuple[str, int], int]:
        """(timeline, batch) to path index."""
        return {(row.timeline, row.batch): number for number, row in enumerate(self.rows)}


@dataclass(frozen=True)
class Served:
    """The served table, with what a judge needs to know of it.

    Attributes:
        view: the head, with its publications and the table's stamp.
        rows: what is served, by address.
        closed_ms: windows that end at or before it are served.
        late: all late records.
    """

    view: HeadView
    rows: Mapping[RowId, Sequence[ServedRow]]
    closed_ms: int
    late: Sequence[LateRow]


def counted_publications(view: HeadView) -> list[Publication]:
    """Return the publications that the served table counts, by its stamp."""
    stamp = view.served_stamp
    return (
        [] if stamp is None else [publication for publication in view.publications if publication.seq <= stamp.sequence]
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
    stamp, served = _read_served(home)
    entries = read_sequence(home)
    head = select_head(entries)
    path = [] if head is None else path_of(home, head)
    stored = read_ledger(home)
    publications = publications_of(entries)
    copies = _observe_copies(home, path, publications)
    rows = select_on_path(heal_rows(stored, copies), path)
    if not rows:
        message = (
            f"no batch of {home.root.name} is committed yet, so there is nothing to reconcile; start the stream first"
        )
        raise LedgerError(message)
    stream = stream_rows(home)
    loaded, damaged = load_definitions(home, {row.bundle for row in rows}, definitions)
    groups, versions = group_versions(loaded, rows)
    newest = versions[groups[-1]].definition
    topics = newest.topics
    return HeadView(
        home=home,
        rows=rows,
        groups=groups,
        versions=versions,
        semantics=path_semantics(home, path),
        genesis=offsets_of(load_timeline(home, path[0].timeline).genesis, topics),
        sequence=entries[-1].seq if entries else 0,
        publications=publications,
        stream=stream,
        dead=delta.read(home.tables.dead_letters, columns=DEAD_COLUMNS),
        late=delta.read(home.tables.late_rows),
        served=served,
        served_total=None if served is None else served.num_rows,
        served_stamp=stamp,
        cures=read_cures(home, CommittedBatches.of(rows)),
        jumps=_jumps(home, [segment.timeline for segment in path], rows, topics),
        corrections=read_corrections(home, publications),
        copies=copies,
        contradicted=[*damaged, *check_ledger_copies(home.root.name, stored, rows, copies)],
    )


def _observe_copies(home: PipelineHome, path: Sequence[Segment], publications: Sequence[Publication]) -> Copies:
    """Return the other copies; read after the ledger, so that they never hold less of it."""
    commits = [
        LedgerRow.from_json(data)
        for _, data in delta.commits(home.tables.changelog, METADATA_KEY, limit=COMMITS_COMPARED)
    ]
    names = [segment.timeline for segment in path]
    applied = {name: delta.applied_version(home.tables.changelog, app_of(home.root.name, name)) for name in names}
    return Copies(
        commits=commits,
        table=frozenset(read_keys(home)),
        timelines={name: load_timeline(home, name) for name in names},
        known=list_timelines(home),
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
        return load_plan(home, backfill) if (backfill_folder(home, backfill) / "plan.json").exists() else None
    except RivertwiceError as error:
        return str(error)


def _jumps(home: PipelineHome, path: Sequence[str], rows: Sequence[LedgerRow], topics: Sequence[str]) -> list[Jump]:
    """Return the accepted gaps that the path skipped; a start that no acceptance explains stays a defect.

    A timeline may have met the next gap before its first batch: then both are before the first batch that follows.
    """
    gaps = accepted_gaps(home)
    jumps = []
    for place, name in enumerate(path):
        following = [index for index, row in enumerate(rows) if row.timeline in path[place:]]
        if name in gaps and following:
            jumps.append(Jump(following[0], gaps[name], offsets_of(load_timeline(home, name).genesis, topics)))
    return jumps


def _read_served(home: PipelineHome) -> tuple[ServedStamp | None, pa.Table | None]:
    """Return the served table with the stamp of the build that was read; (None, None) if it changed in every attempt."""
    for _ in range(5):
        stamp = served_stamp(home)
        served = read_served(home)
        if served_stamp(home) == stamp:
            return stamp, served
    return None, None


def load_definitions(
    home: PipelineHome, bundles: Set[str], definitions: Path | None
) -> tuple[dict[str, Definition], list[Finding]]:
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
            damaged.append(Finding("bundle", message))
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


def shape_of(definition: Definition) -> RowColumns:
    """Return how result rows of a definition are addressed and compared."""
    return RowColumns(
        keys=tuple(definition.row_keys),
        columns=tuple(definition.columns),
        tolerances={
            name: column.tolerance for name, column in definition.columns.items() if column.tolerance is not None
        },
        count_column=definition.count_column,
    )
