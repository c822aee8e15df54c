"""Records by which a receiver's server fails each time: told from an outage, so that one record does not hold a sink for ever.

A receiver that is down answers 5xx to everything; a record that its program cannot handle gets 5xx alone. So a record is set
aside only when its request has failed `suspect_after` times, and the receiver has taken a record that came behind it.
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
"""So many records in a row that fail, and none taken: that is an outage, and the others are not tried."""
COMPANY = 10
"""Batches that go with a suspected record's, so that there is one behind it."""


@dataclass
class Walk:
    """What became of the records of one parcel, in order.

    Attributes:
        refused: records that are left out for good.
        suspects: records that failed, with none taken behind them yet.
        proved: records that failed, and one behind them was taken: they are sent once more, for an outage may have ended between.
    """

    refused: list[RefusedRecord] = field(default_factory=list)
    suspects: list[RefusedRecord] = field(default_factory=list)
    proved: list[RefusedRecord] = field(default_factory=list)

    def taken(self) -> None:
        """The receiver took records: it works, so what failed before is a matter of the record."""
        self.proved += self.suspects
        self.suspects.clear()

    def failed(self, record: DeliveredRecord, reason: str) -> None:
        """The receiver's server failed by one record."""
        self.suspects.append(RefusedRecord(record, reason))

    @property
    def is_outage(self) -> bool:
        """Whether too many failed in a row to be the records' fault."""
        return len(self.suspects) >= MOST_SUSPECTS


def halves(records: Sequence[DeliveredRecord]) -> list[Sequence[DeliveredRecord]]:
    """Return the records as two parts, the first one last, as a stack takes them."""
    middle = len(records) // 2
    return [records[middle:], records[:middle]]


def walk_by_halves(
    records: Sequence[DeliveredRecord], send: Callable[[Sequence[DeliveredRecord]], str], walk: Walk
) -> None:
    """Send what failed as a whole by halves, in order, until single records are taken or fail; nothing more in an outage.

    Args:
        records: more than one are not sent together again.
        send: sends some; returns "" if they were taken, else why not.
        walk: told of all.
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
    """How often in a row the request of a step has failed, kept in `delivery/SINK/failures.json` (format 1) of this home."""

    def __init__(self, home: PipelineHome, sink: str) -> None:
        self._path = folder_of(home, sink) / "failures.json"

    def count(self, step: int, start: int = -1) -> int:
        """Return how often the request of a step failed that begins with record `start`; -1: whichever is known."""
        value = read_json(self._path)
        if value is None or value.get("format") != FORMAT or value["step"] != step or start not in (-1, value["start"]):
            return 0
        return int(value["times"])

    def add(self, step: int, start: int, times: int) -> int:
        """Note failures, and return how many there are now."""
        total = self.count(step, start) + times
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_json(self._path, {"format": FORMAT, "step": step, "start": start, "times": total})
        return total

    def clear(self) -> None:
        """The step was taken."""
        self._path.unlink(missing_ok=True)


def held_by(suspects: Sequence[RefusedRecord], where: str, sink: str) -> ServiceError:
    """Return the error of a sink that cannot tell its records from an outage."""
    message = (
        f"the receiver at {where} fails by {len(suspects)} records of sink {sink} ({suspects[-1].reason}), and has taken none behind them: "
        "that may be an outage, so nothing is set aside and the position stays; correct the receiver, or wait for a record it takes"
    )
    return ServiceError(message)
