from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homes.backfill import HOUR, emitted, hours, result
from rivertwice.timeline.serving import Publication, select_served, select_serving, to_epoch_ms

MINE, OTHER = "s" * 64, "x" * 64


def publication(seq, ranges, backfill, semantics=MINE):
    return Publication(seq, backfill, ranges, semantics, "b" * 64, {"flights": {0: 100}})


def corrected(backfill, *rows):
    table = result(*rows)
    return table.append_column("_backfill", pa.array([backfill] * table.num_rows, pa.string()))


def served(stream, corrections, publications, closed=10):
    table = select_served(stream, corrections, publications, semantics={MINE}, closed_ms=closed * HOUR)
    return [
        (int(row["window_start"].timestamp()) // 3600, row["k"], row["n"], row["_status"]) for row in table.to_pylist()
    ]


def test_without_a_publication_a_window_serves_the_stream():
    stream = emitted("t1", 3, (1, "b", 2), (0, "a", 1))
    assert served(stream, None, []) == [(0, "a", 1, "stream"), (1, "b", 2, "stream")]


def test_a_window_covered_by_a_publication_serves_its_corrections_only():
    #  hour       0      1      2
    #  stream     a=1    a=1    a=1
    #  publication       [------)      1: a vanished, b appeared
    stream = emitted("t1", 3, (0, "a", 1), (1, "a", 1), (2, "a", 1))
    rows = served(stream, corrected("bf-1", (1, "b", 5)), [publication(2, hours((1, 2)), "bf-1")])
    assert rows == [(0, "a", 1, "stream"), (1, "b", 5, "published"), (2, "a", 1, "stream")]


def test_a_window_that_only_had_late_rows_appears():
    rows = served(emitted("t1", 3), corrected("bf-1", (1, "a", 5)), [publication(2, hours((0, 2)), "bf-1")])
    assert rows == [(1, "a", 5, "published")]


def test_a_published_window_without_rows_serves_nothing():
    rows = served(emitted("t1", 3, (1, "a", 1)), corrected("bf-1"), [publication(2, hours((1, 2)), "bf-1")])
    assert rows == []


def test_the_newest_publication_wins_where_two_overlap():
    #  bf-1  [0------2)       seq 2
    #  bf-2     [1------3)    seq 3
    corrections = pa.concat_tables(
        [
            corrected("bf-1", (0, "a", 10), (1, "a", 11), (1, "gone", 1)),
            corrected("bf-2", (1, "a", 21), (2, "a", 22)),
        ]
    )
    publications = [publication(3, hours((1, 3)), "bf-2"), publication(2, hours((0, 2)), "bf-1")]
    assert served(emitted("t1", 3, (0, "a", 1)), corrections, publications) == [
        (0, "a", 10, "published"),
        (1, "a", 21, "published"),
        (2, "a", 22, "published"),
    ]


def test_a_publication_of_other_semantics_does_not_count():
    corrections = pa.concat_tables([corrected("bf-1", (0, "a", 10)), corrected("bf-2", (0, "a", 20))])
    publications = [publication(2, hours((0, 1)), "bf-1"), publication(3, hours((0, 1)), "bf-2", OTHER)]
    assert served(emitted("t1", 3, (0, "a", 1)), corrections, publications) == [(0, "a", 10, "published")]
    assert served(emitted("t1", 3, (0, "a", 1)), corrections, publications[1:]) == [(0, "a", 1, "stream")]


def test_corrections_that_nobody_published_are_not_served():
    assert served(emitted("t1", 3), corrected("bf-1", (0, "a", 10)), []) == []


def test_corrections_outside_the_published_ranges_are_not_served():
    rows = served(
        emitted("t1", 3), corrected("bf-1", (0, "a", 1), (1, "a", 2)), [publication(2, hours((1, 2)), "bf-1")]
    )
    assert rows == [(1, "a", 2, "published")]


@pytest.mark.proves("guarantees.md#served")
def test_only_closed_windows_are_served():
    stream = emitted("t1", 3, (0, "a", 1), (4, "a", 1))
    corrections = corrected("bf-1", (3, "a", 1), (5, "a", 1))
    rows = served(stream, corrections, [publication(2, hours((3, 4), (5, 6)), "bf-1")], closed=5)
    assert rows == [(0, "a", 1, "stream"), (3, "a", 1, "published"), (4, "a", 1, "stream")]


def test_rows_say_whence_they_come():
    table = select_served(
        emitted("t7", 3, (0, "a", 1)),
        corrected("bf-1", (1, "a", 5)),
        [publication(2, hours((1, 2)), "bf-1")],
        semantics={MINE},
        closed_ms=9 * HOUR,
    )
    stamps = table.select(["_format", "_status", "_timeline", "_batch", "_backfill"]).to_pylist()
    assert [tuple(row.values()) for row in stamps] == [
        (1, "stream", "t7", 3, None),
        (1, "published", None, None, "bf-1"),
    ]


PUBLICATIONS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 8), st.integers(1, 4)), min_size=1, max_size=3),
        st.sampled_from([MINE, OTHER]),
    ),
    max_size=6,
)


@pytest.mark.proves("guarantees.md#served")
@given(PUBLICATIONS, st.integers(0, 12))
def test_every_window_serves_what_a_naive_search_finds(history, closed):
    publications = [
        publication(n, tuple((s * HOUR, (s + w) * HOUR) for s, w in ranges), f"bf-{n}", semantics)
        for n, (ranges, semantics) in enumerate(history, start=2)
    ]
    stream = emitted("t1", 1, *((hour, "a", 1) for hour in range(12)))
    corrections = pa.concat_tables(
        [
            corrected("bf-none", (0, "a", -1)),
            *(corrected(p.backfill, *((h, "a", p.seq) for h in range(12))) for p in publications),
        ]
    )
    expected = []
    for hour in range(min(closed, 12)):
        covering = [
            p.seq for p in publications if p.semantics == MINE and any(s <= hour * HOUR < e for s, e in p.ranges)
        ]
        expected.append((hour, "a", max(covering), "published") if covering else (hour, "a", 1, "stream"))
    assert served(stream, corrections, publications, closed) == expected


def test_a_publication_is_of_windows_and_of_no_amendment_unless_it_says_so():
    plain = publication(2, hours((0, 1)), "bf-1")
    payload = plain.to_payload()
    assert payload["amendments"] == 0
    assert not {"sessions", "rows"} & payload.keys()
    assert replace(plain, rows=0).to_payload()["rows"] == 0
    older = {name: value for name, value in payload.items() if name != "amendments"}  # as 0.1 wrote it at first
    assert Publication.from_payload(2, older) == plain
    sessions = Publication(3, "bf-1", hours((0, 1)), MINE, "b" * 64, {"flights": {0: 1}}, amendments=4, sessions=True)
    assert Publication.from_payload(3, sessions.to_payload()) == sessions


def test_a_publication_serves_while_newer_ones_leave_it_a_window():
    old = publication(2, hours((0, 4)), "bf-1")
    halves = [publication(3, hours((0, 2)), "bf-2"), publication(4, hours((2, 4)), "bf-3")]

    def serving(*publications):
        return [one.backfill for one in select_serving(publications, {MINE})]

    assert serving(old) == ["bf-1"]
    assert serving(old, halves[0]) == ["bf-2", "bf-1"]
    assert serving(old, *halves) == ["bf-3", "bf-2"]
    assert serving(old, publication(5, hours((0, 9)), "bf-4", OTHER)) == ["bf-1"]
    sessions = Publication(1, "bf-0", hours((0, 1)), MINE, "b" * 64, {}, sessions=True)
    assert serving(sessions, old) == ["bf-1", "bf-0"]  # whose sessions are replaced the ranges do not say


def test_served_rows_have_format_1():
    table = select_served(emitted("t1", 3, (0, "a", 1)), None, [], semantics={MINE}, closed_ms=HOUR)
    assert table["_format"].to_pylist() == [1]
    assert select_served(emitted("t1", 3, (0, "a", 1)), None, [], semantics={MINE}, closed_ms=HOUR - 1).num_rows == 0


def test_a_window_edge_between_two_milliseconds_is_read_as_the_one_before():
    column = pa.chunked_array([pa.array([1_999, 2_000], pa.timestamp("us", "UTC"))])
    assert to_epoch_ms(column).tolist() == [1, 2]
