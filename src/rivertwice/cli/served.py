"""served rebuild: build the served table from all rows, whatever it shows already."""

from __future__ import annotations

from typing import Any

import click

from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.frame import DEFECT, Frame, FriendlyGroup, example, pass_frame
from rivertwice.cli.options import name_argument
from rivertwice.core import to_plain

SERVED_SECONDS = 60.0


def await_served(frame: Frame, name: str, batch: tuple[str, int] | None = None) -> bool:
    """Wait until readers see all that is published, and this batch of a timeline; say so if they do not.

    What is committed stays committed: a failure is not needed.
    """
    from rivertwice.agent import agent_status
    from rivertwice.core import ServiceError
    from rivertwice.timeline import Intent, last_seq, wait_served

    home = frame.settings.pipeline(name)
    if agent_status(frame.settings) is None or Intent.load(home) is None:  # the agent builds what is served
        frame.progress(
            f"readers see it once an agent runs (`rivertwice up`), or after `rivertwice served rebuild {name}`"
        )
        return False
    try:
        wait_served(home, last_seq(home), SERVED_SECONDS, batch)
    except ServiceError as error:
        frame.progress(str(error))
        return False
    return True


@click.group(cls=FriendlyGroup, epilog=example("rivertwice served rebuild flight_delays"))
def served() -> None:
    """Rebuild the table that readers see.

    The agent keeps the table `served` of a pipeline up to date.
    """


@served.command(
    epilog=example("rivertwice served rebuild flight_delays", "rivertwice served rebuild flight_delays --compare")
)
@name_argument()
@click.option(
    "--compare",
    is_flag=True,
    help="Also compare all rows before and after; exit 3 if they differ. All are read for it.",
)
@changes_unasked("the served table", because="the rows are those that it has")
@pass_frame
def rebuild(frame: Frame, name: str, compare: bool) -> None:
    """Build what NAME serves again, from all its rows.

    `served` and `provisional` are built from the changelog and the corrections. The agent keeps them by what changed, which gives the same rows; it needs no rebuild. The stream may run meanwhile.
    """
    from rivertwice.agent import definition_of_head
    from rivertwice.core import RequestError
    from rivertwice.timeline import export_sha256, rebuild_served

    home = frame.settings.pipeline(frame.known_pipeline(name))
    definition = definition_of_head(frame.settings, name)
    kept = rebuild_served(home, definition)
    if kept.stamp is None:
        message = f"{name} has no committed batch yet, so there is nothing to serve; wait for its first"
        raise RequestError(message)
    before = export_sha256(home) if compare else None
    report = rebuild_served(home, definition, force=True)
    after = export_sha256(home) if compare else None
    is_compared = compare and report.stamp == kept.stamp
    value: dict[str, Any] = {
        **to_plain(report),
        "sha256": after,
        "sha256_before": before,
        "is_same": before == after if is_compared else None,
    }

    def text() -> str:
        stamp = report.stamp
        shown = "" if stamp is None else f" as of sequence {stamp.sequence}, batch {stamp.batch} of {stamp.timeline}"
        lines = [f"{report.rows} rows{shown}, {report.published} of them from publications"]
        if compare and not is_compared:
            lines.append("not compared: a batch or a publication came in between; do it again")
        elif compare:
            lines.append("the rows are those of before" if before == after else "the rows are not those of before")
        return "\n".join(lines)

    frame.emit(value, text)
    if value["is_same"] is False:
        raise SystemExit(DEFECT)
