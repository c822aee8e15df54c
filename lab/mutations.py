"""Seeded mutations of a finished run: one row, one ledger field, one dead letter, one served row, or the transform itself.

Each changes what is stored so that it is no longer what the log gives; a reconcile must find every one of them (F37).
A mutation is chosen by its seed alone, and reports what it touched, so that a miss can be repeated and looked at.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from lab.faults.errors import LabError
from rivertwice.core.homes import PipelineHome
from rivertwice.definition.bundle import build_bundle, load_bundle
from rivertwice.storage.table import Table
from rivertwice.timeline.ledger import LedgerRow, from_table, to_table

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Mutation:
    """One change that was made.

    Attributes:
        kind: table and change, as `changelog/alter`.
        seed: chooses the same change on the same run again.
        detail: what was changed, from what to what.
        starts: window starts (text) of the result rows it touched; empty if it touched no single row.
    """

    kind: str
    seed: int
    detail: str
    starts: tuple[str, ...] = ()


def _rewrite(path: Any, change: Callable[[Rows], tuple[str, tuple[str, ...]]]) -> tuple[str, tuple[str, ...]]:
    table = Table(path).read()
    if table is None or table.num_rows == 0:
        message = f"{path} has no rows to change; stream more records first"
        raise LabError(message)
    rows = table.to_pylist()
    change_made = change(rows)
    Table(path).overwrite(pa.Table.from_pylist(rows, schema=table.schema))
    return change_made


def _start(row: dict[str, Any]) -> str:
    return str(row["window_start"])


# ---- results


def alter_value(home: PipelineHome, draw: random.Random) -> tuple[str, tuple[str, ...]]:
    """Change one number of one changelog row by one."""

    def change(rows: Rows) -> tuple[str, tuple[str, ...]]:
        row, column, by = draw.choice(rows), draw.choice(["n", "total", "top"]), draw.choice([-1, 1])
        row[column] += by
        return f"{column} of {row['k']} at {_start(row)} by {by:+d}", (_start(row),)

    return _rewrite(home.tables.changelog, change)


def swap_values(home: PipelineHome, draw: random.Random) -> tuple[str, tuple[str, ...]]:
    """Exchange the totals of two rows that differ in it, so that their sum stays the same."""

    def change(rows: Rows) -> tuple[str, tuple[str, ...]]:
        first = draw.choice(rows)
        second = draw.choice([row for row in rows if row["total"] != first["total"]])
        first["total"], second["total"] = second["total"], first["total"]
        return f"total of {first['k']} at {_start(first)} and {second['k']} at {_start(second)}", (
            _start(first),
            _start(second),
        )

    return _rewrite(home.tables.changelog, change)


def drop_row(home: PipelineHome, draw: random.Random) -> tuple[str, tuple[str, ...]]:
    """Delete one changelog row."""

    def change(rows: Rows) -> tuple[str, tuple[str, ...]]:
        row = rows.pop(draw.randrange(len(rows)))
        return f"{row['k']} at {_start(row)}", (_start(row),)

    return _rewrite(home.tables.changelog, change)


def repeat_row(home: PipelineHome, draw: random.Random) -> tuple[str, tuple[str, ...]]:
    """Append one changelog row once more."""

    def change(rows: Rows) -> tuple[str, tuple[str, ...]]:
        row = draw.choice(rows)
        rows.append(dict(row))
        return f"{row['k']} at {_start(row)}", (_start(row),)

    return _rewrite(home.tables.changelog, change)


def invent_row(home: PipelineHome, draw: random.Random) -> tuple[str, tuple[str, ...]]:
    """Append a changelog row of a key that never existed."""

    def change(rows: Rows) -> tuple[str, tuple[str, ...]]:
        row = {**draw.choice(rows), "k": f"ghost{draw.randrange(1000)}"}
        rows.append(row)
        return f"{row['k']} at {_start(row)}", (_start(row),)

    return _rewrite(home.tables.changelog, change)


def rename_key(home: PipelineHome, draw: random.Random) -> tuple[str, tuple[str, ...]]:
    """Give one changelog row another key."""

    def change(rows: Rows) -> tuple[str, tuple[str, ...]]:
        row = draw.choice(rows)
        was, row["k"] = row["k"], row["k"] + "x"
        return f"{was} at {_start(row)} to {row['k']}", (_start(row),)

    return _rewrite(home.tables.changelog, change)


def shift_window(home: PipelineHome, draw: random.Random) -> tuple[str, tuple[str, ...]]:
    """Move one changelog row to a neighbouring window, or by an hour, as a wrong time zone does."""

    def change(rows: Rows) -> tuple[str, tuple[str, ...]]:
        row, by = draw.choice(rows), draw.choice([-3600, -10, 10, 3600])
        before = _start(row)
        row["window_start"] += timedelta(seconds=by)
        row["window_end"] += timedelta(seconds=by)
        return f"{row['k']} from {before} by {by:+d} s", (before, _start(row))

    return _rewrite(home.tables.changelog, change)


def move_batch(home: PipelineHome, draw: random.Random) -> tuple[str, tuple[str, ...]]:
    """Stamp one changelog row with another batch."""

    def change(rows: Rows) -> tuple[str, tuple[str, ...]]:
        row, by = draw.choice(rows), draw.choice([-1, 1])
        row["_batch"] += by
        return f"{row['k']} at {_start(row)} by {by:+d}", (_start(row),)

    return _rewrite(home.tables.changelog, change)


# ---- the ledger


def _ledger(home: PipelineHome, change: Callable[[list[LedgerRow]], str]) -> tuple[str, tuple[str, ...]]:
    table = Table(home.tables.ledger).read()
    if table is None:
        message = f"{home.tables.ledger} does not exist; stream some records first"
        raise LabError(message)
    rows = from_table(table)
    change_made = change(rows)
    Table(home.tables.ledger).overwrite(to_table(rows))
    return change_made, ()


def _field(name: str, by: Callable[[random.Random], int]) -> Callable[..., tuple[str, tuple[str, ...]]]:
    def mutate(home: PipelineHome, draw: random.Random) -> tuple[str, tuple[str, ...]]:
        def change(rows: list[LedgerRow]) -> str:
            chosen = [number for number, row in enumerate(rows) if getattr(row, name) is not None]
            at, step = draw.choice(chosen), by(draw)
            rows[at] = replace(rows[at], **{name: getattr(rows[at], name) + step})
            return f"{name} of batch {rows[at].batch} by {step:+d}"

        return _ledger(home, change)

    return mutate


def shift_boundary(home: PipelineHome, draw: random.Random) -> tuple[str, tuple[str, ...]]:
    """Move one offset of one batch's range by one, at its start or its end."""

    def change(rows: list[LedgerRow]) -> str:
        at, side, by = draw.randrange(len(rows)), draw.choice(["start_offsets", "end_offsets"]), draw.choice([-1, 1])
        offsets = {topic: dict(parts) for topic, parts in getattr(rows[at], side).items()}
        topic = next(iter(offsets))
        partition = draw.choice(sorted(offsets[topic]))
        offsets[topic][partition] += by
        changed: dict[str, Any] = {side: offsets}
        rows[at] = replace(rows[at], **changed)
        return f"{side} of batch {rows[at].batch}, partition {partition}, by {by:+d}"

    return _ledger(home, change)


def change_digest(home: PipelineHome, draw: random.Random) -> tuple[str, tuple[str, ...]]:
    """Give one batch that emitted rows the digest of other rows."""

    def change(rows: list[LedgerRow]) -> str:
        at = draw.choice([number for number, row in enumerate(rows) if row.emitted])
        head, _, tail = rows[at].digest.rpartition(":")
        swapped = ("0" if tail[0] != "0" else "1") + tail[1:]
        rows[at] = replace(rows[at], digest=f"{head}:{swapped}")
        return f"digest of batch {rows[at].batch}"

    return _ledger(home, change)


def change_text(home: PipelineHome, draw: random.Random) -> tuple[str, tuple[str, ...]]:
    """Change the watermark inside the verbatim offsets of one batch, by which a savepoint would be replayed."""

    def change(rows: list[LedgerRow]) -> str:
        at = draw.randrange(1, len(rows))
        version, meta, *sources = rows[at].offsets_text.split("\n")
        values = json.loads(meta)
        values["batchWatermarkMs"] += 1000
        rows[at] = replace(rows[at], offsets_text="\n".join([version, json.dumps(values), *sources]))
        return f"offsets_text of batch {rows[at].batch}"

    return _ledger(home, change)


# ---- dead letters, served, transform


def drop_dead(home: PipelineHome, draw: random.Random) -> tuple[str, tuple[str, ...]]:
    """Delete one dead letter."""

    def change(rows: Rows) -> tuple[str, tuple[str, ...]]:
        row = rows.pop(draw.randrange(len(rows)))
        return f"partition {row['partition']}, offset {row['offset']}", ()

    return _rewrite(home.tables.dead_letters, change)


def invent_dead(home: PipelineHome, draw: random.Random) -> tuple[str, tuple[str, ...]]:
    """Add a dead letter for a record that was accepted."""

    def change(rows: Rows) -> tuple[str, tuple[str, ...]]:
        dead = {(row["partition"], row["offset"]) for row in rows}
        row = dict(draw.choice(rows))
        row["offset"] = next(o for o in range(row["offset"] + 1, 1 << 40) if (row["partition"], o) not in dead)
        rows.append(row)
        return f"partition {row['partition']}, offset {row['offset']}", ()

    return _rewrite(home.tables.dead_letters, change)


def change_reason(home: PipelineHome, draw: random.Random) -> tuple[str, tuple[str, ...]]:
    """Give one dead letter another reason."""

    def change(rows: Rows) -> tuple[str, tuple[str, ...]]:
        row = draw.choice(rows)
        was, row["reason"] = row["reason"], "rule" if row["reason"] != "rule" else "json"
        return f"partition {row['partition']}, offset {row['offset']}: {was} to {row['reason']}", ()

    return _rewrite(home.tables.dead_letters, change)


def alter_served(home: PipelineHome, draw: random.Random) -> tuple[str, tuple[str, ...]]:
    """Change, delete or repeat one row of the served table; the stamp in its commit is kept."""
    stamp = Table(home.tables.served).commits("served")
    table = Table(home.tables.served).read()
    if table is None or not stamp:
        message = f"{home.tables.served} was never built; rebuild it first"
        raise LabError(message)
    rows = table.to_pylist()
    at, how = draw.randrange(len(rows)), draw.choice(["alter", "delete", "repeat"])
    change_made = f"{how} {rows[at]['k']} at {_start(rows[at])}"
    starts = (_start(rows[at]),)
    if how == "alter":
        rows[at]["total"] += 1
    elif how == "delete":
        del rows[at]
    else:
        rows.append(dict(rows[at]))
    Table(home.tables.served).overwrite(
        pa.Table.from_pylist(rows, schema=table.schema), metadata={"served": stamp[-1][1]}
    )
    return change_made, starts


TRANSFORMS = (
    ("transform.sql", "sum(amount)", "sum(amount + 1)"),
    ("transform.sql", "max(amount)", "min(amount)"),
    ("transform.sql", "count(*)", "count(*) + 1"),
    ("transform.sql", "sum(amount)", "sum(abs(amount - 500))"),
    ("rows.sql", "amount >= 0", "amount >= -1000000"),
    ("rows.sql", "amount >= 0", "amount > 50"),
    ("pipeline.yaml", "watermark: 20 seconds", "watermark: 40 seconds"),
    ("pipeline.yaml", "max: 1000000", "max: 500"),
)
"""Definitions that give other results on the lab's events: file, text, other text."""


def change_transform(home: PipelineHome, draw: random.Random) -> tuple[str, tuple[str, ...]]:
    """Let the ledger name another definition than the one that ran, for all batches."""
    name, text, replacement = draw.choice(TRANSFORMS)

    def change(rows: list[LedgerRow]) -> str:
        bundle = other_bundle(home, rows[-1].bundle, name, text, replacement)
        rows[:] = [replace(row, bundle=bundle) for row in rows]
        return f"{text} to {replacement} in {name}"

    return _ledger(home, change)


def other_bundle(home: PipelineHome, bundle: str, name: str, text: str, replacement: str) -> str:
    """Save a bundle in which one text of one file is another; return its id.

    Raises:
        LabError: the file does not hold the text.
    """
    files = dict(load_bundle(home.bundles, bundle).files)
    if text.encode() not in files[name]:
        message = f"{name} of {bundle} does not hold {text!r}; correct the table of mutations"
        raise LabError(message)
    folder = home.scratch / f"mutant-{random.Random(text + replacement).randrange(1 << 32):08x}" / home.root.name  # noqa: S311
    folder.mkdir(parents=True, exist_ok=True)
    for path, data in files.items():
        content = data.replace(text.encode(), replacement.encode()) if path == name else data
        Path(folder / path).write_bytes(content)
    built = build_bundle(folder)
    built.save(home.bundles)
    return built.id


def _step(draw: random.Random) -> int:
    return draw.choice([-1, 1])


def _seconds(draw: random.Random) -> int:
    return draw.choice([-60_000, -1000, -1, 1, 1000, 60_000])


MUTATIONS: dict[str, Callable[[PipelineHome, random.Random], tuple[str, tuple[str, ...]]]] = {
    "changelog/alter": alter_value,
    "changelog/swap": swap_values,
    "changelog/drop": drop_row,
    "changelog/repeat": repeat_row,
    "changelog/invent": invent_row,
    "changelog/rename": rename_key,
    "changelog/shift": shift_window,
    "changelog/batch": move_batch,
    "ledger/read": _field("read", _step),
    "ledger/bad": _field("bad", _step),
    "ledger/accepted": _field("accepted", _step),
    "ledger/emitted": _field("emitted", _step),
    "ledger/watermark": _field("batch_watermark_ms", _seconds),
    "ledger/min_event": _field("min_event_ms", _seconds),
    "ledger/max_event": _field("max_event_ms", _seconds),
    "ledger/boundary": shift_boundary,
    "ledger/digest": change_digest,
    "ledger/offsets_text": change_text,
    "dead/drop": drop_dead,
    "dead/invent": invent_dead,
    "dead/reason": change_reason,
    "served": alter_served,
    "transform": change_transform,
}


def mutate(home: PipelineHome, kind: str, seed: int) -> Mutation:
    """Make one mutation of a finished run, in place.

    Raises:
        LabError: the run has nothing of that kind to change.
    """
    change_made, starts = MUTATIONS[kind](home, random.Random(f"{kind} {seed}"))  # noqa: S311 (test data)
    return Mutation(kind, seed, change_made, starts)
