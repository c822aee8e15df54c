"""Acts on dead letters: give a record the value that it should have had, or leave records out for good."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rivertwice.acts.act import Act, Plan, Request, World, taken_if
from rivertwice.acts.forms import NOT_IN_FORMS
from rivertwice.core import utc_now
from rivertwice.timeline import Decision, parse_address, select_discards

PLACE_PATTERN = r"^([A-Za-z0-9._-]{1,249}/)?[0-9]{1,10}@[0-9]{1,19}$"
PLACE_LENGTH, VALUE_LENGTH = 290, 100_000


Place = Annotated[str, Field(pattern=PLACE_PATTERN, max_length=PLACE_LENGTH), taken_if(parse_address)]
PLACE_FIELD: dict[str, Any] = {
    "title": "Place",
    "description": "Of a dead letter: PARTITION@OFFSET, or TOPIC/PARTITION@OFFSET.",
    "examples": ["2@117"],
}


@dataclass(frozen=True)
class AmendOutcome:
    """What came of an amendment. Not the value: a job writes what came of it into its log.

    Attributes:
        applies: whether the next backfill of its window counts it; else it is recorded and counted only.
        seq: number of the decision; None: the same request made it before.
    """

    place: str
    applies: bool
    seq: int | None = None
    kind: str = ""
    by: str = ""
    why: str = ""
    created_at: datetime | None = None


@dataclass(frozen=True)
class DiscardOutcome:
    """How many dead letters were left out for good."""

    discarded: int


class AmendRequest(Request):
    """A request to give one record another value."""

    place: Place = Field(**PLACE_FIELD)
    value: str | None = Field(
        None, max_length=VALUE_LENGTH, title="Value", description="The record's value as it should have been."
    )
    data: bytes | None = Field(
        None, description="The same as bytes, of any length.", json_schema_extra={NOT_IN_FORMS: True}
    )

    @model_validator(mode="after")
    def _one_value(self) -> Self:
        if (self.value is None) == (self.data is None):
            message = "dead.amend needs value, which is empty; nothing was done"
            raise ValueError(message)
        return self

    @property
    def record(self) -> bytes:
        """The record's value as bytes."""
        return self.data if self.data is not None else (self.value or "").encode()


class DiscardRequest(Request):
    """A request to leave out one record, or all open ones of a kind."""

    place: Place | None = Field(None, **PLACE_FIELD)
    kind: str | None = Field(
        None,
        pattern=r"^[a-z_]{1,40}$",
        title="Kind",
        description="Instead of a place: all open ones that were rejected for this.",
        examples=["schema"],
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.place is None) == (self.kind is None):
            message = "name one record by its place, or all open ones by their kind; nothing was done"
            raise ValueError(message)
        return self


def _plan_amend(world: World, request: AmendRequest) -> Plan:
    letter = _find(world, request.pipeline, request.place)
    rows = [("record", letter.place), ("state", letter.state), ("rejected for", f"{letter.reason}: {letter.detail}")]
    return Plan({"place": letter.place, "state": letter.state, "reason": letter.reason}, rows)


def _amend(world: World, request: AmendRequest) -> AmendOutcome:
    from rivertwice.definition import load_definition
    from rivertwice.engine import spark_on_demand
    from rivertwice.timeline import amend, cure_applies, problem_with, with_bytes

    settings, name, value = world.settings, request.pipeline, request.record
    home = settings.pipeline(name)
    (letter,) = with_bytes(home, [_find(world, name, request.place)])
    definition = load_definition(settings.definition_folder(name))
    applies = cure_applies(definition, letter.topic)
    if letter.is_amended(value, Decision(world.by, request.reason, world.asked_at)):
        world.progress(f"{letter.place} is amended already")
        return AmendOutcome(letter.place, applies)
    world.progress("decoding ...")
    with spark_on_demand(settings.with_local_spark(), f"rivertwice-amend-{name}", quick=True) as spark:
        done = amend(
            home,
            letter,
            value,
            lambda rejected, cure: problem_with(spark(), definition, rejected, cure),
            why=request.reason,
            by=world.by,
            now=utc_now(),
        )
    return AmendOutcome(letter.place, applies, done.seq, done.kind, done.by, done.why, done.created_at)


def _plan_discard(world: World, request: DiscardRequest) -> Plan:
    chosen = _to_discard(world, request)
    rows = [("records", len(chosen)), ("they stay", "in the log and in the table of dead letters")]
    return Plan({"records": len(chosen)}, rows)


def _discard(world: World, request: DiscardRequest) -> DiscardOutcome:
    from rivertwice.timeline import discard

    left = _to_discard(world, request)
    home = world.settings.pipeline(request.pipeline)
    done = discard(home, left, why=request.reason, by=world.by, now=utc_now()) if left else []
    return DiscardOutcome(len(done))


def _to_discard(world: World, request: DiscardRequest) -> list[Any]:
    from rivertwice.timeline import committed_batches, read_brief

    home = world.settings.pipeline(request.pipeline)
    letters = (
        [_find(world, request.pipeline, request.place)] if request.place else read_brief(home, committed_batches(home))
    )
    return select_discards(letters, Decision(world.by, request.reason, world.asked_at), reason=request.kind)


def _find(world: World, pipeline: str, place: str) -> Any:
    from rivertwice.timeline import committed_batches, find_letter, read_brief

    home = world.settings.pipeline(pipeline)
    return find_letter(read_brief(home, committed_batches(home)), parse_address(place), pipeline)


AMEND = Act(
    "dead.amend",
    "Amend",
    "The record gets the value that it should have had, if the definition accepts it. A backfill of its window brings it into what is served.",
    AmendRequest,
    _plan_amend,
    _amend,
    needs_spark=True,
    wants_reason=True,
)
DISCARD = Act(
    "dead.discard",
    "Discard",
    "It is right to leave these records out. They stay in the log.",
    DiscardRequest,
    _plan_discard,
    _discard,
    wants_reason=True,
)
