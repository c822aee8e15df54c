"""DAGs, operators, triggers, forms and the page in Airflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.airflow.airflow_api import AirflowClient
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
