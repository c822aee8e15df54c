"""What a truth is computed for, and of which windows it is computed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rivertwice.explain.model import Address, Published
from rivertwice.pipeline.definition import Definition
from rivertwice.timeline.committed import CommittedBatches
from rivertwice.timeline.ledger import LedgerRow


@dataclass(frozen=True)
class Question:
    """What a truth is computed for.

    Attributes:
        address: of the row; its key has the values of the result columns.
        definition: what the head runs.
        committed: the batches of the head's path.
        batches: those that may have read records of the window.
        published: who published what is served.
    """

    address: Address
    definition: Definition
    committed: CommittedBatches
    batches: Sequence[LedgerRow]
    published: Published | None


def why_no_truth(definition: Definition) -> str | None:
    """Return why the truth of one row alone is not computed; None: it is. Pure."""
    if not definition.window.kind.has_watermark:
        return (
            "the truth of one row is not computed: each row of a fold depends on all records of its key before it; "
            "`rivertwice reconcile NAME --full` compares all of them"
        )
    if not definition.window.kind.is_aligned:
        return (
            "the truth of one session is not computed: its records decide where it begins and ends; `rivertwice reconcile NAME --from "
            "START --to END` compares the sessions of a range"
        )
    return None
