"""up, down, status: the services of one home."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.demo import run_steps
from rivertwice.cli.frame import DEFECT, Frame, as_table, example, pass_frame
from rivertwice.cli.options import INSTANT, INSTANT_FORM, name_argument
from rivertwice.core import RequestError, naming_extras

if TYPE_CHECKING:
    from rivertwice.definition import Definition, Judgement


DRAIN_SECONDS = 180.0


@click.command(epilog=example("rivertwice up", "rivertwice up --airflow", "rivertwice up --sample"))
@click.option("--airflow", is_flag=True, help="Also start Airflow and print its address and login.")
@click.option(
    "--sample", is_flag=True, help="Also send each pipeline's sample.jsonl to its topic, if the topic is empty."
)
@changes_unasked("services run", because="what runs stays as it is")
@pass_frame
def up(frame: Frame, airflow: bool, sample: bool) -> None:
    """Check all definitions, start broker, topics and agent.

    If Java or jars are missing, they are fetched first, as `rivertwice setup` does. The topics of all pipelines are created. What runs already is left as it is, and what was checked already is not checked again. Streams whose intent is `running`
    come back with the agent. A definition that is refused gets no topics and does not start; the others do. Exit 3 then.
    """
    from rivertwice.agent import start_agent
    from rivertwice.definition import create_topics
    from rivertwice.local import is_set_up, start_broker

    settings = frame.settings
    if not is_set_up(settings):
        run_steps(frame)
    with naming_extras("pyspark", *(["airflow"] if airflow else [])):
        judged = check_definitions(frame)
    frame.progress("broker ...")
    broker = start_broker(settings)
    usable = [judgement.bundle.definition for judgement in judged if judgement.bundle and not judgement.broken]
    create_topics(settings, usable)
    sent = send_samples(frame, usable) if sample else {}
    suites = check_suites(frame, judged)
    frame.progress("agent ...")
    frame.warn_of_copies()
    agent = start_agent(settings)
    result: dict[str, Any] = {
        "broker": {"bootstrap": broker.bootstrap, "pid": broker.pid, "cluster_id": broker.cluster_id},
        "agent": {"pid": agent.pid},
        "pipelines": [judgement.name for judgement in judged if judgement.bundle is not None],
        "definitions": {
            judgement.name: {"verdict": judgement.state, "found": [*judgement.broken, *judgement.unchecked]}
            for judgement in judged
        },
        "suites": suites,
        **({"sample": sent} if sample else {}),
        "airflow": None,
    }
    if airflow:
        from rivertwice.local import start_airflow

        frame.progress("airflow ...")
        info = start_airflow(settings, progress=frame.progress)
        result["airflow"] = {"url": info.url, "user": info.user, "password": info.password}
    frame.emit(result, lambda: up_text(result, judged))
    if suites or any(judgement.broken for judgement in judged):
        raise SystemExit(DEFECT)


def send_samples(frame: Frame, definitions: Sequence[Definition]) -> dict[str, str]:
    """Send the samples of pipelines, and return pipeline to what was done.

    Raises:
        RequestError: no pipeline has one.
    """
    from rivertwice.core import utc_now
    from rivertwice.local import SAMPLE_FILE, send_sample

    now = utc_now()
    said = {each.name: text for each in definitions if (text := send_sample(frame.settings, each, now)) is not None}
    if not said:
        message = (
            f"no pipeline in {frame.settings.definitions} has a {SAMPLE_FILE}; `rivertwice init --sample` "
            "writes a pipeline that has one"
        )
        raise RequestError(message)
    for name, text in said.items():
        frame.progress(f"{name}: {text}")
    return said


def check_suites(frame: Frame, judged: Sequence[Judgement]) -> dict[str, list[str]]:
    """Return pipeline to what is wrong with its suites of data quality; their streams run all the same."""
    from rivertwice.quality import suite_mistakes

    found = {
        judgement.name: suite_mistakes(frame.settings, judgement.bundle.definition)
        for judgement in judged
        if judgement.bundle is not None
    }
    return {name: problems for name, problems in found.items() if problems}


def check_definitions(frame: Frame) -> list[Judgement]:
    """Return the judgement on every definition of the project; Spark is started only for those that were not checked yet."""
    from rivertwice.core import utc_now
    from rivertwice.definition import DefinitionFiles
    from rivertwice.engine import judge_folder, spark_on_demand

    frame.progress("definitions ...")
    root = frame.settings.definitions
    folders = sorted(path.parent for path in root.glob(f"*/{DefinitionFiles.YAML_FILE}"))
    with spark_on_demand(frame.settings.with_local_spark(), "rivertwice-check", quick=True) as spark:
        return [judge_folder(frame.settings, folder, spark, utc_now()) for folder in folders]


def up_text(result: Mapping[str, Any], judged: Sequence[Judgement]) -> str:
    """Return what runs, and the verdict on every definition, for people. Pure."""
    services = "\n".join(_services_text(result))
    rows = [
        (judgement.name, judgement.state, "; ".join((*judgement.broken, *judgement.unchecked))) for judgement in judged
    ]
    rows += [(name, "sample", text) for name, text in result.get("sample", {}).items()]
    rows += [(name, "broken suite", "; ".join(problems)) for name, problems in result["suites"].items()]
    return f"{services}\n{as_table(('definition', 'verdict', 'found'), rows)}"


def _services_text(result: Mapping[str, Any]) -> Iterator[str]:
    broker, agent, airflow = result["broker"], result["agent"], result["airflow"]
    process = "of another owner" if broker["pid"] is None else f"process {broker['pid']}"
    yield f"broker   answers at {broker['bootstrap']} ({process})"
    yield f"agent    keeps streams alive (process {agent['pid']})"
    if airflow is not None:
        yield f"airflow  {airflow['url']}, user {airflow['user']}, password {airflow['password']}"


@click.command(epilog=example("rivertwice down"))
@changes_unasked("services stop", because="streams drain, and `rivertwice up` brings them back")
@pass_frame
def down(frame: Frame) -> None:
    """Drain the streams, then stop agent, Airflow, engine and broker.

    Intents are kept: `rivertwice up` brings back the streams whose desired state is running. The broker is stopped only
    when no driver is running any more.
    """
    from rivertwice.agent import drain_all, stop_agent, supervised_names
    from rivertwice.engine import stop_engine
    from rivertwice.local import stop_broker
    from rivertwice.tasks import Desk

    settings = frame.settings
    frame.progress("agent ...")
    agent = stop_agent(settings)
    drained = drain_all(settings, supervised_names(settings), "down", DRAIN_SECONDS, frame.progress)
    Desk(settings).end_all()  # of an Airflow elsewhere, which tries them again
    frame.progress("airflow ...")
    airflow = _stop_airflow(frame)
    engine = stop_engine(settings)
    frame.progress("broker ...")
    broker = stop_broker(settings)
    result = {"drained": drained, "agent": agent, "airflow": airflow, "engine": engine, "broker": broker}
    frame.emit(result, lambda: f"stopped; drained: {', '.join(drained) or 'nothing ran'}")


def _stop_airflow(frame: Frame) -> list[str]:
    from rivertwice.local import stop_airflow

    return list(stop_airflow(frame.settings) or [])


@click.command(
    epilog=example(
        "rivertwice status",
        "rivertwice status flight_delays",
        "rivertwice status flight_delays --why",
        "rivertwice status flight_delays --time",
        "rivertwice status --week --html > week.html",
        "rivertwice --output json status | jq .pipelines",
    )
)
@name_argument(required=False)
@click.option(
    "--why", is_flag=True, help="Measure the streams; name likely causes of what hurts instead. Exit 3 if any."
)
@click.option(
    "--time",
    "where_time",
    is_flag=True,
    help="Show where the time of the newest batches, the last reconcile and the last backfill went instead, and what would save some.",
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Show also the driver of each stream, its epoch, timeline and micro-batch."
)
@click.option(
    "--week", is_flag=True, help="The report of the last seven days: compared, agreed, repaired, late, lost, proved."
)
@click.option("--until", type=INSTANT, metavar="INSTANT", help=f"With --week: its end; default: now. {INSTANT_FORM}.")
@click.option("--html", is_flag=True, help="With --week: print it as an HTML page without a script.")
@pass_frame
def status(
    frame: Frame,
    name: str | None,
    why: bool,
    where_time: bool,
    verbose: bool,
    week: bool,
    until: datetime | None,
    html: bool,
) -> None:
    """Show everything in one view.

    It has the services, and per pipeline the desired and the observed state.

    --why names likely causes of lag, silence, late rows, dead letters and stale savepoints: only those that a figure supports.
    """
    if why:
        from rivertwice.cli.metrics import show_causes

        show_causes(frame, name)
        return
    if where_time:
        from rivertwice.cli.metrics import show_times

        show_times(frame, name)
        return
    if (html or until) and not week:
        message = "--until and --html are for --week; write `rivertwice status --week --html > week.html`"
        raise click.UsageError(message)
    from rivertwice.cli.status import status_text, view_home, week_text
    from rivertwice.core import utc_now

    names = frame.settings.pipeline_names() if name is None else [frame.known_pipeline(name)]
    if week:
        from rivertwice.core import base_of
        from rivertwice.read import WeekReport

        if name is None:
            names = sorted({base_of(each) for each in names})  # a version is not a pipeline more
        report = WeekReport.read(frame.settings, names, until or utc_now())
        frame.emit(report, lambda: report.page if html else week_text(report))
        return
    view = view_home(frame.settings, names, utc_now())
    frame.emit(view, lambda: status_text(view, verbose=verbose))
