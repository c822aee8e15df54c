"""Who may see what: each route of the cockpit, asked by nobody, by a team's viewer and by another team's, in a real Airflow."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from fastapi.routing import APIRoute

from homes.project import FLIGHTS, make_project, rename
from rivertwice.config import Settings
from rivertwice.embedded.airflow import airflow_info, client, stop_airflow
from servers.cockpit import data_of, token_of
from servers.teams import start_airflow_of_teams

pytestmark = [pytest.mark.airflow, pytest.mark.filterwarnings("ignore")]
RED, BLUE = "red_delays", "blue_delays"
TEAMS = {"red": [RED], "blue": [BLUE]}
SERVED = {200, 400, 404, 409, 422}
"""What somebody who may read gets: content, or what the request lacks."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """An Airflow with two teams, a pipeline each."""
    folder = tmp_path_factory.mktemp("teams")
    made = make_project(folder, {RED: FLIGHTS, BLUE: FLIGHTS}, links=("plugins", "dags", "expectations"))
    for name in (RED, BLUE):
        rename(made, "flight_delays", name)
    try:
        start_airflow_of_teams(made, TEAMS, ["rita:viewer:red", "ruth:user:red", "bob:viewer:blue"])
        client(made).wait_for_dags({f"supervise__{name}" for name in (RED, BLUE)}, timeout=180)
        yield made
    finally:
        stop_airflow(made)


def routes() -> list[tuple[str, str]]:
    """Return method and path of every route of data, with RED for the pipeline."""
    from rivertwice.orchestration.cockpit.app import app

    found = []
    for route in app.routes:
        if isinstance(route, APIRoute) and route.path != "/":
            path = re.sub(r"\{\w+\}", "x", route.path.replace("{name}", RED))
            found += [(method, path) for method in sorted(route.methods)]
    return found


def status(settings: Settings, method: str, path: str, token: str | None) -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    answer = httpx.request(
        method, f"{airflow_info(settings).url}/rivertwice{path}", headers=headers, trust_env=False, timeout=60
    )
    return answer.status_code, answer.text


def test_a_team_sees_its_own_pipelines_alone(settings: Settings) -> None:
    seen = {
        user: [row["name"] for row in data_of(settings, "overview", user)["pipelines"]]
        for user in ("rita", "ruth", "bob", "admin")
    }
    assert seen == {"rita": [RED], "ruth": [RED], "bob": [BLUE], "admin": [BLUE, RED]}


def test_every_route_is_closed_to_nobody_and_to_another_team(settings: Settings) -> None:
    tokens = {user: token_of(settings, user) for user in ("rita", "bob")}
    asked = routes()
    assert len(asked) >= 3
    for method, path in asked:
        assert status(settings, method, path, None)[0] == 401, (method, path)
        if f"/p/{RED}/" not in path:
            continue
        refused = status(settings, method, path, tokens["bob"])
        assert refused[0] in ({404} if method == "GET" else {403, 404}), (method, path, refused)
        absent = status(settings, method, path.replace(RED, "no_such_pipeline"), tokens["bob"])
        assert refused[0] == absent[0], (method, path)
        assert refused[1].replace(RED, "X") == absent[1].replace("no_such_pipeline", "X"), (method, path)
        own = status(settings, method, path, tokens["rita"])
        assert own[0] in (SERVED if method == "GET" else {403}), (method, path, own)
