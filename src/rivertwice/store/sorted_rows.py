"""Rows in order, also where there are more of them than fit into memory: sorted runs on disk, merged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

RUN_ROWS = 500_000
RUN_BYTES = 128 << 20
BLOCK_ROWS = 16_384
"""A block of a run; as many rows of each run are in memory at once."""
_LAST = sys.maxsize


def can_sort(kind: pa.DataType) -> bool:
    """Say whether rows can be sorted by a column of a type: not by nested ones. Pure."""
    return not (types.is_nested(kind) or types.is_null(kind) or types.is_dictionary(kind))


def sorted_rows(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    first: str,
    scratch: Path,
    *,
    run_rows: int = RUN_ROWS,
    block_rows: int = BLOCK_ROWS,
    done: Callable[[int], None] = lambda _: None,
) -> Iterator[pa.Table]:
    """Yield rows ordered by a column, then by all others that can be sorted, in the schema's order; nulls are last.

    In memory are one run, a block of each run, and the rows that share a value of the first column.

    Args:
        batches: the rows.
        schema: of the rows.
        first: a column of timestamps or whole numbers.
        scratch: a folder for the runs, which the caller removes.
        run_rows: most rows of a run; it also ends at `RUN_BYTES`.
        block_rows: most rows of a block.
        done: is called with the number of rows that have been read.
    """
    names = [first, *(field.name for field in schema if field.name != first and can_sort(field.type))]
    order = [(name, "ascending") for name in names]
    held: list[pa.RecordBatch] = []
    runs: list[Path] = []
    rows = read = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        read += batch.num_rows
        done(read)
        if rows >= run_rows or sum(part.nbytes for part in held) >= RUN_BYTES:
            runs.append(_spill(_sorted(held, schema, order), scratch / f"run-{len(runs)}.arrow", block_rows))
            held, rows = [], 0
    if not runs:
        whole = _sorted(held, schema, order)
        yield from (whole.slice(start, block_rows) for start in range(0, whole.num_rows, block_rows))
        return
    if held:
        runs.append(_spill(_sorted(held, schema, order), scratch / f"run-{len(runs)}.arrow", block_rows))
    with ExitStack() as stack:
        opened = [stack.enter_context(pa.OSFile(str(path))) for path in runs]
        yield from _merge([_Run(pa.ipc.open_stream(file), first) for file in opened], schema, order)


def _sorted(batches: Sequence[pa.RecordBatch], schema: pa.Schema, order: list[tuple[str, str]]) -> pa.Table:
    return pa.Table.from_batches(batches, schema).sort_by(order)


def _spill(rows: pa.Table, path: Path, block_rows: int) -> Path:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=block_rows)
    return path


class _Run:
    """A sorted run of which the next rows are in memory."""

    def __init__(self, reader: pa.RecordBatchReader, first: str) -> None:
        self._reader = reader
        self._first = first
        self.is_read = False
        self.rows: pa.Table = reader.schema.empty_table()
        self.firsts: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def load(self) -> None:
        """Add a block to the rows in memory."""
        try:
            block = pa.Table.from_batches([self._reader.read_next_batch()])
        except StopIteration:
            self.is_read = True
            return
        self.rows = pa.concat_tables([self.rows, block])
        self.firsts = np.concatenate([self.firsts, as_numbers(block[self._first])])

    def take_before(self, bound: int | None) -> pa.Table:
        """Return the rows in memory whose first column is below a bound, all for None; they are not in memory any more."""
        count = len(self.firsts) if bound is None else int(np.searchsorted(self.firsts, bound))
        taken, self.rows, self.firsts = self.rows.slice(0, count), self.rows.slice(count), self.firsts[count:]
        return taken


def as_numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return a column of timestamps or whole numbers as numbers of the same order; nulls are last."""
    whole = (
        column.cast(pa.int64()) if types.is_integer(column.type) else column.cast(pa.timestamp("us", column.type.tz))
    )
    numbers: npt.NDArray[np.int64] = pc.fill_null(whole.cast(pa.int64()), _LAST).to_numpy()
    return numbers


def _merge(runs: list[_Run], schema: pa.Schema, order: list[tuple[str, str]]) -> Iterator[pa.Table]:
    while True:
        for run in runs:
            while not run.is_read and not len(run.firsts):
                run.load()
        # What a run has not shown yet is at or after its last row in memory: rows before the least of these are complete.
        ends = [int(run.firsts[-1]) for run in runs if not run.is_read]
        bound = min(ends) if ends else None
        block = pa.concat_tables([schema.empty_table(), *(run.take_before(bound) for run in runs)])
        if block.num_rows:
            yield block.sort_by(order)
        elif bound is None:
            return
        else:
            for run in runs:
                if not run.is_read and len(run.firsts) and int(run.firsts[-1]) == bound:
                    run.load()
