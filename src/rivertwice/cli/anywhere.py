"""The options of every command: --output, --project, --home, --debug, before or after the verb."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from rivertwice.cli.frame import Frame
from rivertwice.core import PrintableFormatter, Settings

_FOLDER = click.Path(path_type=Path, file_okay=False)


def frame_options(*, is_root: bool) -> list[click.Option]:
    """Return the options; those of a verb have no default and win over those before it."""
    default: dict[str, Any] = {"default": "text", "show_default": True} if is_root else {}
    quiet: dict[str, Any] = {"hidden": not is_root}  # a verb's help shows --output alone; `rivertwice --help` has all
    each: dict[str, Any] = {"expose_value": is_root, "callback": None if is_root else _override}
    return [
        click.Option(
            ["-o", "--output"], type=click.Choice(["text", "json"]), help="How to print results.", **default, **each
        ),
        click.Option(
            ["--project"],
            type=_FOLDER,
            help="Folder with pipelines/; default: $RIVERTWICE_PROJECT or here.",
            **quiet,
            **each,
        ),
        click.Option(
            ["--home"],
            type=_FOLDER,
            help="Folder of all state; default: $RIVERTWICE_HOME or PROJECT/.rivertwice.",
            **quiet,
            **each,
        ),
        click.Option(["--debug"], is_flag=True, help="Show tracebacks and the log.", **quiet, **each),
    ]


def root_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to the root group's function."""
    for option in reversed(frame_options(is_root=True)):
        command.__dict__.setdefault("__click_params__", []).append(option)
    return command


def accept_anywhere(command: click.Command) -> click.Command:
    """Let a command and all below it take the options after the verb too, where it has none of that name itself."""
    own = {text for param in command.params for text in param.opts}
    command.params.extend(option for option in frame_options(is_root=False) if not own & set(option.opts))
    if isinstance(command, click.Group):
        for below in command.commands.values():
            accept_anywhere(below)
    return command


def make_frame(env: Mapping[str, str], values: Mapping[str, Any]) -> Frame:
    """Return how this invocation was called, and set the level of the log.

    Args:
        values: `output`, `project`, `home`, `debug`, as given.
    """
    env = dict(env)
    for option in ("project", "home"):
        if values[option] is not None:
            env[f"RIVERTWICE_{option.upper()}"] = str(values[option])
    _log_from(logging.INFO if values["debug"] else logging.ERROR)
    return Frame(Settings.from_env(env), values["output"], values["debug"])


def _log_from(level: int) -> None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, PrintableFormatter):
            handler.setLevel(level)
            logging.getLogger().setLevel(level)
            return
    handler = logging.StreamHandler()
    handler.setLevel(level)  # the handler's level: some libraries set their own loggers' level
    handler.setFormatter(PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def _override(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    """Let an option after the verb win over the same one before it."""
    frame, root = ctx.obj, ctx.find_root()
    if value is None or value is False or not isinstance(frame, Frame):
        return
    values = {name: root.params.get(name) for name in ("output", "project", "home", "debug")} | {option.name: value}
    root.params.update(values)
    made = dataclasses.replace(frame, output=value) if option.name == "output" else make_frame(os.environ, values)
    above: click.Context | None = ctx
    while above is not None:
        above.obj = made
        above = above.parent
