"""The short protocols, their bounds, and every rule of them broken once: a search must find it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from lab.model.exhaustive import batch, deliver, head, lease, switch
from lab.model.exhaustive.search import Bounds, Explored, Scene, explore
from lab.model.mutation import Mutation
from lab.model.rules import Rules


@dataclass(frozen=True)
class Protocol:
    """A protocol that is short enough to explore all of it.

    Attributes:
        begin: returns what begins its scene, given the decision functions, the step that is broken, and the bounds.
        invariants: what must hold, in words.
        mutations: its rules, each broken once.
        quick: bounds that take seconds. wide: bounds that take minutes; a broken rule that no quick ones catch is looked for in these.
    """

    name: str
    begin: Callable[[Rules, str, Bounds], Callable[[], Scene]]
    invariants: Sequence[str]
    mutations: Sequence[Mutation]
    quick: Bounds
    wide: Sequence[Bounds]

    def explore(self, bounds: Bounds) -> Explored:
        """Explore it within bounds."""
        return explore(self.begin(Rules(), "", bounds))

    def catch(self, mutation: Mutation) -> Explored:
        """Explore what a broken rule makes of it, until an invariant breaks."""
        for bounds in (self.quick, *self.wide):
            found = explore(self.begin(replace(Rules(), **mutation.rules), mutation.step, bounds))
            if found.violation is not None:
                break
        return found


_ONE = {"kill": 1, "lose": 0, "delay": 1, "time out": 0, "starts": 2, "far": 0}
_TWO = {**_ONE, "kill": 0, "delay": 0, "starts": 1, "far": 1}
_TWO_KILLED = {**_TWO, "kill": 1}
_TWO_DELAYED = {**_TWO, "delay": 1}
_HARMED = {"kill": 1, "lose": 1, "delay": 1, "time out": 1, "starts": 2, "far": 0}
_ALL_HARMED = {"kill": 2, "lose": 1, "delay": 0, "time out": 1, "starts": 1, "far": 1}
PROTOCOLS = (
    Protocol(
        "batch",
        batch.begin,
        batch.INVARIANTS,
        batch.MUTATIONS,
        {"kill": 1, "lose": 0, "stop": 0, "starts": 2},
        (
            {"kill": 0, "lose": 0, "stop": 1, "starts": 2},
            {"kill": 2, "lose": 1, "stop": 0, "starts": 2},
            {"kill": 1, "lose": 0, "stop": 1, "starts": 2},
        ),
    ),
    Protocol(
        "head",
        head.begin,
        head.INVARIANTS,
        head.MUTATIONS,
        {"kill": 0, "lose": 0, "starts": 1, "drivers": 1, "abandon": 0},
        (
            {"kill": 1, "lose": 0, "starts": 1, "drivers": 1, "abandon": 1},
            {"kill": 1, "lose": 0, "starts": 2, "drivers": 1, "abandon": 0},
            {"kill": 2, "lose": 1, "starts": 2, "drivers": 1, "abandon": 1},
        ),
    ),
    Protocol(
        "lease",
        lease.begin,
        lease.INVARIANTS,
        lease.MUTATIONS,
        {"kill": 1, "lose": 0, "leave": 0, "starts": 1},
        ({"kill": 1, "lose": 1, "leave": 1, "starts": 1}, {"kill": 2, "lose": 1, "leave": 0, "starts": 2}),
    ),
    Protocol(
        "switch",
        switch.begin,
        switch.INVARIANTS,
        switch.MUTATIONS,
        {"kill": 0, "lose": 0, "starts": 1, "back": 0},
        (
            {"kill": 0, "lose": 0, "starts": 1, "back": 1},
            {"kill": 1, "lose": 1, "starts": 2, "back": 1},
            {"kill": 2, "lose": 1, "starts": 2, "back": 0},
        ),
    ),
    Protocol(
        "deliver kafka",
        deliver.begin_kafka,
        deliver.INVARIANTS,
        deliver.KAFKA_MUTATIONS,
        _ONE,
        (_TWO, _TWO_DELAYED, _HARMED, _ALL_HARMED),
    ),
    Protocol(
        "deliver postgres",
        deliver.begin_postgres,
        deliver.INVARIANTS,
        deliver.POSTGRES_MUTATIONS,
        _TWO_KILLED,
        (_TWO_DELAYED, _HARMED, _ALL_HARMED),
    ),
)


def render_explored(explored: Iterable[tuple[Protocol, Bounds, Explored]]) -> str:
    """Return the table of what was explored."""
    lines = [
        "| protocol | bounds | states | transitions | depth | CPU-seconds | violation |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {protocol.name} | {', '.join(f'{name} {times}' for name, times in bounds.items())} | {found.states:,} | "
            f"{found.transitions:,} | {found.depth} | {found.seconds:.0f} | {found.violation or 'none'} |"
            for protocol, bounds, found in explored
        ),
    ]
    return "\n".join(lines) + "\n"


def render_caught(caught: Sequence[tuple[Protocol, Mutation, Explored]]) -> str:
    """Return the table of broken rules: after how many states which invariant broke, in how many moves from the beginning."""
    lines = ["| protocol | broken on purpose | states | moves | invariant |", "|---|---|---|---|---|"]
    for protocol, mutation, found in caught:
        broken = "SURVIVED" if found.violation is None else found.violation.invariant
        lines.append(f"| {protocol.name} | {mutation.name} | {found.states:,} | {len(found.trace)} | {broken} |")
    number = sum(found.violation is not None for _, _, found in caught)
    return "\n".join([*lines, "", f"{number} of {len(caught)} caught"]) + "\n"
