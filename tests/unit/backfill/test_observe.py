from datetime import timedelta

import pyarrow as pa
import pytest

from homes.backfill import HOUR, add_timeline, asked, hours, make_home
from homes.ledger import NOW, ledger_row
from rivertwice.backfill.observe import observe_backfill, stale_ranges
from rivertwice.backfill.plan import plan_backfill
from rivertwice.core.errors import LogGapError, RequestError
from rivertwice.core.instants import TimeRange, from_ms
from rivertwice.log.gaps import REPAIRABLE
from rivertwice.storage.table import Table
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Fork
from rivertwice.timeline.sequence import move_head, publish
from rivertwice.timeline.serving import Publication


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr("rivertwice.backfill.observe._in_kafka", lambda *_: {0: (0, 200)})
    return make_home(tmp_path)


def reconcile(home, run, verdicts, sequence=1, after=0):
    created = NOW + timedelta(minutes=after)
    Table(home.tables.reconciles).append(pa.table({"run": [run], "created_at": [created], "sequence": [sequence]}))
    rows = [
        {"run": run, "pair": pair, "verdict": verdict, "reason": reason, "window_start": from_ms(hour * HOUR)}
        for pair, hour, verdict, reason in (one if len(one) == 4 else (*one, "") for one in verdicts)
    ]
    Table(home.tables.verdicts).append(pa.Table.from_pylist(rows))


def test_a_view_holds_the_zone_map_and_the_last_committed_batch(made):
    settings, _, bundle = made
    seen = observe_backfill(settings, "p")
    assert (seen.closed_ms, seen.as_of, seen.sequence) == (8 * HOUR, {"flights": {0: 100}}, 1)
    assert (seen.bundle, seen.semantics, seen.window_ms) == (bundle.id, bundle.fingerprint.semantics, HOUR)
    assert len(seen.batches) == 10
    assert seen.batches[3].offsets == {"flights": {0: (30, 40)}}
    assert (seen.batches[3].min_event_ms, seen.batches[3].trusted) == (3 * HOUR, True)


def test_a_pipeline_that_never_ran_is_refused_with_the_ones_that_did(made):
    settings, _, _ = made
    with pytest.raises(RequestError, match=r"pipeline q has no timeline .* ran here: p\)"):
        observe_backfill(settings, "q")


def test_the_newest_reconciles_late_windows_of_what_is_served_are_wanting(made):
    _, home, _ = made
    assert stale_ranges(home) == []
    reconcile(home, "r1", [("served", 0, "LATE")])
    late = [
        ("served", 1, "LATE"),
        ("served", 2, "LATE"),
        ("served", 3, "AGREES"),
        ("stream", 5, "LATE"),
        ("served", 6, "LATE"),
        ("served", 8, "NOT_COMPARABLE", "gap: lost for ever"),
        ("served", 9, "NOT_COMPARABLE", f"{REPAIRABLE}: gap-1"),
    ]
    reconcile(home, "r2", late, after=5)
    assert stale_ranges(home) == [
        TimeRange(from_ms(HOUR), from_ms(3 * HOUR)),
        TimeRange(from_ms(6 * HOUR), from_ms(7 * HOUR)),
        TimeRange(from_ms(9 * HOUR), from_ms(10 * HOUR)),
    ]


def test_a_window_published_since_the_reconcile_is_not_wanting_any_more(made):
    settings, home, bundle = made
    reconcile(home, "r1", [("served", hour, "LATE") for hour in range(4)])
    payload = Publication(2, "bf-1", hours((1, 3)), bundle.fingerprint.semantics, bundle.id, {"flights": {0: 100}})
    publish(home, payload.to_payload(), expected_seq=1, now=NOW)
    assert observe_backfill(settings, "p").stale == hours((0, 1), (3, 4))
    reconcile(home, "r2", [("served", 2, "LATE")], sequence=2, after=5)
    assert observe_backfill(settings, "p").stale == hours((2, 3))


def test_the_zone_map_holds_after_a_restore_and_not_for_unknown_bundles(made):
    settings, home, bundle = made
    add_timeline(home, bundle, "t2", Fork("t1", 9), 10)
    move_head(home, "t2", reason="restore", expected_seq=1, now=NOW)
    append_ledger(home, [ledger_row(10, "t2", bundle="unknown", min_event_ms=0, max_event_ms=0)])
    batches = observe_backfill(settings, "p").batches
    assert [batch.trusted for batch in batches] == [True] * 10 + [False]


def test_a_topic_that_was_created_again_is_no_source(tmp_path, monkeypatch):
    settings, _, _ = make_home(tmp_path)
    monkeypatch.setattr("rivertwice.log.kafka.topic_exists", lambda *_: True)
    monkeypatch.setattr("rivertwice.log.kafka.topic_id", lambda *_: "another")
    seen = observe_backfill(settings, "p")
    assert seen.kafka == {"flights": {}}
    with pytest.raises(LogGapError, match=r"flights/0 \[0, 80\)"):
        plan_backfill(asked(0, 8), seen)
