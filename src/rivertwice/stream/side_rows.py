"""Everything that a micro-batch writes beside its result, in one object: versions of tables, dead letters, late rows."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rivertwice.core import Settings
from rivertwice.log import Parts
from rivertwice.stream.dead import dead_table, write_dead_letters
from rivertwice.stream.late import write_late_rows
from rivertwice.stream.result_rows import DriverContext
from rivertwice.stream.versions import write_versions
from rivertwice.timeline import BatchCounts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SideRows:
    """Writes a batch's side rows, each kind once, however often the batch is tried.

    Every method raises RangeMismatchError if an earlier attempt at the batch left rows of another range.
    """

    spark: SparkSession
    settings: Settings
    context: DriverContext

    def write_versions(self, batch: int, ranges: Parts) -> Mapping[str, BatchCounts]:
        """Write the versions that a batch read from table topics; return its counts by topic."""
        return write_versions(self.spark, self.settings, self.context, batch, ranges)

    def write_dead(self, batch: int, ranges: Parts, counts: Mapping[str, int]) -> None:
        """Write a batch's dead letters, `counts` by topic; without any, only the rows of an earlier attempt are checked."""
        if any(counts.values()):
            written = write_dead_letters(self.spark, self.settings, self.context, batch, ranges, counts)
            _log.info("batch %s: %s dead letters", batch, written)
        else:
            dead_table(self.context).check(batch, ranges)

    def write_late(self, batch: int, ranges: Parts, late_ms: int, topics: Collection[str]) -> int:
        """Write the late rows of a batch, of topics that may have any; return how many it has.

        Args:
            late_ms: the watermark by which they are late (epoch ms).
            topics: see `late.select_suspects`; if there are none, only the rows of an earlier attempt are checked.
        """
        late = write_late_rows(self.spark, self.settings, self.context, batch, ranges, late_ms, topics)
        _log.info("batch %s: %s late rows", batch, late)
        return late
