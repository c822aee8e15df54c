"""The race clocks of a savepoint: until when its records exist, and until when it can be proved. Pure.

What is needed lies in Kafka, which deletes, and in the archive, which keeps. The agent measures both; here its last measurement is
read. A measurement that does not name a savepoint was made before it was taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rivertwice.savepoint.budget import ProofBudget
from rivertwice.savepoint.manifest import Manifest
from rivertwice.savepoint.plan import MARGIN

KEPT, UNTIL, SOON, LOST, UNKNOWN = "kept", "until", "soon", "lost", "unknown"
"""The records exist without end; until an instant; until one that is near; some are gone; nobody has measured it."""
_SOON_LEVELS = ("warning", "critical")


@dataclass(frozen=True)
class Race:
    """Until when a savepoint can be restored, by the records that its replay reads.

    Attributes:
        word: one of the words above.
        deadline: earliest instant at which Kafka may delete a record that only Kafka has, ISO 8601; None: none is known.
        lost: records that neither Kafka nor the archive has.
        only_kafka: records that only Kafka has.
        measured_at: when the agent looked, ISO 8601.
        text: the same in a sentence.
    """

    word: str
    deadline: str | None
    lost: int
    only_kafka: int
    measured_at: str | None
    text: str


@dataclass(frozen=True)
class ProofRace:
    """Whether a savepoint that is not proved can still be proved.

    Attributes:
        left: how many more batches the stream may commit before it cannot; None: it is not known, for no checkpoint is here.
        text: the same in a sentence.
    """

    left: int | None
    text: str


def decide_race(savepoint: str, measured: Mapping[str, Any] | None) -> Race:
    """Return until when a savepoint's records exist.

    Args:
        savepoint: its id.
        measured: the agent's last measurement of the log; None: there is none.
    """
    leases = [] if measured is None else _leases_of(savepoint, measured["leases"])
    if measured is None or not leases:
        text = "not measured yet: the agent looks at the log every two minutes, if it runs"
        return Race(UNKNOWN, None, 0, 0, None, text)
    lost, only = (sum(lease[name] for lease in leases) for name in ("lost", "only_kafka"))
    deadline = min((lease["deadline"] for lease in leases if lease["deadline"] is not None), default=None)
    if lost:
        word = LOST
        text = f"cannot be restored any more: {lost} records that its replay needs are gone from Kafka and from the archive"
    elif deadline is None:
        word = KEPT
        text = (
            f"no end: Kafka does not delete the {only} records that only it has"
            if only
            else "no end: the archive has its records"
        )
    else:
        word = SOON if any(lease["level"] in _SOON_LEVELS for lease in leases) else UNTIL
        text = f"then Kafka may delete some of the {only} records that only it has; the archive keeps what it copies before"
    return Race(word, None if lost else deadline, lost, only, str(measured["at"]), text)


def _leases_of(savepoint: str, leases: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [lease for lease in leases if lease["holder"] == f"savepoint {savepoint}"]


def lost_to_rewind(manifest: Manifest, measured: Mapping[str, Any] | None) -> int | None:
    """Return how many records after a savepoint Kafka no longer has, which a rewind would read; None: it is not measured."""
    if measured is None:
        return None
    topics = measured.get("topics", [measured])
    lost = 0
    for topic in topics:
        starts = manifest.offsets.get(str(topic["topic"]), {})
        lost += sum(max(0, int(begin) - int(starts.get(part, 0))) for part, (begin, _) in topic["kafka"].items())
    return lost


def decide_proof_race(batch: int, oldest: int | None, budget: ProofBudget) -> ProofRace:
    """Return whether a savepoint at a batch can still be proved.

    A proof compares the state with one that the running checkpoint still has, and may replay so many batches to reach it.

    Args:
        batch: the savepoint's.
        oldest: the first batch whose state the running checkpoint still has; None: it is not here.
        budget: what a proof may cost.
    """
    if oldest is None:
        return ProofRace(None, "whether it can be proved is seen by the proof: the checkpoint is not on this host")
    allowed = max(budget.batches, budget.max_batches)
    nearest = oldest + MARGIN if oldest > 0 else 0
    left = batch + allowed - nearest
    if left < 0:
        text = f"can no longer be proved: the nearest state that is left to compare with is {allowed - left} batches on"
        return ProofRace(0, f"{text}, and a proof replays at most {allowed}")
    return ProofRace(left, f"can be proved while the stream commits {left} more batches")
