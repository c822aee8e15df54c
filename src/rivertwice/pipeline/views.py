"""One SQL text over named frames."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

# A temp view lives from its creation to the analysis of one statement; two threads of one session must not mix.
_VIEW = threading.Lock()


def run_views(spark: SparkSession, sql: str, views: Mapping[str, DataFrame]) -> DataFrame:
    """Return what `sql` makes of `views`, each seen under its name and under no other statement."""
    with _VIEW:
        for view, rows in views.items():
            rows.createOrReplaceTempView(view)
        try:
            return spark.sql(sql)
        finally:
            for view in views:
                spark.catalog.dropTempView(view)
