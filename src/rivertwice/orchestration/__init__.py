"""Everything that imports Airflow."""
