"""Prints a long story on a terminal or in a log: numbered steps, elapsed time, the result of each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

from rivertwice.printable import printable


class Narrator:
    """Numbers the steps and keeps the time since the demo began."""

    def __init__(self, console: Console | None = None) -> None:
        """Create a narrator; without a console it writes to standard output."""
        self.console = console or Console(highlight=False, soft_wrap=True)
        self._begun = time.monotonic()
        self._step = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._begun

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print one step: its title before, how long it took after."""
        self._step += 1
        begun = time.monotonic()
        self.console.print(f"\n[bold cyan]{self._step:>2}  {escape(title)}[/]")
        yield
        self.console.print(
            f"    [green]done[/] in {time.monotonic() - begun:.1f} s   [dim]({self.elapsed_s:.0f} s so far)[/]"
        )

    def say(self, line: str) -> None:
        """Print a fact."""
        self.console.print(f"    {escape(printable(line))}")

    def progress(self, line: str) -> None:
        """Print how far long work is."""
        self.console.print(f"    [dim]{escape(printable(line))}[/]")
