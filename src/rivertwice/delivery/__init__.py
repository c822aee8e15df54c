"""Delivery beyond the tables: what was committed and published goes on to Kafka, PostgreSQL and webhooks, in order."""
