"""`--cold`, and the way of a verb to the warm engine of the home (`rivertwice.engine.warm`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import click

from rivertwice.cli.asking import WORDS
from rivertwice.cli.frame import Frame, say
from rivertwice.core import naming_extras

_Command = Callable[..., Any]


def on_engine(when: Callable[[Mapping[str, Any]], bool] = lambda _values: True) -> Callable[[_Command], _Command]:
    """Run a command in the home's warm engine, unless `--cold` is given or the settings say otherwise.

    Args:
        when: says by the command's values whether it needs Spark.
    """

    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def run(*args: Any, cold: bool, **values: Any) -> Any:
            from rivertwice.engine import is_served, run_in_engine

            ctx = click.get_current_context()
            frame = ctx.find_object(Frame)
            words = ctx.find_root().meta.get(WORDS)
            if frame is None or words is None or cold or not is_served(frame.settings) or not when(values):
                return command(*args, **values)
            verb = " ".join([ctx.command_path.partition(" ")[2], *([values["name"]] if values.get("name") else [])])
            with naming_extras("pyspark"):
                code = run_in_engine(frame.settings, verb, words, lambda line: say(f"rivertwice: {line}", err=True))
            if code is None:
                return command(*args, **values)
            raise SystemExit(code)

        return click.option(
            "--cold", is_flag=True, help="Start a Spark for this run alone; default: use the home's warm engine."
        )(run)

    return decorate
