"""Prove a savepoint: restore it into scratch, replay what the stream did next, and compare output and state.

1. Refuse another fingerprint. If the savepoint is larger than the budget, record that and end. Lease it against prune.
2. Fetch it into scratch; every byte is checked against the manifest.
3. Wait until the stream has committed some batches after it, or has no more records to read.
4. Copy the running checkpoint a second time.
5. Replay the recorded batches, each compared with the ledger's digest.
6. Compare the decoded state after the last of them with the second copy's.
7. Put `proof.json`, if absent. A replay that gave another result is recorded under `attempts/`, and an error is raised.

Scratch is deleted at the end; a crash leaves only scratch and a lease that runs out.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rivertwice.core import (
    Deadline,
    PipelineHome,
    Progress,
    ReplayMismatchError,
    Settings,
    report_nothing,
    to_iso,
    utc_now,
)
from rivertwice.definition import Definition
from rivertwice.log import StoredOffsets, kafka
from rivertwice.savepoint.awaiting import select_awaiting
from rivertwice.savepoint.catalogue import Savepoint, list_savepoints, load_savepoint
from rivertwice.savepoint.feed import plan_feed, replay_source, session_of
from rivertwice.savepoint.manifest import Manifest
from rivertwice.savepoint.operations.record import read_operations
from rivertwice.savepoint.plan import (
    ReplayPlan,
    current_fingerprint,
    is_on_path,
    load_state_definition,
    require_fingerprint,
    require_recorded,
    select_proof_end,
)
from rivertwice.savepoint.proof import (
    Proof,
    ProofBudget,
    StateDigest,
    copied_damage,
    decide_over_batches,
    decide_over_bytes,
    describe_difference,
    describe_out_of_time,
    describe_proof,
    measure_batch,
    naming_damage,
    note_proof,
    read_state,
    record_attempt,
    select_retry,
    unproved,
)
from rivertwice.savepoint.prove_origin import find_awaiting, prove_from_origin
from rivertwice.savepoint.records import lease_savepoint, release_savepoint
from rivertwice.savepoint.replay import ReplayedBatch, replay_recorded
from rivertwice.savepoint.take import copy_committed
from rivertwice.savepoint.trim import batches_in
from rivertwice.stream import lease_owner
from rivertwice.timeline import (
    LedgerRow,
    Segment,
    committed_batches,
    head_path,
    newest_batches,
    path_of,
    read_ledger,
    select_on_path,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
LEASE = timedelta(hours=1)  # more than a proof may take by its budget
DEFAULT_BUDGET = ProofBudget()


def prove_savepoint(
    settings: Settings,
    pipeline: str,
    savepoint_id: str,
    *,
    batches: int | None = None,
    wait_seconds: float | None = None,
    budget: ProofBudget = DEFAULT_BUDGET,
    progress: Progress = report_nothing,
    spark: SparkSession | None = None,
) -> Proof:
    """Prove a savepoint; a proved one is proved again, and its first proof stays.

    The savepoint of a planned restore or upgrade is proved from its origin, the batches before it are replayed: what follows it was
    computed from it, or by another definition.

    Args:
        batches: how many batches to replay, if the stream commits that number; None takes the budget's.
        wait_seconds: how long to wait for them, in all; None takes the budget's.
        budget: what the proof may cost; a proof that would cost more is recorded as an attempt, with this reason.
        spark: the session to use; None starts the pipeline's own.

    Raises:
        SavepointError: it does not exist or is damaged.
        FingerprintError: the definition has changed.
        LogGapError: neither Kafka nor the archive has the records after it.
        ReplayMismatchError: a batch or the state differs; the message names it.
    """
    home = settings.pipeline(pipeline)
    savepoint = load_savepoint(home, savepoint_id)
    awaiting = find_awaiting(home, savepoint)
    if awaiting is not None:
        return prove_from_origin(settings, home, awaiting, savepoint, progress=progress, spark=spark)
    budget = replace(
        budget,
        batches=budget.batches if batches is None else batches,
        wait_s=budget.wait_s if wait_seconds is None else wait_seconds,
    )
    attempt = Attempt(settings, home, savepoint, budget, Deadline.after(budget.wait_s), time.monotonic(), progress)
    require_fingerprint(savepoint.manifest, current_fingerprint(settings, pipeline))
    too_large = decide_over_bytes(savepoint.manifest.size, budget)
    if too_large is not None:
        return note_proof(savepoint, unproved(savepoint, too_large, attempt.began), progress)
    lease_savepoint(savepoint.store, savepoint.id, attempt.holder, now=utc_now(), length=LEASE)
    try:
        progress(f"fetching {savepoint.id}: {len(savepoint.manifest.files)} files, {savepoint.manifest.size} bytes")
        savepoint.download(attempt.replayed)
        after = [row for row in attempt.rows() if row.batch > savepoint.manifest.batch]
        proof = _prove(attempt, spark or session_of(settings, attempt.definition, after))
        # The lease may have run out, by a slow replay or a clock that was set. It is renewed, so prune and this see each other.
        lease_savepoint(savepoint.store, savepoint.id, attempt.holder, now=utc_now(), length=LEASE)
        return note_proof(savepoint, proof, progress)
    except ReplayMismatchError as error:
        record_attempt(savepoint, {"proved": False, "reason": str(error), "made_at": to_iso(utc_now())})
        raise
    finally:
        shutil.rmtree(attempt.scratch, ignore_errors=True)
        release_savepoint(savepoint.store, savepoint.id, attempt.holder)


@dataclass(frozen=True)
class Attempt:
    """One attempt to prove a savepoint.

    Attributes:
        deadline: until when it waits for batches.
        began: its start by the monotonic clock, in seconds.
        holder: the name of its lease and of its scratch folder.
    """

    settings: Settings
    home: PipelineHome
    savepoint: Savepoint
    budget: ProofBudget
    deadline: Deadline
    began: float
    progress: Progress
    holder: str = field(default_factory=lambda: f"prove-{secrets.token_hex(4)}")

    @property
    def manifest(self) -> Manifest:
        """The savepoint's manifest."""
        return self.savepoint.manifest

    @property
    def scratch(self) -> Path:
        """The folder in which it works."""
        return self.home.scratch / self.holder

    @property
    def replayed(self) -> Path:
        """The savepoint's copy, from which the replay continues."""
        return self.scratch / "replayed"

    @property
    def second(self) -> Path:
        """The second copy of the running checkpoint, to compare with."""
        return self.scratch / "second"

    @cached_property
    def definition(self) -> Definition:
        """The definition whose state the savepoint holds."""
        return load_state_definition(self.home, self.manifest)

    @cached_property
    def path(self) -> list[Segment]:
        """The path of the savepoint: the head's, or its own timeline's."""
        path = head_path(self.home)
        return path if is_on_path(self.manifest, path) else path_of(self.home, self.manifest.timeline)

    def rows(self) -> list[LedgerRow]:
        """Return the batches of the path that are committed now."""
        return select_on_path(read_ledger(self.home), self.path)


def _prove(attempt: Attempt, spark: SparkSession) -> Proof:
    _wait_for_batches(attempt)
    committed = copy_committed(attempt.home, attempt.path[-1].timeline, attempt.second).batch
    manifest, rows = attempt.manifest, attempt.rows()
    require_recorded(manifest, rows)
    held = batches_in((f"commits/{entry.name}" for entry in (attempt.second / "commits").iterdir()), "commits")
    last = select_proof_end(manifest.batch, wanted=attempt.budget.batches, committed=committed, retained=min(held))
    too_many = decide_over_batches(manifest.batch, last, attempt.budget)
    if too_many is not None:
        return unproved(attempt.savepoint, too_many, attempt.began)
    plan = plan_feed(attempt.settings, attempt.home, attempt.definition, manifest, rows, until=last)
    replay_began = time.monotonic()
    replayed = _replay(attempt, spark, plan, rows)
    done = len(replayed)
    replay_seconds = round(time.monotonic() - replay_began, 3)
    if done < len(plan.rows):
        reason = describe_out_of_time(done, len(plan.rows), attempt.budget)
        late = unproved(attempt.savepoint, reason, attempt.began)
        return replace(late, batches=done, replay_seconds=replay_seconds)
    attempt.progress(f"comparing the state after batch {last}")
    state = _compare_state(attempt, spark, last)
    exhausted = not plan.rows and not _beyond(attempt, manifest.offsets)
    return Proof(
        savepoint=attempt.savepoint.id,
        proved=bool(done) or exhausted,
        batches=done,
        last_batch=last,
        state_rows=state.rows,
        state=dict(state.stores),
        source=plan.source,
        seconds=round(time.monotonic() - attempt.began, 3),
        replay_seconds=replay_seconds,
        reason=describe_proof(done, last, state.rows, exhausted=exhausted),
        made_at=to_iso(utc_now()),
        batch_s=measure_batch(replayed),
    )


def _wait_for_batches(attempt: Attempt) -> None:
    """Wait until the stream has committed enough batches after the savepoint, or has no more records to read."""
    manifest, wanted = attempt.manifest, attempt.budget.batches
    attempt.progress(f"waiting for {wanted} batches after batch {manifest.batch}")

    def enough() -> bool:
        committed = committed_batches(attempt.home, attempt.path)
        count = int((committed.numbers > manifest.batch).sum())
        if count >= wanted or lease_owner(attempt.home) is None:  # without a driver no batch will be committed
            return True
        newest = newest_batches(attempt.home, committed, attempt.path, 1) if count else []
        return not _beyond(attempt, newest[-1].end_offsets if newest else manifest.offsets)

    attempt.deadline.wait_until(enough)


def _replay(attempt: Attempt, spark: SparkSession, plan: ReplayPlan, path: Sequence[LedgerRow]) -> list[ReplayedBatch]:
    settings, definition, progress = attempt.settings, attempt.definition, attempt.progress
    name = f"rivertwice-replay-{attempt.holder}"
    deadline = Deadline.after(attempt.budget.replay_s)
    with (
        naming_damage(attempt.savepoint.id, copied_damage(attempt.savepoint)),
        replay_source(spark, settings, definition, attempt.manifest, plan, name=name, progress=progress) as topics,
    ):
        return replay_recorded(
            spark,
            settings,
            definition,
            attempt.replayed,
            plan.rows,
            before=path,
            topic_override=topics,
            progress=progress,
            deadline=deadline,
        )


def prove_rotation(
    settings: Settings,
    pipeline: str,
    savepoint_id: str,
    *,
    budget: ProofBudget = DEFAULT_BUDGET,
    progress: Progress = report_nothing,
    spark: SparkSession | None = None,
) -> list[Proof]:
    """Prove the savepoint of a rotation; if no batch follows it yet, so that it cannot be proved, try the one before.

    Returns:
        the proof of the savepoint and, if it does not count, the proof of an older one that was still due.
    """
    first = prove_savepoint(settings, pipeline, savepoint_id, budget=budget, progress=progress, spark=spark)
    if first.proved:
        return [first]
    home = settings.pipeline(pipeline)
    savepoints = list_savepoints(home)
    waiting = {restore.savepoint for restore in select_awaiting(read_operations(home), savepoints, head_path(home))}
    older = select_retry(_alike(savepoints, savepoint_id), {savepoint_id, *waiting})
    if older is None:
        return [first]
    progress(f"{older.id} was not proved by its rotation; trying it again")
    return [first, prove_savepoint(settings, pipeline, older.id, budget=budget, progress=progress, spark=spark)]


def _alike(savepoints: Sequence[Savepoint], savepoint_id: str) -> list[Savepoint]:
    """Return the savepoints of the same definition: those before an upgrade can only be replayed up to it."""
    own = next((savepoint.manifest.fingerprint for savepoint in savepoints if savepoint.id == savepoint_id), None)
    return [savepoint for savepoint in savepoints if savepoint.manifest.fingerprint == own]


def _compare_state(attempt: Attempt, spark: SparkSession, batch: int) -> StateDigest:
    with naming_damage(attempt.savepoint.id, copied_damage(attempt.savepoint)):
        ours = read_state(spark, attempt.replayed, batch)
    with naming_damage(
        "the running checkpoint",
        "the stream could not start again from it; when it next starts, the agent falls back to a proved savepoint, and so does "
        f"`rivertwice savepoint fall-back {attempt.manifest.pipeline} --yes` once it is stopped",
    ):
        difference = describe_difference(ours, read_state(spark, attempt.second, batch))
    if difference is not None:
        message = (
            f"{difference}, although every batch gave the recorded rows: later batches would differ; do not build on this "
            "savepoint, take a new one and run a reconcile"
        )
        raise ReplayMismatchError(message)
    return ours


def _beyond(attempt: Attempt, offsets: StoredOffsets) -> bool:
    """Say whether the log has records after these offsets."""
    return any(
        end > int(offsets.get(topic, {}).get(str(p), 0))
        for topic in attempt.definition.topics
        for p, end in kafka.end_offsets(attempt.settings, topic).items()
    )
