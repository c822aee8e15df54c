"""What every act has: a request, a plan that reads and decides, and the only function that writes.

A request is a pydantic model. The form of the DAG, the page's dialog, the check of both and the stored request are made of it
(`acts.forms`). A door adds how it asks (`--yes`, a typed name, a dry run) and how it shows a plan; it decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Generic, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from rivertwice.core import (
    Progress,
    RequestError,
    RivertwiceError,
    Settings,
    TimeRange,
    parse_iso,
    report_nothing,
    to_iso,
)

if TYPE_CHECKING:
    from rivertwice.savepoint import ShownStep


class ReasonText:
    """What a person may write as a reason."""

    PATTERN = r"^[^\x00-\x1f{}$`\\]*$"
    LENGTH = 200


_DAY = r"(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_TIME = r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,6})?)?"
INSTANT_PATTERN = rf"^\d{{4}}-{_DAY}T{_TIME}(Z|[+-]\d{{2}}:\d{{2}})$"
INSTANT_LENGTH = 40
FUTURE = timedelta(days=1)
"""How far a range may reach into the future: a machine's clock may be wrong."""
NOW = "now"
"""Key of the context in which a request is validated: the time by which a range is in the future."""
CARE, OPERATE = "care", "operate"


class ActName:
    """Names of acts that share a DAG with others, so that its tasks ask which of them a run is for."""

    TAKE, ARCHIVE, REPAIR, SERVE = "savepoint.take", "archive", "repair", "version.serve"


Reason = Annotated[str, Field(pattern=ReasonText.PATTERN, max_length=ReasonText.LENGTH)]
Row = tuple[str, Any]


def taken_if(check: Callable[[str], object]) -> AfterValidator:
    """Return what lets a model take a text that a check of ours does not refuse: pydantic takes a ValueError for a refusal."""

    def validate(value: str) -> str:
        try:
            check(value)
        except RivertwiceError as error:
            raise ValueError(str(error)) from None
        return value

    return AfterValidator(validate)


class Request(BaseModel):
    """What is asked for. A field's title, description, pattern and limit are those of every form."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    pipeline: str
    reason: Reason = Field("", title="Reason", description="Kept with what comes out.")


def _instant(value: Any) -> Any:
    """Return an instant, for a model; a program passes a datetime.

    Raises:
        ValueError: it cannot be read.
    """
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str) or len(value) > INSTANT_LENGTH or not re.fullmatch(INSTANT_PATTERN, value):
        message = f"{str(value)[:60]!r} is not an instant with a zone; write it as 2013-06-30T04:00:00Z"
        raise ValueError(message)
    try:
        return parse_iso(value)
    except RequestError as error:
        raise ValueError(str(error)) from None


Instant = Annotated[
    datetime,
    BeforeValidator(_instant),
    WithJsonSchema({"type": "string", "format": "date-time", "pattern": INSTANT_PATTERN, "maxLength": INSTANT_LENGTH}),
]


class RangeRequest(Request):
    """A request about the windows of a range of event time, or about no range."""

    start: Instant | None = Field(
        None, title="From", description="Start of the range.", json_schema_extra={"option": "--from"}
    )
    end: Instant | None = Field(
        None, title="To", description="End of the range, exclusive.", json_schema_extra={"option": "--to"}
    )

    @model_validator(mode="after")
    def _is_a_range(self, info: ValidationInfo) -> Self:
        if (self.start is None) != (self.end is None):
            missing = "start" if self.start is None else "end"
            message = f"the range has no {missing}; it is half-open, [from, to), and needs both ends"
            raise ValueError(message)
        try:
            asked = self.range
        except RequestError as error:
            raise ValueError(str(error)) from None
        now = (info.context or {}).get(NOW)
        if asked is not None and now is not None and asked.end > now + FUTURE:
            message = f"the range ends at {to_iso(asked.end)}, which is in the future; no window is closed there: choose an earlier end"
            raise ValueError(message)
        return self

    @property
    def range(self) -> TimeRange | None:
        """The range; None: none is asked for."""
        return None if self.start is None or self.end is None else TimeRange(self.start, self.end)


R = TypeVar("R", bound=Request)
T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """Where an act is done, and for whom.

    Attributes:
        by: who asks, for records.
        asked_at: when it was asked for: what the same request has done since then is not done twice.
        resumes: the interrupted operation that the plan said is resumed; None: there was none.
        planned: the plan that was shown for this very request, so that it is not made twice; None: none was.
    """

    settings: Settings
    by: str
    asked_at: datetime
    resumes: str | None = None
    planned: Plan | None = None
    progress: Progress = report_nothing


@dataclass(frozen=True)
class ReadAgain:
    """Offsets of a partition that are read again; it is named `topic/partition` if there are several topics."""

    partition: int | str
    start: int
    end: int
    log_begins: int


@dataclass(frozen=True)
class Plan:
    """What an act would do.

    Attributes:
        value: for programs.
        rows: what, and how much.
        steps: of an operation, in order.
        warning: what is wrong with what the act builds on; None: nothing.
        refusals: why it cannot be done.
        reread: what is read again of the log.
        changes: of a definition: component, old, new, and what happens to the state.
        text: the plan for people, where rows do not say it.
        nothing: why there is nothing to do; None: there is.
    """

    value: Any
    rows: Sequence[Row] = ()
    steps: Sequence[ShownStep] = ()
    warning: str | None = None
    refusals: Sequence[str] = ()
    resumes: str | None = None
    reread: Sequence[ReadAgain] = ()
    changes: Sequence[tuple[str, ...]] = ()
    text: str = ""
    nothing: str | None = None

    def lines(self) -> list[str]:
        """Return the plan as lines for a log."""
        resumed = [] if self.resumes is None else [f"{self.resumes} was interrupted and is resumed"]
        return [
            *(f"{what}: {how_much}" for what, how_much in self.rows),
            *self.text.splitlines(),
            *resumed,
            *(f"step {step.number}: {step.does} ({step.state})" for step in self.steps),
            *filter(None, [self.warning, self.nothing]),
        ]


@dataclass(frozen=True)
class Act(Generic[R, T]):
    """One thing that a person may ask for.

    Attributes:
        name: in forms and addresses, as `savepoint.pin`.
        title: on a button.
        says: what happens, in a sentence.
        plan: reads and decides; raises RequestError if the request names what does not exist.
        apply: does it, and returns what came of it, a dataclass. Done again by the same request, it changes nothing more.
        needs_spark: whether it runs in a Spark job.
        confirm: why the pipeline's name has to be typed first; "": it has not.
        dag: verb of the DAG that does it; "": none, it is a part of another act.
        whole: whether it is about a pipeline with all its versions, so that a version alone has it not.
        dry_run: whether its form offers to show the plan alone.
    """

    name: str
    title: str
    says: str
    request: type[R]
    plan: Callable[[World, R], Plan]
    apply: Callable[[World, R], T]
    needs_spark: bool = False
    confirm: str = ""
    wants_reason: bool = False
    dag: str = OPERATE
    dry_run: bool = True
    whole: bool = False

    @property
    def command(self) -> str:
        """The words of the act in records: `savepoint pin`."""
        return self.name.replace(".", " ")
