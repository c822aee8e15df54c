"""Reconcile: what the stream emitted and what is served are compared with what the log contains; each difference gets a named cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rivertwice.acts.act import Act, Plan, RangeRequest, World, taken_if
from rivertwice.acts.forms import NOT_IN_FORMS
from rivertwice.core import require_name


@dataclass(frozen=True)
class ReconcileOutcome:
    """What came of a reconcile.

    Attributes:
        alerts: kinds of the alerts that fire.
    """

    stored: Mapping[str, Any]
    alerts: tuple[str, ...]


class ReconcileRequest(RangeRequest):
    """A request to compare; without a range everything that is closed.

    A run of everything starts where the newest seal ended, unless it is full.
    """

    full: bool = Field(
        False, title="Full", description="Compare everything from the first batch on, and check all seals."
    )
    run: Annotated[str, taken_if(lambda name: require_name(name, "run"))] | None = Field(
        None,
        description="Name of the run; the same name stores its rows only once.",
        json_schema_extra={NOT_IN_FORMS: True},
    )
    silent: bool = Field(
        False,
        description="Raise and end no alerts: the caller reads the gate and reports it.",
        json_schema_extra={NOT_IN_FORMS: True},
    )

    @model_validator(mode="after")
    def _full_or_range(self) -> Self:
        if self.full and self.start is not None:
            message = "full compares all windows, but a range is given too; leave one of them out"
            raise ValueError(message)
        return self

    @property
    def is_sealed(self) -> bool:
        """Whether the run starts where the newest seal ended."""
        return not self.full and self.start is None


def _plan(world: World, request: ReconcileRequest) -> Plan:
    from rivertwice.reconcile import count_unsealed

    records = count_unsealed(world.settings.pipeline(request.pipeline), full=not request.is_sealed)
    return Plan({"records": records}, [("records to read again", records)])


def _apply(world: World, request: ReconcileRequest) -> ReconcileOutcome:
    """Compare, raise and end alerts, and return the stored run with the kinds of alerts that fire."""
    from rivertwice.core import to_plain, utc_now
    from rivertwice.engine import spark_on_demand
    from rivertwice.reconcile import count_unsealed, reconcile, reconcile_runs, reconcile_unchanged

    settings, name, now, run = world.settings, request.pipeline, utc_now(), request.run
    home = settings.pipeline(name)
    report = (
        reconcile_unchanged(settings, name, now=now, run=run, progress=world.progress) if request.is_sealed else None
    )
    if report is None:
        with spark_on_demand(settings, f"rivertwice-reconcile-{name}", remote=True) as spark:
            spark.expect(records=count_unsealed(home, full=not request.is_sealed))
            report = reconcile(
                spark(),
                settings,
                name,
                range=request.range,
                full=request.full,
                now=now,
                run=run,
                progress=world.progress,
            )
    stored: dict[str, Any] = to_plain(next(each for each in reconcile_runs(home) if each["run"] == report.run))
    for pair, counts in report.counts.items():
        world.progress(f"{pair}: {', '.join(f'{verdict} {count}' for verdict, count in counts.items())}")
    for alert in report.gate.alerts:
        world.progress(f"{alert.severity}: {alert.message}")
    alerts = [] if request.silent else _report_gate(world, name, stored, whole=request.start is None)
    return ReconcileOutcome(stored, tuple(alerts))


def _report_gate(world: World, name: str, stored: Mapping[str, Any], *, whole: bool) -> list[str]:
    """Raise alerts about what the gate found and end those that are over; return the kinds that fire.

    The agent sends them; where none lives, this process does.
    """
    from rivertwice.agent import Sender, agent_status, alerts_of, record_gate

    settings, left = world.settings, frozenset[str]()
    if settings.pipeline(name).repairs.exists():
        from rivertwice.upkeep import Repairs

        left = Repairs(settings.pipeline(name)).kinds_at_work
    details = {"run": str(stored["run"])}
    found = record_gate(settings, name, stored, by="command", details=details, whole=whole, left=left)
    if alerts_of(settings).state().alerts and agent_status(settings) is None:
        Sender(settings).run_pass()
    return [report.cause.kind for report in found]


RECONCILE = Act(
    "reconcile",
    "Reconcile now",
    "Stream, served and truth are compared; nothing served changes.",
    ReconcileRequest,
    _plan,
    _apply,
    needs_spark=True,
    dag="reconcile",
    dry_run=False,
)
