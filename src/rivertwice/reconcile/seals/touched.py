"""Rows of settled windows for which late records came since the seal. Pure.

What the stream emitted of such a row was proved to be right, and a late record names the row that it is missing from. So the
row is LATE by exactly its late records, and its records need not be read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rivertwice.core import to_ms
from rivertwice.reconcile.evidence import say_counts
from rivertwice.reconcile.model import SERVED, STREAM, LateRow, RowId, RowVerdict
from rivertwice.timeline import FirstLoad, Publication, Verdict, rows_of

StoredVerdict = Mapping[str, Any]


@dataclass(frozen=True)
class SettledRows:
    """What is known of the windows that late records came for.

    Attributes:
        verdicts: pair to address to the verdict that is stored.
        emitted: address to the records that the changelog's row counts.
        served: the same of the served row; None: there is no served table.
        winners: window start to the publication that serves it.
        load: the first load by batch of the path, whose windows have no verdict of the pair stream; None: there was none.
    """

    verdicts: Mapping[str, Mapping[RowId, StoredVerdict]]
    emitted: Mapping[RowId, int]
    served: Mapping[RowId, int] | None
    winners: Mapping[int, Publication] = field(default_factory=dict)
    semantics: str = ""
    load: FirstLoad | None = None

    def is_loaded(self, row: RowId) -> bool:
        """Say whether a row's window is loaded by batch."""
        return self.load is not None and self.load.has(row.start_ms)

    def agreed(self, pair: str, row: RowId) -> bool:
        """Say whether a row was among the agreeing rows of its window, which are stored as one."""
        rows = self.emitted if pair == STREAM else self.served or {}
        return row in rows and row not in self.verdicts.get(pair, {})

    def incomparable(self, pair: str, row: RowId) -> StoredVerdict | None:
        """Return the verdict of a window's rows if they cannot be compared, whatever comes."""
        return next(
            (
                stored
                for address, stored in self.verdicts.get(pair, {}).items()
                if address[:2] == row[:2] and stored["verdict"] == Verdict.NOT_COMPARABLE
            ),
            None,
        )


@dataclass(frozen=True)
class TouchedRows:
    """The verdicts of rows for which late records came, and the records that each depends on beside those of before.

    Attributes:
        agreed: those of them that were stored among the agreeing rows of their windows, by pair and address.
        remaining: what is stored again for such windows: (the stored verdict of all agreeing rows, how many still do).
    """

    verdicts: Sequence[RowVerdict] = ()
    late: Mapping[tuple[str, RowId], Sequence[LateRow]] = field(default_factory=dict)
    agreed: Sequence[tuple[str, RowId]] = ()
    remaining: Sequence[tuple[StoredVerdict, int]] = ()


def by_address(rows: Iterable[StoredVerdict]) -> dict[str, dict[RowId, StoredVerdict]]:
    """Return stored verdicts by pair and address."""
    sorted_rows: dict[str, dict[RowId, StoredVerdict]] = {STREAM: {}, SERVED: {}}
    for row in rows:
        address = RowId(to_ms(row["window_start"]), to_ms(row["window_end"]), row["key"])
        sorted_rows.setdefault(row["pair"], {})[address] = row
    return sorted_rows


def judge_touched(late: Mapping[RowId, Sequence[LateRow]], settled: SettledRows) -> TouchedRows:
    """Return the verdicts of settled rows after further late records."""
    verdicts: list[RowVerdict] = []
    causes: dict[tuple[str, RowId], Sequence[LateRow]] = {}
    for row, records in sorted(late.items()):
        if settled.is_loaded(row):
            continue
        verdict = _judge_stream(row, len(records), settled)
        verdicts.append(verdict)
        causes[STREAM, row] = records if verdict.verdict == Verdict.LATE else ()
    for row, records in sorted(late.items()) if settled.served is not None else ():
        publication = settled.winners.get(row.start_ms)
        since = records if publication is None else _after(publication, records)
        if not since:
            continue
        verdict = _judge_served(row, len(since), publication, settled)
        verdicts.append(verdict)
        causes[SERVED, row] = since if verdict.verdict == Verdict.LATE else ()
    agreed = [(verdict.pair, verdict.row) for verdict in verdicts if settled.agreed(verdict.pair, verdict.row)]
    return TouchedRows(verdicts, causes, agreed, _remaining(agreed, settled))


def _remaining(agreed: Sequence[tuple[str, RowId]], settled: SettledRows) -> list[tuple[StoredVerdict, int]]:
    gone = Counter((pair, row.start_ms, row.end_ms) for pair, row in agreed)
    return [
        (stored, rows_of(stored) - gone[pair, address.start_ms, address.end_ms])
        for pair, rows in settled.verdicts.items()
        for address, stored in rows.items()
        if stored["verdict"] == Verdict.AGREES
        and stored["key"] is None
        and gone[pair, address.start_ms, address.end_ms]
    ]


def _after(publication: Publication, records: Sequence[LateRow]) -> list[LateRow]:
    return [
        record
        for record in records
        if record.offset >= publication.as_of.get(record.topic, {}).get(record.partition, 0)
    ]


def _judge_stream(row: RowId, further: int, settled: SettledRows) -> RowVerdict:
    stored = settled.verdicts[STREAM].get(row)
    late = further + (0 if stored is None else stored["late"])
    dead = _dead(stored)
    total = settled.emitted.get(row, 0) + late + dead
    incomparable = settled.incomparable(STREAM, row)
    if incomparable is not None:
        return _verdict(STREAM, row, Verdict.NOT_COMPARABLE, incomparable["reason"], "not compared", late, 0, total)
    presence = "both" if row in settled.emitted else "truth only"
    reason = say_counts(late, dead, total, "came after the window closed")
    return _verdict(STREAM, row, Verdict.LATE, reason, presence, late, dead, total)


def _judge_served(row: RowId, further: int, publication: Publication | None, settled: SettledRows) -> RowVerdict:
    assert settled.served is not None, "the caller asked"
    stored = settled.verdicts[SERVED].get(row)
    late = further + (stored["late"] if stored is not None and stored["verdict"] == Verdict.LATE else 0)
    dead = _dead(stored)
    total = settled.served.get(row, 0) + late + dead
    incomparable = settled.incomparable(SERVED, row) if publication is None else None
    if incomparable is not None:
        return _verdict(SERVED, row, Verdict.NOT_COMPARABLE, incomparable["reason"], "not compared", 0, 0, total)
    if publication is not None and publication.semantics != settled.semantics:
        reason = "mixed: a publication of an older definition serves the window"
        return _verdict(SERVED, row, Verdict.NOT_COMPARABLE, reason, "not compared", 0, 0, total)
    presence = "both" if row in settled.served else "truth only"
    phrase = f"came too late{'' if publication is None else ' after the newest publication'}"
    return _verdict(SERVED, row, Verdict.LATE, say_counts(late, dead, total, phrase), presence, late, dead, total)


def _dead(stored: StoredVerdict | None) -> int:
    return 0 if stored is None or stored["verdict"] != Verdict.LATE else int(stored["dead"])


def _verdict(
    pair: str, row: RowId, verdict: str, reason: str, presence: str, late: int, dead: int, total: int
) -> RowVerdict:
    share = late / total if total else 0.0
    return RowVerdict(pair, row, verdict, reason, presence, late=late, dead=dead, late_share=share)
