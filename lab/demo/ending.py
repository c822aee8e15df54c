"""What the demo ends with, and the table that it prints of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rich.table import Table

from lab.demo.figures import Delay
from rivertwice.local.airflow import AirflowInfo
from rivertwice.timeline.verdicts import Verdict


@dataclass
class Ending:
    """What the demo ends with.

    Attributes:
        page: address of the row that was repaired, explained. worst: window and key of the row that lacked most flights.
    """

    airflow: AirflowInfo
    page: str = ""
    worst: dict[str, str] = field(default_factory=dict)
    late: int = 0
    batches: int = 0
    stream: Delay = field(default_factory=lambda: Delay(0, 0, 0))
    served: Delay = field(default_factory=lambda: Delay(0, 0, 0))
    verdicts: dict[str, Counter[str]] = field(default_factory=dict)


def ending_table(ending: Ending) -> Table:
    """Return the table the demo ends with."""
    table = Table(title="30 June and 1 July 2013, hours per airport")
    table.add_column("")
    table.add_column("the stream", justify="right")
    table.add_column("served after the backfill", justify="right")
    for verdict in Verdict.ALL:
        table.add_row(verdict, *(str(ending.verdicts[pair][verdict]) for pair in ("stream", "served")))
    table.add_section()
    table.add_row("flights dropped as late", str(ending.late), "0")
    table.add_row("flights in closed hours", str(ending.stream.flights), str(ending.served.flights))
    table.add_row("mean departure delay", f"{ending.stream.mean} min", f"{ending.served.mean} min")
    return table
