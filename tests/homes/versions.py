"""A pipeline whose second version runs beside the first: both have committed rows, and neither process nor Spark is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from homes.backfill import HOUR, add_timeline, emitted, make_home
from homes.ledger import NOW, ledger_row
from homes.project import replace_text
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import load_bundle
from rivertwice.definition.definition import Definition
from rivertwice.log.addresses import Part
from rivertwice.reconcile.model import Account
from rivertwice.reconcile.results import Stamp, store_run
from rivertwice.reconcile.seals.look import WATCHED
from rivertwice.reconcile.seals.model import Seal, read_seals, store_seal
from rivertwice.storage.table import Table
from rivertwice.timeline.committed import committed_batches, newest_batches
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import head_path
from rivertwice.timeline.sequence import move_head, read_sequence
from rivertwice.timeline.served import rebuild_served
from rivertwice.timeline.served_stamp import read_served_stamp
from rivertwice.versions.begin import begin_version
from rivertwice.versions.model import ExcludedWindows, Parity
from rivertwice.versions.proof import read_proof
from rivertwice.versions.serve import serve_version
from rivertwice.versions.try_model import Comparison, Expected, SchemaChange

AT = datetime(2026, 11, 26, tzinfo=UTC)


@dataclass(frozen=True)
class Change:
    """How the second definition differs from the first.

    Attributes:
        edit: what is done to the project's files.
        rows: the rows of a batch as the second one emits them, made of its number and of what the first one would emit.
    """

    edit: Callable[[Settings], None]
    rows: Callable[[int, pa.Table], pa.Table] = lambda _, rows: rows


def edit_files(*edits: tuple[str, str, str]) -> Callable[[Settings], None]:
    """Return what replaces texts in files of the pipeline: file, old text, new text."""

    def edit(settings: Settings) -> None:
        for file, old, new in edits:
            replace_text(settings.definitions / "p" / file, old, new)

    return edit


def _in_two_hours(batch: int, rows: pa.Table) -> pa.Table:
    """Return the row of the two hours before an even batch."""
    hour = pa.scalar(timedelta(hours=1), pa.duration("us"))
    place = rows.schema.get_field_index("window_start")
    wide = rows.set_column(place, rows.schema.field(place), pc.subtract(rows["window_start"], hour))
    return wide if batch % 2 == 0 else wide.slice(0, 0)


MORE = Change(edit_files(("transform.sql", "count(*)", "100 + count(*)")))
TWO_HOURS = Change(
    edit_files(("pipeline.yaml", "size: 1 hour", "size: 2 hours"), ("transform.sql", "'1 hour'", "'2 hours'")),
    _in_two_hours,
)
OTHER_KEY = Change(
    edit_files(("pipeline.yaml", "keys: [k]", "keys: [origin]"), ("transform.sql", "end, k,", "end, k AS origin,")),
    lambda _, rows: rows.rename_columns(["origin" if name == "k" else name for name in rows.column_names]),
)


class World:
    """A pipeline whose first version emitted n = hour, and a second one that emitted n = hour + 100, or what a change says."""

    def __init__(self, folder: Path, change: Change = MORE) -> None:
        self.settings, self.old, bundle = make_home(folder)
        self.first: Definition = bundle.definition
        rebuild_served(self.old, self.first)
        self.change = change
        change.edit(self.settings)
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
        rows = []
        for n in batches:
            table = emitted("t1", n, (n - 1, "a", n - 1 + plus))
            table = table if home is self.old else self.change.rows(n, table)
            Table(home.tables.changelog).append(table)
            rows.append(
                ledger_row(
                    n,
                    bundle=bundle,
                    batch_watermark_ms=n * HOUR,
                    min_event_ms=n * HOUR,
                    max_event_ms=(n + 1) * HOUR - 1,
                    emitted=table.num_rows,
                )
            )
        append_ledger(home, rows)

    def consumers_see(self) -> list[int]:
        rows = Table(self.old.public_served).read()
        assert rows is not None
        return sorted(rows["n"].to_pylist())

    def consumers_see_of(self, name: str) -> list[int]:
        """Return what a version serves, or would."""
        rows = Table(self.settings.pipeline(name).tables.served).read()
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
                served=read_served_stamp(home),
                counts={},
                parts={},
                emitted=0,
                ledger="h",
                served_rows=0,
                versions={table: Table(getattr(home.tables, table)).version() for table in WATCHED},
            )
            assert store_seal(home, seal)

    def reconciled(self, name: str, *, passed: bool = True, read: int = 100) -> None:
        """Leave what a reconcile leaves that counted so many offsets, without a seal."""
        leave_reconcile(self.settings.pipeline(name), passed=passed, read=read)

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


def leave_reconcile(home: PipelineHome, *, passed: bool = True, read: int = 100) -> None:
    """Leave what a reconcile leaves that counted so many offsets, without a seal."""
    name = home.root.name
    stamp = Stamp(
        f"rc-{name.replace('@', '-')}-{read}",
        name,
        AT + timedelta(minutes=read),
        "t1",
        9,
        "b",
        1,
        {"flights": {"0": read}},
    )
    alerts = [] if passed else [{"severity": "critical", "kind": "defect", "message": "1 row is a DEFECT"}]
    total = Account(read=read, emitted=read).to_json()
    more = {
        "counts": {pair: {"AGREES": 8} for pair in ("stream", "served")},
        "gate": {"passed": passed, "alerts": alerts, "suites": []},
        "balance": {"total": total, "partitions": {str(Part("flights", 0)): total}},
        "late_by_partition": {"0": 0.0},
        "duration_s": 3.0,
    }
    store_run(home, stamp, [], [], more)


GONE = ExcludedWindows(AT, AT, 3, "records of these windows are in neither Kafka nor the archive any more")
"""Windows that only the old version has."""
