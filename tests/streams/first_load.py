"""A long history to load by batch: late records, dead letters, four partitions; and what is served of it, without who serves it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import Result

from lab.faults.events import Event, produce_events
from rivertwice.core.instants import from_ms, to_iso
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.log.kafka import ensure_topic
from rivertwice.timeline.served import read_served, rebuild_served
from rivertwice.timeline.served_rows import export_lines
from running.warm_spark import invoke_warm, run_command_warm, run_driver_warm
from streams.keyed import HOUR_MS, NAME, PARTITIONS, Keyed

BATCH = 60
DEAD_EACH = 40
"""One in so many records is not valid JSON."""


def send_with_dead_letters(settings: Settings, topic: str, records: Sequence[Keyed]) -> int:
    """Create the topic and send the records, with broken ones between them; return how many are broken."""
    ensure_topic(settings, topic, PARTITIONS)
    events = []
    for number, record in enumerate(records):
        value = json.dumps({"k": record.key, "at": to_iso(from_ms(record.event_ms))}).encode()
        events.append(Event(record.partition, record.key.encode(), value, record.sent_ms))
        if number % DEAD_EACH == 0:
            events.append(Event(record.partition, record.key.encode(), b"no JSON", record.sent_ms))
    produce_events(settings, topic, events)
    return -(-len(records) // DEAD_EACH)


def late_records(records: Sequence[Keyed], count: int) -> list[Keyed]:
    """Return further records of the first hours, sent after all others."""
    sent_ms = max(record.sent_ms for record in records) + 1
    return [Keyed(n % PARTITIONS, f"k{n % PARTITIONS}", records[n].event_ms, sent_ms + n) for n in range(count)]


def closing_records(records: Sequence[Keyed]) -> list[Keyed]:
    """Return a record of each partition, six hours after all others: it closes their windows."""
    newest_ms = max(record.event_ms for record in records) + 6 * HOUR_MS
    return [Keyed(p, f"k{p}", newest_ms, newest_ms) for p in range(PARTITIONS)]


def from_batch(settings: Settings, *further: str, name: str = NAME) -> Result:
    """Run `rivertwice start NAME --from-batch`."""
    return invoke_warm(settings, "--output", "json", "start", name, "--from-batch", *further)


def load_whole(settings: Settings, log: Path, name: str = NAME) -> dict[str, Any]:
    """Load and stream all there is; return what the command said at its end. No agent runs, so the driver is run in between."""
    first = from_batch(settings, name=name)
    if first.exit_code:  # the stream has not closed the windows to load
        assert "no agent is running" in first.output, (first.output, first.exception)
        run_driver_warm(settings, name, log)
        first = from_batch(settings, name=name)
    return said_by(first)


def said_by(done: Result) -> dict[str, Any]:
    assert done.exit_code == 0, (done.output[-3000:], done.exception)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def finish(settings: Settings) -> dict[str, Any]:
    return said_by(from_batch(settings))


def first_load_of(settings: Settings, name: str = NAME) -> dict[str, Any] | None:
    """Return what `rivertwice status` says of a first load that is not done."""
    shown = run_command_warm(settings, "status")["pipelines"]
    load: dict[str, Any] | None = next(item["first_load"] for item in shown if item["name"] == name)
    return load


def served_rows_sha256(settings: Settings, name: str = NAME) -> str:
    """Rebuild what is served; return the SHA-256 of its rows, without which batch or backfill serves each."""
    home = settings.pipeline(name)
    definition = load_definition(settings.definitions / name)
    rebuild_served(home, definition)
    rows = read_served(home)
    assert rows is not None
    return hashlib.sha256(b"\n".join(export_lines(rows.select(definition.result_columns)))).hexdigest()


def reconciled(settings: Settings, name: str = NAME, *, full: bool = True) -> dict[str, Any]:
    """Reconcile what is served now; nothing may be a DEFECT or without a cause."""
    rebuild_served(settings.pipeline(name), load_definition(settings.definitions / name))
    report: dict[str, Any] = run_command_warm(settings, "reconcile", name, *(["--full"] if full else []))
    for pair, counts in report["counts"].items():
        assert (pair, counts["DEFECT"], counts["NOT_COMPARABLE"]) == (pair, 0, 0), report
    balance = report["balance"]
    assert {account["unexplained"] for account in (balance["total"], *balance["partitions"].values())} == {0}
    assert report["gate"]["passed"], report["gate"]
    return report
