"""Names of DAGs and of their runs. Pure."""

from __future__ import annotations

import hashlib


def safe_name(pipeline: str) -> str:
    """Return the name of a pipeline, or of a version, as Airflow allows it in an id: `flight_delays.v2` of `flight_delays@v2`.

    A pipeline's own name has no dot, so two names are never the same.
    """
    return pipeline.replace("@", ".")


def dag_id(verb: str, pipeline: str) -> str:
    """Return the id of the DAG of a verb."""
    return f"{verb}__{safe_name(pipeline)}"


def of_dag(dag_id: str) -> tuple[str, str] | None:
    """Return verb and pipeline of the id of a DAG; None: it is no id of ours."""
    verb, ours, name = dag_id.partition("__")
    return (verb, name.replace(".", "@")) if ours else None


# Names of what a DAG run stores; a later task of the same run finds it by its name. Pure.


def request_of(run_id: str) -> str:
    """Return the name of a DAG run's request for a backfill, safe in a path."""
    return f"rq-{_digest(run_id)}"


def reconcile_of(run_id: str, attempt: int) -> str:
    """Return the name of the reconcile that one attempt of a DAG run's job stores.

    Each attempt has its own name: rows are stored once under a name, and a task that a person cleared compares again.
    """
    return f"{_reconciles(run_id)}{attempt}"


def is_reconcile_of(run_id: str, reconcile: str) -> bool:
    """Say whether a reconcile was stored by some attempt of the DAG run."""
    return reconcile.startswith(_reconciles(run_id))


def comparison_of(run_id: str, attempt: int) -> str:
    """Return the name of the comparison of versions that one attempt of a DAG run's job stores."""
    return f"{comparisons(run_id)}{attempt}"


def comparisons(run_id: str) -> str:
    """Return how the names of all comparisons of a DAG run begin."""
    return f"pc-{_digest(run_id)}-"


def _reconciles(run_id: str) -> str:
    return f"rc-{_digest(run_id)}-"


def _digest(run_id: str) -> str:
    return hashlib.sha256(run_id.encode()).hexdigest()[:12]
