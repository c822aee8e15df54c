"""Let another version serve: the table that consumers read shows its rows, from one commit on.

1. Build the version's own table, all of it, up to its last batch. 2. Replace the content of the table that consumers read by these
rows, with a stamp that names the version: this one commit is the switch. Before it the old version serves, after it the new one, and
no reader ever sees rows of both. 3. Note it for this host. 4. Remove the version's own table, which it does not use any more.

Sinks belong to the pipeline: their deliverers see which version serves, and change by one step what they delivered to its rows.

The old version keeps its rows for itself from then on, and can serve again by the same act. A crash before step 2 leaves all as it
was. After it, the next reader does step 3: each build of the old version reads the stamp before it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rivertwice.core import (
    LostRaceError,
    PipelineHome,
    RequestError,
    Settings,
    base_of,
    parse_iso,
    split_version,
    to_iso,
    to_plain,
)
from rivertwice.definition import Definition, WayKind, decide_way
from rivertwice.storage import RecordStore, Table
from rivertwice.timeline import (
    SERVED_KEY,
    Acceptance,
    Entry,
    EntryKind,
    ServedStamp,
    follow_stamp,
    head_definition,
    hold_versions,
    mark_of,
    read_sequence,
    read_versions,
    rebuild_served,
    record_accepted,
    serving_lock,
    stamp_of,
)

SWITCH = "switch"
"""Key of the commit's metadata: who let which version serve, and by which comparison."""


@dataclass(frozen=True)
class Switched:
    """What a switch did.

    Attributes:
        version: that serves now; before: that served.
        changed: whether anything was done; a version that serves already is left as it is.
        not_counted: publications of the version that served, since it began to serve: they do not count for the other one.
    """

    version: str
    before: str
    rows: int
    changed: bool
    not_counted: int


def serve_version(
    settings: Settings,
    name: str,
    *,
    by: str,
    now: datetime,
    compared: Mapping[str, Any] | None = None,
    reason: str = "",
    accept: Callable[[], Acceptance] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Switched:
    """Let a version serve.

    Args:
        name: of the version; the pipeline's own name is the first one.
        compared: what the gate said, for the record; None: it was not compared, as for a version that served before.
        accept: where rows cannot be compared: called right before the commit, returns what a person accepted, which is recorded.
        check: is called right before the commit, when the rows that it will show are known; what it raises prevents the switch.

    Raises:
        RequestError: there is no such version, it never ran, or what it emits cannot be switched.
        LostRaceError: another switch, or a build of the version that serves, came in between, or another process begins, drops or
            switches a version; nothing was switched.
    """
    home = settings.pipeline(name)
    with ExitStack() as locks:
        locks.enter_context(hold_versions(settings.pipeline(base_of(name))))
        require_switchable(settings, name)
        definition = definition_of(home)
        before = follow_stamp(home)
        if before == name:
            RecordStore(home.own_served).remove_all()
            return Switched(name, before, 0, changed=False, not_counted=0)
        old = settings.pipeline(before)
        rebuild_served(home, definition)  # step 1
        for each in sorted({home.root, old.root}):
            locks.enter_context(serving_lock(each))
        public = Table(home.public_served).open()
        require_unmoved(before, follow_stamp(home))
        rows = Table(home.tables.served).read()
        stamp = stamp_to_serve(home, None if rows is None else stamp_of(home.tables.served))
        assert rows is not None, "they have a stamp"
        check()
        record = {"from": before, "to": name, "by": by, "at": to_iso(now), "compared": dict(compared or {})}
        record |= {"reason": reason} if reason else {}
        if accept is not None:
            accepted = accept()
            record_accepted(settings.pipeline(base_of(name)), name, accepted)
            record["accepted"] = to_plain(accepted)
        Table(home.public_served).overwrite(
            rows, metadata={SERVED_KEY: stamp.plain(), SWITCH: record}, at=public, new=public is None
        )  # step 2
        follow_stamp(home)  # step 3
        RecordStore(home.own_served).remove_all()  # step 4
    return Switched(
        name, before, rows.num_rows, changed=True, not_counted=len(publications_not_counted(settings, home))
    )


def require_unmoved(before: str, serving: str) -> None:
    """Check that the version that served when a switch began serves still. Pure.

    Raises:
        LostRaceError: another one does.
    """
    if serving != before:
        message = f"another process let {serving} serve meanwhile; run it again"
        raise LostRaceError(message)


def stamp_to_serve(home: PipelineHome, own: ServedStamp | None) -> ServedStamp:
    """Return the stamp that a version's rows get in the table that consumers read. Pure.

    Args:
        own: the stamp of its own table; None: it has no rows.

    Raises:
        RequestError: it has no rows.
    """
    if own is None:
        message = f"{home.root.name} has no closed window yet, so it would serve nothing; wait for its first windows"
        raise RequestError(message)
    return replace(own, version=mark_of(home, home.public_served))


def has_served(home: PipelineHome, switches: Sequence[Mapping[str, Any]]) -> bool:
    """Say whether a version served before, so that it is not compared when it serves again: the first one did. Pure."""
    return home.is_first_version or any(each["to"] == home.root.name for each in switches)


def read_switches(home: PipelineHome) -> list[dict[str, Any]]:
    """Return the switches that the log of the table which consumers read still has, oldest first."""
    return [record for _, record in Table(home.public_served).commits(SWITCH)]


def require_switchable(settings: Settings, name: str) -> None:
    """Check that a version can serve.

    Raises:
        RequestError: there is no such version, it never ran, or what it emits cannot be switched.
    """
    base, number = split_version(name)
    home = settings.pipeline(name)
    known = {version.name for version in read_versions(settings.pipeline(base)) if version.is_open}
    if number > 1 and name not in known:
        message = f"{name} is not a version of {base} that runs; `rivertwice version list {base}`"
        raise RequestError(message)
    way = decide_way(definition_of(settings.pipeline(home.serving_version)), definition_of(home))
    if way.kind == WayKind.NEVER:
        message = f"{way.explain_never(base)}; nothing was switched"
        raise RequestError(message)


def definition_of(home: PipelineHome) -> Definition:
    """Return what the head of a version runs.

    Raises:
        RequestError: it never ran.
    """
    definition = head_definition(home)
    if definition is None:
        message = f"{home.root.name} never ran, so it has nothing to serve"
        raise RequestError(message)
    return definition


def served_before(home: PipelineHome) -> bool:
    """Say whether a version has served already: then it serves again without a comparison."""
    return has_served(home, read_switches(home))


def publications_not_counted(settings: Settings, home: PipelineHome) -> list[Entry]:
    """Return what the last switch did not take along: publications of the version that served before, made while it served.

    They do not count for the version that serves now.
    """
    switches = read_switches(home)
    if not switches:
        return []
    return publications_since(settings.pipeline(switches[-1]["from"]), parse_iso(switches[-1]["at"]))


def publications_since(home: PipelineHome, until: datetime | None = None) -> list[Entry]:
    """Return the publications that a version made since it began to serve, up to an instant.

    The result is empty if the log no longer says since when it serves, as for the first version before any switch.
    """
    switches = [record for record in read_switches(home) if until is None or parse_iso(record["at"]) < until]
    begun = [record["at"] for record in switches if record["to"] == home.root.name]
    if not begun:
        return []
    since = parse_iso(begun[-1])
    published = (
        entry for entry in read_sequence(home) if entry.kind == EntryKind.PUBLICATION and entry.created_at > since
    )
    return [entry for entry in published if until is None or entry.created_at <= until]
