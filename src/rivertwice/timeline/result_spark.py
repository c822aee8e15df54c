"""Rows as a frame of Spark: its executors read the files, so that the driver holds none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql.pandas.types import from_arrow_schema

from rivertwice.storage import TableFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from rivertwice.timeline.result_rows import Rows


def spark_frame(session: SparkSession, rows: Rows) -> DataFrame:
    """Return rows as a frame; files that cannot have one of them, by the table's log, are not read."""
    names, where = rows.names, rows.where
    wanted = {fragment.path for fragment in rows.table.files.dataset().get_fragments(where)}
    files = [file for file in TableFiles(rows.table.handle).named(None) if file.path in wanted]

    def choose(piece: pa.Table) -> pa.Table:
        chosen = piece if where is None else ds.dataset(piece).to_table(filter=where)
        return chosen.select(names)

    schema = from_arrow_schema(rows.schema)
    return TableFiles(rows.table.handle).scan(session, schema, choose, files=files)
