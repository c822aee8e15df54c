"""Homes with a long past for the cockpit: windows by keys, a reconcile each day, backfills, several pipelines; no Spark, no broker.

Everything is written by the product's own writers. Windows are of eight hours, three a day: a year has 1,095 of them. Each day has
one batch, and one reconcile that builds on the one of the day before. Of the rows, some came too late: those of the last
`unrepaired` days are still LATE as served, older ones were repaired by a backfill each thirty days. One row is a DEFECT, one cannot
be compared, and the windows of the last day are open.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from homes import backfill
from homes.backfill import RESULT, add_timeline, stamped
from homes.ledger import ledger_row
from homes.project import make_project
from rivertwice.agent.ring import RingSample, ring_file, write_sample
from rivertwice.backfill.model import BackfillPlan, BackfillRequest, BackfillView, BatchZone
from rivertwice.backfill.plan import plan_backfill
from rivertwice.backfill.store import ChunkRecord, backfill_app, backfill_folder, save_plan, stamp_rows
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import TimeRange, from_ms, to_iso, to_ms
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle, build_bundle
from rivertwice.log.addresses import Part
from rivertwice.reconcile.model import Account, RowId
from rivertwice.reconcile.results import ReconcileCause, Stamp, StoredVerdict, store_run
from rivertwice.storage.local import replace_json
from rivertwice.storage.table import Table
from rivertwice.timeline.digest import key_text
from rivertwice.timeline.judgements import Increment
from rivertwice.timeline.ledger import LEDGER_KEY, append_ledger, read_ledger
from rivertwice.timeline.sequence import last_seq, move_head, publish, read_sequence
from rivertwice.timeline.served import rebuild_served
from rivertwice.timeline.serving import Publication
from rivertwice.timeline.upkeep import keep_up
from rivertwice.timeline.verdicts import Verdict

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
SIZE = timedelta(hours=8)
A_DAY = timedelta(days=1) // SIZE
SIZE_MS = SIZE // timedelta(milliseconds=1)
DAY_MS = A_DAY * SIZE_MS
EACH = 10
"""Records of a row."""
REPAIRED_EACH = 30
TOPIC = "flights"
YAML = (
    backfill.YAML.replace("name: p", "name: NAME")
    .replace("description: test", "description: windows of eight hours by key, with a long past")
    .replace("{size: 1 hour}", "{size: 8 hours}")
)
SQL = backfill.SQL.replace("'1 hour'", "'8 hours'")


OBJECTIVES = "alerts: {latency: 5 minutes}\nslo: {freshness: 0.995, late_share: 0.99, agreement: 0.999}\n"


@dataclass(frozen=True)
class Past:
    """How long the past is.

    Attributes:
        days: so many days with a batch and a reconcile each; the windows of the last one are open.
        keys: so many keys, each with a row in every window.
        unrepaired: what came late in so many of the last days is still LATE as served.
    """

    days: int = 40
    keys: int = 5
    unrepaired: int = 3

    @property
    def names(self) -> list[str]:
        """The keys."""
        return [f"k{number:03d}" for number in range(self.keys)]

    @property
    def closed(self) -> int:
        """Number of days whose windows are closed."""
        return self.days - 1

    def late_of(self, day: int) -> list[tuple[int, str]]:
        """Return the late rows of a day: start of the window (epoch ms) and key; about one of thirty rows, at least one a day."""
        count = max(1, self.keys * A_DAY // 30)
        places = [(day * 7 + number * 31) % (A_DAY * self.keys) for number in range(count)]
        return [(start_of(day, place % A_DAY), self.names[place // A_DAY]) for place in sorted(set(places))]


def start_of(day: int, window: int = 0) -> int:
    """Return the start of a window of a day, epoch ms."""
    return to_ms(FIRST) + day * DAY_MS + window * SIZE_MS


def make_past(root: Path, past: Past, pipelines: Sequence[str] = ("p",), more: str = "") -> Settings:
    """Return the settings of a project whose pipelines each have that past: the first one's is written, the others' are copies of it.

    Args:
        more: lines for the definition of each.
    """
    files = {name: {"pipeline.yaml": YAML.replace("NAME", name) + more, "transform.sql": SQL} for name in pipelines}
    settings = make_project(root, files)
    for name in pipelines[:1]:
        fill(settings, name, past)
    for name in pipelines[1:]:
        copy_past(settings, pipelines[0], name)
    return settings


def copy_past(settings: Settings, first: str, name: str) -> None:
    """Give a pipeline a copy of another one's past; rows in tables keep the other's name, which nothing shown reads."""
    own = settings.pipeline(name).root
    shutil.copytree(settings.pipeline(first).root, own)
    for file in own.rglob("*.json"):
        text = file.read_text()
        for around in ('"{}"', '"{}#', '\\"{}\\"', "/{}/"):
            text = text.replace(around.format(first), around.format(name))
        file.write_text(text)


def keep_samples(settings: Settings, names: Sequence[str], now: datetime) -> None:
    """Give pipelines 30 days of samples; each third one missed its freshness more often than the one before."""
    for kind in range(3):
        own = names[kind::3]
        for name in own[:1]:
            for number in range(30 * 360, -1, -1):
                values = {"lag": 40.0 * (number % 7), "cpu_cores": 0.1 + 0.2 * kind, "memory_bytes": 3e8 + 1e8 * kind}
                missed = {"missed_freshness": float(number % 400 < kind), "missed_late_share": 0.0}
                sample = RingSample(now - timedelta(minutes=4 * number), "running", True, values | missed)
                write_sample(ring_file(settings.pipeline(name)), sample)
        for name in own[1:]:
            shutil.copy(ring_file(settings.pipeline(own[0])), ring_file(settings.pipeline(name)))


def fill(settings: Settings, name: str, past: Past) -> None:
    """Give a pipeline its past."""
    home = settings.pipeline(name)
    bundle = build_bundle(settings.definitions / name)
    bundle.save(home.bundles)
    add_timeline(home, bundle, "t1", None, 0)
    move_head(home, "t1", reason="first start", expected_seq=0, now=FIRST)
    late: dict[int, list[tuple[int, str]]] = {}
    base: str | None = None
    for day in range(past.days):
        _commit_batch(home, bundle, past, day)
        if day < past.closed:
            late[day] = past.late_of(day)
        repaired = min(day // REPAIRED_EACH * REPAIRED_EACH, past.closed - past.unrepaired)
        if day and day % REPAIRED_EACH == 0:
            _publish(home, bundle, past, day - REPAIRED_EACH, repaired, late)
        base = _reconcile(home, bundle, past, day, late, base, repaired)
    rest = (past.closed - 1) // REPAIRED_EACH * REPAIRED_EACH
    if rest < past.closed - past.unrepaired:
        _publish(home, bundle, past, rest, past.closed - past.unrepaired, late)
        base = _reconcile(home, bundle, past, past.closed, late, base, past.closed - past.unrepaired, again=rest)
    rebuild_served(home, bundle.definition)
    keep_up(home, now=FIRST + timedelta(days=past.days), verdicts_kept=timedelta(days=3650))


def add_letter(settings: Settings, name: str, value: bytes) -> None:
    """Add a dead letter of the first batch to a past."""
    home = settings.pipeline(name)
    first = read_ledger(home)[0]
    row = {
        "_format": 1,
        "_timeline": first.timeline,
        "_batch": first.batch,
        "reason": "json",
        "detail": "",
        "topic": TOPIC,
    }
    row |= {"topic_id": "id", "partition": 0, "offset": 1, "record_time": FIRST, "key": None, "headers": None}
    Table(home.tables.dead_letters).append(pa.Table.from_pylist([{**row, "value": value}]))


def _rows(past: Past, day: int, missing: Sequence[tuple[int, str]]) -> pa.Table:
    gone = set(missing)
    rows = [
        {
            "window_start": from_ms(start_of(day, window)),
            "window_end": from_ms(start_of(day, window) + SIZE_MS),
            "k": key,
            "n": EACH - ((start_of(day, window), key) in gone),
        }
        for window in range(A_DAY)
        for key in past.names
    ]
    return pa.Table.from_pylist(rows, schema=RESULT)


def _commit_batch(home: PipelineHome, bundle: Bundle, past: Past, day: int) -> None:
    """Commit the batch that read the records of a day and emitted the rows of the day before."""
    emitted = _rows(past, day - 1, past.late_of(day - 1)) if day else RESULT.empty_table()
    count, read = emitted.num_rows, EACH * past.keys * A_DAY
    row = ledger_row(
        day,
        pipeline=home.root.name,
        bundle=bundle.id,
        topic_ids={TOPIC: "id"},
        start_offsets={TOPIC: {"0": read * day}},
        end_offsets={TOPIC: {"0": read * (day + 1)}},
        batch_watermark_ms=start_of(day),
        read=read,
        accepted=read,
        min_event_ms=start_of(day),
        max_event_ms=start_of(day + 1) - 1,
        emitted=count,
        committed_at=FIRST + timedelta(days=day + 1),
    )
    Table(home.tables.changelog, partition_by=["_day"]).append(
        stamped(emitted, "t1", day, to_iso(FIRST + timedelta(days=day - 1))[:10]),
        transactions={f"{home.root.name}#t1": day},
        metadata={LEDGER_KEY: row.to_json()},
    )
    append_ledger(home, [row])


def plan_of(home: PipelineHome, bundle: Bundle, past: Past, first: int, last: int) -> BackfillPlan:
    """Return the plan of a backfill of the days from `first` to before `last`."""
    read = EACH * past.keys * A_DAY
    zones = [
        BatchZone("t1", day, {TOPIC: {0: (read * day, read * (day + 1))}}, read, start_of(day), start_of(day + 1) - 1)
        for day in range(past.days)
    ]
    view = BackfillView(
        pipeline=home.root.name,
        window_ms=SIZE_MS,
        closed_ms=start_of(past.closed),
        batches=tuple(zones),
        as_of={TOPIC: {0: read * (last + 1)}},
        topic_ids={TOPIC: "id"},
        archive={},
        kafka={TOPIC: {0: (0, read * past.days)}},
        bundle=bundle.id,
        semantics=bundle.fingerprint.semantics,
        sequence=last_seq(home),
    )
    asked = TimeRange(from_ms(start_of(first)), from_ms(start_of(last)))
    return plan_backfill(BackfillRequest(home.root.name, asked, "late events"), view)


def _publish(
    home: PipelineHome, bundle: Bundle, past: Past, first: int, last: int, late: dict[int, list[tuple[int, str]]]
) -> None:
    """Publish the truth of the days from `first` to before `last`, as a backfill does."""
    del late
    if last <= first:
        return
    plan = save_plan(home, plan_of(home, bundle, past, first, last))
    table = pa.concat_tables([_rows(past, day, []) for day in range(first, last)])
    records = {start_of(day, window): EACH * past.keys for day in range(first, last) for window in range(A_DAY)}
    Table(home.tables.corrections, partition_by=["_day"]).append(
        stamp_rows(table, plan.id, 0, "window_start"),
        transactions={backfill_app(plan.id): 0},
        metadata={"backfill": ChunkRecord(0, table.num_rows, records).to_json(plan.id)},
    )
    audit = {"format": 1, "passed": True, "backfill": plan.id, "rows": table.num_rows, "records": 1, "checks": []}
    replace_json(backfill_folder(home, plan.id) / "audit.json", audit)
    entry = Publication(0, plan.id, plan.ranges, plan.semantics, plan.bundle, plan.as_of, rows=table.num_rows)
    publish(home, entry.to_payload(), expected_seq=last_seq(home), now=FIRST + timedelta(days=last + 1))


def _reconcile(
    home: PipelineHome,
    bundle: Bundle,
    past: Past,
    day: int,
    late: dict[int, list[tuple[int, str]]],
    base: str | None,
    repaired: int,
    *,
    again: int | None = None,
) -> str:
    """Store what the reconcile of a day says: of the windows that were not settled at the one before, and of those published since."""
    first = max(0, day - 1)
    if day and day % REPAIRED_EACH == 0:
        again = day - REPAIRED_EACH
    begin = first if again is None else min(again, first)
    last = min(day, past.closed)
    stored: list[StoredVerdict] = []
    causes: list[ReconcileCause] = []
    for each in range(begin, last):
        _judge_day(past, each, late[each], stored, causes, is_repaired=each < repaired)
    for window in range(A_DAY):
        start = start_of(last, window)
        stored += [
            StoredVerdict(pair, start, start + SIZE_MS, None, Verdict.OPEN, "", rows=past.keys)
            for pair in ("stream", "served")
        ]
    run = f"rc-{day:05d}" + ("" if again is None or day != past.closed else "-again")
    counts = _counts(past, last, late, repaired)
    total = Account(
        read=EACH * past.keys * A_DAY * (day + 1),
        emitted=EACH * past.keys * A_DAY * last - sum(map(len, late.values())),
        open=EACH * past.keys * A_DAY * (day + 1 - last),
        late=sum(map(len, late.values())),
    )
    stamp = Stamp(
        run,
        home.root.name,
        FIRST + timedelta(days=day + 1, hours=1 + (again is not None)),
        "t1",
        min(day, past.days - 1),
        bundle.id,
        read_sequence(home)[-1].seq,
        {TOPIC: {"0": EACH * past.keys * A_DAY * (day + 1)}},
    )
    increment = None if base is None else Increment(base, start_of(begin), (), SIZE_MS)
    summary: dict[str, Any] = {
        "counts": counts,
        "balance": {"total": total.to_json(), "partitions": {str(Part(TOPIC, 0)): total.to_json()}},
        "late_by_partition": {"0": total.late_share},
        "gate": {"passed": False, "alerts": [], "findings": [], "phases": {}},
        "duration_s": 3.0,
    }
    store_run(home, stamp, stored, causes, summary, increment)
    return run


def _judge_day(
    past: Past,
    day: int,
    late: Sequence[tuple[int, str]],
    stored: list[StoredVerdict],
    causes: list[ReconcileCause],
    *,
    is_repaired: bool,
) -> None:
    odd = {(start_of(0, 1), past.names[0]): (Verdict.DEFECT, "1 record is missing without a cause")}
    odd[start_of(1, 2), past.names[-1]] = (Verdict.NOT_COMPARABLE, "records of the window are lost")
    for window in range(A_DAY):
        start = start_of(day, window)
        for pair in ("stream", "served"):
            own = 0
            for key in past.names:
                text = key_text(["k"], [key])
                if (start, key) in odd:
                    word, why = odd[start, key]
                    stored.append(StoredVerdict(pair, start, start + SIZE_MS, text, word, why))
                    own += 1
                elif (start, key) in late and (pair == "stream" or not is_repaired):
                    why = f"1 of {EACH} records came after the window closed"
                    stored.append(StoredVerdict(pair, start, start + SIZE_MS, text, Verdict.LATE, why, late=1))
                    causes.append(_cause(pair, day, start, text))
                    own += 1
            if own < past.keys:
                stored.append(
                    StoredVerdict(pair, start, start + SIZE_MS, None, Verdict.AGREES, "equal", rows=past.keys - own)
                )


def _cause(pair: str, day: int, start: int, key: str) -> ReconcileCause:
    """A record that was late by one to 1,000 minutes."""
    late_ms = (1 + (day * 37) % 1000) * 60_000
    return ReconcileCause(
        pair=pair,
        cause="late",
        row=RowId(start, start + SIZE_MS, key),
        topic=TOPIC,
        partition=0,
        offset=start // SIZE_MS * 100 + int(key[-4:-2]),
        batch=day + 1,
        late_watermark_ms=start + SIZE_MS + late_ms,
        event_time=from_ms(start + 1),
    )


def _counts(past: Past, last: int, late: dict[int, list[tuple[int, str]]], repaired: int) -> dict[str, dict[str, int]]:
    rows = last * A_DAY * past.keys
    odd = min(last, 2)
    stream = sum(len(each) for day, each in late.items() if day < last)
    served = sum(len(each) for day, each in late.items() if repaired <= day < last)
    return {
        pair: {
            Verdict.AGREES: rows - odd - number,
            Verdict.LATE: number,
            Verdict.OPEN: A_DAY * past.keys,
            Verdict.DEFECT: min(odd, 1),
            Verdict.NOT_COMPARABLE: int(odd > 1),
        }
        for pair, number in (("stream", stream), ("served", served))
    }
