"""Versions of a pipeline: compare one with the one that serves, and let it serve if every difference has a cause, or a person accepts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from rivertwice.acts.act import Act, ActName, Plan, Request, World, taken_if
from rivertwice.acts.forms import NOT_IN_FORMS
from rivertwice.core import RequestError, require_name

if TYPE_CHECKING:
    from rivertwice.versions import Choice, Exchange, ExcludedWindows, Parity, StoredComparison, Switched

VERSION_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,63}(@v([2-9]|[1-9][0-9]{1,3}))?$"


class SwitchRequest(Request):
    """A request that another version serves."""

    version: str | None = Field(
        None,
        pattern=VERSION_PATTERN,
        title="Version",
        description="Which one serves next: NAME@v2, or NAME for the first one; empty means the newest that does not serve.",
        examples=["NAME@v2, or NAME for the first one"],
    )
    without_left_out: bool = Field(
        False,
        description="Serve although windows that are served now would be served no more.",
        json_schema_extra={NOT_IN_FORMS: True},
    )
    accept_different: bool = Field(
        False,
        description="Serve although rows differ without a cause, or none can be compared; kept with --reason and your name.",
        json_schema_extra={NOT_IN_FORMS: True},
    )


class CompareRequest(Request):
    """A request to compare what a version would serve with what is served; the pipeline is the version's name."""

    run: Annotated[str, taken_if(lambda name: require_name(name, "comparison"))] | None = Field(
        None,
        description="Name of the comparison; the same name is compared once.",
        json_schema_extra={NOT_IN_FORMS: True},
    )
    limit: int = Field(
        20,
        ge=0,
        le=1000,
        description="Maximum number of differing rows that are kept.",
        json_schema_extra={NOT_IN_FORMS: True},
    )


@dataclass(frozen=True)
class ComparisonOutcome:
    """A stored comparison of versions.

    Attributes:
        passed: whether the version may serve.
        parity: what differs, row by row; None: a comparison of this name was stored before.
    """

    run: str
    passed: bool
    parity: Parity | None


@dataclass(frozen=True)
class SwitchPlan:
    """What a switch would do, and what it builds on.

    Attributes:
        choice: which version serves next, and what that takes.
        parity: the comparison; None: a version that served before is not compared, nor one that cannot be.
        exchange: what is exchanged for what where rows cannot be compared, or differ and a person accepts that; else None.
    """

    choice: Choice
    parity: Parity | None = None
    exchange: Exchange | None = None

    @property
    def left_out(self) -> Sequence[ExcludedWindows]:
        """Windows that are served now and would be served no more."""
        by = self.exchange or self.parity
        return () if by is None else by.left_out


def _plan(world: World, request: SwitchRequest) -> Plan:
    """Compare the version with the one that serves, if it has to be."""
    from rivertwice.versions import choice_of, choose_version, look_at_exchange

    settings = world.settings
    choice = choice_of(settings, request.version) if request.version else choose_version(settings, request.pipeline)
    parity = find_parity(world, choice.version) if choice.compares else None
    different = choice.different if parity is None else parity.different  # Spark may find what the files do not say
    if request.accept_different and parity is not None and not different:
        different = parity.reasons
    exchange = look_at_exchange(settings, choice.version, different) if different else None
    found = SwitchPlan(choice, parity, exchange)
    rows = [("serves next", choice.version), ("serves now", choice.serving)]
    nothing = f"{choice.version} serves already" if choice.version == choice.serving else None
    return Plan(found, rows, refusals=_refusals(found, request), nothing=nothing)


def find_parity(world: World, version: str, limit: int = 20) -> Parity:
    """Return how what a version would serve differs from what is served; nothing is stored."""
    from rivertwice.engine import spark_on_demand
    from rivertwice.timeline import path_ledger
    from rivertwice.versions import compare_versions

    settings = world.settings
    with spark_on_demand(settings, f"rivertwice-parity-{version}") as spark:
        spark.expect(records=sum(row.read for row in path_ledger(settings.pipeline(version))))
        return compare_versions(settings, version, spark, world.progress, limit=limit)


def keep_parity(world: World, parity: Parity, run: str | None = None) -> StoredComparison:
    """Store a comparison under its name; the first of that name stays."""
    from rivertwice.core import utc_now
    from rivertwice.versions import new_run, store_comparison

    now = utc_now()
    home = world.settings.pipeline(parity.version)
    return store_comparison(home, parity, run or new_run(now), by=world.by, now=now)


def _plan_compare(world: World, request: CompareRequest) -> Plan:
    from rivertwice.timeline import path_ledger

    records = sum(row.read for row in path_ledger(world.settings.pipeline(request.pipeline)))
    return Plan({"records": records}, [("records of the version", records)])


def _do_compare(world: World, request: CompareRequest) -> ComparisonOutcome:
    from rivertwice.versions import find_comparison

    home = world.settings.pipeline(request.pipeline)
    stored = None if request.run is None else find_comparison(home, request.run)
    parity = None
    if stored is None:
        parity = find_parity(world, request.pipeline, request.limit)
        stored = keep_parity(world, parity, request.run)
    world.progress(f"comparison {stored.run} of {stored.version} with {stored.beside}: {stored.verdict}")
    for reason in stored.reasons:
        world.progress(f"refused: {reason}")
    return ComparisonOutcome(stored.run, stored.passed, parity)


def _refusals(found: SwitchPlan, request: SwitchRequest) -> list[str]:
    """Return why the version may not serve. Pure."""
    name, exchange, parity = found.choice.version, found.exchange, found.parity
    why = []
    if exchange is not None and not request.accept_different:
        why.append(f"no row of {name} can be compared: {'; '.join(exchange.different)}; accept that with a reason")
    elif exchange is not None and exchange.unready:
        why.append(f"{name} cannot serve yet: {'; '.join(step.text for step in exchange.unready)}")
    elif exchange is None and parity is not None:
        why += parity.reasons
    if found.left_out and not request.without_left_out:
        why.append(explain_left_out(name, found.left_out))
    return why


def explain_left_out(name: str, left_out: Sequence[ExcludedWindows]) -> str:
    """Return why a version does not serve that lacks windows which are served now, and what serves it all the same. Pure."""
    from rivertwice.core import to_plain

    parts = "; ".join(f"{part.windows} before {to_plain(part.end)}, because {part.why}" for part in left_out)
    return (
        f"windows of {name} could not be compared: {parts}; with --without-left-out it serves without that proof, "
        "and what it lacks is served no more"
    )


def _apply(world: World, request: SwitchRequest) -> Switched:
    """Let the version serve, if nothing refuses it and the comparison still holds."""
    from rivertwice.core import utc_now
    from rivertwice.versions import accept_differences, require_valid, serve_version

    plan = world.planned or _plan(world, request)
    if plan.refusals:
        raise RequestError(plan.refusals[0])
    found: SwitchPlan = plan.value
    settings, now, name, exchange = world.settings, utc_now(), found.choice.version, found.exchange
    stored = None if found.parity is None else keep_parity(world, found.parity)
    return serve_version(
        settings,
        name,
        by=world.by,
        now=now,
        compared=None if stored is None else stored.brief(),
        reason=request.reason,
        accept=None
        if exchange is None
        else lambda: accept_differences(
            settings, name, exchange.different, by=world.by, reason=request.reason, now=now
        ),
        check=lambda: None if stored is None or exchange is not None else require_valid(settings, stored),
    )


COMPARE = Act(
    "version.compare",
    "Compare",
    "What the version would serve is compared with what is served, row by row; the result is stored.",
    CompareRequest,
    _plan_compare,
    _do_compare,
    needs_spark=True,
    dag="",
    dry_run=False,
)
SERVE = Act(
    ActName.SERVE,
    "Compare and ask",
    "The version is compared with the one that serves; if every difference has a cause, a person is asked whether it shall serve. "
    "Where windows or keys changed, no row is compared: the person accepts that, and the reason is kept.",
    SwitchRequest,
    _plan,
    _apply,
    needs_spark=True,
    whole=True,
    dry_run=False,
)
