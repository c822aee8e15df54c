"""upkeep: merge small files of the tables and remove files that no commit names any more."""

from __future__ import annotations

import click

from rivertwice.commands.asking import changes_unasked
from rivertwice.commands.frame import Frame, example, pass_frame
from rivertwice.commands.options import name_argument
from rivertwice.instants import utc_now


@click.command(epilog=example("rivertwice upkeep flight_delays"))
@name_argument()
@changes_unasked("files of tables", because="their rows stay, and the agent does the same")
@pass_frame
def upkeep(frame: Frame, name: str) -> None:
    """Merge small files and delete those no longer used.

    It works on NAME's tables; a file is used if a commit of the last hours names it. Results never change. Verdicts and causes of reconciles older than RIVERTWICE_VERDICTS_KEPT (90 days) are removed, but for those that a newer run
    builds on. The agent does the same after every 200 batches and every six hours; the stream may run meanwhile.
    """
    from rivertwice.timeline.upkeep import keep_up

    settings = frame.settings
    done = keep_up(settings.pipeline(frame.known_pipeline(name)), now=utc_now(), verdicts_kept=settings.verdicts_kept)

    def text() -> str:
        if not done:
            return "upkeep runs already; nothing was done"
        return "\n".join(
            f"{upkeep_report.table:<12} {upkeep_report.files_before} to {upkeep_report.files_after} files, {upkeep_report.deleted} deleted ({upkeep_report.note})"
            for upkeep_report in done
        )

    frame.emit(done, text)
