"""What may be done to savepoints, versions and dead letters: each act belongs to a DAG, and its form is one that the DAG accepts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rivertwice.airflow.web_registry import Answer, Start, check_act, conf_of
from rivertwice.airflow.web_timelines import TIMELINE_ACTS as ACTS
from rivertwice.core.errors import RequestError
from rivertwice.tasks.forms import check_form

pytestmark = pytest.mark.airflow
NOW = datetime(2026, 11, 27, tzinfo=UTC)
BY_NAME = {act.name: act for act in ACTS}
GIVEN: dict[str, Any] = {
    "savepoint": "sp-t1-120-0a1b2c3d", "version": "p@v2", "run": "manual__2026-11-27T00:00:00+00:00", "place": "flights/2@117",
    "value": '{"a": "{{ x }}"}',
}  # fmt: skip


def asked(name: str, confirm: str = "p", **fields: Any) -> Any:
    body = {"id": "0123456789", "reason": "why", "confirm": confirm, "fields": fields}
    return check_act(BY_NAME[name], "p", body, "ada")


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_the_form_that_an_act_sends_is_one_that_its_dag_accepts(name: str) -> None:
    act = BY_NAME[name]
    fields = {field.name: GIVEN[field.name] for field in act.fields if field.required}
    if name == "dead.discard":
        fields = {"kind": "schema"}
    if name == "dead.amend":
        fields = {"place": GIVEN["place"], "value": GIVEN["value"]}
    one = asked(name, **fields)
    if isinstance(act.effect, Start):
        check_form(act.verb, conf_of(act.effect, one), NOW, "p")
    else:
        assert isinstance(act.effect, Answer)


def test_what_may_change_served_rows_needs_the_typed_name() -> None:
    typed = {name for name, act in BY_NAME.items() if act.changes_served}
    assert typed == {"savepoint.restore", "savepoint.rewind", "switch.approve", "late.correct"}
    for name in ("savepoint.restore", "savepoint.rewind"):
        with pytest.raises(RequestError, match="was typed to confirm it"):
            asked(name, confirm="q", savepoint=GIVEN["savepoint"])
        assert conf_of(BY_NAME[name].effect, asked(name))["confirm"] == "p"  # type: ignore[arg-type]


def test_a_value_may_have_any_characters_and_a_place_may_not() -> None:
    assert asked("dead.amend", place="2@117", value="{ $HOME }\n").fields["value"] == "{ $HOME }\n"
    with pytest.raises(RequestError, match="write it as 2@117"):
        asked("dead.amend", place="2@x", value="{}")
    with pytest.raises(RequestError, match="at most 100000"):
        asked("dead.amend", place="2@117", value="x" * 100_001)
