"""What is read to look sessions up: around what was asked, further where one reaches out of what was read, and no further.

time       0                     100                    200
records    x  x  x  x  x  x  x  x  x  x  x                      one chain, a record every 10, gap 15
asked                                 [)
read 1                          [--------------)                a margin of two gaps: the chain is cut off
read 2     [------------------------------------------------)   four times wider around it: seen whole
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from rivertwice.backfill.model import Span, gather_components
from rivertwice.backfill.session_plan import MOST_READ, BackfillScope, Zone, survey_sessions

GAP = 15


class Log:
    """Records of keys, and what was read of them."""

    def __init__(self, **times: Sequence[int]) -> None:
        self.times = times
        self.reads: list[tuple[Zone, Collection[str] | None]] = []

    def read(self, zone: Zone, keys: Collection[str] | None) -> list[Span]:
        self.reads.append((zone, keys))
        found: list[Span] = []
        for key, times in self.times.items():
            runs: list[list[int]] = []
            for at in sorted(times):
                if not any(low <= at < high for low, high in zone) or (keys is not None and key not in keys):
                    continue
                if runs and at - runs[-1][-1] <= GAP:
                    runs[-1].append(at)
                else:
                    runs.append([at])
            found += [Span(key, run[0] * 1000, (run[-1] + GAP) * 1000, len(run)) for run in runs]
        return found


def survey(
    log: Log, asked: BackfillScope, served: Sequence[Span] = (), closed: int = 100_000
) -> list[tuple[int, int, int]]:
    def near(zone: Zone) -> list[Span]:
        return [one for one in served if any(one.start_us < 1000 * b and 1000 * a < one.end_us for a, b in zone)]

    found = survey_sessions(asked, near, log.read, closed_ms=closed, gap_ms=GAP)
    return [(one.start_us // 1000, one.end_us // 1000, sum(span.records for span in one.truth)) for one in found]


def test_sessions_within_the_margin_are_read_once() -> None:
    log = Log(a=[100, 110], b=[50])
    assert survey(log, BackfillScope(times=((105, 106),))) == [(100, 125, 2)]
    assert log.reads == [(((105 - 2 * GAP, 106 + 2 * GAP),), None)]


def test_a_chain_is_read_until_it_is_seen_whole() -> None:
    log = Log(a=range(0, 201, 10))
    assert survey(log, BackfillScope(times=((105, 106),))) == [(0, 215, 21)]
    (first,), (second,) = [zone for zone, _ in log.reads]
    assert first[0] > 0 >= second[0] + GAP
    # What is served of it says how far it goes, and saves a read.
    again = Log(a=range(0, 201, 10))
    assert survey(again, BackfillScope(times=((105, 106),)), [Span("a", 0, 215_000, 20)]) == [(0, 215, 21)]
    assert len(again.reads) == 1


def test_a_chain_that_is_open_is_not_read_further() -> None:
    log = Log(a=range(0, 201, 10))
    (found,) = survey(log, BackfillScope(times=((105, 106),)), closed=130)
    assert found[1] > 130 - GAP
    assert len(log.reads) == 1


def test_a_session_that_may_join_a_record_just_outside_is_read_again() -> None:
    #  the record at 100 - 15 lies at the edge of what is read of [100, 101): the session begins there
    log = Log(a=[55, 70, 85, 100])
    assert survey(log, BackfillScope(times=((100, 101),))) == [(55, 115, 4)]
    assert len(log.reads) == 2


def test_only_stale_keys_are_read_each_around_its_own_range() -> None:
    log = Log(a=[100, 1000], b=[100, 1000])
    assert survey(log, BackfillScope(by_key={"a": ((100, 115),), "b": ((1000, 1015),)})) == [
        (100, 115, 1),
        (1000, 1015, 1),
    ]
    ((zone, keys),) = log.reads
    assert (len(zone), keys) == (2, {"a", "b"})


def test_many_stretches_are_read_as_few() -> None:
    log = Log(a=range(0, 1_000_000, 1000))
    asked = BackfillScope(by_key={"a": tuple((at, at + 1) for at in range(0, 1_000_000, 1000))})
    assert len(survey(log, asked, closed=10_000_000)) == 1000
    assert all(len(zone) <= MOST_READ for zone, _ in log.reads)


@pytest.mark.parametrize(
    ("served", "truth", "vanishing", "same"),
    [
        ([(0, 10, 1), (5, 15, 1)], [(0, 15, 2)], [], False),
        ([(0, 15, 2)], [(0, 15, 2)], [], True),
        ([(0, 15, 1)], [(0, 15, 2)], [], False),
        ([(0, 15, 2)], [], [(0, 15, 2)], False),
    ],
    ids=["came apart", "as it is", "a record fewer", "nobody's"],
)
def test_a_component_says_what_is_served_otherwise_and_what_vanishes(
    served: list[tuple[int, int, int]], truth: list[tuple[int, int, int]], vanishing: list[object], same: bool
) -> None:
    sides = [[Span("k", *one) for one in side] for side in (served, truth)]
    (one,) = gather_components(*sides)
    assert [tuple(span[1:4]) for span in one.vanishing] == vanishing
    assert one.is_served_so is same


def test_sessions_of_other_keys_and_those_that_only_touch_are_apart() -> None:
    found = gather_components([Span("a", 0, 10, 1), Span("b", 5, 9, 1)], [Span("a", 10, 20, 1), Span("a", 30, 40, 1)])
    assert [(one.key, one.start_us, one.end_us) for one in found] == [
        ("a", 0, 10),
        ("a", 10, 20),
        ("a", 30, 40),
        ("b", 5, 9),
    ]
