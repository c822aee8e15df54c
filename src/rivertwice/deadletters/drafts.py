"""Values that wait to be checked before they become amendments, so that no argument of a process and no log contains them.

`operations/amend-REQUEST.json` of the pipeline's home, format 1, readable by its owner; it is removed once the amendment is decided.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rivertwice.config import PipelineHome, require_name
from rivertwice.errors import RequestError
from rivertwice.instants import parse_iso, to_iso
from rivertwice.store.files import read_json, replace_json

FORMAT = 1
LONGEST_S = 86_400.0


@dataclass(frozen=True)
class Draft:
    """A value for one dead letter: its place, who gives it, why, and when it was asked for."""

    place: str
    value: bytes
    why: str
    by: str
    at: datetime


def save_draft(home: PipelineHome, request: str, place: str, value: bytes, *, why: str, by: str, now: datetime) -> None:
    """Put a value aside; the same request replaces its own. Those that nobody has decided for a day are removed."""
    for left in _waiting(home):
        if now.timestamp() - left.stat().st_mtime > LONGEST_S:
            left.unlink(missing_ok=True)
    replace_json(
        _path(home, request),
        {
            "format": FORMAT,
            "place": place,
            "value": base64.b64encode(value).decode(),
            "why": why,
            "by": by,
            "at": to_iso(now),
        },
    )


def load_draft(home: PipelineHome, request: str) -> Draft:
    """Return a value that was put aside.

    Raises:
        RequestError: there is none, so it was decided already or nobody asked for it.
    """
    data = read_json(_path(home, request))
    if data is None or data.get("format") != FORMAT:
        message = f"no value waits under {request}, so nothing was amended; ask for the amendment again"
        raise RequestError(message)
    return Draft(data["place"], base64.b64decode(data["value"]), data["why"], data["by"], parse_iso(data["at"]))


def forget_draft(home: PipelineHome, request: str) -> None:
    """Remove a value that was put aside."""
    _path(home, request).unlink(missing_ok=True)


def forget_drafts(home: PipelineHome) -> int:
    """Remove every value that was put aside, whatever it contains, and return how many there were; each can be asked for again."""
    left = _waiting(home)
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)


def _waiting(home: PipelineHome) -> list[Path]:
    return sorted(home.operations.glob("amend-*.json"))


def _path(home: PipelineHome, request: str) -> Path:
    return home.operations / f"amend-{require_name(request, 'request')}.json"
