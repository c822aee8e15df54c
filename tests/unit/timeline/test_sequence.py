import threading

import pytest

from rivertwice.core.errors import LostRaceError
from rivertwice.core.instants import parse_iso
from rivertwice.core.settings import Settings
from rivertwice.timeline.sequence import append_entry, head, last_seq, move_head, publish, read_sequence

NOW = parse_iso("2013-07-02T00:00:00Z")


@pytest.fixture
def home(tmp_path):
    return Settings(project=tmp_path, home=tmp_path / "home").pipeline("p")


def test_the_newest_head_move_is_the_head_and_publications_do_not_move_it(home):
    assert head(home) is None
    move_head(home, "t1", reason="first start", expected_seq=0, now=NOW)
    publish(home, {"backfill": "bf-1", "ranges": [[0, 1]]}, expected_seq=1, now=NOW)
    assert head(home) == "t1"
    move_head(home, "t2", reason="restore", expected_seq=2, now=NOW)
    assert head(home) == "t2"
    assert [entry.seq for entry in read_sequence(home)] == [1, 2, 3]


def test_an_entry_that_saw_an_older_sequence_loses_and_writes_nothing(home):
    move_head(home, "t1", reason="first start", expected_seq=0, now=NOW)
    with pytest.raises(LostRaceError, match="is at 1, not at 0"):
        move_head(home, "t2", reason="late", expected_seq=0, now=NOW)
    assert last_seq(home) == 1


def test_one_of_many_racing_writers_of_a_sequence_wins(home):
    move_head(home, "t1", reason="first start", expected_seq=0, now=NOW)
    for round_ in range(1, 6):
        outcomes: list[str] = []
        barrier = threading.Barrier(4)

        def race(name, seen=round_, barrier=barrier, outcomes=outcomes):
            barrier.wait()
            try:
                append_entry(home, "publication", {"backfill": name}, expected_seq=seen, now=NOW)
            except LostRaceError:
                outcomes.append("lost")
            else:
                outcomes.append("won")

        threads = [threading.Thread(target=race, args=(f"bf-{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["lost", "lost", "lost", "won"]
    assert [entry.seq for entry in read_sequence(home)] == [1, 2, 3, 4, 5, 6]
