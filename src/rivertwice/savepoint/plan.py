"""What a proof and a restore will replay, and where the records come from. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rivertwice.errors import FingerprintError, LogGapError, SavepointError
from rivertwice.log.addresses import OffsetRanges
from rivertwice.savepoint.manifest import Manifest
from rivertwice.savepoint.recorded import check_chain, span
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import Segment

KAFKA = "kafka"
REPLAY_TOPIC = "replay topic"
MARGIN = 2  # batches kept away from what a live checkpoint purges next


@dataclass(frozen=True)
class ReplayPlan:
    """The recorded batches of a replay, all from one log.

    Attributes:
        rows: batches after the savepoint's, in order.
        source: `kafka`, or `replay topic` if Kafka no longer has the first records of any topic.
        ranges: topic to partition to the half-open offset range of all these batches.
    """

    rows: tuple[LedgerRow, ...]
    source: str
    ranges: Mapping[str, OffsetRanges]


def is_on_path(manifest: Manifest, path: Sequence[Segment]) -> bool:
    """Say whether a savepoint's batch lies on a path."""
    return any(segment.contains(manifest.timeline, manifest.batch) for segment in path)


def plan_replay(
    manifest: Manifest,
    rows: Sequence[LedgerRow],
    *,
    until: int,
    begin: Mapping[str, Mapping[int, int]],
    bundles: Collection[str],
) -> ReplayPlan:
    """Plan the replay of the batches after a savepoint up to `until`.

    Args:
        manifest: the savepoint.
        rows: the ledger of the savepoint's path.
        until: last batch to replay. With `manifest.batch` no batch is replayed.
        begin: topic to partition to the first offset Kafka still has, for each of the pipeline's topics.
        bundles: ids of the bundles whose fingerprint is the savepoint's.

    Raises:
        LedgerError: the ledger has a hole.
        FingerprintError: a batch was made by a definition that gives other results.
        LogGapError: a batch read another topic of the same name.
    """
    chosen = tuple(row for row in rows if manifest.batch < row.batch <= until)
    check_chain(manifest.batch, manifest.offsets, chosen)
    for row in chosen:
        if row.bundle not in bundles:
            message = (
                f"batch {row.batch} was made by bundle {row.bundle}, whose results differ from those of bundle "
                f"{manifest.bundle} that savepoint {manifest.savepoint} holds; its recorded batches cannot be replayed; "
                "use a savepoint that is newer than the change"
            )
            raise FingerprintError(message)
        if row.topic_ids != manifest.topic_ids:
            message = (
                f"batch {row.batch} read topic ids {dict(row.topic_ids)}, savepoint {manifest.savepoint} was taken with "
                f"{dict(manifest.topic_ids)}: the topic was deleted and created again; the replay is refused"
            )
            raise LogGapError(message)
    ranges = {topic: span(chosen, topic) for topic in begin}
    lost = any(
        start < begin[topic].get(partition, 0) and start < end
        for topic, parts in ranges.items()
        for partition, (start, end) in parts.items()
    )
    return ReplayPlan(chosen, REPLAY_TOPIC if lost else KAFKA, ranges)


def select_proof_end(batch: int, *, wanted: int, committed: int, retained: int) -> int:
    """Return the last batch that a proof replays.

    It replays at least the wanted number of batches, if so many are committed. It replays more if the running checkpoint has
    already purged the state of the last wanted batch, for then only a later state can be compared.

    Args:
        batch: the savepoint's batch.
        wanted: batches to replay.
        committed: last batch of the second copy.
        retained: first batch whose files the second copy still holds; 0 if nothing was purged.
    """
    oldest = retained + MARGIN if retained > 0 else 0
    return min(max(batch + wanted, oldest), committed)


def require_reach(end: Mapping[int, int], begin: Mapping[int, int], *, batch: int, topic: str) -> None:
    """Check that Kafka still has the records that a stream needs to continue after `batch`.

    Raises:
        LogGapError: records after the batch are gone from Kafka.
    """
    for partition, offset in end.items():
        if offset < begin.get(partition, 0):
            message = (
                f"a stream restored at batch {batch} continues at offset {offset} of {topic}-{partition}, but Kafka begins at "
                f"{begin[partition]}: {begin[partition] - offset} records are gone and the stream would stop at once; "
                "nothing was changed; raise the topic's retention and recompute the range from the archive by a backfill"
            )
            raise LogGapError(message)


def require_fingerprint(manifest: Manifest, current: Mapping[str, str]) -> None:
    """Check that the current definition is the one whose state a savepoint holds.

    Raises:
        FingerprintError: state, semantics or decode differ.
    """
    changed = [part for part in ("state", "semantics", "decode") if manifest.fingerprint.get(part) != current.get(part)]
    if changed:
        message = (
            f"savepoint {manifest.savepoint} was taken under another definition of {manifest.pipeline} (changed: "
            f"{', '.join(changed)}); its state would mean something else, so it is refused; put the definition of bundle "
            f"{manifest.bundle} back, or use a savepoint taken since the change"
        )
        raise FingerprintError(message)


def require_one_definition(manifest: Manifest, rows: Sequence[LedgerRow], bundles: Collection[str]) -> None:
    """Check that there are batches after the beginning, and that one definition can replay them all.

    Raises:
        SavepointError: no batch was committed yet.
        FingerprintError: a batch was made by a definition that gives other results: the stream was upgraded.
    """
    if not rows:
        message = f"{manifest.pipeline} has committed no batch yet, so its state is made of nothing; nothing was done"
        raise SavepointError(message)
    foreign = next((row for row in rows if row.bundle not in bundles), None)
    if foreign is not None:
        message = (
            f"batch {foreign.batch} of {manifest.pipeline} was made by bundle {foreign.bundle}, whose results differ from those of bundle "
            f"{manifest.bundle} that the head runs: the stream was upgraded, and its beginning cannot be replayed by one "
            "definition; nothing was done; restore a savepoint that is newer than the upgrade"
        )
        raise FingerprintError(message)


def require_recorded(manifest: Manifest, rows: Sequence[LedgerRow]) -> None:
    """Check that a manifest agrees with what the ledger recorded for its batch.

    Raises:
        SavepointError: they differ, or the ledger has no such batch.
    """
    row = next((row for row in rows if (row.timeline, row.batch) == (manifest.timeline, manifest.batch)), None)
    if row is None or (row.end_offsets, row.offsets_text, row.batch_watermark_ms) != (
        manifest.offsets,
        manifest.offsets_text,
        manifest.watermark_ms,
    ):
        answer = "has no such batch" if row is None else f"recorded the end {row.end_offsets}"
        message = (
            f"the manifest of {manifest.savepoint} says that batch {manifest.batch} of timeline {manifest.timeline} ended at "
            f"{manifest.offsets}, but the ledger {answer}: the manifest or the ledger is damaged; the savepoint is refused; "
            "use another one"
        )
        raise SavepointError(message)


def require_on_path(manifest: Manifest, path: Sequence[Segment]) -> None:
    """Check that a savepoint lies on the head's path.

    Raises:
        SavepointError: it lies on a branch that is not served; restoring it would rewind what is served.
    """
    if not is_on_path(manifest, path):
        message = (
            f"savepoint {manifest.savepoint} is at batch {manifest.batch} of timeline {manifest.timeline}, which is not on "
            f"the head's path ({' > '.join(segment.timeline for segment in path)}): restoring it would be a rewind, a separate "
            f"act; use a savepoint of the head's path, or look at what `rivertwice savepoint rewind {manifest.pipeline} "
            f"{manifest.savepoint}` would change"
        )
        raise SavepointError(message)
