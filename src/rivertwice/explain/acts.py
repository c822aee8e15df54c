"""What to do next about a number. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime

from rivertwice.explain.model import Act, Address, DeadRecord, Published, Verdict
from rivertwice.instants import to_iso
from rivertwice.verdicts import DEFECT, LATE

SERVED = "served"


def choose_acts(
    address: Address,
    repaired: tuple[datetime, datetime] | None,
    *,
    is_closed: bool,
    is_current: bool,
    truth_differs: bool | None,
    verdicts: Sequence[Verdict],
    dead: Sequence[DeadRecord],
    published: Published | None,
    amendments: int,
) -> tuple[Act, ...]:
    """Return the commands that cure what is wrong with a number, the first one first; empty: nothing is to be done.

    Args:
        address: of the row.
        repaired: the range that a backfill of its window takes; None: such windows cannot be published.
        is_closed: whether the window is closed.
        is_current: whether what is served shows all that is committed.
        truth_differs: whether what is served differs from the truth that was computed; None: it was not computed.
        verdicts: of the newest reconcile.
        dead: refused records among what the window's batches read.
        published: who published what is served.
        amendments: decisions about dead letters up to this one are in what is served.
    """
    if not is_closed:
        return ()
    name = address.pipeline
    acts: list[Act] = []
    if not is_current:
        acts.append(
            Act(
                f"rivertwice served rebuild {name}",
                "a newer batch or publication is not served yet; an agent that runs builds it, and this command does it once",
            )
        )
    holding = next((verdict for verdict in verdicts if verdict.pair == SERVED and verdict.stale is None), None)
    verdict = None if holding is None else holding.verdict
    why = _why_backfill(truth_differs, verdict, dead, amendments)
    if why is not None and repaired is not None:
        start, end = (to_iso(instant) for instant in repaired)
        acts.append(Act(shlex.join(["rivertwice", "backfill", "run", name, "--from", start, "--to", end]), why))
    elif why is not None:
        acts.append(
            Act(f"rivertwice upgrade {name} --new-version", f"{why}; windows of this kind are not published alone")
        )
    for letter in dead:
        if letter.state == "open" and letter.is_of_row is not False:
            about = f"it was refused ({letter.reason}), and nothing was decided about it"
            acts.append(Act(f"rivertwice dead show {name} {letter.place}", about))
            break
    if holding is None and truth_differs is None:
        since = "" if published is None else " since it was published"
        acts.append(Act(f"rivertwice reconcile {name}", f"no verdict holds for what is served{since}"))
    return tuple(acts)


def _why_backfill(
    truth_differs: bool | None, verdict: str | None, dead: Sequence[DeadRecord], amendments: int
) -> str | None:
    """Return why a backfill of the window changes what is served; None: nothing says that it does."""
    if truth_differs:
        return "what is served differs from the truth"
    if truth_differs is None and verdict in (LATE, DEFECT):
        return f"the newest reconcile found what is served {verdict}"
    later = [letter.place for letter in dead if letter.is_of_row and (letter.amendment or 0) > amendments]
    if truth_differs is None and later:
        return f"{', '.join(later[:3])} was amended after what is served was computed"
    return None
