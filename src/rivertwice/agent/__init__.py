"""Keeps pipelines in their desired state and tells people: decisions, health, alerts, metrics."""
