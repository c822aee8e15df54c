"""F19, F20: the topic is created again, grows a partition, or holds transactions."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from lab.faults.cases import case, require
from lab.faults.events import Event, EventPlan, plan_events
from lab.faults.lab import PIPELINE, Lab
from lab.faults.retention_runs import RETENTION, ask, committed, judged, reconcile, require_stop
from rivertwice.log import kafka
from rivertwice.log.archive import extend_archive
from rivertwice.reconcile.model import STREAM
from rivertwice.timeline.intent import Exit
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.verdicts import Verdict


def recreate(lab: Lab, events: list[Event]) -> None:
    """Delete the topic, create it again under its name, and fill it."""
    partitions = len(kafka.end_offsets(lab.settings, lab.topic))
    kafka.delete_topic(lab.settings, lab.topic)
    lab.until(lambda: not kafka.topic_exists(lab.settings, lab.topic), 30, "the topic's end")
    kafka.ensure_topic(lab.settings, lab.topic, partitions)
    lab.produce_events(events)


def other_story(lab: Lab, records: int) -> list[Event]:
    """Return events of another story, as many as the new topic is to have."""
    return plan_events(EventPlan(seed=lab.seed + 7919, partitions=3, records=records))


@case(
    "F19",
    "the topic deleted and created again between two runs: recognised by its id, nothing is read from it",
    judge=False,
    proves=("guarantees.md#what-everything-needs",),
)
def topic_recreated(lab: Lab) -> None:
    """With fewer records than before (offsets go backwards), or with more, where only the id distinguishes them."""
    lab.produce(lab.next_plan(records=300))
    lab.run_to_end()
    extend_archive(None, lab.settings, lab.topic)
    records = lab.random.choice([60, 900])
    lab.fact("records_in_new_topic", records)
    recreate(lab, other_story(lab, records))
    require_stop(lab, RETENTION, "was deleted and created again")
    reconcile(lab)
    rows = judged(lab, STREAM)
    require(
        bool(rows) and all(row[2] in (Verdict.AGREES, Verdict.LATE, Verdict.OPEN) for row in rows),
        f"verdicts are {rows[:3]}",
    )
    retention = ask(lab, "admin", "retention", PIPELINE)
    require(retention["same_topic"] is False, "the retention view does not see that the topic is another one")


@case("F19/running", "the topic deleted and created again while the stream runs", judge=False)
def topic_recreated_running(lab: Lab) -> None:
    """Nothing of the new topic is committed, however many records it has."""
    lab.produce(lab.next_plan(records=200))
    driver, steps = lab.start_driver(), lab.steps()
    lab.until(lambda: steps.idle(lab.produced), 180, "the end of the log")
    before = [(row.timeline, row.batch) for row in path_ledger(lab.home)]
    extend_archive(None, lab.settings, lab.topic)
    recreate(lab, other_story(lab, lab.random.choice([60, 900])))
    code = lab.wait(driver, 180)
    ended = Exit.load(lab.home)
    require(code == 1 and ended is not None and ended.failure == RETENTION, f"the driver ended with {code}, {ended}")
    require(ended is not None and "created again" in ended.message, f"the message is {ended and ended.message}")
    after = [(row.timeline, row.batch) for row in path_ledger(lab.home)]
    empty = {(row.timeline, row.batch) for row in path_ledger(lab.home) if row.read == 0}
    require(set(after) - set(before) <= empty, f"batches {set(after) - set(before)} were committed from another topic")
    reconcile(lab)


@case("F19/partition", "a partition added while the stream runs: it is read from its first record")
def partition_added(lab: Lab) -> None:
    """Adopted: the ledger, the archive and the recompute know it from then on."""
    lab.produce(lab.next_plan(records=200, closing=False))
    driver, steps = lab.start_driver(), lab.steps()
    batch = lab.random.randrange(0, 3)
    lab.until(lambda: steps.finished(batch), 120, f"commits/{batch}")
    extend_archive(None, lab.settings, lab.topic)
    kafka.add_partitions(lab.settings, lab.topic, 4)
    lab.produce(replace(lab.next_plan(records=300), partitions=4))
    lab.until(lambda: steps.idle(lab.produced), 180, "the end of the log, with the new partition,")
    driver.terminate()
    require(lab.wait(driver, 60) == 0, f"the driver did not drain; {lab.log_end()}")
    require(3 in committed(lab), "the new partition was never read")
    added = extend_archive(None, lab.settings, lab.topic)
    require(3 in added.added, f"the archive added {added.added}")
    reconcile(lab)


def transact(lab: Lab, events: list[Event]) -> Any:
    """Produce events in a transaction and leave it open; all of them are in the log."""
    producer = kafka.producer(lab.settings, transactional_id=lab.topic)
    producer.init_transactions(30)
    producer.begin_transaction()
    for event in events:
        producer.produce(
            lab.topic,
            value=event.value,
            key=event.key,
            partition=event.partition,
            timestamp=event.timestamp_ms,
            headers=list(event.headers),
        )
    require(producer.flush(30) == 0, "the transaction's records were not acknowledged")
    return producer


@case(
    "F20",
    "a transaction in the log, open, then aborted or committed: read when committed, never else",
    proves=("howto-log.md#transactions-and-compaction",),
)
def transaction_in_log(lab: Lab) -> None:
    """While it is open the stream waits in front of it. Then it reads what was committed; markers and aborted records are absent."""
    lab.produce(lab.next_plan(records=200, closing=False))
    in_front = kafka.end_offsets(lab.settings, lab.topic)
    story = plan_events(lab.next_plan(records=120))
    open_one = transact(lab, story)
    driver, steps = lab.start_driver(), lab.steps()
    lab.until(lambda: steps.idle(lab.produced), 120, "all records in front of the transaction")
    time.sleep(3.0)  # time enough to read what must not be read
    require(
        all(committed(lab)[p] <= in_front[p] for p in in_front),
        f"{committed(lab)} is committed, {in_front} was allowed",
    )
    abort = lab.random.random() < 0.5
    lab.fact("transaction", "aborted" if abort else "committed")
    (open_one.abort_transaction if abort else open_one.commit_transaction)(30)
    lab.kill_when(driver, lambda: committed(lab) == kafka.stable_ends(lab.settings, lab.topic))
    lab.produce(lab.next_plan(records=200))
    lab.run_to_end()
    rows = path_ledger(lab.home)
    read, visible = sum(row.read for row in rows), lab.produced + (0 if abort else len(story))
    require(read == visible, f"{read} records were read, {visible} can be")
    absent = sum(number for row in rows for number in row.absent.get(lab.topic, {}).values())
    ends = kafka.end_offsets(lab.settings, lab.topic)
    require(absent == sum(ends.values()) - visible, f"{absent} offsets are absent, of {ends}")
    reconcile(lab)
