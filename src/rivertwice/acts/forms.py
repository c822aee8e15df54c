"""The fields of an act's request as every form has them, and the check of what a form sends. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from pydantic import ValidationError

from rivertwice.acts.act import NOW, Act, R, Request
from rivertwice.core import RequestError

NOT_IN_FORMS, OPTION = "not_in_forms", "option"
"""Keys of a field's JSON schema: only commands and programs take it; what commands and jobs call it, if not by its name."""
_KEPT = ("type", "pattern", "maxLength", "format", "enum", "minimum", "maximum")


@dataclass(frozen=True)
class FormField:
    """A field of a form.

    Attributes:
        name: in the request.
        schema: of its value, as JSON Schema: `type`, and `pattern`, `maxLength`, `format`, `enum` where it has them.
        default: what it is if it is not given.
        option: of commands and jobs, as `--from`.
    """

    name: str
    title: str
    description: str
    schema: Mapping[str, Any]
    is_required: bool
    example: str
    default: Any = None
    option: str = ""

    @property
    def is_flag(self) -> bool:
        """Whether it is true or false."""
        return bool(self.schema["type"] == "boolean")

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that it may have; empty: any that fits the schema."""
        return tuple(self.schema.get("enum", ()))


def fields_of(request: type[Request], *, hidden: bool = False) -> tuple[FormField, ...]:
    """Return the fields that a form has. Not the pipeline, which the form belongs to, and not the reason, which every form asks for.

    Args:
        hidden: also those that only commands and programs take.
    """
    return _described(request, hidden)


@cache
def _described(request: type[Request], hidden: bool) -> tuple[FormField, ...]:
    described = request.model_json_schema()  # costs a millisecond, and a hundred pipelines have four forms each
    found = []
    for name, schema in described["properties"].items():
        if name in ("pipeline", "reason") or (schema.get(NOT_IN_FORMS) and not hidden):
            continue
        own = next((one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"), schema)
        value = {key: own[key] for key in _KEPT if key in own}
        found.append(
            FormField(
                name,
                schema.get("title", name),
                schema.get("description", ""),
                value,
                name in described.get("required", ()),
                str(next(iter(schema.get("examples", ())), "")),
                schema.get("default"),
                schema.get(OPTION) or f"--{'no-' if schema.get('default') is True else ''}{name.replace('_', '-')}",
            )
        )
    return tuple(found)


def parse_request(act: Act[R, Any], values: Mapping[str, Any], pipeline: str, now: datetime | None = None) -> R:
    """Return the checked request for an act.

    Args:
        values: name of a field to its value; an empty one (None, "", or false where that is the default) is as one that is left out.
        now: the time by which a range is in the future; None: a range may lie anywhere.

    Raises:
        RequestError: a field is unknown, missing, or has a value that cannot be taken.
    """
    on = {name for name, field in act.request.model_fields.items() if field.default is True}
    given = {
        name: value
        for name, value in values.items()
        if value is not None and value != "" and (value is not False or name in on)
    }
    if act.wants_reason and not str(given.get("reason", "")).strip():
        message = f"{act.name} needs reason, which is empty; it is recorded with your name; nothing was done"
        raise RequestError(message)
    try:
        return act.request.model_validate({**given, "pipeline": pipeline}, context={NOW: now})
    except ValidationError as error:
        raise RequestError(_explain(act, error)) from None


def parse_form(act: Act[R, Any], values: Mapping[str, Any], pipeline: str, now: datetime | None = None) -> R:
    """Return the checked request for an act from a form, which lacks the fields that only commands and programs have.

    The arguments and errors are those of `parse_request`.
    """
    known = {each.name for each in fields_of(act.request)} | {"reason"}
    for name, value in values.items():
        if name not in known and value not in (None, "", False):
            raise RequestError(_explain_unknown(act, name))
    return parse_request(act, {name: value for name, value in values.items() if name in known}, pipeline, now)


def _explain_unknown(act: Act[R, Any], name: str) -> str:
    known = ", ".join([*(each.name for each in fields_of(act.request)), "reason"])
    return f"{act.name} does not take {name[:60]!r}; leave it empty; it takes: {known}"


def _explain(act: Act[R, Any], error: ValidationError) -> str:
    """Return the first thing that is wrong, and what to write instead."""
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    shown = f"{name} {str(first['input'])[:60]!r}"
    field = next((each for each in fields_of(act.request) if each.name == name), None)
    kind, context = first["type"], first.get("ctx") or {}
    if kind == "extra_forbidden":
        return _explain_unknown(act, name)
    if kind == "missing":
        return f"{act.name} needs {name}, which is empty; nothing was done"
    if kind == "value_error":
        return (
            f"{name} {context['error']}" if field is not None and field.schema.get("format") else str(context["error"])
        )
    if kind == "literal_error":
        return f"{shown} is not one of {', '.join(field.choices if field else ())}"
    if kind == "string_too_long":
        return f"{name} has to be a text of at most {context['max_length']} characters; nothing was done"
    if kind == "string_unicode":
        return f"{name} has a character that UTF-8 cannot write; nothing was done"
    if kind == "string_pattern_mismatch" and name == "reason":
        return (
            f"{shown} cannot be kept; write one line without control characters, braces, $, ` and \\; nothing was done"
        )
    if field is not None and field.is_flag:
        return f"{shown} is neither true nor false"
    if field is not None and field.example:
        return f"{shown} cannot be read; write it as {field.example}; nothing was done"
    return f"{shown}: {first['msg']}; nothing was done"
