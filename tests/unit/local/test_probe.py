"""Health checks of containers answer yes or no, with the reason."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from rivertwice.setup.probe import main, select_sick

HEALTH = {"metadatabase": {"status": "healthy"}, "scheduler": {"status": "unhealthy"}, "triggerer": {"status": None}}


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.path in {"/json/", "/api/v2/monitor/health"}
        self.send_response(200 if known else 503)
        self.end_headers()
        self.wfile.write(json.dumps(HEALTH).encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield int(server.server_address[1])
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_port_that_accepts_and_a_page_that_answers_are_healthy(port: int) -> None:
    assert main(["tcp", "127.0.0.1", str(port)]) == 0
    assert main(["http", f"http://127.0.0.1:{port}/json/"]) == 0
    assert main(["airflow", f"http://127.0.0.1:{port}", "metadatabase"]) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["tcp", "127.0.0.1", "1"], "refused"),
        (["http", "http://127.0.0.1:PORT/down"], "503"),
        (["http", "file:///etc/passwd"], "is not a valid page address"),
        (["airflow", "http://127.0.0.1:PORT", "metadatabase", "scheduler"], "probe: scheduler is unhealthy"),
        (
            ["airflow", "http://127.0.0.1:PORT", "triggerer", "dag_processor"],
            "triggerer is None, dag_processor is None",
        ),
    ],
)
def test_what_is_not_healthy_is_named(
    port: int, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([each.replace("PORT", str(port)) for each in arguments]) == 1
    assert told in capsys.readouterr().err


def test_an_answer_of_another_shape_is_not_healthy() -> None:
    assert select_sick([], ["scheduler"]) == {"scheduler": "None"}
    assert select_sick({"scheduler": "healthy"}, ["scheduler"]) == {"scheduler": "None"}
