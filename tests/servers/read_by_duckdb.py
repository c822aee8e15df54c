"""A program: read a table of a REST catalog with DuckDB and its Iceberg extension."""

import json
import sys
from pathlib import Path

import duckdb

packages, uri, questions = sys.argv[1:]
connection = duckdb.connect()
for name in ("avro", "httpfs", "iceberg"):
    (file,) = Path(packages).glob(f"duckdb_extension_{name}/extensions/*/{name}.duckdb_extension")
    connection.execute(f"LOAD '{file}'")
connection.execute(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{uri}', AUTHORIZATION_TYPE 'none')")
found = [
    connection.execute(f"SELECT epoch(window_start)::BIGINT, k, n FROM lake.{table} WHERE {where}").fetchall()
    for table, where in json.loads(questions)
]
sys.stdout.write(json.dumps(found))
