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
    from rivertwice.definition import Definition
    from rivertwice.local import ClosingHeartbeat, FileOptions

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
        "rivertwice send trips trips.csv.gz --zone America/New_York --close",
        "rivertwice send trips orders.csv --delimiter ';' --decimal , --dry-run",
        "rivertwice send trips --close",
        "rivertwice send users --from-topic users-compacted",
    )
)
@name_argument()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--from-topic",
    metavar="TOPIC",
    help="Copy another topic's records instead, those that were not copied before; a compacted topic is read in this way.",
)
@click.option("--source", metavar="VIEW", help="Which source gets the records, if there are several.")
@click.option("--again", is_flag=True, help="Send a file once more that was sent before.")
@click.option("--wait", is_flag=True, help="Wait until the stream has read the records, as `start --wait` does.")
@click.option(
    "--close",
    is_flag=True,
    help="Wait, then send a heartbeat that closes all windows with records; nothing else comes.",
)
@click.option("--timeout", type=click.IntRange(min=1), default=600, show_default=True, help="Seconds to wait.")
@click.option("--dry-run", is_flag=True, help="Check every line, and send nothing.")
@file_options
@changes_unasked("records", because="they are added to the topic's end; a file that was sent before is refused")
@pass_frame
def send(
    frame: Frame,
    /,
    name: str,
    file: Path | None,
    from_topic: str | None,
    source: str | None,
    again: bool,
    wait: bool,
    close: bool,
    timeout: int,
    dry_run: bool,
    **said: str | None,
) -> None:
    """Send the records of FILE to the topic that NAME reads.

    CSV, JSON lines, a JSON array or Parquet, plain or packed with gzip, zstd or bz2. How the file is written is sniffed and printed; each part can be said instead. Every line is checked before the first record is
    sent: if one holds no record, it is named, and nothing is sent. After an interruption the same command sends the rest. The topic is created if it is absent.
    Each record gets its event time as its timestamp, and the first key of the definition as its Kafka key.

    --from-topic copies keys, values, tombstones and timestamps of another topic of the cluster up to its end now, and no record twice. What Kafka compacted away before is not copied; the copy is not compacted, so a stream can read it.

    A window closes when later records move the watermark past its end, so the last windows of a file stay open. --close ends them with a heartbeat: a record that moves the watermark and is not counted. The definition says
    how it looks (`heartbeat`); `init --from-file` writes that. Records of a closed window that come later are late.
    """
    from rivertwice.core import to_iso, utc_now
    from rivertwice.definition import create_topics, load_definition
    from rivertwice.local import plan_file

    definition = load_definition(frame.settings.definition_folder(frame.known_pipeline(name)))
    if close:
        _refuse_to_close(definition)
    asked_at, result, told = utc_now(), dict[str, Any](), list[str]()
    if from_topic is not None:
        if file is not None or dry_run or again:
            message = "--from-topic copies a topic, so FILE, --dry-run and --again do not belong to it; leave them out"
            raise click.UsageError(message)
        copied, topic = _copy_topic(frame, definition, from_topic, source)
        result |= {"records": copied, "topic": topic}
        told.append(f"{copied:,} records of {from_topic} copied to {topic}")
    elif file is not None:
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
        sent = plan.send(frame.settings, asked_at, again=again, progress=frame.progress)
        result |= {"read_as": read_as, **to_plain(sent)}
        told.append(f"{sent.records:,} records of {file.name} sent to {topic}")
    elif not close or dry_run:
        message = (
            f"which file? `rivertwice send {name} FILE`, or `rivertwice send {name} --close` for a heartbeat alone"
        )
        raise click.UsageError(message)
    if wait or close:
        from rivertwice.cli.streams import wait_caught_up

        read = wait_caught_up(frame, name, asked_at, timeout)
        if close:
            closing = _close(frame, definition, read.watermark)
            result["heartbeat"], until = to_plain(closing), to_iso(closing.closed_until)
            told.append(
                f"a heartbeat closes the windows up to {until}"
                if closing.sent
                else f"all windows up to {until} are closed already"
            )
            read = wait_caught_up(frame, name, asked_at, timeout).after(read)
        result["stream"] = to_plain(read)
        told.append(f"{name} has read them: {read.emitted} rows emitted, {read.dead} dead letters")
    has_read = wait or close
    following = f"next: rivertwice {'reconcile' if has_read else 'start'} {name}{'' if has_read else ' --wait'}"
    frame.emit(result, lambda: f"{'; '.join(told)}\n{following}")


def _copy_topic(frame: Frame, definition: Definition, origin: str, view: str | None) -> tuple[int, str]:
    """Copy what a topic has into the topic of a source; return how many records, and that topic."""
    from rivertwice.core import TopicName
    from rivertwice.definition import create_topics
    from rivertwice.log import Outbox

    if view not in definition.sources and (view is not None or len(definition.sources) > 1):
        message = f"{definition.name} has the sources {', '.join(definition.sources)}; say which one gets the records with --source VIEW"
        raise RequestError(message)
    topic = definition.sources[view or next(iter(definition.sources))].topic
    if TopicName(topic).is_pattern:
        message = f"{definition.name} reads all topics {topic}, so it is not known into which {origin} is copied; let it read one topic"
        raise RequestError(message)
    if topic == origin:
        message = f"{definition.name} reads {topic} itself; let it read another topic, into which {topic} is copied"
        raise RequestError(message)
    create_topics(frame.settings, [definition])
    outbox = Outbox(frame.settings, topic, f"rivertwice.copy.{origin}.{topic}", transactional=True)
    try:
        return outbox.copy_from(origin), topic
    finally:
        outbox.close()


def _refuse_to_close(definition: Definition) -> None:
    """Refuse if no record of a definition would move the watermark without being counted."""
    view, source = next(iter(definition.streams.items()))
    if not source.heartbeat:
        message = (
            f"{definition.name} declares no heartbeat, so a record that closes its windows would be counted. With windows of a size, or sessions, add under sources.{view} of "
            f"its pipeline.yaml `heartbeat: {{is_heartbeat: true}}`, and to its schema `is_heartbeat: boolean`; then run `rivertwice upgrade {definition.name}`"
        )
        raise RequestError(message)


def _close(frame: Frame, definition: Definition, watermark: str | None) -> ClosingHeartbeat:
    from rivertwice.core import EPOCH, parse_iso, utc_now
    from rivertwice.local import ClosingHeartbeat

    _, source = definition.source
    if watermark is None or parse_iso(watermark) <= EPOCH:
        message = f"{definition.name} has read no record yet, so it has no window to close; send a file: `rivertwice send {definition.name} FILE --close`"
        raise RequestError(message)
    return ClosingHeartbeat.send(frame.settings, definition, parse_iso(watermark) + source.watermark, utc_now())
