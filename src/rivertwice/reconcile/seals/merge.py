"""Put what a run judged together with what a seal has of the settled windows. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rivertwice.log import Part
from rivertwice.reconcile.model import PairCount, RowId, RowVerdict
from rivertwice.reconcile.seals.model import Seal, SealedPart
from rivertwice.reconcile.seals.scope import Scope
from rivertwice.reconcile.seals.touched import StoredVerdict
from rivertwice.timeline import Verdict, rows_of

Counts = Mapping[str, Mapping[str, int]]


def plus(sealed: Mapping[Part, int], own: Mapping[Part, int]) -> dict[Part, int]:
    """Return the sum by partition."""
    return {part: sealed.get(part, 0) + own.get(part, 0) for part in sorted({*sealed, *own})}


def sealed_pairs(seal: Seal) -> list[PairCount]:
    """Return the pairs of the settled windows, counted as pairs of one window that ends when they are settled."""
    return [
        PairCount(part, seal.settled_ms, late, rows)
        for part, account in seal.parts.items()
        for late, rows in ((False, account.emitted), (True, account.late))
        if rows
    ]


def replaced_verdicts(
    stored: Mapping[str, Mapping[RowId, StoredVerdict]],
    scope: Scope,
    touched: Sequence[RowVerdict],
    agreed: Iterable[tuple[str, RowId]] = (),
) -> Counter[tuple[str, str]]:
    """Return, by (pair, verdict), the rows of settled windows whose verdict no longer holds: judged again, or touched.

    Args:
        stored: verdicts by pair and address; one that stands for all agreeing rows of a window has no key.
        touched: verdicts of rows for which late records came.
        agreed: those of them that were among the agreeing rows of their windows.
    """
    named = {(verdict.pair, verdict.row) for verdict in touched}
    gone: Counter[tuple[str, str]] = Counter(
        (pair, Verdict.AGREES) for pair, address in agreed if not scope.contains(address.start_ms)
    )
    for pair, rows in stored.items():
        for address, row in rows.items():
            is_again = scope.contains(address.start_ms) or (pair, address) in named
            if address.end_ms <= scope.settled_ms and is_again:
                gone[pair, row["verdict"]] += rows_of(row)
    return gone


def merge_counts(
    sealed: Counts,
    own: Iterable[tuple[str, str]] | Mapping[tuple[str, str], int],
    replaced: Iterable[tuple[str, str]] | Mapping[tuple[str, str], int],
) -> dict[str, dict[str, int]]:
    """Return the counts of all rows: the sealed ones, without those replaced, and the run's own."""
    totals = Counter({(pair, verdict): rows for pair, by in sealed.items() for verdict, rows in by.items()})
    totals.update(own)
    totals.subtract(replaced)
    pairs = sorted({pair for pair, _ in totals}, reverse=True)
    return {pair: {verdict: totals[pair, verdict] for verdict in Verdict.ALL} for pair in pairs}


def settled_parts(
    read: Mapping[Part, int],
    accepted: Mapping[Part, int],
    dead: Mapping[Part, int],
    pairs: Iterable[PairCount],
    settled_ms: int,
) -> dict[Part, SealedPart]:
    """Return the balance of a new seal.

    Args:
        read: records of all batches by partition.
        pairs: of all windows; those of the seal before count as pairs of one window.
        settled_ms: windows that end at or before it are settled.
    """
    emitted: Counter[Part] = Counter()
    late: Counter[Part] = Counter()
    for pair in pairs:
        if pair.end_ms <= settled_ms:
            (late if pair.late else emitted)[pair.part] += pair.rows
    return {
        part: SealedPart(read[part], accepted.get(part, 0), dead.get(part, 0), emitted[part], late[part])
        for part in sorted(read)
    }
