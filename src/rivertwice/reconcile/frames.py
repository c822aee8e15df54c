"""Arrow tables to plain rows by address, and verdicts to the small frames that suites judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from rivertwice.instants import from_ms, to_ms
from rivertwice.log.addresses import Part, name_parts
from rivertwice.reconcile.balance import Account
from rivertwice.reconcile.model import OLDER, AmendedRow, LateRow, RowColumns, RowId, Values, Verdict
from rivertwice.timeline.keys import key_texts

if TYPE_CHECKING:
    import pandas as pd

VERDICT_COLUMNS = (
    "pair",
    "window_start",
    "window_end",
    "key",
    "presence",
    "verdict",
    "reason",
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


def verdict_frame(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """Return one row per verdict, for the suite `verdicts`; none if the row need not be compared (`OLDER`)."""
    import pandas as pd

    rows: list[tuple[Any, ...]] = [
        (
            verdict.pair,
            from_ms(verdict.row.start_ms),
            from_ms(verdict.row.end_ms),
            verdict.row.key,
            verdict.presence,
            verdict.verdict,
            verdict.reason,
            verdict.late,
            verdict.dead,
            verdict.unexplained,
            verdict.late_share,
        )
        for verdict in verdicts
        if verdict.presence != OLDER
    ]
    return pd.DataFrame(rows, columns=list(VERDICT_COLUMNS))


def balance_frame(total: Account, partitions: Mapping[Part, Account]) -> pd.DataFrame:
    """Return one row per partition and one for all of them, for the suite `balance`."""
    import pandas as pd

    named = {"all": total} | {name: partitions[part] for part, name in name_parts(partitions).items()}
    rows = [{"partition": name, **account.to_json()} for name, account in named.items()]
    return pd.DataFrame([{column: value for column, value in row.items() if column != "windows"} for row in rows])
