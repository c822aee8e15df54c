"""Make the state of a fold again from the rewritten archive, and remove its old states."""

from __future__ import annotations

import shutil

from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import RivertwiceError
from rivertwice.progress import Progress
from rivertwice.savepoint.bases import BEGINNING
from rivertwice.savepoint.beginning import beginning_of
from rivertwice.savepoint.bundles import current_fingerprint, equivalent_bundles
from rivertwice.savepoint.operations.record import DONE, Restore, read_operations, read_restores
from rivertwice.savepoint.operations.restore import restore_savepoint
from rivertwice.savepoint.plan import require_fingerprint, require_one_definition
from rivertwice.savepoint.recorded import check_chain
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import head


def find_obstacle(settings: Settings, home: PipelineHome, erasure_id: str) -> str | None:
    """Return the reason why the state cannot be made again, or None; a restore that this erasure has begun is resumed."""
    for operation in read_operations(home):
        own = isinstance(operation, Restore) and operation.rewritten_by == erasure_id
        if operation.step < DONE and not own:
            return f"{operation.id} is not finished: finish it, or give it up"
    parent = head(home)
    rows = path_ledger(home)
    if parent is None or not rows:
        return None
    beginning = beginning_of(home, parent).manifest
    try:
        require_fingerprint(beginning, current_fingerprint(settings, home.root.name))
        require_one_definition(beginning, rows, equivalent_bundles(home, beginning, rows))
        check_chain(beginning.batch, beginning.offsets, rows)
    except RivertwiceError as error:
        return str(error)
    return None


def remake_state(settings: Settings, pipeline: str, erasure_id: str, progress: Progress) -> None:
    """Continue a pipeline at rest on a new timeline whose state comes from the archive alone; once in an erasure.

    Raises:
        ReplayMismatchError: a batch gave other rows than the rewritten ones: they depend on the value in another way.
    """
    home = settings.pipeline(pipeline)
    if any(restore.rewritten_by == erasure_id and restore.step == DONE for restore in read_restores(home)):
        return
    progress(f"{pipeline}: its state is made again of the rewritten archive")
    restore_savepoint(settings, pipeline, BEGINNING, progress=progress, keep_intent=True, rewritten_by=erasure_id)


def remove_left_checkpoints(home: PipelineHome) -> None:
    """Delete the checkpoints of all timelines but the head; their records and batches stay."""
    head_now = head(home)
    for folder in home.timelines.iterdir():
        if folder.name != head_now:
            shutil.rmtree(home.checkpoint(folder.name), ignore_errors=True)
    shutil.rmtree(home.scratch, ignore_errors=True)
