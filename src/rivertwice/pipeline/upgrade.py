"""Whether a changed definition can continue from the state that the old one left. Pure.

A checkpoint contains no definition: Spark resumes a changed sum or window length over an old state, and corrupts the state
without an error. So the components that may change are listed. Any other component cannot be carried over, also a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rivertwice.pipeline.bundle import Bundle
from rivertwice.pipeline.counterparts import Way, decide_way
from rivertwice.pipeline.fingerprint import DECODE, STATE, ChangedComponent, compare_fingerprints

SAME, RESUME, REFUSED = "same", "resume", "refused"

CARRIED = frozenset({*DECODE, "rows", "watermark", "late_policy"}) - frozenset(STATE)
"""Components that decide which records reach the state, but not its form: from the fork on the new values apply."""

_PINNED = {
    "topic": "the checkpoint's offsets are those of the old topic",
    "emit": "open windows were emitted, or held back, in the old way: some would come twice, or never",
    "watermark_policy": "the checkpoint itself remembers how the watermarks of its sources become one, and Spark goes by that",
    "role": "a stream that becomes a table, or the other way round, has other state",
    "table_keys": "versions of the table were kept under the old keys",
}
_SHAPES_STATE = "it shapes the state: what the checkpoint holds would mean something else"


@dataclass(frozen=True)
class UpgradeDecision:
    """What a changed definition means for a stream.

    Attributes:
        way: `same` (no component changed: start it), `resume` (it can continue from the old state), or `refused`.
        changes: components that differ.
        obstacles: component to the reason why it cannot be carried over; empty unless refused.
        beside: how a version of the changed definition, which runs beside the old one, comes to serve.
    """

    way: str
    changes: tuple[ChangedComponent, ...]
    obstacles: Mapping[str, str]
    beside: Way


def decide_upgrade(old: Bundle, new: Bundle, recorded: Mapping[str, str]) -> UpgradeDecision:
    """Decide whether `new` can continue from the state that `old` left.

    Args:
        old: the bundle that the timeline runs.
        new: the wanted definition.
        recorded: the fingerprint that the timeline recorded when it began.
    """
    hashes = old.fingerprint.hashes()
    drifted = [part for part in hashes if recorded.get(part) != hashes[part]]
    changes = tuple(compare_fingerprints(old.fingerprint, new.fingerprint))
    obstacles = {change.component: why for change in changes if (why := _obstacle(change, new)) is not None}
    if drifted:
        obstacles["release"] = (
            f"this release of rivertwice takes the old definition itself otherwise than the one that began the timeline (changed: "
            f"{', '.join(drifted)})"
        )
    beside = decide_way(old.definition, new.definition)
    if obstacles:
        return UpgradeDecision(REFUSED, changes, obstacles, beside)
    return UpgradeDecision(RESUME if changes else SAME, changes, {}, beside)


def _obstacle(change: ChangedComponent, new: Bundle) -> str | None:
    window = new.definition.window
    chooses_records = change.component in CARRIED - {"watermark", "late_policy"}
    obstacle = window.kind.find_upgrade_obstacle(chooses_records=chooses_records)
    if obstacle is not None:
        return obstacle
    if change.component == "watermark" and len(new.definition.streams) > 1:
        return "of several sources the running stream alone knows how far each of them is"
    if change.component in CARRIED:
        return None
    return _PINNED.get(change.component, _SHAPES_STATE)
