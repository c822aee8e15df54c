"""savepoint take, list, show, prove, prune, pin; restore and fall-back are in `restores`, rewind in `rewinds`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.acts import ActCommand, asks_for, run_act
from rivertwice.cli.asking import Consent, Preview, asks_first, changes_unasked
from rivertwice.cli.frame import REFUSED, Frame, FriendlyGroup, as_fields, example, pass_frame, say, table_of
from rivertwice.cli.operations import fall_back, restore, rewind
from rivertwice.cli.options import name_argument, savepoint_argument
from rivertwice.core import to_plain

if TYPE_CHECKING:
    from rivertwice.savepoint import Savepoint


@click.group(
    cls=FriendlyGroup,
    epilog=example("rivertwice savepoint take flight_delays", "rivertwice savepoint list flight_delays"),
)
def savepoint() -> None:
    """Take, prove and restore copies of a stream's checkpoint.

    A savepoint is taken without a pause, and trusted only once it is proved.
    """


@dataclass(frozen=True)
class SavepointRow:
    """A savepoint in a list."""

    id: str
    status: str
    timeline: str
    batch: int
    created_at: datetime
    files: int
    bytes: int
    pinned: bool
    reason: str


def _row(item: Savepoint) -> SavepointRow:
    of = item.manifest
    figures = (len(of.files), of.size, item.pinned, of.reason)
    return SavepointRow(item.id, item.status, of.timeline, of.batch, of.created_at, *figures)


@savepoint.command(epilog=example("rivertwice savepoint take flight_delays --reason 'before the upgrade'"))
@name_argument()
@click.option("--reason", default="manual", show_default=True, help="Kept in the manifest.")
@changes_unasked("a savepoint", because="it is added")
@pass_frame
def take(frame: Frame, name: str, reason: str) -> None:
    """Take a savepoint of NAME while its stream runs on."""
    from rivertwice.core import utc_now
    from rivertwice.savepoint import take_savepoint

    taken = take_savepoint(frame.settings, frame.known_pipeline(name), now=utc_now(), reason=reason)
    row = _row(taken)
    frame.emit(row, lambda: as_fields(vars(row)))


@savepoint.command("list", epilog=example("rivertwice savepoint list flight_delays"))
@name_argument()
@pass_frame
def list_all(frame: Frame, name: str) -> None:
    """List the savepoints of NAME, oldest first."""
    from rivertwice.savepoint import list_savepoints

    rows = [_row(item) for item in list_savepoints(frame.settings.pipeline(frame.known_pipeline(name)))]
    headers = ("id", "status", "timeline", "batch", "created_at", "files", "bytes", "pinned")
    frame.emit(rows, lambda: table_of(headers, rows))


@savepoint.command(epilog=example("rivertwice savepoint show flight_delays sp-t1-120-0a1b2c3d --verify"))
@name_argument()
@savepoint_argument()
@click.option("--verify", is_flag=True, help="Read every byte and compare it with the manifest.")
@pass_frame
def show(frame: Frame, name: str, savepoint_id: str, verify: bool) -> None:
    """Show one savepoint: offsets, watermark, fingerprint, proof."""
    from rivertwice.savepoint import load_savepoint

    item = load_savepoint(frame.settings.pipeline(frame.known_pipeline(name)), savepoint_id)
    value = vars(_row(item)) | {
        "offsets": item.manifest.offsets,
        "watermark_ms": item.manifest.watermark_ms,
        "bundle": item.manifest.bundle,
        "fingerprint": item.manifest.fingerprint,
        "proof": item.proof,
        "verified_bytes": item.verify_files() if verify else None,
    }
    frame.emit(value, lambda: as_fields(value))


@savepoint.command(cls=ActCommand, epilog=example("rivertwice savepoint prove flight_delays sp-t1-120-0a1b2c3d"))
@asks_for("savepoint.prove", without=("or_older",), arguments={"savepoint": True})
@changes_unasked("a savepoint's proof", because="the replay is in scratch")
@pass_frame
def prove(frame: Frame, name: str, asked: dict[str, Any]) -> None:
    """Prove a savepoint: restore it aside, replay and compare.

    It is restored into scratch, and recorded batches are replayed. Exit 3 if they differ; 1 if no batch came in time that could have proved it.
    """
    value = run_act(frame, "savepoint.prove", frame.known_pipeline(name), asked)
    frame.emit(value, lambda: as_fields(value))
    if not value.proved:
        raise SystemExit(REFUSED)


@savepoint.command(epilog=example("rivertwice savepoint prune flight_delays --keep 5"))
@name_argument()
@click.option("--keep", type=click.IntRange(1), help="Newest savepoints to keep; default: 12, as care__NAME keeps.")
@asks_first("old savepoints are deleted")
@pass_frame
def prune(frame: Frame, name: str, keep: int | None, consent: Consent) -> None:
    """Delete old savepoints.

    The newest proved, the pinned and those in use are never deleted.
    """
    from rivertwice.core import utc_now
    from rivertwice.savepoint import KEPT, list_savepoints, protected_savepoints, prune_savepoints, select_prunable

    keep = KEPT if keep is None else keep
    home, now = frame.settings.pipeline(frame.known_pipeline(name)), utc_now()

    def preview() -> Preview:
        savepoints = list_savepoints(home)
        protected = protected_savepoints(home, now=now)
        would = [item.id for item in select_prunable(savepoints, protected, keep=keep)]
        return Preview({"would_delete": would}, f"would delete: {', '.join(would) or 'nothing'}", nothing=not would)

    if not consent.given(name, f"Delete these savepoints of {name}?", preview):
        return
    report = to_plain(prune_savepoints(home, keep=keep, now=now))
    damaged = report.get("damaged", {})
    for warning in damaged.values():
        say(f"rivertwice: warning: {warning}", err=True)
    frame.emit(report, lambda: as_fields(report | {"damaged": list(damaged)}))


@savepoint.command(cls=ActCommand, epilog=example("rivertwice savepoint pin flight_delays sp-t1-120-0a1b2c3d"))
@asks_for("savepoint.pin", arguments={"savepoint": True})
@click.option("--off", is_flag=True, help="Take the pin away.")
@changes_unasked("a savepoint's pin", because="--off takes it away")
@pass_frame
def pin(frame: Frame, name: str, asked: dict[str, Any], off: bool) -> None:
    """Keep a savepoint from being pruned, whatever its age."""
    from rivertwice.savepoint import load_savepoint

    act = "savepoint.unpin" if off else "savepoint.pin"
    run_act(frame, act, frame.known_pipeline(name), asked)
    row = _row(load_savepoint(frame.settings.pipeline(name), asked["savepoint"]))
    frame.emit(row, lambda: as_fields(vars(row)))


for operation in (restore, rewind, fall_back):
    savepoint.add_command(operation)
