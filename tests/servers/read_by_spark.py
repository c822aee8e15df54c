"""A program: read a table of a REST catalog with Spark and Iceberg's own runtime."""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

packages, uri, questions = sys.argv[1:]
(jar,) = Path(packages).glob("iceberg-spark-runtime-*.jar")
session = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", str(jar))
    .config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.lake.type", "rest")
    .config("spark.sql.catalog.lake.uri", uri)
    .getOrCreate()
)
found = [
    [
        list(row)
        for row in session.sql(f"SELECT unix_timestamp(window_start), k, n FROM lake.{table} WHERE {where}").collect()
    ]
    for table, where in json.loads(questions)
]
sys.stdout.write(json.dumps(found))
