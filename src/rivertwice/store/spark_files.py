"""Rows of a Delta table's files as a frame of Spark, wherever the session's executors run.

In a local session Spark's own reader reads the files, those on S3 from copies on this disk. Executors on other hosts do not see this
disk: there they read files on S3 themselves, through our own client and the credentials of their environment.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from rivertwice.config import Place, is_s3
from rivertwice.store.delta_handle import Table
from rivertwice.store.delta_scan import File, live_files, scan
from rivertwice.store.fetched import local_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def read_by_executors(spark: SparkSession, place: Place) -> bool:
    """Say whether the files at a place cannot be handed to Spark by their path: they are on S3, and executors on other hosts."""
    return is_s3(place) and not str(spark.sparkContext.master).startswith("local")


def read_files(
    spark: SparkSession,
    place: Place,
    table: Table,
    schema: StructType,
    cache: Path,
    *,
    uris: Collection[str] | None = None,
) -> DataFrame:
    """Return the rows of a table's files.

    Args:
        spark: the session.
        place: the table's place; a folder is one that executors see at the same path.
        table: an open handle, whose version is read.
        schema: columns to return; one that a file lacks is null.
        cache: folder for copies of files on S3 in a local session.
        uris: full names of the files to read, of those that the version has; None: all.
    """
    if read_by_executors(spark, place):
        columns = to_arrow_schema(schema, timezone="UTC")
        return scan(
            spark,
            place,
            table,
            schema,
            lambda rows: _with_columns(rows, columns),
            files=files_of(table, uris),
            columns=columns.names,
        )
    files = local_files(sorted(table.file_uris() if uris is None else uris), cache)
    return spark.read.schema(schema).parquet(*files) if files else spark.createDataFrame([], schema)


def files_of(table: Table, uris: Collection[str] | None) -> list[File]:
    """Return a version's files of these full names; None: all. No two files of a table have one name."""
    names = None if uris is None else {uri.rpartition("/")[2] for uri in uris}
    return [file for file in live_files(table) if names is None or file.path.rpartition("/")[2] in names]


def _with_columns(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    for field in columns:
        if field.name not in rows.column_names:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows
