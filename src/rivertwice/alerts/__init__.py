"""Alerts: what fires, since when, what it means, and who was told of it. The agent and Airflow both use this room."""
