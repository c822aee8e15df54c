"""Records that the transform's SQL throws on stop a stream by name, and a rule of an upgrade brings it on: nothing is lost."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from histories.random_histories import keyed, random_batches
from lab.faults.events import Event, produce_events
from rivertwice.core.instants import EPOCH, to_iso, utc_now
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import end_offsets, ensure_topic
from rivertwice.reconcile import observe
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.intent import Exit
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.served import rebuild_served
from running.warm_spark import invoke_warm, run_command_warm, run_driver_warm
from streams.kinds import NAME, check_explained, make_kind_project, run_to_end, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
LARGEST = 2**63 - 1


def test_a_rule_rejects_what_the_transform_throws_on(
    spark: SparkSession, tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    settings = make_kind_project(tmp_path, broker, topic, "tumbling", batch=200)
    definition = load_definition(settings.definitions / NAME)
    records = [one for batch in random_batches(random.Random(3), 8) for one in batch]
    send(settings, definition, records)
    log = tmp_path / "driver.log"
    run_to_end(settings, log)
    home = settings.pipeline(NAME)
    taken = take_savepoint(settings, NAME, now=utc_now(), reason="test")
    run_command_warm(settings, "savepoint", "prove", NAME, taken.id)
    before = path_ledger(home)

    # Each of them is a bigint; their sum is not.
    last_s = max(one.event_s for one in records if one.event_s is not None)
    at = to_iso(EPOCH + timedelta(seconds=last_s + 100))
    values = [5, LARGEST, 5, LARGEST, 5]
    sent = [Event(0, b"a", json.dumps({"k": "a", "at": at, "v": one}).encode(), 1_767_225_600_000) for one in values]
    source = definition.source[1]
    culprit = f"{source.topic}/0@{end_offsets(settings, source.topic)[0] + 1}"  # 5 and the largest are too much already
    produce_events(settings, source.topic, sent)
    with pytest.raises(AssertionError, match="ARITHMETIC_OVERFLOW"):
        run_to_end(settings, log)
    end = Exit.load(home)
    assert end is not None
    assert end.failure == "poison"
    assert (
        f"throws on the record {culprit}, after those before it in the batch, with [ARITHMETIC_OVERFLOW]" in end.message
    )
    assert f"`rivertwice upgrade {NAME} --yes`" in end.message
    assert [row.digest for row in path_ledger(home)] == [row.digest for row in before]

    path = settings.definitions / NAME / "pipeline.yaml"
    rule = "    rules: [{name: v_in_range, rule: range, field: v, min: 0, max: 1000000}]\n"
    path.write_text(path.read_text().replace("    required: [k, v]\n", f"    required: [k, v]\n{rule}", 1))
    assert run_command_warm(settings, "upgrade", NAME, "--yes")["changed"] == ["rules"]
    run_to_end(settings, log)
    rows = path_ledger(home)
    assert sum(row.bad for row in rows) - sum(row.bad for row in before) == 2
    assert sum(row.read for row in rows) == len(records) + len(values)
    # Windows that were open at the upgrade are of two definitions; no other is without a verdict, and no record without a cause.
    report = run_command_warm(settings, "reconcile", NAME)
    assert report["gate"]["passed"]
    assert {one["unexplained"] for one in (report["balance"]["total"], *report["balance"]["partitions"].values())} == {
        0
    }
    for counts in report["counts"].values():
        assert counts["DEFECT"] == 0
        assert counts["AGREES"] > counts["NOT_COMPARABLE"]


RISKY = {
    "tumbling": ("max(v) AS top", "max(1000 / (v - 13)) AS top"),
    "session": ("max(v) AS top", "max(1000 / (v - 13)) AS top"),
    "as-of intervals": ("FROM events AS e", "FROM (SELECT *, 1000 / (v - 13) AS q FROM events WHERE k <> '') AS e"),
}
"""Kind of windows to a change of its SQL that throws on a record with the value 13."""


@pytest.mark.proves("guarantees.md#changelog")
@pytest.mark.parametrize("kind", RISKY)
def test_a_record_on_which_the_sql_throws_is_a_dead_letter_wherever_it_lies(
    spark: SparkSession, tmp_path: Path, broker: BrokerInfo, topic: str, kind: str
) -> None:
    """First in the log, behind earlier state, and late: the stream goes on, and reconcile, backfill and amendments know the record."""
    settings = make_kind_project(tmp_path, broker, topic, kind, batch=200)
    path = settings.definitions / NAME / "transform.sql"
    before, after = RISKY[kind]
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after).replace("valid_from AS top", "valid_from AS top, e.q"))
    yaml = path.with_name("pipeline.yaml")
    if "e.q" in path.read_text():
        yaml.write_text(yaml.read_text().replace("top: {}}", "top: {}, q: {compare: tolerance, tolerance: 0.001}}"))
    elif kind != "as-of intervals":
        yaml.write_text(yaml.read_text().replace("top: {}}", "top: {compare: tolerance, tolerance: 0.001}}"))
    definition = load_definition(settings.definitions / NAME)
    records = [one for batch in random_batches(random.Random(3), 8) for one in batch]
    source = definition.sources["events"]
    times = sorted(one.event_s for one in records if one.event_s is not None)
    bad = [
        Event(
            0,
            b"bad",
            json.dumps({"k": "bad", "at": to_iso(EPOCH + timedelta(seconds=at)), "v": 13}).encode(),
            1_767_225_600_000,
        )
        for at in (times[0], times[-1], times[0])
    ]
    log = tmp_path / "driver.log"
    for each in definition.sources.values():
        ensure_topic(settings, each.topic, each.partitions)
    produce_events(settings, source.topic, bad[:1])
    run_to_end(settings, log)
    first = path_ledger(settings.pipeline(NAME))
    assert (sum(row.bad for row in first), sum(row.accepted for row in first)) == (1, 0)
    send(settings, definition, records)
    produce_events(settings, source.topic, bad[1:2])
    run_to_end(settings, log)
    produce_events(settings, source.topic, bad[2:])
    run_to_end(settings, log)

    letters = run_command_warm(settings, "dead", "list", NAME, "--kind", "transform")["letters"]
    assert [letter["reason"] for letter in letters] == ["transform"] * 3
    assert all("throws" in letter["detail"] for letter in letters)
    check_explained(run_command_warm(settings, "reconcile", NAME))
    value = json.dumps({"k": "bad", "at": to_iso(EPOCH + timedelta(seconds=times[0])), "v": 13})
    refused = invoke_warm(settings, "dead", "amend", NAME, letters[0]["place"], "--value", value, "--reason", "test")
    assert "would be a dead letter too (transform: " in refused.output
    amended = ("dead", "amend", NAME, letters[0]["place"], "--value", value.replace("13", "14"), "--reason", "test")
    assert run_command_warm(settings, *amended)
    done = run_command_warm(
        settings,
        "backfill",
        "run",
        NAME,
        "--from",
        to_iso(EPOCH),
        "--to",
        "2100-01-01T00:00:00Z",
        "--reason",
        "test",
        "--yes",
    )
    assert done
    check_explained(run_command_warm(settings, "reconcile", NAME, "--full"))


def test_a_stream_that_never_committed_begins_again_with_a_changed_definition(
    spark: SparkSession, tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    """A sum overflows in the first batch. What the message prints brings the stream on, and nothing of the log is left out."""
    settings = make_kind_project(tmp_path, broker, topic, "session", batch=200)
    definition = load_definition(settings.definitions / NAME)
    values = [LARGEST, LARGEST, 5]
    at = to_iso(EPOCH + timedelta(seconds=1000))
    source = definition.source[1]
    ensure_topic(settings, source.topic, source.partitions)
    sent = [Event(0, b"a", json.dumps({"k": "a", "at": at, "v": one}).encode(), 1_767_225_600_000) for one in values]
    produce_events(settings, source.topic, sent)
    log = tmp_path / "driver.log"
    with pytest.raises(AssertionError, match="ARITHMETIC_OVERFLOW"):
        run_to_end(settings, log)
    home = settings.pipeline(NAME)
    end = Exit.load(home)
    assert end is not None
    assert (end.failure, f"`rivertwice start {NAME}`" in end.message) == ("poison", True), end.message
    assert "upgrade" not in end.message

    path = settings.definitions / NAME / "transform.sql"
    path.write_text(path.read_text().replace("sum(v)", "sum(CAST(v AS DECIMAL(28, 0)))"))
    with pytest.raises(AssertionError, match=f"`rivertwice start {NAME}` begins with the definition as it is now"):
        run_command_warm(settings, "upgrade", NAME, "--yes")
    run_to_end(settings, log)
    rows = path_ledger(home)
    assert {row.timeline for row in rows} == {"t2"}
    assert sum(row.read for row in rows) == sum(row.accepted for row in rows) == len(values)
    check_explained(run_command_warm(settings, "reconcile", NAME))


@pytest.mark.proves("guarantees.md#verdicts")
def test_a_late_record_that_makes_a_sum_overflow_costs_only_its_window(
    spark: SparkSession, tmp_path: Path, broker: BrokerInfo, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream is healthy, and the truth of one window cannot be computed: reconcile names it, a backfill computes the others."""
    settings = make_kind_project(tmp_path, broker, topic, "tumbling", batch=200)
    definition = load_definition(settings.definitions / NAME)
    source = definition.source[1]
    ensure_topic(settings, source.topic, source.partitions)
    log = tmp_path / "driver.log"

    def send_values(values: list[tuple[str, float, int]]) -> None:
        records = [
            json.dumps({"k": key, "at": to_iso(EPOCH + timedelta(seconds=at)), "v": value}).encode()
            for key, at, value in values
        ]
        produce_events(settings, source.topic, [Event(0, b"a", one, 1_767_225_600_000) for one in records])
        run_to_end(settings, log)

    minutes = [60_000.0 + 60 * minute for minute in range(40)]
    send_values([("a", at, LARGEST if at == minutes[17] else 3) for at in minutes])
    send_values([("a", minutes[17] + 1, 5), ("a", minutes[3] + 1, 2)])
    rebuild_served(settings.pipeline(NAME), definition)
    report = run_command_warm(settings, "reconcile", NAME)
    assert any("the SQL throws over the records from" in alert["message"] for alert in report["gate"]["alerts"]), report
    for counts in report["counts"].values():
        assert (counts["DEFECT"], counts["NOT_COMPARABLE"], counts["LATE"]) == (0, 1, 1)
    assert report["counts"]["stream"]["AGREES"] >= 36

    whole = ("--from", to_iso(EPOCH + timedelta(seconds=60_000)), "--to", to_iso(EPOCH + timedelta(seconds=61_800)))
    with pytest.raises(AssertionError) as refused:
        run_command_warm(settings, "backfill", "run", NAME, *whole, "--yes")
    text = str(refused.value)
    bad = to_iso(EPOCH + timedelta(seconds=minutes[17]))
    assert f"throws over the windows that begin from {bad} to " in text
    commands = [part for part in text.split("`") if part.startswith("rivertwice backfill run")]
    assert len(commands) == 2
    for command in dict.fromkeys(commands):
        assert run_command_warm(settings, *command.split()[1:])
    rebuild_served(settings.pipeline(NAME), definition)
    after = run_command_warm(settings, "reconcile", NAME, "--full")
    assert after["counts"]["served"]["LATE"] == 0
    assert after["counts"]["served"]["NOT_COMPARABLE"] == 1
    monkeypatch.setattr(observe, "MOST_ROWS", -1)
    by_executors = run_command_warm(settings, "reconcile", NAME, "--full")
    assert by_executors["counts"] == after["counts"]
    assert by_executors["balance"] == after["balance"]
    assert by_executors["gate"]["alerts"] == after["gate"]["alerts"]


STUCK = {
    "fold": (
        [
            (
                "fold.py",
                "    top = max(",
                '    if event["v"] == 13:\n        raise ValueError("thirteen")\n    top = max(',
            )
        ],
        [
            ("pipeline.yaml", "top: {}}", "top: {}, error: {}}"),
            ("pipeline.yaml", "types: {", "types: {error: string, "),
        ],
        [13],
    ),
    "session": ([], [("transform.sql", "sum(v)", "sum(CAST(v AS DECIMAL(28, 0)))")], [LARGEST, 5]),
}
"""Kind to what makes its code throw, the change that cures it, and the values of the records on which it throws."""


@pytest.mark.proves("guarantees.md#changelog")
@pytest.mark.parametrize("kind", STUCK)
def test_what_a_stopped_stream_prints_brings_it_on_where_its_state_cannot_be_carried_over(
    spark: SparkSession, tmp_path: Path, broker: BrokerInfo, topic: str, kind: str
) -> None:
    """A fold raises, or a session's sum overflows, behind committed batches: the new version computes all of the log."""
    breaks, cures, values = STUCK[kind]
    settings = make_kind_project(tmp_path, broker, topic, kind, batch=200)
    folder = settings.definitions / NAME

    def edit(changes: list[tuple[str, str, str]]) -> None:
        for name, before, after in changes:
            text = (folder / name).read_text()
            assert before in text
            (folder / name).write_text(text.replace(before, after))

    edit(breaks)
    definition = load_definition(folder)
    batches = random_batches(random.Random(3), 8)
    records = [one for batch in (keyed(batches, spread=False) if kind == "fold" else batches) for one in batch]
    send(settings, definition, records)
    log = tmp_path / "driver.log"
    run_to_end(settings, log)
    source = definition.source[1]
    last_s = max(one.event_s for one in records if one.event_s is not None)
    at = to_iso(EPOCH + timedelta(seconds=last_s + 100))
    sent = [Event(0, b"a", json.dumps({"k": "a", "at": at, "v": one}).encode(), 1_767_225_600_000) for one in values]
    produce_events(settings, source.topic, sent)
    with pytest.raises(AssertionError):
        run_to_end(settings, log)
    end = Exit.load(settings.pipeline(NAME))
    assert end is not None
    assert (end.failure, f"`rivertwice upgrade {NAME} --new-version --yes`" in end.message) == ("poison", True), (
        end.message
    )

    edit(cures)
    begin = ("upgrade", NAME, "--new-version", "--yes")
    assert "no agent is running" in invoke_warm(settings, *begin).output  # so its driver is run here
    run_driver_warm(settings, f"{NAME}@v2", log)
    if load_definition(folder).load_obstacle is None:
        run_command_warm(settings, *begin)
        run_driver_warm(settings, f"{NAME}@v2", log)
    report = run_command_warm(settings, "reconcile", f"{NAME}@v2")
    check_explained(report)
    assert report["balance"]["total"]["read"] == len(records) + len(values)
