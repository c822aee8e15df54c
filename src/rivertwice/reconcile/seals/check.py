"""What a seal says, compared with what a run sees: the ledger's chain, and the number of served rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rivertwice.reconcile.model import Finding
from rivertwice.reconcile.seals.model import START, Seal, chain_hash
from rivertwice.reconcile.seals.scope import Scope
from rivertwice.reconcile.view import HeadView
from rivertwice.timeline.ledger import LedgerRow


def check_seals(view: HeadView, seals: Sequence[Seal]) -> list[Finding]:
    """Compare the ledger's rows with the chain that each seal on the path has of them; the first that differs is named."""
    return check_chain(view.rows, seals)


def check_chain(rows: Sequence[LedgerRow], seals: Sequence[Seal]) -> list[Finding]:
    """Compare the whole ledger of a path with the chain that each seal has of it; seals that are not on the path are left out."""
    by_batch: dict[tuple[str, int], list[Seal]] = {}
    for seal in seals:
        by_batch.setdefault((seal.timeline, seal.batch), []).append(seal)
    current = START
    for row in rows:
        current = chain_hash(current, [row])
        for seal in by_batch.get((row.timeline, row.batch), ()):
            if seal.ledger != current:
                message = (
                    f"the ledger up to batch {row.batch} of {row.timeline} is not what it was at the {seal.name}: a row of it was "
                    "changed since; compare it with a backup"
                )
                return [Finding("seal", message, row.batch)]
    return []


def check_served_total(view: HeadView, seal: Seal) -> list[Finding]:
    """Compare the number of served rows outside the windows that are judged with the number at the seal."""
    if view.prefix is None or view.served is None or view.served_total is None:
        return []
    settled = view.served_total - view.served.num_rows
    return compare_served_rows(view.home.root.name, seal, view.prefix.scope, settled)


def compare_served_rows(pipeline: str, seal: Seal, scope: Scope, settled: int) -> list[Finding]:
    """Compare the number of served rows of windows that are not judged with the number at the seal.

    Args:
        pipeline: its name, for the message.
        seal: that the run builds on.
        scope: the windows that are judged; if settled ones are among them, nothing is known of the others.
        settled: served rows of all other windows.
    """
    if seal.served_rows < 0 or scope.ranges or settled == seal.served_rows:
        return []
    message = (
        f"the table served has {settled} rows of settled windows, it had {seal.served_rows} at the {seal.name}, and no commit of "
        f"rivertwice explains it; `rivertwice reconcile {pipeline} --full` compares every row"
    )
    return [Finding("served", message)]
