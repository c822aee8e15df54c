"""A second version of a pipeline without a stream: its own timeline, batches and rows beside those of the first one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa

from homes.backfill import emitted
from homes.delivery import DeliveryHome, Row
from homes.ledger import ledger_row
from rivertwice.definition.bundle import load_bundle
from rivertwice.storage.table import Table
from rivertwice.timeline.ledger import LEDGER_KEY, append_ledger
from rivertwice.versions.begin import begin_version
from rivertwice.versions.serve import Switched, serve_version

AT = datetime(2026, 11, 26, tzinfo=UTC)
HOUR = 3_600_000


class SecondVersion(DeliveryHome):
    """`p@v2` of a pipeline's home, by an edit of its files."""

    def __init__(self, first: DeliveryHome, edits: Mapping[str, tuple[str, str]]) -> None:
        self.settings = first.settings
        for file, (old, new) in edits.items():
            path = first.settings.definitions / "p" / file
            text = path.read_text()
            assert old in text
            path.write_text(text.replace(old, new))
        version = begin_version(first.settings, "p", by="test", now=AT)
        self.home = first.settings.pipeline(version.name)
        self.bundle = load_bundle(self.home.bundles, version.bundle)
        self.definition = self.bundle.definition
        self.begin("t1")
        self.move_head("t1")

    def commit_wide(self, batch: int, closed: int, rows: Sequence[Row], more: Mapping[str, Sequence[object]]) -> None:
        """Commit a batch whose rows have further columns."""

        def widen(table: pa.Table) -> pa.Table:
            for name, values in more.items():
                table = table.append_column(name, pa.array(values))
            return table

        self.commit_as(batch, closed, rows, widen)

    def commit_as(self, batch: int, closed: int, rows: Sequence[Row], shape: Callable[[pa.Table], pa.Table]) -> None:
        """Commit a batch whose rows have other columns: what `shape` makes of those of the first version."""
        table = shape(emitted("t1", batch, *rows))
        row = ledger_row(batch, "t1", bundle=self.bundle.id, batch_watermark_ms=closed * HOUR, emitted=len(rows))
        Table(self.home.tables.changelog).append(
            table, transactions={f"p#{batch}": batch}, metadata={LEDGER_KEY: row.to_json()}
        )
        append_ledger(self.home, [row])


def serve(home: DeliveryHome, name: str) -> Switched:
    """Let a version serve."""
    return serve_version(home.settings, name, by="test", now=AT)
