from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homes.backfill import HOUR, asked, hours, view, zone
from rivertwice.backfill import plan as plan_module
from rivertwice.backfill.model import BackfillRequest
from rivertwice.backfill.plan import explain_plan, plan_backfill, select_ranges
from rivertwice.backfill.ranges import length, merge, windows
from rivertwice.core.errors import LogGapError, RequestError
from rivertwice.timeline.serving import Publication


def published(seq, ranges, backfill="bf-old", semantics="s" * 64):
    return Publication(seq, backfill, ranges, semantics, "b" * 64, {"flights": {0: 1}})


def test_a_request_inside_a_window_is_widened_to_the_whole_window():
    assert plan_backfill(asked(2.25, 2.5), view()).ranges == hours((2, 3))


def test_open_windows_are_cut_off_and_the_plan_says_so():
    #  hours   5 6 7 8 9
    #  asked     [-----)        closed until 8
    plan = plan_backfill(asked(6, 9), view())
    assert plan.ranges == hours((6, 8))
    assert [(cut.start_ms, cut.end_ms, cut.why) for cut in plan.cut] == [(8 * HOUR, 9 * HOUR, "open")]


def test_a_watermark_inside_a_window_closes_only_the_windows_before_it():
    assert plan_backfill(asked(6, 9), view(closed_ms=8 * HOUR + 5)).ranges == hours((6, 8))


def test_windows_before_the_first_record_are_cut_off_and_the_plan_says_so():
    plan = plan_backfill(asked(-100, 2), view())
    assert plan.ranges == hours((0, 2))
    assert plan.cut[0].why == "no records"


def test_a_record_exactly_on_a_windows_start_belongs_to_that_window_alone():
    #  hours   1 2 3 4      the only record lies at 2:00:00.000, the end of [1,2) and the start of [2,3)
    one = replace(zone(0, 2, 3), min_event_ms=2 * HOUR, max_event_ms=2 * HOUR)
    assert plan_backfill(asked(0, 8), view(batches=(one,))).ranges == hours((2, 3))
    assert plan_backfill(asked(2, 3), view(batches=(one,))).offsets == {"flights": {0: ((0, 10),)}}
    with pytest.raises(RequestError, match="holds no record"):
        plan_backfill(asked(1, 2), view(batches=(one,)))


def test_a_request_that_ends_on_a_windows_start_leaves_that_window_alone():
    assert plan_backfill(asked(1, 2), view()).ranges == hours((1, 2))


def test_a_plan_of_plain_windows_keeps_its_id_from_build_to_build():
    assert plan_backfill(asked(1, 2), view()).id == "bf-d2389b1fd8f1"


@pytest.mark.proves("howto-correct.md#what-a-plan-says")
def test_a_request_of_open_windows_alone_is_refused_with_their_closing():
    with pytest.raises(RequestError, match="has closed windows until 1970-01-01T08:00:00Z"):
        plan_backfill(asked(8, 12), view())


def test_a_refusal_says_of_a_request_in_pieces_how_many_they_are():
    with pytest.raises(RequestError, match=r"no window of \[1970-01-01T08:00:00Z, 1970-01-01T12:00:00Z\) is closed"):
        plan_backfill(asked(8, 12), view())
    with pytest.raises(RequestError, match=r"1970-01-01T12:00:00Z\) in 2 pieces is closed"):
        plan_backfill(BackfillRequest("p"), view(stale=hours((8, 9), (11, 12))))


@pytest.mark.proves("howto-correct.md#what-a-plan-says")
def test_a_request_without_any_record_is_refused_with_the_logs_cover():
    with pytest.raises(RequestError, match=r"cover \[1970-01-01T00:00:00Z"):
        plan_backfill(asked(-20, -10), view())


def test_a_pipeline_without_a_committed_batch_has_nothing_to_backfill():
    with pytest.raises(RequestError, match="no committed batch"):
        plan_backfill(asked(0, 1), view(batches=(), closed_ms=None))


def test_a_request_for_another_pipeline_is_refused():
    with pytest.raises(RequestError, match="pipeline 'q'"):
        plan_backfill(asked(0, 1, pipeline="q"), view())


def test_a_mistyped_year_is_refused(monkeypatch):
    monkeypatch.setattr(plan_module, "MAX_WINDOWS", 3)
    with pytest.raises(RequestError, match="4 windows are asked, the most is 3"):
        plan_backfill(asked(0, 4), view())


def test_without_a_range_the_wanting_windows_are_planned():
    plan = plan_backfill(BackfillRequest("p"), view(stale=hours((1, 2), (4, 6))))
    assert plan.ranges == hours((1, 2), (4, 6))
    assert plan.late == 3


def test_without_a_range_and_with_nothing_wanting_the_request_is_refused():
    with pytest.raises(RequestError, match="no window of p is stale"):
        plan_backfill(BackfillRequest("p"), view())


def test_only_batches_whose_event_times_touch_the_windows_are_read(monkeypatch):
    monkeypatch.setattr("rivertwice.backfill.zones.SCAN_GAP", 0)
    #  window [2,3): batch 2, and batch 7, which brought a row 5 hours late
    batches = tuple(zone(n, n, n + 1) if n != 7 else zone(7, 2.5, 8) for n in range(10))
    plan = plan_backfill(asked(2, 3), view(batches=batches))
    assert plan.offsets == {"flights": {0: ((20, 30), (70, 80))}}


def test_a_batch_of_another_decode_is_always_read(monkeypatch):
    monkeypatch.setattr("rivertwice.backfill.zones.SCAN_GAP", 0)
    batches = tuple(zone(n, n, n + 1, trusted=n != 9) for n in range(10))
    assert plan_backfill(asked(2, 3), view(batches=batches)).offsets == {"flights": {0: ((20, 30), (90, 100))}}


def test_a_batch_that_accepted_nothing_is_not_read():
    batches = (zone(0, 0, 1), zone(1, None, None), zone(2, 2, 3))
    assert plan_backfill(asked(0, 1), view(batches=batches)).offsets == {"flights": {0: ((0, 10),)}}


@pytest.mark.proves("howto-correct.md#what-a-plan-says")
def test_each_offset_comes_from_the_archive_or_from_kafka_once():
    plan = plan_backfill(asked(0, 8), view(archive={"flights": {0: (0, 45)}}, kafka={"flights": {0: (30, 100)}}))
    assert plan.archive == {"flights": {0: ((0, 45),)}}
    assert plan.kafka == {"flights": {0: ((45, 80),)}}


@pytest.mark.proves("howto-correct.md#what-a-plan-says", "lab/docs/scenarios.md#scenarios")
def test_a_record_that_nobody_has_any_more_is_refused_with_its_address():
    with pytest.raises(LogGapError, match=r"flights/0 \[5, 20\)"):
        plan_backfill(asked(0, 8), view(archive={"flights": {0: (0, 5)}}, kafka={"flights": {0: (20, 100)}}))


def test_chunks_hold_about_the_wanted_rows_and_cover_each_window_once():
    plan = plan_backfill(asked(0, 8), view(), chunk_records=25)
    assert [chunk.estimate for chunk in plan.chunks] == [20, 20, 20, 20]
    assert [chunk.index for chunk in plan.chunks] == [0, 1, 2, 3]
    assert merge(pair for chunk in plan.chunks for pair in chunk.ranges) == plan.ranges


def test_a_window_larger_than_a_chunk_is_a_chunk_of_its_own():
    plan = plan_backfill(asked(0, 3), view(), chunk_records=1)
    assert [chunk.ranges for chunk in plan.chunks] == [hours((0, 1)), hours((1, 2)), hours((2, 3))]


def test_the_same_work_has_the_same_id_whatever_its_reason_and_source():
    plan = plan_backfill(asked(0, 3), view())
    other = plan_backfill(replace(asked(0, 3), reason="again"), view(archive={"flights": {0: (0, 50)}}, sequence=9))
    assert other.id == plan.id
    assert plan_backfill(asked(0, 3), view(as_of={"flights": {0: 101}})).id != plan.id
    assert plan_backfill(asked(0, 4), view()).id != plan.id


def test_after_a_failed_audit_the_same_work_gets_another_id():
    plan = plan_backfill(asked(0, 3), view())
    again = plan_backfill(asked(0, 3), view(failed=frozenset({plan.id})))
    assert again.id != plan.id
    assert (again.attempt, again.chunks) == (1, plan.chunks)
    assert "attempt    2: the audit of the same work failed before" in explain_plan(again)
    assert "attempt" not in explain_plan(plan)


def test_the_plan_names_the_publications_it_replaces_and_no_others():
    publications = (
        published(2, hours((0, 4)), "bf-covered"),
        published(3, hours((0, 4)), "bf-serving"),
        published(4, hours((5, 8)), "bf-elsewhere"),
        published(5, hours((0, 4)), "bf-other-semantics", "x" * 64),
    )
    assert plan_backfill(asked(0, 4), view(publications=publications)).replaces == ("bf-serving",)


def test_the_explanation_says_what_is_read_recomputed_and_replaced():
    plan = plan_backfill(
        asked(0, 10),
        view(archive={"flights": {0: (0, 45)}}, stale=hours((1, 2)), publications=(published(2, hours((0, 4))),)),
    )
    text = explain_plan(plan)
    for fact in (
        plan.id,
        "8 of 1 h",
        "[1970-01-01T00:00:00Z, 1970-01-01T08:00:00Z)",
        "left out   [1970-01-01T08:00:00Z, 1970-01-01T10:00:00Z): open",
        "80 records",
        "45 from archive, flights: 0 [0, 45)",
        "35 from Kafka, flights: 0 [45, 80)",
        "1 chunk,",
        "1 of the windows were found LATE",
        "replaces what bf-old published",
    ):
        assert fact in text


HISTORIES = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=15)


@given(HISTORIES, st.integers(0, 20), st.integers(1, 12), st.integers(1, 60))
def test_every_batch_that_may_hold_a_row_of_a_window_is_read_by_its_chunk(history, start, width, chunk_records):
    batches = tuple(zone(n, low, low + width_) for n, (low, width_) in enumerate(history))
    try:
        plan = plan_backfill(
            asked(start, start + width), view(batches=batches, closed_ms=40 * HOUR), chunk_records=chunk_records
        )
    except RequestError:
        return
    assert length(plan.ranges) // HOUR == sum(length(chunk.ranges) // HOUR for chunk in plan.chunks)
    for chunk in plan.chunks:
        read = {o for low, high in chunk.offsets.get("flights", {}).get(0, ()) for o in range(low, high)}
        assert not read or max(read) < plan.as_of["flights"][0]
        for low, high in windows(chunk.ranges, HOUR):
            for batch in batches:
                if batch.min_event_ms < high and low <= batch.max_event_ms:
                    assert set(range(*batch.offsets["flights"][0])) <= read


def test_a_decision_about_a_dead_letter_makes_another_plan():
    plain, amended = plan_backfill(asked(2, 3), view()), plan_backfill(asked(2, 3), view(amendments=4))
    assert (plain.amendments, amended.amendments) == (0, 4)
    assert plain.id != amended.id
    assert "decisions about dead letters are applied up to 4" in explain_plan(amended)
    assert "dead letters" not in explain_plan(plain)


def test_windows_without_a_record_are_planned_once_a_cure_may_lie_there():
    assert plan_backfill(asked(-100, 2), view(amendments=1)).ranges == hours((-100, 2))


def test_a_plan_has_a_hundred_thousand_windows_at_most():
    long = view(batches=(zone(0, 0, 200_000),), closed_ms=200_000 * HOUR)
    ranges, cut = select_ranges(asked(0, 100_000), long)
    assert (length(ranges) // HOUR, cut) == (100_000, ())
    with pytest.raises(RequestError, match="100001 windows are asked, the most is 100000"):
        select_ranges(asked(0, 100_001), long)


def test_a_chunk_aims_at_two_million_rows():
    assert plan_module.CHUNK_RECORDS == 2_000_000
