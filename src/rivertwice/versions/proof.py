"""Whether what a version serves is proved: the newest seal on its head's path, and that nothing it covers changed since."""

from __future__ import annotations

from rivertwice.config import PipelineHome
from rivertwice.reconcile.seals.changes import find_foreign
from rivertwice.reconcile.seals.look import look_at_changes, new_publications
from rivertwice.versions.model import Proof


def read_proof(home: PipelineHome) -> Proof:
    """Return up to where a reconcile has proved what a version serves; later batches do not weaken it, they are not in it."""
    name = home.root.name
    look = look_at_changes(home)
    seal = look.seal
    again = f"run `rivertwice reconcile {name}`"
    if seal is None:
        return Proof(name, None, 0, f"no reconcile has proved what {name} serves; {again}")
    lacks = ""
    if new_publications(look):
        lacks = f"{name} published backfills after {seal.run} proved what it serves; {again}"
    elif find_foreign(name, look.tables):
        lacks = f"tables of {name} were changed by another program after {seal.run}; {again}, which names the commits"
    elif look.amendments != seal.amendments:
        lacks = f"decisions about dead letters of {name} were made after {seal.run}; {again}"
    return Proof(name, seal.run, seal.settled_ms, lacks)
