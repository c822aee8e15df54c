"""The command line: one group, a verb per thing a person does. Commands import their rooms when they run."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from rivertwice.commands.acknowledge import acknowledge
from rivertwice.commands.agents import agent
from rivertwice.commands.alerts import alerts
from rivertwice.commands.backfills import backfill
from rivertwice.commands.checks import reconcile, verdicts
from rivertwice.commands.deadletters import dead
from rivertwice.commands.delivery import deliver
from rivertwice.commands.doctor import doctor
from rivertwice.commands.fast import fast
from rivertwice.commands.faults import faults
from rivertwice.commands.frame import EXIT_CODES, Frame, FriendlyGroup, example
from rivertwice.commands.late import late
from rivertwice.commands.lint import lint
from rivertwice.commands.logs import archive, replay
from rivertwice.commands.metrics import diagnose, metrics
from rivertwice.commands.privacy import privacy
from rivertwice.commands.repair import repair
from rivertwice.commands.retention import retention
from rivertwice.commands.savepoints import savepoint
from rivertwice.commands.schemas import schema
from rivertwice.commands.services import down, status, up
from rivertwice.commands.streams import pipelines, start, stop, test_cases
from rivertwice.commands.topics import topics
from rivertwice.commands.upgrades import upgrade
from rivertwice.commands.upkeep import upkeep
from rivertwice.commands.views import view
from rivertwice.config import Settings
from rivertwice.printable import PrintableFormatter

COMMANDS: tuple[click.Command, ...] = (
    up, down, status, alerts, metrics, diagnose, doctor, agent, start, stop, pipelines, lint, test_cases, schema,
    topics, replay, archive, retention, savepoint, upgrade, reconcile, verdicts, acknowledge, view, backfill, late, dead, privacy, deliver, fast, upkeep, repair, faults,
)  # fmt: skip


@click.group(
    cls=FriendlyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None},
    epilog=EXIT_CODES + "\n\n" + example("rivertwice up", "rivertwice start flight_delays --wait", "rivertwice status"),
)
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print results."
)
@click.option(
    "--project",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder with pipelines/; default: $RIVERTWICE_PROJECT or here.",
)
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of all state; default: $RIVERTWICE_HOME or PROJECT/.rivertwice.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks and the log.")
@click.version_option(package_name="rivertwice")
@click.pass_context
def cli(ctx: click.Context, output: str, project: Path | None, home: Path | None, debug: bool) -> None:
    """rivertwice: one pipeline definition, streamed and recomputed; every differing row has a named cause."""
    import os

    env = dict(os.environ)
    if project is not None:
        env["RIVERTWICE_PROJECT"] = str(project)
    if home is not None:
        env["RIVERTWICE_HOME"] = str(home)
    handler = logging.StreamHandler()
    handler.setLevel(
        logging.INFO if debug else logging.ERROR
    )  # of the handler: some libraries set their own loggers' level
    handler.setFormatter(PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=handler.level, handlers=[handler])
    ctx.obj = Frame(Settings.from_env(env), output, debug)


for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """Run the command line."""
    cli(prog_name="rivertwice")


if __name__ == "__main__":
    main()
