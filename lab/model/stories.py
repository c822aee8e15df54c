"""What a schedule may start: the actors, the stories of them, and a focus that narrows both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lab.model import (
    agent,
    archive,
    backfills,
    deliveries,
    driver,
    loads,
    reconciles,
    restores,
    rewinds,
    savepoints,
    table_jobs,
)

Decision = tuple[str, Any]
ACTORS: dict[str, Callable[..., Any]] = {
    "driver": driver.run_driver,
    "standby": driver.run_driver,
    "agent": agent.run_agent,
    "keeper": agent.run_keeper,
    "take": savepoints.run_take,
    "prove": savepoints.run_prove,
    "prune": savepoints.run_prune,
    "restore": restores.run_restore,
    "planned": restores.run_planned,
    "fall-back": restores.run_fall_back,
    "abandon": restores.run_abandon,
    "rewind": rewinds.run_rewind,
    "catcher": driver.run_driver,
    "give up": rewinds.run_give_up,
    "load": loads.run_load,
    "backfill": backfills.run_backfill,
    "archive": archive.run_archiver,
    "reconcile": reconciles.run_reconcile,
    "reconcile full": reconciles.run_reconcile,
    "reconcile again": reconciles.run_reconcile,
    "upkeep": table_jobs.run_upkeep,
    "foreign": table_jobs.run_foreign,
    "amend": table_jobs.run_amend,
    "erase": table_jobs.run_erase,
    "rebuild": table_jobs.run_rebuild,
    "relax": table_jobs.run_relax,
    **{f"{host}deliver {sink}": deliveries.run_deliver for host in ("", "far ") for sink in deliveries.SINKS},
}
STORIES = (
    ("take", "prove", "restore", "restore"),
    ("take", "prove", "take", "prove", "prune", "prune"),
    ("take", "take", "prove", "prove", "take", "prune"),
    ("take", "prove", "restore", "abandon", "restore"),
    ("take", "prove", "prune", "restore", "prune"),
    ("backfill", "backfill", "backfill"),
    ("backfill", "archive", "backfill"),
    ("archive", "archive", "take", "prove"),
    ("driver", "agent", "keeper"),
    ("fence", "standby", "fence", "standby"),
    ("take", "prove", "standby", "restore"),
    ("take", "prove", "planned", "planned", "planned", "prove", "prove"),
    ("planned", "planned", "planned", "prove", "prove", "prune", "take", "prove", "prune"),
    ("take", "prove", "planned", "abandon", "restore", "planned"),
    ("take", "prove", "standby", "planned", "prune", "restore"),
    ("take", "prove", "rewind", "rewind"),
    ("take", "prove", "rewind", "give up", "rewind", "prune"),
    ("reconcile", "reconcile", "backfill", "reconcile", "backfill", "reconcile", "reconcile again"),
    ("take", "prove", "reconcile", "restore", "reconcile", "rewind", "reconcile", "reconcile"),
    ("reconcile", "amend", "reconcile", "erase", "reconcile", "reconcile full"),
    ("reconcile", "foreign", "upkeep", "reconcile full", "relax", "reconcile", "rebuild", "upkeep", "reconcile"),
    ("deliver kafka", "backfill", "far deliver kafka", "deliver kafka", "far deliver kafka", "deliver kafka"),
    ("deliver postgres", "far deliver postgres", "backfill", "deliver postgres", "far deliver postgres"),
    ("deliver kafka", "deliver postgres", "backfill", "deliver kafka", "deliver postgres"),
    ("take", "prove", "deliver kafka", "deliver postgres", "rewind", "far deliver kafka", "far deliver postgres"),
    (),
)
QUIET = ("served: nothing new", "agent: decided", "batch: nothing to read", "prove: waits for batches")
TASKS = {kind for story in STORIES for kind in story} - {"driver", "agent", "keeper", "standby", "fence"}


@dataclass(frozen=True)
class Focus:
    """What the schedules of a mutation do, so that the broken part is exercised.

    Attributes:
        stories: what is started, instead of any; None leaves it to the seed. `hold KIND` stops a process of that kind, `catch KIND at
            POINT` stops it at that point.
        shared: two hosts share the pipeline.
        wild: clocks jump, files rot, topics go.
        sick: the transform has a bug from the beginning.
        people: somebody starts the stream again and again.
        crowd: what is started does not wait for what was started before.
        deadly: kills are frequent. sleepy: stops are frequent.
        loads: the stream begins after a first load of what the log has.
        versions: the pipeline gets versions. planted: a new one leaves out a record that nobody declared; None leaves it to the seed. far: another host keeps
            what versions serve, too. quiet: nobody is killed or stopped but by the stories.
        prelude: what is done in calm before anything goes wrong; empty for batches only.
    """

    stories: tuple[tuple[str, ...], ...] | None = None
    shared: bool = False
    wild: bool = False
    sick: bool = False
    people: bool = False
    crowd: bool = False
    deadly: bool = False
    sleepy: bool = False
    loads: bool = False
    versions: bool = False
    planted: bool | None = None
    far: bool | None = None
    quiet: bool = False
    prelude: tuple[str, ...] | None = None
