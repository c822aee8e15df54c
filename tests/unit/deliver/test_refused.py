"""Deliveries that a destination refuses for good: set aside with reason and address, listed, tried again, discarded."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homes.delivery import DeliveryHome, fill
from rivertwice.cli.main import cli
from rivertwice.core.errors import ConfigError, LedgerError
from rivertwice.deliver import deliver as deliver_module
from rivertwice.deliver.aside import AsideStore
from rivertwice.deliver.model import DeliveredColumns, DeliveredRecord, DeliveryBatch, Position
from rivertwice.deliver.note import only_deliverer
from rivertwice.deliver.refusals import Aside, RefusedRecord, SetAside, after_step, fit, isolate, none_aside
from rivertwice.deliver.wire import position_from_json, position_to_json, value_text

pytestmark = pytest.mark.long

SINK = "{out: {to: kafka, topic: out, guarantee: exactly_once}}"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Picky:
    """A sink whose destination refuses values; it keeps rows and position together, and can be killed before it takes them."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.position = ""
        self.refuse: set[int] = set()
        self.kill = False
        self.log: list[tuple[str, str]] = []

    def open(self, shape: DeliveredColumns, schema: pa.Schema) -> Position | None:
        return position_from_json(self.position)[0] if self.position else None

    def deliver(self, parcel: DeliveryBatch, set_aside: SetAside = none_aside) -> None:
        refused = [RefusedRecord(one, f"value {one.values[3]}") for one in parcel.records if self._refuses(one)]
        set_aside(refused)
        if self.kill:
            self.kill = False
            raise KeyboardInterrupt
        for record in parcel.records:
            if not self._refuses(record):
                self._take(parcel, record)
        self.position = position_to_json(parcel.after)

    def _refuses(self, record: DeliveredRecord) -> bool:
        return record.op != "withdraw" and record.values[3] in self.refuse

    def _take(self, parcel: DeliveryBatch, record: DeliveredRecord) -> None:
        """Fold as any consumer does, and check what the record says of the row before it."""
        told = json.loads(value_text(parcel.shape, record, parcel.after))
        before = self.rows.get(record.key)
        assert (told["replaces"] is None) == (before is None), (told, before)
        if before is not None:
            assert told["replaces"]["values"] == before["values"]
        self.log.append((record.op, record.key))
        if record.op == "withdraw":
            del self.rows[record.key]
        else:
            self.rows[record.key] = told

    def forget(self) -> None:
        self.rows, self.position = {}, ""

    def close(self) -> None:
        pass

    def holds(self) -> dict[str, int]:
        return {key: row["values"]["n"] for key, row in self.rows.items()}


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Picky:
    made = Picky()
    monkeypatch.setattr(deliver_module, "make_sink", lambda *_: made)
    return made


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeliveryHome:
    made = DeliveryHome(tmp_path, SINK)
    for name, value in made.settings.to_env().items():
        monkeypatch.setenv(name, value)
    return made


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli(list(args), prog_name="rivertwice")
    return int(ended.value.code or 0)


def output(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    capsys.readouterr()
    run("--output", "json", *args)
    return json.loads(capsys.readouterr().out)


def served(world: DeliveryHome) -> dict[tuple[int, str], int]:
    return world.served()


def by_hour(sink: Picky) -> dict[tuple[int, str], int]:
    found = {}
    for row in sink.rows.values():
        start = datetime.fromisoformat(row["window"][0])
        found[int(start.timestamp()) // 3600, row["keys"]["k"]] = row["values"]["n"]
    return found


@pytest.mark.proves("howto-delivery.md#what-a-destination-refuses")
def test_a_refused_delivery_is_listed_counted_and_tried_again_by_command(
    world: DeliveryHome, sink: Picky, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(world, "t1", range(2), keys=5)
    sink.refuse = {100_003}
    assert run("deliver", "run", "p", "--until-end") == 0
    assert set(served(world).items()) - set(by_hour(sink).items()) == {((1, "k00003"), 100_003)}
    (one,) = output(capsys, "deliver", "refused", "p")
    assert (one["op"], one["reason"], one["times"], one["state"]) == ("emit", "value 100003", 1, "open")
    assert one["source"] == {"timeline": "t1", "batch": 1}
    assert json.loads(one["key"])["keys"] == {"k": "k00003"}
    assert output(capsys, "deliver", "status", "p")["p"][0]["refused"] == 1
    assert "k00003" in (run("deliver", "refused", "p"), capsys.readouterr().out)[1]

    assert run("deliver", "retry", "p", "--sink", "out") == 0  # it is refused again, and stays
    (one,) = output(capsys, "deliver", "refused", "p")
    assert one["times"] == 2
    sink.refuse = set()
    assert run("deliver", "retry", "p", "--sink", "out", "--key", one["key"]) == 0
    assert output(capsys, "deliver", "refused", "p") == []
    assert by_hour(sink) == served(world)
    assert run("deliver", "retry", "p", "--sink", "out") == 1
    assert "no open refused delivery" in capsys.readouterr().err


def test_a_discarded_record_is_not_retried_but_its_next_change_is_sent(
    world: DeliveryHome, sink: Picky, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(world, "t1", range(2), keys=2)
    sink.refuse = {1, 100_001}
    run("deliver", "run", "p", "--until-end")
    assert run("deliver", "discard", "p", "--sink", "out", "--reason", "test records") == 0
    assert [one["state"] for one in output(capsys, "deliver", "refused", "p")] == ["discarded"] * 2
    assert [one["why"] for one in output(capsys, "deliver", "refused", "p")] == ["test records"] * 2
    assert output(capsys, "deliver", "status", "p")["p"][0]["refused"] == 0
    world.publish(0, 1, [(0, "k00000", 0), (0, "k00001", 5)])
    run("deliver", "run", "p", "--until-end")
    assert by_hour(sink)[0, "k00001"] == 5
    assert len(output(capsys, "deliver", "refused", "p")) == 1


def test_what_is_asked_while_another_process_delivers_is_done_by_that_one(
    world: DeliveryHome, sink: Picky, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(world, "t1", [0], keys=2)
    sink.refuse = {1}
    run("deliver", "run", "p", "--until-end")
    sink.refuse = set()
    with only_deliverer(world.home, "out"):
        assert run("deliver", "retry", "p", "--sink", "out") == 0
        assert "asked" in capsys.readouterr().out
        assert len(output(capsys, "deliver", "refused", "p")) == 1
    run("deliver", "run", "p", "--until-end")
    assert by_hour(sink) == served(world)


def test_a_destination_that_refuses_all_stops_the_sink_at_its_position(
    world: DeliveryHome, sink: Picky, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(world, "t1", [0], keys=120)
    sink.refuse = set(range(120))
    assert run("deliver", "run", "p", "--until-end") != 0
    assert "refused the last 120 records and took none" in capsys.readouterr().err
    assert output(capsys, "deliver", "refused", "p") == []
    sink.refuse = {3}
    assert run("deliver", "run", "p", "--until-end") == 0
    assert len(output(capsys, "deliver", "refused", "p")) == 1


@pytest.mark.proves("failure-modes.md#delivery")
@pytest.mark.parametrize("healed", [False, True])
def test_killed_between_the_record_of_a_refusal_and_the_position(
    world: DeliveryHome, sink: Picky, capsys: pytest.CaptureFixture[str], healed: bool
) -> None:
    fill(world, "t1", [0], keys=3)
    sink.refuse, sink.kill = {1}, True
    with pytest.raises((KeyboardInterrupt, AssertionError, SystemExit)):
        _deliver(world)
    assert output(capsys, "deliver", "refused", "p") == []  # it does not count: the step was not taken
    sink.refuse = set() if healed else {1}
    _deliver(world)
    assert len(output(capsys, "deliver", "refused", "p")) == (0 if healed else 1)
    assert len(sink.rows) == (3 if healed else 2)


def _deliver(world: DeliveryHome) -> None:
    import threading

    finish = threading.Event()
    finish.set()
    asked = world.definition.deliver["out"]
    deliver_module.Deliverer(world.settings, "p", "out", asked).run(threading.Event(), finish)


def test_a_damaged_record_of_refusals_is_named_with_its_remedy(
    world: DeliveryHome, sink: Picky, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(world, "t1", [0], keys=3)
    path = Path(world.home.place) / "delivery" / "out.refused.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"{")
    with pytest.raises(LedgerError, match=r"out\.refused\.json.*--again"):
        _deliver(world)
    (shown,) = output(capsys, "deliver", "status", "p")["p"]
    assert shown["refused"] is None
    assert "out.refused.json" in shown["error"]
    assert run("deliver", "run", "p", "--sink", "out", "--again", "--until-end") == 0
    assert len(sink.rows) == 3


@pytest.mark.proves("guarantees.md#all-sinks")
@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_refused_a_consumer_folds_all_that_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Every record says of the row before it what the destination holds (`Picky._take`); kills and retries in between."""
    draw = random.Random(seed)
    world, made = DeliveryHome(tmp_path, SINK), Picky()
    monkeypatch.setattr(deliver_module, "make_sink", lambda *_: made)
    monkeypatch.setattr(deliver_module, "check_bounds", lambda *_: None)
    from rivertwice.deliver.aside import DISCARD, RETRY, ask

    for number in range(5):
        made.refuse = set(draw.sample(range(8), draw.randint(0, 4)))
        made.kill = draw.random() < 0.3
        world.commit("t1", number, number + 1, [(number, f"k{key}", draw.randrange(8)) for key in range(4)])
        if draw.random() < 0.7:
            hours = draw.randint(0, number)
            rows = [(hours, f"k{key}", draw.randrange(8)) for key in range(5) if draw.random() < 0.6]
            world.publish(hours, hours + 1, rows)
        if draw.random() < 0.4:
            ask(world.home, "out", draw.choice([RETRY, DISCARD]), None, why="", by="", now=NOW)
        try:
            _deliver(world)
        except KeyboardInterrupt:
            _deliver(world)
    lacking = AsideStore(world.home, "out")
    lacking.open(position_from_json(made.position)[0])
    keys = {
        (int(datetime.fromisoformat(json.loads(key)["window"][0]).timestamp()) // 3600, json.loads(key)["keys"]["k"])
        for key in lacking.now.entries
    }
    expected = {at: n for at, n in world.served().items() if at not in keys}
    assert {at: n for at, n in by_hour(made).items() if at not in keys} == expected
    made.refuse = set()
    ask(world.home, "out", RETRY, None, why="", by="", now=NOW)
    _deliver(world)
    open_now = AsideStore(world.home, "out")
    open_now.open(position_from_json(made.position)[0])
    assert all(one.state == "discarded" for one in open_now.now.entries.values())
    if not open_now.now.entries:
        assert by_hour(made) == world.served()


def record(key: int, old: int | None = None, op: str = "emit") -> DeliveredRecord:
    values = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC), f"k{key}", key)
    return DeliveredRecord(op, f"k{key}", values, None, None, None if old is None else (*values[:3], old))


@pytest.mark.proves("howto-delivery.md#what-a-destination-refuses")
@given(st.sets(st.integers(0, 299), max_size=40), st.integers(1, 300))
def test_halving_finds_exactly_the_refused_ones_in_order(refused: set[int], count: int) -> None:
    sent: list[int] = []

    def attempt(part: Sequence[DeliveredRecord]) -> str | None:
        numbers = [int(one.key[1:]) for one in part]
        if any(number in refused for number in numbers):
            return "no"
        sent.extend(numbers)
        return None

    found = [int(one.record.key[1:]) for one in isolate([record(key) for key in range(count)], attempt, "s")]
    assert found == sorted(number for number in refused if number < count)
    assert sent == [number for number in range(count) if number not in refused]


def test_halving_gives_up_where_nothing_is_taken() -> None:
    with pytest.raises(ConfigError, match="took none"):
        isolate([record(key) for key in range(500)], lambda _: "no", "s")


def test_a_row_that_was_never_taken_is_not_withdrawn() -> None:
    aside = after_step(Aside(), [record(1), record(2)], [RefusedRecord(record(1), "no")], step=1, now=NOW)
    gone = record(1, old=1, op="withdraw")
    assert fit([gone, record(2, old=2)], aside) == [record(2, old=2)]
    assert not after_step(aside, [gone], [], step=2, now=NOW).entries
    (changed,) = fit([record(1, old=1, op="correct")], aside)
    assert changed.old is None
