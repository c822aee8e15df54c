"""Delivery beyond the tables: committed and published rows are sent to Kafka, PostgreSQL and webhooks, in order."""
