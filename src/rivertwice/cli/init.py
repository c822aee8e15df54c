"""look, init: what sample records are like, and a project with a pipeline that is guessed from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.files import file_options, read_options
from rivertwice.cli.frame import Frame, as_table, example, pass_frame
from rivertwice.core import RequestError, to_plain

if TYPE_CHECKING:
    from rivertwice.local import Guess, Look, Overrides, RecordSample, WrittenFile


@click.command(
    epilog=example(
        "rivertwice look trips.csv --zone America/New_York",
        "rivertwice look bike-trips --window '1 hour' --key station",
    )
)
@click.argument("source", metavar="FILE|TOPIC")
@click.option("--event-time", metavar="FIELD", help="The field that is the event time; default: guessed.")
@click.option("--key", "keys", metavar="FIELD", multiple=True, help="A key; repeatable; default: guessed.")
@click.option("--window", metavar="DURATION", help="Length of a window: '5 minutes'; default: guessed.")
@click.option(
    "--records", type=click.IntRange(2, 100_000), default=10_000, show_default=True, help="Records to look at."
)
@file_options
@pass_frame
def look(
    frame: Frame,
    /,
    source: str,
    event_time: str | None,
    keys: tuple[str, ...],
    window: str | None,
    records: int,
    **said: str | None,
) -> None:
    """Show what the records of a file or a topic are like.

    How far they are out of order, which share would be late for each watermark delay, how even the keys are, how large windows would be, which times have no zone, which fields come and go. It takes seconds and needs
    neither Spark nor Java. Lateness is counted as if each record were a micro-batch; `rivertwice advise` counts it exactly for a stream.
    """
    from rivertwice.local import Look, make_guess

    file = Path(source) if Path(source).is_file() or "/" in source else None
    sampled = _sample(frame, None if file else source, file, records, said)
    found = Look.of(make_guess(_pipeline_name(None, sampled), sampled, _wishes(event_time, keys, window, None, None)))
    options = [*(["--from-file", source] if file else ["--from-topic", source]), *sampled.said]
    frame.emit({**to_plain(found), "warnings": found.warnings()}, lambda: _look_text(found, options))


def _look_text(found: Look, options: list[str]) -> str:
    import shlex

    from rivertwice.core import to_iso
    from rivertwice.definition import format_duration

    parts = [f"{found.origin}: {found.records:,} records looked at{f'; {found.read_as[0]}' if found.read_as else ''}"]
    if found.envelope is not None:
        parts.append(f"envelope    {found.envelope}")
    if found.first is not None and found.last is not None:
        order = (
            f"{found.disordered:,} come after a later one, by at most {format_duration(found.widest_rounded)}"
            if found.disordered
            else "all are in the order of their event time"
        )
        parts.append(f"event time  {found.event_time}: {to_iso(found.first)} to {to_iso(found.last)}; {order}")
        parts.append(
            f"windows     {found.windows:,} of {format_duration(found.window)}; {found.usual_window:,.0f} records in the usual one, {found.largest_window:,} in the largest"
        )
    if found.keys:
        parts.append(f"keys        {', '.join(found.keys)}: {found.key_values:,} values")
    if found.delays:
        shares = [
            (format_duration(each.delay) if each.delay else "none", f"{each.late:,}", f"{each.share:.2%}")
            for each in found.delays
        ]
        parts.append(as_table(("watermark delay", "late records", "share"), shares))
    if found.most:
        parts.append(
            as_table(
                (", ".join(found.keys), "records", "share"),
                [(each.key, f"{each.records:,}", f"{each.share:.1%}") for each in found.most],
            )
        )
    parts += [f"warning: {each}" for each in found.warnings()]
    return "\n".join([*parts, f"next: rivertwice init {shlex.join(options)}"])


@click.command(
    epilog=example(
        "rivertwice init --sample",
        "rivertwice init --example user_sessions",
        "rivertwice init trips --from-topic bike-trips",
        "rivertwice init trips --from-file trips.csv --zone America/New_York",
        "rivertwice init trips --from-topic bike-trips --event-time started_at --key station --columns fare:sum --window '1 hour' --dry-run",
    )
)
@click.argument("name", required=False)
@click.option("--from-topic", "topic", metavar="TOPIC", help="Guess the pipeline from records of this Kafka topic.")
@click.option(
    "--from-file",
    "file",
    type=click.Path(path_type=Path),
    help="Guess it from a file: CSV, JSON or Parquet, packed or not.",
)
@click.option(
    "--sample",
    is_flag=True,
    help="Write a pipeline of generated orders, some of them late; `rivertwice up --sample` sends them.",
)
@click.option("--example", metavar="NAME", help="Copy an example with its cases (`rivertwice pipelines --examples`).")
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path, file_okay=False), help="Where to write; default: the project."
)
@click.option("--event-time", metavar="FIELD", help="The field that is the event time, instead of the guess.")
@click.option("--key", "keys", metavar="FIELD", multiple=True, help="A key, instead of the guess; repeatable.")
@click.option("--window", metavar="DURATION", help="Length of a window, instead of the guess: '5 minutes'.")
@click.option("--watermark", metavar="DURATION", help="Watermark delay, instead of the guess.")
@click.option(
    "--columns",
    metavar="FIELD[:FUNCTION],...",
    help="Result columns, instead of the guess; functions are sum, mean, min, max.",
)
@click.option(
    "--records", type=click.IntRange(2, 100_000), default=1_000, show_default=True, help="Records to look at."
)
@file_options
@click.option("--dry-run", is_flag=True, help="Print the files instead of writing them.")
@changes_unasked("files of a project", because="files that exist stay as they are")
@pass_frame
def init(
    frame: Frame,
    /,
    name: str | None,
    topic: str | None,
    file: Path | None,
    sample: bool,
    example: str | None,
    folder: Path | None,
    event_time: str | None,
    keys: tuple[str, ...],
    window: str | None,
    watermark: str | None,
    columns: str | None,
    records: int,
    dry_run: bool,
    **said: str | None,
) -> None:
    """Write a project; guess its pipeline from sample records.

    The guess is shown with its reasons. A bounded sample is read: the oldest and the newest records of each partition, or the beginning, middle and end of a file. What cannot be
    guessed is marked TODO in the files. No file that exists is changed. Without a topic, a file or --sample, only the project's
    files are written.
    """
    from rivertwice.local import example_files, make_guess, pipeline_files, sample_files, write_project

    project = (folder or frame.settings.project).resolve()
    wishes = _wishes(event_time, keys, window, watermark, columns)
    guess, files = None, dict[str, str]()
    if example is not None:
        _refuse_beside(
            "--example copies", name, topic, file, sample, event_time, keys, window, watermark, columns, *said.values()
        )
        files = example_files(project, example)
    elif sample:
        _refuse_beside(
            "--sample writes", name, topic, file, event_time, keys, window, watermark, columns, *said.values()
        )
        guess, files = sample_files()
    elif topic is not None or file is not None:
        sampled = _sample(frame, topic, file, records, said)
        guess = make_guess(_pipeline_name(name, sampled), sampled, wishes)
        files = pipeline_files(guess)
    elif name is not None:
        message = f"nothing says what {name} reads, so no pipeline can be guessed; add --from-topic TOPIC or --from-file FILE, or leave the name out"
        raise RequestError(message)
    written = write_project(project, files, guess, has_sample=sample, dry_run=dry_run)
    shown = [{"path": each.path, "state": each.state, **({"text": each.text} if dry_run else {})} for each in written]
    value: dict[str, Any] = {"project": project, "files": shown}
    if guess is not None:
        value["guess"] = {"pipeline": guess.name, "findings": guess.findings, "gaps": guess.gaps}
    frame.emit(value, lambda: _text(project, guess, written, file, dry_run=dry_run))


def _refuse_beside(does: str, *others: object) -> None:
    if any(others):
        message = f"{does} one pipeline as it is; leave out NAME and the options that guess another one"
        raise RequestError(message)


def _sample(
    frame: Frame, topic: str | None, file: Path | None, records: int, said: Mapping[str, str | None]
) -> RecordSample:
    if topic is not None and file is not None:
        message = "--from-topic and --from-file are two sources of a guess; give one of them"
        raise RequestError(message)
    if topic is not None:
        from rivertwice.core import require_topic
        from rivertwice.local import sample_from_topic

        if any(said.values()):
            message = "--delimiter, --decimal, --time-format, --encoding and --zone are for a file: records of a topic are read as they are; let the producer send what a definition reads"
            raise RequestError(message)
        frame.progress(f"reading at most {records} records of topic {topic} ...")
        return sample_from_topic(frame.settings, require_topic(topic), records)
    from rivertwice.local import field_name, sample_file

    assert file is not None
    return sample_file(file, field_name(file.name.split(".")[0]), records, read_options(said))


def _wishes(
    event_time: str | None, keys: tuple[str, ...], window: str | None, watermark: str | None, columns: str | None
) -> Overrides:
    from datetime import timedelta

    from rivertwice.definition import parse_duration
    from rivertwice.local import Overrides

    def duration(option: str, text: str | None) -> timedelta | None:
        try:
            return None if text is None else parse_duration(text)
        except ValueError as error:
            message = f"{option}: {error}"
            raise RequestError(message) from None

    size = duration("--window", window)
    if size is not None and size <= timedelta(0):
        message = f"--window {window}: a window of no length holds no event; give a positive one, for instance '1 hour'"
        raise RequestError(message)
    asked = tuple(each.strip() for each in (columns or "").split(",") if each.strip())
    return Overrides(event_time, tuple(dict.fromkeys(keys)), size, duration("--watermark", watermark), asked)


def _pipeline_name(name: str | None, sample: RecordSample) -> str:
    from rivertwice.core import require_name
    from rivertwice.local import view_name

    return require_name(name or view_name(sample.topic), "pipeline")


def _text(project: Path, guess: Guess | None, written: list[WrittenFile], file: Path | None, *, dry_run: bool) -> str:
    import shlex

    from rivertwice.local import SAMPLE_FILE, finding_rows

    parts = []
    if guess is not None:
        parts.append(
            as_table(
                ("what", "guess", "how sure", "why", "where to change it"),
                finding_rows(guess.findings),
                title=guess.name,
            )
        )
    parts.append(as_table(("file", "state"), [(each.path, each.state) for each in written], title=str(project)))
    if dry_run:
        parts += [f"--- {each.path}\n{each.text}" for each in written if each.state == "would be written"]
        parts.append("nothing was written: --dry-run")
        return "\n".join(parts)
    pipeline = next((Path(each.path).parent.name for each in written if each.path.endswith("/pipeline.yaml")), None)
    if guess is None and pipeline is not None:
        parts.append(f"next: rivertwice test {pipeline}; rivertwice up")
    elif guess is None:
        parts.append("next: rivertwice init NAME --from-topic TOPIC, or --from-file FILE, or rivertwice init --sample")
    elif any(each.path.endswith(SAMPLE_FILE) for each in written):
        parts.append(
            f"next: rivertwice up --sample; rivertwice start {guess.name} --wait; rivertwice reconcile {guess.name}"
        )
    elif guess.gaps:
        parts.append(
            f"not known: {', '.join(guess.gaps)}; write it into pipelines/{guess.name}/pipeline.yaml and transform.sql (marked TODO)"
        )
        parts.append(f"next: rivertwice lint {guess.name}, which names what is missing")
    elif file is not None:
        send = shlex.join(
            [
                "rivertwice",
                "send",
                guess.name,
                str(file),
                *guess.sample.said,
                "--close" if guess.has_heartbeat else "--wait",
            ]
        )
        parts.append(f"next: rivertwice up; rivertwice start {guess.name}; {send}; rivertwice fix {guess.name}")
    else:
        parts.append(f"next: rivertwice up; rivertwice test {guess.name}; README.md has the rest")
    return "\n".join(parts)
