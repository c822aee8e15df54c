"""The obstacles of an erasure, and which savepoints it deletes. Pure.

A record may be rewritten when the old value will not be read or emitted any more: the stream has read the record, all its
possible windows are closed, and no savepoint is left that would bring the value back from its state or from Kafka. The state
of a fold keeps every key for ever, so it is made again from the rewritten archive, and all its savepoints are deleted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from rivertwice.instants import from_ms, to_iso
from rivertwice.log.addresses import Part
from rivertwice.pipeline.definition import Definition, Source
from rivertwice.pipeline.rules import InSet, Pattern
from rivertwice.privacy.redact import Value
from rivertwice.savepoint.catalogue import PROVED, Savepoint
from rivertwice.schemas.proto_schema import narrow_kind
from rivertwice.timeline.ledger import LedgerRow

Places = Mapping[Part, Sequence[int]]
"""Part to the offsets of the records that contain the value, ascending."""
_TEXTS, _NUMBERS = ("string",), ("int", "bigint")


@dataclass(frozen=True)
class Reader:
    """The present state of a pipeline that reads one of the topics.

    Attributes:
        definition: the head's definition.
        driver: pid of a driver that runs, or None.
        ledger: batches on the head's path.
        remakes: its state is made again, so that nothing in the present one is an obstacle.
        savepoints: all savepoints. protected: id to the reason why a prune would keep it; with `remakes` only those that are held.
        obstacle: the reason why its state cannot be made again.
    """

    name: str
    definition: Definition
    driver: int | None
    ledger: Sequence[LedgerRow]
    remakes: bool
    savepoints: Sequence[Savepoint]
    protected: Mapping[str, str]
    obstacle: str | None = None

    @property
    def reach(self) -> timedelta:
        """The longest time from a record's event time to the end of its last possible window; for a session, the last record's."""
        return self.definition.window.length


def refuse_pseudonym(definition: Definition, fields: Sequence[str], value: Value, given: Value | None) -> str | None:
    """Return the reason why the fields cannot hold the value or its pseudonym, or None."""
    wanted = _TEXTS if isinstance(value, str) else _NUMBERS
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        return "the value is the text of a JSON object or array; name the fields inside of it, and their value"
    held = [name for name in fields if any(name in source.schema_ for source in definition.sources.values())]
    for source in definition.sources.values():
        for name in fields:
            kind = source.schema_.get(name)
            if kind is not None and kind not in wanted:
                return f"field {name!r} of topic {source.topic} is {kind}, and {value!r} is no such value"
            if kind == "int" and isinstance(given, int) and given > 2**31 - 1:
                return f"pseudonym {given} does not fit field {name!r} of topic {source.topic}, which is int; give a smaller one (--as)"
            narrow = [] if source.format == "json" or kind is None else _kinds_in_schemas(source, name)
            if "enum" in narrow:
                return f"field {name!r} of topic {source.topic} is an enum, which has no symbol for a pseudonym"
            if "int" in narrow and isinstance(given, int) and given > 2**31 - 1:
                return f"pseudonym {given} does not fit field {name!r} of topic {source.topic}, whose schema says int; give a smaller one (--as)"
            strict = [rule.name for rule in source.rules if rule.field == name and isinstance(rule, InSet | Pattern)]
            if strict and given is None:
                return f"rule {strict[0]!r} judges field {name!r} of topic {source.topic}; give a pseudonym that it accepts (--as)"
    return None if held else f"none of its sources has a field {' or '.join(fields)}"


def _kinds_in_schemas(source: Source, name: str) -> list[str]:
    """Return the types of a field in the schemas with which records are written, by Avro's names."""
    if source.format == "protobuf":
        return [narrow_kind(source.message_type, name)]
    kind_names = []
    for schema in source.pins.writers.values() or (source.pins.writer,):
        field = schema.field(name)
        kinds = [] if field is None else getattr(field.type, "schemas", [field.type])
        kind_names += [str(kind.type) for kind in kinds]
    return kind_names


def find_refusals(reader: Reader, places: Places) -> list[str]:
    """Return the reasons why the value cannot be replaced now, as sentences; empty if it can."""
    name = reader.name
    refusals = []
    if reader.driver is not None:
        refusals.append(
            f"{name} runs (pid {reader.driver}): `rivertwice stop {name} --wait` first, and start it afterwards"
        )
    unread = _unread(reader, places)
    if unread:
        refusals.append(f"{name} has not read {_describe_unread(unread)} yet: let it catch up")
    if reader.remakes:
        if reader.obstacle is not None:
            refusals.append(f"the state of {name} cannot be made again: {reader.obstacle}")
        return refusals + _held(reader, select_tainted(reader, places))
    opened = _open_batches(reader.ledger, places, reader.reach, _watermark(reader.ledger))
    if opened:
        until = to_iso(
            from_ms(max(row.max_event_ms or 0 for row in opened) + reader.reach // timedelta(milliseconds=1))
        )
        refusals.append(
            f"{name} holds the value in windows that are open (read by batch {opened[-1].batch}): try again when its watermark "
            f"has passed {until}, or erase with --remake-state"
        )
    refusals += _savepoint_refusals(reader, places) if not opened and not unread else []
    return refusals


def _savepoint_refusals(reader: Reader, places: Places) -> list[str]:
    name, tainted = reader.name, select_tainted(reader, places)
    if not tainted:
        return []
    clean = [savepoint for savepoint in reader.savepoints if savepoint not in tainted and savepoint.status == PROVED]
    if not clean:
        return [
            f"{name} has {len(tainted)} savepoints that would bring the value back, and no proved one after it: "
            f"`rivertwice savepoint take {name}` and `rivertwice savepoint prove {name}` first"
        ]
    return _held(reader, tainted)


def _held(reader: Reader, tainted: Sequence[Savepoint]) -> list[str]:
    held = [
        f"{savepoint.id} ({reader.protected[savepoint.id]})"
        for savepoint in tainted
        if savepoint.id in reader.protected
    ]
    return [f"{reader.name} keeps savepoints that would bring the value back: {', '.join(held)}"] if held else []


def select_tainted(reader: Reader, places: Places) -> list[Savepoint]:
    """Return the savepoints that would bring the value back: from their state, or from a replay after them.

    If there is any record, every savepoint off the head's path is among them, and where the state is made again every savepoint.
    """
    if reader.remakes:
        return list(reader.savepoints)
    on_path = {(row.timeline, row.batch): number for number, row in enumerate(reader.ledger)}
    tainted = []
    for savepoint in reader.savepoints:
        manifest = savepoint.manifest
        number = on_path.get((manifest.timeline, manifest.batch))
        read = number is not None and all(
            offsets[-1] < int(manifest.offsets.get(part.topic, {}).get(str(part.partition), 0))
            for part, offsets in places.items()
            if offsets and part.topic in reader.definition.topics
        )
        rows_so_far = () if number is None else reader.ledger[: number + 1]
        if any(places.values()) and (
            not read or _open_batches(rows_so_far, places, reader.reach, manifest.watermark_ms)
        ):
            tainted.append(savepoint)
    return tainted


def _watermark(ledger: Sequence[LedgerRow]) -> int:
    return ledger[-1].batch_watermark_ms if ledger else 0


def _unread(reader: Reader, places: Places) -> list[tuple[Part, int]]:
    ends = reader.ledger[-1].parts() if reader.ledger else {}
    return [
        (part, offsets[-1])
        for part, offsets in sorted(places.items())
        if offsets and part.topic in reader.definition.topics and offsets[-1] >= ends.get(part, (0, 0))[1]
    ]


def _open_batches(ledger: Sequence[LedgerRow], places: Places, reach: timedelta, watermark_ms: int) -> list[LedgerRow]:
    """Return the batches that read one of the records and whose windows may not all be closed.

    The batch's newest event decides, not the record's own event time, so this may wait longer than needed.
    """
    reach_ms = reach // timedelta(milliseconds=1)
    return [
        row
        for row in ledger
        if row.max_event_ms is not None and row.max_event_ms + reach_ms > watermark_ms and _reads(row, places)
    ]


def _reads(row: LedgerRow, places: Places) -> bool:
    for part, (start, end) in row.parts().items():
        offsets = places.get(part, ())
        at = bisect_left(offsets, start)
        if at < len(offsets) and offsets[at] < end:
            return True
    return False


def _describe_unread(unread: Sequence[tuple[Part, int]]) -> str:
    return ", ".join(f"{part.topic}/{part.partition}@{offset}" for part, offset in unread[:5])
