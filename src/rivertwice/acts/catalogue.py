"""The acts by name, and doing one that was stored. Imports no Spark and no table: an act imports what it works on when it is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rivertwice.acts import (
    archive,
    backfill,
    dead_letter,
    operation,
    reconcile,
    repair,
    restore,
    rewind,
    savepoint,
    upgrade,
    version,
)
from rivertwice.acts.act import Act, World
from rivertwice.acts.forms import parse_request
from rivertwice.core import Progress, RequestError, Settings, to_plain
from rivertwice.timeline import StoredRequest

ACTS: Mapping[str, Act[Any, Any]] = {
    act.name: act
    for act in (
        reconcile.RECONCILE,
        backfill.PLAN,
        backfill.BACKFILL,
        repair.REPAIR,
        savepoint.TAKE,
        archive.ARCHIVE,
        savepoint.PROVE,
        savepoint.PIN,
        savepoint.UNPIN,
        restore.RESTORE,
        rewind.REWIND,
        upgrade.UPGRADE,
        dead_letter.AMEND,
        dead_letter.DISCARD,
        operation.ABANDON,
        version.COMPARE,
        version.SERVE,
    )
}


def acts_of(verb: str | None = None, *, is_version: bool = False) -> Mapping[str, Act[Any, Any]]:
    """Return the acts that the DAG of a verb does, by name; the first is that of a run that names none.

    Args:
        verb: None: all acts, also those that no DAG does by itself.
        is_version: only those that a version of a pipeline has, too.
    """
    known = ACTS if verb is None else {name: act for name, act in ACTS.items() if verb and act.dag == verb}
    return {name: act for name, act in known.items() if not (is_version and act.whole)}


def find_act(name: object, among: Mapping[str, Act[Any, Any]] = ACTS) -> Act[Any, Any]:
    """Return the act of a name.

    Raises:
        RequestError: there is none; the message lists them.
    """
    found = among.get(name) if isinstance(name, str) else None
    if found is None:
        message = f"act {str(name)[:60]!r} is not one of {', '.join(among)}"
        raise RequestError(message)
    return found


def do_stored(settings: Settings, pipeline: str, id_: str, progress: Progress) -> Mapping[str, Any]:
    """Do a stored request once, however often it is asked for, and return its result as JSON can hold it.

    Raises:
        RequestError: it is refused, and removed; or nothing waits under the id.
    """
    home = settings.pipeline(pipeline)
    stored = StoredRequest.load(home, id_)
    if stored.result is not None:
        progress(f"{stored.act} is done already")
        return stored.result
    act = find_act(stored.act)
    try:
        request = parse_request(act, stored.values, pipeline)
        result = act.apply(World(settings, stored.by, stored.at, stored.resumes, progress=progress), request)
    except RequestError:
        StoredRequest.forget(home, id_)
        raise
    progress(f"{act.name} of {pipeline} by {stored.by} is done")
    shown = _without_rows(to_plain(result))
    stored.finish(home, id_, shown)
    return shown


def _without_rows(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a result without the rows that a rewind has for examples: results are kept longer than rows."""
    compared = result.get("comparison")
    if not isinstance(compared, dict):
        return result
    return {**result, "comparison": {name: count for name, count in compared.items() if isinstance(count, int)}}
