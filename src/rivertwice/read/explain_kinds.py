"""What an explanation must know of a kind of windows. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rivertwice.definition import Definition

_FOLD = (
    "the truth of one row is not computed: each row of a fold depends on all records of its key before it; "
    "`rivertwice reconcile NAME --full` compares all of them"
)
_SESSION = (
    "the truth of one session is not computed: its records decide where it begins and ends; `rivertwice reconcile NAME --from "
    "START --to END` compares the sessions of a range"
)


@dataclass(frozen=True)
class WindowFacts:
    """What differs between kinds of windows.

    Attributes:
        has_known_starts: whether windows begin at multiples of their step from the epoch and have one length.
        closes: whether a watermark closes a window; else its rows are final at once.
        no_truth: why the truth of one row alone is not computed; None: it is. NAME stands for the pipeline.
    """

    has_known_starts: bool
    closes: bool
    no_truth: str | None


def facts_of(definition: Definition) -> WindowFacts:
    """Return what differs for the windows of a definition."""
    kind = definition.window.kind
    if not kind.has_watermark:
        return WindowFacts(has_known_starts=False, closes=False, no_truth=_FOLD)
    return WindowFacts(has_known_starts=kind.is_aligned, closes=True, no_truth=None if kind.is_aligned else _SESSION)
