"""No DAG: Airflow shows a refused pipeline definition as an import error of this file, and hides no other pipeline."""

from rivertwice.airflow.factory import require_definitions

require_definitions()
