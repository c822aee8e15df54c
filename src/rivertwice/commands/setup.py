"""setup: fetch what pip cannot install."""

from __future__ import annotations

import time
from typing import Any

import click

from rivertwice.commands.asking import changes_unasked
from rivertwice.commands.frame import Frame, example, pass_frame


@click.command(epilog=example("rivertwice setup", "rivertwice doctor"))
@click.option("--dev", is_flag=True, help="Also fetch the jars that only the tests of rivertwice need.")
@changes_unasked("downloaded files", because="what is there stays")
@pass_frame
def setup(frame: Frame, dev: bool) -> None:
    """Fetch what pip cannot install: Java and jars.

    These are Java, if the machine has no 17 or 21, and the jars of Spark's Kafka connector and of the broker. At the end a short run
    stores Spark's classes for this Java and these jars, so that each later start takes less time. What is there already stays; each jar is checked by its SHA-256. The network is used only for what is missing. Files go to
    PROJECT/.build, if there is one, else to $RIVERTWICE_DOWNLOADS or the user's cache. MAVEN_REPO_URL names another repository than
    Maven Central.
    """
    done = run_steps(frame, dev=dev)
    frame.emit(
        {"steps": done, "downloads": frame.settings.build},
        "\n".join(f"setup: {each['step']:<15} {each['result']} ({each['seconds']} s)" for each in done),
    )


def run_steps(frame: Frame, *, dev: bool = False) -> list[dict[str, Any]]:
    """Run the steps of set-up, and return each with its result and its seconds."""
    from rivertwice.setup.install import setup_steps

    done = []
    for name, step in setup_steps(frame.settings, dev=dev, progress=frame.progress):
        frame.progress(f"{name} ...")
        begun = time.monotonic()
        done.append({"step": name, "result": step(), "seconds": round(time.monotonic() - begun, 1)})
    return done
