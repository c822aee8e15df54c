"""Options that mean the same in every command, and the candidates that a shell completes for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from rivertwice.core import RequestError, TimeRange, parse_instant

if TYPE_CHECKING:
    from rivertwice.core import PipelineHome, Settings


# What a shell can complete: pipelines and their versions, savepoints, tables, routes. It reads names of files alone.

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _settings(ctx: click.Context) -> Settings:
    from rivertwice.core import Settings

    env = dict(os.environ)
    given = ctx.find_root().params
    env |= {f"RIVERTWICE_{key.upper()}": str(given[key]) for key in ("project", "home") if given.get(key) is not None}
    return Settings.from_env(env)


def _home(ctx: click.Context) -> PipelineHome | None:
    settings = _settings(ctx)
    name = ctx.params.get("name") or next(iter(ctx.args), None)  # before an option that lacks its value none is parsed
    return settings.pipeline(name) if name else None


def _beginning(names: list[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _folders(place: object) -> list[str]:
    """Return the names of the folders of a place, newest first; none of a place that is not on this disk."""
    folder = place if isinstance(place, Path) else None
    if folder is None or not folder.is_dir():
        return []
    found = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.name for path in found if path.is_dir()]


def pipelines(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete NAME and NAME@v2."""
    return _beginning(_settings(ctx).pipeline_names(), incomplete)


def savepoints(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the id of a savepoint of NAME; none if they are in an object store."""
    home = _home(ctx)
    url = None if home is None else home.savepoint_url
    if home is None or (url is not None and urlsplit(url).scheme not in ("", "file")):
        return []
    place = home.savepoints if url is None else Path(urlsplit(url).path)
    return _beginning([name for name in _folders(place) if name.startswith("sp-")], incomplete)


def gaps(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the id of a gap of NAME."""
    home = _home(ctx)
    return [] if home is None else _beginning(_folders(Path(str(home.place)) / "gaps"), incomplete)


def tables(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a table."""
    from rivertwice.timeline import KINDS

    return _beginning([kind.name for kind in KINDS], incomplete)


def routes(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a route of alerts; none of a file that cannot be read: the command says why."""
    from rivertwice.agent import load_routes
    from rivertwice.core import RivertwiceError

    try:
        names = list(load_routes(_settings(ctx)).routes)
    except RivertwiceError:
        return []
    return _beginning(names, incomplete)


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
    from rivertwice.core import utc_now
    from rivertwice.definition import parse_duration

    try:
        return utc_now() - parse_duration(text.strip().removesuffix(_AGO))
    except ValueError as error:
        message = f"{text!r} is not a valid instant: {error}; write it as '2 hours ago', or as 2013-06-30T04:00:00Z"
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
    return click.argument("name", shell_complete=pipelines, **attributes)


def savepoint_argument(**attributes: Any) -> Decorator:
    """Add SAVEPOINT_ID."""
    return click.argument("savepoint_id", shell_complete=savepoints, **attributes)


def named_reason(reason: str | None) -> str:
    """Return the reason of a decision.

    Raises:
        UsageError: none is given.
    """
    if not reason:
        message = "a decision is kept with its reason: --reason 'test record'; nothing was done"
        raise click.UsageError(message)
    return reason


def refuse_beside(names: Collection[str], why: str) -> None:
    """Refuse the first of these parameters of the command that runs, if one was given.

    Args:
        why: what follows the option's name: `does not go with ...`.

    Raises:
        UsageError: one was given.
    """
    ctx = click.get_current_context()
    for param in ctx.command.params:
        if param.name in names and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            message = f"{param.opts[0]} {why}; leave it out"
            raise click.UsageError(message)


def reason_option() -> Decorator:
    """Add --reason."""
    return click.option("--reason", metavar="TEXT", help="Why; kept with your name.")
