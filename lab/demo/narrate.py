"""Prints a long story on a terminal or in a log: numbered steps, what each shows, its facts, and how long each took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rivertwice.core.text import printable


class Narrator:
    """Numbers the steps and keeps the time since the demo began."""

    def __init__(self, console: Console | None = None) -> None:
        """Create a narrator; without a console it writes to standard output."""
        self.console = console or Console(highlight=False, soft_wrap=True)
        self._begun = time.monotonic()
        self._steps: list[tuple[str, float]] = []

    @property
    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._begun

    @contextmanager
    def step(self, title: str, shows: str) -> Iterator[None]:
        """Print one step: its title before; what it has shown, and how long it took, after.

        Args:
            title: what is done.
            shows: a sentence that is true once the step has ended.
        """
        begun = time.monotonic()
        self.console.print(f"\n[bold cyan]{len(self._steps) + 1:>2}  {escape(title)}[/]")
        yield
        seconds = time.monotonic() - begun
        self._steps.append((title, seconds))
        self.console.print(f"    [green]{escape(shows)}[/]")
        self.console.print(f"    [dim]{seconds:.1f} s ({self.elapsed_s:.0f} s so far)[/]")

    def table(self) -> Table:
        """Return the steps so far, with the seconds of each and of all."""
        table = Table(title="how long each step took")
        table.add_column("", justify="right")
        table.add_column("step")
        table.add_column("seconds", justify="right")
        for number, (title, seconds) in enumerate(self._steps, 1):
            table.add_row(str(number), title, f"{seconds:.1f}")
        table.add_section()
        table.add_row("", "all", f"{sum(seconds for _, seconds in self._steps):.1f}")
        return table

    def say(self, line: str) -> None:
        """Print a fact."""
        self.console.print(f"    {escape(printable(line))}")

    def progress(self, line: str) -> None:
        """Print how far long work is."""
        self.console.print(f"    [dim]{escape(printable(line))}[/]")
