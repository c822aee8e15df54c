"""Names of DAGs. Pure."""

from __future__ import annotations


def safe_name(pipeline: str) -> str:
    """Return the name of a pipeline, or of a version, as Airflow allows it in an id: `flight_delays.v2` of `flight_delays@v2`.

    A pipeline's own name has no dot, so two names are never the same.
    """
    return pipeline.replace("@", ".")


def dag_id(verb: str, pipeline: str) -> str:
    """Return the id of the DAG of a verb."""
    return f"{verb}__{safe_name(pipeline)}"


def dag_of_step(pipeline: str, act: str, version: str) -> str | None:
    """Return the DAG that does the next step about a version, with the value for its form; None: no DAG does it."""
    if act == "reconcile":
        return dag_id("reconcile", version)
    if act in ("compare", "serve", "back", "accept"):
        return f"{dag_id('switch', pipeline)}, version {version}"
    return None
