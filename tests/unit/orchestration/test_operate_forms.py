"""The forms of restore, rewind and operate: what is refused before a run is made, and by its first task."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from rivertwice.airflow.form_check import find_refusal
from rivertwice.airflow.operate_forms import ACTS, check_form, read_operate, read_restore, read_rewind
from rivertwice.core.errors import RequestError

NOW = datetime(2026, 11, 27, tzinfo=UTC)
SAVEPOINT = "sp-t1-120-0a1b2c3d"


def operate(**values: Any) -> Any:
    return read_operate(values, values)


def test_a_restore_needs_the_name_and_nothing_else() -> None:
    form = read_restore({}, {"confirm": "p"}, "p")
    assert (form.savepoint, form.planned, form.unproved, form.dry_run, form.reason) == (None, False, False, False, "")
    assert read_rewind({}, {"confirm": "p", "savepoint": SAVEPOINT, "unproved": True}, "p").unproved


@pytest.mark.parametrize("typed", [None, "", "q", "P", " p", 7, ["p"]])
def test_another_name_than_the_pipelines_starts_nothing(typed: Any) -> None:
    for read in (read_restore, read_rewind):
        with pytest.raises(RequestError, match="has to be typed"):
            read({}, {"confirm": typed}, "p")  # type: ignore[operator]


def test_the_name_of_a_version_is_typed_as_people_write_it() -> None:
    assert read_restore({}, {"confirm": "p@v2"}, "p.v2")
    with pytest.raises(RequestError):
        read_restore({}, {"confirm": "p"}, "p.v2")


def test_the_api_server_refuses_an_unconfirmed_restore_with_its_reason() -> None:
    body = json.dumps({"conf": {"confirm": "other", "reason": "x"}}).encode()
    assert "'other' was; nothing was done" in str(find_refusal("restore", body, NOW, "p"))
    assert find_refusal("restore", json.dumps({"conf": {"confirm": "p"}}).encode(), NOW, "p") is None
    assert "has to be typed" in str(find_refusal("rewind", b"{}", NOW, "p"))
    assert "dead.amend needs value" in str(
        find_refusal("operate", b'{"conf": {"act": "dead.amend", "place": "2@117", "reason": "x"}}', NOW)
    )
    check_form("restore", {"confirm": "p"}, NOW)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "act 'None' is not one of"),
        ({"act": "drop"}, "is not one of savepoint.prove"),
        ({"act": "savepoint.prove"}, "needs savepoint"),
        ({"act": "savepoint.pin", "savepoint": "sp-x"}, "no savepoint id"),
        ({"act": "savepoint.pin", "savepoint": SAVEPOINT, "value": "x"}, "takes no value"),
        ({"act": "dead.amend", "place": "2@117", "value": "x"}, "needs reason"),
        ({"act": "dead.amend", "place": "2-117", "value": "x", "reason": "y"}, "write it as 2@117"),
        ({"act": "dead.amend", "place": "2@117", "value": 7, "reason": "y"}, "has to be a text"),
        ({"act": "dead.amend", "place": "2@117", "value": "x" * 100_001, "reason": "y"}, "at most 100000"),
        ({"act": "dead.amend", "place": "2@117", "value": "\ud800", "reason": "y"}, "UTF-8 cannot write"),
        ({"act": "dead.discard", "reason": "y"}, "by its place, or all open ones"),
        ({"act": "dead.discard", "place": "2@117", "kind": "schema", "reason": "y"}, "by its place, or all open ones"),
        ({"act": "dead.discard", "kind": "schema"}, "needs reason"),
        ({"act": "operation.abandon", "savepoint": SAVEPOINT, "reason": "y"}, "takes no savepoint"),
        ({"act": "savepoint.pin", "savepoint": SAVEPOINT, "reason": "{{ ti }}"}, "cannot be kept"),
    ],
)
def test_an_act_takes_what_it_needs_and_nothing_else(values: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        operate(**values)


def test_an_amended_value_may_have_any_characters_of_a_record() -> None:
    value = '{"a": "{{ x }} $HOME `id` \\\\ é"}\n'
    assert operate(act="dead.amend", place="flights/2@117", value=value, reason="typo").value == value


def test_every_act_has_a_good_form() -> None:
    fields = {"savepoint.prove": {"savepoint": SAVEPOINT}, "savepoint.pin": {"savepoint": SAVEPOINT}}
    fields |= {"savepoint.unpin": {"savepoint": SAVEPOINT}, "dead.amend": {"place": "2@117", "value": "x"}}
    fields |= {"dead.discard": {"kind": "schema"}, "operation.abandon": {}}
    assert {operate(act=act, reason="why", **fields[act]).act for act in ACTS} == set(ACTS)
