"""A switch to a version whose rows cannot be compared with those that are served: what a person is shown, and what must hold all the same.

The version is judged by its own truth: its newest reconcile must have passed, its first load must be done, and it must have read
what the version that serves had read at its newest reconcile. What remains is that its rows are others. A person accepts that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rivertwice.backfill import find_unfinished_load
from rivertwice.core import PipelineHome, Place, RequestError, Settings, counted, from_ms, to_iso
from rivertwice.definition import Definition
from rivertwice.log import StoredOffsets
from rivertwice.reconcile import newest_reconcile
from rivertwice.storage import Table
from rivertwice.timeline import Acceptance, Extent, FirstLoad, head_path, newest_batch, serving_by_stamp
from rivertwice.versions.model import GONE, LOAD, RECONCILE, WAIT, ExcludedWindows, Proof, Step
from rivertwice.versions.proof import read_proof
from rivertwice.versions.serve import definition_of


@dataclass(frozen=True)
class Exchange:
    """What a switch would exchange for what, where rows cannot be compared.

    Attributes:
        version: the version that would serve; serving: the one that serves.
        different: why their rows cannot be compared, one sentence each.
        before: what is served now; after: what the version's own table has now. A switch builds that table first.
        columns_gone, columns_added: result columns that only the old, or only the new rows have.
        left_out: windows that are served now and whose records are gone, so that the version lacks them; empty: none.
        unready: what the version lacks before it may serve; empty: nothing but a person's word.
    """

    version: str
    serving: str
    different: tuple[str, ...]
    before: Extent
    after: Extent
    columns_gone: tuple[str, ...]
    columns_added: tuple[str, ...]
    left_out: tuple[ExcludedWindows, ...]
    proof: Proof
    unready: tuple[Step, ...]

    @property
    def figures(self) -> list[tuple[str, int | str, int | str]]:
        """What people compare instead of rows: what it is, of what is served now, and of what would be then."""
        before, after = self.before, self.after
        return [
            ("rows", before.rows, after.rows),
            ("windows", before.windows, after.windows),
            ("first begins", before.start or "-", after.start or "-"),
            ("last ends", before.end or "-", after.end or "-"),
        ]

    def require_ready(self) -> None:
        """Check that nothing but a person's word is missing.

        Raises:
            RequestError: something is; the message names all of it.
        """
        if self.unready:
            message = f"{self.version} cannot serve yet: {'; '.join(step.text for step in self.unready)}; nothing was switched"
            raise RequestError(message)


def look_at_exchange(settings: Settings, name: str, different: Sequence[str]) -> Exchange:
    """Return what a switch to a version would exchange; nothing is written.

    Args:
        different: why its rows cannot be compared.

    Raises:
        RequestError: one of the two versions never ran.
        TableDamageError: a table cannot be read.
    """
    new = settings.pipeline(name)
    old = settings.pipeline(serving_by_stamp(new))
    definitions = definition_of(old), definition_of(new)
    gone, added = (
        tuple(column for column in own.result_columns if column not in other.result_columns)
        for own, other in (definitions, definitions[::-1])
    )
    return Exchange(
        version=name,
        serving=old.root.name,
        different=tuple(different),
        before=measure(old.root.name, old.public_served, definitions[0]),
        after=measure(name, new.tables.served, definitions[1]),
        columns_gone=gone,
        columns_added=added,
        left_out=_left_out(new, old, definitions[0]),
        proof=standing_of(new, definitions[1]),
        unready=find_unready(settings, name, old.root.name),
    )


def accept_differences(
    settings: Settings, name: str, different: Sequence[str], *, by: str, reason: str, now: datetime
) -> Acceptance:
    """Return what a person accepts, with the figures of what is exchanged; for `serve_version`, right before its commit.

    Args:
        different: why its rows cannot be compared.

    Raises:
        RequestError: the version cannot serve yet.
    """
    exchange = look_at_exchange(settings, name, different)
    exchange.require_ready()
    return Acceptance(by, now, reason, exchange.different, exchange.before, exchange.after)


def find_unready(settings: Settings, name: str, serving: str) -> tuple[Step, ...]:
    """Return what a version whose rows cannot be compared lacks before it may serve; empty: nothing but a person's word."""
    new = settings.pipeline(name)
    definition, unfinished, last = definition_of(new), find_unfinished_load(new), newest_batch(new, head_path(new))
    return decide_unready(
        standing_of(new, definition),
        None if unfinished is None else unfinished.text,
        serving,
        newest_reconcile(settings.pipeline(serving)),
        {} if last is None else last.end_offsets,
        definition.topics,
    )


def decide_unready(
    proof: Proof,
    unfinished: str | None,
    serving: str,
    run: Mapping[str, Any] | None,
    reached: StoredOffsets,
    topics: Sequence[str],
) -> tuple[Step, ...]:
    """Return what a version whose rows cannot be compared lacks before it may serve. Pure.

    Args:
        unfinished: why its first load is not done; None: it is, or there is none.
        run: the newest reconcile of that one, whatever it found; None: none has run.
        reached: topic to partition to the offset up to which the version has read.
    """
    name = proof.version
    lacking = [] if unfinished is None else [Step(LOAD, unfinished, name)]
    lacking += [Step(RECONCILE, proof.lacks, name)] if proof.lacks else []
    if run is None:
        text = f"no reconcile of {serving} has run, so it is not known how far it has read; run `rivertwice reconcile {serving}`"
        return (*lacking, Step(RECONCILE, text, serving))
    behind = sum(
        max(0, int(end) - int(reached.get(topic, {}).get(partition, 0)))
        for topic, parts in run["as_of"].items()
        if topic in topics
        for partition, end in parts.items()
    )
    if behind:
        text = (
            f"{name} has not read {counted(behind, 'record', 'records')} that {serving} had read at its reconcile {run['run']}; "
            f"`rivertwice start {name}` lets its stream read on"
        )
        lacking.append(Step(WAIT, text, name))
    return tuple(lacking)


def standing_of(home: PipelineHome, definition: Definition) -> Proof:
    """Return up to where a version is proved; one that says `compare: false` is never sealed, so its newest gate counts."""
    if definition.compare:
        return read_proof(home)
    name, run = home.root.name, newest_reconcile(home)
    if run is None:
        return Proof(name, None, 0, lacks=f"no reconcile of {name} has run; run `rivertwice reconcile {name}`")
    lacks = ""
    if not run["gate"]["passed"]:
        why = "; ".join(alert["message"] for alert in run["gate"]["alerts"] if alert["severity"] == "critical")
        lacks = f"reconcile {run['run']} of {name} did not pass: {why}; run `rivertwice reconcile {name}` when that is cured"
    return Proof(name, run["run"], 0, lacks, run["timeline"], run["sequence"], run["as_of"])


def measure(version: str, table: Place, definition: Definition) -> Extent:
    """Return the figures of what a version serves: counted by the table's engine, so the cost in memory does not grow with rows."""
    found = Table(table).extent(definition.window.start_column, definition.window.end_column)
    start, end = (None if each is None else to_iso(each) for each in (found.first, found.last))
    return Extent(version, found.rows, found.starts, start, end)


def _left_out(new: PipelineHome, old: PipelineHome, definition: Definition) -> tuple[ExcludedWindows, ...]:
    """Return the windows that are served now and begin before the new version's first one."""
    load = FirstLoad.load(new)
    if load is None:
        return ()
    found = Table(old.public_served).extent(
        definition.window.start_column, definition.window.start_column, before_ms=load.since_ms
    )
    if found.first is None:
        return ()
    return (ExcludedWindows(found.first, from_ms(load.since_ms), found.starts, GONE),)
