"""Webhook: JSON requests, at least once. The position is kept beside the tables and written after the last answer.

Every request has an `Idempotency-Key`, a hash of its body. A repetition after a crash has the same body, unless more was
committed meanwhile; then its records still have the same `at.step`. A receiver that stores the keys takes each body once.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import httpx
import pyarrow as pa

from rivertwice.core.errors import ConfigError, ServiceError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.waits import retry
from rivertwice.core.web import is_web_address, send, web_client
from rivertwice.definition.delivery_section import WebhookDelivery
from rivertwice.deliver.model import DeliveredColumns, DeliveredRecord, Parcel, Position
from rivertwice.deliver.note import folder_of
from rivertwice.deliver.refusals import RefusedRecord, SetAside, isolate, none_aside
from rivertwice.deliver.wire import FORMAT, encode, position_held, position_to_json, row_selection, value_text
from rivertwice.storage.local import read_json, replace_json
from rivertwice.storage.places import open_store

# Records that make a receiver's server fail: distinguished from an outage, so that one record does not stop a sink for ever.
#
# A receiver that is down answers 5xx to every request. A record that its program cannot handle gets 5xx while others are taken.
# So a record is set aside only if its request has failed `suspect_after` times, and the receiver has taken a later record.

SUSPECTS_FORMAT = 1
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
        if (
            value is None
            or value.get("format") != SUSPECTS_FORMAT
            or value["step"] != step
            or start not in (-1, value["start"])
        ):
            return 0
        return int(value["times"])

    def add(self, step: int, start: int, times: int) -> int:
        """Add failures, and return how many there are now."""
        total = self.count(step, start) + times
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_json(self._path, {"format": SUSPECTS_FORMAT, "step": step, "start": start, "times": total})
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


RECORDS = 500  # in one request
TRIES = 5
TIMEOUT_S = 10.0
_AGAIN = (408, 425, 429)
_OF_EVERY_RECORD = (401, 404, 405, 407, 410, 411, 415, 426)
"""Errors of credentials, address, method or kind of request: no record is the cause."""
_OF_A_RECORD = (400, 409, 413, 422)
"""Statuses that are about a record; any other refusal may be of both kinds, for instance 403 from a filter before the receiver."""


class ServerFailsError(ServiceError):
    """A receiver's server failed for a request, each time.

    Attributes:
        answer: its last answer.
    """

    def __init__(self, message: str, answer: str) -> None:
        super().__init__(message)
        self.answer = answer


class _NotTakenError(Exception):
    """The receiver did not take a request now; the text is its answer."""

    def __init__(self, message: str, *, is_server: bool = False) -> None:
        super().__init__(message)
        self.is_server = is_server


class WebhookSink:
    """An address to which every record is sent, in order, one request after the other."""

    def __init__(
        self, home: PipelineHome, name: str, asked: WebhookDelivery, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._store = open_store(home.place)
        self._key = f"delivery/{name}.json"
        self._name = name
        self._asked = asked
        self._sleep = sleep
        self._failures = Failures(home, name)
        self._client: httpx.Client | None = None
        self._url = ""

    def open(self, shape: DeliveredColumns, schema: pa.Schema) -> Position | None:
        """Look the address up, and return the position."""
        self.close()
        self._url = self._address()
        return position_held(self._store.get(self._key), shape, self._name)

    def deliver(self, parcel: Parcel, set_aside: SetAside = none_aside) -> None:
        """Send all requests of a step, then remember the position.

        A request that the receiver refuses for good is sent again in halves, so that only records that it refuses alone are left
        out. The same is done for a request that makes its server fail again and again, if it takes later records (`suspects`).
        """
        walk = Walk()
        last = 0
        for start in range(0, len(parcel.records), RECORDS):
            part = parcel.records[start : start + RECORDS]
            try:
                last = self._post(body_of(parcel, part))
            except ServerFailsError as error:
                self._suspect(parcel, start, error, walk)
                continue
            if last:
                refused = isolate(part, lambda subset: _reason(self._post(body_of(parcel, subset))), self._name)
                walk.refused += refused
            if not last or len(refused) < len(part):
                walk.taken()
        if walk.suspects and not parcel.asked:
            raise held_by(walk.suspects, f"${self._asked.url_env}", self._name)
        keys = Counter(record.key for record in parcel.records)
        for suspect in walk.proved:  # out of order, so only where no other record has its key
            if keys[suspect.record.key] > 1 or self._send(parcel, [suspect.record]):
                walk.refused.append(suspect)
        refused = [*walk.refused, *walk.suspects]  # records that a person asked for are known to fail
        if refused and len(refused) == len(parcel.records) and last and last not in _OF_A_RECORD:
            self._require_takes_anything(parcel)
        set_aside(refused)
        self._store.put(self._key, position_to_json(parcel.after, **row_selection(parcel.shape)).encode())
        self._failures.clear()

    def company(self, position: Position | None) -> int:
        """Return how many batches the step after a position may have: more than one if a suspected record needs later ones."""
        step = 1 if position is None else position.number + 1
        return COMPANY if self._failures.count(step) >= self._asked.suspect_after else 1

    def _suspect(self, parcel: Parcel, start: int, error: ServerFailsError, walk: Walk) -> None:
        """Find the records that make the receiver's server fail, once it has failed often enough.

        Raises:
            ServerFailsError: it has not failed often enough yet.
        """
        if not parcel.asked:
            times = self._failures.add(parcel.after.number, start, TRIES)
            if times < self._asked.suspect_after:
                raise error
        part = parcel.records[start : start + RECORDS]
        walk_by_halves(part, lambda subset: self._send(parcel, subset), walk)
        if walk.is_outage and not parcel.asked:
            raise held_by(walk.suspects, f"${self._asked.url_env}", self._name)
        if walk.is_outage:
            known = {refusal.record.key for refusal in (*walk.refused, *walk.proved, *walk.suspects)}
            reason = walk.suspects[-1].reason
            walk.suspects += [RefusedRecord(record, reason) for record in part if record.key not in known]

    def _send(self, parcel: Parcel, records: Sequence[DeliveredRecord]) -> str:
        """Send a suspected request; return the reason why it was not taken, or "" if it was."""
        try:
            status = self._post(body_of(parcel, records), tries=TRIES if len(records) == 1 else 2)
        except ServerFailsError as failed:
            return f"{failed.answer}, each time"
        return f"status {status}" if status else ""

    def _require_takes_anything(self, parcel: Parcel) -> None:
        """Send a request without records: a receiver that refuses this, too, refuses every request.

        Raises:
            ConfigError: it is refused.
        """
        status = self._post(body_of(parcel, ()))
        if status:
            raise self._refuses_all(status)

    def _refuses_all(self, status: int) -> ConfigError:
        message = (
            f"the receiver at ${self._asked.url_env} answers sink {self._name} with status {status}, which concerns every record: "
            "the sink stops and its position stays; correct the address, the rights or the receiver, then it goes on by itself"
        )
        return ConfigError(message)

    def forget(self) -> None:
        """Forget the position."""
        self._store.delete(self._key)

    def close(self) -> None:
        """Close connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _address(self) -> str:
        url = os.environ.get(self._asked.url_env, "")
        if not is_web_address(url):
            message = (
                f"{self._asked.url_env} holds no http or https address, so sink {self._name} has no receiver; set it in the "
                "environment of the agent"
            )
            raise ConfigError(message)
        return url

    def _post(self, body: bytes, tries: int = TRIES) -> int:
        """Send a request; return 0 if it was taken, or the status with which it was refused for good.

        Raises:
            ConfigError: the receiver refuses every request.
            ServerFailsError: its server failed each time, with a status of 5xx.
            ServiceError: it did not take the request this time.
        """
        headers = {"Content-Type": "application/json", "Idempotency-Key": hashlib.sha256(body).hexdigest()}
        failures: list[_NotTakenError] = []

        def send_once() -> int:
            if self._client is None or self._client.is_closed:  # `send` closes it when the answer takes too long
                # No redirect is followed: it would send records to an address that is not configured.
                self._client = web_client(timeout_s=TIMEOUT_S)
            try:
                answer = send(self._client, self._url, body, headers)
            except httpx.HTTPError as error:
                failures.append(_NotTakenError(type(error).__name__))  # its text may contain the address
                raise failures[-1] from None
            if 200 <= answer.status < 300:
                return 0
            if answer.status in _OF_EVERY_RECORD or answer.status < 400:
                raise self._refuses_all(answer.status)
            if answer.status < 500 and answer.status not in _AGAIN:
                return answer.status
            failures.append(_NotTakenError(f"status {answer.status}", is_server=answer.status >= 500))
            raise failures[-1]

        sending = retry(_NotTakenError, tries=tries, first_wait_s=0.5, longest_wait_s=8.0, sleep=self._sleep)
        try:
            return sending(send_once)
        except _NotTakenError as error:
            message = (
                f"the receiver at ${self._asked.url_env} did not take a request of sink {self._name} ({error}); "
                "the position stays, and the step is sent again from its first request"
            )
            is_server = all(failure.is_server for failure in failures)
            raise (ServerFailsError(message, str(error)) if is_server else ServiceError(message)) from None


def _reason(status: int) -> str | None:
    return f"status {status}" if status else None


def bodies(parcel: Parcel) -> Iterator[bytes]:
    """Return the requests of a parcel: equal parcels make equal requests."""
    for start in range(0, len(parcel.records), RECORDS):
        yield body_of(parcel, parcel.records[start : start + RECORDS])


def body_of(parcel: Parcel, records: Sequence[DeliveredRecord]) -> bytes:
    """Return a request with some of a parcel's records."""
    part = [value_text(parcel.shape, record, parcel.after) for record in records]
    head = encode({"format": FORMAT, "pipeline": parcel.shape.pipeline, "sink": parcel.sink})
    return f'{head[:-1]},"records":[{",".join(part)}]}}'.encode()
