"""`rivertwice explain` of one number, before and after its backfill, against plain sums over the records that were sent."""

from __future__ import annotations

import json
import shlex
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import Result

from homes.project import TO_RUN, make_project
from lab.faults.events import BEGIN_MS, Event, produce_events
from rivertwice.core.instants import from_ms, parse_iso, to_iso
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.timeline.lineage import path_ledger
from running.warm_spark import invoke_warm, run_command_warm, run_driver_warm

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
MINUTE_MS = 60_000
NAME, VISITS, EARLY, TOTALS, SPELT = "amounts", "visits", "early", "totals", "spelt"
LATE_MS = BEGIN_MS + 3 * MINUTE_MS
CURE = json.dumps({"k": "a", "at": to_iso(from_ms(BEGIN_MS + 4 * MINUTE_MS)), "delta": 500})
WINDOW = to_iso(from_ms(BEGIN_MS))
QUICK_S = 2.0
YAML = """\
name: NAME
description: Amounts by key.
sources:
  records:
    topic: TOPIC
    partitions: 2
    schema: {k: string, at: timestamp, delta: bigint}
    required: [k, delta]
    event_time: at
    watermark: 10 minutes
    max_future: 1 hour
window: WINDOW
keys: [k]
count_column: records
columns: {records: {}, total: {}}
stream: {max_offsets_per_trigger: 30, catch_up_share: 0, shuffle_partitions: 1}
"""
SQL = """\
SELECT CALL.start AS window_start, CALL.end AS window_end, k, count(*) AS records, sum(delta) AS total
FROM records
GROUP BY CALL(at, SIZE), k
"""
FOLD_YAML = """\
window: {fold: 1 day, at: at}
by: [k]
state: {total: bigint}
keys: [k]
columns: {at: {}, total: {}}
types: {at: timestamp, total: bigint}
stream: {max_offsets_per_trigger: 30, catch_up_share: 0, shuffle_partitions: 1}
"""
FOLD = """\
def fold(state, event):
    total = (state or {"total": 0})["total"] + event["delta"]
    return {"total": total}, [{"total": total}]
"""


@dataclass(frozen=True)
class Amount:
    """A record that was sent and is accepted."""

    k: str
    at_ms: int
    delta: int

    @property
    def value(self) -> bytes:
        return json.dumps({"k": self.k, "at": to_iso(from_ms(self.at_ms)), "delta": self.delta}).encode()


FIRST = [Amount("ab"[number % 2], BEGIN_MS + number * MINUTE_MS // 2, number) for number in range(120)]
LATE = Amount("a", LATE_MS, 1_000)
AFTER = [Amount("ab"[number % 2], BEGIN_MS + (70 + number) * MINUTE_MS, number) for number in range(20)]


def plain_row(records: Iterable[Amount], k: str, start_ms: int = BEGIN_MS) -> dict[str, int]:
    """Return what the records make of a key's window of ten minutes."""
    own = [each.delta for each in records if each.k == k and start_ms <= each.at_ms < start_ms + 10 * MINUTE_MS]
    return {"records": len(own), "total": sum(own)}


def files_of(name: str, topic: str) -> dict[str, str]:
    """Return a definition of windows, of sessions, of windows with early results, of windows of a computed key, or of a fold."""
    text = YAML.replace("NAME", name).replace("TOPIC", topic)
    if name == TOTALS:
        window, rest = text.split("window: WINDOW")[0].replace("    watermark: 10 minutes\n", ""), FOLD_YAML
        return {"pipeline.yaml": window + rest, "fold.py": FOLD}
    window, call, size = ("{size: 10 minutes}", "window", "'10 minutes'")
    if name == VISITS:
        window, call, size = ("{session: 5 minutes}", "session_window", "'5 minutes'")
    text = text.replace("WINDOW", window) + ("emit: updates\n" if name == EARLY else "")
    sql = SQL.replace("CALL(", f"{call}(").replace("CALL.", f"{call}.").replace("SIZE", size)
    if name == SPELT:
        sql = sql.replace(" k,", " upper(k) AS k,").replace(", k\n", ", upper(k)\n")
    return {"pipeline.yaml": text, "transform.sql": sql}


def produce(settings: Settings, topic: str, records: Sequence[Amount | None]) -> None:
    """Send records to two partitions in turn; None is one that is not valid JSON."""
    events = [
        Event(number % 2, b"k", b"no json", LATE_MS)
        if each is None
        else Event(number % 2, b"k", each.value, each.at_ms)
        for number, each in enumerate(records)
    ]
    produce_events(settings, topic, events)


def explain(settings: Settings, *arguments: str, name: str = NAME) -> Any:
    return run_command_warm(settings, "explain", name, *arguments)


def column(explained: Any, source: str) -> dict[str, int]:
    return {each["name"]: each[source] for each in explained["columns"]}


def commands(explained: Any) -> list[str]:
    return [act["command"] for act in explained["acts"]]


@pytest.fixture(scope="module")
def settings(broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Five streams of one log: an hour, and then a record that is late, one that is refused, and twenty minutes more."""
    folder, topic = tmp_path_factory.mktemp("explain"), f"t-{uuid.uuid4().hex[:12]}"
    pipelines = {name: files_of(name, topic) for name in (NAME, VISITS, EARLY, TOTALS, SPELT)}
    made = make_project(folder, pipelines, links=TO_RUN, bootstrap=broker.bootstrap)
    ensure_topic(made, topic, 2)
    produce(made, topic, FIRST)
    run_driver_warm(made, NAME, folder / "first.log")
    produce(made, topic, [LATE, None, *AFTER])
    for name in (NAME, VISITS, EARLY, TOTALS, SPELT):
        run_driver_warm(made, name, folder / f"{name}.log")
        run_command_warm(made, "admin", "rebuild", name)
    return made


def test_a_number_is_explained_before_and_after_its_backfill(settings: Settings) -> None:
    (topic,) = path_ledger(settings.pipeline(NAME))[0].topic_ids
    place, refused = f"{topic}/0@60", f"{topic}/1@60"

    began = time.monotonic()
    first = explain(settings, WINDOW, "a")
    assert time.monotonic() - began < QUICK_S
    streamed = plain_row(FIRST, "a")
    assert column(first, "served") == column(first, "stream") == streamed
    assert (first["has_truth"], first["verdicts"], first["published"]) == (None, [], None)
    assert commands(first) == [f"rivertwice dead show {NAME} {refused}", f"rivertwice reconcile {NAME}"]
    ledger = {f"{row.timeline}/{row.batch}": row for row in path_ledger(settings.pipeline(NAME))}
    emitter = ledger[f"{first['emitted']['timeline']}/{first['emitted']['batch']}"]
    assert (emitter.emitted > 0, to_iso(emitter.committed_at)) == (True, first["emitted"]["at"])
    assert first["closed_by"] == f"{emitter.timeline}/{emitter.batch}"
    assert [(change["state"], change["values"]) for change in first["history"]] == [("final", streamed)]
    read = [row for row in ledger.values() if row.min_event_ms is not None and row.min_event_ms < BEGIN_MS + 600_000]
    assert first["reads"]["records"] == sum(end - start for row in read for start, end in row.ranges(topic).values())
    assert [(each["place"], each["reason"], each["is_of_row"]) for each in first["dead"]] == [(refused, "json", None)]

    # The truth, from the records alone; what differs says what to do.
    asked = explain(settings, WINDOW, '{"k": "a"}', "--with-truth")
    truth = plain_row([*FIRST, LATE], "a")
    assert column(asked, "truth") == truth
    assert all(each["differs"] for each in asked["columns"])
    (late,) = asked["late"]
    batch = ledger[late["batch"]]
    before = next(row for row in ledger.values() if row.batch == batch.batch - 1)
    assert (late["place"], late["event_time"], late["is_served"]) == (place, to_iso(from_ms(LATE_MS)), False)
    assert late["watermark"] == to_iso(from_ms(before.batch_watermark_ms))
    assert late["late_s"] == (before.batch_watermark_ms - BEGIN_MS) / 1000 - 600
    assert asked["truth"]["records"] == truth["records"]

    # A reconcile names the same record, without Spark afterwards.
    run_command_warm(settings, "dead", "amend", NAME, refused, "--value", CURE, "--reason", "typed wrongly")
    run_command_warm(settings, "reconcile", NAME)
    judged = explain(settings, WINDOW, "a")
    assert judged["late"] == asked["late"]
    assert [(each["pair"], each["verdict"]) for each in judged["verdicts"]] == [("served", "LATE"), ("stream", "LATE")]
    assert [each["is_of_row"] for each in judged["dead"]] == [True]
    (act,) = commands(judged)
    end = to_iso(from_ms(BEGIN_MS + 600_000))
    assert act == f"rivertwice backfill run {NAME} --from {WINDOW} --to {end}"

    # The command that it names cures it.
    run_command_warm(settings, *shlex.split(act)[1:], "--yes", "--reason", "late record")
    run_command_warm(settings, "admin", "rebuild", NAME)
    cured = {"records": truth["records"] + 1, "total": truth["total"] + 500}
    after = explain(settings, WINDOW, "a", "--with-truth")
    assert column(after, "served") == column(after, "truth") == cured
    assert column(after, "stream") == streamed
    assert [(each["state"], each["values"], each["changed"]) for each in after["history"]] == [
        ("final", streamed, []),
        ("corrected", cured, ["records", "total"]),
    ]
    assert parse_iso(after["history"][0]["at"]) < parse_iso(after["history"][1]["at"])
    assert after["published"]["backfill"] in after["history"][1]["by"]
    assert [each["is_served"] for each in after["late"]] == [True]
    assert after["truth"]["amended"] == [refused]
    assert "published after it" in after["verdicts"][0]["stale"]
    assert commands(after) == []
    assert commands(explain(settings, WINDOW, "a")) == [f"rivertwice reconcile {NAME}"]
    run_command_warm(settings, "reconcile", NAME)
    last = explain(settings, WINDOW, "a")
    assert (last["verdicts"][0]["verdict"], last["verdicts"][0]["stale"], commands(last)) == ("AGREES", None, [])


def test_the_records_of_a_key_that_the_sql_computes_are_found(settings: Settings) -> None:
    (topic,) = path_ledger(settings.pipeline(SPELT))[0].topic_ids
    asked = explain(settings, WINDOW, "A", "--with-truth", name=SPELT)
    truth = plain_row([*FIRST, LATE], "a")
    assert column(asked, "truth") == truth
    assert asked["truth"]["records"] == truth["records"]
    assert [late["place"] for late in asked["late"]] == [f"{topic}/0@60"]


def shown(settings: Settings, *arguments: str) -> Result:
    return invoke_warm(settings, "explain", *arguments)


def test_an_unknown_window_or_key_is_answered_with_the_nearest(settings: Settings) -> None:
    other = shown(settings, NAME, to_iso(from_ms(BEGIN_MS + MINUTE_MS)), "a")
    assert (other.exit_code, f"it lies in the one that starts at {WINDOW}" in other.output) == (1, True)
    far = shown(settings, NAME, "2013-06-30", "a")
    assert (far.exit_code, WINDOW in far.output) == (1, True)
    key = shown(settings, NAME, WINDOW, "aa")
    assert (key.exit_code, 'keys there: {"k": "a"}' in key.output) == (1, True)
    columns = shown(settings, NAME, WINDOW, '{"kk": "a"}')
    assert (columns.exit_code, "the key columns are k" in columns.output) == (1, True)
    none = shown(settings, NAME, WINDOW)
    assert (none.exit_code, "the key is missing" in none.output) == (1, True)


def test_a_window_without_a_row_is_computed_if_the_truth_is_asked(settings: Settings) -> None:
    nothing = explain(settings, WINDOW, "c", "--with-truth")
    assert (nothing["has_served"], nothing["has_stream"], nothing["has_truth"]) == (False, False, False)
    assert nothing["truth"]["records"] == 0


def test_a_session_is_explained_and_its_unknown_truth_is_said(settings: Settings) -> None:
    row = run_command_warm(settings, "show", VISITS, "--order", "oldest", "--key", '{"k": "a"}')["rows"][0]
    session = explain(settings, row["window_start"], "a", "--with-truth", name=VISITS)
    assert column(session, "served") == column(session, "stream") == {name: row[name] for name in ("records", "total")}
    assert session["address"]["end"] == row["window_end"]
    assert "the truth of one session is not computed" in session["unknown"][0]


def test_early_results_are_provisional_until_the_window_closes(settings: Settings) -> None:
    early = explain(settings, WINDOW, "a", name=EARLY)
    assert [(each["state"], each["values"]) for each in early["history"]] == [
        ("provisional", plain_row(FIRST, "a")),
        ("final", plain_row(FIRST, "a")),
    ]
    assert early["history"][1]["by"] == f"batch {early['closed_by']} closed the window"
    open_row = run_command_warm(settings, "show", EARLY, "--by-key")["rows"][-1]
    waiting = explain(settings, open_row["window_start"], open_row["k"], name=EARLY)
    assert (waiting["is_closed"], waiting["has_served"], waiting["has_stream"], waiting["acts"]) == (
        False,
        False,
        True,
        [],
    )
    assert column(waiting, "stream") == {name: open_row[name] for name in ("records", "total")}


def test_a_row_of_a_fold_is_explained_by_its_whole_key(settings: Settings) -> None:
    row = run_command_warm(settings, "show", TOTALS, "--order", "oldest", "--limit", "1")["rows"][0]
    key = {name: row[name] for name in ("k", "record", "row")}
    explained = explain(settings, row["window_start"], json.dumps(key), name=TOTALS)
    assert explained["address"]["key"] == key
    assert column(explained, "served") == {name: row[name] for name in ("at", "total")}
    assert [each["state"] for each in explained["history"]] == ["final"]
    assert "the truth of one row is not computed" in explained["unknown"][0]
    several = shown(settings, TOTALS, row["window_start"], '{"k": "a"}')
    assert (several.exit_code, "give the whole key, one of" in several.output) == (1, True)
