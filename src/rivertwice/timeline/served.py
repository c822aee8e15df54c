"""The served table: what each closed window serves now, in one table that is stamped with what it shows.

It is kept by what changed since its stamp (`served_change`), and built whole where only that is sound, or where it is asked for.
Both give the same rows. For a pipeline that emits updates, `provisional` has the newest rows of the windows that are open.
"""

from __future__ import annotations

import hashlib
import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pyarrow as pa

from rivertwice.config import PipelineHome, Place
from rivertwice.errors import LedgerError, LostRaceError, ServiceError
from rivertwice.locks import lock
from rivertwice.pipeline.definition import Definition
from rivertwice.retry import retry
from rivertwice.store import delta
from rivertwice.store.delta_counts import broken_files
from rivertwice.store.delta_dataset import TableFiles, batches_of
from rivertwice.store.delta_log import find_torn
from rivertwice.store.sorted_rows import sorted_rows
from rivertwice.timeline.committed import committed_batches, newest_batch
from rivertwice.timeline.intact import check_corrections, check_stream_rows
from rivertwice.timeline.lineage import path_of, path_semantics, path_until
from rivertwice.timeline.sequence import read_sequence, select_head
from rivertwice.timeline.served_change import Change, find_change
from rivertwice.timeline.served_export import OWN_COLUMNS, json_lines
from rivertwice.timeline.served_export import export_lines as export_lines
from rivertwice.timeline.served_rows import newest_by as newest_by
from rivertwice.timeline.served_rows import newest_rows as newest_rows
from rivertwice.timeline.served_rows import open_rows, path_rows
from rivertwice.timeline.served_rows import publications_of as publications_of
from rivertwice.timeline.served_rows import read_corrections as read_corrections
from rivertwice.timeline.served_rows import read_provisional as read_provisional
from rivertwice.timeline.served_rows import rows_served_by as rows_served_by
from rivertwice.timeline.served_rows import stream_rows as stream_rows
from rivertwice.timeline.served_span import Build
from rivertwice.timeline.served_stamp import METADATA_KEY as METADATA_KEY
from rivertwice.timeline.served_stamp import ServedStamp as ServedStamp
from rivertwice.timeline.served_stamp import follow_stamp, is_own, stamp_of
from rivertwice.timeline.served_stamp import provisional_stamp as provisional_stamp
from rivertwice.timeline.served_stamp import served_stamp as served_stamp
from rivertwice.timeline.serving import select_served, select_serving
from rivertwice.waits import Deadline

_RACES = 5
POLL_SECONDS = 0.2


class Way(StrEnum):
    """How a build was made."""

    NOTHING = "nothing"
    APPENDED = "appended"
    REPLACED = "replaced"
    WHOLE = "whole"


@dataclass(frozen=True)
class ServedReport:
    """What a rebuild did.

    Attributes:
        stamp: what the table shows now; None if there is nothing to serve yet.
        way: `nothing`: it showed that already; `appended`: rows were added; `replaced`: rows of windows that changed were
            replaced, and rows added; `whole`: all rows were written.
        rows: rows written.
        published: how many of them come from publications.
    """

    stamp: ServedStamp | None
    way: Way
    rows: int = 0
    published: int = 0

    @property
    def rebuilt(self) -> bool:
        """Whether the table was written."""
        return self.way is not Way.NOTHING


def rebuild_served(home: PipelineHome, definition: Definition, *, force: bool = False) -> ServedReport:
    """Make the served table show the newest sequence and the last committed batch, in one commit; not if rows are gone.

    1. Read sequence, path and the newest batch. 2. Stop if the table has that stamp already. 3. Find what changed since its
    stamp; if that cannot be said, or a table is damaged, choose all rows. 4. Write what changed, or all, with the stamp in the commit. A crash before
    a commit or after it does no harm. 5. For a pipeline that emits updates, overwrite `provisional`: a window that has just
    closed is in both for a moment, never in none.

    The handles that write were opened before step 1: a commit in between, of another host or an erasure, is never hidden.
    With `force` all rows are chosen, whatever the stamp is: rows that a repair wrote again have the stamps of old batches.

    Raises:
        TableDamageError: the changelog lost rows that are read, or the corrections those of a publication.
        LostRaceError: others committed to the table each time; the next caller tries again.
    """
    # A race is lost to another host, an erasure or upkeep: what was read may be old.
    return retry(LostRaceError, tries=_RACES)(_rebuild, home, definition, force=force)


def _rebuild(home: PipelineHome, definition: Definition, *, force: bool) -> ServedReport:
    with serving_lock(home.root):
        # Step 1.
        if not home.is_first_version:
            follow_stamp(home)  # another host may have switched
        tables = home.tables
        served, provisional = (delta.open_table(table) for table in (tables.served, tables.provisional))
        entries = read_sequence(home)
        head = select_head(entries)
        path = [] if head is None else path_of(home, head)
        last = newest_batch(home, path) if path else None
        if last is None:
            return ServedReport(None, Way.NOTHING)
        build = Build(home, definition, entries, path_until(path, last.batch), last, tables.served, served, provisional)
        # Step 2.
        wanted = [tables.served, tables.provisional] if definition.has_updates else [tables.served]
        shown, *shown_open = [stamp_of(table) for table in wanted]
        _require_own(home, shown, build.stamp.version)
        if not force and all(stamp == build.stamp for stamp in (shown, *shown_open)):
            return ServedReport(build.stamp, Way.NOTHING)
        # Steps 3 to 5.
        delta.require_whole(tables.changelog)
        delta.require_whole(tables.corrections)
        is_kept = not force and shown is not None and all(_is_undamaged(table) for table in wanted)
        change = find_change(build, shown, *shown_open or [None]) if is_kept and shown is not None else None
        return _write_whole(build) if change is None else _write(build, change)


def _require_own(home: PipelineHome, shown: ServedStamp | None, mark: str) -> None:
    """Check that the table is this version's to write.

    Raises:
        LostRaceError: another version serves now; this host knows it from now on.
    """
    if not is_own(shown, mark):
        message = f"{follow_stamp(home)} serves now, so {home.root.name} keeps its rows for itself; nothing was written"
        raise LostRaceError(message)


def _is_undamaged(table: Place) -> bool:
    """Say whether a table holds what its commits wrote: what a power loss took from it is not kept on, but built again."""
    is_torn = isinstance(table, Path) and bool(find_torn(table))
    return not is_torn and not broken_files(table)


def _write(build: Build, change: Change) -> ServedReport:
    assert build.served is not None, "the table has a stamp"
    table, metadata = build.table, {METADATA_KEY: build.stamp.plain()}
    if change.where is None:
        delta.append_rows(table, change.added, metadata=metadata, at=build.served)
    else:
        delta.replace_rows(table, change.added, where=change.where, metadata=metadata, at=build.served)
    if change.still_open is not None:
        delta.overwrite(build.home.tables.provisional, change.still_open, metadata=metadata, at=build.provisional)
    way = Way.APPENDED if change.where is None else Way.REPLACED
    return ServedReport(build.stamp, way, change.added.num_rows, change.published)


def _write_whole(build: Build) -> ServedReport:
    home, definition = build.home, build.definition
    emitted = path_rows(home, build.path)
    if emitted is None:
        message = (
            f"the ledger of {home.root.name} has batch {build.last.batch} of {build.last.timeline}, but there is no changelog; "
            f"its rows are lost; what is served stays as it is; `rivertwice repair {home.root.name}` says what can be done"
        )
        raise LedgerError(message)
    check_stream_rows(home, committed_batches(home, build.path), emitted)
    stream = newest_rows(emitted, definition)
    publications, head = publications_of(build.entries), select_head(build.entries)
    assert head is not None, "there is a path"
    semantics = path_semantics(home, path_of(home, head))
    corrections = read_corrections(home, publications)
    check_corrections(home.root.name, select_serving(publications, semantics), corrections)
    served = select_served(
        stream,
        corrections,
        publications,
        semantics=semantics,
        closed_ms=build.closed_ms,
        start_column=definition.window.start_column,
        end_column=definition.window.end_column,
        session_keys=definition.session_keys,
    )
    metadata = {METADATA_KEY: build.stamp.plain()}
    delta.overwrite(build.table, served, metadata=metadata, at=build.served, new=build.served is None)
    if definition.has_updates:
        still_open = open_rows(stream, definition, build.last.batch_watermark_ms)
        delta.overwrite(home.tables.provisional, still_open, metadata=metadata, at=build.provisional)
    return ServedReport(build.stamp, Way.WHOLE, served.num_rows, served.num_rows - served["_backfill"].null_count)


def serving_lock(root: Path) -> AbstractContextManager[None]:
    """Let one process of this host at a time write what a pipeline serves: what was read earlier never overwrites what was read later."""
    return lock(root / "served.lock")


def read_served(home: PipelineHome) -> pa.Table | None:
    """Return the served rows, or None if the table was never built."""
    return delta.read(home.tables.served)


def wait_served(home: PipelineHome, sequence: int, timeout: float, batch: tuple[str, int] | None = None) -> ServedStamp:
    """Wait until the served table shows at least `sequence`, and at least this batch of a timeline, unless the head moved since.

    Raises:
        ServiceError: it does not show it within `timeout` seconds.
    """
    stamp = None
    for _ in Deadline.after(timeout).polls(POLL_SECONDS):
        stamp = served_stamp(home)
        if stamp is None or stamp.sequence < sequence:
            continue
        if batch is None or stamp.timeline != batch[0] or stamp.batch >= batch[1]:
            return stamp
    wanted, shows = f"{sequence}", "" if stamp is None else f"sequence {stamp.sequence}"
    if batch is not None and stamp is not None:
        wanted, shows = f"{sequence} and {batch[1]}", f"{shows} and batch {stamp.batch}"
    shown = "was never built" if stamp is None else f"shows {shows}"
    message = (
        f"the served table of {home.root.name} {shown}, not {wanted}, after {timeout:g} s; the agent rebuilds it: "
        "look at `rivertwice status` and the agent's log"
    )
    raise ServiceError(message)


def export_sha256(home: PipelineHome) -> str:
    """Return the SHA-256 of the served table's rows as `rivertwice export NAME FILE.jsonl` writes them.

    The stamp is in the commit, not in the rows: a head move that changes no served row does not change the hash.

    Raises:
        ServiceError: the table was never built.
    """
    table = delta.open_table(home.tables.served)
    if table is None:
        message = f"the served table of {home.root.name} was never built; the agent builds it after the first batch"
        raise ServiceError(message)
    files = TableFiles(home.tables.served, table)
    schema = pa.schema([field for field in files.schema if field.name not in OWN_COLUMNS])
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(prefix="rivertwice-") as scratch:
        batches = batches_of(files.dataset(), None, schema.names)
        for rows in sorted_rows(batches, schema, schema.names[0], Path(scratch)):
            digest.update(b"".join(line + b"\n" for line in json_lines(rows)))
    return digest.hexdigest()
