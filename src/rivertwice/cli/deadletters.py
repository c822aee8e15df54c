"""dead list, show, amend, discard: dead letters, each alone or by reason."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.acts import ActCommand, asks_for, run_act
from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.frame import Frame, FriendlyGroup, as_fields, as_table, example, pass_frame
from rivertwice.cli.options import name_argument, named_reason, reason_option
from rivertwice.cli.warm import on_engine
from rivertwice.core import RequestError, to_plain

if TYPE_CHECKING:
    from rivertwice.timeline import DeadLetter

SHOWN = 120


@click.group(
    cls=FriendlyGroup,
    epilog=example(
        "rivertwice dead list flight_delays", "rivertwice dead discard flight_delays 2@117 --reason 'test record'"
    ),
)
def dead() -> None:
    """List, amend and discard dead letters.

    Records that could not be accepted: look at them, enter what they should have been, or leave them out for good. They stay in the log as they are. An amendment names the address and the cure: the truth of a reconcile counts it, and a
    backfill of its window brings it into what is served. The stream does not change.
    """


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", errors="backslashreplace")


def _row(letter: DeadLetter) -> dict[str, Any]:
    return {
        "place": letter.place,
        "state": letter.state,
        "reason": letter.reason,
        "detail": letter.detail,
        "topic": letter.topic,
        "timeline": letter.timeline,
        "batch": letter.batch,
        "record_time": letter.record_time,
        "key": _text(letter.key),
        "value": _text(letter.value),
        "headers": None if letter.headers is None else {name: _text(value) for name, value in letter.headers},
        "amendment": None
        if letter.amendment is None
        else {**to_plain(letter.amendment), "address": letter.place, "value": _text(letter.amendment.value)},
    }


def _letters(frame: Frame, name: str) -> list[DeadLetter]:
    """Return the dead letters that count, without their bytes."""
    from rivertwice.timeline import committed_batches, read_brief

    home = frame.settings.pipeline(frame.known_pipeline(name))
    return read_brief(home, committed_batches(home))


def _with_bytes(frame: Frame, name: str, letters: list[DeadLetter]) -> list[DeadLetter]:
    from rivertwice.timeline import with_bytes

    return with_bytes(frame.settings.pipeline(name), letters)


@dead.command("list", epilog=example("rivertwice dead list flight_delays --state open --kind schema"))
@name_argument()
@click.option("--state", type=click.Choice(["open", "amended", "discarded"]), help="Only those.")
@click.option("--kind", help="Only those rejected for this: json, schema, rule, future and so on.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Maximum number of letters; the counts are of all.",
)
@pass_frame
def list_letters(frame: Frame, name: str, state: str | None, kind: str | None, limit: int) -> None:
    """List and count the dead letters of NAME by place.

    Each is shown with reason and state. A place is PARTITION@OFFSET, or TOPIC/PARTITION@OFFSET if there are several topics.
    """
    from rivertwice.timeline import count_states

    chosen = [
        letter for letter in _letters(frame, name) if state in (None, letter.state) and kind in (None, letter.reason)
    ]
    counts = count_states(chosen)
    shown = _with_bytes(frame, name, chosen[:limit])
    rows = [
        (
            letter.place,
            letter.state,
            letter.reason,
            letter.detail,
            letter.record_time,
            (_text(letter.value) or "")[:SHOWN],
        )
        for letter in shown
    ]
    value = {"counts": counts, "total": len(chosen), "letters": [_row(letter) for letter in shown]}

    def text() -> str:
        if not chosen:
            return f"{name}: no such dead letters"
        totals = as_table(
            ("reason", "open", "amended", "discarded"), [(key, *each.values()) for key, each in counts.items()]
        )
        table = as_table(("place", "state", "reason", "detail", "record time", "value"), rows)
        more = f"\n... {len(chosen) - limit} more; --limit shows them" if len(chosen) > limit else ""
        return f"{totals}\n{table}{more}"

    frame.emit(value, text)


@dead.command(epilog=example("rivertwice dead show flight_delays 2@117"))
@name_argument()
@click.argument("place")
@pass_frame
def show(frame: Frame, name: str, place: str) -> None:
    """Show one dead letter whole.

    It has bytes, headers, reason, and what was decided.
    """
    row = _row(_find(frame, name, place))
    frame.emit(row, lambda: as_fields(row))


def _find(frame: Frame, name: str, place: str) -> DeadLetter:
    from rivertwice.timeline import find_letter, parse_address

    (letter,) = _with_bytes(frame, name, [find_letter(_letters(frame, name), parse_address(place), name)])
    return letter


@dead.command(
    cls=ActCommand,
    epilog=example(
        """rivertwice dead amend flight_delays 2@117 --value '{"carrier": "UA"}' --reason 'field was missing'"""
    ),
)
@asks_for("dead.amend", without=("data",), arguments={"place": True})
@click.option("--file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="The same, from a file.")
@reason_option()
@on_engine()
@changes_unasked("a decision about a dead letter", because="what is served changes by a backfill, which asks")
@pass_frame
def amend(frame: Frame, name: str, asked: dict[str, Any], file: Path | None, reason: str | None) -> None:
    """Enter what the record at PLACE should have been.

    It is decoded at once, and refused if it is still not acceptable. Key, headers and timestamp stay the record's own. The stream is not touched; what is served changes with the next
    backfill of the record's window, which the next reconcile finds stale.
    """
    if (asked["value"] is None) == (file is None):
        message = "give the amended record either with --value or with --file; nothing was done"
        raise RequestError(message)
    data = file.read_bytes() if file is not None else str(asked["value"]).encode()  # any length
    place = asked["place"]
    given = {"place": place, "data": data, "reason": named_reason(reason)}
    done = run_act(frame, "dead.amend", frame.known_pipeline(name), given)
    if done.applies:
        then = f"reconcile and backfill {name}, and what is served counts it"
    else:
        then = "recorded and counted only: no rule explains what it changes of sessions, folds and tables"
    frame.emit(done, f"{place}: amended (number {done.seq}); {then}")


@dead.command(
    cls=ActCommand,
    epilog=example(
        "rivertwice dead discard flight_delays 2@117 --reason 'test record'",
        "rivertwice dead discard flight_delays --kind tombstone --reason 'deletions mean nothing here'",
    ),
)
@asks_for("dead.discard", arguments={"place": False})
@reason_option()
@changes_unasked("a decision about dead letters", because="what is served stays, and the record stays in the log")
@pass_frame
def discard(frame: Frame, name: str, asked: dict[str, Any], reason: str | None) -> None:
    """Leave the record at PLACE out for good.

    With --kind all open ones of a kind. Each stays in the log and in the table.
    """
    done = run_act(frame, "dead.discard", frame.known_pipeline(name), {**asked, "reason": named_reason(reason)})
    frame.emit(done, f"{name}: {done.discarded} discarded")
