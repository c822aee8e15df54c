"""The rows that tables hold of one address, as the decisions about it need them: emitted, published, judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from rivertwice.backfill.store import load_plan
from rivertwice.config import PipelineHome, Place
from rivertwice.errors import RequestError
from rivertwice.explain.find import WindowRows
from rivertwice.explain.history import Closing, EmittedRow, HeadMove, PublishedRow, Values
from rivertwice.explain.kinds import facts_of
from rivertwice.explain.model import Address, Emitted, Published, Verdict
from rivertwice.explain.verdicts import judge_age
from rivertwice.instants import to_ms
from rivertwice.pipeline.definition import Definition
from rivertwice.reconcile.model import RowColumns
from rivertwice.results.kinds import SERVED
from rivertwice.timeline.committed import CommittedBatches, every_batch
from rivertwice.timeline.judgements import Chain, read_verdicts
from rivertwice.timeline.keys import key_text
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import find_move_off, head_path
from rivertwice.timeline.sequence import HEAD, Entry
from rivertwice.timeline.served import publications_of
from rivertwice.timeline.serving import WITHDRAWN, Publication


@dataclass(frozen=True)
class PipelineState:
    """What is read once of a pipeline.

    Attributes:
        home: of the version whose rows are explained.
        served: the table of its served rows.
        definition: what the head runs; shape: how its rows are compared.
        committed: the batches of the head's path.
        entries: the sequence.
        semantics: of the definitions whose publications serve.
        is_current: whether the served table shows all that is committed.
    """

    home: PipelineHome
    served: Place
    definition: Definition
    shape: RowColumns
    committed: CommittedBatches
    entries: list[Entry]
    semantics: frozenset[str]
    is_current: bool

    def values(self, row: Mapping[str, Any]) -> Values:
        """Return the value columns of a row."""
        return {name: row[name] for name in self.shape.columns}

    def differing(self, left: Values, right: Values) -> tuple[str, ...]:
        """Return the columns in which two rows differ, by the definition's tolerances."""
        one, other = (tuple(row[name] for name in self.shape.columns) for row in (left, right))
        return tuple(self.shape.differences(one, other))


def first_row(rows: pa.Table | None) -> dict[str, Any] | None:
    """Return the first row of a table; None if there is none."""
    found: list[dict[str, Any]] = [] if rows is None else rows.slice(0, 1).to_pylist()
    return found[0] if found else None


def emitted_rows(pipeline: PipelineState, own: WindowRows, address: Address) -> list[EmittedRow]:
    """Return the rows that any timeline emitted for the address; rows of batches that were never committed are none."""
    if own.changelog is None or not own.changelog.num_rows:
        return []
    table = every_batch(pipeline.home)
    names = ("timeline", "batch", "committed_at", "batch_watermark_ms")
    known = {(t, b): (at, mark) for t, b, at, mark in zip(*(table[name].to_pylist() for name in names), strict=True)}
    rows = []
    for row in own.changelog.to_pylist():
        batch = (row["_timeline"], row["_batch"])
        if batch in known:
            at, mark = known[batch]
            is_final = pipeline.definition.window.closed_ms(mark) >= to_ms(address.end)
            rows.append(EmittedRow(*batch, at, batch in pipeline.committed, is_final, pipeline.values(row)))
    return rows


def emitter_of(committed: CommittedBatches, row: EmittedRow) -> Emitted:
    """Return who emitted a row of the head's path."""
    table = committed.table
    place = table["batch"].to_pylist().index(row.batch)
    return Emitted(row.timeline, row.batch, table["epoch"][place].as_py(), row.at)


def find_closing(pipeline: PipelineState, address: Address) -> Closing | None:
    """Return the first batch of the head's path whose watermark closed the window."""
    if not facts_of(pipeline.definition).closes:
        return None
    end_ms, table = to_ms(address.end), pipeline.committed.table
    for place, mark in enumerate(table["batch_watermark_ms"].to_pylist()):
        if pipeline.definition.window.closed_ms(mark) >= end_ms:
            names = ("timeline", "batch", "committed_at")
            return Closing(*(table[name][place].as_py() for name in names))
    return None


def covering_publications(pipeline: PipelineState, own: WindowRows, address: Address) -> list[PublishedRow]:
    """Return the publications that cover the window, oldest first, each with its row of the key."""
    rows = {} if own.corrections is None else {row["_backfill"]: row for row in own.corrections.to_pylist()}
    times = {entry.seq: entry.created_at for entry in pipeline.entries}
    covering = []
    for publication in publications_of(pipeline.entries):
        row = rows.get(publication.backfill)
        if row is None and (publication.sessions or not _covers(publication, address)):
            continue
        is_row = row is not None and not row.get(WITHDRAWN)
        covering.append(
            PublishedRow(
                publication.seq,
                publication.backfill,
                times[publication.seq],
                _reason(pipeline.home, publication.backfill),
                publication.semantics in pipeline.semantics,
                pipeline.values(row) if row is not None and is_row else None,
            )
        )
    return covering


def _covers(publication: Publication, address: Address) -> bool:
    start_ms = to_ms(address.start)
    return any(low <= start_ms < high for low, high in publication.ranges)


def _reason(home: PipelineHome, backfill: str) -> str | None:
    try:
        return load_plan(home, backfill).reason
    except RequestError:  # the plan was removed, or is of another release; the publication stands all the same
        return None


def served_publication(
    pipeline: PipelineState, served: Mapping[str, Any] | None, covering: PublishedRow | None
) -> Published | None:
    """Return who published what is served; None if the stream's row serves."""
    if covering is None or (served is not None and served["_backfill"] != covering.backfill):
        return None
    entry = next(entry for entry in publications_of(pipeline.entries) if entry.seq == covering.sequence)
    return Published(covering.backfill, covering.sequence, covering.at, covering.reason, entry.as_of)


def amendments_of(pipeline: PipelineState, published: Published) -> int:
    """Return up to which decision about dead letters a publication counted them."""
    return next(entry.amendments for entry in publications_of(pipeline.entries) if entry.seq == published.sequence)


def head_moves(entries: Sequence[Entry]) -> list[HeadMove]:
    """Return the moves of the head, oldest first."""
    return [
        HeadMove(entry.seq, entry.created_at, str(entry.payload["timeline"]), str(entry.payload["reason"]))
        for entry in entries
        if entry.kind == HEAD
    ]


def judged_rows(
    pipeline: PipelineState, chain: Chain | None, address: Address, read: Callable[..., pa.Table | None]
) -> list[dict[str, Any]]:
    """Return the verdicts or causes of the row that hold for the newest reconcile, and those of all rows of its window.

    Args:
        pipeline: of the row.
        chain: the runs that hold for the newest one; None: there is none.
        address: of the row.
        read: `judgements.read_verdicts` or `read_causes`; no row of another window is read.
    """
    if chain is None:
        return []
    rows = read(pipeline.home, chain, [(to_ms(address.start), to_ms(address.start) + 1)])
    names = pipeline.definition.row_keys
    key = key_text(names, [address.key[name] for name in names])
    found = [] if rows is None else rows.to_pylist()
    return [row for row in found if row["window_start"] == address.start and row["key"] in (None, key)]


def describe_verdicts(
    pipeline: PipelineState,
    newest: tuple[Chain, Mapping[str, Any]] | None,
    address: Address,
    published: PublishedRow | None,
    batches: Sequence[LedgerRow],
    now: datetime,
) -> tuple[Verdict, ...]:
    """Return what the newest reconcile says of a row against the truth: of what is served first, then of the stream.

    Args:
        pipeline: of the row.
        newest: the newest reconcile, with the runs that hold for it; None: there is none.
        address: of the row.
        published: the publication that serves its window.
        batches: those that may have read records of the window.
        now: the present instant.
    """
    if newest is None:
        return ()
    chain, run = newest
    rows = judged_rows(pipeline, chain, address, read_verdicts)
    seen = (run["timeline"], run["batch"])
    move = find_move_off(pipeline.entries, head_path(pipeline.home), seen, run["sequence"])
    verdicts = []
    for pair in (SERVED, "stream"):
        of_pair = [row for row in rows if row["pair"] == pair]
        row = next((row for row in of_pair if row["key"] is not None), next(iter(of_pair), None))
        if row is None:
            continue
        stale = judge_age(
            pair,
            row["verdict"],
            sequence=run["sequence"],
            batch=run["batch"],
            left_by=None if move is None else move.seq,
            published=None if published is None else published.sequence,
            last_read=max((batch.batch for batch in batches), default=None),
            is_closed=find_closing(pipeline, address) is not None,
        )
        age = (now - run["created_at"]).total_seconds()
        verdicts.append(Verdict(pair, row["verdict"], row["reason"], run["run"], run["created_at"], age, stale))
    return tuple(verdicts)
