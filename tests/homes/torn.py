"""A home whose tables hold just what the ledger counted, committed as the sink does; and ways to tear its commits."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from homes.backfill import HOUR, RESULT, SQL, YAML, add_timeline, emitted, result
from homes.ledger import NOW, ledger_row
from homes.project import make_project
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle, build_bundle
from rivertwice.storage.table import Table
from rivertwice.storage.table_log import CUT, EMPTY, GONE, LOG, entry_path
from rivertwice.timeline.digest import digest_rows
from rivertwice.timeline.ledger import LEDGER_KEY, LedgerRow, append_ledger
from rivertwice.timeline.sequence import move_head

ZEROS, MIDDLE = "zeros", "zeros in the middle"
BATCHES = 6
SIDE = pa.schema(
    [
        ("_format", pa.int32()),
        ("_timeline", pa.string()),
        ("_batch", pa.int64()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)


def side_rows(timeline: str, batch: int, count: int) -> pa.Table:
    """Rows beside the result, at the batch's first offsets."""
    rows = [
        {"_format": 1, "_timeline": timeline, "_batch": batch, "partition": 0, "offset": 10 * batch + number}
        for number in range(count)
    ]
    return pa.Table.from_pylist(rows, schema=SIDE)


def add_batch(
    home: PipelineHome, bundle: Bundle, batch: int, timeline: str = "t1", *, ledger: bool = True, **changes: Any
) -> LedgerRow:
    """Commit a batch as the sink does: late rows, dead letters, then result and ledger row in one commit, then its copy."""
    rows = [(batch - 1, "a", 10), (batch - 1, "b", batch)] if batch else []
    plain = result(*rows) if rows else RESULT.empty_table()
    row = ledger_row(
        batch,
        timeline,
        **{
            "bundle": bundle.id,
            "batch_watermark_ms": batch * HOUR,
            "min_event_ms": batch * HOUR,
            "max_event_ms": (batch + 1) * HOUR - 1,
            "emitted": plain.num_rows,
            "digest": digest_rows(plain, plain.column_names),
            "bad": batch % 2,
            "late_rows": 1 if batch % 3 == 2 else 0,
            **changes,
        },
    )
    app = f"p#{timeline}"
    if row.bad:
        note = {"app": f"{app}/dead", "batch": batch, "ranges": {"0": [10 * batch, 10 * batch + 10]}}
        Table(home.tables.dead_letters).append(
            side_rows(timeline, batch, row.bad), transactions={f"{app}/dead": batch}, metadata={"dead": note}
        )
    if row.late_rows:
        note = {"app": f"{app}/late", "batch": batch, "ranges": {"0": [10 * batch, 10 * batch + 10]}}
        Table(home.tables.late_rows).append(
            side_rows(timeline, batch, row.late_rows), transactions={f"{app}/late": batch}, metadata={"late": note}
        )
    Table(home.tables.changelog, partition_by=["_day"]).append(
        emitted(timeline, batch, *rows), transactions={app: batch}, metadata={LEDGER_KEY: row.to_json()}
    )
    if ledger:
        append_ledger(home, [row])
    return row


def make_home(root: Path, batches: int = BATCHES) -> tuple[Settings, PipelineHome, Bundle]:
    """Return settings, home and bundle of a pipeline `p` whose head t1 has committed so many batches; made once, then copied."""
    shutil.copytree(_template(batches), root, dirs_exist_ok=True)
    settings = Settings(project=root / "project", home=root / "home", bootstrap="127.0.0.1:1")
    return settings, settings.pipeline("p"), build_bundle(root / "project" / "pipelines" / "p")


@functools.cache
def _template(batches: int) -> Path:
    folder = tempfile.TemporaryDirectory(prefix="torn-home-")
    _KEPT.append(folder)
    _make(Path(folder.name), batches)
    return Path(folder.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


def _make(root: Path, batches: int) -> None:
    fill(make_project(root, {"p": {"pipeline.yaml": YAML, "transform.sql": SQL}}, bootstrap="127.0.0.1:1"), batches)


def fill(settings: Settings, batches: int) -> None:
    """Give the pipeline `p` of a project a head t1 that has committed so many batches."""
    home = settings.pipeline("p")
    bundle = build_bundle(settings.definitions / "p")
    bundle.save(home.bundles)
    add_timeline(home, bundle, "t1", None, 0)
    move_head(home, "t1", reason="first start", expected_seq=0, now=NOW)
    for batch in range(batches):
        add_batch(home, bundle, batch)


def versions_of(table: Path, key: str) -> dict[int, int]:
    """Return, per batch, the version of the commit that wrote it."""
    return {int(value["batch"]): version for version, value in Table(table).commits(key)}


def tear(path: Path, how: str) -> bytes:
    """Damage a log entry or a checkpoint as a power loss does; return what is left of it."""
    data = path.read_bytes()
    if how == GONE:
        path.unlink()
    else:
        middle = data[: len(data) // 8] + bytes(len(data) // 2 - len(data) // 8) + data[len(data) // 2 :]
        path.write_bytes({EMPTY: b"", CUT: data[: len(data) // 2], ZEROS: bytes(len(data)), MIDDLE: middle}[how])
    return path.read_bytes() if path.exists() else b""


def tear_checkpoint(table: Path, how: str) -> Path:
    """Damage the newest checkpoint of a table's log and return its path."""
    path = max((table / LOG).glob("*.checkpoint.parquet"))
    tear(path, how)
    return path


def tear_commit(table: Path, key: str, batch: int, how: str) -> Path:
    """Damage the log entry of a batch's commit and return its path."""
    path = entry_path(table, versions_of(table, key)[batch])
    tear(path, how)
    return path
