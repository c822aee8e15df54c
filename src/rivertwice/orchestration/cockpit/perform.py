"""Do what was asked for: start a DAG run, or answer one that waits, as the person. A request that is repeated does it once."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from fastapi import HTTPException

from rivertwice.instants import parse_iso, utc_now
from rivertwice.orchestration.airflow_api import SETTLED
from rivertwice.orchestration.cockpit.as_user import AirflowAsUser, checked, detail_of
from rivertwice.orchestration.cockpit.registry import Answer, Asked, Start, conf_of, run_of

WAITS = "awaiting_input"
_CONFLICT = 409


async def start_run(airflow: AirflowAsUser, dag: str, start: Start, asked: Asked) -> dict[str, Any]:
    """Start a run of a DAG; one that the same request started before is returned again.

    Raises:
        HTTPException: Airflow refused, or another request used the id.
    """
    run, conf, note = run_of(asked), conf_of(start, asked), asked.reason or None
    body = {"dag_run_id": run, "logical_date": None, "conf": conf, "note": note}
    answer = await airflow.send("POST", f"/dags/{quote(dag)}/dagRuns", body)
    repeated = answer.status_code == _CONFLICT
    if repeated:
        known = await airflow.get(f"/dags/{quote(dag)}/dagRuns/{quote(run)}")
        same = known.is_success and _is_same(known.json(), conf, note, asked.by)
        if not same:
            raise HTTPException(_CONFLICT, detail_of(answer))
        answer = known
    made = checked(answer)
    state = await airflow.get(f"/dags/{quote(dag)}")
    paused = bool(state.is_success and state.json().get("is_paused"))
    return {"dag": dag, "run": made["dag_run_id"], "state": made["state"], "repeated": repeated, "paused": paused}


async def answer_run(airflow: AirflowAsUser, dag: str, wanted: Answer, asked: Asked) -> dict[str, Any]:
    """Answer a run that waits for a person; the same answer of the same person is taken once.

    Raises:
        HTTPException: it does not wait (409), was answered otherwise, or Airflow refused.
    """
    run = str(asked.fields["run"])
    task = f"/dags/{quote(dag)}/dagRuns/{quote(run)}/taskInstances/{quote(wanted.task)}"
    question = f"{task}/-1/hitlDetails"
    state = checked(await airflow.get(task))["state"]
    made = {"dag": dag, "run": run, "state": "running", "paused": False}
    if state != WAITS:
        known = await airflow.get(question)
        if known.is_success and _is_answered(known.json(), wanted.option, asked.by):
            return {**made, "repeated": True}
        message = (
            f"the task {wanted.task} of {run} does not wait for an answer (it is {state or 'not begun'}); nothing was answered; "
            "if it begins only now, try again in some seconds"
        )
        raise HTTPException(_CONFLICT, message)
    await _settle(checked(await airflow.get(question)))
    checked(await airflow.send("PATCH", question, {"chosen_options": [wanted.option], "params_input": {}}))
    if asked.reason:
        checked(
            await airflow.send(
                "PATCH", f"/dags/{quote(dag)}/dagRuns/{quote(run)}?update_mask=note", {"note": asked.reason}
            )
        )
    return {**made, "repeated": False}


async def _settle(question: dict[str, Any]) -> None:
    """Wait until Airflow will not lose the answer to a question, which it does in its first seconds."""
    age = utc_now() - parse_iso(question["created_at"])
    await asyncio.sleep(max((SETTLED - age).total_seconds(), 0.0))


def _is_same(run: dict[str, Any], conf: dict[str, Any], note: str | None, by: str) -> bool:
    return (run.get("conf") or {}) == conf and run.get("note") == note and run.get("triggering_user_name") == by


def _is_answered(question: dict[str, Any], option: str, by: str) -> bool:
    user = question.get("responded_by_user") or {}
    return (
        bool(question.get("response_received"))
        and question.get("chosen_options") == [option]
        and user.get("name") == by
    )
