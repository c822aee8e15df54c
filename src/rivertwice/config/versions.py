"""Names of a pipeline's versions. Pure.

The first version has the pipeline's own name, `flight_delays`; the others have a number: `flight_delays@v2`. Each has a home of its
own, so a version can be named wherever a pipeline can.
"""

from __future__ import annotations

MARK = "@v"
FIRST = 1


def split_version(name: str) -> tuple[str, int]:
    """Return the pipeline's name and the version's number."""
    base, mark, number = name.partition(MARK)
    return (base, int(number)) if mark else (base, FIRST)


def base_of(name: str) -> str:
    """Return the name of the pipeline that a version belongs to."""
    return split_version(name)[0]


def version_name(base: str, number: int) -> str:
    """Return the name of a version of a pipeline."""
    return base if number == FIRST else f"{base}{MARK}{number}"
