"""What every command shares: settings, output as text or JSON, progress bars, errors as one clear line, exit codes."""

from __future__ import annotations

import dataclasses
import difflib
import errno
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import click

from rivertwice.core import (
    AuditError,
    Measured,
    ReplayMismatchError,
    RequestError,
    RivertwiceError,
    ServiceError,
    Settings,
    UnknownOutcomeError,
    naming_extras,
    printable,
    printable_json,
    printable_line,
    to_plain,
)
from rivertwice.stream import classify_failure, is_thrown

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


# Progress of work that knows how much there is: a bar with the time left at a terminal, else lines that say it.

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


_SERVED_SECONDS = 60.0
OK, REFUSED, USAGE, DEFECT, UNKNOWN = 0, 1, 2, 3, 4
EXIT_CODES = """\b
Exit codes:
  0  done
  1  refused or failed; the message says why and what to do
  2  the command line was not understood
  3  a check ran and found a defect, or could compare nothing
  4  it is not known whether the action happened: look before repeating it"""


@dataclasses.dataclass(frozen=True)
class Frame:
    """How this invocation was called.

    Attributes:
        output: `text` or `json`.
    """

    settings: Settings
    output: str
    debug: bool

    def emit(self, value: Any, text: str | Callable[[], str]) -> None:
        """Print a result: `value` as JSON, or `text`."""
        if self.output == "json":
            say_json(to_plain(value))
        else:
            say(text if isinstance(text, str) else text())

    def progress(self, line: str) -> None:
        """Show progress on stderr, so that stdout stays the result: a bar at a terminal if it is known how much there is."""
        if not isinstance(line, Measured):
            say(f"  {line}", err=True)
        elif has_terminal() and self.output == "text" and not self.debug:
            BARS.show(line)
        else:
            say(f"  {BARS.text(line)}", err=True)

    def report_broken(self, broken: Mapping[str, str]) -> None:
        """Print to stderr why definitions could not be loaded, one after the other."""
        for name, error in broken.items():
            say(f"rivertwice: {name} cannot be loaded: {error}", err=True)

    def warn_of_copies(self, name: str | None = None) -> None:
        """Print to stderr that a pipeline's home is a copy, so that the stream of the other one may run as well.

        Args:
            name: the pipeline; None: all pipelines whose desired state is running.
        """
        from rivertwice.stream import describe_copied_home
        from rivertwice.timeline import Intent

        for each in [name] if name else self.settings.pipeline_names():
            home = self.settings.pipeline(each)
            intent = Intent.load(home)
            warning = describe_copied_home(home) if name or (intent and intent.desired == "running") else None
            if warning is not None:
                say(f"rivertwice: warning: {each}: {warning}", err=True)

    def await_served(self, name: str, batch: tuple[str, int] | None = None) -> bool:
        """Wait until readers see all that is published, and this batch of a timeline; say so if they do not.

        What is committed stays committed: a failure is not needed.
        """
        from rivertwice.agent import agent_status
        from rivertwice.timeline import Intent, last_seq, wait_served

        home = self.settings.pipeline(name)
        if agent_status(self.settings) is None or Intent.load(home) is None:  # the agent builds what is served
            self.progress(
                f"readers see it once an agent runs (`rivertwice up`), or after `rivertwice admin rebuild {name}`"
            )
            return False
        try:
            wait_served(home, last_seq(home), _SERVED_SECONDS, batch)
        except ServiceError as error:
            self.progress(str(error))
            return False
        return True

    def known_pipeline(self, name: str) -> str:
        """Return the name if the project defines it or the home has its state.

        Raises:
            ConfigError: the name is not safe.
            RequestError: there is no such pipeline; close names are given.
        """
        return self.settings.known_pipeline(name)

    def chosen_pipelines(self, name: str | None) -> list[str]:
        """Return the one that is named, or all that the project defines.

        Raises:
            RequestError: there is no such pipeline, or none at all.
        """
        if name:
            return [self.known_pipeline(name)]
        names = sorted(path.parent.name for path in self.settings.definitions.glob("*/pipeline.yaml"))
        if not names:
            message = (
                f"no pipeline is defined in {self.settings.definitions}; run it in the project, "
                "or name that with --project PATH or RIVERTWICE_PROJECT"
            )
            raise RequestError(message)
        return names


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text for people. Text from records may hold control characters, which a terminal would obey: they are escaped."""
    BARS.stop()
    click.echo(printable(text), err=err, nl=nl)


def say_json(value: Any, *, err: bool = False) -> None:
    """Print JSON, exact: control characters are in it as JSON's escapes, also those that JSON allows raw."""
    BARS.stop()
    click.echo(printable_json(json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)), err=err)


class FriendlyGroup(click.Group):
    """A group that suggests close names; the root one also turns errors into one line and an exit code."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or fail with the closest name."""
        if args and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            names = self.list_commands(ctx)
            close = difflib.get_close_matches(args[0], names, n=2, cutoff=0.7)
            hint = f"Did you mean {' or '.join(close)}?" if close else f"There are: {', '.join(names)}."
            ctx.fail(f"No command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; at the root, answer every RivertwiceError with its exit code."""
        if ctx.parent is not None:
            return super().invoke(ctx)
        ctx.call_on_close(BARS.stop)
        try:
            with naming_extras():
                return super().invoke(ctx)
        except RivertwiceError as error:
            fail(ctx, error)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            fail(ctx, as_unexpected(error))


def exit_code_of(error: RivertwiceError) -> int:
    """Return the exit code of an error."""
    if isinstance(error, UnknownOutcomeError):
        return UNKNOWN
    if isinstance(error, ReplayMismatchError | AuditError):
        return DEFECT
    return REFUSED


_WRITABLE = (
    "this user must be able to write there: correct the rights, or give another folder with --home or RIVERTWICE_HOME"
)
_ROOM = "free some space, or give a folder on another disk with --home or RIVERTWICE_HOME; `rivertwice doctor` says how much is needed"
_DISK = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR), _WRITABLE),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _ROOM),
}
"""Errors of the disk to their remedy."""


def as_unexpected(error: Exception) -> RivertwiceError:
    """Return an error from outside our rooms (Spark's can have hundreds of lines) as one line of ours."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0][:500] if lines else "it has no message"
    if isinstance(error, OSError) and error.errno in _DISK and error.filename is not None:
        reason = "disk"
        message = f"{error.filename}: {os.strerror(error.errno)}; {_DISK[error.errno]}"
    elif is_thrown(str(error)):
        reason = classify_failure(error)
        message = f"values in the log make the pipeline's SQL throw: {text}. `rivertwice lint` names what can throw"
    else:
        reason = "unexpected"
        message = f"unexpected {type(error).__name__}: {text}; nothing more is known here: run it again with --debug"
    unexpected = RivertwiceError(message)
    unexpected.reason = reason
    unexpected.__cause__ = error
    return unexpected


def fail(ctx: click.Context, error: RivertwiceError) -> NoReturn:
    """Print an error and exit."""
    frame = ctx.obj if isinstance(ctx.obj, Frame) else None
    if frame is not None and frame.debug:
        say("".join(traceback.format_exception(error)), err=True, nl=False)
    if frame is not None and frame.output == "json":
        body = {"reason": error.reason, "message": str(error), "retryable": error.retryable}
        say_json({"error": body}, err=True)
    else:
        say(f"rivertwice: {error}", err=True)
    ctx.exit(exit_code_of(error))


def as_table(
    headers: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None, right: Container[int] = ()
) -> str:
    """Return a table as text; without a terminal (pipes, tests) it is as wide as it needs to be.

    `right` holds the places of the columns that end at the right: numbers.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for place, header in enumerate(headers):
        table.add_column(header, overflow="fold", justify="right" if place in right else "left")
    for row in rows:
        table.add_row(
            *(Text("-" if cell is None else printable_line(str(cell))) for cell in row)
        )  # stored text is not markup
    # No colours: the text is passed to `say`, which would escape rich's codes as it does those of records.
    console = Console(width=None if sys.stdout.isatty() else 200, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().strip("\n").splitlines() if line.strip())


def table_of(columns: Sequence[str], records: Iterable[Any], **options: Any) -> str:
    """Return records as a table: a column for each of some fields; options as for `as_table`."""
    return as_table(columns, [[to_plain(getattr(each, name)) for name in columns] for each in records], **options)


def _in_words(item: Any) -> str:
    if isinstance(item, dict):
        return ", ".join(f"{key} {_in_words(each)}" for key, each in item.items()) or "none"
    if isinstance(item, list):
        is_nested = any(isinstance(each, dict | list) for each in item)
        return ("; " if is_nested else ", ").join(map(_in_words, item)) or "none"
    if isinstance(item, bool):
        return "yes" if item else "no"
    return "-" if item is None else str(item)


def as_fields(value: Any) -> str:
    """Return key and value of a mapping, or of a dataclass, per line; values within a value are named in words (`pid 12, cluster_id x`)."""
    plain = to_plain(value)
    width = max((len(key) for key in plain), default=0)
    shown = {key: _in_words(item) if isinstance(item, dict | list) else item for key, item in plain.items()}
    return "\n".join(
        f"{key:<{width}}  {'-' if item is None else printable_line(str(item))}" for key, item in shown.items()
    )


def example(*lines: str) -> str:
    """Return the epilog of a command's help: what to type."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


pass_frame = click.make_pass_decorator(Frame)
