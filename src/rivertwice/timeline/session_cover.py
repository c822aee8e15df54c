"""Which sessions a newer publication replaces: those of the same key that overlap one of its sessions. Pure, over arrays.

Fixed windows are replaced by their start. A session is made by its records: a recompute may begin it earlier, end it later, or
make one of two. So what was served of the same records is within it, wherever that started. Rows of one publication never
replace each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]
STREAM_SEQ = -1
"""Number for the stream's own rows, which every publication replaces."""


def select_replaced(
    rows: pa.Table, seqs: Numbers, claims: pa.Table, claim_seqs: Numbers, columns: Sequence[str]
) -> npt.NDArray[np.bool_]:
    """Return for each row whether a newer publication than its own has a session of its key that overlaps it.

    Args:
        rows: sessions; `seqs` has the publication that each comes from (`STREAM_SEQ`: none).
        seqs: one per row.
        claims: all sessions of publications that count, including those by which a session vanishes.
        claim_seqs: the publication of each.
        columns: start and end of a session, then its key columns.
    """
    replaced = np.zeros(rows.num_rows, dtype=bool)
    if not rows.num_rows or not claims.num_rows:
        return replaced
    start, end, *keys = columns
    row_keys, claim_keys = _numbered(rows, claims, keys)
    places, (low, high), (claim_low, claim_high) = _ranked((rows[start], rows[end]), (claims[start], claims[end]))
    low_of, high_of = row_keys * places + low, row_keys * places + high
    for seq in np.unique(claim_seqs):
        chosen = np.flatnonzero(claim_seqs == seq)
        order = chosen[np.argsort(claim_keys[chosen] * places + claim_low[chosen], kind="stable")]
        begins = claim_keys[order] * places + claim_low[order]
        ends = np.maximum.accumulate(claim_keys[order] * places + claim_high[order])
        # The latest end among the sessions that begin before a row's end; those of smaller keys end before this key's numbers.
        at = np.searchsorted(begins, high_of, side="left") - 1
        is_covered = (at >= 0) & (ends[at] > low_of)
        replaced |= is_covered & (seqs < seq)
    return replaced


def _numbered(rows: pa.Table, claims: pa.Table, keys: Sequence[str]) -> tuple[Numbers, Numbers]:
    """Return a number for each row's key, equal exactly for equal keys; null is a value like any other."""
    codes = np.zeros(rows.num_rows + claims.num_rows, dtype=np.int64)
    for name in keys:
        claim_values = claims[name].cast(rows.schema.field(name).type)
        both = pa.chunked_array(
            [*rows[name].chunks, *claim_values.chunks], rows.schema.field(name).type
        ).combine_chunks()
        column_codes = pc.dictionary_encode(both, null_encoding="encode").indices.to_numpy().astype(np.int64)
        codes = np.unique(codes * (column_codes.max() + 1) + column_codes, return_inverse=True)[1].astype(np.int64)
    return codes[: rows.num_rows], codes[rows.num_rows :]


def _ranked(
    rows: tuple[pa.ChunkedArray, pa.ChunkedArray], claims: tuple[pa.ChunkedArray, pa.ChunkedArray]
) -> tuple[int, tuple[Numbers, Numbers], tuple[Numbers, Numbers]]:
    """Return how many different instants there are, and the rank of each start and end among them."""
    values = [_micros(column) for column in (*rows, *claims)]
    instants, ranks = np.unique(np.concatenate(values), return_inverse=True)
    cuts = np.cumsum([len(part) for part in values])[:-1]
    low, high, claim_low, claim_high = (part.astype(np.int64) for part in np.split(ranks, cuts))
    return len(instants), (low, high), (claim_low, claim_high)


def _micros(column: pa.ChunkedArray) -> Numbers:
    micros: Numbers = pc.cast(pc.cast(column, pa.timestamp("us", "UTC")), pa.int64()).to_numpy().astype(np.int64)
    return micros
