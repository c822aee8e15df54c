"""A pipeline's real tables without a stream: batches as the sink commits them, publications as backfills make them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from homes.backfill import HOUR, SQL, YAML, add_timeline, emitted, result
from homes.ledger import NOW, ledger_row
from homes.project import make_project
from rivertwice.backfill.store import stamp_rows
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.definition.bundle import Bundle, build_bundle
from rivertwice.definition.definition import load_definition
from rivertwice.deliver.model import DeliveredColumns, DeliveredRecord, DeliveryBatch, Position
from rivertwice.deliver.refusals import RefusedRecord, SetAside, none_aside
from rivertwice.deliver.wire import position_from_json, position_to_json, value_text
from rivertwice.log.kafka import end_offsets
from rivertwice.storage.table import Table
from rivertwice.timeline.ledger import LEDGER_KEY, append_ledger
from rivertwice.timeline.lineage import Fork
from rivertwice.timeline.sequence import last_seq, move_head, publish
from rivertwice.timeline.served import read_served, rebuild_served
from rivertwice.timeline.served_rows import read_provisional
from rivertwice.timeline.serving import Publication

Row = tuple[int, str, int]
"""Hour, key, value."""


class DeliveryHome:
    """Pipeline `p` with sinks, and what a stream and backfills would write."""

    def __init__(
        self, root: Path, deliver: str, bootstrap: str | None = None, emit: str = "final", shared: str | None = None
    ) -> None:
        files = {"pipeline.yaml": f"{YAML}\nemit: {emit}\ndeliver: {deliver}\n", "transform.sql": SQL}
        self.settings = make_project(root, {"p": files}, bootstrap=bootstrap, shared=shared)
        folder = self.settings.definitions / "p"
        self.home: PipelineHome = self.settings.pipeline("p")
        self.definition = load_definition(folder)
        self.bundle = build_bundle(folder)
        self.bundle.save(self.home.bundles)
        self.begin("t1")
        self.move_head("t1")

    def begin(self, name: str, parent: tuple[str, int] | None = None) -> None:
        fork = None if parent is None else Fork(*parent)
        add_timeline(self.home, self.bundle, name, fork, 0 if fork is None else fork.batch + 1)

    def move_head(self, name: str) -> None:
        move_head(self.home, name, reason="test", expected_seq=last_seq(self.home), now=NOW)

    def commit(self, timeline: str, batch: int, closed: int, rows: Sequence[Row], *, copy: bool = True) -> None:
        """Commit a batch with the ledger row in it; `copy` False leaves the ledger's table behind, as a crash does."""
        row = ledger_row(batch, timeline, bundle=self.bundle.id, batch_watermark_ms=closed * HOUR, emitted=len(rows))
        Table(self.home.tables.changelog, partition_by=["_day"]).append(
            emitted(timeline, batch, *rows),
            transactions={f"p#{timeline}": batch},
            metadata={LEDGER_KEY: row.to_json()},
        )
        if copy:
            append_ledger(self.home, [row])

    def publish(self, first: int, last: int, rows: Iterable[Row], *, count: int | None = None) -> None:
        """Publish corrections for the hours `first` to `last`, half-open; `count` is how many rows the publication says it has."""
        publish_rows(self.home, self.bundle, first, last, rows, count)

    def served(self) -> dict[tuple[int, str], int]:
        """What the served table holds, built now."""
        rebuild_served(self.home, self.definition)
        rows = read_served(self.home)
        assert rows is not None
        return self._by_hour(rows)

    def shown(self) -> dict[tuple[int, str], int]:
        """What is served of closed windows, and the newest rows of open ones (emit: updates)."""
        rows = read_provisional(self.home, self.definition)
        assert rows is not None
        return {**self.served(), **self._by_hour(rows)}

    @staticmethod
    def _by_hour(rows: pa.Table) -> dict[tuple[int, str], int]:
        return {(_hour(row["window_start"]), row["k"]): row["n"] for row in rows.to_pylist()}

    def with_bootstrap(self, bootstrap: str) -> Settings:
        return replace(self.settings, bootstrap=bootstrap)


class TakingSink:
    """A sink in memory: it keeps the values of the records that it takes, and refuses for good what `refuse` says."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.position = ""
        self.refuse: Callable[[DeliveredRecord], bool] = lambda _: False

    def open(self, shape: DeliveredColumns, schema: pa.Schema) -> Position | None:
        return position_from_json(self.position)[0] if self.position else None

    def deliver(self, parcel: DeliveryBatch, set_aside: SetAside = none_aside) -> None:
        refused = [RefusedRecord(record, "no") for record in parcel.records if self.refuse(record)]
        set_aside(refused)
        taken = [record for record in parcel.records if not self.refuse(record)]
        self.taken += [json.loads(value_text(parcel.shape, record, parcel.after)) for record in taken]
        self.position = position_to_json(parcel.after)

    def forget(self) -> None:
        self.taken, self.position = [], ""

    def close(self) -> None:
        return


def publish_rows(
    home: PipelineHome, bundle: Bundle, first: int, last: int, rows: Iterable[Row], count: int | None = None
) -> None:
    """Publish corrections of a pipeline for the hours `first` to `last`, half-open, as a backfill does."""
    seq = last_seq(home)
    backfill = f"bf-{seq + 1}"
    chunk = stamp_rows(result(*rows), backfill, 0, "window_start")
    Table(home.tables.corrections).append(chunk, transactions={f"backfill/{backfill}": 0})
    meaning = bundle.fingerprint.semantics
    entry = Publication(seq + 1, backfill, ((first * HOUR, last * HOUR),), meaning, bundle.id, {}, rows=count)
    publish(home, entry.to_payload(), expected_seq=seq, now=NOW)


def _hour(instant: datetime) -> int:
    return int(instant.timestamp() * 1000) // HOUR


def hour_rows(batch: int, keys: int) -> list[Row]:
    """One row per key for the hour that batch closes."""
    return [(batch, f"k{key:05d}", batch * 100_000 + key) for key in range(keys)]


def fill(world: DeliveryHome, timeline: str, batches: Iterable[int], keys: int) -> None:
    for batch in batches:
        world.commit(timeline, batch, batch + 1, hour_rows(batch, keys))


def read_topic(settings: Settings, topic: str, *, committed: bool = True) -> list[dict[str, Any]]:
    """Return what a topic holds, in order within each partition."""
    level = "read_committed" if committed else "read_uncommitted"
    reader = Consumer(
        {
            "bootstrap.servers": settings.bootstrap_servers(),
            "group.id": "test-reader",
            "isolation.level": level,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    partitions = list(end_offsets(settings, topic))
    reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    found: list[dict[str, Any]] = []
    ended: set[int | None] = set()
    try:
        deadline = Deadline.after(120)
        while len(ended) < len(partitions):
            assert deadline.left(), (
                f"{len(found)} records of {topic}, {len(ended)} partitions at their end, after 120 s"
            )
            for message in reader.consume(10_000, 5.0):
                error, key, value = message.error(), message.key(), message.value()
                if error is None:
                    assert key is not None
                    assert value is not None
                    found.append({**json.loads(value), "_key": key.decode()})
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
    finally:
        reader.close()
    return found


def fold(records: Iterable[dict[str, Any]]) -> dict[tuple[int, str], int]:
    """What a consumer holds that folds records by key, as the howto says."""
    rows: dict[str, dict[str, Any]] = {}
    for record in records:
        before = rows.get(record["_key"])
        if record["replaces"] is None:
            assert before is None, (record, before)
        else:
            assert before is not None
            assert before["values"] == record["replaces"]["values"]
        if record["op"] == "withdraw":
            del rows[record["_key"]]
        else:
            rows[record["_key"]] = record
    found: dict[tuple[int, str], int] = {}
    for record in rows.values():
        start = pa.scalar(record["window"][0]).cast(pa.timestamp("ms", "UTC")).as_py()
        found[(_hour(start), record["keys"]["k"])] = record["values"]["n"]
    return found
