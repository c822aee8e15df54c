"""What one batch writes: its context, and result rows as the changelog takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core import LedgerError, PipelineHome
from rivertwice.definition import Definition
from rivertwice.stream.lease import Lease
from rivertwice.stream.seal import stream_app
from rivertwice.timeline import Timeline

# What stays the same over all batches of one driver.

FORMAT = 1
"""Format of the rows that a driver writes: results and dead letters."""


@dataclass(frozen=True)
class DriverContext:
    """What stays the same over all batches of one driver.

    Attributes:
        bundle: id of the definition's bundle.
        checkpoint: folder of the timeline's live checkpoint.
        lease: the driver's right to write.
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
        return stream_app(self.definition.name, self.timeline.timeline)


def changelog_rows(rows: pa.Table, timeline: str, batch: int, start_column: str = "window_start") -> pa.Table:
    """Return result rows stamped for the changelog: _format, _timeline, _batch, _day, then the result columns."""
    count = rows.num_rows
    stamps = {
        "_format": pa.repeat(pa.scalar(FORMAT, pa.int32()), count),
        "_timeline": pa.repeat(timeline, count),
        "_batch": pa.repeat(batch, count),
        "_day": rows.column(start_column).cast(pa.date32()).cast(pa.string()),
    }
    arrays = [*stamps.values(), *(rows.column(name) for name in rows.column_names)]
    fields = [pa.field(name, values.type) for name, values in stamps.items()]
    fields += [pa.field(field.name, field.type) for field in rows.schema]
    return pa.table(arrays, schema=pa.schema(fields))


def check_windows(rows: pa.Table, definition: Definition) -> None:
    """Raise LedgerError if a result row's window is not the definition's."""
    window = definition.window
    size_us = window.length // timedelta(microseconds=1)
    start = rows.column(window.start_column).cast(pa.int64())
    end = rows.column(window.end_column).cast(pa.int64())
    differs = pc.not_equal if window.kind.is_aligned else pc.less
    wrong = pc.sum(differs(pc.subtract(end, start), size_us).cast(pa.int64())).as_py() or 0
    if wrong:
        message = (
            f"{wrong} result rows of {definition.name} have windows that are not {window.text}, as the definition says; "
            "nothing was committed; make pipeline.yaml and transform.sql agree"
        )
        raise LedgerError(message)
