from rivertwice.airflow.plugin_file import *  # noqa: D100, F403
