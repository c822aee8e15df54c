import threading

import pytest

from homes.backfill import HOUR, add_timeline, asked, hours, make_home, write_chunk
from homes.ledger import NOW, ledger_row
from rivertwice.backfill import publish
from rivertwice.backfill.audit import audit_backfill
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.plan import plan_backfill
from rivertwice.backfill.publish import publish_backfill
from rivertwice.backfill.store import load_backfill_plan, save_plan
from rivertwice.core.errors import AuditError, FingerprintError, LostRaceError, RequestError
from rivertwice.core.plain import to_plain
from rivertwice.read.backfills import list_of_backfills
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Fork
from rivertwice.timeline.sequence import move_head, read_sequence
from rivertwice.timeline.served import read_served, rebuild_served

pytestmark = pytest.mark.long


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr("rivertwice.backfill.observe._in_kafka", lambda *_: {0: (0, 200)})
    return make_home(tmp_path)


def planned(settings, home, start, end, n=12):
    """A computed and audited backfill of hours [start, end), n rows in each."""
    plan = save_plan(home, plan_backfill(asked(start, end), observe_backfill(settings, "p")))
    write_chunk(home, plan, 0, *((hour, "a", n) for hour in range(start, end)))
    audit_backfill(settings, plan)
    return plan


def test_a_publication_is_one_entry_and_its_windows_serve_it(made):
    settings, home, bundle = made
    plan = planned(settings, home, 1, 3)
    entry = publish_backfill(settings, plan)
    assert (entry.seq, entry.kind) == (2, "publication")
    assert entry.payload["ranges"] == [[HOUR, 3 * HOUR]]
    assert entry.payload["as_of"] == {"flights": {"0": 100}}
    rebuild_served(home, bundle.definition)
    assert read_served(home)["n"].to_pylist() == [10, 12, 12, 10, 10, 10, 10, 10]


def test_publishing_the_same_backfill_again_returns_its_entry(made):
    settings, home, _ = made
    plan = planned(settings, home, 1, 3)
    first = publish_backfill(settings, plan)
    assert publish_backfill(settings, load_backfill_plan(home, plan.id)) == first
    assert len(read_sequence(home)) == 2


def test_two_publishers_that_race_both_get_in_and_the_sequence_has_no_gap(made):
    settings, home, _ = made
    plans = [planned(settings, home, hour, hour + 1, 20 + hour) for hour in range(5)]
    barrier = threading.Barrier(len(plans))
    entries = []

    def run(plan):
        barrier.wait()
        entries.append(publish_backfill(settings, plan))

    threads = [threading.Thread(target=run, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entry.seq for entry in entries) == [2, 3, 4, 5, 6]
    assert [entry.seq for entry in read_sequence(home)] == [1, 2, 3, 4, 5, 6]


def test_two_processes_that_publish_the_same_backfill_make_one_entry(made):
    settings, home, _ = made
    plan = planned(settings, home, 1, 3)
    barrier = threading.Barrier(4)
    entries = []

    def run():
        barrier.wait()
        entries.append(publish_backfill(settings, plan).seq)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert entries == [2, 2, 2, 2]
    assert len(read_sequence(home)) == 2


def test_a_writer_that_always_loses_gives_up_and_publishes_nothing(made, monkeypatch):
    settings, home, _ = made
    plan = planned(settings, home, 1, 3)

    def lose(*_, **__):
        raise LostRaceError("lost")

    monkeypatch.setattr(publish, "publish", lose)
    monkeypatch.setattr(publish, "ATTEMPTS", 3)
    with pytest.raises(LostRaceError, match="lost 3 races for the sequence of p, the last one with: lost; nothing was"):
        publish_backfill(settings, plan)
    assert len(read_sequence(home)) == 1


@pytest.mark.proves("failure-modes.md#a-backfill", "howto-correct.md#write-audit-publish", "guarantees.md#served")
def test_a_backfill_without_a_passed_audit_is_not_published(made):
    settings, home, _ = made
    plan = save_plan(home, plan_backfill(asked(1, 3), observe_backfill(settings, "p")))
    with pytest.raises(AuditError, match="has no finished audit"):
        publish_backfill(settings, plan)
    write_chunk(home, plan, 0, (1, "a", 1), (1, "a", 1))
    with pytest.raises(AuditError, match="keys"):
        audit_backfill(settings, plan)
    with pytest.raises(AuditError, match="failed its audit"):
        publish_backfill(settings, plan)
    assert len(read_sequence(home)) == 1


def shown(settings, plan):
    """State and reason of a backfill as the page and `backfill list` show them."""
    (found,) = [each for each in to_plain(list_of_backfills(settings, "p"))["backfills"] if each["id"] == plan.id]
    return found["state"], found["why"]


def refused(settings, plan, error, match):
    """Publishing is refused, and the page says so before, in the same words."""
    with pytest.raises(error, match=match) as told:
        publish_backfill(settings, plan)
    assert shown(settings, plan) == ("obsolete", str(told.value))


@pytest.mark.proves("howto-correct.md#write-audit-publish", "howto-upgrade.md#what-is-served", "guarantees.md#upgrade")
def test_a_backfill_of_semantics_that_the_head_no_longer_has_is_refused(made):
    settings, home, bundle = made
    plan = planned(settings, home, 1, 3)
    add_timeline(home, bundle, "t2", Fork("t1", 9), 10, semantics="x" * 64)
    move_head(home, "t2", reason="upgrade", expected_seq=1, now=NOW)
    refused(settings, plan, FingerprintError, "plan again")


def test_the_head_may_move_within_its_semantics_before_the_publication(made):
    settings, home, bundle = made
    plan = planned(settings, home, 1, 3)
    add_timeline(home, bundle, "t2", Fork("t1", 9), 10)
    move_head(home, "t2", reason="restore", expected_seq=1, now=NOW)
    assert shown(settings, plan) == ("audited", None)
    assert publish_backfill(settings, plan).seq == 3
    assert shown(settings, plan)[0] == "published"


@pytest.mark.proves("howto-correct.md#write-audit-publish")
def test_windows_that_are_open_again_after_a_rewind_are_not_published(made):
    settings, home, bundle = made
    plan = planned(settings, home, 5, 8)
    add_timeline(home, bundle, "t2", Fork("t1", 6), 7)
    move_head(home, "t2", reason="rewind", expected_seq=1, now=NOW)
    refused(settings, plan, RequestError, "only until 1970-01-01T06:00:00Z")


@pytest.mark.proves("howto-correct.md#write-audit-publish", "guarantees.md#served")
def test_a_backfill_that_read_less_does_not_replace_one_that_read_more(made):
    #  old plan reads until 100, new one until 110; the new one is published first
    settings, home, bundle = made
    old = planned(settings, home, 1, 3, 11)
    append_ledger(
        home, [ledger_row(10, bundle=bundle.id, batch_watermark_ms=8 * HOUR, min_event_ms=HOUR, max_event_ms=HOUR)]
    )
    new = planned(settings, home, 2, 4, 12)
    publish_backfill(settings, new)
    refused(settings, old, RequestError, "read less of the log")
    elsewhere = planned(settings, home, 5, 6, 13)
    assert publish_backfill(settings, elsewhere).seq == 3


def test_the_newest_publication_of_two_over_the_same_window_is_served(made):
    settings, home, bundle = made
    publish_backfill(settings, planned(settings, home, 1, 4, 11))
    publish_backfill(settings, planned(settings, home, 2, 3, 12))
    rebuild_served(home, bundle.definition)
    assert read_served(home)["n"].to_pylist() == [10, 11, 12, 11, 10, 10, 10, 10]
    assert observe_backfill(settings, "p").publications[-1].ranges == hours((2, 3))
