"""admin repair: what tables lost, written again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.asking import Consent, Preview, asks_first
from rivertwice.cli.frame import DEFECT, OK, Frame, as_table, example, pass_frame
from rivertwice.cli.options import name_argument
from rivertwice.core import to_plain, utc_now

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command(
    epilog=example("rivertwice admin repair flight_delays", "rivertwice admin repair flight_delays --yes"),
)
@name_argument()
@click.option(
    "--accept-loss",
    metavar="TABLE",
    multiple=True,
    help="Accept that the torn commits of this table are lost, though nothing can give back what they held.",
)
@asks_first("lost rows are written again, damaged files set aside")
@pass_frame
def repair(frame: Frame, name: str, consent: Consent, accept_loss: tuple[str, ...]) -> None:
    """Find damaged tables and write again what was lost.

    What the damage means for what NAME serves is shown first. Torn entries of a table's log, data files that are not whole, and batches whose rows are not those that the ledger counted
    are named. With --yes the stream is drained, damaged files are set aside, and lost rows are restored from their own data
    files where those are whole, else from the recorded ranges (Kafka, the archive), each proved before it is written. Exit 3
    while anything is damaged.
    """
    from rivertwice.upkeep import erased_topics, find_damage, look_at_archives, require_damage_on_s3

    home = frame.settings.pipeline(frame.known_pipeline(name))

    def preview() -> Preview:
        findings = find_damage(home, utc_now())
        require_damage_on_s3(home, findings)
        damages = [*findings.damages]
        damages += look_at_archives(frame.settings, home, utc_now(), erased_topics(frame.settings))[1]
        text = _damage_text(damages, f"nothing was done; `rivertwice admin repair {name} --yes` does it")
        code = DEFECT if damages else OK
        return Preview({"damages": to_plain(damages), "repaired": False}, text, nothing=not damages, code=code)

    if not consent.given(name, f"Drain {name} and write again what its tables lost?", preview):
        return
    _repair(frame, name, accept_loss)


def _repair(frame: Frame, name: str, accept_loss: Sequence[str]) -> None:
    from rivertwice.upkeep import erased_topics
    from rivertwice.upkeep import repair as act

    erased = erased_topics(frame.settings)
    report = act(frame.settings, name, now=utc_now(), accept_loss=accept_loss, erased=erased, progress=frame.progress)

    def text() -> str:
        lines = [_damage_text(report.found, "what was done:"), *(f"  {line}" for line in report.done or ["nothing"])]
        lines += [f"not done: {line}" for line in report.failed]
        lines += [f"damaged files are in {report.aside}"] if report.aside else []
        lines += ["still damaged:", _damage_text(report.left, "")] if report.left else ["nothing is damaged now"]
        return "\n".join(line for line in lines if line)

    frame.emit(to_plain(report), text)
    if report.left:
        raise SystemExit(DEFECT)


def _damage_text(damages: Sequence[Any], last: str) -> str:
    if not damages:
        return (
            "nothing is damaged: logs and data files are whole, every batch has the rows that the ledger counted, every backfill those that "
            "its audit counted"
        )
    rows = [[damage.table, damage.what, damage.meaning, damage.cure] for damage in damages]
    return "\n".join([as_table(("table", "damage", "what it means", "repair"), rows), last])
