"""F58/webhook: results delivered to a webhook; deliverers killed, answers lost and refused: every record at least once, in order."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lab.faults.cases import case, require
from lab.faults.lab import Lab
from lab.faults.savepoint_runs import command_log
from lab.faults.sink_runs import NOTED, SinkRun, define_sinks, shuffled, stream, struck
from lab.faults.strikes import BEFORE
from lab.oracle.delivered import Sent, judge_records

VARIABLE = "LAB_WEBHOOK"
SINK = "hook"
_SINK = "rivertwice.deliver.webhook_sink"
STRIKES = (
    struck("the sink opened", f"{_SINK}:WebhookSink.open"),
    struck("nothing is sent", f"{_SINK}:WebhookSink._post", BEFORE),
    struck("a request is taken", f"{_SINK}:WebhookSink._post"),
    struck("all requests are taken, the position is not written", f"{_SINK}:position_to_json"),
    struck("the position is written", f"{_SINK}:Failures.clear", BEFORE),
    *NOTED,
)


@dataclass
class Receiver:
    """An HTTP server that stores what it takes.

    Attributes:
        taken: idempotency key and body of each request that was taken, in order.
        answer: decides what becomes of a request that was taken: a status, or None for no answer at all.
        port: where it listens.
    """

    taken: list[tuple[str, bytes]] = field(default_factory=list)
    answer: Callable[[], int | None] = lambda: 200
    port: int = 0

    def records(self) -> list[Sent]:
        """Return the records of all requests, in order."""
        found = []
        for _, body in self.taken:
            for record in json.loads(body)["records"]:
                place = {name: record[name] for name in ("pipeline", "window", "keys")}
                found.append(Sent(0, json.dumps(place, sort_keys=True).encode(), json.dumps(record).encode()))
        return found


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Run a receiver for the block."""
    made = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.taken.append((self.headers["Idempotency-Key"], body))
            status = made.answer()
            if status is not None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()
            self.close_connection = status is None

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, name="receiver", daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


@case(
    "F58/webhook",
    "a webhook: deliverers killed at every step, answers lost or 503: every row at least once; repeats are counted",
    kills=len(STRIKES) + 1,
    proves=("guarantees.md#webhook-sink", "failure-modes.md#delivery"),
)
def webhook_sink(lab: Lab) -> None:
    """What a receiver folds that leaves out repeats is what is served; a repeated request has its first one's key."""
    far = lab.use(receiver())
    lab.variables[VARIABLE] = f"http://127.0.0.1:{far.port}/rows"
    define_sinks(lab, {SINK: {"to": "webhook", "url_env": VARIABLE, "guarantee": "at_least_once"}})
    stream(lab, 300)
    run = SinkRun(lab, SINK, lambda served: judge_records(far.records(), served, repeats=True), repeats=True)
    shuffled(
        lab,
        *(partial(run.kill, strike) for strike in STRIKES),
        partial(_killed_before_the_answer, run, far),
    )
    answers = lab.random.choices([200, 503, None], weights=[4, 1, 1], k=1_000)
    far.answer = answers.pop
    run.to_the_end()
    far.answer = lambda: 200
    stream(lab, 100, closing=True)
    run.finish()
    bodies: dict[str, bytes] = {}
    for key, body in far.taken:
        require(bodies.setdefault(key, body) == body, f"two requests have the idempotency key {key}")
    require(
        len(bodies) < len(far.taken), "no request came twice, so nothing was struck between a request and its position"
    )
    lab.fact("requests", {"taken": len(far.taken), "different": len(bodies)})


def _killed_before_the_answer(run: SinkRun, far: Receiver) -> None:
    """The receiver has the request, and nobody waits for its answer."""
    taken, gone = threading.Event(), threading.Event()

    def wait() -> None:
        taken.set()
        gone.wait(60)

    far.answer = wait
    killed = run.lab.kill_when(run.start(), taken.is_set)
    gone.set()
    far.answer = lambda: 200
    require(killed, f"the deliverer ended before its first request; {command_log(run.lab)}")
    run.require_sound("a request was taken, not answered")
