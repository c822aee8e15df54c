"""Several results of Spark in one job: where there are few records, most of what a result costs is that it is asked for."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

_NAME = "_result"


def collect_together(frames: Mapping[str, DataFrame]) -> dict[str, pa.Table]:
    """Return the rows of each frame, computed by one job, under the names of the frames.

    A row of any frame becomes a row of one frame with a struct for each of them, of which one is filled.

    Args:
        frames: of one session; each has at least one column.
    """
    kinds = {name: _nullable(frame.schema) for name, frame in frames.items()}
    rows = [
        frame.select(
            F.lit(name).alias(_NAME),
            *(
                (F.struct("*") if other == name else F.lit(None)).cast(kind).alias(other)
                for other, kind in kinds.items()
            ),
        )
        for name, frame in frames.items()
    ]
    collected = functools.reduce(DataFrame.unionAll, rows).toArrow()
    return {
        name: pa.Table.from_struct_array(collected.filter(pc.equal(collected[_NAME], name))[name]) for name in frames
    }


def _nullable(schema: StructType) -> StructType:
    """Return a schema whose fields may be null: a struct that is not filled has none of its fields, and Arrow checks that."""
    return StructType([StructField(field.name, field.dataType) for field in schema.fields])
