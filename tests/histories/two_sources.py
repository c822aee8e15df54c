"""A definition of two sources, and a transform for it that only tests have: both sources' rows, one below the other.

`lift` lets definitions have several sources whatever their windows; `union_stream` and `union_batch` are what the product's
own compilers are for one source.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import yaml
from pyspark.sql import DataFrame, SparkSession

from rivertwice.definition.definition import Definition, parse_files
from rivertwice.engine.relations import accepted_branches, run_sql
from rivertwice.engine.row_errors import NO_CHECKS

A, B = "topic-a", "topic-b"
NAME = "two"
SQL = """
SELECT window.start AS window_start, window.end AS window_end, k, count(*) AS n, sum(v) AS total
FROM a GROUP BY window(at, '10 seconds'), k
"""
_FIELDS = ["k", "at", "v"]


def lift(monkeypatch: Any) -> None:
    """Accept several sources in definitions for the length of a test."""
    monkeypatch.setattr("rivertwice.definition.model.find_sources_conflict", lambda _: None)


def source(topic: str, **changes: Any) -> dict[str, Any]:
    """Return one source as YAML holds it: keys k, values v, a watermark of 5 s."""
    return {
        "topic": topic,
        "partitions": 1,
        "schema": {"k": "string", "at": "timestamp", "v": "bigint"},
        "required": ["k", "v"],
        "event_time": "at",
        "watermark": "5 s",
        "max_future": "10000 days",
        **changes,
    }


def document(**changes: Any) -> dict[str, Any]:
    """Return `pipeline.yaml` of the definition; a source of None is left out."""
    sources = {"a": source(A), "b": source(B, watermark="20 s"), **changes.pop("sources", {})}
    return {
        "name": NAME,
        "description": "two sources",
        "sources": {view: one for view, one in sources.items() if one is not None},
        "window": {"size": "10 s"},
        "keys": ["k"],
        "on_error": "stop",  # what may throw is asked of the product's transform, which has one source
        "count_column": "n",
        "columns": {"n": {}, "total": {}},
        **changes,
    }


def files(schemas: Mapping[str, bytes] | None = None, **changes: Any) -> dict[str, bytes]:
    """Return the definition's files."""
    text = yaml.safe_dump(document(**changes), sort_keys=False)
    return {"pipeline.yaml": text.encode(), "transform.sql": SQL.encode(), **(schemas or {})}


def two_sources(**changes: Any) -> Definition:
    """Return the definition; `lift` must have been called."""
    return parse_files(files(**changes), NAME)


def union_stream(
    spark: SparkSession, definition: Definition, raw: DataFrame, *, observe: bool = True, only: None = None
) -> DataFrame:
    """Return the streaming result over both sources, each under its own watermark; no replay leaves rows out (`only`)."""
    assert only is None, "batches of several sources are replayed one by one"
    return _union(
        spark,
        definition,
        accepted_branches(definition, raw, dict.fromkeys(definition.streams, NO_CHECKS), observe=observe),
    )


def union_batch(spark: SparkSession, definition: Definition, rows: Mapping[str, DataFrame]) -> DataFrame:
    """Return the batch result over both sources' accepted rows."""
    return _union(spark, definition, rows)


def _union(spark: SparkSession, definition: Definition, rows: Mapping[str, DataFrame]) -> DataFrame:
    both = functools.reduce(DataFrame.unionByName, [each.select(*_FIELDS) for each in rows.values()])
    return run_sql(spark, definition, definition.transform_sql, both)
