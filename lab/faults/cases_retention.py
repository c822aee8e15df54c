"""F18: the log loses records. Read records may go; unread ones are named, and never skipped in silence."""

from __future__ import annotations

import time

from lab.faults.cases import case, require
from lab.faults.lab import PIPELINE, Lab
from lab.faults.retention_runs import (
    RETENTION,
    ask,
    called_equal,
    committed,
    judged,
    reconcile,
    require_stop,
    to_ms,
)
from lab.faults.savepoint_runs import alerts, caught_up, events, kill_owned
from lab.oracle.expect import truth
from lab.oracle.sources import read_log
from rivertwice.agent.memory import load_memory
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import utc_now
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges
from rivertwice.log.archive import extend_archive
from rivertwice.log.gaps import REPAIRABLE, Gap
from rivertwice.reconcile.acknowledgements import NOTHING_COMPARED
from rivertwice.reconcile.model import SERVED, STREAM
from rivertwice.retention.accept import accept_gap
from rivertwice.storage.table import Table
from rivertwice.timeline.intent import Exit, write_intent
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.served import read_served
from rivertwice.timeline.verdicts import Verdict


def require_only_jump(lab: Lab, gap: Gap) -> None:
    """Let the oracle judge a run that went past a gap: it may find the jump, which it does not know, and nothing else."""
    judgement = lab.judge()
    lab.fact(
        "judged",
        {
            "records": judgement.records,
            "lost": judgement.lost,
            "wrong": judgement.wrong,
            "duplicated": judgement.duplicated,
        },
    )
    jumps = [text for text in judgement.findings if "the log was read to" in text]
    require(len(jumps) == 1 and judgement.unexplained == 1, f"the oracle finds {judgement.findings}")
    require(not (judgement.lost or judgement.wrong or judgement.duplicated), f"the oracle finds {judgement.findings}")
    first = next(row for row in path_ledger(lab.home) if row.timeline != gap.timeline)
    starts = {int(p): int(offset) for p, offset in first.start_offsets[lab.topic].items()}
    require(
        all(starts[p] == end for p, (_, end) in gap.ranges.items()),
        f"the child begins at {starts}, not right after {gap.ranges}",
    )


def forget(lab: Lab, archived_share: float | None) -> OffsetRanges:
    """Stream a chapter, produce another, and let Kafka forget part of it before it is read; return that part.

    Args:
        lab: the run.
        archived_share: how much of what will be lost the archive gets before; None leaves the archive empty.
    """
    lab.produce(lab.next_plan(records=300, closing=False))
    lab.run_to_end()
    place = committed(lab)
    lab.produce(lab.next_plan(records=300))
    ends = kafka.end_offsets(lab.settings, lab.topic)
    hit = sorted(lab.random.sample(sorted(place), lab.random.randint(1, len(place))))
    cut = {p: place[p] + lab.random.randint(1, max(1, (ends[p] - place[p]) // 2)) for p in hit}
    if archived_share is not None:
        upto = {p: place[p] + int((cut.get(p, place[p]) - place[p]) * archived_share) for p in place}
        extend_archive(None, lab.settings, lab.topic, upto=upto)
    kafka.delete_records(lab.settings, lab.topic, cut)
    lost = {p: (place[p], cut[p]) for p in hit}
    lab.fact("lost_offsets", sum(end - start for start, end in lost.values()))
    return lost


def lose(lab: Lab, archived_share: float | None) -> Gap:
    """Let Kafka forget unread records, and require that two starts stop in front of them with the same words."""
    lost = forget(lab, archived_share)
    named = [f"partition {p} [{start}, {end})" for p, (start, end) in lost.items()]
    first = require_stop(lab, RETENTION, *named, "--accept-gap gap-")
    again = require_stop(lab, RETENTION, *named)
    require(first == again, "a second start gives another message")
    return recorded_gap(lab, lost)


def recorded_gap(lab: Lab, lost: OffsetRanges) -> Gap:
    """Return the one recorded gap; it must be what was lost."""
    gaps = Gap.recorded(lab.home)
    require(len(gaps) == 1 and gaps[0].ranges == lost, f"recorded are {gaps}, lost is {lost}")
    return gaps[0]


def go_past(lab: Lab, gap: Gap) -> None:
    """Accept the gap, stream on to the end of the log, and let the oracle judge."""
    accept_gap(lab.settings, PIPELINE, gap.id, by="lab", now=utc_now())
    again = accept_gap(lab.settings, PIPELINE, gap.id, by="lab", now=utc_now())
    require(again.timeline == lab.timeline, "accepting twice gives another timeline")
    lab.run_to_end()
    require_only_jump(lab, gap)


def touched(gap: Gap, start: int, end: int) -> bool:
    """Say whether a lost record may belong to a window."""
    return end > gap.watermark_ms and (gap.until_ms is None or start <= gap.until_ms)


@case("F18", "records below the committed offsets deleted: nothing is missing, the stream continues")
def deleted_below(lab: Lab) -> None:
    """What is read and committed may go, up to the very last offset."""
    lab.produce(lab.next_plan(records=300, closing=False))
    lab.run_to_end()
    place = committed(lab)
    kafka.delete_records(lab.settings, lab.topic, {p: lab.random.choice([end, end // 2]) for p, end in place.items()})
    lab.produce(lab.next_plan(records=300))
    lab.run_to_end()
    require(not Gap.recorded(lab.home), "a gap is recorded although nothing was missed")


@case(
    "F18/above",
    "records deleted before they were read: stop, name, record; accepted, exact after the gap",
    judge=False,
    proves=("howto-log.md#what-a-reconcile-says-then", "guarantees.md#what-everything-needs"),
)
def deleted_above(lab: Lab) -> None:
    """The archive has what the stream read, or half of what was lost too; windows the gap touches never agree."""
    gap = lose(lab, lab.random.choice([0.0, 0.5]))
    try:
        accept_gap(lab.settings, PIPELINE, "gap-000000000000", by="lab", now=utc_now())
        require(False, "a gap nobody recorded was accepted")
    except RequestError:
        pass
    go_past(lab, gap)
    reconcile(lab)
    verdicts = judged(lab, STREAM) + judged(lab, SERVED)
    inside = [row for row in verdicts if touched(gap, row[0], row[1])]
    require(any(row[2] == Verdict.NOT_COMPARABLE for row in inside), "no window is NOT_COMPARABLE")
    wrong = [row for row in inside if row[2] not in (Verdict.NOT_COMPARABLE, Verdict.OPEN)]
    require(not wrong, f"windows that the gap touches are called {wrong[:3]}")
    outside = [row for row in verdicts if not touched(gap, row[0], row[1])]
    doubted = [
        row for row in outside if row[2] not in (Verdict.AGREES, Verdict.LATE) and not row[3].startswith(REPAIRABLE)
    ]
    require(not doubted, f"windows that the gap cannot touch are in doubt: {doubted[:3]}")
    lab.fact("verdicts", {"touched": len(inside), "others": len(outside)})


@case(
    "F18/agent",
    "records deleted above under an agent: a page that names them, then the command that continues",
    judge=False,
)
def deleted_under_agent(lab: Lab) -> None:
    """The agent tries once, gives up and pages; it starts nothing by itself, and continues when a person asks for it."""
    lost = forget(lab, 0.5)
    write_intent(lab.home, "running", by="lab", now=utc_now())
    with lab.agent():
        lab.until(lambda: load_memory(lab.settings, PIPELINE).broken_at is not None, 180, "the agent's giving up")
        gap = recorded_gap(lab, lost)
        messages = [alert["message"] for alert in alerts(lab) if alert["kind"] == RETENTION]
        named = [f"partition {p} [{start}, {end})" for p, (start, end) in lost.items()]
        require(
            any(gap.id in text and all(name in text for name in named) for text in messages),
            f"the pages are {messages}",
        )
        time.sleep(3.0)
        require(events(lab).count("start") == 1, f"the agent's events are {events(lab)}")
        answer = ask(lab, "start", PIPELINE, "--accept-gap", gap.id, "--yes")
        require(answer["accepted"]["timeline"] == lab.timeline, f"the command answers {answer}")
        lab.until(lambda: caught_up(lab), 180, "the end of the log")
    kill_owned(lab)
    require_only_jump(lab, gap)


@case(
    "F18/running", "records deleted above while the stream runs and lags: it stops, and the gap is named", judge=False
)
def deleted_while_running(lab: Lab) -> None:
    """Spark notices while it reads; its message is turned into partition and offsets."""
    lab.produce(lab.next_plan(records=1500))
    driver, steps = lab.start_driver(), lab.steps()
    batch = lab.random.randrange(1, 5)
    lab.until(lambda: steps.finished(batch), 120, f"commits/{batch}")
    ends = kafka.end_offsets(lab.settings, lab.topic)
    kafka.delete_records(lab.settings, lab.topic, {p: end - lab.random.randint(20, 60) for p, end in ends.items()})
    code = lab.wait(driver, 180)
    ended = Exit.load(lab.home)
    require(code == 1 and ended is not None and ended.failure == RETENTION, f"the driver ended with {code}, {ended}")
    (gap,) = Gap.recorded(lab.home)
    require(ended is not None and gap.id in ended.message, f"the message is {ended and ended.message}")
    place, begin = committed(lab), kafka.begin_offsets(lab.settings, lab.topic)
    require(gap.ranges == {p: (place[p], begin[p]) for p in place}, f"{gap.ranges} is recorded, {place} was committed")
    lab.fact("lost_offsets", gap.lost)
    go_past(lab, gap)


@case(
    "F18/unarchived",
    "records deleted above and nothing archived: no window is called equal whose records are gone",
    judge=False,
    proves=("architecture.md#the-laws", "howto-log.md#what-a-reconcile-says-then"),
)
def deleted_without_archive(lab: Lab) -> None:
    """Kafka forgets what was read too, so even what the stream had to emit can no longer be derived.

    If that leaves nothing to compare, the gate fails until somebody accepts it.
    """
    gap = lose(lab, None)
    go_past(lab, gap)
    outcome = reconcile(lab, but=[NOTHING_COMPARED])
    if not outcome["gate"]["passed"]:
        ask(lab, "verdicts", PIPELINE, "--accept", "--reason", "the lab deleted the records")
        require(reconcile(lab)["gate"]["passed"], "the gate does not pass what was accepted")
    lab.fact("acknowledged", not outcome["gate"]["passed"])
    gone = gap.ranges
    early = [row for row in path_ledger(lab.home) if row.timeline == gap.timeline and row.max_event_ms is not None]
    unread = [row for row in early if any(row.ranges(lab.topic).get(p, (0, 0))[0] < gone[p][0] for p in gone)]
    for start, end, verdict, reason in judged(lab, STREAM):
        doubted = any(end > (row.min_event_ms or 0) and start <= (row.max_event_ms or 0) for row in unread)
        if doubted:
            require(
                verdict in (Verdict.NOT_COMPARABLE, Verdict.OPEN),
                f"window {start} is called {verdict} ({reason}), its records are gone",
            )


@case(
    "F18/archived",
    "records deleted above, all of them archived: a backfill brings them back",
    judge=False,
    proves=("howto-log.md#what-can-be-repaired",),
)
def deleted_but_archived(lab: Lab) -> None:
    """The stream's rows stay NOT_COMPARABLE; what is served becomes right again, as the reconcile proposes."""
    gap = lose(lab, 1.0)
    require(gap.lost == 0, f"{gap.lost} offsets are lost although all are archived")
    go_past(lab, gap)
    reconcile(lab)
    before = [row for row in judged(lab, SERVED) if row[2] == Verdict.NOT_COMPARABLE]
    require(all(row[3].startswith(REPAIRABLE) for row in before) and bool(before), f"served windows are {before[:3]}")
    unread = [row[:3] for row in judged(lab, STREAM) if row[2] == Verdict.NOT_COMPARABLE]
    require(bool(unread), "no row of the stream is NOT_COMPARABLE though it never read the records")
    require_true(lab)
    ask(lab, "backfill", "run", PIPELINE, "--yes")
    reconcile(lab)
    after = [row for row in judged(lab, SERVED) if row[2] == Verdict.NOT_COMPARABLE]
    require(not after, f"after the backfill served windows are still {after[:3]}")
    stays = [row[:3] for row in judged(lab, STREAM) if row[2] == Verdict.NOT_COMPARABLE]
    require(sorted(stays) == sorted(unread), f"rows of the stream were {unread[:3]} and are {stays[:3]}")
    require_true(lab)
    lab.fact("repaired_rows", len(before))


def require_true(lab: Lab) -> None:
    """Require of every row that is called equal that it is what the oracle makes of all records, the lost ones too."""
    records = read_log(lab.settings.bootstrap_servers(), lab.topic, lab.folder / "produced.jsonl").records
    sums, _ = truth(records)
    tables = {STREAM: Table(lab.home.tables.changelog).read(), SERVED: read_served(lab.home)}
    checked = 0
    for pair, table in tables.items():
        rows = {(to_ms(row["window_start"]), row["k"]): row for row in ([] if table is None else table.to_pylist())}
        for start, key in called_equal(lab, pair, rows):
            row, wanted = rows[start, key], sums[start, key]
            same = (row["n"], row["total"], row["top"]) == (wanted.n, wanted.total, wanted.top)
            require(same, f"{pair} {start} {key} is called equal, but holds {row} and not {wanted}")
            checked += 1
    lab.fact("called_equal_and_true", checked)
    require(checked > 0, "no row is called equal")
