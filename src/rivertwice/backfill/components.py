"""Sessions that belong together: those of one key, served ones and those of the truth, that overlap. Pure.

What the stream emitted for some records, what an earlier backfill published for them and what all records give may begin and
end differently:

    truth   0 -------------------- 25
    served  0 ---- 10
               5 ----------------- 25

A part of such a component cannot be published without the rest: a record would be counted twice, or no longer. A component is
**settled** when no record that the stream may still accept can belong to it. A record is accepted only if the session that it
would make alone ends after the watermark. So its time is less than the gap before the watermark, and no session that ends the
gap or more before the watermark reaches so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rivertwice.backfill.ranges import HalfOpenRange


class Span(NamedTuple):
    """A session: its key's text, its stretch in epoch microseconds, its records; if served, the backfill that corrected it."""

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
        """All sessions of both sides."""
        return (*self.served, *self.truth)

    @property
    def start_us(self) -> int:
        """Start of the first session."""
        return min(span.start_us for span in self.spans)

    @property
    def end_us(self) -> int:
        """End of the last session."""
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
        """Served sessions that no session of the truth replaces."""
        return tuple(
            span
            for span in self.served
            if not any(
                true_span.start_us < span.end_us and span.start_us < true_span.end_us for true_span in self.truth
            )
        )

    def is_settled(self, closed_ms: int, gap_ms: int) -> bool:
        """Say whether no record that a stream may accept after a watermark can belong to it any more."""
        return self.end_us <= (closed_ms - gap_ms) * 1000

    def is_within(self, zone: Sequence[HalfOpenRange], gap_ms: int) -> bool:
        """Say whether all records that could belong to it are in one of the ranges (epoch milliseconds)."""
        low, high = self.start_us - gap_ms * 1000, self.end_us
        return any(start * 1000 <= low and high < end * 1000 for start, end in zone)


def gather_components(served: Iterable[Span], truth: Iterable[Span]) -> list[Component]:
    """Return the components of served sessions and those of the truth, by key and in order of start."""
    by_key: dict[str, list[tuple[int, int, bool, Span]]] = {}
    for is_served, spans in ((True, served), (False, truth)):
        for span in spans:
            by_key.setdefault(span.key, []).append((span.start_us, span.end_us, is_served, span))
    components: list[Component] = []
    for key, members in sorted(by_key.items()):
        members.sort(key=lambda member: member[:3])
        first = 0
        reach = members[0][1]
        for place, (start, end, _, _) in enumerate(members):
            if start >= reach:
                components.append(_component(key, members[first:place]))
                first = place
            reach = max(reach, end)
        components.append(_component(key, members[first:]))
    return components


def _component(key: str, members: Sequence[tuple[int, int, bool, Span]]) -> Component:
    return Component(
        key,
        tuple(span for *_, is_served, span in members if is_served),
        tuple(span for *_, is_served, span in members if not is_served),
    )
