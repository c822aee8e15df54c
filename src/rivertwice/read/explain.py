"""Explain one number: read what the tables hold of it, and the truth if it is asked for; say what to do next.

What is read follows the window, not the history: the files of the tables that can have its rows, the ledger's rows around its
event times, and a few columns of every batch. Kafka is asked for the truth alone.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rivertwice.core import PipelineHome, RequestError, Settings, base_of, to_iso, to_ms
from rivertwice.definition import Definition
from rivertwice.engine import Spark
from rivertwice.read.explain_find import (
    PipelineState,
    WindowRows,
    amendments_of,
    covering_publications,
    describe_verdicts,
    emitted_rows,
    emitter_of,
    find_closing,
    first_row,
    head_moves,
    judged_rows,
    keys_in,
    parse_key,
    read_window,
    refuse_key,
    refuse_window,
    served_publication,
    window_end,
)
from rivertwice.read.explain_kinds import facts_of
from rivertwice.read.explain_model import (
    MOST_LISTED,
    Act,
    Address,
    ColumnValues,
    DeadRecord,
    ExplainedVerdict,
    Explanation,
    Published,
    Truth,
    tell_history,
)
from rivertwice.read.explain_records import (
    describe_dead,
    describe_late,
    gather_reads,
    late_of_causes,
    read_batches,
    read_dead,
    read_late,
    read_loaded,
    with_lake,
)
from rivertwice.read.find import newest_chain, open_rows
from rivertwice.reconcile import shape_of
from rivertwice.timeline import (
    BY_NAME,
    SERVED,
    CommittedBatches,
    LedgerRow,
    Verdict,
    committed_batches,
    head_definition,
    head_path,
    path_semantics,
    read_causes,
    read_sequence,
    serving_by_stamp,
)

# What to do next about a number. Pure.


def choose_acts(
    address: Address,
    repaired: tuple[datetime, datetime] | None,
    *,
    is_closed: bool,
    is_current: bool,
    truth_differs: bool | None,
    verdicts: Sequence[ExplainedVerdict],
    dead: Sequence[DeadRecord],
    published: Published | None,
    amendments: int,
) -> tuple[Act, ...]:
    """Return the commands that cure what is wrong with a number, the first one first; empty: nothing is to be done.

    Args:
        repaired: the range that a backfill of its window takes; None: such windows cannot be published.
        is_current: whether what is served shows all that is committed.
        truth_differs: whether what is served differs from the truth that was computed; None: it was not computed.
        verdicts: of the newest reconcile.
        dead: refused records among what the window's batches read.
        amendments: decisions about dead letters up to this one are in what is served.
    """
    if not is_closed:
        return ()
    name = address.pipeline
    acts: list[Act] = []
    if not is_current:
        acts.append(
            Act(
                f"rivertwice admin rebuild {name}",
                "a newer batch or publication is not served yet; an agent that runs builds it, and this command does it once",
            )
        )
    holding = next((verdict for verdict in verdicts if verdict.pair == SERVED and verdict.stale is None), None)
    verdict = None if holding is None else holding.verdict
    why = _why_backfill(truth_differs, verdict, dead, amendments)
    if why is not None and repaired is not None:
        start, end = (to_iso(instant) for instant in repaired)
        acts.append(Act(shlex.join(["rivertwice", "backfill", "run", name, "--from", start, "--to", end]), why))
    elif why is not None:
        acts.append(
            Act(f"rivertwice upgrade {name} --new-version", f"{why}; windows of this kind are not published alone")
        )
    for letter in dead:
        if letter.state == "open" and letter.is_of_row is not False:
            about = f"it was refused ({letter.reason}), and nothing was decided about it"
            acts.append(Act(f"rivertwice dead show {name} {letter.place}", about))
            break
    if holding is None and truth_differs is None:
        since = "" if published is None else " since it was published"
        acts.append(Act(f"rivertwice reconcile {name}", f"no verdict holds for what is served{since}"))
    return tuple(acts)


def _why_backfill(
    truth_differs: bool | None, verdict: str | None, dead: Sequence[DeadRecord], amendments: int
) -> str | None:
    """Return why a backfill of the window changes what is served; None: nothing says that it does."""
    if truth_differs:
        return "what is served differs from the truth"
    if truth_differs is None and verdict in (Verdict.LATE, Verdict.DEFECT):
        return f"the newest reconcile found what is served {verdict}"
    later = [letter.place for letter in dead if letter.is_of_row and (letter.amendment or 0) > amendments]
    if truth_differs is None and later:
        return f"{', '.join(later[:3])} was amended after what is served was computed"
    return None


# What a truth is computed for. Pure.


@dataclass(frozen=True)
class Question:
    """What a truth is computed for.

    Attributes:
        address: of the row; its key has the values of the result columns.
        definition: what the head runs.
        committed: the batches of the head's path.
        batches: those that may have read records of the window.
    """

    address: Address
    definition: Definition
    committed: CommittedBatches
    batches: Sequence[LedgerRow]
    published: Published | None


_NO_TRUTH = "the truth was not computed; --with-truth computes it from the log, by Spark"


def explain_row(
    settings: Settings, name: str, start: datetime, key: str | None, *, now: datetime, spark: Spark | None = None
) -> Explanation:
    """Explain the row of a window and a key.

    Args:
        name: the version that serves, or `NAME@v2`.
        key: as a person writes it: a JSON object, the value alone of a single key, or None if rows have no key.
        spark: gives a session, and the truth is computed; None: it is not.

    Raises:
        RequestError: there is no such pipeline, window or key; the nearest ones are given.
        LogGapError: the truth needs a record that is in neither Kafka nor the archive.
    """
    pipeline = _open(settings, name)
    definition, home = pipeline.definition, pipeline.home
    window = read_window(home, pipeline.served, definition, start)
    asked = parse_key(key, definition.row_keys)
    missing = facts_of(definition).no_truth
    end = window_end(definition, start, window)
    if end is None or (not any(rows.num_rows for rows in window.tables) and (spark is None or missing is not None)):
        raise refuse_window(home, pipeline.served, definition, start)
    own, chosen = _choose(home, definition, start, window, asked, is_computed=spark is not None and missing is None)
    address = Address(home.root.name, start, end, chosen)
    return _explain(settings, pipeline, address, own, now, spark if missing is None else None, missing)


def _open(settings: Settings, name: str) -> PipelineState:
    settings.known_pipeline(name)
    home = settings.pipeline(name)
    serving = serving_by_stamp(home)
    if name == base_of(name):
        home = settings.pipeline(serving)
    definition = head_definition(home)
    committed = committed_batches(home)
    if definition is None or not len(committed):
        message = f"{name} has no committed batch, so it has no number to explain; start it: `rivertwice start {name}`"
        raise RequestError(message)
    rows = open_rows(settings, name, BY_NAME[SERVED])
    return PipelineState(
        home,
        home.served_while(serving),
        definition,
        shape_of(definition),
        committed,
        read_sequence(home),
        path_semantics(home, head_path(home)),
        rows is not None and rows.status.is_current is not False,
    )


def _choose(
    home: PipelineHome,
    definition: Definition,
    start: datetime,
    window: WindowRows,
    asked: Mapping[str, Any],
    *,
    is_computed: bool,
) -> tuple[WindowRows, Mapping[str, Any]]:
    """Return the stored rows of the key, and the key with the values of its columns.

    Raises:
        RequestError: no row has it, or several have what is given of it.
    """
    own = window.of_key(asked, definition)
    keys = keys_in(own.tables, definition.row_keys)
    if len(keys) == 1:
        return own, next(iter(keys.values()))
    if len(keys) > 1:
        message = (
            f"{len(keys)} rows of {home.root.name} have {json.dumps(dict(asked), default=str)} in that window; give the whole key, one of: "
            f"{', '.join(sorted(keys)[:5])}"
        )
        raise RequestError(message)
    if is_computed and set(asked) == set(definition.row_keys):
        return own, asked
    raise refuse_key(home.root.name, start, asked, list(keys_in(window.tables, definition.row_keys)))


def _explain(
    settings: Settings,
    pipeline: PipelineState,
    address: Address,
    own: WindowRows,
    now: datetime,
    spark: Spark | None,
    missing: str | None,
) -> Explanation:
    home, definition, committed = pipeline.home, pipeline.definition, pipeline.committed
    served = first_row(own.served)
    emitted = emitted_rows(pipeline, own, address)
    newest = max((row for row in emitted if row.is_on_path), key=lambda row: row.batch, default=None)
    publications = covering_publications(pipeline, own, address)
    published = next((entry for entry in reversed(publications) if entry.serves), None)
    by = served_publication(pipeline, served, published)
    closing = find_closing(pipeline, address)
    batches = read_batches(home, committed, address.start, address.end)
    low_ms, high_ms = to_ms(address.start), to_ms(address.end)
    reads = gather_reads(batches, read_loaded(home, low_ms, high_ms), low_ms, high_ms)
    reads = with_lake(settings, home, reads, low_ms)
    newest_run = newest_chain(home)
    causes = judged_rows(pipeline, None if newest_run is None else newest_run[0], address, read_causes)
    late = late_of_causes(causes, committed)
    late += [
        row
        for row, fields in read_late(home, definition, committed, address.start, address.end)
        if _is_of(fields, address)
    ]
    question = Question(address, definition, committed, batches, by)
    truth = None if spark is None else _compute(spark, settings, question)
    listed = describe_late(late, committed, address.end, by)
    total = len(listed)
    if truth is not None:
        listed, total = list(truth.late), truth.late_total
    letters = read_dead(home, committed, reads)
    dead = describe_dead(letters, _dead_of_row(causes, truth, letters))
    verdicts = describe_verdicts(pipeline, newest_run, address, published, batches, now)
    rows = {
        SERVED: served,
        "stream": None if newest is None else newest.values,
        "truth": None if truth is None else truth.values,
    }
    known = [SERVED, "stream", *(["truth"] if truth is not None else [])]
    is_closed = closing is not None or not facts_of(definition).closes
    columns = _columns(pipeline, rows, known)
    counted = 0 if by is None else amendments_of(pipeline, by)
    unknown = _unknown(pipeline, address, missing, truth=truth, is_closed=is_closed)
    return Explanation(
        address=address,
        windows=definition.window.text,
        is_closed=is_closed,
        closed_at=None if closing is None else closing.at,
        closed_by=None if closing is None else f"{closing.timeline}/{closing.batch}",
        has_served=served is not None,
        has_stream=newest is not None,
        has_truth=None if truth is None else truth.values is not None,
        columns=columns,
        emitted=None if newest is None else emitter_of(committed, newest),
        published=by,
        reads=reads,
        late=tuple(listed[:MOST_LISTED]),
        late_total=total,
        dead=tuple(dead[:MOST_LISTED]),
        dead_total=len(dead),
        history=tell_history(emitted, publications, head_moves(pipeline.entries), closing, pipeline.differing),
        verdicts=verdicts,
        truth=truth,
        unknown=unknown,
        acts=choose_acts(
            address,
            _repaired(definition, address),
            is_closed=is_closed,
            is_current=pipeline.is_current,
            truth_differs=None if truth is None else _differ(pipeline, served, truth.values),
            verdicts=verdicts,
            dead=dead,
            published=by,
            amendments=counted,
        ),
    )


def _is_of(fields: Mapping[str, Any], address: Address) -> bool:
    """Say whether the fields of a late row have the key; one whose key only the transform makes is left to the reconcile."""
    return all(name in fields and str(fields[name]) == str(value) for name, value in address.key.items())


def _dead_of_row(causes: Sequence[Mapping[str, Any]], truth: Truth | None, letters: Sequence[Any]) -> dict[str, bool]:
    """Return place to whether an amended record belongs to the row, as far as a reconcile or the truth says so."""
    of_row = {
        f"{row['topic']}/{row['partition']}@{row['offset']}": True
        for row in causes
        if row["cause"] in ("dead", "amended")
    }
    if truth is not None:
        for letter in letters:
            place = f"{letter.topic}/{letter.address.partition}@{letter.address.offset}"
            if letter.state == "amended":
                of_row[place] = place in truth.amended
    return of_row


def _columns(
    pipeline: PipelineState, rows: Mapping[str, Mapping[str, Any] | None], known: Sequence[str]
) -> tuple[ColumnValues, ...]:
    columns = []
    there = [pipeline.values(row) for source in known if (row := rows[source]) is not None]
    differing = {name for row in there[1:] for name in pipeline.differing(there[0], row)}
    if len(there) == 3:
        differing |= set(pipeline.differing(there[1], there[2]))
    for name in pipeline.shape.columns:
        served, stream, truth = (
            None if (row := rows[source]) is None else row[name] for source in (SERVED, "stream", "truth")
        )
        columns.append(ColumnValues(name, served, stream, truth, name in differing))
    return tuple(columns)


def _differ(pipeline: PipelineState, served: Mapping[str, Any] | None, truth: Mapping[str, Any] | None) -> bool:
    if served is None or truth is None:
        return (served is None) != (truth is None)
    return bool(pipeline.differing(served, truth))


def _repaired(definition: Definition, address: Address) -> tuple[datetime, datetime] | None:
    """Return the range by which a backfill takes the row's window; None: windows of this kind are not published."""
    if not definition.has_lone_windows:
        return None
    if not facts_of(definition).has_known_starts:
        return address.start, address.end
    return address.start, address.start + definition.window.step


def _unknown(
    pipeline: PipelineState, address: Address, missing: str | None, *, truth: Truth | None, is_closed: bool
) -> tuple[str, ...]:
    unknown = []
    if missing is not None:
        unknown.append(missing.replace("NAME", address.pipeline))
    elif truth is None:
        unknown.append(_NO_TRUTH)
    if truth is None and not pipeline.definition.late.keeps_rows and newest_chain(pipeline.home) is None and is_closed:
        unknown.append(
            "late records are not known: the late policy keeps none, and no reconcile has named them; `rivertwice reconcile "
            f"{address.pipeline}` does, and --with-truth"
        )
    return tuple(unknown)


def _compute(spark: Spark, settings: Settings, question: Question) -> Truth:
    from rivertwice.read.explain_truth import (
        compute_truth,  # without Spark its module is not imported: that costs a second
    )

    return compute_truth(spark(), settings, question)
