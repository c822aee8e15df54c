"""Every rule broken once on purpose: the model must find it, or the model is not worth believing.

Rules of the short protocols are broken where these are explored (`exhaustive/`).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from lab.model.focuses import (
    ANY,
    ARCHIVES,
    BACKFILLS,
    BESIDE,
    DELIVERED_REWINDS,
    HELD,
    MIXED,
    PLANNED,
    PLANNED_CROWD,
    PLANNED_PRUNES,
    PROVED_SINCE,
    PRUNES,
    RACES,
    RESTORES,
    REWINDS,
    SICK,
    TWO_HOSTS,
    UNSEEN,
    WILD,
)
from lab.model.load_mutations import LOAD_MUTATIONS
from lab.model.mutation import Mutation, Verdict, run_mutation
from lab.model.seal_mutations import SEAL_MUTATIONS
from lab.model.stories import Focus
from lab.model.versions.mutations import VERSION_MUTATIONS
from rivertwice.agent import decide
from rivertwice.agent.backoff import BackoffPolicy
from rivertwice.deliver import plan
from rivertwice.log import archive
from rivertwice.savepoint import awaiting, prune
from rivertwice.stream.checkpoint import covers


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _unprotected(*reasons: str) -> Any:
    def select(*args: Any, **named: Any) -> dict[str, str]:
        return {
            name: why
            for name, why in prune.select_protected(*args, **named).items()
            if not any(why.startswith(reason) for reason in reasons)
        }

    return select


def _only(reason: str) -> Any:
    def protect(restores: Any) -> dict[str, str]:
        return {name: why for name, why in awaiting.protect_awaiting(restores).items() if why.startswith(reason)}

    return protect


def _unheld(reason: str) -> Any:
    def find(*args: Any, **named: Any) -> str | None:
        holder = prune.find_holder(*args, **named)
        return None if holder is not None and holder.startswith(reason) else holder

    return find


def _extend_again(archived: Any, retained: Any, upto: Any) -> Any:
    return archive.plan_extension({}, retained, upto)


def _extend_over_gaps(archived: Any, retained: Any, upto: Any) -> Any:
    held = {p: (start, max(end, retained[p][0])) for p, (start, end) in archived.items()}
    return archive.plan_extension(held, retained, upto)


def _go_on(position: Any, view: Any, limits: Any) -> Any:
    return plan.plan_next(position, view if position is None else replace(view, held=view.head), limits)


def _policy(**changes: Any) -> Any:
    policy = replace(BackoffPolicy(), **changes)

    def decided(desired: Any, observed: Any, now: Any) -> Any:
        return decide.decide(desired, observed, now, policy)

    return decided


_PROTOCOLS: tuple[Mutation, ...] = (
    # a start and its lease
    Mutation("a definition that changed resumes the checkpoint", rules={"check_fingerprint": _nothing}, focus=WILD),
    Mutation("a topic created again is read on", "topic not looked at again", {"check_topics": _nothing}, WILD),
    Mutation("the topic is looked at only at the start", "topic not looked at again", focus=WILD),
    # a batch
    Mutation(
        "a batch is skipped without comparing its range",
        rules={"check_replay": _nothing, "find_damage": _nothing},
        focus=replace(WILD, deadly=True),
    ),
    Mutation("a child runs its parent's batches", rules={"check_own": _nothing}, focus=replace(RESTORES, wild=True)),
    Mutation(
        "damage is not looked for",
        rules={"find_damage": _nothing, "check_own": _nothing},
        focus=replace(RESTORES, wild=True),
    ),
    # head, sequence, served
    Mutation("a publication is decided on an older sequence", "publication without its predecessor", focus=BACKFILLS),
    Mutation("a backfill publishes without looking whether it did", "published without a look", focus=BACKFILLS),
    Mutation(
        "a backfill that read less publishes over one that read more",
        rules={"check_not_older": _nothing},
        focus=BACKFILLS,
    ),
    Mutation(
        "publications are not served", rules={"select_winners": lambda starts, *_: starts * 0 - 1}, focus=BACKFILLS
    ),
    Mutation(
        "served is rebuilt without its lock",
        "served without its lock",
        focus=replace(ANY, stories=(("keeper", "keeper"),)),
    ),
    # savepoints
    Mutation("the manifest is written first", "manifest before the files", focus=PRUNES),
    Mutation("a proof compares neither hashes nor states", "hashes not compared", focus=replace(RACES, wild=True)),
    Mutation(
        "prune forgets the newest proved", rules={"select_protected": _unprotected("newest proved")}, focus=PRUNES
    ),
    Mutation(
        "prune forgets pins",
        rules={"select_protected": _unprotected("pinned"), "find_holder": _unheld("pinned")},
        focus=replace(RACES, wild=True),
    ),
    Mutation(
        "prune forgets leases",
        rules={"select_protected": _unprotected("leased"), "find_holder": _unheld("leased")},
        focus=RACES,
    ),
    Mutation("prune does not look again once it has marked", "prune without a second look", focus=RACES),
    Mutation("prune finishes every mark it finds", "prune finishes marks unseen", focus=UNSEEN),
    Mutation(
        "prune forgets what an interrupted restore needs",
        "prune forgets restores",
        focus=Focus(
            stories=(("restore", "prune", "take", "prove", "prune", "prune"),),
            prelude=("take", "prove", "take", "prove"),
            wild=True,
            deadly=True,
        ),
    ),
    Mutation("prune forgets that a proof came meanwhile", rules={"find_holder": _unheld("proved")}, focus=PROVED_SINCE),
    Mutation("a lease is put without a second look", "lease without a second look", focus=HELD),
    Mutation("proof and restore do not lease", "savepoint not leased", focus=PRUNES),
    # restore
    Mutation("hashes and digests are not compared", "hashes not compared", focus=replace(RESTORES, wild=True)),
    # a planned restore
    Mutation(
        "a planned restore leaves out the batch that its savepoint lacks",
        "restore forks at the savepoint",
        focus=PLANNED,
    ),
    Mutation(
        "a planned restore begins without a proved savepoint",
        "planned without a way back",
        focus=replace(PLANNED, prelude=("take",)),
    ),
    Mutation(
        "a planned restore writes into the timeline it came from", "restored into the same timeline", focus=PLANNED
    ),
    Mutation(
        "a planned restore's head moves though the parent went on",
        "moved without a last look",
        focus=replace(PLANNED, people=True),
    ),
    Mutation(
        "a planned restore does not seal its parent",
        "parent not sealed",
        focus=replace(TWO_HOSTS, stories=(("standby", "planned", "planned"), ("standby", "planned", "standby"))),
    ),
    Mutation(
        "a planned restore's savepoint is taken without a lease", "planned savepoint not leased", focus=PLANNED_CROWD
    ),
    Mutation(
        "prune forgets the origin of a planned restore's savepoint",
        rules={"protect_awaiting": _only("waits")},
        focus=PLANNED_PRUNES,
    ),
    Mutation(
        "prune forgets the savepoint that waits for its proof",
        rules={"protect_awaiting": _only("kept")},
        focus=PLANNED_PRUNES,
    ),
    Mutation(
        "a planned restore that is done awaits no proof",
        rules={"select_awaiting": lambda *_: []},
        focus=PLANNED_PRUNES,
    ),
    # rewind
    Mutation("a rewind's head moves before it has caught up", "rewind does not catch up", focus=REWINDS),
    Mutation(
        "a rewind has caught up once its records are read, whatever its watermark",
        rules={"has_caught_up": lambda goal, ends, _: covers(ends, goal.offsets)},
        focus=REWINDS,
    ),
    Mutation(
        "a rewind's head moves though the old head went on",
        "moved without a last look",
        focus=BESIDE,
    ),
    Mutation("a restore begins under an unfinished rewind", "begun under another operation", focus=MIXED),
    # log, backfill
    Mutation("an archive's chunk is committed apart from its ends", "archive commit without its ends", focus=ARCHIVES),
    Mutation(
        "the archive is extended without its lock", "archive without its lock", {"check_unmoved": _nothing}, ARCHIVES
    ),
    Mutation(
        "the archive begins again each time",
        "archive without its lock",
        {"plan_extension": _extend_again, "check_unmoved": _nothing},
        focus=ARCHIVES,
    ),
    Mutation(
        "the archive continues after a gap",
        "archive without its lock",
        {"plan_extension": _extend_over_gaps, "check_unmoved": _nothing},
        focus=replace(ARCHIVES, wild=True),
    ),
    Mutation("the seam is read twice", "the seam read twice", focus=BACKFILLS),
    Mutation("a backfill is published without an audit", "audit skipped", focus=BACKFILLS),
    # a sink whose path the head leaves; delivery itself is explored
    Mutation("a sink goes on though the head left its path", rules={"plan_next": _go_on}, focus=DELIVERED_REWINDS),
    # the agent
    Mutation("a failed driver starts again at once", rules={"decide": _policy(base=timedelta(0))}),
    Mutation("the circuit never breaks", rules={"decide": _policy(window=timedelta(seconds=-1))}, focus=SICK),
    Mutation(
        "ends of drivers are not remembered",
        rules={"remember_end": lambda memory, *_: replace(memory, driver=None)},
        focus=SICK,
    ),
)


MUTATIONS = (*_PROTOCOLS, *LOAD_MUTATIONS, *SEAL_MUTATIONS, *VERSION_MUTATIONS)


def run_mutations(*, seed: int = 0, most: int = 3000) -> list[Verdict]:
    """Break every rule once."""
    return [run_mutation(mutation, seed=seed, most=most) for mutation in MUTATIONS]


def render_mutations(verdicts: list[Verdict]) -> str:
    """Return the table: what was broken, after how many schedules it was caught, and by which invariant."""
    lines = ["| broken on purpose | schedules until caught | invariant |", "|---|---|---|"]
    lines += [
        f"| {verdict.mutation.name} | {verdict.schedules if verdict.caught else f'SURVIVED {verdict.schedules}'} | {verdict.invariant} |"
        for verdict in verdicts
    ]
    caught = sum(verdict.caught for verdict in verdicts)
    return "\n".join([*lines, "", f"{caught} of {len(verdicts)} caught"]) + "\n"
