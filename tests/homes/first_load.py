"""A first load of the pipeline of `homes.backfill`: offsets [0, 40) of hours 0 to 3 are left to backfills, hours 0 to 3 are loaded."""

from __future__ import annotations

from typing import Any

from homes.backfill import HOUR
from homes.ledger import NOW
from rivertwice.definition.bundle import Bundle
from rivertwice.timeline.first_load import FirstLoad, LogZone

ZONES = [LogZone(0, 10 * n, 10 * n + 10, 9, n * HOUR, (n + 1) * HOUR - 1) for n in range(4)]


def make_load(bundle: Bundle, **changes: Any) -> FirstLoad:
    values: dict[str, Any] = {
        "pipeline": "p",
        "timeline": "t1",
        "bundle": bundle.id,
        "fingerprint": bundle.fingerprint.hashes(),
        "cluster_id": "c",
        "topic": "flights",
        "topic_id": "id",
        "ranges": {0: (0, 40)},
        "since_ms": 0,
        "before_ms": 4 * HOUR,
        "closed_ms": 4 * HOUR,
        "accepted": 36,
        "rejected": {"malformed": 4},
        "by": "test",
        "noted_at": NOW,
    }
    return FirstLoad(**{**values, **changes})
