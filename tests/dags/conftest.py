"""An Airflow of the tests' own: its variables are set before anything imports Airflow, its database is a throw-away file."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

from homes.project import REPOSITORY

_HOME = tempfile.mkdtemp(prefix="rivertwice-dags-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)

os.environ.update(
    AIRFLOW_HOME=_HOME,
    AIRFLOW__CORE__UNIT_TEST_MODE="True",
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__DAGS_FOLDER=str(REPOSITORY / "dags"),
    AIRFLOW__CORE__PLUGINS_FOLDER=str(REPOSITORY / "plugins"),
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{_HOME}/airflow.db",
)
