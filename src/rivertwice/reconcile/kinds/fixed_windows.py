"""Windows of one length: what their judges share, and what publications of them must serve."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from rivertwice.backfill import find_unloaded
from rivertwice.reconcile.evidence import Evidence, ServedEvidence
from rivertwice.reconcile.frames import late_by_row, unique_rows
from rivertwice.reconcile.gaps import LostRecordEffects
from rivertwice.reconcile.kinds.judge import Judge
from rivertwice.reconcile.model import AmendedRow, LateRow, RowColumns, RowId
from rivertwice.reconcile.verdict import select_stale_published
from rivertwice.reconcile.view import Served, counted_publications
from rivertwice.timeline import select_winners


class FixedWindows(Judge):
    """What judges of windows of one length share: a start identifies a window; a record is in each window that covers it."""

    @abstractmethod
    def truth_as_of(
        self, as_of: Mapping[str, Mapping[int, int]], amendments: int, windows_end_ms: Iterable[int]
    ) -> pa.Table:
        """Return the batch result over what counted at a moment, for these windows only.

        Args:
            as_of: topic to partition to offset; rows below counted.
            amendments: decisions about dead letters up to this one counted.
        """

    @abstractmethod
    def rows_in_time_since(
        self,
        as_of: Mapping[str, Mapping[int, int]],
        windows_end_ms: Iterable[int],
        shape: RowColumns,
        batches: Sequence[int],
    ) -> list[LateRow]:
        """Return the pairs that came in time, of records that did not count at a moment, for these windows only.

        A publication holds closed windows, so there are none on the path that it was made on. After a rewind another path closes
        them at other records, and one may be in time that the publication does not have.

        Args:
            as_of: topic to partition to offset; rows below counted.
            batches: batch number by path index.
        """

    def widen(self, doubts: LostRecordEffects) -> LostRecordEffects:
        """Return the doubts as they are."""
        return doubts

    def served_evidence(self, evidence: Evidence, served: Served) -> ServedEvidence:
        """Return what is served, with what each publication had to serve when it was made."""
        claimed, stale = claimed_windows(evidence, served)
        return self._with_truth(evidence, served, claimed, stale) if stale else claimed

    def _with_truth(
        self, evidence: Evidence, served: Served, claimed: ServedEvidence, owner: Mapping[int, int]
    ) -> ServedEvidence:
        """Add what each publication had to serve, for windows that serve other rows than the present truth."""
        size_ms = served.view.newest.definition.window.length // timedelta(milliseconds=1)
        truth: dict[RowId, Any] = {}
        since: dict[RowId, list[LateRow]] = {}
        amended: list[AmendedRow] = []
        amendments = self.amended_rows(evidence.shape)
        for publication in served.view.publications:
            starts = {start for start, seq in owner.items() if seq == publication.seq}
            if not starts:
                continue
            ends_ms = [start + size_ms for start in starts]
            table: pa.Table = self.truth_as_of(publication.as_of, publication.amendments, ends_ms)
            truth |= unique_rows(table, evidence.shape)
            batches = [row.batch for row in served.view.rows]
            for late_row in self.rows_in_time_since(publication.as_of, ends_ms, evidence.shape, batches):
                since.setdefault(late_row.row, []).append(late_row)
            for late_row in served.late:
                counted = publication.as_of.get(late_row.topic, {}).get(late_row.partition, 0)
                if late_row.row.start_ms in starts and late_row.offset >= counted:
                    since.setdefault(late_row.row, []).append(late_row)
            amended += [
                amended_row
                for amended_row in amendments
                if amended_row.row.start_ms in starts and amended_row.changed_since(publication.amendments)
            ]
        return replace(claimed, publication_truth=truth, late_since=since, amended_since=late_by_row(amended))


def claimed_windows(evidence: Evidence, served: Served) -> tuple[ServedEvidence, dict[int, int]]:
    """Return what is served with the windows that publications serve, and those of them that differ from the present truth.

    The latter are by start (epoch ms), with the number of the publication, without those that an older definition published.
    """
    view, counted = served.view, counted_publications(served.view)
    starts = np.array(sorted({row.start_ms for row in {*evidence.truth, *served.rows}}), dtype=np.int64)
    winners = select_winners(starts, counted, view.semantics)
    owner = {int(start): int(seq) for start, seq in zip(starts, winners, strict=True) if seq >= 0}
    old = {publication.seq for publication in counted if publication.semantics != view.newest.semantics}
    claimed = ServedEvidence(
        rows=served.rows,
        closed_ms=served.closed_ms,
        published=frozenset(owner),
        older=frozenset(start for start, seq in owner.items() if seq in old),
        unloaded=() if view.load is None else find_unloaded(view.load, counted, view.semantics),
    )
    stale = select_stale_published(evidence, claimed) - claimed.older
    return claimed, {start: owner[start] for start in stale if not claimed.is_unloaded(start)}
