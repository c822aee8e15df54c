"""Readers of a Spark checkpoint's small files (layout: facts of Spark 4.2, offsets log v1).

`offsets/N` is durable before batch N runs: line 1 `v1`, line 2 metadata JSON (batchWatermarkMs, batchTimestampMs,
conf), then one line of JSON offsets per branch that reads the source. For several branches of one source these lines are all
the same (tried). `sources/0/0` contains the initial offsets.

Of a pattern of topics, Spark's files name the topics, and all else the pattern (`log.topic_sets`). What was joined when a query began is in
`topics.json`, beside them; so a copy of a checkpoint can be read by itself.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rivertwice.core import CheckpointError, PipelineHome, RequestError, Settings
from rivertwice.log import StoredOffsets, TopicSets
from rivertwice.storage import read_json, replace_json

_CRC_BLOCK = 512
_PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class PlannedBatch:
    """The content of `offsets/N` for a batch.

    Attributes:
        batch_watermark_ms: the batch's watermark, epoch ms; 0 before any event.
        end_offsets: topic to partition to the offset after the last record.
        text: the file, verbatim.
    """

    batch: int
    batch_watermark_ms: int
    batch_timestamp_ms: int
    end_offsets: StoredOffsets
    text: str


def parse_offsets(text: str, batch: int) -> PlannedBatch:
    """Parse `offsets/N` of a query with one Kafka source, of one topic or several.

    Raises:
        CheckpointError: the file is cut short, this version does not read its layout, or its branches read different sources.
    """
    lines = text.split("\n")
    if lines[0] != "v1" or len(lines) < 3:
        message = (
            f"offsets/{batch} starts with {lines[0][:20]!r} and has {len(lines)} lines, expected v1 and 3: it is damaged "
            "or of another Spark version; restore the newest proved savepoint"
        )
        raise CheckpointError(message)
    if any(line != lines[2] for line in lines[3:] if line):
        message = (
            f"offsets/{batch} has different lines of offsets, though all branches of a stream read one source: it was changed "
            "by hand; restore the newest proved savepoint"
        )
        raise CheckpointError(message)
    try:
        metadata = json.loads(lines[1])
        return PlannedBatch(
            batch=batch,
            batch_watermark_ms=int(metadata["batchWatermarkMs"]),
            batch_timestamp_ms=int(metadata["batchTimestampMs"]),
            end_offsets={topic: dict(places) for topic, places in json.loads(lines[2]).items()},
            text=text,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = (
            f"offsets/{batch} cannot be read ({type(error).__name__}: {error}): it is damaged; nothing was committed; restore the "
            "newest proved savepoint"
        )
        raise CheckpointError(message) from error


def read_planned(checkpoint: Path, batch: int) -> PlannedBatch | None:
    """Return the content of `offsets/N`, or None if the batch was never planned."""
    path = checkpoint / "offsets" / str(batch)
    if batch < 0 or not path.exists():
        return None
    return parse_offsets(read_sets(checkpoint).text_to_log(path.read_text(errors="replace")), batch)


def read_initial_offsets(checkpoint: Path) -> StoredOffsets:
    """Return the offsets at which the source of a new checkpoint began."""
    data = (checkpoint / "sources" / "0" / "0").read_bytes()
    return read_sets(checkpoint).to_log(json.loads(data[data.index(b"{") :]))


_TOPICS = "topics.json"


def read_sets(checkpoint: Path) -> TopicSets:
    """Return what had joined the patterns of a checkpoint's topics when its newest query began."""
    return TopicSets.from_plain(read_json(checkpoint / _TOPICS) or {})


def note_sets(checkpoint: Path, settings: Settings, topics: Iterable[str]) -> TopicSets:
    """Write down what has joined the patterns among the topics, before a query reads it, and return it."""
    sets = TopicSets.load(settings, topics)
    if sets:
        checkpoint.mkdir(parents=True, exist_ok=True)
        replace_json(checkpoint / _TOPICS, sets.to_plain())
    return sets


def start_offsets(checkpoint: Path, batch: int) -> StoredOffsets:
    """Return where a batch's range begins: the end of the batch before it, or the initial offsets for batch 0.

    Raises:
        CheckpointError: the batch before it is missing, so the begin of the range is unknown.
    """
    before = read_planned(checkpoint, batch - 1)
    if before is None and batch > 0:
        message = (
            f"offsets/{batch - 1} is missing, so it is not known where batch {batch} begins; nothing was committed; "
            "restore the newest proved savepoint"
        )
        raise CheckpointError(message)
    return read_initial_offsets(checkpoint) if before is None else before.end_offsets


def late_watermark_ms(checkpoint: Path, batch: int) -> int:
    """Return the watermark by which a batch's rows are late: the one of the batch before it; for batch 0 it is 0."""
    before = read_planned(checkpoint, batch - 1)
    return 0 if before is None else before.batch_watermark_ms


def last_number(folder: Path) -> int | None:
    """Return the largest numeric file name (`offsets` or `commits`), or None."""
    numbers = [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()] if folder.exists() else []
    return max(numbers, default=None)


def moved_to(text: str, offsets: StoredOffsets) -> str:
    """Return an `offsets/N` whose batch ends at `offsets` instead, so that the next batch begins there.

    Only for a timeline that begins after an accepted gap: its first batch must not ask for records that are gone.
    """
    return with_source_line(text, json.dumps(offsets, separators=(",", ":"), sort_keys=True))


def with_source_line(text: str, line: str) -> str:
    """Return an `offsets/N` in which each branch's line of offsets is `line`."""
    version, metadata, *sources = text.split("\n")
    return "\n".join([version, metadata, *(line if source else source for source in sources)])


def checksum_of(data: bytes) -> bytes:
    """Return the content of the checksum file that Hadoop puts beside a file: a CRC-32 of each block of 512 bytes."""
    sums = [zlib.crc32(data[at : at + _CRC_BLOCK]) for at in range(0, len(data), _CRC_BLOCK)]
    return b"crc\0" + struct.pack(f">i{len(sums)}I", _CRC_BLOCK, *sums)


def partitions_of(text: str) -> int | None:
    """Return the number of state partitions that an `offsets/N` froze; None if it has none."""
    lines = text.split("\n")
    number = json.loads(lines[1]).get("conf", {}).get(_PARTITIONS) if len(lines) > 1 else None
    return None if number is None else int(number)


def with_partitions(text: str, partitions: int) -> str:
    """Return an `offsets/N` that froze this number of state partitions; the same text if it did already."""
    if partitions_of(text) == partitions:
        return text
    version, metadata, *sources = text.split("\n")
    values = json.loads(metadata)
    values["conf"] = {**values.get("conf", {}), _PARTITIONS: str(partitions)}
    return "\n".join([version, json.dumps(values, separators=(",", ":")), *sources])


# How far a driver runs a timeline that is not the head yet: until it has read what the head has read. Pure except for one file.
#
# A rewind runs such a driver while the head's own stream is stopped. The driver ends by itself at the goal.


@dataclass(frozen=True)
class Goal:
    """The position at which a timeline has caught up with the head.

    Attributes:
        by: the operation for which it runs; that operation's own drain marker does not stop it.
        offsets: topic to partition to the offset after the last record that the head has committed.
        watermark_ms: the head's last watermark. Without it, windows that are closed for the head would be open again.
    """

    timeline: str
    by: str
    offsets: StoredOffsets
    watermark_ms: int

    def to_text(self) -> str:
        """Return the goal as one argument of a command line."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Goal:
        """Read a goal.

        Raises:
            RequestError: the text is not a goal.
        """
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            message = f"{text[:200]!r} is not a goal to catch up to ({error}); `rivertwice savepoint rewind` gives one"
            raise RequestError(message) from error

    def is_reached_by(self, end_offsets: StoredOffsets, watermark_ms: int) -> bool:
        """Say whether a batch with these ends and this watermark has reached the goal."""
        return watermark_ms >= self.watermark_ms and covers(end_offsets, self.offsets)


def covers(reached: StoredOffsets, wanted: StoredOffsets) -> bool:
    """Say whether every partition of `wanted` was read at least as far."""
    return all(
        int(reached.get(topic, {}).get(partition, 0)) >= int(offset)
        for topic, parts in wanted.items()
        for partition, offset in parts.items()
    )


def is_asked_to_drain(home: PipelineHome, by: str | None = None) -> bool:
    """Say whether there is a drain marker of another operation than `by`; one that cannot be read counts."""
    if not home.drain.exists():
        return False
    try:
        marker = read_json(home.drain)
    except (OSError, ValueError):
        return True
    return by is None or not isinstance(marker, dict) or marker.get("by") != by
