"""What a shell can complete: pipelines and their versions, savepoints, tables, routes. It reads names of files alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    from rivertwice.config import PipelineHome, Settings

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _settings(ctx: click.Context) -> Settings:
    from rivertwice.config import Settings

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
    """Complete the id of a savepoint of NAME; none if they are on S3."""
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
    from rivertwice.results.kinds import KINDS

    return _beginning([kind.name for kind in KINDS], incomplete)


def routes(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a route of alerts; none of a file that cannot be read: the command says why."""
    from rivertwice.alerts.routes import load_routes
    from rivertwice.errors import RivertwiceError

    try:
        names = list(load_routes(_settings(ctx)).routes)
    except RivertwiceError:
        return []
    return _beginning(names, incomplete)
