"""What `rivertwice status` shows: the services of a home and its pipelines, as a view and as text. Imported by that verb alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rivertwice.agent import PipelineView, Unreadable, agent_status, view_pipeline
from rivertwice.cli.frame import as_table
from rivertwice.core import RivertwiceError, Settings, base_of, to_iso, to_plain
from rivertwice.engine import engine_status

if TYPE_CHECKING:
    from rivertwice.agent import ObjectivesView
    from rivertwice.read import NowView, WeekReport


@dataclass(frozen=True)
class BrokerView:
    """The broker that answers."""

    bootstrap: str
    pid: int | None


@dataclass(frozen=True)
class AgentView:
    """The agent that lives, and how long ago it reported."""

    pid: int
    beat_age_s: float


@dataclass(frozen=True)
class AirflowView:
    """Airflow of this home: its address, and whether all of its services run."""

    url: str | None
    running: bool


@dataclass(frozen=True)
class EngineView:
    """The engine that lives, the memory that it takes, and the verb that it runs."""

    pid: int
    memory_mb: int
    running: str


@dataclass(frozen=True)
class PipelineStatus(PipelineView):
    """A pipeline with the sentence about it, its objectives and its cost; both None if its definition cannot be read."""

    now: NowView | None = None
    objectives: ObjectivesView | None = None


@dataclass(frozen=True)
class HomeStatus:
    """The services of a home, and its pipelines."""

    home: str
    broker: BrokerView | Unreadable | None
    agent: AgentView | None
    airflow: AirflowView | Unreadable | None
    engine: EngineView | None
    pipelines: tuple[PipelineStatus, ...]


def status_text(view: HomeStatus, *, verbose: bool = False) -> str:
    """Return the services, a table of the streams, and below it what is to be said of each.

    Args:
        verbose: whether the table has the driver of each stream, and where in its history it is.
    """
    lines = [f"home     {view.home}"]
    for service in ("broker", "agent", "airflow", "engine"):
        shown = getattr(view, service)
        words = "down" if shown is None else ", ".join(f"{key} {value}" for key, value in to_plain(shown).items())
        lines.append(f"{service:<8} {words}")
    inner = ("driver", "epoch", "timeline", "batch") if verbose else ()
    headers = ("pipeline", "desired", "state", *inner, "watermark", "lag", "reconciled", "savepoint")
    rows = [
        (
            item.name,
            item.desired,
            item.state,
            *(_inner(item) if verbose else ()),
            to_plain(item.watermark),
            item.lag_text,
            _reconciled(item.reconcile),
            None if item.savepoint is None or isinstance(item.savepoint, Unreadable) else item.savepoint.id,
        )
        for item in view.pipelines
    ]
    lines.append(as_table(headers, rows))
    of_each: tuple[Callable[[PipelineStatus], Iterator[str]], ...] = (
        said_texts, _patience_texts, _quality_texts, _load_texts, version_texts, recovery_texts, _retention_texts,
        _objective_texts,
    )  # fmt: skip
    for texts in of_each:
        lines += [f"{item.name}: {text}" for item in view.pipelines for text in texts(item)]
    return "\n".join(lines)


def _inner(item: PipelineStatus) -> tuple[Any, ...]:
    driver = item.driver
    return (*((None, None) if driver is None else (driver.pid, driver.epoch)), item.timeline, item.batch)


def said_texts(item: PipelineStatus) -> Iterator[str]:
    """Yield the sentence about a pipeline, one for each further thing that is wrong, and why parts of it cannot be read.

    Each reason comes once, and not if the sentences say it already. Pure.
    """
    now = item.now
    said = [f"not restarted any more: {item.given_up}"] if item.given_up else []
    if now is not None:
        said = [now.text, *(f"also: {each.text}" for each in now.others)]
    yield from said
    messages = [value.message for value in vars(item).values() if isinstance(value, Unreadable)]
    for reason in dict.fromkeys([*filter(None, [item.unread]), *messages]):
        if reason not in " ".join(said):
            yield reason


def version_texts(item: PipelineStatus) -> Iterator[str]:
    """Yield what a pipeline's versions wait for. Pure."""
    versions = () if isinstance(item.versions, Unreadable) else item.versions
    yield from (f"{each.name}: {each.next.text}" for each in versions if each.next.text)
    for each in versions:
        if each.accepted:
            at = to_iso(each.accepted.at)
            yield f"{each.name}: its rows could not be compared; {each.accepted.by} accepted them at {at}: {each.accepted.reason}"


def recovery_texts(item: PipelineStatus) -> Iterator[str]:
    """Yield what people must know of a pipeline's recovery: its objective, and savepoints that wait for their proof. Pure."""
    recovery = item.recovery
    if recovery is None or isinstance(recovery, Unreadable):
        return
    for each in recovery.awaiting:
        origin = each.origin or "not there: none was proved before"
        yield f"{each.savepoint} waits for its proof; the way back is {origin}"
    if recovery.objective_s is not None:
        state = "over its objective of" if recovery.over else "its objective is"
        yield (
            f"a fall-back would take about {recovery.seconds:.0f} s ({recovery.batches} batches to replay), "
            f"{state} {recovery.objective_s:.0f} s"
        )


def _patience_texts(item: PipelineStatus) -> Iterator[str]:
    """Yield when the lag will be gone, or when the agent tries again; nothing if neither is expected."""
    if item.next_attempt is not None:
        yield f"{item.consecutive_failures} failures in a row, next attempt at {to_iso(item.next_attempt)}"
    elif item.stale_lag_text is not None:
        yield item.stale_lag_text
    elif item.is_lag_fresh and item.lag and item.arriving_per_s is not None:
        pace = f"{item.arriving_per_s:.0f} records a second arrive"
        if item.catch_up_s is None:
            yield f"{item.lag} records wait and the lag does not shrink ({pace})"
        else:
            yield f"{item.lag} records wait, gone in about {item.catch_up_s:.0f} s at this pace ({pace})"


def _quality_texts(item: PipelineStatus) -> Iterator[str]:
    """Yield what fails of a pipeline's own suite."""
    quality = item.quality
    if quality is not None and not isinstance(quality, Unreadable) and quality.found:
        counts = ", ".join(f"{count} {severity}" for severity, count in quality.failing.items() if count)
        yield f"data quality: {counts} of {quality.expectations} expectations fail: {quality.found[0].message}"


def _load_texts(item: PipelineStatus) -> Iterator[str]:
    """Yield what a pipeline reads of its past, and which version serves."""
    if item.placed_until:
        until = to_iso(item.placed_until)
        yield f"catches up by event time: all partitions are read together, next up to {until}"
    for load in (item.first_load, item.stream_load):
        if load is not None and not isinstance(load, Unreadable):
            yield load.message
    if not item.serves:
        yield f"another version serves; `rivertwice version list {base_of(item.name)}`"


def _retention_texts(item: PipelineStatus) -> Iterator[str]:
    if item.retention is not None and not isinstance(item.retention, Unreadable) and item.retention.summary:
        yield f"retention: {item.retention.summary}"


def week_text(report: WeekReport) -> str:
    """Return the report of a week: a sentence, and a table of the pipelines, those first that need a look."""
    heads = ("pipeline", "windows", "rows", "agree", "late", "wrong", "lost", "repairs", "proved", "alerts")
    rows = [
        (
            week.name,
            week.windows,
            week.rows,
            week.agree,
            week.late,
            week.wrong,
            week.lost,
            week.repairs,
            week.proved,
            week.incidents,
        )
        for week in report.pipelines
    ]
    unread = [f"{week.name}: {week.unread}" for week in report.pipelines if week.unread]
    return "\n".join(
        [f"{to_iso(report.since)} to {to_iso(report.until)}: {report.sentence}", as_table(heads, rows), *unread]
    )


def _objective_texts(item: PipelineStatus) -> Iterator[str]:
    """Yield what is left of each objective, and what the driver costs."""
    if item.objectives is not None:
        yield from (f"slo: {budget.text}" for budget in item.objectives.budgets)
        yield from (f"cost: {cost.text}" for cost in [item.objectives.cost] if cost)


def _reconciled(reconcile: Mapping[str, Any] | Unreadable | None) -> str | None:
    if reconcile is None or isinstance(reconcile, Unreadable):
        return None if reconcile is None else reconcile.error
    counts = reconcile.get("counts")
    stream = counts.get("stream", counts) if isinstance(counts, dict) else {}
    return " ".join(f"{verdict} {count}" for verdict, count in stream.items() if isinstance(count, int) and count)


def view_home(settings: Settings, names: Iterable[str], now: datetime) -> HomeStatus:
    """Return the services of a home, and these pipelines."""
    agent, engine = agent_status(settings), engine_status(settings)
    return HomeStatus(
        str(settings.home),
        _view_broker(settings),
        None if agent is None else AgentView(agent.pid, round((now - agent.beat_at).total_seconds(), 1)),
        _view_airflow(settings),
        None
        if engine is None
        else EngineView(engine.pid, round(engine.memory_bytes / 1e6), engine.running or "nothing"),
        tuple(
            PipelineStatus(**vars(view_pipeline(settings, name, now, versions=True)), now=said, objectives=objectives)
            for name in names
            for said, objectives in [judged_of(settings, name, now)]
        ),
    )


def judged_of(settings: Settings, name: str, now: datetime) -> tuple[NowView | None, ObjectivesView | None]:
    """Return the sentence about a pipeline, as the page in Airflow says it, its lights and objectives; none without its definition."""
    from rivertwice.agent import ObjectivesView
    from rivertwice.definition import load_definition
    from rivertwice.read import NowView

    try:
        definition = load_definition(settings.definition_folder(name))
    except RivertwiceError:
        return None, None
    return NowView.read(settings, definition, now), ObjectivesView.read(settings.pipeline(name), definition, now)


def _view_broker(settings: Settings) -> BrokerView | Unreadable | None:
    from rivertwice.local import broker_status

    try:
        broker = broker_status(settings)
    except RivertwiceError as error:
        return Unreadable(error.reason, str(error))
    return None if broker is None else BrokerView(broker.bootstrap, broker.pid)


def _view_airflow(settings: Settings) -> AirflowView | Unreadable | None:
    from rivertwice.local import airflow_status

    try:
        airflow = airflow_status(settings)
    except RivertwiceError as error:
        return Unreadable(error.reason, str(error))
    return AirflowView(airflow.url, airflow.running) if any(airflow.services.values()) else None
