"""A form is checked again by the first task: what the schema lets through must still mean something."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.airflow.operate_forms import (
    check_form,
    read_backfill,
    read_nothing,
    read_range,
    read_reconcile,
    read_rotate,
)
from rivertwice.core.errors import RequestError

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
FORM: dict[str, Any] = {"scope": "stale", "start": None, "end": None, "reason": "", "dry_run": False}
JUNE = {"start": "2013-06-30T04:00:00Z", "end": "2013-07-02T04:00:00Z"}


def backfill(**values: Any) -> Any:
    return read_backfill(values, {**FORM, **values}, NOW)


@pytest.mark.parametrize("empty", [None, ""])
def test_a_reason_may_be_left_out(empty: str | None) -> None:
    assert read_backfill({}, {**FORM, "reason": empty}, NOW).reason == ""
    assert read_rotate({}, {"prove": True, "reason": empty}).reason == ""
    assert read_rotate({}, {"prove": True}).reason == ""


def test_an_empty_form_asks_for_what_the_newest_reconcile_found_wanting() -> None:
    form = backfill()
    assert (form.range, form.reason, form.dry_run) == (None, "", False)


def test_a_range_is_half_open_and_keeps_the_instant_of_any_zone() -> None:
    form = backfill(scope="range", start="2013-06-30T00:00:00-04:00", end=JUNE["end"], reason="storm")
    assert form.range.start == datetime(2013, 6, 30, 4, tzinfo=UTC)
    assert form.reason == "storm"


@pytest.mark.proves("howto-airflow.md#what-a-form-refuses", "security.md#security")
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"scope": "range"}, "neither start nor end"),
        ({"scope": "range", "start": JUNE["end"], "end": JUNE["start"]}, "empty or reversed"),
        ({"scope": "range", "start": JUNE["start"], "end": JUNE["start"]}, "empty or reversed"),
        ({"scope": "range", "start": JUNE["start"]}, "end is empty"),
        ({"scope": "range", "end": JUNE["start"]}, "start is empty"),
        ({"scope": "range", "start": "2013-06-30T04:00:00", "end": JUNE["end"]}, "with a zone"),
        ({"scope": "range", "start": "2013-06-31T04:00:00Z", "end": JUNE["end"]}, "no ISO 8601"),
        ({"scope": "range", "start": "2013-13-01T00:00:00Z", "end": JUNE["end"]}, "no instant with a zone"),
        ({"scope": "range", "start": "2011-01-01T00:00:00Z", "end": JUNE["end"]}, "ask for it in parts"),
        ({"scope": "range", "start": "2026-11-01T00:00:00Z", "end": "2026-12-01T00:00:00Z"}, "future"),
        ({"scope": "range", "start": "'; DROP TABLE dag; --", "end": JUNE["end"]}, "no instant"),
        ({"scope": "range", "start": "$(touch x)", "end": JUNE["end"]}, "no instant"),
        ({"scope": "range", "start": "../../etc/passwd", "end": JUNE["end"]}, "no instant"),
        ({"scope": "range", "start": "{{ conf }}", "end": JUNE["end"]}, "no instant"),
        ({"scope": "range", "start": JUNE["start"] + "\n; ls", "end": JUNE["end"]}, "no instant"),
        ({"scope": "range", "start": 1372564800000, "end": JUNE["end"]}, "no instant"),
        ({"scope": "stale", **JUNE}, "ask for scope range"),
        ({"scope": "everything"}, "not one of stale, range"),
        ({"scope": "wanting"}, "is not one of stale, range"),
        ({"reason": "{{ var.value.secret }}"}, "cannot be kept"),
        ({"reason": "$(reboot)"}, "cannot be kept"),
        ({"reason": "`reboot`"}, "cannot be kept"),
        ({"reason": "two\nlines"}, "cannot be kept"),
        ({"reason": "x" * 201}, "cannot be kept"),
        ({"reason": 7}, "cannot be kept"),
        ({"dry_run": "yes"}, "neither true nor false"),
        ({"pipeline": "other"}, "does not know 'pipeline'"),
        ({"__class__": "x"}, "does not know '__class__'"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_reason(values: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        backfill(**values)


def test_a_reconcile_without_a_range_is_of_everything_closed() -> None:
    assert read_reconcile({}, {"start": None, "end": ""}, NOW) is None


def test_a_rotation_takes_a_flag_and_a_reason_only() -> None:
    assert read_rotate({"prove": False}, {"prove": False, "reason": ""}).prove is False
    with pytest.raises(RequestError, match="does not know 'savepoint'"):
        read_rotate({"savepoint": "../x"}, {"prove": True, "reason": ""})


def test_the_archive_takes_no_values() -> None:
    read_nothing({})
    with pytest.raises(RequestError, match="takes are: none"):
        read_nothing({"topic": "flights"})


@pytest.mark.proves("howto-airflow.md#what-a-form-refuses")
@given(st.text(max_size=60), st.text(max_size=60))
def test_a_range_needs_two_instants_in_order(start: str, end: str) -> None:
    try:
        asked = read_range({"start": start, "end": end}, NOW)
    except RequestError:
        return
    assert asked is None or asked.start < asked.end


@pytest.mark.parametrize("verb", ["backfill", "reconcile", "rotate", "archive", "correct", "supervise"])
def test_a_form_sent_as_it_opens_passes_the_check_before_a_run_exists(verb: str) -> None:
    check_form(verb, {}, NOW)
