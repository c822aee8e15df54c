"""A lease behaves alike in a folder and on S3: one holder, epochs that rise, a dead owner's lease is taken over."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from rivertwice.agent.agent import run_agent
from rivertwice.agent.launch import agent_status
from rivertwice.core.errors import ConfigError, LeaseLostError, RivertwiceError, ServiceError
from rivertwice.core.homes import PipelineHome, parse_place
from rivertwice.core.settings import Settings
from rivertwice.storage.lease_terms import Terms
from rivertwice.storage.leases import KEY, decode_held
from rivertwice.storage.places import open_store
from rivertwice.stream.lease import acquire_lease, last_epoch, read_owner, require_no_other_host
from running.waiting import wait_for

NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUICK = Terms(renew_s=0.25, missed=8)


@pytest.fixture
def homes(place, tmp_path):
    """Two hosts of one pipeline: two folders, one place for the lease."""
    return [
        Settings(project=tmp_path, home=tmp_path / host, leases=parse_place(place)).pipeline("p")
        for host in ("host-a", "host-b")
    ]


def held(home: PipelineHome):
    return decode_held(open_store(home.lease_place).get(KEY))


def die(lease):
    """What kill -9 leaves: nobody renews, nobody releases; the system frees the home's lock."""
    lease._claim._stopping.set()
    lease._lock.close()


@pytest.mark.proves("howto-deploy.md#the-lease")
def test_epochs_rise_by_one_from_start_to_start_wherever_it_starts(homes):
    here, there = homes
    for expected, home in enumerate((here, here, there, here), start=1):
        lease = acquire_lease(home, "t1", NOW, terms=QUICK)
        lease.check()
        assert lease.epoch == expected == last_epoch(home)
        assert read_owner(home).epoch == expected
        lease.release()
    assert held(here).released


@pytest.mark.proves("howto-stream.md#what-a-crash-of-the-agent-leaves-behind")
def test_a_second_start_in_the_same_home_is_refused_at_once(homes):
    lease = acquire_lease(homes[0], "t1", NOW, terms=QUICK)
    with pytest.raises(LeaseLostError, match="owns the stream"):
        acquire_lease(homes[0], "t1", NOW, terms=QUICK)
    lease.check()
    lease.release()


@pytest.mark.proves("howto-deploy.md#the-lease", "guarantees.md#what-everything-needs")
def test_a_start_on_another_host_is_refused_while_the_holder_renews(homes):
    lease = acquire_lease(homes[0], "t1", NOW, terms=QUICK)
    with pytest.raises(LeaseLostError, match="renews it"):
        acquire_lease(homes[1], "t1", NOW, terms=QUICK)
    lease.check()
    assert held(homes[0]).epoch == 1
    lease.release()


@pytest.mark.proves("failure-modes.md#a-lease-in-a-store", "howto-deploy.md#the-lease")
def test_a_dead_holders_lease_is_taken_at_once_only_on_its_own_host(homes):
    die(acquire_lease(homes[0], "t1", NOW, terms=QUICK))
    again = acquire_lease(homes[0], "t1", NOW, terms=QUICK)
    assert again.epoch == 2
    die(again)
    elsewhere = acquire_lease(homes[1], "t1", NOW, terms=QUICK)
    assert elsewhere.epoch == 3
    with pytest.raises(LeaseLostError):
        again.check()
    elsewhere.check()
    elsewhere.release()


@pytest.mark.proves("failure-modes.md#a-lease-in-a-store")
def test_of_many_hosts_that_want_a_released_lease_one_gets_it(place, tmp_path, racers, on_moto):
    if on_moto:
        pytest.skip("moto's If-Match lets two of racing writers win now and then; it is for single writers")
    where = parse_place(place)
    hosts = [Settings(project=tmp_path, home=tmp_path / str(n), leases=where).pipeline("p") for n in range(12)]
    expected = 1
    for _ in range(5):

        def start(number):
            try:
                return acquire_lease(hosts[number], "t1", NOW, terms=QUICK)
            except RivertwiceError:
                return None

        winners = sorted((lease for lease in racers(12, start) if lease is not None), key=lambda lease: lease.epoch)
        # A machine that stands still for longer than these short terms lets the next host take over: then the one before has lost it.
        assert [lease.epoch for lease in winners] == list(range(expected, expected + max(1, len(winners))))
        for lost in winners[:-1]:
            with pytest.raises(LeaseLostError):
                lost.check()
        winners[-1].check()
        winners[-1].release()
        expected = winners[-1].epoch + 1


@pytest.mark.proves("howto-deploy.md#the-lease")
def test_a_lost_lease_object_does_not_start_the_epochs_again(homes):
    for _ in range(3):
        acquire_lease(homes[0], "t1", NOW, terms=QUICK).release()
    open_store(homes[0].lease_place).delete(KEY)
    lease = acquire_lease(homes[0], "t1", NOW, terms=QUICK)
    assert lease.epoch == 4
    lease.release()


def test_a_holder_whose_lease_was_deleted_stops(homes):
    lease = acquire_lease(homes[0], "t1", NOW, terms=QUICK)
    open_store(homes[0].lease_place).delete(KEY)
    claim: Any = lease._claim
    wait_for("the loss of the lease", lambda: claim._lost is not None, 60, every=0.05)
    with pytest.raises(LeaseLostError, match="nobody holds"):
        lease.check()
    lease.release()


def test_a_lease_of_a_newer_format_is_refused(homes):
    open_store(homes[0].lease_place).put(KEY, b'{"format": 99}')
    with pytest.raises(ConfigError, match="format 99"):
        acquire_lease(homes[0], "t1", NOW, terms=QUICK)


def test_nothing_is_restored_while_another_host_renews_its_lease(homes):
    lease = acquire_lease(homes[0], "t1", NOW, terms=QUICK)
    require_no_other_host(homes[0])  # the own home's driver is drained by its lock
    with pytest.raises(LeaseLostError, match="on another host"):
        require_no_other_host(homes[1])
    lease.release()
    require_no_other_host(homes[1])


def test_of_two_agents_of_one_home_the_second_ends(tmp_path):
    (tmp_path / "pipelines").mkdir()
    settings = Settings(project=tmp_path, home=tmp_path / "home")
    stop = threading.Event()
    first = threading.Thread(target=run_agent, args=(settings, stop))
    first.start()
    try:
        wait_for("the first agent", lambda: agent_status(settings) is not None, 60, every=0.05)
        with pytest.raises(ServiceError, match="another agent supervises"):
            run_agent(settings, threading.Event())
        assert first.is_alive()
    finally:
        stop.set()
        first.join(30)
