"""A table guessed from change events: what Debezium or Maxwell writes of a database's table becomes a fold that keeps it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rivertwice.core import RequestError
from rivertwice.definition import TS_MS
from rivertwice.local.fields import CERTAIN, GUESS, LIKELY, FieldGuess, flatten, free_name, guess_fields
from rivertwice.local.sample import RecordSample

AT, GONE, CHANGE = "changed_at", "deleted", "change"
"""Columns of the table beside its own: when a row last changed, whether it is there no more, and (of Maxwell) what happened to it."""
_KEY_TYPES = ("string", "bigint", "int")
"""Types that a Kafka key can name."""


@dataclass(frozen=True)
class ChangeEvent:
    """A change of a row.

    Attributes:
        row: after the change, for a delete as it was before; None: the event is about no row.
        written: when it was written, since 1970 in the unit of its connector.
        table: whose row it is, if the event says so.
    """

    row: Mapping[str, Any] | None
    written: Any
    table: str = ""


@dataclass(frozen=True)
class Connector:
    """Who writes change events.

    Attributes:
        name: in words.
        unit: of the number that says when an event was written.
        why: how its events are recognised.
        inside: the object that holds the columns; empty: the envelope of the definition opens it.
    """

    name: str
    unit: str
    why: str
    inside: tuple[str, ...] = ()

    def read(self, value: Mapping[str, Any]) -> ChangeEvent | None:
        """Return the change of a record; None if it is none of this connector."""
        return _of_maxwell(value) if self.inside else read_change(value)


DEBEZIUM = Connector("Debezium", "ms", "every record has op, before and after, as Debezium writes them")
MAXWELL = Connector("Maxwell", "s", "records have database, table, type and data, as Maxwell writes them", ("data",))


def read_change(value: Mapping[str, Any]) -> ChangeEvent | None:
    """Return the change of a record of Debezium, as `envelope: debezium` reads it; None if the record is none."""
    event = value["payload"] if "schema" in value and isinstance(value.get("payload"), Mapping) else value
    row = event.get("after") or event.get("before")
    is_change = event.get("op") in ("c", "u", "d", "r") and TS_MS in event
    return ChangeEvent(row, event[TS_MS]) if is_change and isinstance(row, Mapping) else None


def _of_maxwell(value: Mapping[str, Any]) -> ChangeEvent | None:
    kind, written, row = (value.get(name) for name in ("type", "ts", "data"))
    if not isinstance(kind, str) or not isinstance(value.get("database"), str) or not isinstance(written, int):
        return None
    if kind in ("insert", "update", "delete", "bootstrap-insert") and isinstance(row, Mapping) and "table" in value:
        return ChangeEvent(row, written, f"{value['database']}.{value['table']}")
    is_known = kind.startswith(("bootstrap-", "table-", "database-"))  # the ends of a bootstrap; DDL
    return ChangeEvent(None, written) if is_known else None


@dataclass(frozen=True)
class TableGuess:
    """A table that change events keep.

    Attributes:
        sample: its records, with the columns of the table and `time` as fields.
        connector: who wrote them.
        fields: of the table, those with a type.
        keys: the columns of its primary key.
        key_in_log: whether the Kafka key names them, so that a tombstone deletes.
        sure, why: how sure the keys are, and from what they were concluded.
        at, gone, change: names of the columns beside its own; `change` is only in the source.
        time: the source's field that is the event time.
    """

    sample: RecordSample
    connector: Connector
    fields: tuple[FieldGuess, ...]
    keys: tuple[str, ...]
    key_in_log: bool
    sure: str
    why: str
    at: str
    gone: str
    change: str
    time: str

    @property
    def state(self) -> dict[str, str]:
        """Column to type of what the fold keeps: all but the keys."""
        return {each.name: str(each.kind) for each in self.fields if each.name not in self.keys}

    @property
    def event_time(self) -> FieldGuess:
        """When the event was written."""
        (field,) = guess_fields([{self.time: record.value[self.time]} for record in self.sample.records], {})
        return replace(field, kind="timestamp", unit=self.connector.unit)


def guess_table(sample: RecordSample) -> TableGuess | None:
    """Return the table behind a sample; None if its records are no change events.

    Raises:
        RequestError: its records are changes of several tables.
    """
    if sample.encoding.format != "json":
        return None
    for connector in (DEBEZIUM, MAXWELL):
        changes = [connector.read(record.value) for record in sample.records]
        if None not in changes and any(each and each.row for each in changes):
            return _table_of(sample, connector, [each for each in changes if each is not None])
    return None


def _table_of(sample: RecordSample, connector: Connector, changes: Sequence[ChangeEvent]) -> TableGuess:
    sample = _rows_of(sample, connector, changes)
    rows = [record.value for record in sample.records]
    named = [each for each in guess_fields(rows, {}) if each.kind is not None and "_" not in each.name[:1]]
    keys, in_log, sure, why = _keys(sample, connector, named)
    fields = tuple(
        replace(each, kind="bigint", unit=None, why="a whole number of the key; a Kafka key names no time")
        if each.unit and each.name in keys
        else each
        for each in named
    )
    names = {each.name for each in fields}
    at, gone, change = (free_name(name, names) for name in (AT, GONE, CHANGE))
    time = TS_MS if connector is DEBEZIUM and TS_MS not in names else at
    written = [each.written for each in changes if each.row]
    records = [
        replace(record, value={**record.value, time: number})
        for record, number in zip(sample.records, written, strict=True)
    ]
    return TableGuess(
        sample=replace(sample, records=records),
        connector=connector,
        fields=fields,
        keys=keys,
        key_in_log=in_log,
        sure=sure,
        why=why,
        at=at,
        gone=gone,
        change=change,
        time=time,
    )


def _rows_of(sample: RecordSample, connector: Connector, changes: Sequence[ChangeEvent]) -> RecordSample:
    """Return the records that are about a row, with its columns as fields."""
    tables = sorted({each.table for each in changes if each.row})
    if len(tables) > 1:
        message = (
            f"{sample.origin} holds changes of {len(tables)} tables ({', '.join(tables[:5])}{', ...' if len(tables) > 5 else ''}), and a fold keeps one: "
            "let Maxwell write a topic for each (`kafka_topic=%{database}.%{table}` in its config.properties), and name one of these"
        )
        raise RequestError(message)
    pairs = list(zip(sample.records, changes, strict=True))
    others = len(pairs) - sum(bool(each.row) for each in changes)
    skipped = {"about no row (a bootstrap's start or end, a changed schema): a dead letter": others} if others else {}
    kept = [(record, each.row) for record, each in pairs if each.row]
    envelope = f"change events of {connector.name}{f', table {tables[0]}' if tables[0] else ''}"
    sample = replace(sample, records=[record for record, _ in kept], skipped={**sample.skipped, **skipped}, envelope=envelope)  # fmt: skip
    if connector.inside:
        return flatten(sample, connector.inside)
    return replace(sample, records=[replace(record, value=row, sent=record.value) for record, row in kept])


def _keys(
    sample: RecordSample, connector: Connector, fields: Sequence[FieldGuess]
) -> tuple[tuple[str, ...], bool, str, str]:
    names = {
        sample.paths.get(each.name, each.name).removeprefix("data."): each.name
        for each in fields
        if each.kind in _KEY_TYPES or each.unit is not None
    }  # column to field, of those that a Kafka key can name
    named = {_named_columns(connector, record.key, record.as_sent) for record in sample.records}
    if len(named) == 1 and (only := named.pop()) and set(only) <= set(names):
        keys = tuple(names[each] for each in only)
        if connector is MAXWELL:
            return keys, False, CERTAIN, "the Kafka key or primary_key_columns of every record names them"
        return keys, True, CERTAIN, "the Kafka key of every record is an object of them"
    for name in names.values():
        if all(record.key == str(record.value.get(name)) for record in sample.records):
            return (name,), connector is DEBEZIUM, LIKELY, "its text is the Kafka key of every record"
    columns = list(names.values())
    chosen = next((name for name in columns if name == "id" or name.endswith("_id")), columns[0] if columns else "id")
    why = "the Kafka keys name no columns; a tombstone is a dead letter until key_field says which"
    return (chosen,), False, GUESS, why if connector is DEBEZIUM else "no Kafka key names a primary key"


def _named_columns(connector: Connector, key: str | None, sent: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns of the primary key that a record's Kafka key names, or the record itself; none if neither does."""
    try:
        value = json.loads(key or "null")
    except ValueError:
        return ()
    if connector is DEBEZIUM:
        value = value.get("payload") if isinstance(value, Mapping) and "schema" in value else value
        return tuple(value) if isinstance(value, Mapping) else ()
    match value:
        case {"database": _, "table": _}:  # kafka_key_format: hash
            return tuple(name.removeprefix("pk.") for name in value if name.startswith("pk."))
        case [_, _, [*parts]]:  # kafka_key_format: array
            return tuple(name for part in parts if isinstance(part, Mapping) for name in part)
    said = sent.get("primary_key_columns")
    return tuple(map(str, said)) if isinstance(said, list) else ()


def _quoted(word: str) -> str:
    """Return a word as YAML reads it in a flow mapping: `on` would be true, and a comma would end it."""
    return (
        json.dumps(word)
        if "," in word or word in ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
        else word
    )


def render_fold(table: TableGuess) -> str:
    """Return the text of `fold.py`."""
    row = ", ".join(f'"{name}": event["{name}"]' for name in table.state)
    is_delete = f'event["{table.change}"] == "delete"' if table.connector is MAXWELL else 'event["_op"] == "d"'
    return f'''"""A row of the table, from its change events."""


def fold(state, event):
    """Return the row behind a change{"; a tombstone behind a delete changes nothing" if table.key_in_log else ""}."""
    if {'event["_deleted"] or ' if table.key_in_log else ""}{is_delete}:
        return None, [{{**state, "{table.gone}": True}}] if state else []
    row = {{{row}}}
    return row, [{{**row, "{table.gone}": False}}]
'''


def render_table(table: TableGuess, name: str, view: str) -> list[str]:
    """Return the lines of `pipeline.yaml` below its comment."""

    def mapping(columns: Mapping[str, str]) -> str:
        return f"{{{', '.join(f'{_quoted(column)}: {_quoted(kind)}' for column, kind in columns.items())}}}"

    sample, is_maxwell = table.sample, table.connector is MAXWELL
    schema = {each.name: str(each.kind) for each in table.fields}
    schema |= {table.change: "string"} if is_maxwell else {}
    schema |= {} if table.time == TS_MS else {table.at: "timestamp"}
    units = {each.name: each.unit for each in table.fields if each.unit is not None}
    units |= {table.at: table.connector.unit} if is_maxwell else {}
    paths = {each.name: sample.paths[each.name] for each in table.fields if each.name in sample.paths}
    paths |= {table.change: "type", table.at: "ts"} if is_maxwell else {}
    results = {table.at: "timestamp", **table.state, table.gone: "boolean"}
    empty = dict.fromkeys(results, "{}")
    key = f"[{', '.join(_quoted(each) for each in table.keys)}]"
    by_text = len(table.keys) == 1 and table.sure == LIKELY
    opened = ["    envelope: debezium # the fields are those of `after`, for a delete those of `before`"]
    tombstones = [
        "    tombstones: delete",
        f"    key_field: {_quoted(table.keys[0]) if by_text else key}",
    ]
    when = "when the change was made (ts)" if is_maxwell else "when the connector wrote the event (ts_ms)"
    return [
        f"name: {name}",
        f"description: {json.dumps(f'The table behind the change events of {sample.topic}: its rows, and those that were deleted.', ensure_ascii=False)}",
        "",
        "sources:",
        f"  {view}:",
        f"    topic: {json.dumps(sample.topic)}",
        f"    partitions: {sample.partitions}",
        f"    schema: {mapping(schema)}",
        *([f"    epochs: {mapping(units)} # numbers since 1970-01-01T00:00Z"] if units else []),
        *([f"    paths: {mapping(paths)}"] if paths else []),
        f"    required: {key} # {table.sure}: {table.why}",
        *([] if is_maxwell else opened),
        *(tombstones if table.key_in_log else []),
        f"    event_time: {table.time} # no field of the table: {when}",
        "    max_future: 10 minutes",
        "",
        f"window: {{fold: 1 day, at: {table.at}}} # fold.py keeps a row of each key",
        f"by: {key}",
        f"state: {mapping(table.state)}",
        f"keys: {key}",
        f"columns: {mapping(empty)}",
        f"deleted: {table.gone}",
        f"types: {mapping(results)}",
    ]
