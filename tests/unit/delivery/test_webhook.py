"""A receiver that fails, answers twice or is gone: every record comes at least once, in order, with one key per body."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from delivery_home import DeliveryHome, fill, fold
from rivertwice.delivery.deliver import Deliverer
from rivertwice.delivery.webhook_sink import RECORDS, WebhookSink
from rivertwice.errors import ConfigError, ServiceError

SINK = "{hook: {to: webhook, url_env: TEST_HOOK, guarantee: at_least_once}}"


class Receiver:
    """Answers with the next of `answers`, then 200; keeps what it took by its key."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.requests: list[str] = []
        self.taken: dict[str, list[dict[str, Any]]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                key = self.headers["Idempotency-Key"]
                outer.requests.append(key)
                status = outer.answers.pop(0) if outer.answers else 200
                if status == 200 or status == 599:  # 599: it took effect, and the answer says otherwise
                    outer.taken.setdefault(key, json.loads(body)["records"])
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def records(self) -> list[dict[str, Any]]:
        key = json.dumps
        return [
            {**one, "_key": key([one["pipeline"], one["window"], one["keys"]])}
            for part in self.taken.values()
            for one in part
        ]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    found = Receiver()
    monkeypatch.setenv("TEST_HOOK", f"http://127.0.0.1:{found.server.server_port}/secret-canary")
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def world(tmp_path: Path) -> DeliveryHome:
    return DeliveryHome(tmp_path, SINK)


def deliver(world: DeliveryHome, *, again: bool = False):
    finish = threading.Event()
    finish.set()
    asked = world.definition.deliver["hook"]
    sink = WebhookSink(world.home, "hook", asked, sleep=lambda _: None)
    return Deliverer(world.settings, "p", "hook", asked, sink=sink).run(threading.Event(), finish, again=again)


def test_records_come_in_order_and_the_position_goes_on(world: DeliveryHome, receiver: Receiver) -> None:
    fill(world, "t1", range(3), keys=RECORDS + 1)
    assert deliver(world).steps == 3
    assert len(receiver.requests) == 6
    assert deliver(world).records == 0
    world.publish(0, 1, [(0, "k00000", 5)])
    deliver(world)
    assert fold(receiver.records()) == world.served()


def test_a_lost_answer_and_busy_ones_are_repeated_with_the_same_key(world: DeliveryHome, receiver: Receiver) -> None:
    fill(world, "t1", [0], keys=2)
    receiver.answers = [599, 503, 429]
    assert deliver(world).records == 2
    assert len(receiver.requests) == 4
    assert len(set(receiver.requests)) == 1
    assert fold(receiver.records()) == world.served()


def test_after_a_refusal_the_step_comes_again_and_keeps_its_keys(world: DeliveryHome, receiver: Receiver) -> None:
    fill(world, "t1", [0], keys=2 * RECORDS)
    receiver.answers = [200, 400]
    with pytest.raises(ServiceError, match=r"status 400") as caught:
        deliver(world)
    assert "canary" not in str(caught.value)
    assert deliver(world).records == 2 * RECORDS
    first, second, *rest = receiver.requests
    assert rest == [first, second]
    assert fold(receiver.records()) == world.served()


def test_no_address_and_no_server_are_told_by_the_variables_name(
    world: DeliveryHome, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world, "t1", [0], keys=1)
    monkeypatch.setenv("TEST_HOOK", "http://127.0.0.1:9/secret-canary")
    with pytest.raises(ServiceError, match=r"receiver at \$TEST_HOOK did not take") as caught:
        deliver(world)
    assert "canary" not in str(caught.value)
    monkeypatch.setenv("TEST_HOOK", "file:///secret-canary")
    with pytest.raises(ConfigError, match="TEST_HOOK holds no http") as refused:
        deliver(world)
    assert "canary" not in str(refused.value)
