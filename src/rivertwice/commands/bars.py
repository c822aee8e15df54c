"""Progress of work that knows how much there is: a bar with the time left at a terminal, else lines that say it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rivertwice.printable import printable_line
from rivertwice.progress import Measured

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SURE_AFTER_S = 1.0


@dataclass(frozen=True)
class Pace:
    """Where a piece of work began, as far as this process saw it."""

    at: float
    done: float

    def left_s(self, line: Measured, now: float) -> float | None:
        """Return the seconds until the work is done at its pace so far; None: not known yet. Pure."""
        made, took = line.done - self.done, now - self.at
        return None if made <= 0 or took < _SURE_AFTER_S else (line.total - line.done) * took / made


def time_text(seconds: float) -> str:
    """Return a time left for people: `40 s`, `12 min`, `3 h 5 min`. Pure."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Bars:
    """The bars of this process. A bar is taken away before anything else is printed, and comes back with its next line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paces: dict[str, Pace] = {}
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def text(self, line: Measured) -> str:
        """Return a line with the time that is left."""
        now = self._clock()
        pace = self._paces.setdefault(line.what, Pace(now, line.done))
        left = pace.left_s(line, now)
        return str(line) if left is None or line.done >= line.total else f"{line}; about {time_text(left)} left"

    def show(self, line: Measured) -> None:
        """Show a line as a bar on stderr; one that is full goes away."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        if self._progress is None:
            columns = (
                TextColumn("  {task.description}", markup=False),
                BarColumn(bar_width=24),
                TaskProgressColumn(),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        if line.what not in self._tasks:
            self._tasks[line.what] = self._progress.add_task(printable_line(line.what), total=line.total)
        task = self._tasks[line.what]
        self._progress.update(task, completed=line.done, total=line.total, description=printable_line(str(line)))
        self._progress.start()
        if line.done >= line.total:
            self._progress.remove_task(self._tasks.pop(line.what))
            if not self._tasks:
                self.stop()

    def forget(self) -> None:
        """Forget all work: the next verb of this process has another terminal and its own work."""
        self._paces, self._tasks, self._progress = {}, {}, None

    def stop(self) -> None:
        """Take the bars from the screen."""
        if self._progress is not None:
            self._progress.stop()


BARS = Bars()


def has_terminal() -> bool:
    """Say whether a bar can be drawn: stderr is a terminal."""
    return sys.stderr.isatty()
