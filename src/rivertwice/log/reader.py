"""Read with a plain consumer: exact offset ranges, the holes in them, and samples. For few records a JVM would cost more."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from rivertwice.core import Deadline, LogGapError, RequestError, RivertwiceError, ServiceError, Settings, did_you_mean
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges, Part, describe, drop_empty
from rivertwice.log.kafka import TIMEOUT, begin_offsets, consumer, end_offsets, topic_names
from rivertwice.log.topic_sets import TopicSets

PATIENCE_S = 30.0  # without a record or an end of partition; a killed broker is back in 5 s
_FEW_BYTES = 65_536
BRIEF = {
    "enable.partition.eof": True,
    "isolation.level": "read_uncommitted",
    "fetch.message.max.bytes": _FEW_BYTES,
    "queued.min.messages": 1,
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 0,  # the queue of one record is full at once; the client would wait a second for each piece
}
"""Options of a client that fetches little beyond a short range."""
_GONE = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)


class _NumberedMessage:
    """A record of a topic that a pattern reads, under the number that its partition has in the pattern's log."""

    def __init__(self, message: Message, topic: str, partition: int) -> None:
        self._message, self._topic, self._partition = message, topic, partition

    def topic(self) -> str:
        """Return the pattern."""
        return self._topic

    def partition(self) -> int:
        """Return the number."""
        return self._partition

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


class Numbered:
    """Where the partitions of a topic or a pattern are, for a plain consumer."""

    def __init__(self, settings: Settings, topic: str) -> None:
        """Look up what has joined the pattern, if it is one."""
        self._topic = topic
        self._sets = TopicSets.load(settings, [topic])
        self._numbers = {part: number for _, each in self._sets.items() for part, number in each.numbers.items()}

    def place(self, partition: int, offset: int) -> TopicPartition:
        """Return where an offset of a partition is."""
        return TopicPartition(*self._sets.part(self._topic, partition), offset)

    def take(self, messages: Sequence[Message]) -> Iterable[Message]:
        """Return the records with the partitions' numbers."""
        if not self._sets:
            return messages
        numbers = (self._numbers[Part(str(each.topic()), int(each.partition() or 0))] for each in messages)
        return [
            cast("Message", _NumberedMessage(each, self._topic, number))
            for each, number in zip(messages, numbers, strict=True)
        ]


def read_exactly(settings: Settings, topic: str, ranges: OffsetRanges, *, committed: bool = True) -> Iterator[Message]:
    """Yield the records of half-open ranges, in order within each partition.

    Offsets without a record for a reader (a transaction's marker, an aborted or compacted record) are skipped: a caller
    that needs one record per offset must count.

    Args:
        ranges: partition to half-open range, which must end at or before Kafka's end.
        committed: leave out records of aborted transactions; False includes them.

    Raises:
        LogGapError: Kafka no longer has the next offset of a partition.
        ServiceError: no record came for half a minute.
    """
    ranges_to_read = drop_empty(ranges)
    if not ranges_to_read:
        return
    reader = _open(settings, "read_committed" if committed else "read_uncommitted")
    try:
        yield from read_with(reader, settings, topic, ranges_to_read)
    finally:
        reader.close()


def read_pieces(settings: Settings, pieces: Mapping[Part, Sequence[tuple[int, int]]]) -> Iterator[tuple[Part, Message]]:
    """Yield the records of many short half-open ranges, in the order given within each partition.

    The client fetches little beyond each range. Errors are those of `read_exactly`; so are offsets without a record.
    """
    reader = kafka.consumer(settings, extra=BRIEF)
    try:
        for topic in sorted({part.topic for part in pieces}):
            of_topic = {part.partition: ranges for part, ranges in pieces.items() if part.topic == topic}
            for number in range(max(map(len, of_topic.values()))):
                turn = {partition: ranges[number] for partition, ranges in of_topic.items() if number < len(ranges)}
                for message in read_with(reader, settings, topic, drop_empty(turn)):
                    yield Part(topic, int(message.partition() or 0)), message
    finally:
        reader.close()


def read_with(reader: Consumer, settings: Settings, topic: str, ranges: OffsetRanges) -> Iterator[Message]:
    """Yield the records of a topic's ranges, none of which is empty, through an open reader. Errors are those of `read_exactly`."""
    numbered = Numbered(settings, topic)
    reader.assign([numbered.place(partition, start) for partition, (start, _) in ranges.items()])
    following = {partition: start for partition, (start, _) in ranges.items()}
    quiet_since = time.monotonic()
    while following:
        wanted = sum(ranges[partition][1] - at for partition, at in following.items())
        for message in numbered.take(reader.consume(min(wanted, 1000), 0.2)):
            quiet_since = time.monotonic()
            partition = int(message.partition() or 0)
            if partition not in following:
                continue
            if message.error() is None:
                offset = int(message.offset() or 0)
                if offset < following[partition]:
                    continue  # fetched for an earlier range
                if offset < ranges[partition][1]:
                    yield message
                following[partition] = offset + 1
            else:
                following[partition] = _place(message, topic, ranges)
            if following[partition] >= ranges[partition][1]:
                del following[partition]
        if time.monotonic() - quiet_since > PATIENCE_S:
            text = (
                f"Kafka at {settings.bootstrap_servers()} gave no record of topic {topic} for {PATIENCE_S:.0f} s, "
                f"{describe({p: (at, ranges[p][1]) for p, at in following.items()})} is outstanding; an open "
                "transaction may hold it; see `rivertwice status`"
            )
            raise ServiceError(text)


def first_stamps(settings: Settings, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
    """Return per partition the timestamp (epoch ms) of the first record at or after an offset; absent if there is none."""
    ends = kafka.end_offsets(settings, topic)
    remaining = {partition: offset for partition, offset in offsets.items() if offset < ends.get(partition, 0)}
    stamps: dict[int, int] = {}
    if not remaining:
        return stamps
    reader = _open(settings, "read_uncommitted")
    try:
        numbered = Numbered(settings, topic)
        reader.assign([numbered.place(partition, offset) for partition, offset in remaining.items()])
        deadline = Deadline.after(kafka.TIMEOUT)
        while remaining and not deadline.is_over():
            for message in numbered.take(reader.consume(50, 0.2)):
                partition = int(message.partition() or 0)
                if partition in remaining and message.error() is None:
                    stamps[partition] = int(message.timestamp()[1])
                remaining.pop(partition, None)
    finally:
        reader.close()
    return stamps


def _place(message: Message, topic: str, ranges: OffsetRanges) -> int:
    """Return the offset of an end-of-partition event; raise if the message is an error."""
    error = message.error()
    partition = int(message.partition() or 0)
    if error is not None and error.code() == KafkaError._PARTITION_EOF:
        return int(message.offset() or 0)
    if error is not None and error.code() in _GONE:
        text = (
            f"topic {topic}: the first records of partition {partition} [{ranges[partition][0]}, {ranges[partition][1]}) "
            "are gone from Kafka, so the range was not read; see `rivertwice admin retention`"
        )
        raise LogGapError(text)
    text = f"Kafka failed at reading partition {partition} of topic {topic}: {error}; see `rivertwice status`"
    raise ServiceError(text)


def read_to(settings: Settings, topic: str, ends: Mapping[int, int]) -> Iterator[Message]:
    """Yield the committed records that Kafka still has before the end of each partition; wait for transactions that are open there.

    Errors are those of `read_exactly`.
    """
    begins = kafka.begin_offsets(settings, topic)
    yield from read_exactly(settings, topic, {partition: (begins[partition], end) for partition, end in ends.items()})


def _open(settings: Settings, isolation: str) -> Consumer:
    return kafka.consumer(
        settings, extra={"enable.partition.eof": True, "isolation.level": isolation, "fetch.wait.max.ms": 20}
    )


# Offsets without a record for a reader: markers and aborted records of transactions, or records removed by compaction.
#
# Readers are `read_committed`: they never see records of an open or aborted transaction. A transaction's marker takes an offset,
# too. In a topic that is not compacted, an offset that such a reader skips is one of these, for ever. So they are counted by a second
# reader, and what a batch read plus what is absent must be what its range covers. In a compacted topic any record may vanish later,
# so nothing can be concluded from an offset that is skipped: it is refused as a source.

NAMED = 6
MOST_RUNS = 200
Runs = dict[int, tuple[tuple[int, int], ...]]
"""Partition to half-open runs of offsets, in order."""


def find_holes(settings: Settings, topic: str, ranges: OffsetRanges) -> dict[tuple[int, int], str]:
    """Return (partition, offset) of every hole to its cause: `aborted`, or `marker or compacted`.

    Raises:
        ServiceError: Kafka does not answer.
        LogGapError: the range is gone.
    """
    visible = {(r.partition(), r.offset()) for r in read_exactly(settings, topic, ranges)}
    written = {(r.partition(), r.offset()) for r in read_exactly(settings, topic, ranges, committed=False)}
    addresses = {(p, offset) for p, (start, end) in ranges.items() for offset in range(start, end)}
    return {at: "aborted" if at in written else "marker or compacted" for at in sorted(addresses - visible)}


def explain_holes(settings: Settings, topic: str, ranges: OffsetRanges) -> str:
    """Return the holes of ranges in words, the first few by address; or the error if they cannot be read."""
    try:
        holes = find_holes(settings, topic, ranges)
    except RivertwiceError as error:
        return f"which offsets hold no record is not known: {error}"
    named = ", ".join(f"{topic}/{p}@{offset} ({cause})" for (p, offset), cause in list(holes.items())[:NAMED])
    more = f" and {len(holes) - NAMED} more" if len(holes) > NAMED else ""
    return f"no record at {named}{more}" if holes else "every offset holds a record now"


def absent_runs(settings: Settings, topic: str, ranges: OffsetRanges) -> Runs:
    """Return the offsets of ranges that hold no record for a reader, because of transactions alone.

    The records are read, none is kept: memory grows with the number of runs.

    Args:
        ranges: half-open, ending at or before the first open transaction.

    Raises:
        LogGapError: the topic is compacted, so an absent record may have been one that counts; or the range is gone.
        ServiceError: Kafka does not answer.
    """
    if kafka.is_compacted(settings, topic):
        message = (
            f"topic {topic} has cleanup.policy=compact: Kafka removes records that newer ones supersede, so a batch cannot be counted, and a "
            f"recompute reads less than the stream did; {explain_holes(settings, topic, ranges)}; what is streamed and archived "
            "before Kafka compacts it is whole: raise the topic's min.compaction.lag.ms, set cleanup.policy=delete, or let the "
            f"pipeline read another topic, into which `rivertwice send NAME --from-topic {topic}` copies the records that are left"
        )
        raise LogGapError(message)
    runs = _skipped(settings, topic, ranges)
    begin = kafka.begin_offsets(settings, topic)
    gone = {p: start for p, (start, end) in drop_empty(ranges).items() if start < begin.get(p, 0)}
    if gone:
        message = (
            f"topic {topic}: Kafka deletes the first records of partition {', '.join(map(str, gone))} while they are counted; nothing "
            "was concluded; see `rivertwice admin retention`"
        )
        raise LogGapError(message)
    return runs


def compacted_away(settings: Settings, topic: str, ranges: OffsetRanges) -> list[tuple[int, int, int]]:
    """Return (partition, start, end) of what a compacted topic has no record for any more; nothing for another topic.

    Records between two runs that lie close are counted in, if there were too many runs to look at.

    Raises:
        ServiceError: Kafka does not answer.
        LogGapError: the range is gone.
    """
    if not kafka.is_compacted(settings, topic):
        return []
    runs = _skipped(settings, topic, ranges)
    return [(partition, *run) for partition, own in runs.items() for run in merge_close(own, MOST_RUNS)]


def merge_close(runs: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Return at most `most` runs that cover `runs`, closing the smallest gaps between them. Pure."""
    if len(runs) <= most:
        return list(runs)
    gaps = sorted(range(1, len(runs)), key=lambda n: runs[n][0] - runs[n - 1][1])
    closed = set(gaps[: len(runs) - most])
    merged: list[tuple[int, int]] = [runs[0]]
    for number, run in enumerate(runs[1:], start=1):
        merged[-1:] = [(merged[-1][0], run[1])] if number in closed else [merged[-1], run]
    return merged


def _skipped(settings: Settings, topic: str, ranges: OffsetRanges) -> Runs:
    records = read_exactly(settings, topic, ranges)
    return runs_between(((int(r.partition() or 0), int(r.offset() or 0)) for r in records), ranges)


def runs_between(addresses: Iterable[tuple[int, int]], ranges: OffsetRanges) -> Runs:
    """Return the runs of offsets of ranges that are not among the addresses. Pure.

    Args:
        addresses: (partition, offset) in the ranges, in order within each partition.
        ranges: half-open.
    """
    following = {partition: start for partition, (start, _) in ranges.items()}
    runs: dict[int, list[tuple[int, int]]] = {}
    for partition, offset in addresses:
        if offset > following[partition]:
            runs.setdefault(partition, []).append((following[partition], offset))
        following[partition] = offset + 1
    for partition, (_, end) in ranges.items():
        if end > following[partition]:
            runs.setdefault(partition, []).append((following[partition], end))
    return {partition: tuple(of_partition) for partition, of_partition in sorted(runs.items())}


def count_runs(runs: Mapping[int, Iterable[tuple[int, int]]]) -> dict[int, int]:
    """Return partition to how many offsets its runs contain."""
    return {partition: sum(end - start for start, end in of_partition) for partition, of_partition in runs.items()}


# A bounded sample of a topic: the oldest and the newest records of each partition, and no others.

_EXTRA = {
    "enable.partition.eof": True,
    "queued.min.messages": 1_000,
    "queued.max.messages.kbytes": 4_096,  # how far the client reads ahead; its default is 64 MB
}


@dataclass(frozen=True)
class OffsetSpan:
    """Successive offsets of a partition, half-open. `newest` says that it ends where the partition ends."""

    partition: int
    begin: int
    end: int
    newest: bool


@dataclass(frozen=True)
class TopicSample:
    """What was read of a topic.

    Attributes:
        held: offsets between the begin and the end of its partitions.
        records: by stretch, in the order of their offsets.
    """

    partitions: int
    held: int
    records: Mapping[OffsetSpan, list[Message]]


def plan_stretches(begins: Mapping[int, int], ends: Mapping[int, int], most: int) -> list[OffsetSpan]:
    """Return which offsets to read: of each partition its share, half of it the oldest and half the newest. Pure.

    Args:
        ends: the offset after its last.
        most: records in all; a partition gets at least two.
    """
    busy = sorted(partition for partition, end in ends.items() if end > begins.get(partition, 0))
    stretches = []
    for partition in busy:
        begin, end, share = begins.get(partition, 0), ends[partition], max(2, most // len(busy))
        if end - begin <= share:
            stretches.append(OffsetSpan(partition, begin, end, newest=False))
            continue
        stretches.append(OffsetSpan(partition, begin, begin + share // 2, newest=False))
        stretches.append(OffsetSpan(partition, end - (share - share // 2), end, newest=True))
    return stretches


def sample_topic(settings: Settings, topic: str, most: int) -> TopicSample:
    """Read at most about `most` records of a topic; nothing is committed, and no consumer group sees it.

    Raises:
        RequestError: there is no such topic, or it has no record.
        ServiceError: Kafka does not answer, or did not give the records in time.
    """
    known = topic_names(settings)
    if topic not in known:
        message = f"Kafka at {settings.bootstrap_servers()} has no topic {topic!r}, so there is nothing to look at; {did_you_mean(topic, known)}"
        raise RequestError(message)
    begins, ends = begin_offsets(settings, topic), end_offsets(settings, topic)
    held = sum(end - begins.get(partition, 0) for partition, end in ends.items())
    if not held:
        message = f"topic {topic} has no records; send some, or take a file of records with --from-file"
        raise RequestError(message)
    stretches = plan_stretches(begins, ends, most)
    records: dict[OffsetSpan, list[Message]] = {}
    # The two stretches of a partition are read one after the other: a consumer is at one place of a partition.
    for newest in (False, True):
        records |= _read(settings, topic, [each for each in stretches if each.newest == newest])
    if not any(records.values()):
        message = f"topic {topic} has offsets but no record that can be read (deleted, or of open transactions); send some records"
        raise RequestError(message)
    return TopicSample(len(ends), held, records)


def _read(settings: Settings, topic: str, stretches: list[OffsetSpan]) -> dict[OffsetSpan, list[Message]]:
    by_partition = {each.partition: each for each in stretches}
    records: dict[OffsetSpan, list[Message]] = {each: [] for each in stretches}
    open_partitions = set(by_partition)
    deadline = Deadline.after(TIMEOUT)
    reader = consumer(settings, group="rivertwice-init", extra=_EXTRA)
    try:
        numbered = Numbered(settings, topic)
        reader.assign([numbered.place(each.partition, each.begin) for each in stretches])
        while open_partitions and not deadline.is_over():
            for message in numbered.take(reader.consume(500, 0.2)):
                partition = int(message.partition() or 0)
                error = message.error()
                if error is not None:
                    _accept_end(error, topic, partition)
                    open_partitions.discard(partition)
                    continue
                stretch, offset = by_partition[partition], int(message.offset() or 0)
                if offset < stretch.end:
                    records[stretch].append(message)
                if offset >= stretch.end - 1:
                    open_partitions.discard(partition)
    finally:
        reader.close()
    if open_partitions:
        message_text = (
            f"Kafka at {settings.bootstrap_servers()} did not give the records of {topic}, partitions {sorted(open_partitions)}, within "
            f"{TIMEOUT:.0f} s; see `rivertwice status`, and try again"
        )
        raise ServiceError(message_text)
    return records


def _accept_end(error: KafkaError, topic: str, partition: int) -> None:
    """Accept the end of a partition: what a compacted topic or an open transaction leaves of a stretch may be less than it.

    Raises:
        ServiceError: it is any other error.
    """
    if error.code() != KafkaError._PARTITION_EOF:
        message = f"reading {topic}/{partition} failed: {error.str()}; see `rivertwice status`, and try again"
        raise ServiceError(message)
