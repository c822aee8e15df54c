"""Take a savepoint while the stream runs; or make an empty checkpoint, for a restore from the beginning.

1. Copy the head timeline's checkpoint hot into scratch (`hotcopy`).
2. Find the newest batch that the copy finished and the changelog committed; trim everything planned beyond it.
3. Check the copy against the ledger: its `offsets/N` is the recorded one, byte for byte.
4. Hash every file, mark the savepoint as being taken, and copy the files into the store.
5. Put the manifest, if absent. Only now does the savepoint exist; an earlier crash leaves a mark that prune clears.
"""

from __future__ import annotations

import json
import logging
import secrets
import shutil
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from rivertwice.core import LedgerError, LostRaceError, PipelineHome, SavepointError, Settings, to_iso
from rivertwice.savepoint.catalogue import WORKERS, Savepoint, hash_tree, hot_copy, load_savepoint, savepoint_store
from rivertwice.savepoint.manifest import FileEntry, Manifest, StateBase, frozen_pins
from rivertwice.savepoint.records import CHECKPOINT, MANIFEST, TAKING, encode_record
from rivertwice.savepoint.trim import select_batch, select_surplus
from rivertwice.storage import BlobStore
from rivertwice.stream import continued_rows, read_sets
from rivertwice.timeline import Fork, LedgerRow, Timeline, committed_batches, head, path_of, read_ledger, select_on_path

_log = logging.getLogger(__name__)


def take_savepoint(settings: Settings, pipeline: str, *, now: datetime, reason: str = "manual") -> Savepoint:
    """Take a savepoint of the head timeline; the stream is not paused and need not run.

    Raises:
        SavepointError: the pipeline has no checkpoint or no committed batch yet.
        LedgerError: the checkpoint and the ledger contradict each other.
    """
    home = settings.pipeline(pipeline)
    timeline = head(home)
    if timeline is None:
        message = (
            f"{pipeline} has no head timeline: it never ran, so there is nothing to save; `rivertwice start {pipeline}`"
        )
        raise SavepointError(message)
    return save_checkpoint(home, timeline, now=now, reason=reason)


def save_checkpoint(
    home: PipelineHome,
    timeline: str,
    *,
    now: datetime,
    reason: str,
    hold: Callable[[BlobStore, str], None] = lambda *_: None,
) -> Savepoint:
    """Take a savepoint of a timeline's checkpoint, at rest or while its query runs.

    Args:
        hold: is called with the store and the savepoint's id before the manifest is put, so that its lease is there before
            anybody can choose the savepoint.

    Raises:
        SavepointError: the timeline has no checkpoint or no committed batch yet.
        LedgerError: the checkpoint and the ledger contradict each other.
    """
    nonce = secrets.token_hex(4)
    staging = home.scratch / f"take-{nonce}"
    try:
        row = copy_committed(home, timeline, staging)
        if row.timeline != timeline:
            _require_recorded(home, row, timeline)
        name = f"sp-{row.timeline}-{row.batch}-{nonce}"
        manifest = describe_row(home, row, savepoint=name, reason=reason, files=hash_tree(staging), now=now)
        hold(savepoint_store(home), name)
        _publish(home, manifest, staging)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    _log.info(
        "savepoint %s of %s: %s files, %s bytes", manifest.savepoint, row.pipeline, len(manifest.files), manifest.size
    )
    return load_savepoint(home, manifest.savepoint)


def _require_recorded(home: PipelineHome, row: LedgerRow, timeline: str) -> None:
    """Refuse a checkpoint that was changed for a timeline without a batch: the ledger would contradict its savepoint.

    Raises:
        SavepointError: the timeline began after an accepted gap, or with another number of state partitions.
    """
    recorded = select_on_path(read_ledger(home, first_batch=row.batch), path_of(home, timeline))[:1]
    if recorded and recorded[0].offsets_text != row.offsets_text:
        message = (
            f"timeline {timeline} of {row.pipeline} has no batch yet, and its checkpoint was changed since batch {row.batch} of timeline "
            f"{row.timeline} (a gap was accepted, or the state has another number of partitions); start the stream and take the "
            "savepoint after its first batch"
        )
        raise SavepointError(message)


def copy_committed(home: PipelineHome, timeline: str, target: Path) -> LedgerRow:
    """Copy a timeline's checkpoint hot, trim it to its last committed batch, and return that batch's ledger row.

    The ledger is read after the copy: a batch enters it before its commit file exists.

    Raises:
        SavepointError: no batch is committed, or there is no checkpoint.
        LedgerError: the checkpoint planned another range for the batch than the ledger recorded.
    """
    copy = hot_copy(home.checkpoint(timeline), target)
    batches = path_of(home, timeline)
    batch = select_batch(copy.files, set(committed_batches(home, batches).numbers.tolist()))
    recorded = [row for row in select_on_path(read_ledger(home, first_batch=batch), batches) if row.batch == batch]
    rows = {row.batch: row for row in continued_rows(home, recorded, Timeline.load(home, timeline))}
    for path in select_surplus(copy.files, batch):
        (target / path).unlink(missing_ok=True)
    planned = read_sets(target).text_to_log((target / "offsets" / str(batch)).read_text())
    if planned != rows[batch].offsets_text:
        message = (
            f"offsets/{batch} of timeline {timeline} is not what the ledger recorded for batch {batch} of timeline "
            f"{rows[batch].timeline}: the checkpoint was changed by hand or rewound; restore the newest proved savepoint"
        )
        raise LedgerError(message)
    return rows[batch]


def describe_row(
    home: PipelineHome,
    row: LedgerRow,
    *,
    savepoint: str,
    reason: str,
    files: Mapping[str, FileEntry],
    now: datetime | None = None,
) -> Manifest:
    """Return the manifest of a savepoint that stands at a ledger row; without `now` it is as old as the row."""
    return Manifest(
        savepoint=savepoint,
        pipeline=row.pipeline,
        timeline=row.timeline,
        batch=row.batch,
        epoch=row.epoch,
        created_at=row.committed_at if now is None else now,
        reason=reason,
        offsets=row.end_offsets,
        offsets_text=row.offsets_text,
        watermark_ms=row.batch_watermark_ms,
        cluster_id=row.cluster_id,
        topic_ids=row.topic_ids,
        bundle=row.bundle,
        fingerprint=Timeline.load(home, row.timeline).fingerprint,
        pins=frozen_pins(row.offsets_text),
        files=files,
    )


def _publish(home: PipelineHome, manifest: Manifest, staging: Path) -> None:
    store = savepoint_store(home)
    name = manifest.savepoint
    store.put(f"{name}/{TAKING}", encode_record({"started_at": to_iso(manifest.created_at)}))
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda path: store.put_file(f"{name}/{CHECKPOINT}/{path}", staging / path), manifest.files))
    if store.get(f"{name}/{TAKING}") is None:
        message = (
            f"prune cleared {name} while it was being copied, because it looked abandoned; take the savepoint again"
        )
        raise LostRaceError(message)
    data = manifest.to_bytes()
    if not store.put_if_absent(f"{name}/{MANIFEST}", data) and store.get(f"{name}/{MANIFEST}") != data:
        message = f"another savepoint took the id {name} first; nothing of this one counts; take it again"
        raise LostRaceError(message)
    if store.get(f"{name}/{TAKING}") is None:  # this process was suspended for longer than prune waits
        store.delete(f"{name}/{MANIFEST}")
        message = f"prune cleared {name} while its manifest was put; nothing of it is left; take the savepoint again"
        raise LostRaceError(message)
    store.delete(f"{name}/{TAKING}")


# The beginning of a head's path as the base of a restore: an empty state, and every recorded batch after it.
#
# It serves for a state that is suspect, of records that Kafka lost, or that must be made from a log that was rewritten (`upkeep.erase`). It takes as long as
# the whole history, but depends on no stored state.

_BEFORE_ALL = -1


def beginning_of(home: PipelineHome, parent: str) -> Savepoint:
    """Return where the path of a timeline began, as a savepoint without files: the next batch is 0, at the root's genesis."""
    line = Timeline.load(home, parent)
    root = Timeline.load(home, path_of(home, parent)[0].timeline)
    manifest = Manifest(
        savepoint=StateBase.BEGINNING,
        pipeline=line.pipeline,
        timeline=root.timeline,
        batch=_BEFORE_ALL,
        epoch=0,
        created_at=root.created_at,
        reason="the beginning of the path",
        offsets=root.genesis,
        offsets_text="",
        watermark_ms=0,
        cluster_id=root.cluster_id,
        topic_ids=root.topic_ids,
        bundle=line.bundle,
        fingerprint=line.fingerprint,
        pins={},
        files={},
    )
    return Savepoint(manifest, savepoint_store(home))


def fork_before_all(head: Timeline, beginning: Manifest, name: str, now: datetime) -> Timeline:
    """Return the record of a timeline that begins where the head's path began, under the head's definition. Pure."""
    return replace(
        head,
        timeline=name,
        parent=Fork(beginning.timeline, _BEFORE_ALL),
        first_batch=0,
        genesis=beginning.offsets,
        created_at=now,
    )


def make_empty_checkpoint(target: Path) -> None:
    """Create the folder of a checkpoint in which nothing was planned yet; Spark wants a query's id in it (tried)."""
    (target / "offsets").mkdir(parents=True)
    (target / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
