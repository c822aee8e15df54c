"""The acts by name. Importing it imports no Spark and no table: an act imports what it works on when it is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rivertwice.acts import dead_letter, operation, restore, rewind, savepoint
from rivertwice.acts.act import Act
from rivertwice.core.errors import RequestError

ACTS: Mapping[str, Act[Any]] = {
    act.name: act
    for act in (
        savepoint.PROVE,
        savepoint.PIN,
        savepoint.UNPIN,
        restore.RESTORE,
        rewind.REWIND,
        dead_letter.AMEND,
        dead_letter.DISCARD,
        operation.ABANDON,
    )
}


def find_act(name: object) -> Act[Any]:
    """Return the act of a name.

    Raises:
        RequestError: there is none; the message lists them.
    """
    found = ACTS.get(name) if isinstance(name, str) else None
    if found is None:
        message = f"act {str(name)[:60]!r} is not one of {', '.join(ACTS)}"
        raise RequestError(message)
    return found
