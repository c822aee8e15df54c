"""What a proof and a restore will replay, and where the records come from. Pure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rivertwice.core import FingerprintError, LedgerError, LogGapError, PipelineHome, SavepointError, Settings
from rivertwice.definition import Definition, build_bundle, load_bundle, load_bundle_definition
from rivertwice.engine import with_buckets
from rivertwice.log import OffsetRanges, StoredOffsets, encode_offsets
from rivertwice.savepoint.manifest import Manifest
from rivertwice.stream import with_source_line
from rivertwice.timeline import LedgerRow, Segment, Timeline, WatermarkRule, watermarks_after

# The recorded batches of a replay as checkpoint files. Pure text work; the layout is Spark's offset log v1.


@dataclass(frozen=True)
class ReplayTopic:
    """A scratch topic that holds a log's records again, from `base` on, at offsets shifted by `base`.

    Attributes:
        base: partition to the source offset that is at offset 0 of the scratch topic.
        absent: partition to (end of a recorded batch, how many offsets from `base` to there hold no record), in order; a scratch
            topic has no such offsets, so later ones move up. A partition without any is not named.
    """

    topic: str
    source: str
    base: Mapping[str, int]
    absent: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)

    def place(self, partition: str, offset: int) -> int:
        """Return where the scratch topic continues after a source offset at which a batch ends; 0 before `base`."""
        before = [count for end, count in self.absent.get(partition, ()) if end <= offset]
        return max(0, offset - int(self.base[partition]) - (before[-1] if before else 0))


@dataclass(frozen=True)
class ReplayTopics:
    """The scratch topics of a replay, one for each topic of the pipeline."""

    topics: tuple[ReplayTopic, ...]

    @property
    def names(self) -> dict[str, str]:
        """Source topic to scratch topic."""
        return {replay_topic.source: replay_topic.topic for replay_topic in self.topics}

    @property
    def bases(self) -> dict[str, Mapping[str, int]]:
        """Source topic to partition to the source offset that is at offset 0 of its scratch topic."""
        return {replay_topic.source: replay_topic.base for replay_topic in self.topics}

    @property
    def has_absent(self) -> bool:
        """Whether offsets of a source topic hold no record, so that later records have moved up."""
        return any(replay_topic.absent for replay_topic in self.topics)

    def shift(self, offsets: StoredOffsets) -> dict[str, dict[str, int]]:
        """Return offsets of the source topics as offsets of the scratch topics; an offset before a `base` becomes 0."""
        return {
            replay_topic.topic: {p: replay_topic.place(p, int(o)) for p, o in offsets[replay_topic.source].items()}
            for replay_topic in self.topics
        }

    def shift_text(self, text: str) -> str:
        """Return an `offsets/N` file with the same positions in the scratch topics."""
        return with_source_line(text, encode_offsets(self.shift(json.loads(text.split("\n")[2]))))


def check_chain(batch: int, offsets: StoredOffsets, rows: Sequence[LedgerRow]) -> None:
    """Check that ledger rows follow a savepoint without a gap.

    Args:
        batch: the savepoint's batch.
        offsets: the offsets where its next batch begins.
        rows: the batches to replay, in order.

    Raises:
        LedgerError: a batch is missing, or a range does not begin where the one before it ended.
    """
    for row in rows:
        if row.batch != batch + 1 or row.start_offsets != offsets:
            message = (
                f"batch {row.batch} of timeline {row.timeline} starts at {row.start_offsets}, but batch {batch} ended at "
                f"{offsets}: the ledger has a hole, so the range cannot be replayed; run a reconcile, which names it"
            )
            raise LedgerError(message)
        batch, offsets = row.batch, row.end_offsets


def span(rows: Sequence[LedgerRow], topic: str) -> dict[int, tuple[int, int]]:
    """Return partition to the half-open offset range that consecutive rows cover; empty for no rows.

    A partition that was added in between is covered from its first record.
    """
    if not rows:
        return {}
    first, last = rows[0].ranges(topic), rows[-1].ranges(topic)
    return {partition: (first.get(partition, (0, 0))[0], end) for partition, (_, end) in last.items()}


def absent_until(rows: Sequence[LedgerRow], topic: str) -> dict[str, list[tuple[int, int]]]:
    """Return partition to (end of each row's range, offsets without a record up to there), of partitions that have some. Pure."""
    until: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        for partition, end in row.end_offsets.get(topic, {}).items():
            before = until.get(partition, [(0, 0)])[-1][1]
            own = int(row.absent.get(topic, {}).get(partition, 0))
            until.setdefault(partition, []).append((int(end), before + own))
    return {partition: ends for partition, ends in until.items() if ends[-1][1]}


def count_one_run(rows: Sequence[LedgerRow], *, several: bool) -> int:
    """Return how many of the rows one query replays: all, or, for several sources, those that one driver ran.

    A query knows the marks of several sources only from its own batches (`timeline.watermarks`). So a replay must start a new
    query where a new driver started. With one source that makes no difference.
    """
    if not several:
        return len(rows)
    return next((number for number, row in enumerate(rows) if row.epoch != rows[0].epoch), len(rows))


def plan_watermarks(path: Sequence[LedgerRow], rows: Sequence[LedgerRow], rule: WatermarkRule) -> dict[int, int]:
    """Return batch to the watermark of the batch after it, for several sources; empty for one source.

    A replay sees fewer batches of a run than the driver did, so its own marks may be lower. It is given the recorded watermarks,
    and after the last of `rows` the watermark that follows from their ledger.

    Args:
        path: the ledger of the path, from its beginning to the last of `rows` at least.
    """
    if len(rule.delays_ms) == 1:
        return {}
    end = (rows[-1].timeline, rows[-1].batch)
    last = next(number for number, row in enumerate(path) if (row.timeline, row.batch) == end)
    known = {row.batch: following.batch_watermark_ms for row, following in itertools.pairwise(rows)}
    return {**known, rows[-1].batch: watermarks_after(path[: last + 1], rule)[0]}


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

    It replays at least the requested number of batches, if they are committed. It replays more if the running checkpoint has
    already purged the state of the last requested batch, because then only a later state can be compared.

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
            "definition; restore a savepoint that is newer than the upgrade"
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


# The definitions that savepoints and recorded batches were made by.


def current_fingerprint(settings: Settings, pipeline: str) -> dict[str, str]:
    """Return the hashes of a pipeline's definition as it is in the project now."""
    return build_bundle(settings.definition_folder(pipeline)).fingerprint.hashes()


def load_state_definition(home: PipelineHome, manifest: Manifest) -> Definition:
    """Return the definition whose state a savepoint holds, from its bundle, with what its timeline froze of the state's layout."""
    frozen = Timeline.load(home, manifest.timeline).fold_buckets
    return with_buckets(load_bundle_definition(home.bundles, manifest.bundle), frozen)


def equivalent_bundles(home: PipelineHome, manifest: Manifest, rows: Sequence[LedgerRow]) -> set[str]:
    """Return the savepoint's bundle and those bundles of `rows` that have its fingerprint."""
    ids = {row.bundle for row in rows if row.batch > manifest.batch} - {manifest.bundle}
    same: Mapping[str, str] = manifest.fingerprint
    fitting = {name for name in ids if load_bundle(home.bundles, name).fingerprint.hashes() == same}
    return fitting | {manifest.bundle}
