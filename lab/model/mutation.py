"""One rule broken on purpose, and running schedules until an invariant catches it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lab.model.focuses import ANY
from lab.model.rules import Rules
from lab.model.schedule import run_schedule
from lab.model.stories import Focus


@dataclass(frozen=True)
class Mutation:
    """One broken rule.

    Attributes:
        name: what is broken, as a sentence.
        step: name of the protocol step that is broken in the actors; empty if only rules are.
        rules: decision functions of the product that are replaced.
        focus: what the schedules do, so that the broken part is exercised.
    """

    name: str
    step: str = ""
    rules: Mapping[str, Any] = field(default_factory=dict)
    focus: Focus = ANY


@dataclass(frozen=True)
class Verdict:
    """The result of a mutation: after how many schedules which invariant caught it."""

    mutation: Mutation
    caught: bool
    schedules: int
    invariant: str


def run_mutation(mutation: Mutation, *, seed: int, most: int) -> Verdict:
    """Run schedules with a rule broken until an invariant breaks."""
    rules = replace(Rules(), **mutation.rules)
    for number in range(most):
        outcome = run_schedule(seed + number, rules=rules, broken=mutation.step, focus=mutation.focus)
        if outcome.violation is not None:
            return Verdict(mutation, True, number + 1, outcome.violation.invariant)
    return Verdict(mutation, False, most, "")
