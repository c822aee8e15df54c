"""Whether Kafka has other records where some were read: decided from marks alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rivertwice.log.addresses import Part
from rivertwice.log.archive_table import MARK_BITS, version_of
from rivertwice.log.marks import LastRecord, find_forks, hash_of, marks_from_plain, marks_to_plain

P0, P1 = Part("flights", 0), Part("flights", 1)
some_bytes = st.none() | st.binary(max_size=20)
records = st.tuples(st.integers(0, 1 << 41), some_bytes, some_bytes)
READ = {P0: LastRecord(79, 5, hash_of(5, b"k", b"v"), 3)}
KEPT = {P0: (0, 90)}


@given(records, records)
def test_two_records_have_one_hash_only_if_they_are_the_same(
    first: tuple[int, bytes | None, bytes | None], second: tuple[int, bytes | None, bytes | None]
) -> None:
    assert (hash_of(*first) == hash_of(*second)) == (first == second)
    assert 0 <= hash_of(*first) < 1 << 63


def test_bytes_that_move_between_key_and_value_are_another_record() -> None:
    assert (
        len({hash_of(1, *pair) for pair in ((b"ab", None), (None, b"ab"), (b"a", b"b"), (b"ab", b""), (b"", b"ab"))})
        == 5
    )


def test_the_record_that_was_read_is_no_fork_whatever_its_leader_is_now() -> None:
    assert find_forks(READ, {P0: READ[P0]._replace(epoch=9)}, KEPT) == []


def test_another_record_no_record_and_an_earlier_end_are_named_by_partition_and_offset() -> None:
    other = {P0: LastRecord(79, 5, hash_of(5, b"k", b"w"), 3)}
    assert [str(fork) for fork in find_forks(READ, other, KEPT)] == ["flights/0@79 (Kafka has another record there)"]
    assert [str(fork) for fork in find_forks(READ, {}, KEPT)] == ["flights/0@79 (Kafka has no record there)"]
    assert [str(fork) for fork in find_forks(READ, {}, {P0: (0, 79)})] == ["flights/0@79 (Kafka's log ends at 79)"]
    assert [str(fork) for fork in find_forks(READ, {}, {})] == ["flights/0@79 (Kafka's log ends at 0)"]


def test_what_retention_or_compaction_removed_says_nothing() -> None:
    assert find_forks(READ, {}, {P0: (80, 90)}) == []
    assert find_forks(READ, {}, KEPT, frozenset({"flights"})) == []


def test_a_partition_without_a_mark_says_nothing() -> None:
    assert find_forks({}, {P0: READ[P0]}, KEPT) == []


@given(st.dictionaries(st.sampled_from([P0, P1]), st.builds(LastRecord, *(st.integers(0, 1 << 40) for _ in range(4)))))
def test_marks_survive_their_storage(marks: dict[Part, LastRecord]) -> None:
    assert marks_from_plain(marks_to_plain(marks)) == marks


@given(st.integers(0, 1 << 40), st.integers(0, (1 << 63) - 1))
def test_the_archives_mark_is_one_number_that_rises_with_the_offset(offset: int, hashed: int) -> None:
    mark = LastRecord(offset, 0, hashed)
    assert 0 <= version_of(mark) < 1 << 63
    assert version_of(mark) < version_of(LastRecord(offset + 1, 0, 0))
    stored = LastRecord(version_of(mark) >> MARK_BITS, 0, version_of(mark) & ((1 << MARK_BITS) - 1))
    kept = {P0: (0, offset + 1)}
    assert find_forks({P0: stored}, {P0: mark}, kept, bits=MARK_BITS) == []
    assert find_forks({P0: stored}, {P0: mark._replace(hash=hashed ^ 1)}, kept, bits=MARK_BITS) != []
    assert version_of(None) == 0
