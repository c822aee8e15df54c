"""A pipeline's home without Spark: a checkpoint of plain files, a ledger and a head, for savepoint tests."""

from __future__ import annotations

import json
import struct
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from homes.ledger import ledger_row
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.savepoint.catalogue import Savepoint
from rivertwice.savepoint.manifest import FileEntry, Manifest
from rivertwice.savepoint.records import SavepointLease
from rivertwice.storage.local import LocalStore
from rivertwice.storage.table import Table
from rivertwice.timeline.ledger import LEDGER_KEY, LedgerRow, append_ledger
from rivertwice.timeline.lineage import Fork, Timeline, create_timeline
from rivertwice.timeline.sequence import last_seq, move_head

NOW = datetime(2013, 7, 2, tzinfo=UTC)
FINGERPRINT = {"state": "s", "semantics": "m", "decode": "d"}
TOPIC = "flights"


def offsets_text(batch: int) -> str:
    metadata = {"batchWatermarkMs": 1000 * batch, "batchTimestampMs": 5, "conf": {"spark.sql.shuffle.partitions": "2"}}
    return f"v1\n{json.dumps(metadata)}\n{json.dumps({TOPIC: {'0': 10 * batch + 10}})}"


def row(batch: int, timeline: str = "t1", **changes: Any) -> LedgerRow:
    values: dict[str, Any] = {
        "topic_ids": {TOPIC: "id"},
        "start_offsets": {TOPIC: {"0": 10 * batch}},
        "end_offsets": {TOPIC: {"0": 10 * batch + 10}},
        "offsets_text": offsets_text(batch),
        "batch_timestamp_ms": 5,
        "committed_at": NOW,
    }
    return ledger_row(batch, timeline, **{**values, **changes})


def add_timeline(home: PipelineHome, name: str, *, parent: Fork | None = None, first: int = 0) -> None:
    create_timeline(
        home, Timeline("p", name, parent, first, {TOPIC: {"0": 0}}, "b", FINGERPRINT, "c", {TOPIC: "id"}, NOW)
    )
    move_head(home, name, reason="test", expected_seq=last_seq(home), now=NOW)


def with_checksum(path: Path) -> None:
    """Write the checksum file that Hadoop keeps beside a file."""
    data = path.read_bytes()
    sums = [zlib.crc32(data[at : at + 512]) for at in range(0, len(data), 512)]
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\0" + struct.pack(f">i{len(sums)}I", 512, *sums))


def write_checkpoint(home: PipelineHome, timeline: str, *, planned: int, finished: int) -> None:
    """Write offsets 0..planned and commits 0..finished, with a little state."""
    root = home.checkpoint(timeline)
    for folder in ("offsets", "commits", "sources/0", "state/0/0", "state/0/1"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "metadata").write_text('{"id":"q"}')
    with_checksum(root / "metadata")
    (root / "sources/0/0").write_text('\0v1\n{"flights":{"0":0}}')
    for batch in range(planned + 1):
        (root / "offsets" / str(batch)).write_text(offsets_text(batch))
        with_checksum(root / "offsets" / str(batch))
    for batch in range(finished + 1):
        (root / "commits" / str(batch)).write_text("v1\n{}")
        (root / "state/0/0" / f"{batch + 1}_aa.changelog").write_text(f"state of {batch}")
    (root / "state/0/1" / ".3.4d1f.tmp").write_text("half")
    (root / "offsets" / "..9.77.tmp.crc").write_text("half")


def catch_checkpoint_up(home: PipelineHome, timeline: str, *, finished: int) -> None:
    """Finish batches in a checkpoint as a driver does, up to this one, with the watermark that follows from the ledger."""
    root = home.checkpoint(timeline)
    for batch in range(finished + 1):
        (root / "offsets" / str(batch)).write_text(offsets_text(batch))
        with_checksum(root / "offsets" / str(batch))
        (root / "commits" / str(batch)).write_text(f'v1\n{{"nextBatchWatermarkMs":{1000 * batch}}}')
        (root / "state/0/0" / f"{batch + 1}_aa.changelog").write_text(f"state of {batch}")


def commit_batches(home: PipelineHome, rows: list[LedgerRow]) -> None:
    """Commit batches without result rows as the sink does: in the changelog, and copied into the ledger."""
    for one in rows:
        stamps = pa.table({"_timeline": pa.array([], pa.string()), "_batch": pa.array([], pa.int64())})
        Table(home.tables.changelog).append(
            stamps, transactions={f"{one.pipeline}#{one.timeline}": one.batch}, metadata={LEDGER_KEY: one.to_json()}
        )
    append_ledger(home, rows)


def make_home(
    tmp_path: Path, *, planned: int = 4, finished: int = 3, committed: int = 3
) -> tuple[Settings, PipelineHome]:
    settings = Settings(tmp_path / "project", tmp_path / "home")
    home = settings.pipeline("p")
    add_timeline(home, "t1")
    write_checkpoint(home, "t1", planned=planned, finished=finished)
    append_ledger(home, [row(batch) for batch in range(committed + 1)])
    return settings, home


def savepoint(number: int, *, proved: bool = False, pinned: bool = False, leased_for: int = 0) -> Savepoint:
    """A savepoint of hour `number`, leased for so many hours from NOW."""
    leases = (SavepointLease("restore-1", NOW + timedelta(hours=leased_for)),) if leased_for else ()
    manifest = Manifest(
        savepoint=f"sp-t1-{number}-{number:08x}",
        pipeline="p",
        timeline="t1",
        batch=number,
        epoch=1,
        created_at=NOW + timedelta(hours=number - 1000),
        reason="test",
        offsets={TOPIC: {"0": 10 * number + 10}},
        offsets_text=offsets_text(number),
        watermark_ms=0,
        cluster_id="c",
        topic_ids={TOPIC: "id"},
        bundle="b",
        fingerprint=FINGERPRINT,
        pins={},
        files={"metadata": FileEntry("0" * 64, 1)},
    )
    return Savepoint(manifest, LocalStore(None), {"proved": True} if proved else None, pinned, leases)  # type: ignore[arg-type]
