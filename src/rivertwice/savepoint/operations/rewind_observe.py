"""The present state on which a rewind depends. Reads only."""

from __future__ import annotations

from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import SavepointError
from rivertwice.log import kafka
from rivertwice.log.forks import observe_forks
from rivertwice.log.marks import Fork, marks_from_plain
from rivertwice.pipeline.definition import load_definition
from rivertwice.pipeline.model import Definition
from rivertwice.savepoint.bundles import current_fingerprint
from rivertwice.savepoint.manifest import Manifest
from rivertwice.savepoint.operations.rewind_compare import count_windows, read_emitted
from rivertwice.savepoint.operations.rewind_plan import Emitted, World, after_fork
from rivertwice.store import delta
from rivertwice.timeline.committed import committed_batches, every_batch
from rivertwice.timeline.intact import check_committed, require_whole_logs
from rivertwice.timeline.judgements import causes_of
from rivertwice.timeline.ledger import LedgerRow, read_ledger
from rivertwice.timeline.lineage import (
    Segment,
    last_in_common,
    path_of,
    path_semantics,
    path_until,
    select_on_path,
)
from rivertwice.timeline.sequence import read_sequence
from rivertwice.timeline.served import publications_of
from rivertwice.verdicts import LATE_RECORD

_PACE_OVER = 1_000  # newest batches whose rows are read in any case: the pace is taken from those that read records


def path_to(home: PipelineHome, timeline: str, batch: int) -> list[Segment]:
    """Return the path that ends at a batch, root first."""
    path = path_of(home, timeline)
    return [*path[:-1], Segment(timeline, path[-1].first, batch)]


def read_definition(settings: Settings, pipeline: str) -> Definition:
    """Return the definition as it is in the project now."""
    return load_definition(settings.definition_folder(pipeline))


def forks_before(settings: Settings, home: PipelineHome, timeline: str, batch: int) -> list[Fork]:
    """Return where Kafka has not the last records that had been read by a batch.

    Raises:
        ServiceError: Kafka does not answer.
    """
    rows = [row for row in read_ledger(home, first_batch=batch) if (row.timeline, row.batch) == (timeline, batch)]
    return [fork for row in rows[:1] for fork in observe_forks(settings, row.topic_ids, marks_from_plain(row.marks))]


def observe_rewind(settings: Settings, home: PipelineHome, manifest: Manifest, head: str) -> World:
    """Return the state on which a rewind from `head` to a savepoint depends.

    Raises:
        SavepointError: the head has no batch yet.
        TableDamageError: a table has lost committed rows of one of the two paths.
        ServiceError: Kafka does not answer.
    """
    require_whole_logs(home)
    definition = read_definition(settings, manifest.pipeline)
    every = every_batch(home)  # read before the tables are counted, so a driver that still commits does no harm
    head_path, path = path_of(home, head), path_to(home, manifest.timeline, manifest.batch)
    committed = committed_batches(home, head_path, every)
    if not len(committed):
        message = f"timeline {head} of {manifest.pipeline} has no committed batch, so there is nothing to go back from"
        raise SavepointError(message)
    for batches in (committed, committed_batches(home, path, every)):
        check_committed(home, batches, every, remember=False)
    last = int(committed.numbers[-1])
    shared = last_in_common(path_until(head_path, last), path)
    ledger = read_ledger(home, first_batch=min(-1 if shared is None else shared, last - _PACE_OVER))
    old = select_on_path(ledger, path_until(head_path, last))
    new = select_on_path(ledger, path)
    gone, _ = after_fork(old, new)
    rows = read_emitted(home, gone, definition)
    return World(
        head=head,
        old_rows=old,
        new_rows=new,
        emitted=Emitted(0 if rows is None else rows.num_rows, count_windows(rows, definition)),
        late=count_late(home, head, gone),
        log_begins={topic: kafka.begin_offsets(settings, topic) for topic in definition.topics},
        topic_ids={topic: kafka.topic_id(settings, topic) for topic in manifest.topic_ids},
        fingerprint=current_fingerprint(settings, manifest.pipeline),
        publications=publications_of(read_sequence(home)),
        semantics=path_semantics(home, path),
        forks=forks_before(settings, home, manifest.timeline, manifest.batch),
    )


def count_late(home: PipelineHome, head: str, gone: list[LedgerRow]) -> int | None:
    """Return how many records the newest reconcile of a head reported as late in these batches; None without a reconcile.

    The ledger does not contain them: Spark drops late rows without a message, and only a reconcile reports them.
    """
    runs = delta.read(home.tables.reconciles, columns=["run", "created_at", "timeline"])
    own_runs = [] if runs is None else [run for run in runs.to_pylist() if run["timeline"] == head]
    if not own_runs:
        return None
    newest = max(own_runs, key=lambda run: run["created_at"])["run"]
    batches = {row.batch for row in gone}
    late = (row for row in causes_of(home, newest) if row["cause"] == LATE_RECORD and row["batch"] in batches)
    return len({(row["topic"], row["partition"], row["offset"]) for row in late})
