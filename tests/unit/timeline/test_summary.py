"""Dead letters that count, decisions about them, and the book in which the newest one holds."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from homes.ledger import NOW, ledger_row
from rivertwice.cli.main import cli
from rivertwice.core.errors import LostRaceError, RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.storage.snapshot import Snapshot
from rivertwice.storage.table import Table
from rivertwice.timeline.committed import CommittedBatches, committed_batches
from rivertwice.timeline.dead_letters import (
    AMEND,
    DISCARD,
    Amendment,
    DeadLetter,
    LetterState,
    RecordAddress,
    cures_of,
    describe_newest,
    newest_by_address,
    parse_address,
)
from rivertwice.timeline.dead_summary import (
    amend,
    append_amendments,
    discard,
    find_letter,
    last_amendment,
    read_amendments,
    read_letters,
    select_valid,
    summarise_dead_letters,
)
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Timeline, create_timeline
from rivertwice.timeline.sequence import move_head


def test_the_newest_letters_are_described_by_what_most_have_in_common() -> None:
    def letters(*rows: tuple[str, str | None, bytes | None]) -> list[DeadLetter]:
        return [
            DeadLetter("flights", RecordAddress("id", 0, n), "t1", 0, reason, detail, NOW, None, value, None)
            for n, (reason, detail, value) in enumerate(rows)
        ]

    fields = {"flights": {"user", "at"}}
    renamed = ("missing", "user", b'{"usr": "u1", "at": "x", "odd\\u001b": 1}')
    assert describe_newest(letters(*[renamed] * 3, ("json", None, b"x")), fields) == (
        "3 of the newest 4: missing (user); they have odd\\x1b, usr, which the definition does not name"
    )
    assert describe_newest(letters(("json", None, None), ("utf8", "a", b"\xff")), fields) == "1 of the newest 2: json"
    assert describe_newest([], fields) == ""


LATER = NOW + timedelta(hours=1)


def stored(offset: int, batch: int = 0, timeline: str = "t1", reason: str = "json", **changes: Any) -> dict[str, Any]:
    return {
        "_format": 1, "_timeline": timeline, "_batch": batch, "reason": reason, "detail": None, "cluster_id": "c",
        "topic_id": "id", "topic": "flights", "partition": 0, "offset": offset, "record_time": NOW, "key": b"k",
        "value": b"broken", "headers": [{"key": "schema-id", "value": b"flights-1"}], **changes,
    }  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> PipelineHome:
    """A pipeline with two committed batches, dead letters at 3, 7 (batch 0) and 12 (batch 1), and one of a lost attempt."""
    found = Settings(project=tmp_path, home=tmp_path / "home").pipeline("p")
    create_timeline(found, Timeline("p", "t1", None, 0, {"flights": {"0": 0}}, "b", {}, "c", {"flights": "id"}, NOW))
    move_head(found, "t1", reason="first start", expected_seq=0, now=NOW)
    append_ledger(found, [ledger_row(0), ledger_row(1, committed_at=LATER)])
    rows = [stored(3), stored(7, reason="schema"), stored(12, batch=1), stored(25, batch=2)]
    Table(found.tables.dead_letters).append(pa.Table.from_pylist(rows))
    return found


def fine(*_: object) -> None:
    return None


def decision(offset: int, seq: int, kind: str = AMEND) -> Amendment:
    return Amendment(
        seq, kind, "flights", RecordAddress("id", 0, offset), b"{}" if kind == AMEND else None, "why", "me", NOW
    )


def test_only_letters_of_committed_batches_on_the_heads_path_count() -> None:
    rows = [stored(1), stored(2, batch=9), stored(3, timeline="t2"), stored(0)]
    letters = select_valid(rows, CommittedBatches.of([ledger_row(0)]), {})
    assert [one.address.offset for one in letters] == [0, 1]


@pytest.mark.proves("howto-quality.md#dead-letters")
def test_a_letter_is_open_until_a_decision_and_the_newest_one_holds() -> None:
    book = [decision(1, seq=1), decision(1, seq=3, kind=DISCARD), decision(2, seq=2)]
    letters = select_valid(
        [stored(1), stored(2), stored(3)], CommittedBatches.of([ledger_row(0)]), newest_by_address(book)
    )
    assert [one.state for one in letters] == [LetterState.DISCARDED, LetterState.AMENDED, LetterState.OPEN]
    as_of_two = select_valid([stored(1)], CommittedBatches.of([ledger_row(0)]), newest_by_address(book, upto=2))
    assert [one.state for one in as_of_two] == [LetterState.AMENDED]


def test_the_desk_counts_by_reason_and_knows_the_oldest_open_one(home: PipelineHome) -> None:
    desk = summarise_dead_letters(home, committed_batches(home))
    assert desk.counts == {
        "json": {LetterState.OPEN: 2, LetterState.AMENDED: 0, LetterState.DISCARDED: 0},
        "schema": {LetterState.OPEN: 1, LetterState.AMENDED: 0, LetterState.DISCARDED: 0},
    }
    assert (desk.oldest_open, desk.last_seq) == (NOW, 0)


def test_a_list_holds_the_bytes_of_what_it_shows_alone(home: PipelineHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 letters of 100 kB: the counts are of all, and what was read from the table is little more than five of them."""
    size = 100_000
    rows = [
        stored(offset, value=b"x" * (size - 3) + b"%03d" % offset, partition=offset % 2) for offset in range(100, 400)
    ]
    Table(home.tables.dead_letters).append(pa.Table.from_pylist(rows))
    held: list[int] = []
    read = Snapshot.read

    def counted(*args: Any, **kwargs: Any) -> pa.Table | None:
        found = read(*args, **kwargs)
        held.append(0 if found is None else found.nbytes)
        return found

    monkeypatch.setattr(Snapshot, "read", counted)
    options = ["--output", "json", "--project", str(home.root), "--home", str(home.root.parents[1])]

    def ask(*words: str) -> Any:
        held.clear()
        return json.loads(CliRunner().invoke(cli, [*options, "dead", *words], catch_exceptions=False).stdout)

    (home.root / "intent.json").write_text("{}")  # so that the command line knows the pipeline
    listed = ask("list", "p", "--kind", "json", "--limit", "5")
    assert (listed["total"], listed["counts"]["json"]["open"], len(listed["letters"])) == (302, 302, 5)
    assert [one["place"] for one in listed["letters"]] == ["0@3", "0@12", "0@100", "0@102", "0@104"]
    assert listed["letters"][0]["value"] == "broken"
    assert [one["value"][-3:] for one in listed["letters"][2:]] == ["100", "102", "104"]
    assert sum(held) < 6 * size
    one = ask("show", "p", "1@201")
    assert (one["value"][-3:], len(one["value"]), sum(held) < 2 * size) == ("201", size, True)


@pytest.mark.proves("howto-quality.md#dead-letters")
def test_decisions_are_kept_and_leave_only_what_is_open(home: PipelineHome) -> None:
    letters = read_letters(home)
    amend(home, letters[0], b'{"fine": 1}', fine, why="quoted wrongly", by="ana", now=NOW)
    discard(home, [letters[1]], why="a test record", by="ben", now=NOW)
    after = read_letters(home)
    assert [one.state for one in after] == [LetterState.AMENDED, LetterState.DISCARDED, LetterState.OPEN]
    assert after[0].amendment is not None
    assert (after[0].amendment.value, after[0].amendment.why, after[0].amendment.by) == (
        b'{"fine": 1}',
        "quoted wrongly",
        "ana",
    )
    assert after[0].value == b"broken"
    assert summarise_dead_letters(home, committed_batches(home)).oldest_open == LATER
    assert [one.seq for one in read_amendments(home)] == [1, 2]


@pytest.mark.proves("howto-quality.md#dead-letters")
def test_a_cure_that_is_a_dead_letter_too_is_refused(home: PipelineHome) -> None:
    with pytest.raises(RequestError, match=r"0@3 would be a dead letter too \(missing: at\)"):
        amend(home, read_letters(home)[0], b"{}", lambda *_: "missing: at", why="x", by="y", now=NOW)
    assert (last_amendment(home), read_amendments(home)) == (0, [])


@pytest.mark.proves("guarantees.md#dead-letters")
def test_of_two_who_decide_at_once_one_is_refused(home: PipelineHome) -> None:
    append_amendments(home, [decision(3, 0)], expected_seq=0)
    with pytest.raises(LostRaceError, match="are at 1, not at 0"):
        append_amendments(home, [decision(7, 0), decision(12, 0)], expected_seq=0)
    assert [one.address.offset for one in read_amendments(home)] == [3]


def test_many_are_discarded_in_one_commit_with_numbers_of_their_own(home: PipelineHome) -> None:
    done = discard(home, read_letters(home), why="flood", by="me", now=NOW)
    assert [one.seq for one in done] == [1, 2, 3]
    assert last_amendment(home) == 3
    assert discard(home, [], why="none", by="me", now=NOW) == []


def test_a_place_without_a_dead_letter_is_named(home: PipelineHome) -> None:
    assert find_letter(read_letters(home), (None, 0, 12), "p").batch == 1
    with pytest.raises(RequestError, match="no dead letter of p is at 0@4"):
        find_letter(read_letters(home), (None, 0, 4), "p")


def test_of_several_topics_a_place_names_its_topic(home: PipelineHome) -> None:
    ledger = [ledger_row(0, topic_ids={"flights": "id", "weather": "iw"})]
    rows = [stored(3), stored(3, topic="weather", topic_id="iw"), stored(4, topic="weather", topic_id="iw")]
    letters = select_valid(rows, CommittedBatches.of(ledger), {})
    assert [one.place for one in letters] == ["flights/0@3", "weather/0@3", "weather/0@4"]
    assert find_letter(letters, parse_address("weather/0@3"), "p").topic == "weather"
    assert find_letter(letters, parse_address("0@4"), "p").topic == "weather"
    with pytest.raises(RequestError, match="name one: flights/0@3, weather/0@3"):
        find_letter(letters, parse_address("0@3"), "p")
    with pytest.raises(RequestError, match="no dead letter of p is at flights/0@4"):
        find_letter(letters, parse_address("flights/0@4"), "p")


@pytest.mark.parametrize("text", ["", "3", "@", "/1@2", "1@", "@1", "-1@2", "1@2@3", "a@b", "1@" + "9" * 60, "1 @2"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="PARTITION@OFFSET"):
        parse_address(text)


def test_a_book_of_a_newer_format_is_not_guessed_at(home: PipelineHome) -> None:
    from rivertwice.core.errors import LedgerError
    from rivertwice.timeline.dead_summary import SCHEMA

    one = decision(3, 1)
    row = {
        "_format": 2,
        "seq": 1,
        "kind": AMEND,
        "topic": "flights",
        **one.address._asdict(),
        "value": b"",
        "why": "",
        "by": "",
    }
    Table(home.tables.amendments).append(pa.Table.from_pylist([{**row, "created_at": NOW}], schema=SCHEMA))
    with pytest.raises(LedgerError, match="format 2"):
        read_amendments(home)


def test_letters_and_amendments_without_tables_are_none(tmp_path: Path) -> None:
    empty = Settings(project=tmp_path, home=tmp_path / "home").pipeline("p")
    assert (
        read_letters(empty),
        read_amendments(empty),
        summarise_dead_letters(empty, CommittedBatches.of([])).oldest_open,
    ) == (
        [],
        [],
        None,
    )
    assert summarise_dead_letters(empty, CommittedBatches.of([])).total(LetterState.OPEN) == 0


def test_every_cure_says_from_which_to_which_decision_it_held() -> None:
    book = [
        decision(1, seq=1),
        decision(2, seq=2),
        decision(1, seq=3),
        decision(1, seq=4, kind=DISCARD),
        decision(9, seq=5),
    ]
    letters = select_valid([stored(1), stored(2), stored(3)], CommittedBatches.of([ledger_row(0)]), {})
    cures = cures_of(letters, reversed(book))
    assert [(one.letter.address.offset, one.first_seq, one.until_seq) for one in cures] == [
        (1, 1, 3),
        (2, 2, None),
        (1, 3, 4),
    ]
    assert [[one.holds_at(seq) for one in cures] for seq in (0, 2, 3, 9)] == [
        [False, False, False],
        [True, True, False],
        [False, True, True],
        [False, True, False],
    ]
