"""What two definitions of a pipeline have in common: whether a trial can run, and whether their rows can be compared. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rivertwice.backfill.kinds import find_planner
from rivertwice.pipeline.counterparts import find_no_counterpart
from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.fingerprint import ChangedComponent
from rivertwice.trial.model import Retyped, SchemaChange

WITHOUT_EFFECT = frozenset({"watermark", "watermark_policy", "late_policy", "emit"})
"""Components that decide when a stream emits rows and which records are late. A batch has all records of a window at once."""

KEEPS_EVENT_TIME = frozenset(
    {"schema", "required", "rules", "max_future", "schema_ids", "schema_id_optional", "max_record_bytes", "decimals"}
)
"""Components of the decode that decide whether a record is accepted, but not which event time it has."""


def select_effective(changes: Sequence[ChangedComponent]) -> tuple[str, ...]:
    """Return the components that differ and that the rows of a batch depend on."""
    return tuple(
        change.component
        for change in changes
        if "semantics" in change.touches and change.component not in WITHOUT_EFFECT
    )


def describe_sameness(pipeline: str, changes: Sequence[ChangedComponent]) -> str:
    """Return why no row can differ, for changes without an effective one."""
    named = [change.component for change in changes if "semantics" in change.touches]
    if not named:
        return (
            f"the definition of {pipeline} in the project is the one that its stream runs (what no row depends on, such as comments and stream "
            "settings, does not count), so no row can differ; nothing was run"
        )
    return (
        f"only {', '.join(named)} changed, which decides when the stream emits rows and which records are late; a batch has all records of "
        f"a window at once, so no row can differ; nothing was run. `rivertwice advise {pipeline}` says what a watermark costs"
    )


def find_refusal(old: Definition, new: Definition) -> str | None:
    """Return why no trial can run, or None."""
    name = new.name
    if find_planner(old) is None or find_planner(new) is None:
        return (
            f"{name} is a fold: each of its rows depends on all events of its key before it, so a part of the log does not give them; "
            f"nothing was run. Write a case and run `rivertwice test {name}`, or start the changed fold under another name"
        )
    unread = sorted(set(new.topics) - set(old.topics))
    if unread:
        return (
            f"the changed definition of {name} reads {', '.join(unread)}, which its stream does not read, so no batch says which records "
            "belong to a window; nothing was run. Start it under another name: `rivertwice start` reads its topics from the beginning"
        )
    return None


def keeps_zones(old: Definition, new: Definition, changes: Sequence[ChangedComponent]) -> bool:
    """Say whether a record that both definitions accept has the same event time in both, as a row of the same role."""
    decode = {change.component for change in changes if "decode" in change.touches}
    return decode <= KEEPS_EVENT_TIME and all(_time_of(old, topic) == _time_of(new, topic) for topic in new.topics)


def decodes_alike(old: Definition, new: Definition, changes: Sequence[ChangedComponent]) -> bool:
    """Say whether both accept the same records, as the same rows of the same views."""
    is_changed = any("decode" in change.touches for change in changes)
    return not is_changed and old.sources.keys() == new.sources.keys() and keeps_zones(old, new, changes)


def _time_of(definition: Definition, topic: str) -> tuple[str, str | None, str]:
    _, source = definition.by_topic[topic]
    return source.event_time, source.schema_.get(source.event_time), source.role


def compare_schemas(old: Mapping[str, str], new: Mapping[str, str]) -> SchemaChange:
    """Return how the columns of two results differ, given by name to type."""
    both = [name for name in new if name in old]
    return SchemaChange(
        added={name: kind for name, kind in new.items() if name not in old},
        gone={name: kind for name, kind in old.items() if name not in new},
        retyped={name: Retyped(old[name], new[name]) for name in both if old[name] != new[name]},
    )


def find_incomparable(old: Definition, new: Definition, schema: SchemaChange) -> str | None:
    """Return why rows of the two cannot be put beside each other, or None."""
    return find_no_counterpart(old, new, schema.types)
