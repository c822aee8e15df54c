"""Ledger rows for tests: batch n reads offsets [10n, 10n+10) of partition 0 and has watermark 1000n."""

from typing import Any

from rivertwice.core.instants import parse_iso
from rivertwice.timeline.ledger import LedgerRow

NOW = parse_iso("2013-07-02T00:00:00Z")


def ledger_row(batch: int, timeline: str = "t1", **changes: Any) -> LedgerRow:
    values: dict[str, Any] = {
        "pipeline": "p",
        "timeline": timeline,
        "batch": batch,
        "epoch": 1,
        "bundle": "b",
        "cluster_id": "c",
        "topic_ids": {"flights": "id"},
        "start_offsets": {"flights": {"0": 10 * batch}},
        "end_offsets": {"flights": {"0": 10 * batch + 10}},
        "offsets_text": "v1\n{}\n{}",
        "batch_watermark_ms": 1000 * batch,
        "batch_timestamp_ms": 0,
        "read": 10,
        "bad": 0,
        "accepted": 10,
        "min_event_ms": 0,
        "max_event_ms": 1,
        "emitted": 0,
        "digest": "d1:0:0",
        "references": {},
        "committed_at": NOW,
    }
    return LedgerRow(**{**values, **changes})
