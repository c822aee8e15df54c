"""replay: example data for a log."""

from __future__ import annotations

from datetime import date

import click

from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.frame import Frame, FriendlyGroup, as_fields, example, pass_frame
from rivertwice.core.errors import RequestError
from rivertwice.core.homes import require_topic
from rivertwice.core.plain import to_plain


@click.group(cls=FriendlyGroup, epilog=example("rivertwice replay flights --from 2013-06-30 --to 2013-07-01"))
def replay() -> None:
    """Put example data into the log."""


@replay.command(
    epilog=example(
        "rivertwice replay flights --from 2013-06-30 --to 2013-07-01",
        "rivertwice replay flights --speed 3600 --poison 0.01",
        "rivertwice replay flights --story arrivals",
    )
)
@click.option(
    "--from", "first", metavar="DAY", help="First scheduled day in New York, as 2013-06-30; default: the year."
)
@click.option("--to", "last", metavar="DAY", help="Last scheduled day, included.")
@click.option(
    "--story",
    type=click.Choice(["flights", "departures", "arrivals", "movements", "planes", "airlines", "weather"]),
    default="flights",
    show_default=True,
    help="Which events of the flights, each kind in a topic of its own.",
)
@click.option("--topic", help="Created if absent; default: the story's name.")
@click.option("--partitions", type=click.IntRange(1), help="Default: 4, of tables 1.")
@click.option(
    "--speed",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Seconds of 2013 per second; 0: as fast as it goes.",
)
@click.option("--limit", type=click.IntRange(1), help="Stop after so many records.")
@click.option(
    "--poison", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="Share of bad records added."
)
@click.option("--seed", type=int, default=20130630, show_default=True, help="Of the poison.")
@changes_unasked("records of a topic", because="they are added")
@pass_frame
def flights(
    frame: Frame,
    first: str | None,
    last: str | None,
    story: str,
    topic: str | None,
    partitions: int | None,
    speed: float,
    limit: int | None,
    poison: float,
    seed: int,
) -> None:
    """Replay real flights of 2013 from New York.

    They come in the order in which they really departed. Other stories of them: departures and arrivals (two streams to join), movements (an aircraft's departures and arrivals),
    the tables planes, airlines (change events) and weather (an observation per airport and hour).

    Run again, it continues after the last record that Kafka acknowledged.
    """
    from lab.flights.legs import TABLE_PLANS
    from lab.flights.replay import ReplayRequest
    from lab.flights.replay import replay as run_replay

    name = require_topic(topic or story)
    days = parse_days(first, last)
    parts = partitions or (1 if story in TABLE_PLANS else 4)
    request = ReplayRequest(name, parts, days, speed, limit, poison, seed, story)
    report = to_plain(run_replay(frame.settings, request, progress=frame.progress))
    frame.emit(report, lambda: as_fields(report))


def parse_days(first: str | None, last: str | None) -> tuple[date, date] | None:
    """Return the first and the last day, both included, or None for the whole year.

    Raises:
        RequestError: only one is given, one is no day, or they are reversed.
    """
    if first is None and last is None:
        return None
    if first is None or last is None:
        message = (
            f"only {'--to' if first is None else '--from'} is given; give both days (both are included) or neither"
        )
        raise RequestError(message)
    days = _day(first), _day(last)
    if days[1] < days[0]:
        message = f"the last day {last} lies before the first {first}, so nothing would be replayed; swap them"
        raise RequestError(message)
    return days


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is no day; write it as 2013-06-30"
        raise RequestError(message) from None
