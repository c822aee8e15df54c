"""F34, F35, F36: backfills that race the stream, are killed, overlap, or read across the seam between archive and Kafka."""

from __future__ import annotations

import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from lab.faults.cases import case, require
from lab.faults.events import BEGIN_MS
from lab.faults.lab import PIPELINE, Lab
from lab.faults.savepoint_runs import Moment, kill_at, run_command
from lab.faults.steps import DeltaLog
from lab.oracle.expect import truth
from lab.oracle.sources import read_log
from rivertwice.backfill.model import BackfillPlan, BackfillRequest
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.plan import plan_backfill
from rivertwice.backfill.publish import publish_backfill
from rivertwice.backfill.store import backfill_app, backfill_folder, save_plan
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import TimeRange, from_ms
from rivertwice.log import kafka
from rivertwice.log.archive import extend_archive
from rivertwice.storage.table import Table
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import read_sequence
from rivertwice.timeline.served import read_served, rebuild_served
from rivertwice.timeline.served_rows import publications_of

Version = frozenset[tuple[Any, ...]]
"""The rows of one window: (key, n, total, top)."""


def plan_range(lab: Lab, start_ms: int, end_ms: int, *, chunk_records: int = 1_000_000) -> BackfillPlan:
    """Plan and store a backfill of the windows in [start, end) that are closed."""
    request = BackfillRequest(PIPELINE, TimeRange(from_ms(start_ms), from_ms(end_ms)), "fault lab")
    plan = plan_backfill(request, observe_backfill(lab.settings, PIPELINE), chunk_records=chunk_records)
    return save_plan(lab.home, plan)


def closed_ms(lab: Lab) -> int:
    """Return the watermark of the last committed batch."""
    rows = path_ledger(lab.home)
    return rows[-1].batch_watermark_ms if rows else 0


def expected_versions(lab: Lab, plan: BackfillPlan) -> dict[int, Version]:
    """Return what a backfill must hold, as the oracle computes it from the log alone: window start to its rows."""
    records = read_log(lab.settings.bootstrap_servers(), lab.topic, lab.folder / "produced.jsonl").records
    ends = plan.as_of[lab.topic]
    sums, _ = truth({at: record for at, record in records.items() if at[1] < ends.get(at[0], 0)})
    versions: dict[int, set[tuple[Any, ...]]] = defaultdict(set)
    for (start, key), row in sums.items():
        if any(low <= start < high for low, high in plan.ranges):
            versions[start].add((key, row.n, row.total, row.top))
    return {start: frozenset(rows) for start, rows in versions.items()}


def corrections(lab: Lab, backfill: str) -> dict[int, list[tuple[Any, ...]]]:
    """Return what a backfill wrote: window start to its rows, repeats and all."""
    rows = Table(lab.home.tables.corrections).read(where=pc.field("_backfill") == backfill)
    rows_of_window: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for row in [] if rows is None else rows.to_pylist():
        rows_of_window[int(row["window_start"].timestamp() * 1000)].append(
            (row["k"], row["n"], row["total"], row["top"])
        )
    return rows_of_window


def require_truth(lab: Lab, plan: BackfillPlan) -> None:
    """Require that a backfill holds the oracle's rows, each once."""
    held, wanted = corrections(lab, plan.id), expected_versions(lab, plan)
    differ = [
        start for start in held.keys() | wanted.keys() if sorted(held.get(start, [])) != sorted(wanted.get(start, ()))
    ]
    lab.fact("backfilled_windows", len(wanted))
    require(
        not differ,
        f"windows {differ[:3]} hold {[held.get(s) for s in differ[:3]]}, the log gives {[wanted.get(s) for s in differ[:3]]}",
    )


def published(lab: Lab, backfill: str) -> list[int]:
    """Return the numbers of the entries in the sequence that publish a backfill."""
    return [entry.seq for entry in publications_of(read_sequence(lab.home)) if entry.backfill == backfill]


class Reader(threading.Thread):
    """Rebuilds what is served as the agent does, and reads it as a user does, until it is stopped."""

    def __init__(self, lab: Lab) -> None:
        """Create the reader; it keeps every version of every window that it saw."""
        super().__init__(daemon=True)
        self._lab = lab
        self._over = threading.Event()
        self.versions: dict[int, set[tuple[str, Version]]] = defaultdict(set)
        self.torn: list[str] = []
        self.reads = 0
        self.error: Exception | None = None

    def run(self) -> None:
        """Rebuild and read."""
        builder = threading.Thread(target=self._build, daemon=True)
        builder.start()
        while not self._over.is_set():
            try:
                self._read()
            except Exception as error:  # a thread's error must reach the case
                self.error = error
                return
        builder.join(30)

    def _build(self) -> None:
        while not self._over.wait(0.05):
            rebuild_served(self._lab.home, self._lab.definition)

    def _read(self) -> None:
        table = read_served(self._lab.home)
        windows: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in [] if table is None else table.to_pylist():
            windows[int(row["window_start"].timestamp() * 1000)].append(row)
        self.reads += 1
        for start, rows in windows.items():
            sources = {row["_backfill"] or row["_status"] for row in rows}
            if len(sources) > 1 or len({row["k"] for row in rows}) < len(rows):
                self.torn.append(f"window {start} is served by {sources} at once")
            version = frozenset((row["k"], row["n"], row["total"], row["top"]) for row in rows)
            self.versions[start].add((min(sources), version))

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self.join(60)
        if self.error is not None:
            raise self.error


@case(
    "F34",
    "two backfills and the stream publish the same windows at once: a reader sees one version or another",
    judge=True,
)
def backfills_race_stream(lab: Lab) -> None:
    """Every version of a window that was ever served is wholly the stream's, or wholly one publication's."""
    lab.produce(lab.next_plan(records=300, closing=False, late_share=0.3))
    driver, steps = lab.start_driver(), lab.steps()
    lab.until(lambda: steps.idle(lab.produced), 180, "the end of the first chapter")
    first = plan_range(lab, BEGIN_MS, closed_ms(lab))
    lab.produce(lab.next_plan(records=100, closing=False, late_share=0.3))
    lab.until(lambda: steps.idle(lab.produced), 180, "the end of the second chapter")
    second = plan_range(lab, BEGIN_MS, closed_ms(lab))
    for plan in (first, second):
        run_command(lab, "backfill", "run", PIPELINE, "--id", plan.id, "--no-publish")
    reader = Reader(lab)
    reader.start()
    lab.until(lambda: reader.reads > 2, 60, "the reader's first reads")
    lab.produce(lab.next_plan(records=300, late_share=0.3))
    planned = steps.last_planned()
    lab.until(lambda: steps.last_planned() > planned + lab.random.randrange(3), 60, "the stream's next batch")
    with ThreadPoolExecutor(2) as pool:
        plans = [first, second]
        lab.random.shuffle(plans)
        outcomes = list(pool.map(_publish(lab), plans))
    lab.until(lambda: steps.idle(lab.produced), 180, "the end of the log")
    reads_before = reader.reads
    lab.until(lambda: reader.reads > reads_before + 3, 60, "the reader's last reads")
    reader.stop()
    driver.send_signal(signal.SIGTERM)
    require(lab.wait(driver, 60) == 0, f"the driver did not drain; {lab.log_end()}")
    lab.fact("reads", reader.reads)
    lab.fact("outcomes", sorted(outcomes))
    require(not reader.torn, f"torn: {reader.torn[:3]}")
    require(bool(published(lab, second.id)), "the backfill that read more was not published")
    for plan in (first, second):
        require_truth(lab, plan)
    _require_whole(lab, reader.versions)


def _publish(lab: Lab) -> Callable[[BackfillPlan], str]:
    def publish(plan: BackfillPlan) -> str:
        try:
            publish_backfill(lab.settings, plan)
        except RequestError:  # the other one read more of the log and was first
            return "refused"
        return "published"

    return publish


def _require_whole(lab: Lab, versions: Mapping[int, set[tuple[str, Version]]]) -> None:
    """Require that every version seen is all that one source has of the window."""
    stream: dict[int, set[tuple[Any, ...]]] = defaultdict(set)
    table = Table(lab.home.tables.changelog).read()
    for row in [] if table is None else table.to_pylist():
        stream[int(row["window_start"].timestamp() * 1000)].add((row["k"], row["n"], row["total"], row["top"]))
    made = {entry.backfill: corrections(lab, entry.backfill) for entry in publications_of(read_sequence(lab.home))}
    changed = 0
    for start, served_versions in versions.items():
        changed += len(served_versions) > 1
        for source, version in served_versions:
            whole = stream[start] if source == "stream" else set(made[source].get(start, []))
            require(version == whole, f"window {start} was served by {source} as {version}, it has {whole}")
    lab.fact("windows_that_changed", changed)
    require(changed > 0, "no window changed while it was read")


@case(
    "F35", "a backfill killed in its chunks, at its audit and when it is published; then run again, and again", kills=3
)
def backfill_killed(lab: Lab) -> None:
    """No part is ever visible; in the end each row exists once and is published once, and one more run changes nothing."""
    lab.produce(lab.next_plan(records=300, late_share=0.3))
    lab.run_to_end()
    plan = plan_range(lab, BEGIN_MS, closed_ms(lab), chunk_records=40)
    require(len(plan.chunks) > 3, f"{len(plan.chunks)} chunks are too few to be killed between")
    words = ("backfill", "run", PIPELINE, "--yes", "--id", plan.id)
    table = DeltaLog(Path(lab.home.tables.corrections))
    chunk = lab.random.randrange(0, len(plan.chunks) - 1)
    audit = backfill_folder(lab.home, plan.id) / "audit.json"
    moments = (
        Moment(f"chunk {chunk}", lambda: (table.transaction(backfill_app(plan.id)) or -1) >= chunk),
        Moment("audited", audit.exists),
        Moment("published", lambda: bool(published(lab, plan.id))),
    )
    struck = []
    for moment in moments:
        if kill_at(lab, words, moment, patience_s=240):
            struck.append(moment.name)
        report = rebuild_served(lab.home, lab.definition)
        visible = report.published > 0
        require(visible <= bool(published(lab, plan.id)), f"rows are served of a backfill killed at {moment.name}")
    lab.fact("struck", struck)
    run_command(lab, *words)
    before = table.versions()
    entries = published(lab, plan.id)
    require(len(entries) == 1, f"the backfill is published at {entries}")
    run_command(lab, *words)
    require(table.versions() == before, "one more run wrote corrections")
    require(published(lab, plan.id) == entries, "one more run published again")
    require_truth(lab, plan)
    rebuild_served(lab.home, lab.definition)


@case(
    "F35/overlap",
    "backfills that overlap, one of them older; windows that are open",
    proves=("howto-correct.md#what-a-plan-says",),
)
def backfills_overlap(lab: Lab) -> None:
    """The newest publication wins whole windows; one that read less of the log is refused; an open window is the stream's."""
    lab.produce(lab.next_plan(records=300, closing=False, late_share=0.3))
    lab.run_to_end()
    end = closed_ms(lab)
    middle = (BEGIN_MS + end) // 2
    old = plan_range(lab, BEGIN_MS, middle + 30_000)
    try:
        plan_range(lab, end + 10_000, end + 20_000)
        require(False, "a window that is open was planned")
    except RequestError as error:
        require("closed" in str(error), f"the refusal says {error}")
    lab.produce(lab.next_plan(records=200, late_share=0.3))
    lab.run_to_end()
    left, right = plan_range(lab, BEGIN_MS, middle + 20_000), plan_range(lab, middle - 20_000, closed_ms(lab))
    for plan in (old, left, right):
        run_command(lab, "backfill", "run", PIPELINE, "--id", plan.id, "--no-publish")
        require_truth(lab, plan)
    order = [left, right]
    lab.random.shuffle(order)
    for plan in order:
        publish_backfill(lab.settings, plan)
    try:
        publish_backfill(lab.settings, old)
        require(False, "a backfill that read less of the log was published over one that read more")
    except RequestError as error:
        require("read less of the log" in str(error), f"the refusal says {error}")
    rebuild_served(lab.home, lab.definition)
    table = read_served(lab.home)
    owner = {
        int(row["window_start"].timestamp() * 1000): row["_backfill"]
        for row in ([] if table is None else table.to_pylist())
    }
    size = left.window_ms
    for start, backfill in owner.items():
        covering = [
            plan.id for plan in order if any(low <= start and start + size <= high for low, high in plan.ranges)
        ]
        require(
            backfill == (covering[-1] if covering else None),
            f"window {start} is served by {backfill}, not {covering[-1:]}",
        )


@case(
    "F36",
    "a backfill half from the archive, half from Kafka, with overlap: each offset once",
    proves=("howto-correct.md#what-a-plan-says",),
)
def across_the_seam(lab: Lab) -> None:
    """The sums are the oracle's: an offset read twice or not at all would change them."""
    lab.produce(lab.next_plan(records=400, late_share=0.3))
    lab.run_to_end()
    ends = kafka.end_offsets(lab.settings, lab.topic)
    upto = {p: lab.random.randint(end // 2, end - 1) for p, end in ends.items()}
    extend_archive(None, lab.settings, lab.topic, upto=upto, chunk_records=lab.random.choice([37, 1000]))
    cut = {p: lab.random.randint(1, upto[p]) for p in ends}  # below the archive's end: both have [cut, upto)
    kafka.delete_records(lab.settings, lab.topic, cut)
    plan = plan_range(lab, BEGIN_MS, closed_ms(lab), chunk_records=lab.random.choice([50, 1_000_000]))
    _require_once(plan, lab.topic)
    only_archive, only_kafka = sum(cut.values()), sum(ends[p] - upto[p] for p in ends)
    lab.fact(
        "offsets", {"only_archive": only_archive, "both": sum(upto.values()) - only_archive, "only_kafka": only_kafka}
    )
    run_command(lab, "backfill", "run", PIPELINE, "--yes", "--id", plan.id)
    require_truth(lab, plan)
    rebuild_served(lab.home, lab.definition)


def _require_once(plan: BackfillPlan, topic: str) -> None:
    """Require that the plan takes every offset from the archive or from Kafka, and none from both."""
    for partition, runs in plan.offsets[topic].items():
        wanted = {offset for start, end in runs for offset in range(start, end)}
        sides = [
            [offset for start, end in side.get(topic, {}).get(partition, ()) for offset in range(start, end)]
            for side in (plan.archive, plan.kafka)
        ]
        require(bool(sides[0]) and bool(sides[1]), f"partition {partition} is read from one side only: {plan.archive}")
        require(sorted([*sides[0], *sides[1]]) == sorted(wanted), f"partition {partition} is not read once: {sides}")
