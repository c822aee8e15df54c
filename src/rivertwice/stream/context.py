"""What stays the same over all batches of one driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rivertwice.config import PipelineHome
from rivertwice.pipeline.definition import Definition
from rivertwice.stream.lease import Lease
from rivertwice.stream.seal import app_of
from rivertwice.timeline.lineage import Timeline

FORMAT = 1
"""Format of the rows that a driver writes: results and dead letters."""


@dataclass(frozen=True)
class DriverContext:
    """What stays the same over all batches of one driver.

    Attributes:
        home: the pipeline's home.
        definition: the definition that runs.
        timeline: the timeline of the batches.
        bundle: id of the definition's bundle.
        checkpoint: folder of the timeline's live checkpoint.
        lease: the driver's right to write.
        now: the clock.
    """

    home: PipelineHome
    definition: Definition
    timeline: Timeline
    bundle: str
    checkpoint: Path
    lease: Lease
    now: Callable[[], datetime]

    @property
    def app(self) -> str:
        """Application id of the changelog's transactions."""
        return app_of(self.definition.name, self.timeline.timeline)
