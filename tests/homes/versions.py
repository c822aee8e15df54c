"""A pipeline whose second version runs beside the first: both have committed rows, and neither process nor Spark is needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from homes.backfill import HOUR, add_timeline, emitted, make_home
from homes.ledger import NOW, ledger_row
from rivertwice.config import PipelineHome
from rivertwice.pipeline.bundle import load_bundle
from rivertwice.pipeline.definition import Definition
from rivertwice.reconcile.seals.changes import WATCHED
from rivertwice.reconcile.seals.model import Seal
from rivertwice.reconcile.seals.table import read_seals, store_seal
from rivertwice.store import delta
from rivertwice.store.delta_read import version_of
from rivertwice.timeline.committed import committed_batches, newest_batches
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import head_path
from rivertwice.timeline.sequence import move_head, read_sequence
from rivertwice.timeline.served import rebuild_served
from rivertwice.timeline.served_stamp import served_stamp
from rivertwice.trial.model import Comparison, Expected, SchemaChange
from rivertwice.versions.begin import begin_version
from rivertwice.versions.model import LeftOut, Parity
from rivertwice.versions.proof import read_proof
from rivertwice.versions.serve import serve_version

AT = datetime(2026, 11, 26, tzinfo=UTC)


class World:
    """A pipeline whose first version emitted n = hour, and a second one that emitted n = hour + 100."""

    def __init__(self, folder: Path) -> None:
        self.settings, self.old, bundle = make_home(folder)
        self.first: Definition = bundle.definition
        rebuild_served(self.old, self.first)
        sql = self.settings.definitions / "p" / "transform.sql"
        sql.write_text(sql.read_text().replace("count(*)", "100 + count(*)"))
        version = begin_version(self.settings, "p", by="test", now=AT)
        self.new = self.settings.pipeline(version.name)
        stored = load_bundle(self.new.bundles, version.bundle)
        self.second: Definition = stored.definition
        add_timeline(self.new, stored, "t1", None, 0)
        move_head(self.new, "t1", reason="first start", expected_seq=0, now=NOW)
        self.bundle = stored.id
        self.emit(self.new, range(10), stored.id, 100)

    def emit(self, home: PipelineHome, batches: range, bundle: str, plus: int) -> None:
        """Commit a batch an hour, each with the row of the hour before it."""
        rows = [
            ledger_row(
                n,
                bundle=bundle,
                batch_watermark_ms=n * HOUR,
                min_event_ms=n * HOUR,
                max_event_ms=(n + 1) * HOUR - 1,
                emitted=1,
            )
            for n in batches
        ]
        for n in batches:
            delta.append(home.tables.changelog, emitted("t1", n, (n - 1, "a", n - 1 + plus)))
        append_ledger(home, rows)

    def consumers_see(self) -> list[int]:
        rows = delta.read(self.old.public_served)
        assert rows is not None
        return sorted(rows["n"].to_pylist())

    def keep_all(self) -> None:
        """Do what the agent does after a batch: build what each version serves."""
        rebuild_served(self.old, self.first)
        rebuild_served(self.new, self.second)

    def serve(self, name: str) -> Any:
        return serve_version(self.settings, name, by="test", now=AT)

    def seal(self, run: str, until: int = 8) -> None:
        """Prove what both versions serve, up to an hour: what a reconcile that passed leaves."""
        self.keep_all()
        for home in (self.old, self.new):
            path = head_path(home)
            last = newest_batches(home, committed_batches(home, path), path, 1)[-1]
            seal = Seal(
                run=f"{run}-{home.root.name.replace('@', '-')}",
                created_at=AT + timedelta(minutes=len(read_seals(home))),
                timeline=last.timeline,
                batch=last.batch,
                meaning="m",
                sequence=read_sequence(home)[-1].seq,
                amendments=0,
                end_offsets={},
                settled_ms=until * HOUR,
                served=served_stamp(home),
                counts={},
                parts={},
                emitted=0,
                ledger="h",
                served_rows=0,
                versions={table: version_of(getattr(home.tables, table)) for table in WATCHED},
            )
            assert store_seal(home, seal)

    def parity(self, **changes: Any) -> Parity:
        """Return what the gate finds if each of seven rows differs as declared."""
        values: dict[str, Any] = {
            "version": "p@v2",
            "beside": "p",
            "declared": "",
            "start": None,
            "end": AT,
            "proofs": (read_proof(self.old), read_proof(self.new)),
            "schema": SchemaChange(),
            "rows": Comparison(7, 7, equal=0, windows=7, declared=(7,)),
            "late": 0,
            "left_out": (),
            "reasons": (),
            "reason": "a hundred more",
            "expected": (Expected("changed", ("n",), None, "the count begins at a hundred"),),
        }
        return Parity(**{**values, **changes})


GONE = LeftOut(AT, AT, 3, "records of these windows are in neither Kafka nor the archive any more")
"""Windows that only the old version has."""
