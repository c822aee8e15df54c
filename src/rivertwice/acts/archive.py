"""Archive: records that the archive lacks are copied from Kafka, each offset once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from rivertwice.acts.act import CARE, Act, ActName, Plan, Request, World
from rivertwice.acts.forms import NOT_IN_FORMS

if TYPE_CHECKING:
    from rivertwice.log import ArchiveReport


class ArchiveRequest(Request):
    """A request to copy what the archive lacks of a pipeline's topics."""

    accept_hole: bool = Field(
        False,
        description="Continue after records that Kafka deleted before they were archived, or exchanged after that.",
        json_schema_extra={NOT_IN_FORMS: True},
    )


def _plan(world: World, request: ArchiveRequest) -> Plan:
    from rivertwice.definition import load_definition

    topics = load_definition(world.settings.definition_folder(request.pipeline)).topics
    return Plan({"topics": topics}, [("topics", ", ".join(topics))])


def _apply(world: World, request: ArchiveRequest) -> dict[str, ArchiveReport]:
    """Copy the new records; return the report of each topic."""
    from rivertwice.definition import load_definition
    from rivertwice.engine import spark_on_demand
    from rivertwice.log import extend_archive, require_broker

    settings, name = world.settings, request.pipeline
    require_broker(settings)  # before Spark is started for nothing
    definition = load_definition(settings.definition_folder(name))
    with spark_on_demand(settings, f"rivertwice-archive-{name}", quick=True, remote=True) as spark:
        return {
            topic: extend_archive(spark(), settings, topic, progress=world.progress, accept_hole=request.accept_hole)
            for topic in definition.topics
        }


ARCHIVE = Act(
    ActName.ARCHIVE,
    "Archive now",
    "What is new in the log is copied to the archive; nothing served changes.",
    ArchiveRequest,
    _plan,
    _apply,
    needs_spark=True,
    dag=CARE,
    whole=True,
    dry_run=False,
)
