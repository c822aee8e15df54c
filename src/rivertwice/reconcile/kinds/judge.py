"""What a reconcile needs from a kind of windows: what the log requires, and why the stream may differ from it.

Every kind is a `Judge`. What not every kind has (lateness, amendments, updates, increments) has an empty answer here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import pyarrow as pa

from rivertwice.definition import Definition
from rivertwice.log import Part
from rivertwice.reconcile.evidence import Evidence, ServedEvidence
from rivertwice.reconcile.gaps import LostRecordEffects
from rivertwice.reconcile.model import AmendedRow, LateRow, PairCount, RowColumns, RowId
from rivertwice.reconcile.rederive import Chain, Ranges
from rivertwice.reconcile.view import Served


class Judge(Protocol):
    """What the stream must have made of the accepted rows of a path."""

    def truth(self, definition: Definition) -> pa.Table:
        """Return the batch result over all accepted rows."""

    def expected(self, definition: Definition) -> pa.Table:
        """Return what the stream must emit in the end."""

    def is_due(self, row: RowId, index: int, chain: Chain, ranges: Sequence[Ranges]) -> bool:
        """Say whether the batch with this path index had to emit a row.

        Args:
            ranges: offset ranges by path index.
        """

    def widen(self, doubts: LostRecordEffects) -> LostRecordEffects:
        """Return the doubts of lost records with all windows that they may reach."""

    def find_incomparable(self, shape: RowColumns, rows: Iterable[RowId], definitions: int) -> dict[int, str]:
        """Return window start (epoch ms) to why the kind cannot compare it, whatever the stream did.

        Args:
            definitions: how many ran on the path.
        """

    def evidence(self, common: Evidence, batches: Sequence[int]) -> Evidence:
        """Return the evidence with what only this kind knows. `batches` gives the batch number of each path index."""

    def served_evidence(self, evidence: Evidence, served: Served) -> ServedEvidence:
        """Return what the served table is judged by. `evidence` is what the stream is judged by."""

    def pairs(self, group: int | None = None) -> list[PairCount]:
        """Return the pairs of records that passed the row filter, counted by partition, window and lateness.

        With `group` only of records that batches of this definition read.
        """

    def count_emitted(
        self, evidence: Evidence, pairs: Sequence[PairCount], unread: LostRecordEffects, closed_ms: int
    ) -> int:
        """Return how many pairs the changelog accounts for.

        Args:
            unread: doubts of windows whose input is gone.
            closed_ms: windows that end at or before it are closed.
        """

    def windows_with_skipped_records(self) -> set[int]:
        """Return the starts (epoch ms) of the windows that records belong to which no batch read, but the archive has."""

    def touched(self, indexes: Iterable[int]) -> dict[int, set[int]]:
        """Return path index to the starts (epoch ms) of the windows that its rows touch."""

    def groups(self) -> dict[int, set[int]]:
        """Return window start (epoch ms) to the numbers of the definitions whose batches touched it."""

    def late_rows(self, shape: RowColumns, batches: Sequence[int]) -> list[LateRow]:
        """Return every late pair by the record's address. `batches` gives the batch number of each path index."""
        return []

    def amended_rows(self, shape: RowColumns) -> list[AmendedRow]:
        """Return every (record, window) pair that a dead letter should have been in, ended ones too."""
        return []

    def updates(self, index: int) -> pa.Table | None:
        """Return what a stream that emits updates must emit with one batch, by its path index; None: the kind cannot say."""
        return None

    def can_increment(self, shape: RowColumns) -> bool:
        """Say whether a later run may build on this one.

        A settled window changes then only by records of its own, and every late record of a definition names the row that it is
        missing from.
        """
        return False

    def answer_together(self, shape: RowColumns, first_index: int, settled_ms: int) -> None:
        """Compute at once what an incremental run asks for: truth, expected, late rows and `pairs_since`; or each when it is asked."""
        return

    def pairs_since(self, first_index: int, settled_ms: int) -> list[PairCount]:
        """Return `pairs` without those that records before a path index have in settled windows."""
        return self.pairs()

    def records_without_output(self) -> dict[Part, int] | None:
        """Return by part how many records were taken and yielded no row; None: they are what was accepted and is in no window."""
        return None


def may_spread(definition: Definition) -> bool:
    """Say whether executors may judge each row of a definition where it is."""
    return definition.window.kind.has_independent_rows and not definition.has_updates


# Which pairs of record and window the rows of the changelog account for. Pure.


def count_by_rows(evidence: Evidence, unread: LostRecordEffects, closed_ms: int) -> int:
    """Return the sum of the rows' own counts; not of windows whose input is gone, nor of updates of open windows."""
    return sum(
        evidence.shape.count(stream_row.values)
        for row, rows in evidence.stream.items()
        if unread.of(row.start_ms, row.end_ms) is None and not (evidence.updates and row.end_ms > closed_ms)
        for stream_row in rows
    )


def closed_pairs(pairs: Sequence[PairCount], closed_ms: int) -> list[PairCount]:
    """Return the pairs in time of closed windows."""
    return [pair for pair in pairs if not pair.late and pair.end_ms <= closed_ms]
