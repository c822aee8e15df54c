"""Where long work reports its progress: a function that is called with one line for people."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]


def report_nothing(_line: str) -> None:
    """Report no progress."""
