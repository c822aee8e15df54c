"""A lease on a store: at no moment may two holders write, whatever clocks show and whoever pauses.

holder   P-----r-----r-----X (dies)         P: promise begins, before the request is sent
promise  [valid_s)   [valid_s)
watcher        s.............................T   s: sees the version first, T: same version takeover_s later
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.core.errors import LeaseLostError, ServiceError, UnknownOutcomeError
from rivertwice.storage.blobs import Versioned
from rivertwice.storage.lease_terms import LeaseRecord, Terms, decide_takeover, is_lost, must_stop
from rivertwice.storage.leases import KEY, StoreClaim, Watch, decode_held, encode_held, take_claim

TERMS = Terms(renew_s=2.0, missed=6)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def held(epoch=3, home="a", released=False, terms=TERMS):
    return LeaseRecord(epoch, home, terms, released)


def test_a_lease_that_was_never_held_is_taken_with_the_first_free_epoch():
    assert decide_takeover(None, home="a", unchanged_s=0).epoch == 1
    assert decide_takeover(None, home="a", unchanged_s=0, floor=7).epoch == 8


def test_a_released_lease_and_one_of_the_own_home_are_taken_at_once():
    assert decide_takeover(held(released=True), home="b", unchanged_s=0).take
    assert decide_takeover(held(home="b"), home="b", unchanged_s=0).take


@pytest.mark.parametrize("floor", [0, 3, 9])
@pytest.mark.parametrize(
    ("found", "unchanged_s"),
    [(held(released=True), 0), (held(home="b"), 0), (held(), 12.0), (held(), 0)],
    ids=["released", "the own home's", "not renewed", "another's, alive"],
)
def test_no_epoch_is_used_twice_not_even_one_of_the_ledger_alone(found, unchanged_s, floor):
    """Behind a lost object (a bucket put back from a copy) the object says less than the ledger."""
    assert decide_takeover(found, home="b", unchanged_s=unchanged_s, floor=floor).epoch == max(3, floor) + 1


def test_a_live_lease_says_how_long_is_left():
    assert "4.0 s without a renewal are left" in decide_takeover(held(), home="b", unchanged_s=8).reason


def test_a_holder_may_write_until_just_before_its_promise_ends():
    assert not must_stop(renewed_at=100.0, now=107.1, terms=TERMS)
    assert must_stop(renewed_at=100.0, now=100.0 + TERMS.valid_s, terms=TERMS)


def test_another_homes_lease_is_taken_only_after_the_holders_own_terms():
    slow = held(terms=Terms(renew_s=60, missed=6))
    assert not decide_takeover(slow, home="b", unchanged_s=359.9).take
    assert decide_takeover(slow, home="b", unchanged_s=360).take
    assert not decide_takeover(held(), home="b", unchanged_s=11.9).take


@given(
    renew=st.floats(0.1, 60),
    missed=st.integers(3, 20),
    fast=st.floats(1.0, 1.25),
    slow=st.floats(0.8, 1.0),
    latency=st.floats(0, 5),
)
def test_a_holder_has_stopped_before_anybody_may_take_the_lease(renew, missed, fast, slow, latency):
    """The holder's clock runs slow, the watcher's fast; the request that both count from was sent at real time 0."""
    terms = Terms(renew, missed)
    stops_at = terms.valid_s / slow
    earliest_takeover = latency + terms.takeover_s / fast
    assert stops_at < earliest_takeover
    assert must_stop(renewed_at=0.0, now=terms.valid_s, terms=terms)


def test_whoever_finds_another_epoch_or_none_has_lost():
    assert is_lost(None, 3)
    assert is_lost(held(epoch=4), 3)
    assert is_lost(held(released=True), 3)
    assert not is_lost(held(), 3)


class MemoryStore:
    """One object with versions. `down` makes it fail, `ambiguous` makes it do and then fail."""

    def __init__(self):
        self.data: bytes | None = None
        self.version = 0
        self.down = False
        self.ambiguous = False

    def __str__(self):
        return "memory"

    def get_versioned(self, key):
        assert key == KEY
        if self.down:
            raise ServiceError("no answer")
        return None if self.data is None else Versioned(self.data, str(self.version))

    def put_if_absent(self, key, data):
        return self._put(data, self.data is None)

    def put_if_version(self, key, data, version):
        return self._put(data, self.data is not None and str(self.version) == version)

    def _put(self, data, allowed):
        if self.down:
            raise ServiceError("no answer")
        if not allowed:
            return False
        self.data, self.version = data, self.version + 1
        if self.ambiguous:
            raise UnknownOutcomeError("no answer")
        return True


@dataclass
class World:
    """Real time, which nobody sees, and wall clocks, by which nothing may be decided."""

    real: float = 0.0
    store: MemoryStore = field(default_factory=MemoryStore)


@dataclass
class Actor:
    """A driver's process on a host of its own: a clock of its own rate, a wall clock of its own offset."""

    world: World
    name: str
    rate: float
    wall: timedelta
    state: str = "out"
    watch: Watch | None = None
    claim: StoreClaim | None = None
    paused_until: float = 0.0

    def clock(self):
        return self.world.real * self.rate

    def now(self):
        return NOW + self.wall

    def look(self):
        """Try to take the lease, without ever waiting inside."""
        self.watch = self.watch or Watch(self.world.store, home=self.name, clock=self.clock)
        decision = self.watch.look()
        if not decision.take:
            return
        mine = LeaseRecord(decision.epoch, self.name, TERMS, released=False)
        sent_at = self.clock()
        if self.watch.replace(encode_held(mine, by={}, now=self.now())):
            self.claim = StoreClaim(self.world.store, mine, by={}, sent_at=sent_at, clock=self.clock, now=self.now)
            self.state = "in"
        self.watch = None

    def may_write(self):
        if self.claim is None:
            return False
        try:
            self.claim.check()
        except LeaseLostError:
            return False
        return True


@given(
    seed=st.integers(0, 2**32),
    rates=st.lists(st.floats(0.85, 1.2), min_size=2, max_size=4),
    walls=st.lists(st.sampled_from([0, 3600, -3600, 86_400 * 365]), min_size=4, max_size=4),
)
def test_one_of_many_drivers_may_write_and_epochs_rise(seed, rates, walls):
    rng = random.Random(seed)
    world = World()
    actors = [
        Actor(world, f"home-{n}", rate, timedelta(seconds=wall))
        for n, (rate, wall) in enumerate(zip(rates, walls, strict=False))
    ]
    epochs: list[int] = []
    for _ in range(300):
        world.real += rng.choice([0.01, 0.3, 1.0, 2.0])
        world.store.down = rng.random() < 0.1
        world.store.ambiguous = rng.random() < 0.1
        actor = rng.choice(actors)
        if world.real < actor.paused_until:
            continue
        step = rng.random()
        if step < 0.04:
            actor.paused_until = world.real + rng.choice([1.0, 8.0, 30.0])  # SIGSTOP, then SIGCONT
        elif step < 0.08:
            actor.claim, actor.state, actor.watch = None, "out", None  # kill -9; its home's lock is free
        elif step < 0.12:
            actor.wall = timedelta(seconds=rng.choice([0, 3600, -3600]))  # the wall clock jumps
        elif step < 0.15 and actor.claim is not None:
            actor.claim.release()
            actor.claim, actor.state = None, "out"
        else:
            try:
                if actor.claim is None:
                    actor.look()
                elif not actor.claim.renew() and not actor.may_write():
                    actor.claim, actor.state = None, "out"  # it stops by itself
            except (ServiceError, UnknownOutcomeError):
                actor.watch = None  # the start failed; the agent starts it again
        writers = [other for other in actors if world.real >= other.paused_until and other.may_write()]
        assert len(writers) <= 1, [writer.claim.epoch for writer in writers]
        if world.store.data is not None:
            newest = decode_held(world.store.data).epoch
            assert not epochs or newest in (epochs[-1], epochs[-1] + 1)
            epochs.append(newest)
        for writer in writers:
            assert writer.claim.epoch == epochs[-1]


@pytest.mark.proves("guarantees.md#what-everything-needs")
@pytest.mark.parametrize("answers", [True, False], ids=["the store answers", "the store does not answer"])
def test_a_zombie_writes_nothing_after_a_successor_began(answers):
    world = World()
    zombie, successor = (Actor(world, name, 1.0, timedelta()) for name in ("a", "b"))
    zombie.look()
    successor.look()
    world.real += TERMS.takeover_s
    successor.look()
    assert (zombie.claim.epoch, successor.claim.epoch) == (1, 2)
    world.store.down = not answers
    with pytest.raises(LeaseLostError, match="epoch 2" if answers else "has not renewed"):
        zombie.claim.check()
    world.store.down = False
    assert not zombie.claim.renew()
    with pytest.raises(LeaseLostError, match="epoch 2"):
        zombie.claim.check()
    successor.claim.check()


@pytest.mark.proves("howto-deploy.md#the-lease")
def test_a_holder_whose_thread_got_no_turn_renews_before_it_writes():
    world = World()
    holder, watcher = (Actor(world, name, 1.0, timedelta()) for name in ("a", "b"))
    holder.look()
    watcher.look()
    world.real += TERMS.valid_s + 1
    holder.claim.check()
    world.real += (
        TERMS.takeover_s - TERMS.valid_s
    )  # by its own clock the watcher has waited long enough since it first looked
    watcher.look()
    assert (watcher.state, decode_held(world.store.data).epoch) == ("out", 1)


def test_a_starter_that_sees_a_renewal_is_refused():
    world = World()
    first = Actor(world, "a", 1.0, timedelta())
    first.look()
    waited: list[float] = []

    def start(on_pause):
        def pause(seconds):
            waited.append(seconds)
            world.real += seconds
            on_pause()

        return take_claim(
            world.store, home="b", by={}, floor=0, terms=TERMS, now=lambda: NOW, clock=lambda: world.real, pause=pause
        )

    with pytest.raises(LeaseLostError, match=r"epoch 1 .*home a"):
        start(first.claim.renew)
    waited.clear()
    assert start(lambda: None).epoch == 2
    assert sum(waited) >= TERMS.takeover_s


def test_a_starter_goes_ahead_as_soon_as_the_holder_releases():
    world = World()
    first = Actor(world, "a", 1.0, timedelta())
    first.look()
    waited: list[float] = []

    def pause(seconds):
        waited.append(seconds)
        world.real += seconds
        first.claim.release()

    claim = take_claim(
        world.store, home="b", by={}, floor=0, terms=TERMS, now=lambda: NOW, clock=lambda: world.real, pause=pause
    )
    assert (claim.epoch, len(waited)) == (2, 1)
    with pytest.raises(LeaseLostError):
        first.claim.check()


def test_a_renewal_without_an_answer_is_found_to_be_ours_at_the_next():
    world = World()
    actor = Actor(world, "a", 1.0, timedelta())
    actor.look()
    world.store.ambiguous = True
    world.real += 2
    assert not actor.claim.renew()
    world.store.ambiguous = False
    world.real += 2
    assert actor.claim.renew()
    actor.claim.check()


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ({"host": "blue", "pid": 12, "timeline": "t1"}, "epoch 3 (process 12 on host blue)"),
        ({"host": "blue\n[INFO] all is well", "pid": 12}, "epoch 3 (process 12 on host blue[INFO] all is well)"),
        ({}, "epoch 3 (of a process that did not say its name)"),
    ],
)
def test_a_lease_names_its_holder_for_people_and_decides_nothing_by_it(by, said):
    found = decode_held(encode_held(held(), by=by, now=NOW))
    assert found.holder == said
    assert found == held()


@pytest.mark.proves("howto-deploy.md#the-lease")
def test_a_lease_is_renewed_every_two_seconds_and_taken_over_after_twelve():
    assert (Terms().renew_s, Terms().takeover_s) == (2.0, 12.0)
    assert Terms().valid_s == pytest.approx(7.2)
