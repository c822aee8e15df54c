"""A large step that is delivered in parts: the position lies inside the step, and the rest follows whatever comes between."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from homes.delivery import DeliveryHome, fill, fold, hour_rows
from rivertwice.cli.main import cli
from rivertwice.core.errors import LedgerError
from rivertwice.core.plain import to_plain
from rivertwice.deliver import deliver as deliver_module
from rivertwice.deliver.model import DeliveredColumns, DeliveryBatch, Position, StepPart
from rivertwice.deliver.note import Note, read_note, write_note
from rivertwice.deliver.plan import check_continued, position_inside
from rivertwice.deliver.refusals import RefusedRecord, SetAside, none_aside
from rivertwice.deliver.status import view_delivery
from rivertwice.deliver.wire import position_from_json, position_to_json, value_text

SINK = "{out: {to: kafka, topic: out, guarantee: exactly_once}}"


class Small:
    """A destination whose transactions hold `most` records; it takes records and position together, and is killed now and then."""

    def __init__(self) -> None:
        self.most = 4
        self.records: list[dict[str, Any]] = []
        self.position = ""
        self.kill_before = self.kill_after = -1
        self.refuse: set[int] = set()
        self.taken = 0

    def open(self, shape: DeliveredColumns, schema: pa.Schema) -> Position | None:
        return position_from_json(self.position)[0] if self.position else None

    def deliver(self, parcel: DeliveryBatch, set_aside: SetAside = none_aside) -> None:
        count = len(parcel.records) if parcel.part_of is None else min(self.most, len(parcel.records))
        refused = [RefusedRecord(each, "no") for each in parcel.records[:count] if each.values[3] in self.refuse]
        set_aside(refused, count)
        if self.taken == self.kill_before:
            self.kill_before = -1
            raise ConnectionResetError
        left_out = {each.record.key for each in refused}
        self.records += [
            {**json.loads(value_text(parcel.shape, record, parcel.after)), "_key": record.key}
            for record in parcel.records[:count]
            if record.key not in left_out
        ]
        self.position = position_to_json(parcel.position_after(count))
        self.taken += 1
        if self.taken == self.kill_after:
            self.kill_after = -1
            raise ConnectionResetError

    def forget(self) -> None:
        self.records, self.position = [], ""

    def close(self) -> None:
        pass


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Small:
    made = Small()
    monkeypatch.setattr(deliver_module, "make_sink", lambda *_: made)
    return made


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeliveryHome:
    made = DeliveryHome(tmp_path, SINK)
    for name, value in made.settings.to_env().items():
        monkeypatch.setenv(name, value)
    return made


def run(*more: str) -> int:
    try:
        cli(["deliver", "run", "p", "--until-end", *more], prog_name="rivertwice")
    except SystemExit as ended:
        return int(ended.code or 0)
    raise AssertionError


@pytest.mark.parametrize("before", [True, False], ids=["before the sink took it", "after"])
@pytest.mark.parametrize("at", range(1, 8))
def test_a_step_that_is_killed_between_its_parts_goes_on_from_there_whatever_the_head_does(
    world: DeliveryHome, sink: Small, at: int, before: bool
) -> None:
    fill(world, "t1", range(2), keys=6)  # one step, three parts
    world.publish(
        0, 2, [(0, "k00000", 7), *((1, f"new{number}", number) for number in range(6))]
    )  # 17 records, five parts
    if before:
        sink.kill_before = at
    else:
        sink.kill_after = at
    run()
    if at % 2:  # a rewind behind it: what was begun is ended first, then the head's own rows
        world.begin("t2", ("t1", 0))
        world.move_head("t2")
        fill(world, "t2", [1], keys=2)
    else:
        fill(world, "t1", [2], keys=5)
        world.publish(2, 3, [(2, "k00000", 9)])
    assert run() == 0
    assert fold(sink.records) == world.served()
    emitted = Counter((one["_key"], *one["from"].values()) for one in sink.records if one["op"] == "emit")
    assert set(emitted.values()) == {1}
    assert position_from_json(sink.position)[0].part is None


def test_records_that_are_refused_in_one_part_are_known_in_the_next(world: DeliveryHome, sink: Small) -> None:
    fill(world, "t1", range(1), keys=10)
    sink.refuse = {1, 6, 9}
    assert run() == 0
    sink.refuse = set()
    world.publish(0, 1, [(0, f"k{number:05d}", 50 + number) for number in range(10)])
    sink.kill_after = sink.taken + 1
    run()
    assert run() == 0
    assert fold(sink.records) == world.served()


def test_status_shows_the_last_whole_step_and_how_far_the_next_one_is(world: DeliveryHome, sink: Small) -> None:
    fill(world, "t1", range(1), keys=10)
    run()
    whole = position_from_json(sink.position)[0]
    fill(world, "t1", range(1, 3), keys=10)
    part = StepPart(Position("t1", 2, 1, whole.born, 0), 8, "x")
    write_note(world.home, "out", Note(position=Position(**{**vars(whole), "number": 9, "part": part}), rows=18))
    assert read_note(world.home, "out").position.part == part
    (shown,) = to_plain(view_delivery(world.settings, "p", world.definition.deliver))
    assert (shown["batch"], shown["lag_batches"], shown["part"]) == (0, 2, {"batch": 2, "sequence": 1, "records": 8})


def test_a_step_whose_rows_have_other_keys_now_is_refused_and_again_delivers_all(
    world: DeliveryHome, sink: Small, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(world, "t1", range(1), keys=10)
    sink.kill_after = 1
    assert run() == 1, "an error that is not of this program is reported, too"
    sink.position = sink.position.replace('"keys":"', '"keys":"0')
    assert run() == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "the tables give other records" in error
    assert "rivertwice deliver run p --sink out --again" in error
    assert run("--sink", "out", "--again") == 0
    assert fold(sink.records) == world.served()


def test_a_position_inside_a_step_is_read_back_and_its_format_is_one_that_older_releases_refuse() -> None:
    to = Position("t1", 5, 3, "b", 8)
    records: list[Any] = []
    for before in (None, Position("t1", 4, 2, "b", 7, "p@v2")):
        inside = position_inside(before, to, records, 0, 0)
        text = position_to_json(inside, topic_id="i")
        assert '"format":2' in text
        assert position_from_json(text) == (inside, {"topic_id": "i"})
        assert inside.whole == (None if before is None else Position("t1", 4, 2, "b", 8, "p@v2"))
        assert inside.number == 8
        check_continued(inside.part, to, records, "s", "p")
        with pytest.raises(LedgerError, match="deliver all"):
            check_continued(inside.part, Position("t1", 6, 3, "b", 8), records, "s", "p")


@pytest.mark.proves("guarantees.md#kafka-sink")
@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_any_history_with_kills_and_parts_folds_to_what_is_served(world: DeliveryHome, sink: Small, seed: int) -> None:
    draw = random.Random(seed)
    batch = {"t1": 0}
    head = "t1"
    for round_ in range(7):
        for _ in range(draw.randint(0, 2)):
            number = batch[head]
            world.commit(head, number, number + 1, hour_rows(number, draw.randint(0, 9)))
            batch[head] += 1
        if batch[head] > 1 and draw.random() < 0.5:
            first = draw.randrange(batch[head])
            rows = [(first, f"k{key:05d}", draw.randint(0, 9)) for key in draw.sample(range(9), draw.randint(0, 9))]
            world.publish(first, first + 1, rows)
        if batch[head] > 1 and draw.random() < 0.4:
            fork = draw.randrange(batch[head] - 1)
            name = f"r{round_}"
            world.begin(name, (head, fork))
            world.move_head(name)
            batch[name] = fork + 1
            head = name
        sink.most = draw.randint(1, 5)
        sink.kill_before, sink.kill_after = draw.choice(
            [(-1, -1), (sink.taken + draw.randint(0, 3), -1), (-1, sink.taken + draw.randint(1, 3))]
        )
        run()
    world.commit(head, batch[head], batch[head] + 1, hour_rows(batch[head], 2))
    sink.kill_before = sink.kill_after = -1
    assert run() == 0
    assert fold(sink.records) == world.served()
