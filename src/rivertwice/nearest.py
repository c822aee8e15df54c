"""The name that somebody probably meant. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection

MOST_LISTED = 20


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that begins with `name` or is most like it, whatever the case; None if none is like it."""
    lower = {each.lower(): each for each in known}
    longer = [each for each in lower if len(name) >= 3 and each.startswith(name.lower())]
    if longer:
        return lower[min(longer, key=len)]
    close = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=0.6)
    return lower[close[0]] if close else None


def meant(name: str, known: Collection[str]) -> str:
    """Return `; did you mean KNOWN?` for the nearest known name; empty if none is like it."""
    close = nearest(name, known)
    return "" if close is None else f"; did you mean {close}?"


def did_you_mean(name: str, known: Collection[str], prefix: str = "") -> str:
    """Return the end of a message about an unknown name: the nearest known one, or all of them.

    Args:
        name: what was written.
        known: what can be written.
        prefix: stands before a name where it is written.
    """
    close = nearest(name, known)
    if close is not None:
        return f"did you mean {prefix}{close}?"
    listed = sorted(known)
    more = f" and {len(listed) - MOST_LISTED} more" if len(listed) > MOST_LISTED else ""
    return f"there are: {', '.join(listed[:MOST_LISTED]) or 'none'}{more}"
