"""What a person may do to savepoints, timelines, versions and dead letters."""

from __future__ import annotations

from rivertwice.orchestration.cockpit.registry import (
    FLAG,
    NAME,
    PLACE,
    RECORD,
    RUN,
    Act,
    Answer,
    Field,
    Start,
    register,
)
from rivertwice.orchestration.operate_forms import ABANDON, AMEND, DISCARD, PIN, PROVE, UNPIN
from rivertwice.orchestration.switch_steps import APPROVE

REJECT = "Reject"
_SAVEPOINT = Field("savepoint", "Savepoint", NAME, required=True)
_ANY_SAVEPOINT = Field("savepoint", "Savepoint; empty: the newest proved one", NAME)
_UNPROVED = Field("unproved", "Accept one that was never proved", FLAG)
_RUN = Field("run", "Run", RUN, required=True)


def _operate(act: str) -> Start:
    return Start({"act": act})


ACTS = (
    Act(
        "rotate",
        "Take and prove",
        "A savepoint is taken while the stream runs; then it is restored aside, and recorded batches are replayed and compared.",
        "rotate",
        Start({"prove": True}),
        wants_reason=False,
    ),
    Act(
        "savepoint.take",
        "Take",
        "A savepoint is taken while the stream runs. It is not proved.",
        "rotate",
        Start({"prove": False}),
        wants_reason=False,
    ),
    Act(
        PROVE,
        "Prove",
        "The savepoint is restored aside, and recorded batches are replayed and compared. The stream runs on.",
        "operate",
        _operate(PROVE),
        (_SAVEPOINT,),
        wants_reason=False,
    ),
    Act(PIN, "Pin", "No prune deletes the savepoint.", "operate", _operate(PIN), (_SAVEPOINT,), wants_reason=False),
    Act(
        UNPIN,
        "Unpin",
        "A prune may delete the savepoint.",
        "operate",
        _operate(UNPIN),
        (_SAVEPOINT,),
        wants_reason=False,
    ),
    Act(
        "restore",
        "Restore",
        "The stream drains and continues from the savepoint on a new timeline. What is served stays as it is.",
        "restore",
        Start(takes_confirm=True),
        (_ANY_SAVEPOINT, Field("planned", "Take the savepoint now; nothing is replayed", FLAG), _UNPROVED),
        changes_served=True,
        preview="preview/restore",
    ),
    Act(
        "rewind",
        "Rewind",
        "The stream stops, a new timeline computes again what followed the savepoint, and then serves. Windows may change.",
        "rewind",
        Start(takes_confirm=True),
        (_ANY_SAVEPOINT, _UNPROVED),
        changes_served=True,
        preview="preview/rewind",
    ),
    Act(
        ABANDON,
        "Give up",
        "The operation that was cut off is given up: the old head serves on, and the stream runs again if it ran before.",
        "operate",
        _operate(ABANDON),
    ),
    Act(
        "switch",
        "Compare and ask",
        "The version is compared with the one that serves; if every difference has a cause, a person is asked whether it shall serve. "
        "Where windows or keys changed, no row is compared: the person accepts that, and the reason is kept.",
        "switch",
        fields=(Field("version", "Version", NAME, required=True),),
    ),
    Act(
        "switch.approve",
        "Approve",
        "The version serves from one commit on. The one that serves now goes on beside it, and can serve again.",
        "switch",
        Answer("approve", APPROVE),
        (_RUN,),
        changes_served=True,
    ),
    Act(
        "switch.reject",
        "Reject",
        "Nothing is switched; the run ends.",
        "switch",
        Answer("approve", REJECT),
        (_RUN,),
    ),
    Act(
        AMEND,
        "Amend",
        "The record gets the value that it should have had, if the definition accepts it. A backfill of its window brings it into what is served.",
        "operate",
        _operate(AMEND),
        (Field("place", "Place", PLACE, required=True), Field("value", "Value", RECORD, required=True)),
        preview="letter",
    ),
    Act(
        DISCARD,
        "Discard",
        "It is right to leave these records out. They stay in the log.",
        "operate",
        _operate(DISCARD),
        (Field("place", "Place", PLACE), Field("kind", "All open ones of this kind")),
        preview="preview/discard",
    ),
    Act(
        "late.correct",
        "Correct what is due",
        "The windows of the late queue that are due are computed again and published.",
        "correct",
        Start(takes_reason=False),
        changes_served=True,
    ),
)

register(*ACTS)
