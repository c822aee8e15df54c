"""try: how the rows of a changed definition differ from those of the running one, over a part of the log."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from rivertwice.commands.advise import DurationType
from rivertwice.commands.frame import DEFECT, Frame, as_table, example, pass_frame, to_plain
from rivertwice.commands.options import INSTANT, name_argument, range_of, range_options, renamed_option
from rivertwice.commands.warm import on_engine
from rivertwice.errors import RequestError

if TYPE_CHECKING:
    from rivertwice.trial.model import Comparison, Example, SchemaChange, Trial


@click.command(
    "try",
    epilog=example(
        "rivertwice try flight_delays",
        'rivertwice try flight_delays --last "1 day" --limit 50',
        "rivertwice try flight_delays --from 2013-06-30T04:00:00Z --to 2013-07-01T04:00:00Z --fail-on-difference",
    ),
)
@name_argument()
@click.option(
    "--last", type=DurationType(), help="So much event time before the end of the newest closed window: 2 hours."
)
@range_options
@renamed_option("--start", "--from", dest="start", type=INSTANT)
@renamed_option("--end", "--to", dest="end", type=INSTANT)
@click.option(
    "--against",
    type=click.Choice(["log", "served"]),
    default="log",
    show_default=True,
    help="Compare with the rows that the running definition gives over the same records, or with what is served now.",
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
    limit: int,
    fail_on_difference: bool,
) -> None:
    """Show which rows a changed definition would change.

    The definition of NAME, as it is in the project, is run over a part of the log. The definition that the stream runs and the changed one are run in batch over the same records: whole closed windows that
    Kafka or the archive still holds. The rows are compared by window and key, and the columns first. Nothing is written, and a
    running stream does not notice. Differences are no failure: the exit code is 0 unless --fail-on-difference is given. To
    apply the change, run `rivertwice upgrade NAME`.
    """
    from rivertwice.pipeline.engine import spark_on_demand
    from rivertwice.trial.model import LAST, TrialRequest
    from rivertwice.trial.run import try_definition

    asked = range_of(start, end)
    if asked is not None and last is not None:
        message = "--last is given with --from and --to, but each of them says which event time; leave one of them out"
        raise RequestError(message)
    request = TrialRequest(frame.known_pipeline(name), asked, last or LAST, against, limit)
    with spark_on_demand(frame.settings, f"rivertwice-try-{name}", quick=True) as spark:
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
    lines = [
        f"old      {old_side}",
        f"new      bundle {trial.new.bundle[:12]} (project); changed: {', '.join(trial.changes)}",
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
