"""advise: what another watermark delay would have dropped, and how long results would have waited for it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from rivertwice.commands.frame import Frame, as_table, example, pass_frame
from rivertwice.commands.options import name_argument
from rivertwice.commands.warm import on_engine

if TYPE_CHECKING:
    from rivertwice.advise.model import Advice


class DurationType(click.ParamType[timedelta]):
    """A duration as a definition writes it: `30 s`, `10 minutes`, `1 hour`."""

    name = "duration"

    def convert(self, value: str | timedelta, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Return the duration, or fail with the form to use."""
        from rivertwice.pipeline.durations import parse_duration

        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(
    epilog=example(
        "rivertwice advise flight_delays",
        'rivertwice advise flight_delays --delay "2 hours" --delay "3 hours" --by origin',
        'rivertwice advise flight_delays --last "7 days"',
    )
)
@name_argument()
@click.option("--delay", "delays", type=DurationType(), multiple=True, help="Judge this delay; may be given again.")
@click.option("--last", type=DurationType(), help="Only the newest batches: as far back as this much event time.")
@click.option("--by", "column", metavar="FIELD", help="Also name the values of a field of the record that lose most.")
@on_engine()
@pass_frame
def advise(frame: Frame, name: str, delays: tuple[timedelta, ...], last: timedelta | None, column: str | None) -> None:
    """Show what other watermark delays would have dropped.

    The log that NAME read is judged again. Each delay is judged by the exact late rule over the batches that the stream ran: how many pairs of record and window it
    would have dropped, how long the rows of a window would have waited, and how many rows the state would have held at most.
    Without --delay it judges parts and multiples of the present delay, and the smallest ones that drop at most 1 %, 0.1 %
    and none. Nothing is changed. To apply a delay, write it as the source's watermark and run `rivertwice upgrade NAME`.
    """
    from rivertwice.advise.measure import AdviceRequest
    from rivertwice.advise.measure import advise as measure
    from rivertwice.pipeline.engine import spark_on_demand
    from rivertwice.timeline.lineage import head_definition, path_ledger

    settings = frame.settings
    home = settings.pipeline(frame.known_pipeline(name))
    definition = head_definition(home)
    if definition is None:
        from rivertwice.errors import RequestError

        message = f"{name} has no timeline yet, so its log was not read; run `rivertwice start {name} --wait`"
        raise RequestError(message)
    with spark_on_demand(settings, f"rivertwice-advise-{name}") as spark:
        spark.expect(records=sum(row.read for row in path_ledger(home)))
        advice = measure(spark(), settings, definition, AdviceRequest(delays, last, column), frame.progress)
    frame.emit(advice, lambda: advice_text(advice))


def advice_text(advice: Advice) -> str:
    """Return the advice for people. Pure."""
    from rivertwice.instants import to_iso

    head = (
        f"{advice.pipeline}: {advice.records} records of {advice.batches} batches, {advice.pairs} pairs of record and window, "
        f"event times from {to_iso(advice.read.start)} to before {to_iso(advice.read.end)}"
    )
    rows = [
        (
            f"{_text(outcome.delay)}{' (present)' if outcome.present else ''}",
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
            (_text(outcome.delay), *(outcome.by_partition.get(partition, 0) for partition in partitions))
            for outcome in advice.outcomes
        ]
        lines += [as_table(("delay", *(f"partition {partition}" for partition in partitions)), table)]
    if advice.values:
        delays = [_text(outcome.delay) for outcome in advice.outcomes]
        table = [(value.value, value.pairs, *value.dropped) for value in advice.values]
        lines += [as_table((str(advice.column), "pairs", *map(str, delays)), table)]
    lines += [
        f"to drop {'none' if suggestion.share == 0 else f'at most {suggestion.share:.1%}'}: watermark: {_text(suggestion.delay)} "
        f"({suggestion.dropped} dropped; in steps of {_text(advice.step)})"
        for suggestion in advice.suggestions
    ]
    if advice.kept is not None:
        present = next(outcome for outcome in advice.outcomes if outcome.present)
        lines.append(
            f"the stream itself kept {advice.kept} late pairs in these batches; the rule gives {present.dropped}"
        )
    return "\n".join(lines)


def _measured(value: timedelta | None) -> str | None:
    """Return a time that was measured as hours, minutes and seconds; below ten seconds with tenths. Pure."""
    if value is None:
        return None
    if value < timedelta(0):
        return f"-{_measured(-value)}"
    seconds = value.total_seconds()
    return f"{seconds:.1f} s" if seconds < 10 else str(timedelta(seconds=round(seconds)))


def _text(value: timedelta | None) -> str | None:
    from rivertwice.pipeline.durations import format_duration

    if value is None:
        return None
    return f"-{format_duration(-value)}" if value < timedelta(0) else format_duration(value)
