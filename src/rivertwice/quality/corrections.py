"""Rows that a backfill would publish, judged by `expectations/PIPELINE/corrections.json` in its audit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.config import PipelineHome, Settings
from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.on_demand import Spark
from rivertwice.quality.judge import MOST_CELLS, JudgedRows, judge_rows, judge_table
from rivertwice.quality.model import CORRECTIONS, MOST_EXAMPLES, Judgement, continue_from
from rivertwice.quality.suite_files import load_checked
from rivertwice.quality.table import store_quality
from rivertwice.quality.windows import rows_in
from rivertwice.results.kinds import Kind
from rivertwice.timeline.serving import WITHDRAWN, withdrawn_rows

_KIND = Kind(CORRECTIONS, "a row that a backfill computed", lambda home: home.tables.corrections)


@dataclass(frozen=True)
class CorrectionsCheck:
    """What a suite says of a backfill's rows.

    Attributes:
        judgements: of the suite's expectations.
        path: of the suite.
        rows: how many rows were judged.
    """

    judgements: tuple[Judgement, ...]
    path: str
    rows: int

    @property
    def blocking(self) -> list[Judgement]:
        """Those for which the backfill must not be published."""
        return [each for each in self.judgements if each.blocks]

    @property
    def others(self) -> list[Judgement]:
        """Those that fail and do not keep it from being published."""
        return [each for each in self.judgements if each.fails and not each.blocks]

    def describe_rows(self) -> str:
        """Return some of the rows for which it must not be published, with window, key and value; empty without any."""
        rows = list(dict.fromkeys(text for each in self.blocking for text in each.example_texts()))
        return f"for instance {', '.join(rows[:MOST_EXAMPLES])}" if rows else ""


def judge_corrections(
    settings: Settings,
    home: PipelineHome,
    definition: Definition,
    backfill: str,
    rows: pa.Table,
    spark: Spark | None,
    now: datetime,
    *,
    accepted: str = "",
    most_cells: int = MOST_CELLS,
) -> CorrectionsCheck | None:
    """Judge a backfill's rows, and store what was found; None without a suite, or without rows.

    Args:
        settings: where the project is.
        home: of the pipeline.
        definition: that computed them.
        backfill: its id.
        rows: those of the table `corrections`.
        spark: gives a session for many rows; None: pandas judges however many there are.
        now: the present instant.
        accepted: why a person publishes it whatever is found; empty: nobody said so.
        most_cells: a larger frame is judged by Spark.

    Raises:
        SuiteError: something in the suite is wrong; nothing was judged.
    """
    suite = load_checked(settings, home.root.name, definition, CORRECTIONS)
    if suite is None:
        return None
    judged: JudgedRows | None
    if spark is not None and rows.num_rows * (len(definition.result_columns) + 1) > most_cells:
        scope = pc.field("_backfill") == backfill
        if WITHDRAWN in rows.schema.names:
            scope = scope & ~pc.coalesce(pc.field(WITHDRAWN), pc.scalar(False))
        chosen = rows_in(home.tables.corrections, home.root.name, _KIND, definition, scope=scope)
        judged = None if chosen is None else judge_rows(suite, definition, chosen, spark, most_cells=most_cells)
    else:
        judged = judge_table(suite, definition, rows.filter(pa.array(~withdrawn_rows(rows))))
    if judged is None:
        return None
    judgements = tuple(continue_from((), judged.judgements, (), backfill))
    store_quality(home, backfill, suite, judged, judgements, now, reason=accepted)
    return CorrectionsCheck(judgements, suite.path, judged.rows)
