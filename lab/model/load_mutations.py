"""The rules of a first load, each broken once on purpose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.model.focuses import LOADS, LOADS_KILLED
from lab.model.mutation import Mutation
from rivertwice.backfill import load_plan


def _leaves_all(definition: Any, log: Any) -> Any:
    plan = load_plan.plan_load(definition, log)
    return plan if isinstance(plan, str) else replace(plan, ranges=dict(log.ranges), zones=list(log.zones))


LOAD_MUTATIONS: tuple[Mutation, ...] = (
    Mutation("a load's stream begins at the log's end", rules={"plan_load": _leaves_all}, focus=LOADS),
    Mutation("a load leaves out what is not archived", "loaded without an archive", focus=LOADS),
    Mutation("a load is recorded beside a driver", "loaded beside a driver", focus=LOADS),
    Mutation("a load that was cut off is recorded again", "load recorded again", focus=LOADS_KILLED),
    Mutation("the windows to load are not covered", "loaded windows are not covered", focus=LOADS),
    Mutation("a start looks for no load", "a start looks for no load", focus=LOADS_KILLED),
    Mutation("backfills read the stream's records only", "backfills read the stream's records only", focus=LOADS),
    Mutation("a load's windows count as published", rules={"find_unloaded": lambda *_: ()}, focus=LOADS),
)
