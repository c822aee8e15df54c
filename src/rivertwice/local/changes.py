"""A table guessed from change events: what Debezium writes of a database's table becomes a fold that keeps it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rivertwice.local.fields import CERTAIN, GUESS, LIKELY, FieldGuess, guess_fields
from rivertwice.local.sample import RecordSample

AT, GONE = "changed_at", "deleted"
"""Columns of the table beside its own: when a row last changed, and whether it is there no more."""


@dataclass(frozen=True)
class TableGuess:
    """A table that change events keep.

    Attributes:
        fields: of the table, those with a type.
        keys: the columns of its primary key.
        key_in_log: whether the Kafka key names them, so that a tombstone deletes.
        sure, why: how sure the keys are, and from what they were concluded.
        at, gone: names of the columns beside its own.
    """

    fields: tuple[FieldGuess, ...]
    keys: tuple[str, ...]
    key_in_log: bool
    sure: str
    why: str
    at: str
    gone: str

    @property
    def state(self) -> dict[str, str]:
        """Column to type of what the fold keeps: all but the keys."""
        return {each.name: type_of(each) for each in self.fields if each.name not in self.keys}


def type_of(field: FieldGuess) -> str:
    """Return the type of a column; a time that the connector writes as a number stays one."""
    return "bigint" if field.kind == "timestamp" and field.unit is not None else str(field.kind)


def guess_table(sample: RecordSample) -> TableGuess | None:
    """Return the table behind a sample; None if its records are no change events."""
    if sample.encoding.format != "json":
        return None
    rows = [row for record in sample.records if (row := _changed_row(record.value)) is not None]
    if len(rows) < len(sample.records):
        return None
    named = [each for each in guess_fields(rows, {}) if each.kind is not None and "_" not in each.name[:1]]
    keys, in_log, sure, why = _keys(sample, rows, named)
    taken = {each.name for each in named}
    at, gone = (next(name for name in (first, f"{first}_by_log") if name not in taken) for first in (AT, GONE))
    return TableGuess(tuple(named), keys, in_log, sure, why, at, gone)


def _changed_row(value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the row of a change event, for a delete as it was before; None if the record is none."""
    event = value["payload"] if "schema" in value and isinstance(value.get("payload"), Mapping) else value
    row = event.get("after") or event.get("before")
    is_change = event.get("op") in ("c", "u", "d", "r") and "ts_ms" in event
    return row if is_change and isinstance(row, Mapping) else None


def row_of(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row of a change event; of another record the record."""
    row = _changed_row(value)
    return value if row is None else row


def _keys(
    sample: RecordSample, rows: Sequence[Mapping[str, Any]], fields: Sequence[FieldGuess]
) -> tuple[tuple[str, ...], bool, str, str]:
    names = [
        each.name for each in fields if type_of(each) in ("string", "bigint", "int")
    ]  # as a Kafka key can name them
    keys = {record.key for record in sample.records}
    parsed = [_object(key) for key in keys]
    found = {tuple(each) for each in parsed if each is not None}
    if len(found) == 1 and None not in parsed and set(only := found.pop()) <= set(names):
        return only, True, CERTAIN, "the Kafka key of every record is an object of them"
    for name in names:
        if None not in keys and all(
            str(row.get(name)) == record.key for row, record in zip(rows, sample.records, strict=True)
        ):
            return (name,), True, LIKELY, "its text is the Kafka key of every record"
    chosen = next((name for name in names if name == "id" or name.endswith("_id")), names[0] if names else "id")
    return (
        (chosen,),
        False,
        GUESS,
        "the Kafka keys name no columns; a tombstone is a dead letter until key_field says which",
    )


def _object(key: str | None) -> Mapping[str, Any] | None:
    try:
        value = json.loads(key or "")
    except ValueError:
        return None
    return value if isinstance(value, Mapping) and value else None


def shown_fields(table: TableGuess) -> tuple[FieldGuess, ...]:
    """Return the fields as the definition declares them."""
    return tuple(replace(each, kind=type_of(each)) for each in table.fields)


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
    return f'''"""A row of the table, from its change events."""


def fold(state, event):
    """Return the row behind a change{"; a tombstone behind a delete changes nothing" if table.key_in_log else ""}."""
    if {'event["_deleted"] or ' if table.key_in_log else ""}event["_op"] == "d":
        return None, [{{**state, "{table.gone}": True}}] if state else []
    row = {{{row}}}
    return row, [{{**row, "{table.gone}": False}}]
'''


def render_table(table: TableGuess, name: str, view: str, sample: RecordSample) -> list[str]:
    """Return the lines of `pipeline.yaml` below its comment."""

    def mapping(columns: Mapping[str, str]) -> str:
        return f"{{{', '.join(f'{_quoted(column)}: {_quoted(kind)}' for column, kind in columns.items())}}}"

    schema = {each.name: type_of(each) for each in table.fields} | {table.at: "timestamp"}
    results = {table.at: "timestamp", **table.state, table.gone: "boolean"}
    empty = dict.fromkeys(results, "{}")
    key = f"[{', '.join(_quoted(each) for each in table.keys)}]"
    by_text = len(table.keys) == 1 and table.sure == LIKELY
    tombstones = (
        ["    tombstones: delete", f"    key_field: {table.keys[0] if by_text else key}"] if table.key_in_log else []
    )
    return [
        f"name: {name}",
        f"description: {json.dumps(f'The table behind the change events of {sample.topic}: its rows, and those that were deleted.', ensure_ascii=False)}",
        "",
        "sources:",
        f"  {view}:",
        f"    topic: {json.dumps(sample.topic)}",
        f"    partitions: {sample.partitions}",
        f"    schema: {mapping(schema)}",
        f"    required: {key} # {table.sure}: {table.why}",
        "    envelope: debezium # the fields are those of `after`, for a delete those of `before`",
        *tombstones,
        f"    event_time: {table.at} # no field of the table: when the connector wrote the event (ts_ms)",
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
