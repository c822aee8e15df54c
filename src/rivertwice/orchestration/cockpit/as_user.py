"""Ask Airflow's own REST API within its process, as the person who asked us: its permissions, its checks of forms, its audit log.

Nothing is started around Airflow. The request goes through the whole app of Airflow, with the credentials that came with the
request for the act; so it is Airflow that lets the person do it or refuses, and that writes down the person's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import httpx
from fastapi import HTTPException, Request

from rivertwice.orchestration.form_check import ROOT_APP

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_PASSED_ON = ("authorization", "cookie", "referer", "user-agent")
_AWAY = "http://airflow"


class AirflowAsUser:
    """Airflow's REST API, as the person of a request.

    Args:
        request: the request for the act.
    """

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
