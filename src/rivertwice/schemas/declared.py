"""Whether a pinned schema gives a field that the definition declares, in words that hold for every format. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def describe_absent(name: str, what: str) -> str:
    """Return the finding about a declared field that a schema lacks; `what` is the pinned thing: a reader or a message."""
    return f"has no field {name!r}, which the definition declares; remove it there, or pin a {what} that has it"


def type_findings(name: str, declared: str, possible: Sequence[str], what: str) -> list[str]:
    """Return why a field cannot have its declared type; empty if it can.

    Args:
        name: the field's name.
        declared: the SQL type in the definition.
        possible: the SQL types that a field of the schema's type can be declared as.
        what: the pinned thing: `reader` or `message`.
    """
    if declared in possible:
        return []
    options = " or ".join(possible) or "no SQL type that a definition can declare"
    return [f"field {name!r} can be {options}, but the definition says {declared}; declare that, or pin another {what}"]
