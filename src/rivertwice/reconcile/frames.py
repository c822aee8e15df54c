"""Arrow tables to plain rows by address, and verdicts to the small frames that suites judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from rivertwice.core import from_ms, to_ms
from rivertwice.log import Part, name_parts
from rivertwice.reconcile.model import OLDER, Account, AmendedRow, LateRow, RowColumns, RowId, RowVerdict, Values
from rivertwice.timeline import key_texts

if TYPE_CHECKING:
    import pandas as pd

VERDICT_COLUMNS = (
    "pair",
    "window_start",
    "window_end",
    "verdict",
    "presence",
    "rows",
    "late",
    "dead",
    "unexplained",
    "late_share",
)


def addresses(table: pa.Table, shape: RowColumns) -> list[RowId]:
    """Return the address of every row, in the table's order."""
    starts = table.column("window_start").to_pylist()
    ends = table.column("window_end").to_pylist()
    texts = key_texts(table, shape.keys)
    return [RowId(to_ms(start), to_ms(end), text) for start, end, text in zip(starts, ends, texts, strict=True)]


def values(table: pa.Table, shape: RowColumns) -> list[Values]:
    """Return the value columns of every row, in the table's order."""
    return list(zip(*(table.column(name).to_pylist() for name in shape.columns), strict=True))


def unique_rows(table: pa.Table, shape: RowColumns) -> dict[RowId, Values]:
    """Return rows by address; a batch result has each address once, because it is grouped by it."""
    return dict(zip(addresses(table, shape), values(table, shape), strict=True))


_Record = TypeVar("_Record", LateRow, AmendedRow)


def late_by_row(records: Iterable[_Record]) -> dict[RowId, list[_Record]]:
    """Return late or amended rows grouped by the address of the result row they belong to."""
    grouped: dict[RowId, list[_Record]] = {}
    for row in records:
        grouped.setdefault(row.row, []).append(row)
    return grouped


def verdict_frame(verdicts: Iterable[RowVerdict], judged: Iterable[Mapping[str, Any]] = ()) -> pd.DataFrame:
    """Return the frame of the suite `verdicts`: a row for each pair, window, verdict and presence.

    `rows` counts result rows, except for those that need not be compared (`OLDER`); `late`, `dead` and `unexplained` are their
    sums, `late_share` the largest of any.

    Args:
        judged: of others, in such rows already (`Spread.rows`).
    """
    import pandas as pd

    alike: dict[tuple[Any, ...], list[Any]] = {}
    for verdict in verdicts:
        if verdict.presence != OLDER:
            where = (verdict.pair, verdict.row.start_ms, verdict.row.end_ms, verdict.verdict, verdict.presence)
            counts = (1, verdict.late, verdict.dead, verdict.unexplained, verdict.late_share)
            alike[where] = _added(alike.get(where), counts)
    for row in judged:
        where = tuple(row[name] for name in ("pair", "start_ms", "end_ms", "verdict", "presence"))
        counts = tuple(row[name] for name in ("rows", "late", "dead", "unexplained", "late_share"))
        alike[where] = _added(alike.get(where), counts)
    rows = [
        (pair, from_ms(start_ms), from_ms(end_ms), verdict, presence, *counts)
        for (pair, start_ms, end_ms, verdict, presence), counts in alike.items()
    ]
    return pd.DataFrame(rows, columns=list(VERDICT_COLUMNS))


def _added(before: Sequence[Any] | None, counts: Sequence[Any]) -> list[Any]:
    if before is None:
        return list(counts)
    sums = [one + other for one, other in zip(before[:-1], counts[:-1], strict=True)]
    return [*sums, max(before[-1], counts[-1])]


def balance_frame(total: Account, partitions: Mapping[Part, Account]) -> pd.DataFrame:
    """Return one row per partition and one for all of them, for the suite `balance`."""
    import pandas as pd

    named = {"all": total} | {name: partitions[part] for part, name in name_parts(partitions).items()}
    rows = [{"partition": name, **account.to_json()} for name, account in named.items()]
    return pd.DataFrame([{column: value for column, value in row.items() if column != "windows"} for row in rows])
