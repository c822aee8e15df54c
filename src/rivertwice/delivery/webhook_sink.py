"""Webhook: JSON requests, at least once. The position is kept beside the tables and written after the last answer.

Every request has an `Idempotency-Key`, a hash of its body: a repetition after a crash has the same body, unless more was
committed meanwhile; then its records still have the same `at.step`. A receiver that keeps keys takes each body once.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator

import httpx
import pyarrow as pa

from rivertwice.config import PipelineHome
from rivertwice.delivery.model import Parcel, Position, Shape
from rivertwice.delivery.wire import (
    FORMAT,
    encode,
    position_held,
    position_to_json,
    rows_told,
    value_text,
)
from rivertwice.errors import ConfigError, ServiceError
from rivertwice.pipeline.delivery_model import WebhookDelivery
from rivertwice.store.places import open_store
from rivertwice.web import is_web_address, send, web_client

RECORDS = 500  # in one request
TRIES = 5
TIMEOUT_S = 10.0
_AGAIN = (408, 425, 429)


class WebhookSink:
    """An address that is told of every record, in order, one request after the other."""

    def __init__(
        self, home: PipelineHome, name: str, asked: WebhookDelivery, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._store = open_store(home.place)
        self._key = f"delivery/{name}.json"
        self._name = name
        self._asked = asked
        self._sleep = sleep
        self._client: httpx.Client | None = None
        self._url = ""

    def open(self, shape: Shape, schema: pa.Schema) -> Position | None:
        """Look the address up, and return the position."""
        self.close()
        self._url = self._address()
        # No redirect is followed: it would carry records to an address that nobody configured.
        self._client = web_client(timeout_s=TIMEOUT_S)
        return position_held(self._store.get(self._key), shape, self._name)

    def deliver(self, parcel: Parcel) -> None:
        """Send all requests of a step, then remember the position."""
        for body in bodies(parcel):
            self._post(body)
        self._store.put(self._key, position_to_json(parcel.after, **rows_told(parcel.shape)).encode())

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

    def _post(self, body: bytes) -> None:
        assert self._client is not None, "open comes first"
        headers = {"Content-Type": "application/json", "Idempotency-Key": hashlib.sha256(body).hexdigest()}
        told = ""
        for attempt in range(TRIES):
            if attempt:
                self._sleep(min(8.0, 0.5 * 2 ** (attempt - 1)))
            try:
                answer = send(self._client, self._url, body, headers)
            except httpx.HTTPError as error:
                told = type(error).__name__  # its text may hold the address
                continue
            if 200 <= answer.status < 300:
                return
            told = f"status {answer.status}"
            if answer.status < 500 and answer.status not in _AGAIN:
                break
        message = (
            f"the receiver at ${self._asked.url_env} did not take a request of sink {self._name} ({told}); the position stays, and "
            "the step is sent again from its first request"
        )
        raise ServiceError(message)


def bodies(parcel: Parcel) -> Iterator[bytes]:
    """Return the requests of a parcel: equal parcels make equal requests."""
    records = parcel.records
    for start in range(0, len(records), RECORDS):
        part = [value_text(parcel.shape, record, parcel.after) for record in records[start : start + RECORDS]]
        head = encode({"format": FORMAT, "pipeline": parcel.shape.pipeline, "sink": parcel.sink})
        yield f'{head[:-1]},"records":[{",".join(part)}]}}'.encode()
