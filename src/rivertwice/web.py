"""Requests to addresses that somebody else runs: answers are read up to a limit, and no address gets into a log.

An address of a webhook is a secret: whoever has it may post. httpx writes every request's address into its log, and
httpcore the path; both are hidden here, at their own loggers, so that no level set elsewhere brings them back.
"""

from __future__ import annotations

import logging
import zlib
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from rivertwice.waits import Deadline

ANSWER_S = 30.0
"""Seconds in which a whole answer must have come, however slowly it drips."""

_PART = 65_536
_IGNORED = 262_144  # bytes of an answer that nobody reads


class AnswerError(Exception):
    """An answer that is not read: too large, too slow, or packed in a way that is not unpacked here.

    Its text has no address.
    """


@dataclass(frozen=True)
class Answer:
    """A whole answer.

    Attributes:
        status: HTTP status. retry_after_s: seconds that the server asks to wait, None if it asks for none.
        body: unpacked; never larger than the limit.
    """

    status: int
    body: bytes
    retry_after_s: float | None = None


class _HideAddresses(logging.Filter):
    """Takes the addresses out of a record's arguments and drops what is only a trace of a request."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith("httpcore"):
            return record.levelno >= logging.WARNING  # headers and paths lie in its traces as text
        if isinstance(record.args, tuple):
            record.args = tuple(_hidden(one) for one in record.args)
        return True


def _hidden(value: Any) -> Any:
    return f"{value.scheme}://{value.host}/(hidden)" if isinstance(value, httpx.URL) else value


_FILTER = _HideAddresses()
_LOGGERS = ("httpx", *(f"httpcore.{part}" for part in ("connection", "http11", "http2", "proxy", "socks")))


def hide_addresses() -> None:
    """Keep addresses of requests out of this process's logs, whatever level is set; safe to call again."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if _FILTER not in logger.filters:
            logger.addFilter(_FILTER)


def is_web_address(url: str) -> bool:
    """Say whether `url` is an http or https address that requests can be sent to."""
    try:
        parsed = httpx.URL(url)
        parts = urlsplit(url)
        _ = parts.port  # where it is none, this raises
    except (ValueError, httpx.InvalidURL):  # their texts may hold the address
        return False
    return parsed.scheme in ("http", "https") and bool(parts.hostname)


def web_client(*, timeout_s: float, headers: dict[str, str] | None = None, **options: Any) -> httpx.Client:
    """Return a client that follows no redirect, asks for answers that are not packed, and logs no address."""
    hide_addresses()
    asked = {"Accept-Encoding": "identity", **(headers or {})}
    return httpx.Client(timeout=timeout_s, follow_redirects=False, headers=asked, **options)


def ask(client: httpx.Client, method: str, url: str, *, limit: int, **content: Any) -> Answer:
    """Send a request and return the whole answer, at most `limit` bytes of it unpacked.

    Raises:
        AnswerError: the answer is larger, takes longer than `ANSWER_S`, or is packed other than by gzip or deflate.
        httpx.HTTPError: there is no answer. Its text may hold the address: show its type only.
    """
    deadline = Deadline.after(ANSWER_S)
    with client.stream(method, url, **content) as answer:
        body = read_answer(answer, limit, deadline)
        return Answer(answer.status_code, body, _retry_after(answer))


def send(client: httpx.Client, url: str, content: bytes, headers: dict[str, str]) -> Answer:
    """Post to a receiver of which only the status counts; a large answer is neither an error nor read to its end.

    Raises:
        httpx.HTTPError: there is no answer. Its text may hold the address: show its type only.
    """
    deadline = Deadline.after(ANSWER_S)
    with client.stream("POST", url, content=content, headers=headers) as answer:
        left = _IGNORED
        for part in answer.iter_raw(_PART):  # read to its end, a short answer leaves the connection usable
            left -= len(part)
            if left < 0 or deadline.is_over():
                break
        return Answer(answer.status_code, b"", _retry_after(answer))


def read_answer(answer: httpx.Response, limit: int, deadline: Deadline) -> bytes:
    """Return an answer's body, unpacked; no more than `limit` bytes of it are ever held.

    Args:
        answer: a stream that nobody has read yet.
        limit: bytes, after unpacking.
        deadline: when it must be complete.

    Raises:
        AnswerError: as `ask`.
    """
    unpack = _unpacker(answer.headers.get("Content-Encoding", "identity").strip().lower())
    body = bytearray()
    for part in answer.iter_raw(_PART):
        body += part if unpack is None else _unpacked(unpack, part, limit + 1 - len(body))
        if len(body) > limit:
            message = f"the answer has more than {limit} bytes, which are not read"
            raise AnswerError(message)
        if deadline.is_over():
            message = f"the answer was not complete after {ANSWER_S:.0f} s"
            raise AnswerError(message)
    return bytes(body)


def _unpacker(encoding: str) -> Any | None:
    if encoding in ("identity", ""):
        return None
    if encoding in ("gzip", "deflate"):
        return zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: it sees by itself which of the two
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
