"""An act as a process: `spark-submit spark_jobs/reconcile.py --pipeline NAME ...`. Its arguments are the fields of the act's request.

Exit codes: 0 done, and what was found is data; 1 it could not be done; 2 the request was refused; 3 a replay disagreed; 75 it could
not be done now, and may be tried again. The last line on stderr says why, as `REASON: message`.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rivertwice.acts.act import Request, World
from rivertwice.acts.catalogue import do_stored, find_act
from rivertwice.acts.forms import FormField, fields_of, parse_request
from rivertwice.core import (
    ConfigError,
    ReplayMismatchError,
    RequestError,
    RivertwiceError,
    Settings,
    naming_extras,
    require_pipeline,
    to_iso,
    utc_now,
)

FAILED, REFUSED, DISAGREED, LATER = 1, 2, 3, 75


def run_job(act: str, argv: Sequence[str] | None = None) -> int:
    """Do an act and return the exit code of its process."""
    chosen = find_act(act)
    parser = argparse.ArgumentParser(prog=act, description=chosen.says)
    parser.add_argument("--pipeline", required=True, help="name of the pipeline, or of a version of it")
    parser.add_argument("--by", default="spark_jobs", help="who asks, for records")
    parser.add_argument("--reason", default="", help="why; kept with what comes out")
    for field in fields_of(chosen.request, hidden=True):
        _add(parser, field)
    given = vars(parser.parse_args(argv))
    by = given.pop("by")
    try:
        name = require_pipeline(given.pop("pipeline"))
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
        request = parse_request(chosen, values, name)
    except (RequestError, ConfigError) as error:
        sys.stderr.write(f"refused: {error}\n")
        return REFUSED
    return _end(lambda: chosen.apply(World(Settings.from_env(), by, utc_now(), progress=_say), request))


def arguments_of(request: Request) -> list[str]:
    """Return the arguments of a job that does what a request asks for, those apart that have their default."""
    arguments = ["--pipeline", request.pipeline]
    for field in fields_of(type(request), hidden=True):
        value = getattr(request, field.name)
        if value == type(request).model_fields[field.name].default:
            continue
        if field.is_flag:
            arguments.append(field.option)
            continue
        for each in value if isinstance(value, tuple) else (value,):
            arguments += [field.option, to_iso(each) if isinstance(each, datetime) else str(each)]
    return [*arguments, f"--reason={request.reason}"] if request.reason else arguments


def run_stored(argv: Sequence[str] | None = None) -> int:
    """Do an act that was asked for and stored, once however often it is repeated; return the exit code of its process."""
    parser = argparse.ArgumentParser(prog="act", description="Do an act that was asked for and stored.")
    parser.add_argument("--pipeline", required=True, help="name of the pipeline")
    parser.add_argument("--request", required=True, help="id of the stored request")
    given = parser.parse_args(argv)

    def do() -> Any:
        done = do_stored(Settings.from_env(), given.pipeline, given.request, _say)
        _say(str(dict(done)))
        return done

    return _end(do)


def _end(work: Callable[[], Any]) -> int:
    """Do the work of a process; say why it could not be done, and return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        with naming_extras():
            done = work()
    except RivertwiceError as error:
        sys.stderr.write(f"{error.reason}: {error}\n")
        if isinstance(error, ReplayMismatchError):
            return DISAGREED
        return LATER if error.retryable else FAILED
    proved = done.get("proved") if isinstance(done, Mapping) else getattr(done, "proved", None)
    return FAILED if proved is False else 0


def _add(parser: argparse.ArgumentParser, field: FormField) -> None:
    options: dict[str, Any] = {"dest": field.name, "help": field.description, "default": None}
    if field.is_flag:
        options["action"] = "store_false" if field.default is True else "store_true"
    elif field.schema["type"] == "array":
        options["action"] = "append"
    elif field.schema["type"] in ("integer", "number"):
        options["type"] = int if field.schema["type"] == "integer" else float
    if field.choices:
        options["choices"] = field.choices
    parser.add_argument(field.option, **options)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
