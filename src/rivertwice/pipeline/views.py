"""One SQL text over named frames, and the column that identifies their records."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.pipeline.fold_run import PARTITION_SHIFT
from rivertwice.pipeline.names import RECORD

# A temp view lives from its creation to the analysis of one statement; two threads of one session must not mix.
_VIEW = threading.Lock()


def run_views(spark: SparkSession, sql: str, views: Mapping[str, DataFrame]) -> DataFrame:
    """Return the result of `sql` over `views`, each under its name; other statements do not see them."""
    with _VIEW:
        for view, rows in views.items():
            rows.createOrReplaceTempView(view)
        try:
            return spark.sql(sql)
        finally:
            for view in views:
                spark.catalog.dropTempView(view)


def record_column(partition: Column, offset: Column) -> Column:
    """Return a record's place in its topic as one number, in the order of partition and offset."""
    return F.shiftleft(partition.cast("long"), PARTITION_SHIFT).bitwiseOR(offset).alias(RECORD)
