"""Send the records of a file to the topic that a pipeline reads: all of them once, or none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from rivertwice.core import (
    EPOCH,
    LostRaceError,
    Measured,
    Progress,
    RequestError,
    Settings,
    TopicName,
    from_ms,
    lock_or_refuse,
    parse_iso,
    report_nothing,
    to_iso,
    to_ms,
)
from rivertwice.definition import MICROS, Definition, Source, format_duration, value_at
from rivertwice.local.changes import read_change
from rivertwice.local.read_file import (
    DigestedFile,
    FileFormat,
    FileLine,
    FileOptions,
    as_fields,
    describe_broken,
    file_lines,
    sniff,
)
from rivertwice.local.sample import as_instant
from rivertwice.log import kafka, read_exactly, send_records
from rivertwice.storage import read_json, replace_json

AT_ONCE = 10_000
"""Records that are in memory at the same time."""
ANY_PARTITION = -1
SAMPLE_FILE = "sample.jsonl"
"""File of a pipeline's folder with records that `rivertwice up --sample` sends."""
LINE_HEADER = "rivertwice-line"
"""Header of a record that a file's line became, by which an interrupted sending finds what has arrived."""
FORMAT = 1
_PAST_THE_END = timedelta(milliseconds=1)
"""The watermark has milliseconds, the end of a session microseconds."""


@dataclass(frozen=True)
class FileRecord:
    """A record of a file, as it is sent. The producer chooses the partition by the key."""

    key: bytes | None
    value: bytes
    timestamp_ms: int
    partition: int = ANY_PARTITION
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True)
class SentFile:
    """How far a file was sent.

    Attributes:
        file, sha256: its name, and the digest of its bytes.
        records: of the file, in its order, that Kafka has acknowledged.
        ends: partition to the offset after the last of them; at first, where the topic ended before.
        whole: whether these are all.
        begun_at: when the first was sent.
    """

    file: str
    sha256: str
    topic: str
    topic_id: str
    records: int
    ends: Mapping[int, int]
    whole: bool
    begun_at: datetime


@dataclass(frozen=True)
class FileToSend:
    """A file and where its records go.

    Attributes:
        zone: of its times that have none; None: they stay texts.
        source: whose topic gets the records; each has its event time as its timestamp.
        key: the field whose text becomes the Kafka key: the first key of the results that the source has; None: no key.
    """

    path: Path
    shape: FileFormat
    zone: ZoneInfo | None
    source: Source
    key: str | None

    def check(self, progress: Progress = report_nothing) -> tuple[int, str]:
        """Return how many records the file has, and the SHA-256 of its bytes, from one reading of it.

        Raises:
            RequestError: it has none, or a line holds none.
        """
        count, broken, file = 0, list[FileLine](), DigestedFile(self.path)
        for line in file_lines(self.path, self.shape, file):
            if line.broken is None:
                count += 1
            elif len(broken) < AT_ONCE:
                broken.append(line)
            if count and count % 1_000_000 == 0:
                progress(f"{self.path.name}: {count:,} records checked")
        if broken:
            message = f"{self.path}, read as {self.shape.describe()}: {describe_broken(broken)}; none of its {count:,} other records was sent: correct these lines, and send it again"
            raise RequestError(message)
        if not count:
            message = f"{self.path} has no records; it must hold JSON objects, or rows of CSV or Parquet"
            raise RequestError(message)
        return count, file.sha256()

    def send(
        self, settings: Settings, now: datetime, *, again: bool = False, progress: Progress = report_nothing
    ) -> SentFile:
        """Send all records in the file's order; a line that holds none refuses the whole file before the first is sent.

        It is noted after each `AT_ONCE` records how far it came. So after an interruption the same call sends the rest, each record once.

        Args:
            settings: the cluster, where the topic exists, and the home where it is noted.
            now: the present instant; the timestamp of a record without an event time.
            again: send a file that was sent before once more.

        Raises:
            RequestError: the file cannot be read, a line of it holds no record, or it was sent before.
            LostRaceError: another process is sending it.
            ServiceError: not all records were acknowledged.
        """
        (count, sha256), topic = self.check(progress), self.source.topic
        note = settings.home / "sent" / f"{topic}-{sha256[:16]}.json"
        note.parent.mkdir(parents=True, exist_ok=True)

        def refuse(holder: str) -> LostRaceError:
            return LostRaceError(f"{holder} is sending {self.path} to {topic}; wait for it")

        with lock_or_refuse(note.with_suffix(".lock"), refuse):
            ends = kafka.end_offsets(settings, topic)
            began = SentFile(
                self.path.name, sha256, topic, kafka.topic_id(settings, topic), 0, ends, whole=False, begun_at=now
            )
            sent = _resumed(note, began)
            if sent.whole and not again:
                message = (
                    f"{self.path} was sent to {topic} at {to_iso(sent.begun_at)}, all {sent.records:,} records of it; sent again, each would count twice: "
                    "say --again if that is meant"
                )
                raise RequestError(message)
            if sent.whole:
                sent = began
            arrived = _arrived(settings, sent)
            rest = islice(self._records(_mark(sent), now), sent.records, None)
            while chunk := list(islice(rest, AT_ONCE)):
                missing = [record for record in chunk if record.headers[0][1] not in arrived]
                ends = dict(sent.ends)
                for place in send_records(settings, topic, missing):
                    ends[place.partition] = max(ends.get(place.partition, 0), place.offset + 1)
                sent = replace(sent, records=sent.records + len(chunk), ends=ends)
                _write(note, sent)
                said = f"{self.path.name}: {sent.records:,} of {count:,} records sent"
                progress(Measured(said, "records", sent.records, count))
            sent = replace(sent, whole=True)
            _write(note, sent)
            return sent

    def _records(self, mark: str, now: datetime) -> Iterator[FileRecord]:
        paths, event_time = self.source.paths, self.source.event_time
        event_path, unit = paths.get(event_time, event_time).split("."), self.source.epochs.get(event_time)
        key_path = None if self.key is None else paths.get(self.key, self.key).split(".")
        is_change = self.source.envelope == "debezium"
        for line in file_lines(self.path, self.shape):
            fields = as_fields(line.value, self.zone, self.shape.time_format)
            change = read_change(fields) if is_change else None
            row = fields if change is None else change.row
            instant = as_instant(value_at(row, event_path), unit)
            if change is not None and instant is None:
                instant = as_instant(change.written, "ms")
            key_value = None if key_path is None else value_at(row, key_path)
            body = json.dumps(fields, default=_number, ensure_ascii=False).encode()
            text = None if key_value is None else str(key_value).encode()
            headers = ((LINE_HEADER, f"{mark}{line.line}".encode()),)
            yield FileRecord(text, body, to_ms(instant or now), headers=headers)


@dataclass(frozen=True)
class ClosingHeartbeat:
    """A record that moves the watermark past all windows which have records.

    Attributes:
        at: its event time.
        closed_until: windows that end at or before this instant close; a record of theirs that comes later is late.
        sent: whether it was sent now; False: nothing has come since the last one, so all windows are closed.
    """

    at: datetime
    closed_until: datetime
    sent: bool

    @classmethod
    def after(cls, definition: Definition, newest: datetime) -> ClosingHeartbeat:
        """Return the heartbeat that closes all windows of the records up to the newest event time. Pure."""
        _, source = definition.source
        end_ms = definition.window.last_end_ms(to_ms(newest) + 1)
        assert end_ms is not None  # a source has heartbeats only where a watermark closes windows
        end = from_ms(end_ms)
        unit = timedelta(microseconds=max(MICROS[source.epochs.get(source.event_time, "ms")], MICROS["ms"]))
        at = end + source.watermark + _PAST_THE_END
        return cls(at + (EPOCH - at) % unit, end, sent=True)

    @classmethod
    def send(cls, settings: Settings, definition: Definition, newest: datetime, now: datetime) -> ClosingHeartbeat:
        """Send the heartbeat that closes all windows of the records that the stream has read.

        Its event time is noted before it is sent, so that a repeated call does not push the watermark further.

        Args:
            settings: the cluster, and the home where it is noted.
            definition: with one source, which declares heartbeats.
            newest: the newest event time that the stream has read.
            now: the record's timestamp.

        Raises:
            RequestError: it would be further in the future than the source accepts.
            ServiceError: it was not acknowledged.
        """
        _, source = definition.source
        note, topic_id = (
            settings.home / "sent" / f"{source.topic}-heartbeat.json",
            kafka.topic_id(settings, source.topic),
        )
        begun = kafka.end_offsets(settings, source.topic)
        last = read_json(note) or {}
        is_of_topic = last.get("format") == FORMAT and last.get("topic_id") == topic_id
        if is_of_topic and last["at"] == to_iso(newest) and sum(begun.values()) == last["records"] + 1:
            return cls(newest, parse_iso(last["closed_until"]), sent=False)
        closing = cls.after(definition, newest)
        if closing.at > now + source.max_future:
            message = (
                f"the heartbeat that closes the windows up to {to_iso(closing.closed_until)} has the event time {to_iso(closing.at)}, and {source.topic} accepts event times "
                f"at most {format_duration(source.max_future)} (max_future) after a record's own timestamp; the same command works from {to_iso(closing.at - source.max_future)} on"
            )
            raise RequestError(message)
        note.parent.mkdir(parents=True, exist_ok=True)
        stored = {"format": FORMAT, "topic_id": topic_id, "records": sum(begun.values()), "at": to_iso(closing.at)}
        replace_json(note, {**stored, "closed_until": to_iso(closing.closed_until)})
        send_records(settings, source.topic, [heartbeat_record(source, closing.at, now)])
        return closing


def heartbeat_record(source: Source, at: datetime, now: datetime) -> FileRecord:
    """Return the record; a required field that the heartbeat does not name gets a plain value of its type."""
    record: dict[str, Any] = {}
    for name in dict.fromkeys((*source.required_fields, *source.heartbeat)):
        *outer, last = source.paths.get(name, name).split(".")
        place = record
        for part in outer:
            place = place.setdefault(part, {})
        kind = source.schema_[name]
        place[last] = source.heartbeat.get(name, _instant(source, name, at) if kind == "timestamp" else _plain(kind))
    return FileRecord(None, json.dumps(record, ensure_ascii=False).encode(), to_ms(now))


def _plain(kind: str) -> Any:
    return {"string": "", "boolean": False}.get(kind, 0)


def _instant(source: Source, name: str, at: datetime) -> Any:
    unit = source.epochs.get(name)
    return to_iso(at) if unit is None else (at - EPOCH) // timedelta(microseconds=MICROS[unit])


def plan_file(
    definition: Definition, path: Path, view: str | None = None, said: FileOptions | None = None
) -> FileToSend:
    """Return what sends a file to the topic of a source.

    Args:
        path: a file that `rivertwice init --from-file` reads.
        view: the source; None: the only one.
        said: how the file is written, instead of what is sniffed.

    Raises:
        RequestError: the file cannot be read; there are several sources, and none is named; or the source takes no JSON.
    """
    known = ", ".join(definition.sources)
    if view is None and len(definition.sources) > 1:
        message = (
            f"{definition.name} has several sources ({known}), so the topic of the records is not known; say --source"
        )
        raise RequestError(message)
    source = definition.sources.get(view or next(iter(definition.sources)))
    if source is None:
        message = f"{definition.name} has no source {view}; it has {known}"
        raise RequestError(message)
    if TopicName(source.topic).is_pattern:
        message = f"{definition.name} reads all topics {source.topic}, so the topic of the records is not known; let a producer send them to one of these"
        raise RequestError(message)
    if source.format != "json":
        message = f"the topic {source.topic} holds records of format {source.format}, and a file is sent as JSON; let its producer send them"
        raise RequestError(message)
    key = next((name for name in definition.keys if name in source.schema_), None)
    return FileToSend(path, sniff(path, said), None if said is None else said.zone, source, key)


def _resumed(note: Path, began: SentFile) -> SentFile:
    """Return how far the file was sent to this very topic, else its beginning, which is noted before a record is sent."""
    data = read_json(note)
    if data is not None and data.pop("format", None) == FORMAT and data["topic_id"] == began.topic_id:
        ends = {int(partition): int(end) for partition, end in data["ends"].items()}
        return SentFile(**{**data, "ends": ends, "begun_at": parse_iso(data["begun_at"])})
    _write(note, began)
    return began


def _write(note: Path, sent: SentFile) -> None:
    replace_json(note, {"format": FORMAT, **asdict(sent), "begun_at": to_iso(sent.begun_at)})


def _arrived(settings: Settings, sent: SentFile) -> set[bytes]:
    """Return the lines that arrived and were not noted any more, which are fewer than `AT_ONCE` if nobody else sends."""
    now = kafka.end_offsets(settings, sent.topic)
    ranges = {
        partition: (start, now[partition]) for partition, start in sent.ends.items() if start < now.get(partition, 0)
    }
    prefix, found = _mark(sent).encode(), set[bytes]()
    for message in read_exactly(settings, sent.topic, ranges):
        headers: list[tuple[str, bytes]] = message.headers() or []  # type: ignore[assignment]
        found |= {value for name, value in headers if name == LINE_HEADER and value.startswith(prefix)}
    return found


def _mark(sent: SentFile) -> str:
    """Return what stands before the number of the line in the header."""
    return f"{sent.sha256[:16]}:"


def send_sample(settings: Settings, definition: Definition, now: datetime) -> str | None:
    """Send the records of a pipeline's `sample.jsonl` to its topic, if that is empty; say what was done. None: it has no such file.

    Raises:
        RequestError: the file cannot be read, or the pipeline has several sources.
        ServiceError: not all records were acknowledged.
    """
    path = settings.definitions / definition.name / SAMPLE_FILE
    if not path.is_file():
        return None
    file = plan_file(definition, path)
    held = sum(kafka.end_offsets(settings, file.source.topic).values())
    if held:
        return f"topic {file.source.topic} holds {held} records, so its sample is not sent again"
    return f"{file.send(settings, now, again=True).records} records sent to topic {file.source.topic}"


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else str(value)
