"""The savepoints of a pipeline: what is known of each, its proof, what a restore would cost, and until when it is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from rivertwice.core import PipelineHome, Settings
from rivertwice.retention import retention_file
from rivertwice.savepoint import (
    BATCH_S,
    MARGIN,
    START_S,
    Manifest,
    Operation,
    OperationStep,
    ProofBudget,
    ProofState,
    Savepoint,
    batches_in,
    is_on_path,
    last_attempt,
    measured_batch_s,
    plan_of,
    protected_savepoints,
    read_operations,
    survey_savepoints,
)
from rivertwice.storage import read_json
from rivertwice.timeline import CommittedBatches, Segment, Timeline, committed_batches, head_path

# The race clocks of a savepoint: until when its records exist, and until when it can be proved. Pure.
#
# What is needed is in Kafka, which deletes, and in the archive, which keeps. The agent measures both; here its last measurement is
# read. A measurement that does not name a savepoint was made before it was taken.

KEPT, UNTIL, SOON, LOST, UNKNOWN = "kept", "until", "soon", "lost", "unknown"
"""The records exist without end; until an instant; until one that is near; some are gone; not measured."""
_SOON_LEVELS = ("warning", "critical")


@dataclass(frozen=True)
class Race:
    """Until when a savepoint can be restored, by the records that its replay reads.

    Attributes:
        word: one of the words above.
        deadline: earliest instant at which Kafka may delete a record that only Kafka has, ISO 8601; None: none is known.
        lost: records that neither Kafka nor the archive has.
        only_kafka: records that only Kafka has.
        measured_at: when the agent looked, ISO 8601.
    """

    word: str
    deadline: str | None
    lost: int
    only_kafka: int
    measured_at: str | None
    text: str


@dataclass(frozen=True)
class ProofRace:
    """Whether a savepoint that is not proved can still be proved.

    Attributes:
        left: how many more batches the stream may commit before it cannot; None: it is not known, because no checkpoint is here.
    """

    left: int | None
    text: str


def decide_race(savepoint: str, measured: Mapping[str, Any] | None) -> Race:
    """Return until when a savepoint's records exist.

    Args:
        measured: the agent's last measurement of the log; None: there is none.
    """
    leases = [] if measured is None else _leases_of(savepoint, measured["leases"])
    if measured is None or not leases:
        text = "not measured yet: the agent looks at the log every two minutes, if it runs"
        return Race(UNKNOWN, None, 0, 0, None, text)
    lost, only = (sum(lease[name] for lease in leases) for name in ("lost", "only_kafka"))
    deadline = min((lease["deadline"] for lease in leases if lease["deadline"] is not None), default=None)
    if lost:
        word = LOST
        text = f"cannot be restored any more: {lost} records that its replay needs are gone from Kafka and from the archive"
    elif deadline is None:
        word = KEPT
        text = (
            f"no end: Kafka does not delete the {only} records that only it has"
            if only
            else "no end: the archive has its records"
        )
    else:
        word = SOON if any(lease["level"] in _SOON_LEVELS for lease in leases) else UNTIL
        text = f"then Kafka may delete some of the {only} records that only it has; the archive keeps what it copies before"
    return Race(word, None if lost else deadline, lost, only, str(measured["at"]), text)


def _leases_of(savepoint: str, leases: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [lease for lease in leases if lease["holder"] == f"savepoint {savepoint}"]


def lost_to_rewind(manifest: Manifest, measured: Mapping[str, Any] | None) -> int | None:
    """Return how many records after a savepoint Kafka no longer has, which a rewind would read; None: it is not measured."""
    if measured is None:
        return None
    topics = measured.get("topics", [measured])
    lost = 0
    for topic in topics:
        starts = manifest.offsets.get(str(topic["topic"]), {})
        lost += sum(max(0, int(begin) - int(starts.get(part, 0))) for part, (begin, _) in topic["kafka"].items())
    return lost


def decide_proof_race(batch: int, oldest: int | None, budget: ProofBudget) -> ProofRace:
    """Return whether a savepoint at a batch can still be proved.

    A proof compares the state with one that the running checkpoint still has, and may replay a limited number of batches to reach it.

    Args:
        oldest: the first batch whose state the running checkpoint still has; None: it is not here.
    """
    if oldest is None:
        return ProofRace(None, "whether it can be proved is seen by the proof: the checkpoint is not on this host")
    allowed = max(budget.batches, budget.max_batches)
    nearest = oldest + MARGIN if oldest > 0 else 0
    left = batch + allowed - nearest
    if left < 0:
        text = f"can no longer be proved: the nearest state that is left to compare with is {allowed - left} batches on"
        return ProofRace(0, f"{text}, and a proof replays at most {allowed}")
    return ProofRace(left, f"can be proved while the stream commits {left} more batches")


MOST = 60
"""Newest savepoints that are described; older ones are counted."""
_ATTEMPTS = 5  # newest unproved savepoints of which the last attempt is read


@dataclass(frozen=True)
class Replay:
    """What a restore would replay, from the savepoint up to the last committed batch.

    Attributes:
        seconds: about how long a restore takes, with the starts of Spark; measured: whether proofs have measured that pace.
    """

    batches: int
    records: int
    seconds: float
    measured: bool


@dataclass(frozen=True)
class SavepointInputs:
    """What is true around all savepoints.

    Attributes:
        path: the head's path; empty before the first start.
        fingerprint: of the head's definition.
        measured: the agent's last measurement of the log.
        oldest: the first batch whose state the running checkpoint still has; None: it is not on this host.
        protected: savepoint id to the reason why a prune keeps it.
        batch_s: seconds to replay a batch; None: no proof has measured it.
    """

    path: Sequence[Segment]
    fingerprint: Mapping[str, str]
    committed: CommittedBatches
    measured: Mapping[str, Any] | None
    oldest: int | None
    protected: Mapping[str, str]
    batch_s: float | None


@dataclass(frozen=True)
class ProofView:
    """When a savepoint was proved, by what, and what was compared; a proof of an older version may lack parts."""

    at: str | None
    batches: int | None
    source: str | None
    seconds: float | None
    compared: str
    text: str | None


@dataclass(frozen=True)
class SavepointView:
    """What is shown of a savepoint.

    Attributes:
        kept: why a prune keeps it. attempt: why the last attempt gave no proof.
        replay: what a restore would replay; None: it is not on the head's path.
        race: until when its records exist. to_prove: whether it can still be proved; None: it is, or is not on the path.
        obstacles: act to why it would be refused, as far as it is known here.
    """

    id: str
    status: str
    timeline: str
    batch: int
    at: datetime
    bytes: int
    files: int
    pinned: bool
    reason: str
    on_path: bool
    kept: str | None
    proof: ProofView | None
    attempt: str | None
    replay: Replay | None
    race: Race
    to_prove: ProofRace | None
    obstacles: Mapping[str, str | None]


@dataclass(frozen=True)
class OperationView:
    """A restore, rewind or upgrade that is not done: which, after which step, and the commands that finish or abandon it."""

    id: str
    noun: str
    savepoint: str
    after: str
    began: datetime
    finish: str
    abandon: str


@dataclass(frozen=True)
class SavepointList:
    """The savepoints of a pipeline, newest first, with counts, those that cannot be read with the reason, and the interrupted operation."""

    total: int
    proved: int
    rows: tuple[SavepointView, ...]
    damaged: Mapping[str, str]
    operation: OperationView | None


def describe_savepoints(settings: Settings, name: str, now: datetime) -> SavepointList:
    """Return the savepoints of a pipeline.

    Raises:
        SavepointError: the store cannot be read.
    """
    home = settings.pipeline(name)
    survey = survey_savepoints(home)
    savepoints = survey.sound
    world = _observe(settings, home, savepoints, now)
    newest = list(reversed(savepoints))[:MOST]
    attempts = _attempts(newest)
    return SavepointList(
        len(savepoints),
        sum(savepoint.status == ProofState.PROVED for savepoint in savepoints),
        tuple(describe_savepoint(savepoint, world, attempts.get(savepoint.id)) for savepoint in newest),
        survey.damaged,
        describe_operation(read_operations(home), name),
    )


def describe_savepoint(savepoint: Savepoint, world: SavepointInputs, attempt: str | None) -> SavepointView:
    """Return what the page shows of a savepoint. Pure.

    Args:
        attempt: why the last attempt gave no proof; None: there was none, or it was not looked at.
    """
    manifest = savepoint.manifest
    on_path = is_on_path(manifest, world.path)
    race = decide_race(savepoint.id, world.measured)
    proved = savepoint.status == ProofState.PROVED
    to_prove = None if proved or not on_path else decide_proof_race(manifest.batch, world.oldest, ProofBudget())
    return SavepointView(
        id=savepoint.id,
        status=savepoint.status,
        timeline=manifest.timeline,
        batch=manifest.batch,
        at=manifest.created_at,
        bytes=manifest.size,
        files=len(manifest.files),
        pinned=savepoint.pinned,
        reason=manifest.reason,
        on_path=on_path,
        kept=world.protected.get(savepoint.id),
        proof=None if savepoint.proof is None else describe_proof(savepoint.proof),
        attempt=attempt,
        replay=_replay(savepoint, world) if on_path else None,
        race=race,
        to_prove=to_prove,
        obstacles=find_obstacles(savepoint, world, race, to_prove),
    )


def describe_proof(proof: Mapping[str, Any]) -> ProofView:
    """Return when a savepoint was proved, by what, and what was compared. Pure; a proof of an older version may lack parts."""
    batches, rows = proof.get("batches"), proof.get("state_rows")
    compared = []
    if batches:
        compared.append(f"the rows of {batches} recorded batches, up to batch {proof.get('last_batch')}")
    if rows is not None:
        compared.append(f"the state after it, {rows} rows")
    return ProofView(
        at=proof.get("made_at"),
        batches=batches,
        source=proof.get("source"),
        seconds=proof.get("seconds"),
        compared=" and ".join(compared) or "no record says what was compared",
        text=proof.get("reason"),
    )


def find_obstacles(
    savepoint: Savepoint, world: SavepointInputs, race: Race, to_prove: ProofRace | None
) -> dict[str, str | None]:
    """Return for each act why it would be refused, as far as it is known here; the preview checks the rest. Pure."""
    manifest = savepoint.manifest
    other = manifest.fingerprint != world.fingerprint
    definition = "it holds the state of another definition" if other else None
    unproved = None if savepoint.status == ProofState.PROVED else "it was taken and never proved"
    lost = lost_to_rewind(manifest, world.measured)
    gone = None if not lost else f"Kafka no longer has {lost} records after it, and a rewind reads Kafka"
    off = None if is_on_path(manifest, world.path) else "it is not on the head's path: going back to it is a rewind"
    cannot_prove = to_prove.text if to_prove is not None and to_prove.left == 0 else None
    return {
        "restore": off or definition or unproved or (race.text if race.word == LOST else None),
        "rewind": definition or unproved or gone,
        "prove": definition or cannot_prove,
    }


def describe_operation(operations: Sequence[Operation], pipeline: str) -> OperationView | None:
    """Return the operation that was interrupted and waits to be finished or abandoned, or that works now; None: there is none. Pure."""
    unfinished = [operation for operation in operations if operation.step < OperationStep.DONE]
    if not unfinished:
        return None
    newest = unfinished[-1]
    plan = plan_of(newest)
    return OperationView(
        newest.id,
        plan.noun,
        newest.savepoint,
        plan.name_of(newest.step),
        newest.started_at,
        plan.finish.format(pipeline=pipeline),
        plan.abandon.format(pipeline=pipeline),
    )


def _replay(savepoint: Savepoint, world: SavepointInputs) -> Replay:
    later = world.committed.numbers > savepoint.manifest.batch
    batches = int(later.sum())
    reads = world.committed.table["read"].to_numpy()
    batch_s = BATCH_S if world.batch_s is None else world.batch_s
    seconds = round(START_S + batches * batch_s, 1)
    return Replay(batches, int(np.nansum(reads[later])), seconds, world.batch_s is not None)


def _observe(settings: Settings, home: PipelineHome, savepoints: Sequence[Savepoint], now: datetime) -> SavepointInputs:
    path = head_path(home)
    fingerprint = Timeline.load(home, path[-1].timeline).fingerprint if path else {}
    return SavepointInputs(
        path=path,
        fingerprint=fingerprint,
        committed=committed_batches(home, path),
        measured=read_json(retention_file(settings, home.root.name)),
        oldest=oldest_state(home, path[-1].timeline) if path else None,
        protected=protected_savepoints(home, now=now, savepoints=savepoints),
        batch_s=measured_batch_s(savepoints),
    )


def oldest_state(home: PipelineHome, timeline: str) -> int | None:
    """Return the first batch whose state a timeline's running checkpoint still has; None if there is no checkpoint here."""
    folder = home.checkpoint(timeline) / "commits"
    try:
        held = batches_in((f"commits/{entry.name}" for entry in folder.iterdir()), "commits")
    except FileNotFoundError:
        return None
    return min(held, default=None)


def _attempts(newest: Sequence[Savepoint]) -> dict[str, str]:
    unproved = [savepoint for savepoint in newest if savepoint.status != ProofState.PROVED][:_ATTEMPTS]
    found = {savepoint.id: last_attempt(savepoint) for savepoint in unproved}
    return {name: why for name, why in found.items() if why is not None}
