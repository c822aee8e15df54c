"""Seals: how far a reconcile has proved the past, so that the next one judges only what changed since."""
