"""DAGs, operators, triggers, forms and the page in Airflow."""
