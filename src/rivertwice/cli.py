"""The command line: one group, a verb per task of a person. Commands import their rooms when they run.

What not every user needs (the example data, the fault lab) adds its commands by entry points of the group
`rivertwice.commands`, so that nothing here imports it. Any installed package can add commands in the same way.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from rivertwice.commands.acknowledge import acknowledge
from rivertwice.commands.advise import advise
from rivertwice.commands.agents import agent
from rivertwice.commands.alerts import alerts
from rivertwice.commands.archive import archive
from rivertwice.commands.backfills import backfill
from rivertwice.commands.cases import case
from rivertwice.commands.catch_up import catch_up
from rivertwice.commands.checks import reconcile, verdicts
from rivertwice.commands.deadletters import dead
from rivertwice.commands.delivery import deliver
from rivertwice.commands.doctor import doctor
from rivertwice.commands.fast import fast
from rivertwice.commands.frame import EXIT_CODES, Frame, FriendlyGroup, example
from rivertwice.commands.init import init
from rivertwice.commands.late import late
from rivertwice.commands.lint import lint
from rivertwice.commands.metrics import diagnose, metrics
from rivertwice.commands.privacy import privacy
from rivertwice.commands.quality import quality
from rivertwice.commands.repair import repair
from rivertwice.commands.restores import fall_back, restore
from rivertwice.commands.results import export, query, show
from rivertwice.commands.retention import retention
from rivertwice.commands.rewinds import rewind
from rivertwice.commands.savepoints import savepoint
from rivertwice.commands.schemas import schema
from rivertwice.commands.served import served
from rivertwice.commands.services import down, status, up
from rivertwice.commands.setup import setup
from rivertwice.commands.streams import pipelines, start, stop, test_cases
from rivertwice.commands.topics import topics
from rivertwice.commands.trial import try_
from rivertwice.commands.upgrades import upgrade
from rivertwice.commands.upkeep import upkeep
from rivertwice.commands.versions import version
from rivertwice.commands.views import view
from rivertwice.config import Settings
from rivertwice.errors import ServiceError
from rivertwice.printable import PrintableFormatter

COMMANDS: tuple[click.Command, ...] = (
    init, setup, up, down, status, alerts, metrics, diagnose, doctor, agent, start, stop, pipelines, lint, test_cases, case, schema,
    topics, archive, retention, catch_up, savepoint, try_, upgrade, version, advise, reconcile, verdicts, quality, acknowledge, view, show, query, export, backfill, late, dead, privacy, deliver, fast, served, upkeep, repair,
)  # fmt: skip
COMMAND_GROUP = "rivertwice.commands"
for operation in (restore, rewind, fall_back):
    savepoint.add_command(operation)


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
    )  # the handler's level: some libraries set their own loggers' level
    handler.setFormatter(PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=handler.level, handlers=[handler])
    ctx.obj = Frame(Settings.from_env(env), output, debug)


def added_commands(entries: Iterable[importlib.metadata.EntryPoint]) -> Iterator[click.Command]:
    """Return the command that each entry point names; for one that cannot be imported, a command that explains why."""
    for entry in entries:
        try:
            command = entry.load()
        except Exception as error:
            command = _broken_command(entry, error)
        yield command


def _broken_command(entry: importlib.metadata.EntryPoint, error: Exception) -> click.Command:
    owner = "rivertwice" if entry.dist is None else entry.dist.name
    message = (
        f"the command {entry.name} of the package {owner} cannot be imported ({type(error).__name__}: {error}), so it cannot "
        f"run; install {owner} again with all that it needs"
    )

    def refuse() -> None:
        raise ServiceError(message)

    any_arguments = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(entry.name, context_settings=any_arguments, callback=refuse, help=f"Not usable: {message}.")


for added in (*COMMANDS, *added_commands(importlib.metadata.entry_points(group=COMMAND_GROUP))):
    cli.add_command(added)


def main() -> None:
    """Run the command line."""
    cli(prog_name="rivertwice")


if __name__ == "__main__":
    main()
