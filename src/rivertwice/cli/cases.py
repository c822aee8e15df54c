"""test, try, advise: what a definition gives for records."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.frame import DEFECT, Frame, as_table, example, pass_frame
from rivertwice.cli.options import INSTANT, name_argument, range_of, range_options
from rivertwice.cli.results import parse_key
from rivertwice.cli.warm import on_engine
from rivertwice.core import RequestError, require_name, to_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from rivertwice.versions import Advice, Comparison, Example, SchemaChange, Trial


# test: the cases of a definition, and new ones of records of the log.


@click.command(
    "test",
    epilog=example(
        "rivertwice test",
        "rivertwice test flight_delays",
        "rivertwice test --examples",
        'rivertwice test flight_delays --from-log 2013-06-30T16:00:00Z --key \'{"origin": "JFK"}\'',
        "rivertwice test flight_delays --from-log flights/0@118 --from-log flights/2@97 --as two_late_flights",
    ),
)
@name_argument(required=False)
@click.option("--examples", is_flag=True, help="The examples instead (`rivertwice pipelines --examples`).")
@click.option(
    "--from-log",
    "cut",
    multiple=True,
    metavar="WINDOW|RECORD",
    help="Make a case of NAME instead, of records of its log: those of the window that starts then, and the first one that "
    "closes it; or the record TOPIC/PARTITION@OFFSET (the topic may be left out if there is one), may be given again.",
)
@click.option(
    "--key",
    "key_text",
    metavar="JSON",
    help="With --from-log: only records of this key of the window, as a JSON object with all key columns.",
)
@click.option(
    "--as",
    "case_name",
    metavar="CASE",
    help="With --from-log: name of the case; default: made of the window or the address.",
)
@on_engine()
@changes_unasked("with --from-log a file of a case", because="it is a new file")
@pass_frame
def test_cases(
    frame: Frame, name: str | None, examples: bool, cut: tuple[str, ...], key_text: str | None, case_name: str | None
) -> None:
    """Check definitions and run their cases; make new ones.

    Without NAME all pipelines are checked. Each case runs as a stream and as a batch. Exit 3 if a definition is refused or a case fails; the others are run all the same.

    With --from-log no case is run. Records of NAME's log become a new case, a file in `cases/` of the pipeline's folder, which expects what the definition in the project gives for them now. It holds real records, byte by byte, in the micro-batches in which
    the stream read them. `rivertwice test NAME` passes on it until the definition changes.
    """
    from rivertwice.definition import DefinitionFiles
    from rivertwice.engine import FEW_RECORDS, spark_on_demand

    settings = frame.settings
    if cut or key_text is not None or case_name is not None:
        if name is None or not cut or examples:
            message = (
                "a case is made by NAME --from-log WINDOW|RECORD, to which --key and --as belong, and not --examples"
            )
            raise RequestError(message)
        _cut_case(frame, frame.known_pipeline(name), cut, key_text, case_name)
        return
    folder = settings.shipped("pipelines/examples") if examples else settings.definitions
    if name is None:
        in_folder = sorted(path.parent.name for path in folder.glob(f"*/{DefinitionFiles.YAML_FILE}"))
        names = in_folder if examples else frame.chosen_pipelines(None)
    else:
        names = [require_name(name, "pipeline") if examples else frame.known_pipeline(name)]
    with spark_on_demand(settings.with_local_spark(), "rivertwice-test", extra=FEW_RECORDS, quick=True) as spark:
        results = [result for each in names for result in _test_one(frame, folder / each, spark)]
    failed = [result for result in results if result["differences"]]
    rows = [(result["pipeline"], result["case"], "FAILED" if result["differences"] else "passed") for result in results]
    text = as_table(("pipeline", "case", "result"), rows)
    for result in failed:
        text += f"\n{result['pipeline']}: {result['case']}: {'; '.join(result['differences'])}"
    frame.emit({"cases": results, "failed": len(failed)}, text)
    if failed:
        raise SystemExit(DEFECT)


def _cut_case(frame: Frame, pipeline: str, cut: Sequence[str], key_text: str | None, case_name: str | None) -> None:
    """Write a case of records of the log, and say what it has."""
    from rivertwice.core import utc_now
    from rivertwice.engine import FEW_RECORDS, spark_on_demand
    from rivertwice.versions import CutRequest, cut_case

    window, records = _chosen(cut)
    if records and key_text is not None:
        message = "--key chooses records of a window, and --from-log names single records; leave --key out"
        raise RequestError(message)
    request = CutRequest(pipeline=pipeline, name=case_name, window=window, key=parse_key(key_text), records=records)
    settings = frame.settings
    with spark_on_demand(
        settings.with_local_spark(), f"rivertwice-case-{pipeline}", extra=FEW_RECORDS, quick=True
    ) as spark:
        made = cut_case(settings, request, spark, utc_now(), frame.progress)
    frame.emit(
        made,
        f"{made.path}: {made.records} records in {made.batches} micro-batches; it expects {made.batch_rows} rows of a batch and "
        f"{made.stream_rows} of the stream; `rivertwice test {pipeline}` runs it",
    )


def _chosen(cut: Sequence[str]) -> tuple[datetime | None, tuple[str, ...]]:
    """Return the start of a window, or the addresses of records.

    Raises:
        RequestError: it is neither, or more than one window.
    """
    if all(set(each) & set("/@") for each in cut):
        return None, tuple(cut)
    if len(cut) > 1:
        message = "--from-log takes one window, or one record after the other; give either of them"
        raise RequestError(message)
    try:
        return INSTANT.convert(cut[0], None, None), ()
    except RequestError:
        message = (
            f"--from-log {cut[0]!r} is neither an instant nor an address; write the start of a window as "
            "2013-06-30T16:00:00Z, or a record as TOPIC/PARTITION@OFFSET"
        )
        raise RequestError(message) from None


def _test_one(frame: Frame, folder: Path, spark: Callable[[], Any]) -> Iterator[dict[str, Any]]:
    """Yield the result of a pipeline's definition, and of each of its cases if the definition holds."""
    from rivertwice.core import utc_now
    from rivertwice.definition import LintLevel
    from rivertwice.engine import judge_folder, run_cases

    frame.progress(f"definition and cases of {folder.name} ...")
    judged = judge_folder(frame.settings, folder, spark, utc_now(), again=True)
    differences = [*judged.broken, *(judged.unchecked if judged.verdict is None else ())]
    yield {"pipeline": folder.name, "case": "(definition)", "state": judged.state, "differences": differences}
    if judged.bundle is None or judged.state != LintLevel.HOLDS:
        return
    for problem in judged.unchecked:
        frame.progress(f"{folder.name}: not checked: {problem}")
    home = frame.settings.pipeline(folder.name) if folder.parent == frame.settings.definitions else None
    for result in run_cases(spark(), folder, judged.bundle.definition, home):
        frame.progress(f"{result.case}: {'passed' if result.passed else 'FAILED'}")
        yield {"pipeline": folder.name, **to_plain(result)}


# advise: what another watermark delay would have dropped, and how long results would have waited for it.


class DurationType(click.ParamType[timedelta]):
    """A duration as a definition writes it: `30 s`, `10 minutes`, `1 hour`."""

    name = "duration"

    def convert(self, value: str | timedelta, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Return the duration, or fail with the form to use."""
        from rivertwice.definition import parse_duration

        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(
    epilog=example(
        "rivertwice advise flight_delays",
        'rivertwice advise flight_delays --delay "2 hours" --delay "3 hours" --by origin',
        'rivertwice advise flight_delays --last "7 days"',
        'rivertwice advise flight_delays --delay "2 hours" --write',
    )
)
@name_argument()
@click.option("--delay", "delays", type=DurationType(), multiple=True, help="Judge this delay; may be given again.")
@click.option("--last", type=DurationType(), help="Only the newest batches: as far back as this much event time.")
@click.option("--by", "column", metavar="FIELD", help="Also name the values of a field of the record that lose most.")
@click.option(
    "--write", is_flag=True, help="Judge nothing; write the one --delay into pipeline.yaml as the source's watermark."
)
@click.option("--source", metavar="VIEW", help="With --write: which source, if several have a watermark.")
@click.option("--dry-run", is_flag=True, help="With --write: show the lines that would differ; write nothing.")
@on_engine(lambda values: not values["write"])
@changes_unasked("with --write a watermark in pipeline.yaml", because="git shows it, and --dry-run")
@pass_frame
def advise(
    frame: Frame,
    name: str,
    delays: tuple[timedelta, ...],
    last: timedelta | None,
    column: str | None,
    write: bool,
    source: str | None,
    dry_run: bool,
) -> None:
    """Show what other watermark delays would have dropped.

    The log that NAME read is judged again. Each delay is judged by the exact late rule over the batches that the stream ran: how many pairs of record and window it
    would have dropped, how long the rows of a window would have waited, and how many rows the state would have held at most.
    Without --delay it judges parts and multiples of the present delay, and the smallest ones that drop at most 1 %, 0.1 %
    and none, rounded up. It changes nothing. To apply a delay, name it with --write: that line of pipeline.yaml is changed and shown,
    and `rivertwice upgrade NAME` continues the stream with it.
    """
    if write:
        if len(delays) != 1 or last is not None or column is not None:
            message = "--write takes exactly one --delay, and neither --last nor --by"
            raise click.UsageError(message)
        _write_watermark(frame, frame.known_pipeline(name), delays[0], source, dry_run=dry_run)
        return
    if source is not None or dry_run:
        message = "--source and --dry-run belong to --write"
        raise click.UsageError(message)
    from rivertwice.engine import spark_on_demand
    from rivertwice.timeline import head_definition, path_ledger
    from rivertwice.versions import AdviceRequest
    from rivertwice.versions import advise_delays as measure

    settings = frame.settings
    home = settings.pipeline(frame.known_pipeline(name))
    definition = head_definition(home)
    if definition is None:
        from rivertwice.core import RequestError

        message = f"{name} has no timeline yet, so its log was not read; run `rivertwice start {name} --wait`"
        raise RequestError(message)
    with spark_on_demand(settings, f"rivertwice-advise-{name}") as spark:
        spark.expect(records=sum(row.read for row in path_ledger(home)))
        advice = measure(spark(), settings, definition, AdviceRequest(delays, last, column), frame.progress)
    frame.emit(advice, lambda: advice_text(advice))


def _write_watermark(frame: Frame, name: str, delay: timedelta, view: str | None, *, dry_run: bool) -> None:
    """Write a delay into the definition in the project, and show the lines that differ and the command that applies it."""
    from rivertwice.core import base_of
    from rivertwice.definition import build_bundle
    from rivertwice.timeline import head

    folder = frame.settings.definitions / base_of(name)
    old = build_bundle(folder)
    new = old.with_watermark(delay, view)
    diff = old.diff_to(new, around=0)
    if diff and not dry_run:
        new.write_yaml(folder)
    several = len(new.definition.streams) > 1  # the checkpoint of these goes by their old watermarks
    follows = f"upgrade {name}{' --new-version' if several else ''}"
    if head(frame.settings.pipeline(name)) is None:
        follows = f"start {name} --wait"
    lines = diff or [f"the watermark in {folder}/pipeline.yaml is {_advice_text(delay)} already"]
    frame.emit(
        {"pipeline": name, "diff": diff, "written": bool(diff) and not dry_run, "next": f"rivertwice {follows}"},
        lambda: "\n".join(lines if dry_run or not diff else [*lines, f"next: rivertwice {follows}"]),
    )


def advice_text(advice: Advice) -> str:
    """Return the advice for people. Pure."""
    from rivertwice.core import to_iso

    head = (
        f"{advice.pipeline}: {advice.records} records of {advice.batches} batches, {advice.pairs} pairs of record and window, "
        f"event times from {to_iso(advice.read.start)} to before {to_iso(advice.read.end)}"
    )
    rows = [
        (
            f"{_advice_text(outcome.delay)}{' (present)' if outcome.present else ''}",
            outcome.dropped,
            f"{outcome.dropped / advice.pairs:.3%}",
            outcome.windows,
            _measured(outcome.event_wait_p50),
            _measured(outcome.event_wait_max),
            _measured(outcome.clock_wait_p50),
            outcome.most_state,
        )
        for outcome in advice.outcomes
    ]
    headers = ("delay", "dropped", "share", "windows", "event time waits: p50", "max", "clock: p50", "state at most")
    lines = [head, as_table(headers, rows)]
    partitions = sorted({partition for outcome in advice.outcomes for partition in outcome.by_partition})
    if len(partitions) > 1:
        table = [
            (_advice_text(outcome.delay), *(outcome.by_partition.get(partition, 0) for partition in partitions))
            for outcome in advice.outcomes
        ]
        lines += [as_table(("delay", *(f"partition {partition}" for partition in partitions)), table)]
    if advice.values:
        delays = [_advice_text(outcome.delay) for outcome in advice.outcomes]
        table = [(value.value, value.pairs, *value.dropped) for value in advice.values]
        lines += [as_table((str(advice.column), "pairs", *map(str, delays)), table)]
    lines += [
        f"to drop {'none' if suggestion.share == 0 else f'at most {suggestion.share:.1%}'}: watermark: {_advice_text(suggestion.rounded)}"
        f"{f' (drops at most {suggestion.dropped})' if suggestion.dropped else ''}"
        for suggestion in advice.suggestions
    ]
    if advice.kept is not None:
        present = next(outcome for outcome in advice.outcomes if outcome.present)
        lines.append(
            f"the stream itself kept {advice.kept} late pairs in these batches; the rule gives {present.dropped}"
        )
    most = min(advice.suggestions, key=lambda suggestion: suggestion.share or 1)
    lines.append(f"to apply one: rivertwice advise {advice.pipeline} --delay '{_advice_text(most.rounded)}' --write")
    return "\n".join(lines)


def _measured(value: timedelta | None) -> str | None:
    """Return a time that was measured as hours, minutes and seconds; below ten seconds with tenths. Pure."""
    if value is None:
        return None
    if value < timedelta(0):
        return f"-{_measured(-value)}"
    seconds = value.total_seconds()
    return f"{seconds:.1f} s" if seconds < 10 else str(timedelta(seconds=round(seconds)))


def _advice_text(value: timedelta | None) -> str | None:
    from rivertwice.definition import format_duration

    if value is None:
        return None
    return f"-{format_duration(-value)}" if value < timedelta(0) else format_duration(value)


# try: how the rows of a changed definition differ from those of the running one, over a part of the log.


@click.command(
    "try",
    epilog=example(
        "rivertwice try flight_delays",
        'rivertwice try flight_delays --last "1 day" --limit 50',
        "rivertwice try flight_delays --from 2013-06-30T04:00:00Z --to 2013-07-01T04:00:00Z --fail-on-difference",
        'rivertwice try flight_delays --watermark "2 hours"',
    ),
)
@name_argument()
@click.option(
    "--last", type=DurationType(), help="So much event time before the end of the newest closed window: 2 hours."
)
@range_options
@click.option(
    "--against",
    type=click.Choice(["log", "served"]),
    default="log",
    show_default=True,
    help="Compare with the rows that the running definition gives over the same records, or with what is served now.",
)
@click.option(
    "--watermark",
    type=DurationType(),
    metavar="DELAY",
    help="Compare the rows that the stream emits with those by this watermark delay; no file is edited.",
)
@click.option("--limit", type=click.IntRange(0, 1000), default=20, show_default=True, help="Rows shown at most.")
@click.option(
    "--fail-on-difference", is_flag=True, help="Exit 3 if a row or a column differs, or none could be compared."
)
@on_engine()
@pass_frame
def try_(
    frame: Frame,
    name: str,
    last: timedelta | None,
    start: datetime | None,
    end: datetime | None,
    against: str,
    watermark: timedelta | None,
    limit: int,
    fail_on_difference: bool,
) -> None:
    """Show which rows a changed definition would change.

    The definition of NAME, as it is in the project, is run over a part of the log. The definition that the stream runs and the changed one are run in batch over the same records: whole closed windows that
    Kafka or the archive still holds. The rows are compared by window and key, and the columns first. It writes nothing and does
    not disturb a running stream. Differences are not a failure: the exit code is 0 unless --fail-on-difference is given. To
    apply the change, run `rivertwice upgrade NAME`.

    With --watermark the definition in the project is not looked at. The rows that the running definition emits over the batches that
    the stream ran are compared with those that it would emit by that delay, for the windows that both close.
    """
    from rivertwice.engine import spark_on_demand
    from rivertwice.versions import LAST, TrialRequest, try_definition

    asked = range_of(start, end)
    if asked is not None and last is not None:
        message = "--last is given with --from and --to, but each of them says which event time; leave one of them out"
        raise RequestError(message)
    if watermark is not None and against != "log":
        message = "--watermark compares what the stream emits, not what is served; leave --against out"
        raise RequestError(message)
    request = TrialRequest(frame.known_pipeline(name), asked, last or LAST, against, limit, watermark)
    with spark_on_demand(frame.settings, f"rivertwice-try-{name}", quick=True, remote=True) as spark:
        trial = try_definition(frame.settings, request, spark, frame.progress)
    frame.emit({**to_plain(trial), "differs": trial.differs}, lambda: trial_text(trial))
    if fail_on_difference and trial.differs:
        raise SystemExit(DEFECT)


def trial_text(trial: Trial) -> str:
    """Return a trial for people: which definitions, columns that differ, counts, examples. Pure."""
    if trial.stretch is None or trial.schema is None or trial.rows is None:
        return trial.reason
    stretch, schema, rows = trial.stretch, trial.schema, trial.rows
    old_side = (
        "served" if trial.against == "served" else f"bundle {trial.old.bundle[:12]} (timeline {trial.old.timeline})"
    )
    new_side = f"bundle {trial.new.bundle[:12]} (project); changed: {', '.join(trial.changes)}"
    if trial.watermark is not None:
        new_side = f"the same with the watermark delay {_advice_text(trial.watermark)}: what the stream would emit"
    lines = [
        f"old      {old_side}",
        f"new      {new_side}",
        f"stretch  [{to_plain(stretch.start)}, {to_plain(stretch.end)}): {stretch.windows} windows, {stretch.records} records read",
        *(f"left out {part}" for part in stretch.left_out),
        *schema_lines(schema),
    ]
    if trial.reason:
        return "\n".join([*lines, f"rows     {rows.old_rows} old, {rows.new_rows} new; not compared: {trial.reason}"])
    lines.append(f"rows     {_counts(rows)}; {rows.windows_differing} of {rows.windows} windows with rows differ")
    if rows.columns:
        table = [(column.name, column.rows, column.largest) for column in rows.columns]
        lines.append(as_table(("column", "rows", "largest difference"), table))
    return "\n".join([*lines, *examples_text(rows)])


def schema_lines(schema: SchemaChange) -> list[str]:
    """Return a line for each column that differs. Pure."""
    return [
        *(f"column   {column} {kind} is added" for column, kind in schema.added.items()),
        *(f"column   {column} {kind} is gone" for column, kind in schema.gone.items()),
        *(f"column   {column} was {change.old}, is {change.new}" for column, change in schema.retyped.items()),
    ]


def examples_text(rows: Comparison) -> list[str]:
    """Return a table of the rows that differ, and how many there are besides; nothing if none does. Pure."""
    if not rows.examples:
        return []
    shown = [_shown(each) for each in rows.examples]
    table = as_table(("window", "key", "row", "old → new"), shown)
    more = [f"{rows.differing - len(shown)} more rows differ; --limit shows more"]
    return [table, *more] if rows.differing > len(shown) else [table]


def _counts(rows: Comparison) -> str:
    text = f"{rows.equal} equal, {rows.changed} changed, {rows.only_new} only new, {rows.only_old} only old"
    return f"{text}, {rows.repeated} with several rows of one key (not compared)" if rows.repeated else text


def _shown(row: Example) -> tuple[Any, ...]:
    values = [_change(row.kind, name, each.old, each.new) for name, each in row.values.items()]
    window = f"[{to_plain(row.window_start)}, {to_plain(row.window_end)})"
    return window, ", ".join(f"{name}={_text(value)}" for name, value in row.key.items()), row.kind, ", ".join(values)


def _change(kind: str, name: str, old: Any, new: Any) -> str:
    if kind == "only new":
        return f"{name} {_text(new)}"
    return f"{name} {_text(old)}" if kind == "only old" else f"{name} {_text(old)} → {_text(new)}"


def _text(value: Any) -> str:
    plain = to_plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
