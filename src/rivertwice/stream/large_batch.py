"""The result rows of a batch that are more than the driver may hold: executors write them to files, and one commit adds these.

Ordinary batches go through the driver, which is quicker: one job, and no file is written before the commit's own. Spark refuses
to collect a result above `spark.driver.maxResultSize`. The batch's observations cannot be trusted then, because a part of its tasks
ran, and would count twice. So the driver notes the batch and ends; the next one finds the note and lets executors write it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema

from rivertwice.config import PipelineHome
from rivertwice.pipeline.definition import Definition
from rivertwice.store.delta_scan import write_files
from rivertwice.store.files import replace_json
from rivertwice.store.new_files import NewFile
from rivertwice.stream.result_rows import changelog_rows, check_windows
from rivertwice.timeline.digest import add_digests, digest_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

FORMAT = 1
_REFUSED = ("spark.driver.maxResultSize",)


@dataclass(frozen=True)
class WrittenRows:
    """A batch's result rows in files that no commit has added yet.

    Attributes:
        files: of the changelog. count: rows in all. digest: of all rows (`timeline.digest`).
        schema: of the changelog, with `_day`.
    """

    files: Sequence[NewFile]
    count: int
    digest: str
    schema: pa.Schema


def is_refused(error: BaseException) -> bool:
    """Say whether Spark refused to collect a result because it is too large."""
    return any(mark in str(error) for mark in _REFUSED)


def note_large(home: PipelineHome, timeline: str, batch: int) -> None:
    """Remember that executors must write a batch; the note holds for this batch and all later ones of the timeline."""
    replace_json(_note(home), {"format": FORMAT, "timeline": timeline, "batch": batch})


def is_noted(home: PipelineHome, timeline: str, batch: int) -> bool:
    """Say whether executors must write a batch. A note that cannot be read is none: the batch is tried and noted again."""
    try:
        value = json.loads(_note(home).read_text())
        return bool(value["format"] == FORMAT and value["timeline"] == timeline and batch == value["batch"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _note(home: PipelineHome) -> Path:
    return home.root / "large-batch.json"


def write_rows(frame: DataFrame, home: PipelineHome, timeline: str, batch: int, definition: Definition) -> WrittenRows:
    """Let executors write a batch's result rows; they mean what `changelog_rows` of the collected ones would.

    Args:
        frame: the batch's result.
        home: of the pipeline.
        timeline: that the batch belongs to.
        batch: its number.
        definition: whose windows the rows have.
    """
    names = frame.columns
    plain = to_arrow_schema(frame.schema, timezone="UTC")
    start = definition.window.start_column
    schema = changelog_rows(plain.empty_table(), timeline, batch, start).schema

    def stamped(rows: pa.Table) -> pa.Table:
        result = rows.select(names).cast(plain)
        check_windows(result, definition)
        return changelog_rows(result, timeline, batch, start)

    files = write_files(
        frame,
        home.tables.changelog,
        schema,
        stamped,
        partition_by="_day",
        note=lambda rows: digest_rows(rows, names),
    )
    count = sum(file.rows for file in files)
    return WrittenRows(files, count, add_digests(file.note for file in files), schema)
