"""The rules of versions, each broken once on purpose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.model.mutation import Mutation
from lab.model.stories import Focus
from lab.model.versions.stories import BEGUN, DROPPED, PROVED, RESTED, SERVED
from rivertwice.versions import proof
from rivertwice.versions.model import Proof

VERSIONS = Focus(versions=True)
CAUGHT_BUILDS = replace(
    VERSIONS,
    stories=((*SERVED, "catch far keeper at served of a version: sequence and batches read", "backfill", "serve old"),),
    planted=False,
    far=True,
)
FIRST_BUILDS = replace(
    VERSIONS,
    stories=(BEGUN,),
    far=True,
)
GATES = replace(VERSIONS, stories=(SERVED,), planted=False)
PLANTED = replace(VERSIONS, stories=(SERVED,), planted=True)
UNPROVED = replace(
    VERSIONS,
    stories=((*BEGUN, "now serve new", "reconcile", "now serve new"), (*BEGUN, "now serve new")),
    planted=False,
)
SERVED_DROPS = replace(VERSIONS, stories=((*SERVED, *DROPPED),), planted=False)
TWO_NEW = replace(VERSIONS, stories=((*SERVED, *BEGUN, *DROPPED),), planted=False, quiet=True)
OUTDATED = replace(
    VERSIONS,
    stories=((*PROVED, "backfill@new", "now serve new"), (*PROVED, "backfill", "now serve new")),
    planted=False,
)
KILLED = replace(VERSIONS, stories=((*BEGUN, "settle"), SERVED), deadly=True)
DROPS = replace(VERSIONS, stories=((*BEGUN, *DROPPED), (*SERVED, "serve old", *DROPPED)), planted=False, deadly=True)
_READ = "catch serve new at serve: its rows and their stamp read"
DROP_RACES = replace(
    VERSIONS,
    stories=(
        (*RESTED, "serve new", _READ, "now drop new", "serve old"),
        (*RESTED, "drop new", "catch drop new at drop: it does not serve, and no driver runs", "now serve new"),
    ),
    planted=False,
)
LOAD_DROPS = replace(
    VERSIONS,
    stories=tuple(
        ("define", "upgrade", f"catch upgrade at {at}", "now drop new", "upgrade")
        for at in ("load: recorded", "load: event times read", "load: head moved")
    ),
)
NOT_NOTED = replace(
    VERSIONS,
    stories=((*SERVED, "catch serve new at serve: switched", "now reconcile", "now reconcile@new", "serve old"),),
    planted=False,
)


def _always(*_: Any) -> None:
    return None


def _proved(name: str, look: Any) -> Proof:
    """Let every version count as proved, up to its last batch."""
    found = proof.prove(name, look)
    return replace(found, lacks="", until_ms=found.until_ms or 30)


VERSION_MUTATIONS: tuple[Mutation, ...] = (
    # what consumers read; rules of the switch itself are broken in `exhaustive/switch.py`
    Mutation("a build opens its table after it read", "a build reads its table last", focus=CAUGHT_BUILDS),
    Mutation("a first build replaces another host's", "a first build replaces another one", focus=FIRST_BUILDS),
    Mutation(
        "a version beside writes the table of consumers",
        rules={"served_while": lambda home, _: home.public_served},
        focus=GATES,
    ),
    # the gate
    Mutation("a version serves whatever the gate says", "served whatever the gate says", focus=PLANTED),
    Mutation("the gate does not insist on a proof", rules={"find_missing": lambda *_: ()}, focus=OUTDATED),
    Mutation("the gate compares what is not proved", rules={"prove": _proved}, focus=UNPROVED),
    Mutation("a row that differs without a cause passes", rules={"find_differences": lambda *_: ()}, focus=PLANTED),
    Mutation("a declaration covers every row", "a declaration covers every row", focus=PLANTED),
    Mutation("a difference counts as caused by late records", "a difference counts as late", focus=PLANTED),
    # beginning and dropping
    Mutation("the old definition is not frozen", "the old definition is not frozen", focus=KILLED),
    Mutation("definitions are frozen after the start", "definitions are frozen after the start", focus=KILLED),
    Mutation(
        "a version that was cut off is begun again as another one",
        rules={"select_under_way": _always},
        focus=KILLED,
    ),
    Mutation("versions are changed side by side", "versions are changed side by side", focus=DROP_RACES),
    Mutation("a version is dropped under its load", "a version is dropped under its load", focus=LOAD_DROPS),
    Mutation("the version that serves is dropped", rules={"require_droppable": _always}, focus=SERVED_DROPS),
    Mutation("a drop leaves the first definition frozen", rules={"needs_frozen": lambda _: True}, focus=DROPS),
    Mutation(
        "a drop frees a definition that still runs beside", rules={"needs_frozen": lambda _: False}, focus=TWO_NEW
    ),
    # looks
    Mutation("a reconcile follows no stamp", "a reconcile follows no stamp", focus=NOT_NOTED),
)
