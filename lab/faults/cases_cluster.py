"""F59: a cluster of three brokers elects leaders: clean ones while the stream runs, and an unclean one that loses what was read."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from lab.faults.cases import case, require
from lab.faults.cases_log import stream_through
from lab.faults.cases_topic import other_story
from lab.faults.cluster import BROKERS, Cluster
from lab.faults.lab import PIPELINE, Lab
from lab.faults.retention_runs import ask, require_way_back
from lab.faults.savepoint_runs import alerts, caught_up
from rivertwice.agent.memory import load_memory
from rivertwice.core.instants import utc_now
from rivertwice.stream.failures import FORK
from rivertwice.timeline.intent import write_intent

ROUNDS = 3
UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


@case(
    "F59",
    "three brokers, the leaders killed in turn while the stream runs and producers go on: elections, every acknowledged record once",
    kills=ROUNDS,
    proves=("failure-modes.md#two-drivers-and-halves-of-one",),
)
def leaders_killed(lab: Lab) -> None:
    """Each broker is a controller too, so the controllers elect as well; one of three is gone at a time."""
    cluster = lab.use(Cluster(lab.settings, lab.folder / "cluster"))
    lab.move_to(cluster.bootstrap)
    stream_through(lab, partial(_elections, lab, cluster))


def _elections(lab: Lab, cluster: Cluster) -> None:
    """Kill leaders in turn, each time until others lead and until it is back, while records are acknowledged."""
    stop = threading.Event()
    killed: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        produced = pool.submit(_produce_until, lab, stop)
        try:
            for _ in range(ROUNDS):
                leading = {leader for leader in cluster.leaders(lab.topic).values() if leader not in killed[-1:]}
                killed.append(lab.random.choice(sorted(leading)))
                _kill_a_leader(lab, cluster, killed[-1])
        finally:
            stop.set()
        lab.fact("produced_meanwhile", produced.result(timeout=120))
    lab.fact("leaders_killed", killed)


def _produce_until(lab: Lab, stop: threading.Event) -> int:
    """Produce the story, record by record acknowledged by all replicas in sync; return how many."""
    count = 0
    while not stop.is_set():
        count += lab.produce(lab.next_plan(records=10, closing=False))
        stop.wait(0.2)
    return count


def _kill_a_leader(lab: Lab, cluster: Cluster, broker: int) -> None:
    cluster.end(broker)
    lab.kills += 1
    cluster.until(lambda: not {broker, -1} & set(cluster.leaders(lab.topic).values()), "other leaders")
    time.sleep(lab.random.uniform(0.0, 2.0))
    cluster.start(broker)
    cluster.until(lambda: _all_in_sync(lab, cluster), f"broker {broker} in sync")


def _all_in_sync(lab: Lab, cluster: Cluster) -> bool:
    return all(each == set(BROKERS) for each in cluster.in_sync(lab.topic))


@case(
    "F59/unclean",
    "a leader killed that had records which its followers lacked, and one of these elected: other records at offsets that were read",
    kills=1,
    judge=False,
    proves=(
        "howto-log.md#offsets-that-hold-other-records",
        "failure-modes.md#a-start",
        "guarantees.md#what-everything-needs",
    ),
)
def unclean_election(lab: Lab) -> None:
    """Kafka loses what it acknowledged, so the oracle does not judge; after the rewind a reconcile does, by the log that is there."""
    cluster = lab.use(Cluster(lab.settings, lab.folder / "cluster", apart=True, extra=UNCLEAN))
    lab.move_to(cluster.bootstrap)
    write_intent(lab.home, "running", by="lab", now=utc_now())
    lab.produce(lab.next_plan(records=300, closing=False))
    with lab.agent():
        lab.until(lambda: caught_up(lab), 180, "the end of the log")
        taken = ask(lab, "savepoint", "take", PIPELINE)
        leader = lab.random.choice(BROKERS)
        followers = [each for each in BROKERS if each != leader]
        _leave_alone(lab, cluster, leader, followers)
        lab.produce(lab.next_plan(records=lab.random.randrange(30, 200), closing=False))
        lab.until(lambda: caught_up(lab), 180, "the records that only the leader has")
        cluster.end(leader)
        lab.kills += 1
        for each in followers:
            cluster.start(each)
        cluster.until(lambda: set(cluster.leaders(lab.topic).values()) <= set(followers), "followers that lead")
        records = lab.random.choice([60, 900])  # in some partitions the log may end before the place of the stream
        lab.fact("records_in_their_place", records)
        lab.produce_events(other_story(lab, records))
        lab.fact("stopped_after_s", round(lab.until(lambda: _given_up(lab), 300, "the stop of the stream"), 1))
        pages = [alert["message"] for alert in alerts(lab) if alert["kind"] == FORK]
        require(any("savepoint rewind" in text for text in pages), f"the alerts are {alerts(lab)}")
        cluster.start(leader)
        cluster.until(lambda: _all_in_sync(lab, cluster), "the old leader in sync")
        write_intent(lab.home, "stopped", by="lab", now=utc_now())
    require_way_back(lab, taken["id"])


def _leave_alone(lab: Lab, cluster: Cluster, leader: int, followers: list[int]) -> None:
    """End the followers in order, so that one broker leads every partition and is alone in sync."""
    for each in followers:
        cluster.end(each, signal.SIGTERM)
    cluster.until(lambda: all(each == {leader} for each in cluster.in_sync(lab.topic)), "one broker alone in sync")


def _given_up(lab: Lab) -> bool:
    return load_memory(lab.settings, PIPELINE).broken_at is not None
