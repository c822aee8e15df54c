"""Read what is stored of settled windows that changed: their verdicts, and how many records their rows count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rivertwice.config import PipelineHome
from rivertwice.reconcile.frames import addresses, values
from rivertwice.reconcile.model import RowColumns, RowId
from rivertwice.reconcile.seals.look import Look
from rivertwice.reconcile.seals.model import Seal
from rivertwice.reconcile.seals.scope import join_nearest
from rivertwice.reconcile.seals.touched import SettledRows, by_address
from rivertwice.reconcile.view import HeadView, counted_publications, shape_of
from rivertwice.store import delta
from rivertwice.store.sql import is_within
from rivertwice.timeline.first_load import read_load
from rivertwice.timeline.judgements import Range, verdicts_of
from rivertwice.timeline.lineage import path_until
from rivertwice.timeline.served_rows import is_on_path
from rivertwice.timeline.serving import select_winners

_MOST_RANGES = 64


def read_settled_rows(
    home: PipelineHome, look: Look, view: HeadView, seal: Seal, touched: Sequence[RowId], again: Sequence[Range]
) -> SettledRows:
    """Return what is known of the windows of touched rows, and the stored verdicts of windows that are judged again.

    Args:
        home: of the pipeline.
        look: with the head's path.
        view: what the run looks at.
        seal: that it builds on.
        touched: addresses of rows of settled windows.
        again: starts of settled windows that are judged again (epoch ms).
    """
    starts = sorted({row.start_ms for row in touched})
    ranges = join_nearest([(start, start + 1) for start in starts], _MOST_RANGES)
    touched_windows = is_within("window_start", ranges) if ranges else None
    shape = shape_of(view.newest.definition)
    stored = verdicts_of(home, seal.run, join_nearest([*ranges, *again], _MOST_RANGES)) if ranges or again else []
    emitted = served = None
    if touched_windows is not None:
        emitted = delta.read(home.tables.changelog, matching=touched_windows)
        served = None if view.served is None else delta.read(home.tables.served, matching=touched_windows)
    counted = counted_publications(view)
    winners = select_winners(np.array(starts, dtype=np.int64), counted, view.semantics).tolist()
    by_seq = {publication.seq: publication for publication in counted}
    return SettledRows(
        verdicts=by_address(stored),
        emitted={}
        if emitted is None
        else _counts(emitted.filter(is_on_path(path_until(look.path, view.last.batch))), shape),
        served=None if view.served is None else {} if served is None else _counts(served, shape),
        winners={start: by_seq[seq] for start, seq in zip(starts, winners, strict=True) if seq >= 0},
        semantics=view.newest.semantics,
        load=read_load(home),
    )


def _counts(rows: pa.Table, shape: RowColumns) -> dict[RowId, int]:
    return {
        row: shape.count(row_values)
        for row, row_values in zip(addresses(rows, shape), values(rows, shape), strict=True)
    }
