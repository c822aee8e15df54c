"""Which savepoint a restore, an upgrade or a rewind is built on where none is named."""

from __future__ import annotations

from collections.abc import Sequence

from rivertwice.config import PipelineHome
from rivertwice.errors import SavepointError
from rivertwice.savepoint.catalogue import Savepoint, list_savepoints, select_newest
from rivertwice.savepoint.plan import is_on_path
from rivertwice.timeline.lineage import Segment


def newest_proved(home: PipelineHome, path: Sequence[Segment], wanted: str) -> Savepoint:
    """Return the newest proved savepoint of a head's path; of all, if there is no path yet.

    `wanted` goes on with the sentence that says that there is none.

    Raises:
        SavepointError: there is none.
    """
    there = [one for one in list_savepoints(home) if not path or is_on_path(one.manifest, path)]
    newest = select_newest(there, proved=True)
    if newest is None:
        message = (
            f"{home.root.name} has no proved savepoint on the head's path{wanted}; prove one (`rivertwice savepoint prove`), or "
            "name one and say --unproved"
        )
        raise SavepointError(message)
    return newest
