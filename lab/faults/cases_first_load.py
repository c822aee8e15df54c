"""F55: a first load by batch killed around each of its steps; the same command, or a driver, continues it."""

from __future__ import annotations

from typing import Any

from lab.faults.cases import case, require
from lab.faults.cases_backfill import published, require_truth
from lab.faults.events import BEGIN_MS
from lab.faults.lab import PIPELINE, Lab
from lab.faults.reconcile_runs import require_as_full, require_once, stream_chapter
from lab.faults.retention_runs import ask, reconcile, to_ms
from lab.faults.savepoint_runs import command_log, start_command
from lab.faults.strikes import AFTER, BEFORE, Strike, strike_command, strike_driver
from lab.oracle.expect import truth
from lab.oracle.sources import read_log
from rivertwice.backfill.load_plan import REASON
from rivertwice.backfill.load_state import unloaded_windows
from rivertwice.backfill.store import list_backfills, load_backfill_plan
from rivertwice.timeline.first_load import FirstLoad
from rivertwice.timeline.lineage import Timeline, path_ledger
from rivertwice.timeline.sequence import head, read_sequence
from rivertwice.timeline.served import read_served, rebuild_served
from rivertwice.timeline.served_rows import publications_of

START = ("start", PIPELINE, "--from-batch")
_LOAD, _LOADED = "rivertwice.backfill.load", "rivertwice.stream.loaded"
SMALL = {"rivertwice.backfill.load_plan:LEAST_BLOCK": 10, f"{_LOAD}:MAX_WINDOWS": 15}
"""The lab's log is short: so it has several blocks, and its windows several backfills."""


def struck(name: str, function: str, when: str = AFTER, count: int = 1) -> Strike:
    """Return a strike in a load that is cut into several backfills."""
    return Strike(name, function, when, count, SMALL)


RECORDED = (
    struck("the topic archived, nothing planned", f"{_LOAD}:extend_archive"),
    struck("planned, not recorded", f"{_LOAD}:record_load", BEFORE),
    struck("its event times recorded, not the load", "rivertwice.timeline.first_load:_record_zones"),
    struck("the load recorded", f"{_LOAD}:record_load"),
)
BEGUN = (
    struck("the timeline recorded", f"{_LOADED}:create_timeline"),
    struck("no rows published for the windows to load", f"{_LOADED}:publish"),
    struck("the head moved", f"{_LOADED}:move_head"),
)
PUBLISHED = (
    struck("a backfill planned", f"{_LOAD}:save_plan"),
    struck("a chunk computed, not committed", "rivertwice.backfill.compute:write_chunk", BEFORE),
    struck("a chunk committed", "rivertwice.backfill.compute:write_chunk"),
    struck("a backfill computed", f"{_LOAD}:compute_backfill"),
    struck("a backfill audited", f"{_LOAD}:audit_backfill"),
    struck("a backfill published", f"{_LOAD}:publish_backfill"),
    struck("the second backfill computed", f"{_LOAD}:compute_backfill", AFTER, 2),
)
"""Each step of a first load, in order; what was killed is continued by the next one."""


@case(
    "F55",
    "a first load by batch killed around every step: archive, record, timeline, head, stream, and each step of its backfills",
    kills=len(RECORDED) + len(BEGUN) + 1 + len(PUBLISHED),
)
def killed_in_a_first_load(lab: Lab) -> None:
    """It is recorded once and begins once, each window is published once, and what is served of the past is the log's truth."""
    lab.produce(lab.next_plan(records=600, late_share=0.2, closing=False))
    for strike in RECORDED:
        require(FirstLoad.load(lab.home) is None, f"a load is recorded before it was killed at '{strike.name}'")
        strike_command(lab, strike, *START)
    load = FirstLoad.load(lab.home)
    require(load is not None, "a load that was killed right after its record is not recorded")
    assert load is not None, "required above"
    require(head(lab.home) is None, "the head moved before the load was recorded")
    for strike in BEGUN:
        if lab.random.random() < 0.5:
            strike_driver(lab, strike)
        else:
            strike_command(lab, strike, *START)
    require(head(lab.home) == load.timeline, f"the head is {head(lab.home)}, not {load.timeline}")
    code = lab.wait(start_command(lab, *START))
    require(code not in (0, -9), f"with no driver it ended with {code}: {command_log(lab)}")
    close_windows(lab, load)
    for strike in PUBLISHED:
        strike_command(lab, strike, *START)
    said = ask(lab, *START)
    require(said["load"]["id"] == load.id, f"it continued {said['load']['id']}, not {load.id}")
    require_loaded(lab, load)
    again = ask(lab, *START)
    require(again["load"]["published"] == [], f"a finished load published again: {again['load']}")
    report = reconcile(lab)
    counts = report["counts"]["served"]
    require(counts.get("AGREES", 0) > 0 and not counts.get("LATE"), f"after the load it serves {counts}")
    stream_chapter(lab)
    report = reconcile(lab)
    require_as_full(lab, report["run"])
    require_once(lab)


def close_windows(lab: Lab, load: FirstLoad) -> None:
    """Stream what the load left, with a kill, to the end of the log."""
    driver, steps = lab.start_driver(), lab.steps()
    require(lab.kill_when(driver, lambda: steps.published(0)), f"the driver ended before batch 0; {lab.log_end()}")
    lab.run_to_end()
    rows = path_ledger(lab.home)
    begins = {str(p): end for p, (_, end) in load.ranges.items()}
    require(
        {p: int(offset) for p, offset in rows[0].start_offsets[lab.topic].items()} == begins,
        f"the stream began at {rows[0].start_offsets}, the load ends at {begins}",
    )
    left_out = sum(end - start for start, end in load.ranges.values())
    lab.fact("left_out", f"{left_out} of {lab.produced}")
    require(left_out > lab.produced // 2, f"only {left_out} of {lab.produced} records are loaded")
    require(sum(row.read for row in rows) == lab.produced - left_out, "what is loaded was streamed too, or skipped")


def require_loaded(lab: Lab, load: FirstLoad) -> None:
    """Require one record, one timeline, each window published once by a plan that was made once, and the log's truth served."""
    require(FirstLoad.load(lab.home) == load, "the record of the load changed")
    require(list(Timeline.names(lab.home)) == [load.timeline], f"timelines are {Timeline.names(lab.home)}")
    entries = read_sequence(lab.home)
    heads = [entry for entry in entries if entry.kind == "head"]
    require(len(heads) == 1, f"the head moved {len(heads)} times")
    publications = publications_of(entries)
    require(
        published(lab, load.cover) == [publications[0].seq],
        f"{load.cover} is published at {published(lab, load.cover)}",
    )
    plans = [load_backfill_plan(lab.home, each) for each in list_backfills(lab.home)]
    require(all(plan.reason == REASON for plan in plans), "there is a backfill that no load made")
    require(len(plans) > 2, f"{len(plans)} backfills: the load was not cut into several")
    for plan in plans:
        require(len(published(lab, plan.id)) == 1, f"{plan.id} is published at {published(lab, plan.id)}")
        require_truth(lab, plan)
    require(not unloaded_windows(lab.home, load), f"windows are left: {unloaded_windows(lab.home, load)}")
    windows = sum((end - start) // plan.step for plan in plans for start, end in plan.ranges)
    lab.fact("backfills", f"{len(plans)} of {windows} windows")
    require(windows == (load.before_ms - load.since_ms) // plans[0].step, f"{windows} windows were published")
    require_served_truth(lab, load)


def require_served_truth(lab: Lab, load: FirstLoad) -> None:
    """Require that what is served of the loaded windows is what the oracle computes from the log, each row once."""
    rebuild_served(lab.home, lab.definition)
    table = read_served(lab.home)
    rows: list[dict[str, Any]] = [] if table is None else table.to_pylist()
    served = sorted(
        (to_ms(row["window_start"]), row["k"], row["n"], row["total"], row["top"])
        for row in rows
        if load.has(to_ms(row["window_start"]))
    )
    log = read_log(lab.settings.bootstrap_servers(), lab.topic, lab.folder / "produced.jsonl")
    sums, _ = truth(log.records)
    wanted = sorted((start, key, row.n, row.total, row.top) for (start, key), row in sums.items() if load.has(start))
    missing, more = [row for row in wanted if row not in served], [row for row in served if row not in wanted]
    require(served == wanted, f"of {len(wanted)} rows {missing[:3]} are not served, {more[:3]} are served instead")
    lab.fact("rows_loaded", len(wanted))
    require(load.since_ms <= BEGIN_MS and bool(wanted), "the load does not reach the log's beginning")
