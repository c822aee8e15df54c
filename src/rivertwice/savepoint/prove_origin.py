"""Prove the savepoint of a planned restore or upgrade: replay the recorded batches between a proved savepoint and this one.

A replay forward, as of every other savepoint, would prove nothing here: what the new timeline committed was computed from this very
savepoint, and after an upgrade by another definition. So the savepoint's origin, a proved one before it, is fetched into scratch, the
recorded batches up to this one are replayed under the definition that made them, each is compared with the ledger, and the state at
the end is compared with this savepoint's. Neither the stream nor its live checkpoint is read; the stream may run.
"""

from __future__ import annotations

import secrets
import shutil
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rivertwice.core import (
    PipelineHome,
    Progress,
    ReplayMismatchError,
    RivertwiceError,
    SavepointError,
    Settings,
    to_iso,
    utc_now,
)
from rivertwice.savepoint.awaiting import select_awaiting, select_origin
from rivertwice.savepoint.catalogue import Savepoint, list_savepoints
from rivertwice.savepoint.feed import plan_feed, replay_source, session_of
from rivertwice.savepoint.operations.record import Restore, read_operations
from rivertwice.savepoint.plan import load_state_definition, require_recorded
from rivertwice.savepoint.proof import (
    Proof,
    copied_damage,
    describe_difference,
    measure_batch,
    naming_damage,
    note_proof,
    read_state,
    record_attempt,
)
from rivertwice.savepoint.records import lease_savepoint, release_savepoint
from rivertwice.savepoint.replay import replay_recorded
from rivertwice.timeline import head_path, path_of, read_ledger, select_on_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEASE = timedelta(hours=6)


def find_awaiting(home: PipelineHome, savepoint: Savepoint) -> Restore | None:
    """Return the planned operation whose savepoint this is, if it is not proved yet; else None."""
    awaiting = select_awaiting(read_operations(home), [savepoint], head_path(home))
    return awaiting[-1] if awaiting else None


def prove_from_origin(
    settings: Settings,
    home: PipelineHome,
    restore: Restore,
    savepoint: Savepoint,
    *,
    progress: Progress,
    spark: SparkSession | None = None,
) -> Proof:
    """Prove a planned operation's savepoint. However many batches lie between, all are replayed.

    Raises:
        SavepointError: no proved savepoint before it exists, or one of the two is damaged.
        LogGapError: neither Kafka nor the archive has the records between.
        ReplayMismatchError: a batch or the state differs; the message names it.
    """
    path = path_of(home, savepoint.manifest.timeline)
    origin = select_origin(restore, savepoint, list_savepoints(home), path)
    holder = f"prove-{secrets.token_hex(4)}"
    scratch = home.scratch / holder
    held: list[Savepoint] = []
    try:
        if origin is None:
            message = (
                f"{savepoint.id}, from which timeline {restore.child} began, cannot be proved: no proved savepoint before it has its "
                "definition; take and prove a new one of the running stream (`rivertwice savepoint take`, then `prove`)"
            )
            raise SavepointError(message)
        for each in (savepoint, origin):
            lease_savepoint(each.store, each.id, holder, now=utc_now(), length=LEASE)
            held.append(each)
        proof = _prove(settings, home, origin, savepoint, scratch, progress, spark)
        lease_savepoint(savepoint.store, savepoint.id, holder, now=utc_now(), length=LEASE)  # it may have run out
        return note_proof(savepoint, proof, progress)
    except RivertwiceError as error:
        record_attempt(savepoint, {"proved": False, "reason": str(error), "made_at": to_iso(utc_now())})
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        for each in held:
            release_savepoint(each.store, each.id, holder)


def _prove(
    settings: Settings,
    home: PipelineHome,
    origin: Savepoint,
    savepoint: Savepoint,
    scratch: Path,
    progress: Progress,
    spark: SparkSession | None,
) -> Proof:
    began = time.monotonic()
    replayed, second, last = scratch / "replayed", scratch / "second", savepoint.manifest.batch
    progress(f"fetching {origin.id} and {savepoint.id}")
    origin.download(replayed)
    savepoint.download(second)
    rows = select_on_path(read_ledger(home), path_of(home, savepoint.manifest.timeline))
    require_recorded(origin.manifest, rows)
    require_recorded(savepoint.manifest, rows)
    definition = load_state_definition(home, savepoint.manifest)
    plan = plan_feed(settings, home, definition, origin.manifest, rows, until=last)
    session = spark or session_of(settings, definition, plan.rows)
    name = f"rivertwice-replay-{scratch.name}"
    replay_began = time.monotonic()
    with (
        naming_damage(origin.id, copied_damage(origin)),
        replay_source(session, settings, definition, origin.manifest, plan, name=name, progress=progress) as topics,
    ):
        done = replay_recorded(
            session, settings, definition, replayed, plan.rows, before=rows, topic_override=topics, progress=progress
        )
    replay_seconds = round(time.monotonic() - replay_began, 3)
    progress(f"comparing the state after batch {last}")
    with naming_damage(origin.id, copied_damage(origin)):
        state = read_state(session, replayed, last)
    with naming_damage(savepoint.id, copied_damage(savepoint)):
        difference = describe_difference(state, read_state(session, second, last))
    if difference is not None:
        message = (
            f"{difference}, although every batch since {origin.id} gave the recorded rows: the checkpoint of which {savepoint.id} was "
            "taken held another state; do not build on it"
        )
        raise ReplayMismatchError(message)
    return Proof(
        savepoint=savepoint.id,
        proved=True,
        batches=len(done),
        last_batch=last,
        state_rows=state.rows,
        state=dict(state.stores),
        source=plan.source,
        seconds=round(time.monotonic() - began, 3),
        replay_seconds=replay_seconds,
        reason=f"proved: {len(done)} recorded batches since {origin.id} replayed equal, and the state after batch {last} "
        f"({state.rows} rows) is equal",
        made_at=to_iso(utc_now()),
        batch_s=measure_batch(done),
    )
