"""What a truth is computed for. Pure."""

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
