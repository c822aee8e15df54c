"""Commands that do an act (`rivertwice.acts`): their arguments and options are made of its request."""

from __future__ import annotations

import functools
import getpass
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli import options
from rivertwice.cli.asking import Consent, Preview
from rivertwice.cli.frame import Frame, as_table
from rivertwice.core import utc_now

if TYPE_CHECKING:
    from rivertwice.acts import Act, FormField, Plan, Request, World
    from rivertwice.savepoint import ShownStep

_Command = Callable[..., Any]


class _Fields:
    """Stands for the arguments and options that are made of a request, until the command is parsed or explained."""

    def __init__(self, act: str, without: Collection[str], arguments: Mapping[str, bool]) -> None:
        self.act, self.without, self.arguments = act, without, arguments
        self.opts: list[str] = []  # as an argument has: the options of every command are added beside it

    def names(self) -> list[str]:
        """Return the names of the fields that the command offers."""
        return [field.name for field in self._fields()]

    def made(self) -> list[click.Parameter]:
        """Return the arguments and options."""
        return [
            _argument(field, required=self.arguments[field.name]) if field.name in self.arguments else _option(field)
            for field in self._fields()
        ]

    def _fields(self) -> list[FormField]:
        from rivertwice.acts import fields_of, find_act  # pydantic: a list of all verbs needs none

        known = fields_of(find_act(self.act).request, hidden=True)
        return [field for field in known if field.name not in self.without]


class ActCommand(click.Command):
    """A command whose options are made of a request when they are first asked for."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return all arguments and options."""
        given: list[Any] = list(self.params)
        self.params = [one for each in given for one in (each.made() if isinstance(each, _Fields) else [each])]
        return super().get_params(ctx)


def asks_for(
    act: str, *, without: Collection[str] = (), arguments: Mapping[str, bool] | None = None
) -> Callable[[_Command], _Command]:
    """Add NAME and what an act takes; the command, an `ActCommand`, gets `name` and `asked`, the values by the request's fields.

    Args:
        without: fields that the command does not offer.
        arguments: fields that are written without an option, to whether they must be.
    """
    fields = _Fields(act, without, dict(arguments or {}))

    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def run(*args: Any, **values: Any) -> Any:
            asked = {name: values.pop(name) for name in fields.names()}
            return command(*args, asked=asked, **values)

        run.__dict__.setdefault("__click_params__", []).append(fields)
        run.__dict__["act"] = act
        return options.name_argument()(run)

    return decorate


def _argument(field: FormField, *, required: bool) -> click.Argument:
    complete = options.savepoints if field.name == "savepoint" else None
    return click.Argument([field.name], required=required, shell_complete=complete)


def _option(field: FormField) -> click.Option:
    """Return the option of a field; an empty one is as one that is left out."""
    kind, text = field.schema["type"], field.description
    if field.is_flag:
        both = f"--{field.option.removeprefix('--no-')}/{field.option}" if field.default is True else field.option
        return click.Option([both, field.name], is_flag=True, default=bool(field.default), help=text)
    more: dict[str, Any] = {}
    if field.schema.get("format") == "date-time":
        more, text = (
            {"type": options.INSTANT, "metavar": "INSTANT"},
            f"{text.rstrip('.')}: {options.INSTANT_FORM}.",
        )
    elif kind in ("integer", "number"):
        ends = field.schema.get("minimum"), field.schema.get("maximum")
        more = {"type": (click.IntRange if kind == "integer" else click.FloatRange)(*ends), "show_default": True}
    elif field.name == "savepoint":
        more = {"metavar": "ID", "shell_complete": options.savepoints}
    return click.Option([field.option, field.name], default=field.default or None, help=text, **more)


def describe_steps(steps: Sequence[ShownStep], resumes: str | None) -> str:
    """Return the steps of an operation for people, in order."""
    title = "steps" if resumes is None else f"steps; {resumes} was interrupted and is resumed"
    return as_table(("", "step", "state"), [[step.number, step.does, step.state] for step in steps], title=title)


def do_act(
    frame: Frame,
    act: str,
    name: str,
    asked: Mapping[str, Any],
    consent: Consent,
    question: str,
    words: Callable[[Any], str],
) -> Any:
    """Show what an act would do, and do it with consent; return its result, None if it was not done.

    Args:
        words: from the plan's value, the command that does it, without `--yes`.
    """
    chosen, world, request = prepare_act(frame, act, name, asked, by=consent.by)
    plan: Plan | None = None

    def preview() -> Preview:
        nonlocal plan
        plan = shown = chosen.plan(world, request)
        title = f"{chosen.title.lower()} of {name}: nothing was changed"
        return Preview(
            shown.value, lambda: describe_plan(shown, title, words(shown.value)), refused=bool(shown.refusals)
        )

    return chosen.apply(replace(world, planned=plan), request) if consent.given(name, question, preview) else None


def prepare_act(
    frame: Frame, act: str, name: str, asked: Mapping[str, Any], *, by: str | None = None
) -> tuple[Act[Any, Any], World, Request]:
    """Return an act, the world in which it is done, and its checked request.

    Raises:
        RequestError: the request is refused.
    """
    from rivertwice.acts import World, find_act, parse_request

    chosen, now = find_act(act), utc_now()
    request = parse_request(chosen, asked, name)  # a form refuses a range in the future; here it may mean all there is
    return chosen, World(frame.settings, by or getpass.getuser(), now, progress=frame.progress), request


def plan_act(frame: Frame, act: str, name: str, asked: Mapping[str, Any]) -> Plan:
    """Return what an act would do."""
    chosen, world, request = prepare_act(frame, act, name, asked)
    return chosen.plan(world, request)


def run_act(frame: Frame, act: str, name: str, asked: Mapping[str, Any]) -> Any:
    """Do an act without a question, and return its result."""
    chosen, world, request = prepare_act(frame, act, name, asked)
    return chosen.apply(world, request)


def describe_plan(plan: Plan, title: str, words: str) -> str:
    """Return what an act would do, for people."""
    rows: list[list[Any]] = [list(row) for row in plan.rows]
    parts = [as_table(("what", "how much"), rows, title=title)]
    if plan.reread:
        again = [(part.partition, part.start, part.end, part.log_begins) for part in plan.reread]
        parts.append(as_table(("partition", "from", "to", "Kafka begins at"), again))
    parts += filter(None, [plan.text])
    if plan.changes:
        parts.append(as_table(("component", "old", "new", "state"), [list(change) for change in plan.changes]))
    if plan.steps:
        parts.append(describe_steps(plan.steps, plan.resumes))
    parts += filter(None, [plan.warning])
    parts += [f"refused: {why}" for why in plan.refusals] or [f"to do it: {words} --yes"]
    return "\n\n".join(parts)
