"""What publications of fixed windows must serve: the truth as of each, where that is not the truth of now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from rivertwice.reconcile.evidence.evidence import Evidence, ServedEvidence
from rivertwice.reconcile.frames import late_by_row, unique_rows
from rivertwice.reconcile.model import AmendedRow, LateRow, RowId, ServedRow, Shape
from rivertwice.reconcile.verdict import select_stale_published
from rivertwice.reconcile.view import HeadView, counted_publications
from rivertwice.timeline.serving import select_winners


class AsOf(Protocol):
    """A judge of fixed windows, who knows what counted at a moment."""

    def truth_as_of(
        self, as_of: Mapping[str, Mapping[int, int]], amendments: int, windows_end_ms: Iterable[int]
    ) -> pa.Table:
        """Return the batch result over what counted at a moment, for these windows only."""

    def amended_rows(self, shape: Shape) -> list[AmendedRow]:
        """Return every pair that a dead letter should have been in, ended ones too."""


def published_windows(
    judge: AsOf,
    view: HeadView,
    evidence: Evidence,
    rows: Mapping[RowId, Sequence[ServedRow]],
    closed_ms: int,
    late: Sequence[LateRow],
) -> ServedEvidence:
    """Return what is served, with what each publication had to serve when it was made."""
    counted = counted_publications(view)
    starts = np.array(sorted({row.start_ms for row in {*evidence.truth, *rows}}), dtype=np.int64)
    winners = select_winners(starts, counted, view.semantics)
    owner = {int(start): int(seq) for start, seq in zip(starts, winners, strict=True) if seq >= 0}
    old = {one.seq for one in counted if one.semantics != view.newest.semantics}
    served = ServedEvidence(
        rows=rows,
        closed_ms=closed_ms,
        published=frozenset(owner),
        older=frozenset(start for start, seq in owner.items() if seq in old),
    )
    stale = select_stale_published(evidence, served) - served.older
    return (
        _with_truth(judge, view, evidence, served, {start: owner[start] for start in stale}, late) if stale else served
    )


def _with_truth(
    judge: AsOf,
    view: HeadView,
    evidence: Evidence,
    served: ServedEvidence,
    owner: Mapping[int, int],
    late: Sequence[LateRow],
) -> ServedEvidence:
    """Add what each publication had to serve, for windows that serve something else than the truth of now."""
    size_ms = view.newest.definition.window.length // timedelta(milliseconds=1)
    truth: dict[RowId, Any] = {}
    since: dict[RowId, list[LateRow]] = {}
    amended: list[AmendedRow] = []
    for publication in view.publications:
        starts = {start for start, seq in owner.items() if seq == publication.seq}
        if not starts:
            continue
        ends_ms = [start + size_ms for start in starts]
        table: pa.Table = judge.truth_as_of(publication.as_of, publication.amendments, ends_ms)
        truth |= unique_rows(table, evidence.shape)
        for one in late:
            counted = publication.as_of.get(one.topic, {}).get(one.partition, 0)
            if one.row.start_ms in starts and one.offset >= counted:
                since.setdefault(one.row, []).append(one)
        amended += [
            one
            for one in judge.amended_rows(evidence.shape)
            if one.row.start_ms in starts and one.changed_since(publication.amendments)
        ]
    return replace(served, publication_truth=truth, late_since=since, amended_since=late_by_row(amended))
