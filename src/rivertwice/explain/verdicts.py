"""Whether a verdict still says something of the row that is served now. Pure."""

from __future__ import annotations

from rivertwice.verdicts import OPEN


def judge_age(
    pair: str,
    verdict: str,
    *,
    sequence: int,
    batch: int,
    left_by: int | None,
    published: int | None,
    last_read: int | None,
    is_closed: bool,
) -> str | None:
    """Return why a verdict is out of date; None: it holds.

    Args:
        pair: `served` or `stream`.
        verdict: as stored.
        sequence: the newest entry of the sequence that the reconcile saw.
        batch: the last batch that it saw.
        left_by: number of the head move that left that batch; None: the head's path has it.
        published: number of the publication that serves the window; None: none does.
        last_read: the last batch that may have read a record of the window.
        is_closed: whether the window is closed now.
    """
    if left_by is not None:
        return f"the head moved after it (sequence {left_by})"
    if pair == "served" and published is not None and published > sequence:
        return f"the window was published after it (sequence {published})"
    if last_read is not None and last_read > batch:
        return f"batch {last_read} may have read records of the window after it"
    if verdict == OPEN and is_closed:
        return "the window was open then, and is closed now"
    return None
