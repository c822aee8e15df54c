"""send: the records of a file into the topic that a pipeline reads; and how a file is written, for `init` too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.frame import Frame, example, pass_frame
from rivertwice.cli.options import name_argument
from rivertwice.core import RequestError, to_plain

if TYPE_CHECKING:
    from rivertwice.local import FileOptions

_OPTIONS = (
    click.option("--delimiter", metavar="CHARACTER", help="Of a CSV file: `;`, `|`, tab; default: sniffed."),
    click.option("--decimal", metavar=". or ,", help="What stands before the decimals of numbers; default: sniffed."),
    click.option(
        "--time-format",
        metavar="FORMAT",
        help="Of times that are not ISO 8601, as strptime has it: '%d.%m.%Y %H:%M'; default: sniffed.",
    ),
    click.option("--encoding", metavar="NAME", help="Of the text, for instance cp1252; default: sniffed."),
    click.option("--zone", metavar="ZONE", help="Of times without a zone, for instance Europe/Berlin."),
)


def file_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how a file is written; `read_options` makes one value of them."""
    return reduce(lambda made, option: option(made), reversed(_OPTIONS), command)


def read_options(said: Mapping[str, str | None]) -> FileOptions:
    """Return how a person says that a file is written.

    Raises:
        RequestError: there is no such zone.
    """
    from zoneinfo import ZoneInfo, available_timezones

    from rivertwice.core import did_you_mean
    from rivertwice.local import FileOptions

    zone = said["zone"]
    if zone is not None and zone not in available_timezones():
        message = f"--zone {zone}: there is no such zone; {did_you_mean(zone, available_timezones())}"
        raise RequestError(message)
    return FileOptions(
        said["delimiter"],
        said["decimal"],
        said["time_format"],
        said["encoding"],
        None if zone is None else ZoneInfo(zone),
    )


@click.command(
    epilog=example(
        "rivertwice send trips trips.csv",
        "rivertwice send trips trips.csv.gz --zone America/New_York --wait",
        "rivertwice send trips orders.csv --delimiter ';' --decimal , --dry-run",
    )
)
@name_argument()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--source", metavar="VIEW", help="Which source gets the records, if there are several.")
@click.option("--again", is_flag=True, help="Send a file once more that was sent before.")
@click.option("--wait", is_flag=True, help="Wait until the stream has read the records, as `start --wait` does.")
@click.option("--timeout", type=click.IntRange(min=1), default=600, show_default=True, help="Seconds to wait.")
@click.option("--dry-run", is_flag=True, help="Check every line, and send nothing.")
@file_options
@changes_unasked("records", because="they are added to the topic's end; a file that was sent before is refused")
@pass_frame
def send(
    frame: Frame,
    /,
    name: str,
    file: Path,
    source: str | None,
    again: bool,
    wait: bool,
    timeout: int,
    dry_run: bool,
    **said: str | None,
) -> None:
    """Send the records of FILE to the topic that NAME reads.

    CSV, JSON lines, a JSON array or Parquet, plain or packed with gzip, zstd or bz2. How the file is written is sniffed and printed; each part can be said instead. Every line is checked before the first record is
    sent: if one holds no record, it is named, and nothing is sent. After an interruption the same command sends the rest. The topic is created if it is absent.
    Each record gets its event time as its timestamp, and the first key of the definition as its Kafka key.
    """
    from rivertwice.core import utc_now
    from rivertwice.definition import create_topics, load_definition
    from rivertwice.local import plan_file

    definition = load_definition(frame.settings.definition_folder(frame.known_pipeline(name)))
    plan = plan_file(definition, file, source, read_options(said))
    topic, read_as = plan.source.topic, plan.shape.describe()
    frame.progress(f"{file.name} is {read_as}")
    for note in plan.shape.notes:
        frame.progress(f"not certain: {note}")
    if dry_run:
        count, _ = plan.check(frame.progress)
        shown = {"file": str(file), "read_as": read_as, "records": count, "topic": topic, "sent": False}
        frame.emit(shown, lambda: f"{count:,} records would be sent to {topic}; nothing was sent: --dry-run")
        return
    create_topics(frame.settings, [definition])
    asked_at = utc_now()
    sent = plan.send(frame.settings, asked_at, again=again, progress=frame.progress)
    result: dict[str, Any] = {"read_as": read_as, **to_plain(sent)}
    text = f"{sent.records:,} records of {file.name} sent to {topic}"
    if wait:
        from rivertwice.cli.streams import wait_caught_up

        read = wait_caught_up(frame, name, asked_at, timeout)
        result["stream"] = to_plain(read)
        text += f"; {name} has read them: {read.emitted} rows emitted, {read.dead} dead letters"
    frame.emit(
        result, lambda: f"{text}\nnext: rivertwice {'reconcile' if wait else 'start'} {name}{'' if wait else ' --wait'}"
    )
