"""What a person may do on the page: a registry of acts, and the check of one that is asked for. Pure.

An act starts a DAG run, answers one that waits for a person, or writes a record at once. Each names the verb whose DAG it belongs
to: a person a user without the permission to start that DAG cannot act. What starts a run is one of `rivertwice.acts`, and so are its fields; the form
of the DAG is checked by `forms`. A part of the page registers its own acts when it is imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rivertwice import acts
from rivertwice.acts import OPERATE, ReasonText
from rivertwice.core import RequestError, Settings
from rivertwice.tasks import check_form

TEXT, INSTANT, FLAG, CHOICE, NAME, RUN, PLACE, RECORD = (
    "text", "instant", "flag", "choice", "name", "run", "place", "record",
)  # fmt: skip
"""Kinds of fields. A name is that of a version or a savepoint, a run that of a DAG run, a place that of a dead letter; a record is a
record's value, in which any character may be."""
ID_PATTERN = r"^[A-Za-z0-9-]{8,64}$"
RUN_PATTERN = r"^[A-Za-z0-9_.~:+-]{1,250}$"
RUN_PREFIX = "cockpit__"
"""How the ids of the DAG runs begin that the page started."""


@dataclass(frozen=True)
class Field:
    """A value that an act takes.

    Attributes:
        name: its name in the request, and in the DAG run's conf.
        kind: one of the kinds above.
        choices: of a choice.
        required: whether it must be given; one that is left out is not in the conf.
    """

    name: str
    title: str
    kind: str = TEXT
    choices: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True)
class Start:
    """The act starts a run of the verb's DAG.

    Attributes:
        fixed: values of the conf that the browser cannot choose.
        takes_confirm: whether the DAG's form has the typed name of the pipeline, too.
    """

    fixed: Mapping[str, Any] = field(default_factory=dict)
    takes_confirm: bool = False


@dataclass(frozen=True)
class Answer:
    """The act answers a run of the verb's DAG that waits for a person; the field `run` names it.

    Attributes:
        keep: keeps what the person said, once the answer is taken; Airflow gives no task the note of its run.
    """

    task: str
    option: str
    keep: Callable[[Settings, ActRequest], None] | None = None


@dataclass(frozen=True)
class ActRequest:
    """An act that somebody may do and that was asked for in due form.

    Attributes:
        id: chosen in the browser, the same when it repeats the request.
    """

    pipeline: str
    act: str
    id: str
    reason: str
    fields: Mapping[str, Any]
    by: str


@dataclass(frozen=True)
class Record:
    """The act is done at once, by the server of the page; only for a small record that changes nothing served.

    Attributes:
        do: does it, and returns a view of what was done; raises RequestError if it is refused.
    """

    do: Callable[[Settings, ActRequest, datetime], object]


@dataclass(frozen=True)
class ActForm:
    """What the page needs for the form of an act; the fields are those of `Act`."""

    act: str
    title: str
    says: str
    verb: str
    fields: tuple[Field, ...]
    changes_served: bool
    wants_reason: bool
    preview: str | None


@dataclass(frozen=True)
class Act:
    """One thing that a person may do.

    Attributes:
        name: in the address: `POST api/p/PIPELINE/acts/NAME`.
        says: what happens then, in a sentence.
        verb: the verb of the DAG that it belongs to; `backfill` is the DAG `backfill__PIPELINE`.
        of: name in `rivertwice.acts` of what that DAG has to do for the pipeline; "": any does.
        changes_served: whether served rows may change by it. Then the person types the pipeline's name.
        wants_reason: whether a reason must be given.
        preview: the route below `api/p/PIPELINE` that shows what would happen; None: nothing to show.
    """

    name: str
    title: str
    says: str
    verb: str
    effect: Start | Answer | Record = field(default_factory=Start)
    fields: tuple[Field, ...] = ()
    changes_served: bool = False
    wants_reason: bool = True
    preview: str | None = None
    of: str = ""

    @property
    def form(self) -> ActForm:
        """What the page needs for its form."""
        said = (self.name, self.title, self.says, self.verb, self.fields)
        return ActForm(*said, self.changes_served, self.wants_reason, self.preview)


_KINDS = {"savepoint": NAME, "version": NAME, "place": PLACE, "value": RECORD}
"""What the page takes in a field of this name; any other is of the kind that its schema says."""


def page_act(
    act: acts.Act[Any, Any],
    fixed: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    title: str = "",
    says: str = "",
    wants_reason: bool | None = None,
    preview: str | None = None,
) -> Act:
    """Return an act as the page has it: its dialog starts the act's DAG.

    Args:
        fixed: fields that the browser cannot choose.
        name: in the address; "": the act's own.
        title: on the button; "": the act's own.
        says: what happens, in a sentence; "": what the act says.
        wants_reason: whether a reason must be given; None: if the act needs one, or has to be confirmed.
    """
    given, is_operate, is_one_of = dict(fixed or {}), act.dag == OPERATE, len(acts.acts_of(act.dag)) > 1
    fields = [
        Field(each.name, each.title, _kind_of(each), each.choices, required=each.is_required or bool(each.choices))
        for each in acts.fields_of(act.request)
        if each.name not in given
    ]
    if act.dry_run and not is_operate and not given:
        fields.append(Field("dry_run", "Only plan it", FLAG))
    start = Start({"act": act.name, **given} if is_one_of else given, takes_confirm=is_operate and bool(act.confirm))
    reason = act.wants_reason or bool(act.confirm) if wants_reason is None else wants_reason
    return Act(
        name or act.name,
        title or act.title,
        says or act.says,
        act.dag,
        start,
        tuple(fields),
        changes_served=bool(act.confirm),
        wants_reason=reason,
        preview=preview,
        of=act.name,
    )


def _kind_of(field: acts.FormField) -> str:
    if field.is_flag:
        return FLAG
    if field.choices:
        return CHOICE
    return INSTANT if field.schema.get("format") == "date-time" else _KINDS.get(field.name, TEXT)


_ACTS: dict[str, Act] = {}


def register(*acts: Act) -> None:
    """Offer acts on the page.

    Raises:
        ValueError: another act has the name.
    """
    for act in acts:
        if _ACTS.get(act.name, act) != act:
            message = f"two acts are named {act.name!r}; a name is an address, so choose another"
            raise ValueError(message)
        _ACTS[act.name] = act


def registered() -> Mapping[str, Act]:
    """Return all acts by name."""
    return dict(_ACTS)


def check_act(act: Act, pipeline: str, asked: Mapping[str, Any], by: str, now: datetime | None = None) -> ActRequest:
    """Check a request for an act.

    Args:
        asked: `id`, `reason`, `confirm` and `fields` of the request.
        now: the time by which a range is in the future; None: a range may lie anywhere.

    Raises:
        RequestError: it is not in due form, or what has to be confirmed is not.
    """
    identity, reason, confirm = asked.get("id"), asked.get("reason") or "", asked.get("confirm") or ""
    if not isinstance(identity, str) or not re.fullmatch(ID_PATTERN, identity):
        message = f"id {str(identity)[:60]!r} of the request is not 8 to 64 letters, digits or -; nothing was started"
        raise RequestError(message)
    if not isinstance(reason, str) or len(reason) > ReasonText.LENGTH or not re.fullmatch(ReasonText.PATTERN, reason):
        message = (
            f"reason {str(reason)[:60]!r} cannot be kept; write one line of at most {ReasonText.LENGTH} characters without "
            "control characters, braces, $, ` and \\"
        )
        raise RequestError(message)
    if act.wants_reason and not reason.strip():
        message = f"no reason is given; {act.title!r} is recorded with the name of who did it and why: write why"
        raise RequestError(message)
    if act.changes_served and confirm != pipeline:
        message = (
            f"this may change what is served, and {str(confirm)[:60]!r} was typed to confirm it; "
            f"look at what would happen, then type {pipeline}"
        )
        raise RequestError(message)
    made = ActRequest(pipeline, act.name, identity, reason.strip(), _fields(act, asked.get("fields") or {}), by)
    if isinstance(act.effect, Start):
        check_form(act.verb, conf_of(act.effect, made), now, pipeline)
    return made


def conf_of(start: Start, asked: ActRequest) -> dict[str, Any]:
    """Return the conf of the DAG run that an act starts."""
    reason = {"reason": asked.reason} if asked.reason else {}
    confirm = {"confirm": asked.pipeline} if start.takes_confirm else {}
    return {**asked.fields, **start.fixed, **confirm, **reason}


def run_of(asked: ActRequest) -> str:
    """Return the id of the DAG run that an act starts; the same when the request is repeated."""
    return f"{RUN_PREFIX}{asked.id}"


def _fields(act: Act, values: Any) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        message = f"fields {str(values)[:60]!r} of the request is not an object; nothing was started"
        raise RequestError(message)
    known = {each.name: each for each in act.fields}
    unknown = sorted(str(name)[:60] for name in values if name not in known)
    if unknown:
        message = f"{act.title!r} does not know {unknown[0]!r}; it takes: {', '.join(known) or 'nothing'}"
        raise RequestError(message)
    given = {name: value for name, value in values.items() if value is not None and value != ""}
    missing = [each.name for each in act.fields if each.required and each.name not in given]
    if missing:
        message = f"{act.title!r} needs {known[missing[0]].title!r} ({missing[0]}), which is empty; fill it in"
        raise RequestError(message)
    for name, value in given.items():
        if known[name].kind == RUN and not (isinstance(value, str) and re.fullmatch(RUN_PATTERN, value)):
            message = f"{name} {str(value)[:60]!r} is not what {known[name].title!r} takes"
            raise RequestError(message)
    return given
