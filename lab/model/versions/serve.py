"""Let a version serve: the gate if it never did, a build of its own table, then the one commit that is the switch."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from lab.model.agent import look_served
from lab.model.durable import Served
from lab.model.process import Process, Steps, point
from lab.model.versions.begin import hold_versions, versions_lock
from lab.model.versions.gate import compare_versions, read_proofs
from lab.model.versions.home import VersionWorld, renamed
from lab.model.versions.keeper import LOCKED, lock_name, rebuild
from lab.model.versions.pipeline import FIRST, Pipeline
from rivertwice.core.errors import LostRaceError, RequestError
from rivertwice.versions.model import Parity

SWITCHABLE = point("serve: it is a version that ran")
FOLLOWED = point("serve: which version serves is known")
BUILT = point("serve: its own rows are built")
BOTH_LOCKED = point("serve: both locks held, the table opened")
READ = point("serve: its rows and their stamp read")
SWITCHED = point("serve: switched")
NOTED = point("serve: noted for this host")
REMOVED = point("serve: its own table removed")


def run_serve(world: VersionWorld, me: Process) -> Steps:
    """Do what `version serve NAME` does: `serve new` names the newest version, `serve old` the first one; `far`: on another host."""
    pipeline = world.pipeline
    names = {"serve new": pipeline.newest, "serve again": pipeline.serving()}
    name = names.get(me.kind.removeprefix("far "), FIRST)
    target = _require_switchable(pipeline, name)
    yield SWITCHABLE
    parity = None
    if not world.rules.has_served(target.home, pipeline.switches):
        parity = yield from compare_versions(pipeline, name)
        if not parity.passed and world.broken != "served whatever the gate says":
            message = f"the gate refuses {name}: {parity.reasons}"
            raise RequestError(message)
    yield from serve(target, me, parity)


def _require_switchable(pipeline: Pipeline, name: str) -> VersionWorld:
    version, home = pipeline.versions.get(name), pipeline.homes.get(name)
    if (name != FIRST and (version is None or not version.is_open)) or home is None or home.head() is None:
        message = f"{name} is no version that runs"
        raise RequestError(message)
    return home


def serve(target: VersionWorld, me: Process, compared: Parity | None) -> Steps:
    """Do what `serve_version` does, in its order; a comparison must still hold right before the commit."""
    pipeline, rules, broken = target.pipeline, target.rules, target.broken
    hold_versions(pipeline.first, me)
    _require_switchable(pipeline, target.name)
    before = pipeline.follow(me.host)
    yield FOLLOWED
    if before == target.name:
        target.remove_own()
        yield REMOVED
        pipeline.first.unlock(versions_lock(me), me)
        return
    pipeline.judge.begins_to_switch(me, target)
    if broken != "a switch builds no rows":
        yield from rebuild(target, me)  # step 1
    yield BUILT
    yield from _lock_both(target, pipeline.homes[before], me)
    handle = pipeline.public.version
    yield BOTH_LOCKED
    rules.require_unmoved(before, pipeline.follow(me.host))
    table = target.table_at(target.place(me.host))
    rows, stamp = table.shown, rules.stamp_to_serve(target.home, table.stamp)
    assert rows is not None, "they have a stamp"
    if compared is not None and broken != "served whatever the gate says":
        proofs, _ = yield from read_proofs(pipeline.homes[compared.beside], target)
        outdated = rules.find_outdated(_as_stored(compared), proofs, compared.declared, pipeline.follow(me.host))
        if outdated:
            message = f"the comparison does not let {target.name} serve: {outdated}"
            raise RequestError(message)
    yield READ
    _switch(target, renamed(rows, stamp.version), before, handle)  # step 2
    yield SWITCHED
    pipeline.follow(me.host)  # step 3
    yield NOTED
    target.remove_own()  # step 4
    yield REMOVED
    for home in (target, pipeline.homes.get(before)):
        if home is not None:
            home.unlock(lock_name(me), me)
    pipeline.first.unlock(versions_lock(me), me)


def _as_stored(parity: Parity) -> Any:
    """Return what is stored of a comparison, as far as its age depends on it."""
    return SimpleNamespace(
        run="c1", version=parity.version, beside=parity.beside, declared=parity.declared, proofs=parity.proofs
    )


def _lock_both(target: VersionWorld, old: VersionWorld, me: Process) -> Steps:
    """Keep builds of both versions away, one after the other in an order that all processes have."""
    for home in sorted({target, old}, key=lambda each: str(each.home.root)):
        for _ in range(200):
            if home.lock(lock_name(me), me):
                break
            yield LOCKED
        else:
            message = f"builds of {home.name} go on"
            raise LostRaceError(message)


def _switch(target: VersionWorld, look: Served, before: str, handle: int) -> None:
    pipeline = target.pipeline
    if target.broken == "a switch writes over what came in between":
        handle = pipeline.public.version
    shown = pipeline.public.shown
    if shown is not None and target.broken == "a switch keeps the old rows":
        look = replace(look, rows={**shown.rows, **look.rows})
    pipeline.public.commit(look, handle, whole=True)
    pipeline.switches.append({"from": before, "to": target.name})
    pipeline.judge.is_switched(target, look, before, shown)
    target.seal_judge.serves(look)


def is_current(world: VersionWorld) -> bool:
    """Say whether the table that a version writes shows all that it has committed."""
    look = look_served(world)
    shown = world.table().shown
    return look is None or (shown is not None and shown.stamp == look.stamp)
