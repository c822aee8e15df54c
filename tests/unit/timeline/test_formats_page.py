"""docs/formats.md names exactly the columns that the code writes."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from homes.backfill import emitted, result
from rivertwice.backfill.store import stamp_rows
from rivertwice.log import archive_table
from rivertwice.reconcile import results
from rivertwice.timeline import ledger, sequence
from rivertwice.timeline.serving import select_served

PAGE = Path(__file__).resolve().parents[3] / "docs" / "formats.md"
STREAM = emitted("t1", 0, (0, "a", 1))
SERVED = select_served(STREAM, None, [], semantics={"s"}, closed_ms=9_000_000)


def named(heading, header=""):
    """Return the columns in the first cells of a section's table (of the one whose header cell is `header`)."""
    section = re.search(rf"^### {heading}$(.*?)(?=^##|\Z)", PAGE.read_text(), re.M | re.S).group(1)
    tables = [block for block in section.split("\n\n") if block.startswith("|")]
    table = next(block for block in tables if not header or block.startswith(f"| {header} "))
    return {name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def written(schema, *, results_too=False):
    names = set(schema.names) - {"_format"}
    return names if results_too else names - set(result().schema.names)


@pytest.mark.parametrize(
    ("heading", "header", "columns"),
    [
        ("changelog", "", written(STREAM.schema)),
        ("ledger", "", written(ledger.SCHEMA, results_too=True)),
        ("sequence", "column", written(sequence.SCHEMA, results_too=True)),
        ("corrections", "", written(stamp_rows(result(), "bf-1", 0, "window_start").schema)),
        ("served", "", written(SERVED.schema)),
        ("archive", "", written(archive_table.SCHEMA, results_too=True)),
        ("verdicts, causes, reconciles", "verdicts", written(results.VERDICTS, results_too=True)),
        ("verdicts, causes, reconciles", "causes", written(results.CAUSES, results_too=True)),
        ("verdicts, causes, reconciles", "reconciles", written(results.RECONCILES, results_too=True)),
    ],
)
def test_the_page_names_the_columns_that_are_written(heading, header, columns):
    assert named(heading, header) == columns


def test_every_table_has_a_format_column():
    for schema in (
        ledger.SCHEMA,
        sequence.SCHEMA,
        archive_table.SCHEMA,
        results.VERDICTS,
        SERVED.schema,
        STREAM.schema,
    ):
        assert schema.field("_format").type == pa.int32()
