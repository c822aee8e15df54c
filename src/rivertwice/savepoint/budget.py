"""What a proof may cost, and which savepoint should be tried again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rivertwice.savepoint.catalogue import PROVED, Savepoint


@dataclass(frozen=True)
class ProofBudget:
    """The bounds of one proof; a rotation has to end before the next one begins.

    Attributes:
        batches: recorded batches to replay, if the stream commits so many.
        wait_s: seconds to wait for them, in all.
        max_batches: more are not replayed, even where only a later state can be compared.
        max_bytes: size of the two copies that a proof holds in scratch.
        replay_s: seconds that the replay may take.
    """

    batches: int = 3
    wait_s: float = 60.0
    max_batches: int = 200
    max_bytes: int = 16 << 30
    replay_s: float = 900.0


def decide_over_bytes(size: int, budget: ProofBudget) -> str | None:
    """Return why a savepoint of so many bytes is not proved within the budget, or None."""
    if 2 * size <= budget.max_bytes:
        return None
    return (
        f"not proved: two copies of its {size} bytes are more than the budget of {budget.max_bytes}; prove it with a larger "
        "one, on a host with the space"
    )


def decide_over_batches(first: int, last: int, budget: ProofBudget) -> str | None:
    """Return why a replay of the batches after `first` up to `last` is not begun within the budget, or None."""
    allowed = max(budget.batches, budget.max_batches)
    if last - first <= allowed:
        return None
    return (
        f"not proved: only the state after batch {last} can still be compared, {last - first} batches on, and the budget is "
        f"{allowed}; the next rotation proves a newer one"
    )


def describe_out_of_time(done: int, wanted: int, budget: ProofBudget) -> str:
    """Return in one sentence that a replay ran out of time."""
    return (
        f"not proved: {done} of {wanted} recorded batches replayed equal within {budget.replay_s:.0f} s, the budget, and the rest "
        "was left; the next rotation tries again"
    )


def select_retry(savepoints: Sequence[Savepoint], tried: Collection[str]) -> Savepoint | None:
    """Return the savepoint to prove if a newer one could not be proved: the newest unproved one since the newest proved one.

    A stream that commits rarely has no batch after a savepoint just taken. By the next rotation it has one.
    """
    newest_first = sorted(savepoints, key=lambda s: (s.manifest.created_at, s.id), reverse=True)
    for savepoint in newest_first:
        if savepoint.status == PROVED:
            return None
        if savepoint.id not in tried:
            return savepoint
    return None
