"""The oracle's findings, as the lab passes them on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Judgement:
    """The oracle's findings over the head's path.

    Pairs are (record, window): each record of the committed offsets is in exactly one of emitted, open, late, dead
    and excluded, or it is counted among the four that must be 0.

    Attributes:
        records: records in the committed offset ranges.
        batches: batches on the head's path.
        rows: result rows the stream emitted.
        lost: pairs, dead letters or acknowledged records that are nowhere; also those missing from a row that exists.
        duplicated: rows or dead letters that exist more than once.
        wrong: rows or dead letters with other values, or in another batch, than they must have.
        unexplained: rows, dead letters or ledger entries that nothing in the log explains.
        partitions: partition to its balance.
        findings: the reasons of the four, the first of each kind, in words.
    """

    records: int
    batches: int
    rows: int
    emitted: int
    open: int
    late: int
    dead: int
    excluded: int
    lost: int
    duplicated: int
    wrong: int
    unexplained: int
    partitions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    findings: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Nothing lost, duplicated, wrong or unexplained."""
        return not (self.lost or self.duplicated or self.wrong or self.unexplained)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Judgement:
        """Read the oracle's answer."""
        return cls(**{**data, "findings": tuple(data["findings"])})
