"""archive: a copy of the log's records that outlives Kafka's retention."""

from __future__ import annotations

import click

from rivertwice.commands.asking import changes_unasked
from rivertwice.commands.frame import Frame, as_fields, example, pass_frame, to_plain
from rivertwice.commands.options import name_argument
from rivertwice.commands.warm import on_engine


@click.command(epilog=example("rivertwice archive flight_delays"))
@name_argument()
@click.option(
    "--accept-hole",
    is_flag=True,
    help="Continue after records that Kafka deleted before they were archived, or exchanged after that.",
)
@on_engine()
@changes_unasked("the archive", because="records are added")
@pass_frame
def archive(frame: Frame, name: str, accept_hole: bool) -> None:
    """Copy the records that the archive lacks from Kafka.

    All topics of NAME are copied, by exact offset ranges; it is safe to repeat.
    """
    from rivertwice.log.archive import extend_archive
    from rivertwice.log.reach import require_broker
    from rivertwice.pipeline.definition import load_definition
    from rivertwice.pipeline.engine import spark_on_demand

    settings = frame.settings
    require_broker(settings)  # before Spark is started for nothing
    definition = load_definition(settings.definition_folder(frame.known_pipeline(name)))
    with spark_on_demand(settings, f"rivertwice-archive-{name}", quick=True) as spark:
        reports = [
            to_plain(extend_archive(spark(), settings, topic, progress=frame.progress, accept_hole=accept_hole))
            for topic in definition.topics
        ]
    value = reports[0] if len(reports) == 1 else dict(zip(definition.topics, reports, strict=True))
    frame.emit(value, lambda: "\n".join(as_fields(report) for report in reports))
