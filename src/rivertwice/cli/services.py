"""up, down, status: the services of one home."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.demo import run_steps
from rivertwice.cli.frame import DEFECT, Frame, as_table, example, pass_frame
from rivertwice.core.errors import RequestError, RivertwiceError
from rivertwice.core.installed import base_of

if TYPE_CHECKING:
    from rivertwice.definition.definition import Definition
    from rivertwice.definition.lint_finding import Judgement
    from rivertwice.engine.warm import EngineStatus


# What `rivertwice status` prints for people. Pure.


def status_text(view: dict[str, Any]) -> str:
    """Return the services, a table of the streams, and below it what is to be said of each."""
    from rivertwice.agent.health import lag_text

    lines = [f"home     {view['home']}"]
    for service in ("broker", "agent", "airflow", "engine"):
        service_view = view[service]
        shown = "down" if service_view is None else ", ".join(f"{key} {value}" for key, value in service_view.items())
        lines.append(f"{service:<8} {shown}")
    headers = (
        "pipeline", "desired", "state", "driver", "epoch", "timeline", "batch", "watermark", "lag", "reconciled", "savepoint",
    )  # fmt: skip
    rows = [
        (
            item["name"],
            item["desired"],
            item["state"],
            (item["driver"] or {}).get("pid"),
            (item["driver"] or {}).get("epoch"),
            item["timeline"],
            item["batch"],
            item["watermark"],
            lag_text(item),
            _reconciled(item["reconcile"]),
            (item["savepoint"] or {}).get("id"),
        )
        for item in view["pipelines"]
    ]
    lines.append(as_table(headers, rows))
    lines += [text for item in view["pipelines"] for text in [*now_texts(item), *unread_texts(item)]]
    lines += [patience for item in view["pipelines"] if (patience := _patience_text(item))]
    lines += [f"{item['name']}: {text}" for item in view["pipelines"] if (text := _quality_text(item["quality"]))]
    lines += [
        f"{item['name']}: catches up by event time: all partitions are read together, next up to {item['placed_until']}"
        for item in view["pipelines"]
        if item["placed_until"]
    ]
    lines += [
        f"{item['name']}: {item[load]['message']}"
        for item in view["pipelines"]
        for load in ("first_load", "stream_load")
        if item[load] and "error" not in item[load]
    ]
    lines += [
        f"{item['name']}: another version serves; `rivertwice version list {base_of(item['name'])}`"
        for item in view["pipelines"]
        if not item["serves"]
    ]
    lines += [text for item in view["pipelines"] for text in version_texts(item)]
    lines += [text for item in view["pipelines"] for text in recovery_texts(item)]
    for item in view["pipelines"]:
        summary = (item["retention"] or {}).get("summary")
        lines += [f"{item['name']}: retention: {summary}"] if summary else []
    return "\n".join(lines)


def now_texts(item: dict[str, Any]) -> list[str]:
    """Return the sentence about a pipeline, and one for each further thing that is wrong. Pure."""
    now = item["now"]
    if now is None:
        return [f"{item['name']}: not restarted any more: {item['given_up']}"] if item["given_up"] else []
    return [f"{item['name']}: {now['text']}", *(f"{item['name']}: also: {each['text']}" for each in now["others"])]


def unread_texts(item: dict[str, Any]) -> list[str]:
    """Return why parts of a pipeline cannot be read, each reason once; not what its sentences say already. Pure."""
    views = [value for value in item.values() if isinstance(value, dict) and "error" in value]
    reasons = dict.fromkeys([*filter(None, [item["unread"]]), *(str(view["message"]) for view in views)])
    said = " ".join(now_texts(item))
    return [f"{item['name']}: {reason}" for reason in reasons if reason not in said]


def version_texts(item: dict[str, Any]) -> list[str]:
    """Return what a pipeline's versions wait for. Pure."""
    versions = item["versions"]
    if "error" in versions:
        return []
    waiting = [f"{each['name']}: {each['next']['text']}" for each in versions if each["next"]["text"]]
    accepted = [
        f"{each['name']}: its rows could not be compared; {each['accepted']['by']} accepted them at {each['accepted']['at']}: "
        f"{each['accepted']['reason']}"
        for each in versions
        if each["accepted"]
    ]
    return [*waiting, *accepted]


def recovery_texts(item: dict[str, Any]) -> list[str]:
    """Return what people must know of a pipeline's recovery: its objective, and savepoints that wait for their proof. Pure."""
    recovery = item["recovery"]
    if not recovery or "error" in recovery:
        return []
    texts = [
        f"{item['name']}: {each['savepoint']} waits for its proof; the way back is {each['origin'] or 'not there: none was proved before'}"
        for each in recovery["awaiting"]
    ]
    if recovery["objective_s"] is not None:
        state = "over its objective of" if recovery["over"] else "its objective is"
        texts.append(
            f"{item['name']}: a fall-back would take about {recovery['seconds']:.0f} s ({recovery['batches']} batches to replay), "
            f"{state} {recovery['objective_s']:.0f} s"
        )
    return texts


def _patience_text(item: dict[str, Any]) -> str | None:
    """Return when the lag will be gone, or when the agent tries again; None if neither is expected."""
    from rivertwice.agent.health import UNRESPONSIVE, is_lag_fresh, stale_lag_text

    if item["is_backing_off"]:
        return (
            f"{item['name']}: {item['consecutive_failures']} failures in a row, next attempt at {item['next_attempt']}"
        )
    if not is_lag_fresh(item) or item["state"] == UNRESPONSIVE:
        return stale_lag_text(item)
    if not item["lag"] or item["arriving_per_s"] is None:
        return None
    pace = f"{item['arriving_per_s']:.0f} records a second arrive"
    if item["catch_up_s"] is None:
        return f"{item['name']}: {item['lag']} records wait and the lag does not shrink ({pace})"
    return f"{item['name']}: {item['lag']} records wait, gone in about {item['catch_up_s']:.0f} s at this pace ({pace})"


def _quality_text(quality: dict[str, Any] | None) -> str:
    """Return what fails of a pipeline's own suite; empty if nothing does."""
    if quality is None or not quality.get("found"):
        return ""
    counts = ", ".join(f"{count} {severity}" for severity, count in quality["failing"].items() if count)
    return f"data quality: {counts} of {quality['expectations']} expectations fail: {quality['found'][0]['message']}"


def _reconciled(reconcile: dict[str, Any] | None) -> str | None:
    if reconcile is None or "error" in reconcile:
        return None if reconcile is None else str(reconcile["error"])
    counts = reconcile.get("counts")
    stream = counts.get("stream", counts) if isinstance(counts, dict) else {}
    return " ".join(f"{verdict} {count}" for verdict, count in stream.items() if isinstance(count, int) and count)


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
    from rivertwice.agent.launch import start_agent
    from rivertwice.definition.topics import create_topics
    from rivertwice.local.broker import start_broker
    from rivertwice.local.install import is_set_up

    settings = frame.settings
    if not is_set_up(settings):
        run_steps(frame)
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
        from rivertwice.local.airflow import start_airflow

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
    from rivertwice.local.produce import SAMPLE_FILE, send_sample

    said = {each.name: text for each in definitions if (text := send_sample(frame.settings, each)) is not None}
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
    from rivertwice.quality.suites import suite_mistakes

    found = {
        judgement.name: suite_mistakes(frame.settings, judgement.bundle.definition)
        for judgement in judged
        if judgement.bundle is not None
    }
    return {name: problems for name, problems in found.items() if problems}


def check_definitions(frame: Frame) -> list[Judgement]:
    """Return the judgement on every definition of the project; Spark is started only for those that were not checked yet."""
    from rivertwice.core.instants import utc_now
    from rivertwice.definition.parts import YAML_FILE
    from rivertwice.engine.checked import judge_folder
    from rivertwice.engine.session import spark_on_demand

    frame.progress("definitions ...")
    root = frame.settings.definitions
    folders = sorted(path.parent for path in root.glob(f"*/{YAML_FILE}"))
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
    from rivertwice.agent.agent import supervised_names
    from rivertwice.agent.drain import drain_all
    from rivertwice.agent.launch import stop_agent
    from rivertwice.engine.warm import stop_engine
    from rivertwice.local.broker import stop_broker

    settings = frame.settings
    frame.progress("agent ...")
    agent = stop_agent(settings)
    drained = drain_all(settings, supervised_names(settings), "down", DRAIN_SECONDS, frame.progress)
    frame.progress("airflow ...")
    airflow = _stop_airflow(frame)
    engine = stop_engine(settings)
    frame.progress("broker ...")
    broker = stop_broker(settings)
    result = {"drained": drained, "agent": agent, "airflow": airflow, "engine": engine, "broker": broker}
    frame.emit(result, lambda: f"stopped; drained: {', '.join(drained) or 'nothing ran'}")


def _stop_airflow(frame: Frame) -> list[str]:
    from rivertwice.local.airflow import stop_airflow

    return list(stop_airflow(frame.settings) or [])


@click.command(epilog=example("rivertwice status", "rivertwice --output json status | jq .pipelines"))
@pass_frame
def status(frame: Frame) -> None:
    """Show everything in one view.

    It has the services, and per pipeline the desired and the observed state.
    """
    from rivertwice.agent.launch import agent_status
    from rivertwice.agent.view import view_pipeline, view_versions
    from rivertwice.core.instants import utc_now
    from rivertwice.engine.warm import engine_status

    settings, now = frame.settings, utc_now()
    agent = agent_status(settings)
    view: dict[str, Any] = {
        "home": str(settings.home),
        "broker": _ask(frame, "broker"),
        "agent": None
        if agent is None
        else {"pid": agent.pid, "beat_age_s": round((now - agent.beat_at).total_seconds(), 1)},
        "airflow": _ask(frame, "airflow"),
        "engine": _view_engine(engine_status(settings)),
        "pipelines": [
            {
                **view_pipeline(settings, name, now),
                "versions": view_versions(settings, name),
                "now": view_now(frame, name, now),
            }
            for name in settings.pipeline_names()
        ],
    }
    frame.emit(view, lambda: status_text(view))


def _view_engine(engine: EngineStatus | None) -> dict[str, Any] | None:
    if engine is None:
        return None
    return {"pid": engine.pid, "memory_mb": round(engine.memory_bytes / 1e6), "running": engine.running or "nothing"}


def view_now(frame: Frame, name: str, now: datetime) -> dict[str, Any] | None:
    """Return the sentence about a pipeline, as the page in Airflow says it, and its lights; None if its definition cannot be read."""
    from rivertwice.definition.definition import load_definition
    from rivertwice.read.now import decide_now
    from rivertwice.read.overview import describe_lights, describe_problem
    from rivertwice.read.read_facts import read_facts

    try:
        definition = load_definition(frame.settings.definition_folder(name))
    except RivertwiceError:
        return None
    decided = decide_now(read_facts(frame.settings, definition, now), now)
    return {
        **describe_problem(decided.worst),
        "text": decided.sentence,
        "others": [{**describe_problem(each), "text": each.sentence} for each in decided.others],
        "lights": describe_lights(decided.lights, rules=False),
    }


def _ask(frame: Frame, service: str) -> dict[str, Any] | None:
    try:
        if service == "broker":
            from rivertwice.local.broker import broker_status

            broker = broker_status(frame.settings)
            return None if broker is None else {"bootstrap": broker.bootstrap, "pid": broker.pid}
        from rivertwice.local.airflow import airflow_status

        airflow = airflow_status(frame.settings)
        return {"url": airflow.url, "running": airflow.running} if any(airflow.services.values()) else None
    except RivertwiceError as error:
        return {"error": error.reason, "message": str(error)}
