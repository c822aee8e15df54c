"""The form of `operate__P`: what is refused before a run is made, and by its first task."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from rivertwice.acts import ACTS, fields_of
from rivertwice.airflow.form_check import find_refusal
from rivertwice.airflow.operate_forms import check_form, read_operate
from rivertwice.core.errors import RequestError

NOW = datetime(2026, 11, 27, tzinfo=UTC)
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
}


def operate(**values: Any) -> Any:
    return read_operate(values, "p")


def test_every_act_has_a_good_form() -> None:
    assert {operate(act=name, **GOOD[name]).act.name for name in ACTS} == set(ACTS)


def test_a_field_that_a_form_sends_empty_is_as_one_that_is_left_out() -> None:
    empty = {each.name: False if each.is_flag else None for act in ACTS.values() for each in fields_of(act.request)}
    for name, given in GOOD.items():
        asked = operate(**{**empty, "act": name, "dry_run": False, "confirm": None, **given})
        assert asked.request == operate(act=name, **given).request


@pytest.mark.parametrize("typed", [None, "", "q", "P", " p", 7, ["p"]])
def test_another_name_than_the_pipelines_starts_nothing(typed: Any) -> None:
    for name in ("savepoint.restore", "savepoint.rewind"):
        with pytest.raises(RequestError, match="has to be typed"):
            operate(act=name, confirm=typed)
        assert operate(act=name, confirm=typed, dry_run=True).dry_run


def test_the_name_of_a_version_is_typed_as_people_write_it() -> None:
    assert read_operate({"act": "savepoint.restore", "confirm": "p@v2"}, "p.v2")
    with pytest.raises(RequestError):
        read_operate({"act": "savepoint.restore", "confirm": "p"}, "p.v2")


def test_the_api_server_refuses_a_form_with_its_reason() -> None:
    def refusal(verb: str, **conf: Any) -> str:
        return str(find_refusal(verb, json.dumps({"conf": conf}).encode(), NOW, "p"))

    restore = {"act": "savepoint.restore"}
    assert "'other' was; nothing was done" in refusal("operate", **restore, confirm="other", reason="x")
    assert refusal("operate", **restore, confirm="p") == "None"
    assert "dead.amend needs value" in refusal("operate", act="dead.amend", place="2@117", reason="x")
    check_form("operate", {**restore, "confirm": "p"}, NOW)


@pytest.mark.parametrize("verb", ["restore", "rewind"])
def test_a_dag_that_is_gone_says_where_its_work_went(verb: str) -> None:
    said = str(find_refusal(verb, b'{"conf": {"confirm": "p"}}', NOW, "p"))
    assert (
        said == f"{verb}__p is now an act of operate__p: trigger that DAG with act savepoint.{verb} and the same fields"
    )
    assert (
        find_refusal("operate", json.dumps({"conf": {"act": f"savepoint.{verb}", "confirm": "p"}}).encode(), NOW, "p")
        is None
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"act": None}, "act 'None' is not one of"),
        ({"act": "drop"}, "is not one of savepoint.prove"),
        ({"act": ["savepoint.pin"]}, "is not one of savepoint.prove"),
        ({"act": "savepoint.prove"}, "needs savepoint"),
        ({"act": "savepoint.pin", "savepoint": "sp-x"}, "no savepoint id"),
        ({"act": "savepoint.pin", "savepoint": 7}, "write it as sp-t1-120-0a1b2c3d"),
        ({"act": "savepoint.pin", "savepoint": SAVEPOINT, "value": "x"}, "takes no value"),
        ({"act": "savepoint.pin", "savepoint": SAVEPOINT, "other": 1}, "takes no other"),
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
        ({"act": "operation.abandon", "savepoint": SAVEPOINT, "reason": "y"}, "takes no savepoint"),
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
