"""What a person may ask for on the page, and what shows that it was the page that asked. Pure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import HTTPException

from rivertwice.acts import find_act
from rivertwice.airflow import web_access, web_registry
from rivertwice.airflow.web_registry import RUN, Act, Answer, Field, Start, check_act, conf_of, page_act, run_of
from rivertwice.core.errors import RequestError
from rivertwice.core.waits import Deadline

ACT = page_act(find_act("backfill"), {"scope": "range"})
RANGE = {"start": "2013-06-30T04:00:00Z", "end": "2013-06-30T06:00:00Z"}
BODY: dict[str, Any] = {"id": "0f1e2d3c-aaaa", "reason": "late burst", "confirm": "flights", "fields": RANGE}


def test_an_act_in_due_form_becomes_the_conf_of_one_run() -> None:
    asked = check_act(ACT, "flights", BODY, "ada")
    assert conf_of(Start(fixed={"scope": "range"}), asked) == {**RANGE, "scope": "range", "reason": "late burst"}
    assert (
        run_of(asked)
        == run_of(check_act(ACT, "flights", {**BODY, "reason": "again"}, "bob"))
        == "cockpit__0f1e2d3c-aaaa"
    )


def test_a_browser_cannot_choose_what_an_act_fixes() -> None:
    with pytest.raises(RequestError, match="does not know 'scope'"):
        check_act(ACT, "flights", {**BODY, "fields": {**RANGE, "scope": "stale"}}, "ada")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": "short"}, "id 'short'"),
        ({"id": "../../../etc/passwd"}, "is not 8 to 64"),
        ({"id": None}, "id 'None'"),
        ({"reason": ""}, "no reason is given"),
        ({"reason": "  "}, "no reason is given"),
        ({"reason": "a\nb"}, "cannot be kept"),
        ({"reason": "{{ secrets }}"}, "cannot be kept"),
        ({"reason": "x" * 201}, "cannot be kept"),
        ({"confirm": ""}, "'' was typed to confirm it"),
        ({"confirm": "Flights"}, "then type flights"),
        ({"confirm": "flights "}, "then type flights"),
        ({"fields": {"start": RANGE["start"]}}, "the range has no end"),
        ({"fields": {**RANGE, "end": ""}}, "the range has no end"),
        ({"fields": {**RANGE, "end": "yesterday"}}, "end 'yesterday' is not an instant"),
        ({"fields": {**RANGE, "end": RANGE["end"] + "\n"}}, "is not an instant"),
        ({"fields": ["start"]}, "is not an object"),
    ],
)
def test_an_act_that_is_not_in_due_form_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        check_act(ACT, "flights", {**BODY, **change}, "ada")


def test_a_run_that_an_answer_names_is_one() -> None:
    answer = Act("a", "A", "Says.", "switch", Answer("approve", "Approve"), (Field("run", "Run", RUN, required=True),))
    body = {**BODY, "confirm": ""}
    assert check_act(answer, "flights", {**body, "fields": {"run": "manual__1"}}, "ada").fields == {"run": "manual__1"}
    for fields, says in (({"run": "a b"}, "is not what 'Run' takes"), ({}, r"needs 'Run' \(run\)")):
        with pytest.raises(RequestError, match=says):
            check_act(answer, "flights", {**body, "fields": fields}, "ada")


def test_an_act_that_changes_nothing_served_needs_no_confirmation() -> None:
    assert (
        check_act(replace(ACT, changes_served=False), "flights", {**BODY, "confirm": ""}, "ada").reason == "late burst"
    )


def test_two_acts_cannot_have_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_registry, "_ACTS", {})
    web_registry.register(ACT, ACT)
    assert list(web_registry.registered()) == ["backfill"]
    with pytest.raises(ValueError, match="two acts are named 'backfill'"):
        web_registry.register(replace(ACT, title="Another"))


def test_a_token_is_of_one_person_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    token = web_access.make_token("secret", "ada")
    web_access.check_token("secret", "ada", token)
    for secret, user, given, says in (
        ("secret", "bob", token, "another login"),
        ("other", "ada", token, "was not made by this server"),
        ("secret", "ada", token[:-2] + "xx", "was not made by this server"),
        ("secret", "ada", None, "has no header X-Rivertwice-CSRF"),
        ("secret", "ada", "", "has no header"),
    ):
        with pytest.raises(RequestError, match=says):
            web_access.check_token(secret, user, given)
    later = time.time() + web_access.LIFE_S + 2
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(RequestError, match="older than 8 hours"):
        web_access.check_token("secret", "ada", token)


HEADERS = {"host": "airflow.example", "content-type": "application/json"}


@pytest.mark.parametrize(
    "own",
    [
        {"sec-fetch-site": "same-origin", "origin": "https://airflow.example"},
        {
            "sec-fetch-site": "same-origin",
            "origin": "https://outside.example",
        },  # a proxy that changed Host: the browser's word counts
        {"origin": "https://airflow.example"},  # a browser over plain http sends no Sec-Fetch-Site
        {},  # no browser
        {"content-type": "application/json; charset=utf-8"},
    ],
)
def test_the_page_itself_and_a_program_may_ask(own: dict[str, str]) -> None:
    web_access.check_origin({**HEADERS, **own})


@pytest.mark.parametrize(
    "foreign",
    [
        {"sec-fetch-site": "cross-site", "origin": "https://evil.example"},
        {"sec-fetch-site": "same-site", "origin": "https://other.example"},
        {"sec-fetch-site": "none"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"},
        {"content-type": ""},
    ],
)
def test_another_page_and_a_plain_form_may_not(foreign: dict[str, str]) -> None:
    with pytest.raises(RequestError, match="nothing was started"):
        web_access.check_origin({**HEADERS, **foreign})


class AskingLater:
    """An Airflow whose task asks a person after it was looked at some times."""

    def __init__(self, *states: str | None) -> None:
        self.states = list(states)
        self.sent: list[Mapping[str, Any]] = []

    async def get(self, path: str) -> httpx.Response:
        if path.endswith("hitlDetails"):
            return httpx.Response(200, json={"created_at": "2026-01-01T00:00:00Z", "response_received": False})
        return httpx.Response(200, json={"state": self.states.pop(0) if len(self.states) > 1 else self.states[0]})

    async def send(self, _method: str, _path: str, body: Mapping[str, Any]) -> httpx.Response:
        self.sent.append(body)
        return httpx.Response(200, json={})


def answered_by(airflow: AskingLater, patience: Deadline) -> bool:
    from rivertwice.airflow.web_acts import answer_run

    approve = Act(
        "a", "A", "Says.", "backfill", Answer("approve", "Approve"), (Field("run", "Run", RUN, required=True),)
    )
    asked = check_act(approve, "flights", {**BODY, "fields": {"run": "repair__1"}}, "ada")
    return asyncio.run(answer_run(airflow, "backfill__flights", Answer("approve", "Approve"), asked, patience=patience))  # type: ignore[arg-type]


@pytest.mark.airflow
def test_an_answer_waits_for_a_question_that_is_about_to_be_asked() -> None:
    airflow = AskingLater(None, "queued", "awaiting_input")
    assert answered_by(airflow, Deadline.after(30)) is False  # nobody gave it before
    assert airflow.sent[0] == {"chosen_options": ["Approve"], "params_input": {}}
    for states in ((None,), ("scheduled", "skipped"), ("success",)):
        never = AskingLater(*states)
        with pytest.raises(HTTPException, match="does not wait for an answer"):
            answered_by(never, Deadline.after(0 if states == (None,) else 30))
        assert never.sent == []
