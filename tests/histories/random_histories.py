"""Random histories of a stream: many small ones in one real run, each with events, keys and lateness of its own.

An epoch is a stretch of event time far from the others, so nothing of one can be late in, or touch, another; it has its own
micro-batches and watermarks. In each epoch several histories arrive side by side, told apart by their keys.
"""

from __future__ import annotations

import json
import os
import random
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from homes.ledger import ledger_row
from rivertwice.core.instants import EPOCH, to_iso
from rivertwice.core.settings import Settings
from rivertwice.definition.avro import prefixed
from rivertwice.definition.definition import Definition
from rivertwice.definition.fingerprint import fingerprint_of
from rivertwice.definition.protobuf_read import encode_proto
from rivertwice.engine.batch_marks import BatchMarks
from rivertwice.engine.cases import RAW_ARROW, RAW_SCHEMA, decode_views
from rivertwice.engine.compile import batch_rows, compile_stream
from rivertwice.engine.decode import decode
from rivertwice.engine.relations import accepted
from rivertwice.log.addresses import Part, Parts, of_topic
from rivertwice.reconcile.assess import RederivedLedger, gather_evidence
from rivertwice.reconcile.evidence import Evidence, StatefulEvidence
from rivertwice.reconcile.judged import count_records, draw_balance
from rivertwice.reconcile.kinds import Judge, JudgeInput, judge_of
from rivertwice.reconcile.kinds.read_rows import with_watermarks
from rivertwice.reconcile.model import Account, DefectFinding, OrderDependentRows
from rivertwice.reconcile.recorded import check_late_rows, check_order, check_updates
from rivertwice.reconcile.rederive import derive_chain, derive_chain_of_many
from rivertwice.reconcile.view import DefinitionVersion, HeadView
from rivertwice.stream.late import late_rows, select_suspects
from rivertwice.timeline.counts import BatchCounts, total_of
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.watermarks import rule_of

PARTITIONS = 2
SIDE_BY_SIDE = 20
EPOCH_SECONDS = 100_000
DELAY_S = 20
SPREAD = "-2"
"""Keys that end so lie in several partitions of a fold's log, all others in one; of a fold of several sources it is the other way round."""


@dataclass(frozen=True)
class Record:
    """One record of the log; `event_s` None: it cannot be decoded."""

    partition: int
    offset: int
    key: str
    event_s: float | None
    value: int


Batch = list[Record]


def random_batches(chance: random.Random, histories: int, cuts: tuple[int, int] = (12, 16)) -> list[Batch]:
    """Return the micro-batches of so many histories, epoch after epoch, each epoch cut in a number of places within `cuts`."""
    offsets = [0] * PARTITIONS
    batches: list[Batch] = []
    for epoch in range(-(-histories // SIDE_BY_SIDE)):
        arrivals: list[tuple[float, str, float]] = []
        for side in range(SIDE_BY_SIDE):
            arrivals += _history(chance, f"h{epoch}-{side}", (epoch + 1) * EPOCH_SECONDS)
        arrivals.sort()
        places = sorted(chance.sample(range(1, len(arrivals)), chance.randint(*cuts)))
        for low, high in zip([0, *places], [*places, len(arrivals)], strict=True):
            batch = []
            for _, key, event_s in arrivals[low:high]:
                partition = chance.randrange(PARTITIONS)
                broken = chance.random() < 0.02
                batch.append(
                    Record(
                        partition,
                        offsets[partition],
                        key,
                        None if broken else event_s,
                        chance.choice([1, 2, 3, 5, 7, 11]),
                    )
                )
                offsets[partition] += 1
            batches.append(batch)
    return batches


def keyed(batches: Sequence[Batch], *, spread: bool = True, turned: bool = False) -> list[Batch]:
    """Return the same records as a topic keyed by `k` holds them: all of a key in one partition, but for some keys (`spread`), or most (`turned`)."""
    offsets = [0] * PARTITIONS
    found = []
    for batch in batches:
        moved = []
        for record in batch:
            whole = record.event_s is not None and not (spread and record.key.endswith(SPREAD) != turned)
            partition = zlib.crc32(record.key.encode()) % PARTITIONS if whole else record.partition
            moved.append(replace(record, partition=partition, offset=offsets[partition]))
            offsets[partition] += 1
        found.append(moved)
    return found


def _history(chance: random.Random, name: str, base: int) -> Iterator[tuple[float, str, float]]:
    """Yield (arrival, key, event time) of 30 to 60 events; many times are multiples of 5 s, so that bounds are met exactly."""
    keys = [f"{name}-{number}" for number in range(chance.randint(1, 3))]
    tardy, far = chance.choice([0.0, 0.1, 0.3, 0.5]), chance.choice([20, 80, 250])
    now = float(base)
    for _ in range(chance.randint(30, 60)):
        now += chance.choice([0, 1, 2, 5, 5, 10, 25])
        # The second span is where a session has been emitted and a record next to it is not late yet.
        late = chance.choice([chance.uniform(0, far), chance.uniform(30, 90)]) if chance.random() < tardy else 0
        event = now - late
        yield now, chance.choice(keys), round(event, 3) if chance.random() < 0.2 else event // 5 * 5


@dataclass(frozen=True)
class Run:
    """What Spark made of the batches, and what is derived from the log.

    Attributes:
        evidence: what judges look at. partitions, total: the balance. watermarks: as the checkpoint has them.
        kept: late rows that the sink would have kept; findings: how they differ from those it must.
        rule: what the stream must have made of the records. batches: number of each batch of the path.
    """

    evidence: Evidence
    derived: RederivedLedger
    partitions: dict[Part, Account]
    total: Account
    watermarks: list[int]
    kept: int
    findings: list[DefectFinding]
    judge: Judge
    batches: list[int]


def places_of(definition: Definition) -> list[Part]:
    """Return where the records of each of the two partitions lie: in one topic, or each in a topic of its own."""
    topics = definition.topics
    return (
        [Part(topics[0], number) for number in range(PARTITIONS)] if len(topics) == 1 else [Part(t, 0) for t in topics]
    )


def run_histories(
    spark: SparkSession, definition: Definition, batches: Sequence[Batch], folder: Path, restarts: Sequence[int]
) -> Run:
    """Run the batches as one stream, one file each, ended and started again behind each of `restarts`, and derive the rest."""
    (folder / "log").mkdir(parents=True)
    places = places_of(definition)
    emitted: list[pa.Table] = []
    epochs: dict[int, int] = {}
    runs = 0

    def versions(session: SparkSession, batch: int, _since_us: int | None) -> dict[str, DataFrame]:
        read = int(json.loads((folder / "checkpoint" / "offsets" / str(batch)).read_text().split("\n")[2])["logOffset"])
        files = [str(folder / "log" / f"{number:05d}.parquet") for number in range(read + 1)]
        decoded = decode_views(definition, session.read.schema(RAW_SCHEMA).parquet(*files))
        known = {view: accepted(decoded[view], source) for view, source in definition.tables.items()}
        return {view: rows.withColumn("_index", F.lit(0)) for view, rows in known.items()}

    rows_of = batch_rows(definition, versions)

    def collect(frame: DataFrame, batch: int) -> None:
        rows = rows_of(frame, batch)
        epochs[batch] = runs
        stamps = {
            "_timeline": pa.array(["t1"] * rows.num_rows, pa.string()),
            "_batch": pa.array([batch] * rows.num_rows, pa.int64()),
        }
        emitted.append(pa.table({**stamps, **{name: rows[name] for name in rows.column_names}}))

    for number, batch in enumerate(batches):
        _write(folder / "log" / f"{number:05d}.parquet", number, batch, definition)
        if number in restarts:
            _run(spark, definition, folder, collect)
            runs += 1
    _run(spark, definition, folder, collect)
    planned = _planned(folder / "checkpoint", batches, places)
    ranges = [ranges for ranges, _ in planned]
    by_partition = _count(batches, ranges, places, definition)
    by_topic = [_of_batch(by_partition, index, definition.topics) for index in range(len(ranges))]
    counts = [total_of(found.values()) for found in by_topic]
    rows = [
        ledger_row(number, epoch=epochs[number], batch_watermark_ms=watermark)
        for number, (_, watermark) in enumerate(planned)
    ]
    if len(definition.topics) > 1:
        chain = derive_chain_of_many(by_topic, [rule_of(definition)] * len(rows), rows)
    else:
        delay_ms = definition.source[1].watermark // timedelta(milliseconds=1)
        chain = derive_chain(counts, [delay_ms] * len(ranges))
    raw = spark.read.schema(RAW_SCHEMA).parquet(str(folder / "log"))
    tagged = {
        view: BatchMarks.of(spark, enumerate(of_topic(batch, definition.sources[view].topic) for batch in ranges))
        .tag(decoded.drop("_key", "_value", "_headers"))
        .cache()
        for view, decoded in decode_views(definition, raw).items()
    }
    derived = RederivedLedger(ranges, by_partition, counts, chain, [])
    kept = _late_rows(spark, definition, raw, planned, by_topic)
    view = _view(definition, rows, pa.concat_tables(emitted), kept, folder, places)
    marked = {
        view: with_watermarks(spark, accepted(tagged[view], source), chain, [0] * len(rows))
        for view, source in definition.sources.items()
    }
    judge = judge_of(spark, JudgeInput(definition, marked, chain))
    evidence, late = gather_evidence(view, derived, {0: judge})
    broken = (record for batch in batches for record in batch if record.event_s is None)
    dead = Counter(places[record.partition] for record in broken)
    records = count_records(derived, dead, judge.pairs())
    partitions, total = draw_balance(derived, records, evidence, definition, judge, judge.records_without_output())
    for one in tagged.values():
        one.unpersist()
    kept_rows = 0 if kept is None else kept.num_rows
    findings = [*check_late_rows(view, late), *check_updates(view, judge), *check_order(order_dependent(evidence))]
    watermarks = [watermark for _, watermark in planned]
    numbers = [row.batch for row in rows]
    return Run(evidence, derived, partitions, total, watermarks, kept_rows, findings, judge, numbers)


def _late_rows(
    spark: SparkSession,
    definition: Definition,
    raw: DataFrame,
    planned: Sequence[tuple[Parts, int]],
    by_topic: Sequence[Mapping[str, BatchCounts]],
) -> pa.Table | None:
    """Return what the driver's sink would have kept of each batch, decided by its own rules."""
    found = []
    late_ms = 0
    for number, (ranges, watermark_ms) in enumerate(planned):
        for topic in select_suspects(definition, by_topic[number], late_ms) if definition.late.keeps_rows else ():
            view, source = definition.by_topic[topic]
            mine = F.lit(False)
            for partition, (start, end) in of_topic(ranges, topic).items():
                inside = F.col("offset").between(start, end - 1) & (F.col("partition") == partition)
                mine = mine | ((F.col("topic") == topic) & inside)
            rows = accepted(decode(raw.where(mine), source), source)
            late = late_rows(spark, definition, view, rows, late_ms).drop("fields").withColumn("topic", F.lit(topic))
            stamped = late.withColumn("_timeline", F.lit("t1")).withColumn("_batch", F.lit(number).cast("long"))
            found.append(stamped.toArrow())
        late_ms = watermark_ms
    return pa.concat_tables(found) if found else None


def _of_batch(
    by_partition: Mapping[tuple[int, Part], BatchCounts], index: int, topics: Sequence[str]
) -> dict[str, BatchCounts]:
    return {
        topic: total_of(one for (at, part), one in by_partition.items() if at == index and part.topic == topic)
        for topic in topics
    }


def _write(path: Path, number: int, batch: Batch, definition: Definition) -> None:
    places = places_of(definition)
    rows = [
        {
            "key": record.key.encode(),
            "value": record_bytes(record, definition),
            "headers": None,
            "topic": places[record.partition].topic,
            "partition": places[record.partition].partition,
            "offset": record.offset,
            "timestamp": EPOCH,
        }
        for record in batch
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=RAW_ARROW), path)
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def record_bytes(record: Record, definition: Definition) -> bytes:
    """Return the record's value as it lies in the log; of change events some are deletes."""
    if record.event_s is None:
        return b"broken"
    at_ms = round(record.event_s * 1000)
    at = to_iso(EPOCH + timedelta(milliseconds=at_ms))
    fields = {"k": record.key, "at": at, "v": record.value}
    _, source = definition.by_topic[places_of(definition)[record.partition].topic]
    if "j" in source.schema_:
        fields = {"j": record.key, "at": at, "w": record.value}
    if source.format == "avro":
        (schema_id, writer), *_ = source.pins.writers.items()
        return prefixed(schema_id, writer.encode(fields))
    if source.format == "protobuf":
        return encode_proto(source.message_type, fields)
    if source.envelope == "none":
        return json.dumps(fields).encode()
    deletes = record.value in (3, 11)
    images = {"before": {**fields, "at": to_iso(EPOCH)}} if deletes else {"after": fields}
    return json.dumps({**images, "op": "d" if deletes else "u", "ts_ms": at_ms}).encode()


def _run(spark: SparkSession, definition: Definition, folder: Path, collect: Any) -> None:
    reader = spark.readStream.schema(RAW_SCHEMA).option("maxFilesPerTrigger", 1)
    frame = compile_stream(spark, definition, reader.parquet(str(folder / "log")))
    writer = frame.writeStream.outputMode(definition.output_mode).foreachBatch(collect)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def _planned(checkpoint: Path, batches: Sequence[Batch], places: Sequence[Part]) -> list[tuple[Parts, int]]:
    """Return each micro-batch's offset ranges and watermark; a batch without a new file read nothing."""
    found = []
    position = dict.fromkeys(places, 0)
    read = -1
    for path in sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name)):
        lines = path.read_text().splitlines()
        last = int(json.loads(lines[2])["logOffset"])
        ranges: Parts = {part: (at, at) for part, at in position.items()}
        for record in (record for batch in batches[read + 1 : last + 1] for record in batch):
            start, end = ranges[places[record.partition]]
            ranges[places[record.partition]] = (start, max(end, record.offset + 1))
        position = {part: end for part, (_, end) in ranges.items()}
        read = last
        found.append((ranges, int(json.loads(lines[1])["batchWatermarkMs"])))
    return found


def _count(
    batches: Sequence[Batch], ranges: Sequence[Parts], places: Sequence[Part], definition: Definition
) -> dict[tuple[int, Part], BatchCounts]:
    found: dict[tuple[int, Part], BatchCounts] = {}
    tables = {source.topic for source in definition.tables.values()}
    for record in (record for batch in batches for record in batch):
        part = places[record.partition]
        index = next(index for index, batch in enumerate(ranges) if batch[part][0] <= record.offset < batch[part][1])
        ms = None if record.event_s is None else round(record.event_s * 1000)
        seen = None if part.topic in tables else ms
        one = BatchCounts(1, int(ms is None), int(ms is not None), seen, seen)
        found[index, part] = found.get((index, part), BatchCounts()).plus(one)
    return found


def _view(
    definition: Definition,
    rows: Sequence[LedgerRow],
    stream: pa.Table,
    late: pa.Table | None,
    folder: Path,
    places: Sequence[Part],
) -> HeadView:
    marks = fingerprint_of(definition)
    settings = Settings(project=folder, home=folder / "home")
    return HeadView(
        home=settings.pipeline("histories"),
        rows=rows,
        groups=[0] * len(rows),
        versions=[DefinitionVersion(definition, marks.semantics, marks.decode)],
        semantics=frozenset({marks.semantics}),
        genesis=dict.fromkeys(places, 0),
        sequence=0,
        publications=[],
        stream=stream,
        dead=None,
        late=late,
        served=None,
        served_stamp=None,
    )


def order_dependent(evidence: Evidence) -> OrderDependentRows:
    """Return the rows of a fold that depend on the order in which partitions were read; none of another kind."""
    return evidence.order_dependent if isinstance(evidence, StatefulEvidence) else OrderDependentRows()
