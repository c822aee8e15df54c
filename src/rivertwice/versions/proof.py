"""Whether what a version serves is proved: the newest seal on its head's path, and that nothing it covers changed since."""

from __future__ import annotations

from rivertwice.config import PipelineHome
from rivertwice.reconcile.seals.look import FULL, Look, decide_mode, look_at_changes, new_publications
from rivertwice.versions.model import Proof


def read_proof(home: PipelineHome) -> Proof:
    """Return up to where a reconcile has proved what a version serves; later batches do not weaken it, they are not in it."""
    return judge_proof(home.root.name, look_at_changes(home))


def judge_proof(name: str, look: Look) -> Proof:
    """Return up to where the seal of a look proves what a version serves, or why it does not count now. Pure.

    Args:
        name: of the version.
        look: what was seen of its tables.
    """
    seal = look.seal
    again = f"run `rivertwice reconcile {name}`"
    if seal is None:
        return Proof(name, None, 0, f"no reconcile has proved what {name} serves; {again}")
    decision = decide_mode(name, look)
    lacks = ""
    if decision.mode == FULL:
        lacks = f"what {seal.run} proved of {name} does not hold any more: {decision.reason}; {again}"
    elif decision.foreign:
        lacks = f"another program changed tables of {name} after {seal.run}; {again}, which names the commits"
    elif new_publications(look):
        lacks = f"{name} published backfills after {seal.run} proved what it serves; {again}"
    return Proof(name, seal.run, seal.settled_ms, lacks)
