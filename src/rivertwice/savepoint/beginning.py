"""The beginning of a head's path as the base of a restore: an empty state, and every recorded batch after it.

It serves for a state that is suspect, of records that Kafka lost, or that must be made from a log that was rewritten (`privacy.erase`). It takes as long as
the whole history, but depends on no stored state.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from rivertwice.config import PipelineHome
from rivertwice.savepoint.bases import BEGINNING
from rivertwice.savepoint.catalogue import Savepoint, savepoint_store
from rivertwice.savepoint.manifest import Manifest
from rivertwice.timeline.lineage import Fork, Timeline, load_timeline, path_of

_BEFORE_ALL = -1


def beginning_of(home: PipelineHome, parent: str) -> Savepoint:
    """Return where the path of a timeline began, as a savepoint without files: the next batch is 0, at the root's genesis."""
    line = load_timeline(home, parent)
    root = load_timeline(home, path_of(home, parent)[0].timeline)
    manifest = Manifest(
        savepoint=BEGINNING,
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
