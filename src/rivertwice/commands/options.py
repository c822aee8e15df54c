"""Options that mean the same in every command: ranges, instants, reasons, and names that were changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import click
from click.core import ParameterSource

from rivertwice.commands import candidates
from rivertwice.commands.frame import say
from rivertwice.errors import RequestError
from rivertwice.instants import TimeRange, parse_instant

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
INSTANT_FORM = "ISO 8601 with a zone; a date alone means midnight UTC; or '2 hours ago'"
_AGO = " ago"


class InstantType(click.ParamType[datetime]):
    """An instant: ISO 8601 with a zone, a date alone, which means midnight UTC, or a duration ago."""

    name = "instant"

    def convert(self, value: str | datetime, _param: click.Parameter | None, _ctx: click.Context | None) -> datetime:
        """Return the instant.

        Raises:
            RequestError: the text is none; the message says how to write it.
        """
        if isinstance(value, datetime):
            return value
        return _ago(value) if value.strip().endswith(_AGO) else parse_instant(value)


def _ago(text: str) -> datetime:
    from rivertwice.instants import utc_now
    from rivertwice.pipeline.durations import parse_duration

    try:
        return utc_now() - parse_duration(text.strip().removesuffix(_AGO))
    except ValueError as error:
        message = f"{text!r} is no instant: {error}; write it as '2 hours ago', or as 2013-06-30T04:00:00Z"
        raise RequestError(message) from None


INSTANT = InstantType()


def range_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --from and --to, the ends of a half-open range."""
    command = click.option(
        "--to", "end", type=INSTANT, metavar="INSTANT", help=f"End of the range, exclusive: {INSTANT_FORM}."
    )(command)
    return click.option(
        "--from", "start", type=INSTANT, metavar="INSTANT", help=f"Start of the range: {INSTANT_FORM}."
    )(command)


def range_of(start: datetime | None, end: datetime | None) -> TimeRange | None:
    """Return the range that two options give, or None if neither is given.

    Raises:
        RequestError: only one is given, or they are not a half-open range.
    """
    if start is None and end is None:
        return None
    if start is None or end is None:
        message = f"only {'--to' if start is None else '--from'} is given; a range needs both ends, [from, to)"
        raise RequestError(message)
    return TimeRange(start, end)


def name_argument(**attributes: Any) -> Decorator:
    """Add NAME: a pipeline, or a version of it as NAME@v2."""
    return click.argument("name", shell_complete=candidates.pipelines, **attributes)


def savepoint_argument(**attributes: Any) -> Decorator:
    """Add SAVEPOINT_ID."""
    return click.argument("savepoint_id", shell_complete=candidates.savepoints, **attributes)


def named_reason(reason: str | None) -> str:
    """Return the reason of a decision.

    Raises:
        UsageError: none is given.
    """
    if not reason:
        message = "a decision is kept with its reason: --reason 'test record'; nothing was done"
        raise click.UsageError(message)
    return reason


def reason_option(*, was: str | None = None) -> Decorator:
    """Add --reason.

    Args:
        was: its name in the version before.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        command = click.option("--reason", metavar="TEXT", help="Why; kept with your name.")(command)
        return command if was is None else renamed_option(was, "--reason")(command)

    return decorate


def renamed_option(old: str, new: str, *, dest: str | None = None, **attributes: Any) -> Decorator:
    """Add the old name of an option: hidden, and with a line on stderr that says the new one. It stays for one version.

    Args:
        old: as it was written.
        new: as it is written now.
        dest: variable of the option; default: made of its new name.
        attributes: `type`, `is_flag`, `multiple`, as of the option itself.
    """
    target = dest or new.lstrip("-").replace("-", "_")

    def move(ctx: click.Context, option: click.Parameter, value: Any) -> None:
        source = ctx.get_parameter_source(option.name)
        if source is ParameterSource.COMMANDLINE and not ctx.resilient_parsing:
            say(f"rivertwice: {old} is now {new}; this version still accepts {old}, the next does not", err=True)
            ctx.params[target] = value
            ctx.set_parameter_source(target, source)

    name = f"renamed_{old.lstrip('-').replace('-', '_')}"
    return click.option(old, name, hidden=True, expose_value=False, callback=move, **attributes)
