"""The stamp of the served table: what a build of it shows. It is in the commit's metadata, not in the rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rivertwice.core import PipelineHome, Place, base_of
from rivertwice.storage import Table, replace_bytes

SERVED_KEY = "served"
BESIDE = "beside"
"""Mark of a table that the first version keeps for itself while another one serves."""


@dataclass(frozen=True)
class ServedStamp:
    """What a build of the served table shows.

    Attributes:
        sequence: newest head move or publication. timeline, batch: the last committed batch on the head's path.
        version: of the table that consumers read: name of the version that wrote it, empty for the first one. `beside`: see there.
    """

    sequence: int
    timeline: str
    batch: int
    version: str = ""

    def plain(self) -> dict[str, Any]:
        """Return it as it is stored."""
        return {name: value for name, value in asdict(self).items() if name != "version" or value}


def mark_of(home: PipelineHome, table: Place) -> str:
    """Return the mark of the stamps that a version writes into a table: the one that consumers read, or its own. Pure."""
    if table == home.public_served:
        return "" if home.is_first_version else home.root.name
    return BESIDE if home.is_first_version else ""


def is_own(shown: ServedStamp | None, mark: str) -> bool:
    """Say whether a table is a version's to write, by its newest stamp and the mark of the version's own stamps there. Pure."""
    return shown is None or shown.version == mark


def serving_version_of(shown: ServedStamp | None, name: str) -> str:
    """Return the name of the version that serves, by the stamp of the table that consumers read. Pure.

    Args:
        shown: the newest stamp; None: nothing was served yet.
    """
    return (None if shown is None else shown.version) or base_of(name)


def serving_by_stamp(home: PipelineHome) -> str:
    """Return the name of the version that serves: the table that consumers read says so in its newest commit's stamp."""
    return serving_version_of(stamp_of(home.public_served), home.root.name)


def follow_stamp(home: PipelineHome) -> str:
    """Let this host know which version serves, and return its name."""
    serving = serving_by_stamp(home)
    if serving != home.serving_version:
        replace_bytes(home.serving_note, f"{serving}\n".encode())
    return serving


def read_served_stamp(home: PipelineHome) -> ServedStamp | None:
    """Return what the served table of a version shows, or None if it was never built.

    A host that has not seen a switch yet learns of it here: the table that consumers read shows rows of another version then, and
    this one's are in its own table.
    """
    for _ in range(2):
        place = home.tables.served
        shown = stamp_of(place)
        if is_own(shown, mark_of(home, place)):
            return shown
        follow_stamp(home)
    return None


def provisional_stamp(home: PipelineHome) -> ServedStamp | None:
    """Return what the table of open windows shows, or None if it was never built."""
    return stamp_of(home.tables.provisional)


def stamp_of(table: Place) -> ServedStamp | None:
    """Return the stamp of the newest commit that has one, or None."""
    for limit in (4, None):
        commits = Table(table).commits(SERVED_KEY, limit=limit)
        if commits:
            return ServedStamp(**commits[-1][1])
    return None
