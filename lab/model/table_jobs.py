"""What else happens to tables: upkeep, a foreign program, an amendment, an erasure, `served` written whole, a bundle that compares otherwise."""

from __future__ import annotations

from dataclasses import replace

from lab.model.agent import look_served
from lab.model.durable import Erasure
from lab.model.process import Process, Steps, point
from lab.model.reads import emitted_by
from lab.model.stream import Address, window_end
from lab.model.tables import ARCHIVE, NOBODY, SERVED_BUILD, Contents
from lab.model.verdicts import EXACT, RELAXED
from lab.model.world import World
from rivertwice.core.errors import LostRaceError, RequestError

KEPT_COMMITS = 4  # of a table's log that upkeep leaves; a real one keeps six hours
MERGED = point("upkeep: files merged")
SWEPT = point("upkeep: files and commits removed")
LOOKED = point("amend: decisions read")
AMENDED = point("amend: decision appended")
ASKED = point("erase: request recorded")
FORBIDDEN = point("erase: seals of older runs forbidden")
FORGOTTEN = point("erase: seals removed")
ARCHIVE_REWRITTEN = point("erase: archive rewritten")
REWRITTEN = point("erase: a table rewritten")
PURGED = point("erase: old files and commits removed")
WRITTEN = point("another program: wrote")
REBUILT = point("served rebuild: written whole")
CHANGED = point("definition: another bundle")


def run_upkeep(world: World, me: Process) -> Steps:
    """Merge small files, and remove old files and commits."""
    if not world.lock("upkeep", me):
        return
    merges = world.counts["upkeep"] % 2 == 1
    for table in ("changelog", "ledger", "served", "sequence"):
        if world.tables.version(table) < 0:
            continue
        if merges:
            world.tables.note(table, "OPTIMIZE", "", keys=NOBODY)
            yield MERGED
        world.tables.note(table, "VACUUM START", "", keys=NOBODY)
        world.tables.note(table, "VACUUM END", "", keys=NOBODY)
        if not merges:
            world.tables.forget_commits(table, KEPT_COMMITS)
        yield SWEPT


def run_foreign(world: World, me: Process) -> Steps:
    """Let another program write a row of a table, or the same rows again."""
    now = world.tables.now
    batches = [key for key, rows in world.changelog.items() if rows]
    kind = world.counts["foreign"] % 4
    if kind == 2 and batches:
        key = batches[len(batches) // 2]
        world.tables.note_foreign("changelog", "DELETE", _harmed(now, ("changelog", *key, world.changelog[key][0][0])))
    elif kind == 1 and world.served is not None and world.served.rows:
        end, held = min(world.served.rows.items())
        world.tables.note_foreign("served", "UPDATE", _harmed(now, ("served", end, held)))
    elif kind == 3 and world.ledger:
        world.tables.note_foreign("ledger", "UPDATE", _harmed(now, ("ledger", *min(world.ledger))))
    elif world.tables.version("changelog") >= 0:
        world.tables.note_foreign("changelog", "MERGE", now)
    yield WRITTEN


def _harmed(contents: Contents, place: tuple[object, ...]) -> Contents:
    return replace(contents, harmed=contents.harmed | {place})


def run_amend(world: World, me: Process) -> Steps:
    """Give a dead letter of the head's path a value, asserting that nobody decided since the look."""
    head, decided = world.head(), world.tables.now.amended
    yield LOOKED
    path = set() if head is None else {(row.timeline, row.batch) for row in world.path_rows(head)}
    letters = [address for timeline, batch, address in world.dead if (timeline, batch) in path]
    letters = [address for address in letters if address not in decided]
    if not letters:
        message = "there is no dead letter to amend"
        raise RequestError(message)
    if world.tables.now.amended != decided:
        message = "another decision was made meanwhile"
        raise LostRaceError(message)
    world.tables.history.append(replace(world.tables.now, amended=(*decided, letters[0])))
    world.tables.note("amendments")
    yield AMENDED


def run_rebuild(world: World, me: Process) -> Steps:
    """Build `served` from all rows, as a repair does."""
    if not world.lock("served", me):
        message = "another process builds served"
        raise LostRaceError(message)
    look = look_served(world)
    if look is not None:
        world.serve(look, whole=True)
        yield REBUILT
    world.unlock("served", me)


def run_relax(world: World, me: Process) -> Steps:
    """Let the stream run a bundle that makes the same rows, and compares them otherwise; or the one before it."""
    world.bundle = RELAXED if world.bundle == EXACT else EXACT
    yield CHANGED


def run_erase(world: World, me: Process) -> Steps:
    """Erase a record's value, or continue an erasure that was cut off."""
    if not world.lock("erase", me):
        message = "another process erases"
        raise LostRaceError(message)
    if world.erasure is None:
        world.erasure = _choose(world)
        yield ASKED
    address = world.erasure.address
    yield from _forget(world)
    yield from _rewrite(world, address)
    yield from _forget(world)
    world.tables.history.append(replace(world.tables.now, erasing=False))
    world.erasure = None
    yield PURGED


def _choose(world: World) -> Erasure:
    """Choose a record of a closed window."""
    head = world.head()
    rows = [] if head is None else world.path_rows(head)
    closed = rows[-1].batch_watermark_ms if rows else 0
    done = (world.tables.now.erased or {}).get(ARCHIVE, frozenset())
    records = [
        address
        for row in rows
        for address, record in world.judge.true_records(row)
        if record.kind == "ok" and window_end(record.event_ms) <= closed and address not in done
    ]
    if not records:
        message = "no record of a closed window has the value"
        raise RequestError(message)
    return Erasure(records[len(world.tables.history) % len(records)])


def _forget(world: World) -> Steps:
    """Remove all seals; those of runs that began before are forbidden first."""
    if world.broken == "seals stay over an erasure":
        return
    world.reconciles.forgotten += 1
    yield FORBIDDEN
    world.reconciles.seals.clear()
    yield FORGOTTEN


def _rewrite(world: World, address: Address) -> Steps:
    """Rewrite the archive and the tables that hold the record."""
    tables = world.tables
    tables.history.append(replace(tables.now, erasing=True))
    if not _is_erased(world, ARCHIVE, address):
        tables.erase(ARCHIVE, address)
        yield ARCHIVE_REWRITTEN
    in_changelog = any(address in emitted_by(world, key) for key in world.changelog)
    in_served = world.served is not None and any(address in held for held in world.served.rows.values())
    in_corrections = any(
        address in held for chunks in world.corrections.values() for rows in chunks.values() for held in rows.values()
    )
    holding = {"changelog": in_changelog, "ledger": in_changelog, "served": in_served, "corrections": in_corrections}
    for table, is_in in holding.items():
        if not _is_erased(world, table, address):
            tables.erase(table, address)
            if is_in:
                keys = SERVED_BUILD if table == "served" else frozenset({"nonce"})
                tables.note(table, mode="Overwrite", keys=keys)
            yield REWRITTEN
    for table in holding:
        tables.forget_commits(table, 1)
    yield PURGED


def _is_erased(world: World, table: str, address: Address) -> bool:
    return address in (world.tables.now.erased or {}).get(table, frozenset())
