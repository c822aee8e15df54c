"""case from-log: a test case of real records."""

from __future__ import annotations

from datetime import datetime

import click

from rivertwice.commands.asking import changes_unasked
from rivertwice.commands.frame import Frame, FriendlyGroup, example, pass_frame
from rivertwice.commands.options import INSTANT, name_argument
from rivertwice.commands.views import parse_key
from rivertwice.commands.warm import on_engine
from rivertwice.errors import RequestError


@click.group(cls=FriendlyGroup, epilog=example("rivertwice case from-log flight_delays --window 2013-06-30T16:00:00Z"))
def case() -> None:
    """Make test cases from records of the log.

    `rivertwice test` runs them.
    """


@case.command(
    "from-log",
    epilog=example(
        'rivertwice case from-log flight_delays --window 2013-06-30T16:00:00Z --key \'{"origin": "JFK"}\'',
        "rivertwice case from-log flight_delays --record flights/0@118 --record flights/2@97 --name two_late_flights",
    ),
)
@name_argument()
@click.option(
    "--window",
    type=INSTANT,
    metavar="INSTANT",
    help="Start of a window: its accepted records, and the first one that closes it.",
)
@click.option(
    "--key", "key_text", metavar="JSON", help="Only records of this key, as a JSON object with all key columns."
)
@click.option(
    "--record",
    "addresses",
    multiple=True,
    metavar="TOPIC/PARTITION@OFFSET",
    help="A record by its address; the topic may be left out if there is one.",
)
@click.option(
    "--name", "case_name", metavar="CASE", help="Name of the case; default: made of the window or the address."
)
@on_engine()
@changes_unasked("a file of a case", because="it is a new file")
@pass_frame
def from_log(
    frame: Frame,
    name: str,
    window: datetime | None,
    key_text: str | None,
    addresses: tuple[str, ...],
    case_name: str | None,
) -> None:
    """Cut records of NAME's log into a case.

    It expects what the definition in the project gives for them now. The file is written to `cases/` of the pipeline's folder. It holds real records, byte by byte, in the micro-batches in which
    the stream read them. `rivertwice test NAME` passes on it until the definition changes.
    """
    from rivertwice.instants import utc_now
    from rivertwice.pipeline.engine import FEW_RECORDS, spark_on_demand
    from rivertwice.trial.cut_log import CutRequest, cut_case

    pipeline = frame.known_pipeline(name)
    if (window is None) == (not addresses) or (addresses and key_text is not None):
        message = "give either --window, with or without --key, or one --record after the other: they say what is cut"
        raise RequestError(message)
    request = CutRequest(
        pipeline=pipeline,
        name=case_name,
        window=window,
        key=parse_key(key_text),
        records=addresses,
    )
    settings = frame.settings
    with spark_on_demand(
        settings.with_local_spark(), f"rivertwice-case-{name}", extra=FEW_RECORDS, quick=True
    ) as spark:
        cut = cut_case(settings, request, spark, utc_now(), frame.progress)
    frame.emit(
        cut,
        f"{cut.path}: {cut.records} records in {cut.batches} micro-batches; it expects {cut.batch_rows} rows of a batch and "
        f"{cut.stream_rows} of the stream; `rivertwice test {name}` runs it",
    )
