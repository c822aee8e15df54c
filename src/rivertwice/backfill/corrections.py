"""The corrections table: how a chunk's rows and its commit are written, and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.config import PipelineHome
from rivertwice.store import delta

FORMAT = 1
METADATA_KEY = "backfill"
PARTITION_BY = ("_day",)


@dataclass(frozen=True)
class ChunkRecord:
    """What a chunk's commit says of itself.

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
    """Return what the commits of a backfill say, oldest first."""
    found = delta.commits(home.tables.corrections, METADATA_KEY)
    return [ChunkRecord.from_json(value) for _, value in found if value["id"] == backfill]
