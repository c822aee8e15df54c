"""Backfill: a plan as a value, then write, audit, publish."""
