"""A plan over hopping windows holds exactly the closed windows that a time of the request lies in, and all their records."""

from hypothesis import given
from hypothesis import strategies as st

from homes.backfill import HOUR, asked, view
from rivertwice.backfill.plan import explain_plan, plan_backfill
from rivertwice.backfill.ranges import covering, reach, windows
from rivertwice.backfill.store import plan_from_json, plan_to_json

HALF = HOUR // 2


def hopping(**changes):
    """Windows of an hour, one each half hour; batch n holds event times of hour n."""
    return view(step_ms=HALF, **changes)


def test_a_request_takes_every_window_that_holds_a_time_of_it():
    #  hours    2     3     4
    #  asked       [--)              3:30 belongs to the windows from 2:30 on and from 3:00 on
    plan = plan_backfill(asked(3, 3.25), hopping())
    assert plan.ranges == ((2 * HOUR + HALF, 3 * HOUR + HALF),)
    assert (plan.windows, plan.last_end_ms) == (2, 4 * HOUR)
    assert "2 of 1 h every 30 min, closed, by their starts" in explain_plan(plan)


def test_a_window_that_ends_after_the_watermark_is_cut_off():
    plan = plan_backfill(asked(7, 8), hopping())
    # Closed until 8:00: the last closed window starts at 7:00.
    assert plan.ranges == ((6 * HOUR + HALF, 7 * HOUR + HALF),)
    assert [(cut.start_ms, cut.why) for cut in plan.cut] == [(7 * HOUR + HALF, "open")]


def test_the_records_of_a_window_that_reaches_into_the_next_hour_are_read():
    plan = plan_backfill(asked(3.5, 3.75), hopping())
    assert plan.ranges == ((3 * HOUR, 4 * HOUR),)
    assert plan.offsets == {"flights": {0: ((30, 50),)}}


def test_a_stored_plan_is_the_same_and_a_tumbling_one_keeps_its_id():
    plan = plan_backfill(asked(2, 5), hopping())
    assert plan_from_json(plan_to_json(plan)) == plan
    tumbling = plan_backfill(asked(2, 5), view())
    assert tumbling.step_ms is None
    assert tumbling.id != plan.id


@given(st.integers(-200, 200), st.integers(1, 60), st.integers(1, 12), st.integers(1, 6))
def test_covering_and_reach_equal_a_search(start, span, step, passes):
    size = step * passes
    starts = covering([(start, start + span)], size, step)
    found = {low for low, _ in windows(starts, size, step)}
    wanted = {low for low in range(-1000 * step, 1000 * step, step) if low < start + span and start < low + size}
    assert found == wanted
    held = {at for low in wanted for at in range(low, low + size)}
    assert {at for low, high in reach(starts, size, step) for at in range(low, high)} == held
