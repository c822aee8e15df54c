"""What is raised when an invariant does not hold."""

from __future__ import annotations

from typing import NoReturn


class ViolationError(Exception):
    """An invariant does not hold.

    Attributes:
        invariant: its name.
    """

    def __init__(self, invariant: str, detail: str) -> None:
        """Name the invariant and what was found."""
        super().__init__(invariant, detail)
        self.invariant = invariant

    def __str__(self) -> str:
        """Return both as one line."""
        return ": ".join(self.args)


def fail(invariant: str, detail: object) -> NoReturn:
    """Report a violation."""
    raise ViolationError(invariant, str(detail))
