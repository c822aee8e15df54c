"""Alerts: what fires, since when, what it means, and who was informed of it. The agent and Airflow both use this room."""
