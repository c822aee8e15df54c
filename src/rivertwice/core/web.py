"""Requests to servers of other people: answers are read up to a limit, and no address is written to a log.

The address of a webhook is a secret: everybody who has it can post. httpx writes every request's address into its log, and
httpcore the path. Both are hidden here, at their own loggers, so that a level set elsewhere cannot show them.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from rivertwice.core.waits import beside

T = TypeVar("T")
ANSWER_S = 30.0
"""Seconds for a whole exchange: connection, request and answer, also with a slow server."""

_PART = 65_536
_IGNORED = 262_144  # bytes that are read of an answer that is not used


class AnswerError(Exception):
    """An answer that is not read: too large, too slow, or compressed in a way that is not supported.

    The message has no address.
    """


class OutOfTimeError(AnswerError):
    """An answer that was not complete in time."""


@dataclass(frozen=True)
class Answer:
    """A whole answer.

    Attributes:
        status: HTTP status. retry_after_s: seconds that the server asks to wait, None if it asks for none.
        body: uncompressed; never larger than the limit.
    """

    status: int
    body: bytes
    retry_after_s: float | None = None


class _HideAddresses(logging.Filter):
    """Removes the addresses from a record's arguments and drops traces of requests."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith("httpcore"):
            return record.levelno >= logging.WARNING  # its traces contain headers and paths as text
        if isinstance(record.args, tuple):
            record.args = tuple(_hidden(argument) for argument in record.args)
        return True


def _hidden(value: Any) -> Any:
    return f"{value.scheme}://{value.host}/(hidden)" if isinstance(value, httpx.URL) else value


_FILTER = _HideAddresses()
_LOGGERS = ("httpx", *(f"httpcore.{part}" for part in ("connection", "http11", "http2", "proxy", "socks")))


def hide_addresses() -> None:
    """Keep addresses of requests out of this process's logs, at any log level; can be called again."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if _FILTER not in logger.filters:
            logger.addFilter(_FILTER)


def is_web_address(url: str) -> bool:
    """Say whether `url` is an http or https address that requests can be sent to."""
    try:
        parsed = httpx.URL(url)
        parts = urlsplit(url)
        _ = parts.port  # raises if it is not a port
    except (ValueError, httpx.InvalidURL):  # their messages may contain the address
        return False
    return parsed.scheme in ("http", "https") and bool(parts.hostname)


def web_client(*, timeout_s: float, headers: dict[str, str] | None = None, **options: Any) -> httpx.Client:
    """Return a client that follows no redirect, asks for uncompressed answers, and logs no address."""
    hide_addresses()
    all_headers = {"Accept-Encoding": "identity", **(headers or {})}
    return httpx.Client(timeout=timeout_s, follow_redirects=False, headers=all_headers, **options)


def send(client: httpx.Client, url: str, content: bytes, headers: dict[str, str]) -> Answer:
    """Post to a receiver and use only the status; a large answer is not an error, and is not read to its end.

    Connection, request and answer together take at most `ANSWER_S`; after that the client is closed.

    Raises:
        httpx.HTTPError: there is no answer. Its message may contain the address: show only its type.
    """

    def exchange() -> Answer:
        with client.stream("POST", url, content=content, headers=headers) as answer:
            remaining = _IGNORED
            for part in answer.iter_raw(
                _PART
            ):  # a short answer is read to its end, so that the connection stays usable
                remaining -= len(part)
                if remaining < 0:
                    break
            return Answer(answer.status_code, b"", _retry_after(answer))

    try:
        return within(ANSWER_S, exchange, client.close)
    except OutOfTimeError as error:
        raise httpx.ReadTimeout(str(error)) from None


def within(seconds: float, work: Callable[[], T], end: Callable[[], None]) -> T:
    """Return what `work` returns, or end it after a time limit.

    The limits of a client are for one read or write each; a server that sends a byte now and then meets them for ever. So the work has
    a thread, and `end` closes its connections: it fails at the next byte.

    Raises:
        OutOfTimeError: it took longer.
    """
    outcome = beside(work, "request")
    try:
        return outcome.result(seconds)
    except TimeoutError:
        if outcome.done():  # an error of the work's own
            raise
        end()
        message = f"the answer was not complete after {seconds:.0f} s"
        raise OutOfTimeError(message) from None


def read_answer(answer: httpx.Response, limit: int) -> bytes:
    """Return an answer's uncompressed body; at most `limit` bytes are held in memory.

    Args:
        answer: a stream that was not read yet.
        limit: bytes, after decompression.

    Raises:
        AnswerError: it is larger, or is compressed with neither gzip nor deflate.
    """
    unpack = _unpacker(answer.headers.get("Content-Encoding", "identity").strip().lower())
    body = bytearray()
    for part in answer.iter_raw(_PART):
        body += part if unpack is None else _unpacked(unpack, part, limit + 1 - len(body))
        if len(body) > limit:
            message = f"the answer has more than {limit} bytes, which are not read"
            raise AnswerError(message)
    return bytes(body)


def _unpacker(encoding: str) -> Any | None:
    if encoding in ("identity", ""):
        return None
    if encoding in ("gzip", "deflate"):
        return zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: detects which of the two it is
    message = f"the answer is packed as {encoding[:20]!r} although it was asked for as it is; it is not read"
    raise AnswerError(message)


def _unpacked(unpack: Any, part: bytes, room: int) -> bytes:
    try:
        return bytes(unpack.decompress(part, room))
    except zlib.error:
        message = "the answer cannot be unpacked"
        raise AnswerError(message) from None


def _retry_after(answer: httpx.Response) -> float | None:
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isdecimal() and len(text) < 6 else None
