"""How far a driver runs a timeline that is not the head yet: until it has read what the head has read. Pure but for one file.

A rewind runs such a driver while the head's own stream is stopped. The driver ends by itself at the goal.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from rivertwice.config import PipelineHome
from rivertwice.errors import RequestError
from rivertwice.log.addresses import StoredOffsets
from rivertwice.store.files import read_json


@dataclass(frozen=True)
class Goal:
    """The position at which a timeline has caught up with the head.

    Attributes:
        timeline: the timeline that runs.
        by: the operation for which it runs; that operation's own drain marker does not stop it.
        offsets: topic to partition to the offset after the last record that the head has committed.
        watermark_ms: the head's last watermark. Without it, windows that are closed for the head would be open again.
    """

    timeline: str
    by: str
    offsets: StoredOffsets
    watermark_ms: int

    def to_text(self) -> str:
        """Return the goal as one argument of a command line."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Goal:
        """Read a goal.

        Raises:
            RequestError: the text is no goal.
        """
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            message = f"{text[:200]!r} is no goal to catch up to ({error}); `rivertwice savepoint rewind` gives one"
            raise RequestError(message) from error


def covers(reached: StoredOffsets, wanted: StoredOffsets) -> bool:
    """Say whether every partition of `wanted` was read at least as far."""
    return all(
        int(reached.get(topic, {}).get(partition, 0)) >= int(offset)
        for topic, parts in wanted.items()
        for partition, offset in parts.items()
    )


def has_caught_up(goal: Goal, end_offsets: StoredOffsets, watermark_ms: int) -> bool:
    """Say whether a batch with these ends and this watermark has reached the goal."""
    return watermark_ms >= goal.watermark_ms and covers(end_offsets, goal.offsets)


def is_asked_to_drain(home: PipelineHome, by: str | None = None) -> bool:
    """Say whether there is a drain marker of another operation than `by`; one that cannot be read counts."""
    if not home.drain.exists():
        return False
    try:
        marker = read_json(home.drain)
    except (OSError, ValueError):
        return True
    return by is None or not isinstance(marker, dict) or marker.get("by") != by
