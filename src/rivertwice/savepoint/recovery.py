"""How long a fall-back would take now, and when the next savepoint is due for the recovery objective."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from statistics import median

from rivertwice.core import Attempts, DefinitionError, Settings
from rivertwice.definition import load_definition
from rivertwice.savepoint.awaiting import select_awaiting
from rivertwice.savepoint.catalogue import ProofState, Savepoint, list_savepoints
from rivertwice.savepoint.operations.record import Restore, read_operations
from rivertwice.savepoint.plan import is_on_path
from rivertwice.timeline import Segment, Timeline, head_path, newest_batch

BATCH_S = 0.5
"""Seconds to replay a recorded batch, before any proof has measured it."""
START_S = 25.0
"""Seconds of a fall-back that do not depend on the batches: Spark for the replay, Spark for the stream, the savepoint's files."""
SHARE = 0.5
"""A savepoint is due once this share of the objective is used up: to take and prove one needs time, and batches continue."""
BETWEEN = timedelta(minutes=2)
LONGEST_WAIT = timedelta(minutes=30)
_MEASURED = 5  # newest proofs that are looked at


class RecoveryStep:
    """What keeps the promised time to recover."""

    WAIT = "wait"
    ROTATE = "rotate"
    PROVE = "prove"


@dataclass(frozen=True)
class RecoveryEstimate:
    """How long a fall-back would take now.

    Attributes:
        savepoint: the newest proved savepoint that it could use; None: there is none, so all batches would be replayed.
        batches: recorded batches after it, which would be replayed.
        batch_s: seconds for each of them.
        measured: whether proofs have measured that; else it is `BATCH_S`.
    """

    savepoint: str | None
    batches: int
    batch_s: float
    measured: bool

    @property
    def seconds(self) -> float:
        """The whole of it."""
        return round(START_S + self.batches * self.batch_s, 1)


@dataclass(frozen=True)
class KeepUpDecision:
    """What the agent does about a pipeline's savepoints: `wait`, `rotate` (take one, prove it, prune), or `prove` one that waits."""

    kind: str
    reason: str
    savepoint: str | None = None


def measured_batch_s(savepoints: Sequence[Savepoint]) -> float | None:
    """Return the median seconds to replay a batch over the newest proofs that have measured it; None if none has."""
    proofs = [
        savepoint.proof
        for savepoint in savepoints
        if savepoint.proof is not None and savepoint.proof.get("batch_s") is not None
    ]
    newest = sorted(proofs, key=lambda proof: str(proof.get("made_at", "")))[-_MEASURED:]
    return median(float(proof["batch_s"]) for proof in newest) if newest else None


def estimate_recovery(
    savepoints: Sequence[Savepoint], path: Sequence[Segment], fingerprint: Mapping[str, str], last: int
) -> RecoveryEstimate:
    """Return how long a fall-back would take now.

    Args:
        path: the head's path.
        fingerprint: of the head's definition; a fall-back refuses savepoints of another one.
        last: the last committed batch.
    """
    usable = [
        savepoint
        for savepoint in savepoints
        if savepoint.status == ProofState.PROVED
        and is_on_path(savepoint.manifest, path)
        and savepoint.manifest.fingerprint == fingerprint
    ]
    newest = max(usable, key=lambda savepoint: (savepoint.manifest.batch, savepoint.id), default=None)
    measured = measured_batch_s(savepoints)
    return RecoveryEstimate(
        savepoint=None if newest is None else newest.id,
        batches=last + 1 if newest is None else max(0, last - newest.manifest.batch),
        batch_s=BATCH_S if measured is None else measured,
        measured=measured is not None,
    )


def batches_within(objective: timedelta, batch_s: float) -> int:
    """Return after how many batches the next savepoint is due."""
    return max(1, math.floor((SHARE * objective.total_seconds() - START_S) / batch_s)) if batch_s > 0 else 1


def decide_keep_up(
    estimate: RecoveryEstimate | None,
    objective: timedelta | None,
    awaiting: Sequence[str],
    memory: Attempts,
    now: datetime,
    *,
    wanted: bool,
) -> KeepUpDecision:
    """Decide whether a savepoint is due now, or one of a planned restore must be proved.

    Args:
        estimate: how long a fall-back would take; None: no batch is committed yet.
        objective: `stream.recovery` of the definition; None: the schedule alone takes savepoints.
        awaiting: savepoints of planned restores that are not proved yet, oldest first.
        wanted: the desired state is running.
    """
    if memory.busy:
        return KeepUpDecision(RecoveryStep.WAIT, "a job is at work")
    pause = replace(memory, failures=memory.failures + 1).pause(BETWEEN, LONGEST_WAIT)
    if memory.last_end is not None and memory.last_end <= now < memory.last_end + pause:
        return KeepUpDecision(
            RecoveryStep.WAIT, f"the last job ended {int((now - memory.last_end).total_seconds())} s ago"
        )
    if awaiting:
        return KeepUpDecision(
            RecoveryStep.PROVE, f"{awaiting[-1]}, from which the head's timeline began, is not proved yet", awaiting[-1]
        )
    if estimate is None or objective is None or not wanted:
        return KeepUpDecision(RecoveryStep.WAIT, "no recovery objective, or a stream whose desired state is stopped")
    due_at = batches_within(objective, estimate.batch_s)
    if estimate.batches < due_at:
        return KeepUpDecision(
            RecoveryStep.WAIT, f"{estimate.batches} batches would be replayed, a savepoint is due at {due_at}"
        )
    reason = (
        f"a fall-back would take about {estimate.seconds:.0f} s now ({estimate.batches} batches after "
        f"{estimate.savepoint or 'the beginning'}), the objective is {objective.total_seconds():.0f} s"
    )
    return KeepUpDecision(RecoveryStep.ROTATE, reason)


# What is true of a pipeline's recovery now: how long a fall-back would take, and which savepoints wait for their proof. Reads only.


@dataclass(frozen=True)
class RecoveryView:
    """What is true of a pipeline's recovery now.

    Attributes:
        objective: `stream.recovery` of the definition in the project; None if it has none, or cannot be read.
        estimate: how long a fall-back would take; None before the first batch.
        awaiting: planned operations whose savepoint is not proved yet, oldest first.
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
    fingerprint = Timeline.load(home, path[-1].timeline).fingerprint
    estimate = estimate_recovery(savepoints, path, fingerprint, last.batch)
    return RecoveryView(objective, estimate, awaiting, tuple(savepoints))


def read_objective(settings: Settings, name: str) -> timedelta | None:
    """Return the recovery objective of the definition in the project; None if there is none, or it cannot be read now."""
    try:
        return load_definition(settings.definition_folder(name)).stream.recovery
    except DefinitionError:
        return None
