"""Run the demo: `python -m rivertwice.demo`. DEMO_EXIT=1 takes all down at the end; the exit code shows if all checks held."""

from __future__ import annotations

import logging
import os
import sys
import threading

from rich.markup import escape
from rich.table import Table

from rivertwice.config import Settings
from rivertwice.demo.narrate import Narrator
from rivertwice.demo.stage import PIPELINE, prepare_home, take_down
from rivertwice.demo.story import Ending, Story
from rivertwice.errors import RivertwiceError
from rivertwice.verdicts import VERDICTS


def ending_table(ending: Ending) -> Table:
    """Return the table the demo ends with."""
    table = Table(title="30 June and 1 July 2013, hours per airport")
    table.add_column("")
    table.add_column("the stream", justify="right")
    table.add_column("served after the backfill", justify="right")
    for verdict in VERDICTS:
        table.add_row(verdict, *(str(ending.verdicts[pair][verdict]) for pair in ("stream", "served")))
    table.add_section()
    table.add_row("flights dropped as late", str(ending.late), "0")
    table.add_row("flights in closed hours", str(ending.stream.flights), str(ending.served.flights))
    table.add_row("mean departure delay", f"{ending.stream.mean} min", f"{ending.served.mean} min")
    return table


def main() -> int:
    """Run the demo and return its exit code: 0 only if every step held and all could be taken down."""
    settings = Settings.from_env()
    os.environ.update(settings.to_env())
    tell = Narrator()
    tell.console.print("[bold]rivertwice[/]: one definition, streamed and recomputed; every difference has a name.")
    code = 0
    try:
        prepare_home(settings, tell.say)
        logging.basicConfig(filename=settings.home / "demo.log", level=logging.INFO, force=True)
        ending = Story(settings, tell).run()
        tell.console.print()
        tell.console.print(ending_table(ending))
        tell.console.print(f"\nEvery step held, in {tell.elapsed_s:.0f} s.")
        tell.console.print(
            f"Airflow: {ending.airflow.url}   user: {ending.airflow.user}   password: {escape(ending.airflow.password)}"
        )
        if os.environ.get("DEMO_EXIT") != "1":
            tell.console.print(
                "All of it stays up until you press Ctrl-C. `rivertwice status` shows it from another shell."
            )
            tell.console.print(
                f"Look first at {ending.airflow.url}/rivertwice/#/p/{PIPELINE}: it says what is true now and what to do next; its tab "
                "Correctness has the hours that were late and are repaired."
            )
            threading.Event().wait()
    except KeyboardInterrupt:
        tell.console.print("\nstopping ...")
    except RivertwiceError as error:
        tell.console.print(f"\n[bold red]The demo stopped:[/] {escape(str(error))}")
        code = 1
    except Exception:
        tell.console.print_exception()
        code = 1
    try:
        tell.console.print("taking everything down ...")
        take_down(settings)
    except RivertwiceError as error:
        tell.console.print(f"[bold red]{escape(str(error))}[/]")
        code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
