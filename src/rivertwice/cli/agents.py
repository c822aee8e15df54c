"""agent start, stop, run, status, events, metrics: the process that keeps every stream's intent true."""

from __future__ import annotations

import click

from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.frame import Frame, FriendlyGroup, as_table, example, pass_frame
from rivertwice.cli.metrics import metrics
from rivertwice.core import ServiceError, naming_extras


@click.group(cls=FriendlyGroup, epilog=example("rivertwice agent start", "rivertwice agent metrics flight_delays"))
def agent() -> None:
    """Start, stop and watch the agent; measure the streams.

    It is the process on this host that keeps every stream's intent true.
    """


agent.add_command(metrics)


@agent.command("start", epilog=example("rivertwice agent start"))
@changes_unasked("the agent runs", because="one that runs stays")
@pass_frame
def agent_start(frame: Frame) -> None:
    """Start the agent in the background; one per home.

    It adopts drivers that run already.
    """
    from rivertwice.agent import start_agent

    frame.warn_of_copies()
    with naming_extras("pyspark"):
        started = start_agent(frame.settings)
    frame.emit({"pid": started.pid}, f"agent runs with pid {started.pid}")


@agent.command("stop", epilog=example("rivertwice agent stop"))
@changes_unasked("the agent stops", because="drivers run on")
@pass_frame
def agent_stop(frame: Frame) -> None:
    """Stop the agent; leave the drivers running.

    The next agent adopts them. To drain them, use `rivertwice down`.
    """
    from rivertwice.agent import stop_agent

    pid = stop_agent(frame.settings)
    frame.emit({"stopped": pid}, "no agent ran" if pid is None else f"agent {pid} stopped; drivers were left running")


@agent.command("run", epilog=example("rivertwice agent run", "rivertwice agent run --drain-on-stop"))
@click.option(
    "--drain-on-stop",
    is_flag=True,
    help="On SIGTERM drain the drivers, then end: for a container, which takes them down with it.",
)
@click.option(
    "--drain-seconds",
    type=click.FloatRange(min=1),
    default=100.0,
    show_default=True,
    help="How long the drivers may take to drain; less than the container's own grace period.",
)
@changes_unasked("the agent runs", because="one that runs stays")
@pass_frame
def agent_run(frame: Frame, drain_on_stop: bool, drain_seconds: float) -> None:
    """Run the agent in the foreground.

    It is for containers and service managers. SIGTERM ends it and leaves drivers running, which the next agent adopts. With --drain-on-stop each driver ends at a batch
    boundary first; intents are kept, so the next agent starts them again.
    """
    import os

    from rivertwice.agent import main as agent_main

    frame.warn_of_copies()

    os.environ.update(frame.settings.to_env())
    raise SystemExit(agent_main(drain_seconds if drain_on_stop else None))


@agent.command("status", epilog=example("rivertwice agent status", "rivertwice agent status --max-age 60"))
@click.option(
    "--max-age",
    type=click.FloatRange(min=1),
    help="Fail if its last heartbeat is older than this number of seconds: for health checks.",
)
@pass_frame
def agent_show(frame: Frame, max_age: float | None) -> None:
    """Show what the agent decided last, with its reason."""
    from rivertwice.agent import agent_status
    from rivertwice.core import utc_now

    status = agent_status(frame.settings)
    if status is None:
        message = f"no agent is running in {frame.settings.home}; run `rivertwice agent start`"
        raise ServiceError(message)
    age = (utc_now() - status.beat_at).total_seconds()
    if max_age is not None and age > max_age:
        log = frame.settings.home / "agent" / "log"
        message = (
            f"the agent (pid {status.pid}) lives but last spoke {age:.0f} s ago, more than {max_age:.0f} s; look at "
            f"{log}, then restart it: its drivers keep running, and the next agent adopts them"
        )
        raise ServiceError(message)
    rows = [(name, item["action"], item["reason"]) for name, item in status.pipelines.items()]
    frame.emit(status, lambda: f"agent pid {status.pid}\n{as_table(('pipeline', 'action', 'reason'), rows)}")


@agent.command("events", epilog=example("rivertwice agent events --limit 20"))
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Maximum number of lines; the newest are shown.",
)
@pass_frame
def agent_events(frame: Frame, limit: int) -> None:
    """Show what the agent did, and what people asked for.

    It has starts, exits, backoff and pages, and each command that changed what is served, with who ran it and why.
    """
    import json

    path = frame.settings.home / "agent" / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    older = path.with_name("events.jsonl.1")
    if len(lines) < limit and older.exists():
        lines = older.read_text().splitlines() + lines
    lines = lines[-limit:]
    events = [json.loads(line) for line in lines if line]
    rows = [(item["at"], item["pipeline"], item["kind"], item["message"]) for item in events]
    frame.emit(events, lambda: as_table(("at", "pipeline", "event", "message"), rows))


@agent.command(
    "token",
    epilog=example("rivertwice agent token shop --pipelines orders,returns", "rivertwice agent token shop --revoke"),
)
@click.argument("name", required=False)
@click.option("--pipelines", default="", help="Names with commas between; without it the token is for all pipelines.")
@click.option("--only-reads", is_flag=True, help="Let it see how streams are, and have nothing done.")
@click.option("--revoke", is_flag=True, help="Remove the token of this name; the next question with it is refused.")
@changes_unasked("a token is made or removed", because="the agent's work goes on")
@pass_frame
def agent_token(frame: Frame, name: str | None, pipelines: str, only_reads: bool, revoke: bool) -> None:
    """Make a token for an Airflow on another host.

    It is shown once. Without NAME the tokens are listed.

    The agent answers such an Airflow at RIVERTWICE_LISTEN. A name that has a token gets another one, and the old one is refused from
    then on. Only hashes of tokens are kept.
    """
    from rivertwice.core import utc_now
    from rivertwice.tasks import Tokens

    kept = Tokens(frame.settings)
    if name is None:
        tokens = kept.read()
        rows = [
            (each.name, ", ".join(each.pipelines), "reads" if each.only_reads else "all", each.created_at)
            for each in tokens
        ]
        shown = [
            {
                "name": each.name,
                "pipelines": each.pipelines,
                "only_reads": each.only_reads,
                "created_at": each.created_at,
            }
            for each in tokens
        ]
        frame.emit(shown, lambda: as_table(("token", "pipelines", "may", "made at"), rows) if rows else "no tokens")
        return
    if revoke:
        kept.revoke(name)
        frame.emit({"revoked": name}, f"token {name} is refused from now on")
        return
    chosen = [each.strip() for each in pipelines.split(",") if each.strip()]
    secret = kept.make(name, chosen, utc_now(), only_reads=only_reads)
    frame.emit(
        {"name": name, "token": secret},
        f"{secret}\nit is shown only now; give it to that Airflow as RIVERTWICE_AGENT_TOKEN (`rivertwice docs services`)",
    )
