"""The figures at the demo's end, computed from the tables alone. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from rivertwice.timeline.judgements import rows_of


@dataclass(frozen=True)
class Delay:
    """The mean departure delay that some rows show.

    Attributes:
        flights: flights in the rows; departed: those that left; minutes: the sum of their delays.
    """

    flights: int
    departed: int
    minutes: int

    @property
    def mean(self) -> Decimal:
        """Mean delay of the departed flights in minutes, to one decimal."""
        return (Decimal(self.minutes) / Decimal(max(self.departed, 1))).quantize(Decimal("0.1"))


def mean_delay(rows: pa.Table) -> Delay:
    """Return the mean delay over rows of flight_delays (columns flights, cancelled, delay_sum)."""
    plain = rows.select(["flights", "cancelled", "delay_sum"]).to_pylist()
    return Delay(
        flights=sum(row["flights"] for row in plain),
        departed=sum(row["flights"] - row["cancelled"] for row in plain),
        minutes=sum(int(row["delay_sum"] or 0) for row in plain),
    )


def count_verdicts(rows: Iterable[Mapping[str, Any]], pair: str) -> Counter[str]:
    """Return how many result rows (window and key) have each verdict, for one pair."""
    counts: Counter[str] = Counter()
    for row in rows:
        if row["pair"] == pair:
            counts[str(row["verdict"])] += rows_of(row)
    return counts


def late_addresses(causes: Iterable[Mapping[str, Any]], pair: str = "stream") -> set[tuple[str, int, int]]:
    """Return (topic, partition, offset) of every record named as late."""
    return {
        (row["topic"], row["partition"], row["offset"])
        for row in causes
        if row["cause"] == "late" and row["pair"] == pair
    }
