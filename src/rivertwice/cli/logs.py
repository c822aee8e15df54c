"""logs: the end of a log that a driver, a job or a service writes, and what comes."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rivertwice.cli.frame import Frame, example, pass_frame, say
from rivertwice.cli.options import INSTANT, INSTANT_FORM, name_argument
from rivertwice.core import RequestError

if TYPE_CHECKING:
    from rivertwice.core import Settings

KINDS = ("driver", "savepoints", "restore", "rewind", "catch-up", "fast")
AIRFLOW = ("api-server", "scheduler", "triggerer", "dag-processor", "fork_server")
_POLL_S = 0.2
_STAMP = len("2026-11-27 03:10:00")


@click.command(
    epilog=example(
        "rivertwice logs flight_delays -f",
        "rivertwice logs flight_delays --of restore --lines 20",
        "rivertwice logs --agent --since '10 minutes ago'",
    )
)
@name_argument(required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written, across restarts, until interrupted.")
@click.option("--lines", type=click.IntRange(0), default=100, show_default=True, help="Lines from the end.")
@click.option("--since", type=INSTANT, metavar="INSTANT", help=f"All lines from this instant on: {INSTANT_FORM}.")
@click.option(
    "--of", "kind", type=click.Choice(KINDS), default="driver", show_default=True, help="Which process of the pipeline."
)
@click.option("--agent", is_flag=True, help="The agent's log, instead of a pipeline's.")
@click.option("--broker", is_flag=True, help="The embedded broker's, instead.")
@click.option("--airflow", "service", type=click.Choice(AIRFLOW), help="One of Airflow's services, instead.")
@pass_frame
def logs(
    frame: Frame,
    name: str | None,
    follow: bool,
    lines: int,
    since: datetime | None,
    kind: str,
    agent: bool,
    broker: bool,
    service: str | None,
) -> None:
    """Show the log of a driver or a service.

    It is the driver's of NAME, or with --of that of another process of the pipeline. A log is rotated at 20 MB; what was rotated
    last is shown too.
    """
    if sum((name is not None, agent, broker, service is not None)) != 1:
        message = "name a pipeline, or one of --agent, --broker and --airflow: rivertwice logs flight_delays"
        raise click.UsageError(message)
    if follow and frame.output == "json":
        message = "--follow has no end, and --output json prints one value; leave one of them out"
        raise click.UsageError(message)
    path, remedy = find_log(
        frame.settings, None if name is None else frame.known_pipeline(name), kind, service, agent=agent
    )
    if not path.exists() and not follow:
        message = f"there is no log {path}; {remedy}"
        raise RequestError(message)
    end = path.stat().st_size if path.exists() else 0
    shown = list(_since(path, end, since)) if since is not None else _last(path, end, lines)
    frame.emit({"file": str(path), "lines": shown}, lambda: "\n".join(shown))
    if follow:
        if not path.exists():
            frame.progress(f"there is no log {path} yet; {remedy}; it is waited for")
        _follow(path, end)


def find_log(settings: Settings, name: str | None, kind: str, service: str | None, *, agent: bool) -> tuple[Path, str]:
    """Return where a log is, and what to do if it is not there."""
    if name is not None:
        begin = (
            f"`rivertwice start {name}` starts a driver" if kind == "driver" else f"no {kind} of {name} has run here"
        )
        return settings.pipeline(name).logs / f"{kind}.log", begin
    if agent:
        return settings.home / "agent" / "log", "no agent has run in this home; `rivertwice agent start` starts one"
    if service is not None:
        return settings.home / "airflow" / "logs" / f"{service}.log", "`rivertwice up --airflow` starts Airflow"
    return settings.broker / "console.log", "the embedded broker has not run here; `rivertwice up` starts it"


def _last(path: Path, end: int, lines: int) -> list[str]:
    """Return the last lines before a position of a log; those that were rotated last belong to them."""
    size, before = 256 * (lines + 1), -1
    while True:
        tail = _tail(path, end, size)
        found = tail.decode(errors="replace").splitlines()
        if len(found) > lines or len(tail) == before or not lines:
            return found[-lines:] if lines else []
        size, before = size * 4, len(tail)


def _tail(path: Path, end: int, size: int) -> bytes:
    own = b""
    if path.exists():
        with path.open("rb") as file:
            file.seek(max(0, end - size))
            own = file.read(min(size, end))
    older = path.with_name(f"{path.name}.1")
    if len(own) == size or not older.exists():
        return own
    return _tail(older, older.stat().st_size, size - len(own)) + own


def _since(path: Path, end: int, since: datetime) -> Iterator[str]:
    """Yield the lines from the first one that is stamped at or after an instant, up to a position of the log."""
    is_on = False
    for part, left in ((path.with_name(f"{path.name}.1"), None), (path, end)):
        if not part.exists():
            continue
        with part.open("rb") as file:
            while left is None or file.tell() < left:
                line = file.readline().decode(errors="replace")
                if not line:
                    break
                is_on = is_on or _is_stamped_since(line, since)
                if is_on:
                    yield line.rstrip("\n")


def _is_stamped_since(line: str, since: datetime) -> bool:
    """Say whether a line begins with a local time, as Python's logging writes it, at or after an instant."""
    try:
        return datetime.fromisoformat(line[:_STAMP]).astimezone() >= since
    except ValueError:
        return False


def _follow(path: Path, position: int) -> None:
    from rivertwice.storage import LogFile

    def wait() -> bool:
        time.sleep(_POLL_S)
        return True

    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    try:
        for part in LogFile(path).follow(position, wait):
            say(decoder.decode(part), nl=False)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
