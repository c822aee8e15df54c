"""What an operation may be based on where no savepoint exists. Used in the place of a savepoint's id; those begin with `sp-`."""

from __future__ import annotations

BEGINNING = "beginning"
"""An empty state and every recorded batch of the path."""
RESTING = "checkpoint"
"""The parent's own checkpoint at rest, until the savepoint of it is taken."""
