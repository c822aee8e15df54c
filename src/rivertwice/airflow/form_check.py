"""Refuses an invalid form before Airflow makes a run of it.

The schema of a form knows one field at a time, so a reversed range passes it. This part of the API server reads the whole
request. A run that comes in another way (Airflow's own command line, another DAG) is refused by its first task.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from rivertwice.core import RequestError, utc_now
from rivertwice.tasks import check_form

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

LONGEST_BODY = 1 << 20
ROOT_APP = "rivertwice.root_app"
"""Where Airflow's own app is in the scope of each request; an app that is mounted below it would not know it otherwise."""
_TRIGGER = re.compile(r"/api/v2/dags/(?P<verb>[a-z]+(?:_[a-z]+)*)__(?P<pipeline>[a-z0-9._-]+)/dagRuns/?$")


class FormCheck:
    """ASGI middleware that answers 400, with the reason, to a request for a run of one of our DAGs whose form is invalid.

    Args:
        now: the time by which a range is in the future.
    """

    def __init__(self, app: ASGIApp, now: Callable[[], datetime] = utc_now) -> None:
        self._app = app
        self._now = now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on unless it is refused; the page's own app finds Airflow's in it (`cockpit/as_user.py`)."""
        if "app" in scope:
            scope[ROOT_APP] = scope["app"]
        wanted = _TRIGGER.search(scope.get("path", "")) if _is_post(scope) else None
        if wanted is None:
            await self._app(scope, receive, send)
            return
        messages = await _read(receive)
        refusal = find_refusal(wanted["verb"], _body(messages), self._now(), wanted["pipeline"])
        if refusal is None:
            await self._app(scope, _again(messages, receive), send)
            return
        log.info("refused to start %s: %s", scope["path"], refusal)
        await JSONResponse({"detail": refusal}, status_code=400)(scope, receive, send)


def find_refusal(verb: str, body: bytes, now: datetime, pipeline: str | None = None) -> str | None:
    """Return why the run that `body` asks for is invalid; None if it is valid, or if Airflow itself refuses the body. Pure."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return None
    conf = asked.get("conf") if isinstance(asked, dict) else None
    if conf is not None and not isinstance(conf, dict):
        return None
    try:
        check_form(verb, conf or {}, now, pipeline)
    except RequestError as error:
        return str(error)
    return None


def _is_post(scope: Scope) -> bool:
    return bool(scope["type"] == "http" and scope["method"] == "POST")


async def _read(receive: Receive) -> list[Message]:
    """Return the messages of a body, up to the first that makes it longer than any form."""
    messages: list[Message] = []
    size, more = 0, True
    while more and size <= LONGEST_BODY:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        more = message["type"] == "http.request" and bool(message.get("more_body"))
    return messages


def _body(messages: list[Message]) -> bytes:
    return b"".join(message.get("body", b"") for message in messages)


def _again(messages: list[Message], receive: Receive) -> Receive:
    """Return a function that gives the messages that were read, then those that follow."""
    waiting = list(messages)

    async def read_again() -> Message:
        return waiting.pop(0) if waiting else await receive()

    return read_again
