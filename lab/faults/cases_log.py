"""F17: the broker dies, stops, is restored from a copy, or is reached through a network that resets, slows down and cuts."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from functools import partial

from lab.faults.cases import case, require
from lab.faults.cases_topic import other_story
from lab.faults.lab import PIPELINE, Lab
from lab.faults.proxy import CLEAR, FaultProxy, Weather, proxied_broker
from lab.faults.restored import RestoredBroker
from lab.faults.retention_runs import ask, require_way_back
from rivertwice.core.errors import ServiceError
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo, start_broker, stop_broker
from rivertwice.log import kafka


def own_settings(lab: Lab) -> Settings:
    """Return the settings of a broker for this run alone."""
    return replace(lab.settings, home=lab.folder / "broker-home", bootstrap=None)


def own_broker(lab: Lab) -> tuple[Settings, BrokerInfo]:
    """Start a broker for this run alone; it is stopped when the run has been judged."""
    own = own_settings(lab)
    broker = start_broker(own)
    lab.at_end(partial(stop_broker, own))
    return own, broker


def stream_through(lab: Lab, trouble: partial[None]) -> None:
    """Let a driver stream while there is trouble, then to the end of the log; a driver that gave up is started again."""
    lab.produce()
    driver, steps = lab.start_driver(), lab.steps()
    batch = lab.random.randrange(1, 5)
    lab.until(lambda: steps.planned(batch), 90, f"offsets/{batch}")
    trouble()
    lab.until(partial(_answers, lab), 120, "an answer of the log after the trouble")
    lab.produce(lab.next_plan(records=200))
    lab.until(lambda: steps.idle(lab.produced) or driver.poll() is not None, 180, "the end of the log")
    lab.fact("driver_survived", driver.poll() is None)
    if driver.poll() is None:
        driver.send_signal(signal.SIGTERM)
        require(lab.wait(driver, 60) == 0, f"the driver did not drain; {lab.log_end()}")
    lab.run_to_end()


def _answers(lab: Lab) -> bool:
    try:
        return bool(kafka.end_offsets(lab.settings, lab.topic))
    except ServiceError:
        return False


def _kill_broker(lab: Lab, own: Settings, pid: int) -> None:
    lab.kill_pid(pid)
    time.sleep(lab.random.uniform(0.0, 6.0))
    start_broker(own)


@case("F17", "the broker killed while the stream runs, and started again", kills=1)
def broker_killed(lab: Lab) -> None:
    """The stream stalls, or fails and is started again; the log has afterwards what the broker acknowledged."""
    own, broker = own_broker(lab)
    lab.move_to(broker.bootstrap)
    stream_through(lab, partial(_kill_broker, lab, own, broker.pid or 0))


def _stop_broker(lab: Lab, pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(lab.random.uniform(5.0, 12.0))
    os.kill(pid, signal.SIGCONT)


@case("F17/stopped", "the broker stopped (SIGSTOP) for up to 12 s while the stream runs")
def broker_stopped(lab: Lab) -> None:
    """Connections stay open and nobody answers."""
    _, broker = own_broker(lab)
    lab.move_to(broker.bootstrap)
    stream_through(lab, partial(_stop_broker, lab, broker.pid or 0))


def _storm(lab: Lab, proxy: FaultProxy) -> None:
    resets = 0
    for weather in (
        Weather(latency_s=0.05, slice_bytes=97), Weather(latency_s=2.0), Weather(silent=True), Weather(refuse=True),
    ):  # fmt: skip
        proxy.weather = weather
        for _ in range(3):
            time.sleep(lab.random.uniform(0.5, 1.5))
            resets += proxy.reset()
    proxy.weather = CLEAR
    proxy.reset()
    lab.fact("connections_reset", resets)


@case("F17/network", "a network that slices, delays by 2 s, goes silent, refuses and resets, before the broker")
def network_storm(lab: Lab) -> None:
    """Every connection to the broker goes through a proxy."""
    proxy = lab.use(proxied_broker(own_settings(lab)))
    lab.move_to(f"127.0.0.1:{proxy.port}")
    stream_through(lab, partial(_storm, lab, proxy))


@case(
    "F17/restored",
    "the broker restored from a copy of its disk: other records at offsets that were read, and the stream goes back",
    judge=False,
    proves=("howto-log.md#offsets-that-hold-other-records",),
)
def broker_restored(lab: Lab) -> None:
    """What Kafka lost was acknowledged, so the oracle does not judge; after the rewind a reconcile does, by the log that is there."""
    own, broker = own_broker(lab)
    lab.move_to(broker.bootstrap)
    restored = RestoredBroker(own, broker)
    lab.produce(lab.next_plan(records=300, closing=False))
    lab.run_to_end()
    taken = ask(lab, "savepoint", "take", PIPELINE)
    restored.back_up()
    lab.produce(lab.next_plan(records=lab.random.randrange(30, 200), closing=False))
    lab.run_to_end()
    restored.restore()
    records = lab.random.choice([60, 900])  # in some partitions the log may end before the place of the stream
    lab.fact("records_in_their_place", records)
    lab.produce_events(other_story(lab, records))
    require_way_back(lab, taken["id"])
