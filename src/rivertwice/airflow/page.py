"""Our plugin of Airflow: the cockpit in its navigation and beside its DAGs, and the check of forms."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from rivertwice.airflow.form_check import FormCheck
from rivertwice.tasks import AgentClient

PREFIX = "/rivertwice"
HERE = "rivertwice/"
"""The address of the page from Airflow's own pages, which name their base: it holds also where a proxy adds a path."""


def _apps() -> list[dict[str, Any]]:
    """Return the app of the page; none where its home is on another host."""
    if AgentClient.is_named():
        return []
    from rivertwice.airflow.web_app import app

    return [{"app": app, "url_prefix": PREFIX, "name": "rivertwice"}]


class RivertwicePlugin(AirflowPlugin):
    """Adds the cockpit to Airflow (a separate app, and views that show it), and the check of forms before a run."""

    name = "rivertwice"
    fastapi_apps = _apps()
    fastapi_root_middlewares = [{"middleware": FormCheck, "args": [], "kwargs": {}, "name": "rivertwice forms"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {
            "name": "rivertwice",
            "href": HERE,
            "url_route": "rivertwice",
            "icon": f"{HERE}web/icon.svg",
            "destination": "nav",
            "nav_top_level": True,
        },
        {
            "name": "rivertwice",
            "href": f"{HERE}?dag={{DAG_ID}}",
            "url_route": "rivertwice-dag",
            "destination": "dag",
        },
        {
            "name": "rivertwice",
            "href": f"{HERE}?dag={{DAG_ID}}&run={{RUN_ID}}",
            "url_route": "rivertwice-run",
            "destination": "dag_run",
        },
    ]
    react_apps = [  # noqa: RUF012
        {
            "name": "rivertwice",
            "bundle_url": f"{HERE}web/dashboard.js",
            "url_route": "rivertwice-home",
            "destination": "dashboard",
        }
    ]
    if not fastapi_apps:
        external_views, react_apps = [], []
