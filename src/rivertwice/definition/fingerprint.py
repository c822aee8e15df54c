"""Three hashes of a definition: may state be resumed, are results comparable, is decoding the same. Their components are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rivertwice.definition.fold_code import normalise_fold
from rivertwice.definition.model import Definition
from rivertwice.definition.parts import format_duration
from rivertwice.definition.refusals import normalise, tokens
from rivertwice.definition.source import Source
from rivertwice.definition.stream_pins import NO_TIME
from rivertwice.storage import encode_json

# Increase one when a change of `decode` or `compile` gives another result for the same definition and records.
# Not increased for records that are refused since they stalled a task or hid what follows their JSON: a new number would stop every
# pipeline for records that nobody writes.
DECODER_VERSION = 1
COMPILER_VERSION = 1

# For a fold only: its code, its inputs and its results. The hashes of other definitions do not change.
FOLD = ("fold", "fold_by", "fold_state", "fold_types", "fold_sources")
STATE = ("compiler", "view", "event_time", "window", "keys", "columns", "transform", "field_types_used", *FOLD)
DECODE = (
    "decoder",
    "format",
    "schema",
    "required",
    "rules",
    "max_future",
    "schema_ids",
    "schema_id_optional",
    "max_record_bytes",
    *("framing", "pinned"),  # only for framed or Avro records: the hashes of other definitions do not change
    *("envelope", "tombstones"),  # likewise
    *("epochs", "paths", "decimals"),  # likewise
    "on_error",  # only if the stream stops at an error
)
SEMANTICS = (
    *("compiler", "view", "topic", "event_time", "window", "keys", "columns", "transform"),
    *("rows", "watermark", "late_policy", "emit", *FOLD),
    *(
        "watermark_policy",
        "role",
        "table_keys",
    ),  # only for several sources: the hashes of definitions with one do not change
    *DECODE,
)
_OF_SOURCE = ("view", "topic", "event_time", "field_types_used", "watermark", "role", "table_keys", *DECODE)
"""Components that each source has; for several sources they are kept by view."""


@dataclass(frozen=True)
class Fingerprint:
    """Hashes of the parts that decide resume, replay or refuse.

    Attributes:
        state: layout of the state; a checkpoint of another layout cannot be resumed.
        semantics: everything a result depends on; results of other semantics cannot be compared.
        decode: everything that decides which records are accepted, and as what.
        components: the values that are hashed, by name.
    """

    state: str
    semantics: str
    decode: str
    components: Mapping[str, Any]

    def hashes(self) -> dict[str, str]:
        """Return the three hashes by name, as stored records keep them."""
        return {"state": self.state, "semantics": self.semantics, "decode": self.decode}

    def changes_to(self, new: Fingerprint) -> list[ChangedComponent]:
        """Return the components that differ, sorted by name; empty if no component changed."""
        changes = []
        for name in sorted({*self.components, *new.components}):
            before, after = self.components.get(name), new.components.get(name)
            if before != after:
                groups = (("state", STATE), ("semantics", SEMANTICS), ("decode", DECODE))
                touches = tuple(group for group, members in groups if name in members)
                changes.append(ChangedComponent(component=name, old=before, new=after, touches=touches))
        return changes


@dataclass(frozen=True)
class ChangedComponent:
    """One component that differs, with the hashes it belongs to."""

    component: str
    old: Any
    new: Any
    touches: tuple[str, ...]


def fingerprint_of(definition: Definition) -> Fingerprint:
    """Return the fingerprint of a definition. Comments, white space and stream pins do not matter."""
    used = {word.lower().strip("`") for word in tokens(definition.transform_sql)}
    keeps_records = definition.window.kind.keeps_records
    sources = {
        view: _source_parts(view, source, source.schema_ if keeps_records else used)
        for view, source in definition.sources.items()
    }
    components: dict[str, Any] = {
        "compiler": COMPILER_VERSION,
        "window": definition.window.kind.fingerprint_parts(definition.window),
        "keys": definition.keys,
        "columns": list(definition.columns),
        "transform": normalise(definition.transform_sql),
        "rows": None if definition.rows_sql is None else normalise(definition.rows_sql),
        "late_policy": definition.late.policy,
        "emit": definition.emit,
        **_joined(sources),
        **_fold_parts(definition),
    }
    if definition.on_error != "quarantine":
        components["on_error"] = definition.on_error
    if len(sources) > 1 and definition.window.kind.has_watermark:
        components["watermark_policy"] = definition.watermark_policy
    return Fingerprint(
        state=_hash(components, STATE),
        semantics=_hash(components, SEMANTICS),
        decode=_hash(components, DECODE),
        components=components,
    )


def _joined(sources: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the components of one source unchanged, or those of several by view; a component that no source has is left out."""
    if len(sources) == 1:
        return dict(next(iter(sources.values())))
    return {
        name: {view: parts[name] for view, parts in sources.items() if name in parts}
        for name in _OF_SOURCE
        if any(name in parts for parts in sources.values())
    }


def _source_parts(view: str, source: Source, used: Collection[str]) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "decoder": DECODER_VERSION,
        "view": view,
        "topic": source.topic,
        "event_time": source.event_time,
        "field_types_used": {name: kind for name, kind in source.schema_.items() if name in used},
        "watermark": format_duration(NO_TIME if source.is_table else source.watermark),
        "format": source.format,
        "schema": source.schema_,
        "required": sorted(source.required_fields),
        "rules": [rule.model_dump() for rule in source.rules],
        "max_future": format_duration(source.max_future),
        "schema_ids": sorted(source.schema_ids),
        "schema_id_optional": source.schema_id_optional,
        "max_record_bytes": source.max_record_bytes,
    }
    table = {"role": source.role, "table_keys": source.table_keys} if source.is_table else {}
    return parts | table | _schema_parts(source) | _change_parts(source)


def _fold_parts(definition: Definition) -> dict[str, Any]:
    """Return the components of a fold, empty for other definitions. Every field counts: the fold's code may use any."""
    if definition.fold_py is None:
        return {}
    fields = {view: {**source.schema_, **source.marks} for view, source in definition.sources.items()}
    parts = {
        "fold": normalise_fold(definition.fold_py),
        "fold_by": definition.by,
        "fold_state": definition.state,
        "fold_types": definition.row_types,
    }
    if len(fields) == 1:
        return {**parts, "field_types_used": next(iter(fields.values()))}
    return {**parts, "field_types_used": fields, "fold_sources": list(fields)}  # a batch is folded in their order


def _change_parts(source: Source) -> dict[str, Any]:
    """Return how change events and tombstones are read; empty for plain records, so stored fingerprints stay valid."""
    parts: dict[str, Any] = {} if source.envelope == "none" else {"envelope": source.envelope}
    named: Any = source.key_fields if len(source.key_fields) > 1 else next(iter(source.key_fields), None)
    return parts if source.tombstones == "dead" else {**parts, "tombstones": [source.tombstones, named]}


def _schema_parts(source: Source) -> dict[str, Any]:
    """Return framing and pinned schemas; empty for plain JSON, so stored fingerprints stay valid."""
    parts: dict[str, Any] = {} if source.framing == "none" else {"framing": source.framing}
    if source.epochs:
        parts["epochs"] = dict(sorted(source.epochs.items()))
    if source.exact_decimals:
        parts["decimals"] = "exact"
    if source.paths:
        parts["paths"] = dict(sorted(source.paths.items()))
    if source.format == "avro":
        wrote = source.pins.writers or {0: source.pins.writer}
        writers = {str(each): hashlib.sha256(schema.text.encode()).hexdigest() for each, schema in wrote.items()}
        parts["pinned"] = {"reader": source.pins.reader.text, "writers": writers}
    if source.format == "protobuf":
        parts["pinned"] = {"message": source.message_type.text}
    return parts


def _hash(components: Mapping[str, Any], names: Iterable[str]) -> str:
    return hashlib.sha256(encode_json({name: components[name] for name in names if name in components})).hexdigest()
