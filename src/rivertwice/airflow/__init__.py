"""DAGs, operators, triggers, forms and the page in Airflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rivertwice.core.face import lazy_names

if TYPE_CHECKING:
    from rivertwice.airflow.airflow_api import AirflowClient
    from rivertwice.airflow.definitions import find_definitions
    from rivertwice.airflow.environment import SPARK_CONNECTION, SPARK_POOL, spark_environment
else:
    __getattr__ = lazy_names(__name__)

__all__ = [
    "SPARK_CONNECTION",
    "SPARK_POOL",
    "AirflowClient",
    "find_definitions",
    "spark_environment",
]
