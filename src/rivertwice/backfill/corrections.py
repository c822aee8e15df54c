"""The corrections table: how a chunk's rows and its commit are written, and read back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.backfill.model import BackfillPlan
from rivertwice.config import PipelineHome
from rivertwice.pipeline.definition import Definition
from rivertwice.store import delta
from rivertwice.store.delta_counts import rows_by

FORMAT = 1
logger = logging.getLogger(__name__)
METADATA_KEY = "backfill"
PARTITION_BY = ("_day",)


@dataclass(frozen=True)
class ChunkRecord:
    """What a chunk's commit contains about itself.

    Attributes:
        chunk: index of the chunk.
        rows: result rows in the commit.
        records: window start in epoch milliseconds -> accepted records of that window, counted before the transform.
    """

    chunk: int
    rows: int
    records: Mapping[int, int]

    def to_json(self, backfill: str) -> dict[str, Any]:
        """Return the value of the commit's metadata."""
        records = {str(start): count for start, count in sorted(self.records.items())}
        return {"id": backfill, "chunk": self.chunk, "rows": self.rows, "records": records}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ChunkRecord:
        """Read the value of a commit's metadata."""
        records = {int(start): int(count) for start, count in value["records"].items()}
        return cls(int(value["chunk"]), int(value["rows"]), records)


def app_of(backfill: str) -> str:
    """Return the application id of a backfill's commits; their version is the chunk's index."""
    return f"backfill/{backfill}"


def stamp_rows(result: pa.Table, backfill: str, chunk: int, start_column: str) -> pa.Table:
    """Return result rows as `corrections` stores them."""
    count = result.num_rows
    stamps = {
        "_format": pa.array([FORMAT] * count, pa.int32()),
        "_backfill": pa.array([backfill] * count, pa.string()),
        "_chunk": pa.array([chunk] * count, pa.int32()),
        "_day": pc.strftime(result[start_column], format="%Y-%m-%d").cast(pa.string()),
    }
    columns = {**stamps, **{name: result[name] for name in result.schema.names}}
    return pa.table(columns)


def chunk_records(home: PipelineHome, backfill: str) -> list[ChunkRecord]:
    """Return the records of a backfill's commits, oldest first."""
    commits = delta.commits(home.tables.corrections, METADATA_KEY)
    return [ChunkRecord.from_json(value) for _, value in commits if value["id"] == backfill]


def declared_rows(home: PipelineHome, backfill: str) -> dict[int, int]:
    """Return chunk to the number of rows that its commit declares, for the commits that are kept."""
    return {record.chunk: record.rows for record in chunk_records(home, backfill)}


def held_rows(home: PipelineHome, backfill: str) -> dict[int, int]:
    """Return chunk to the number of its rows in the table."""
    counted = rows_by(home.tables.corrections, ("_backfill", "_chunk"))
    return {int(chunk): count for (name, chunk), count in counted.items() if name == backfill}


def missing_chunks(applied: int, declared: Mapping[int, int], held: Mapping[int, int]) -> list[int]:
    """Return which of the first `applied` chunks have neither a commit that is kept nor a row. Pure.

    A chunk without rows whose commit was dropped long ago is among them: computed again it has no rows either.
    """
    return [chunk for chunk in range(applied) if chunk not in declared and not held.get(chunk)]


def write_chunk(
    home: PipelineHome,
    plan: BackfillPlan,
    definition: Definition,
    result: pa.Table,
    record: ChunkRecord,
    *,
    again: bool = False,
    declared: bool = False,
) -> None:
    """Commit a chunk's rows.

    Args:
        home: of the pipeline.
        plan: the backfill's.
        definition: the one that computed it.
        result: the rows.
        record: what the commit contains about itself.
        again: the chunk, or a later one, was committed before.
        declared: an earlier commit of this chunk is kept, and only its rows are gone.
    """
    delta.append(
        home.tables.corrections,
        stamp_rows(result, plan.id, record.chunk, definition.window.start_column),
        transactions=None if again else {app_of(plan.id): record.chunk},
        metadata=None if declared else {METADATA_KEY: record.to_json(plan.id)},
        partition_by=PARTITION_BY,
        widen=plan.sessions is not None,
    )
    logger.info("backfill %s of %s: chunk %s committed", plan.id, plan.pipeline, record.chunk)
