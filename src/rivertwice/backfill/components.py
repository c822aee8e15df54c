"""Sessions that belong together: those of one key, served ones and those of the truth, that overlap. Pure.

What the stream emitted of some records, what an earlier backfill published of them and what all records make of them may begin and
end differently:

    truth   0 -------------------- 25
    served  0 ---- 10
               5 ----------------- 25

A part of such a component cannot be published without the rest: a record would be counted twice, or no more. A component is
**settled** when no record that the stream may still accept can belong to it: one is accepted only if the session it would make
alone ends behind the watermark, so it lies less than the gap before it, and no session that ends the gap before the watermark
reaches so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rivertwice.backfill.ranges import HalfOpenRange


class Span(NamedTuple):
    """A session: its key's text, its stretch in epoch microseconds, its records; of a served one whose correction it is."""

    key: str
    start_us: int
    end_us: int
    records: int
    backfill: str | None = None


@dataclass(frozen=True)
class Component:
    """Sessions of one key that belong together, each side in order of start."""

    key: str
    served: tuple[Span, ...]
    truth: tuple[Span, ...]

    @property
    def spans(self) -> tuple[Span, ...]:
        """All of them."""
        return (*self.served, *self.truth)

    @property
    def start_us(self) -> int:
        """Where the first begins."""
        return min(span.start_us for span in self.spans)

    @property
    def end_us(self) -> int:
        """Where the last ends."""
        return max(span.end_us for span in self.spans)

    @property
    def stretch_ms(self) -> HalfOpenRange:
        """All milliseconds that it touches."""
        return self.start_us // 1000, -(-self.end_us // 1000)

    @property
    def is_served_so(self) -> bool:
        """Whether what is served counts the records that the truth counts, in the same sessions."""
        return [span[:4] for span in self.served] == [span[:4] for span in self.truth]

    @property
    def vanishing(self) -> tuple[Span, ...]:
        """Served sessions that no session of the truth takes the place of."""
        return tuple(
            span
            for span in self.served
            if not any(one.start_us < span.end_us and span.start_us < one.end_us for one in self.truth)
        )

    def is_settled(self, closed_ms: int, gap_ms: int) -> bool:
        """Say whether no record that a stream may accept behind a watermark can belong to it any more."""
        return self.end_us <= (closed_ms - gap_ms) * 1000

    def is_within(self, zone: Sequence[HalfOpenRange], gap_ms: int) -> bool:
        """Say whether all records that could belong to it lie in one of the ranges (epoch milliseconds)."""
        low, high = self.start_us - gap_ms * 1000, self.end_us
        return any(start * 1000 <= low and high < end * 1000 for start, end in zone)


def gather_components(served: Iterable[Span], truth: Iterable[Span]) -> list[Component]:
    """Return the components of served sessions and those of the truth, by key and in order of start."""
    by_key: dict[str, list[tuple[int, int, bool, Span]]] = {}
    for is_served, spans in ((True, served), (False, truth)):
        for span in spans:
            by_key.setdefault(span.key, []).append((span.start_us, span.end_us, is_served, span))
    found: list[Component] = []
    for key, members in sorted(by_key.items()):
        members.sort(key=lambda one: one[:3])
        first = 0
        reach = members[0][1]
        for place, (start, end, _, _) in enumerate(members):
            if start >= reach:
                found.append(_component(key, members[first:place]))
                first = place
            reach = max(reach, end)
        found.append(_component(key, members[first:]))
    return found


def _component(key: str, members: Sequence[tuple[int, int, bool, Span]]) -> Component:
    return Component(
        key, tuple(span for *_, mine, span in members if mine), tuple(span for *_, mine, span in members if not mine)
    )
