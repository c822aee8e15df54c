"""`rivertwice init --from-topic`: a bounded sample, messages that say what is missing, and a project that runs as it was written."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from homes.project import link
from lab.faults.events import Event
from rivertwice.core.errors import ServiceError
from rivertwice.core.instants import from_ms, parse_iso, to_ms
from rivertwice.core.settings import Settings
from rivertwice.definition.avro import parse_avro, prefixed
from rivertwice.definition.definition import load_definition
from rivertwice.definition.schema_registry import open_registry
from rivertwice.local import produce
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import delete_records, end_offsets, ensure_topic
from rivertwice.log.reader import plan_stretches, sample_topic
from rivertwice.log.send import send_records
from rivertwice.storage.table import Table
from rivertwice.timeline.served import rebuild_served
from running.warm_spark import invoke_warm, run_command_warm, run_driver_warm
from streams.trips import Trip, json_lines, make_trips, send_trips, value_of

pytestmark = pytest.mark.kafka
HOUR_MS = 3_600_000
TRIPS = make_trips(900)
AVRO = json.dumps({
    "type": "record", "name": "Trip", "fields": [
        {"name": "ride_id", "type": "string"},
        {"name": "station", "type": "string"},
        {"name": "fare", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "rating", "type": ["null", "int"]},
        {"name": "started_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
})  # fmt: skip


@pytest.fixture
def settings(tmp_path: Path, broker: BrokerInfo) -> Settings:
    """An empty folder that becomes the project; Java and jars are those of the repository."""
    link(tmp_path / "own", [".build"])
    return Settings(
        project=tmp_path / "own", home=tmp_path / "home", bootstrap=broker.bootstrap, spark_master="local[2]"
    )


def new_topic() -> str:
    return f"bike-trips-{uuid.uuid4().hex[:8]}"


def test_the_oldest_and_the_newest_records_of_each_partition_are_read() -> None:
    stretches = plan_stretches({0: 0, 1: 50, 2: 7}, {0: 1_000, 1: 60, 2: 7}, 100)
    assert [(each.partition, each.begin, each.end) for each in stretches] == [(0, 0, 25), (0, 975, 1_000), (1, 50, 60)]


def test_a_sample_is_bounded_and_its_offsets_are_those_planned(settings: Settings) -> None:
    topic = new_topic()
    send_trips(settings, topic, make_trips(3_000))
    delete_records(settings, topic, {0: 100})
    sampled = sample_topic(settings, topic, 200)
    assert sampled.partitions == 2
    assert sampled.held == 2_900
    read = {(stretch.partition, stretch.newest): [message.offset() for message in messages] for stretch, messages in sampled.records.items()}  # fmt: skip
    assert [len(offsets) for offsets in read.values()] == [50] * 4
    assert read[0, False] == list(range(100, 150))
    for partition in (0, 1):
        end = read[partition, True][-1] + 1
        assert read[partition, True] == list(range(end - 50, end))


def test_a_topic_that_cannot_be_guessed_from_is_refused(settings: Settings) -> None:
    topic, empty, texts, avro = (new_topic() for _ in range(4))
    for name in (topic, empty, texts, avro):
        ensure_topic(settings, name, 1)
    send_records(settings, texts, [Event(0, None, b"not json", to_ms(from_ms(0)))])
    send_records(settings, avro, [Event(0, None, prefixed(7, b"\x02a"), 0)])
    expected = {
        topic[:-1] + "_": [f"has no topic '{topic[:-1]}_'", f"did you mean {topic}?"],
        empty: ["has no records", "--from-file"],
        texts: ["none of 1 records", "1 not valid JSON", f"{texts}/0@0", "b'not json'"],
        avro: ["the schema id 7", "RIVERTWICE_SCHEMA_REGISTRY=https://HOST:PORT", "Protobuf"],
    }
    for name, words in expected.items():
        result = invoke_warm(settings, "init", "p", "--from-topic", name)
        assert result.exit_code == 1
        for word in words:
            assert word in result.output, result.output
    assert [path.name for path in settings.project.iterdir()] == [".build"]


def test_a_broker_that_is_down_is_named_with_its_remedy(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rivertwice.log.kafka.TIMEOUT", 2.0)
    result = invoke_warm(replace(settings, bootstrap="127.0.0.1:1"), "init", "p", "--from-topic", "trips")
    assert result.exit_code == 1
    assert "Kafka at 127.0.0.1:1 failed at listing topics" in result.output
    assert "rivertwice up" in result.output


def send_avro(settings: Settings, topic: str, trips: Sequence[Trip]) -> None:
    version = open_registry(settings.project).register(f"{topic}-value", "avro", AVRO, None)
    schema = parse_avro(AVRO, "test")
    ensure_topic(settings, topic, 2)
    names = ("ride_id", "station", "rating", "started_at")
    values = [
        {name: value_of(trip)[name] for name in names} | {"fare": f"{trip.fare_cents / 100:.2f}"} for trip in trips
    ]
    bodies = [prefixed(version.id, schema.encode(value)) for value in values]
    send_records(settings, topic, [
        Event(int(trip.station[-1]) % 2, trip.station.encode(), body, trip.arrived_ms)
        for trip, body in zip(trips, bodies, strict=True)
    ])  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("variant", ["epoch_ms", "nested", "camel", "avro"])
def test_what_is_written_is_accepted_and_its_cases_pass(settings: Settings, variant: str) -> None:
    topic = new_topic()
    if variant == "avro":
        send_avro(settings, topic, TRIPS)
    else:
        send_trips(settings, topic, TRIPS, variant)
    guess = run_command_warm(settings, "init", "trips", "--from-topic", topic)["guess"]
    assert guess["gaps"] == []
    definition = load_definition(settings.definitions / "trips")
    key = "station_name" if variant == "camel" else "station"
    assert (definition.source[1].event_time, definition.keys) == ("started_at", [key])
    assert definition.source[1].format == ("avro" if variant == "avro" else "json")
    linted = run_command_warm(settings, "lint", "trips")[0]["findings"]
    assert [each for each in linted if each["state"] == "broken"] == []
    tested = run_command_warm(settings, "test", "trips")
    assert [(case["case"], case["differences"]) for case in tested["cases"]] == [
        ("(definition)", []), ("a_record_that_is_late", []), ("records_of_one_window", [])
    ]  # fmt: skip


def totals(trips: Sequence[Trip]) -> dict[tuple[int, str], tuple[int, int]]:
    """Return hour and station to trips and fares in cents, by plain additions."""
    count: Counter[tuple[int, str]] = Counter()
    cents: Counter[tuple[int, str]] = Counter()
    for trip in trips:
        cell = (trip.started_ms // HOUR_MS * HOUR_MS, trip.station)
        count[cell] += 1
        cents[cell] += trip.fare_cents
    return {cell: (count[cell], cents[cell]) for cell in count}


@pytest.mark.spark
def test_the_guessed_pipeline_streams_and_its_reconcile_passes(settings: Settings, tmp_path: Path) -> None:
    """The delay is twice the disorder of the sample, so nothing is late here, and served rows are those of plain additions."""
    topic = new_topic()
    send_trips(settings, topic, TRIPS)
    looked = run_command_warm(settings, "look", topic, "--window", "1 hour")
    assert (looked["origin"], looked["event_time"], looked["delays"][-1]["late"]) == (f"topic {topic}", "started_at", 0)
    run_command_warm(settings, "init", "trips", "--from-topic", topic, "--window", "1 hour")
    run_driver_warm(settings, "trips", tmp_path / "driver.log")
    report = run_command_warm(settings, "reconcile", "trips")
    assert report["counts"]["stream"]["DEFECT"] == 0
    assert report["counts"]["stream"]["AGREES"] > 0
    home = settings.pipeline("trips")
    rebuild_served(home, load_definition(settings.definitions / "trips"))
    served = Table(home.tables.served).read().to_pylist()
    truth = totals(TRIPS)
    assert len(served) >= 6
    for row in served:
        assert (row["records"], row["fare_sum"] * 100) == truth[to_ms(row["window_start"]), row["station"]]


@pytest.mark.spark
def test_a_file_is_sent_once_whatever_interrupts_it(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is made, fields are named as in the definition, and each record has its event time as timestamp.

    It is interrupted after each note of how far it came, and before it: between the records and the note of them.
    """
    topic = f"trips_{uuid.uuid4().hex[:8]}"
    file = tmp_path / f"{topic}.jsonl"
    file.write_text(json_lines(TRIPS, "local").replace('"station"', '"Station"'))
    run_command_warm(settings, "init", "trips", "--from-file", str(file), "--zone", "UTC")
    words = ("--output", "json", "send", "trips", str(file), "--zone", "UTC")
    monkeypatch.setattr(produce, "AT_ONCE", -(-len(TRIPS) // 4))
    real, calls = produce._write, []

    def interrupted(note: Path, sent: produce.SentFile) -> None:
        calls.append(sent.records)
        if len(calls) % 2:
            raise ServiceError("it is interrupted")
        real(note, sent)

    monkeypatch.setattr(produce, "_write", interrupted)
    for _ in range(20):
        result = invoke_warm(settings, *words)
        if result.exit_code == 0:
            break
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["records"] == len(TRIPS)
    assert len(calls) > 8
    (messages,) = sample_topic(settings, topic, 5_000).records.values()
    assert [json.loads(each.value())["ride_id"] for each in messages] == [value_of(trip)["ride_id"] for trip in TRIPS]
    first, value = messages[0], json.loads(messages[0].value())
    assert value["station"] == TRIPS[0].station
    assert first.key() == TRIPS[0].station.encode()
    assert to_ms(parse_iso(value["started_at"])) == first.timestamp()[1] == TRIPS[0].started_ms // 1_000 * 1_000
    monkeypatch.undo()
    refused = invoke_warm(settings, *words)
    assert refused.exit_code == 1
    assert "say --again if that is meant" in refused.output
    assert invoke_warm(settings, *words, "--again").exit_code == 0
    assert sum(end_offsets(settings, topic).values()) == 2 * len(TRIPS)


@pytest.mark.spark
def test_a_file_with_a_broken_line_is_not_sent_at_all(settings: Settings, tmp_path: Path) -> None:
    topic = f"trips_{uuid.uuid4().hex[:8]}"
    file = tmp_path / f"{topic}.jsonl"
    file.write_text(json_lines(TRIPS, "iso"))
    run_command_warm(settings, "init", "trips", "--from-file", str(file))
    with file.open("a") as more:
        more.write('{"ride_id": 7,\n')
    result = invoke_warm(settings, "send", "trips", str(file))
    assert result.exit_code == 1
    assert (
        f"line {len(TRIPS) + 1:,}: not valid JSON; none of its {len(TRIPS):,} other records was sent" in result.output
    )
    assert sum(end_offsets(settings, topic).values()) == 0


@pytest.mark.spark
def test_a_file_of_change_events_becomes_the_table_behind_them(settings: Settings, tmp_path: Path) -> None:
    topic = f"orders_{uuid.uuid4().hex[:8]}"
    changes, table = [], {}
    for n in range(60):
        row, op = {"id": n % 20, "quantity": n, "price": 12.5}, "c" if n < 20 else "u" if n % 5 else "d"
        changes.append({"before": row, "after": None if op == "d" else row, "op": op, "ts_ms": 1_767_000_000_000 + n})
        table[row["id"]] = None if op == "d" else n
    file = tmp_path / f"{topic}.jsonl"
    file.write_text("".join(json.dumps({"schema": {}, "payload": each}) + "\n" for each in changes))
    run_command_warm(settings, "init", "orders", "--from-file", str(file))
    assert run_command_warm(settings, "send", "orders", str(file))["records"] == 60
    run_driver_warm(settings, "orders", tmp_path / "driver.log")
    assert run_command_warm(settings, "reconcile", "orders")["counts"]["stream"]["DEFECT"] == 0
    home = settings.pipeline("orders")
    rebuild_served(home, load_definition(settings.definitions / "orders"))
    rows = run_command_warm(settings, "show", "orders", "--by-key")["rows"]
    assert {row["id"]: row["quantity"] for row in rows} == {key: n for key, n in table.items() if n is not None}
