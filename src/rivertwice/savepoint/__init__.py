"""Savepoints: taken without a pause, proved by a restore."""
