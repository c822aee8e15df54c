"""What the definition of a fold may contain, and that other definitions do not contain it. Pure."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from rivertwice.nearest import nearest
from rivertwice.pipeline.fold_run import ERROR
from rivertwice.pipeline.fold_values import JSON

if TYPE_CHECKING:
    from rivertwice.pipeline.model import DefinitionFile
    from rivertwice.pipeline.source_model import Source

NO_WATERMARK = timedelta(days=3_660_000)
"""A delay that is longer than any event time: the watermark stays at zero, and no record is late."""
SQL_TYPE = re.compile(
    r"^(string|boolean|int|bigint|double|timestamp|decimal\(([1-9]|[12][0-9]|3[0-8]),([0-9]|[12][0-9]|3[0-8])\))$"
)
_TYPES = ("string", "boolean", "int", "bigint", "double", "timestamp", "decimal(18,2)")
_OTHER_TYPES = {
    **dict.fromkeys(("text", "varchar", "char", "str"), "string"),
    **dict.fromkeys(("integer", "smallint", "int32"), "int"),
    **dict.fromkeys(("long", "int64"), "bigint"),
    **dict.fromkeys(("float", "real", "float64"), "double"),
    **dict.fromkeys(("date", "datetime", "time"), "timestamp"),
    **dict.fromkeys(("number", "numeric", "decimal"), "decimal(18,2)"),
    "bool": "boolean",
}


def sql_type(value: str) -> str:
    """Return a type of a field or column, unchanged.

    Raises:
        ValueError: it is not a type.
    """
    if not SQL_TYPE.match(value):
        known = _OTHER_TYPES.get(value.lower()) or nearest(value, _TYPES)
        message = (
            f"{value[:80]!r} is no type of a field; use string, boolean, int, bigint, double, timestamp or decimal(P,S)"
        ) + ("" if known is None else f"; did you mean {known}?")
        raise ValueError(message)
    return value


def _state_type(value: str) -> str:
    if value != JSON and not SQL_TYPE.match(value):
        message = f"{value[:80]!r} is no type of a state; use one of a field's types, or json for a list or a dict"
        raise ValueError(message)
    return value


StateType = Annotated[str, AfterValidator(_state_type)]


def find_fold_conflict(definition: DefinitionFile) -> str | None:
    """Return which part of a definition conflicts with a fold; None if no part does."""
    for view, source in definition.sources.items():
        if source.is_table:
            return f"source {view!r} has role: table, which is for intervals: a fold takes each of its records as an event; remove role and table_keys"
        if source.has_watermark:
            return f"source {view!r} has a watermark, but no record of a fold waits or is late; remove it"
    if definition.count_column is not None:
        return (
            f"count_column is {definition.count_column!r}, but rows of a fold are identified by their record; remove it"
        )
    if definition.stream.catch_up is not None:
        return "stream.catch_up leaves records to backfills, but each row of a fold depends on all records of its key before it; remove it"
    return _key_conflict(definition) or _type_conflict(definition) or _order_conflict(definition)


def find_stray_fold_part(definition: DefinitionFile) -> str | None:
    """Return which part of a definition that is no fold belongs to folds, or which source lacks a watermark; else None."""
    given = [name for name in ("by", "state", "types", "deleted") if getattr(definition, name)]
    for name in (*given, *({"order"} & definition.model_fields_set)):
        return f"{name} is for folds; remove it, or give window: {{fold: 1 day, at: COLUMN}} and a fold.py"
    if "fold_buckets" in definition.stream.model_fields_set:
        return "stream.fold_buckets is for folds, which alone keep states in buckets; remove it"
    return next(filter(None, itertools.starmap(_source_conflict, definition.sources.items())), None)


def _source_conflict(view: str, source: Source) -> str | None:
    if source.is_table:
        return None
    for name in ("tombstones", "envelope"):
        if name in source.model_fields_set:
            return f"{name} of source {view!r} is for folds and tables: a transform cannot see what became of a record; remove it"
    if source.has_watermark:
        return None
    return f"source {view!r} has no watermark; declare how far it stays behind, for instance '10 minutes'"


def _key_conflict(definition: DefinitionFile) -> str | None:
    if not definition.by:
        return "a fold needs by: the fields of the source whose values share a state; name them"
    foreign = [view for views in _named_views(definition) for view in views if view not in definition.sources]
    if foreign:
        return f"by names a field of {foreign[0]!r}, but the sources are {list(definition.sources)}; name one of them"
    of_source = functools.partial(_by_conflict, definition)
    conflict = next(filter(None, itertools.starmap(of_source, definition.sources.items())), None)
    if conflict:
        return conflict
    absent = [name for name in definition.by if name not in definition.keys]
    if absent:
        return f"by names {absent[0]!r}, which is not among keys {definition.keys}; add it, so that a row names its key"
    return (
        None if definition.state else "a fold needs state: the names and types of what it keeps of a key; declare them"
    )


def _named_views(definition: DefinitionFile) -> Iterable[Iterable[str]]:
    return definition.by.values() if isinstance(definition.by, dict) else ()


def _by_conflict(definition: DefinitionFile, view: str, source: Source) -> str | None:
    """Return why the fields of one source cannot be the state's key, or None."""
    where = f" of source {view!r}" if definition.has_several_sources else ""
    fields = definition.by_fields(view)
    for name in fields.values():
        kind = source.schema_.get(name)
        if kind in (None, "double") or name not in source.required_fields:
            problem = "no field" if kind is None else f"a {kind}" if kind == "double" else "not required"
            return f"by names {name!r}{where}, which is {problem}; the state's key is made of required fields that are no doubles"
    if source.tombstones == "delete" and not set(fields.values()) <= set(source.key_fields):
        return (
            f"tombstones{where} are deletes and have nothing but {', '.join(source.key_fields)}, but the state's key is "
            f"{list(fields.values())}; give by fields that the Kafka key names, or let it name more (key_field)"
        )
    return None


def _type_conflict(definition: DefinitionFile) -> str | None:
    columns = [*definition.keys, *definition.columns]
    unknown = [name for name in definition.types if name not in columns]
    if unknown:
        return f"types names {unknown[0]!r}, which is neither a key nor a column; add it to the result, or correct it"
    missing = [name for name in columns if name not in definition.types and name not in definition.by]
    if missing:
        return f"{missing[0]!r} has no type; add it to types: every key and column needs one, except those of by"
    for view, source in definition.sources.items():
        for name, field in definition.by_fields(view).items():
            kind, had = definition.row_types[name], source.schema_[field]
            if name in definition.types and kind != had:
                return f"types gives {name!r} another type than the source, which fills it in; remove it from types"
            if kind != had:
                return (
                    f"the state's key {name!r} is {kind} in source {definition.source[0]!r} and {had} in {view!r}, where it would be "
                    "another key; give both fields one type"
                )
    at = definition.window.at
    if at not in columns or definition.row_types[at] != "timestamp":
        return (
            f"window.at {at!r} is no key or column of type timestamp; it holds the event's time: add it, or correct it"
        )
    for special, needed in ((ERROR, "string"), (definition.deleted, "boolean")):
        if special in definition.columns and definition.types[special] != needed:
            return f"column {special!r} is {definition.types[special]}; it must be {needed}"
    if definition.deleted is not None and definition.deleted not in definition.columns:
        return f"deleted {definition.deleted!r} is no column; name the boolean column that marks a key as deleted"
    return None


def _order_conflict(definition: DefinitionFile) -> str | None:
    if definition.order == "read":
        return None
    if not definition.compare:
        return "order: any is what a reconcile checks, but compare is false; remove one of them"
    if definition.window.at in definition.keys:
        return (
            f"order: any declares that the newest row of a key does not depend on the order, but the keys hold {definition.window.at!r}, the "
            "time of an event, so each event has a key of its own; make it a column"
        )
    return None
