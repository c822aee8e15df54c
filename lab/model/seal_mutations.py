"""The rules of reconciles and their seals, each broken once on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lab.model.focuses import (
    AMENDS,
    ATTEMPTS,
    ERASE_RACES,
    ERASES,
    FIRST_BUILDS,
    FOREIGN,
    FOREIGN_RACES,
    FORKED,
    LOGS_GONE,
    MEANINGS,
    PUBLISHED,
    PUBLISHED_AMID,
    RECONCILES,
)
from lab.model.mutation import Mutation
from lab.model.tables import OWN
from rivertwice.reconcile.seals import look, merge, model
from rivertwice.reconcile.seals import look as fit
from rivertwice.reconcile.seals.look import FOREIGN as FOREIGN_COMMIT
from rivertwice.reconcile.seals.look import ChangesSinceSeal, classify_change
from rivertwice.reconcile.seals.touched import TouchedRows
from rivertwice.storage.table import TableChange


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _deciding(change: Callable[[ChangesSinceSeal], ChangesSinceSeal]) -> Any:
    """Return the product's decision, made of a look that was changed."""

    def decide(seen: ChangesSinceSeal, **asked: bool) -> Any:
        return look.decide_mode(seen if seen.seal is None else change(seen), **asked)

    return decide


def _commits(change: Callable[[str, TableChange], TableChange]) -> Callable[[ChangesSinceSeal], ChangesSinceSeal]:
    """Return a look whose commits since the seal are changed; those that are not kept are none."""

    def changed(seen: ChangesSinceSeal) -> ChangesSinceSeal:
        tables = [
            replace(each, changes=[change(each.table, commit) for commit in each.changes or ()]) for each in seen.tables
        ]
        return replace(seen, tables=tables)

    return changed


def _as_own(table: str, commit: TableChange) -> TableChange:
    return replace(commit, keys=OWN, mode="Append") if classify_change(table, commit) == FOREIGN_COMMIT else commit


def _as_own_write(table: str, commit: TableChange) -> TableChange:
    owned = _as_own(table, commit)
    return owned if owned is commit else replace(owned, operation="WRITE")


def _same_amendments(seen: ChangesSinceSeal) -> ChangesSinceSeal:
    assert seen.seal is not None, "the caller asked"
    return replace(seen, amendments=seen.seal.amendments)


def _same_stamp(seen: ChangesSinceSeal) -> ChangesSinceSeal:
    assert seen.seal is not None, "the caller asked"
    return replace(seen, stamp=seen.seal.served)


def _newest(seals: Any, _: Any) -> Any:
    return seals[-1] if seals else None


def _any_sequence(seal: Any, stamp: Any, rows: Any, _: int) -> None:
    fit.require_stamp(seal, stamp, rows, 1 << 60)


def _any_table(seal: Any, stamp: Any, rows: Any, sequence: int) -> None:
    fit.require_stamp(replace(seal, served=stamp), stamp, rows, sequence)


SEAL_MUTATIONS: tuple[Mutation, ...] = (
    # which seal
    Mutation(
        "a seal of a timeline that left the path is used",
        rules={"select_seal": _newest, "require_sealed_batch": _nothing},
        focus=FORKED,
    ),
    Mutation(
        "a seal of another meaning is used",
        rules={"require_same_meaning": _nothing},
        focus=MEANINGS,
    ),
    Mutation(
        "a definition's meaning leaves out how rows are compared", rules={"meaning_of": lambda _: "m"}, focus=MEANINGS
    ),
    Mutation("a seal is used after an amendment", rules={"decide_mode": _deciding(_same_amendments)}, focus=AMENDS),
    Mutation(
        "what is served since the seal is not looked at",
        rules={"decide_mode": _deciding(_same_stamp)},
        focus=RECONCILES,
    ),
    # what came since
    Mutation(
        "a foreign write is taken for one of ours",
        rules={"decide_mode": _deciding(_commits(_as_own_write))},
        focus=FOREIGN,
    ),
    Mutation(
        "commits that are not kept any more are taken for none",
        rules={"decide_mode": _deciding(_commits(lambda _, commit: commit))},
        focus=LOGS_GONE,
    ),
    Mutation("the tables' versions are read when the seal is stored", "versions read last", focus=FOREIGN_RACES),
    Mutation(
        "a publication since the seal is not judged again", rules={"new_publications": lambda _: []}, focus=PUBLISHED
    ),
    Mutation(
        "a seal counts a publication that was not served yet",
        rules={"counted_sequence": lambda read, _: read},
        focus=PUBLISHED,
    ),
    Mutation(
        "served rows newer than the sequence are judged", rules={"require_stamp": _any_sequence}, focus=PUBLISHED_AMID
    ),
    Mutation(
        "a served table that came while the run began is judged from the seal on",
        rules={"require_stamp": _any_table},
        focus=FIRST_BUILDS,
    ),
    # what is judged
    Mutation(
        "late records of settled rows change nothing",
        rules={"judge_touched": lambda *_: TouchedRows()},
        focus=RECONCILES,
    ),
    Mutation("only batches after the seal are read", rules={"select_batches": lambda *_: []}, focus=RECONCILES),
    Mutation("the look back from the seal ends too early", rules={"reaches_back": lambda *_: True}, focus=RECONCILES),
    Mutation(
        "a window is settled before it is served", rules={"settled_until": lambda closed, _: closed}, focus=RECONCILES
    ),
    Mutation(
        "the balance of settled windows is not carried on",
        rules={"sealed_pairs": lambda _: []},
        focus=RECONCILES,
    ),
    Mutation(
        "the balance of a seal counts windows that are not settled",
        rules={
            "settled_parts": lambda read, accepted, dead, pairs, _: merge.settled_parts(
                read, accepted, dead, pairs, 1 << 60
            )
        },
        focus=RECONCILES,
    ),
    # what is stored
    Mutation(
        "a seal is stored before the verdicts", "sealed before the verdicts", focus=replace(RECONCILES, deadly=True)
    ),
    Mutation("a run seals whatever its gate says", rules={"why_unproved": lambda *_: ""}, focus=FOREIGN),
    Mutation("a run seals over the rows of an earlier attempt", "sealed over an earlier attempt", focus=ATTEMPTS),
    Mutation("seals stay over an erasure", "seals stay over an erasure", focus=ERASES),
    Mutation("a run that began before an erasure seals after it", "sealed after an erasure", focus=ERASE_RACES),
    Mutation(
        "the ledger's chain begins again at each seal",
        rules={"chain_hash": lambda _, rows: model.chain_hash(model.START, rows)},
        focus=replace(RECONCILES, stories=(("reconcile", "reconcile", "reconcile", "reconcile full"),)),
    ),
    Mutation("the ledger is not compared with the seals", rules={"check_chain": lambda *_: []}, focus=FOREIGN),
)
