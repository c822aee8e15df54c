"""Processes of others that a test starts and stops: Airflow, a browser, Kafka Connect, PostgreSQL, a Spark cluster, receivers."""
