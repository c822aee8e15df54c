"""init: a project of one's own, with a pipeline that is guessed from sample records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.frame import Frame, as_table, example, pass_frame
from rivertwice.core import RequestError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from rivertwice.local import Guess, Overrides, RecordSample, WrittenFile


@click.command(
    epilog=example(
        "rivertwice init --sample",
        "rivertwice init trips --from-topic bike-trips",
        "rivertwice init trips --from-file trips.csv --zone America/New_York",
        "rivertwice init trips --from-topic bike-trips --event-time started_at --key station --columns fare:sum --window '1 hour' --dry-run",
    )
)
@click.argument("name", required=False)
@click.option("--from-topic", "topic", metavar="TOPIC", help="Guess the pipeline from records of this Kafka topic.")
@click.option(
    "--from-file", "file", type=click.Path(path_type=Path), help="Guess it from a file: JSON lines, CSV or Parquet."
)
@click.option(
    "--sample",
    is_flag=True,
    help="Write a pipeline of generated orders, some of them late; `rivertwice up --sample` sends them.",
)
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
@click.option(
    "--zone", metavar="ZONE", help="For a file: the zone of times that have none, for instance Europe/Berlin."
)
@click.option("--dry-run", is_flag=True, help="Print the files instead of writing them.")
@changes_unasked("files of a project", because="files that exist stay as they are")
@pass_frame
def init(
    frame: Frame,
    name: str | None,
    topic: str | None,
    file: Path | None,
    sample: bool,
    folder: Path | None,
    event_time: str | None,
    keys: tuple[str, ...],
    window: str | None,
    watermark: str | None,
    columns: str | None,
    records: int,
    zone: str | None,
    dry_run: bool,
) -> None:
    """Write a project; guess its pipeline from sample records.

    The guess is shown with its reasons. A bounded sample is read: the oldest and the newest records of each partition, or the first of a file. What cannot be
    guessed is marked TODO in the files. No file that exists is changed. Without a topic, a file or --sample, only the project's
    files are written.
    """
    from rivertwice.local import make_guess, pipeline_files, project_files, sample_files, write_files

    project = (folder or frame.settings.project).resolve()
    wishes = _wishes(event_time, keys, window, watermark, columns)
    guess, files = None, dict[str, str]()
    if sample:
        _refuse_beside_sample(name, topic, file, event_time, keys, window, watermark, columns, zone)
        guess, files = sample_files()
    elif topic is not None or file is not None:
        sampled = _sample(frame, topic, file, records, _zone(zone, file))
        guess = make_guess(_pipeline_name(name, sampled), sampled, wishes)
        files = pipeline_files(guess, zone)
    elif name is not None:
        message = f"nothing says what {name} reads, so no pipeline can be guessed; add --from-topic TOPIC or --from-file FILE, or leave the name out"
        raise RequestError(message)
    written = write_files(project, files | project_files(guess, project, has_sample=sample), dry_run=dry_run)
    shown = [{"path": each.path, "state": each.state, **({"text": each.text} if dry_run else {})} for each in written]
    value: dict[str, Any] = {"project": project, "files": shown}
    if guess is not None:
        value["guess"] = {"pipeline": guess.name, "findings": guess.findings, "gaps": guess.gaps}
    frame.emit(value, lambda: _text(project, guess, written, dry_run=dry_run))


def _refuse_beside_sample(*others: object) -> None:
    if any(others):
        message = (
            "--sample writes one pipeline, `orders`, as it is; leave out NAME and the options that guess another one"
        )
        raise RequestError(message)


def _sample(frame: Frame, topic: str | None, file: Path | None, records: int, zone: ZoneInfo | None) -> RecordSample:
    if topic is not None and file is not None:
        message = "--from-topic and --from-file are two sources of a guess; give one of them"
        raise RequestError(message)
    if topic is not None:
        from rivertwice.core import require_topic
        from rivertwice.local import sample_from_topic

        frame.progress(f"reading at most {records} records of topic {topic} ...")
        return sample_from_topic(frame.settings, require_topic(topic), records)
    from rivertwice.local import field_name, sample_file

    assert file is not None
    return sample_file(file, field_name(file.stem), records, zone)


def _zone(zone: str | None, file: Path | None) -> ZoneInfo | None:
    from zoneinfo import ZoneInfo, available_timezones

    from rivertwice.core import did_you_mean

    if zone is None:
        return None
    if file is None:
        message = "--zone is for the times of a file: records of a topic are read as they are; let the producer send times with a zone"
        raise RequestError(message)
    if zone not in available_timezones():
        message = f"--zone {zone}: there is no such zone; {did_you_mean(zone, available_timezones())}"
        raise RequestError(message)
    return ZoneInfo(zone)


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


def _text(project: Path, guess: Guess | None, written: list[WrittenFile], *, dry_run: bool) -> str:
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
    if guess is None:
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
    else:
        parts.append(f"next: rivertwice up; rivertwice test {guess.name}; README.md has the rest")
    return "\n".join(parts)
