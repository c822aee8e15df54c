"""To whom the results go, and what people expect of them: sinks, the fast path, and each expectation with its history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rivertwice.core import PipelineHome, Settings, base_of
from rivertwice.definition import Definition
from rivertwice.deliver import AsideEntry, SinkView, read_fast_owner, read_runs, sinks_of, view_delivery, view_refused
from rivertwice.quality import judgement_of, read_results
from rivertwice.read.map import state_of_sink
from rivertwice.read.problems import BAD, CALM, GOOD, NONE, WARN

MOST_REFUSED, MOST_RUNS = 20, 48
"""Refused deliveries of a sink, and runs of a suite, that are shown: the newest."""
TONES: Mapping[str, str] = {"passed": GOOD, "failed": BAD, "still fails": BAD, "errored": BAD, "accepted": CALM}


@dataclass(frozen=True)
class SinkRow:
    """A sink: its state in words, how far it is, what its destination refused, and the command that answers; empty: none is needed."""

    view: SinkView
    tone: str
    word: str
    refused: tuple[AsideEntry, ...]
    next: str


@dataclass(frozen=True)
class FastRow:
    """The fast path: whether a process runs it, and its newest run."""

    topic: str
    runs: bool
    run: int | None
    bundle: str | None
    at: datetime | None


@dataclass(frozen=True)
class JudgedRun:
    """What one run of a suite said of an expectation, and of which windows it judged rows."""

    run: str
    at: datetime
    tone: str
    state: str
    window_start: datetime | None
    window_end: datetime | None
    reason: str


@dataclass(frozen=True)
class ExpectationRow:
    """One expectation.

    Attributes:
        id: what `quality --accept` takes. history: the newest runs, oldest first; those that accepted it have the reason.
        text: what the newest run found. next: the command that answers; empty: it holds, or is accepted.
    """

    id: str
    subject: str
    because: str
    severity: str
    tone: str
    state: str
    text: str
    since: str
    history: tuple[JudgedRun, ...]
    next: str


@dataclass(frozen=True)
class ResultsPage:
    """To whom the results of a pipeline go, and what people expect of them."""

    sinks: tuple[SinkRow, ...]
    fast: FastRow | None
    expectations: tuple[ExpectationRow, ...]


def view_results(settings: Settings, definition: Definition) -> ResultsPage:
    """Return the sinks, the fast path and the expectations of a pipeline or version.

    Raises:
        DefinitionError: the definition that serves cannot be loaded.
        TableDamageError: a table cannot be read.
    """
    name, home = definition.name, settings.pipeline(definition.name)
    views = view_delivery(settings, base_of(name), sinks_of(settings, name))
    return ResultsPage(
        tuple(_sink(home, name, view) for view in views),
        _fast(home, definition),
        tuple(expectations_of(read_results(home), name)),
    )


def _sink(home: PipelineHome, name: str, view: SinkView) -> SinkRow:
    tone, word = state_of_sink(view)
    refused = (
        tuple(each for each in view_refused(home, view.sink) if each.state == "open")[-MOST_REFUSED:]
        if view.refused
        else ()
    )
    then = ""
    if refused:
        then = f"rivertwice deliver retry {name} --sink {view.sink}"
    elif view.on_head_path is False:
        then = f"rivertwice deliver run {name} --sink {view.sink} --until-end"
    return SinkRow(view, tone, word, refused, then)


def _fast(home: PipelineHome, definition: Definition) -> FastRow | None:
    if definition.fast is None:
        return None
    runs = read_runs(home)
    newest = runs[-1] if runs else None
    return FastRow(
        definition.fast.topic,
        read_fast_owner(home) is not None,
        None if newest is None else newest.number,
        None if newest is None else newest.bundle,
        None if newest is None else newest.at,
    )


def expectations_of(rows: Iterable[Mapping[str, Any]], name: str) -> Iterator[ExpectationRow]:
    """Yield each expectation that the newest run of its suite judged, those that fail first. Pure.

    Args:
        rows: stored results, newest first.
    """
    newest: dict[str, str] = {}
    by_id: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        newest.setdefault(row["subject"], row["run"])
        by_id[row["subject"], row["expectation"]].append(row)
    current = [own for (subject, _), own in by_id.items() if own[0]["run"] == newest[subject]]
    for own in sorted(
        current, key=lambda each: (TONES.get(each[0]["state"], NONE) != BAD, each[0]["subject"], each[0]["because"])
    ):
        yield _expectation(own, name)


def _expectation(own: Sequence[Mapping[str, Any]], name: str) -> ExpectationRow:
    row, judged = own[0], judgement_of(own[0])
    tone = TONES.get(row["state"], NONE)
    tone = WARN if tone == BAD and row["severity"] != "critical" and row["state"] != "errored" else tone
    fails = judged.fails and row["subject"] == "windows"
    return ExpectationRow(
        id=row["expectation"],
        subject=row["subject"],
        because=row["because"],
        severity=row["severity"],
        tone=tone,
        state=row["state"],
        text=judged.describe() if judged.fails else "",
        since=row["since"] or "",
        history=tuple(_run(each) for each in reversed(own[:MOST_RUNS])),
        next=f"rivertwice quality {name} --accept {row['expectation']} --reason '...'" if fails else "",
    )


def _run(row: Mapping[str, Any]) -> JudgedRun:
    tone, reason = TONES.get(row["state"], NONE), row["reason"] if row["state"] == "accepted" else ""
    return JudgedRun(
        row["run"], row["created_at"], tone, row["state"], row["window_start"], row["window_end"], reason or ""
    )
