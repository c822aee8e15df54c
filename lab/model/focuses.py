"""What the schedules of mutations do, so that the broken part is exercised."""

from __future__ import annotations

from dataclasses import replace

from lab.model.stories import Focus

RESTORES = Focus(
    stories=(("take", "prove", "restore", "restore"), ("restore", "restore"), ("restore", "prune", "restore"))
)
PRUNES = Focus(
    stories=(("take", "prove", "prune", "prune"), ("take", "prove", "take", "prove", "prune", "prune", "restore")),
    crowd=True,
)
BACKFILLS = Focus(
    stories=(("backfill", "backfill", "archive", "backfill"), ("archive", "backfill", "backfill", "backfill")),
    prelude=(),
    crowd=True,
    sleepy=True,
)
RACES = Focus(
    stories=(("prove", "prune", "prove", "prune", "prove"), ("prune", "prove", "prune", "prove", "prune")),
    prelude=("take", "take", "prove", "take", "take"),
    crowd=True,
    deadly=True,
    sleepy=True,
)
HELD = replace(
    RACES,
    stories=(
        ("prune", "hold prune", "prove", "prove", "prove"),
        ("prune", "hold prune", "prune", "prove", "prove"),
        ("prove", "hold prove", "prune", "prune"),
    ),
)
PROVED_SINCE = replace(
    HELD,
    stories=(("prune", "hold prune", "prove", "prove", "prove"), ("prune", "prove", "hold prune", "prove", "prove")),
    prelude=("take", "prove", "take", "take"),
    deadly=False,
    sleepy=False,
)
UNSEEN = replace(
    RACES,
    stories=(
        ("prune", "hold prune", "prove", "prove", "prune", "prune", "prune"),
        ("prune", "prove", "hold prune", "prove", "prune", "prune"),
    ),
)
PLANNED = Focus(
    stories=(("planned", "planned", "planned"), ("planned", "abandon", "planned", "restore")),
    prelude=("take", "prove"),
    deadly=True,
)
PLANNED_PRUNES = Focus(
    stories=(
        ("planned", "planned", "planned", "take", "prove", "prove", "prune", "prune"),
        ("planned", "planned", "planned", "take", "prove", "prune", "prove", "prune"),
    ),
    prelude=("take", "prove"),
)
_TAKEN = "catch planned at take: manifest put"
PLANNED_CROWD = replace(
    PLANNED_PRUNES,
    stories=(
        ("planned", _TAKEN, "take", "prune", "hold planned", "prune"),
        ("planned", _TAKEN, "take", "hold planned", "prune", "prune"),
    ),
    crowd=True,
)
REWINDS = Focus(
    stories=(("rewind", "rewind", "rewind"), ("rewind", "give up", "rewind"), ("rewind", "give up", "give up")),
    prelude=("take", "prove"),
    people=True,
    deadly=True,
)
LOADS = Focus(loads=True)
LOADS_KILLED = Focus(stories=((),), prelude=(), loads=True, deadly=True)
ARCHIVES = Focus(stories=(("archive", "archive", "archive"),))
TWO_HOSTS = Focus(
    stories=(("standby", "restore", "restore"), ("standby", "restore", "standby")), shared=True, people=True
)
BESIDE = Focus(
    stories=(("rewind", *("hold rewind", "standby") * 6),),
    prelude=("take", "prove"),
    shared=True,
    sleepy=True,
)
MIXED = Focus(stories=(("rewind", "restore", "rewind", "restore"),), prelude=("take", "prove"), deadly=True)
DELIVERED_REWINDS = Focus(
    stories=(("deliver kafka", "deliver postgres", "rewind", "rewind", "deliver kafka", "deliver postgres"),),
    prelude=("take", "prove"),
)
SICK = Focus(stories=((),), sick=True)
WILD = Focus(stories=((), ("take", "prove", "restore")), wild=True)
ANY = Focus()
RECONCILES = Focus(stories=(("reconcile",) * 4, ("reconcile",) * 6), prelude=())
FIRST_BUILDS = Focus(
    stories=(
        (
            *("hold keeper",) * 3,
            *("reconcile", "hold keeper", "catch reconcile at reconcile: sealed", "hold keeper"),
            *("reconcile", "catch reconcile at reconcile: decided", *("hold reconcile",) * 3, "reconcile", "reconcile"),
        ),
    ),
    crowd=True,
)
ERASES = Focus(
    stories=(
        ("reconcile", "erase", "reconcile", "reconcile full"),
        ("reconcile", "reconcile", "erase", "erase", "reconcile full"),
    ),
    prelude=(),
)
ERASE_RACES = replace(
    ERASES,
    stories=(
        ("reconcile", "catch reconcile at reconcile: log read", "erase", "reconcile", "reconcile full"),
        ("reconcile", "catch reconcile at reconcile: run stored", "erase", "reconcile full", "reconcile full"),
    ),
    crowd=True,
)
AMENDS = Focus(stories=(("reconcile", "amend", "reconcile", "reconcile"),), prelude=())
FOREIGN = Focus(
    stories=(("reconcile", "foreign", "reconcile", "foreign", "reconcile", "foreign", "reconcile", "reconcile full"),),
    prelude=(),
)
FOREIGN_RACES = replace(
    FOREIGN,
    stories=(("reconcile", "catch reconcile at reconcile: log read", "foreign", "reconcile", "reconcile"),),
    crowd=True,
)
LOGS_GONE = replace(FOREIGN, stories=(("reconcile", "foreign", "upkeep", "upkeep", "reconcile", "reconcile"),))
MEANINGS = Focus(stories=(("relax", "foreign", "reconcile full", "relax", "reconcile", "reconcile"),), prelude=())
PUBLISHED = Focus(
    stories=(
        ("reconcile", "backfill", "reconcile", "backfill", "reconcile", "backfill", "reconcile"),
        ("reconcile", "backfill", "backfill", "reconcile", "reconcile", "backfill", "reconcile"),
    ),
    prelude=(),
    crowd=True,
    sleepy=True,
)
_SEALED = ("reconcile", "catch reconcile at reconcile: sealed")
PUBLISHED_AMID = replace(
    PUBLISHED,
    stories=(
        (*_SEALED, "reconcile", "catch reconcile at reconcile: decided", "backfill", *("hold reconcile",) * 12),
        (
            *_SEALED,
            *_SEALED,
            "reconcile",
            "catch reconcile at reconcile: decided",
            "backfill",
            *("hold reconcile",) * 12,
        ),
    ),
    sleepy=False,
)
FORKED = Focus(
    stories=(
        ("reconcile", "reconcile", "rewind", "reconcile", "reconcile"),
        ("reconcile", "rewind", "reconcile", "rewind", "reconcile"),
    ),
    prelude=("take", "prove"),
    people=True,
)
ATTEMPTS = Focus(
    stories=(("reconcile", "reconcile again", "reconcile again", "reconcile"), ("reconcile", "reconcile again") * 3),
    prelude=(),
    crowd=True,
    deadly=True,
)
