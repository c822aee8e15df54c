"""The forms of all DAGs: what is refused before a run is made, and by its first task, because the schema lets it through."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.acts import OPERATE, acts_of, fields_of
from rivertwice.airflow.form_check import find_refusal
from rivertwice.airflow.forms import params_of
from rivertwice.core.errors import RequestError
from rivertwice.tasks.forms import check_form, read_form

OPERATED = acts_of(OPERATE)
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
FORM: dict[str, Any] = {"scope": "stale", "start": None, "end": None, "reason": "", "dry_run": False}
JUNE = {"start": "2013-06-30T04:00:00Z", "end": "2013-07-02T04:00:00Z"}
SAVEPOINT = "sp-t1-120-0a1b2c3d"
GOOD: dict[str, dict[str, Any]] = {
    "savepoint.prove": {"savepoint": SAVEPOINT},
    "savepoint.pin": {"savepoint": SAVEPOINT},
    "savepoint.unpin": {"savepoint": SAVEPOINT},
    "savepoint.restore": {"confirm": "p"},
    "savepoint.rewind": {"confirm": "p", "savepoint": SAVEPOINT, "unproved": True},
    "dead.amend": {"place": "2@117", "value": "x", "reason": "why"},
    "dead.discard": {"kind": "schema", "reason": "why"},
    "operation.abandon": {"reason": "why"},
    "version.serve": {"version": "p@v2"},
}


def operate(**values: Any) -> Any:
    return read_form("operate", values, "p")


def test_every_act_has_a_good_form() -> None:
    assert {operate(act=name, **GOOD[name]).act.name for name in OPERATED} == set(OPERATED)


def test_a_field_that_a_form_sends_empty_is_as_one_that_is_left_out() -> None:
    empty = {each.name: False if each.is_flag else None for act in OPERATED.values() for each in fields_of(act.request)}
    for name, own in GOOD.items():
        asked = operate(**{**empty, "act": name, "dry_run": False, "confirm": None, **own})
        assert asked.request == operate(act=name, **own).request


@pytest.mark.parametrize("typed", [None, "", "q", "P", " p", 7, ["p"]])
def test_another_name_than_the_pipelines_starts_nothing(typed: Any) -> None:
    for name in ("savepoint.restore", "savepoint.rewind"):
        with pytest.raises(RequestError, match="has to be typed"):
            operate(act=name, confirm=typed)
        assert operate(act=name, confirm=typed, dry_run=True).dry_run


def test_the_name_of_a_version_is_typed_as_people_write_it() -> None:
    assert read_form("operate", {"act": "savepoint.restore", "confirm": "p@v2"}, "p.v2")
    with pytest.raises(RequestError):
        read_form("operate", {"act": "savepoint.restore", "confirm": "p"}, "p.v2")


def test_the_api_server_refuses_a_form_with_its_reason() -> None:
    def refusal(verb: str, **conf: Any) -> str:
        return str(find_refusal(verb, json.dumps({"conf": conf}).encode(), NOW, "p"))

    restore = {"act": "savepoint.restore"}
    assert "'other' was; nothing was done" in refusal("operate", **restore, confirm="other", reason="x")
    assert refusal("operate", **restore, confirm="p") == "None"
    assert "dead.amend needs value" in refusal("operate", act="dead.amend", place="2@117", reason="x")
    check_form("operate", {**restore, "confirm": "p"}, NOW)


@pytest.mark.parametrize(
    ("verb", "where"),
    [
        ("supervise", "part of care__p, which watches the stream as long as it is not paused: unpause that DAG"),
        ("rotate", "part of care__p: trigger that DAG with act savepoint.take and the same fields"),
        ("archive", "part of care__p: trigger that DAG with act archive"),
        ("repair", "part of backfill__p: trigger that DAG with act repair"),
        ("switch", "an act of operate__p: trigger that DAG with act version.serve and the same fields"),
        ("restore", "an act of operate__p: trigger that DAG with act savepoint.restore and the same fields"),
        ("rewind", "an act of operate__p: trigger that DAG with act savepoint.rewind and the same fields"),
        ("reconcile_full", "part of reconcile__p: trigger that DAG with full"),
        ("correct", "part of backfill__p: trigger that DAG with scope late"),
    ],
)
def test_a_dag_that_is_gone_says_where_its_work_went(verb: str, where: str) -> None:
    assert str(find_refusal(verb, b'{"conf": {"confirm": "p"}}', NOW, "p")) == f"{verb}__p is now {where}"


@pytest.mark.parametrize(
    ("verb", "conf"),
    [
        ("operate", {"act": "savepoint.restore", "confirm": "p"}),
        ("operate", {"act": "savepoint.rewind", "confirm": "p"}),
        ("operate", {"act": "version.serve", "version": "p@v2"}),
        ("care", {"act": "savepoint.take", "prove": False}),
        ("care", {"act": "archive"}),
        ("backfill", {"act": "repair"}),
        ("reconcile", {"full": True}),
        ("backfill", {"scope": "late"}),
    ],
)
def test_what_a_dag_that_is_gone_names_is_taken(verb: str, conf: dict[str, Any]) -> None:
    assert find_refusal(verb, json.dumps({"conf": conf}).encode(), NOW, "p") is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"act": None}, "act 'None' is not one of"),
        ({"act": "drop"}, "is not one of savepoint.prove"),
        ({"act": ["savepoint.pin"]}, "is not one of savepoint.prove"),
        ({"act": "savepoint.prove"}, "needs savepoint"),
        ({"act": "savepoint.pin", "savepoint": "sp-x"}, "not a valid savepoint id"),
        ({"act": "savepoint.pin", "savepoint": 7}, "write it as sp-t1-120-0a1b2c3d"),
        ({"act": "savepoint.pin", "savepoint": SAVEPOINT, "value": "x"}, "does not take 'value'"),
        ({"act": "savepoint.pin", "savepoint": SAVEPOINT, "other": 1}, "does not take 'other'"),
        ({"act": "savepoint.restore", "savepoint": SAVEPOINT, "planned": True}, "leave one of them out"),
        ({"act": "savepoint.restore", "planned": "yes"}, "is neither true nor false"),
        ({"act": "savepoint.rewind", "from_beginning": True, "unproved": True}, "takes no savepoint"),
        ({"act": "dead.amend", "place": "2@117", "value": "x"}, "needs reason"),
        ({"act": "dead.amend", "place": "2-117", "value": "x", "reason": "y"}, "write it as 2@117"),
        ({"act": "dead.amend", "place": "2@117", "value": 7, "reason": "y"}, "value '7'"),
        ({"act": "dead.amend", "place": "2@117", "value": "x" * 100_001, "reason": "y"}, "at most 100000"),
        ({"act": "dead.amend", "place": "2@117", "value": "\ud800", "reason": "y"}, "UTF-8 cannot write"),
        ({"act": "dead.discard", "reason": "y"}, "by its place, or all open ones"),
        ({"act": "dead.discard", "place": "2@117", "kind": "schema", "reason": "y"}, "by its place, or all open ones"),
        ({"act": "dead.discard", "kind": "schema"}, "needs reason"),
        ({"act": "operation.abandon", "savepoint": SAVEPOINT, "reason": "y"}, "does not take 'savepoint'"),
        ({"act": "savepoint.pin", "savepoint": SAVEPOINT, "reason": "{{ ti }}"}, "cannot be kept"),
        ({"act": "savepoint.pin", "savepoint": SAVEPOINT, "dry_run": "no"}, "is neither true nor false"),
    ],
)
def test_an_act_takes_what_it_needs_and_nothing_else(values: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        operate(**values)


def test_an_amended_value_may_have_any_characters_of_a_record() -> None:
    value = '{"a": "{{ x }} $HOME `id` \\\\ é"}\n'
    assert operate(act="dead.amend", place="flights/2@117", value=value, reason="typo").request.value == value


def backfill(**values: Any) -> Any:
    return read_form("backfill", {**FORM, **values}, "p", NOW)


@pytest.mark.parametrize("empty", [None, ""])
def test_a_reason_may_be_left_out(empty: str | None) -> None:
    assert backfill(reason=empty).request.reason == ""
    assert read_form("care", {"prove": True, "reason": empty}, "p").request.reason == ""
    assert read_form("care", {"prove": True}, "p").request.reason == ""


def test_an_empty_form_asks_for_what_the_newest_reconcile_found_wanting() -> None:
    form = backfill()
    assert (form.request.range, form.request.reason, form.dry_run) == (None, "", False)


def test_a_range_is_half_open_and_keeps_the_instant_of_any_zone() -> None:
    form = backfill(scope="range", start="2013-06-30T00:00:00-04:00", end=JUNE["end"], reason="storm")
    assert form.request.range.start == datetime(2013, 6, 30, 4, tzinfo=UTC)
    assert form.request.reason == "storm"


@pytest.mark.proves("howto-airflow.md#what-a-form-refuses", "security.md#security")
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"scope": "range"}, "neither start nor end"),
        ({"scope": "range", "start": JUNE["end"], "end": JUNE["start"]}, "empty or reversed"),
        ({"scope": "range", "start": JUNE["start"], "end": JUNE["start"]}, "empty or reversed"),
        ({"scope": "range", "start": JUNE["start"]}, "the range has no end"),
        ({"scope": "range", "end": JUNE["start"]}, "the range has no start"),
        ({"scope": "range", "start": "2013-06-30T04:00:00", "end": JUNE["end"]}, "with a zone"),
        ({"scope": "range", "start": "2013-06-31T04:00:00Z", "end": JUNE["end"]}, "ISO 8601"),
        ({"scope": "range", "start": "2013-13-01T00:00:00Z", "end": JUNE["end"]}, "is not an instant with a zone"),
        ({"scope": "range", "start": "2026-11-01T00:00:00Z", "end": "2026-12-01T00:00:00Z"}, "future"),
        ({"scope": "range", "start": "'; DROP TABLE dag; --", "end": JUNE["end"]}, "is not an instant"),
        ({"scope": "range", "start": "$(touch x)", "end": JUNE["end"]}, "is not an instant"),
        ({"scope": "range", "start": "../../etc/passwd", "end": JUNE["end"]}, "is not an instant"),
        ({"scope": "range", "start": "{{ conf }}", "end": JUNE["end"]}, "is not an instant"),
        ({"scope": "range", "start": JUNE["start"] + "\n; ls", "end": JUNE["end"]}, "is not an instant"),
        ({"scope": "range", "start": 1372564800000, "end": JUNE["end"]}, "is not an instant"),
        ({"scope": "stale", **JUNE}, "but a range is given too"),
        ({"scope": "everything"}, "not one of stale, range, late"),
        ({"scope": "wanting"}, "is not one of stale, range, late"),
        ({"reason": "{{ var.value.secret }}"}, "cannot be kept"),
        ({"reason": "$(reboot)"}, "cannot be kept"),
        ({"reason": "`reboot`"}, "cannot be kept"),
        ({"reason": "two\nlines"}, "cannot be kept"),
        ({"reason": "x" * 201}, "at most 200 characters"),
        ({"reason": 7}, "reason '7'"),
        ({"scope": "late", **JUNE}, "from the late queue, but a range"),
        ({"dry_run": "yes"}, "neither true nor false"),
        ({"pipeline": "other"}, "does not take 'pipeline'"),
        ({"__class__": "x"}, "does not take '__class__'"),
        ({"accept_quality": "a person accepts"}, "does not take 'accept_quality'"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_reason(values: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        backfill(**values)


def test_a_reconcile_without_a_range_is_of_everything_closed() -> None:
    asked: Any = read_form("reconcile", {"start": None, "end": "", "full": False}, "p", NOW).request
    assert (asked.range, asked.full) == (None, False)
    with pytest.raises(RequestError, match="full compares all windows, but a range"):
        read_form("reconcile", {**JUNE, "full": True}, "p", NOW)


def test_a_rotation_takes_a_flag_and_a_reason_only() -> None:
    asked: Any = read_form("care", {"prove": False, "reason": ""}, "p").request
    assert asked.prove is False
    with pytest.raises(RequestError, match="does not take 'savepoint'"):
        read_form("care", {"savepoint": "../x"}, "p")


def test_the_archive_takes_a_reason_only() -> None:
    assert read_form("care", {"act": "archive"}, "p").request.reason == ""
    with pytest.raises(RequestError, match=r"it takes: reason$"):
        read_form("care", {"act": "archive", "topic": "flights"}, "p")


@pytest.mark.proves("howto-airflow.md#what-a-form-refuses")
@given(st.text(max_size=60), st.text(max_size=60))
def test_a_range_needs_two_instants_in_order(start: str, end: str) -> None:
    try:
        asked: Any = read_form("reconcile", {"start": start, "end": end}, "p", NOW).request
    except RequestError:
        return
    assert asked.range is None or asked.start < asked.end


@pytest.mark.parametrize(
    ("verb", "act"), [(verb, act) for verb in ("care", "reconcile", "backfill") for act in acts_of(verb)]
)
def test_a_form_sent_as_it_opens_passes_the_check_before_a_run_exists(verb: str, act: str) -> None:
    """Whichever of the DAG's acts is chosen: what another act takes is as the form shows it."""
    check_form(verb, {}, NOW)
    opened = {name: each.value for name, each in params_of(verb, list(acts_of(verb).values()), "p").items()}
    check_form(verb, opened | ({"act": act} if "act" in opened else {}), NOW)


@pytest.mark.parametrize(("verb", "act"), [("care", "archive"), ("operate", "version.serve")])
def test_what_is_about_all_versions_is_no_act_of_one(verb: str, act: str) -> None:
    with pytest.raises(RequestError, match=f"act '{act}' is not one of"):
        check_form(verb, {"act": act}, NOW, "p.v2")


def test_an_act_without_a_dry_run_is_not_done_as_if_it_were_one() -> None:
    with pytest.raises(RequestError, match="repair has no dry run; leave dry_run away"):
        check_form("backfill", {"act": "repair", "dry_run": True}, NOW)
