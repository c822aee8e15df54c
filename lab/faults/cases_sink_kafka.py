"""F57: results delivered to Kafka; deliverers killed, stopped and doubled, the answer to their commit late, lost or repeated."""

from __future__ import annotations

import time
from functools import partial

from lab.faults.cases import case, require
from lab.faults.cases_log import own_settings
from lab.faults.lab import Lab
from lab.faults.proxy import (
    CLEAR,
    END_TXN,
    PRODUCE,
    FaultProxy,
    LateRequest,
    Swallow,
    Weather,
    asks_for,
    proxied_broker,
)
from lab.faults.savepoint_runs import command_log
from lab.faults.sink_runs import NOTED, SinkRun, define_sinks, shuffled, stream, struck
from lab.faults.strikes import BEFORE
from lab.oracle.delivered import judge_records, read_topic

CLEANUP = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
"""How often the broker looks for transactions that are over their time."""
STILL_S = 12.0
RESETS = 6
_OUTBOX = "rivertwice.log.outbox:Outbox"
OPENED = struck("the sink opened", f"{_OUTBOX}.open")
IN_FLIGHT = struck("the step is handed over, its commit not asked for", f"{_OUTBOX}._commit", BEFORE)
OVER_ITS_TIME = struck(
    "a transaction of 10 s, its commit not asked for", f"{_OUTBOX}._commit", BEFORE,
    values={"rivertwice.log.kafka:TRANSACTION_S": 10.0},
)  # fmt: skip
IMPATIENT = struck("nothing", f"{_OUTBOX}._commit", count=0, values={"rivertwice.log.outbox:COMMIT_S": 2.0})
STRIKES = (
    struck("nothing of the step is produced", f"{_OUTBOX}._hand_over", BEFORE),
    struck("a record is produced", f"{_OUTBOX}._hand_over"),
    struck("the records are produced, the position is not", "rivertwice.deliver.kafka_sink:position_to_json"),
    IN_FLIGHT,
    struck("the step is committed", f"{_OUTBOX}._commit"),
    struck("the next epoch is there", f"{_OUTBOX}._prepare"),
    *NOTED,
)
SINKS = ("killed", "late", "slow", "raced", "overtaken")


@case(
    "F57",
    "a Kafka sink: deliverers killed at every step, two at once, one stopped; the answer to EndTxn late, lost, repeated: each row once",
    kills=1 + len(STRIKES) + 2,
    proves=("guarantees.md#kafka-sink", "failure-modes.md#delivery"),
)
def kafka_sink(lab: Lab) -> None:
    """A reader of committed records gets every row that is served exactly once, whatever became of the deliverers."""
    proxy = lab.use(proxied_broker(own_settings(lab), CLEANUP))
    lab.move_to(f"127.0.0.1:{proxy.port}")
    define_sinks(lab, {name: _sink(name) for name in SINKS})
    stream(lab, 300)
    killed, late, slow, raced, overtaken = (_run(lab, name) for name in SINKS)
    killed.kill(OPENED)
    shuffled(
        lab,
        *(partial(killed.kill, strike) for strike in STRIKES),
        partial(_killed_at_the_commit, killed, proxy, lose=True),
        partial(_killed_at_the_commit, killed, proxy, lose=False),
        partial(_answer_lost, killed, proxy),
        partial(killed.stand_still, OVER_ITS_TIME, STILL_S),
    )
    _late(late, proxy)
    _slow(slow, proxy)
    raced.race()
    overtaken.overtake(IN_FLIGHT)
    stream(lab, 100, closing=True)
    for run in (killed, late, slow, raced, overtaken):
        run.finish()


def _sink(name: str) -> dict[str, object]:
    return {"to": "kafka", "topic": f"lab-{name}", "partitions": 2, "guarantee": "exactly_once"}


def _run(lab: Lab, name: str) -> SinkRun:
    return SinkRun(
        lab, name, lambda served: judge_records(read_topic(lab.settings.bootstrap_servers(), f"lab-{name}"), served)
    )


def _killed_at_the_commit(run: SinkRun, proxy: FaultProxy, *, lose: bool) -> None:
    """All of the step is at the broker; its EndTxn reaches the broker or does not, and nobody waits for the answer."""
    name = "EndTxn was lost" if lose else "EndTxn was received"
    run.kill_at(name, proxy, Swallow(asks_for(END_TXN)), lose=lose)


def _answer_lost(run: SinkRun, proxy: FaultProxy) -> None:
    """The deliverer never gets the answer to its EndTxn, and ends without knowing the outcome."""
    lost = Swallow(asks_for(END_TXN))
    proxy.swallow, proxy.lose = lost, False
    run.refused("the answer to EndTxn was lost", IMPATIENT)
    proxy.swallow = None
    require(lost.seen.is_set(), f"no EndTxn was asked for: {command_log(run.lab)}")


def _late(run: SinkRun, proxy: FaultProxy) -> None:
    """EndTxn comes twice: the deliverer sends it again, and the first one arrives in the middle of the next step."""
    produced = 0

    def in_the_next_step(key: int, again: int) -> bool:
        nonlocal produced
        produced += key == PRODUCE and again > 0
        return produced == 2

    proxy.late = late = LateRequest(END_TXN, in_the_next_step)
    # Without an answer in time the deliverer ends with an unknown outcome, and the next one takes the next step.
    for _ in range(3):
        code = run.deliver()
        if late.arrived.is_set():
            break
    proxy.late = None
    require(late.arrived.is_set(), f"no EndTxn was late; {command_log(run.lab)}")
    run.lab.fact("late: ends", code)
    run.require_sound("EndTxn came again in the next step")


def _slow(run: SinkRun, proxy: FaultProxy) -> None:
    """Each answer is late, and some connections break before it comes."""
    proxy.weather = Weather(latency_s=run.lab.random.uniform(0.01, 0.05))
    process = run.start()
    resets = 0
    while process.poll() is None and resets < RESETS:
        time.sleep(run.lab.random.uniform(0.2, 1.0))
        resets += proxy.reset() > 0
    run.lab.fact("slow: ends", {"code": run.lab.wait(process), "resets": resets})
    proxy.weather = CLEAR
    run.require_sound("each answer was late, and connections broke")
