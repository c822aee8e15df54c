"""Which rows a closed window serves: a pure choice over frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# Which sessions a newer publication replaces: those of the same key that overlap one of its sessions. Pure, over arrays.
#
# Fixed windows are replaced by their start. A session is made by its records: a recompute may begin it earlier, end it later, or
# make one of two. So what was served of the same records is within it, wherever that started. Rows of one publication never
# replace each other.

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


FORMAT = 1
WITHDRAWN = "_withdrawn"
"""Column of corrections of sessions: the row withdraws what is served of its key and stretch, and is not served itself."""

Milliseconds = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Publication:
    """One publication of the sequence.

    Attributes:
        seq: its place in the sequence; the larger is the newer.
        ranges: windows it covers, as half-open ranges of epoch milliseconds. For sessions: the stretches in which it changes
            rows; its own sessions decide what it replaces there (`session_cover`).
        semantics: semantics hash of the bundle that computed them.
        as_of: topic -> partition -> offset; only records below were counted.
        amendments: decisions about dead letters up to this one were applied; 0: none.
        rows: how many rows its backfill computed; None: published by a version that did not store it.
    """

    seq: int
    backfill: str
    ranges: tuple[tuple[int, int], ...]
    semantics: str
    bundle: str
    as_of: Mapping[str, Mapping[int, int]]
    amendments: int = 0
    sessions: bool = False
    rows: int | None = None

    def to_payload(self) -> dict[str, Any]:
        """Return the payload of the sequence's row."""
        payload: dict[str, Any] = {
            "backfill": self.backfill,
            "ranges": [list(pair) for pair in self.ranges],
            "semantics": self.semantics,
            "bundle": self.bundle,
            "as_of": {topic: {str(p): offset for p, offset in parts.items()} for topic, parts in self.as_of.items()},
            "amendments": self.amendments,
        }
        payload |= {} if self.rows is None else {"rows": self.rows}
        return {**payload, "sessions": True} if self.sessions else payload

    @classmethod
    def from_payload(cls, seq: int, payload: Mapping[str, Any]) -> Publication:
        """Read the payload of the sequence's row."""
        return cls(
            seq=seq,
            backfill=payload["backfill"],
            ranges=tuple((int(start), int(end)) for start, end in payload["ranges"]),
            semantics=payload["semantics"],
            bundle=payload["bundle"],
            as_of={t: {int(p): int(o) for p, o in parts.items()} for t, parts in payload["as_of"].items()},
            amendments=int(payload.get("amendments", 0)),
            sessions=bool(payload.get("sessions", False)),
            rows=None if payload.get("rows") is None else int(payload["rows"]),
        )


def to_epoch_ms(column: pa.ChunkedArray) -> Milliseconds:
    """Return a timestamp column as epoch milliseconds; no value may be null."""
    values = pc.cast(pc.cast(column, pa.timestamp("ms", "UTC"), safe=False), pa.int64())
    milliseconds: Milliseconds = values.to_numpy().astype(np.int64, copy=False)
    return milliseconds


def select_winners(
    starts_ms: Milliseconds, publications: Sequence[Publication], semantics: AbstractSet[str]
) -> npt.NDArray[np.int64]:
    """Return, per window start, the `seq` of the publication it serves, or -1 for the head's path.

    The newest publication that covers the window wins; one with semantics that the head's path lacks does not count.
    """
    order = np.argsort(starts_ms, kind="stable")
    ordered = starts_ms[order]
    winners = np.full(len(starts_ms), -1, dtype=np.int64)
    for publication in sorted(publications, key=lambda entry: entry.seq):
        if publication.semantics not in semantics:
            continue
        for start, end in publication.ranges:
            low, high = np.searchsorted(ordered, [start, end])
            winners[order[low:high]] = publication.seq
    return winners


def select_serving(publications: Sequence[Publication], semantics: AbstractSet[str]) -> list[Publication]:
    """Return the publications that a window may serve rows of: of these semantics, and not wholly covered by newer ones."""
    newest_first = sorted(
        (publication for publication in publications if publication.semantics in semantics),
        key=lambda publication: publication.seq,
        reverse=True,
    )
    serving: list[Publication] = []
    covers: list[tuple[int, int]] = []
    for candidate in newest_first:
        if candidate.sessions or any(not _is_covered(pair, covers) for pair in candidate.ranges):
            serving.append(candidate)
        covers = sorted([*covers, *candidate.ranges])
    return serving


def _is_covered(pair: tuple[int, int], covers: Sequence[tuple[int, int]]) -> bool:
    at, end = pair
    for low, high in covers:  # sorted by their starts
        if low > at:
            break
        at = max(at, high)
    return at >= end


def select_served(
    stream: pa.Table,
    corrections: pa.Table | None,
    publications: Sequence[Publication],
    *,
    semantics: AbstractSet[str],
    closed_ms: int,
    start_column: str = "window_start",
    end_column: str = "window_end",
    session_keys: Sequence[str] | None = None,
    claims: pa.Table | None = None,
) -> pa.Table:
    """Choose what every closed window serves.

    A window covered by a publication of the path's semantics serves only the corrections of the newest such publication:
    keys that are not in them vanish, and a window that only had late rows appears. Every other window serves the head
    path's rows. A session is covered by every newer one of its key that overlaps it.

    Args:
        stream: changelog rows on the head's path: `_timeline`, `_batch` and the result columns.
        corrections: `_backfill` and the result columns; rows that are not published are ignored.
        publications: the sequence's publications, in any order.
        semantics: semantics hashes of the head's path (`lineage.path_semantics`).
        closed_ms: watermark of the last committed batch on the head's path.
        end_column: end of a row's window, exclusive.
        session_keys: key columns, if windows are sessions.
        claims: for sessions, all corrections, if `corrections` has only those that may be served; None: `corrections`.

    Returns:
        The served rows, sorted by their window and then by every other result column.
    """
    results = [name for name in stream.schema.names if not name.startswith("_")]
    schema = pa.schema(
        [
            pa.field("_format", pa.int32()),
            *(stream.schema.field(name) for name in results),
            pa.field("_status", pa.string()),
            pa.field("_timeline", pa.string()),
            pa.field("_batch", pa.int64()),
            pa.field("_backfill", pa.string()),
        ]
    )
    counting = [entry for entry in publications if entry.semantics in semantics]
    if session_keys is None:
        covered = _covered_by_windows(counting, semantics, start_column)
    else:
        claim_rows = corrections if claims is None else claims
        covered = _covered_by_sessions(claim_rows, counting, (start_column, end_column, *session_keys))
    streamed = _closed(stream, end_column, closed_ms)
    is_served = ~covered(streamed, np.full(streamed.num_rows, STREAM_SEQ, dtype=np.int64))
    parts = [_stamped(streamed.filter(pa.array(is_served)), "stream", schema)]
    if corrections is not None and corrections.num_rows:
        corrected = _closed(corrections, end_column, closed_ms)
        own = _seqs_of(corrected, counting)
        is_served = (own >= 0) & ~covered(corrected, own) & ~withdrawn_rows(corrected)
        parts.append(_stamped(corrected.filter(pa.array(is_served)), "published", schema))
    served = pa.concat_tables(parts).combine_chunks()
    rest = [name for name in results if name not in (start_column, end_column)]
    order = [start_column, end_column, *rest, "_timeline", "_batch", "_backfill"]
    return served.sort_by([(name, "ascending") for name in order])


_Covered = Callable[[pa.Table, Milliseconds], npt.NDArray[np.bool_]]


def _covered_by_windows(counting: Sequence[Publication], semantics: AbstractSet[str], start_column: str) -> _Covered:
    """Return a function of rows and their publications' numbers: whether another publication serves their window."""
    return lambda rows, own: select_winners(to_epoch_ms(rows[start_column]), counting, semantics) != own


def _covered_by_sessions(
    claim_rows: pa.Table | None, counting: Sequence[Publication], columns: Sequence[str]
) -> _Covered:
    """Return a function of rows and their publications' numbers: whether a newer session covers them."""
    if claim_rows is None or not claim_rows.num_rows:
        return lambda rows, _: np.zeros(rows.num_rows, dtype=bool)
    seqs = _seqs_of(claim_rows, counting)
    claims = claim_rows.select(list(columns)).filter(pa.array(seqs >= 0))
    return lambda rows, own: select_replaced(rows, own, claims, seqs[seqs >= 0], columns)


def _seqs_of(corrections: pa.Table, counting: Sequence[Publication]) -> Milliseconds:
    """Return the publication of each row; -2 if none of `counting` published it."""
    seq_of = {entry.backfill: entry.seq for entry in sorted(counting, key=lambda entry: entry.seq)}
    return np.array([seq_of.get(name, -2) for name in corrections["_backfill"].to_pylist()], dtype=np.int64)


def withdrawn_rows(corrections: pa.Table) -> npt.NDArray[np.bool_]:
    """Return for each row whether it only withdraws what is served of its key and stretch."""
    if WITHDRAWN not in corrections.schema.names:
        return np.zeros(corrections.num_rows, dtype=bool)
    return np.array(corrections[WITHDRAWN].to_pylist(), dtype=bool)


def _closed(rows: pa.Table, end_column: str, closed_ms: int) -> pa.Table:
    return rows.filter(pa.array(to_epoch_ms(rows[end_column]) <= closed_ms))


def _stamped(rows: pa.Table, status: str, schema: pa.Schema) -> pa.Table:
    count = rows.num_rows
    columns: list[Any] = []
    for field in schema:
        if field.name == "_format":
            columns.append(pa.array([FORMAT] * count, pa.int32()))
        elif field.name == "_status":
            columns.append(pa.array([status] * count, pa.string()))
        elif field.name in rows.schema.names:
            columns.append(rows[field.name].cast(field.type))
        else:
            columns.append(pa.nulls(count, field.type))
    return pa.table(columns, schema=schema)
