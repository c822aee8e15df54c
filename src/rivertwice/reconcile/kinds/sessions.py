"""The late rule of sessions: every key is followed through the batches, then the same transform runs once per generation.

What Spark does (tried on 4.2, gap 10 s; each line is also part of the property test):

- A record is dropped exactly if **its own** window [t, t + gap) had ended by the watermark of the batch before, whatever it
  could be merged with: at watermark 20 a record of t=10 is dropped, though t=15 of the same batch would have held it.
- What is accepted is merged with the key's sessions in the state. Sessions that touch are one: t=0 and t=10 give [0, 20).
- At its end a batch emits and forgets every session whose end is not above **its own** watermark, of all keys, also in a
  batch without records (Spark runs one when the watermark moved and nothing else comes).
- So a record may be accepted for which its session is gone: t=0 is emitted as [0, 10) at watermark 12, then t=5 is
  accepted, because it ends at 15, and becomes [5, 15). Batch has one session [0, 15); nothing was dropped. The session is
  **split**.

`sessions.follow_key` does the same to each key's records and returns the session of each record. Sessions that would
merge if they were computed together go to different generations; the transform runs over the records of each.
An amended dead letter is a record of the truth that no batch read. One whose amendment ended is not in the truth, but a
publication may have counted it.
Addresses are in milliseconds, as watermarks are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.core import EPOCH
from rivertwice.definition import Definition
from rivertwice.engine import included
from rivertwice.log import Part
from rivertwice.reconcile.evidence import Evidence, ServedEvidence, SessionEvidence
from rivertwice.reconcile.frames import addresses, unique_rows
from rivertwice.reconcile.gaps import LostRecordEffects, widened
from rivertwice.reconcile.kinds.read_rows import as_read
from rivertwice.reconcile.kinds.tumbling_hopping import WindowJudge
from rivertwice.reconcile.model import (
    AmendedRow,
    LateRow,
    PairCount,
    RowColumns,
    RowId,
    Rows,
    ServedSession,
    SessionGroup,
    Values,
)
from rivertwice.reconcile.rederive import Chain
from rivertwice.reconcile.sessions import (
    ExpectedServed,
    Followed,
    KnownRecords,
    PublishedSession,
    PublishedSessions,
    Session,
    expected_served_sessions,
    follow_key,
)
from rivertwice.reconcile.view import HeadView, Served, counted_publications
from rivertwice.timeline import key_text, withdrawn_rows

_ADDRESS = ["_partition", "_offset", "_from"]
"""A dead letter may have several amendments; `_from` is 0 for a record that was read as it is."""


class SessionJudge(WindowJudge):
    """The accepted rows of a path, followed key by key; this process keeps one entry per record."""

    def __init__(
        self,
        spark: SparkSession,
        definition: Definition,
        rows: DataFrame,
        chain: Chain,
        amended: DataFrame | None = None,
        barred: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Fetch key, time and address of every row that passes the row filter, and follow each key."""
        super().__init__(spark, definition, rows, barred=barred)
        _, source = definition.source
        self._topic = source.topic
        self._every = rows.withColumns({"_from": F.lit(0).cast("long"), "_until": F.lit(None).cast("long")})
        if amended is not None:
            self._every = self._every.unionByName(as_read(amended), allowMissingColumns=True)
        self._rows = self._every.where("_until IS NULL")
        event = F.unix_micros(source.event_time).alias("_event_us")
        names = ("_partition", "_offset", "_index", "_group", "_from", "_until")
        table = included(spark, definition, self._every).select(*definition.keys, *names, event).toArrow()
        self._at: dict[str, list[Any]] = {name: table[name].to_pylist() for name in (*names, "_event_us")}
        by_key: dict[tuple[Any, ...], list[int]] = {}
        self._ended: dict[tuple[Any, ...], list[int]] = {}
        columns = [table[name].to_pylist() for name in definition.keys]
        for position, key in enumerate(zip(*columns, strict=True)):
            key_positions = by_key.setdefault(key, [])
            (key_positions if self._at["_until"][position] is None else self._ended.setdefault(key, [])).append(
                position
            )
        self._late_us = [ms * 1000 for ms in chain.late]
        index, event_us = self._at["_index"], self._at["_event_us"]
        self._followed: dict[tuple[Any, ...], list[Followed]] = {
            key: follow_key(
                [(index[record], event_us[record], record) for record in positions], self._size_us, self._late_us
            )
            for key, positions in by_key.items()
        }

    def expected(self, definition: Definition) -> pa.Table:
        """Return the sessions the stream must emit in the end: the transform's result, generation by generation."""
        by_generation: dict[int, list[int]] = {}
        for family in self._all():
            for part in family.parts:
                if part.generation:
                    by_generation.setdefault(part.generation, []).extend(part.rows)
        left_out = [position for family in self._all() for position in (*family.late, *family.skipped)]
        separate = [*left_out, *(position for rows in by_generation.values() for position in rows)]
        first = self._rows
        if separate:
            first = first.join(self._addresses(separate), _ADDRESS, "left_anti")
        frames = [first]
        for generation in sorted(by_generation):
            frames.append(self._rows.join(self._addresses(by_generation[generation]), _ADDRESS, "left_semi"))
        results = [self._computed(definition, frame).toArrow() for frame in frames]
        return pa.concat_tables([table.cast(results[0].schema) for table in results])

    def _addresses(self, positions: Sequence[int]) -> DataFrame:
        table = pa.table(
            {
                "_partition": pa.array([self._at["_partition"][position] for position in positions], pa.int32()),
                "_offset": pa.array([self._at["_offset"][position] for position in positions], pa.int64()),
                "_from": pa.array([self._at["_from"][position] for position in positions], pa.int64()),
            }
        )
        return F.broadcast(self._spark.createDataFrame(table))

    def widen(self, doubts: LostRecordEffects) -> LostRecordEffects:
        """Return the doubts a gap wider: a lost record may have joined sessions that it does not touch."""
        return widened(doubts, self._size_us // 1000)

    def evidence(self, common: Evidence, batches: Sequence[int]) -> Evidence:
        """Return the evidence with the sessions that are not the same on both sides."""
        return common.of_kind(SessionEvidence, groups=self.session_groups(common.shape, batches))

    def served_evidence(self, evidence: Evidence, served: Served) -> ServedEvidence:
        """Return what is served, by addresses: a start does not identify the sessions that a publication overlaps."""
        view = served.view
        counting = {
            publication.backfill: publication
            for publication in counted_publications(view)
            if publication.semantics in view.semantics
        }
        old = {publication.seq for publication in counting.values() if publication.semantics != view.newest.semantics}
        claims = _claims_of(view, evidence.shape, {name: publication.seq for name, publication in counting.items()})

        def over(row: RowId) -> set[int]:
            return {claim.seq for claim in claims.get(row.key, ()) if claim.overlaps(row.start_ms, row.end_ms)}

        overlapping = {row: over(row) for row in {*evidence.truth, *served.rows}}
        published = PublishedSessions(
            claims,
            {publication.seq: publication.as_of for publication in counting.values()},
            served.closed_ms,
            {publication.seq: publication.amendments for publication in counting.values()},
        )
        batches = [row.batch for row in view.rows]
        sessions = self.served_sessions(evidence.shape, batches, published, evidence.expected)
        older = {row for row, publications in overlapping.items() if publications & old}
        for row, served_session in sessions.items():
            if over(row) & old:  # with all that belongs to the same session
                older |= {served_session.truth, *served_session.others, *served_session.to_serve}
        return ServedEvidence(
            rows=served.rows,
            closed_ms=served.closed_ms,
            published_rows=frozenset(row for row, publications in overlapping.items() if publications),
            sessions=sessions,
            older_rows=frozenset(older),
            amended_since={session.truth: session.decided for session in sessions.values() if session.decided},
        )

    def served_sessions(
        self,
        shape: RowColumns,
        batches: Sequence[int],
        published: PublishedSessions,
        expected: Rows,
    ) -> dict[RowId, ServedSession]:
        """Return what must be served of sessions that publications overlap and that is not the truth's own.

        Args:
            batches: batch number of each path index.

        Returns:
            The session by the addresses of all that belongs to it.
        """

        def knew(seq: int, position: int) -> bool:
            end: int = published.ends[seq].get(self._topic, {}).get(self._at["_partition"][position], 0)
            since, until = self._at["_from"][position], self._at["_until"][position]
            decided = published.amendments.get(seq, 0)
            is_counted = since <= decided and (until is None or decided < until)
            return bool(self._at["_offset"][position] < end) and is_counted

        known = KnownRecords(
            self._at["_event_us"].__getitem__, knew, lambda position: bool(self._at["_from"][position])
        )
        changed: list[tuple[tuple[Any, ...], ExpectedServed]] = []
        for key, families in self._followed.items():
            to_serve = expected_served_sessions(
                families,
                published.claims.get(key_text(shape.keys, key), ()),
                known,
                closed_ms=published.closed_ms,
                gap_us=self._size_us,
                ended=self._ended.get(key, ()),
            )
            changed += [(key, session) for session in to_serve if not session.is_truth]
        values = self._values_of(shape, [session for _, session in changed])
        sessions: dict[RowId, ServedSession] = {}
        for key, expected_session in changed:
            served = self._served_session(shape, key, expected_session, batches, {**expected, **values})
            sessions |= dict.fromkeys((served.truth, *served.others, *served.to_serve), served)
        return sessions

    def _served_session(
        self, shape: RowColumns, key: tuple[Any, ...], expected: ExpectedServed, batches: Sequence[int], values: Rows
    ) -> ServedSession:
        text = key_text(shape.keys, key)
        to_serve = {row: values.get(row) for row in (self._row_id(shape, key, session) for session in expected.held)}
        to_serve |= {RowId(claim.start_ms, claim.end_ms, text): None for claim in expected.unknown}
        truth, *others = [self._row_id(shape, key, followed.truth) for followed in expected.followed] or sorted(
            to_serve
        )[:1]
        return ServedSession(
            truth=truth,
            to_serve=to_serve,
            late=tuple(self._row(truth, row, batches) for row in expected.late),
            since=tuple(self._row(truth, row, batches) for row in expected.since),
            split=tuple(self._row(truth, row, batches) for row in expected.split),
            amended=tuple(self._amended(truth, row) for row in expected.amended),
            former=tuple(self._amended(truth, row) for row in expected.former),
            unexplained=len(expected.unexplained),
            others=tuple(others),
        )

    def _values_of(self, shape: RowColumns, sessions: Sequence[ExpectedServed]) -> dict[RowId, Values]:
        """Return the rows of what publications published of sessions that have changed since, publication by publication."""
        by_seq: dict[int, list[int]] = {}
        for expected in sessions:
            for seq, session in expected.published:
                by_seq.setdefault(seq, []).extend(session.rows)
        values: dict[RowId, Values] = {}
        for _, positions in sorted(by_seq.items()):
            rows = self._every.join(self._addresses(positions), _ADDRESS, "left_semi")
            values |= unique_rows(self._computed(self._definition, rows).toArrow(), shape)
        return values

    def late_rows(self, shape: RowColumns, batches: Sequence[int]) -> list[LateRow]:
        """Return every dropped record by address, with the session of the truth that it belongs to."""
        rows = [
            self._row(self._row_id(shape, key, family.truth), position, batches)
            for key, families in self._followed.items()
            for family in families
            for position in family.late
        ]
        return sorted(rows, key=lambda row: (row.partition, row.offset))

    def amended_rows(self, shape: RowColumns) -> list[AmendedRow]:
        """Return every amended dead letter that holds, with the session of the truth that it belongs to."""
        return [
            self._amended(self._row_id(shape, key, family.truth), position)
            for key, families in self._followed.items()
            for family in families
            for position in self._cures_in(family)
        ]

    def _cures_in(self, family: Followed) -> list[int]:
        return [position for position in family.skipped if self._at["_from"][position]]

    def session_groups(self, shape: RowColumns, batches: Sequence[int]) -> dict[RowId, SessionGroup]:
        """Return, for each address of a session that is not the same on both sides, all that belongs to it."""
        groups: dict[RowId, SessionGroup] = {}
        for key, families in self._followed.items():
            for family in families:
                if family.is_whole:
                    continue
                truth = self._row_id(shape, key, family.truth)
                parts = tuple(self._row_id(shape, key, part) for part in family.parts)
                group = SessionGroup(
                    truth=truth,
                    parts=parts,
                    late=tuple(self._row(truth, row, batches) for row in family.late),
                    split=tuple(self._row(truth, row, batches) for row in family.split),
                    amended=tuple(self._amended(truth, row) for row in self._cures_in(family)),
                )
                groups |= dict.fromkeys((truth, *parts), group)
        return groups

    def pairs(self, group: int | None = None) -> list[PairCount]:
        """Return the records that passed the row filter, counted by partition, session and lateness."""
        counted: Counter[tuple[int, int, bool]] = Counter()
        partition, groups = self._at["_partition"], self._at["_group"]

        def of_group(rows: Iterable[int]) -> list[int]:
            return [position for position in rows if group is None or groups[position] == group]

        for family in self._all():
            for part in family.parts:
                counted.update((partition[position], part.end_us // 1000, False) for position in of_group(part.rows))
            counted.update(
                (partition[position], family.truth.end_us // 1000, True) for position in of_group(family.late)
            )
        return [
            PairCount(Part(self._topic, where), end_ms, late, rows) for (where, end_ms, late), rows in counted.items()
        ]

    def windows_with_skipped_records(self) -> set[int]:
        """Return the starts (epoch ms) of all sessions of records that no batch read, but the archive has."""
        gaps = [family for family in self._all() if len(family.skipped) > len(self._cures_in(family))]
        return {start for family in gaps for start in family.starts_ms}

    def touched(self, indexes: Iterable[int]) -> dict[int, set[int]]:
        """Return path index to the starts (epoch ms) of the sessions that go with its rows."""
        wanted = set(indexes)
        by_index = self._starts_by("_index") if wanted else {}
        return {index: starts for index, starts in by_index.items() if index in wanted}

    def groups(self) -> dict[int, set[int]]:
        """Return session start (epoch ms) to the numbers of the definitions whose batches touched it."""
        by_start: dict[int, set[int]] = {}
        for group, starts in self._starts_by("_group").items():
            for start in starts if group >= 0 else ():  # an amendment belongs to no batch
                by_start.setdefault(start, set()).add(group)
        return by_start

    def _starts_by(self, column: str) -> dict[int, set[int]]:
        by_value: dict[int, set[int]] = {}
        for family in self._all():
            for value in {self._at[column][position] for position in family.truth.rows}:
                by_value.setdefault(value, set()).update(family.starts_ms)
        return by_value

    def _all(self) -> Iterable[Followed]:
        for families in self._followed.values():
            yield from families

    def _row_id(self, shape: RowColumns, key: tuple[Any, ...], session: Session) -> RowId:
        return RowId(session.start_us // 1000, session.end_us // 1000, key_text(shape.keys, key))

    def _amended(self, row: RowId, position: int) -> AmendedRow:
        at = self._at
        return AmendedRow(
            row=row,
            topic=self._topic,
            partition=at["_partition"][position],
            offset=at["_offset"][position],
            event_time=EPOCH + timedelta(microseconds=at["_event_us"][position]),
            first_seq=at["_from"][position],
            until_seq=at["_until"][position],
        )

    def _row(self, row: RowId, position: int, batches: Sequence[int]) -> LateRow:
        index = self._at["_index"][position]
        return LateRow(
            row=row,
            topic=self._topic,
            partition=self._at["_partition"][position],
            offset=self._at["_offset"][position],
            batch=batches[index],
            late_watermark_ms=self._late_us[index] // 1000,
            event_time=EPOCH + timedelta(microseconds=self._at["_event_us"][position]),
        )


def _claims_of(view: HeadView, shape: RowColumns, counting: Mapping[str, int]) -> dict[str, list[PublishedSession]]:
    """Return key (JSON) to the sessions that publications claim; `counting` gives the number of each by its backfill."""
    claims: dict[str, list[PublishedSession]] = {}
    if view.corrections is None:
        return claims
    backfills = view.corrections["_backfill"].to_pylist()
    withdrawn = withdrawn_rows(view.corrections).tolist()
    for row, backfill, vanishes in zip(addresses(view.corrections, shape), backfills, withdrawn, strict=True):
        if backfill in counting:
            claims.setdefault(row.key, []).append(
                PublishedSession(row.start_ms, row.end_ms, counting[backfill], vanishes)
            )
    return claims
