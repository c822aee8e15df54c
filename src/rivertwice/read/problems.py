"""What can be wrong with a pipeline, as a value, and the sentence about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

BAD, WARN, CALM, NONE, GOOD = "bad", "warn", "calm", "none", "good"
LEVELS = (BAD, WARN, CALM, NONE, GOOD)
"""The worst first. `bad`: a person is needed, or served numbers are wrong or get no newer. `warn`: it will be, if it lasts. `calm`:
something is under way. `none`: the desired state is stopped, or nobody would be told. `good`: nothing is wrong, or it was put right."""
NEXT_ACTS: Mapping[str, tuple[str, ...]] = {
    "defect": ("repair",),
    "late_share": ("repair",),
    "served_late": ("repair",),
    "nothing_compared": ("reconcile",),
    "not_comparable": ("reconcile",),
    "not_reconciled": ("reconcile",),
    "stale_verdict": ("reconcile",),
    "partitions_added": ("reconcile",),
    "foreign_write": ("reconcile",),
    "archive": ("archive",),
    "retention": ("archive",),
    "savepoint_stale": ("rotate",),
    "recovery": ("rotate",),
    "unproved_start": ("rotate",),
}
"""Kind of problem or alert to the acts of the page that may end it; for other kinds the page shows the command."""
STREAM, DATA, ALERTS = "stream", "data", "alerts"


def moment(at: datetime) -> str:
    """Return an instant as a sentence contains it: in UTC, to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def share(value: float) -> str:
    """Return a share in percent, with one decimal where it has one."""
    return f"{value * 100:.1f}".removesuffix(".0") + " %"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, or under way.

    Attributes:
        kind: stable word, one of `now.ORDER`.
        level: one of `LEVELS`.
        what: what is wrong, without a full stop.
        touches: what it means for the served numbers; empty: nothing.
        next: what to do: a command in backticks, or an act; empty: nothing.
        tab: the tab of the page where it is seen and acted on.
        covers: kinds of alerts that are about the same.
        alert: the alert's kind, if `kind` is `alert`.
    """

    kind: str
    level: str
    light: str
    what: str
    since: datetime | None
    touches: str
    next: str
    tab: str = ""
    covers: frozenset[str] = field(default_factory=frozenset)
    alert: str = ""

    @property
    def headline(self) -> str:
        """What is wrong, as a whole sentence."""
        return _ended(_capital(self.what))

    @property
    def sentence(self) -> str:
        """What, since when, which numbers, what next; each a sentence."""
        since = "" if self.since is None else f", since {moment(self.since)}"
        parts = [f"{_capital(self.what)}{since}"]
        parts += [_capital(self.touches)] if self.touches else []
        parts += [f"Next: {self.next}"] if self.next else []
        return " ".join(_ended(part) for part in parts)


def _ended(text: str) -> str:
    return text if text.endswith(("?", "!")) else f"{text.rstrip('.')}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
