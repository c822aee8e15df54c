"""The parity gate over the model's rows: both sides proved, then each window compared, then late records looked up in the log."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

from lab.model.backfills import read_offsets
from lab.model.loads import unloaded
from lab.model.process import point
from lab.model.reads import served_rows
from lab.model.stream import TOPIC, WINDOW_MS, Address, window_end
from lab.model.verdicts import EXACT, version_of
from lab.model.versions.home import VersionWorld
from lab.model.versions.pipeline import Pipeline
from lab.model.views import look_at
from rivertwice.core.errors import RequestError
from rivertwice.reconcile.seals.look import ChangesSinceSeal
from rivertwice.versions.changes import ColumnsChange
from rivertwice.versions.model import Parity, Proof
from rivertwice.versions.try_model import Comparison, SchemaChange

Rows = Mapping[int, frozenset[Address]]
PROVED = point("compare: proofs of both sides read")
OLD_READ = point("compare: rows of the old version read")
NEW_READ = point("compare: rows of the new version read")
EXPLAINED = point("compare: windows computed by both definitions")


@dataclass(frozen=True)
class Sides:
    """What was compared: windows that end in `(since_ms, until_ms]`, and the rows of both versions in them."""

    since_ms: int
    until_ms: int
    old: Rows
    new: Rows


def compare_versions(pipeline: Pipeline, name: str) -> Generator[int, None, Parity]:
    """Do what `compare_versions` does, in its order."""
    rules, version = pipeline.rules, pipeline.versions[name]
    old, new = pipeline.homes.get(version.beside), pipeline.homes.get(name)
    if old is None or new is None:
        message = f"the tables of {name} or {version.beside} are gone"
        raise RequestError(message)
    proofs, looks = yield from read_proofs(old, new)
    left = () if new.load is None else unloaded(new, new.load)
    reasons = rules.find_missing(proofs, "its first load is not done" if left else None)
    yield PROVED
    nothing = Comparison(0, 0)
    if reasons:
        return Parity(name, old.name, "", None, None, proofs, SchemaChange(), nothing, 0, (), tuple(reasons))
    since_ms = 0 if new.load is None else new.load.since_ms
    until_ms = rules.covered_until(version_of(EXACT).definition, proofs)
    old_rows = _between(served_rows(old), since_ms, until_ms)
    yield OLD_READ
    new_rows = _between(served_rows(new), since_ms, until_ms)
    yield NEW_READ
    sides = Sides(since_ms, until_ms, old_rows, new_rows)
    rows, late = _judge(old, new, sides)
    yield EXPLAINED
    reasons = rules.find_differences(rows, SchemaChange(), ColumnsChange())
    parity = Parity(name, old.name, "", None, None, proofs, SchemaChange(), rows, late, (), tuple(reasons))
    if parity.passed:
        pipeline.judge.gate_passes((old, new), looks, sides)
    return parity


def read_proofs(
    old: VersionWorld, new: VersionWorld
) -> Generator[int, None, tuple[tuple[Proof, Proof], tuple[ChangesSinceSeal, ChangesSinceSeal]]]:
    """Return up to where reconciles have proved what two versions serve, and the looks that say so."""
    first, _ = yield from look_at(old, full=False)
    second, _ = yield from look_at(new, full=False)
    looks = first.looked, second.looked
    return (old.rules.prove(old.name, looks[0]), old.rules.prove(new.name, looks[1])), looks


def _between(rows: Rows | None, since_ms: int, until_ms: int) -> Rows:
    return {end: held for end, held in (rows or {}).items() if since_ms <= end - WINDOW_MS and end <= until_ms}


def _judge(old: VersionWorld, new: VersionWorld, sides: Sides) -> tuple[Comparison, int]:
    """Return the counts of rows, and how many differ by late records alone."""
    ends = sorted({*sides.old, *sides.new})
    left_out = old.pipeline.first
    kinds = {end: _kind(left_out, sides.old.get(end), sides.new.get(end)) for end in ends}
    differing = [end for end, kind in kinds.items() if kind == "differs"]
    truths = [_true_rows(home, old, differing) for home in (old, new)] if differing else [{}, {}]
    late = [end for end in differing if _kind(left_out, truths[0].get(end), truths[1].get(end)) != "differs"]
    if old.broken == "a difference counts as late":
        late = differing
    rest = [end for end in differing if end not in late]
    counts = Comparison(
        old_rows=len(sides.old),
        new_rows=len(sides.new),
        equal=sum(kind == "equal" for kind in kinds.values()),
        changed=sum(end in sides.old and end in sides.new for end in rest),
        only_new=sum(end not in sides.old for end in rest),
        only_old=sum(end not in sides.new for end in rest),
        windows=len(ends),
        windows_differing=len(rest),
        declared=(sum(kind == "declared" for kind in kinds.values()),),
    )
    return counts, len(late)


def _kind(first: VersionWorld, old: frozenset[Address] | None, new: frozenset[Address] | None) -> str:
    """Say how a window's two rows differ: `declared` if the new one counts more, and only what the first definition leaves out."""
    if old == new:
        return "equal"
    more, less = (new or frozenset()) - (old or frozenset()), (old or frozenset()) - (new or frozenset())
    log = first.logs["topic-1"]
    is_declared = not less and all(log[partition][offset].kind == "skip" for partition, offset in more)
    return "declared" if is_declared or first.broken == "a declaration covers every row" else "differs"


def _true_rows(home: VersionWorld, old: VersionWorld, ends: list[int]) -> dict[int, frozenset[Address]]:
    """Return windows as a definition computes them in batch, over all records that the old version has read."""
    head = old.head()
    assert head is not None, "it is proved, so it ran"
    rows: dict[int, set[Address]] = {}
    for partition, offset in old.path_rows(head)[-1].end_offsets[TOPIC].items():
        for address, record in read_offsets(home, int(partition), (0, int(offset)), "topic-1"):
            if record.kind == "ok" and window_end(record.event_ms) in ends:
                rows.setdefault(window_end(record.event_ms), set()).add(address)
    return {end: frozenset(held) for end, held in rows.items()}
