"""Run the demo: `python -m lab.demo`. DEMO_EXIT=1 takes all down at the end; the exit code shows if all checks held."""

from __future__ import annotations

import logging
import os
import sys
import threading

from rich.markup import escape

from lab.demo.ending import ending_table
from lab.demo.narrate import Narrator
from lab.demo.stage import prepare_home, take_down
from lab.demo.story import Story, live_flights
from rivertwice.core.errors import RivertwiceError
from rivertwice.core.settings import Settings


def main() -> int:
    """Run the demo and return its exit code: 0 only if every step held and all could be taken down."""
    settings = Settings.from_env()
    os.environ.update(settings.to_env())
    tell = Narrator()
    tell.console.print("[bold]rivertwice[/]: one definition, streamed and recomputed; every difference has a name.")
    code, live = 0, None
    try:
        prepare_home(settings, tell.say)
        logging.basicConfig(filename=settings.home / "demo.log", level=logging.INFO, force=True)
        ending = Story(settings, tell).run()
        tell.console.print()
        tell.console.print(ending_table(ending))
        tell.console.print()
        tell.console.print(tell.table())
        tell.console.print(f"\nEvery step held, in {tell.elapsed_s:.0f} s.")
        tell.console.print(
            f"Airflow: {ending.airflow.url}   user: {ending.airflow.user}   password: {escape(ending.airflow.password)}"
        )
        if os.environ.get("DEMO_EXIT") != "1":
            tell.console.print(
                "All of it stays up until you press Ctrl-C, and the stream goes on: from here a minute of July 2013 passes in "
                "a second. `rivertwice status` shows it from another shell."
            )
            live = live_flights(settings)
            live.start()
            tell.console.print(f"[bold]Look first at {ending.page}[/]")
            threading.Event().wait()
    except KeyboardInterrupt:
        tell.console.print("\nstopping ...")
    except RivertwiceError as error:
        tell.console.print(f"\n[bold red]The demo stopped:[/] {escape(str(error))}")
        code = 1
    except Exception:
        tell.console.print_exception()
        code = 1
    if live is not None:
        live.stop()
    try:
        tell.console.print("taking everything down ...")
        take_down(settings)
    except RivertwiceError as error:
        tell.console.print(f"[bold red]{escape(str(error))}[/]")
        code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
