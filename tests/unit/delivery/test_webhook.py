"""A receiver that fails, answers twice or is gone: every record comes at least once, in order, with one key per body."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from homes.delivery import DeliveryHome, fill, fold
from rivertwice.core.errors import ConfigError, ServiceError
from rivertwice.core.instants import utc_now
from rivertwice.deliver.aside import ask
from rivertwice.deliver.deliver import Deliverer
from rivertwice.deliver.webhook_sink import RECORDS, TRIES, WebhookSink

pytestmark = pytest.mark.long

SUSPECT_AFTER = 25
SINK = "{hook: {to: webhook, url_env: TEST_HOOK, guarantee: at_least_once}}"


class Receiver:
    """Answers with the next of `answers`, then 200; keeps what it took by its key."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.requests: list[str] = []
        self.taken: dict[str, list[dict[str, Any]]] = {}
        self.refuse: dict[str, int] = {}  # key to status
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                key = self.headers["Idempotency-Key"]
                outer.requests.append(key)
                status = outer.answers.pop(0) if outer.answers else 200
                held = [one["keys"]["k"] for one in json.loads(body)["records"]]
                status = next((outer.refuse[key] for key in held if key in outer.refuse), status)
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


@pytest.mark.proves("guarantees.md#webhook-sink")
def test_records_come_in_order_and_the_position_goes_on(world: DeliveryHome, receiver: Receiver) -> None:
    fill(world, "t1", range(3), keys=RECORDS + 1)
    assert deliver(world).steps == 3
    assert len(receiver.requests) == 6
    assert deliver(world).records == 0
    world.publish(0, 1, [(0, "k00000", 5)])
    deliver(world)
    assert fold(receiver.records()) == world.served()


@pytest.mark.proves("guarantees.md#webhook-sink")
def test_a_lost_answer_and_busy_ones_are_repeated_with_the_same_key(world: DeliveryHome, receiver: Receiver) -> None:
    fill(world, "t1", [0], keys=2)
    receiver.answers = [599, 503, 429]
    assert deliver(world).records == 2
    assert len(receiver.requests) == 4
    assert len(set(receiver.requests)) == 1
    assert fold(receiver.records()) == world.served()


@pytest.mark.proves("guarantees.md#webhook-sink")
def test_after_a_failure_the_step_comes_again_and_keeps_its_keys(world: DeliveryHome, receiver: Receiver) -> None:
    fill(world, "t1", [0], keys=2 * RECORDS)
    receiver.answers = [200, 500, 500, 500, 500, 500]
    with pytest.raises(ServiceError, match=r"status 500") as caught:
        deliver(world)
    assert "canary" not in str(caught.value)
    assert deliver(world).records == 2 * RECORDS
    first, *_ = receiver.requests
    assert receiver.requests[-2:] == [first, receiver.requests[1]]
    assert fold(receiver.records()) == world.served()


@pytest.mark.proves(
    "howto-delivery.md#webhook", "howto-delivery.md#what-a-destination-refuses", "guarantees.md#webhook-sink"
)
def test_a_record_refused_for_good_is_set_aside_and_the_sink_goes_on(world: DeliveryHome, receiver: Receiver) -> None:
    fill(world, "t1", range(2), keys=RECORDS + 20)
    receiver.refuse = {"k00007": 422, "k00300": 400, "k00510": 403}  # 403: a filter in front of the receiver
    delivered = deliver(world)
    assert (delivered.refused, delivered.records) == (6, 2 * RECORDS + 40 - 6)
    lacking = {(hour, key) for hour in range(2) for key in receiver.refuse}
    assert fold(receiver.records()) == {at: n for at, n in world.served().items() if at not in lacking}
    receiver.refuse = {}
    world.commit("t1", 2, 3, [(2, "k00007", 9)])
    assert deliver(world).refused == 6


@pytest.mark.proves("howto-delivery.md#what-a-destination-refuses")
@pytest.mark.parametrize("status", [301, 401, 404])
def test_a_refusal_of_every_record_stops_the_sink_and_sets_none_aside(
    world: DeliveryHome, receiver: Receiver, status: int
) -> None:
    fill(world, "t1", [0], keys=3)
    receiver.answers = [status]
    with pytest.raises(ConfigError, match=f"status {status}, which concerns every record") as caught:
        deliver(world)
    assert "canary" not in str(caught.value)
    assert len(receiver.requests) == 1
    assert deliver(world).records == 3  # it goes on by itself


@pytest.mark.proves("howto-delivery.md#what-a-destination-refuses")
def test_a_lone_record_is_set_aside_only_if_an_empty_request_is_taken(world: DeliveryHome, receiver: Receiver) -> None:
    fill(world, "t1", [0], keys=1)
    receiver.answers = [403] * 3
    with pytest.raises(ConfigError, match="concerns every record"):
        deliver(world)
    receiver.refuse = {"k00000": 403}
    assert deliver(world).refused == 1


def test_a_receiver_that_refuses_everything_stops_the_sink(world: DeliveryHome, receiver: Receiver) -> None:
    fill(world, "t1", [0], keys=RECORDS)
    receiver.answers = [400] * 2_000
    with pytest.raises(ConfigError, match="refused the last 100 records and took none"):
        deliver(world)
    receiver.answers = []
    assert deliver(world).records == RECORDS


POISON = "k00003"


def failing_runs(world: DeliveryHome) -> int:
    """Deliver until it does not fail, as the agent does; return how often it failed."""
    failed = 0
    while True:
        try:
            deliver(world)
        except ServiceError:
            failed += 1
            assert failed < 20, "the sink is held for ever"
        else:
            return failed


@pytest.mark.proves("guarantees.md#webhook-sink")
def test_a_record_that_always_fails_is_set_aside_when_others_pass(world: DeliveryHome, receiver: Receiver) -> None:
    fill(world, "t1", range(3), keys=5)
    receiver.refuse = {POISON: 500}
    assert failing_runs(world) == 3 * (SUSPECT_AFTER // TRIES - 1)  # a record in each batch
    lacking = {(hour, POISON) for hour in range(3)}
    assert fold(receiver.records()) == {at: n for at, n in world.served().items() if at not in lacking}
    assert deliver(world).refused == 3
    receiver.refuse = {}
    world.commit("t1", 3, 4, [(3, POISON, 9)])
    deliver(world)
    assert fold(receiver.records())[3, POISON] == 9


def test_a_last_poison_record_waits_for_the_next_batch(world: DeliveryHome, receiver: Receiver) -> None:
    world.commit("t1", 0, 1, [(0, POISON, 1)])
    receiver.refuse = {POISON: 502}
    for _ in range(SUSPECT_AFTER // TRIES - 1):
        with pytest.raises(ServiceError, match="status 502"):
            deliver(world)
    for _ in range(2):
        with pytest.raises(ServiceError, match="has taken none after them: that may be an outage"):
            deliver(world)
    world.commit("t1", 1, 2, [(1, "k00001", 5)])
    delivered = deliver(world)
    assert (delivered.refused, delivered.records) == (1, 1)
    assert fold(receiver.records()) == {(1, "k00001"): 5}


@pytest.mark.proves("guarantees.md#webhook-sink")
@pytest.mark.parametrize("status", [500, 503])
def test_an_outage_sets_nothing_aside_however_long_it_lasts(
    world: DeliveryHome, receiver: Receiver, status: int
) -> None:
    fill(world, "t1", range(3), keys=40)
    receiver.answers = [status] * 100_000
    for _ in range(SUSPECT_AFTER // TRIES + 4):
        with pytest.raises(ServiceError):
            deliver(world)
    assert receiver.taken == {}
    asked = 100_000 - len(receiver.answers)
    assert asked < 500, "an outage is no reason to try each record"
    receiver.answers = []
    delivered = deliver(world)
    assert (delivered.refused, delivered.records) == (0, 120)
    assert fold(receiver.records()) == world.served()


def test_an_outage_that_ends_sets_no_suspected_record_aside(world: DeliveryHome, receiver: Receiver) -> None:
    """The first record alone still meets it, the next one does not."""
    fill(world, "t1", [0], keys=4)
    receiver.answers = [500] * (SUSPECT_AFTER + 2 + TRIES)
    for _ in range(SUSPECT_AFTER // TRIES - 1):
        with pytest.raises(ServiceError):
            deliver(world)
    assert deliver(world).refused == 0
    assert receiver.answers == []
    assert fold(receiver.records()) == world.served()


def test_a_server_that_is_gone_is_never_a_records_fault(
    world: DeliveryHome, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world, "t1", [0], keys=3)
    there = os.environ["TEST_HOOK"]
    monkeypatch.setenv("TEST_HOOK", "http://127.0.0.1:9/secret-canary")
    for _ in range(SUSPECT_AFTER // TRIES + 2):
        with pytest.raises(ServiceError, match="did not take"):
            deliver(world)
    monkeypatch.setenv("TEST_HOOK", there)
    receiver.answers = [500] * TRIES
    with pytest.raises(ServiceError, match="status 500"):
        deliver(world)
    assert deliver(world).refused == 0


def test_a_failing_retry_stays_listed_and_holds_nothing_up(world: DeliveryHome, receiver: Receiver) -> None:
    fill(world, "t1", range(2), keys=8)
    receiver.refuse = {f"k{number:05d}": 500 for number in range(6)}  # more than are tried in a row
    with pytest.raises(ServiceError):
        deliver(world)
    receiver.refuse = {POISON: 500}
    assert failing_runs(world) < 2 * SUSPECT_AFTER // TRIES
    ask(world.home, "hook", "retry", None, why="", by="ops", now=utc_now())
    assert deliver(world).refused == 2
    receiver.refuse = {}
    ask(world.home, "hook", "retry", None, why="", by="ops", now=utc_now())
    assert deliver(world).refused == 0
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
