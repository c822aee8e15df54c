"""Whether what a version serves is proved: the newest seal on its head's path, and that nothing it covers changed since."""

from __future__ import annotations

from rivertwice.core import PipelineHome
from rivertwice.reconcile import ChangesSinceSeal, look_at_changes
from rivertwice.versions.model import Proof


def read_proof(home: PipelineHome) -> Proof:
    """Return up to where a reconcile has proved what a version serves; later batches do not weaken it, they are not in it."""
    return prove(home.root.name, look_at_changes(home))


def prove(name: str, look: ChangesSinceSeal) -> Proof:
    """Return what a look proves of a version. Pure."""
    seal = look.seal
    again = f"run `rivertwice reconcile {name}`"
    if seal is None:
        return Proof(name, None, 0, lacks=f"no reconcile has proved what {name} serves; {again}")
    broken = look.find_broken()
    lacks = ""
    if broken:
        lacks = f"what {seal.run} proved of {name} does not hold any more: {broken}; {again}"
    elif look.new_publications():
        lacks = f"{name} published backfills after {seal.run} proved what it serves; {again}"
    return Proof(name, seal.run, seal.settled_ms, lacks, seal.timeline, seal.sequence, seal.end_offsets)
