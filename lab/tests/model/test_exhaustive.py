"""Every interleaving of the short protocols within small bounds, and every rule of them broken once."""

from __future__ import annotations

import pytest

from lab.model.exhaustive.protocols import PROTOCOLS, render_explored
from lab.model.exhaustive.search import COMES_RIGHT, Scene, Slot, explore, live_names
from lab.model.process import Process, point
from lab.model.violations import fail

READ, WRITTEN = point("counter: read"), point("counter: written")


def check(found):
    assert found.violation is None, "\n".join([str(found.violation), *found.trace])
    assert found.whole
    assert found.transitions >= found.states - 1


@pytest.mark.proves("lab/docs/protocol-model.md#every-interleaving-of-what-is-short")
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda one: one.name)
def test_no_interleaving_of_a_short_protocol_breaks_an_invariant(protocol):
    found = protocol.explore(protocol.quick)
    check(found)
    assert found.states > 300
    assert f"| {found.states:,} |" in render_explored([(protocol, protocol.quick, found)])


@pytest.mark.long
@pytest.mark.proves("lab/docs/protocol-model.md#every-interleaving-of-what-is-short")
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda one: one.name)
def test_nor_does_one_within_wider_bounds(protocol):
    check(protocol.explore(protocol.wide[0]))


def broken_rules():
    for protocol in PROTOCOLS:
        for number, mutation in enumerate(protocol.mutations):
            marks = () if number == 0 else (pytest.mark.long,)
            yield pytest.param(protocol, mutation, marks=marks, id=f"{protocol.name}: {mutation.name}")


@pytest.mark.proves("lab/docs/protocol-model.md#rules-of-short-protocols-each-broken-once")
@pytest.mark.parametrize(("protocol", "mutation"), broken_rules())
def test_a_rule_of_a_short_protocol_that_is_broken_on_purpose_is_caught(protocol, mutation):
    found = protocol.catch(mutation)
    assert found.violation is not None, f"{mutation.name} survived {found.states} states"
    assert found.trace


def test_a_commit_request_of_the_step_before_ends_no_transaction_that_has_an_epoch_of_its_own():
    kafka = next(each for each in PROTOCOLS if each.name == "deliver kafka")
    check(kafka.explore(kafka.quick))
    old = next(each for each in kafka.mutations if "epoch of the one before" in each.name)
    found = kafka.catch(old)
    assert found.violation is not None
    assert found.violation.invariant == "readers see all of a step or nothing"
    assert any(line.startswith("delay: commit of") or line.startswith("delay: commit") for line in found.trace)


# the search itself, over a counter that two processes raise


class Counter(Scene):
    def __init__(self, kills=0, *, is_lost_allowed=True, locked=False):
        super().__init__({"one": Slot("raise"), "other": Slot("raise")}, {"kill": kills})
        self.value = 0
        self.is_lost_allowed = is_lost_allowed
        self.holder = None
        self.locked = locked

    def spawn(self, name, slot, pid):
        process = Process(pid, name, slot.kind)
        process.steps = self.raises(process)
        return process

    def raises(self, me):
        if self.locked:
            while self.holder is not None:
                yield READ
            self.holder = me.pid
        value = self.value
        yield READ
        self.value = value + 1
        yield WRITTEN
        self.holder = None

    def durable(self):
        return self.value, self.holder

    def check(self):
        if not self.is_lost_allowed and self.is_good() and self.value < 2:
            fail("no raise is lost", self.value)

    def is_good(self):
        return not self.running and not any(self.left.values())


def counted_by_hand():
    """Count states and transitions of the counter, with a process as a letter, or what it has read."""
    first: tuple[object, ...] = ("new", "new", 0)
    seen, queue, edges = {first}, [first], 0
    while queue:
        *places, value = queue.pop()
        for number, place in enumerate(places):
            steps: dict[object, object] = {"new": "begun", "begun": value, "written": "gone"}
            after = steps.get(place, "written")
            if place == "gone":
                continue
            state = (*places[:number], after, *places[number + 1 :], place + 1 if isinstance(place, int) else value)
            edges += 1
            if state not in seen:
                seen.add(state)
                queue.append(state)
    return len(seen), edges


def test_all_ways_of_two_processes_are_found_and_equal_states_are_one():
    found = explore(Counter)
    check(found)
    states, edges = counted_by_hand()
    assert (found.states, found.transitions, found.depth) == (states, edges, 8)


def test_a_lost_update_is_found_by_the_shortest_way():
    found = explore(lambda: Counter(is_lost_allowed=False))
    assert found.violation is not None
    assert found.violation.invariant == "no raise is lost"
    assert len(found.trace) == 8
    check(explore(lambda: Counter(is_lost_allowed=False, locked=True)))


def test_a_state_from_which_nothing_comes_right_is_found():
    found = explore(lambda: Counter(kills=1, locked=True))
    assert found.violation is not None
    assert found.violation.invariant == COMES_RIGHT
    assert found.trace[-1] != ""


def test_only_local_values_that_are_read_again_tell_states_apart():
    def steps(first, second):
        third = first + second
        yield 1
        yield third
        yield second

    running = steps(1, 2)
    next(running)
    assert live_names(running.gi_code, running.gi_frame.f_lasti) == {"third", "second"}
    next(running)
    assert live_names(running.gi_code, running.gi_frame.f_lasti) == {"second"}
