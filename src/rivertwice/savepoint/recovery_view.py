"""What is true of a pipeline's recovery now: how long a fall-back would take, and which savepoints wait for their proof. Reads only."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from rivertwice.config import Settings
from rivertwice.errors import DefinitionError
from rivertwice.pipeline.definition import load_definition
from rivertwice.savepoint.awaiting import select_awaiting
from rivertwice.savepoint.catalogue import Savepoint, list_savepoints
from rivertwice.savepoint.operations.record import Restore, read_operations
from rivertwice.savepoint.recovery import RecoveryEstimate, estimate_recovery
from rivertwice.timeline.committed import newest_batch
from rivertwice.timeline.lineage import head_path, load_timeline


@dataclass(frozen=True)
class RecoveryView:
    """What is true of a pipeline's recovery now.

    Attributes:
        objective: `stream.recovery` of the definition in the project; None if it has none, or cannot be read.
        estimate: how long a fall-back would take; None before the first batch.
        awaiting: planned operations whose savepoint is not proved yet, oldest first.
        savepoints: all that exist.
    """

    objective: timedelta | None
    estimate: RecoveryEstimate | None
    awaiting: tuple[Restore, ...]
    savepoints: tuple[Savepoint, ...] = field(default=(), repr=False)

    @property
    def is_over(self) -> bool:
        """Whether a fall-back would take longer than the objective."""
        if self.objective is None or self.estimate is None:
            return False
        return self.estimate.seconds > self.objective.total_seconds()


def view_recovery(settings: Settings, name: str) -> RecoveryView:
    """Look at a pipeline's savepoints and its last batch; without a timeline there is nothing to see.

    Raises:
        SavepointError: the store cannot be read.
    """
    home = settings.pipeline(name)
    path = head_path(home)
    objective = read_objective(settings, name)
    if not path:
        return RecoveryView(objective, None, ())
    savepoints = list_savepoints(home)
    awaiting = tuple(select_awaiting(read_operations(home), savepoints, path))
    last = newest_batch(home, path)
    if last is None:
        return RecoveryView(objective, None, awaiting, tuple(savepoints))
    fingerprint = load_timeline(home, path[-1].timeline).fingerprint
    estimate = estimate_recovery(savepoints, path, fingerprint, last.batch)
    return RecoveryView(objective, estimate, awaiting, tuple(savepoints))


def read_objective(settings: Settings, name: str) -> timedelta | None:
    """Return the recovery objective of the definition in the project; None if there is none, or it cannot be read now."""
    try:
        return load_definition(settings.definition_folder(name)).stream.recovery
    except DefinitionError:
        return None
