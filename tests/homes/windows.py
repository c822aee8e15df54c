"""A home that holds what a pipeline of windows in memory read and emitted; the log lies in the archive, no broker is needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from homes.ledger import NOW, ledger_row
from homes.project import link, make_project
from rivertwice.backfill.model import OffsetRuns
from rivertwice.backfill.ranges import merge
from rivertwice.backfill.store import BACKFILL_KEY, ChunkRecord
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import from_ms, to_iso
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle, build_bundle
from rivertwice.log.archive_table import PARTITION_BY, SCHEMA, transaction_names
from rivertwice.storage.table import Table
from rivertwice.timeline.digest import digest_rows
from rivertwice.timeline.ledger import LEDGER_KEY, LedgerRow, append_ledger
from rivertwice.timeline.lineage import Fork, Timeline, create_timeline
from rivertwice.timeline.sequence import last_seq, move_head, publish
from rivertwice.timeline.serving import Publication
from simulated.windows import DELAY, SIZE, Record, Row, World

TOPIC = "events"
YAML = """
name: p
description: windows
sources:
  events:
    topic: events
    partitions: 2
    schema: {{k: string, at: timestamp, v: bigint}}
    required: [k, v]
    event_time: at
    watermark: {delay} s
    max_future: 10000 days
window: {{size: {size} s{slide}}}
keys: [k]
count_column: n
columns: {{n: {{}}, total: {{}}}}
"""
SQL = """
SELECT window.start AS window_start, window.end AS window_end, k, count(*) AS n, sum(v) AS total
FROM events GROUP BY window(at, '{size} seconds'{slide}), k
"""
_TIME = pa.timestamp("us", "UTC")
RESULT = pa.schema(
    [("window_start", _TIME), ("window_end", _TIME), ("k", pa.string()), ("n", pa.int64()), ("total", pa.int64())]
)


class WindowHome:
    """A home to which a world's batches are committed one by one; the archive holds all of the world's log from the first."""

    def __init__(self, root: Path, world: World) -> None:
        step = "" if world.step == SIZE else f", slide: {world.step // 1000} s"
        sql_step = "" if world.step == SIZE else f", '{world.step // 1000} seconds'"
        yaml = YAML.format(delay=DELAY // 1000, size=SIZE // 1000, slide=step)
        sql = SQL.format(size=SIZE // 1000, slide=sql_step)
        self.settings: Settings = make_project(root, {"p": {"pipeline.yaml": yaml, "transform.sql": sql}})
        link(self.settings.project, ("expectations",))
        self.world = world
        self.home: PipelineHome = self.settings.pipeline("p")
        self.bundle: Bundle = build_bundle(self.settings.definitions / "p")
        self.bundle.save(self.home.bundles)
        self.timeline = "t1"
        self.committed = 0
        self._begin("t1", None)
        self._archive()

    @property
    def ends(self) -> dict[int, int]:
        """Offsets after the records of the committed batches."""
        return self._offsets(self.committed)

    def commit(self, batches: int) -> None:
        """Commit so many batches more of the world, as far as it has them."""
        for number in range(self.committed, min(len(self.world.batches), self.committed + batches)):
            self._commit(number)
            self.committed = number + 1

    def fork(self) -> None:
        """Go on in a new timeline behind the last committed batch, as a restore does."""
        parent, self.timeline = self.timeline, f"t{int(self.timeline[1:]) + 1}"
        self._begin(self.timeline, Fork(parent, self.committed - 1))

    def publish(self, low: int, high: int, *, finds: bool = True, wrong: int = 0) -> None:
        """Publish the truth of the windows that begin in [low, high), as of the last committed batch.

        Args:
            finds: the backfill says where it found their records, as one does since 0.2.
            wrong: what is added to the total of the first row.
        """
        rows = [row for row in self.world.truth(self.ends) if low <= row.start_ms < high]
        rows[:1] = [replace(row, total=row.total + wrong) for row in rows[:1]]
        table = result_table(rows)
        name = f"bf{last_seq(self.home)}"
        count = table.num_rows
        stamps = {
            "_format": pa.array([1] * count, pa.int32()),
            "_backfill": pa.array([name] * count, pa.string()),
            "_chunk": pa.array([0] * count, pa.int32()),
            "_day": pa.array(["1970-01-01"] * count, pa.string()),
        }
        rows_with_stamps = pa.table({**stamps, **{column: table[column] for column in table.column_names}})
        record = ChunkRecord(0, count, {}, self._found(low, high) if finds else None, 1)
        Table(self.home.tables.corrections, partition_by=["_day"]).append(
            rows_with_stamps, metadata={BACKFILL_KEY: json.loads(json.dumps(record.to_json(name)))}
        )
        entry = Publication(
            0, name, ((low, high),), self.bundle.fingerprint.semantics, self.bundle.id, {TOPIC: self.ends}, rows=count
        )
        publish(self.home, entry.to_payload(), expected_seq=last_seq(self.home), now=NOW)

    def _found(self, low: int, high: int) -> OffsetRuns:
        """Return the offsets of the committed records of windows, exactly."""
        runs: dict[int, list[tuple[int, int]]] = {}
        for one in (one for batch in self.world.batches[: self.committed] for one in batch):
            if one.value is not None and any(low <= start < high for start in self.world.starts(one.at_ms)):
                runs.setdefault(one.partition, []).append((one.offset, one.offset + 1))
        return {TOPIC: {partition: merge(own) for partition, own in runs.items()}}

    def _begin(self, name: str, parent: Fork | None) -> None:
        prints = self.bundle.fingerprint
        line = Timeline(
            pipeline="p",
            timeline=name,
            parent=parent,
            first_batch=self.committed,
            genesis={TOPIC: {str(partition): end for partition, end in self.ends.items()}},
            bundle=self.bundle.id,
            fingerprint={"state": prints.state, "semantics": prints.semantics, "decode": prints.decode},
            cluster_id="c",
            topic_ids={TOPIC: "id"},
            created_at=NOW,
        )
        create_timeline(self.home, line)
        move_head(self.home, name, reason="test", expected_seq=last_seq(self.home), now=NOW)

    def _offsets(self, batches: int) -> dict[int, int]:
        ends = {0: 0, 1: 0}
        for batch in self.world.batches[:batches]:
            for one in batch:
                ends[one.partition] += 1
        return ends

    def _commit(self, number: int) -> None:
        batch = self.world.batches[number]
        good = [one.at_ms for one in batch if one.value is not None]
        emitted = result_table([row for at, row in self.world.emitted if at == number])
        row = ledger_row(
            number,
            self.timeline,
            bundle=self.bundle.id,
            topic_ids={TOPIC: "id"},
            batch_watermark_ms=self.world.watermarks[number],
            start_offsets={TOPIC: {str(key): end for key, end in self._offsets(number).items()}},
            end_offsets={TOPIC: {str(key): end for key, end in self._offsets(number + 1).items()}},
            read=len(batch),
            bad=len(batch) - len(good),
            accepted=len(good),
            min_event_ms=min(good, default=None),
            max_event_ms=max(good, default=None),
            emitted=emitted.num_rows,
            digest=digest_rows(emitted, emitted.column_names),
        )
        self._bury([one for one in batch if one.value is None], row)
        count = emitted.num_rows
        stamps = {
            "_format": pa.array([1] * count, pa.int32()),
            "_timeline": pa.array([self.timeline] * count, pa.string()),
            "_batch": pa.array([number] * count, pa.int64()),
            "_day": pa.array(["1970-01-01"] * count, pa.string()),
        }
        rows = pa.table({**stamps, **{name: emitted[name] for name in emitted.schema.names}})
        Table(self.home.tables.changelog, partition_by=["_day"]).append(
            rows, transactions={f"p#{self.timeline}": number}, metadata={LEDGER_KEY: row.to_json()}
        )
        append_ledger(self.home, [row])

    def _bury(self, records: Sequence[Record], row: LedgerRow) -> None:
        if not records:
            return
        letters = [
            {
                "_timeline": row.timeline,
                "_batch": row.batch,
                "cluster_id": "c",
                "topic": TOPIC,
                "topic_id": "id",
                "partition": one.partition,
                "offset": one.offset,
                "record_time": from_ms(one.at_ms),
                "reason": "missing",
                "detail": "k",
                "key": b"",
                "value": b"{}",
                "headers": None,
            }
            for one in records
        ]
        Table(self.home.tables.dead_letters).append(pa.Table.from_pylist(letters))

    def _archive(self) -> None:
        records = [one for batch in self.world.batches for one in batch]
        rows = [
            {
                "_format": 1,
                "cluster_id": "c",
                "topic_id": "id",
                "topic": TOPIC,
                "partition": one.partition,
                "offset": one.offset,
                "timestamp": from_ms(one.at_ms),
                "timestamp_type": 0,
                "key": one.key.encode(),
                "value": json.dumps({"k": one.key, "at": to_iso(from_ms(one.at_ms)), "v": one.value}).encode(),
                "headers": None,
                "day": "1970-01-01",
            }
            for one in records
        ]
        transactions: dict[str, int] = {}
        for partition, end in self._offsets(len(self.world.batches)).items():
            first, last = transaction_names("id", partition)
            transactions |= {first: 0, last: end}
        Table(self.settings.archive(TOPIC), partition_by=PARTITION_BY).append(
            pa.Table.from_pylist(rows, schema=SCHEMA), transactions=transactions
        )


def result_table(rows: Sequence[Row]) -> pa.Table:
    plain = [
        {
            "window_start": from_ms(row.start_ms),
            "window_end": from_ms(row.start_ms + SIZE),
            "k": row.key,
            "n": row.n,
            "total": row.total,
        }
        for row in rows
    ]
    return pa.Table.from_pylist(plain, schema=RESULT)
