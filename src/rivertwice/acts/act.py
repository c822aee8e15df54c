"""What every act has: a request, a plan that reads and decides, and the only function that writes.

A request is a pydantic model. The form of the DAG, the page's dialog, the check of both and the stored request are made of it
(`acts.forms`). A door adds how it asks (`--yes`, a typed name, a dry run) and how it shows a plan; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from rivertwice.core.settings import Settings
from rivertwice.core.waits import Progress, report_nothing

if TYPE_CHECKING:
    from rivertwice.savepoint.operations.engine import ShownStep

REASON_PATTERN = r"^[^\x00-\x1f{}$`\\]*$"
REASON_LENGTH = 200

Reason = Annotated[str, Field(pattern=REASON_PATTERN, max_length=REASON_LENGTH)]
Row = tuple[str, Any]
Result = Mapping[str, Any]


class Request(BaseModel):
    """What is asked for. A field's title, description, pattern and limit are those of every form."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    pipeline: str
    reason: Reason = Field("", title="Reason", description="Kept with what comes out.")


R = TypeVar("R", bound=Request)


@dataclass(frozen=True)
class World:
    """Where an act is done, and for whom.

    Attributes:
        by: who asks, for records.
        asked_at: when it was asked for: what the same request has done since then is not done twice.
        resumes: the interrupted operation that the plan said is resumed; None: there was none.
    """

    settings: Settings
    by: str
    asked_at: datetime
    resumes: str | None = None
    progress: Progress = report_nothing


@dataclass(frozen=True)
class Plan:
    """What an act would do. Nothing is done yet.

    Attributes:
        value: for programs.
        rows: what, and how much.
        steps: of an operation, in order.
        warning: what is wrong with what the act builds on; None: nothing.
        refusals: why it cannot be done.
        resumes: the interrupted operation that is resumed.
        reread: what is read again of the log, by partition: `partition`, `start`, `end`, `log_begins`.
    """

    value: Any
    rows: Sequence[Row] = ()
    steps: Sequence[ShownStep] = ()
    warning: str | None = None
    refusals: Sequence[str] = ()
    resumes: str | None = None
    reread: Sequence[Mapping[str, Any]] = ()

    def lines(self) -> list[str]:
        """Return the plan as lines for a log."""
        resumed = [] if self.resumes is None else [f"{self.resumes} was interrupted and is resumed"]
        return [
            *(f"{what}: {how_much}" for what, how_much in self.rows),
            *resumed,
            *(f"step {step.number}: {step.does} ({step.state})" for step in self.steps),
            *filter(None, [self.warning]),
        ]


@dataclass(frozen=True)
class Act(Generic[R]):
    """One thing that a person may ask for.

    Attributes:
        name: in forms and addresses, as `savepoint.pin`.
        title: on a button.
        says: what happens, in a sentence.
        request: what is asked for.
        plan: reads and decides; raises RequestError if the request names what does not exist.
        apply: does it, and returns what came of it. Done again by the same request, it changes nothing more.
        needs_spark: whether it runs in a Spark job.
        confirm: why the pipeline's name has to be typed first; "": it has not.
        wants_reason: whether the request must have a reason.
    """

    name: str
    title: str
    says: str
    request: type[R]
    plan: Callable[[World, R], Plan]
    apply: Callable[[World, R], Result]
    needs_spark: bool = False
    confirm: str = ""
    wants_reason: bool = False

    @property
    def command(self) -> str:
        """The words of the act in records: `savepoint pin`."""
        return self.name.replace(".", " ")
