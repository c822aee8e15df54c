"""A real stream over real flights for tests: its own project, home and topic on the shared broker, run to the end of the log."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from homes.project import FLIGHTS, TO_RUN, edit_yaml, make_project
from lab.flights.plan import STORM
from lab.flights.replay import ReplayRequest, replay
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.definition.airflow_section import Schedules
from running.warm_spark import run_driver_warm

PIPELINE = "flight_delays"
BATCH = 12
"""Records of a batch, unless a test pins another number: of small batches many records are late, and a stream of hundreds of them works long
enough to be killed."""


@dataclass(frozen=True)
class StreamedRun:
    """A pipeline that has consumed its whole topic and drained.

    Attributes:
        settings: project and home of its own, on the shared broker.
        topic: the topic, filled by the replayer.
        records: records in the topic.
    """

    settings: Settings
    topic: str
    records: int
    pipeline: str = PIPELINE

    @property
    def home(self) -> PipelineHome:
        """The pipeline's home."""
        return self.settings.pipeline(self.pipeline)


def make_flights_project(
    folder: Path, *, bootstrap: str, topic: str, pins: Mapping[str, Any] | None = None
) -> Settings:
    """Make a project whose one pipeline is flight_delays on another topic, with `pins` over its stream settings.

    No DAG of it starts by itself: a test that runs over the minute of a schedule would see a run too many.
    """
    settings = make_project(folder, {PIPELINE: FLIGHTS}, links=TO_RUN, bootstrap=bootstrap)

    def change(document: dict[str, Any]) -> None:
        document["sources"]["flights"]["topic"] = topic
        document["stream"] |= {"max_offsets_per_trigger": BATCH, **(pins or {})}
        document["airflow"] = {"schedules": dict.fromkeys(Schedules.model_fields, "none")}

    edit_yaml(settings.definitions / PIPELINE, change)
    return settings


def settings_of(folder: Path, bootstrap: str) -> Settings:
    """Return the settings of the project that `make_flights_project` made in a folder."""
    return Settings(project=folder / "project", home=folder / "home", bootstrap=bootstrap, spark_master="local[2]")


def stream_days(
    folder: Path,
    *,
    bootstrap: str,
    topic: str,
    days: tuple[date, date] = STORM,
    poison_share: float = 0.0,
    pins: Mapping[str, Any] | None = None,
) -> StreamedRun:
    """Replay `days` into `topic` and stream all of it."""
    settings = make_flights_project(folder, bootstrap=bootstrap, topic=topic, pins=pins)
    report = replay(settings, ReplayRequest(topic=topic, days=days, poison_share=poison_share))
    run_driver_warm(settings, PIPELINE, folder / "driver.log")
    return StreamedRun(settings, topic, report.planned)


def copy_run(run: StreamedRun, folder: Path) -> StreamedRun:
    """Return a copy of a run's home on the same topic, to be damaged; checkpoints are left out."""
    settings = replace(run.settings, home=folder / "home")
    shutil.copytree(
        run.home.root, settings.pipeline(run.pipeline).root, ignore=shutil.ignore_patterns("checkpoint", "*.lock")
    )
    return replace(run, settings=settings)
