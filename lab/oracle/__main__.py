"""Judge one run: a request as JSON on stdin, the findings as JSON on stdout.

Usage: python -m lab.oracle
  {"bootstrap": HOST:PORT, "topic": NAME, "home": FOLDER, "produced": FILE, "complete": BOOL}     a pipeline's home
  {"bootstrap": HOST:PORT, "topic": NAME, "table": FOLDER, "produced": FILE}                      a control job's table
`complete`: a driver has said that all of the log is committed, so a record beyond the last batch is lost.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from lab.oracle.compare import (
    Emitted,
    Tally,
    balance,
    compare_dead,
    compare_ledger,
    compare_rows,
    compare_served,
)
from lab.oracle.expect import Expected, Sums, expect, truth
from lab.oracle.rules import DELAY_MS, WINDOW_MS, Row, read_record
from lab.oracle.sources import Log, read_batches, read_log, read_path, select

_ROW = "epoch_ms(window_start), k, epoch_ms(window_end), n, total, top"


def judge_home(log: Log, home: Path, topic: str, *, complete: bool = False) -> dict[str, Any]:
    """Judge a pipeline's home; if its stream is `complete`, no record may lie beyond its last batch."""
    tables = home / "tables"
    path = read_path(home, topic)
    recorded = read_batches(tables, topic)
    batches = [batch for segment in path for batch in recorded if segment.holds(batch.timeline, batch.number)]
    batches.sort(key=lambda batch: ([segment.timeline for segment in path].index(batch.timeline), batch.number))
    places = {(batch.timeline, batch.number): place for place, batch in enumerate(batches)}
    expected = expect(log.records, batches, log.absent)
    emitted = [
        Emitted((start, key), end, n, total, top, places[timeline, batch])
        for start, key, end, n, total, top, timeline, batch in select(
            tables / "changelog", f"{_ROW}, _timeline, _batch"
        )
        if (timeline, batch) in places
    ]
    letters = [
        (places[timeline, batch], reason, partition, offset, value)
        for timeline, batch, reason, partition, offset, value in select(
            tables / "dead_letters", '_timeline, _batch, reason, partition, "offset", value'
        )
        if (timeline, batch) in places
    ]
    served = select(tables / "served", "epoch_ms(window_start), k, n, total, top, _status")
    tally = Tally()
    compare_ledger(tally, path, batches, expected, emitted)
    compare_rows(tally, expected, emitted, WINDOW_MS)
    compare_dead(tally, expected, letters, log.records)
    compare_served(tally, expected, served)
    for address in expected.gone:
        tally.add("lost", f"record {address} was committed, but neither the log nor its producer knows it")
    ends = batches[-1].end if batches else {}
    for partition, offset in sorted(log.records) if complete else ():
        if offset >= ends.get(partition, 0):
            tally.add("lost", f"record {(partition, offset)} lies beyond the last batch, which ends at {ends}")
    lost = {window for window, sums in expected.rows.items() if sums.batch is not None}
    lost -= {row.window for row in emitted}
    return _answer(tally, log, expected, lost, len(emitted), len(batches))


def judge_table(log: Log, table: Path) -> dict[str, Any]:
    """Judge a control job's table: every window that its log closes, by a batch over all accepted records."""
    rows, members = truth(log.records)
    largest = max((row.event_ms for row in map(read_record, log.records.values()) if isinstance(row, Row)), default=0)
    closed_by = largest - DELAY_MS
    expected = Expected(members=members)
    for window, sums in rows.items():
        closes = window[0] + WINDOW_MS <= closed_by
        expected.rows[window] = Sums(sums.n, sums.total, sums.top, 0 if closes else None)
    emitted = [Emitted((start, key), end, n, total, top, 0) for start, key, end, n, total, top in select(table, _ROW)]
    tally = Tally()
    compare_rows(tally, expected, emitted, WINDOW_MS)
    lost = {window for window, sums in expected.rows.items() if sums.batch is not None}
    lost -= {row.window for row in emitted}
    return _answer(tally, log, expected, lost, len(emitted), 0)


def _answer(
    tally: Tally, log: Log, expected: Expected, lost: set[tuple[int, str]], rows: int, batches: int
) -> dict[str, Any]:
    for address in log.changed:
        tally.add("lost", f"record {address} was acknowledged, but the log does not hold it")
    parts = balance(expected, lost)
    sums: Counter[str] = Counter()
    for part in parts.values():
        sums.update(part)
    read = sum(batch.read for batch in expected.batches)
    if batches and sum(sums.values()) != read:
        tally.add("unexplained", f"the parts of the balance sum to {sum(sums.values())}, {read} records were read")
    return {
        "records": read or len(log.records),
        "batches": batches,
        "rows": rows,
        **{part: sums[part] for part in ("emitted", "open", "late", "dead", "excluded")},
        **{kind: getattr(tally, kind) for kind in ("lost", "duplicated", "wrong", "unexplained")},
        "partitions": parts,
        "findings": tally.findings,
    }


def main() -> int:
    """Answer one request."""
    request = json.load(sys.stdin)
    notes = Path(request["produced"]) if request.get("produced") else None
    log = read_log(request["bootstrap"], request["topic"], notes)
    if "table" in request:
        answer = judge_table(log, Path(request["table"]))
    else:
        answer = judge_home(log, Path(request["home"]), request["topic"], complete=request.get("complete", False))
    json.dump(answer, sys.stdout, sort_keys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
