"""The rows of both sides of a trial as frames of Spark: read and run by the batch path of a backfill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql.types import StructType

from rivertwice.backfill.compute import rows_by_view, starting_in, windows_frame
from rivertwice.backfill.session_compute import sessions_frame
from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import RequestError
from rivertwice.pipeline.compile import result_schema
from rivertwice.store.delta import open_table
from rivertwice.store.spark_files import read_files
from rivertwice.trial.model import SERVED, Side

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def side_frames(
    session: SparkSession, settings: Settings, home: PipelineHome, sides: Sequence[Side], *, alike: bool, against: str
) -> Iterator[tuple[list[DataFrame], int]]:
    """Give the rows of both sides, and how many records are read for them: once if both take the same ones as the same rows."""
    old, new = sides
    new_rows = _rows(session, settings, new)
    if against == SERVED:
        yield [_served(session, settings, home, old), _result(session, new, new_rows)], _records(new)
        return
    is_shared = alike and _same_offsets(old, new)
    if not is_shared:
        old_rows = _rows(session, settings, old)
        yield [_result(session, old, old_rows), _result(session, new, new_rows)], _records(old) + _records(new)
        return
    kept = {view: rows.persist(StorageLevel.MEMORY_AND_DISK) for view, rows in new_rows.items()}
    try:
        yield [_result(session, old, kept), _result(session, new, kept)], _records(new)
    finally:
        for rows in kept.values():
            rows.unpersist()


def _same_offsets(old: Side, new: Side) -> bool:
    return old.plan is not None and new.plan is not None and old.plan.offsets == new.plan.offsets


def _records(side: Side) -> int:
    return 0 if side.plan is None else side.plan.records


def _rows(session: SparkSession, settings: Settings, side: Side) -> dict[str, DataFrame]:
    if side.plan is None:
        return {}
    return rows_by_view(session, settings, side.plan, side.definition, side.plan.offsets)


def _result(session: SparkSession, side: Side, rows: Mapping[str, DataFrame]) -> DataFrame:
    """Return the rows of a side's windows or sessions, not computed yet."""
    if side.plan is None:
        return session.createDataFrame([], result_schema(session, side.definition))
    if side.plan.sessions is None:
        return windows_frame(session, side.definition, side.plan, rows)
    (source_rows,) = rows.values()
    (chunk,) = side.plan.chunks
    return sessions_frame(session, side.definition, side.plan, chunk, source_rows)[0]


def _served(session: SparkSession, settings: Settings, home: PipelineHome, side: Side) -> DataFrame:
    """Return the served rows of a side's windows.

    Raises:
        RequestError: nothing is served yet.
    """
    table = open_table(home.tables.served)
    if table is None or side.plan is None:
        message = (
            f"nothing of {side.definition.name} is served yet; leave --against served out, which compares with the rows that the running "
            "definition gives"
        )
        raise RequestError(message)
    schema = StructType(list(result_schema(session, side.definition).fields))
    rows = read_files(session, home.tables.served, table, schema, settings.home / "cache")
    return starting_in(rows, side.definition, side.plan.ranges)
