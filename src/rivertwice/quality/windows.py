"""Served rows of closed windows, judged by `expectations/PIPELINE/windows.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core import PipelineHome, Place, Settings, from_ms
from rivertwice.definition import Definition
from rivertwice.engine import Spark
from rivertwice.quality.judge import MOST_CELLS, JudgedRows, judge_rows, judge_table
from rivertwice.quality.model import CORRECTIONS, MOST_EXAMPLES, WINDOWS, Judgement, continue_from, still_true
from rivertwice.quality.suites import load_checked
from rivertwice.quality.table import read_newest, store_quality
from rivertwice.storage import Table, TableFiles
from rivertwice.timeline import BY_NAME, SERVED, WITHDRAWN, Kind, ResultTable, Rows, Status, withdrawn_rows

Range = tuple[int, int]
ALWAYS_MS = 253_402_300_799_999
"""Epoch ms of the last instant of the year 9999: a run that judges everything covers all windows between minus this and this."""


@dataclass(frozen=True)
class WindowsCheck:
    """What is true of the served rows after a run.

    Attributes:
        judged: the rows that it judged; None: there were none.
        judgements: of the suite's expectations, those that fail since earlier runs too.
        path: of the suite.
    """

    judged: JudgedRows | None
    judgements: tuple[Judgement, ...]
    path: str


def judge_windows(
    settings: Settings,
    home: PipelineHome,
    definition: Definition,
    spark: Spark,
    ranges: Sequence[Range] | None,
    run: str,
    now: datetime,
    *,
    most_cells: int = MOST_CELLS,
) -> WindowsCheck | None:
    """Judge the served rows of some windows, and store what was found; None without a suite.

    Args:
        home: of the pipeline, or of a version.
        spark: gives a session; called only for many rows.
        ranges: starts of the windows (epoch ms), half-open; None: all.
        run: name of the reconcile.
        most_cells: a larger frame is judged by Spark.

    Raises:
        SuiteError: something in the suite is wrong; nothing was judged.
    """
    suite = load_checked(settings, home.root.name, definition, WINDOWS)
    if suite is None:
        return None
    before = read_newest(home)
    known = () if before is None else before.judgements
    rows = rows_in(home.tables.served, home.root.name, BY_NAME[SERVED], definition, ranges)
    judged = None if rows is None else judge_rows(suite, definition, rows, spark, most_cells=most_cells)
    if judged is None:
        return WindowsCheck(None, tuple(still_true(known, suite.ids)), suite.path)
    covered = [(-ALWAYS_MS, ALWAYS_MS)] if ranges is None else ranges
    judgements = continue_from(known, judged.judgements, covered, run)
    store_quality(home, run, suite, judged, judgements, now)
    return WindowsCheck(judged, tuple(judgements), suite.path)


def rows_in(
    place: Place,
    version: str,
    kind: Kind,
    definition: Definition,
    ranges: Sequence[Range] | None = None,
    scope: pc.Expression | None = None,
) -> Rows | None:
    """Return rows of a table by the starts of their windows; nothing is read yet. None if the table does not exist.

    Args:
        ranges: starts of windows (epoch ms), half-open; None: all.
        scope: a further condition.
    """
    handle = Table(place).open()
    if handle is None:
        return None
    files = TableFiles(handle)
    start = definition.window.start_column
    if ranges is not None:
        type_ = files.schema.field(start).type
        parts = [
            (pc.field(start) >= pa.scalar(from_ms(low), type_)) & (pc.field(start) < pa.scalar(from_ms(high), type_))
            for low, high in ranges
        ]
        inside = reduce(or_, parts, pc.scalar(False))
        scope = inside if scope is None else scope & inside
    status = Status(kind.name, version, handle.version)
    return Rows(
        ResultTable(version, kind, handle, files, start, tuple(definition.row_keys), status, scope),
        columns=tuple(definition.result_columns),
    )


# Rows that a backfill would publish, judged by `expectations/PIPELINE/corrections.json` in its audit.

_KIND = Kind(CORRECTIONS, "a row that a backfill computed", lambda home: home.tables.corrections)


@dataclass(frozen=True)
class CorrectionsCheck:
    """What a suite says of a backfill's rows.

    Attributes:
        path: of the suite.
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
        definition: that computed them.
        rows: those of the table `corrections`.
        spark: gives a session for many rows; None: pandas judges however many there are.
        accepted: why a person publishes it whatever is found; empty: not accepted.
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
