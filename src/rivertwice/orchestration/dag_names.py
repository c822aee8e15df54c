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
