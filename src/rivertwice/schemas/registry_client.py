"""Confluent's client of a schema registry, with what it lacks: no answer is held that is larger than a registry's can be."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient

from rivertwice.web import ANSWER_S, read_answer, within

transport: Any = importlib.import_module("httpx2" if importlib.util.find_spec("httpx2") else "httpx")
"""What the client was built with: the newer library, if it is there."""
MAX_ANSWER = 1_048_576
TIMEOUT_S = 10.0
_CALLS = {"max.retries": 1, "retries.wait.ms": 200, "retries.max.wait.ms": 500}
TransportError = transport.TransportError
"""No answer came."""


class _Limited(transport.BaseTransport):  # type: ignore[misc]
    """Reads each answer up to a limit of bytes, after unpacking it, and of seconds."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def handle_request(self, request: Any) -> Any:
        request.headers["Accept-Encoding"] = "identity"

        def exchange() -> tuple[Any, bytes]:
            answer = self._inner.handle_request(request)
            try:
                return answer, read_answer(answer, MAX_ANSWER)
            finally:
                answer.close()

        answer, body = within(ANSWER_S, exchange, self._inner.close)
        headers = [pair for pair in answer.headers.items() if pair[0].lower() not in _OF_THE_BODY]
        return transport.Response(answer.status_code, headers=headers, content=body, request=request)

    def close(self) -> None:
        self._inner.close()


_OF_THE_BODY = ("content-encoding", "content-length", "transfer-encoding")


def registry_client(url: str, options: Mapping[str, Any]) -> SchemaRegistryClient:
    """Return a client of the registry at `url`; nothing is sent yet. Redirects are not followed.

    Args:
        url: the address.
        options: of the login.

    Raises:
        OSError: a certificate cannot be read.
        ValueError: it is none, or the options contradict each other.
    """
    client = SchemaRegistryClient({"url": url, **_CALLS, **options})
    calls = client._rest_client
    calls.session.close()
    limited = _Limited(transport.HTTPTransport(verify=calls.verify))
    calls.session = transport.Client(auth=calls.auth, timeout=TIMEOUT_S, follow_redirects=False, transport=limited)
    return client
