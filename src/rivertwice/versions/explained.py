"""What is known of rows that differ between two versions and that nobody declared, and what their cause is sought in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from rivertwice.config import PipelineHome, Settings
from rivertwice.instants import from_ms
from rivertwice.pipeline.bundle import Bundle
from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.fingerprint import compare_fingerprints
from rivertwice.progress import Progress
from rivertwice.trial.compare import differs
from rivertwice.trial.model import CHANGED, ONLY_NEW, ONLY_OLD, REPEATED, Expected
from rivertwice.trial.run import Pair
from rivertwice.versions.model import LeftOut

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_ROWS = 100_000
"""Windows, or sessions, with a difference that is not declared; of more, none is computed, and all of their rows have no cause."""


@dataclass(frozen=True)
class Unexplained:
    """Rows that differ, and what is needed to look for their cause.

    Attributes:
        home: of the version that serves: its batches say where a window's records are.
        bundles: of both versions, the new one last.
        judged: what both serve, by `judge_rows`.
        expected: differences that are meant.
        differing: rows that differ and are not declared.
        progress: is passed one line per fact.
    """

    spark: SparkSession
    settings: Settings
    home: PipelineHome
    bundles: tuple[Bundle, Bundle]
    judged: DataFrame
    expected: Sequence[Expected]
    differing: int
    progress: Progress

    @property
    def definitions(self) -> tuple[Definition, Definition]:
        """Both definitions, the new one last."""
        return self.bundles[0].definition, self.bundles[1].definition

    @property
    def pair(self) -> Pair:
        """Both definitions, and what differs between them."""
        return Pair(
            *self.bundles, tuple(compare_fingerprints(self.bundles[0].fingerprint, self.bundles[1].fingerprint))
        )

    @property
    def rows(self) -> DataFrame:
        """The rows that differ."""
        return self.judged.where(differs())

    def without(self, rows: DataFrame, why: str) -> LeftOut | None:
        """Return rows that cannot be compared as windows that are left out; None if there are none."""
        start = F.unix_millis("_start")
        (row,) = rows.agg(F.count_distinct("_start"), F.min(start), F.max(start)).collect()
        return LeftOut(from_ms(row[1]), from_ms(row[2] + 1), row[0], why) if row[0] else None


@dataclass(frozen=True)
class Explained:
    """What became of the rows that differ.

    Attributes:
        late: differ by late records alone.
        left_out: windows that cannot be compared.
        changed, only_new, only_old, repeated: rows without a cause.
        rest: those rows, as they were judged; None: there is none.
    """

    late: int
    left_out: tuple[LeftOut, ...]
    changed: int = 0
    only_new: int = 0
    only_old: int = 0
    repeated: int = 0
    rest: DataFrame | None = None


def rest_of(rest: DataFrame, differing: int, left_out: Sequence[LeftOut]) -> Explained:
    """Return what remains without a cause.

    Args:
        rest: rows for which no cause was found.
        differing: rows for which one was sought, without those that are left out; those that are not in `rest` differ by late
            records alone.
        left_out: windows that cannot be compared.
    """
    kinds = {row["_kind"]: row["count"] for row in rest.groupBy("_kind").count().collect()}
    return Explained(
        late=max(0, differing - sum(kinds.values())),
        left_out=tuple(left_out),
        changed=kinds.get(CHANGED, 0),
        only_new=kinds.get(ONLY_NEW, 0),
        only_old=kinds.get(ONLY_OLD, 0),
        repeated=kinds.get(REPEATED, 0),
        rest=rest if kinds else None,
    )
