"""The command line: one group, a verb per task of a person. Commands are imported when they are used."""

from __future__ import annotations

import atexit
import gc
import os
import shlex
import sys
from typing import Any

import click

from rivertwice.cli.anywhere import make_frame, root_options
from rivertwice.cli.asking import WORDS
from rivertwice.cli.catalogue import MOVED, CommandCatalogue
from rivertwice.cli.frame import EXIT_CODES, FriendlyGroup, example
from rivertwice.core import say_one_command, say_verbose


class RootGroup(FriendlyGroup):
    """The group of all verbs, whose help lists them under headings."""

    catalogue = CommandCatalogue()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands = self.catalogue

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and keep the words of this call for the messages that repeat it."""
        ctx.meta[WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for a verb of before say which command does its work."""
        verb = next((verb for verb in (" ".join(args[:2]), args[0]) if verb in MOVED), "")
        if verb and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            moved, words = MOVED[verb], ctx.meta[WORDS]
            command = ["rivertwice", *words[: len(words) - len(args)], *moved.words(args[1:])]
            ctx.fail(f"`{verb}` is now `rivertwice {moved.now}`; run: {shlex.join(command)}")
        return super().resolve_command(ctx, args)

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the verbs in the order of the headings."""
        return list(self.catalogue)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs under their headings."""
        width = max(len(name) for name in self.catalogue)
        for heading, names in self.catalogue.sections():
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (name.ljust(width), self.catalogue[name].get_short_help_str(formatter.width - width - 6))
                        for name in names
                    ]
                )


@click.group(
    cls=RootGroup,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None},
    epilog=EXIT_CODES + "\n\n" + example("rivertwice up", "rivertwice start flight_delays --wait", "rivertwice status"),
)
@root_options
@click.version_option(package_name="rivertwice")
@click.pass_context
def cli(ctx: click.Context, /, **values: Any) -> None:
    """Run one pipeline definition as a stream and as a batch; name the cause of every row that differs.

    The options below can stand before or after the verb. `rivertwice VERB --help` explains a verb with an example.
    """
    ctx.obj = make_frame(os.environ, values)
    if ctx.obj.debug:
        say_verbose()


def _end_quickly() -> None:
    """Spare Python its last search for garbage, a tenth of `status`; DuckDB's binding would call what is left leaked."""
    if "duckdb" not in sys.modules:
        gc.freeze()


def main() -> None:
    """Run the command line."""
    say_one_command()
    gc.set_threshold(400_000)  # a command lives for a moment; `status` makes 110,000 objects, most of them modules
    atexit.register(_end_quickly)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy has one for each core, and each spins for a while
    cli(prog_name="rivertwice")


if __name__ == "__main__":
    main()
