"""Records that make a receiver's server fail: distinguished from an outage, so that one record does not stop a sink for ever.

A receiver that is down answers 5xx to every request. A record that its program cannot handle gets 5xx while others are taken.
So a record is set aside only if its request has failed `suspect_after` times, and the receiver has taken a later record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rivertwice.config import PipelineHome
from rivertwice.delivery.model import DeliveredRecord
from rivertwice.delivery.note import folder_of
from rivertwice.delivery.refusals import RefusedRecord
from rivertwice.errors import ServiceError
from rivertwice.store.files import read_json, replace_json

FORMAT = 1
MOST_SUSPECTS = 5
"""If so many records in a row fail and none is taken, that is an outage, and the others are not tried."""
COMPANY = 10
"""Number of batches that are sent together with a suspected record's, so that a record comes after it."""


@dataclass
class Walk:
    """The outcomes for the records of one parcel, in order.

    Attributes:
        refused: records that are left out for good.
        suspects: records that failed, with no later record taken yet.
        proved: records that failed, with a later record taken. They are sent again, for an outage may have ended in between.
    """

    refused: list[RefusedRecord] = field(default_factory=list)
    suspects: list[RefusedRecord] = field(default_factory=list)
    proved: list[RefusedRecord] = field(default_factory=list)

    def taken(self) -> None:
        """Note that the receiver took records: it works, so the records before are the cause of their failures."""
        self.proved += self.suspects
        self.suspects.clear()

    def failed(self, record: DeliveredRecord, reason: str) -> None:
        """Note that the receiver's server failed for one record."""
        self.suspects.append(RefusedRecord(record, reason))

    @property
    def is_outage(self) -> bool:
        """Whether too many failed in a row for the records to be the cause."""
        return len(self.suspects) >= MOST_SUSPECTS


def halves(records: Sequence[DeliveredRecord]) -> list[Sequence[DeliveredRecord]]:
    """Return the records as two parts, the first one last, in the order of a stack."""
    middle = len(records) // 2
    return [records[middle:], records[:middle]]


def walk_by_halves(
    records: Sequence[DeliveredRecord], send: Callable[[Sequence[DeliveredRecord]], str], walk: Walk
) -> None:
    """Send records that failed as a whole in halves, in order, until single records are taken or fail; stop in an outage.

    Args:
        records: the records; if there are several, they are not sent as a whole again.
        send: sends some of them; returns "" if they were taken, else the reason.
        walk: is informed of each outcome.
    """
    parts = halves(records) if len(records) > 1 else [records]
    while parts and not walk.is_outage:
        part = parts.pop()
        reason = send(part)
        if not reason:
            walk.taken()
        elif len(part) > 1:
            parts += halves(part)
        else:
            walk.failed(part[0], reason)


class Failures:
    """The number of failures in a row of a step's request, stored in `delivery/SINK/failures.json` (format 1) of this home."""

    def __init__(self, home: PipelineHome, sink: str) -> None:
        self._path = folder_of(home, sink) / "failures.json"

    def count(self, step: int, start: int = -1) -> int:
        """Return how often the request of a step that begins with record `start` failed; with -1, any request."""
        value = read_json(self._path)
        if value is None or value.get("format") != FORMAT or value["step"] != step or start not in (-1, value["start"]):
            return 0
        return int(value["times"])

    def add(self, step: int, start: int, times: int) -> int:
        """Add failures, and return how many there are now."""
        total = self.count(step, start) + times
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_json(self._path, {"format": FORMAT, "step": step, "start": start, "times": total})
        return total

    def clear(self) -> None:
        """Delete the number, for the step was taken."""
        self._path.unlink(missing_ok=True)


def held_by(suspects: Sequence[RefusedRecord], where: str, sink: str) -> ServiceError:
    """Return the error of a sink that cannot distinguish bad records from an outage."""
    message = (
        f"the receiver at {where} fails by {len(suspects)} records of sink {sink} ({suspects[-1].reason}), and has taken none after them: "
        "that may be an outage, so nothing is set aside and the position stays; correct the receiver, or wait for a record it takes"
    )
    return ServiceError(message)
