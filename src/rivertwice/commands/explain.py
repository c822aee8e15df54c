"""explain: one number, with who made it, what it is made of, why it changed and what to do next."""

from __future__ import annotations

from datetime import datetime

import click

from rivertwice.commands.frame import Frame, example, pass_frame
from rivertwice.commands.options import INSTANT, name_argument
from rivertwice.commands.warm import on_engine


@click.command(
    epilog=example(
        "rivertwice explain flight_delays 2013-06-30T16:00:00Z JFK",
        'rivertwice explain flight_delays 2013-06-30T16:00:00Z \'{"origin": "JFK"}\' --with-truth',
    )
)
@name_argument()
@click.argument("window", type=INSTANT, metavar="WINDOW")
@click.argument("key", required=False)
@click.option("--with-truth", is_flag=True, help="Compute the truth of the row from the log too, by Spark.")
@on_engine(lambda values: values["with_truth"])
@pass_frame
def explain(frame: Frame, name: str, window: datetime, key: str | None, with_truth: bool) -> None:
    """Explain one number of NAME.

    WINDOW is the start of its window. KEY is a JSON object with the key columns, or the value alone if there is one; none if rows have no key. It shows the row as
    it is served and as the stream emitted it, who made it, from which offsets, what came late or was refused, how it changed, the newest verdict, and the command that
    cures what is wrong. It reads the tables of that window alone, and changes nothing.
    """
    from rivertwice.explain.run import explain as explain_row
    from rivertwice.explain.text import describe, to_json
    from rivertwice.instants import utc_now

    pipeline = frame.known_pipeline(name)
    if not with_truth:
        explanation = explain_row(frame.settings, pipeline, window, key, now=utc_now())
    else:
        from rivertwice.pipeline.engine import FEW_RECORDS, spark_on_demand

        settings = frame.settings.with_local_spark()
        with spark_on_demand(settings, f"rivertwice-explain-{name}", extra=FEW_RECORDS, quick=True) as spark:
            explanation = explain_row(settings, pipeline, window, key, now=utc_now(), spark=spark)
    frame.emit(to_json(explanation), lambda: describe(explanation))
