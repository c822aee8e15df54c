"""What a seal says, compared with what a run sees: the ledger's chain, and the number of served rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rivertwice.reconcile.model import Finding
from rivertwice.reconcile.seals.model import START, Seal, chain_hash
from rivertwice.reconcile.view import HeadView
from rivertwice.timeline.ledger import LedgerRow


def check_seals(view: HeadView, seals: Sequence[Seal]) -> list[Finding]:
    """Compare the ledger's rows with the chain that each seal on the path has of them; the first that differs is named."""
    return check_chain(view.rows, seals)


def check_chain(rows: Sequence[LedgerRow], seals: Sequence[Seal]) -> list[Finding]:
    """Compare the whole ledger of a path with the chain that each seal has of it; seals that are not on the path are left out."""
    keys = {(row.timeline, row.batch) for row in rows}
    on_path = {(seal.timeline, seal.batch): seal for seal in seals if (seal.timeline, seal.batch) in keys}
    current = START
    for row in rows:
        current = chain_hash(current, [row])
        seal = on_path.get((row.timeline, row.batch))
        if seal is not None and seal.ledger != current:
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
    if seal.served_rows < 0 or view.prefix.scope.ranges:
        return []
    settled = view.served_total - view.served.num_rows
    if settled == seal.served_rows:
        return []
    message = (
        f"the table served has {settled} rows of settled windows, it had {seal.served_rows} at the {seal.name}, and no commit of "
        f"rivertwice explains it; `rivertwice reconcile {view.home.root.name} --full` compares every row"
    )
    return [Finding("served", message)]
