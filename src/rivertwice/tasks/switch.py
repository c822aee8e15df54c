"""What the tasks of `operate__P` do that let another version serve: choose it, read the comparison of this run, let the version serve, report."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rivertwice.acts import OPERATE
from rivertwice.core import RequestError, Settings, utc_now
from rivertwice.tasks.forms import RunReason
from rivertwice.tasks.names import comparisons
from rivertwice.tasks.run import APPROVE, TaskFailedError, TaskRun
from rivertwice.tasks.steps import form_of, reason_of

if TYPE_CHECKING:
    from rivertwice.timeline import Acceptance

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AskedSwitch:
    """Which version shall serve and why, as `rivertwice.versions.Choice` has it."""

    version: str
    serving: str
    compares: bool
    different: Sequence[str]
    reason: str


@dataclass(frozen=True)
class SwitchQuestion(AskedSwitch):
    """What is asked of a person before the version serves, and the comparison that let it; None: nothing was compared."""

    subject: str
    run: str | None
    body: str


@dataclass(frozen=True)
class Switch:
    """A switch that was done; `before` served until then."""

    version: str
    before: str
    rows: int
    by: str
    run: str | None


@dataclass(frozen=True)
class SwitchReport(Switch):
    """A switch, and the publications of the version before that do not count any more."""

    not_counted: Sequence[str]


def choose_version(settings: Settings, run: TaskRun, pipeline: str) -> AskedSwitch:
    """Check the form and return which version shall serve."""
    from rivertwice.versions import choose_version as choose

    asked: Any = form_of(OPERATE, pipeline, run).request
    choice = choose(settings, pipeline, asked.version or "")
    if choice.different:
        require_reason(choice.version, choice.different, asked.reason)
    log.info("%s shall serve in place of %s", choice.version, choice.serving)
    return AskedSwitch(**vars(choice), reason=asked.reason or reason_of(run))


def require_reason(version: str, different: Sequence[str], reason: str) -> None:
    """Check that the form says why a version whose rows cannot be compared shall serve. Pure.

    Raises:
        RequestError: it does not.
    """
    if not reason:
        message = (
            f"{version} cannot be compared: {'; '.join(different)}; start the DAG again and write in `reason` why "
            "it shall serve all the same"
        )
        raise RequestError(message)


def check_comparison(_settings: Settings, _run: TaskRun, _pipeline: str, choice: dict[str, Any]) -> list[str]:
    """Return the arguments of the job that compares; none if the version served before."""
    if not choice["compares"]:
        log.info("nothing is compared: %s", "; ".join(choice["different"]) or f"{choice['version']} served before")
        return []
    return ["--pipeline", choice["version"]]


def gate_switch(settings: Settings, run: TaskRun, _pipeline: str, choice: dict[str, Any]) -> SwitchQuestion:
    """Read the comparison of this DAG run, and return what is asked of a person.

    Raises:
        TaskFailedError: it has not passed, or the version is not ready; the message names each reason.
    """
    from rivertwice.tasks.approval import (
        describe_comparison,
        describe_exchange,
        describe_refusal,
        describe_return,
        headline,
    )
    from rivertwice.versions import look_at_exchange, newest_comparison, publications_since

    chosen = AskedSwitch(**choice)
    asked = chosen.reason
    question = SwitchQuestion(**choice, subject=headline(chosen), run=None, body="")
    home = settings.pipeline(chosen.version)

    def ask_to_accept(different: Sequence[str]) -> SwitchQuestion:
        exchange = look_at_exchange(settings, chosen.version, different)
        exchange.require_ready()
        return replace(question, different=different, body=describe_exchange(exchange, asked))

    if chosen.different:
        return ask_to_accept(chosen.different)
    if not chosen.compares:
        published = publications_since(settings.pipeline(chosen.serving))
        return replace(question, body=describe_return(chosen, published))
    stored = newest_comparison(home, prefix=comparisons(run.run))
    if stored is None:
        message = (
            f"no comparison of {chosen.version} is recorded for the run {run.run}, although its job "
            "succeeded; look at the log of the task compare, and clear that task"
        )
        raise TaskFailedError(message)
    if stored.different:  # only Spark found it
        require_reason(chosen.version, stored.different, "" if asked == RunReason.MANUAL else asked)
        return replace(ask_to_accept(stored.different), run=stored.run)
    if not stored.passed:
        message = (
            f"comparison {stored.run} does not let {chosen.version} serve: {describe_refusal(stored)}; "
            f"`rivertwice version compare {chosen.version}` shows the rows"
        )
        raise TaskFailedError(message)
    log.info("comparison %s: %s", stored.run, stored.verdict)
    return replace(question, body=describe_comparison(stored, asked), run=stored.run)


def let_serve(settings: Settings, run: TaskRun, _pipeline: str, found: dict[str, Any]) -> Switch:
    """Let the version serve, if the comparison still holds; return what the switch did.

    Raises:
        TaskFailedError: it was not approved, or what was compared changed since.
    """
    from rivertwice.versions import accept_differences, find_comparison, require_valid, serve_version

    by = approved_by(found, run.results["approve"])
    version, reason, now = found["version"], found["reason"], utc_now()
    different = tuple(found.get("different", ()))  # absent in a run that began before an update
    stored = None if found["run"] is None else find_comparison(settings.pipeline(version), found["run"])
    if found["compares"] and stored is None:
        message = f"comparison {found['run']} of {version} is not stored any more; start the DAG again"
        raise TaskFailedError(message)

    def check() -> None:
        if stored is not None and not different:
            try:
                require_valid(settings, stored)
            except RequestError as error:
                raise TaskFailedError(str(error)) from None  # no refused form: somebody approved

    def accepted() -> Acceptance:
        try:
            return accept_differences(settings, version, different, by=by, reason=reason, now=now)
        except RequestError as error:
            raise TaskFailedError(str(error)) from None  # no refused form: somebody approved

    done = serve_version(
        settings,
        version,
        by=by,
        now=now,
        compared=None if stored is None else stored.brief(),
        reason=reason,
        accept=accepted if different else None,
        check=check,
    )
    log.info("%s serves, %s rows", done.version, done.rows)
    return Switch(done.version, found["serving"], done.rows, by, found["run"])


def approved_by(found: dict[str, Any], answer: dict[str, Any] | None) -> str:
    """Return who approved, for the record. Pure.

    Raises:
        TaskFailedError: it was not approved.
    """
    if answer is not None and answer.get("chosen_options") == [APPROVE]:
        user = answer.get("responded_by_user") or {}
        return f"{user.get('name') or user.get('id') or 'somebody'} in Airflow"
    message = f"the switch to {found['version']} was not approved; start the DAG again"
    raise TaskFailedError(message)


def report_switch(settings: Settings, _run: TaskRun, pipeline: str, done: dict[str, Any]) -> SwitchReport:
    """Return what the switch did, and which publications do not count any more."""
    from rivertwice.tasks.approval import publication_lines
    from rivertwice.versions import publications_not_counted

    lines = publication_lines(publications_not_counted(settings, settings.pipeline(pipeline)))
    log.info("%s serves %s since it was let by %s; before: %s", pipeline, done["version"], done["by"], done["before"])
    for line in lines:
        log.warning("this publication of %s does not count for %s: %s", done["before"], done["version"], line)
    return SwitchReport(**done, not_counted=lines)
