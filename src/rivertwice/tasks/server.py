"""The agent over HTTP, for Airflow's workers on other hosts: `RIVERTWICE_LISTEN=HOST:PORT`, TLS, and a token for each team.

| question | answer |
|---|---|
| `GET /v1/definitions?only=NAME` | what the DAGs of each pipeline, or of one, depend on |
| `GET /v1/pipelines/NAME/watch` | how its stream is |
| `PUT /v1/tasks/ID` | begins a step or a job of a DAG's task; a second time it changes nothing |
| `GET /v1/tasks/ID?offset=N&wait=S` | what it has said since, and how it ended |
| `DELETE /v1/tasks/ID` | ends it |

It is a process of its own that ends with its agent, so nothing that is asked here can stop a stream. Each task is a
process that does what the same task does in a worker of this host; only the smallest steps are done here (`catalogue.IN_PLACE`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rivertwice.core import (
    RequestError,
    RivertwiceError,
    Settings,
    hide_addresses,
    log_to_stdout,
    require_pipeline,
    to_plain,
    utc_now,
)
from rivertwice.tasks.definitions import dags_here
from rivertwice.tasks.desk import Desk, check_request
from rivertwice.tasks.tokens import Token, Tokens
from rivertwice.tasks.watched import Watched

LOG = logging.getLogger(__name__)
LONGEST_BODY = 1 << 20
MOST_AT_ONCE = 1000
LONGEST_WAIT_S, LOOK_S, PARENT_S = 25.0, 0.2, 1.0
Answer = Callable[[Request, Token], Awaitable[Any]]


class RefusedError(Exception):
    """A question that is not answered: its status, and why."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Service:
    """Answers questions about one home."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._desk = Desk(settings)
        self._tokens = Tokens(settings)

    def app(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/v1/definitions", self._answered(self._definitions)),
            Route("/v1/pipelines/{pipeline}/watch", self._answered(self._watch)),
            Route("/v1/tasks/{id}", self._answered(self._begin), methods=["PUT"]),
            Route("/v1/tasks/{id}", self._answered(self._news), methods=["GET"]),
            Route("/v1/tasks/{id}", self._answered(self._end), methods=["DELETE"]),
        ]
        return Starlette(routes=routes)

    def _answered(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            try:
                return JSONResponse(to_plain(await answer(request, await self._token(request))))
            except RefusedError as error:
                return JSONResponse({"detail": str(error)}, error.status)
            except RequestError as error:
                return JSONResponse({"detail": str(error)}, 422)
            except RivertwiceError as error:
                return JSONResponse({"detail": str(error)}, 500 if error.retryable else 409)

        return respond

    async def _token(self, request: Request) -> Token:
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        token = await asyncio.to_thread(self._tokens.find, secret) if scheme.lower() == "bearer" else None
        if token is None:
            LOG.warning("refused %s %s: no known token", request.method, request.url.path)
            raise RefusedError(401, "the token is not known here; make one: `rivertwice agent token NAME`")
        return token

    async def _definitions(self, request: Request, token: Token) -> Any:
        found = await asyncio.to_thread(dags_here, self._settings, request.query_params.get("only"))
        return [each.model_dump(mode="json") for each in found if token.sees(each.name)]

    async def _watch(self, request: Request, token: Token) -> Any:
        name = self._seen(request.path_params["pipeline"], token)
        return await asyncio.to_thread(Watched.of, self._settings, name, utc_now())

    async def _begin(self, request: Request, token: Token) -> Any:
        if token.only_reads:
            raise RefusedError(
                403, f"the token {token.name} only reads; make one that does not: `rivertwice agent token NAME`"
            )
        asked = check_request(await _body(request))
        name = self._seen(asked["pipeline"], token)
        user = asked["run"].get("user")
        run = {**asked["run"], "user": f"{user} ({token.name})" if user else ""}
        id_ = request.path_params["id"]
        await asyncio.to_thread(self._desk.begin, id_, {**asked, "run": run}, utc_now())
        LOG.info(
            "%s begins %s %s of %s: task %s of %s, run %s",
            token.name,
            asked["kind"],
            asked["name"],
            name,
            run["task"],
            run["dag"],
            run["run"],
        )
        return {"id": id_}

    async def _news(self, request: Request, token: Token) -> Any:
        id_ = self._task(request, token)
        try:
            offset, wait = int(request.query_params.get("offset", "0")), float(request.query_params.get("wait", "0"))
        except ValueError:
            raise RefusedError(422, "offset and wait are numbers") from None
        if offset < 0 or not 0 <= wait <= LONGEST_WAIT_S:
            raise RefusedError(422, f"offset is not negative, and wait is 0 to {LONGEST_WAIT_S:.0f} seconds")
        until = asyncio.get_running_loop().time() + wait
        while True:
            news = await asyncio.to_thread(self._desk.news, id_, offset)
            if news.lines or news.ended or asyncio.get_running_loop().time() >= until:
                return news
            await asyncio.sleep(LOOK_S)

    async def _end(self, request: Request, token: Token) -> Any:
        id_ = self._task(request, token)
        if token.only_reads:
            raise RefusedError(403, f"the token {token.name} only reads")
        await asyncio.to_thread(self._desk.end, id_)
        LOG.info("%s ended the task %s", token.name, id_)
        return {"id": id_}

    def _task(self, request: Request, token: Token) -> str:
        id_ = str(request.path_params["id"])
        pipeline = self._desk.asked_for(id_)
        if pipeline is None or not token.sees(pipeline):
            raise RefusedError(
                404,
                "there is no such task; it was never begun, or ended more than an hour ago: clear the task in Airflow",
            )
        return id_

    def _seen(self, pipeline: Any, token: Token) -> str:
        """Return the name of a pipeline that exists; one that the token is not for answers as one that does not."""
        name = require_pipeline(str(pipeline))
        if not token.sees(name) or not self._settings.definition_folder(name).is_dir():
            raise RefusedError(404, f"there is no pipeline {name} here, or the token {token.name} is not for it")
        return name


async def _body(request: Request) -> Any:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_BODY:
            raise RefusedError(413, f"a task's request has at most {LONGEST_BODY} bytes")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise RefusedError(422, "the request is not JSON") from None


async def serve(settings: Settings, parent: int) -> None:
    """Answer until the agent that started this process has ended."""
    assert settings.listen is not None, "the agent starts this only with an address"
    host, port = settings.listen
    certificate = None if settings.listen_certificate is None else str(settings.listen_certificate)
    server = uvicorn.Server(
        uvicorn.Config(
            Service(settings).app(),
            host=host,
            port=port,
            ssl_certfile=certificate,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            limit_concurrency=MOST_AT_ONCE,
        )
    )

    async def end_with_parent() -> None:
        while os.getppid() == parent:
            await asyncio.sleep(PARENT_S)
        server.should_exit = True

    watching = asyncio.create_task(end_with_parent())
    try:
        await server.serve()
    finally:
        watching.cancel()


def main() -> int:
    """Answer in this process; the environment names the home. Return the exit code."""
    log_to_stdout()
    hide_addresses()
    settings = Settings.from_env()
    try:
        asyncio.run(serve(settings, os.getppid()))
    except SystemExit:
        return 1  # uvicorn has said why it cannot listen
    return 0


if __name__ == "__main__":
    sys.exit(main())
