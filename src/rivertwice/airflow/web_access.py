"""The user who asks, and what they may see: permissions, answers, headers and protection against forged requests.

A pipeline that one may not see answers like one that does not exist.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import httpx
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer
from sqlalchemy import select
from sqlalchemy.orm import Session

from rivertwice.airflow.form_check import ROOT_APP
from rivertwice.core import ConfigError, LedgerError, RequestError, ServiceError, Settings, base_of, to_plain
from rivertwice.definition import AirflowSettings, Definition
from rivertwice.tasks import FoundDefinitions, dag_id, find_definitions

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


log = logging.getLogger(__name__)

# The definitions of the project, loaded again only if one of their files changed: an open page asks every few seconds.

_Stamp = tuple[tuple[str, int, int, int], ...]
_memo: dict[tuple[Path, Path], tuple[_Stamp, dict[str, FoundDefinitions]]] = {}
_lock = Lock()


def known_pipelines(settings: Settings) -> dict[str, FoundDefinitions]:
    """Return every pipeline and every open version by name, as `find_definitions` does."""
    place = (settings.definitions, settings.frozen_definitions)
    stamp = _stamp(place)
    with _lock:
        kept = _memo.get(place)
        if kept is None or kept[0] != stamp:
            kept = (stamp, {each.name: each for each in find_definitions(settings)})
            _memo[place] = kept
    return kept[1]


def pipelines_without_versions(settings: Settings) -> list[str]:
    """Return the names of the pipelines, sorted; a version belongs to the row of its pipeline."""
    return sorted({base_of(name) for name in known_pipelines(settings)})


def _stamp(folders: tuple[Path, ...]) -> _Stamp:
    """Return name, inode, size and time of change of each file below the folders."""
    stamps = []
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            try:
                stat = file.stat()
            except FileNotFoundError:
                continue  # a version that was dropped meanwhile
            stamps.append((str(file), stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(stamps)


VERBS = tuple(AirflowSettings().dags)
"""The verbs of a pipeline's DAGs; `care`, which each pipeline has unless it chose others, comes first."""


def get_settings() -> Settings:
    """Return the settings of the API server."""
    return Settings.from_env()


SettingsDep = Annotated[Settings, Depends(get_settings)]


def readable_pipelines(
    names: Iterable[str], user: Any, session: Session, method: Literal["GET", "POST"] = "GET"
) -> set[str]:
    """Return those pipelines of which the user may read a DAG.

    A pipeline that Airflow has not parsed yet has no team. Where Airflow has teams, no user sees it before that; otherwise the
    auth manager is asked about the DAG it will have.

    Args:
        names: of pipelines or versions.
        user: as Airflow knows the person who asks.
        method: `GET` for the right to read, `POST` for the right to start a run, as Airflow names them.
    """
    owners = {dag_id(verb, name): name for name in set(names) for verb in VERBS}
    stored = set(session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(owners))))
    unparsed = set(owners.values()) - {owners[each] for each in stored}
    if not _has_teams():
        stored |= {dag_id(VERBS[0], name) for name in unparsed}
    return {owners[each] for each in readable_dags(stored, user, session, method)}


def readable_dags(dags: Iterable[str], user: Any, session: Session, method: Literal["GET", "POST"] = "GET") -> set[str]:
    """Return those DAGs that the user may read, or start a run of; the auth manager is asked once for each team."""
    asked = sorted(dags)
    teams = DagModel.get_dag_id_to_team_name_mapping(asked, session=session) if asked and _has_teams() else {}
    by_team: dict[str | None, set[str]] = defaultdict(set)
    for each in asked:
        by_team[teams.get(each)].add(each)
    manager, readable = get_auth_manager(), set[str]()
    for team, ids in by_team.items():
        readable |= manager.filter_authorized_dag_ids(dag_ids=ids, user=user, method=method, team_name=team)
    return readable


def _has_teams() -> bool:
    return bool(conf.getboolean("core", "multi_team", fallback=False))


def is_authorized(user: Any, dag: str, method: Any, entity: DagAccessEntity) -> bool:
    """Say whether a user may do something with a part of a DAG."""
    details = DagDetails(id=dag, team_name=DagModel.get_team_name(dag))
    return bool(get_auth_manager().is_authorized_dag(method=method, access_entity=entity, details=details, user=user))


def may_start(user: Any, verb: str, name: str) -> bool:
    """Say whether a user may start the DAG of a verb of a pipeline."""
    return is_authorized(user, dag_id(verb, name), "POST", DagAccessEntity.RUN)


def readable_definition(name: str, user: GetUserDep, session: SessionDep, settings: SettingsDep) -> Definition:
    """Return the definition of the pipeline, or version, in the path of a request.

    Raises:
        HTTPException: 404, if there is none or the user may read none of its DAGs; 409, if its definition is refused.
    """
    found = known_pipelines(settings).get(name)
    if found is None or not readable_pipelines([name, base_of(name)], user, session) & {name, base_of(name)}:
        raise HTTPException(404, f"there is no pipeline {name!r} that you may read; the overview lists those you may")
    if found.definition is None:
        raise HTTPException(409, found.refusal)
    return found.definition


PipelineDep = Annotated[Definition, Depends(readable_definition)]
"""The definition of the pipeline `{name}` of the path, for a user who may read it. Each route of a pipeline asks for it."""


# Answers that cost little if nothing changed: a strong ETag over the content, and 304 to a client that has it already.
#
# Content holds instants and no ages, so it stays the same while nothing happens.

NOT_KEPT = {"Cache-Control": "no-store", "Vary": "Authorization, Cookie"}


def answer(request: Request, content: Any) -> Response:
    """Return content as JSON, or 304 if the one who asks has it.

    Args:
        request: its header `If-None-Match` says what is already there.
        content: a view, or plain values.
    """
    body = json.dumps(to_plain(content), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = NOT_KEPT | {"ETag": tag}
    if tag in _tags(request.headers.get("If-None-Match", "")):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


class ViewRoute(APIRoute):
    """A route whose function returns a view, which is answered as JSON, or a response of its own: a file.

    What was asked is answered 400 with the reason if it is refused, 503 if something that is needed does not answer.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Take a function that need not know of the request; or that of another route, which is one more time included."""
        super().__init__(path, endpoint if hasattr(endpoint, "__wrapped__") else _answering(endpoint), **options)


def _answering(endpoint: Callable[..., Any]) -> Callable[..., Response]:
    asked = inspect.signature(endpoint)
    takes_request = "request" in asked.parameters  # FastAPI gives the request to one parameter alone

    @functools.wraps(endpoint)
    def respond(**given: Any) -> Response:
        request = given["request"] if takes_request else given.pop("request")
        try:
            view = endpoint(**given)
            return view if isinstance(view, Response) else answer(request, view)
        except (RequestError, ConfigError, LedgerError) as error:
            raise HTTPException(400, str(error)) from None
        except ServiceError as error:
            raise HTTPException(503, str(error)) from None

    own = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)
    parameters = [*asked.parameters.values(), *(() if takes_request else (own,))]
    respond.__signature__ = asked.replace(parameters=parameters, return_annotation=Response)  # type: ignore[attr-defined]
    return respond


def _tags(header: str) -> set[str]:
    """Return the tags of a header; a weak one (a proxy that compresses makes it so) names the same content."""
    return {part.strip().removeprefix("W/") for part in header.split(",")}


# Ask Airflow's own REST API within its process, as the person who asked us: its permissions, its checks of forms, its audit log.
#
# Everything is started through Airflow. The request goes through the whole app of Airflow, with the credentials that came with the
# request for the act; so it is Airflow that lets the person do it or refuses, and that writes down the person's name.

_PASSED_ON = ("authorization", "cookie", "referer", "user-agent")
_AWAY = "http://airflow"


class AirflowAsUser:
    """Airflow's REST API, as the person of a request."""

    def __init__(self, request: Request) -> None:
        app: ASGIApp = request.scope[ROOT_APP]
        self._headers = [(name, value) for name, value in request.headers.items() if name in _PASSED_ON]
        host = request.headers.get("host")
        base = _AWAY if host is None else f"{request.url.scheme}://{host}"
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url=base, trust_env=False, timeout=60.0
        )

    async def get(self, path: str, params: Mapping[str, Any] | None = None) -> httpx.Response:
        """Return the answer to a GET below `/api/v2`."""
        return await self._client.get(f"/api/v2{path}", params=params, headers=self._headers)

    async def send(self, method: str, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """Return the answer to a request with a body, below `/api/v2`."""
        return await self._client.request(method, f"/api/v2{path}", json=body, headers=self._headers)


def checked(answer: httpx.Response) -> Any:
    """Return what an answer contains.

    Raises:
        HTTPException: Airflow refused, with its status and its reason.
    """
    if answer.is_error:
        raise HTTPException(answer.status_code if answer.status_code < 500 else 502, detail_of(answer))
    return answer.json() if answer.content else None


def detail_of(answer: httpx.Response) -> str:
    """Return why Airflow refused."""
    try:
        detail = answer.json().get("detail", answer.text)
    except (ValueError, AttributeError):
        detail = answer.text
    return f"Airflow answers {answer.status_code}: {str(detail)[:500]}"


# Only the page itself may ask for an act: a token of the person in a header, and where the browser says it comes from.
#
# The cookie of a login goes along with whatever a foreign page lets the browser send. So an act needs a header that only a page of
# the same origin can read the value for and can set: a form cannot. The browser's own word of the origin is checked first, in the
# order of Go's `net/http.CrossOriginProtection`: `Sec-Fetch-Site` where the browser sends it, else `Origin` against `Host`; a
# client that sends neither is not a browser, so no login is misused.

HEADER = "X-Rivertwice-CSRF"
LIFE_S = 8 * 3600
_SALT = "rivertwice acts"


def make_token(secret: str, user: str) -> str:
    """Return a token for a person, signed with the API server's secret."""
    return str(URLSafeTimedSerializer(secret, salt=_SALT).dumps(user))


def check_token(secret: str, user: str, token: str | None) -> None:
    """Check a token.

    Raises:
        RequestError: there is none, it is another person's, it is not ours, or it is older than 8 hours.
    """
    if not token:
        message = f"the request has no header {HEADER}, so it is not known to come from the page; nothing was started"
        raise RequestError(message)
    try:
        owner = URLSafeTimedSerializer(secret, salt=_SALT).loads(token, max_age=LIFE_S)
    except SignatureExpired:
        message = f"the page's token is older than {LIFE_S // 3600} hours; reload the page"
        raise RequestError(message) from None
    except BadSignature:
        message = "the page's token was not made by this server; reload the page"
        raise RequestError(message) from None
    if owner != user:
        message = "the page's token belongs to another login; reload the page"
        raise RequestError(message)


def check_origin(headers: Mapping[str, str]) -> None:
    """Check where a request comes from. Pure.

    Args:
        headers: of the request, names in lower case.

    Raises:
        RequestError: another origin, or a body that a plain form of another page could send.
    """
    site, origin, host = headers.get("sec-fetch-site"), headers.get("origin"), headers.get("host", "")
    if site is not None:
        if site != "same-origin":
            message = f"the request comes from another page (Sec-Fetch-Site: {site[:40]}); nothing was started"
            raise RequestError(message)
    elif origin is not None and urlsplit(origin).netloc != host:
        message = f"the request comes from {origin[:80]}, not from {host[:80]}; nothing was started"
        raise RequestError(message)
    if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        message = "the body of the request is not application/json, so a form of another page could send it; nothing was started"
        raise RequestError(message)


def page_secret() -> str:
    """Return the secret that all API servers of one Airflow share."""
    return str(conf.get("api", "secret_key"))


def require_page(request: Request, user: GetUserDep) -> None:
    """Check that a request comes from the page, with the login of the one who asks.

    Raises:
        HTTPException: 403, it does not.
    """
    try:
        check_origin(request.headers)
        check_token(page_secret(), str(user.get_id()), request.headers.get(HEADER))
    except RequestError as error:
        log.warning("refused %s for %s: %s", request.url.path[:200], user.get_name(), error)
        raise HTTPException(403, str(error)) from None


FromPage = Annotated[None, Depends(require_page)]
"""Each route that does more than read asks for it, after the pipeline."""


# What every answer of the cockpit says to the browser: run our own scripts, ask this server, be framed by it, and nothing else.

CSP = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'self'",
    )
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}


class SecureHeaders:
    """ASGI middleware that puts `HEADERS` on each answer, also on those that report an error."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and add to its answer."""

        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                kept = [(name, value) for name, value in message["headers"] if name.decode().lower() not in HEADERS]
                message = {**message, "headers": [*kept, *ours]}
            await send(message)

        await self._app(scope, receive, add)
